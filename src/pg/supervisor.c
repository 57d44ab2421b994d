/*
 * supervisor.c
 *	  The background worker that owns the engine process: starts it, relays, watches, starts it again.
 *
 * It has shared memory and no database connection. One thread, one loop, nothing in it blocks: each turn reaps the
 * child, starts one if it is time, reads what the engine sent, gives it what waits, and then sleeps until a latch, the
 * socket, the log pipe or a deadline wakes it.
 *
 * An engine's life: started (CONFIG sent) -> READY -> ended. Whatever goes wrong with it ends in one place,
 * engine_ended(): its requests go back to the queue, and the next start is scheduled. The wait doubles with each end
 * from dsv3.engine_restart_delay to dsv3.engine_restart_delay_max and falls back after a healthy minute. It is kept
 * here, because the postmaster forgets its own restart interval whenever a crash re-creates shared memory.
 *
 * While the engine is STARTING or RESTARTING callers wait for it (dsv3.start_timeout). When it says why it cannot start,
 * or fails to start three times in a row, it is DOWN: callers get the reason at once, and starts are still tried.
 *
 * The worker ends by proc_exit(1), never otherwise: exit status 0 would mean "do not start again", anything else would
 * count as a crash and restart the whole server. On every way out the child is killed and reaped first.
 */
#include "postgres.h"

#include "pg/compat.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libpq/pqsignal.h"
#include "mb/pg_wchar.h"
#include "pgstat.h"
#include "portability/instr_time.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/pmsignal.h"
#include "utils/timestamp.h"

#include "pg/audit_writer.h"
#include "pg/guc.h"
#include "pg/inflight.h"
#include "pg/queue.h"
#include "pg/relay.h"
#include "pg/spawn.h"
#include "pg/stat.h"
#include "pg/supervisor.h"

#define HEALTHY_MS        60000 /* an engine that was ready so long forgives the ends before it */
#define EOF_GRACE_MS      1000  /* from the end of the connection to SIGKILL */
#define FAILED_STARTS_MAX 3
#define READ_ROUNDS       16 /* reads per turn */
#define STATS_INTERVAL_MS 1000
#define WRITERS_MS        100 /* between two looks for missing audit writers */

typedef struct Supervisor
{
	Dsv3Child child;
	Dsv3Relay relay;
	WaitEventSet *events; /* of the running engine; NULL: to be built */
	int socket_position;  /* in events, -1: not there */

	bool ready;       /* READY was received */
	bool told;        /* it has said why it cannot start */
	bool doomed;      /* we have killed it: nothing it sent counts any more */
	char reason[256]; /* why we killed it */

	/* Milliseconds of the monotonic clock; 0: not set. */
	int64 started_at;
	int64 ready_at;
	int64 eof_at;
	int64 pinged_at;
	int64 unanswered_since; /* the oldest PING not followed by any frame */
	int64 stuck_since;      /* the oldest of the last PONGs that were busy and told the same progress */
	uint64 progress;        /* of the last PONG */
	int64 next_start;
	int64 stats_asked_at;

	bool stats_wanted; /* a request has ended since */
	int ends;          /* since the last healthy minute */
	int failed_starts; /* in a row */
} Supervisor;

static Supervisor self;
static bool writers_missing;

static int64
now_ms(void)
{
	instr_time now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) INSTR_TIME_GET_MILLISEC(now) + 1; /* never 0 */
}

void
dsv3_supervisor_register(void)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
	worker.bgw_start_time = BgWorkerStart_PostmasterStart;
	worker.bgw_restart_time = 1;
	snprintf(worker.bgw_library_name, BGW_MAXLEN, "dsv3");
	snprintf(worker.bgw_function_name, BGW_MAXLEN, "dsv3_supervisor_main");
	snprintf(worker.bgw_name, BGW_MAXLEN, "dsv3 supervisor");
	snprintf(worker.bgw_type, BGW_MAXLEN, "dsv3 supervisor");
	RegisterBackgroundWorker(&worker);
}

/* ---- the end of an engine ---- */

/* Kill the engine for something it did; its end is noticed by the reaping. */
static void
doom(const char *reason)
{
	if (self.child.pid == 0 || self.doomed)
		return;
	ereport(LOG, (errmsg("dsv3 engine (PID %d) is killed: %s", (int) self.child.pid, reason)));
	strlcpy(self.reason, reason, sizeof(self.reason));
	self.doomed = true;
	dsv3_child_kill(&self.child, SIGKILL);
}

