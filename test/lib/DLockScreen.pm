# A terminal of a test's own, with a program in it.  What the program writes goes to
# Term::VT102, which knows what the screen shows.

package DLockScreen;

use strict;
use warnings FATAL => 'all';

use Carp;
use DLockTest qw(wait_until);
use Encode ();
use POSIX ();

# Can there be one?
sub is_possible
{
	return eval { require IO::Pty; require Term::VT102; 1 };
}

# The emulator has one cell for a character.  A wide one is given another, which is
# not shown.
my $second_cell = "\x{E000}";

# What each frame begins with.
my $frame_begin = "\e[1;1H";

# Start a program in a new terminal of so many columns and lines.  Its standard
# error goes to a file.
sub start
{
	my ($class, $columns, $lines, $err_file, @command) = @_;
	my $pty = IO::Pty->new;
	my $slave = $pty->slave;
	my $self = bless {
		pty => $pty,
		slave => $slave,
		err_file => $err_file,
		input => '',
		raw => '',
		complaints => [],
		entered => 0,
	}, $class;

	$slave->set_winsize($lines, $columns);
	$self->clear($columns, $lines);
	$self->{before} = $self->modes;
	my $pid = fork // croak "fork: $!";
	if ($pid == 0)
	{
		$ENV{TERM} = 'xterm';

		# Whoever runs the tests in the background ignores them.
		@SIG{qw(INT QUIT HUP)} = ('DEFAULT') x 3;
		$pty->make_slave_controlling_terminal;
		close $pty;
		open STDIN, '<&', $slave or POSIX::_exit(200);
		open STDOUT, '>&', $slave or POSIX::_exit(200);
		open STDERR, '>', $err_file or POSIX::_exit(200);
		close $slave;
		{ no warnings; exec { $command[0] } @command };
		POSIX::_exit(201);
	}
	$self->{pid} = $pid;
	$pty->blocking(0);
	return $self;
}

