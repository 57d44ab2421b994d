/*
 * dsv3.c
 *	  Loading of the extension library.
 *
 * Preloaded in the postmaster, it defines the settings, asks for shared memory and registers the supervisor and the
 * launcher of jobs. Loaded later, by a function call in a server that does not preload it, it defines the settings a
 * session may have and nothing else; dsv3_shared stays NULL and the functions say what to do. Under pg_upgrade it starts
 * nothing.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "common/version.h"
#include "pg/batch.h"
#include "pg/guard.h"
#include "pg/guc.h"
#include "pg/job.h"
#include "pg/shmem.h"
#include "pg/supervisor.h"

DSV3_MODULE_MAGIC("dsv3", DSV3_VERSION);

void _PG_init(void);

void
_PG_init(void)
{
	dsv3_define_settings();
	if (!process_shared_preload_libraries_in_progress || IsBinaryUpgrade)
		return;
	dsv3_shmem_install();
	dsv3_batch_install();
	dsv3_guard_install();
	dsv3_supervisor_register();
	dsv3_board_install();
	dsv3_job_database_install();
	dsv3_job_launcher_register();
}
