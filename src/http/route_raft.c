/* The cluster as this node sees it.
 *
 * GET /api/v1/raft/status             the node, "clusterId","self","voters","singleNode"
 * GET /api/v1/raft/members            "members":[each node as it describes itself], "leaderId","term","self","voters"
 * GET /api/v1/raft/liveness           who was heard of when, as the leader knows it
 * GET /api/v1/system/kv-timers        which of KV, schedules and firing are on: all; they cannot be switched off at run time
 * GET /api/v1/system/shared-state     {"enabled":true,"reason":"raft_state_machine","appliedIndex","durableIndex","queues"}
 *
 * They answer also while the broker starts and stops: from a visit to each group's thread, and what other nodes say within
 * RAFT_ANSWER_US; one that does not is "unreachable". Numbers are the first group's; with several, "groups" has them all. */
#include "http/answer.h"
#include "http/edge.h"
#include "http/raft_view.h"
#include "http/render.h"
#include "http/route.h"
#include "http/visit.h"

struct raft_request {
    struct raft_looks *looks;
    struct raft_round round;
};

static const struct raft_shared *own_of(const struct raft_request *v)
{
    return &v->looks->at[0].facts.shared;
}

/* What the leader says, or what we know ourselves. */
static const struct raft_shared *best_of(const struct raft_request *v)
{
    const struct raft_shared *own = own_of(v);
    for (uint32_t i = 0; i < v->round.count; i++) {
        const struct raft_reply *a = &v->round.at[i];
        if (!own->leads && a->ok && a->shared.leads) return &a->shared;
    }
    return own;
}

static void looked(struct raft_looks *l)
{
    request_wake(l->ctx);
}

static void look_begin(struct request *r, void (*after)(struct request *r))
{
    struct raft_request *v = arena_zero(request_arena(r), sizeof *v);
    if (r->broker == NULL) {
        answer_no_leader(r);
        return;
    }
    v->looks = arena_zero(request_arena(r), raft_looks_bytes(r->http));
    r->route_data = v;
    request_wait(r, after);
    raft_looks_begin(r->http, v->looks, edge_loop(r->edge), looked, r);
}

/* ---- status --------------------------------------------------------------------------------------------------------- */

static void replication_render(struct buf *out, const struct raft_shared *s)
{
    bool first = true;
    buf_text(out, ",\"replication\":");
    if (!s->leads) {
        buf_text(out, "null");
        return;
    }
    buf_byte(out, '[');
    for (uint32_t i = 0; i < s->count; i++) {
        const struct raft_member *m = &s->at[i];
        if (m->m.id == s->node) continue;
        field_number(out, first ? "{\"nodeId\":" : ",{\"nodeId\":", m->m.id);
        first = false;
        if (m->known)
            field_number(out, ",\"matchIndex\":", m->progress.match);
        else
            buf_text(out, ",\"matchIndex\":null");
        raft_ms_or_null(out, ",\"heartbeatAgeMs\":", m->known ? m->progress.heard_age_us : -1);
        buf_byte(out, '}');
    }
    buf_byte(out, ']');
}

static void status_after(struct request *r)
{
    const struct raft_request *v = r->route_data;
    buf_byte(&r->out, '{');
    raft_cluster_render(r->http, &r->out, own_of(v));
    field_bool(&r->out, ",\"singleNode\":", node_alone(r->http->node));
    buf_byte(&r->out, ',');
    raft_block_render(r->http, &r->out, v->looks, true);
    replication_render(&r->out, own_of(v));
    buf_byte(&r->out, '}');
    answer_json(r, 200);
}

void route_raft_status(struct request *r)
{
    look_begin(r, status_after);
}

/* ---- members -------------------------------------------------------------------------------------------------------- */

static void view_of_leader_render(struct buf *out, const struct raft_shared *s, uint64_t id)
{
    const struct raft_member *m = raft_member_find(s, id);
    bool known = m != NULL && m->known;
    if (!known) {
        buf_text(out, ",\"matchIndex\":null,\"heartbeatAgeMs\":null,\"lagEntries\":null");
        return;
    }
    field_number(out, ",\"matchIndex\":", m->progress.match);
    raft_ms_or_null(out, ",\"heartbeatAgeMs\":", m->progress.heard_age_us);
    field_number(out, ",\"lagEntries\":", s->last > m->progress.match ? s->last - m->progress.match : 0);
}

static void unreachable_render(struct buf *out, const struct replica_member *m)
{
    struct node_member one;
    node_member_read(m, &one);
    field_number(out, "\"nodeId\":", m->id);
    buf_printf(out, ",\"role\":\"%s\",\"state\":\"unreachable\",\"local\":false,\"reachable\":false",
               one.voter ? "voter" : "learner");
    field_text(out, ",\"raftAddr\":", slice_of(one.raft));
    field_text(out, ",\"httpAddr\":", slice_of(one.http));
    buf_text(out, ",\"hostname\":null,\"error\":\"it did not answer within 1.5 s\"");
}

static const struct raft_reply *reply_of(const struct raft_round *round, uint64_t id)
{
    for (uint32_t i = 0; i < round->count; i++) {
        if (round->at[i].node == id && round->at[i].ok) return &round->at[i];
    }
    return NULL;
}

