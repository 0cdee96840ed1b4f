# Judges what clients have seen of a server: a history, one file for each client.
#
# A line of a file is one of
#
#   server TIME SERVER            connected, to this run of this server
#   call N TIME WHAT ...          about to make call N, the only one at that moment
#   done N TIME STATUS ...        the answer
#
# Times are microseconds of CLOCK_BOOTTIME; that of a call was read before it was
# made, that of an answer after it came.  The calls are
#
#   acquire|acquire_all|acquire_path NAMES OWNER MODE TTL WAIT first|again|back [KEEP]
#                                 with "again" reentry => 'return', after attempts whose outcome
#                                 is not known; "back" for a place; permits are the mode "permit", of 2
#   take CLIENT WAIT KEEP         for places of CLIENT#...; the answer is as that of "leases", and a
#                                 place that can never be granted has no token
#   renew NAME OWNER TOKEN TTL    TTL 0: the lease's own
#   check|release|release_token NAME OWNER TOKEN
#   convert NAME OWNER TOKEN OLD-MODE NEW-MODE WAIT
#   waiters, leases               looks; answers are NAME:OWNER and NAME:OWNER:TOKEN, by commas
#   flush                         a commit that waits for the disk
#
# with spans in milliseconds, and an owner for each lease.  The status is "ok" and
# what was answered; "part": the same, and incomplete; "none": NULL or false;
# "error" or "lost" and an SQLSTATE.  A call that was lost, and one without an
# answer, may have had any effect or none.
#
# The rules, which are those of doc/reference/sql.md as a holder can test them:
#
#   exclusion   while a lease is live by what its holder was told, be it by a check, nobody is
#               granted what conflicts with it
#   token       a grant that was asked for after another was answered has the larger token
#   unique      no two grants have one token, and only an upgrade changes that of a lease
#   lost        a lease is not denied before it can have ended, nor does a view of the queues miss
#               a place that is kept all the while
#   seen        a view does not miss a lease that is live all the while
#   left        what an error, a release or a refusal has ended, or not begun, is not held afterwards;
#               what was answered, given up or kept for long enough is in no queue
#   back        a lease that is denied stays so, while the server runs
#   stray       a view shows no lease that nobody has asked for, none twice, and none with a token that
#               its owner was not told
#   order       a request that was seen in the queue before another was made is served first, and so is
#               a place that has missed no turn
#   early       a call that waits does not give up before its time
#   deadlock    an owner that asks for locks at once, or in the order of their names, is in none
#
# Whatever the scheduler does to clients, the watcher or this program, no rule is
# found broken that was not: a lease counts as live up to its ttl after the *call* that asked for
# it, a grant as made by the time of its *answer*, and what was seen in a queue as
# there only from the end of the look.  A turn that nobody comes for lasts for the least of ttl and
# keep, so a place has its position for so long from the *call* that asked for it last.  So a
# stop makes judgements rarer, not wrong.
#
# A call without an answer has had one of its effects: what a view shows of it is judged as
# that of the others, by exclusion, token, left and stray.
#
# A lease stands from the first rule on for whatever happens to servers, also if they are killed
# or another one is promoted.  Without "durable", for sessions with
# synchronous_commit = off, another run of the server has to know only what a
# flush came after.  Tokens have no such excuse.

package DLockHistory;

use strict;
use warnings FATAL => 'all';

use DLockPlaces;
use List::Util qw(max min);

# Which modes keep out which; see doc/reference/sql.md.
my %conflicts = (
	CR => { exclusive => 1 },
	CW => { shared => 1, exclusive => 1 },
	shared => { CW => 1, exclusive => 1 },
	exclusive => { CR => 1, CW => 1, shared => 1, exclusive => 1 },
	permit => {},);
my %strength = (shared => 1, exclusive => 2);
my $permits = 2;
my $never = 9e18;

