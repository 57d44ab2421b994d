/*
 * test_config.c
 *	  config.json and generation_config.json: derived values against transformers, accepted spellings, every refusal.
 *
 * The frequency, scale and attention values are what transformers 5.24 (torch 2.15, CPU) computes for the same
 * configuration, as exact F32 numbers.
 */
#include "fixture.h"

#include <math.h>

#include "model/config.h"

/* Parse text as config.json. */
static bool
parse_text(Dsv3Config *config, const char *text, Dsv3Error *err)
{
	memset(err, 0, sizeof(*err));
	return dsv3_config_parse(config, text, strlen(text), NULL, 0, err);
}

static bool
parse_json(Dsv3Config *config, json_t *json, Dsv3Error *err)
{
	char *text = json_dumps(json, JSON_REAL_PRECISION(17));
	bool ok;

	assert_non_null(text);
	ok = parse_text(config, text, err);
	free(text);
	return ok;
}

/* The fixture's configuration with keys merged in from JSON text; a null there is kept as null, "@drop" removes a key. */
static json_t *
changed(const char *changes)
{
	json_t *json = fixture_config();
	json_t *extra = json_loads(changes, 0, NULL);
	const char *key;
	json_t *value;

	if (extra == NULL)
		fail_msg("bad changes: %s", changes);
	json_object_foreach (extra, key, value)
	{
		if (json_is_string(value) && strcmp(json_string_value(value), "@drop") == 0)
			json_object_del(json, key);
		else
			json_object_set(json, key, value);
	}
	json_decref(extra);
	return json;
}

static void
accept(Dsv3Config *config, const char *changes)
{
	Dsv3Error err;
	json_t *json = changed(changes);

	if (!parse_json(config, json, &err))
		fail_msg("%s refused: %s %s", changes, err.sqlstate, err.message);
	json_decref(json);
}

static void
refuse(const char *changes, const char *sqlstate, const char *text1, const char *text2)
{
	Dsv3Config config;
	Dsv3Error err;
	json_t *json = changed(changes);

	if (parse_json(&config, json, &err))
		fail_msg("%s was accepted", changes);
	assert_error(&err, sqlstate, "config.json", text1, text2, NULL);
	json_decref(json);
}

typedef struct Golden
{
	int lane;
	float short_value;
	float long_value;
} Golden;

/* All given lanes exactly, with qk dims 128 and 64 unless the changes say otherwise. */
static void
check_rope(const char *changes, float scale, float attention, const Golden *golden, int n)
{
	Dsv3Config config;

	accept(&config, changes);
	assert_true(config.softmax_scale == scale);
	assert_true(config.rope.attention_factor == attention);
	for (int i = 0; i < n; i++)
	{
		float f = config.rope.inv_freq[golden[i].lane];
		float g = config.rope.inv_freq_long[golden[i].lane];

		if (f != golden[i].short_value ||
			g != (golden[i].long_value == 0 ? golden[i].short_value : golden[i].long_value))
			fail_msg("%s: lane %d is %a and %a", changes, golden[i].lane, (double) f, (double) g);
	}
	dsv3_config_close(&config);
}

#define DIMS "\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,"
#define N(a) ((int) (sizeof(a) / sizeof((a)[0])))

