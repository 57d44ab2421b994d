/*
 * request.h
 *	  One request as the engine understands it: a SUBMIT frame, checked and copied.
 */
#ifndef DSV3_REQUEST_H
#define DSV3_REQUEST_H

#include "common/error.h"
#include "common/protocol.h"
#include "text/template.h"

/* Bytes with an owner; data NULL means the field was absent. Zero-terminated for convenience, may hold zero bytes. */
typedef struct Dsv3Bytes
{
	char *data;
	size_t len;
} Dsv3Bytes;

#define DSV3_MAX_LOGPROBS 20

typedef struct Dsv3Sampling
{
	double temperature;        /* 0: greedy */
	double top_p;              /* (0, 1]; 1 off */
	double min_p;              /* [0, 1]; 0 off */
	double repetition_penalty; /* > 0; 1 off */
	uint32_t top_k;            /* 0 off */
	int64_t seed;
} Dsv3Sampling;

typedef struct Dsv3Request
{
	uint64_t id;
	Dsv3RequestKind kind;
	Dsv3Bytes prompt;
	Dsv3Bytes input;
	Dsv3Bytes system;
	Dsv3Bytes messages;
	Dsv3Bytes tools;
	Dsv3Bytes continuation;
	Dsv3Bytes grammar; /* with it the answer is constrained */
	uint32_t grammar_kind;
	uint32_t whitespace;
	uint32_t key_order;
	bool closed_objects;
	Dsv3Bytes choices;
	Dsv3Bytes stops[DSV3_MAX_STOPS];
	int n_stops;
	bool raw;
	bool stream;
	Dsv3Think think;
	bool has_max_tokens;
	uint32_t max_tokens;
	bool has_think_budget;
	uint32_t think_budget;
	bool has_logprobs;
	uint32_t logprobs; /* alternatives beside the chosen token */
	uint32_t priority; /* 0 interactive, 1 batch */
	uint32_t role;
	bool cache_memory; /* CACHE_RESET: not the disk */
	Dsv3Bytes scope;   /* who shares cached prefixes; absent: the request shares with nobody */
	uint32_t timeout_ms;
	Dsv3Sampling sampling;
	const atomic_bool
		*abort_flag; /* NULL or not the request's: when it is set, work on the request's texts is given up */
	int32_t *tokens; /* DETOKENIZE: the ids; otherwise RESUME: delivered before a restart */
	size_t n_tokens;
} Dsv3Request;

/* A request with the defaults; NULL when memory is out. */
extern Dsv3Request *dsv3_request_new(uint64_t id, Dsv3RequestKind kind);
extern void dsv3_request_free(Dsv3Request *request);

/* Copy bytes into an absent field. */
extern bool dsv3_bytes_set(Dsv3Bytes *bytes, const char *data, size_t len, Dsv3Error *err);

/* Decode and check the body of a SUBMIT frame; NULL and 08P01 for a malformed body, 22023 for a value out of range. */
extern Dsv3Request *dsv3_request_parse(uint64_t id, const uint8_t *body, size_t len, Dsv3Error *err);

/* The ranges of every number and which fields a kind needs; dsv3_request_parse calls it, a caller that fills a request by
 * hand does too. */
extern bool dsv3_request_check(const Dsv3Request *request, Dsv3Error *err);

#endif /* DSV3_REQUEST_H */
