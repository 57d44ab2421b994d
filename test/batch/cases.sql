-- == NAME [batched|plain] [calls=any]: a case, run with dsv3.batching off and on; all it prints must be the same, the number of model
-- calls too unless calls=any. batched and plain say whether the first statement's plan has the node.

-- == plain batched
SELECT id, dsv3_generate(body) FROM docs;
-- == two arguments batched
SELECT id, dsv3_generate('say', body) FROM docs;
-- == constant arguments batched
SELECT id, dsv3_generate('constant') FROM docs WHERE id < 5;
-- == whole row and system columns batched
SELECT d, ctid, tableoid::regclass, dsv3_generate(d::text) FROM docs AS d;
-- == same call twice batched
SELECT dsv3_generate(body), dsv3_generate(body) FROM docs;
-- == several batched
SELECT dsv3_generate(body), dsv3_count_tokens(body), dsv3_generate('x', body), dsv3_is_true(coalesce(body, 'z'), 'it rains') FROM docs;
-- == nested batched
SELECT id, dsv3_generate(lower(dsv3_generate(lower(dsv3_generate(body))))) FROM docs;
-- == arrays rows and friends batched
SELECT ARRAY[dsv3_generate(body), 'x'], ROW(id, dsv3_generate(body)), greatest(dsv3_generate(body), 'M'), dsv3_generate(body) IS DISTINCT FROM 'SAME',
	dsv3_generate(body) = ANY (ARRAY['SAME', 'ROW 1']), NOT (dsv3_generate(body) = 'SAME'), nullif(dsv3_generate(body), 'SAME') FROM docs;
-- == casts batched
CREATE DOMAIN short AS text CHECK (length(VALUE) < 100);
SELECT dsv3_generate(body)::short, dsv3_generate(body)::varchar(3), dsv3_generate(body)::"char", (dsv3_count_tokens(body))::numeric FROM docs;
-- == record functions batched
SELECT id, (dsv3_try_generate(body)).value, (dsv3_try_generate(body)).output_tokens FROM docs;
-- == row type star batched
SELECT id, (dsv3_extract('x', NULL::pair, '/bytes ' || encode(convert_to('{"a":"' || coalesce(body, 'none') || '","b":' || id || '}', 'UTF8'), 'hex'), '{"whitespace":"compact"}')).*
FROM docs;
-- == json batched
SELECT id, dsv3_extract_json('x', '{"type":"object","properties":{"a":{"type":"integer","maximum":99,"minimum":0}},"required":["a"]}',
	'/bytes ' || encode(convert_to('{"a":' || id || '}', 'UTF8'), 'hex')) FROM docs;
-- == changing schemas batched
SELECT id, dsv3_extract_json('x', ('{"type":"object","properties":{"a":{"const":' || id % 3 || '}},"required":["a"]}')::jsonb) FROM docs;
-- == labels batched
SELECT id, dsv3_classify(body, ARRAY['one', 'two', grp::text]) FROM docs;
-- == chat and tokens batched
SELECT id, dsv3_chat(jsonb_build_array(jsonb_build_object('role', 'user', 'content', coalesce(body, '-')))) ->> 'content', dsv3_tokenize(body), dsv3_detokenize(dsv3_tokenize(body)),
	round(dsv3_logprob(body, 'x')::numeric, 3) FROM docs;
-- == seeds batched
SELECT id, dsv3_generate(body, temperature => 1.5, seed => id) FROM docs;

-- == limit batched
SELECT id, dsv3_generate(body) FROM docs LIMIT 5;
-- == limit zero batched
SELECT id, dsv3_generate(body) FROM docs LIMIT 0;
-- == limit null batched
SELECT id, dsv3_generate(body) FROM docs LIMIT NULL;
-- == limit and offset batched
SELECT id, dsv3_generate(body) FROM docs LIMIT 3 OFFSET 4;
-- == offset only batched
SELECT id, dsv3_generate(body) FROM docs OFFSET 20;
-- == limit with ties batched calls=any
SELECT grp, dsv3_generate(body) FROM docs ORDER BY grp FETCH FIRST 2 ROWS WITH TIES;
-- == limit parameter batched
PREPARE p(int) AS SELECT id, dsv3_generate(body) FROM docs LIMIT $1;
SET plan_cache_mode = force_generic_plan;
EXECUTE p(4);
EXECUTE p(NULL);
EXECUTE p(-1);
DEALLOCATE p;
RESET plan_cache_mode;
-- == limit over a condition batched calls=any
SELECT * FROM (SELECT id, dsv3_generate(body) AS a FROM docs) AS q WHERE a LIKE '%2' LIMIT 2;
-- == sequence under a limit batched
SELECT nextval('seq'), dsv3_generate(body) FROM docs LIMIT 5;
SELECT last_value FROM seq;
-- == exit from a loop calls=any
DO $$ DECLARE r record; BEGIN FOR r IN SELECT id, dsv3_generate(body) AS a FROM docs LOOP RAISE NOTICE '% %', r.id, r.a; EXIT WHEN r.id = 4; END LOOP; END $$;

