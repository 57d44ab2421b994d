/*
 * template.c
 *	  Chat templates: choosing the checkpoint's, checking messages, rendering; see template.h. Taking answers apart is in
 *	  template_answer.c, running the template in jinja_*.c.
 *
 * A Dsv3Template is immutable once open; every rendering has its own pool.
 */
#include "text/template.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja.h"
#include "text/tokenizer_internal.h"

#define MAX_CONFIG   ((size_t) 16 * 1024 * 1024)
#define MAX_TEMPLATE ((size_t) 256 * 1024)
#define POOL_BASE                                                                                            \
	((size_t) 256 * 1024 * 1024) /* memory a rendering may take, and more for each byte of input */
#define POOL_PER_BYTE 64
#define MAX_MESSAGES  100000
#define MAX_MEMBERS   64 /* of one message */

#define DS_USER "<\xEF\xBD\x9CUser\xEF\xBD\x9C>"
#define DS_ASSISTANT                                                                                         \
	"<\xEF\xBD\x9C"                                                                                          \
	"Assistant\xEF\xBD\x9C>"

static const char *const kind_names[] = {
	[DSV3_TEMPLATE_NONE] = "none",           [DSV3_TEMPLATE_V3] = "deepseek-v3",
	[DSV3_TEMPLATE_R1] = "deepseek-r1",      [DSV3_TEMPLATE_R1_0528] = "deepseek-r1-0528",
	[DSV3_TEMPLATE_V31] = "deepseek-v3.1",   [DSV3_TEMPLATE_V2] = "deepseek-v2",
	[DSV3_TEMPLATE_MOONLIGHT] = "moonlight", [DSV3_TEMPLATE_KIMI_K2] = "kimi-k2",
	[DSV3_TEMPLATE_CHATML] = "chatml",
};

/* ---- rendering ---- */

static bool
no_memory(Dsv3Error *err)
{
	return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
}

/* Run the program; tools may be NULL. The result is in the pool. */
static bool
run_program(const Dsv3Template *tmpl, Dsv3Pool *pool, Dsv3Value *messages, Dsv3Value *tools, Dsv3Think think,
			Dsv3Rendered *out, Dsv3Error *err)
{
	Dsv3Value *variables = dsv3_value_dict(pool);
	const char *bos = tmpl->bos ? tmpl->bos : "", *eos = tmpl->eos ? tmpl->eos : "";

	if (variables == NULL || !dsv3_dict_set(pool, variables, "messages", messages) ||
		!dsv3_dict_set(pool, variables, "add_generation_prompt", dsv3_value_bool(pool, true)) ||
		!dsv3_dict_set(pool, variables, "bos_token", dsv3_value_string(pool, bos, strlen(bos), false)) ||
		!dsv3_dict_set(pool, variables, "eos_token", dsv3_value_string(pool, eos, strlen(eos), false)) ||
		!dsv3_dict_set(pool, variables, "tools", tools ? tools : dsv3_value_none(pool)) ||
		!dsv3_dict_set(pool, variables, "documents", dsv3_value_none(pool)))
		return no_memory(err);
	if (think != DSV3_THINK_AUTO &&
		(!dsv3_dict_set(pool, variables, "thinking", dsv3_value_bool(pool, think == DSV3_THINK_ON)) ||
		 !dsv3_dict_set(pool, variables, "enable_thinking", dsv3_value_bool(pool, think == DSV3_THINK_ON))))
		return no_memory(err);
	return dsv3_jinja_render(tmpl->program, pool, variables, out, err);
}

/* What is still to be encoded as one run of plain text, and where ids go. */
typedef struct Encoding
{
	const Dsv3Tokenizer *tokenizer;
	Dsv3Text run;
	size_t start; /* out->count at the beginning */
	size_t max_tokens;
	Dsv3Tokens *out;
	Dsv3Error *err;
} Encoding;

static bool
too_many(Encoding *e)
{
	dsv3_error(e->err, DSV3_ERR_TOO_LARGE, "the prompt has more than the allowed number of tokens");
	return dsv3_error_detail(e->err, "%zu tokens are allowed.", e->max_tokens);
}

/* Encode the run. */
static bool
flush(Encoding *e)
{
	size_t used = e->out->count - e->start, left = 0;
	bool ok = true;

	if (e->run.len == 0)
		return true;
	if (e->max_tokens > 0)
	{
		if (used >= e->max_tokens)
			return too_many(e);
		left = e->max_tokens - used;
	}
	ok =
		dsv3_tokenizer_encode(e->tokenizer, e->run.data, e->run.len, DSV3_ENCODE_PLAIN, left, e->out, e->err);
	if (!ok && e->err != NULL && left > 0 && e->out->count - e->start >= left &&
		strcmp(e->err->sqlstate, DSV3_ERR_TOO_LARGE) == 0)
		return too_many(e);
	e->run.len = 0;
	return ok;
}

