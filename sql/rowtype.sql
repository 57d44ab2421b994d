-- dsv3_extract: rows of a type. The test model writes the bytes that "/bytes HEX" names wherever the schema allows them.
CREATE FUNCTION says(answer text) RETURNS text LANGUAGE sql AS $$ SELECT '/bytes ' || encode(convert_to(answer, 'UTF8'), 'hex') $$;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
ALTER TYPE mood ADD VALUE 'so-so' AFTER 'sad';
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN code AS varchar(4) NOT NULL;
CREATE TYPE point2 AS (x float8, y real);

-- Every type, with values of their own and as NULL.
CREATE TYPE everything AS (t text, v varchar(3), c char(2), b bool, s int2, i int4, l int8, f real, d float8, n numeric, p numeric(5,2),
	day date, at time, ts timestamp, tz timestamptz, u uuid, js json, jb jsonb, m mood, pos positive, k code, a int[], pt point2, pts point2[]);
SET timezone = 'UTC';
\x on
SELECT (r).* FROM (SELECT dsv3_extract('x', NULL::everything, says('{"t":"Grün \"x\"","v":"abc","c":"de","b":true,"s":-32768,"i":2147483647,' ||
	'"l":-9223372036854775808,"f":1.5,"d":-2.25,"n":12345678901234567890.5,"p":-999.99,"day":"2024-02-29","at":"23:59:59.5","ts":"0001-01-01T00:00:00",' ||
	'"tz":"9999-12-31T23:59:59+02:00","u":"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11","js":{"a":[1]},"jb":[null],"m":"so-so","pos":7,"k":"K-1","a":[1,2],' ||
	'"pt":{"x":1,"y":2},"pts":[{"x":3,"y":null}]}'), options => '{"whitespace":"compact"}') AS r OFFSET 0) AS q;
SELECT (r).* FROM (SELECT dsv3_extract('x', NULL::everything, says('{"t":null,"v":null,"c":null,"b":null,"s":null,"i":null,"l":null,"f":null,"d":null,' ||
	'"n":null,"p":null,"day":null,"at":null,"ts":null,"tz":null,"u":null,"js":null,"jb":null,"m":null,"pos":null,"k":"K","a":null,"pt":null,"pts":null}'),
	options => '{"whitespace":"compact"}') AS r OFFSET 0) AS q;
\x off

-- What the type does not take cannot be written. (The model goes on with something allowed.)
CREATE TYPE short AS (v varchar(3));
SELECT length((dsv3_extract('x', NULL::short, says('{"v":"abcdef"}'), '{"whitespace":"compact"}')).v) AS at_most_3;
CREATE TYPE narrow AS (p numeric(3,1));
SELECT (dsv3_extract('x', NULL::narrow, says('{"p":12345.678}'), '{"whitespace":"compact"}')).p < 100 AS below_100;
CREATE TYPE leap AS (d date);
SELECT (dsv3_extract('x', NULL::leap, says('{"d":"2023-02-29"}'), '{"whitespace":"compact"}')).d <> '2023-03-01' AS another_day;
CREATE TYPE must AS (k code);
SELECT (dsv3_extract('x', NULL::must, says('{"k":null}'), '{"whitespace":"compact"}')).k IS NOT NULL AS not_null;
CREATE TYPE feeling AS (m mood);
SELECT count(dsv3_extract('x', NULL::feeling, says('{"m":"angry"}'), '{"whitespace":"compact"}')) AS taken;
CREATE TYPE large AS (a numeric(14,2), b numeric(30,10), c numeric(4,0));
SELECT dsv3_extract('x', NULL::large, says('{"a":123456789012.34,"b":12345678901234567890.0123456789,"c":-9999}'), '{"whitespace":"compact"}');

-- A domain's check is asked when the row is made.
CREATE TYPE checked AS (pos positive);
SELECT dsv3_extract('x', NULL::checked, says('{"pos":-1}'), '{"whitespace":"compact"}');
\echo :LAST_ERROR_SQLSTATE