-- == prepared batched
PREPARE p(text) AS SELECT id, dsv3_generate(body || $1) FROM docs WHERE id < 6;
EXECUTE p('a');
EXECUTE p('b');
SET plan_cache_mode = force_generic_plan;
EXECUTE p('c');
ALTER TABLE docs ADD COLUMN more int;
EXECUTE p('d');
DISCARD PLANS;
EXECUTE p('e');
SET dsv3.batching = off;
EXECUTE p('f');
DEALLOCATE p;
RESET plan_cache_mode;
-- == attributes of the function plain
SELECT definer_gen(body) FROM docs WHERE id < 4;
SELECT set_gen(body) FROM docs WHERE id < 4;
ALTER FUNCTION set_gen RESET ALL;
SELECT set_gen(body) FROM docs WHERE id < 4;
-- == privileges batched
PREPARE p AS SELECT dsv3_generate(body) FROM docs WHERE id < 4;
EXECUTE p;
CREATE ROLE batch_guest;
GRANT USAGE ON SCHEMA s TO batch_guest;
GRANT SELECT ON docs TO batch_guest;
SET ROLE batch_guest;
EXECUTE p;
SELECT dsv3_generate(body) FROM docs;
EXPLAIN (COSTS OFF) SELECT dsv3_generate(body) FROM docs;
RESET ROLE;
GRANT EXECUTE ON FUNCTION dsv3_generate TO batch_guest;
SET ROLE batch_guest;
EXECUTE p;
RESET ROLE;
REVOKE EXECUTE ON FUNCTION dsv3_generate FROM batch_guest;
DROP OWNED BY batch_guest;
DROP ROLE batch_guest;
DEALLOCATE p;

-- == update batched
UPDATE docs SET body = dsv3_generate(body);
-- == update returning batched
UPDATE docs SET body = dsv3_generate(body) WHERE id < 5 RETURNING id, body, k;
-- == returning a call plain
UPDATE docs SET k = k + 1 WHERE id < 5 RETURNING id, dsv3_generate(body);
-- == update from batched
UPDATE docs SET body = dsv3_generate(word) FROM other WHERE other.id = docs.id;
-- == update several columns batched
UPDATE docs SET (body, k) = (SELECT word, id FROM other WHERE other.id = docs.id), grp = dsv3_count_tokens(body) WHERE id < 6;
-- == update from a row of a call
UPDATE docs SET (body, k) = (SELECT dsv3_generate(word), id FROM other WHERE other.id = docs.id) WHERE id < 6;
-- == update cast of a row's column
CREATE TABLE codes (a int, b varchar(8), c varchar(8));
INSERT INTO codes SELECT i, 'c' || i, NULL FROM generate_series(1, 5) AS i;
UPDATE codes SET (a, b) = (SELECT id, word FROM other WHERE other.id = codes.a), c = dsv3_generate(b);
SELECT * FROM codes;
-- == delete where batched
DELETE FROM docs WHERE dsv3_generate(body) LIKE '%1%';
-- == delete using batched
DELETE FROM docs USING other WHERE other.id = docs.id AND dsv3_generate(word) <> 'WORD 3' RETURNING docs.id, word;
-- == insert select batched
INSERT INTO log (line) SELECT dsv3_generate(body) FROM docs;
-- == insert with identity batched
CREATE TABLE target (id int GENERATED ALWAYS AS IDENTITY, a text, b uuid DEFAULT gen_random_uuid(), c int DEFAULT nextval('seq'));
INSERT INTO target (a) SELECT dsv3_generate(format('%s', body)) FROM docs;
SELECT id, a, c FROM target;
-- == insert into itself batched
INSERT INTO docs SELECT id + 100, dsv3_generate(body), grp, k FROM docs;
-- == on conflict batched
INSERT INTO other SELECT id, dsv3_generate(body) FROM docs ON CONFLICT (id) DO UPDATE SET word = excluded.word || '!';
-- == on conflict set plain
INSERT INTO other SELECT id, body FROM docs WHERE id < 4 ON CONFLICT (id) DO UPDATE SET word = dsv3_generate(excluded.word);
-- == values plain
INSERT INTO log (line) VALUES (dsv3_generate('a')), (dsv3_generate('b'));
-- == merge
MERGE INTO other USING (SELECT id, dsv3_generate(body) AS a FROM docs) AS d ON d.id = other.id
WHEN MATCHED AND d.id < 5 THEN UPDATE SET word = d.a WHEN MATCHED AND d.id < 8 THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (d.id, dsv3_generate(d.a));
-- == create table as batched
CREATE TABLE made AS SELECT id, dsv3_generate(body) AS a FROM docs;
SELECT * FROM made;
-- == materialized view
CREATE MATERIALIZED VIEW mv AS SELECT id, dsv3_generate(body) AS a FROM docs;
UPDATE docs SET body = 'new' WHERE id = 2;
REFRESH MATERIALIZED VIEW mv;
SELECT * FROM mv;
-- == copy to
COPY (SELECT id, dsv3_generate(body) FROM docs) TO STDOUT;
-- == modifying cte
WITH u AS (UPDATE docs SET body = dsv3_generate(body) WHERE id < 5 RETURNING id, body), i AS (INSERT INTO log (line) SELECT dsv3_generate(body || '?') FROM u RETURNING line)
SELECT * FROM u JOIN i ON i.line = u.body || '?';
-- == generated columns batched
CREATE TABLE gen (a text, b int GENERATED ALWAYS AS (length(a)) STORED);
INSERT INTO gen SELECT dsv3_generate(body) FROM docs;
SELECT * FROM gen;
-- == triggers that look
CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.line := NEW.line || ' ' || (SELECT count(*) FROM s.log); RETURN NEW; END $$;
CREATE TRIGGER t BEFORE INSERT ON log FOR EACH ROW EXECUTE FUNCTION look();
INSERT INTO log (line) SELECT dsv3_generate(body) FROM docs;
-- == check option calls=any
CREATE VIEW v AS SELECT * FROM docs WHERE id < 10 AND length(body) < 20 WITH CHECK OPTION;
UPDATE v SET body = dsv3_generate(body || CASE WHEN id = 6 THEN repeat('x', 20) ELSE '' END);
-- == defaults and checks plain
ALTER TABLE log ALTER line SET DEFAULT dsv3_generate('default');
INSERT INTO log SELECT 100 + i FROM generate_series(1, 3) AS i;
-- == volatile reader in an update plain
UPDATE docs SET body = dsv3_generate(count_docs()), k = k + 100 WHERE id < 5;
-- == volatile reader in an insert plain
INSERT INTO log (line) SELECT dsv3_generate(grp::text) FROM docs WHERE NOT already_in(grp::text);
-- == volatile reader in a select batched
SELECT id, dsv3_generate(make_prompt(body)) FROM docs;
-- == volatile readers above and below plain
SELECT id, dsv3_generate(make_prompt(body)), count_docs() FROM docs WHERE id < 5;
-- == settings plain
SELECT set_config('a.b', body, false), dsv3_generate(current_setting('a.b')) FROM docs WHERE body IS NOT NULL AND id < 6;

