/* The objects of extension dsv3, version 1.0. Each is the public contract: a change comes with an upgrade script. */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION dsv3" to load this file. \quit

-- Asking the model. These functions cost compute, so nobody may call them until the administrator says so.

CREATE FUNCTION dsv3_generate(
	prompt pg_catalog.text,
	input pg_catalog.text DEFAULT '',
	system pg_catalog.text DEFAULT NULL,
	max_tokens pg_catalog.int4 DEFAULT NULL,
	temperature pg_catalog.float8 DEFAULT NULL,
	seed pg_catalog.int8 DEFAULT NULL,
	options pg_catalog.jsonb DEFAULT '{}')
RETURNS pg_catalog.text
AS 'MODULE_PATHNAME', 'dsv3_generate_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED COST 1000000;
COMMENT ON FUNCTION dsv3_generate(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.int4, pg_catalog.float8, pg_catalog.int8, pg_catalog.jsonb)
	IS 'answer a prompt, followed by the input if there is one';

CREATE FUNCTION dsv3_try_generate(
	prompt pg_catalog.text,
	input pg_catalog.text DEFAULT '',
	system pg_catalog.text DEFAULT NULL,
	max_tokens pg_catalog.int4 DEFAULT NULL,
	temperature pg_catalog.float8 DEFAULT NULL,
	seed pg_catalog.int8 DEFAULT NULL,
	options pg_catalog.jsonb DEFAULT '{}',
	OUT ok pg_catalog.bool,
	OUT value pg_catalog.text,
	OUT sqlstate pg_catalog.text,
	OUT error pg_catalog.text,
	OUT finish_reason pg_catalog.text,
	OUT prompt_tokens pg_catalog.int4,
	OUT cached_tokens pg_catalog.int4,
	OUT output_tokens pg_catalog.int4,
	OUT trace_id pg_catalog.uuid,
	OUT logprobs pg_catalog.jsonb)
RETURNS pg_catalog.record
AS 'MODULE_PATHNAME', 'dsv3_try_generate_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED COST 1000000;
COMMENT ON FUNCTION dsv3_try_generate(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.int4, pg_catalog.float8, pg_catalog.int8, pg_catalog.jsonb)
	IS 'answer a prompt; a failure that concerns this row only is returned instead of raised';

CREATE FUNCTION dsv3_generate_stream(
	prompt pg_catalog.text,
	input pg_catalog.text DEFAULT '',
	system pg_catalog.text DEFAULT NULL,
	max_tokens pg_catalog.int4 DEFAULT NULL,
	temperature pg_catalog.float8 DEFAULT NULL,
	seed pg_catalog.int8 DEFAULT NULL,
	options pg_catalog.jsonb DEFAULT '{}',
	OUT seq pg_catalog.int4,
	OUT delta pg_catalog.text,
	OUT finish_reason pg_catalog.text,
	OUT trace_id pg_catalog.uuid)
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'dsv3_generate_stream_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED COST 1000000 ROWS 100;
COMMENT ON FUNCTION dsv3_generate_stream(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.int4, pg_catalog.float8, pg_catalog.int8, pg_catalog.jsonb)
	IS 'answer a prompt piece by piece, as the text is made; use it in the select list';

CREATE FUNCTION dsv3_chat(
	messages pg_catalog.jsonb,
	max_tokens pg_catalog.int4 DEFAULT NULL,
	temperature pg_catalog.float8 DEFAULT NULL,
	seed pg_catalog.int8 DEFAULT NULL,
	options pg_catalog.jsonb DEFAULT '{}')
RETURNS pg_catalog.jsonb
AS 'MODULE_PATHNAME', 'dsv3_chat_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED COST 1000000;
COMMENT ON FUNCTION dsv3_chat(pg_catalog.jsonb, pg_catalog.int4, pg_catalog.float8, pg_catalog.int8, pg_catalog.jsonb)
	IS 'continue a conversation: messages in, the next message out';

CREATE FUNCTION dsv3_tokenize(content pg_catalog.text)
RETURNS pg_catalog.int4[]
AS 'MODULE_PATHNAME', 'dsv3_tokenize_1_0'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED COST 10000;
COMMENT ON FUNCTION dsv3_tokenize(pg_catalog.text) IS 'the token ids of a text';

CREATE FUNCTION dsv3_detokenize(tokens pg_catalog.int4[])
RETURNS pg_catalog.text
AS 'MODULE_PATHNAME', 'dsv3_detokenize_1_0'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED COST 10000;
COMMENT ON FUNCTION dsv3_detokenize(pg_catalog.int4[]) IS 'the text of token ids';

CREATE FUNCTION dsv3_count_tokens(content pg_catalog.text)
RETURNS pg_catalog.int4
AS 'MODULE_PATHNAME', 'dsv3_count_tokens_1_0'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED COST 10000;
COMMENT ON FUNCTION dsv3_count_tokens(pg_catalog.text) IS 'how many tokens a text has';

CREATE FUNCTION dsv3_logprob(prompt pg_catalog.text, continuation pg_catalog.text)
RETURNS pg_catalog.float8
AS 'MODULE_PATHNAME', 'dsv3_logprob_1_0'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED COST 1000000;
COMMENT ON FUNCTION dsv3_logprob(pg_catalog.text, pg_catalog.text)
	IS 'natural logarithm of the probability that the continuation follows the prompt';

CREATE FUNCTION dsv3_extract_json(
	input pg_catalog.text,
	schema pg_catalog.jsonb,
	instruction pg_catalog.text DEFAULT NULL,
	max_tokens pg_catalog.int4 DEFAULT NULL,
	options pg_catalog.jsonb DEFAULT '{}')
RETURNS pg_catalog.jsonb
AS 'MODULE_PATHNAME', 'dsv3_extract_json_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED COST 1000000;
COMMENT ON FUNCTION dsv3_extract_json(pg_catalog.text, pg_catalog.jsonb, pg_catalog.text, pg_catalog.int4, pg_catalog.jsonb)
	IS 'a JSON document that follows the schema, with values taken from the text';

CREATE FUNCTION dsv3_try_extract_json(
	input pg_catalog.text,
	schema pg_catalog.jsonb,
	instruction pg_catalog.text DEFAULT NULL,
	max_tokens pg_catalog.int4 DEFAULT NULL,
	options pg_catalog.jsonb DEFAULT '{}',
	OUT ok pg_catalog.bool,
	OUT value pg_catalog.jsonb,
	OUT sqlstate pg_catalog.text,
	OUT error pg_catalog.text,
	OUT finish_reason pg_catalog.text,
	OUT prompt_tokens pg_catalog.int4,
	OUT cached_tokens pg_catalog.int4,
	OUT output_tokens pg_catalog.int4,
	OUT trace_id pg_catalog.uuid,
	OUT logprobs pg_catalog.jsonb,
	OUT narrowed pg_catalog.bool)
RETURNS pg_catalog.record
AS 'MODULE_PATHNAME', 'dsv3_try_extract_json_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED COST 1000000;
COMMENT ON FUNCTION dsv3_try_extract_json(pg_catalog.text, pg_catalog.jsonb, pg_catalog.text, pg_catalog.int4, pg_catalog.jsonb)
	IS 'the same; a failure that concerns this row only is returned instead of raised';

CREATE FUNCTION dsv3_extract(
	input pg_catalog.text,
	"into" pg_catalog.anyelement,
	instruction pg_catalog.text DEFAULT NULL,
	options pg_catalog.jsonb DEFAULT '{}')
RETURNS pg_catalog.anyelement
AS 'MODULE_PATHNAME', 'dsv3_extract_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED COST 1000000;
COMMENT ON FUNCTION dsv3_extract(pg_catalog.text, pg_catalog.anyelement, pg_catalog.text, pg_catalog.jsonb)
	IS 'a row of the type of the second argument, with values taken from the text';

