# Fault points (src/base/fault.h): a server with the library that has them, stopping its
# processes there, and having calls fail.

package DLockFault;

use strict;
use warnings FATAL => 'all';

use Carp;
use Cwd qw(abs_path);
use DLockSession;
use DLockTest;
use Exporter 'import';
use File::Basename qw(dirname);
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(start_fault_node define_faults stop_at is_at go go_all fail_at faults_hit counts cost cost_is
  sound still_worker);

my $top = abs_path(dirname(__FILE__) . '/../..');
my $library;

# Start a server with the library that has fault points, and the extension and the
# functions that control them in database postgres.  Without the library, which test/run
# compiles and an installation has not, the test is skipped.
sub start_fault_node
{
	my ($name, %params) = @_;
	plan skip_all => 'only test/run compiles the library with fault points' if ($ENV{DLOCK_FAULTS} // 'no') eq 'no';
	$params{conf} = "dlock_test.worker = on\n" . ($params{conf} // '');
	my $node = init_node($name, %params);

	$node->{dlock_faults} = 1;
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION dlock');
	define_faults($node, 'postgres');
	return $node;
}

# Have the server do without its worker from now on, which would erase what expires.
sub still_worker
{
	my ($node) = @_;

	pause_worker($node);
	return;
}

# Have the functions in a database.
sub define_faults
{
	my ($node, $dbname) = @_;

	if (!defined $library)
	{
		$library = PostgreSQL::Test::Utils::tempdir() . '/faults.so';
		chomp(my $include = `$ENV{PG_CONFIG} --includedir-server`);
		system('cc', '-O1', '-Wall', '-fPIC', '-shared', '-DDLOCK_FAULTS', "-I$top/src", "-I$include",
			'-o', $library, "$top/test/modules/faults.c") == 0
		  or croak 'the module cannot be compiled';
	}
	$node->safe_psql($dbname, <<"EOC");
CREATE FUNCTION fault_arm(text, text, int, int) RETURNS void LANGUAGE c STRICT AS '$library';
CREATE FUNCTION fault_go(text) RETURNS bool LANGUAGE c STRICT AS '$library';
CREATE FUNCTION fault_hit(text) RETURNS int LANGUAGE c STRICT AS '$library';
CREATE FUNCTION clock_advance(bigint) RETURNS void LANGUAGE c STRICT AS '$library';
CREATE FUNCTION clock_settle() RETURNS void LANGUAGE c STRICT AS '$library';
CREATE FUNCTION fault_counts(int) RETURNS text LANGUAGE c STRICT AS '$library';
CREATE FUNCTION inconsistencies(int) RETURNS text LANGUAGE c STRICT AS '$library';
EOC
	return;
}

my %armed;

# Have a session, or a process by its id, or any (0), stop when it passes a point, at the
# nth time.
sub stop_at
{
	my ($control, $session, $point, $nth) = @_;
	my $pid = ref $session ? $session->pid : $session;

	$control->query_safe(sprintf "SELECT fault_arm('%s', 'stop', %d, %d)", $point, $pid, $nth // 1);
	$armed{$point} = 1;
	return;
}

# Have it fail instead.
sub fail_at
{
	my ($control, $session, $point, $nth) = @_;
	my $pid = ref $session ? $session->pid : $session;

	$control->query_safe(sprintf "SELECT fault_arm('%s', 'error', %d, %d)", $point, $pid, $nth // 1);
	$armed{$point} = 1;
	return;
}

# The process that a point has happened to, or 0.
sub faults_hit
{
	my ($control, $point) = @_;

	return $control->query_safe("SELECT fault_hit('$point')");
}

# Wait until a process is stopped at a point; returns its id.
sub is_at
{
	my ($control, $point) = @_;
	my $pid;

	wait_until(sub { ($pid = faults_hit($control, $point)) != 0 }) or croak "nobody passes $point";
	return $pid;
}

# Disarm a point: the process that is stopped there goes on.
sub go
{
	my ($control, $point) = @_;

	$control->query_safe("SELECT fault_go('$point')");
	delete $armed{$point};
	return;
}

# A server does not stop while one of its processes does not go on.
sub go_all
{
	my ($control) = @_;

	go($control, $_) foreach keys %armed;
	return;
}

# What a session, or a process by its id, or all (0) have visited and done up to now, by
# name: entries, leases, requests, places, records, flushes, wakes, naps, woken.
sub counts
{
	my ($control, $session) = @_;
	my $pid = ref $session ? $session->pid : $session;

	return split ' ', $control->query_safe("SELECT fault_counts($pid)");
}

# What a statement of a session costs, by the same names, those that are not zero.
sub cost
{
	my ($control, $session, $sql) = @_;
	my %before = counts($control, $session);
	$session->query_safe($sql);
	my %after = counts($control, $session);

	return map { $_ => $after{$_} - $before{$_} } grep { $after{$_} != $before{$_} } keys %after;
}

# A statement costs exactly this, as far as it is named; what is not named is not compared.
sub cost_is
{
	my ($control, $session, $sql, $expected, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my %cost = cost($control, $session, $sql);

	my @names = sort keys %$expected;

	return is(join(', ', map { "$_ " . ($cost{$_} // 0) } @names), join(', ', map { "$_ $expected->{$_}" } @names), $test_name);
}

# What is known of leases, waiters, counts and cells fits together, and with the pages.
# Backends may have a cell each for themselves.
sub sound
{
	my ($control, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return is($control->query_safe('SELECT inconsistencies((SELECT count(*)::int FROM pg_stat_activity))'),
		'', "$test_name: nothing is half made");
}

1;