static bool
push_control(Encoding *e, int32_t id)
{
	if (!flush(e))
		return false;
	if (e->max_tokens > 0 && e->out->count - e->start >= e->max_tokens)
		return too_many(e);
	return dsv3_tokens_push(e->out, id, e->err);
}

/* The ids of a rendered prompt: control tokens where the template wrote them, plain text everywhere else. */
static bool
encode_rendered(Encoding *e, const Dsv3Rendered *rendered)
{
	Dsv3SectionList sections = {0};
	bool ok = true;

	for (size_t at = 0; ok && at < rendered->len;)
	{
		uint8_t origin = rendered->from_user[at];
		size_t end = at;

		while (end < rendered->len && rendered->from_user[end] == origin)
			end++;
		if (origin)
			ok = dsv3_text_append(&e->run, rendered->text + at, end - at, e->err);
		else
			ok = dsv3_added_split(&e->tokenizer->added, rendered->text + at, end - at, &sections, e->err);
		for (size_t i = 0; ok && !origin && i < sections.count; i++)
		{
			const Dsv3Section *section = &sections.items[i];

			if (section->token != NULL)
				ok = push_control(e, section->token->id);
			else
				ok = dsv3_text_append(&e->run, rendered->text + at + section->start,
									  section->end - section->start, e->err);
		}
		at = end;
	}
	free(sections.items);
	return ok && flush(e);
}

/* ---- messages ---- */

/* A shape that is wrong, told with the message it is in. */
static bool
bad_message(Dsv3Error *err, size_t index, const char *what)
{
	return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "messages[%zu]: %s", index, what);
}

/* content: a string, null, or an array of {"type": "text", "text": ...}, whose texts are put together. */
static Dsv3Value *
read_content(Dsv3Pool *pool, const json_t *content, bool may_be_null, size_t index, Dsv3Error *err)
{
	Dsv3Text text = {0};
	Dsv3Value *value = NULL;
	bool ok = true;

	if (json_is_string(content))
		value = dsv3_value_from_json(pool, content);
	else if (content == NULL || json_is_null(content))
	{
		if (!may_be_null)
		{
			bad_message(err, index, "\"content\" is missing");
			return NULL;
		}
		value = dsv3_value_none(pool);
	}
	else if (json_is_array(content))
	{
		for (size_t i = 0; ok && i < json_array_size(content); i++)
		{
			const json_t *part = json_array_get(content, i), *type = json_object_get(part, "type");
			const json_t *words = json_object_get(part, "text");

			if (!json_is_string(type) || strcmp(json_string_value(type), "text") != 0 ||
				!json_is_string(words))
				ok = bad_message(err, index,
								 "a part of \"content\" is not {\"type\": \"text\", \"text\": ...}");
			else
				ok = dsv3_text_append(&text, json_string_value(words), json_string_length(words), err);
		}
		if (ok)
			value = dsv3_value_string(pool, text.data ? text.data : "", text.len, true);
		dsv3_text_free(&text);
		if (!ok)
			return NULL;
	}
	else
	{
		bad_message(err, index, "\"content\" is neither a string nor an array");
		return NULL;
	}
	if (value == NULL)
		no_memory(err);
	return value;
}

