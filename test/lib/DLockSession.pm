# A session with the server: a psql whose statements may wait.  ask() sends one,
# answered() looks whether its answer is there, answer() waits for it.  Errors are
# answers too, so that a test can expect them.

package DLockSession;

use strict;
use warnings FATAL => 'all';

use Carp;
use DLockTest qw(mono_now wait_gone wait_until);
use Exporter 'import';
use Fcntl qw(F_GETFL F_SETFL O_NONBLOCK);
use IO::Handle;
use List::Util qw(min);
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(open_sessions wait_any answers_in_order nobody_answers);

# Longer than anything here takes on the slowest machine.
my $patience = $PostgreSQL::Test::Utils::timeout_default;

# ---------------------------------------------------------------------------
# Beginning and end
# ---------------------------------------------------------------------------

# Connect.  Options:
#   name      for messages, and the application_name
#   user      the role to connect as
#   options   command-line options for the backend, such as '-c name=value'
#   setup     SQL to run first
#   untouched send nothing first; the process id of the backend is not known then,
#             until wait_for_wait() has found it by the name, which has to be its own
sub new
{
	my ($class, $node, $dbname, %params) = @_;

	return (open_sessions($node, $dbname, 1, %params))[0];
}

# Connect so many at a time; the names of more than one are numbered from 1.
sub open_sessions
{
	my ($node, $dbname, $count, %params) = @_;
	my $name = $params{name} // 'session';
	my @sessions;

	{
		local $ENV{PGUSER} = $params{user} if defined $params{user};
		local $ENV{PGOPTIONS} = $params{options} if defined $params{options};
		@sessions = map { _start($node->connstr($dbname), $count == 1 ? $name : "$name$_") } 1 .. $count;
	}
	return @sessions if $params{untouched};
	$_->ask(($params{setup} // '') . ";SELECT pg_backend_pid()") foreach @sessions;
	foreach my $session (@sessions)
	{
		$session->answer;
		($session->{pid}) = $session->{stdout} =~ /(\d+)$/
		  or croak "$session->{name} cannot connect: $session->{stderr}";
	}
	return @sessions;
}

sub _start
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
		lost => 0,
	}, __PACKAGE__;
}

# Process id of the backend.
sub pid
{
	my ($self) = @_;
	return $self->{pid};
}

# Disconnect, and wait until the backend is gone.  If there is no answer yet, or the
# connection is lost, the backend may not know of the end, and is not waited for.
sub quit
{
	my ($self) = @_;

	return unless defined $self->{psql};
	my $is_idle = !$self->{pending} && !$self->{lost};
	close $self->{in};
	kill 'KILL', $self->{psql} unless $is_idle;
	$self->_wait_psql;
	$self->wait_backend_gone if $is_idle;
	return;
}

# Kill the client, so that the server finds the connection closed.  The backend
# may be busy and not look.
sub kill_client
{
	my ($self) = @_;

	return unless defined $self->{psql};
	kill 'KILL', $self->{psql};
	$self->_wait_psql;
	return;
}

sub _wait_psql
{
	my ($self) = @_;

	waitpid $self->{psql}, 0;
	delete $self->{psql};
	$self->{lost} = 1;
	return;
}

# Wait until the process of the backend has ended.
sub wait_backend_gone
{
	my ($self) = @_;

	wait_gone($self->{pid}) if defined $self->{pid};
	return;
}

# Sessions at the end of a test that went wrong may be waiting still.
sub DESTROY
{
	my ($self) = @_;
	local ($?, $!, $@);

	$self->kill_client;
	return;
}

# ---------------------------------------------------------------------------
# Questions and answers
# ---------------------------------------------------------------------------

# Send a statement, or several, without waiting for the answer.
sub ask
{
	my ($self, $sql) = @_;
	local $SIG{PIPE} = 'IGNORE';

	croak "$self->{name} has not answered yet" if $self->{pending};
	my $mark = "end of answer " . ++$self->{serial};
	$self->{pending} = 1;
	$self->{mark} = $mark;
	$self->{text} = { out => '', err => '' };
	$self->{complete} = { out => 0, err => 0 };
	delete $self->{answered_at};
	note "$self->{name} ($self->{pid}): $sql" if defined $self->{pid};
	$self->{sent} = mono_now();

	# It fails if the session has ended, which the answer will say.
	no warnings 'closed';
	print { $self->{in} } "$sql\n;\n\\echo $mark\n\\warn $mark\n";
	return $self;
}

# Is the answer there?  So it is if the connection was lost.
sub answered
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
				$self->{lost} = 1;
			}
			elsif (substr($self->{text}{$name}, -length $mark) eq $mark)
			{
				substr($self->{text}{$name}, -length $mark) = '';
				$self->{complete}{$name} = 1;
			}
		}
	}
	my $is_there = $self->{complete}{out} && $self->{complete}{err};
	$self->{answered_at} //= mono_now() if $is_there;
	return $is_there;
}

