-- Labels and truth values from the model's logits. "/bytes HEX" as the instruction is what the test model wants to answer.
CREATE FUNCTION says(answer text) RETURNS jsonb LANGUAGE sql AS $$
	SELECT jsonb_build_object('instruction', '/bytes ' || encode(convert_to(answer, 'UTF8'), 'hex')) $$;

SELECT l, dsv3_classify('x', ARRAY['invoice', 'order', 'other'], says(l)) FROM (VALUES ('invoice'), ('order'), ('other')) AS v (l);

-- Whole labels: one that is the beginning of another, in either order.
SELECT l, dsv3_classify('x', ARRAY['in', 'invoice'], says(l)), dsv3_classify('x', ARRAY['invoice', 'in'], says(l))
FROM (VALUES ('invoice'), ('in')) AS v (l);

-- Text of every kind.
SELECT dsv3_classify('x', ARRAY['Grün', '"quoted\', '日本'], says(l)) FROM (VALUES ('"quoted\'), ('日本')) AS v (l);

-- Probabilities, in the order of the labels.
SELECT label, round(probability::numeric, 3) FROM dsv3_classify_scores('x', ARRAY['a', 'b', 'c'], says('b'));
SELECT sum(probability) BETWEEN 0.999999 AND 1.000001 AS one, count(*), count(DISTINCT probability) > 1 AS differ,
       (array_agg(label ORDER BY probability DESC))[1] = dsv3_classify('some text', ARRAY['x', 'y', 'z']) AS best_first
FROM dsv3_classify_scores('some text', ARRAY['x', 'y', 'z']);
SELECT * FROM dsv3_classify_scores('x', ARRAY['only']);

-- The prompt's own words decide without an instruction, the same each time.
SELECT dsv3_classify('t', ARRAY['x', 'y', 'z']) = dsv3_classify('t', ARRAY['x', 'y', 'z']) AS same;

-- Statements.
SELECT dsv3_is_true('x', 'it rains', says('yes')), dsv3_is_true('x', 'it rains', says('no'));
SELECT dsv3_score('x', 'it rains', says('yes')) > 0.99 AS yes, dsv3_score('x', 'it rains', says('no')) < 0.01 AS no;
SELECT dsv3_score('x', 'it rains') BETWEEN 0 AND 1 AS between, dsv3_is_true('x', 'it rains') = (dsv3_score('x', 'it rains') > 0.5) AS agree,
       dsv3_score('x', 'it rains') <> dsv3_score('x', 'it snows') AS differ, dsv3_score('x', 'it rains') <> dsv3_score('y', 'it rains') AS differ_too;

-- NULL and empty.
CREATE TEMP TABLE before AS SELECT requests FROM dsv3_stat_engine;
SELECT dsv3_classify(NULL, ARRAY['a']) IS NULL, dsv3_classify('x', NULL) IS NULL, dsv3_is_true(NULL, 'a') IS NULL, dsv3_is_true('x', NULL) IS NULL,
       dsv3_score(NULL, 'a') IS NULL, dsv3_score('x', NULL) IS NULL;
SELECT count(*) FROM dsv3_classify_scores(NULL, ARRAY['a']);
SELECT s.requests - b.requests AS requests_made FROM dsv3_stat_engine AS s, before AS b;
SELECT dsv3_classify('', ARRAY['a'], NULL), dsv3_is_true('', '') IS NOT NULL AS answered;

-- Wrong labels and options.
SELECT dsv3_classify('x', '{}');
SELECT dsv3_classify('x', ARRAY['a', NULL]);
SELECT dsv3_classify('x', ARRAY['a', '']);
SELECT dsv3_classify('x', ARRAY['a', 'b', 'a']);
SELECT dsv3_classify('x', ARRAY[['a'], ['b']]);
SELECT dsv3_classify('x', ARRAY['a'], '{"temperature": 1}');
SELECT dsv3_classify('x', ARRAY['a'], '{"instruction": 1}');

-- Row errors.
SELECT dsv3_classify(repeat('x', 5000), ARRAY['a']);
SELECT dsv3_classify(repeat('x', 5000), ARRAY['a'], '{"on_error": "null"}') IS NULL AS nulled,
       dsv3_score(repeat('x', 5000), 'a', '{"on_error": "null"}') IS NULL AS nulled_too;
SELECT count(*) FROM dsv3_classify_scores(repeat('x', 5000), ARRAY['a'], '{"on_error": "null"}');

SELECT count(*) FROM dsv3_activity;
DROP FUNCTION says;