static void
test_rope_golden(void **state)
{
	static const Golden v3[] = {{0, 1.0f, 0},
								{1, 0x1.7ff222p-1f, 0},
								{3, 0x1.afd136p-2f, 0},
								{9, 0x1.33281ap-4f, 0},
								{10, 0x1.ccab84p-5f, 0},
								{11, 0x1.3f8b74p-5f, 0},
								{15, 0x1.111aeep-7f, 0},
								{19, 0x1.67459ap-10f, 0},
								{22, 0x1.74eea6p-13f, 0},
								{23, 0x1.17a8e2p-15f, 0},
								{31, 0x1.bf749ep-19f, 0}};
	static const Golden k2[] = {{1, 0x1.6d1ce6p-1f, 0},   {9, 0x1.86aa46p-5f, 0},   {19, 0x1.a92278p-10f, 0},
								{20, 0x1.2f2b10p-15f, 0}, {23, 0x1.b7c26ep-17f, 0}, {31, 0x1.d6892cp-21f, 0}};
	static const Golden k25[] = {{9, 0x1.669e4ep-5f, 0}, {15, 0x1.5dfd2cp-9f, 0}, {31, 0x1.d6892cp-22f, 0}};
	static const Golden moonlight[] = {
		{9, 0x1.86aa46p-5f, 0}, {20, 0x1.2f2b10p-10f, 0}, {31, 0x1.d6892cp-16f, 0}};
	static const Golden not_truncated[] = {
		{1, 0x1.77b7fap-1f, 0}, {9, 0x1.f9813ap-5f, 0}, {15, 0x1.9900c0p-8f, 0}, {31, 0x1.1dc890p-16f, 0}};
	static const Golden linear[] = {
		{1, 0x1.ffed82p-3f, 0}, {15, 0x1.234feep-8f, 0}, {31, 0x1.74e130p-15f, 0}};
	static const Golden longrope[] = {{1, 0x1.5d0aaap-1f, 0x1.665976p-2f},
									  {15, 0x1.5d931ep-8f, 0x1.a5e684p-9f},
									  {31, 0x1.10d6bap-15f, 0x1.5c0560p-16f}};
	static const Golden wide[] = {
		{15, 0x1.b4f7e4p-7f, 0}, {24, 0x1.0624dep-10f, 0}, {31, 0x1.eec85ap-14f, 0}};
	static const Golden small[] = {{1, 0x1.4cb366p-4f, 0}, {3, 0x1.a1720ep-14f, 0}};
	char text[2048];
	int used;

	(void) state;
	check_rope("{" DIMS
			   "\"max_position_embeddings\":163840,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,"
			   "\"original_max_position_embeddings\":4096,\"beta_fast\":32,\"beta_slow\":1,\"mscale\":1.0,"
			   "\"mscale_all_dim\":1.0}}",
			   0.1352337788608801f, 1.0f, v3, N(v3));
	check_rope("{" DIMS "\"max_position_embeddings\":131072,\"rope_theta\":50000.0,\"rope_scaling\":{"
			   "\"type\":\"yarn\",\"factor\":32.0,"
			   "\"original_max_position_embeddings\":4096,\"beta_fast\":1.0,\"beta_slow\":1.0,\"mscale\":1.0,"
			   "\"mscale_all_dim\":1.0}}",
			   0.13086079996295005f, 1.0f, k2, N(k2));
	check_rope("{" DIMS "\"max_position_embeddings\":262144,\"rope_theta\":50000.0,\"rope_scaling\":{"
			   "\"type\":\"yarn\",\"factor\":64.0,"
			   "\"original_max_position_embeddings\":4096,\"beta_fast\":32.0,\"beta_slow\":1.0,\"mscale\":1."
			   "0,\"mscale_all_dim\":1.0}}",
			   0.14467962580268923f, 1.0f, k25, N(k25));
	check_rope("{" DIMS "\"max_position_embeddings\":8192,\"rope_theta\":50000.0,\"rope_scaling\":null}",
			   0.07216878364870322f, 1.0f, moonlight, N(moonlight));
	/* mscale and mscale_all_dim differ, and V2-Lite's scale */
	check_rope("{" DIMS
			   "\"max_position_embeddings\":163840,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,"
			   "\"original_max_position_embeddings\":4096,\"beta_fast\":32,\"beta_slow\":1,\"mscale\":1.0,"
			   "\"mscale_all_dim\":0.707}}",
			   0.1147213867929261f, 1.0857263992561355f, v3, N(v3));
	/* no mscale at all: cos and sin grow, the scale does not; transformers 5 spelling, type beside rope_type, no truncation */
	check_rope(
		"{" DIMS
		"\"max_position_embeddings\":16384,\"rope_theta\":77,\"rope_parameters\":{\"rope_type\":\"yarn\","
		"\"type\":\"yarn\",\"rope_theta\":20000.0,\"factor\":4.0,\"truncate\":false,\"original_max_position_"
		"embeddings\":4096}}",
		0.07216878364870322f, 1.138629436111989f, not_truncated, N(not_truncated));
	check_rope("{" DIMS "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":3.0}}", 0.07216878364870322f,
			   1.0f, linear, N(linear));
	check_rope("{" DIMS "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":3.0,\"mscale_all_dim\":0.5}}",
			   0.08031509500224254f, 1.0f, linear, N(linear));
	/* the ramp ends past the last frequency */
	check_rope("{" DIMS
			   "\"max_position_embeddings\":4194304,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,"
			   "\"original_max_position_embeddings\":1048576,\"mscale\":1.0,\"mscale_all_dim\":1.0}}",
			   0.09356516759751214f, 1.0f, wide, N(wide));
	check_rope(
		"{\"qk_nope_head_dim\":6,\"qk_rope_head_dim\":10,\"max_position_embeddings\":6400,\"rope_scaling\":{"
		"\"type\":\"yarn\","
		"\"factor\":40,\"original_max_position_embeddings\":160,\"mscale\":1.0,\"mscale_all_dim\":1.0}}",
		0.46846355177315663f, 1.0f, small, N(small));

	used = snprintf(text, sizeof(text),
					"{" DIMS "\"max_position_embeddings\":16384,\"rope_scaling\":{\"rope_type\":\"longrope\","
					"\"factor\":4.0,\"original_max_position_embeddings\":4096,\"short_factor\":[");
	for (int i = 0; i < 32; i++)
		used += snprintf(text + used, sizeof(text) - (size_t) used, "%s%.17g", i ? "," : "", 1.0 + i / 10.0);
	used += snprintf(text + used, sizeof(text) - (size_t) used, "],\"long_factor\":[");
	for (int i = 0; i < 32; i++)
		used += snprintf(text + used, sizeof(text) - (size_t) used, "%s%.17g", i ? "," : "", 2.0 + i / 7.0);
	snprintf(text + used, sizeof(text) - (size_t) used, "]}}");
	check_rope(text, 0.07216878364870322f, 1.0801234497346435f, longrope, N(longrope));
}

