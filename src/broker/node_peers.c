/* What the net brings: who may come in, whom we dial, and questions and answers.
 *
 *   hello of the net   {cluster, node, disk, starts} -> node_meet: is it the node, and the disk, that we know?
 *   link to a peer up  -> HELLO {groups, map, our raft address, members}: settings that do not fit stop a node that is new to the cluster;
 *                         a node that waits to be added learns whom to dial
 *   ASK -> ANSWER      matched by number; a question ends when its time is up, or the node stops
 *
 * What can go wrong: a peer refuses our disk (its text begins with FENCE): we stop, unless we were added and it may be the peer that is
 * behind. DATA/peers cannot be written: the peer is refused until it can, so that nothing is forgotten. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/logger.h"
#include "base/planted.h"
#include "broker/node_inner.h"

static const char FENCE[] = "disk refused: ";

enum { KIND_HELLO = 1, KIND_ASK = 2, KIND_ANSWER = 3, HELLO_VERSION = 1 };

/* ---- reading what peers sent -------------------------------------------------------------------------------------- */

static bool take(struct slice *s, void *out, size_t len)
{
    if (s->len < len) return false;
    memcpy(out, s->at, len);
    *s = slice_make(s->at + len, s->len - len);
    return true;
}

/* A text of at most 255 bytes behind its length. */
static bool take_text(struct slice *s, char *out, size_t size)
{
    uint8_t len = 0;
    if (!take(s, &len, 1) || len >= size || !take(s, out, len)) return false;
    out[len] = '\0';
    return memchr(out, '\0', len) == NULL;
}

static void put_text(struct buf *b, const char *text)
{
    size_t len = strlen(text);
    if (len > 255) len = 0;
    buf_byte(b, (char)(uint8_t)len);
    buf_put(b, text, len);
}

/* ---- who comes in ------------------------------------------------------------------------------------------------- */

const struct peer_seen *peers_seen(const struct node *n, uint64_t id)
{
    for (uint32_t i = 0; i < n->seen.count; i++) {
        if (n->seen.at[i].node == id) return &n->seen.at[i];
    }
    return NULL;
}

static bool seen_put(struct node *n, const struct net_self *peer)
{
    struct peers_file next = n->seen;
    struct buf error = {0};
    uint32_t i = 0;
    while (i < next.count && next.at[i].node != peer->node) i++;
    if (i == NODE_PEERS_KEPT_MAX) return false;
    if (i == next.count) next.count++;
    next.at[i] = (struct peer_seen){.node = peer->node, .starts = peer->starts, .disk = peer->disk};
    bool good = peers_file_store(n->config->dir, &next, &error);
    if (good)
        n->seen = next;
    else
        log_error("%.*s", (int)error.len, error.at);
    buf_free(&error);
    return good;
}

/* Nodes that are members nowhere any more may come back with another disk. */
static void seen_trim(struct node *n, const uint64_t *members, uint32_t count)
{
    struct peers_file next = {0};
    struct buf error = {0};
    for (uint32_t i = 0; i < n->seen.count; i++) {
        bool keep = false;
        for (uint32_t k = 0; k < count && !keep; k++) keep = members[k] == n->seen.at[i].node;
        if (keep) next.at[next.count++] = n->seen.at[i];
    }
    if (next.count == n->seen.count) return;
    if (peers_file_store(n->config->dir, &next, &error))
        n->seen = next;
    else
        log_error("%.*s", (int)error.len, error.at);
    buf_free(&error);
}

static const struct node_member *member_of(const struct node *n, uint64_t id)
{
    for (uint32_t i = 0; i < n->view.count; i++) {
        if (n->view.at[i].id == id) return &n->view.at[i];
    }
    return NULL;
}

static bool uuid_zero(struct uuid id)
{
    static const struct uuid zero;
    return uuid_equal(id, zero);
}