-- == cte inlined batched
WITH c AS (SELECT id, dsv3_generate(body) AS a FROM docs) SELECT * FROM c WHERE id < 6;
-- == cte materialized
WITH c AS MATERIALIZED (SELECT id, dsv3_generate(body) AS a FROM docs) SELECT c.a, d.a FROM c JOIN c AS d USING (id) WHERE id < 6;
-- == cte recursive
WITH RECURSIVE r AS (SELECT 1 AS n, dsv3_generate('start') AS a UNION ALL SELECT n + 1, dsv3_generate(lower(a) || n) FROM r WHERE n < 6) SELECT * FROM r;
-- == lateral subquery batched
SELECT d.id, s.a, length(s.a) FROM docs AS d, LATERAL (SELECT dsv3_generate(d.body) AS a) AS s;
-- == lateral function batched
SELECT d.id, r FROM docs AS d CROSS JOIN LATERAL dsv3_generate(d.body) AS r;
-- == lateral record batched
SELECT d.id, r.ok, r.value FROM docs AS d, LATERAL dsv3_try_generate(d.body) AS r;
-- == lateral record with a condition batched
SELECT d.id, r.value FROM docs AS d, LATERAL dsv3_try_generate(d.body) AS r WHERE r.value LIKE '%1%';
-- == lateral join condition batched
SELECT d.id, r FROM docs AS d JOIN LATERAL dsv3_generate(d.body) AS r ON r <> 'SAME' AND d.grp < 3;
-- == left join lateral batched
SELECT d.id, s.a FROM docs AS d LEFT JOIN LATERAL (SELECT dsv3_generate(d.body) AS a) AS s ON true;
-- == left join lateral function batched
SELECT d.id, r.value FROM docs AS d LEFT JOIN LATERAL dsv3_try_generate(d.body) AS r ON true;
-- == left join lateral with a condition
SELECT d.id, s.a FROM docs AS d LEFT JOIN LATERAL (SELECT dsv3_generate(d.body) AS a) AS s ON s.a <> 'SAME';
-- == lateral and where above batched
SELECT d.id, s.a FROM docs AS d LEFT JOIN LATERAL (SELECT dsv3_generate(d.body) AS a) AS s ON true WHERE s.a IS DISTINCT FROM 'SAME';
-- == two laterals batched
SELECT d.id, r, q FROM docs AS d, LATERAL dsv3_generate(d.body) AS r, LATERAL dsv3_generate(lower(r)) AS q;
-- == lateral typed row batched
SELECT d.id, p.* FROM docs AS d, LATERAL dsv3_extract('x', NULL::pair, '/bytes ' || encode(convert_to('{"a":null,"b":' || d.id || '}', 'UTF8'), 'hex'), '{"whitespace":"compact"}') AS p;
-- == lateral without dependence
SELECT d.id, s.a FROM docs AS d, LATERAL (SELECT dsv3_generate('x') AS a) AS s WHERE d.id < 5;
-- == function without dependence
SELECT d.id, r FROM docs AS d, dsv3_generate('x') AS r WHERE d.id < 5;
-- == lateral set-returning
SELECT d.id, s.l, round(s.probability::numeric, 3) FROM docs AS d, LATERAL dsv3_classify_scores(dsv3_generate(d.body), ARRAY['a', 'b']) AS s (l, probability) WHERE d.id < 4;
-- == lateral for update
SELECT d.id, r FROM docs AS d, LATERAL dsv3_generate(d.body) AS r WHERE d.id < 5 FOR UPDATE OF d;
-- == update from lateral
UPDATE docs SET body = r FROM docs AS d, LATERAL dsv3_generate(d.body) AS r WHERE d.id = docs.id AND d.id < 5;
-- == rescan of an inner side
SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off;
SELECT o.id, s.a FROM other AS o JOIN (SELECT id, dsv3_generate(body) AS a FROM docs WHERE id < 4) AS s ON s.id <= o.id WHERE o.id < 4;
RESET enable_hashjoin; RESET enable_mergejoin; RESET enable_material;
-- == correlated subselect
SELECT o.id, (SELECT string_agg(dsv3_generate(d.body), ',' ORDER BY d.id) FROM docs AS d WHERE d.grp = o.id) FROM other AS o WHERE o.id < 4;
-- == in and exists calls=any
SELECT id FROM other AS o WHERE EXISTS (SELECT 1 FROM docs AS d WHERE d.grp = o.id % 4 AND dsv3_generate(d.body) > 'ROW 1');
SELECT id FROM other WHERE upper(word) IN (SELECT 'WORD ' || substr(dsv3_generate(body), 5) FROM docs);
-- == subplan as argument batched
SELECT id, dsv3_generate((SELECT word FROM other AS o WHERE o.id = d.id)) FROM docs AS d;
-- == initplan as argument batched
SELECT id, dsv3_generate((SELECT max(word) FROM other)) FROM docs WHERE id < 6;
-- == outer join with a stable call
SELECT d.id, s.a FROM docs AS d LEFT JOIN (SELECT id, stable_gen(word) AS a FROM other) AS s ON s.id = d.id;
-- == merge join
SET enable_hashjoin = off; SET enable_nestloop = off;
SELECT d.id, d.grp, s.a FROM docs AS d JOIN (SELECT id, dsv3_generate(word) AS a FROM other) AS s ON s.id = d.grp;
SELECT o.id, s.id, s.a FROM (SELECT grp AS id FROM docs) AS o JOIN (SELECT grp AS id, dsv3_generate(body) AS a FROM docs) AS s USING (id);
CREATE INDEX ON docs (grp);
SET enable_sort = off;
SELECT o.id, s.id, s.a FROM (SELECT grp AS id FROM docs) AS o JOIN (SELECT grp AS id, dsv3_generate(body) AS a FROM docs) AS s USING (id);
SELECT d.id, s.a FROM docs AS d JOIN (SELECT id, dsv3_generate(word) AS a FROM other) AS s ON s.id = d.id;
RESET enable_hashjoin; RESET enable_nestloop; RESET enable_sort;
-- == stable call is the unique key
CREATE TABLE keys (word text PRIMARY KEY);
INSERT INTO keys SELECT upper(word) FROM other;
ANALYZE keys;
SELECT o.id, keys.word FROM other AS o JOIN keys ON keys.word = stable_gen(o.word);
SET enable_hashjoin = off;
SELECT o.id, keys.word FROM other AS o JOIN keys ON keys.word = stable_gen(o.word) ORDER BY 1;
SET enable_mergejoin = off;
SELECT o.id, keys.word FROM other AS o JOIN keys ON keys.word = stable_gen(o.word) ORDER BY 1;
RESET enable_hashjoin; RESET enable_mergejoin;
-- == join batched
SELECT d.id, o.word, dsv3_generate(d.body || o.word) FROM docs AS d JOIN other AS o ON o.id = d.grp;
-- == join condition batched
SELECT d.id, o.id FROM docs AS d JOIN other AS o ON dsv3_generate(d.body || o.word) LIKE '%1%' WHERE d.id < 4 AND o.id < 4;
-- == outer join condition
SELECT d.id, o.id FROM docs AS d LEFT JOIN other AS o ON o.id = d.id AND dsv3_generate(d.body || o.word) LIKE '%1%';
-- == above an outer join batched
SELECT d.id, o.id FROM docs AS d LEFT JOIN other AS o ON o.id = d.id WHERE dsv3_generate(d.body || coalesce(o.word, '-')) LIKE '%1%';