/* One tool call: type and id are filled in, arguments become a string. number counts the calls of all messages. */
static Dsv3Value *
read_tool_call(Dsv3Pool *pool, const json_t *call, size_t index, size_t number, Dsv3Error *err)
{
	const json_t *function = json_object_get(call, "function");
	const json_t *name = json_object_get(function, "name"),
				 *arguments = json_object_get(function, "arguments");
	const json_t *id = json_object_get(call, "id"), *type = json_object_get(call, "type");
	Dsv3Value *value, *inner, *args;
	char made_id[300];

	if (!json_is_string(name))
	{
		bad_message(err, index, "a tool call has no \"function\" with a \"name\"");
		return NULL;
	}
	if (type != NULL && (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0))
	{
		bad_message(err, index, "the type of a tool call is not \"function\"");
		return NULL;
	}
	if (id != NULL && !json_is_null(id) && !json_is_string(id))
	{
		bad_message(err, index, "the id of a tool call is not a string");
		return NULL;
	}
	if (json_is_string(arguments))
		args = dsv3_value_from_json(pool, arguments);
	else if (json_is_object(arguments))
	{
		args = dsv3_value_from_json(pool, arguments);
		if (args != NULL && (args = dsv3_value_to_json(pool, args, err)) == NULL)
			return NULL;
	}
	else
	{
		bad_message(err, index, "the arguments of a tool call are neither a string nor an object");
		return NULL;
	}
	snprintf(made_id, sizeof(made_id), "functions.%.250s:%zu", json_string_value(name), number);
	value = dsv3_value_from_json(pool, call);
	inner = dsv3_value_from_json(pool, function);
	if (value == NULL || inner == NULL || !dsv3_dict_set(pool, inner, "arguments", args) ||
		!dsv3_dict_set(pool, value, "function", inner) ||
		!dsv3_dict_set(pool, value, "type", dsv3_value_string(pool, "function", 8, true)) ||
		!dsv3_dict_set(pool, value, "id",
					   json_is_string(id) ? dsv3_value_from_json(pool, id)
										  : dsv3_value_string(pool, made_id, strlen(made_id), true)))
	{
		no_memory(err);
		return NULL;
	}
	return value;
}

/* The string members a template may use must be strings. */
static bool
check_strings(const json_t *message, size_t index, Dsv3Error *err)
{
	static const char *const keys[] = {"name", "reasoning_content", "tool_call_id"};

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
	{
		const json_t *value = json_object_get(message, keys[i]);

		if (value != NULL && !json_is_null(value) && !json_is_string(value))
			return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "messages[%zu]: \"%s\" is not a string", index,
							  keys[i]);
	}
	return true;
}

static Dsv3Value *
read_message(Dsv3Pool *pool, const json_t *message, size_t index, size_t *n_calls, Dsv3Error *err)
{
	static const char *const roles[] = {"system", "user", "assistant", "tool"};
	const json_t *role = json_object_get(message, "role"), *calls = json_object_get(message, "tool_calls");
	Dsv3Value *value, *content, *list;
	bool known = false, is_assistant, has_calls;
	const char *key;
	json_t *member;

	if (!json_is_object(message))
	{
		bad_message(err, index, "not an object");
		return NULL;
	}
	if (json_object_size(message) > MAX_MEMBERS)
	{
		bad_message(err, index, "too many members");
		return NULL;
	}
	for (size_t i = 0; json_is_string(role) && i < 4; i++)
		known = known || strcmp(json_string_value(role), roles[i]) == 0;
	if (!known)
	{
		bad_message(err, index, "\"role\" is not one of system, user, assistant and tool");
		return NULL;
	}
	is_assistant = strcmp(json_string_value(role), "assistant") == 0;
	if (calls != NULL && !json_is_null(calls) && !(json_is_array(calls) && is_assistant))
	{
		bad_message(err, index, "\"tool_calls\" is for the assistant, and an array");
		return NULL;
	}
	has_calls = json_array_size(calls) > 0;
	if (!check_strings(message, index, err))
		return NULL;
	content = read_content(pool, json_object_get(message, "content"), has_calls, index, err);
	if (content == NULL)
		return NULL;
	value = dsv3_value_dict(pool);
	if (value == NULL || !dsv3_dict_set(pool, value, "role", dsv3_value_from_json(pool, role)) ||
		!dsv3_dict_set(pool, value, "content", content))
	{
		no_memory(err);
		return NULL;
	}
	/* other members pass as they are; null ones count as absent */
	json_object_foreach ((json_t *) message, key, member)
	{
		if (strcmp(key, "role") == 0 || strcmp(key, "content") == 0 || strcmp(key, "tool_calls") == 0 ||
			json_is_null(member))
			continue;
		if (!dsv3_dict_set(pool, value, key, dsv3_value_from_json(pool, member)))
		{
			no_memory(err);
			return NULL;
		}
	}
	if (!has_calls)
		return value;
	list = dsv3_value_list(pool);
	for (size_t i = 0; list != NULL && i < json_array_size(calls); i++)
	{
		Dsv3Value *call = read_tool_call(pool, json_array_get(calls, i), index, (*n_calls)++, err);

		if (call == NULL)
			return NULL;
		if (!dsv3_list_append(pool, list, call))
			list = NULL;
	}
	if (list == NULL || !dsv3_dict_set(pool, value, "tool_calls", list))
	{
		no_memory(err);
		return NULL;
	}
	return value;
}

/* ---- tools ---- */

