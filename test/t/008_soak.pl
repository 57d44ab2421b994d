# A hundred sessions ask at once, questions of mixed length, greedy and sampled: all are answered, each as it was alone, and nothing
# leaks. DSV3_SOAK_SECONDS makes it longer (20), DSV3_SOAK_MODEL names another model than the small random one of the build.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Dsv3Test;
use PostgreSQL::Test::Utils;
use Test::More;

my $seconds = $ENV{DSV3_SOAK_SECONDS} // 20;
my $sessions = $ENV{DSV3_SOAK_SESSIONS} // 100;
my $model = $ENV{DSV3_SOAK_MODEL} // "$ENV{DSV3_TOP}/build/tiny-model";
$model = 'test:token_us=50' unless -r "$model/config.json";
note("model $model, $seconds s");

my $node = dsv3_node('soak', 'dsv3.model_path' => "'$model'", 'max_connections' => $sessions + 20, 'log_statement' => "'none'",
	'log_error_verbosity' => 'default', 'log_connections' => 'off', 'log_disconnections' => 'off');
ok(wait_state($node, 'ready'), 'ready');

# Forty questions and their answers, each asked alone.
$node->safe_psql('postgres', q{
	CREATE TABLE cases (id int PRIMARY KEY, prompt text, input text, max_tokens int, temperature float8, seed bigint, options jsonb, answer text);
	INSERT INTO cases SELECT i, 'Question ' || i || ': tell me about ' || repeat('the sea and ', (i * 7) % 30), CASE WHEN i % 3 = 0 THEN repeat('data ', i) ELSE '' END,
		1 + (i * 13) % 60, CASE WHEN i % 2 = 0 THEN 0 ELSE 1.2 END, i, CASE WHEN i % 5 = 0 THEN '{"top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1}'::jsonb ELSE '{}' END, NULL
	FROM generate_series(1, 40) AS i;
	UPDATE cases SET answer = dsv3_generate(prompt, input, NULL, max_tokens, temperature, seed, options);
});
cmp_ok($node->safe_psql('postgres', 'SELECT count(DISTINCT answer) FROM cases'), '>', 20, 'the answers differ');

my $supervisor = supervisor_pid($node);
my $engine = engine_pid($node);

sub memory_kb
{
	my ($pid) = @_;
	return slurp_file("/proc/$pid/status") =~ /^RssAnon:\s+(\d+) kB/m ? $1 : 0;
}

# (Those of the engine cannot be counted: it is not dumpable, so its folder is root's. Its sandbox lets it open none.)
sub descriptors
{
	my ($pid) = @_;
	my @all = glob("/proc/$pid/fd/*");
	return scalar @all;
}

sub load
{
	my ($time) = @_;
	my $script = $node->basedir . '/soak.sql';

	unlink $script;
	append_to_file($script, <<'END');
\set n random(1, 40)
SELECT 1 / (dsv3_generate(prompt, input, NULL, max_tokens, temperature, seed, options) = answer)::int AS same FROM cases WHERE id = :n;
SELECT 1 / (string_agg(delta, '' ORDER BY seq) = answer)::int FROM cases, LATERAL dsv3_generate_stream(prompt, input, NULL, max_tokens, temperature, seed, options) WHERE id = :n GROUP BY answer;
END
	my ($out, $err) = ('', '');
	my $ok = IPC::Run::run([ 'pgbench', '-n', '-c', $sessions, '-j', 2, '-T', $time, '-f', $script, $node->connstr('postgres') ], '>', \$out, '2>', \$err);
	my ($done) = $out =~ /number of transactions actually processed: (\d+)/;
	note($out);
	unlike($err, qr/ERROR|FATAL|aborted/, 'no error, no answer that differs');
	ok($ok, 'pgbench ends well');
	return $done // 0;
}

# The first load fills caches and buffers; the second must not need more.
load(5);
my @before = (memory_kb($supervisor), descriptors($supervisor), memory_kb($engine));
my $done = load($seconds);
my @after = (memory_kb($supervisor), descriptors($supervisor), memory_kb($engine));
cmp_ok($done, '>=', $sessions, 'every session was answered') or diag("$done transactions");
note("kB of the supervisor, its descriptors, kB of the engine: before @before, after @after");

is(live_requests($node), '0', 'no request is left');
is($node->safe_psql('postgres', 'SELECT memory_bytes = memory_free_bytes, requests = completed, failed, cancelled FROM dsv3_stat_engine'), 't|t|0|0', 'memory is free, every request was completed');
is(engine_pid($node), $engine, 'one engine served them all');
is($after[1], $before[1], 'descriptors of the supervisor');
cmp_ok($after[0], '<', $before[0] + 2048, 'memory of the supervisor');
cmp_ok($after[2], '<', $before[2] * 1.1 + 16384, 'memory of the engine');
$node->stop;
done_testing();
