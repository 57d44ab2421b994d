/*
 * cmd_generate.c
 *	  `dsv3 generate MODEL --prompt TEXT`: one answer, on the scheduler that serves PostgreSQL, in this process.
 */
#include "cli/cli.h"
#include "cli/options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

#include "engine/backend.h"
#include "engine/process.h"
#include "engine/scheduler.h"

typedef struct Options
{
	const char *model;
	Dsv3Request *request;
	Dsv3BackendOptions backend;
	Dsv3SpeculationMode speculation;
	bool json;
	bool stream;
} Options;

/* What the events add up to. */
typedef struct Answer
{
	const Options *options;
	Dsv3Text text;
	Dsv3Tokens tokens;
	char *logprobs;
	Dsv3Finish finish;
	uint32_t prompt_tokens;
	uint32_t output_tokens;
	uint32_t drafted_tokens;
	uint32_t accepted_tokens;
	bool ended;
	bool failed;
	Dsv3Error error;
} Answer;

static void
print_help(void)
{
	printf(
		"Usage: dsv3 generate MODEL (--prompt TEXT | --prompt-file FILE) [OPTIONS]\n\n"
		"Answers one prompt with the model and prints the answer as it comes.\n\n"
		"  --prompt TEXT            the prompt\n"
		"  --prompt-file FILE       the prompt is the content of FILE, - for standard input\n"
		"  --input TEXT             data the prompt is about; follows it after an empty line\n"
		"  --system TEXT            system message\n"
		"  --raw                    no chat template: continue the text\n"
		"  --think auto|off|on|N    thinking of models that can; N: on, at most N tokens\n"
		"  --max-tokens N           at most N tokens (default: until the context is full)\n"
		"  --temperature T          0 takes the likeliest token (default)\n"
		"  --top-p P  --top-k K  --min-p P  --repetition-penalty P\n"
		"  --seed S                 the same seed gives the same answer (default 0)\n"
		"  --stop TEXT              end before TEXT; may be given up to %d times\n"
		"  --schema FILE            the answer is JSON valid for the JSON Schema in FILE\n"
		"  --choices JSON           the answer is one of the strings of a JSON array\n"
		"  --regex PATTERN          the answer matches PATTERN as a whole\n"
		"  --grammar FILE           the answer follows the EBNF grammar in FILE\n"
		"  --logprobs N             with --json: log-probabilities and N alternatives a token\n"
		"  --weights MODE           stored (default), f32, bf16, int8 or int4\n"
		"  --kv-cache TYPE          f32 (default), bf16 or int8: rows of the latent cache\n"
		"  --speculative MODE       drafts of a model with a draft layer: off (default), auto or on\n"
		"  --threads N              compute threads (default: one per CPU)\n"
		"  --isa SET                ref, avx2 or avx512 (default: the best of this CPU)\n"
		"  --json                   print an object with text, finish_reason, token counts, ids and seconds\n"
		"  --stream                 with --json: also an object for each piece as it comes, one a line\n",
		DSV3_MAX_STOPS);
}

/* -- arguments -- */

static bool
parse_number(const char *text, double *value)
{
	char *end;

	*value = strtod(text, &end);
	return *text && *end == '\0' && isfinite(*value);
}

static bool
parse_count(const char *text, uint32_t *value)
{
	char *end;
	unsigned long n;

	errno = 0;
	n = strtoul(text, &end, 10);
	*value = (uint32_t) n;
	return *text >= '0' && *text <= '9' && *end == '\0' && errno == 0 && n <= UINT32_MAX;
}

static bool
set_text(Dsv3Bytes *bytes, const char *text, Dsv3Error *err)
{
	free(bytes->data);
	return dsv3_bytes_set(bytes, text, strlen(text), err);
}

static bool
read_file(const char *path, Dsv3Bytes *bytes, Dsv3Error *err)
{
	int64_t length;
	char *text = dsv3_cli_read_file(path, DSV3_FRAME_MAX_BODY, &length, err);

	if (text == NULL)
		return false;
	free(bytes->data);
	*bytes = (Dsv3Bytes){text, (size_t) length};
	return true;
}

/* --schema, --choices, --regex, --grammar: their letters in the order of Dsv3GrammarKind. */
static const char grammar_options[] = "JCXG";

static bool
set_grammar(Dsv3Request *request, int option, const char *value, Dsv3Error *err)
{
	request->grammar_kind = (uint32_t) (strchr(grammar_options, option) - grammar_options);
	if (option == 'J' || option == 'G')
		return read_file(value, &request->grammar, err);
	return set_text(&request->grammar, value, err);
}

static bool
set_think(Dsv3Request *request, const char *text)
{
	static const char *const names[] = {"auto", "off", "on"};

	for (int i = 0; i < 3; i++)
	{
		if (strcmp(text, names[i]) == 0)
		{
			request->think = (Dsv3Think) i;
			return true;
		}
	}
	request->think = DSV3_THINK_ON;
	request->has_think_budget = true;
	return parse_count(text, &request->think_budget);
}

