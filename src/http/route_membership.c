/* The members of the cluster, and changes of them. For operators: the default tenant only, else 403 forbidden.
 *
 * GET    /api/v1/system/raft/membership                {"engine":"raft","membership":M}
 * POST   .../membership/learners     {"id","raft","http"}          adds a node that follows and does not vote
 * POST   .../membership/promote      {"ids":[..] or "id","force"}  learners become voters
 * PUT    .../membership/voters       {"voters":[..] or "voter","force"}  those vote, other voters are removed
 * PUT    .../membership/members/:id  {"raft","http"}               another address of a node that keeps its disk
 * DELETE .../membership/members/:id
 *
 * Any node takes a change; it is made at the leader of each group, wherever that is (broker/node.h). Query: timeoutMs (1..120000, 30000),
 * force=true. A change answers {"ok":true,"membership":M}, a refusal {"ok":false,"code","error"}; every change may be asked for again. M's
 * numbers of others are the leader's. */
#include <stdio.h>

#include "http/answer.h"
#include "http/edge.h"
#include "http/json.h"
#include "http/raft_view.h"
#include "http/render.h"
#include "http/route.h"
#include "http/visit.h"

enum { TIMEOUT_MS = 30000, TIMEOUT_MS_MAX = 120000, NODE_ID_MAX = 1000000000 };

struct membership {
    struct loop_task task;
    struct node_change changes[NODE_CHANGES_MAX];
    uint32_t count;
    int64_t timeout_us;
    bool changed; /* the answer is that of a change */
    enum node_change_code code;
    uint32_t group, which;
    struct raft_looks *looks;
    struct raft_round round;
};

/* ---- M -------------------------------------------------------------------------------------------------------------- */

static void ids_render(struct buf *out, const char *key, const struct raft_shared *s, enum replica_member_role role)
{
    bool first = true;
    buf_text(out, key);
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->at[i].m.role != role) continue;
        if (!first) buf_byte(out, ',');
        first = false;
        buf_decimal(out, s->at[i].m.id);
    }
    buf_byte(out, ']');
}

static void member_render(struct buf *out, const struct raft_shared *s, const struct raft_member *m, int64_t live_us)
{
    struct node_member one;
    node_member_read(&m->m, &one);
    field_number(out, "{\"nodeId\":", one.id);
    field_bool(out, ",\"voter\":", one.voter);
    field_text(out, ",\"raft\":", slice_of(one.raft));
    field_text(out, ",\"http\":", slice_of(one.http));
    if (m->known) {
        field_number(out, ",\"matched\":", m->progress.match);
        field_number(out, ",\"lag\":", s->last > m->progress.match ? s->last - m->progress.match : 0);
    } else {
        buf_text(out, ",\"matched\":null,\"lag\":null");
    }
    raft_ms_or_null(out, ",\"lastAckMs\":", m->known ? m->progress.heard_age_us : -1);
    field_bool(out, ",\"live\":", m->known && m->progress.heard_age_us >= 0 && m->progress.heard_age_us <= live_us);
    buf_byte(out, '}');
}

static void membership_render(struct request *r)
{
    const struct membership *v = r->route_data;
    const struct raft_shared *own = &v->looks->at[0].facts.shared, *s = own;
    const struct config *c = r->http->config;
    struct buf *out = &r->out;
    if (v->round.count > 0 && v->round.at[0].ok && v->round.at[0].shared.leads) s = &v->round.at[0].shared;
    int64_t live_us = (int64_t)c->election_ms * 3000;
    buf_text(out, v->changed ? "{\"ok\":true" : "{\"engine\":\"raft\"");
    field_number(out, ",\"membership\":{\"nodeId\":", own->node);
    buf_printf(out, ",\"source\":\"%s\",\"viewAgeMs\":%s", own->leads ? "leader" : "follower", s->leads ? "0" : "null");
    raft_id_or_null(out, ",\"leader\":", s->leader);
    field_number(out, ",\"term\":", s->term);
    ids_render(out, ",\"voters\":[", s, REPLICA_VOTER);
    ids_render(out, ",\"learners\":[", s, REPLICA_LEARNER);
    field_number(out, ",\"joint\":null,\"membershipIndex\":", s->index);
    field_bool(out, ",\"membershipCommitted\":", s->committed);
    field_bool(out, ",\"changeInFlight\":", !s->committed);
    field_number(out, ",\"lastLogIndex\":", s->last);
    field_number(out, ",\"committedIndex\":", s->commit);
    field_signed(out, ",\"liveWithinMs\":", live_us / 1000);
    field_number(out, ",\"promoteMaxLag\":", c->promote_max_lag);
    buf_text(out, ",\"members\":[");
    for (uint32_t i = 0; i < s->count; i++) {
        if (i > 0) buf_byte(out, ',');
        member_render(out, s, &s->at[i], live_us);
    }
    buf_text(out, "]}}");
    answer_json(r, 200);
}