static void
test_rope_switch(void **state)
{
	Dsv3Config config;

	(void) state;
	accept(&config, "{\"max_position_embeddings\":8192,\"rope_theta\":1.0,\"rope_scaling\":{\"rope_type\":"
					"\"longrope\",\"factor\":1.0,"
					"\"attention_factor\":1.0,\"short_factor\":[1,4],\"long_factor\":[2,8],\"original_max_"
					"position_embeddings\":64}}");
	assert_int_equal(config.rope.long_from, 64);
	assert_true(config.rope.inv_freq[1] == 0.25f && config.rope.inv_freq_long[1] == 0.125f);
	assert_true(config.rope.interleaved);
	dsv3_config_close(&config);

	/* original_max_position_embeddings at the top level wins; absent everywhere it is max_position_embeddings */
	accept(&config, "{\"original_max_position_embeddings\":32,\"rope_scaling\":{\"rope_type\":\"longrope\","
					"\"short_factor\":[1,1],"
					"\"long_factor\":[1,1],\"original_max_position_embeddings\":64}}");
	assert_int_equal(config.rope.long_from, 32);
	assert_true(config.rope.factor == 4.0);
	dsv3_config_close(&config);
	accept(&config,
		   "{\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1],\"long_factor\":[1,1]}}");
	assert_int_equal(config.rope.long_from, 128);
	dsv3_config_close(&config);

	/* lanes that never turn: 2^100, and a period past F32 */
	accept(
		&config,
		"{\"rope_theta\":1e30,\"rope_scaling\":{\"rope_type\":\"longrope\",\"factor\":1.0,\"short_factor\":"
		"[1.2676506002282294e30,1e37],\"long_factor\":[1,1]}}");
	assert_true(config.rope.inv_freq[0] == 0x1p-100f && config.rope.inv_freq[1] == 0.0f);
	dsv3_config_close(&config);

	accept(&config, "{\"rope_interleave\":false,\"rope_scaling\":{},\"rope_parameters\":{\"rope_theta\":500,"
					"\"rope_type\":\"default\"}}");
	assert_false(config.rope.interleaved);
	assert_true(config.rope.theta == 500);
	assert_int_equal(config.rope.long_from, INT32_MAX);
	assert_ptr_equal(config.rope.inv_freq, config.rope.inv_freq_long);
	dsv3_config_close(&config);
}

static void
test_rope_refused(void **state)
{
	(void) state;
	refuse("{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8}}", DSV3_ERR_UNSUPPORTED,
		   "rope_scaling.rope_type", "\"llama3\"");
	refuse("{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":8}}", DSV3_ERR_UNSUPPORTED, "\"dynamic\"",
		   "length of the sequence");
	refuse("{\"rope_scaling\":{\"type\":7}}", DSV3_ERR_BAD_FILE, "rope_scaling.type", "must be a string");
	refuse("{\"rope_scaling\":[1]}", DSV3_ERR_BAD_FILE, "rope_scaling", "must be an object");
	refuse("{\"rope_scaling\":{\"type\":\"linear\"}}", DSV3_ERR_BAD_FILE, "factor", "is missing");
	refuse("{\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", DSV3_ERR_BAD_FILE, "rope_scaling.factor",
		   "between");
	refuse("{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":-4}}", DSV3_ERR_BAD_FILE, "rope_scaling.factor",
		   "-4");
	refuse("{\"rope_theta\":1,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}", DSV3_ERR_BAD_FILE,
		   "rope_theta", "more than 1");
	refuse("{\"rope_theta\":-1}", DSV3_ERR_BAD_FILE, "rope_theta", "between");
	refuse("{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":0}}",
		   DSV3_ERR_BAD_FILE, "original_max_position_embeddings", "is 0");
	refuse("{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"beta_fast\":-1}}", DSV3_ERR_BAD_FILE,
		   "beta_fast", "-1");
	refuse("{\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1]}}", DSV3_ERR_BAD_FILE,
		   "long_factor", "array of 2");
	refuse("{\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1],\"long_factor\":[1]}}",
		   DSV3_ERR_BAD_FILE, "long_factor", "array of 2");
	refuse("{\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,0],\"long_factor\":[1,1]}}",
		   DSV3_ERR_BAD_FILE, "short_factor", "index 1");
	refuse("{\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,\"x\"],\"long_factor\":[1,1]}}",
		   DSV3_ERR_BAD_FILE, "short_factor", "index 1");
	refuse("{\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1],\"long_factor\":[1,1],\"mscale_"
		   "all_dim\":1}}",
		   DSV3_ERR_BAD_FILE, "factor", "mscale_all_dim needs it");
	refuse("{\"partial_rotary_factor\":0.5}", DSV3_ERR_UNSUPPORTED, "partial_rotary_factor", "not supported");
}

