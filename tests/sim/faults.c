#include "faults.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    uint32_t numbers, weight; /* weight: how often, in a cluster; 0 = never by itself */
    bool alone;               /* makes sense for one node */
} kinds[FAULT_KINDS] = {
    [FAULT_KILL] = {"kill", 2, 14, true},          [FAULT_POWER] = {"power", 2, 10, true},
    [FAULT_STOP] = {"stop", 2, 6, true},           [FAULT_DIE_IO] = {"die-io", 4, 14, true},
    [FAULT_ISOLATE] = {"isolate", 2, 12, false},   [FAULT_CUT] = {"cut", 3, 8, false},
    [FAULT_SPLIT] = {"split", 2, 8, false},        [FAULT_BRIDGE] = {"bridge", 3, 5, false},
    [FAULT_BREAK] = {"break", 2, 8, false},        [FAULT_SLOW_NET] = {"slow-net", 4, 5, false},
    [FAULT_PAUSE] = {"pause", 2, 10, true},        [FAULT_STEP] = {"step", 2, 8, true},
    [FAULT_DRIFT] = {"drift", 2, 5, true},         [FAULT_SLOW_DISK] = {"slow-disk", 3, 6, true},
    [FAULT_FAIL_SYNC] = {"fail-sync", 1, 5, true}, [FAULT_FULL] = {"full", 2, 4, true},
    [FAULT_FLIP] = {"flip", 2, 3, true},           [FAULT_TRANSFER] = {"transfer", 1, 5, false},
    [FAULT_WIPE] = {"wipe", 2, 0, false},          [FAULT_GROW] = {"grow", 1, 0, false},
    [FAULT_REMOVE] = {"remove", 1, 0, false},
};

static enum fault_kind kind_pick(struct rng *r, bool alone)
{
    uint64_t all = 0;
    for (int i = 0; i < FAULT_KINDS; i++) all += alone && !kinds[i].alone ? 0 : kinds[i].weight;
    uint64_t at = rng_below(r, all);
    for (int i = 0; i < FAULT_KINDS; i++) {
        uint64_t weight = alone && !kinds[i].alone ? 0 : kinds[i].weight;
        if (at < weight) return (enum fault_kind)i;
        at -= weight;
    }
    return FAULT_KILL;
}

/* Mostly short, sometimes long. */
static int64_t time_pick(struct rng *r, int64_t low_ms, int64_t high_ms)
{
    return rng_chance(r, 750) ? rng_span(r, low_ms, low_ms + (high_ms - low_ms) / 8) : rng_span(r, low_ms, high_ms);
}

static void fault_fill(struct fault *f, struct rng *r, uint32_t nodes)
{
    uint32_t a = 1 + (uint32_t)rng_below(r, nodes), b = 1 + (uint32_t)rng_below(r, nodes);
    if (b == a) b = a % nodes + 1;
    int64_t mask = 1 + (int64_t)rng_below(r, (1U << nodes) - 2);
    f->n[0] = rng_chance(r, 350) ? 0 : a;
    switch (f->kind) {
    case FAULT_KILL:
    case FAULT_POWER:
    case FAULT_STOP:
        f->n[1] = time_pick(r, 50, 40000);
        break;
    case FAULT_DIE_IO:
        f->n[1] = time_pick(r, 50, 20000);
        f->n[2] = rng_span(r, 1, 120);
        f->n[3] = rng_chance(r, 500);
        break;
    case FAULT_ISOLATE:
    case FAULT_PAUSE:
        f->n[1] = time_pick(r, 100, 30000);
        break;
    case FAULT_CUT:
        f->n[0] = a;
        f->n[1] = b;
        f->n[2] = time_pick(r, 100, 30000);
        break;
    case FAULT_SPLIT:
        f->n[0] = mask;
        f->n[1] = time_pick(r, 100, 30000);
        break;
    case FAULT_BRIDGE:
        f->n[1] = mask;
        f->n[2] = time_pick(r, 100, 30000);
        break;
    case FAULT_BREAK:
        f->n[0] = a;
        f->n[1] = b;
        break;
    case FAULT_SLOW_NET:
        f->n[0] = a;
        f->n[1] = b;
        f->n[2] = time_pick(r, 1000, 30000);
        f->n[3] = rng_span(r, 1000, 200000);
        break;
    case FAULT_STEP:
        f->n[1] = rng_chance(r, 500) ? rng_span(r, -3600000, 3600000) : rng_span(r, -5000, 5000);
        break;
    case FAULT_DRIFT:
        f->n[1] = rng_span(r, -10000, 10000);
        break;
    case FAULT_SLOW_DISK:
        f->n[1] = time_pick(r, 1000, 30000);
        f->n[2] = rng_span(r, 10, 2000);
        break;
    case FAULT_FULL:
        f->n[1] = time_pick(r, 2000, 40000);
        break;
    case FAULT_FLIP:
        f->n[1] = rng_span(r, 3000, 30000);
        break;
    case FAULT_TRANSFER:
        f->n[0] = a;
        break;
    default:
        break;
    }
}

