# Many sessions ask while backends, the engine, the audit writer and the server are killed, and callers roll back and are
# cancelled: each answer that reached a caller has exactly one row, no request has two, nothing stays open, the chain holds.
# AUDIT_REQUESTS and AUDIT_SESSIONS make it longer (`make check-audit-crash`), AUDIT_SEED repeats a run.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Dsv3Test;
use IPC::Run;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $requests = $ENV{AUDIT_REQUESTS} // 400;
my $sessions = $ENV{AUDIT_SESSIONS} // 10;
my $seed = $ENV{AUDIT_SEED} // time() * 1000 % 1000000;
my $chunk = 10;    # requests of one connection

my $node = dsv3_node(
	'crash', 'dsv3.model_path' => "'test:token_us=1000'",
	'max_connections' => $sessions + 30,
	'max_worker_processes' => 16,
	'dsv3.request_retries' => '20');
ok(wait_state($node, 'ready'), 'ready');
my $dir = PostgreSQL::Test::Utils::tempdir;
note("seed $seed");

# Ask for each of the names once, in one of several ways. What psql prints goes to the file; lost connections are nothing to it.
sub ask
{
	my ($file, @names) = @_;
	my $script = "SET client_min_messages = 'panic';\n";

	for my $name (@names)
	{
		my $way = int(rand(5));
		$script .= $way == 0 ? "BEGIN; SELECT dsv3_generate('$name'); ROLLBACK;\n"
		  : $way == 1 ? "SET statement_timeout = " . (10 + int(rand(60))) . "; SELECT dsv3_generate('$name'); RESET statement_timeout;\n"
		  : $way == 2 ? "SELECT value FROM dsv3_try_generate('$name');\n"
		  : $way == 3 ? "SELECT string_agg(delta, '') FROM dsv3_generate_stream('$name');\n"
		  : "SELECT dsv3_generate('$name');\n";
	}
	my ($out, $err) = ('', '');
	eval { IPC::Run::run([ 'psql', '-XAtq', '-d', $node->connstr('postgres') ], '<', \$script, '>', \$out, '2>', \$err, IPC::Run::timeout(120)) };
	append_to_file($file, $out);
	return;
}

my @children;
for my $session (1 .. $sessions)
{
	my $pid = fork() // die "fork: $!";
	if ($pid == 0)
	{
		srand($seed + $session);
		$ENV{PGAPPNAME} = 'asker';
		my @names = map { "s${session}n$_" } 1 .. $requests / $sessions;
		while (my @next = splice(@names, 0, $chunk))
		{
			ask("$dir/$session", @next);
			# A server that starts again refuses connections for a moment, and then the names would be spent in vain.
			sleep(0.05) while IPC::Run::run([ 'pg_isready', '-q', '-d', $node->connstr('postgres') ]) == 0;
		}
		POSIX::_exit(0);
	}
	push @children, $pid;
}

# What goes wrong, while they ask.
sub pids
{
	my ($type) = @_;
	my ($rc, $out) = $node->psql('postgres',
		"SELECT coalesce(string_agg(pid::text, ' '), '') FROM pg_stat_activity WHERE backend_type = '$type' AND application_name IN ('asker', 'dsv3 audit writer', '')");
	return $rc == 0 ? split / /, $out : ();
}

sub one_of
{
	my ($type, $signal) = @_;
	my @pids = pids($type);

	kill($signal, $pids[ rand @pids ]) if @pids;
	return scalar @pids;
}

my %harm = (
	'backend cancelled' => sub { one_of('client backend', 'INT') },
	'backend terminated' => sub { one_of('client backend', 'TERM') },
	'backend killed' => sub { one_of('client backend', 'KILL') },
	'writer terminated' => sub { one_of('dsv3 audit writer', 'TERM') },
	'writer killed' => sub { one_of('dsv3 audit writer', 'KILL') },
	'engine killed' => sub {
		my ($rc, $pid) = $node->psql('postgres', 'SELECT engine_pid FROM dsv3_health()');
		return $rc == 0 && $pid ? kill('KILL', $pid) : 0;
	},
	'immediate shutdown' => sub { $node->stop('immediate'); start_again($node) });

srand($seed);
my %done = map { $_ => 0 } keys %harm;
my $left = @children;
while ($left > 0)
{
	my $what = (sort keys %harm)[ rand keys %harm ];

	# Those that end all sessions are rarer.
	$done{$what}++ if ($what !~ /killed|shutdown/ || $what =~ /engine/ || rand() < 0.4) && $harm{$what}->();
	sleep(rand(0.2));
	$left = grep { waitpid($_, POSIX::WNOHANG()) == 0 } @children;
}
note(join(', ', map { "$_: $done{$_}" } sort keys %done));

ok(wait_for('the server', sub { ($node->psql('postgres', 'SELECT 1'))[0] == 0 }), 'the server is there');
ok(wait_for('the log', sub { ($node->psql('postgres', 'SELECT dsv3_audit_flush()'))[0] == 0 }), 'everything is written');
$node->safe_psql('postgres', 'CREATE TABLE answer (name text)');
my $answers = 0;
for my $session (1 .. $sessions)
{
	my @names = grep { /^S\d+N\d+$/ } split /\n/, (-e "$dir/$session" ? slurp_file("$dir/$session") : '');

	$answers += @names;
	$node->safe_psql('postgres', 'INSERT INTO answer VALUES ' . join(', ', map { "(lower('$_'))" } @names)) if @names;
}
note("$answers of $requests answered");
cmp_ok($answers, '>', $requests / 10, 'answers came');
is( $node->safe_psql('postgres', q{SELECT name, count(l.seq) FROM answer LEFT JOIN dsv3_audit_log AS l ON l.input_hash = sha256(name::bytea) GROUP BY name HAVING count(l.seq) <> 1}),
	'', 'each answer has one row');
is( $node->safe_psql('postgres', q{SELECT name, status FROM answer JOIN dsv3_audit_log AS l ON l.input_hash = sha256(name::bytea) WHERE status <> 'done' OR output_hash <> sha256(upper(name)::bytea)}),
	'', 'which is done, with the hash of the answer');
is($node->safe_psql('postgres', 'SELECT input_hash FROM dsv3_audit_log GROUP BY input_hash HAVING count(*) > 1'), '', 'no request has two rows');
is($node->safe_psql('postgres', 'SELECT count(*) FROM dsv3_audit_open'), '0', 'no request is open');
is($node->safe_psql('postgres', 'SELECT ok, problem, rows = last_seq FROM dsv3_audit_verify()'), 't||t', 'the chain holds');
note($node->safe_psql('postgres', q{SELECT string_agg(status || ' ' || n, ', ') FROM (SELECT status, count(*) AS n FROM dsv3_audit_log GROUP BY 1 ORDER BY 1) AS s}));
$node->stop;
done_testing();
