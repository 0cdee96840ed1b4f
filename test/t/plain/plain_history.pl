# Proves, of the plain edition, from what clients have seen and nothing else: while the server crashes, and clients
# and their sessions are stopped, cancelled and killed, no two hold what one may hold, tokens ascend, no grant or
# renewal that was answered is lost, what was refused is not held, and places are served in their order; also, but for
# places, while the extension takes its place.  The rules are those of test/proof/DLockHistory.pm, but for the order of
# calls that wait, whose owners no view tells.
#
#   DLOCK_PROOF_SECONDS    how long (5)
#   DLOCK_SEED             the choices of another run

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib", "$FindBin::RealBin/../../proof";

use DLockPlain;
use DLockProof;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $seconds = DLockProof::seconds(5);
seed_random();
my $node = start_plain_node('main', conf => "deadlock_timeout = 20ms\nmax_connections = 60\nlog_min_messages = fatal");

# What is granted is held after a crash, and the next token is above all before; also if the last ones were of
# transactions that had not committed, from the second after these on.
my $token = sql("SELECT dlock_acquire('crash', 'x', '1 h')");
my $later = sql("BEGIN; SELECT count(dlock_acquire('crash' || i, 'x', '1 h')) FROM generate_series(1, 100) i; SELECT max(token) FROM dlock_leases; ROLLBACK") =~ s/.*\n//sr;
crash_node($node);
$node->start;
is(sql("SELECT dlock_check('crash', $token), dlock_acquire('crash', 'y', '1 h'), (SELECT count(*) FROM dlock_leases)"), 't||1', 'a lease is held after a crash');
wait_until(sub { sql("SELECT date_part('epoch', clock_timestamp())::int8 - 1767225600") > $later >> 22 }) or die 'the clock stands still';
cmp_ok(sql("SELECT dlock_acquire('next', 'y', '1 h')"), '>', $later, 'and tokens go on ascending');
is(sql("SELECT dlock_release_all('x') + dlock_release_all('y')"), 2, 'both are released');

# Half of the calls are made with the oldest snapshot that there is, which must not matter.
my @clients = map { DLockProof->new($node, count => 4, alone => 1, listens => $_->[2], options => "-c default_transaction_isolation=$_->[0] -c statement_timeout=$_->[1]") }
  [ 'read\\\\ committed', 0, 1 ], [ 'repeatable\\\\ read', 300, 0 ];

sub strike
{
	my ($what) = @_;
	return sql("SELECT $what(pid) FROM (SELECT pid FROM pg_stat_activity WHERE application_name = 'history' ORDER BY random() LIMIT 1) victim");
}

my %fault = (
	'stop client' => sub { $_[0]->stop_one },
	'kill client' => sub { $_[0]->kill_one },
	'cancel' => sub { strike('pg_cancel_backend') },
	'terminate' => sub { strike('pg_terminate_backend') },
	'crash' => sub { crash_node($node); $node->start },);
my @small = grep { $_ ne 'crash' } sort keys %fault;
my $begin = mono_now();
my ($next, $crashes, %count) = ($begin + $seconds / 4, 0);

until ($crashes >= 2 && $clients[0]->is_enough($begin + $seconds))
{
	my $what = $small[ rand @small ];
	if (mono_now() > $next && ($crashes < 2 || mono_now() < $begin + $seconds))
	{
		($what, $next) = ('crash', mono_now() + $seconds / (2 + $seconds / 5));
		$crashes++;
	}
	$count{$what}++;
	$fault{$what}->($clients[ rand @clients ]);
	$_->go_on foreach @clients;
	usleep(rand 150_000);
}
diag join ', ', map { "$_ $count{$_}" } sort keys %count;

# The way up of doc/reference/plain.md, while other clients are at work: it loses places.  It begins with a server that has the library.
$_->end foreach @clients;
$node->append_conf('postgresql.conf', preload_conf());
$node->restart;
push @clients, DLockProof->new($node, count => 8, alone => 1, direct => 1);
$node->poll_query_until('postgres', 'SELECT count(*) > 3 FROM dlock_leases WHERE granted_at > pg_postmaster_start_time()') or die 'the clients do not begin';
{
	local $ENV{PGUSER} = (getpwuid $>)[0];
	my ($steps) = slurp_file("$FindBin::RealBin/../../../doc/reference/plain.md") =~ /^## The way up\n.*?^```\n(.*?)^```/ms;
	$node->safe_psql('postgres', $steps =~ s/SCHEMA dlock\b/SCHEMA app/gr =~ s/\bdlock\.dlock_/app.dlock_/gr);
	$node->poll_query_until('postgres', 'SELECT grants > 100 FROM app.dlock_stats') or die 'the clients do not go on';
}
$clients[-1]->end;
isnt(sql("SELECT dlock_acquire_all('{n0, n1, n2, n3, n4, n5, n6, n7, n8, n9}', 'last', '1 h', '2 min')"), '', 'every lock can be had');
$clients[0]->is_right('the history', rows => 1, with => [ @clients[ 1, 2 ] ]);
$node->stop('fast');
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:/, 'nothing odd in the log');
done_testing();
