-- The forms that take an array: a row for each element, in order, whatever became of it.

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

CREATE FUNCTION says(answer text) RETURNS text LANGUAGE sql AS $$ SELECT '/bytes ' || encode(convert_to(answer, 'UTF8'), 'hex') $$;
CREATE TEMP TABLE before AS SELECT requests, nulled FROM dsv3_stat_engine;

SELECT index, ok, value, sqlstate, finish_reason, output_tokens, trace_id IS NOT NULL AS traced
FROM dsv3_generate_batch(ARRAY['one', NULL, '', repeat('x', 5000), 'two'], 'say');
SELECT index, ok, value, error, narrowed
FROM dsv3_extract_json_batch(ARRAY['a', 'b', NULL, repeat('x', 5000)], '{"type":"integer","minimum":5,"maximum":9}', says('7'));
SELECT index, ok, value FROM dsv3_extract_json_batch('{x}', NULL, says('null'), options => '{"schema_text":"{\"type\":\"null\"}"}');

-- Four, three and one; two schemas are checked, and one of them again when its element has failed.
SELECT s.requests - b.requests AS requests, s.nulled - b.nulled AS nulled FROM dsv3_stat_engine AS s, before AS b;

-- What each element gets is what the function gives for it alone.
SELECT b.index, b.value = dsv3_generate('say', i.input, 'be brief', 10, 1.5, 7, '{"top_k": 20}') AS same
FROM unnest(ARRAY['one', 'two', 'three']) WITH ORDINALITY AS i (input, n)
JOIN dsv3_generate_batch(ARRAY['one', 'two', 'three'], 'say', 'be brief', 10, 1.5, 7, '{"top_k": 20}') AS b ON b.index = i.n ORDER BY 1;

-- One bad element of many costs one row.
SELECT count(*), count(*) FILTER (WHERE ok) AS ok, min(index) FILTER (WHERE NOT ok) AS bad, bool_and(value = 'SAY' || E'\n\n' || 'ROW ' || index) FILTER (WHERE ok) AS right
FROM dsv3_generate_batch((SELECT array_agg(CASE i WHEN 777 THEN repeat('x', 5000) ELSE 'row ' || i END ORDER BY i) FROM generate_series(1, 1000) AS i), 'say');

-- In the select list; left early; with nothing in flight at the end.
SELECT (b).index, (b).value FROM (SELECT dsv3_generate_batch(ARRAY['one', 'two', 'three'], 'say') AS b OFFSET 0) AS s LIMIT 2;
SELECT none_left();
BEGIN;
DECLARE c CURSOR FOR SELECT (b).index, (b).value FROM (SELECT dsv3_generate_batch(ARRAY['one', '/forever', 'three'], 'say', max_tokens => 3) AS b OFFSET 0) AS s;
FETCH 1 FROM c;
CLOSE c;
COMMIT;
SELECT none_left();

-- A window of one, no batching, no sharing: the same.
SET dsv3.batch_window = 1;
SELECT index, value FROM dsv3_generate_batch(ARRAY['one', 'two'], 'say');
RESET dsv3.batch_window;
SET dsv3.batching = off;
SELECT index, value FROM dsv3_generate_batch(ARRAY['one', 'two'], 'say');
RESET dsv3.batching;

-- The same element twice is asked once.
TRUNCATE before;
INSERT INTO before SELECT requests, nulled FROM dsv3_stat_engine;
SELECT count(*), count(DISTINCT trace_id) AS requests FROM dsv3_generate_batch(ARRAY['a', 'b', 'a', 'a'], 'say');
SELECT s.requests - b.requests AS requests FROM dsv3_stat_engine AS s, before AS b;

-- No rows.
SELECT count(*) FROM dsv3_generate_batch(NULL, 'say');
SELECT count(*) FROM dsv3_generate_batch(ARRAY['a'], NULL);
SELECT count(*) FROM dsv3_generate_batch('{}', 'say');
SELECT index, ok FROM dsv3_extract_json_batch(ARRAY['a'], NULL);

-- What is wrong for all raises.
SELECT * FROM dsv3_generate_batch(ARRAY[['a'], ['b']], 'say');
SELECT * FROM dsv3_generate_batch(ARRAY['a'], 'say', options => '{"on_eror": "null"}');
SELECT * FROM dsv3_generate_batch(ARRAY['a'], 'say', max_tokens => 0);
SELECT * FROM dsv3_extract_json_batch(ARRAY['a'], '{"type":"integer","minimum":9,"maximum":5}');
DROP FUNCTION says(text);
DROP FUNCTION none_left();
