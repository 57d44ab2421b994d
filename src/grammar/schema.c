/*
 * schema.c
 *	  Resources, anchors and references of a schema document (schema.h).
 *
 * Nothing is ever fetched: a reference leads into the document itself, into a subschema with its own $id, or into one
 * of the documents the caller handed over. Anything else is refused, naming the reference.
 */
#include "grammar/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar.h"

/* ---- URI references (RFC 3986, section 5) ---- */

typedef struct Uri
{
	const char *scheme, *auth, *path, *query, *frag; /* NULL: absent (path never is) */
	size_t nscheme, nauth, npath, nquery, nfrag;
} Uri;

static Uri
uri_split(const char *s)
{
	Uri u;
	const char *end = s + strlen(s);
	const char *p = s;
	const char *hash = strchr(s, '#');
	const char *mark;

	memset(&u, 0, sizeof(u));
	if (hash != NULL)
	{
		u.frag = hash + 1;
		u.nfrag = (size_t) (end - u.frag);
		end = hash;
	}
	while (p < end && *p != ':' && *p != '/' && *p != '?')
		p++;
	if (p < end && *p == ':' && p > s)
	{
		u.scheme = s;
		u.nscheme = (size_t) (p - s);
		s = p + 1;
	}
	mark = memchr(s, '?', (size_t) (end - s));
	if (mark != NULL)
	{
		u.query = mark + 1;
		u.nquery = (size_t) (end - u.query);
		end = mark;
	}
	if (end - s >= 2 && s[0] == '/' && s[1] == '/')
	{
		p = s + 2;
		while (p < end && *p != '/')
			p++;
		u.auth = s + 2;
		u.nauth = (size_t) (p - u.auth);
		s = p;
	}
	u.path = s;
	u.npath = (size_t) (end - s);
	return u;
}

/* Remove "." and ".." segments; in place. */
static size_t
remove_dots(char *path, size_t n)
{
	size_t out = 0;
	size_t i = 0;

	while (i < n)
	{
		size_t j = i + 1;

		while (j < n && path[j] != '/')
			j++;
		if (j - i == 2 && path[i] == '/' && path[i + 1] == '.')
		{
			if (j == n)
				path[out++] = '/';
		}
		else if (j - i == 3 && path[i] == '/' && path[i + 1] == '.' && path[i + 2] == '.')
		{
			while (out > 0 && path[--out] != '/')
				;
			if (j == n)
				path[out++] = '/';
		}
		else
		{
			memmove(path + out, path + i, j - i);
			out += j - i;
		}
		i = j;
	}
	return out;
}

/* base + reference, without the fragment, in the arena. */
static const char *
uri_resolve(Arena *arena, const char *base, const char *ref)
{
	Uri b = uri_split(base);
	Uri r = uri_split(ref);
	size_t size = strlen(base) + strlen(ref) + 8;
	char *out = dsv3_gr_arena_alloc(arena, size);
	char *path = dsv3_gr_arena_alloc(arena, size);
	size_t npath = 0;
	size_t n = 0;
	const Uri *authority = &b;
	const Uri *query = &r;

	if (r.scheme != NULL || r.auth != NULL)
	{
		authority = &r;
		memcpy(path, r.path, r.npath);
		npath = r.npath;
	}
	else if (r.npath == 0)
	{
		memcpy(path, b.path, b.npath);
		npath = b.npath;
		if (r.query == NULL)
			query = &b;
	}
	else if (r.path[0] == '/')
	{
		memcpy(path, r.path, r.npath);
		npath = r.npath;
	}
	else
	{
		size_t keep = b.npath;

		while (keep > 0 && b.path[keep - 1] != '/')
			keep--;
		if (keep == 0 && b.auth != NULL)
			path[npath++] = '/';
		memcpy(path + npath, b.path, keep);
		npath += keep;
		memcpy(path + npath, r.path, r.npath);
		npath += r.npath;
	}
	if (npath > 0 && path[0] == '/')
		npath = remove_dots(path, npath);
	if (r.scheme != NULL || b.scheme != NULL)
		n += (size_t) snprintf(out + n, size - n, "%.*s:", (int) (r.scheme != NULL ? r.nscheme : b.nscheme),
							   r.scheme != NULL ? r.scheme : b.scheme);
	if (authority->auth != NULL)
		n += (size_t) snprintf(out + n, size - n, "//%.*s", (int) authority->nauth, authority->auth);
	n += (size_t) snprintf(out + n, size - n, "%.*s", (int) npath, path);
	if (query->query != NULL)
		snprintf(out + n, size - n, "?%.*s", (int) query->nquery, query->query);
	return out;
}

