-- Answers bound to a schema. The test model writes the bytes that "/bytes HEX" names wherever the schema allows them.
CREATE FUNCTION says(answer text) RETURNS text LANGUAGE sql AS $$ SELECT '/bytes ' || encode(convert_to(answer, 'UTF8'), 'hex') $$;

-- The schema given as a literal.
SELECT dsv3_extract_json('x', '{"type":"object"}', says('{}'));
SELECT dsv3_extract_json('x', '{"type":"integer","minimum":5,"maximum":9}', says('7'));
SELECT dsv3_extract_json('Grüße', '{"type":"object","properties":{"a":{"type":"string"},"b":{"type":["integer","null"]}},"required":["a","b"]}',
	says('{"a": "日本", "b": null}'));

-- What the model would write is not allowed: the answer is valid all the same.
SELECT dsv3_extract_json('x', '{"enum":["red","green"]}', says('"blue"')) <@ '["red","green"]' AS one_of_them;
SELECT dsv3_extract_json('', '{"type":"array","items":{"type":"boolean"},"minItems":2,"maxItems":2}');
SELECT jsonb_typeof(dsv3_extract_json('no instruction', '{"type":"object","properties":{"n":{"type":"number"}},"required":["n"]}') -> 'n');

-- The prompt: instruction, schema, text, and three tokens of the template. (A byte is a token.)
SELECT prompt_tokens = 3 + octet_length(E'INSTRUCTION\n\nJSON Schema:\n{"type":"string","maxLength":3}\n\nText:\n\nthe text') AS prompt
FROM dsv3_try_extract_json('the text', '{"maxLength":3,"type":"string"}', 'INSTRUCTION');

-- What the model reads before the text when no instruction is given, and that it is what the model reads: free text by this prompt, bound alike, is
-- made of the same choices, which depend on every byte before them.
\pset format unaligned
SELECT prompt FROM dsv3_check_schema('{"properties":{"a":{"type":"integer"},"Größe":{"type":["number","null"]}},"required":["Größe","a"]}');
\pset format aligned
SELECT e.value #>> '{}' = trim(both '"' FROM g.value) AS same_choices, e.prompt_tokens - g.prompt_tokens AS more_tokens
FROM dsv3_check_schema('{"type":"string","pattern":"^[a-z]{60}$"}') AS c,
     dsv3_try_extract_json('the text', '{"type":"string","pattern":"^[a-z]{60}$"}', options => '{"temperature":2,"seed":7}') AS e,
     LATERAL dsv3_try_generate(c.prompt, 'the text', temperature => 2, seed => 7, options => '{"regex":"\"[a-z]{60}\""}') AS g;

-- Keys come in the order of "required".
SELECT dsv3_extract_json('x', '{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"},"long":{"type":"integer"}},"required":["long","a"]}',
	says('{"long":1,"a":2,"b":3}'), options => '{"whitespace":"compact"}');
SELECT dsv3_json_accepts('{"type":"object","properties":{"a":{"type":"integer"},"long":{"type":"integer"}},"required":["long","a"]}', '{"long":1,"a":2}') AS required_first,
       dsv3_json_accepts('{"type":"object","properties":{"a":{"type":"integer"},"long":{"type":"integer"}},"required":["long","a"]}', '{"a":2,"long":1}') AS jsonb_first;

-- Before them comes what x-order or propertyOrdering lists, and after them the rest; the model reads the schema so and writes the answer so.
SELECT name, dsv3_json_accepts(s, '{"c":1,"b":2,"a":3,"long":4}') AS written, prompt LIKE '%"properties":{"c":%,"b":%,"a":%,"long":%' AS read
FROM unnest(ARRAY['x-order', 'propertyOrdering']) AS name,
     jsonb_build_object('properties', '{"a":{"type":"integer"},"b":{"type":"integer"},"c":{"type":"integer"},"long":{"type":"integer"}}'::jsonb,
                        'required', '["b"]'::jsonb, name, '["c","nothing"]'::jsonb) AS s,
     LATERAL dsv3_check_schema(s);

