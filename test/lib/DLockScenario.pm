# Scenarios of the libraries for programs: told once, as data, in test/clients/scenarios.json,
# and driven in each language by a small program (test/clients/session.*), which reads
# commands, a line of JSON each, and prints events, "ID EVENT...".  A scenario has a name, perhaps
# "where" (which server it is for), "needs" (the extension there, or a query builder of the language), "not" (a
# language in which it would be misuse, or whose program has a thread for each of many leases or ends them one by
# one), "landing" (only in this language in a landing, for it takes long), "env" (of the program), "sql" (before it)
# and "after", "leaves" (it leaves leases behind), and steps:
#
#   ["do", ID, COMMAND, {...}]  have the program do that, and call it ID
#   ["ID", WORD, {...}]         tell it: end, fail, cancel, go
#   ["expect", ID, EVENT...]    the next events of ID match these patterns
#   ["either", IDS, IDS, EVENT] the next event of the last of one list does; if that is the second one, the
#                               lists are swapped from then on
#   ["sql", SQL]                another session does that; it must succeed
#   ["is", SQL, VALUE]          ... and gets that answer
#   ["becomes", SQL, VALUE]     ... or will get it
#   ["refused", SQL, SQLSTATE]  ... or gets that error
#   ["server", WORD]            restart, crash, stop, start, freeze, thaw; terminate or stall (end or
#                               stop the processes of the session's connections); deaf, part, pass (a proxy
#                               between program and server)
#   ["program", NAME]           the commands that follow are of another program, started if it is new
#
# Those whose "where" is "c" are about what only the library for C has, such as a lease that is freed; or are told
# again by what the other languages try against servers that are programs (dlock_test.go, SessionTest.java, bare.js) or
# in trouble.py, where there is none for C.
#
# Scenarios of one "where" and "env" have one program, one after the other; ids are their own.
# DLOCK_SCENARIO=PATTERN runs only those whose names match.

package DLockScenario;

use strict;
use warnings FATAL => 'all';

use Carp;
use DLockPooler;
use DLockProxy;
use DLockTest;
use Exporter 'import';
use JSON::PP;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(run_scenarios run_all_scenarios run_pooler_scenarios scenario_servers);

my $file = __FILE__ =~ s{[^/]*$}{../clients/scenarios.json}r;
my $json = JSON::PP->new->canonical;
my ($node, $proxy, @command, @frozen, %programs, $program, $prefix, %swapped, %program_of);
my $number = 0;

# ---------------------------------------------------------------------------
# Programs
# ---------------------------------------------------------------------------

sub start_program
{
	my ($name, $env) = @_;
	my $base = PostgreSQL::Test::Utils::tempdir_short() . '/program.' . ++$number;
	my $self = { name => $name, out => "$base.out", err => "$base.err", seen => {} };

	pipe my $theirs, $self->{in} or croak "pipe: $!";
	$self->{in}->autoflush(1);
	$self->{pid} = fork // croak "fork: $!";
	if ($self->{pid} == 0)
	{
		%ENV = (%ENV, %$env);
		open STDIN, '<&', $theirs or POSIX::_exit(200);
		open STDOUT, '>', $self->{out} or POSIX::_exit(200);
		open STDERR, '>', $self->{err} or POSIX::_exit(200);
		{ no warnings; exec { $command[0] } @command };
		POSIX::_exit(201);
	}
	close $theirs;
	return $self;
}

# It ends when its standard input does.
sub end_program
{
	my ($self) = @_;

	close $self->{in};
	my $ended = wait_until(sub { waitpid($self->{pid}, POSIX::WNOHANG()) == $self->{pid} });
	my $status = $?;
	if (!$ended)
	{
		kill 'KILL', $self->{pid};
		waitpid $self->{pid}, 0;
	}
	return $ended ? $status : 'it does not end';
}

