/*
 * mla.c
 *	  Multi-head latent attention (DeepSeek-V3 report, section 2.1.1, equations 1-11; DeepSeek-V2, section 2.1).
 *
 * With h the normed input of a row:
 *	c = RMS(W_DKV h), k^R = RoPE(W_KR h)	into the cache (equations 1, 3; both rows of kv_a)
 *	q = W_UQ RMS(W_DQ h), its last R lanes of each head rotated (6-9), or W_Q h without the low rank
 *	o_t,i = sum over j <= t of softmax_j(scale q_t,i . [k^C_j,i; k^R_j]) v_j,i (10), then W_O (11; in forward.c).
 *
 * Absorbed form (DeepSeek-V2, section 2.1.2: W_UK goes into the query and W_UV behind the sum): with k^C = W_UK c and v = W_UV c
 *	score = scale ([W_UK^T q^C; q^R] . [c_j; k^R_j]),	z = sum of p_j c_j,	o = W_UV z.
 * All heads read the same cache rows, so a cache block is read once for a tile of (row, head) pairs. W_UK^T q walks the
 * rows of kv_b as stored (matmul_t): no transposed copy of the weights exists.
 *
 * Expanded form: k^C and v are computed for each cache block and the score is taken over [k^C; k^R]. It is what transformers
 * computes; here it serves as a check of the other, with the same block order and so the same guarantees.
 *
 * Both walk the cache in blocks of DSV3_KV_BLOCK positions from 0 up, whatever the batch looks like: a row's result depends on its
 * position and on the cache rows before it only.
 */
#include <math.h>
#include <string.h>

#include "model/impl.h"

#define PAIR_TILE 48 /* (row, head) pairs that share one pass over the cache */
#define ROW_CHUNK 64 /* rows of one head in an absorbing product */

_Static_assert(DSV3_KV_BLOCK <= DSV3_ATTEND_MAX, "a cache block is one attention block");

typedef struct Mla
{
	Dsv3Model *model;
	Dsv3Kv *kv;
	const Dsv3LayerWeights *w;
	int layer;
	int nope, rope, latent, value, heads;
	int width;        /* latent + rope */
	int64_t q_width;  /* heads * (nope + rope) */
	int row0, n_rows; /* rows of this attention pass */
	int first;        /* position of the first row that there is: the draft layer has none at 0 */
	bool fill_only;   /* no attention: only the cache rows are made */
	int n_parts;
	int tile;   /* pairs per slice */
	int chunks; /* row chunks per head */
	int units;  /* (head, chunk) units per slice */
	/* expanded form: */
	const Dsv3Segment *part;
	int block;
	const float *rows; /* of the block */
	int block_rows;
} Mla;

/* Rows of a block of the sequence, as many as position `last` and those before it need, as floats. */
static const float *
cache_rows(const Mla *mla, const Dsv3StepSeq *seq, int block, int32_t last)
{
	Dsv3Model *model = mla->model;
	int n_rows = last + 1 - block * DSV3_KV_BLOCK;
	float *buffer = model->scratch.cache_rows;

	if (buffer)
		buffer += (size_t) dsv3_pool_self() * DSV3_KV_BLOCK * (size_t) mla->width;
	return dsv3_kv_read(mla->kv, model->ops, seq->blocks[block], mla->layer,
						n_rows < DSV3_KV_BLOCK ? n_rows : DSV3_KV_BLOCK, buffer);
}

static void
add_bias(float *x, const float *bias, int n)
{
	if (bias)
		for (int i = 0; i < n; i++)
			x[i] += bias[i];
}

