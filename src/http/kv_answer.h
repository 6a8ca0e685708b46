/* Answers of the KV, locks and timers routes that are not results: their envelope {"error","reason","detail"}. */
#ifndef QUEEN_HTTP_KV_ANSWER_H
#define QUEEN_HTTP_KV_ANSWER_H

#include "http/data_ops.h"
#include "http/request.h"

void kv_answer_refusal(struct request *r, const struct ops_refusal *why);
/* What a family of routes calls the outcomes that all have. */
struct ops_family {
    const char *unavailable, *timeout, *no_leader, *retry, *error;
};
/* The same as a refusal, of literals; a 503 says to come again in a second. */
void ops_answer_failure(struct request *r, uint32_t status, const char *error, const char *reason, const char *detail);
bool ops_answer_outcome(struct request *r, const struct ops_family *f); /* like kv_answer_outcome */
/* The envelope of a call's outcome. True when it is CALL_OK: then nothing was set and the route renders. */
bool kv_answer_outcome(struct request *r);
/* Counts the call against the tenant's rate. False: an answer (429) is set. */
bool kv_answer_rate(struct request *r, bool writes);

#endif
