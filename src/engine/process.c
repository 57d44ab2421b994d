/*
 * process.c
 *	  The engine process; see process.h.
 *
 * Life: the process rules (guard.c); the I/O thread starts and waits for CONFIG; the main thread opens the model, makes
 * the cache, closes the sandbox, sends READY and becomes the scheduler's thread. What fails on the way goes out as FAIL with
 * request 0, and the process exits with 1. From the first moment PING is answered by the I/O thread; PONG carries the
 * scheduler's progress, so that the supervisor can tell a long wait from a hang.
 *
 * Engine is the only shared object here. The I/O thread writes config before it sets configured (lock), the main thread
 * writes scheduler once (atomic); nothing else is shared.
 */
#include "engine/process.h"

#include <inttypes.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "common/latency.h"
#include "common/version.h"
#include "engine/guard.h"
#include "engine/log.h"
#include "engine/pump.h"
#include "engine/sandbox.h"

#define LAST_WORDS_MS        2000
#define DEFAULT_MAX_REQUESTS 1024

typedef struct Config
{
	char *model_path;
	char *device;
	char *weights;
	char *kv_type;
	char *speculative;
	char *draft_input;
	uint32_t threads;
	uint32_t max_requests;
	uint64_t kv_bytes;
	char *kv_folder;
	uint64_t kv_disk_bytes;
} Config;

typedef struct Engine
{
	Dsv3Pump *pump;
	_Atomic(Dsv3Scheduler *) scheduler; /* NULL until READY */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool configured;
	Config config;
} Engine;

/* -- frames out -- */

static void
write_event(Dsv3BodyWriter *writer, const Dsv3Event *event)
{
	if (event->type == DSV3_FRAME_FAIL)
	{
		dsv3_body_text(writer, DSV3_FIELD_SQLSTATE, event->error->sqlstate);
		dsv3_body_text(writer, DSV3_FIELD_ERROR, event->error->message);
		if (event->error->detail[0])
			dsv3_body_text(writer, DSV3_FIELD_DETAIL, event->error->detail);
		if (event->error->hint[0])
			dsv3_body_text(writer, DSV3_FIELD_HINT, event->error->hint);
		return;
	}
	dsv3_body_bytes(writer, DSV3_FIELD_TEXT, event->text, event->text_len);
	dsv3_body_tokens(writer, DSV3_FIELD_TOKENS, event->tokens, event->n_tokens);
	if (event->type == DSV3_FRAME_DELTA)
		return;
	dsv3_body_u32(writer, DSV3_FIELD_FINISH, event->finish);
	dsv3_body_u32(writer, DSV3_FIELD_PROMPT_TOKENS, event->prompt_tokens);
	dsv3_body_u32(writer, DSV3_FIELD_CACHED_TOKENS, event->cached_tokens);
	dsv3_body_u32(writer, DSV3_FIELD_OUTPUT_TOKENS, event->output_tokens);
	dsv3_body_u32(writer, DSV3_FIELD_DRAFTED_TOKENS, event->drafted_tokens);
	dsv3_body_u32(writer, DSV3_FIELD_ACCEPTED_TOKENS, event->accepted_tokens);
	dsv3_body_u64(writer, DSV3_FIELD_QUEUE_US, event->queue_us);
	dsv3_body_u64(writer, DSV3_FIELD_PREFILL_US, event->prefill_us);
	dsv3_body_u64(writer, DSV3_FIELD_DECODE_US, event->decode_us);
	if (event->gaps)
		dsv3_body_tokens(writer, DSV3_FIELD_GAPS, event->gaps, DSV3_LATENCY_CLASSES);
	if (event->kind == DSV3_REQUEST_LOGPROB)
		dsv3_body_f64(writer, DSV3_FIELD_LOGPROB, event->logprob);
	if (event->message_json)
		dsv3_body_text(writer, DSV3_FIELD_MESSAGE_JSON, event->message_json);
	if (event->narrowed)
		dsv3_body_bool(writer, DSV3_FIELD_NARROWED, true);
	if (event->logprobs_json)
		dsv3_body_text(writer, DSV3_FIELD_LOGPROBS_JSON, event->logprobs_json);
}

