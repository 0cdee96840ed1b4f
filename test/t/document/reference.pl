# Proves: doc/reference/sql.md and the catalog agree, both ways: each function with its
# parameters, their types and defaults and its result; each view with its columns and
# their types; each setting with its default and where it may be set.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $text = slurp_file("$FindBin::RealBin/../../../doc/reference/sql.md");
my $node = start_node('main');

# Rows of a query, as lists.
sub rows
{
	my ($sql) = @_;
	return map { [ split /\t/, $_, -1 ] } split /\n/, $node->safe_psql('postgres', $sql, extra_params => [ '-F', "\t" ]);
}

my $members = q{JOIN pg_depend d ON d.objid = o.oid AND d.deptype = 'e'
	JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'dlock'};

# ---- functions ----
{
	my (%told, %found, %public);

	# A signature may go on in further lines.
	foreach my $block ($text =~ /^```\n(dlock_.*?)^```$/msg)
	{
		while ($block =~ /^(dlock_\w+) *\(((?:[^()]|\n)*)\)\s*-> (setof )?(\((?:[^()]|\n)*\)|[\w\[\]]+)/mg)
		{
			$told{$1} = "($2) -> " . ($3 // '') . $4;
			$told{$1} =~ s/\s+/ /g;
		}
	}
	cmp_ok(scalar(keys %told), '>', 30, 'signatures in the reference');

	foreach my $row (rows(qq{SELECT proname, pg_get_function_arguments(o.oid), proretset, pg_get_function_result(o.oid),
			has_function_privilege('public', o.oid, 'EXECUTE'), prorettype::regtype FROM pg_proc o $members AND d.classid = 'pg_proc'::regclass AND o.pronamespace <> '_dlock'::regnamespace}))
	{
		my ($name, $arguments, $set, $result, $for_all, $type) = @$row;
		my (@in, @out);

		# A default has no comma with a blank.
		foreach my $argument (split /, /, $arguments)
		{
			my $kind = $argument =~ s/^(OUT|INOUT) // ? $1 : 'IN';
			$argument =~ s/ DEFAULT / = /;
			$argument =~ s/::[a-z]+(\[\])?//;
			$argument =~ s/'00:00:00'/'0'/;
			$argument =~ s/'00:00:01'/'1 s'/;
			$argument =~ s/^"(\w+)"/$1/;
			$argument =~ s/timestamp with time zone/timestamptz/;
			push @in, $argument if $kind ne 'OUT';
			push @out, $argument if $kind ne 'IN';
		}
		$result =~ s/^SETOF //;
		$result = '(' . join(', ', @out) . ')' if @out > 1;
		$found{$name} = '(' . join(', ', @in) . ') -> ' . ($set eq 't' ? 'setof ' : '') . $result;
		$public{$name} = $for_all eq 't' && $type ne 'trigger';
	}

	# This one returns the rows of a view, which are told there.
	is($told{dlock_lease}, '(name text) -> setof record', 'dlock_lease');
	delete $told{dlock_lease};
	is_deeply({ map { $_ => $found{$_} } keys %told }, \%told, 'functions of the reference are in the catalog as told');
	is_deeply([ grep { $public{$_} && !$told{$_} && $text !~ /`$_\(\)`|^$_\(/m } sort keys %found ], [], 'functions for every role are in the reference');
	is_deeply([ grep { !$public{$_} && !$told{$_} && $_ ne 'dlock_guard' } sort keys %found ], [], 'no other is left out but the guard, which has options in place of arguments');
}

# ---- views ----
{
	my ($views) = $text =~ /^## Views\n(.*?)^## /ms;
	my (%told, %found);

	foreach my $section (split /^### /m, $views)
	{
		my ($view) = $section =~ /^(dlock_\w+)\n/ or next;

		foreach my $block ($section =~ /^```\n(.*?)^```$/msg)
		{
			foreach my $line (split /\n/, $block)
			{
				my ($names, $type) = $line =~ /^(\w+(?:, \w+)*) {2,}(\S+)/ or next;
				$told{$view}{$_} = $type foreach split /, /, $names;
			}
		}
	}
	foreach my $row (rows(qq{SELECT relname, attname, format_type(atttypid, atttypmod) FROM pg_class o $members AND d.classid = 'pg_class'::regclass
			JOIN pg_attribute a ON a.attrelid = o.oid AND attnum > 0 WHERE relkind = 'v'}))
	{
		my ($view, $column, $type) = @$row;
		$found{$view}{$column} = $type =~ s/ with time zone//r =~ s/^timestamp$/timestamptz/r;
	}
	is_deeply([ sort keys %told ], [ sort keys %found ], 'views');
	is_deeply($told{$_}, $found{$_}, "columns of $_") foreach sort keys %found;
}

# ---- settings ----
{
	my ($section) = $text =~ /^## Settings\n(.*?)^## /ms;
	my %where = ('user' => 'by every role', superuser => 'by superusers', postmaster => 'at server start', sighup => 'at reload');
	my (%told, %found);

	while ($section =~ /^\| `(dlock\.\w+)` \| ([^|]*?) \| ([^|]*?) \|/mg)
	{
		my ($name, $default, $told) = ($1, $2, $3);

		$default = $default eq 'empty' ? '' : $default =~ s/ //gr;
		$told{$name} = "$default, " . ($told =~ s{, (?:also with|likewise).*}{}r);
	}
	foreach my $row (rows("SELECT name, current_setting(name), context FROM pg_settings WHERE name LIKE 'dlock.%'"))
	{
		my ($name, $value, $context) = @$row;
		$found{$name} = "$value, $where{$context}";
	}
	is_deeply(\%told, \%found, 'settings');
}

# ---- errors ----
{
	my ($section) = $text =~ /^## Errors\n(.*?)^### /ms;
	is(scalar(grep { $section !~ /^- [^:]*$_/m } qw(LK001 LK002 LK003)), 0, 'own SQLSTATEs');
}

$node->stop;
done_testing();
