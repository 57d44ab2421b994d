-- Failures: the message, the hint, the SQLSTATE; and the three ways to meet one.

-- Too long for the model's context: before, and while answering.
SELECT dsv3_generate(repeat('x', 5000));
\echo :LAST_ERROR_SQLSTATE
SELECT dsv3_generate('/forever', max_tokens => 4096);
\echo :LAST_ERROR_SQLSTATE

-- Too long for the settings.
SET dsv3.max_input_bytes = 10;
SELECT dsv3_generate('0123456789a');
\echo :LAST_ERROR_SQLSTATE
SELECT dsv3_generate('0123', '4567', '89a');
\echo :LAST_ERROR_SQLSTATE
SELECT dsv3_generate('0123', '4567', '89');
SELECT dsv3_count_tokens('0123456789a');
\echo :LAST_ERROR_SQLSTATE
SELECT dsv3_detokenize('{1,2,3}');
\echo :LAST_ERROR_SQLSTATE
RESET dsv3.max_input_bytes;

-- Not a number anywhere in the model's output.
SELECT dsv3_generate('/nan');
\echo :LAST_ERROR_SQLSTATE

-- Token ids that the model does not have.
SELECT dsv3_detokenize('{97,-1}');
\echo :LAST_ERROR_SQLSTATE
SELECT dsv3_detokenize('{97,99999}');
\echo :LAST_ERROR_SQLSTATE
SELECT dsv3_detokenize('{{1,2},{3,4}}');
\echo :LAST_ERROR_SQLSTATE
SELECT dsv3_detokenize('{1,NULL}');
\echo :LAST_ERROR_SQLSTATE

-- A character that PostgreSQL cannot hold.
SELECT dsv3_generate('/bytes 410042');
\echo :LAST_ERROR_SQLSTATE

-- Out of time.
SELECT dsv3_generate('/forever', max_tokens => 4000, options => '{"timeout_ms": 1}');
\echo :LAST_ERROR_SQLSTATE
SET dsv3.timeout = '1ms';
SELECT dsv3_generate('/forever', max_tokens => 4000);
\echo :LAST_ERROR_SQLSTATE
RESET dsv3.timeout;
SET statement_timeout = '20ms';
SELECT dsv3_generate(repeat('x', 2000));
\echo :LAST_ERROR_SQLSTATE
RESET statement_timeout;

-- As rows.
SELECT ok, value, sqlstate, error, trace_id IS NOT NULL AS traced FROM dsv3_try_generate(repeat('x', 5000));
SELECT ok, value, sqlstate, error, finish_reason, prompt_tokens, output_tokens FROM dsv3_try_generate('/forever', max_tokens => 4096);
SELECT ok, sqlstate FROM dsv3_try_generate('/bytes 00');
SELECT ok, sqlstate FROM dsv3_try_generate('/forever', max_tokens => 4000, options => '{"timeout_ms": 1}');
SET dsv3.max_input_bytes = 10;
SELECT ok, sqlstate, error, trace_id FROM dsv3_try_generate('0123456789a');
RESET dsv3.max_input_bytes;

-- As NULL, counted. One bad row does not end the statement.
CREATE TEMP TABLE before AS SELECT nulled FROM dsv3_stat_engine;
SELECT dsv3_generate(t, options => '{"on_error": "null"}') FROM (VALUES ('one'), (repeat('x', 5000)), ('two')) AS v (t);
SET dsv3.on_error = 'null';
SELECT dsv3_generate(repeat('x', 5000)), dsv3_generate(repeat('x', 5000), options => '{"on_error": null}');
SELECT dsv3_generate(repeat('x', 5000), options => '{"on_error": "error"}');
RESET dsv3.on_error;
SELECT s.nulled - b.nulled AS nulled FROM dsv3_stat_engine AS s, before AS b;

-- A failure inside a subtransaction leaves the session usable.
DO $$
BEGIN
	PERFORM dsv3_generate(repeat('x', 5000));
EXCEPTION WHEN program_limit_exceeded THEN
	RAISE NOTICE 'caught %', SQLSTATE;
END
$$;
SELECT dsv3_generate('after');

-- Nothing is left behind.
SELECT count(*) FROM dsv3_activity;
