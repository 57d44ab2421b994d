/*
 * template_answer.c
 *	  Taking a finished answer apart: thinking, tool calls, content. What is not well formed stays content; nothing a model
 *	  writes is an error.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/template.h"

#define DS_MARK(words) "<\xEF\xBD\x9C" words "\xEF\xBD\x9C>"
#define DS_CALLS_BEGIN                                                                                       \
	DS_MARK("tool\xE2\x96\x81"                                                                               \
			"calls\xE2\x96\x81"                                                                              \
			"begin")
#define DS_CALLS_END                                                                                         \
	DS_MARK("tool\xE2\x96\x81"                                                                               \
			"calls\xE2\x96\x81"                                                                              \
			"end")
#define DS_CALL_BEGIN                                                                                        \
	DS_MARK("tool\xE2\x96\x81"                                                                               \
			"call\xE2\x96\x81"                                                                               \
			"begin")
#define DS_CALL_END                                                                                          \
	DS_MARK("tool\xE2\x96\x81"                                                                               \
			"call\xE2\x96\x81"                                                                               \
			"end")
#define DS_CALL_SEP DS_MARK("tool\xE2\x96\x81sep")

/* A part of the answer. */
typedef struct Span
{
	const char *text;
	size_t len;
} Span;

/* How a family marks tool calls. */
typedef struct ToolMarks
{
	const char *section_begin;
	const char *section_end;
	const char *call_begin;
	const char *separator;
	const char *call_end;
} ToolMarks;

static const ToolMarks deepseek_marks = {DS_CALLS_BEGIN, DS_CALLS_END, DS_CALL_BEGIN, DS_CALL_SEP,
										 DS_CALL_END};
static const ToolMarks kimi_marks = {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
									 "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
									 "<|tool_call_end|>"};

