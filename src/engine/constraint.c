/*
 * constraint.c
 *	  The grammar store and the constraint of a sequence; see constraint.h.
 *
 * The store's lock is held while a grammar is compiled: the second row of a query that asks for the same schema then waits
 * for it instead of compiling it again. Giving a grammar back takes no lock: the scheduler's thread does it between steps.
 * Compiling is bounded in time and memory by the grammar layer. Grammars nobody uses leave, the longest unused first, when
 * there are more than MOST_GRAMMARS or they hold more than MOST_BYTES together.
 */
#include "engine/constraint.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>
#include <openssl/evp.h>

#define MOST_GRAMMARS 128
#define MOST_BYTES    ((size_t) 256 << 20)
#define KEY_BYTES     32 /* SHA-256 */

/* A row is listed when at most one id in so many is allowed: a list is worth it while it leaves most panels of the output
 * matrix alone. */
#define LIST_SHARE 32
/* Tokens that the same bytes may begin with; with more of them allowed nothing is forced, and it is not looked for. */
#define MOST_SPELLINGS 256
/* Forced bytes looked at for drafts. */
#define FORCED_BYTES 64

typedef struct StoredGrammar
{
	uint8_t key[KEY_BYTES];
	Dsv3Grammar *grammar;
	atomic_int users; /* rises under the store's lock only, so that what is found unused there stays unused */
	struct StoredGrammar *next; /* most recently used first */
} StoredGrammar;

struct Dsv3GrammarStore
{
	pthread_mutex_t lock; /* guards everything below */
	Dsv3TokenTable *table;
	StoredGrammar *first;
};

Dsv3GrammarStore *
dsv3_grammar_store_open(Dsv3Error *err)
{
	Dsv3GrammarStore *store = calloc(1, sizeof(*store));
	uint8_t digest[EVP_MAX_MD_SIZE];

	/* OpenSSL reads its configuration when it is first used, which the sandbox would stop later on. */
	if (EVP_Digest("", 0, digest, NULL, EVP_sha256(), NULL) != 1)
	{
		free(store);
		dsv3_error(err, DSV3_ERR_INTERNAL, "SHA-256 is not available");
		return NULL;
	}
	if (store == NULL || pthread_mutex_init(&store->lock, NULL) != 0)
	{
		free(store);
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for the grammar store");
		return NULL;
	}
	return store;
}

static void
free_stored(StoredGrammar *stored)
{
	dsv3_grammar_free(stored->grammar);
	free(stored);
}

void
dsv3_grammar_store_close(Dsv3GrammarStore *store)
{
	if (store == NULL)
		return;
	while (store->first)
	{
		StoredGrammar *stored = store->first;

		store->first = stored->next;
		free_stored(stored);
	}
	dsv3_token_table_free(store->table);
	pthread_mutex_destroy(&store->lock);
	free(store);
}

/* Make the token table of the backend's vocabulary; lock held. */
static bool
make_table(Dsv3GrammarStore *store, Dsv3Backend *backend, Dsv3Error *err)
{
	int n = backend->sample_limit;
	int32_t eos = backend->info.n_eos > 0 ? backend->info.eos_ids[0] : -1;
	Dsv3TokenBytes *tokens = calloc((size_t) n, sizeof(*tokens));

	if (tokens == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for the vocabulary");
	for (int id = 0; id < n; id++)
	{
		size_t len = 0;

		tokens[id].bytes = backend->ops->token_bytes(backend, id, &len, &tokens[id].special);
		tokens[id].len = (uint32_t) len;
	}
	store->table = dsv3_token_table_create(tokens, n, eos, err);
	free(tokens);
	return store->table != NULL;
}

/* SHA-256 over everything compiling depends on. */
static bool
make_key(const Dsv3Request *request, uint8_t key[KEY_BYTES], Dsv3Error *err)
{
	uint32_t options[4] = {request->grammar_kind, request->whitespace, request->key_order,
						   request->closed_objects};
	EVP_MD_CTX *ctx = EVP_MD_CTX_new();
	bool ok = ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) &&
			  EVP_DigestUpdate(ctx, options, sizeof(options)) &&
			  EVP_DigestUpdate(ctx, request->grammar.data, request->grammar.len) &&
			  EVP_DigestFinal_ex(ctx, key, NULL);

	EVP_MD_CTX_free(ctx);
	return ok || dsv3_error(err, DSV3_ERR_INTERNAL, "SHA-256 is not available");
}

