# Reading ahead when things go wrong: no room for requests, timeouts, cancelled and closed queries, engines that end; and beside other
# libraries that hook into planning.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Dsv3Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $sum = q{SELECT count(a), md5(string_agg(a, ',' ORDER BY i)) FROM (SELECT i, dsv3_generate('row ' || i) AS a FROM generate_series(1, 40) AS i OFFSET 0) AS q};
my $node = dsv3_node('read_ahead', 'dsv3.model_path' => "'test:token_us=500'", 'dsv3.queue_size' => '8', 'max_connections' => '20');
my $right = $node->safe_psql('postgres', "SET dsv3.batching = off; $sum");

# A property of the node, summed over a plan.
sub property
{
	my ($query, $name) = @_;
	my $plan = $node->safe_psql('postgres', "EXPLAIN (ANALYZE, FORMAT JSON) $query");
	my $sum = 0;

	$sum += $1 while $plan =~ /"$name": (\d+)/g;
	return $sum;
}

# Of 8 slots a quarter is for reading ahead, and one more is the node's own.
is($node->safe_psql('postgres', $sum), $right, 'few slots: the same');
cmp_ok(property($sum, 'Most In Flight'), '<=', 3, 'few slots: not more than are spare');
cmp_ok(property($sum, 'Most In Flight'), '>=', 2, 'few slots: but those');

# Sessions that read ahead leave each other a slot.
{
	my @queries = map { start_query($node, $sum) } 1 .. 6;
	my @got = map { (end_query($_))[0] } @queries;

	is_deeply(\@got, [ ($right) x 6 ], 'as many sessions as there are slots, nearly');
}

# A cursor that nobody reads from does not keep its own session from calling the model.
my $cursor = 'BEGIN; DECLARE c CURSOR FOR SELECT dsv3_generate(\'row \' || i) FROM generate_series(1, 100) AS i; FETCH 20 FROM c;';
like($node->safe_psql('postgres', "$cursor SELECT dsv3_generate('beside'); FETCH 1 FROM c; COMMIT"), qr/^ROW 20\nBESIDE\nROW 21$/m, 'a call beside a cursor');
like($node->safe_psql('postgres', "$cursor SELECT count(dsv3_generate('other ' || i)) FROM generate_series(1, 20) AS i; FETCH 1 FROM c; COMMIT"),
	qr/^ROW 20\n20\nROW 21$/m, 'another node beside a cursor');
ok(wait_for('the slots', sub { live_requests($node) == 0 }), 'nothing is left of them');

# A timeout counts from when the row is the next, so reading ahead does not make it shorter.
$node->append_conf('postgresql.conf', 'dsv3.queue_size = 64');
$node->restart;
ok(wait_state($node, 'ready'), 'with more slots');
cmp_ok(property($sum, 'Most In Flight'), '>=', 16, 'with more slots: many in flight');
is($node->safe_psql('postgres', "SET dsv3.timeout = '20s'; $sum"), $right, 'a timeout that is long enough');
my $slow = q{SELECT dsv3_generate(CASE WHEN i = 3 THEN '/forever' ELSE 'row ' || i END, max_tokens => 4000) FROM generate_series(1, 20) AS i};
query_fails($node, "SET dsv3.timeout = '200ms'; $slow", '57014', qr/not finished within 200 ms/, 'Raise dsv3.timeout', 'a timeout of one call');
is($node->safe_psql('postgres', "SET dsv3.timeout = '200ms'; SET dsv3.on_error = 'null'; SELECT count(*), count(a) FROM ($slow OFFSET 0) AS q (a)"),
	'20|19', 'a timeout of one call is NULL');
query_fails($node, "SET statement_timeout = '200ms'; $slow", '57014', qr/statement timeout/, undef, 'statement_timeout');
query_fails($node, "SET statement_timeout = '200ms'; SELECT count(*) FROM ($slow OFFSET 0) AS q", '57014', qr/statement timeout/, undef,
	'statement_timeout below an aggregate');
ok(wait_for('the slots', sub { live_requests($node) == 0 }), 'nothing is left of them');

# An error in a subtransaction ends what was in flight there, and nothing else.
my $caught = q{DO $$ BEGIN
	FOR n IN 1..3 LOOP
		BEGIN
			PERFORM count(dsv3_generate('row ' || i)) / (n - 2) FROM generate_series(1, 10) AS i;
			PERFORM 1 / (i - 5), dsv3_generate('/forever', max_tokens => 3000) FROM generate_series(1, 10) AS i;
		EXCEPTION WHEN division_by_zero THEN
			ASSERT (SELECT count(*) FROM dsv3_activity WHERE state <> 'ending') = 0;
		END;
	END LOOP;
END $$};
is($node->psql('postgres', $caught), 0, 'errors in subtransactions');
is($node->psql('postgres', "BEGIN; SAVEPOINT a; DECLARE c CURSOR FOR SELECT dsv3_generate('/forever') FROM generate_series(1, 9); ROLLBACK TO a; COMMIT"), 0,
	'the end of a cursor');
ok(wait_for('the slots', sub { live_requests($node) == 0 }), 'nothing is left of them');

# The engine ends in the middle, again and again: the rows are as they should be.
{
	my $query = start_query($node, $sum);

	for my $n (1 .. 3)
	{
		wait_for('the middle', sub { live_requests($node, "state IN ('prefill', 'decode')") >= 2 }, 5) or last;
		kill 'KILL', engine_pid($node);
		wait_state($node, 'ready');
	}
	my ($out, $err) = end_query($query);
	is($out, $right, 'engine killed in the middle');
}

# A server whose shared memory is made anew ends the session, not more.
is($node->safe_psql('postgres', $sum), $right, 'afterwards');

# Other libraries with hooks of the same kind, on either side.
for my $order ('pg_stat_statements, auto_explain, dsv3', 'dsv3, pg_stat_statements, auto_explain')
{
	$node->append_conf('postgresql.conf',
		"shared_preload_libraries = '$order'\nauto_explain.log_min_duration = 0\nauto_explain.log_analyze = on\nauto_explain.log_nested_statements = on\nauto_explain.log_verbose = on\ncompute_query_id = on");
	$node->restart;
	ok(wait_state($node, 'ready'), "$order: ready");
	is($node->safe_psql('postgres', "$sum"), $right, "$order: the same");
	ok(log_has($node, qr/Custom Scan \(Dsv3 Apply\).*?Model Calls:.*?Calls: 40/s), "$order: auto_explain shows the node");
}
done_testing();
