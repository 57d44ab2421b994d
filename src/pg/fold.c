/*
 * fold.c
 *	  Aggregates over texts: dsv3_agg and dsv3_summarize_agg. Any number of rows, one answer.
 *
 * The texts are packed, in their order, into groups that the model can read at once. One group is asked about as it is. Of
 * more than one, each is asked by itself, all of a level together, and the answers are the texts of the next level, until one
 * group is left. So the calls of n tokens are about n / GROUP_TOKENS for the first level and a fraction of that for the
 * rest. What is asked depends on the texts, their order, the instruction and the session's settings only.
 *
 * Sizes are the engine's count of tokens. An answer takes at most a quarter of the context, and a group at least twice an
 * answer, so each level has at most about half the texts of the one before. A text that no group can hold is cut in two, again and
 * again if need be, where there is white space near the middle.
 *
 * The state holds the texts in the aggregate's memory; the final function works on a copy of the list and may be called again.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "mb/pg_wchar.h"
#include "utils/builtins.h"

#include "pg/ahead.h"
#include "pg/functions.h"

PG_FUNCTION_INFO_V1(dsv3_agg_step_1_0);
PG_FUNCTION_INFO_V1(dsv3_summarize_agg_step_1_0);
PG_FUNCTION_INFO_V1(dsv3_agg_final_1_0);

#define GROUP_TOKENS    4096 /* longer ones take longer than several of these together, which run side by side */
#define TEMPLATE_TOKENS 128   /* chat template, and the sentences below */
#define TEXT_TOKENS     6     /* what stands between two texts, and what tokens lose at the seams */
#define CUT_BYTES       65536 /* texts longer than this are cut before they are counted */

static const char summarize[] =
	"Summarize the texts below in one paragraph of at most eight sentences. Say what they have "
	"in common and what is particular; leave out what is said only in passing. "
	"Use only what stands in the texts.";
static const char of_part[] =
	"The texts are a part of a longer list. Answer for this part, and keep all that is needed to "
	"answer for the whole list later.";
static const char of_answers[] =
	"The texts are answers that were given to this for the parts of a longer list, in the "
	"order of the list. Make one answer for the whole list of them.";
static const char separator[] = "\n\n---\n\n";

typedef struct Piece
{
	text *content;
	int64 tokens; /* 0: not counted yet */
} Piece;

typedef struct Pieces
{
	Piece *items;
	int n;
	int size;
} Pieces;

typedef struct FoldState
{
	MemoryContext context;
	text *instruction;
	const char *function; /* the aggregate, for the audit log */
	Pieces pieces;
} FoldState;

/* What a level's calls are made of. */
typedef struct Level
{
	const char *function;
	const Pieces *pieces;
	const char *prompt; /* in the encoding of the database */
	uint32 max_tokens;
	int64 capacity; /* tokens of a group's texts */
	int next;       /* piece that the next call begins with */
} Level;

static void
add_piece(Pieces *pieces, text *content)
{
	if (pieces->n == pieces->size)
	{
		pieces->size = Max(2 * pieces->size, 64);
		pieces->items = pieces->items ? repalloc_huge(pieces->items, sizeof(Piece) * (Size) pieces->size)
									  : palloc_extended(sizeof(Piece) * (Size) pieces->size, MCXT_ALLOC_HUGE);
	}
	pieces->items[pieces->n++] = (Piece){.content = content};
}

/* ---- steps ---- */

static FoldState *
step_state(FunctionCallInfo fcinfo)
{
	MemoryContext context;
	FoldState *state;

	if (!AggCheckCallContext(fcinfo, &context))
		elog(ERROR, "dsv3 aggregate function called outside of an aggregate");
	if (!PG_ARGISNULL(0))
		return (FoldState *) PG_GETARG_POINTER(0);
	state = MemoryContextAllocZero(context, sizeof(FoldState));
	state->context = context;
	return state;
}

static void
step(FoldState *state, FunctionCallInfo fcinfo)
{
	MemoryContext old = MemoryContextSwitchTo(state->context);

	if (!PG_ARGISNULL(1))
		add_piece(&state->pieces, PG_GETARG_TEXT_P_COPY(1));
	MemoryContextSwitchTo(old);
}

static void
set_instruction(FoldState *state, text *instruction)
{
	Size size = VARSIZE_ANY_EXHDR(instruction);

	if (state->instruction == NULL)
		state->instruction = memcpy(MemoryContextAlloc(state->context, VARSIZE_ANY(instruction)), instruction,
									VARSIZE_ANY(instruction));
	else if (VARSIZE_ANY_EXHDR(state->instruction) != size ||
			 memcmp(VARDATA_ANY(state->instruction), VARDATA_ANY(instruction), size) != 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("instruction of dsv3_agg must be the same for all rows of a group")));
}