uint8_t *
dsv3_event_body(const Dsv3Event *event, size_t *len)
{
	Dsv3BodyWriter writer;
	uint8_t *body;

	dsv3_body_init(&writer, NULL, 0);
	write_event(&writer, event);
	if (writer.overflow || writer.len > DSV3_FRAME_MAX_BODY)
		return NULL;
	*len = writer.len;
	body = malloc(writer.len + 1);
	if (body)
	{
		dsv3_body_init(&writer, body, writer.len);
		write_event(&writer, event);
	}
	return body;
}

static void
send_fail(Engine *engine, uint64_t request, const Dsv3Error *error)
{
	Dsv3Event event = {.type = DSV3_FRAME_FAIL, .request = request, .error = error};
	size_t len;
	uint8_t *body = dsv3_event_body(&event, &len);

	if (body == NULL || !dsv3_pump_send(engine->pump, DSV3_FRAME_FAIL, request, body, len))
	{
		/* Without memory for a few hundred bytes the supervisor would wait for ever. */
		dsv3_log(DSV3_ERROR, "out of memory");
		_exit(1);
	}
	free(body);
}

static void
emit_event(void *arg, const Dsv3Event *event)
{
	Engine *engine = arg;
	size_t len;
	uint8_t *body = dsv3_event_body(event, &len);
	Dsv3Error err;

	if (body != NULL && dsv3_pump_send(engine->pump, event->type, event->request, body, len))
	{
		free(body);
		return;
	}
	free(body);
	dsv3_error(&err, DSV3_ERR_TOO_LARGE, "the answer does not fit in a frame of %u bytes",
			   DSV3_FRAME_MAX_BODY);
	send_fail(engine, event->request, &err);
}

static bool
has_room(void *arg)
{
	return dsv3_pump_has_room(((Engine *) arg)->pump);
}

/* The body of READY or STATS: JSON, and what the experts computed where that is asked for. */
static void
write_state(Dsv3BodyWriter *writer, Dsv3Field field, const char *json, const Dsv3ExpertTokens *experts)
{
	dsv3_body_text(writer, field, json);
	if (experts->counts)
	{
		dsv3_body_u32(writer, DSV3_FIELD_EXPERT_LAYERS, (uint32_t) experts->n_layers);
		dsv3_body_u64s(writer, DSV3_FIELD_EXPERT_TOKENS, experts->counts,
					   experts->n_layers * experts->n_experts);
	}
}

static void
send_state(Engine *engine, uint16_t type, uint64_t request, Dsv3Field field, const char *json,
		   const Dsv3ExpertTokens *experts)
{
	Dsv3BodyWriter writer;
	uint8_t *body = NULL;
	bool sent = false;

	if (json != NULL)
	{
		dsv3_body_init(&writer, NULL, 0);
		write_state(&writer, field, json, experts);
		body = malloc(writer.len);
	}
	if (body != NULL)
	{
		dsv3_body_init(&writer, body, writer.len);
		write_state(&writer, field, json, experts);
		sent = !writer.overflow && dsv3_pump_send(engine->pump, type, request, body, writer.len);
	}
	free(body);
	if (sent)
		return;
	dsv3_log(DSV3_ERROR, "out of memory");
	_exit(1);
}

/* -- frames in: everything here runs in the I/O thread -- */

static void
answer_ping(Engine *engine, uint64_t request)
{
	Dsv3Scheduler *scheduler = atomic_load(&engine->scheduler);
	uint8_t body[64];
	Dsv3BodyWriter writer;

	dsv3_body_init(&writer, body, sizeof(body));
	dsv3_body_u64(&writer, DSV3_FIELD_PROGRESS, scheduler ? dsv3_scheduler_progress(scheduler) : 0);
	dsv3_body_bool(&writer, DSV3_FIELD_BUSY, scheduler ? dsv3_scheduler_busy(scheduler) : true);
	(void) dsv3_pump_send(engine->pump, DSV3_FRAME_PONG, request, body, writer.len);
}

