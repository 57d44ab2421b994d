/*
 * ask.c
 *	  An SQL function that asks the model, in three parts, and all of them together.
 *
 * Called plainly, the function waits for its answer. `(dsv3_extract(body, NULL::person)).*` is expanded by the parser into
 * one such call for each column, all alike; so the last answer is kept for the length of the query, and another call site that
 * asks the very same takes it instead of asking again. The call site that made the answer does not: a query that says
 * three times what it wants from the model, with one call in three rows, gets it three times.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "access/htup_details.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "utils/builtins.h"
#include "utils/syscache.h"

#include "pg/ask.h"

/* In alphabetical order of the symbols. */
static const Dsv3Asker *const askers[] = {
	&dsv3_asker_chat,
	&dsv3_asker_classify,
	&dsv3_asker_count_tokens,
	&dsv3_asker_detokenize,
	&dsv3_asker_extract,
	&dsv3_asker_extract_json,
	&dsv3_asker_generate,
	&dsv3_asker_is_true,
	&dsv3_asker_logprob,
	&dsv3_asker_run,
	&dsv3_asker_score,
	&dsv3_asker_tokenize,
	&dsv3_asker_try_extract_json,
	&dsv3_asker_try_generate,
};

const Dsv3Asker *
dsv3_asker_of(Oid function)
{
	const Dsv3Asker *found = NULL;
	HeapTuple tuple;
	Form_pg_proc proc;

#ifndef DSV3_BATCH_TORTURE
	if (function < FirstNormalObjectId)
		return NULL; /* PostgreSQL's own */
#endif
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	if (!HeapTupleIsValid(tuple))
		return NULL;
	proc = (Form_pg_proc) GETSTRUCT(tuple);
#ifdef DSV3_BATCH_TORTURE
	if (!proc->proretset && !proc->prosecdef && heap_attisnull(tuple, Anum_pg_proc_proconfig, NULL))
	{
		ReleaseSysCache(tuple);
		return &dsv3_asker_torture;
	}
#endif
	if (proc->prolang == ClanguageId && !proc->proretset && !proc->prosecdef &&
		heap_attisnull(tuple, Anum_pg_proc_proconfig, NULL))
	{
		bool isnull;
		Datum datum = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosrc, &isnull);
		char *symbol = isnull ? pstrdup("") : TextDatumGetCString(datum);

		for (int i = 0; i < (int) lengthof(askers) && found == NULL; i++)
		{
			if (strcmp(askers[i]->symbol, symbol) == 0)
				found = askers[i];
		}
		pfree(symbol);
	}
	ReleaseSysCache(tuple);
	if (found)
	{
		/* Another library may have a function of that name. */
		FmgrInfo flinfo;

		fmgr_info(function, &flinfo);
		if (flinfo.fn_addr != found->function)
			found = NULL;
	}
	return found;
}

/* ---- the parts ---- */

Dsv3AskResult
dsv3_ask(const Dsv3Asker *asker, FunctionCallInfo fcinfo, Dsv3Question *question, Dsv3Request *request,
		 Dsv3Failure *failure)
{
	MemoryContext keep = question->keep;
	Dsv3AskResult result;

	memset(question, 0, sizeof(*question));
	question->keep = keep;
	result = asker->ask(fcinfo, question, request, failure);
	if (result == DSV3_ASK_NOTHING)
		return result;
	request->function = asker->symbol;
	question->on_error = request->on_error;
	if (result == DSV3_ASK_REQUEST)
	{
		dsv3_asked_of(&question->asked, request);
		if (request->grammar.data)
			question->asked.grammar.data = memcpy(MemoryContextAlloc(keep, request->grammar.len + 1),
												  request->grammar.data, request->grammar.len);
	}
	return result;
}

bool
dsv3_ask_value(const Dsv3Asker *asker, FunctionCallInfo fcinfo, Dsv3Question *question, bool ok,
			   const Dsv3Answer *answer, Dsv3Failure *failure, Datum *value, bool *isnull)
{
	*value = (Datum) 0;
	*isnull = true;
	if (ok || (asker->catches && failure->row_error))
	{
		fcinfo->isnull = false;
		ok = asker->value(fcinfo, question, ok, answer, failure, value);
		*isnull = !ok || fcinfo->isnull;
	}
	return ok;
}

