/*
 * batch_bench.c
 *	  `dsv3 bench MODEL --batch 1,2,4`: tokens per second of so many answers at one time, through the scheduler that serves
 *	  PostgreSQL.
 *
 * Each round is one window for every batch size, by turns. Before a window the prompts, all different, are computed and every
 * answer has its first token; in the window the tokens that arrive are counted; after it the requests are cancelled. An
 * answer that ends in a window is followed by another request, as on a server that is kept busy.
 */
#include "cli/batch_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/memory_read.h"
#include "engine/backend.h"
#include "engine/scheduler.h"

#define MAX_ROUNDS 1000
#define OUTPUT     256 /* tokens of an answer at the most, */
#define OUTPUT_MIN 16  /* and at the least */

typedef struct Run
{
	const Dsv3BatchBench *args;
	Dsv3Backend *backend;
	Dsv3Scheduler *scheduler;
	int output; /* tokens of an answer */
	uint64_t next_id;
	uint64_t live[DSV3_BATCH_BENCH_MAX]; /* ids of requests under way, 0 none */
	bool begun[DSV3_BATCH_BENCH_MAX];    /* has given a token */
	int64_t tokens;
	bool cancelling;
	bool failed;
	Dsv3Error error;
} Run;

static void
on_event(void *arg, const Dsv3Event *event)
{
	Run *run = arg;
	int i = 0;

	while (i < DSV3_BATCH_BENCH_MAX && run->live[i] != event->request)
		i++;
	if (i == DSV3_BATCH_BENCH_MAX)
		return;
	run->tokens += (int64_t) event->n_tokens;
	run->begun[i] = run->begun[i] || event->n_tokens > 0;
	if (event->type == DSV3_FRAME_FAIL && !run->cancelling)
	{
		run->failed = true;
		run->error = *event->error;
	}
	if (event->type != DSV3_FRAME_DELTA)
		run->live[i] = 0;
}

/* A prompt of about args->prompt tokens that begins unlike all others. */
static bool
make_prompt(const Run *run, Dsv3Text *prompt, Dsv3Error *err)
{
	Dsv3Tokens ids = {0};
	bool ok = true;

	for (uint64_t word = run->next_id; ok && ids.count < (size_t) run->args->prompt; word = word * 7 + 13)
	{
		char text[32];
		int n = snprintf(text, sizeof(text), "%s%d", prompt->len > 0 ? " " : "", (int) (word % 10007));

		ok = dsv3_text_append(prompt, text, (size_t) n, err) &&
			 run->backend->ops->encode(run->backend, text, (size_t) n, SIZE_MAX, &ids, err);
	}
	dsv3_tokens_free(&ids);
	return ok;
}

/* Begin request number i. */
static bool
begin(Run *run, int i, Dsv3Error *err)
{
	Dsv3Request *request = dsv3_request_new(++run->next_id, DSV3_REQUEST_GENERATE);
	Dsv3Text prompt = {0};
	bool ok;

	if (!request)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for a request");
	request->raw = true;
	request->stream = true;
	request->has_max_tokens = true;
	request->max_tokens = (uint32_t) run->output;
	ok = make_prompt(run, &prompt, err) && dsv3_bytes_set(&request->prompt, prompt.data, prompt.len, err);
	dsv3_text_free(&prompt);
	if (!ok)
	{
		dsv3_request_free(request);
		return false;
	}
	run->live[i] = run->next_id;
	run->begun[i] = false;
	return dsv3_scheduler_submit(run->scheduler, request, err);
}

/* One turn, and a new request for each of the first n that has ended. */
static bool
turn(Run *run, int n, Dsv3Error *err)
{
	for (int i = 0; i < n; i++)
		if (run->live[i] == 0 && !begin(run, i, err))
			return false;
	(void) dsv3_scheduler_step(run->scheduler);
	if (run->failed)
		*err = run->error;
	return !run->failed;
}

static bool
all_begun(const Run *run, int n)
{
	for (int i = 0; i < n; i++)
		if (!run->begun[i])
			return false;
	return true;
}

