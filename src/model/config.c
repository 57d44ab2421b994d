/*
 * config.c
 *	  Reading config.json and generation_config.json; see config.h.
 *
 * Order of work: find the object that describes the text model (text_config for Kimi-K2.5), decide the architecture, read
 * the sizes, then the parts that depend on them (experts, rope, quantisation, end tokens). Every key that changes the
 * result of the forward pass in transformers is read; a value the engine cannot honour is refused, never ignored. Keys
 * that only matter for training are not looked at.
 */
#include "model/config.h"

#include <errno.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/config_rope.h"
#include "model/json_file.h"

#define CONFIG_FILE     "config.json"
#define GENERATION_FILE "generation_config.json"
#define MAX_CONFIG_FILE (8 * 1024 * 1024)

#define V3_ARCHITECTURE "DeepseekV3ForCausalLM"
#define V2_ARCHITECTURE "DeepseekV2ForCausalLM"

/* Architecture names and model types that are one of the two this engine runs. */
static const struct
{
	const char *architecture;
	bool is_v2;
	bool nested;
} known_architectures[] = {
	{V3_ARCHITECTURE, false, false},
	{V2_ARCHITECTURE, true, false},
	{"KimiK2ForCausalLM", false, false},
	{"KimiK25ForConditionalGeneration", false, true},
	{"Kimi_K25ForConditionalGeneration", false, true},
};

static const struct
{
	const char *model_type;
	bool is_v2;
	bool nested;
} known_types[] = {
	{"deepseek_v3", false, false},
	{"kimi_k2", false, false},
	{"deepseek_v2", true, false},
	{"kimi_k25", false, true},
};

#define N_KNOWN_ARCHITECTURES (sizeof(known_architectures) / sizeof(known_architectures[0]))
#define N_KNOWN_TYPES         (sizeof(known_types) / sizeof(known_types[0]))

static void
refuse_architecture(Dsv3JsonReader *reader, const char *key, const char *name)
{
	char shown[DSV3_SHOWN_NAME];

	dsv3_json_fail(reader, DSV3_ERR_UNSUPPORTED, key, "\"%s\" is not supported",
				   dsv3_shown_name(shown, name));
	dsv3_error_hint(
		reader->err,
		"Supported are DeepseekV3ForCausalLM (DeepSeek-V3, R1, V3.1, Moonlight, Kimi-K2), the text part "
		"of Kimi-K2.5, and DeepseekV2ForCausalLM (V2, V2-Lite).");
}

/*
 * Decide which model this is from architectures[0] and model_type; either may be absent, but when both are there they
 * must agree.
 */
static bool
read_architecture(Dsv3Config *config, Dsv3JsonReader *reader)
{
	const json_t *list = dsv3_json_get(reader, "architectures");
	const char *type = dsv3_json_string(reader, "model_type", NULL);
	const char *name = NULL;
	size_t a = N_KNOWN_ARCHITECTURES;
	size_t t = N_KNOWN_TYPES;

	if (list)
	{
		name = json_string_value(json_array_get(list, 0));
		if (name == NULL)
			dsv3_json_fail(reader, DSV3_ERR_BAD_FILE, "architectures", "must be an array of strings");
	}
	if (reader->failed)
		return false;
	if (name == NULL && type == NULL)
	{
		dsv3_json_fail(reader, DSV3_ERR_BAD_FILE, "architectures", "is missing, and so is model_type");
		return false;
	}
	for (size_t i = 0; name && i < N_KNOWN_ARCHITECTURES; i++)
	{
		if (strcmp(name, known_architectures[i].architecture) == 0)
			a = i;
	}
	for (size_t i = 0; type && i < N_KNOWN_TYPES; i++)
	{
		if (strcmp(type, known_types[i].model_type) == 0)
			t = i;
	}
	if (name && a == N_KNOWN_ARCHITECTURES)
		refuse_architecture(reader, "architectures", name);
	else if (type && t == N_KNOWN_TYPES)
		refuse_architecture(reader, "model_type", type);
	else if (name && type &&
			 (known_architectures[a].is_v2 != known_types[t].is_v2 ||
			  known_architectures[a].nested != known_types[t].nested))
		dsv3_json_fail(reader, DSV3_ERR_BAD_FILE, "model_type", "\"%s\" contradicts architectures \"%s\"",
					   type, name);
	if (reader->failed)
		return false;
	config->is_v2 = name ? known_architectures[a].is_v2 : known_types[t].is_v2;
	config->nested = name ? known_architectures[a].nested : known_types[t].nested;
	snprintf(config->architecture, sizeof(config->architecture), "%s",
			 config->is_v2 ? V2_ARCHITECTURE : V3_ARCHITECTURE);
	snprintf(config->model_type, sizeof(config->model_type), "%s",
			 type            ? type
			 : config->is_v2 ? "deepseek_v2"
							 : "deepseek_v3");
	return true;
}

