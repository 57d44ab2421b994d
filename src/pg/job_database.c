/*
 * job_database.c
 *	  Workers of jobs are never in the way of DROP DATABASE, nor of a database's new name.
 *
 * PostgreSQL refuses these commands while anyone is connected to the database. So before one of them runs, and only if its
 * user may give it, workers of that database are asked to end and kept out until the command has ended. A job whose database is
 * still there then goes on.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "nodes/parsenodes.h"
#include "tcop/utility.h"
#include "utils/acl.h"

#include "pg/job.h"

static ProcessUtility_hook_type previous_hook;

/* The database that nobody may be connected to, or InvalidOid. */
static Oid
lonely_database(Node *command)
{
	const char *name = NULL;
	Oid database;

	if (IsA(command, DropdbStmt))
		name = castNode(DropdbStmt, command)->dbname;
	else if (IsA(command, RenameStmt) && castNode(RenameStmt, command)->renameType == OBJECT_DATABASE)
		name = castNode(RenameStmt, command)->subname;
	if (name == NULL)
		return InvalidOid;
	database = get_database_oid(name, true);
	return OidIsValid(database) && DSV3_OWNS_DATABASE(database, GetUserId()) ? database : InvalidOid;
}

static void
process_utility(PlannedStmt *pstmt, const char *query_string, bool read_only_tree,
				ProcessUtilityContext context, ParamListInfo params, QueryEnvironment *environment,
				DestReceiver *dest, QueryCompletion *completion)
{
	ProcessUtility_hook_type next = previous_hook ? previous_hook : standard_ProcessUtility;
	Oid database = lonely_database(pstmt->utilityStmt);

	if (!OidIsValid(database))
	{
		next(pstmt, query_string, read_only_tree, context, params, environment, dest, completion);
		return;
	}
	PG_TRY();
	{
		dsv3_board_hold(database);
		next(pstmt, query_string, read_only_tree, context, params, environment, dest, completion);
	}
	PG_FINALLY();
	{
		dsv3_board_release();
	}
	PG_END_TRY();
}

void
dsv3_job_database_install(void)
{
	previous_hook = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
}