-- Tables are row types; dropped columns are not columns; comments describe.
CREATE TABLE invoices (number text, gone int, total numeric(8,2) NOT NULL);
ALTER TABLE invoices DROP COLUMN gone;
INSERT INTO invoices SELECT r.* FROM dsv3_extract('x', NULL::invoices, says('{"number":"R-1","total":3.50}'), '{"whitespace":"compact"}') AS r;
SELECT * FROM invoices;
CREATE TEMP TABLE before AS SELECT prompt_tokens FROM dsv3_stat_engine;
SELECT count(dsv3_extract('x', NULL::short, says('{"v":null}'), '{"whitespace":"compact"}'));
CREATE TEMP TABLE between AS SELECT prompt_tokens FROM dsv3_stat_engine;
COMMENT ON COLUMN short.v IS 'very short';
SELECT count(dsv3_extract('x', NULL::short, says('{"v":null}'), '{"whitespace":"compact"}'));
SELECT a.prompt_tokens - b.prompt_tokens - (b.prompt_tokens - f.prompt_tokens) - length(',"description":"very short"') AS besides_the_comment
FROM dsv3_stat_engine AS a, between AS b, before AS f;

-- Whatever the session writes dates like.
SET datestyle = 'SQL, DMY';
SELECT (dsv3_extract('x', NULL::leap, says('{"d":"2024-02-03"}'), '{"whitespace":"compact"}')).d = make_date(2024, 2, 3) AS same_day;
RESET datestyle;

-- Many rows, one plan.
SELECT t, dsv3_extract(t, NULL::point2, says('{"x":1,"y":2}'), '{"whitespace":"compact"}') FROM (VALUES ('a'), ('b'), (NULL)) AS v (t);

-- One call for each row that has a text, whatever the number of columns, and one check of the schema.
CREATE TABLE notes (id int, body text);
INSERT INTO notes VALUES (1, 'a'), (2, 'b'), (3, NULL);
CREATE TEMP TABLE first AS SELECT requests FROM dsv3_stat_engine;
SELECT n.id, r.* FROM notes AS n, LATERAL dsv3_extract(n.body, NULL::point2, says('{"x":1,"y":2}'), '{"whitespace":"compact"}') AS r;
CREATE TEMP TABLE second AS SELECT requests FROM dsv3_stat_engine;
SELECT id, (r).* FROM (SELECT id, dsv3_extract(body, NULL::point2, says('{"x":1,"y":2}'), '{"whitespace":"compact"}') AS r FROM notes) AS q;
SELECT s.requests - f.requests AS by_lateral, e.requests - s.requests AS by_subquery FROM first AS f, second AS s, dsv3_stat_engine AS e;
DROP TABLE notes;

-- A notice when max_tokens cut a value.
CREATE TYPE leaflet AS (title text);
SELECT * FROM dsv3_extract('x', NULL::leaflet, says('{"title":"' || repeat('long', 30)), '{"max_tokens":25,"whitespace":"compact"}');

-- max_tokens and the other options.
SELECT dsv3_extract('x', NULL::point2, options => '{"max_tokens":3}');
\echo :LAST_ERROR_SQLSTATE
SELECT dsv3_extract('x', NULL::point2, options => '{"max_tokens":0}');
SELECT dsv3_extract('x', NULL::point2, options => '{"max_tokens":3,"on_error":"null"}') IS NULL AS nulled;
SELECT dsv3_extract('x', NULL::point2, options => '{"schema_text":"{}"}');

-- Types without a schema.
CREATE TYPE with_range AS (a int, during tsrange);
SELECT dsv3_extract('x', NULL::with_range);
\echo :LAST_ERROR_SQLSTATE
CREATE TYPE with_interval AS (a interval[]);
SELECT dsv3_extract('x', NULL::with_interval);
SELECT dsv3_extract('x', NULL::int);
SELECT dsv3_extract('x', ROW(1, 'a'));

SELECT count(*) FROM dsv3_activity;
DROP TABLE invoices;
DROP TYPE leaflet, with_interval, with_range, checked, large, feeling, must, leap, narrow, short, everything, point2;
DROP DOMAIN code, positive;
DROP TYPE mood;
DROP FUNCTION says;
