/*
 * splitter.c
 *	  Pre-tokenization; see splitter.h, and pattern.h for what an atom is.
 *
 * While rules are added only their sets and parsed patterns are kept. dsv3_splitter_finish cuts the code points into
 * atoms by all sets together, builds the two-stage table from code point to atom, and compiles every pattern to PCRE2
 * code over atom bytes. Splitting turns the text into atoms once and then runs the rules over lists of pieces.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/splitter.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/pattern.h"
#include "text/unicode_data.h"
#include "text/utf8.h"

#define MAX_RULES      64
#define MAX_ATOMS      255
#define CLASS_SIZE     (16 + 256 * 4)
#define PAGE_BITS      8
#define PAGES          (DSV3_CODE_POINTS >> PAGE_BITS)
#define MATCH_LIMIT    50000000 /* backtracking steps of one match; real patterns stay linear in the piece */
#define JIT_STACK_SIZE ((size_t) 64 * 1024 * 1024)

typedef enum RuleKind
{
	RULE_PATTERN,
	RULE_SET,
	RULE_PREFIX_SPACE,
} RuleKind;

typedef struct Rule
{
	RuleKind kind;
	Dsv3SplitBehavior behavior;
	bool invert;
	Dsv3Pattern pattern; /* until compiled */
	pcre2_code *code;
	int set;          /* RULE_SET: index in the set list, until compiled */
	bool member[256]; /* RULE_SET: by atom */
} Rule;

struct Dsv3Splitter
{
	Rule rules[MAX_RULES];
	int n_rules;
	Dsv3SetList sets;
	uint16_t page_of[PAGES];
	uint8_t *pages; /* PAGE_SIZE atoms each */
	uint8_t ascii[128];
	int n_atoms;
};

Dsv3Splitter *
dsv3_splitter_new(Dsv3Error *err)
{
	Dsv3Splitter *splitter = calloc(1, sizeof(*splitter));

	if (splitter == NULL)
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
	return splitter;
}

void
dsv3_splitter_free(Dsv3Splitter *splitter)
{
	if (splitter == NULL)
		return;
	for (int i = 0; i < splitter->n_rules; i++)
	{
		dsv3_pattern_free(&splitter->rules[i].pattern);
		pcre2_code_free(splitter->rules[i].code);
	}
	dsv3_setlist_free(&splitter->sets);
	free(splitter->pages);
	free(splitter);
}

static Rule *
new_rule(Dsv3Splitter *splitter, RuleKind kind, Dsv3SplitBehavior behavior, bool invert, Dsv3Error *err)
{
	Rule *rule;

	if (splitter->n_rules == MAX_RULES)
	{
		dsv3_error(err, DSV3_ERR_TOO_LARGE, "the pre-tokenizer has more than %d rules", MAX_RULES);
		return NULL;
	}
	rule = &splitter->rules[splitter->n_rules++];
	rule->kind = kind;
	rule->behavior = behavior;
	rule->invert = invert;
	return rule;
}

bool
dsv3_splitter_add_regex(Dsv3Splitter *splitter, const char *pattern, size_t len, Dsv3SplitBehavior behavior,
						bool invert, Dsv3Error *err)
{
	Rule *rule = new_rule(splitter, RULE_PATTERN, behavior, invert, err);

	return rule != NULL && dsv3_pattern_parse(&rule->pattern, &splitter->sets, pattern, len, err);
}

bool
dsv3_splitter_add_string(Dsv3Splitter *splitter, const char *string, size_t len, Dsv3SplitBehavior behavior,
						 bool invert, Dsv3Error *err)
{
	Rule *rule = new_rule(splitter, RULE_PATTERN, behavior, invert, err);

	return rule != NULL && dsv3_pattern_literal(&rule->pattern, &splitter->sets, string, len, err);
}

bool
dsv3_splitter_add_set(Dsv3Splitter *splitter, Dsv3Charset *set, Dsv3SplitBehavior behavior, Dsv3Error *err)
{
	Rule *rule = new_rule(splitter, RULE_SET, behavior, false, err);

	if (rule == NULL)
	{
		dsv3_charset_free(set);
		return false;
	}
	rule->set = dsv3_setlist_add(&splitter->sets, set);
	if (rule->set < 0)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
	return true;
}

