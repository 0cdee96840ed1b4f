# Proves: with dlock elect one command runs at a time, the one of the leader; it is
# taken over when the leader's ends, is killed or loses the lease; and observers are
# told of each leader.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('main');
my $db = 'postgres';
use_server($node);

sub leader
{
	return $node->safe_psql($db, "SELECT split_part(owner, '/', 1) FROM dlock_leases WHERE name = 'site' AND state = 'held'");
}

sub candidate
{
	my ($owner, @more) = @_;

	# Only the end of the one that is killed has to be waited for.
	my $ttl = $owner eq 'two' ? 12 : 60;
	return DLockCli->start(qw(elect --kill-after 0.5 --ttl), $ttl, '--owner', $owner, '--payload', "{\"at\": \"$owner\"}", @more,
		'site', '--', 'sh', '-c', 'echo "up $DLOCK_TOKEN"; exec sleep 600');
}

cli_is([qw(elect site)], { code => 64, err => qr/no command/ }, 'no command');
cli_is([qw(elect --observe -w 0 site)], { code => 75, out => qr/^\S+  nobody\n\z/, err => qr/nobody leads "site"/ }, 'who leads now: nobody');
my $observer = DLockCli->start(qw(elect --observe site));
my $json = DLockCli->start(qw(elect --observe --json site));
$observer->wait_out(qr/^\S+  nobody\n\z/);
my %candidate;

# The observers see a candidate's term, if they look before it ends.
sub is_observed
{
	my ($candidate) = @_;
	my ($token) = $candidate->out =~ /.*up (\d+)\n/s;

	$observer->wait_out(qr/^\S+  leader  $token  /m);
	$json->wait_out(qr/"leader":true,"token":$token,/);
	return;
}

foreach my $owner (qw(one two three))
{
	$candidate{$owner} = candidate($owner);
	$owner eq 'one' ? $candidate{one}->wait_out(qr/up \d+\n/) : run_waits($node, 'site', $owner eq 'two' ? 1 : 2);
}
is(leader(), 'one', 'the first leads');
is($candidate{two}->out . $candidate{three}->out, '', 'the others do not run');
is_observed($candidate{one});

# So long, and no longer.
cli_is([qw(elect --observe -w 0.3 site)], { out => qr/^\S+  leader  \d+  one\/\w+  \S.*\n\z/ }, 'who leads, for a while');
cli_is([qw(elect --observe --json --timeout 0 site)], { out => qr/^\{"time":.*"leader":true,.*\}\n\z/ }, 'who leads now');

# The leader is told to go.
$candidate{one}->signal('TERM');
is($candidate{one}->finish->{code}, 143, 'told to go: over, and no new campaign');
$candidate{two}->wait_out(qr/up \d+\n/);
is(leader(), 'two', 'the second leads');
is_observed($candidate{two});

# The leader is killed: its command with it, and the next one after the ttl.
$candidate{two}->signal('KILL');
$candidate{two}->finish;
$candidate{three}->wait_out(qr/up \d+\n/);
is(leader(), 'three', 'the third leads');
is_observed($candidate{three});

# It loses the lease, and campaigns again.
is(cli(qw(force-release site --reason test))->{out}, "1\n", 'forced');
$candidate{three}->wait_out(qr/up \d+\nup \d+\n/);
is(leader(), 'three', 'the third leads again');
is_observed($candidate{three});
like($candidate{three}->err, qr/is lost; stopping the command/, 'it was told');
$candidate{three}->signal('TERM');
$candidate{three}->finish;

# Once is enough.
my $once = candidate('once', '--once');
$once->wait_out(qr/up \d+\n/);
is_observed($once);
cli(qw(force-release site --reason test));
is($once->finish->{code}, 76, 'once: lost');
$observer->wait_out(qr/  once\/.*\n\S+  nobody\n/);
cli_is([qw(elect --once site sh -c), 'exit 4'], { code => 4 }, 'once: exit code');
cli_is([qw(elect --once -c), 'exit 5', 'site'], { code => 5 }, 'once: a shell');
cli_is([qw(elect site /nowhere/at/all)], { code => 127, err => qr/No such file/ }, 'a command that is not there is not tried again');

# A command that ends is started again, not at once.
my $again = DLockCli->start(qw(elect -v again sh -c), 'echo up; exit 1');
$again->wait_out(qr/up\nup\nup\n/);
cmp_ok(mono_now() - $again->{started}, '>', 1.5, 'not at once');

# A signal that comes with the end of the command is passed on to that.
$again->wait_err(qr/(?:campaigning again.*){3}/s);
$again->signal('TERM');
$again->finish;
is($again->{code}, 143, 'over in between');

ok(wait_until(sub { $observer->out =~ /once/ && $observer->out =~ /nobody\n\z/ }), 'the observer has seen it all');
my $leaders = join ' ', $observer->out =~ m{  (?:leader  \d+  )?(nobody|\w+)(?=/| *$)}mg;
like($leaders, qr/^nobody one (nobody )?two (nobody )?three (nobody )?three (nobody )?once nobody/, 'every leader in turn');
like($observer->out, qr/^\S+Z  leader  \d+  one\/\w+  \{"at": "one"\}$/m, 'with the payload');
like($json->out, qr/"leader":true,"token":\d+,"owner":"two\/\w+".*"payload":\{"at": "two"\}\}$/m, 'in JSON, too');
$_->signal('TERM') foreach $observer, $json;
$_->finish foreach $observer, $json;
is($node->safe_psql($db, 'SELECT count(*) FROM dlock_leases WHERE state = \'held\''), 0, 'nothing is held');
$node->stop;
done_testing();
