/*
 * stat.c
 *	  Counting, and keeping what was counted; see stat.h.
 *
 * A role has a place in the table from its first request on, for good: a slot remembers the place, so a request's end finds it
 * without a search, and a reset sets numbers to zero but moves nobody.
 *
 * The engine counts the tokens of its experts from its start on. The supervisor remembers what it was told last and adds the
 * difference, so the sums go on when the engine is another one. When the model is another one they begin again: an expert's number means
 * nothing there.
 *
 * The file is written by the postmaster when it ends without a crash, and removed when it has been read, so that numbers are never counted
 * twice. It has a checksum and says of itself how it is laid out; a file that is not exactly as expected is left out with a log line.
 */
#include "postgres.h"

#include "pg/compat.h"

#include <unistd.h>

#include "common/hashfn.h"
#include "port/pg_crc32c.h"
#include "storage/fd.h"
#include "utils/timestamp.h"

#include "pg/guard.h"
#include "pg/stat.h"

#define STAT_FILE  "pg_stat/dsv3.stat"
#define STAT_TEMP  STAT_FILE ".tmp"
#define STAT_MAGIC 0x53335644 /* "DV3S" */

/* What must agree for a file to be read. */
typedef struct FileHeader
{
	uint32 magic;
	uint32 stats_size;
	uint32 n_latency_classes;
	uint32 n_experts; /* counters behind the statistics */
	pg_crc32c crc;    /* of all behind this header */
} FileHeader;

Dsv3Stats *dsv3_stats;
pg_atomic_uint64 *dsv3_expert_stats;

/* The supervisor's: what the engine has told last. */
static uint64 *told;
static size_t n_told;

/* ---- keeping ---- */

static size_t
expert_count(const Dsv3Stats *stats)
{
	return (size_t) stats->n_layers * stats->n_experts;
}

static void
append(StringInfo data, const void *from, size_t len)
{
	enlargeStringInfo(data, (int) len);
	appendBinaryStringInfo(data, from, (int) len);
}

/* The contents of the file. */
static void
pack(StringInfo data)
{
	FileHeader header = {.magic = STAT_MAGIC,
						 .stats_size = sizeof(Dsv3Stats),
						 .n_latency_classes = DSV3_LATENCY_CLASSES,
						 .n_experts = (uint32) expert_count(dsv3_stats)};

	append(data, &header, sizeof(header));
	append(data, dsv3_stats, sizeof(*dsv3_stats));
	for (uint32 i = 0; i < header.n_experts; i++)
	{
		uint64 tokens = pg_atomic_read_u64(&dsv3_expert_stats[i]);

		append(data, &tokens, sizeof(tokens));
	}
	INIT_CRC32C(header.crc);
	COMP_CRC32C(header.crc, data->data + sizeof(header), data->len - (int) sizeof(header));
	FIN_CRC32C(header.crc);
	memcpy(data->data, &header, sizeof(header));
}

/* Take over what the file holds; false: it is not one of ours, whole. */
static bool
unpack(const char *data, size_t len)
{
	FileHeader header;
	Dsv3Stats stats;
	pg_crc32c crc;

	if (len < sizeof(header) + sizeof(stats))
		return false;
	memcpy(&header, data, sizeof(header));
	if (header.magic != STAT_MAGIC || header.stats_size != sizeof(stats) ||
		header.n_latency_classes != DSV3_LATENCY_CLASSES || header.n_experts > DSV3_MAX_STAT_EXPERTS ||
		len != sizeof(header) + sizeof(stats) + header.n_experts * sizeof(uint64))
		return false;
	INIT_CRC32C(crc);
	COMP_CRC32C(crc, data + sizeof(header), len - sizeof(header));
	FIN_CRC32C(crc);
	if (!EQ_CRC32C(crc, header.crc))
		return false;
	data += sizeof(header);
	memcpy(&stats, data, sizeof(stats));
	data += sizeof(stats);
	if (expert_count(&stats) != header.n_experts || stats.n_roles < 0 || stats.n_roles > DSV3_MAX_STAT_ROLES)
		return false;
	*dsv3_stats = stats;
	for (uint32 i = 0; i < header.n_experts; i++)
	{
		uint64 tokens;

		memcpy(&tokens, data + i * sizeof(tokens), sizeof(tokens));
		pg_atomic_write_u64(&dsv3_expert_stats[i], tokens);
	}
	return true;
}

static void
write_file(int code, Datum arg)
{
	StringInfoData data;
	FILE *file;
	bool ok;

	/* Shared memory is not to be trusted after a crash. */
	if (code != 0 || dsv3_stats == NULL)
		return;
	initStringInfo(&data);
	pack(&data);
	file = AllocateFile(STAT_TEMP, PG_BINARY_W);
	ok = file && fwrite(data.data, (size_t) data.len, 1, file) == 1;
	if (file && FreeFile(file) != 0)
		ok = false;
	if (ok)
		(void) durable_rename(STAT_TEMP, STAT_FILE, LOG);
	else
	{
		ereport(LOG, (errcode_for_file_access(), errmsg("could not write file \"%s\": %m", STAT_TEMP)));
		unlink(STAT_TEMP);
	}
	pfree(data.data);
}

