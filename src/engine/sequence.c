/*
 * sequence.c
 *	  The life of a request between prompt and answer; see sequence.h.
 *
 * Text that becomes visible passes three gates. Special tokens are left out; the thinking part of a GENERATE answer is left
 * out, with the line breaks behind its closing tag; text that may turn out to be the beginning of a stop string is held back.
 * Stop strings are looked for in the visible text. The match that ends first wins, of those the longest; text before it is
 * delivered, nothing after. What is held back when the sequence ends otherwise is delivered.
 */
#include "engine/routing.h"
#include "engine/sequence.h"

#include <ctype.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

/* Tokens kept for a constrained answer, beside its shortest form, when the thinking part would go on: the tag that ends it,
 * the end token, and some room to be more than the shortest. */
#define THINK_RESERVE 64

size_t
dsv3_sequence_n_output(const Dsv3Sequence *seq)
{
	return seq->tokens.count - seq->n_prompt;
}

/* -- text -- */

static bool
deliver(Dsv3Sequence *seq, bool emit, const char *text, size_t len, Dsv3Error *err)
{
	if (seq->request->kind == DSV3_REQUEST_CHAT)
		return dsv3_text_append(&seq->visible, text, len, err);
	return !emit || dsv3_text_append(&seq->out_text, text, len, err);
}

/* Does a stop string end at held[end)? Then *start, which is end before, is where it begins; the earliest when several do. */
static bool
stop_ends_at(const Dsv3Sequence *seq, size_t end, size_t *start)
{
	bool found = false;

	for (int i = 0; i < seq->request->n_stops; i++)
	{
		const Dsv3Bytes *stop = &seq->request->stops[i];

		if (stop->len <= end && memcmp(seq->held.data + end - stop->len, stop->data, stop->len) == 0 &&
			end - stop->len < *start)
		{
			*start = end - stop->len;
			found = true;
		}
	}
	return found;
}

/* How much of the end of held may be the beginning of a stop string. */
static size_t
held_back(const Dsv3Sequence *seq)
{
	size_t most = 0;

	for (int i = 0; i < seq->request->n_stops; i++)
	{
		const Dsv3Bytes *stop = &seq->request->stops[i];
		size_t len = stop->len - 1 < seq->held.len ? stop->len - 1 : seq->held.len;

		while (len > most && memcmp(seq->held.data + seq->held.len - len, stop->data, len) != 0)
			len--;
		if (len > most)
			most = len;
	}
	return most;
}

/* Take visible text through the stop strings; sets finished on a match. */
static bool
add_visible(Dsv3Sequence *seq, bool emit, const char *text, size_t len, Dsv3Error *err)
{
	size_t before = seq->held.len;
	size_t keep;

	while (seq->trim_newlines && len > 0 && (*text == '\n' || *text == '\r'))
	{
		text++;
		len--;
	}
	if (len == 0)
		return true;
	seq->trim_newlines = false;
	if (seq->constraint && !dsv3_text_append(&seq->constraint->answer, text, len, err))
		return false;
	if (seq->request->n_stops == 0)
		return deliver(seq, emit, text, len, err);
	if (!dsv3_text_append(&seq->held, text, len, err))
		return false;
	for (size_t end = before + 1; end <= seq->held.len; end++)
	{
		size_t start = end;

		if (stop_ends_at(seq, end, &start))
		{
			bool ok = deliver(seq, emit, seq->held.data, start, err);

			seq->held.len = 0;
			seq->finished = seq->stopped_by_string = true;
			seq->finish = DSV3_FINISH_STOP;
			return ok;
		}
	}
	keep = held_back(seq);
	if (!deliver(seq, emit, seq->held.data, seq->held.len - keep, err))
		return false;
	memmove(seq->held.data, seq->held.data + seq->held.len - keep, keep);
	seq->held.len = keep;
	return true;
}

/* The end of the text: a character that will not be completed, and what was held back. A constrained answer that came to its
 * own end is checked. */
static bool
flush_text(Dsv3Sequence *seq, bool emit, Dsv3Error *err)
{
	Dsv3Text rest = {0};
	bool ok = seq->backend->ops->decoder_finish(seq->backend, &seq->decoder, &rest, err);

	if (ok && !seq->thinking)
		ok = add_visible(seq, emit, rest.data, rest.len, err);
	if (ok && seq->held.len > 0)
		ok = deliver(seq, emit, seq->held.data, seq->held.len, err);
	seq->held.len = 0;
	dsv3_text_free(&rest);
	return ok &&
		   (seq->constraint == NULL || seq->stopped_by_string || dsv3_constraint_check(seq->constraint, err));
}

