-- access.sql
--	Who may call what: each call is tried as each kind of role that docs/access.md describes. A call that is not allowed must fail for want of
--	privileges (42501), one that is must not fail for that.
BEGIN;
CREATE EXTENSION IF NOT EXISTS pgtap;
CREATE EXTENSION IF NOT EXISTS dsv3;
SELECT no_plan();

CREATE ROLE dsv3_test_stranger;
CREATE ROLE dsv3_test_user;
CREATE ROLE dsv3_test_batch IN ROLE dsv3_test_user;
CREATE ROLE dsv3_test_auditor IN ROLE pg_read_all_stats;
CREATE ROLE dsv3_test_admin IN ROLE pg_monitor, pg_signal_backend;
GRANT EXECUTE ON FUNCTION dsv3_generate(text, text, text, int, float8, bigint, jsonb), dsv3_try_generate(text, text, text, int, float8, bigint, jsonb),
	dsv3_generate_stream(text, text, text, int, float8, bigint, jsonb), dsv3_generate_batch(text[], text, text, int, float8, bigint, jsonb),
	dsv3_chat(jsonb, int, float8, bigint, jsonb), dsv3_tokenize(text), dsv3_detokenize(int[]), dsv3_count_tokens(text), dsv3_logprob(text, text),
	dsv3_extract_json(text, jsonb, text, int, jsonb), dsv3_try_extract_json(text, jsonb, text, int, jsonb),
	dsv3_extract_json_batch(text[], jsonb, text, int, jsonb), dsv3_extract(text, anyelement, text, jsonb), dsv3_check_schema(jsonb),
	dsv3_json_accepts(jsonb, text), dsv3_classify(text, text[], jsonb), dsv3_classify_scores(text, text[], jsonb), dsv3_is_true(text, text, jsonb),
	dsv3_score(text, text, jsonb), dsv3_agg(text, text), dsv3_summarize_agg(text), dsv3_estimate(text, int),
	dsv3_pin_prefix(text, text, jsonb), dsv3_unpin_prefix(text, text, jsonb), dsv3_run(text, text, int),
	dsv3_routing_html(text, text, jsonb) TO dsv3_test_user;
GRANT EXECUTE ON FUNCTION dsv3_job_submit(text, text, regclass, name[], int, jsonb), dsv3_job_resume(bigint), dsv3_job_retry_failed(bigint) TO dsv3_test_batch;
GRANT EXECUTE ON FUNCTION dsv3_cache_reset(text), dsv3_warmup(), dsv3_stat_reset(),
	dsv3_prompt_create(text, text, text, jsonb, jsonb), dsv3_prompt_drop(text, int), dsv3_prompt_grant(text, name),
	dsv3_prompt_revoke(text, name) TO dsv3_test_admin;

