# Texts that do not pass from the engine to SQL as they are: encodings that lack characters or conversions, and U+0000.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Dsv3Test;
use Test::More;

my $node = dsv3_node('texts');

# ---- an encoding without any conversion ----

$node->safe_psql('postgres', "CREATE DATABASE mule ENCODING 'MULE_INTERNAL' LOCALE 'C' TEMPLATE template0");
$node->safe_psql('mule', 'CREATE EXTENSION dsv3');
is($node->safe_psql('mule', "SELECT dsv3_generate('hello')"), 'HELLO', 'MULE_INTERNAL: ASCII passes');
is($node->safe_psql('mule', "SELECT sqlstate FROM dsv3_try_generate('/bytes e697a5')"), '22P05', 'MULE_INTERNAL: other answers are an error of the row');
is($node->safe_psql('mule', "SET client_encoding = 'SQL_ASCII'; SELECT sqlstate FROM dsv3_try_generate(E'\\x92\\xc6\\xfc')"),
	'22P05', 'MULE_INTERNAL: other prompts too');
is($node->safe_psql('mule', 'SELECT state FROM dsv3_health()'), 'ready', 'MULE_INTERNAL: health');

# ---- U+0000, which neither text nor jsonb can hold ----

my $zero = q([{"role": "user", "content": "/bytes 410042"}]);
query_fails($node, "SELECT dsv3_chat('$zero')", '22P05', qr/answer has the character U\+0000/, 'another seed', 'in a message');
is($node->safe_psql('postgres', qq(SELECT dsv3_chat('$zero', options => '{"on_error": "null"}') IS NULL)), 't', 'in a message, as NULL');
is($node->safe_psql('postgres', q(SELECT dsv3_chat('[{"role": "user", "content": "/bytes 5c7530303030"}]') ->> 'content')), '\u0000', 'its escape as text is text');
is($node->safe_psql('postgres', q(SELECT ok, sqlstate, logprobs IS NULL FROM dsv3_try_generate('/bytes 00', options => '{"logprobs": 20}'))),
	'f|22P05|t', 'in a text with log probabilities');
query_fails($node, "SELECT dsv3_detokenize('{65,0}')", '22P05', qr/U\+0000/, 'Leave out the tokens', 'in tokens');

# ---- options count as input ----

my $stop = "jsonb_build_object('stop', repeat('s', 2000))";
is($node->safe_psql('postgres', "SET dsv3.max_input_bytes = 3000; SELECT dsv3_generate('x', options => $stop)"), 'X', 'options within dsv3.max_input_bytes');
query_fails($node, "SET dsv3.max_input_bytes = 1000; SELECT dsv3_generate('x', options => $stop)", '54000', qr/options of \d+ bytes are longer/, 'dsv3\.max_input_bytes', 'and longer');
query_fails($node, "SELECT dsv3_generate('x', options => jsonb_build_object(repeat('k', 100000), 1))", '22023', qr/unrecognized option "k{64}\.\.\."/, 'Valid options are', 'a very long key is shown in part');

done_testing();
