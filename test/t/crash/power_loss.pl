# Proves: what a power cut leaves of the disk has every grant that was answered with
# synchronous_commit on, and no damaged page; with it off, no token comes back, and
# nothing is missing that a flush came after.
#
#   DLOCK_PROOF_SECONDS    how long (10)
#   DLOCK_SEED             the choices of another run
#
# test/proof/power_loss.c is the disk, and DLockHistory.pm judges what clients saw.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib", "$FindBin::RealBin/../../proof";

use Cwd qw(realpath);
use DLockProof;
use DLockTest;
use File::Find;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $db = 'postgres';
my $seconds = DLockProof::seconds(10);
my $sector = 512;
my (%cuts, $lost);
seed_random();

# Few buffers, so that pages are written all the time, and often a checkpoint.
# Nothing else flushes what a call has left unflushed.
my $node = start_node('main', extra => [ '--data-checksums', '--wal-segsize=1' ], conf => <<'EOC');
max_connections = 60
fsync = on
wal_sync_method = fdatasync
max_wal_size = 4MB
min_wal_size = 2MB
checkpoint_timeout = 30s
shared_buffers = 256kB
deadlock_timeout = 200ms
wal_writer_delay = 10s
log_min_messages = fatal
EOC
$node->stop;

my $data = realpath($node->data_dir);
my $disk = "$data.disk";
my $library = DLockProof::build('power_loss', '-shared', '-fPIC', '-ldl');
my %shim = (LD_PRELOAD => join(':', grep { defined && $_ ne '' } $library, $ENV{LD_PRELOAD}), POWER_LOSS_DATA => $data, POWER_LOSS_DISK => $disk);

sub start_on_disk
{
	local %ENV = (%ENV, %shim);

	system('cp', '-a', $data, $disk) == 0 or die 'cannot copy';
	$node->start;
	return;
}

# Of what was not synchronised nothing reaches the disk, or some sectors do.
sub cut_power
{
	my ($some) = @_;

	crash_node($node);
	$lost += unsynchronized();
	if ($some)
	{
		find({ no_chdir => 1, wanted => sub { mix_file($_) if -f } }, $data);
	}
	$cuts{ $some ? 'some' : 'none' }++;
	replace_data();
	return;
}

# What is on the disk is all that there is.
sub replace_data
{
	system('rm', '-rf', $data) == 0 && rename($disk, $data) or die 'cannot replace';
	unlink "$data/postmaster.pid";
	return;
}

sub mix_file
{
	my ($path) = @_;
	my $there = $disk . substr $path, length $data;
	my $now = DLockTest::slurp_binary($path);
	my $mixed = -e $there ? DLockTest::slurp_binary($there) : '';
	my $before = $mixed;

	# The rest of the server has gone, so this is nobody's any more.
	return if $path =~ m{/postmaster\.pid$} || $now eq $mixed || !-e $there && rand() < 0.5;
	$mixed .= "\0" x (length($now) - length $mixed) if length $now > length $mixed && rand() < 0.5;
	for (my $at = 0; $at < length $mixed && $at < length $now; $at += $sector)
	{
		my $length = $sector;

		$length = length($mixed) - $at if $at + $length > length $mixed;
		$length = length($now) - $at if $at + $length > length $now;
		substr($mixed, $at, $length) = substr $now, $at, $length if rand() < 0.5;
	}
	open my $file, '>:raw', $there or die "$there: $!";
	print $file $mixed;
	close $file or die "$there: $!";
	return;
}

# The number of files that are not what they would be after a cut.
sub unsynchronized
{
	my $count = 0;

	find({
			no_chdir => 1,
			wanted => sub {
				my $there = $disk . substr $_, length $data;

				$count++ if -f && -e $there && DLockTest::slurp_binary($_) ne DLockTest::slurp_binary($there);
			}
		}, $data);
	return $count;
}

# Cut the power again and again, under load.
sub run
{
	my ($name, $options, $durable) = @_;
	my $end = mono_now() + $seconds / 2;
	my $cuts = 0;

	start_on_disk();
	my $clients = DLockProof->new($node, count => 10, options => $options, flush => !$durable);
	while ($cuts < 2 || !$clients->is_enough($end))
	{
		$clients->stop_one for 1 .. 3;
		usleep(rand 1_500_000);
		$node->safe_psql($db, 'CHECKPOINT') if rand() < 0.3;
		usleep(rand 100_000);
		cut_power($cuts++ % 2);
		start_on_disk();
		$clients->go_on;
	}
	$clients->end;
	isnt($node->safe_psql($db, "SELECT dlock_acquire_all('{n0, n1, n2, n3, n4, n5, n6, n7, n8, n9, p}', 'last', '1 h', '5 min')"),
		'', "$name: every lock can be had");
	isnt($node->safe_psql($db, "SELECT dlock_acquire('s', 'last', '1 h', '5 min', permits => 2) + dlock_acquire('s', 'other', '1 h', '5 min', permits => 2)"),
		'', "$name: and both permits");
	is($node->safe_psql($db, "SELECT dlock_release_all('last') + dlock_release_all('other')"), '13', "$name: and released");
	$clients->is_right($name, durable => $durable);

	$node->stop;
	system('rm', '-rf', $disk) == 0 or die 'cannot remove';
	command_ok([ 'pg_checksums', '--check', '-D', $data ], "$name: no page is damaged");
	return;
}

# The disk forgets, or this shows nothing.
start_on_disk();
$node->safe_psql($db, "COPY (SELECT 1) TO '$data/forgotten'; CHECKPOINT; CREATE TABLE remembered AS SELECT 1");
ok(-e "$data/forgotten", 'a file without fsync');
cut_power(0);
ok(!-e "$data/forgotten", 'is not on the disk after a cut');
start_on_disk();
is($node->safe_psql($db, 'SELECT count(*) FROM remembered'), '1', 'what was committed is');
crash_node($node);
replace_data();

run('synchronous_commit on', '', 1);
run('synchronous_commit off', '-c synchronous_commit=off', 0);
diag "some sectors survived $cuts{some} cuts and none $cuts{none}; $lost files were not synchronized";
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|invalid page|XX001/, 'nothing odd in the log');
done_testing();