static void fault_add(struct schedule *s, const struct fault *f)
{
    uint32_t at = s->count;
    while (at > 0 && s->at[at - 1].at_us > f->at_us) at--;
    memmove(&s->at[at + 1], &s->at[at], (s->count - at) * sizeof s->at[0]);
    s->at[at] = *f;
    s->count++;
}

/* Changes of the members, and disks that are emptied: at most one node of the first boot goes. An emptied voter does harm when a majority
 * without the entries it had can be made: so often another voter is behind just then, and the leader is cut off behind it. */
static void changes_make(struct schedule *s, struct rng *r, int64_t from_us, int64_t to_us)
{
    uint32_t nodes = s->nodes, victim = 1 + (uint32_t)rng_below(r, nodes);
    if (to_us - 120000000 <= from_us) return; /* a change would not be over in time */
    int64_t at_us = rng_span(r, from_us, to_us - 120000000);
    if (rng_chance(r, 350)) {
        struct fault wipe = {.kind = FAULT_WIPE, .at_us = at_us, .n = {victim, rng_span(r, 15000, 60000)}};
        struct fault behind = {.kind = FAULT_ISOLATE, .at_us = at_us - 4000000, .n = {victim % nodes + 1, 4100}};
        struct fault leader = {.kind = FAULT_ISOLATE, .at_us = at_us + 20000, .n = {0, rng_span(r, 3000, 14000)}};
        fault_add(s, &wipe);
        if (rng_chance(r, 800)) fault_add(s, &behind);
        if (rng_chance(r, 800)) fault_add(s, &leader);
    } else if (rng_chance(r, 300)) {
        fault_add(s, &(struct fault){.kind = FAULT_GROW, .at_us = at_us, .n = {nodes + 1}});
        if (rng_chance(r, 600))
            fault_add(s,
                      &(struct fault){.kind = FAULT_REMOVE, .at_us = at_us + rng_span(r, 20000000, 110000000), .n = {victim}});
    }
}

void schedule_make(struct schedule *s, uint64_t seed, uint32_t nodes, bool alone, int64_t minutes)
{
    *s = (struct schedule){.nodes = nodes, .alone = alone, .minutes = minutes};
    struct rng r = rng_for(seed, "faults", 0);
    int64_t from_us = 15000000, to_us = minutes * SIM_MINUTE_US - 60000000;
    uint32_t count = 4 + (uint32_t)rng_below(&r, 16) + (uint32_t)minutes;
    if (count > FAULTS_MAX / 2) count = FAULTS_MAX / 2;
    int64_t burst_us = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct fault f = {.kind = kind_pick(&r, alone)};
        /* Some come close behind another one. */
        f.at_us = burst_us != 0 && rng_chance(&r, 400) ? burst_us + rng_span(&r, 0, 4000000) : rng_span(&r, from_us, to_us);
        burst_us = f.at_us;
        fault_fill(&f, &r, nodes);
        fault_add(s, &f);
    }
    if (!alone) changes_make(s, &r, from_us, to_us);
}

void schedule_print(const struct schedule *s, FILE *to)
{
    fprintf(to, "nodes %u\nminutes %lld\n", s->nodes, (long long)s->minutes);
    if (s->alone) fprintf(to, "alone\n");
    for (uint32_t i = 0; i < s->count; i++) {
        const struct fault *f = &s->at[i];
        if (f->off) continue;
        fprintf(to, "%.6f %s", (double)f->at_us / 1e6, kinds[f->kind].name);
        for (uint32_t k = 0; k < kinds[f->kind].numbers; k++) fprintf(to, " %lld", (long long)f->n[k]);
        fputc('\n', to);
    }
}

bool schedule_read(struct schedule *s, FILE *from)
{
    char line[256], name[32];
    *s = (struct schedule){.nodes = 3, .minutes = 10};
    while (fgets(line, sizeof line, from) != NULL) {
        struct fault f = {0};
        double at;
        long long n[4] = {0};
        if (line[0] == '#' || line[0] == '\n') continue;
        if (sscanf(line, "nodes %u", &s->nodes) == 1) continue;
        if (sscanf(line, "minutes %lld", &n[0]) == 1) {
            s->minutes = n[0];
            continue;
        }
        if (strcmp(line, "alone\n") == 0) {
            s->alone = true;
            continue;
        }
        if (sscanf(line, "%lf %31s %lld %lld %lld %lld", &at, name, &n[0], &n[1], &n[2], &n[3]) < 2) return false;
        int kind = 0;
        while (kind < FAULT_KINDS && strcmp(kinds[kind].name, name) != 0) kind++;
        if (kind == FAULT_KINDS || s->count == FAULTS_MAX) return false;
        f.kind = (enum fault_kind)kind;
        f.at_us = (int64_t)(at * 1e6 + 0.5);
        for (int k = 0; k < 4; k++) f.n[k] = n[k];
        fault_add(s, &f);
    }
    return true;
}