static int32_t
read_size(Dsv3JsonReader *reader, const char *key, int64_t absent, int64_t min, int64_t max)
{
	return (int32_t) dsv3_json_int(reader, key, absent, min, max);
}

/* One value under two names; both present and different is a contradiction. */
static int32_t
read_aliased(Dsv3JsonReader *reader, const char *key, const char *alias, int64_t absent, int64_t min,
			 int64_t max)
{
	int32_t value = read_size(reader, key, absent, min, max);
	int32_t other = read_size(reader, alias, value, min, max);

	if (dsv3_json_get(reader, key) == NULL)
		return other;
	if (!reader->failed && other != value)
		dsv3_json_fail(reader, DSV3_ERR_BAD_FILE, alias, "is %d but %s is %d", other, key, value);
	return value;
}

static void
read_sizes(Dsv3Config *config, Dsv3JsonReader *reader)
{
	bool v2 = config->is_v2;
	const char *act;
	const char *dtype;
	int32_t kv_heads;
	char shown[DSV3_SHOWN_NAME];

	config->vocab_size = read_size(reader, "vocab_size", v2 ? 102400 : 129280, 1, DSV3_MAX_VOCAB);
	config->hidden_size = read_size(reader, "hidden_size", v2 ? 4096 : 7168, 1, DSV3_MAX_WIDTH);
	config->n_layers = read_size(reader, "num_hidden_layers", v2 ? 32 : 61, 1, DSV3_MAX_LAYERS);
	config->n_heads = read_size(reader, "num_attention_heads", v2 ? 32 : 128, 1, DSV3_MAX_HEADS);
	config->kv_lora_rank = read_size(reader, "kv_lora_rank", 512, 1, DSV3_MAX_RANK);
	config->qk_nope_dim = read_size(reader, "qk_nope_head_dim", 128, 1, DSV3_MAX_HEAD_DIM / 2);
	config->qk_rope_dim = read_size(reader, "qk_rope_head_dim", 64, 2, DSV3_MAX_HEAD_DIM / 2);
	config->v_dim = read_size(reader, "v_head_dim", 128, 1, DSV3_MAX_HEAD_DIM / 2);
	config->intermediate_size = read_size(reader, "intermediate_size", v2 ? 11008 : 18432, 1, DSV3_MAX_WIDTH);
	config->max_positions =
		read_size(reader, "max_position_embeddings", v2 ? 2048 : 4096, 1, DSV3_MAX_POSITIONS);
	config->rms_norm_eps = (float) dsv3_json_number(reader, "rms_norm_eps", 1e-6, FLT_MIN, 1.0);
	config->latent_norm_eps = 1e-6f;
	config->tie_word_embeddings = dsv3_json_bool(reader, "tie_word_embeddings", false);
	config->attention_bias = dsv3_json_bool(reader, "attention_bias", false);
	if (config->qk_rope_dim % 2 != 0)
		dsv3_json_fail(reader, DSV3_ERR_BAD_FILE, "qk_rope_head_dim", "is %d, must be even",
					   config->qk_rope_dim);

	/* null and 0 both mean one q_proj; absent means the default of the configuration class. */
	if (json_is_null(json_object_get(reader->object, "q_lora_rank")))
		config->q_lora_rank = 0;
	else
		config->q_lora_rank = read_size(reader, "q_lora_rank", 1536, 0, DSV3_MAX_RANK);

	kv_heads = read_size(reader, "num_key_value_heads", config->n_heads, 1, DSV3_MAX_HEADS);
	if (!reader->failed && kv_heads != config->n_heads)
		dsv3_json_fail(reader, DSV3_ERR_UNSUPPORTED, "num_key_value_heads",
					   "is %d, but latent attention has as many as num_attention_heads, %d", kv_heads,
					   config->n_heads);

	act = dsv3_json_string(reader, "hidden_act", "silu");
	if (!reader->failed && strcmp(act, "silu") != 0)
		dsv3_json_fail(reader, DSV3_ERR_UNSUPPORTED, "hidden_act",
					   "\"%s\" is not supported, only \"silu\" is", dsv3_shown_name(shown, act));
	if (dsv3_json_bool(reader, "mlp_bias", false))
		dsv3_json_fail(reader, DSV3_ERR_UNSUPPORTED, "mlp_bias", "true is not supported");

	dtype = dsv3_json_string(reader, "dtype", dsv3_json_string(reader, "torch_dtype", ""));
	snprintf(config->stored_dtype, sizeof(config->stored_dtype), "%s", dsv3_shown_name(shown, dtype));
}