/* One option; false: *wrong says why (NULL: *err does). */
static bool
set_option(Options *options, int option, const char *value, const char **wrong, Dsv3Error *err)
{
	Dsv3Request *request = options->request;
	char *end;

	*wrong = NULL;
	switch (option)
	{
		case 'p':
			return set_text(&request->prompt, value, err);
		case 'f':
			return read_file(value, &request->prompt, err);
		case 'i':
			return set_text(&request->input, value, err);
		case 's':
			return set_text(&request->system, value, err);
		case 'S':
			if (request->n_stops == DSV3_MAX_STOPS)
				*wrong = "--stop was given too often";
			else
				return set_text(&request->stops[request->n_stops++], value, err);
			return false;
		case 'J':
		case 'C':
		case 'X':
		case 'G':
			return set_grammar(request, option, value, err);
		case 'r':
			request->raw = true;
			return true;
		case 'h':
			*wrong = "--think must be auto, off, on or a number of tokens";
			return set_think(request, value);
		case 'n':
			request->has_max_tokens = true;
			*wrong = "--max-tokens must be a number";
			return parse_count(value, &request->max_tokens);
		case 'L':
			request->has_logprobs = true;
			*wrong = "--logprobs must be a number";
			return parse_count(value, &request->logprobs);
		case 'k':
			*wrong = "--top-k must be a number";
			return parse_count(value, &request->sampling.top_k);
		case 'd':
			*wrong = "--seed must be a whole number of 64 bits";
			errno = 0;
			request->sampling.seed = (int64_t) strtoll(value, &end, 10);
			return *value && *end == '\0' && errno == 0;
		case 't':
		case 'P':
		case 'm':
		case 'R':
			*wrong = "--temperature, --top-p, --min-p and --repetition-penalty must be numbers";
			return parse_number(value, option == 't'   ? &request->sampling.temperature
									   : option == 'P' ? &request->sampling.top_p
									   : option == 'm' ? &request->sampling.min_p
													   : &request->sampling.repetition_penalty);
		case 'v':
			return dsv3_backend_kv(value, &options->backend.kv, err);
		case 'w':
			return dsv3_backend_weights(value, &options->backend.weights, err);
		case 'D':
			*wrong = "--speculative must be off, auto or on";
			options->backend.drafts = strcmp(value, "off") != 0;
			return dsv3_speculation_mode(value, &options->speculation);
		case 'T':
			*wrong = "--threads must be a number";
			return parse_count(value, (uint32_t *) &options->backend.threads);
		case 'a':
			options->backend.isa = value;
			return true;
		case 'j':
			options->json = true;
			return true;
		case 'x':
			options->stream = true;
			return true;
		default:
			*wrong = "unknown option, or its value is missing";
			return false;
	}
}

/* 0 to go on, else the exit status plus one. */
static int
parse_arguments(int argc, char **argv, Options *options)
{
	static const struct option names[] = {{"prompt", required_argument, NULL, 'p'},
										  {"prompt-file", required_argument, NULL, 'f'},
										  {"input", required_argument, NULL, 'i'},
										  {"system", required_argument, NULL, 's'},
										  {"raw", no_argument, NULL, 'r'},
										  {"think", required_argument, NULL, 'h'},
										  {"max-tokens", required_argument, NULL, 'n'},
										  {"temperature", required_argument, NULL, 't'},
										  {"top-p", required_argument, NULL, 'P'},
										  {"top-k", required_argument, NULL, 'k'},
										  {"min-p", required_argument, NULL, 'm'},
										  {"repetition-penalty", required_argument, NULL, 'R'},
										  {"seed", required_argument, NULL, 'd'},
										  {"stop", required_argument, NULL, 'S'},
										  {"schema", required_argument, NULL, 'J'},
										  {"choices", required_argument, NULL, 'C'},
										  {"regex", required_argument, NULL, 'X'},
										  {"grammar", required_argument, NULL, 'G'},
										  {"logprobs", required_argument, NULL, 'L'},
										  {"kv-cache", required_argument, NULL, 'v'},
										  {"weights", required_argument, NULL, 'w'},
										  {"speculative", required_argument, NULL, 'D'},
										  {"threads", required_argument, NULL, 'T'},
										  {"isa", required_argument, NULL, 'a'},
										  {"json", no_argument, NULL, 'j'},
										  {"stream", no_argument, NULL, 'x'},
										  {"help", no_argument, NULL, 'H'},
										  {NULL, 0, NULL, 0}};
	const char *wrong;
	Dsv3Error err;
	int option;

	opterr = 0;
	while ((option = getopt_long(argc, argv, "", names, NULL)) != -1)
	{
		if (option == 'H')
		{
			print_help();
			return 1;
		}
		if (!set_option(options, option, optarg, &wrong, &err))
			return 1 + (wrong ? dsv3_cli_usage("generate", "%s", wrong) : dsv3_cli_fail(&err));
	}
	if (optind + 1 != argc)
		return 1 + dsv3_cli_usage("generate", "exactly one model is needed");
	options->model = argv[optind];
	if (options->request->prompt.data == NULL)
		return 1 + dsv3_cli_usage("generate", "--prompt or --prompt-file is needed");
	if (!dsv3_request_check(options->request, &err))
		return 1 + dsv3_cli_usage("generate", "%s", err.message);
	return 0;
}

