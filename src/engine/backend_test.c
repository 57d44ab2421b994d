/*
 * backend_test.c
 *	  The built-in test model, opened by a model path that begins with "test:". No files, no arithmetic to speak of, an
 *	  answer that can be told from the prompt: tests of the scheduler, the protocol and the SQL side run on it.
 *
 * Tokens. A byte is a token (ids 0 to 255); then <bos> 256, <eos> 257, <system> 258, <user> 259, <assistant> 260, <think> 261,
 * </think> 262, <tool> 263, </tool> 264. The output matrix has rows up to 272; the padding rows get the largest
 * logits of all, so whoever samples one is found out. Text of a special token in a prompt is its bytes.
 *
 * Prompts. <bos>, then for each message its role's token and its content (role "tool": <tool>content; an assistant
 * message ends in <eos>), then <assistant>, and <think> where thinking is asked for. Raw: <bos> and the text. Tools are
 * accepted and change nothing.
 *
 * Answers. M is the text of the last user message, cut at nothing.
 *		/count N        "1 2 ... N"
 *		/forever        "abc...zabc..." without an end
 *		/prompt...      the whole prompt, special tokens in their spelling
 *		/think T        <think>, "about T", </think>, then T in upper case
 *		/tool NAME ARGS <tool>NAME ARGS</tool>, in a CHAT one tool call with these arguments
 *		/bytes HEX      the bytes, valid UTF-8 or not
 *		/nan            logits that are not numbers: the request fails
 *		anything else   M with the letters a to z in upper case; an empty M gives an empty answer
 * each followed by <eos>. If the prompt opened <think>, "about M" and </think> come before the answer; a </think> forced
 * early is followed by the answer. Raw prompts have no M; the next token is the successor of the last one: a letter's or
 * a digit's in its alphabet, <eos> after z, Z, 9 and '.', and '.' after everything else ("x7" is continued by "89").
 *
 * Logits. The answer's next token has 12. Printable ASCII has noise in [0, 4), a function of every id before; the rest has -20.
 * So greedy decoding gives the answer above, sampling at temperature 1 strays from it now and then, and any mistake
 * with the cache changes a logit. The cache holds ids; a row that was never written is reported.
 *
 * Options follow the colon, comma-separated: context=N (positions, 4096), delay_ms=N (every step), token_us=N (every token of
 * a step), open_ms=N (opening), open_error=TEXT (opening fails with it), think=0|1|2 (what "auto" means; 2: it is the model's to
 * open the thinking part), template=none (raw
 * prompts only), drafts=N (it drafts, and of N drafts that follow each other one is wrong), kv_position_bytes=N (64, 4 at least), garble=0|1 (the decoder turns "}" and digits into "?": what a defect below the
 * grammar looks like), wobble=0|1 (logits depend on how many sequences share the step, in their last digits: what a sum whose order
 * depends on the batch looks like).
 */
#include "engine/backend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <jansson.h>

enum
{
	T_BOS = 256,
	T_EOS,
	T_SYSTEM,
	T_USER,
	T_ASSISTANT,
	T_THINK,
	T_THINK_END,
	T_TOOL,
	T_TOOL_END,
	T_COUNT,
	T_ROWS = 272, /* with padding rows */
};

static const char *const special_text[] = {"<bos>",   "<eos>",    "<system>", "<user>", "<assistant>",
										   "<think>", "</think>", "<tool>",   "</tool>"};

typedef struct TestBackend
{
	Dsv3Backend base;
	long context;
	long delay_ms;
	long token_us;
	long open_ms;
	long think;
	long kv_position_bytes;
	long garble;
	long drafts;
	long wobble;
	bool no_template;
	char open_error[256];
	char *
		rows; /* the cache: at the beginning of each block DSV3_KV_BLOCK ids, one more than they are, 0 never written */
	size_t rows_bytes;
	int n_blocks;
	int32_t *history; /* scratch of step: the ids of one sequence, context long */
} TestBackend;

static void
sleep_us(long us)
{
	struct timespec ts = {us / 1000000, us % 1000000 * 1000};

	nanosleep(&ts, NULL);
}

/* -- the scripted answer -- */

/* What the model says next is looked up in a history of ids: where the parts of the prompt lie in it. */
typedef struct Script
{
	const int32_t *ids;
	int n;
	const int32_t *message; /* M */
	int message_len;
	int answer; /* index of the first id after the last <assistant> */
} Script;