CREATE FUNCTION dsv3_check_schema(
	schema pg_catalog.jsonb,
	OUT ok pg_catalog.bool,
	OUT shortest pg_catalog.int4,
	OUT notices pg_catalog.jsonb,
	OUT sqlstate pg_catalog.text,
	OUT error pg_catalog.text,
	OUT detail pg_catalog.text,
	OUT hint pg_catalog.text,
	OUT prompt pg_catalog.text)
RETURNS pg_catalog.record
AS 'MODULE_PATHNAME', 'dsv3_check_schema_1_0'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED COST 10000;
COMMENT ON FUNCTION dsv3_check_schema(pg_catalog.jsonb)
	IS 'can answers be bound to this schema, what of it is narrowed or ignored, and what the model reads before a text';

CREATE FUNCTION dsv3_json_accepts(
	schema pg_catalog.jsonb,
	document pg_catalog.text)
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME', 'dsv3_json_accepts_1_0'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED COST 10000;
COMMENT ON FUNCTION dsv3_json_accepts(pg_catalog.jsonb, pg_catalog.text)
	IS 'could an answer to the schema be exactly this text';

CREATE FUNCTION dsv3_classify(
	input pg_catalog.text,
	labels pg_catalog.text[],
	options pg_catalog.jsonb DEFAULT '{}')
RETURNS pg_catalog.text
AS 'MODULE_PATHNAME', 'dsv3_classify_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED COST 1000000;
COMMENT ON FUNCTION dsv3_classify(pg_catalog.text, pg_catalog.text[], pg_catalog.jsonb)
	IS 'the label that fits the text best';

CREATE FUNCTION dsv3_classify_scores(
	input pg_catalog.text,
	labels pg_catalog.text[],
	options pg_catalog.jsonb DEFAULT '{}',
	OUT label pg_catalog.text,
	OUT probability pg_catalog.float8)
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'dsv3_classify_scores_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED COST 1000000 ROWS 10;
COMMENT ON FUNCTION dsv3_classify_scores(pg_catalog.text, pg_catalog.text[], pg_catalog.jsonb)
	IS 'the probability of each label';

CREATE FUNCTION dsv3_is_true(
	input pg_catalog.text,
	statement pg_catalog.text,
	options pg_catalog.jsonb DEFAULT '{}')
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME', 'dsv3_is_true_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED COST 1000000;
COMMENT ON FUNCTION dsv3_is_true(pg_catalog.text, pg_catalog.text, pg_catalog.jsonb)
	IS 'is the statement true of the text';

CREATE FUNCTION dsv3_score(
	input pg_catalog.text,
	statement pg_catalog.text,
	options pg_catalog.jsonb DEFAULT '{}')
RETURNS pg_catalog.float4
AS 'MODULE_PATHNAME', 'dsv3_score_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED COST 1000000;
COMMENT ON FUNCTION dsv3_score(pg_catalog.text, pg_catalog.text, pg_catalog.jsonb)
	IS 'probability that the statement is true of the text';

CREATE FUNCTION dsv3_generate_batch(
	inputs pg_catalog.text[],
	prompt pg_catalog.text,
	system pg_catalog.text DEFAULT NULL,
	max_tokens pg_catalog.int4 DEFAULT NULL,
	temperature pg_catalog.float8 DEFAULT NULL,
	seed pg_catalog.int8 DEFAULT NULL,
	options pg_catalog.jsonb DEFAULT '{}',
	OUT index pg_catalog.int4,
	OUT ok pg_catalog.bool,
	OUT value pg_catalog.text,
	OUT sqlstate pg_catalog.text,
	OUT error pg_catalog.text,
	OUT finish_reason pg_catalog.text,
	OUT prompt_tokens pg_catalog.int4,
	OUT cached_tokens pg_catalog.int4,
	OUT output_tokens pg_catalog.int4,
	OUT trace_id pg_catalog.uuid,
	OUT logprobs pg_catalog.jsonb)
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'dsv3_generate_batch_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED COST 1000000 ROWS 100;
COMMENT ON FUNCTION dsv3_generate_batch(pg_catalog.text[], pg_catalog.text, pg_catalog.text, pg_catalog.int4, pg_catalog.float8, pg_catalog.int8, pg_catalog.jsonb)
	IS 'answer a prompt for each input of an array; a failure that concerns one input is returned in its row';

CREATE FUNCTION dsv3_extract_json_batch(
	inputs pg_catalog.text[],
	schema pg_catalog.jsonb,
	instruction pg_catalog.text DEFAULT NULL,
	max_tokens pg_catalog.int4 DEFAULT NULL,
	options pg_catalog.jsonb DEFAULT '{}',
	OUT index pg_catalog.int4,
	OUT ok pg_catalog.bool,
	OUT value pg_catalog.jsonb,
	OUT sqlstate pg_catalog.text,
	OUT error pg_catalog.text,
	OUT finish_reason pg_catalog.text,
	OUT prompt_tokens pg_catalog.int4,
	OUT cached_tokens pg_catalog.int4,
	OUT output_tokens pg_catalog.int4,
	OUT trace_id pg_catalog.uuid,
	OUT logprobs pg_catalog.jsonb,
	OUT narrowed pg_catalog.bool)
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'dsv3_extract_json_batch_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED COST 1000000 ROWS 100;
COMMENT ON FUNCTION dsv3_extract_json_batch(pg_catalog.text[], pg_catalog.jsonb, pg_catalog.text, pg_catalog.int4, pg_catalog.jsonb)
	IS 'a JSON document that follows the schema for each input of an array; a failure that concerns one input is returned in its row';

CREATE FUNCTION dsv3_agg_step(state pg_catalog.internal, input pg_catalog.text, instruction pg_catalog.text)
RETURNS pg_catalog.internal
AS 'MODULE_PATHNAME', 'dsv3_agg_step_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED;
COMMENT ON FUNCTION dsv3_agg_step(pg_catalog.internal, pg_catalog.text, pg_catalog.text) IS 'of dsv3_agg';

CREATE FUNCTION dsv3_summarize_agg_step(state pg_catalog.internal, input pg_catalog.text)
RETURNS pg_catalog.internal
AS 'MODULE_PATHNAME', 'dsv3_summarize_agg_step_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED;
COMMENT ON FUNCTION dsv3_summarize_agg_step(pg_catalog.internal, pg_catalog.text) IS 'of dsv3_summarize_agg';

CREATE FUNCTION dsv3_agg_final(state pg_catalog.internal)
RETURNS pg_catalog.text
AS 'MODULE_PATHNAME', 'dsv3_agg_final_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED COST 1000000;
COMMENT ON FUNCTION dsv3_agg_final(pg_catalog.internal) IS 'of dsv3_agg and dsv3_summarize_agg';

CREATE AGGREGATE dsv3_agg(input pg_catalog.text, instruction pg_catalog.text) (
	SFUNC = dsv3_agg_step,
	STYPE = pg_catalog.internal,
	FINALFUNC = dsv3_agg_final,
	PARALLEL = RESTRICTED);
COMMENT ON AGGREGATE dsv3_agg(pg_catalog.text, pg_catalog.text) IS 'one answer to the instruction about all texts, however many they are';

CREATE AGGREGATE dsv3_summarize_agg(input pg_catalog.text) (
	SFUNC = dsv3_summarize_agg_step,
	STYPE = pg_catalog.internal,
	FINALFUNC = dsv3_agg_final,
	PARALLEL = RESTRICTED);
COMMENT ON AGGREGATE dsv3_summarize_agg(pg_catalog.text) IS 'one summary of all texts, however many they are';

