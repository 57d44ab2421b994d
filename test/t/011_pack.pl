# A server whose model is a pack: it answers as from the directory with the weights of the same name, in the sandbox, and
# damage of the file is an error with a reason.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Dsv3Test;
use PostgreSQL::Test::Utils;
use Test::More;

my $model = "$ENV{DSV3_TOP}/build/tiny-model";
plan skip_all => 'no small model in build/tiny-model' unless -r "$model/config.json";

my $dir = PostgreSQL::Test::Utils::tempdir;
my $pack = "$dir/tiny.dsv3";
my $node = dsv3_node('pack', 'dsv3.model_path' => "'$model'", 'dsv3.weights' => "'int8'");

sub with_settings
{
	my (%settings) = @_;
	$node->stop;
	$node->append_conf('postgresql.conf', "$_ = $settings{$_}\n") for sort keys %settings;
	$node->start;
	return;
}

# Greedy and sampled, raw and with the template, with a schema, and the numbers behind the words.
sub answers
{
	return $node->safe_psql('postgres', <<'END');
SELECT dsv3_generate('The pack ' || i, max_tokens => 24, temperature => i % 3, seed => i) FROM generate_series(1, 12) i;
SELECT dsv3_generate('Raw text', max_tokens => 24, options => '{"raw": true}');
SELECT dsv3_generate('A number', max_tokens => 24, options => '{"regex": "[0-9]{4,8}"}');
SELECT dsv3_logprob('one two', ' three');
SELECT dsv3_tokenize('words of the tokenizer');
END
}

ok(wait_state($node, 'ready'), 'the directory');
my $expected = answers();
my $digest = $node->safe_psql('postgres', "SELECT dsv3_model_info()->>'digest'");
command_ok([ "$ENV{DSV3_BIN}/dsv3", 'pack', '--bits', '8', $model, $pack ], 'dsv3 pack');
chmod 0755, $dir;
with_settings('dsv3.model_path' => "'$pack'");
ok(wait_state($node, 'down'), 'a pack has its own weights');
like(health($node, 'last_error'), qr/a pack cannot be opened with weights as int8/, 'and says so');
with_settings('dsv3.weights' => "'stored'");
ok(wait_state($node, 'ready'), 'the pack');
is(answers(), $expected, 'the same answers');
like($node->safe_psql('postgres', "SELECT dsv3_model_info()->>'sandbox'"), qr/seccomp/, 'in the sandbox');
is($node->safe_psql('postgres', "SELECT dsv3_model_info()->>'weights'"), 'int8', 'the name of its weights');
my $of_pack = $node->safe_psql('postgres', "SELECT dsv3_model_info()->>'digest'");
like($of_pack, qr/^[0-9a-f]{64}$/, 'a digest');
isnt($of_pack, $digest, 'of its own');
unlike(slurp_file($node->logfile), qr/the sandbox has no access/, 'which may read the file');

# Damage: by renaming, as files of a running server are to be replaced.
$node->stop;
open(my $file, '+<', $pack) or die;
seek($file, 20, 0);
print $file "\xff";
close($file);
$node->start;
ok(wait_state($node, 'down'), 'a damaged pack');
like(health($node, 'last_error'), qr/pack ".*" is damaged: its header does not match its checksum/, 'the reason');
unlink $pack;
append_to_file($pack, "not a pack\n" x 1000);
$node->restart;
ok(wait_state($node, 'down'), 'no pack');
like(health($node, 'last_error'), qr/is not a pack/, 'the reason');
$node->stop;
done_testing();
