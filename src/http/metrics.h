/* Counters of one edge, and their sum over all. Written by the edge's thread without locks, read by any. */
#ifndef QUEEN_HTTP_METRICS_H
#define QUEEN_HTTP_METRICS_H

#include "http/http.h"
#include "http/route.h"

enum {
    METRICS_STATUSES = 24,
    METRICS_BUCKETS = 20, /* of latency: bucket i counts requests that took at most 64 us * 2^i; the last one is open */
    METRICS_BUCKET_US = 64,
};

struct route_metrics {
    struct counter status[METRICS_STATUSES];
    struct counter bucket[METRICS_BUCKETS];
    struct counter us_total;
};

struct edge_metrics {
    struct route_metrics routes[ROUTE_COUNT];
    struct counter push_messages, pop_messages, ack_messages;
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
