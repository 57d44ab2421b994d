-- dsv3_chat: messages in the shape of the OpenAI API, one message out.
SELECT dsv3_chat('[{"role": "user", "content": "hello"}]');
SELECT dsv3_chat('[{"role": "system", "content": "be brief"}, {"role": "user", "content": "one"}, {"role": "assistant", "content": "ONE"},
                   {"role": "user", "content": "/prompt"}]') ->> 'content';
SELECT dsv3_chat('[{"role": "user", "content": "abc"}]', options => '{"think": "on"}');
SELECT dsv3_chat('[{"role": "user", "content": "/tool lookup {\"id\": 7}"}]', options => '{"tools": [{"type": "function", "function": {"name": "lookup"}}]}');
SELECT dsv3_chat('[{"role": "user", "content": "/forever"}]', max_tokens => 4);
SELECT jsonb_array_length(dsv3_chat('[{"role": "user", "content": "ab"}]', options => '{"logprobs": 1}') -> 'logprobs');

-- The answer goes back in as it came.
SELECT dsv3_chat(jsonb_build_array('{"role": "user", "content": "one"}'::jsonb, dsv3_chat('[{"role": "user", "content": "one"}]'),
                                   '{"role": "user", "content": "/prompt"}'::jsonb)) ->> 'content';

-- What is refused.
SELECT dsv3_chat('{}');
SELECT dsv3_chat('"hello"');
SELECT dsv3_chat('[]');
SELECT dsv3_chat('[1]');
SELECT dsv3_chat('[{"role": "nobody", "content": "x"}]');
SELECT dsv3_chat('[{"role": "user"}]');
SELECT dsv3_chat('[{"role": "user", "content": "x"}]', options => '{"tools": {}}');
SELECT dsv3_chat('[{"role": "nobody", "content": "x"}]', options => '{"on_error": "null"}');
