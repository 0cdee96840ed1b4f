# Proves: over the plain edition, regress files that need nothing else have the output that they have
# over the extension; groups, time slots and elections work as well.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockPlain;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../../..";
my $node = start_plain_node('main');
my $db = 'postgres';
my $superuser = (getpwuid $>)[0];

# As pg_regress has them, but for what is the extension's.
foreach my $name (qw(check release renew task task_delay task_error))
{
	my ($expected, $script) = map { to_plain(slurp_file($_)) } "$top/expected/$name.out", "$top/test/sql/$name.sql";
	my $file = "$PostgreSQL::Test::Utils::tmp_check/$name.sql";

	local %ENV = (%ENV, PGUSER => $superuser, PGTZ => 'PST8PDT', PGDATESTYLE => 'Postgres, MDY', PGOPTIONS => '-c intervalstyle=postgres_verbose -c search_path=public');
	$node->safe_psql($db, "CREATE DATABASE same_$name");
	$node->safe_psql("same_$name", plain_script());
	append_to_file($file, $script);
	my ($out, $err) = run_command([ 'sh', '-c', "psql -X -a -q -d '" . $node->connstr("same_$name") . "' <'$file' 2>&1" ]);
	is_deeply([ split /\s*\n/, $out ], [ split /\s*\n/, $expected ], $name);
}

sub to_plain
{
	my ($text) = @_;

	$text =~ s/^CREATE EXTENSION IF NOT EXISTS dlock;\n//gm;
	$text =~ s/\b_dlock\./public._dlock_/g;
	return $text;
}

# ---------------------------------------------------------------------------
# Patterns of leases
# ---------------------------------------------------------------------------

set_clock_of();
my $win = sql("SELECT dlock_once('job', '1 day')");
cmp_ok($win, '>', 0, 'a time slot is won');
is(sql("SELECT dlock_once('job', '1 day'), dlock_once('job', '1 h')"), '|', 'once');
advance('1 day');
cmp_ok(sql("SELECT dlock_once('job', '1 day')"), '>', $win, 'and again in the next one');

my $term = sql("SELECT dlock_campaign('boss', 'a', '1 h', payload => '{}')");
is(sql("SELECT dlock_campaign('boss', 'b', '1 h'), dlock_campaign('boss', 'a', '1 h', payload => '[]')"), "|$term", 'one leads');
is(sql("SELECT leader, token, payload FROM dlock_leader('boss')"), "a|$term|{}", 'and is seen, with its first payload');
is(sql("SELECT dlock_resign('boss', 'a'), dlock_campaign('boss', 'b', '1 h') > $term"), 't|t', 'until it resigns');

sub renewed
{
	my ($membership, $yielded) = @_;
	return sql("SELECT coalesce(string_agg(partition || action, ' ' ORDER BY partition), '') FROM dlock_group_renew('g', $membership, " . ($yielded // 'NULL') . ')');
}

sql("SELECT dlock_group_create('g', 4)");
my $one = sql("SELECT dlock_group_join('g', 'one', '1 h')");
is(renewed($one), '0run 1run 2run 3run', 'a member has all partitions');
my $two = sql("SELECT dlock_group_join('g', 'two', '1 h')");
is(renewed($two), '', 'another one none at first');
my $told = renewed($one);
is(() = $told =~ /yield/g, 2, 'the first one is told to give up two');
my ($some) = sql("SELECT array_agg(token) FROM dlock_group_renew('g', $one) WHERE action = 'yield'");
is(() = renewed($one, "'$some'") =~ /run/g, 2, 'and does');
is(() = renewed($two) =~ /run/g, 2, 'the second one gets them');
is(sql('SELECT members, unowned FROM dlock_group_state'), '2|0', 'all have an owner');
advance('40 min');
renewed($one);
advance('40 min');
is(renewed($one), '0run 1run 2run 3run', 'a member that stays away loses them');
is(sqlstate("SELECT * FROM dlock_group_renew('g', $two)"), 'LK002', 'and is told so');
is(sql("SELECT dlock_group_leave('g', $one), (SELECT count(*) FROM dlock_group_members)"), 't|0', 'the last one leaves');
done_testing();