# Judge; takes the lines of each client, an array of arrays, "durable" (1), and "rows" (0): leases
# are rows, and a view that is asked between the old deadline and the commit of a renewal that was
# made in time does not show the lease; a take that others keep from a row does not keep its place
# for longer, and ends before the place does.
# Returns a hash of
#   findings   what is wrong, "RULE: ..."
#   count      how often what was judged
sub judge
{
	my ($clients, %params) = @_;
	my $self = bless {
		durable => $params{durable} // 1,
		rows => $params{rows} // 0,
		findings => [],
		count => {},
		leases => {},
		grants => [],
		requests => [],
		looks => [],
		flushes => {},
		asks => {},
		takes => {},
		gone => {},
		first => {},
		stays => [],
		first_seen => {},
		over => {},
		asked => {},
		converted => {},
	}, __PACKAGE__;

	# A place may be asked for by one client and taken by another one.
	my @calls = map { $self->read_client($_) } @$clients;
	foreach my $call (grep { $_->{what} eq 'acquire' } @calls)
	{
		my ($name, $owner) = @{ $call->{args} };

		$self->{first}{"$owner $name"} //= $call;
	}
	$self->understand($_) foreach sort { $a->{came} <=> $b->{came} } @calls;
	$self->find_ends($_) foreach values %{ $self->{leases} };
	DLockPlaces::find_stays($self, $_) foreach sort keys %{ $self->{asks} };
	$self->judge_tokens;
	$self->judge_exclusion;
	$self->judge_denials;
	$self->judge_looks;
	$self->judge_rows;
	$self->judge_order;
	DLockPlaces::judge_queues($self);
	return { findings => $self->{findings}, count => $self->{count} };
}

# Read the files of a directory.
sub read_directory
{
	my ($directory) = @_;
	my @clients;

	foreach my $path (sort glob "$directory/*.history")
	{
		open my $file, '<', $path or die "$path: $!\n";
		push @clients, [<$file>];
		close $file;
	}
	return \@clients;
}

sub found
{
	my ($self, $rule, $what) = @_;

	push @{ $self->{findings} }, "$rule: $what";
	return;
}

# ---------------------------------------------------------------------------
# What a client was told
# ---------------------------------------------------------------------------

