/* Events, nodes' lives, random streams, the trace. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "sim.h"

struct sim sim;

/* ---- random streams ------------------------------------------------------------------------------------------------ */

uint64_t rng_u64(struct rng *r)
{
    r->state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = r->state;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint64_t rng_below(struct rng *r, uint64_t n)
{
    return n == 0 ? 0 : rng_u64(r) % n;
}

int64_t rng_span(struct rng *r, int64_t low, int64_t high)
{
    must(low <= high);
    return low + (int64_t)rng_below(r, (uint64_t)(high - low) + 1);
}

bool rng_chance(struct rng *r, uint32_t in_thousand)
{
    return rng_below(r, 1000) < in_thousand;
}

struct rng rng_for(uint64_t seed, const char *purpose, uint64_t number)
{
    struct rng r = {.state = hash64(slice_of(purpose), seed * 31 + number)};
    rng_u64(&r);
    return r;
}

/* ---- events -------------------------------------------------------------------------------------------------------- */

void sim_at(struct sim_event *e, struct sim_node *node, int64_t at_us)
{
    must(e->run != NULL);
    if (at_us < sim.now_us) at_us = sim.now_us;
    e->node = node;
    e->life = node == NULL ? 0 : node->life;
    heap_put(&sim.events, &e->at, at_us, sim.tie++);
}

void sim_cancel(struct sim_event *e)
{
    heap_remove(&sim.events, &e->at);
}

void sim_trace(uint64_t value)
{
    sim.trace = (sim.trace ^ value) * UINT64_C(0x100000001b3) + UINT64_C(0x9e3779b97f4a7c15);
    sim.trace ^= sim.trace >> 29;
}

void sim_trace_bytes(struct slice s)
{
    sim_trace(hash64(s, 0));
}

static void line_say(FILE *to, const char *format, va_list args)
{
    fprintf(to, "%12.6f ", (double)sim.now_us / 1e6);
    if (sim.node != NULL) fprintf(to, "n%u ", sim.node->id);
    vfprintf(to, format, args);
    fputc('\n', to);
}

void sim_say(const char *format, ...)
{
    if (sim.log == NULL) return;
    va_list args;
    va_start(args, format);
    line_say(sim.log, format, args);
    va_end(args);
}

void sim_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = snprintf(sim.failure, sizeof sim.failure, "at %.6f s%s%.0u: ", (double)sim.now_us / 1e6,
                     sim.node != NULL ? ", node " : "", sim.node != NULL ? sim.node->id : 0);
    if (sim.node != NULL)
        n = snprintf(sim.failure, sizeof sim.failure, "at %.6f s, node %u: ", (double)sim.now_us / 1e6, sim.node->id);
    vsnprintf(sim.failure + n, sizeof sim.failure - (size_t)n, format, args);
    va_end(args);
    if (sim.log != NULL) fprintf(sim.log, "FAILED %s\n", sim.failure);
    sim.on_fail();
    abort();
}

struct guarded {
    struct sim_node *node;
    enum sim_end how;
    int code;
};
static struct guarded ending;

void sim_process_end(enum sim_end how, int code)
{
    must(sim.guarded && sim.node != NULL);
    ending = (struct guarded){.node = sim.node, .how = how, .code = code};
    siglongjmp(sim.death, 1);
}

bool sim_as_node(struct sim_node *n, void (*f)(void *ctx), void *ctx)
{
    must(!sim.guarded && sim.node == NULL);
    sim.node = n;
    sim.ahead_us = 0;
    sim.guarded = true;
    if (sigsetjmp(sim.death, 0) == 0) {
        f(ctx);
        sim.guarded = false;
        sim.node = NULL;
        return true;
    }
    sim.guarded = false;
    sim.node = NULL;
    sim_node_end(ending.node, ending.how, ending.code);
    return false;
}

static void event_run(void *ctx)
{
    struct sim_event *e = ctx;
    e->run(e);
}

void sim_run_until(int64_t end_us)
{
    struct heap_node *h;
    while (!sim.over && (h = heap_min(&sim.events)) != NULL && h->key <= end_us) {
        struct sim_event *e = outer(h, struct sim_event, at);
        heap_remove(&sim.events, h);
        must(h->key >= sim.now_us);
        sim.now_us = h->key;
        sim.event_count++;
        if (e->node != NULL && !e->survives && e->node->life != e->life) continue;
        sim_trace((uint64_t)sim.now_us);
        if (e->node != NULL && !e->survives) {
            sim_as_node(e->node, event_run, e);
        } else {
            e->run(e);
        }
    }
    if (!sim.over && sim.now_us < end_us) sim.now_us = end_us;
}

