/* Leadership and members, as an operator would change them: a request to any node, again and again until it is made.
 *
 *   transfer   the leader hands over
 *   remove     REMOVE; the node is stopped then, for good
 *   grow       a new node starts and waits; ADD_LEARNER; PROMOTE
 *   replace    of a node whose disk was emptied: REMOVE, then as grow, under its old number */
#include <stdlib.h>

#include "broker/broker_internal.h"
#include "broker/node.h"
#include "faults.h"
#include "replica/replica.h"

enum { AGAIN_US = 1500000, CHANGE_US = 8000000 };

enum step { STEP_NONE, STEP_REMOVE, STEP_START, STEP_ADD, STEP_PROMOTE };

struct member_job {
    struct sim_event event;
    struct rng rng;
    uint32_t node;
    enum step steps[5];
    uint32_t at, tries;
    bool asked, stays_away;
    uint64_t asked_life;
    struct sim_node *asked_node;
    struct node_change change;
};

static struct member_job jobs[SIM_NODES_MAX + 1];

static void job_again(struct member_job *j, int64_t us)
{
    sim_at(&j->event, NULL, sim.now_us + us);
}

static void step_done(struct member_job *j)
{
    struct sim_node *n = &sim.nodes[j->node];
    sim_say("-- member %u: step %d is done after %u tries", j->node, (int)j->steps[j->at], j->tries);
    j->tries = 0;
    if (j->steps[j->at] == STEP_REMOVE) {
        n->removed = true;
        if (n->up && !j->stays_away) sim_cancel(&n->boot_event);
    }
    j->at++;
}

static void changed(void *ctx, enum node_change_code code, uint32_t group, uint32_t which)
{
    struct member_job *j = ctx;
    (void)group, (void)which;
    j->asked = false;
    enum step step = j->steps[j->at];
    bool done = code == NODE_CHANGE_OK || (step == STEP_REMOVE && code == NODE_CHANGE_NOT_A_MEMBER) ||
                (step != STEP_REMOVE && code == NODE_CHANGE_ALREADY_VOTER);
    if (!done && (j->tries < 4 || j->tries % 16 == 0)) sim_say("-- member %u: step %d: code %d", j->node, (int)step, (int)code);
    if (done) step_done(j);
    job_again(j, AGAIN_US / 10);
}

struct change_work {
    struct sim_work work;
    struct member_job *job;
};

static void change_run(struct sim_work *w)
{
    struct change_work *c = outer(w, struct change_work, work);
    struct member_job *j = c->job;
    struct node *host = sim_node_host(sim.node);
    free(c);
    if (host == NULL || sim.node->broker == NULL) {
        j->asked = false;
        return;
    }
    node_change(host, &j->change, 1, CHANGE_US, changed, j);
}

static void change_ask(struct member_job *j, enum node_change_kind kind)
{
    struct sim_node *up[SIM_NODES_MAX];
    uint32_t count = 0;
    for (uint32_t i = 1; i <= SIM_NODES_MAX; i++) {
        struct sim_node *n = &sim.nodes[i];
        if (n->up && n->broker != NULL && !n->paused && !n->removed && i != j->node) up[count++] = n;
    }
    if (count == 0) return;
    struct sim_node *n = up[rng_below(&j->rng, count)];
    struct change_work *c = calloc(1, sizeof *c);
    must(c != NULL);
    /* What it was asked for with stays as it is while it is under way. */
    j->change = (struct node_change){.kind = kind, .id = j->node};
    snprintf(j->change.raft, sizeof j->change.raft, "127.0.0.1:%u", 7000 + j->node);
    snprintf(j->change.http, sizeof j->change.http, "127.0.0.1:%u", 8000 + j->node);
    c->job = j;
    c->work.run = change_run;
    j->asked = true;
    j->asked_node = n;
    j->asked_life = n->life;
    j->tries++;
    sim_loop_give(n->loop, &c->work);
}

static void node_start_anew(struct sim_node *n)
{
    if (n->up) sim_node_end(n, SIM_END_KILL, 0);
    sim_disk_wipe(n);
    sim_log_wiped(n);
    sim_store_wiped(n);
    n->wiped = n->refused = n->removed = n->damaged = false;
    n->joins = true;
    n->io_points_left = 0;
    sim_node_boot_at(n, sim.now_us + 100000);
}

static void job_run(struct sim_event *e)
{
    struct member_job *j = outer(e, struct member_job, event);
    struct sim_node *n = &sim.nodes[j->node];
    enum step step = j->steps[j->at];
    if (step == STEP_NONE) {
        if (!j->stays_away) return;
        if (n->up) sim_node_end(n, SIM_END_KILL, 0);
        sim_cancel(&n->boot_event);
        return;
    }
    bool lost = j->asked && j->asked_node->life != j->asked_life;
    if (lost) j->asked = false;
    if (!j->asked && step == STEP_START) {
        node_start_anew(n);
        step_done(j);
    } else if (!j->asked) {
        change_ask(j, step == STEP_REMOVE ? NODE_REMOVE : step == STEP_ADD ? NODE_ADD_LEARNER : NODE_PROMOTE);
    }
    job_again(j, AGAIN_US);
}

static bool job_start(uint32_t node, const enum step *steps, bool stays_away, int64_t in_us)
{
    struct member_job *j = &jobs[node];
    if (heap_holds(&j->event.at) || j->asked) return false;
    *j = (struct member_job){.node = node, .stays_away = stays_away, .rng = rng_for(sim.seed, "member", node)};
    for (int i = 0; i < 4 && steps[i] != STEP_NONE; i++) j->steps[i] = steps[i];
    j->event.run = job_run;
    job_again(j, in_us);
    return true;
}

bool members_grow(uint32_t node)
{
    static const enum step steps[] = {STEP_START, STEP_ADD, STEP_PROMOTE, STEP_NONE};
    return sim.nodes[node].boots == 0 && job_start(node, steps, false, 1000);
}

bool members_replace(uint32_t node, int64_t in_us)
{
    static const enum step steps[] = {STEP_REMOVE, STEP_START, STEP_ADD, STEP_PROMOTE, STEP_NONE};
    return job_start(node, steps, false, in_us);
}

bool members_remove(uint32_t node)
{
    static const enum step steps[] = {STEP_REMOVE, STEP_NONE};
    return sim.nodes[node].boots > 0 && job_start(node, steps, true, 1000);
}

bool members_idle(void)
{
    for (uint32_t i = 1; i <= SIM_NODES_MAX; i++) {
        if (heap_holds(&jobs[i].event.at) || jobs[i].asked) return false;
    }
    return true;
}

/* ---- leadership ---------------------------------------------------------------------------------------------------- */

struct transfer_work {
    struct sim_work work;
    uint32_t to;
};

static void transfer_run(struct sim_work *w)
{
    struct transfer_work *t = outer(w, struct transfer_work, work);
    struct broker *b = sim.node->broker;
    if (b != NULL && b->replica != NULL && replica_role(b->replica) == REPLICA_LEADER)
        replica_transfer(b->replica, t->to == sim.node->id ? 0 : t->to);
    free(t);
}

void members_transfer(uint32_t to)
{
    struct sim_node *leader = sim_leader();
    if (leader == NULL) return;
    struct transfer_work *t = calloc(1, sizeof *t);
    must(t != NULL);
    t->to = to;
    t->work.run = transfer_run;
    sim_loop_give(leader->loop, &t->work);
}
