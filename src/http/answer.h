/* Answers that are not a route's own JSON: error envelopes, refusals of the HTTP layer, outcomes of calls.
 * All set the request's answer; nothing is sent here. */
#ifndef QUEEN_HTTP_ANSWER_H
#define QUEEN_HTTP_ANSWER_H

#include "http/body.h"
#include "http/request.h"

/* The JSON in r->out is the answer. */
void answer_json(struct request *r, uint32_t status);
/* {"error":text,"code":code}; without code when it is NULL. */
void answer_error(struct request *r, uint32_t status, const char *code, const char *text);
/* A refusal of a body: 400, or 413 for name_too_long. */
void answer_refusal(struct request *r, const struct body_refusal *why);
/* What HTTP itself has to say, as text/plain. */
void answer_plain(struct request *r, uint32_t status, const char *text);
/* 204: no body. */
void answer_empty(struct request *r);

void answer_name_too_long(struct request *r);

/* The envelope of a call's outcome. True when the outcome is CALL_OK or CALL_EMPTY: then nothing was set and the route renders. */
bool answer_outcome(struct request *r);
/* 503 of a request that nobody took: `retry` with the leader's address when another node leads, else `no_leader`. */
void answer_no_leader(struct request *r);
/* The address of the leader of the request's group, when it is another node and known. */
bool answer_leader_known(struct request *r, char http[NODE_ADDRESS_BYTES]);
/* A refusal of the operators' routes: {"ok":false,"code":code,"error":text}. Always false. */
bool answer_not_ok(struct request *r, uint32_t status, const char *code, const char *text);
/* The envelope for a pop's bad parameters: {"success":false,"error":text,"messages":[]}. */
void answer_pop_refusal(struct request *r, const char *text);

#endif
