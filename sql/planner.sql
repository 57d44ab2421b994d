-- The model runs exactly as often as rows need it: one by one, and read ahead (test/batch has many more cases of that).
CREATE TABLE tickets (id int, body text);
INSERT INTO tickets SELECT i, 'ticket ' || i FROM generate_series(1, 10) AS i;
ANALYZE tickets;

-- Requests since the last call.
CREATE TABLE seen AS SELECT requests FROM dsv3_stat_engine;
CREATE FUNCTION calls() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	n bigint;
BEGIN
	SELECT s.requests - seen.requests INTO n FROM dsv3_stat_engine AS s, seen;
	UPDATE seen SET requests = requests + n;
	RETURN n;
END
$$;

EXPLAIN (COSTS OFF) SELECT dsv3_generate(body) FROM tickets;
EXPLAIN (COSTS OFF) SELECT dsv3_generate('constant');
EXPLAIN (COSTS OFF) SELECT * FROM tickets WHERE dsv3_generate(body) = 'X' AND id = 1;
SELECT calls() AS explain_makes_none;

SELECT count(dsv3_generate(body)) FROM tickets;
SELECT calls() AS one_per_row;
SELECT dsv3_generate(body) FROM tickets ORDER BY id LIMIT 2;
SELECT calls() AS limit_after_sort;
SELECT dsv3_generate(body) FROM tickets LIMIT 3 OFFSET 2;
SELECT calls() AS limit_and_offset;
SELECT id FROM tickets WHERE dsv3_generate(body) = 'TICKET 3' AND id < 5;
SELECT calls() AS cheap_condition_first;
SELECT a, a FROM (SELECT dsv3_generate(body) AS a FROM tickets WHERE id = 1) AS s;
SELECT calls() AS subquery_used_twice;
WITH c AS (SELECT dsv3_generate(body) AS a FROM tickets WHERE id <= 2) SELECT x.a, y.a FROM c AS x JOIN c AS y USING (a) ORDER BY 1;
SELECT calls() AS cte_used_twice;
SELECT id, CASE WHEN id = 2 THEN dsv3_generate(body) END FROM tickets WHERE id <= 3 ORDER BY id;
SELECT calls() AS only_the_branch_taken;
SELECT coalesce('have', dsv3_generate('x'));
SELECT calls() AS short_cut;
SELECT count(*) FROM tickets AS t, LATERAL dsv3_try_generate(t.body) AS r WHERE r.ok AND t.id <= 4;
SELECT calls() AS lateral;
SELECT DISTINCT dsv3_generate('same') FROM tickets WHERE id <= 3;
SELECT calls() AS the_same_once;
SET dsv3.dedup = off;
SELECT DISTINCT dsv3_generate('same') FROM tickets WHERE id <= 3;
SELECT calls() AS volatile_is_not_folded;
RESET dsv3.dedup;
SELECT max(dsv3_generate(body)) FROM tickets WHERE false;
SELECT calls() AS no_rows;
SELECT id FROM tickets WHERE id <= 3 ORDER BY dsv3_generate(body) DESC;
SELECT calls() AS sort_key;
SELECT (SELECT dsv3_generate('once')) AS a FROM tickets WHERE id <= 3;
SELECT calls() AS uncorrelated_subquery;

PREPARE ask(text) AS SELECT dsv3_generate($1);
EXECUTE ask('one');
EXECUTE ask('two');
SELECT calls() AS prepared;
SET plan_cache_mode = force_generic_plan;
EXECUTE ask('three');
RESET plan_cache_mode;
SELECT calls() AS generic_plan;

DO $$
DECLARE
	r record;
	n int := 0;
BEGIN
	FOR r IN SELECT dsv3_generate(body) AS a FROM tickets LIMIT 4 LOOP
		n := n + length(r.a);
	END LOOP;
	RAISE NOTICE 'length %, constant %', n, dsv3_generate('plpgsql');
END
$$;
SELECT calls() AS plpgsql;