/* dsv3_agg_step(state, input, instruction) */
Datum
dsv3_agg_step_1_0(PG_FUNCTION_ARGS)
{
	FoldState *state = step_state(fcinfo);

	if (PG_ARGISNULL(2))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("instruction must not be NULL")));
	set_instruction(state, PG_GETARG_TEXT_PP(2));
	state->function = "dsv3_agg";
	step(state, fcinfo);
	PG_RETURN_POINTER(state);
}

/* dsv3_summarize_agg_step(state, input) */
Datum
dsv3_summarize_agg_step_1_0(PG_FUNCTION_ARGS)
{
	FoldState *state = step_state(fcinfo);

	if (state->instruction == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(state->context);

		state->instruction = cstring_to_text(summarize);
		state->function = "dsv3_summarize_agg";
		MemoryContextSwitchTo(old);
	}
	step(state, fcinfo);
	PG_RETURN_POINTER(state);
}

/* ---- sizes ---- */

/* The first piece from i on that is not counted; n: there is none. */
static int
next_uncounted(const Pieces *pieces, int i)
{
	while (i < pieces->n && pieces->items[i].tokens > 0)
		i++;
	return i;
}

static bool
count_next(void *arg, Dsv3AskResult *result, Dsv3Question *question, Dsv3Request *request,
		   Dsv3Failure *failure)
{
	Level *level = arg;
	Size total = 0;

	level->next = next_uncounted(level->pieces, level->next);
	if (level->next == level->pieces->n)
		return false;
	dsv3_request_init(request, DSV3_REQUEST_COUNT_TOKENS);
	question->on_error = request->on_error;
	dsv3_asked_of(&question->asked, request);
	*result = dsv3_take_text(PointerGetDatum(level->pieces->items[level->next++].content), &request->prompt,
							 &total, failure)
				  ? DSV3_ASK_REQUEST
				  : DSV3_ASK_FAILED;
	return true;
}

/* Count those that are not. False: failure. */
static bool
count_tokens(Pieces *pieces, Dsv3Failure *failure)
{
	Level level = {.pieces = pieces};
	Dsv3Ahead *ahead = dsv3_ahead_create(CurrentMemoryContext, count_next, &level);
	Dsv3AheadEnd end;
	bool ok = true;
	int i = 0;

	while (ok && dsv3_ahead_next(ahead, &end))
	{
		ok = end.ok;
		i = next_uncounted(pieces, i);
		pieces->items[i].tokens = TEXT_TOKENS + (int64) end.answer.counts.prompt_tokens;
		if (!ok)
			*failure = end.failure;
	}
	dsv3_ahead_delete(ahead);
	return ok;
}

/* Where to cut a text of len bytes in two: at white space near its middle, or between two characters. */
static int
cut_at(const char *data, int len)
{
	int middle = pg_mbcliplen(data, len, len / 2);

	for (int i = middle; i > len / 4; i--)
	{
		if (data[i] == ' ' || data[i] == '\n' || data[i] == '\t')
			return i;
	}
	return Max(middle, pg_mblen(data));
}

/* Add the text, in halves as long as it is too large. A text of a single character is left as it is. */
static void
add_cut(Pieces *pieces, const char *data, int len, int limit)
{
	if (len > limit && len > pg_mblen(data))
	{
		int at = cut_at(data, len);

		add_cut(pieces, data, at, limit);
		add_cut(pieces, data + at, len - at, limit);
	}
	else
		add_piece(pieces, cstring_to_text_with_len(data, len));
}

/* The same texts, those cut that are too large: of more bytes than the limit or of more tokens than a group can have. */
static Pieces
cut(const Pieces *pieces, int64 capacity, bool *changed)
{
	Pieces smaller = {0};

	for (int i = 0; i < pieces->n; i++)
	{
		text *content = pieces->items[i].content;
		int len = (int) VARSIZE_ANY_EXHDR(content);

		if (len > CUT_BYTES || pieces->items[i].tokens > capacity)
			add_cut(&smaller, VARDATA_ANY(content), len,
					pieces->items[i].tokens > capacity ? len / 2 + 1 : CUT_BYTES);
		else
		{
			add_piece(&smaller, content);
			smaller.items[smaller.n - 1].tokens = pieces->items[i].tokens;
		}
	}
	*changed = smaller.n > pieces->n;
	return smaller;
}

/* ---- levels ---- */

static bool
ask_next(void *arg, Dsv3AskResult *result, Dsv3Question *question, Dsv3Request *request, Dsv3Failure *failure)
{
	Level *level = arg;
	int64 tokens = 0;
	Size total = 0;
	StringInfoData input;

	if (level->next == level->pieces->n)
		return false;
	initStringInfo(&input);
	while (level->next < level->pieces->n)
	{
		const Piece *piece = &level->pieces->items[level->next];

		if (input.len > 0 && tokens + piece->tokens > level->capacity)
			break;
		tokens += piece->tokens;
		if (input.len > 0)
			appendStringInfoString(&input, separator);
		appendBinaryStringInfo(&input, VARDATA_ANY(piece->content), (int) VARSIZE_ANY_EXHDR(piece->content));
		level->next++;
	}
	dsv3_request_init(request, DSV3_REQUEST_GENERATE);
	request->max_tokens = level->max_tokens;
	request->function = level->function;
	question->on_error = request->on_error;
	*result = dsv3_take_text(CStringGetTextDatum(level->prompt), &request->prompt, &total, failure) &&
					  dsv3_take_text(PointerGetDatum(cstring_to_text_with_len(input.data, input.len)),
									 &request->input, &total, failure)
				  ? DSV3_ASK_REQUEST
				  : DSV3_ASK_FAILED;
	dsv3_asked_of(&question->asked, request);
	return true;
}

