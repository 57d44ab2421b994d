# The audit log: one row for each request, whatever becomes of the caller; hashes, levels, rights, refusal when it cannot be
# written, several databases.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Dsv3Test;
use PostgreSQL::Test::Utils;
use POSIX qw(mkfifo);
use Test::More;
use Time::HiRes qw(sleep time);

my $node = dsv3_node('audit', 'dsv3.model_path' => "'test:token_us=500'", 'autovacuum' => 'off');

sub sql
{
	my ($sql, $database) = @_;
	return $node->safe_psql($database // 'postgres', $sql);
}

# ---- what a row says ----

ok(wait_state($node, 'ready'), 'ready');
is(sql("SELECT dsv3_generate('hello there', max_tokens => 20, seed => 7)"), 'HELLO THERE', 'an answer');
is( sql(q{SELECT seq, function, database, session_role, role, client IS NULL, status, sqlstate IS NULL, finish_reason, seed, prompt_tokens > 0,
       output_tokens > 0, total_ms > 0, queue_ms >= 0, prefill_ms >= 0, decode_ms >= 0, model IS NOT NULL, model_digest IS NOT NULL, engine IS NOT NULL,
       pg_xact_status(xid), hash_kind, params ->> 'max_tokens', request IS NULL, input IS NULL, output IS NULL, trace_id = request_id
       FROM dsv3_audit_log WHERE input_hash = sha256('hello there')}),
	'1|dsv3_generate|postgres|' . ($ENV{PGUSER} // getpwuid($>)) . '|' . ($ENV{PGUSER} // getpwuid($>))
	  . '|t|done||stop|7|t|t|t|t|t|t|t|t|t|committed|sha256|20|t|t|t|t' =~ s/\|\|/|t|/r,
	'its row');
is(sql("SELECT output_hash = sha256('HELLO THERE'), prompt_hash = input_hash FROM dsv3_audit_log"), 't|t', 'the hash of the answer');
is(sql("SELECT dsv3_generate('do this', input => 'with that')") ne '' && sql("SELECT prompt_hash = sha256('do this') FROM dsv3_audit_log WHERE input_hash = sha256('with that')"),
	't', 'an input of its own');
is( sql(q{SET dsv3.traceparent = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'; SET application_name = 'tracer';
       SELECT length(dsv3_generate('traced')); SELECT trace_id, request_id <> trace_id, traceparent, application FROM dsv3_audit_log WHERE input_hash = sha256('traced')}),
	"6\n4bf92f35-77b3-4da6-a3ce-929d0e0e4736|t|00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01|tracer", 'the trace of the caller');
is( sql("SELECT count(*) FROM dsv3_try_generate('tried') AS t JOIN dsv3_audit_log AS l ON l.request_id = t.trace_id"), '0', 'not in the snapshot of the query itself');
is(sql("SELECT count(*) FROM dsv3_audit_log WHERE input_hash = sha256('tried')"), '1', 'but after it');

# Every function that makes the model compute, each under its own name.
sql($_) for (
	"SELECT dsv3_chat('[{\"role\": \"user\", \"content\": \"hi\"}]')",
	"SELECT count(*) FROM (SELECT dsv3_generate_stream('streamed')) AS s",
	"SELECT dsv3_logprob('a', 'b')",
	"SELECT dsv3_classify('x', ARRAY['a', 'b'])",
	"SELECT count(*) FROM dsv3_classify_scores('x', ARRAY['a', 'b'])",
	"SELECT dsv3_is_true('x', 'y')",
	"SELECT dsv3_score('x', 'y')",
	"SELECT count(*) FROM dsv3_generate_batch(ARRAY['b1', 'b2'], 'p')",
	"SELECT dsv3_agg(t, 'fold') FROM (VALUES ('f1'), ('f2')) AS v (t)",
	"SELECT dsv3_summarize_agg(t) FROM (VALUES ('f1'), ('f2')) AS v (t)",
	"SELECT dsv3_run('code_review', 'x = y')",
	"SELECT dsv3_pin_prefix('pinned')",
	"SELECT dsv3_count_tokens('not recorded')");
is( sql(q{SELECT string_agg(function || ' ' || n, ', ' ORDER BY function) FROM (SELECT function, count(*) AS n FROM dsv3_audit_log WHERE function <> 'dsv3_generate' GROUP BY function) AS s}),
	'dsv3_agg 1, dsv3_chat 1, dsv3_classify 1, dsv3_classify_scores 1, dsv3_generate_batch 2, dsv3_generate_stream 1, dsv3_is_true 1, dsv3_logprob 1, dsv3_pin_prefix 1, dsv3_run 1, dsv3_score 1, dsv3_summarize_agg 1, dsv3_try_generate 1',
	'functions');
is(sql("SELECT prompt_name, prompt_version FROM dsv3_audit_log WHERE input_hash = sha256('x = y')"), 'code_review|1', 'the name of a prompt');
is(sql("SELECT output_hash = sha256('STREAMED') FROM dsv3_audit_log WHERE input_hash = sha256('streamed')"), 't', 'the hash of a stream');
is(sql("SELECT count(dsv3_generate('ahead ' || i)) FROM generate_series(1, 50) AS i"), '50', 'rows read ahead');
is(sql("SELECT count(*) FROM dsv3_audit_log AS l JOIN generate_series(1, 50) AS i ON l.input_hash = sha256(('ahead ' || i)::bytea)"), '50', 'each has its row');
is(sql('SELECT ok, problem IS NULL, rows = last_seq, first_seq FROM dsv3_audit_verify()'), 't|t|t|1', 'the chain holds');

# ---- what becomes of the caller ----

sql("BEGIN; SELECT dsv3_generate('rolled back'); ROLLBACK");
is(sql("SELECT status, pg_xact_status(xid) FROM dsv3_audit_log WHERE input_hash = sha256('rolled back')"), 'done|aborted', 'ROLLBACK');
sql("BEGIN; SAVEPOINT s; SELECT dsv3_generate('saved'); ROLLBACK TO s; COMMIT");
is(sql("SELECT status, pg_xact_status(xid) FROM dsv3_audit_log WHERE input_hash = sha256('saved')"), 'done|aborted', 'ROLLBACK TO SAVEPOINT');
sql("BEGIN READ ONLY; SELECT dsv3_generate('read only'); COMMIT");
is(sql("SELECT status FROM dsv3_audit_log WHERE input_hash = sha256('read only')"), 'done', 'read-only transaction');

$node->psql('postgres', "SET statement_timeout = '300ms'; SELECT dsv3_generate('/forever', max_tokens => 4000)");
sql('SELECT dsv3_audit_flush()');
is(sql("SELECT status, sqlstate FROM dsv3_audit_log WHERE input_hash = sha256('/forever')"), 'cancelled|57014', 'a cancelled request');
$node->psql('postgres', "SELECT dsv3_generate('/forever slow', max_tokens => 4000, options => '{\"timeout_ms\": 200}')");
sql('SELECT dsv3_audit_flush()');
is(sql("SELECT status, sqlstate FROM dsv3_audit_log WHERE input_hash = sha256('/forever slow')"), 'cancelled|57014', 'a timeout');
is(sql('SELECT count(*) FROM dsv3_audit_open'), '0', 'nothing is open');
is(sql('SELECT ok FROM dsv3_audit_verify()'), 't', 'the chain holds');

# ---- levels and hashes ----

sql("SET dsv3.audit = 'off'; SELECT dsv3_generate('unseen')");
is(sql("SELECT count(*) FROM dsv3_audit_log WHERE input_hash = sha256('unseen')"), '0', 'off');
sql("SET dsv3.audit = 'full'; SELECT dsv3_generate('kept', max_tokens => 9)");
is(sql("SELECT input, output, request IS NOT NULL FROM dsv3_audit_log WHERE input_hash = sha256('kept')"), 'kept|KEPT|t', 'full');
is( sql(q{SELECT r.same, r.same_model, r.recorded_hash = r.replayed_hash, r.replay_id IS NOT NULL FROM dsv3_audit_log AS l, dsv3_replay(l.request_id) AS r WHERE input_hash = sha256('kept')}),
	't|t|t|t', 'replay');
query_fails($node, "SELECT dsv3_replay(request_id) FROM dsv3_audit_log WHERE seq = 1", '55000', qr/request was not kept/, 'dsv3.audit', 'nothing to replay');
query_fails($node, "SELECT dsv3_replay('00000000-0000-4000-8000-000000000000')", 'P0002', qr/no answered request/, undef, 'no such request');

my $key = PostgreSQL::Test::Utils::tempdir . '/key';
append_to_file($key, "0123456789abcdef\n");
chmod 0644, $key;
my $hmac = "SET dsv3.audit_hash = 'hmac-sha256';";
query_fails($node, "$hmac SELECT dsv3_generate('x')", '58030', qr/dsv3\.audit_key_file is not set/, 'openssl', 'no key file');
query_fails($node, 'SELECT dsv3_audit_expire(now())', '58030', qr/dsv3\.audit_key_file is not set/, 'openssl', 'nor a key to sign checkpoints');
$node->append_conf('postgresql.conf', "dsv3.audit_key_file = '$key'");
$node->reload;
ok(wait_for('the setting', sub { sql('SHOW dsv3.audit_key_file') eq $key }), 'key file set');
query_fails($node, "$hmac SELECT dsv3_generate('x')", '58030', qr/others have rights/, 'openssl', 'a key that all can read');
rename $key, "$key.kept";
mkfifo($key, 0600) or die "mkfifo: $!";
query_fails($node, "$hmac SELECT dsv3_generate('x')", '58030', qr/it is not a file/, 'openssl', 'a FIFO is not waited for');
rename "$key.kept", $key;
chmod 0600, $key;
sql("$hmac SELECT dsv3_generate('keyed')");
is(sql("$hmac SELECT count(*), min(hash_kind) FROM dsv3_audit_log WHERE input_hash = dsv3_audit_digest('keyed')"), '1|hmac-sha256', 'keyed hash');
is(sql("SELECT count(*) FROM dsv3_audit_log WHERE input_hash = sha256('keyed')"), '0', 'which is not the plain one');

# ---- rights ----

sql(q{CREATE ROLE alice LOGIN; CREATE ROLE bob LOGIN; CREATE ROLE auditor LOGIN;
      GRANT EXECUTE ON FUNCTION dsv3_generate TO alice, bob;
      GRANT EXECUTE ON FUNCTION dsv3_audit_verify, dsv3_audit_flush TO auditor});
sql("SET ROLE alice; SELECT dsv3_generate('of alice')");
sql("SET ROLE bob; SELECT dsv3_generate('of bob')");
is(sql('SET ROLE alice; SELECT count(*), min(role) FROM dsv3_audit_log'), '1|alice', 'own rows only');
is(sql("SET ROLE auditor; SELECT count(*) FROM dsv3_audit_log WHERE role IN ('alice', 'bob')"), '2', 'the auditor sees all');
is(sql('SET ROLE auditor; SELECT ok FROM dsv3_audit_verify()'), 't', 'and may check');
for my $statement ('UPDATE dsv3_audit_log SET role = NULL', 'DELETE FROM dsv3_audit_log', 'TRUNCATE dsv3_audit_log', 'INSERT INTO dsv3_audit_log (seq) VALUES (1)')
{
	my ($rc, $out, $err) = $node->psql('postgres', "SET ROLE auditor; $statement");
	like($err, qr/permission denied/, "auditor: $statement");
	next if $statement =~ /INSERT/;
	($rc, $out, $err) = $node->psql('postgres', $statement);
	like($err, qr/cannot be changed/, "superuser: $statement");
}
my $partition = sql("SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'dsv3_audit_log'::regclass");
like(($node->psql('postgres', "TRUNCATE $partition"))[2], qr/cannot be changed/, 'a partition');
like(($node->psql('postgres', "SET ROLE auditor; SELECT FROM $partition"))[2], qr/permission denied/, 'nobody has rights on a partition');
for my $call ('dsv3_audit_verify()', 'dsv3_audit_flush()', "dsv3_audit_digest('x')", "dsv3_audit_expire(now())", "dsv3_replay(gen_random_uuid())")
{
	like(($node->psql('postgres', "SET ROLE alice; SELECT $call"))[2], qr/permission denied/, "alice: $call");
}
like(($node->psql('postgres', "SET ROLE alice; SET dsv3.$_"))[2], qr/permission denied/, "alice: dsv3.$_") for ("audit = 'off'", 'audit_sync = off', "audit_hash = 'sha256'");
sql('ALTER ROLE alice RENAME TO alicia');
is(sql('SET ROLE alicia; SELECT count(*), min(role) FROM dsv3_audit_log'), '1|alice', 'a renamed role still sees its rows');
sql('ALTER ROLE alicia RENAME TO alice');
sql('DROP OWNED BY alice; DROP ROLE alice; CREATE ROLE alice');
is(sql('SET ROLE alice; SELECT count(*) FROM dsv3_audit_log'), '0', 'a new role of an old name does not see rows of the old one');

# ---- what was done to the rows is found ----

# Do it as one who may switch triggers off, look, and undo it.
sub tampered
{
	my ($name, $statement, $problem, $seq) = @_;
	my $result = sql(
		"BEGIN; SET LOCAL session_replication_role = 'replica'; $statement; SELECT ok, bad_seq, problem FROM dsv3_audit_verify(); ROLLBACK");
	like($result, qr/^f\|$seq\|$problem/m, "found: $name");
	return;
}
my $last = sql('SELECT seq FROM dsv3_audit_head');
tampered('a byte', "UPDATE dsv3_audit_log SET output_tokens = output_tokens + 1 WHERE seq = 5", 'row was changed', 5);
tampered('a text that was NULL', "UPDATE dsv3_audit_log SET input = '' WHERE seq = 5", 'row was changed', 5);
tampered('a hash', "UPDATE dsv3_audit_log SET row_hash = sha256('x') WHERE seq = 5", 'row was changed', 5);
tampered('a row taken out', 'DELETE FROM dsv3_audit_log WHERE seq = 5', 'row is missing', 5);
tampered('the first row taken out', 'DELETE FROM dsv3_audit_log WHERE seq = 1', 'row is missing', 1);
tampered('the last rows taken out', "DELETE FROM dsv3_audit_log WHERE seq > $last - 3", 'row is missing', $last - 2);
tampered('all rows taken out', 'DELETE FROM dsv3_audit_log', 'row is missing', 1);
tampered('rows changed over', 'UPDATE dsv3_audit_log SET seq = 11 - seq WHERE seq IN (5, 6)', 'row was changed', 5);
tampered('a row added', "CREATE TEMP TABLE t ON COMMIT DROP AS SELECT * FROM dsv3_audit_log WHERE seq = 5; UPDATE t SET seq = $last + 1; INSERT INTO dsv3_audit_log TABLE t", 'row was changed', $last + 1);
tampered('a row twice', "CREATE TEMP TABLE t ON COMMIT DROP AS SELECT * FROM dsv3_audit_log WHERE seq = 5; UPDATE t SET logged_at = logged_at + '1us'; INSERT INTO dsv3_audit_log TABLE t", 'row is there twice', 5);
tampered('the head', "UPDATE dsv3_audit_head SET row_hash = sha256('x')", 'row is not the one that was written', $last);
is(sql('SELECT ok, rows FROM dsv3_audit_verify()'), "t|$last", 'and all was undone');
is(sql("SELECT ok, rows FROM dsv3_audit_verify((SELECT logged_at FROM dsv3_audit_log WHERE seq = 10), (SELECT logged_at FROM dsv3_audit_log WHERE seq = 20))") =~ /^t\|1[1-9]$/, 1, 'a part of it');
like(sql("BEGIN; SET LOCAL session_replication_role = 'replica'; DELETE FROM dsv3_audit_log WHERE seq = 15; SELECT ok, bad_seq FROM dsv3_audit_verify((SELECT logged_at FROM dsv3_audit_log WHERE seq = 10), (SELECT logged_at FROM dsv3_audit_log WHERE seq = 20)); ROLLBACK"),
	qr/^f\|15$/m, 'found in a part');

# ---- refusal ----

sub writer
{
	return sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'dsv3 audit writer' AND datname = 'postgres'");
}
sql('ALTER TABLE dsv3_audit_open RENAME TO hidden');
query_fails($node, "SELECT dsv3_generate('refused')", '42P01', qr/audit log cannot be written: relation .*dsv3_audit_open/, 'dsv3.audit', 'no table: refused');
query_fails($node, "SELECT dsv3_generate('refused')", '42P01', qr/audit log cannot be written/, 'dsv3.audit', 'and again');
is(sql("SET dsv3.audit = 'off'; SELECT dsv3_generate('not asked')"), 'NOT ASKED', 'off: answered');
sql('ALTER TABLE hidden RENAME TO dsv3_audit_open');
ok(wait_for('an answer', sub { ($node->psql('postgres', "SELECT dsv3_generate('again')"))[0] == 0 }), 'the next writer does better');
is(sql("SELECT count(*) FROM dsv3_audit_log WHERE input_hash = sha256('refused')"), '0', 'a refused request was never made');

# The caller waits for the writer, which waits for a lock of the caller's.
query_fails($node, "BEGIN; CREATE INDEX ON dsv3_audit_log (application); SELECT dsv3_generate('locked out')", '55P03', qr/audit log cannot be written: its writer waited .* for a lock/,
	'perhaps this one', 'a lock of its own: refused');
ok(wait_for('an answer', sub { ($node->psql('postgres', "SELECT dsv3_generate('let in')"))[0] == 0 }), 'without it there is an answer');
is(sql("SELECT count(*) FROM dsv3_audit_log WHERE input_hash = sha256('locked out')"), '0', 'the refused request was never made');

# Its row cannot be written after the answer was computed.
{
	my $query = start_query($node, "SELECT dsv3_generate('/forever late', max_tokens => 1000)");

	ok(wait_for('decode', sub { live_requests($node, "state = 'decode'") == 1 }), 'a request runs');
	sql("ALTER TABLE dsv3_audit_log ADD CONSTRAINT never CHECK (seq < 0) NOT VALID");
	like((end_query($query))[1], qr/audit log cannot be written.*never/s, 'its answer is refused');
	sql('ALTER TABLE dsv3_audit_log DROP CONSTRAINT never');
	sleep(1.2);
	sql('SELECT dsv3_audit_flush()');
	is(sql("SELECT status FROM dsv3_audit_log WHERE input_hash = sha256('/forever late')"), 'refused', 'and its row says so');
}

# Without waiting.
is(sql("SET dsv3.audit_sync = off; SELECT dsv3_generate('not waited for'); SELECT dsv3_audit_flush()") =~ /NOT WAITED FOR/, 1, 'audit_sync = off');
is(sql("SELECT status FROM dsv3_audit_log WHERE input_hash = sha256('not waited for')"), 'done', 'written all the same');

# ---- the writer comes and goes ----

ok(sql("SELECT dsv3_generate('x') IS NOT NULL; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'dsv3 audit writer'"), 'terminate the writer');
is(sql("SELECT dsv3_generate('after it')"), 'AFTER IT', 'nobody notices');

sql('CREATE DATABASE other');
sql('CREATE SCHEMA "Odd"; CREATE EXTENSION dsv3 SCHEMA "Odd"', 'other');
is(sql(q{SELECT "Odd".dsv3_generate('elsewhere')}, 'other'), 'ELSEWHERE', 'another database, another schema');
is(sql(q{SELECT count(*), min(seq), min(database) FROM "Odd".dsv3_audit_log}, 'other'), '1|1|other', 'a log of its own');
is(sql(q{SELECT ok FROM "Odd".dsv3_audit_verify()}, 'other'), 't', 'a chain of its own');
my $begin = time();
sql('DROP DATABASE other');
ok(time() - $begin < 5, 'DROP DATABASE is not blocked');
ok(log_has($node, qr/dsv3 audit chain of database \d+: row 1 has the hash [0-9a-f]{64}/), 'the head of a chain is in the server log');

sql('CREATE DATABASE forced');
sql("CREATE EXTENSION dsv3", 'forced');
my $sleeper = start_query($node, "SELECT length(dsv3_generate('x')), pg_sleep(60)", 'forced');
ok(wait_for('its row', sub { sql('SELECT count(*) FROM dsv3_audit_log', 'forced') eq '1' }), 'a session in a third');
sql('DROP DATABASE forced WITH (FORCE)');
eval { end_query($sleeper) };
pass('DROP DATABASE ... WITH (FORCE)');

# ---- crash ----

{
	my $query = start_query($node, "SELECT dsv3_generate('/forever crashed', max_tokens => 4000)");

	ok(wait_for('decode', sub { live_requests($node, "state = 'decode'") == 1 }), 'a request runs');
	$node->stop('immediate');
	eval { end_query($query) };
	ok(start_again($node), 'start after a crash');
	ok(wait_state($node, 'ready'), 'ready');
	is(sql('SELECT ok FROM dsv3_audit_verify()'), 't', 'the chain holds');
	is(sql("SELECT status, output_hash IS NULL FROM dsv3_audit_log WHERE input_hash = sha256('/forever crashed')"), 'lost|t', 'the request is accounted for');
	is(sql('SELECT count(*) FROM dsv3_audit_open'), '0', 'nothing is open');
}

# ---- retention, dump, DROP EXTENSION ----

is(sql("SELECT dsv3_audit_expire(now() + '1 year')"), '0', 'the month that runs is never dropped');

# The name of a partition says its month.
my $rows = sql('SELECT count(*) FROM dsv3_audit_log');
$partition = sql("SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'dsv3_audit_log'::regclass");
sql("ALTER TABLE $partition RENAME TO dsv3_audit_log_202001");
is(sql("SELECT dsv3_audit_expire('2020-01-31')"), '0', 'a month that had not ended by then');
like(
	($node->psql('postgres', "BEGIN; SET LOCAL session_replication_role = 'replica'; UPDATE dsv3_audit_log SET pid = 0 WHERE seq = 3; SELECT dsv3_audit_expire(now())"))[2],
	qr/damaged at row 3: row was changed/, 'a damaged month is kept');
is(sql("SELECT dsv3_audit_expire('2020-02-01 00:00:00+00')"), '1', 'an old month is dropped');
is(sql('SELECT partition, first_seq, last_seq, length(signature) FROM dsv3_audit_checkpoint'), "dsv3_audit_log_202001|1|$rows|32", 'a checkpoint says what it was');
is(sql('SELECT ok, rows FROM dsv3_audit_verify()'), 't|0', 'the chain holds without it');
is(sql("SELECT dsv3_generate('after the old month')"), 'AFTER THE OLD MONTH', 'and goes on');
is(sql('SELECT ok, rows, first_seq FROM dsv3_audit_verify()'), 't|1|' . ($rows + 1), 'after it');
tampered('a checkpoint', 'UPDATE dsv3_audit_checkpoint SET last_seq = last_seq + 1', 'checkpoint was changed', 1);
tampered('a checkpoint taken out', 'DELETE FROM dsv3_audit_checkpoint', 'row is missing', 1);
my $dump = $node->backup_dir . '/dump.sql';
$node->command_ok([ 'pg_dump', '-f', $dump, '-d', $node->connstr('postgres') ], 'pg_dump');
unlike(slurp_file($dump), qr/dsv3_audit_log/, 'the log is not part of a dump');
sql('CREATE DATABASE restored');
$node->command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-f', $dump, '-d', $node->connstr('restored') ], 'restore');
is(sql("SELECT dsv3_generate('restored')", 'restored') . sql('SELECT ok, rows FROM dsv3_audit_verify()', 'restored'), 'RESTOREDt|1', 'a restored database begins a new log');
sql('DROP EXTENSION dsv3', 'restored');
is(sql("SELECT count(*) FROM pg_class WHERE relname LIKE 'dsv3%'", 'restored'), '0', 'DROP EXTENSION takes the log along');
like(
	($node->psql('restored', "BEGIN; CREATE EXTENSION dsv3; SELECT dsv3_generate('too early')"))[2],
	qr/audit log cannot be written: extension dsv3 was created in this transaction\nHINT:  COMMIT first/, 'the transaction that creates it cannot call');
like(
	($node->psql('restored', "BEGIN; CREATE EXTENSION dsv3; SAVEPOINT s; SET LOCAL dsv3.audit_sync = off; SELECT dsv3_generate('too early')"))[2],
	qr/was created in this transaction/, 'not without waiting either');
is(sql("BEGIN; CREATE EXTENSION dsv3; SET LOCAL dsv3.audit = 'off'; SELECT dsv3_generate('early'); ROLLBACK", 'restored'), 'EARLY', 'but where nothing is recorded');
sql('CREATE EXTENSION dsv3', 'restored');
like(
	($node->psql('restored', "BEGIN; DROP EXTENSION dsv3; CREATE EXTENSION dsv3; SELECT dsv3_generate('too early')"))[2],
	qr/was created in this transaction/, 'also after the old one was dropped');
is(sql("SELECT dsv3_generate('anew')", 'restored') . sql('SELECT ok, rows FROM dsv3_audit_verify()', 'restored'), 'ANEWt|1', 'and a new one begins');

done_testing();
