/*
 * ask.h
 *	  An SQL function that asks the model, in three parts: from its arguments to a request, from the answer to its value, and
 *	  what it says of it. Called plainly the parts run one after the other; between them the executor node of batch.h
 *	  works on other rows. Both give the same values, errors and notices, because both are made of these parts.
 */
#ifndef DSV3_ASK_H
#define DSV3_ASK_H

#include "pg/compat.h"

#include "pg/answer.h"
#include "pg/client.h"

/* One evaluation of such a function: what has to be kept from its arguments to its value. */
typedef struct Dsv3Question
{
	MemoryContext keep; /* lives until the value is taken; set by whoever evaluates */
	Dsv3Asked asked;
	int on_error;
	bool narrowed; /* set with the value: to be told */
	void *state;   /* of the function, in keep */
} Dsv3Question;

typedef enum Dsv3AskResult
{
	DSV3_ASK_NOTHING, /* the value is NULL and no request is needed */
	DSV3_ASK_REQUEST,
	DSV3_ASK_FAILED, /* failure is set, a row error */
} Dsv3AskResult;

typedef struct Dsv3Asker
{
	const char *symbol; /* in the library; names the function in pg_proc */
	PGFunction function;

	/* Raises for wrong arguments. The request points into the current memory context and into the arguments. */
	Dsv3AskResult (*ask)(FunctionCallInfo fcinfo, Dsv3Question *question, Dsv3Request *request,
						 Dsv3Failure *failure);

	/* The value in the current memory context; fcinfo's arguments are gone, its flinfo is the same. False: failure. With `catches` it
	 * is called for row errors too, and ok says that the answer is one. */
	bool (*value)(FunctionCallInfo fcinfo, Dsv3Question *question, bool ok, const Dsv3Answer *answer,
				  Dsv3Failure *failure, Datum *value);
	bool catches;
} Dsv3Asker;

/* The parts of a function of this library; NULL for other functions. By its number, or by the symbol in pg_proc. */
extern const Dsv3Asker *dsv3_asker_of(Oid function);

/* ask, and put what must be kept of the request into the question. */
extern Dsv3AskResult dsv3_ask(const Dsv3Asker *asker, FunctionCallInfo fcinfo, Dsv3Question *question,
							  Dsv3Request *request, Dsv3Failure *failure);

/* The value of a request that ended as ok and failure say. False: there is none, only a failure to tell. *isnull is set. */
extern bool dsv3_ask_value(const Dsv3Asker *asker, FunctionCallInfo fcinfo, Dsv3Question *question, bool ok,
						   const Dsv3Answer *answer, Dsv3Failure *failure, Datum *value, bool *isnull);

/* What the caller of the function is told: a notice; a failure is raised, or counted, as the question says. */
extern void dsv3_ask_tell(const Dsv3Question *question, bool ok, const Dsv3Failure *failure);

/* All of it: the body of the SQL function. */
extern Datum dsv3_ask_plainly(const Dsv3Asker *asker, FunctionCallInfo fcinfo);

/* The functions, each defined beside its parts. */
extern const Dsv3Asker dsv3_asker_chat;
extern const Dsv3Asker dsv3_asker_classify;
extern const Dsv3Asker dsv3_asker_count_tokens;
extern const Dsv3Asker dsv3_asker_detokenize;
extern const Dsv3Asker dsv3_asker_extract;
extern const Dsv3Asker dsv3_asker_extract_json;
extern const Dsv3Asker dsv3_asker_generate;
extern const Dsv3Asker dsv3_asker_is_true;
extern const Dsv3Asker dsv3_asker_logprob;
extern const Dsv3Asker dsv3_asker_run;
extern const Dsv3Asker dsv3_asker_score;
extern const Dsv3Asker dsv3_asker_tokenize;
extern const Dsv3Asker dsv3_asker_try_extract_json;
extern const Dsv3Asker dsv3_asker_try_generate;
#ifdef DSV3_BATCH_TORTURE
extern const Dsv3Asker dsv3_asker_torture;
#endif

#endif /* DSV3_ASK_H */