/* -- answering -- */

static void
on_event(void *arg, const Dsv3Event *event)
{
	Answer *answer = arg;

	if (event->type == DSV3_FRAME_FAIL)
	{
		answer->ended = answer->failed = true;
		answer->error = *event->error;
		return;
	}
	for (size_t i = 0; i < event->n_tokens && !answer->failed; i++)
		answer->failed = !dsv3_tokens_push(&answer->tokens, event->tokens[i], &answer->error);
	if (event->text_len > 0 && !answer->failed)
		answer->failed = !dsv3_text_append(&answer->text, event->text, event->text_len, &answer->error);
	if (event->text_len > 0 && !answer->options->json)
	{
		fwrite(event->text, 1, event->text_len, stdout);
		fflush(stdout);
	}
	if (event->text_len > 0 && answer->options->json && answer->options->stream)
	{
		json_t *piece = json_pack("{s:s%}", "delta", event->text, event->text_len);

		json_dumpf(piece, stdout, JSON_COMPACT);
		json_decref(piece);
		printf("\n");
		fflush(stdout);
	}
	if (event->type != DSV3_FRAME_DONE)
		return;
	answer->ended = true;
	answer->finish = event->finish;
	answer->prompt_tokens = event->prompt_tokens;
	answer->output_tokens = event->output_tokens;
	answer->drafted_tokens = event->drafted_tokens;
	answer->accepted_tokens = event->accepted_tokens;
	answer->logprobs = event->logprobs_json ? strdup(event->logprobs_json) : NULL;
}

static void
print_json(const Answer *answer, double seconds)
{
	static const char *const reasons[] = {"", "stop", "length", "tool_calls"};
	json_t *ids = json_array();
	json_t *object;

	for (size_t i = 0; i < answer->tokens.count; i++)
		json_array_append_new(ids, json_integer(answer->tokens.ids[i]));
	object = json_pack("{s:s%, s:s, s:i, s:i, s:o, s:f}", "text", answer->text.data ? answer->text.data : "",
					   answer->text.len, "finish_reason", reasons[answer->finish], "prompt_tokens",
					   (int) answer->prompt_tokens, "output_tokens", (int) answer->output_tokens, "tokens",
					   ids, "seconds", seconds);
	if (answer->options->speculation != DSV3_SPECULATION_OFF)
	{
		json_object_set_new(object, "drafted_tokens", json_integer(answer->drafted_tokens));
		json_object_set_new(object, "accepted_tokens", json_integer(answer->accepted_tokens));
	}
	if (answer->logprobs)
		json_object_set_new(object, "logprobs", json_loads(answer->logprobs, 0, NULL));
	json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(17));
	json_decref(object);
	printf("\n");
}

static double
seconds_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double) ts.tv_sec + (double) ts.tv_nsec * 1e-9;
}

/* Takes the request over. */
static bool
run_request(Dsv3Backend *backend, Dsv3Request *request, Answer *answer)
{
	Dsv3SchedulerOptions scheduling = {
		.max_requests = 1, .speculation = answer->options->speculation, .emit = on_event, .arg = answer};
	Dsv3Scheduler *scheduler;
	bool ok;

	scheduling.kv_blocks = dsv3_engine_kv_blocks(backend, 0, 1, &answer->error);
	scheduler = scheduling.kv_blocks > 0 ? dsv3_scheduler_open(backend, &scheduling, &answer->error) : NULL;
	if (scheduler == NULL)
	{
		dsv3_request_free(request);
		return false;
	}
	ok = dsv3_scheduler_submit(scheduler, request, &answer->error);
	while (ok && !answer->ended)
		(void) dsv3_scheduler_step(scheduler);
	dsv3_scheduler_close(scheduler);
	return ok && !answer->failed;
}

int
dsv3_cmd_generate(int argc, char **argv)
{
	Options options = {.request = dsv3_request_new(1, DSV3_REQUEST_GENERATE)};
	Answer answer = {.options = &options};
	Dsv3Backend *backend;
	double start;
	int status;

	if (options.request == NULL)
	{
		dsv3_error(&answer.error, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
		return dsv3_cli_fail(&answer.error);
	}
	options.request->stream = true;
	status = parse_arguments(argc, argv, &options);
	if (status != 0)
	{
		dsv3_request_free(options.request);
		return status - 1;
	}
	backend = dsv3_backend_open(options.model, &options.backend, &answer.error);
	if (backend == NULL)
	{
		dsv3_request_free(options.request);
		return dsv3_cli_fail(&answer.error);
	}
	start = seconds_now();
	if (!run_request(backend, options.request, &answer))
		status = dsv3_cli_fail(&answer.error);
	else if (options.json)
		print_json(&answer, seconds_now() - start);
	else
		printf("\n");
	dsv3_text_free(&answer.text);
	dsv3_tokens_free(&answer.tokens);
	free(answer.logprobs);
	dsv3_backend_close(backend);
	return status;
}
