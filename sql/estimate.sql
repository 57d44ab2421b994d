-- What a query would ask of the model. In the test model a byte is a token, and a message of n bytes makes a prompt of n + 3 and an answer of n + 1.

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

CREATE TEMP TABLE rows AS SELECT i AS id, 'text ' || 100000 + i AS body FROM generate_series(1, 200) AS i;
ANALYZE rows;
CREATE TEMP TABLE before AS SELECT requests FROM dsv3_stat_engine;
\set columns 'rows, calls, prompt_tokens, output_tokens, seconds > 0 AS seconds, sampled_calls, exact'
SELECT :columns FROM dsv3_estimate('SELECT id, dsv3_generate(body) FROM rows');
SELECT s.requests - b.requests AS requests FROM dsv3_stat_engine AS s, before AS b;
SELECT :columns FROM dsv3_estimate('SELECT id, dsv3_generate(body) FROM rows', 5);
-- What is complete with the sample is exact.
SELECT :columns FROM dsv3_estimate('SELECT dsv3_generate(body) FROM rows WHERE id <= 20');
SELECT :columns FROM dsv3_estimate('SELECT 1');
-- Several calls in a row, under aggregates, in conditions, below LIMIT, one by one, and within functions.
SELECT :columns FROM dsv3_estimate('SELECT dsv3_generate(body), dsv3_generate(''b'' || body) FROM rows');
SELECT :columns FROM dsv3_estimate('SELECT count(*) FROM rows WHERE dsv3_generate(body) > ''''');
SELECT :columns FROM dsv3_estimate('SELECT dsv3_generate(body) FROM rows LIMIT 50');
SELECT :columns FROM dsv3_estimate('SELECT dsv3_generate(body) FROM rows ORDER BY dsv3_generate(''b'' || body) LIMIT 50');
SET dsv3.batching = off;
SELECT :columns FROM dsv3_estimate('SELECT id, dsv3_generate(body) FROM rows');
SELECT :columns FROM dsv3_estimate('SELECT count(*) FROM rows WHERE dsv3_generate(body) > ''''');
RESET dsv3.batching;
CREATE FUNCTION twice(t text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN dsv3_generate(t) || dsv3_generate('b' || t); END $$;
SELECT :columns FROM dsv3_estimate('SELECT twice(body) FROM rows');
DROP FUNCTION twice(text);

-- Nothing is written, and errors and limits are the query's.
SELECT :columns FROM dsv3_estimate('UPDATE rows SET body = dsv3_generate(body)');
SELECT :columns FROM dsv3_estimate('WITH x AS (INSERT INTO rows VALUES (0) RETURNING 1) SELECT * FROM x');
SELECT :columns FROM dsv3_estimate('SELECT body FROM rows FOR UPDATE');
SELECT :columns FROM dsv3_estimate('SELECT calls FROM dsv3_estimate(''SELECT dsv3_generate(body) FROM rows'')');
SELECT :columns FROM dsv3_estimate('SELECT 1; SELECT 2');
SELECT :columns FROM dsv3_estimate('SELECT no_such_column FROM rows');
SELECT :columns FROM dsv3_estimate('SELECT dsv3_generate(repeat(body, 1000)) FROM rows');
SELECT :columns FROM dsv3_estimate('SELECT 1', 0);
SET dsv3.max_calls_per_query = 3;
SELECT :columns FROM dsv3_estimate('SELECT id, dsv3_generate(body) FROM rows');
RESET dsv3.max_calls_per_query;
SELECT count(dsv3_generate(body)) AS not_limited_afterwards FROM rows;
SELECT none_left();
DROP FUNCTION none_left();