/* Drop what is over the limits; lock held. */
static void
trim(Dsv3GrammarStore *store)
{
	StoredGrammar **link = &store->first;
	size_t bytes = 0;
	int count = 0;

	while (*link)
	{
		StoredGrammar *stored = *link;

		bytes += dsv3_grammar_memory(stored->grammar);
		count++;
		if (atomic_load(&stored->users) == 0 && (count > MOST_GRAMMARS || bytes > MOST_BYTES))
		{
			*link = stored->next;
			free_stored(stored);
		}
		else
			link = &stored->next;
	}
}

static bool
is_aborted(void *arg)
{
	const Dsv3Request *request = arg;

	return request->abort_flag && atomic_load(request->abort_flag);
}

static StoredGrammar *
compile(Dsv3GrammarStore *store, const Dsv3Request *request, const uint8_t key[KEY_BYTES], Dsv3Error *err)
{
	Dsv3GrammarOptions options = {
		.whitespace = (Dsv3Whitespace) request->whitespace,
		.key_order = (Dsv3KeyOrder) request->key_order,
		.closed_objects = request->closed_objects,
		.cancelled = is_aborted,
		.cancel_arg = (void *) (uintptr_t) request,
	};
	StoredGrammar *stored = calloc(1, sizeof(*stored));

	if (stored == NULL)
	{
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for a grammar");
		return NULL;
	}
	stored->grammar = dsv3_grammar_compile(store->table, (Dsv3GrammarKind) request->grammar_kind,
										   request->grammar.data, request->grammar.len, &options, NULL, err);
	if (stored->grammar == NULL)
	{
		free(stored);
		return NULL;
	}
	memcpy(stored->key, key, KEY_BYTES);
	return stored;
}

/* Find or compile, and count the use. */
static StoredGrammar *
use_grammar(Dsv3GrammarStore *store, Dsv3Backend *backend, const Dsv3Request *request, Dsv3Error *err)
{
	uint8_t key[KEY_BYTES];
	StoredGrammar *found = NULL;

	if (!make_key(request, key, err))
		return NULL;
	pthread_mutex_lock(&store->lock);
	if (store->table || make_table(store, backend, err))
	{
		StoredGrammar **link = &store->first;

		trim(store); /* before the search: what is found stays */
		while (*link && memcmp((*link)->key, key, KEY_BYTES) != 0)
			link = &(*link)->next;
		found = *link;
		if (found)
			*link = found->next;
		else
			found = compile(store, request, key, err);
		if (found)
		{
			found->next = store->first;
			store->first = found;
			atomic_fetch_add(&found->users, 1);
		}
	}
	pthread_mutex_unlock(&store->lock);
	return found; /* NOLINT(clang-analyzer-unix.Malloc): trim frees nothing that has a user */
}

static size_t
mask_words(const Dsv3Constraint *constraint)
{
	return ((size_t) constraint->n_ids + 63) / 64;
}

/* The mask of a row, until a later one is planned; the first row's stays. */
static uint64_t *
mask_of(const Dsv3Constraint *constraint, int row)
{
	return constraint->allowed + (row > 0 ? mask_words(constraint) : 0);
}

