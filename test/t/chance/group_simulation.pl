# Proves: over 200 random events, in which members join, leave, die, come back and
# grow tired, the server crashes, and the group gets other partitions, no partition
# has two owners at any moment, as the members themselves see it; and after each
# event all is evenly spread within two heartbeats of each member, with no more
# moved than has to be.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockTest;
use List::Util qw(max min shuffle sum0);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $control = PostgreSQL::Test::Utils::tempdir . '/clock';
my %fake = fake_clock_env($control);
plan skip_all => 'no C compiler to build test/lib/fake_clock.c with'
  unless %fake;

my $seed = $ENV{DLOCK_SEED} // int(rand(2**31));
srand($seed);
note "seed $seed";

my $events = 200;
my $ttl = 50_000;
my $slack = 50;    # real time passes, too
my $db = 'postgres';
my $time = 0;    # of the server's monotonic clock, added by us
my $node = init_node('main', conf => "");

sub start
{
	local %ENV = (%ENV, %fake);
	$node->start;
	return;
}

fake_clock_set($control, boottime => $time);
start();
$node->safe_psql($db, "CREATE EXTENSION dlock; SELECT dlock_group_create('g', 97)");
my $session = DLockSession->new($node, $db);
my $count = 97;

# What members know by themselves.  A member runs what its last heartbeat said, until it
# stops and says so, or its time is up.
#   token, weight
#   runs    partition -> token
#   tired   it no longer beats
#   until   when it stops by itself
my %member;
my $born = 0;
my %highest;    # of each partition, the largest token with which it was run, and by whom
my @problems;

sub problem
{
	my ($text) = @_;
	push @problems, $text;
	return;
}

sub passes
{
	my ($seconds) = @_;

	$time += $seconds;
	fake_clock_set($control, boottime => $time);
	foreach my $name (keys %member)
	{
		delete $member{$name} if $member{$name}{until} <= $time;
	}
	return;
}