static void
read_file(void)
{
	size_t most = sizeof(FileHeader) + sizeof(Dsv3Stats) + DSV3_MAX_STAT_EXPERTS * sizeof(uint64) + 1;
	FILE *file = AllocateFile(STAT_FILE, PG_BINARY_R);
	char *data;
	size_t len;

	if (file == NULL)
	{
		if (errno != ENOENT)
			ereport(LOG, (errcode_for_file_access(), errmsg("could not read file \"%s\": %m", STAT_FILE)));
		return;
	}
	data = palloc(most);
	len = fread(data, 1, most, file);
	FreeFile(file);
	if (!unpack(data, len))
		ereport(LOG,
				(errmsg("ignoring file \"%s\": it is damaged or of another version of dsv3", STAT_FILE)));
	pfree(data);
	unlink(STAT_FILE);
}

Size
dsv3_stat_size(void)
{
	return add_size(MAXALIGN(sizeof(Dsv3Stats)), mul_size(DSV3_MAX_STAT_EXPERTS, sizeof(pg_atomic_uint64)));
}

void
dsv3_stat_attach(char *block, bool found)
{
	dsv3_stats = (Dsv3Stats *) block;
	dsv3_expert_stats = (pg_atomic_uint64 *) (block + MAXALIGN(sizeof(Dsv3Stats)));
	if (!IsUnderPostmaster)
		on_shmem_exit(write_file, (Datum) 0);
	if (found)
		return;
	memset(dsv3_stats, 0, sizeof(*dsv3_stats));
	dsv3_stats->since = GetCurrentTimestamp();
	for (int i = 0; i < DSV3_MAX_STAT_EXPERTS; i++)
		pg_atomic_init_u64(&dsv3_expert_stats[i], 0);
	read_file();
}

TimestampTz
dsv3_stat_zero(void)
{
	TimestampTz now = GetCurrentTimestamp();

	LWLockAcquire(dsv3_lock, LW_EXCLUSIVE);
	dsv3_stats->since = now;
	memset(&dsv3_stats->counters, 0, sizeof(dsv3_stats->counters));
	dsv3_stats->refused = 0;
	memset(dsv3_stats->finished, 0, sizeof(dsv3_stats->finished));
	memset(dsv3_stats->latencies, 0, sizeof(dsv3_stats->latencies));
	memset(dsv3_stats->failures, 0, sizeof(dsv3_stats->failures));
	memset(dsv3_stats->roles, 0, sizeof(dsv3_stats->roles));
	for (int i = 0; i < DSV3_MAX_STAT_EXPERTS; i++)
		pg_atomic_write_u64(&dsv3_expert_stats[i], 0);
	LWLockRelease(dsv3_lock);
	return now;
}

/* ---- requests ---- */

/* The place of a role, made if it is not there. */
static int
place_of(Oid role)
{
	for (int i = 0; i < dsv3_stats->n_roles; i++)
	{
		if (dsv3_stats->role_ids[i] == role)
			return i;
	}
	if (dsv3_stats->n_roles == DSV3_MAX_STAT_ROLES)
		return DSV3_MAX_STAT_ROLES - 1;
	/* The last place stays without a role of its own. */
	dsv3_stats->role_ids[dsv3_stats->n_roles] =
		dsv3_stats->n_roles == DSV3_MAX_STAT_ROLES - 1 ? InvalidOid : role;
	return dsv3_stats->n_roles++;
}

static void
count_failure(const char *sqlstate)
{
	int i = 0;

	while (i < DSV3_MAX_STAT_FAILURES - 1 && dsv3_stats->failures[i].sqlstate[0] != '\0' &&
		   strcmp(dsv3_stats->failures[i].sqlstate, sqlstate) != 0)
		i++;
	if (dsv3_stats->failures[i].sqlstate[0] == '\0')
		strlcpy(dsv3_stats->failures[i].sqlstate, i < DSV3_MAX_STAT_FAILURES - 1 ? sqlstate : "other",
				sizeof(dsv3_stats->failures[i].sqlstate));
	dsv3_stats->failures[i].n++;
}

static void
observe(Dsv3Latency latency, uint64 us)
{
	dsv3_stats->latencies[latency].classes[dsv3_latency_class(us)]++;
	dsv3_stats->latencies[latency].sum_us += us;
}

void
dsv3_stat_begin(Dsv3Slot *slot)
{
	Dsv3RoleStats *role;

	slot->stat_place = place_of(slot->role);
	role = &dsv3_stats->roles[slot->stat_place];
	role->requests++;
	role->last_at = slot->submitted_at;
	dsv3_stats->counters.requests++;
}

