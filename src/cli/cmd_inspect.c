/*
 * cmd_inspect.c
 *	  `dsv3 inspect`: what a model directory or a pack contains, and what running it would take.
 *
 * The model is opened and checked exactly as for running, but nothing is converted and no matrix is read, so that a
 * model much larger than this machine's memory takes no more than its headers and vectors.
 */
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "common/packfile.h"
#include "model/checkpoint.h"
#include "model/convert.h"
#include "model/mix.h"
#include "model/json_file.h"
#include "model/safetensors.h"
#include "model/weights.h"
#include "text/template.h"

/* Bytes of all matrices in each form; of a pack only as stored. */
typedef struct Sizes
{
	int64_t stored; /* without scales */
	int64_t scales; /* of FP8 matrices, kept in memory */
	int64_t f32;
	int64_t bf16;
	int64_t int8;
	int64_t int4;
} Sizes;

/* Tensors and bytes by dtype, in order of first appearance. */
typedef struct DtypeCount
{
	const char *name;
	int tensors;
	int64_t bytes;
} DtypeCount;

#define MAX_DTYPES      32
#define MAX_DESCRIPTION ((int64_t) 4 << 20)

typedef struct Report
{
	const char *path;
	Dsv3Checkpoint *cp;
	Dsv3ParamCounts params;
	Sizes matrices;
	int64_t vector_bytes; /* norms, biases and routers as F32 */
	DtypeCount dtypes[MAX_DTYPES];
	int n_dtypes;
	bool verified;            /* a pack, and every byte of it */
	char *description;        /* pack.json of a pack */
	Dsv3Tokenizer *tokenizer; /* NULL: there is none */
	Dsv3Template chat;        /* only with a tokenizer */
} Report;

static void
print_help(void)
{
	printf("Show what a model contains.\n\n"
		   "Usage: dsv3 inspect [OPTIONS] MODEL\n\n"
		   "MODEL is a Hugging Face directory (config.json, tokenizer files and *.safetensors) or a pack. "
		   "Everything is\n"
		   "checked as for running; a damaged or unsupported model ends with status 1 and the reason.\n\n"
		   "Options:\n"
		   "  --json       one JSON object instead of text\n"
		   "  --tensors    list every tensor of the files as well, with what becomes of it\n"
		   "  --verify     of a pack: read all of it and compare it with its checksums\n"
		   "  --help       this text\n\n"
		   "Example:\n"
		   "  $ dsv3 inspect build/demo-model\n");
}

/* Bytes of a matrix when it is made smaller. */
static int64_t
made_bytes(int bits, Dsv3MatrixRole role, const Dsv3Weight *w)
{
	Dsv3Weight made = *w;

	made.type = dsv3_mix_type(bits, role, w->type);
	return dsv3_weight_bytes(&made);
}

static void
add_matrix(void *context, Dsv3MatrixRole role, Dsv3Weight *w)
{
	Sizes *sizes = context;
	int64_t n = (int64_t) w->out * w->in;
	int64_t stored = dsv3_weight_bytes(w);
	int64_t scales =
		w->type == DSV3_TYPE_FP8 ? (int64_t) ((w->out + 127) / 128) * ((w->in + 127) / 128) * 4 : 0;

	sizes->stored += stored - scales;
	sizes->scales += scales;
	sizes->f32 += n * 4;
	sizes->bf16 += made_bytes(16, role, w);
	sizes->int8 += made_bytes(8, role, w);
	sizes->int4 += made_bytes(4, role, w);
}

static void
fill_report(Report *report)
{
	Dsv3Checkpoint *cp = report->cp;

	dsv3_config_count(&cp->config, &report->params);
	dsv3_weights_visit(&cp->weights, &cp->config, add_matrix, &report->matrices);
	if (cp->config.tie_word_embeddings)
	{
		report->matrices.int8 += made_bytes(8, DSV3_MATRIX_HEAD, &cp->weights.head);
		report->matrices.int4 += made_bytes(4, DSV3_MATRIX_HEAD, &cp->weights.head);
		if (cp->weights.head.data != cp->weights.embed.data)
			report->matrices.stored += dsv3_weight_bytes(&cp->weights.head);
	}
	report->vector_bytes = (report->params.vectors + report->params.router) * 4;
	for (int f = 0; f < cp->files->n_files; f++)
	{
		for (int i = 0; i < cp->files->files[f].n_tensors; i++)
		{
			const Dsv3Tensor *t = &cp->files->files[f].tensors[i];
			int d = 0;

			while (d < report->n_dtypes && strcmp(report->dtypes[d].name, t->dtype_name) != 0)
				d++;
			if (d == MAX_DTYPES)
				continue;
			report->dtypes[d].name = t->dtype_name;
			report->dtypes[d].tensors++;
			report->dtypes[d].bytes += t->bytes;
			report->n_dtypes = d < report->n_dtypes ? report->n_dtypes : d + 1;
		}
	}
}

