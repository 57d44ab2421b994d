/*
 * linear.c
 *	  Matrix products shared out over the pool.
 *
 * A section is a list of independent products; each is cut along its output columns into slices of about equal cost, and
 * all slices of the list go to the pool as one loop. Cutting changes no bit (ops.h).
 */
#include "model/impl.h"

/* Multiply-adds below which a slice is not worth handing to another thread. */
#define MIN_SLICE_COST    32768
#define SLICES_PER_THREAD 4

Dsv3Rows
dsv3_act_rows(const Dsv3Act *act)
{
	return (Dsv3Rows){.data = act->data,
					  .stride = act->width,
					  .codes = act->codes,
					  .code_scales = act->scales,
					  .code_stride = act->code_width,
					  .scale_stride = act->scale_width,
					  .blocks = act->blocks,
					  .block_stride = act->block_width};
}

Dsv3Act
dsv3_act_from(const Dsv3Act *act, int64_t row)
{
	Dsv3Act a = *act;

	a.data += row * a.width;
	if (a.codes)
	{
		a.codes += row * a.code_width;
		a.scales += row * a.scale_width;
	}
	if (a.blocks)
		a.blocks += row * a.block_width;
	return a;
}

/* Columns first .. first + n - 1 of a row; first is a multiple of 128. */
static void
quantise_columns(const Dsv3Ops *ops, const Dsv3Act *act, int64_t row, int first, int n)
{
	const float *data = act->data + row * act->width + first;

	if (act->codes)
		ops->quantise(data, n, act->codes + row * act->code_width + first,
					  act->scales + row * act->scale_width + first / DSV3_INT8_GROUP);
	if (act->blocks)
		ops->quantise8(data, n, act->blocks + row * act->block_width + first / DSV3_BLOCK);
}

void
dsv3_act_quantise(const Dsv3Ops *ops, const Dsv3Act *act, int64_t row)
{
	quantise_columns(ops, act, row, 0, (int) act->width);
}

/* Columns per slice: a multiple of `unit`, costing about `target`. */
static int
chunk_columns(int out, int64_t column_cost, int64_t target, int unit)
{
	int64_t columns = (target + column_cost - 1) / column_cost;

	columns = (columns + unit - 1) / unit * unit;
	return columns < out ? (int) columns : out;
}

static int64_t
target_cost(const Dsv3Model *model, int64_t total)
{
	int64_t target = total / ((int64_t) dsv3_pool_threads(model->pool) * SLICES_PER_THREAD);

	return target > MIN_SLICE_COST ? target : MIN_SLICE_COST;
}

typedef struct LinearWork
{
	const Dsv3Ops *ops;
	Dsv3Product *products;
	int n;
} LinearWork;

static void
linear_slice(void *arg, int64_t slice)
{
	LinearWork *work = arg;
	int lo = 0, hi = work->n - 1;
	Dsv3Product *p;
	int n0, n1;

	/* the last product that starts at or before the slice */
	while (lo < hi)
	{
		int mid = (lo + hi + 1) / 2;

		if (work->products[mid].first_slice <= slice)
			lo = mid;
		else
			hi = mid - 1;
	}
	p = &work->products[lo];
	n0 = (int) (slice - p->first_slice) * p->chunk;
	n1 = p->weight->out - n0 > p->chunk ? n0 + p->chunk : p->weight->out;
	work->ops->matmul(p->weight, &p->x, p->m, n0, n1, p->y + n0, p->ldy);
}

void
dsv3_linear(Dsv3Model *model, Dsv3Product *products, int n)
{
	LinearWork work = {.ops = model->ops, .products = products, .n = n};
	int64_t total = 0, target, slices = 0;

	for (int i = 0; model->watch && i < n; i++)
		model->watch(model->watch_context, products[i].weight, &products[i].x, products[i].m);
	for (int i = 0; i < n; i++)
		total += (int64_t) products[i].m * products[i].weight->in * products[i].weight->out;
	target = target_cost(model, total);
	for (int i = 0; i < n; i++)
	{
		Dsv3Product *p = &products[i];
		int64_t cost = (int64_t) p->m * p->weight->in;

		/* 48: whole panels of 16 and whole tiles of 3 and 6 */
		p->chunk = chunk_columns(p->weight->out, cost > 0 ? cost : 1, target, p->m > 4 ? 48 : 16);
		p->first_slice = slices;
		slices += (p->weight->out + p->chunk - 1) / p->chunk;
	}
	dsv3_pool_run(model->pool, slices, linear_slice, &work);
}

typedef struct GateUpWork
{
	const Dsv3Ops *ops;
	Dsv3Mlp1 *mlps;
	int n;
} GateUpWork;

static void
gate_up_slice(void *arg, int64_t slice)
{
	GateUpWork *work = arg;
	int lo = 0, hi = work->n - 1;
	Dsv3Mlp1 *p;
	int n0, n1;

	while (lo < hi)
	{
		int mid = (lo + hi + 1) / 2;

		if (work->mlps[mid].first_slice <= slice)
			lo = mid;
		else
			hi = mid - 1;
	}
	p = &work->mlps[lo];
	n0 = (int) (slice - p->first_slice) * p->chunk;
	n1 = p->mlp->gate.out - n0 > p->chunk ? n0 + p->chunk : p->mlp->gate.out;
	work->ops->matmul(&p->mlp->gate, &p->x, p->m, n0, n1, p->out.data + n0, p->out.width);
	work->ops->matmul(&p->mlp->up, &p->x, p->m, n0, n1, p->up + n0, p->out.width);
	for (int i = 0; i < p->m; i++)
	{
		float *gate = p->out.data + i * p->out.width + n0;

		work->ops->silu_mul(gate, p->up + i * p->out.width + n0, n1 - n0, gate);
		quantise_columns(work->ops, &p->out, i, n0, n1 - n0);
	}
}

void
dsv3_gate_up(Dsv3Model *model, Dsv3Mlp1 *mlps, int n)
{
	GateUpWork work = {.ops = model->ops, .mlps = mlps, .n = n};
	int64_t total = 0, target, slices = 0;

	for (int i = 0; model->watch && i < n; i++)
		model->watch(model->watch_context, &mlps[i].mlp->gate, &mlps[i].x, mlps[i].m);
	for (int i = 0; i < n; i++)
		total += 2 * (int64_t) mlps[i].m * mlps[i].mlp->gate.in * mlps[i].mlp->gate.out;
	target = target_cost(model, total);
	for (int i = 0; i < n; i++)
	{
		Dsv3Mlp1 *p = &mlps[i];
		int64_t cost = 2 * (int64_t) p->m * p->mlp->gate.in;
		/* a slice of what is quantised is whole groups */
		int unit = p->out.codes || p->out.blocks ? DSV3_BLOCK : p->m > 4 ? 48 : 16;

		p->chunk = chunk_columns(p->mlp->gate.out, cost > 0 ? cost : 1, target, unit);
		p->first_slice = slices;
		slices += (p->mlp->gate.out + p->chunk - 1) / p->chunk;
	}
	dsv3_pool_run(model->pool, slices, gate_up_slice, &work);
}