-- == case batched
SELECT id, CASE WHEN id < 5 THEN dsv3_generate('small ' || id) WHEN id < 9 THEN 'none' ELSE dsv3_generate('large ' || id) END FROM docs;
-- == case simple batched
SELECT id, CASE grp WHEN 1 THEN dsv3_generate('one') WHEN 2 THEN dsv3_generate('two') END FROM docs;
-- == case operand is a call batched
SELECT id, CASE dsv3_generate(body) WHEN 'SAME' THEN 'same' WHEN 'ROW 1' THEN dsv3_generate('first') ELSE 'other' END FROM docs;
-- == case conditions are calls batched
SELECT id, CASE WHEN dsv3_generate(body) = 'SAME' THEN 1 WHEN dsv3_generate(body || '!') LIKE '%1!' THEN 2 ELSE 3 END FROM docs;
-- == case nested batched
SELECT id, CASE WHEN grp < 2 THEN CASE WHEN k > 10 THEN dsv3_generate(body) ELSE upper(dsv3_generate(lower(dsv3_generate(k::text)))) END ELSE coalesce(dsv3_generate(body), dsv3_generate('none')) END FROM docs;
-- == case volatile condition
SELECT id, CASE WHEN nextval('seq') % 2 = 0 THEN dsv3_generate('even') ELSE dsv3_generate('odd') END FROM docs;
SELECT last_value FROM seq;
-- == case arm that would fail batched
SELECT id, CASE WHEN grp > 0 THEN dsv3_generate((12 / grp)::text) ELSE 'zero' END FROM docs;
-- == coalesce batched
SELECT id, coalesce(body, dsv3_generate('none ' || id)), coalesce(dsv3_generate(body), dsv3_generate('none'), 'x'), coalesce(NULL, dsv3_generate(body), 'y') FROM docs;
-- == and and or batched
SELECT id, body IS NOT NULL AND dsv3_generate(body) LIKE '%1%' AND dsv3_is_true(body, 'x'), grp > 1 OR dsv3_generate(body) = 'SAME' OR dsv3_generate(body || '!') = 'ROW 8!',
	(body = 'same') AND dsv3_generate(body) = 'SAME', (body = 'same') OR dsv3_generate(body) = 'SAME' FROM docs;
-- == row in a coalesce batched
SELECT id, coalesce(CASE WHEN id < 4 THEN ROW(NULL, NULL)::pair END, ROW(dsv3_generate(body), 1)::pair) FROM docs;
-- == strict and not strict batched
SELECT id, dsv3_count_tokens(body), dsv3_logprob(body, NULL), dsv3_generate(body, NULL), dsv3_generate(body, system => NULL), dsv3_classify(body, NULL) FROM docs;