sub read_client
{
	my ($self, $lines) = @_;
	my ($call, $server, @calls);

	foreach my $line (@$lines)
	{
		# A client that is killed may leave half a line.
		last if $line !~ /\n\z/;
		my ($kind, @words) = split ' ', $line;
		if ($kind eq 'server')
		{
			my ($time, $name) = @words;
			$server = $name;
			$self->{first_seen}{$server} = min($time, $self->{first_seen}{$server} // $never);
		}
		elsif ($kind eq 'call')
		{
			my ($n, $time, $what, @args) = @words;
			$call = { n => $n, sent => $time, what => $what, args => \@args, server => $server };
		}
		else
		{
			my ($n, $time, $status, $value) = @words;
			die "an answer without a call: $line" if !$call || $call->{n} != $n;
			@$call{qw(came status value)} = ($time, $status, $value // '');
			push @calls, $call;
			undef $call;
		}
	}
	if ($call)
	{
		@$call{qw(came status value)} = ($never, 'lost', '');
		push @calls, $call;
	}
	return @calls;
}

sub understand
{
	my ($self, $call) = @_;
	my $what = $call->{what};
	my $granted = $call->{status} eq 'ok' || $call->{status} eq 'part';

	$self->{count}{$call->{status} eq 'lost' ? 'no answer' : 'answers'}++;
	if ($what eq 'waiters' || $what eq 'leases')
	{
		push @{ $self->{looks} }, $call if $granted;
		return;
	}
	if ($what eq 'flush')
	{
		push @{ $self->{flushes}{ $call->{server} } }, $call->{sent} if $granted;
		return;
	}
	return $self->understand_acquire($call, $granted) if $what =~ /^acquire/;
	return DLockPlaces::understand_take($self, $call, $granted) if $what eq 'take';

	my ($name, $owner) = @{ $call->{args} };
	my $lease = $self->{leases}{"$owner $name"} or die "no lease $name of $owner\n";
	$self->understand_renew($call, $lease) if $what eq 'renew';
	$self->understand_convert($call, $lease) if $what eq 'convert';
	if ($what =~ /^release/)
	{
		$lease->{released} = min($lease->{released}, $call->{sent});
		$self->{over}{"$owner $name"} = $call if $granted;
	}
	push @{ $lease->{denials} }, { %$call, last => $#{ $lease->{told} } }
	  if $call->{status} eq 'none' && $what ne 'convert' || "$call->{status} $call->{value}" eq 'error LK002';
	push @{ $lease->{successes} }, $call if $granted;

	# It was live when the check was made, if not for longer.
	push @{ $lease->{told} },
	  { came => $call->{came}, end => max($call->{sent}, $lease->{told}[-1]{end}), server => $call->{server} }
	  if $what eq 'check' && $granted;
	return;
}

# The parts of a lease: pairs of a lock and the mode in which it is held.
sub parts
{
	my ($what, $name, $mode) = @_;
	my @parts = ([ $name, $mode ]);

	if ($what eq 'acquire_path')
	{
		while ($name =~ s{/[^/]*$}{})
		{
			push @parts, [ $name, $mode eq 'shared' ? 'CR' : 'CW' ];
		}
	}
	return \@parts;
}

sub understand_acquire
{
	my ($self, $call, $granted) = @_;
	my ($names, $owner, $mode, $ttl, $wait, $attempt, $keep) = @{ $call->{args} };
	my @names = split /,/, $names;
	my @tokens = split /,/, $call->{value};

	# An attempt without an answer may be what was granted.
	$self->{began}{$owner} = $call->{sent} if $attempt eq 'first';
	foreach my $name (@names)
	{
		delete $self->{over}{"$owner $name"};
		$self->{over}{"$owner $name"} = $call if $call->{status} eq 'error' && $attempt ne 'again';
		# Of several locks a crash may have left some.
		$self->{over}{"$owner $name"} = $call if $call->{status} eq 'none' && @names == 1 && !$keep;
		# A view shows the ancestors of a path, too.
		$self->{asked}{"$owner $_->[0]"} //= { sent => $call->{sent}, mode => $_->[1] } foreach @{ parts($call->{what}, $name, $mode) };
		push @{ $self->{asks}{"$owner $name"} }, $call;
	}
	$self->found('early', "$owner gave $names up after " . ($call->{came} - $call->{sent}) . " us of $wait ms")
	  if $call->{status} eq 'none' && $attempt ne 'again' && $call->{came} < $call->{sent} + 1000 * $wait;
	$self->found('deadlock', "$owner asked for $names")
	  if "$call->{status} $call->{value}" eq 'error 40P01' && $attempt ne 'again';
	if ($call->{what} eq 'acquire' && $mode ne 'permit' && $attempt eq 'first' && $call->{status} =~ /^(?:ok|none)$/)
	{
		push @{ $self->{requests} },
		  {
			name => $names,
			owner => $owner,
			mode => $mode,
			server => $call->{server},
			token => $granted ? $tokens[0] : undef,
			end => $granted ? $call->{came} : $call->{sent} + 1000 * $wait,
		  };
	}
	return if !$granted;

	$self->found('unique', "$owner got " . @tokens . " tokens for $names") if @tokens != @names;
	$self->add_lease($call, $_, $self->{began}{$owner}, $call->{sent}, shift @tokens) foreach @names;
	$self->{count}{'turns taken'}++ if $attempt eq 'back';
	return;
}

# A lease on one of the locks that a call has asked for; its deadline is a ttl after "since" at the earliest.
sub add_lease
{
	my ($self, $call, $name, $began, $since, $token) = @_;
	my (undef, $owner, $mode, $ttl) = @{ $call->{args} };
	my $lease = {
		owner => $owner,
		name => $name,
		what => $call->{what},
		ttl => 1000 * $ttl,
		released => $never,
		# What its holder was told: from when it was known, how long it lives, and by which server.
		told => [ { came => $call->{came}, end => $since + 1000 * $ttl, server => $call->{server} } ],
		# How it was held: token, parts, since when, and up to when not in a weaker mode nor with another token.
		stages => [],
		denials => [],
		successes => [],
		known => 1,
	};

	$self->{leases}{"$owner $name"} = $lease;
	$self->add_stage($lease, $token, $mode, $call);
	$self->add_grant($lease, $token, $mode, $began, $call);
	return;
}

sub add_stage
{
	my ($self, $lease, $token, $mode, $call) = @_;

	push @{ $lease->{stages} },
	  {
		lease => $lease,
		token => $token,
		mode => $mode,
		parts => parts($lease->{what}, $lease->{name}, $mode),
		came => $call->{came},
		server => $call->{server},
		weaker => $never,
		renamed => $never,
	  };
	return;
}

sub add_grant
{
	my ($self, $lease, $token, $mode, $began, $call) = @_;

	push @{ $self->{grants} },
	  {
		lease => $lease,
		token => $token,
		parts => parts($lease->{what}, $lease->{name}, $mode),
		began => $began,
		came => $call->{came},
		server => $call->{server},
	  };
	$self->{count}{grants}++;
	return;
}

# Without a ttl the deadline comes no nearer; one that is given takes the place of the old.
sub understand_renew
{
	my ($self, $call, $lease) = @_;
	my $ttl = 1000 * $call->{args}[3];
	my $last = $lease->{told}[-1];

	if ($call->{status} eq 'ok')
	{
		my $end = $call->{sent} + ($ttl || $lease->{ttl});

		$lease->{ttl} = $ttl if $ttl;
		$end = max($end, $last->{end}) if !$ttl;
		push @{ $lease->{told} }, { came => $call->{came}, end => $end, server => $call->{server} };
		$self->{count}{renewals}++;
	}
	elsif ($ttl && $call->{status} ne 'none')
	{
		# Nobody knows which.  What was told before may be over earlier than was told.
		$lease->{ttl} = min($lease->{ttl}, $ttl);
		push @{ $lease->{told} },
		  { came => $call->{came}, end => min($last->{end}, $call->{sent} + $ttl), server => $last->{server} };
	}
	return;
}

sub understand_convert
{
	my ($self, $call, $lease) = @_;
	my (undef, undef, $token, $from, $to) = @{ $call->{args} };
	my $up = $strength{$to} > $strength{$from};
	my $sent = $call->{sent};

	$self->{converted}{"$lease->{owner} $lease->{name}"} = 1;
	return if $call->{status} eq 'none' || "$call->{status} $call->{value}" eq 'error LK002';
	if ($up)
	{
		$_->{renamed} = min($_->{renamed}, $sent) foreach @{ $lease->{stages} };
		# It may have a token that its holder does not know.
		$lease->{known} = 0 if $call->{status} ne 'ok';
	}
	else
	{
		foreach my $stage (@{ $lease->{stages} })
		{
			$stage->{weaker} = min($stage->{weaker}, $sent) if $stage->{mode} eq $from;
		}
		$self->add_stage($lease, $token, $to, $call);
	}
	return if $call->{status} ne 'ok';

	$self->{count}{ $up ? 'upgrades' : 'downgrades' }++;
	if ($up)
	{
		$self->add_stage($lease, $call->{value}, $to, $call);
		$self->add_grant($lease, $call->{value}, $to, $sent, $call);
	}
	elsif ($call->{value} != $token)
	{
		$self->found('unique', "a downgrade changed token $token of $lease->{owner} to $call->{value}");
	}
	return;
}

# Up to when a lease is live for sure: for the runs of servers that have said so
# themselves, and for all.
sub find_ends
{
	my ($self, $lease) = @_;
	my @told = @{ $lease->{told} };
	my %end;

	# What a later answer has shortened was shortened for all.
	for (my $i = $#told - 1; $i >= 0; $i--)
	{
		$told[$i]{certain} = min($told[$i]{end}, $told[ $i + 1 ]{certain} // $told[ $i + 1 ]{end});
	}
	$told[-1]{certain} = $told[-1]{end};
	foreach my $told (@told)
	{
		my $is_flushed = $self->{durable} || $self->is_flushed($told->{came}, $told->{server});

		$end{ $told->{server} } = $told->{certain};
		$end{all} = $told->{certain} if $is_flushed;
	}
	$_ = min($_, $lease->{released}) foreach values %end;
	$lease->{end} = \%end;
	return;
}

# Must a run of a server, or all, know that a lease was held in this way?
sub is_known
{
	my ($self, $stage, $server) = @_;

	return $self->{durable} || $server eq $stage->{server} || $self->is_flushed($stage->{came}, $stage->{server});
}

# Has this run of a server flushed something after a moment?
sub is_flushed
{
	my ($self, $time, $server) = @_;

	return $time < max(0, @{ $self->{flushes}{$server} // [] });
}

# ---------------------------------------------------------------------------
# Rules
# ---------------------------------------------------------------------------

sub judge_tokens
{
	my ($self) = @_;
	my @answered = sort { $a->{came} <=> $b->{came} } @{ $self->{grants} };
	my (%of, $highest);

	foreach my $grant (sort { $a->{began} <=> $b->{began} } @{ $self->{grants} })
	{
		my $other = $of{ $grant->{token} };

		$self->found('unique', "token $grant->{token} of $grant->{lease}{name} went to $other->{owner} and to $grant->{lease}{owner}")
		  if $other;
		$of{ $grant->{token} } = $grant->{lease};
		while (@answered && $answered[0]{came} < $grant->{began})
		{
			my $earlier = shift @answered;
			$highest = $earlier if !$highest || $earlier->{token} > $highest->{token};
		}
		next if !$highest;
		$self->{count}{'tokens compared'}++;
		$self->found('token',
			"$grant->{lease}{owner} got $grant->{token} for $grant->{lease}{name} after $highest->{lease}{owner} had $highest->{token}")
		  if $grant->{token} < $highest->{token};
	}
	return;
}

# If a lease was granted before another, as tokens tell, and the other was granted
# while it was live for sure, the two must not conflict.
sub judge_exclusion
{
	my ($self) = @_;
	my %locks;

	# A lease that was held in a mode goes on to be in that mode, or a stronger one.
	foreach my $stage (map { @{ $_->{stages} } } values %{ $self->{leases} })
	{
		my $ends = $stage->{lease}{end};

		foreach my $server ($self->{durable} ? 'all' : keys %$ends)
		{
			next if !defined $ends->{$server};
			next if !$self->is_known($stage, $server);
			push @{ $locks{"$_->[0] $server"} },
			  { lease => $stage->{lease}, token => $stage->{token}, mode => $_->[1], end => min($ends->{$server}, $stage->{weaker}) }
			  foreach @{ $stage->{parts} };
		}
	}
	foreach my $grant (@{ $self->{grants} })
	{
		foreach my $server ('all', $self->{durable} ? () : $grant->{server})
		{
			push @{ $locks{"$_->[0] $server"} },
			  { lease => $grant->{lease}, token => $grant->{token}, mode => $_->[1], came => $grant->{came} }
			  foreach @{ $grant->{parts} };
		}
	}
	foreach my $lock (sort keys %locks)
	{
		# By mode, those that are live for longest.
		my %live;

		foreach my $event (sort { $a->{token} <=> $b->{token} } @{ $locks{$lock} })
		{
			if (defined $event->{came})
			{
				$self->judge_grant($lock, $event, \%live);
				next;
			}
			my $same = $live{ $event->{mode} } //= [];
			my ($longest) = sort { $b->{end} <=> $a->{end} } $event, grep { $_->{lease} == $event->{lease} } @$same;

			# As many as permits take, and one that may be the lease's own.
			@$same = sort { $b->{end} <=> $a->{end} } $longest, grep { $_->{lease} != $event->{lease} } @$same;
			splice @$same, $permits + 1 if @$same > $permits + 1;
		}
	}
	return;
}

sub judge_grant
{
	my ($self, $lock, $grant, $live) = @_;
	my $mode = $grant->{mode};

	foreach my $other (sort keys %$live)
	{
		my $room = $mode eq 'permit' && $other eq 'permit' ? $permits - 1 : $conflicts{$mode}{$other} ? 0 : next;
		my @in_the_way = grep { $_->{lease} != $grant->{lease} } @{ $live->{$other} };

		next if @in_the_way <= $room;
		$self->{count}{'grants compared'}++;
		my $lease = $in_the_way[$room];
		$self->found('exclusion',
			"$grant->{lease}{owner} got $lock ($mode, $grant->{token}) by $grant->{came}, which $lease->{lease}{owner} held ($other, $lease->{token}) up to $lease->{end}")
		  if $grant->{came} < $lease->{end};
	}
	return;
}

sub judge_denials
{
	my ($self) = @_;

	foreach my $lease (values %{ $self->{leases} })
	{
		next if !$lease->{known};
		foreach my $call (@{ $lease->{denials} })
		{
			# A crash may have given it back the token from before an upgrade.
			next if !grep { $_->{token} == $call->{args}[2] && $self->is_known($_, $call->{server}) } @{ $lease->{stages} };

			# A release is no excuse for its own denial.
			my $end = $self->live_on($lease, $call->{server}, $call->{last});
			$end = min($end, $lease->{released}) if $lease->{released} < $call->{sent};
			$self->{count}{denials}++;
			$self->found('lost', "$call->{what} of $lease->{name} by $lease->{owner} was denied by $call->{came}, it was live up to $end")
			  if $call->{came} < $end;

			my ($back) = grep { is_back($call, $_, $_->{args}[2]) } @{ $lease->{successes} };
			$self->found('back', "$back->{what} of $lease->{name} by $lease->{owner} succeeded after $call->{what} was denied at $call->{came}")
			  if $back;
		}
	}
	return;
}

# Has a lease with this token come back after a denial, as a later call or look says?
sub is_back
{
	my ($denial, $later, $token) = @_;

	return $later->{sent} > $denial->{came} && $later->{server} eq $denial->{server} && $token eq $denial->{args}[2];
}

sub judge_looks
{
	my ($self) = @_;
	my @stages = sort { $a->{came} <=> $b->{came} } map { @{ $_->{stages} } } values %{ $self->{leases} };
	my @live;

	foreach my $look (sort { $a->{sent} <=> $b->{sent} } grep { $_->{what} eq 'leases' } @{ $self->{looks} })
	{
		my %rows = map { $_ => 1 } split /,/, $look->{value};

		push @live, shift @stages while @stages && $stages[0]{came} < $look->{sent};
		@live = grep { max(values %{ $_->{lease}{end} }) > $look->{sent} && $_->{renamed} > $look->{sent} } @live;
		foreach my $stage (@live)
		{
			my $lease = $stage->{lease};

			next if $look->{status} ne 'ok' || $stage->{renamed} < $look->{came} || $lease->{released} < $look->{came};
			my $last = $self->{rows} ? grep({ $_->{came} <= $look->{sent} } @{ $lease->{told} }) - 1 : undef;
			next if $self->live_on($lease, $look->{server}, $last) <= $look->{came} || !$self->is_known($stage, $look->{server});
			$self->{count}{'leases seen'}++;
			$self->found('seen', "$lease->{name} of $lease->{owner}, $stage->{token}, is missing at $look->{sent}")
			  if !$rows{"$lease->{name}:$lease->{owner}:$stage->{token}"};
		}
		foreach my $row (keys %rows)
		{
			my ($name, $owner) = split /:/, $row;
			my $call = $self->{over}{"$owner $name"};

			next if !$call || $call->{came} >= $look->{sent} || $call->{server} ne $look->{server};
			$self->found('left', "$row at $look->{sent}, though $call->{what} ended it by $call->{came}");
		}
	}
	return;
}

# What a view shows can be: whether or not the call that asked for it was answered.
sub judge_rows
{
	my ($self) = @_;
	my @answered = sort { $a->{came} <=> $b->{came} } @{ $self->{grants} };
	my @highest;

	foreach my $grant (@answered)
	{
		push @highest, max($grant->{token}, $highest[-1] // 0);
	}
	foreach my $look (grep { $_->{what} eq 'leases' } @{ $self->{looks} })
	{
		my (%of_owner, %of_lock);

		foreach my $row (split /,/, $look->{value})
		{
			my ($name, $owner, $token) = split /:/, $row;
			my $asked = $self->{asked}{"$owner $name"};

			if (!$asked || $asked->{sent} > $look->{came})
			{
				$self->found('stray', "$row at $look->{sent}, which nobody had asked for");
				next;
			}
			$self->found('stray', "$row at $look->{sent}, beside another one of its owner") if $of_owner{"$owner $name"}++;
			push @{ $of_lock{$name} }, { owner => $owner, mode => $asked->{mode} } if !$self->{converted}{"$owner $name"};

			my $before = first_after(\@answered, 'came', $asked->{sent} - 1) - 1;
			$self->found('token', "$row at $look->{sent}, though $highest[$before] had been answered before it was asked for")
			  if $before >= 0 && $token < $highest[$before];
			$self->{count}{'rows of views'}++;
			$self->judge_row($look, $row, $token, $self->{leases}{"$owner $name"});
		}
		$self->judge_rows_of_lock($look, $_, $of_lock{$_}) foreach keys %of_lock;
	}
	return;
}

# A row of a lease that its owner was told of.
sub judge_row
{
	my ($self, $look, $row, $token, $lease) = @_;

	# After an upgrade without an answer its owner does not know the token.
	return if !$lease || !$lease->{known};
	$self->found('stray', "$row at $look->{sent}, whose owner was told $lease->{stages}[0]{token}")
	  if $lease->{stages}[0]{came} < $look->{sent} && !grep { $_->{token} == $token } @{ $lease->{stages} };
	my ($denial) = grep { is_back($_, $look, $token) } @{ $lease->{denials} };
	$self->found('back', "$row at $look->{sent}, though $denial->{what} was denied at $denial->{came}") if $denial;
	return;
}

# A view reads all leases of a lock at one moment.
sub judge_rows_of_lock
{
	my ($self, $look, $name, $rows) = @_;

	return if @$rows < 2;
	$self->{count}{'holders in one view'}++;
	foreach my $i (0 .. $#$rows)
	{
		my @others = grep { $conflicts{ $rows->[$i]{mode} }{ $_->{mode} } } @$rows[ $i + 1 .. $#$rows ];

		$self->found('exclusion', "$rows->[$i]{owner} and $others[0]{owner} both held $name at $look->{sent}") if @others;
	}
	my @permits = grep { $_->{mode} eq 'permit' } @$rows;
	$self->found('exclusion', @permits . " permits of $name at $look->{sent}") if @permits > $permits;
	return;
}

# Where those with a time after another begin, in a list in the order of time.
sub first_after
{
	my ($list, $of, $time) = @_;
	my ($low, $high) = (0, scalar @$list);

	while ($low < $high)
	{
		my $middle = int(($low + $high) / 2);
		if ($list->[$middle]{$of} > $time) { $high = $middle; }
		else { $low = $middle + 1; }
	}
	return $low;
}

# Up to when a server must know a lease; with "last", by what was told up to then.
# A server that was replaced does not know what its successor said.
sub live_on
{
	my ($self, $lease, $server, $last) = @_;
	my $end = 0;

	foreach my $told (@{ $lease->{told} }[ 0 .. $last // $#{ $lease->{told} } ])
	{
		next if $self->{first_seen}{ $told->{server} } > $self->{first_seen}{$server};
		next if $told->{server} ne $server && !$self->{durable} && !$self->is_flushed($told->{came}, $told->{server});
		$end = $told->{certain};
	}
	return $end;
}

# Only in one run of a server: a queue ends with it.  The order of the grants is
# that of the tokens.
sub judge_order
{
	my ($self) = @_;
	my (%seen, %granted);

	foreach my $look (sort { $b->{came} <=> $a->{came} } grep { $_->{what} eq 'waiters' } @{ $self->{looks} })
	{
		$seen{"$_ $look->{server}"} = $look->{came} foreach split /,/, $look->{value};
	}
	foreach my $grant (@{ $self->{grants} })
	{
		push @{ $granted{"$grant->{parts}[0][0] $grant->{server}"} }, $grant if $grant->{lease}{stages}[0]{token} == $grant->{token};
	}
	foreach my $list (values %granted)
	{
		@$list = sort { $a->{began} <=> $b->{began} } @$list;
	}
	foreach my $request (@{ $self->{requests} })
	{
		my $seen = $request->{seen} // $seen{"$request->{name}:$request->{owner} $request->{server}"} // next;
		my $end = $request->{end};
		my $list = $granted{"$request->{name} $request->{server}"} // [];
		for (my $i = first_after($list, 'began', $seen); $i < @$list && $list->[$i]{began} < $end; $i++)
		{
			my $other = $list->[$i];

			next if !$conflicts{ $request->{mode} }{ $other->{parts}[0][1] };
			$self->{count}{'requests compared'}++;
			$self->{count}{'turns compared'}++ if $request->{seen};
			$self->found('order', "$other->{lease}{owner} got $request->{name} before $request->{owner}, which was in the queue by $seen")
			  if defined $request->{token} ? $other->{token} < $request->{token} : $other->{came} < $end;
		}
	}
	return;
}

1;