/* Which part of the answer the token belongs to; true when its text is visible. */
static bool
note_thinking(Dsv3Sequence *seq, int32_t id)
{
	if (seq->request->raw || seq->backend->think_close < 0)
		return true;
	if (seq->thinking)
	{
		if (id == seq->backend->think_close)
		{
			seq->thinking = false;
			seq->trim_newlines = seq->constraint == NULL; /* a constrained answer begins where it says */
		}
		else
			seq->think_spent++;
		return false;
	}
	if (id == seq->backend->think_open && dsv3_sequence_n_output(seq) == 1)
	{
		seq->thinking = true;
		return false;
	}
	return true;
}

static bool
is_eos(const Dsv3Sequence *seq, int32_t id)
{
	for (int i = 0; i < seq->backend->info.n_eos; i++)
	{
		if (seq->backend->info.eos_ids[i] == id)
			return true;
	}
	return false;
}

/* Append an output token and everything that follows from it. emit false: it was delivered before a restart. */
static bool
accept_token(Dsv3Sequence *seq, int32_t id, bool emit, Dsv3Error *err)
{
	Dsv3Text text = {0};
	bool visible;
	bool ended = false;
	bool ok = true;

	if (!dsv3_tokens_push(&seq->tokens, id, err) || (emit && !dsv3_tokens_push(&seq->out_tokens, id, err)))
		return false;
	dsv3_seen_add(&seq->seen, id);
	if (is_eos(seq, id))
	{
		seq->finished = true;
		seq->finish = DSV3_FINISH_STOP;
		return flush_text(seq, emit, err);
	}
	visible = note_thinking(seq, id);
	if (visible && seq->constraint && !dsv3_constraint_accept(seq->constraint, id, &ended, err))
		return false;
	/* A tag of the thinking part ends the run of bytes before it and has no text of its own. */
	if (!visible && (id == seq->backend->think_open || id == seq->backend->think_close))
		seq->backend->ops->decoder_init(seq->backend, &seq->decoder, true);
	else
		ok = seq->backend->ops->decoder_feed(seq->backend, &seq->decoder, id, &text, err);
	if (ok && visible)
		ok = add_visible(seq, emit, text.data, text.len, err);
	dsv3_text_free(&text);
	if (ok && !seq->finished && (ended || seq->tokens.count >= seq->n_limit))
	{
		seq->finished = true;
		seq->finish = ended ? DSV3_FINISH_STOP : DSV3_FINISH_LENGTH;
		ok = flush_text(seq, emit, err);
	}
	return ok;
}

/* -- opening -- */

/* A prompt cut short by the encoder's limit, or one that leaves no room: the same error with the best number known. */
static bool
too_long(const Dsv3Sequence *seq, size_t length, bool more, size_t max_context, bool kv_limited,
		 Dsv3Error *err)
{
	dsv3_error(err, DSV3_ERR_TOO_LARGE, "the prompt is %s%zu tokens long, at most %zu fit",
			   more ? "more than " : "", length, max_context - 1);
	if (kv_limited)
	{
		dsv3_error_detail(err, "The cache has room for %zu tokens, the model's context is %d.", max_context,
						  seq->backend->info.max_positions);
		return dsv3_error_hint(err, "Shorten the prompt or raise dsv3.kv_cache_size.");
	}
	dsv3_error_detail(err, "The model's context is %d tokens, and an answer needs at least one.",
					  seq->backend->info.max_positions);
	return dsv3_error_hint(err, "Shorten the prompt, or split the input and answer in parts.");
}

/* The user message of GENERATE: the prompt, and the input behind it. */
static bool
user_text(const Dsv3Request *request, Dsv3Text *out, Dsv3Error *err)
{
	const Dsv3Bytes *prompt = &request->prompt;
	const Dsv3Bytes *input = &request->input;

	if (!dsv3_text_append(out, prompt->data, prompt->len, err))
		return false;
	if (input->len == 0)
		return true;
	if (prompt->len > 0 && !isspace((unsigned char) prompt->data[prompt->len - 1]) &&
		!dsv3_text_append(out, "\n\n", 2, err))
		return false;
	return dsv3_text_append(out, input->data, input->len, err);
}

