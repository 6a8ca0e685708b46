#include "http/metrics.h"

#include "http/edge.h"

static const uint16_t statuses[METRICS_STATUSES - 1] = {200, 201, 204, 400, 404, 405, 408, 413, 414, 415, 417, 429,
                                                        431, 500, 501, 503, 505, 507, 403, 401, 409, 304, 206};

uint32_t metrics_status(uint32_t slot)
{
    return slot < METRICS_STATUSES - 1 ? statuses[slot] : 0;
}

static uint32_t status_slot(uint32_t status)
{
    for (uint32_t i = 0; i < METRICS_STATUSES - 1; i++) {
        if (statuses[i] == status) return i;
    }
    return METRICS_STATUSES - 1;
}

void metrics_count(struct edge_metrics *m, enum route_id route, uint32_t status, int64_t us)
{
    struct route_metrics *r = &m->routes[route];
    uint64_t units = us <= 0 ? 0 : ((uint64_t)us - 1) / METRICS_BUCKET_US;
    uint32_t bucket = units == 0 ? 0 : 64 - (uint32_t)__builtin_clzll(units);
    if (bucket >= METRICS_BUCKETS) bucket = METRICS_BUCKETS - 1;
    counter_add(&r->status[status_slot(status)], 1);
    counter_add(&r->bucket[bucket], 1);
    counter_add(&r->us_total, us < 0 ? 0 : (uint64_t)us);
}

void metrics_sum(struct http *h, struct edge_metrics *out)
{
    /* The struct is counters and nothing else. */
    struct counter *to = (struct counter *)(void *)out;
    for (uint32_t i = 0; i < h->edge_count; i++) {
        const struct counter *from = (const struct counter *)(const void *)edge_metrics_of(h->edges[i]);
        for (size_t k = 0; k < sizeof *out / sizeof *to; k++) counter_add(&to[k], counter_get(&from[k]));
    }
}

uint64_t metrics_requests(const struct edge_metrics *m, enum route_id route)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < METRICS_STATUSES; i++) n += counter_get(&m->routes[route].status[i]);
    return n;
}
