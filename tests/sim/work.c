#include "work.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "broker/broker_internal.h"

struct work_counts work_counts;
bool work_stopping, work_is_calm;
const struct uuid work_tenant = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};

/* One call under way at a node. It outlives its op when the client gives up, and its node when that dies. */
struct shot {
    struct shot *next, *previous;
    struct call call;
    struct buf command;
    struct op *op; /* NULL: nobody waits */
    struct sim_node *node;
    uint64_t life, number;
    bool submitted;
    struct sim_event arrive, patience;
};

static struct shot shots = {.next = &shots, .previous = &shots};
static uint64_t ops_under_way, shot_numbers;

static void shot_unlink(struct shot *s)
{
    s->next->previous = s->previous;
    s->previous->next = s->next;
}

/* ---- clients ------------------------------------------------------------------------------------------------------- */

static void think_run(struct sim_event *e)
{
    struct client *c = outer(e, struct client, think);
    if (!work_stopping || c->final) c->step(c);
}

void client_think(struct client *c, int64_t low_us, int64_t high_us)
{
    c->think.run = think_run;
    sim_at(&c->think, NULL, sim.now_us + rng_span(&c->rng, low_us, high_us + high_us / 3));
}

void client_start(struct client *c, const char *kind, uint32_t number, void (*step)(struct client *c))
{
    c->kind = kind;
    c->number = number;
    c->rng = rng_for(sim.seed, kind, number);
    c->step = step;
    c->node = 1 + (uint32_t)rng_below(&c->rng, sim.node_count);
    client_think(c, 1000000, 6000000);
}

uint32_t work_node_pick(struct rng *r)
{
    uint32_t up[SIM_NODES_MAX], count = 0;
    for (uint32_t i = 1; i <= SIM_NODES_MAX; i++) {
        const struct sim_node *n = &sim.nodes[i];
        if (n->boots > 0 && !n->removed && !n->refused) up[count++] = i;
    }
    return count == 0 ? 1 : up[rng_below(r, count)];
}

/* ---- answers ------------------------------------------------------------------------------------------------------- */

static enum op_end end_of(enum call_outcome outcome)
{
    switch (outcome) {
    case CALL_OK:
    case CALL_EMPTY:
        return OP_OK;
    case CALL_OVERLOADED:
    case CALL_STORAGE_FULL:
    case CALL_NO_LEADER:
        return OP_FAILED;
    case CALL_DAMAGED:
        sim_fail("a payload could not be read back");
    default:
        return OP_UNKNOWN;
    }
}

static void back_run(struct sim_event *e)
{
    struct op *o = outer(e, struct op, back);
    struct client *c = o->client;
    o->answered_us = sim.now_us;
    ops_under_way--;
    work_counts.ok += o->end == OP_OK;
    work_counts.failed += o->end == OP_FAILED;
    work_counts.unknown += o->end == OP_UNKNOWN;
    sim_trace(c->number * 16 + (uint64_t)o->end);
    if (o->end != OP_OK || rng_chance(&c->rng, 60)) c->node = work_node_pick(&c->rng);
    o->answered(o);
}

static void op_ends(struct op *o, enum op_end end, int64_t in_us)
{
    o->end = end;
    o->shot = NULL;
    o->back.run = back_run;
    sim_at(&o->back, NULL, sim.now_us + sim.ahead_us + in_us);
}

static void shot_done(struct call *call)
{
    struct shot *s = outer(call, struct shot, call);
    struct op *o = s->op;
    sim_cancel(&s->patience);
    shot_unlink(s);
    if (o != NULL) {
        o->outcome = call->outcome;
        o->stamp_us = call->wall_us;
        enum op_end end = end_of(call->outcome);
        if (end == OP_OK && o->read != NULL) o->read(o, call);
        op_ends(o, end, rng_span(&o->client->rng, 50, 400));
    }
    broker_pieces_release(s->node->broker, call);
    arena_free(&call->arena);
    buf_free(&call->answer);
    buf_free(&s->command);
    free(s);
}

struct carried {
    struct sim_work work;
    uint64_t number; /* of the shot */
};

static struct shot *shot_find(uint64_t number)
{
    for (struct shot *at = shots.next; at != &shots; at = at->next) {
        if (at->number == number) return at;
    }
    return NULL;
}

static void cancel_run(struct sim_work *w)
{
    struct carried *k = outer(w, struct carried, work);
    struct shot *s = shot_find(k->number);
    free(k);
    if (s != NULL) broker_cancel(s->node->broker, &s->call); /* else it has been answered since */
}

static void patience_run(struct sim_event *e)
{
    struct shot *s = outer(e, struct shot, patience);
    struct op *o = s->op;
    if (o == NULL) return;
    s->op = NULL;
    op_ends(o, OP_UNKNOWN, 0);
    if (!s->submitted || s->node->life != s->life) return;
    /* Most clients close the connection. */
    if (rng_chance(&o->client->rng, 200)) return;
    struct carried *k = calloc(1, sizeof *k);
    must(k != NULL);
    k->number = s->number;
    k->work.run = cancel_run;
    sim_loop_give(s->node->loop, &k->work);
}

static void submit_run(struct sim_work *w)
{
    struct carried *k = outer(w, struct carried, work);
    struct shot *s = shot_find(k->number);
    struct sim_node *n = s->node;
    free(k);
    if (n->broker == NULL) { /* not open yet: nobody listens */
        struct op *o = s->op;
        sim_cancel(&s->patience);
        shot_unlink(s);
        if (o != NULL) op_ends(o, OP_FAILED, 100);
        return;
    }
    struct call *c = &s->call;
    c->home = n->loop;
    c->deadline_us = clock_mono_us() + c->deadline_us;
    s->submitted = true;
    broker_submit(n->broker, c);
}