/* ---- carrying out -------------------------------------------------------------------------------------------------- */

/* Wires are cut by so many faults at a time; a wire is open when none of them holds it. */
static uint32_t cuts[SIM_NODES_MAX + 1][SIM_NODES_MAX + 1];

static void wire_cut(uint32_t a, uint32_t b, bool cut)
{
    if (a == b) return;
    if (cut && cuts[a][b]++ == 0) sim_net_cut(a, b, true);
    if (!cut && cuts[a][b] > 0 && --cuts[a][b] == 0) sim_net_cut(a, b, false);
}

static void sides_cut(int64_t mask, uint32_t bridge, bool cut)
{
    for (uint32_t a = 1; a <= SIM_NODES_MAX; a++) {
        for (uint32_t b = 1; b <= SIM_NODES_MAX; b++) {
            bool apart = ((mask >> (a - 1)) & 1) != ((mask >> (b - 1)) & 1);
            if (apart && a != bridge && b != bridge) wire_cut(a, b, cut);
        }
    }
}

struct happening {
    struct sim_event event;
    struct fault fault;
    bool ends;
    struct sim_flip flip;
};

static void happen_end_in(struct happening *h, int64_t ms)
{
    h->ends = true;
    sim_at(&h->event, NULL, sim.now_us + ms * 1000);
}

static void node_pause(struct sim_node *n)
{
    if (!n->up || n->paused) return;
    n->paused = true;
    sim_net_paused(n, true);
}

static void node_resume(struct sim_node *n)
{
    if (!n->paused) return;
    n->paused = false;
    sim_net_paused(n, false);
    if (n->loop != NULL) sim_loop_kick(n->loop);
}

static void flip_begin(struct happening *h, struct sim_node *n)
{
    if (!n->up || n->booting) return;
    sim_node_end(n, SIM_END_KILL, 0);
    sim_cancel(&n->boot_event);
    struct rng r = rng_for(sim.seed, "flip", (uint64_t)h->fault.at_us);
    if (sim_log_flip(n, &r, &h->flip)) {
        n->damaged = true;
        sim_say("n%u: a bit of its log flips", n->id);
    }
    sim_node_boot_at(n, sim.now_us + 100000);
    happen_end_in(h, h->fault.n[1]);
}

static void flip_end(struct happening *h, struct sim_node *n)
{
    if (!n->damaged) return;
    bool mended = sim_log_mend(n, &h->flip), refused = n->refused;
    n->damaged = n->refused = false;
    if (mended) sim_say("n%u: its log is mended", n->id);
    /* It waits for a leader to fetch the state from; when too many do there is none. An operator mends them and starts them again. */
    if (mended && n->up && !n->booting && n->broker == NULL) {
        sim_node_end(n, SIM_END_KILL, 0);
        sim_cancel(&n->boot_event);
        refused = true;
    }
    if (refused) sim_node_boot_at(n, sim.now_us + 1000);
}

/* Node 0 stands for the one that leads just then. */
static void leader_name(struct fault *f)
{
    bool names_one = f->kind != FAULT_SPLIT && f->kind != FAULT_CUT && f->kind != FAULT_BREAK && f->kind != FAULT_SLOW_NET;
    const struct sim_node *leader = sim_leader();
    if (names_one && f->n[0] == 0) f->n[0] = leader == NULL ? 1 : leader->id;
}