static bool
is_space(char c)
{
	return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static Span
trim(Span span, bool left, bool right)
{
	while (left && span.len > 0 && is_space(span.text[0]))
	{
		span.text++;
		span.len--;
	}
	while (right && span.len > 0 && is_space(span.text[span.len - 1]))
		span.len--;
	return span;
}

/* Where mark begins in the span, or NULL. */
static const char *
find(Span span, const char *mark)
{
	return span.len == 0 ? NULL : memmem(span.text, span.len, mark, strlen(mark));
}

static bool
begins_with(Span span, const char *mark)
{
	return span.len >= strlen(mark) && memcmp(span.text, mark, strlen(mark)) == 0;
}

/* The span from p to its end. */
static Span
from(Span span, const char *p)
{
	return (Span){p, (size_t) (span.text + span.len - p)};
}

static Span
up_to(Span span, const char *p)
{
	return (Span){span.text, (size_t) (p - span.text)};
}

/* Without the tokens that end a turn. */
static Span
drop_end(const Dsv3Template *tmpl, Span answer)
{
	const char *const ends[] = {tmpl->eos, "<|im_end|>", DS_MARK("end\xE2\x96\x81of\xE2\x96\x81sentence"),
								"[EOS]"};
	bool again = true;

	while (again)
	{
		again = false;
		for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		{
			size_t n = ends[i] ? strlen(ends[i]) : 0;

			/* the texts that are not this family's own tokens are just text */
			if (n == 0 || n > answer.len || dsv3_tokenizer_special_id(tmpl->tokenizer, ends[i]) < 0 ||
				memcmp(answer.text + answer.len - n, ends[i], n) != 0)
				continue;
			answer.len -= n;
			again = true;
		}
	}
	return answer;
}

/* Cut the thinking part off the front of *answer. */
static Span
take_thinking(const Dsv3Template *tmpl, Span *answer, bool opened)
{
	Span none = {NULL, 0}, start = trim(*answer, true, false), thinking;
	const char *end;

	if (!opened)
	{
		if (!tmpl->can_think || !begins_with(start, "<think>"))
			return none;
		*answer = from(start, start.text + strlen("<think>"));
	}
	else if (begins_with(start, "<think>"))
		*answer = from(start, start.text + strlen("<think>"));
	end = find(*answer, "</think>");
	if (end == NULL)
	{
		/* cut off while thinking */
		thinking = *answer;
		*answer = from(*answer, answer->text + answer->len);
	}
	else
	{
		thinking = up_to(*answer, end);
		*answer = trim(from(*answer, end + strlen("</think>")), true, false);
	}
	return trim(thinking, true, true);
}

/* Add {"id", "type", "function": {"name", "arguments"}}. */
static bool
add_call(json_t *calls, Span id, Span name, Span arguments)
{
	char made_id[40];
	json_t *call;

	if (id.len == 0)
	{
		snprintf(made_id, sizeof(made_id), "call_%zu", json_array_size(calls));
		id = (Span){made_id, strlen(made_id)};
	}
	call = json_pack("{s:s%, s:s, s:{s:s%, s:s%}}", "id", id.text, id.len, "type", "function", "function",
					 "name", name.text, name.len, "arguments", arguments.text, arguments.len);
	return call != NULL && json_array_append_new(calls, call) == 0;
}

/* One call: what is between its marks, cut at the separator. */
static bool
read_call(const Dsv3Template *tmpl, json_t *calls, Span head, Span body)
{
	static const char fence[] = "\n```json\n", fence_end[] = "\n```";
	const Span none = {NULL, 0};
	const char *at;

	if (tmpl->kind == DSV3_TEMPLATE_KIMI_K2)
	{
		/* the id is functions.NAME:INDEX */
		Span id = trim(head, true, true), name = id;

		if (begins_with(name, "functions."))
			name = from(name, name.text + strlen("functions."));
		at = name.len > 0 ? memrchr(name.text, ':', name.len) : NULL;
		if (at != NULL)
			name = up_to(name, at);
		return name.len > 0 && add_call(calls, id, name, trim(body, true, true));
	}
	at = find(body, fence);
	if (tmpl->kind == DSV3_TEMPLATE_V31 || at == NULL)
	{
		head = trim(head, true, true);
		return head.len > 0 && add_call(calls, none, head, trim(body, true, true));
	}
	/* type, separator, name, fenced arguments */
	head = trim(up_to(body, at), true, true);
	body = trim(from(body, at + strlen(fence)), false, true);
	if (head.len == 0 || body.len < strlen(fence_end) ||
		memcmp(body.text + body.len - strlen(fence_end), fence_end, strlen(fence_end)) != 0)
		return false;
	body.len -= strlen(fence_end);
	return add_call(calls, none, head, body);
}

/*
 * Read a section of calls that begins at *rest; on success *rest is what follows it. False when it is malformed (or
 * without memory, which then makes the section content).
 */
static bool
read_section(const Dsv3Template *tmpl, const ToolMarks *marks, json_t *calls, Span *rest)
{
	Span at = trim(from(*rest, rest->text + strlen(marks->section_begin)), true, false);

	while (begins_with(at, marks->call_begin))
	{
		Span call = from(at, at.text + strlen(marks->call_begin));
		const char *end = find(call, marks->call_end), *separator;

		if (end == NULL)
			return false;
		at = trim(from(call, end + strlen(marks->call_end)), true, false);
		call = up_to(call, end);
		separator = find(call, marks->separator);
		if (separator == NULL ||
			!read_call(tmpl, calls, up_to(call, separator), from(call, separator + strlen(marks->separator))))
			return false;
	}
	if (json_array_size(calls) == 0)
		return false;
	if (begins_with(at, marks->section_end))
		at = from(at, at.text + strlen(marks->section_end));
	*rest = at;
	return true;
}

bool
dsv3_template_parse_answer(const Dsv3Template *tmpl, const char *answer, size_t len,
						   bool generation_opens_think, Dsv3Text *reasoning, Dsv3Text *content,
						   Dsv3Text *tool_calls_json, Dsv3Error *err)
{
	const ToolMarks *marks = NULL;
	Span rest = drop_end(tmpl, (Span){answer, len}), thinking, before, after = {NULL, 0};
	json_t *calls = json_array();
	bool ok = calls != NULL;
	const char *section;

	if (!ok)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
	if (tmpl->kind == DSV3_TEMPLATE_KIMI_K2)
		marks = &kimi_marks;
	else if (tmpl->kind == DSV3_TEMPLATE_V3 || tmpl->kind == DSV3_TEMPLATE_R1 ||
			 tmpl->kind == DSV3_TEMPLATE_R1_0528 || tmpl->kind == DSV3_TEMPLATE_V31)
		marks = &deepseek_marks;
	thinking = take_thinking(tmpl, &rest, generation_opens_think);
	before = rest;
	section = marks ? find(rest, marks->section_begin) : NULL;
	if (section != NULL)
	{
		after = from(rest, section);
		if (read_section(tmpl, marks, calls, &after))
			before = trim(up_to(rest, section), false, true);
		else
		{
			json_array_clear(calls);
			after.len = 0;
		}
	}
	ok = dsv3_text_append(reasoning, thinking.len ? thinking.text : "", thinking.len, err) &&
		 dsv3_text_append(content, before.len ? before.text : "", before.len, err) &&
		 dsv3_text_append(content, after.len ? after.text : "", after.len, err);
	if (ok && json_array_size(calls) > 0)
	{
		char *text = json_dumps(calls, JSON_COMPACT);

		ok = text != NULL ? dsv3_text_append(tool_calls_json, text, strlen(text), err)
						  : dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
		free(text);
	}
	json_decref(calls);
	return ok;
}
