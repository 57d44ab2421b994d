/*
 * digest.c
 *	  What names a model: a SHA-256 over everything small and a sample of everything large.
 *
 * Covered whole, in this order: config.json, generation_config.json, tokenizer.json, tokenizer_config.json,
 * chat_template.jinja and tiktoken.model (each as name, size or absence, bytes), then for every weight file in order of name
 * its name, size and complete header. Of the weights themselves only samples: the middle 4096 bytes of every tensor
 * (the whole of a smaller one), and when the model has more than 4096 tensors, of every k-th so that about so many are
 * sampled. Reading all of a checkpoint would take minutes at every start.
 *
 * So equal digests mean: same configuration, tokenizer, tensor names, shapes and types, and the same bytes at all sampled
 * places. Another training run or another rounding changes the digest; a flipped bit between samples does not. The
 * digest identifies, it does not authenticate; a file changed on purpose can keep it.
 */
#include "model/digest.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model/json_file.h"

#define MAX_SMALL_FILE ((int64_t) 256 * 1024 * 1024)
#define SAMPLE_BYTES   4096
#define MAX_SAMPLES    4096
#define DROP_EVERY     64 /* tensors */

static const char *const small_files[] = {
	"config.json",           "generation_config.json", "tokenizer.json",
	"tokenizer_config.json", "chat_template.jinja",    "tiktoken.model",
};

#define N_SMALL_FILES (sizeof(small_files) / sizeof(small_files[0]))

static void
add_number(EVP_MD_CTX *sha, int64_t n)
{
	unsigned char bytes[8];

	for (int i = 0; i < 8; i++)
		bytes[i] = (unsigned char) ((uint64_t) n >> (8 * i));
	EVP_DigestUpdate(sha, bytes, sizeof(bytes));
}

static void
add_name(EVP_MD_CTX *sha, const char *name)
{
	EVP_DigestUpdate(sha, name, strlen(name) + 1);
}

/* Name, size and bytes; a file that does not exist counts as size -1. */
static bool
add_small_file(EVP_MD_CTX *sha, const char *model_dir, const char *name, Dsv3Error *err)
{
	unsigned char piece[65536];
	char shown[DSV3_SHOWN_NAME];
	Dsv3Error problem;
	int64_t size = -1;
	int64_t left;
	int fd;

	memset(&problem, 0, sizeof(problem));
	fd = dsv3_open_regular(model_dir, name, MAX_SMALL_FILE, &size, &problem);
	if (fd < 0 && strcmp(problem.sqlstate, DSV3_ERR_NO_FILE) != 0)
	{
		if (err)
			*err = problem;
		return false;
	}
	add_name(sha, name);
	add_number(sha, fd < 0 ? -1 : size);
	left = fd < 0 ? 0 : size;
	while (left > 0)
	{
		ssize_t n = read(fd, piece, sizeof(piece));

		if (n <= 0)
			break;
		n = n > left ? (ssize_t) left : n;
		EVP_DigestUpdate(sha, piece, (size_t) n);
		left -= n;
	}
	if (fd >= 0)
		close(fd);
	if (left > 0)
		return dsv3_error(err, DSV3_ERR_FILE, "could not read file \"%s\"", dsv3_shown_name(shown, name));
	return true;
}

static void
add_weight_file(EVP_MD_CTX *sha, const Dsv3TensorFile *file, int step, int *counter)
{
	add_name(sha, file->name);
	add_number(sha, file->size);
	add_number(sha, file->header_bytes);
	EVP_DigestUpdate(sha, file->base + 8, (size_t) file->header_bytes);
	for (int i = 0; i < file->n_tensors; i++)
	{
		const Dsv3Tensor *t = &file->tensors[i];
		int64_t n = t->bytes < SAMPLE_BYTES ? t->bytes : SAMPLE_BYTES;

		if ((*counter)++ % step != 0)
			continue;
		EVP_DigestUpdate(sha, t->data + (t->bytes - n) / 2, (size_t) n);
		/* the kernel maps more than was read; thousands of samples would come to hundreds of megabytes */
		if (i % DROP_EVERY == 0)
			madvise((void *) file->base, (size_t) file->size, MADV_DONTNEED);
	}
}

bool
dsv3_model_digest(char digest[65], const char *model_dir, const Dsv3TensorFiles *files, Dsv3Error *err)
{
	EVP_MD_CTX *sha = EVP_MD_CTX_new();
	unsigned char result[32];
	int step = (files->n_tensors + MAX_SAMPLES - 1) / MAX_SAMPLES;
	int counter = 0;
	bool ok = true;

	if (sha == NULL || EVP_DigestInit_ex(sha, EVP_sha256(), NULL) != 1)
	{
		EVP_MD_CTX_free(sha);
		return dsv3_error(err, DSV3_ERR_INTERNAL, "could not start SHA-256");
	}
	add_name(sha, "dsv3 model 1");
	for (size_t i = 0; ok && i < N_SMALL_FILES; i++)
		ok = add_small_file(sha, model_dir, small_files[i], err);
	if (ok)
	{
		add_number(sha, files->n_files);
		for (int i = 0; i < files->n_files; i++)
			add_weight_file(sha, &files->files[i], step, &counter);
		if (EVP_DigestFinal_ex(sha, result, NULL) != 1)
			ok = dsv3_error(err, DSV3_ERR_INTERNAL, "could not finish SHA-256");
	}
	EVP_MD_CTX_free(sha);
	for (size_t i = 0; ok && i < sizeof(result); i++)
		snprintf(digest + 2 * i, 3, "%02x", result[i]);
	return ok;
}
