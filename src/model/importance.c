/*
 * importance.c
 *	  Watching the inputs of products while a text is read; see importance.h.
 *
 * Sums are taken by the thread that calls the step, row after row, so their order is that of the text. gate and up
 * have the same input and share gate's sums.
 */
#include "model/importance.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/impl.h"

#define CONTEXT 512
#define CHUNK   128

/* Rows of the layer's mean that are added to an expert's own. */
#define PRIOR_ROWS 16.0f

/* The least that a column counts, as a share of the mean of all: what the text never brings may come all the same. */
#define FLOOR 0.01f

typedef struct Entry
{
	char *name;
	const void *data; /* where the open model has it */
	int32_t in;
	bool expert;
	float *sums; /* [in], sums of squares; after finish() the means */
	int64_t rows;
} Entry;

struct Dsv3Importance
{
	Entry *entries; /* in the order of the model, after finish() in that of names */
	Entry **by_data;
	int n;
	int room;
	char digest[65];
};

static int
compare_data(const void *a, const void *b)
{
	const Entry *x = *(Entry *const *) a;
	const Entry *y = *(Entry *const *) b;

	return x->data < y->data ? -1 : x->data > y->data;
}

static int
compare_name(const void *a, const void *b)
{
	return strcmp(((const Entry *) a)->name, ((const Entry *) b)->name);
}

static bool
is_up(const char *name)
{
	return strstr(name, ".up_proj.") != NULL;
}

/* Every matrix that is an entry: not an up (it is with its gate), nor the two that no plain product reads. A tied output
 * matrix counts, the embedding at the same address does not. */