/* One row after the first products: the query latent's norm; the cache row. */
static void
latent_row(void *arg, int64_t row)
{
	Mla *mla = arg;
	const Dsv3Config *c = mla->model->config;
	const Dsv3Ops *ops = mla->model->ops;
	Dsv3Scratch *s = &mla->model->scratch;
	float *kv_a = s->kv_a + row * mla->width;
	int32_t position = s->row[row].position;

	if (c->q_lora_rank > 0 && !mla->fill_only)
	{
		float *q_a = s->q_a.data + row * s->q_a.width;

		add_bias(q_a, mla->w->q_a_bias, c->q_lora_rank);
		ops->rmsnorm(q_a, mla->w->q_a_norm, c->latent_norm_eps, c->q_lora_rank, q_a);
		dsv3_act_quantise(ops, &s->q_a, row);
	}
	add_bias(kv_a, mla->w->kv_a_bias, mla->width);
	ops->rmsnorm(kv_a, mla->w->kv_a_norm, c->latent_norm_eps, mla->latent, kv_a);
	dsv3_rope_rotate(kv_a + mla->latent, s->cosine + row * (mla->rope / 2), s->sine + row * (mla->rope / 2),
					 mla->rope / 2, c->rope.interleaved);
	dsv3_kv_write(mla->kv, s->row[row].seq->blocks[position / DSV3_KV_BLOCK], mla->layer,
				  position % DSV3_KV_BLOCK, kv_a);
}

static void
rotate_query(const Mla *mla, int row, int head)
{
	Dsv3Scratch *s = &mla->model->scratch;
	float *q = s->q + row * mla->q_width + head * (mla->nope + mla->rope);

	dsv3_rope_rotate(q + mla->nope, s->cosine + (int64_t) row * (mla->rope / 2),
					 s->sine + (int64_t) row * (mla->rope / 2), mla->rope / 2,
					 mla->model->config->rope.interleaved);
}

/* The rows of one (head, chunk) unit of this pass. */
static void
unit_rows(const Mla *mla, int64_t unit, int *head, int *first, int *count)
{
	*head = (int) (unit / mla->chunks);
	*first = mla->row0 + (int) (unit % mla->chunks) * ROW_CHUNK;
	*count = mla->row0 + mla->n_rows - *first < ROW_CHUNK ? mla->row0 + mla->n_rows - *first : ROW_CHUNK;
}

/* q_latent = [W_UK^T q^C; RoPE q^R] for some heads. */
static void
absorb_slice(void *arg, int64_t slice)
{
	Mla *mla = arg;
	Dsv3Scratch *s = &mla->model->scratch;

	for (int64_t unit = slice * mla->units;
		 unit < (slice + 1) * mla->units && unit < (int64_t) mla->heads * mla->chunks; unit++)
	{
		int head, first, count;
		const float *q;
		float *out;

		unit_rows(mla, unit, &head, &first, &count);
		q = s->q + first * mla->q_width + head * (mla->nope + mla->rope);
		out = s->q_latent + ((int64_t) (first - mla->row0) * mla->heads + head) * mla->width;
		mla->model->ops->matmul_t(&mla->w->kv_b, head * (mla->nope + mla->value), mla->nope, q, mla->q_width,
								  count, out, (int64_t) mla->heads * mla->width);
		for (int i = 0; i < count; i++)
		{
			rotate_query(mla, first + i, head);
			memcpy(out + (int64_t) i * mla->heads * mla->width + mla->latent,
				   q + i * mla->q_width + mla->nope, (size_t) mla->rope * sizeof(float));
		}
	}
}

/* How many rows of block b a position sees, of those behind its first `skip`. */
static int32_t
visible_rows(int32_t position, int b, int skip)
{
	int32_t seen = position + 1 - b * DSV3_KV_BLOCK;

	seen = (seen < DSV3_KV_BLOCK ? seen : DSV3_KV_BLOCK) - skip;
	return seen < 0 ? 0 : seen;
}

