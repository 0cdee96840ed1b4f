# Proves: pg_upgrade carries the leases over, with their tokens and deadlines, and
# new tokens are larger; from this version, and from that in DLOCK_OLD_BINDIR
# (whose server finds dlock by the settings in the file DLOCK_OLD_PATH_CONFIG).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use Cwd;
use DLockSession;
use DLockTest;
use File::Basename;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Upgrade a cluster of the version in $old_bindir, or of this one.
sub upgrade
{
	my ($label, $old_bindir, @mode) = @_;
	my %old_params;

	if (defined $old_bindir)
	{
		%old_params = (
			node => [ install_path => dirname($old_bindir) ],
			path => defined $ENV{DLOCK_OLD_PATH_CONFIG}
			? slurp_file($ENV{DLOCK_OLD_PATH_CONFIG})
			: '');
	}

	# Versions differ in what they do by default; the clusters must not.
	my @like = ('--data-checksums', '--encoding=UTF8', '--locale=C');
	my $old = init_node("old_$label", extra => \@like, %old_params);
	$old->start;
	$old->safe_psql('postgres', 'CREATE SCHEMA s; CREATE EXTENSION dlock SCHEMA s');
	my $session = DLockSession->new($old, 'postgres');
	my ($token, $sent, $answered) = timed_query($session,
		"SELECT s.dlock_acquire('held', 'alice', '1000 s', payload => '{\"a\": 1}')"
	);
	$session->query_safe(
		"SELECT count(s.dlock_acquire('many-' || repeat('x', i % 200) || i, 'alice', '1 h', payload => to_jsonb(i))) FROM generate_series(1, 500) i"
	);
	$session->query_safe(
		"SELECT count(s.dlock_release('many-' || repeat('x', i % 200) || i, 'alice')) FROM generate_series(1, 500, 3) i"
	);
	$session->quit;
	$old->safe_psql('postgres', 'CREATE DATABASE other');
	$old->safe_psql('other', 'CREATE EXTENSION dlock');
	my $other = $old->safe_psql('other',
		"SELECT dlock_acquire('held', 'bob', '1 h')");
	my $rows =
	  'SELECT name, owner, token, mode, role, granted_at, ttl, payload FROM s.dlock_leases ORDER BY name';
	my $before = $old->safe_psql('postgres', $rows);
	my $last = $old->safe_psql('postgres',
		"SELECT s.dlock_acquire('last', 'alice', '1 ms')");
	my $option = $old->safe_psql('postgres',
		"SELECT coalesce(attoptions[1], '') FROM pg_attribute WHERE attrelid = '_dlock.fence_mark'::regclass AND attname = 'token'");
	my $old_bin = $old->config_data('--bindir');
	$old->stop;

	my $new = init_node("new_$label", extra => \@like);
	my $new_bin = $new->config_data('--bindir');

	# Some minor releases note in the catalog what only others released with them know.
	if ($option ne '')
	{
		$new->start;
		my ($ret) = $new->psql('postgres', "CREATE TEMP TABLE t (a int); ALTER TABLE t ALTER a SET ($option)");
		$new->stop;
		skip "$label: this server is older than the release of the other that wrote \"$option\"", 1 if $ret != 0;
	}

	# pg_upgrade writes where it stands.
	my $cwd = getcwd();
	chdir $PostgreSQL::Test::Utils::tmp_check or die;
	command_ok(
		[
			"$new_bin/pg_upgrade", '--no-sync',
			'-d', $old->data_dir, '-D', $new->data_dir,
			'-b', $old_bin, '-B', $new_bin,
			'-s', $new->host, '-p', $old->port, '-P', $new->port,
			@mode
		],
		"$label: pg_upgrade");
	chdir $cwd or die;

	$new->start;
	is($new->safe_psql('postgres', $rows), $before,
		"$label: leases are as they were");
	$session = DLockSession->new($new, 'postgres');
	$session->query_safe('SET search_path = s');
	remaining_is_exact($session, 'held', 1000, $sent, $answered,
		"$label: deadline");
	is($session->query_safe("SELECT s.dlock_acquire('held', 'mallory', '1 h')"),
		'', "$label: refused");
	cmp_ok(
		$session->query_safe("SELECT s.dlock_acquire('new', 'bob', '1 h')"),
		'>', $last, "$label: new tokens are larger");
	is($session->query_safe("SELECT s.dlock_release_token('held', $token)"),
		't', "$label: released by its token");
	$session->quit;
	is($new->safe_psql('other', "SELECT dlock_check('held', $other)"),
		't', "$label: the other database");
	cmp_ok(
		$new->safe_psql('other', "SELECT dlock_acquire('new', 'bob', '1 h')"),
		'>', $other, "$label: tokens of the other database");
	$new->safe_psql('postgres', 'VACUUM FULL');
	$new->stop;
	return;
}

upgrade('same');
SKIP:
{
	no warnings 'exiting';		# skip in upgrade() leaves this block
	skip 'DLOCK_OLD_BINDIR does not say where an older version is', 1
	  unless defined $ENV{DLOCK_OLD_BINDIR};
	upgrade('older', $ENV{DLOCK_OLD_BINDIR});
	upgrade('linked', $ENV{DLOCK_OLD_BINDIR}, '--link');
}

done_testing();