/* The routing rule of this architecture, or a refusal; transformers fixes it by class and so do we. */
static void
read_routing(Dsv3Config *config, Dsv3JsonReader *reader)
{
	const char *method = dsv3_json_string(reader, "topk_method", config->is_v2 ? "greedy" : "noaux_tc");
	const char *expected_scoring = config->is_v2 ? "softmax" : "sigmoid";
	const char *scoring = dsv3_json_string(reader, "scoring_func", expected_scoring);
	char shown[DSV3_SHOWN_NAME];

	if (reader->failed)
		return;
	if (strcmp(scoring, expected_scoring) != 0)
		dsv3_json_fail(reader, DSV3_ERR_UNSUPPORTED, "scoring_func",
					   "\"%s\" is not supported for %s, only \"%s\" is", dsv3_shown_name(shown, scoring),
					   config->architecture, expected_scoring);
	else if (!config->is_v2 && strcmp(method, "noaux_tc") == 0)
		config->routing = DSV3_ROUTING_NOAUX_TC;
	else if (config->is_v2 && strcmp(method, "greedy") == 0)
		config->routing = DSV3_ROUTING_GREEDY;
	else if (config->is_v2 && strcmp(method, "group_limited_greedy") == 0)
		config->routing = DSV3_ROUTING_GROUP_LIMITED_GREEDY;
	else
		dsv3_json_fail(reader, DSV3_ERR_UNSUPPORTED, "topk_method", "\"%s\" is not supported for %s",
					   dsv3_shown_name(shown, method), config->architecture);
}

/* Groups and chosen experts must fit together, or the router has nothing to choose from. */
static void
check_groups(Dsv3Config *config, Dsv3JsonReader *reader)
{
	int32_t per_group;

	if (reader->failed)
		return;
	if (config->n_routed_experts % config->n_group != 0)
	{
		dsv3_json_fail(reader, DSV3_ERR_BAD_FILE, "n_group",
					   "is %d, which does not divide n_routed_experts, %d", config->n_group,
					   config->n_routed_experts);
		return;
	}
	per_group = config->n_routed_experts / config->n_group;
	if (config->topk_group > config->n_group)
		dsv3_json_fail(reader, DSV3_ERR_BAD_FILE, "topk_group", "is %d, more than n_group, %d",
					   config->topk_group, config->n_group);
	else if (config->routing == DSV3_ROUTING_NOAUX_TC && config->n_group > 1 && per_group < 2)
		dsv3_json_fail(reader, DSV3_ERR_BAD_FILE, "n_group",
					   "is %d with %d experts, but a group is scored by its two best experts",
					   config->n_group, config->n_routed_experts);
	else if (config->n_experts_per_token > config->topk_group * per_group)
		dsv3_json_fail(reader, DSV3_ERR_BAD_FILE, "num_experts_per_tok",
					   "is %d, but only %d experts can be chosen", config->n_experts_per_token,
					   config->topk_group * per_group);
}

