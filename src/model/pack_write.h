/*
 * pack_write.h
 *	  Making a pack of a model directory: one file with everything the engine needs, each matrix in the type asked for.
 *
 * The work is a list of pieces whose places are known before the first one is written: the small files, then the tensors in
 * the order of the computation. They are made in batches of bounded size, so that packing needs memory for some rows of a
 * tensor (and for the model's vectors), whatever the size of the model.
 *
 * What is being written is OUT.partial; OUT.journal says which pieces of it are complete and what their digests are. A run that
 * finds both, made from the same model with the same options, goes on where the last one ended: it believes no
 * piece before it has read it back and found its digest. The result has the same bytes as that of one run. OUT appears by
 * renaming, complete and on disk, or not at all.
 */
#ifndef DSV3_PACK_WRITE_H
#define DSV3_PACK_WRITE_H

#include "common/error.h"
#include "model/checkpoint.h"
#include "model/importance.h"

/* What becomes of a matrix. */
typedef enum Dsv3PackForm
{
	DSV3_FORM_STORED, /* its bytes as they are */
	DSV3_FORM_F32,
	DSV3_FORM_BF16,
	DSV3_FORM_INT8,
	DSV3_FORM_INT6,
	DSV3_FORM_INT4,
} Dsv3PackForm;

/* "stored", "f32", "bf16", "int8", "int6", "int4"; false for anything else. */
extern bool dsv3_pack_form(const char *name, Dsv3PackForm *form);

/* All matrices whose name fits the pattern (as in fnmatch) take this form; of several rules the last one counts. */
typedef struct Dsv3PackRule
{
	const char *pattern;
	Dsv3PackForm form;
} Dsv3PackRule;

typedef struct Dsv3PackProgress
{
	const char *piece; /* the last one completed */
	int n_done;        /* pieces */
	int n_pieces;
	int64_t bytes_done; /* of the result, those of an earlier run included */
	int64_t bytes;
	int64_t bytes_found; /* of an earlier run */
} Dsv3PackProgress;

typedef struct Dsv3PackOptions
{
	int bits; /* 4, 8 or 16: what matrices become that no rule names */
	const Dsv3PackRule *rules;
	int n_rules;
	int threads;                      /* as in Dsv3ModelOptions */
	const Dsv3Importance *importance; /* of the same model, or NULL: all columns count the same */
	bool force;                       /* replace OUT when it exists */
	void (*progress)(void *context, const Dsv3PackProgress *progress); /* or NULL; after every batch */
	void *progress_context;
} Dsv3PackOptions;

typedef struct Dsv3PackSummary
{
	char digest[65];
	int64_t bytes;        /* of the file */
	int64_t params;       /* numbers in all tensors; a matrix that is there twice counts once */
	int64_t tensor_bytes; /* of all tensors */
	int n_tensors;
	int n_found; /* pieces of an earlier run */
} Dsv3PackSummary;

/*
 * Pack the model directory into the file `out`. False and *err: as dsv3_checkpoint_open for the model; 22023 a rule that fits
 * nothing or asks for a type the matrix cannot have; 55000 out exists, or is being written; 53100 no space; 58030 other trouble
 * writing; XX001 a matrix has a number that is not finite. Except after the last, running again continues.
 */
extern bool dsv3_pack_write(const char *model_dir, const char *out, const Dsv3PackOptions *options,
							Dsv3PackSummary *summary, Dsv3Error *err);

#endif /* DSV3_PACK_WRITE_H */
