/*
 * at_once.c
 *	  Requests answered without the model; see at_once.h. Called by whichever thread takes requests in, so nothing here
 *	  touches the scheduler.
 */
#include "engine/at_once.h"

bool
dsv3_is_at_once(Dsv3RequestKind kind)
{
	return kind == DSV3_REQUEST_TOKENIZE || kind == DSV3_REQUEST_DETOKENIZE;
}

bool
dsv3_answer_at_once(Dsv3Backend *backend, const Dsv3Request *request, Dsv3AtOnce *answer, Dsv3Error *err)
{
	if (request->kind == DSV3_REQUEST_TOKENIZE)
		return backend->ops->encode(backend, request->prompt.data, request->prompt.len, 0, &answer->tokens,
									err);
	return dsv3_backend_decode(backend, request->tokens, request->n_tokens, false, &answer->text, err);
}

void
dsv3_at_once_free(Dsv3AtOnce *answer)
{
	dsv3_text_free(&answer->text);
	dsv3_tokens_free(&answer->tokens);
}
