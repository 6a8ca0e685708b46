/* A node: boot, graceful stop, and what its end means. */
#include <stdlib.h>
#include <string.h>

#include "broker/broker_internal.h"
#include "broker/node.h"
#include "check.h"
#include "replica/replica_inner.h"
#include "sim.h"
#include "work.h"

struct host {
    struct config config;
    struct node *node;
    int exit_code;
    struct buf error;
};

static struct host hosts[SIM_NODES_MAX + 1];
static struct config base;
static bool alone;

static void config_make(void)
{
    struct buf error = {0};
    setenv("QUEEN_MEMORY_MAX", "1G", 1); /* a seed is the same run on every machine */
    must(config_read(&base, 0, NULL, &error));
    base.cache_bytes = 1 << 20;
    base.edge_threads = 1;
    base.group_own_thread = false;
    base.groups = 1;
    snprintf(base.token, sizeof base.token, "a secret of the simulator");
    snprintf(base.raft_host, sizeof base.raft_host, "127.0.0.1");
}

/* What may stay in memory is a node's own and another at each start: next to nothing, little, plenty. No answer and no digest may show it. */
static void budgets_draw(struct sim_node *n, struct memory_plan *m)
{
    struct rng r = rng_for(sim.seed, "budgets", n->boots * SIM_NODES_MAX + n->id);
    uint64_t *of[] = {&m->lanes, &m->dedup, &m->kv_values, &m->runs};
    for (uint32_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        uint64_t most = UINT64_C(1) << rng_below(&r, 21); /* a run's memory is in the tens to hundreds of KB */
        if (rng_chance(&r, 400)) *of[i] = 1 + rng_below(&r, most);
    }
    sim_say("budgets: lanes %llu, dedup %llu, values %llu, runs %llu", (unsigned long long)m->lanes,
            (unsigned long long)m->dedup, (unsigned long long)m->kv_values, (unsigned long long)m->runs);
}

/* So is what of the log is copied to the archive, and how soon. */
static void reclaim_draw(struct sim_node *n, struct config *c)
{
    struct rng r = rng_for(sim.seed, "reclaim", n->boots * SIM_NODES_MAX + n->id);
    if (rng_chance(&r, 100)) c->reclaim_bytes_s = 0;
    c->reclaim_live_pct = (uint32_t)rng_span(&r, 10, 90);
    c->reclaim_after_ms = rng_chance(&r, 500) ? (uint32_t)rng_below(&r, 3000) : (uint32_t)rng_below(&r, 60000);
}

static void config_of(struct sim_node *n, struct config *c)
{
    *c = base;
    budgets_draw(n, &c->memory);
    reclaim_draw(n, c);
    snprintf(c->dir, sizeof c->dir, "/sim/n%u", n->id);
    if (alone) return;
    c->node_id = n->id;
    c->raft_port = (uint16_t)(7000 + n->id);
    snprintf(c->advertise_raft, sizeof c->advertise_raft, "127.0.0.1:%u", 7000 + n->id);
    snprintf(c->advertise_http, sizeof c->advertise_http, "127.0.0.1:%u", 8000 + n->id);
    c->join = n->joins;
    if (c->join) return;
    for (uint32_t i = 1; i <= sim.node_count; i++) {
        struct config_peer *p = &c->peers[c->peer_count++];
        p->id = i;
        p->raft_port = (uint16_t)(7000 + i);
        snprintf(p->raft_host, sizeof p->raft_host, "127.0.0.1");
        snprintf(p->http, sizeof p->http, "127.0.0.1:%u", 8000 + i);
    }
}

/* ---- boot ---------------------------------------------------------------------------------------------------------- */

static void stop_begin(struct sim_node *n);

static void stop_run(struct sim_work *w)
{
    free(w);
    stop_begin(sim.node);
}

/* Any thread: a state was fetched, the process must start anew. */
static void again(void *ctx)
{
    struct sim_node *n = ctx;
    struct sim_work *w = calloc(1, sizeof *w);
    must(w != NULL);
    w->run = stop_run;
    sim_say("a state was fetched: starts anew");
    n->again = true;
    sim_loop_give(n->loop, w);
}

static void alone_open(struct sim_node *n, struct host *h)
{
    struct broker_place place = {.dir = h->config.dir, .ctx = n, .again = again};
    n->broker = broker_open(&h->config, &place, n->loop, &h->exit_code, &h->error);
}

static void cluster_open(struct sim_node *n, struct host *h)
{
    struct node_owner owner = {.ctx = n, .again = again};
    h->node = node_open(&h->config, n->loop, &owner, &h->exit_code, &h->error);
    if (h->node != NULL) n->broker = node_group(h->node, 0);
}

static void boot_run(void *ctx)
{
    struct sim_node *n = ctx;
    struct host *h = &hosts[n->id];
    n->loop = loop_new();
    h->node = NULL;
    h->exit_code = 0;
    buf_clear(&h->error);
    config_of(n, &h->config);
    if (alone) {
        alone_open(n, h);
    } else {
        cluster_open(n, h);
    }
    if (alone ? n->broker == NULL : h->node == NULL) {
        bool starts_anew = h->exit_code == NODE_AGAIN;
        sim_say("%s: %.*s", starts_anew ? "starts anew" : "refuses to start", (int)h->error.len, h->error.at);
        sim_process_end(SIM_END_EXIT, starts_anew ? 0 : h->exit_code);
    }
    n->booting = false;
}

void sim_node_boot(struct sim_node *n)
{
    if (n->up || n->refused) return;
    n->up = n->booting = true;
    n->stopping = n->again = false;
    n->boots++;
    n->up_since_us = sim.now_us;
    n->disk.had_failure = n->disk.ballast > 0;
    sim_clock_boot(n, false);
    sim_say("n%u boots (%llu)", n->id, (unsigned long long)n->boots);
    sim_as_node(n, boot_run, n);
}

