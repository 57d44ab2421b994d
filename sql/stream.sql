-- dsv3_generate_stream: one row for each piece, and a last one with the reason.
SELECT seq, delta, finish_reason, trace_id IS NOT NULL AS traced FROM dsv3_generate_stream('/count 3');
SELECT string_agg(delta, '' ORDER BY seq) = dsv3_generate('/count 100') AS same,
       count(DISTINCT trace_id) AS traces, count(finish_reason) AS reasons, min(seq), max(seq) = count(*) AS dense
FROM dsv3_generate_stream('/count 100');
SELECT (s).seq, (s).finish_reason FROM (SELECT dsv3_generate_stream('/forever', max_tokens => 3) AS s OFFSET 0) AS t;

-- A character never comes in parts.
SELECT string_agg(delta, '|' ORDER BY seq) FROM dsv3_generate_stream('/bytes e697a5e69cace8aa9e');

-- An early end frees the request: LIMIT, a closed cursor, the end of the transaction, a rollback to a savepoint.
CREATE FUNCTION live() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 100 LOOP
		EXIT WHEN NOT EXISTS (SELECT FROM dsv3_activity);
		PERFORM pg_sleep(0.01);
	END LOOP;
	RETURN (SELECT count(*) FROM dsv3_activity);
END
$$;
SELECT (dsv3_generate_stream('/forever', max_tokens => 4000)).delta LIMIT 2;
SELECT live();
BEGIN;
DECLARE c CURSOR FOR SELECT (s).delta FROM (SELECT dsv3_generate_stream('/forever', max_tokens => 4000) AS s OFFSET 0) AS t;
FETCH 2 FROM c;
SELECT count(*) FROM dsv3_activity;
CLOSE c;
SELECT live();
DECLARE c CURSOR FOR SELECT (s).delta FROM (SELECT dsv3_generate_stream('/forever', max_tokens => 4000) AS s OFFSET 0) AS t;
FETCH 1 FROM c;
COMMIT;
SELECT live();
BEGIN;
SAVEPOINT a;
DECLARE c CURSOR FOR SELECT (s).delta FROM (SELECT dsv3_generate_stream('/forever', max_tokens => 4000) AS s OFFSET 0) AS t;
FETCH 1 FROM c;
ROLLBACK TO a;
SELECT live();
DECLARE c CURSOR FOR SELECT (s).delta FROM (SELECT dsv3_generate_stream('/count 2') AS s OFFSET 0) AS t;
FETCH 1 FROM c;
SAVEPOINT b;
FETCH 1 FROM c;
SELECT 1 / 0;
ROLLBACK TO b;
FETCH ALL FROM c;
COMMIT;

-- A subquery that is run again for the next row ends the request of the row before.
BEGIN;
DECLARE c CURSOR FOR
	SELECT i, (SELECT (s).delta FROM (SELECT dsv3_generate_stream('/forever ' || i, max_tokens => 4000) AS s OFFSET 0) AS t LIMIT 1) AS first
	FROM generate_series(1, 3) AS i;
FETCH 3 FROM c;
SELECT count(*) FROM dsv3_activity WHERE state <> 'ending';
COMMIT;
SELECT live();

-- A cursor that outlives its transaction has all rows.
BEGIN;
DECLARE c CURSOR WITH HOLD FOR SELECT (s).delta FROM (SELECT dsv3_generate_stream('/count 3') AS s OFFSET 0) AS t;
FETCH 1 FROM c;
COMMIT;
FETCH ALL FROM c;
CLOSE c;

-- Two streams of one session at a time.
BEGIN;
DECLARE a CURSOR FOR SELECT (s).delta FROM (SELECT dsv3_generate_stream('abc') AS s OFFSET 0) AS t;
DECLARE b CURSOR FOR SELECT (s).delta FROM (SELECT dsv3_generate_stream('xyz') AS s OFFSET 0) AS t;
FETCH 1 FROM a;
FETCH 1 FROM b;
FETCH 1 FROM a;
FETCH 1 FROM b;
COMMIT;

-- A failure in the middle.
SELECT (s).delta FROM (SELECT dsv3_generate_stream('/nan') AS s OFFSET 0) AS t;
SELECT live();
DROP FUNCTION live();
