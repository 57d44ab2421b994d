/*
 * backend.h
 *	  What the scheduler runs on: a model, its tokenizer and its chat template behind one table.
 *
 * Two backends exist. backend_model.c opens a checkpoint (model, text). backend_test.c is a model without files: bytes
 * for tokens and an answer that can be told from the prompt; the tests of everything above run on it. The scheduler
 * cannot tell them apart.
 *
 * A backend is immutable once open, apart from the cache and the scratch memory of step (one caller thread, the
 * scheduler's). The text functions may be called by any thread at any time.
 */
#ifndef DSV3_BACKEND_H
#define DSV3_BACKEND_H

#include "model/model.h"
#include "text/template.h"
#include "text/tokenizer.h"

typedef struct Dsv3Backend Dsv3Backend;
typedef struct Dsv3GrammarStore Dsv3GrammarStore; /* constraint.h */

typedef struct Dsv3BackendOps
{
	void (*close)(Dsv3Backend *backend);

	/* Make the cache; once, before the first step. */
	bool (*kv_open)(Dsv3Backend *backend, int n_blocks, Dsv3Error *err);

	/* The rows of a block, kv_block_bytes. */
	void *(*kv_block)(Dsv3Backend *backend, int32_t block);

	/* As dsv3_model_touch. */
	int64_t (*touch)(Dsv3Backend *backend, int64_t from, int64_t *total);

	/* As dsv3_model_step. */
	bool (*step)(Dsv3Backend *backend, const Dsv3StepSeq *seqs, int n_seqs, float *logits,
				 const atomic_bool *abort_flag, Dsv3Error *err);

	/* As dsv3_model_draft; called only when info.drafts. */
	bool (*draft)(Dsv3Backend *backend, const Dsv3StepSeq *seqs, const int *rows, int n_seqs, float *logits,
				  Dsv3Error *err);

	/* Ids of plain text, nothing added. */
	bool (*encode)(Dsv3Backend *backend, const char *text, size_t len, size_t max_tokens, Dsv3Tokens *out,
				   Dsv3Error *err);

	/* As dsv3_template_raw, dsv3_template_render, dsv3_template_opens_think, dsv3_template_parse_answer. */
	bool (*raw)(Dsv3Backend *backend, const char *text, size_t len, size_t max_tokens, Dsv3Tokens *out,
				Dsv3Error *err);
	bool (*render)(Dsv3Backend *backend, const char *messages, size_t messages_len, const char *tools,
				   size_t tools_len, Dsv3Think think, size_t max_tokens, Dsv3Tokens *out, Dsv3Error *err);
	bool (*opens_think)(Dsv3Backend *backend, Dsv3Think think);
	bool (*parse_answer)(Dsv3Backend *backend, const char *answer, size_t len, bool opened_think,
						 Dsv3Text *reasoning, Dsv3Text *content, Dsv3Text *tool_calls, Dsv3Error *err);

	/* The bytes of an id below sample_limit, NULL when it has none; whether it is a special token. */
	const char *(*token_bytes)(Dsv3Backend *backend, int32_t id, size_t *len, bool *special);

	/* As the dsv3_decoder_ functions; the decoder's tokenizer is not looked at by every backend. */
	void (*decoder_init)(Dsv3Backend *backend, Dsv3Decoder *decoder, bool skip_special);
	bool (*decoder_feed)(Dsv3Backend *backend, Dsv3Decoder *decoder, int32_t id, Dsv3Text *out,
						 Dsv3Error *err);
	bool (*decoder_finish)(Dsv3Backend *backend, Dsv3Decoder *decoder, Dsv3Text *out, Dsv3Error *err);
} Dsv3BackendOps;

struct Dsv3Backend
{
	const Dsv3BackendOps *ops;
	Dsv3ModelInfo info;
	Dsv3WeightMode weight_mode; /* as asked for */
	Dsv3KvType kv_type;
	size_t kv_block_bytes;
	int sample_limit; /* ids from here on are padding rows of the output matrix: never sampled, never accepted */
	int32_t think_open; /* ids of the tags around the thinking part, -1 without */
	int32_t think_close;
	bool
		writes_think; /* the prompt leaves it to the model to open the thinking part, and the model always does */
	Dsv3GrammarStore *grammars;                 /* made and closed with the backend */
	const char *template_name;                  /* "none" when only raw prompts are possible */
	const atomic_uint_least64_t *expert_counts; /* [n_layers][n_routed_experts], or NULL */
};

typedef struct Dsv3BackendOptions
{
	Dsv3WeightMode weights;
	Dsv3KvType kv;
	int threads;
	const char *isa;
	bool drafts; /* load the draft layer, if there is one; the next as in Dsv3ModelOptions */
	bool draft_before_norm;
} Dsv3BackendOptions;

/* Open by path: "test:..." is the built-in test model, everything else a model directory. */
extern Dsv3Backend *dsv3_backend_open(const char *path, const Dsv3BackendOptions *options, Dsv3Error *err);
extern void dsv3_backend_close(Dsv3Backend *backend);

/* "stored", "f32", "bf16", "int8" to a weight mode; 22023 otherwise. */
extern bool dsv3_backend_weights(const char *name, Dsv3WeightMode *mode, Dsv3Error *err);

/* "f32", "bf16", "int8" to a type of cache rows; 22023 otherwise. */
extern bool dsv3_backend_kv(const char *name, Dsv3KvType *type, Dsv3Error *err);

/* Decode a whole run of ids to valid UTF-8 (invalid parts become U+FFFD); an id out of range fails with 22023. */
extern bool dsv3_backend_decode(Dsv3Backend *backend, const int32_t *ids, size_t count, bool skip_special,
								Dsv3Text *out, Dsv3Error *err);

extern Dsv3Backend *dsv3_backend_test_open(const char *options, Dsv3Error *err);
extern Dsv3Backend *
dsv3_backend_model_open(const char *path, const Dsv3BackendOptions *options, Dsv3Error *err);

#define DSV3_TEST_PREFIX "test:"

#endif /* DSV3_BACKEND_H */