/* A JSON string of text that may be invalid UTF-8: then NULL and 22021. */
static json_t *
json_text(const char *text, size_t len, const char *what, Dsv3Error *err)
{
	json_t *string = json_stringn(text ? text : "", len);

	if (string == NULL)
		dsv3_error(err, DSV3_ERR_INVALID_TEXT, "%s is not valid UTF-8", what);
	return string;
}

static bool
add_message(json_t *messages, const char *role, const char *text, size_t len, const char *what,
			Dsv3Error *err)
{
	json_t *content = json_text(text, len, what, err);
	json_t *message;

	if (content == NULL)
		return false;
	message = json_pack("{s:s, s:o}", "role", role, "content", content);
	if (message == NULL || json_array_append_new(messages, message) != 0)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for the prompt");
	return true;
}

/* GENERATE and LOGPROB through the chat template. */
static bool
render_user(Dsv3Sequence *seq, const Dsv3Text *text, size_t limit, Dsv3Error *err)
{
	const Dsv3Request *request = seq->request;
	json_t *messages = json_array();
	char *json = NULL;
	bool ok = messages != NULL || dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for the prompt");

	if (ok && request->system.data)
		ok = add_message(messages, "system", request->system.data, request->system.len, "the system message",
						 err);
	ok = ok && add_message(messages, "user", text->data, text->len, "the prompt", err);
	if (ok)
	{
		json = json_dumps(messages, JSON_COMPACT);
		ok = json != NULL || dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for the prompt");
	}
	ok = ok && seq->backend->ops->render(seq->backend, json, strlen(json), NULL, 0, request->think, limit,
										 &seq->tokens, err);
	free(json);
	json_decref(messages);
	return ok;
}

/* Raw text has no place for a system message but its front. */
static bool
encode_raw(Dsv3Sequence *seq, const Dsv3Text *text, size_t limit, Dsv3Error *err)
{
	if (seq->request->system.data)
	{
		dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "a raw prompt cannot have a system message");
		return dsv3_error_hint(err, "Write it into the prompt.");
	}
	return seq->backend->ops->raw(seq->backend, text->data ? text->data : "", text->len, limit, &seq->tokens,
								  err);
}

static bool
encode_prompt(Dsv3Sequence *seq, size_t limit, Dsv3Error *err)
{
	const Dsv3Request *request = seq->request;
	Dsv3Text text = {0};
	bool ok;

	if (request->kind == DSV3_REQUEST_CHAT)
		return seq->backend->ops->render(seq->backend, request->messages.data, request->messages.len,
										 request->tools.data, request->tools.len, request->think, limit,
										 &seq->tokens, err);
	ok = user_text(request, &text, err);
	if (ok)
		ok = request->raw ? encode_raw(seq, &text, limit, err) : render_user(seq, &text, limit, err);
	dsv3_text_free(&text);
	return ok;
}

/* Set the prompt: encode, check its length, remember its ids. */
static bool
open_prompt(Dsv3Sequence *seq, size_t max_context, bool kv_limited, Dsv3Error *err)
{
	/* Beyond this the exact length is not worth the time it takes to find out. */
	size_t limit = 4 * max_context;

	if (!encode_prompt(seq, limit, err))
	{
		if (strcmp(err->sqlstate, DSV3_ERR_TOO_LARGE) == 0)
			too_long(seq, limit, true, max_context, kv_limited, err);
		return false;
	}
	seq->n_prompt = seq->tokens.count;
	if (seq->n_prompt == 0)
	{
		dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "the prompt has no tokens");
		return dsv3_error_hint(
			err, "This model has no token for the beginning of a text; write at least a character.");
	}
	if (seq->n_prompt >= max_context)
		return too_long(seq, seq->n_prompt, false, max_context, kv_limited, err);
	for (size_t i = 0; i < seq->n_prompt; i++)
	{
		if (seq->tokens.ids[i] < 0 || seq->tokens.ids[i] >= seq->backend->info.vocab_size)
			return dsv3_error(err, DSV3_ERR_BAD_FILE, "the tokenizer gave id %d, the model has %d",
							  seq->tokens.ids[i], seq->backend->info.vocab_size);
		dsv3_seen_add(&seq->seen, seq->tokens.ids[i]);
	}
	return true;
}

/*
 * PIN and UNPIN: the sequence becomes the beginning, in whole blocks, that prompts have whatever INPUT they go on with. Where the
 * prompt ends its last characters may become one token with the first of the input, and the template puts tokens behind; so it
 * is what prompts with inputs of different kinds have in common.
 */