/* Of a pack: its description, and every byte of it when that is asked for. */
static bool
look_at_pack(Report *report, bool verify, Dsv3Error *err)
{
	Dsv3Pack pack;
	size_t len;

	report->description = dsv3_pack_read_file(report->path, "pack.json", MAX_DESCRIPTION, &len, NULL);
	if (!verify)
		return true;
	if (!dsv3_pack_open(&pack, report->path, err))
		return false;
	report->verified = dsv3_pack_verify(&pack, report->path, err);
	dsv3_pack_close(&pack);
	return report->verified;
}

/* Open the tokenizer and the chat template; a model without tokenizer files is no failure. */
static bool
open_text(Report *report, Dsv3Error *err)
{
	Dsv3Error problem;

	memset(&problem, 0, sizeof(problem));
	report->tokenizer = dsv3_tokenizer_open(report->path, &problem);
	if (report->tokenizer)
		return dsv3_template_open(&report->chat, report->path, report->tokenizer, err);
	if (strcmp(problem.sqlstate, DSV3_ERR_NO_FILE) == 0)
		return true;
	*err = problem;
	return false;
}

static void
close_report(Report *report)
{
	if (report->tokenizer)
	{
		dsv3_template_close(&report->chat);
		dsv3_tokenizer_close(report->tokenizer);
	}
	dsv3_checkpoint_close(report->cp);
	free(report->description);
}

/* The template's name, or NULL when only raw prompts are possible. */
static const char *
template_name(const Report *report)
{
	return report->tokenizer && report->chat.kind != DSV3_TEMPLATE_NONE ? report->chat.name : NULL;
}

static const char *
rope_name(Dsv3RopeType type)
{
	static const char *const names[] = {"default", "linear", "yarn", "longrope"};

	return names[type];
}

static const char *
routing_name(Dsv3Routing routing)
{
	static const char *const names[] = {"noaux_tc", "greedy", "group_limited_greedy"};

	return names[routing];
}

/* What becomes of a tensor. */
static const char *
use_of(const Report *report, const Dsv3Tensor *t)
{
	return dsv3_tensor_is_mtp(&report->cp->config, t->name) ? "mtp" : t->used ? "used" : "ignored";
}

/* 1234567890 as "1.23 GB" in buf. */
static const char *
size_text(char buf[32], int64_t bytes)
{
	static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB"};
	double x = (double) bytes;
	int u = 0;

	while (x >= 1000 && u < 4)
	{
		x /= 1000;
		u++;
	}
	snprintf(buf, 32, u == 0 || x >= 100 ? "%.0f %s" : x >= 10 ? "%.1f %s" : "%.2f %s", x, units[u]);
	return buf;
}

/* What the pack was made of. */
static void
print_pack(const Report *r)
{
	json_t *root = r->description ? json_loads(r->description, JSON_REJECT_DUPLICATES, NULL) : NULL;
	const char *source = json_string_value(json_object_get(root, "source"));
	char shown[DSV3_SHOWN_NAME];

	printf("pack           of the model with digest %s\n",
		   source ? dsv3_shown_name(shown, source) : "unknown");
	if (r->verified)
		printf("verified       every byte matches its checksum\n");
	json_decref(root);
}

