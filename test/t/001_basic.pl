# A server with the extension starts whatever is wrong with the engine or the model, and each thing that may be wrong has its
# own error, with a hint that says what to do.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Dsv3Test;
use PostgreSQL::Test::Utils;
use Test::More;

# A new server for each case would take a minute; one server is restarted with other settings.
my $node = dsv3_node('basic');
my $dir = PostgreSQL::Test::Utils::tempdir;

sub with_settings
{
	my (%settings) = @_;
	$node->stop;
	$node->append_conf('postgresql.conf', "$_ = $settings{$_}\n") for sort keys %settings;
	$node->start;
	return;
}

# ---- all is well ----

is($node->safe_psql('postgres', "SELECT dsv3_generate('hello')"), 'HELLO', 'an answer');
is(health($node, 'state'), 'ready', 'ready');
is(health($node, "library_version || ' ' || engine_version"), '1.0 1.0', 'versions');
ok(log_has($node, qr/dsv3 engine is ready after \d+ ms/), 'readiness is logged');

# The extension in a schema of its own, and not in the search path.
$node->safe_psql('postgres', 'DROP EXTENSION dsv3; CREATE SCHEMA llm; CREATE EXTENSION dsv3 SCHEMA llm');
is($node->safe_psql('postgres', "SELECT llm.dsv3_generate('hello'), count(*) FROM llm.dsv3_activity"), 'HELLO|0', 'in another schema');
$node->safe_psql('postgres', 'DROP EXTENSION dsv3; CREATE EXTENSION dsv3');

# ---- sizes ----

my $ten_mb = "repeat('0123456789', 1024 * 1024)";
query_fails($node, "SELECT dsv3_generate($ten_mb)", '54000', qr/the prompt is \d+ tokens long, at most \d+ fit|prompt is more than \d+ tokens/, 'Shorten', '10 MB prompt');
query_fails($node, "SELECT dsv3_generate($ten_mb, $ten_mb)", '54000', qr/longer than dsv3\.max_input_bytes/, 'dsv3\.max_input_bytes', '20 MB of prompt and input');
is($node->safe_psql('postgres', "SELECT dsv3_count_tokens($ten_mb)"), 10 * 1024 * 1024, '10 MB of tokens are counted');
is($node->safe_psql('postgres', "SELECT dsv3_detokenize(dsv3_tokenize(repeat('x', 1000000))) = repeat('x', 1000000)"), 't', 'a million tokens there and back');

with_settings('dsv3.shared_memory' => '1MB');
query_fails($node, "SELECT dsv3_generate(repeat('x', 2000000))", '54000', qr/larger than dsv3\.shared_memory/, 'dsv3\.shared_memory', 'request larger than the arena');
query_fails($node, "SELECT dsv3_tokenize(repeat('x', 900000))", '53200', qr/out of shared memory for dsv3 answers/, 'dsv3\.shared_memory', 'answer larger than the arena');
is($node->safe_psql('postgres', "SELECT dsv3_count_tokens(repeat('x', 900000))"), '900000', 'their number takes no room');
is($node->safe_psql('postgres', 'SELECT memory_bytes = memory_free_bytes FROM dsv3_stat_engine'), 't', 'no memory is lost by that');
with_settings('dsv3.shared_memory' => '64MB', 'dsv3.queue_size' => '2', 'dsv3.model_path' => "'test:token_us=1000'");
my @full = map { start_query($node, "SELECT length(dsv3_generate('/forever', max_tokens => 1000))") } 1 .. 2;
ok(wait_for('two requests', sub { live_requests($node) == 2 }), 'two requests fill the queue');
query_fails($node, "SELECT dsv3_generate('x')", '53000', qr/dsv3 queue is full/, 'dsv3\.queue_size', 'a third');
is($node->psql('postgres', "SELECT * FROM dsv3_try_generate('x')"), 3, 'which also the form that returns failures raises');
is((end_query($_))[0], '1000', 'one of the two') for @full;

# ---- texts in other encodings ----

with_settings('dsv3.queue_size' => '256', 'dsv3.model_path' => "'test:'");
$node->safe_psql('postgres', "CREATE DATABASE latin1 ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0");
$node->safe_psql('postgres', "CREATE DATABASE ascii ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0");
$node->safe_psql($_, 'CREATE EXTENSION dsv3') for qw(latin1 ascii);
is($node->safe_psql('latin1', q{SET client_encoding = 'UTF8'; SELECT dsv3_generate('/think ' || U&'\00e9t\00e9')}), "\xc3\xa9T\xc3\xa9", 'LATIN1 there and back');
is($node->safe_psql('latin1', q{SELECT dsv3_count_tokens(U&'\00e9')}), '2', 'the engine has UTF-8');
is($node->safe_psql('latin1', q{SELECT sqlstate FROM dsv3_try_generate('/bytes e697a5')}), '22P05', 'a character LATIN1 does not have is an error of the row');
is($node->safe_psql('latin1', q{SELECT dsv3_generate('/bytes e697a5', options => '{"on_error": "null"}') IS NULL, dsv3_generate('next')}), 't|NEXT', 'and caught as such');
is($node->safe_psql('latin1', q{SET client_encoding = 'UTF8'; SELECT prompt FROM dsv3_activity}), '', 'activity in LATIN1');
is($node->safe_psql('ascii', q{SELECT dsv3_generate('/think ' || convert_from('\xe697a5', 'SQL_ASCII'))}), "\xe6\x97\xa5", 'SQL_ASCII takes bytes that are UTF-8');
is($node->safe_psql('ascii', q{SELECT sqlstate FROM dsv3_try_generate(convert_from('\xe9', 'SQL_ASCII'))}), '22021', 'and refuses others');

