-- contract.sql
--	The public contract as the catalogue holds it: every object, its signature, its attributes, its grants, its comment. A
--	function that is added without a line here fails the list at the end.
BEGIN;
CREATE EXTENSION IF NOT EXISTS pgtap;
CREATE EXTENSION IF NOT EXISTS dsv3;
SELECT no_plan();

SELECT has_extension('dsv3');
SELECT is((SELECT extversion FROM pg_extension WHERE extname = 'dsv3'), dsv3_version(), 'library and extension have one version');
SELECT ok(NOT (SELECT extrelocatable FROM pg_extension WHERE extname = 'dsv3'), 'not relocatable');
SELECT is(array_agg(c::regclass::text ORDER BY ltrim(c::regclass::text, '_')), ARRAY['_dsv3_job', '_dsv3_job_chunk', '_dsv3_job_error', '_dsv3_job_id_seq', 'dsv3_prompt', 'dsv3_prompt_version'], 'the tables to dump')
FROM pg_extension, unnest(extconfig) AS c WHERE extname = 'dsv3';

CREATE TEMP TABLE contract (signature text, returns text, costs_compute boolean, strict boolean, cost real);
INSERT INTO contract VALUES
	('dsv3_generate(text,text,text,integer,double precision,bigint,jsonb)', 'text', true, false, 1000000),
	('dsv3_try_generate(text,text,text,integer,double precision,bigint,jsonb)', 'record', true, false, 1000000),
	('dsv3_generate_stream(text,text,text,integer,double precision,bigint,jsonb)', 'SETOF record', true, false, 1000000),
	('dsv3_chat(jsonb,integer,double precision,bigint,jsonb)', 'jsonb', true, false, 1000000),
	('dsv3_tokenize(text)', 'integer[]', true, true, 10000),
	('dsv3_detokenize(integer[])', 'text', true, true, 10000),
	('dsv3_count_tokens(text)', 'integer', true, true, 10000),
	('dsv3_logprob(text,text)', 'double precision', true, true, 1000000),
	('dsv3_extract_json(text,jsonb,text,integer,jsonb)', 'jsonb', true, false, 1000000),
	('dsv3_try_extract_json(text,jsonb,text,integer,jsonb)', 'record', true, false, 1000000),
	('dsv3_extract(text,anyelement,text,jsonb)', 'anyelement', true, false, 1000000),
	('dsv3_check_schema(jsonb)', 'record', true, true, 10000),
	('dsv3_json_accepts(jsonb,text)', 'boolean', true, true, 10000),
	('dsv3_classify(text,text[],jsonb)', 'text', true, false, 1000000),
	('dsv3_classify_scores(text,text[],jsonb)', 'SETOF record', true, false, 1000000),
	('dsv3_is_true(text,text,jsonb)', 'boolean', true, false, 1000000),
	('dsv3_score(text,text,jsonb)', 'real', true, false, 1000000),
	('dsv3_generate_batch(text[],text,text,integer,double precision,bigint,jsonb)', 'SETOF record', true, false, 1000000),
	('dsv3_extract_json_batch(text[],jsonb,text,integer,jsonb)', 'SETOF record', true, false, 1000000),
	('dsv3_agg_step(internal,text,text)', 'internal', true, false, 1),
	('dsv3_summarize_agg_step(internal,text)', 'internal', true, false, 1),
	('dsv3_agg_final(internal)', 'text', true, false, 1000000),
	('dsv3_estimate(text,integer)', 'record', true, true, 1000000),
	('dsv3_pin_prefix(text,text,jsonb)', 'integer', true, false, 1000000),
	('dsv3_unpin_prefix(text,text,jsonb)', 'integer', true, false, 10000),
	('dsv3_cache_reset(text)', 'void', true, false, 10000),
	('dsv3_warmup()', 'bigint', true, false, 1000000),
	('dsv3_prompt_create(text,text,text,jsonb,jsonb)', 'integer', true, false, 100),
	('dsv3_prompt_drop(text,integer)', 'void', true, false, 100),
	('dsv3_prompt_grant(text,name)', 'void', true, true, 100),
	('dsv3_prompt_revoke(text,name)', 'void', true, true, 100),
	('dsv3_run(text,text,integer)', 'text', true, false, 1000000),
	('dsv3_audit_guard()', 'trigger', true, false, 1),
	('dsv3_audit_verify(timestamp with time zone,timestamp with time zone)', 'record', true, false, 1000000),
	('dsv3_audit_flush()', 'void', true, false, 1),
	('dsv3_audit_digest(text)', 'bytea', true, true, 1),
	('dsv3_audit_expire(timestamp with time zone)', 'integer', true, true, 1),
	('dsv3_replay(uuid)', 'record', true, true, 1000000),
	('dsv3_job_submit(text,text,regclass,name[],integer,jsonb)', 'bigint', true, false, 1000000),
	('dsv3_job_resume(bigint)', 'boolean', true, true, 1000000),
	('dsv3_job_retry_failed(bigint)', 'bigint', true, true, 1000000),
	('dsv3_job_run(bigint)', 'void', true, false, 1),
	('dsv3_job_cancel(bigint)', 'boolean', false, true, 1),
	('dsv3_job_pause(bigint)', 'boolean', false, true, 1),
	('dsv3_job_forget(bigint)', 'void', false, true, 1),
	('_dsv3_job_place(bigint,text)', 'record', false, true, 1),
	('dsv3_health()', 'record', false, false, 1),
	('dsv3_model_info()', 'jsonb', false, false, 1),
	('dsv3_version()', 'text', false, false, 1),
	('dsv3_activity()', 'SETOF record', false, false, 1),
	('dsv3_stat_engine()', 'record', false, false, 1),
	('dsv3_stat_latency()', 'SETOF record', false, false, 1),
	('dsv3_stat_failures()', 'SETOF record', false, false, 1),
	('dsv3_stat_roles()', 'SETOF record', false, false, 1),
	('dsv3_stat_experts()', 'SETOF record', false, false, 1),
	('dsv3_routing_html(text,text,jsonb)', 'text', true, false, 1000000),
	('dsv3_metrics_text(text)', 'text', true, true, 1),
	('dsv3_stat_reset()', 'timestamp with time zone', true, false, 1),
	('dsv3_cancel(uuid)', 'boolean', false, true, 1);

