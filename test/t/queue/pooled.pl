# Proves: many clients behind PgBouncer in transaction mode, with many more places than there are
# connections of the server, are all served, and each lock in the order in which they came; of
# clients that are killed no place is left once it is kept no longer; and a place takes no more memory than a lease.
# A note tells how fast others are beside so many places.
#
#   DLOCK_POOLED   clients, places of each, locks, connections, seconds to keep a place of a
#                  client that is killed (40,25,10,8,3)

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockPooler;
use DLockSession;
use DLockTest;
use Test::More;

plan skip_all => 'pgbouncer is needed' unless DLockPooler::is_installed();

my ($nclients, $nplaces, $nlocks, $pool, $keep) = split /,/, $ENV{DLOCK_POOLED} // '40,25,10,8';
$keep //= 3;
my $all = $nclients * $nplaces;
my $node = start_node('main');
my $db = 'postgres';
my $ctl = DLockSession->new($node, $db, name => 'control');
my $pooler = DLockPooler->start($node, size => $pool, conf => 'max_client_conn = 1000');

# What a session connects to.
{
	package Pooler;
	sub new { return bless {}, $_[0]; }
	sub connstr { return "host=$pooler->{host} port=$pooler->{port} dbname=$_[1]"; }
}

# What pairs on other names take of the processor.
sub pairs
{
	my $before = processor_ticks($ctl->pid);
	$ctl->query_safe(q(DO $$ BEGIN FOR i IN 1 .. 20000 LOOP PERFORM dlock_acquire('other' || i, 'other'), dlock_release('other' || i, 'other'); END LOOP; END $$));
	return processor_ticks($ctl->pid) - $before;
}
$ctl->query_safe('SET synchronous_commit = off');
pairs();
my $alone = pairs();

# Each client asks for locks for tasks of its own, of which it has more than one on each.
my @clients = open_sessions(Pooler->new, $db, $nclients, name => 'client');
$ctl->query_safe("SELECT count(*) FROM generate_series(0, $nlocks - 1) l WHERE dlock_acquire('lock' || l, 'holder', '1 h') IS NULL");
my $before = $ctl->query_safe('SELECT memory_used FROM dlock_stats');

foreach my $i (0 .. $#clients)
{
	$clients[$i]->ask("SELECT cardinality(array_remove(dlock_acquire_each(array_agg('lock' || t % $nlocks), array_agg('client$i#' || t), '1 min', keep => '1 h'), NULL)) FROM generate_series(1, $nplaces) t");
}
is(join(',', grep { $_ ne '0' } answers_in_order(@clients)), '', 'all have a place');
is($ctl->query_safe('SELECT count(*) FROM dlock_waiters WHERE pid IS NULL'), $all, "$all places of $nclients clients");
cmp_ok(($ctl->query_safe('SELECT memory_used FROM dlock_stats') - $before) / $all, '<=', 256, 'a place takes no more than a lease');
cmp_ok($ctl->query_safe("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'client%' OR datname = '$db'"), '<=', $pool + 1, "$pool connections");
my $beside = pairs();
my %order;
foreach my $line (split /\n/, $ctl->query_safe('SELECT name, owner FROM dlock_waiters ORDER BY name, position'))
{
	my ($name, $owner) = split /\|/, $line;
	push @{ $order{$name} }, $owner;
}

# Take turns, and hand them on, until all are served, or nobody is for some minutes.
my %granted;
my $served = 0;
my $began = mono_now();
my $progress = $began;
alarm 600 + $all / 4;
my $take = sub {
	my ($i) = @_;
	$clients[$i]->ask("WITH t AS MATERIALIZED (SELECT * FROM dlock_take('client$i', '20 ms', '1 h')) SELECT name, owner, token, dlock_release_token(name, token) FROM t");
};
$ctl->query_safe("SELECT dlock_release_all('holder')");
$take->($_) foreach 0 .. $#clients;
while ($served < $all && mono_now() - $progress < 200)
{
	foreach my $ready (wait_any(30, @clients))
	{
		my ($i) = grep { $clients[$_] == $ready } 0 .. $#clients;
		foreach my $line (split /\n/, $ready->answer)
		{
			my ($name, $owner, $token, $released) = split /\|/, $line;
			push @{ $granted{$name} }, [ $token, $owner ];
			$served++ if $released eq 't';
			$progress = mono_now();
		}
		$take->($i);
	}
}
is($served, $all, 'all are served');
note sprintf '%d hand-offs in %.1f s', $all, mono_now() - $began;
$_->answer foreach @clients;
my $wrong = 0;
foreach my $name (sort keys %order)
{
	my @owners = map { $_->[1] } sort { $a->[0] <=> $b->[0] } @{ $granted{$name} // [] };
	$wrong += "@owners" ne "@{ $order{$name} }";
}
is($wrong, 0, 'each lock is handed off in order');
is($ctl->query_safe('SELECT count(*) FROM dlock_waiters'), '0', 'nobody is left');
$alone += pairs();
note sprintf 'other pairs beside %d places: %.2f of their speed without', $all, $alone / 2 / ($beside || 1);

# All are killed while they listen, or wait for a connection to do so.  By the server's clock,
# no place is there after its time, and none is kept for longer than "keep" from any moment on.
$ctl->query_safe("SELECT dlock_acquire('lock0', 'holder', '1 h')");
my $place = "SELECT count(token) FROM unnest(dlock_acquire_each(array_fill('lock0'::text, '{$nclients}'), (SELECT array_agg('client' || i) FROM generate_series(0, $#clients) i), '1 min', keep => '%s')) token";
is($ctl->query_safe(sprintf $place, '1 h'), 0, 'all have a place');
$clients[$_]->ask("SELECT * FROM dlock_take('client$_', NULL, '$keep s')") foreach 0 .. $#clients;
ok(wait_until(sub { $ctl->query_safe('SELECT count(*) FROM dlock_waiters WHERE pid IS NOT NULL') == $pool }), "$pool of them listen");
$ctl->query_safe(sprintf $place, "$keep s");
$_->kill_client foreach @clients;
my $clock = sub { return $ctl->query_safe('SELECT extract(epoch FROM clock_timestamp())') };
my ($late, $long) = (0, 0);
ok( wait_until(
		sub {
			my $from = $clock->();
			my ($count, $first, $last) = split /\|/, $ctl->query_safe(
				'SELECT count(*), extract(epoch FROM coalesce(min(kept_until), clock_timestamp())), extract(epoch FROM max(kept_until)) FROM dlock_waiters');
			$late += $first < $from - 0.1;
			$long += ($last || 0) > $clock->() + $keep + 0.1;
			return $count == 0;
		}),
	"the places of $nclients killed clients go");
is($late, 0, 'at their time');
is($long, 0, "$keep s after the end of their clients");
$ctl->query_safe("SELECT dlock_release_all('holder')");
is($ctl->query_safe("SELECT dlock_acquire('lock0', 'last', '1 h') > 0"), 't', 'nobody waits for them');
$ctl->quit;
$pooler->stop;
$node->stop;
log_is_clean($node);
done_testing();
