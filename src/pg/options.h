/*
 * options.h
 *	  The `options jsonb` argument of the functions.
 */
#ifndef DSV3_OPTIONS_H
#define DSV3_OPTIONS_H

#include "pg/compat.h"

#include "utils/jsonb.h"

#include "pg/client.h"

/* The functions that take options; a key may be valid for some of them only. */
typedef enum Dsv3OptionsOf
{
	DSV3_OPTIONS_GENERATE = 1,
	DSV3_OPTIONS_TRY = 2,
	DSV3_OPTIONS_STREAM = 4,
	DSV3_OPTIONS_CHAT = 8,
	DSV3_OPTIONS_EXTRACT = 16,
	DSV3_OPTIONS_TRY_EXTRACT = 32,
	DSV3_OPTIONS_ROW = 64,     /* dsv3_extract */
	DSV3_OPTIONS_SCORE = 128,  /* dsv3_classify and its relatives */
	DSV3_OPTIONS_PIN = 256,    /* dsv3_pin_prefix, dsv3_unpin_prefix */
	DSV3_OPTIONS_PROMPT = 512, /* dsv3_prompt_create */
} Dsv3OptionsOf;

/* Put the options into the request. Raises 22023 for an unknown key, a wrong type or a value out of range; texts are
 * kept in the current memory context. */
extern void dsv3_options_apply(Dsv3Request *request, Jsonb *options, Dsv3OptionsOf function);

#endif /* DSV3_OPTIONS_H */
