/* The parameters of a pop, wherever they stand: in the query of a pop's route, or in the `next` of a transaction. The defaults, what does
 * not go together, the clamps and the answer are the same. */
#ifndef QUEEN_HTTP_POP_PARAMS_H
#define QUEEN_HTTP_POP_PARAMS_H

#include "http/request.h"

struct pop_params {
    int64_t batch, partitions, timeout_ms, lease_seconds;
    bool batch_given, partitions_given, wait, auto_ack, autopilot, conflation, conflation_given;
    bool group_given;
    struct slice group;
    struct slice mode, from; /* subscriptionMode, subscriptionFrom; empty when not given */
};

/* What holds when nothing is given. */
void pop_params_begin(struct pop_params *p, const struct config *config);

/* Once all are read: NULL, or what is wrong with them (text for the client). Clamps what may be too small or too large. */
const char *pop_params_settle(struct pop_params *p);

/* Fills in all of the command but scope and names. Mints the lease. */
void pop_params_command(const struct pop_params *p, const struct config *config, struct uuid tenant, struct pop_command *out);

/* enum subscription_mode of a subscriptionMode; of an empty text the broker's default. */
uint8_t subscription_mode_of(struct slice text, const struct config *config);

/* Appends the answer of r->call.pop to r->out and counts its messages. Without messages in `result` (which may be NULL: nothing is known)
 * the answer is empty. Gives back the call's pieces. */
void pop_answer_append(struct request *r, const struct engine_result *result);

#endif