static bool
check_tools(const json_t *tools, Dsv3Error *err)
{
	for (size_t i = 0; i < json_array_size(tools); i++)
	{
		const json_t *tool = json_array_get(tools, i), *function = json_object_get(tool, "function");
		const json_t *description = json_object_get(function, "description");

		if (!json_is_string(json_object_get(function, "name")))
			return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER,
							  "tools[%zu] has no \"function\" with a \"name\"", i);
		if (description != NULL && !json_is_null(description) && !json_is_string(description))
			return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "tools[%zu]: the description is not a string",
							  i);
	}
	return true;
}

/*
 * DeepSeek-V3.1's template leaves the tools to the system prompt; its model card gives the text. Returns it as a system
 * message, whose control tokens are ours and whose names, descriptions and parameters are the user's.
 */
static Dsv3Value *
describe_tools(Dsv3Pool *pool, const json_t *tools, Dsv3Error *err)
{
	static const char head[] = "## Tools\nYou have access to the following tools:\n";
	static const char tail[] =
		"\n\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
		"<\xEF\xBD\x9Ctool\xE2\x96\x81"
		"calls\xE2\x96\x81"
		"begin\xEF\xBD\x9C>"
		"<\xEF\xBD\x9Ctool\xE2\x96\x81"
		"call\xE2\x96\x81"
		"begin\xEF\xBD\x9C>tool_call_name"
		"<\xEF\xBD\x9Ctool\xE2\x96\x81sep\xEF\xBD\x9C>tool_call_arguments"
		"<\xEF\xBD\x9Ctool\xE2\x96\x81"
		"call\xE2\x96\x81"
		"end\xEF\xBD\x9C>{additional_tool_calls}"
		"<\xEF\xBD\x9Ctool\xE2\x96\x81"
		"calls\xE2\x96\x81"
		"end\xEF\xBD\x9C>\n\nWhere:\n"
		"- `tool_call_name` must be an exact match to one of the available tools\n"
		"- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n"
		"- For multiple tool calls, chain them directly without separators or spaces";
	Dsv3Value *text = dsv3_value_string(pool, head, sizeof(head) - 1, false),
			  *message = dsv3_value_dict(pool);

	for (size_t i = 0; text != NULL && i < json_array_size(tools); i++)
	{
		const json_t *function = json_object_get(json_array_get(tools, i), "function");
		const json_t *members[3] = {json_object_get(function, "name"),
									json_object_get(function, "description"),
									json_object_get(function, "parameters")};
		static const char *const labels[3] = {"\n### ", "\nDescription: ", "\n\nParameters: "};

		for (int k = 0; text != NULL && k < 3; k++)
		{
			Dsv3Value *label, *value;

			label = dsv3_value_string(pool, labels[k], strlen(labels[k]), false);
			if (members[k] == NULL || json_is_null(members[k]))
				value = dsv3_value_string(pool, k == 2 ? "{}" : "", k == 2 ? 2 : 0, true);
			else
				value = dsv3_value_from_json(pool, members[k]);
			if (value != NULL && k == 2 && members[k] != NULL && !json_is_null(members[k]))
			{
				value = dsv3_value_to_json(pool, value, err);
				if (value == NULL)
					return NULL;
			}
			text = label && value ? dsv3_value_join(pool, text, label) : NULL;
			text = text ? dsv3_value_join(pool, text, value) : NULL;
		}
		if (text != NULL && i + 1 < json_array_size(tools))
			text = dsv3_value_join(pool, text, dsv3_value_string(pool, "\n", 1, false));
	}
	if (text != NULL)
		text = dsv3_value_join(pool, text, dsv3_value_string(pool, tail, sizeof(tail) - 1, false));
	if (text == NULL || message == NULL ||
		!dsv3_dict_set(pool, message, "role", dsv3_value_string(pool, "system", 6, false)) ||
		!dsv3_dict_set(pool, message, "content", text))
	{
		no_memory(err);
		return NULL;
	}
	return message;
}

/* ---- the public rendering ---- */

static json_t *
parse_array(const char *text, size_t len, const char *what, Dsv3Error *err)
{
	json_error_t error;
	json_t *root = json_loadb(text, len, JSON_ALLOW_NUL, &error);

	if (root == NULL)
		dsv3_error(err, DSV3_ERR_INVALID_JSON, "%s are not valid JSON: %s", what, error.text);
	else if (!json_is_array(root))
	{
		json_decref(root);
		root = NULL;
		dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "%s are not a JSON array", what);
	}
	return root;
}