-- Also in an object with so many that the schema's text is left as it is.
SELECT dsv3_json_accepts(jsonb_build_object('properties', (SELECT jsonb_object_agg('k' || i, 0 = 0) FROM generate_series(1, 1001) AS i), 'required', '["k1000"]'::jsonb),
                         '{"k1000":1,"k1":1}') AS required_first;

-- The model reads the schema in that order: the same prompt as with this text, and so the same choices.
SELECT dsv3_extract_json('x', '{"properties":{"a":{"maxLength":9,"type":"string"},"b":{"type":"string","maxLength":9},"long":{"type":"string","maxLength":9}},"required":["long","a"]}',
                         options => '{"temperature":2,"seed":7}') =
       dsv3_extract_json('x', NULL,
                         options => jsonb_build_object('temperature', 2, 'seed', 7, 'schema_text',
                         '{"required":["long","a"],"properties":{"long":{"type":"string","maxLength":9},"a":{"type":"string","maxLength":9},"b":{"type":"string","maxLength":9}}}')) AS same,
       dsv3_extract_json('x', NULL,
                         options => jsonb_build_object('temperature', 2, 'seed', 7, 'schema_text',
                         '{"required":["long","a"],"properties":{"long":{"type":"string","maxLength":9},"b":{"type":"string","maxLength":9},"a":{"type":"string","maxLength":9}}}')) =
       dsv3_extract_json('x', NULL,
                         options => jsonb_build_object('temperature', 2, 'seed', 7, 'schema_text',
                         '{"required":["long","a"],"properties":{"long":{"type":"string","maxLength":9},"a":{"type":"string","maxLength":9},"b":{"type":"string","maxLength":9}}}')) AS other_text;

-- A schema as text keeps its order.
SELECT ok, output_tokens, finish_reason FROM dsv3_try_extract_json('x', NULL, says('{"bb":1,"a":2}'),
	options => '{"schema_text":"{\"type\":\"object\",\"properties\":{\"bb\":{\"type\":\"integer\"},\"a\":{\"type\":\"integer\"}}}"}');
SELECT dsv3_extract_json('x', '{"type":"null"}', options => '{"schema_text":" {\"type\" : \"null\"} "}');
SELECT dsv3_extract_json('x', '{"type":"string"}', options => '{"schema_text":"{\"type\":\"null\"}"}');
SELECT dsv3_extract_json('x', NULL, options => '{"schema_text":"{"}');

-- Objects that say nothing of other keys have none, where one place describes them.
SELECT dsv3_json_accepts('{"properties":{"a":{}}}', '{"b":1}') AS closed,
       dsv3_json_accepts('{"properties":{"a":{}},"additionalProperties":true}', '{"b":1}') AS open,
       dsv3_json_accepts('{"type":"object"}', '{"b":1}') AS free,
       dsv3_json_accepts('{"allOf":[{"properties":{"a":{"type":"null"}}},{"properties":{"b":{"type":"null"}}}]}', '{"a":null,"b":null}') AS two_places;

-- White space.
SELECT output_tokens FROM dsv3_try_extract_json('x', '{"type":"array","items":{"type":"integer"}}', says('[1, 2]'));
SELECT output_tokens FROM dsv3_try_extract_json('x', '{"type":"array","items":{"type":"integer"}}', says('[1,2]'), options => '{"whitespace":"spaced"}');
SELECT output_tokens FROM dsv3_try_extract_json('x', '{"type":"array","items":{"type":"integer"}}', says('[1,2]'), options => '{"whitespace":"compact"}');

