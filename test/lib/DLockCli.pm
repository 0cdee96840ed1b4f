# Running the dlock command: cli() runs it to its end, DLockCli->start() leaves it
# running.  Standard output and error go to files, so nothing waits for a reader.

package DLockCli;

use strict;
use warnings FATAL => 'all';

use Carp;
use DLockTest qw(mono_now wait_until);
use Exporter 'import';
use IO::Select;
use IO::Socket::UNIX;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(cli cli_is cli_program end_proxy end_ride start_proxy start_ride use_server run_waits set_timeouts waits_anew without_release_answers);

my $number = 0;

# The program under test.
sub cli_program
{
	return $ENV{DLOCK_CLI} if defined $ENV{DLOCK_CLI};
	chomp(my $bindir = `$ENV{PG_CONFIG} --bindir`);
	return "$bindir/dlock";
}

# Have all commands from now on connect to this server.
sub use_server
{
	my ($node, $dbname) = @_;

	@ENV{qw(PGHOST PGPORT PGDATABASE)} = ($node->host, $node->port, $dbname // 'postgres');

	# What the command calls itself is to be seen.
	delete $ENV{PGAPPNAME};
	return;
}

# Start the command with these arguments.  The first may be a hash of options:
#   in       text for its standard input, or "inherit"
#   out      where its standard output goes, instead of a file: a handle
#   env      variables to set
#   program  what to start instead; then the arguments are that program's
#   before   code to be run in the new process
sub start
{
	my ($class, @args) = @_;
	my %params = ref $args[0] ? %{ shift @args } : ();
	my $base = PostgreSQL::Test::Utils::tempdir_short() . '/cli.' . ++$number;
	my $self = bless { out_file => "$base.out", err_file => "$base.err" }, $class;

	note "dlock @args";
	if (($params{in} // '') ne 'inherit')
	{
		open my $in, '>', "$base.in" or croak "$base.in: $!";
		print $in $params{in} // '';
		close $in;
	}
	$self->{started} = mono_now();
	my $pid = fork // croak "fork: $!";
	if ($pid == 0)
	{
		%ENV = (%ENV, %{ $params{env} // {} });
		POSIX::setpgid(0, 0);

		# Shells and test harnesses have some ignored.
		$SIG{$_} = 'DEFAULT' foreach qw(INT QUIT HUP PIPE TERM);
		($params{in} // '') eq 'inherit' or open STDIN, '<', "$base.in" or POSIX::_exit(200);
		open STDERR, '>', "$base.err" or POSIX::_exit(200);
		if (defined $params{out})
		{
			open STDOUT, '>&', $params{out} or POSIX::_exit(200);
		}
		else
		{
			open STDOUT, '>', "$base.out" or POSIX::_exit(200);
		}
		$params{before}->() if $params{before};
		{ no warnings; exec { $params{program} // cli_program() } $params{program} // 'dlock', @args };
		POSIX::_exit(201);
	}
	$self->{pid} = $pid;
	return $self;
}

# Has it ended?
sub ended
{
	my ($self) = @_;

	return 1 if defined $self->{status};
	return 0 if waitpid($self->{pid}, POSIX::WNOHANG()) != $self->{pid};
	$self->{status} = $?;
	$self->{ended} = mono_now();
	return 1;
}

# Wait for its end.  Afterwards there are the fields code (exit code), signal, out
# and err.
sub finish
{
	my ($self) = @_;

	if (!wait_until(sub { $self->ended }))
	{
		kill 'KILL', $self->{pid};
		waitpid $self->{pid}, 0;
		croak 'the command does not end: ' . $self->err;
	}
	$self->{code} = $self->{status} >> 8;
	$self->{signal} = $self->{status} & 127;
	$self->{out} = $self->out;
	$self->{err} = $self->err;
	return $self;
}

# What it has printed up to now.
sub out
{
	my ($self) = @_;
	return -e $self->{out_file} ? slurp_file($self->{out_file}) : '';
}

sub err
{
	my ($self) = @_;
	return -e $self->{err_file} ? slurp_file($self->{err_file}) : '';
}

# Wait until it has printed something like that.
sub wait_out
{
	my ($self, $pattern) = @_;

	wait_until(sub { $self->out =~ $pattern })
	  or croak "it does not print $pattern: " . $self->out . $self->err;
	return $self->out =~ $pattern;
}

sub wait_err
{
	my ($self, $pattern) = @_;

	wait_until(sub { $self->err =~ $pattern })
	  or croak "it does not say $pattern: " . $self->err;
	return;
}

sub signal
{
	my ($self, $signal) = @_;

	kill $signal, $self->{pid};
	return;
}

# Run the command to its end.
sub cli
{
	return DLockCli->start(@_)->finish;
}

# Run the command and test its exit code, and what it prints if that is given.
# "err" is what stderr has to be like; it must be empty otherwise.
sub cli_is
{
	my ($args, $expected, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $run = cli(@$args);

	is($run->{signal} ? "signal $run->{signal}" : $run->{code}, $expected->{code} // 0, "$test_name: exit code")
	  or diag($run->{err});
	if (ref $expected->{out})
	{
		like($run->{out}, $expected->{out}, "$test_name: output");
	}
	elsif (defined $expected->{out})
	{
		is($run->{out}, $expected->{out}, "$test_name: output");
	}
	if (ref $expected->{err})
	{
		like($run->{err}, $expected->{err}, "$test_name: message");
	}
	else
	{
		is($run->{err}, $expected->{err} // '', "$test_name: message");
	}
	return $run;
}

# Start "dlock run" with these arguments: its command prints its token, and ends with
# code 3 when end_ride() allows it to.
sub start_ride
{
	my (@args) = @_;

	my $go = PostgreSQL::Test::Utils::tempdir_short() . '/go';
	my $run = DLockCli->start('run', @args, 'sh', '-c', "echo \"token \$DLOCK_TOKEN\"; while [ ! -e $go ]; do sleep 0.05; done; exit 3");
	$run->{go} = $go;
	$run->wait_out(qr/token \d/);
	return $run;
}

sub end_ride
{
	my ($run) = @_;

	append_to_file($run->{go}, '');
	return $run->finish;
}

# Wait until somebody waits for a lock.
sub run_waits
{
	my ($node, $name, $count) = @_;

	$node->poll_query_until('postgres',
		"SELECT count(*) = " . ($count // 1) . " FROM dlock_waiters WHERE name = '$name'")
	  or croak "nobody waits for $name";
	return;
}

# Set these timeouts of the server, for sessions that are there, too, from their next statement on: a command that
# has connected is not ended by them before it can turn them off.  Sessions of the test itself have none.
sub set_timeouts
{
	my ($node, %timeouts) = @_;
	local $ENV{PGUSER} = getpwuid $>;
	my $loaded = 'SELECT pg_conf_load_time()';
	my $before = $node->safe_psql('postgres', $loaded);

	foreach my $name (keys %timeouts)
	{
		$node->safe_psql('postgres', "ALTER ROLE CURRENT_USER SET $name = 0; ALTER SYSTEM SET $name = '$timeouts{$name}'");
	}
	$node->reload;
	wait_until(sub { $node->safe_psql('postgres', $loaded) ne $before }) or croak 'the configuration is not read';
	return;
}

# Cancel the statement of a role that waits, or will, and wait until the next one has waited for so many seconds.
sub waits_anew
{
	my ($node, $role, $seconds) = @_;
	local $ENV{PGUSER} = getpwuid $>;
	my $waits = "FROM pg_stat_activity WHERE usename = '$role' AND state = 'active' AND wait_event_type = 'Extension'";
	my $since;

	wait_until(sub { ($since) = split /\|/, $node->safe_psql('postgres', "SELECT clock_timestamp(), pg_cancel_backend(pid) $waits"); defined $since })
	  or croak "nothing of $role waits";
	return $node->poll_query_until('postgres',
		"SELECT count(*) = 1 $waits AND query_start > '$since' AND query_start < clock_timestamp() - interval '$seconds s'");
}

# Run code while the answer to each first of two requests to release by token is lost on
# its way, the lease being released.
sub without_release_answers
{
	my ($node, $code) = @_;

	$node->safe_psql(
		'postgres', q{
		ALTER FUNCTION dlock_release_token(text, bigint) RENAME TO dlock_hidden;
		CREATE SEQUENCE release_requests;
		CREATE FUNCTION dlock_release_token(text, bigint) RETURNS boolean LANGUAGE plpgsql AS '
			BEGIN
				IF nextval(''release_requests'') % 2 = 0 THEN RETURN dlock_hidden($1, $2); END IF;
				PERFORM dlock_hidden($1, $2);
				PERFORM pg_terminate_backend(pg_backend_pid());
				PERFORM pg_sleep(180);
			END'});
	$code->();
	is($node->safe_psql('postgres', 'SELECT last_value FROM release_requests'), 2, 'the release was asked for twice');
	$node->safe_psql(
		'postgres', q{
		DROP FUNCTION dlock_release_token(text, bigint);
		DROP SEQUENCE release_requests;
		ALTER FUNCTION dlock_hidden(text, bigint) RENAME TO dlock_release_token});
	return;
}

# Something between the command and the server that passes on what it gets so many
# seconds later.  Returns the directory of its socket, and the process group that it is.
sub start_proxy
{
	my ($node, $delay) = @_;
	my $proxy = PostgreSQL::Test::Utils::tempdir_short();
	my $socket = '.s.PGSQL.' . $node->port;
	my $server = IO::Socket::UNIX->new(Local => "$proxy/$socket", Listen => 10) or die "$proxy: $!";
	my $pid = fork // die "fork: $!";

	if ($pid == 0)
	{
		POSIX::setpgid(0, 0);
		$SIG{CHLD} = 'IGNORE';
		while (1)
		{
			my $client = $server->accept or next;
			next if fork;
			my $backend = IO::Socket::UNIX->new(Peer => $node->host . "/$socket") or POSIX::_exit(1);
			my $select = IO::Select->new($client, $backend);
			while (1)
			{
				foreach my $from ($select->can_read)
				{
					sysread($from, my $data, 65536) or POSIX::_exit(0);
					select undef, undef, undef, $delay;
					syswrite($from == $client ? $backend : $client, $data) or POSIX::_exit(0);
				}
			}
		}
	}
	POSIX::setpgid($pid, $pid);
	return ($proxy, $pid);
}

sub end_proxy
{
	my ($pid) = @_;

	kill 'KILL', -$pid;
	waitpid $pid, 0;
	return;
}

1;