/* ---- indexing ---- */

static int32_t
add_resource(SchemaDoc *doc, const char *uri, Json *root, Draft draft)
{
	if (doc->nresources == doc->cap)
	{
		int32_t cap = doc->cap == 0 ? 4 : doc->cap * 2;
		Resource *grown = dsv3_gr_arena_alloc(doc->ctx->arena, (size_t) cap * sizeof(Resource));

		if (doc->nresources != 0)
			memcpy(grown, doc->resources, (size_t) doc->nresources * sizeof(Resource));
		doc->resources = grown;
		doc->cap = cap;
	}
	memset(&doc->resources[doc->nresources], 0, sizeof(Resource));
	doc->resources[doc->nresources].uri = uri;
	doc->resources[doc->nresources].root = root;
	doc->resources[doc->nresources].draft = draft;
	return doc->nresources++;
}

static void
add_anchor(SchemaDoc *doc, int32_t resource, const char *name, Json *schema, bool dynamic)
{
	Anchor *anchor = dsv3_gr_arena_alloc(doc->ctx->arena, sizeof(Anchor));

	anchor->name = name;
	anchor->schema = schema;
	anchor->dynamic = dynamic;
	anchor->next = doc->resources[resource].anchors;
	doc->resources[resource].anchors = anchor;
	if (dynamic)
		doc->resources[resource].has_dynamic = true;
}

static const char *
string_member(const Json *object, const char *key)
{
	const Json *value = dsv3_gr_json_get(object, key);

	return value != NULL && value->kind == JSON_STRING_ ? value->u.str : NULL;
}

static Draft
draft_of(SchemaDoc *doc, const Json *root, Draft otherwise)
{
	const char *uri = string_member(root, "$schema");

	if (uri == NULL)
		return otherwise;
	if (strstr(uri, "json-schema.org/") != NULL)
	{
		if (strstr(uri, "draft-04") != NULL || strstr(uri, "draft-03") != NULL)
			return DRAFT_4;
		if (strstr(uri, "draft-06") != NULL)
			return DRAFT_6;
		if (strstr(uri, "draft-07") != NULL)
			return DRAFT_7;
		if (strstr(uri, "2019-09") != NULL)
			return DRAFT_2019;
		if (strstr(uri, "2020-12") != NULL)
			return DRAFT_2020;
		return otherwise;
	}
	for (int32_t i = 0; i < doc->ndocuments; i++)
		if (strcmp(doc->documents[i].uri, uri) == 0 && strstr(doc->documents[i].text, "$vocabulary") != NULL)
		{
			doc->ctx->at = root;
			doc->ctx->keyword = "$schema";
			dsv3_gr_fail(doc->ctx, DSV3_ERR_UNSUPPORTED, "Use one of the published drafts in $schema.",
						 "schema uses a custom vocabulary, \"%s\"", uri);
		}
	return otherwise;
}