/* Attention of a tile of (row, head) pairs of one sequence over all its blocks: z. */
static void
attend_slice(void *arg, int64_t slice)
{
	Mla *mla = arg;
	Dsv3Scratch *s = &mla->model->scratch;
	int lo = 0, hi = mla->n_parts - 1;
	const Dsv3Segment *part;
	int32_t position[PAIR_TILE], visible[PAIR_TILE];
	int64_t pair0, first_pair;
	int n;
	Dsv3Attend a;

	while (lo < hi)
	{
		int mid = (lo + hi + 1) / 2;

		if (s->parts[mid].first_slice <= slice)
			lo = mid;
		else
			hi = mid - 1;
	}
	part = &s->parts[lo];
	pair0 = (slice - part->first_slice) * mla->tile;
	n = (int64_t) part->count * mla->heads - pair0 < mla->tile
			? (int) ((int64_t) part->count * mla->heads - pair0)
			: mla->tile;
	first_pair = (int64_t) (part->first - mla->row0) * mla->heads + pair0;
	for (int i = 0; i < n; i++)
		position[i] = s->row[part->first + (pair0 + i) / mla->heads].position;

	a = (Dsv3Attend){.width = mla->width,
					 .value_width = mla->latent,
					 .scale = mla->model->config->softmax_scale,
					 .key_stride = mla->width,
					 .value_stride = mla->width,
					 .n_queries = n,
					 .q = s->q_latent + first_pair * mla->width,
					 .q_stride = mla->width,
					 .visible = visible,
					 .max = s->max + first_pair,
					 .sum = s->sum + first_pair,
					 .z = s->z + first_pair * mla->latent,
					 .z_stride = mla->latent};
	for (int i = 0; i < n; i++)
	{
		a.max[i] = -INFINITY;
		a.sum[i] = 0.0f;
	}
	memset(a.z, 0, (size_t) n * (size_t) mla->latent * sizeof(float));
	/* positions rise along a part, so the last pair sees the most */
	for (int b = 0; b * DSV3_KV_BLOCK <= position[n - 1]; b++)
	{
		int skip = b == 0 ? mla->first : 0;

		for (int i = 0; i < n; i++)
			visible[i] = visible_rows(position[i], b, skip);
		a.keys = a.values =
			cache_rows(mla, part->seq, b, position[n - 1]) + (size_t) skip * (size_t) mla->width;
		mla->model->ops->attend(&a);
	}
	for (int i = 0; i < n; i++)
	{
		float inverse = 1.0f / a.sum[i];

		for (int k = 0; k < mla->latent; k++)
			a.z[(int64_t) i * mla->latent + k] *= inverse;
	}
}

/* o = W_UV z for some heads. */
static void
value_slice(void *arg, int64_t slice)
{
	Mla *mla = arg;
	Dsv3Scratch *s = &mla->model->scratch;

	for (int64_t unit = slice * mla->units;
		 unit < (slice + 1) * mla->units && unit < (int64_t) mla->heads * mla->chunks; unit++)
	{
		int head, first, count;
		int n0;
		Dsv3Rows x = {.stride = (int64_t) mla->heads * mla->latent};

		unit_rows(mla, unit, &head, &first, &count);
		n0 = head * (mla->nope + mla->value) + mla->nope;
		x.data = s->z + ((int64_t) (first - mla->row0) * mla->heads + head) * mla->latent;
		mla->model->ops->matmul(&mla->w->kv_b, &x, count, n0, n0 + mla->value,
								s->o.data + first * s->o.width + (int64_t) head * mla->value, s->o.width);
	}
}

/* The segments' rows inside this pass, and how many slices of pairs each makes. */
static int64_t
make_parts(Mla *mla, int n_segments)
{
	Dsv3Scratch *s = &mla->model->scratch;
	int64_t slices = 0;

	mla->n_parts = 0;
	for (int i = 0; i < n_segments; i++)
	{
		Dsv3Segment part = s->segments[i];
		int end = part.first + part.count;

		if (part.first < mla->row0)
			part.first = mla->row0;
		if (end > mla->row0 + mla->n_rows)
			end = mla->row0 + mla->n_rows;
		part.count = end - part.first;
		if (part.count <= 0)
			continue;
		part.first_slice = slices;
		slices += ((int64_t) part.count * mla->heads + mla->tile - 1) / mla->tile;
		s->parts[mla->n_parts++] = part;
	}
	return slices;
}

static void
absorbed(Mla *mla, int n_segments)
{
	Dsv3Pool *pool = mla->model->pool;
	int64_t units, slices, pairs = (int64_t) mla->n_rows * mla->heads;
	int threads = dsv3_pool_threads(pool);

	mla->chunks = (mla->n_rows + ROW_CHUNK - 1) / ROW_CHUNK;
	units = (int64_t) mla->heads * mla->chunks;
	mla->units = units > threads * 4 ? (int) (units / (threads * 4)) : 1;
	slices = (units + mla->units - 1) / mla->units;
	/* few pairs: smaller tiles, so that every thread has some */
	mla->tile = pairs >= (int64_t) threads * 2 * PAIR_TILE
					? PAIR_TILE
					: (int) ((pairs + threads * 2 - 1) / (threads * 2));
	mla->tile = (mla->tile + 2) / 3 * 3;

	dsv3_pool_run(pool, slices, absorb_slice, mla);
	dsv3_pool_run(pool, make_parts(mla, n_segments), attend_slice, mla);
	dsv3_pool_run(pool, slices, value_slice, mla);
}

