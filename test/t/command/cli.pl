# Proves: the dlock command finds the extension wherever it is, tells each kind of
# failure by its exit code and what to do by its message, and prints what programs
# and people can read.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockSession;
use DLockTest;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = init_node('main', conf => 'dlock.max_memory = 2MB');
$node->start;
my $db = 'postgres';

# Somewhere that no search_path leads to.
$node->safe_psql($db, 'CREATE SCHEMA "Odd place"; CREATE EXTENSION dlock SCHEMA "Odd place"');
$node->safe_psql($db, 'CREATE DATABASE bare');
$node->safe_psql($db, 'CREATE ROLE stranger LOGIN');
use_server($node);
my $session = DLockSession->new($node, $db);
$session->query_safe('SET search_path = "Odd place"');
my $json = JSON::PP->new->utf8;

sub objects
{
	return map { $json->decode($_) } split /\n/, $_[0];
}

# Usage.
my $usage = qr/^dlock: error: .*\ndlock: hint: Try "dlock .*--help"\.\n\z/s;
cli_is([], { code => 64, err => $usage, out => '' }, 'no command');
cli_is(['fly'], { code => 64, err => qr/no command "fly"/ }, 'no such command');
cli_is([ 'acquire', '--fly', 'x' ], { code => 64, err => $usage }, 'no such option');
cli_is(['acquire'], { code => 64, err => $usage }, 'too few arguments');
cli_is([qw(acquire a b)], { code => 64, err => $usage }, 'too many arguments');
cli_is([qw(acquire --ttl 5y a)], { code => 64, err => qr/A span is a number with a unit/ }, 'no span');
cli_is([qw(acquire --ttl 0 a)], { code => 64, err => $usage }, 'no time');
cli_is([qw(acquire --permits 2 -s a)], { code => 64, err => $usage }, 'a permit with a mode');
cli_is([qw(release a)], { code => 64, err => $usage }, 'release what?');
cli_is([qw(release a 1 --owner o)], { code => 64, err => $usage }, 'release whose?');
cli_is([qw(release a first)], { code => 64, err => $usage }, 'no token');
cli_is([qw(force-release a)], { code => 64, err => $usage }, 'no reason');
cli_is([qw(run a)], { code => 64, err => $usage }, 'nothing to run');
cli_is([ 'run', '-c', 'true', 'a', 'true' ], { code => 64, err => $usage }, 'two things to run');
cli_is([qw(run --ttl 10 --kill-after 6 a true)], { code => 64, err => qr/Use --ttl 14s or more/ }, 'no time to kill');
cli_is([qw(run --ttl 500ms a true)], { code => 64, err => qr/a ttl of 500ms .*hint: Use --ttl 1s or more\./s }, 'no time at all');
cli_is([qw(run --ttl 500ms --kill-after 300ms a true)], { code => 64, err => qr/hint: Use --ttl 1s or more\./ }, 'no time for that');
cli_is($_, { code => 64, out => '', err => qr/^dlock: error: option "(?:-c|--command)" needs one argument.*\n.*--help/ }, "@$_: what to run?")
  foreach [qw(run a -c)], [qw(run a --command)], [qw(run a -c true true)], [qw(elect a -c)];