static void
close_engine(void)
{
	if (self.events)
		FreeWaitEventSet(self.events);
	self.events = NULL;
	dsv3_relay_close(&self.relay);
	self.ready = false;
	self.doomed = false;
	self.told = false;
	self.eof_at = 0;
	self.unanswered_since = 0;
	self.stuck_since = 0;
}

/* When to start the next one, and what to say about it. */
static void
schedule_start(int64 now)
{
	int64 delay = dsv3_guc_engine_restart_delay;

	for (int i = 0; i < self.ends && delay < dsv3_guc_engine_restart_delay_max; i++)
		delay *= 2;
	delay = Min(delay, (int64) dsv3_guc_engine_restart_delay_max);
	self.ends++;
	self.next_start = now + delay;
	dsv3_queue_set_next_start(TimestampTzPlusMilliseconds(GetCurrentTimestamp(), delay));
	ereport(LOG, (errmsg("dsv3 engine will be started again in " INT64_FORMAT " ms", delay)));
}

/* The engine cannot start: tell everyone who waits and everyone who asks. */
static void
go_down(const Dsv3Error *err)
{
	Dsv3Error answer = *err;

	ereport(WARNING,
			(errmsg("dsv3 engine cannot start: %s", err->message),
			 err->detail[0] ? errdetail("%s", err->detail) : 0, err->hint[0] ? errhint("%s", err->hint) : 0));
	dsv3_queue_set_last_error(err);
	dsv3_queue_set_engine(DSV3_ENGINE_DOWN, (int) self.child.pid);
	dsv3_error_prefix(&answer, "dsv3 engine is down");
	dsv3_queue_fail_waiting(&answer);
}

static void read_frames(void);

/* It has ended with that status. */
static void
engine_ended(int pid, int status)
{
	char how[128];
	Dsv3Error err;
	int64 now = now_ms();

	/* What it sent before it ended still counts: an answer may be complete. */
	if (!self.doomed && !self.eof_at)
		read_frames();
	dsv3_child_close_log(&self.child);
	dsv3_child_describe(status, how, sizeof(how));
	ereport(
		LOG,
		(errmsg("dsv3 engine (PID %d) ended by %s", pid, how),
		 WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && !self.doomed
			 ? errhint("A process killed by signal 9 may have been chosen by the kernel for want of memory.")
			 : 0));
	dsv3_inflight_engine_gone(dsv3_guc_request_retries, self.doomed ? self.reason : how);

	if (self.ready_at != 0 && now - self.ready_at >= HEALTHY_MS)
		self.ends = 0;
	if (self.ready_at != 0)
		self.failed_starts = 0;
	else
		self.failed_starts++;

	dsv3_error(&err, DSV3_ERR_ENGINE_LOST, "dsv3 engine ended by %s%s", how,
			   self.ready_at ? "" : " before it was ready");
	if (self.doomed)
		dsv3_error_detail(&err, "It was killed: %s.", self.reason);
	else if (self.child.last_line[0])
		dsv3_error_detail(&err, "Its last message was: %s", self.child.last_line);
	dsv3_error_hint(&err, "See the server log.%s The engine is started again by itself.",
					self.ready_at ? "" : " Is the dsv3 program at dsv3.engine_path the one of this server?");
	if (self.told)
		dsv3_queue_set_engine(DSV3_ENGINE_DOWN, 0);
	else if (self.failed_starts > 0 &&
			 (self.failed_starts >= FAILED_STARTS_MAX || dsv3_shared->engine_state == DSV3_ENGINE_DOWN))
		go_down(&err);
	else
	{
		dsv3_queue_set_last_error(&err);
		dsv3_queue_set_engine(DSV3_ENGINE_RESTARTING, 0);
	}
	close_engine();
	self.ready_at = 0;
	schedule_start(now);
}

/* ---- the start of an engine ---- */