-- Sampling: the same seed gives the same answer.
SELECT dsv3_extract_json('x', '{"type":"string","maxLength":40}', max_tokens => 60, options => '{"temperature":2,"seed":7}') =
       dsv3_extract_json('x', '{"type":"string","maxLength":40}', max_tokens => 60, options => '{"temperature":2,"seed":7}') AS same,
       dsv3_extract_json('x', '{"type":"string","maxLength":40}', max_tokens => 60, options => '{"temperature":2,"seed":7}') =
       dsv3_extract_json('x', '{"type":"string","maxLength":40}', max_tokens => 60, options => '{"temperature":2,"seed":8}') AS other;

-- The budget. Too small is refused; where the answer is kept short a notice says so; the default follows the sizes.
SELECT dsv3_extract_json('x', '{"const":"0123456789"}', max_tokens => 12);
\echo :LAST_ERROR_SQLSTATE
SELECT dsv3_extract_json('x', '{"const":"0123456789"}', max_tokens => 13);
SELECT dsv3_extract_json('x', '{"type":"string"}', says('"' || repeat('long', 30)), max_tokens => 10);
SELECT ok, value, narrowed, finish_reason, output_tokens FROM dsv3_try_extract_json('x', '{"type":"string"}', says('"' || repeat('long', 30)), max_tokens => 10);
SELECT ok, value, narrowed, finish_reason, output_tokens FROM dsv3_try_extract_json('x', '{"type":"string"}', says('"short"'), max_tokens => 10);
SELECT ok, sqlstate, error, narrowed FROM dsv3_try_extract_json('x', '{"const":"0123456789"}', max_tokens => 12);
SELECT output_tokens AS of_a_short_text FROM dsv3_try_extract_json('', '{"type":"string"}', says('"' || repeat('x', 1500)));
SELECT output_tokens AS of_a_long_text FROM dsv3_try_extract_json(repeat('y', 200), '{"type":"string"}', says('"' || repeat('x', 1500)));
SET dsv3.max_output_tokens = 50;
SELECT output_tokens AS of_the_setting FROM dsv3_try_extract_json('', '{"type":"string"}', says('"' || repeat('x', 1500)));
RESET dsv3.max_output_tokens;
SELECT dsv3_extract_json('x', '{}', max_tokens => 0);

-- Thinking comes before the document and is not part of it.
SELECT dsv3_extract_json('x', '{"enum":["A","B"]}', says('"B"'), options => '{"think":"on"}');

-- Refused schemas raise, in every form, and say where.
SELECT dsv3_extract_json('x', '{"type":"object","properties":{"a":{"type":"strin"}}}');
\echo :LAST_ERROR_SQLSTATE
SELECT dsv3_try_extract_json('x', '{"properties":{"a":{"$ref":"other.json"}}}');
\echo :LAST_ERROR_SQLSTATE
SELECT dsv3_try_extract_json('x', '{"type":"string","minLength":3,"maxLength":2}');
\echo :LAST_ERROR_SQLSTATE
SELECT dsv3_extract_json('x', '[1]');
\echo :LAST_ERROR_SQLSTATE
SELECT dsv3_extract_json('x', '{}', options => '{"stop":"a"}');

-- A notice once for a statement.
SELECT dsv3_extract_json(t, '{"type":"string","format":"unheard-of","maxLength":3}', says('"ab"')) FROM (VALUES ('a'), ('b')) AS v (t);

-- Several schemas at one call site.
SELECT dsv3_extract_json('x', s::jsonb, says('1')) FROM (VALUES ('{"type":"integer"}'), ('{"enum":[12]}'), ('{"type":"integer"}')) AS v (s);

-- NULL.
CREATE TEMP TABLE before AS SELECT requests FROM dsv3_stat_engine;
SELECT dsv3_extract_json(NULL, '{}') IS NULL, dsv3_extract_json('x', NULL) IS NULL, dsv3_extract_json('x', NULL, options => NULL) IS NULL,
       (dsv3_try_extract_json(NULL, '{}')) IS NULL, dsv3_check_schema(NULL) IS NULL, dsv3_json_accepts(NULL, 'x') IS NULL,
       dsv3_json_accepts('{}', NULL) IS NULL;