-- == aggregates batched
SELECT count(dsv3_generate(body)), sum(length(dsv3_generate(body || '?'))), max(dsv3_generate(body || k)) FROM docs;
-- == ordered aggregate batched
SELECT string_agg(dsv3_generate(body), ',' ORDER BY id DESC), string_agg(body, ',' ORDER BY dsv3_generate(body)) FROM docs;
-- == distinct aggregate batched
SELECT count(DISTINCT dsv3_generate(body)), array_agg(DISTINCT dsv3_generate(body)) FROM docs;
-- == filter batched
SELECT count(*) FILTER (WHERE dsv3_generate(body) LIKE '%1%'), count(dsv3_generate(body)) FILTER (WHERE grp = 1), max(dsv3_generate(body)) FILTER (WHERE dsv3_generate('f' || k) > 'F2') FROM docs;
-- == having batched
SELECT grp, count(*) FROM docs GROUP BY grp HAVING dsv3_generate('g' || grp) <> 'G2' AND max(dsv3_generate(body)) > 'A' ORDER BY grp;
-- == group by a call batched
SELECT dsv3_generate(body), count(*) FROM docs GROUP BY 1 ORDER BY 1;
-- == call over an aggregate batched
SELECT grp, dsv3_generate(string_agg(body, '+' ORDER BY id)) FROM docs GROUP BY grp ORDER BY grp;
-- == call over an aggregate of calls batched
SELECT grp, dsv3_generate(lower(string_agg(dsv3_generate(body), '+' ORDER BY id))) FROM docs GROUP BY grp ORDER BY grp;
-- == same aggregate twice batched
SELECT max(dsv3_generate(body)), max(dsv3_generate(body)) || '!', max(stable_gen(body)), max(stable_gen(body)) || '?' FROM docs;
-- == grouping sets batched
SELECT grp, k % 2, count(dsv3_generate(body)), dsv3_generate(coalesce(grp::text, 'all')) FROM docs GROUP BY GROUPING SETS ((grp), (k % 2), ()) ORDER BY 1, 2;
-- == sorted and hashed batched
SET enable_hashagg = off;
SELECT grp, max(dsv3_generate(body)) FROM docs GROUP BY grp;
SET enable_hashagg = on; SET enable_sort = off;
SELECT grp, max(dsv3_generate(body)) FROM docs GROUP BY grp;
RESET enable_hashagg; RESET enable_sort;
-- == ordered-set aggregate
SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY dsv3_count_tokens(body)), mode() WITHIN GROUP (ORDER BY dsv3_generate(body)) FROM docs;
-- == distinct batched
SELECT DISTINCT dsv3_generate(body) FROM docs ORDER BY 1;
SELECT DISTINCT ON (grp) grp, dsv3_generate(body) FROM docs ORDER BY grp, id;
-- == set operations
SELECT dsv3_generate(body) FROM docs WHERE id < 6 UNION SELECT dsv3_generate(word) FROM other ORDER BY 1;
SELECT dsv3_generate('row ' || id) FROM other INTERSECT SELECT dsv3_generate(body) FROM docs ORDER BY 1;
SELECT dsv3_generate('row ' || id) FROM other EXCEPT ALL SELECT dsv3_generate(body) FROM docs ORDER BY 1;
SELECT 'a', dsv3_generate(body) FROM docs WHERE id < 4 UNION ALL SELECT 'b', dsv3_generate(word) FROM other WHERE id < 4;
-- == windows batched
SELECT id, dsv3_generate(body), row_number() OVER (ORDER BY id), sum(k) OVER (PARTITION BY grp ORDER BY id), dsv3_generate((lag(body) OVER (ORDER BY id))) FROM docs ORDER BY id;
-- == windows over calls
SELECT id, rank() OVER (PARTITION BY dsv3_generate(grp::text) ORDER BY id) FROM docs ORDER BY id;
SELECT id, lag(dsv3_generate(body)) OVER (ORDER BY id) FROM docs ORDER BY id;
SELECT * FROM (SELECT id, dsv3_generate(body) AS a, row_number() OVER (ORDER BY id) AS n FROM docs) AS q WHERE n < 4;
-- == set-returning beside batched calls=any
SELECT id, dsv3_generate(body), generate_series(1, 2) FROM docs WHERE id < 6;
-- == set-returning of calls
SELECT id, unnest(ARRAY[dsv3_generate(body), 'x']) FROM docs WHERE id < 4;
SELECT dsv3_generate(x) FROM docs, unnest(ARRAY[body, 'x']) AS x WHERE id < 4;
SELECT id, dsv3_generate_stream(body) IS NOT NULL FROM docs WHERE id < 3;