static bool
starts_with(const Script *s, const char *word)
{
	int len = (int) strlen(word);

	if (s->message_len < len)
		return false;
	for (int i = 0; i < len; i++)
	{
		if (s->message[i] != (unsigned char) word[i])
			return false;
	}
	return true;
}

static int32_t
upper(int32_t id)
{
	return id >= 'a' && id <= 'z' ? id - 'a' + 'A' : id;
}

static long
message_number(const Script *s, int at)
{
	long value = 0;

	for (int i = at; i < s->message_len && s->message[i] >= '0' && s->message[i] <= '9' && value < 10000000;
		 i++)
		value = value * 10 + (s->message[i] - '0');
	return value;
}

/* Byte k of "1 2 3 ... n", T_EOS after its end. */
static int32_t
count_byte(long n, int k)
{
	char number[16];
	long at = 0;

	for (long i = 1; i <= n; i++)
	{
		int len = snprintf(number, sizeof(number), i < n ? "%ld " : "%ld", i);

		if (k < at + len)
			return (unsigned char) number[k - at];
		at += len;
	}
	return T_EOS;
}

static int
hex_digit(int32_t id)
{
	if (id >= '0' && id <= '9')
		return id - '0';
	id |= 0x20;
	return id >= 'a' && id <= 'f' ? id - 'a' + 10 : -1;
}

/* Byte k of the prompt with its special tokens spelled out. */
static int32_t
prompt_byte(const Script *s, int k)
{
	for (int i = 0; i < s->answer; i++)
	{
		int len = s->ids[i] < 256 ? 1 : (int) strlen(special_text[s->ids[i] - 256]);

		if (k < len)
			return s->ids[i] < 256 ? s->ids[i] : (unsigned char) special_text[s->ids[i] - 256][k];
		k -= len;
	}
	return T_EOS;
}

/* Token k of the visible answer. */
static int32_t
answer_token(const Script *s, int k)
{
	int skip = starts_with(s, "/think ") ? 7 : 0;

	if (starts_with(s, "/count "))
		return count_byte(message_number(s, 7), k);
	if (starts_with(s, "/forever"))
		return 'a' + k % 26;
	if (starts_with(s, "/prompt"))
		return prompt_byte(s, k);
	if (starts_with(s, "/tool "))
	{
		int len = s->message_len - 6;

		if (k == 0)
			return T_TOOL;
		return k <= len ? s->message[6 + k - 1] : k == len + 1 ? T_TOOL_END : T_EOS;
	}
	if (starts_with(s, "/bytes "))
	{
		int at = 7 + 2 * k;

		if (at + 1 < s->message_len && hex_digit(s->message[at]) >= 0 && hex_digit(s->message[at + 1]) >= 0)
			return hex_digit(s->message[at]) * 16 + hex_digit(s->message[at + 1]);
		return T_EOS;
	}
	return skip + k < s->message_len ? upper(s->message[skip + k]) : T_EOS;
}

/* Token k of the thinking part, after <think>. */
static int32_t
thinking_token(const Script *s, int k)
{
	static const char about[] = "about ";
	int lead = (int) sizeof(about) - 1;
	int skip = starts_with(s, "/think ") ? 7 : 0;

	if (k < lead)
		return (unsigned char) about[k];
	return skip + k - lead < s->message_len ? s->message[skip + k - lead] : T_THINK_END;
}

static int32_t
raw_token(int32_t last)
{
	if ((last >= 'a' && last < 'z') || (last >= 'A' && last < 'Z') || (last >= '0' && last < '9'))
		return last + 1;
	return last == 'z' || last == 'Z' || last == '9' || last == '.' ? T_EOS : '.';
}

/* The id that follows ids[0..n); -1 asks for logits that are not numbers. */
static int32_t
next_token(const int32_t *ids, int n)
{
	Script s = {.ids = ids, .n = n, .answer = n};
	int user = -1;
	int at;

	while (s.answer > 0 && ids[s.answer - 1] != T_ASSISTANT)
		s.answer--;
	if (s.answer == 0)
		return raw_token(ids[n - 1]);
	for (int i = 0; i < s.answer; i++)
	{
		if (ids[i] == T_USER)
			user = i + 1;
	}
	if (user >= 0)
	{
		s.message = ids + user;
		while (user + s.message_len < s.answer && s.message[s.message_len] < 256)
			s.message_len++;
	}
	if (starts_with(&s, "/nan"))
		return -1;
	for (at = s.answer; at < n; at++)
	{
		if (ids[at] == T_THINK_END)
			return answer_token(&s, n - at - 1);
	}
	if (n > s.answer && ids[s.answer] == T_THINK)
		return thinking_token(&s, n - s.answer - 1);
	if (n == s.answer && starts_with(&s, "/think "))
		return T_THINK;
	return answer_token(&s, n - s.answer);
}

