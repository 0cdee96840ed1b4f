# Proves: the checker of histories finds each kind of wrong history, and takes none
# for wrong that can be right.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../proof";

use DLockHistory;
use Test::More;

# Judge a history.  Times are milliseconds here, the clients are numbered by the
# first word of a line, and what it was connected to is server S1 if it does not
# tell.
sub findings
{
	my ($history, %params) = @_;
	my (%client, %n);

	foreach my $line (split /\n/, $history)
	{
		my ($who, $time, $kind, $rest) = $line =~ /^\s*(\w+) +(\d+) +(server|call|done) *(.*)$/ or next;
		my $lines = $client{$who} //= $kind eq 'server' ? [] : ["server 0 S1\n"];

		$n{$who}++ if $kind eq 'call';
		push @$lines, $kind eq 'server' ? "server ${time}000 $rest\n" : "$kind $n{$who} ${time}000 $rest\n";
	}
	my $verdict = DLockHistory::judge([ map { $client{$_} } sort keys %client ], %params);
	return map { /^(\w+)/ } @{ $verdict->{findings} };
}

sub is_right
{
	my ($name, $history, %params) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(join(' ', findings($history, %params)), '', $name);
	return;
}

sub is_wrong
{
	my ($rule, $name, $history, %params) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(join(' ', findings($history, %params)), $rule, "$rule: $name");
	return;
}

# ---------------------------------------------------------------------------
# exclusion
# ---------------------------------------------------------------------------

my $first = <<'EOC';
	a 10 call acquire x a1 exclusive 1000 0 first
	a 20 done ok 100
EOC

is_wrong('exclusion', 'a second holder', $first . <<'EOC');
	b 500 call acquire x b1 exclusive 1000 0 first
	b 510 done ok 101
EOC
is_right('after the deadline', $first . <<'EOC');
	b 500 call acquire x b1 exclusive 1000 1000 first
	b 1011 done ok 101
EOC
is_right('a grant of which the holder hears late', $first . <<'EOC');
	a 21 call release x a1 100
	b 22 call acquire x b1 exclusive 1000 1000 first
	b 900 done ok 101
	a 910 done ok t
EOC
is_right('another lock', $first . <<'EOC');
	b 500 call acquire y b1 exclusive 1000 0 first
	b 510 done ok 101
EOC
is_wrong('exclusion', 'a renewal is as good as a grant', $first . <<'EOC');
	a 900 call renew x a1 100 0
	a 910 done ok t
	b 1100 call acquire x b1 exclusive 1000 0 first
	b 1110 done ok 101
EOC
is_right('a renewal without an answer promises nothing', $first . <<'EOC');
	a 900 call renew x a1 100 0
	a 910 done lost -----
	b 1100 call acquire x b1 exclusive 1000 0 first
	b 1110 done ok 101
EOC
is_right('and may have shortened the lease', $first . <<'EOC');
	a 100 call renew x a1 100 200
	a 110 done lost -----
	b 310 call acquire x b1 exclusive 1000 0 first
	b 320 done ok 101
EOC
is_wrong('exclusion', 'by no more than it asked for', $first . <<'EOC');
	a 100 call renew x a1 100 200
	a 110 done lost -----
	b 280 call acquire x b1 exclusive 1000 0 first
	b 290 done ok 101
EOC
is_right('a release without an answer ends the lease for its holder', $first . <<'EOC');
	a 100 call release_token x a1 100
	b 110 call acquire x b1 exclusive 1000 0 first
	b 120 done ok 101
EOC
is_wrong('exclusion', 'a renewed lease was live all the while', $first . <<'EOC');
	b 1020 call acquire x b1 exclusive 100 0 first
	b 1030 done ok 101
	a 1400 call renew x a1 100 0
	a 1410 done ok t