-- == partitions batched
CREATE TABLE part (id int, body text, grp int) PARTITION BY LIST (grp);
CREATE TABLE part0 PARTITION OF part FOR VALUES IN (0);
CREATE TABLE part1 (grp int, gone int, body text, id int);
ALTER TABLE part1 DROP COLUMN gone;
ALTER TABLE part ATTACH PARTITION part1 FOR VALUES IN (1);
CREATE TABLE part2 PARTITION OF part FOR VALUES IN (2, 3);
INSERT INTO part SELECT id, body, grp FROM docs;
SELECT tableoid::regclass, id, dsv3_generate(body) FROM part;
UPDATE part SET body = dsv3_generate(body), grp = (grp + 1) % 4 WHERE id < 9;
SELECT tableoid::regclass, * FROM part;
DELETE FROM part WHERE dsv3_generate(body) LIKE '%1%';
SELECT count(*), max(dsv3_generate(body)) FROM part;
SELECT id, dsv3_generate(body) FROM part ORDER BY id LIMIT 3;
CREATE INDEX ON part (grp);
SET enable_seqscan = off;
SELECT grp, dsv3_generate(body) FROM part ORDER BY grp;
RESET enable_seqscan;
-- == many small partitions batched
CREATE TABLE part (id int, body text) PARTITION BY RANGE (id);
DO $$ BEGIN FOR i IN 0..19 LOOP EXECUTE format('CREATE TABLE part%s PARTITION OF part FOR VALUES FROM (%s) TO (%s)', i, i, i + 1); END LOOP; END $$;
INSERT INTO part SELECT i, 'part ' || i FROM generate_series(0, 19) AS i;
SELECT id, dsv3_generate(body) FROM part;
SELECT id, dsv3_generate(body) FROM part LIMIT 4;
-- == inheritance batched
CREATE TABLE child (extra int) INHERITS (docs);
INSERT INTO child SELECT 100 + i, 'child ' || i, 1, 1, i FROM generate_series(1, 3) AS i;
SELECT id, dsv3_generate(body) FROM docs;
UPDATE docs SET body = dsv3_generate(body) WHERE id > 20;
SELECT * FROM child;

-- == where batched
SELECT id FROM docs WHERE dsv3_generate(body) LIKE '%1%';
-- == two in where batched
SELECT id FROM docs WHERE dsv3_generate(body) LIKE '%1%' AND grp < 3 AND dsv3_is_true(body, 'x') IS NOT NULL;
-- == or in where batched
SELECT id FROM docs WHERE grp = 0 OR dsv3_generate(body) LIKE '%1%';
-- == where and select batched
SELECT id, dsv3_generate('then ' || body) FROM docs WHERE dsv3_generate(body) LIKE '%1%';
-- == where with an index batched
SET enable_seqscan = off;
SELECT id FROM docs WHERE id < 10 AND dsv3_generate(body) LIKE '%1%';
SET enable_indexscan = off;
SELECT id FROM docs WHERE id < 10 AND dsv3_generate(body) LIKE '%1%';
RESET enable_seqscan; RESET enable_indexscan;
-- == stable in where batched
SELECT id FROM docs WHERE stable_gen(body) LIKE '%1%';
-- == where in a subquery batched
SELECT * FROM (SELECT id, dsv3_generate(body) AS a FROM docs OFFSET 0) AS q WHERE a LIKE '%1%';
-- == order by a call batched
SELECT id FROM docs ORDER BY dsv3_generate(body) DESC NULLS LAST, id;

-- == row security
ALTER TABLE docs ENABLE ROW LEVEL SECURITY;
CREATE POLICY few ON docs USING (grp = 1);
CREATE ROLE batch_reader;
GRANT USAGE ON SCHEMA s TO batch_reader;
GRANT ALL ON docs TO batch_reader;
GRANT EXECUTE ON FUNCTION dsv3_generate TO batch_reader;
SET ROLE batch_reader;
SELECT id, dsv3_generate(body) FROM docs;
SELECT id FROM docs WHERE dsv3_generate(body) IS NOT NULL AND note(body);
UPDATE docs SET body = dsv3_generate(body);
RESET ROLE;
DROP POLICY few ON docs;
CREATE POLICY model ON docs USING (dsv3_generate(grp::text) = '1');
SET ROLE batch_reader;
SELECT id, body FROM docs WHERE note(body);
RESET ROLE;
REVOKE EXECUTE ON FUNCTION dsv3_generate FROM batch_reader;
DROP OWNED BY batch_reader;
DROP ROLE batch_reader;
-- == security barrier
CREATE VIEW barred WITH (security_barrier) AS SELECT * FROM docs WHERE grp = 2;
SELECT id, dsv3_generate(body) FROM barred WHERE note(body);
SELECT id FROM barred WHERE dsv3_generate(body) IS NOT NULL;
CREATE VIEW by_model WITH (security_barrier) AS SELECT * FROM docs WHERE dsv3_generate(grp::text) = '2';
SELECT id, body FROM by_model WHERE note(body) AND id < 12;