static bool
has_no_tools(const Dsv3Template *tmpl, const char *where, const char *hint, Dsv3Error *err)
{
	dsv3_error(err, DSV3_ERR_UNSUPPORTED, "%sthe chat template of this model (%s) has no tools", where,
			   tmpl->name);
	return dsv3_error_hint(err, "%s", hint);
}

/* A template that does not know calls would render them as nothing, and results as the words of an unknown speaker. */
static bool
check_calls(const Dsv3Template *tmpl, const json_t *message, size_t index, Dsv3Error *err)
{
	const char *role = json_string_value(json_object_get(message, "role"));
	char where[40];

	if (tmpl->takes_calls ||
		(strcmp(role, "tool") != 0 && json_array_size(json_object_get(message, "tool_calls")) == 0))
		return true;
	snprintf(where, sizeof(where), "messages[%zu]: ", index);
	return has_no_tools(tmpl, where, "Tell what was called and what it gave in the text of a message.", err);
}

static bool
check_settings(const Dsv3Template *tmpl, const json_t *tools, Dsv3Think think, Dsv3Error *err)
{
	if (think == DSV3_THINK_ON && !tmpl->can_think)
		return dsv3_error(err, DSV3_ERR_UNSUPPORTED, "the chat template of this model (%s) has no thinking",
						  tmpl->name);
	if (think == DSV3_THINK_OFF && tmpl->always_thinks)
		return dsv3_error(err, DSV3_ERR_UNSUPPORTED,
						  "thinking cannot be turned off with the chat template of this model (%s)",
						  tmpl->name);
	if (json_array_size(tools) == 0)
		return true;
	if (!tmpl->takes_tools && tmpl->kind != DSV3_TEMPLATE_V31)
		return has_no_tools(tmpl, "", "Ask without tools, or use a model that has them.", err);
	if (tmpl->kind == DSV3_TEMPLATE_V31 && think == DSV3_THINK_ON)
		return dsv3_error(err, DSV3_ERR_UNSUPPORTED, "this model (%s) uses tools only without thinking",
						  tmpl->name);
	return check_tools(tools, err);
}

/* Messages as values; the tool description of V3.1 goes behind the last system message. */
static Dsv3Value *
read_messages(const Dsv3Template *tmpl, Dsv3Pool *pool, const json_t *messages, const json_t *tools,
			  Dsv3Error *err)
{
	Dsv3Value *list = dsv3_value_list(pool), *description = NULL;
	size_t n_calls = 0, n = json_array_size(messages), behind = 0;

	if (json_array_size(tools) > 0 && !tmpl->takes_tools)
	{
		description = describe_tools(pool, tools, err);
		if (description == NULL)
			return NULL;
	}
	for (size_t i = 0; i < n; i++)
	{
		const char *role = json_string_value(json_object_get(json_array_get(messages, i), "role"));

		if (role != NULL && strcmp(role, "system") == 0)
			behind = i + 1;
	}
	for (size_t i = 0; i < n; i++)
	{
		Dsv3Value *message = read_message(pool, json_array_get(messages, i), i, &n_calls, err);

		if (message == NULL || !check_calls(tmpl, json_array_get(messages, i), i, err))
			return NULL;
		if (list == NULL ||
			(description != NULL && i == behind && !dsv3_list_append(pool, list, description)) ||
			!dsv3_list_append(pool, list, message))
		{
			no_memory(err);
			return NULL;
		}
	}
	if (description != NULL && behind == n && !dsv3_list_append(pool, list, description))
	{
		no_memory(err);
		return NULL;
	}
	return list;
}

