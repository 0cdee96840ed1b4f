# Proves: each library for programs is installed by the line that its documents give, and then the programs of the documents
# run as they stand, on the server of "make demo", by the environment that it prints: those of the READMEs and of the
# tutorial, a nightly job, an election, and a worker.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockBeside;
use DLockCli;
use DLockClient;
use DLockTest;
use File::Path qw(make_path);
use IO::Compress::Zip qw(zip $ZipError ZIP_CM_STORE);
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../../..";
my $place = "$PostgreSQL::Test::Utils::tmp_check/install";
my $tree = "$place/dlock";
my $python = -x '/usr/bin/python3' ? '/usr/bin/python3' : 'python3';
my $maven = '/usr/share/maven-repo';
my $gocode = '/usr/share/gocode/src';
my $pgx = 'github.com/jackc/pgx/v5';
my %version;

# Lines are run in a checkout.  Nobody is root, and of the registries that of npm alone is asked: what others would bring is
# what Debian packages.
#   tools      what has to be here
#   prepare    makes what stands in for a registry, or for root
#   env        leads the lines to that
#   count      how many programs the README and the tutorial have that end; their mark, and that of those that run on
#   file       what a program is called; "build" gives the lines that compile it, "start" is the command
#   at_top     a program is in the top directory, and not in one of its own
#   told       exit code of a program that is told to end
my %library = (
	c => {
		tools => 'pkg-config --exists libpq',
		prepare => \&prepare_c,
		env => { MAKEFLAGS => "prefix=$place/c", PKG_CONFIG_PATH => "$place/c/lib/pkgconfig", LD_LIBRARY_PATH => "$place/c/lib" },
		count => 1,
		marks => [qw(c C)],
		file => 'job.c',
		build => sub { $_[0] =~ /^(cc job\.c .*)$/m },
		start => './a.out',
		told => 0,
	},
	go => {
		tools => "go version && test -d $gocode/github.com/lib/pq",
		prepare => \&prepare_go,
		env => { GOPATH => "$place/go", GOPROXY => "file://$place/proxy", GOSUMDB => 'off', GOFLAGS => '-modcacherw', GOTOOLCHAIN => 'local' },
		count => 2,
		marks => [qw(go golang)],
		file => 'main.go',
		build => \&build_go,
		start => './job',
		told => 0,
	},
	java => {
		tools => join(' && ', 'mvn --version', 'test -f /usr/share/java/postgresql.jar',
			map { "test -d $maven/org/apache/maven/plugins/maven-$_-plugin" } qw(compiler install jar resources surefire)),
		prepare => \&prepare_java,
		env => { MAVEN_OPTS => "-XX:TieredStopAtLevel=1 -Duser.home=$place/maven" },
		count => 1,
		marks => [qw(java Java)],
		file => 'Example.java',
		at_top => 1,
		build => sub { -d "$tree/classes" ? 'true' : $_[0] =~ /^(javac .*)$/m },
		start => 'java -cp classes:/usr/share/java/postgresql.jar Example.java',
		told => 143,
	},
	node => {
		tools => 'test "$DLOCK_CLIENTS" = 1 && npm --version',
		env => { npm_config_cache => "$place/npm" },
		count => 2,
		marks => [qw(js javascript)],
		file => 'example.js',
		start => 'node example.js',
		told => 0,
	},
	python => {
		tools => "$python -c 'import ensurepip, psycopg, psycopg_pool, setuptools, wheel'",
		prepare => sub { return run("$python -m venv --system-site-packages '$place/venv'") },
		env => { PATH => "$place/venv/bin:$ENV{PATH}", PIP_NO_INDEX => 1, PIP_NO_BUILD_ISOLATION => 0, PYTHONDONTWRITEBYTECODE => 1 },
		driver => " 'psycopg[binary,pool]'",
		count => 3,
		marks => [qw(python py)],
		file => 'example.py',
		start => 'python3 example.py',
		told => 0,
	});

my @here = grep { client_tool("what the library for $_ is installed with", $library{$_}{tools}) } sort keys %library;
plan skip_all => 'no library can be installed' unless @here;

