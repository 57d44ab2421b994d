# A job and everything around it is killed at random moments: every row is written exactly once, and the tables are those of a job that
# nobody disturbed. The long form is make check-jobs-crash.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Dsv3Test;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

my $rows = $ENV{DSV3_JOB_ROWS} // 2000;
my $kills = $ENV{DSV3_JOB_KILLS} // 8;
my $seed = $ENV{DSV3_JOB_SEED} // time();
srand($seed);
note("DSV3_JOB_SEED=$seed");

my $node = dsv3_node('jobs_crash', 'dsv3.model_path' => "'test:token_us=50'", 'fsync' => 'off');
my @what = qw(worker backend engine supervisor stop worker_term launcher supervisor_kill);

# Every write is counted, by a table without a key.
$node->safe_psql('postgres', qq{
	CREATE TABLE docs (id int PRIMARY KEY, body text NOT NULL);
	INSERT INTO docs SELECT i, CASE WHEN i % 997 = 5 THEN '/nan' ELSE 'text ' || i END FROM generate_series(1, $rows) AS i;
	CREATE TABLE calm (id int PRIMARY KEY, answer text NOT NULL);
	CREATE TABLE wild (id int PRIMARY KEY, answer text NOT NULL);
	CREATE TABLE writes (id int);
	CREATE FUNCTION count_write() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO writes VALUES (NEW.id); RETURN NULL; END';
	CREATE TRIGGER count_write AFTER INSERT OR UPDATE ON wild FOR EACH ROW EXECUTE FUNCTION count_write();
});

sub submit
{
	my ($target, $chunk) = @_;
	return $node->safe_psql('postgres',
		"SELECT dsv3_job_submit('SELECT id, body FROM docs', 'dsv3_generate(body, max_tokens => 16) AS answer', '$target', '{id}', $chunk)");
}

# A value, or undef while the server is away.
sub ask
{
	my ($sql) = @_;
	my ($rc, $out) = eval { $node->psql('postgres', $sql) };    # it dies when psql ends before it has read the query
	return defined $rc && $rc == 0 ? $out : undef;
}

sub wait_for_rows
{
	my ($job, $least) = @_;
	my ($last, $state);

	return wait_for("$least rows of job $job", sub {
		my $now = ask("SELECT done + failed + skipped, state FROM dsv3_job_progress WHERE id = $job") // return 0;
		($last, $state) = split /\|/, $now;
		return $last >= $least || $state =~ /done|failed/;
	}, 120) && $state !~ /done|failed/;
}

sub pid_of
{
	my ($type) = @_;
	my $pid = ask("SELECT pid FROM pg_stat_activity WHERE backend_type = '$type' LIMIT 1");
	return $pid && $pid =~ /^\d+$/ ? $pid : undef;
}

# True if there was something to kill.
sub strike
{
	my ($what) = @_;
	my %signal = (worker => 'KILL', worker_term => 'TERM', engine => 'KILL', supervisor => 'TERM', supervisor_kill => 'KILL', launcher => 'TERM');
	my %type = (worker => 'dsv3 job', worker_term => 'dsv3 job', launcher => 'dsv3 job launcher');
	my $pid;

	if ($what eq 'stop')
	{
		$node->stop('immediate', fail_ok => 1);
		start_again($node);
		return 1;
	}
	if ($what eq 'backend')
	{
		my $query = start_query($node, "SELECT pg_sleep(60) /* victim */");
		wait_for('a victim', sub { $pid = ask("SELECT pid FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%victim%' AND state = 'active'") });
		my $killed = $pid && kill('KILL', $pid);
		end_query($query);
		return $killed;
	}
	$pid = $type{$what} ? pid_of($type{$what}) : ask('SELECT ' . ($what =~ /supervisor/ ? 'supervisor_pid' : 'engine_pid') . ' FROM dsv3_health()');
	return $pid && $pid > 1 && kill($signal{$what}, $pid);
}

my $calm = submit('calm', 256);
ok(wait_for('the calm job', sub { (ask("SELECT state FROM dsv3_jobs WHERE id = $calm") // '') eq 'done' }, 600), 'a job that nobody disturbs');

my $wild = submit('wild', 64);
my $struck = 0;
for my $k (1 .. $kills)
{
	last unless wait_for_rows($wild, int($rows * ($k - 0.9) / ($kills + 2)));
	sleep(rand(0.15));
	for my $try (1 .. 100)
	{
		if (strike($what[ $k <= @what ? $k - 1 : int(rand(@what)) ]))
		{
			$struck++;
			last;
		}
		sleep(0.02);
	}
}
is($struck, $kills, "$kills kills while the job ran");
ok(wait_for('the disturbed job', sub { (ask("SELECT state FROM dsv3_jobs WHERE id = $wild") // '') eq 'done' }, 600), 'it comes to its end');

is($node->safe_psql('postgres', 'SELECT count(*) FROM ((TABLE calm EXCEPT TABLE wild) UNION ALL (TABLE wild EXCEPT TABLE calm)) AS d'), '0', 'the tables are equal');
is($node->safe_psql('postgres', 'SELECT count(*) - count(DISTINCT id), count(*) - (SELECT count(*) FROM wild) FROM writes'), '0|0', 'each row was written once');
is($node->safe_psql('postgres', "SELECT string_agg(key::text, ' ' ORDER BY key) FROM dsv3_job_errors WHERE job = $wild"),
	$node->safe_psql('postgres', "SELECT string_agg(key::text, ' ' ORDER BY key) FROM dsv3_job_errors WHERE job = $calm"), 'the same rows failed');
is($node->safe_psql('postgres', "SELECT total - done - failed, skipped, failed > 0 FROM dsv3_job_progress WHERE id = $wild"), '0|0|t', 'the counts are right');
is($node->safe_psql('postgres', 'SELECT count(*) FROM _dsv3_job_chunk'), '0', 'nothing is left of the list');

# A row that brings the server down each time is found out, and costs no other row.
$node->safe_psql('postgres', q{
	CREATE FUNCTION fall(id int) RETURNS text LANGUAGE plpgsql AS $f$
	BEGIN
		IF id = 5 THEN
			COPY (SELECT 1) TO PROGRAM 'kill -9 $PPID';
			PERFORM pg_sleep(60);
		END IF;
		RETURN 'stands';
	END $f$;
	TRUNCATE calm;
});
my $fatal = $node->safe_psql('postgres', q{SELECT dsv3_job_submit('SELECT g AS id FROM generate_series(1, 12) AS g', 'fall(id) AS answer', 'calm', '{id}', 6)});
ok(wait_for('the job with a fatal row', sub { (ask("SELECT state FROM dsv3_jobs WHERE id = $fatal") // '') eq 'done' }, 120), 'a job with a fatal row');
is($node->safe_psql('postgres', "SELECT (SELECT string_agg(key->>'id' || ' ' || sqlstate, ',') FROM dsv3_job_errors WHERE job = $fatal), count(*) FROM calm"), '5 57P02|11',
	'the row is recorded, the others are there');

$node->stop;
done_testing();