EOC
is_wrong('exclusion', 'a check says that it is live still', $first . <<'EOC');
	a 900 call renew x a1 100 0
	a 910 done error 57014
	b 1100 call acquire x b1 exclusive 1000 0 first
	b 1110 done ok 101
	a 1120 call check x a1 100
	a 1130 done ok t
EOC
is_right('a check before the other was granted', $first . <<'EOC');
	a 900 call renew x a1 100 0
	a 910 done error 57014
	b 1000 call acquire x b1 exclusive 1000 500 first
	a 1100 call check x a1 100
	b 1110 done ok 101
	a 1120 done ok t
EOC
is_right('shared beside shared', <<'EOC');
	a 10 call acquire x a1 shared 1000 0 first
	a 20 done ok 100
	b 30 call acquire x b1 shared 1000 0 first
	b 40 done ok 101
EOC
is_wrong('exclusion', 'exclusive beside shared', <<'EOC');
	a 10 call acquire x a1 shared 1000 0 first
	a 20 done ok 100
	b 30 call acquire x b1 exclusive 1000 0 first
	b 40 done ok 101
EOC
is_right('a downgrade lets others in at once', $first . <<'EOC');
	a 30 call convert x a1 100 exclusive shared 0
	b 40 call acquire x b1 shared 1000 0 first
	b 50 done ok 101
	a 60 done ok 100
EOC
is_wrong('exclusion', 'but not those that need it alone', $first . <<'EOC');
	a 30 call convert x a1 100 exclusive shared 0
	b 40 call acquire x b1 exclusive 1000 0 first
	b 50 done ok 101
	a 60 done lost -----
EOC
is_wrong('exclusion', 'an upgrade beside a shared holder', <<'EOC');
	a 10 call acquire x a1 shared 1000 0 first
	a 20 done ok 100
	b 30 call acquire x b1 shared 1000 0 first
	b 40 done ok 101
	a 50 call convert x a1 100 shared exclusive 0
	a 60 done ok 102
EOC
is_wrong('exclusion', 'a shared grant after an upgrade', <<'EOC');
	a 10 call acquire x a1 shared 1000 0 first
	a 20 done ok 100
	a 50 call convert x a1 100 shared exclusive 0
	a 60 done ok 102
	b 70 call acquire x b1 shared 1000 0 first
	b 80 done ok 103
EOC
is_right('an upgrade is one lease all the time', <<'EOC');
	a 10 call acquire x a1 shared 1000 0 first
	a 20 done ok 100
	a 50 call convert x a1 100 shared exclusive 0
	a 60 done ok 102
	a 70 call convert x a1 102 exclusive shared 0
	a 80 done ok 102
EOC
is_wrong('exclusion', 'one of several locks', <<'EOC');
	a 10 call acquire_all x,y a1 exclusive 1000 0 first
	a 20 done ok 100,101
	b 30 call acquire y b1 exclusive 1000 0 first
	b 40 done ok 102
EOC
is_wrong('exclusion', 'a path below one that is held', <<'EOC');
	a 10 call acquire_path p a1 exclusive 1000 0 first
	a 20 done ok 100
	b 30 call acquire_path p/x b1 shared 1000 0 first
	b 40 done ok 101
EOC
is_right('paths beside each other', <<'EOC');
	a 10 call acquire_path p/y a1 exclusive 1000 0 first
	a 20 done ok 100
	b 30 call acquire_path p/x b1 exclusive 1000 0 first
	b 40 done ok 101
EOC
my $permits = <<'EOC';
	a 10 call acquire s a1 permit 1000 0 first
	a 20 done ok 100
	b 30 call acquire s b1 permit 1000 0 first
	b 40 done ok 101
EOC
is_right('as many as there are permits', $permits);
is_wrong('exclusion', 'more than there are permits', $permits . <<'EOC');
	c 50 call acquire s c1 permit 1000 0 first
	c 60 done ok 102
EOC
is_wrong('exclusion', 'after a crash', $first . <<'EOC');
	b 500 server S2
	b 500 call acquire x b1 exclusive 1000 0 first
	b 510 done ok 101
