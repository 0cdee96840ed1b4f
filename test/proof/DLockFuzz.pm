# Statements with random and hostile arguments for all functions of the extension.

package DLockFuzz;

use strict;
use warnings FATAL => 'all';

# What the functions are, from the catalog of a server.  The handler of a language
# is called by the server alone; from a query it would run its own source.
sub new
{
	my ($class, $node, $dbname) = @_;
	my $list = $node->safe_psql(
		$dbname, <<'EOC');
SELECT p.proname, coalesce((SELECT string_agg(coalesce(p.proargnames[n], '') || ':' || format_type(t, NULL), ',' ORDER BY n)
							FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS a(t, n)), ''), p.pronargdefaults
FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid
WHERE d.classid = 'pg_proc'::regclass AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
	AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'dlock')
	AND p.prorettype <> 'language_handler'::regtype
ORDER BY 1
EOC
	my @functions;

	foreach my $line (split /\n/, $list)
	{
		my ($name, $arguments, $defaults) = split /\|/, $line;
		my @arguments = map { [ split /:/, $_, 2 ] } split /,/, $arguments;

		push @functions, { name => $name, arguments => \@arguments, defaults => $defaults };
	}
	return bless { functions => \@functions }, $class;
}

sub pick
{
	return $_[ int rand @_ ];
}

sub quote
{
	my ($text) = @_;

	$text =~ s/'/''/g;
	return "'$text'";
}

# ---------------------------------------------------------------------------
# Values
# ---------------------------------------------------------------------------

# Most values are such that calls meet; of the others some are on a limit, some beyond.
my @names = ('a', 'a', 'b', 'b', 'a/b', 'a/b/c', 's', 'g', 'q');
my @hostile_texts = (
	"''", "' '", "repeat('x', 255)", "repeat('x', 256)", "repeat('ä', 127)", "repeat('ä', 200)", "repeat('x', 1000000)",
	"'%s%n%d'", "E'\\x01\\x7f'", "E'\\\\'", "''''", "'; DROP TABLE guarded; --'", "'/'", "'a//b'", "'/a'", "'a/'", "repeat('a/', 40) || 'b'",
	"repeat('a/', 31) || 'b'", "'once:a'", "'group:g/m1'", "'group:g/0'", "'*'", "'a*'", "'a=1,b=2'", "'\"'",
	"'ready -> working'", 'NULL', 'current_user::text', "chr(1114111)", "'exclusive'", "'123'");
my @tokens = (
	'(SELECT max(token) FROM dlock_leases)',
	'(SELECT token FROM dlock_leases ORDER BY random() LIMIT 1)',
	"(SELECT token FROM dlock_leases WHERE name = 'a' LIMIT 1)",
	"(SELECT token FROM dlock_group_members ORDER BY random() LIMIT 1)",
	"(SELECT token FROM dlock_tasks WHERE state = 'working' ORDER BY random() LIMIT 1)",
	'(SELECT max(token) FROM dlock_fences)',
	'-9223372036854775808', '9223372036854775807', '9007199254740991', '9007199254740992', '0', '-1', '1', 'NULL');
my @spans = (
	"'0'", "'1 ms'", "'5 ms'", "'50 ms'", "'1 s'", "'1 h'", "'-1 s'", "'1 day'", "'25 h'", "'50 days'", "'1 mon -30 days'", "'178000000 years'",
	"'-178000000 years'", "'0.0000004 s'", "'infinity'", 'NULL');
my %words = (
	mode => [qw(exclusive exclusive shared shared NL CR CW PR PW EX permit Exclusive)],
	reentry => [qw(deny count return RETURN)],
	bind => [qw(none none session transaction Session)],
	state => [qw(ready working done parked odd)],
	to_state => [qw(working working working ready done)],
	on_timeout => [qw(ready parked odd)],
	queue => [qw(q q q r)],
	group_name => [qw(g g g h)],
	member => [qw(m1 m2 m3)],
	owner => [ 'o1', 'o2', 'o3', 'o1#1' ],
	owners => [ 'o1', 'o1#1', 'o2#1', 'o2#2' ],
	client => [qw(o1 o2 o2)],
	key => [qw(k1 k2 k3 k4)],
	role => [qw(fuzz_a fuzz_b nobody)],
	candidate => [qw(o1 o2)],);

