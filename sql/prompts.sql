-- Prompts as objects: versions, grants, and calls of them. The test model answers in upper case.
SELECT dsv3_prompt_create('greet', 'say hello to {input}, {input}!', 'be brief');
SELECT dsv3_run('greet', 'ann');
SELECT dsv3_prompt_create('greet', '/prompt {input}', system => NULL, options => '{"max_tokens": 20, "think": "on"}');
SELECT dsv3_run('greet', 'bob'), dsv3_run('greet', 'bob', 1), dsv3_run('greet', 'bob', version => 2);
SELECT name, version, owner = current_user::regrole AS mine, readers, template, system, options FROM dsv3_prompts WHERE name = 'greet' ORDER BY version;

-- The input is text, whatever stands in it. The system message and the template are what the model reads.
SELECT dsv3_run('greet', '{input} {schema}', 1);
SELECT dsv3_prompt_create('all', '/prompt {input}', 'S') AS version, dsv3_run('greet', NULL) AS null_input, dsv3_run(NULL, 'x') AS null_name;
SELECT dsv3_run('all', 'x');

-- Answers bound to a schema, which the model may read. They are texts in the schema's order.
SELECT dsv3_prompt_create('bound', '/prompt{schema}{input}', NULL, '{"type":"string","maxLength":40}');
SELECT dsv3_run('bound', 'y');
SELECT dsv3_prompt_create('number', 'how many {input}', NULL, '{"type":"integer","minimum":5,"maximum":9}', '{"on_error": "null", "whitespace": "compact"}');
SELECT dsv3_run('number', 'x')::int BETWEEN 5 AND 9 AS within, dsv3_run('number', repeat('x', 5000)) IS NULL AS nulled;
SELECT dsv3_run('greet', repeat('x', 5000), 1);

-- The budget follows the input: 12 tokens for 40 bytes at 1.2, 16 at least.
SELECT dsv3_prompt_create('short', '/forever {input}', options => '{"budget": 1.2}');
SELECT length(dsv3_run('short', 'x')), length(dsv3_run('short', repeat('x', 40))), length(dsv3_run('short', repeat('x', 100)));

-- Rows of a table are read ahead, and prompts may differ from row to row.
CREATE TEMP TABLE texts AS SELECT i AS id, 't' || i AS body, CASE WHEN i % 2 = 0 THEN 'greet' ELSE 'all' END AS prompt FROM generate_series(1, 4) AS i;
EXPLAIN (COSTS OFF) SELECT dsv3_run('greet', body, 1) FROM texts;
SELECT id, dsv3_run('greet', body, 1), dsv3_run(prompt, body, 1) FROM texts ORDER BY id;

-- What is wrong is refused before there is a prompt.
SELECT dsv3_prompt_create('bad', 'no place for a text');
SELECT dsv3_prompt_create('bad', '{input} {schema}');
SELECT dsv3_prompt_create('bad', '{input}', options => '{"temprature": 1}');
SELECT dsv3_prompt_create('bad', '{input}', schema => '{"type":"integer","minimum":9,"maximum":5}');
SELECT dsv3_prompt_create('bad', '{input}', schema => '{"type":"integer"}', options => '{"regex": "x"}');
SELECT dsv3_prompt_create('', '{input}');
SELECT dsv3_prompt_create(NULL, '{input}');
SELECT dsv3_prompt_create('bad', NULL);
SELECT dsv3_run('bad', 'x');
SELECT dsv3_run('greet', 'x', 3);
SELECT dsv3_run('greet', 'x', 0);

-- A role runs what is its own or was granted, sees no other, and changes none but its own.
CREATE ROLE dsv3_test_author;
CREATE ROLE dsv3_test_group;
CREATE ROLE dsv3_test_reader IN ROLE dsv3_test_group;
GRANT EXECUTE ON FUNCTION dsv3_run(text, text, int) TO dsv3_test_author, dsv3_test_reader;
GRANT EXECUTE ON FUNCTION dsv3_prompt_create(text, text, text, jsonb, jsonb), dsv3_prompt_drop(text, int), dsv3_prompt_grant(text, name), dsv3_prompt_revoke(text, name)
	TO dsv3_test_author, dsv3_test_reader;
