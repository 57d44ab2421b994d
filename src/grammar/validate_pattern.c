/*
 * validate_pattern.c
 *	  Patterns for the validator, through PCRE2.
 *
 * PCRE2 reads ECMA-262 expressions but for a few things, which are rewritten: what \s and the dot mean beyond ASCII, escapes
 * that only PCRE2 knows, and the long names of Unicode properties. Compiled patterns are kept with the validator, by the pointer into the schema.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <ctype.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/unicode.h"
#include "grammar/validate.h"

#define SPACES                                                                                               \
	"\\t-\\r \\u{a0}\\u{1680}\\u{2000}-\\u{200a}\\u{2028}\\u{2029}\\u{202f}\\u{205f}\\u{3000}\\u{feff}"

/* Letters that ECMA-262 gives a meaning behind a backslash; \s and \p have been dealt with. */
#define ESCAPES "bBcdDfnrStuwWx"

struct PatternCache
{
	PatternCache *next;
	const char *text;
	pcre2_code *code;
	pcre2_match_data *data;
};

void
dsv3_validator_free(Validator *v)
{
	while (v->patterns != NULL)
	{
		PatternCache *next = v->patterns->next;

		pcre2_code_free(v->patterns->code);
		pcre2_match_data_free(v->patterns->data);
		free(v->patterns);
		v->patterns = next;
	}
}

static size_t
put(char *out, size_t n, const char *text)
{
	size_t len = strlen(text);

	memcpy(out + n, text, len);
	return n + len;
}

/* The pattern as PCRE2 reads it, in the arena. */
static char *
translate(Arena *arena, const char *p, size_t len, size_t *outlen)
{
	char *out = dsv3_gr_arena_alloc(arena, len * 48 + 16);
	size_t n = 0;
	bool in_class = false;

	for (size_t i = 0; i < len; i++)
	{
		if (p[i] == '\\' && i + 1 < len)
		{
			char e = p[++i];

			if (e == 's')
				n = put(out, n, in_class ? SPACES : "[" SPACES "]");
			else if (e == 'S' && !in_class)
				n = put(out, n, "[^" SPACES "]");
			else if ((e == 'p' || e == 'P') && i + 1 < len && p[i + 1] == '{')
			{
				size_t end = i + 2;
				size_t name_len;
				const char *name;

				while (end < len && p[end] != '}')
					end++;
				name_len = end - i - 2;
				name = dsv3_gr_unicode_property(p + i + 2, &name_len);
				out[n++] = '\\';
				out[n++] = e;
				out[n++] = '{';
				memcpy(out + n, name, name_len);
				n += name_len;
				out[n++] = '}';
				i = end;
			}
			else if (e == 'v')
				n = put(out, n, "\\x0b"); /* PCRE2's is a class */
			else
			{
				/* A letter without a meaning of its own is itself. */
				if (!isalpha((unsigned char) e) || strchr(ESCAPES, e) != NULL)
					out[n++] = '\\';
				out[n++] = e;
			}
			continue;
		}
		if (p[i] == '{' && !in_class && i + 1 < len && p[i + 1] == ',')
			out[n++] = '\\'; /* not a quantifier */
		if (p[i] == '.' && !in_class)
		{
			n = put(out, n, "[^\\n\\r\\u{2028}\\u{2029}]");
			continue;
		}
		if (p[i] == '[')
		{
			/* In ECMA-262 a bracket inside a class is a plain character. */
			if (in_class)
				out[n++] = '\\';
			in_class = true;
		}
		else if (p[i] == ']')
			in_class = false;
		out[n++] = p[i];
	}
	out[n] = '\0';
	*outlen = n;
	return out;
}

bool
dsv3_validate_pattern(Validator *v, const char *pattern, size_t plen, const char *text, size_t len)
{
	PatternCache *p;
	int rc;

	for (p = v->patterns; p != NULL; p = p->next)
		if (p->text == pattern)
			break;
	if (p == NULL)
	{
		size_t n;
		char *translated = translate(v->ctx->arena, pattern, plen, &n);
		pcre2_compile_context *context = pcre2_compile_context_create(NULL);
		int error;
		PCRE2_SIZE offset;

		p = calloc(1, sizeof(PatternCache));
		if (p == NULL || context == NULL)
		{
			free(p);
			pcre2_compile_context_free(context);
			longjmp(v->ctx->out, GR_OUT_MEMORY);
		}
		pcre2_set_compile_extra_options(context, PCRE2_EXTRA_ALT_BSUX);
		p->text = pattern;
		p->code = pcre2_compile((PCRE2_SPTR) translated, n,
								PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | PCRE2_ALLOW_EMPTY_CLASS |
									PCRE2_MATCH_UNSET_BACKREF,
								&error, &offset, context);
		pcre2_compile_context_free(context);
		p->data = pcre2_match_data_create(1, NULL);
		p->next = v->patterns;
		v->patterns = p;
	}
	if (p->code == NULL || p->data == NULL)
		dsv3_gr_fail(v->ctx, DSV3_ERR_INVALID_PARAMETER, NULL,
					 "regular expression \"%.200s\" cannot be checked", pattern);
	rc = pcre2_match(p->code, (PCRE2_SPTR) text, len, 0, 0, p->data, NULL);
	if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
		dsv3_gr_fail(v->ctx, DSV3_ERR_TOO_LARGE, NULL,
					 "regular expression \"%.200s\" takes too long to check", pattern);
	return rc >= 0;
}
