/*
 * checkpoint.c
 *	  Opening a model directory: configuration, files, names, then the weight mode; see checkpoint.h.
 *
 * Conversion works through a list of jobs, one a matrix, made in two passes over the model: the first adds up the memory, which
 * is reserved at once so that a mode that cannot fit fails before any work is done; the second places every matrix. The
 * jobs are independent and run wherever the caller's parallel-for puts them.
 */
#include "model/checkpoint.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/quant.h"
#include "model/convert.h"
#include "model/digest.h"
#include "model/mix.h"
#include "model/pack.h"
#include "model/weights.h"

typedef struct Job
{
	Dsv3Weight stored;
	Dsv3Weight *target; /* gets the new type and place */
	Dsv3Type type;
	size_t bytes;
	void *dst;
} Job;

typedef struct Plan
{
	const Dsv3CheckpointOptions *options;
	Job *jobs; /* NULL in the counting pass */
	int64_t n_jobs;
	size_t bytes; /* of all targets, each rounded up to 64 */
	bool overflow;
	atomic_bool failed; /* a job had no memory */
} Plan;

/* Do matrices in this mode come in panels? Then a tied head is made on its own; else it stays the embedding. */
static bool
mode_packs(Dsv3WeightMode mode)
{
	return mode == DSV3_WEIGHTS_INT8 || mode == DSV3_WEIGHTS_INT4;
}

/* What the mode makes of a matrix; its own type when it stays as stored. */
static Dsv3Type
target_type(Dsv3WeightMode mode, Dsv3MatrixRole role, Dsv3Type stored)
{
	switch (mode)
	{
		case DSV3_WEIGHTS_F32:
			return DSV3_TYPE_F32;
		case DSV3_WEIGHTS_BF16:
			return dsv3_mix_type(16, role, stored);
		case DSV3_WEIGHTS_INT8:
			return dsv3_mix_type(8, role, stored);
		case DSV3_WEIGHTS_INT4:
			return dsv3_mix_type(4, role, stored);
		case DSV3_WEIGHTS_STORED:
			break;
	}
	return stored;
}

static void
plan_matrix(Plan *plan, Dsv3MatrixRole role, const Dsv3Weight *stored, Dsv3Weight *target)
{
	Dsv3Weight made = *stored;
	size_t bytes;

	made.type = target_type(plan->options->weights, role, stored->type);
	if (made.type == stored->type)
		return;
	bytes = (size_t) dsv3_weight_bytes(&made);
	if (__builtin_add_overflow(plan->bytes, (bytes + 63) / 64 * 64, &plan->bytes))
		plan->overflow = true;
	if (plan->jobs)
		plan->jobs[plan->n_jobs] =
			(Job){.stored = *stored, .target = target, .type = made.type, .bytes = bytes};
	plan->n_jobs++;
}

static void
plan_visit(void *context, Dsv3MatrixRole role, Dsv3Weight *weight)
{
	plan_matrix(context, role, weight, weight);
}

static void
make_plan(Plan *plan, Dsv3Checkpoint *cp)
{
	plan->n_jobs = 0;
	plan->bytes = 0;
	if (cp->config.tie_word_embeddings && mode_packs(plan->options->weights))
		plan_matrix(plan, DSV3_MATRIX_HEAD, &cp->weights.embed, &cp->weights.head);
	dsv3_weights_visit(&cp->weights, &cp->config, plan_visit, plan);
	dsv3_weights_visit_draft(&cp->weights, &cp->config, plan_visit, plan);
}

/* One job; the only writer of its target. */
static void
run_job(void *arg, int64_t i)
{
	Plan *plan = arg;
	Job *job = &plan->jobs[i];

	if (dsv3_type_is_packed(job->type))
	{
		if (!dsv3_pack_rows(job->type, &job->stored, 0, job->stored.out, NULL, job->dst))
			atomic_store(&plan->failed, true);
	}
	else
		dsv3_weight_convert(&job->stored, job->type, job->dst);
	job->target->type = job->type;
	job->target->out = job->stored.out;
	job->target->in = job->stored.in;
	job->target->data = job->dst;
	job->target->scales = NULL;
}

