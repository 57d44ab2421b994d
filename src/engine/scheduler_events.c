/*
 * scheduler_events.c
 *	  What a job sends: pieces of its answer, its end, its failure.
 */
#include <string.h>

#include "engine/scheduler_state.h"

#define GATHER_TOKENS 16     /* without STREAM a DELTA waits for this many tokens ... */
#define GATHER_US     200000 /* ... or this long */

void
dsv3_job_fail(Dsv3Scheduler *scheduler, Job *job, const Dsv3Error *error)
{
	Dsv3Event event = {.type = DSV3_FRAME_FAIL, .request = job->id, .error = error};

	atomic_fetch_add(
		strcmp(error->sqlstate, DSV3_ERR_CANCELLED) == 0 ? &scheduler->n_cancelled : &scheduler->n_failed, 1);
	scheduler->options.emit(scheduler->options.arg, &event);
	dsv3_job_forget(scheduler, job);
}

void
dsv3_send_at_once(Dsv3Scheduler *scheduler, Job *job, const Dsv3AtOnce *answer)
{
	Dsv3Event event = {
		.type = DSV3_FRAME_DONE,
		.request = job->id,
		.kind = job->request->kind,
		.finish = DSV3_FINISH_STOP,
		.text = answer->text.data,
		.text_len = answer->text.len,
		.tokens = answer->tokens.ids,
		.n_tokens = answer->tokens.count,
		.prompt_tokens = answer->n_tokens,
	};

	atomic_fetch_add(&scheduler->n_done, 1);
	scheduler->options.emit(scheduler->options.arg, &event);
	dsv3_job_forget(scheduler, job);
}

void
dsv3_send_delta(Dsv3Scheduler *scheduler, Job *job, uint64_t now)
{
	Dsv3Sequence *seq = job->seq;
	Dsv3Event event = {.type = DSV3_FRAME_DELTA,
					   .request = job->id,
					   .text = seq->out_text.data,
					   .text_len = seq->out_text.len,
					   .tokens = seq->out_tokens.ids,
					   .n_tokens = seq->out_tokens.count};

	if (!seq->request->stream && seq->out_tokens.count < GATHER_TOKENS &&
		now - job->last_delta_us < GATHER_US)
		return;
	scheduler->options.emit(scheduler->options.arg, &event);
	seq->out_text.len = 0;
	seq->out_tokens.count = 0;
	job->last_delta_us = now;
}

void
dsv3_send_done(Dsv3Scheduler *scheduler, Job *job, uint64_t now)
{
	Dsv3Sequence *seq = job->seq;
	Dsv3Text message = {0};
	Dsv3Error err;
	Dsv3Event event = {.type = DSV3_FRAME_DONE, .request = job->id, .kind = seq->request->kind};

	if (seq->request->kind == DSV3_REQUEST_CHAT)
	{
		if (!dsv3_sequence_message(seq, &message, &err))
		{
			dsv3_text_free(&message);
			dsv3_job_fail(scheduler, job, &err);
			return;
		}
		event.message_json = message.data;
	}
	if (seq->request->has_logprobs && seq->request->kind != DSV3_REQUEST_LOGPROB)
	{
		if (!dsv3_text_append(&seq->logprobs, seq->logprobs.len ? "]" : "[]", seq->logprobs.len ? 1 : 2,
							  &err))
		{
			dsv3_text_free(&message);
			dsv3_job_fail(scheduler, job, &err);
			return;
		}
		event.logprobs_json = seq->logprobs.data;
	}
	if (seq->request->kind == DSV3_REQUEST_SCORE && !dsv3_sequence_scores(seq, &seq->out_text, &err))
	{
		dsv3_text_free(&message);
		dsv3_job_fail(scheduler, job, &err);
		return;
	}
	event.narrowed = seq->constraint && seq->constraint->narrowed;
	event.text = seq->out_text.data;
	event.text_len = seq->out_text.len;
	event.tokens = seq->out_tokens.ids;
	event.n_tokens = seq->out_tokens.count;
	event.finish = seq->request->kind == DSV3_REQUEST_LOGPROB ? DSV3_FINISH_STOP : seq->finish;
	event.prompt_tokens = (uint32_t) seq->n_prompt;
	event.cached_tokens = (uint32_t) job->cached;
	event.output_tokens = (uint32_t) dsv3_sequence_n_output(seq);
	event.drafted_tokens = job->drafted;
	event.accepted_tokens = job->accepted;
	event.logprob = seq->logprob;
	if (job->first_step_us == 0)
		job->first_step_us = now;
	if (job->first_token_us == 0)
		job->first_token_us = now;
	event.queue_us = job->first_step_us - job->submit_us;
	event.prefill_us = job->first_token_us - job->first_step_us;
	event.decode_us = now - job->first_token_us;
	event.gaps = job->gaps;
	atomic_fetch_add(&scheduler->n_done, 1);
	scheduler->options.emit(scheduler->options.arg, &event);
	dsv3_text_free(&message);
	dsv3_job_forget(scheduler, job);
}