static void
print_model(const Report *r)
{
	const Dsv3Config *c = &r->cp->config;
	const Dsv3CheckpointInfo *info = &r->cp->info;
	char size[32];

	printf("model          %s\n", r->path);
	printf("architecture   %s (%s)\n", c->architecture, c->model_type);
	printf("digest         %s\n", info->digest);
	if (r->cp->files->pack)
		print_pack(r);
	printf("files          %d, %s, %d tensors\n", info->n_files, size_text(size, info->mapped_bytes),
		   info->n_tensors);
	printf("weights        %s:", info->weights);
	for (int i = 0; i < r->n_dtypes; i++)
		printf("%s %d tensors of %s, %s", i ? ";" : "", r->dtypes[i].tensors, r->dtypes[i].name,
			   size_text(size, r->dtypes[i].bytes));
	printf("\n");
	if (info->n_mtp_tensors > 0 && info->draft_bytes == 0)
		printf("               %d tensors of MTP layers that cannot be used\n", info->n_mtp_tensors);
	if (info->n_ignored > 0)
		printf("               %d tensors are not part of the model and ignored (--tensors lists them)\n",
			   info->n_ignored);
	printf("parameters     %.1f million, %.1f million active per token\n", (double) info->params_total / 1e6,
		   (double) info->params_active / 1e6);
	printf("vocabulary     %d, output matrix %s\n", c->vocab_size,
		   c->tie_word_embeddings ? "tied to the embedding" : "of its own");
	if (r->tokenizer == NULL)
		printf("tokenizer      none\n");
	else if (template_name(r))
		printf("tokenizer      %d tokens, chat template %s\n", dsv3_tokenizer_vocab_size(r->tokenizer),
			   template_name(r));
	else
		printf("tokenizer      %d tokens, no known chat template (%s): raw prompts only\n",
			   dsv3_tokenizer_vocab_size(r->tokenizer), r->chat.reason);
	printf("end tokens    ");
	for (int i = 0; i < c->n_eos; i++)
		printf(" %d", c->eos_ids[i]);
	printf(c->n_eos ? "\n" : " none\n");
}

static void
print_layers(const Report *r)
{
	const Dsv3Config *c = &r->cp->config;
	char size[32];

	printf("layers         %d (%d dense, %d mixture of experts), hidden size %d\n", c->n_layers,
		   c->first_dense, c->n_layers - c->first_dense, c->hidden_size);
	printf("attention      %d heads, query-key %d + %d rotary, value %d, latent %d, ", c->n_heads,
		   c->qk_nope_dim, c->qk_rope_dim, c->v_dim, c->kv_lora_rank);
	if (c->q_lora_rank > 0)
		printf("query rank %d", c->q_lora_rank);
	else
		printf("full query");
	printf("%s, softmax scale %.9g\n", c->attention_bias ? ", biases" : "", (double) c->softmax_scale);
	if (c->first_dense > 0)
		printf("dense width    %d\n", c->intermediate_size);
	if (c->n_routed_experts > 0)
	{
		printf("experts        %d of width %d, %d per token", c->n_routed_experts, c->moe_intermediate_size,
			   c->n_experts_per_token);
		if (c->n_shared_experts > 0)
			printf(", and %d shared", c->n_shared_experts);
		printf("\nrouter         %s over %s scores", routing_name(c->routing),
			   c->is_v2 ? "softmax" : "sigmoid");
		if (c->n_group > 1)
			printf(", %d of %d groups", c->topk_group, c->n_group);
		printf(", %sscaling %g\n", c->norm_topk_prob ? "normalised, " : "",
			   (double) c->routed_scaling_factor);
	}
	if (r->cp->info.draft_bytes > 0)
		printf("draft layer    %s\n", size_text(size, r->cp->info.draft_bytes));
	printf("rope           %s, theta %g", rope_name(c->rope.type), c->rope.theta);
	if (c->rope.type != DSV3_ROPE_DEFAULT)
		printf(", factor %g, original positions %d, attention factor %g", c->rope.factor,
			   c->rope.original_positions, (double) c->rope.attention_factor);
	printf(", %s lanes\n", c->rope.interleaved ? "interleaved" : "half-split");
}

static void
print_memory(const Report *r)
{
	const Dsv3Config *c = &r->cp->config;
	int64_t kv = dsv3_config_kv_bytes(c);
	char size[32];
	char more[32];

	printf("positions      %d\n", c->max_positions);
	printf("cache          %s a position, %s for all positions\n", size_text(size, kv),
		   size_text(more, kv * c->max_positions));
	if (r->cp->files->pack)
	{
		printf("memory         %s, all mapped from the file\n",
			   size_text(size, r->matrices.stored + r->matrices.scales + r->vector_bytes));
		printf("read a token   %s\n", size_text(more, r->cp->info.bytes_per_token));
		return;
	}
	printf("memory         --weights stored  %s mapped from the files, %s of its own\n",
		   size_text(size, r->matrices.stored), size_text(more, r->vector_bytes + r->matrices.scales));
	printf("               --weights f32     %s\n", size_text(size, r->matrices.f32 + r->vector_bytes));
	printf("               --weights bf16    %s\n", size_text(size, r->matrices.bf16 + r->vector_bytes));
	printf("               --weights int8    %s\n", size_text(size, r->matrices.int8 + r->vector_bytes));
	printf("               --weights int4    %s\n", size_text(size, r->matrices.int4 + r->vector_bytes));
	printf("read a token   %s as stored\n", size_text(size, r->cp->info.bytes_per_token));
}