static void
rotate_slice(void *arg, int64_t slice)
{
	Mla *mla = arg;

	for (int head = 0; head < mla->heads; head++)
		rotate_query(mla, mla->row0 + (int) slice, head);
}

/* One head of one part over one expanded block. */
static void
expanded_head(void *arg, int64_t head)
{
	Mla *mla = arg;
	Dsv3Scratch *s = &mla->model->scratch;
	const Dsv3Segment *part = mla->part;
	int key_width = mla->nope + mla->rope;
	int64_t kv_width = (int64_t) mla->heads * (mla->nope + mla->value);
	float *keys = s->expanded_keys + head * DSV3_KV_BLOCK * key_width;
	const float *expanded = s->expanded + head * (mla->nope + mla->value);

	for (int t = 0; t < mla->block_rows; t++)
	{
		memcpy(keys + t * key_width, expanded + t * kv_width, (size_t) mla->nope * sizeof(float));
		memcpy(keys + t * key_width + mla->nope, mla->rows + (int64_t) t * mla->width + mla->latent,
			   (size_t) mla->rope * sizeof(float));
	}
	for (int first = 0; first < part->count; first += PAIR_TILE)
	{
		int n = part->count - first < PAIR_TILE ? part->count - first : PAIR_TILE;
		int skip = mla->block == 0 ? mla->first : 0;
		int64_t row = part->first + first;
		float max[PAIR_TILE], sum[PAIR_TILE];
		int32_t visible[PAIR_TILE];
		int64_t pair = (row - mla->row0) * mla->heads + head;
		Dsv3Attend a = {.width = key_width,
						.value_width = mla->value,
						.scale = mla->model->config->softmax_scale,
						.keys = keys + skip * key_width,
						.key_stride = key_width,
						.values = expanded + mla->nope + skip * kv_width,
						.value_stride = kv_width,
						.n_queries = n,
						.q = s->q + row * mla->q_width + head * key_width,
						.q_stride = mla->q_width,
						.visible = visible,
						.max = max,
						.sum = sum,
						.z = s->z + pair * mla->value,
						.z_stride = (int64_t) mla->heads * mla->value};

		for (int i = 0; i < n; i++)
		{
			visible[i] = visible_rows(s->row[row + i].position, mla->block, skip);
			max[i] = s->max[pair + i * mla->heads];
			sum[i] = s->sum[pair + i * mla->heads];
		}
		mla->model->ops->attend(&a);
		for (int i = 0; i < n; i++)
		{
			s->max[pair + i * mla->heads] = max[i];
			s->sum[pair + i * mla->heads] = sum[i];
		}
	}
}

static void
expanded(Mla *mla, int n_segments)
{
	Dsv3Scratch *s = &mla->model->scratch;
	int64_t pairs = (int64_t) mla->n_rows * mla->heads;

	mla->tile = PAIR_TILE;
	make_parts(mla, n_segments);
	dsv3_pool_run(mla->model->pool, mla->n_rows, rotate_slice, mla);
	for (int64_t i = 0; i < pairs; i++)
	{
		s->max[i] = -INFINITY;
		s->sum[i] = 0.0f;
	}
	memset(s->z, 0, (size_t) (pairs * mla->value) * sizeof(float));
	for (int p = 0; p < mla->n_parts; p++)
	{
		int32_t last = s->row[s->parts[p].first + s->parts[p].count - 1].position;

		mla->part = &s->parts[p];
		for (mla->block = 0; mla->block * DSV3_KV_BLOCK <= last; mla->block++)
		{
			Dsv3Product expand = {.weight = &mla->w->kv_b, .y = s->expanded, .ldy = mla->w->kv_b.out};

			mla->block_rows = last + 1 - mla->block * DSV3_KV_BLOCK;
			if (mla->block_rows > DSV3_KV_BLOCK)
				mla->block_rows = DSV3_KV_BLOCK;
			mla->rows = cache_rows(mla, mla->part->seq, mla->block, last);
			expand.x.data = mla->rows;
			expand.x.stride = mla->width;
			expand.m = mla->block_rows;
			dsv3_linear(mla->model, &expand, 1);
			dsv3_pool_run(mla->model->pool, mla->heads, expanded_head, mla);
		}
	}
	for (int64_t i = 0; i < pairs; i++)
	{
		float inverse = 1.0f / s->sum[i];
		float *o = s->o.data + (int64_t) mla->row0 * s->o.width + i * mla->value;

		for (int k = 0; k < mla->value; k++)
			o[k] = s->z[i * mla->value + k] * inverse;
	}
}

