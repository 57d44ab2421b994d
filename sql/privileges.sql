-- Who may do what.
CREATE ROLE dsv3_test_user;
CREATE ROLE dsv3_test_nobody;
CREATE ROLE dsv3_test_stats IN ROLE pg_read_all_stats;

-- Nothing that costs compute is granted to all.
SET ROLE dsv3_test_nobody;
SELECT dsv3_generate('x');
SELECT dsv3_try_generate('x');
SELECT dsv3_generate_stream('x');
SELECT dsv3_chat('[{"role": "user", "content": "x"}]');
SELECT dsv3_tokenize('x');
SELECT dsv3_detokenize('{1}');
SELECT dsv3_count_tokens('x');
SELECT dsv3_logprob('x', 'y');
SELECT dsv3_extract_json('x', '{}');
SELECT dsv3_try_extract_json('x', '{}');
SELECT dsv3_extract('x', NULL::dsv3_activity);
SELECT dsv3_check_schema('{}');
SELECT dsv3_json_accepts('{}', '1');
SELECT dsv3_classify('x', '{a}');
SELECT dsv3_classify_scores('x', '{a}');
SELECT dsv3_is_true('x', 'y');
SELECT dsv3_score('x', 'y');
SELECT * FROM dsv3_generate_batch('{x}', 'y');
SELECT * FROM dsv3_extract_json_batch('{x}', '{}');
SELECT dsv3_agg('x', 'y');
SELECT dsv3_summarize_agg('x');
SELECT dsv3_estimate('SELECT 1');
SELECT dsv3_run('code_review', 'x');
SELECT dsv3_prompt_create('p', '{input}');
SELECT dsv3_prompt_drop('code_review');
SELECT dsv3_prompt_grant('code_review', 'dsv3_test_nobody');
SELECT dsv3_prompt_revoke('code_review', 'public');
SELECT count(*) FROM dsv3_prompt;
SELECT count(*) FROM dsv3_prompt_version;
SELECT dsv3_pin_prefix('x');
SELECT dsv3_unpin_prefix('x');
SELECT dsv3_cache_reset();
SELECT dsv3_warmup();
SELECT dsv3_version() IS NOT NULL AS version, (dsv3_health()).state, dsv3_model_info() ? 'name' AS info, dsv3_model_info() ? 'path' AS path;
SELECT count(*) FROM dsv3_activity;
SELECT requests > 0 AS requests FROM dsv3_stat_engine;
SELECT count(*) FROM dsv3_stat_kv_cache;
SELECT dsv3_cancel('00000000-0000-4000-8000-000000000000');
RESET ROLE;
SELECT dsv3_model_info() ? 'path' AS path_for_superuser;

GRANT EXECUTE ON FUNCTION dsv3_generate(text, text, text, int, float8, bigint, jsonb) TO dsv3_test_user;
SET ROLE dsv3_test_user;
SELECT dsv3_generate('granted');
SELECT dsv3_chat('[]');

-- The limits are the administrator's.
SET dsv3.max_output_tokens = 100000;
SET dsv3.max_input_bytes = 1;
SET dsv3.max_tokens = 3;
SELECT dsv3_generate('/forever');
RESET dsv3.max_tokens;

-- Paths of the server are not for everyone to read. (PostgreSQL's message is not the same in all versions.)
\set VERBOSITY sqlstate
SHOW dsv3.model_path;
SHOW dsv3.engine_path;
\set VERBOSITY default
SELECT count(*) FROM pg_settings WHERE name IN ('dsv3.model_path', 'dsv3.engine_path');
RESET ROLE;

-- A function of its owner's rights: the role that is recorded is the owner.
CREATE FUNCTION whose() RETURNS TABLE (role text, prompt text) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
	c CURSOR FOR SELECT (s).delta FROM (SELECT public.dsv3_generate_stream('/forever as owner', max_tokens => 4000) AS s OFFSET 0) AS t;
	r record;
BEGIN
	OPEN c;
	FETCH c INTO r;
	RETURN QUERY SELECT a.role, a.prompt FROM public.dsv3_activity AS a;
	CLOSE c;
END
$$;
CREATE ROLE dsv3_test_definer;
GRANT CREATE ON SCHEMA public TO dsv3_test_definer;
GRANT EXECUTE ON FUNCTION dsv3_generate_stream(text, text, text, int, float8, bigint, jsonb) TO dsv3_test_definer;
ALTER FUNCTION whose() OWNER TO dsv3_test_definer;
SET ROLE dsv3_test_user;
SELECT * FROM whose();
RESET ROLE;

-- Other roles' requests: invisible; for pg_read_all_stats visible without what was asked.
BEGIN;
DECLARE c CURSOR FOR SELECT (s).delta FROM (SELECT dsv3_generate_stream('/forever secret', max_tokens => 4000) AS s OFFSET 0) AS t;
FETCH 1 FROM c;
SELECT prompt, kind, state, priority, attempts FROM dsv3_activity;
SELECT trace_id FROM dsv3_activity \gset
SET LOCAL ROLE dsv3_test_user;
SELECT * FROM dsv3_activity;
SELECT dsv3_cancel(:'trace_id') AS cancelled;
SET LOCAL ROLE dsv3_test_stats;
SELECT prompt IS NULL AS hidden, traceparent, kind FROM dsv3_activity;
SELECT dsv3_cancel(:'trace_id') AS cancelled;
RESET ROLE;
SELECT dsv3_cancel(:'trace_id') AS cancelled;
FETCH 4000 FROM c;
ROLLBACK;

DROP FUNCTION whose();
REVOKE ALL ON FUNCTION dsv3_generate(text, text, text, int, float8, bigint, jsonb) FROM dsv3_test_user;
REVOKE ALL ON FUNCTION dsv3_generate_stream(text, text, text, int, float8, bigint, jsonb) FROM dsv3_test_definer;
REVOKE CREATE ON SCHEMA public FROM dsv3_test_definer;
DROP ROLE dsv3_test_user, dsv3_test_nobody, dsv3_test_stats, dsv3_test_definer;