bool
dsv3_template_render(const Dsv3Template *tmpl, const char *messages_json, size_t messages_len,
					 const char *tools_json, size_t tools_len, Dsv3Think think, size_t max_tokens,
					 Dsv3Tokens *out, Dsv3Error *err)
{
	json_t *messages, *tools = NULL;
	Dsv3Pool pool = {0};
	Dsv3Value *values = NULL, *tool_values = NULL;
	Dsv3Rendered rendered;
	bool ok = false;

	if (tmpl->kind == DSV3_TEMPLATE_NONE)
	{
		dsv3_error(err, DSV3_ERR_UNSUPPORTED, "this model has no chat template that is supported: %s",
				   tmpl->reason);
		return dsv3_error_hint(err, "Use raw prompts, written in the format the model was trained on.");
	}
	messages = parse_array(messages_json, messages_len, "the messages", err);
	if (messages == NULL)
		return false;
	if (tools_json != NULL)
		tools = parse_array(tools_json, tools_len, "the tools", err);
	pool.limit = POOL_BASE + (messages_len + tools_len) * POOL_PER_BYTE;
	if (tools_json != NULL && tools == NULL)
		;
	else if (json_array_size(messages) == 0 || json_array_size(messages) > MAX_MESSAGES)
		dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "there are %zu messages (1 to %d are possible)",
				   json_array_size(messages), MAX_MESSAGES);
	else if (check_settings(tmpl, tools, think, err))
		values = read_messages(tmpl, &pool, messages, tools, err);
	if (values != NULL)
	{
		Encoding e = {.tokenizer = tmpl->tokenizer,
					  .start = out->count,
					  .max_tokens = max_tokens,
					  .out = out,
					  .err = err};

		if (json_array_size(tools) > 0 && tmpl->takes_tools)
		{
			tool_values = dsv3_value_from_json(&pool, tools);
			if (tool_values == NULL)
				no_memory(err);
		}
		if (json_array_size(tools) == 0 || !tmpl->takes_tools || tool_values != NULL)
			ok = run_program(tmpl, &pool, values, tool_values, think, &rendered, err) &&
				 encode_rendered(&e, &rendered);
		dsv3_text_free(&e.run);
	}
	dsv3_pool_free(&pool);
	json_decref(messages);
	json_decref(tools);
	return ok;
}

bool
dsv3_template_raw(const Dsv3Template *tmpl, const char *text, size_t len, size_t max_tokens, Dsv3Tokens *out,
				  Dsv3Error *err)
{
	int32_t bos = dsv3_tokenizer_bos(tmpl->tokenizer);

	if (bos >= 0)
	{
		if (!dsv3_tokens_push(out, bos, err))
			return false;
		if (max_tokens == 1 && len > 0)
			return dsv3_error(err, DSV3_ERR_TOO_LARGE,
							  "the prompt has more than the allowed number of tokens");
		if (max_tokens > 1)
			max_tokens--;
	}
	return dsv3_tokenizer_encode(tmpl->tokenizer, text, len, DSV3_ENCODE_PLAIN, max_tokens, out, err);
}

bool
dsv3_template_opens_think(const Dsv3Template *tmpl, Dsv3Think think)
{
	return tmpl->opens_think[think];
}

/* ---- opening ---- */

/* Not a failure: the model just has no template we can use. */
static bool
no_template(Dsv3Template *tmpl, const char *reason)
{
	snprintf(tmpl->reason, sizeof(tmpl->reason), "%.*s", (int) sizeof(tmpl->reason) - 1, reason);
	tmpl->kind = DSV3_TEMPLATE_NONE;
	tmpl->name = kind_names[DSV3_TEMPLATE_NONE];
	dsv3_jinja_free(tmpl->program);
	tmpl->program = NULL;
	return true;
}

/* The text of a token that tokenizer_config.json gives as a string or an object, or NULL; *ok false on memory. */
static char *
token_text(const json_t *config, const char *key, bool *ok)
{
	const json_t *token = json_object_get(config, key);
	char *text;

	if (json_is_object(token))
		token = json_object_get(token, "content");
	if (!json_is_string(token))
		return NULL;
	text = strdup(json_string_value(token));
	if (text == NULL)
		*ok = false;
	return text;
}

/* The chat_template of tokenizer_config.json: a string, or a list of named ones of which "default" counts. */
static const char *
config_template(const json_t *config)
{
	const json_t *value = json_object_get(config, "chat_template");

	for (size_t i = 0; json_is_array(value) && i < json_array_size(value); i++)
	{
		const json_t *item = json_array_get(value, i), *name = json_object_get(item, "name");

		if (json_is_string(name) && strcmp(json_string_value(name), "default") == 0)
			return json_string_value(json_object_get(item, "template"));
	}
	return json_string_value(value);
}

/* Render a conversation of one user message "x"; false when the template does not take it. */
static bool
render_probe(const Dsv3Template *tmpl, Dsv3Pool *pool, Dsv3Think think, Dsv3Rendered *rendered)
{
	Dsv3Value *messages = dsv3_value_list(pool), *message = dsv3_value_dict(pool);

	return messages != NULL && message != NULL &&
		   dsv3_dict_set(pool, message, "role", dsv3_value_string(pool, "user", 4, true)) &&
		   dsv3_dict_set(pool, message, "content", dsv3_value_string(pool, "x", 1, true)) &&
		   dsv3_list_append(pool, messages, message) &&
		   run_program(tmpl, pool, messages, NULL, think, rendered, NULL);
}