static void
answer_stats(Engine *engine, uint64_t request, const uint8_t *body, size_t len)
{
	Dsv3Scheduler *scheduler = atomic_load(&engine->scheduler);
	Dsv3ExpertTokens experts = {0};
	Dsv3BodyReader reader;
	bool wanted = false;
	char *json;

	dsv3_body_open(&reader, body, len);
	while (dsv3_body_next(&reader))
	{
		if (reader.field == DSV3_FIELD_EXPERTS)
			wanted = dsv3_body_get_bool(&reader);
	}
	json = scheduler ? dsv3_scheduler_stats(scheduler) : strdup("{}");
	if (scheduler && wanted && !dsv3_scheduler_expert_tokens(scheduler, &experts))
	{
		free(json);
		json = NULL;
	}
	send_state(engine, DSV3_FRAME_STATS, request, DSV3_FIELD_STATS_JSON, json, &experts);
	free(json);
	free(experts.counts);
}

static bool
take_submit(Engine *engine, uint64_t id, const uint8_t *body, size_t len, Dsv3Error *err)
{
	Dsv3Scheduler *scheduler = atomic_load(&engine->scheduler);
	Dsv3Request *request;
	Dsv3Error failure;

	if (id == 0)
		return dsv3_error(err, DSV3_ERR_PROTOCOL, "request without an id");
	if (scheduler == NULL)
	{
		dsv3_error(&failure, DSV3_ERR_NOT_READY, "the model is still being opened");
		send_fail(engine, id, &failure);
		return true;
	}
	request = dsv3_request_parse(id, body, len, &failure);
	if (request == NULL)
		send_fail(engine, id, &failure);
	else if (!dsv3_scheduler_submit(scheduler, request, &failure))
	{
		/* An id that is in use: a FAIL would be taken for the other request's answer. */
		if (strcmp(failure.sqlstate, DSV3_ERR_PROTOCOL) == 0)
		{
			*err = failure;
			return false;
		}
		send_fail(engine, id, &failure);
	}
	return true;
}

static char *
field_string(const Dsv3BodyReader *reader)
{
	return strndup((const char *) reader->value, reader->value_len);
}

static bool
take_config(Engine *engine, const uint8_t *body, size_t len, Dsv3Error *err)
{
	Config config = {.max_requests = DEFAULT_MAX_REQUESTS};
	Dsv3BodyReader reader;
	char **text;

	if (engine->configured)
		return dsv3_error(err, DSV3_ERR_PROTOCOL, "configured twice");
	dsv3_body_open(&reader, body, len);
	while (dsv3_body_next(&reader))
	{
		text = NULL;
		switch (reader.field)
		{
			case DSV3_FIELD_MODEL_PATH:
				text = &config.model_path;
				break;
			case DSV3_FIELD_DEVICE:
				text = &config.device;
				break;
			case DSV3_FIELD_WEIGHTS:
				text = &config.weights;
				break;
			case DSV3_FIELD_KV_TYPE:
				text = &config.kv_type;
				break;
			case DSV3_FIELD_SPECULATIVE:
				text = &config.speculative;
				break;
			case DSV3_FIELD_DRAFT_INPUT:
				text = &config.draft_input;
				break;
			case DSV3_FIELD_KV_FOLDER:
				text = &config.kv_folder;
				break;
			case DSV3_FIELD_KV_DISK_BYTES:
				config.kv_disk_bytes = dsv3_body_get_u64(&reader);
				break;
			case DSV3_FIELD_THREADS:
				config.threads = dsv3_body_get_u32(&reader);
				break;
			case DSV3_FIELD_MAX_REQUESTS:
				config.max_requests = dsv3_body_get_u32(&reader);
				break;
			case DSV3_FIELD_KV_BYTES:
				config.kv_bytes = dsv3_body_get_u64(&reader);
				break;
			default:
				break;
		}
		if (text)
		{
			free(*text);
			*text = field_string(&reader);
		}
	}
	if (reader.error || config.model_path == NULL || config.max_requests == 0 ||
		config.max_requests > 1000000 || config.threads > 4096)
	{
		free(config.model_path);
		free(config.device);
		free(config.weights);
		free(config.kv_type);
		free(config.speculative);
		free(config.draft_input);
		free(config.kv_folder);
		return dsv3_error(err, DSV3_ERR_PROTOCOL, "bad configuration: %s",
						  reader.error ? reader.error : "value out of range");
	}
	pthread_mutex_lock(&engine->lock);
	engine->config = config;
	engine->configured = true;
	pthread_cond_signal(&engine->changed);
	pthread_mutex_unlock(&engine->lock);
	return true;
}

