/* loop.h, clock.h, logger.h, random bytes and the end of a process, under virtual time.
 *
 * A loop belongs to the node that made it. A turn is one event: tasks, timers, hooks, as in the real loop; it takes no virtual time
 * but what its blocking calls add, and the next turn comes a little later. */
#include "base/loop.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/logger.h"
#include "base/planted.h"
#include "sim.h"

/* ---- clocks and randomness ----------------------------------------------------------------------------------------- */

int64_t clock_mono_us(void)
{
    if (sim.node == NULL) return sim.now_us;
    return sim_mono_of(sim.node, sim.now_us + sim.ahead_us);
}

int64_t clock_wall_us(void)
{
    if (sim.node == NULL) return SIM_WALL_BASE_US + sim.now_us;
    return sim_wall_of(sim.node, sim.now_us + sim.ahead_us);
}

uint64_t clock_boot_id(void)
{
    return sim.node == NULL ? 1 : sim.node->boot_id;
}

void __wrap_random_bytes(void *at, size_t len);
void __wrap_random_bytes(void *at, size_t len)
{
    static struct rng outside = {.state = 77};
    struct rng *r = sim.node == NULL ? &outside : &sim.node->random;
    unsigned char *to = at;
    while (len > 0) {
        uint64_t v = rng_u64(r);
        size_t n = len < sizeof v ? len : sizeof v;
        memcpy(to, &v, n);
        to += n;
        len -= n;
    }
}

struct uuid __wrap_uuid_mint(int64_t wall_us);
struct uuid __wrap_uuid_mint(int64_t wall_us)
{
    struct uuid id;
    uint64_t ms = (uint64_t)(wall_us / 1000);
    __wrap_random_bytes(id.bytes, sizeof id.bytes);
    for (int i = 0; i < 6; i++) id.bytes[i] = (uint8_t)(ms >> (40 - 8 * i));
    id.bytes[6] = (uint8_t)(0x70 | (id.bytes[6] & 0x0f));
    id.bytes[8] = (uint8_t)(0x80 | (id.bytes[8] & 0x3f));
    return id;
}

int __wrap_nanosleep(const struct timespec *t, struct timespec *left);
int __wrap_nanosleep(const struct timespec *t, struct timespec *left)
{
    (void)left;
    must(sim.node != NULL);
    sim_block(t->tv_sec * 1000000 + t->tv_nsec / 1000 + 1);
    sim_log_block(sim.node);
    return 0;
}

/* ---- the log of a node, and its end -------------------------------------------------------------------------------- */

void logger_init(enum logger_level level, bool json)
{
    (void)level, (void)json;
}

void logger_write(enum logger_level level, const char *format, ...)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    if (sim.log == NULL || (int)level > sim.log_level) return;
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    sim_say("%s: %s", names[level], text);
}

bool logger_every(int64_t *last_us, int64_t every_us)
{
    int64_t now_us = clock_mono_us();
    if (*last_us != 0 && now_us - *last_us < every_us) return false;
    *last_us = now_us;
    return true;
}

void must_fail(const char *file, int line, const char *condition)
{
    sim_fail("broken invariant at %s:%d: %s", file, line, condition);
}

void __wrap__exit(int code);
void __real__exit(int code) __attribute__((noreturn));
void __wrap__exit(int code)
{
    if (sim.node == NULL) __real__exit(code);
    sim_process_end(SIM_END_EXIT, code);
}

#ifdef QUEEN_PLANT
bool planted(const char *name)
{
    static const char *active;
    if (active == NULL) active = getenv("QUEEN_PLANT");
    if (active == NULL) active = "";
    return active[0] == name[0] && strcmp(active, name) == 0;
}
#endif

/* ---- loops --------------------------------------------------------------------------------------------------------- */

enum { TIMERS_A_TURN_MAX = 1024 };

struct loop {
    struct sim_node *node;
    struct loop *next;
    struct loop_task *first, *last;
    struct sim_work *work_first, *work_last;
    struct heap timers;
    uint64_t timer_count;
    struct loop_hook *hooks;
    int64_t now_us, busy_until_us;
    bool in_turn, more;
    struct sim_event turn;
};

static struct loop *loops[SIM_NODES_MAX + 1];

static int64_t latency_us(struct sim_node *n)
{
    int64_t us = rng_span(&n->rng, 5, 40);
    return rng_chance(&n->rng, 3) ? us + rng_span(&n->rng, 100, 3000) : us;
}