SELECT unnest(ARRAY[
       is(CASE WHEN proretset THEN 'SETOF ' ELSE '' END || format_type(prorettype, NULL), c.returns, c.signature || ' returns ' || c.returns),
       is(provolatile::text, CASE WHEN proname = 'dsv3_version' THEN 's' ELSE 'v' END, c.signature || ' is volatile'),
       is(proparallel::text, CASE WHEN proname = 'dsv3_version' THEN 's' WHEN proname LIKE 'dsv3\_prompt\_%' OR proname LIKE 'dsv3\_job\_%' OR proname = 'dsv3_estimate' THEN 'u' ELSE 'r' END, c.signature || ' is parallel restricted, or unsafe where it writes'),
       is(proisstrict, c.strict, c.signature || ' strictness'),
       is(procost, c.cost, c.signature || ' cost'),
       is(proleakproof, false, c.signature || ' is not leakproof'),
       is(prosecdef, proname IN ('dsv3_audit_verify', 'dsv3_audit_expire'), c.signature || ' runs with the rights of its caller, or not'),
       is(prosrc, ltrim(proname, '_') || '_1_0', c.signature || ' has a versioned symbol'),
       is(has_function_privilege('public', p.oid, 'EXECUTE'), NOT c.costs_compute, c.signature || ' grants'),
       isnt(obj_description(p.oid, 'pg_proc'), NULL, c.signature || ' has a comment')])
FROM contract AS c JOIN pg_proc AS p ON p.oid = c.signature::regprocedure
ORDER BY c.signature;

