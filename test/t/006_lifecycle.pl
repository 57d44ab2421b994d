# What users of a good extension expect: it can be dropped, its database too, updated, dumped and restored, upgraded with the
# server, and used on a standby.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Dsv3Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

my $node = dsv3_node('primary', 'dsv3.model_path' => "'test:token_us=500'", 'wal_level' => 'replica');

# ---- DROP EXTENSION, DROP DATABASE ----

$node->safe_psql('postgres', 'CREATE DATABASE other');
$node->safe_psql('other', 'CREATE EXTENSION dsv3');
{
	# The audit log goes with the extension, so an answer that must be in it is refused.
	my $query = start_query($node, "SET dsv3.audit = 'off'; SELECT length(dsv3_generate('/forever', max_tokens => 600))", 'other');

	ok(wait_for('an answer', sub { live_requests($node, "state = 'decode'") == 1 }), 'an answer is under way');
	is($node->safe_psql('postgres', 'SELECT database FROM dsv3_activity'), 'other', 'seen from another database');
	$node->safe_psql('other', 'DROP EXTENSION dsv3');
	is((end_query($query))[0], '600', 'DROP EXTENSION does not disturb it');
}
is($node->psql('other', "SELECT dsv3_generate('x')"), 3, 'after DROP EXTENSION there is no function');
$node->safe_psql('other', 'CREATE EXTENSION dsv3');
is($node->safe_psql('other', "SELECT dsv3_generate('again')"), 'AGAIN', 'created again');
$node->safe_psql('postgres', 'DROP DATABASE other');
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_database WHERE datname = 'other'"), '0', 'nothing of dsv3 keeps a database');
{
	$node->safe_psql('postgres', 'CREATE DATABASE other');
	$node->safe_psql('other', 'CREATE EXTENSION dsv3');
	my $query = start_query($node, "SELECT dsv3_generate('/forever', max_tokens => 4000)", 'other');

	ok(wait_for('an answer', sub { live_requests($node, "state = 'decode'") == 1 }), 'an answer is under way');
	$node->safe_psql('postgres', 'DROP DATABASE other WITH (FORCE)');
	like((end_query($query))[1], qr/terminating connection/, 'DROP DATABASE FORCE ends its session');
	ok(wait_for('no request', sub { live_requests($node) == 0 }, 5), 'and its request');
}

# Dependent objects are protected, as for any function.
$node->safe_psql('postgres', q{CREATE VIEW answers AS SELECT dsv3_generate('x') AS a});
is($node->psql('postgres', 'DROP EXTENSION dsv3'), 3, 'a dependent view protects the extension');
is($node->safe_psql('postgres', 'SELECT a FROM answers'), 'X', 'and works');

# ---- ALTER EXTENSION ----

is($node->safe_psql('postgres', 'ALTER EXTENSION dsv3 UPDATE; SELECT extversion FROM pg_extension WHERE extname = \'dsv3\''), '1.0', 'ALTER EXTENSION UPDATE to the same version');
is($node->psql('postgres', 'ALTER EXTENSION dsv3 SET SCHEMA pg_temp'), 3, 'cannot be moved');
like($node->safe_psql('postgres', q{SELECT string_agg(version, ' ') FROM pg_available_extension_versions WHERE name = 'dsv3' AND superuser AND NOT trusted}), qr/\b1\.0\b/, 'a superuser installs it');

# Every C function is bound by a versioned name, which this library still has: an older script's functions load.
is($node->safe_psql('postgres', q{
	SELECT count(*) FROM pg_depend AS d JOIN pg_proc AS p ON p.oid = d.objid
	WHERE d.classid = 'pg_proc'::regclass AND d.deptype = 'e' AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'dsv3')
	  AND p.prokind <> 'a' AND p.prosrc !~ '_[0-9]+_[0-9]+$'}), '0', 'versioned symbols');
is($node->safe_psql('postgres', q{
	CREATE FUNCTION old_generate(text, text, text, int, float8, bigint, jsonb) RETURNS text LANGUAGE c AS '$libdir/dsv3', 'dsv3_generate_1_0';
	SELECT old_generate('old', '', NULL, NULL, NULL, NULL, NULL);}), 'OLD', 'a function of an older script');
$node->safe_psql('postgres', 'DROP FUNCTION old_generate(text, text, text, int, float8, bigint, jsonb)');

# ---- dump and restore ----

