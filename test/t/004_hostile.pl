# The engine sends what no engine should: the request that it concerns gets an error, the engine is killed and started again,
# the server and the other sessions do not notice. One case for each misdeed of the misbehaving engine.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Dsv3Test;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = dsv3_node(
	'hostile',
	'dsv3.engine_path' => hostile_engine(),
	'dsv3.model_path' => "'hostile:'",
	'dsv3.engine_restart_delay' => "'10ms'",
	'dsv3.engine_restart_delay_max' => "'20ms'",
	'dsv3.engine_watchdog' => "'1s'",
	'dsv3.request_retries' => '1');
wait_state($node, 'ready');

# Modes by what becomes of the request: a SQLSTATE, or the text of the answer.
my %damaged = map { $_ => '08P01' } qw(garbage magic version type reserved huge toolong direction ready empty field twice ragged finish
  fewgaps lessgaps
  wrongid zeroid utf8 utf8cut utf8done utf8fail negative flood sqlstate okstate);
my %deadly = map { $_ => '08006' } qw(partial partialbody announced exit0 exit1 exit7 segv abort kill stop guarded hang stuck close deaf
  open creat connect exec fork execmem diealways);
my %refused = (fail => '22023', doublefail => '22023', zero => '22P05');
my %answered = map { $_ => 1 } qw(trickle afterdone dieonce);

sub outcome
{
	my ($mode) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSET statement_timeout = '20s';\nSELECT dsv3_generate('!!$mode Abc')");

	return $err =~ /ERROR:  (\w{5}): / ? $1 : $out;
}

# Each is followed by a good request, in another session.
sub next_is_good
{
	my ($mode) = @_;
	is($node->safe_psql('postgres', "SELECT dsv3_generate('good')"), 'GOOD', "$mode: the next request");
	return;
}

for my $mode (sort keys %damaged)
{
	my $engine = engine_pid($node);

	is(outcome($mode), $damaged{$mode}, "$mode: error");
	next_is_good($mode);
	isnt(engine_pid($node), $engine, "$mode: another engine");
	ok(!alive($engine), "$mode: the old one is gone");
}
for my $mode (sort keys %deadly)
{
	is(outcome($mode), $deadly{$mode}, "$mode: error");
	next_is_good($mode);
}
is(($node->psql('postgres', "\\set VERBOSITY verbose\nSELECT dsv3_count_tokens('!!empty')"))[2] =~ /ERROR:  (\w{5})/ ? $1 : '', '08P01', 'empty: a count without a number');
for my $mode (sort keys %refused)
{
	my $engine = engine_pid($node);

	is(outcome($mode), $refused{$mode}, "$mode: error");
	next_is_good($mode);
	is(engine_pid($node), $engine, "$mode: the same engine");
}
for my $mode (sort keys %answered)
{
	my $answer = outcome($mode);

	like($answer, qr/ABC\z/, "$mode: answer");
	next_is_good($mode);
}
is($node->safe_psql('postgres', q{SELECT dsv3_generate('!!lost') = ''}), 't', 'lost: an empty answer');
is($node->safe_psql('postgres', q{SELECT length(dsv3_generate('!!big', max_tokens => 4096))}), 32 * 1024 * 1024, 'big: 32 MB of text');
query_fails($node, q{SELECT dsv3_generate('!!silent', options => '{"timeout_ms": 200}')}, '57014', qr/was not finished within 200 ms/, 'timeout', 'silent');
next_is_good('silent');

# Messages, and what the forms that catch errors make of them.
query_fails($node, q{SELECT dsv3_generate('!!fail')}, '22023', qr/ERROR:  22023: this is the message\nDETAIL:  This is the detail\./, 'This is the hint\.', 'the engine\'s own failure, in full');
query_fails($node, q{SELECT dsv3_generate('!!utf8')}, '08P01', qr/invalid frame: text is not valid UTF-8/, 'server log', 'bad UTF-8');
query_fails($node, q{SELECT dsv3_generate('!!segv')}, '08006', qr/dsv3 engine ended 2 times while it worked on this request\nDETAIL:  The last end: signal 11/, 'dsv3\.request_retries', 'a request that kills');
is($node->safe_psql('postgres', q{SELECT string_agg(coalesce(sqlstate, value), ' ') FROM unnest('{!!segv,one,!!utf8,two,!!zero}'::text[]) AS t, dsv3_try_generate(t)}),
	'08006 ONE 08P01 TWO 22P05', 'bad rows among good ones, as rows');
is($node->safe_psql('postgres', q{SELECT string_agg(coalesce(dsv3_generate(t, options => '{"on_error": "null"}'), '-'), ' ') FROM unnest('{!!segv,one,!!utf8,two}'::text[]) AS t}),
	'- ONE - TWO', 'bad rows among good ones, as NULL');