static void happen_begin(struct happening *h)
{
    leader_name(&h->fault);
    const struct fault *f = &h->fault;
    uint32_t a = (uint32_t)f->n[0];
    struct sim_node *n = a >= 1 && a <= SIM_NODES_MAX ? &sim.nodes[a] : NULL;
    sim_say("-- %s %lld %lld %lld %lld", kinds[f->kind].name, (long long)f->n[0], (long long)f->n[1], (long long)f->n[2],
            (long long)f->n[3]);
    switch (f->kind) {
    case FAULT_KILL:
    case FAULT_POWER:
        if (!n->up) return;
        n->io_point_down_us = f->n[1] * 1000;
        sim_node_end(n, f->kind == FAULT_KILL ? SIM_END_KILL : SIM_END_POWER, 0);
        return;
    case FAULT_STOP:
        sim_node_stop(n, f->n[1] * 1000);
        return;
    case FAULT_DIE_IO:
        n->io_points_left = (uint32_t)f->n[2];
        n->io_point_end = f->n[3] != 0 ? SIM_END_POWER : SIM_END_KILL;
        n->io_point_down_us = f->n[1] * 1000;
        return;
    case FAULT_ISOLATE:
        sides_cut(INT64_C(1) << (a - 1), 0, true);
        happen_end_in(h, f->n[1]);
        return;
    case FAULT_CUT:
        wire_cut(a, (uint32_t)f->n[1], true);
        happen_end_in(h, f->n[2]);
        return;
    case FAULT_SPLIT:
        sides_cut(f->n[0], 0, true);
        happen_end_in(h, f->n[1]);
        return;
    case FAULT_BRIDGE:
        sides_cut(f->n[1], a, true);
        happen_end_in(h, f->n[2]);
        return;
    case FAULT_BREAK:
        sim_net_break(a, (uint32_t)f->n[1]);
        return;
    case FAULT_SLOW_NET:
        sim_net_slow(a, (uint32_t)f->n[1], f->n[3]);
        happen_end_in(h, f->n[2]);
        return;
    case FAULT_PAUSE:
        node_pause(n);
        happen_end_in(h, f->n[1]);
        return;
    case FAULT_STEP:
        sim_clock_step(n, f->n[1] * 1000);
        return;
    case FAULT_DRIFT:
        sim_clock_drift(n, (int32_t)f->n[1]);
        return;
    case FAULT_SLOW_DISK:
        n->disk.slow_until_us = sim.now_us + f->n[1] * 1000;
        n->disk.slow_factor = (uint32_t)f->n[2];
        return;
    case FAULT_FAIL_SYNC:
        if (n->up) n->disk.fail_syncs = 1;
        return;
    case FAULT_FULL:
        n->disk.ballast = n->disk.capacity - n->disk.used - rng_below(&n->rng, 2) * (64 << 20);
        n->disk.had_failure = true;
        happen_end_in(h, f->n[1]);
        return;
    case FAULT_FLIP:
        flip_begin(h, n);
        return;
    case FAULT_TRANSFER:
        members_transfer(a);
        return;
    case FAULT_GROW:
        members_grow(a);
        return;
    case FAULT_REMOVE:
        members_remove(a);
        return;
    case FAULT_WIPE:
        if (n->up) sim_node_end(n, SIM_END_POWER, 0);
        sim_disk_wipe(n);
        sim_log_wiped(n);
        sim_store_wiped(n);
        n->wiped = true;
        members_replace(n->id, f->n[1] * 1000);
        return;
    default:
        return;
    }
}

static void happen_end(struct happening *h)
{
    const struct fault *f = &h->fault;
    uint32_t a = (uint32_t)f->n[0];
    struct sim_node *n = a >= 1 && a <= SIM_NODES_MAX ? &sim.nodes[a] : NULL;
    sim_say("-- %s %lld ends", kinds[f->kind].name, (long long)f->n[0]);
    switch (f->kind) {
    case FAULT_ISOLATE:
        sides_cut(INT64_C(1) << (a - 1), 0, false);
        return;
    case FAULT_CUT:
        wire_cut(a, (uint32_t)f->n[1], false);
        return;
    case FAULT_SPLIT:
        sides_cut(f->n[0], 0, false);
        return;
    case FAULT_BRIDGE:
        sides_cut(f->n[1], a, false);
        return;
    case FAULT_SLOW_NET:
        sim_net_slow(a, (uint32_t)f->n[1], 0);
        return;
    case FAULT_PAUSE:
        node_resume(n);
        return;
    case FAULT_FULL:
        n->disk.ballast = 0;
        return;
    case FAULT_FLIP:
        flip_end(h, n);
        return;
    default:
        return;
    }
}

static struct happening happenings[FAULTS_MAX];

static void happen_run(struct sim_event *e)
{
    struct happening *h = outer(e, struct happening, event);
    if (h->ends) {
        happen_end(h);
    } else {
        happen_begin(h);
    }
}

void schedule_start(const struct schedule *s)
{
    for (uint32_t i = 0; i < s->count; i++) {
        struct happening *h = &happenings[i];
        if (s->at[i].off) continue;
        *h = (struct happening){.fault = s->at[i]};
        h->event.run = happen_run;
        sim_at(&h->event, NULL, s->at[i].at_us);
    }
}

void faults_heal(void)
{
    for (uint32_t i = 0; i < FAULTS_MAX; i++) {
        struct happening *h = &happenings[i];
        if (!heap_holds(&h->event.at)) continue;
        sim_cancel(&h->event);
        if (h->ends) happen_end(h);
    }
    sim_cluster_heal();
}
