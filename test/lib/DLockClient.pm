# The examples of the libraries for programs, and servers for parts of their tests.

package DLockClient;

use strict;
use warnings FATAL => 'all';

use DLockCli;
use DLockTest;
use Exporter 'import';
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(client_part client_server client_tables client_examples client_long_examples client_nightly_job client_missing client_tool);

my $top = __FILE__ =~ s{[^/]*$}{../..}r;
my $node;

# Skip all tests, as the language is not here; unless it has to be.
sub client_missing
{
	my ($what) = @_;

	die "$what is not installed, or does not work" if $ENV{DLOCK_CLIENTS};
	plan skip_all => "$what is not installed";
	return;
}

# Does this command work, which is of something that tests use beside the language and its driver?  It has to if DLOCK_CLIENTS is 1.
sub client_tool
{
	my ($what, $command) = @_;

	return 1 if system("$command >/dev/null 2>&1") == 0;
	die "$what is not installed, or does not work" if ($ENV{DLOCK_CLIENTS} // '') eq '1';
	return 0;
}

# Clients use this server from now on; undef if parts have their own.
sub client_server
{
	($node) = @_;
	use_server($node) if defined $node;

	# Some drivers do not ask the system for it.
	$ENV{PGUSER} = getpwuid $>;
	return;
}

sub sql
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql);
}

sub nothing_left
{
	my ($test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return is(sql('SELECT (SELECT count(*) FROM dlock_leases), (SELECT count(*) FROM dlock_waiters)'), '0|0', $test_name);
}

# A part for beside(): a function that is called with a server of its own, which is stopped after it.
sub client_part
{
	my ($name, $code, @server) = @_;

	return $name => sub {
		my $server = start_node($name =~ s/\W/_/gr, @server);
		client_server($server);
		eval { $code->($server); 1 } or fail("died: $@");
		$server->stop('immediate');
	};
}

# Make what the README of a library says that its programs need, for the first ones and for the worker.
sub client_tables
{
	my ($server, $library) = @_;
	my @blocks = slurp_file("$top/src/clients/$library/README.md") =~ /^```sql\n(.*?)^```$/msg;

	is(scalar @blocks, 2, "what programs need is in the README of $library");
	$server->safe_psql('postgres', $_) foreach @blocks;
	return;
}

# Run the examples in a language, those of the README beside the library, which must be so many,
# and that of the tutorial if it has one; each as a file of this name, which is the last argument
# of the command.
sub client_examples
{
	my ($language, $count, @run) = @_;
	my $library = $language eq 'js' ? 'node' : $language;
	my %count = ("src/clients/$library/README.md" => $count, $language =~ /^(?:js|python)$/ ? ('doc/tutorial/nightly-job.md' => 1) : ());
	my $file = PostgreSQL::Test::Utils::tempdir() . '/' . pop @run;
	my ($program, @words) = @run;
	my $total = 0;

	client_tables($node, $library);
	foreach my $doc (sort keys %count)
	{
		my @examples = slurp_file("$top/$doc") =~ /^```$language\n(.*?)^```$/msg;

		is(scalar @examples, $count{$doc}, "there are examples in $language in $doc");
		foreach my $example (@examples)
		{
			unlink $file;
			append_to_file($file, $example);
			cli_is([ { program => $program }, @words, $file ], {}, "$doc, example " . ++$total . " in $language");
		}
	}
	is(sql(q{SELECT count(*) FROM report WHERE made ~ '^made under token \d+$'}), $total, "what the examples in $language have written");
	nothing_left("the examples in $language have released their leases");
	return;
}

# The nightly job of the tutorial, as a program beside the library, on a server with its table:
# the first run of a day writes, and the second one knows that.
sub client_nightly_job
{
	my ($server, @run) = @_;
	my ($program, @words) = @run;
	my $made = q{SELECT count(*) FROM report WHERE made ~ '^made under token \d+$'};
	my $before = $server->safe_psql('postgres', $made);
	my $day = int(time / 86400);

	cli_is([ { program => $program }, @words ], {}, 'the nightly job');
	is($server->safe_psql('postgres', $made), $before + 1, 'the nightly job has written');
	my $again = cli({ program => $program }, @words);
	if ($day == int(time / 86400))
	{
		is($again->{code}, 75, 'the nightly job, again: exit code');
		like($again->{err}, qr/another machine makes the report of this day/, 'the nightly job, again: message');
	}
	is($server->safe_psql('postgres', q{SELECT count(*) FROM dlock_leases WHERE name = 'nightly-report'}), 0, 'the nightly job has released the lock');
	$server->safe_psql('postgres', q{SELECT dlock_force_release('once:nightly-report', 'test') FROM generate_series(1, 2)});
	return;
}

# Run the programs of the README of a library that go on until they are told to end, after
# client_examples(): an election, and a worker.
sub client_long_examples
{
	my ($language, $library, $program) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir() . '/long';
	my @examples = slurp_file("$top/src/clients/$library/README.md") =~ /^```$language\n(.*?)^```$/msg;
	my @says = (qr/leads, with token \d+/, qr/done: one/);
	my @ends = (qr/resigns\n\z/, qr/done: one\n\z/);

	is(scalar @examples, scalar @says, "programs in the README of $library that run on");
	foreach my $i (0 .. $#says)
	{
		append_to_file("$file$i", $examples[$i]);
		my $run = DLockCli->start({ program => $program }, "$file$i");
		$run->wait_out($says[$i]);
		$run->signal('TERM');
		$run->finish;
		is("$run->{signal}.$run->{code}", '0.0', "program $i ends when it is told to") or diag($run->{err});
		like($run->{out}, $ends[$i], "program $i: what it says");
	}
	is(sql(q{SELECT (SELECT string_agg(key, '') FROM sent), count(*) FROM dlock_tasks WHERE state = 'done'}), 'one|1', 'the task is done');
	sql('SELECT dlock_queue_drop(queue) FROM dlock_task_state');
	return;
}

1;
