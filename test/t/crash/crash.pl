# Proves: whatever dlock_acquire has acknowledged is there after a kill -9 of the
# server under load, if synchronous_commit asks for it; and no token ever comes
# twice, whatever it asks for.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockTest;
use IPC::Run;
use List::Util qw(max);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

# The WAL writer must not make durable by accident what a grant has left out.
my $node = start_node('main', conf => <<'EOC');
wal_writer_delay = 10s
max_connections = 20
EOC

my $clients = 4;
my $highest = 0;    # the highest token that any client has seen

# What must be held: name => [token, ttl in hours].  Names whose fate nobody
# was told, since the server died under the request, are left out.
my %expected;

# The statements of one client: it acquires new names, extends some of them,
# and releases some.
sub statements
{
	my ($round, $client) = @_;
	my @statements;

	for my $i (1 .. 20_000)
	{
		my $name = "crash-$round-$client-$i";
		my $long = $i % 7 == 0 ? 'x' x 200 : '';

		push @statements,
		  [
			'acquire', "$name$long",
			"SELECT dlock_acquire('$name$long', 'client-$client', '1 h');"
		  ];
		push @statements,
		  [
			'renew', "$name$long",
			"SELECT dlock_renew('$name$long', 'client-$client', '2 h');"
		  ]
		  if $i % 5 == 0;
		push @statements,
		  [
			'release', "$name$long",
			"SELECT dlock_release('$name$long', 'client-$client');"
		  ]
		  if $i % 3 == 0;

		# All clients contend for these; nothing is expected of them.
		push @statements,
		  [ 'shared', '', "SELECT dlock_acquire('shared-" . $i % 5 . "', 'client-$client', '10 ms');" ]
		  if $i % 4 == 0;
	}
	return @statements;
}

sub count_lines
{
	my ($path) = @_;
	return 0 unless -e $path;
	return slurp_file($path) =~ tr/\n//;
}

sub crash_round
{
	my ($round, $synchronous_commit, %crash) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir;
	my $durable = $synchronous_commit ne 'off';
	my $label = "round $round, synchronous_commit = $synchronous_commit";
	my @running;

	foreach my $client (1 .. $clients)
	{
		my @statements = statements($round, $client);
		my $script = "$dir/$client.sql";
		my $answers = "$dir/$client.out";

		open my $fh, '>', $script or die "$script: $!";
		print $fh "SET synchronous_commit = $synchronous_commit;\n\\pset null null\n";
		print $fh "$_->[2]\n" foreach @statements;
		close $fh;
		push @running, {
			statements => \@statements,
			answers => $answers,
			run => IPC::Run::start(
				[
					'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d',
					$node->connstr('postgres'), '-f', $script
				],
				'>', $answers, '2>', "$dir/$client.err"),
		};
	}

	# Under way, and then at some moment.  Where no grant is flushed there must
	# be more of them than tokens are reserved at a time, so that a reservation
	# that was not flushed either is lost.
	my $enough = $durable ? 500 : 6000;
	wait_until(
		sub {
			!grep { count_lines($_->{answers}) < $enough } @running;
		}) or die 'clients do not get on';
	usleep(int rand 300_000);
	crash_node($node, %crash);

	my $acknowledged = 0;
	foreach my $client (@running)
	{
		eval { $client->{run}->finish };
		my @answers = split /\n/, slurp_file($client->{answers});
		my $n = 0;

		foreach my $answer (@answers)
		{
			my ($what, $name) = @{ $client->{statements}[ $n++ ] };

			if ($what eq 'shared')
			{
				$highest = max($highest, $answer) if $answer ne 'null';
				next;
			}
			if ($what eq 'acquire')
			{
				$expected{$name} = [ $answer, 1 ];
				$highest = max($highest, $answer);
				$acknowledged++;
			}
			$expected{$name}[1] = 2 if $what eq 'renew';
			delete $expected{$name} if $what eq 'release';
			delete $expected{$name} if !$durable;
		}

		# The request that got no answer, unless all have been answered.
		delete $expected{ $client->{statements}[$n][1] }
		  if $n < @{ $client->{statements} };
	}
	note "$label: $acknowledged grants acknowledged, "
	  . scalar(keys %expected) . " must be held";

	$node->start;

	my %held;
	foreach my $line (
		split /\n/,
		$node->safe_psql('postgres',
			'SELECT name, token, remaining > (ttl - interval \'10 min\'), extract(epoch FROM ttl)::int / 3600 FROM dlock_leases'
		))
	{
		my ($name, @rest) = split /\|/, $line;
		$held{$name} = \@rest;
	}
	my @missing = grep { !exists $held{$_} } keys %expected;
	my @changed = grep {
		exists $held{$_}
		  && ( $held{$_}[0] != $expected{$_}[0]
			|| $held{$_}[1] ne 't'
			|| $held{$_}[2] != $expected{$_}[1])
	} keys %expected;
	is(scalar @missing, 0, "$label: acknowledged leases missing")
	  or diag("first: $missing[0]");
	is(scalar @changed, 0,
		"$label: leases with another token, ttl or deadline")
	  or diag("first: $changed[0] is @{$held{$changed[0]}}, must be @{$expected{$changed[0]}}");

	# Others are refused, and the token that they get elsewhere is new.
	my $names = join ',', map { "'$_'" } keys %expected;
	is( $node->safe_psql(
			'postgres',
			"SELECT count(dlock_acquire(name, 'thief', '1 h')) FROM unnest(ARRAY[$names]::text[]) name"
		),
		0,
		"$label: held leases given to others");
	my $next = $node->safe_psql('postgres',
		"SELECT dlock_acquire('next-$round', 'next', '1 h')");
	cmp_ok($next, '>', $highest, "$label: the next token");
	$highest = max($highest, $next);
	$expected{"next-$round"} = [ $next, 1 ];
	return;
}

crash_round(1, 'on');
crash_round(2, 'on', orphans => 1);
crash_round(3, 'off');
crash_round(4, 'local');
crash_round(5, 'off', orphans => 1);
crash_round(6, 'on');

is( $node->safe_psql(
		'postgres',
		'SELECT count(*) - count(DISTINCT token) FROM dlock_leases'),
	0,
	'tokens given twice');
$node->stop;

done_testing();
