"""Jinja templates of the family, written here from the documented behaviour of the published ones.

Each is what a test checkpoint carries in tokenizer_config.json where the real template is no file of ours: it renders
what the published one is documented to render, quirks included, and nothing else. The one published template at hand
(DeepSeek-V3's, in the data beside the repository) checks DEEPSEEK_V3: both are rendered on the same conversations.

Quirks kept: in V3 and R1 only a second tool call of a conversation closes the list of calls, and a later list goes on
with the first one's form; after tool results nothing is opened for the assistant.
"""

DEEPSEEK_BASE = r"""
{%- if add_generation_prompt is not defined -%}{%- set add_generation_prompt = false -%}{%- endif -%}
{%- set state = namespace(system='', seen_system=false, called=false, answered=false, results=false) -%}
{%- for message in messages if message['role'] == 'system' -%}
{%- set state.system = state.system + ('\n\n' if state.seen_system else '') + message['content'] -%}
{%- set state.seen_system = true -%}
{%- endfor -%}
{{- bos_token + state.system -}}
{%- for message in messages -%}
{%- if message['role'] == 'user' -%}
{%- set state.results = false -%}
{{- '<｜User｜>' + message['content'] -}}
{%- elif message['role'] == 'assistant' and message['content'] is none -%}
{%- set state.results = false -%}
{%- for call in message['tool_calls'] -%}
{%- set text = '<｜tool▁call▁begin｜>' + call['type'] + '<｜tool▁sep｜>' + call['function']['name'] + '\n```json\n' + call['function']['arguments'] + '\n```<｜tool▁call▁end｜>' -%}
{{- '\n' + text + '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' if state.called else '<｜Assistant｜><｜tool▁calls▁begin｜>' + text -}}
{%- set state.called = true -%}
{%- endfor -%}
{%- elif message['role'] == 'assistant' -%}
{%- set answer = ANSWER -%}
{{- ('<｜tool▁outputs▁end｜>' if state.results else '<｜Assistant｜>') + answer + '<｜end▁of▁sentence｜>' -}}
{%- set state.results = false -%}
{%- elif message['role'] == 'tool' -%}
{%- set state.results = true -%}
{{- ('\n' if state.answered else '<｜tool▁outputs▁begin｜>') + '<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>' -}}
{%- set state.answered = true -%}
{%- endif -%}
{%- endfor -%}
{%- if state.results -%}{{- '<｜tool▁outputs▁end｜>' -}}
{%- elif add_generation_prompt -%}{{- 'PROMPT' -}}
{%- endif -%}
"""


def deepseek(answer, prompt):
    return DEEPSEEK_BASE.strip().replace("ANSWER", answer).replace("PROMPT", prompt)


AFTER_THINKING = "message['content'].split('</think>')[-1] if '</think>' in message['content'] else message['content']"

DEEPSEEK_V3 = deepseek("message['content']", "<｜Assistant｜>")
DEEPSEEK_R1 = deepseek(AFTER_THINKING, "<｜Assistant｜><think>\\n")
DEEPSEEK_R1_0528 = deepseek(AFTER_THINKING, "<｜Assistant｜>")

