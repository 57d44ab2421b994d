/*
 * moe.c
 *	  The feed-forward half of a layer: dense SwiGLU, or DeepSeekMoE.
 *
 * DeepSeek-V3 report, equations 12-16 (V2: section 2.2, equations 20-22): for a normed row u
 *	y = sum over chosen k of g_k FFN_k(u) + FFN_shared(u),	FFN(u) = down (silu(gate u) * up u),
 * with scores, weights and the choice by dsv3_route. The router product, sigmoid or softmax are F32 whatever the
 * weights' type.
 *
 * A batch's (row, slot) pairs are counting-sorted by expert, so that each expert's rows form one product; its input rows are
 * picked in place by index. Outputs stay apart, and a row's sum is then taken in slot order (falling score) with one fma a
 * term, from +0, before the shared output is added: the order depends on the row alone, not on who else is in the batch.
 */
#include <math.h>
#include <string.h>

#include "model/impl.h"

typedef struct MoeWork
{
	Dsv3Model *model;
	const Dsv3LayerWeights *w;
	int layer;
	Dsv3RouteParams route;
	bool shared;
} MoeWork;

/* Write down what was chosen for the row, where its sequence asks for that. */
static void
record_row(const MoeWork *work, int64_t row, const float *scores)
{
	const Dsv3Config *c = work->model->config;
	const Dsv3BatchRow *r = &work->model->scratch.row[row];
	const int32_t *chosen = work->model->scratch.chosen + row * c->n_experts_per_token;
	Dsv3Chosen *out =
		r->seq->routing + ((int64_t) r->position * c->n_layers + work->layer) * c->n_experts_per_token;

	for (int k = 0; k < c->n_experts_per_token; k++)
	{
		float score = scores[chosen[k]];

		out[k] =
			(Dsv3Chosen){.expert = chosen[k],
						 .score = score,
						 .biased = work->w->router_bias ? score + work->w->router_bias[chosen[k]] : score};
	}
}

/* One row: scores to chosen experts and weights. */
static void
route_row(void *arg, int64_t row)
{
	MoeWork *work = arg;
	const Dsv3Config *c = work->model->config;
	const Dsv3Ops *ops = work->model->ops;
	Dsv3Scratch *s = &work->model->scratch;
	float *scores = s->scores + row * c->n_routed_experts;

	if (c->routing == DSV3_ROUTING_NOAUX_TC)
		ops->sigmoid(scores, c->n_routed_experts, scores);
	else
		ops->softmax(scores, c->n_routed_experts, scores);
	dsv3_route(&work->route, scores, work->w->router_bias, s->chosen + row * c->n_experts_per_token,
			   s->weights + row * c->n_experts_per_token, s->route_scratch + row * 3 * c->n_routed_experts);
	/* The layer behind the last one drafts, and is not part of the answer. */
	if (work->layer < c->n_layers && s->row[row].seq->routing)
		record_row(work, row, scores);
}

/* One row: x += sum of weighted expert outputs, then shared output. */
static void
combine_row(void *arg, int64_t row)
{
	MoeWork *work = arg;
	const Dsv3Config *c = work->model->config;
	Dsv3Scratch *s = &work->model->scratch;
	int64_t width = c->hidden_size;
	/* the normed input is no longer needed: its row holds the sum */
	float *sum = s->h.data + row * width;
	float *x = s->x + row * width;
	const float *shared = s->out + row * width;

	memset(sum, 0, (size_t) width * sizeof(float));
	for (int k = 0; k < c->n_experts_per_token; k++)
	{
		int64_t slot = row * c->n_experts_per_token + k;

		work->model->ops->axpy(s->weights[slot], s->expert_out + s->place[slot] * width, c->hidden_size, sum);
	}
	if (work->shared)
		for (int64_t i = 0; i < width; i++)
			sum[i] += shared[i];
	for (int64_t i = 0; i < width; i++)
		x[i] += sum[i];
}

static void
add_row(void *arg, int64_t row)
{
	MoeWork *work = arg;
	Dsv3Scratch *s = &work->model->scratch;
	int64_t width = work->model->config->hidden_size;
	float *x = s->x + row * width;
	const float *out = s->out + row * width;

	for (int64_t i = 0; i < width; i++)
		x[i] += out[i];
}