EOC

# ---------------------------------------------------------------------------
# token, unique
# ---------------------------------------------------------------------------

is_wrong('token', 'a lower one', $first . <<'EOC');
	b 30 call acquire y b1 exclusive 1000 0 first
	b 40 done ok 99
EOC
is_right('of calls at one time', $first . <<'EOC');
	b 19 call acquire y b1 exclusive 1000 0 first
	b 40 done ok 99
EOC
is_right('of a call that was made again', $first . <<'EOC');
	b 9 call acquire y b1 exclusive 1000 0 first
	b 15 done lost -----
	b 30 call acquire y b1 exclusive 1000 0 again
	b 40 done ok 99
EOC
is_wrong('token', 'of an upgrade', <<'EOC');
	a 10 call acquire x a1 shared 1000 0 first
	a 20 done ok 100
	a 30 call convert x a1 100 shared exclusive 0
	a 40 done ok 99
EOC
is_wrong('unique', 'one token twice', $first . <<'EOC');
	b 19 call acquire y b1 exclusive 1000 0 first
	b 40 done ok 100
EOC
is_wrong('unique', 'a downgrade', $first . <<'EOC');
	a 30 call convert x a1 100 exclusive shared 0
	a 40 done ok 101
EOC

# ---------------------------------------------------------------------------
# lost, seen, left
# ---------------------------------------------------------------------------

foreach my $call ('renew x a1 100 0', 'check x a1 100', 'release x a1 100')
{
	my ($verb) = split / /, $call;

	is_wrong('lost', $verb, $first . "\ta 500 call $call\n\ta 510 done none\n");
	is_right("$verb, late", $first . "\ta 500 call $call\n\ta 1011 done none\n");
	is_wrong('lost', "$verb, after a crash", $first . "\ta 400 server S2\n\ta 500 call $call\n\ta 510 done none\n");
}
is_wrong('lost', 'a conversion', $first . <<'EOC');
	a 30 call convert x a1 100 exclusive shared 0
	a 40 done error LK002
EOC
is_right('a token that nobody knows', <<'EOC');
	a 10 call acquire x a1 shared 1000 0 first
	a 20 done ok 100
	a 30 call convert x a1 100 shared exclusive 0
	a 40 done lost -----
	a 50 call release_token x a1 100
	a 60 done none
EOC

is_wrong('seen', 'a view without a lease', $first . <<'EOC');
	w 30 call leases
	w 40 done ok
EOC
is_right('a view with it', $first . <<'EOC');
	w 30 call leases
	w 40 done ok x:a1:100
EOC
is_right('a view at its end, or while it is released, or in part', $first . <<'EOC');
	w 1000 call leases
	w 1011 done ok
	v 30 call leases
	v 31 done part
	a 40 call release x a1 100
	v 41 call leases
	v 42 done ok
EOC
is_right('the view of a server that was replaced', <<'EOC');
	w 1 server S1
	a 10 call acquire x a1 exclusive 100 0 first
	a 20 done ok 100
	a 30 server S2
	a 40 call renew x a1 100 1000
	a 50 done ok t
	w 200 call leases
	w 210 done ok
EOC
my $renewed_late = $first . <<'EOC';
	a 1000 call renew x a1 100 0
	a 1040 done ok t
EOC
my $between = "\tw 1020 call leases\n\tw 1030 done ok\n";
is_wrong('seen', 'a view while the lease is renewed', $renewed_late . $between);
is_right('the same where leases are rows', $renewed_late . $between, rows => 1);
is_wrong('seen', 'a view after that', $renewed_late . "\tw 1041 call leases\n\tw 1050 done ok\n", rows => 1);
is_wrong('left', 'after a release', $first . <<'EOC');
	a 30 call release x a1 100
	a 40 done ok t
	w 50 call leases
	w 60 done ok x:a1:100