static void membership_looked(struct request *r)
{
    struct membership *v = r->route_data;
    const struct raft_shared *own = &v->looks->at[0].facts.shared;
    if (own->leads || own->leader == 0 || own->leader == own->node) {
        membership_render(r);
        return;
    }
    v->round = (struct raft_round){.request = r, .what = RAFT_ASK_SHARED, .count = 1};
    v->round.at[0].node = own->leader;
    request_wait(r, membership_render);
    raft_round_begin(&v->round);
}

static void looked(struct raft_looks *l)
{
    request_wake(l->ctx);
}

static void membership_look(struct request *r)
{
    struct membership *v = r->route_data;
    v->looks = arena_zero(request_arena(r), raft_looks_bytes(r->http));
    request_wait(r, membership_looked);
    raft_looks_begin(r->http, v->looks, edge_loop(r->edge), looked, r);
}

/* ---- a change ------------------------------------------------------------------------------------------------------- */

static const struct {
    uint32_t status;
    const char *code, *text;
} refusals[NODE_CHANGE_CODES] = {
    [NODE_CHANGE_OK] = {200, "", ""},
    [NODE_CHANGE_IN_FLIGHT] = {409, "in_flight", "another change of the members is not committed yet"},
    [NODE_CHANGE_NO_QUORUM] = {409, "no_quorum", "no majority of the voters would be there, now or after the change"},
    [NODE_CHANGE_LAST_VOTER] = {409, "last_voter", "it is the last voter"},
    [NODE_CHANGE_LEARNER_BEHIND] = {409, "learner_behind", "it lacks more than QUEEN_RAFT_PROMOTE_MAX_LAG entries"},
    [NODE_CHANGE_ALREADY_VOTER] = {409, "already_voter", "it votes already"},
    [NODE_CHANGE_ADDRESS_MISMATCH] = {409, "address_mismatch", "it is a member with other addresses"},
    [NODE_CHANGE_NOT_A_LEARNER] = {409, "not_a_learner", "it is no member: add it as a learner first"},
    [NODE_CHANGE_NOT_A_MEMBER] = {409, "not_a_member", "it is no member"},
    [NODE_CHANGE_FULL] = {400, "bad_request", "the cluster has as many members as it can have"},
    [NODE_CHANGE_RETRY] = {503, "retry", "no leader is known"},
    [NODE_CHANGE_LEADER_UNREACHABLE] = {503, "leader_unreachable", "the leader did not answer"},
    [NODE_CHANGE_TIMEOUT] = {504, "timeout", "it was not done in time; it may still be"},
};

static void change_answered(struct request *r)
{
    struct membership *v = r->route_data;
    if (v->code == NODE_CHANGE_OK) {
        membership_look(r);
        return;
    }
    char text[256];
    int n = snprintf(text, sizeof text, "node %llu: %s", (unsigned long long)v->changes[v->which].id, refusals[v->code].text);
    if (node_group_count(r->http->node) > 1 && n > 0 && (size_t)n < sizeof text)
        snprintf(text + n, sizeof text - (size_t)n, " (group %u)", v->group);
    answer_not_ok(r, refusals[v->code].status, refusals[v->code].code, text);
}

static void change_done(void *ctx, enum node_change_code code, uint32_t group, uint32_t which)
{
    struct request *r = ctx;
    struct membership *v = r->route_data;
    v->code = code;
    v->group = group;
    v->which = which < v->count ? which : 0;
    request_wake(r);
}

/* Main loop. */
static void change_run(struct loop_task *t)
{
    struct membership *v = (struct membership *)(void *)((char *)t - offsetof(struct membership, task));
    struct request *r = v->round.request;
    node_change(r->http->node, v->changes, v->count, v->timeout_us, change_done, r);
}

