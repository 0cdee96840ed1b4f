# Proves: a holder that is stopped past its lease, be it its client or its backend,
# does not write after its successor has, however it presents its token; one that
# is stopped amidst its transaction is waited for; in live mode it does not commit.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockFault;
use DLockFence;
use DLockSession;
use DLockTest;
use Test::More;

my $node = start_fault_node('main');
my $db = 'postgres';
my $control = DLockSession->new($node, $db, name => 'control');

# One table for each way and mode.  "write" is what a holder sends, TOKEN being
# its token, and "setup" what its session starts with.  Each holder has a row of its
# own, so that nothing but the fence makes it wait.
my %ways = (
	'column' => {
		options => q('RESOURCE', 'token_column=token'),
		each => 'FOR EACH ROW',
		write => q(UPDATE TABLE SET body = body || 'BODY', token = TOKEN WHERE id = 'ROW'),
	},
	'column of a resource by row' => {
		options => q('resource_column=tenant', 'token_column=token'),
		each => 'FOR EACH ROW',
		write => q(UPDATE TABLE SET body = body || 'BODY', token = TOKEN WHERE id = 'ROW'),
	},
	'PGOPTIONS' => {
		options => q('RESOURCE'),
		each => '',
		pgoptions => q(-c dlock.tokens=RESOURCE=TOKEN),
		write => q(UPDATE TABLE SET body = body || 'BODY' WHERE id = 'ROW'),
	},
	'SET' => {
		options => q('RESOURCE'),
		each => 'FOR EACH ROW',
		setup => q(SET dlock.tokens = 'RESOURCE=TOKEN'),
		write => q(UPDATE TABLE SET body = body || 'BODY' WHERE id = 'ROW'),
	},
	'SET LOCAL' => {
		options => q('RESOURCE'),
		each => '',
		begin => q(SET LOCAL dlock.tokens = 'RESOURCE=TOKEN'),
		write => q(UPDATE TABLE SET body = body || 'BODY' WHERE id = 'ROW'),
	},
	'function' => {
		options => q('RESOURCE'),
		each => '',
		begin => q(SELECT dlock_fence('RESOURCE', TOKEN, LIVE)),
		write => q(UPDATE TABLE SET body = body || 'BODY' WHERE id = 'ROW'),
	},
	'function, no table' => {
		begin => q(SELECT dlock_fence('RESOURCE', TOKEN, LIVE)),
		write => q(UPDATE TABLE SET body = body || 'BODY' WHERE id = 'ROW'),
	},
	# The row is its own mark, which knows no leases.
	'row' => {
		modes => ['fence'],
		options => q('token_column=token'),
		each => 'FOR EACH ROW',
		write => q(UPDATE TABLE SET body = body || 'BODY', token = TOKEN WHERE id = 'ROW'),
	});