EOC
is_wrong('left', 'after an error', <<'EOC');
	a 10 call acquire x a1 exclusive 100 0 first
	a 20 done error 57014
	w 50 call leases
	w 60 done ok x:a1:100
EOC
is_right('after no answer', <<'EOC');
	a 10 call acquire x a1 exclusive 100 0 first
	a 20 done lost 57P01
	w 50 call leases
	w 60 done ok x:a1:100
EOC
is_right('a release that a crash undid', $first . <<'EOC');
	a 30 call release x a1 100
	a 40 done ok t
	w 45 server S2
	w 50 call leases
	w 60 done ok x:a1:100
EOC

is_wrong('left', 'after a refusal', $first . <<'EOC');
	b 30 call acquire x b1 shared 100 0 first
	b 40 done none
	w 1050 call leases
	w 1060 done ok x:b1:101
EOC
is_right('some of several, which a crash left', <<'EOC');
	a 10 call acquire_all x,y a1 exclusive 1000 0 first
	a 20 done lost -----
	a 30 server S2
	a 40 call acquire_all x,y a1 exclusive 1000 0 again
	a 50 done none
	w 60 server S2
	w 70 call leases
	w 80 done ok x:a1:100
EOC

# ---------------------------------------------------------------------------
# back, stray: also what a call without an answer has done
# ---------------------------------------------------------------------------

my $denied = <<'EOC';
	a 10 call acquire x a1 exclusive 100 0 first
	a 20 done ok 100
	a 200 call check x a1 100
	a 210 done none
EOC
is_wrong('back', 'a renewal', $denied . <<'EOC');
	a 220 call renew x a1 100 0
	a 230 done ok t
EOC
is_wrong('back', 'a release', $denied . <<'EOC');
	a 220 call release_token x a1 100
	a 230 done ok t
EOC
is_wrong('back', 'in a view', $denied . <<'EOC');
	w 220 call leases
	w 230 done ok x:a1:100
EOC
is_right('in a view that is as old as the denial', $denied . <<'EOC');
	w 205 call leases
	w 230 done ok x:a1:100
EOC
is_right('after a crash, by its bound', $denied . <<'EOC');
	a 215 server S2
	a 220 call check x a1 100
	a 230 done ok t
EOC
is_right('the token from before an upgrade that was undone', <<'EOC');
	a 10 call acquire x a1 shared 1000 0 first
	a 20 done ok 100
	a 30 call convert x a1 100 shared exclusive 0
	a 40 done lost 57P01
	a 50 call check x a1 100
	a 60 done none
	a 70 call check x a1 100
	a 80 done ok t
EOC

is_wrong('stray', 'of nobody', <<'EOC');
	w 30 call leases
	w 40 done ok x:a1:100
EOC
is_wrong('stray', 'before it was asked for', <<'EOC');
	w 30 call leases
	w 40 done ok x:a1:100
	a 50 call acquire x a1 exclusive 1000 0 first
	a 60 done ok 100
EOC
is_wrong('stray', 'another lock than was asked for', <<'EOC');
	a 10 call acquire x a1 exclusive 1000 0 first
	a 20 done lost -----
	w 30 call leases
	w 40 done ok y:a1:100
EOC
is_wrong('stray', 'twice: the attempt that was lost, and the next one', <<'EOC');
	a 10 call acquire s a1 permit 1000 0 first
	a 20 done lost -----
	a 30 call acquire s a1 permit 1000 0 again
	a 40 done ok 101
	w 20 call leases
	w 45 done ok s:a1:100,s:a1:101
EOC
is_wrong('stray', 'another token than was told', <<'EOC');
	a 10 call acquire x a1 shared 15 0 first
	a 20 done ok 100
	w 30 call leases
	w 40 done ok x:a1:101
EOC
is_right('a token that is just being told', <<'EOC');
	a 10 call acquire x a1 shared 1000 0 first
	a 20 done lost -----
	w 21 call leases
	w 22 done ok x:a1:100
	a 30 call acquire x a1 shared 1000 0 again
	a 40 done ok 101
