/*
 * options.c
 *	  The `options jsonb` argument: one table of keys, each with the functions it is valid for and a setter.
 *
 * A key that is not in the table, or not valid for the function, is an error that lists the valid ones: a misspelt
 * option must not be ignored. JSON null means "as if the key were not there".
 */
#include "postgres.h"

#include "pg/compat.h"

#include <math.h>

#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/numeric.h"

#include "pg/answer.h"
#include "pg/guc.h"
#include "pg/options.h"
#include "pg/text.h"

#define TEXTS          (DSV3_OPTIONS_GENERATE | DSV3_OPTIONS_TRY | DSV3_OPTIONS_STREAM)
#define EXTRACTS       (DSV3_OPTIONS_EXTRACT | DSV3_OPTIONS_TRY_EXTRACT | DSV3_OPTIONS_ROW)
#define SAMPLED        (TEXTS | DSV3_OPTIONS_CHAT | EXTRACTS | DSV3_OPTIONS_PROMPT)
#define EVERYWHERE     (SAMPLED | DSV3_OPTIONS_SCORE | DSV3_OPTIONS_PIN)
#define LOGPROBS_MAX   20
#define NAME_SHOWN_MAX 64 /* bytes of an unknown key in the error */

typedef void (*OptionSetter)(Dsv3Request *request, const char *name, const JsonbValue *value);

static void
wrong_type(const char *name, const char *expected)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("option \"%s\" must be %s", name, expected)));
}

static void
wrong_value(const char *name, const char *expected)
{
	ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("option \"%s\" is out of range", name),
					errhint("It must be %s.", expected)));
}

/* ---- values ---- */

static double
get_number(const char *name, const JsonbValue *value)
{
	if (value->type != jbvNumeric)
		wrong_type(name, "a number");
	return DatumGetFloat8(
		DirectFunctionCall1(numeric_float8_no_overflow, NumericGetDatum(value->val.numeric)));
}

static int64
get_integer(const char *name, const JsonbValue *value, int64 min, int64 max)
{
	double number;

	if (value->type != jbvNumeric)
		wrong_type(name, "an integer");
	number = get_number(name, value);
	if (number != floor(number))
		wrong_type(name, "an integer");
	if (number < (double) min || number > (double) max)
		wrong_value(name, psprintf("between " INT64_FORMAT " and " INT64_FORMAT, min, max));
	return (int64) number;
}

static char *
get_string(const char *name, const JsonbValue *value, const char *expected)
{
	if (value->type != jbvString)
		wrong_type(name, expected);
	return pnstrdup(value->val.string.val, value->val.string.len);
}

static Dsv3Text
to_utf8(const char *data, Size len)
{
	Dsv3Text text;
	Dsv3Failure failure;

	if (!dsv3_text_to_utf8(PointerGetDatum(cstring_to_text_with_len(data, (int) len)), &text, &failure))
		dsv3_raise(&failure);
	return text;
}

/* ---- setters ---- */

/* The source of a grammar; one of them at most. */
static void
set_source(Dsv3Request *request, Dsv3Text source, uint32 kind)
{
	if (request->grammar.data)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("options \"choices\", \"grammar\" and \"regex\" exclude each other")));
	request->grammar = source;
	request->grammar_kind = kind;
}

static void
set_budget(Dsv3Request *request, const char *name, const JsonbValue *value)
{
	request->budget = get_number(name, value);
	if (!(request->budget > 0 && request->budget <= 100))
		wrong_value(name, "greater than 0 and at most 100");
}

static void
set_choices(Dsv3Request *request, const char *name, const JsonbValue *value)
{
	char *json;

	if (value->type != jbvBinary || !JsonContainerIsArray(value->val.binary.data))
		wrong_type(name, "an array of texts");
	json = JsonbToCString(NULL, value->val.binary.data, value->val.binary.len);
	set_source(request, to_utf8(json, strlen(json)), DSV3_GRAMMAR_IS_CHOICE);
}

static void
set_grammar(Dsv3Request *request, const char *name, const JsonbValue *value)
{
	char *text = get_string(name, value, "a text in EBNF");

	set_source(request, to_utf8(text, strlen(text)), DSV3_GRAMMAR_IS_EBNF);
}

