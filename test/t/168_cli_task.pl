# Proves: tasks are put, captured, finished and failed from a shell; each failure has its
# exit code; and a job with --once-per runs once in its slot of time.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";

use DLockCli;
use DLockTest;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = init_node('main', conf => "dlock.max_ttl = '20000d'");
$node->start;
my $db = 'postgres';
$node->safe_psql($db, 'CREATE SCHEMA "Odd place"; CREATE EXTENSION dlock SCHEMA "Odd place"');
$node->safe_psql($db, qq(SELECT "Odd place".dlock_task_create_queue('mail', max_attempts => 2)));
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
cli_is([qw(task put nowhere c)], { code => 69, err => qr/nowhere/ }, 'no queue');
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