# Ids are of a scenario, but for that of the program's session.
sub own
{
	my ($id) = @_;
	return ref $id ? [ map { own($_) } @$id ] : $id eq 'session' ? $id : $prefix . ($swapped{$id} // $id);
}

sub tell_program
{
	my ($message) = @_;

	$message->{$_} = own($message->{$_}) foreach grep { exists $message->{$_} } qw(id in lease leases also);
	my $of = $program_of{ $message->{id} } //= $program;
	print { $of->{in} } $json->encode($message), "\n" or croak "the program has gone: $!";
	return;
}

# The events of an id that have been printed, and were not expected yet.
sub events
{
	my ($id) = @_;
	$id = own($id);
	my $of = $program_of{$id} // $program;
	my @events = grep { s/^\Q$id\E // } split /\n/, -e $of->{out} ? slurp_file($of->{out}) : '';
	splice @events, 0, $of->{seen}{$id} // 0;
	return @events;
}

sub expect
{
	my ($id, @patterns) = @_;
	my $of = $program_of{ own($id) } // $program;

	wait_until(sub { events($id) >= @patterns || waitpid($of->{pid}, POSIX::WNOHANG()) == $of->{pid} });
	my @events = events($id);
	$of->{seen}{ own($id) } += @patterns;
	my $good = 1;
	foreach my $i (0 .. $#patterns)
	{
		$good &= like($events[$i] // 'nothing', qr/^(?:$patterns[$i])$/, "$of->{name}: $id $patterns[$i]") // 0;
	}
	return $good || diag(slurp_file($of->{out}), slurp_file($of->{err}));
}

# ---------------------------------------------------------------------------
# Steps
# ---------------------------------------------------------------------------

# Not by the environment, which may lead the program elsewhere.
sub sql
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql);
}

sub session_pids
{
	return split /\n/, sql(q{SELECT pid FROM pg_stat_activity WHERE application_name = 'dlock'});
}

my %server = (
	restart => sub { $node->restart },
	crash => sub { crash_node($node); $node->start },
	stop => sub { $node->stop('immediate') },
	start => sub { $node->start },
	terminate => sub {
		sql("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()");
	},
	freeze => sub {
		my $postmaster = (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0];
		kill 'STOP', $postmaster;
		@frozen = ($postmaster, child_pids($postmaster));
		kill 'STOP', @frozen;
	},

	# Not at work: it might hold what others need.
	stall => sub {
		wait_until(
			sub {
				@frozen = session_pids();
				kill 'STOP', @frozen;
				wait_until(sub { !grep { slurp_file("/proc/$_/stat") !~ /\) T / } @frozen }) or croak 'they do not stop';
				return 1 if @frozen && sql('SELECT bool_and(state = \'idle\') FROM pg_stat_activity WHERE pid IN (' . join(', ', @frozen) . ')') eq 't';
				kill 'CONT', @frozen;
				return 0;
			}) or croak 'there is no session';
	},
	thaw => sub { kill 'CONT', @frozen },
	map { my $word = $_; $word => sub { $proxy->set($word) } } qw(deaf part pass));

my %steps = (
	sql => sub { sql(@_); return 1 },
	is => sub { my ($sql, $value) = @_; return is(sql($sql), $value, $sql) },
	becomes => sub {
		my ($sql, $value) = @_;
		return ok($node->poll_query_until('postgres', $sql, $value), "in the end: $sql");
	},
	refused => sub { my ($sql, $sqlstate) = @_; return sqlstate_is($node, 'postgres', $sql, $sqlstate, "$sqlstate: $sql") },
	server => sub { $server{ $_[0] }->(); return 1 },
	expect => \&expect,
	either => sub {
		my ($one, $other, $pattern) = @_;

		wait_until(sub { events($one->[-1]) || events($other->[-1]) });
		@swapped{ @$one, @$other } = (@$other, @$one) if !events($one->[-1]);
		return expect($one->[-1], $pattern);
	});

sub run_step
{
	my ($scenario, $verb, @args) = @_;

	if ($verb eq 'do')
	{
		my ($id, $command, $more) = @args;
		tell_program({ %{ $more // {} }, id => $id, do => $command });
	}
	elsif ($verb eq 'program')
	{
		my $env = $scenario->{env} // {};
		$program = $programs{ $json->encode([ $args[0], $env ]) } //= start_program($args[0], $env);
	}
	elsif ($steps{$verb})
	{
		$steps{$verb}->(@args);
	}
	else
	{
		tell_program({ %{ $args[1] // {} }, id => $verb, do => $args[0] });
	}
	return;
}

# All scenarios of a group, which has this server, by a program in one language.  Those that do not
# say otherwise leave nothing behind.
sub run_scenarios
{
	my ($language, $where, @params) = @_;

	($node, $proxy, @command) = @params;
	foreach my $scenario (@{ $json->decode(slurp_file($file)) })
	{
		next if ($scenario->{where} // 'server') ne $where;
		next if defined $scenario->{landing} && $language !~ /^$scenario->{landing}\b/ && ($ENV{DLOCK_RING} // '') ne 'nightly';
		next if defined $scenario->{not} && $language =~ /^$scenario->{not}\b/;
		next if ($scenario->{needs} // '') eq 'extension' && sql(q{SELECT count(*) FROM pg_extension WHERE extname = 'dlock'}) == 0;
		next if $ENV{DLOCK_SCENARIO} && $scenario->{name} !~ $ENV{DLOCK_SCENARIO};
		$prefix = ++$number . '.';
		%swapped = ();
		subtest "$language: $scenario->{name}" => sub {
			plan skip_all => 'only DLOCK_CLIENTS=1 installs a query builder'
			  if ($scenario->{needs} // '') eq 'builder' && $language =~ /^(?:node|python|a?sync)\b/ && ($ENV{DLOCK_CLIENTS} // '') ne '1';
			sql($_) foreach @{ $scenario->{sql} // [] };
			run_step($scenario, 'program', 'one');
			run_step($scenario, @$_) foreach @{ $scenario->{steps} };
			is(sql(q{SELECT (SELECT count(*) FROM dlock_leases), (SELECT count(*) FROM dlock_waiters)}),
				'0|0', 'nothing is left')
			  if !$scenario->{leaves};
			sql($_) foreach @{ $scenario->{after} // [] };
		};
	}
	foreach my $one (values %programs)
	{
		is(end_program($one), 0, "$language, $where: program $one->{name} ends by itself") or diag(slurp_file($one->{err}));
	}
	%programs = ();
	return;
}

# Make a server ready for the scenarios of all groups; returns a proxy of it.
sub scenario_servers
{
	my ($of) = @_;
	my $hba = $of->data_dir . '/pg_hba.conf';
	my $rules = slurp_file($hba);

	$of->safe_psql('postgres', "CREATE ROLE stranger LOGIN PASSWORD 'right'");
	unlink $hba;
	append_to_file($hba, "local all stranger scram-sha-256\n$rules");
	$of->reload;
	$of->safe_psql('postgres', 'CREATE DATABASE apart');
	$of->safe_psql('apart', 'CREATE SCHEMA "a b"; CREATE EXTENSION dlock SCHEMA "a b"');
	$of->safe_psql('postgres', 'CREATE DATABASE old');
	$of->safe_psql('old', 'CREATE EXTENSION dlock');
	$of->safe_psql('old', 'ALTER EXTENSION dlock DROP FUNCTION dlock_release_each; DROP FUNCTION dlock_release_each');
	$of->safe_psql('postgres', q{CREATE DATABASE latin1 TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'});
	$of->safe_psql('latin1', q{SET client_encoding = UTF8; CREATE EXTENSION dlock; CREATE TABLE data (x text);
		CREATE TRIGGER guard BEFORE INSERT ON data EXECUTE FUNCTION dlock_guard('resource=café')});
	return DLockProxy->start($of);
}

# All groups but that of poolers, and the last one, after which the server grants large tokens only.
sub run_all_scenarios
{
	my ($language, @params) = @_;

	run_scenarios($language, $_, @params) foreach qw(server schema encoding none old password nowhere faults places);
	{
		local @ENV{qw(PGHOST PGPORT)} = ($params[1]{host}, $params[1]{port});
		run_scenarios($language, 'proxy', @params);
	}
	return;
}

# By way of PgBouncer, in transaction mode.
sub run_pooler_scenarios
{
	my ($language, @params) = @_;

  SKIP:
	{
		skip 'pgbouncer is not installed', 1 unless DLockPooler::is_installed();
		my $pooler = DLockPooler->start($params[0]);
		{
			local @ENV{qw(PGHOST PGPORT)} = @$pooler{qw(host port)};
			run_scenarios($language, 'pooler', @params);
		}
		$pooler->stop;
	}
	return;
}

1;
