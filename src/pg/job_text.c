/*
 * job_text.c
 *	  From the parts of a job to the statements that it runs.
 *
 * query is a whole SELECT, call is what stands between SELECT and FROM: expressions over the query's columns, each named
 * for a column of the target. Both are parsed by themselves before they are put into a statement, so neither can end its
 * parenthesis and begin something else. Names are quoted. All of it runs with the rights of the role that submitted the job and no
 * other, under the search_path that was set then.
 *
 * For query "SELECT id, body FROM docs", call "dsv3_generate(body) AS summary", target t and key id the statements are
 *
 *	list     the keys, in the query's order, as JSON arrays of $1 objects {"id": ...}
 *	unpack   such an array -> ARRAY[id, ...]
 *	compute  SELECT r."dsv3 row", <call>
 *	         FROM (SELECT k."dsv3 row", q.* FROM ROWS FROM (unnest($1)) WITH ORDINALITY AS k ("id", "dsv3 row")
 *	               JOIN (<query>) AS q ON q."id" = k."id" WHERE q."id" = ANY ($1)) AS r
 *	update   UPDATE t SET "summary" = $2 WHERE "id" = $1
 *	insert   INSERT INTO t ("id", "summary") VALUES ($1, $2) ON CONFLICT ("id") DO UPDATE SET "summary" = excluded."summary"
 *
 * The condition with ANY says nothing new, but the planner can push it into a query that groups by its keys.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "access/genam.h"
#include "access/relation.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "nodes/parsenodes.h"
#include "parser/parse_relation.h"
#include "parser/parser.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/plancache.h"
#include "utils/rel.h"
#include "utils/varlena.h"

#include "pg/batch.h"
#include "pg/job.h"

#define ROW_NAME "\"dsv3 row\""

/* ---- the parts ---- */

static SelectStmt *
parse_select(const char *sql, const char *what)
{
	List *parsed = raw_parser(sql, RAW_PARSE_DEFAULT);
	Node *statement = list_length(parsed) == 1 ? linitial_node(RawStmt, parsed)->stmt : NULL;

	if (statement == NULL || !IsA(statement, SelectStmt) || ((SelectStmt *) statement)->intoClause)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("%s must be one SELECT", what),
						errhint("It is used as a subquery; leave out semicolons and INTO.")));
	return (SelectStmt *) statement;
}

/* A select list and nothing after it. */
static void
check_call(const char *call)
{
	const SelectStmt *s = parse_select(psprintf("SELECT %s\n", call), "call of a job, after SELECT,");
	ListCell *lc;

	if (s->op != SETOP_NONE || s->distinctClause || s->fromClause || s->whereClause || s->groupClause ||
		s->havingClause || s->windowClause || s->valuesLists || s->sortClause || s->limitOffset ||
		s->limitCount || s->lockingClause || s->withClause || s->targetList == NIL)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("call of a job must be expressions and nothing else"),
						errhint("Put what chooses rows into the query.")));
	foreach (lc, s->targetList)
	{
		if (lfirst_node(ResTarget, lc)->name == NULL)
			ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
							errmsg("call of a job has an expression without a name"),
							errhint("Name the target's column it goes to: dsv3_generate(...) AS summary.")));
	}
}

/* Quoted names, each between two texts. */
static char *
name_list(char *const *names, int n, const char *before, const char *after, const char *between)
{
	StringInfoData out;

	initStringInfo(&out);
	for (int i = 0; i < n; i++)
		appendStringInfo(&out, "%s%s%s%s", i > 0 ? between : "", before, quote_identifier(names[i]), after);
	return out.data;
}

/* A worker is another session, and temporary tables are not seen there. */
static void
refuse_temporary(const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED), errmsg("%s is or uses a temporary table", what),
			 errhint("A job runs in a session of its own, which does not see it. Make a table that is not "
					 "temporary.")));
}

/* A value for each row, by the row alone: which rows come together is not the call's business. It is looked at by itself, so
 * that errors show it as it was written. */
