# A pooler in transaction mode with one session of the server's, which it lends to
# one client after the other, each for a transaction.  Whatever somebody leaves
# in that session is there for the next one.  It is a process of its own, takes
# clients at a socket, and asks nobody for a password.

package DLockPooler;

use strict;
use warnings FATAL => 'all';

use Carp;
use IO::Select;
use IO::Socket::UNIX;
use POSIX ();
use PostgreSQL::Test::Utils;

use constant PROTOCOL => 196608;
use constant CANCEL => 80877102;

# Start one between clients and the session of a role.
sub new
{
	my ($class, $node, $dbname, $user) = @_;
	my $self = bless {
		dir => PostgreSQL::Test::Utils::tempdir_short(),
		server_path => $node->host . '/.s.PGSQL.' . $node->port,
		session => { user => $user, database => $dbname, application_name => 'pooler' }
	}, $class;

	$self->{listener} = IO::Socket::UNIX->new(
		Local => "$self->{dir}/.s.PGSQL." . $node->port, Listen => 10) or croak "$self->{dir}: $!";
	$self->{pid} = fork // croak "fork: $!";
	if ($self->{pid} == 0)
	{
		$SIG{PIPE} = 'IGNORE';
		eval { $self->_run };
		print STDERR "pooler: $@";
		POSIX::_exit(1);
	}
	close delete $self->{listener};
	return $self;
}

# Where clients connect to; the port is the server's.
sub host
{
	my ($self) = @_;
	return $self->{dir};
}

sub stop
{
	my ($self) = @_;

	kill 'KILL', $self->{pid};
	waitpid $self->{pid}, 0;
	return;
}

# ---------------------------------------------------------------------------
# In the process
# ---------------------------------------------------------------------------

sub _write
{
	my ($socket, $data) = @_;

	while (length $data)
	{
		my $written = syswrite $socket, $data or return;
		substr($data, 0, $written) = '';
	}
	return;
}

# The first message in what was read, if it is complete: its type and all of it.
sub _next_message
{
	my ($buffer) = @_;

	return if length $$buffer < 5;
	my ($type, $length) = unpack 'a N', $$buffer;
	return if length $$buffer < $length + 1;
	return ($type, substr $$buffer, 0, $length + 1, '');
}

sub _connect
{
	my ($self) = @_;
	my $socket = IO::Socket::UNIX->new(Peer => $self->{server_path}) or die "$self->{server_path}: $!\n";
	return $socket;
}

# Begin the session.  What the server tells about itself is what clients will be told.
sub _begin_session
{
	my ($self) = @_;
	my $buffer = '';
	my $parameters = join '', map { "$_\0" } %{ $self->{session} };

	$self->{server} = $self->_connect;
	_write($self->{server}, pack 'N N a*', length($parameters) + 9, PROTOCOL, "$parameters\0");
	while (1)
	{
		my ($type, $message) = _next_message(\$buffer);

		if (!defined $type)
		{
			sysread $self->{server}, $buffer, 65536, length $buffer or die "no session\n";
			next;
		}
		die "no session: $message\n" if $type eq 'E';
		$self->{greeting} .= $message if $type eq 'S';
		$self->{key} = substr $message, 5 if $type eq 'K';
		last if $type eq 'Z';
	}
	return;
}

# A client's first message: it wants in, or another one's statement cancelled.  Each
# has a key of its own.  False if it is to go.
sub _greet
{
	my ($self, $client) = @_;

	return 1 if length $client->{in} < 8;
	my ($length, $code) = unpack 'N N', $client->{in};
	return 1 if length $client->{in} < $length;
	my $message = substr $client->{in}, 0, $length, '';

	if ($code == CANCEL)
	{
		my $owner = $self->{owner};

		_write($self->_connect, pack 'N N a*', 16, CANCEL, $self->{key})
		  if $owner && $owner->{key} eq substr $message, 8;
		return 0;
	}
	if ($code != PROTOCOL)
	{
		_write($client->{socket}, 'N');
		return 1;
	}
	$client->{is_in} = 1;
	$client->{key} = pack 'N N', 1_000_000_000 + ++$self->{nclients}, rand 2**31;
	_write($client->{socket}, pack('a N N', 'R', 8, 0) . $self->{greeting}
		  . pack('a N a*', 'K', 12, $client->{key}) . pack('a N a', 'Z', 5, 'I'));
	return 1;
}

# Give the session to whoever has something to say to it.  Each says all of a
# transaction before it waits for the end of it.
sub _lend
{
	my ($self) = @_;

	foreach my $client (values %{ $self->{clients} })
	{
		next if !$client->{is_in} || $self->{owner} && $self->{owner} != $client;
		while (my ($type, $message) = _next_message(\$client->{in}))
		{
			last if $type eq 'X';
			$self->{owner} = $client;
			_write($self->{server}, $message);
		}
	}
	return;
}

sub _read_client
{
	my ($self, $client) = @_;

	if (!sysread $client->{socket}, $client->{in}, 65536, length $client->{in}
		or !$client->{is_in} && !$self->_greet($client))
	{
		$self->{select}->remove($client->{socket});
		delete $self->{clients}{ fileno $client->{socket} };
		close $client->{socket};
	}
	return;
}

# Pass on what the server says, to nobody if the client has gone.  Outside a
# transaction the session is free again.
sub _read_server
{
	my ($self) = @_;

	sysread $self->{server}, $self->{in}, 65536, length $self->{in} or die "the session has ended\n";
	while (my ($type, $message) = _next_message(\$self->{in}))
	{
		my $owner = $self->{owner};

		_write($owner->{socket}, $message) if $owner && $owner->{socket}->opened;
		delete $self->{owner} if $type eq 'Z' && substr($message, 5) eq 'I';
	}
	return;
}

sub _run
{
	my ($self) = @_;

	@$self{qw(greeting in clients)} = ('', '', {});
	$self->_begin_session;
	$self->{select} = IO::Select->new($self->{listener}, $self->{server});
	while (1)
	{
		foreach my $ready ($self->{select}->can_read)
		{
			if ($ready == $self->{server})
			{
				$self->_read_server;
			}
			elsif ($ready == $self->{listener})
			{
				my $socket = $self->{listener}->accept or next;
				$self->{clients}{ fileno $socket } = { socket => $socket, in => '' };
				$self->{select}->add($socket);
			}
			else
			{
				$self->_read_client($self->{clients}{ fileno $ready });
			}
		}
		$self->_lend;
	}
	return;
}

1;
