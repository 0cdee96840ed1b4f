# Proves: ALTER EXTENSION dlock UPDATE makes of each earlier release (test/releases/dlock--VERSION.sql) what CREATE EXTENSION
# makes, and keeps leases, places, marks, tasks, groups and tokens, also of sessions that hold or wait meanwhile.  As long as
# there is no earlier release, this version is one, and a change of it stands for the next.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockTest;
use File::Copy;
use File::Path qw(make_path);
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../../..";
my ($current) = slurp_file("$top/dlock.control") =~ /^default_version = '(.*)'$/m;
my ($path, $scripts) = own_scripts();
my @releases = map { m{dlock--([^/]+)\.sql$} } glob "$top/test/releases/dlock--*.sql";

plan(skip_all => 'the scripts of the server cannot be added to') if !-w $scripts;
copy("$top/test/releases/dlock--$_.sql", $scripts) or die "$_: $!" foreach @releases;
upgrade($_, $current) foreach @releases;
upgrade($current, make_next()) if !@releases;
done_testing();

# The settings with which a server finds what the tests use, but for its scripts, of which it has a copy; and where that is.
sub own_scripts
{
	chomp(my $share = `$ENV{PG_CONFIG} --sharedir`);
	my $settings = path_conf();
	my ($name, $dest) = $settings =~ /^(extension_destdir|extension_control_path) = '([^':]+)/ or return ($settings, "$share/extension");
	my $copy = "$PostgreSQL::Test::Utils::tmp_check/upgrade";
	my $below = $name eq 'extension_destdir' ? $share : '';

	make_path("$copy$below/extension");
	copy($_, "$copy$below/extension") or die "$_: $!" foreach glob "$dest$below/extension/dlock*";
	return ($settings =~ s/^($name = ')[^':]+/$1$copy/r, "$copy$below/extension");
}

# Scripts of a next version.
sub make_next
{
	my $next = "$current.next";
	my $change = <<'EOC';
ALTER TABLE _dlock.task ADD COLUMN next pg_catalog.int4;
CREATE FUNCTION @extschema@.dlock_next(pg_catalog.int4) RETURNS pg_catalog.int4 LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS 'SELECT $1';
COMMENT ON FUNCTION @extschema@.dlock_next(pg_catalog.int4) IS 'its argument';
REVOKE ALL ON FUNCTION @extschema@.dlock_next(pg_catalog.int4) FROM PUBLIC;
EOC

	unlink glob "$scripts/dlock--*$next.sql";
	append_to_file("$scripts/dlock--$next.sql", slurp_file("$scripts/dlock--$current.sql") . $change);
	append_to_file("$scripts/dlock--$current--$next.sql", $change);
	return $next;
}

# What the extension has made in a database, in words: definitions, owners, privileges, comments, and what a dump has of its tables.
sub made
{
	my ($node, $db) = @_;
	my ($text) = run_command([ 'pg_dump', '--binary-upgrade', '--schema-only', '-h', $node->host, '-p', $node->port, $db ]);

	return join("\n", grep { !/^(?:--|$)|binary_upgrade|setval|relfrozenxid|^WHERE oid = '\d|^\\(?:un)?restrict / } split /\n/, $text) . "\n" . $node->safe_psql($db,
		'SELECT extversion, c::regclass, extcondition[i] FROM pg_extension, unnest(extconfig) WITH ORDINALITY u(c, i) ORDER BY 1, 2');
}

sub upgrade
{
	my ($old, $new) = @_;
	my $node = init_node($old =~ s/\W/_/gr, path => $path);

	$node->start;
	$node->safe_psql('postgres', 'CREATE DATABASE fresh');
	my $guarded = "CREATE TABLE guarded (i int); CREATE TRIGGER guard BEFORE INSERT ON guarded EXECUTE FUNCTION dlock_guard('held')";
	$node->safe_psql('fresh', "CREATE EXTENSION dlock VERSION '$new'; $guarded");
	$node->safe_psql('postgres', "CREATE EXTENSION dlock VERSION '$old'; $guarded");
	isnt(made($node, 'postgres'), made($node, 'fresh'), "$old is not $new");

	my ($ctl, $holder, $waiter) = open_sessions($node, 'postgres', 3);
	my $token = $holder->query_safe("SELECT dlock_acquire('held', 'ann', '1 h')");
	$holder->query_safe("PREPARE check_it AS SELECT dlock_check('held', $token); EXECUTE check_it");
	$holder->query_safe("SELECT set_config('dlock.tokens', 'held=$token', false); INSERT INTO guarded VALUES (1)");
	$holder->query_safe("SELECT dlock_acquire('bound', 'ann', bind => 'session')");
	$waiter->ask_waiting($ctl, "SELECT dlock_acquire('held', 'bob', '1 h', wait => NULL)");
	is($ctl->query_safe("SELECT dlock_acquire('held', 'app#1', '1 h', keep => '1 h')"), '', 'a place');
	$ctl->query_safe("SELECT dlock_queue_create('q'), dlock_task_put('q', 'one'), dlock_group_create('g', 2)");
	my $task = $ctl->query_safe("SELECT token FROM dlock_task_capture('q', ttl => '1 h')");
	my $member = $ctl->query_safe("SELECT dlock_group_join('g', 'me', '1 h')");
	$ctl->query_safe("SELECT dlock_group_renew('g', $member), dlock_once('day', '1 day')");
	my $state = 'SELECT name, owner, token, state, ttl FROM dlock_leases ORDER BY 1, 2, 3';
	my $leases = $node->safe_psql('postgres', $state);

	$node->safe_psql('postgres', "ALTER EXTENSION dlock UPDATE TO '$new'");
	is(made($node, 'postgres'), made($node, 'fresh'), "$old to $new: upgraded equals fresh");
	is($node->safe_psql('postgres', $state), $leases, 'the leases are as they were');
	is($holder->query('EXECUTE check_it'), 't', 'a prepared statement');
	is($holder->query('INSERT INTO guarded VALUES (2)'), '', 'a guard');
	is($holder->query("SELECT dlock_renew('held', 'ann', '1 h')"), 't', 'a renewal');
	is($ctl->query("SELECT dlock_task_finish('q', 'one', $task)"), 't', 'a task is finished');
	is($ctl->query("SELECT count(*) FROM dlock_group_renew('g', $member) WHERE action = 'run'"), 2, 'a group');
	is($holder->query("SELECT dlock_release_token('held', $token)"), 't', 'a release');
	my $second = $waiter->answer;
	cmp_ok($second, '>', $token, 'who waited has it');
	is($waiter->query("SELECT dlock_release_token('held', $second)"), 't', 'another release');
	cmp_ok($ctl->query("SELECT token FROM dlock_take('app', '1 min', '0')"), '>', $second, 'then the place');
	is($holder->query("SELECT dlock_fence('held', $token)"), '', 'the mark is as it was');
	$node->restart;
	is($node->safe_psql('postgres', "SELECT string_agg(owner, ' ' ORDER BY owner) FROM dlock_leases WHERE name = 'held'"), 'app#1', 'over a restart');
	$node->stop;
	return;
}
