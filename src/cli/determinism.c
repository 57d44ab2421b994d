/*
 * determinism.c
 *	  `dsv3 bench determinism`: is an answer the same whatever the engine is doing beside it?
 *
 * A request is made from a number (mix_request.h) and computed alone once: one thread, a batch of one, its prompt in pieces as large as
 * they can be, nothing cached. Then it is met again in mixes. A mix is an engine with a number of threads, a cache just large enough or
 * with some room, places in the batch, prompt tokens a step (1 to 4096, the same for all steps or another for each), and
 * up to a few dozen requests that arrive while others run, in scopes that share prefixes, with priorities that push others out. Some
 * requests are cancelled, the cache is emptied now and then, and in every third mix the engine is closed somewhere in the middle and
 * opened again, with another number of threads; what was unfinished goes on behind the tokens it had delivered. Every
 * second mix keeps its cache in a folder that all of them share, so that prefixes come from memory, from the disk, and from engines
 * that are long gone.
 *
 * What is compared is all that a client sees: bytes, tokens, log-probabilities in every digit, messages, how it ended, errors.
 */
#include "cli/determinism.h"

#include <dirent.h>
#include <getopt.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "cli/cli.h"
#include "cli/memory_read.h"
#include "cli/mix_request.h"
#include "cli/options.h"
#include "engine/scheduler.h"

#define MOST_MEMBERS  40
#define MOST_CHUNK    4096
#define DISK_BYTES    ((uint64_t) 64 << 20)
#define MOST_THREADS  3
#define N_NUMBERS     2048       /* different requests */
#define SHOWN         5          /* differences that are told in full */
#define RESET_REQUEST UINT64_MAX /* id of a request that empties the cache */

typedef struct Arguments
{
	const char *model;
	Dsv3BackendOptions backend;
	int64_t mixes;
	int64_t first;
	int64_t seed;
	int64_t longest;
} Arguments;

/* All that a client sees of a request. */
typedef struct Outcome
{
	Dsv3Text text;
	Dsv3Tokens tokens;
	char *message;
	char *logprobs;
	double logprob;
	Dsv3Finish finish;
	uint32_t prompt_tokens;
	uint32_t output_tokens;
	bool narrowed;
	bool ended;
	Dsv3Error error; /* sqlstate "" unless it failed */
} Outcome;

/* A request of a mix. Its id is its place among the members plus one. */
typedef struct Member
{
	uint64_t number;
	const char *scope; /* NULL: shares nothing */
	uint32_t role;
	uint32_t priority;
	bool stream;
	int64_t arrives; /* before this step */
	int64_t leaves;  /* is cancelled before this step; -1: stays */
	bool submitted;
	Outcome outcome;
} Member;

typedef struct Totals
{
	int64_t requests; /* compared */
	int64_t different;
	int64_t tokens; /* of their answers */
	int64_t steps;
	int64_t cancelled;
	int64_t restarts;
	int64_t preemptions;
	int64_t cached_tokens;
	int64_t disk_blocks;
	int64_t by_threads[MOST_THREADS]; /* mixes */
} Totals;

typedef struct Run
{
	const Arguments *args;
	Outcome *alone; /* [N_NUMBERS]; made when first needed */
	char folder[64];
	Totals totals;

	Dsv3Backend *solo_backend;
	Dsv3Scheduler *solo;
	Outcome *solo_outcome; /* where its events go */

	/* The engine of the current mix. */
	Dsv3Backend *backend;
	Dsv3Scheduler *scheduler;
	Member members[MOST_MEMBERS];
	int n_members;
	bool out_of_memory;
} Run;

static void
print_help(void)
{
	printf("Compute requests alone and in random company, and compare every byte.\n\n"
		   "Usage: dsv3 bench determinism MODEL [OPTIONS]\n\n"
		   "  --mixes N        random mixes of requests and circumstances (default 2000)\n"
		   "  --seed S         of everything random (default 1)\n"
		   "  --first N        begin with mix N, to see one again (default 0)\n"
		   "  --longest N      bytes of the longest prompt (default 1000)\n"
		   "  --weights MODE   stored (default), f32, bf16, int8 or int4\n"
		   "  --kv-cache TYPE  f32 (default), bf16 or int8: rows of the latent cache\n"
		   "  --isa SET        ref, avx2 or avx512 (default: the best this CPU has)\n\n"
		   "Ends with status 1 when an answer, a log-probability or an error differs.\n\n"
		   "Example: dsv3 bench determinism build/tiny-model --mixes 100 --seed 7\n");
}

