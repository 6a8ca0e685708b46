/* Timers and locks.
 *
 *   timers   once scheduled, and not cancelled, each fires once, not before its time; cancelled ones never
 *   locks    of two holders of one permit, by order of the log, the second came after the first had let go or its time was over; tokens
 *            rise */
#include <stdlib.h>
#include <string.h>

#include "broker/broker_internal.h"
#include "work.h"

enum { TIMER_CLIENTS = 2, LOCK_CLIENTS = 3, LOCKS = 2 };

/* ---- timers -------------------------------------------------------------------------------------------------------- */

struct timer_seen {
    uint32_t attempts, schedules; /* sent; schedules that may have happened: a second one may come after the first has fired */
    bool scheduled, possible, cancelled, may_be_cancelled;
    int64_t due_us;
};
static struct timer_seen *timers; /* by number, from 1 */
static uint32_t timer_count, timer_cap;

struct timer_client {
    struct client client;
    struct op op;
    uint32_t timer;
    bool cancels;
    struct timer_outcome outcome;
};
static struct timer_client timer_clients[TIMER_CLIENTS];

static void timer_step(struct client *c);
static void timer_send(struct client *c);

static void timer_read(struct op *o, struct call *c)
{
    struct timer_client *t = o->ctx;
    must(c->result.kind == COMMAND_TIMERS && c->result.timers.count == 1);
    t->outcome = c->result.timers.items[0];
}

static void timer_answered(struct op *o)
{
    struct timer_client *t = o->ctx;
    struct timer_seen *s = &timers[t->timer];
    struct rng *r = &t->client.rng;
    work_counts.timers++;
    if (o->end != OP_FAILED && !t->cancels) {
        s->possible = true;
        s->schedules++;
    }
    if (o->end != OP_FAILED && t->cancels) s->may_be_cancelled = true;
    if (o->end == OP_OK && !t->cancels) {
        s->scheduled = true;
        s->due_us = t->outcome.due_us;
    }
    if (o->end == OP_OK && t->cancels) {
        s->cancelled = t->outcome.status == TIMER_CANCELLED;
        if (t->outcome.status == TIMER_ABSENT && s->attempts == 1 && s->schedules == 1) s->may_be_cancelled = false;
    }
    bool again = o->end != OP_OK && rng_chance(r, 700);
    t->client.step = again ? timer_send : timer_step;
    if (!again && !t->cancels && s->scheduled && rng_chance(r, 250)) {
        t->cancels = true;
        s->attempts = 0;
        t->client.step = timer_send;
    }
    client_think(&t->client, 50000, 4000000);
}

static void timer_send(struct client *c)
{
    struct timer_client *t = outer(c, struct timer_client, client);
    struct op *o = &t->op;
    o->client = c;
    op_clear(o);
    o->kind = CALL_WRITE;
    o->grows = !t->cancels;
    o->ctx = t;
    o->read = timer_read;
    o->answered = timer_answered;
    timers[t->timer].attempts++;
    char key[32], text[24], payload[32];
    snprintf(key, sizeof key, "timer-%u", t->timer);
    snprintf(text, sizeof text, "t%u", t->timer);
    snprintf(payload, sizeof payload, "\"%s\"", text);
    struct uuid id;
    uint64_t bits[2] = {rng_u64(&c->rng), rng_u64(&c->rng)};
    memcpy(id.bytes, bits, sizeof bits);
    struct timer_op op = {
        .kind = t->cancels ? TIMER_CANCEL : TIMER_SCHEDULE,
        .delay_us = rng_span(&c->rng, -1000000, 40000000),
        .queue = slice_of("alarm"),
        .key = slice_of(key),
        .partition = lane_name(LANE_ALARM),
        .item = {.flags = ITEM_TRANSACTION | ITEM_ID, .transaction = slice_of(text), .id = id, .payload = slice_of(payload)}};
    size_t at = timers_begin(&o->command, work_tenant, 1);
    timer_op_add(&o->command, &op);
    timers_end(&o->command, at);
    op_send(o);
}

static void timer_step(struct client *c)
{
    struct timer_client *t = outer(c, struct timer_client, client);
    if (timer_count + 2 > timer_cap) {
        timer_cap = timer_cap * 2 + 256;
        timers = realloc(timers, timer_cap * sizeof timers[0]);
        must(timers != NULL);
    }
    t->timer = ++timer_count;
    timers[t->timer] = (struct timer_seen){0};
    t->cancels = false;
    timer_send(c);
}

void timer_work_start(void)
{
    for (uint32_t i = 0; i < TIMER_CLIENTS; i++) client_start(&timer_clients[i].client, "timer", i, timer_step);
}

void timer_work_check(void)
{
    for (uint32_t i = 1; i <= timer_count; i++) {
        const struct timer_seen *s = &timers[i];
        char text[24];
        int64_t created_us = 0;
        snprintf(text, sizeof text, "t%u", i);
        bool fired = queue_final_has(LANE_ALARM, text, &created_us);
        if (fired && !s->possible) sim_fail("timer %u fired, although every attempt to schedule it was refused", i);
        if (fired && s->cancelled && s->schedules == 1) sim_fail("timer %u fired, although it was cancelled", i);
        if (!fired && s->scheduled && !s->may_be_cancelled) sim_fail("timer %u did not fire", i);
        if (fired && s->schedules == 1 && s->scheduled && created_us < s->due_us)
            sim_fail("timer %u fired %.3f s before its time", i, (double)(s->due_us - created_us) / 1e6);
    }
}

