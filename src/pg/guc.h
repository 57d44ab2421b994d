/*
 * guc.h
 *	  The settings; guc.c defines them and docs/settings.md explains them. Read-only outside guc.c.
 */
#ifndef DSV3_GUC_H
#define DSV3_GUC_H

#include "postgres.h"

/* What a failure that concerns one row does to the statement. */
typedef enum Dsv3OnError
{
	DSV3_ON_ERROR_ERROR,
	DSV3_ON_ERROR_NULL,
	DSV3_ON_ERROR_TELL, /* no value of the setting: NULL, and dsv3_failure_hook is told */
} Dsv3OnError;

/* Highest dsv3.max_input_bytes: a frame less the tokens that a restart may have to repeat (4 MB at the highest
 * dsv3.max_output_tokens) and the fields around the texts. */
#define DSV3_MAX_INPUT_BYTES (58 * 1024 * 1024)

/* Highest dsv3.batch_window. */
#define DSV3_MAX_WINDOW 1024

typedef enum Dsv3AuditLevel
{
	DSV3_AUDIT_LEVEL_OFF,
	DSV3_AUDIT_LEVEL_DIGEST,
	DSV3_AUDIT_LEVEL_FULL,
} Dsv3AuditLevel;

typedef enum Dsv3AuditHash
{
	DSV3_AUDIT_HASH_SHA256,
	DSV3_AUDIT_HASH_HMAC,
} Dsv3AuditHash;

/* As on the wire (DSV3_FIELD_PRIORITY). */
typedef enum Dsv3Priority
{
	DSV3_PRIORITY_INTERACTIVE = 0,
	DSV3_PRIORITY_BATCH = 1,
} Dsv3Priority;

/* Fixed at server start. */
extern char *dsv3_guc_model_path;
extern char *dsv3_guc_engine_path;
extern int dsv3_guc_device;
extern int dsv3_guc_weights;
extern int dsv3_guc_speculative;
extern int dsv3_guc_draft_input;
extern int dsv3_guc_threads;
extern int dsv3_guc_queue_size;
extern int dsv3_guc_shared_memory; /* MB */
extern int dsv3_guc_kv_cache_size; /* MB; 0: chosen by the engine */
extern char *dsv3_guc_kv_cache_dir;
extern int dsv3_guc_kv_cache_disk_size; /* MB */
extern int dsv3_guc_kv_cache_type;

/* The supervisor's, changed by reload. */
extern int dsv3_guc_engine_restart_delay;     /* ms */
extern int dsv3_guc_engine_restart_delay_max; /* ms */
extern int dsv3_guc_engine_start_limit;       /* s; 0: none */
extern int dsv3_guc_engine_watchdog;          /* ms; 0: off */
extern int dsv3_guc_engine_oom_score_adj;
extern int dsv3_guc_request_retries;

/* The job launcher's, changed by reload. */
extern int dsv3_guc_max_job_workers;

/* The superuser's: the audit log and guard rails. */
extern int dsv3_guc_audit;
extern int dsv3_guc_audit_hash;
extern char *dsv3_guc_audit_key_file;
extern bool dsv3_guc_audit_sync;
extern int dsv3_guc_max_calls_per_query; /* 0: no limit, here and below */
extern int dsv3_guc_max_input_bytes;
extern int dsv3_guc_max_output_tokens;
extern int dsv3_guc_max_tokens_per_query;
extern int dsv3_guc_role_max_requests;
extern int dsv3_guc_role_priority;
extern int dsv3_guc_role_tokens_per_day;
extern int dsv3_guc_role_tokens_per_minute;

/* The user's. */
extern int dsv3_guc_batch_window;
extern bool dsv3_guc_batching;
extern bool dsv3_guc_dedup;
extern int dsv3_guc_max_tokens;
extern int dsv3_guc_on_error;
extern int dsv3_guc_priority;
extern int dsv3_guc_seed;
extern int dsv3_guc_start_timeout; /* ms */
extern double dsv3_guc_temperature;
extern int dsv3_guc_timeout; /* ms; 0: none */
extern char *dsv3_guc_traceparent;

/* What CONFIG carries for these settings. */
extern const char *dsv3_guc_device_name(void);
extern const char *dsv3_guc_weights_name(void);
extern const char *dsv3_guc_kv_cache_type_name(void);
extern const char *dsv3_guc_speculative_name(void);
extern const char *dsv3_guc_draft_input_name(void);

/* Is text a W3C traceparent ("00-<32 hex>-<16 hex>-<2 hex>")? */
extern bool dsv3_is_traceparent(const char *text);

extern void dsv3_define_settings(void);

#endif /* DSV3_GUC_H */
