# What a history (DLockHistory.pm) tells of places in queues: the rules "lost" and "left", and
# what the rule "order" has to know.

package DLockPlaces;

use strict;
use warnings FATAL => 'all';

use List::Util qw(max min);

my $never = 9e18;

# What the places of a client were granted.
sub understand_take
{
	my ($self, $call, $granted) = @_;
	my ($client, $wait, $keep) = @{ $call->{args} };
	my @rows = split /,/, $call->{value};

	push @{ $self->{takes}{$client} }, $call;
	$self->found('early', "$client took nothing after " . ($call->{came} - $call->{sent}) . " us of $wait ms")
	  if $granted && !@rows && !$self->{rows} && $call->{came} < $call->{sent} + 1000 * $wait;
	foreach my $row ($granted ? @rows : ())
	{
		my ($name, $owner, $token) = split /:/, $row;
		my $ask = $self->{first}{"$owner $name"};

		$call->{taken}{"$owner $name"} = $token || undef;
		if (!$ask || $ask->{sent} > $call->{came} || $owner !~ /^\Q$client\E#/)
		{
			$self->found('stray', "$client took $row, which nobody had asked for");
		}
		elsif (!$token)
		{
			$self->found('deadlock', "$owner asked for $name");
		}
		else
		{
			$self->add_lease({ %$ask, came => $call->{came}, server => $call->{server} },
				$name, $ask->{sent}, max($ask->{sent}, $call->{sent}), $token);
			$self->{count}{'turns taken'}++;
		}
	}
	return;
}

# While a place is in its queue for sure, and from when on what was asked for is not.
sub find_stays
{
	my ($self, $key) = @_;
	my ($owner, $name) = split / /, $key;
	my @asks = @{ $self->{asks}{$key} };
	my ($stay, $unsure);

	foreach my $i (0 .. $#asks)
	{
		my $ask = $asks[$i];
		my (undef, undef, $mode, $ttl, undef, $attempt, $keep) = @{ $ask->{args} };
		my $since = $ask->{came};
		my $gone;

		if ($stay)
		{
			$since = $stay->{since} if $stay->{server} eq $ask->{server} && $ask->{came} <= $stay->{holds};
			end_stay($self, $stay, $ask, $ask->{status} eq 'ok' ? $ask->{value} : undef);
			undef $stay;
		}
		if ($ask->{status} eq 'none' && $keep)
		{
			$stay = {
				key => $key,
				owner => $owner,
				name => $name,
				mode => $mode,
				server => $ask->{server},
				sent => $ask->{sent},
				# From then on it is there; what was asked for after that has not passed it by.
				from => $ask->{came},
				since => $since,
				# It ends no earlier, misses no turn before, and has ended.
				kept => $ask->{sent} + 1000 * $keep,
				holds => $ask->{sent} + 1000 * min($keep, $ttl),
				over => $ask->{came} + 1000 * $keep,
			};
			$gone = follow_takes($self, $stay);
			undef $stay if $stay->{until};
		}
		elsif ($ask->{status} ne 'error' || $attempt eq 'first')
		{
			$gone = $ask->{came};
		}

		# Where the answer was lost, the call may go on for a while.
		$unsure ||= $ask->{status} eq 'lost';
		push @{ $self->{gone}{$key} }, { server => $ask->{server}, at => $gone, until => $i < $#asks ? $asks[ $i + 1 ]{sent} : $never }
		  if defined $gone && !$unsure && !$self->{converted}{$key};
	}
	end_stay($self, $stay, { sent => $never, came => $never }) if $stay;
	return;
}

# What takes of its client make of a place.  Returns from when on it has gone.
sub follow_takes
{
	my ($self, $stay) = @_;
	my $client = $stay->{owner} =~ s/#.*//r;

	foreach my $take (sort { $a->{sent} <=> $b->{sent} } @{ $self->{takes}{$client} // [] })
	{
		my $keep = 1000 * $take->{args}[2];
		my $least = max($take->{sent}, $stay->{sent}) + $keep;
		my $is_taken = exists $take->{taken}{ $stay->{key} };

		next if $take->{server} ne $stay->{server} || $take->{came} < $stay->{sent};
		last if $take->{sent} > $stay->{over};

		# Where it has failed, a place that was granted has gone.
		end_stay($self, $stay, $take, $take->{taken}{ $stay->{key} }) if !$stay->{until} && ($is_taken || $take->{status} !~ /^(?:ok|part)$/);
		return max($take->{came}, $stay->{from}) if $is_taken;
		$stay->{over} = $take->{status} eq 'lost' ? $never : max($stay->{over}, $take->{came} + $keep);
		$stay->{kept} = !$self->{rows} && $take->{sent} >= $stay->{from} && $stay->{kept} >= $take->{came} ? $least : min($stay->{kept}, $least);
	}
	return $stay->{over};
}

# A place has been asked for again, or taken.
sub end_stay
{
	my ($self, $stay, $call, $token) = @_;
	my $in_time = defined $token && $call->{came} <= $stay->{holds};

	$stay->{until} = min($stay->{kept}, $call->{sent});
	push @{ $self->{stays} }, $stay;
	push @{ $self->{requests} },
	  {
		%$stay,
		seen => $stay->{since},
		token => $in_time ? $token : undef,
		end => $in_time ? $call->{came} : min($stay->{holds}, $stay->{until}),
	  };
	return;
}

# A view of the queues shows the places that are kept, and nothing that has gone.
sub judge_queues
{
	my ($self) = @_;
	my %looks;

	foreach my $look (sort { $a->{sent} <=> $b->{sent} } grep { $_->{what} eq 'waiters' } @{ $self->{looks} })
	{
		$look->{rows} = { map { join(' ', reverse split /:/) => 1 } split /,/, $look->{value} };
		push @{ $looks{ $look->{server} } }, $look if $look->{status} eq 'ok';
		foreach my $key (keys %{ $look->{rows} })
		{
			my ($gone) = grep { $_->{server} eq $look->{server} && $_->{at} < $look->{sent} && $look->{came} < $_->{until} } @{ $self->{gone}{$key} // [] };

			$self->found('left', "$key is in the queue at $look->{sent}, though it had gone by $gone->{at}") if $gone;
			$self->{count}{'rows of queues'}++;
		}
	}
	foreach my $stay (@{ $self->{stays} })
	{
		my $list = $looks{ $stay->{server} } // [];

		for (my $i = DLockHistory::first_after($list, 'sent', $stay->{from}); $i < @$list && $list->[$i]{sent} < $stay->{until}; $i++)
		{
			next if $list->[$i]{came} >= $stay->{until};
			$self->{count}{'places seen'}++;
			$self->found('lost', "the place of $stay->{owner} for $stay->{name} is missing at $list->[$i]{sent}") if !$list->[$i]{rows}{ $stay->{key} };
		}
	}
	return;
}

1;
