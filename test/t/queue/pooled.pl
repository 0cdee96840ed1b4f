# Proves: many clients behind PgBouncer in transaction mode, with many more places than there are
# connections of the server, are all served, and each lock in the order in which they came; of
# clients that are killed no place is left once it is kept no longer; and a place takes no more memory than a lease.
#
#   DLOCK_POOLED   clients, places of each, locks, connections (40,25,10,8)

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockPooler;
use DLockSession;
use DLockTest;
use Test::More;

plan skip_all => 'pgbouncer is needed' unless DLockPooler::is_installed();

my ($nclients, $nplaces, $nlocks, $pool) = split /,/, $ENV{DLOCK_POOLED} // '40,25,10,8';
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
my %order;
foreach my $line (split /\n/, $ctl->query_safe('SELECT name, owner FROM dlock_waiters ORDER BY name, position'))
{
	my ($name, $owner) = split /\|/, $line;
	push @{ $order{$name} }, $owner;
}

# Take turns, and hand them on, until all are served.
my %granted;
my $served = 0;
my $began = mono_now();
my $take = sub {
	my ($i) = @_;
	$clients[$i]->ask("WITH t AS MATERIALIZED (SELECT * FROM dlock_take('client$i', '20 ms', '1 h')) SELECT name, owner, token, dlock_release_token(name, token) FROM t");
};
$ctl->query_safe("SELECT dlock_release_all('holder')");
$take->($_) foreach 0 .. $#clients;
while ($served < $all && mono_now() - $began < 300)
{
	foreach my $ready (wait_any(30, @clients))
	{
		my ($i) = grep { $clients[$_] == $ready } 0 .. $#clients;
		foreach my $line (split /\n/, $ready->answer)
		{
			my ($name, $owner, $token, $released) = split /\|/, $line;
			push @{ $granted{$name} }, [ $token, $owner ];
			$served++ if $released eq 't';
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

# Some are killed while they listen, or wait for a connection to do so: their places go.
my @killed = @clients[ 0 .. $pool + 3 ];
$ctl->query_safe("SELECT dlock_acquire('lock0', 'holder', '1 h')");
is($killed[$_]->query_safe("SELECT dlock_acquire('lock0', 'client$_', '500 ms', keep => '10 s')"), '', "client $_ has a place") foreach 0 .. $#killed;
$killed[$_]->ask("SELECT * FROM dlock_take('client$_', NULL, '1 s')") foreach 0 .. $#killed;
wait_until(sub { $ctl->query_safe('SELECT count(*) FROM dlock_waiters WHERE pid IS NOT NULL') >= $pool });
$_->kill_client foreach @killed;
ok(wait_until(sub { $ctl->query_safe('SELECT count(*) FROM dlock_waiters') == 0 }), 'the places of killed clients go');
$ctl->query_safe("SELECT dlock_release_all('holder')");
is($ctl->query_safe("SELECT dlock_acquire('lock0', 'last', '1 h') > 0"), 't', 'nobody waits for them');
$_->quit foreach @clients[ $pool + 4 .. $#clients ], $ctl;
$pooler->stop;
$node->stop;
log_is_clean($node);
done_testing();
