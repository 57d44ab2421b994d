-- The options argument.

-- Keys that change the answer.
SELECT dsv3_generate('/count 9', options => '{"stop": "5"}');
SELECT dsv3_generate('/count 9', options => '{"stop": ["7", "4 "]}');
SELECT dsv3_generate('x7', options => '{"raw": true}');
SELECT dsv3_generate('abc', options => '{"think": "on"}'), dsv3_generate('abc', options => '{"think": "off"}');
SELECT dsv3_generate('/prompt', options => '{"think": "on"}'), dsv3_generate('/prompt', options => '{"think": "auto"}');
SELECT dsv3_generate('/forever', max_tokens => 100, temperature => 2, options => '{"top_k": 1}') = dsv3_generate('/forever', max_tokens => 100) AS top_k,
       dsv3_generate('/forever', max_tokens => 100, temperature => 2, options => '{"top_p": 0.01}') = dsv3_generate('/forever', max_tokens => 100) AS top_p,
       dsv3_generate('/forever', max_tokens => 100, temperature => 2, options => '{"min_p": 1}') = dsv3_generate('/forever', max_tokens => 100) AS min_p,
       dsv3_generate('/forever', max_tokens => 100, options => '{"repetition_penalty": 5}') = dsv3_generate('/forever', max_tokens => 100) AS penalty;
SELECT dsv3_generate('abc', options => '{"priority": "batch", "timeout_ms": 60000, "on_error": "null", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}');

-- Unknown keys, and keys of other functions.
SELECT dsv3_generate('x', options => '{"temprature": 1}');
SELECT ok FROM dsv3_try_generate('x', options => '{"on_error": "null"}');
SELECT dsv3_generate_stream('x', options => '{"logprobs": 1}');
SELECT dsv3_chat('[]', options => '{"raw": true}');
SELECT dsv3_generate('x', options => '{"tools": []}');
SELECT dsv3_generate('x', options => '{"Top_p": 1}');

-- Wrong shapes, types and values. These are mistakes of the statement, so no form and no setting hides them.
SET dsv3.on_error = 'null';
SELECT dsv3_generate('x', options => '[]');
SELECT dsv3_generate('x', options => '1');
SELECT dsv3_generate('x', options => '{"top_p": "1"}');
SELECT dsv3_generate('x', options => '{"top_p": 0}');
SELECT dsv3_generate('x', options => '{"top_p": 1.1}');
SELECT dsv3_generate('x', options => '{"top_k": 1.5}');
SELECT dsv3_generate('x', options => '{"top_k": -1}');
SELECT dsv3_generate('x', options => '{"top_k": 1e400}');
SELECT dsv3_generate('x', options => '{"min_p": -0.1}');
SELECT dsv3_generate('x', options => '{"repetition_penalty": 0}');
SELECT dsv3_generate('x', options => '{"stop": 5}');
SELECT dsv3_generate('x', options => '{"stop": ""}');
SELECT dsv3_generate('x', options => '{"stop": {"a": 1}}');
SELECT dsv3_generate('x', options => '{"stop": ["a", 1]}');
SELECT dsv3_generate('x', options => '{"stop": ["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p","q"]}');
SELECT dsv3_generate('x', options => '{"raw": "yes"}');
SELECT dsv3_generate('x', options => '{"think": "maybe"}');
SELECT dsv3_generate('x', options => '{"think": true}');
SELECT dsv3_generate('x', options => '{"timeout_ms": -1}');
SELECT dsv3_generate('x', options => '{"priority": "high"}');
SELECT dsv3_generate('x', options => '{"on_error": "ignore"}');
SELECT dsv3_generate('x', options => '{"traceparent": "00-4bf9"}');
SELECT ok FROM dsv3_try_generate('x', options => '{"logprobs": 21}');
SELECT ok FROM dsv3_try_generate('x', max_tokens => 0);
SELECT ok FROM dsv3_try_generate('x', max_tokens => 4097);
SELECT ok FROM dsv3_try_generate('x', temperature => -1);
SELECT ok FROM dsv3_try_generate('x', temperature => 'NaN');
SELECT ok FROM dsv3_try_generate('x', temperature => 'Infinity');
RESET dsv3.on_error;

-- The settings: ranges, and who may change what.
SET dsv3.max_tokens = 0;
SET dsv3.temperature = 3;
SET dsv3.on_error = 'ignore';
SET dsv3.traceparent = 'nonsense';
SET dsv3.traceparent = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';
RESET dsv3.traceparent;
SET dsv3.model_path = '/tmp';
SET dsv3.engine_watchdog = '1s';
SET dsv3.max_output_tokens = 3;
SELECT length(dsv3_generate('/forever')) AS default_is_capped;
SELECT dsv3_generate('/forever', max_tokens => 4);
RESET dsv3.max_output_tokens;
