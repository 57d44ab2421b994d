-- What each case of cases.sql starts from.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS s CASCADE;
CREATE SCHEMA s;
SET search_path = s, public;
RESET client_min_messages;
CREATE TABLE docs (id int PRIMARY KEY, body text, grp int, k int);
INSERT INTO docs SELECT i, CASE WHEN i % 7 = 0 THEN NULL WHEN i % 10 = 3 THEN 'same' ELSE 'row ' || i END, i % 4, i * 3 % 24 FROM generate_series(1, 24) AS i;
CREATE TABLE other (id int PRIMARY KEY, word text);
INSERT INTO other SELECT i, 'word ' || i FROM generate_series(1, 12) AS i;
CREATE TABLE log (id serial, line text);
CREATE SEQUENCE seq;
ANALYZE docs, other;
-- The model's functions under other labels.
CREATE FUNCTION stable_gen(prompt text, input text DEFAULT '', system text DEFAULT NULL, max_tokens int DEFAULT NULL, temperature float8 DEFAULT NULL,
	seed int8 DEFAULT NULL, options jsonb DEFAULT '{}') RETURNS text AS '$libdir/dsv3', 'dsv3_generate_1_0' LANGUAGE C STABLE PARALLEL RESTRICTED COST 1000;
CREATE FUNCTION safe_gen(prompt text, input text DEFAULT '', system text DEFAULT NULL, max_tokens int DEFAULT NULL, temperature float8 DEFAULT NULL,
	seed int8 DEFAULT NULL, options jsonb DEFAULT '{}') RETURNS text AS '$libdir/dsv3', 'dsv3_generate_1_0' LANGUAGE C VOLATILE PARALLEL SAFE COST 1000;
CREATE FUNCTION definer_gen(prompt text, input text DEFAULT '', system text DEFAULT NULL, max_tokens int DEFAULT NULL, temperature float8 DEFAULT NULL,
	seed int8 DEFAULT NULL, options jsonb DEFAULT '{}') RETURNS text AS '$libdir/dsv3', 'dsv3_generate_1_0' LANGUAGE C VOLATILE SECURITY DEFINER;
CREATE FUNCTION set_gen(prompt text, input text DEFAULT '', system text DEFAULT NULL, max_tokens int DEFAULT NULL, temperature float8 DEFAULT NULL,
	seed int8 DEFAULT NULL, options jsonb DEFAULT '{}') RETURNS text AS '$libdir/dsv3', 'dsv3_generate_1_0' LANGUAGE C VOLATILE SET work_mem = '4MB';
-- Functions that see data, and one that leaks.
CREATE FUNCTION make_prompt(t text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN 'p ' || t; END $$;
CREATE FUNCTION count_docs() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN 'docs ' || (SELECT count(*) FROM s.docs) || ' ' || (SELECT coalesce(sum(k), 0) FROM s.docs); END $$;
CREATE FUNCTION already_in(t text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RETURN EXISTS (SELECT 1 FROM s.log WHERE line = t); END $$;
CREATE FUNCTION note(t text) RETURNS boolean LANGUAGE plpgsql COST 0.1 AS $$ BEGIN RAISE NOTICE 'note %', t; RETURN true; END $$;
CREATE TYPE pair AS (a text, b int);
