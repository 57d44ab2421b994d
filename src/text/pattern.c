/*
 * pattern.c
 *	  Parser for the regular expressions of tokenizer files; see pattern.h for what it makes of them.
 *
 * Recursive descent, depth-limited, one pass: syntax that PCRE2 and Oniguruma share is copied, characters become
 * references to sets, and the few things that differ are rewritten (^ $ \Z and {n,m}+). All memory belongs to the
 * pattern or to the set list, both freed by the caller.
 */
#include "text/pattern.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/utf8.h"

#define MAX_PATTERN 65536  /* bytes of one expression */
#define MAX_CODE    262144 /* what it may become */
#define MAX_DEPTH   50
#define MAX_SETS    1024
#define MAX_REPEAT  1000

typedef struct Parser
{
	const char *text;
	size_t len;
	size_t pos;
	int depth;
	bool fold;          /* inside (?i: */
	uint32_t last_fold; /* the literal before this one under (?i:, lower case, or 0 */
	Dsv3Pattern *pattern;
	Dsv3SetList *list;
	Dsv3Error *err;
} Parser;

static bool parse_alternatives(Parser *p);
static bool parse_class(Parser *p, Dsv3Charset *out);

int
dsv3_setlist_add(Dsv3SetList *list, Dsv3Charset *set)
{
	for (size_t i = 0; i < list->count; i++)
	{
		if (dsv3_charset_equal(&list->sets[i], set))
		{
			dsv3_charset_free(set);
			return (int) i;
		}
	}
	if (list->count == list->capacity)
	{
		size_t capacity = list->capacity ? list->capacity * 2 : 16;
		Dsv3Charset *sets = realloc(list->sets, capacity * sizeof(*sets));

		if (sets == NULL)
		{
			dsv3_charset_free(set);
			return -1;
		}
		list->sets = sets;
		list->capacity = capacity;
	}
	list->sets[list->count] = *set;
	memset(set, 0, sizeof(*set));
	return (int) list->count++;
}

void
dsv3_setlist_free(Dsv3SetList *list)
{
	for (size_t i = 0; i < list->count; i++)
		dsv3_charset_free(&list->sets[i]);
	free(list->sets);
	memset(list, 0, sizeof(*list));
}

void
dsv3_pattern_free(Dsv3Pattern *pattern)
{
	free(pattern->code);
	memset(pattern, 0, sizeof(*pattern));
}

