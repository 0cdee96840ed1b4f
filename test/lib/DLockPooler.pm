# PgBouncer before a server.

package DLockPooler;

use strict;
use warnings FATAL => 'all';

use DLockCli;
use DLockTest;
use IO::Socket::INET;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($program) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin', '/usr/local/sbin';

# Can one be started?
sub is_installed
{
	return defined $program;
}

# Start one for database postgres of a server.  Fields: host, the directory of its socket; port, of that and of
# 127.0.0.1.  Options: mode (transaction), user, size (2), of the pool, conf, more lines of configuration.
sub start
{
	my ($class, $node, %params) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir_short();
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $user = $params{user} // $ENV{PGUSER} // getpwuid $>;
	my $size = $params{size} // 2;
	my $mode = $params{mode} // 'transaction';
	my $conf = $params{conf} // '';

	append_to_file("$dir/users", qq("$user" ""\n));
	append_to_file("$dir/ini", <<"EOC");
[databases]
postgres = host=@{[ $node->host ]} port=@{[ $node->port ]}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $port
unix_socket_dir = $dir
auth_type = trust
auth_file = $dir/users
pool_mode = $mode
default_pool_size = $size
ignore_startup_parameters = extra_float_digits
$conf
EOC
	my $run = DLockCli->start({ program => $program }, "$dir/ini");
	ok(wait_until(sub { $run->ended || IO::Socket::INET->new(PeerAddr => "127.0.0.1:$port") }) && !$run->ended, 'PgBouncer is there') or diag($run->err);
	return bless { run => $run, host => $dir, port => $port }, $class;
}

sub stop
{
	my ($self) = @_;

	$self->{run}->signal('INT');
	$self->{run}->finish;
	return;
}

1;
