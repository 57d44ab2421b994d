/*
 * splitter.h
 *	  Pre-tokenization: a sequence of rules that cut a text into the pieces BPE works on.
 *
 * As in Hugging Face tokenizers, each rule runs over every piece the rules before it made, and sees nothing beyond the
 * piece. Immutable once finished; used by any number of threads.
 */
#ifndef DSV3_SPLITTER_H
#define DSV3_SPLITTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/abort.h"
#include "text/charset.h"

typedef struct Dsv3Splitter Dsv3Splitter;

/* What becomes of the places that match; Hugging Face's SplitDelimiterBehavior. */
typedef enum Dsv3SplitBehavior
{
	DSV3_SPLIT_REMOVED,
	DSV3_SPLIT_ISOLATED,
	DSV3_SPLIT_MERGED_WITH_PREVIOUS,
	DSV3_SPLIT_MERGED_WITH_NEXT,
	DSV3_SPLIT_CONTIGUOUS,
} Dsv3SplitBehavior;

extern Dsv3Splitter *dsv3_splitter_new(Dsv3Error *err);
extern void dsv3_splitter_free(Dsv3Splitter *splitter);

/* Add a rule; the order of the calls is the order of the rules. */
extern bool dsv3_splitter_add_regex(Dsv3Splitter *splitter, const char *pattern, size_t len,
									Dsv3SplitBehavior behavior, bool invert, Dsv3Error *err);
extern bool dsv3_splitter_add_string(Dsv3Splitter *splitter, const char *string, size_t len,
									 Dsv3SplitBehavior behavior, bool invert, Dsv3Error *err);
/* Single characters of the set match; the set is taken over. */
extern bool
dsv3_splitter_add_set(Dsv3Splitter *splitter, Dsv3Charset *set, Dsv3SplitBehavior behavior, Dsv3Error *err);
/* Every piece that does not begin with a space gets one. */
extern bool dsv3_splitter_add_prefix_space(Dsv3Splitter *splitter, Dsv3Error *err);

/* Compile; to be called once, after the last rule and before the first split. */
extern bool dsv3_splitter_finish(Dsv3Splitter *splitter, Dsv3Error *err);

typedef struct Dsv3Piece
{
	uint32_t start; /* characters */
	uint32_t count;
} Dsv3Piece;

typedef struct Dsv3PieceList
{
	Dsv3Piece *items;
	size_t count;
	size_t capacity;
} Dsv3PieceList;

/*
 * The state of one thread's splitting: buffers that are kept from text to text. Zero-initialise, free with
 * dsv3_split_state_free.
 */
typedef struct Dsv3SplitState
{
	uint8_t *atoms; /* one byte for each character of the text */
	size_t atoms_capacity;
	char *text; /* the text with prefix spaces, when a rule put any */
	size_t text_capacity;
	Dsv3PieceList pieces;
	Dsv3PieceList next;
	Dsv3PieceList matches;
	void *match_context; /* PCRE2's */
	void *match_data;
	void *jit_stack;
	const atomic_bool *abort_flag; /* as in Dsv3Tokens */
} Dsv3SplitState;

extern void dsv3_split_state_free(Dsv3SplitState *state);

/*
 * Cut text[0..len), valid UTF-8 of less than 2^31 bytes. On success state->pieces holds the pieces in order, counted
 * in characters of *out_text, which is text itself or state->text. A pattern that needs more than the match limits allow
 * fails with 54000.
 */
extern bool dsv3_splitter_split(const Dsv3Splitter *splitter, Dsv3SplitState *state, const char *text,
								size_t len, const char **out_text, size_t *out_len, Dsv3Error *err);

#endif /* DSV3_SPLITTER_H */