void sim_io_point(void)
{
    struct sim_node *n = sim.node;
    if (n == NULL || n->io_points_left == 0 || --n->io_points_left > 0) return;
    sim_say("dies in the middle of a disk operation");
    sim_process_end(n->io_point_end, 0);
}

void sim_block(int64_t us)
{
    sim.ahead_us += us;
}

/* ---- clocks -------------------------------------------------------------------------------------------------------- */

static int64_t drifted(const struct sim_node *n, int64_t us)
{
    return us + us / 1000000 * n->drift_ppm + us % 1000000 * n->drift_ppm / 1000000;
}

int64_t sim_mono_of(const struct sim_node *n, int64_t true_us)
{
    return n->mono_base_us + drifted(n, true_us - n->true_base_us);
}

int64_t sim_wall_of(const struct sim_node *n, int64_t true_us)
{
    return n->wall_base_us + drifted(n, true_us - n->true_base_us);
}

int64_t sim_true_of(const struct sim_node *n, int64_t mono_us)
{
    int64_t left = mono_us - n->mono_base_us;
    if (left <= 0) return n->true_base_us;
    int64_t at = n->true_base_us + left - left / 1000000 * n->drift_ppm - 2;
    int64_t low = at - left / 1000 - 1000,
            high = at + left / 1000 + 1000; /* drift is at most some percent: squared, per mille */
    if (low < n->true_base_us) low = n->true_base_us;
    while (sim_mono_of(n, high) < mono_us) high += left / 1000 + 1000;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (sim_mono_of(n, middle) >= mono_us) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

static void clock_rebase(struct sim_node *n)
{
    int64_t mono = sim_mono_of(n, sim.now_us), wall = sim_wall_of(n, sim.now_us);
    n->true_base_us = sim.now_us;
    n->mono_base_us = mono;
    n->wall_base_us = wall;
}

void sim_clock_step(struct sim_node *n, int64_t by_us)
{
    clock_rebase(n);
    n->wall_base_us += by_us;
}

void sim_clock_drift(struct sim_node *n, int32_t ppm)
{
    clock_rebase(n);
    n->drift_ppm = ppm;
    if (n->loop != NULL) sim_loop_kick(n->loop);
}

void sim_clock_boot(struct sim_node *n, bool reboot)
{
    clock_rebase(n);
    if (!reboot) return;
    n->mono_base_us = rng_span(&n->rng, 1000000, 30000000);
    n->boot_id = rng_u64(&n->rng);
}

int64_t sim_disk_us(struct sim_node *n)
{
    int64_t us = n->disk.sync_us / 2 + rng_span(&n->rng, 0, n->disk.sync_us);
    if (rng_chance(&n->rng, 5)) us *= 20;
    if (sim.now_us < n->disk.slow_until_us) us *= n->disk.slow_factor;
    return us;
}

void sim_node_end(struct sim_node *n, enum sim_end how, int code)
{
    must(sim.node == NULL);
    n->life++;
    n->up = n->stopping = n->paused = n->booting = false;
    n->io_points_left = 0;
    sim_trace(n->life * 8 + (uint64_t)how);
    sim_net_end(n, how);
    sim_log_end(n, how);
    sim_store_end(n, how);
    sim_loops_drop(n);
    sim_files_forget(n);
    if (how == SIM_END_POWER) sim_disk_power_loss(n);
    n->loop = NULL;
    n->broker = NULL;
    n->net = NULL;
    sim_node_ended(n, how, code);
}

void sim_start(uint64_t seed)
{
    sim.seed = seed;
    sim.now_us = 1000000;
    sim.trace = seed;
    for (uint32_t i = 1; i <= SIM_NODES_MAX; i++) {
        struct sim_node *n = &sim.nodes[i];
        n->id = i;
        n->rng = rng_for(seed, "node", i);
        n->random = rng_for(seed, "random", i);
        n->true_base_us = 0;
        n->mono_base_us = rng_span(&n->rng, 1000000, 90000000);
        n->wall_base_us = SIM_WALL_BASE_US + rng_span(&n->rng, -200000, 200000);
        n->boot_id = rng_u64(&n->rng);
        sim_disk_init(n);
    }
    sim_net_init();
}