static void boot_event(struct sim_event *e)
{
    sim_node_boot(outer(e, struct sim_node, boot_event));
}

void sim_node_boot_at(struct sim_node *n, int64_t at_us)
{
    n->boot_event.run = boot_event;
    sim_at(&n->boot_event, NULL, at_us);
}

/* ---- stop ---------------------------------------------------------------------------------------------------------- */

static void stopped(void *ctx)
{
    (void)ctx;
    struct sim_work *w = calloc(1, sizeof *w);
    must(w != NULL);
    w->run = NULL;
    free(w);
    struct sim_node *n = sim.node;
    n->stopping = false;
    n->waits_for_swap = true; /* closed at the end of this turn */
}

static void stop_begin(struct sim_node *n)
{
    if (n->stopping || (n->broker == NULL && hosts[n->id].node == NULL)) return;
    n->stopping = true;
    if (alone) {
        broker_stop(n->broker, stopped, n);
    } else {
        node_stop(hosts[n->id].node, stopped, n);
    }
}

void sim_node_stop(struct sim_node *n, int64_t down_us)
{
    if (!n->up || n->stopping) return;
    struct sim_work *w = calloc(1, sizeof *w);
    must(w != NULL);
    w->run = stop_run;
    n->io_point_down_us = down_us;
    sim_loop_give(n->loop, w);
}

static void close_all(struct sim_node *n)
{
    if (alone) {
        broker_close(n->broker);
    } else {
        node_close(hosts[n->id].node);
    }
}

void sim_turn_done(struct sim_node *n)
{
    if (n->broker == NULL && hosts[n->id].node != NULL) n->broker = node_group(hosts[n->id].node, 0);
    if (n->broker != NULL) check_turn(n);
    if (!n->waits_for_swap) return;
    n->waits_for_swap = false;
    close_all(n);
    sim_process_end(SIM_END_EXIT, 0);
}

/* ---- what an end means --------------------------------------------------------------------------------------------- */

void sim_node_ended(struct sim_node *n, enum sim_end how, int code)
{
    static const char *const names[] = {"killed", "lost power", "exits"};
    struct host *h = &hosts[n->id];
    sim_say("n%u %s%s%.0d", n->id, names[how], how == SIM_END_EXIT ? " with code " : "", how == SIM_END_EXIT ? code : 0);
    work_node_ended(n);
    n->waits_for_swap = n->again = false;
    h->node = NULL;
    int64_t down_us = n->io_point_down_us > 0 ? n->io_point_down_us : rng_span(&n->rng, 100000, 3000000);
    n->io_point_down_us = 0;
    if (how == SIM_END_POWER) sim_clock_boot(n, true);
    if (how == SIM_END_EXIT && code == 3 && !n->disk.had_failure)
        sim_fail("n%u ends with code 3 although its disk was fine: %.*s", n->id, (int)h->error.len, h->error.at);
    if (how == SIM_END_EXIT && code == 2 && !n->wiped && !n->damaged && !n->removed)
        sim_fail("n%u refuses its directory: %.*s", n->id, (int)h->error.len, h->error.at);
    if (how == SIM_END_EXIT && code != 0 && code != 2 && code != 3)
        sim_fail("n%u ends with code %d: %.*s", n->id, code, (int)h->error.len, h->error.at);
    if (how == SIM_END_EXIT && code == 2) {
        n->refused = true; /* until an operator has done something */
        return;
    }
    if (sim.calm && how == SIM_END_EXIT && code == 0) down_us = 100000;
    sim_node_boot_at(n, sim.now_us + down_us);
}

/* ---- the cluster --------------------------------------------------------------------------------------------------- */

void sim_cluster_start(uint32_t nodes, bool one_alone)
{
    alone = one_alone;
    sim.node_count = nodes;
    config_make();
    struct rng r = rng_for(sim.seed, "cluster", 0);
    static const uint64_t keep[] = {0, 16 << 10, 64 << 10, 1 << 20};
    base.keep_bytes = keep[rng_below(&r, 4)];
    base.segment_bytes = UINT64_C(1) << rng_span(&r, 14, 20);
    bool lan = rng_chance(&r, 500);
    base.election_ms = lan ? 300 : 1000;
    base.heartbeat_ms = lan ? 50 : 100;
    base.durable_every_ms = (uint32_t)rng_span(&r, 500, 4000);
    for (uint32_t i = 1; i <= nodes; i++) sim_node_boot_at(&sim.nodes[i], sim.now_us + rng_span(&r, 0, 300000));
}

struct node *sim_node_host(struct sim_node *n)
{
    return hosts[n->id].node;
}

void sim_cluster_heal(void)
{
    sim_net_heal();
    for (uint32_t i = 1; i <= SIM_NODES_MAX; i++) {
        struct sim_node *n = &sim.nodes[i];
        n->disk.ballast = 0;
        n->disk.fail_syncs = 0;
        n->disk.slow_until_us = 0;
        n->io_points_left = 0;
    }
}

struct sim_node *sim_leader(void)
{
    struct sim_node *best = NULL;
    uint64_t term = 0;
    for (uint32_t i = 1; i <= SIM_NODES_MAX; i++) {
        struct sim_node *n = &sim.nodes[i];
        if (!n->up || n->broker == NULL || n->broker->replica == NULL) continue;
        if (replica_role(n->broker->replica) != REPLICA_LEADER || replica_term(n->broker->replica) < term) continue;
        best = n;
        term = replica_term(n->broker->replica);
    }
    return best;
}
