# Proves: what a call has waited for is as durable as what is granted at once: its
# answer is there, the server is killed with -9, and the lease is held.  No two leases
# that exclude each other are live on disk, also where a dead one is.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockQueue;
use DLockSession;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Nobody may make durable by accident what a grant has left out.
my $node = start_node('main', conf => <<'EOC');
wal_writer_delay = 10s
deadlock_timeout = 1h
EOC
my $db = 'postgres';

# What somebody holds, what waits for it, what lets it go, and the names that are
# held in the end, with the tokens of the answer.
my @cases = (
	[
		'a release', "SELECT dlock_acquire('name', 'holder', '1 h')",
		"SELECT dlock_acquire('name', 'waiter', '1 h', NULL)",
		"SELECT dlock_release('name', 'holder')", 'name'
	],
	[
		'an expiry', "SELECT dlock_acquire('name', 'holder', '1 h')",
		"SELECT dlock_acquire('name', 'waiter', '1 h', NULL)",
		"SELECT dlock_renew('name', 'holder', '500 ms')", 'name'
	],
	[
		'a release, several', "SELECT dlock_acquire('name', 'holder', '1 h')",
		"SELECT array_to_string(dlock_acquire_all('{other,name}', 'waiter', '1 h', NULL), ' ')",
		"SELECT dlock_release('name', 'holder')", 'other name'
	],
	[
		'a release, path', "SELECT dlock_acquire('name', 'holder', '1 h')",
		"SELECT dlock_acquire_path('name/below', 'waiter', '1 h', NULL)",
		"SELECT dlock_release('name', 'holder')", 'name/below'
	],
	[
		'a conversion',
		"SELECT dlock_acquire('name', 'holder', '1 h', mode => 'shared'), dlock_acquire('name', 'waiter', '1 h', mode => 'shared')",
		"SELECT dlock_convert('name', token, 'exclusive', NULL) FROM dlock_leases WHERE owner = 'waiter'",
		"SELECT dlock_release('name', 'holder')", 'name'
	]);

foreach my $case (@cases)
{
	my ($what, $hold, $wait, $let_go, $names) = @$case;
	my ($monitor, $holder, $waiter) = map { DLockSession->new($node, $db) } 1 .. 3;

	$holder->query_safe($hold);
	$waiter->ask_waiting($monitor, $wait);
	$holder->query_safe($let_go);
	my $answer = $waiter->answer;
	crash_node($node);
	$node->start;

	my @tokens = split / /, $answer;
	foreach my $name (split / /, $names)
	{
		my $token = shift @tokens;
		is($node->safe_psql($db, "SELECT dlock_check('$name', $token)"), 't', "$what: $name is held");
	}
	$node->safe_psql($db, "SELECT dlock_force_release(name, 'next') FROM dlock_leases; CHECKPOINT");
}

my $ctl = DLockSession->new($node, $db, name => 'control');
my @s = open_sessions($node, $db, 4, name => 's');

# Leases that have expired, and that the disk does not know of yet: a renewal has
# moved the bound beyond the deadline.
my @dead = qw(handoff below/b wait/b onto intent/b unit1 convert);
my %token;

know_pages(@s);
pause_worker($node);
my $converted;
{
	my $hold = sub {
		my ($owner, $name, $params) = @_;
		return $ctl->query_safe("SELECT dlock_acquire('$name', '$owner', '1 h'" . ($params // '') . ')');
	};

	foreach my $name (@dead)
	{
		my $function = $name =~ m{/} ? 'dlock_acquire_path' : 'dlock_acquire';
		my $mode = $name eq 'handoff' || $name eq 'convert' ? 'shared' : 'exclusive';
		$token{$name} = $ctl->query_safe("SELECT $function('$name', 'dead', '1 h', mode => '$mode')");
	}
	$hold->('live', 'handoff', ", mode => 'shared'");
	$hold->('live', 'intent', ", mode => 'CR'");
	$hold->('live', 'unit2');
	$converted = $hold->('next', 'convert', ", mode => 'shared'");
	enqueue($ctl, $s[0], "SELECT dlock_acquire('handoff', 'next', '1 h', NULL)");
	enqueue($ctl, $s[1], "SELECT dlock_acquire('wait', 'next', '1 h', NULL)");
	enqueue($ctl, $s[2], "SELECT dlock_acquire('intent', 'next', '1 h', NULL)");
	enqueue($ctl, $s[3], "SELECT dlock_acquire_all('{unit1, unit2}', 'next', '1 h', NULL)");

	my $renewed = mono_now();
	is($ctl->query_safe("SELECT dlock_renew_all('dead', '3 s'), dlock_renew_all('dead')"), @dead . '|' . @dead, 'renewed');
	my %slots = store_slots($node, $db);
	is($slots{handoff}{count}, 2, 'on disk') if mono_now() < $renewed + 3;
	ok( wait_until(
			sub {
				$ctl->query_safe('SELECT bool_or(dlock_check(name, token)) FROM (VALUES '
					  . join(', ', map { "('$_', $token{$_})" } @dead)
					  . ') v (name, token)') eq 'f';
			}), 'expired');

	$ctl->query_safe("SELECT dlock_release('$_', 'live')") foreach qw(handoff intent unit2);
	isnt($ctl->query_safe("SELECT dlock_acquire('below', 'next', '1 h')"), '', 'acquired above a dead path');
	isnt($ctl->query_safe("SELECT dlock_acquire_path('onto/b', 'next', '1 h')"), '', 'a path below a dead lease');
	isnt($ctl->query_safe("SELECT dlock_convert('convert', $converted, 'exclusive')"), '', 'converted beside a dead lease');
	isnt($s[$_]->result->{out}, '', "granted, $_") foreach 0 .. 3;

	# As it is on disk, whether or not a crash would come in time.
	%slots = eval { store_slots($node, $db) };
	is($@, '', 'the store');
	is( join(', ', map { "$_ $slots{$_}{owner} $slots{$_}{count}" } sort keys %slots),
		'below next 1, convert next 1, handoff next 1, intent next 1, onto/b next 1, unit1 next 1, unit2 next 1, wait next 1',
		'on disk is what is held');
}

$_->quit foreach $ctl, @s;
crash_node($node);
$node->start;
is( $node->safe_psql($db, "SELECT string_agg(name || ' ' || owner || ' ' || mode, ', ' ORDER BY name) FROM dlock_leases"),
	'below next exclusive, convert next exclusive, handoff next exclusive, intent next exclusive, onto next CW, onto/b next exclusive, unit1 next exclusive, unit2 next exclusive, wait next exclusive',
	'after a crash: what was held');
is($node->safe_psql($db, "SELECT dlock_check('$_', $token{$_})"), 'f', "after a crash: $_ is dead") foreach @dead;

$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|invalid page|signal 11/, 'nothing odd in the log');
done_testing();
