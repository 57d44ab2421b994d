/*
 * queue.c
 *	  The request queue: how backends and the supervisor move slots through the states that shmem.h draws.
 *
 * Every function takes the lock itself, checks that the ticket still names the slot's present use, does a few
 * assignments and releases it. Latches are set while the lock is held: setting one cannot throw, and the number of the
 * process to wake is then certain to be right. A latch set for a process that has just gone wakes nobody, or a new
 * process with that number once too often, which every wait loop tolerates.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "utils/timestamp.h"

#include "pg/guc.h"
#include "pg/queue.h"
#include "pg/quota.h"
#include "pg/stat.h"

static void
lock(void)
{
	LWLockAcquire(dsv3_lock, LW_EXCLUSIVE);
}

static void
unlock(void)
{
	LWLockRelease(dsv3_lock);
}

/* The slot of a ticket, or NULL when it is stale. The lock is held. */
static Dsv3Slot *
slot_of(const Dsv3Ticket *ticket)
{
	Dsv3Slot *slot;

	if (ticket->slot < 0 || ticket->slot >= dsv3_shared->n_slots)
		return NULL;
	slot = &dsv3_slots[ticket->slot];
	return slot->request == ticket->request && slot->state != DSV3_SLOT_FREE ? slot : NULL;
}

static void
wake_supervisor(void)
{
	dsv3_shared->attention = true;
	if (dsv3_shared->supervisor_pid != 0)
		SetLatch(dsv3_latch_of(dsv3_shared->supervisor_proc));
}

static void
wake_owner(const Dsv3Slot *slot)
{
	SetLatch(dsv3_latch_of(slot->owner_proc));
}

/* The tokens that a request has taken. One that was left before its end counts what it was expected to take of them
 * for its prompt, since nobody knows how far it came, and what it has answered. */
static uint32
tokens_of(const Dsv3Slot *slot)
{
	bool left = slot->state == DSV3_SLOT_ACTIVE || slot->state == DSV3_SLOT_ABANDONED || slot->cancel;

	if (slot->sent_at == 0)
		return 0;
	if (left && slot->counts.prompt_tokens == 0)
		return slot->expected - slot->max_tokens + slot->counts.output_tokens;
	return slot->counts.prompt_tokens + slot->counts.output_tokens;
}

static void
free_slot(Dsv3Slot *slot)
{
	dsv3_quota_charge(slot->account, tokens_of(slot));
	slot->account = InvalidOid;
	dsv3_chain_free(&slot->input);
	dsv3_chain_free(&slot->output);
	dsv3_slot_set_state(slot, DSV3_SLOT_FREE);
	slot->request = 0;
	slot->preview[0] = '\0';
}

/* ACTIVE or QUEUED -> FAILED. */
static void
end_slot(Dsv3Slot *slot, const Dsv3Error *err, bool row_error)
{
	dsv3_slot_set_state(slot, DSV3_SLOT_FAILED);
	slot->error = *err;
	slot->row_error = row_error;
	dsv3_chain_free(&slot->input);
	wake_owner(slot);
}

static void
fail_slot(Dsv3Slot *slot, const Dsv3Error *err, bool row_error)
{
	dsv3_stat_failed(slot, err);
	end_slot(slot, err, row_error);
}

/* ---- the backend's side ---- */

static void
engine_down_error(Dsv3Error *err)
{
	*err = dsv3_shared->last_error;
	dsv3_error_prefix(err, "dsv3 engine is down");
}

/* Would something be left for the first request of every other backend? At least a quarter of the slots can be had this way,
 * and half of the arena. The lock is held. */
static bool
have_spare(Size body_len)
{
	int n_slots = dsv3_shared->n_slots;
	int needed = Min(MaxBackends, n_slots - n_slots / 4) + 1;
	Size chunks = body_len / DSV3_CHUNK_SIZE + 1;

	if ((Size) dsv3_shared->n_free_chunks < chunks + (Size) dsv3_shared->n_chunks / 2)
		return false;
	for (int i = 0; i < n_slots && needed > 0; i++)
	{
		if (dsv3_slots[i].state == DSV3_SLOT_FREE)
			needed--;
	}
	return needed == 0;
}

