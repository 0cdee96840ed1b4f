# A terminal of a test's own, with a program in it: a small emulator that knows the
# sequences that the dlock command uses, and minds all others.

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
	return eval { require IO::Pty; 1 };
}

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
		mind => [],
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
		@SIG{qw(INT QUIT)} = ('DEFAULT') x 2;
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

sub clear
{
	my ($self, $columns, $lines) = @_;

	@$self{qw(columns lines)} = ($columns, $lines);
	@$self{qw(row column style)} = (0, 0, '');
	$self->{cells} = [ map { [ (' ') x $columns ] } 1 .. $lines ];
	$self->{styles} = [ map { [ ('') x $columns ] } 1 .. $lines ];
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

# Take what the program has written.
sub read_output
{
	my ($self) = @_;

	while (1)
	{
		my $got = sysread $self->{pty}, my $bytes, 65536;
		last unless $got;
		$self->{raw} .= $bytes;
		$self->{input} .= $bytes;
	}
	1 while $self->step;
	return;
}

# How many frames the program has begun to draw since the output was this long; all
# before the last one of them are complete.
sub frames
{
	my ($self, $from) = @_;

	$self->read_output;
	return scalar(() = substr($self->{raw}, $from) =~ /\e\[1;1H/g);
}

sub mind
{
	my ($self, $what) = @_;

	push @{ $self->{mind} }, $what;
	return;
}

# Take one character or sequence; false if there is no whole one.
sub step
{
	my ($self) = @_;

	if ($self->{input} =~ s/\A\e\[(\??)([0-9;]*)([\@-~])//)
	{
		$self->control($1 . $3, split /;/, $2);
	}
	elsif ($self->{input} =~ /\A\e(?:\[[0-9;?]*)?\z/)
	{
		return 0;
	}
	elsif ($self->{input} =~ s/\A([\x00-\x1f\x7f])//)
	{
		$self->mind(sprintf 'the character 0x%02x', ord $1);
	}
	elsif ($self->{input} =~ s/\A([\x20-\x7e]|[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3})//)
	{
		$self->put(Encode::decode('UTF-8', $1));
	}
	elsif (length $self->{input} >= 4)
	{
		$self->mind(sprintf 'the byte 0x%02x', ord $self->{input});
		substr($self->{input}, 0, 1) = '';
	}
	else
	{
		return 0;
	}
	return 1;
}

sub control
{
	my ($self, $final, @numbers) = @_;

	if ($final eq 'H')
	{
		@$self{qw(row column)} = (($numbers[0] // 1) - 1, ($numbers[1] // 1) - 1);
		$self->mind("row $self->{row}") if $self->{row} >= $self->{lines};
	}
	elsif ($final eq 'G')
	{
		$self->{column} = $numbers[0] - 1;
	}
	elsif ($final eq 'K' && !@numbers)
	{
		$self->erase($self->{row}, $self->{column});
	}
	elsif ($final eq 'J' && ($numbers[0] // 0) == 2)
	{
		$self->erase($_, 0) foreach 0 .. $self->{lines} - 1;
	}
	elsif ($final eq 'm')
	{
		$self->{style} = ($numbers[0] // 0) == 0 ? '' : "$self->{style}$numbers[0] ";
	}
	elsif ($final =~ /^\?([hl])$/)
	{
		$self->{mode}{ $numbers[0] } = $1;
		$self->{entered}++ if "$numbers[0]$1" eq '1049h';
	}
	else
	{
		$self->mind("the sequence @numbers $final");
	}
	return;
}

sub erase
{
	my ($self, $row, $from) = @_;

	return if $row >= $self->{lines};
	foreach my $column ($from .. $self->{columns} - 1)
	{
		$self->{cells}[$row][$column] = ' ';
		$self->{styles}[$row][$column] = '';
	}
	return;
}

sub put
{
	my ($self, $char) = @_;
	my $width = $char =~ /\p{Mn}|\p{Me}|\p{Cf}/ ? 0 : $char =~ /[\p{EA=W}\p{EA=F}]/ ? 2 : 1;
	my ($row, $column) = @$self{qw(row column)};

	return if $row >= $self->{lines} || $width == 0;
	if ($column + $width > $self->{columns})
	{
		$self->mind("column $column of $self->{columns} for \"$char\"");
		return;
	}
	$self->{cells}[$row][$column] = $char;
	$self->{cells}[$row][ $column + 1 ] = '' if $width == 2;
	$self->{styles}[$row][$column] = $self->{style};
	$self->{column} += $width;
	return;
}

# What the screen shows, without blanks at the ends of lines.
sub text
{
	my ($self) = @_;

	return join '', map { s/ +$//r . "\n" } map { join '', @$_ } @{ $self->{cells} };
}

# The line that matches, and the style of its beginning.
sub line_like
{
	my ($self, $pattern) = @_;

	foreach my $row (0 .. $self->{lines} - 1)
	{
		my $line = join '', @{ $self->{cells}[$row] };
		return ($line =~ s/ +$//r, $self->{styles}[$row][0]) if $line =~ $pattern;
	}
	return;
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

# What is wrong with what was written up to now: sequences that are not known,
# control characters, text outside of the screen.  Is forgotten thereby.
sub complaints
{
	my ($self) = @_;

	$self->read_output;
	my $text = join ', ', @{ $self->{mind} };
	$self->{mind} = [];
	return $text;
}

# Is the terminal as it was before?  A text that says what is not.
sub left_behind
{
	my ($self) = @_;
	my @found;

	$self->read_output;
	push @found, 'the other screen' if ($self->{mode}{1049} // '') ne 'l';
	push @found, 'no cursor' if ($self->{mode}{25} // '') ne 'h';
	push @found, 'no wrapping' if ($self->{mode}{7} // '') ne 'h';
	push @found, "style $self->{style}" if $self->{style} ne '';
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
