/*
 * shmem.c
 *	  Size, creation and elementary operations of the shared memory that shmem.h describes.
 *
 * The block is created once in the postmaster, and again after a crash of any backend: then all slots are free and the
 * supervisor starts anew. Sizes come from dsv3.queue_size and dsv3.shared_memory.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "pg/audit_ring.h"
#include "pg/guc.h"
#include "pg/shmem.h"
#include "pg/stat.h"

#define TRANCHE "dsv3"

Dsv3Shared *dsv3_shared;
LWLock *dsv3_lock;
Dsv3Slot *dsv3_slots;
Dsv3RoleUse *dsv3_roles;
int32 *dsv3_chunk_next;
char *dsv3_chunk_data;

static shmem_startup_hook_type prev_shmem_startup_hook;
#ifdef DSV3_HAVE_SHMEM_REQUEST_HOOK
static shmem_request_hook_type prev_shmem_request_hook;
#endif

static int
chunk_count(void)
{
	return (int) ((Size) dsv3_guc_shared_memory * 1024 * 1024 / DSV3_CHUNK_SIZE);
}

static Size
shmem_size(void)
{
	Size size = MAXALIGN(sizeof(Dsv3Shared));

	size = add_size(size, MAXALIGN(mul_size(dsv3_guc_queue_size, sizeof(Dsv3Slot))));
	size = add_size(size, MAXALIGN(mul_size(DSV3_MAX_ROLES, sizeof(Dsv3RoleUse))));
	size = add_size(size, MAXALIGN(mul_size(chunk_count(), sizeof(int32))));
	size = add_size(size, mul_size(chunk_count(), DSV3_CHUNK_SIZE));
	return add_size(size, dsv3_stat_size());
}

static void
request_shmem(void)
{
#ifdef DSV3_HAVE_SHMEM_REQUEST_HOOK
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
#endif
	RequestAddinShmemSpace(shmem_size());
	RequestNamedLWLockTranche(TRANCHE, 1);
	dsv3_audit_shmem_request();
}

/* A new block: everything free, no supervisor yet. */
static void
init_shared(void)
{
	memset(dsv3_shared, 0, sizeof(*dsv3_shared));
	dsv3_shared->n_slots = dsv3_guc_queue_size;
	dsv3_shared->n_chunks = chunk_count();
	dsv3_shared->engine_state = DSV3_ENGINE_STARTING;
	dsv3_shared->engine_since = GetCurrentTimestamp();
	dsv3_shared->next_request = 1;
	for (int i = 0; i < dsv3_shared->n_slots; i++)
	{
		memset(&dsv3_slots[i], 0, sizeof(Dsv3Slot));
		dsv3_chain_init(&dsv3_slots[i].input);
		dsv3_chain_init(&dsv3_slots[i].output);
	}
	memset(dsv3_roles, 0, sizeof(Dsv3RoleUse) * DSV3_MAX_ROLES);
	for (int i = 0; i < dsv3_shared->n_chunks; i++)
		dsv3_chunk_next[i] = i + 1 < dsv3_shared->n_chunks ? i + 1 : DSV3_NO_CHUNK;
	dsv3_shared->free_chunk = 0;
	dsv3_shared->n_free_chunks = dsv3_shared->n_chunks;
}

static void
shmem_startup(void)
{
	bool found;
	char *block;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	block = ShmemInitStruct("dsv3", shmem_size(), &found);
	dsv3_shared = (Dsv3Shared *) block;
	block += MAXALIGN(sizeof(Dsv3Shared));
	dsv3_slots = (Dsv3Slot *) block;
	block += MAXALIGN(mul_size(dsv3_guc_queue_size, sizeof(Dsv3Slot)));
	dsv3_roles = (Dsv3RoleUse *) block;
	block += MAXALIGN(mul_size(DSV3_MAX_ROLES, sizeof(Dsv3RoleUse)));
	dsv3_chunk_next = (int32 *) block;
	block += MAXALIGN(mul_size(chunk_count(), sizeof(int32)));
	dsv3_chunk_data = block;
	block += mul_size(chunk_count(), DSV3_CHUNK_SIZE);
	dsv3_lock = &GetNamedLWLockTranche(TRANCHE)->lock;
	if (!found)
		init_shared();
	dsv3_stat_attach(block, found);
	dsv3_audit_shmem_startup();
	LWLockRelease(AddinShmemInitLock);
}

void
dsv3_shmem_install(void)
{
#ifdef DSV3_HAVE_SHMEM_REQUEST_HOOK
	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_shmem;
#else
	request_shmem();
#endif
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = shmem_startup;
}