-- s, u, b, a, d: stranger, user, batch, auditor, admin.
CREATE TEMP TABLE tried (call text, allowed text);
INSERT INTO tried VALUES
	($$dsv3_generate('x', max_tokens => 1)$$, 'ub'), ($$dsv3_try_generate('x', max_tokens => 1)$$, 'ub'),
	($$dsv3_generate_stream('x', max_tokens => 1)$$, 'ub'), ($$dsv3_generate_batch('{x}', 'y', max_tokens => 1)$$, 'ub'),
	($$dsv3_chat('[{"role": "user", "content": "x"}]', max_tokens => 1)$$, 'ub'),
	($$dsv3_tokenize('x')$$, 'ub'), ($$dsv3_detokenize('{65}')$$, 'ub'), ($$dsv3_count_tokens('x')$$, 'ub'), ($$dsv3_logprob('x', 'y')$$, 'ub'),
	($$dsv3_extract_json('x', '{"type": "null"}')$$, 'ub'), ($$dsv3_try_extract_json('x', '{"type": "null"}')$$, 'ub'),
	($$dsv3_extract_json_batch('{x}', '{"type": "null"}')$$, 'ub'), ($$dsv3_check_schema('{}')$$, 'ub'), ($$dsv3_json_accepts('{}', '1')$$, 'ub'),
	($$dsv3_classify('x', '{a,b}')$$, 'ub'), ($$dsv3_classify_scores('x', '{a,b}')$$, 'ub'), ($$dsv3_is_true('x', 'y')$$, 'ub'),
	($$dsv3_score('x', 'y')$$, 'ub'), ($$dsv3_summarize_agg('x')$$, 'ub'), ($$dsv3_agg('x', 'y')$$, 'ub'), ($$dsv3_estimate('SELECT 1')$$, 'ub'),
	($$dsv3_routing_html('x')$$, 'ub'), ($$dsv3_pin_prefix('x')$$, 'ub'), ($$dsv3_unpin_prefix('x')$$, 'ub'), ($$dsv3_run('no such prompt', 'x')$$, 'ub'),
	($$dsv3_cache_reset('memory')$$, 'd'), ($$dsv3_warmup()$$, 'd'), ($$dsv3_stat_reset()$$, 'd'),
	($$dsv3_prompt_create('dsv3_test_prompt', '{input}')$$, 'd'), ($$dsv3_prompt_grant('dsv3_test_prompt', 'dsv3_test_user')$$, 'd'),
	($$dsv3_prompt_revoke('dsv3_test_prompt', 'dsv3_test_user')$$, 'd'), ($$dsv3_prompt_drop('dsv3_test_prompt')$$, 'd'),
	($$dsv3_metrics_text()$$, 'd'),
	($$dsv3_job_submit(NULL, NULL, NULL, NULL)$$, 'b'), ($$dsv3_job_resume(0)$$, 'b'), ($$dsv3_job_retry_failed(0)$$, 'b'),
	($$dsv3_job_pause(0)$$, 'subad'), ($$dsv3_job_cancel(0)$$, 'subad'), ($$dsv3_job_forget(0)$$, 'subad'),
	($$count(*) FROM dsv3_jobs$$, 'subad'), ($$count(*) FROM dsv3_job_progress$$, 'subad'), ($$count(*) FROM dsv3_job_errors$$, 'subad'),
	($$count(*) FROM _dsv3_job$$, ''), ($$count(*) FROM _dsv3_job_chunk$$, ''), ($$count(*) FROM _dsv3_job_error$$, ''),
	($$dsv3_health()$$, 'subad'), ($$dsv3_model_info()$$, 'subad'), ($$dsv3_version()$$, 'subad'),
	($$dsv3_cancel('00000000-0000-4000-8000-000000000000')$$, 'subad'),
	($$count(*) FROM dsv3_activity$$, 'subad'), ($$count(*) FROM dsv3_stat_engine$$, 'subad'), ($$count(*) FROM dsv3_stat_latency$$, 'subad'),
	($$count(*) FROM dsv3_stat_failures$$, 'subad'), ($$count(*) FROM dsv3_stat_roles$$, 'subad'), ($$count(*) FROM dsv3_stat_experts$$, 'subad'),
	($$count(*) FROM dsv3_stat_kv_cache$$, 'subad'), ($$count(*) FROM dsv3_prompts$$, 'subad'),
	($$count(*) FROM dsv3_prompt$$, ''), ($$count(*) FROM dsv3_prompt_version$$, ''),
	($$set_config('dsv3.max_output_tokens', '100000', true)$$, ''), ($$set_config('dsv3.role_priority', 'interactive', true)$$, ''),
	($$set_config('dsv3.role_tokens_per_day', '0', true)$$, ''), ($$current_setting('dsv3.model_path')$$, 'd');

-- What became of a call: NULL, or its SQLSTATE.
CREATE FUNCTION pg_temp.try_call(who text, call text) RETURNS text LANGUAGE plpgsql AS $f$
DECLARE
	state text;
BEGIN
	BEGIN
		PERFORM set_config('role', who, true);
		EXECUTE 'SELECT ' || call;
	EXCEPTION WHEN OTHERS THEN
		state := SQLSTATE;
	END;
	PERFORM set_config('role', 'none', true);
	RETURN state;
END
$f$;

SELECT CASE WHEN strpos(t.allowed, r.letter) > 0
            THEN isnt(pg_temp.try_call(r.name, t.call), '42501', r.name || ' may ' || t.call)
            ELSE is(pg_temp.try_call(r.name, t.call), '42501', r.name || ' may not ' || t.call) END
FROM tried AS t, (VALUES ('s', 'dsv3_test_stranger'), ('u', 'dsv3_test_user'), ('b', 'dsv3_test_batch'), ('a', 'dsv3_test_auditor'), ('d', 'dsv3_test_admin')) AS r (letter, name);

-- Rows (after a reset was among the calls): of roles one sees one's own, the auditor and the admin see all.
SELECT is(pg_temp.try_call(name, $$dsv3_count_tokens('x')$$), NULL) FROM (VALUES ('dsv3_test_user'), ('dsv3_test_batch')) AS r (name);
SELECT set_config('role', 'dsv3_test_user', true);
SELECT is((SELECT count(DISTINCT role) FROM dsv3_stat_roles WHERE role <> 'dsv3_test_user'), 0::bigint, 'a user sees no row of another');
SELECT set_config('role', 'dsv3_test_auditor', true);
SELECT cmp_ok((SELECT count(*) FROM dsv3_stat_roles WHERE role LIKE 'dsv3_test_%'), '>=', 2::bigint, 'the auditor sees those of all');
SELECT set_config('role', 'none', true);
SELECT * FROM finish();
ROLLBACK;