static void
fill_logits(const int32_t *ids, int n, float *logits)
{
	int32_t next = next_token(ids, n);
	uint64_t hash = UINT64_C(14695981039346656037); /* FNV-1a over the ids */

	for (int i = 0; i < n; i++)
		hash = (hash ^ (uint64_t) ids[i]) * UINT64_C(1099511628211);
	for (int id = 0; id < T_ROWS; id++)
	{
		if (id >= T_COUNT)
			logits[id] = 1000.0f;
		else if (id >= 32 && id < 127)
		{
			uint64_t x = (hash ^ (uint64_t) id) * UINT64_C(0x9E3779B97F4A7C15);

			logits[id] = (float) (x >> 40) * (4.0f / 16777216.0f);
		}
		else
			logits[id] = -20.0f;
	}
	if (next < 0)
		logits['x'] = NAN;
	else
		logits[next] = 12.0f;
}

/* -- the model's side -- */

static void
test_close(Dsv3Backend *backend)
{
	TestBackend *test = (TestBackend *) backend;

	if (test->rows)
		munmap(test->rows, test->rows_bytes);
	free(test->history);
	free(test);
}

static bool
test_kv_open(Dsv3Backend *backend, int n_blocks, Dsv3Error *err)
{
	TestBackend *test = (TestBackend *) backend;

	test->rows_bytes = (size_t) n_blocks * backend->kv_block_bytes;
	test->rows = mmap(NULL, test->rows_bytes, PROT_READ | PROT_WRITE,
					  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (test->rows == MAP_FAILED)
	{
		test->rows = NULL;
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for %d cache blocks", n_blocks);
	}
	test->n_blocks = n_blocks;
	return true;
}

static void *
test_kv_block(Dsv3Backend *backend, int32_t block)
{
	return ((TestBackend *) backend)->rows + (size_t) block * backend->kv_block_bytes;
}

/* It has no files: three pieces of a thousand bytes each, to be asked for one after the other. */
static int64_t
test_touch(Dsv3Backend *backend, int64_t from, int64_t *total)
{
	(void) backend;
	*total = 3000;
	return from < 2000 ? from + 1000 : -1;
}

static bool
check_seq(const TestBackend *test, const Dsv3StepSeq *seq, Dsv3Error *err)
{
	if (seq->n_tokens < 1 || seq->position < 0 || seq->position + (long) seq->n_tokens > test->context)
		return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "step of %d tokens at position %d is out of range",
						  seq->n_tokens, seq->position);
	if ((long) seq->n_blocks * DSV3_KV_BLOCK < seq->position + (long) seq->n_tokens)
		return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "block table too short");
	for (int i = 0; i < seq->n_blocks; i++)
	{
		if (seq->blocks[i] < 0 || seq->blocks[i] >= test->n_blocks)
			return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "block %d is out of range", seq->blocks[i]);
	}
	for (int i = 0; i < seq->n_tokens; i++)
	{
		if (seq->tokens[i] < 0 || seq->tokens[i] >= T_COUNT)
			return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "token id %d is out of range", seq->tokens[i]);
	}
	return true;
}

static int32_t *
row_of(TestBackend *test, const Dsv3StepSeq *seq, int position)
{
	return (int32_t *) test_kv_block(&test->base, seq->blocks[position / DSV3_KV_BLOCK]) +
		   position % DSV3_KV_BLOCK;
}

/* Take as long as the options say; false when aborted meanwhile. */
static bool
take_time(const TestBackend *test, long tokens, const atomic_bool *abort_flag)
{
	for (long us = test->delay_ms * 1000 + test->token_us * tokens; us > 0; us -= 1000)
	{
		if (abort_flag && atomic_load(abort_flag))
			return false;
		sleep_us(us < 1000 ? us : 1000);
	}
	return !(abort_flag && atomic_load(abort_flag));
}

