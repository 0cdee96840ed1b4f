# Proves: what dlock run starts is fenced without knowing of it: its token reaches
# the tables, also from runs within runs, and is refused once somebody has taken over.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('main');
my $dir = PostgreSQL::Test::Utils::tempdir();
use_server($node);

my @names = ('ledger', 'a "b", c=d\\ e');
$node->safe_psql('postgres', <<'EOC');
CREATE TABLE ledger (entry text);
CREATE TRIGGER guard BEFORE INSERT ON ledger EXECUTE FUNCTION dlock_guard('ledger');
CREATE TABLE strange (entry text);
CREATE TRIGGER guard BEFORE INSERT ON strange EXECUTE FUNCTION dlock_guard('resource=a "b", c=d\ e');
EOC

my @psql = qw(psql -X -q -v VERBOSITY=sqlstate -c);
my $insert = 'INSERT INTO ledger VALUES';

my ($ret, $out, $err) = $node->psql('postgres', "$insert ('alone')", extra_params => [ '-v', 'VERBOSITY=sqlstate' ]);
like($err, qr/LK003/, 'alone, a writer has no token');
is(cli('run', $names[0], @psql, "$insert ('in a run')")->{code}, 0, 'in a run it has');
is(cli('run', $names[1], @psql, "INSERT INTO strange VALUES ('in a run')")->{code}, 0, 'whatever the name of the lock');
like(cli('run', $names[1], @psql, "$insert ('in another')")->{err}, qr/LK003/, 'but none of another lock');
is(cli('run', $names[0], cli_program(), 'run', $names[1], @psql, "$insert ('in both'); INSERT INTO strange VALUES ('in both')")->{code},
	0, 'in a run within a run it has both');

# It goes on after its lease was taken away.
my $late = DLockCli->start('run', '--on-lost', 'warn', $names[0], 'sh', '-c',
	"@psql[0 .. 4] -c \"$insert ('in time')\" && echo written && while [ ! -e $dir/go ]; do sleep 0.05; done; "
	  . "@psql[0 .. 4] -c \"$insert ('too late')\"");
$late->wait_out(qr/written/);
$node->safe_psql('postgres', "SELECT dlock_force_release('ledger', 'test')");
$late->wait_err(qr/is lost; the command goes on without it/);
$node->safe_psql('postgres', "SELECT dlock_force_release('ledger', 'test: opened')");
is(cli('run', $names[0], @psql, "$insert ('by its successor')")->{code}, 0, 'a successor writes');
append_to_file("$dir/go", '');
$late->finish;
like($late->{err}, qr/LK001/, 'the late write is refused');
is($late->{code}, 76, 'and the run says that its lease was lost');

is($node->safe_psql('postgres', "SELECT string_agg(entry, ', ') FROM ledger"),
	'in a run, in both, in time, by its successor', 'written');
is($node->safe_psql('postgres', "SELECT string_agg(entry, ', ') FROM strange"), 'in a run, in both', 'written');
is($node->safe_psql('postgres', 'SELECT count(*) FROM dlock_leases'), 0, 'no lease is left');

$node->stop;
done_testing();