static void
set_regex(Dsv3Request *request, const char *name, const JsonbValue *value)
{
	char *text = get_string(name, value, "a regular expression");

	set_source(request, to_utf8(text, strlen(text)), DSV3_GRAMMAR_IS_REGEX);
}

static void
set_instruction(Dsv3Request *request, const char *name, const JsonbValue *value)
{
	char *text = get_string(name, value, "a text");

	request->instruction = to_utf8(text, strlen(text));
}

static void
set_schema_text(Dsv3Request *request, const char *name, const JsonbValue *value)
{
	char *text = get_string(name, value, "a text with a JSON Schema");

	request->schema_text = to_utf8(text, strlen(text));
}

static void
set_max_tokens(Dsv3Request *request, const char *name, const JsonbValue *value)
{
	request->max_tokens = dsv3_check_max_tokens(get_integer(name, value, PG_INT32_MIN, PG_INT32_MAX));
}

static void
set_seed(Dsv3Request *request, const char *name, const JsonbValue *value)
{
	/* Beyond 2^53 a JSON number is not an exact integer everywhere. */
	request->seed = get_integer(name, value, -(INT64CONST(1) << 53), INT64CONST(1) << 53);
}

static void
set_temperature(Dsv3Request *request, const char *name, const JsonbValue *value)
{
	request->temperature = dsv3_check_temperature(get_number(name, value));
}

static void
set_whitespace(Dsv3Request *request, const char *name, const JsonbValue *value)
{
	static const char *const names[] = {"natural", "compact", "spaced"};
	char *text = get_string(name, value, "\"natural\", \"compact\" or \"spaced\"");

	for (int i = 0; i < (int) lengthof(names); i++)
	{
		if (strcmp(text, names[i]) == 0)
		{
			request->whitespace = (uint32) i;
			return;
		}
	}
	wrong_type(name, "\"natural\", \"compact\" or \"spaced\"");
}

static void
set_logprobs(Dsv3Request *request, const char *name, const JsonbValue *value)
{
	request->logprobs = (int) get_integer(name, value, 0, LOGPROBS_MAX);
}

static void
set_min_p(Dsv3Request *request, const char *name, const JsonbValue *value)
{
	request->min_p = get_number(name, value);
	if (!(request->min_p >= 0 && request->min_p <= 1))
		wrong_value(name, "between 0 and 1");
}

static void
set_on_error(Dsv3Request *request, const char *name, const JsonbValue *value)
{
	char *text = get_string(name, value, "\"error\" or \"null\"");

	if (strcmp(text, "error") == 0)
		request->on_error = DSV3_ON_ERROR_ERROR;
	else if (strcmp(text, "null") == 0)
		request->on_error = DSV3_ON_ERROR_NULL;
	else
		wrong_type(name, "\"error\" or \"null\"");
}

static void
set_cache_scope(Dsv3Request *request, const char *name, const JsonbValue *value)
{
	char *text = get_string(name, value, "\"role\", \"database\" or \"none\"");

	if (strcmp(text, "role") == 0)
		request->cache_scope = DSV3_CACHE_SCOPE_ROLE;
	else if (strcmp(text, "database") == 0)
		request->cache_scope = DSV3_CACHE_SCOPE_DATABASE;
	else if (strcmp(text, "none") == 0)
		request->cache_scope = DSV3_CACHE_SCOPE_NONE;
	else
		wrong_type(name, "\"role\", \"database\" or \"none\"");
}

static void
set_priority(Dsv3Request *request, const char *name, const JsonbValue *value)
{
	char *text = get_string(name, value, "\"interactive\" or \"batch\"");

	if (strcmp(text, "interactive") == 0)
		request->priority = DSV3_PRIORITY_INTERACTIVE;
	else if (strcmp(text, "batch") == 0)
		request->priority = DSV3_PRIORITY_BATCH;
	else
		wrong_type(name, "\"interactive\" or \"batch\"");
}

static void
set_raw(Dsv3Request *request, const char *name, const JsonbValue *value)
{
	if (value->type != jbvBool)
		wrong_type(name, "true or false");
	request->raw = value->val.boolean;
}