SET dsv3.batching = off;
BEGIN;
DECLARE c CURSOR FOR SELECT dsv3_generate(body) FROM tickets ORDER BY id;
FETCH 2 FROM c;
SELECT calls() AS cursor_so_far;
MOVE 1 IN c;
SELECT calls() AS moved_over;
COMMIT;
SELECT calls() AS closed;
RESET dsv3.batching;
BEGIN;
DECLARE c CURSOR FOR SELECT dsv3_generate(body) FROM tickets ORDER BY id;
FETCH 2 FROM c;
COMMIT;
SELECT calls() < 2 * 2 AS less_than_twice;
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT dsv3_generate(body) FROM tickets ORDER BY id;
FETCH 2 FROM c;
FETCH BACKWARD 1 FROM c;
FETCH 1 FROM c;
COMMIT;
SELECT calls() AS one_per_row_fetched;

INSERT INTO tickets SELECT 100 + id, dsv3_generate(body) FROM tickets WHERE id <= 2;
UPDATE tickets SET body = dsv3_generate(body) WHERE id = 5 RETURNING body;
SELECT calls() AS writes;

-- A row's columns, spelled as one call for each: the model is asked once for each row.
SELECT (t).ok, (t).value, (t).output_tokens FROM (SELECT dsv3_try_generate('hello') AS t OFFSET 0) AS s;
SELECT calls() AS subquery;
SELECT (dsv3_try_generate('hello')).ok, (dsv3_try_generate('hello')).value, (dsv3_try_generate('hello')).output_tokens;
SELECT calls() AS one_for_three_columns;
SET dsv3.dedup = off;
SELECT (dsv3_try_generate('hello')).ok, (dsv3_try_generate('hello')).value;
SELECT calls() AS one_for_each_column;
RESET dsv3.dedup;
SELECT dsv3_generate('a'), dsv3_generate('a', seed => 1), dsv3_generate('a', max_tokens => 20), dsv3_generate('a', options => '{"timeout_ms": 60000}');
SELECT calls() AS not_the_same;

-- What EXPLAIN shows of reading ahead.
EXPLAIN (COSTS OFF, VERBOSE) SELECT id, CASE WHEN id > 3 THEN dsv3_count_tokens(body) END FROM tickets WHERE dsv3_count_tokens(body) > 2 AND id < 9;
EXPLAIN (COSTS OFF) SELECT sum(dsv3_count_tokens(body)) FROM tickets;
EXPLAIN (COSTS OFF) SELECT id, n FROM tickets, LATERAL dsv3_count_tokens(body) AS n WHERE n > 3;
EXPLAIN (COSTS OFF) SELECT dsv3_count_tokens(body) FROM tickets ORDER BY id LIMIT 3;
CREATE FUNCTION analyzed(query text) RETURNS TABLE (property text, value text) LANGUAGE plpgsql AS $$
DECLARE
	plan json;
BEGIN
	EXECUTE 'EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, FORMAT JSON) ' || query INTO plan;
	RETURN QUERY SELECT * FROM json_each_text(plan -> 0 -> 'Plan') AS p (key) WHERE key ~ 'Call|Duplicates|Cache|Tokens|Removed';
END
$$;
SELECT * FROM analyzed($$ SELECT id, CASE WHEN id > 3 THEN dsv3_generate('same') END FROM tickets WHERE dsv3_generate('keep') = 'KEEP' AND id <= 10 $$);
SELECT * FROM analyzed($$ SELECT dsv3_generate('twice'), dsv3_generate('twice') FROM tickets WHERE id = 1 $$);
SELECT * FROM analyzed($$ SELECT dsv3_generate(id::text) FROM tickets WHERE dsv3_generate(id::text) IN ('1', '2') $$);
SELECT count(*) FROM analyzed($$ SELECT dsv3_generate('constant') $$);
SET dsv3.batching = off;
EXPLAIN (COSTS OFF) SELECT dsv3_generate(body) FROM tickets;
RESET dsv3.batching;
SELECT calls() AS of_analyze;

-- A view and a function between do not multiply calls.
CREATE VIEW answers AS SELECT id, dsv3_generate(body) AS a FROM tickets WHERE id <= 2;
SELECT a, length(a), upper(a) FROM answers WHERE id = 1;
SELECT calls() AS through_a_view;

DROP VIEW answers;
DROP TABLE tickets, seen;
DROP FUNCTION calls(), analyzed(text);
DEALLOCATE ask;
