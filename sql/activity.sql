-- dsv3_activity and dsv3_cancel, seen by the role whose requests they are.
BEGIN;
SET LOCAL dsv3.traceparent = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';
DECLARE c CURSOR FOR
	SELECT (s).delta FROM (SELECT dsv3_generate_stream('/forever ' || repeat('ä', 200), max_tokens => 4000, options => '{"priority": "batch"}') AS s OFFSET 0) AS t;
FETCH 1 FROM c;
SELECT trace_id IS NOT NULL AS traced, pid = pg_backend_pid() AS own_pid, role = current_user AS own_role, database = current_database() AS here,
       kind, state, priority, length(prompt) AS prompt_length, left(prompt, 12) AS prompt, output_tokens > 0 AS produces, attempts,
       submitted_at <= started_at AS started, started_at <= first_token_at AS answered, traceparent
FROM dsv3_activity;
SELECT queued, running, oldest_wait FROM dsv3_health();
SELECT dsv3_cancel(trace_id) AS cancelled FROM dsv3_activity;
FETCH ALL FROM c;
ROLLBACK;
SELECT count(*) FROM dsv3_activity;
SELECT dsv3_cancel('00000000-0000-4000-8000-000000000000') AS no_such_request;