# An empty screen.  What it cannot do, and what goes beyond the end of a line, is
# complained of.
sub clear
{
	my ($self, $columns, $lines) = @_;
	my $complain = sub { push @{ $self->{complaints} }, "@_" };
	my $screen = Term::VT102->new(cols => $columns, rows => $lines);

	$screen->option_set('LINEWRAP', 1);
	$screen->callback_set('LINEFEED', sub { $complain->("more than $columns columns") });
	$screen->callback_set(
		'UNKNOWN',
		sub {
			my ($what) = ($_[3] // '') =~ /^\e\[(.*)$/s;

			# The other screen, and wrapping.
			if (($what // '') =~ /^\?(1049|7)([hl])$/)
			{
				$self->{mode}{$1} = $2;
				$self->{entered}++ if $what eq '?1049h';
			}
			else
			{
				$complain->('the sequence ' . ($what // $_[2]));
			}
		});
	@$self{qw(screen lines)} = ($screen, $lines);
	return;
}

# Give it another size, which tells the program.
sub resize
{
	my ($self, $columns, $lines) = @_;

	# What was drawn for the old size must not be taken for the new one.
	$self->read_output;
	$self->clear($columns, $lines);
	$self->{slave}->set_winsize($lines, $columns);
	return;
}

# What the program has changed about the terminal, to be compared.
sub modes
{
	my ($self) = @_;
	my $termios = POSIX::Termios->new;

	$termios->getattr(fileno $self->{slave}) or croak "getattr: $!";
	return join ' ', $termios->getiflag, $termios->getoflag, $termios->getcflag, $termios->getlflag,
	  map { $termios->getcc($_) } 0 .. POSIX::NCCS() - 1;
}

sub press
{
	my ($self, $keys) = @_;

	syswrite $self->{pty}, $keys;
	return;
}

# Take what the program has written.  With "whole", the frame that was begun last is left
# for later, since nothing tells whether it is complete.
sub read_output
{
	my ($self, $whole) = @_;
	my $rest = '';

	while (1)
	{
		my $got = sysread $self->{pty}, my $bytes, 65536;
		last unless $got;
		$self->{raw} .= $bytes;
		$self->{input} .= $bytes;
	}

	if ($whole)
	{
		my $begin = rindex $self->{input}, $frame_begin;

		$rest = substr $self->{input}, $begin < 0 ? 0 : $begin, length $self->{input}, '';
	}

	# The last character may not be complete.
	my $text = Encode::decode('UTF-8', $self->{input}, Encode::FB_QUIET);
	push @{ $self->{complaints} }, 'what is not UTF-8' if length $self->{input} >= 4;
	push @{ $self->{complaints} }, sprintf 'the character 0x%02x', ord $1 if $text =~ /([\x00-\x1a\x1c-\x1f\x7f-\x9f])/;
	push @{ $self->{complaints} }, "row $1" if grep { $_ > $self->{lines} } $text =~ /\e\[(\d+);\d+H/g;
	$text =~ s/[\p{Mn}\p{Me}\p{Cf}]//g;
	$text =~ s/([\p{EA=W}\p{EA=F}])/$1$second_cell/g;
	$self->{screen}->process($text);
	$self->{input} .= $rest;
	return;
}

# How many frames the program has begun to draw since the output was this long; all
# before the last one of them are complete.
sub frames
{
	my ($self, $from) = @_;

	$self->read_output;
	return scalar(() = substr($self->{raw}, $from) =~ /\Q$frame_begin\E/g);
}

# What the screen shows, without blanks at the ends of lines.
sub text
{
	my ($self) = @_;

	return join '', map { $self->line($_) . "\n" } 1 .. $self->{lines};
}

sub line
{
	my ($self, $row) = @_;

	return $self->{screen}->row_plaintext($row) =~ s/$second_cell//gr =~ s/ +$//r;
}

# The line that matches, and the style of its beginning.
sub line_like
{
	my ($self, $pattern) = @_;

	foreach my $row (1 .. $self->{lines})
	{
		my $line = $self->line($row);
		return ($line, style_of($self->{screen}->row_attr($row, 1, 1))) if $line =~ $pattern;
	}
	return;
}

sub style_of
{
	my @is = Term::VT102::attr_unpack($_[0]);

	return join ' ', $is[2] ? 'bold' : (), $is[3] ? 'dim' : (), $is[5] ? 'underlined' : (), $is[7] ? 'reverse' : ();
}

# Wait until the screen shows something like that.
sub shows
{
	my ($self, $pattern) = @_;

	return wait_until(
		sub {
			$self->read_output;
			return $self->text =~ $pattern;
		});
}

# The same for a frame that is complete, so that all of it can be looked at.  There is to
# be another one after it.
sub shows_whole
{
	my ($self, $pattern) = @_;

	return wait_until(
		sub {
			$self->read_output(1);
			return $self->text =~ $pattern;
		});
}

# What is wrong with what was written up to now: sequences that are not known,
# control characters, text outside of the screen.  Is forgotten thereby.
sub complaints
{
	my ($self) = @_;

	$self->read_output;
	my $text = join ', ', @{ $self->{complaints} };
	$self->{complaints} = [];
	return $text;
}

# Is the terminal as it was before?  A text that says what is not.
sub left_behind
{
	my ($self) = @_;
	my @found;

	$self->read_output;
	push @found, 'the other screen' if ($self->{mode}{1049} // '') ne 'l';
	push @found, 'no cursor' if !$self->{screen}->cursor;
	push @found, 'no wrapping' if ($self->{mode}{7} // '') ne 'h';
	push @found, 'a style' if style_of(($self->{screen}->status)[2]) ne '';
	push @found, 'modes' if $self->modes ne $self->{before};
	return join ', ', @found;
}

# Wait for the end of the program; returns its exit code, or "signal N".
sub finish
{
	my ($self) = @_;
	my $status;

	wait_until(
		sub {
			$self->read_output if defined $self->{pty};
			return 0 if waitpid($self->{pid}, POSIX::WNOHANG()) != $self->{pid};
			$status = $?;
			return 1;
		}) or $self->kill;
	return 'it does not end' unless defined $status;
	return $status & 127 ? 'signal ' . ($status & 127) : $status >> 8;
}

sub kill
{
	my ($self) = @_;

	CORE::kill('KILL', $self->{pid});
	waitpid $self->{pid}, 0;
	return;
}

1;