EOC
is_right('the token of an upgrade, before and after its answer', <<'EOC');
	a 10 call acquire x a1 shared 1000 0 first
	a 20 done ok 100
	a 30 call convert x a1 100 shared exclusive 0
	w 32 call leases
	w 33 done ok x:a1:101
	a 40 done ok 101
	v 50 call leases
	v 60 done ok x:a1:101
EOC
is_right('the ancestor of a path', <<'EOC');
	a 10 call acquire_path p/x a1 exclusive 1000 0 first
	a 20 done lost -----
	b 10 call acquire_path p/y b1 shared 1000 0 first
	b 20 done lost -----
	w 30 call leases
	w 40 done ok p:a1:100,p/x:a1:100,p:b1:101,p/y:b1:101
EOC
is_wrong('exclusion', 'below a path', <<'EOC');
	a 10 call acquire_path p/x a1 exclusive 1000 0 first
	a 20 done lost -----
	b 10 call acquire_path p b1 shared 1000 0 first
	b 20 done lost -----
	w 30 call leases
	w 40 done ok p:a1:100,p/x:a1:100,p:b1:101
EOC
is_wrong('token', 'of a call without an answer', <<'EOC');
	a 10 call acquire x a1 exclusive 100 0 first
	a 20 done ok 100
	b 30 call acquire y b1 exclusive 1000 0 first
	b 40 done lost -----
	w 150 call leases
	w 160 done ok y:b1:99
EOC
is_wrong('exclusion', 'two calls without an answer', <<'EOC');
	a 10 call acquire x a1 exclusive 1000 0 first
	a 20 done lost -----
	b 10 call acquire x b1 shared 1000 0 first
	b 20 done lost -----
	w 30 call leases
	w 40 done ok x:a1:100,x:b1:101
EOC
is_wrong('exclusion', 'three permits', <<'EOC');
	a 10 call acquire s a1 permit 1000 0 first
	b 10 call acquire s b1 permit 1000 0 first
	c 10 call acquire s c1 permit 1000 0 first
	w 30 call leases
	w 40 done ok s:a1:100,s:b1:101,s:c1:102
EOC
is_right('two shared, and two permits', <<'EOC');
	a 10 call acquire x a1 shared 1000 0 first
	b 10 call acquire x b1 shared 1000 0 first
	c 10 call acquire s c1 permit 1000 0 first
	d 10 call acquire s d1 permit 1000 0 first
	w 30 call leases
	w 40 done ok x:a1:100,x:b1:101,s:c1:102,s:d1:103
EOC

# ---------------------------------------------------------------------------
# order, early
# ---------------------------------------------------------------------------

my $queue = <<'EOC';
	a 10 call acquire x a1 exclusive 1000 500 first
	w 20 call waiters
	w 30 done ok x:a1
	b 40 call acquire x b1 exclusive 10 500 first
EOC

is_wrong('order', 'a later request first', $queue . <<'EOC');
	b 45 done ok 100
	a 60 done ok 101
EOC
is_right('in the order of the queue', $queue . <<'EOC');
	a 45 done ok 100
	a 50 call release x a1 100
	b 60 done ok 101
EOC
is_wrong('order', 'a later request instead', $queue . <<'EOC');
	b 45 done ok 100
	a 600 done none
EOC
is_right('a later request when the first had given up', $queue . <<'EOC');
	a 511 done none
	b 512 done ok 100
EOC
is_right('a first request without an answer', $queue . <<'EOC');
	a 41 done lost -----
	b 45 done ok 100
EOC
is_right('a later request that shares with nobody in front', <<'EOC');
	a 10 call acquire x a1 shared 1000 500 first
	w 20 call waiters
	w 30 done ok x:a1
	b 40 call acquire x b1 shared 10 500 first
	b 45 done ok 100
	a 60 done ok 101
