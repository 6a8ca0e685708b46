/* GET  /health                  200 healthy or 503 settling; never waits for the group
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

static void health_read(struct http *h, struct broker_health *out)
{
    *out = (struct broker_health){.role = "stopped"};
    if (h->node == NULL || node_group(h->node, 0) == NULL) return;
    broker_health(node_group(h->node, 0), out);
    out->ready = out->ready && http_ready(h) && !atomic_load_explicit(&h->stopping, memory_order_relaxed);
}

static void raft_render(struct buf *out, const struct broker_health *b)
{
    buf_printf(out,
               "{\"role\":\"%s\",\"leader\":%s,\"term\":%llu,\"applied\":%llu,\"commit\":%llu,\"lag\":0,\"storageReady\":%s",
               b->role, b->leader ? "true" : "false", (unsigned long long)b->term, (unsigned long long)b->applied,
               (unsigned long long)b->commit, b->storage_ready ? "true" : "false");
}

void route_health(struct request *r)
{
    struct broker_health b;
    health_read(r->http, &b);
    buf_printf(&r->out, "{\"status\":\"%s\",\"engine\":\"raft\",\"version\":\"2.0.0+queen.%s\",\"raft\":",
               b.ready ? "healthy" : "settling", r->http->config->version);
    raft_render(&r->out, &b);
    buf_text(&r->out, ",\"clusterVersion\":1,\"kinds\":1}}");
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
    struct broker_health b;
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
    buf_text(&r->out, ",\"quorumAckMs\":0}}");
    answer_json(r, 200);
}

void route_stats_refresh(struct request *r)
{
    buf_text(&r->out, "{\"success\":true,\"refreshed\":false,\"engine\":\"raft\"}");
    answer_json(r, 200);
}