SELECT s.requests - b.requests AS requests_made FROM dsv3_stat_engine AS s, before AS b;
SELECT dsv3_extract_json('x', '{"type":"null"}', NULL, NULL, NULL);

-- Row errors.
SELECT ok, sqlstate, value, narrowed FROM dsv3_try_extract_json(repeat('x', 5000), '{"type":"null"}');
SELECT dsv3_extract_json(repeat('x', 5000), '{"type":"null"}', options => '{"on_error":"null"}') IS NULL AS nulled;
SELECT dsv3_extract_json(repeat('x', 5000), '{"type":"null"}');

-- What of a schema can be enforced.
SELECT ok, shortest, notices, sqlstate, error, detail, hint, prompt IS NULL AS no_prompt FROM dsv3_check_schema('{"type":"boolean"}');
SELECT ok, notices FROM dsv3_check_schema('{"type":"string","format":"unheard-of"}');
SELECT ok, shortest, notices, sqlstate, error, detail, hint, prompt IS NULL AS no_prompt FROM dsv3_check_schema('{"properties":{"a":{"$ref":"other.json"}}}');
SELECT ok, shortest, notices, sqlstate, error, detail, hint, prompt IS NULL AS no_prompt FROM dsv3_check_schema('{"type":"strin"}');
SELECT ok, shortest, notices, sqlstate, error, detail, hint, prompt IS NULL AS no_prompt FROM dsv3_check_schema('{"type":"string","pattern":"("}');
SELECT ok, shortest FROM dsv3_check_schema('true');
SELECT dsv3_json_accepts('{"type":"integer"}', '12'), dsv3_json_accepts('{"type":"integer"}', '12 '), dsv3_json_accepts('{"type":"integer"}', '-'),
       dsv3_json_accepts('{"type":"integer"}', ''), dsv3_json_accepts('{"type":"number"}', '1e5'),
       dsv3_json_accepts('{"type":"number"}', '1e999999') AS beyond_numeric;
SELECT dsv3_json_accepts('{"type":"strin"}', '12');

-- Choices, expressions and grammars for free text.
SELECT dsv3_generate('blue', options => '{"choices":["RED","BLUE"]}');
SELECT dsv3_generate('anything', options => '{"choices":["RED","BLUE"]}') IN ('RED', 'BLUE') AS one_of_them;
SELECT dsv3_generate('/bytes 5231322d', options => '{"regex":"R[0-9]{2}-[0-9]"}') ~ '^R12-[0-9]$' AS matches;
SELECT dsv3_generate('/bytes 68656c6c6f20576f726c64', options => '{"grammar":"answer ::= greeting \" \" [A-Z] [a-z]{1,20}\ngreeting ::= \"hello\" | \"hi\""}');
SELECT ok, value, finish_reason FROM dsv3_try_generate('no', options => '{"choices":["YES","NO"]}');
SELECT string_agg((s).delta, '') FROM (SELECT dsv3_generate_stream('no', options => '{"choices":["YES","NO"]}') AS s) AS t;
SELECT dsv3_generate('x', options => '{"choices":["A"],"regex":"B"}');
SELECT dsv3_generate('x', options => '{"choices":["A"],"stop":"B"}');
SELECT dsv3_generate('x', options => '{"choices":"A"}');
SELECT dsv3_generate('x', options => '{"choices":[1]}');
SELECT dsv3_try_generate('x', options => '{"regex":"("}');
\echo :LAST_ERROR_SQLSTATE
SELECT dsv3_generate('x', options => '{"grammar":"a ::= b"}');
SELECT ok, sqlstate FROM dsv3_try_generate('x', max_tokens => 3, options => '{"choices":["LONG LABEL"]}');

SELECT count(*) FROM dsv3_activity;
DROP FUNCTION says;