/* -- outcomes -- */

static void
free_outcome(Outcome *outcome)
{
	dsv3_text_free(&outcome->text);
	dsv3_tokens_free(&outcome->tokens);
	free(outcome->message);
	free(outcome->logprobs);
	*outcome = (Outcome){0};
}

/* Add what an event tells; false without memory. */
static bool
take_event(Outcome *outcome, const Dsv3Event *event)
{
	if (event->type == DSV3_FRAME_FAIL)
	{
		outcome->error = *event->error;
		outcome->ended = true;
		return true;
	}
	for (size_t i = 0; i < event->n_tokens; i++)
		if (!dsv3_tokens_push(&outcome->tokens, event->tokens[i], NULL))
			return false;
	if (event->text_len > 0 && !dsv3_text_append(&outcome->text, event->text, event->text_len, NULL))
		return false;
	if (event->type != DSV3_FRAME_DONE)
		return true;
	outcome->ended = true;
	outcome->finish = event->finish;
	outcome->prompt_tokens = event->prompt_tokens;
	outcome->output_tokens = event->output_tokens;
	outcome->logprob = event->logprob;
	outcome->narrowed = event->narrowed;
	outcome->message = event->message_json ? strdup(event->message_json) : NULL;
	outcome->logprobs = event->logprobs_json ? strdup(event->logprobs_json) : NULL;
	return (outcome->message || !event->message_json) && (outcome->logprobs || !event->logprobs_json);
}

static bool
same_string(const char *a, const char *b)
{
	return strcmp(a ? a : "", b ? b : "") == 0;
}

/* What two outcomes differ in, NULL when in nothing. */
static const char *
difference(const Outcome *a, const Outcome *b)
{
	if (!same_string(a->error.sqlstate, b->error.sqlstate) ||
		!same_string(a->error.message, b->error.message))
		return "error";
	if (a->tokens.count != b->tokens.count ||
		(a->tokens.count > 0 &&
		 memcmp(a->tokens.ids, b->tokens.ids, a->tokens.count * sizeof(*a->tokens.ids)) != 0))
		return "tokens";
	if (a->text.len != b->text.len ||
		(a->text.len > 0 && memcmp(a->text.data, b->text.data, a->text.len) != 0))
		return "text";
	if (!same_string(a->logprobs, b->logprobs) || a->logprob != b->logprob)
		return "log-probabilities";
	if (!same_string(a->message, b->message))
		return "message";
	if (a->finish != b->finish || a->prompt_tokens != b->prompt_tokens ||
		a->output_tokens != b->output_tokens || a->narrowed != b->narrowed)
		return "ending";
	return NULL;
}

/* -- alone -- */

static void
on_solo_event(void *arg, const Dsv3Event *event)
{
	Run *run = arg;

	if (!take_event(run->solo_outcome, event))
		run->out_of_memory = true;
}

static bool
out_of_memory(Dsv3Error *err)
{
	return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for a comparison");
}

static bool
open_solo(Run *run, Dsv3Error *err)
{
	Dsv3BackendOptions backend = run->args->backend;
	Dsv3SchedulerOptions scheduling = {.max_requests = 1, .max_batch = 1, .emit = on_solo_event, .arg = run};

	backend.threads = 1;
	run->solo_backend = dsv3_backend_open(run->args->model, &backend, err);
	if (run->solo_backend == NULL)
		return false;
	scheduling.kv_blocks = (run->solo_backend->info.max_positions + DSV3_KV_BLOCK - 1) / DSV3_KV_BLOCK;
	run->solo = dsv3_scheduler_open(run->solo_backend, &scheduling, err);
	if (run->solo == NULL)
		return false;
	dsv3_scheduler_fix_budget(run->solo, MOST_CHUNK);
	return true;
}