static bool
take_frame(void *arg, const Dsv3FrameHeader *header, const uint8_t *body, Dsv3Error *err)
{
	Engine *engine = arg;
	Dsv3Scheduler *scheduler = atomic_load(&engine->scheduler);

	switch ((Dsv3FrameType) header->type)
	{
		case DSV3_FRAME_PING:
			answer_ping(engine, header->request);
			return true;
		case DSV3_FRAME_CONFIG:
			return take_config(engine, body, header->length, err);
		case DSV3_FRAME_SUBMIT:
			return take_submit(engine, header->request, body, header->length, err);
		case DSV3_FRAME_CANCEL:
			if (scheduler)
				dsv3_scheduler_cancel(scheduler, header->request);
			return true;
		case DSV3_FRAME_STATS:
			answer_stats(engine, header->request, body, header->length);
			return true;
		default:
			return dsv3_error(err, DSV3_ERR_PROTOCOL, "frame of type %d is not for the engine", header->type);
	}
}

static void
room_again(void *arg)
{
	Dsv3Scheduler *scheduler = atomic_load(&((Engine *) arg)->scheduler);

	if (scheduler)
		dsv3_scheduler_wake(scheduler);
}

static void
connection_closed(void *arg, const Dsv3Error *err)
{
	(void) arg;
	if (err == NULL)
		_exit(0);
	dsv3_log_error(DSV3_ERROR, err);
	_exit(1);
}

/* -- opening -- */

int
dsv3_engine_kv_blocks(const Dsv3Backend *backend, uint64_t bytes, int max_requests, Dsv3Error *err)
{
	uint64_t memory = (uint64_t) sysconf(_SC_PHYS_PAGES) * (uint64_t) sysconf(_SC_PAGESIZE);
	uint64_t blocks;

	if (bytes == 0)
	{
		uint64_t context = ((uint64_t) backend->info.max_positions + DSV3_KV_BLOCK - 1) / DSV3_KV_BLOCK;

		blocks = memory / 8 / backend->kv_block_bytes;
		if (blocks > context * (uint64_t) max_requests)
			blocks = context * (uint64_t) max_requests;
	}
	else if (bytes > memory)
	{
		/* It would be given, page by page, until the kernel kills somebody. */
		dsv3_error(err, DSV3_ERR_LIMIT_EXCEEDED,
				   "the cache of %" PRIu64 " MB is larger than this machine's memory of %" PRIu64 " MB",
				   bytes >> 20, memory >> 20);
		dsv3_error_hint(err, "Lower dsv3.kv_cache_size; the weights need room as well.");
		return 0;
	}
	else
		blocks = bytes / backend->kv_block_bytes;
	if (blocks > INT32_MAX / DSV3_KV_BLOCK)
		blocks = INT32_MAX / DSV3_KV_BLOCK;
	if (blocks == 0)
	{
		dsv3_error(err, DSV3_ERR_LIMIT_EXCEEDED,
				   "the cache is smaller than one block of %d tokens, which takes %zu bytes", DSV3_KV_BLOCK,
				   backend->kv_block_bytes);
		dsv3_error_hint(err, "Raise dsv3.kv_cache_size.");
	}
	return (int) blocks;
}