static void members_render(struct request *r)
{
    const struct raft_request *v = r->route_data;
    const struct raft_shared *own = own_of(v), *best = best_of(v);
    struct buf *out = &r->out;
    bool first = true;
    buf_byte(out, '{');
    raft_cluster_render(r->http, out, own);
    raft_id_or_null(out, ",\"leaderId\":", best->leader);
    field_number(out, ",\"term\":", best->term);
    buf_text(out, ",\"members\":[");
    for (uint32_t i = 0; i < own->count; i++) {
        uint64_t id = own->at[i].m.id;
        const struct raft_reply *reply = reply_of(&v->round, id);
        buf_text(out, first ? "{" : ",{");
        first = false;
        if (id == own->node)
            raft_block_render(r->http, out, v->looks, true);
        else if (reply != NULL)
            buf_slice(out, reply->block);
        else
            unreachable_render(out, &own->at[i].m);
        view_of_leader_render(out, best, id);
        buf_byte(out, '}');
    }
    buf_text(out, "]}");
    answer_json(r, 200);
}

static void members_looked(struct request *r)
{
    struct raft_request *v = r->route_data;
    const struct raft_shared *own = own_of(v);
    v->round.request = r;
    v->round.what = RAFT_ASK_BLOCK;
    for (uint32_t i = 0; i < own->count; i++) {
        if (own->at[i].m.id != own->node) v->round.at[v->round.count++].node = own->at[i].m.id;
    }
    if (v->round.count == 0) {
        members_render(r);
        return;
    }
    request_wait(r, members_render);
    raft_round_begin(&v->round);
}

void route_raft_members(struct request *r)
{
    look_begin(r, members_looked);
}

/* ---- liveness ------------------------------------------------------------------------------------------------------- */

static const char *state_seen(struct request *r, const struct raft_shared *s, const struct raft_member *m)
{
    int64_t limit_us = (int64_t)r->http->config->election_ms * 3000;
    if (m->m.id == s->leader) return "leader";
    if (m->known && (m->progress.heard_age_us < 0 || m->progress.heard_age_us > limit_us)) return "unreachable";
    return m->m.role == REPLICA_VOTER ? "follower" : "learner";
}

static void liveness_render(struct request *r)
{
    const struct raft_request *v = r->route_data;
    const struct raft_shared *own = own_of(v), *best = best_of(v);
    struct buf *out = &r->out;
    field_number(out, "{\"engine\":\"raft\",\"nodeId\":", own->node);
    raft_id_or_null(out, ",\"leaderId\":", own->leader);
    field_number(out, ",\"term\":", own->term);
    buf_text(out, best->leads ? ",\"viewAgeMs\":0" : ",\"viewAgeMs\":null");
    raft_id_or_null(out, ",\"viewLeaderId\":", best->leads ? best->node : 0);
    buf_text(out, ",\"members\":[");
    for (uint32_t i = 0; i < best->count; i++) {
        const struct raft_member *m = &best->at[i];
        struct node_member one;
        node_member_read(&m->m, &one);
        field_number(out, i == 0 ? "{\"nodeId\":" : ",{\"nodeId\":", one.id);
        buf_printf(out, ",\"role\":\"%s\",\"state\":\"%s\"", one.voter ? "voter" : "learner", state_seen(r, best, m));
        field_text_or_null(out, ",\"http\":", one.http[0] == '\0' ? slice_make(NULL, 0) : slice_of(one.http));
        field_text_or_null(out, ",\"raft\":", one.raft[0] == '\0' ? slice_make(NULL, 0) : slice_of(one.raft));
        raft_ms_or_null(out, ",\"lastAckMs\":", m->known ? m->progress.heard_age_us : -1);
        if (m->known)
            field_number(out, ",\"matchIndex\":", m->progress.match);
        else
            buf_text(out, ",\"matchIndex\":null");
        field_bool(out, ",\"local\":", one.id == own->node);
        buf_byte(out, '}');
    }
    buf_text(out, "]}");
    answer_json(r, 200);
}

static void liveness_looked(struct request *r)
{
    struct raft_request *v = r->route_data;
    const struct raft_shared *own = own_of(v);
    if (own->leads || own->leader == 0 || own->leader == own->node) {
        liveness_render(r);
        return;
    }
    v->round.request = r;
    v->round.what = RAFT_ASK_SHARED;
    v->round.at[v->round.count++].node = own->leader;
    request_wait(r, liveness_render);
    raft_round_begin(&v->round);
}

void route_raft_liveness(struct request *r)
{
    look_begin(r, liveness_looked);
}

/* ---- system --------------------------------------------------------------------------------------------------------- */

static void shared_after(struct request *r)
{
    const struct raft_request *v = r->route_data;
    const struct broker_metrics *m = &v->looks->at[0].facts.m;
    uint64_t queues = 0;
    for (uint32_t i = 0; i < v->looks->count; i++) queues += v->looks->at[i].facts.m.engine.queues;
    field_number(&r->out, "{\"enabled\":true,\"reason\":\"raft_state_machine\",\"appliedIndex\":", m->applied_index);
    field_number(&r->out, ",\"durableIndex\":", m->durable_index);
    field_number(&r->out, ",\"queues\":", queues);
    buf_byte(&r->out, '}');
    answer_json(r, 200);
}

void route_shared_state(struct request *r)
{
    look_begin(r, shared_after);
}

void route_kv_timers(struct request *r)
{
    buf_text(
        &r->out,
        "{\"kvEnabled\":true,\"timersScheduleEnabled\":true,\"timersFireEnabled\":true,\"quotaTenants\":0,\"quotaAgeMs\":null,"
        "\"quotaHot\":0}");
    answer_json(r, 200);
}
