# Proves: with the files of doc/monitoring, Debian's two exporters report all that the
# dashboard and the alerts ask for, under the same names and with the same values;
# each query of the dashboard is answered by the real Prometheus; the alerts fire when
# they should; and a standby is scraped without errors.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockStandby;
use DLockTest;
use HTTP::Tiny;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

foreach my $program (qw(prometheus promtool prometheus-postgres-exporter prometheus-sql-exporter))
{
	plan skip_all => "there is no $program here (Debian: prometheus, prometheus-postgres-exporter, prometheus-sql-exporter)"
	  unless grep { -x "$_/$program" } split /:/, $ENV{PATH};
}

my $top = "$FindBin::RealBin/../../..";
my $files = "$top/doc/monitoring";
my $place = PostgreSQL::Test::Utils::tempdir_short();
my $http = HTTP::Tiny->new(timeout => 10);
my $user = 'prometheus';
my @started;

# Nothing of this outlives the test.
END
{
	my $status = $?;
	kill 'KILL', @started;
	waitpid $_, 0 foreach @started;
	$? = $status;
}

sub launch
{
	my ($name, @command) = @_;
	my $pid = fork // die "fork: $!";

	if ($pid == 0)
	{
		open STDIN, '<', '/dev/null';
		open STDOUT, '>>', "$place/$name.log";
		open STDERR, '>&', \*STDOUT;
		{ no warnings; exec @command };
		POSIX::_exit(201);
	}
	push @started, $pid;
	return;
}

sub get
{
	my ($url) = @_;
	my $answer = $http->get($url);

	return $answer->{success} ? $answer->{content} : '';
}

# Metrics by their names and labels.
sub metrics_of
{
	my ($page) = @_;
	return map { /^([a-z]\w*(?:\{.*\})?) (\S+)$/ ? ($1 => $2) : () } split /\n/, $page;
}

sub write_file
{
	my ($name, $text) = @_;

	open my $file, '>', "$place/$name" or die "$name: $!";
	print $file $text;
	close $file;
	return;
}

# ---- the rules, by themselves ----
{
	my ($out, $error);
	ok(IPC::Run::run([ 'promtool', 'check', 'config', "$files/prometheus.yml" ], '>', \$out, '2>', \$error), 'prometheus.yml')
	  or diag("$out$error");
	ok(IPC::Run::run([ 'promtool', 'test', 'rules', "$top/test/monitoring/alerts_test.yml" ], '>', \$out, '2>', \$error), 'each alert fires, and only then')
	  or diag("$out$error");
}

# ---- the server, and something to see ----
my $node = start_node('main', allows_streaming => 1);
my $db = 'postgres';
$node->safe_psql($db, "CREATE ROLE $user LOGIN IN ROLE pg_monitor; CREATE TABLE guarded (i int); "
	  . "CREATE TRIGGER guard BEFORE INSERT ON guarded EXECUTE FUNCTION dlock_guard('held');"
	  . "SELECT dlock_queue_create('mail'), dlock_task_put('mail', 'a'), dlock_group_create('orders', 4)");
my $session = DLockSession->new($node, $db);
my $waiter = DLockSession->new($node, $db);
$session->query_safe("SELECT dlock_acquire('held', 'alice', '1 h')");
$waiter->ask_waiting($session, "SELECT dlock_acquire('held', 'bob', wait => '1 h')");

sub make_traffic
{
	$session->query_safe("SELECT dlock_acquire('busy', 'alice', '1 h'), dlock_acquire('busy', 'bob', wait => '2 ms'), dlock_renew('busy', 'alice'), dlock_release('busy', 'alice')");
	$session->query('INSERT INTO guarded VALUES (1)');
	return;
}

# ---- the exporters ----
my %port = map { $_ => PostgreSQL::Test::Cluster::get_free_port() } qw(postgres sql prometheus standby standby_sql);
my $sql_config = slurp_file("$files/sql-exporter.yml");