EOC
is_right('a look that may be older than the other request', <<'EOC');
	a 10 call acquire x a1 exclusive 1000 500 first
	w 20 call waiters
	w 41 done ok x:a1
	b 40 call acquire x b1 exclusive 10 500 first
	b 45 done ok 100
	a 60 done ok 101
EOC
is_right('the queue of another server', $queue . <<'EOC');
	a 600 done none
	c 41 server S2
	c 42 call acquire x c1 exclusive 10 0 first
	c 43 done ok 99
EOC
is_wrong('early', 'a wait that is cut short', <<'EOC');
	a 10 call acquire x a1 exclusive 1000 500 first
	a 509 done none
EOC

# ---------------------------------------------------------------------------
# deadlock
# ---------------------------------------------------------------------------

is_wrong('deadlock', 'of a request for several locks', <<'EOC');
	a 10 call acquire_all x,y a1 exclusive 1000 500 first
	a 50 done error 40P01
EOC
is_right('a deadlock of an owner that may hold what it asks for', <<'EOC');
	a 10 call acquire x a1 exclusive 1000 500 first
	a 20 done lost 57P01
	a 30 call acquire x a1 exclusive 1000 500 again
	a 60 done error 40P01
EOC
is_right('a deadlock of two that convert', $first =~ s/exclusive/shared/r . <<'EOC');
	a 30 call convert x a1 100 shared exclusive 500
	a 60 done error 40P01
EOC

# ---------------------------------------------------------------------------
# Places: for 1000 ms, of leases of 400 ms, so a turn is missed after these
# ---------------------------------------------------------------------------

my $place = <<'EOC';
	a 10 call acquire x c#1 exclusive 400 0 first 1000
	a 20 done none
EOC
my $later = "\tb 100 call acquire x b1 exclusive 10 0 first\n";
my $back = <<'EOC';
	a 300 call acquire x c#1 exclusive 400 0 back 1000
	a 310 done none
EOC
my $granted_late = <<'EOC';
	a 600 call acquire x c#1 exclusive 400 0 back 1000
	a 610 done ok 101
EOC

is_wrong('order', 'a later request goes past a place', "$place$later\tb 405 done ok 100\n");
is_right('a place that may have missed its turn', "$place$later\tb 411 done ok 100\n");
is_wrong('order', 'a place that was asked for in time', "$place$later$back\tb 605 done ok 100\n");
is_wrong('order', 'and then granted later', "$place$later$back\tb 900 done ok 100\n$granted_late");
is_right('granted earlier', "$place$later$back\tb 1001 done ok 102\n$granted_late");
is_right('a request that went past before the place was asked for', $place . <<'EOC');
	a 415 call acquire x c#1 exclusive 400 0 back 1000
	a 420 done none
	b 100 call acquire x b1 exclusive 10 0 first
	b 500 done ok 100
EOC
is_wrong('order', 'by a listener, and too late', "$place$later" . <<'EOC');
	b 300 done ok 100
	c 200 call take c 1000 1000
	c 400 done ok x:c#1:101
EOC
is_right('by a listener, in time', "$place$later" . <<'EOC');
	b 600 done ok 101
	c 200 call take c 1000 1000
	c 500 done ok x:c#1:100
EOC
is_right('another server', "$place$later" =~ s/(?=\tb)/\tb 90 server S2\n/r . "\tb 405 done ok 100\n");
is_wrong('exclusion', 'a turn while the lock is held', $place . <<'EOC');
	h 1 call acquire x h1 shared 1000 0 first
	h 5 done ok 99
	c 200 call take c 1000 1000
	c 400 done ok x:c#1:100
EOC
is_wrong('early', 'a listener that does not wait', $place . <<'EOC');
	c 200 call take c 1000 1000
	c 1199 done ok
EOC
is_wrong('deadlock', 'of a place', $place . <<'EOC');
	c 200 call take c 1000 1000
	c 300 done ok x:c#1:
