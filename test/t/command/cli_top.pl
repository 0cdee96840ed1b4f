# dlock top: on a screen of 80 by 24 and others, what the keys do, that the terminal
# is always given back, a server that comes and goes, plain lines, and how often a lock
# is granted.

use strict;
use warnings FATAL => 'all';
use utf8;

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockScreen;
use DLockSession;
use DLockStandby;
use DLockTest;
use IPC::Run ();
use JSON::PP ();
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes ();

my $dlock = $ENV{DLOCK_CLI};
my $node = start_node('main', allows_streaming => 1);
my $err_file = "$PostgreSQL::Test::Utils::tmp_check/top.err";
@ENV{qw(PGHOST PGPORT PGDATABASE)} = ($node->host, $node->port, 'postgres');

sub sql
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql);
}

# Run dlock top to its end.
sub top
{
	my ($out, $err);
	IPC::Run::run([ $dlock, 'top', @_ ], '<', \undef, '>', \$out, '2>', \$err);
	return ($? & 127 ? 'signal ' . ($? & 127) : $? >> 8, $out, $err);
}

sub objects
{
	return map { JSON::PP->new->utf8->decode($_) } split /\n/, $_[0];
}

# ---- without a screen ----

my ($code, $out, $err) = top();
is($code, 64, 'no terminal');
like($err, qr/^dlock: error: .*\ndlock: hint: .*--batch/, 'no terminal: what to do');

($code, $out, $err) = top('--batch', '--count', 1);
is("$code$err", '0', 'plain lines, no leases');
like($out, qr/\A\d{4}-\S+Z\n0 leases; 0 waiting\na second: .*\n.*\n\n\z/, 'plain lines, no leases: what is printed');
unlike($out, qr/\e/, 'plain lines have no sequences');

