# Proves: the judge of the soak test finds what grows, by and by or in steps, and takes nothing
# that is restless, or grows at first only, for growing.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../proof";

use DLockSoak;
use File::Temp qw(tempfile);
use Test::More;

# A series of a function of 0 .. 99; what is random is the same in each run.
sub series
{
	my ($function) = @_;

	srand 1;
	return [ map { [ $_ * 10, $function->($_) ] } 0 .. 99 ];
}

sub is_flat
{
	my ($name, $function, $bound) = @_;

	ok(DLockSoak::judge_series(series($function), $bound)->{flat}, "flat: $name");
	return;
}

sub grows
{
	my ($name, $function, $bound) = @_;
	my $verdict = DLockSoak::judge_series(series($function), $bound);

	ok(!$verdict->{flat}, "grows: $name");
	return $verdict;
}

is_flat('always the same', sub { 1000 }, 0);
is_flat('smaller and smaller', sub { 1000 - $_[0] }, 0);
is_flat('at rest after the warm-up', sub { $_[0] < 20 ? 100 * $_[0] : 2000 }, 0);
is_flat('noise', sub { 1000 + rand 100 }, 30);
is_flat('a saw', sub { 1000 + 50 * ($_[0] % 7) }, 60);
is_flat('single peaks', sub { $_[0] % 9 ? 1000 : 9000 }, 0);
is_flat('slow, within the bound', sub { 1000 + $_[0] }, 80);

grows('a little each time', sub { 1000 + $_[0] }, 70);
my $verdict = grows('within noise', sub { 1000 + 2 * $_[0] + rand 200 }, 100);
cmp_ok(abs($verdict->{growth} - 150), '<', 40, 'by about as much as it does');
grows('a saw that climbs', sub { 1000 + 50 * ($_[0] % 7) + 3 * $_[0] }, 150);
grows('one step', sub { $_[0] < 70 ? 1000 : 2000 }, 500);
grows('steps', sub { 1000 + 100 * int($_[0] / 20) }, 200);
grows('more and more', sub { 1000 + $_[0]**2 / 10 }, 500);
grows('by doubling', sub { 2**int($_[0] / 10) }, 100);

# Too little to tell is not flat.
ok(!defined DLockSoak::judge_series([ map { [ $_, 1 ] } 0 .. 8 ], 10), 'too few samples');
ok(!defined DLockSoak::judge_series([], 10), 'no samples');
ok(!DLockSoak::judge({ a => [ [ 1, 1 ] ] }, 10)->{flat}, 'a measure without a series is not flat');

# Of several processes the worst counts, and short lives do not.
my $of_processes = DLockSoak::judge({
		flat => series(sub { 5 }),
		grows => series(sub { 5 + $_[0] }),
		short => [ map { [ $_, 1000 * $_ ] } 0 .. 4 ],
	}, 10);
is($of_processes->{series}, 2, 'processes that lived long enough');
ok(!$of_processes->{flat}, 'one that grows is enough');
cmp_ok($of_processes->{growth}, '<', 100, 'and is told');
cmp_ok($of_processes->{longest}{range}, '>', 700, 'and the longest');
like((DLockSoak::table([ 'x', 's', $of_processes ]))[1], qr/^x .*GROWS$/, 'the table says so');
unlike((DLockSoak::table([ 'x', 's', DLockSoak::judge({ a => series(sub { 5 }) }, 10) ]))[1], qr/GROWS/, 'and only then');

# What sessions say.
my ($out, $file) = tempfile(UNLINK => 1);
print $out "session 11 1 100 10 1000 7\nsession 11 2 101 10 1000 7\nodd\nsession 12 1 50 9 1001 8\n";
close $out;
my $said = DLockSoak::read_sessions($file);
is_deeply([ map { $said->{contexts}{$_} } sort keys %{ $said->{contexts} } ], [ [ [ 1, 100 ], [ 2, 101 ] ], [ [ 1, 50 ] ] ], 'a series for each session');
is_deeply([ map { $said->{files}{$_} } sort keys %{ $said->{files} } ], [ [ [ 1, 7 ], [ 2, 7 ] ], [ [ 1, 8 ] ] ], 'and measure');
is_deeply([ DLockSoak::count_rounds($said) ], [ 3, 2 ], 'rounds are counted');
ok(!DLockSoak::is_enough($file), 'two are not enough');

done_testing();