static void
read_experts(Dsv3Config *config, Dsv3JsonReader *reader)
{
	bool v2 = config->is_v2;
	int64_t frequency;

	config->first_dense = read_size(reader, "first_k_dense_replace", v2 ? 0 : 3, 0, INT32_MAX);
	if (config->first_dense > config->n_layers)
		config->first_dense = config->n_layers;
	/* DeepSeek's own code takes null to mean a dense model. */
	if (json_is_null(json_object_get(reader->object, "n_routed_experts")))
		config->n_routed_experts = 0;
	else
		config->n_routed_experts =
			read_aliased(reader, "n_routed_experts", v2 ? "num_experts" : "num_local_experts", v2 ? 64 : 256,
						 0, DSV3_MAX_EXPERTS);
	if (config->n_routed_experts == 0)
		config->first_dense = config->n_layers;
	config->n_mtp_layers =
		read_aliased(reader, "num_nextn_predict_layers", "num_mtp_layers", 0, 0, DSV3_MAX_LAYERS);
	if (reader->failed || config->first_dense == config->n_layers)
	{
		config->n_routed_experts = 0;
		config->n_group = config->topk_group = 1;
		return;
	}

	frequency = dsv3_json_int(reader, "moe_layer_freq", 1, 1, INT32_MAX);
	if (!reader->failed && frequency != 1)
		dsv3_json_fail(reader, DSV3_ERR_UNSUPPORTED, "moe_layer_freq", "is %lld, only 1 is supported",
					   (long long) frequency);
	config->moe_intermediate_size =
		read_size(reader, "moe_intermediate_size", v2 ? 1407 : 2048, 1, DSV3_MAX_WIDTH);
	if (json_is_null(json_object_get(reader->object, "n_shared_experts")))
		config->n_shared_experts = 0;
	else
		config->n_shared_experts = read_size(reader, "n_shared_experts", v2 ? 2 : 1, 0, 1024);
	config->n_experts_per_token = read_size(reader, "num_experts_per_tok", v2 ? 0 : 8, 1, DSV3_MAX_EXPERTS);
	if (!reader->failed && config->n_experts_per_token == 0)
		dsv3_json_fail(reader, DSV3_ERR_BAD_FILE, "num_experts_per_tok", "is missing");
	read_routing(config, reader);
	config->n_group = config->topk_group = 1;
	if (config->routing != DSV3_ROUTING_GREEDY)
	{
		/* null means one group; absent means the default of the configuration class. */
		bool no_groups = v2 || json_is_null(json_object_get(reader->object, "n_group"));

		config->n_group = read_size(reader, "n_group", no_groups ? 1 : 8, 1, DSV3_MAX_EXPERTS);
		config->topk_group = read_size(reader, "topk_group", no_groups ? 1 : 4, 1, DSV3_MAX_EXPERTS);
	}
	config->norm_topk_prob = !v2 && dsv3_json_bool(reader, "norm_topk_prob", true);
	config->routed_scaling_factor =
		(float) dsv3_json_number(reader, "routed_scaling_factor", v2 ? 1.0 : 2.5, -1e6, 1e6);
	check_groups(config, reader);
}

/* quantization_config stands in the text model's object or, for a nested model, outside it. */
static void
read_quantization(Dsv3Config *config, Dsv3JsonReader *reader)
{
	const json_t *object = dsv3_json_object(reader, "quantization_config");
	Dsv3JsonReader sub = {
		.object = object, .file = reader->file, .where = "quantization_config.", .err = reader->err};
	const json_t *block;
	const char *method;
	const char *format;
	char shown[DSV3_SHOWN_NAME];

	if (reader->failed || object == NULL)
		return;
	method = dsv3_json_string(&sub, "quant_method", "");
	format = dsv3_json_string(&sub, "fmt", "e4m3");
	block = dsv3_json_get(&sub, "weight_block_size");
	if (sub.failed)
	{
		reader->failed = true;
		return;
	}
	if (strcmp(method, "compressed-tensors") == 0)
	{
		dsv3_json_fail(&sub, DSV3_ERR_UNSUPPORTED, "quant_method",
					   "\"compressed-tensors\" (int4 experts, as in Kimi-K2-Thinking) is not supported");
		dsv3_error_hint(reader->err, "Use the BF16 or FP8 checkpoint of the model.");
	}
	else if (strcmp(method, "fp8") != 0)
	{
		dsv3_json_fail(&sub, DSV3_ERR_UNSUPPORTED, "quant_method", "\"%s\" is not supported",
					   dsv3_shown_name(shown, method));
		dsv3_error_hint(reader->err, "Supported are unquantised checkpoints and FP8 with 128 x 128 blocks.");
	}
	else if (strcmp(format, "e4m3") != 0)
		dsv3_json_fail(&sub, DSV3_ERR_UNSUPPORTED, "fmt", "\"%s\" is not supported, only \"e4m3\" is",
					   dsv3_shown_name(shown, format));
	else if (block && (json_array_size(block) != 2 || json_integer_value(json_array_get(block, 0)) != 128 ||
					   json_integer_value(json_array_get(block, 1)) != 128))
		dsv3_json_fail(&sub, DSV3_ERR_UNSUPPORTED, "weight_block_size", "must be [128, 128]");
	reader->failed = sub.failed;
	config->fp8_blocks = !sub.failed;
}