static void
check_rows(const Dsv3Job *job)
{
	MemoryContext old = CurrentMemoryContext;
	SPIPlanPtr plan = SPI_prepare(psprintf("SELECT %s\nFROM (%s\n) AS r", job->call, job->query), 0, NULL);
	const Query *query;

	if (plan == NULL)
		elog(ERROR, "could not prepare the call of a job: %s", SPI_result_code_string(SPI_result));
	query =
		linitial_node(Query, ((CachedPlanSource *) linitial(SPI_plan_get_plan_sources(plan)))->query_list);
	if (query->hasAggs || query->hasWindowFuncs || query->hasTargetSRFs)
		ereport(
			ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("call of a job must not have %s", query->hasAggs          ? "aggregates"
													  : query->hasWindowFuncs ? "window functions"
																			  : "functions that return sets"),
			 errhint("It is asked for a value of each row. Put what concerns several rows into the "
					 "query.")));
	SPI_freeplan(plan);
	MemoryContextSwitchTo(old); /* SPI leaves its own behind */
}

/* The row type of a query, in order. Raises, in the name of `what`, for what a job cannot run. */
static TupleDesc
describe(const char *sql, const char *what, int n_params, Oid *param_types)
{
	MemoryContext old = CurrentMemoryContext;
	SPIPlanPtr plan = SPI_prepare(sql, n_params, param_types);
	CachedPlanSource *source;
	TupleDesc result;

	if (plan == NULL)
		elog(ERROR, "could not prepare a statement of a job: %s", SPI_result_code_string(SPI_result));
	source = linitial(SPI_plan_get_plan_sources(plan));
	if (source->resultDesc == NULL)
		elog(ERROR, "statement of a job returns no rows");
	if (isQueryUsingTempRelation(linitial_node(Query, source->query_list)))
		refuse_temporary(what);
	MemoryContextSwitchTo(old); /* SPI leaves its own behind */
	result = CreateTupleDescCopy(source->resultDesc);
	SPI_freeplan(plan);
	return result;
}

/* ---- the target ---- */

static bool
index_is_on(Relation target, Oid index, char *const *keys, int n_keys)
{
	Relation relation = index_open(index, AccessShareLock);
	const FormData_pg_index *form = relation->rd_index;
	bool fits = form->indisunique && form->indisvalid && form->indimmediate && form->indnkeyatts == n_keys &&
				RelationGetIndexPredicate(relation) == NIL;

	for (int i = 0; i < form->indnkeyatts && fits; i++)
	{
		bool found = false;

		for (int k = 0; k < n_keys && form->indkey.values[i] != 0; k++)
			found = found || form->indkey.values[i] == get_attnum(RelationGetRelid(target), keys[k]);
		fits = found;
	}
	index_close(relation, AccessShareLock);
	return fits;
}

/* The target can take a row for each key, and no second one. */
static void
check_target(const char *name, char *const *keys, int n_keys, char *const *columns, int n_columns)
{
	RangeVar *range = makeRangeVarFromNameList(textToQualifiedNameList(cstring_to_text(name)));
	Relation target = table_openrv(range, AccessShareLock);
	List *indexes = RelationGetIndexList(target);
	bool found = false;
	ListCell *lc;

	if (target->rd_rel->relkind != RELKIND_RELATION && target->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE), errmsg("target \"%s\" is not a table", name)));
	if (target->rd_rel->relpersistence == RELPERSISTENCE_TEMP)
		refuse_temporary(psprintf("target \"%s\"", name));
	for (int i = 0; i < n_keys + n_columns; i++)
	{
		const char *column = i < n_keys ? keys[i] : columns[i - n_keys];

		if (get_attnum(RelationGetRelid(target), column) <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_COLUMN),
					 errmsg("target \"%s\" has no column \"%s\"", name, column),
					 errhint("The key columns have the same names in the query and in the target; each "
							 "expression of the call is named for the column it goes to.")));
		for (int k = 0; k < i; k++)
		{
			if (strcmp(column, k < n_keys ? keys[k] : columns[k - n_keys]) == 0)
				ereport(ERROR, (errcode(ERRCODE_DUPLICATE_COLUMN),
								errmsg("column \"%s\" of target \"%s\" is named twice", column, name)));
		}
	}
	foreach (lc, indexes)
		found = found || index_is_on(target, lfirst_oid(lc), keys, n_keys);
	if (!found)
		ereport(ERROR, (errcode(ERRCODE_INVALID_TABLE_DEFINITION),
						errmsg("target \"%s\" has no unique index on (%s)", name,
							   name_list(keys, n_keys, "", "", ", ")),
						errhint("Make these columns its primary key, or create a unique index on them.")));
	table_close(target, AccessShareLock);
}