static void change_submit(struct request *r)
{
    struct membership *v = r->route_data;
    v->changed = true;
    v->round.request = r;
    v->task.run = change_run;
    request_wait(r, change_answered);
    loop_post(node_loop(r->http->node), &v->task);
}

/* ---- what is asked for ---------------------------------------------------------------------------------------------- */

/* False: an answer is set. */
static bool membership_open(struct request *r)
{
    static const struct uuid default_tenant = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
    struct membership *v = arena_zero(request_arena(r), sizeof *v);
    int64_t timeout_ms = TIMEOUT_MS;
    bool given = false;
    r->route_data = v;
    if (!uuid_equal(r->tenant, default_tenant))
        return answer_not_ok(r, 403, "forbidden", "only the default tenant may see or change the members");
    if (r->broker == NULL)
        return answer_not_ok(r, 503, "retry", "this node waits to be added to its cluster, or is under repair");
    if (!query_int(r, "timeoutMs", &timeout_ms, &given)) return false;
    if (timeout_ms < 1 || timeout_ms > TIMEOUT_MS_MAX)
        return answer_not_ok(r, 400, "bad_request", "timeoutMs must be from 1 to 120000");
    v->timeout_us = timeout_ms * 1000;
    return true;
}

struct change_body {
    uint64_t ids[REPLICA_MEMBERS_MAX];
    uint32_t count;
    bool force, wrong, full;
    struct slice raft, http;
};

static void id_put(struct json *j, struct change_body *b)
{
    int64_t id = 0;
    if (!json_integer(j, &id)) return;
    bool known = false;
    for (uint32_t i = 0; i < b->count; i++) known = known || b->ids[i] == (uint64_t)id;
    if (id < 1 || id > NODE_ID_MAX)
        b->wrong = true;
    else if (!known && b->count == REPLICA_MEMBERS_MAX)
        b->full = true;
    else if (!known)
        b->ids[b->count++] = (uint64_t)id;
}

static void ids_read(struct json *j, struct change_body *b)
{
    bool first;
    if (json_peek(j) != JSON_ARRAY) {
        id_put(j, b);
        return;
    }
    if (!json_array_open(j, &first)) return;
    while (json_array_next(j, &first)) id_put(j, b);
}

/* Is it one of these names, parted by a blank? */
static bool name_among(const char *names, struct slice key)
{
    while (*names != '\0') {
        size_t len = strcspn(names, " ");
        if (slice_equal(key, slice_make(names, len))) return true;
        names += len + (names[len] == ' ');
    }
    return false;
}

static bool body_read(struct request *r, const char *id_names, struct change_body *b)
{
    struct json j;
    struct slice key;
    bool first;
    *b = (struct change_body){0};
    struct slice force = {0};
    if (query_text(r, "force", &force)) b->force = slice_is(force, "true") || slice_is(force, "1");
    json_open(&j, request_body(r), request_arena(r));
    if (json_peek(&j) != JSON_OBJECT || !json_object_open(&j, &first))
        return answer_not_ok(r, 400, "bad_request", "the body must be a JSON object");
    while (json_object_next(&j, &first, &key)) {
        if (name_among(id_names, key) && json_peek(&j) != JSON_NULL)
            ids_read(&j, b);
        else if (slice_is(key, "raft"))
            json_string(&j, &b->raft);
        else if (slice_is(key, "http"))
            json_string(&j, &b->http);
        else if (slice_is(key, "force"))
            json_bool(&j, &b->force);
        else
            json_skip(&j, NULL);
    }
    if (j.error != NULL || !json_end(&j))
        return answer_not_ok(r, 400, "bad_request", "the body is not JSON, or a field has a wrong type");
    if (b->wrong) return answer_not_ok(r, 400, "bad_request", "a node's id is a whole number from 1 to 1000000000");
    if (b->full) return answer_not_ok(r, 400, "bad_request", "a cluster has at most 9 members");
    return true;
}

static bool address_take(struct request *r, struct slice text, char out[NODE_ADDRESS_BYTES], const char *name)
{
    char host[256], why[64];
    uint16_t port;
    if (text.len < NODE_ADDRESS_BYTES && config_address(text, host, sizeof host, &port)) {
        memcpy(out, text.at, text.len);
        out[text.len] = '\0';
        return true;
    }
    snprintf(why, sizeof why, "%s must be host:port", name);
    return answer_not_ok(r, 400, "bad_request", why);
}