/* The memory of plans: a list of ids and logits for each row. */
static bool
allocate_plan(Dsv3Constraint *constraint, Dsv3Error *err)
{
	size_t rows = DSV3_MOST_DRAFTS + 1;
	size_t listed = (size_t) constraint->most_listed;
	int32_t *ids = malloc(rows * listed * sizeof(*ids));
	float *logits = malloc(rows * listed * sizeof(*logits));

	constraint->picked = calloc(rows, sizeof(*constraint->picked));
	constraint->drafts = calloc(DSV3_MOST_DRAFTS, sizeof(*constraint->drafts));
	constraint->row_narrowed = calloc(rows, sizeof(*constraint->row_narrowed));
	constraint->allowed = calloc(2 * mask_words(constraint), sizeof(uint64_t));
	if (ids == NULL || logits == NULL || constraint->picked == NULL || constraint->drafts == NULL ||
		constraint->row_narrowed == NULL || constraint->allowed == NULL)
	{
		free(ids);
		free(logits);
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for a mask");
	}
	for (size_t i = 0; i < rows; i++)
		constraint->picked[i] = (Dsv3Picked){.ids = ids + i * listed, .logits = logits + i * listed};
	return true;
}

Dsv3Constraint *
dsv3_constraint_open(Dsv3Backend *backend, const Dsv3Request *request, Dsv3Error *err)
{
	Dsv3Constraint *constraint = calloc(1, sizeof(*constraint));

	if (constraint == NULL)
	{
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for a constraint");
		return NULL;
	}
	constraint->n_ids = backend->sample_limit;
	constraint->most_listed = backend->sample_limit / LIST_SHARE + 1;
	constraint->stored = use_grammar(backend->grammars, backend, request, err);
	if (constraint->stored)
	{
		constraint->grammar = constraint->stored->grammar;
		constraint->matcher = dsv3_matcher_create(constraint->grammar, err);
	}
	if (constraint->matcher == NULL || !allocate_plan(constraint, err))
	{
		dsv3_constraint_close(constraint);
		return NULL;
	}
	return constraint;
}

void
dsv3_constraint_close(Dsv3Constraint *constraint)
{
	if (constraint == NULL)
		return;
	dsv3_matcher_free(constraint->matcher);
	if (constraint->picked)
	{
		free((void *) (uintptr_t) constraint->picked[0].ids);
		free(constraint->picked[0].logits);
	}
	free(constraint->picked);
	free(constraint->drafts);
	free(constraint->row_narrowed);
	free(constraint->allowed);
	dsv3_text_free(&constraint->answer);
	if (constraint->stored)
		atomic_fetch_sub(&constraint->stored->users, 1);
	free(constraint);
}

/* The ids of a mask, in order. */
static void
list_allowed(const uint64_t *allowed, size_t n_words, int32_t *ids)
{
	for (size_t word = 0; word < n_words; word++)
	{
		for (uint64_t bits = allowed[word]; bits != 0; bits &= bits - 1)
			*ids++ = (int32_t) (word * 64) + __builtin_ctzll(bits);
	}
}

/* Mask of plan row `row`, and its list unless `whole` or too long; *count tokens are allowed. */
static bool
plan_row(Dsv3Constraint *constraint, int row, size_t remaining, bool whole, int32_t *count, Dsv3Error *err)
{
	Dsv3Picked *picked = &constraint->picked[row];
	int32_t budget = remaining > INT32_MAX ? INT32_MAX : (int32_t) remaining;

	if (!dsv3_matcher_mask(constraint->matcher, budget, mask_of(constraint, row), count,
						   &constraint->row_narrowed[row], err))
		return false;
	if (*count == 0)
	{
		dsv3_error(err, DSV3_ERR_UNSUPPORTED,
				   "the model's tokenizer cannot write a character the schema requires");
		return dsv3_error_hint(err, "Leave characters above U+3FFFF out of the schema's own strings.");
	}
	picked->n = whole || *count > constraint->most_listed ? 0 : *count;
	if (picked->n > 0)
		list_allowed(mask_of(constraint, row), mask_words(constraint), (int32_t *) (uintptr_t) picked->ids);
	return true;
}

/* The tokenizer's spelling of the bytes that must come next, as far as the model could not reach across its end; at most
 * DSV3_MOST_DRAFTS. A failure to encode is a spelling of nothing. */
