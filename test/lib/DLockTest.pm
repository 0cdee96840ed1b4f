# What the TAP tests of dlock have in common: servers that preload the library
# from a staged installation, crashes, the wall clock of a server, and looking
# at the pages of the lease store.

package DLockTest;

use strict;
use warnings FATAL => 'all';

use Carp;
use Config;
use Cwd qw(abs_path);
use Exporter 'import';
use List::Util qw(max min);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(clock_gettime usleep CLOCK_MONOTONIC);

our @EXPORT = qw(
  init_node start_node preload_conf path_conf is_staged
  crash_node kill_server_process wait_for_reinit child_pids wait_gone process_stat sleeps processor_ticks
  pause_worker resume_worker worker_pid stop_asleep
  sqlstate_is error_fields log_is_clean timed_query mono_now wait_until
  flush_wal
  seed_random
  remaining_is_exact
  store_slots slots_of_file
);

# PostgreSQL's modules wait for the answer to a statement without end: a test that hangs ends
# itself, ten minutes after the time that it was given.
$SIG{ALRM} = sub { confess 'the test hangs' };
alarm 600 + 3 * max(map { $ENV{$_} || 0 } qw(DLOCK_PROOF_SECONDS DLOCK_STRESS_SECONDS));

# What the test has used of the processor, for DLockTotals; not what its children have.
my $test_pid = $$;

END
{
	if ($$ == $test_pid && defined $ENV{TESTLOGDIR})
	{
		my $status = $?;
		my ($name) = $0 =~ m{([^/]+)\.pl$};

		if (defined $name && open my $out, '>', "$ENV{TESTLOGDIR}/cpu_$name")
		{
			my $cpu = 0;

			$cpu += $_ foreach times;
			printf $out "%.1f\n", $cpu;
			close $out;
		}
		$? = $status;
	}
}

# ---------------------------------------------------------------------------
# Servers
# ---------------------------------------------------------------------------

# Settings that lead a server to a staged installation; nothing if dlock is
# installed where the server looks by itself.
sub path_conf
{
	return '' unless defined $ENV{DLOCK_PATH_CONFIG};
	return slurp_file($ENV{DLOCK_PATH_CONFIG});
}

# Is the library only to be found with path_conf()?
sub is_staged
{
	return defined $ENV{DLOCK_PATH_CONFIG};
}