CREATE FUNCTION dsv3_estimate(
	query pg_catalog.text,
	sample pg_catalog.int4 DEFAULT 20,
	OUT rows pg_catalog.int8,
	OUT calls pg_catalog.int8,
	OUT prompt_tokens pg_catalog.int8,
	OUT cached_tokens pg_catalog.int8,
	OUT output_tokens pg_catalog.int8,
	OUT seconds pg_catalog.float8,
	OUT sampled_calls pg_catalog.int4,
	OUT exact pg_catalog.bool)
RETURNS pg_catalog.record
AS 'MODULE_PATHNAME', 'dsv3_estimate_1_0'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE COST 1000000;
COMMENT ON FUNCTION dsv3_estimate(pg_catalog.text, pg_catalog.int4)
	IS 'what a query would ask of the model, from its plan and a few of its calls';

CREATE FUNCTION dsv3_pin_prefix(
	prompt pg_catalog.text,
	system pg_catalog.text DEFAULT NULL,
	options pg_catalog.jsonb DEFAULT '{}')
RETURNS pg_catalog.int4
AS 'MODULE_PATHNAME', 'dsv3_pin_prefix_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED COST 1000000;
COMMENT ON FUNCTION dsv3_pin_prefix(pg_catalog.text, pg_catalog.text, pg_catalog.jsonb)
	IS 'compute the beginning of dsv3_generate(prompt, input) for any input and keep it in the cache; how many tokens that is';

CREATE FUNCTION dsv3_unpin_prefix(
	prompt pg_catalog.text,
	system pg_catalog.text DEFAULT NULL,
	options pg_catalog.jsonb DEFAULT '{}')
RETURNS pg_catalog.int4
AS 'MODULE_PATHNAME', 'dsv3_unpin_prefix_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED COST 10000;
COMMENT ON FUNCTION dsv3_unpin_prefix(pg_catalog.text, pg_catalog.text, pg_catalog.jsonb)
	IS 'undo one dsv3_pin_prefix with the same arguments; how many tokens it concerned';

CREATE FUNCTION dsv3_cache_reset(kind pg_catalog.text DEFAULT 'all')
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME', 'dsv3_cache_reset_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED COST 10000;
COMMENT ON FUNCTION dsv3_cache_reset(pg_catalog.text)
	IS 'throw away the cached beginnings of prompts of all roles, in memory and on disk, or in memory only';

CREATE FUNCTION dsv3_warmup()
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME', 'dsv3_warmup_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED COST 1000000;
COMMENT ON FUNCTION dsv3_warmup()
	IS 'read all files of the weights, so that no answer waits for the disk; how many bytes they are';

CREATE FUNCTION dsv3_routing_html(
	prompt pg_catalog.text,
	system pg_catalog.text DEFAULT NULL,
	options pg_catalog.jsonb DEFAULT '{}')
RETURNS pg_catalog.text
AS 'MODULE_PATHNAME', 'dsv3_routing_html_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED COST 1000000;
COMMENT ON FUNCTION dsv3_routing_html(pg_catalog.text, pg_catalog.text, pg_catalog.jsonb)
	IS 'a page for a browser: the experts that each token of a prompt goes to in each layer, with their scores';