sql("SELECT dlock_acquire('a', 'first', '1 h', payload => '[1]'), dlock_acquire('s', 'second', '1 h', permits => 5),
	dlock_acquire('d', 'third', '1 h', lock_delay => '1 h')");
sql("SELECT dlock_acquire('c', 'short', '1 ms', lock_delay => '1 h')");
my $waiter = DLockSession->new($node, 'postgres');
$waiter->ask("SELECT dlock_acquire('a', 'someone', '1 h', wait => '1 h')");
$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM dlock_waiters")
  or die 'nobody waits';
$node->poll_query_until('postgres', "SELECT state = 'closed' FROM dlock_leases WHERE name = 'c'")
  or die 'the lock is not closed';

($code, $out, $err) = top('-b', '-n', 2, '-i', '10ms');
is("$code$err", '0', 'plain lines');
is(scalar(() = $out =~ /^4 leases, 1 of them closed; 1 waiting, the longest for \d/mg), 2, 'two looks');
like($out, qr/^NAME +OWNER +MODE +LEFT +WAIT +GRANTS\/S +HELD +TOKEN +ROLE\na +first +exclusive +(?:1h00m|5\dm\d\ds) +1 /m,
	'the lock that is waited for is the first');
like($out, qr/^c +short +\(closed\) /m, 'a closed lock');
like($out, qr/^s +second +permit\/5 /m, 'a permit');
like($out, qr/^a +someone +exclusive +1 +\S+ +first$/m, 'who waits, and for whom');

($code, $out, $err) = top('--json', '--count', 1);
is("$code$err", '0', 'JSON');
my ($totals, @rows) = objects($out);
is_deeply(
	{ map { $_ => $totals->{$_} } qw(kind leases closed waiters grants_per_second standby) },
	{ kind => 'totals', leases => 4, closed => 1, waiters => 1, grants_per_second => undef,
		standby => JSON::PP::false },
	'JSON: totals');
is_deeply([ map { "$_->{kind} $_->{name} $_->{owner} " . ($_->{state} // '') } @rows ],
	[ 'lease a first held', 'lease c short closed', 'lease d third held', 'lease s second held', 'waiter a someone ' ],
	'JSON: leases and waiters');
is_deeply($rows[4]{blocked_by}, ['first'], 'JSON: who is in the way');

# Rates: until a look has seen grants that were made while it ran.
{
	my ($lines, $rate) = ('', undef);
	my $h = IPC::Run::start([ $dlock, 'top', '--json', '-i', '20ms' ], '<', \undef, '>', \$lines);
	wait_until(
		sub {
			sql("SELECT dlock_acquire('rate', 'x', '1 h'), dlock_release('rate', 'x')");
			$h->pump_nb;
			($rate) = grep { ($_ // 0) > 0 } map { $_->{releases_per_second} }
			  objects($lines =~ s/[^\n]*\z//r);
			return defined $rate;
		});
	ok(defined $rate, 'rates');
	$h->signal('TERM');
	$h->finish;
	is($h->result(0), 143, 'plain lines: TERM');
}
# Nobody reads: an end, and no noise.
{
	my $status = system("'$dlock' top -b -i 10ms 2>'$err_file' | head -n 1 >/dev/null");
	is($status, 0, 'a pipe that is closed ends it');
}

($code, $out, $err) = top('-b', '-d', 'host=/nowhere');
is($code, 69, 'no server');

# Start a command whose query waits for the lock on a view, which a session has.
sub start_blocked
{
	my ($blocker, $view, @args) = @_;
	my %run;

	$blocker->query_safe("SET deadlock_timeout = '5min'");
	$blocker->query_safe('BEGIN');
	$blocker->query_safe("LOCK TABLE $view IN ACCESS EXCLUSIVE MODE");
	{
		local $ENV{PGOPTIONS} = '-c deadlock_timeout=10s';
		$run{h} = IPC::Run::start([ $dlock, @args ], '<', \undef, '>', \$run{out}, '2>', \$run{err});
	}
	wait_until(sub { $run{pid} = sql("SELECT pid FROM pg_locks WHERE relation = '$view'::regclass AND NOT granted") })
	  or die "nothing waits for $view";
	return \%run;
}

# A deadlock with a change of the extension, in which the server chooses the look.
{
	my $blocker = DLockSession->new($node, 'postgres');
	my $run = start_blocked($blocker, 'dlock_waiters', qw(top -b -n 1 -i 10ms));

	$blocker->query_safe('LOCK TABLE dlock_leases IN ACCESS EXCLUSIVE MODE');
	$blocker->query_safe('ROLLBACK');
	$run->{h}->finish;
	is($run->{h}->result(0), 0, 'deadlock: the look is repeated');
	like($run->{err}, qr/^dlock: warning: deadlock detected\ndlock: detail: The look is repeated\.$/m, 'deadlock: told');
	like($run->{out}, qr/^4 leases, /m, 'deadlock: leases are shown');

	# A command that wants no lock does not say that it was not acquired.
	$run = start_blocked($blocker, 'dlock_leases', 'status');
	sql("SELECT pg_cancel_backend($run->{pid})");
	$run->{h}->finish;
	is($run->{h}->result(0), 70, 'status is cancelled');
	$blocker->query_safe('ROLLBACK');
}

# ---- on a screen ----

SKIP:
{
	skip 'IO::Pty and Term::VT102 are needed', 1 unless DLockScreen->is_possible;

	my $screen = DLockScreen->start(80, 24, $err_file, $dlock, 'top', '-i', '50ms');
	ok($screen->shows_whole(qr/^a +first.*^q quit/ms), 'the screen shows leases') or diag($screen->text);
	my ($line, $style) = $screen->line_like(qr/^a +first/);
	like($line, qr/^a +first +exclusive +(?:1h00m|5\dm\d\ds) +1 +\d+$/, 'a lease with a waiter');
	is($style, 'bold', 'it is bold');
	(undef, $style) = $screen->line_like(qr/^c +short/);
	is($style, 'dim', 'a closed one is dim');
	like($screen->text, qr/^a +someone +exclusive +1 +\S+ +first$/m, 'the waiter');
	like($screen->text, qr/^q quit  \? help  up\/down scroll  o order: waiters\n\z/m, 'the last line');
	like($screen->text, qr/\Adlock \S+: postgres on .* every 50ms\n4 leases, 1 of them closed; 1 waiting/,
		'the first lines');
	is($screen->complaints, '', 'nothing but what a screen knows');

	# Leases by the hundred, with names of all kinds.
	sql(<<'EOC');
SELECT count(dlock_acquire('job/' || to_char(i, 'FM000') || repeat('-long', i % 20), 'host' || i || repeat('.sub', i % 9), '1 h'))
  FROM generate_series(1, 200) i;
SELECT dlock_acquire(E'b\x1b[31mred\x07\n\r\t', E'o\x1b]0;title\x07', '1 h'),
	dlock_acquire('b1' || repeat('漢字', 40), repeat('字', 80), '1 h'),
	dlock_acquire('b2' || chr(155) || '31m' || chr(8238) || 'x', 'e' || chr(769), '1 h'),
	dlock_acquire('b3' || chr(127) || '\', repeat('o', 255), '1 h');
EOC
	ok($screen->shows_whole(qr/^208 leases/m), 'two hundred leases') or diag($screen->text);
	like($screen->text, qr/leases 1 to \d+ of 208$/m, 'it tells which ones are shown');
	like($screen->text, qr/^b\\x1b\[31mred\\x07~ +o\\x1b\]0;title\\x07 /m, 'control characters are written as escapes')
	  or diag($screen->text);
	like($screen->text, qr/^b1(?:漢字)+漢?~/m, 'wide characters are cut');
	like($screen->text, qr/^b2\\x9b31m\\u202ex /m, 'so is what turns text round');
	is($screen->complaints, '', 'nothing outside of the screen');

	my ($last) = $screen->text =~ /leases 1 to (\d+) of/;
	$screen->press("\e[6~");
	ok($screen->shows(qr/leases @{[ $last + 1 ]} to \d+ of 208$/m), 'page down');
	$screen->press("\e[A");
	ok($screen->shows(qr/leases $last to \d+ of 208$/m), 'up');
	$screen->press("\e[F");
	ok($screen->shows(qr/to 208 of 208$/m), 'end');
	ok($screen->shows(qr/^s +second/m), 'end: the last one is there');
	$screen->press('j');
	$screen->press("\e[1;5Cx");
	$screen->press("\e[H");
	ok($screen->shows(qr/leases 1 to \d+ of 208$/m), 'home; keys that mean nothing do nothing');
	$screen->press('oo');
	ok($screen->shows(qr/order: name/), 'another order');
	$screen->press('o');

	# All sizes; what was written for another one is no fault.
	foreach my $size ([ 130, 40 ], [ 79, 23 ], [ 40, 10 ], [ 15, 4 ], [ 3, 2 ], [ 1, 1 ])
	{
		my ($columns, $lines) = @$size;
		my $mark = $lines >= 10 ? qr/^q quit .{0,@{[ $columns ]}}\n\z/m : $lines >= 4 ? qr/^q/m : qr/\A[d~]/;

		$screen->resize($columns, $lines);
		my $from = length $screen->{raw};
		if ($columns > 1)    # otherwise there is no room for anything
		{
			ok($screen->shows($mark), "$columns by $lines") or diag($screen->text);
		}
		if ($columns == 130)
		{
			ok($screen->shows(qr/^NAME .* HELD +TOKEN +ROLE *$/m), 'a wide screen shows more');
			ok($screen->shows(qr/^b\\x1b\[31mred\\x07\\x0a\\x0d(?:\\x09|~) +o\\x1b\]0;title\\x07 /m), 'and longer names')
			  or diag($screen->text);
		}
		if ($columns == 79)
		{
			ok($screen->shows(qr/^NAME +OWNER +MODE +LEFT +WAIT$/m), 'where a token would cut names short, there is none')
			  or diag($screen->text);
		}

		# The first frame may have been begun with the size before; the next one was
		# not, as the program has been told by then.
		ok(wait_until(sub { $screen->frames($from) >= 2 }), "$columns by $lines: drawn again");
		$screen->complaints;
		$from = length $screen->{raw};
		ok(wait_until(sub { $screen->frames($from) >= 3 }), "$columns by $lines: and again");
		is($screen->complaints, '', "$columns by $lines: nothing outside");
	}
	$screen->resize(80, 24);
	ok($screen->shows(qr/^a +first.*\n(?s:.*)^q quit/m), '80 by 24 again');
	isnt($screen->modes, $screen->{before}, 'keys come one by one meanwhile');

	# Help, and back.
	$screen->press('?');
	ok($screen->shows(qr/^q +quit\n.*^POS +place in the queue$/ms), 'help');
	$screen->press('x');
	ok($screen->shows(qr/^a +first/m), 'any key ends it');

	# Stopped and continued, as a shell does.
	my $entered = $screen->{entered};
	kill 'STOP', $screen->{pid};
	kill 'CONT', $screen->{pid};
	ok(wait_until(sub { $screen->read_output; $screen->{entered} > $entered }),
		'it takes the screen again when it is continued');
	ok($screen->shows(qr/^a +first/m), 'and draws it');

	# The server goes, and comes back.
	$node->restart;
	ok($screen->shows(qr/^208 leases, 1 of them closed; 0 waiting$/m),
		'the server was restarted: who waited is gone')
	  or diag($screen->text);
	$node->stop('fast');
	ok($screen->shows(qr/^Old, for there is no connection: .*^a +first/ms), 'the server is gone, what was seen last stays')
	  or diag($screen->text);
	$node->start;
	ok(wait_until(sub { $screen->read_output; $screen->text !~ /^Old, /m }), 'the server is back');
	is($screen->complaints, '', 'nothing but what a screen knows, all the time');

	# Each end gives the terminal back.
	$screen->press('q');
	is($screen->finish, 0, 'q');
	is($screen->left_behind, '', 'q: the terminal is as before');
	is(slurp_file($err_file), '', 'q: no message');

	foreach my $end ([ INT => 'signal 2' ], [ TERM => 143 ], [ HUP => 129 ], [ QUIT => 131 ])
	{
		my ($name, $expected) = @$end;
		$screen = DLockScreen->start(80, 24, $err_file, $dlock, 'top');
		ok($screen->shows(qr/^q quit/m), "$name: it runs");
		$name eq 'INT' ? $screen->press("\x03") : kill $name, $screen->{pid};
		is($screen->finish, $expected, "$name: how it ends");
		is($screen->left_behind, '', "$name: the terminal is as before");
	}

	# A terminal that nobody reads must not keep it from ending.
	$screen = DLockScreen->start(250, 100, $err_file, $dlock, 'top', '-i', '1ms');
	ok($screen->shows(qr/^q quit/m), 'it runs');
	wait_until(
		sub {
			my $stat = slurp_file("/proc/$screen->{pid}/io");
			my ($now) = $stat =~ /^wchar: (\d+)/m;
			my $same = defined $screen->{wchar} && $now == $screen->{wchar};
			$screen->{wchar} = $now;
			return $same && ++$screen->{still} > 30;
		});
	kill 'TERM', $screen->{pid};
	my $status;
	wait_until(
		sub {
			return 0 if waitpid($screen->{pid}, POSIX::WNOHANG()) != $screen->{pid};
			$status = $? >> 8;
			return 1;
		}) or $screen->kill;
	is($status, 143, 'a terminal that takes nothing: it ends all the same');

	# No terminal any more.
	$screen = DLockScreen->start(80, 24, $err_file, $dlock, 'top');
	ok($screen->shows(qr/^q quit/m), 'it runs');
	close $screen->{slave};
	close delete $screen->{pty};
	is($screen->finish, 129, 'the terminal is gone');

	# A loss that will not pass.
	$screen = DLockScreen->start(80, 24, $err_file, $dlock, 'top', '-i', '50ms');
	ok($screen->shows(qr/^q quit/m), 'it runs');

	# The server may find it in a deadlock with the query of the screen.
	ok(wait_until(sub { $node->psql('postgres', 'DROP EXTENSION dlock CASCADE') == 0 }), 'the extension is dropped');
	like($screen->finish, qr/^(?:69|70)$/, 'the extension is gone');
	is($screen->left_behind, '', 'the extension is gone: the terminal is as before');
	like(slurp_file($err_file), qr/^dlock: error: /, 'the extension is gone: it says so');
	sql('CREATE EXTENSION dlock');
}

# ---- the grants of a lock ----

SKIP:
{
	skip 'IO::Pty and Term::VT102 are needed', 1 unless DLockScreen->is_possible;

	# It looks only when it is told to, so that all grants come between two looks.  What
	# is looked at here is drawn once; the line of rate-still is the last of it.
	sql("SELECT count(dlock_release_token('rate-still', dlock_acquire('rate-still', 'x', '1 h'))) FROM generate_series(1, 10)");
	sql("SELECT dlock_acquire('rate-again', 'x', '1 h'), dlock_acquire('rate-still', 'x', '1 h'), dlock_acquire('rate-lost', 'x', '1 h')");
	my @session = map { DLockSession->new($node, 'postgres') } 0, 1;
	$session[0]->query_safe("SELECT dlock_acquire('rate-handed', 's0', '1 h')");
	my @time = Time::HiRes::time();
	my $screen = DLockScreen->start(140, 40, $err_file, $dlock, 'top', '-i', '1h');

	ok($screen->shows(qr/^rate-still +\S+ +exclusive +\S+ +0 +- +\S/m), 'the first look') or diag($screen->text);
	push @time, Time::HiRes::time();
	like($screen->text, qr/^NAME +OWNER +MODE +LEFT +WAIT +GRANTS\/S +HELD /m, 'a column for rates');
	like($screen->text, qr/^$_ +\S+ +exclusive +\S+ +0 +- +\S/m, "$_: nothing is known after one look")
	  foreach qw(rate-again rate-handed rate-lost rate-still);

	foreach my $i (1 .. 30)
	{
		my ($from, $to) = @session[ $i % 2 ? (0, 1) : (1, 0) ];
		my ($old, $new) = $i % 2 ? ('s0', 's1') : ('s1', 's0');
		$to->ask("SELECT dlock_acquire('rate-handed', '$new', '1 h', wait => '1 h')");
		$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM dlock_waiters WHERE name = 'rate-handed'")
		  or die 'nobody waits';
		$from->query_safe("SELECT dlock_release('rate-handed', '$old')");
		$to->answer;
	}
	sql("SELECT dlock_release('rate-again', 'x')");
	sql("SELECT count(dlock_release_token('rate-again', dlock_acquire('rate-again', 'x', '1 h'))) FROM generate_series(1, 999)");
	sql("SELECT dlock_acquire('rate-again', 'x', '1 h'), dlock_acquire('rate-new', 'x', '1 h'), dlock_renew('rate-still', 'x')");
	is(sql("SELECT grants FROM dlock_grant_count('rate-handed')"), 31, 'each hand-off is a grant');

	# Among many others a lock that is granted seldom loses its count, and gets another one.
	sql("SELECT dlock_release('rate-lost', 'x')");
	sql("SELECT count(dlock_release_token(n, dlock_acquire(n, 'x', bind => 'session')))
		FROM generate_series(1, 60000) i, unnest(ARRAY['crowd-' || i, CASE WHEN i % 100 = 0 THEN 'crowd' END]) n WHERE n IS NOT NULL");
	is(sql("SELECT grants FROM dlock_grant_count('rate-lost')"), '', 'a count that was lost');
	sql("SELECT dlock_acquire('rate-lost', 'x', '1 h')");

	push @time, Time::HiRes::time();
	$screen->press(' ');
	ok($screen->shows(qr/^rate-still +\S+ +exclusive +\S+ +0 +[\d.]+ +\S/m), 'the second look') or diag($screen->text);
	push @time, Time::HiRes::time();
	foreach my $case ([ 'rate-handed', 30 ], [ 'rate-again', 1000 ], [ 'rate-still', 0 ])
	{
		my ($name, $grants) = @$case;
		my ($rate) = $screen->text =~ /^$name +\S+ +exclusive +\S+ +0 +([\d.]+) +\S/m;

		# What is shown is rounded, to a tenth, or from 100 on to a whole.
		ok(defined $rate && $rate + 0.6 >= $grants / ($time[3] - $time[0]) && $rate - 0.6 <= $grants / ($time[2] - $time[1]),
			"$name: $grants grants")
		  or diag("@time\n" . $screen->text);
	}
	like($screen->text, qr/^rate-new +x +exclusive +\S+ +0 +- /m, 'a lock that was not there before');
	like($screen->text, qr/^rate-lost +x +exclusive +\S+ +0 +- /m, 'a lock that has not been counted all the time');
	$screen->press('q');
	is($screen->finish, 0, 'q');

	my ($code, $out) = top(qw(--json -n 2 -i 10ms));
	my @still = map { $_->{grants_per_second} } grep { ($_->{name} // '') eq 'rate-still' } objects($out);
	is_deeply(\@still, [ undef, 0 ], 'JSON: nothing, then a number');
	sql("SELECT dlock_release_token(name, token) FROM dlock_leases WHERE name LIKE 'rate-%'");
}

# ---- many leases ----

# The processor time of a command, in seconds, the least of some times, since other
# processes make each of its own take longer; and the lines that it prints.
sub effort
{
	my @args = @_;
	my ($out, $least);

	foreach my $time (1 .. 5)
	{
		my (undef, undef, $user, $system) = times;

		IPC::Run::run([ $dlock, @args ], '<', \undef, '>', \$out);
		is($?, 0, "@args: exit code");
		my (undef, undef, $user_after, $system_after) = times;
		my $used = $user_after - $user + $system_after - $system;
		$least = $used if !defined $least || $used < $least;
	}
	return ($least, scalar(() = $out =~ /\n/g));
}

{
	my %first;
	foreach my $leases (1000, 4000)
	{
		sql("SELECT count(dlock_acquire('many-' || i, 'owner-' || i, '1 h', reentry => 'return')) FROM generate_series(1, $leases) i");
		foreach my $command ([qw(status)], [qw(top --batch -n 1)])
		{
			my ($seconds, $lines) = effort(@$command);
			cmp_ok($lines, '>', $leases, "@$command: $leases leases are shown");
			cmp_ok($seconds, '<', 4, "@$command: $leases leases take a moment");

			# Clocks of processes tick a hundred times a second.
			$first{$command->[0]} //= $seconds;
			cmp_ok($seconds, '<=', 8 * ($first{$command->[0]} + 0.02), "@$command: four times the leases, a few times the effort");
		}
	}
	sql("SELECT count(dlock_release_token(name, token)) FROM dlock_leases WHERE name LIKE 'many-%'");
}

# ---- a standby ----

sql("SELECT dlock_acquire('on primary', 'x', '1 h')");
my $standby = make_standby($node, 'standby');
$node->wait_for_catchup($standby);
($code, $out, $err) = top('--json', '-n', 1, '-d', $standby->connstr('postgres'));
is("$code$err", '0', 'on a standby');
($totals, @rows) = objects($out);
# Those of the screens are there still where there is no terminal for them.
is_deeply([ $totals->{standby}, grep { $_ eq 'on primary' } map { $_->{name} } @rows ],
	[ JSON::PP::true, 'on primary' ], 'on a standby: leases that were replayed');
is_deeply($rows[0]{grants_per_second}, undef, 'on a standby: no rates');
is($standby->safe_psql('postgres', "SELECT * FROM dlock_grant_count('on primary')"), 'on primary||', 'on a standby: no counts');
is(sql("SELECT grants FROM dlock_grant_count('on primary')"), 1, 'a count');
$node->stop('immediate');
$node->start;
is(sql("SELECT count(*) FROM dlock_leases WHERE name = 'on primary'") . sql("SELECT * FROM dlock_grant_count('on primary')"), '1on primary||',
	'after a crash the lease is there, and counting begins anew');
done_testing();
