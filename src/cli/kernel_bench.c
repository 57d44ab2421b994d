/*
 * kernel_bench.c
 *	  `dsv3 bench kernels`: operations per cycle of the matrix products by weight type and number of rows, and how near one row
 *	  comes to the memory's bandwidth.
 *
 * On a machine that others use the same code takes any time between one and two times its own. So every window of about
 * 100 microseconds has three probes before and after it whose speed is known: a chain of dependent additions (the clock), a
 * loop of vector multiplications and one of independent additions (a neighbour on the same core). A sample counts
 * when no probe was more than 5 % slower than the best it ever was, and the thread was not switched away. The best accepted
 * sample is reported, and the clock of its own window turns seconds into cycles.
 *
 * Weights come from a matrix much larger than the last-level cache, walked from end to end, so they are read from memory.
 * One operation is a multiplication or an addition: 2 * rows * columns * outputs.
 */
#include "cli/kernel_bench.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "cli/cli.h"
#include "cli/memory_read.h"
#include "cli/options.h"
#include "kernels/int8.h"
#include "kernels/ops.h"
#include "kernels/pool.h"
#include "kernels/quant.h"

#define MATRIX_BYTES ((size_t) 160 << 20)
#define WINDOW       1e-4 /* seconds */
#define TOLERANCE    1.05 /* of a probe */
#define WANTED       15   /* accepted samples */
#define MAX_ROWS     512
#define GEMV_WINDOW  0.05 /* seconds, with all threads */

static const struct
{
	const char *name;
	Dsv3Type type;
} types[] = {
	{"int4", DSV3_TYPE_A4}, {"int6", DSV3_TYPE_S6}, {"int8", DSV3_TYPE_INT8}, {"bf16", DSV3_TYPE_BF16}};

#define N_TYPES 4

static const int row_counts[] = {1, 2, 4, 8, 16, 32, 128, 512};

#define N_ROW_COUNTS 8

typedef struct Arguments
{
	int in;
	double seconds; /* at most for one number */
	const char *isa;
	const char *type;
	int threads;
	bool json;
} Arguments;

/* Seconds each probe takes; the least ever seen are in Bench.quiet. */
typedef struct Probes
{
	double clock, vector, front;
} Probes;

typedef struct Bench
{
	const Arguments *args;
	const Dsv3Ops *ops;
	Dsv3Weight weight;
	Dsv3Rows rows;
	uint8_t *memory;
	float *y;
	int next; /* output the next window begins at */
	Probes quiet;
} Bench;

static void
print_help(void)
{
	printf(
		"Measure the matrix products: operations per cycle of one core, and one row against the memory.\n\n"
		"Usage: dsv3 bench kernels [OPTIONS]\n\n"
		"  --type TYPE      int4, int6, int8 or bf16 (default: all)\n"
		"  --in N           columns of the matrix, a multiple of 16 (default 2048)\n"
		"  --seconds S      longest time for one number (default 1)\n"
		"  --threads N      threads of the comparison with memory (default: one per CPU)\n"
		"  --isa SET        ref, avx2 or avx512 (default: the best this CPU has)\n"
		"  --json           one JSON object instead of a table\n\n"
		"A number that was never measured undisturbed is shown as \"-\".\n\n"
		"Example: dsv3 bench kernels --type int4\n");
}

#define CHAIN_STEPS 8192

/* Seconds for CHAIN_STEPS additions that wait for each other: one cycle each. */
static double
probe_clock(void)
{
	double start = dsv3_cli_now();
	uint64_t x = 1;

	for (int i = 0; i < CHAIN_STEPS / 16; i++)
	{
#pragma GCC unroll 16
		for (int j = 0; j < 16; j++)
		{
			x += 1;
			__asm__ volatile("" : "+r"(x));
		}
	}
	return dsv3_cli_now() - start;
}

typedef uint16_t Words __attribute__((vector_size(16)));