static void
print_tensors(const Report *r)
{
	char shape[128];
	char shown[DSV3_SHOWN_NAME];

	for (int f = 0; f < r->cp->files->n_files; f++)
	{
		const Dsv3TensorFile *file = &r->cp->files->files[f];

		for (int i = 0; i < file->n_tensors; i++)
		{
			const Dsv3Tensor *t = &file->tensors[i];

			printf("%-8s %-8s %-16s %s", use_of(r, t), t->dtype_name,
				   dsv3_shape_text(shape, sizeof(shape), t->dims, t->n_dims),
				   dsv3_shown_name(shown, t->name));
			printf("  (%s)\n", dsv3_shown_name(shown, file->name));
		}
	}
}

/* A JSON number with the shortest digits that give the F32 back. */
static json_t *
json_f32(float x)
{
	char text[32];

	for (int digits = 1; digits <= 9; digits++)
	{
		snprintf(text, sizeof(text), "%.*g", digits, (double) x);
		if (strtof(text, NULL) == x)
			break;
	}
	return json_real(strtod(text, NULL));
}

static json_t *
json_tensors(const Report *r)
{
	json_t *list = json_array();

	for (int f = 0; f < r->cp->files->n_files; f++)
	{
		const Dsv3TensorFile *file = &r->cp->files->files[f];

		for (int i = 0; i < file->n_tensors; i++)
		{
			const Dsv3Tensor *t = &file->tensors[i];
			json_t *shape = json_array();

			for (int d = 0; d < t->n_dims; d++)
				json_array_append_new(shape, json_integer(t->dims[d]));
			json_array_append_new(list,
								  json_pack("{s:s, s:s, s:o, s:I, s:s, s:s}", "name", t->name, "dtype",
											t->dtype_name, "shape", shape, "bytes", (json_int_t) t->bytes,
											"file", file->name, "use", use_of(r, t)));
		}
	}
	return list;
}

static json_t *
json_report(const Report *r, bool tensors)
{
	const Dsv3Config *c = &r->cp->config;
	const Dsv3CheckpointInfo *info = &r->cp->info;
	json_t *eos = json_array();
	json_t *dtypes = json_object();
	json_t *memory;
	json_t *root;

	for (int i = 0; i < c->n_eos; i++)
		json_array_append_new(eos, json_integer(c->eos_ids[i]));
	for (int i = 0; i < r->n_dtypes; i++)
		json_object_set_new(dtypes, r->dtypes[i].name,
							json_pack("{s:i, s:I}", "tensors", r->dtypes[i].tensors, "bytes",
									  (json_int_t) r->dtypes[i].bytes));
	root = json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:o, s:o}", "architecture", c->architecture,
					 "model_type", c->model_type, "digest", info->digest, "weights", info->weights,
					 "params_total", (json_int_t) info->params_total, "params_active",
					 (json_int_t) info->params_active, "dtypes", dtypes, "eos_ids", eos);
	if (root == NULL)
		return NULL;
	json_object_set_new(root, "tokens",
						r->tokenizer ? json_integer(dsv3_tokenizer_vocab_size(r->tokenizer)) : json_null());
	json_object_set_new(root, "template", template_name(r) ? json_string(template_name(r)) : json_null());
	json_object_set_new(root, "bos_id", c->bos_id >= 0 ? json_integer(c->bos_id) : json_null());
	json_object_set_new(root, "files",
						json_pack("{s:i, s:I, s:i, s:i, s:i}", "count", info->n_files, "bytes",
								  (json_int_t) info->mapped_bytes, "tensors", info->n_tensors, "mtp_tensors",
								  info->n_mtp_tensors, "ignored_tensors", info->n_ignored));
	json_object_set_new(
		root, "sizes",
		json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:b, s:o}", "vocab_size",
				  c->vocab_size, "hidden_size", c->hidden_size, "n_layers", c->n_layers, "n_dense_layers",
				  c->first_dense, "n_heads", c->n_heads, "q_lora_rank", c->q_lora_rank, "kv_lora_rank",
				  c->kv_lora_rank, "qk_nope_dim", c->qk_nope_dim, "qk_rope_dim", c->qk_rope_dim, "v_dim",
				  c->v_dim, "intermediate_size", c->intermediate_size, "max_positions", c->max_positions,
				  "tie_word_embeddings", c->tie_word_embeddings, "attention_bias", c->attention_bias,
				  "softmax_scale", json_f32(c->softmax_scale)));
	if (c->n_routed_experts > 0)
		json_object_set_new(root, "experts",
							json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:b, s:o}", "routed",
									  c->n_routed_experts, "shared", c->n_shared_experts, "per_token",
									  c->n_experts_per_token, "width", c->moe_intermediate_size, "groups",
									  c->n_group, "groups_chosen", c->topk_group, "routing",
									  routing_name(c->routing), "normalised", c->norm_topk_prob, "scaling",
									  json_f32(c->routed_scaling_factor)));
	json_object_set_new(root, "rope",
						json_pack("{s:s, s:f, s:f, s:i, s:o, s:b}", "type", rope_name(c->rope.type), "theta",
								  c->rope.theta, "factor", c->rope.factor, "original_positions",
								  c->rope.original_positions, "attention_factor",
								  json_f32(c->rope.attention_factor), "interleaved", c->rope.interleaved));
	json_object_set_new(root, "draft_bytes", json_integer(info->draft_bytes));
	json_object_set_new(root, "kv_bytes_per_position", json_integer(dsv3_config_kv_bytes(c)));
	json_object_set_new(root, "bytes_per_token", json_integer(info->bytes_per_token));
	memory =
		json_pack("{s:I}", "stored", (json_int_t) r->matrices.stored + r->matrices.scales + r->vector_bytes);
	if (r->cp->files->pack)
	{
		json_object_set_new(root, "pack",
							r->description ? json_loads(r->description, JSON_REJECT_DUPLICATES, NULL)
										   : json_null());
		json_object_set_new(root, "verified", json_boolean(r->verified));
	}
	else
	{
		json_object_set_new(memory, "f32", json_integer(r->matrices.f32 + r->vector_bytes));
		json_object_set_new(memory, "bf16", json_integer(r->matrices.bf16 + r->vector_bytes));
		json_object_set_new(memory, "int8", json_integer(r->matrices.int8 + r->vector_bytes));
		json_object_set_new(memory, "int4", json_integer(r->matrices.int4 + r->vector_bytes));
	}
	json_object_set_new(root, "memory", memory);
	if (tensors)
		json_object_set_new(root, "tensors", json_tensors(r));
	return root;
}