static void
send_config(void)
{
	Dsv3BodyWriter writer;
	uint8 *body = NULL;
	Size len = 0;

	/* Measure, then write. */
	for (int pass = 0; pass < 2; pass++)
	{
		dsv3_body_init(&writer, body, len);
		dsv3_body_text(&writer, DSV3_FIELD_MODEL_PATH, dsv3_guc_model_path);
		dsv3_body_text(&writer, DSV3_FIELD_DEVICE, dsv3_guc_device_name());
		dsv3_body_text(&writer, DSV3_FIELD_WEIGHTS, dsv3_guc_weights_name());
		dsv3_body_text(&writer, DSV3_FIELD_SPECULATIVE, dsv3_guc_speculative_name());
		dsv3_body_text(&writer, DSV3_FIELD_DRAFT_INPUT, dsv3_guc_draft_input_name());
		dsv3_body_u32(&writer, DSV3_FIELD_THREADS, (uint32) dsv3_guc_threads);
		dsv3_body_u64(&writer, DSV3_FIELD_KV_BYTES, (uint64) dsv3_guc_kv_cache_size * 1024 * 1024);
		dsv3_body_text(&writer, DSV3_FIELD_KV_TYPE, dsv3_guc_kv_cache_type_name());
		dsv3_body_text(&writer, DSV3_FIELD_KV_FOLDER, dsv3_guc_kv_cache_dir);
		dsv3_body_u64(&writer, DSV3_FIELD_KV_DISK_BYTES, (uint64) dsv3_guc_kv_cache_disk_size * 1024 * 1024);
		dsv3_body_u32(&writer, DSV3_FIELD_MAX_REQUESTS, (uint32) dsv3_shared->n_slots);
		if (pass == 0)
		{
			len = writer.len;
			body = dsv3_relay_reserve(&self.relay, DSV3_FRAME_CONFIG, 0, len);
		}
	}
}

/* dsv3.engine_path, or the file beside the server's own programs. */
static void
engine_program(char *path, Size size)
{
	char *slash;

	strlcpy(path, dsv3_guc_engine_path[0] ? dsv3_guc_engine_path : my_exec_path, size);
	if (dsv3_guc_engine_path[0])
		return;
	slash = strrchr(path, '/');
	if (slash)
		strlcpy(slash + 1, "dsv3", size - (Size) (slash + 1 - path));
}

static void
start_engine(void)
{
	char program[MAXPGPATH];
	Dsv3Error err;
	int fd;

	engine_program(program, sizeof(program));
	self.next_start = 0;
	dsv3_queue_set_next_start(0);
	if (dsv3_guc_model_path[0] == '\0')
	{
		dsv3_error(&err, DSV3_ERR_NOT_IN_STATE, "dsv3.model_path is not set");
		dsv3_error_hint(
			&err, "Set dsv3.model_path to the directory of a model or to a pack and restart the server.");
	}
	else if (!is_absolute_path(program))
	{
		dsv3_error(&err, DSV3_ERR_INVALID_PARAMETER, "dsv3.engine_path \"%s\" is not an absolute path",
				   program);
		dsv3_error_hint(
			&err, "Set dsv3.engine_path to the absolute path of the dsv3 program and restart the server.");
	}
	else if (dsv3_child_start(&self.child, program, dsv3_guc_engine_oom_score_adj, &fd, &err))
	{
		dsv3_relay_open(&self.relay, fd);
		dsv3_stat_new_engine();
		self.started_at = now_ms();
		self.ready_at = 0;
		self.pinged_at = self.started_at;
		send_config();
		ereport(LOG, (errmsg("dsv3 engine started (PID %d)", (int) self.child.pid)));
		if (dsv3_shared->engine_state == DSV3_ENGINE_RESTARTING)
			dsv3_queue_count_restart();
		dsv3_queue_set_engine(dsv3_shared->engine_state == DSV3_ENGINE_DOWN ? DSV3_ENGINE_DOWN
							  : self.ends > 0                               ? DSV3_ENGINE_RESTARTING
																			: DSV3_ENGINE_STARTING,
							  (int) self.child.pid);
		return;
	}
	go_down(&err);
	schedule_start(now_ms());
}

/* ---- frames ---- */

/* A text field of a frame that has no request; NULL when it is missing or not UTF-8. */
static const uint8 *
find_text(const Dsv3FrameHeader *header, const uint8 *body, Dsv3Field field, Size *len)
{
	Dsv3BodyReader reader;

	dsv3_body_open(&reader, body, header->length);
	while (dsv3_body_next(&reader))
	{
		if (reader.field == field)
		{
			*len = reader.value_len;
			return pg_encoding_verifymbstr(PG_UTF8, (const char *) reader.value, (int) reader.value_len) ==
						   (int) reader.value_len
					   ? reader.value
					   : NULL;
		}
	}
	return NULL;
}