static bool
open_prefix(Dsv3Sequence *seq, size_t max_context, bool kv_limited, Dsv3Error *err)
{
	static const char *const inputs[] = {"a", "Z", "1", "\n", " x", "(", "\xe4\xb8\xad"};
	Dsv3Tokens common = {0};
	bool ok = true;

	for (size_t i = 0; ok && i < sizeof(inputs) / sizeof(inputs[0]); i++)
	{
		size_t same = 0;

		free(seq->request->input.data);
		seq->request->input = (Dsv3Bytes){0};
		seq->tokens.count = 0;
		ok = dsv3_bytes_set(&seq->request->input, inputs[i], strlen(inputs[i]), err) &&
			 open_prompt(seq, max_context, kv_limited, err);
		if (ok && i == 0)
		{
			common = seq->tokens;
			seq->tokens = (Dsv3Tokens){0};
			continue;
		}
		while (ok && same < common.count && same < seq->tokens.count &&
			   common.ids[same] == seq->tokens.ids[same])
			same++;
		common.count = same;
	}
	dsv3_tokens_free(&seq->tokens);
	seq->tokens = common;
	seq->tokens.count -= common.count % DSV3_KV_BLOCK;
	seq->n_prompt = seq->n_limit = seq->score_from = seq->tokens.count;
	seq->finish = DSV3_FINISH_STOP;
	seq->finished = seq->tokens.count == 0 || seq->request->kind == DSV3_REQUEST_UNPIN;
	return ok;
}

/* A constrained answer must fit whole: its shortest form, the end token, and the tag that ends the thinking part. */
static bool
check_room(Dsv3Sequence *seq, Dsv3Error *err)
{
	size_t least = (size_t) dsv3_matcher_shortest(seq->constraint->matcher) + 1 + (seq->thinking ? 1 : 0);
	size_t room = seq->n_limit - seq->n_prompt;

	if (room >= least)
		return true;
	dsv3_error(err, DSV3_ERR_TOO_LARGE, "%zu output tokens are too few for a complete answer", room);
	dsv3_error_detail(err, "The shortest answer that is allowed takes %zu.", least);
	return dsv3_error_hint(err, "Raise max_tokens, shorten the input, or ask for less.");
}

/* How far the sequence may go. An explicit max_tokens that only a larger cache could serve is refused, not cut. */
static bool
set_limit(Dsv3Sequence *seq, size_t max_context, Dsv3Error *err)
{
	size_t context = (size_t) seq->backend->info.max_positions;
	size_t wanted = max_context;

	if (seq->request->has_max_tokens)
	{
		wanted = seq->n_prompt + seq->request->max_tokens;
		wanted = wanted < context ? wanted : context;
	}
	seq->n_limit = wanted;
	if (wanted <= max_context)
		return seq->constraint == NULL || check_room(seq, err);
	dsv3_error(err, DSV3_ERR_TOO_LARGE,
			   "%zu tokens of prompt and %u of output do not fit in the cache of %zu tokens", seq->n_prompt,
			   seq->request->max_tokens, max_context);
	return dsv3_error_hint(err, "Lower max_tokens or raise dsv3.kv_cache_size.");
}

/* Ids that are looked up in a row of logits must be there. */
static bool
check_scored(const Dsv3Sequence *seq, const int32_t *ids, size_t count, Dsv3Error *err)
{
	for (size_t i = 0; i < count; i++)
	{
		if (ids[i] < 0 || ids[i] >= seq->backend->sample_limit)
			return dsv3_error(err, DSV3_ERR_BAD_FILE, "the tokenizer gave id %d, the model has %d", ids[i],
							  seq->backend->sample_limit);
	}
	return true;
}

/* SCORE: put choice i behind the prompt. */
static bool
take_choice(Dsv3Sequence *seq, size_t i, Dsv3Error *err)
{
	seq->choice = i;
	seq->tokens.count = seq->n_prompt;
	seq->score_from = seq->n_prompt - 1;
	for (size_t at = i > 0 ? seq->choice_ends[i - 1] : 0; at < seq->choice_ends[i]; at++)
	{
		if (!dsv3_tokens_push(&seq->tokens, seq->choices.ids[at], err))
			return false;
	}
	return true;
}