SET ROLE dsv3_test_author;
SELECT dsv3_prompt_create('mine', 'first {input}');
SELECT dsv3_run('mine', 'x');
SELECT dsv3_run('greet', 'x');
SELECT dsv3_prompt_create('greet', '{input}');
SELECT dsv3_prompt_drop('greet');
SELECT dsv3_prompt_drop('greet', 1);
SELECT dsv3_prompt_grant('greet', 'dsv3_test_author');
SELECT dsv3_prompt_grant('mine', 'nobody_of_that_name');
-- (A statement sees prompts as they were when it began.)
SELECT dsv3_prompt_create('later', '{input}'), dsv3_run('later', 'x');
SET ROLE dsv3_test_reader;
SELECT dsv3_run('mine', 'x');
SELECT count(*) FROM dsv3_prompts WHERE name = 'mine';
SET ROLE dsv3_test_author;
SELECT dsv3_prompt_grant('mine', 'dsv3_test_group'), dsv3_prompt_grant('mine', 'dsv3_test_group');
SET ROLE dsv3_test_reader;
SELECT dsv3_run('mine', 'x');
SELECT name, version, owner, readers FROM dsv3_prompts WHERE name = 'mine';
SELECT dsv3_prompt_create('mine', '{input}');
SELECT dsv3_prompt_revoke('mine', 'dsv3_test_group');
SET ROLE dsv3_test_author;
SELECT dsv3_prompt_revoke('mine', 'dsv3_test_group'), dsv3_prompt_grant('mine', 'public');
SET ROLE dsv3_test_reader;
SELECT dsv3_run('mine', 'x');
SET ROLE dsv3_test_author;
SELECT dsv3_prompt_revoke('mine', 'public');
SET ROLE dsv3_test_reader;
SELECT dsv3_run('mine', 'x');

-- Operators of the caller's are not called with the owner's rights.
RESET ROLE;
CREATE SCHEMA dsv3_test_trap;
GRANT ALL ON SCHEMA dsv3_test_trap TO dsv3_test_author;
SET ROLE dsv3_test_author;
CREATE FUNCTION dsv3_test_trap.caught(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'called as %', current_user; END $$;
CREATE OPERATOR dsv3_test_trap.= (LEFTARG = text, RIGHTARG = text, FUNCTION = dsv3_test_trap.caught);
SET search_path = dsv3_test_trap, public, pg_catalog;
SELECT dsv3_prompt_create('mine', 'second {input}'), dsv3_prompt_create('mine', 'third {input}');
SELECT dsv3_prompt_grant('mine', 'public'), dsv3_prompt_revoke('mine', 'public'), dsv3_prompt_drop('mine', 2);
SELECT dsv3_run('mine', 'x'), dsv3_run('mine', 'x', 1);
SELECT dsv3_run('mine', 'x', 2);
RESET search_path;

-- A number is not used again; a prompt is gone with all of its versions.
SELECT dsv3_prompt_drop('mine', 3), dsv3_prompt_create('mine', 'fourth {input}');
SELECT dsv3_prompt_drop('mine', 2);
SELECT dsv3_prompt_drop('mine');
SELECT dsv3_run('mine', 'x');
SELECT dsv3_prompt_drop('mine');
SET ROLE dsv3_test_reader;
SELECT dsv3_prompt_create('mine', 'fifth {input}');
SELECT dsv3_run('mine', 'x'), dsv3_run('mine', 'x', 1);
SELECT dsv3_prompt_drop('mine');
RESET ROLE;
DROP SCHEMA dsv3_test_trap CASCADE;
REVOKE ALL ON FUNCTION dsv3_run(text, text, int) FROM dsv3_test_author, dsv3_test_reader;
REVOKE ALL ON FUNCTION dsv3_prompt_create(text, text, text, jsonb, jsonb), dsv3_prompt_drop(text, int), dsv3_prompt_grant(text, name), dsv3_prompt_revoke(text, name)
	FROM dsv3_test_author, dsv3_test_reader;
DROP ROLE dsv3_test_author, dsv3_test_reader, dsv3_test_group;
SELECT dsv3_prompt_drop(name) FROM (SELECT DISTINCT name FROM dsv3_prompts WHERE name IN ('greet', 'all', 'bound', 'number', 'short')) AS p;

-- Those that come with the extension.
SELECT name, version, readers, template LIKE '%{input}%' AS input, schema IS NOT NULL AS schema, options FROM dsv3_prompts ORDER BY name;
SELECT name, length(dsv3_run(name, 'some text')) > 0 AS answers FROM dsv3_prompts WHERE schema IS NULL ORDER BY name;
SELECT (dsv3_run('structured_extraction', 'some text')::jsonb) ?& ARRAY['kind', 'language', 'summary', 'people', 'organizations', 'places', 'dates', 'amounts'] AS complete;