static bool
add_part(void *context, const Dsv3Part *part, Dsv3Error *err)
{
	Dsv3Importance *importance = context;
	Entry *entry;

	if (part->matrix.data == NULL || part->role == DSV3_MATRIX_EMBED || part->role == DSV3_MATRIX_KV_B ||
		is_up(part->name))
		return true;
	if (importance->n == importance->room)
	{
		int room = importance->room ? importance->room * 2 : 256;
		Entry *more = realloc(importance->entries, (size_t) room * sizeof(*more));

		if (more == NULL)
			return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for importance weights");
		importance->entries = more;
		importance->room = room;
	}
	entry = &importance->entries[importance->n];
	*entry = (Entry){.name = strdup(part->name),
					 .data = part->matrix.data,
					 .in = part->matrix.in,
					 .expert = part->role == DSV3_MATRIX_EXPERT,
					 .sums = calloc((size_t) part->matrix.in, sizeof(float))};
	importance->n++;
	if (entry->name == NULL || entry->sums == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for importance weights");
	return true;
}

/* The rows that go into a product. */
static void
watch(void *context, const Dsv3Weight *weight, const Dsv3Rows *x, int m)
{
	Dsv3Importance *importance = context;
	Entry key = {.data = weight->data};
	const Entry *key_pointer = &key;
	Entry **found =
		bsearch(&key_pointer, importance->by_data, (size_t) importance->n, sizeof(Entry *), compare_data);
	Entry *entry;

	if (found == NULL)
		return;
	entry = *found;
	for (int i = 0; i < m; i++)
	{
		const float *row = x->data + (x->index ? x->index[i] : i) * x->stride;

		for (int32_t k = 0; k < entry->in; k++)
			entry->sums[k] += row[k] * row[k];
	}
	entry->rows += m;
}

static bool
read_text(Dsv3Model *model, const int32_t *ids, size_t n, int32_t bos, Dsv3Error *err)
{
	int context = CONTEXT < model->config->max_positions ? CONTEXT : model->config->max_positions;
	int32_t blocks[CONTEXT / DSV3_KV_BLOCK];
	int32_t piece[CONTEXT];
	int lead = bos >= 0 ? 1 : 0;
	Dsv3Kv *kv = dsv3_kv_open(model, CONTEXT / DSV3_KV_BLOCK, err);
	float *logits = malloc((size_t) model->config->vocab_size * sizeof(float));
	bool ok = kv != NULL;

	if (ok && logits == NULL)
		ok = dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for importance weights");
	for (int i = 0; i < CONTEXT / DSV3_KV_BLOCK; i++)
		blocks[i] = i;
	piece[0] = bos;
	for (size_t at = 0; ok && at < n; at += (size_t) (context - lead))
	{
		int count = n - at < (size_t) (context - lead) ? (int) (n - at) : context - lead;

		memcpy(piece + lead, ids + at, (size_t) count * sizeof(*ids));
		count += lead;
		for (int first = 0; ok && first < count; first += CHUNK)
		{
			Dsv3StepSeq seq = {.tokens = piece + first,
							   .n_tokens = count - first < CHUNK ? count - first : CHUNK,
							   .position = first,
							   .blocks = blocks,
							   .n_blocks = CONTEXT / DSV3_KV_BLOCK,
							   .want = DSV3_WANT_LAST};

			ok = dsv3_model_step(model, kv, &seq, 1, logits, NULL, err);
		}
	}
	free(logits);
	dsv3_kv_close(kv);
	return ok;
}

/* Sums of the experts of a layer for the same place, first .. end - 1 in steps of `step`, become means. */
static void
mean_of_experts(Entry *first, Entry *end, int step, float *layer)
{
	int64_t rows = 0;

	memset(layer, 0, (size_t) first->in * sizeof(*layer));
	for (Entry *e = first; e < end; e += step)
	{
		rows += e->rows;
		for (int32_t k = 0; k < e->in; k++)
			layer[k] += e->sums[k];
	}
	for (Entry *e = first; e < end; e += step)
	{
		for (int32_t k = 0; k < e->in; k++)
			e->sums[k] = (e->sums[k] + PRIOR_ROWS * layer[k] / (float) (rows ? rows : 1)) /
						 ((float) e->rows + PRIOR_ROWS);
	}
}

/* No column counts nothing, and a matrix that the text has not reached counts evenly. */
static void
lift(Entry *e)
{
	float mean = 0;

	for (int32_t k = 0; k < e->in; k++)
		mean += e->sums[k] / (float) e->in;
	for (int32_t k = 0; k < e->in; k++)
		e->sums[k] = mean > 0 ? e->sums[k] + FLOOR * mean : 1;
}

static bool
finish(Dsv3Importance *importance, Dsv3Error *err)
{
	EVP_MD_CTX *sha = EVP_MD_CTX_new();
	unsigned char digest[32];
	int32_t widest = 1;
	float *layer;
	bool ok;

	for (int i = 0; i < importance->n; i++)
		widest = importance->entries[i].in > widest ? importance->entries[i].in : widest;
	layer = malloc((size_t) widest * sizeof(*layer));
	ok = layer && sha && EVP_DigestInit_ex(sha, EVP_sha256(), NULL) == 1;
	/* parts come in order: a layer's experts without others between them, each gate, then down */
	for (int i = 0; ok && i < importance->n;)
	{
		Entry *e = &importance->entries[i];
		Entry *end = e;

		if (!e->expert)
		{
			for (int32_t k = 0; k < e->in; k++)
				e->sums[k] /= (float) (e->rows ? e->rows : 1);
			i++;
			continue;
		}
		while (end < importance->entries + importance->n && end->expert)
			end += 2;
		mean_of_experts(e, end, 2, layer);
		mean_of_experts(e + 1, end + 1, 2, layer);
		i += (int) (end - e);
	}
	for (int i = 0; ok && i < importance->n; i++)
	{
		Entry *e = &importance->entries[i];

		lift(e);
		ok = EVP_DigestUpdate(sha, e->name, strlen(e->name) + 1) == 1 &&
			 EVP_DigestUpdate(sha, e->sums, (size_t) e->in * sizeof(float)) == 1;
	}
	ok = ok && EVP_DigestFinal_ex(sha, digest, NULL) == 1;
	EVP_MD_CTX_free(sha);
	free(layer);
	if (!ok)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for importance weights");
	for (int i = 0; i < 32; i++)
		snprintf(importance->digest + 2 * i, 3, "%02x", digest[i]);
	qsort(importance->entries, (size_t) importance->n, sizeof(Entry), compare_name);
	return true;
}

/* The entries in order of address, as watch() needs them. */
static bool
sort_by_data(Dsv3Importance *importance, Dsv3Error *err)
{
	importance->by_data = malloc((size_t) (importance->n ? importance->n : 1) * sizeof(Entry *));
	if (importance->by_data == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for importance weights");
	for (int i = 0; i < importance->n; i++)
		importance->by_data[i] = &importance->entries[i];
	qsort(importance->by_data, (size_t) importance->n, sizeof(Entry *), compare_data);
	return true;
}

Dsv3Importance *
dsv3_importance_open(const char *model_dir, const int32_t *ids, size_t n, int32_t bos, int threads,
					 Dsv3Error *err)
{
	Dsv3Importance *importance = calloc(1, sizeof(*importance));
	Dsv3ModelOptions options = {.threads = threads, .part = add_part, .part_context = importance};
	Dsv3Model *model;
	bool ok;

	if (importance == NULL)
	{
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for importance weights");
		return NULL;
	}
	model = dsv3_model_open(model_dir, &options, err);
	ok = model && sort_by_data(importance, err);
	if (ok)
	{
		model->watch = watch;
		model->watch_context = importance;
		ok = read_text(model, ids, n, bos, err) && finish(importance, err);
	}
	dsv3_model_close(model);
	if (ok)
		return importance;
	dsv3_importance_close(importance);
	return NULL;
}

void
dsv3_importance_close(Dsv3Importance *importance)
{
	if (importance == NULL)
		return;
	for (int i = 0; i < importance->n; i++)
	{
		free(importance->entries[i].name);
		free(importance->entries[i].sums);
	}
	free(importance->entries);
	free(importance->by_data);
	free(importance);
}

const float *
dsv3_importance_of(const Dsv3Importance *importance, const char *name)
{
	char gate[256];
	const char *up = strstr(name, ".up_proj.");
	Entry key = {.name = (char *) name};
	const Entry *entry;

	if (up)
	{
		snprintf(gate, sizeof(gate), "%.*s.gate_proj.%s", (int) (up - name), name, up + strlen(".up_proj."));
		key.name = gate;
	}
	entry = bsearch(&key, importance->entries, (size_t) importance->n, sizeof(Entry), compare_name);
	return entry ? entry->sums : NULL;
}

const char *
dsv3_importance_digest(const Dsv3Importance *importance)
{
	return importance->digest;
}
