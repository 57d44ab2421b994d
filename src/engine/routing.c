/*
 * routing.c
 *	  Which experts a prompt's tokens go to; see routing.h.
 */
#include "engine/routing.h"

#include <stdlib.h>
#include <string.h>

#include <jansson.h>

static size_t
records_of_token(const Dsv3Sequence *seq)
{
	return (size_t) seq->backend->info.n_layers * (size_t) seq->backend->info.n_experts_per_token;
}

bool
dsv3_routing_open(Dsv3Sequence *seq, Dsv3Error *err)
{
	size_t n;

	if (seq->backend->info.n_routed_experts == 0)
	{
		dsv3_error(err, DSV3_ERR_UNSUPPORTED, "the model has no routed experts");
		return dsv3_error_hint(err, "See dsv3_model_info().");
	}
	if (seq->n_prompt == 0)
		return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "the prompt has no tokens");
	if (seq->n_prompt > DSV3_MAX_ROUTING_TOKENS)
	{
		dsv3_error(err, DSV3_ERR_TOO_LARGE, "routing is shown of at most %d tokens, the prompt has %zu",
				   DSV3_MAX_ROUTING_TOKENS, seq->n_prompt);
		return dsv3_error_hint(err, "Shorten the prompt.");
	}
	/* Rows that are found in a cache pass no router. */
	free(seq->request->scope.data);
	seq->request->scope = (Dsv3Bytes){0};
	n = seq->n_prompt * records_of_token(seq);
	seq->routing = malloc(n * sizeof(*seq->routing));
	if (seq->routing == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for routing");
	for (size_t i = 0; i < n; i++)
		seq->routing[i].expert = -1; /* stays in dense layers */
	seq->n_limit = seq->score_from = seq->n_prompt;
	seq->finish = DSV3_FINISH_STOP;
	return true;
}

/* The choices of one layer, token by token; NULL: it has no router. */
static json_t *
layer_json(const Dsv3Sequence *seq, int layer)
{
	size_t n_chosen = (size_t) seq->backend->info.n_experts_per_token;
	const Dsv3Chosen *first = seq->routing + (size_t) layer * n_chosen;
	json_t *tokens;

	if (first->expert < 0)
		return NULL;
	tokens = json_array();
	for (size_t i = 0; i < seq->n_prompt; i++)
	{
		json_t *chosen = json_array();

		for (size_t k = 0; k < n_chosen; k++)
		{
			const Dsv3Chosen *c = &first[i * records_of_token(seq) + k];

			json_array_append_new(
				chosen, json_pack("[i, f, f]", (int) c->expert, (double) c->score, (double) c->biased));
		}
		json_array_append_new(tokens, chosen);
	}
	return json_pack("{s:i, s:o}", "layer", layer, "chosen", tokens);
}

static bool
add_texts(const Dsv3Sequence *seq, json_t *texts, Dsv3Error *err)
{
	bool ok = true;

	for (size_t i = 0; ok && i < seq->n_prompt; i++)
	{
		Dsv3Text text = {0};

		ok = dsv3_backend_decode(seq->backend, &seq->tokens.ids[i], 1, false, &text, err);
		if (ok)
			json_array_append_new(texts, json_stringn(text.data ? text.data : "", text.len));
		dsv3_text_free(&text);
	}
	return ok;
}

bool
dsv3_routing_json(Dsv3Sequence *seq, Dsv3Error *err)
{
	json_t *texts = json_array();
	json_t *layers = json_array();
	json_t *page = json_pack("{s:i, s:o, s:o}", "experts", seq->backend->info.n_routed_experts, "tokens",
							 texts, "layers", layers);
	bool ok = add_texts(seq, texts, err);
	char *text = NULL;

	for (int layer = 0; ok && layer < seq->backend->info.n_layers; layer++)
	{
		json_t *choices = layer_json(seq, layer);

		if (choices)
			json_array_append_new(layers, choices);
	}
	if (ok)
	{
		text = json_dumps(page, JSON_COMPACT | JSON_REAL_PRECISION(6));
		ok = text ? dsv3_text_append(&seq->out_text, text, strlen(text), err)
				  : dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for routing");
	}
	free(text);
	json_decref(page);
	return ok;
}