/* The outcome of a number's request alone; NULL on failure. */
static const Outcome *
solo_outcome(Run *run, uint64_t number, Dsv3Error *err)
{
	Dsv3Request *request;

	run->solo_outcome = &run->alone[number];
	if (run->solo_outcome->ended)
		return run->solo_outcome;
	request = dsv3_mix_request((uint64_t) run->args->seed, number, (uint32_t) run->args->longest, err);
	if (request == NULL)
		return NULL;
	request->id = 1;
	if (!dsv3_request_check(request, err))
	{
		dsv3_request_free(request);
		return NULL;
	}
	if (!dsv3_scheduler_submit(run->solo, request, err))
		return NULL;
	while (!run->solo_outcome->ended)
		(void) dsv3_scheduler_step(run->solo);
	if (run->out_of_memory)
	{
		(void) out_of_memory(err);
		return NULL;
	}
	return run->solo_outcome;
}

/* -- a mix -- */

static void
on_mix_event(void *arg, const Dsv3Event *event)
{
	Run *run = arg;

	if (event->request != RESET_REQUEST && !take_event(&run->members[event->request - 1].outcome, event))
		run->out_of_memory = true;
}

static void
close_engine(Run *run)
{
	char *text = run->scheduler ? dsv3_scheduler_stats(run->scheduler) : NULL;
	json_t *stats = text ? json_loads(text, 0, NULL) : NULL;

	run->totals.steps += json_integer_value(json_object_get(stats, "steps"));
	run->totals.preemptions += json_integer_value(json_object_get(stats, "preemptions"));
	run->totals.cached_tokens += json_integer_value(json_object_get(stats, "cached_tokens"));
	run->totals.disk_blocks += json_integer_value(json_object_get(stats, "kv_disk_loaded"));
	json_decref(stats);
	free(text);
	dsv3_scheduler_close(run->scheduler);
	dsv3_backend_close(run->backend);
	run->scheduler = NULL;
	run->backend = NULL;
}

static bool
open_engine(Run *run, int threads, Dsv3SchedulerOptions *scheduling, Dsv3Error *err)
{
	Dsv3BackendOptions backend = run->args->backend;

	backend.threads = threads;
	scheduling->emit = on_mix_event;
	scheduling->arg = run;
	scheduling->max_requests = MOST_MEMBERS + 1;
	run->backend = dsv3_backend_open(run->args->model, &backend, err);
	if (run->backend == NULL)
		return false;
	run->scheduler = dsv3_scheduler_open(run->backend, scheduling, err);
	return run->scheduler != NULL;
}

/* Hand the member's request to the engine, behind what it has delivered already. */
static bool
submit_member(Run *run, int i, Dsv3Error *err)
{
	Member *member = &run->members[i];
	const Dsv3Tokens *had = &member->outcome.tokens;
	Dsv3Request *request =
		dsv3_mix_request((uint64_t) run->args->seed, member->number, (uint32_t) run->args->longest, err);

	if (request == NULL)
		return false;
	request->id = (uint64_t) i + 1;
	request->role = member->role;
	request->priority = member->priority;
	request->stream = member->stream;
	if (had->count > 0)
	{
		request->tokens = malloc(had->count * sizeof(*request->tokens));
		if (request->tokens)
			memcpy(request->tokens, had->ids, had->count * sizeof(*request->tokens));
		request->n_tokens = had->count;
	}
	if ((had->count > 0 && request->tokens == NULL) ||
		(member->scope && !dsv3_bytes_set(&request->scope, member->scope, strlen(member->scope), err)))
	{
		dsv3_request_free(request);
		return out_of_memory(err);
	}
	member->submitted = true;
	return dsv3_scheduler_submit(run->scheduler, request, err);
}

/* Cache rows that the member's request may come to need: no number of them may be refused where the solo run was not. */
static int64_t
rows_needed(const Run *run, const Member *member)
{
	const Outcome *alone = &run->alone[member->number];
	int64_t context = run->solo_backend->info.max_positions;
	Dsv3Error err;
	Dsv3Request *request =
		dsv3_mix_request((uint64_t) run->args->seed, member->number, (uint32_t) run->args->longest, &err);
	int64_t rows = context;

	if (request && alone->prompt_tokens > 0)
		rows = (int64_t) alone->prompt_tokens + request->max_tokens +
			   (int64_t) (request->continuation.len + request->choices.len) + 2;
	dsv3_request_free(request);
	return rows < context ? rows : context;
}

