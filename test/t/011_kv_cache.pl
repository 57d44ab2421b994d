# Cached beginnings of prompts on disk: they are found after the engine or the server was started again, in the sandbox, by the scope
# they belong to; the files are private; damage and unusable folders cost no answer.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Dsv3Test;
use PostgreSQL::Test::Utils;
use Test::More;

my $base = PostgreSQL::Test::Utils::tempdir;
my $folder = "$base/kv";
my $node = dsv3_node('kv_cache', 'dsv3.kv_cache_dir' => "'$folder'", 'dsv3.kv_cache_disk_size' => "'1MB'");
my $prompt = 'a long instruction ' x 10;

sub cached
{
	my ($input, $options) = @_;
	$options //= '{}';
	return $node->safe_psql('postgres', "SELECT cached_tokens || ' ' || value FROM dsv3_try_generate('$prompt', '$input', max_tokens => 4, options => '$options')");
}

sub engine_count
{
	my ($name) = @_;
	return $node->safe_psql('postgres', "SELECT coalesce((engine ->> '$name')::bigint, -1) FROM dsv3_stat_engine");
}

sub write_conf
{
	my ($name, $value) = @_;
	$node->append_conf('postgresql.conf', "$name = $value\n");
	return;
}

wait_state($node, 'ready');
is(cached('one'), '0 A LO', 'computed');
is(cached('two'), '192 A LO', 'found in memory');
is(sprintf('%o', (stat $folder)[2] & 07777), '700', 'the folder is private');
is(sprintf('%o', (stat "$folder/$_")[2] & 07777), '600', "the file $_ is private") for qw(key blocks);
ok(wait_for('blocks on disk', sub { -s "$folder/blocks" >= 4096 + 5 * 4096 + 128 + 32 * 64 }), 'written');
like($node->safe_psql('postgres', "SELECT dsv3_model_info() ->> 'sandbox'"), qr/seccomp|none/, 'in the sandbox');

# ---- the engine is killed, the server started again ----

my $engine = engine_pid($node);
kill 'KILL', $engine;
ok(wait_for('another engine', sub { (engine_pid($node) || $engine) != $engine && health($node, 'state') eq 'ready' }), 'another engine');
is(cached('three'), '192 A LO', 'found on disk by another engine');
$node->restart;
wait_state($node, 'ready');
is(cached('four', '{"cache_scope": "database"}'), '0 A LO', 'not by another scope');
is(cached('four'), '192 A LO', 'found on disk after a restart of the server');
ok(wait_for('counters', sub { engine_count('kv_disk_loaded') == 6 }), 'six blocks were read');
cmp_ok(-s "$folder/blocks", '<=', 1024 * 1024, 'within its limit');

# ---- what is seen, pinned and thrown away ----

ok(wait_for('the view', sub { $node->safe_psql('postgres', 'SELECT disk_loaded, disk_blocks > 6, disk_used >= 6, disk_damaged, cached >= 6, pinned FROM dsv3_stat_kv_cache') eq '6|t|t|0|t|0' }),
	'dsv3_stat_kv_cache');
is($node->safe_psql('postgres', "SELECT dsv3_pin_prefix('$prompt')"), '192', 'pinned');
is($node->safe_psql('postgres', "SELECT dsv3_cache_reset('memory')"), '', 'memory is emptied');
is(cached('four'), '192 A LO', 'and the disk has it');
$node->safe_psql('postgres', 'SELECT dsv3_cache_reset()');
ok(wait_for('an empty file', sub { -s "$folder/blocks" == 4096 }), 'the disk is emptied');
is(cached('four'), '0 A LO', 'nothing is found');
is(cached('four'), '192 A LO', 'and all is stored again');
ok(wait_for('blocks on disk', sub { -s "$folder/blocks" >= 4096 + 5 * 4096 + 128 + 32 * 64 }), 'on disk, too');

# ---- damage ----

$node->stop;
open(my $file, '+<:raw', "$folder/blocks") or die;
my $content = do { local $/; <$file> };
substr($content, 4096 + $_ * 4096 + 200, 8) = 'damaged!' for 0 .. 5;
seek($file, 0, 0);
print $file $content;
close($file);
$node->start;
wait_state($node, 'ready');
is(cached('five'), '0 A LO', 'damaged records are computed again');
ok(log_has($node, qr/WARNING: .*a record of the cache directory is damaged/, 0), 'and the log says so');
is(cached('six'), '192 A LO', 'and are cached again');

# ---- folders that cannot be used ----

for my $case ([ "'$base/no/where'", 'could not make the cache directory' ], [ "'relative'", 'is not an absolute path' ], [ "'$base/open'", 'open to others' ])
{
	my ($value, $message) = @$case;
	mkdir "$base/open";
	chmod 0755, "$base/open";
	my $from = -s $node->logfile;
	write_conf('dsv3.kv_cache_dir', $value);
	$node->restart;
	wait_state($node, 'ready');
	is(cached('seven'), '0 A LO', "$message: answers");
	is(cached('eight'), '192 A LO', "$message: a cache in memory");
	ok(log_has($node, qr/WARNING: .*the cache is in memory only: .*$message/, $from), "$message: the log says so");
}

# ---- two servers, one folder ----

write_conf('dsv3.kv_cache_dir', "'$folder'");
$node->restart;
wait_state($node, 'ready');
my $other = dsv3_node('kv_cache_other', 'dsv3.kv_cache_dir' => "'$folder'");
wait_state($other, 'ready');
ok(log_has($other, qr/is in use by another engine/, 0), 'one of them does without');
is($other->safe_psql('postgres', "SELECT dsv3_generate('x')"), 'X', 'and answers');

done_testing();