void
dsv3_gr_schema_index(SchemaDoc *doc, Json *schema, int32_t resource)
{
	static const char *const one[] = {"additionalItems",
									  "additionalProperties",
									  "contains",
									  "else",
									  "if",
									  "items",
									  "not",
									  "propertyNames",
									  "then",
									  "unevaluatedItems",
									  "unevaluatedProperties",
									  "contentSchema"};
	static const char *const list[] = {"allOf", "anyOf", "oneOf", "prefixItems", "items"};
	static const char *const map[] = {"$defs",      "definitions", "dependentSchemas", "patternProperties",
									  "properties", "dependencies"};
	Draft draft;
	const char *id;
	const char *anchor;
	const Json *recursive;

	if (schema->schema_seen ||
		(schema->kind != JSON_OBJECT_ && schema->kind != JSON_TRUE_ && schema->kind != JSON_FALSE_))
		return;
	schema->schema_seen = true;
	gr_tick(doc->ctx);
	draft = doc->resources[resource].draft;
	id = string_member(schema, draft == DRAFT_4 ? "id" : "$id");
	if (id != NULL && draft != DRAFT_AUTO && draft <= DRAFT_7 && dsv3_gr_json_get(schema, "$ref") != NULL)
		id = NULL;
	if (id != NULL && id[0] == '#' && id[1] != '\0')
	{
		add_anchor(doc, resource, id + 1, schema, false);
		id = NULL;
	}
	if (id != NULL && id[0] != '\0' && id[0] != '#')
	{
		const char *uri = uri_resolve(doc->ctx->arena, doc->resources[resource].uri, id);

		if (doc->resources[resource].root == schema)
			doc->resources[resource].uri = uri;
		else
			resource = add_resource(doc, uri, schema, draft_of(doc, schema, draft));
	}
	schema->resource = resource;
	anchor = string_member(schema, "$anchor");
	if (anchor != NULL)
		add_anchor(doc, resource, anchor, schema, false);
	anchor = string_member(schema, "$dynamicAnchor");
	if (anchor != NULL)
		add_anchor(doc, resource, anchor, schema, true);
	recursive = dsv3_gr_json_get(schema, "$recursiveAnchor");
	if (recursive != NULL && recursive->kind == JSON_TRUE_ && doc->resources[resource].root == schema)
	{
		doc->resources[resource].recursive = true;
		doc->resources[resource].has_dynamic = true;
	}
	if (schema->kind != JSON_OBJECT_)
		return;
	for (size_t i = 0; i < sizeof(one) / sizeof(one[0]); i++)
	{
		Json *sub = dsv3_gr_json_get(schema, one[i]);

		if (sub != NULL)
			dsv3_gr_schema_index(doc, sub, resource);
	}
	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
	{
		Json *sub = dsv3_gr_json_get(schema, list[i]);

		for (uint32_t k = 0; sub != NULL && sub->kind == JSON_ARRAY_ && k < sub->n; k++)
			dsv3_gr_schema_index(doc, sub->u.items[k], resource);
	}
	for (size_t i = 0; i < sizeof(map) / sizeof(map[0]); i++)
	{
		Json *sub = dsv3_gr_json_get(schema, map[i]);

		for (uint32_t k = 0; sub != NULL && sub->kind == JSON_OBJECT_ && k < sub->n; k++)
			dsv3_gr_schema_index(doc, sub->u.members[k].value, resource);
	}
}

void
dsv3_gr_schema_open(SchemaDoc *doc, Ctx *ctx, Json *root, Draft draft,
					const struct Dsv3SchemaDocument *documents, int32_t ndocuments)
{
	memset(doc, 0, sizeof(*doc));
	doc->ctx = ctx;
	doc->root = root;
	doc->draft = draft;
	doc->documents = documents;
	doc->ndocuments = ndocuments;
	doc->parsed = dsv3_gr_arena_alloc(ctx->arena, ((size_t) ndocuments + 1) * sizeof(Json *));
	dsv3_gr_interner_init(&doc->envs, ctx->arena);
	dsv3_gr_interner_get(&doc->envs, NULL, 0, NULL);
	add_resource(doc, "", root, draft_of(doc, root, draft));
	dsv3_gr_schema_index(doc, root, 0);
	doc->true_schema = dsv3_gr_json_new(ctx->arena, JSON_TRUE_);
	doc->false_schema = dsv3_gr_json_new(ctx->arena, JSON_FALSE_);
	dsv3_gr_schema_index(doc, doc->true_schema, 0);
	dsv3_gr_schema_index(doc, doc->false_schema, 0);
}