/* LOGPROB: the continuation follows the prompt and every one of its tokens is scored. */
static bool
open_continuation(Dsv3Sequence *seq, size_t max_context, bool kv_limited, Dsv3Error *err)
{
	const Dsv3Bytes *text = &seq->request->continuation;

	if (!seq->backend->ops->encode(seq->backend, text->data, text->len, 4 * max_context, &seq->tokens, err))
	{
		if (strcmp(err->sqlstate, DSV3_ERR_TOO_LARGE) == 0)
			too_long(seq, 4 * max_context, true, max_context, kv_limited, err);
		return false;
	}
	if (seq->tokens.count >= max_context)
		return too_long(seq, seq->tokens.count, false, max_context, kv_limited, err);
	if (!check_scored(seq, seq->tokens.ids + seq->n_prompt, seq->tokens.count - seq->n_prompt, err))
		return false;
	seq->n_limit = seq->tokens.count;
	seq->finished = seq->tokens.count == seq->n_prompt; /* nothing to score: log-probability 0 */
	return true;
}

/* SCORE: encode every choice, each as an answer of its own, and begin with the first. */
static bool
open_choices(Dsv3Sequence *seq, size_t max_context, bool kv_limited, Dsv3Error *err)
{
	const Dsv3Bytes *text = &seq->request->choices;
	json_t *list = json_loadb(text->data, text->len, 0, NULL);
	size_t n = json_array_size(list);
	size_t longest = 0;
	bool ok = n > 0 || dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "choices must be a JSON array of strings");

	seq->choice_ends = ok ? calloc(n, sizeof(*seq->choice_ends)) : NULL;
	seq->choice_logprobs = ok ? calloc(n, sizeof(*seq->choice_logprobs)) : NULL;
	if (ok && (seq->choice_ends == NULL || seq->choice_logprobs == NULL))
		ok = dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for choices");
	for (size_t i = 0; ok && i < n; i++)
	{
		json_t *choice = json_array_get(list, i);
		size_t before = seq->choices.count;

		if (!json_is_string(choice))
			ok = dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "choices must be a JSON array of strings");
		ok = ok &&
			 seq->backend->ops->encode(seq->backend, json_string_value(choice), json_string_length(choice),
									   4 * max_context, &seq->choices, err) &&
			 (seq->backend->info.n_eos == 0 ||
			  dsv3_tokens_push(&seq->choices, seq->backend->info.eos_ids[0], err));
		seq->choice_ends[i] = seq->choices.count;
		if (ok && seq->choices.count == before)
			ok = dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "choice %zu has no tokens", i);
		if (seq->choices.count - before > longest)
			longest = seq->choices.count - before;
	}
	json_decref(list);
	if (!ok || !check_scored(seq, seq->choices.ids, seq->choices.count, err))
		return false;
	if (seq->n_prompt + longest >= max_context)
		return too_long(seq, seq->n_prompt + longest, false, max_context, kv_limited, err);
	seq->n_choices = n;
	seq->n_limit = seq->n_prompt + longest;
	return take_choice(seq, 0, err);
}

static bool
replay(Dsv3Sequence *seq, Dsv3Error *err)
{
	for (size_t i = 0; i < seq->request->n_tokens; i++)
	{
		int32_t id = seq->request->tokens[i];

		if (id < 0 || id >= seq->backend->sample_limit)
			return dsv3_error(err, DSV3_ERR_PROTOCOL, "token id %d to resume with is out of range", id);
		if (seq->finished)
			return dsv3_error(err, DSV3_ERR_PROTOCOL, "tokens to resume with go on after the answer's end");
		if (!accept_token(seq, id, false, err))
			return false;
	}
	return true;
}