/* eos_token_id: an id or a list of ids. Returns false when the key is absent or null. */
static bool
read_eos(Dsv3Config *config, Dsv3JsonReader *reader)
{
	const json_t *value = dsv3_json_get(reader, "eos_token_id");
	size_t n = json_is_array(value) ? json_array_size(value) : 1;

	if (reader->failed || value == NULL)
		return false;
	if (n > DSV3_MAX_EOS)
	{
		dsv3_json_fail(reader, DSV3_ERR_UNSUPPORTED, "eos_token_id", "has %zu ids, at most %d are supported",
					   n, DSV3_MAX_EOS);
		return false;
	}
	config->n_eos = 0;
	for (size_t i = 0; i < n; i++)
	{
		const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;

		if (!json_is_integer(item) || json_integer_value(item) < 0 ||
			json_integer_value(item) >= config->vocab_size)
		{
			dsv3_json_fail(reader, DSV3_ERR_BAD_FILE, "eos_token_id",
						   "must be an id or a list of ids from 0 to %d (vocab_size is %d)",
						   config->vocab_size - 1, config->vocab_size);
			return false;
		}
		config->eos_ids[config->n_eos++] = (int32_t) json_integer_value(item);
	}
	return true;
}

/* bos and eos: generation_config.json where it says something, config.json otherwise. */
static void
read_token_ids(Dsv3Config *config, Dsv3JsonReader *reader, Dsv3JsonReader *generation)
{
	int64_t bos = -1;
	bool explicit_null = json_is_null(json_object_get(reader->object, "bos_token_id"));

	if (!read_eos(config, reader) && !reader->failed &&
		json_object_get(reader->object, "eos_token_id") == NULL)
	{
		/* The configuration class's default, where the vocabulary has it. */
		config->eos_ids[0] = config->is_v2 ? 2 : 1;
		config->n_eos = config->eos_ids[0] < config->vocab_size ? 1 : 0;
	}
	if (!explicit_null)
		bos = dsv3_json_int(reader, "bos_token_id", config->is_v2 ? 1 : 0, 0, config->vocab_size - 1);
	if (bos >= config->vocab_size)
		bos = -1;
	if (generation->object)
	{
		read_eos(config, generation);
		bos = dsv3_json_int(generation, "bos_token_id", bos, 0, config->vocab_size - 1);
	}
	config->bos_id = (int32_t) bos;
	reader->failed = reader->failed || generation->failed;
}

static bool
parse_objects(Dsv3Config *config, const json_t *root, const json_t *generation_root, Dsv3Error *err)
{
	Dsv3JsonReader outer = {.object = root, .file = CONFIG_FILE, .where = "", .err = err};
	Dsv3JsonReader generation = {.object = generation_root, .file = GENERATION_FILE, .where = "", .err = err};
	Dsv3JsonReader reader = outer;

	if (!read_architecture(config, &outer))
		return false;
	if (config->nested)
	{
		const char *type;
		char shown[DSV3_SHOWN_NAME];

		reader.object = dsv3_json_object(&outer, "text_config");
		reader.where = "text_config.";
		if (!outer.failed && reader.object == NULL)
			dsv3_json_fail(&outer, DSV3_ERR_BAD_FILE, "text_config", "is missing");
		if (outer.failed)
			return false;
		type = dsv3_json_string(&reader, "model_type", "deepseek_v3");
		if (!reader.failed && strcmp(type, "kimi_k2") != 0 && strcmp(type, "deepseek_v3") != 0)
			dsv3_json_fail(&reader, DSV3_ERR_UNSUPPORTED, "model_type", "\"%s\" is not supported",
						   dsv3_shown_name(shown, type));
		read_quantization(config, &outer);
		if (outer.failed)
			return false;
	}
	read_quantization(config, &reader);
	read_sizes(config, &reader);
	read_experts(config, &reader);
	if (!reader.failed)
		dsv3_config_read_rope(config, &reader);
	if (!reader.failed)
		read_token_ids(config, &reader, &generation);
	return !reader.failed;
}

