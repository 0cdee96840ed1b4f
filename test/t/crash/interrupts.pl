# Proves: whatever a session is doing with leases when it is cancelled, terminated
# or runs out of time, it leaves no half-made lease, loses none, and takes no
# memory along.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockTest;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = start_node('main', conf => <<'EOC');
dlock.max_memory = 4MB
log_min_messages = panic
EOC
my $db = 'postgres';
my $dir = PostgreSQL::Test::Utils::tempdir;

$node->safe_psql($db, <<'EOC');
-- Acquire, renew and release, leases of all sizes.
CREATE FUNCTION work(session int, n int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	name text;
BEGIN
	FOR i IN 1 .. n LOOP
		name := 'work-' || session || '-' || i % 300 || repeat('x', (i % 3) * 100);
		PERFORM dlock_acquire(name, 'session-' || session, '1 h', payload => CASE WHEN i % 5 = 0 THEN to_jsonb(repeat('p', i % 900)) END);
		IF i % 2 = 0 THEN
			PERFORM dlock_renew(name, 'session-' || session, '2 h');
		ELSE
			PERFORM dlock_release(name, 'session-' || session);
		END IF;
		PERFORM dlock_release_token(dlock_leases.name, token) FROM dlock_leases WHERE i % 100 = 0 AND owner = 'session-' || session;
		IF i % 250 = 0 THEN
			PERFORM dlock_release_all('session-' || session);
		END IF;
	END LOOP;
END $$;
-- Acquire until it is refused; returns how many there are then.
CREATE FUNCTION fill() RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 100000 LOOP
		BEGIN
			PERFORM dlock_acquire('fill-' || i, 'filler', '1 h');
		EXCEPTION WHEN configuration_limit_exceeded THEN
			RETURN i - 1;
		END;
	END LOOP;
END $$;
EOC

my $steady = $node->safe_psql($db, "SELECT dlock_acquire('steady', 'alice', '1 h')");

# Sessions that are cut off by a timeout at any moment and go on.
my @running;
foreach my $session (1 .. 3)
{
	my $script = "$dir/timeout$session.sql";
	open my $fh, '>', $script or die;
	print $fh "SET statement_timeout = ", 1 + $_ % 17, ";\nSELECT work($session, 100000);\n"
	  foreach 1 .. 200;
	close $fh;
	my ($out, $err) = ("$dir/out$session", "$dir/err$session");
	push @running,
	  IPC::Run::start(
		[ 'psql', '-XAtq', '-d', $node->connstr($db), '-f', $script ],
		'>', $out, '2>', $err);
}

# Sessions that are cancelled or terminated by another one at any moment.
foreach my $session (10 .. 12)
{
	open my $fh, '>', "$dir/victim$session.sql" or die;
	print $fh "SELECT work($session, 100000);\n" foreach 1 .. 50;
	close $fh;
}
my $killer = DLockSession->new($node, $db);
my ($cancelled, $terminated) = (0, 0);
my @victims;
while ($cancelled < 100 || $terminated < 20)
{
	if (@victims < 3)
	{
		my $session = 10 + @victims;
		my ($out, $err) = ("$dir/out$session", "$dir/err$session");
		push @victims,
		  IPC::Run::start(
			[ 'psql', '-XAtq', '-d', $node->connstr($db), '-f', "$dir/victim$session.sql" ],
			'>', $out, '2>', $err);
	}
	usleep(int rand 20_000);
	$cancelled += $killer->query_safe(
		"SELECT count(pg_cancel_backend(pid)) FROM (SELECT pid FROM pg_stat_activity WHERE query ~ '^SELECT work.1[0-9],' ORDER BY random() LIMIT 1) s"
	);
	if (rand() < 0.2)
	{
		$terminated += $killer->query_safe(
			"SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity WHERE query ~ '^SELECT work.1[0-9],' ORDER BY random() LIMIT 1) s"
		);
	}
	@victims = grep { eval { $_->pump_nb }; $_->pumpable } @victims;
}
note "$cancelled cancelled, $terminated terminated";
eval { $_->kill_kill } foreach @victims;
eval { $_->finish } foreach @running;

# Those whose clients were killed would work on until they have something to say, one that
# has just been connected among them, which has read no query yet.
ok( wait_until(
		sub {
			$killer->query_safe(
				"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
			) eq '0';
		}),
	'all sessions are gone');

# Nothing is half made: what is in memory is on disk, with the same token, and
# the other way round.
is($killer->query_safe("SELECT dlock_check('steady', $steady)"),
	't', 'a lease of another session was left alone');
my $view =
  "SELECT string_agg(name || ' ' || token, ',' ORDER BY name COLLATE \"C\") FROM dlock_leases";
my ($held, $on_disk);

# The view may leave something out, with a warning.
wait_until(sub { $held = $killer->query_safe($view); return $killer->{stderr} eq '' });

# What a statement was granted that was cut off is undone in memory; the worker
# erases it.
wait_until(
	sub {
		my %slots = store_slots($node, $db);
		$on_disk = join(',', map { "$_ $slots{$_}{token}" } sort keys %slots);
		return $on_disk eq $held;
	});
is($on_disk, $held, 'memory and disk agree');

# Nobody has taken anything along.
$killer->query_safe(
	"SELECT dlock_release_all('session-' || i) FROM generate_series(1, 20) i");
is($killer->query_safe('SELECT name FROM dlock_leases'),
	'steady', 'all that is left can be released');
my $before = $killer->query_safe('SELECT fill()');
$killer->query_safe("SELECT dlock_release_all('filler')");
$killer->quit;
$node->restart;
$killer = DLockSession->new($node, $db);
my $after = $killer->query_safe('SELECT fill()');
note "room for $before leases, for $after after a restart";
cmp_ok($before, '>=', 0.6 * $after, 'memory is not lost');
$killer->quit;
is($node->safe_psql($db, "SELECT dlock_check('steady', $steady)"),
	't', 'held after a restart');

$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:/, 'no panic');
done_testing();
