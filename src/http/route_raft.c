/* The cluster as this node sees it; this broker runs on one node.
 *
 * GET /api/v1/raft/status             the node, "clusterId","self","voters","singleNode"
 * GET /api/v1/raft/members            "members":[the node], "leaderId","term","self","voters"
 * GET /api/v1/raft/liveness           who was heard of when
 * GET /api/v1/system/kv-timers        which of KV, schedules and firing are on: all; they cannot be switched off at run time
 * GET /api/v1/system/shared-state     {"enabled":true,"reason":"raft_state_machine","appliedIndex","durableIndex","queues"}
 *
 * They answer also while the broker starts and stops. Numbers of the group come from one visit to its thread; those of the machine are read
 * when asked for. Addresses between nodes are null: there are none. */
#include <stdio.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "http/answer.h"
#include "http/ops.h"
#include "http/render.h"
#include "http/route.h"
#include "http/visit.h"

enum { NODE_ID = 1 };

struct raft_view {
    struct broker_metrics m;
    uint64_t seed;
    bool members, liveness, shared;
};

static void view_read(struct call *c, struct engine *e, struct engine_now now)
{
    struct request *r = c->read_ctx;
    struct raft_view *v = r->route_data;
    (void)now;
    broker_metrics(r->broker, &v->m);
    v->seed = engine_id_seed(e);
}

static const char *state_of(const struct broker_health *h)
{
    return h->leader ? "leader" : strcmp(h->role, "stopped") == 0 ? "shutdown" : h->role;
}

static void disk_render(struct request *r, struct buf *out, bool storage_full)
{
    const struct config *c = r->http->config;
    struct statvfs v = {0};
    bool known = statvfs(c->dir, &v) == 0;
    uint64_t used = known ? (uint64_t)(v.f_blocks - v.f_bfree) * v.f_frsize : 0;
    uint64_t total = known ? used + (uint64_t)v.f_bavail * v.f_frsize : 0;
    field_number(out, "{\"totalBytes\":", total);
    field_number(out, ",\"usedBytes\":", used);
    field_number(out, ",\"usedPct\":", total == 0 ? 0 : used * 100 / total);
    buf_printf(out, ",\"gate\":\"%s\"", storage_full ? "closed" : "open");
    field_number(out, ",\"highPct\":", c->disk_high_pct);
    field_number(out, ",\"lowPct\":", c->disk_low_pct);
    field_bool(out, ",\"writesRefused\":", storage_full);
    buf_byte(out, '}');
}

static uint64_t memory_limit(void)
{
    unsigned long long bytes = 0;
    FILE *file = fopen("/sys/fs/cgroup/memory.max", "re");
    if (file != NULL) {
        if (fscanf(file, "%llu", &bytes) != 1) bytes = 0; /* "max" */
        fclose(file);
    }
    return bytes;
}

static void host_render(struct request *r, struct buf *out, bool storage_full)
{
    uint64_t limit = memory_limit();
    buf_text(out, ",\"host\":{\"cpuPct\":null,\"cpuWindowSeconds\":null");
    field_signed(out, ",\"cpus\":", sysconf(_SC_NPROCESSORS_ONLN));
    field_number(out, ",\"rssBytes\":", ops_resident_bytes());
    if (limit > 0)
        field_number(out, ",\"memLimitBytes\":", limit);
    else
        buf_text(out, ",\"memLimitBytes\":null");
    buf_text(out, ",\"disk\":");
    disk_render(r, out, storage_full);
    buf_byte(out, '}');
}

static void address_render(struct request *r, struct buf *out, const char *key)
{
    const struct config *c = r->http->config;
    char text[300];
    bool six = strchr(c->host, ':') != NULL;
    snprintf(text, sizeof text, "%s%s%s:%u", six ? "[" : "", c->host, six ? "]" : "", c->port);
    field_text(out, key, slice_of(text));
}

/* The node block, without braces. */
static void node_render(struct request *r, struct buf *out, const struct raft_view *v, const struct broker_health *h)
{
    field_number(out, "\"nodeId\":", NODE_ID);
    field_text(out, ",\"hostname\":", slice_of(r->http->config->server_id));
    address_render(r, out, ",\"raftAddr\":null,\"httpAddr\":");
    buf_printf(out, ",\"role\":\"voter\",\"state\":\"%s\",\"local\":true,\"reachable\":true", state_of(h));
    if (h->leader)
        field_number(out, ",\"leaderId\":", NODE_ID);
    else
        buf_text(out, ",\"leaderId\":null");
    field_number(out, ",\"term\":", h->term);
    field_number(out, ",\"lastLogIndex\":", v->m.log_index);
    field_number(out, ",\"committedIndex\":", v->m.commit_index);
    field_number(out, ",\"appliedIndex\":", v->m.applied_index);
    field_number(out, ",\"durableIndex\":", v->m.durable_index);
    field_number(out, ",\"inflight\":", v->m.in_flight_entries);
    field_number(out, ",\"proposals\":", v->m.entries_total);
    field_number(out, ",\"log\":{\"files\":", v->m.log.files);
    field_number(out, ",\"bytes\":", v->m.log.file_bytes);
    field_number(out, "},\"store\":{\"mapBytes\":0,\"usedBytes\":", v->m.store_bytes);
    buf_text(out, ",\"mapUsedPct\":0,\"readersInUse\":0,\"maxReaders\":0}");
    buf_printf(out, ",\"version\":\"2.0.0+queen.%s\"", r->http->config->version);
    field_signed(out, ",\"uptimeSeconds\":", (clock_mono_us() - r->http->started_us) / 1000000);
    host_render(r, out, v->m.storage_full);
    buf_text(out, ",\"error\":null");
}

