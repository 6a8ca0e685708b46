/* Answers of the KV and locks routes that are not results: their envelope {"error","reason","detail"}. */
#ifndef QUEEN_HTTP_KV_ANSWER_H
#define QUEEN_HTTP_KV_ANSWER_H

#include "http/data_ops.h"
#include "http/request.h"

void kv_answer_refusal(struct request *r, const struct ops_refusal *why);
/* The envelope of a call's outcome. True when it is CALL_OK: then nothing was set and the route renders. */
bool kv_answer_outcome(struct request *r);
/* Counts the call against the tenant's rate. False: an answer (429) is set. */
bool kv_answer_rate(struct request *r, bool writes);

#endif
