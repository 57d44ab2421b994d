# What the settings of the server and of the supervisor do, and what an engine process inherits: nothing.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Dsv3Test;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $node = dsv3_node('settings', 'dsv3.engine_path' => hostile_engine(), 'dsv3.model_path' => "'hostile:'");
wait_state($node, 'ready');

sub set
{
	my (%settings) = @_;
	$node->append_conf('postgresql.conf', join('', map { "$_ = $settings{$_}\n" } sort keys %settings));
	return;
}

# ---- what the engine inherits (the misbehaving one does not lock itself up, so it can be looked at) ----

my $engine = engine_pid($node);
my %descriptors = map { m{/(\d+)\z} ? ($1 => readlink($_)) : () } glob("/proc/$engine/fd/*");
is(join(' ', sort { $a <=> $b } keys %descriptors), '0 1 2 3', 'four descriptors');
is($descriptors{0}, '/dev/null', 'standard input');
is($descriptors{1}, '/dev/null', 'standard output');
like($descriptors{2}, qr/\Apipe:/, 'standard error is the log pipe');
like($descriptors{3}, qr/\Asocket:/, 'the connection');
my $status = slurp_file("/proc/$engine/status");
ok($status =~ /^SigBlk:\s+0+$/m, 'no signal is blocked');
# It ignores SIGPIPE by itself; 32 and 33 are the C library's own, and no program can change them.
my ($ignored) = $status =~ /^SigIgn:\s+([0-9a-f]+)$/m;
is(hex($ignored) & ~(1 << 12 | 1 << 31 | 1 << 32), 0, 'no signal is ignored');
is(readlink("/proc/$engine/cwd"), '/', 'not in the data directory');
my @environment = sort map { /\A(\w+)=/ ? $1 : () } split /\0/, slurp_file("/proc/$engine/environ");
is(join(' ', grep { !/\A(DSV3_\w+|TZ|LD_LIBRARY_PATH|\w+SAN_OPTIONS|GCOV\w+)\z/ } @environment), 'HOME LC_ALL PATH', 'a short environment');
my $supervisor = supervisor_pid($node);
is((split ' ', slurp_file("/proc/$engine/stat"))[4], $supervisor, 'in the process group of the supervisor');
like(slurp_file("/proc/$engine/limits"), qr/^Max core file size\s+0\s/m, 'no core files');
is(slurp_file("/proc/$engine/cmdline"), "dsv3\0engine\0--parent\0$supervisor\0", 'its arguments');

# ---- dsv3.engine_oom_score_adj ----

is(slurp_file("/proc/$engine/oom_score_adj"), "500\n", 'oom_score_adj');
set('dsv3.engine_oom_score_adj' => 700);
$node->reload;
kill 'KILL', $engine;
ok(wait_for('another engine', sub { (engine_pid($node) || $engine) != $engine && health($node, 'state') eq 'ready' }), 'another engine');
is(slurp_file('/proc/' . engine_pid($node) . '/oom_score_adj'), "700\n", 'oom_score_adj after a reload');

# ---- dsv3.engine_restart_delay, and what shows it ----

set('dsv3.engine_restart_delay' => "'3s'", 'dsv3.engine_restart_delay_max' => "'3s'");
$node->reload;
sleep(0.2);
kill 'KILL', engine_pid($node);
ok(wait_for('the wait', sub { health($node, 'state') eq 'restarting' }), 'restarting');
is(health($node, 'next_start_at > now(), next_start_at < now() + interval \'4 s\', engine_pid IS NULL'), 't|t|t', 'when the next start is due');
my $begin = time();
is($node->safe_psql('postgres', "SELECT dsv3_generate('waited')"), 'WAITED', 'a query waits for it');
cmp_ok(time() - $begin, '>', 1, 'for some seconds');
is(health($node, 'next_start_at IS NULL'), 't', 'then none is due');
set('dsv3.engine_restart_delay' => "'20ms'", 'dsv3.engine_restart_delay_max' => "'20ms'");
$node->reload;
sleep(0.2);

# ---- dsv3.request_retries, dsv3.engine_start_limit, dsv3.engine_watchdog ----