/* ---- locks --------------------------------------------------------------------------------------------------------- */

struct hold {
    uint32_t lock, client;
    uint64_t token;
    int64_t from_us, to_us; /* in the log's wall time */
    bool ended;             /* let go, or may have been: no longer a claim on anything */
};
static struct hold *holds;
static uint32_t hold_count, hold_cap;

enum lock_doing { LOCK_DOES_ACQUIRE, LOCK_DOES_RENEW, LOCK_DOES_RELEASE };

struct lock_client {
    struct client client;
    struct op op;
    enum lock_doing doing;
    uint32_t lock, hold, slot;
    int64_t ttl_us;
    struct lock_outcome outcome;
};
static struct lock_client lock_clients[LOCK_CLIENTS];

static void lock_step(struct client *c);
static void lock_send(struct client *c);

static void hold_check(const struct hold *h)
{
    for (uint32_t i = 0; i < hold_count; i++) {
        const struct hold *o = &holds[i];
        if (o == h || o->lock != h->lock) continue;
        if ((o->token < h->token) != (o->from_us < h->from_us) || o->token == h->token)
            sim_fail("lock %u: tokens %llu and %llu are not in the order of the log", h->lock, (unsigned long long)o->token,
                     (unsigned long long)h->token);
        const struct hold *early = o->from_us < h->from_us ? o : h, *late = early == o ? h : o;
        if (!early->ended && late->from_us < early->to_us)
            sim_fail("lock %u: acquired by client %u while client %u holds it for %.3f s more", h->lock, late->client,
                     early->client, (double)(early->to_us - late->from_us) / 1e6);
    }
}

static void hold_put(struct lock_client *l, const struct op *o)
{
    if (hold_count == hold_cap) {
        hold_cap = hold_cap * 2 + 256;
        holds = realloc(holds, hold_cap * sizeof holds[0]);
        must(holds != NULL);
    }
    l->hold = hold_count;
    holds[hold_count] = (struct hold){.lock = l->lock,
                                      .client = l->client.number,
                                      .token = l->outcome.token,
                                      .from_us = o->stamp_us,
                                      .to_us = o->stamp_us + l->ttl_us};
    hold_count++;
    hold_check(&holds[l->hold]);
}

static void lock_read(struct op *o, struct call *c)
{
    struct lock_client *l = o->ctx;
    must(c->result.kind == COMMAND_LOCKS && c->result.locks.count == 1);
    l->outcome = c->result.locks.items[0];
}

static void lock_answered(struct op *o)
{
    struct lock_client *l = o->ctx;
    struct client *c = &l->client;
    work_counts.locks++;
    bool done = o->end == OP_OK && l->outcome.done;
    if (l->doing == LOCK_DOES_ACQUIRE && done && !l->outcome.already) {
        hold_put(l, o);
        l->slot = l->outcome.slot;
        l->doing = rng_chance(&c->rng, 400) ? LOCK_DOES_RENEW : LOCK_DOES_RELEASE;
        c->step = lock_send;
    } else if (l->doing == LOCK_DOES_RENEW && done) {
        holds[l->hold].to_us = o->stamp_us + l->ttl_us;
        holds[l->hold].ended = false;
        l->doing = LOCK_DOES_RELEASE;
        c->step = lock_send;
    } else {
        /* Let go, lost, or not known. */
        c->step = lock_step;
    }
    client_think(c, 50000, 3000000);
}

static void lock_send(struct client *c)
{
    struct lock_client *l = outer(c, struct lock_client, client);
    struct op *o = &l->op;
    static const uint8_t kinds[] = {LOCK_ACQUIRE, LOCK_RENEW, LOCK_RELEASE};
    char name[16], owner[24];
    o->client = c;
    op_clear(o);
    o->kind = CALL_WRITE;
    o->ctx = l;
    o->read = lock_read;
    o->answered = lock_answered;
    snprintf(name, sizeof name, "lock-%u", l->lock);
    snprintf(owner, sizeof owner, "\"%u\"", c->number);
    l->ttl_us = rng_span(&c->rng, 1, 8) * 1000000;
    struct lock_op op = {.kind = kinds[l->doing],
                         .has_owner = 1,
                         .limit = 1,
                         .ttl_us = l->ttl_us,
                         .name = slice_of(name),
                         .owner = slice_of(owner)};
    if (l->doing != LOCK_DOES_ACQUIRE) {
        op.token = holds[l->hold].token;
        op.slot = l->slot;
        /* A renewal may make it shorter, a release ends it, whether we are told or not. */
        holds[l->hold].ended = true;
    }
    size_t at = locks_begin(&o->command, work_tenant, 1);
    lock_op_add(&o->command, &op);
    locks_end(&o->command, at);
    op_send(o);
}

static void lock_step(struct client *c)
{
    struct lock_client *l = outer(c, struct lock_client, client);
    l->doing = LOCK_DOES_ACQUIRE;
    l->lock = (uint32_t)rng_below(&c->rng, LOCKS);
    lock_send(c);
}

void lock_work_start(void)
{
    for (uint32_t i = 0; i < LOCK_CLIENTS; i++) client_start(&lock_clients[i].client, "lock", i, lock_step);
}