# The sandbox stops what the engine should not do, and the log says so.
ok(log_has($node, qr/dsv3 engine: .*(sandbox|system call|seccomp)/i), 'the sandbox is in the log');

# ---- others survive ----

# Long answers beside a request that kills the engine whenever it meets it.
{
	my $long = 'x' x 60;

	$node->append_conf('postgresql.conf', "dsv3.engine_watchdog = '5s'\n");
	$node->reload;
	my @others = map { start_query($node, "SELECT dsv3_generate('!!trickle $long', seed => i) FROM generate_series(1, 2) AS i") } 1 .. 3;

	ok(wait_for('others', sub { live_requests($node, "state = 'prefill'") >= 1 }), 'others are being answered');
	for my $mode (qw(segv utf8 garbage segv))
	{
		my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT dsv3_generate('!!$mode')");
		like($err, qr/ERROR:  08(006|P01)/, "beside others, $mode: error for that request");
	}
	for my $other (@others)
	{
		my ($out, $err) = end_query($other);
		my @lines = split /\n/, $out;

		is($err, '', 'beside a request that kills: no error');
		is(scalar(grep { /X{60}\z/ } @lines), 2, 'beside a request that kills: whole answers');
	}
}

# A request that just waits, when another one's frame is damaged: it is given to the next engine and blamed for nothing.
{
	my $waits = start_query($node, q{SELECT dsv3_generate('!!silent', options => '{"timeout_ms": 2000}')});

	ok(wait_for('it', sub { live_requests($node, "state = 'prefill'") == 1 }), 'one request waits');
	is(outcome('utf8'), '08P01', 'another is damaged');
	like((end_query($waits))[1], qr/ERROR:  57014: dsv3 request was not finished/, 'the one that waits runs into its own timeout');
}

# One that makes progress before each end is given to engine after engine, until it makes none.
{
	my $before = $node->safe_psql('postgres', 'SELECT resubmitted FROM dsv3_stat_engine');

	is(outcome('diealways'), '08006', 'progress before each end: error at last');
	cmp_ok($node->safe_psql('postgres', 'SELECT resubmitted FROM dsv3_stat_engine') - $before, '>', 10, 'progress before each end: many engines');
}

# Two that kill, and three that do not, all at once.
{
	my @bad = map { start_query($node, "SELECT dsv3_generate('!!segv')") } 1 .. 2;
	my @good = map { start_query($node, "SELECT dsv3_generate('!!trickle good $_', seed => i) FROM generate_series(1, 5) AS i") } 1 .. 3;

	like((end_query($_))[1], qr/ERROR:  08006/, 'two that kill: error') for @bad;
	is(scalar(grep { /GOOD \d?\z/ } split /\n/, (end_query($_))[0]), 5, 'two that kill: the others have their answers') for @good;
}

# ---- wrong from the start ----

sub start_mode
{
	my ($mode) = @_;

	$node->append_conf('postgresql.conf', "dsv3.model_path = 'hostile:$mode'\n");
	my $from = -s $node->logfile;
	$node->restart;
	return $from;
}

$node->append_conf('postgresql.conf', "dsv3.engine_watchdog = '1s'\n");
start_mode('refuse');
ok(wait_state($node, 'down'), 'refuse: down');
isnt(health($node, 'last_error'), '', 'refuse: the reason');
for my $mode (qw(garbage chatter exit1 segv hang kill close))
{
	start_mode($mode);
	ok(wait_state($node, 'down'), "$mode at start: down");
	query_fails($node, "SELECT dsv3_generate('x')", '08006', qr/dsv3 engine is down: .*before it was ready/, 'log', "$mode at start: error");
}
start_mode('badjson');
ok(wait_state($node, 'ready'), 'badjson: ready');
is($node->safe_psql('postgres', "SELECT dsv3_model_info() IS NULL, dsv3_generate('x')"), 't|X', 'badjson: nothing is known of the model, which answers');
start_mode('slow');
is($node->safe_psql('postgres', "SELECT dsv3_generate('x')"), 'X', 'slow: the query waits');
$node->append_conf('postgresql.conf', "dsv3.engine_watchdog = '30s'\n");    # a million writes of one byte take a while
my $from = start_mode('noise');
is($node->safe_psql('postgres', "SELECT dsv3_generate('x')"), 'X', 'noise: answers');
$node->stop;
ok(log_has($node, qr/dsv3 engine: \d+ further lines were suppressed/, $from), 'noise: the log is spared');
my $log = slurp_file($node->logfile, $from);
cmp_ok(length($log), '<', 300_000, 'noise: the log is short');
unlike($log, qr/[\x00-\x08\x0e-\x1f]/, 'noise: no control characters');
ok(!log_has($node, qr/terminating any other active server processes/), 'no session was ever lost');
done_testing();