/* Sort the slots of all rows by expert: expert_first, place and sorted_rows. Adds to the layer's counts. */
static void
group_by_expert(Dsv3Model *model, int layer, int n_rows)
{
	const Dsv3Config *c = model->config;
	Dsv3Scratch *s = &model->scratch;
	int n_experts = c->n_routed_experts;
	int64_t slots = (int64_t) n_rows * c->n_experts_per_token;
	int32_t *first = s->expert_first;

	/* first[e + 1] counts, then becomes the running start of expert e, which ends as the start of e + 1 */
	memset(first, 0, ((size_t) n_experts + 1) * sizeof(*first));
	for (int64_t i = 0; i < slots; i++)
		first[s->chosen[i] + 1]++;
	for (int e = 0; e < n_experts; e++)
	{
		if (first[e + 1] > 0)
			atomic_fetch_add_explicit(&model->expert_counts[(int64_t) layer * n_experts + e],
									  (uint_least64_t) first[e + 1], memory_order_relaxed);
	}
	for (int e = 0; e < n_experts; e++)
		first[e + 1] += first[e];
	for (int64_t i = 0; i < slots; i++)
	{
		int32_t at = first[s->chosen[i]]++;

		s->place[i] = at;
		s->sorted_rows[at] = (int32_t) (i / c->n_experts_per_token);
	}
	/* every start has moved to the next expert's */
	memmove(first + 1, first, (size_t) n_experts * sizeof(*first));
	first[0] = 0;
}

static void
moe(Dsv3Model *model, int layer, int n_rows)
{
	const Dsv3Config *c = model->config;
	const Dsv3LayerWeights *w = &model->checkpoint->weights.layers[layer];
	Dsv3Scratch *s = &model->scratch;
	bool v3 = c->routing == DSV3_ROUTING_NOAUX_TC;
	Dsv3Weight router = {
		.type = DSV3_TYPE_F32, .out = c->n_routed_experts, .in = c->hidden_size, .data = w->router};
	MoeWork work = {.model = model,
					.w = w,
					.layer = layer,
					.route = {.n_experts = c->n_routed_experts,
							  .n_chosen = c->n_experts_per_token,
							  .n_group = c->routing == DSV3_ROUTING_GREEDY ? 1 : c->n_group,
							  .topk_group = c->topk_group,
							  .group_top2 = v3,
							  .masked_score = v3 ? -INFINITY : 0.0f,
							  .normalise = c->norm_topk_prob,
							  .scaling = c->routed_scaling_factor},
					.shared = c->n_shared_experts > 0};
	Dsv3Product score = {.weight = &router,
						 .x = dsv3_act_rows(&s->h),
						 .m = n_rows,
						 .y = s->scores,
						 .ldy = c->n_routed_experts};
	int n = 0;

	dsv3_linear(model, &score, 1);
	dsv3_pool_run(model->pool, n_rows, route_row, &work);
	group_by_expert(model, layer, n_rows);

	/* The shared expert first: it is the longest single piece. */
	if (work.shared)
	{
		Dsv3Act out = s->gate;

		out.width = w->shared.gate.out;
		s->mlps[n++] =
			(Dsv3Mlp1){.mlp = &w->shared, .x = dsv3_act_rows(&s->h), .m = n_rows, .out = out, .up = s->up};
	}
	for (int e = 0; e < c->n_routed_experts; e++)
	{
		int32_t first = s->expert_first[e];
		Dsv3Rows x = dsv3_act_rows(&s->h);

		if (s->expert_first[e + 1] == first)
			continue;
		x.index = s->sorted_rows + first;
		s->mlps[n++] = (Dsv3Mlp1){.mlp = &w->experts[e],
								  .x = x,
								  .m = s->expert_first[e + 1] - first,
								  .out = dsv3_act_from(&s->expert_gate, first),
								  .up = s->expert_up + first * s->expert_gate.width};
	}
	dsv3_gate_up(model, s->mlps, n);

	for (int i = 0; i < n; i++)
	{
		Dsv3Mlp1 *mlp = &s->mlps[i];
		bool shared = mlp->mlp == &w->shared;

		s->products[i] = (Dsv3Product){
			.weight = &mlp->mlp->down,
			.x = dsv3_act_rows(&mlp->out),
			.m = mlp->m,
			.y = shared ? s->out : s->expert_out + (mlp->x.index - s->sorted_rows) * c->hidden_size,
			.ldy = c->hidden_size};
	}
	dsv3_linear(model, s->products, n);
	dsv3_pool_run(model->pool, n_rows, combine_row, &work);
}

void
dsv3_mlp(Dsv3Model *model, int layer, int n_rows)
{
	const Dsv3LayerWeights *w = &model->checkpoint->weights.layers[layer];
	Dsv3Scratch *s = &model->scratch;
	MoeWork work = {.model = model};
	Dsv3Mlp1 dense;
	Dsv3Product down;

	if (w->moe)
	{
		moe(model, layer, n_rows);
		return;
	}
	dense = (Dsv3Mlp1){.mlp = &w->dense, .x = dsv3_act_rows(&s->h), .m = n_rows, .out = s->gate, .up = s->up};
	dense.out.width = w->dense.gate.out;
	dsv3_gate_up(model, &dense, 1);
	down = (Dsv3Product){.weight = &w->dense.down,
						 .x = dsv3_act_rows(&dense.out),
						 .m = n_rows,
						 .y = s->out,
						 .ldy = model->config->hidden_size};
	dsv3_linear(model, &down, 1);
	dsv3_pool_run(model->pool, n_rows, add_row, &work);
}