DEEPSEEK_V31 = r"""
{%- if add_generation_prompt is not defined -%}{%- set add_generation_prompt = false -%}{%- endif -%}
{%- if thinking is not defined -%}{%- set thinking = false -%}{%- endif -%}
{%- set state = namespace(system='', seen_system=false, open=false, results=false) -%}
{%- for message in messages if message['role'] == 'system' -%}
{%- set state.system = state.system + ('\n\n' if state.seen_system else '') + message['content'] -%}
{%- set state.seen_system = true -%}
{%- endfor -%}
{{- bos_token + state.system -}}
{%- for message in messages -%}
{%- if message['role'] == 'user' -%}
{{- '<｜User｜>' + message['content'] -}}
{%- set state.open = true -%}{%- set state.results = false -%}
{%- elif message['role'] == 'assistant' -%}
{%- if state.open -%}{{- '<｜Assistant｜></think>' -}}{%- endif -%}
{%- set state.open = false -%}
{%- if message['tool_calls'] is defined and message['tool_calls'] is not none -%}
{{- (message['content'] or '') + '<｜tool▁calls▁begin｜>' -}}
{%- for call in message['tool_calls'] -%}
{{- '<｜tool▁call▁begin｜>' + call['function']['name'] + '<｜tool▁sep｜>' + call['function']['arguments'] + '<｜tool▁call▁end｜>' -}}
{%- endfor -%}
{{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' -}}
{%- elif state.results -%}
{{- message['content'] + '<｜end▁of▁sentence｜>' -}}
{%- else -%}
{{- (message['content'].split('</think>', 1)[1] if '</think>' in message['content'] else message['content']) + '<｜end▁of▁sentence｜>' -}}
{%- endif -%}
{%- set state.results = false -%}
{%- elif message['role'] == 'tool' -%}
{%- set state.open = false -%}{%- set state.results = true -%}
{{- '<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and state.open -%}{{- '<｜Assistant｜>' + ('<think>' if thinking else '</think>') -}}{%- endif -%}
""".strip()

DEEPSEEK_V2 = r"""
{%- if add_generation_prompt is not defined -%}{%- set add_generation_prompt = false -%}{%- endif -%}
{{- bos_token -}}
{%- for message in messages -%}
{%- if message['role'] == 'user' -%}{{- 'User: ' + message['content'] + '\n\n' -}}
{%- elif message['role'] == 'assistant' -%}{{- 'Assistant: ' + message['content'] + eos_token -}}
{%- elif message['role'] == 'system' -%}{{- message['content'] + '\n\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'Assistant:' -}}{%- endif -%}
""".strip()

KIMI_BASE = r"""
{%- if tools -%}{{- '<|im_system|>tool_declare<|im_middle|>' + (tools | tojson) + '<|im_end|>' -}}{%- endif -%}
{%- for message in messages -%}
{%- if loop.first and message['role'] != 'system' -%}
{{- '<|im_system|>system<|im_middle|>DEFAULT<|im_end|>' -}}
{%- endif -%}
{%- if message['role'] == 'system' -%}{{- '<|im_system|>system<|im_middle|>' -}}
{%- elif message['role'] == 'user' -%}{{- '<|im_user|>user<|im_middle|>' -}}
{%- elif message['role'] == 'assistant' -%}{{- '<|im_assistant|>assistant<|im_middle|>' -}}
{%- elif message['role'] == 'tool' -%}{{- '<|im_system|>' + message['name'] + '<|im_middle|>## Return of ' + message['tool_call_id'] + '\n' -}}
{%- endif -%}
{{- message['content'] or '' -}}
{%- if message['tool_calls'] -%}
{{- '<|tool_calls_section_begin|>' -}}
{%- for call in message['tool_calls'] -%}
{{- '<|tool_call_begin|>' + call['id'] + '<|tool_call_argument_begin|>' + call['function']['arguments'] + '<|tool_call_end|>' -}}
{%- endfor -%}
{{- '<|tool_calls_section_end|>' -}}
{%- endif -%}
{{- '<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_assistant|>assistant<|im_middle|>' -}}{%- endif -%}
""".strip()

KIMI_K2 = KIMI_BASE.replace("DEFAULT", "You are Kimi, an AI assistant created by Moonshot AI.")
KIMI_K2_0711 = KIMI_BASE.replace("DEFAULT", "You are a helpful assistant")

MOONLIGHT = r"""
{%- for message in messages -%}
{%- if loop.first and message['role'] != 'system' -%}{{- '<|im_system|>system<|im_middle|>You are a helpful assistant<|im_end|>' -}}{%- endif -%}
{%- if message['role'] == 'system' -%}{{- '<|im_system|>' -}}
{%- elif message['role'] == 'user' -%}{{- '<|im_user|>' -}}
{%- else -%}{{- '<|im_assistant|>' -}}
{%- endif -%}
{{- message['role'] + '<|im_middle|>' + message['content'] + '<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_assistant|>assistant<|im_middle|>' -}}{%- endif -%}
""".strip()