char *
dsv3_engine_model_json(const Dsv3Backend *backend, const char *path, int kv_blocks, int context,
					   const char *sandbox)
{
	const Dsv3ModelInfo *info = &backend->info;
	const char *end = path + strlen(path);
	const char *name;
	json_t *object = json_object();
	json_t *eos = json_array();
	char *text;

	while (end > path && end[-1] == '/')
		end--;
	name = end;
	while (name > path && name[-1] != '/')
		name--;
	for (int i = 0; i < info->n_eos; i++)
		json_array_append_new(eos, json_integer(info->eos_ids[i]));

#define PUT_TEXT(key, value) json_object_set_new(object, key, json_string(value))
#define PUT(key, value)      json_object_set_new(object, key, json_integer((json_int_t) (value)))
	json_object_set_new(object, "name", json_stringn(name, (size_t) (end - name)));
	PUT_TEXT("path", path);
	PUT_TEXT("architecture", info->architecture);
	PUT_TEXT("digest", info->digest);
	PUT_TEXT("device", "cpu");
	PUT_TEXT("weights", info->weights);
	PUT_TEXT("isa", info->isa);
	PUT("vocab_size", info->vocab_size);
	PUT("hidden_size", info->hidden_size);
	PUT("layers", info->n_layers);
	PUT("experts", info->n_routed_experts);
	PUT("experts_per_token", info->n_experts_per_token);
	PUT("max_positions", info->max_positions);
	PUT("context", context);
	PUT("threads", info->threads);
	PUT("params_total", info->params_total);
	PUT("params_active", info->params_active);
	PUT("weight_bytes", info->weight_bytes);
	PUT("draft_bytes", info->draft_bytes);
	PUT("bytes_per_token", info->bytes_per_token);
	PUT_TEXT("kv_type", dsv3_kv_type_name(backend->kv_type));
	PUT("kv_bytes_per_position", info->kv_bytes_per_position);
	PUT("kv_blocks", kv_blocks);
	PUT("kv_block_tokens", DSV3_KV_BLOCK);
	PUT("kv_bytes", (uint64_t) kv_blocks * backend->kv_block_bytes);
	json_object_set_new(object, "eos_ids", eos);
	PUT("bos_id", info->bos_id);
	PUT_TEXT("template", backend->template_name);
	json_object_set_new(object, "thinking", json_boolean(backend->think_close >= 0));
	PUT_TEXT("sandbox", sandbox);
	PUT_TEXT("engine_version", DSV3_VERSION);
	PUT("protocol", DSV3_PROTOCOL_VERSION);
#undef PUT
#undef PUT_TEXT
	text = json_dumps(object, JSON_COMPACT);
	json_decref(object);
	return text;
}

static bool
speculation_options(const Config *config, Dsv3BackendOptions *options, Dsv3SchedulerOptions *scheduling,
					Dsv3Error *err)
{
	if (config->speculative && !dsv3_speculation_mode(config->speculative, &scheduling->speculation))
		return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "unknown speculation mode \"%s\"",
						  config->speculative);
	if (config->draft_input && !dsv3_draft_input(config->draft_input, &options->draft_before_norm))
		return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "unknown draft input \"%s\"", config->draft_input);
	options->drafts = scheduling->speculation != DSV3_SPECULATION_OFF;
	return true;
}

