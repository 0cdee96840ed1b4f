# Proves: between sessions, a request waits for as long as what is held is not
# compatible with it, and no longer; conversions wait for the other holders only,
# go before those who hold nothing, and leave the lease as it was if they fail.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockFault;
use DLockSession;
use DLockTest;
use Test::More;

# Nothing here may depend on looking again after a while.
my $node = start_fault_node('main', conf => "deadlock_timeout = 500h\n");
still_worker($node);
my $db = 'postgres';
my $monitor = DLockSession->new($node, $db);
my ($one, $two, $three) = map { DLockSession->new($node, $db) } 1 .. 3;

my @modes = qw(NL CR CW PR PW EX);
my %compatible = (
	NL => 'NL CR CW PR PW EX',
	CR => 'NL CR CW PR PW',
	CW => 'NL CR CW',
	PR => 'NL CR PR',
	PW => 'NL CR',
	EX => 'NL');

sub compatible
{
	my ($held, $asked) = @_;
	return scalar grep { $_ eq $asked } split / /, $compatible{$held};
}

sub acquire
{
	my ($name, $owner, $more) = @_;
	return "SELECT dlock_acquire('$name', '$owner', '1 h', $more)";
}

sub queue_is
{
	my ($name, $expected, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is( $monitor->query_safe(
			"SELECT string_agg(owner || ' ' || request || ' ' || mode, ', ' ORDER BY position) FROM dlock_waiters WHERE name = '$name'"
		),
		$expected,
		$test_name);
	return;
}

# Every cell: asked for anew, and converted to from NL.
foreach my $held (@modes)
{
	foreach my $asked (@modes)
	{
		my $name = "$held-$asked";
		my $token = $one->query_safe(acquire($name, 'one', "mode => '$held'"));
		my $nothing =
		  $three->query_safe(acquire($name, 'three', "mode => 'NL'"));
		my @asking = (
			[ $two, acquire($name, 'two', "wait => NULL, mode => '$asked'") ],
			[ $three, "SELECT dlock_convert('$name', $nothing, '$asked', NULL)" ]);

		# One after the other, since they need not be compatible.
		foreach my $ask (@asking)
		{
			my ($session, $sql) = @$ask;
			my $what = $session == $two ? "$asked while $held is held" : "NL to $asked while $held is held";
			$token = $one->query_safe(acquire($name, 'one', "mode => '$held', reentry => 'return'"));
			if (compatible($held, $asked))
			{
				my $granted = $session->query($sql);
				if ($session == $three && $asked eq 'NL')
				{
					is($granted, $nothing, "$what: nothing to convert");
				}
				else
				{
					cmp_ok($granted, '>', $token, "$what: at once");
				}
			}
			else
			{
				$session->ask_waiting($monitor, $sql);
				is($one->query_safe("SELECT dlock_release_token('$name', $token)"),
					't', "$what: released");
				cmp_ok($session->answer, '>', $token, "$what: after that");
			}
			$monitor->query_safe("SELECT dlock_force_release('$name', 'next')")
			  if $session == $three;
			$session->query_safe("SELECT dlock_release('$name', 'two')")
			  if $session == $two;
		}
	}
}
is($monitor->query_safe('SELECT (SELECT count(*) FROM dlock_leases) + (SELECT count(*) FROM dlock_waiters)'),
	0, 'nothing is left');

# A holder that converts down lets in exactly those who may come then.
foreach my $down (@modes[ 0 .. 4 ])
{
	my $name = "down-$down";
	my @waiting;
	my $token = $one->query_safe(acquire($name, 'one', "mode => 'EX'"));
	my @fit = grep { compatible($down, $_) && $_ ne 'NL' } @modes;

	# Of those that fit, some that are compatible with one another.
	@fit = grep { compatible($fit[0], $_) && $_ !~ /EX/ } @fit;
	@fit = @fit[ 0 .. 1 ] if @fit > 2;
	my @askers = ($two, $three);
	foreach my $mode (@fit)
	{
		my $session = shift @askers;
		$session->ask_waiting($monitor,
			acquire($name, "waits for $mode", "wait => NULL, mode => '$mode'"));
		push @waiting, $session;
	}
	is($one->query_safe("SELECT dlock_convert('$name', $token, '$down')"),
		$token, "down to $down: the token stays");
	cmp_ok($_->answer, '>', $token, "down to $down: a waiter gets it")
	  foreach @waiting;
	is($one->query_safe("SELECT dlock_check('$name', $token)"),
		't', "down to $down: still held");
	$monitor->query_safe("SELECT dlock_force_release('$name', 'next')");
}

# A conversion goes before those who came earlier and hold nothing, and does not
# wait for them.
{
	my $first = $one->query_safe(acquire('order', 'one', "mode => 'PR'"));
	my $second = $two->query_safe(acquire('order', 'two', "mode => 'CR'"));
	$three->ask_waiting($monitor, acquire('order', 'three', "wait => NULL, mode => 'EX'"));
	$two->ask_waiting($monitor, "SELECT dlock_convert('order', $second, 'PW', NULL)");
	queue_is('order', 'two convert PW, three acquire exclusive', 'a conversion is first in the queue');
	is($one->query_safe("SELECT dlock_release_token('order', $first)"), 't', 'order: released');
	my $converted = $two->answer;
	cmp_ok($converted, '>', $second, 'order: the conversion is granted');
	still_waits($monitor, 'order: the other one waits on', $three);
	queue_is('order', 'three acquire exclusive', 'order: alone in the queue');

	# The only holder converts at once, whoever waits.
	my $again = $two->query("SELECT dlock_convert('order', $converted, 'exclusive')");
	cmp_ok($again, '>', $converted, 'waiters are in no way of a conversion');
	$two->query_safe("SELECT dlock_release_token('order', $again)");
	cmp_ok($three->answer, '>', $again, 'order: the last one');
	$three->query_safe("SELECT dlock_release('order', 'three')");
}

# One that comes later, and that the holders would let in, does not pass one that waits.
{
	my ($first, $second) = map { $one->query_safe(acquire('overtake', $_, "mode => 'PR'")) } qw(first second);
	my $third = $one->query_safe(acquire('overtake', 'third', "mode => 'NL'"));
	$two->ask_waiting($monitor, "SELECT dlock_convert('overtake', $first, 'exclusive', NULL)");
	is($one->query_safe("SELECT dlock_convert('overtake', $third, 'CR')"), '', 'a conversion behind another: refused');
	$one->query_safe("SELECT dlock_release('overtake', 'second')");
	like($two->answer, qr/^\d+$/, 'a conversion behind another: the first is granted');
	$one->query_safe("SELECT dlock_force_release('overtake', 'test')");
}

# Conversions among themselves: one after the other, as they came.
{
	my $first = $one->query_safe(acquire('conversions', 'one', "mode => 'PW'"));
	my $second = $two->query_safe(acquire('conversions', 'two', "mode => 'NL'"));
	my $third = $three->query_safe(acquire('conversions', 'three', "mode => 'NL'"));
	$two->ask_waiting($monitor, "SELECT dlock_convert('conversions', $second, 'CW', NULL)");
	$three->ask_waiting($monitor, "SELECT dlock_convert('conversions', $third, 'PR', NULL)");
	queue_is('conversions', 'two convert CW, three convert shared', 'conversions in their order');
	$one->query_safe("SELECT dlock_release_token('conversions', $first)");
	$second = $two->answer;
	still_waits($monitor, 'conversions: the second waits for the first', $three);
	$two->query_safe("SELECT dlock_release_token('conversions', $second)");
	cmp_ok($three->answer, '>', $second, 'conversions: then the second');
	$three->query_safe("SELECT dlock_release('conversions', 'three')");
}

# Two readers that both want to write: the second is told at once, the first gets
# it when the second gives way.
{
	my $first = $one->query_safe(acquire('readers', 'one', "mode => 'shared'"));
	my $second = $two->query_safe(acquire('readers', 'two', "mode => 'shared'"));
	$one->ask_waiting($monitor, "SELECT dlock_convert('readers', $first, 'exclusive', NULL)");
	is($two->query("SELECT dlock_convert('readers', $second, 'exclusive', NULL)"),
		'ERROR 40P01', 'conversion deadlock, at once');
	like($two->{message}, qr/deadlock detected/, 'conversion deadlock: said');
	like($two->{detail}, qr/Owner "two" waits for exclusive on lock "readers"; blocked by owner "one"/,
		'conversion deadlock: one edge');
	like($two->{detail}, qr/Owner "one" waits for exclusive on lock "readers"; blocked by owner "two"/,
		'conversion deadlock: the other edge');
	is($two->query_safe("SELECT dlock_check('readers', $second)"),
		't', 'conversion deadlock: its lease stays');
	is($two->query_safe("SELECT dlock_convert('readers', $second, 'exclusive')"),
		'', 'conversion deadlock: one that does not wait is refused only');
	still_waits($monitor, 'conversion deadlock: the first waits on', $one);
	$two->query_safe("SELECT dlock_release_token('readers', $second)");
	cmp_ok($one->answer, '>', $second, 'conversion deadlock: and gets it');
	is($one->query_safe("SELECT dlock_check('readers', $first)"),
		'f', 'its old token is dead');
	$one->query_safe("SELECT dlock_release('readers', 'one')");
}

# The lease ends while its conversion waits.
$two->query_safe("SELECT dlock_acquire('lost', 'two', '10 h', mode => 'shared')");
foreach my $end (
	[ 'released', "SELECT dlock_release('lost', 'one')" ],
	[ 'released as one of all', "SELECT dlock_release_all('one')" ],
	[ 'made shorter and expired', "SELECT dlock_renew('lost', 'one', '5 min')", 300 ],
	[ 'expired', undef, 600 ])
{
	my ($what, $sql, $seconds) = @$end;
	my $ttl = defined $sql ? '1 h' : '10 min';
	my $token = $one->query_safe("SELECT dlock_acquire('lost', 'one', '$ttl', mode => 'shared')");
	$one->ask_waiting($monitor, "SELECT dlock_convert('lost', $token, 'exclusive', NULL)");
	is($three->query_safe($sql), $sql =~ /_all/ ? 1 : 't', "$what while waiting") if defined $sql;
	is($seconds ? granted_at($monitor, $one, $seconds, "$what while waiting") : $one->answer, 'ERROR LK002', "$what while waiting: lost");
	queue_is('lost', '', "$what while waiting: nobody waits");
	is($monitor->query_safe("SELECT string_agg(owner || ' ' || mode, ',') FROM dlock_leases WHERE name = 'lost'"),
		'two shared', "$what while waiting: the other holder is left alone");
}
{
	my $token = $one->query_safe(acquire('lost', 'one', "mode => 'shared'"));
	$one->ask_waiting($monitor, "SELECT dlock_convert('lost', $token, 'exclusive', NULL)");
	is($three->query_safe("SELECT dlock_force_release('lost', 'test')"), 2, 'forced while waiting');
	is($one->answer, 'ERROR LK002', 'forced while waiting: lost');
}

# It is renewed while its conversion waits; the conversion runs out of time, is
# cancelled: the lease is as it was.
{
	my $token = $one->query_safe("SELECT dlock_acquire('kept', 'one', '1 min', mode => 'shared')");
	$two->query_safe(acquire('kept', 'two', "mode => 'shared'"));
	$one->ask_waiting($monitor, "SELECT dlock_convert('kept', $token, 'exclusive', NULL)");
	is($three->query_safe("SELECT dlock_renew('kept', 'one', '1 h')"), 't', 'renewed while waiting');
	$three->query_safe("SELECT pg_cancel_backend(" . $one->pid . ")");
	is($one->answer, 'ERROR 57014', 'cancelled while waiting');
	$one->ask_waiting($monitor, "SELECT dlock_convert('kept', $token, 'exclusive', '5 min') IS NULL");
	is(granted_at($monitor, $one, 300, 'time is over'), 't', 'time is over');
	is($one->query("SET statement_timeout = '100 ms'; SELECT dlock_convert('kept', $token, 'exclusive', NULL)"),
		'ERROR 57014', 'time of the statement is over');
	$one->query_safe('RESET statement_timeout');
	$one->ask_waiting($monitor, "SET lock_timeout = '5 min'; SELECT dlock_convert('kept', $token, 'exclusive', NULL)");
	is(granted_at($monitor, $one, 300, 'time for a lock is over'), 'ERROR 55P03', 'time for a lock is over');
	$one->query_safe('RESET lock_timeout');
	queue_is('kept', '', 'nobody waits');
	is( $monitor->query_safe(
			"SELECT mode, token, remaining FROM dlock_leases WHERE name = 'kept' AND owner = 'one'"
		),
		"shared|$token|00:50:00",
		'the lease is as it was');
	is($monitor->query_safe("SELECT dlock_acquire('kept', 'reader', '1 h', mode => 'shared') > 0"),
		't', 'and lets others in as before');
	$monitor->query_safe("SELECT dlock_force_release('kept', 'next')");
}

# A conversion that waits does not keep out what is compatible with its lease ...
# but those who come after it wait behind it.
{
	my $token = $one->query_safe(acquire('behind', 'one', "mode => 'CR'"));
	$two->query_safe(acquire('behind', 'two', "mode => 'CR'"));
	$one->ask_waiting($monitor, "SELECT dlock_convert('behind', $token, 'exclusive', NULL)");
	is($three->query_safe(acquire('behind', 'three', "mode => 'CR'")),
		'', 'a reader does not overtake a conversion');
	is($three->query_safe(acquire('behind', 'three', "mode => 'NL'")) ne '',
		1, 'what is compatible with it does');
	$two->query_safe("SELECT dlock_release('behind', 'two')");
	cmp_ok($one->answer, '>', $token, 'behind: converted');
	$monitor->query_safe("SELECT dlock_force_release('behind', 'next')");
}

# Semaphores: as many as there are permits, the others as permits come free.
{
	my @sessions = map { DLockSession->new($node, $db) } 1 .. 6;
	my @holding;
	foreach my $i (0 .. 2)
	{
		$sessions[$i]->query_safe(acquire('permits', "p$i", 'permits => 3'));
		push @holding, $i;
	}
	$sessions[$_]->ask_waiting($monitor, acquire('permits', "p$_", 'permits => 3, wait => NULL'))
	  foreach 3 .. 5;
	is( $monitor->query_safe(
			"SELECT string_agg(owner || ' ' || mode || ' ' || permits, ',' ORDER BY position) FROM dlock_waiters WHERE name = 'permits'"
		),
		'p3 permit 3,p4 permit 3,p5 permit 3',
		'three wait for permits');
	is($one->query(acquire('permits', 'other', 'permits => 4, wait => NULL')),
		'ERROR 22023', 'another number, while some wait');
	like($one->{message}, qr/lock "permits" has 3 permits, not 4/, 'both numbers are named');
	foreach my $next (3 .. 5)
	{
		my $i = shift @holding;
		$sessions[$i]->query_safe("SELECT dlock_release('permits', 'p$i')");
		cmp_ok($sessions[$next]->answer, '>', 0, "a permit for p$next");
		push @holding, $next;
		is($monitor->query_safe("SELECT count(*) FROM dlock_leases WHERE name = 'permits'"),
			3, 'three hold');
	}
	$one->query_safe("SELECT dlock_force_release('permits', 'next')");
	cmp_ok($one->query(acquire('permits', 'other', 'permits => 4')), '>', 0,
		'another number, when nobody holds or waits');
	$one->query_safe("SELECT dlock_force_release('permits', 'next')");

	# Several permits come free at once: several get one.
	$sessions[$_]->query_safe(acquire('permits', "p$_", 'permits => 2')) foreach 0 .. 1;
	$sessions[$_]->ask_waiting($monitor, acquire('permits', "p$_", 'permits => 2, wait => NULL'))
	  foreach 2 .. 4;
	is($one->query_safe("SELECT dlock_force_release('permits', 'both')"), 2, 'two permits come free');
	cmp_ok($sessions[$_]->answer, '>', 0, "one of them for p$_") foreach 2 .. 3;
	still_waits($monitor, 'none for the third', $sessions[4]);
	$sessions[2]->query_safe("SELECT dlock_release('permits', 'p2')");
	cmp_ok($sessions[4]->answer, '>', 0, 'then the third');
	$_->quit foreach @sessions;
	$one->query_safe("SELECT dlock_force_release('permits', 'next')");
}

# Re-entry from another session of the same owner does not queue behind those
# who wait, and denied it is a deadlock at once, wherever it is asked for.
{
	my $token = $one->query_safe(acquire('again', 'one', "reentry => 'count'"));
	$two->ask_waiting($monitor, acquire('again', 'two', 'wait => NULL'));
	is($three->query(acquire('again', 'one', "reentry => 'count', wait => NULL")),
		$token, 'counted past the queue');
	is($three->query(acquire('again', 'one', "reentry => 'return', wait => NULL")),
		$token, 'returned past the queue');
	is($three->query(acquire('again', 'one', 'wait => NULL')),
		'ERROR 40P01', 'denied: waiting for oneself');
	is($three->query_safe(acquire('again', 'one', "wait => '0'")), '', 'denied without a wait');
	is($one->query_safe("SELECT dlock_release_token('again', $token)"), 't', 'first release');
	still_waits($monitor, 'is not the last', $two);
	is($three->query_safe("SELECT dlock_release('again', 'one')"), 't', 'second release, from the other session');
	cmp_ok($two->answer, '>', $token, 'hands it on');
	$two->query_safe("SELECT dlock_release('again', 'two')");
}

$_->quit foreach $one, $two, $three, $monitor;
$node->stop;
log_is_clean($node);
done_testing();