static int
spell_forced(Dsv3Constraint *constraint, Dsv3Backend *backend, int32_t *ids)
{
	char bytes[FORCED_BYTES];
	size_t len = dsv3_matcher_forced(constraint->matcher, bytes, sizeof(bytes));
	Dsv3Tokens tokens = {0};
	Dsv3Error err;
	int n = 0;

	/* Not into the middle of a character. */
	while (len > 0 && ((unsigned char) bytes[len - 1] & 0xC0) == 0x80)
		len--;
	if (len > 0 && (unsigned char) bytes[len - 1] >= 0xC0)
		len--;
	if (len > 0 && backend->ops->encode(backend, bytes, len, 0, &tokens, &err))
		n = dsv3_matcher_forced_tokens(constraint->matcher, tokens.ids, (int32_t) tokens.count);
	n = n < DSV3_MOST_DRAFTS ? n : DSV3_MOST_DRAFTS;
	if (n > 0)
		memcpy(ids, tokens.ids, (size_t) n * sizeof(*ids));
	dsv3_tokens_free(&tokens);
	return n;
}

/*
 * Put a draft behind plan row `row` and plan the row of its own, of which *count tokens are allowed. False when the grammar does not
 * have it, or nothing of the answer would come behind it, or the row cannot be planned, which is left to a step of its own; then
 * everything is as before.
 */
static bool
add_draft(Dsv3Constraint *constraint, Dsv3Backend *backend, int row, int32_t draft, size_t remaining,
		  bool whole, int32_t *count)
{
	Dsv3Error failure;

	if (draft < 0 || !(mask_of(constraint, row)[draft / 64] >> (draft % 64) & 1) ||
		draft == dsv3_token_table_eos(backend->grammars->table) ||
		!dsv3_matcher_accept(constraint->matcher, draft, &failure))
		return false;
	if (dsv3_matcher_must_stop(constraint->matcher) ||
		!plan_row(constraint, row + 1, remaining - (size_t) row - 1, whole, count, &failure))
	{
		dsv3_matcher_rollback(constraint->matcher, 1);
		return false;
	}
	constraint->drafts[row] = draft;
	return true;
}

bool
dsv3_constraint_plan(Dsv3Constraint *constraint, Dsv3Backend *backend, size_t remaining, bool whole,
					 Dsv3Error *err)
{
	int32_t spelling[DSV3_MOST_DRAFTS];
	int n_spelling = 0;
	int32_t count = 0;
	int row = 0;

	constraint->n_drafts = constraint->row = 0;
	if (!plan_row(constraint, 0, remaining, whole, &count, err))
		return false;
	if (!whole && count > 1 && count <= MOST_SPELLINGS)
		n_spelling = spell_forced(constraint, backend, spelling);
	while (constraint->picked[row].n > 0 && row < DSV3_MOST_DRAFTS && remaining - (size_t) row > 1)
	{
		int32_t draft = count == 1 ? constraint->picked[row].ids[0] : row < n_spelling ? spelling[row] : -1;

		if (!add_draft(constraint, backend, row, draft, remaining, false, &count))
			break;
		row++;
	}
	dsv3_matcher_rollback(constraint->matcher, row);
	constraint->n_drafts = row;
	return true;
}

/* Sample from a row of the plan. */
static bool
pick_row(Dsv3Constraint *constraint, int row, Dsv3Sampler *sampler, const Dsv3Sampling *sampling,
		 const Dsv3SeenIds *seen, const float *logits, uint64_t index, int32_t *id, Dsv3Error *err)
{
	const Dsv3Picked *picked = &constraint->picked[row];

	return picked->n > 0
			   ? dsv3_sampler_pick_listed(sampler, sampling, seen, picked->ids, picked->logits, picked->n,
										  index, id, err)
			   : dsv3_sampler_pick(sampler, sampling, seen, logits, mask_of(constraint, row), index, id, err);
}