/* Claim a free slot and room for the input. The lock is held; on failure err is set and nothing has changed. */
static Dsv3Slot *
claim(Size body_len, Oid account, uint32 expected, bool spare, Dsv3Error *err)
{
	Dsv3Slot *slot = NULL;

	if (dsv3_shared->engine_state == DSV3_ENGINE_DOWN)
	{
		engine_down_error(err);
		return NULL;
	}
	if (!dsv3_quota_admit(account, expected, spare, err))
		return NULL;
	for (int i = 0; i < dsv3_shared->n_slots && slot == NULL; i++)
	{
		if (dsv3_slots[i].state == DSV3_SLOT_FREE)
			slot = &dsv3_slots[i];
	}
	if (slot == NULL || (spare && !have_spare(body_len)))
	{
		dsv3_error(err, DSV3_ERR_QUEUE_FULL, "dsv3 queue is full");
		dsv3_error_detail(err, "All %d places are taken by waiting or running requests.",
						  dsv3_shared->n_slots);
		dsv3_error_hint(err, "Try again later, or raise dsv3.queue_size and restart the server.");
		return NULL;
	}
	if (!dsv3_chain_alloc(&slot->input, body_len))
	{
		if (body_len > (Size) dsv3_shared->n_chunks * DSV3_CHUNK_SIZE)
			dsv3_error(err, DSV3_ERR_TOO_LARGE, "request of %zu bytes is larger than dsv3.shared_memory",
					   body_len);
		else
			dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of shared memory for dsv3 requests");
		dsv3_error_hint(err, "Raise dsv3.shared_memory (now %d MB) and restart the server.",
						dsv3_guc_shared_memory);
		return NULL;
	}
	return slot;
}

bool
dsv3_queue_submit(const Dsv3Submission *submission, Dsv3Ticket *ticket, Dsv3Error *err)
{
	Dsv3Slot *slot;
	Size preview_len = Min(submission->preview_len, DSV3_PREVIEW_BYTES - 1);
	Oid account = dsv3_quota_account(submission->kind);

	lock();
	slot = claim(submission->body_len, account, submission->expected, submission->spare, err);
	if (slot == NULL)
	{
		/* One that may wait for better times is asked again then. */
		if (!submission->spare)
			dsv3_stat_refused(submission->role, err);
		unlock();
		return false;
	}
	dsv3_slot_set_state(slot, DSV3_SLOT_FILLING);
	slot->request = dsv3_shared->next_request++;
	slot->owner_pid = MyProcPid;
	slot->owner_proc = DSV3_MY_PROC_NUMBER;
	slot->cancel = false;
	slot->consumed = false;
	slot->held = submission->held;
	slot->notify = submission->notify;
	slot->role = submission->role;
	slot->database = MyDatabaseId;
	slot->kind = submission->kind;
	slot->priority = submission->priority;
	slot->max_tokens = submission->max_tokens;
	slot->account = account;
	slot->expected = submission->expected;
	slot->trace_id = submission->trace_id;
	slot->submitted_at = GetCurrentTimestamp();
	slot->sent_at = 0;
	slot->first_at = 0;
	slot->attempts = 0;
	memset(&slot->counts, 0, sizeof(slot->counts));
	strlcpy(slot->traceparent, submission->traceparent ? submission->traceparent : "",
			sizeof(slot->traceparent));
	memcpy(slot->preview, submission->preview, preview_len);
	slot->preview[preview_len] = '\0';
	ticket->slot = (int) (slot - dsv3_slots);
	ticket->request = slot->request;
	dsv3_stat_begin(slot);
	unlock();

	/* Nobody else looks at the chunks of a slot that is being filled. */
	dsv3_chain_write(&slot->input, submission->body);

	lock();
	if (dsv3_shared->engine_state == DSV3_ENGINE_DOWN)
	{
		/* It went down after we had claimed the slot, and those who waited were told then. */
		engine_down_error(err);
		dsv3_stat_failed(slot, err);
		free_slot(slot);
		unlock();
		return false;
	}
	dsv3_slot_set_state(slot, DSV3_SLOT_QUEUED);
	wake_supervisor();
	unlock();
	return true;
}