static void
set_repetition_penalty(Dsv3Request *request, const char *name, const JsonbValue *value)
{
	request->repetition_penalty = get_number(name, value);
	if (!(request->repetition_penalty > 0 && request->repetition_penalty <= 10))
		wrong_value(name, "greater than 0 and at most 10");
}

static void
add_stop(Dsv3Request *request, const char *name, const JsonbValue *value)
{
	char *text = get_string(name, value, "a text or an array of texts");

	if (text[0] == '\0')
		wrong_type(name, "a text that is not empty, or an array of such texts");
	if (request->n_stop == DSV3_MAX_STOPS)
		wrong_value(name, psprintf("at most %d texts", DSV3_MAX_STOPS));
	request->stop[request->n_stop++] = to_utf8(text, strlen(text));
}

static void
set_stop(Dsv3Request *request, const char *name, const JsonbValue *value)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue element;

	if (value->type != jbvBinary)
	{
		add_stop(request, name, value);
		return;
	}
	if (!JsonContainerIsArray(value->val.binary.data))
		wrong_type(name, "a text or an array of texts");
	it = JsonbIteratorInit(value->val.binary.data);
	while ((token = JsonbIteratorNext(&it, &element, true)) != WJB_DONE)
	{
		if (token == WJB_ELEM)
			add_stop(request, name, &element);
	}
}

/* "auto", "off", "on", or how many tokens it may take. */
static void
set_think(Dsv3Request *request, const char *name, const JsonbValue *value)
{
	static const char *const names[] = {"auto", "off", "on"};
	char *text;

	if (value->type == jbvNumeric)
	{
		request->think = 2;
		request->think_budget = get_integer(name, value, 0, PG_INT32_MAX);
		return;
	}
	text = get_string(name, value, "\"auto\", \"off\", \"on\" or a number of tokens");
	for (int i = 0; i < (int) lengthof(names); i++)
	{
		if (strcmp(text, names[i]) == 0)
		{
			request->think = i;
			return;
		}
	}
	wrong_type(name, "\"auto\", \"off\", \"on\" or a number of tokens");
}

static void
set_timeout_ms(Dsv3Request *request, const char *name, const JsonbValue *value)
{
	request->timeout_ms = (int) get_integer(name, value, 0, PG_INT32_MAX);
}

static void
set_tools(Dsv3Request *request, const char *name, const JsonbValue *value)
{
	char *json;

	if (value->type != jbvBinary || !JsonContainerIsArray(value->val.binary.data))
		wrong_type(name, "an array of tool definitions");
	json = JsonbToCString(NULL, value->val.binary.data, value->val.binary.len);
	request->tools = to_utf8(json, strlen(json));
}

static void
set_top_k(Dsv3Request *request, const char *name, const JsonbValue *value)
{
	request->top_k = get_integer(name, value, 0, PG_INT32_MAX);
}

static void
set_top_p(Dsv3Request *request, const char *name, const JsonbValue *value)
{
	request->top_p = get_number(name, value);
	if (!(request->top_p > 0 && request->top_p <= 1))
		wrong_value(name, "greater than 0 and at most 1");
}

static void
set_traceparent(Dsv3Request *request, const char *name, const JsonbValue *value)
{
	char *text = get_string(name, value, "a W3C traceparent");

	if (!dsv3_is_traceparent(text))
		wrong_type(
			name, "a W3C traceparent (\"00-<32 hex digits>-<16 hex digits>-<2 hex digits>\", in lower case)");
	request->traceparent = text;
}

