# Something between a client and its server, on a TCP port and on a socket, that can be told
# how to fail.

package DLockProxy;

use strict;
use warnings FATAL => 'all';

use Carp;
use DLockTest qw(wait_until);
use IO::Select;
use IO::Socket::INET;
use IO::Socket::UNIX;
use POSIX ();
use PostgreSQL::Test::Utils;
use Socket qw(AF_UNIX SOCK_STREAM PF_UNSPEC);

# A proxy for this server, which passes all on.  It has the fields host, a directory, and
# port, which is that of TCP on 127.0.0.1, too.
sub start
{
	my ($class, $node) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir_short();
	my $tcp = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 100) or croak "listen: $!";
	my $port = $tcp->sockport;
	my $unix = IO::Socket::UNIX->new(Local => "$dir/.s.PGSQL.$port", Listen => 100) or croak "$dir: $!";
	socketpair(my $ours, my $theirs, AF_UNIX, SOCK_STREAM, PF_UNSPEC) or croak "socketpair: $!";
	my $self = bless { host => $dir, port => $port, orders => $ours, owner => $$ }, $class;

	$self->{pid} = fork // croak "fork: $!";
	if ($self->{pid} == 0)
	{
		$SIG{PIPE} = 'IGNORE';
		close $ours;
		eval { serve($tcp, $unix, $theirs, $node->host . '/.s.PGSQL.' . $node->port) };
		print STDERR "proxy: $@" if $@;
		POSIX::_exit(0);
	}
	close $theirs;
	return $self;
}

# Treat connections from now on like that:
#   pass        as if the proxy were not there
#   refuse      end new ones at once
#   silent      accept new ones, and answer nothing but that there is no encryption
#   cut WORD    pass all on but the first request that has this word in it, over an
#               old connection or a new one: that ends before the server has got it
# With "cut" all connections that there are end, with "part" only for the client; with
# "deaf" no answer comes over them any more.
sub set
{
	my ($self, @order) = @_;

	syswrite $self->{orders}, "@order\n";
	sysread($self->{orders}, my $done, 100) or croak 'the proxy has gone';
	return;
}

# Wait until so many connections more are refused, or not answered.
sub wait_refused
{
	my ($self, $count) = @_;
	my $until = $self->refused + $count;

	wait_until(sub { $self->refused >= $until }) or croak 'nobody is refused';
	return;
}

# How many there were up to now.
sub refused
{
	my ($self) = @_;

	syswrite $self->{orders}, "refused\n";
	sysread($self->{orders}, my $count, 100) or croak 'the proxy has gone';
	return $count + 0;
}

sub stop
{
	my ($self) = @_;

	return if !$self->{pid} || $self->{owner} != $$;
	# Processes that were started later may have it open, too.
	shutdown $self->{orders}, 2;
	close $self->{orders};
	local $?;
	waitpid delete $self->{pid}, 0;
	return;
}

sub DESTROY
{
	my ($self) = @_;
	return $self->stop;
}

# Until there is nobody to give orders.
sub serve
{
	my ($tcp, $unix, $orders, $target) = @_;
	my ($mode, $word, $refused) = ('pass', '', 0);
	my $select = IO::Select->new($tcp, $unix, $orders);
	my %peer;

	my $end = sub {
		foreach my $socket (grep { defined } @_)
		{
			delete $peer{$socket};
			$select->remove($socket);
			close $socket;
		}
	};
	while (1)
	{
		foreach my $from ($select->can_read)
		{
			if ($from == $orders)
			{
				sysread($orders, my $order, 1000) or return;
				chomp $order;
				if ($order eq 'deaf')
				{
					$select->remove(map { $_->[0] } grep { $_->[2] } values %peer);
				}
				elsif ($order eq 'cut' || $order eq 'part')
				{
					$end->(map { $_->[0] } grep { $order eq 'cut' || !$_->[2] } values %peer);
				}
				elsif ($order ne 'refused')
				{
					($mode, $word) = split / /, $order, 2;
				}
				syswrite $orders, "$refused\n";
			}
			elsif ($from == $tcp || $from == $unix)
			{
				my $client = $from->accept or next;
				next if $mode eq 'refuse' && ++$refused;
				my $server;
				if ($mode eq 'silent')
				{
					++$refused;
				}
				else
				{
					$server = IO::Socket::UNIX->new(Peer => $target) or next;
					$peer{$server} = [ $server, $client, 1 ];
					$select->add($server);
				}
				$peer{$client} = [ $client, $server, 0 ];
				$select->add($client);
			}
			else
			{
				# Perhaps ended since, by its peer or an order.
				my $pair = $peer{$from} or next;
				my (undef, $to, $of_server) = @$pair;
				undef $to unless defined $to && $peer{$to};
				my $got = sysread $from, my $data, 65536;
				my $lost = !$got || ($mode eq 'cut' && !$of_server && index($data, $word) >= 0);
				if ($lost)
				{
					($mode, $word) = ('pass', '') if $got;
					$end->($from, $to);
				}
				elsif (defined $to)
				{
					syswrite $to, $data;
				}
				elsif (!$of_server && length $data == 8)
				{
					# A request for encryption.
					syswrite $from, 'N';
				}
			}
		}
	}
	return;
}

1;
