# Statistics: every request is counted once, for its role and in its times; they outlive a clean restart and nothing else; a reset sets them
# to zero; the experts' tokens are exactly those the model has computed, whichever engine did.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Dsv3Test;
use Encode qw(encode);
use JSON::PP qw(decode_json);
use PostgreSQL::Test::Utils;
use Test::More;

my $node = dsv3_node('stats', 'dsv3.queue_size' => 8, 'dsv3.model_path' => "'test:token_us=300'");

sub sql
{
	return $node->safe_psql('postgres', join(' ', @_));
}

wait_state($node, 'ready');
sql(q{CREATE ROLE anna LOGIN; CREATE ROLE bert LOGIN;
	GRANT EXECUTE ON FUNCTION dsv3_generate(text, text, text, int, float8, bigint, jsonb) TO anna, bert});

# ---- what is counted ----

sql(q{SET ROLE anna; SELECT dsv3_generate('/count ' || i, max_tokens => 30) FROM generate_series(1, 5) AS i});
sql(q{SET ROLE bert; SELECT dsv3_generate('hello')});
sql(q{SET ROLE bert; SELECT dsv3_generate(repeat('x', 9000), options => '{"on_error": "null"}')});
query_fails($node, q{SET ROLE bert; SET statement_timeout = '200ms'; SELECT dsv3_generate('/forever', max_tokens => 4000)}, '57014', qr/statement timeout/, undef, 'cancelled');
is(sql('SELECT requests, completed, failed, cancelled, refused, nulled FROM dsv3_stat_engine'), '8|6|1|1|0|1', 'sums');
is(sql('SELECT role, requests, completed, failed, cancelled, nulled FROM dsv3_stat_roles ORDER BY role'), "anna|5|5|0|0|0\nbert|3|1|1|1|1", 'by role');
is(sql('SELECT sum(prompt_tokens), sum(output_tokens) FROM dsv3_stat_roles'), sql('SELECT prompt_tokens, output_tokens FROM dsv3_stat_engine'), 'tokens of the roles are all tokens');
is(sql('SELECT count(*) FROM dsv3_stat_roles WHERE compute_ms > 0 AND queue_ms >= 0 AND last_request_at > now() - interval $$1 hour$$'), 2, 'their times');
is(sql('SELECT sum(failures) FROM dsv3_stat_failures'), 1, 'failures by SQLSTATE');

is(sql('SELECT name, count FROM dsv3_stat_latency ORDER BY name'),
	"e2e_request_latency|6\ninter_token_latency|" . sql('SELECT output_tokens - completed FROM dsv3_stat_engine')
	  . "\nrequest_decode_time|6\nrequest_prefill_time|6\nrequest_queue_time|6\ntime_to_first_token|6",
	'each duration is in a class');
is(sql('SELECT bool_and(0.8 = ANY (edges)) AND bool_and(counts[18] = count) FROM dsv3_stat_latency'), 't', 'edges, 0.8 s among them');
is(sql(q{SELECT abs(sum(sum) FILTER (WHERE name LIKE 'request_%') - sum(sum) FILTER (WHERE name LIKE 'e2e%')) < 1e-5 FROM dsv3_stat_latency}), 't', 'the parts are the whole');
is(sql(q{SELECT dsv3_tokenize('x'), (SELECT count FROM dsv3_stat_latency WHERE name LIKE 'e2e%')}), '{120}|6', 'what runs no model has no times');

# ---- who sees what ----

is(sql('SET ROLE anna; SELECT role, requests FROM dsv3_stat_roles'), 'anna|5', 'a role sees itself');
is(sql('SET ROLE anna; SELECT count(*) > 0 FROM dsv3_stat_latency'), 't', 'sums are for all');
query_fails($node, 'SET ROLE anna; SELECT dsv3_stat_reset()', '42501', qr/permission denied for function dsv3_stat_reset/, undef, 'a reset needs a grant');

# ---- refused ----

{
	my @others = map { start_query($node, "SELECT dsv3_generate('/forever', max_tokens => 4000)") } 1 .. 8;

	wait_for('a full queue', sub { live_requests($node) == 8 });
	query_fails($node, q{SET ROLE bert; SELECT dsv3_generate('one too many')}, '53000', qr/queue is full/, undef, 'the queue is full');
	is(sql('SELECT refused FROM dsv3_stat_engine'), 1, 'refused');
	is(sql(q{SELECT refused, requests FROM dsv3_stat_roles WHERE role = 'bert'}), '1|3', 'refused by role');
	is(sql(q{SELECT failures FROM dsv3_stat_failures WHERE sqlstate = '53000'}), 1, 'refused by SQLSTATE');
	sql('SELECT dsv3_cancel(trace_id) FROM dsv3_activity');
	end_query($_) for @others;
}

