# The engine dies, by any signal and under load: no session and no server is lost, each query ends with the right text or one
# clear error, and the next one works. The same for the supervisor.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Dsv3Test;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $node = dsv3_node('crash', 'dsv3.model_path' => "'test:token_us=500'", 'dsv3.engine_watchdog' => "'1s'");
my $postmaster = slurp_file($node->data_dir . '/postmaster.pid');
my $expected = $node->safe_psql('postgres', "SELECT dsv3_generate('/count 60')");
is($expected, join(' ', 1 .. 60), 'the answer to compare with');

# ---- one request, in the middle of its answer: the caller sees one unbroken text ----

for my $signal (qw(KILL SEGV ABRT STOP TERM))
{
	my $engine = engine_pid($node);
	my $query = start_query($node, "SELECT dsv3_generate('/count 300', max_tokens => 4000)");
	my $stream = start_query($node, "SELECT string_agg(delta, '' ORDER BY seq) FROM dsv3_generate_stream('/count 300', max_tokens => 4000)");

	ok(wait_for('both are answered', sub { live_requests($node, 'output_tokens > 20') == 2 }), "$signal: two answers under way");
	kill $signal, $engine;
	is((end_query($query))[0], join(' ', 1 .. 300), "$signal: whole answer");
	is((end_query($stream))[0], join(' ', 1 .. 300), "$signal: whole stream");
	isnt(engine_pid($node), $engine, "$signal: another engine");
	ok(!alive($engine), "$signal: the old one is gone");
	is($node->safe_psql('postgres', "SELECT dsv3_generate('next')"), 'NEXT', "$signal: the next query");
}
ok(log_has($node, qr/dsv3 engine \(PID \d+\) ended by signal 9: Killed\n.*HINT:.*memory/), 'SIGKILL is logged with a hint');
ok(log_has($node, qr/dsv3 engine \(PID \d+\) is killed: it did not answer within dsv3.engine_watchdog/), 'the watchdog is logged');
ok(log_has($node, qr/dsv3 engine will be started again in \d+ ms/), 'back-off is logged');
cmp_ok(health($node, 'restarts'), '>=', 5, 'restarts are counted');
cmp_ok($node->safe_psql('postgres', 'SELECT resubmitted FROM dsv3_stat_engine'), '>=', 10, 'resubmissions are counted');

# ---- fifty deaths under load ----

my $sessions = 6;
my $rounds = "SELECT dsv3_generate('/count 60', seed => i) FROM generate_series(1, 40) AS i";
my @queries = map { start_query($node, $rounds) } 1 .. $sessions;
my $killed = 0;
while ($killed < 50)
{
	my $pid = engine_pid($node);
	my $signal = (qw(KILL SEGV STOP))[ $killed % 25 == 24 ? 2 : $killed % 2 ];

	if ($pid && kill($signal, $pid))
	{
		$killed++;
		wait_for('another engine', sub { (engine_pid($node) || $pid) != $pid });
	}
	sleep(0.05);
	@queries = map { $_->{handle}->pumpable ? $_ : check_load($_) } @queries;
}

# A session that has all its answers starts again.
sub check_load
{
	my ($query) = @_;
	my ($out, $err) = end_query($query);
	my @wrong = grep { $_ ne $expected } split /\n/, $out;

	is(scalar @wrong, 0, 'under load: every answer is right');
	like($err, qr/\A\z|ERROR:  (08006|57P03): dsv3/, 'under load: no error, or a clear one');
	return start_query($node, $rounds);
}
check_load($_) for @queries;
is($killed, 50, 'fifty engines died');
wait_state($node, 'ready');
is($node->safe_psql('postgres', "SELECT dsv3_generate('after')"), 'AFTER', 'the next query');
is(slurp_file($node->data_dir . '/postmaster.pid'), $postmaster, 'the server was never restarted');
ok(!log_has($node, qr/terminating any other active server processes/), 'no session was lost');

# What was started by the last check_load calls ends before the server is looked at for leaks.
ok(wait_for('no request', sub { live_requests($node, "pid <> pg_backend_pid()") == 0 }, 120), 'no request is left');
is($node->safe_psql('postgres', 'SELECT memory_bytes = memory_free_bytes FROM dsv3_stat_engine'), 't', 'no memory is lost');

# ---- the back-off grows, and is bounded ----

$node->append_conf('postgresql.conf', "dsv3.engine_restart_delay = '100ms'\ndsv3.engine_restart_delay_max = '400ms'\n");
$node->restart;
wait_state($node, 'ready');
my $from = -s $node->logfile;
for my $n (1 .. 4)
{
	my $pid = engine_pid($node);

	kill 'KILL', $pid;
	wait_for('another engine is ready', sub { health($node, 'state') eq 'ready' && engine_pid($node) != $pid });
}
my @delays = slurp_file($node->logfile, $from) =~ /will be started again in (\d+) ms/g;
is("@delays", '100 200 400 400', 'each wait is twice the one before, up to the limit');

# ---- the supervisor ----

for my $signal (qw(TERM))
{
	my $engine = engine_pid($node);
	my $supervisor = supervisor_pid($node);
	my $query = start_query($node, "SELECT dsv3_generate('/count 300', max_tokens => 4000)");
	my $stream = start_query($node, "SELECT dsv3_generate_stream('/forever', max_tokens => 4000)");

	ok(wait_for('both are answered', sub { live_requests($node, 'output_tokens > 20') == 2 }), "supervisor $signal: two answers under way");
	kill $signal, $supervisor;
	is((end_query($query))[0], join(' ', 1 .. 300), "supervisor $signal: an answer nobody has seen starts again");
	like((end_query($stream))[1], qr/ERROR:  08006: dsv3 supervisor ended while it worked on this request/, "supervisor $signal: a stream fails");
	ok(!alive($engine), "supervisor $signal: its engine went with it");
	isnt(supervisor_pid($node), $supervisor, "supervisor $signal: there is another");
	is($node->safe_psql('postgres', "SELECT dsv3_generate('next')"), 'NEXT', "supervisor $signal: the next query");
}

# A supervisor that dies by a signal is a server crash like any other; the server comes back, with an engine.
my $engine = engine_pid($node);
kill 'KILL', supervisor_pid($node);
ok(wait_for('the server is back', sub { ($node->psql('postgres', 'SELECT 1'))[0] == 0 && health($node, 'state') eq 'ready' }), 'supervisor KILL: the server recovers');
ok(wait_for('the old engine is gone', sub { !alive($engine) }, 5), 'supervisor KILL: no orphan');
is($node->safe_psql('postgres', "SELECT dsv3_generate('next')"), 'NEXT', 'supervisor KILL: the next query');

$node->stop;
done_testing();