/* Choose the requests of a mix; returns the blocks that the largest of them needs, and *all of them together. 0 on failure. */
static int
choose_members(Run *run, Dsv3Random *random, int *all, Dsv3Error *err)
{
	static const char *const scopes[] = {"one", "one", "other", NULL};
	bool crowd = dsv3_random_below(random, 16) == 0;
	int64_t step = 0;
	int largest = 0;

	*all = 0;
	run->n_members = 1 + (int) dsv3_random_below(random, crowd ? MOST_MEMBERS : 9);
	for (int i = 0; i < run->n_members; i++)
	{
		Member *member = &run->members[i];
		int blocks;

		*member = (Member){.number = dsv3_random_below(random, N_NUMBERS),
						   .scope = scopes[dsv3_random_below(random, 4)],
						   .role = dsv3_random_below(random, 3),
						   .priority = dsv3_random_below(random, 4) == 0,
						   .stream = dsv3_random_below(random, 2) == 0,
						   .leaves = -1};
		if (dsv3_random_below(random, 2) == 0)
			step += dsv3_random_log(random, 40) - 1;
		member->arrives = step;
		if (dsv3_random_below(random, 12) == 0)
			member->leaves = step + dsv3_random_log(random, 60);
		if (solo_outcome(run, member->number, err) == NULL)
			return 0;
		blocks = (int) ((rows_needed(run, member) + DSV3_KV_BLOCK - 1) / DSV3_KV_BLOCK);
		largest = blocks > largest ? blocks : largest;
		*all += blocks;
	}
	return largest;
}

/* Before a step: who arrives, who leaves; another chunk. */
static bool
before_step(Run *run, Dsv3Random *random, int64_t step, bool varying, Dsv3Error *err)
{
	for (int i = 0; i < run->n_members; i++)
	{
		Member *member = &run->members[i];

		if (!member->submitted && member->arrives <= step && !submit_member(run, i, err))
			return false;
		if (member->submitted && member->leaves >= 0 && member->leaves <= step && !member->outcome.ended)
			dsv3_scheduler_cancel(run->scheduler, (uint64_t) i + 1);
	}
	if (varying)
		dsv3_scheduler_fix_budget(run->scheduler, (int) dsv3_random_log(random, MOST_CHUNK));
	return true;
}

static bool
all_ended(const Run *run)
{
	for (int i = 0; i < run->n_members; i++)
		if (!run->members[i].outcome.ended)
			return false;
	return true;
}

static bool
empty_cache(Run *run, Dsv3Error *err)
{
	Dsv3Request *request = dsv3_request_new(RESET_REQUEST, DSV3_REQUEST_CACHE_RESET);

	if (request == NULL)
		return out_of_memory(err);
	request->cache_memory = true;
	return dsv3_scheduler_submit(run->scheduler, request, err);
}

/* Run the members to their ends. */
static bool
run_members(Run *run, Dsv3Random *random, Dsv3SchedulerOptions *scheduling, Dsv3Error *err)
{
	bool varying = dsv3_random_below(random, 2) == 0;
	int chunk = (int) dsv3_random_log(random, MOST_CHUNK);
	int64_t restart = dsv3_random_below(random, 3) == 0 ? (int64_t) dsv3_random_log(random, 150) : -1;
	int64_t reset = dsv3_random_below(random, 12) == 0 ? (int64_t) dsv3_random_log(random, 100) : -1;
	int threads = 1 + (int) dsv3_random_below(random, MOST_THREADS);

	run->totals.by_threads[threads - 1]++;
	if (!open_engine(run, threads, scheduling, err))
		return false;
	dsv3_scheduler_fix_budget(run->scheduler, chunk);
	for (int64_t step = 0; !all_ended(run); step++)
	{
		if (step == restart)
		{
			close_engine(run);
			if (!open_engine(run, 1 + (int) dsv3_random_below(random, MOST_THREADS), scheduling, err))
				return false;
			dsv3_scheduler_fix_budget(run->scheduler, chunk);
			for (int i = 0; i < run->n_members; i++)
				if (!run->members[i].outcome.ended)
					run->members[i].submitted = false;
			run->totals.restarts++;
		}
		if (step == reset && !empty_cache(run, err))
			return false;
		if (!before_step(run, random, step, varying, err))
			return false;
		/* Nothing to do: everybody waits for the disk, or for the next to arrive. */
		if (dsv3_scheduler_step(run->scheduler) == DSV3_STEP_IDLE)
			sched_yield();
		if (run->out_of_memory)
			return out_of_memory(err);
	}
	return true;
}