static void turn_arm(struct loop *l)
{
    struct sim_node *n = l->node;
    if (l->in_turn) return;
    int64_t at_us = -1;
    if (l->first != NULL || l->work_first != NULL || l->more) {
        at_us = sim.now_us + latency_us(n);
    } else {
        struct heap_node *h = heap_min(&l->timers);
        if (h == NULL) {
            sim_cancel(&l->turn);
            return;
        }
        at_us = sim_true_of(n, h->key);
    }
    if (at_us < l->busy_until_us) at_us = l->busy_until_us;
    if (heap_holds(&l->turn.at) && l->turn.at.key == at_us) return;
    /* Work that is waiting already is not put off by more of it. */
    bool waits = l->first != NULL || l->work_first != NULL || l->more;
    if (waits && heap_holds(&l->turn.at) && l->turn.at.key <= at_us) return;
    sim_at(&l->turn, n, at_us);
}

static void tasks_run(struct loop *l)
{
    struct loop_task *t = l->first;
    l->first = l->last = NULL;
    while (t != NULL) {
        struct loop_task *next = t->next;
        t->run(t);
        t = next;
    }
    struct sim_work *w = l->work_first;
    l->work_first = l->work_last = NULL;
    while (w != NULL) {
        struct sim_work *next = w->next;
        w->run(w);
        w = next;
    }
}

static void timers_run(struct loop *l)
{
    for (int i = 0; i < TIMERS_A_TURN_MAX; i++) {
        struct heap_node *n = heap_min(&l->timers);
        if (n == NULL || n->key > l->now_us) return;
        heap_remove(&l->timers, n);
        struct loop_timer *t = outer(n, struct loop_timer, node);
        t->fire(t);
    }
}

static void turn_run(struct sim_event *e)
{
    struct loop *l = outer(e, struct loop, turn);
    if (l->node->paused) return; /* resuming arms it again */
    l->in_turn = true;
    l->now_us = clock_mono_us();
    tasks_run(l);
    timers_run(l);
    l->more = false;
    for (struct loop_hook *h = l->hooks; h != NULL; h = h->next) l->more |= h->run(h);
    l->in_turn = false;
    l->busy_until_us = sim.now_us + sim.ahead_us;
    turn_arm(l);
    sim_turn_done(l->node);
}

struct loop *loop_new(void)
{
    must(sim.node != NULL);
    struct loop *l = calloc(1, sizeof *l), **at = &loops[sim.node->id];
    must(l != NULL);
    l->node = sim.node;
    l->now_us = clock_mono_us();
    l->turn.run = turn_run;
    l->more = true;
    while (*at != NULL) at = &(*at)->next;
    *at = l;
    turn_arm(l);
    return l;
}

void loop_free(struct loop *l)
{
    struct loop **at = &loops[l->node->id];
    while (*at != NULL && *at != l) at = &(*at)->next;
    if (*at == l) *at = l->next;
    sim_cancel(&l->turn);
}

void sim_loops_drop(struct sim_node *n)
{
    for (struct loop *l = loops[n->id]; l != NULL; l = l->next) sim_cancel(&l->turn);
    loops[n->id] = NULL;
}

void sim_loop_kick(struct loop *l)
{
    for (; l != NULL; l = l->next) {
        sim_cancel(&l->turn);
        turn_arm(l);
    }
}

void sim_loop_give(struct loop *l, struct sim_work *w)
{
    w->next = NULL;
    if (l->work_last != NULL) {
        l->work_last->next = w;
    } else {
        l->work_first = w;
    }
    l->work_last = w;
    turn_arm(l);
}

void loop_run(struct loop *l)
{
    (void)l;
    must(!"the simulator turns the loops");
}

void loop_stop(struct loop *l)
{
    (void)l;
}

bool loop_fd_add(struct loop *l, struct loop_fd *f, uint32_t events)
{
    (void)l, (void)f, (void)events;
    must(!"no descriptors here");
    return false;
}

bool loop_fd_change(struct loop *l, struct loop_fd *f, uint32_t events)
{
    return loop_fd_add(l, f, events);
}

void loop_fd_remove(struct loop *l, struct loop_fd *f)
{
    (void)l, (void)f;
}

void loop_post(struct loop *l, struct loop_task *t)
{
    t->next = NULL;
    if (l->last != NULL) {
        l->last->next = t;
    } else {
        l->first = t;
    }
    l->last = t;
    turn_arm(l);
}

void loop_wake(struct loop *l)
{
    l->more = true;
    turn_arm(l);
}

bool loop_is_mine(const struct loop *l)
{
    return l->node == sim.node;
}

void loop_timer_set(struct loop *l, struct loop_timer *t, int64_t at_us)
{
    heap_put(&l->timers, &t->node, at_us, l->timer_count++);
    turn_arm(l);
}

void loop_timer_cancel(struct loop *l, struct loop_timer *t)
{
    heap_remove(&l->timers, &t->node);
}

void loop_hook_add(struct loop *l, struct loop_hook *h)
{
    struct loop_hook **at = &l->hooks;
    while (*at != NULL) at = &(*at)->next;
    h->next = NULL;
    *at = h;
}

int64_t loop_now_us(const struct loop *l)
{
    return l->now_us;
}
