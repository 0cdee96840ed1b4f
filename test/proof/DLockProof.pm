# Clients that write histories, for the tests of this directory: building and
# running them, and judging what they have seen.

package DLockProof;

use strict;
use warnings FATAL => 'all';

use Carp;
use DLockHistory;
use DLockTest;
use File::Basename qw(dirname);
use PostgreSQL::Test::Utils;
use Test::More;

my $directory = dirname(__FILE__);
my $runs = 0;

# How much longer than asked for a run may take.
my $patience = 300;

# What has to have been judged, or a run shows little.
my @needed = ('grants', 'renewals', 'no answer', 'tokens compared', 'grants compared', 'leases seen');
my @needed_of_places = ('turns taken', 'turns compared', 'places seen');

# Compile a C program of this directory; returns its path.
sub build
{
	my ($source, @flags) = @_;
	my $program = "$PostgreSQL::Test::Utils::tmp_check/$source.$$";
	my $config = $ENV{PG_CONFIG} // 'pg_config';
	my ($include, $lib) = map { chomp(my $path = `$config $_`); $path } '--includedir', '--libdir';

	system($ENV{CC} // 'cc', '-D_GNU_SOURCE', '-O1', '-Wall', "-I$include", '-o', $program, "$directory/$source.c",
		"-L$lib", "-Wl,-rpath,$lib", @flags) == 0
	  or croak "cannot compile $source.c";
	return $program;
}

# How long a test is to run.
sub seconds
{
	my ($short) = @_;

	return $ENV{DLOCK_PROOF_SECONDS} // $short;
}

# Clients of a server, and one that watches.  Options:
#   count     how many
#   options   those of their server processes
#   flush     one more flushes now and then
#   work      what they do (work); see history_client.c
#   alone     without transactions around calls
#   direct    without places, either
#   listens   one more takes what the others have kept places for
sub new
{
	my ($class, $node, %params) = @_;
	my $self = bless {
		program => build('history_client', '-lpq'),
		directory => "$PostgreSQL::Test::Utils::log_path/history.$$." . ++$runs,
		options => $params{options} // '',
		work => $params{work} // 'work',
		words => [ $params{alone} ? 'alone' : (), $params{direct} ? 'direct' : () ],
		pids => [],
		work_of => {},
		needed => [ @needed, $params{listens} ? @needed_of_places : () ],
		started => 0,
		stopped => {},
	}, $class;

	mkdir $self->{directory} or croak "$self->{directory}: $!";
	$self->aim($node);
	$self->{others} = [ map { $self->start_client($_, '') } 'watch', $params{flush} ? 'flush' : () ];
	push @{ $self->{pids} }, map { $self->start_client($_, $self->{options}) } ($self->{work}) x $params{count}, $params{listens} ? 'listen' : ();
	return $self;
}

# Which server new connections go to.
sub aim
{
	my ($self, $node) = @_;
	my $file = "$self->{directory}/target";

	append_to_file("$file.new", $node->connstr('postgres') . "\n");
	rename "$file.new", $file or croak "$file: $!";
	return;
}

sub start_client
{
	my ($self, $what, $options) = @_;
	my $n = ++$self->{started};
	my $seed = int rand 2**31;
	my $pid = fork // croak "fork: $!";

	if ($pid == 0)
	{
		exec($self->{program}, "$self->{directory}/$n.history", "$self->{directory}/target", $seed, $what, $options, @{ $self->{words} })
		  or POSIX::_exit(127);
	}
	$self->{work_of}{$pid} = $what;
	return $pid;
}

# Kill a client in the middle of what it does; another one takes its place.
sub kill_one
{
	my ($self) = @_;
	my $place = int rand @{ $self->{pids} };
	my $pid = $self->{pids}[$place];

	$self->end_client($pid);
	$self->{pids}[$place] = $self->start_client($self->{work_of}{$pid}, $self->{options});
	return;
}

sub end_client
{
	my ($self, $pid) = @_;

	delete $self->{stopped}{$pid};
	kill 'KILL', $pid;
	waitpid $pid, 0;
	$? == 9 or croak "a client has ended by itself: $?";
	return;
}

# Stop a client for a while; go_on() lets it run again when that is over.
sub stop_one
{
	my ($self) = @_;
	my $pid = $self->{pids}[ int rand @{ $self->{pids} } ];

	kill 'STOP', $pid;
	$self->{stopped}{$pid} = mono_now() + 0.1 + rand 3;
	return;
}

sub go_on
{
	my ($self) = @_;

	foreach my $pid (grep { $self->{stopped}{$_} < mono_now() } keys %{ $self->{stopped} })
	{
		kill 'CONT', $pid;
		delete $self->{stopped}{$pid};
	}
	return;
}

# Has a run that was to end by now gone on for long enough to show something?
sub is_enough
{
	my ($self, $end) = @_;
	my $now = mono_now();

	return 0 if $now < $end;
	return 1 if $now > $end + $patience;
	my $count = DLockHistory::judge(DLockHistory::read_directory($self->{directory}))->{count};
	return !grep { !$count->{$_} } @{ $self->{needed} };
}

sub end
{
	my ($self) = @_;

	$self->end_client($_) foreach @{ $self->{others} }, @{ $self->{pids} };
	return;
}

# Judge what they have seen, as a test, and those of "with", which used the same server.  Other options are those of
# DLockHistory::judge.
sub is_right
{
	my ($self, $name, %params) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @seen = map { @{ DLockHistory::read_directory($_->{directory}) } } $self, @{ delete $params{with} // [] };
	my $verdict = DLockHistory::judge(\@seen, %params);
	my $findings = $verdict->{findings};

	diag join ', ', map { "$_ $verdict->{count}{$_}" } sort keys %{ $verdict->{count} };
	is(scalar @$findings, 0, $name)
	  or diag(join "\n", splice(@$findings, 0, 20), "the history is in $self->{directory}");
	cmp_ok($verdict->{count}{$_} // 0, '>', 0, "$name: $_") foreach @{ $self->{needed} };
	return;
}

1;