static void
compare_members(Run *run, int64_t mix)
{
	for (int i = 0; i < run->n_members; i++)
	{
		const Member *member = &run->members[i];
		const Outcome *alone = &run->alone[member->number];
		const char *what;

		/* Cancelled in time: a neighbour, and nothing to compare. */
		if (member->leaves >= 0 && strcmp(member->outcome.error.sqlstate, DSV3_ERR_CANCELLED) == 0)
		{
			run->totals.cancelled++;
			continue;
		}
		run->totals.requests++;
		run->totals.tokens += (int64_t) member->outcome.tokens.count;
		what = difference(alone, &member->outcome);
		if (what == NULL)
			continue;
		if (run->totals.different++ < SHOWN)
			printf("mix %lld: the %s of request %llu differ: \"%.*s\"%s%s, alone \"%.*s\"%s%s\n",
				   (long long) mix, what, (unsigned long long) member->number, (int) member->outcome.text.len,
				   member->outcome.text.data ? member->outcome.text.data : "",
				   member->outcome.error.sqlstate[0] ? ", " : "", member->outcome.error.message,
				   (int) alone->text.len, alone->text.data ? alone->text.data : "",
				   alone->error.sqlstate[0] ? ", " : "", alone->error.message);
	}
}

static bool
run_mix(Run *run, int64_t mix, Dsv3Error *err)
{
	static const int batches[] = {1, 2, 4, 64};
	Dsv3Random random = dsv3_random_stream((uint64_t) run->args->seed, DSV3_STREAM_MIXES + (uint64_t) mix);
	Dsv3SchedulerOptions scheduling = {.max_batch = batches[dsv3_random_below(&random, 4)],
									   .kv_disk_bytes = DISK_BYTES,
									   .kv_folder = dsv3_random_below(&random, 2) ? run->folder : NULL};
	int all;
	int largest = choose_members(run, &random, &all, err);
	bool ok = largest > 0;

	if (ok)
	{
		/* Half of the time so little room that they push each other out. */
		scheduling.kv_blocks = largest + (int) dsv3_random_below(&random, 4);
		if (dsv3_random_below(&random, 2))
			scheduling.kv_blocks = all + (int) dsv3_random_below(&random, 64);
		ok = run_members(run, &random, &scheduling, err);
	}
	close_engine(run);
	if (ok)
		compare_members(run, mix);
	for (int i = 0; i < run->n_members; i++)
		free_outcome(&run->members[i].outcome);
	return ok;
}

/* -- the command -- */

static void
remove_folder(const char *path)
{
	DIR *folder = opendir(path);
	const struct dirent *entry;

	while (folder && (entry = readdir(folder)) != NULL)
	{
		if (entry->d_name[0] != '.')
			(void) unlinkat(dirfd(folder), entry->d_name, 0);
	}
	if (folder)
		closedir(folder);
	(void) rmdir(path);
}