/* The cluster that a waiting node was told. */
static const char *cluster_learn(struct node *n, const struct net_self *peer)
{
    struct buf error = {0};
    struct disk_file next = n->disk;
    next.cluster = peer->cluster;
    bool good = disk_file_store(n->config->dir, &next, &error);
    if (!good) log_error("%.*s", (int)error.len, error.at);
    buf_free(&error);
    if (!good) return "it cannot write its cluster down";
    n->disk = next;
    net_self_cluster(n->net, peer->cluster);
    log_info("node %" PRIu64 " told us its cluster: starting anew as a part of it", peer->node);
    node_start_anew(n);
    return NULL;
}

static const char *node_meet(void *ctx, const struct net_self *peer)
{
    struct node *n = ctx;
    if (peer->node == n->id) return "it has the same id (QUEEN_RAFT_NODE_ID)";
    if (uuid_zero(peer->cluster) && n->waits) return "it waits to be added itself";
    if (!uuid_zero(peer->cluster) && !n->waits && !uuid_equal(peer->cluster, n->disk.cluster))
        return "it is of another cluster (peers of the first boot, QUEEN_CELL_ID, QUEEN_RAFT_GROUPS or QUEEN_TENANT_GROUPS "
               "differ)";
    if (PLANTED("wiped-voter-votes")) return NULL;
    const struct node_member *m = member_of(n, peer->node);
    const struct peer_seen *seen = peers_seen(n, peer->node);
    bool known = m != NULL && m->has_disk, counts = m != NULL || n->view.count == 0;
    if (known ? !uuid_equal(m->disk, peer->disk) : counts && seen != NULL && !uuid_equal(seen->disk, peer->disk))
        return "disk refused: it knows this node with another data directory; remove the node from the cluster and add it anew";
    bool same = seen != NULL && uuid_equal(seen->disk, peer->disk);
    uint64_t count = peer->starts >> 32, count_seen = same ? seen->starts >> 32 : 0;
    if (same && (count < count_seen || (count == count_seen && peer->starts != seen->starts)))
        return "disk refused: the data directory is older than the one it knows; remove the node from the cluster and add it "
               "anew";
    if (!(same && peer->starts == seen->starts) && !seen_put(n, peer)) return "it cannot write down who came";
    return n->waits && !uuid_zero(peer->cluster) ? cluster_learn(n, peer) : NULL;
}

/* Those that were there at the first boot have no excuse. One that was added may meet a member that slept since before that. */
static void node_refused(void *ctx, uint64_t peer, const char *why)
{
    struct node *n = ctx;
    uint32_t i = 0, others = n->view.count > 0 ? n->view.count - 1 : n->peer_count;
    if (strncmp(why, FENCE, sizeof FENCE - 1) != 0) {
        if (logger_every(&n->refused_said_us, 5000000)) log_warn("node %" PRIu64 " refuses us: %s", peer, why);
        return;
    }
    log_error("node %" PRIu64 " refuses us: %s", peer, why);
    while (i < n->refused_count && n->refused_by[i] != peer) i++;
    if (i == n->refused_count && i < NET_PEERS_MAX) n->refused_by[n->refused_count++] = peer;
    /* One that waits to be added has no vote to give twice, and those that refuse it may not know yet that the old disk is out. */
    if (n->disk.joined && (n->view.count == 0 || 2 * n->refused_count <= others)) return;
    broker_die(2,
               "%s is not the data directory that the cluster knows as node %" PRIu64
               " (it was emptied, replaced or restored): remove the node from the cluster (DELETE "
               "/api/v1/system/raft/membership/members/%" PRIu64
               "), empty the directory, start with QUEEN_RAFT_JOIN=true and add "
               "it anew",
               n->config->dir, n->id, n->id);
}

/* ---- whom we dial ------------------------------------------------------------------------------------------------- */

static struct node_peer *peer_find(struct node *n, uint64_t id)
{
    for (uint32_t i = 0; i < n->peer_count; i++) {
        if (n->peers[i].id == id) return &n->peers[i];
    }
    return NULL;
}

static void peer_forget(struct node *n, struct node_peer *p)
{
    net_peer_remove(n->net, p->id);
    uint32_t at = (uint32_t)(p - n->peers);
    memmove(p, p + 1, (n->peer_count - at - 1) * sizeof *p);
    n->peer_count--;
}