/* One level: the groups' answers. False: failure. */
static bool
ask_groups(Level *level, Pieces *answers, Dsv3Failure *failure)
{
	Dsv3Ahead *ahead = dsv3_ahead_create(CurrentMemoryContext, ask_next, level);
	Dsv3AheadEnd end;
	bool ok = true;

	while (ok && dsv3_ahead_next(ahead, &end))
	{
		Datum value;

		ok = end.ok;
		if (ok)
		{
			ok = dsv3_answer_text(&end.answer, &value, failure);
			if (ok)
				add_piece(answers, DatumGetTextPP(value));
		}
		else
			*failure = end.failure;
	}
	dsv3_ahead_delete(ahead);
	return ok;
}

static bool
one_group(const Pieces *pieces, int64 capacity)
{
	int64 tokens = 0;

	for (int i = 0; i < pieces->n; i++)
		tokens += pieces->items[i].tokens;
	return pieces->n == 1 || tokens <= capacity;
}

/* What a level may hold; raises when the instruction leaves no room. Asks the engine, so that it is there afterwards. False:
 * failure. */
static bool
measure(const FoldState *state, Level *level, Dsv3Failure *failure)
{
	Pieces instruction = {0};
	int64 context;

	add_piece(&instruction, state->instruction);
	if (!count_tokens(&instruction, failure))
		return false;
	context = dsv3_model_context();
	level->max_tokens =
		(uint32) Max(Min(Min(dsv3_guc_max_tokens, dsv3_guc_max_output_tokens), context / 4), 1);
	level->capacity = context - level->max_tokens - instruction.items[0].tokens - TEMPLATE_TOKENS;
	level->capacity = Min(level->capacity, GROUP_TOKENS);
	/* Two answers must fit beside each other, or nothing would ever become one. */
	if (level->capacity < 2 * ((int64) level->max_tokens + TEXT_TOKENS))
		ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
						errmsg("instruction of %lld tokens leaves no room for texts in the model's context",
							   (long long) instruction.items[0].tokens - TEXT_TOKENS),
						errdetail("The context is %lld tokens, and an answer may have %u.",
								  (long long) context, level->max_tokens),
						errhint("Shorten the instruction, or lower dsv3.max_tokens.")));
	return true;
}

/* The one answer. False: failure. */
static bool
fold(const FoldState *state, text **answer, Dsv3Failure *failure)
{
	char *instruction = text_to_cstring(state->instruction);
	Pieces pieces = state->pieces;
	Level level = {.function = state->function};

	if (!measure(state, &level, failure))
		return false;
	for (int depth = 0;; depth++)
	{
		Pieces answers;
		bool last;
		bool changed;

		/* Byte sizes first, for what is too long to be counted at once. */
		pieces = cut(&pieces, PG_INT64_MAX, &changed);
		do
		{
			if (!count_tokens(&pieces, failure))
				return false;
			pieces = cut(&pieces, level.capacity, &changed);
		} while (changed);
		last = one_group(&pieces, level.capacity);
		level.pieces = &pieces;
		level.next = 0;
		if (depth == 0 && last)
			level.prompt = instruction;
		else
			level.prompt = psprintf("%s\n\n%s", instruction, depth == 0 ? of_part : of_answers);
		answers = (Pieces){palloc_extended(sizeof(Piece) * (Size) pieces.n, MCXT_ALLOC_HUGE), 0, pieces.n};
		if (!ask_groups(&level, &answers, failure))
			return false;
		if (last)
		{
			*answer = answers.items[0].content;
			return true;
		}
		pieces = answers;
	}
}

/* dsv3_agg_final(state) -> text; of both aggregates */
Datum
dsv3_agg_final_1_0(PG_FUNCTION_ARGS)
{
	FoldState *state = PG_ARGISNULL(0) ? NULL : (FoldState *) PG_GETARG_POINTER(0);
	Dsv3Failure failure;
	text *answer;

	if (!AggCheckCallContext(fcinfo, NULL))
		elog(ERROR, "dsv3 aggregate function called outside of an aggregate");
	if (state == NULL || state->pieces.n == 0)
		PG_RETURN_NULL();
	dsv3_require_preload();
	if (fold(state, &answer, &failure))
		PG_RETURN_TEXT_P(answer);
	dsv3_raise_or_count(dsv3_guc_on_error, &failure);
	PG_RETURN_NULL();
}