/* ---- the statements ---- */

static void
make_list(const Dsv3Job *job, Dsv3JobText *text)
{
	char *plain = name_list(job->keys, job->n_keys, "", "", ", ");
	StringInfoData object;
	StringInfoData missing;

	initStringInfo(&object);
	initStringInfo(&missing);
	for (int i = 0; i < job->n_keys; i++)
	{
		const char *name = quote_identifier(job->keys[i]);

		appendStringInfo(&object, "%s%s, n.%s", i > 0 ? ", " : "", quote_literal_cstr(job->keys[i]), name);
		appendStringInfo(&missing, "%sn.%s IS NULL", i > 0 ? " OR " : "", name);
	}
	/* Parts are made in the order in which the query gives its rows. */
	text->list = psprintf(
		"SELECT pg_catalog.jsonb_agg(o.key ORDER BY o.row), pg_catalog.count(*), "
		"(pg_catalog.array_agg(o.key) FILTER (WHERE o.missing))[1], "
		"(pg_catalog.array_agg(o.key) FILTER (WHERE o.nth > 1))[1] "
		"FROM (SELECT n." ROW_NAME " AS row, pg_catalog.jsonb_build_object(%s) AS key, %s AS missing, "
		"pg_catalog.row_number() OVER (PARTITION BY %s) AS nth "
		"FROM (SELECT pg_catalog.row_number() OVER () AS " ROW_NAME ", %s FROM (%s\n) AS q) AS n) AS o "
		"GROUP BY (o.row - 1) / $1 ORDER BY (o.row - 1) / $1",
		object.data, missing.data, plain, plain, job->query);
}

static void
make_unpack(const Dsv3Job *job, Dsv3JobText *text)
{
	StringInfoData types;

	initStringInfo(&types);
	for (int i = 0; i < job->n_keys; i++)
		appendStringInfo(&types, "%s%s %s", i > 0 ? ", " : "", quote_identifier(job->keys[i]),
						 format_type_extended(text->key_types[i], -1,
											  FORMAT_TYPE_TYPEMOD_GIVEN | FORMAT_TYPE_FORCE_QUALIFY));
	text->unpack = psprintf(
		"SELECT %s FROM ROWS FROM (pg_catalog.jsonb_to_recordset($1) AS (%s)) WITH ORDINALITY AS "
		"k (%s, " ROW_NAME ") WHERE k." ROW_NAME " OPERATOR(pg_catalog.=) ANY ($2)",
		name_list(job->keys, job->n_keys, "pg_catalog.array_agg(k.", " ORDER BY k." ROW_NAME ")", ", "),
		types.data, name_list(job->keys, job->n_keys, "", "", ", "));
}

static void
make_compute(const Dsv3Job *job, Dsv3JobText *text)
{
	StringInfoData unnest;
	StringInfoData same;
	StringInfoData any;

	initStringInfo(&unnest);
	initStringInfo(&same);
	initStringInfo(&any);
	for (int i = 0; i < job->n_keys; i++)
	{
		const char *name = quote_identifier(job->keys[i]);

		appendStringInfo(&unnest, "%spg_catalog.unnest($%d)", i > 0 ? ", " : "", i + 1);
		appendStringInfo(&same, "%sq.%s = k.%s", i > 0 ? " AND " : "", name, name);
		appendStringInfo(&any, "%sq.%s = ANY ($%d)", i > 0 ? " AND " : "", name, i + 1);
	}
	text->compute = psprintf("SELECT r." ROW_NAME ", %s\nFROM (SELECT k." ROW_NAME
							 ", q.* FROM ROWS FROM (%s) WITH ORDINALITY AS "
							 "k (%s, " ROW_NAME ") JOIN (%s\n) AS q ON %s WHERE %s) AS r",
							 job->call, unnest.data, name_list(job->keys, job->n_keys, "", "", ", "),
							 job->query, same.data, any.data);
}

