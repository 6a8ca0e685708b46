/* Checks inside the nodes: the simulator sees every disk and every state.
 *
 *   an entry is applied      it is durable in this node's log, and in the logs of a majority of the voters when it is applied for the
 *                            first time anywhere; every node applies the same bytes at the same index; every so often the
 *                            digests of the states are compared
 *   a node leads             no other node led in this term */
#include "check.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "broker/broker_internal.h"
#include "replica/replica_inner.h"

enum { DIGEST_EVERY = 512 };

struct entry_seen {
    uint64_t hash;
    struct hash128_pair digest;
    bool has_digest;
};
static struct entry_seen *entries;
static uint64_t entry_cap, entry_highest;

static uint32_t *leaders; /* of each term */
static uint64_t leader_cap;

static struct entry_seen *entry_at(uint64_t index)
{
    if (index >= entry_cap) {
        uint64_t cap = index * 2 + 4096;
        entries = realloc(entries, cap * sizeof entries[0]);
        must(entries != NULL);
        memset(entries + entry_cap, 0, (cap - entry_cap) * sizeof entries[0]);
        entry_cap = cap;
    }
    return &entries[index];
}

static bool has_it(const struct sim_node *n, uint64_t index, struct slice body)
{
    return sim_log_durable(n, index, body) || sim_store_durable_index(n) >= index;
}

static void quorum_check(struct sim_node *n, uint64_t index, struct slice body)
{
    struct replica_members m = {.count = 0};
    if (n->broker == NULL || n->broker->replica == NULL) return;
    replica_members(n->broker->replica, &m);
    if (m.count == 0 || !m.committed) return;
    uint32_t voters = 0, have = 0;
    for (uint32_t i = 0; i < m.count; i++) {
        if (m.at[i].role != REPLICA_VOTER) continue;
        voters++;
        have += has_it(&sim.nodes[m.at[i].id], index, body);
    }
    if (have < voters / 2 + 1)
        sim_fail("entry %llu is applied, but durable on %u of %u voters only", (unsigned long long)index, have, voters);
}

static void digest_check(struct engine *e, struct entry_seen *s, uint64_t index)
{
    struct hash128_pair d = engine_digest(e);
    if (s->has_digest && (s->digest.low != d.low || s->digest.high != d.high))
        sim_fail("the state at entry %llu differs from another node's", (unsigned long long)index);
    s->digest = d;
    s->has_digest = true;
}

const char *__real_engine_apply(struct engine *e, uint64_t index, uint64_t where, struct slice entry,
                                const struct engine_sink *sink);
const char *__wrap_engine_apply(struct engine *e, uint64_t index, uint64_t where, struct slice entry,
                                const struct engine_sink *sink);
const char *__wrap_engine_apply(struct engine *e, uint64_t index, uint64_t where, struct slice entry,
                                const struct engine_sink *sink)
{
    struct sim_node *n = sim.node;
    struct entry_seen *s = entry_at(index);
    uint64_t hash = hash64(entry, 2) | 1;
    if (!sim_log_durable(n, index, entry))
        sim_fail("entry %llu is applied, but not durable in the node's own log", (unsigned long long)index);
    if (s->hash == 0) {
        quorum_check(n, index, entry);
        s->hash = hash;
        if (index > entry_highest) entry_highest = index;
    } else if (s->hash != hash) {
        sim_fail("entry %llu is not the one that another node applied", (unsigned long long)index);
    }
    sim_trace(hash + index);
    const char *reason = __real_engine_apply(e, index, where, entry, sink);
    if (reason == NULL && index % DIGEST_EVERY == 0) digest_check(e, s, index);
    return reason;
}

uint64_t check_entries(void)
{
    return entry_highest;
}

void check_turn(struct sim_node *n)
{
    struct replica *r = n->broker->replica;
    if (r == NULL || !r->raft_open || raft_state(&r->raft) != RAFT_LEADER) return;
    uint64_t term = raft_current_term(&r->raft);
    if (term >= leader_cap) {
        uint64_t cap = term * 2 + 256;
        leaders = realloc(leaders, cap * sizeof leaders[0]);
        must(leaders != NULL);
        memset(leaders + leader_cap, 0, (cap - leader_cap) * sizeof leaders[0]);
        leader_cap = cap;
    }
    if (leaders[term] != 0 && leaders[term] != n->id)
        sim_fail("two leaders in term %llu: n%u and n%u", (unsigned long long)term, leaders[term], n->id);
    if (leaders[term] == 0) sim_say("leads in term %llu", (unsigned long long)term);
    leaders[term] = n->id;
}

struct digest_ask {
    struct engine *e;
    struct hash128_pair digest;
    const char *wrong;
};

static void digest_run(void *ctx)
{
    struct digest_ask *d = ctx;
    d->digest = engine_digest(d->e);
    d->wrong = engine_check(d->e);
}

bool check_states(void)
{
    struct digest_ask first = {0};
    uint64_t applied = 0;
    uint32_t node = 0;
    for (uint32_t i = 1; i <= SIM_NODES_MAX; i++) {
        struct sim_node *n = &sim.nodes[i];
        if (!n->up || n->broker == NULL || n->broker->engine == NULL) continue;
        uint64_t index = engine_applied_index(n->broker->engine);
        if (node != 0 && index != applied) {
            sim_say("n%u has applied %llu, n%u %llu", node, (unsigned long long)applied, i, (unsigned long long)index);
            return false;
        }
        applied = index;
        node = i;
    }
    node = 0;
    for (uint32_t i = 1; i <= SIM_NODES_MAX; i++) {
        struct sim_node *n = &sim.nodes[i];
        if (!n->up || n->broker == NULL || n->broker->engine == NULL) continue;
        struct digest_ask d = {.e = n->broker->engine};
        sim_as_node(n, digest_run, &d);
        if (d.wrong != NULL) sim_fail("n%u: %s", i, d.wrong);
        if (node != 0 && (d.digest.low != first.digest.low || d.digest.high != first.digest.high))
            sim_fail("the states of n%u and n%u differ at entry %llu", node, i, (unsigned long long)applied);
        first = d;
        node = i;
    }
    return true;
}
