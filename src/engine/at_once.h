/*
 * at_once.h
 *	  The requests that need no step of the model: text to ids and back, what a grammar enforces, what it accepts.
 */
#ifndef DSV3_AT_ONCE_H
#define DSV3_AT_ONCE_H

#include "engine/backend.h"
#include "engine/request.h"

/* What such a request is answered with; zero-initialise, free with dsv3_at_once_free. */
typedef struct Dsv3AtOnce
{
	Dsv3Text text;
	Dsv3Tokens tokens;
	uint32_t n_tokens; /* of the text in the question; tokens is empty when only this was asked for */
} Dsv3AtOnce;

extern bool dsv3_is_at_once(Dsv3RequestKind kind);
extern bool
dsv3_answer_at_once(Dsv3Backend *backend, const Dsv3Request *request, Dsv3AtOnce *answer, Dsv3Error *err);
extern void dsv3_at_once_free(Dsv3AtOnce *answer);

#endif /* DSV3_AT_ONCE_H */
