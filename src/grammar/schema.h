/*
 * schema.h
 *	  A JSON Schema document as a graph: which value is a schema, which resource (base URI, draft) it belongs to, and
 *	  what a reference means. Shared by the compiler and by the validator; it interprets no other keyword.
 *
 * The dynamic scope that $dynamicRef and $recursiveRef look at is a small interned list of resources, in the order they
 * were entered, holding only resources with dynamic anchors: "env". Almost every schema knows one env only.
 */
#ifndef DSV3_GRAMMAR_SCHEMA_H
#define DSV3_GRAMMAR_SCHEMA_H

#include "grammar/json.h"

typedef enum Draft
{
	DRAFT_AUTO = 0, /* no $schema: 2020-12, with the older spellings of keywords understood */
	DRAFT_4 = 4,
	DRAFT_6 = 6,
	DRAFT_7 = 7,
	DRAFT_2019 = 19,
	DRAFT_2020 = 20,
} Draft;

typedef struct Anchor
{
	struct Anchor *next;
	const char *name;
	Json *schema;
	bool dynamic;
} Anchor;

typedef struct Resource
{
	const char *uri; /* absolute where the schema gives one; without a fragment */
	Json *root;
	Draft draft;
	Anchor *anchors;
	bool has_dynamic;
	bool recursive; /* $recursiveAnchor: true */
} Resource;

typedef struct SchemaDoc
{
	Ctx *ctx;
	Json *root;
	Draft draft; /* when $schema does not say */
	Resource *resources;
	int32_t nresources;
	int32_t cap;
	const struct Dsv3SchemaDocument
		*documents; /* other documents references may lead to; parsed when first met */
	int32_t ndocuments;
	Json **parsed;
	Interner envs;
	bool format_assert;
	Json *true_schema;
	Json *false_schema;
} SchemaDoc;

extern void dsv3_gr_schema_open(SchemaDoc *doc, Ctx *ctx, Json *root, Draft draft,
								const struct Dsv3SchemaDocument *documents, int32_t ndocuments);
extern Draft dsv3_gr_schema_draft(const SchemaDoc *doc, const Json *schema);

/* Make sure a value reached by a reference is indexed as a schema. */
extern void dsv3_gr_schema_index(SchemaDoc *doc, Json *schema, int32_t resource);

/* The target of schema's "$ref" (kind "$ref", "$dynamicRef" or "$recursiveRef"). Fails when it leads nowhere. */
extern Json *dsv3_gr_schema_reference(SchemaDoc *doc, const Json *schema, const char *kind, int32_t env);

/* The env inside a schema entered from env. */
extern int32_t dsv3_gr_schema_enter(SchemaDoc *doc, int32_t env, const Json *schema);

#endif /* DSV3_GRAMMAR_SCHEMA_H */
