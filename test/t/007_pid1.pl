# PostgreSQL as process 1 of a namespace, as in a container: the postmaster then inherits every process whose parent dies, and
# takes one that ends by a signal for a crashed backend.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Dsv3Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

# A namespace of processes of one's own needs either root or user namespaces.
if (system('unshare --user --map-current-user --pid --fork --mount-proc true 2>/dev/null') != 0)
{
	plan skip_all => 'no namespaces for this user';
}

my $node = dsv3_node('pid1', start => 0, 'dsv3.model_path' => "'test:token_us=500'");
my $data = $node->data_dir;
my $log = $node->logfile;

# --kill-child: the namespace ends with unshare. The server is process 1, and nothing else is in there.
my $namespace = fork();
if ($namespace == 0)
{
	open(STDOUT, '>>', $log);
	open(STDERR, '>&', \*STDOUT);
	exec('unshare', '--user', '--map-current-user', '--pid', '--fork', '--kill-child', '--mount-proc', 'postgres', '-D', $data);
	exit 1;
}
ok(wait_for('the server', sub { ($node->psql('postgres', 'SELECT 1'))[0] == 0 }), 'the server runs');
like(slurp_file("$data/postmaster.pid"), qr/\A1\n/, 'it is process 1');
$node->safe_psql('postgres', 'CREATE EXTENSION dsv3');
ok(wait_state($node, 'ready'), 'ready');
is($node->safe_psql('postgres', "SELECT dsv3_generate('hello')"), 'HELLO', 'answers');

# Process ids of the namespace are not ours: the children of process 1 are found from outside.
sub outside
{
	my ($what) = @_;
	my ($unshare) = ($namespace);
	my @found;

	for my $dir (glob('/proc/[0-9]*'))
	{
		open(my $file, '<', "$dir/status") or next;
		my $status = do { local $/; <$file> };
		close($file);
		next unless $status =~ /^NSpid:\s+(\d+)\s+(\d+)$/m;
		my $pid = $1;
		open(my $line, '<', "$dir/cmdline") or next;
		my $command = do { local $/; <$line> } // '';
		close($line);
		push @found, $pid if $command =~ $what && in_namespace($pid);
	}
	return @found;
}

# Is that process in the namespace that this test has made?
sub in_namespace
{
	my ($pid) = @_;
	my ($child) = glob_children($namespace);

	return $child && (readlink("/proc/$pid/ns/pid") // '') eq (readlink("/proc/$child/ns/pid") // '-');
}

sub glob_children
{
	my ($pid) = @_;
	open(my $file, '<', "/proc/$pid/task/$pid/children") or return;
	my @children = split ' ', <$file> // '';
	close($file);
	return @children;
}

my $sessions = start_query($node, "SELECT pg_sleep(6), dsv3_generate('this session lives on')");

# The engine dies, by every signal: its parent reaps it.
for my $signal (qw(KILL SEGV ABRT))
{
	my ($engine) = outside(qr/\Adsv3\0engine/);

	ok($engine, "$signal: there is an engine");
	kill $signal, $engine;
	ok(wait_for('another engine', sub { my ($now) = outside(qr/\Adsv3\0engine/); $now && $now != $engine && health($node, 'state') eq 'ready' }), "$signal: another engine");
}

# The supervisor ends first and leaves an engine that is busy: process 1 inherits it, and must see it end by exit.
{
	my ($supervisor) = outside(qr/dsv3 supervisor/);
	my ($engine) = outside(qr/\Adsv3\0engine/);
	my $query = start_query($node, "SELECT dsv3_generate('/count 200', max_tokens => 4000)");

	ok(wait_for('an answer', sub { live_requests($node, "state = 'decode'") == 1 }), 'supervisor TERM: an answer is under way');
	kill 'TERM', $supervisor;
	is((end_query($query))[0], join(' ', 1 .. 200), 'supervisor TERM: it is answered');
	ok(!alive($engine), 'supervisor TERM: the old engine is gone');
}
like((end_query($sessions))[0], qr/THIS SESSION LIVES ON/, 'a session saw nothing of all this');
ok(!log_has($node, qr/terminating any other active server processes/), 'no crash was seen by process 1');

# Both at once: the supervisor is killed, which is a crash, and its orphan ends by itself.
{
	my ($supervisor) = outside(qr/dsv3 supervisor/);
	my ($engine) = outside(qr/\Adsv3\0engine/);
	my $from = -s $log;

	kill 'KILL', $supervisor;
	ok(wait_for('the server', sub { ($node->psql('postgres', 'SELECT 1'))[0] == 0 && health($node, 'state') eq 'ready' }), 'supervisor KILL: the server recovers');
	ok(!alive($engine), 'supervisor KILL: no orphan');
	sleep(2);
	my @restarts = slurp_file($log, $from) =~ /(terminating any other active server processes)/g;
	is(scalar @restarts, 1, 'supervisor KILL: one crash, not two');
}

# The end of process 1 is the end of all.
my ($engine) = outside(qr/\Adsv3\0engine/);
my ($postmaster) = glob_children($namespace);
kill 'INT', $postmaster;
waitpid($namespace, 0);
ok(wait_for('nothing', sub { !alive($engine) }, 5), 'fast stop: nothing is left');
ok(!log_has($node, qr/PANIC/), 'no panic');
done_testing();
