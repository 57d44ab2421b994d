# Jobs: what they write, how rows and jobs fail, who may do what, and what else happens to their tables, roles, databases and servers.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Dsv3Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = dsv3_node('jobs', 'dsv3.model_path' => "'test:token_us=50'", 'max_worker_processes' => 12);

sub sql
{
	my ($sql, $database) = @_;
	return $node->safe_psql($database // 'postgres', $sql);
}

sub state_of
{
	my ($job, $database) = @_;
	return sql("SELECT state FROM dsv3_jobs WHERE id = $job", $database);
}

sub ends
{
	my ($job, $state, $name) = @_;
	ok(wait_for($name, sub { state_of($job) eq $state }), $name) or diag(sql("SELECT state, waiting_for, sqlstate, error FROM dsv3_jobs WHERE id = $job"));
	return;
}

sub submit
{
	my ($query, $call, $target, $more) = @_;
	return sql("SELECT dsv3_job_submit(\$q\$$query\$q\$, \$q\$$call\$q\$, '$target', " . ($more // "'{id}'") . ')');
}

sql(q{
	CREATE TABLE docs (id int PRIMARY KEY, owner text NOT NULL, body text);
	INSERT INTO docs SELECT i, 'o' || i % 3, CASE WHEN i % 50 = 7 THEN '/nan' WHEN i % 50 = 8 THEN NULL ELSE 'text ' || i END FROM generate_series(1, 200) AS i;
	ALTER TABLE docs ADD answer text, ADD n int;
	CREATE TABLE answers (id bigint PRIMARY KEY, answer text);
});

# ---- what is written ----

my $job = submit('SELECT id, body FROM docs', 'dsv3_generate(body, max_tokens => 16) AS answer', 'answers', "'{id}', 30");
my ($rc, $out, $err) = $node->psql('postgres', "CALL dsv3_job_run($job)");
is($rc, 0, 'CALL dsv3_job_run waits');
like($err, qr/NOTICE:  dsv3 job $job: 200 of 200 rows \(100 %\), 4 failed, \d+ tokens, done/, 'and tells');
is(sql('SELECT count(*), count(answer) FROM answers'), '196|192', 'rows that did not fail are there, NULL where the answer is');
is(sql("SELECT count(*) FROM answers JOIN docs USING (id) WHERE answers.answer IS DISTINCT FROM upper(body)"), '0', 'each with its own answer');
is(sql("SELECT total, done, failed, skipped, output_tokens > 1000, prompt_tokens > 1000, rows_per_second > 0 FROM dsv3_job_progress WHERE id = $job"), '200|196|4|0|t|t|t',
	'progress');
is(sql("SELECT string_agg(key->>'id', ' ' ORDER BY key), min(sqlstate) FROM dsv3_job_errors WHERE job = $job"), '7 57 107 157|XX000', 'errors');

sql("UPDATE docs SET body = 'good' WHERE body = '/nan' AND id < 100");
is(sql("SELECT dsv3_job_retry_failed($job)"), '4', 'failed rows are tried again');
ends($job, 'done', 'a retry');
is(sql("SELECT done, failed FROM dsv3_job_progress WHERE id = $job"), '198|2', 'a repaired row succeeds');
is(sql('SELECT answer FROM answers WHERE id = 57'), 'GOOD', 'with what it is now');

# The table that is read is the one that is written; two keys, several columns, casts, conditions, a query that groups.
$job = submit(q{SELECT id, owner, body FROM docs WHERE n IS NULL}, q{upper(dsv3_generate(body, max_tokens => 16)) AS answer, dsv3_count_tokens(coalesce(body, '')) AS n}, 'docs',
	q{'{id}', 64, '{"write": "update"}'});
ends($job, 'done', 'a job that updates its source');
is(sql('SELECT count(*) FROM docs WHERE n IS NULL'), '2', 'all rows but those that fail');
sql('CREATE TABLE sums (owner text, half int, answer varchar(8), PRIMARY KEY (half, owner))');
$job = submit(q{SELECT owner, id / 100 AS half, count(*) AS c FROM docs GROUP BY 1, 2 ORDER BY 2 DESC}, q{dsv3_generate('n ' || c) AS answer}, 'sums', q{'{owner,half}', 2});
ends($job, 'done', 'two keys');
is(sql(q{SELECT count(*), count(*) FILTER (WHERE answer = 'N ' || (SELECT count(*) FROM docs WHERE docs.owner = s.owner AND id / 100 = half)) FROM sums AS s}), '7|7', 'of a query that groups');

# ---- rows that fail for other reasons than the model's ----

sql('CREATE TABLE strict (id int PRIMARY KEY, n int CHECK (n <> 20), answer varchar(8), UNIQUE (n) DEFERRABLE INITIALLY DEFERRED)');
$job = submit('SELECT g AS id FROM generate_series(1, 40) AS g',
	q{CASE id WHEN 30 THEN 29 WHEN 10 THEN 1 / (id - 10) ELSE id END AS n, dsv3_generate(CASE id WHEN 15 THEN 'far too long' ELSE 'ok' END) AS answer}, 'strict');
ends($job, 'done', 'bad rows');
is(sql("SELECT string_agg(key->>'id' || ' ' || sqlstate, ', ' ORDER BY key) FROM dsv3_job_errors WHERE job = $job"), '10 22012, 15 22001, 20 23514, 30 23505',
	'errors of the call, of a type, of a constraint, at commit');
is(sql('SELECT count(*) FROM strict'), '36', 'and the other rows are there');

# Nothing but failures: the job is at fault.
$job = submit('SELECT g AS id FROM generate_series(1, 300) AS g', q{dsv3_generate('/nan') AS answer}, 'answers');
ends($job, 'failed', 'a hopeless job');
is(sql("SELECT failed < 300, error ~ 'first 100 rows have failed' FROM dsv3_jobs JOIN dsv3_job_progress USING (id) WHERE id = $job"), 't|t', 'is ended early');

# ---- what is refused when it is submitted ----

for my $case (
	[ q{'SELECT 1 AS id; DROP TABLE docs', '1 AS answer', 'answers', '{id}'}, '22023', 'two statements' ],
	[ q{'DELETE FROM docs RETURNING id', '1 AS answer', 'answers', '{id}'}, '22023', 'no SELECT' ],
	[ q{'SELECT 1) AS q; SELECT (2', '1 AS answer', 'answers', '{id}'}, '42601', 'a parenthesis that is not its own' ],
	[ q{'SELECT 1 AS id -- ', '''x'' AS answer FROM docs', 'answers', '{id}'}, '22023', 'FROM in the call' ],
	[ q{'SELECT 1 AS id', '''x''', 'answers', '{id}'}, '22023', 'an expression without a name' ],
	[ q{'SELECT 1 AS id', '''x'' AS other', 'answers', '{id}'}, '42703', 'no such column' ],
	[ q{'SELECT 1 AS id', '''x'' AS answer', 'answers', '{id,id}'}, '42701', 'a key column twice' ],
	[ q{'SELECT 1 AS id', 'count(*)::text AS answer', 'answers', '{id}'}, '22023', 'an aggregate' ],
	[ q{'SELECT 1 AS id', 'lag(id) OVER ()::text AS answer', 'answers', '{id}'}, '22023', 'a window function' ],
	[ q{'SELECT 1 AS id', 'generate_series(1, 2)::text AS answer', 'answers', '{id}'}, '22023', 'a function that returns a set' ],
	[ q{'SELECT 1 AS id', '''x'' AS id', 'answers', '{id}'}, '42701', 'a key as a result' ],
	[ q{'SELECT 1 AS n', '''x'' AS answer', 'docs', '{n}'}, '42P16', 'no unique index' ],
	[ q{'SELECT NULL::int AS id', '''x'' AS answer', 'answers', '{id}'}, '22023', 'a NULL key' ],
	[ q{'SELECT 1 AS id UNION ALL SELECT 1', '''x'' AS answer', 'answers', '{id}'}, '22023', 'a key twice' ],
	[ q{'SELECT 1 AS id', '''x'' AS answer', 'answers', '{id}', 0}, '22023', 'no chunk' ],
	[ q{'SELECT 1 AS id', '''x'' AS answer', 'answers', '{id}', 1, '{"prio": 1}'}, '22023', 'an unknown option' ],
	[ q{'SELECT 1 AS id', '''x'' AS answer', 'dsv3_jobs', '{id}'}, '42809', 'a view' ])
{
	my ($arguments, $sqlstate, $name) = @$case;
	query_fails($node, "SELECT dsv3_job_submit($arguments)", $sqlstate, qr/./, undef, "refused: $name");
}
for my $case (
	[ q{'SELECT id FROM mine', '''x'' AS answer', 'answers', '{id}'}, 'query of a job' ],
	[ q{'SELECT 1 AS id', '(SELECT answer FROM mine) AS answer', 'answers', '{id}'}, 'call of a job' ],
	[ q{'SELECT 1 AS id', '''x'' AS answer', 'mine', '{id}'}, 'target "pg_temp_\d+.mine"' ])
{
	my ($arguments, $name) = @$case;
	query_fails($node, "CREATE TEMP TABLE mine (id bigint PRIMARY KEY, answer text); SELECT dsv3_job_submit($arguments)", '0A000',
		qr/$name is or uses a temporary table/, 'session of its own', "refused: a temporary table as $name");
}
is(sql('SELECT count(*) FROM _dsv3_job_chunk WHERE job > ' . $job), '0', 'nothing is left of them');
is(state_of(submit('SELECT 1 AS id WHERE false', q{'x' AS answer}, 'answers')), 'done', 'no rows');
is(state_of(submit(q{SELECT 5 AS id -- comment}, q{'x' AS answer -- comment}, 'answers', q{'{id}', 1, '{"paused": true}'})), 'paused', 'comments at the end');

# ---- pause, resume, cancel ----

sub slow
{
	my ($more) = @_;
	return submit('SELECT g AS id FROM generate_series(1, 3000) AS g', q{dsv3_generate('slow ' || id) AS answer}, 'answers', $more // "'{id}', 100");
}
sql('TRUNCATE answers');
$job = slow();
ok(wait_for('some rows', sub { sql("SELECT done > 0 FROM dsv3_job_progress WHERE id = $job") eq 't' }), 'rows are written while the job runs');
is(sql("SELECT dsv3_job_pause($job), dsv3_job_pause($job)"), 't|f', 'pause');
ok(wait_for('the worker', sub { sql("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'dsv3 job'") eq '0' }), 'its worker leaves');
my $done = sql("SELECT done FROM dsv3_job_progress WHERE id = $job");
cmp_ok($done, '<', 3000, 'before the end');
is(sql('SELECT count(*) FROM answers'), $done, 'what is counted is written');
$node->restart;
ok(wait_state($node, 'ready'), 'restart');
is(state_of($job), 'paused', 'a paused job stays so');
is(sql("SELECT dsv3_job_resume($job), dsv3_job_resume($job)"), 't|f', 'resume');
ok(wait_for('more rows', sub { sql("SELECT done > $done FROM dsv3_job_progress WHERE id = $job") eq 't' }), 'goes on');
$node->restart;
ok(wait_for('yet more rows', sub { sql("SELECT done > $done + 100 FROM dsv3_job_progress WHERE id = $job") eq 't' }), 'goes on by itself after a restart');
query_fails($node, "SELECT dsv3_job_forget($job)", '55000', qr/is active/, 'Cancel', 'forget while it runs');
is(sql("SELECT dsv3_job_cancel($job), dsv3_job_cancel($job), dsv3_job_resume($job)"), 't|f|f', 'cancel');
ok(wait_for('the worker', sub { sql("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'dsv3 job'") eq '0' }), 'its worker leaves');
is(sql("SELECT done FROM dsv3_job_progress WHERE id = $job"), sql('SELECT count(*) FROM answers'), 'what is written stays');
sql("SELECT dsv3_job_forget($job)");
is(state_of($job), '', 'forgotten');
query_fails($node, 'CALL dsv3_job_run(NULL)', '22004', qr/no job was named/, 'dsv3_jobs', 'run no job');
query_fails($node, "BEGIN; CALL dsv3_job_run(1)", '25001', qr/transaction block/, 'transactions of its own', 'run in a transaction');
query_fails($node, 'SELECT dsv3_job_pause(987654)', '42704', qr/does not exist/, 'dsv3_jobs', 'no such job');

# ---- priority and fairness ----

my @jobs = (slow(q{'{id}', 20}), slow(q{'{id}', 20}), slow(q{'{id}', 20}));
ok(wait_for('all of them', sub { sql("SELECT count(*) FROM dsv3_job_progress WHERE done > 0 AND done < 3000 AND id IN (@{[join ',', @jobs]})") eq '3' }), 'three jobs share two places');
is(sql("SELECT count(*) FILTER (WHERE priority <> 'batch') FROM dsv3_activity"), '0', 'their requests wait behind others');
sql("SELECT dsv3_job_cancel($_)") for @jobs;

# ---- rights ----

sql(q{
	CREATE ROLE alice LOGIN; CREATE ROLE bob LOGIN; CREATE ROLE crowd; GRANT crowd TO alice;
	GRANT EXECUTE ON FUNCTION dsv3_job_submit, dsv3_job_resume, dsv3_job_retry_failed TO alice, bob, crowd;
	GRANT EXECUTE ON FUNCTION dsv3_generate TO alice;
	CREATE TABLE hers (id int PRIMARY KEY, who text); GRANT SELECT, INSERT, UPDATE ON hers TO alice;
	CREATE TABLE secret (id int PRIMARY KEY, who text);
	CREATE SCHEMA trap; GRANT ALL ON SCHEMA trap TO alice;
});
sub as
{
	my ($role, $sql) = @_;
	return $node->psql('postgres', $sql, connstr => $node->connstr('postgres') . " user=$role");
}
($rc, $job) = as('alice', q{SET search_path = trap, public; SELECT dsv3_job_submit('SELECT 1 AS id', 'current_user || '' '' || session_user || '' '' || current_setting(''search_path'') AS who', 'hers', '{id}')});
is($rc, 0, 'a role that may');
ends($job, 'done', 'its job');
is(sql('SELECT who FROM hers'), 'alice alice trap, public', 'runs as that role, with its search_path');
(as('alice', q{SELECT dsv3_job_submit('SELECT 1 AS id', '''x'' AS who', 'secret', '{id}')}))[2] =~ /permission denied for table secret/ or fail('a target without rights');
like((as('alice', q{SELECT dsv3_job_submit('SELECT 1 AS id FROM secret', '''x'' AS who', 'hers', '{id}')}))[2], qr/permission denied for table secret/, 'a source without rights');
like((as('bob', q{SELECT dsv3_job_submit('SELECT 1 AS id', 'dsv3_generate(''x'') AS who', 'hers', '{id}')}))[2], qr/permission denied/, 'a call without rights');
like((as('alice', q{SET ROLE crowd; SELECT dsv3_job_submit('SELECT 1 AS id', '''x'' AS who', 'hers', '{id}')}))[2], qr/may not log in/, 'a role that cannot run it');
is((as('bob', 'SELECT count(*) FROM dsv3_jobs'))[1], '0', 'others do not see it');
like((as('bob', "SELECT dsv3_job_cancel($job)"))[2], qr/permission denied for dsv3 job/, 'nor change it');
like((as('alice', 'SELECT * FROM _dsv3_job'))[2], qr/permission denied/, 'the tables are nobody\'s');

# Operators and functions of hers do not get between when the tables are changed.
sql(q{CREATE FUNCTION trap.stop(bigint, bigint) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE ''trapped as %'', current_user; END';
	CREATE OPERATOR trap.= (FUNCTION = trap.stop, LEFTARG = bigint, RIGHTARG = bigint); });
($rc, $job, $err) = as('alice', q{SET search_path = trap, pg_catalog, public; SELECT dsv3_job_submit('SELECT 2 AS id', '''x'' AS who', 'hers', '{id}')});
is("$rc $err", '0 ', 'an operator in the search_path');
ends($job, 'done', 'and in the worker');

# Rights that are lost while the job waits.
($rc, $job) = as('alice', q{SELECT dsv3_job_submit('SELECT 3 AS id', '''x'' AS who', 'hers', '{id}', 1, '{"paused": true}')});
sql("REVOKE INSERT ON hers FROM alice; SELECT dsv3_job_resume($job)");
ends($job, 'failed', 'a right is lost');
is(sql("SELECT sqlstate FROM dsv3_jobs WHERE id = $job"), '42501', 'and named');
sql("GRANT INSERT ON hers TO alice; SELECT dsv3_job_resume($job)");
ends($job, 'done', 'and given back');
($rc, $job) = as('alice', q{SELECT dsv3_job_submit('SELECT 4 AS id', '''x'' AS who', 'hers', '{id}', 1, '{"paused": true}')});
sql("ALTER ROLE alice NOLOGIN; SELECT dsv3_job_resume($job)");
ends($job, 'failed', 'the role may not log in');
sql('DROP OWNED BY alice; DROP ROLE alice');
is(sql("SELECT state FROM dsv3_jobs WHERE id = $job"), 'failed', 'the role is gone');
query_fails($node, "SELECT dsv3_job_resume($job)", '42704', qr/role that submitted/, undef, 'and cannot be resumed');

# ---- the target, the extension, the database go away ----

sql('CREATE TABLE gone (id int PRIMARY KEY, answer text)');
$job = submit('SELECT 1 AS id', q{'x' AS answer}, 'gone', q{'{id}', 1, '{"paused": true}'});
sql("DROP TABLE gone; SELECT dsv3_job_resume($job)");
ends($job, 'failed', 'the target is dropped');
is(sql("SELECT sqlstate FROM dsv3_jobs WHERE id = $job"), '42P01', 'and named');

sql('CREATE DATABASE other');
sql(q{CREATE EXTENSION dsv3; CREATE TABLE t (id int PRIMARY KEY, answer text);}, 'other');
my $slow = q{SELECT dsv3_job_submit('SELECT g AS id FROM generate_series(1, 5000) AS g', 'dsv3_generate(''slow '' || id) AS answer', 't', '{id}', 50)};
sql($slow, 'other');
ok(wait_for('its job', sub { sql('SELECT state FROM dsv3_jobs', 'other') eq 'running' }), 'a job in another database');
sql('ALTER DATABASE other RENAME TO another');
ok(wait_for('its job', sub { sql('SELECT state FROM dsv3_jobs', 'another') eq 'running' }), 'the database is renamed under it');
sql('DROP EXTENSION dsv3', 'another');
ok(wait_for('its worker', sub { sql("SELECT count(*) FROM pg_stat_activity WHERE datname = 'another'") eq '0' }), 'the extension is dropped under it');
sql('CREATE EXTENSION dsv3', 'another');
sql($slow, 'another');
ok(wait_for('its job', sub { sql('SELECT state FROM dsv3_jobs', 'another') eq 'running' }), 'once more');
sql('DROP DATABASE another');
is(sql("SELECT count(*) FROM pg_database WHERE datname = 'another'"), '0', 'the database is dropped under it');

# ---- dump and restore ----

$job = submit('SELECT g AS id FROM generate_series(1, 30) AS g', q{dsv3_generate('again ' || id) AS answer}, 'answers', q{'{id}', 7, '{"paused": true}'});
sql('TRUNCATE answers; CREATE DATABASE copy');
my $dump = $node->basedir . '/dump.sql';
$node->command_ok([ 'pg_dump', '-d', $node->connstr('postgres'), '-f', $dump ], 'dump');
$node->command_ok([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('copy'), '-f', $dump ], 'restore');
sql("UPDATE _dsv3_job SET state = 'active' WHERE id = $job", 'copy');
is(sql("SELECT state, waiting_for ~ 'dsv3_job_resume' FROM dsv3_jobs WHERE id = $job", 'copy'), 'waiting|t', 'what is restored does not run by itself');
is(sql("SELECT dsv3_job_resume($job)", 'copy'), 't', 'but when it is resumed');
ok(wait_for('the copy', sub { sql("SELECT state FROM dsv3_jobs WHERE id = $job", 'copy') eq 'done' }), 'to its end');
is(sql('SELECT count(*) FROM answers', 'copy'), '30', 'where it is');
is(state_of($job), 'paused', 'and not where it was');
cmp_ok(sql(q{SELECT dsv3_job_submit('SELECT 1 AS id', '''x'' AS answer', 'answers', '{id}')}, 'copy'), '>', $job, 'numbers go on');

# ---- no worker to be had ----

$node->append_conf('postgresql.conf', 'max_worker_processes = 3');
$node->restart;
ok(wait_state($node, 'ready'), 'few workers');
sql("SELECT dsv3_job_resume($job)");
ok(wait_for('a word of it', sub { log_has($node, qr/no background worker is free for a dsv3 job\n.*HINT:.*max_worker_processes/) }), 'no worker is free: it is told');
is(sql("SELECT state, waiting_for FROM dsv3_jobs WHERE id = $job"), 'waiting|a background worker: max_worker_processes', 'and the job waits');
$node->append_conf('postgresql.conf', 'max_worker_processes = 12');
$node->restart;
ends($job, 'done', 'until there is one');

$node->stop;
done_testing();
