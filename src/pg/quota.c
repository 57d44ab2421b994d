/*
 * quota.c
 *	  What a role may use of the engine. The settings are a superuser's, made for a role with ALTER ROLE ... SET; the role is the one
 *	  that logged in, whose settings a session has whatever it does to itself.
 *
 * Tokens are counted in shared memory, for roles with a quota only, when a request ends. A minute or a day begins with the
 * first request after the last one was over. The requests of a role are counted in the slots, so nothing can be left over
 * from a process that has died. All sessions of a role share its quota; sessions whose own settings say otherwise are held to those.
 *
 * Requests that run ahead wait when they might go beyond a quota. The one that is next is refused when it is used up; so what was used
 * may be more than the quota by what was under way.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "utils/timestamp.h"

#include "pg/guard.h"
#include "pg/guc.h"
#include "pg/quota.h"

#define MINUTE_US (60 * INT64CONST(1000000))
#define DAY_US    (24 * 60 * MINUTE_US)

Oid
dsv3_quota_account(uint32 kind)
{
	if (!dsv3_runs_model(kind) || (dsv3_guc_role_tokens_per_minute == 0 &&
								   dsv3_guc_role_tokens_per_day == 0 && dsv3_guc_role_max_requests == 0))
		return InvalidOid;
	return GetSessionUserId();
}

/* The account's use; NULL: none was counted yet. */
static Dsv3RoleUse *
find(Oid account)
{
	for (int i = 0; i < DSV3_MAX_ROLES; i++)
	{
		if (dsv3_roles[i].role == account)
			return &dsv3_roles[i];
	}
	return NULL;
}

/* A place for a new account: an empty one, or that of the account whose day began first. */
static Dsv3RoleUse *
make(Oid account)
{
	Dsv3RoleUse *use = &dsv3_roles[0];

	for (int i = 0; i < DSV3_MAX_ROLES && OidIsValid(use->role); i++)
	{
		Dsv3RoleUse *other = &dsv3_roles[i];

		if (!OidIsValid(other->role) || other->day.began_at < use->day.began_at)
			use = other;
	}
	memset(use, 0, sizeof(*use));
	use->role = account;
	return use;
}

/* What was used in the present span of time. */
static uint64
used(const Dsv3Span *span, int64 length, TimestampTz now)
{
	return now - span->began_at < length ? span->tokens : 0;
}

static void
add(Dsv3Span *span, int64 length, TimestampTz now, uint32 tokens)
{
	if (now - span->began_at >= length)
	{
		span->began_at = now;
		span->tokens = 0;
	}
	span->tokens += tokens;
}

static bool
refuse_tokens(const char *setting, int limit, const Dsv3Span *span, int64 length, TimestampTz now,
			  Dsv3Error *err)
{
	int64 seconds = (span->began_at + length - now + 999999) / 1000000;

	dsv3_error(err, DSV3_ERR_LIMIT_EXCEEDED, "role has used up %s (%d)", setting, limit);
	dsv3_error_hint(err, "Try again in %lld s, or have a superuser raise %s for the role.",
					(long long) seconds, setting);
	return false;
}

static bool
check_span(const char *setting, int limit, const Dsv3Span *span, int64 length, uint64 expected, bool spare,
		   Dsv3Error *err)
{
	TimestampTz now = GetCurrentTimestamp();
	uint64 tokens = used(span, length, now);

	if (limit == 0 || tokens + (spare ? expected : 0) < (uint64) limit)
		return true;
	if (spare)
		return dsv3_error(err, DSV3_ERR_QUEUE_FULL, "role is near %s", setting);
	return refuse_tokens(setting, limit, span, length, now, err);
}

bool
dsv3_quota_admit(Oid account, uint32 expected, bool spare, Dsv3Error *err)
{
	static const Dsv3RoleUse nothing;
	const Dsv3RoleUse *use;
	uint64 under_way = expected;
	int n = 0;

	if (!OidIsValid(account))
		return true;
	for (int i = 0; i < dsv3_shared->n_slots; i++)
	{
		if (dsv3_slots[i].state == DSV3_SLOT_FREE || dsv3_slots[i].account != account)
			continue;
		under_way += dsv3_slots[i].expected;
		n++;
	}
	if (dsv3_guc_role_max_requests > 0 && n >= dsv3_guc_role_max_requests)
	{
		dsv3_error(err, spare ? DSV3_ERR_QUEUE_FULL : DSV3_ERR_LIMIT_EXCEEDED,
				   "role has dsv3.role_max_requests (%d) requests under way", dsv3_guc_role_max_requests);
		dsv3_error_hint(
			err, "Try again when one of them has ended, or have a superuser raise dsv3.role_max_requests for "
				 "the role.");
		return false;
	}
	use = find(account);
	if (use == NULL)
		use = &nothing;
	return check_span("dsv3.role_tokens_per_minute", dsv3_guc_role_tokens_per_minute, &use->minute, MINUTE_US,
					  under_way, spare, err) &&
		   check_span("dsv3.role_tokens_per_day", dsv3_guc_role_tokens_per_day, &use->day, DAY_US, under_way,
					  spare, err);
}

void
dsv3_quota_charge(Oid account, uint32 tokens)
{
	TimestampTz now;
	Dsv3RoleUse *use;

	if (!OidIsValid(account))
		return;
	now = GetCurrentTimestamp();
	use = find(account);
	if (use == NULL)
		use = make(account);
	add(&use->minute, MINUTE_US, now, tokens);
	add(&use->day, DAY_US, now, tokens);
}