for my $retries (0, 2)
{
	set('dsv3.request_retries' => $retries);
	$node->reload;
	sleep(0.2);
	my $times = $retries + 1;
	query_fails($node, "SELECT dsv3_generate('!!exit1')", '08006', qr/dsv3 engine ended $times times while/, 'dsv3\.request_retries', "request_retries = $retries");
}
set('dsv3.engine_watchdog' => 0);
$node->reload;
sleep(0.2);
query_fails($node, q{SELECT dsv3_generate('!!hang', options => '{"timeout_ms": 2000}')}, '57014', qr/was not finished within 2000 ms/, 'timeout', 'no watchdog');
set('dsv3.engine_watchdog' => "'1s'");
$node->reload;
is($node->safe_psql('postgres', "SELECT dsv3_generate('next')"), 'NEXT', 'a watchdog again');
for my $value ("'999ms'", "'1ms'", '-1')
{
	query_fails($node, "ALTER SYSTEM SET dsv3.engine_watchdog = $value", '22023', qr/dsv3\.engine_watchdog/, undef, "no watchdog of $value");
}
set('dsv3.model_path' => "'hostile:slow'", 'dsv3.engine_start_limit' => "'1s'");
my $from = -s $node->logfile;
$node->restart;
ok(wait_state($node, 'down'), 'engine_start_limit: down');
ok(log_has($node, qr/is killed: it was not ready within dsv3.engine_start_limit/, $from), 'engine_start_limit: log');
set('dsv3.engine_start_limit' => 0);
$node->restart;
ok(wait_state($node, 'ready'), 'engine_start_limit = 0: no limit');

# A reload starts an engine that is waited for at once: what kept it from starting may have been repaired.
set('dsv3.engine_restart_delay' => "'1min'", 'dsv3.engine_restart_delay_max' => "'1min'");
$node->reload;
sleep(0.2);
kill 'KILL', engine_pid($node);
ok(wait_for('the wait', sub { health($node, 'state') eq 'restarting' }), 'a long wait');
$node->reload;
ok(wait_for('ready', sub { health($node, 'state') eq 'ready' }, 20), 'is ended by a reload');

# A request that ran before the engine ended has all of start_timeout to wait for the next.
set('dsv3.engine_restart_delay' => "'1s'", 'dsv3.engine_restart_delay_max' => "'1s'", 'dsv3.engine_path' => "''", 'dsv3.model_path' => "'test:token_us=2000'",
	'dsv3.engine_watchdog' => "'30s'");
$node->restart;
wait_state($node, 'ready');
{
	my $long = start_query($node, "SET dsv3.start_timeout = '3s'; SELECT length(dsv3_generate('/forever', max_tokens => 3000))");

	ok(wait_for('some seconds of an answer', sub { live_requests($node, "output_tokens > 1600") == 1 }), 'an answer that has taken longer than start_timeout');
	kill 'KILL', engine_pid($node);
	is((end_query($long))[0], '3000', 'goes on with the next engine');
}

# ---- wait events ----

set('dsv3.engine_path' => "''", 'dsv3.model_path' => "'test:token_us=500'", 'dsv3.engine_watchdog' => "'30s'");
$node->restart;
my $query = start_query($node, "SELECT length(dsv3_generate('/forever', max_tokens => 2000))");
ok(wait_for('an answer', sub { live_requests($node, "state = 'decode'") == 1 }), 'an answer is under way');
like($node->safe_psql('postgres', q{SELECT wait_event_type || ' ' || wait_event FROM pg_stat_activity WHERE pid = (SELECT pid FROM dsv3_activity)}),
	$node->pg_version >= 17 ? qr/\AExtension Dsv3Running\z/ : qr/\AExtension Extension\z/, 'wait event');
is((end_query($query))[0], '2000', 'the answer');

# ---- what is passed to the engine ----

set('dsv3.kv_cache_size' => "'8MB'");
$node->restart;
wait_state($node, 'ready');
is($node->safe_psql('postgres', "SELECT (dsv3_model_info() ->> 'kv_bytes')::bigint"), 8 * 1024 * 1024, 'kv_cache_size');
set('dsv3.device' => 'cuda');
$node->restart;
ok(wait_state($node, 'down'), 'device = cuda: down');
like(health($node, 'last_error'), qr/cuda|device/i, 'device = cuda: the reason');
set('dsv3.device' => 'cpu', 'dsv3.kv_cache_size' => 0);

