/*
 * pump.h
 *	  The I/O thread: frames between the socket and the rest of the engine.
 *
 * It reads, checks and hands over frames one by one, and writes what others put in its queue. Nothing ever waits for
 * the socket but this thread: dsv3_pump_send puts a frame in the queue and returns. The queue is bounded by asking first:
 * dsv3_pump_has_room says whether more should be produced, and room_again is called when that becomes true again. Above
 * a hard limit, which only an unread flood of answers to small questions reaches, the pump stops reading until the
 * other side reads.
 */
#ifndef DSV3_PUMP_H
#define DSV3_PUMP_H

#include <pthread.h>

#include "common/error.h"
#include "common/protocol.h"

typedef struct Dsv3Pump Dsv3Pump;

typedef struct Dsv3PumpHandler
{
	/* A whole frame with a good header; called by the I/O thread, must not wait. The body is the pump's. false: the other side
	 * broke the protocol, *err says how; the pump ends. */
	bool (*frame)(void *arg, const Dsv3FrameHeader *header, const uint8_t *body, Dsv3Error *err);
	/* There is room again after dsv3_pump_has_room said no. May be NULL. */
	void (*room_again)(void *arg);
	/* The last call: err NULL at the end of the stream between two frames, else what broke. */
	void (*closed)(void *arg, const Dsv3Error *err);
	void *arg;
} Dsv3PumpHandler;

/* Takes a connected stream socket, makes it non-blocking, and never closes it. soft_limit: bytes of queue above which there is
 * no room; 0: 1 MB. */
extern Dsv3Pump *dsv3_pump_open(int fd, const Dsv3PumpHandler *handler, size_t soft_limit, Dsv3Error *err);

/* Starts the thread. The handler may be called before this returns, so that whatever it uses must be ready, the result of
 * dsv3_pump_open included. */
extern bool dsv3_pump_start(Dsv3Pump *pump, Dsv3Error *err);

/* Stops the thread; what is queued is written as far as the socket takes it at once. */
extern void dsv3_pump_close(Dsv3Pump *pump);

/* Queue a frame: header and body are copied. false when memory is out. Any thread, also within the frame handler. */
extern bool dsv3_pump_send(Dsv3Pump *pump, uint16_t type, uint64_t request, const uint8_t *body, size_t len);

extern bool dsv3_pump_has_room(Dsv3Pump *pump);

/* Wait until the queue is written or the time is over; for last words before the process ends. */
extern void dsv3_pump_drain(Dsv3Pump *pump, int timeout_ms);

/* The descriptors the I/O thread uses besides the socket, for the sandbox. */
extern int dsv3_pump_wake_fd(const Dsv3Pump *pump);

#endif /* DSV3_PUMP_H */