static void
copy_field(char *to, Size size, const Dsv3FrameHeader *header, const uint8 *body, Dsv3Field field)
{
	Size len;
	const uint8 *text = find_text(header, body, field, &len);

	if (text == NULL)
		len = 0;
	else if (len >= size)
		len = (Size) pg_encoding_mbcliplen(PG_UTF8, (const char *) text, (int) len, (int) size - 1);
	if (len > 0)
		memcpy(to, text, len);
	to[len] = '\0';
}

/* FAIL with request 0: the engine says why it cannot start, and will end. */
static bool
start_failed(const Dsv3FrameHeader *header, const uint8 *body)
{
	Dsv3Error err;

	if (self.ready)
		return false;
	memset(&err, 0, sizeof(err));
	copy_field(err.sqlstate, sizeof(err.sqlstate), header, body, DSV3_FIELD_SQLSTATE);
	copy_field(err.message, sizeof(err.message), header, body, DSV3_FIELD_ERROR);
	copy_field(err.detail, sizeof(err.detail), header, body, DSV3_FIELD_DETAIL);
	copy_field(err.hint, sizeof(err.hint), header, body, DSV3_FIELD_HINT);
	if (strspn(err.sqlstate, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") != 5 ||
		strncmp(err.sqlstate, "03", 2) < 0)
		strlcpy(err.sqlstate, DSV3_ERR_INTERNAL, sizeof(err.sqlstate));
	if (err.message[0] == '\0')
		return false;
	self.told = true;
	go_down(&err);
	return true;
}

static bool
engine_ready(const Dsv3FrameHeader *header, const uint8 *body)
{
	Size len;
	const uint8 *json = find_text(header, body, DSV3_FIELD_MODEL_JSON, &len);

	if (self.ready || json == NULL)
		return false;
	self.ready = true;
	self.ready_at = now_ms();
	self.pinged_at = self.ready_at;
	self.failed_starts = 0;
	if (dsv3_queue_set_model_json(json, len))
	{
		ereport(LOG, (errmsg("dsv3 engine has another model than before, or describes it in another way")));
		dsv3_inflight_model_changed();
	}
	dsv3_queue_set_engine(DSV3_ENGINE_READY, (int) self.child.pid);
	ereport(LOG, (errmsg("dsv3 engine is ready after " INT64_FORMAT " ms", self.ready_at - self.started_at)));
	return true;
}

/* The engine's I/O thread answers PING whatever its compute threads do; what it tells of them shows whether they hang. */
static bool
take_pong(const Dsv3FrameHeader *header, const uint8 *body)
{
	Dsv3BodyReader reader;
	uint64 progress = 0;
	bool busy = false;

	dsv3_body_open(&reader, body, header->length);
	while (dsv3_body_next(&reader))
	{
		if (reader.field == DSV3_FIELD_PROGRESS)
			progress = dsv3_body_get_u64(&reader);
		else if (reader.field == DSV3_FIELD_BUSY)
			busy = dsv3_body_get_bool(&reader);
	}
	if (!busy || !self.ready || progress != self.progress)
		self.stuck_since = 0;
	else if (self.stuck_since == 0)
		self.stuck_since = now_ms();
	self.progress = progress;
	return reader.error == NULL;
}

/* What the engine has counted. */
static bool
take_stats(const Dsv3FrameHeader *header, const uint8 *body)
{
	Size len;
	const uint8 *json = find_text(header, body, DSV3_FIELD_STATS_JSON, &len);
	Dsv3BodyReader reader;
	uint32 n_layers = 0;
	bool good = true;

	if (json == NULL)
		return false;
	dsv3_queue_set_stats_json(json, len);
	dsv3_body_open(&reader, body, header->length);
	while (good && dsv3_body_next(&reader))
	{
		if (reader.field == DSV3_FIELD_EXPERT_LAYERS)
			n_layers = dsv3_body_get_u32(&reader);
		else if (reader.field == DSV3_FIELD_EXPERT_TOKENS)
			good = dsv3_stat_experts(&reader, n_layers);
	}
	return good && reader.error == NULL;
}

/* One frame; false: not what an engine may send now. Then err may say more, and *settled that the request it concerns has
 * been told. */
static bool
handle_frame(const Dsv3FrameHeader *header, const uint8 *body, Dsv3Error *err, bool *settled)
{
	switch (header->type)
	{
		case DSV3_FRAME_READY:
			return engine_ready(header, body);
		case DSV3_FRAME_PONG:
			return take_pong(header, body);
		case DSV3_FRAME_STATS:
			return take_stats(header, body);
		case DSV3_FRAME_FAIL:
			if (header->request == 0)
				return start_failed(header, body);
			return self.ready && dsv3_inflight_frame(&self.relay, header, body, err, settled);
		case DSV3_FRAME_DONE:
			self.stats_wanted = true;
			return self.ready && dsv3_inflight_frame(&self.relay, header, body, err, settled);
		case DSV3_FRAME_DELTA:
			return self.ready && dsv3_inflight_frame(&self.relay, header, body, err, settled);
		default:
			return false;
	}
}

static void
read_frames(void)
{
	for (int round = 0; round < READ_ROUNDS && !self.doomed; round++)
	{
		Dsv3ReadResult result = dsv3_relay_read(&self.relay);
		Dsv3FrameHeader header;
		const uint8 *body;
		const char *bad;
		Dsv3Error err;
		bool settled = false;

		if (result == DSV3_READ_AGAIN)
			return;
		if (result == DSV3_READ_EOF)
		{
			self.eof_at = now_ms();
			return;
		}
		while (dsv3_relay_take(&self.relay, &header, &body, &bad))
		{
			dsv3_error(&err, DSV3_ERR_PROTOCOL, "dsv3 engine sent an unexpected frame of type %u",
					   header.type);
			self.unanswered_since = 0;
			if (!handle_frame(&header, body, &err, &settled))
			{
				if (!settled)
					dsv3_inflight_blame(&err);
				doom(err.message);
				return;
			}
		}
		if (bad)
		{
			dsv3_error(&err, DSV3_ERR_PROTOCOL, "dsv3 engine sent an invalid frame: %s", bad);
			dsv3_error_hint(&err, "The engine was killed and is started again; see the server log.");
			dsv3_inflight_blame(&err);
			doom(err.message);
		}
	}
}

/* ---- deadlines ---- */

static int64
ping_interval(void)
{
	int64 interval = dsv3_guc_engine_watchdog > 0 ? dsv3_guc_engine_watchdog / 3 : 10000;

	return Min(Max(interval, 10), 10000);
}

/* Kill the engine if it is over, else see to it that we wake then. */
static void
check_deadline(int64 deadline, int64 now, int64 *next, const char *reason)
{
	if (now >= deadline)
		doom(reason);
	else
		*next = Min(*next, deadline);
}

static void
ask_for_stats(int64 now)
{
	uint8 question[16];
	Dsv3BodyWriter writer;

	dsv3_body_init(&writer, question, sizeof(question));
	dsv3_body_bool(&writer, DSV3_FIELD_EXPERTS, true);
	dsv3_relay_queue(&self.relay, DSV3_FRAME_STATS, 0, question, writer.len);
	self.stats_asked_at = now;
	self.stats_wanted = false;
}

static void
ping(int64 now)
{
	dsv3_relay_queue(&self.relay, DSV3_FRAME_PING, 0, NULL, 0);
	ask_for_stats(now);
	self.pinged_at = now;
	self.unanswered_since = now;
}

/* Do what is due at this time; return the milliseconds until something will be, -1 for never. */
static long
watch(int64 now)
{
	int64 next = INT64_MAX;

	if (self.child.pid == 0)
		return self.next_start > now ? (long) (self.next_start - now) : 0;
	if (self.doomed)
		return -1;
	if (self.eof_at)
	{
		check_deadline(self.eof_at + EOF_GRACE_MS, now, &next, "it closed its connection but did not end");
	}
	else
	{
		int64 limit = (int64) dsv3_guc_engine_start_limit * 1000;

		if (!self.ready && limit > 0)
			check_deadline(self.started_at + limit, now, &next,
						   "it was not ready within dsv3.engine_start_limit");
		if (self.unanswered_since == 0 && now - self.pinged_at >= ping_interval())
			ping(now);
		/* While requests end, more often than that. */
		if (self.ready && self.stats_wanted)
		{
			if (now - self.stats_asked_at >= STATS_INTERVAL_MS)
				ask_for_stats(now);
			else
				next = Min(next, self.stats_asked_at + STATS_INTERVAL_MS);
		}
		if (self.unanswered_since == 0)
			next = Min(next, self.pinged_at + ping_interval());
		else if (dsv3_guc_engine_watchdog > 0)
			check_deadline(self.unanswered_since + dsv3_guc_engine_watchdog, now, &next,
						   "it did not answer within dsv3.engine_watchdog");
		if (dsv3_guc_engine_watchdog > 0 && self.stuck_since != 0)
			check_deadline(self.stuck_since + dsv3_guc_engine_watchdog, now, &next,
						   "it made no progress within dsv3.engine_watchdog");
	}
	if (next == INT64_MAX || self.doomed)
		return -1;
	return (long) Max(next - now, 1);
}

/* ---- the loop ---- */

static void
build_events(void)
{
	self.events = dsv3_create_wait_event_set(4);
	AddWaitEventToSet(self.events, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(self.events, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	self.socket_position = -1;
	if (self.eof_at == 0 && !self.doomed)
		self.socket_position = AddWaitEventToSet(self.events, WL_SOCKET_READABLE, self.relay.fd, NULL, NULL);
	if (self.child.log_fd >= 0)
		AddWaitEventToSet(self.events, WL_SOCKET_READABLE, self.child.log_fd, NULL, NULL);
}

static void
drop_events(void)
{
	if (self.events)
		FreeWaitEventSet(self.events);
	self.events = NULL;
}

static void
wait_for_work(long timeout)
{
	WaitEvent occurred[4];
	int n;

	if (self.child.pid == 0)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, timeout,
						 PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		return;
	}
	if (self.events == NULL)
		build_events();
	if (self.socket_position >= 0)
		ModifyWaitEvent(self.events, self.socket_position,
						WL_SOCKET_READABLE | (dsv3_relay_pending(&self.relay) > 0 ? WL_SOCKET_WRITEABLE : 0),
						NULL);
	n = WaitEventSetWait(self.events, timeout, occurred, lengthof(occurred), PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	for (int i = 0; i < n; i++)
	{
		if (self.child.log_fd >= 0 && occurred[i].fd == self.child.log_fd &&
			!dsv3_child_read_log(&self.child))
			drop_events();
	}
}

static void
turn(void)
{
	int status;
	int pid = (int) self.child.pid;
	bool had_socket = self.child.pid != 0 && self.eof_at == 0 && !self.doomed;

	if (dsv3_child_reap(&self.child, &status))
		engine_ended(pid, status);
	if (self.child.pid == 0 && now_ms() >= self.next_start)
		start_engine();
	if (self.child.pid != 0 && self.eof_at == 0 && !self.doomed)
		read_frames();
	dsv3_inflight_serve(&self.relay, self.child.pid != 0 && self.ready && !self.doomed && self.eof_at == 0);
	writers_missing = dsv3_audit_launch();
	(void) watch(now_ms());
	if (self.child.pid != 0 && self.eof_at == 0 && !self.doomed && !dsv3_relay_flush(&self.relay))
		self.eof_at = now_ms();

	/* A socket that is finished must leave the set, or it would wake us without end. */
	if (had_socket && (self.eof_at != 0 || self.doomed))
		drop_events();
}

/* Called with what is left of the process on every way out. */
static void
on_exit_of_supervisor(int code, Datum arg)
{
	/* Before PostgreSQL 18 the locks held at the time of an error are not released yet. */
	LWLockReleaseAll();
	dsv3_child_stop(&self.child);
	dsv3_child_close_log(&self.child);
	dsv3_queue_detach_supervisor();
}

static void
child_ended(SIGNAL_ARGS)
{
	int saved_errno = errno;

	SetLatch(MyLatch);
	errno = saved_errno;
}

/* Milliseconds until something is due; -1: never. */
static long
until_next(void)
{
	long ms = watch(now_ms());

	if (writers_missing && (ms < 0 || ms > WRITERS_MS))
		ms = WRITERS_MS;
	return ms;
}

void
dsv3_supervisor_main(Datum arg)
{
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGCHLD, child_ended);
	BackgroundWorkerUnblockSignals();

	self.relay.fd = -1;
	self.child.log_fd = -1;
	before_shmem_exit(on_exit_of_supervisor, (Datum) 0);
	dsv3_inflight_init();
	dsv3_queue_attach_supervisor();

	while (!ShutdownRequestPending)
	{
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			/* Whoever repaired what was wrong need not wait for the next start. */
			self.ends = 0;
			self.next_start = 0;
		}
		turn();
		if (!ShutdownRequestPending)
			wait_for_work(until_next());
	}
	proc_exit(1);
}
