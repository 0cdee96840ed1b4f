# Proves: tasks are put, captured, finished and failed from a shell; each failure has its
# exit code; a worker that waits has the next task, whatever becomes of its connection, and
# leaves none behind; and a job with --once-per runs once in its slot of time.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockTest;
use Encode ();
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = init_node('main', conf => "dlock.max_ttl = '20000d'\ntimezone = 'Asia/Tokyo'\ndatestyle = 'SQL, DMY'\n");
$node->start;
my $db = 'postgres';
$node->safe_psql($db, 'CREATE SCHEMA "Odd place"; CREATE EXTENSION dlock SCHEMA "Odd place"');
$node->safe_psql($db, qq(SELECT "Odd place".dlock_queue_create('mail', max_attempts => 2, retry_delay => '0')));
use_server($node);
my $json = JSON::PP->new->utf8;

sub objects
{
	return map { $json->decode($_) } split /\n/, $_[0];
}

# Capture a task; returns its token.
sub capture
{
	my ($key, @options) = @_;
	my $run = cli_is([ qw(task capture --ttl 1h), @options, 'mail' ], { out => qr/^\Q$key\E\t\d+\t.*\n\z/ }, "$key is captured");

	return (split /\t/, $run->{out})[1];
}

# ---- put, capture, finish ----

