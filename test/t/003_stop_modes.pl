# However the server ends, no engine is left, and the next start is clean.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Dsv3Test;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

my $node = dsv3_node('stop', 'dsv3.model_path' => "'test:token_us=500'");

# A request under way in each case.
sub busy
{
	my $query = start_query($node, "SELECT dsv3_generate('/forever', max_tokens => 4000)");

	ok(wait_for('an answer under way', sub { live_requests($node, 'output_tokens > 5') == 1 }), 'an answer is under way');
	return $query;
}

sub no_orphan
{
	my ($name, @pids) = @_;

	ok(wait_for("$name: gone", sub { !grep { alive($_) } @pids }, 10), "$name: no engine, no supervisor");
	return;
}

for my $mode (qw(fast immediate))
{
	my @pids = (engine_pid($node), supervisor_pid($node));
	my $query = busy();
	my $from = -s $node->logfile;

	$node->stop($mode);
	end_query($query);
	no_orphan($mode, @pids);
	$node->start;
	is($node->safe_psql('postgres', "SELECT dsv3_generate('again')"), 'AGAIN', "$mode: clean start");
	is($node->safe_psql('postgres', 'SELECT count(*), sum(running) FROM dsv3_health()'), '1|0', "$mode: nothing left of the former life");
	ok(!log_has($node, qr/PANIC/, $from), "$mode: no panic");
	ok($mode eq 'immediate' || !log_has($node, qr/database system was not properly shut down/, $from), "$mode: no recovery needed");
}

# A smart stop lets the running query end; the engine serves it.
{
	my @pids = (engine_pid($node), supervisor_pid($node));
	my $query = start_query($node, "SELECT length(dsv3_generate('/forever', max_tokens => 4000))");

	ok(wait_for('an answer under way', sub { live_requests($node, 'output_tokens > 5') == 1 }), 'smart: an answer is under way');
	$node->stop('smart');
	is((end_query($query))[0], '4000', 'smart: the query had its answer');
	no_orphan('smart', @pids);
	$node->start;
}

# The postmaster is killed: nobody is there to clean up.
{
	my @pids = (engine_pid($node), supervisor_pid($node));
	my $query = busy();

	$node->kill9;
	no_orphan('kill -9', @pids);
	end_query($query);
	ok(start_again($node), 'kill -9: starts again');
	is($node->safe_psql('postgres', "SELECT dsv3_generate('again')"), 'AGAIN', 'kill -9: answers');
}

# The postmaster and the supervisor are killed at once: the kernel's signal is all that is left. It ends a stopped engine too.
for my $stopped (0, 1)
{
	my @pids = (engine_pid($node), supervisor_pid($node));
	my $name = 'kill -9 of both' . ($stopped ? ', engine stopped' : '');

	kill 'STOP', $pids[0] if $stopped;
	kill 'STOP', $pids[1];
	$node->kill9;
	kill 'KILL', $pids[1];
	no_orphan($name, @pids);
	ok(start_again($node), "$name: starts again");
}

# The engine does not heed SIGTERM and does not notice the end of its stream; it is killed all the same.
$node->append_conf('postgresql.conf', 'dsv3.engine_path = ' . hostile_engine() . "\ndsv3.model_path = 'hostile:mute'\n");
$node->restart;
wait_state($node, 'ready');
for my $mode (qw(fast immediate))
{
	my $engine = engine_pid($node);

	is($node->safe_psql('postgres', "SELECT dsv3_generate('x')"), 'X', "mute engine, $mode: answers");
	$node->stop($mode);
	no_orphan("mute engine, $mode", $engine);
	$node->start;
	wait_state($node, 'ready');
}

# A stopped engine cannot run its handlers; SIGKILL reaches it.
{
	my $engine = engine_pid($node);

	kill 'STOP', $engine;
	$node->stop('fast');
	no_orphan('stopped engine', $engine);
}

done_testing();
