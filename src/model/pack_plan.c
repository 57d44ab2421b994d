/*
 * pack_plan.c
 *	  Which pieces a pack gets, in which types and places; see pack_plan.h.
 *
 * When no pattern of the user decides, the rules of mix.h do. Vectors and routers are always F32.
 */
#include "model/pack_plan.h"

#include <fnmatch.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/quant.h"
#include "model/convert.h"
#include "model/json_file.h"
#include "model/mix.h"

#define MAX_SMALL_FILE ((int64_t) 256 * 1024 * 1024)
#define FP8_BLOCK      128

static const char *const small_files[] = {
	"config.json",    "generation_config.json", "tokenizer.json",
	"tiktoken.model", "tokenizer_config.json",  "chat_template.jinja",
};

#define N_SMALL_FILES (sizeof(small_files) / sizeof(small_files[0]))

static const char *const form_names[] = {"stored", "f32", "bf16", "int8", "int6", "int4"};

bool
dsv3_pack_form(const char *name, Dsv3PackForm *form)
{
	for (size_t i = 0; i < sizeof(form_names) / sizeof(form_names[0]); i++)
	{
		if (strcmp(name, form_names[i]) == 0)
		{
			*form = (Dsv3PackForm) i;
			return true;
		}
	}
	return false;
}

int64_t
dsv3_pack_row_bytes(int pack_type, int64_t rows, int64_t in)
{
	return dsv3_pack_tensor_bytes(pack_type, 2, (const int64_t[]){rows, in});
}

/* A new item at the end of the plan; NULL and *err. */
static Dsv3PackItem *
add_item(Dsv3PackPlan *plan, const char *name, int pack_type, int n_dims, const int64_t *dims, int64_t bytes,
		 Dsv3Error *err)
{
	Dsv3PackItem *item;

	if (plan->n_items == plan->n_room)
	{
		int room = plan->n_room ? plan->n_room * 2 : 256;
		Dsv3PackItem *more =
			room <= DSV3_PACK_MAX_PIECES ? realloc(plan->items, (size_t) room * sizeof(*more)) : NULL;

		if (more == NULL)
		{
			dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory planning a pack");
			return NULL;
		}
		plan->items = more;
		plan->n_room = room;
	}
	item = &plan->items[plan->n_items];
	memset(item, 0, sizeof(*item));
	item->piece.name = strdup(name);
	if (item->piece.name == NULL)
	{
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory planning a pack");
		return NULL;
	}
	plan->n_items++;
	item->piece.type = pack_type;
	item->piece.n_dims = n_dims;
	for (int d = 0; d < n_dims; d++)
		item->piece.dims[d] = dims[d];
	item->piece.bytes = bytes;
	item->piece.offset = dsv3_pack_align(plan->end);
	plan->end = item->piece.offset + bytes;
	return item;
}

static bool
add_vector(Dsv3PackPlan *plan, const char *name, int n_dims, const int64_t *dims, const float *vector,
		   Dsv3Error *err)
{
	int64_t n = n_dims == 2 ? dims[0] * dims[1] : dims[0];
	Dsv3PackItem *item = add_item(plan, name, DSV3_PACK_F32, n_dims, dims, n * 4, err);

	if (item)
		item->vector = vector;
	return item != NULL;
}

/* What a form makes of a matrix stored as that type. */
static Dsv3Type
type_of(Dsv3PackForm form, Dsv3Type stored)
{
	static const Dsv3Type types[] = {[DSV3_FORM_F32] = DSV3_TYPE_F32,
									 [DSV3_FORM_BF16] = DSV3_TYPE_BF16,
									 [DSV3_FORM_INT8] = DSV3_TYPE_INT8,
									 [DSV3_FORM_INT6] = DSV3_TYPE_S6,
									 [DSV3_FORM_INT4] = DSV3_TYPE_A4};

	return form == DSV3_FORM_STORED ? stored : types[form];
}

/* What the user's patterns or else the rules make of a matrix. */
static Dsv3Type
target_type(Dsv3PackPlan *plan, const Dsv3Part *part)
{
	Dsv3Type type = dsv3_mix_type(plan->options->bits, part->role, part->matrix.type);

	for (int i = 0; i < plan->options->n_rules; i++)
	{
		if (fnmatch(plan->options->rules[i].pattern, part->name, 0) == 0)
		{
			type = type_of(plan->options->rules[i].form, part->matrix.type);
			plan->rule_used[i] = true;
		}
	}
	return type;
}