# ---- what may be wrong with the model ----

sub is_down
{
	my ($name, $sqlstate, $message, $hint) = @_;

	ok(wait_state($node, 'down'), "$name: down");
	query_fails($node, "SELECT dsv3_generate('x')", $sqlstate, qr/dsv3 engine is down: .*$message/, $hint, "$name: error");
	like(health($node, 'last_error'), qr/$message/, "$name: health");
	like(health($node, 'last_hint'), qr/$hint/, "$name: hint of health");
	is($node->psql('postgres', "SELECT * FROM dsv3_try_generate('x')"), 3, "$name: raised in every form");
	is($node->safe_psql('postgres', 'SELECT 1'), '1', "$name: the server is well");
	ok(log_has($node, qr/WARNING: .*dsv3 engine cannot start: .*$message/), "$name: log");
	return;
}

with_settings('dsv3.model_path' => "''");
is_down('no model', '55000', 'dsv3.model_path is not set', 'Set dsv3.model_path');
with_settings('dsv3.model_path' => "'$dir/nowhere'");
is_down('missing model', '58P01', 'could not open model directory .*nowhere', 'Hugging Face directory');
mkdir "$dir/empty";
chmod 0755, $dir, "$dir/empty";
with_settings('dsv3.model_path' => "'$dir/empty'");
is_down('empty model directory', '58P01', 'config.json|tokenizer.json', '.');
with_settings('dsv3.model_path' => "'test:kv_position_bytes=1000000'", 'dsv3.kv_cache_size' => '1MB');
is_down('too little memory', '53400', 'cache is smaller than', 'dsv3.kv_cache_size');
with_settings('dsv3.model_path' => "'test:'", 'dsv3.kv_cache_size' => '0');
is($node->safe_psql('postgres', "SELECT dsv3_generate('well again')"), 'WELL AGAIN', 'well again');

# ---- what may be wrong with the engine's program ----

with_settings('dsv3.engine_path' => "'$dir/no-engine'");
is_down('no program', '58P01', 'could not execute the dsv3 engine', 'dsv3.engine_path');
append_to_file("$dir/plain", "no program\n");
with_settings('dsv3.engine_path' => "'$dir/plain'");
is_down('no permission', '58030', 'Permission denied', 'dsv3.engine_path');
with_settings('dsv3.engine_path' => "'bin/dsv3'");
is_down('relative path', '22023', 'not an absolute path', 'absolute path');
chmod 0755, "$dir/plain";
with_settings('dsv3.engine_path' => "'$dir/plain'");
is_down('not a program', '08006', 'exit status 127 \(no program that can be executed\) before it was ready', 'log.*dsv3\.engine_path');
with_settings('dsv3.engine_path' => "'/bin/false'");
is_down('another program', '08006', 'ended by exit status 1 before it was ready', 'log');
with_settings('dsv3.engine_path' => "'/bin/true'");
is_down('yet another', '08006', 'ended by exit status 0 before it was ready', 'log');

# ---- an engine that takes its time ----

with_settings('dsv3.engine_path' => "''", 'dsv3.model_path' => "'test:open_ms=2000'");
query_fails($node, "SET dsv3.start_timeout = '200ms'; SELECT dsv3_generate('x')", '57P03', qr/dsv3 engine is not ready/, 'dsv3\.start_timeout', 'no patience');
is($node->safe_psql('postgres', "SELECT dsv3_generate('patience')"), 'PATIENCE', 'patience');
is(health($node, 'state'), 'ready', 'ready after that');

# ---- no supervisor, no preload ----

with_settings('dsv3.model_path' => "'test:'", 'max_worker_processes' => '0');
query_fails($node, "SET dsv3.start_timeout = '200ms'; SELECT dsv3_generate('x')", '57P03', qr/dsv3 engine is not ready/, 'max_worker_processes', 'no worker process left');
is(health($node, 'state'), 'down', 'health without a supervisor');
like(health($node, 'last_error'), qr/supervisor is not running/, 'and its reason');

with_settings('max_worker_processes' => '8', 'shared_preload_libraries' => "''");
for my $call ("dsv3_generate('x')", "dsv3_try_generate('x')", "dsv3_generate_stream('x')", q{dsv3_chat('[{"role": "user", "content": "x"}]')},
	"dsv3_tokenize('x')", "dsv3_detokenize('{1}')", "dsv3_count_tokens('x')", "dsv3_logprob('x', 'y')", 'dsv3_model_info()', 'dsv3_activity()',
	'dsv3_stat_engine()', "dsv3_cancel('00000000-0000-4000-8000-000000000000')")
{
	query_fails($node, "SELECT $call", '55000', qr/dsv3 must be loaded via shared_preload_libraries/, 'Add dsv3 to shared_preload_libraries', "not preloaded: $call");
}
is($node->safe_psql('postgres', 'SELECT dsv3_version()'), '1.0', 'not preloaded: version');
is(health($node, "state || ': ' || last_error"), 'down: dsv3 must be loaded via shared_preload_libraries', 'not preloaded: health');
is($node->safe_psql('postgres', "SELECT dsv3_version(); SET dsv3.max_tokens = 5; SHOW dsv3.max_tokens"), "1.0\n5", 'not preloaded: settings');

$node->stop;
done_testing();
