# The client of the benchmark speaks to dlock, and to each of the other systems that is
# installed with a library for it: it is granted, refused and handed a lock, and what it counts was granted.  The
# client for job queues puts, captures and finishes tasks with each whose library is there.
# The documents ask for variants that there are, and publish.awk fills in their tables.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockTest;
use File::Copy;
use IPC::Run;
use List::Util qw(max);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../../..";
my $bench = "$top/test/bench";
my $place = "$PostgreSQL::Test::Utils::tmp_check/bench";
my $sockets = PostgreSQL::Test::Utils::tempdir_short();

# Status, output and messages of a command.
sub run_it
{
	my ($out, $err) = ('', '');

	IPC::Run::run(\@_, '<', \undef, '>', \$out, '2>', \$err, IPC::Run::timeout(4 * $PostgreSQL::Test::Utils::timeout_default));
	return ($?, $out, $err);
}

# Text of the part of test/bench that starts the other systems, and what follows.
sub run_peers
{
	my ($script) = @_;

	return run_it('bash', '-c', <<"EOC");
set -euo pipefail
place='$place' sockets='$sockets'
progress() { echo "\$*" >&2; }
. '$bench/peers.sh'
$script
EOC
}

mkdir $_ or die "$_: $!" foreach $place, "$place/data", "$place/log";
my $has_node = system('node --version >/dev/null 2>&1') == 0;

# Programs in Node and their libraries, as test/bench/run puts them there.
foreach my $group (qw(peers tasks))
{
	mkdir "$place/$group" or die "$place/$group: $!";
	copy($_, "$place/$group/") or die "$_: $!" foreach glob("$bench/$group/*.js"), "$bench/$group/package.json";
	next if !$has_node || !$ENV{DLOCK_CLIENTS};
	system("cd '$place/$group' && HOME='$place' npm install --ignore-scripts --no-audit --no-fund --no-package-lock --silent --cache '$place/npm' >&2");
}

# Run one of them.
sub run_node
{
	my ($group, @words) = @_;
	local $ENV{NODE_PATH} = '/usr/share/nodejs';

	return $has_node ? run_it('node', "$place/$group/main.js", @words) : (1, '', '');
}

# ---- PostgreSQL ----

my $node = start_node('main');
my ($status, $out, $err);

$node->safe_psql('postgres', <<'EOC');
CREATE TABLE lease_delete (name text PRIMARY KEY, owner text, token bigint, expires_at timestamptz);
CREATE SEQUENCE lease_delete_token;
EOC
chomp($ENV{PGUSER} = $node->safe_psql('postgres', 'SELECT current_user'));
@ENV{qw(PGDATABASE PGHOST PGPORT)} = ('postgres', $node->host, $node->port);
SKIP:
{
	skip 'node has no driver of PostgreSQL', 10 if (run_node('peers', 'version', 'dlock'))[0] != 0;
	foreach my $peer (qw(dlock table advisory))
	{
		($status, $out, $err) = run_node('peers', 'check', $peer, '-');
		is("$status $out", "0 ok\n", "$peer: granted, refused, released, handed over") or diag($err);
	}

	my $before = $node->safe_psql('postgres', 'SELECT grants FROM dlock_stats');
	($status, $out, $err) = run_node('peers', 'rate', 'dlock', '-', 'clients=4');
	is($status, 0, 'a run') or diag($err);
	my %value = $out =~ /^(\w+) (.*)$/mg;
	like($value{pairs}, qr/^\d+$/, 'counts pairs');

	# Each client ends its last pair, however long that takes.
	cmp_ok($node->safe_psql('postgres', 'SELECT grants FROM dlock_stats') - $before, '>=', max($value{pairs}, 4), 'each of which is a grant');
	is($value{left}, 0, 'and nothing is left');
	($status, $out, $err) = run_node('peers', 'handoff', 'dlock', '-', 'seconds=3');
	is($status, 0, 'hand-offs') or diag($err);
	like($out, qr/\A(?:handoff \d+\n)+\z/, 'are printed');
	local $ENV{PGHOST} = "$sockets/none";
	($status, $out, $err) = run_node('peers', 'check', 'dlock', '-');
	like("$status $err", qr/^[1-9]\d* error: connect /, 'a server that is not there is told');
}

# ---- job queues in the same server ----