static bool
out_of_memory(Parser *p)
{
	return dsv3_error(p->err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
}

static bool
unsupported(Parser *p, const char *what)
{
	return dsv3_error(p->err, DSV3_ERR_UNSUPPORTED,
					  "the regular expression uses %s at byte %zu, which is not supported", what, p->pos);
}

static bool
malformed(Parser *p, const char *what)
{
	return dsv3_error(p->err, DSV3_ERR_BAD_FILE, "the regular expression is malformed at byte %zu: %s",
					  p->pos, what);
}

static bool
emit(Parser *p, int32_t item)
{
	Dsv3Pattern *pattern = p->pattern;

	if (pattern->count >= MAX_CODE)
		return dsv3_error(p->err, DSV3_ERR_TOO_LARGE, "the regular expression is too large");
	if (pattern->count == pattern->capacity)
	{
		size_t capacity = pattern->capacity ? pattern->capacity * 2 : 64;
		int32_t *code = realloc(pattern->code, capacity * sizeof(*code));

		if (code == NULL)
			return out_of_memory(p);
		pattern->code = code;
		pattern->capacity = capacity;
	}
	pattern->code[pattern->count++] = item;
	return true;
}

static bool
emit_syntax(Parser *p, const char *syntax)
{
	for (; *syntax; syntax++)
	{
		if (!emit(p, *syntax))
			return false;
	}
	return true;
}

/* Emit a reference to the set; takes it over. */
static bool
emit_set(Parser *p, Dsv3Charset *set)
{
	int index;

	if (p->list->count >= MAX_SETS)
	{
		dsv3_charset_free(set);
		return dsv3_error(p->err, DSV3_ERR_TOO_LARGE,
						  "the regular expressions use more than %d character sets", MAX_SETS);
	}
	index = dsv3_setlist_add(p->list, set);
	return index < 0 ? out_of_memory(p) : emit(p, -1 - index);
}

static bool
emit_char(Parser *p, uint32_t c)
{
	Dsv3Charset set = {0};

	if (!dsv3_charset_add(&set, c, c))
		return out_of_memory(p);
	return emit_set(p, &set);
}

static bool
looking_at(const Parser *p, const char *text)
{
	size_t n = strlen(text);

	return p->len - p->pos >= n && memcmp(p->text + p->pos, text, n) == 0;
}

/* Take one character; the text is known to be valid UTF-8. */
static uint32_t
take(Parser *p)
{
	uint32_t c = 0;
	bool incomplete;
	int n = dsv3_utf8_next((const uint8_t *) p->text + p->pos, p->len - p->pos, &c, &incomplete);

	p->pos += n > 0 ? (size_t) n : 1;
	return c;
}

/* Hexadecimal digits, at least one and at most max; false when there is none. */
static bool
take_hex(Parser *p, int max, uint32_t *value)
{
	int n = 0;

	*value = 0;
	while (n < max && p->pos < p->len)
	{
		char c = p->text[p->pos];
		int digit;

		if (c >= '0' && c <= '9')
			digit = c - '0';
		else if (c >= 'a' && c <= 'f')
			digit = c - 'a' + 10;
		else if (c >= 'A' && c <= 'F')
			digit = c - 'A' + 10;
		else
			break;
		*value = *value << 4 | (uint32_t) digit;
		p->pos++;
		n++;
	}
	return n > 0;
}

/* \p{..} or \P{..}, the position being after the p. */
static bool
parse_property(Parser *p, bool negated, Dsv3Charset *set)
{
	size_t start;
	bool known;

	if (!looking_at(p, "{"))
		return unsupported(p, "\\p without braces");
	p->pos++;
	if (looking_at(p, "^"))
	{
		negated = !negated;
		p->pos++;
	}
	start = p->pos;
	while (p->pos < p->len && p->text[p->pos] != '}')
		p->pos++;
	if (p->pos == p->len)
		return malformed(p, "\\p{ is not closed");
	if (!dsv3_charset_add_property(set, p->text + start, p->pos - start, &known))
		return out_of_memory(p);
	if (!known)
		return dsv3_error(
			p->err, DSV3_ERR_UNSUPPORTED,
			"the regular expression uses the character property \"%.*s\", which is not supported",
			p->pos - start > 40 ? 40 : (int) (p->pos - start), p->text + start);
	p->pos++;
	if (negated && !dsv3_charset_complement(set, set))
		return out_of_memory(p);
	return true;
}

/*
 * One escape, the position being after the backslash: a set (*is_set) or a character. Assertions are not for here.
 */
static bool
parse_escape(Parser *p, Dsv3Charset *set, bool *is_set, uint32_t *c)
{
	bool known, ok = true;

	*is_set = true;
	if (p->pos >= p->len)
		return malformed(p, "it ends in a backslash");
	*c = take(p);
	switch (*c)
	{
		case 'p':
		case 'P':
			return parse_property(p, *c == 'P', set);
		case 's':
		case 'S':
			ok = dsv3_charset_add_space(set);
			break;
		case 'd':
		case 'D':
			ok = dsv3_charset_add_property(set, "Nd", 2, &known);
			break;
		case 'h':
		case 'H':
			ok = dsv3_charset_add(set, '0', '9') && dsv3_charset_add(set, 'A', 'F') &&
				 dsv3_charset_add(set, 'a', 'f');
			break;
		default:
			*is_set = false;
			break;
	}
	if (!ok)
		return out_of_memory(p);
	if (*is_set)
		return (*c & 0x20) || dsv3_charset_complement(set, set) ? true : out_of_memory(p);
	switch (*c)
	{
		case 't':
			*c = '\t';
			return true;
		case 'n':
			*c = '\n';
			return true;
		case 'r':
			*c = '\r';
			return true;
		case 'f':
			*c = '\f';
			return true;
		case 'v':
			*c = '\v';
			return true;
		case 'a':
			*c = '\a';
			return true;
		case 'e':
			*c = 0x1B;
			return true;
		case 'x':
			if (looking_at(p, "{"))
			{
				p->pos++;
				if (!take_hex(p, 8, c) || !looking_at(p, "}"))
					return malformed(p, "\\x{ wants hexadecimal digits and }");
				p->pos++;
			}
			else if (!take_hex(p, 2, c))
				return malformed(p, "\\x wants hexadecimal digits");
			else if (*c > 0x7F)
				return unsupported(p, "\\x with a byte above 7f");
			break;
		case 'u':
		{
			size_t start = p->pos;

			if (!take_hex(p, 4, c) || p->pos - start != 4)
				return malformed(p, "\\u wants four hexadecimal digits");
			break;
		}
		default:
			if ((*c >= '0' && *c <= '9') || (*c >= 'A' && *c <= 'Z') || (*c >= 'a' && *c <= 'z'))
			{
				char what[3] = {'\\', (char) *c, 0};

				return unsupported(p, what);
			}
			return true;
	}
	if (*c > 0x10FFFF || (*c >= 0xD800 && *c <= 0xDFFF))
		return malformed(p, "not a character");
	return true;
}

/* One member of a bracket expression: a set or a character. */
static bool
parse_class_item(Parser *p, Dsv3Charset *set, bool *is_set, uint32_t *c)
{
	*is_set = false;
	if (looking_at(p, "[:"))
		return unsupported(p, "a POSIX bracket");
	if (looking_at(p, "["))
	{
		p->pos++;
		*is_set = true;
		return parse_class(p, set);
	}
	*c = take(p);
	return *c == '\\' ? parse_escape(p, set, is_set, c) : true;
}

/* The members of a bracket expression up to "]" or "&&", added to *out. */
static bool
parse_class_union(Parser *p, Dsv3Charset *out)
{
	while (p->pos < p->len && !looking_at(p, "]") && !looking_at(p, "&&"))
	{
		Dsv3Charset set = {0};
		bool is_set, is_set2, ok;
		uint32_t c, last;

		if (!parse_class_item(p, &set, &is_set, &c))
		{
			dsv3_charset_free(&set);
			return false;
		}
		if (is_set)
		{
			ok = dsv3_charset_union(out, out, &set);
			dsv3_charset_free(&set);
			if (!ok)
				return out_of_memory(p);
			continue;
		}
		last = c;
		if (looking_at(p, "-") && p->pos + 1 < p->len && p->text[p->pos + 1] != ']')
		{
			p->pos++;
			if (!parse_class_item(p, &set, &is_set2, &last) || is_set2)
			{
				if (is_set2)
					malformed(p, "a range must end in a character");
				dsv3_charset_free(&set);
				return false;
			}
			if (last < c)
				return malformed(p, "a range ends before it begins");
		}
		if (!dsv3_charset_add(out, c, last))
			return out_of_memory(p);
	}
	return true;
}

/* A bracket expression, the position being after the "[". */
static bool
parse_class(Parser *p, Dsv3Charset *out)
{
	Dsv3Charset part = {0};
	bool negated = false, first = true, ok = true;

	if (++p->depth > MAX_DEPTH)
		return dsv3_error(p->err, DSV3_ERR_TOO_LARGE, "the regular expression is nested too deeply");
	if (looking_at(p, "^"))
	{
		negated = true;
		p->pos++;
	}
	if (looking_at(p, "]"))
		return unsupported(p, "an empty character class");
	/* && binds looser than everything else inside the brackets */
	do
	{
		if (!first)
			p->pos += 2;
		ok = parse_class_union(p, &part);
		if (ok && !(first ? dsv3_charset_union(out, out, &part) : dsv3_charset_intersect(out, out, &part)))
			ok = out_of_memory(p);
		dsv3_charset_free(&part);
		first = false;
	} while (ok && looking_at(p, "&&"));
	if (!ok)
		return false;
	if (p->pos == p->len)
		return malformed(p, "a character class is not closed");
	p->pos++;
	if (negated && !dsv3_charset_complement(out, out))
		return out_of_memory(p);
	p->depth--;
	return true;
}

/* Emit a set read from the pattern, folded when inside (?i:. Takes it over. */
static bool
emit_parsed_set(Parser *p, Dsv3Charset *set)
{
	if (p->fold)
	{
		if (!dsv3_charset_fold_ascii(set))
		{
			dsv3_charset_free(set);
			return out_of_memory(p);
		}
		for (size_t i = 0; i < set->count; i++)
		{
			if (set->ranges[i].last > 0x7F &&
				!(set->ranges[i].last == 0x17F || set->ranges[i].last == 0x212A))
			{
				dsv3_charset_free(set);
				return unsupported(p, "(?i: with characters beyond ASCII");
			}
		}
	}
	return emit_set(p, set);
}

static bool
emit_literal(Parser *p, uint32_t c)
{
	Dsv3Charset set = {0};

	if (p->fold)
	{
		uint32_t lower = c >= 'A' && c <= 'Z' ? c + 0x20 : c;

		/* Oniguruma also lets these pairs match one ligature or sharp s */
		if ((p->last_fold == 's' && (lower == 's' || lower == 't')) ||
			(p->last_fold == 'f' && (lower == 'f' || lower == 'i' || lower == 'l')))
			return unsupported(p, "(?i: with a pair of letters that has a one-character form");
		p->last_fold = lower;
	}
	if (!dsv3_charset_add(&set, c, c))
		return out_of_memory(p);
	return emit_parsed_set(p, &set);
}

/* A decimal number of a quantifier. */
static bool
take_number(Parser *p, int *value)
{
	size_t start = p->pos;

	*value = 0;
	while (p->pos < p->len && p->text[p->pos] >= '0' && p->text[p->pos] <= '9')
	{
		*value = *value * 10 + (p->text[p->pos++] - '0');
		if (*value > MAX_REPEAT)
			return false;
	}
	return p->pos > start;
}

/* {n}, {n,}, {n,m} or {,m}; anything else after "{" is a literal brace to Oniguruma, and refused here. */
static bool
parse_interval(Parser *p)
{
	char text[40];
	int low = 0, high = -1, n;
	bool has_low;

	p->pos++;
	has_low = take_number(p, &low);
	if (looking_at(p, ","))
	{
		p->pos++;
		if (!take_number(p, &high))
		{
			if (!has_low)
				return unsupported(p, "a brace that is no quantifier");
			high = -1;
		}
		else if (high < low)
			return unsupported(p, "a quantifier whose limits are swapped");
		n = high < 0 ? snprintf(text, sizeof(text), "{%d,}", low)
					 : snprintf(text, sizeof(text), "{%d,%d}", low, high);
	}
	else
	{
		if (!has_low)
			return unsupported(p, "a brace that is no quantifier");
		n = snprintf(text, sizeof(text), "{%d}", low);
		if (looking_at(p, "}?"))
			return unsupported(p, "{n}?");
	}
	if (!looking_at(p, "}") || n < 0)
		return unsupported(p, "a brace that is no quantifier, or too large a one");
	p->pos++;
	/* {n,m}+ is a quantified quantifier to Oniguruma, a possessive one to PCRE2 */
	if (looking_at(p, "+") || looking_at(p, "*") || looking_at(p, "{"))
		return unsupported(p, "a quantifier after a quantifier");
	if (!emit_syntax(p, text))
		return false;
	if (looking_at(p, "?"))
	{
		p->pos++;
		return emit(p, '?');
	}
	return true;
}

static bool
parse_quantifier(Parser *p)
{
	if (p->pos >= p->len)
		return true;
	switch (p->text[p->pos])
	{
		case '{':
			p->last_fold = 0;
			return parse_interval(p);
		case '*':
		case '+':
		case '?':
			p->last_fold = 0;
			if (!emit(p, p->text[p->pos++]))
				return false;
			if ((looking_at(p, "?") || looking_at(p, "+")) && !emit(p, p->text[p->pos++]))
				return false;
			if (looking_at(p, "*") || looking_at(p, "+") || looking_at(p, "?") || looking_at(p, "{"))
				return unsupported(p, "a quantifier after a quantifier");
			return true;
		default:
			return true;
	}
}

/* A group, the position being at the "(". */
static bool
parse_group(Parser *p)
{
	static const char *const openings[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
	bool fold = p->fold;

	p->last_fold = 0;
	if (looking_at(p, "(?i:"))
	{
		p->pos += 4;
		p->fold = true;
		if (!emit_syntax(p, "(?:"))
			return false;
	}
	else if (looking_at(p, "(?"))
	{
		size_t i, n = sizeof(openings) / sizeof(openings[0]);

		for (i = 0; i < n && !looking_at(p, openings[i]); i++)
			;
		if (i == n)
			return unsupported(p, "a group of another kind than (?: (?i: (?= (?! (?<= (?<! (?>");
		p->pos += strlen(openings[i]);
		if (!emit_syntax(p, openings[i]))
			return false;
	}
	else
	{
		p->pos++;
		if (!emit_syntax(p, "(?:"))
			return false;
	}
	if (!parse_alternatives(p))
		return false;
	if (!looking_at(p, ")"))
		return malformed(p, "a group is not closed");
	p->pos++;
	p->fold = fold;
	p->last_fold = 0;
	return emit(p, ')');
}

/* ^ and $ are about lines in Oniguruma's Ruby syntax, always. */
static bool
emit_line_anchor(Parser *p, char c)
{
	if (c == '$')
		return emit_syntax(p, "(?:(?=") && emit_char(p, '\n') && emit_syntax(p, ")|\\z)");
	return emit_syntax(p, "(?:\\A|(?<=") && emit_char(p, '\n') && emit_syntax(p, ")(?!\\z))");
}

static bool
parse_backslash(Parser *p)
{
	Dsv3Charset set = {0};
	bool is_set;
	uint32_t c;

	if (looking_at(p, "\\A") || looking_at(p, "\\z"))
	{
		p->pos += 2;
		return emit(p, '\\') && emit(p, p->text[p->pos - 1]);
	}
	if (looking_at(p, "\\Z"))
	{
		p->pos += 2;
		return emit_syntax(p, "(?=") && emit_char(p, '\n') && emit_syntax(p, "?\\z)");
	}
	p->pos++;
	if (!parse_escape(p, &set, &is_set, &c))
	{
		dsv3_charset_free(&set);
		return false;
	}
	return is_set ? emit_parsed_set(p, &set) : emit_literal(p, c);
}

static bool
parse_atom(Parser *p)
{
	Dsv3Charset set = {0};
	char c = p->text[p->pos];

	switch (c)
	{
		case '(':
			return parse_group(p);
		case '[':
			p->pos++;
			p->last_fold = 0;
			if (!parse_class(p, &set))
			{
				dsv3_charset_free(&set);
				return false;
			}
			return emit_parsed_set(p, &set);
		case '.':
			p->pos++;
			p->last_fold = 0;
			if (!dsv3_charset_add(&set, '\n', '\n') || !dsv3_charset_complement(&set, &set))
			{
				dsv3_charset_free(&set);
				return out_of_memory(p);
			}
			return emit_set(p, &set);
		case '^':
		case '$':
			p->pos++;
			return emit_line_anchor(p, c);
		case '\\':
			return parse_backslash(p);
		case '*':
		case '+':
		case '?':
		case '{':
			return malformed(p, "nothing to repeat");
		default:
			return emit_literal(p, take(p));
	}
}

/* Alternatives up to ")" or the end. */
static bool
parse_alternatives(Parser *p)
{
	if (++p->depth > MAX_DEPTH)
		return dsv3_error(p->err, DSV3_ERR_TOO_LARGE, "the regular expression is nested too deeply");
	while (p->pos < p->len && p->text[p->pos] != ')')
	{
		if (p->text[p->pos] == '|')
		{
			p->pos++;
			p->last_fold = 0;
			if (!emit(p, '|'))
				return false;
		}
		else if (!parse_atom(p) || !parse_quantifier(p))
			return false;
	}
	p->depth--;
	return true;
}

/*
 * A search for "C+ rest" that fails from one place of a run of C also fails from every later place of the run, since
 * fewer ends can be reached. Saying so ("\G or not after a C") turns a search that is quadratic in the run, such as
 * `\s+$` before a letter, into a linear one without changing what is found.
 */
static bool
guard_run_start(Parser *p)
{
	Dsv3Pattern *pattern = p->pattern;
	int depth = 0;
	int32_t set;
	size_t n;
	static const char open[] = "(?:\\G|(?<!";
	const size_t guard = sizeof(open) - 1 + 3;

	if (pattern->count < 2 || pattern->code[0] >= 0 || pattern->code[1] != '+')
		return true;
	for (size_t i = 0; i < pattern->count; i++)
	{
		if (pattern->code[i] == '\\')
		{
			i++;
			continue;
		}
		depth += pattern->code[i] == '(' ? 1 : pattern->code[i] == ')' ? -1 : 0;
		if (depth == 0 && pattern->code[i] == '|')
			return true;
	}
	set = pattern->code[0];
	n = pattern->count;
	for (size_t i = 0; i < guard; i++)
	{
		if (!emit(p, 0))
			return false;
	}
	memmove(pattern->code + guard, pattern->code, n * sizeof(*pattern->code));
	for (size_t i = 0; i < sizeof(open) - 1; i++)
		pattern->code[i] = open[i];
	pattern->code[guard - 3] = set;
	pattern->code[guard - 2] = ')';
	pattern->code[guard - 1] = ')';
	return true;
}

bool
dsv3_pattern_parse(Dsv3Pattern *pattern, Dsv3SetList *list, const char *text, size_t len, Dsv3Error *err)
{
	Parser p = {.text = text, .len = len, .pattern = pattern, .list = list, .err = err};

	if (len == 0 || len > MAX_PATTERN)
		return dsv3_error(err, DSV3_ERR_BAD_FILE, "a regular expression has %zu bytes (1 to %d are possible)",
						  len, MAX_PATTERN);
	if (!dsv3_utf8_check(text, len, err) || !parse_alternatives(&p))
		return false;
	if (p.pos < p.len)
		return malformed(&p, "a group closes that was not opened");
	return guard_run_start(&p);
}

bool
dsv3_pattern_literal(Dsv3Pattern *pattern, Dsv3SetList *list, const char *text, size_t len, Dsv3Error *err)
{
	Parser p = {.text = text, .len = len, .pattern = pattern, .list = list, .err = err};

	if (len == 0 || len > MAX_PATTERN)
		return dsv3_error(err, DSV3_ERR_BAD_FILE, "a split string has %zu bytes (1 to %d are possible)", len,
						  MAX_PATTERN);
	if (!dsv3_utf8_check(text, len, err))
		return false;
	while (p.pos < p.len)
	{
		if (!emit_char(&p, take(&p)))
			return false;
	}
	return true;
}
