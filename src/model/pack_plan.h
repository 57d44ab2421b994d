/*
 * pack_plan.h
 *	  What a pack will consist of, before anything of it is written. Between pack_plan.c and pack_write.c.
 */
#ifndef DSV3_PACK_PLAN_H
#define DSV3_PACK_PLAN_H

#include "model/pack.h"
#include "model/pack_write.h"

/* One piece of the pack and where its bytes come from: text, vector or source. */
typedef struct Dsv3PackItem
{
	Dsv3PackPiece piece; /* name, type, dimensions, place, size; its digest points to `digest` */
	unsigned char digest[DSV3_PACK_DIGEST];
	bool done;               /* digest is set and the bytes are in the file */
	char *text;              /* of a small file */
	const float *vector;     /* F32: a vector, a router, the scales of an FP8 matrix */
	Dsv3Weight source;       /* a matrix as stored */
	const float *importance; /* of the matrix's columns, or NULL */
	Dsv3Type type;           /* what it becomes */
} Dsv3PackItem;

typedef struct Dsv3PackPlan
{
	Dsv3Checkpoint *checkpoint; /* owns what the items point to */
	Dsv3PackItem *items;        /* in order of place */
	int n_items;
	int n_room;
	int64_t end;                              /* of the last item: where the directory begins */
	unsigned char identity[DSV3_PACK_DIGEST]; /* equal for two plans that give the same file */
	const Dsv3PackOptions *options;
	bool *rule_used; /* [options->n_rules] */
} Dsv3PackPlan;

/* Open the model and make the plan. False and *err; dsv3_pack_plan_close is called in any case. */
extern bool dsv3_pack_plan_open(Dsv3PackPlan *plan, const char *model_dir, const Dsv3PackOptions *options,
								Dsv3Error *err);
extern void dsv3_pack_plan_close(Dsv3PackPlan *plan);

/* The directory of all items; malloc'd. NULL and *err. */
extern unsigned char *dsv3_pack_plan_directory(const Dsv3PackPlan *plan, size_t *len, Dsv3Error *err);

/* Bytes of the first `rows` rows of a tensor of this type, `in` columns. For panels rows is a multiple of 16 or all. */
extern int64_t dsv3_pack_row_bytes(int pack_type, int64_t rows, int64_t in);

typedef enum Dsv3PackRows
{
	DSV3_ROWS_MADE,
	DSV3_ROWS_NOT_FINITE,
	DSV3_ROWS_NO_MEMORY,
} Dsv3PackRows;

/* Rows first .. first + count - 1 of an item's matrix in the type of the piece; first is a multiple of 128. dst has the bytes
 * of count rows and is 64-byte aligned. When a number is not finite *column says where in which *row. */
extern Dsv3PackRows dsv3_pack_make_rows(const Dsv3PackItem *item, int32_t first, int32_t count, void *dst,
										int32_t *row, int32_t *column);

#endif /* DSV3_PACK_PLAN_H */
