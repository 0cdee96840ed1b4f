# The rules of dlock as plain as can be: a list of leases, a list of those who wait,
# and a clock that is set by hand.  Nothing is fast here, so that all of it can be
# seen to be right.
#
# A request is a hash of
#   owner, ttl, permits, reentry, bind, delay, min_hold, payload    as in SQL; ttl undef: no deadline
#   items    what it asks for, an array of { name, mode, part }, where part is "whole",
#            "path" (the name of a path) or "intent" (an ancestor of it)
#   convert  instead of items: the lease to convert, and "mode" to which
# and a lease is a hash of
#   token, owner, name, mode, permits, holds, ttl, bind, payload
#   parts     the same as items
#   deadline  when it ends; undef: never
#   delay     for how long it keeps others out after that
#   min_until before that a release is not the end for others
#   opens     it is over for its owner, and keeps others out until then

package DLockModel;

use strict;
use warnings FATAL => 'all';

use List::Util qw(any first min max uniq);

# Who may hold a lock beside whom.
my %compatible = (
	NL => { map { $_ => 1 } qw(NL CR CW PR PW EX) },
	CR => { map { $_ => 1 } qw(NL CR CW PR PW) },
	CW => { map { $_ => 1 } qw(NL CR CW) },
	PR => { map { $_ => 1 } qw(NL CR PR) },
	PW => { map { $_ => 1 } qw(NL CR) },
	EX => { map { $_ => 1 } qw(NL) },
	permit => {},);
my @modes = sort keys %compatible;
my %intent = (NL => 'NL', CR => 'CR', PR => 'CR', CW => 'CW', PW => 'CW', EX => 'CW');
my %word = (EX => 'exclusive', PR => 'shared');

sub new
{
	my ($class) = @_;

	return bless { now => 0, leases => [], waiting => [] }, $class;
}

sub now { return $_[0]{now}; }

sub advance
{
	my ($self, $seconds) = @_;

	$self->{now} += $seconds;
	return;
}