static void peer_dial(struct node *n, struct node_peer *p, const char *host, uint16_t port)
{
    if (p->port == port && strcmp(p->host, host) == 0) return;
    snprintf(p->host, sizeof p->host, "%s", host);
    p->port = port;
    net_peer_set(n->net, p->id, host, port);
}

static struct node_peer *peer_want(struct node *n, uint64_t id, const char *host, uint16_t port)
{
    struct node_peer *p = peer_find(n, id);
    if (id == n->id) return NULL;
    if (p == NULL) {
        if (n->peer_count == NET_PEERS_MAX) return NULL;
        p = &n->peers[n->peer_count++];
        *p = (struct node_peer){.id = id};
    }
    /* What a node says of itself comes after what the members' list says of it: it may have moved. */
    if (p->told_port != 0)
        peer_dial(n, p, p->told_host, p->told_port);
    else
        peer_dial(n, p, host, port);
    return p;
}

static struct node_peer *member_want(struct node *n, const struct replica_member *m)
{
    struct node_member one;
    char host[256];
    uint16_t port;
    node_member_read(m, &one);
    if (!config_address(slice_of(one.raft), host, sizeof host, &port)) return NULL;
    return peer_want(n, m->id, host, port);
}

void peers_follow(struct node *n)
{
    uint64_t wanted[NET_PEERS_MAX];
    uint32_t count = 0, members = 0;
    bool settled = true;
    for (uint32_t g = 0; g < n->group_count && n->groups != NULL; g++) {
        const struct replica_members *all = &n->groups[g].now;
        members += all->count;
        settled = settled && all->count > 0 && all->committed;
        for (uint32_t i = 0; i < all->count; i++) {
            struct node_peer *p = member_want(n, &all->at[i]);
            bool listed = p == NULL;
            for (uint32_t k = 0; k < count && !listed; k++) listed = wanted[k] == p->id;
            if (!listed) wanted[count++] = p->id;
        }
    }
    if (members == 0) { /* nobody has told us yet who is in it: who may know */
        for (uint32_t i = 0; i < n->config->peer_count; i++)
            peer_want(n, n->config->peers[i].id, n->config->peers[i].raft_host, n->config->peers[i].raft_port);
        return;
    }
    if (!settled) return;
    for (uint32_t i = n->peer_count; i > 0; i--) {
        struct node_peer *p = &n->peers[i - 1];
        bool keep = p->held || p->dials; /* a member that we have not heard of yet, or a removed one that has not */
        for (uint32_t k = 0; k < count && !keep; k++) keep = wanted[k] == p->id;
        if (!keep) peer_forget(n, p);
    }
    /* Whom we talk to is not asked again who it is: what was seen of it stays. */
    for (uint32_t i = 0; i < n->peer_count && count < NET_PEERS_MAX; i++) {
        bool listed = false;
        for (uint32_t k = 0; k < count && !listed; k++) listed = wanted[k] == n->peers[i].id;
        if (!listed) wanted[count++] = n->peers[i].id;
    }
    seen_trim(n, wanted, count);
}

bool peers_hold(struct node *n, uint64_t id, const char *address)
{
    char host[256];
    uint16_t port;
    if (!config_address(slice_of(address), host, sizeof host, &port)) return false;
    struct node_peer *p = peer_want(n, id, host, port);
    if (p != NULL) p->held = true;
    return p != NULL;
}

void peers_release(struct node *n, uint64_t id)
{
    struct node_peer *p = peer_find(n, id);
    if (p != NULL) p->held = false;
}

/* ---- hello -------------------------------------------------------------------------------------------------------- */

static void hello_send(struct node *n, uint64_t peer)
{
    struct buf b = {0};
    buf_byte(&b, HELLO_VERSION);
    buf_u32(&b, n->group_count);
    buf_u64(&b, n->map_hash);
    put_text(&b, n->config->advertise_raft);
    buf_u32(&b, n->view.count);
    for (uint32_t i = 0; i < n->view.count; i++) {
        buf_u64(&b, n->view.at[i].id);
        put_text(&b, n->view.at[i].raft);
    }
    struct slice part = buf_view(&b);
    net_send(n->net, peer, NET_CHANNEL_NODE, KIND_HELLO, NET_VITAL, &part, 1);
    buf_free(&b);
}