static void arrive_run(struct sim_event *e)
{
    struct shot *s = outer(e, struct shot, arrive);
    struct op *o = s->op;
    struct sim_node *n = s->node;
    if (o == NULL) {
        shot_unlink(s);
        return;
    }
    if (!n->up || n->loop == NULL) {
        sim_cancel(&s->patience);
        shot_unlink(s);
        op_ends(o, OP_FAILED, 100);
        return;
    }
    s->life = n->life;
    struct carried *k = calloc(1, sizeof *k);
    must(k != NULL);
    k->number = s->number;
    k->work.run = submit_run;
    sim_loop_give(n->loop, &k->work);
}

static void look_run(struct call *c, struct engine *e, struct engine_now now)
{
    struct op *o = c->read_ctx;
    struct shot *s = outer(c, struct shot, call);
    if (s->op == o) o->look(c, e, now);
}

void op_send(struct op *o)
{
    struct client *c = o->client;
    struct shot *s = calloc(1, sizeof *s);
    must(s != NULL && o->shot == NULL);
    o->shot = s;
    o->node = c->node;
    o->invoked_us = sim.now_us;
    o->stamp_us = 0;
    s->op = o;
    s->number = ++shot_numbers;
    s->node = &sim.nodes[c->node];
    s->life = s->node->life;
    s->call = (struct call){.kind = o->kind,
                            .done = shot_done,
                            .grows = o->grows,
                            .pop = o->pop,
                            .wait = o->wait,
                            .has_next = o->has_next,
                            .next_wait_us = o->next_wait_us,
                            .read_ctx = o};
    if (o->kind == CALL_READ) s->call.read = look_run;
    s->call.deadline_us = o->deadline_us != 0 ? o->deadline_us : rng_span(&c->rng, 3000000, 12000000);
    arena_init(&s->call.arena);
    buf_slice(&s->command, buf_view(&o->command));
    s->call.command = buf_view(&s->command);
    s->next = &shots;
    s->previous = shots.previous;
    shots.previous->next = s;
    shots.previous = s;
    ops_under_way++;
    work_counts.ops++;
    s->arrive.run = arrive_run;
    s->patience.run = patience_run;
    int64_t patience_us = o->patience_us != 0 ? o->patience_us : s->call.deadline_us + 4000000;
    if (rng_chance(&c->rng, 10)) patience_us = rng_span(&c->rng, 200, 300000);
    sim_at(&s->arrive, NULL, sim.now_us + rng_span(&c->rng, 50, 400));
    sim_at(&s->patience, NULL, sim.now_us + patience_us);
}

void op_clear(struct op *o)
{
    struct client *c = o->client;
    buf_free(&o->command);
    must(o->shot == NULL);
    *o = (struct op){.client = c};
}

void work_node_ended(struct sim_node *n)
{
    for (struct shot *s = shots.next, *next; s != &shots; s = next) {
        next = s->next;
        bool there = s->node == n && !heap_holds(&s->arrive.at);
        if (!there) continue;
        struct op *o = s->op;
        sim_cancel(&s->patience);
        shot_unlink(s); /* its memory was the process's */
        if (o != NULL) op_ends(o, OP_UNKNOWN, rng_span(&o->client->rng, 200, 3000));
    }
}

bool work_idle(void)
{
    return ops_under_way == 0;
}

/* ---- final reads --------------------------------------------------------------------------------------------------- */

struct on_node {
    struct broker *b;
    void (*f)(struct broker *b, void *ctx);
    void *ctx;
};

static void on_node_run(void *ctx)
{
    struct on_node *o = ctx;
    o->f(o->b, o->ctx);
}

void work_on_node(struct sim_node *n, void (*f)(struct broker *b, void *ctx), void *ctx)
{
    struct on_node o = {.b = n->broker, .f = f, .ctx = ctx};
    must(n->up && n->broker != NULL);
    sim_as_node(n, on_node_run, &o);
}

struct kv_ask {
    const char *key;
    char *out;
    size_t size;
    uint64_t version;
    bool found;
};

static void kv_get_run(struct broker *b, void *ctx)
{
    struct kv_ask *k = ctx;
    struct buf bytes = {0};
    struct arena arena;
    struct slice rest;
    struct command command;
    struct kv_command kv;
    struct kv_result r;
    arena_init(&arena);
    size_t at = kv_begin(&bytes, work_tenant, 1);
    kv_op_add(&bytes, &(struct kv_op){.kind = KV_GET, .name_space = slice_of("work"), .key = slice_of(k->key)});
    kv_end(&bytes, at);
    rest = buf_view(&bytes);
    must(command_next(&rest, &command) && kv_decode(&command, &kv));
    engine_kv_read(b->engine, &kv, b->now, &arena, &r);
    k->found = r.items[0].found;
    k->version = r.items[0].version;
    snprintf(k->out, k->size, "%.*s", (int)r.items[0].value.len, r.items[0].value.at);
    arena_free(&arena);
    buf_free(&bytes);
}

bool work_kv_get(struct sim_node *n, const char *key, char *out, size_t size, uint64_t *version)
{
    struct kv_ask k = {.key = key, .out = out, .size = size};
    work_on_node(n, kv_get_run, &k);
    if (version != NULL) *version = k.version;
    return k.found;
}