Draft
dsv3_gr_schema_draft(const SchemaDoc *doc, const Json *schema)
{
	return schema->resource < 0 ? doc->draft : doc->resources[schema->resource].draft;
}

int32_t
dsv3_gr_schema_enter(SchemaDoc *doc, int32_t env, const Json *schema)
{
	int32_t n;
	const int32_t *key;
	int32_t grown[64];

	if (schema->resource < 0 || !doc->resources[schema->resource].has_dynamic)
		return env;
	key = interner_key(&doc->envs, env, &n);
	for (int32_t i = 0; i < n; i++)
		if (key[i] == schema->resource)
			return env;
	if (n >= 63)
		dsv3_gr_fail(doc->ctx, DSV3_ERR_TOO_LARGE, NULL, "too many schema resources with dynamic anchors");
	if (n != 0)
		memcpy(grown, key, (size_t) n * sizeof(int32_t));
	grown[n] = schema->resource;
	return dsv3_gr_interner_get(&doc->envs, grown, n + 1, NULL);
}

/* ---- references ---- */

static int32_t
find_resource(SchemaDoc *doc, const char *uri)
{
	gr_work(doc->ctx, doc->nresources / 4);
	for (int32_t i = 0; i < doc->nresources; i++)
		if (strcmp(doc->resources[i].uri, uri) == 0)
			return i;
	for (int32_t i = 0; i < doc->ndocuments; i++)
		if (doc->parsed[i] == NULL && strcmp(doc->documents[i].uri, uri) == 0)
		{
			JsonFault fault;
			int32_t resource;

			doc->parsed[i] = dsv3_gr_json_parse(doc->ctx->arena, doc->documents[i].text,
												doc->documents[i].len, false, &fault);
			if (doc->parsed[i] == NULL)
			{
				char whose[300];

				snprintf(whose, sizeof(whose), "document \"%.250s\"", uri);
				dsv3_gr_json_fail(doc->ctx, &fault, whose);
			}
			resource = add_resource(doc, dsv3_gr_arena_text(doc->ctx->arena, uri, strlen(uri)),
									doc->parsed[i], draft_of(doc, doc->parsed[i], doc->draft));
			dsv3_gr_schema_index(doc, doc->parsed[i], resource);
			/* An $id of its own may have renamed it. */
			if (strcmp(doc->resources[resource].uri, uri) != 0)
			{
				int32_t alias = add_resource(doc, dsv3_gr_arena_text(doc->ctx->arena, uri, strlen(uri)),
											 doc->parsed[i], doc->resources[resource].draft);

				doc->resources[alias].anchors = doc->resources[resource].anchors;
			}
			return resource;
		}
	return -1;
}