my $model = "$ENV{DSV3_TOP}/build/tiny-model";
SKIP:
{
	skip 'no small model in build/tiny-model', 14 unless -r "$model/config.json";
	set('dsv3.model_path' => "'$model'", 'dsv3.threads' => 2, 'dsv3.weights' => 'f32');
	$node->restart;
	ok(wait_state($node, 'ready'), 'a model of the disk: ready');
	is($node->safe_psql('postgres', "SELECT dsv3_model_info() ->> 'threads', dsv3_model_info() ->> 'weights'"), '2|f32', 'threads, weights');
	my $answer = $node->safe_psql('postgres', "SELECT dsv3_generate('Hello', max_tokens => 40)");
	set('dsv3.threads' => 1);
	$node->restart;
	is($node->safe_psql('postgres', "SELECT dsv3_generate('Hello', max_tokens => 40)"), $answer, 'the same answer with one thread');
	set('dsv3.weights' => 'int8');
	$node->restart;
	ok(wait_state($node, 'ready'), 'weights = int8: ready');
	is($node->safe_psql('postgres', "SELECT dsv3_model_info() ->> 'weights'"), 'int8', 'weights = int8');
	set('dsv3.weights' => 'int4');
	$node->restart;
	ok(wait_state($node, 'ready'), 'weights = int4: ready');
	is($node->safe_psql('postgres', "SELECT dsv3_model_info() ->> 'weights'"), 'int4', 'weights = int4');

	my $wide = $node->safe_psql('postgres', "SELECT dsv3_model_info() ->> 'kv_bytes_per_position'");
	set('dsv3.kv_cache_type' => 'int8');
	$node->restart;
	ok(wait_state($node, 'ready'), 'kv_cache_type = int8: ready');
	is($node->safe_psql('postgres', "SELECT dsv3_model_info() ->> 'kv_type', (dsv3_model_info() ->> 'kv_bytes_per_position')::int < $wide / 2"), 'int8|t',
		'kv_cache_type = int8');

	# The model's files are replaced, and the engine ends in the middle of answers.
	my $copy = $node->basedir . '/model';
	command_ok([ 'cp', '-rL', $model, $copy ], 'a copy of the model');
	set('dsv3.model_path' => "'$copy'");
	$node->restart;
	wait_state($node, 'ready');
	my $digest = health($node, 'digest');
	my $long = q{'Hello', max_tokens => 3000, options => '{"regex": "[a-z]{2900}"}'};
	my $whole = start_query($node, "SELECT dsv3_generate($long)");
	my $stream = start_query($node, "SELECT dsv3_generate_stream($long)");
	ok(wait_for('both are answered', sub { live_requests($node, 'output_tokens > 20') == 2 }), 'two answers under way');
	append_to_file("$copy/generation_config.json", "\n");
	kill 'KILL', engine_pid($node);
	like((end_query($stream))[1], qr/ERROR:  08006: model of the dsv3 engine has changed/, 'another model: a stream fails');
	my ($got) = end_query($whole);
	isnt(health($node, 'digest'), $digest, 'another model: its digest');
	is($got, $node->safe_psql('postgres', "SELECT dsv3_generate($long)"), 'another model: an answer nobody has seen starts again');
}

# A model with a draft layer: the same answers whether it drafts or not, and the counters that tell it does.
$model = "$ENV{DSV3_TOP}/build/draft-model";
SKIP:
{
	skip 'no model with a draft layer in build/draft-model', 6 unless -r "$model/config.json";
	my $ask = q{SELECT dsv3_generate('Hello', max_tokens => 60), dsv3_generate('Hello', max_tokens => 60, temperature => 0.9, seed => 5)};
	my $drafted = q{SELECT (engine ->> 'drafted_tokens')::int > 0, (engine ->> 'accepted_tokens')::int > 0 FROM dsv3_stat_engine};
	set('dsv3.model_path' => "'$model'", 'dsv3.weights' => 'stored', 'dsv3.kv_cache_type' => 'f32', 'dsv3.speculative' => 'off');
	$node->restart;
	ok(wait_state($node, 'ready'), 'speculative = off: ready');
	my $answer = $node->safe_psql('postgres', $ask);
	is($node->safe_psql('postgres', q{SELECT dsv3_model_info() ->> 'draft_bytes'}), '0', 'the draft layer is not loaded');
	set('dsv3.speculative' => 'on');
	$node->restart;
	is($node->safe_psql('postgres', $ask), $answer, 'speculative = on: the same answers');
	ok(wait_for('the counters', sub { $node->safe_psql('postgres', $drafted) eq 't|t' }), 'drafts are counted');
	set('dsv3.draft_input' => "'before-norm'");
	$node->restart;
	is($node->safe_psql('postgres', $ask), $answer, 'draft_input = before-norm: the same answers');
	cmp_ok($node->safe_psql('postgres', q{SELECT dsv3_model_info() ->> 'draft_bytes'}), '>', 0, 'the draft layer is loaded');
}
$node->stop;
done_testing();
