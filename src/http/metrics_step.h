/* Counting what transactions, KV, timer and lock calls did. On the edge's thread, once a call.
 *
 * Every op read from a body counts once: applied (reads too), rejected (its condition did not hold, or its call was refused as a
 * whole for another one's), or error (no result: overloaded, storage full, no answer in time; a write may have happened). */
#ifndef QUEEN_HTTP_METRICS_STEP_H
#define QUEEN_HTTP_METRICS_STEP_H

#include "http/data_ops.h"
#include "http/lock_ops.h"
#include "http/metrics.h"

/* `result` NULL: there is none. */
void metrics_kv(struct edge_metrics *m, const struct kv_inputs *in, const struct kv_result *result);
void metrics_locks(struct edge_metrics *m, const struct lock_inputs *in, const struct locks_result *result);
void metrics_timers(struct edge_metrics *m, const struct timers_result *result);
/* A call that schedules was refused with this status. `rate`: by the rate limit (a 429 is an overload otherwise). */
void metrics_schedule_refused(struct edge_metrics *m, uint32_t status, bool rate);

/* What became of a transaction: counts the ops it carried too. `result` NULL: there is none. */
void metrics_step(struct edge_metrics *m, const struct kv_inputs *kv, const struct step_result *result);

#endif