foreach my $peer (qw(none table dlock graphile loop pgboss))
{
  SKIP:
	{
		($status, $out, $err) = run_node('tasks', 'version', $peer);
		skip "$peer: node has no library of it", $peer =~ /none|loop/ ? 6 : 7 if $status != 0;
		like($out, qr/^[\w-]+ \d+\.\d+\.\d+$/, "$peer: its version");
		($status, $out, $err) = run_node('tasks', 'install', $peer);
		is($status, 0, "$peer: is installed") or diag($err);
		if ($peer !~ /none|loop/)
		{
			($status, $out, $err) = run_node('tasks', 'check', $peer);
			is("$status $out", "0 ok\n", "$peer: a task is captured once, and finished") or diag($err);
		}
		foreach my $size (1, 20)
		{
			($status, $out, $err) = run_node('tasks', 'rate', $peer, 'clients=3', "size=$size", qw(seconds=1 threads=2 waiting=100));
			is($status, 0, "$peer, $size at a time: nothing is lost") or diag($err);
			like($out, qr/\Arate \d+\.\d\nput_us \d+\ncapture_us \d+\nfinish_us \d+\nserver_us \d+\nleft \d+\n\z/, 'a run');
		}
	}
}
$node->stop;

# ---- the other systems, as far as they are here ----

($status, $out, $err) = run_peers('peer_names');
my @servers = split ' ', $out;
cmp_ok(scalar @servers, '>=', 4, 'there are other systems');
foreach my $server (@servers)
{
	($status, my $missing) = run_peers("peer_package $server");
	$missing = join ', ', split ' ', $missing;
  SKIP:
	{
		skip "$server: no $missing", 3 if $missing ne '';
		my $peer = $server =~ s/_.*//r;
		skip "$peer: node has no library of it", 3 if (run_node('peers', 'version', $peer))[0] != 0;

		# The start includes the check of what dlock has just passed.  Again, if
		# somebody has taken its port meanwhile.
		($status, $out, $err) = run_peers(<<"EOC");
trap peers_stop EXIT
peer_start $server || { rm -rf "\$place/data/$server"; peer_start $server; }
peer_run rate $server $peer clients=4
# Few names, so that many are refused.
peer_run rate $server $peer clients=8 names=4
[ $peer = redlock ] || peer_run handoff $server $peer
peer_version $server
EOC
		is($status, 0, "$server: granted, refused, released, handed over") or diag($err);
		like($out, qr/^pairs \d+\nrefused \d+\nleft 0\n.*^pairs \d+\nrefused [1-9]\d*\nleft 0$/ms, "$server: two runs");
		like($out, qr/^\w+ \d+\.\d+/m, "$server: its version");
	}
}

# ---- the documents ----