void
dsv3_queue_let_go(const Dsv3Ticket *ticket)
{
	Dsv3Slot *slot;

	lock();
	slot = slot_of(ticket);
	if (slot && slot->held)
	{
		slot->held = false;
		wake_supervisor();
	}
	unlock();
}

static void
fill_view(const Dsv3Slot *slot, Dsv3SlotView *view)
{
	view->state = slot->state;
	view->sent = slot->sent_at != 0;
	view->counts = slot->counts;
	view->output_len = slot->output.len;
	view->engine_state = dsv3_shared->engine_state;
	view->engine_since = dsv3_shared->engine_since;
	view->supervisor_pid = dsv3_shared->supervisor_pid;
	view->submitted_at = slot->submitted_at;
}

bool
dsv3_queue_look(const Dsv3Ticket *ticket, Dsv3SlotView *view)
{
	Dsv3Slot *slot;

	LWLockAcquire(dsv3_lock, LW_SHARED);
	slot = slot_of(ticket);
	if (slot)
		fill_view(slot, view);
	unlock();
	return slot != NULL;
}

bool
dsv3_queue_take_output(const Dsv3Ticket *ticket, StringInfo out, Dsv3SlotView *view)
{
	for (;;)
	{
		Dsv3Slot *slot;
		Size len;

		/* Memory first, then the lock; output that came in between is asked for again. */
		if (!dsv3_queue_look(ticket, view))
			return false;
		len = view->output_len;
		if (len > (Size) INT_MAX)
			elog(ERROR, "dsv3 output of %zu bytes", len);
		enlargeStringInfo(out, (int) len);

		lock();
		slot = slot_of(ticket);
		if (slot == NULL || slot->output.len <= len)
		{
			if (slot && slot->output.len > 0)
			{
				dsv3_chain_read(&slot->output, out->data + out->len);
				out->len += (int) slot->output.len;
				dsv3_chain_free(&slot->output);
				slot->consumed = true;
			}
			if (slot)
				fill_view(slot, view);
			unlock();
			out->data[out->len] = '\0';
			return slot != NULL;
		}
		unlock();
	}
}

void
dsv3_queue_error(const Dsv3Ticket *ticket, Dsv3Error *err, bool *row_error)
{
	Dsv3Slot *slot;

	LWLockAcquire(dsv3_lock, LW_SHARED);
	slot = slot_of(ticket);
	if (slot && slot->state == DSV3_SLOT_FAILED)
	{
		*err = slot->error;
		*row_error = slot->row_error;
	}
	else
	{
		dsv3_error(err, DSV3_ERR_INTERNAL, "dsv3 request is lost");
		*row_error = false;
	}
	unlock();
}

uint32
dsv3_queue_leave(const Dsv3Ticket *ticket)
{
	Dsv3Slot *slot;
	uint32 tokens = 0;

	lock();
	slot = slot_of(ticket);
	if (slot && slot->owner_pid == MyProcPid)
	{
		tokens = tokens_of(slot);
		switch (slot->state)
		{
			case DSV3_SLOT_ACTIVE:
				/* The supervisor may be reading the input or writing output: it frees the slot. */
				dsv3_slot_set_state(slot, DSV3_SLOT_ABANDONED);
				dsv3_stat_cancelled(slot);
				wake_supervisor();
				break;
			case DSV3_SLOT_FILLING:
			case DSV3_SLOT_QUEUED:
				dsv3_stat_cancelled(slot);
				free_slot(slot);
				break;
			case DSV3_SLOT_DONE:
			case DSV3_SLOT_FAILED:
				free_slot(slot);
				break;
			case DSV3_SLOT_FREE:
			case DSV3_SLOT_ABANDONED:
				break;
		}
	}
	unlock();
	return tokens;
}