# Wait for the answer: what was printed, or "ERROR " and the SQLSTATE ("FATAL "
# likewise), or "LOST" if the connection broke without a word.  More is in the fields
#   stdout, stderr                 all of it
#   state, message, detail, hint   of the error; '' without one
#   lost                           has the session ended?
#   sent, answered_at              when it was asked, and answered
sub answer
{
	my ($self, $timeout) = @_;

	wait_any($timeout // $patience, $self)
	  or croak "$self->{name} has not answered in time, asked from " . join ' ', caller;
	my ($out, $err) = @{ $self->{text} }{qw(out err)};
	chomp($out, $err);
	@$self{qw(stdout stderr pending)} = ($out, $err, 0);
	@$self{qw(state message detail hint)} = ('') x 4;

	my $answer = $out;
	if ($err =~ /(ERROR|FATAL|PANIC):  ([0-9A-Z]{5}): (.*)/)
	{
		$answer = "$1 $2";
		@$self{qw(state message)} = ($2, $3);

		# psql may take note of what comes before the connection is closed only later.
		$self->{lost} = 1 if $err =~ /FATAL:  [0-9A-Z]{5}: /;
	}
	elsif ($self->{lost})
	{
		$answer = 'LOST';
	}

	# Warnings may come before the error, and have details of their own.
	my ($error) = $err =~ /((?:ERROR|FATAL|PANIC):  .*)/s;
	foreach my $field (qw(detail hint))
	{
		my $title = uc $field;
		$self->{$field} = $1
		  if defined $error
		  && $error =~ /^$title:  (.*?)(?=\n(?:DETAIL|HINT|CONTEXT|LOCATION|STATEMENT|QUERY):  |\n\S*(?:ERROR|FATAL|WARNING|NOTICE):  |\z)/ms;
	}
	note "$self->{name} ($self->{pid}) answers: $answer" if defined $self->{pid};
	return $answer;
}

# The same as a hash of
#   out                                    what was selected
#   failed                                 was there an error?
#   state, message, detail, hint, err      of the error; state is '' without one
#   gone                                   has the session ended?
#   sent, at                               when it was asked, and answered
sub result
{
	my ($self, $timeout) = @_;

	$self->answer($timeout);
	return {
		out => $self->{stdout},
		err => $self->{stderr},
		gone => $self->{lost},
		failed => $self->{state} ne '' || $self->{lost},
		at => $self->{answered_at},
		map { $_ => $self->{$_} } qw(state message detail hint sent)
	};
}

# Send and wait for the answer.
sub query
{
	my ($self, $sql) = @_;

	return $self->ask($sql)->answer;
}

# The same, for what must not fail.
sub query_safe
{
	my ($self, $sql) = @_;
	my $answer = $self->query($sql);

	croak "$self->{name}: $sql: $self->{stderr}" if $self->{state} ne '' || $self->{lost};
	return $answer;
}

# ---------------------------------------------------------------------------
# Waiting
# ---------------------------------------------------------------------------

# Send a statement that must wait for a lock or a change of its holder, and
# return once it does.
sub ask_waiting
{
	my ($self, $monitor, $sql) = @_;

	$self->ask($sql);
	$self->wait_for_wait($monitor)
	  or croak "does not wait: $sql\n$self->{text}{out}$self->{text}{err}";
	return $self;
}

# Wait until the statement that was sent waits inside the extension; false if
# it was answered instead.
sub wait_for_wait
{
	my ($self, $monitor) = @_;
	my $is_it = defined $self->{pid} ? "pid = $self->{pid}" : "application_name = '$self->{name}'";
	my $pid = '';

	wait_until(
		sub {
			return 1 if $self->answered;
			$pid = $monitor->query_safe(
				"SELECT pid FROM pg_stat_activity WHERE $is_it AND wait_event_type = 'Extension' AND state = 'active'"
			);
			return $pid ne '';
		});
	return 0 if $pid eq '';
	$self->{pid} = $pid;
	return 1;
}

# Wait until at least one of these sessions has answered; returns those that have.  A
# machine that stands still uses up a second or so of the time.
sub wait_any
{
	my ($left, @sessions) = @_;
	my $last = mono_now();

	while (1)
	{
		my @ready = grep { $_->{pending} && $_->answered } @sessions;
		my $now = mono_now();
		$left -= min($now - $last, 1.1);
		$last = $now;
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

# The answers of these sessions, which are to come without an error.
sub answers_in_order
{
	my @sessions = @_;

	return map {
		my $answer = $_->answer;
		croak "$_->{name}: $_->{stderr}" if $_->{state} ne '' || $_->{lost};
		$answer;
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

1;