# A holder: its own process and connection, its token, and what it would send.
sub open_holder
{
	my ($case, $name) = @_;
	my $token = $control->query_safe(
		"SELECT dlock_acquire('$case->{resource}', '$name', '1 h', wait => '1 min')");
	my $fill = sub {
		my ($text) = @_;
		my %value = (
			RESOURCE => $case->{resource},
			TOKEN => $token,
			TABLE => $case->{table},
			LIVE => $case->{mode} eq 'live' ? 'true' : 'false',
			BODY => $name,
			ROW => $case->{way} eq 'row' ? 'a' : $name);

		$text =~ s/\b([A-Z]+)\b/$value{$1} \/\/ $1/ge;
		return $text;
	};
	local $ENV{PGOPTIONS} = $fill->($case->{pgoptions} // '');
	my $session = DLockSession->new($node, $db, name => $name, setup => $fill->($case->{setup} // ''));

	$session->{token} = $token;
	$session->{write} = $fill->($case->{write});
	$session->{begin} = 'BEGIN; ' . $fill->($case->{begin} // '');
	$session->{transaction} = "$session->{begin}; $session->{write}; COMMIT";
	return $session;
}

sub body
{
	my ($case) = @_;
	return $control->query_safe("SELECT string_agg(body, '' ORDER BY id) FROM $case->{table}");
}

# An error leaves the transaction open.
sub reset_session
{
	my ($session) = @_;
	$session->query_safe('ROLLBACK');
	return;
}

# Between two transactions: the first writer has written before, is stopped, and
# what it sends next comes too late.
sub stopped_between
{
	my ($case, $which) = @_;
	my $label = "$case->{label}, $which stopped between transactions";
	my $a = open_holder($case, 'a');

	outcome_is($a, $a->{transaction}, '', "$label: writes");
	stop_process($a->{$which});
	$a->ask($a->{transaction});
	advance(3600, $control);
	my $b = open_holder($case, 'b');
	if ($case->{mode} eq 'live')
	{
		# Nobody has passed the fence since, but the lease is over.
		continue_process($a->{$which});
		came_to_is($a, 'LK002', "$label: refused before anybody has taken over");
		reset_session($a);
		stop_process($a->{$which});
		$a->ask($a->{transaction});
	}
	outcome_is($b, $b->{transaction}, '', "$label: its successor writes");
	ok(!$a->answered, "$label: and has not answered");
	continue_process($a->{$which});
	came_to_is($a, 'LK001', "$label: refused");
	reset_session($a);
	outcome_is($b, $b->{transaction}, '', "$label: its successor goes on");
	is(body($case), 'abb', "$label: what is written");
	$control->query_safe("SELECT dlock_release_token('$case->{resource}', $b->{token})");
	$_->quit foreach $a, $b;
	return;
}

# Amidst a transaction, after its first write: the successor waits at the fence
# for the transaction, or for the end of its process.
sub stopped_within
{
	my ($case, $which, $end) = @_;
	my $label = "$case->{label}, $which stopped within a transaction, then $end";
	my $a = open_holder($case, 'a');

	outcome_is($a, "$a->{begin}; $a->{write}", '', "$label: writes");
	stop_process($a->{$which});
	advance(3600, $control);
	my $b = open_holder($case, 'b');

	# With the row alone as its mark, it is the row that is waited for.
	if ($case->{way} eq 'row')
	{
		$b->ask($b->{transaction});
		ok(wait_blocked($control, $b), "$label: the successor waits");
	}
	else
	{
		waits_for($control, $b, $b->{transaction}, [$a], "$label: the successor waits");
	}
	is(body($case), '', "$label: nothing has been written");
	if ($end eq 'continued')
	{
		my $live = $case->{mode} eq 'live';

		continue_process($a->{$which});
		outcome_is($a, 'COMMIT', $live ? 'LK002' : '', "$label: commits only by the high-water mark");
		came_to_is($b, '', "$label: then the successor writes");
		is(body($case), $live ? 'b' : 'ab', "$label: what is written");
		outcome_is($a, $a->{transaction}, 'LK001', "$label: no more");
		reset_session($a);
	}
	else
	{
		$a->kill_client;
		came_to_is($b, '', "$label: then the successor writes");
		is(body($case), 'b', "$label: what is written");
	}
	$control->query_safe("SELECT dlock_release_token('$case->{resource}', $b->{token})");
	$_->quit foreach $a, $b;
	return;
}

my $number = 0;
foreach my $way (sort keys %ways)
{
	foreach my $mode (@{ $ways{$way}{modes} // [ 'fence', 'live' ] })
	{
		my $table = 'pause_' . ++$number;
		my $options = $ways{$way}{options};
		my %case = (
			%{ $ways{$way} },
			way => $way,
			mode => $mode,
			table => $table,
			label => "$way, $mode");

		$control->query_safe("CREATE TABLE $table (tenant text, id text, body text, token bigint)");
		foreach my $variant (
			[ \&stopped_between, 'psql' ],
			[ \&stopped_between, 'pid' ],
			[ \&stopped_within, 'psql', 'continued' ],
			[ \&stopped_within, 'pid', 'continued' ],
			[ \&stopped_within, 'psql', 'killed' ])
		{
			my ($test, @args) = @$variant;

			$case{resource} = "$table-" . ++$number;
			$control->query_safe(
				"DROP TRIGGER IF EXISTS guard ON $table; TRUNCATE $table; INSERT INTO $table VALUES ('$case{resource}', 'a', ''), ('$case{resource}', 'b', '')"
			);
			if (defined $options)
			{
				(my $arguments = $options) =~ s/RESOURCE/$case{resource}/;
				$arguments .= ", 'mode=$mode'" if $way ne 'row';
				$control->query_safe(
					"CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON $table $case{each} EXECUTE FUNCTION dlock_guard($arguments)"
				);
			}
			$test->(\%case, @args);
		}
	}
}

# The story as it is told, with nothing but time: the lease runs out by itself
# while its holder is stopped, and another one waits for it.
{
	$control->query_safe(<<'EOC');
CREATE TABLE story (body text);
INSERT INTO story VALUES ('');
CREATE TRIGGER guard BEFORE UPDATE ON story EXECUTE FUNCTION dlock_guard('story');
EOC
	my ($a, $b) = open_sessions($node, $db, 2, name => 'worker');
	my $write = "UPDATE story SET body = body || ";
	my $token = $a->query_safe("SELECT dlock_acquire('story', 'a', '10 min')");

	$a->query_safe("SET dlock.tokens = 'story=$token'");
	$a->query_safe("$write 'a'");
	stop_process($a->{psql});
	$a->ask("$write 'late'");
	$b->ask_waiting($control, "SELECT dlock_acquire('story', 'b', '1 h', wait => '1 h')");
	my $next = granted_at($control, $b, 600, 'time passes');
	cmp_ok($next, '>', $token, 'time passes: taken over');
	$b->query_safe("SET dlock.tokens = 'story=$next'");
	$b->query_safe("$write 'b'");
	continue_process($a->{psql});
	my $answer = $a->result;
	is($answer->{state}, 'LK001', 'time passes: refused');
	like($answer->{message}, qr/\b$token\b.*"story"/, 'and it says which token for what');
	like($answer->{detail}, qr/\b$next\b/, 'and which one has passed since');
	isnt($answer->{hint} // '', '', 'and what to do');
	is($control->query_safe('SELECT body FROM story'), 'ab', 'time passes: what is written');
	$_->quit foreach $a, $b;
}

$control->quit;
$node->stop;
done_testing();
