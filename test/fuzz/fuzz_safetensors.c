/*
 * fuzz_safetensors.c
 *	  Any bytes as model.safetensors: first the header alone, in memory of exactly the file's size, then, when the header
 *	  is accepted, a whole checkpoint of that file in the modes that read every number.
 *
 *	  An input that begins with '#' is a header up to a zero byte and then data; the length in front is put there by this
 *	  program, so that changes to the header do not all end at its length.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz_dir.h"
#include "model/checkpoint.h"
#include "model/safetensors.h"

extern int LLVMFuzzerInitialize(int *argc, char ***argv);
extern int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* One dense layer, one head: few enough tensors for a small file to be a whole model. */
static const char config[] =
	"{\"model_type\":\"deepseek_v3\",\"vocab_size\":2,\"hidden_size\":2,\"num_hidden_layers\":1,"
	"\"num_attention_heads\":1,\"num_key_value_heads\":1,\"q_lora_rank\":null,\"kv_lora_rank\":1,"
	"\"qk_nope_head_dim\":1,\"qk_rope_head_dim\":2,\"v_head_dim\":1,\"intermediate_size\":1,"
	"\"first_k_dense_replace\":1,\"tie_word_embeddings\":true,\"eos_token_id\":1}";

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void) argc;
	(void) argv;
	fuzz_dir_write("config.json", config, strlen(config));
	return 0;
}

static void
open_whole(const uint8_t *data, size_t size)
{
	static const Dsv3CheckpointOptions options[] = {
		{.weights = DSV3_WEIGHTS_F32}, {.weights = DSV3_WEIGHTS_BF16}, {.check_only = true}};

	fuzz_dir_write("model.safetensors", data, size);
	for (int i = 0; i < 3; i++)
	{
		Dsv3Error err;
		Dsv3Checkpoint *cp;

		memset(&err, 0, sizeof(err));
		cp = dsv3_checkpoint_open(fuzz_dir(), &options[i], &err);
		if (cp == NULL && (strlen(err.sqlstate) != 5 || err.message[0] == '\0'))
			abort();
		dsv3_checkpoint_close(cp);
	}
}

static void
test_file(const uint8_t *data, size_t size)
{
	Dsv3TensorFile file;
	Dsv3Error err;
	uint8_t *copy = malloc(size ? size : 1);
	bool ok;

	if (copy == NULL)
		abort();
	memcpy(copy, data, size);
	memset(&err, 0, sizeof(err));
	ok = dsv3_tensor_file_parse(&file, "model.safetensors", copy, (int64_t) size, &err);
	if (!ok && (strlen(err.sqlstate) != 5 || err.message[0] == '\0'))
		abort();
	for (int i = 0; ok && i < file.n_tensors; i++)
	{
		const Dsv3Tensor *t = &file.tensors[i];
		volatile unsigned sum = 0;

		for (int64_t k = 0; k < t->bytes; k++)
			sum += t->data[k];
	}
	dsv3_tensor_file_clear(&file);
	free(copy);
	if (ok && size > 0)
		open_whole(data, size);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *zero;
	uint8_t *framed;
	size_t header;

	if (size == 0 || data[0] != '#')
	{
		test_file(data, size);
		return 0;
	}
	zero = memchr(data, 0, size);
	header = zero ? (size_t) (zero - data) - 1 : size - 1;
	framed = malloc(8 + size);
	if (framed == NULL)
		abort();
	for (int i = 0; i < 8; i++)
		framed[i] = (uint8_t) ((uint64_t) header >> (8 * i));
	memcpy(framed + 8, data + 1, header);
	if (zero)
		memcpy(framed + 8 + header, zero + 1, size - header - 2);
	test_file(framed, 8 + size - 1 - (zero ? 1 : 0));
	free(framed);
	return 0;
}
