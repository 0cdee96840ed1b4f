# A mixed load for a long time: the sessions that make it, series of samples, and
# whether these are flat.

package DLockSoak;

use strict;
use warnings FATAL => 'all';

use IO::Handle;
use List::Util qw(max shuffle sum0);
use POSIX ();
use Time::HiRes qw(usleep);

# ---------------------------------------------------------------------------
# Is a series flat?
# ---------------------------------------------------------------------------

# The part of a series that is not judged: what is used for the first time takes room once.
my $warm_up = 0.25;

# With fewer samples than this after that, nothing is known.
my $enough = 8;

sub median
{
	my @sorted = sort { $a <=> $b } @_;

	return @sorted % 2 ? $sorted[ @sorted / 2 ] : ($sorted[ @sorted / 2 - 1 ] + $sorted[ @sorted / 2 ]) / 2;
}

# Judge the samples of one thing, [ X, Y ] in ascending order of X.  Growth is the larger of
# two: the median slope between two samples (Theil and Sen) over the whole range, which
# single peaks do not change, and the median of the last quarter above that of the
# first, which sees a step.  The warm-up lasts at least up to X = "rest".  Returns undef if
# there are too few samples.
sub judge_series
{
	my ($samples, $bound, $rest) = @_;
	return if !@$samples;
	my ($from, $to) = ($samples->[0][0], $samples->[-1][0]);
	my $begin = max($from + $warm_up * ($to - $from), $rest // 0);
	my @judged = grep { $_->[0] >= $begin } @$samples;
	my @slopes;

	return if @judged < $enough;
	foreach my $i (0 .. $#judged)
	{
		push @slopes, map { ($_->[1] - $judged[$i][1]) / ($_->[0] - $judged[$i][0]) }
		  grep { $_->[0] > $judged[$i][0] } @judged[ $i + 1 .. $#judged ];
	}
	return if !@slopes;
	my $range = $judged[-1][0] - $judged[0][0];
	my $quarter = max(1, int(@judged / 4));
	my $first = median(map { $_->[1] } @judged[ 0 .. $quarter - 1 ]);
	my $last = median(map { $_->[1] } @judged[ -$quarter .. -1 ]);
	my $growth = max(median(@slopes) * $range, $last - $first);

	return {
		samples => scalar @judged,
		range => $range,
		first => $first,
		last => $last,
		growth => $growth,
		bound => $bound,
		flat => $growth <= $bound,
	};
}

# Judge a measure.  Of one that belongs to processes there is a series for each, and the
# worst counts; those that ended too soon are left out.  Sessions, which have a warm-up in
# rounds ("rest"), all do the same: what leaks grows in each of them, and what one of
# them uses for the first time does not, so the middle one counts.  The growth of the longest
# one is told, too.
sub judge
{
	my ($series, $bound, $rest) = @_;
	my @verdicts = grep { defined } map { judge_series($_, $bound, $rest) } values %$series;
	my @sorted = sort { $b->{growth} <=> $a->{growth} || $b->{range} <=> $a->{range} } @verdicts;

	return { flat => 0, series => 0, bound => $bound } if !@sorted;
	my $worst = $sorted[ defined $rest ? int($#sorted / 2) : 0 ];
	my ($longest) = sort { $b->{range} <=> $a->{range} } @verdicts;
	return { %$worst, series => scalar @verdicts, longest => $longest };
}

# Lines for people: a row for each measure, [ name, unit of X, verdict ].  The last columns are
# of the longest series, the others of the worst.
sub table
{
	my (@rows) = @_;
	my @lines = sprintf '%-44s %6s %13s %10s %10s %8s %8s %13s %8s', 'measure', 'series', 'over', 'first', 'last', 'growth', 'bound', 'longest', 'growth';

	foreach my $row (@rows)
	{
		my ($name, $unit, $v) = @$row;

		push @lines,
		  $v->{series}
		  ? sprintf('%-44s %6d %13s %10s %10s %8s %8s %13s %8s%s',
			$name, $v->{series}, number($v->{range}) . " $unit",
			map({ number($_) } @$v{qw(first last growth bound)}),
			number($v->{longest}{range}) . " $unit", number($v->{longest}{growth}), $v->{flat} ? '' : '  GROWS')
		  : sprintf('%-44s  too few samples', $name);
	}
	return @lines;
}

sub number
{
	my ($number) = @_;

	return sprintf abs $number < 100 && $number != int $number ? '%.1f' : '%.0f', $number;
}

# ---------------------------------------------------------------------------
# Sessions
# ---------------------------------------------------------------------------

# Start sessions of a process of their own, one after the other, and return its id.  Each runs round
# after round of all kinds of statements and after each says what its memory is.  Options:
#   number   of this process
#   rounds   how many a session makes; 0: for as long as it lives
#   output, errors   files that what they say is added to
sub start
{
	my ($connstr, %params) = @_;
	my $parent = $$;
	my $pid = fork // die "fork: $!\n";

	return $pid if $pid;
	eval { run($connstr, $parent, %params) };
	print STDERR $@;
	POSIX::_exit(1);
}

sub run
{
	my ($connstr, $parent, %params) = @_;
	my $psql;
	my $calls = 0;

	local $SIG{TERM} = sub { kill 'KILL', $psql if $psql; POSIX::_exit(0); };
	local $SIG{PIPE} = 'IGNORE';
	srand $params{seed};
	$ENV{PGAPPNAME} = $params{rounds} ? 'soak' : 'steady';
	$ENV{PGOPTIONS} = '-c log_min_messages=panic';
	while (getppid() == $parent)
	{
		pipe my $read, my $in or die "pipe: $!\n";
		$psql = fork // die "fork: $!\n";
		if ($psql == 0)
		{
			local $SIG{TERM} = 'DEFAULT';
			POSIX::dup2(fileno $read, 0);
			open STDOUT, '>>', $params{output} or POSIX::_exit(126);
			open STDERR, '>>', $params{errors} or POSIX::_exit(126);
			{ no warnings; exec 'psql', '-XAtq', '-v', 'VERBOSITY=sqlstate', '-o', '/dev/null', '-d', $connstr; }
			POSIX::_exit(127);
		}
		close $read;

		# A small pipe (F_SETPIPE_SZ), so that what is chosen is run soon.
		fcntl $in, 1031, 4096;
		$in->autoflush(1);
		my $is_there = print $in "SELECT pg_backend_pid() AS pid \\gset\n";
		for (my $round = 1; $is_there && getppid() == $parent && ($round <= $params{rounds} || !$params{rounds}); $round++)
		{
			$is_there &&= print $in "$_\n" foreach round($params{number}, \$calls);
			$is_there &&= print $in sample($round);
		}
		close $in;
		waitpid $psql, 0;
		undef $psql;
		usleep(20_000);
	}
	kill 'KILL', $psql if $psql;
	POSIX::_exit(0);
}

# In so many rounds a session has run all that there is, with each of its branches.
our $rounds_of_warm_up = 12;

# What a session says of itself: all of its memory contexts, its caches of the catalog, its
# memory that is not shared, and its open files.
our @of_session = qw(contexts caches private files);

sub sample
{
	my ($round) = @_;

	return <<"EOC";
SELECT sum(used_bytes) AS contexts, sum(used_bytes) FILTER (WHERE name IN ('CacheMemoryContext', 'index info')) AS caches,
	1024 * (regexp_match(pg_read_file('/proc/self/status'), 'RssAnon:\\s+(\\d+) kB'))[1]::int AS private,
	(SELECT count(*) FROM pg_ls_dir('/proc/self/fd')) AS files
FROM pg_backend_memory_contexts \\gset
\\echo session :pid $round @{[ map { ":$_" } @of_session ]}
EOC
}

sub pick
{
	return $_[ int rand @_ ];
}

# Each kind of statement, once a round in another order.  A lease either is one of a few names that
# all want, or has a name of its own.
my @kinds = (
	sub { my ($n, $o) = @_; "SELECT dlock_acquire('$n', '$o', '2 s', '200 ms')", "SELECT dlock_renew('$n', '$o')", "SELECT dlock_release('$n', '$o')" },
	sub { my ($n, $o) = @_; "SELECT dlock_acquire('$n', '$o', '500 ms', '1 s')", "SELECT dlock_release('$n', '$o')" },
	# Left to expire.
	sub { my ($n, $o) = @_; "SELECT dlock_acquire('$n', '$o', '100 ms', '50 ms')" },
	sub { my ($n, $o) = @_; "SELECT dlock_acquire('own-$o', '$o', '300 ms', lock_delay => '100 ms', payload => '{\"a\": 1}')" },
	sub { my ($n, $o) = @_; "SELECT dlock_acquire('$n', '$o', '1 s', '100 ms', min_hold => '20 ms')", "SELECT dlock_release('$n', '$o')" },
	# In other modes.
	sub {
		my ($n, $o) = @_;
		"SELECT dlock_acquire('$n', '$o', '1 s', '100 ms', mode => 'shared')",
		  "SELECT dlock_convert('$n', token, 'exclusive', '50 ms') FROM dlock_lease('$n') WHERE owner = '$o'",
		  "SELECT dlock_convert('$n', token, 'shared') FROM dlock_lease('$n') WHERE owner = '$o'",
		  "SELECT dlock_release_token('$n', token) FROM dlock_lease('$n') WHERE owner = '$o'";
	},
	sub { my (undef, $o) = @_; "SELECT dlock_acquire('pool', '$o', '1 s', '100 ms', permits => 3)", "SELECT dlock_release('pool', '$o')" },
	sub {
		my (undef, $o) = @_;
		my $path = pick('p', 'p/x', 'p/y', "p/x/$o");
		my $mode = pick('exclusive', 'shared');
		"SELECT dlock_acquire_path('$path', '$o', '1 s', '100 ms', '$mode')", "SELECT dlock_release('$path', '$o')";
	},
	# Several.
	sub {
		my (undef, $o) = @_;
		"SELECT dlock_acquire_all('{n0, n2, own-$o}', '$o', '1 s', '100 ms')", 'SELECT count(*) FROM dlock_leases', "SELECT dlock_renew_all('$o')",
		  "SELECT dlock_release_all('$o')";
	},
	sub {
		my (undef, $o) = @_;
		my ($a, $b) = shuffle('n0', 'n1');
		map({ "SELECT dlock_acquire('$_', '$o', '300 ms', '100 ms')" } $a, $b), "SELECT dlock_release_all('$o')";
	},
	# Entered twice, bound, refused, taken away, watched.
	sub {
		my ($n, $o) = @_;
		map({ "SELECT dlock_acquire('$n', '$o', '1 s', '20 ms', reentry => 'count')" } 1, 2), map { "SELECT dlock_release('$n', '$o')" } 1, 2;
	},
	sub { my ($n) = @_; "SELECT dlock_acquire('$n', wait => '20 ms', bind => 'session')", "SELECT dlock_release('$n')" },
	sub {
		my ($n, $o) = @_;
		'BEGIN', "SELECT dlock_acquire('$n', '$o', wait => '20 ms', bind => 'transaction')", 'SAVEPOINT s',
		  "SELECT dlock_acquire('own-$o', '$o', bind => 'transaction')", 'ROLLBACK TO s', pick('COMMIT', 'ROLLBACK');
	},
	sub { "SELECT dlock_acquire('', 'nobody')" },
	sub { my ($n) = @_; "SELECT dlock_force_release('$n', 'soak')" },
	sub { my ($n) = @_; "SELECT dlock_watch('$n', NULL, '10 ms')", 'SELECT count(*) FROM dlock_waiters', 'SELECT * FROM dlock_stats' },
	# Time slots, leaders, groups.
	sub { my $n = int rand 5; "SELECT dlock_once('job$n', '100 ms')" },
	sub {
		my (undef, undef, $me) = @_;
		"SELECT dlock_campaign('leader', 'c$me', '300 ms', '20 ms')", "SELECT dlock_leader('leader')", rand() < 0.5 ? "SELECT dlock_resign('leader', 'c$me')" : ();
	},
	sub {
		my (undef, undef, $me) = @_;
		my $member = "FROM dlock_group_members m WHERE group_name = 'g' AND member = 'm$me'";
		"SELECT dlock_group_join('g', 'm$me', '2 s')", "SELECT dlock_group_renew('g', token) $member",
		  "SELECT dlock_group_renew('g', token, array(SELECT p.token FROM dlock_group_partitions p WHERE p.member = 'm$me')) $member",
		  rand() < 0.3 ? "SELECT dlock_group_leave('g', token) $member" : (), rand() < 0.1 ? "SELECT dlock_group_alter('g', 3 + (random() * 5)::int)" : ();
	},
	# Tasks.
	sub {
		my (undef, $o, $me) = @_;
		my $mine = "FROM dlock_tasks WHERE queue = 'q' AND owner = '$o' AND state = 'working'";
		map({ my $key = int rand 40; "SELECT dlock_task_put('q', 'k$key', delay => '" . int(rand 50) . " ms')" } 1, 2),
		  "SELECT dlock_task_capture('q', 2, owner => '$o', ttl => '500 ms')", "SELECT dlock_task_renew('q', key, token) $mine LIMIT 1",
		  "SELECT " . pick(map({ "dlock_task_$_('q', key, token)" } qw(finish finish fail release))) . " $mine LIMIT 1",
		  "SELECT dlock_task_set('q', key, NULL, 'done') FROM dlock_tasks WHERE queue = 'q' AND state = 'parked'",
		  "SELECT dlock_task_purge('q', '100 ms')";
	},
	# Fences.
	sub {
		my (undef, $o) = @_;
		my $account = int rand 5;
		"SELECT dlock_acquire('account$account', '$o', '1 s', '100 ms')",
		  'BEGIN', "SELECT dlock_fence('account$account', token, true) FROM dlock_lease('account$account') WHERE owner = '$o'",
		  "SELECT set_config('dlock.tokens', 'guarded=' || token, true) FROM dlock_lease('account$account') WHERE owner = '$o'",
		  "UPDATE guarded SET v = v + 1 WHERE id = $account", 'COMMIT', "SELECT dlock_release('account$account', '$o')";
	},);

sub round
{
	my ($me, $calls) = @_;
	my @statements;

	foreach my $kind (shuffle @kinds)
	{
		my $owner = "o$me-" . ++$$calls;
		my $name = rand() < 0.7 ? 'n' . int rand 6 : "own-$owner";

		push @statements, map { "$_;" } $kind->($name, $owner, $me);
	}
	return @statements;
}

# What sessions have said: the series of each measure and session.
sub read_sessions
{
	my (@files) = @_;
	my %series;

	foreach my $file (@files)
	{
		open my $in, '<', $file or next;
		while (my $line = <$in>)
		{
			my ($pid, $round, @numbers) = $line =~ /^session (\d+) (\d+) (\d+) (\d+) (\d+) (\d+)$/ or next;

			push @{ $series{ $of_session[$_] }{"$file $pid"} }, [ $round, $numbers[$_] ] foreach 0 .. $#numbers;
		}
		close $in;
	}
	return \%series;
}

# How many rounds there were, and how many in the longest session.
sub count_rounds
{
	my ($series) = @_;
	my @rounds = map { $_->[-1][0] } values %{ $series->{contexts} };

	return (sum0(@rounds), max(0, @rounds));
}

# Is there a session that can be judged?
sub is_enough
{
	my (@files) = @_;
	my (undef, $longest) = count_rounds(read_sessions(@files));

	return $longest >= $rounds_of_warm_up + 2 * $enough;
}

# How often which SQLSTATE came.
sub read_errors
{
	my (@files) = @_;
	my %count;

	foreach my $file (@files)
	{
		open my $in, '<', $file or next;
		while (my $line = <$in>)
		{
			$count{$1}++ if $line =~ /(?:ERROR|FATAL|PANIC):  ([0-9A-Z]{5})$/;
		}
		close $in;
	}
	return \%count;
}

1;