sub runs
{
	my ($name, $partition, $token) = @_;

	foreach my $other (keys %member)
	{
		problem("$name runs $partition, which $other does, too")
		  if $other ne $name && exists $member{$other}{runs}{$partition};
	}
	# A partition that left the group and came back can still be the same lease.
	my ($highest, $by) = @{ $highest{$partition} // [ 0, '' ] };
	problem("$name runs $partition with token $token, after $by with $highest")
	  if $token < $highest || $token == $highest && $by ne $name;
	$highest{$partition} = [ $token, $name ];
	$member{$name}{runs}{$partition} = $token;
	return;
}

# A heartbeat.  "at_once": what is to be given up is given up by a call, otherwise it
# is confirmed with the next heartbeat.
sub beat
{
	my ($name, $at_once) = @_;
	my $member = $member{$name};
	my $yielded = join ',', @{ $member->{stopped} // [] };
	my $until = $time + $ttl;
	my $answer = $session->query("SELECT partition, token, action FROM dlock_group_renew('g', $member->{token}, '{$yielded}')");

	if ($answer =~ /^ERROR/)
	{
		problem("$name: $answer $session->{message}");
		return delete $member{$name};
	}
	$member->{until} = $until;
	$member->{stopped} = [];
	my %listed;
	foreach my $line (split /\n/, $answer)
	{
		my ($partition, $token, $action) = split /\|/, $line;
		$listed{$partition} = 1;
		if ($action eq 'run')
		{
			runs($name, $partition, $token);
		}
		else
		{
			delete $member->{runs}{$partition};
			push @{ $member->{stopped} }, $token;
		}
	}
	foreach my $partition (keys %{ $member->{runs} })
	{
		delete $member->{runs}{$partition} unless $listed{$partition};
	}
	if ($at_once && @{ $member->{stopped} })
	{
		my $list = join ',', @{ $member->{stopped} };
		$session->query_safe("SELECT dlock_group_yield('g', $member->{token}, '{$list}')");
		$member->{stopped} = [];
	}
	return;
}

sub awake { return grep { !$member{$_}{tired} } sort keys %member }

sub comes
{
	my ($name) = @_;
	my $weight = rand() < 0.7 ? 1 : 1 + int(rand(4));

	$member{$name} = {
		token => $session->query_safe("SELECT dlock_group_join('g', '$name', '$ttl s', $weight)"),
		weight => $weight,
		runs => {},
		until => $time + $ttl,
	};
	return;
}

sub owners
{
	my %owner;
	foreach my $line (split /\n/, $session->query_safe("SELECT partition, member FROM dlock_group_partitions"))
	{
		my ($partition, $name) = split /\|/, $line;
		$owner{$partition} = $name if $name ne '';
	}
	return %owner;
}

# What has to move: what nobody has, and what is above the shares, rounded up for
# as many as may be.
sub least_moves
{
	my (%owner) = @_;
	my @names = sort keys %member;
	my $weights = sum0(map { $member{$_}{weight} } @names);
	my %owned = map { $_ => 0 } @names;
	my ($orphans, $above, $may_round) = ($count, 0, 0);
	my $left = $count;

	foreach my $name (values %owner)
	{
		next unless exists $owned{$name};
		$owned{$name}++;
		$orphans--;
	}
	foreach my $name (@names)
	{
		my $share = $count * $member{$name}{weight};
		my $floor = int($share / $weights);
		$left -= $floor;
		$above += max(0, $owned{$name} - $floor);
		$may_round++ if $owned{$name} > $floor && $share % $weights != 0;
	}
	return $orphans + $above - min($left, $may_round);
}

# An event; returns its name, and what it leaves orphaned by its nature.
sub event
{
	my $n = keys %member;
	my $dice = rand();

	if ($n < 2 || $dice < 0.30 && $n < 14)
	{
		comes('m' . ++$born) foreach 0 .. int(rand(3));
		return 'join';
	}
	my @names = shuffle sort keys %member;
	if ($dice < 0.55)
	{
		my $name = $names[0];
		my $token = delete($member{$name})->{token};
		problem("$name cannot leave") unless $session->query_safe("SELECT dlock_group_leave('g', $token)") eq 't';
		return 'leave';
	}
	if ($dice < 0.85)
	{
		# Some die; half a ttl later the others beat, and another half later those
		# are gone.  Nothing of theirs may be had before.
		my @dying = @names[ 0 .. int(rand(min(3, $n - 1))) ];
		$member{$_}{tired} = 1 foreach @dying;
		passes($ttl / 2);
		beat($_, 1) foreach shuffle awake();
		passes($ttl / 2 - $slack);
		beat($_, 1) foreach shuffle awake();
		passes($slack + 1);
		return 'die';
	}
	if ($dice < 0.90)
	{
		# It was killed, and comes back before anybody has noticed.
		delete $member{ $names[0] };
		comes($names[0]);
		return 'rejoin';
	}
	if ($dice < 0.97)
	{
		$count = 60 + int(rand(60));
		$session->query_safe("SELECT dlock_group_alter('g', $count)");
		return 'alter';
	}
	# What has ended shortly before, and is not erased yet or not on disk, comes back
	# for a while; that is not the matter here.
	wait_until(
		sub {
			my %slots = store_slots($node, $db);
			return sum0(map { $_->{count} } values %slots) == $session->query_safe('SELECT count(*) FROM dlock_leases');
		}) or die 'timed out waiting for the worker';
	flush_wal($node, $db);
	crash_node($node);
	$session->kill_client;
	start();
	$session = DLockSession->new($node, $db);
	return 'crash';
}

my %seen;
my ($moved_in_all, $least_in_all) = (0, 0);
comes('m' . ++$born) foreach 1 .. 4;
beat($_, 1) foreach shuffle awake();
foreach my $n (1 .. $events)
{
	my %before = owners();
	@problems = ();
	my $event = event();
	$seen{$event}++;

	# Time has passed in the death of some: what moved then counts, too.
	my %owner = $event eq 'die' ? %before : owners();
	my $least = least_moves(map { $_ => $owner{$_} } grep { $_ < $count } keys %owner);

	# Whoever is told stops at once and says so in between; or with its next
	# heartbeat, and then it takes others one more.
	my $at_once = rand() < 0.7;
	foreach my $round (1 .. ($at_once ? 2 : 3))
	{
		beat($_, $at_once) foreach shuffle awake();
	}

	my %after = owners();
	my $moved = grep { !defined $owner{$_} || $owner{$_} ne $after{$_} } keys %after;
	$moved_in_all += $moved;
	$least_in_all += $least;
	problem("$moved moved, but $least had to") if $moved != $least;
	problem('some are free') if keys %after != $count;
	my $weights = sum0(map { $member{$_}{weight} } keys %member);
	foreach my $name (keys %member)
	{
		my $owned = grep { $_ eq $name } values %after;
		problem("$name has $owned of $count, with weight $member{$name}{weight} of $weights")
		  if abs($owned - $count * $member{$name}{weight} / $weights) >= 1;
		problem("$name does not know what it has")
		  if join(',', sort grep { $after{$_} eq $name } keys %after) ne join(',', sort keys %{ $member{$name}{runs} });
	}
	is(join('; ', @problems), '', "event $n: $event, " . keys(%member) . ' members, ' . ($at_once ? 'two rounds' : 'three rounds'));
}
note join ', ', map { "$_: $seen{$_}" } sort keys %seen;
note "$moved_in_all moved, $least_in_all had to";

$session->quit;
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:/, 'nothing odd in the log');
done_testing();