static bool
convert_all(Dsv3Checkpoint *cp, const Dsv3CheckpointOptions *options, Dsv3Error *err)
{
	Plan plan = {.options = options};
	char purpose[64];
	bool ok;

	make_plan(&plan, cp);
	if (plan.n_jobs == 0)
		return true;
	if (plan.overflow)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "weights as %s need more memory than can be addressed",
						  dsv3_weight_mode_name(options->weights));
	snprintf(purpose, sizeof(purpose), "weights as %s", dsv3_weight_mode_name(options->weights));
	if (!dsv3_arena_reserve(cp->arena, plan.bytes, purpose, err))
		return false;
	plan.jobs = calloc((size_t) plan.n_jobs, sizeof(Job));
	if (plan.jobs == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory planning %s", purpose);
	make_plan(&plan, cp);
	ok = true;
	for (int64_t i = 0; ok && i < plan.n_jobs; i++)
	{
		plan.jobs[i].dst = dsv3_arena_alloc(cp->arena, plan.jobs[i].bytes, err);
		ok = plan.jobs[i].dst != NULL;
	}
	if (ok && options->parallel)
		options->parallel(options->parallel_context, plan.n_jobs, run_job, &plan);
	for (int64_t i = 0; ok && !options->parallel && i < plan.n_jobs; i++)
		run_job(&plan, i);
	free(plan.jobs);
	if (ok && atomic_load(&plan.failed))
		ok = dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory making %s", purpose);
	if (ok && cp->config.tie_word_embeddings && !mode_packs(options->weights))
		cp->weights.head = cp->weights.embed;
	return ok;
}

/*
 * Tell the kernel how the mappings will be read from now on: matrices from end to end. What fits in memory is fetched
 * ahead; what has been converted is given back. Advice may be refused without harm.
 */
static void
advise(const Dsv3Checkpoint *cp, int advice)
{
	for (int i = 0; i < cp->files->n_files; i++)
		madvise((void *) cp->files->files[i].base, (size_t) cp->files->files[i].size, advice);
}

typedef struct Totals
{
	int64_t bytes;           /* all matrices */
	int64_t expert_bytes;    /* routed experts among them */
	bool seen[DSV3_N_TYPES]; /* types of the matrices inside layers */
} Totals;

static void
total_visit(void *context, Dsv3MatrixRole role, Dsv3Weight *weight)
{
	Totals *totals = context;
	int64_t bytes = dsv3_weight_bytes(weight);

	totals->bytes += bytes;
	if (role == DSV3_MATRIX_EXPERT)
		totals->expert_bytes += bytes;
	/* the latent expansion cannot have every type; what the others have counts */
	if (role != DSV3_MATRIX_EMBED && role != DSV3_MATRIX_HEAD && role != DSV3_MATRIX_KV_B)
		totals->seen[weight->type] = true;
}

/* One name for the types seen: the only one, in a pack all of them ("int8+bf16"), else "mixed". */
static void
name_weights(char *name, size_t size, const bool *seen, bool pack)
{
	static const char *const names[DSV3_N_TYPES] = {"f32", "bf16", "f16", "fp8", "int8", "int4", "int6"};
	size_t used = 0;
	int n_seen = 0;

	for (int i = DSV3_N_TYPES; i-- > 0;)
	{
		if (seen[i])
			used += (size_t) snprintf(name + used, size - used, "%s%s", n_seen++ ? "+" : "", names[i]);
		if (used >= size)
			break;
	}
	if (n_seen > 1 && (!pack || used >= size))
		snprintf(name, size, "mixed");
}