sub start_exporters
{
	my ($server, $postgres_port, $sql_port) = @_;
	my $config = $sql_config =~ s{^ +- postgres://.*$}{"      - postgres://$user\@/$db?host=" . $server->host . '&port=' . $server->port . '&sslmode=disable'}emr;

	local $ENV{DATA_SOURCE_NAME} = 'host=' . $server->host . ' port=' . $server->port . " user=$user dbname=$db sslmode=disable";
	launch("postgres-exporter.$postgres_port", 'prometheus-postgres-exporter', '--disable-default-metrics', '--disable-settings-metrics',
		'--extend.query-path', "$files/postgres-exporter.yml", '--web.listen-address', "127.0.0.1:$postgres_port");
	write_file("sql.$sql_port.yml", $config =~ s/interval: 15s/interval: 1s/r);
	local $ENV{LOGLEVEL} = 'warn';
	launch("sql-exporter.$sql_port", 'prometheus-sql-exporter', '-config.file', "$place/sql.$sql_port.yml", '-web.listen-address', "127.0.0.1:$sql_port");
	return;
}

start_exporters($node, $port{postgres}, $port{sql});
my $page;
ok(wait_until(sub { $page = get("http://127.0.0.1:$port{postgres}/metrics"); $page =~ /^dlock_group_unowned/m }), 'prometheus-postgres-exporter');
my %metric = metrics_of($page);
my $label = "{datname=\"$db\",server=\"" . $node->host . ':' . $node->port . '"}';
is($metric{"dlock_leases$label"}, 1, 'a lease');
is($metric{"dlock_waiters$label"}, 1, 'a call that waits');
cmp_ok($metric{"dlock_oldest_wait_seconds$label"}, '>', 0, 'its wait');
is($metric{ "dlock_task_ready" . ($label =~ s/,/,queue="mail",/r) }, 1, 'a task');
is($metric{ "dlock_group_unowned" . ($label =~ s/,/,group_name="orders",/r) }, 4, 'partitions without an owner');

# What is in the files as a metric is in the answer.
my %wanted = map { $_ => 1 } $page =~ /^(dlock_\w+)/mg;
my ($prefix, %declared);
foreach my $line (split /\n/, slurp_file("$files/postgres-exporter.yml"))
{
	$prefix = $1 if $line =~ /^(\w+):$/;
	$declared{"${prefix}_$1"} = $2 if $line =~ /^ +- (\w+): \{usage: (COUNTER|GAUGE|HISTOGRAM)/;
}
cmp_ok(scalar(keys %declared), '>=', 30, 'metrics are declared');
is_deeply([ grep { !$wanted{ $declared{$_} eq 'HISTOGRAM' ? "${_}_bucket" : $_ } } sort keys %declared ], [], 'each is exported');
unlike(slurp_file("$place/postgres-exporter.$port{postgres}.log"), qr/level=(error|warn)/, 'without a complaint');

ok(wait_until(sub { get("http://127.0.0.1:$port{sql}/metrics") =~ /^sql_dlock_group/m }), 'prometheus-sql-exporter');
unlike(slurp_file("$place/sql-exporter.$port{sql}.log"), qr/level=(error|warn)|"level":"(error|warn)"/, 'without a complaint');

# ---- Prometheus ----
my $config = slurp_file("$files/prometheus.yml");
$config =~ s/scrape_interval: 15s/scrape_interval: 1s\n  evaluation_interval: 1s/;
$config =~ s/localhost:9187/127.0.0.1:$port{postgres}/;
$config =~ s/localhost:9237/127.0.0.1:$port{sql}/;
$config =~ s{- alerts.yml}{- $files/alerts.yml};
write_file('prometheus.yml', $config);
launch('prometheus', 'prometheus', '--config.file', "$place/prometheus.yml", '--storage.tsdb.path', "$place/data",
	'--web.listen-address', "127.0.0.1:$port{prometheus}", '--log.level', 'warn');

# The samples of an expression, or an error.
sub ask
{
	my ($expression) = @_;
	my $answer = $http->post_form("http://127.0.0.1:$port{prometheus}/api/v1/query", { query => $expression });
	my $data = eval { decode_json($answer->{content}) } // {};

	return "error: $answer->{content}" if ($data->{status} // '') ne 'success';
	return $data->{data}{result};
}

# Both exporters make the same of it.
foreach my $job (qw(postgres sql))
{
	ok(wait_until(sub { my $found = ask("dlock_leases{job=\"$job\"}"); ref $found && @$found }), "job $job is scraped")
	  or diag(slurp_file("$place/prometheus.log"));
}
{
	my %names;
	my $complete = sub {
		foreach my $job (qw(postgres sql))
		{
			my $found = ask("count by (__name__) ({__name__=~\"dlock_.*\", job=\"$job\"})");
			$names{$job} = ref $found ? [ sort map { $_->{metric}{__name__} } @$found ] : [];
		}
		return "@{$names{postgres}}" eq "@{$names{sql}}";
	};
	ok(wait_until($complete), 'the same names from both exporters') or diag("@{$names{postgres}}\n@{$names{sql}}");
	foreach my $name (qw(dlock_leases dlock_waiters dlock_memory_limit_bytes dlock_workers dlock_task_ready dlock_group_unowned dlock_wait_seconds_count))
	{
		my $same = sub {
			my $found = ask($name . '{job="postgres"} == on(datname, queue, group_name) ' . $name . '{job="sql"}');
			return ref $found && @$found == 1;
		};
		ok(wait_until($same), "$name: the same value");
	}
	my $both = sub {
		my $found = ask('count(dlock_wait_seconds_bucket{le="+Inf"})');
		return ref $found && @$found && $found->[0]{value}[1] == 2;
	};
	ok(wait_until($both), 'a histogram from both');
}

# Each query of the dashboard has an answer, and the rates are not zero.
{
	my $dashboard = decode_json(slurp_file("$files/dashboard.json"));
	my @panels = @{ $dashboard->{panels} };
	my $queries = 0;

	cmp_ok(scalar(@panels), '>=', 10, 'panels');
	foreach my $panel (@panels)
	{
		foreach my $target (@{ $panel->{targets} })
		{
			my $expression = $target->{expr} =~ s/\$__rate_interval/10s/gr =~ s/\$datname/.*/gr;
			my $found;

			unlike($expression, qr/\$/, "$panel->{title}, $target->{legendFormat}: no other variable");
			ok( wait_until(
					sub {
						make_traffic();
						$found = ask($expression);
						return ref $found && @$found && !grep { $_->{value}[1] eq 'NaN' } @$found;
					}),
				"$panel->{title}, $target->{legendFormat}: answered")
			  or diag(explain($expression, $found));
			$queries++;
		}
	}
	note "$queries queries";
	foreach my $counter (qw(grants releases renewals timeouts fence_missing))
	{
		my $found;
		ok( wait_until(
				sub {
					make_traffic();
					$found = ask("min(rate(dlock_${counter}_total[10s]))");
					return ref $found && @$found && $found->[0]{value}[1] > 0;
				}),
			"$counter: a rate");
	}
	my $found = ask('label_replace(dlock_leases, "x", "1", "", "")');
	ok(ref $found && !grep({ !defined $_->{metric}{datname} } @$found), 'the label that the dashboard chooses by');

	# An alert that real data raise.
	ok( wait_until(
			sub {
				make_traffic();
				$found = ask('ALERTS{alertname="DlockWritesWithoutToken", alertstate="firing"}');
				return ref $found && @$found == 2;
			}),
		'an alert');

	# It is pending for a moment if a scrape has taken too long.
	ok(wait_until(sub { my $absent = ask('ALERTS{alertname="DlockAbsent"}'); ref $absent && !@$absent }), 'and none without a reason');
	my $rules = decode_json(get("http://127.0.0.1:$port{prometheus}/api/v1/rules"));
	is_deeply([ map { $_->{lastError} // () } map { @{ $_->{rules} } } @{ $rules->{data}{groups} } ], [], 'no rule has failed');
}

# ---- a standby ----
{
	my $standby = make_standby($node, 'standby');

	$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
	start_exporters($standby, $port{standby}, $port{standby_sql});
	ok(wait_until(sub { $page = get("http://127.0.0.1:$port{standby}/metrics"); $page =~ /^dlock_group_unowned/m }), 'a standby, prometheus-postgres-exporter');
	like($page, qr/^dlock_leases\{.*\} NaN$/m, 'no leases in memory');
	like($page, qr/^dlock_grants_total\{.*\} NaN$/m, 'no counters');
	unlike(slurp_file("$place/postgres-exporter.$port{standby}.log"), qr/level=(error|warn)/, 'without a complaint');
	ok(wait_until(sub { get("http://127.0.0.1:$port{standby_sql}/metrics") =~ /^sql_dlock_group/m }), 'prometheus-sql-exporter');
	unlike(slurp_file("$place/sql-exporter.$port{standby_sql}.log"), qr/level=(error|warn)|"level":"(error|warn)"/, 'without a complaint');
	$standby->stop;
}

$session->query_safe("SELECT dlock_release('held', 'alice')");
$waiter->answer;
$_->quit foreach $session, $waiter;
$node->stop;
done_testing();