static double
probe_vector(void)
{
	double start = dsv3_cli_now();
	Words sum[4] = {{1}, {2}, {3}, {4}};
	Words x = {3, 5, 7, 9, 11, 13, 15, 17};

	for (int i = 0; i < 3000; i++)
	{
#pragma GCC unroll 4
		for (int j = 0; j < 4; j++)
			sum[j] = sum[j] * x;
	}
	sum[0] += sum[1] + sum[2] + sum[3];
	__asm__ volatile("" : : "m"(sum[0]));
	return dsv3_cli_now() - start;
}

static double
probe_front(void)
{
	double start = dsv3_cli_now();
	uint64_t x[6] = {1, 2, 3, 4, 5, 6};

	for (int i = 0; i < 6000; i++)
	{
#pragma GCC unroll 6
		for (int j = 0; j < 6; j++)
		{
			x[j] += 3;
			__asm__ volatile("" : "+r"(x[j]));
		}
	}
	return dsv3_cli_now() - start;
}

static void
keep_least(double *least, double value)
{
	if (*least == 0 || value < *least)
		*least = value;
}

/* All probes; whether each was as fast as ever. *clock gets the seconds of the clock probe. */
static bool
probe(Bench *bench, double *clock)
{
	Probes now = {.clock = probe_clock(), .vector = probe_vector(), .front = probe_front()};

	keep_least(&bench->quiet.clock, now.clock);
	keep_least(&bench->quiet.vector, now.vector);
	keep_least(&bench->quiet.front, now.front);
	*clock = now.clock;
	return now.clock <= bench->quiet.clock * TOLERANCE && now.vector <= bench->quiet.vector * TOLERANCE &&
		   now.front <= bench->quiet.front * TOLERANCE;
}

static long
switches(void)
{
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_nvcsw + usage.ru_nivcsw;
}

/* One window: m rows by `outputs` outputs from where the last one ended. Returns the operations. */
static double
window(Bench *bench, int m, int outputs)
{
	if (bench->next + outputs > bench->weight.out)
		bench->next = 0;
	bench->ops->matmul(&bench->weight, &bench->rows, m, bench->next, bench->next + outputs, bench->y,
					   outputs);
	bench->next += outputs;
	return 2.0 * m * bench->weight.in * outputs;
}

/* The best operations per cycle of m rows, 0 when no sample was accepted. */
static double
measure(Bench *bench, int m, int *accepted)
{
	double give_up = dsv3_cli_now() + bench->args->seconds;
	double best = 0;
	int outputs = 16;

	/* as many outputs as fill a window */
	for (;;)
	{
		double start = dsv3_cli_now();

		window(bench, m, outputs);
		if (dsv3_cli_now() - start >= WINDOW || outputs * 2 > bench->weight.out || outputs >= 4096)
			break;
		outputs *= 2;
	}
	for (*accepted = 0; *accepted < WANTED && dsv3_cli_now() < give_up;)
	{
		double clock_before, clock_after, start, seconds, operations, rate;
		long switched = switches();
		bool quiet = probe(bench, &clock_before);

		start = dsv3_cli_now();
		operations = window(bench, m, outputs);
		seconds = dsv3_cli_now() - start;
		quiet = probe(bench, &clock_after) && quiet;
		if (!quiet || switches() != switched)
			continue;
		rate = operations / (seconds * 2 * CHAIN_STEPS / (clock_before + clock_after));
		best = rate > best ? rate : best;
		++*accepted;
	}
	return best;
}

/* Bytes of `outputs` outputs. */
static double
bytes_of(const Dsv3Weight *w, int outputs)
{
	if (dsv3_type_is_packed(w->type))
		return (double) dsv3_packed_bytes(w->type, outputs, w->in);
	return 2.0 * outputs * w->in;
}

#define SLICE 512 /* outputs */