static bool
print_json(const Report *r, bool tensors, Dsv3Error *err)
{
	json_t *root = json_report(r, tensors);
	char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;

	json_decref(root);
	if (text == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory writing JSON");
	puts(text);
	free(text);
	return true;
}

int
dsv3_cmd_inspect(int argc, char **argv)
{
	static const struct option long_options[] = {{"json", no_argument, NULL, 'j'},
												 {"tensors", no_argument, NULL, 't'},
												 {"verify", no_argument, NULL, 'v'},
												 {"help", no_argument, NULL, 'h'},
												 {0}};
	Dsv3CheckpointOptions options = {.weights = DSV3_WEIGHTS_STORED, .check_only = true, .drafts = true};
	Report report = {0};
	Dsv3Error err;
	bool json = false;
	bool tensors = false;
	bool verify = false;
	bool ok;
	int c;

	optind = 1;
	while ((c = getopt_long(argc, argv, "h", long_options, NULL)) != -1)
	{
		switch (c)
		{
			case 'j':
				json = true;
				break;
			case 't':
				tensors = true;
				break;
			case 'v':
				verify = true;
				break;
			case 'h':
				print_help();
				return 0;
			default:
				return dsv3_cli_usage("inspect", "wrong option");
		}
	}
	if (argc - optind != 1)
		return dsv3_cli_usage("inspect", "exactly one model directory or pack is needed");
	report.path = argv[optind];
	if (verify && !dsv3_pack_is(report.path))
		return dsv3_cli_usage("inspect",
							  "--verify is for packs; nothing in a directory says what it should be");
	report.cp = dsv3_checkpoint_open(report.path, &options, &err);
	if (report.cp == NULL)
		return dsv3_cli_fail(&err);
	fill_report(&report);
	ok = (!report.cp->files->pack || look_at_pack(&report, verify, &err)) && open_text(&report, &err);
	if (ok && json)
		ok = print_json(&report, tensors, &err);
	else if (ok)
	{
		print_model(&report);
		print_layers(&report);
		print_memory(&report);
		if (tensors)
			print_tensors(&report);
	}
	close_report(&report);
	if (ok && (fflush(stdout) != 0 || ferror(stdout)))
		ok = dsv3_error(&err, DSV3_ERR_FILE, "could not write to standard output");
	return ok ? 0 : dsv3_cli_fail(&err);
}
