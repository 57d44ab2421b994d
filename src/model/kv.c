/*
 * kv.c
 *	  The latent cache: a pool of fixed blocks.
 *
 * A row is what MLA needs of a position in one layer (DeepSeek-V3 report, equations 1 and 3, the boxed vectors): the latent
 * after its norm, C numbers, then the shared key after its rotation, R numbers, in the lane order of the checkpoint; kv_rows.c says in
 * which bits. A block holds
 * DSV3_KV_BLOCK consecutive positions of one sequence in every layer, layer by layer, and with a draft layer the state that
 * dsv3_kv_state (impl.h) tells of. The memory is mapped, so blocks
 * never used cost nothing.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "model/impl.h"

/* Layers that have rows: the draft layer's too. */
static int
n_layers(const Dsv3Model *model)
{
	return model->config->n_layers + (model->info.drafts ? 1 : 0);
}

size_t
dsv3_kv_block_bytes(const Dsv3Model *model)
{
	const Dsv3Config *c = model->config;
	size_t row = dsv3_kv_row_bytes(model->kv_type, c->kv_lora_rank, c->qk_rope_dim);
	size_t state = model->info.drafts ? (size_t) c->hidden_size + 1 : 0;

	return (size_t) n_layers(model) * DSV3_KV_BLOCK * row + state * sizeof(float);
}

Dsv3Kv *
dsv3_kv_open(const Dsv3Model *model, int n_blocks, Dsv3Error *err)
{
	const Dsv3Config *c = model->config;
	Dsv3Kv *kv;
	size_t bytes;

	if (n_blocks < 1)
	{
		dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "a cache needs at least one block, not %d", n_blocks);
		return NULL;
	}
	kv = calloc(1, sizeof(*kv));
	if (kv)
		kv->writer = malloc((size_t) n_blocks * sizeof(*kv->writer));
	if (!kv || !kv->writer || __builtin_mul_overflow((size_t) n_blocks, dsv3_kv_block_bytes(model), &bytes))
		goto out_of_memory;
	kv->n_blocks = n_blocks;
	kv->n_layers = n_layers(model);
	kv->width = c->kv_lora_rank + c->qk_rope_dim;
	kv->type = model->kv_type;
	kv->latent = c->kv_lora_rank;
	kv->row_bytes = dsv3_kv_row_bytes(kv->type, c->kv_lora_rank, c->qk_rope_dim);
	kv->layer_bytes = (size_t) DSV3_KV_BLOCK * kv->row_bytes;
	kv->block_bytes = dsv3_kv_block_bytes(model);
	for (int i = 0; i < n_blocks; i++)
		kv->writer[i] = -1;
	kv->data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (kv->data == MAP_FAILED)
	{
		kv->data = NULL;
		goto out_of_memory;
	}
	kv->mapped_bytes = bytes;
	return kv;

out_of_memory:
	dsv3_kv_close(kv);
	dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for a cache of %d blocks", n_blocks);
	dsv3_error_hint(err, "One block takes %zu bytes.", dsv3_kv_block_bytes(model));
	return NULL;
}

void
dsv3_kv_close(Dsv3Kv *kv)
{
	if (!kv)
		return;
	if (kv->data)
		munmap(kv->data, kv->mapped_bytes);
	free(kv->writer);
	free(kv);
}

void *
dsv3_kv_block(Dsv3Kv *kv, int32_t block)
{
	return dsv3_kv_layer(kv, block, 0);
}

int
dsv3_kv_blocks(const Dsv3Kv *kv)
{
	return kv->n_blocks;
}