/* Tokens per second of n answers; 0 on failure. */
static double
window(Run *run, int n, Dsv3Error *err)
{
	double start, end;
	bool ok = true;

	run->cancelling = false;
	while (ok && !all_begun(run, n))
		ok = turn(run, n, err);
	run->tokens = 0;
	start = end = dsv3_cli_now();
	while (ok && (end - start < run->args->seconds || run->tokens == 0))
	{
		ok = turn(run, n, err);
		end = dsv3_cli_now();
	}
	run->cancelling = true;
	for (int i = 0; i < n; i++)
		if (run->live[i] != 0)
			dsv3_scheduler_cancel(run->scheduler, run->live[i]);
	while (dsv3_scheduler_step(run->scheduler) == DSV3_STEP_WORKED)
		;
	memset(run->live, 0, sizeof(run->live));
	memset(run->begun, 0, sizeof(run->begun));
	return ok ? (double) run->tokens / (end - start) : 0;
}

double
dsv3_bench_median(double *values, int n)
{
	for (int i = 1; i < n; i++)
		for (int j = i; j > 0 && values[j] < values[j - 1]; j--)
		{
			double larger = values[j - 1];

			values[j - 1] = values[j];
			values[j] = larger;
		}
	return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static bool
measure(Run *run, Dsv3Error *err)
{
	const Dsv3BatchBench *args = run->args;
	const Dsv3ModelInfo *info = &run->backend->info;
	static double speed[DSV3_BATCH_BENCH_LIST][MAX_ROUNDS];
	static double ratio[DSV3_BATCH_BENCH_LIST][MAX_ROUNDS];

	if (window(run, 1, err) == 0) /* every page is touched */
		return false;
	for (int r = 0; r < args->rounds; r++)
		for (int s = 0; s < args->n_sizes; s++)
		{
			if ((speed[s][r] = window(run, args->sizes[s], err)) == 0)
				return false;
			ratio[s][r] = speed[s][r] / speed[0][r];
		}
	if (args->json)
		printf("{\"model\": \"%s\", \"weights\": \"%s\", \"isa\": \"%s\", \"threads\": %d, \"prompt\": %d, "
			   "\"rounds\": %d, \"batches\": [",
			   info->architecture, info->weights, info->isa, info->threads, args->prompt, args->rounds);
	else
		printf("weights %s, instruction set %s, %d threads, prompts of %d tokens, %d rounds of %.2g s\n"
			   "batch   tokens/s   against %d\n",
			   info->weights, info->isa, info->threads, args->prompt, args->rounds, args->seconds,
			   (int) args->sizes[0]);
	for (int s = 0; s < args->n_sizes; s++)
	{
		double tokens = dsv3_bench_median(speed[s], args->rounds);
		double gain = dsv3_bench_median(ratio[s], args->rounds);

		if (args->json)
			printf("%s{\"batch\": %d, \"tokens_per_second\": %.3f, \"ratio\": %.4f}", s > 0 ? ", " : "",
				   (int) args->sizes[s], tokens, gain);
		else
			printf("%5d %10.1f %11.2f\n", (int) args->sizes[s], tokens, gain);
	}
	if (args->json)
		printf("]}\n");
	return true;
}

bool
dsv3_batch_bench(const Dsv3BatchBench *args, Dsv3Error *err)
{
	Dsv3BackendOptions options = {.weights = args->options.weights,
								  .kv = args->options.kv,
								  .threads = args->options.threads,
								  .isa = args->options.isa};
	Run run = {.args = args, .backend = dsv3_backend_open(args->model, &options, err)};
	int most = 1;
	bool ok = false;

	if (!run.backend)
		return false;
	for (int s = 0; s < args->n_sizes; s++)
		most = args->sizes[s] > most ? args->sizes[s] : most;
	/* a prompt may be some tokens longer than asked for */
	run.output = (run.backend->info.max_positions - args->prompt) / 2;
	run.output = run.output < OUTPUT ? run.output : OUTPUT;
	if (run.output < OUTPUT_MIN)
		dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "prompts of %d tokens leave no room in %d positions",
				   args->prompt, run.backend->info.max_positions);
	else
	{
		Dsv3SchedulerOptions scheduling = {.kv_blocks =
											   (most + 1) * ((args->prompt + run.output) / DSV3_KV_BLOCK + 3),
										   .max_requests = 2 * most,
										   .max_batch = most,
										   .emit = on_event,
										   .arg = &run};

		run.scheduler = dsv3_scheduler_open(run.backend, &scheduling, err);
		ok = run.scheduler && measure(&run, err);
		if (run.scheduler)
			dsv3_scheduler_close(run.scheduler);
	}
	dsv3_backend_close(run.backend);
	return ok;
}
