/*
 * extract.h
 *	  What the functions that answer by a JSON Schema share.
 */
#ifndef DSV3_EXTRACT_H
#define DSV3_EXTRACT_H

#include "pg/compat.h"

#include "pg/answer.h"
#include "pg/client.h"
#include "pg/schema.h"

/* Make the prompt of an extraction: instruction (UTF-8; data NULL: a good one), schema, input. max_tokens 0 becomes the
 * number that follows from the sizes. False: failure, a row error. */
extern bool dsv3_extract_prompt(Dsv3Request *request, const Dsv3Schema *schema, Datum input,
								const Dsv3Text *instruction, Dsv3Failure *failure);

/* What max_tokens is by default, for an input of so many bytes. */
extern uint32 dsv3_extract_max_tokens(const Dsv3Request *request, const Dsv3Schema *schema, Size input_len);

/* Is the answer a whole document, as every answer by a schema must be? False: failure, a row error. */
extern bool dsv3_extract_complete(const Dsv3Answer *answer, Dsv3Failure *failure);

/* The answer as jsonb. False: failure, a row error. */
extern bool dsv3_extract_value(const Dsv3Answer *answer, Datum *json, Dsv3Failure *failure);

/* The eleven columns of dsv3_try_extract_json; a failure is a row error. */
extern void
dsv3_extract_columns(bool ok, const Dsv3Answer *answer, Dsv3Failure *failure, Datum *values, bool *nulls);

#endif /* DSV3_EXTRACT_H */
