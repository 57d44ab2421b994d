/*
 * job_worker.h
 *	  The background workers of jobs, and what the launcher gives to those that it starts, in bgw_extra.
 */
#ifndef DSV3_JOB_WORKER_H
#define DSV3_JOB_WORKER_H

#include "pg/compat.h"

typedef struct Dsv3JobStart
{
	Oid database;
	Oid role;      /* of a job's worker */
	int place;     /* on the board */
	uint32 number; /* of this worker there */
} Dsv3JobStart;

extern PGDLLEXPORT void dsv3_job_launcher_main(Datum arg);
extern PGDLLEXPORT void dsv3_job_scan_main(Datum arg);
extern PGDLLEXPORT void dsv3_job_worker_main(Datum arg);

#endif /* DSV3_JOB_WORKER_H */