Dsv3Sequence *
dsv3_sequence_open(Dsv3Backend *backend, Dsv3Request *request, size_t max_context, bool kv_limited,
				   Dsv3Error *err)
{
	Dsv3Sequence *seq = calloc(1, sizeof(*seq));
	size_t n_table;

	if (seq == NULL)
	{
		dsv3_request_free(request);
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for a request");
		return NULL;
	}
	seq->request = request;
	seq->backend = backend;
	seq->tokens.abort_flag = seq->choices.abort_flag = request->abort_flag;
	backend->ops->decoder_init(backend, &seq->decoder, true);
	if (!dsv3_seen_open(&seq->seen, &request->sampling, backend->sample_limit, err))
		goto fail;
	if (request->kind == DSV3_REQUEST_PIN || request->kind == DSV3_REQUEST_UNPIN)
	{
		if (!open_prefix(seq, max_context, kv_limited, err))
			goto fail;
		goto opened;
	}
	if (!open_prompt(seq, max_context, kv_limited, err))
		goto fail;
	if (request->kind == DSV3_REQUEST_ROUTING)
	{
		if (!dsv3_routing_open(seq, err))
			goto fail;
		goto opened;
	}
	if (!request->raw)
		seq->opened_think = seq->thinking = backend->ops->opens_think(backend, request->think);
	seq->score_from = seq->n_prompt - 1;
	if (request->kind == DSV3_REQUEST_LOGPROB)
	{
		if (!open_continuation(seq, max_context, kv_limited, err))
			goto fail;
	}
	else if (request->kind == DSV3_REQUEST_SCORE)
	{
		if (!open_choices(seq, max_context, kv_limited, err))
			goto fail;
	}
	else
	{
		if (request->grammar.data && (seq->constraint = dsv3_constraint_open(backend, request, err)) == NULL)
			goto fail;
		if (!set_limit(seq, max_context, err) || !replay(seq, err))
			goto fail;
		/* Rows before the last are scored again only where their log-probabilities are asked for. */
		if (!request->has_logprobs)
			seq->score_from = seq->tokens.count - 1;
		if (!seq->finished && !dsv3_sequence_plan(seq, err))
			goto fail;
	}

opened:
	n_table = (seq->n_limit + DSV3_KV_BLOCK - 1) / DSV3_KV_BLOCK;
	seq->blocks = malloc((n_table + 1) * sizeof(int32_t));
	if (seq->blocks == NULL)
	{
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for a block table");
		goto fail;
	}
	return seq;

fail:
	dsv3_sequence_close(seq);
	return NULL;
}

void
dsv3_sequence_close(Dsv3Sequence *seq)
{
	if (seq == NULL)
		return;
	dsv3_request_free(seq->request);
	dsv3_tokens_free(&seq->tokens);
	free(seq->blocks);
	dsv3_seen_close(&seq->seen);
	dsv3_text_free(&seq->held);
	dsv3_text_free(&seq->out_text);
	dsv3_tokens_free(&seq->out_tokens);
	dsv3_text_free(&seq->visible);
	dsv3_text_free(&seq->logprobs);
	dsv3_constraint_close(seq->constraint);
	dsv3_tokens_free(&seq->choices);
	free(seq->choice_ends);
	free(seq->choice_logprobs);
	free(seq->routing);
	free(seq);
}

/* -- rows -- */

/* {"id":..,"token":..,"logprob":..}: the OpenAI shape with the id added. A token that is part of a character shows U+FFFD. */
static json_t *
token_json(Dsv3Sequence *seq, int32_t id, double logprob, Dsv3Error *err)
{
	Dsv3Text text = {0};
	json_t *object = NULL;

	if (dsv3_backend_decode(seq->backend, &id, 1, false, &text, err))
		object = json_pack("{s:i, s:o, s:f}", "id", (int) id, "token",
						   json_stringn(text.data ? text.data : "", text.len), "logprob", logprob);
	dsv3_text_free(&text);
	return object;
}

/* Append the element of LOGPROBS_JSON for a token that follows the row with these logits. */
static bool
report_logprobs(Dsv3Sequence *seq, const float *logits, int32_t id, Dsv3Error *err)
{
	int n = seq->backend->sample_limit;
	int32_t top[DSV3_MAX_LOGPROBS];
	double logsum;
	json_t *element;
	json_t *list = json_array();
	char *text;
	bool ok;

	if (!dsv3_sampler_logsum(logits, n, &logsum, err))
	{
		json_decref(list);
		return false;
	}
	element = token_json(seq, id, logits[id] - logsum, err);
	for (int i = 0, count = dsv3_sampler_top(logits, n, (int) seq->request->logprobs, top); i < count; i++)
		json_array_append_new(list, token_json(seq, top[i], logits[top[i]] - logsum, err));
	json_object_set_new(element, "top_logprobs", list);
	text = json_dumps(element, JSON_COMPACT | JSON_REAL_PRECISION(17));
	ok = text != NULL || dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for log-probabilities");
	ok = ok && dsv3_text_append(&seq->logprobs, seq->logprobs.len ? "," : "[", 1, err) &&
		 dsv3_text_append(&seq->logprobs, text, strlen(text), err);
	free(text);
	json_decref(element);
	return ok;
}

/* LOGPROB and SCORE: add the log-probability of the token behind the row; at a choice's end go on to the next one. */
static bool
score_row(Dsv3Sequence *seq, size_t row, const float *logits, Dsv3Error *err)
{
	double *sum = seq->n_choices > 0 ? &seq->choice_logprobs[seq->choice] : &seq->logprob;
	double logsum;

	if (!dsv3_sampler_logsum(logits, seq->backend->sample_limit, &logsum, err))
		return false;
	*sum += logits[seq->tokens.ids[row + 1]] - logsum;
	seq->score_from = row + 1;
	if (row + 2 < seq->tokens.count)
		return true;
	if (seq->choice + 1 >= seq->n_choices)
	{
		seq->finished = true;
		seq->finish = DSV3_FINISH_STOP;
		return true;
	}
	seq->computed = seq->n_prompt - 1;
	return take_choice(seq, seq->choice + 1, err);
}