static void
test_sizes(void **state)
{
	Dsv3Config c;

	(void) state;
	accept(&c, "{}");
	assert_string_equal(c.architecture, "DeepseekV3ForCausalLM");
	assert_int_equal(c.vocab_size, 32);
	assert_int_equal(c.n_layers, 2);
	assert_int_equal(c.n_heads, 2);
	assert_int_equal(c.q_lora_rank, 8);
	assert_int_equal(c.kv_lora_rank, 8);
	assert_int_equal(c.qk_nope_dim, 6);
	assert_int_equal(c.qk_rope_dim, 4);
	assert_int_equal(c.v_dim, 5);
	assert_int_equal(c.intermediate_size, 24);
	assert_int_equal(c.moe_intermediate_size, 12);
	assert_int_equal(c.n_routed_experts, 4);
	assert_int_equal(c.n_group, 2);
	assert_int_equal(c.topk_group, 1);
	assert_int_equal(c.n_experts_per_token, 2);
	assert_int_equal(c.routing, DSV3_ROUTING_NOAUX_TC);
	assert_true(c.norm_topk_prob);
	assert_true(c.routed_scaling_factor == 2.5f);
	assert_true(c.rms_norm_eps == 1e-6f && c.latent_norm_eps == 1e-6f);
	assert_int_equal(c.bos_id, 0);
	assert_int_equal(c.n_eos, 1);
	assert_int_equal(c.eos_ids[0], 1);
	assert_int_equal(dsv3_config_kv_bytes(&c), 2 * (8 + 4) * 4);
	dsv3_config_close(&c);

	/* eps of the latent norms never follows rms_norm_eps */
	accept(&c, "{\"rms_norm_eps\":1e-5,\"q_lora_rank\":null,\"num_key_value_heads\":null,\"dtype\":"
			   "\"bfloat16\",\"torch_dtype\":\"x\"}");
	assert_true(c.rms_norm_eps == 1e-5f && c.latent_norm_eps == 1e-6f);
	assert_int_equal(c.q_lora_rank, 0);
	assert_string_equal(c.stored_dtype, "bfloat16");
	dsv3_config_close(&c);
	accept(&c, "{\"q_lora_rank\":0,\"n_routed_experts\":\"@drop\",\"num_local_experts\":6,\"n_group\":null,"
			   "\"topk_group\":null}");
	assert_int_equal(c.q_lora_rank, 0);
	assert_int_equal(c.n_routed_experts, 6);
	assert_int_equal(c.n_group, 1);
	dsv3_config_close(&c);
	accept(&c, "{\"q_lora_rank\":\"@drop\",\"first_k_dense_replace\":9,\"num_experts_per_tok\":null}");
	assert_int_equal(c.q_lora_rank, 1536);
	assert_int_equal(c.first_dense, 2);
	assert_int_equal(c.n_routed_experts, 0);
	dsv3_config_close(&c);
}

static void
test_token_ids(void **state)
{
	static const char generation[] = "{\"eos_token_id\":[7,9],\"bos_token_id\":3}";
	Dsv3Config c;
	Dsv3Error err;
	json_t *json = changed("{\"eos_token_id\":5,\"bos_token_id\":null}");
	char *text = json_dumps(json, 0);

	(void) state;
	assert_true(dsv3_config_parse(&c, text, strlen(text), NULL, 0, &err));
	assert_int_equal(c.n_eos, 1);
	assert_int_equal(c.eos_ids[0], 5);
	assert_int_equal(c.bos_id, -1);
	dsv3_config_close(&c);
	assert_true(dsv3_config_parse(&c, text, strlen(text), generation, strlen(generation), &err));
	assert_int_equal(c.n_eos, 2);
	assert_int_equal(c.eos_ids[1], 9);
	assert_int_equal(c.bos_id, 3);
	dsv3_config_close(&c);
	assert_true(dsv3_config_parse(&c, text, strlen(text), "{}", 2, &err));
	assert_int_equal(c.eos_ids[0], 5);
	dsv3_config_close(&c);
	assert_false(dsv3_config_parse(&c, text, strlen(text), "{\"eos_token_id\":32}", 19, &err));
	assert_error(&err, DSV3_ERR_BAD_FILE, "generation_config.json", "eos_token_id", "vocab_size", NULL);
	assert_false(dsv3_config_parse(&c, text, strlen(text), "[", 1, &err));
	assert_error(&err, DSV3_ERR_BAD_FILE, "generation_config.json", "not valid JSON", NULL);
	free(text);
	json_decref(json);

	accept(&c, "{\"eos_token_id\":[]}");
	assert_int_equal(c.n_eos, 0);
	dsv3_config_close(&c);
	refuse("{\"eos_token_id\":-1}", DSV3_ERR_BAD_FILE, "eos_token_id", "0 to 31");
	refuse("{\"eos_token_id\":[1,1.5]}", DSV3_ERR_BAD_FILE, "eos_token_id", "list of ids");
	refuse("{\"eos_token_id\":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}", DSV3_ERR_UNSUPPORTED, "eos_token_id",
		   "at most 16");
	refuse("{\"bos_token_id\":32}", DSV3_ERR_BAD_FILE, "bos_token_id", "between 0 and 31");
}