static void
gemv_slice(void *arg, int64_t slice)
{
	Bench *bench = arg;
	int n = (int) ((bench->next + slice * SLICE) % (bench->weight.out / SLICE * SLICE));

	bench->ops->matmul(&bench->weight, &bench->rows, 1, n, n + SLICE, bench->y + slice * SLICE, SLICE);
}

/* Bytes per second of one row by all threads. */
static double
gemv_window(Bench *bench, Dsv3Pool *pool, double seconds)
{
	int slices = dsv3_pool_threads(pool) * 4;
	double start = dsv3_cli_now(), end, bytes = 0;

	dsv3_pool_begin(pool);
	do
	{
		dsv3_pool_run(pool, slices, gemv_slice, bench);
		bench->next = (bench->next + slices * SLICE) % bench->weight.out;
		bytes += bytes_of(&bench->weight, slices * SLICE);
		end = dsv3_cli_now();
	} while (end - start < seconds);
	dsv3_pool_end(pool);
	return bytes / (end - start);
}

static uint32_t random_state = 1;

static uint32_t
random_bits(void)
{
	random_state = random_state * 1664525u + 1013904223u;
	return random_state;
}

/* A large matrix of plausible numbers: 64 different panels' worth, repeated. */
static bool
make_matrix(Bench *bench, Dsv3Type type)
{
	enum
	{
		SAMPLE = 64 * 16
	};
	int in = bench->args->in;
	Dsv3Weight *w = &bench->weight;
	size_t sample_bytes;
	float *sample = malloc((size_t) SAMPLE * (size_t) in * sizeof(float));
	bool ok = sample != NULL;

	*w = (Dsv3Weight){.type = type, .in = in};
	sample_bytes = (size_t) bytes_of(w, SAMPLE);
	w->out = (int32_t) (MATRIX_BYTES / sample_bytes) * SAMPLE;
	for (size_t i = 0; ok && i < (size_t) SAMPLE * (size_t) in; i++)
		sample[i] = ((float) (random_bits() >> 16) + (float) (random_bits() >> 16)) / 65536.0f - 1.0f;
	if (ok && type == DSV3_TYPE_BF16)
		for (size_t i = 0; i < (size_t) SAMPLE * (size_t) in; i++)
			memcpy(bench->memory + 2 * i, (const uint8_t *) &sample[i] + 2, 2);
	else if (ok)
	{
		Dsv3Weight plain = {.type = DSV3_TYPE_F32, .out = SAMPLE, .in = in, .data = sample};

		ok = dsv3_pack_rows(type, &plain, 0, SAMPLE, NULL, bench->memory);
	}
	for (size_t at = sample_bytes; ok && at + sample_bytes <= MATRIX_BYTES; at += sample_bytes)
		memcpy(bench->memory + at, bench->memory, sample_bytes);
	w->data = bench->memory;
	bench->next = 0;
	free(sample);
	return ok;
}

/* MAX_ROWS input rows with every kind of codes. */
static bool
make_rows(Bench *bench)
{
	int in = bench->args->in;
	int64_t code_count = dsv3_int8_code_count(in), groups = dsv3_int8_groups(in),
			blocks = dsv3_code_blocks(in);
	float *x = malloc((size_t) MAX_ROWS * (size_t) in * sizeof(float));
	int16_t *codes = malloc((size_t) (MAX_ROWS * code_count) * sizeof(int16_t));
	float *scales = malloc((size_t) (MAX_ROWS * groups) * sizeof(float));
	Dsv3CodeBlock *code_blocks = malloc((size_t) (MAX_ROWS * blocks) * sizeof(Dsv3CodeBlock));

	bench->rows = (Dsv3Rows){.data = x,
							 .stride = in,
							 .codes = codes,
							 .code_scales = scales,
							 .code_stride = code_count,
							 .scale_stride = groups,
							 .blocks = code_blocks,
							 .block_stride = blocks};
	if (!x || !codes || !scales || !code_blocks)
		return false;
	for (int i = 0; i < MAX_ROWS; i++)
	{
		for (int k = 0; k < in; k++)
			x[(int64_t) i * in + k] = (float) (random_bits() >> 16) / 32768.0f - 1.0f;
		bench->ops->quantise(x + (int64_t) i * in, in, codes + i * code_count, scales + i * groups);
		bench->ops->quantise8(x + (int64_t) i * in, in, code_blocks + i * blocks);
	}
	return true;
}