/* Is the thinking part over, because its budget is spent or the constrained answer needs all tokens that are left? */
static bool
thinking_must_end(const Dsv3Sequence *seq)
{
	if (!seq->thinking)
		return false;
	if (seq->request->has_think_budget && seq->think_spent >= seq->request->think_budget)
		return true;
	return seq->constraint && seq->n_limit - seq->tokens.count <=
								  (size_t) dsv3_matcher_shortest(seq->constraint->matcher) + THINK_RESERVE;
}

/* A constrained answer of a model that opens its thinking part itself, at its beginning: the tag is set, because no grammar has it.
 * Where there is no room to think the answer begins at once. */
static bool
thinking_must_begin(const Dsv3Sequence *seq)
{
	return seq->backend->writes_think && !seq->opened_think && seq->request->think != DSV3_THINK_OFF &&
		   !seq->request->raw && dsv3_sequence_n_output(seq) == 0 &&
		   seq->n_limit - seq->tokens.count >
			   (size_t) dsv3_matcher_shortest(seq->constraint->matcher) + THINK_RESERVE;
}

/* Is the next token the grammar's business? */
static bool
is_masked(const Dsv3Sequence *seq)
{
	return seq->constraint && !seq->thinking && !thinking_must_begin(seq);
}

const Dsv3Picked *
dsv3_sequence_picked(const Dsv3Sequence *seq)
{
	return is_masked(seq) && !seq->request->has_logprobs ? seq->constraint->picked : NULL;
}

/* Put drafts behind the tokens. */
static bool
set_drafts(Dsv3Sequence *seq, const int32_t *ids, int n, Dsv3Error *err)
{
	size_t count = seq->tokens.count;

	for (int i = 0; i < n; i++)
	{
		if (!dsv3_tokens_push(&seq->tokens, ids[i], err))
		{
			seq->tokens.count = count;
			return false;
		}
	}
	seq->drafts_end = seq->tokens.count;
	seq->tokens.count = count;
	seq->n_drafts = n;
	return true;
}

bool
dsv3_sequence_plan(Dsv3Sequence *seq, Dsv3Error *err)
{
	seq->n_drafts = 0;
	seq->drafts_end = 0;
	seq->guessed = false;
	if (!is_masked(seq))
		return true;
	/* Log-probabilities are the model's own, over all ids, for each row that is computed. */
	if (!dsv3_constraint_plan(seq->constraint, seq->backend, seq->n_limit - seq->tokens.count,
							  seq->request->has_logprobs, err))
		return false;
	return set_drafts(seq, seq->constraint->drafts, seq->constraint->n_drafts, err);
}

bool
dsv3_sequence_can_draft(const Dsv3Sequence *seq)
{
	return (seq->request->kind == DSV3_REQUEST_GENERATE || seq->request->kind == DSV3_REQUEST_CHAT) &&
		   seq->n_drafts == 0 && seq->tokens.count - seq->computed == 1 && seq->computed >= seq->n_prompt &&
		   seq->n_limit - seq->tokens.count >= 2 && !thinking_must_end(seq) &&
		   !(seq->constraint && !seq->thinking && thinking_must_begin(seq));
}

void
dsv3_sequence_guess(Dsv3Sequence *seq, Dsv3Sampler *sampler, const float *logits)
{
	const Dsv3Sampling *sampling = &seq->request->sampling;
	size_t index = dsv3_sequence_n_output(seq);
	int32_t id;
	Dsv3Error err;

	if (is_masked(seq))
	{
		if (!dsv3_constraint_guess(seq->constraint, seq->backend, sampler, sampling, &seq->seen, logits,
								   index, seq->n_limit - seq->tokens.count, seq->request->has_logprobs))
			return;
		id = seq->constraint->drafts[0];
	}
	else if (!dsv3_sampler_pick(sampler, sampling, &seq->seen, logits, NULL, index, &id, &err) ||
			 is_eos(seq, id) ||
			 /* Behind the tag the grammar would have to be asked, which has not been. */
			 (seq->constraint && (id == seq->backend->think_open || id == seq->backend->think_close)))
		return;
	seq->guessed = set_drafts(seq, &id, 1, &err);
}