cli_is([qw(task put mail a --payload {"to":"ann"})], {}, 'put');
cli_is([qw(task put mail a --json)], { out => qq({"queue":"mail","key":"a","put":false}\n) }, 'put what is there');
cli_is([qw(task put mail b --priority -5 --json)], { out => qq({"queue":"mail","key":"b","put":true}\n) }, 'put, with a priority');
cli_is([qw(task put mail later --delay 1h)], {}, 'put, with a delay');
cli_is([qw(task put mail c --priority high)], { code => 64, err => qr/"--priority" does not take "high"/ }, 'no priority');
cli_is([qw(task put mail c --payload {)], { code => 64, err => qr/json/ }, 'no JSON');
cli_is([qw(task put nowhere c)], { code => 66, err => qr/nowhere/ }, 'no queue');
cli_is([qw(task put mail)], { code => 64, err => qr/too few arguments/ }, 'no key');

my $token = capture('b', '--owner', 'me');
my @tasks = objects(cli_is([qw(task list --json mail)], { out => qr/./ }, 'list, in JSON')->{out});
is_deeply([ map { "$_->{key} $_->{state} " . ($_->{owner} // '-') } @tasks ], [ 'b working me', 'a ready -', 'later ready -' ], 'list: the tasks');
is_deeply($tasks[1]{payload}, { to => 'ann' }, 'list: a payload');
is($tasks[0]{token}, $token, 'list: the token');
like($tasks[2]{ready_at}, qr/^\d{4}-.*Z$/, 'list: when it can be captured');
cli_is([qw(task list --state working)], { out => qr/\AQUEUE +KEY .*\nmail +b +working .*\n\z/ }, 'list, those in a state');
cli_is([qw(task list nowhere)], {}, 'list, none');

my $run = cli_is([qw(task capture --json -n 9 mail)], { out => qr/./ }, 'capture, in JSON');
my ($captured, @others) = objects($run->{out});
is_deeply([ @$captured{qw(key state attempts payload)}, scalar @others ], [ 'a', 'ready', 1, { to => 'ann' }, 0 ],
	'up to nine, but one is captured and another is put off');
like($captured->{expires_at}, qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/, 'capture, in JSON: until when');
is($node->safe_psql($db, qq(SELECT abs(extract(epoch FROM expires_at - '$captured->{expires_at}')) < 60 FROM "Odd place".dlock_tasks WHERE key = 'a')),
	't', 'capture, in JSON: that is the time');
cli_is([qw(task capture mail)], { code => 75, out => '', err => qr/queue "mail" has no task to capture/ }, 'no task left');
cli_is([qw(task capture -q -E 9 mail)], { code => 9 }, 'no task left, quietly, with a code of its own');
cli_is([ 'task', 'finish', 'mail', 'b', $token ], {}, 'finish');
cli_is([ 'task', 'finish', '--json', 'mail', 'b', $token ], { out => qq({"queue":"mail","key":"b","finished":false}\n) }, 'finish what is finished');
cli_is([ 'task', 'finish', 'mail', 'a', $token ], { code => 76, err => qr/./ }, 'finish with the token of another task');
cli_is([qw(task finish mail a first)], { code => 64, err => qr/./ }, 'no token');

# ---- fail ----

cli_is([ qw(task fail mail a), $captured->{token}, '--error', 'no route' ], { out => "ready\n" }, 'fail: it is ready again');
is($node->safe_psql($db, q(SELECT error FROM "Odd place".dlock_tasks WHERE key = 'a')), 'no route', 'fail: the error is kept');
$token = capture('a');
cli_is([ qw(task fail --json mail a), $token ], { out => qq({"queue":"mail","key":"a","state":"parked"}\n) }, 'fail: too often');
cli_is([ qw(task fail mail a), $token ], { code => 76, err => qr/./ }, 'fail what is not captured');
{
	my ($error) = objects(cli_is([ qw(task fail --json mail a), $token ], { code => 76, err => qr/./ }, 'the same, in JSON')->{err});
	is_deeply([ @$error{qw(code sqlstate)} ], [ 76, 'LK002' ], 'the lease is lost');
}

# A payload is JSON still, whatever is in it.
{
	my $payload = qq("a\x{7f}\x{92}\x{202e}\\n\x{20ac}");
	cli_is([ qw(task put mail odd --priority -9 --payload), Encode::encode('UTF-8', $payload) ], {}, 'put an odd payload');
	my @columns = split /\t/, cli_is([qw(task capture mail)], { out => qr/^odd\t[^\n\x7f\xc2]*\n\z/ }, 'an odd payload is captured')->{out};
	is(eval { $json->allow_nonref->decode($columns[2]) }, "a\x{7f}\x{92}\x{202e}\n\x{20ac}", 'an odd payload: as it was put');
	cli_is([ qw(task finish mail odd), $columns[1] ], {}, 'an odd payload: finish');
}

# ---- waiting ----

sub sql
{
	my ($sql) = @_;
	return $node->safe_psql($db, qq(SET search_path = "Odd place"; $sql));
}

# Wait until the command waits for a task, in another backend than this; returns the backend.
sub waits
{
	my ($not) = @_;
	my $pid;

	$not //= 0;
	wait_until(
		sub {
			$pid = sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'dlock' AND state = 'active' AND wait_event_type = 'Extension' AND pid <> $not");
			return $pid ne '';
		}) or die 'the command does not wait';
	return $pid;
}

sub task
{
	my ($key) = @_;
	return sql("SELECT state || ' ' || attempts FROM dlock_tasks WHERE queue = 'wait' AND key = '$key'");
}
sql("SELECT dlock_queue_create('wait')");
{
	my @wait = qw(task capture --wait --ttl 1h);
	my $waiter = DLockCli->start(@wait, 'wait');
	my $backend = waits();

	cli_is([qw(task put wait a)], {}, 'wait: put');
	is($waiter->finish->{code}, 0, 'wait: exit code') or diag($waiter->{err});
	like($waiter->{out}, qr/^a\t\d+\t\n\z/, 'wait: the task');
	cli_is([ qw(task finish wait a), (split /\t/, $waiter->{out})[1] ], {}, 'wait: the token counts');
	cli_is([qw(task put wait b)], {}, 'wait: put before');
	cli_is([ @wait, qw(--json wait) ], { out => qr/^\{"key":"b",.*\}\n\z/ }, 'wait: a task that is there already');

	my $in_vain = cli_is([qw(task capture --wait=0.2 wait)], { code => 75, err => qr/queue "wait" has no task to capture/ }, 'wait: in vain');
	cmp_ok($in_vain->{ended} - $in_vain->{started}, '>=', 0.2, 'wait: as long as that');
	cli_is([qw(task capture --timeout 200ms -q -E 9 wait)], { code => 9 }, 'wait: --timeout');
	cli_is([qw(task capture --wait 5m wait)], { code => 64, err => qr/too many arguments\n.*--wait=5m/ }, 'wait: a span without the sign');
	cli_is([qw(task capture --wait=soon wait)], { code => 64, err => qr/"--wait" does not take "soon"\n.*A span is/ }, 'wait: no span');

	foreach my $signal ('INT', 'TERM')
	{
		$waiter = DLockCli->start(@wait, 'wait');
		waits();
		$waiter->signal($signal);
		$waiter->finish;
		is("$waiter->{code} $waiter->{signal}", $signal eq 'INT' ? '0 2' : '143 0', "wait: $signal");
		ok(wait_until(sub { sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dlock'") == 0 }), "wait: $signal: no backend is left");
	}

	# The server captures a task for a command that is told to end before it hears of that.
	$waiter = DLockCli->start(@wait, 'wait');
	waits();
	$waiter->signal('STOP');
	ok(wait_until(sub { ((DLockTest::process_stat($waiter->{pid}))[0] // '') eq 'T' }), 'wait: the command is stopped');
	cli_is([qw(task put wait c)], {}, 'wait: put for it');
	ok(wait_until(sub { task('c') eq 'working 1' }), 'wait: captured for it');
	$waiter->signal('TERM');
	$waiter->signal('CONT');
	is($waiter->finish->{code}, 143, 'wait: a signal with the answer');
	is($waiter->{out} . $waiter->{err} . task('c'), 'ready 0', 'wait: the task is given back');

	# So is one that nobody could be told of.
	pipe(my $nobody, my $to_nobody) or die $!;
	close $nobody;
	$waiter = DLockCli->start({ out => $to_nobody }, @wait, 'wait')->finish;
	isnt($waiter->{code}, 0, 'nobody reads the answer');
	is(task('c'), 'ready 0', 'nobody reads the answer: the task is given back');
	cli_is([ @wait, 'wait' ], { out => qr/^c\t/ }, 'and captured again');

	$waiter = DLockCli->start(@wait, '-v', 'wait');
	$backend = waits();
	sql("SELECT pg_terminate_backend($backend)");
	waits($backend);
	like($waiter->err, qr/connecting again/, 'wait: the connection is lost');
	$node->stop('immediate');
	$node->start;
	waits();
	cli_is([qw(task put wait d)], {}, 'wait: put after a crash');
	is($waiter->finish->{code}, 0, 'wait: over a crash') or diag($waiter->{err});
	like($waiter->{out}, qr/^d\t/, 'wait: the task that was put after it');

	$waiter = DLockCli->start(@wait, 'wait');
	waits();
	sql("SELECT dlock_queue_drop('wait')");
	is($waiter->finish->{code}, 66, 'wait: the queue is dropped');
	like($waiter->{err}, qr/"wait" does not exist/, 'wait: the queue is dropped: told');
}

# Another role's queue.
$node->safe_psql($db, 'CREATE ROLE stranger LOGIN; GRANT USAGE ON SCHEMA "Odd place" TO stranger');
{
	local $ENV{PGUSER} = 'stranger';
	cli_is([qw(task capture mail)], { code => 77, err => qr/./ }, 'not allowed');
	cli_is([qw(task list)], {}, 'nothing to be seen');
}

# ---- once ----

# Slots so long begin in 1970, 2024 and 2079.
my @once = qw(run --once-per 20000d);
cli_is([ @once, 'job', 'echo', 'done' ], { out => "done\n" }, 'once: the first');
cli_is([ @once, 'job', 'echo', 'done' ], { code => 75, out => '', err => qr/"job" has been run already in this slot of \d/ }, 'once: the second');
cli_is([ @once, '-q', '-E', '0', 'job', 'echo', 'done' ], {}, 'once: the second, as a success');
cli_is([ @once, 'other', 'echo', 'done' ], { out => "done\n" }, 'once: another job');
cli_is([qw(run job echo done)], { out => "done\n" }, 'once: without it, the job runs again');
cli_is([qw(run --once-per 0 job true)], { code => 64, err => qr/./ }, 'once per nothing');
cli_is([ @once, qw(-d host=/nowhere), 'third', 'true' ], { code => 69, err => qr/./ }, 'once: no server');

# A job that fails has had its slot; the lock is free.
cli_is([ @once, 'bad', 'false' ], { code => 1 }, 'once: a job that fails');
cli_is([ @once, 'bad', 'true' ], { code => 75, err => qr/already/ }, 'once: it is not run again');
cli_is([qw(acquire -n bad)], { out => qr/^\d+$/ }, 'once: the lock is free');

# Of many at a time, one.
my @runs = map { DLockCli->start(@once, '-q', 'crowd', 'echo', 'done') } 1 .. 8;
$_->finish foreach @runs;
is(join(' ', sort map { $_->{code} . ' ' . ($_->{out} =~ s/\n//r) } @runs), '0 done' . ' 75 ' x 7, 'once: one of eight at a time');

done_testing();
