/*
 * schema.h
 *	  A JSON Schema on its way to the engine.
 */
#ifndef DSV3_SCHEMA_H
#define DSV3_SCHEMA_H

#include "pg/compat.h"

#include "utils/jsonb.h"

#include "pg/client.h"

/* A schema as it is sent and as it stands in prompts; the text is UTF-8 and belongs to whoever made it. */
typedef struct Dsv3Schema
{
	Dsv3Text text;
	uint32 key_order;
	uint32 whitespace;
	bool closed;    /* objects that do not mention additionalProperties have none */
	int32 shortest; /* tokens of the shortest answer; set by the check */
} Dsv3Schema;

/* From jsonb, which has lost the order of the keys: the required ones come first. Raises 54000 and what a text in the
 * database encoding can raise. In the current memory context. */
extern void dsv3_schema_from_jsonb(Dsv3Schema *schema, Jsonb *json);

/* From a text in UTF-8, whose keys stay as they are written. */
extern void dsv3_schema_from_text(Dsv3Schema *schema, Dsv3Text text);

extern void dsv3_schema_use(const Dsv3Schema *schema, Dsv3Request *request);

/* Have the engine compile it. *notices is a jsonb array of {pointer, keyword, message}. False: failure, the refusal. */
extern bool dsv3_schema_check(Dsv3Schema *schema, Datum *notices, Dsv3Failure *failure);

/* Check for a statement: refusals raise, notices are sent to the client. */
extern void dsv3_schema_accept(Dsv3Schema *schema);

#endif /* DSV3_SCHEMA_H */