/* Give the wanted parts of a row of logits; returns where the next whole row goes. */
static float *
give_row(const float row[T_ROWS], const Dsv3Picked *picked, float *logits)
{
	if (picked == NULL || picked->n == 0)
	{
		memcpy(logits, row, T_ROWS * sizeof(float));
		return logits + T_ROWS;
	}
	for (int i = 0; i < picked->n; i++)
		picked->logits[i] = row[picked->ids[i]];
	return logits;
}

/* The scores that a step will have for the same token; in a wrong draft the likeliest one is out. */
static bool
test_draft(Dsv3Backend *backend, const Dsv3StepSeq *seqs, const int *rows, int n_seqs, float *logits,
		   Dsv3Error *err)
{
	TestBackend *test = (TestBackend *) backend;

	for (int i = 0; i < n_seqs; i++)
	{
		const Dsv3StepSeq *seq = &seqs[i];
		float row[T_ROWS];
		int best = 0;

		if (!check_seq(test, seq, err))
			return false;
		if (rows[i] < 0 || seq->n_tokens != 1 || seq->position < 1)
			return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "draft of %d tokens at position %d",
							  seq->n_tokens, seq->position);
		for (int p = 0; p < seq->position; p++)
			test->history[p] = *row_of(test, seq, p) - 1;
		test->history[seq->position] = seq->tokens[0];
		fill_logits(test->history, seq->position + 1, row);
		for (int id = 1; id < T_COUNT; id++)
			best = row[id] > row[best] ? id : best;
		if (seq->position % test->drafts == 0)
			row[best] = -30;
		logits = give_row(row, seq->picked, logits);
	}
	return true;
}

static bool
test_step(Dsv3Backend *backend, const Dsv3StepSeq *seqs, int n_seqs, float *logits,
		  const atomic_bool *abort_flag, Dsv3Error *err)
{
	TestBackend *test = (TestBackend *) backend;
	long tokens = 0;

	for (int i = 0; i < n_seqs; i++)
	{
		if (!check_seq(test, &seqs[i], err))
			return false;
		tokens += seqs[i].n_tokens;
	}
	for (int i = 0; i < n_seqs; i++)
	{
		for (int t = 0; t < seqs[i].n_tokens; t++)
			*row_of(test, &seqs[i], seqs[i].position + t) = seqs[i].tokens[t] + 1;
	}
	if (!take_time(test, tokens, abort_flag))
		return dsv3_error(err, DSV3_ERR_CANCELLED, "step aborted");
	for (int i = 0; i < n_seqs; i++)
	{
		const Dsv3StepSeq *seq = &seqs[i];
		const Dsv3Picked *picked = seq->picked;
		int end = seq->position + seq->n_tokens;

		for (int p = 0; p < end; p++)
		{
			test->history[p] = *row_of(test, seq, p) - 1;
			if (test->history[p] < 0)
				return dsv3_error(err, DSV3_ERR_INTERNAL, "cache row %d was never written", p);
		}
		for (int p = end - dsv3_step_wanted(seq); p < end; p++, picked += picked != NULL)
		{
			float row[T_ROWS];

			fill_logits(test->history, p + 1, row);
			if (test->wobble)
				row['a'] += 1e-6f * (float) n_seqs;
			logits = give_row(row, picked, logits);
		}
	}
	return true;
}

/* -- text -- */

/*
 * One byte into a UTF-8 assembler: appends whole characters to *out, U+FFFD for each maximal part that cannot become
 * one (Unicode 15, section 3.9, "substitution of maximal subparts").
 */
static bool
feed_byte(Dsv3Decoder *decoder, uint8_t byte, Dsv3Text *out, Dsv3Error *err)
{
	uint8_t lead = decoder->pending[0];
	uint8_t low = 0x80;
	uint8_t high = 0xBF;

	if (decoder->npending > 0)
	{
		if (decoder->npending == 1)
		{
			low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
			high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
		}
		if (byte >= low && byte <= high)
		{
			int need = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;

			decoder->pending[decoder->npending++] = byte;
			if (decoder->npending < need)
				return true;
			decoder->npending = 0;
			return dsv3_text_append(out, (const char *) decoder->pending, (size_t) need, err);
		}
		decoder->npending = 0;
		if (!dsv3_text_append(out, "\xEF\xBF\xBD", 3, err))
			return false;
	}
	if (byte < 0x80)
		return dsv3_text_append(out, (const char *) &byte, 1, err);
	if (byte >= 0xC2 && byte <= 0xF4)
	{
		decoder->pending[decoder->npending++] = byte;
		return true;
	}
	return dsv3_text_append(out, "\xEF\xBF\xBD", 3, err);
}

