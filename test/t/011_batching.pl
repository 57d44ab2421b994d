# Each case of test/batch/cases.sql gives the same with dsv3.batching off and on: rows, their order, what tables hold afterwards, errors,
# notices, and the number of model calls; and leaves nothing in flight.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Dsv3Test;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = dsv3_node('batching', 'dsv3.model_path' => "'test:'", 'max_connections' => '30');
my $folder = "$FindBin::RealBin/../batch";
my $setup = slurp_file("$folder/setup.sql");

# What each case is preceded and followed by.
my $before = $setup . <<'SQL';
CREATE TABLE seen AS SELECT requests FROM dsv3_stat_engine;
SQL
my $after = <<'SQL';
ROLLBACK;
RESET ROLE;
SET search_path = s, public;
\echo -- docs
SELECT * FROM docs;
\echo -- other
SELECT * FROM other;
\echo -- log
SELECT * FROM log;
DO $$ BEGIN FOR i IN 1..500 LOOP EXIT WHEN NOT EXISTS (SELECT 1 FROM dsv3_activity); PERFORM pg_sleep(0.01); END LOOP; END $$;
SELECT 'outstanding ' || count(*) FROM dsv3_activity;
SELECT 'calls ' || s.requests - seen.requests FROM dsv3_stat_engine AS s, seen;
SQL

my @cases;
for my $text (split /^(?=-- == )/m, slurp_file("$folder/cases.sql"))
{
	next unless $text =~ /^-- == (.*)\n/ && $text !~ /^-- == NAME/;
	my ($name, %flags) = ($1);
	$flags{$1} = 1 while $name =~ s/ (batched|plain|calls=any)$//;
	next if $ENV{BATCH_CASE} && $name !~ /$ENV{BATCH_CASE}/;
	$text =~ s/^-- == .*\n//;
	push @cases, { name => $name, sql => $text, %flags };
}

my $version = $node->safe_psql('postgres', 'SHOW server_version_num');

# Run a case in a session of its own.
sub run_case
{
	my ($case, $mode) = @_;
	my $sql = $case->{sql};
	my $batching = $mode eq 'off' ? 'off' : 'on';
	my $dedup = $mode eq 'shared' ? 'on' : 'off';
	my $out = '';

	$sql =~ s/force_parallel_mode/debug_parallel_query/g if $version >= 160000;
	IPC::Run::run([ 'psql', '-XAtq', '-d', $node->connstr('postgres') ], '<',
		\"SET dsv3.batch_window = 16;\nSET dsv3.dedup = $dedup;\n${before}SET dsv3.batching = $batching;\n$sql$after", '>', \$out, '2>&1');
	$out =~ s/^psql:<stdin>:\d+: //mg;
	return $out;
}

for my $case (@cases)
{
	# In the third run equal calls share a request.
	my %got = map { $_ => run_case($case, $_) } qw(off on shared);
	my %calls;

	for my $mode (keys %got)
	{
		$calls{$mode} = $1 if $got{$mode} =~ s/^calls (\d+)\n//m;
	}
	is($got{on}, $got{off}, "$case->{name}: the same");
	is($got{shared}, $got{off}, "$case->{name}: the same with shared requests");
	unless ($case->{'calls=any'})
	{
		is($calls{on}, $calls{off}, "$case->{name}: calls");
		cmp_ok($calls{shared}, '<=', $calls{off}, "$case->{name}: no more of them when they are shared");
	}
	like($got{on}, qr/^outstanding 0$/m, "$case->{name}: nothing in flight");
	next unless $case->{batched} || $case->{plain};

	# The first statement that has a plan and a call, with what comes before it.
	my @statements = split /(?<=;)\n/, $case->{sql};
	my $preamble = $setup;
	while (@statements && ($statements[0] !~ /dsv3_|_gen\(/ || $statements[0] =~ /^CREATE (?!TABLE \w+ AS)/))
	{
		$preamble .= shift(@statements) . "\n";
	}
	my $first = $statements[0] =~ /^PREPARE [^;]*? AS (SELECT.*)/s ? $1 : $statements[0];
	$first =~ s/\$1/NULL/g;
	my $plan = '';
	IPC::Run::run([ 'psql', '-XAtq', '-d', $node->connstr('postgres') ], '<', \"${preamble}EXPLAIN (COSTS OFF) $first", '>', \$plan, '2>&1');
	if ($case->{batched})
	{
		like($plan, qr/Dsv3 Apply/, "$case->{name}: has the node");
	}
	else
	{
		unlike($plan, qr/Dsv3 Apply/, "$case->{name}: is left alone");
	}
}
done_testing();