bool
dsv3_sequence_use_row(Dsv3Sequence *seq, Dsv3Sampler *sampler, size_t row, const float *logits,
					  Dsv3Error *err)
{
	bool known = row + 1 < seq->tokens.count;
	int32_t id;

	if (seq->request->kind == DSV3_REQUEST_LOGPROB || seq->request->kind == DSV3_REQUEST_SCORE)
		return score_row(seq, row, logits, err);
	if (known)
		id = seq->tokens.ids[row + 1];
	else if (thinking_must_end(seq))
		id = seq->backend->think_close; /* the tag is set, not sampled */
	else if (seq->constraint && !seq->thinking && thinking_must_begin(seq))
		id = seq->backend->think_open;
	else if (is_masked(seq))
	{
		if (!dsv3_constraint_pick(seq->constraint, sampler, &seq->request->sampling, &seq->seen, logits,
								  dsv3_sequence_n_output(seq), &id, err))
			return false;
	}
	else if (!dsv3_sampler_pick(sampler, &seq->request->sampling, &seq->seen, logits, NULL,
								dsv3_sequence_n_output(seq), &id, err))
		return false;
	if (seq->request->has_logprobs && !report_logprobs(seq, logits, id, err))
		return false;
	seq->score_from = row + 1;
	if (known)
		return true;
	/* The row behind this one counts if it is a draft's, and the draft came true. */
	if (seq->tokens.count >= seq->drafts_end || seq->tokens.ids[seq->tokens.count] != id)
		seq->computed = row + 1;
	return accept_token(seq, id, true, err);
}

/* -- results -- */

bool
dsv3_sequence_scores(Dsv3Sequence *seq, Dsv3Text *json, Dsv3Error *err)
{
	json_t *list = json_array();
	char *text;
	bool ok;

	/* JSON has no infinity; what cannot be at all gets the least number there is. */
	for (size_t i = 0; i < seq->n_choices; i++)
		json_array_append_new(list, json_real(fmax(seq->choice_logprobs[i], -DBL_MAX)));
	text = json_dumps(list, JSON_COMPACT | JSON_REAL_PRECISION(17));
	ok = text ? dsv3_text_append(json, text, strlen(text), err)
			  : dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for scores");
	free(text);
	json_decref(list);
	return ok;
}

bool
dsv3_sequence_message(Dsv3Sequence *seq, Dsv3Text *json, Dsv3Error *err)
{
	Dsv3Text answer = {0};
	Dsv3Text reasoning = {0};
	Dsv3Text content = {0};
	Dsv3Text calls = {0};
	size_t n = dsv3_sequence_n_output(seq);
	json_t *message = NULL;
	char *text = NULL;
	bool ok;

	if (n > 0 && is_eos(seq, seq->tokens.ids[seq->tokens.count - 1]))
		n--;
	ok = dsv3_backend_decode(seq->backend, seq->tokens.ids + seq->n_prompt, n, false, &answer, err) &&
		 seq->backend->ops->parse_answer(seq->backend, answer.data ? answer.data : "", answer.len,
										 seq->opened_think, &reasoning, &content, &calls, err);
	if (ok)
	{
		/* A stop string cuts the visible text, which the whole answer knows nothing of. */
		const Dsv3Text *shown = seq->stopped_by_string ? &seq->visible : &content;
		json_t *tools = calls.len > 0 ? json_loadb(calls.data, calls.len, 0, NULL) : NULL;

		message = json_pack("{s:s}", "role", "assistant");
		if (shown->len == 0 && tools)
			json_object_set_new(message, "content", json_null());
		else
			json_object_set_new(message, "content", json_stringn(shown->data ? shown->data : "", shown->len));
		if (reasoning.len > 0)
			json_object_set_new(message, "reasoning_content", json_stringn(reasoning.data, reasoning.len));
		if (tools)
		{
			json_object_set_new(message, "tool_calls", tools);
			if (seq->finish == DSV3_FINISH_STOP)
				seq->finish = DSV3_FINISH_TOOL_CALLS;
		}
		text = json_dumps(message, JSON_COMPACT);
		ok = text ? dsv3_text_append(json, text, strlen(text), err)
				  : dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for the answer");
	}
	free(text);
	json_decref(message);
	dsv3_text_free(&answer);
	dsv3_text_free(&reasoning);
	dsv3_text_free(&content);
	dsv3_text_free(&calls);
	return ok;
}
