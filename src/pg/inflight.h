/*
 * inflight.h
 *	  The supervisor's dealings with requests: which to give to the engine, what its frames do to them, and what becomes
 *	  of them when it ends.
 */
#ifndef DSV3_INFLIGHT_H
#define DSV3_INFLIGHT_H

#include "pg/compat.h"

#include "common/error.h"
#include "common/protocol.h"
#include "pg/relay.h"

extern void dsv3_inflight_init(void);

/* Requests the engine has now. */
extern int dsv3_inflight_count(void);

/* Settle what callers left or cancelled, tell the engine, and give it what waits as far as `ready` and the relay's
 * pending output allow. */
extern void dsv3_inflight_serve(Dsv3Relay *relay, bool ready);

/* A DELTA, DONE or FAIL frame with a request. False: the frame is not what an engine may send; err says what is wrong,
 * and *settled that the request it names has failed with it. */
extern bool dsv3_inflight_frame(Dsv3Relay *relay, const Dsv3FrameHeader *header, const uint8 *body,
								Dsv3Error *err, bool *settled);

/* The engine sent what cannot be told to belong to a request. If the engine had one request only, that one fails. */
extern void dsv3_inflight_blame(const Dsv3Error *err);

/* The engine is gone: what it had waits for the next one, or fails if it has seen too many ends. */
extern void dsv3_inflight_engine_gone(int retries, const char *how);

/* The next engine has another model: what waits with part of an answer starts from nothing, or fails if its caller has
 * that part. */
extern void dsv3_inflight_model_changed(void);

#endif /* DSV3_INFLIGHT_H */
