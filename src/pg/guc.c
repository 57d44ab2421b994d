/*
 * guc.c
 *	  All settings, in one table of calls sorted by context and name.
 *
 * Settings of context "postmaster" exist only when the library is preloaded: PostgreSQL refuses to define them later,
 * and without preload nothing reads them. None of them has a check that could fail, because a wrong value must not
 * keep the server from starting: the supervisor meets it, reports it, and dsv3_health() shows it. Paths and programs
 * are settings of the server only, and hidden from those who are not superusers.
 */
#include "postgres.h"

#include "pg/compat.h"

#include <limits.h>

#include "pg/guc.h"

#define WATCHDOG_MIN_MS 1000

char *dsv3_guc_model_path;
char *dsv3_guc_engine_path;
int dsv3_guc_device;
int dsv3_guc_weights;
int dsv3_guc_speculative;
int dsv3_guc_draft_input;
int dsv3_guc_threads;
int dsv3_guc_queue_size = 256;
int dsv3_guc_shared_memory = 64;
int dsv3_guc_kv_cache_size;
char *dsv3_guc_kv_cache_dir;
int dsv3_guc_kv_cache_disk_size = 4096;
int dsv3_guc_kv_cache_type;

int dsv3_guc_engine_restart_delay = 1000;
int dsv3_guc_engine_restart_delay_max = 300000;
int dsv3_guc_engine_start_limit = 900;
int dsv3_guc_engine_watchdog = 30000;
int dsv3_guc_engine_oom_score_adj = 500;
int dsv3_guc_request_retries = 3;
int dsv3_guc_max_job_workers = 2;

int dsv3_guc_max_calls_per_query;
int dsv3_guc_audit = DSV3_AUDIT_LEVEL_DIGEST;
int dsv3_guc_audit_hash = DSV3_AUDIT_HASH_SHA256;
char *dsv3_guc_audit_key_file;
bool dsv3_guc_audit_sync = true;
int dsv3_guc_max_input_bytes = 16 * 1024 * 1024;
int dsv3_guc_max_output_tokens = 4096;
int dsv3_guc_max_tokens_per_query;
int dsv3_guc_role_max_requests;
int dsv3_guc_role_priority = DSV3_PRIORITY_INTERACTIVE;
int dsv3_guc_role_tokens_per_day;
int dsv3_guc_role_tokens_per_minute;

int dsv3_guc_batch_window = 64;
bool dsv3_guc_batching = true;
bool dsv3_guc_dedup = true;
int dsv3_guc_max_tokens = 512;
int dsv3_guc_on_error = DSV3_ON_ERROR_ERROR;
int dsv3_guc_priority = DSV3_PRIORITY_INTERACTIVE;
int dsv3_guc_seed;
int dsv3_guc_start_timeout = 60000;
double dsv3_guc_temperature;
int dsv3_guc_timeout;
char *dsv3_guc_traceparent;

static const struct config_enum_entry device_options[] = {
	{"auto", 0, false},
	{"cpu", 1, false},
	{"cuda", 2, false},
	{NULL, 0, false},
};

static const struct config_enum_entry weights_options[] = {
	{"stored", 0, false}, {"f32", 1, false},  {"bf16", 2, false},
	{"int8", 3, false},   {"int4", 4, false}, {NULL, 0, false},
};

static const struct config_enum_entry audit_options[] = {
	{"off", DSV3_AUDIT_LEVEL_OFF, false},
	{"digest", DSV3_AUDIT_LEVEL_DIGEST, false},
	{"full", DSV3_AUDIT_LEVEL_FULL, false},
	{NULL, 0, false},
};

static const struct config_enum_entry audit_hash_options[] = {
	{"sha256", DSV3_AUDIT_HASH_SHA256, false},
	{"hmac-sha256", DSV3_AUDIT_HASH_HMAC, false},
	{NULL, 0, false},
};

static const struct config_enum_entry kv_cache_type_options[] = {
	{"f32", 0, false},
	{"bf16", 1, false},
	{"int8", 2, false},
	{NULL, 0, false},
};

static const struct config_enum_entry speculative_options[] = {
	{"off", 0, false},
	{"auto", 1, false},
	{"on", 2, false},
	{NULL, 0, false},
};

static const struct config_enum_entry draft_input_options[] = {
	{"after-norm", 0, false},
	{"before-norm", 1, false},
	{NULL, 0, false},
};

static const struct config_enum_entry on_error_options[] = {
	{"error", DSV3_ON_ERROR_ERROR, false},
	{"null", DSV3_ON_ERROR_NULL, false},
	{NULL, 0, false},
};

static const struct config_enum_entry priority_options[] = {
	{"interactive", DSV3_PRIORITY_INTERACTIVE, false},
	{"batch", DSV3_PRIORITY_BATCH, false},
	{NULL, 0, false},
};

