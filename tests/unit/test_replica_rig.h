/* Several replicas in one thread with real directories, each with a loop of its own that runs a turn at a time: frames go through
 * queues that can delay, drop and cut, in order within a pair of nodes. Everything applied anywhere is compared: one (term,
 * body) an index, for all nodes and all their lives. */
#ifndef QUEEN_TEST_REPLICA_RIG_H
#define QUEEN_TEST_REPLICA_RIG_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "replica/replica_inner.h"

enum {
    RIG_NODES_MAX = 9,
    RIG_WAIT_US_MAX = 20 * 1000 * 1000,
    RIG_SEGMENT_BYTES = 4 << 20,
    RIG_HISTORY_MAX = 1 << 18,
    RIG_LARGE_BYTES = 1 << 20
};

/* Instrumented code is slower than the clock allows for. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { RIG_SLOW = 3 };
#else
enum { RIG_SLOW = 1 };
#endif

struct rig_frame {
    struct rig_frame *next;
    int64_t due_us;
    size_t len;
    char bytes[];
};

struct rig_link {
    struct rig_frame *first, **last;
    bool cut;
    int64_t busy_until_us, told_us;
    uint64_t sent, bytes, kinds[FRAME_KINDS];
};

struct rig_fact {
    uint64_t term;
    uint32_t crc, len;
};

struct rig_node {
    struct rig *rig;
    uint64_t id;
    char dir[96];
    struct loop *loop;
    struct loop_hook hook;
    struct loop_task task;
    struct replica *replica;
    bool member;                                       /* in the first configuration */
    uint64_t applied_index, applied_term, applied_pos; /* the store's mark, for the next open */
    uint64_t seen_index, seen_term;                    /* the last command applied in this life */
    uint64_t arrivals, applies, losts, leads, leader, leader_term, changes, wanted, wanted_index, wanted_leader;
};

struct rig {
    char dir[64];
    uint32_t count;
    struct rig_node nodes[RIG_NODES_MAX + 1]; /* by id, from 1 */
    struct rig_link links[RIG_NODES_MAX + 1][RIG_NODES_MAX + 1];
    uint32_t delay_us_min, delay_us_max, drop_per_mille;
    uint64_t bytes_s; /* of a link, 0 = no limit; large frames are announced while they come in */
    uint32_t election_ms, heartbeat_ms;
    uint64_t keep_bytes, window_bytes, random;
    struct rig_fact *history; /* by index */
    uint64_t history_last;
    uint64_t number;     /* of the next body */
    bool foreign_bodies; /* not those of rig_submit */
    int failures;
};

static inline uint64_t rig_random(struct rig *g)
{
    g->random ^= g->random << 13;
    g->random ^= g->random >> 7;
    g->random ^= g->random << 17;
    return g->random;
}

/* ---- frames under way */

static inline void rig_on_task(struct loop_task *task)
{
    struct rig_node *n = (struct rig_node *)(void *)((char *)task - offsetof(struct rig_node, task));
    struct rig *g = n->rig;
    int64_t now_us = clock_mono_us();
    for (uint32_t from = 1; from <= RIG_NODES_MAX; from++) {
        struct rig_link *l = &g->links[from][n->id];
        while (l->first != NULL && l->first->due_us <= now_us) {
            struct rig_frame *f = l->first;
            l->first = f->next;
            if (l->first == NULL) l->last = &l->first;
            if (!l->cut) replica_receive(n->replica, from, slice_make(f->bytes, f->len));
            free(f);
        }
        if (l->first != NULL && l->first->len > RIG_LARGE_BYTES && !l->cut && now_us - l->told_us > 10000) {
            l->told_us = now_us;
            replica_receiving(n->replica, from);
        }
    }
}

/* One turn. */
static inline bool rig_on_hook(struct loop_hook *hook)
{
    loop_stop(((struct rig_node *)(void *)((char *)hook - offsetof(struct rig_node, hook)))->loop);
    return false;
}

static inline bool rig_due(struct rig *g, uint64_t to)
{
    int64_t now_us = clock_mono_us();
    for (uint32_t from = 1; from <= RIG_NODES_MAX; from++) {
        struct rig_link *l = &g->links[from][to];
        if (l->first == NULL) continue;
        if (l->first->due_us <= now_us || (l->first->len > RIG_LARGE_BYTES && now_us - l->told_us > 10000)) return true;
    }
    return false;
}

/* A turn of every node. */
static inline void rig_turn(struct rig *g)
{
    bool busy = false;
    for (uint64_t id = 1; id <= RIG_NODES_MAX; id++) {
        struct rig_node *n = &g->nodes[id];
        if (n->replica == NULL) continue;
        if (rig_due(g, id)) {
            busy = true;
            loop_post(n->loop, &n->task);
        }
        loop_run(n->loop);
    }
    if (!busy) usleep(50);
}