void
dsv3_queue_count_nulled(void)
{
	lock();
	dsv3_stat_nulled(GetUserId());
	unlock();
}

bool
dsv3_queue_cancel(const pg_uuid_t *trace_id, bool (*may_cancel)(Oid owner))
{
	Dsv3Ticket ticket = {DSV3_NO_SLOT, 0};
	Oid role = InvalidOid;
	bool done = false;
	Dsv3Slot *slot;

	LWLockAcquire(dsv3_lock, LW_SHARED);
	for (int i = 0; i < dsv3_shared->n_slots; i++)
	{
		slot = &dsv3_slots[i];
		if ((slot->state == DSV3_SLOT_QUEUED || slot->state == DSV3_SLOT_ACTIVE) &&
			memcmp(&slot->trace_id, trace_id, sizeof(*trace_id)) == 0)
		{
			ticket.slot = i;
			ticket.request = slot->request;
			role = slot->role;
			break;
		}
	}
	unlock();

	/* The check reads catalogues, so it runs without the lock; the ticket tells whether the slot is still the same. */
	if (ticket.slot == DSV3_NO_SLOT || !may_cancel(role))
		return false;
	lock();
	slot = slot_of(&ticket);
	if (slot && (slot->state == DSV3_SLOT_QUEUED || slot->state == DSV3_SLOT_ACTIVE))
	{
		slot->cancel = true;
		wake_supervisor();
		done = true;
	}
	unlock();
	return done;
}

/* Take back what an unfinished request has been answered, so that it can start from nothing. One whose owner has taken some
 * of it fails instead; then false. */
static bool
start_over(Dsv3Slot *slot, const Dsv3Error *err)
{
	if (slot->consumed)
	{
		fail_slot(slot, err, true);
		return false;
	}
	dsv3_chain_free(&slot->output);
	memset(&slot->counts, 0, sizeof(slot->counts));
	return true;
}

/* ---- the supervisor's side ---- */

/*
 * A former supervisor took its engine along. What it had given to the engine starts again from nothing if its owner has
 * not read any of the answer, and fails otherwise: the tokens needed to go on where it stopped died with it.
 */
void
dsv3_queue_attach_supervisor(void)
{
	Dsv3Error err;

	dsv3_error(&err, DSV3_ERR_ENGINE_LOST, "dsv3 supervisor ended while it worked on this request");
	dsv3_error_hint(
		&err,
		"Part of the answer was already delivered, so it cannot start again by itself. Repeat the query.");

	lock();
	for (int i = 0; i < dsv3_shared->n_slots; i++)
	{
		Dsv3Slot *slot = &dsv3_slots[i];

		if (slot->state == DSV3_SLOT_ABANDONED)
			free_slot(slot);
		else if (slot->state == DSV3_SLOT_ACTIVE && start_over(slot, &err))
		{
			dsv3_slot_set_state(slot, DSV3_SLOT_QUEUED);
			dsv3_stats->counters.resubmitted++;
		}
	}
	dsv3_shared->supervisor_pid = MyProcPid;
	dsv3_shared->supervisor_proc = DSV3_MY_PROC_NUMBER;
	dsv3_shared->attention = true;
	unlock();
}

/* Only our own mark is removed: the next supervisor may already be there. */
void
dsv3_queue_detach_supervisor(void)
{
	lock();
	if (dsv3_shared->supervisor_pid == MyProcPid)
	{
		dsv3_shared->supervisor_pid = 0;
		dsv3_shared->engine_pid = 0;
		dsv3_shared->next_start_at = 0;
		dsv3_shared->engine_state = DSV3_ENGINE_RESTARTING;
		dsv3_shared->engine_since = GetCurrentTimestamp();
	}
	unlock();
}

void
dsv3_queue_set_engine(Dsv3EngineState state, int pid)
{
	lock();
	if (dsv3_shared->engine_state != state)
		dsv3_shared->engine_since = GetCurrentTimestamp();
	dsv3_shared->engine_state = state;
	dsv3_shared->engine_pid = pid;
	unlock();
}