void
dsv3_ask_tell(const Dsv3Question *question, bool ok, const Dsv3Failure *failure)
{
	if (!ok)
		dsv3_raise_or_count(question->on_error, failure);
	else if (question->narrowed)
		ereport(NOTICE,
				(errmsg("answer was kept short to be complete within %u tokens", question->asked.max_tokens),
				 errhint("Raise max_tokens if a value is cut or an array is missing elements.")));
}

/* ---- plain calls ---- */

/* The last answer, in the memory of the query that asked. */
static struct
{
	MemoryContext query; /* NULL: none is kept */
	const FmgrInfo *site;
	uint8 digest[DSV3_DIGEST_BYTES];
	char *fields;
	int len;
	Dsv3Counts counts;
	pg_uuid_t trace_id;
} last;

static MemoryContext watched; /* the context whose end is told to forget_last */

static void
forget_last(void *context)
{
	if (last.query == context)
		last.query = NULL;
	if (watched == context)
		watched = NULL;
}

static void
keep_last(const FmgrInfo *site, const uint8 *digest, const Dsv3Answer *answer)
{
	MemoryContext query = site->fn_mcxt;

	if (last.query)
		pfree(last.fields);
	last.query = NULL;
	if (watched != query)
	{
		MemoryContextCallback *callback = MemoryContextAlloc(query, sizeof(MemoryContextCallback));

		callback->func = forget_last;
		callback->arg = query;
		MemoryContextRegisterResetCallback(query, callback);
		watched = query;
	}
	last.fields = memcpy(MemoryContextAllocHuge(query, (Size) answer->fields.len + 1), answer->fields.data,
						 (Size) answer->fields.len);
	last.len = answer->fields.len;
	last.site = site;
	memcpy(last.digest, digest, sizeof(last.digest));
	last.counts = answer->counts;
	last.trace_id = answer->trace_id;
	last.query = query;
}

/* Send the letter and wait for the end. */
static bool
post_and_wait(const Dsv3Letter *letter, Dsv3Answer *answer, Dsv3Failure *failure)
{
	Dsv3Call *call = dsv3_call_post(letter, false, failure);
	bool ok;

	if (call == NULL)
		return false;
	answer->trace_id = *dsv3_call_trace_id(call);
	answer->has_trace_id = true;
	ok = dsv3_call_wait(call, true, &answer->fields, failure) == DSV3_CALL_DONE;
	answer->counts = *dsv3_call_counts(call);
	dsv3_call_release(call);
	return ok;
}

/* dsv3_run, but for the answer that another call site of the query got to the same letter. */
static bool
run(const FmgrInfo *site, const Dsv3Asked *asked, const Dsv3Request *request, Dsv3Answer *answer,
	Dsv3Failure *failure)
{
	uint8 digest[DSV3_DIGEST_BYTES];
	Dsv3Letter letter;
	bool ok;

	if (!dsv3_letter_write(&letter, request, failure))
		return false;
	initStringInfo(&answer->fields);
	dsv3_letter_digest(&letter, digest);
	if (dsv3_guc_dedup && last.query && last.query == site->fn_mcxt && last.site != site &&
		memcmp(last.digest, digest, sizeof(digest)) == 0)
	{
		appendBinaryStringInfo(&answer->fields, last.fields, last.len);
		answer->counts = last.counts;
		answer->trace_id = last.trace_id;
		answer->has_trace_id = true;
		ok = true;
	}
	else
	{
		ok = post_and_wait(&letter, answer, failure);
		if (ok)
			keep_last(site, digest, answer);
	}
	dsv3_letter_free(&letter);
	return dsv3_answer_read(answer, asked, ok, failure);
}

Datum
dsv3_ask_plainly(const Dsv3Asker *asker, FunctionCallInfo fcinfo)
{
	Dsv3Question question = {.keep = CurrentMemoryContext};
	Dsv3Answer answer = {0};
	Dsv3Request request;
	Dsv3Failure failure;
	Datum value;
	bool isnull;
	bool ok = false;

	switch (dsv3_ask(asker, fcinfo, &question, &request, &failure))
	{
		case DSV3_ASK_NOTHING:
			PG_RETURN_NULL();
		case DSV3_ASK_REQUEST:
			ok = run(fcinfo->flinfo, &question.asked, &request, &answer, &failure);
			break;
		case DSV3_ASK_FAILED:
			break;
	}
	ok = dsv3_ask_value(asker, fcinfo, &question, ok, &answer, &failure, &value, &isnull);
	dsv3_ask_tell(&question, ok, &failure);
	fcinfo->isnull = isnull;
	return value;
}