/* Does the prompt end in an opened <think>? */
static bool
ends_in_think(const Dsv3Rendered *rendered)
{
	static const char mark[] = "<think>";
	size_t len = rendered->len;

	while (len > 0 && (rendered->text[len - 1] == '\n' || rendered->text[len - 1] == ' '))
		len--;
	return len >= sizeof(mark) - 1 && !rendered->from_user[len - 1] &&
		   memcmp(rendered->text + len - (sizeof(mark) - 1), mark, sizeof(mark) - 1) == 0;
}

/* The text of the system turn a template puts in front by itself, between `before` and `after`; NULL when none. */
static char *
probe_system(const Dsv3Rendered *rendered, const char *before, const char *after)
{
	const char *start = memmem(rendered->text, rendered->len, before, strlen(before)), *end;

	if (start == NULL || rendered->from_user[start - rendered->text])
		return NULL;
	start += strlen(before);
	end = memmem(start, (size_t) (rendered->text + rendered->len - start), after, strlen(after));
	return end == NULL ? NULL : strndup(start, (size_t) (end - start));
}

static Dsv3TemplateKind
kind_of(const char *source, bool opens_think)
{
	if (strstr(source, DS_USER) != NULL && strstr(source, DS_ASSISTANT) != NULL)
	{
		if (strstr(source, "DSML") != NULL)
			return DSV3_TEMPLATE_NONE;
		if (strstr(source, DS_ASSISTANT "</think>") != NULL)
			return DSV3_TEMPLATE_V31;
		if (opens_think)
			return DSV3_TEMPLATE_R1;
		return strstr(source, "</think>") != NULL ? DSV3_TEMPLATE_R1_0528 : DSV3_TEMPLATE_V3;
	}
	if (strstr(source, "<|im_middle|>") != NULL)
		return strstr(source, "tool_declare") != NULL ? DSV3_TEMPLATE_KIMI_K2 : DSV3_TEMPLATE_MOONLIGHT;
	if (strstr(source, "<|im_start|>") != NULL && strstr(source, "<|im_end|>") != NULL)
		return DSV3_TEMPLATE_CHATML;
	if (strstr(source, "'User: '") != NULL && strstr(source, "'Assistant:'") != NULL)
		return DSV3_TEMPLATE_V2;
	return DSV3_TEMPLATE_NONE;
}

/* Does the tokenizer have the control tokens of the kind? */
static bool
has_tokens(const Dsv3Tokenizer *tokenizer, Dsv3TemplateKind kind)
{
	static const char *const deepseek[] = {DS_USER, DS_ASSISTANT, NULL};
	static const char *const kimi[] = {"<|im_user|>",   "<|im_assistant|>", "<|im_system|>",
									   "<|im_middle|>", "<|im_end|>",       NULL};
	static const char *const chatml[] = {"<|im_start|>", "<|im_end|>", NULL};
	static const char *const none[] = {NULL};
	const char *const *names = kind == DSV3_TEMPLATE_KIMI_K2 || kind == DSV3_TEMPLATE_MOONLIGHT ? kimi
							   : kind == DSV3_TEMPLATE_CHATML                                   ? chatml
							   : kind == DSV3_TEMPLATE_V2                                       ? none
																								: deepseek;

	for (; *names != NULL; names++)
	{
		if (dsv3_tokenizer_special_id(tokenizer, *names) < 0)
			return false;
	}
	return true;
}

/* Is there a variable named tools? (tool_calls is another word.) */
static bool
mentions_tools(const char *source)
{
	for (const char *p = source; (p = strstr(p, "tools")) != NULL; p += 5)
	{
		char before = p > source ? p[-1] : ' ', after = p[5];
		bool joined = (before >= 'a' && before <= 'z') || before == '_' || before == '.' || before == '\'' ||
					  (after >= 'a' && after <= 'z') || after == '_' || after == '\'';

		if (!joined)
			return true;
	}
	return false;
}