static void
make_write(const Dsv3Job *job, Dsv3JobText *text, char *const *columns)
{
	char *keys = name_list(job->keys, job->n_keys, "", "", ", ");
	StringInfoData set;
	StringInfoData same;
	StringInfoData values;

	initStringInfo(&set);
	initStringInfo(&same);
	initStringInfo(&values);
	for (int i = 0; i < job->n_keys; i++)
		appendStringInfo(&same, "%st.%s = $%d", i > 0 ? " AND " : "", quote_identifier(job->keys[i]), i + 1);
	for (int i = 0; i < text->n_columns; i++)
		appendStringInfo(&set, "%s%s = $%d", i > 0 ? ", " : "", quote_identifier(columns[i]),
						 job->n_keys + i + 1);
	for (int i = 0; i < job->n_keys + text->n_columns; i++)
		appendStringInfo(&values, "%s$%d", i > 0 ? ", " : "", i + 1);

	text->update = psprintf("UPDATE %s AS t SET %s WHERE %s", job->target, set.data, same.data);
	text->insert = psprintf("INSERT INTO %s (%s, %s) VALUES (%s)", job->target, keys,
							name_list(columns, text->n_columns, "", "", ", "), values.data);
	if (strcmp(job->mode, "upsert") == 0)
	{
		resetStringInfo(&set);
		for (int i = 0; i < text->n_columns; i++)
			appendStringInfo(&set, "%s%s = excluded.%s", i > 0 ? ", " : "", quote_identifier(columns[i]),
							 quote_identifier(columns[i]));
		text->insert = psprintf("%s ON CONFLICT (%s) DO UPDATE SET %s", text->insert, keys, set.data);
	}
	else if (strcmp(job->mode, "update") == 0)
		text->insert = NULL;
	else
		text->update = NULL;
}

void
dsv3_job_text(const Dsv3Job *job, Dsv3JobText *text)
{
	Oid *array_types = palloc(sizeof(Oid) * (Size) job->n_keys);
	char **columns;
	TupleDesc desc;

	memset(text, 0, sizeof(*text));
	(void) parse_select(job->query, "query of a job");
	check_call(job->call);

	desc = describe(
		psprintf("SELECT %s FROM (%s\n) AS q", name_list(job->keys, job->n_keys, "q.", "", ", "), job->query),
		"query of a job", 0, NULL);
	text->n_keys = job->n_keys;
	text->key_types = palloc(sizeof(Oid) * (Size) job->n_keys);
	for (int i = 0; i < job->n_keys; i++)
	{
		text->key_types[i] = TupleDescAttr(desc, i)->atttypid;
		array_types[i] = get_array_type(text->key_types[i]);
		if (!OidIsValid(array_types[i]) || type_is_array(text->key_types[i]))
			ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
							errmsg("column \"%s\" of type %s cannot be a key of a job", job->keys[i],
								   format_type_be(text->key_types[i]))));
	}
	check_rows(job);
	make_list(job, text);
	make_unpack(job, text);
	make_compute(job, text);

	desc = describe(text->compute, "call of a job", job->n_keys, array_types);
	text->n_columns = desc->natts - 1;
	text->column_types = palloc(sizeof(Oid) * (Size) desc->natts);
	columns = palloc(sizeof(char *) * (Size) desc->natts);
	for (int i = 0; i < text->n_columns; i++)
	{
		text->column_types[i] = TupleDescAttr(desc, i + 1)->atttypid;
		columns[i] = NameStr(TupleDescAttr(desc, i + 1)->attname);
	}
	text->array_types = array_types;
	check_target(job->target, job->keys, job->n_keys, columns, text->n_columns);
	make_write(job, text, columns);
}