sub text_value
{
	my ($name) = @_;

	return pick(@hostile_texts) if rand() < 0.08;
	return quote(pick(@{ $words{$name} // \@names }));
}

sub array_value
{
	my ($name, $of) = @_;
	my $some = int rand 4;

	return pick('NULL', "'{}'", "'{NULL}'", "'{{a,b},{c,d}}'", "'[5:6]={a,b}'", "'{a,a}'",
		"array(SELECT 'n' || g FROM generate_series(1, 1000) g)", "array(SELECT 'n' || g FROM generate_series(1, 1001) g)")
	  if $of eq 'text' && rand() < 0.1;
	return pick('NULL', "'{}'", "'{NULL}'", "'{{1,2},{3,4}}'", "'[5:6]={1,2}'", 'array_fill(1::bigint, ARRAY[20000])') if $of ne 'text' && rand() < 0.1;
	return "ARRAY['ready -> working', 'working -> done', 'working -> ready']" if $name eq 'transitions';
	return 'ARRAY[' . join(', ', map { $of eq 'text' ? text_value($name) : pick(@tokens) } 0 .. $some) . "]::${of}[]";
}

sub value
{
	my ($name, $type) = @_;

	return text_value($name) if $type eq 'text';
	return pick("'0'", "'0'", "'5 ms'", "'50 ms'", 'NULL', pick(@spans)) if $name eq 'wait';
	return pick("'50 ms'", "'1 s'", "'1 min'", 'NULL', pick(@spans)) if $name eq 'ttl';
	return pick("'5 ms'", "'1 s'", "'1 min'", "'0'", pick(@spans)) if $name eq 'keep';
	return pick(@spans) if $type eq 'interval';
	return pick(@tokens) if $type eq 'bigint';
	return pick('1', '2', '2', '3', '10', 'NULL', '0', '-1', '1000', '1001', '10001', '2147483647', '-2147483648') if $type eq 'integer';
	return pick('true', 'false', 'NULL') if $type eq 'boolean';
	return pick(
		"'{}'", "'{\"a\": [1, null, \"\\u00e4\"]}'", "jsonb_build_object('x', repeat('y', 900))", "jsonb_build_object('x', repeat('y', 1100))",
		"'null'", "(repeat('[', 500) || repeat(']', 500))::jsonb", "'1e400'", 'NULL')
	  if $type eq 'jsonb';
	return array_value($name, $1) if $type =~ /^(.*)\[\]$/;
	return pick("now()", "'infinity'::timestamptz", "'-infinity'::timestamptz", "'4714-11-24 00:00:00+00 BC'", 'NULL') if $type =~ /^timestamp/;
	return pick("'a'", "''", 'NULL') if $type eq 'uuid' || $type eq 'name';
	return "NULL::$type";
}

# ---------------------------------------------------------------------------
# Statements
# ---------------------------------------------------------------------------

# A call; what has a default may be left out.
sub call
{
	my ($self) = @_;
	my $function = pick(@{ $self->{functions} });
	my @arguments = @{ $function->{arguments} };
	my @given;
	my $required = @arguments - $function->{defaults};

	foreach my $n (0 .. $#arguments)
	{
		my ($name, $type) = @{ $arguments[$n] };

		next if $n >= $required && rand() < 0.6;
		push @given, ($name eq '' ? '' : "$name => ") . value($name, $type);
	}
	return "$function->{name}(" . join(', ', @given) . ')';
}

sub query
{
	my ($self) = @_;
	my $call = $self->call;

	return pick("SELECT $call", "SELECT $call", "SELECT $call", "SELECT * FROM $call AS f", "SELECT $call FROM generate_series(1, 3)",
		"SELECT $call, pg_sleep(0.01)", "SELECT 1 WHERE (SELECT count(*) FROM $call AS f) > 1", "EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off) SELECT $call");
}

# Something else that a session may do.
sub aside
{
	my $token = pick(@tokens);

	return pick(
		'SELECT * FROM dlock_leases', 'SELECT * FROM dlock_waiters', 'SELECT * FROM dlock_stats', 'SELECT * FROM dlock_task_state',
		'SELECT * FROM dlock_group_state', 'SELECT * FROM dlock_fences',
		'SELECT * FROM dlock_tasks', 'SELECT * FROM dlock_group_members', 'SELECT * FROM dlock_group_partitions',
		'SELECT * FROM _dlock.store', 'INSERT INTO _dlock.store DEFAULT VALUES', 'DELETE FROM _dlock.store',
		'SET synchronous_commit = ' . pick('on', 'off', 'local'),
		'SET dlock.tokens = ' . quote(pick('', 'a=1', '*=9007199254740991', 'a=1,b', '"a b=3"', 'a=99999999999999999999')),
		'SET dlock.default_ttl = ' . quote(pick('1s', '0', '-1', '1000d', '10ms')),
		'SET ROLE ' . pick('fuzz_a', 'fuzz_b'), 'RESET ROLE', 'DISCARD ALL', 'SET lock_timeout = ' . pick(0, 1, 20),
		"INSERT INTO guarded VALUES (1, 'a', $token)", "UPDATE guarded SET token = $token", 'DELETE FROM guarded', 'TRUNCATE guarded',
		"UPDATE per_row SET v = v + 1", "INSERT INTO per_row VALUES (1, " . text_value('name') . ", $token)",
		"DECLARE c CURSOR FOR SELECT dlock_renew_all()", 'FETCH ALL FROM c', 'PREPARE TRANSACTION \'t' . int(rand 3) . "'",
		'ROLLBACK PREPARED \'t' . int(rand 3) . "'");
}

# A client keeps places, and takes turns, or gives the places up.
sub places
{
	my $count = 1 + int rand 4;
	my @names = map { text_value('name') } 1 .. $count;
	my @owners = map { pick("'o1#'", "'o2#'") . " || $_" } 1 .. $count;
	my $mode = pick('exclusive', 'exclusive', 'shared');
	my $keep = value('keep', 'interval');

	return pick(
		"SELECT dlock_acquire_each(ARRAY[" . join(', ', @names) . '], ARRAY[' . join(', ', @owners) . "], '50 ms', '$mode', keep => $keep)",
		"SELECT dlock_acquire($names[0], $owners[0], '50 ms', " . value('wait', 'interval') . ", '$mode', keep => $keep)") . ";\n"
	  . "SELECT * FROM dlock_take('" . pick('o1', 'o2', 'o1#1') . "', " . value('wait', 'interval') . ", $keep);\n";
}

# A statement, or a transaction, or code.
sub statement
{
	my ($self) = @_;
	my $dice = rand;

	return aside() . ";\n" if $dice < 0.12;

	# More than there is memory for.
	return "SELECT count(dlock_acquire('f' || g, ttl => '200 ms')) FROM generate_series(1, 5000) g;\n" if $dice < 0.125;
	if ($dice < 0.2)
	{
		my $isolation = pick('', '', ' ISOLATION LEVEL SERIALIZABLE', ' READ ONLY');

		return "BEGIN$isolation;\n" . $self->query . ";\nSAVEPOINT s;\n" . $self->query . ";\n" . aside() . ";\nROLLBACK TO s;\n"
		  . $self->query . ";\n" . pick('COMMIT', 'ROLLBACK', "PREPARE TRANSACTION 't" . int(rand 3) . "'") . ";\n";
	}
	if ($dice < 0.26)
	{
		my $call = $self->call;

		return "DO \$do\$ BEGIN PERFORM $call; EXCEPTION WHEN query_canceled THEN NULL; END \$do\$;\n";
	}
	return places() if $dice < 0.32;
	return $self->query . ";\n";
}

1;