/* One tensor of the model, in the order in which the model is opened. */
static bool
add_part(void *context, const Dsv3Part *part, Dsv3Error *err)
{
	Dsv3PackPlan *plan = context;
	Dsv3PackItem *item;
	Dsv3Type type;
	int pack_type;

	if (part->matrix.data == NULL)
		return add_vector(plan, part->name, part->n_dims, part->dims, part->vector, err);
	type = target_type(plan, part);
	pack_type = (int) dsv3_pack_type_of(type);
	if (dsv3_type_is_packed(type) && dsv3_mix_by_rows(part->role))
	{
		dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "\"%s\" cannot be packed as %s", part->name,
				   dsv3_pack_type_name(pack_type));
		return dsv3_error_hint(err, "Its rows are read one by one: use stored, bf16 or f32.");
	}
	/* A tied output matrix of the type that the embedding has is not written a second time. */
	for (int i = 0; part->role == DSV3_MATRIX_HEAD && i < plan->n_items; i++)
	{
		if (plan->items[i].source.data == part->matrix.data && plan->items[i].piece.type == pack_type)
			return true;
	}
	item = add_item(plan, part->name, pack_type, 2, part->dims,
					dsv3_pack_tensor_bytes(pack_type, 2, part->dims), err);
	if (item == NULL)
		return false;
	item->source = part->matrix;
	item->type = type;
	if (plan->options->importance)
		item->importance = dsv3_importance_of(plan->options->importance, part->name);
	if (type == DSV3_TYPE_FP8)
	{
		int64_t dims[2] = {(part->dims[0] + FP8_BLOCK - 1) / FP8_BLOCK,
						   (part->dims[1] + FP8_BLOCK - 1) / FP8_BLOCK};
		char name[DSV3_PACK_MAX_NAME + 16];

		snprintf(name, sizeof(name), "%s_scale_inv", part->name);
		return add_vector(plan, name, 2, dims, part->matrix.scales, err);
	}
	return true;
}

/* A small file; text becomes the plan's. */
static bool
add_text(Dsv3PackPlan *plan, const char *name, char *text, size_t len, Dsv3Error *err)
{
	Dsv3PackItem *item = add_item(plan, name, DSV3_PACK_FILE, 0, NULL, (int64_t) len, err);

	if (item == NULL)
		free(text);
	else
		item->text = text;
	return item != NULL;
}

static bool
add_files(Dsv3PackPlan *plan, const char *model_dir, Dsv3Error *err)
{
	for (size_t i = 0; i < N_SMALL_FILES; i++)
	{
		Dsv3Error problem;
		size_t len;
		char *text = dsv3_read_file(model_dir, small_files[i], MAX_SMALL_FILE, &len, &problem);

		if (text == NULL && strcmp(problem.sqlstate, DSV3_ERR_NO_FILE) != 0)
		{
			*err = problem;
			return false;
		}
		if (text && !add_text(plan, small_files[i], text, len, err))
			return false;
	}
	return true;
}

/* pack.json says what was asked for, and of which model. */
static bool
add_description(Dsv3PackPlan *plan, Dsv3Error *err)
{
	const Dsv3PackOptions *options = plan->options;
	json_t *rules = json_array();
	json_t *root;
	char *text;

	for (int i = 0; i < options->n_rules; i++)
		json_array_append_new(
			rules, json_pack("[s, s]", options->rules[i].pattern, form_names[options->rules[i].form]));
	root = json_pack("{s:s, s:i, s:o}", "source", plan->checkpoint->info.digest, "bits", options->bits,
					 "rules", rules);
	if (root && options->importance)
		json_object_set_new(root, "importance", json_string(dsv3_importance_digest(options->importance)));
	text = root ? json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
	json_decref(root);
	if (text == NULL)
	{
		dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "the rules of the pack are not UTF-8 text");
		return false;
	}
	return add_text(plan, "pack.json", text, strlen(text), err);
}

unsigned char *
dsv3_pack_plan_directory(const Dsv3PackPlan *plan, size_t *len, Dsv3Error *err)
{
	Dsv3PackPiece *pieces = calloc((size_t) plan->n_items, sizeof(*pieces));
	unsigned char *directory;

	if (pieces == NULL)
	{
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory writing the directory of a pack");
		return NULL;
	}
	for (int i = 0; i < plan->n_items; i++)
	{
		pieces[i] = plan->items[i].piece;
		pieces[i].digest = plan->items[i].digest;
	}
	directory = dsv3_pack_directory(pieces, plan->n_items, len, err);
	free(pieces);
	return directory;
}

