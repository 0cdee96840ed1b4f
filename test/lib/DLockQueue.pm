# Sessions that wait, many at a time: each is a psql that is asked without waiting
# for its answer, and whose answers are read as they come; and looking at the
# queues of a server.

package DLockQueue;

use strict;
use warnings FATAL => 'all';

use Carp;
use DLockTest;
use Exporter 'import';
use Fcntl qw(F_GETFL F_SETFL O_NONBLOCK);
use IO::Handle;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw(
  open_session open_sessions close_sessions wait_any answers_in_order nobody_answers
  queue queue_is enqueue queues_are_empty
  percentile seed_random
);

# Longer than anything here takes on the slowest machine.
my $patience = $PostgreSQL::Test::Utils::timeout_default;

# ---------------------------------------------------------------------------
# Sessions
# ---------------------------------------------------------------------------

# A session, ready.  Options:
#   name   for messages, and the session's application_name
#   setup  SQL to run first
sub open_session
{
	my ($node, $dbname, %params) = @_;

	return (open_sessions($node, $dbname, 1, %params))[0];
}

# That many of them; the names of more than one are numbered from 1.
sub open_sessions
{
	my ($node, $dbname, $count, %params) = @_;
	my $name = $params{name} // 'session';
	my @sessions = map {
		start_psql($node->connstr($dbname), $count == 1 ? $name : "$name$_")
	} 1 .. $count;

	$_->send(($params{setup} // '') . ";SELECT pg_backend_pid()")
	  foreach @sessions;
	foreach my $session (@sessions)
	{
		my $answer = $session->answer;
		croak "$session->{name}: $answer->{err}" if $answer->{failed};
		($session->{pid}) = $answer->{out} =~ /(\d+)$/;
	}
	return @sessions;
}

sub start_psql
{
	my ($connstr, $name) = @_;

	pipe(my $child_in, my $in) or croak "pipe: $!";
	pipe(my $out, my $child_out) or croak "pipe: $!";
	pipe(my $err, my $child_err) or croak "pipe: $!";
	my $psql = fork // croak "fork: $!";
	if ($psql == 0)
	{
		POSIX::dup2(fileno $child_in, 0);
		POSIX::dup2(fileno $child_out, 1);
		POSIX::dup2(fileno $child_err, 2);
		local $ENV{PGAPPNAME} = $name;
		{ no warnings; exec 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-v', 'SHOW_CONTEXT=never', '-d', $connstr; }
		POSIX::_exit(127);
	}
	close $_ foreach $child_in, $child_out, $child_err;
	fcntl($_, F_SETFL, fcntl($_, F_GETFL, 0) | O_NONBLOCK) foreach $out, $err;
	$in->autoflush(1);
	return bless {
		name => $name,
		psql => $psql,
		in => $in,
		stream => { out => $out, err => $err },
		serial => 0,
		pending => 0,
		gone => 0,
	}, __PACKAGE__;
}

# Ask, without waiting for the answer.
sub send
{
	my ($self, $sql) = @_;
	local $SIG{PIPE} = 'IGNORE';

	croak "$self->{name} has not answered yet" if $self->{pending};
	my $mark = "end of answer " . ++$self->{serial};
	$self->{pending} = 1;
	$self->{mark} = $mark;
	$self->{text} = { out => '', err => '' };
	$self->{complete} = { out => 0, err => 0 };
	$self->{sent} = mono_now();
	# It fails if the session has ended, which the answer will say.
	print { $self->{in} } "$sql\n;\n\\echo $mark\n\\warn $mark\n";
	return;
}

# Read what is there.  True when the answer is complete.
sub ready
{
	my ($self) = @_;

	croak "$self->{name} was not asked" unless $self->{pending};
	foreach my $name (qw(out err))
	{
		my $mark = "$self->{mark}\n";

		while (!$self->{complete}{$name})
		{
			my $got = sysread $self->{stream}{$name}, $self->{text}{$name}, 65536, length $self->{text}{$name};

			last if !defined $got && ($!{EAGAIN} || $!{EINTR});
			if (!$got)
			{
				$self->{complete}{$name} = 1;
				$self->{gone} = 1;
			}
			elsif (substr($self->{text}{$name}, -length $mark) eq $mark)
			{
				substr($self->{text}{$name}, -length $mark) = '';
				$self->{complete}{$name} = 1;
			}
		}
	}
	my $ready = $self->{complete}{out} && $self->{complete}{err};
	$self->{answered} //= mono_now() if $ready;
	return $ready;
}

# Wait for the answer, a hash of
#   out                                    what was selected
#   failed                                 was there an error?
#   state, message, detail, hint, err      of the error; state is '' without one
#   gone                                   has the session ended?
#   sent, at                               when it was asked, and answered
sub answer
{
	my ($self, $timeout) = @_;

	if (!wait_any($timeout // $patience, $self))
	{
		croak "$self->{name} has not answered in time, asked from " . join ' ', caller;
	}
	my ($out, $err) = @{ $self->{text} }{qw(out err)};
	chomp($out, $err);

	# psql may take note of what comes before the connection is closed only later.
	$self->{gone} = 1 if $err =~ /FATAL:  [0-9A-Z]{5}: /;
	my %answer = (
		out => $out,
		err => $err,
		state => '',
		gone => $self->{gone},
		sent => $self->{sent},
		at => delete $self->{answered});
	($answer{state}, $answer{message}) = ($1, $2)
	  if $err =~ /(?:ERROR|FATAL|PANIC):  ([0-9A-Z]{5}): (.*)/;
	foreach my $field (qw(detail hint))
	{
		my $title = uc $field;
		$answer{$field} = $1
		  if $err =~ /^$title:  (.*?)(?=\n(?:DETAIL|HINT|CONTEXT|LOCATION|STATEMENT|QUERY):  |\n\S*(?:ERROR|FATAL|WARNING|NOTICE):  |\z)/ms;
	}
	$answer{failed} = $answer{state} ne '' || $answer{gone};
	$self->{pending} = 0;
	return \%answer;
}

# Ask and wait; dies if it fails.
sub query
{
	my ($self, $sql) = @_;

	$self->send($sql);
	my $answer = $self->answer;
	croak "$self->{name}: $sql: $answer->{err}" if $answer->{failed};
	return $answer->{out};
}

# Ask what must fail; returns the answer.
sub fails
{
	my ($self, $sql) = @_;

	$self->send($sql);
	return $self->answer;
}

# End it in good order, or by whatever is needed.
sub close
{
	my ($self) = @_;

	return unless defined $self->{psql};
	CORE::close $self->{in};
	kill 'TERM', $self->{psql} if $self->{pending};
	waitpid $self->{psql}, 0;
	delete $self->{psql};
	return;
}

# Sessions at the end of a test that went wrong may be waiting still.
sub DESTROY
{
	my ($self) = @_;
	local ($?, $!, $@);

	if (defined $self->{psql})
	{
		kill 'KILL', $self->{psql};
		waitpid $self->{psql}, 0;
	}
	return;
}

# Close them, and wait until the server knows.
sub close_sessions
{
	my ($control, @sessions) = @_;
	my @pids = map { $_->{pid} } @sessions;

	$_->close foreach @sessions;
	wait_until(
		sub {
			$control->query("SELECT count(*) FROM pg_stat_activity WHERE pid IN ("
				  . join(',', @pids, 0)
				  . ")") eq '0';
		}) or croak 'timed out waiting for sessions to end';
	return;
}

# Wait until at least one of these sessions has answered; returns those that have.
sub wait_any
{
	my ($timeout, @sessions) = @_;
	my $end = mono_now() + $timeout;

	while (1)
	{
		my @ready = grep { $_->{pending} && $_->ready } @sessions;
		my $left = $end - mono_now();
		return @ready if @ready || $left <= 0;

		my $bits = '';
		foreach my $session (grep { $_->{pending} } @sessions)
		{
			foreach my $name (grep { !$session->{complete}{$_} } qw(out err))
			{
				vec($bits, fileno $session->{stream}{$name}, 1) = 1;
			}
		}
		select($bits, undef, undef, $left < 1 ? $left : 1);
	}
}

# The answers of these sessions, which are to come without an error; returns
# their output.
sub answers_in_order
{
	my @sessions = @_;

	return map {
		my $answer = $_->answer;
		croak "$_->{name}: $answer->{err}" if $answer->{failed};
		$answer->{out};
	} @sessions;
}

# None of these sessions answers for a moment.  That it would not a moment later
# cannot be shown this way: what must not happen is seen in dlock_waiters too.
sub nobody_answers
{
	my ($test_name, @sessions) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @ready = wait_any(0.1, @sessions);

	return is(join(' ', map { $_->{name} } @ready), '', $test_name);
}

# ---------------------------------------------------------------------------
# Queues
# ---------------------------------------------------------------------------

# The owners that wait for a lock, in order.
sub queue
{
	my ($control, $name) = @_;

	return $control->query(
		"SELECT coalesce(string_agg(owner, ' ' ORDER BY position), '') FROM dlock_waiters WHERE name = '$name'"
	);
}

# Wait until the queue is this.
sub queue_is
{
	my ($control, $name, $expected, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $queue;

	wait_until(sub { ($queue = queue($control, $name)) eq $expected }, 20);
	return is($queue, $expected, $test_name);
}

# Let a session send what will wait, and wait until it does.
sub enqueue
{
	my ($control, $session, $sql) = @_;

	$session->send($sql);
	wait_until(
		sub {
			$control->query("SELECT count(*) > 0 FROM dlock_waiters WHERE pid = $session->{pid}") eq 't'
			  || $session->ready;
		}) or croak "$session->{name} does not wait";
	return;
}

sub queues_are_empty
{
	my ($control, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return is(
		$control->query(
			"SELECT coalesce(string_agg(name || ' ' || owner, ', '), '') FROM dlock_waiters"),
		'', $test_name);
}

# ---------------------------------------------------------------------------
# Numbers
# ---------------------------------------------------------------------------

# The value that "percent" of the values do not exceed.
sub percentile
{
	my ($percent, @values) = @_;
	my @sorted = sort { $a <=> $b } @values;

	return $sorted[ POSIX::ceil(@sorted * $percent / 100) - 1 ];
}

# Seed rand() by DLOCK_SEED or by chance, and say how to have it again.
sub seed_random
{
	my $seed = $ENV{DLOCK_SEED} // int rand 2**31;

	srand $seed;
	diag "DLOCK_SEED=$seed";
	return $seed;
}

1;