sub word { return $word{ $_[0] } // $_[0]; }

# Does holding "strong" keep out whomever "weak" keeps out?
sub covers
{
	my ($strong, $weak) = @_;

	return !any { !$compatible{$weak}{$_} && $compatible{$strong}{$_} } @modes;
}

# What a path asks for: its name, and an intent on each ancestor.
sub path_items
{
	my ($path, $mode) = @_;
	my @items = ({ name => $path, mode => $mode, part => $path =~ m{/} ? 'path' : 'whole' });

	while ($path =~ s{/[^/]*$}{})
	{
		push @items, { name => $path, mode => $intent{$mode}, part => 'intent' };
	}
	return \@items;
}

# ---------------------------------------------------------------------------
# Leases
# ---------------------------------------------------------------------------

sub is_live
{
	my ($self, $lease) = @_;

	return !defined $lease->{opens} && (!defined $lease->{deadline} || $self->{now} < $lease->{deadline});
}

# Until when it keeps others out; undef: for ever.
sub blocks_until
{
	my ($lease) = @_;

	return $lease->{opens} if defined $lease->{opens};
	return defined $lease->{deadline} ? $lease->{deadline} + $lease->{delay} : undef;
}

# Those that keep others out, oldest first.
sub leases
{
	my ($self) = @_;
	my $now = $self->{now};

	@{ $self->{leases} } = grep {
		my $until = blocks_until($_);
		!defined $until || $now < $until
	} @{ $self->{leases} };
	return @{ $self->{leases} };
}

# The parts of leases on a lock: pairs of lease and mode.
sub holders
{
	my ($self, $name) = @_;

	return map {
		my $lease = $_;
		map { [ $lease, $_->{mode} ] } grep { $_->{name} eq $name } @{ $lease->{parts} }
	} $self->leases;
}

# The live lease of that name, by owner or by token.
sub find
{
	my ($self, $name, %by) = @_;

	return first
	{
		$_->{name} eq $name && $self->is_live($_)
		  && (!defined $by{owner} || $_->{owner} eq $by{owner})
		  && (!defined $by{token} || $_->{token} == $by{token})
	}
	$self->leases;
}

# ---------------------------------------------------------------------------
# Those who wait
# ---------------------------------------------------------------------------

# In the order of the queue of a lock: pairs of request and mode.
sub queue
{
	my ($self, $name) = @_;
	my @convert = grep { $_->{convert} && $_->{convert}{name} eq $name } @{ $self->{waiting} };
	my @others = map {
		my $request = $_;
		map { [ $request, $_->{mode} ] } grep { $_->{name} eq $name } @{ $request->{items} }
	} grep { !$_->{convert} } @{ $self->{waiting} };

	return ((map { [ $_, $_->{mode} ] } @convert), @others);
}

# Who is in the way of a request for a lock: owners, holders first.  "before" is
# the request itself, if it waits.
sub in_the_way
{
	my ($self, $name, $mode, %params) = @_;
	my $own = $params{own};
	my @holders = grep { !$own || $_->[0] != $own } $self->holders($name);
	my @ahead;

	foreach my $place ($self->queue($name))
	{
		last if $params{before} && $place->[0] == $params{before};
		last if $own && !$place->[0]{convert};
		push @ahead, $place;
	}
	if ($mode eq 'permit')
	{
		return () if @holders + @ahead < $params{permits};
		return uniq map { $_->[0]{owner} } @holders, @ahead;
	}
	return uniq map { $_->[0]{owner} } grep { !$compatible{$mode}{ $_->[1] } } @holders, @ahead;
}

# The number of permits that a lock is used with, 0 for modes; undef: not in use.
sub permits
{
	my ($self, $name) = @_;
	my ($user) = map { $_->[0] } $self->holders($name), $self->queue($name);

	return $user ? $user->{permits} // 0 : undef;
}

# Who waits for whom: a hash from owner to a hash of owners.
sub edges
{
	my ($self) = @_;
	my %edges;

	foreach my $request (@{ $self->{waiting} })
	{
		foreach my $row ($self->waiter_rows($request))
		{
			$edges{ $request->{owner} }{$_} = 1 foreach @{ $row->{blocked_by} };
		}
	}
	return \%edges;
}

# Is there a ring among those who wait?
sub has_ring
{
	my ($self) = @_;
	my $edges = $self->edges;
	my %left = map { $_ => 1 } keys %$edges;

	# Take away whoever waits only for those who do not, until nobody is left.
	while (1)
	{
		my @free = grep { !any { $left{$_} } keys %{ $edges->{$_} } } keys %left;
		return %left ? 1 : 0 if !@free;
		delete @left{@free};
	}
}

# What dlock_waiters shows of a request.
sub waiter_rows
{
	my ($self, $request) = @_;
	my @items =
	  $request->{convert}
	  ? { name => $request->{convert}{name}, mode => $request->{mode} }
	  : @{ $request->{items} };
	my @rows;

	foreach my $item (@items)
	{
		my $position = 0;
		foreach my $place ($self->queue($item->{name}))
		{
			$position++;
			last if $place->[0] == $request;
		}
		push @rows,
		  {
			name => $item->{name},
			owner => $request->{owner},
			mode => word($item->{mode}),
			permits => $request->{permits} // '',
			request => $request->{convert} ? 'convert' : 'acquire',
			position => $position,
			blocked_by => [
				$self->in_the_way(
					$item->{name}, $item->{mode},
					own => $request->{convert},
					permits => $request->{permits},
					before => $request)
			],
		  };
	}
	return @rows;
}

# ---------------------------------------------------------------------------
# What can be asked
# ---------------------------------------------------------------------------

# What a request meets: "grant", "reenter", "blocked", "self", or the SQLSTATE of
# an error.  Changes nothing.
sub decide
{
	my ($self, $request) = @_;
	my $blocked = 0;
	my $own;

	foreach my $item (@{ $request->{items} })
	{
		my $permits = $self->permits($item->{name});

		return '22023' if defined $permits && $permits != ($request->{permits} // 0);
		my $mine = $item->{part} eq 'intent' ? undef : $self->find($item->{name}, owner => $request->{owner});
		if ($mine)
		{
			$own = $mine;
			return '55000' if $mine->{parts}[0]{part} ne $item->{part} && $request->{reentry} ne 'deny';
		}
		elsif ($self->in_the_way($item->{name}, $item->{mode}, permits => $request->{permits}))
		{
			$blocked = 1;
		}
	}
	if ($own)
	{
		return 'self' if $request->{reentry} eq 'deny';
		my $asked = $request->{items}[0]{mode};
		return '55000' if $asked ne 'permit' && !covers($own->{mode}, $asked);
		return 'reenter';
	}
	return $blocked ? 'blocked' : 'grant';
}

# Give it what it asks for, with these tokens: one for each item, or one for a path.
sub grant
{
	my ($self, $request, @tokens) = @_;
	my @items = @{ $request->{items} };
	my @groups = (any { $_->{part} ne 'whole' } @items) ? \@items : map { [$_] } @items;

	foreach my $parts (@groups)
	{
		push @{ $self->{leases} },
		  {
			token => shift @tokens,
			owner => $request->{owner},
			name => $parts->[0]{name},
			mode => $parts->[0]{mode},
			permits => $request->{permits},
			holds => 1,
			ttl => $request->{ttl},
			deadline => defined $request->{ttl} ? $self->{now} + $request->{ttl} : undef,
			delay => $request->{delay} // 0,
			min_until => $self->{now} + ($request->{min_hold} // 0),
			bind => $request->{bind} // 'none',
			payload => $request->{payload} // '',
			parts => [ map { {%$_} } @$parts ],
		  };
	}
	return;
}

# Enter again what the owner holds; returns the lease.
sub reenter
{
	my ($self, $request) = @_;
	my $lease = $self->find($request->{items}[0]{name}, owner => $request->{owner});

	$lease->{holds}++ if $request->{reentry} eq 'count';
	if (defined $lease->{ttl})
	{
		my $ttl = $request->{ttl} // $lease->{ttl};
		$lease->{deadline} = max($lease->{deadline}, $self->{now} + $ttl);
		$lease->{ttl} = max($lease->{ttl}, $ttl);
	}
	return $lease;
}

# What a conversion of a live lease meets: "keep" (the token), "grant" (a new one),
# "blocked", or an SQLSTATE.
sub decide_convert
{
	my ($self, $name, $token, $mode) = @_;
	my $lease = $self->find($name, token => $token) or return 'LK002';

	return '55000' if $lease->{mode} eq 'permit' || @{ $lease->{parts} } > 1;
	return 'keep' if covers($lease->{mode}, $mode);
	return $self->in_the_way($name, $mode, own => $lease) ? 'blocked' : 'grant';
}

sub convert
{
	my ($self, $lease, $mode, $token) = @_;

	$lease->{mode} = $lease->{parts}[0]{mode} = $mode;
	$lease->{token} = $token;
	return;
}

# The end of a lease, for its owner.
sub stop
{
	my ($self, $lease) = @_;

	# Not longer than it would have been held.
	$lease->{opens} = min(grep { defined } $lease->{min_until}, $lease->{deadline});
	return;
}

sub release
{
	my ($self, $name, %by) = @_;
	my $lease = $self->find($name, %by);

	if (!defined $lease)
	{
		# What is in its lock delay is opened, for its owner is done.
		$_->{opens} = $self->{now} foreach grep {
			$_->{name} eq $name && !$self->is_live($_) && !defined $_->{opens}
			  && (!defined $_->{min_until} || $self->{now} >= $_->{min_until})
			  && (!defined $by{owner} || $_->{owner} eq $by{owner})
			  && (!defined $by{token} || $_->{token} == $by{token})
		} $self->leases;
		return 0;
	}
	if ($lease->{holds} > 1)
	{
		$lease->{holds}--;
	}
	else
	{
		$self->stop($lease);
	}
	return 1;
}

sub release_all
{
	my ($self, $owner) = @_;
	my @mine = grep { $_->{owner} eq $owner && $self->is_live($_) } $self->leases;

	$self->stop($_) foreach @mine;
	return scalar @mine;
}

sub force_release
{
	my ($self, $name) = @_;
	my @ended = uniq map { $_->[0] } $self->holders($name);

	foreach my $lease (@ended)
	{
		# A live one closes the lock for its delay, as if it had expired.
		if ($self->is_live($lease) && $lease->{delay} > 0)
		{
			$lease->{deadline} = $self->{now};
		}
		else
		{
			$lease->{opens} = $self->{now};
		}
	}
	return scalar @ended;
}

sub renew_lease
{
	my ($self, $lease, $ttl) = @_;

	if (defined $ttl)
	{
		$lease->{ttl} = $ttl;
		$lease->{deadline} = $self->{now} + $ttl;
	}
	elsif (defined $lease->{ttl})
	{
		$lease->{deadline} = max($lease->{deadline}, $self->{now} + $lease->{ttl});
	}
	return;
}

sub renew
{
	my ($self, $name, $ttl, %by) = @_;
	my $lease = $self->find($name, %by) or return 0;

	$self->renew_lease($lease, $ttl);
	return 1;
}

sub renew_all
{
	my ($self, $owner, $ttl) = @_;
	my @mine = grep { $_->{owner} eq $owner && $self->is_live($_) } $self->leases;

	$self->renew_lease($_, $ttl) foreach @mine;
	return scalar @mine;
}

# ---------------------------------------------------------------------------
# Waiting
# ---------------------------------------------------------------------------

sub wait_for
{
	my ($self, $request) = @_;

	push @{ $self->{waiting} }, $request;
	return;
}

sub leave
{
	my ($self, $request) = @_;

	@{ $self->{waiting} } = grep { $_ != $request } @{ $self->{waiting} };
	return;
}

# The next request that can be granted as things stand, or that has lost the lease
# it is to convert.  It is for the caller to do so.
sub next_served
{
	my ($self) = @_;

	return first
	{
		my $request = $_;
		$request->{convert}
		  ? !$self->is_live($request->{convert})
		  || !$self->in_the_way($request->{convert}{name}, $request->{mode}, own => $request->{convert}, before => $request)
		  : !any { $self->in_the_way($_->{name}, $_->{mode}, permits => $request->{permits}, before => $request) } @{ $request->{items} }
	}
	@{ $self->{waiting} };
}

# ---------------------------------------------------------------------------
# What the views show
# ---------------------------------------------------------------------------

# One line for each part of each lease, sorted.  Times are in steps of "unit"
# seconds, rounded.
sub lease_lines
{
	my ($self, $unit) = @_;
	my @lines;

	foreach my $lease ($self->leases)
	{
		my $live = $self->is_live($lease);
		my $until = $live ? $lease->{deadline} : blocks_until($lease);

		foreach my $part (@{ $lease->{parts} })
		{
			my $is_intent = $part->{part} eq 'intent';
			push @lines, join '|', $part->{name}, $lease->{owner}, $lease->{token}, word($part->{mode}),
			  $lease->{permits} // '', $live ? 'held' : 'closed', $lease->{bind}, $live ? $lease->{ttl} // '' : '',
			  defined $until ? sprintf('%.0f', ($until - $self->{now}) / $unit) : '',
			  $live && !$is_intent ? $lease->{holds} : '', $is_intent ? '' : $lease->{payload};
		}
	}
	return sort @lines;
}

# One line for each row of dlock_waiters, sorted.
sub waiter_lines
{
	my ($self) = @_;

	return sort map {
		join '|', @{$_}{qw(name owner mode permits request position)}, join ',', sort @{ $_->{blocked_by} }
	} map { $self->waiter_rows($_) } @{ $self->{waiting} };
}

1;