void
dsv3_slot_set_state(Dsv3Slot *slot, Dsv3SlotState state)
{
#define BIT(s) (1 << DSV3_SLOT_##s)
	static const uint8 allowed[DSV3_N_SLOT_STATES] = {
		[DSV3_SLOT_FREE] = BIT(FILLING),
		[DSV3_SLOT_FILLING] = BIT(QUEUED) | BIT(FREE),
		[DSV3_SLOT_QUEUED] = BIT(ACTIVE) | BIT(FAILED) | BIT(FREE),
		[DSV3_SLOT_ACTIVE] = BIT(QUEUED) | BIT(DONE) | BIT(FAILED) | BIT(ABANDONED),
		[DSV3_SLOT_DONE] = BIT(FREE),
		[DSV3_SLOT_FAILED] = BIT(FREE),
		[DSV3_SLOT_ABANDONED] = BIT(FREE),
	};

	Assert(LWLockHeldByMeInMode(dsv3_lock, LW_EXCLUSIVE));
	if (!(allowed[slot->state] & (1 << state)))
		elog(ERROR, "dsv3 slot " UINT64_FORMAT " cannot go from state %d to %d", slot->request, slot->state,
			 state);
	slot->state = state;
#undef BIT
}

void
dsv3_chain_init(Dsv3Chain *chain)
{
	chain->head = DSV3_NO_CHUNK;
	chain->tail = DSV3_NO_CHUNK;
	chain->tail_used = 0;
	chain->len = 0;
}

bool
dsv3_chain_alloc(Dsv3Chain *chain, Size len)
{
	int64 need = (int64) (len / DSV3_CHUNK_SIZE + (len % DSV3_CHUNK_SIZE != 0));

	dsv3_chain_init(chain);
	if (need == 0)
		return true;
	if (need > dsv3_shared->n_free_chunks)
		return false;
	chain->head = dsv3_shared->free_chunk;
	chain->tail = chain->head;
	for (int64 i = 1; i < need; i++)
		chain->tail = dsv3_chunk_next[chain->tail];
	dsv3_shared->free_chunk = dsv3_chunk_next[chain->tail];
	dsv3_shared->n_free_chunks -= (int) need;
	dsv3_chunk_next[chain->tail] = DSV3_NO_CHUNK;
	chain->tail_used = (uint32) (len - (Size) (need - 1) * DSV3_CHUNK_SIZE);
	chain->len = len;
	return true;
}

void
dsv3_chain_write(const Dsv3Chain *chain, const void *data)
{
	const char *from = data;

	for (int32 i = chain->head; i != DSV3_NO_CHUNK; i = dsv3_chunk_next[i])
	{
		Size n = i == chain->tail ? chain->tail_used : DSV3_CHUNK_SIZE;

		memcpy(dsv3_chunk(i), from, n);
		from += n;
	}
}

void
dsv3_chain_read(const Dsv3Chain *chain, void *data)
{
	char *to = data;

	for (int32 i = chain->head; i != DSV3_NO_CHUNK; i = dsv3_chunk_next[i])
	{
		Size n = i == chain->tail ? chain->tail_used : DSV3_CHUNK_SIZE;

		memcpy(to, dsv3_chunk(i), n);
		to += n;
	}
}

bool
dsv3_chain_append(Dsv3Chain *chain, const void *data, Size len)
{
	Size room = chain->tail == DSV3_NO_CHUNK ? 0 : DSV3_CHUNK_SIZE - chain->tail_used;
	Size now = Min(room, len);
	Dsv3Chain rest;

	if (!dsv3_chain_alloc(&rest, len - now))
		return false;
	if (now > 0)
	{
		memcpy(dsv3_chunk(chain->tail) + chain->tail_used, data, now);
		chain->tail_used += (uint32) now;
		chain->len += now;
	}
	if (rest.len > 0)
	{
		dsv3_chain_write(&rest, (const char *) data + now);
		if (chain->head == DSV3_NO_CHUNK)
			chain->head = rest.head;
		else
			dsv3_chunk_next[chain->tail] = rest.head;
		chain->tail = rest.tail;
		chain->tail_used = rest.tail_used;
		chain->len += rest.len;
	}
	return true;
}

void
dsv3_chain_free(Dsv3Chain *chain)
{
	int n = 0;

	if (chain->head != DSV3_NO_CHUNK)
	{
		for (int32 i = chain->head; i != DSV3_NO_CHUNK; i = dsv3_chunk_next[i])
			n++;
		dsv3_chunk_next[chain->tail] = dsv3_shared->free_chunk;
		dsv3_shared->free_chunk = chain->head;
		dsv3_shared->n_free_chunks += n;
	}
	dsv3_chain_init(chain);
}
