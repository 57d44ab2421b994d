/*
 * fuzz_pack.c
 *	  Any directory in a pack with good checksums: first the container, in memory of exactly the file's size, then, when it is
 *	  accepted, a whole checkpoint of the file.
 *
 *	  An input is a number of pages and then a directory. This program puts page 0 and that many pages in front, the first of
 *	  them with the configuration of a tiny model, and makes the checksums fit, which a fuzzer could not.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/packfile.h"
#include "fuzz_dir.h"
#include "model/checkpoint.h"

extern int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* One dense layer, one head; the seeds hold its tensors. */
static const char config[] =
	"{\"model_type\":\"deepseek_v3\",\"vocab_size\":2,\"hidden_size\":2,\"num_hidden_layers\":1,"
	"\"num_attention_heads\":1,\"num_key_value_heads\":1,\"q_lora_rank\":null,\"kv_lora_rank\":1,"
	"\"qk_nope_head_dim\":1,\"qk_rope_head_dim\":2,\"v_head_dim\":1,\"intermediate_size\":1,"
	"\"first_k_dense_replace\":1,\"tie_word_embeddings\":true,\"eos_token_id\":1}";

static void
check_error(const Dsv3Error *err)
{
	if (strlen(err->sqlstate) != 5 || err->message[0] == '\0')
		abort();
}

static void
open_whole(const uint8_t *file, size_t size)
{
	fuzz_dir_write("x.dsv3", file, size);
	for (int check = 0; check < 2; check++)
	{
		Dsv3CheckpointOptions options = {.check_only = check == 1};
		Dsv3Checkpoint *cp;
		Dsv3Error err;
		char path[128];

		memset(&err, 0, sizeof(err));
		snprintf(path, sizeof(path), "%s/x.dsv3", fuzz_dir());
		cp = dsv3_checkpoint_open(path, &options, &err);
		if (cp == NULL)
			check_error(&err);
		dsv3_checkpoint_close(cp);
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t pages;
	size_t total;
	uint8_t *file;
	Dsv3Pack pack;
	Dsv3Error err;
	bool ok;

	if (size < 1)
		return 0;
	pages = (size_t) data[0] + 1;
	total = (pages + 1) * DSV3_PACK_PAGE + size - 1;
	file = calloc(1, total);
	if (file == NULL)
		abort();
	memcpy(file + DSV3_PACK_PAGE, config, sizeof(config) - 1);
	memcpy(file + (pages + 1) * DSV3_PACK_PAGE, data + 1, size - 1);
	/* the first entry's digest */
	if (size - 1 >= 8 + DSV3_PACK_ENTRY)
		dsv3_pack_digest(file + (pages + 1) * DSV3_PACK_PAGE + 8 + 48, config, sizeof(config) - 1);
	if (!dsv3_pack_header(file, (int64_t) ((pages + 1) * DSV3_PACK_PAGE), file + (pages + 1) * DSV3_PACK_PAGE,
						  size - 1, NULL))
		abort();
	memset(&err, 0, sizeof(err));
	ok = dsv3_pack_parse(&pack, "x.dsv3", file, (int64_t) total, &err);
	if (!ok)
		check_error(&err);
	for (int i = 0; ok && i < pack.n_pieces; i++)
	{
		volatile unsigned sum = (unsigned) pack.pieces[i].name[0];

		for (int64_t k = 0; k < pack.pieces[i].bytes; k++)
			sum += file[pack.pieces[i].offset + k];
	}
	dsv3_pack_clear(&pack);
	if (ok)
		open_whole(file, total);
	free(file);
	return 0;
}