-- Arguments by name, with the defaults that callers rely on.
SELECT is(pg_get_function_arguments(signature::regprocedure), arguments, signature) FROM (VALUES
	('dsv3_generate(text,text,text,integer,double precision,bigint,jsonb)',
	 'prompt text, input text DEFAULT ''''::text, system text DEFAULT NULL::text, max_tokens integer DEFAULT NULL::integer, temperature double precision DEFAULT NULL::double precision, seed bigint DEFAULT NULL::bigint, options jsonb DEFAULT ''{}''::jsonb'),
	('dsv3_try_generate(text,text,text,integer,double precision,bigint,jsonb)',
	 'prompt text, input text DEFAULT ''''::text, system text DEFAULT NULL::text, max_tokens integer DEFAULT NULL::integer, temperature double precision DEFAULT NULL::double precision, seed bigint DEFAULT NULL::bigint, options jsonb DEFAULT ''{}''::jsonb, OUT ok boolean, OUT value text, OUT sqlstate text, OUT error text, OUT finish_reason text, OUT prompt_tokens integer, OUT cached_tokens integer, OUT output_tokens integer, OUT trace_id uuid, OUT logprobs jsonb'),
	('dsv3_generate_stream(text,text,text,integer,double precision,bigint,jsonb)',
	 'prompt text, input text DEFAULT ''''::text, system text DEFAULT NULL::text, max_tokens integer DEFAULT NULL::integer, temperature double precision DEFAULT NULL::double precision, seed bigint DEFAULT NULL::bigint, options jsonb DEFAULT ''{}''::jsonb, OUT seq integer, OUT delta text, OUT finish_reason text, OUT trace_id uuid'),
	('dsv3_chat(jsonb,integer,double precision,bigint,jsonb)',
	 'messages jsonb, max_tokens integer DEFAULT NULL::integer, temperature double precision DEFAULT NULL::double precision, seed bigint DEFAULT NULL::bigint, options jsonb DEFAULT ''{}''::jsonb'),
	('dsv3_tokenize(text)', 'content text'),
	('dsv3_detokenize(integer[])', 'tokens integer[]'),
	('dsv3_count_tokens(text)', 'content text'),
	('dsv3_logprob(text,text)', 'prompt text, continuation text'),
	('dsv3_extract_json(text,jsonb,text,integer,jsonb)',
	 'input text, schema jsonb, instruction text DEFAULT NULL::text, max_tokens integer DEFAULT NULL::integer, options jsonb DEFAULT ''{}''::jsonb'),
	('dsv3_try_extract_json(text,jsonb,text,integer,jsonb)',
	 'input text, schema jsonb, instruction text DEFAULT NULL::text, max_tokens integer DEFAULT NULL::integer, options jsonb DEFAULT ''{}''::jsonb, OUT ok boolean, OUT value jsonb, OUT sqlstate text, OUT error text, OUT finish_reason text, OUT prompt_tokens integer, OUT cached_tokens integer, OUT output_tokens integer, OUT trace_id uuid, OUT logprobs jsonb, OUT narrowed boolean'),
	('dsv3_extract(text,anyelement,text,jsonb)',
	 'input text, "into" anyelement, instruction text DEFAULT NULL::text, options jsonb DEFAULT ''{}''::jsonb'),
	('dsv3_check_schema(jsonb)',
	 'schema jsonb, OUT ok boolean, OUT shortest integer, OUT notices jsonb, OUT sqlstate text, OUT error text, OUT detail text, OUT hint text, OUT prompt text'),
	('dsv3_json_accepts(jsonb,text)', 'schema jsonb, document text'),
	('dsv3_classify(text,text[],jsonb)', 'input text, labels text[], options jsonb DEFAULT ''{}''::jsonb'),
	('dsv3_classify_scores(text,text[],jsonb)',
	 'input text, labels text[], options jsonb DEFAULT ''{}''::jsonb, OUT label text, OUT probability double precision'),
	('dsv3_generate_batch(text[],text,text,integer,double precision,bigint,jsonb)',
	 'inputs text[], prompt text, system text DEFAULT NULL::text, max_tokens integer DEFAULT NULL::integer, temperature double precision DEFAULT NULL::double precision, seed bigint DEFAULT NULL::bigint, options jsonb DEFAULT ''{}''::jsonb, OUT index integer, OUT ok boolean, OUT value text, OUT sqlstate text, OUT error text, OUT finish_reason text, OUT prompt_tokens integer, OUT cached_tokens integer, OUT output_tokens integer, OUT trace_id uuid, OUT logprobs jsonb'),
	('dsv3_extract_json_batch(text[],jsonb,text,integer,jsonb)',
	 'inputs text[], schema jsonb, instruction text DEFAULT NULL::text, max_tokens integer DEFAULT NULL::integer, options jsonb DEFAULT ''{}''::jsonb, OUT index integer, OUT ok boolean, OUT value jsonb, OUT sqlstate text, OUT error text, OUT finish_reason text, OUT prompt_tokens integer, OUT cached_tokens integer, OUT output_tokens integer, OUT trace_id uuid, OUT logprobs jsonb, OUT narrowed boolean'),
	('dsv3_prompt_create(text,text,text,jsonb,jsonb)',
	 'name text, template text, system text DEFAULT NULL::text, schema jsonb DEFAULT NULL::jsonb, options jsonb DEFAULT ''{}''::jsonb'),
	('dsv3_prompt_drop(text,integer)', 'name text, version integer DEFAULT NULL::integer'),
	('dsv3_prompt_grant(text,name)', 'name text, role name'),
	('dsv3_run(text,text,integer)', 'name text, input text, version integer DEFAULT NULL::integer'),
	('dsv3_estimate(text,integer)',
	 'query text, sample integer DEFAULT 20, OUT rows bigint, OUT calls bigint, OUT prompt_tokens bigint, OUT cached_tokens bigint, OUT output_tokens bigint, OUT seconds double precision, OUT sampled_calls integer, OUT exact boolean'),
	('dsv3_is_true(text,text,jsonb)', 'input text, statement text, options jsonb DEFAULT ''{}''::jsonb'),
	('dsv3_score(text,text,jsonb)', 'input text, statement text, options jsonb DEFAULT ''{}''::jsonb'),
	('dsv3_health()',
	 'OUT state text, OUT since timestamp with time zone, OUT model text, OUT digest text, OUT device text, OUT queued integer, OUT running integer, OUT oldest_wait interval, OUT restarts bigint, OUT next_start_at timestamp with time zone, OUT last_error text, OUT last_hint text, OUT last_error_at timestamp with time zone, OUT engine_pid integer, OUT supervisor_pid integer, OUT library_version text, OUT engine_version text, OUT protocol_version integer'),
	('dsv3_job_submit(text,text,regclass,name[],integer,jsonb)',
	 'query text, call text, target regclass, key name[], chunk integer DEFAULT 256, options jsonb DEFAULT ''{}''::jsonb'),
	('dsv3_job_run(bigint)', 'IN id bigint'),
	('dsv3_cancel(uuid)', 'trace_id uuid')) AS v (signature, arguments);

-- Aggregates: both have one final function, which does not change the state.
SELECT unnest(ARRAY[
       is(a.aggfinalfn::text, 'dsv3_agg_final', name || ' has its final function'),
       is(a.aggfinalmodify::text, 'r', name || ' leaves its state as it is'),
       ok(NOT has_function_privilege('public', name, 'EXECUTE'), name || ' is granted to nobody'),
       isnt(obj_description(name::regprocedure, 'pg_proc'), NULL, name || ' has a comment')])
FROM unnest(ARRAY['dsv3_agg(text,text)', 'dsv3_summarize_agg(text)']) AS n (name) JOIN pg_aggregate AS a ON a.aggfnoid = name::regprocedure;

-- Views: columns, grants, comments.
SELECT unnest(ARRAY[
       has_view('public', name, name || ' is a view'),
       ok(has_table_privilege('public', 'public.' || name, 'SELECT'), name || ' is readable by all'),
       isnt(obj_description(('public.' || name)::regclass, 'pg_class'), NULL, name || ' has a comment')])
FROM (VALUES ('dsv3_activity'::name), ('dsv3_stat_engine'), ('dsv3_stat_experts'), ('dsv3_stat_failures'), ('dsv3_stat_latency'), ('dsv3_stat_roles'), ('dsv3_prompts'), ('dsv3_jobs'), ('dsv3_job_progress'), ('dsv3_job_errors')) AS v (name);
SELECT columns_are('public', 'dsv3_prompts', ARRAY['name', 'version', 'owner', 'readers', 'template', 'system', 'schema', 'options', 'created_at']);
SELECT ok(NOT has_table_privilege('public', 'public.dsv3_prompt', 'SELECT'), 'the table of prompts is private');
SELECT ok(NOT has_table_privilege('public', 'public.dsv3_prompt_version', 'SELECT'), 'the table of their versions is private');
SELECT columns_are('public', 'dsv3_jobs', ARRAY['id', 'role', 'state', 'waiting_for', 'query', 'call', 'target', 'key', 'write', 'priority', 'chunk',
	'pid', 'submitted_at', 'started_at', 'finished_at', 'sqlstate', 'error', 'detail', 'hint']);
SELECT columns_are('public', 'dsv3_job_progress', ARRAY['id', 'state', 'total', 'done', 'failed', 'skipped', 'prompt_tokens', 'cached_tokens', 'output_tokens',
	'worked', 'rows_per_second', 'remaining']);
SELECT columns_are('public', 'dsv3_job_errors', ARRAY['job', 'key', 'sqlstate', 'message', 'detail', 'hint', 'at']);
SELECT ok(NOT has_table_privilege('public', c.oid, 'SELECT'), relname || ' is nobody''s') FROM pg_class AS c WHERE relname LIKE '\_dsv3\_job%' AND relkind = 'r';
SELECT columns_are('public', 'dsv3_activity', ARRAY['trace_id', 'pid', 'role', 'database', 'kind', 'state', 'priority', 'prompt', 'prompt_tokens',
	'output_tokens', 'attempts', 'submitted_at', 'started_at', 'first_token_at', 'traceparent']);
SELECT columns_are('public', 'dsv3_stat_engine', ARRAY['requests', 'completed', 'failed', 'cancelled', 'refused', 'nulled', 'resubmitted', 'prompt_tokens',
	'cached_tokens', 'output_tokens', 'restarts', 'queue_size', 'memory_bytes', 'memory_free_bytes', 'engine', 'stats_since']);

-- The audit log: what callers rely on, and who may read it.
SELECT columns_are('public', 'dsv3_audit_log', ARRAY['seq', 'logged_at', 'request_id', 'trace_id', 'traceparent', 'started_at', 'database', 'session_role',
	'role', 'role_oid', 'application', 'client', 'pid', 'query_id', 'xid', 'function', 'prompt_name', 'prompt_version', 'model', 'model_digest', 'engine', 'hash_kind',
	'input_hash', 'prompt_hash', 'schema_hash', 'request_hash', 'params', 'seed', 'prompt_tokens', 'cached_tokens', 'output_tokens', 'output_hash', 'status', 'sqlstate',
	'finish_reason', 'queue_ms', 'prefill_ms', 'decode_ms', 'total_ms', 'experts_digest', 'request', 'input', 'output', 'prev_hash', 'row_hash']);
SELECT col_type_is('public', 'dsv3_audit_log', 'trace_id', 'uuid', 'trace_id');
SELECT col_type_is('public', 'dsv3_audit_log', 'input_hash', 'bytea', 'input_hash');
SELECT ok(relrowsecurity, 'rows of the audit log are by role') FROM pg_class WHERE oid = 'dsv3_audit_log'::regclass;
SELECT is(has_table_privilege('public', 'public.' || name, 'SELECT'), name = 'dsv3_audit_log', name || ' grants')
FROM unnest(ARRAY['dsv3_audit_log', 'dsv3_audit_open', 'dsv3_audit_head', 'dsv3_audit_checkpoint']) AS name;
SELECT is(has_table_privilege('public', 'public.dsv3_audit_log', privilege), false, 'dsv3_audit_log: no ' || privilege)
FROM unnest(ARRAY['INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'TRIGGER']) AS privilege;

-- Nothing else belongs to the extension.
SELECT set_eq(
	$$ SELECT p.oid::regprocedure::text FROM pg_depend AS d JOIN pg_proc AS p ON p.oid = d.objid
	   WHERE d.classid = 'pg_proc'::regclass AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
	     AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'dsv3') $$,
	$$ SELECT signature FROM contract UNION ALL VALUES ('dsv3_agg(text,text)'), ('dsv3_summarize_agg(text)') $$, 'the functions of the extension are these');
SELECT set_eq(
	$$ SELECT c.relname::text FROM pg_depend AS d JOIN pg_class AS c ON c.oid = d.objid
	   WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
	     AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'dsv3') AND NOT c.relispartition $$,
	ARRAY['dsv3_audit_log', 'dsv3_audit_open', 'dsv3_audit_head', 'dsv3_audit_checkpoint', 'dsv3_activity', 'dsv3_prompt', 'dsv3_prompt_version', 'dsv3_prompts', 'dsv3_stat_engine', 'dsv3_stat_experts', 'dsv3_stat_failures',
	 'dsv3_stat_kv_cache', 'dsv3_stat_latency', 'dsv3_stat_roles',
	 'dsv3_jobs', 'dsv3_job_progress', 'dsv3_job_errors', '_dsv3_job', '_dsv3_job_chunk', '_dsv3_job_error', '_dsv3_job_id_seq'], 'the relations of the extension are these');

-- Settings: each has a description, the context that the documentation says, and nothing that is a path can be set or
-- read by everyone.
SELECT set_eq(
	$$ SELECT name, context FROM pg_settings WHERE name LIKE 'dsv3.%' $$,
	$$ VALUES ('dsv3.device', 'postmaster'), ('dsv3.draft_input', 'postmaster'), ('dsv3.speculative', 'postmaster'), ('dsv3.engine_path', 'postmaster'), ('dsv3.kv_cache_dir', 'postmaster'),
	          ('dsv3.kv_cache_disk_size', 'postmaster'), ('dsv3.kv_cache_size', 'postmaster'), ('dsv3.kv_cache_type', 'postmaster'),
	          ('dsv3.model_path', 'postmaster'), ('dsv3.queue_size', 'postmaster'), ('dsv3.shared_memory', 'postmaster'),
	          ('dsv3.threads', 'postmaster'), ('dsv3.weights', 'postmaster'), ('dsv3.engine_oom_score_adj', 'sighup'),
	          ('dsv3.engine_restart_delay', 'sighup'), ('dsv3.engine_restart_delay_max', 'sighup'), ('dsv3.engine_start_limit', 'sighup'),
	          ('dsv3.engine_watchdog', 'sighup'), ('dsv3.max_job_workers', 'sighup'), ('dsv3.request_retries', 'sighup'), ('dsv3.max_calls_per_query', 'superuser'), ('dsv3.max_input_bytes', 'superuser'),
	          ('dsv3.audit', 'superuser'), ('dsv3.audit_sync', 'superuser'), ('dsv3.audit_hash', 'superuser'), ('dsv3.audit_key_file', 'sighup'),
	          ('dsv3.max_output_tokens', 'superuser'), ('dsv3.max_tokens_per_query', 'superuser'),
	          ('dsv3.role_max_requests', 'superuser'), ('dsv3.role_priority', 'superuser'), ('dsv3.role_tokens_per_day', 'superuser'), ('dsv3.role_tokens_per_minute', 'superuser'),
	          ('dsv3.batch_window', 'user'), ('dsv3.batching', 'user'), ('dsv3.dedup', 'user'), ('dsv3.max_tokens', 'user'), ('dsv3.on_error', 'user'), ('dsv3.priority', 'user'),
	          ('dsv3.seed', 'user'), ('dsv3.start_timeout', 'user'), ('dsv3.temperature', 'user'), ('dsv3.timeout', 'user'),
	          ('dsv3.traceparent', 'user') $$, 'the settings are these');
SELECT is_empty($$ SELECT name FROM pg_settings WHERE name LIKE 'dsv3.%' AND short_desc IS NULL $$, 'every setting has a description');
SELECT throws_ok('SET dsv3.no_such_setting = 1', '42602', NULL, 'the prefix is reserved') WHERE current_setting('server_version_num')::int >= 150000;

SELECT * FROM finish();
ROLLBACK;