# ---- metrics ----

{
	my $text = sql('SELECT dsv3_metrics_text()');
	my @bad = grep { !/\A(?:# (?:HELP|TYPE) dsv3_\w+ .+|dsv3_\w+\{model_name="[^"]+"(?:,\w+="[^"]*")*\} [\d.e+-]+|# EOF)\z/ } split(/\n/, $text);

	is_deeply(\@bad, [], 'every line of the metrics is one of theirs');
	like($text, qr/\n# EOF\n\z/, 'the last one is the end');
	like($text, qr/^dsv3_e2e_request_latency_seconds_bucket\{[^}]*le="0\.8"\} \d+$/m, 'an edge at 0.8 s');
	like($text, qr/^dsv3_role_requests_total\{[^}]*role="anna"\} 5$/m, 'requests by role');
	like($text, qr/^dsv3_request_failure_total\{[^}]*sqlstate="53000"\} 1$/m, 'failures');
	sql(q{CREATE ROLE "a""b\\c"; GRANT EXECUTE ON FUNCTION dsv3_count_tokens(text) TO "a""b\\c"; SET ROLE "a""b\\c"; SELECT dsv3_count_tokens('x')});
	like(sql(q{SELECT dsv3_metrics_text('prometheus')}), qr/role="a\\"b\\\\c"\} 1$/m, 'a name with quotes');
	unlike(sql(q{SELECT dsv3_metrics_text('prometheus')}), qr/EOF|^# TYPE dsv3_requests counter/m, 'the older format');
	query_fails($node, q{SELECT dsv3_metrics_text('xml')}, '22023', qr/unknown format of metrics "xml"/, 'openmetrics and prometheus', 'another format');
	query_fails($node, 'SET ROLE anna; SELECT dsv3_metrics_text()', '42501', qr/permission denied for function dsv3_metrics_text/, undef, 'names of roles are not for all');
	sql('GRANT pg_monitor TO bert');
	is(sql('SET ROLE bert; SELECT length(dsv3_metrics_text()) > 1000'), 't', 'but for pg_monitor');
}

# ---- over restarts ----

my $sums = 'SELECT requests, completed, failed, cancelled, refused, nulled, prompt_tokens, cached_tokens, output_tokens, stats_since FROM dsv3_stat_engine';
my $roles = 'SELECT * FROM dsv3_stat_roles ORDER BY role';
my $times = 'SELECT * FROM dsv3_stat_latency UNION ALL SELECT sqlstate, NULL, NULL, failures, NULL FROM dsv3_stat_failures';
my @before = (sql($sums), sql($roles), sql($times));

is(sql('SELECT requests = completed + failed + cancelled FROM dsv3_stat_engine'), 't', 'every request is accounted for');
$node->restart;
wait_state($node, 'ready');
is_deeply([ sql($sums), sql($roles), sql($times) ], \@before, 'kept over a clean restart');
ok(!-e $node->data_dir . '/pg_stat/dsv3.stat', 'what was read is removed');
is(sql(q{SET ROLE anna; SELECT dsv3_generate('again')}), 'AGAIN', 'a request after it');
is(sql(q{SELECT requests FROM dsv3_stat_roles WHERE role = 'anna'}), 6, 'the counts go on');
{
	my $doomed = start_query($node, 'SELECT pg_sleep(100)');

	wait_for('a backend', sub { sql(q{SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(100)'}) == 1 });
	kill 'KILL', sql(q{SELECT pid FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(100)'});
	end_query($doomed);
}
wait_for('the server again', sub { ($node->psql('postgres', 'SELECT 1'))[0] == 0 });
wait_state($node, 'ready');
is(sql('SELECT requests, stats_since > now() - interval $$1 minute$$ FROM dsv3_stat_engine'), '0|t', 'not kept over a crash');

sql(q{SELECT dsv3_generate('one')});
$node->stop;
{
	my $file = $node->data_dir . '/pg_stat/dsv3.stat';
	open(my $handle, '+<', $file) or die "$file: $!";
	binmode $handle;
	seek($handle, 300, 0);
	print $handle 'x';
	close($handle);
}
$node->start;
wait_state($node, 'ready');
is(sql('SELECT requests FROM dsv3_stat_engine'), 0, 'a damaged file is not read');
ok(log_has($node, qr/ignoring file "pg_stat\/dsv3.stat": it is damaged/), 'and the log says so');

sql(q{SELECT dsv3_generate('one')});
sql('GRANT EXECUTE ON FUNCTION dsv3_stat_reset() TO anna');
my $reset = sql('SET ROLE anna; SELECT dsv3_stat_reset()');
is(sql('SELECT stats_since, requests FROM dsv3_stat_engine'), "$reset|0", 'reset');
is(sql('SELECT count(*) FROM dsv3_stat_roles'), 0, 'reset: roles');
is(sql('SELECT sum(count), sum(sum) FROM dsv3_stat_latency'), '0|0', 'reset: times');
$node->stop;

# ---- experts ----

SKIP:
{
	my $model = "$ENV{DSV3_TOP}/build/tiny-model";
	skip 'no small model in build/tiny-model', 1 unless -r "$model/config.json";
	$node = dsv3_node('experts', 'dsv3.model_path' => "'$model'", 'dsv3.threads' => 2);
	wait_state($node, 'ready');
	is(sql('SELECT count(*) FROM dsv3_stat_experts'), 0, 'no tokens, no rows');

	# Each row that was computed went to so many experts of each layer; nothing is counted twice, nothing is lost.
	my $expected = q{SELECT computed * (dsv3_model_info() ->> 'experts_per_token')::int FROM (SELECT (engine ->> 'computed_tokens')::bigint AS computed FROM dsv3_stat_engine) AS e};
	my $counted = 'SELECT string_agg(DISTINCT sum::text, $$,$$) FROM (SELECT sum(tokens) FROM dsv3_stat_experts GROUP BY layer) AS l';
	sql(q{SELECT dsv3_generate('some words ' || i, max_tokens => 12) FROM generate_series(1, 4) AS i});
	my $done = q{SELECT engine ->> 'requests_done' FROM dsv3_stat_engine};
	ok(wait_for('the counts', sub { sql($done) == 4 && sql($counted) eq sql($expected) }), 'as many as were computed, in every layer');
	is(sql('SELECT bool_and(abs(total - 1) < 1e-9), bool_and(even > 0 AND even <= 1) FROM (SELECT sum(share) AS total, min(balancedness) AS even FROM dsv3_stat_experts GROUP BY layer) AS l'),
		't|t', 'shares and balancedness');

	# Where the tokens of a prompt go: the page's data, against what the experts have counted.
	my $grown = 'SELECT layer, expert, tokens FROM dsv3_stat_experts ORDER BY 1, 2';
	my %had = map { /(.*)\|(\d+)/ } split(/\n/, sql($grown));
	my $page = sql(q{SELECT dsv3_routing_html('see </script><b>here</b>')});
	my ($data) = $page =~ /<script type="application\/json" id="data">([^<]*)<\/script>/;
	my $routing = decode_json(encode('UTF-8', $data));
	my %expected_more;

	is(scalar(() = $page =~ /<\/script>/g), 2, 'no text of a token ends an element');
	like(join('', @{ $routing->{tokens} }), qr/see <\/script><b>here<\/b>/, 'the tokens are there');
	for my $layer (@{ $routing->{layers} })
	{
		is(scalar @{ $layer->{chosen} }, scalar @{ $routing->{tokens} }, "choices for each token in layer $layer->{layer}");
		$expected_more{"$layer->{layer}|$_->[0]"}++ for map { @$_ } @{ $layer->{chosen} };
		ok(!(grep { !($_->[1] > 0 && $_->[1] < 1) || abs($_->[2] - $_->[1]) > 100 } map { @$_ } @{ $layer->{chosen} }), 'scores are those of a sigmoid');
	}
	ok(wait_for('the counts', sub { sql($done) == 5 && sql($counted) eq sql($expected) }), 'all counted');
	my %has = map { /(.*)\|(\d+)/ } split(/\n/, sql($grown));
	is_deeply({ map { $has{$_} - $had{$_} ? ($_ => $has{$_} - $had{$_}) : () } keys %has }, \%expected_more, 'the page shows the experts that computed');
	query_fails($node, q{SELECT dsv3_routing_html(repeat('word ', 600))}, '54000', qr/at most 512 tokens/, 'Shorten', 'a long prompt');

	my $before = sql($counted);
	kill 'KILL', engine_pid($node);
	wait_for('another engine', sub { health($node, 'restarts') == 1 && health($node, 'state') eq 'ready' });
	is(sql($counted), $before, 'kept when the engine ends');
	sql(q{SELECT dsv3_generate('others', max_tokens => 5)});
	ok(wait_for('more', sub { sql($done) == 1 && sql($counted) == $before + sql($expected) }), 'and added to by the next one');
	my $matrix = sql('SELECT * FROM dsv3_stat_experts');
	$node->restart;
	wait_state($node, 'ready');
	is(sql('SELECT * FROM dsv3_stat_experts'), $matrix, 'kept over a clean restart');
	$node->stop;
}

done_testing();
