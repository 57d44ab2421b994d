/*
 * classify.c
 *	  Labels and truth values with their probabilities, from the model's logits: nothing is generated.
 *
 * The engine is asked for the log-probability of each whole label as the answer, its end included: a label that begins
 * like another one, or that is many tokens long, is neither preferred nor left out for it. Probabilities are the softmax over the
 * labels, so they sum to one; they say how the model divides its belief between the labels, not how sure it is that one
 * of them fits.
 *
 * The prompt begins with what the rows have in common, and ends with the row's text. A model that can think does not.
 */
#include "postgres.h"

#include "pg/compat.h"

#include <math.h>

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/numeric.h"

#include "pg/answer.h"
#include "pg/ask.h"
#include "pg/options.h"
#include "pg/text.h"

PG_FUNCTION_INFO_V1(dsv3_classify_1_0);
PG_FUNCTION_INFO_V1(dsv3_classify_scores_1_0);
PG_FUNCTION_INFO_V1(dsv3_is_true_1_0);
PG_FUNCTION_INFO_V1(dsv3_score_1_0);

#define THINK_OFF 1

static const char classify_instruction[] = "Classify the text below. Answer with the one label that fits it "
										   "best, exactly as it is written here, and with "
										   "nothing else.";
static const char truth_instruction[] = "Read the text below and say whether the statement is true of it. "
										"Answer with yes or no, and with nothing else.";

/* Labels under way, and what the engine says of them. */
typedef struct Scores
{
	int n;
	Datum *labels;         /* text */
	double *probabilities; /* softmax over the labels */
	int best;              /* the first of those with the highest log-probability */
} Scores;

/* Options into a request. */
static void
begin_request(Dsv3Request *request, FunctionCallInfo fcinfo)
{
	dsv3_require_preload();
	dsv3_request_init(request, DSV3_REQUEST_SCORE);
	if (!PG_ARGISNULL(2))
		dsv3_options_apply(request, PG_GETARG_JSONB_P(2), DSV3_OPTIONS_SCORE);
	request->think = THINK_OFF;
}

static void
begin_prompt(StringInfo prompt, const Dsv3Request *request, const char *instruction)
{
	initStringInfo(prompt);
	if (request->instruction.data)
		appendBinaryStringInfo(prompt, request->instruction.data, (int) request->instruction.len);
	else
		appendStringInfoString(prompt, instruction);
}

/* Put prompt and input into the request. False: failure. */
static bool
end_prompt(StringInfo prompt, Datum input, Size total, Dsv3Request *request, Dsv3Failure *failure)
{
	appendStringInfoString(prompt, "\n\nText:");
	request->prompt = (Dsv3Text){prompt->data, (Size) prompt->len};
	if (!dsv3_take_text(input, &request->input, &total, failure))
		return false;
	if (request->input.len == 0)
		request->input.data = NULL;
	return true;
}

/* The log-probabilities in an answer; there is room for n. False: failure. */
static bool
read_scores(const Dsv3Answer *answer, int n, double *logprobs, Dsv3Failure *failure)
{
	Datum list;
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue value;
	int i = 0;

	if (!dsv3_answer_json((Dsv3Text){answer->text.data, (Size) answer->text.len}, &list, failure))
		return false;
	it = JsonbIteratorInit(&DatumGetJsonbP(list)->root);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		if (token == WJB_ELEM && value.type == jbvNumeric && i < n)
			logprobs[i++] = DatumGetFloat8(
				DirectFunctionCall1(numeric_float8_no_overflow, NumericGetDatum(value.val.numeric)));
	}
	if (i == n)
		return true;
	failure->row_error = true;
	return dsv3_error(&failure->error, DSV3_ERR_PROTOCOL, "dsv3 engine sent %d scores for %d labels", i, n);
}

/* ---- labels ---- */

static void
check_labels(const Datum *labels, const bool *nulls, int n)
{
	if (n == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("labels must have at least one element")));
	for (int i = 0; i < n; i++)
	{
		if (nulls[i] || VARSIZE_ANY_EXHDR(DatumGetPointer(labels[i])) == 0)
			ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
							errmsg("label %d is %s", i + 1, nulls[i] ? "NULL" : "empty")));
		for (int j = 0; j < i; j++)
		{
			struct varlena *a = (struct varlena *) DatumGetPointer(labels[i]);
			struct varlena *b = (struct varlena *) DatumGetPointer(labels[j]);

			if (VARSIZE_ANY_EXHDR(a) == VARSIZE_ANY_EXHDR(b) &&
				memcmp(VARDATA_ANY(a), VARDATA_ANY(b), VARSIZE_ANY_EXHDR(a)) == 0)
				ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
								errmsg("labels %d and %d are the same", j + 1, i + 1)));
		}
	}
}

