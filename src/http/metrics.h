/* Counters of one edge, and their sum over all. Written by the edge's thread without locks, read by any. */
#ifndef QUEEN_HTTP_METRICS_H
#define QUEEN_HTTP_METRICS_H

#include "http/http.h"
#include "http/route.h"

enum {
    METRICS_STATUSES = 24,
    METRICS_BUCKETS = 20, /* of latency: bucket i counts requests that took at most 64 us * 2^i; the last one is open */
    METRICS_BUCKET_US = 64,
    METRICS_KV_OPS = KV_GET_PREFIX + 1,
    METRICS_LOCK_OPS = LOCK_GET + 1,
    METRICS_TIMER_STATUSES = TIMER_ABSENT + 1,
};

enum op_result { OP_APPLIED, OP_REJECTED, OP_ERROR, OP_RESULTS };

/* Why calls that schedule timers were refused. */
enum schedule_refusal {
    SCHEDULE_SHAPE,
    SCHEDULE_TOO_LARGE,
    SCHEDULE_HORIZON,
    SCHEDULE_RATE_LIMITED,
    SCHEDULE_UNAVAILABLE, /* overloaded, storage full, no answer in time: some may have been carried out */
    SCHEDULE_REFUSALS
};

/* What became of transactions: first as enum step_refusal has it. */
enum transaction_fate {
    TRANSACTION_MALFORMED = STEP_KV_PRECONDITION + 1, /* refused for what stands in it, before anything was looked at */
    TRANSACTION_ERROR,                                /* no result: it may have been carried out */
    TRANSACTION_FATES
};

struct route_metrics {
    struct counter status[METRICS_STATUSES];
    struct counter bucket[METRICS_BUCKETS];
    struct counter us_total;
};

struct edge_metrics {
    struct route_metrics routes[ROUTE_COUNT];
    struct counter push_messages, pop_messages, ack_messages;
    struct counter transactions[TRANSACTION_FATES];
    struct counter kv_ops[METRICS_KV_OPS][OP_RESULTS], lock_ops[METRICS_LOCK_OPS][OP_RESULTS];
    struct counter kv_bytes_in, kv_bytes_out; /* of values */
    struct counter kv_reads_limited, schedules_refused[SCHEDULE_REFUSALS];
    struct counter timer_ops[METRICS_TIMER_STATUSES];
    struct counter accepted, refused_heads, cut_slow, left_while_parked;
    struct counter parked; /* now */
};

/* Counts one finished request. */
void metrics_count(struct edge_metrics *m, enum route_id route, uint32_t status, int64_t us);

/* Status of a slot of `status`; the last slot counts all others and gives 0. */
uint32_t metrics_status(uint32_t slot);

uint64_t metrics_requests(const struct edge_metrics *m, enum route_id route); /* of all statuses */

/* Sums all edges into `out`, a zeroed struct. */
void metrics_sum(struct http *h, struct edge_metrics *out);

#endif