static void
quantise_o(void *arg, int64_t row)
{
	Mla *mla = arg;

	dsv3_act_quantise(mla->model->ops, &mla->model->scratch.o, row);
}

static Mla
make_mla(Dsv3Model *model, Dsv3Kv *kv, int layer)
{
	const Dsv3Config *c = model->config;

	return (Mla){.model = model,
				 .kv = kv,
				 .w = &model->checkpoint->weights.layers[layer],
				 .layer = layer,
				 .nope = c->qk_nope_dim,
				 .rope = c->qk_rope_dim,
				 .latent = c->kv_lora_rank,
				 .value = c->v_dim,
				 .heads = c->n_heads,
				 .width = c->kv_lora_rank + c->qk_rope_dim,
				 .q_width = (int64_t) c->n_heads * (c->qk_nope_dim + c->qk_rope_dim),
				 .first = layer == c->n_layers ? 1 : 0};
}

void
dsv3_mla_fill(Dsv3Model *model, Dsv3Kv *kv, int layer, int n_rows)
{
	Dsv3Scratch *s = &model->scratch;
	Mla mla = make_mla(model, kv, layer);
	Dsv3Product kv_a = {
		.weight = &mla.w->kv_a, .x = dsv3_act_rows(&s->h), .m = n_rows, .y = s->kv_a, .ldy = mla.width};

	mla.fill_only = true;
	dsv3_linear(model, &kv_a, 1);
	dsv3_pool_run(model->pool, n_rows, latent_row, &mla);
}

void
dsv3_mla(Dsv3Model *model, Dsv3Kv *kv, int layer, int n_rows, int n_segments)
{
	const Dsv3Config *c = model->config;
	const Dsv3LayerWeights *w = &model->checkpoint->weights.layers[layer];
	Dsv3Scratch *s = &model->scratch;
	Dsv3Rows h = dsv3_act_rows(&s->h);
	Dsv3Product first[2];
	Dsv3Product out;
	Mla mla = make_mla(model, kv, layer);

	if (c->q_lora_rank > 0)
		first[0] =
			(Dsv3Product){.weight = &w->q_a, .x = h, .m = n_rows, .y = s->q_a.data, .ldy = s->q_a.width};
	else
		first[0] = (Dsv3Product){.weight = &w->q, .x = h, .m = n_rows, .y = s->q, .ldy = mla.q_width};
	first[1] = (Dsv3Product){.weight = &w->kv_a, .x = h, .m = n_rows, .y = s->kv_a, .ldy = mla.width};
	dsv3_linear(model, first, 2);
	dsv3_pool_run(model->pool, n_rows, latent_row, &mla);
	if (c->q_lora_rank > 0)
	{
		Dsv3Product q_b = {
			.weight = &w->q_b, .x = dsv3_act_rows(&s->q_a), .m = n_rows, .y = s->q, .ldy = mla.q_width};

		dsv3_linear(model, &q_b, 1);
	}
	for (mla.row0 = 0; mla.row0 < n_rows; mla.row0 += (int) s->attention_rows)
	{
		mla.n_rows = n_rows - mla.row0 < s->attention_rows ? n_rows - mla.row0 : (int) s->attention_rows;
		if (model->expanded)
			expanded(&mla, n_segments);
		else
			absorbed(&mla, n_segments);
	}
	if (s->o.codes || s->o.blocks)
		dsv3_pool_run(model->pool, n_rows, quantise_o, &mla);
	out = (Dsv3Product){
		.weight = &w->o, .x = dsv3_act_rows(&s->o), .m = n_rows, .y = s->out, .ldy = c->hidden_size};
	dsv3_linear(model, &out, 1);
}
