/*
 * scheduler_draft.c
 *	  Drafts: what the model's draft layer thinks comes behind the token that was just sampled is computed along in the next step.
 *
 * A draft is no answer. Its row is sampled as if the step had been for it alone, with the same random number, and counts only if the
 * row before came out as the draft (sequence.c): the answers are those without drafts, bit by bit. All sequences are drafted for in
 * one call, between two steps. Which ones is speculation.h's business.
 */
#include "engine/scheduler_state.h"

void
dsv3_note_draft(Dsv3Scheduler *scheduler, Job *job, bool was_right)
{
	job->drafted++;
	job->accepted += was_right;
	atomic_fetch_add(&scheduler->n_drafted, 1);
	atomic_fetch_add(&scheduler->n_accepted, was_right);
	dsv3_speculation_outcome(&scheduler->speculation, was_right, &job->drafts_right);
}

void
dsv3_may_draft(Dsv3Scheduler *scheduler, Job *job, int row)
{
	Dsv3Sequence *seq = job->seq;

	/* The draft needs a row in the cache, behind the last token's. */
	if (!scheduler->backend->info.drafts || scheduler->speculation.mode == DSV3_SPECULATION_OFF ||
		!dsv3_sequence_can_draft(seq) || (size_t) seq->n_blocks * DSV3_KV_BLOCK <= seq->tokens.count)
		return;
	scheduler->draft_jobs[scheduler->n_drafts] = job;
	scheduler->draft_rows[scheduler->n_drafts++] = row;
}

void
dsv3_make_drafts(Dsv3Scheduler *scheduler, int n_decoding)
{
	size_t vocab = (size_t) scheduler->backend->info.vocab_size;
	uint64_t start = now_us();
	size_t rows = 0;
	int n = 0;
	Dsv3Error err;

	for (int i = 0; i < scheduler->n_drafts; i++)
	{
		Job *job = scheduler->draft_jobs[i];
		Dsv3Sequence *seq = job->seq;

		if (!dsv3_speculation_pays(&scheduler->speculation, n_decoding, job->drafts_right))
			continue;
		scheduler->draft_jobs[n] = job;
		scheduler->draft_rows[n] = scheduler->draft_rows[i];
		scheduler->step_seqs[n] = (Dsv3StepSeq){.tokens = seq->tokens.ids + seq->computed,
												.n_tokens = 1,
												.position = (int) seq->computed,
												.blocks = seq->blocks,
												.n_blocks = seq->n_blocks,
												.want = DSV3_WANT_LAST,
												.picked = dsv3_sequence_picked(seq)};
		rows += dsv3_whole_rows(&scheduler->step_seqs[n++]);
	}
	scheduler->n_drafts = 0;
	/* Without memory there are no drafts, and the answers are the same. */
	if (n == 0 || !dsv3_reserve_logits(scheduler, rows, &err) ||
		!scheduler->backend->ops->draft(scheduler->backend, scheduler->step_seqs, scheduler->draft_rows, n,
										scheduler->logits, &err))
		return;
	rows = 0;
	for (int i = 0; i < n; i++)
	{
		size_t whole = dsv3_whole_rows(&scheduler->step_seqs[i]); /* before the guess is planned */

		dsv3_sequence_guess(scheduler->draft_jobs[i]->seq, &scheduler->sampler,
							rows < scheduler->logits_rows ? scheduler->logits + rows * vocab : NULL);
		rows += whole;
	}
	dsv3_speculation_drafts(&scheduler->speculation, n, now_us() - start);
}