static void cluster_render(struct buf *out, const struct raft_view *v)
{
    uint64_t seed = v->seed;
    buf_printf(out, "\"engine\":\"raft\",\"clusterId\":\"%08x\",\"self\":%d,\"voters\":1",
               (unsigned)hash64(slice_make(&seed, sizeof seed), 0), NODE_ID);
}

static void status_render(struct request *r, struct buf *out, const struct raft_view *v, const struct broker_health *h)
{
    buf_byte(out, '{');
    cluster_render(out, v);
    buf_text(out, ",\"singleNode\":true,");
    node_render(r, out, v, h);
    buf_text(out, h->leader ? ",\"replication\":[]}" : ",\"replication\":null}");
}

static void members_render(struct request *r, struct buf *out, const struct raft_view *v, const struct broker_health *h)
{
    buf_byte(out, '{');
    cluster_render(out, v);
    buf_printf(out, h->leader ? ",\"leaderId\":%d" : ",\"leaderId\":null", NODE_ID);
    field_number(out, ",\"term\":", h->term);
    buf_text(out, ",\"members\":[{");
    node_render(r, out, v, h);
    field_number(out, ",\"matchIndex\":", v->m.log_index);
    buf_text(out, ",\"heartbeatAgeMs\":0,\"lagEntries\":0}]}");
}

static void liveness_render(struct request *r, struct buf *out, const struct raft_view *v, const struct broker_health *h)
{
    const char *leader = h->leader ? "1" : "null";
    buf_printf(out, "{\"engine\":\"raft\",\"nodeId\":%d,\"leaderId\":%s", NODE_ID, leader);
    field_number(out, ",\"term\":", h->term);
    buf_printf(out, ",\"viewAgeMs\":0,\"viewLeaderId\":%s,\"members\":[{\"nodeId\":%d,\"role\":\"voter\",\"state\":\"%s\"",
               leader, NODE_ID, state_of(h));
    address_render(r, out, ",\"http\":");
    field_number(out, ",\"raft\":null,\"lastAckMs\":0,\"matchIndex\":", v->m.log_index);
    buf_text(out, ",\"local\":true}]}");
}

static void view_after(struct request *r)
{
    const struct raft_view *v = r->route_data;
    struct broker_health h;
    if (!answer_outcome(r)) return;
    broker_health(r->broker, &h);
    if (v->shared) {
        field_number(&r->out, "{\"enabled\":true,\"reason\":\"raft_state_machine\",\"appliedIndex\":", v->m.applied_index);
        field_number(&r->out, ",\"durableIndex\":", v->m.durable_index);
        field_number(&r->out, ",\"queues\":", v->m.engine.queues);
        buf_byte(&r->out, '}');
    } else if (v->members) {
        members_render(r, &r->out, v, &h);
    } else if (v->liveness) {
        liveness_render(r, &r->out, v, &h);
    } else {
        status_render(r, &r->out, v, &h);
    }
    answer_json(r, 200);
}

static void view_submit(struct request *r, struct raft_view wanted)
{
    struct raft_view *v = arena_zero(request_arena(r), sizeof *v);
    *v = wanted;
    r->route_data = v;
    if (r->broker == NULL) {
        answer_error(r, 503, "no_leader", "the broker is starting");
        r->retry_after_s = 1;
        return;
    }
    r->call.kind = CALL_READ;
    r->call.always = true;
    r->call.read = view_read;
    r->call.read_ctx = r;
    request_submit(r, r->http->config->pop_timeout_ms, view_after);
}

void route_raft_status(struct request *r)
{
    view_submit(r, (struct raft_view){0});
}

void route_raft_members(struct request *r)
{
    view_submit(r, (struct raft_view){.members = true});
}

void route_raft_liveness(struct request *r)
{
    view_submit(r, (struct raft_view){.liveness = true});
}

void route_shared_state(struct request *r)
{
    view_submit(r, (struct raft_view){.shared = true});
}

void route_kv_timers(struct request *r)
{
    buf_text(
        &r->out,
        "{\"kvEnabled\":true,\"timersScheduleEnabled\":true,\"timersFireEnabled\":true,\"quotaTenants\":0,\"quotaAgeMs\":null,"
        "\"quotaHot\":0}");
    answer_json(r, 200);
}
