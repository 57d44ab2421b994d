/*
 * process.h
 *	  The engine process: what `dsv3 engine` runs.
 */
#ifndef DSV3_PROCESS_H
#define DSV3_PROCESS_H

#include <stdbool.h>
#include <sys/types.h>

#include "engine/scheduler.h"

/* Serve one supervisor on descriptor fd until it closes it. Never returns: exits 0 at the end of the stream, 1 otherwise. */
extern void dsv3_engine_serve(int fd, pid_t parent, bool debug) __attribute__((noreturn));

/* The body of the frame for an event; malloc'd, *len set; NULL without memory or when it would be too long. */
extern uint8_t *dsv3_event_body(const Dsv3Event *event, size_t *len);

/* How many cache blocks: for bytes of memory, or with 0 an eighth of the machine's memory, at most what max_requests full contexts
 * need. Fails when that is not one block. */
extern int
dsv3_engine_kv_blocks(const Dsv3Backend *backend, uint64_t bytes, int max_requests, Dsv3Error *err);

/* The object of READY, malloc'd JSON text. */
extern char *dsv3_engine_model_json(const Dsv3Backend *backend, const char *path, int kv_blocks, int context,
									const char *sandbox);

#endif /* DSV3_PROCESS_H */