static inline void rig_link_clear(struct rig_link *l)
{
    while (l->first != NULL) {
        struct rig_frame *f = l->first;
        l->first = f->next;
        free(f);
    }
    l->last = &l->first;
}

static inline bool rig_send(void *ctx, uint64_t peer, bool vital, const struct slice *parts, uint32_t count)
{
    struct rig_node *n = ctx;
    struct rig *g = n->rig;
    (void)vital;
    assert_true(peer >= 1 && peer <= RIG_NODES_MAX && peer != n->id);
    struct rig_link *l = &g->links[n->id][peer];
    size_t len = 0;
    for (uint32_t i = 0; i < count; i++) len += parts[i].len;
    struct rig_frame *f = malloc(sizeof *f + len);
    assert_non_null(f);
    f->len = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (parts[i].len > 0) memcpy(f->bytes + f->len, parts[i].at, parts[i].len);
        f->len += parts[i].len;
    }
    struct frame parsed;
    assert_null(frame_read(slice_make(f->bytes, f->len), &parsed));
    for (uint32_t i = 0; i < parsed.count; i++) { /* a change of the members travels alone */
        struct frame_entry e;
        frame_entry_read(&parsed.entries, &e);
        assert_true(parsed.count == 1 || e.type != RAFT_CHANGE);
    }
    f->next = NULL;
    f->due_us = clock_mono_us() + g->delay_us_min;
    if (g->delay_us_max > g->delay_us_min) f->due_us += (int64_t)(rig_random(g) % (g->delay_us_max - g->delay_us_min));
    if (g->bytes_s > 0) {
        int64_t free_us = l->busy_until_us > clock_mono_us() ? l->busy_until_us : clock_mono_us();
        l->busy_until_us = free_us + (int64_t)(len * 1000000 / g->bytes_s);
        if (f->due_us < l->busy_until_us) f->due_us = l->busy_until_us;
    }
    l->sent++;
    l->bytes += len;
    l->kinds[(uint8_t)f->bytes[1]]++;
    if (l->cut || g->nodes[peer].replica == NULL || rig_random(g) % 1000 < g->drop_per_mille) {
        free(f);
        return !l->cut;
    }
    if (l->last == NULL) l->last = &l->first;
    *l->last = f;
    l->last = &f->next;
    return true;
}

/* ---- what the replicas tell */

static inline void rig_body_fill(char *at, uint64_t number, uint32_t len)
{
    assert_true(len >= 8);
    memcpy(at, &number, 8);
    for (uint32_t i = 8; i < len; i++) at[i] = (char)(number * 31 + i);
}

static inline void rig_apply(void *ctx, uint64_t index, uint64_t term, uint64_t pos, struct slice body)
{
    struct rig_node *n = ctx;
    struct rig *g = n->rig;
    (void)pos;
    assert_true(index < RIG_HISTORY_MAX);
    assert_true(index > n->seen_index && term >= n->seen_term);
    n->seen_index = index;
    n->seen_term = term;
    n->applies++;
    struct rig_fact fact = {.term = term, .len = (uint32_t)body.len, .crc = crc32c(0, body.at, body.len)};
    struct rig_fact *known = &g->history[index];
    if (known->term == 0) *known = fact;
    if (known->term != fact.term || known->crc != fact.crc || known->len != fact.len)
        fail_msg("node %u applies another entry %llu: term %llu and %llu", (unsigned)n->id, (unsigned long long)index,
                 (unsigned long long)known->term, (unsigned long long)term);
    if (index > g->history_last) g->history_last = index;
}

/* It is not applied yet, and whole. */
static inline void rig_arrived(void *ctx, uint64_t index, struct slice body)
{
    struct rig_node *n = ctx;
    n->arrivals++;
    assert_true(index > n->seen_index && body.len > 0);
    if (n->rig->foreign_bodies) return;
    assert_true(body.len >= 8);
    uint64_t number;
    memcpy(&number, body.at, sizeof number);
    for (size_t i = 8; i < body.len; i++) assert_int_equal(body.at[i], (char)(number * 31 + i));
}

static inline void rig_on_role(void *ctx, enum replica_role role)
{
    if (role == REPLICA_LEADER) ((struct rig_node *)ctx)->leads++;
}

static inline void rig_on_lost(void *ctx)
{
    ((struct rig_node *)ctx)->losts++;
}

static inline void rig_on_leader(void *ctx, uint64_t leader, uint64_t term)
{
    struct rig_node *n = ctx;
    assert_true(term >= n->leader_term);
    n->leader = leader;
    n->leader_term = term;
}

static inline void rig_on_members(void *ctx)
{
    ((struct rig_node *)ctx)->changes++;
}

static inline void rig_on_wanted(void *ctx, uint64_t leader, uint64_t index)
{
    struct rig_node *n = ctx;
    n->wanted++;
    n->wanted_index = index;
    n->wanted_leader = leader;
}

