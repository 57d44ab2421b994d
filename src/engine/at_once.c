/*
 * at_once.c
 *	  Requests answered without the model; see at_once.h. Called by whichever thread takes requests in, so nothing here
 *	  touches the scheduler.
 */
#include "engine/at_once.h"

#include "engine/constraint.h"

bool
dsv3_is_at_once(Dsv3RequestKind kind)
{
	return kind == DSV3_REQUEST_TOKENIZE || kind == DSV3_REQUEST_DETOKENIZE ||
		   kind == DSV3_REQUEST_COUNT_TOKENS || kind == DSV3_REQUEST_CHECK_GRAMMAR ||
		   kind == DSV3_REQUEST_ACCEPTS;
}

static bool
answer_grammar(Dsv3Backend *backend, const Dsv3Request *request, Dsv3AtOnce *answer, Dsv3Error *err)
{
	Dsv3Constraint *constraint = dsv3_constraint_open(backend, request, err);
	bool ok = false;

	if (constraint && request->kind == DSV3_REQUEST_ACCEPTS)
		ok = dsv3_constraint_accepts(constraint, request->input.data, request->input.len, &answer->text, err);
	else if (constraint)
		ok = dsv3_constraint_describe(constraint, &answer->text, err);
	dsv3_constraint_close(constraint);
	return ok;
}

static bool
answer_tokens(Dsv3Backend *backend, const Dsv3Request *request, Dsv3AtOnce *answer, Dsv3Error *err)
{
	answer->tokens.abort_flag = request->abort_flag;
	if (!backend->ops->encode(backend, request->prompt.data, request->prompt.len, 0, &answer->tokens, err))
		return false;
	answer->n_tokens = (uint32_t) answer->tokens.count;
	if (request->kind == DSV3_REQUEST_COUNT_TOKENS)
		dsv3_tokens_free(&answer->tokens);
	return true;
}

bool
dsv3_answer_at_once(Dsv3Backend *backend, const Dsv3Request *request, Dsv3AtOnce *answer, Dsv3Error *err)
{
	switch (request->kind)
	{
		case DSV3_REQUEST_TOKENIZE:
		case DSV3_REQUEST_COUNT_TOKENS:
			return answer_tokens(backend, request, answer, err);
		case DSV3_REQUEST_DETOKENIZE:
			return dsv3_backend_decode(backend, request->tokens, request->n_tokens, false, &answer->text,
									   err);
		default:
			return answer_grammar(backend, request, answer, err);
	}
}

void
dsv3_at_once_free(Dsv3AtOnce *answer)
{
	dsv3_text_free(&answer->text);
	dsv3_tokens_free(&answer->tokens);
}