static void
print_totals(const Run *run, double seconds)
{
	const Totals *t = &run->totals;

	printf("%lld mixes, seed %lld: %lld requests equal, %lld different (%lld tokens of answers)\n"
		   "threads 1, 2, 3 in %lld, %lld, %lld mixes; %lld restarts, %lld preemptions, %lld requests "
		   "cancelled\n"
		   "%lld prompt tokens found in the cache, %lld blocks read from disk; %lld steps, %.0f s\n",
		   (long long) run->args->mixes, (long long) run->args->seed,
		   (long long) (t->requests - t->different), (long long) t->different, (long long) t->tokens,
		   (long long) t->by_threads[0], (long long) t->by_threads[1], (long long) t->by_threads[2],
		   (long long) t->restarts, (long long) t->preemptions, (long long) t->cancelled,
		   (long long) t->cached_tokens, (long long) t->disk_blocks, (long long) t->steps, seconds);
}

static int
run_mixes(const Arguments *args)
{
	Run run = {.args = args, .folder = "/tmp/dsv3-determinism.XXXXXX"};
	double start = dsv3_cli_now();
	Dsv3Error err;
	bool ok;

	run.alone = calloc(N_NUMBERS, sizeof(*run.alone));
	if (run.alone == NULL)
	{
		(void) out_of_memory(&err);
		return dsv3_cli_fail(&err);
	}
	if (mkdtemp(run.folder) == NULL)
	{
		free(run.alone);
		dsv3_error(&err, DSV3_ERR_FILE, "could not make a directory in /tmp");
		return dsv3_cli_fail(&err);
	}
	ok = open_solo(&run, &err);
	for (int64_t mix = args->first; ok && mix < args->first + args->mixes; mix++)
		ok = run_mix(&run, mix, &err);
	dsv3_scheduler_close(run.solo);
	dsv3_backend_close(run.solo_backend);
	for (int i = 0; i < N_NUMBERS; i++)
		free_outcome(&run.alone[i]);
	free(run.alone);
	remove_folder(run.folder);
	if (!ok)
		return dsv3_cli_fail(&err);
	print_totals(&run, dsv3_cli_now() - start);
	return run.totals.different > 0;
}

int
dsv3_determinism_bench(int argc, char **argv)
{
	static const struct option longopts[] = {
		{"mixes", required_argument, NULL, 'm'},
		{"seed", required_argument, NULL, 'd'},
		{"first", required_argument, NULL, 'f'},
		{"longest", required_argument, NULL, 'l'},
		{"kv-cache", required_argument, NULL, 'k'},
		{"weights", required_argument, NULL, 'w'},
		{"isa", required_argument, NULL, 's'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	Arguments args = {.mixes = 2000, .seed = 1, .longest = 1000};
	int c;

	optind = 1;
	while ((c = getopt_long(argc, argv, "", longopts, NULL)) != -1)
	{
		switch (c)
		{
			case 'm':
				if (!dsv3_cli_integer(optarg, 1, 1 << 20, &args.mixes))
					return dsv3_cli_usage("bench determinism", "\"%s\" is not a valid number of mixes",
										  optarg);
				break;
			case 'd':
				if (!dsv3_cli_integer(optarg, 0, INT64_MAX, &args.seed))
					return dsv3_cli_usage("bench determinism", "\"%s\" is not a valid seed", optarg);
				break;
			case 'f':
				if (!dsv3_cli_integer(optarg, 0, 1 << 20, &args.first))
					return dsv3_cli_usage("bench determinism", "\"%s\" is not a valid mix", optarg);
				break;
			case 'l':
				if (!dsv3_cli_integer(optarg, 2, 1 << 20, &args.longest))
					return dsv3_cli_usage("bench determinism", "\"%s\" is not a valid length", optarg);
				break;
			case 'k':
				if (!dsv3_kv_type(optarg, &args.backend.kv))
					return dsv3_cli_usage("bench determinism", "unknown type of cache rows \"%s\"", optarg);
				break;
			case 'w':
				if (!dsv3_weight_mode(optarg, &args.backend.weights))
					return dsv3_cli_usage("bench determinism", "unknown weight mode \"%s\"", optarg);
				break;
			case 's':
				args.backend.isa = optarg;
				break;
			case 'h':
				print_help();
				return 0;
			default:
				fprintf(stderr, "Try 'dsv3 bench determinism --help'.\n");
				return 2;
		}
	}
	if (optind != argc - 1)
		return dsv3_cli_usage("bench determinism", "one model is needed");
	args.model = argv[optind];
	return run_mixes(&args);
}
