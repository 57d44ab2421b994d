/*
 * head.c
 *	  The end of a batch: the last norm and the output matrix, for whole rows of logits and for picked ids.
 *
 * Rows whose logits are wanted whole go through the output matrix together. Of a row with picks only the named rows of the
 * matrix are read: where a grammar leaves few tokens, most of the largest matrix of the model is left alone. Each
 * output is summed by itself in an order of its own (ops.h), so that a logit is the same bits either way.
 */
#include <string.h>

#include "model/impl.h"

/* Multiply-adds of one row of logits that are worth handing to another thread. */
#define SLICE_COST 32768

typedef struct HeadWork
{
	Dsv3Model *model;
	const float *norm;
	const Dsv3Weight *head;
	const Dsv3BatchRow *rows; /* of the wanted rows with picks, each with its first slice */
	int n;
	int ids_per_slice;
} HeadWork;

static void
norm_row(void *arg, int64_t row)
{
	HeadWork *work = arg;
	const Dsv3Ops *ops = work->model->ops;
	const Dsv3Config *c = work->model->config;
	Dsv3Scratch *s = &work->model->scratch;

	ops->rmsnorm(s->x + row * c->hidden_size, work->norm, c->rms_norm_eps, c->hidden_size,
				 s->h.data + row * s->h.width);
	dsv3_act_quantise(ops, &s->h, row);
}

/* How many neighbouring rows of a matrix are computed at once at the least: its panels are not cut. */
static int
panel_rows(const Dsv3Weight *w)
{
	switch (w->type)
	{
		case DSV3_TYPE_F32:
		case DSV3_TYPE_BF16:
		case DSV3_TYPE_F16:
		case DSV3_TYPE_FP8:
			return 1;
		default:
			return DSV3_INT8_ROWS;
	}
}

static void
picked_slice(void *arg, int64_t slice)
{
	HeadWork *work = arg;
	const Dsv3Weight *w = work->head;
	int unit = panel_rows(w);
	int lo = 0, hi = work->n - 1;
	const Dsv3Picked *picked;
	Dsv3Act h;
	Dsv3Rows x;
	int id, end;

	/* the last row that starts at or before the slice */
	while (lo < hi)
	{
		int mid = (lo + hi + 1) / 2;

		if (work->rows[mid].first_slice <= slice)
			lo = mid;
		else
			hi = mid - 1;
	}
	picked = work->rows[lo].picked;
	h = dsv3_act_from(&work->model->scratch.h, work->rows[lo].head_row);
	x = dsv3_act_rows(&h);
	id = (int) (slice - work->rows[lo].first_slice) * work->ids_per_slice;
	end = picked->n - id > work->ids_per_slice ? id + work->ids_per_slice : picked->n;
	while (id < end)
	{
		float panel[DSV3_INT8_ROWS];
		int n0 = picked->ids[id] / unit * unit;
		int n1 = w->out - n0 > unit ? n0 + unit : w->out;

		work->model->ops->matmul(w, &x, 1, n0, n1, panel, unit);
		for (; id < end && picked->ids[id] < n1; id++)
			picked->logits[id] = panel[picked->ids[id] - n0];
	}
}

int64_t
dsv3_head(Dsv3Model *model, const float *norm, const Dsv3Weight *head, int n_rows, float *logits)
{
	const Dsv3Config *c = model->config;
	Dsv3Scratch *s = &model->scratch;
	HeadWork work = {.model = model,
					 .norm = norm,
					 .head = head,
					 .rows = s->row,
					 .ids_per_slice = SLICE_COST / c->hidden_size + 1};
	int64_t slices = 0;
	int n = 0, n_whole = 0;

	/* Wanted rows move to the front of x, in order; those with picks are listed at the front of row. */
	for (int row = 0; row < n_rows; row++)
	{
		const Dsv3Picked *picked = s->row[row].picked;

		if (!s->row[row].wanted)
			continue;
		if (n != row)
			memcpy(s->x + (int64_t) n * c->hidden_size, s->x + (int64_t) row * c->hidden_size,
				   (size_t) c->hidden_size * sizeof(float));
		if (picked)
		{
			s->row[work.n++] = (Dsv3BatchRow){.picked = picked, .head_row = n, .first_slice = slices};
			slices += (picked->n + work.ids_per_slice - 1) / work.ids_per_slice;
		}
		else
			s->whole[n_whole++] = n;
		n++;
	}
	dsv3_pool_run(model->pool, n, norm_row, &work);
	if (n_whole > 0)
	{
		Dsv3Product whole = {
			.weight = head, .x = dsv3_act_rows(&s->h), .m = n_whole, .y = logits, .ldy = c->vocab_size};

		whole.x.index = s->whole;
		dsv3_linear(model, &whole, 1);
	}
	dsv3_pool_run(model->pool, slices, picked_slice, &work);
	return n_whole;
}