static void
test_architectures(void **state)
{
	Dsv3Config c;
	Dsv3Error err;

	(void) state;
	accept(&c, "{\"architectures\":null,\"model_type\":\"kimi_k2\"}");
	assert_string_equal(c.model_type, "kimi_k2");
	assert_string_equal(c.architecture, "DeepseekV3ForCausalLM");
	dsv3_config_close(&c);

	accept(&c, "{\"architectures\":[\"DeepseekV2ForCausalLM\"],\"model_type\":\"deepseek_v2\",\"topk_"
			   "method\":\"greedy\","
			   "\"rope_interleave\":false,\"norm_topk_prob\":true,\"n_group\":3}");
	assert_true(c.is_v2);
	assert_int_equal(c.routing, DSV3_ROUTING_GREEDY);
	assert_int_equal(c.n_group, 1);
	assert_false(c.norm_topk_prob);
	assert_true(c.rope.interleaved);
	assert_true(c.routed_scaling_factor == 1.0f);
	dsv3_config_close(&c);
	accept(&c, "{\"architectures\":[\"DeepseekV2ForCausalLM\"],\"model_type\":\"deepseek_v2\",\"topk_"
			   "method\":\"group_limited_greedy\","
			   "\"scoring_func\":\"softmax\",\"n_routed_experts\":\"@drop\",\"num_experts\":8}");
	assert_int_equal(c.routing, DSV3_ROUTING_GROUP_LIMITED_GREEDY);
	assert_int_equal(c.n_routed_experts, 8);
	assert_int_equal(c.n_group, 2);
	dsv3_config_close(&c);

	assert_true(parse_text(
		&c,
		"{\"architectures\":[\"KimiK25ForConditionalGeneration\"],\"model_type\":\"kimi_k25\",\"text_"
		"config\":{"
		"\"model_type\":\"kimi_k2\",\"hidden_size\":64,\"n_group\":1,\"topk_group\":1,\"eos_token_id\":9}}",
		&err));
	assert_true(c.nested);
	assert_int_equal(c.hidden_size, 64);
	assert_int_equal(c.eos_ids[0], 9);
	dsv3_config_close(&c);
	assert_false(parse_text(&c, "{\"model_type\":\"kimi_k25\"}", &err));
	assert_error(&err, DSV3_ERR_BAD_FILE, "text_config", "missing", NULL);
	assert_false(
		parse_text(&c, "{\"model_type\":\"kimi_k25\",\"text_config\":{\"model_type\":\"llama\"}}", &err));
	assert_error(&err, DSV3_ERR_UNSUPPORTED, "text_config.model_type", "llama", NULL);
	assert_false(parse_text(&c, "{\"model_type\":\"kimi_k25\",\"text_config\":{\"hidden_size\":-2}}", &err));
	assert_error(&err, DSV3_ERR_BAD_FILE, "text_config.hidden_size", "-2", NULL);

	refuse("{\"architectures\":[\"DeepseekV32ForCausalLM\"]}", DSV3_ERR_UNSUPPORTED, "DeepseekV32ForCausalLM",
		   "Supported are");
	refuse("{\"architectures\":null,\"model_type\":\"qwen2\"}", DSV3_ERR_UNSUPPORTED, "model_type", "qwen2");
	refuse("{\"model_type\":\"deepseek_v2\"}", DSV3_ERR_BAD_FILE, "model_type", "contradicts");
	refuse("{\"architectures\":\"x\"}", DSV3_ERR_BAD_FILE, "architectures", "array");
	refuse("{\"architectures\":null,\"model_type\":null}", DSV3_ERR_BAD_FILE, "architectures", "missing");
	/* a name from a hostile file reaches the message without control characters */
	refuse("{\"architectures\":[\"a\\nb\\u001bc\"]}", DSV3_ERR_UNSUPPORTED, "a?b?c", "architectures");
}

