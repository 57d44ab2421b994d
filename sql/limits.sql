-- What one query may cost, and a role.

-- What was left is ended by the supervisor, in its own time.
CREATE FUNCTION none_left() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 3000 LOOP
		IF NOT EXISTS (SELECT FROM dsv3_activity) THEN
			RETURN true;
		END IF;
		PERFORM pg_sleep(0.01);
	END LOOP;
	RETURN false;
END
$$;

CREATE TEMP TABLE docs AS SELECT i AS id, 'text ' || i AS body FROM generate_series(1, 20) AS i;
CREATE TEMP TABLE before AS SELECT requests FROM dsv3_stat_engine;
CREATE FUNCTION requests() RETURNS bigint LANGUAGE sql AS $$
	WITH taken AS (UPDATE before AS b SET requests = s.requests FROM dsv3_stat_engine AS s RETURNING s.requests - (SELECT requests FROM before) AS n)
	SELECT n FROM taken;
$$;

-- Calls: so many, and none more is made; whatever makes them.
SET dsv3.max_calls_per_query = 5;
SELECT count(*) FROM (SELECT dsv3_generate(body) FROM docs WHERE id <= 5 OFFSET 0) AS s;
SELECT requests();
SELECT count(dsv3_generate(body)) FROM docs;
\echo :LAST_ERROR_SQLSTATE
SELECT requests();
SET dsv3.batching = off;
SELECT count(dsv3_generate(body)) FROM docs;
RESET dsv3.batching;
SELECT requests();
SELECT count(*) FROM dsv3_generate_batch(ARRAY(SELECT body FROM docs), 'say');
SELECT requests();
SELECT (SELECT count(*) FROM (SELECT dsv3_generate_stream('/count 3') OFFSET 0) AS s) FROM docs WHERE dsv3_generate(body) IS NOT NULL;
SELECT requests();
-- Rows that are read ahead do not meet it, nor duplicates, nor what does not run the model.
SELECT id, dsv3_generate(body) FROM docs ORDER BY id LIMIT 5;
SELECT count(dsv3_generate('same')), sum(dsv3_count_tokens(body)) FROM docs;
-- Nor is on_error a way around it.
SET dsv3.on_error = 'null';
SELECT count(dsv3_generate(body)) FROM docs;
SELECT count(*) FROM docs, LATERAL dsv3_try_generate(body);
RESET dsv3.on_error;
-- Functions, blocks and cursors are one query each; the next one begins anew.
CREATE FUNCTION ask(n int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. n LOOP
		PERFORM dsv3_generate('one ' || i);
	END LOOP;
END
$$;
SELECT ask(5);
SELECT ask(6);
DO $$ BEGIN PERFORM ask(3); PERFORM ask(3); END $$;
DO $$ DECLARE t text; BEGIN FOR i IN 1 .. 6 LOOP t := dsv3_generate('two ' || i); END LOOP; END $$;
DO $$ BEGIN PERFORM ask(3); END $$;
BEGIN;
DECLARE c CURSOR FOR SELECT id, dsv3_generate(body) FROM docs;
FETCH 3 FROM c;
SELECT ask(5);
FETCH 2 FROM c;
FETCH 1 FROM c;
ROLLBACK;
EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT dsv3_generate(body) FROM docs;
PREPARE p AS SELECT count(dsv3_generate(body)) FROM docs WHERE id <= $1;
EXECUTE p (5);
EXECUTE p (6);
DEALLOCATE p;
RESET dsv3.max_calls_per_query;

-- Tokens: the call that is next is made while fewer than that have been used. "text 1" is 6 of a prompt, with 3 of the template, and 7 of an answer.
SELECT prompt_tokens, output_tokens FROM dsv3_try_generate('text 1');
SET dsv3.max_tokens_per_query = 32;
SELECT count(dsv3_generate(body)) FROM docs WHERE id <= 2;
SELECT count(dsv3_generate(body)) FROM docs WHERE id <= 3;
\echo :LAST_ERROR_SQLSTATE
SELECT requests() > 0;
SELECT id, dsv3_generate(body) FROM docs ORDER BY id LIMIT 2;
RESET dsv3.max_tokens_per_query;

SELECT current_user AS administrator \gset

-- These are the administrator's, and a role's come with its session.
CREATE ROLE dsv3_test_limited LOGIN;
GRANT EXECUTE ON FUNCTION dsv3_generate(text, text, text, int, float8, bigint, jsonb),
	dsv3_generate_stream(text, text, text, int, float8, bigint, jsonb) TO dsv3_test_limited;
SET ROLE dsv3_test_limited;
SET dsv3.max_calls_per_query = 100;
SET dsv3.max_tokens_per_query = 100;
SET dsv3.role_tokens_per_minute = 0;
SET dsv3.role_tokens_per_day = 0;
SET dsv3.role_max_requests = 0;
SET dsv3.role_priority = 'interactive';
RESET ROLE;

-- Tokens of a day. A minute's are counted alike.
ALTER ROLE dsv3_test_limited SET dsv3.role_tokens_per_day = 32;
\c - dsv3_test_limited
SELECT dsv3_generate('text 1');
\c - dsv3_test_limited
SELECT dsv3_generate('text 2');
\set VERBOSITY terse
SELECT dsv3_generate('text 3');
\c - :administrator
ALTER ROLE dsv3_test_limited RESET dsv3.role_tokens_per_day;
ALTER ROLE dsv3_test_limited SET dsv3.role_tokens_per_minute = 33;
\c - dsv3_test_limited
SELECT dsv3_generate('text 3');
SELECT dsv3_generate('text 3');
\set VERBOSITY default

-- Requests at one time, and their class.
\c - :administrator
ALTER ROLE dsv3_test_limited RESET dsv3.role_tokens_per_minute;
ALTER ROLE dsv3_test_limited SET dsv3.role_max_requests = 1;
ALTER ROLE dsv3_test_limited SET dsv3.role_priority = 'batch';
\c - dsv3_test_limited
BEGIN;
DECLARE c CURSOR FOR SELECT (s).delta FROM (SELECT dsv3_generate_stream('/forever', max_tokens => 4000, options => '{"priority": "interactive"}') AS s OFFSET 0) AS t;
FETCH 1 FROM c;
SELECT priority FROM dsv3_activity;
SAVEPOINT s;
SELECT dsv3_generate('another');
ROLLBACK TO s;
CLOSE c;
COMMIT;
SELECT none_left();
SELECT count(*) FROM (SELECT dsv3_generate('row ' || i) FROM generate_series(1, 20) AS i OFFSET 0) AS s;

\c - :administrator
REVOKE ALL ON FUNCTION dsv3_generate(text, text, text, int, float8, bigint, jsonb),
	dsv3_generate_stream(text, text, text, int, float8, bigint, jsonb) FROM dsv3_test_limited;
DROP ROLE dsv3_test_limited;
DROP FUNCTION ask(int), requests(), none_left();