static const char *
test_token_bytes(Dsv3Backend *backend, int32_t id, size_t *len, bool *special)
{
	static char bytes[256];

	(void) backend;
	*special = id >= 256;
	*len = id < 256 ? 1 : strlen(special_text[id - 256]);
	if (id >= 256)
		return special_text[id - 256];
	bytes[id] = (char) id;
	return &bytes[id];
}

static void
test_decoder_init(Dsv3Backend *backend, Dsv3Decoder *decoder, bool skip_special)
{
	(void) backend;
	memset(decoder, 0, sizeof(*decoder));
	decoder->skip_special = skip_special;
}

static bool
test_decoder_feed(Dsv3Backend *backend, Dsv3Decoder *decoder, int32_t id, Dsv3Text *out, Dsv3Error *err)
{
	if (id < 0 || id >= T_COUNT)
		return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "token id %d is out of range", id);
	if (((TestBackend *) backend)->garble && (id == '}' || (id >= '0' && id <= '9')))
		id = '?';
	if (id < 256)
		return feed_byte(decoder, (uint8_t) id, out, err);
	if (decoder->skip_special)
		return true;
	for (const char *p = special_text[id - 256]; *p; p++)
	{
		if (!feed_byte(decoder, (uint8_t) *p, out, err))
			return false;
	}
	return true;
}

static bool
test_decoder_finish(Dsv3Backend *backend, Dsv3Decoder *decoder, Dsv3Text *out, Dsv3Error *err)
{
	(void) backend;
	if (decoder->npending == 0)
		return true;
	decoder->npending = 0;
	return dsv3_text_append(out, "\xEF\xBF\xBD", 3, err);
}

static bool
test_encode(Dsv3Backend *backend, const char *text, size_t len, size_t max_tokens, Dsv3Tokens *out,
			Dsv3Error *err)
{
	Dsv3Decoder check;
	Dsv3Text valid = {0};
	bool ok = true;

	/* Valid UTF-8 comes out of the assembler as it went in. */
	test_decoder_init(backend, &check, false);
	for (size_t i = 0; ok && i < len; i++)
		ok = feed_byte(&check, (uint8_t) text[i], &valid, err);
	ok = ok && test_decoder_finish(backend, &check, &valid, err);
	if (ok && (valid.len != len || (len > 0 && memcmp(valid.data, text, len) != 0)))
		ok = dsv3_error(err, DSV3_ERR_INVALID_TEXT, "text is not valid UTF-8");
	dsv3_text_free(&valid);
	if (ok && max_tokens > 0 && len > max_tokens)
		ok = dsv3_error(err, DSV3_ERR_TOO_LARGE, "text has more than %zu tokens", max_tokens);
	for (size_t i = 0; ok && i < len; i++)
		ok = dsv3_tokens_push(out, (uint8_t) text[i], err);
	return ok;
}

static bool
test_raw(Dsv3Backend *backend, const char *text, size_t len, size_t max_tokens, Dsv3Tokens *out,
		 Dsv3Error *err)
{
	return dsv3_tokens_push(out, T_BOS, err) && test_encode(backend, text, len, max_tokens, out, err);
}

static bool
test_opens_think(Dsv3Backend *backend, Dsv3Think think)
{
	TestBackend *test = (TestBackend *) backend;

	return think == DSV3_THINK_ON || (think == DSV3_THINK_AUTO && test->think == 1);
}

static bool
render_message(Dsv3Backend *backend, const json_t *message, size_t index, size_t max_tokens, Dsv3Tokens *out,
			   Dsv3Error *err)
{
	static const struct
	{
		const char *role;
		int32_t id;
	} roles[] = {{"system", T_SYSTEM}, {"user", T_USER}, {"assistant", T_ASSISTANT}, {"tool", T_TOOL}};
	const char *role = json_string_value(json_object_get(message, "role"));
	const json_t *content = json_object_get(message, "content");

	for (int i = 0; role && i < 4; i++)
	{
		if (strcmp(role, roles[i].role) != 0)
			continue;
		if (!dsv3_tokens_push(out, roles[i].id, err))
			return false;
		if (json_is_string(content) && !test_encode(backend, json_string_value(content),
													json_string_length(content), max_tokens, out, err))
			return false;
		if (!json_is_string(content) && roles[i].id != T_ASSISTANT)
			return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "message %zu has no content", index + 1);
		return roles[i].id != T_ASSISTANT || dsv3_tokens_push(out, T_EOS, err);
	}
	return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "message %zu has no known role", index + 1);
}