/* Sorted by name: the list in the hint comes from here. */
static const struct
{
	const char *name;
	int functions;
	OptionSetter set;
} options_table[] = {
	{"budget", DSV3_OPTIONS_PROMPT, set_budget},
	{"cache_scope", EVERYWHERE, set_cache_scope},
	{"choices", TEXTS | DSV3_OPTIONS_PROMPT, set_choices},
	{"grammar", TEXTS | DSV3_OPTIONS_PROMPT, set_grammar},
	{"instruction", DSV3_OPTIONS_SCORE, set_instruction},
	{"logprobs", DSV3_OPTIONS_TRY | DSV3_OPTIONS_CHAT | DSV3_OPTIONS_TRY_EXTRACT, set_logprobs},
	{"max_tokens", DSV3_OPTIONS_ROW | DSV3_OPTIONS_PROMPT, set_max_tokens},
	{"min_p", SAMPLED, set_min_p},
	{"on_error",
	 DSV3_OPTIONS_GENERATE | DSV3_OPTIONS_CHAT | DSV3_OPTIONS_EXTRACT | DSV3_OPTIONS_ROW |
		 DSV3_OPTIONS_SCORE | DSV3_OPTIONS_PROMPT,
	 set_on_error},
	{"priority", EVERYWHERE, set_priority},
	{"raw", TEXTS | DSV3_OPTIONS_PIN | DSV3_OPTIONS_PROMPT, set_raw},
	{"regex", TEXTS | DSV3_OPTIONS_PROMPT, set_regex},
	{"repetition_penalty", SAMPLED, set_repetition_penalty},
	{"schema_text", DSV3_OPTIONS_EXTRACT | DSV3_OPTIONS_TRY_EXTRACT, set_schema_text},
	{"seed", EXTRACTS | DSV3_OPTIONS_PROMPT, set_seed},
	{"stop", TEXTS | DSV3_OPTIONS_CHAT | DSV3_OPTIONS_PROMPT, set_stop},
	{"temperature", EXTRACTS | DSV3_OPTIONS_PROMPT, set_temperature},
	{"think", SAMPLED | DSV3_OPTIONS_PIN, set_think},
	{"timeout_ms", EVERYWHERE, set_timeout_ms},
	{"tools", DSV3_OPTIONS_CHAT, set_tools},
	{"top_k", SAMPLED, set_top_k},
	{"top_p", SAMPLED, set_top_p},
	{"traceparent", EVERYWHERE, set_traceparent},
	{"whitespace", EXTRACTS | DSV3_OPTIONS_PROMPT, set_whitespace},
};

static void
raise_unknown_option(const char *name, Dsv3OptionsOf function)
{
	int len = (int) strlen(name);
	int shown = pg_mbcliplen(name, len, NAME_SHOWN_MAX);
	StringInfoData valid;

	initStringInfo(&valid);
	for (int i = 0; i < (int) lengthof(options_table); i++)
	{
		if (options_table[i].functions & function)
			appendStringInfo(&valid, "%s%s", valid.len > 0 ? ", " : "", options_table[i].name);
	}
	ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					errmsg("unrecognized option \"%s%s\"", pnstrdup(name, shown), shown < len ? "..." : ""),
					errhint("Valid options are: %s.", valid.data)));
}

static void
apply_option(Dsv3Request *request, const char *name, const JsonbValue *value, Dsv3OptionsOf function)
{
	for (int i = 0; i < (int) lengthof(options_table); i++)
	{
		if ((options_table[i].functions & function) && strcmp(options_table[i].name, name) == 0)
		{
			if (value->type != jbvNull)
				options_table[i].set(request, name, value);
			return;
		}
	}
	raise_unknown_option(name, function);
}

void
dsv3_options_apply(Dsv3Request *request, Jsonb *options, Dsv3OptionsOf function)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue value;
	const char *name = "";
	Size size = VARSIZE(options) - VARHDRSZ;

	if (!JB_ROOT_IS_OBJECT(options))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("options must be a JSON object")));
	/* Stop strings and tools go to the engine as the input does. */
	if (size > (Size) dsv3_guc_max_input_bytes)
		ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
						errmsg("options of %zu bytes are longer than dsv3.max_input_bytes (%d)", size,
							   dsv3_guc_max_input_bytes),
						errhint("Shorten the options, or have a superuser raise dsv3.max_input_bytes.")));
	it = JsonbIteratorInit(&options->root);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			name = pnstrdup(value.val.string.val, value.val.string.len);
		else if (token == WJB_VALUE)
			apply_option(request, name, &value, function);
	}
	/* A stop string would cut the answer where it is no text of the grammar. */
	if (request->grammar.data && request->n_stop > 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("option \"stop\" cannot be used with \"choices\", \"grammar\" or \"regex\"")));
}