static void
free_rows(Dsv3Rows *rows)
{
	free((void *) rows->data);
	free((void *) rows->codes);
	free((void *) rows->code_scales);
	free((void *) rows->blocks);
}

/* The rows of one type. */
static bool
bench_type(Bench *bench, int t)
{
	bool json = bench->args->json;

	if (!make_matrix(bench, types[t].type))
		return false;
	if (json)
		printf("%s\"%s\": {", t > 0 && !bench->args->type ? ", " : "", types[t].name);
	else
		printf("%-6s", types[t].name);
	for (int i = 0; i < N_ROW_COUNTS; i++)
	{
		int accepted;
		double rate = measure(bench, row_counts[i], &accepted);

		if (json)
			printf("%s\"%d\": %.1f", i > 0 ? ", " : "", row_counts[i], rate);
		else if (accepted > 0)
			printf(" %6.1f%s", rate, accepted < WANTED ? "*" : " ");
		else
			printf("      - ");
		fflush(stdout);
	}
	printf(json ? "}" : "\n");
	return true;
}

/* One row by all threads against plain reading, by turns. */
static bool
bench_memory(Bench *bench, int t, Dsv3MemoryRead *read, Dsv3Pool *pool)
{
	double seconds = bench->args->seconds < GEMV_WINDOW ? bench->args->seconds : GEMV_WINDOW;
	double best_share = 0, best_rate = 0, best_read = 0;

	if (!make_matrix(bench, types[t].type))
		return false;
	gemv_window(bench, pool, seconds);
	for (int i = 0; i < 9; i++)
	{
		double before = dsv3_memory_read_window(read, pool, seconds);
		double rate = gemv_window(bench, pool, seconds);
		double after = dsv3_memory_read_window(read, pool, seconds);

		/* a round in which reading itself was steady */
		if (before > after * 1.1 || after > before * 1.1)
			continue;
		if (rate > best_rate)
		{
			best_rate = rate;
			best_read = (before + after) / 2;
			best_share = rate / best_read;
		}
	}
	if (bench->args->json)
		printf(", \"%s_bytes_per_second\": %.0f, \"%s_read_bytes_per_second\": %.0f", types[t].name,
			   best_rate, types[t].name, best_read);
	else if (best_rate > 0)
		printf("%-6s %6.1f GB/s of %.1f GB/s: %.0f %%\n", types[t].name, best_rate / 1e9, best_read / 1e9,
			   best_share * 100);
	else
		printf("%-6s      -\n", types[t].name);
	return true;
}

static bool
run(Bench *bench, Dsv3MemoryRead *read, Dsv3Pool *pool)
{
	const Arguments *args = bench->args;
	double clock;

	for (int i = 0; i < 200; i++)
		probe(bench, &clock);
	if (args->json)
		printf("{\"isa\": \"%s\", \"in\": %d, \"clock\": %.0f, \"operations_per_cycle\": {", bench->ops->name,
			   args->in, CHAIN_STEPS / bench->quiet.clock);
	else
	{
		printf("instruction set %s, %d columns, clock %.2f GHz; operations per cycle of one core by rows:\n  "
			   "    ",
			   bench->ops->name, args->in, CHAIN_STEPS / bench->quiet.clock / 1e9);
		for (int i = 0; i < N_ROW_COUNTS; i++)
			printf(" %6d ", row_counts[i]);
		printf("\n");
	}
	for (int t = 0; t < N_TYPES; t++)
		if ((!args->type || strcmp(args->type, types[t].name) == 0) && !bench_type(bench, t))
			return false;
	if (args->json)
		printf("}, \"threads\": %d", dsv3_pool_threads(pool));
	else
		printf("one row with %d thread%s, against plain reading:\n", dsv3_pool_threads(pool),
			   dsv3_pool_threads(pool) == 1 ? "" : "s");
	for (int t = 0; t < N_TYPES; t++)
		if ((!args->type || strcmp(args->type, types[t].name) == 0) && !bench_memory(bench, t, read, pool))
			return false;
	if (args->json)
		printf("}\n");
	else
		printf("* fewer than %d undisturbed samples\n", WANTED);
	return true;
}