sub preload_conf
{
	my ($path) = @_;
	return ($path // path_conf()) . "shared_preload_libraries = 'dlock'\n";
}

# Make a cluster that preloads dlock, without starting it.  Options: those of
# $node->init, and
#   conf     lines for postgresql.conf
#   preload  0: do not preload the library
#   path     settings instead of path_conf()
#   node     options of PostgreSQL::Test::Cluster->new
sub init_node
{
	my ($name, %params) = @_;
	my $conf = delete $params{conf} // '';
	my $preload = delete $params{preload} // 1;
	my $path = delete $params{path};
	my $new = delete $params{node} // [];
	my $node = PostgreSQL::Test::Cluster->new($name, @$new);

	{
		# It would preload the library, which not every test wants.
		local %ENV = %ENV;
		delete $ENV{TEMP_CONFIG};

		# The template is of the server that is tested.
		delete $ENV{INITDB_TEMPLATE} if @$new;
		$node->init(%params);
	}
	$node->append_conf('postgresql.conf',
		$preload ? preload_conf($path) : $path // path_conf());

	# Work that the server does by itself must not blur what is measured, and a machine
	# that stands still for a minute must not end connections.
	$node->append_conf('postgresql.conf', <<"EOC");
autovacuum = off
checkpoint_timeout = 1h
max_wal_size = 4GB
authentication_timeout = 10min
wal_sender_timeout = 0
wal_receiver_timeout = 0
log_statement = none
log_min_messages = warning
$conf
EOC
	return $node;
}

# The same, started, with the extension in database postgres.
sub start_node
{
	my ($name, %params) = @_;
	my $node = init_node($name, %params);

	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION dlock');
	return $node;
}

# State and parent of a process; nothing if there is no such process.
sub process_stat
{
	my ($pid) = @_;

	open my $fh, '<', "/proc/$pid/stat" or return;
	my $line = <$fh>;
	close $fh;
	return unless defined $line && $line =~ /^\d+ \(.*\) (\S) (\d+) /s;
	return ($1, $2);
}

# How often a process has gone to sleep.
sub sleeps
{
	my ($pid) = @_;
	my ($count) = slurp_file("/proc/$pid/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m;

	return $count;
}

# What processes have used of the processors, in hundredths of a second.
sub processor_ticks
{
	my $ticks = 0;

	foreach my $pid (@_)
	{
		my @field = split ' ', slurp_file("/proc/$pid/stat") =~ s/^.*\) //sr;

		$ticks += $field[11] + $field[12];
	}
	return $ticks;
}

# Process ids of the direct children of a process.
sub child_pids
{
	my ($parent) = @_;
	my @pids;

	foreach my $pid (map { m{(\d+)$} } glob '/proc/[0-9]*')
	{
		my (undef, $of) = process_stat($pid);
		push @pids, $pid if defined $of && $of == $parent;
	}
	return @pids;
}

# Wait until none of these processes runs any more.
sub wait_gone
{
	my @pids = @_;

	wait_until(
		sub {
			!grep { my ($state) = process_stat($_); defined $state && $state ne 'Z' }
			  @pids;
		}) or croak 'timed out waiting for processes to end';
	return;
}

# Process ids of a server, whether its postmaster is there or not: all that work in its
# data directory.
sub _pids_of_node
{
	my ($node) = @_;
	my $data_dir = abs_path($node->data_dir);

	return grep { (readlink("/proc/$_/cwd") // '') eq $data_dir } map { m{(\d+)$} } glob '/proc/[0-9]*';
}

# Kill the server so that nothing of it runs on.  With "orphans" only the
# postmaster is killed, and its children go on until they notice.
sub crash_node
{
	my ($node, %params) = @_;
	my $postmaster = slurp_file($node->data_dir . '/postmaster.pid');
	my @children;

	$postmaster =~ s/\n.*//s;
	if ($params{orphans})
	{
		# Those that are forked until it is killed are its children, too.
		$node->kill9;
		wait_gone($postmaster);
		@children = _pids_of_node($node);
	}
	else
	{
		# A stopped postmaster neither reaps nor replaces its children.  It has stopped
		# when its state says so, not when the signal is sent: until then it may be in the
		# middle of a fork, and a child that is missed here keeps the next server from its
		# shared memory.
		kill 'STOP', $postmaster;
		wait_until(sub { (process_stat($postmaster))[0] eq 'T' }) or croak 'the postmaster does not stop';
		@children = child_pids($postmaster);
		kill 'KILL', @children;
		wait_gone(@children);
		$node->kill9;
	}
	wait_gone($postmaster, @children);

	# The lock files of a killed postmaster name a process id that nobody may
	# have collected yet, or that is in use again.
	unlink $node->data_dir . '/postmaster.pid',
	  $node->host . '/.s.PGSQL.' . $node->port . '.lock';
	return;
}

# Kill a process of a server that runs on: it ends all others and begins anew.  Wait
# until it has.  What it answers before it notices is of the past, and a client that
# it refuses meanwhile may break a test, so its log tells.
sub kill_server_process
{
	my ($node, $pid) = @_;
	my $from = -s $node->logfile;

	kill 'KILL', $pid or croak "process $pid: $!";
	wait_for_reinit($node, $from);
	return;
}

# The log had this size before.
sub wait_for_reinit
{
	my ($node, $from) = @_;

	wait_until(
		sub { slurp_file($node->logfile, $from) =~ /reinitializing.*database system is ready to accept connections/s })
	  or croak 'timed out waiting for the server to begin anew; its log since: ' . slurp_file($node->logfile, $from);
	return;
}

# See to it that all that was done up to now survives a crash.  A release is not
# flushed by itself.
sub flush_wal
{
	my ($node, $dbname) = @_;

	$node->safe_psql($dbname,
		"SELECT pg_logical_emit_message(true, 'flush', '')");
	return;
}

# ---------------------------------------------------------------------------
# Background workers
# ---------------------------------------------------------------------------

# Do without the worker from now on; until the server stops, unless it has fault points.
sub pause_worker
{
	my ($node) = @_;

	if (!$node->{dlock_faults})
	{
		stop_asleep($node, worker_pid($node));
		return;
	}
	$node->safe_psql('postgres', 'ALTER SYSTEM SET dlock_test.worker = off');
	$node->reload;
	$node->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'dlock worker' AND state = 'disabled'")
	  or croak 'timed out waiting for the worker to be off';
	return;
}

# And have it again.
sub resume_worker
{
	my ($node) = @_;

	if (!$node->{dlock_faults})
	{
		kill 'CONT', worker_pid($node);
		return;
	}
	$node->safe_psql('postgres', 'ALTER SYSTEM SET dlock_test.worker = on');
	$node->reload;
	$node->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'dlock worker' AND state <> 'disabled'")
	  or croak 'timed out waiting for the worker to be on';
	return;
}

# Process id of the worker, which may only be starting, and is waited for.
sub worker_pid
{
	my ($node) = @_;
	my $pid;

	wait_until(sub { $pid = $node->safe_psql('postgres', "SELECT pid FROM pg_stat_activity WHERE backend_type = 'dlock worker'") })
	  or croak 'timed out waiting for the worker';
	return $pid;
}

# Stop background workers in their sleep.  One that is stopped at work may hold
# what everybody else would wait for until it goes on.
sub stop_asleep
{
	my ($node, @pids) = @_;

	foreach my $pid (@pids)
	{
		my $asleep = sub {
			$node->safe_psql('postgres',
				"SELECT wait_event_type FROM pg_stat_activity WHERE pid = $pid")
			  eq 'Extension';
		};

		wait_until(
			sub {
				return 0 unless $asleep->();
				kill 'STOP', $pid or croak "process $pid: $!";
				wait_until(sub { ((process_stat($pid))[0] // '') eq 'T' })
				  or croak "process $pid does not stop";
				return 1 if $asleep->();
				kill 'CONT', $pid;
				return 0;
			}) or croak "process $pid does not sleep";
	}
	return;
}

# ---------------------------------------------------------------------------
# Errors
# ---------------------------------------------------------------------------

# Run SQL that must fail; returns SQLSTATE, message, detail and hint.
sub error_fields
{
	my ($node, $dbname, $sql) = @_;
	my ($ret, $stdout, $stderr) = $node->psql($dbname, $sql,
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	my %field = (stderr => $stderr);

	($field{sqlstate}, $field{message}) =
	  $stderr =~ /(?:ERROR|FATAL):  ([0-9A-Z]{5}): (.*)/;
	($field{detail}) = $stderr =~ /DETAIL:  (.*)/;
	($field{hint}) = $stderr =~ /HINT:  (.*)/;
	$field{sqlstate} //= "none, output was '$stdout'";
	return %field;
}

sub sqlstate_is
{
	my ($node, $dbname, $sql, $sqlstate, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my %error = error_fields($node, $dbname, $sql);

	is($error{sqlstate}, $sqlstate, $test_name)
	  or diag("$sql\n$error{stderr}");
	return %error;
}

# Test that nothing odd is in the log.  Whoever looks at leases leaves out what a process
# that did not get to run keeps locked, and has to warn of it.
sub log_is_clean
{
	my ($node) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return unlike(
		slurp_file($node->logfile),
		qr/PANIC|TRAP:|WARNING(?!:  \d+ of \d+ parts of the memory of leases were left out\n)/,
		'nothing odd in the log');
}

# ---------------------------------------------------------------------------
# Time
# ---------------------------------------------------------------------------

# The monotonic clock, which no test moves.  The server's leases run on one
# of the same pace.
sub mono_now
{
	return clock_gettime(CLOCK_MONOTONIC);
}

# Call until true; false after a timeout (seconds).  A machine that stands still
# between two calls uses up a second of it.
sub wait_until
{
	my ($condition, $timeout) = @_;
	my $left = $timeout // $PostgreSQL::Test::Utils::timeout_default;
	my $last = mono_now();

	while (!$condition->())
	{
		return 0 if $left < 0;
		usleep(10_000);
		my $now = mono_now();
		$left -= min($now - $last, 1);
		$last = $now;
	}
	return 1;
}

# Run a query in a background session; returns its answer and when it was
# sent and answered.
sub timed_query
{
	my ($session, $sql) = @_;
	my $sent = mono_now();
	my $answer = $session->query_safe($sql);

	return ($answer, $sent, mono_now());
}

# A lease of $ttl seconds was granted (or renewed) somewhere in [$from, $to];
# test that the view shows what must be left of it now, to $slack seconds.
sub remaining_is_exact
{
	my ($session, $name, $ttl, $from, $to, $test_name, $slack) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($left, $sent, $answered) = timed_query($session,
		"SELECT extract(epoch FROM remaining) FROM dlock_leases WHERE name = '$name'"
	);

	$slack //= 0;
	$left = -1 if $left eq '';
	cmp_ok($left, '>=', $from + $ttl - $answered - $slack - 0.000002,
		"$test_name: not shortened");
	cmp_ok($left, '<=', $to + $ttl - $sent + $slack + 0.000002,
		"$test_name: not stretched");
	return;
}

# ---------------------------------------------------------------------------
# Numbers
# ---------------------------------------------------------------------------

# Seed rand() by DLOCK_SEED or by chance, and say how to have it again.
sub seed_random
{
	my $seed = $ENV{DLOCK_SEED} // int rand 2**31;

	srand $seed;
	diag "DLOCK_SEED=$seed";
	return $seed;
}

# ---------------------------------------------------------------------------
# The lease store
# ---------------------------------------------------------------------------

# The leases that stand in the relation file, whether expired or not, as a
# hash from name to a hash of what the slot says; of several on a name one is
# returned, with how many there are.  The layout is that of src/store/page.c.
# Slots whose page was not written since the database was copied are included.
sub store_slots
{
	my ($node, $dbname) = @_;

	$node->safe_psql($dbname, 'CHECKPOINT');
	return slots_of_file($node->data_dir . '/'
	  . $node->safe_psql($dbname,
		"SELECT pg_relation_filepath('_dlock.store')"));
}

# The same for a file, which is read as it is.
sub slots_of_file
{
	my ($path) = @_;
	my @slot_size = (144, 640, 2016);
	my $exclusive = 5;
	my %found;
	my $file = slurp_binary($path);
	for (my $block = 1; $block * 8192 < length $file; $block++)
	{
		my $page = substr $file, $block * 8192, 8192;
		my $lower = unpack 'S', substr $page, 12, 2;
		my ($magic, $version, $class) = unpack 'L S S', substr $page, 24, 8;

		next if $magic == 0;
		$magic == 0x444C5331 or croak "block $block is no page of slots";
		for (my $at = 64; $at + $slot_size[$class] <= 8192; $at += $slot_size[$class])
		{
			last if $at >= $lower;
			my ($token, undef, $ttl) = unpack 'q q q', substr $page, $at, 24;
			next if $token == 0;
			my ($name_len, $owner_len, $mode, $bind, $part) =
			  unpack 'C C C C C', substr $page, $at + 70, 5;
			my $name = substr $page, $at + 76, $name_len;
			my $other = $found{$name};
			croak "two slots for $name"
			  if defined $other
			  && ($other->{token} == $token
				|| $mode == $exclusive && $other->{mode} == $exclusive);
			$found{$name} = {
				token => $token,
				ttl => $ttl,
				owner => substr($page, $at + 76 + $name_len, $owner_len),
				mode => $mode,
				bind => $bind,
				part => $part,
				block => $block,
				class => $class,
				count => 1 + (defined $other ? $other->{count} : 0),
			};
		}
	}
	return %found;
}

sub slurp_binary
{
	my ($path) = @_;

	open my $fh, '<:raw', $path or croak "$path: $!";
	local $/;
	my $content = <$fh>;
	close $fh;
	return $content;
}

1;
