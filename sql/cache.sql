-- Beginnings of prompts that are computed once: who finds them, and that answers are the same.
CREATE ROLE dsv3_test_cache;
GRANT EXECUTE ON FUNCTION dsv3_try_generate(text, text, text, int, float8, bigint, jsonb) TO dsv3_test_cache;
SELECT repeat('a long instruction ', 10) AS instruction \gset

CREATE FUNCTION cached(prompt text, input text, options jsonb DEFAULT '{}') RETURNS text LANGUAGE sql AS
$$ SELECT cached_tokens || ' ' || value FROM dsv3_try_generate(prompt, input, max_tokens => 4, options => options) $$;

-- The first computes it, the others find 6 blocks of 32 tokens.
SELECT cached(:'instruction', 'one');
SELECT cached(:'instruction', 'two');
SELECT cached(:'instruction', 'two', '{"cache_scope": "role"}');
-- Not asked for, nothing found, nothing left behind.
SELECT cached(:'instruction', 'two', '{"cache_scope": "none"}');
-- Another scope, another cache.
SELECT cached(:'instruction', 'two', '{"cache_scope": "database"}');
SELECT cached(:'instruction', 'two', '{"cache_scope": "database"}');
SELECT dsv3_generate('x', options => '{"cache_scope": "everybody"}');
-- Another role: what role postgres asked is not to be found, what was asked in the database's name is.
SET ROLE dsv3_test_cache;
SELECT cached(:'instruction', 'two');
SELECT cached(:'instruction', 'two');
SELECT cached(:'instruction', 'two', '{"cache_scope": "database"}');
RESET ROLE;

-- Pinned: the whole blocks of the beginning that all inputs share. Once more is once more to undo.
SELECT dsv3_pin_prefix('another ' || :'instruction');
SELECT cached('another ' || :'instruction', 'one');
SELECT dsv3_pin_prefix('another ' || :'instruction'), dsv3_unpin_prefix('another ' || :'instruction'), dsv3_unpin_prefix('another ' || :'instruction'),
       dsv3_unpin_prefix('another ' || :'instruction') AS nothing_left;
SELECT dsv3_pin_prefix('too short to be shared'), dsv3_pin_prefix(NULL), dsv3_pin_prefix(:'instruction', 'a system message that is longer than a block is');
SELECT dsv3_pin_prefix('x', options => '{"cache_scope": "none"}');
SELECT dsv3_pin_prefix('x', options => '{"seed": 1}');
-- Thrown away.
SELECT cached(:'instruction', 'one'), dsv3_cache_reset('memory'), cached(:'instruction', 'one');
SELECT cached(:'instruction', 'one'), dsv3_cache_reset(), cached(:'instruction', 'one');
SELECT cached(:'instruction', 'one'), dsv3_cache_reset(NULL), cached(:'instruction', 'one');
SELECT dsv3_cache_reset('disk');
SELECT dsv3_warmup();
SELECT count(*) FROM dsv3_stat_kv_cache;
SELECT cached_tokens > 0 AS counted FROM dsv3_stat_engine;

DROP FUNCTION cached;
REVOKE ALL ON FUNCTION dsv3_try_generate(text, text, text, int, float8, bigint, jsonb) FROM dsv3_test_cache;
DROP ROLE dsv3_test_cache;