static void
test_sizes_refused(void **state)
{
	static const char *const sizes[] = {"vocab_size",
										"hidden_size",
										"num_hidden_layers",
										"num_attention_heads",
										"kv_lora_rank",
										"qk_nope_head_dim",
										"qk_rope_head_dim",
										"v_head_dim",
										"intermediate_size",
										"moe_intermediate_size",
										"max_position_embeddings",
										"num_experts_per_tok",
										"n_group",
										"topk_group"};
	static const char *const values[] = {"0",
										 "-1",
										 "-9223372036854775808",
										 "9223372036854775807",
										 "4611686018427387904",
										 "2147483648",
										 "1.5",
										 "8.0",
										 "\"8\"",
										 "[8]",
										 "true"};
	char changes[256];

	(void) state;
	for (int i = 0; i < N(sizes); i++)
	{
		for (int v = 0; v < N(values); v++)
		{
			snprintf(changes, sizeof(changes), "{\"%s\":%s}", sizes[i], values[v]);
			refuse(changes, DSV3_ERR_BAD_FILE, sizes[i], "must be");
		}
	}
	refuse("{\"q_lora_rank\":-1}", DSV3_ERR_BAD_FILE, "q_lora_rank", "between 0");
	refuse("{\"qk_rope_head_dim\":5}", DSV3_ERR_BAD_FILE, "qk_rope_head_dim", "even");
	refuse("{\"n_routed_experts\":-3}", DSV3_ERR_BAD_FILE, "n_routed_experts", "-3");
	refuse("{\"n_routed_experts\":4,\"num_local_experts\":8}", DSV3_ERR_BAD_FILE, "num_local_experts",
		   "n_routed_experts is 4");
	refuse("{\"first_k_dense_replace\":-1}", DSV3_ERR_BAD_FILE, "first_k_dense_replace", "-1");
	refuse("{\"n_shared_experts\":-1}", DSV3_ERR_BAD_FILE, "n_shared_experts", "-1");
	refuse("{\"rms_norm_eps\":0}", DSV3_ERR_BAD_FILE, "rms_norm_eps", "between");
	refuse("{\"rms_norm_eps\":\"1e-6\"}", DSV3_ERR_BAD_FILE, "rms_norm_eps", "number");
	refuse("{\"routed_scaling_factor\":1e300}", DSV3_ERR_BAD_FILE, "routed_scaling_factor", "between");
	refuse("{\"tie_word_embeddings\":1}", DSV3_ERR_BAD_FILE, "tie_word_embeddings", "true or false");
	refuse("{\"num_key_value_heads\":1}", DSV3_ERR_UNSUPPORTED, "num_key_value_heads", "latent attention");
	refuse("{\"hidden_act\":\"gelu\"}", DSV3_ERR_UNSUPPORTED, "hidden_act", "gelu");
	refuse("{\"mlp_bias\":true}", DSV3_ERR_UNSUPPORTED, "mlp_bias", "not supported");
	refuse("{\"moe_layer_freq\":2}", DSV3_ERR_UNSUPPORTED, "moe_layer_freq", "only 1");
}

static void
test_routing_refused(void **state)
{
#define V2 "\"architectures\":[\"DeepseekV2ForCausalLM\"],\"model_type\":\"deepseek_v2\""
	(void) state;
	refuse("{\"n_group\":3}", DSV3_ERR_BAD_FILE, "n_group", "does not divide");
	refuse("{\"topk_group\":3}", DSV3_ERR_BAD_FILE, "topk_group", "more than n_group");
	refuse("{\"n_group\":4}", DSV3_ERR_BAD_FILE, "n_group", "two best");
	refuse("{\"num_experts_per_tok\":3}", DSV3_ERR_BAD_FILE, "num_experts_per_tok", "only 2 experts");
	refuse("{\"topk_method\":\"greedy\"}", DSV3_ERR_UNSUPPORTED, "topk_method", "greedy");
	refuse("{\"scoring_func\":\"softmax\"}", DSV3_ERR_UNSUPPORTED, "scoring_func", "sigmoid");
	refuse("{" V2 ",\"topk_method\":\"noaux_tc\"}", DSV3_ERR_UNSUPPORTED, "topk_method", "noaux_tc");
	refuse("{" V2 ",\"scoring_func\":\"sigmoid\"}", DSV3_ERR_UNSUPPORTED, "scoring_func", "softmax");
	refuse("{" V2 ",\"num_experts_per_tok\":null}", DSV3_ERR_BAD_FILE, "num_experts_per_tok", "missing");
	refuse("{" V2 ",\"num_experts_per_tok\":5}", DSV3_ERR_BAD_FILE, "num_experts_per_tok", "only 4");
}

