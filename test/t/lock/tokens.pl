# Proves: one backend reserves a block of tokens, with one record and one flush.  Whoever lacks
# tokens meanwhile waits for it, can be canceled, and shares the block; a reader of the
# sequence does not wait.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockFault;
use DLockFence qw(wait_blocked);
use DLockSession;
use DLockTest;
use Test::More;

my $db = 'postgres';
my $node = start_fault_node('main');
still_worker($node);
my $ctl = DLockSession->new($node, $db, name => 'control');
my ($first, $second, $third) = open_sessions($node, $db, 3, name => 's');

sub acquire
{
	my ($name) = @_;

	return "SELECT dlock_acquire('$name', 'me', '1 h')";
}

# The store has a page, and nobody has a token.
$_->query_safe("SELECT dlock_check('none', 1)") foreach $first, $second, $third;
my $before = $ctl->query_safe('SELECT last_value FROM _dlock.token_seq');

# The block is on disk, and cannot be used yet.
stop_at($ctl, $first, 'token_reserved');
$first->ask(acquire('first'));
is_at($ctl, 'token_reserved');
$second->ask(acquire('second'));
ok(wait_blocked($ctl, $second), 'a second backend waits for the reservation');
is($ctl->query_safe("SELECT pg_blocking_pids($second->{pid})"), "{$first->{pid}}", 'for the one that makes it');
$ctl->query_safe("SELECT pg_cancel_backend($second->{pid})");
is($second->answer, 'ERROR 57014', 'and can be canceled');
is($second->query("SET lock_timeout = '10 ms'; " . acquire('second')), 'ERROR 55P03', 'it obeys lock_timeout');
$second->query_safe('RESET lock_timeout');
my $end = $ctl->query_safe('SELECT last_value FROM _dlock.token_seq');
cmp_ok($end, '>', $before, 'the sequence can be read meanwhile');

# All share the block.
$_->ask(acquire($_->{name})) foreach $second, $third;
ok(wait_blocked($ctl, $_), "$_->{name} waits") foreach $second, $third;
go($ctl, 'token_reserved');
my @tokens = sort { $a <=> $b } map { $_->answer } $first, $second, $third;
is("@tokens", join(' ', map { $end - 65536 + $_ } 1 .. 3), 'three tokens of one block');
is($ctl->query_safe('SELECT last_value FROM _dlock.token_seq'), $end, 'the others have reserved none');
is($ctl->query_safe("SELECT string_agg(name, ' ' ORDER BY name) FROM dlock_leases"), 'first s2 s3', 'a canceled call left nothing');

$_->quit foreach $first, $second, $third, $ctl;
$node->stop;
log_is_clean($node);
done_testing();