void
dsv3_stat_done(const Dsv3Slot *slot)
{
	const Dsv3Counts *counts = &slot->counts;
	Dsv3Counters *sums = &dsv3_stats->counters;
	Dsv3RoleStats *role = &dsv3_stats->roles[slot->stat_place];
	uint64 computing = counts->prefill_us + counts->decode_us;
	Dsv3Histogram *gaps = &dsv3_stats->latencies[DSV3_LATENCY_TOKEN];

	sums->completed++;
	sums->prompt_tokens += counts->prompt_tokens;
	sums->cached_tokens += counts->cached_tokens;
	sums->output_tokens += counts->output_tokens;
	role->completed++;
	role->prompt_tokens += counts->prompt_tokens;
	role->cached_tokens += counts->cached_tokens;
	role->output_tokens += counts->output_tokens;
	role->queue_us += counts->queue_us;
	role->compute_us += computing;
	dsv3_stats->finished[counts->finish < DSV3_N_FINISHES ? counts->finish : 0]++;

	/* Requests that the engine answers without the model would make its times look better than they are. */
	if (!dsv3_runs_model(slot->kind))
		return;
	observe(DSV3_LATENCY_REQUEST, counts->queue_us + computing);
	observe(DSV3_LATENCY_QUEUE, counts->queue_us);
	observe(DSV3_LATENCY_PREFILL, counts->prefill_us);
	if (counts->output_tokens == 0)
		return;
	observe(DSV3_LATENCY_DECODE, counts->decode_us);
	observe(DSV3_LATENCY_FIRST_TOKEN, counts->queue_us + counts->prefill_us);
	for (int i = 0; i < DSV3_LATENCY_CLASSES; i++)
		gaps->classes[i] += (uint64) counts->gaps[i];
	gaps->sum_us += counts->decode_us;
}

void
dsv3_stat_failed(const Dsv3Slot *slot, const Dsv3Error *err)
{
	dsv3_stats->counters.failed++;
	dsv3_stats->roles[slot->stat_place].failed++;
	count_failure(err->sqlstate);
}

void
dsv3_stat_cancelled(const Dsv3Slot *slot)
{
	dsv3_stats->counters.cancelled++;
	dsv3_stats->roles[slot->stat_place].cancelled++;
}

void
dsv3_stat_refused(Oid role, const Dsv3Error *err)
{
	dsv3_stats->refused++;
	dsv3_stats->roles[place_of(role)].refused++;
	count_failure(err->sqlstate);
}

void
dsv3_stat_nulled(Oid role)
{
	dsv3_stats->counters.nulled++;
	dsv3_stats->roles[place_of(role)].nulled++;
}

/* ---- experts ---- */

void
dsv3_stat_new_engine(void)
{
	n_told = 0;
}

/* A hash of the model's digest as the engine has described it. There is no JSON parser where this runs; a quote within a value would have a
 * backslash before it. */
static uint64
model_hash(void)
{
	static const char key[] = "\"digest\":\"";
	const char *at = strstr(dsv3_shared->model_json, key);
	size_t len;

	if (at == NULL)
		return 0;
	at += sizeof(key) - 1;
	len = strcspn(at, "\"");
	return hash_bytes_extended((const unsigned char *) at, (int) len, 0);
}

/* The counters are those of this model; begin again if they were another's. */
static void
settle_model(uint32 n_layers, uint32 n_experts)
{
	uint64 model = model_hash();

	if (dsv3_stats->model == model && dsv3_stats->n_layers == n_layers && dsv3_stats->n_experts == n_experts)
		return;
	LWLockAcquire(dsv3_lock, LW_EXCLUSIVE);
	dsv3_stats->model = model;
	dsv3_stats->n_layers = n_layers;
	dsv3_stats->n_experts = n_experts;
	for (int i = 0; i < DSV3_MAX_STAT_EXPERTS; i++)
		pg_atomic_write_u64(&dsv3_expert_stats[i], 0);
	LWLockRelease(dsv3_lock);
}

bool
dsv3_stat_experts(const Dsv3BodyReader *reader, uint32 n_layers)
{
	size_t n = reader->value_len / 8;

	if (reader->value_len % 8 != 0 || n_layers == 0 || n == 0 || n % n_layers != 0)
		return false;
	if (n > DSV3_MAX_STAT_EXPERTS)
		return true;
	if (n_told != n)
	{
		if (told)
			pfree(told);
		told = MemoryContextAllocZero(TopMemoryContext, n * sizeof(*told));
		n_told = n;
	}
	settle_model(n_layers, (uint32) (n / n_layers));
	for (size_t i = 0; i < n; i++)
	{
		uint64 tokens = dsv3_body_get_u64_at(reader, i);

		/* A count never falls; one that does is not worth a disconnect. */
		if (tokens > told[i])
			pg_atomic_fetch_add_u64(&dsv3_expert_stats[i], (int64) (tokens - told[i]));
		told[i] = tokens;
	}
	return true;
}