/* Compile a source and find out what it does; sets everything but bos, eos and tokenizer. */
static bool
examine(Dsv3Template *tmpl, const char *source, Dsv3Error *err)
{
	Dsv3Pool pool = {.limit = POOL_BASE};
	Dsv3Rendered rendered;
	Dsv3Error inner = {.sqlstate = ""};
	bool ok = true;

	tmpl->program = dsv3_jinja_compile(source, strlen(source), &inner);
	if (tmpl->program == NULL)
	{
		if (strcmp(inner.sqlstate, DSV3_ERR_OUT_OF_MEMORY) == 0)
			return no_memory(err);
		return no_template(tmpl, inner.message);
	}
	for (int think = DSV3_THINK_AUTO; ok && think <= DSV3_THINK_ON; think++)
	{
		ok = render_probe(tmpl, &pool, (Dsv3Think) think, &rendered);
		tmpl->opens_think[think] = ok && ends_in_think(&rendered);
	}
	tmpl->kind = ok ? kind_of(source, tmpl->opens_think[DSV3_THINK_OFF]) : DSV3_TEMPLATE_NONE;
	tmpl->name = kind_names[tmpl->kind];
	if (tmpl->kind == DSV3_TEMPLATE_CHATML)
		tmpl->default_system = probe_system(&rendered, "<|im_start|>system\n", "<|im_end|>");
	else if (tmpl->kind == DSV3_TEMPLATE_KIMI_K2 || tmpl->kind == DSV3_TEMPLATE_MOONLIGHT)
		tmpl->default_system = probe_system(&rendered, "<|im_system|>system<|im_middle|>", "<|im_end|>");
	dsv3_pool_free(&pool);
	if (!ok)
		return no_template(tmpl, "its chat_template does not take a plain user message");
	if (tmpl->kind == DSV3_TEMPLATE_NONE)
		return no_template(tmpl, "its chat_template is of no known family");
	if (!has_tokens(tmpl->tokenizer, tmpl->kind))
		return no_template(tmpl, "its tokenizer lacks the control tokens of its chat_template");
	tmpl->takes_tools = mentions_tools(source);
	tmpl->takes_calls = strstr(source, "tool_calls") != NULL;
	tmpl->always_thinks = tmpl->kind == DSV3_TEMPLATE_R1 || tmpl->kind == DSV3_TEMPLATE_R1_0528 ||
						  (tmpl->kind == DSV3_TEMPLATE_KIMI_K2 && strstr(source, "<think>") != NULL);
	tmpl->can_think = tmpl->always_thinks || tmpl->kind == DSV3_TEMPLATE_V31;
	return true;
}

/* A file of the model that may be absent: *text is then NULL. */
static bool
read_optional(const char *model_dir, const char *name, size_t max, char **text, size_t *len, Dsv3Error *err)
{
	Dsv3Error inner;

	*text = dsv3_read_text_file(model_dir, name, max, len, &inner);
	if (*text != NULL || strcmp(inner.sqlstate, DSV3_ERR_NO_FILE) == 0)
		return true;
	if (err != NULL)
		*err = inner;
	return false;
}

bool
dsv3_template_open(Dsv3Template *tmpl, const char *model_dir, const Dsv3Tokenizer *tokenizer, Dsv3Error *err)
{
	char *config_text = NULL, *jinja = NULL;
	size_t config_len = 0, jinja_len = 0;
	json_t *config = NULL;
	bool ok;

	memset(tmpl, 0, sizeof(*tmpl));
	tmpl->tokenizer = tokenizer;
	no_template(tmpl, "it has no chat_template");
	ok = read_optional(model_dir, "tokenizer_config.json", MAX_CONFIG, &config_text, &config_len, err) &&
		 read_optional(model_dir, "chat_template.jinja", MAX_TEMPLATE, &jinja, &jinja_len, err);
	if (ok && config_text != NULL)
	{
		config = dsv3_parse_json_file(config_text, config_len, "tokenizer_config.json", err);
		ok = config != NULL;
	}
	if (ok)
	{
		/* newer checkpoints keep the template in a file of its own, which counts */
		const char *source = jinja ? jinja : config_template(config);

		tmpl->bos = token_text(config, "bos_token", &ok);
		tmpl->eos = token_text(config, "eos_token", &ok);
		if (!ok)
			no_memory(err);
		else if (jinja != NULL && strlen(jinja) != jinja_len)
			no_template(tmpl, "its chat_template.jinja has a zero byte");
		else if (source != NULL)
			ok = examine(tmpl, source, err);
	}
	free(config_text);
	free(jinja);
	json_decref(config);
	if (!ok)
		dsv3_template_close(tmpl);
	return ok;
}

void
dsv3_template_close(Dsv3Template *tmpl)
{
	dsv3_jinja_free(tmpl->program);
	free(tmpl->default_system);
	free(tmpl->bos);
	free(tmpl->eos);
	memset(tmpl, 0, sizeof(*tmpl));
	tmpl->name = kind_names[DSV3_TEMPLATE_NONE];
}
