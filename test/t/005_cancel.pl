# A query that ends early, for any reason and at every stage, frees its slot and stops the engine's work on it within a second.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Dsv3Test;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

# One token takes a millisecond; a prompt of 4000 takes four seconds, an answer of 4000 likewise.
my $node = dsv3_node('cancel', 'dsv3.model_path' => "'test:token_us=1000'", 'dsv3.queue_size' => '8');

# What the engine itself says: requests that it has.
sub engine_has
{
	return $node->safe_psql('postgres', q{SELECT (engine ->> 'running')::int + (engine ->> 'queued')::int FROM dsv3_stat_engine});
}

my %stages = (
	prefill => [ "SELECT dsv3_generate(repeat('x', 4000))", "state = 'prefill'" ],
	decode => [ "SELECT dsv3_generate('/forever', max_tokens => 4000)", "state = 'decode'" ],
	stream => [ "SELECT dsv3_generate_stream('/forever', max_tokens => 4000)", "state = 'decode'" ],
	# Rows are read on into the client, which does not read them.
	cursor => [ "SELECT dsv3_generate_stream('/forever', max_tokens => 4000) FROM generate_series(1, 1000)", "state = 'decode'" ],
	row => [ "SELECT dsv3_generate('row ' || i) FROM generate_series(1, 100000) AS i", 'true' ],
	caught => [ "SELECT dsv3_try_generate('/forever', max_tokens => 4000, options => '{\"timeout_ms\": 60000}')", "state = 'decode'" ],
	tokens => [ "SELECT dsv3_logprob('a', repeat('x', 3000))", 'true' ],
);

my %ways = (
	'Ctrl-C' => sub { $_[0]->{handle}->signal('INT') },
	pg_cancel_backend => sub { $node->safe_psql('postgres', "SELECT count(pg_cancel_backend(pid)) FROM (SELECT DISTINCT pid FROM dsv3_activity) AS s") },
	pg_terminate_backend => sub { $node->safe_psql('postgres', "SELECT count(pg_terminate_backend(pid)) FROM (SELECT DISTINCT pid FROM dsv3_activity) AS s") },
	'client killed' => sub { $_[0]->{handle}->signal('KILL') },
	'dsv3_cancel' => sub { $node->safe_psql('postgres', 'SELECT count(dsv3_cancel(trace_id)) FROM dsv3_activity') },
);

sub freed_within_a_second
{
	my ($name, $way, $stage) = @_;
	my ($sql, $reached) = @{ $stages{$stage} };
	my $query = start_query($node, $sql);

	ok(wait_for('the stage', sub { live_requests($node, $reached) >= 1 }), "$name: reached");
	my $begin = time();
	$way->($query);
	my $freed = wait_for('the slot', sub { live_requests($node) == 0 }, 5);
	my $took = time() - $begin;
	ok($freed && $took < a_second(), "$name: slot free") or diag("took $took s");
	eval { end_query($query) };
	return;
}

for my $way (sort keys %ways)
{
	freed_within_a_second("$way at $_", $ways{$way}, $_) for grep { !($way eq 'dsv3_cancel' && /row|cursor/) } sort keys %stages;
}
is($node->safe_psql('postgres', "SELECT dsv3_generate('next')"), 'NEXT', 'the next query');

# statement_timeout, the request's own timeout, the lock-step of a transaction's end.
for my $stage (sort keys %stages)
{
	my $begin = time();
	my ($rc, $out, $err) = $node->psql('postgres', "SET statement_timeout = '300ms'; $stages{$stage}->[0]");

	like($err, qr/canceling statement due to statement timeout/, "statement_timeout at $stage");
	cmp_ok(time() - $begin, '<', 0.3 + a_second(), "statement_timeout at $stage: in time");
	ok(wait_for('the slot', sub { live_requests($node) == 0 }, a_second()), "statement_timeout at $stage: slot free");
}
is($node->safe_psql('postgres', q{SELECT sqlstate FROM dsv3_try_generate('/forever', max_tokens => 4000, options => '{"timeout_ms": 200}')}), '57014', 'timeout_ms');
ok(wait_for('the slot', sub { live_requests($node) == 0 }, a_second()), 'timeout_ms: slot free');

# While it waits for an engine that is not ready, and while the engine is stopped.
{
	my $engine = engine_pid($node);

	kill 'STOP', $engine;
	for my $way ('Ctrl-C', 'pg_terminate_backend', 'client killed')
	{
		my $query = start_query($node, "SELECT dsv3_generate('x')");

		ok(wait_for('the request', sub { live_requests($node, "state IN ('prefill', 'queued')") == 1 }), "$way with a stopped engine: sent");
		$ways{$way}->($query);
		ok(wait_for('the slot', sub { live_requests($node) == 0 }, a_second()), "$way with a stopped engine: slot free");
		eval { end_query($query) };
	}
	kill 'CONT', $engine;
	is($node->safe_psql('postgres', "SELECT dsv3_generate('next')"), 'NEXT', 'stopped engine: goes on');
}
$node->append_conf('postgresql.conf', "dsv3.model_path = 'test:token_us=1000,open_ms=4000'\n");
$node->restart;
for my $way ('Ctrl-C', 'pg_cancel_backend', 'pg_terminate_backend', 'client killed', 'dsv3_cancel')
{
	my $query = start_query($node, "SELECT dsv3_generate('x')");

	ok(wait_for('the request', sub { live_requests($node, "state = 'queued'") == 1 }), "$way while queued: queued");
	$ways{$way}->($query);
	ok(wait_for('the slot', sub { live_requests($node) == 0 }, a_second()), "$way while queued: slot free");
	eval { end_query($query) };
}
wait_state($node, 'ready');

# The engine stops too: with all of its time free, a short answer comes at once, though four long ones were just left.
{
	my @long = map { start_query($node, "SELECT dsv3_generate('/forever', max_tokens => 4000)") } 1 .. 4;

	ok(wait_for('four', sub { live_requests($node, "state = 'decode'") == 4 }), 'four long answers');
	$_->{handle}->signal('KILL') for @long;
	ok(wait_for('their slots', sub { live_requests($node) == 0 }, a_second()), 'four slots free');
	eval { end_query($_) } for @long;
	my $begin = time();
	is($node->safe_psql('postgres', "SELECT dsv3_generate('/count 20')"), join(' ', 1 .. 20), 'a short answer');
	cmp_ok(time() - $begin, '<', a_second(), 'the engine does nothing else');
}

# Many in a row: nothing leaks.
my $pid = supervisor_pid($node);
my $descriptors = () = glob("/proc/$pid/fd/*");
for my $round (1 .. 5)
{
	my @queries = map { start_query($node, 'SELECT dsv3_generate_stream(\'/forever\', max_tokens => 4000)') } 1 .. 6;

	ok(wait_for('six', sub { live_requests($node, "state = 'decode'") == 6 }), "round $round: six streams");
	$ways{ (sort keys %ways)[ $round - 1 ] }->($_) for @queries;
	ok(wait_for('their slots', sub { live_requests($node) == 0 }, 2 * a_second()), "round $round: free");
	eval { end_query($_) } for @queries;
}
my $after = () = glob("/proc/$pid/fd/*");
is($after, $descriptors, 'the supervisor has as many descriptors as before');
is($node->safe_psql('postgres', 'SELECT memory_bytes = memory_free_bytes, requests = completed + failed + cancelled FROM dsv3_stat_engine'), 't|t', 'all memory is free, every request is accounted for');
ok(!log_has($node, qr/terminating any other active server processes|PANIC|TRAP/), 'no session was lost');
$node->stop;
done_testing();