-- == cursor calls=any
BEGIN;
DECLARE c CURSOR FOR SELECT id, dsv3_generate(body) FROM docs;
FETCH 3 FROM c;
MOVE 2 IN c;
FETCH 3 FROM c;
SAVEPOINT a;
FETCH 1 FROM c;
ROLLBACK TO a;
FETCH 2 FROM c;
CLOSE c;
SAVEPOINT b;
DECLARE d CURSOR FOR SELECT id, dsv3_generate(body) FROM docs;
FETCH 2 FROM d;
ROLLBACK TO b;
FETCH 1 FROM d;
ROLLBACK;
-- == cursor scroll
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT id, dsv3_generate(body) FROM docs WHERE id < 6;
FETCH 3 FROM c;
FETCH BACKWARD 2 FROM c;
FETCH LAST FROM c;
COMMIT;
-- == cursor with hold calls=any
BEGIN;
DECLARE c CURSOR WITH HOLD FOR SELECT id, dsv3_generate(body) FROM docs;
FETCH 3 FROM c;
COMMIT;
FETCH 3 FROM c;
CLOSE c;
-- == where current of calls=any
BEGIN;
DECLARE c CURSOR FOR SELECT id, dsv3_generate(body) FROM docs;
FETCH 3 FROM c;
UPDATE docs SET body = 'current' WHERE CURRENT OF c RETURNING id;
FETCH 2 FROM c;
DELETE FROM docs WHERE CURRENT OF c RETURNING id;
FETCH 1 FROM c;
COMMIT;
-- == where current of with for update calls=any
BEGIN;
DECLARE c CURSOR FOR SELECT id, dsv3_generate(body) FROM docs WHERE grp < 3 FOR UPDATE;
FETCH 3 FROM c;
UPDATE docs SET body = 'current' WHERE CURRENT OF c RETURNING id;
FETCH 2 FROM c;
UPDATE docs SET body = 'current' WHERE CURRENT OF c RETURNING id;
COMMIT;
-- == where current of in shapes calls=any
BEGIN;
DECLARE c CURSOR FOR SELECT id, dsv3_generate(body) FROM docs LIMIT 9;
FETCH 2 FROM c;
UPDATE docs SET k = 99 WHERE CURRENT OF c RETURNING id;
DECLARE d CURSOR FOR SELECT id FROM docs WHERE dsv3_generate(body) LIKE '%1%';
FETCH 2 FROM d;
UPDATE docs SET k = 98 WHERE CURRENT OF d RETURNING id;
DECLARE e CURSOR FOR SELECT * FROM (SELECT id, dsv3_generate(body) AS a FROM docs) AS q;
FETCH 2 FROM e;
UPDATE docs SET k = 97 WHERE CURRENT OF e RETURNING id;
DECLARE f NO SCROLL CURSOR FOR SELECT id, dsv3_generate(body) FROM docs WHERE id = 5;
FETCH 1 FROM f;
UPDATE docs SET k = 96 WHERE CURRENT OF f RETURNING id;
COMMIT;
BEGIN;
DECLARE g CURSOR FOR SELECT id, dsv3_generate(body) FROM (SELECT * FROM docs FOR UPDATE) AS q;
FETCH 2 FROM g;
UPDATE docs SET k = 95 WHERE CURRENT OF g RETURNING id;
COMMIT;
-- == where current of inheritance calls=any
CREATE TABLE child () INHERITS (docs);
INSERT INTO child SELECT 100 + i, 'child ' || i, 1, 1 FROM generate_series(1, 3) AS i;
BEGIN;
DECLARE c CURSOR FOR SELECT id, dsv3_generate(body) FROM docs;
MOVE 25 IN c;
FETCH 1 FROM c;
UPDATE docs SET k = 77 WHERE CURRENT OF c RETURNING tableoid::regclass, id;
COMMIT;
-- == where current of in plpgsql calls=any
DO $$
DECLARE
	c CURSOR FOR SELECT id, dsv3_generate(body) AS a FROM docs;
	f refcursor;
	r record;
BEGIN
	FOR r IN c LOOP
		IF r.id % 5 = 0 THEN UPDATE docs SET k = -1 WHERE CURRENT OF c; END IF;
	END LOOP;
	OPEN f FOR SELECT id, dsv3_generate(body) AS a FROM docs FOR UPDATE;
	FETCH f INTO r;
	FETCH f INTO r;
	UPDATE docs SET k = -2 WHERE CURRENT OF f;
	CLOSE f;
END $$;

-- == plpgsql loops
DO $$ DECLARE r record; BEGIN FOR r IN SELECT id, dsv3_generate(body) AS a FROM docs LOOP UPDATE docs SET body = r.a || '!' WHERE id = r.id; END LOOP; END $$;
-- == plpgsql exceptions calls=any
DO $$
DECLARE r record; n int := 0;
BEGIN
	FOR r IN SELECT id, dsv3_generate(body) AS a FROM docs LOOP
		BEGIN n := n + 1 / (r.id - 3); EXCEPTION WHEN division_by_zero THEN RAISE NOTICE 'zero at %', r.id; END;
	END LOOP;
	BEGIN
		FOR r IN SELECT id, dsv3_generate(CASE WHEN id = 4 THEN '/bytes 00' ELSE body END) AS a FROM docs LOOP RAISE NOTICE '% %', r.id, r.a; END LOOP;
	EXCEPTION WHEN OTHERS THEN RAISE NOTICE 'caught %', SQLERRM;
	END;
END $$;
-- == plpgsql commit in a loop
CREATE PROCEDURE p() LANGUAGE plpgsql AS $$ DECLARE r record; BEGIN FOR r IN SELECT id, dsv3_generate(body) AS a FROM s.docs LOOP INSERT INTO s.log (line) VALUES (r.a); COMMIT; END LOOP; END $$;
CALL p();
-- == plpgsql into calls=any
CREATE FUNCTION f() RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE t text;
BEGIN
	SELECT dsv3_generate(body) INTO t FROM docs;
	RETURN NEXT t;
	t := dsv3_generate('simple');
	RETURN NEXT t;
	RETURN QUERY SELECT dsv3_generate(body) FROM docs;
	BEGIN
		SELECT dsv3_generate(body) INTO STRICT t FROM docs;
	EXCEPTION WHEN too_many_rows THEN RETURN NEXT 'too many';
	END;
END $$;
SELECT * FROM f();
SELECT f() LIMIT 4;
-- == sql functions calls=any
CREATE FUNCTION inlined(t text) RETURNS text LANGUAGE sql AS $$ SELECT dsv3_generate(t) $$;
CREATE FUNCTION rows() RETURNS SETOF text LANGUAGE sql AS $$ SELECT dsv3_generate(body) FROM docs $$;
SELECT inlined(body) FROM docs;
SELECT * FROM rows();
SELECT rows() LIMIT 3;