/* The labels as choices of the request and as lines of the prompt. False: failure. */
static bool
take_labels(const Scores *scores, StringInfo prompt, Dsv3Request *request, Size *total, Dsv3Failure *failure)
{
	StringInfoData json;

	initStringInfo(&json);
	appendStringInfoString(prompt, "\n\nLabels:");
	for (int i = 0; i < scores->n; i++)
	{
		Dsv3Text label;

		if (!dsv3_take_text(scores->labels[i], &label, total, failure))
			return false;
		appendStringInfoString(prompt, "\n- ");
		appendBinaryStringInfo(prompt, label.data, (int) label.len);
		appendStringInfoChar(&json, i == 0 ? '[' : ',');
		escape_json(&json, pnstrdup(label.data, label.len));
	}
	appendStringInfoChar(&json, ']');
	request->choices = (Dsv3Text){json.data, (Size) json.len};
	return true;
}

/* Arguments (input, labels, options). The question's state is Scores, with the labels. */
static Dsv3AskResult
labels_ask(FunctionCallInfo fcinfo, Dsv3Question *question, Dsv3Request *request, Dsv3Failure *failure)
{
	MemoryContext old;
	StringInfoData prompt;
	ArrayType *array;
	Scores *scores;
	bool *nulls;
	Size total = 0;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		return DSV3_ASK_NOTHING;
	begin_request(request, fcinfo);
	array = PG_GETARG_ARRAYTYPE_P(1);
	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("labels must be a one-dimensional array")));
	old = MemoryContextSwitchTo(question->keep);
	scores = palloc0(sizeof(Scores));
	array = (ArrayType *) DatumGetPointer(datumCopy(PointerGetDatum(array), false, -1));
	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &scores->labels, &nulls, &scores->n);
	question->state = scores;
	MemoryContextSwitchTo(old);
	check_labels(scores->labels, nulls, scores->n);
	begin_prompt(&prompt, request, classify_instruction);
	if (!take_labels(scores, &prompt, request, &total, failure) ||
		!end_prompt(&prompt, PG_GETARG_DATUM(0), total, request, failure))
		return DSV3_ASK_FAILED;
	return DSV3_ASK_REQUEST;
}

/* Complete the scores. False: failure. */
static bool
labels_value(Scores *scores, const Dsv3Answer *answer, Dsv3Failure *failure)
{
	double *p = palloc(sizeof(double) * scores->n);
	double sum = 0;

	if (!read_scores(answer, scores->n, p, failure))
		return false;
	scores->best = 0;
	for (int i = 1; i < scores->n; i++)
	{
		if (p[i] > p[scores->best])
			scores->best = i;
	}
	scores->probabilities = p;
	for (int i = 0; i < scores->n; i++)
	{
		if (i != scores->best)
			p[i] = exp(p[i] - p[scores->best]);
	}
	p[scores->best] = 1;
	for (int i = 0; i < scores->n; i++)
		sum += p[i];
	for (int i = 0; i < scores->n; i++)
		p[i] /= sum;
	return true;
}

static bool
classify_value(FunctionCallInfo fcinfo, Dsv3Question *question, bool ok, const Dsv3Answer *answer,
			   Dsv3Failure *failure, Datum *value)
{
	Scores *scores = question->state;

	if (!labels_value(scores, answer, failure))
		return false;
	*value = datumCopy(scores->labels[scores->best], false, -1);
	return true;
}

const Dsv3Asker dsv3_asker_classify = {"dsv3_classify_1_0", dsv3_classify_1_0, labels_ask, classify_value,
									   false};

/* dsv3_classify(input, labels, options) -> text */
Datum
dsv3_classify_1_0(PG_FUNCTION_ARGS)
{
	return dsv3_ask_plainly(&dsv3_asker_classify, fcinfo);
}

/* The scores, in the current memory context; NULL: there are none, for NULL or for a row error that is counted. */
static Scores *
score_labels(FunctionCallInfo fcinfo)
{
	Dsv3Question question = {.keep = CurrentMemoryContext};
	Dsv3Request request;
	Dsv3Answer answer;
	Dsv3Failure failure;
	Dsv3AskResult result = dsv3_ask(&dsv3_asker_classify, fcinfo, &question, &request, &failure);

	if (result == DSV3_ASK_NOTHING)
		return NULL;
	request.function = "dsv3_classify_scores";
	if (result == DSV3_ASK_REQUEST && dsv3_run(&request, &answer, &failure) &&
		labels_value(question.state, &answer, &failure))
		return question.state;
	dsv3_ask_tell(&question, false, &failure);
	return NULL;
}