static void
fill_info(Dsv3Checkpoint *cp, const Dsv3CheckpointOptions *options)
{
	const Dsv3Config *config = &cp->config;
	Dsv3CheckpointInfo *info = &cp->info;
	Dsv3WeightCounts unused = dsv3_weights_count_unused(config, cp->files);
	Dsv3ParamCounts counts;
	Totals totals = {0};
	Totals draft = {0};
	int64_t embed;
	int64_t head;

	dsv3_config_count(config, &counts);
	info->params_total = counts.total;
	info->params_active = counts.active;
	dsv3_weights_visit(&cp->weights, &cp->config, total_visit, &totals);
	dsv3_weights_visit_draft(&cp->weights, &cp->config, total_visit, &draft);
	info->draft_bytes = draft.bytes;
	embed = dsv3_weight_bytes(&cp->weights.embed);
	head = dsv3_weight_bytes(&cp->weights.head);
	info->weight_bytes = totals.bytes + draft.bytes + (counts.router + counts.vectors) * 4;
	if (config->tie_word_embeddings && cp->weights.head.data != cp->weights.embed.data)
		info->weight_bytes += head;
	info->bytes_per_token = totals.bytes - embed - totals.expert_bytes +
							(config->tie_word_embeddings ? head : 0) + embed / config->vocab_size +
							(counts.router + counts.vectors) * 4;
	if (config->n_routed_experts > 0)
		info->bytes_per_token += totals.expert_bytes / config->n_routed_experts * config->n_experts_per_token;
	name_weights(info->weights, sizeof(info->weights), totals.seen, cp->files->pack);
	if (mode_packs(options->weights))
		snprintf(info->weights, sizeof(info->weights), "%s", dsv3_weight_mode_name(options->weights));
	info->arena_bytes = cp->arena->bytes;
	info->n_files = cp->files->n_files;
	info->n_tensors = cp->files->n_tensors;
	info->n_mtp_tensors = unused.n_mtp;
	info->n_ignored = unused.n_ignored;
}

static bool
open_parts(Dsv3Checkpoint *cp, const char *model_dir, const Dsv3CheckpointOptions *options, Dsv3Error *err)
{
	bool pack = dsv3_pack_is(model_dir);

	if (pack && options->weights != DSV3_WEIGHTS_STORED)
	{
		dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "a pack cannot be opened with weights as %s",
				   dsv3_weight_mode_name(options->weights));
		return dsv3_error_hint(err, "Its weights are used as they were packed: weights \"stored\".");
	}
	if (!dsv3_config_open(&cp->config, model_dir, err) ||
		!(pack ? dsv3_pack_tensors(cp->files, model_dir, cp->info.digest, err)
			   : dsv3_tensors_open(cp->files, model_dir, err)))
		return false;
	for (int i = 0; i < cp->files->n_files; i++)
		cp->info.mapped_bytes += cp->files->files[i].size;
	if (!dsv3_weights_resolve(&cp->weights, &cp->config, cp->files, cp->arena, options, err) ||
		(!pack && !dsv3_model_digest(cp->info.digest, model_dir, cp->files, err)))
		return false;
	if (!options->check_only)
	{
		advise(cp, MADV_NORMAL);
		if (!convert_all(cp, options, err))
			return false;
		if (options->weights != DSV3_WEIGHTS_STORED)
			advise(cp, MADV_DONTNEED);
		else if (cp->info.mapped_bytes < dsv3_memory_available() / 2)
			advise(cp, MADV_WILLNEED);
	}
	fill_info(cp, options);
	return true;
}

Dsv3Checkpoint *
dsv3_checkpoint_open(const char *model_dir, const Dsv3CheckpointOptions *options, Dsv3Error *err)
{
	Dsv3Checkpoint *cp;

	cp = calloc(1, sizeof(*cp));
	if (cp)
	{
		cp->files = calloc(1, sizeof(*cp->files));
		cp->arena = calloc(1, sizeof(*cp->arena));
	}
	if (cp == NULL || cp->files == NULL || cp->arena == NULL)
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory opening a model");
	else if (open_parts(cp, model_dir, options, err))
		return cp;
	dsv3_checkpoint_close(cp);
	return NULL;
}

void
dsv3_checkpoint_close(Dsv3Checkpoint *checkpoint)
{
	if (checkpoint == NULL)
		return;
	dsv3_weights_clear(&checkpoint->weights, &checkpoint->config);
	if (checkpoint->files)
		dsv3_tensors_close(checkpoint->files);
	if (checkpoint->arena)
		dsv3_arena_free(checkpoint->arena);
	free(checkpoint->files);
	free(checkpoint->arena);
	dsv3_config_close(&checkpoint->config);
	free(checkpoint);
}