static void
test_quantization(void **state)
{
	Dsv3Config c;

	(void) state;
	accept(&c, "{\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"activation_scheme\":"
			   "\"dynamic\","
			   "\"weight_block_size\":[128,128],\"scale_fmt\":\"ue8m0\"}}");
	assert_true(c.fp8_blocks);
	dsv3_config_close(&c);
	refuse("{\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[64,128]}}",
		   DSV3_ERR_UNSUPPORTED, "quantization_config.weight_block_size", "[128, 128]");
	refuse("{\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}}", DSV3_ERR_UNSUPPORTED,
		   "quantization_config.fmt", "e5m2");
	refuse("{\"quantization_config\":{\"quant_method\":\"compressed-tensors\"}}", DSV3_ERR_UNSUPPORTED,
		   "compressed-tensors", "int4");
	refuse("{\"quantization_config\":{\"quant_method\":\"awq\"}}", DSV3_ERR_UNSUPPORTED, "quant_method",
		   "awq");
	refuse("{\"quantization_config\":{}}", DSV3_ERR_UNSUPPORTED, "quant_method", "not supported");
}

static void
test_files(void **state)
{
	Fixture fx;
	Dsv3Config c;
	Dsv3Error err;
	char path[128];
	char *deep = malloc(200001);

	(void) state;
	assert_non_null(deep);
	memset(deep, '[', 200000);
	deep[200000] = '\0';
	fixture_open(&fx);
	assert_false(dsv3_config_open(&c, fx.dir, &err));
	assert_error(&err, DSV3_ERR_NO_FILE, "\"config.json\"", fx.dir, "Hugging Face", NULL);
	fixture_write_text(fx.dir, "config.json", "");
	assert_false(dsv3_config_open(&c, fx.dir, &err));
	assert_error(&err, DSV3_ERR_BAD_FILE, "\"config.json\" is empty", NULL);
	fixture_write_text(fx.dir, "config.json", "vocab_size = 3");
	assert_false(dsv3_config_open(&c, fx.dir, &err));
	assert_error(&err, DSV3_ERR_BAD_FILE, "\"config.json\" is not valid JSON", "line 1", NULL);
	fixture_write_text(fx.dir, "config.json", "[1]");
	assert_false(dsv3_config_open(&c, fx.dir, &err));
	assert_error(&err, DSV3_ERR_BAD_FILE, "\"config.json\"", "JSON object", NULL);
	fixture_write_text(fx.dir, "config.json", deep);
	assert_false(dsv3_config_open(&c, fx.dir, &err));
	assert_error(&err, DSV3_ERR_BAD_FILE, "\"config.json\"", "depth", NULL);
	fixture_write_text(fx.dir, "config.json", "{\"vocab_size\":3,\"vocab_size\":4}");
	assert_false(dsv3_config_open(&c, fx.dir, &err));
	assert_error(&err, DSV3_ERR_BAD_FILE, "\"config.json\"", "duplicate", NULL);
	fixture_write_text(fx.dir, "config.json", "{\"vocab_size\":18446744073709551616}");
	assert_false(dsv3_config_open(&c, fx.dir, &err));
	assert_error(&err, DSV3_ERR_BAD_FILE, "\"config.json\"", "too big", NULL);

	fixture_write(&fx);
	snprintf(path, sizeof(path), "%s/generation_config.json", fx.dir);
	assert_int_equal(mkdir(path, 0700), 0);
	assert_false(dsv3_config_open(&c, fx.dir, &err));
	assert_error(&err, DSV3_ERR_FILE, "generation_config.json", "not a regular file", NULL);
	assert_int_equal(rmdir(path), 0);
	assert_true(dsv3_config_open(&c, fx.dir, &err));
	dsv3_config_close(&c);
	snprintf(path, sizeof(path), "%s/config.json", fx.dir);
	assert_int_equal(truncate(path, 9 * 1024 * 1024), 0);
	assert_false(dsv3_config_open(&c, fx.dir, &err));
	assert_error(&err, DSV3_ERR_TOO_LARGE, "config.json", "too large", NULL);
	fixture_close(&fx);
	free(deep);
}