bool
dsv3_splitter_add_prefix_space(Dsv3Splitter *splitter, Dsv3Error *err)
{
	return new_rule(splitter, RULE_PREFIX_SPACE, DSV3_SPLIT_ISOLATED, false, err) != NULL;
}

/* ---- compiling ---- */

/* The work of cutting code points into atoms: elementary intervals, and the atom of each. */
typedef struct Cut
{
	uint32_t *bounds; /* first code points, ascending; bounds[n] is the end */
	uint8_t *atom;
	size_t n;
} Cut;

static int
compare_u32(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *) a, y = *(const uint32_t *) b;

	return (x > y) - (x < y);
}

/* Elementary intervals: inside one, every set contains all code points or none. */
static bool
cut_intervals(const Dsv3SetList *list, Cut *cut)
{
	size_t n = 2, unique = 0;

	for (size_t i = 0; i < list->count; i++)
		n += 2 * list->sets[i].count;
	cut->bounds = malloc(n * sizeof(*cut->bounds));
	cut->atom = calloc(n, 1);
	if (cut->bounds == NULL || cut->atom == NULL)
		return false;
	n = 0;
	cut->bounds[n++] = 0;
	cut->bounds[n++] = DSV3_CODE_POINTS;
	for (size_t i = 0; i < list->count; i++)
	{
		for (size_t j = 0; j < list->sets[i].count; j++)
		{
			cut->bounds[n++] = list->sets[i].ranges[j].first;
			cut->bounds[n++] = list->sets[i].ranges[j].last + 1;
		}
	}
	qsort(cut->bounds, n, sizeof(*cut->bounds), compare_u32);
	for (size_t i = 0; i < n; i++)
	{
		if (i == 0 || cut->bounds[i] != cut->bounds[unique - 1])
			cut->bounds[unique++] = cut->bounds[i];
	}
	cut->n = unique - 1;
	return true;
}

/* Refine the atoms by one set: an atom that is partly inside it splits in two. */
static bool
refine(Cut *cut, const Dsv3Charset *set, int *n_atoms)
{
	int inside[256], outside_seen[256];
	size_t r = 0;

	for (int i = 0; i < 256; i++)
		inside[i] = outside_seen[i] = -1;
	/* which atoms lie partly outside keep their number there */
	for (size_t i = 0; i < cut->n; i++)
	{
		while (r < set->count && set->ranges[r].last < cut->bounds[i])
			r++;
		if (!(r < set->count && set->ranges[r].first <= cut->bounds[i]))
			outside_seen[cut->atom[i]] = 1;
	}
	r = 0;
	for (size_t i = 0; i < cut->n; i++)
	{
		int old = cut->atom[i];

		while (r < set->count && set->ranges[r].last < cut->bounds[i])
			r++;
		if (!(r < set->count && set->ranges[r].first <= cut->bounds[i]) || outside_seen[old] < 0)
			continue;
		if (inside[old] < 0)
		{
			if (*n_atoms == MAX_ATOMS)
				return false;
			inside[old] = (*n_atoms)++;
		}
		cut->atom[i] = (uint8_t) inside[old];
	}
	return true;
}

/* The table from code point to atom, equal pages shared. */
static bool
build_pages(Dsv3Splitter *splitter, const Cut *cut)
{
	uint8_t page[1 << PAGE_BITS];
	size_t n_pages = 0, interval = 0;

	splitter->pages = malloc((size_t) PAGES << PAGE_BITS);
	if (splitter->pages == NULL)
		return false;
	for (uint32_t p = 0; p < PAGES; p++)
	{
		size_t found = n_pages;

		for (uint32_t i = 0; i < 1 << PAGE_BITS; i++)
		{
			uint32_t c = (p << PAGE_BITS) + i;

			while (c >= cut->bounds[interval + 1])
				interval++;
			page[i] = cut->atom[interval];
		}
		if (p == 0)
			memcpy(splitter->ascii, page, sizeof(splitter->ascii));
		/* nearly always the page before, or none: look at the latest few only */
		for (size_t k = n_pages; k > 0 && n_pages - k < 32; k--)
		{
			if (memcmp(splitter->pages + ((k - 1) << PAGE_BITS), page, sizeof(page)) == 0)
			{
				found = k - 1;
				break;
			}
		}
		if (found == n_pages)
			memcpy(splitter->pages + (n_pages++ << PAGE_BITS), page, sizeof(page));
		splitter->page_of[p] = (uint16_t) found;
	}
	{
		uint8_t *smaller = realloc(splitter->pages, n_pages << PAGE_BITS);

		if (smaller != NULL)
			splitter->pages = smaller;
	}
	return true;
}

