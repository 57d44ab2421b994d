/*
 * functions.h
 *	  What the SQL functions share.
 */
#ifndef DSV3_FUNCTIONS_H
#define DSV3_FUNCTIONS_H

#include "pg/compat.h"

#include "pg/answer.h"
#include "pg/client.h"
#include "pg/options.h"

/* The arguments (prompt, input, system, max_tokens, temperature, seed, options) as a request; prompt and input are not
 * NULL. Raises for wrong arguments; false: failure is set, a row error. The request's session defaults are set first,
 * so on_error can be read after a failure. */
extern bool dsv3_generate_request(FunctionCallInfo fcinfo, Dsv3OptionsOf function, Dsv3Request *request,
								  Dsv3Failure *failure);

/* The ten columns of dsv3_try_generate; a failure is a row error. */
extern void
dsv3_generate_columns(bool ok, const Dsv3Answer *answer, Dsv3Failure *failure, Datum *values, bool *nulls);

/* Tokens that a prompt and its answer may have together; 0: no engine was ready yet. */
extern int64 dsv3_model_context(void);

#endif /* DSV3_FUNCTIONS_H */
