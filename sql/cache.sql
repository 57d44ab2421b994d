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
SELECT cached_tokens > 0 AS counted FROM dsv3_stat_engine;

DROP FUNCTION cached;
REVOKE ALL ON FUNCTION dsv3_try_generate(text, text, text, int, float8, bigint, jsonb) FROM dsv3_test_cache;
DROP ROLE dsv3_test_cache;