static uint8_t
atom_of(const Dsv3Splitter *splitter, uint32_t c)
{
	return splitter
		->pages[((size_t) splitter->page_of[c >> PAGE_BITS] << PAGE_BITS) + (c & ((1 << PAGE_BITS) - 1))];
}

/* Which atoms a set consists of; an interval is wholly inside or outside. */
static void
set_members(const Cut *cut, const Dsv3Charset *set, bool member[256])
{
	size_t r = 0;

	for (size_t i = 0; i < cut->n; i++)
	{
		while (r < set->count && set->ranges[r].last < cut->bounds[i])
			r++;
		if (r < set->count && set->ranges[r].first <= cut->bounds[i])
			member[cut->atom[i]] = true;
	}
}

/* PCRE2 class of a set; at most CLASS_SIZE bytes. */
static size_t
write_class(char *out, const bool member[256])
{
	size_t n = 0;
	bool any = false;

	out[n++] = '[';
	for (int i = 0; i < 256; i++)
	{
		if (member[i])
		{
			n += (size_t) sprintf(out + n, "\\x%02x", i);
			any = true;
		}
	}
	if (!any)
		return (size_t) sprintf(out, "[^\\x00-\\xff]");
	out[n++] = ']';
	return n;
}

static bool
compile_rule(Rule *rule, bool (*members)[256], Dsv3Error *err)
{
	size_t size = 1, n = 0, offset;
	char *text;
	int code;

	if (rule->kind == RULE_SET)
		memcpy(rule->member, members[rule->set], sizeof(rule->member));
	if (rule->kind != RULE_PATTERN)
		return true;
	for (size_t i = 0; i < rule->pattern.count; i++)
		size += rule->pattern.code[i] < 0 ? CLASS_SIZE : 1;
	text = malloc(size);
	if (text == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
	for (size_t i = 0; i < rule->pattern.count; i++)
	{
		int32_t item = rule->pattern.code[i];

		if (item < 0)
			n += write_class(text + n, members[-1 - item]);
		else
			text[n++] = (char) item;
	}
	rule->code = pcre2_compile((PCRE2_SPTR) text, n,
							   PCRE2_DOTALL | PCRE2_NEVER_UTF | PCRE2_NEVER_UCP | PCRE2_NEVER_BACKSLASH_C |
								   PCRE2_NO_AUTO_CAPTURE,
							   &code, &offset, NULL);
	free(text);
	if (rule->code == NULL)
	{
		PCRE2_UCHAR message[200];

		pcre2_get_error_message(code, message, sizeof(message));
		return dsv3_error(err, DSV3_ERR_BAD_FILE, "a regular expression does not compile: %s",
						  (char *) message);
	}
	/* Without JIT (a system that forbids it) the interpreter does the same work more slowly. */
	pcre2_jit_compile(rule->code, PCRE2_JIT_COMPLETE);
	dsv3_pattern_free(&rule->pattern);
	return true;
}

bool
dsv3_splitter_finish(Dsv3Splitter *splitter, Dsv3Error *err)
{
	Cut cut = {0};
	bool(*members)[256] = calloc(splitter->sets.count + 1, sizeof(*members));
	bool ok = members != NULL && cut_intervals(&splitter->sets, &cut);

	splitter->n_atoms = 1;
	if (!ok)
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
	for (size_t i = 0; ok && i < splitter->sets.count; i++)
	{
		ok = refine(&cut, &splitter->sets.sets[i], &splitter->n_atoms);
		if (!ok)
			dsv3_error(err, DSV3_ERR_TOO_LARGE,
					   "the pre-tokenizer tells apart more than %d kinds of characters", MAX_ATOMS);
	}
	if (ok && !build_pages(splitter, &cut))
		ok = dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
	for (size_t i = 0; ok && i < splitter->sets.count; i++)
		set_members(&cut, &splitter->sets.sets[i], members[i]);
	for (int i = 0; ok && i < splitter->n_rules; i++)
		ok = compile_rule(&splitter->rules[i], members, err);
	free(cut.bounds);
	free(cut.atom);
	free(members);
	dsv3_setlist_free(&splitter->sets);
	return ok;
}

/* ---- splitting ---- */

void
dsv3_split_state_free(Dsv3SplitState *state)
{
	free(state->atoms);
	free(state->text);
	free(state->pieces.items);
	free(state->next.items);
	free(state->matches.items);
	pcre2_match_data_free(state->match_data);
	pcre2_match_context_free(state->match_context);
	pcre2_jit_stack_free(state->jit_stack);
	memset(state, 0, sizeof(*state));
}

static bool
out_of_memory(Dsv3Error *err)
{
	return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory while splitting a text");
}

static bool
add_piece(Dsv3PieceList *list, uint32_t start, uint32_t count)
{
	if (list->count == list->capacity)
	{
		size_t capacity = list->capacity ? list->capacity * 2 : 256;
		Dsv3Piece *items = realloc(list->items, capacity * sizeof(*items));

		if (items == NULL)
			return false;
		list->items = items;
		list->capacity = capacity;
	}
	list->items[list->count++] = (Dsv3Piece){start, count};
	return true;
}

/* PCRE2's own buffers, made by the first text that needs them. */
static bool
prepare_match(Dsv3SplitState *state, Dsv3Error *err)
{
	if (state->match_data != NULL)
		return true;
	state->match_data = pcre2_match_data_create(1, NULL);
	state->match_context = pcre2_match_context_create(NULL);
	state->jit_stack = pcre2_jit_stack_create(32 * 1024, JIT_STACK_SIZE, NULL);
	if (state->match_data == NULL || state->match_context == NULL)
		return out_of_memory(err);
	pcre2_set_match_limit(state->match_context, MATCH_LIMIT);
	pcre2_set_heap_limit(state->match_context, JIT_STACK_SIZE / 1024);
	if (state->jit_stack != NULL)
		pcre2_jit_stack_assign(state->match_context, NULL, state->jit_stack);
	return true;
}

/*
 * Decode text into atoms; *n_chars is their number.
 */
static bool
make_atoms(const Dsv3Splitter *splitter, Dsv3SplitState *state, const char *text, size_t len, size_t *n_chars,
		   Dsv3Error *err)
{
	const uint8_t *p = (const uint8_t *) text;
	size_t n = 0;

	if (state->atoms_capacity < len + 1)
	{
		free(state->atoms);
		state->atoms_capacity = 0;
		state->atoms = malloc(len + 1);
		if (state->atoms == NULL)
			return out_of_memory(err);
		state->atoms_capacity = len + 1;
	}
	for (size_t i = 0; i < len;)
	{
		uint32_t c;

		if (p[i] < 0x80)
		{
			state->atoms[n++] = splitter->ascii[p[i++]];
			continue;
		}
		if (p[i] < 0xE0)
		{
			c = (uint32_t) (p[i] & 0x1F) << 6 | (p[i + 1] & 0x3F);
			i += 2;
		}
		else if (p[i] < 0xF0)
		{
			c = (uint32_t) (p[i] & 0x0F) << 12 | (uint32_t) (p[i + 1] & 0x3F) << 6 | (p[i + 2] & 0x3F);
			i += 3;
		}
		else
		{
			c = (uint32_t) (p[i] & 0x07) << 18 | (uint32_t) (p[i + 1] & 0x3F) << 12 |
				(uint32_t) (p[i + 2] & 0x3F) << 6 | (p[i + 3] & 0x3F);
			i += 4;
		}
		state->atoms[n++] = atom_of(splitter, c);
	}
	*n_chars = n;
	return true;
}

/*
 * All matches of a pattern in one piece, relative to it, into state->matches: as the tokenizers' find_iter, which takes
 * an empty match only where the match before did not end.
 */
static bool
find_matches(const Rule *rule, Dsv3SplitState *state, const uint8_t *atoms, uint32_t count, Dsv3Error *err)
{
	size_t from = 0, last_end = SIZE_MAX;
	const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(state->match_data);

	state->matches.count = 0;
	while (from <= count)
	{
		int rc;

		if (dsv3_aborted(state->abort_flag, "the encoding of a text", err))
			return false;
		rc = pcre2_match(rule->code, atoms, count, from, 0, state->match_data, state->match_context);
		if (rc == PCRE2_ERROR_NOMATCH)
			return true;
		if (rc < 0)
		{
			PCRE2_UCHAR message[200];

			pcre2_get_error_message(rc, message, sizeof(message));
			dsv3_error(err, rc == PCRE2_ERROR_NOMEMORY ? DSV3_ERR_OUT_OF_MEMORY : DSV3_ERR_TOO_LARGE,
					   "a pattern of the tokenizer cannot split this text: %s", (char *) message);
			dsv3_error_hint(err, "Shorten the longest run of similar characters in the text.");
			return false;
		}
		if (bounds[1] == bounds[0] && bounds[1] == last_end)
		{
			from++;
			continue;
		}
		if (!add_piece(&state->matches, (uint32_t) bounds[0], (uint32_t) (bounds[1] - bounds[0])))
			return out_of_memory(err);
		from = last_end = bounds[1];
	}
	return true;
}

/* Takes the ranges of one parent piece from left to right and applies a behaviour other than MergedWithNext. */
typedef struct Merger
{
	Dsv3PieceList *out;
	Dsv3SplitBehavior behavior;
	bool previous_match;
	bool any; /* out holds a piece of this parent */
} Merger;

static bool
put(Merger *m, uint32_t start, uint32_t count, bool is_match)
{
	bool join;

	if (m->behavior == DSV3_SPLIT_REMOVED)
		return is_match || count == 0 || add_piece(m->out, start, count);
	if (m->behavior == DSV3_SPLIT_ISOLATED)
		return count == 0 || add_piece(m->out, start, count);
	if (m->behavior == DSV3_SPLIT_CONTIGUOUS)
		join = is_match == m->previous_match;
	else
		join = is_match && !m->previous_match;
	m->previous_match = is_match;
	if (join && m->any)
	{
		m->out->items[m->out->count - 1].count += count;
		return true;
	}
	m->any = true;
	return add_piece(m->out, start, count);
}

/*
 * MergedWithNext walks from the right: a match that is not followed by another match joins what follows it. ranges are
 * all ranges of one parent in order, flags tell the matches.
 */
static bool
put_merged_with_next(Dsv3PieceList *out, const Dsv3PieceList *matches, uint32_t start, uint32_t count,
					 bool invert)
{
	Dsv3PieceList ranges = {0};
	bool *is_match = NULL;
	uint32_t done = 0;
	size_t first = out->count;
	bool previous = false, ok = true;

	/* twice the matches and one bound the number of ranges */
	is_match = malloc(2 * matches->count + 2);
	ok = is_match != NULL;
	for (size_t i = 0; ok && i <= matches->count; i++)
	{
		uint32_t at = i < matches->count ? matches->items[i].start : count;

		if (at > done)
		{
			is_match[ranges.count] = invert;
			ok = add_piece(&ranges, done, at - done);
		}
		if (ok && i < matches->count)
		{
			is_match[ranges.count] = !invert;
			ok = add_piece(&ranges, at, matches->items[i].count);
			done = at + matches->items[i].count;
		}
	}
	for (size_t i = ranges.count; ok && i-- > 0;)
	{
		if (is_match[i] && !previous && out->count > first)
		{
			Dsv3Piece *last = &out->items[out->count - 1];

			last->start = start + ranges.items[i].start;
			last->count += ranges.items[i].count;
		}
		else
			ok = add_piece(out, start + ranges.items[i].start, ranges.items[i].count);
		previous = is_match[i];
	}
	for (size_t i = first, j = out->count; ok && i + 1 < j;)
	{
		Dsv3Piece swap = out->items[i];

		out->items[i++] = out->items[--j];
		out->items[j] = swap;
	}
	free(ranges.items);
	free(is_match);
	return ok;
}

/* Apply a behaviour to the matches of one piece. */
static bool
apply_matches(const Rule *rule, Dsv3SplitState *state, Dsv3Piece piece)
{
	Merger m = {.out = &state->next, .behavior = rule->behavior};
	uint32_t done = 0;

	if (rule->behavior == DSV3_SPLIT_MERGED_WITH_NEXT)
		return put_merged_with_next(&state->next, &state->matches, piece.start, piece.count, rule->invert);
	for (size_t i = 0; i < state->matches.count; i++)
	{
		Dsv3Piece match = state->matches.items[i];

		if (match.start > done && !put(&m, piece.start + done, match.start - done, rule->invert))
			return false;
		if (!put(&m, piece.start + match.start, match.count, !rule->invert))
			return false;
		done = match.start + match.count;
	}
	return done == piece.count || put(&m, piece.start + done, piece.count - done, rule->invert);
}

/* Rebuild the text with a space in front of every piece that has none, and the atoms with it. */
static bool
add_prefix_spaces(const Dsv3Splitter *splitter, Dsv3SplitState *state, const char **text, size_t *len,
				  Dsv3Error *err)
{
	size_t capacity = *len + state->pieces.count + 1, n = 0, at = 0, n_chars;
	char *out = malloc(capacity);
	uint32_t chars = 0, seen = 0;

	if (out == NULL)
		return out_of_memory(err);
	for (size_t i = 0; i < state->pieces.count; i++)
	{
		Dsv3Piece *piece = &state->pieces.items[i];
		size_t begin;

		/* byte offsets by walking: pieces are in order */
		for (; seen < piece->start; seen++)
			at += dsv3_utf8_length((uint8_t) (*text)[at]);
		begin = at;
		for (; seen < piece->start + piece->count; seen++)
			at += dsv3_utf8_length((uint8_t) (*text)[at]);
		piece->start = chars;
		if ((*text)[begin] != ' ')
		{
			out[n++] = ' ';
			piece->count++;
		}
		memcpy(out + n, *text + begin, at - begin);
		n += at - begin;
		chars += piece->count;
	}
	free(state->text);
	state->text = out;
	state->text_capacity = capacity;
	*text = out;
	*len = n;
	return make_atoms(splitter, state, out, n, &n_chars, err);
}

static bool
run_rule(const Rule *rule, Dsv3SplitState *state, Dsv3Error *err)
{
	state->next.count = 0;
	if (rule->kind == RULE_PATTERN && !prepare_match(state, err))
		return false;
	for (size_t i = 0; i < state->pieces.count; i++)
	{
		Dsv3Piece piece = state->pieces.items[i];
		const uint8_t *atoms = state->atoms + piece.start;

		if (rule->kind == RULE_PATTERN)
		{
			if (!find_matches(rule, state, atoms, piece.count, err))
				return false;
		}
		else
		{
			state->matches.count = 0;
			for (uint32_t k = 0; k < piece.count; k++)
			{
				if (rule->member[atoms[k]] && !add_piece(&state->matches, k, 1))
					return out_of_memory(err);
			}
		}
		if (!apply_matches(rule, state, piece))
			return out_of_memory(err);
	}
	{
		Dsv3PieceList swap = state->pieces;

		state->pieces = state->next;
		state->next = swap;
	}
	/* pieces the merging behaviours left empty vanish, as everywhere in the tokenizers */
	{
		size_t n = 0;

		for (size_t i = 0; i < state->pieces.count; i++)
		{
			if (state->pieces.items[i].count > 0)
				state->pieces.items[n++] = state->pieces.items[i];
		}
		state->pieces.count = n;
	}
	return true;
}

bool
dsv3_splitter_split(const Dsv3Splitter *splitter, Dsv3SplitState *state, const char *text, size_t len,
					const char **out_text, size_t *out_len, Dsv3Error *err)
{
	size_t n_chars;

	if (len >= (size_t) INT32_MAX)
		return dsv3_error(err, DSV3_ERR_TOO_LARGE, "a text of %zu bytes is too long to be split into tokens",
						  len);
	*out_text = text;
	*out_len = len;
	state->pieces.count = 0;
	if (len == 0)
		return true;
	if (!make_atoms(splitter, state, text, len, &n_chars, err))
		return false;
	if (!add_piece(&state->pieces, 0, (uint32_t) n_chars))
		return out_of_memory(err);
	for (int i = 0; i < splitter->n_rules; i++)
	{
		const Rule *rule = &splitter->rules[i];
		bool ok;

		if (rule->kind == RULE_PREFIX_SPACE)
			ok = add_prefix_spaces(splitter, state, out_text, out_len, err);
		else
			ok = run_rule(rule, state, err);
		if (!ok)
			return false;
	}
	return true;
}