void
dsv3_queue_set_next_start(TimestampTz when)
{
	lock();
	dsv3_shared->next_start_at = when;
	unlock();
}

void
dsv3_queue_set_last_error(const Dsv3Error *err)
{
	lock();
	dsv3_shared->last_error = *err;
	dsv3_shared->last_error_at = GetCurrentTimestamp();
	unlock();
}

/* A JSON text that does not fit is dropped: half of it would be of no use. */
static void
set_json(char *to, const void *json, Size len)
{
	if (len >= DSV3_ENGINE_JSON_MAX)
		len = 0;
	lock();
	memcpy(to, json, len);
	to[len] = '\0';
	unlock();
}

bool
dsv3_queue_set_model_json(const void *json, Size len)
{
	const char *known = dsv3_shared->model_json; /* only the supervisor writes it */
	bool changed = known[0] != '\0' && (strlen(known) != len || memcmp(known, json, len) != 0);

	set_json(dsv3_shared->model_json, json, len);
	return changed;
}

void
dsv3_queue_set_stats_json(const void *json, Size len)
{
	set_json(dsv3_shared->stats_json, json, len);
}

void
dsv3_queue_count_restart(void)
{
	lock();
	dsv3_shared->engine_restarts++;
	unlock();
}

bool
dsv3_queue_sweep(Dsv3Sweep *sweep, bool always)
{
	Dsv3Error err;
	bool look;

	sweep->n_stopped = 0;
	sweep->n_waiting = 0;

	/* Read without the lock, for it is mostly false and this is called for every token: whoever sets it wakes us after. */
	if (!always && !*(volatile bool *) &dsv3_shared->attention)
		return false;
	dsv3_error(&err, DSV3_ERR_CANCELLED, "dsv3 request was ended by dsv3_cancel");

	lock();
	look = dsv3_shared->attention || always;
	dsv3_shared->attention = false;
	for (int i = 0; look && i < dsv3_shared->n_slots; i++)
	{
		Dsv3Slot *slot = &dsv3_slots[i];
		Dsv3Ticket ticket = {i, slot->request};

		if (slot->state == DSV3_SLOT_ABANDONED)
		{
			sweep->stopped[sweep->n_stopped++] = ticket;
			free_slot(slot);
		}
		else if (slot->cancel && (slot->state == DSV3_SLOT_QUEUED || slot->state == DSV3_SLOT_ACTIVE))
		{
			if (slot->state == DSV3_SLOT_ACTIVE)
				sweep->stopped[sweep->n_stopped++] = ticket;
			dsv3_stat_cancelled(slot);
			end_slot(slot, &err, false);
		}
		else if (slot->state == DSV3_SLOT_QUEUED && !slot->held)
		{
			Dsv3Waiting *waiting = &sweep->waiting[sweep->n_waiting++];

			waiting->ticket = ticket;
			waiting->priority = slot->priority;
		}
	}
	unlock();
	return look;
}

bool
dsv3_queue_activate(const Dsv3Ticket *ticket, Dsv3Assignment *assignment)
{
	Dsv3Slot *slot;

	lock();
	slot = slot_of(ticket);
	if (slot && slot->state == DSV3_SLOT_QUEUED)
	{
		dsv3_slot_set_state(slot, DSV3_SLOT_ACTIVE);
		if (slot->sent_at == 0)
			slot->sent_at = GetCurrentTimestamp();
		slot->attempts++;
		assignment->kind = slot->kind;
		assignment->max_tokens = slot->max_tokens;
		assignment->input_len = slot->input.len;
	}
	else
		slot = NULL;
	unlock();
	return slot != NULL;
}

void
dsv3_queue_read_input(const Dsv3Ticket *ticket, void *buf)
{
	dsv3_chain_read(&dsv3_slots[ticket->slot].input, buf);
}