/* The directory without digests says all about the result but the numbers; pack.json in it names the model they come from. */
static bool
identify(Dsv3PackPlan *plan, Dsv3Error *err)
{
	size_t len;
	unsigned char *directory;
	bool ok = true;

	for (int i = 0; ok && i < plan->n_items; i++)
	{
		Dsv3PackItem *item = &plan->items[i];

		if (item->text)
			ok = dsv3_pack_digest(item->digest, item->text, (size_t) item->piece.bytes);
	}
	directory = ok ? dsv3_pack_plan_directory(plan, &len, err) : NULL;
	if (directory)
		ok = dsv3_pack_digest(plan->identity, directory, len);
	free(directory);
	if (!ok)
		return dsv3_error(err, DSV3_ERR_INTERNAL, "could not compute SHA-256");
	return directory != NULL;
}

bool
dsv3_pack_plan_open(Dsv3PackPlan *plan, const char *model_dir, const Dsv3PackOptions *options, Dsv3Error *err)
{
	const Dsv3CheckpointOptions open = {
		.weights = DSV3_WEIGHTS_STORED, .drafts = true, .part = add_part, .part_context = plan};

	memset(plan, 0, sizeof(*plan));
	plan->options = options;
	plan->end = DSV3_PACK_PAGE;
	plan->rule_used = calloc(options->n_rules ? (size_t) options->n_rules : 1, sizeof(bool));
	if (plan->rule_used == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory planning a pack");
	if (dsv3_pack_is(model_dir))
	{
		dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "\"%s\" is a file, not a model directory", model_dir);
		return dsv3_error_hint(err, "Make a pack of the model that a pack was made of.");
	}
	if (!add_files(plan, model_dir, err))
		return false;
	plan->checkpoint = dsv3_checkpoint_open(model_dir, &open, err);
	if (plan->checkpoint == NULL)
		return false;
	for (int i = 0; i < options->n_rules; i++)
	{
		if (!plan->rule_used[i])
		{
			dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "no matrix has a name like \"%s\"",
					   options->rules[i].pattern);
			return dsv3_error_hint(err,
								   "\"dsv3 inspect --tensors\" lists the names; experts count one by one.");
		}
	}
	return add_description(plan, err) && identify(plan, err);
}

void
dsv3_pack_plan_close(Dsv3PackPlan *plan)
{
	for (int i = 0; i < plan->n_items; i++)
	{
		free((char *) plan->items[i].piece.name);
		free(plan->items[i].text);
	}
	free(plan->items);
	free(plan->rule_used);
	dsv3_checkpoint_close(plan->checkpoint);
	memset(plan, 0, sizeof(*plan));
}

/* The rows first .. first + count - 1 as a matrix of their own. */
static Dsv3Weight
view_rows(const Dsv3Weight *matrix, int32_t first, int32_t count)
{
	Dsv3Weight view = *matrix;

	view.out = count;
	view.data = (const unsigned char *) matrix->data +
				(size_t) first * (size_t) matrix->in * dsv3_type_bytes(matrix->type);
	if (matrix->scales)
		view.scales = matrix->scales +
					  (size_t) (first / FP8_BLOCK) * (((size_t) matrix->in + FP8_BLOCK - 1) / FP8_BLOCK);
	return view;
}

static bool
all_finite(const Dsv3Weight *rows, int32_t *row, int32_t *column)
{
	float piece[FP8_BLOCK];

	for (int32_t r = 0; r < rows->out; r++)
	{
		for (int32_t first = 0; first < rows->in; first += FP8_BLOCK)
		{
			int32_t n = rows->in - first < FP8_BLOCK ? rows->in - first : FP8_BLOCK;

			dsv3_weight_columns(rows, r, first, n, piece);
			for (int32_t i = 0; i < n; i++)
			{
				if (!isfinite(piece[i]))
				{
					*row = r;
					*column = first + i;
					return false;
				}
			}
		}
	}
	return true;
}

Dsv3PackRows
dsv3_pack_make_rows(const Dsv3PackItem *item, int32_t first, int32_t count, void *dst, int32_t *row,
					int32_t *column)
{
	Dsv3Weight rows = view_rows(&item->source, first, count);

	if (!all_finite(&rows, row, column))
	{
		*row += first;
		return DSV3_ROWS_NOT_FINITE;
	}
	if (item->type == rows.type)
		memcpy(dst, rows.data, (size_t) dsv3_pack_row_bytes(item->piece.type, count, rows.in));
	else if (!dsv3_type_is_packed(item->type))
		dsv3_weight_convert(&rows, item->type, dst);
	else if (!dsv3_pack_rows(item->type, &rows, 0, count, item->importance, dst))
		return DSV3_ROWS_NO_MEMORY;
	return DSV3_ROWS_MADE;
}