static bool
test_render(Dsv3Backend *backend, const char *messages, size_t messages_len, const char *tools,
			size_t tools_len, Dsv3Think think, size_t max_tokens, Dsv3Tokens *out, Dsv3Error *err)
{
	TestBackend *test = (TestBackend *) backend;
	json_error_t where;
	json_t *array;
	size_t start = out->count;
	bool ok = true;

	if (test->no_template)
	{
		dsv3_error(err, DSV3_ERR_UNSUPPORTED, "the chat template of this model is not known");
		return dsv3_error_hint(err, "Use raw prompts.");
	}
	if (tools)
	{
		json_t *parsed = json_loadb(tools, tools_len, JSON_ALLOW_NUL, &where);

		ok = json_is_array(parsed);
		json_decref(parsed);
		if (!ok)
			return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "tools are not a JSON array");
	}
	array = json_loadb(messages, messages_len, JSON_ALLOW_NUL, &where);
	if (!json_is_array(array))
		ok = dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "messages are not a JSON array");
	ok = ok && dsv3_tokens_push(out, T_BOS, err);
	for (size_t i = 0; ok && i < json_array_size(array); i++)
		ok = render_message(backend, json_array_get(array, i), i, max_tokens, out, err);
	json_decref(array);
	ok = ok && dsv3_tokens_push(out, T_ASSISTANT, err);
	if (ok && test_opens_think(backend, think))
		ok = dsv3_tokens_push(out, T_THINK, err);
	if (ok && max_tokens > 0 && out->count - start > max_tokens)
		ok = dsv3_error(err, DSV3_ERR_TOO_LARGE, "text has more than %zu tokens", max_tokens);
	return ok;
}

static bool
test_parse_answer(Dsv3Backend *backend, const char *answer, size_t len, bool opened_think,
				  Dsv3Text *reasoning, Dsv3Text *content, Dsv3Text *tool_calls, Dsv3Error *err)
{
	const char *open = special_text[T_THINK - 256];
	const char *close = special_text[T_THINK_END - 256];
	const char *tool = special_text[T_TOOL - 256];
	const char *tool_end = special_text[T_TOOL_END - 256];
	const char *end = answer + len;
	const char *found;
	bool ok = true;

	(void) backend;
	if (!opened_think && len >= strlen(open) && memcmp(answer, open, strlen(open)) == 0)
	{
		opened_think = true;
		answer += strlen(open);
	}
	if (opened_think)
	{
		found = memmem(answer, (size_t) (end - answer), close, strlen(close));
		if (!dsv3_text_append(reasoning, answer, (size_t) ((found ? found : end) - answer), err))
			return false;
		answer = found ? found + strlen(close) : end;
	}
	found = memmem(answer, (size_t) (end - answer), tool, strlen(tool));
	if (!dsv3_text_append(content, answer, (size_t) ((found ? found : end) - answer), err))
		return false;
	if (found)
	{
		const char *call = found + strlen(tool);
		const char *stop = memmem(call, (size_t) (end - call), tool_end, strlen(tool_end));
		size_t call_len = (size_t) ((stop ? stop : end) - call);
		const char *space = memchr(call, ' ', call_len);
		size_t name_len = space ? (size_t) (space - call) : call_len;
		json_t *name = json_stringn(call, name_len);
		json_t *arguments = space ? json_stringn(space + 1, call_len - name_len - 1) : json_string("{}");
		json_t *calls = json_pack("[{s:s,s:s,s:{s:o,s:o}}]", "id", "call_0", "type", "function", "function",
								  "name", name, "arguments", arguments);
		char *text = calls ? json_dumps(calls, JSON_COMPACT) : NULL;

		ok = text && dsv3_text_append(tool_calls, text, strlen(text), err);
		free(text);
		json_decref(calls);
	}
	return ok;
}

