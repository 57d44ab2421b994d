/*
 * activity.h
 *	  The state of the engine and of its queue, for all that shows it.
 */
#ifndef DSV3_ACTIVITY_H
#define DSV3_ACTIVITY_H

#include "pg/compat.h"

#include "utils/jsonb.h"

#include "pg/stat.h"

/* The header, the statistics, and a count of the slots, at one moment. */
typedef struct Dsv3Snapshot
{
	Dsv3Shared shared;
	Dsv3Stats stats;
	int queued;
	int running;
	TimestampTz oldest; /* submitted_at of the longest waiting request, 0: none */
} Dsv3Snapshot;

extern Dsv3Snapshot *dsv3_take_snapshot(void); /* palloc'd */

/* A JSON text that the engine sent about itself; NULL when there is none, or it is not an object. A key of it as text, as a number;
 * NULL, 0 where it has none. */
extern Jsonb *dsv3_engine_json(const char *json);
extern char *dsv3_json_text(Jsonb *json, const char *key);
extern double dsv3_json_number(Jsonb *json, const char *key);

/* May the current user see what is of all roles? */
extern bool dsv3_reads_all_stats(void);

#endif /* DSV3_ACTIVITY_H */