static inline void rig_on_failed(void *ctx, const char *what)
{
    struct rig_node *n = ctx;
    print_message("node %u failed: %s\n", (unsigned)n->id, what);
    n->rig->failures++;
}

/* ---- nodes */

static inline enum log_status rig_open_try(struct rig *g, uint64_t id, struct buf *error)
{
    struct rig_node *n = &g->nodes[id];
    struct replica_member members[RIG_NODES_MAX] = {0};
    uint32_t count = 0;
    for (uint64_t i = RIG_NODES_MAX; i > 0; i--) { /* in any order */
        if (!g->nodes[i].member) continue;
        members[count].id = i;
        snprintf(members[count++].address, REPLICA_ADDRESS_BYTES, "address of %u", (unsigned)i);
    }
    n->seen_index = n->applied_index;
    n->seen_term = n->applied_term;
    n->leader = n->leader_term = 0;
    n->loop = loop_new();
    n->hook.run = rig_on_hook;
    n->task.run = rig_on_task;
    struct replica_options o = {.dir = n->dir,
                                .loop = n->loop,
                                .segment_bytes = RIG_SEGMENT_BYTES,
                                .cache_bytes_max = 8 << 20,
                                .cache_age_us = 1000000,
                                .node_id = id,
                                .members = members,
                                .member_count = n->member ? count : 0,
                                .join = !n->member,
                                .cluster = {.bytes = {7}},
                                .election_ms = g->election_ms,
                                .heartbeat_ms = g->heartbeat_ms,
                                .window_bytes = g->window_bytes,
                                .keep_bytes = g->keep_bytes,
                                .applied_index = n->applied_index,
                                .applied_term = n->applied_term,
                                .applied_pos = n->applied_pos,
                                .ctx = n,
                                .apply = rig_apply,
                                .arrived = rig_arrived,
                                .role = rig_on_role,
                                .lost = rig_on_lost,
                                .send = rig_send,
                                .leader = rig_on_leader,
                                .snapshot_wanted = rig_on_wanted,
                                .members_changed = rig_on_members,
                                .failed = rig_on_failed};
    enum log_status status = replica_open(&n->replica, &o, error);
    loop_hook_add(n->loop, &n->hook);
    return status;
}

static inline void rig_open(struct rig *g, uint64_t id)
{
    struct buf error = {0};
    if (rig_open_try(g, id, &error) != LOG_OK) fail_msg("%.*s", (int)error.len, error.at);
    buf_free(&error);
}

/* What is under way from and to it is lost. */
static inline void rig_close(struct rig *g, uint64_t id)
{
    struct rig_node *n = &g->nodes[id];
    replica_close(n->replica);
    loop_free(n->loop);
    n->replica = NULL;
    n->loop = NULL;
    for (uint32_t i = 1; i <= RIG_NODES_MAX; i++) {
        rig_link_clear(&g->links[id][i]);
        rig_link_clear(&g->links[i][id]);
    }
}

static inline struct rig *rig_new(uint32_t count)
{
    struct rig *g = calloc(1, sizeof *g);
    assert_non_null(g);
    g->count = count;
    g->election_ms = 200 * RIG_SLOW;
    g->heartbeat_ms = 40 * RIG_SLOW;
    g->random = 88172645463325252ull;
    g->history = calloc(RIG_HISTORY_MAX, sizeof *g->history);
    assert_non_null(g->history);
    snprintf(g->dir, sizeof g->dir, "/tmp/test_replica_rig.XXXXXX");
    assert_non_null(mkdtemp(g->dir));
    for (uint64_t id = 1; id <= RIG_NODES_MAX; id++) {
        struct rig_node *n = &g->nodes[id];
        *n = (struct rig_node){.rig = g, .id = id, .member = id <= count};
        snprintf(n->dir, sizeof n->dir, "%s/node-%u", g->dir, (unsigned)id);
    }
    return g;
}