-- == error of a call calls=any
SELECT id, dsv3_generate(CASE WHEN id = 6 THEN '/bytes 00' ELSE body END) FROM docs;
BEGIN;
SAVEPOINT a;
SELECT id, dsv3_generate(CASE WHEN id = 6 THEN '/bytes 00' ELSE body END) FROM docs;
ROLLBACK TO a;
SELECT count(dsv3_generate(body)) FROM docs;
COMMIT;
-- == error of an argument calls=any
SELECT id, dsv3_generate((1 / (id - 6))::text) FROM docs;
-- == wrong argument calls=any
SELECT id, dsv3_generate(body, max_tokens => 8 - id) FROM docs;
-- == first of several errors calls=any
SELECT id, dsv3_generate(CASE WHEN id = 8 THEN '/bytes 00' ELSE body END), dsv3_generate(CASE WHEN id = 5 THEN '/nan' ELSE body END) FROM docs;
-- == limit before the error
SELECT id, dsv3_generate(CASE WHEN id = 6 THEN '/bytes 00' ELSE body END) FROM docs LIMIT 5;
-- == error in a nested call calls=any
SELECT id, dsv3_generate(dsv3_generate(CASE WHEN id = 6 THEN '/nan' ELSE body END)), dsv3_generate(CASE WHEN id = 6 THEN '/bytes 00' ELSE body END) FROM docs;
-- == error becomes null batched
SET dsv3.on_error = 'null';
SELECT id, dsv3_generate(CASE WHEN id % 5 = 0 THEN '/bytes 00' ELSE body END), dsv3_generate(dsv3_generate(CASE WHEN id % 5 = 0 THEN '/bytes 00' ELSE body END)) FROM docs;
RESET dsv3.on_error;
-- == error of a domain calls=any
CREATE DOMAIN low AS int CHECK (VALUE < 6);
CREATE TYPE lows AS (n low);
SELECT id, dsv3_extract('x', NULL::lows, '/bytes ' || encode(convert_to('{"n":' || id || '}', 'UTF8'), 'hex'), '{"whitespace":"compact"}') FROM docs;
SELECT id, dsv3_extract('x', NULL::lows, '/bytes ' || encode(convert_to('{"n":' || id || '}', 'UTF8'), 'hex'), '{"whitespace":"compact"}') FROM docs LIMIT 5;
-- == refused schema calls=any
SELECT dsv3_extract_json(body, '{"type":"nonsense"}') FROM docs;
-- == notices batched
SELECT id, dsv3_extract_json('x', '{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}', '/bytes ' || encode(convert_to('{"a":"' || repeat('long', 9 + id), 'UTF8'), 'hex'), 30) FROM docs WHERE id < 8;
-- == try batched
SELECT id, (t).ok, (t).value, (t).sqlstate, (t).error FROM (SELECT id, dsv3_try_generate(CASE WHEN id % 5 = 0 THEN '/bytes 00' ELSE body END) AS t FROM docs OFFSET 0) AS q;
-- == recursion
CREATE FUNCTION inner_query(t text) RETURNS text LANGUAGE sql AS $$ SELECT string_agg(dsv3_generate(word), ',') FROM s.other WHERE id < 4 $$;
SELECT id, dsv3_generate(lower(inner_query(body))) FROM docs WHERE id < 5;
-- == large rows batched
SELECT id, md5(dsv3_generate(repeat(body || ' ', 100), max_tokens => 1500)) FROM docs;
SET work_mem = '64kB';
SELECT id, md5(dsv3_generate(repeat(body || ' ', 100), max_tokens => 1500)) FROM docs;
-- == toast batched
CREATE TABLE big (id int, body text);
ALTER TABLE big ALTER body SET STORAGE EXTERNAL;
INSERT INTO big SELECT i, repeat('x' || i, 1500) FROM generate_series(1, 6) AS i;
SELECT id, length(body), md5(dsv3_generate(body, max_tokens => 50)) FROM big;
DROP TABLE big;
-- == windows of one and of many batched
SET dsv3.batch_window = 1;
SELECT id, dsv3_generate(body) FROM docs;
SET dsv3.batch_window = 1024;
SELECT id, dsv3_generate(body) FROM docs;

-- == for update batched
SELECT id, dsv3_generate(body) FROM docs FOR UPDATE;
SELECT id, dsv3_generate(body) FROM docs ORDER BY id DESC LIMIT 3 FOR UPDATE SKIP LOCKED;
-- == locked below plain
SELECT id, dsv3_generate(body) FROM (SELECT * FROM docs WHERE id < 5 FOR UPDATE) AS q;
-- == parallel
SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
SELECT id, dsv3_generate(body) FROM docs ORDER BY id;
SELECT id, dsv3_generate(body) FROM docs WHERE grp = 1 ORDER BY id;
SELECT count(dsv3_generate(body)), max(dsv3_generate(body)) FROM docs;
SELECT id, safe_gen(body) FROM docs ORDER BY id;
SELECT count(*), max(safe_gen(body)) FROM docs;
SELECT count(*) FROM docs WHERE safe_gen(body) LIKE '%1%';
-- == forced parallel
SET force_parallel_mode = on;
SELECT id, safe_gen(body) FROM docs;
RESET force_parallel_mode;
-- == tables of other kinds batched
SELECT dsv3_generate(v) FROM (VALUES ('a'), ('b'), (NULL)) AS t (v);
SELECT dsv3_generate(i::text) FROM generate_series(1, 5) AS i;
SELECT dsv3_generate(x) FROM XMLTABLE('//a' PASSING '<r><a>p</a><a>q</a></r>' COLUMNS x text PATH '.');
SELECT dsv3_generate(body) FROM docs TABLESAMPLE BERNOULLI (100);
SELECT dsv3_generate(body) FROM docs WHERE ctid IN ('(0,1)', '(0,2)');
SELECT dsv3_generate(body) FROM docs WHERE ctid < '(0,4)';
SELECT dsv3_generate(id::text) FROM docs WHERE id < 4;
