# A standby of a server: made, synchronous, cut off.

package DLockStandby;

use strict;
use warnings FATAL => 'all';

use Carp;
use Exporter 'import';
use PostgreSQL::Test::Cluster;

our @EXPORT = qw(make_standby make_synchronous wait_synchronous cut_off);

# A standby that streams.  Options:
#   conf   lines for its postgresql.conf
#   start  0: do not start it yet
sub make_standby
{
	my ($primary, $name, %params) = @_;
	my $standby = PostgreSQL::Test::Cluster->new($name);

	$primary->backup("for_$name");
	$standby->init_from_backup($primary, "for_$name", has_streaming => 1);
	$standby->append_conf('postgresql.conf', $params{conf}) if defined $params{conf};
	$standby->start if $params{start} // 1;
	return $standby;
}

# From now on commits wait for a standby.
sub make_synchronous
{
	my ($primary) = @_;

	$primary->append_conf('postgresql.conf', "synchronous_standby_names = '*'");
	$primary->reload;
	wait_synchronous($primary);
	return;
}

sub wait_synchronous
{
	my ($primary) = @_;

	$primary->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming'")
	  or croak 'timed out waiting for a synchronous standby';
	return;
}

# The standby sees no more of what the primary does, which goes on.
sub cut_off
{
	my ($primary, $standby) = @_;

	$standby->append_conf('postgresql.conf', "primary_conninfo = ''");
	$standby->reload;
	$primary->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_stat_replication')
	  or croak 'the standby stays connected';
	return;
}

1;