static const char *
enum_name(const struct config_enum_entry *options, int value)
{
	for (; options->name; options++)
	{
		if (options->val == value)
			return options->name;
	}
	return "";
}

const char *
dsv3_guc_device_name(void)
{
	return enum_name(device_options, dsv3_guc_device);
}

const char *
dsv3_guc_weights_name(void)
{
	return enum_name(weights_options, dsv3_guc_weights);
}

const char *
dsv3_guc_kv_cache_type_name(void)
{
	return enum_name(kv_cache_type_options, dsv3_guc_kv_cache_type);
}

const char *
dsv3_guc_speculative_name(void)
{
	return enum_name(speculative_options, dsv3_guc_speculative);
}

const char *
dsv3_guc_draft_input_name(void)
{
	return enum_name(draft_input_options, dsv3_guc_draft_input);
}

bool
dsv3_is_traceparent(const char *text)
{
	static const char pattern[] = "00-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";

	if (strlen(text) != sizeof(pattern) - 1)
		return false;
	for (size_t i = 0; i < sizeof(pattern) - 1; i++)
	{
		bool hex = (text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f');

		if (pattern[i] == 'x' ? !hex : text[i] != pattern[i])
			return false;
	}
	return true;
}

static bool
check_traceparent(char **newval, void **extra, GucSource source)
{
	if (**newval == '\0' || dsv3_is_traceparent(*newval))
		return true;
	GUC_check_errdetail("A W3C traceparent has the form \"00-<32 hex digits>-<16 hex digits>-<2 hex "
						"digits>\", in lower case.");
	return false;
}

/* A healthy engine may be silent for as long as one step of the model takes. */
static bool
check_watchdog(int *newval, void **extra, GucSource source)
{
	if (*newval == 0 || *newval >= WATCHDOG_MIN_MS)
		return true;
	GUC_check_errdetail("It must be 0, which switches the watchdog off, or at least %d ms.", WATCHDOG_MIN_MS);
	return false;
}

/* Fixed when the server starts: sizes of shared memory, and what the engine is started with. */
static void
define_postmaster_settings(void)
{
	DefineCustomEnumVariable("dsv3.device", "Where the model runs.", NULL, &dsv3_guc_device, 0,
							 device_options, PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("dsv3.draft_input", "Where the draft layer takes the model's state from.",
							 "After the final norm, as published models are used, or before it.",
							 &dsv3_guc_draft_input, 0, draft_input_options, PGC_POSTMASTER, 0, NULL, NULL,
							 NULL);
	DefineCustomStringVariable("dsv3.engine_path", "The dsv3 executable.",
							   "Empty means the file \"dsv3\" beside the server's own programs.",
							   &dsv3_guc_engine_path, "", PGC_POSTMASTER, GUC_SUPERUSER_ONLY, NULL, NULL,
							   NULL);
	DefineCustomStringVariable("dsv3.kv_cache_dir", "A directory where the latent cache outlives the engine.",
							   "Empty keeps the cache in memory only.", &dsv3_guc_kv_cache_dir, "",
							   PGC_POSTMASTER, GUC_SUPERUSER_ONLY, NULL, NULL, NULL);
	DefineCustomIntVariable("dsv3.kv_cache_disk_size", "Longest file in dsv3.kv_cache_dir.", NULL,
							&dsv3_guc_kv_cache_disk_size, 4096, 1, INT_MAX, PGC_POSTMASTER, GUC_UNIT_MB, NULL,
							NULL, NULL);
	DefineCustomIntVariable("dsv3.kv_cache_size", "Memory for the latent cache of running requests.",
							"Zero lets the engine choose from the memory of the machine.",
							&dsv3_guc_kv_cache_size, 0, 0, INT_MAX, PGC_POSTMASTER, GUC_UNIT_MB, NULL, NULL,
							NULL);
	DefineCustomEnumVariable("dsv3.kv_cache_type", "The type in which rows of the latent cache are kept.",
							 "Fewer bits hold more tokens in the same memory and are read faster.",
							 &dsv3_guc_kv_cache_type, 0, kv_cache_type_options, PGC_POSTMASTER, 0, NULL, NULL,
							 NULL);
	DefineCustomStringVariable("dsv3.model_path", "The directory of the model, or a pack.",
							   "An absolute path to a Hugging Face checkpoint directory.",
							   &dsv3_guc_model_path, "", PGC_POSTMASTER, GUC_SUPERUSER_ONLY, NULL, NULL,
							   NULL);
	DefineCustomIntVariable("dsv3.queue_size", "Requests that may wait or run at one time.", NULL,
							&dsv3_guc_queue_size, 256, 1, 16384, PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomIntVariable(
		"dsv3.shared_memory", "Shared memory for the texts of waiting and running requests.", NULL,
		&dsv3_guc_shared_memory, 64, 1, 65536, PGC_POSTMASTER, GUC_UNIT_MB, NULL, NULL, NULL);
	DefineCustomEnumVariable("dsv3.speculative", "Lets the model's draft layer guess tokens ahead.",
							 "\"auto\" does where it pays. Answers do not depend on it.",
							 &dsv3_guc_speculative, 1, speculative_options, PGC_POSTMASTER, 0, NULL, NULL,
							 NULL);
	DefineCustomIntVariable("dsv3.threads", "Compute threads of the engine.",
							"Zero means one per processor core.", &dsv3_guc_threads, 0, 0, 4096,
							PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("dsv3.weights", "The type in which weights are held in memory.",
							 "\"stored\" keeps the type of the files.", &dsv3_guc_weights, 0, weights_options,
							 PGC_POSTMASTER, 0, NULL, NULL, NULL);
}

/* How the supervisor treats the engine; a reload is enough. */
static void
define_supervisor_settings(void)
{
	DefineCustomIntVariable(
		"dsv3.engine_oom_score_adj", "How readily the kernel kills the engine when memory runs out.",
		"Added to the process's out-of-memory score; applies from the next start of the engine.",
		&dsv3_guc_engine_oom_score_adj, 500, 0, 1000, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable(
		"dsv3.engine_restart_delay", "Wait before the engine is started again after it ended.",
		"Doubles with each further end, and falls back after a healthy minute.",
		&dsv3_guc_engine_restart_delay, 1000, 10, 3600000, PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable(
		"dsv3.engine_restart_delay_max", "Longest wait before the engine is started again.", NULL,
		&dsv3_guc_engine_restart_delay_max, 300000, 10, 86400000, PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable(
		"dsv3.engine_start_limit", "Longest time the engine may take to open the model.",
		"An engine that is not ready by then is killed and started again. Zero means no limit.",
		&dsv3_guc_engine_start_limit, 900, 0, 86400, PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("dsv3.engine_watchdog", "Silence after which a hung engine is killed.",
							"At least one second; zero switches the watchdog off.", &dsv3_guc_engine_watchdog,
							30000, 0, 86400000, PGC_SIGHUP, GUC_UNIT_MS, check_watchdog, NULL, NULL);
	DefineCustomIntVariable("dsv3.request_retries",
							"How often a request may see the engine end before it fails.",
							"Counts ends since the request last made progress.", &dsv3_guc_request_retries, 3,
							0, 100, PGC_SIGHUP, 0, NULL, NULL, NULL);
}

static void
define_audit_settings(void)
{
	DefineCustomEnumVariable("dsv3.audit", "What the audit log keeps of requests.",
							 "\"digest\" keeps hashes of the texts, \"full\" the texts too.", &dsv3_guc_audit,
							 DSV3_AUDIT_LEVEL_DIGEST, audit_options, PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("dsv3.audit_hash", "How the audit log hashes texts.",
							 "\"hmac-sha256\" takes the key in dsv3.audit_key_file.", &dsv3_guc_audit_hash,
							 DSV3_AUDIT_HASH_SHA256, audit_hash_options, PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("dsv3.audit_key_file", "The key of the audit log's hashes and checkpoints.",
							   NULL, &dsv3_guc_audit_key_file, "", PGC_SIGHUP, GUC_SUPERUSER_ONLY, NULL, NULL,
							   NULL);
	DefineCustomBoolVariable("dsv3.audit_sync",
							 "No answer is given before its row in the audit log is durable.", NULL,
							 &dsv3_guc_audit_sync, true, PGC_SUSET, 0, NULL, NULL, NULL);
}

static void
define_job_settings(void)
{
	DefineCustomIntVariable("dsv3.max_job_workers", "Jobs that may run at one time.",
							"Each takes one of max_worker_processes while it runs. Zero lets all jobs wait.",
							&dsv3_guc_max_job_workers, 2, 0, 64, PGC_SIGHUP, 0, NULL, NULL, NULL);
}

static void
define_guard_rails(void)
{
	DefineCustomIntVariable("dsv3.max_calls_per_query", "Most calls of the model that one query may make.",
							"Zero means no limit.", &dsv3_guc_max_calls_per_query, 0, 0, INT_MAX, PGC_SUSET,
							0, NULL, NULL, NULL);
	DefineCustomIntVariable("dsv3.max_input_bytes", "Longest input of one request.", NULL,
							&dsv3_guc_max_input_bytes, 16 * 1024 * 1024, 1, DSV3_MAX_INPUT_BYTES, PGC_SUSET,
							GUC_UNIT_BYTE, NULL, NULL, NULL);
	DefineCustomIntVariable("dsv3.max_output_tokens", "Highest max_tokens a request may ask for.", NULL,
							&dsv3_guc_max_output_tokens, 4096, 1, 1048576, PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("dsv3.max_tokens_per_query",
							"Tokens, of prompts and answers, after which a query may make no more calls.",
							"Zero means no limit.", &dsv3_guc_max_tokens_per_query, 0, 0, INT_MAX, PGC_SUSET,
							0, NULL, NULL, NULL);
	DefineCustomIntVariable("dsv3.role_max_requests",
							"Requests that all sessions of a role may have under way.",
							"Zero means no limit. For ALTER ROLE.", &dsv3_guc_role_max_requests, 0, 0,
							INT_MAX, PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("dsv3.role_priority", "Best scheduling class of a role's requests.",
							 "\"batch\" makes all of them batch requests. For ALTER ROLE.",
							 &dsv3_guc_role_priority, DSV3_PRIORITY_INTERACTIVE, priority_options, PGC_SUSET,
							 0, NULL, NULL, NULL);
	DefineCustomIntVariable("dsv3.role_tokens_per_day",
							"Tokens, of prompts and answers, that all sessions of a role may use in a day.",
							"Zero means no limit. For ALTER ROLE.", &dsv3_guc_role_tokens_per_day, 0, 0,
							INT_MAX, PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable(
		"dsv3.role_tokens_per_minute",
		"Tokens, of prompts and answers, that all sessions of a role may use in a minute.",
		"Zero means no limit. For ALTER ROLE.", &dsv3_guc_role_tokens_per_minute, 0, 0, INT_MAX, PGC_SUSET, 0,
		NULL, NULL, NULL);
}

static void
define_user_settings(void)
{
	DefineCustomIntVariable("dsv3.batch_window", "Rows that a query may read ahead to call the model for.",
							"Each \"Dsv3 Apply\" node of a plan has so many.", &dsv3_guc_batch_window, 64, 1,
							DSV3_MAX_WINDOW, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("dsv3.batching", "Plans queries so that their calls of the model run together.",
							 "Off makes the plans that PostgreSQL makes by itself.", &dsv3_guc_batching, true,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("dsv3.dedup", "Calls of a query that ask the same share one request.",
							 "An answer depends on nothing but the request, so they would get the same.",
							 &dsv3_guc_dedup, true, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("dsv3.max_tokens", "Output tokens of a request that does not say.",
							"Capped by dsv3.max_output_tokens.", &dsv3_guc_max_tokens, 512, 1, 1048576,
							PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("dsv3.on_error", "What a failure that concerns one row does to the statement.",
							 "\"error\" raises it, \"null\" gives NULL for that row and counts it.",
							 &dsv3_guc_on_error, DSV3_ON_ERROR_ERROR, on_error_options, PGC_USERSET, 0, NULL,
							 NULL, NULL);
	DefineCustomEnumVariable("dsv3.priority", "Scheduling class of requests that do not say.", NULL,
							 &dsv3_guc_priority, DSV3_PRIORITY_INTERACTIVE, priority_options, PGC_USERSET, 0,
							 NULL, NULL, NULL);
	DefineCustomIntVariable("dsv3.seed", "Seed of sampling for requests that do not say.", NULL,
							&dsv3_guc_seed, 0, 0, INT_MAX, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("dsv3.start_timeout", "How long a request waits for an engine that is starting.",
							NULL, &dsv3_guc_start_timeout, 60000, 0, 86400000, PGC_USERSET, GUC_UNIT_MS, NULL,
							NULL, NULL);
	DefineCustomRealVariable("dsv3.temperature", "Sampling temperature of requests that do not say.",
							 "Zero takes the most likely token each time.", &dsv3_guc_temperature, 0.0, 0.0,
							 2.0, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("dsv3.timeout", "Longest time a request may take.", "Zero means no limit.",
							&dsv3_guc_timeout, 0, 0, INT_MAX, PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomStringVariable("dsv3.traceparent", "W3C trace context of the requests of this session.", NULL,
							   &dsv3_guc_traceparent, "", PGC_USERSET, 0, check_traceparent, NULL, NULL);
}

void
dsv3_define_settings(void)
{
	if (process_shared_preload_libraries_in_progress)
		define_postmaster_settings();
	define_supervisor_settings();
	define_audit_settings();
	define_job_settings();
	define_guard_rails();
	define_user_settings();

	/* Without preload the postmaster settings are placeholders; reserving the prefix would drop them with a warning. */
	if (process_shared_preload_libraries_in_progress)
		dsv3_reserve_guc_prefix("dsv3");
}