bool
dsv3_config_parse(Dsv3Config *config, const char *json, size_t len, const char *generation,
				  size_t generation_len, Dsv3Error *err)
{
	json_t *root;
	json_t *generation_root = NULL;
	bool ok = true;

	memset(config, 0, sizeof(*config));
	root = dsv3_json_parse_object(json, len, CONFIG_FILE, err);
	if (root == NULL)
		return false;
	if (generation)
	{
		generation_root = dsv3_json_parse_object(generation, generation_len, GENERATION_FILE, err);
		ok = generation_root != NULL;
	}
	ok = ok && parse_objects(config, root, generation_root, err);
	json_decref(root);
	json_decref(generation_root);
	if (!ok)
		dsv3_config_close(config);
	return ok;
}

bool
dsv3_config_open(Dsv3Config *config, const char *model_dir, Dsv3Error *err)
{
	Dsv3Error generation_err;
	size_t len = 0;
	size_t generation_len = 0;
	char *json;
	char *generation = NULL;
	bool ok;

	memset(config, 0, sizeof(*config));
	json = dsv3_read_file(model_dir, CONFIG_FILE, MAX_CONFIG_FILE, &len, err);
	if (json == NULL)
	{
		if (err && strcmp(err->sqlstate, DSV3_ERR_NO_FILE) == 0)
			dsv3_error_hint(err, "A model is a Hugging Face directory with config.json, tokenizer files and "
								 "*.safetensors, or a "
								 "pack.");
		return false;
	}
	memset(&generation_err, 0, sizeof(generation_err));
	generation =
		dsv3_read_file(model_dir, GENERATION_FILE, MAX_CONFIG_FILE, &generation_len, &generation_err);
	if (generation == NULL && strcmp(generation_err.sqlstate, DSV3_ERR_NO_FILE) != 0)
	{
		if (err)
			*err = generation_err;
		ok = false;
	}
	else
		ok = dsv3_config_parse(config, json, len, generation, generation_len, err);
	free(generation);
	free(json);
	return ok;
}

void
dsv3_config_close(Dsv3Config *config)
{
	if (config->rope.inv_freq_long != config->rope.inv_freq)
		free(config->rope.inv_freq_long);
	free(config->rope.inv_freq);
	config->rope.inv_freq = config->rope.inv_freq_long = NULL;
}

int64_t
dsv3_config_kv_bytes(const Dsv3Config *config)
{
	return (int64_t) config->n_layers * (config->kv_lora_rank + config->qk_rope_dim) *
		   (int64_t) sizeof(float);
}

static int64_t
clamp_count(__int128 n)
{
	return n > INT64_MAX ? INT64_MAX : (int64_t) n;
}

void
dsv3_config_count(const Dsv3Config *config, Dsv3ParamCounts *counts)
{
	__int128 h = config->hidden_size;
	__int128 a = config->n_heads;
	__int128 latent = config->kv_lora_rank;
	__int128 qk = config->qk_nope_dim + config->qk_rope_dim;
	__int128 rank = config->q_lora_rank;
	__int128 layers = config->n_layers;
	__int128 moe = config->n_layers - config->first_dense;
	__int128 experts = config->n_routed_experts;
	__int128 q = rank == 0 ? a * qk * h : rank * h + a * qk * rank;
	__int128 kv = (latent + config->qk_rope_dim) * h + a * (config->qk_nope_dim + config->v_dim) * latent;
	__int128 embed = (__int128) config->vocab_size * h;
	__int128 head = config->tie_word_embeddings ? 0 : embed;
	__int128 attention = layers * (q + kv + h * a * config->v_dim);
	__int128 dense = (__int128) config->first_dense * 3 * h * config->intermediate_size;
	__int128 expert = 3 * h * config->moe_intermediate_size;
	__int128 shared = moe * config->n_shared_experts * expert;
	__int128 router = moe * experts * h;
	__int128 bias = config->attention_bias ? rank + latent + config->qk_rope_dim + h : 0;
	__int128 vectors = layers * (2 * h + rank + latent + bias) + h + (config->is_v2 ? 0 : moe * experts);
	__int128 fixed = attention + dense + shared + router + vectors;

	counts->embed = clamp_count(embed);
	counts->head = clamp_count(head);
	counts->attention = clamp_count(attention);
	counts->dense = clamp_count(dense);
	counts->experts = clamp_count(moe * experts * expert);
	counts->shared = clamp_count(shared);
	counts->router = clamp_count(router);
	counts->vectors = clamp_count(vectors);
	counts->total = clamp_count(fixed + embed + head + moe * experts * expert);
	counts->active = clamp_count(fixed + embed + moe * config->n_experts_per_token * expert);
}
