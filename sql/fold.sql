-- Aggregates over any number of texts. The test model answers with what it was asked, in upper case; a byte is a token.

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

SELECT dsv3_agg(t, 'Which?' ORDER BY t) FROM unnest(ARRAY['b', 'a', NULL, 'c']) AS t;
SELECT dsv3_summarize_agg(t) LIKE E'SUMMARIZE THE TEXTS BELOW%\n\nA\n\n---\n\nB' AS asked FROM unnest(ARRAY['a', 'b']) AS t;
SELECT n % 2 AS odd, dsv3_agg('text ' || n, 'Which?' ORDER BY n DESC) FROM generate_series(1, 4) AS n GROUP BY 1 ORDER BY 1;

-- Nothing to ask.
SELECT dsv3_agg(t, 'Which?') IS NULL AS no_texts, dsv3_summarize_agg(t) IS NULL AS no_summary FROM unnest(ARRAY[NULL]::text[]) AS t;
SELECT dsv3_agg(t, 'Which?') IS NULL AS no_rows FROM unnest(ARRAY[]::text[]) AS t;
SELECT dsv3_agg('a', NULL);
SELECT dsv3_agg('a', i) FROM unnest(ARRAY['one', 'other']) AS i;

-- Many texts: groups, asked together, and their answers, until one is left. What is asked for a number of tokens is the same each time, in a window of any size.
CREATE TEMP TABLE texts AS SELECT i AS id, 'text ' || i || repeat(' and so on', 20) AS body FROM generate_series(1, 100) AS i;
CREATE TEMP TABLE before AS SELECT requests, completed FROM dsv3_stat_engine;
SET dsv3.max_tokens = 400;
SELECT md5(dsv3_agg(body, 'Which?' ORDER BY id)) AS fold FROM texts \gset
-- 100 texts of some 210 tokens and the instruction are counted; 16 to a group make 7 calls, whose answers are counted and make the last call.
SELECT s.requests - b.requests AS requests, s.completed - b.completed AS completed FROM dsv3_stat_engine AS s, before AS b;
SELECT md5(dsv3_agg(body, 'Which?' ORDER BY id)) = :'fold' AS again FROM texts;
SET dsv3.batch_window = 1;
SELECT md5(dsv3_agg(body, 'Which?' ORDER BY id)) = :'fold' AS one_by_one FROM texts;
RESET dsv3.batch_window;
SELECT md5(dsv3_agg(body, 'Which?' ORDER BY id DESC)) = :'fold' AS other_order FROM texts;
-- The prompt of a group, and that of the answers, which are the group's in its order.
SELECT dsv3_agg(body, 'Which?' ORDER BY id) LIKE E'WHICH?\n\nTHE TEXTS ARE ANSWERS%\n\nWHICH?\n\nTHE TEXTS ARE A PART%\n\nTEXT 1 AND%' AS prompts FROM texts WHERE id <= 20;
RESET dsv3.max_tokens;

-- Texts that no group can hold are cut: nothing is lost. (An answer of a part is its first token here, so the calls tell how much was asked.)
SET dsv3.max_tokens = 1;
TRUNCATE before;
INSERT INTO before SELECT requests, completed FROM dsv3_stat_engine;
SELECT length(dsv3_agg((SELECT string_agg('word ' || i, ' ') FROM generate_series(1, 10000) AS i), 'Which?')) AS one_letter;
SELECT s.requests - b.requests > 25 AS several_calls, s.requests - b.requests = s.completed - b.completed AS all_answered FROM dsv3_stat_engine AS s, before AS b;
SELECT length(dsv3_agg(repeat('ü', 5000), 'Which?')) AS no_white_space;
RESET dsv3.max_tokens;

-- An instruction too long, failures, limits, and the end of all that is in flight.
SELECT dsv3_agg('a', repeat('long ', 600));
SELECT dsv3_agg('a', '/nan');
SET dsv3.on_error = 'null';
SET dsv3.max_input_bytes = 10;
SELECT dsv3_agg(t, 'Which?') IS NULL AS nulled FROM unnest(ARRAY['a', 'longer than that']) AS t;
RESET dsv3.on_error;
SELECT dsv3_agg(t, 'Which?') FROM unnest(ARRAY['a', 'longer than that']) AS t;
RESET dsv3.max_input_bytes;
SET dsv3.max_calls_per_query = 7;
SELECT dsv3_agg(body, 'Which?' ORDER BY id) FROM texts;
RESET dsv3.max_calls_per_query;
SELECT none_left();

-- As a window function the state goes on being used.
SELECT id, dsv3_agg(left(body, 6), 'Which?') OVER (ORDER BY id) FROM texts WHERE id <= 2;
DROP FUNCTION none_left();