static int
hex_value(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : ((c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1);
}

static char *
percent_decode(Arena *arena, const char *s, size_t *len)
{
	char *out = dsv3_gr_arena_alloc(arena, *len + 1);
	size_t n = 0;

	for (size_t i = 0; i < *len; i++)
		if (s[i] == '%' && i + 2 < *len && hex_value(s[i + 1]) >= 0 && hex_value(s[i + 2]) >= 0)
		{
			out[n++] = (char) (hex_value(s[i + 1]) * 16 + hex_value(s[i + 2]));
			i += 2;
		}
		else
			out[n++] = s[i];
	*len = n;
	return out;
}

/* Follow a JSON pointer; *resource follows embedded resources. */
static Json *
follow_pointer(SchemaDoc *doc, Json *at, const char *pointer, size_t len, int32_t *resource)
{
	size_t i = 0;

	while (i < len && at != NULL)
	{
		char *token = dsv3_gr_arena_alloc(doc->ctx->arena, len - i + 1);
		uint32_t n = 0;

		if (at->schema_seen && at->resource >= 0)
			*resource = at->resource;
		for (i++; i < len && pointer[i] != '/'; i++)
			if (pointer[i] == '~' && i + 1 < len && (pointer[i + 1] == '0' || pointer[i + 1] == '1'))
				token[n++] = pointer[++i] == '0' ? '~' : '/';
			else
				token[n++] = pointer[i];
		if (at->kind == JSON_OBJECT_)
			at = dsv3_gr_json_get_n(at, token, n);
		else if (at->kind == JSON_ARRAY_)
		{
			char *end;
			unsigned long index = strtoul(token, &end, 10);

			at = *end == '\0' && n > 0 && index < at->n ? at->u.items[index] : NULL;
		}
		else
			at = NULL;
	}
	return at;
}

Json *
dsv3_gr_schema_reference(SchemaDoc *doc, const Json *schema, const char *kind, int32_t env)
{
	const char *ref = string_member(schema, kind);
	const char *base = schema->resource < 0 ? "" : doc->resources[schema->resource].uri;
	const char *uri;
	const char *hash;
	Json *target = NULL;
	int32_t resource;
	bool dynamic = false;

	doc->ctx->at = schema;
	doc->ctx->keyword = kind;
	if (ref == NULL)
		dsv3_gr_fail(doc->ctx, DSV3_ERR_INVALID_PARAMETER, NULL, "reference is not a string");
	if (strlen(ref) > 8192)
		dsv3_gr_fail(doc->ctx, DSV3_ERR_TOO_LARGE, NULL, "reference is longer than 8192 bytes");
	hash = strchr(ref, '#');
	uri = hash == ref ? base : uri_resolve(doc->ctx->arena, base, ref);
	resource = hash == ref ? schema->resource : find_resource(doc, uri);
	if (resource < 0)
		dsv3_gr_fail(doc->ctx, DSV3_ERR_UNSUPPORTED,
					 "Put the referenced schema into this document, under \"$defs\".",
					 "reference \"%.200s\" leads out of the schema", ref);
	if (hash == NULL || hash[1] == '\0')
		target = doc->resources[resource].root;
	else
	{
		size_t len = strlen(hash + 1);
		char *fragment = percent_decode(doc->ctx->arena, hash + 1, &len);

		if (fragment[0] == '/')
			target = follow_pointer(doc, doc->resources[resource].root, fragment, len, &resource);
		else
			for (Anchor *a = doc->resources[resource].anchors; a != NULL; a = a->next)
			{
				gr_tick(doc->ctx);
				if (strcmp(a->name, fragment) == 0)
				{
					target = a->schema;
					dynamic = a->dynamic;
					if (dynamic)
						break;
				}
			}
		if (target != NULL && dynamic && strcmp(kind, "$dynamicRef") == 0)
		{
			int32_t n;
			const int32_t *scope = interner_key(&doc->envs, env, &n);

			for (int32_t i = 0; i < n; i++)
				for (Anchor *a = doc->resources[scope[i]].anchors; a != NULL; a = a->next)
				{
					gr_tick(doc->ctx);
					if (a->dynamic && strcmp(a->name, fragment) == 0)
						return a->schema;
				}
		}
	}
	if (target == NULL)
		dsv3_gr_fail(doc->ctx, DSV3_ERR_INVALID_PARAMETER, "The target must exist in the schema.",
					 "reference \"%.200s\" leads nowhere", ref);
	if (strcmp(kind, "$recursiveRef") == 0 && doc->resources[resource].recursive)
	{
		int32_t n;
		const int32_t *scope = interner_key(&doc->envs, env, &n);

		for (int32_t i = 0; i < n; i++)
			if (doc->resources[scope[i]].recursive)
				return doc->resources[scope[i]].root;
	}
	if (!target->schema_seen)
		dsv3_gr_schema_index(doc, target, resource);
	if (target->kind != JSON_OBJECT_ && target->kind != JSON_TRUE_ && target->kind != JSON_FALSE_)
		dsv3_gr_fail(doc->ctx, DSV3_ERR_INVALID_PARAMETER, NULL,
					 "reference \"%.200s\" leads to something not a schema", ref);
	return target;
}