my $dump = PostgreSQL::Test::Utils::tempdir . '/dump.sql';
$node->safe_psql('postgres', q{
	CREATE ROLE reader;
	GRANT EXECUTE ON FUNCTION dsv3_generate(text, text, text, int, float8, bigint, jsonb) TO reader;
	CREATE TABLE kept (question text, answer text);
	INSERT INTO kept SELECT 'q', dsv3_generate('q');
	ALTER ROLE reader SET dsv3.max_tokens = 7;
	GRANT EXECUTE ON FUNCTION dsv3_run(text, text, int) TO reader;
	SELECT dsv3_prompt_create('ours', 'first {input}'), dsv3_prompt_create('ours', 'second {input}'), dsv3_prompt_create('code_review', 'ours {input}');
	SELECT dsv3_prompt_grant('ours', 'reader');
});
command_ok([ 'pg_dump', '-d', $node->connstr('postgres'), '-f', $dump ], 'pg_dump');
like(slurp_file($dump), qr/CREATE EXTENSION IF NOT EXISTS dsv3/, 'the dump creates the extension');
unlike(slurp_file($dump), qr/CREATE FUNCTION [\w.]*dsv3_/, 'and nothing that belongs to it');
$node->safe_psql('postgres', 'CREATE DATABASE restored');
command_ok([ 'psql', '-X', '-v', 'ON_ERROR_STOP=1', '-q', '-d', $node->connstr('restored'), '-f', $dump ], 'restore');
is($node->safe_psql('restored', 'SELECT * FROM kept'), 'q|Q', 'data');
is($node->safe_psql('restored', 'SELECT a FROM answers'), 'X', 'view');
is($node->safe_psql('restored', "SET ROLE reader; SELECT dsv3_generate('granted')"), 'GRANTED', 'grants to roles');
is($node->psql('restored', "SET ROLE reader; SELECT dsv3_count_tokens('x')"), 3, 'and no others');
is($node->safe_psql('restored', "SET ROLE reader; SELECT dsv3_run('ours', 'x'), dsv3_run('ours', 'x', 1), dsv3_run('code_review', 'x', 2)"),
	'SECOND X|FIRST X|OURS X', 'prompts, their versions and grants');
is($node->safe_psql('restored', "SELECT dsv3_prompt_create('ours', '{input}'), dsv3_prompt_create('code_review', '{input}')"), '3|3', 'versions go on');
command_ok([ 'pg_dump', '-Fc', '-d', $node->connstr('postgres'), '-f', "$dump.custom" ], 'pg_dump -Fc');
$node->safe_psql('postgres', 'CREATE DATABASE parallel');
command_ok([ 'pg_restore', '-j2', '--exit-on-error', '-d', $node->connstr('parallel'), "$dump.custom" ], 'pg_restore -j2');
is($node->safe_psql('parallel', "SET ROLE reader; SELECT dsv3_run('ours', 'x'), dsv3_run('code_review', 'x', 2)"), 'SECOND X|OURS X', 'in any order');

# pg_restore fills the tables of an extension in any order, so none that is dumped may refer to another.
is($node->safe_psql('parallel', "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND confrelid = ANY ((SELECT extconfig FROM pg_extension WHERE extname = 'dsv3')::oid[])"),
	'0', 'no foreign keys');

# ---- standby ----

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
ok(wait_state($standby, 'ready'), 'standby: its own engine');
is($standby->safe_psql('postgres', "SELECT pg_is_in_recovery(), dsv3_generate('standby')"), 't|STANDBY', 'standby: answers');
is($standby->safe_psql('postgres', "SELECT string_agg(delta, '' ORDER BY seq) FROM dsv3_generate_stream('stream')"), 'STREAM', 'standby: streams');
is($standby->safe_psql('postgres', 'SELECT a FROM answers'), 'X', 'standby: view');
$standby->promote;
is($standby->safe_psql('postgres', "SELECT pg_is_in_recovery(), dsv3_generate('promoted')"), 'f|PROMOTED', 'promoted: answers');
$standby->stop;

# Read-only transactions, and a server that only reads.
is($node->safe_psql('postgres', "BEGIN READ ONLY; SELECT dsv3_generate('read only'); COMMIT"), 'READ ONLY', 'read-only transaction');

# ---- single-user mode, and pg_upgrade's way to start a server ----

$node->stop;
my $data = $node->data_dir;
my $out = `echo "SELECT (dsv3_health()).state;" | postgres --single -D $data postgres 2>&1`;
like($out, qr/state = "down"/, 'single-user mode: down, and no harm');

# The target of an upgrade may preload dsv3 before any database has the extension.
SKIP:
{
	skip 'no pg_upgrade', 4 unless -x "$ENV{DSV3_BIN}/pg_upgrade";
	my $new = dsv3_node('upgraded', start => 0);
	my $dir = PostgreSQL::Test::Utils::tempdir_short;
	chdir $dir;
	my @upgrade = ('pg_upgrade', '-b', $ENV{DSV3_BIN}, '-B', $ENV{DSV3_BIN}, '-d', $data, '-D', $new->data_dir, '-p', $node->port, '-P', $new->port, '-s', $dir);

	# Engines of the servers that pg_upgrade starts would tell in the log.
	my $before = -s $node->logfile;
	command_ok([ @upgrade, '--check' ], 'pg_upgrade --check');
	command_ok(\@upgrade, 'pg_upgrade');
	ok(!log_has($node, qr/dsv3 engine started/, $before), 'pg_upgrade starts no engine');
	$new->start;
	is($new->safe_psql('postgres', "SELECT dsv3_generate('upgraded'), (SELECT answer FROM kept)"), 'UPGRADED|Q', 'after pg_upgrade');
	$new->stop;
}
done_testing();
