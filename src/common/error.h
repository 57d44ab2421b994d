/*
 * error.h
 *	  How every layer below PostgreSQL reports a failure.
 *
 * A function that can fail takes a Dsv3Error * last, returns false (or NULL) on failure and fills it; on success
 * it leaves it alone. The caller owns the struct, usually on its stack. The SQLSTATE travels unchanged to the SQL
 * caller, so it is chosen where the failure is understood. Messages follow PostgreSQL style: lower case, no final
 * stop; detail and hint are sentences. Strings that do not fit are cut at a UTF-8 boundary and end in "...".
 */
#ifndef DSV3_ERROR_H
#define DSV3_ERROR_H

#include <stdbool.h>
#include <stdarg.h>

/* SQLSTATEs used by the engine; the names are PostgreSQL's. */
#define DSV3_ERR_INVALID_PARAMETER "22023"
#define DSV3_ERR_INVALID_TEXT      "22021" /* character not in repertoire: invalid UTF-8 */
#define DSV3_ERR_INVALID_JSON      "22032"
#define DSV3_ERR_TOO_LARGE         "54000" /* program limit exceeded */
#define DSV3_ERR_OUT_OF_MEMORY     "53200"
#define DSV3_ERR_DISK_FULL         "53100"
#define DSV3_ERR_QUEUE_FULL        "53000" /* insufficient resources */
#define DSV3_ERR_LIMIT_EXCEEDED    "53400" /* configuration limit exceeded */
#define DSV3_ERR_CANCELLED         "57014"
#define DSV3_ERR_NOT_READY         "57P03" /* cannot connect now */
#define DSV3_ERR_NOT_IN_STATE      "55000" /* object not in prerequisite state */
#define DSV3_ERR_UNSUPPORTED       "0A000"
#define DSV3_ERR_FILE              "58030" /* io error */
#define DSV3_ERR_NO_FILE           "58P01" /* undefined file */
#define DSV3_ERR_BAD_FILE          "XX001" /* data corrupted: a model file that contradicts itself */
#define DSV3_ERR_PROTOCOL          "08P01"
#define DSV3_ERR_ENGINE_LOST       "08006"
#define DSV3_ERR_INTERNAL          "XX000"

typedef struct Dsv3Error
{
	char sqlstate[6];
	char message[768];
	char detail[768];
	char hint[512];
} Dsv3Error;

/* Set SQLSTATE and message, clear detail and hint. Always returns false, so that a failing function can
 * `return dsv3_error(err, ...)`. err may be NULL (the failure is then only the return value). */
extern bool
dsv3_error(Dsv3Error *err, const char *sqlstate, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Add a detail or a hint to a failure already set; both return false. */
extern bool dsv3_error_detail(Dsv3Error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
extern bool dsv3_error_hint(Dsv3Error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Put "prefix: " in front of the message; for callers that know the file or the tensor. Returns false. */
extern bool dsv3_error_prefix(Dsv3Error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif /* DSV3_ERROR_H */