/* Everything between CONFIG and READY. */
static Dsv3Scheduler *
open_all(Engine *engine, Dsv3Backend **backend, char **model_json, Dsv3Error *err)
{
	const Config *config = &engine->config;
	Dsv3BackendOptions options = {.threads = (int) config->threads};
	Dsv3SchedulerOptions scheduling = {.max_requests = (int) config->max_requests,
									   .text_thread = true,
									   .emit = emit_event,
									   .has_room = has_room,
									   .arg = engine};
	Dsv3Scheduler *scheduler;
	Dsv3Sandbox sandbox = {
		.socket_fd = 3, .wake_fd = dsv3_pump_wake_fd(engine->pump), .model_path = config->model_path};

	if (config->device && strcmp(config->device, "auto") != 0 && strcmp(config->device, "cpu") != 0)
	{
		dsv3_error(err, DSV3_ERR_UNSUPPORTED, "this engine cannot use the device \"%s\"", config->device);
		dsv3_error_hint(err, "Set dsv3.device to auto or cpu.");
		return NULL;
	}
	if (!dsv3_backend_weights(config->weights ? config->weights : "stored", &options.weights, err) ||
		!dsv3_backend_kv(config->kv_type ? config->kv_type : "f32", &options.kv, err))
		return NULL;
	if (!speculation_options(config, &options, &scheduling, err))
		return NULL;
	*backend = dsv3_backend_open(config->model_path, &options, err);
	if (*backend == NULL)
		return NULL;
	scheduling.kv_blocks = dsv3_engine_kv_blocks(*backend, config->kv_bytes, scheduling.max_requests, err);
	if (scheduling.kv_blocks == 0)
		return NULL;
	scheduling.kv_folder = config->kv_folder && config->kv_folder[0] ? config->kv_folder : NULL;
	scheduling.kv_disk_bytes = config->kv_disk_bytes;
	scheduler = dsv3_scheduler_open(*backend, &scheduling, err);
	if (scheduler == NULL)
		return NULL;
	sandbox.disk_fd = dsv3_scheduler_disk_fd(scheduler);
	if (!dsv3_sandbox_enter(&sandbox, err))
		return NULL;
	*model_json = dsv3_engine_model_json(*backend, config->model_path, scheduling.kv_blocks,
										 dsv3_scheduler_context(scheduler), sandbox.description);
	return scheduler;
}

void
dsv3_engine_serve(int fd, pid_t parent, bool debug)
{
	static Engine engine;
	Dsv3PumpHandler handler = {
		.frame = take_frame, .room_again = room_again, .closed = connection_closed, .arg = &engine};
	Dsv3Scheduler *scheduler;
	Dsv3Backend *backend = NULL;
	char *model_json = NULL;
	Dsv3Error err;

	dsv3_log_init();

	/* One arena for all threads. Any other gives memory back only after a look at /proc/sys/vm/overcommit_memory, which the
	 * sandbox would stop; few threads allocate, and none of them while it computes. */
	mallopt(M_ARENA_MAX, 1);
	json_object_seed(0); /* reads the system's random device once, while that can still be opened */
	pthread_mutex_init(&engine.lock, NULL);
	pthread_cond_init(&engine.changed, NULL);
	if (dsv3_guard_process(parent, debug, &err))
		engine.pump = dsv3_pump_open(fd, &handler, 0, &err);
	if (engine.pump == NULL || !dsv3_pump_start(engine.pump, &err))
	{
		dsv3_log_error(DSV3_ERROR, &err);
		_exit(1);
	}
	pthread_mutex_lock(&engine.lock);
	while (!engine.configured)
		pthread_cond_wait(&engine.changed, &engine.lock);
	pthread_mutex_unlock(&engine.lock);

	scheduler = open_all(&engine, &backend, &model_json, &err);
	if (scheduler == NULL)
	{
		dsv3_log_error(DSV3_ERROR, &err);
		send_fail(&engine, 0, &err);
		dsv3_pump_drain(engine.pump, LAST_WORDS_MS);
		_exit(1);
	}
	dsv3_log(DSV3_LOG, "model \"%s\" is open: %s, %d layers, context %d, %d threads, sandbox %s",
			 engine.config.model_path, backend->info.architecture, backend->info.n_layers,
			 dsv3_scheduler_context(scheduler), backend->info.threads,
			 strstr(model_json ? model_json : "", "\"sandbox\":\"none") ? "off" : "on");
	atomic_store(&engine.scheduler, scheduler);
	send_state(&engine, DSV3_FRAME_READY, 0, DSV3_FIELD_MODEL_JSON, model_json, &(Dsv3ExpertTokens){0});
	free(model_json);
	dsv3_scheduler_run(scheduler);
	_exit(1); /* nothing stops the scheduler here */
}