static void hello_members(struct node *n, struct slice s, uint32_t count)
{
    for (uint32_t i = 0; i < count && i < REPLICA_MEMBERS_MAX; i++) {
        uint64_t id = 0;
        char raft[256], host[256];
        uint16_t port;
        if (!take(&s, &id, sizeof id) || !take_text(&s, raft, sizeof raft)) return;
        if (id != 0 && peer_find(n, id) == NULL && config_address(slice_of(raft), host, sizeof host, &port))
            peer_want(n, id, host, port);
    }
}

static void hello_receive(struct node *n, uint64_t peer, struct slice s)
{
    uint8_t version = 0;
    uint32_t groups = 0, count = 0;
    uint64_t map = 0;
    char raft[256], host[256];
    uint16_t port;
    if (!take(&s, &version, 1) || version != HELLO_VERSION || !take(&s, &groups, 4) || !take(&s, &map, 8) ||
        !take_text(&s, raft, sizeof raft) || !take(&s, &count, 4))
        return;
    if (groups != n->group_count || map != n->map_hash) {
        if (n->disk.joined)
            broker_die(2,
                       "QUEEN_RAFT_GROUPS (%" PRIu32 " here, %" PRIu32 " at node %" PRIu64
                       ") and QUEEN_TENANT_GROUPS must be the same on "
                       "every node of a cluster",
                       n->group_count, groups, peer);
        log_error("node %" PRIu64 " has other QUEEN_RAFT_GROUPS or QUEEN_TENANT_GROUPS", peer);
        return;
    }
    struct node_peer *p = peer_find(n, peer);
    if (config_address(slice_of(raft), host, sizeof host, &port)) {
        if (p == NULL) p = peer_want(n, peer, host, port);
        if (p != NULL) {
            p->dials = true;
            snprintf(p->told_host, sizeof p->told_host, "%s", host);
            p->told_port = port;
            peer_dial(n, p, host, port);
        }
    }
    if (n->view.count == 0) hello_members(n, s, count);
}

/* ---- questions ---------------------------------------------------------------------------------------------------- */

static void asks_arm(struct node *n)
{
    int64_t first_us = 0;
    for (struct node_asked *a = n->asked; a != NULL; a = a->next) {
        if (first_us == 0 || a->deadline_us < first_us) first_us = a->deadline_us;
    }
    if (first_us != 0) loop_timer_set(n->loop, &n->ask_timer, first_us);
}

static void asked_end(struct node *n, struct node_asked **at, bool ok, struct slice bytes)
{
    struct node_asked *a = *at;
    *at = a->next;
    (void)n;
    a->done(a->ctx, a->peer, ok, bytes);
    free(a);
}

static void ask_fire(struct loop_timer *t)
{
    struct node *n = (struct node *)(void *)((char *)t - offsetof(struct node, ask_timer));
    int64_t now_us = clock_mono_us();
    struct node_asked **at = &n->asked;
    while (*at != NULL) {
        if ((*at)->deadline_us > now_us) {
            at = &(*at)->next;
            continue;
        }
        asked_end(n, at, false, slice_of(""));
        at = &n->asked; /* `done` may have asked */
    }
    asks_arm(n);
}

void node_ask(struct node *n, uint64_t peer, uint8_t what, struct slice question, int64_t timeout_us, node_answer *done,
              void *ctx)
{
    struct node_asked *a = calloc(1, sizeof *a);
    must(a != NULL && peer != n->id);
    uint32_t count = 0;
    for (struct node_asked *other = n->asked; other != NULL; other = other->next) count++;
    *a = (struct node_asked){.next = n->asked, .peer = peer, .number = ++n->ask_numbers, .done = done, .ctx = ctx};
    a->deadline_us = clock_mono_us();
    n->asked = a;
    char head[9];
    memcpy(head, &a->number, 8);
    head[8] = (char)what;
    struct slice parts[2] = {slice_make(head, sizeof head), question};
    bool sent = n->net != NULL && !n->stopping && count < NODE_ASKS_MAX &&
                net_send(n->net, peer, NET_CHANNEL_NODE, KIND_ASK, NET_VITAL, parts, 2);
    if (sent) a->deadline_us += timeout_us;
    asks_arm(n);
}