REVOKE ALL ON FUNCTION dsv3_routing_html(pg_catalog.text, pg_catalog.text, pg_catalog.jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION dsv3_generate(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.int4, pg_catalog.float8, pg_catalog.int8, pg_catalog.jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_try_generate(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.int4, pg_catalog.float8, pg_catalog.int8, pg_catalog.jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_generate_stream(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.int4, pg_catalog.float8, pg_catalog.int8, pg_catalog.jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_chat(pg_catalog.jsonb, pg_catalog.int4, pg_catalog.float8, pg_catalog.int8, pg_catalog.jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_tokenize(pg_catalog.text) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_detokenize(pg_catalog.int4[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_count_tokens(pg_catalog.text) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_logprob(pg_catalog.text, pg_catalog.text) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_extract_json(pg_catalog.text, pg_catalog.jsonb, pg_catalog.text, pg_catalog.int4, pg_catalog.jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_try_extract_json(pg_catalog.text, pg_catalog.jsonb, pg_catalog.text, pg_catalog.int4, pg_catalog.jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_extract(pg_catalog.text, pg_catalog.anyelement, pg_catalog.text, pg_catalog.jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_check_schema(pg_catalog.jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_json_accepts(pg_catalog.jsonb, pg_catalog.text) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_classify(pg_catalog.text, pg_catalog.text[], pg_catalog.jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_classify_scores(pg_catalog.text, pg_catalog.text[], pg_catalog.jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_is_true(pg_catalog.text, pg_catalog.text, pg_catalog.jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_score(pg_catalog.text, pg_catalog.text, pg_catalog.jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_generate_batch(pg_catalog.text[], pg_catalog.text, pg_catalog.text, pg_catalog.int4, pg_catalog.float8, pg_catalog.int8, pg_catalog.jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_extract_json_batch(pg_catalog.text[], pg_catalog.jsonb, pg_catalog.text, pg_catalog.int4, pg_catalog.jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_agg_step(pg_catalog.internal, pg_catalog.text, pg_catalog.text) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_summarize_agg_step(pg_catalog.internal, pg_catalog.text) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_agg_final(pg_catalog.internal) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_agg(pg_catalog.text, pg_catalog.text) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_summarize_agg(pg_catalog.text) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_estimate(pg_catalog.text, pg_catalog.int4) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_pin_prefix(pg_catalog.text, pg_catalog.text, pg_catalog.jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_unpin_prefix(pg_catalog.text, pg_catalog.text, pg_catalog.jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_cache_reset(pg_catalog.text) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_warmup() FROM PUBLIC;

-- State. Read from shared memory, costs nothing, and open to all; each shows a role only what is its business: messages
-- that name files of the server go to pg_read_all_stats only, the model's path to superusers, requests to who made them.
-- dsv3_cancel checks in C whose request it is, as pg_cancel_backend does.
-- public: dsv3_health dsv3_model_info dsv3_version dsv3_activity dsv3_stat_engine dsv3_cancel
-- public: dsv3_stat_latency dsv3_stat_failures dsv3_stat_roles dsv3_stat_experts

CREATE FUNCTION dsv3_health(
	OUT state pg_catalog.text,
	OUT since pg_catalog.timestamptz,
	OUT model pg_catalog.text,
	OUT digest pg_catalog.text,
	OUT device pg_catalog.text,
	OUT queued pg_catalog.int4,
	OUT running pg_catalog.int4,
	OUT oldest_wait pg_catalog.interval,
	OUT restarts pg_catalog.int8,
	OUT next_start_at pg_catalog.timestamptz,
	OUT last_error pg_catalog.text,
	OUT last_hint pg_catalog.text,
	OUT last_error_at pg_catalog.timestamptz,
	OUT engine_pid pg_catalog.int4,
	OUT supervisor_pid pg_catalog.int4,
	OUT library_version pg_catalog.text,
	OUT engine_version pg_catalog.text,
	OUT protocol_version pg_catalog.int4)
RETURNS pg_catalog.record
AS 'MODULE_PATHNAME', 'dsv3_health_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED;
COMMENT ON FUNCTION dsv3_health() IS 'state of the engine; one row, in every state of the server';

CREATE FUNCTION dsv3_model_info()
RETURNS pg_catalog.jsonb
AS 'MODULE_PATHNAME', 'dsv3_model_info_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED;
COMMENT ON FUNCTION dsv3_model_info() IS 'what the engine says of its model';

CREATE FUNCTION dsv3_version()
RETURNS pg_catalog.text
AS 'MODULE_PATHNAME', 'dsv3_version_1_0'
LANGUAGE C STABLE CALLED ON NULL INPUT PARALLEL SAFE;
COMMENT ON FUNCTION dsv3_version() IS 'version of the library';

CREATE FUNCTION dsv3_activity(
	OUT trace_id pg_catalog.uuid,
	OUT pid pg_catalog.int4,
	OUT role pg_catalog.text,
	OUT database pg_catalog.text,
	OUT kind pg_catalog.text,
	OUT state pg_catalog.text,
	OUT priority pg_catalog.text,
	OUT prompt pg_catalog.text,
	OUT prompt_tokens pg_catalog.int4,
	OUT output_tokens pg_catalog.int4,
	OUT attempts pg_catalog.int4,
	OUT submitted_at pg_catalog.timestamptz,
	OUT started_at pg_catalog.timestamptz,
	OUT first_token_at pg_catalog.timestamptz,
	OUT traceparent pg_catalog.text)
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'dsv3_activity_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED ROWS 100;
COMMENT ON FUNCTION dsv3_activity() IS 'requests that wait or run; see the view of the same name';

CREATE VIEW dsv3_activity AS SELECT * FROM @extschema@.dsv3_activity();
COMMENT ON VIEW dsv3_activity
	IS 'requests that wait or run: one''s own, or all for members of pg_read_all_stats; prompts only of one''s own';
GRANT SELECT ON dsv3_activity TO PUBLIC;

CREATE FUNCTION dsv3_stat_engine(
	OUT requests pg_catalog.int8,
	OUT completed pg_catalog.int8,
	OUT failed pg_catalog.int8,
	OUT cancelled pg_catalog.int8,
	OUT refused pg_catalog.int8,
	OUT nulled pg_catalog.int8,
	OUT resubmitted pg_catalog.int8,
	OUT prompt_tokens pg_catalog.int8,
	OUT cached_tokens pg_catalog.int8,
	OUT output_tokens pg_catalog.int8,
	OUT restarts pg_catalog.int8,
	OUT queue_size pg_catalog.int4,
	OUT memory_bytes pg_catalog.int8,
	OUT memory_free_bytes pg_catalog.int8,
	OUT engine pg_catalog.jsonb,
	OUT stats_since pg_catalog.timestamptz)
RETURNS pg_catalog.record
AS 'MODULE_PATHNAME', 'dsv3_stat_engine_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED;
COMMENT ON FUNCTION dsv3_stat_engine() IS 'sums over all requests; see the view of the same name';

CREATE VIEW dsv3_stat_engine AS SELECT * FROM @extschema@.dsv3_stat_engine();
COMMENT ON VIEW dsv3_stat_engine IS 'sums over all requests since the last dsv3_stat_reset, and the engine''s own counters';
GRANT SELECT ON dsv3_stat_engine TO PUBLIC;

CREATE FUNCTION dsv3_stat_latency(
	OUT name pg_catalog.text,
	OUT edges pg_catalog.float8[],
	OUT counts pg_catalog.int8[],
	OUT count pg_catalog.int8,
	OUT sum pg_catalog.float8)
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'dsv3_stat_latency_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED ROWS 6;
COMMENT ON FUNCTION dsv3_stat_latency() IS 'times in classes; see the view of the same name';

CREATE VIEW dsv3_stat_latency AS SELECT * FROM @extschema@.dsv3_stat_latency();
COMMENT ON VIEW dsv3_stat_latency IS 'how long requests and their parts took: how many at most each of the edges, in seconds; all of them, and their sum';
GRANT SELECT ON dsv3_stat_latency TO PUBLIC;

CREATE FUNCTION dsv3_stat_failures(
	OUT sqlstate pg_catalog.text,
	OUT failures pg_catalog.int8)
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'dsv3_stat_failures_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED ROWS 10;
COMMENT ON FUNCTION dsv3_stat_failures() IS 'failures by SQLSTATE; see the view of the same name';

CREATE VIEW dsv3_stat_failures AS SELECT * FROM @extschema@.dsv3_stat_failures();
COMMENT ON VIEW dsv3_stat_failures IS 'how many requests failed or were refused with which SQLSTATE';
GRANT SELECT ON dsv3_stat_failures TO PUBLIC;

CREATE FUNCTION dsv3_stat_roles(
	OUT role pg_catalog.text,
	OUT requests pg_catalog.int8,
	OUT completed pg_catalog.int8,
	OUT failed pg_catalog.int8,
	OUT cancelled pg_catalog.int8,
	OUT refused pg_catalog.int8,
	OUT nulled pg_catalog.int8,
	OUT prompt_tokens pg_catalog.int8,
	OUT cached_tokens pg_catalog.int8,
	OUT output_tokens pg_catalog.int8,
	OUT queue_ms pg_catalog.float8,
	OUT compute_ms pg_catalog.float8,
	OUT last_request_at pg_catalog.timestamptz)
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'dsv3_stat_roles_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED ROWS 20;
COMMENT ON FUNCTION dsv3_stat_roles() IS 'sums by role; see the view of the same name';

CREATE VIEW dsv3_stat_roles AS SELECT * FROM @extschema@.dsv3_stat_roles();
COMMENT ON VIEW dsv3_stat_roles
	IS 'what each role has asked for and got: one''s own row, or all for members of pg_read_all_stats';
GRANT SELECT ON dsv3_stat_roles TO PUBLIC;

CREATE FUNCTION dsv3_stat_experts(
	OUT layer pg_catalog.int4,
	OUT expert pg_catalog.int4,
	OUT tokens pg_catalog.int8,
	OUT share pg_catalog.float8,
	OUT balancedness pg_catalog.float8)
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'dsv3_stat_experts_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED ROWS 1000;
COMMENT ON FUNCTION dsv3_stat_experts() IS 'tokens by expert; see the view of the same name';

CREATE VIEW dsv3_stat_experts AS SELECT * FROM @extschema@.dsv3_stat_experts();
COMMENT ON VIEW dsv3_stat_experts
	IS 'how many tokens each routed expert of each layer has computed, their share of the layer, and how even the layer is';
GRANT SELECT ON dsv3_stat_experts TO PUBLIC;

CREATE FUNCTION dsv3_stat_reset()
RETURNS pg_catalog.timestamptz
AS 'MODULE_PATHNAME', 'dsv3_stat_reset_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED;
COMMENT ON FUNCTION dsv3_stat_reset() IS 'set all statistics to zero, for all roles and databases; the time from which on is counted';
REVOKE ALL ON FUNCTION dsv3_stat_reset() FROM PUBLIC;

-- Names of all roles are in it.
CREATE FUNCTION dsv3_metrics_text(format pg_catalog.text DEFAULT 'openmetrics')
RETURNS pg_catalog.text
AS 'MODULE_PATHNAME', 'dsv3_metrics_text_1_0'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION dsv3_metrics_text(pg_catalog.text)
	IS 'the statistics as text for Prometheus: "openmetrics", or "prometheus" for its older format';
REVOKE ALL ON FUNCTION dsv3_metrics_text(pg_catalog.text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION dsv3_metrics_text(pg_catalog.text) TO pg_monitor;

CREATE VIEW dsv3_stat_kv_cache AS SELECT
	(s.engine OPERATOR(pg_catalog.->>) 'kv_blocks')::pg_catalog.int8 AS blocks,
	(s.engine OPERATOR(pg_catalog.->>) 'kv_block_tokens')::pg_catalog.int8 AS block_tokens,
	(s.engine OPERATOR(pg_catalog.->>) 'kv_blocks_used')::pg_catalog.int8 AS used,
	(s.engine OPERATOR(pg_catalog.->>) 'kv_blocks_cached')::pg_catalog.int8 AS cached,
	(s.engine OPERATOR(pg_catalog.->>) 'kv_blocks_pinned')::pg_catalog.int8 AS pinned,
	(s.engine OPERATOR(pg_catalog.->>) 'kv_blocks_evicted')::pg_catalog.int8 AS evicted,
	(s.engine OPERATOR(pg_catalog.->>) 'prompt_tokens')::pg_catalog.int8 AS prompt_tokens,
	(s.engine OPERATOR(pg_catalog.->>) 'cached_tokens')::pg_catalog.int8 AS cached_tokens,
	(s.engine OPERATOR(pg_catalog.->>) 'kv_disk_blocks')::pg_catalog.int8 AS disk_blocks,
	(s.engine OPERATOR(pg_catalog.->>) 'kv_disk_blocks_used')::pg_catalog.int8 AS disk_used,
	(s.engine OPERATOR(pg_catalog.->>) 'kv_disk_loaded')::pg_catalog.int8 AS disk_loaded,
	(s.engine OPERATOR(pg_catalog.->>) 'kv_disk_stored')::pg_catalog.int8 AS disk_stored,
	(s.engine OPERATOR(pg_catalog.->>) 'kv_disk_damaged')::pg_catalog.int8 AS disk_damaged,
	(s.engine OPERATOR(pg_catalog.->>) 'kv_disk_not_stored')::pg_catalog.int8 AS disk_not_stored
FROM @extschema@.dsv3_stat_engine() AS s;
COMMENT ON VIEW dsv3_stat_kv_cache IS 'the engine''s cache: blocks in memory and on disk, tokens found in it since the engine started';
GRANT SELECT ON dsv3_stat_kv_cache TO PUBLIC;

CREATE FUNCTION dsv3_cancel(trace_id pg_catalog.uuid)
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME', 'dsv3_cancel_1_0'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION dsv3_cancel(pg_catalog.uuid)
	IS 'end a request of one''s own, or of anyone for members of pg_signal_backend; false if there is none';

-- Prompts as objects. The tables belong to the extension's owner and are written by the functions below, which ask whether the
-- caller may; everybody reads of them what the view shows. There is no foreign key between tables that are dumped, because pg_restore
-- with several processes fills them in any order; the functions keep them together.

CREATE TABLE dsv3_prompt (
	name pg_catalog.text PRIMARY KEY,
	owner pg_catalog.regrole, -- NULL: dropped; the row stays, so that no number is used again
	readers pg_catalog.regrole[] NOT NULL DEFAULT '{}',
	last_version pg_catalog.int4 NOT NULL DEFAULT 1,
	shipped pg_catalog.bool NOT NULL DEFAULT false);
COMMENT ON TABLE dsv3_prompt IS 'names of prompts, who owns them and who may run them (0: everybody)';

CREATE TABLE dsv3_prompt_version (
	name pg_catalog.text,
	version pg_catalog.int4,
	template pg_catalog.text NOT NULL,
	system pg_catalog.text,
	schema pg_catalog.jsonb,
	options pg_catalog.jsonb,
	created_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.now(),
	shipped pg_catalog.bool NOT NULL DEFAULT false,
	PRIMARY KEY (name, version));
COMMENT ON TABLE dsv3_prompt_version IS 'versions of prompts; a version never changes';

SELECT pg_catalog.pg_extension_config_dump('dsv3_prompt', 'WHERE NOT shipped');
SELECT pg_catalog.pg_extension_config_dump('dsv3_prompt_version', 'WHERE NOT shipped');

CREATE VIEW dsv3_prompts WITH (security_barrier) AS
SELECT p.name, v.version, p.owner, p.readers, v.template, v.system, v.schema, v.options, v.created_at
FROM @extschema@.dsv3_prompt AS p
JOIN @extschema@.dsv3_prompt_version AS v ON v.name OPERATOR(pg_catalog.=) p.name
WHERE pg_catalog.pg_has_role(p.owner::pg_catalog.oid, 'USAGE')
	OR EXISTS (SELECT FROM pg_catalog.unnest(p.readers) AS r (role)
		WHERE r.role::pg_catalog.oid OPERATOR(pg_catalog.=) 0::pg_catalog.oid OR pg_catalog.pg_has_role(r.role::pg_catalog.oid, 'USAGE'));
COMMENT ON VIEW dsv3_prompts IS 'the prompts that one may run: one''s own, and those that their owner has granted';
GRANT SELECT ON dsv3_prompts TO PUBLIC;

CREATE FUNCTION dsv3_prompt_create(
	name pg_catalog.text,
	template pg_catalog.text,
	system pg_catalog.text DEFAULT NULL,
	schema pg_catalog.jsonb DEFAULT NULL,
	options pg_catalog.jsonb DEFAULT '{}')
RETURNS pg_catalog.int4
AS 'MODULE_PATHNAME', 'dsv3_prompt_create_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE COST 100;
COMMENT ON FUNCTION dsv3_prompt_create(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.jsonb)
	IS 'make a prompt, or another version of one''s own; returns the version';

CREATE FUNCTION dsv3_prompt_drop(name pg_catalog.text, version pg_catalog.int4 DEFAULT NULL)
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME', 'dsv3_prompt_drop_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE COST 100;
COMMENT ON FUNCTION dsv3_prompt_drop(pg_catalog.text, pg_catalog.int4) IS 'remove a prompt of one''s own, or one of its versions';

CREATE FUNCTION dsv3_prompt_grant(name pg_catalog.text, role pg_catalog.name)
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME', 'dsv3_prompt_grant_1_0'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE COST 100;
COMMENT ON FUNCTION dsv3_prompt_grant(pg_catalog.text, pg_catalog.name) IS 'let a role, or public, run a prompt of one''s own';

CREATE FUNCTION dsv3_prompt_revoke(name pg_catalog.text, role pg_catalog.name)
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME', 'dsv3_prompt_revoke_1_0'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE COST 100;
COMMENT ON FUNCTION dsv3_prompt_revoke(pg_catalog.text, pg_catalog.name) IS 'undo dsv3_prompt_grant';

CREATE FUNCTION dsv3_run(
	name pg_catalog.text,
	input pg_catalog.text,
	version pg_catalog.int4 DEFAULT NULL)
RETURNS pg_catalog.text
AS 'MODULE_PATHNAME', 'dsv3_run_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED COST 1000000;
COMMENT ON FUNCTION dsv3_run(pg_catalog.text, pg_catalog.text, pg_catalog.int4)
	IS 'the answer to a prompt about a text, by the newest version or the given one';

REVOKE ALL ON FUNCTION dsv3_prompt_create(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_prompt_drop(pg_catalog.text, pg_catalog.int4) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_prompt_grant(pg_catalog.text, pg_catalog.name) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_prompt_revoke(pg_catalog.text, pg_catalog.name) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_run(pg_catalog.text, pg_catalog.text, pg_catalog.int4) FROM PUBLIC;

-- The prompts that come with the extension, for whoever may call dsv3_run.

INSERT INTO dsv3_prompt (name, owner, readers, shipped)
SELECT n.name, CURRENT_USER::pg_catalog.regrole, ARRAY[0::pg_catalog.oid::pg_catalog.regrole], true
FROM (VALUES ('customer_qa'), ('log_summary'), ('structured_extraction'), ('code_review')) AS n (name);

INSERT INTO dsv3_prompt_version (name, version, template, system, schema, options, shipped) VALUES
('customer_qa', 1,
'A customer has written to us. What we know about the matter stands first, the customer''s message after it. Write the answer that we send:
- Use only what stands in the text below. If it does not answer the question, say so and say that a colleague will look into it.
- Answer the question in the first sentence. Then give the steps that the customer has to take, if there are any, one per line.
- Be friendly and brief: no more than six sentences. Promise no dates, prices or refunds that the text does not name.
- Write in the language of the customer''s message.

{input}',
'You answer for the customer service of a company. You are accurate before you are helpful.',
NULL, '{"temperature": 0.3, "max_tokens": 300}', true),
('log_summary', 1,
'Below are lines of a log, oldest first. Write a summary for the person on duty:
1. One sentence: what happened, and whether it is over.
2. The events that matter, in their order, each with its time as it stands in the log, and the component that reported it. Leave out what is routine, and say how often a line is repeated rather than repeating it.
3. The most likely cause, and the line that shows it. If the log does not show a cause, say that.
4. What to look at next.
Take names, numbers and times from the log as they are. Do not guess at what stands between the lines.

Log:

{input}',
'You read logs of servers for people who have to act on them.',
NULL, '{"temperature": 0.3, "budget": 1.2}', true),
('structured_extraction', 1,
'Read the text below and fill in the document that the JSON Schema describes. Take every value from the text and write names as they are written there. Where the text says nothing, use null or an empty list. Write dates as YYYY-MM-DD if the text gives day, month and year, and as they stand otherwise.

JSON Schema:
{schema}

Text:

{input}',
NULL,
'{"type": "object", "x-order": ["kind", "language", "summary", "people", "organizations", "places", "dates", "amounts"], "additionalProperties": false,
 "required": ["kind", "language", "summary", "people", "organizations", "places", "dates", "amounts"], "properties": {
 "kind": {"enum": ["letter", "invoice", "order", "contract", "report", "article", "conversation", "other"], "description": "what the text is"},
 "language": {"type": "string", "pattern": "^[a-z]{2}$", "description": "language of the text, as two letters"},
 "summary": {"type": "string", "maxLength": 200, "description": "one sentence"},
 "people": {"type": "array", "maxItems": 10, "items": {"type": "string", "maxLength": 80}},
 "organizations": {"type": "array", "maxItems": 10, "items": {"type": "string", "maxLength": 80}},
 "places": {"type": "array", "maxItems": 10, "items": {"type": "string", "maxLength": 80}},
 "dates": {"type": "array", "maxItems": 10, "items": {"type": "object", "additionalProperties": false, "required": ["date", "what"],
  "properties": {"date": {"type": "string", "maxLength": 40}, "what": {"type": "string", "maxLength": 80}}}},
 "amounts": {"type": "array", "maxItems": 10, "items": {"type": "object", "additionalProperties": false, "required": ["amount", "unit", "what"],
  "properties": {"amount": {"type": "number", "minimum": -1000000000000, "maximum": 1000000000000}, "unit": {"type": ["string", "null"], "maxLength": 20},
   "what": {"type": "string", "maxLength": 80}}}}}}', '{}', true),
('code_review', 1,
'Review the code below, a file or a difference between two versions of one. Report what a careful colleague would want changed before it is merged:
- First what is wrong: errors in its logic, cases that are not handled, unchecked input, leaks, races, injection.
- Then what will be hard to maintain: misleading names, code that is repeated, comments that contradict the code.
- For each finding give the place (function or line), what goes wrong and when, and the smallest change that repairs it.
- Do not comment on layout, and do not praise. If you find nothing wrong, write "No findings." and nothing else.

Code:

{input}',
'You review code for a team of experienced programmers. You report only what you can show in the code.',
NULL, '{"temperature": 0.3, "budget": 1.2}', true);

-- The audit log. One row for each request that made the model compute, written by a process of its own. Rows are never
-- changed; each is chained to the one before it. Partitions are made by the writer.

CREATE TABLE dsv3_audit_log (
	seq pg_catalog.int8,
	logged_at pg_catalog.timestamptz,
	request_id pg_catalog.uuid,
	trace_id pg_catalog.uuid,
	traceparent pg_catalog.text,
	started_at pg_catalog.timestamptz,
	database pg_catalog.text,
	session_role pg_catalog.text,
	role pg_catalog.text,
	role_oid pg_catalog.oid,
	application pg_catalog.text,
	client pg_catalog.inet,
	pid pg_catalog.int4,
	query_id pg_catalog.int8,
	xid pg_catalog.xid8,
	function pg_catalog.text,
	prompt_name pg_catalog.text,
	prompt_version pg_catalog.int4,
	model pg_catalog.text,
	model_digest pg_catalog.text,
	engine pg_catalog.text,
	hash_kind pg_catalog.text,
	input_hash pg_catalog.bytea,
	prompt_hash pg_catalog.bytea,
	schema_hash pg_catalog.bytea,
	request_hash pg_catalog.bytea,
	params pg_catalog.jsonb,
	seed pg_catalog.int8,
	prompt_tokens pg_catalog.int4,
	cached_tokens pg_catalog.int4,
	output_tokens pg_catalog.int4,
	output_hash pg_catalog.bytea,
	status pg_catalog.text,
	sqlstate pg_catalog.text,
	finish_reason pg_catalog.text,
	queue_ms pg_catalog.float8,
	prefill_ms pg_catalog.float8,
	decode_ms pg_catalog.float8,
	total_ms pg_catalog.float8,
	experts_digest pg_catalog.bytea,
	request pg_catalog.bytea,
	input pg_catalog.text,
	output pg_catalog.text,
	prev_hash pg_catalog.bytea,
	row_hash pg_catalog.bytea,
	PRIMARY KEY (seq, logged_at)
) PARTITION BY RANGE (logged_at);
CREATE INDEX dsv3_audit_log_request ON dsv3_audit_log (request_id);
CREATE INDEX dsv3_audit_log_trace ON dsv3_audit_log (trace_id);
CREATE INDEX dsv3_audit_log_input ON dsv3_audit_log (input_hash);
CREATE INDEX dsv3_audit_log_role ON dsv3_audit_log (role, logged_at);
CREATE INDEX dsv3_audit_log_model ON dsv3_audit_log (model, logged_at);
CREATE INDEX dsv3_audit_log_time ON dsv3_audit_log (logged_at);
CREATE INDEX dsv3_audit_log_slow ON dsv3_audit_log (total_ms);
CREATE INDEX dsv3_audit_log_failed ON dsv3_audit_log (logged_at) WHERE status OPERATOR(pg_catalog.<>) 'done';
COMMENT ON TABLE dsv3_audit_log
	IS 'one row for each request that made the model compute: one''s own, or all for those who may execute dsv3_audit_verify';

-- Requests that were started and have not ended.
CREATE TABLE dsv3_audit_open (LIKE dsv3_audit_log, PRIMARY KEY (request_id));
COMMENT ON TABLE dsv3_audit_open IS 'requests of the audit log that have not ended; for the writer';

-- The last row of the chain.
CREATE TABLE dsv3_audit_head (
	seq pg_catalog.int8 NOT NULL,
	logged_at pg_catalog.timestamptz NOT NULL,
	row_hash pg_catalog.bytea NOT NULL);
INSERT INTO dsv3_audit_head VALUES (0, '2000-01-01 00:00:00+00', pg_catalog.decode(pg_catalog.repeat('00', 32), 'hex'));
COMMENT ON TABLE dsv3_audit_head IS 'number and hash of the last row of the audit log; for the writer';

-- What is left of partitions that were dropped.
CREATE TABLE dsv3_audit_checkpoint (
	made_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	made_by pg_catalog.text NOT NULL DEFAULT session_user,
	partition pg_catalog.text NOT NULL,
	first_seq pg_catalog.int8 PRIMARY KEY,
	last_seq pg_catalog.int8 NOT NULL,
	prev_hash pg_catalog.bytea NOT NULL,
	last_hash pg_catalog.bytea NOT NULL,
	signature pg_catalog.bytea NOT NULL);
COMMENT ON TABLE dsv3_audit_checkpoint IS 'signed traces of the months that were dropped from the audit log';

CREATE FUNCTION dsv3_audit_guard()
RETURNS pg_catalog.trigger
AS 'MODULE_PATHNAME', 'dsv3_audit_guard_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED;
COMMENT ON FUNCTION dsv3_audit_guard() IS 'trigger: rows of the audit log are never changed';
CREATE TRIGGER dsv3_audit_guard_rows BEFORE UPDATE OR DELETE ON dsv3_audit_log FOR EACH ROW EXECUTE FUNCTION dsv3_audit_guard();
CREATE TRIGGER dsv3_audit_guard BEFORE TRUNCATE ON dsv3_audit_log EXECUTE FUNCTION dsv3_audit_guard();
CREATE TRIGGER dsv3_audit_guard_rows BEFORE UPDATE OR DELETE ON dsv3_audit_checkpoint
	FOR EACH ROW EXECUTE FUNCTION dsv3_audit_guard();
CREATE TRIGGER dsv3_audit_guard BEFORE TRUNCATE ON dsv3_audit_checkpoint EXECUTE FUNCTION dsv3_audit_guard();

CREATE FUNCTION dsv3_audit_verify(
	"from" pg_catalog.timestamptz DEFAULT NULL,
	"to" pg_catalog.timestamptz DEFAULT NULL,
	OUT ok pg_catalog.bool,
	OUT rows pg_catalog.int8,
	OUT first_seq pg_catalog.int8,
	OUT last_seq pg_catalog.int8,
	OUT head pg_catalog.bytea,
	OUT bad_seq pg_catalog.int8,
	OUT problem pg_catalog.text)
RETURNS pg_catalog.record
AS 'MODULE_PATHNAME', 'dsv3_audit_verify_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED COST 1000000 SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION dsv3_audit_verify(pg_catalog.timestamptz, pg_catalog.timestamptz)
	IS 'was any row of the audit log changed, removed, added or moved; who may execute this sees all rows';

CREATE FUNCTION dsv3_audit_flush()
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME', 'dsv3_audit_flush_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED;
COMMENT ON FUNCTION dsv3_audit_flush() IS 'wait until every request that has ended is in the audit log';

CREATE FUNCTION dsv3_audit_digest(content pg_catalog.text)
RETURNS pg_catalog.bytea
AS 'MODULE_PATHNAME', 'dsv3_audit_digest_1_0'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION dsv3_audit_digest(pg_catalog.text) IS 'the hash that the audit log has of a text';

CREATE FUNCTION dsv3_audit_expire(before pg_catalog.timestamptz)
RETURNS pg_catalog.int4
AS 'MODULE_PATHNAME', 'dsv3_audit_expire_1_0'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s';
COMMENT ON FUNCTION dsv3_audit_expire(pg_catalog.timestamptz)
	IS 'drop the months of the audit log that ended before a time, after a signed checkpoint; how many';

CREATE FUNCTION dsv3_replay(
	trace_id pg_catalog.uuid,
	OUT same pg_catalog.bool,
	OUT same_model pg_catalog.bool,
	OUT recorded_hash pg_catalog.bytea,
	OUT replayed_hash pg_catalog.bytea,
	OUT replay_id pg_catalog.uuid)
RETURNS pg_catalog.record
AS 'MODULE_PATHNAME', 'dsv3_replay_1_0'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED COST 1000000;
COMMENT ON FUNCTION dsv3_replay(pg_catalog.uuid)
	IS 'run a request of the audit log again, if its texts were kept: are the bytes of the answer the same';

REVOKE ALL ON FUNCTION dsv3_audit_guard() FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_audit_verify(pg_catalog.timestamptz, pg_catalog.timestamptz) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_audit_flush() FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_audit_digest(pg_catalog.text) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_audit_expire(pg_catalog.timestamptz) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_replay(pg_catalog.uuid) FROM PUBLIC;

-- A role's own rows carry its number, which stays when the role is renamed, and which a new role of an old name does not have. A
-- dump, after which numbers mean other roles, has no rows. Rights on partitions are given to nobody: this would not hold there.
ALTER TABLE dsv3_audit_log ENABLE ROW LEVEL SECURITY;
CREATE POLICY dsv3_audit_own ON dsv3_audit_log FOR SELECT USING (
	(SELECT pg_catalog.has_function_privilege('@extschema@.dsv3_audit_verify(timestamptz, timestamptz)', 'EXECUTE'))
	OR role_oid OPERATOR(pg_catalog.=)
		(SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname OPERATOR(pg_catalog.=) current_user));
GRANT SELECT ON dsv3_audit_log TO PUBLIC;

-- Jobs: a call of the model for each row of a query, in background workers. The tables are the extension's own: roles see their jobs
-- in the views and change them by the functions, which check in C whose job it is. A dump has jobs and what is left of them; as with
-- prompts there is no foreign key.

CREATE TABLE _dsv3_job (
	id pg_catalog.int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	home pg_catalog.text NOT NULL,
	role_oid pg_catalog.oid NOT NULL,
	role_name pg_catalog.name NOT NULL,
	query pg_catalog.text NOT NULL,
	call pg_catalog.text NOT NULL,
	target pg_catalog.text NOT NULL,
	key pg_catalog.text[] NOT NULL,
	mode pg_catalog.text NOT NULL,
	priority pg_catalog.text NOT NULL,
	chunk pg_catalog.int4 NOT NULL,
	settings pg_catalog.jsonb NOT NULL,
	state pg_catalog.text NOT NULL CHECK (state OPERATOR(pg_catalog.=) ANY (ARRAY['active', 'paused', 'cancelled', 'failed', 'done'])),
	total pg_catalog.int8 NOT NULL DEFAULT 0,
	done pg_catalog.int8 NOT NULL DEFAULT 0,
	failed pg_catalog.int8 NOT NULL DEFAULT 0,
	skipped pg_catalog.int8 NOT NULL DEFAULT 0,
	prompt_tokens pg_catalog.int8 NOT NULL DEFAULT 0,
	cached_tokens pg_catalog.int8 NOT NULL DEFAULT 0,
	output_tokens pg_catalog.int8 NOT NULL DEFAULT 0,
	seconds pg_catalog.float8 NOT NULL DEFAULT 0,
	rate pg_catalog.float8,
	submitted_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	started_at pg_catalog.timestamptz,
	finished_at pg_catalog.timestamptz,
	sqlstate pg_catalog.text,
	error pg_catalog.text,
	detail pg_catalog.text,
	hint pg_catalog.text);
COMMENT ON TABLE _dsv3_job IS 'jobs; see the view dsv3_jobs';

CREATE TABLE _dsv3_job_chunk (
	job pg_catalog.int8 NOT NULL,
	number pg_catalog.int8 NOT NULL,
	attempts pg_catalog.int4 NOT NULL DEFAULT 0,
	keys pg_catalog.jsonb NOT NULL,
	PRIMARY KEY (job, number));
COMMENT ON TABLE _dsv3_job_chunk IS 'keys of the rows that jobs have still to do';

CREATE TABLE _dsv3_job_error (
	job pg_catalog.int8 NOT NULL,
	key pg_catalog.jsonb NOT NULL,
	sqlstate pg_catalog.text NOT NULL,
	message pg_catalog.text NOT NULL,
	detail pg_catalog.text,
	hint pg_catalog.text,
	at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	PRIMARY KEY (job, key));
COMMENT ON TABLE _dsv3_job_error IS 'rows of jobs that failed; see the view dsv3_job_errors';

SELECT pg_catalog.pg_extension_config_dump('_dsv3_job', '');
SELECT pg_catalog.pg_extension_config_dump('_dsv3_job_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('_dsv3_job_chunk', '');
SELECT pg_catalog.pg_extension_config_dump('_dsv3_job_error', '');

CREATE FUNCTION dsv3_job_submit(
	query pg_catalog.text,
	call pg_catalog.text,
	target pg_catalog.regclass,
	key pg_catalog.name[],
	chunk pg_catalog.int4 DEFAULT 256,
	options pg_catalog.jsonb DEFAULT '{}')
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME', 'dsv3_job_submit_1_0'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE COST 1000000;
COMMENT ON FUNCTION dsv3_job_submit(pg_catalog.text, pg_catalog.text, pg_catalog.regclass, pg_catalog.name[], pg_catalog.int4, pg_catalog.jsonb)
	IS 'let a background worker evaluate a call for each row of a query and write the results to a table; the job''s number';

CREATE FUNCTION dsv3_job_cancel(id pg_catalog.int8)
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME', 'dsv3_job_cancel_1_0'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION dsv3_job_cancel(pg_catalog.int8) IS 'end a job for good; what is written stays';

CREATE FUNCTION dsv3_job_pause(id pg_catalog.int8)
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME', 'dsv3_job_pause_1_0'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION dsv3_job_pause(pg_catalog.int8) IS 'let a job rest until it is resumed';

CREATE FUNCTION dsv3_job_resume(id pg_catalog.int8)
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME', 'dsv3_job_resume_1_0'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE COST 1000000;
COMMENT ON FUNCTION dsv3_job_resume(pg_catalog.int8) IS 'let a job go on that is paused, has failed, or came with a restore';

CREATE FUNCTION dsv3_job_retry_failed(id pg_catalog.int8)
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME', 'dsv3_job_retry_failed_1_0'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE COST 1000000;
COMMENT ON FUNCTION dsv3_job_retry_failed(pg_catalog.int8) IS 'let a job try its failed rows again; how many they are';

CREATE FUNCTION dsv3_job_forget(id pg_catalog.int8)
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME', 'dsv3_job_forget_1_0'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION dsv3_job_forget(pg_catalog.int8) IS 'remove a job that is not active, with its errors';

CREATE PROCEDURE dsv3_job_run(id pg_catalog.int8)
AS 'MODULE_PATHNAME', 'dsv3_job_run_1_0'
LANGUAGE C;
COMMENT ON PROCEDURE dsv3_job_run(pg_catalog.int8) IS 'resume a job if it does not run, and tell of it in notices until it ends';

CREATE FUNCTION _dsv3_job_place(
	id pg_catalog.int8,
	home pg_catalog.text,
	OUT here pg_catalog.bool,
	OUT running pg_catalog.bool,
	OUT pid pg_catalog.int4,
	OUT rows pg_catalog.int8,
	OUT output_tokens pg_catalog.int8,
	OUT waiting_for pg_catalog.text)
RETURNS pg_catalog.record
AS 'MODULE_PATHNAME', 'dsv3_job_place_1_0'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION _dsv3_job_place(pg_catalog.int8, pg_catalog.text) IS 'what the views of jobs show of a job''s worker';

REVOKE ALL ON FUNCTION dsv3_job_submit(pg_catalog.text, pg_catalog.text, pg_catalog.regclass, pg_catalog.name[], pg_catalog.int4, pg_catalog.jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_job_resume(pg_catalog.int8) FROM PUBLIC;
REVOKE ALL ON FUNCTION dsv3_job_retry_failed(pg_catalog.int8) FROM PUBLIC;
REVOKE ALL ON PROCEDURE dsv3_job_run(pg_catalog.int8) FROM PUBLIC;
-- public: dsv3_job_cancel dsv3_job_pause dsv3_job_forget _dsv3_job_place

CREATE VIEW dsv3_jobs WITH (security_barrier) AS
SELECT j.id,
	coalesce(r.rolname, j.role_name) AS role,
	CASE WHEN j.state OPERATOR(pg_catalog.<>) 'active' THEN j.state WHEN p.running THEN 'running' ELSE 'waiting' END AS state,
	CASE WHEN j.state OPERATOR(pg_catalog.=) 'active' THEN p.waiting_for END AS waiting_for,
	CASE WHEN m.mine THEN j.query END AS query,
	CASE WHEN m.mine THEN j.call END AS call,
	j.target, j.key, j.mode AS write, j.priority, j.chunk, p.pid, j.submitted_at, j.started_at, j.finished_at,
	j.sqlstate,
	CASE WHEN m.mine THEN j.error END AS error,
	CASE WHEN m.mine THEN j.detail END AS detail,
	CASE WHEN m.mine THEN j.hint END AS hint
FROM @extschema@._dsv3_job AS j
	CROSS JOIN LATERAL @extschema@._dsv3_job_place(j.id, j.home) AS p
	LEFT JOIN pg_catalog.pg_roles AS r ON CASE WHEN p.here THEN r.oid OPERATOR(pg_catalog.=) j.role_oid ELSE r.rolname OPERATOR(pg_catalog.=) j.role_name END
	CROSS JOIN LATERAL (SELECT CASE WHEN r.oid IS NULL THEN pg_catalog.current_setting('is_superuser') OPERATOR(pg_catalog.=) 'on'
		ELSE pg_catalog.pg_has_role(r.oid, 'USAGE') END AS mine) AS m
WHERE m.mine OR pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE');
COMMENT ON VIEW dsv3_jobs IS 'jobs: one''s own, or all for members of pg_read_all_stats; texts only of one''s own';
GRANT SELECT ON dsv3_jobs TO PUBLIC;

CREATE VIEW dsv3_job_progress WITH (security_barrier) AS
SELECT v.id, v.state, j.total, j.done OPERATOR(pg_catalog.+) CASE WHEN v.pid IS NULL THEN 0 ELSE p.rows END AS done, j.failed, j.skipped,
	j.prompt_tokens, j.cached_tokens,
	j.output_tokens OPERATOR(pg_catalog.+) CASE WHEN v.pid IS NULL THEN 0 ELSE p.output_tokens END AS output_tokens,
	pg_catalog.make_interval(secs => j.seconds) AS worked,
	pg_catalog.round(j.rate::pg_catalog.numeric, 2) AS rows_per_second,
	CASE WHEN j.rate OPERATOR(pg_catalog.>) 0 AND j.state OPERATOR(pg_catalog.=) 'active'
		THEN pg_catalog.make_interval(secs => pg_catalog.round(((j.total OPERATOR(pg_catalog.-) j.done OPERATOR(pg_catalog.-) j.failed OPERATOR(pg_catalog.-) j.skipped) OPERATOR(pg_catalog./) j.rate)::pg_catalog.numeric)::pg_catalog.float8)
	END AS remaining
FROM @extschema@.dsv3_jobs AS v
	JOIN @extschema@._dsv3_job AS j ON j.id OPERATOR(pg_catalog.=) v.id
	CROSS JOIN LATERAL @extschema@._dsv3_job_place(j.id, j.home) AS p;
COMMENT ON VIEW dsv3_job_progress IS 'how far jobs are: rows, tokens, rate, time remaining';
GRANT SELECT ON dsv3_job_progress TO PUBLIC;

CREATE VIEW dsv3_job_errors WITH (security_barrier) AS
SELECT e.job, e.key, e.sqlstate, e.message, e.detail, e.hint, e.at
FROM @extschema@._dsv3_job_error AS e
	JOIN @extschema@.dsv3_jobs AS v ON v.id OPERATOR(pg_catalog.=) e.job
WHERE v.query IS NOT NULL;
COMMENT ON VIEW dsv3_job_errors IS 'rows of one''s jobs that failed, and why';
GRANT SELECT ON dsv3_job_errors TO PUBLIC;