cli_is($_, { code => 64, out => '', err => qr/^dlock: error: the command of -c is empty\n/ }, 'nothing for the shell to run')
  foreach [ qw(run a -c), '' ], [ 'run', '-c', '', 'a' ];
{
	my @mistakes = ([qw(acquire --fly x)], ['acquire'], [qw(acquire --ttl 5y a)], [qw(acquire -n a --ttl)],
		[qw(release a first)], [qw(run a)], [qw(run a -c)], [qw(run --ttl 1 --kill-after 1m a true)], ['fly'], [qw(help fly)], []);
	foreach my $mistake (@mistakes)
	{
		my ($command, @rest) = @$mistake;
		my $run = cli_is([ $command // (), '--json', @rest ], { code => 64, out => '', err => qr/./ }, "@$mistake: with --json");
		my @objects = map { eval { $json->decode($_) } // { text => $_ } } split /\n/, $run->{err};
		is(join(' ', map { sort keys %$_ } @objects), 'code error hint sqlstate', "@$mistake: with --json the message is an object") or diag($run->{err});
		is($objects[0]{code}, 64, "@$mistake: with its exit code");
	}
}
cli_is([ 'acquire', '' ], { code => 64, err => qr/lock name must not be empty/ }, 'the server does not take it');
cli_is([qw(acquire --payload {a a)], { code => 64, err => qr/json/ }, 'no JSON');

# Help.
like(cli('--version')->{out}, qr/^dlock \d+\.\d+\n\z/, 'version');
my $help = cli_is(['--help'], { out => qr/^  76 .*lease is lost/m }, 'help');
foreach my $command ($help->{out} =~ /^  ([a-z-]+(?: [a-z]+)?)  +[a-z]/mg)
{
	my @words = split / /, $command;
	my $of = cli_is([ @words, '--help' ], { out => qr/^Usage: dlock \Q$command\E / }, "help of $command");
	is(cli('help', @words)->{out}, $of->{out}, "help of $command, asked otherwise");
	unlike($of->{out}, qr/^.{81}/m, "help of $command: lines fit a terminal");
}
unlike($help->{out}, qr/^.{81}/m, 'help: lines fit a terminal');
is(cli('help', $_)->{out}, $help->{out}, "help $_") foreach '--help', '-h';
cli_is($_, { out => qr/^  dlock task put .*^  dlock task list /ms }, "@$_") foreach [qw(help task)], [qw(task --help)];
cli_is(['task'], { code => 64, err => qr/"dlock task" needs put,/ }, 'task what?');
cli_is([qw(task fly)], { code => 64, err => qr/no command "task fly"/ }, 'no such command of tasks');
cli_is([qw(help fly)], { code => 64, err => qr/no command "fly"/ }, 'help of nothing');

# Whom it cannot reach, and who may not.
cli_is([ 'status', '-d', 'host=' . PostgreSQL::Test::Utils::tempdir() ],
	{ code => 69, err => qr/^dlock: error: .*No such file/ }, 'no server');
cli_is([ 'status', '-d', 'nowhere' ], { code => 69, err => qr/^dlock: error: connection to server .* failed: FATAL: +database "nowhere" does not exist\n\z/ }, 'no database');
cli_is([ 'status', '-d', 'bare' ], { code => 69, err => qr/does not have the extension.*CREATE EXTENSION dlock/s }, 'no extension');
cli_is([ 'status', '-d', 'user=nobody_here' ], { code => 77, err => qr/"nobody_here" does not exist/ }, 'no such role');
cli_is([ 'status', '-d', "postgresql:///$db?user=nobody_here" ], { code => 77, err => qr/nobody_here/ }, 'a URI');
foreach my $command ([qw(acquire a)], [qw(run a true)], [qw(force-release a --reason r)], [qw(watch a)], [qw(wait a)])
{
	local $ENV{PGUSER} = 'stranger';
	cli_is($command, { code => 77, err => qr/permission denied/ }, "@$command: not allowed");
}
$node->safe_psql($db, 'GRANT USAGE ON SCHEMA "Odd place" TO stranger');

# Acquire, renew, release.
my $token = cli_is([qw(acquire --ttl 1h --owner me a)], { out => qr/^\d+\n\z/ }, 'acquire')->{out};
chomp $token;
is($session->query_safe("SELECT token, owner, ttl FROM dlock_leases"), "$token|me|01:00:00", 'acquired');
cli_is([qw(acquire -n a)], { code => 75, out => '', err => qr/"a" was not acquired\n.*held by "me" with token $token\./ }, 'refused');
cli_is([qw(acquire -n -E 9 a)], { code => 9, err => qr/not acquired/ }, 'refused, with a code of its own');
cli_is([qw(acquire -q -n a)], { code => 75 }, 'refused, quietly');
cli_is([ 'acquire', $_, '0.2', 'a' ], { code => 75, err => qr/not acquired/ }, "refused after a while, $_") foreach '-w', '--timeout';
{
	my $run = cli_is([qw(acquire --json -n -E 9 a)], { code => 9, err => qr/./ }, 'refused, in JSON');
	my @errors = objects($run->{err});
	is_deeply([ scalar @errors, @{ $errors[0] }{qw(code sqlstate detail)} ],
		[ 1, 9, undef, "It is held by \"me\" with token $token." ], 'refused, in JSON: one object');
	@errors = objects(cli_is([ 'acquire', '--json', '' ], { code => 64, err => qr/./ }, 'an error of the server, in JSON')->{err});
	is_deeply([ scalar @errors, @{ $errors[0] }{qw(code sqlstate)} ], [ 1, 64, '22023' ], 'an error of the server, in JSON: its SQLSTATE');
	@errors = objects(cli_is([ 'status', '--json', '-d', 'nowhere' ], { code => 69, err => qr/./ }, 'no database, in JSON')->{err});
	is_deeply([ scalar @errors, @{ $errors[0] }{qw(code sqlstate)} ], [ 1, 69, '3D000' ], 'no database, in JSON: the SQLSTATE');
	@errors = objects(cli_is([ 'status', '--json', '-d', 'bare' ], { code => 69, err => qr/./ }, 'no extension, in JSON')->{err});
	is_deeply([ scalar @errors, $errors[0]{code}, $errors[0]{hint} =~ /CREATE EXTENSION/ ? 1 : 0 ], [ 1, 69, 1 ], 'no extension, in JSON: one object');
}
cli_is([ 'check', 'a', $token ], {}, 'check what is held');
cli_is([ 'check', 'a', $token - 1 ], { code => 76, err => qr/not held/ }, 'check another token');
cli_is([ 'check', '--json', 'a', $token ], { out => qq({"name":"a","held":true}\n) }, 'check, in JSON');
cli_is([qw(check a)], { code => 64, err => $usage }, 'check which token?');
cli_is([qw(acquire -n --owner me a)], { code => 75, err => qr/not acquired/ }, 'an owner does not share with itself');
cli_is([ 'renew', 'a', $token, '--ttl', '2h' ], {}, 'renew');
is($session->query_safe("SELECT ttl, remaining > '1:59' FROM dlock_leases"), '02:00:00|t', 'renewed');
cli_is([qw(renew a --owner me)], {}, 'renew by owner');
cli_is([qw(renew a --owner you)], { code => 76, err => qr/not held/ }, 'renew what is not held');
{
	local $ENV{PGUSER} = 'stranger';
	cli_is([ 'release', 'a', $token ], { code => 77, err => qr/role/ }, "release somebody else's");
	cli_is([qw(force-release a --reason r)], { code => 77, err => qr/permission denied/ }, 'not allowed to force');
}
cli_is([ 'release', 'a', $token ], {}, 'release');
cli_is([ 'release', 'a', $token ], { code => 76, err => qr/not held/ }, 'release what is not held');
cli_is([ 'check', 'a', $token ], { code => 76, err => qr/not held/ }, 'check what is not held');
cli_is([ 'release', '--json', 'a', $token ], { code => 76, out => qq({"name":"a","released":false}\n), err => qr/^\{"error":/ }, 'the same, in JSON');
my @got = objects(cli_is([ qw(acquire --json --ttl 90s), "\"\e\x{c3}\x{a4}" ], { out => qr/^[^\e]*$/ }, 'acquire in JSON')->{out});
is_deeply([ sort keys %{ $got[0] } ], [qw(name owner token ttl)], 'JSON of acquire');
is($got[0]{name}, "\"\e\x{e4}", 'JSON of acquire: name');
is($got[0]{ttl}, 90, 'JSON of acquire: ttl');
{
	# CSI as one character, and a mark that turns the direction of writing.
	my $hostile = "\x{c2}\x{9b}31m\x{e2}\x{80}\x{ae}";
	cli_is([ qw(acquire --json --payload), qq({"$hostile": "$hostile"}), $hostile ], { out => qr/^[ -~]+\n$/ }, 'nothing for the terminal in JSON');
	my ($object) = objects(cli_is([ qw(status --json), $hostile ], { out => qr/^[ -~]+\n$/ }, 'nor in its payload')->{out});
	is($object->{name}, "\x{9b}31m\x{202e}", 'nothing for the terminal in JSON: name');
	is_deeply($object->{payload}, { "\x{9b}31m\x{202e}" => "\x{9b}31m\x{202e}" }, 'nothing for the terminal in JSON: payload');
}
like($got[0]{owner}, qr{^.+/\d+/[0-9a-f]{8}$}, 'an owner of its own');
my $shared = cli_is([qw(acquire --ttl 1h -s s)], { out => qr/^\d+$/ }, 'shared')->{out};
cli_is([qw(acquire --ttl 1h -n -s s)], { out => qr/^\d+$/ }, 'shared, again');
cli_is([qw(acquire -n -x s)], { code => 75, err => qr/not acquired/ }, 'exclusive is not');
cli_is([qw(acquire -n --mode CR s)], { out => qr/^\d+$/ }, 'another mode');
cli_is([qw(acquire -n --mode XX s)], { code => 64, err => qr/mode/ }, 'no mode');
cli_is([qw(acquire --ttl 1h -n --permits 2 p)], { out => qr/^\d+$/ }, "permit $_") for 1 .. 2;
cli_is([qw(acquire -n --permits 2 p)], { code => 75, err => qr/not acquired/ }, 'permit 3');
cli_is([qw(acquire -n --permits 3 p)], { code => 64, err => qr/permits/ }, 'other permits');
cli_is([qw(acquire --ttl 1h -n --path tree/a)], { out => qr/^\d+$/ }, 'a path');
cli_is([qw(acquire --ttl 1h -n --path tree/b)], { out => qr/^\d+$/ }, 'its sibling');
cli_is([qw(acquire -n tree)], { code => 75, err => qr/not acquired/ }, 'its parent');
cli_is([qw(acquire --ttl 2h --min-hold 1h --lock-delay 2h --payload), '{"x": [1]}', 'm'], { out => qr/^\d+$/ }, 'the rest');
is($session->query_safe("SELECT dlock_release_token('m', token), payload FROM dlock_leases WHERE name = 'm'"), 't|{"x": [1]}', 'the rest: payload');
is($session->query_safe("SELECT state FROM dlock_leases WHERE name = 'm'"), 'closed', 'the rest: least time');

# Status, for people and for programs.
$session->query_safe('SELECT dlock_force_release(name, \'next\') FROM dlock_leases');
is(cli('status')->{out}, '', 'status: nothing');
my $one = cli(qw(acquire --owner first --ttl 1h), "odd \e[31m\x{c3}\x{a4}\n")->{out};
my $two = cli(qw(acquire --owner second-one --ttl 1h b --payload), '{"k": 1}')->{out};
my $waiter = DLockCli->start(qw(acquire --ttl 1h --owner third b));
ok(wait_until(sub { $session->query_safe('SELECT count(*) FROM dlock_waiters') == 1 }), 'somebody waits');
my $status = cli_is(['status'], { out => qr/^NAME +OWNER +MODE +TOKEN +STATE +LEFT +PAYLOAD\n/ }, 'status')->{out};
unlike($status, qr/\e/, 'status: nothing for the terminal');
my @lines = split /\n/, $status;
is(scalar @lines, 6, 'status: lines');
is(index($lines[0], 'OWNER'), index($lines[1], 'second-one'), 'status: aligned');
is(index($lines[0], 'PAYLOAD'), index($lines[1], '{"k"'), 'status: payloads are aligned as text');
{
	# A character of two bytes takes one column.
	my $wide = $lines[2];
	utf8::decode($wide);
	is(index($lines[0], 'OWNER'), index($wide, 'first'), 'status: aligned by columns');
}
like($lines[5], qr/^b +1 +third +exclusive +\d+\.\d{3}$/, 'status: who waits');
my @objects = objects(cli('status', '--json')->{out});
is(scalar @objects, 3, 'status: objects');
is_deeply([ @{ $objects[0] }{qw(kind name owner state token)} ], [ 'lease', 'b', 'second-one', 'held', $two + 0 ], 'status: a lease');
is_deeply($objects[0]{payload}, { k => 1 }, 'status: its payload');
is($objects[1]{name}, "odd \e[31m\x{e4}\n", 'status: a name');
is_deeply([ @{ $objects[2] }{qw(kind name owner position)}, @{ $objects[2]{blocked_by} } ],
	[ 'waiter', 'b', 'third', 1, 'second-one' ], 'status: a waiter');
is(scalar objects(cli(qw(status b --json))->{out}), 2, 'status of one');
is(cli(qw(status none))->{out}, '', 'status of none');

# Wait, watch and force-release.
cli_is([qw(wait none)], {}, 'wait for nobody');
cli_is([qw(wait -w 0.2 b)], { code => 75, err => qr/still held/ }, 'wait for somebody');
my $watch = DLockCli->start(qw(watch b));
my $watch_json = DLockCli->start(qw(watch --json b));
my $waits = DLockCli->start(qw(wait b));
$_->wait_out(qr/second-one/) foreach $watch, $watch_json;
cli_is([qw(force-release b --reason), 'it hangs'], { out => "1\n" }, 'force-release');
like(slurp_file($node->logfile), qr/it hangs/, 'force-release: its reason');
like($waiter->finish->{out}, qr/^\d+$/, 'who waited has got it');

# A holder who is gone before they look is not seen.
$_->wait_out(qr/third/) foreach $watch, $watch_json;
cli_is([qw(release --owner third b)], {}, 'released');
is($waits->finish->{code}, 0, 'who waited for nobody is told');
$watch->wait_out(qr/third\n.*free\n\z/);
$watch_json->wait_out(qr/third.*\n.*null.*\n\z/);
foreach ($watch, $watch_json)
{
	$_->signal('TERM');
	is($_->finish->{signal}, 15, 'watch: ended');
}

# Between two holders there may be none for a moment.
like(join(' ', map { $_->{owner} // 'free' } objects($watch_json->{out})), qr/^second-one (?:free )?third free$/, 'watch, in JSON');
like($watch->{out}, qr/^\S+Z  held  \d+  second-one  \{"k": 1\}\n(?:\S+Z  free\n)?\S+Z  held  \d+  third\n\S+Z  free\n\z/, 'watch');
cli_is([qw(watch --json -n 1 b)], { out => qr/"owner":null/ }, 'watch: as many lines as asked for');
cli_is([qw(force-release --json none --reason r)], { out => qq({"name":"none","released":0}\n) }, 'force-release of nothing');

# A reader that goes away.
foreach my $ignored (0, 1)
{
	pipe my $reader, my $writer or die;
	my $run = DLockCli->start({ out => $writer, before => sub { $SIG{PIPE} = 'IGNORE' if $ignored } }, 'watch', "pipe$ignored");
	close $writer;
	is(scalar <$reader> =~ /free/, 1, 'broken pipe: read once');
	close $reader;
	$session->query_safe("SELECT dlock_acquire('pipe$ignored', 'x', '1 h')");
	$run->finish;
	is($ignored ? $run->{code} - 128 : $run->{signal}, 13, 'broken pipe: ends as others do');
	is($run->{err}, '', 'broken pipe: nothing to say');
}
{
	cli_is([ { program => '/bin/sh' }, '-c', '"$0" acquire full >/dev/full', cli_program() ], { code => 71, err => qr/could not write/ }, 'a full disk');
	my $token = cli(qw(acquire --ttl 1h full))->{out} =~ s/\s.*//sr;
	cli_is([ { program => '/bin/sh' }, '-c', "\"\$0\" check --json full $token >/dev/full", cli_program() ], { code => 71, err => qr/could not write/ }, 'a full disk, and an answer');
	cli_is([ qw(release full), $token ], {}, 'released');
	is($session->query_safe("SELECT count(*) FROM dlock_leases WHERE name = 'full'"), 0, 'a full disk: nothing stays locked');
}

# What is not UTF-8 does not get into JSON, and what is does not get cut into pieces.
foreach my $bytes ("\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\xff")
{
	my $run = cli('release', '--json', 'bytes', $bytes);
	is($run->{code}, 64, sprintf('bytes %vx: exit code', $bytes));
	ok(utf8::decode(my $copy = $run->{err}), sprintf('bytes %vx: told in UTF-8', $bytes));
	like($run->{err}, qr/\\ufffd/, sprintf('bytes %vx: replaced', $bytes));
}
cli_is([ qw(run --owner), 'x' . "\xc3\xa9" x 150, qw(long true) ], { code => 64, err => qr/owner.*too long/ }, 'long owner');

# Who can only read is not asked for ever.
{
	$session->query_safe("CREATE ROLE reader LOGIN SUPERUSER");
	$session->query_safe("ALTER ROLE reader SET default_transaction_read_only = on");
	cli_is([ { env => { PGUSER => 'reader' } }, qw(run reading true) ], { code => 69, err => qr/read-only transaction/ }, 'a server that only reads');
}

# A server that has no room, and one that is not right.  Small leases take what is too
# little for another large one.
foreach my $lease (q{'large-' || i || repeat('x', 200), repeat('o', 200), '1 h', payload => to_jsonb(repeat('p', 900))}, q{'small-' || i, repeat('o', 200), '1 h'})
{
	$session->query("SELECT dlock_acquire($lease) FROM generate_series(1, 10000) i");
	is($session->{state}, '53400', 'lock space full');
}
cli_is([ qw(acquire --payload), '"' . 'p' x 900 . '"', 'n' x 200 ], { code => 69, err => qr/detail|hint/ }, 'lock space full');
$session->query_safe("SELECT dlock_release_all(repeat('o', 200))");
$session->query_safe(q{CREATE FUNCTION dlock_check(text) RETURNS text LANGUAGE sql AS 'SELECT 1'; ALTER FUNCTION dlock_renew_token(text, bigint, interval) RENAME TO dlock_gone; CREATE FUNCTION dlock_renew_token(text, bigint, interval) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''odd''; END'});
cli_is([qw(renew x 1)], { code => 70, err => qr/error: odd/ }, 'an error that nobody expects');
$session->quit;
$node->stop;
done_testing();