/* dsv3_classify_scores(input, labels, options) -> setof (label, probability), in the order of the labels */
Datum
dsv3_classify_scores_1_0(PG_FUNCTION_ARGS)
{
	FuncCallContext *context;
	Scores *scores;
	Datum values[2];
	bool nulls[2] = {false, false};
	int i;

	if (SRF_IS_FIRSTCALL())
	{
		MemoryContext old;
		TupleDesc tupdesc;

		context = SRF_FIRSTCALL_INIT();
		old = MemoryContextSwitchTo(context->multi_call_memory_ctx);
		if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
			elog(ERROR, "return type must be a row type");
		context->tuple_desc = BlessTupleDesc(tupdesc);
		context->user_fctx = score_labels(fcinfo);
		MemoryContextSwitchTo(old);
	}
	context = SRF_PERCALL_SETUP();
	scores = context->user_fctx;
	i = (int) context->call_cntr;
	if (scores == NULL || i >= scores->n)
		SRF_RETURN_DONE(context);
	values[0] = scores->labels[i];
	values[1] = Float8GetDatum(scores->probabilities[i]);
	SRF_RETURN_NEXT(context, HeapTupleGetDatum(heap_form_tuple(context->tuple_desc, values, nulls)));
}

/* ---- truth ---- */

/* Arguments (input, statement, options). */
static Dsv3AskResult
truth_ask(FunctionCallInfo fcinfo, Dsv3Question *question, Dsv3Request *request, Dsv3Failure *failure)
{
	static const char choices[] = "[\"yes\",\"no\"]";
	Dsv3Text statement;
	StringInfoData prompt;
	Size total = 0;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		return DSV3_ASK_NOTHING;
	begin_request(request, fcinfo);
	request->choices = (Dsv3Text){choices, sizeof(choices) - 1};
	begin_prompt(&prompt, request, truth_instruction);
	appendStringInfoString(&prompt, "\n\nStatement: ");
	if (!dsv3_take_text(PG_GETARG_DATUM(1), &statement, &total, failure))
		return DSV3_ASK_FAILED;
	appendBinaryStringInfo(&prompt, statement.data, (int) statement.len);
	return end_prompt(&prompt, PG_GETARG_DATUM(0), total, request, failure) ? DSV3_ASK_REQUEST
																			: DSV3_ASK_FAILED;
}

/* The probability of "yes". False: failure. */
static bool
truth_value(const Dsv3Answer *answer, Dsv3Failure *failure, double *probability)
{
	double logprobs[2];

	if (!read_scores(answer, 2, logprobs, failure))
		return false;
	*probability = 1 / (1 + exp(logprobs[1] - logprobs[0]));
	return true;
}

static bool
is_true_value(FunctionCallInfo fcinfo, Dsv3Question *question, bool ok, const Dsv3Answer *answer,
			  Dsv3Failure *failure, Datum *value)
{
	double probability;

	if (!truth_value(answer, failure, &probability))
		return false;
	*value = BoolGetDatum(probability > 0.5);
	return true;
}

const Dsv3Asker dsv3_asker_is_true = {"dsv3_is_true_1_0", dsv3_is_true_1_0, truth_ask, is_true_value, false};

/* dsv3_is_true(input, statement, options) -> boolean */
Datum
dsv3_is_true_1_0(PG_FUNCTION_ARGS)
{
	return dsv3_ask_plainly(&dsv3_asker_is_true, fcinfo);
}

static bool
score_value(FunctionCallInfo fcinfo, Dsv3Question *question, bool ok, const Dsv3Answer *answer,
			Dsv3Failure *failure, Datum *value)
{
	double probability;

	if (!truth_value(answer, failure, &probability))
		return false;
	*value = Float4GetDatum((float4) probability);
	return true;
}

const Dsv3Asker dsv3_asker_score = {"dsv3_score_1_0", dsv3_score_1_0, truth_ask, score_value, false};

/* dsv3_score(input, statement, options) -> real */
Datum
dsv3_score_1_0(PG_FUNCTION_ARGS)
{
	return dsv3_ask_plainly(&dsv3_asker_score, fcinfo);
}