EOC
is_wrong('stray', 'a turn that nobody has asked for', $place . <<'EOC');
	c 200 call take c 1000 1000
	c 300 done ok y:c#1:100
EOC

# Of a view of the queue at some time, with and without the place.
sub seen
{
	my ($row, $time) = @_;

	return "\tw $time call waiters\n\tw " . ($time + 5) . " done ok $row\n";
}

my $taken = <<'EOC';
	c 200 call take c 500 2000
	c 700 done ok
EOC
my $cancelled = <<'EOC';
	c 200 call take c 500 2000
	c 300 done error 57014
EOC

is_wrong('lost', 'a place that is kept', $place . seen('', 1000));
is_right('at its end', $place . seen('', 1006));
is_wrong('lost', 'a place that was asked for', $place . $back . seen('', 1290));
is_right('while it is asked for', $place . $back . seen('', 299));
is_wrong('lost', 'a place that a listener has left', $place . $taken . seen('', 2190));
is_right('for so long', $place . $taken . seen('', 2196));
is_right('one that a listener may have been granted', $place . $cancelled . seen('', 310));
is_right('one that is there', $place . seen('x:c#1', 900));
is_wrong('left', 'after its time', $place . seen('x:c#1', 1021));
is_right('at its end', $place . seen('x:c#1', 1019));
is_right('which a listener has put off', $place . $taken . seen('x:c#1', 2700));
is_wrong('left', 'until then', $place . $taken . seen('x:c#1', 2701));
is_right('a listener of which nobody knows', $place . $taken =~ s/ok/lost -----/r . seen('x:c#1', 5000));
is_wrong('left', 'a place that was given up', $place . $back =~ s/1000$/0/mr . seen('x:c#1', 311));
is_right('and asked for again', $place . $back =~ s/1000$/0/mr . $back =~ s/\b3(?=\d\d )/4/gr . seen('x:c#1', 411));
is_wrong('left', 'a request that was cancelled', $place =~ s/none/error 57014/r . seen('x:c#1', 21));
is_wrong('left', 'a place that was taken', $place . $taken =~ s/ok/ok x:c#1:100/r . seen('x:c#1', 701));

# ---------------------------------------------------------------------------
# Without durability
# ---------------------------------------------------------------------------

my $taken_again = <<'EOC';
	b 300 server S2
	b 500 call acquire x b1 exclusive 1000 0 first
	b 510 done ok 101
EOC

is_right('a crash loses what was not flushed', $first . $taken_again, durable => 0);
is_wrong('exclusion', 'a crash loses no more', $first . <<'EOC' . $taken_again, durable => 0);
	w 30 call flush
	w 40 done ok
EOC
is_right('a flush that was asked for before', $first . <<'EOC' . $taken_again, durable => 0);
	w 19 call flush
	w 40 done ok
EOC
is_wrong('exclusion', 'without a crash nothing is lost', $first . <<'EOC', durable => 0);
	b 500 call acquire x b1 exclusive 1000 0 first
	b 510 done ok 101
EOC
is_wrong('token', 'tokens never come back', $first . <<'EOC', durable => 0);
	b 300 server S2
	b 500 call acquire x b1 exclusive 1000 0 first
	b 510 done ok 99
EOC
is_wrong('lost', 'a denial by the server that granted it', $first . <<'EOC', durable => 0);
	a 500 call check x a1 100
	a 510 done none
EOC
is_right('a denial of a token that the next does not know', <<'EOC', durable => 0);
	a 10 call acquire x a1 shared 1000 0 first
	a 20 done ok 100
	w 30 call flush
	w 40 done ok
	a 50 call convert x a1 100 shared exclusive 0
	a 60 done ok 101
	a 70 server S2
	a 80 call renew x a1 101 0
	a 90 done ok t
	a 100 call check x a1 101
	a 110 done none
EOC
is_right('a denial by the next', $first . <<'EOC', durable => 0);
	a 400 server S2
	a 500 call check x a1 100
	a 510 done none
EOC

done_testing();