/* Parameter totals of the published models, and the active ones added up by hand from the sizes of one layer. */
static void
test_counts(void **state)
{
	static const struct
	{
		const char *text;
		double total;
		double active;
	} models[] = {
		{"{\"model_type\":\"deepseek_v3\"}", 671.03e9, 36.63e9},
		{"{\"model_type\":\"kimi_k2\",\"vocab_size\":163840,\"num_attention_heads\":64,\"num_key_value_"
		 "heads\":64,\"n_routed_experts\":384,"
		 "\"first_k_dense_replace\":1,\"n_group\":1,\"topk_group\":1}",
		 1026.4e9, 31.68e9},
		{"{\"model_type\":\"deepseek_v3\",\"vocab_size\":163840,\"hidden_size\":2048,\"num_hidden_layers\":"
		 "27,\"num_attention_heads\":16,"
		 "\"num_key_value_heads\":16,\"q_lora_rank\":null,\"intermediate_size\":11264,\"moe_intermediate_"
		 "size\":1408,"
		 "\"first_k_dense_replace\":1,\"n_routed_experts\":64,\"n_shared_experts\":2,\"num_experts_per_tok\":"
		 "6,\"n_group\":1,\"topk_group\":1}",
		 15.96e9, 2.580e9},
		{"{\"model_type\":\"deepseek_v2\",\"vocab_size\":102400,\"hidden_size\":2048,\"num_hidden_layers\":"
		 "27,\"num_attention_heads\":16,"
		 "\"q_lora_rank\":null,\"intermediate_size\":10944,\"moe_intermediate_size\":1408,\"first_k_dense_"
		 "replace\":1,"
		 "\"n_routed_experts\":64,\"n_shared_experts\":2,\"num_experts_per_tok\":6}",
		 15.71e9, 2.452e9},
		{"{\"model_type\":\"deepseek_v2\",\"vocab_size\":102400,\"hidden_size\":5120,\"num_hidden_layers\":"
		 "60,\"num_attention_heads\":128,"
		 "\"q_lora_rank\":1536,\"intermediate_size\":12288,\"moe_intermediate_size\":1536,\"first_k_dense_"
		 "replace\":1,"
		 "\"n_routed_experts\":160,\"n_shared_experts\":2,\"num_experts_per_tok\":6,\"n_group\":8,\"topk_"
		 "group\":3,"
		 "\"topk_method\":\"group_limited_greedy\"}",
		 235.7e9, 20.85e9},
	};

	(void) state;
	for (int i = 0; i < N(models); i++)
	{
		Dsv3Config c;
		Dsv3Error err;
		Dsv3ParamCounts counts;

		if (!parse_text(&c, models[i].text, &err))
			fail_msg("model %d: %s", i, err.message);
		dsv3_config_count(&c, &counts);
		if (fabs((double) counts.total / models[i].total - 1) > 1e-3)
			fail_msg("model %d has %.2f billion parameters", i, (double) counts.total / 1e9);
		if (fabs((double) counts.active / models[i].active - 1) > 2e-3)
			fail_msg("model %d has %.2f billion active parameters", i, (double) counts.active / 1e9);
		dsv3_config_close(&c);
	}
}

/* Seeded damage to a valid file: opening returns, whatever the bytes. */
static void
test_mutations(void **state)
{
	json_t *json =
		changed("{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":32},"
				"\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]},\"eos_"
				"token_id\":[1,2]}");
	char *base = json_dumps(json, 0);
	size_t len = strlen(base);
	char *text = malloc(len + 64);
	uint64_t seed = 12345;
	int accepted = 0;

	(void) state;
	assert_non_null(text);
	for (int round = 0; round < 5000; round++)
	{
		static const char *const pieces[] = {"null", "-1",   "0",    "1e308", "99999999999", "[]",
											 "{}",   "\"\"", "true", "0.5",   ",",           ":"};
		Dsv3Config c;
		Dsv3Error err;
		size_t n = len;

		memcpy(text, base, len);
		for (uint32_t edits = 1 + fixture_random(&seed) % 3; edits > 0; edits--)
		{
			size_t at = fixture_random(&seed) % n;
			const char *piece = pieces[fixture_random(&seed) % N(pieces)];

			switch (fixture_random(&seed) % 3)
			{
				case 0:
					text[at] = (char) fixture_random(&seed);
					break;
				case 1: /* replace what stands after a colon by another value */
					while (at < n && text[at] != ':')
						at++;
					if (at + 1 + strlen(piece) < n)
						memcpy(text + at + 1, piece, strlen(piece));
					break;
				case 2:
					n = at > n / 2 ? at : n;
					break;
			}
		}
		if (dsv3_config_parse(&c, text, n, NULL, 0, &err))
		{
			accepted++;
			dsv3_config_close(&c);
		}
		else
			assert_true(strlen(err.sqlstate) == 5 && strlen(err.message) > 10);
	}
	assert_in_range(accepted, 1, 4999);
	free(text);
	free(base);
	json_decref(json);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rope_golden),   cmocka_unit_test(test_rope_switch),
		cmocka_unit_test(test_rope_refused),  cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_token_ids),     cmocka_unit_test(test_architectures),
		cmocka_unit_test(test_sizes_refused), cmocka_unit_test(test_routing_refused),
		cmocka_unit_test(test_quantization),  cmocka_unit_test(test_files),
		cmocka_unit_test(test_counts),        cmocka_unit_test(test_mutations),
	};

	return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
