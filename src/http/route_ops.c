/* GET  /health                  200 healthy or 503 settling; never waits for the group. While the state is loaded, with
 *                               "loading":{"rows","percent"}: rows so far, and how far that is, about
 * GET  /status                  {"status":"ok","engine":"raft"}; no state is looked at
 * GET  /metrics                 JSON: uptime in s, requests and messages since start, resident bytes, raft numbers
 * POST /api/v1/stats/refresh    {"success":true,"refreshed":false,"engine":"raft"}: nothing to refresh, never fails
 *
 * `version` begins with the protocol version that clients look at (2.0.0); ours follows as build metadata. */
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "http/answer.h"
#include "http/edge.h"
#include "http/metrics.h"
#include "http/ops.h"
#include "http/route.h"

uint64_t ops_resident_bytes(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL) return 0;
    if (fscanf(file, "%*u %lu", &pages) != 1) pages = 0;
    fclose(file);
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

struct health {
    struct broker_health first; /* group 0's numbers */
    bool ready, leader_known, storage_ready, leads_other;
    int64_t lag_us, quorum_age_us; /* the worst of all groups; quorum: -1 = some group never heard */
};

/* Several groups are as well as the worst of them. */
static void health_read(struct http *h, struct health *out)
{
    struct node *n = h->node;
    bool open = n != NULL && node_group(n, 0) != NULL;
    *out = (struct health){
        .first = {.role = n == NULL ? "starting" : "stopped"}, .ready = open, .leader_known = open, .storage_ready = open};
    for (uint32_t i = 0; open && i < node_group_count(n); i++) {
        struct broker_health b;
        broker_health(node_group(n, i), &b);
        if (i == 0) out->first = b;
        out->ready = out->ready && b.ready;
        out->leader_known = out->leader_known && (b.leader || b.leader_id != 0);
        out->storage_ready = out->storage_ready && b.storage_ready;
        out->leads_other = out->leads_other || (i > 0 && b.leader);
        if (b.lag_us > out->lag_us) out->lag_us = b.lag_us;
        if (out->quorum_age_us >= 0 && (b.quorum_age_us < 0 || b.quorum_age_us > out->quorum_age_us))
            out->quorum_age_us = b.quorum_age_us;
    }
    out->ready = out->ready && http_ready(h) && !atomic_load_explicit(&h->stopping, memory_order_relaxed);
}

static void raft_render(struct buf *out, const struct health *h)
{
    const struct broker_health *b = &h->first;
    buf_printf(out, "{\"role\":\"%s%s\",\"leader\":%s,\"term\":%llu,\"applied\":%llu,\"commit\":%llu,\"lag\":%lld", b->role,
               h->leads_other && !b->leader ? "+leader" : "", h->leader_known ? "true" : "false", (unsigned long long)b->term,
               (unsigned long long)b->applied, (unsigned long long)b->commit, (long long)(h->lag_us / 1000));
    buf_printf(out, ",\"storageReady\":%s", h->storage_ready ? "true" : "false");
    if (h->quorum_age_us < 0)
        buf_text(out, ",\"quorumAckMs\":null");
    else
        buf_printf(out, ",\"quorumAckMs\":%lld", (long long)(h->quorum_age_us / 1000));
}

void route_health(struct request *r)
{
    struct health b;
    health_read(r->http, &b);
    buf_printf(&r->out, "{\"status\":\"%s\",\"engine\":\"raft\",\"version\":\"2.0.0+queen.%s\",\"raft\":",
               b.ready ? "healthy" : "settling", r->http->config->version);
    raft_render(&r->out, &b);
    buf_text(&r->out, ",\"clusterVersion\":1,\"kinds\":1");
    if (r->http->node != NULL && !node_alone(r->http->node)) buf_text(&r->out, ",\"apply\":{\"failure\":null,\"skipped\":[]}");
    buf_byte(&r->out, '}');
    if (r->http->node == NULL)
        buf_printf(&r->out, ",\"loading\":{\"rows\":%llu,\"percent\":%u}",
                   (unsigned long long)atomic_load_explicit(&r->http->rows_loaded, memory_order_relaxed),
                   atomic_load_explicit(&r->http->loaded_per_mille, memory_order_relaxed) / 10);
    buf_byte(&r->out, '}');
    answer_json(r, b.ready ? 200 : 503);
    if (!b.ready) r->retry_after_s = 1;
}

void route_status(struct request *r)
{
    buf_text(&r->out, "{\"status\":\"ok\",\"engine\":\"raft\"}");
    answer_json(r, 200);
}

void route_metrics(struct request *r)
{
    static const enum route_id work[] = {ROUTE_PUSH,          ROUTE_POP_QUEUE, ROUTE_POP_PARTITION,
                                         ROUTE_POP_DISCOVERY, ROUTE_ACK,       ROUTE_ACK_BATCH};
    struct edge_metrics *m = arena_zero(request_arena(r), sizeof *m);
    struct health b;
    uint64_t requests = 0;
    metrics_sum(r->http, m);
    for (size_t i = 0; i < sizeof work / sizeof work[0]; i++) requests += metrics_requests(m, work[i]);
    uint64_t messages = counter_get(&m->push_messages) + counter_get(&m->pop_messages) + counter_get(&m->ack_messages);
    health_read(r->http, &b);
    buf_printf(&r->out, "{\"uptime\":%lld,\"requests\":{\"total\":%llu,\"rate\":0},\"messages\":{\"total\":%llu,\"rate\":0},",
               (long long)((clock_mono_us() - r->http->started_us) / 1000000), (unsigned long long)requests,
               (unsigned long long)messages);
    buf_printf(&r->out,
               "\"memory\":{\"rss\":%llu,\"heapTotal\":0,\"heapUsed\":0,\"external\":0,\"arrayBuffers\":0},\"cpu\":{\"user\":0,"
               "\"system\":0},"
               "\"engine\":\"raft\",\"raft\":",
               (unsigned long long)ops_resident_bytes());
    raft_render(&r->out, &b);
    buf_text(&r->out, "}}");
    answer_json(r, 200);
}

void route_stats_refresh(struct request *r)
{
    buf_text(&r->out, "{\"success\":true,\"refreshed\":false,\"engine\":\"raft\"}");
    answer_json(r, 200);
}
