-- What each function answers. The model is the engine's built-in test model: it answers in upper case.
CREATE EXTENSION dsv3;

SELECT dsv3_generate('hello world');
SELECT dsv3_generate(prompt => 'Summarise:', input => 'the data');

-- Instruction first, then the data; the system text and the roles around them.
SELECT dsv3_generate('/prompt', 'data', 'be brief');

-- A special token's spelling in a text is text: five bytes, not one token.
SELECT dsv3_generate('a<eos>b'), dsv3_count_tokens('<eos>');

-- Every kind of text comes back as it went.
SELECT dsv3_generate('/think ' || t) FROM (VALUES ('Grüße'), ('日本語'), ('🐘🐘'), (E'tab\tline\nend'), ('e' || U&'\0301')) AS v (t);

-- max_tokens, with its default from the setting.
SELECT length(dsv3_generate('/forever', max_tokens => 7));
SET dsv3.max_tokens = 9;
SELECT length(dsv3_generate('/forever'));
RESET dsv3.max_tokens;

-- Sampling: the same seed gives the same text, another seed another; zero is greedy.
SELECT dsv3_generate('/forever', max_tokens => 200, temperature => 2, seed => 7) =
       dsv3_generate('/forever', max_tokens => 200, temperature => 2, seed => 7) AS same,
       dsv3_generate('/forever', max_tokens => 200, temperature => 2, seed => 7) =
       dsv3_generate('/forever', max_tokens => 200, temperature => 2, seed => 8) AS other,
       dsv3_generate('/forever', max_tokens => 200, seed => 7) =
       dsv3_generate('/forever', max_tokens => 200, seed => 8) AS greedy;
SET dsv3.temperature = 2;
SET dsv3.seed = 7;
SELECT dsv3_generate('/forever', max_tokens => 200) =
       dsv3_generate('/forever', max_tokens => 200, temperature => 2, seed => 7) AS same,
       dsv3_generate('/forever', max_tokens => 200) = dsv3_generate('/forever', max_tokens => 200, seed => 8) AS other;
RESET dsv3.temperature;
RESET dsv3.seed;

-- The form that returns failures, and what it tells of a success.
SELECT ok, value, sqlstate, error, finish_reason, prompt_tokens, cached_tokens, output_tokens, trace_id IS NOT NULL AS traced,
       logprobs
FROM dsv3_try_generate('abc');
SELECT ok, length(value), finish_reason, output_tokens FROM dsv3_try_generate('/forever', max_tokens => 5);
SELECT jsonb_array_length(logprobs), logprobs -> 0 ->> 'token', jsonb_array_length(logprobs -> 0 -> 'top_logprobs')
FROM dsv3_try_generate('abc', options => '{"logprobs": 3}');

-- Tokens.
SELECT dsv3_tokenize('abc'), dsv3_tokenize(''), dsv3_tokenize('é');
SELECT dsv3_detokenize('{97,98,99}'), dsv3_detokenize('{}') = '', dsv3_detokenize(dsv3_tokenize('日本語'));
SELECT dsv3_count_tokens('hello'), dsv3_count_tokens(''), dsv3_count_tokens(repeat('x', 100000));
SELECT dsv3_logprob('a', 'b') < 0 AS less_than_one, dsv3_logprob('a', '') AS nothing;
-- Without a template: the test model goes on from a to b, and answers a message "a" with A.
SELECT dsv3_logprob('a', 'b') > dsv3_logprob('a', 'A') AS continued;

-- State.
SELECT state, left(model, 5) AS model, queued, running, oldest_wait, restarts, last_error, engine_pid IS NOT NULL AS has_engine, supervisor_pid <> engine_pid AS has_supervisor, library_version,
       engine_version, protocol_version
FROM dsv3_health();
SELECT dsv3_version() = (SELECT extversion FROM pg_extension WHERE extname = 'dsv3') AS same_version;
SELECT left(dsv3_model_info() ->> 'name', 5) AS name, dsv3_model_info() ->> 'context' AS context;
SELECT requests > 30 AS requests, requests = completed AS all_completed, failed, cancelled, memory_bytes = memory_free_bytes AS all_free
FROM dsv3_stat_engine;
SELECT * FROM dsv3_activity;

-- A parallel worker may call it too, inside a function that is declared safe by its owner.
CREATE FUNCTION ask(text) RETURNS text LANGUAGE plpgsql PARALLEL SAFE AS $$
BEGIN
	RETURN dsv3_generate($1) || CASE WHEN pg_backend_pid() = current_setting('dsv3_test.leader')::int THEN ' by the leader' ELSE '' END;
END
$$;
SELECT set_config('dsv3_test.leader', pg_backend_pid()::text, false) IS NOT NULL AS set;
CREATE TABLE questions AS SELECT 'question ' || i AS q FROM generate_series(1, 5) AS i;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET max_parallel_workers_per_gather = 2;
SET parallel_leader_participation = off;
ALTER TABLE questions SET (parallel_workers = 2);
SELECT string_agg(a, ', ' ORDER BY a) FROM (SELECT ask(q) AS a FROM questions OFFSET 0) AS s;
RESET parallel_setup_cost;
RESET parallel_tuple_cost;
RESET min_parallel_table_scan_size;
RESET max_parallel_workers_per_gather;
RESET parallel_leader_participation;
DROP TABLE questions;
DROP FUNCTION ask(text);