bool
dsv3_constraint_pick(Dsv3Constraint *constraint, Dsv3Sampler *sampler, const Dsv3Sampling *sampling,
					 const Dsv3SeenIds *seen, const float *logits, uint64_t index, int32_t *id,
					 Dsv3Error *err)
{
	int row = constraint->row++;

	constraint->narrowed = constraint->narrowed || constraint->row_narrowed[row];
	return pick_row(constraint, row, sampler, sampling, seen, logits, index, id, err);
}

bool
dsv3_constraint_guess(Dsv3Constraint *constraint, Dsv3Backend *backend, Dsv3Sampler *sampler,
					  const Dsv3Sampling *sampling, const Dsv3SeenIds *seen, const float *logits,
					  uint64_t index, size_t remaining, bool whole)
{
	int32_t count, id;
	Dsv3Error failure;

	if (!pick_row(constraint, 0, sampler, sampling, seen, logits, index, &id, &failure) ||
		!add_draft(constraint, backend, 0, id, remaining, whole, &count))
		return false;
	dsv3_matcher_rollback(constraint->matcher, 1);
	constraint->n_drafts = 1;
	return true;
}

bool
dsv3_constraint_accept(Dsv3Constraint *constraint, int32_t id, bool *ended, Dsv3Error *err)
{
	Dsv3Error failure = {0};

	if (!dsv3_matcher_accept(constraint->matcher, id, &failure))
	{
		if (failure.sqlstate[0] == '\0')
			return dsv3_error(err, DSV3_ERR_INTERNAL, "token %d is not allowed by the grammar", id);
		*err = failure;
		return false;
	}
	*ended = dsv3_matcher_must_stop(constraint->matcher);
	return true;
}

bool
dsv3_constraint_check(Dsv3Constraint *constraint, Dsv3Error *err)
{
	const Dsv3Text *answer = &constraint->answer;
	Dsv3Error failure = {0};

	if (dsv3_grammar_validate(constraint->grammar, answer->data ? answer->data : "", answer->len, &failure) ||
		strcmp(failure.sqlstate, DSV3_ERR_INTERNAL) != 0)
		return true;
	dsv3_error(err, DSV3_ERR_INTERNAL, "the %s", failure.message);
	dsv3_error_detail(err,
					  "The decoder wrote it, and the check of finished answers found that it must not be.");
	return dsv3_error_hint(err, "This is a defect of dsv3. Please report the schema and the prompt.");
}

/* Append the JSON text of an object that is given up here. */
static bool
append_json(json_t *object, Dsv3Text *json, Dsv3Error *err)
{
	char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
	bool ok = text ? dsv3_text_append(json, text, strlen(text), err)
				   : dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for an answer");

	free(text);
	json_decref(object);
	return ok;
}

bool
dsv3_constraint_describe(Dsv3Constraint *constraint, Dsv3Text *json, Dsv3Error *err)
{
	json_t *notices = json_array();
	const char *message;
	const char *pointer;
	const char *keyword;

	for (int32_t i = 0; (message = dsv3_grammar_notice(constraint->grammar, i, &pointer, &keyword)) != NULL;
		 i++)
		json_array_append_new(notices, json_pack("{s:s, s:s, s:s}", "pointer", pointer, "keyword", keyword,
												 "message", message));
	return append_json(json_pack("{s:i, s:o}", "shortest", (int) dsv3_grammar_shortest(constraint->grammar),
								 "notices", notices),
					   json, err);
}

bool
dsv3_constraint_accepts(Dsv3Constraint *constraint, const char *text, size_t len, Dsv3Text *json,
						Dsv3Error *err)
{
	Dsv3Error failure = {0};
	size_t taken = 0;
	bool accepted = dsv3_matcher_accept_bytes(constraint->matcher, text, len, &taken, &failure);

	if (failure.sqlstate[0] != '\0')
	{
		*err = failure;
		return false;
	}
	accepted = accepted && dsv3_matcher_is_complete(constraint->matcher);
	return append_json(json_pack("{s:b, s:I}", "accepted", (int) accepted, "offset", (json_int_t) taken),
					   json, err);
}