# What the demo says, and the lines of it that programs need.
my $test_pid = $$;
make_path($place);
is(system('bash', '-c', '. "$0/test/lib/common.sh" && copy_tree "$0" "$1"', $top, $tree), 0, 'a checkout');
my $faults = ($ENV{DLOCK_FAULTS} // '') eq '1' ? 'FAULTS=1' : '';
is(system("$faults make -s -C '$tree' demo >'$place/demo' 2>&1"), 0, 'make demo') or die slurp_file("$place/demo");
my $said = slurp_file("$place/demo");
my $exports = join '', $said =~ /^  (export .*\n)/mg;
my ($socket) = $said =~ /^  .*psql -h (\S+) -p \d+ -U app demo$/m;

# Each has a copy of the demo's database.
foreach my $name (@here)
{
	is(run("$exports createdb -h '$socket' -U postgres -T demo $name"), 0, "a database for $name");
}
delete @ENV{qw(COPT JAVA_TOOL_OPTIONS PG_CONFIG)};
alarm 600;
beside(map { my $name = $_; $name => sub { test_library($name, $library{$name}) } } @here);
done_testing();

END
{
	my $code = $?;

	system("'$tree/test/demo' stop") if defined $said && $$ == $test_pid;
	$? = $code;
}

# The status of lines in the checkout; what they say goes to the log.
sub run
{
	my ($lines) = @_;
	return system('sh', '-exc', "cd '$tree'\n{ $lines\n} >&2");
}

# A program that is started by such lines.
sub shell
{
	my ($lines, %params) = @_;
	return ({ program => 'sh', %params }, '-ec', "$exports\ncd '$tree'\n$lines");
}

sub sql
{
	my ($sql) = @_;
	my $run = cli(shell('exec psql -XAtq -v ON_ERROR_STOP=1', in => $sql));

	is($run->{code}, 0, 'SQL') or diag($run->{err});
	chomp(my $out = $run->{out});
	return $out;
}

sub test_library
{
	my ($name, $library) = @_;
	my $readme = slurp_file("$tree/src/clients/$name/README.md");

	%ENV = (%ENV, %{ $library->{env} });
	$exports =~ s{(PGDATABASE=|/)demo\b}{$1$name}g;
	is($library->{prepare}->(), 0, 'what the lines need') if $library->{prepare};
	my @blocks = $readme =~ /^```sql\n(.*?)^```$/msg;
	is(scalar @blocks, 2, 'what the programs need');
	sql($_) foreach @blocks;
	test_job($name, $library, $readme);

	# Those that end, and those that run on.
	my ($ends, $goes_on) = @{ $library->{marks} };
	my @programs = ($readme . slurp_file("$tree/doc/tutorial/nightly-job.md")) =~ /^```$ends\n(.*?)^```$/msg;
	is(scalar @programs, $library->{count}, 'programs');
	@programs = grep { -d "$gocode/$pgx" || !m{dlock/pgx5} } @programs;
	foreach my $i (0 .. $#programs)
	{
		my $start = build($library, $readme, $programs[$i], "$name$i");
		cli_is([ shell($start) ], {}, "program $i");
		is(sql(q{SELECT count(*) FROM report WHERE made ~ '^made under token \d+$'}), $i + 2, "program $i: what it has written");
	}
	@programs = $readme =~ /^```$goes_on\n(.*?)^```$/msg;
	is(scalar @programs, 2, 'programs that run on');
	foreach my $i (0 .. 1)
	{
		my $run = DLockCli->start(shell(build($library, $readme, $programs[$i], "${name}_on$i")));

		$run->wait_out($i == 0 ? qr/leads, with token \d+/ : qr/done: one/);
		$run->signal('TERM');
		$run->finish;
		is("$run->{signal}.$run->{code}", "0.$library->{told}", "program $i ends when it is told to") or diag($run->{err});
		like($run->{out}, $i == 0 ? qr/resigns\n\z/ : qr/done: one\n\z/, "program $i: what it says");
	}
	is(sql(q{SELECT (SELECT string_agg(key, '') FROM sent), count(*) FROM dlock_tasks WHERE state = 'done'}), 'one|1', 'the task is done');
	is(sql(q{SELECT (SELECT count(*) FROM dlock_leases WHERE name !~ '^once:'), (SELECT count(*) FROM dlock_waiters)}), '0|0', 'nothing is left');
	return;
}

# Write and compile a program; how to start it.
sub build
{
	my ($library, $readme, $program, $name) = @_;
	my $dir = $library->{at_top} ? $tree : "$tree/$name";

	make_path($dir);
	unlink "$dir/$library->{file}";
	append_to_file("$dir/$library->{file}", $program);
	if ($library->{build})
	{
		my @lines = $library->{build}->($readme, $program);

		ok(@lines > 0 && run(join "\n", "cd '$dir'", @lines) == 0, "$name is compiled");
	}
	return "cd '$dir'\nexec $library->{start}";
}

# The head of the nightly job says how to install the library and to start the job.  The first run of a day writes, and the
# second one knows that.
sub test_job
{
	my ($name, $library, $readme) = @_;
	my ($file) = grep { -f } glob "$tree/src/clients/$name/example/[nN]ightly*";
	my ($head) = slurp_file($file) =~ /does the work\.\n(.*?)The table and its guard/s;
	my @lines = $head =~ m{^ ?(?:\*|#|//)(?:\t+| {5})(\S.*)$}mg;
	my ($start) = (pop @lines) =~ /^(?:PGHOST|JDBC_URL)=\.\.\. (.*)$/;
	my ($tool) = $lines[0] =~ /^(\S+ \S+)/;

	foreach my $page ('doc/reference/clients.md', 'doc/tutorial/nightly-job.md')
	{
		is($_, $lines[0], "the line that installs it in $page") foreach slurp_file("$tree/$page") =~ /`(\Q$tool\E [^`]*)`/g;
	}
	like($readme, qr/^```\n\Q$lines[0]\E/m, 'the line that installs it in its README') if $name ne 'go';
	$lines[0] =~ s/\Q$library->{driver}\E$// or die $lines[0] if $library->{driver};
	is(run(join "\n", @lines), 0, 'it is installed');

	my $script = join "\n", grep({ /^(?:cd|export) / } @lines), "exec $start";
	my $day = int(time / 86400);
	cli_is([ shell($script) ], {}, 'the nightly job');
	is(sql(q{SELECT count(*) FROM report WHERE made ~ '^made under token \d+$'}), 1, 'the nightly job has written');
	my $again = cli(shell($script));
	if ($day == int(time / 86400))
	{
		is($again->{code}, 75, 'the nightly job, again: exit code');
		like($again->{err}, qr/another machine makes the report of this day/, 'the nightly job, again: message');
	}
	return;
}

# ---------------------------------------------------------------------------
# What stands in for registries
# ---------------------------------------------------------------------------

# Only root can tell the system where libraries are; LD_LIBRARY_PATH does it, too.
sub prepare_c
{
	$ENV{PATH} = "$place/bin:$ENV{PATH}";
	return run("mkdir '$place/bin' && echo '#!/bin/sh' >'$place/bin/ldconfig' && chmod 755 '$place/bin/ldconfig'");
}

sub prepare_java
{
	return run("mkdir -p '$place/maven/.m2' && cp -rs $maven '$place/maven/.m2/repository' && ln -s /usr/share/java/postgresql.jar . &&
		echo '<settings><offline>true</offline></settings>' >'$place/maven/.m2/settings.xml'");
}

# A proxy for modules, from which this one can be had, too, by path and version.  Where pgx 5 is not packaged, lib/pq is
# registered under its name.
sub prepare_go
{
	my $driver = "$gocode/$pgx";

	if (!-d $driver)
	{
		$driver = "$place/driver";
		make_path("$driver/stdlib");
		append_to_file("$driver/go.mod", "module $pgx\n\ngo 1.19\n\nrequire github.com/lib/pq v1.10.7\n");
		append_to_file("$driver/stdlib/stdlib.go", <<'EOC');
package stdlib

import (
	"database/sql"
	"database/sql/driver"

	"github.com/lib/pq"
)

type standIn struct{}

func (standIn) Open(dsn string) (driver.Conn, error) { return pq.Open(dsn + " sslmode=disable") }

func init() { sql.Register("pgx", standIn{}) }
EOC
	}
	publish($pgx, 'v5.5.5', $driver);
	publish('example.org/dlock', 'v1.0.0', "$tree/src/clients/go");
	return run("mkdir got && cd got && go mod init got && go get example.org/dlock\@v1.0.0 && go build example.org/dlock");
}

# Publish a module without its tests, and those that it requires, as Debian has one version of each.
sub publish
{
	my ($module, $version, $from) = @_;
	my $versions = "$place/proxy/$module/\@v";
	my $mod = -f "$from/go.mod" ? slurp_file("$from/go.mod") : "module $module\n";

	return if -e "$versions/$version.mod";

	# Debian has some under two names.
	$mod =~ s/^module .*/module $module/m;
	$mod =~ s{^((?:require)?[ \t]+(\S+/\S+)) (v\S+)}{"$1 " . ($version{$2} //= $3)}mge;
	make_path($versions);
	append_to_file("$versions/list", "$version\n");
	append_to_file("$versions/$version.info", qq({"Version": "$version", "Time": "2026-01-01T00:00:00Z"}));
	append_to_file("$versions/$version.mod", $mod);
	if (-d $from)
	{
		my @files = split /\n/, `find -L '$from' -mindepth 1 '(' -name testdata -o -type d -exec test -f {}/go.mod ';' ')' -prune -o -type f ! -name '*_test.go' -print`;

		zip(\@files => "$versions/$version.zip", FilterName => sub { s{^\Q$from\E/}{$module\@$version/} }, Method => ZIP_CM_STORE)
		  or die "zip: $ZipError";
	}
	publish($1, $2, "$gocode/$1") while $mod =~ m{^(?:require)?[ \t]+(\S+/\S+) (v\S+)}mg;
	return;
}

# The lines of its README, which end with "go mod tidy"; with those that it adds for pgx 5 if the program uses that.
sub build_go
{
	my ($readme, $program) = @_;
	my ($lines) = $readme =~ /^```\n(go mod init .*?)^```$/ms;
	my ($also) = $readme =~ /For pgx 5 also\s+`([^`]*)`/;
	my ($pin) = $readme =~ /as in `(go mod edit [^`]*)`/;

	$lines =~ s/(-replace=\S+)/$1 $also/ if $program =~ m{dlock/pgx5};
	$lines =~ s/^(?=go mod tidy)/$pin\n/m;
	$lines =~ s{DIRECTORY}{$tree/src/clients/go}g;
	return split(/\n/, $lines), 'go vet .', 'go build -o job .';
}