void node_on_ask(struct node *n, void (*asked)(void *ctx, struct node_question q, uint8_t what, struct slice question),
                 void *ctx)
{
    n->on_ask = asked;
    n->on_ask_ctx = ctx;
}

void node_reply(struct node_question q, struct slice bytes)
{
    char head[8];
    memcpy(head, &q.number, 8);
    struct slice parts[2] = {slice_make(head, sizeof head), bytes};
    net_send(q.node->net, q.peer, NET_CHANNEL_NODE, KIND_ANSWER, NET_VITAL, parts, 2);
}

static void ask_receive(struct node *n, uint64_t peer, struct slice s)
{
    struct node_question q = {.node = n, .peer = peer};
    uint8_t what = 0;
    if (n->stopping || !take(&s, &q.number, 8) || !take(&s, &what, 1)) return;
    if (what == NODE_ASK_CHANGE)
        change_asked(n, q, s);
    else if (what == NODE_ASK_REPAIR)
        repair_asked(n, q, s);
    else if (n->on_ask != NULL)
        n->on_ask(n->on_ask_ctx, q, what, s);
}

static void answer_receive(struct node *n, uint64_t peer, struct slice s)
{
    uint64_t number = 0;
    if (!take(&s, &number, 8)) return;
    for (struct node_asked **at = &n->asked; *at != NULL; at = &(*at)->next) {
        if ((*at)->number != number || (*at)->peer != peer) continue;
        asked_end(n, at, true, s);
        return;
    }
}

static void frame_receive(void *ctx, uint64_t peer, uint8_t kind, struct slice frame)
{
    if (kind == KIND_HELLO) hello_receive(ctx, peer, frame);
    if (kind == KIND_ASK) ask_receive(ctx, peer, frame);
    if (kind == KIND_ANSWER) answer_receive(ctx, peer, frame);
}

static void link_changed(void *ctx, uint64_t peer, enum net_link which, bool up)
{
    struct node *n = ctx;
    struct node_peer *p = peer_find(n, peer);
    if (p != NULL && which == NET_LINK_IN) p->dials = up;
    if (which == NET_LINK_OUT && up) hello_send(n, peer);
    if (up) return;
    /* Neither a question nor its answer survives the connection. */
    for (struct node_asked **at = &n->asked; *at != NULL;) {
        if ((*at)->peer != peer) {
            at = &(*at)->next;
            continue;
        }
        asked_end(n, at, false, slice_of(""));
        at = &n->asked;
    }
}

/* ---- life --------------------------------------------------------------------------------------------------------- */

bool peers_open(struct node *n, struct buf *error)
{
    const struct config *c = n->config;
    struct net_options o = {
        .loop = n->loop,
        .self = {.cluster = n->disk.cluster, .node = n->id, .disk = n->disk.disk, .starts = n->disk.starts, .version = 1},
        .backlog_bytes_max = c->memory.peer_backlog,
        .secret = c->token,
        .listen_host = c->raft_host,
        .listen_port = c->raft_port,
        .held = true, /* until there is something to answer with */
        .ctx = n,
        .meet = node_meet,
        .refused = node_refused,
    };
    if (c->tls_cert[0] != '\0') {
        o.tls_cert = c->tls_cert;
        o.tls_key = c->tls_key;
        o.tls_ca = c->tls_ca;
    }
    n->ask_timer.fire = ask_fire;
    n->net = net_open(&o, error);
    if (n->net == NULL) return false;
    struct net_channel channel = {.ctx = n, .loop = n->loop, .frame = frame_receive, .link = link_changed};
    net_attach(n->net, NET_CHANNEL_NODE, &channel);
    log_info("node %" PRIu64 " listens for its peers on %s:%u", n->id, c->raft_host, net_port(n->net));
    return true;
}

void peers_stop(struct node *n)
{
    while (n->asked != NULL) asked_end(n, &n->asked, false, slice_of(""));
    loop_timer_cancel(n->loop, &n->ask_timer);
}
