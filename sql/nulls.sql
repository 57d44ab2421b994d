-- NULL and empty input. NULL gives NULL and no request; empty input is input.
CREATE TEMP TABLE before AS SELECT requests FROM dsv3_stat_engine;
SELECT dsv3_generate(NULL) IS NULL, dsv3_generate('x', NULL) IS NULL, dsv3_generate(NULL, 'x') IS NULL;
SELECT (dsv3_try_generate(NULL)) IS NULL, (dsv3_try_generate('x', NULL)) IS NULL;
SELECT count(*) FROM (SELECT dsv3_generate_stream(NULL)) AS s;
SELECT count(*) FROM dsv3_generate_stream('x', NULL);
SELECT dsv3_chat(NULL) IS NULL;
SELECT dsv3_tokenize(NULL) IS NULL, dsv3_detokenize(NULL) IS NULL, dsv3_count_tokens(NULL) IS NULL,
       dsv3_logprob(NULL, 'x') IS NULL, dsv3_logprob('x', NULL) IS NULL, dsv3_cancel(NULL) IS NULL;
SELECT dsv3_classify('x', NULL) IS NULL, dsv3_is_true('x', NULL) IS NULL, dsv3_score('x', NULL) IS NULL, dsv3_extract_json('x', NULL) IS NULL;
SELECT count(*) FROM dsv3_generate_batch(NULL, 'x');
SELECT dsv3_agg('x', NULL);
SELECT s.requests - b.requests AS requests_made FROM dsv3_stat_engine AS s, before AS b;

-- NULL for anything else means its default.
SELECT dsv3_generate('x', system => NULL, max_tokens => NULL, temperature => NULL, seed => NULL, options => NULL);
SELECT dsv3_generate('x', options => '{"top_p": null, "stop": null, "priority": null, "think": null}');

-- Empty.
SELECT '[' || dsv3_generate('') || ']' AS empty_prompt, dsv3_generate('x', '') AS empty_input, dsv3_generate('', 'x') AS only_input;
SELECT seq, delta, finish_reason FROM dsv3_generate_stream('');
SELECT ok, value, finish_reason FROM dsv3_try_generate('');