static inline int rig_unlink_each(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static inline void rig_free(struct rig *g)
{
    for (uint64_t id = 1; id <= RIG_NODES_MAX; id++) {
        if (g->nodes[id].replica != NULL) rig_close(g, id);
    }
    nftw(g->dir, rig_unlink_each, 16, FTW_DEPTH | FTW_PHYS);
    free(g->history);
    free(g);
}

static inline void rig_open_all(struct rig *g)
{
    for (uint64_t id = 1; id <= g->count; id++) rig_open(g, id);
}

/* ---- waiting */

static inline struct replica *rig_of(struct rig *g, uint64_t id)
{
    return g->nodes[id].replica;
}

static inline void rig_show(struct rig *g)
{
    for (uint64_t id = 1; id <= RIG_NODES_MAX; id++) {
        struct replica *r = rig_of(g, id);
        if (r == NULL) continue;
        print_message(
            "node %u: role %d raft %d term %llu leader %u last %llu stored %llu applied %llu commit %llu ring %llu trail "
            "%llu snapshot %llu wanted %llu\n",
            (unsigned)id, replica_role(r), raft_state(&r->raft), (unsigned long long)replica_term(r),
            (unsigned)replica_leader(r), (unsigned long long)replica_last_index(r), (unsigned long long)r->raft.last_stored,
            (unsigned long long)r->applied, (unsigned long long)r->commit_max, (unsigned long long)r->ring.first,
            (unsigned long long)r->raft.trail.offset, (unsigned long long)r->raft.trail.snapshot.index,
            (unsigned long long)g->nodes[id].wanted);
        for (uint32_t i = 0; raft_state(&r->raft) == RAFT_LEADER && i < r->peer_count; i++) {
            const struct peer *p = &r->peers[i];
            raft_index match = 0;
            raft_match_index(&r->raft, p->id, &match);
            print_message("  to %u: match %llu open %d proven %d snapshot %d stream %u base %llu cursor %llu told %llu\n",
                          (unsigned)p->id, match, p->open, p->proven, p->snapshot, p->stream, (unsigned long long)p->base,
                          (unsigned long long)p->cursor, (unsigned long long)p->told);
        }
    }
}

#define rig_wait(g, condition)                                                                                                 \
    do {                                                                                                                       \
        int64_t rig_until_us = clock_mono_us() + RIG_WAIT_US_MAX;                                                              \
        while (!(condition)) {                                                                                                 \
            if (clock_mono_us() > rig_until_us) {                                                                              \
                rig_show(g);                                                                                                   \
                fail_msg("waited for %s", #condition);                                                                         \
            }                                                                                                                  \
            assert_int_equal((g)->failures, 0);                                                                                \
            rig_turn(g);                                                                                                       \
        }                                                                                                                      \
    } while (0)

static inline void rig_pass(struct rig *g, int64_t us)
{
    int64_t until_us = clock_mono_us() + us;
    while (clock_mono_us() < until_us) rig_turn(g);
}

/* The node that leads in the highest term, 0 = none. */
static inline uint64_t rig_leader(struct rig *g)
{
    uint64_t best = 0, term = 0;
    for (uint64_t id = 1; id <= RIG_NODES_MAX; id++) {
        struct replica *r = g->nodes[id].replica;
        if (r == NULL || replica_role(r) != REPLICA_LEADER || replica_term(r) < term) continue;
        best = id;
        term = replica_term(r);
    }
    return best;
}

static inline uint64_t rig_lead_wait(struct rig *g)
{
    rig_wait(g, rig_leader(g) != 0);
    return rig_leader(g);
}

static inline uint64_t rig_submit(struct rig *g, uint64_t id, uint32_t len)
{
    struct replica *r = rig_of(g, id);
    rig_body_fill(replica_reserve(r, len), g->number++, len);
    return replica_submit(r, len);
}

static inline bool rig_applied(struct rig *g, uint64_t index)
{
    for (uint64_t id = 1; id <= RIG_NODES_MAX; id++) {
        struct replica *r = rig_of(g, id);
        if (r != NULL && replica_applied_index(r) < index) return false;
    }
    return true;
}

static inline void rig_cut(struct rig *g, uint64_t a, uint64_t b, bool cut)
{
    g->links[a][b].cut = g->links[b][a].cut = cut;
    if (!cut) return;
    rig_link_clear(&g->links[a][b]);
    rig_link_clear(&g->links[b][a]);
}

static inline void rig_isolate(struct rig *g, uint64_t id, bool cut)
{
    for (uint64_t i = 1; i <= RIG_NODES_MAX; i++) {
        if (i != id) rig_cut(g, i, id, cut);
    }
}

/* The state of that node is stored up to `index`, as its store would say. */
static inline bool rig_nobody_wants(void *ctx, uint64_t first_pos, uint64_t end_pos)
{
    (void)ctx;
    (void)first_pos;
    (void)end_pos;
    return false;
}

static inline void rig_store(struct rig *g, uint64_t id, uint64_t index)
{
    struct rig_node *n = &g->nodes[id];
    n->applied_pos = replica_scan_pos(n->replica, index);
    n->applied_index = index;
    n->applied_term = term_of(n->replica, index);
    assert_true(n->applied_term > 0);
    replica_stored(n->replica, index, rig_nobody_wants, n);
}

/* Every node that runs has applied the same, up to the leader's last entry. */
static inline void rig_agree(struct rig *g)
{
    uint64_t leader = rig_lead_wait(g);
    rig_wait(g, rig_leader(g) != 0 && rig_applied(g, replica_last_index(rig_of(g, rig_leader(g)))));
    (void)leader;
}

#endif