static struct node_change *change_put(struct membership *v, enum node_change_kind kind, uint64_t id, bool force)
{
    must(v->count < NODE_CHANGES_MAX);
    struct node_change *c = &v->changes[v->count++];
    *c = (struct node_change){.kind = kind, .id = id, .force = force};
    return c;
}

static bool clustered(struct request *r)
{
    return !node_alone(r->http->node) ||
           answer_not_ok(r, 400, "bad_request",
                         "this node runs alone: start it with QUEEN_RAFT_PEERS and QUEEN_RAFT_TOKEN to add others");
}

static bool path_id(struct request *r, uint64_t *id)
{
    struct slice s = r->params[0];
    *id = 0;
    for (size_t i = 0; i < s.len && s.len <= 10; i++) {
        if (s.at[i] < '0' || s.at[i] > '9')
            return answer_not_ok(r, 400, "bad_request", "the node's id in the path is no number");
        *id = *id * 10 + (uint64_t)(s.at[i] - '0');
    }
    return (*id >= 1 && *id <= NODE_ID_MAX) ||
           answer_not_ok(r, 400, "bad_request", "a node's id is a whole number from 1 to 1000000000");
}

/* ---- routes --------------------------------------------------------------------------------------------------------- */

void route_membership(struct request *r)
{
    if (membership_open(r)) membership_look(r);
}

void route_member_add(struct request *r)
{
    struct change_body b;
    if (!membership_open(r) || !body_read(r, "id nodeId", &b)) return;
    struct membership *v = r->route_data;
    if (b.count != 1) {
        answer_not_ok(r, 400, "bad_request", "id is required: the new node's QUEEN_RAFT_NODE_ID");
        return;
    }
    struct node_change *c = change_put(v, NODE_ADD_LEARNER, b.ids[0], b.force);
    if (address_take(r, b.raft, c->raft, "raft") && address_take(r, b.http, c->http, "http") && clustered(r)) change_submit(r);
}

void route_member_promote(struct request *r)
{
    struct change_body b;
    if (!membership_open(r) || !body_read(r, "ids id nodeId", &b)) return;
    if (b.count == 0) {
        answer_not_ok(r, 400, "bad_request", "ids is required: which learners shall vote");
        return;
    }
    for (uint32_t i = 0; i < b.count; i++) change_put(r->route_data, NODE_PROMOTE, b.ids[i], b.force);
    change_submit(r);
}

void route_member_voters(struct request *r)
{
    struct change_body b;
    struct node_members now;
    if (!membership_open(r) || !body_read(r, "voters voter", &b)) return;
    if (b.count == 0) {
        answer_not_ok(r, 400, "bad_request", "voters is required: which nodes shall vote");
        return;
    }
    node_members(r->http->node, &now);
    for (uint32_t i = 0; i < b.count; i++) change_put(r->route_data, NODE_PROMOTE, b.ids[i], b.force);
    for (uint32_t i = 0; i < now.count; i++) {
        bool wanted = !now.at[i].voter;
        for (uint32_t k = 0; k < b.count && !wanted; k++) wanted = b.ids[k] == now.at[i].id;
        if (!wanted) change_put(r->route_data, NODE_REMOVE, now.at[i].id, b.force);
    }
    change_submit(r);
}

void route_member_readdress(struct request *r)
{
    struct change_body b;
    uint64_t id;
    if (!membership_open(r) || !path_id(r, &id) || !body_read(r, "-", &b)) return;
    struct node_change *c = change_put(r->route_data, NODE_READDRESS, id, b.force);
    if (address_take(r, b.raft, c->raft, "raft") && address_take(r, b.http, c->http, "http") && clustered(r)) change_submit(r);
}

void route_member_remove(struct request *r)
{
    uint64_t id;
    struct slice force = {0};
    if (!membership_open(r) || !path_id(r, &id)) return;
    bool forced = query_text(r, "force", &force) && (slice_is(force, "true") || slice_is(force, "1"));
    change_put(r->route_data, NODE_REMOVE, id, forced);
    change_submit(r);
}