my %variant = map { /^(\w+) / ? ($1 => 1) : () } split /\n/, slurp_file("$bench/variants");
my (@marks, @unknown);
foreach my $document (qw(test/bench/RESULTS.md))
{
	foreach my $mark (slurp_file("$top/$document") =~ /^<!-- (?:optional )?figures: (.*) -->$/mg)
	{
		my ($kind, @words) = split ' ', $mark;
		push @marks, $mark;
		push @unknown, grep { !$variant{$_} } map { s/[.:].*//r } map { split m{/} } @words;
	}
}
cmp_ok(scalar @marks, '>', 10, 'documents have marks');
is_deeply(\@unknown, [], 'of variants that there are');

append_to_file("$place/variants", join '', map { "$_\n" } '# of what',
	'a group main on pair first thing', 'b group main on pair second', 'm million million on pair beside leases',
	map { ("tasks_x_$_ tasks main on tasks\@x x, so many", "tasks_y_$_ tasks main on tasks\@y y, so many") } qw(1_on 20_on 1_off 20_off));
append_to_file("$place/machine", <<'EOC');
4 processors: fast; 8 GB
use of the processors by others, sampled between runs: median 3 %, highest 9 %
EOC
append_to_file("$place/runs.tsv", join '', map { "$_\n" } "a\t1\t1\t3000", "b\t1\t1\t1500", "a\t1\t2\t5000", "b\t1\t2\t1000", "a\t8\t1\t12345",
	"m\t0\t1\t1000", "m\t10000\t1\t900", "m\t0\t2\t500", "m\t10000\t2\t500",
	"tasks_x_1_off\t8\t1\t400", "tasks_y_1_off\t8\t1\t200", "tasks_x_20_off\t8\t1\t4000", "tasks_y_20_off\t8\t1\t5000");
append_to_file("$place/latency.tsv", "a.notify\t2\t1\t10\t1500\t20000\n");
append_to_file("$place/million.tsv", join '', map { "$_\n" } "leases\t1000000", "memory\t250000", "capacity\t1101000",
	"bytes\t242.5", "relation\t153", "fill\t1695", "load\t612.3", "load_low\t600", "load_high\t650.1");
append_to_file("$place/document", <<'EOC');
before
<!-- figures: machine -->
old
<!-- end of figures -->
<!-- figures: machine-line -->
<!-- end of figures -->
<!-- figures: compared a b -->
<!-- end of figures -->
<!-- figures: ratios a/b -->
<!-- end of figures -->
<!-- figures: latencies a.notify -->
<!-- end of figures -->
<!-- figures: beside m -->
<!-- end of figures -->
<!-- optional figures: tasks tasks_x_1_off tasks_y_1_off tasks_z_1_off -->
old
<!-- end of figures -->
<!-- optional figures: million -->
old
<!-- end of figures -->
<!-- optional figures: beside c -->

kept

<!-- end of figures -->
after
EOC
my @publish = ('awk', '-f', "$bench/publish.awk", map { "$place/$_" } qw(variants machine runs.tsv latency.tsv million.tsv document));
($status, $out, $err) = run_it(@publish);
is($status, 0, 'a document') or diag($err);
is($err, <<"EOC", 'what lacks is told');
$place/document: "tasks_z_1_off" was not measured
$place/document: not measured, so it stays as it is: <!-- optional figures: beside c -->
EOC
is($out, <<'EOC', 'has its tables');
before
<!-- figures: machine -->

```
4 processors: fast; 8 GB
use of the processors by others, sampled between runs: median 3 %, highest 9 %
```

<!-- end of figures -->
<!-- figures: machine-line -->

On 4 processors (fast; 8 GB), of which other work took 3 % (median).

<!-- end of figures -->
<!-- figures: compared a b -->

| clients | 1 | 8 |
|---|---|---|
| first thing | 4 000 | 12 350 |
| second | 1 250 (3.50) | - |

<!-- end of figures -->
<!-- figures: ratios a/b -->

| clients | 1 | 8 |
|---|---|---|
| first thing / second | 3.50 (2.00 to 5.00) | - |

<!-- end of figures -->
<!-- figures: latencies a.notify -->

| | p50, ms | p99, ms |
|---|---|---|
| first thing, release with NOTIFY, acquire | 1.50 (1.50 to 1.50) | 20.0 (20.0 to 20.0) |

<!-- end of figures -->
<!-- figures: beside m -->

| live leases | 0 | 10 000 |
|---|---|---|
| beside leases | 750 | 700 (0.95) |

<!-- end of figures -->
<!-- optional figures: tasks tasks_x_1_off tasks_y_1_off tasks_z_1_off -->

| 8 waiting | one at a time, durable | 20 at a time, durable | one at a time, not durable | 20 at a time, not durable |
|---|---|---|---|---|
| x | - | - | 400 | 4 000 |
| y | - | - | 200 (2.00) | 5 000 (0.80) |

<!-- end of figures -->
<!-- optional figures: million -->

| 1 000 000 leases | |
|---|---|
| shared memory of a lease, all counted | 242.5 bytes |
| leases that fit into `dlock.max_memory` = 250 000 kB | 1 101 000 |
| size of `_dlock.store` on disk | 153 MB |
| acquired by one session, 1000 in a call, `synchronous_commit` off | 1.70 s |
| first call after a restart, which loads them | 0.61 s (0.60 to 0.65) |

<!-- end of figures -->
<!-- optional figures: beside c -->

kept

<!-- end of figures -->
after
EOC
append_to_file("$place/document", "<!-- figures: rates c -->\n<!-- end of figures -->\n");
($status, $out, $err) = run_it(@publish);
isnt($status, 0, 'a table of which nothing was measured');
like($err, qr/^nothing was measured of "<!-- figures: rates c/m, 'is told');
done_testing();