static int
bench_kernels(const Arguments *args)
{
	Bench bench = {.args = args};
	Dsv3MemoryRead read = {0};
	Dsv3Pool *pool = NULL;
	Dsv3Error err;
	bool ok = false;

	if ((bench.ops = dsv3_ops_find(args->isa, &err)) && (pool = dsv3_pool_open(args->threads, &err)))
	{
		bench.memory = aligned_alloc(4096, MATRIX_BYTES);
		bench.y = malloc((size_t) MAX_ROWS * 8192 * sizeof(float));
		ok = bench.memory && bench.y && make_rows(&bench) && dsv3_memory_read_open(&read) &&
			 run(&bench, &read, pool);
		if (!ok)
			dsv3_error(&err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for a benchmark");
	}
	free_rows(&bench.rows);
	free(bench.memory);
	free(bench.y);
	dsv3_memory_read_close(&read);
	dsv3_pool_close(pool);
	return ok ? 0 : dsv3_cli_fail(&err);
}

static bool
known_type(const char *name)
{
	for (int t = 0; t < N_TYPES; t++)
		if (strcmp(name, types[t].name) == 0)
			return true;
	return false;
}

int
dsv3_kernel_bench(int argc, char **argv)
{
	static const struct option longopts[] = {
		{"type", required_argument, NULL, 'y'},    {"in", required_argument, NULL, 'i'},
		{"seconds", required_argument, NULL, 'd'}, {"threads", required_argument, NULL, 't'},
		{"isa", required_argument, NULL, 's'},     {"json", no_argument, NULL, 'j'},
		{"help", no_argument, NULL, 'h'},          {NULL, 0, NULL, 0},
	};
	Arguments args = {.in = 2048, .seconds = 1};
	int64_t n;
	char *end;
	int c;

	optind = 1;
	while ((c = getopt_long(argc, argv, "", longopts, NULL)) != -1)
	{
		switch (c)
		{
			case 'y':
				if (!known_type(optarg))
					return dsv3_cli_usage("bench kernels", "unknown weight type \"%s\"", optarg);
				args.type = optarg;
				break;
			case 'i':
				if (!dsv3_cli_integer(optarg, 16, 16384, &n) || n % 16 != 0)
					return dsv3_cli_usage("bench kernels", "\"%s\" is not a valid number of columns", optarg);
				args.in = (int) n;
				break;
			case 'd':
				args.seconds = strtod(optarg, &end);
				if (end == optarg || *end != '\0' || !(args.seconds > 0 && args.seconds <= 60))
					return dsv3_cli_usage("bench kernels", "\"%s\" is not a valid number of seconds", optarg);
				break;
			case 't':
				if (!dsv3_cli_integer(optarg, 0, DSV3_POOL_MAX_THREADS, &n))
					return dsv3_cli_usage("bench kernels", "\"%s\" is not a valid number of threads", optarg);
				args.threads = (int) n;
				break;
			case 's':
				args.isa = optarg;
				break;
			case 'j':
				args.json = true;
				break;
			case 'h':
				print_help();
				return 0;
			default:
				fprintf(stderr, "Try 'dsv3 bench kernels --help'.\n");
				return 2;
		}
	}
	if (optind != argc)
		return dsv3_cli_usage("bench kernels", "too many arguments");
	return bench_kernels(&args);
}