static const Dsv3BackendOps test_ops = {
	.close = test_close,
	.kv_open = test_kv_open,
	.kv_block = test_kv_block,
	.touch = test_touch,
	.step = test_step,
	.draft = test_draft,
	.encode = test_encode,
	.raw = test_raw,
	.render = test_render,
	.opens_think = test_opens_think,
	.parse_answer = test_parse_answer,
	.token_bytes = test_token_bytes,
	.decoder_init = test_decoder_init,
	.decoder_feed = test_decoder_feed,
	.decoder_finish = test_decoder_finish,
};

/* -- opening -- */

static bool
set_option(TestBackend *test, const char *name, const char *value, Dsv3Error *err)
{
	const struct
	{
		const char *name;
		long *value;
		long min;
		long max;
	} numbers[] = {
		{"context", &test->context, 8, 1 << 24},
		{"delay_ms", &test->delay_ms, 0, 3600000},
		{"token_us", &test->token_us, 0, 10000000},
		{"open_ms", &test->open_ms, 0, 3600000},
		{"think", &test->think, 0, 2},
		{"garble", &test->garble, 0, 1},
		{"drafts", &test->drafts, 1, 1000},
		{"wobble", &test->wobble, 0, 1},
		{"kv_position_bytes", &test->kv_position_bytes, 4, 1 << 24},
	};

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
	{
		char *end;

		if (strcmp(name, numbers[i].name) != 0)
			continue;
		*numbers[i].value = strtol(value, &end, 10);
		if (*end || end == value || *numbers[i].value < numbers[i].min || *numbers[i].value > numbers[i].max)
			return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "test model: %s must be between %ld and %ld",
							  name, numbers[i].min, numbers[i].max);
		return true;
	}
	if (strcmp(name, "open_error") == 0)
	{
		snprintf(test->open_error, sizeof(test->open_error), "%s", value);
		return true;
	}
	if (strcmp(name, "template") == 0 && strcmp(value, "none") == 0)
	{
		test->no_template = true;
		return true;
	}
	return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "test model: unknown option \"%s=%s\"", name, value);
}

static bool
parse_options(TestBackend *test, const char *options, Dsv3Error *err)
{
	char *copy = strdup(options);
	char *rest = copy;
	char *item;
	bool ok = copy != NULL;

	if (!ok)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
	while (ok && (item = strsep(&rest, ",")) != NULL)
	{
		char *value = strchr(item, '=');

		if (*item == '\0')
			continue;
		if (value)
			*value++ = '\0';
		ok = set_option(test, item, value ? value : "", err);
	}
	free(copy);
	return ok;
}

static void
fill_info(TestBackend *test)
{
	Dsv3ModelInfo *info = &test->base.info;

	snprintf(info->architecture, sizeof(info->architecture), "test");
	memset(info->digest, '0', 64);
	snprintf(info->weights, sizeof(info->weights), "none");
	snprintf(info->isa, sizeof(info->isa), "ref");
	info->vocab_size = T_ROWS;
	info->hidden_size = 1;
	info->n_layers = 1;
	info->max_positions = (int) test->context;
	info->threads = 1;
	info->drafts = test->drafts > 0;
	info->kv_bytes_per_position = test->kv_position_bytes;
	info->eos_ids[0] = T_EOS;
	info->n_eos = 1;
	info->bos_id = T_BOS;
	test->base.kv_block_bytes = (size_t) test->kv_position_bytes * DSV3_KV_BLOCK;
	test->base.sample_limit = T_COUNT;
	test->base.think_open = T_THINK;
	test->base.think_close = T_THINK_END;
	test->base.writes_think = test->think == 2;
	test->base.template_name = test->no_template ? "none" : "test";
}

Dsv3Backend *
dsv3_backend_test_open(const char *options, Dsv3Error *err)
{
	TestBackend *test = calloc(1, sizeof(*test));

	if (test == NULL)
	{
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
		return NULL;
	}
	test->base.ops = &test_ops;
	test->context = 4096;
	test->kv_position_bytes = 64;
	if (!parse_options(test, options, err))
		goto fail;
	sleep_us(test->open_ms * 1000);
	if (test->open_error[0])
	{
		dsv3_error(err, DSV3_ERR_BAD_FILE, "%s", test->open_error);
		goto fail;
	}
	fill_info(test);
	test->history = malloc((size_t) test->context * sizeof(int32_t));
	if (test->history == NULL)
	{
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
		goto fail;
	}
	return &test->base;

fail:
	test_close(&test->base);
	return NULL;
}
