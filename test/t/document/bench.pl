# The client of the benchmark speaks to dlock, and to each of the other systems that is
# installed with a library for it: it is granted, refused and handed a lock, and what it counts was granted.  The
# client for job queues puts, captures and finishes tasks with each whose library is there.
# The documents ask for variants that there are.

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
	copy($_, "$place/$group/") or die "$_: $!" foreach glob("$bench/$group/*.*");
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

foreach my $peer (qw(none table prototype dlock graphile loop pgboss))
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
done_testing();
