# A session with the server whose statements may wait: ask() sends one, answered()
# looks whether its answer is there, answer() waits for it.  Errors are answers
# too, so that a test can expect them.

package DLockSession;

use strict;
use warnings FATAL => 'all';

use Carp;
use DLockTest qw(mono_now wait_until);
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

# Connect.  Options:
#   user      the role to connect as
#   options   command-line options for the backend, such as '-c name=value'
sub new
{
	my ($class, $node, $dbname, %params) = @_;
	my $self = bless {
		node => $node,
		dbname => $dbname,
		in => '',
		out => '',
		err => '',
		sent => 0,
		received => 0,
	}, $class;

	local $ENV{PGUSER} = $params{user} if defined $params{user};
	local $ENV{PGOPTIONS} = $params{options} if defined $params{options};
	$self->{timeout} =
	  IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default);
	$self->{run} = IPC::Run::start(
		[ 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-d', $node->connstr($dbname) ],
		'<', \$self->{in}, '>', \$self->{out}, '2>', \$self->{err},
		$self->{timeout});
	$self->{pid} = $self->query('SELECT pg_backend_pid()');
	croak "cannot connect: $self->{stderr}" unless $self->{pid} =~ /^\d+$/;
	return $self;
}

# Process id of the backend.
sub pid
{
	my ($self) = @_;
	return $self->{pid};
}

# Send a statement, or several, without waiting for the answer.
sub ask
{
	my ($self, $sql) = @_;

	croak 'the last answer was not fetched'
	  if $self->{received} != $self->{sent};
	my $n = ++$self->{sent};
	$self->{in} .= "$sql\n;\n\\echo 'answer $n:'\n\\warn 'answer $n:'\n";
	$self->{timeout}->start($PostgreSQL::Test::Utils::timeout_default);
	$self->{asked_at} = mono_now();
	note "session $self->{pid}: $sql" if defined $self->{pid};
	$self->_pump_nb while !$self->{lost} && $self->{in} ne '';
	return $self;
}

# Is the answer there?  So it is if the connection was lost.
sub answered
{
	my ($self) = @_;

	$self->_pump_nb;
	return $self->_complete;
}

# Wait for the answer: what was printed, or "ERROR " and the SQLSTATE ("FATAL "
# likewise), or "LOST" if the connection broke without a word.  More is in the
# fields message, detail, hint and stderr, and when it came in answered_at.
sub answer
{
	my ($self) = @_;

	while (!$self->_complete)
	{
		eval { $self->{run}->pump; 1 } or $self->_broken($@);
		$self->_broken('') if !$self->_complete && !$self->{run}->pumpable;
	}
	$self->{answered_at} = mono_now();
	my $n = $self->{received} = $self->{sent};
	$self->{out} =~ s/\n?answer $n:\n.*//s;
	$self->{err} =~ s/answer $n:\n.*//s;
	my ($out, $err) = @$self{qw(out err)};
	@$self{qw(out err stdout stderr)} = ('', '', $out, $err);
	$self->{$_} = '' foreach qw(message detail hint);

	my $answer = $out;
	if ($err =~ /(ERROR|FATAL):  ([0-9A-Z]{5}): (.*)/)
	{
		$answer = "$1 $2";
		$self->{message} = $3;
		($self->{detail}) = $err =~ /DETAIL:  (.*?)(?=\n[A-Z ]+:  |\z)/s;
		($self->{hint}) = $err =~ /HINT:  (.*?)(?=\n[A-Z ]+:  |\z)/s;
		$self->{$_} //= '' foreach qw(detail hint);
	}
	elsif ($self->{lost})
	{
		$answer = 'LOST';
	}
	note "session $self->{pid} answers: $answer" if defined $self->{pid};
	return $answer;
}

# Send and wait for the answer.
sub query
{
	my ($self, $sql) = @_;

	$self->ask($sql);
	return $self->answer;
}

# The same, for what must not fail.
sub query_safe
{
	my ($self, $sql) = @_;
	my $answer = $self->query($sql);

	croak "$sql\n$self->{stderr}" if $answer =~ /^(?:(?:ERROR|FATAL) |LOST$)/;
	return $answer;
}

# Send a statement that must wait for a lock or a change of its holder, and
# return once it does.
sub ask_waiting
{
	my ($self, $monitor, $sql) = @_;

	$self->ask($sql);
	$self->wait_for_wait($monitor)
	  or croak "does not wait: $sql\n$self->{out}$self->{err}";
	return $self;
}

# Wait until the statement that was sent waits inside the extension; false if
# it was answered instead.
sub wait_for_wait
{
	my ($self, $monitor) = @_;
	my $waits = 0;

	wait_until(
		sub {
			return 1 if $self->answered;
			$waits = $monitor->query_safe(
				"SELECT count(*) FROM pg_stat_activity WHERE pid = $self->{pid} AND wait_event_type = 'Extension' AND state = 'active'"
			);
			return $waits;
		});
	return $waits;
}

# Disconnect in good order, and wait until the backend is gone.
sub quit
{
	my ($self) = @_;

	$self->{in} .= "\\q\n";
	eval { $self->{run}->finish };
	$self->wait_backend_gone;
	return;
}

# Kill the client, so that the server finds the connection closed.  The backend
# may be busy and not look.
sub kill_client
{
	my ($self) = @_;

	$self->{run}->signal('KILL');
	eval { $self->{run}->finish };
	$self->{lost} = 1;
	return;
}

# Wait until the process of the backend has ended.
sub wait_backend_gone
{
	my ($self) = @_;
	my $pid = $self->{pid};

	DLockTest::wait_gone($pid) if defined $pid;
	return;
}

sub _complete
{
	my ($self) = @_;
	my $mark = "answer $self->{sent}:\n";

	return 1 if $self->{lost};
	return $self->{out} =~ /\Q$mark\E/ && $self->{err} =~ /\Q$mark\E/;
}

sub _pump_nb
{
	my ($self) = @_;

	return if $self->{lost};
	eval {
		$self->{run}->pump_nb;
		1;
	} or $self->_broken($@);
	$self->_broken('') if !$self->_complete && !$self->{run}->pumpable;
	return;
}

# The client has ended, which it does when the connection is lost; or it took
# too long.
sub _broken
{
	my ($self, $reason) = @_;

	return if $self->{lost};
	croak "no answer: $reason" if $reason =~ /timeout/;
	eval { $self->{run}->finish };
	$self->{lost} = 1;
	return;
}

1;