bool
dsv3_queue_is_active(const Dsv3Ticket *ticket)
{
	Dsv3Slot *slot;
	bool active;

	LWLockAcquire(dsv3_lock, LW_SHARED);
	slot = slot_of(ticket);
	active = slot && slot->state == DSV3_SLOT_ACTIVE;
	unlock();
	return active;
}

/* The whole time is measured here, and the engine says how much of it was computing: the rest was waiting. */
static void
complete_times(const Dsv3Slot *slot, Dsv3Counts *counts)
{
	TimestampTz elapsed = GetCurrentTimestamp() - slot->submitted_at;
	uint64 whole = elapsed > 0 ? (uint64) elapsed : 0; /* somebody may have set the clock */

	counts->prefill_us = Min(counts->prefill_us, whole);
	counts->decode_us = Min(counts->decode_us, whole - counts->prefill_us);
	counts->queue_us = whole - counts->prefill_us - counts->decode_us;
}

bool
dsv3_queue_finish(const Dsv3Ticket *ticket, const Dsv3Counts *counts)
{
	Dsv3Slot *slot;

	lock();
	slot = slot_of(ticket);
	if (slot && slot->state == DSV3_SLOT_ACTIVE)
	{
		dsv3_slot_set_state(slot, DSV3_SLOT_DONE);
		slot->counts = *counts;
		complete_times(slot, &slot->counts);
		dsv3_chain_free(&slot->input);
		dsv3_stat_done(slot);
		wake_owner(slot);
	}
	else
		slot = NULL;
	unlock();
	return slot != NULL;
}

bool
dsv3_queue_requeue(const Dsv3Ticket *ticket)
{
	Dsv3Slot *slot;
	bool done = false;

	lock();
	slot = slot_of(ticket);
	if (slot && slot->state == DSV3_SLOT_ACTIVE)
	{
		dsv3_slot_set_state(slot, DSV3_SLOT_QUEUED);
		dsv3_stats->counters.resubmitted++;
		dsv3_shared->attention = true;
		done = true;
	}
	else if (slot && slot->state == DSV3_SLOT_ABANDONED)
		free_slot(slot);
	unlock();
	return done;
}

bool
dsv3_queue_start_over(const Dsv3Ticket *ticket, const Dsv3Error *err)
{
	Dsv3Slot *slot;
	bool waits;

	lock();
	slot = slot_of(ticket);
	waits = slot && slot->state == DSV3_SLOT_QUEUED && start_over(slot, err);
	unlock();
	return waits;
}

Dsv3Append
dsv3_queue_append(const Dsv3Ticket *ticket, const void *fields, Size len, uint32 output_tokens)
{
	Dsv3Slot *slot;
	Dsv3Append result = DSV3_APPEND_OK;

	lock();
	slot = slot_of(ticket);
	if (slot == NULL || slot->state != DSV3_SLOT_ACTIVE)
		result = DSV3_APPEND_GONE;
	else if (!dsv3_chain_append(&slot->output, fields, len))
		result = DSV3_APPEND_NO_ROOM;
	else
	{
		if (slot->first_at == 0)
			slot->first_at = GetCurrentTimestamp();
		slot->counts.output_tokens += output_tokens;
		if ((slot->notify && len > 0) || slot->output.len >= DSV3_DRAIN_BYTES)
			wake_owner(slot);
	}
	unlock();
	return result;
}

bool
dsv3_queue_fail(const Dsv3Ticket *ticket, const Dsv3Error *err, bool row_error)
{
	Dsv3Slot *slot;
	bool done = false;

	lock();
	slot = slot_of(ticket);
	if (slot && (slot->state == DSV3_SLOT_ACTIVE || slot->state == DSV3_SLOT_QUEUED))
	{
		fail_slot(slot, err, row_error);
		done = true;
	}
	unlock();
	return done;
}

void
dsv3_queue_fail_waiting(const Dsv3Error *err)
{
	lock();
	for (int i = 0; i < dsv3_shared->n_slots; i++)
	{
		if (dsv3_slots[i].state == DSV3_SLOT_QUEUED)
			fail_slot(&dsv3_slots[i], err, false);
	}
	unlock();
}
