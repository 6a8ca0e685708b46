/* Transactions: a batch of group "steps" is acked, a result of each message pushed, a marker put that must not exist, a counter raised, and
 * maybe a timer scheduled; all or nothing, and once, however often it is sent.
 *
 *   the end    marker there <=> every result there <=> timer fired or pending; committed as answered; never when every attempt was
 *              surely refused; a message is in one committed step at most; the counter is the number of markers */
#include <stdlib.h>
#include <string.h>

#include "broker/broker_internal.h"
#include "work.h"

enum { STEPPERS = 2, STEP_ITEMS_MAX = 8 };

struct step_seen {
    uint32_t count, result_lane, inputs[STEP_ITEMS_MAX], input_lanes[STEP_ITEMS_MAX];
    uint64_t input_offsets[STEP_ITEMS_MAX];
    bool committed, possible, timer;
};
static struct step_seen *steps; /* by number, from 1 */
static uint32_t step_count, step_cap;

struct stepper {
    struct client client;
    struct op op;
    struct delivered got, next;
    uint32_t step, sends;
    uint8_t refusal;
    bool has_refusal, wants_next;
};
static struct stepper steppers[STEPPERS];

static void stepper_pop(struct client *c);
static void step_send(struct client *c);

static struct pop_command pop_make(struct client *c)
{
    uint64_t bits[2] = {rng_u64(&c->rng), rng_u64(&c->rng)};
    struct pop_command p = {.tenant = work_tenant,
                            .scope = POP_QUEUE,
                            .mode = SUBSCRIBE_ALL,
                            .batch = 1 + (uint32_t)rng_below(&c->rng, 5),
                            .partitions = 1,
                            .lease_us = rng_span(&c->rng, 3, 12) * 1000000,
                            .group = group_name(GROUP_STEPS),
                            .queue = lane_queue(LANE_IN),
                            .partition = slice_of(""),
                            .name_space = slice_of(""),
                            .task = slice_of("")};
    memcpy(p.lease_id.bytes, bits, sizeof bits);
    return p;
}

static void batch_begin(struct stepper *s)
{
    if (step_count + 2 > step_cap) {
        step_cap = step_cap * 2 + 256;
        steps = realloc(steps, step_cap * sizeof steps[0]);
        must(steps != NULL);
    }
    struct step_seen *k = &steps[++step_count];
    *k = (struct step_seen){.count = s->got.count,
                            .result_lane = LANE_OUT + (uint32_t)rng_below(&s->client.rng, LANES_OUT),
                            .timer = rng_chance(&s->client.rng, 300)};
    must(s->got.count <= STEP_ITEMS_MAX);
    for (uint32_t i = 0; i < k->count; i++) {
        k->input_lanes[i] = s->got.at[i].lane;
        k->input_offsets[i] = s->got.at[i].offset;
    }
    s->step = step_count;
    s->sends = 0;
    s->wants_next = rng_chance(&s->client.rng, 350);
    s->client.step = step_send;
    client_think(&s->client, 10000, rng_chance(&s->client.rng, 80) ? 15000000 : 1000000);
}

static void rest(struct stepper *s)
{
    s->client.step = stepper_pop;
    client_think(&s->client, 50000, 1500000);
}

static void pop_read(struct op *o, struct call *c)
{
    struct stepper *s = o->ctx;
    delivered_read(&s->got, o, c, GROUP_STEPS);
}

static void pop_answered(struct op *o)
{
    struct stepper *s = o->ctx;
    if (o->end != OP_OK || s->got.count == 0) {
        rest(s);
        return;
    }
    delivered_answered(&s->got, o);
    batch_begin(s);
}

static void stepper_pop(struct client *c)
{
    struct stepper *s = outer(c, struct stepper, client);
    struct op *o = &s->op;
    o->client = c;
    op_clear(o);
    o->kind = CALL_POP;
    o->ctx = s;
    o->read = pop_read;
    o->answered = pop_answered;
    o->wait = true;
    o->deadline_us = rng_span(&c->rng, 1000000, 10000000);
    o->pop = pop_make(c);
    s->got.count = s->got.claim_count = 0;
    op_send(o);
}

/* ---- the step ------------------------------------------------------------------------------------------------------ */

static void step_read(struct op *o, struct call *c)
{
    struct stepper *s = o->ctx;
    const struct step_result *r = c->step != NULL ? c->step : &c->result.step;
    must(c->step != NULL || c->result.kind == COMMAND_STEP);
    s->refusal = r->refusal;
    s->has_refusal = true;
    if (c->step != NULL) delivered_read(&s->next, o, c, GROUP_STEPS);
}

static void step_answered(struct op *o)
{
    struct stepper *s = o->ctx;
    struct step_seen *k = &steps[s->step];
    bool ambiguous = k->possible; /* an attempt before may have done it */
    if (o->end == OP_UNKNOWN) k->possible = true;
    if (o->end != OP_OK) {
        s->client.step = step_send;
        if (s->sends < 8 && !work_stopping && !rng_chance(&s->client.rng, 50)) {
            client_think(&s->client, 1000, 1000000);
        } else {
            rest(s);
        }
        return;
    }
    if (s->refusal == STEP_COMMITTED) {
        if (k->committed) sim_fail("step %u was committed twice", s->step);
        k->committed = k->possible = true;
        for (uint32_t i = 0; i < s->got.count; i++) delivered_acked(&s->got, GROUP_STEPS, i, o->stamp_us);
        work_counts.steps++;
        if (s->next.count > 0) {
            s->got = s->next;
            delivered_answered(&s->got, o);
            batch_begin(s);
            return;
        }
        /* Once more, for no reason: it must be refused. */
        if (rng_chance(&s->client.rng, 50)) {
            s->client.step = step_send;
            s->wants_next = false;
            client_think(&s->client, 1000, 1000000);
            return;
        }
    } else if (s->refusal == STEP_KV_PRECONDITION || s->refusal == STEP_DUPLICATE) {
        if (!ambiguous && !k->committed) sim_fail("step %u is refused as if it had been committed before", s->step);
    }
    rest(s);
}

static void results_push(const struct stepper *s, const struct step_seen *k, struct buf *out)
{
    struct push_writer w;
    push_begin(&w, out, work_tenant);
    push_group_begin(&w, lane_queue(k->result_lane), lane_name(k->result_lane), k->count);
    for (uint32_t i = 0; i < k->count; i++) {
        char text[24], payload[32];
        snprintf(text, sizeof text, "r%u-%u", s->step, i);
        snprintf(payload, sizeof payload, "\"%s\"", text);
        push_item_add(
            &w, &(struct push_item){.flags = ITEM_TRANSACTION, .transaction = slice_of(text), .payload = slice_of(payload)});
    }
    push_group_end(&w);
    push_end(&w);
}

static void marks_put(const struct stepper *s, struct buf *out)
{
    char key[32];
    snprintf(key, sizeof key, "once/%u", s->step);
    size_t at = kv_begin(out, work_tenant, 2);
    kv_op_add(out, &(struct kv_op){.kind = KV_PUT,
                                   .flags = KV_REQUIRED | KV_EXPECT,
                                   .name_space = slice_of("work"),
                                   .key = slice_of(key),
                                   .value = slice_of("true")});
    kv_op_add(out, &(struct kv_op){
                       .kind = KV_INCR, .name_space = slice_of("work"), .key = slice_of("steps"), .value = slice_of("1")});
    kv_end(out, at);
}

static void timer_put(const struct stepper *s, struct client *c, struct buf *out)
{
    char key[32], text[24], payload[32];
    snprintf(key, sizeof key, "step-%u", s->step);
    snprintf(text, sizeof text, "u%u", s->step);
    snprintf(payload, sizeof payload, "\"%s\"", text);
    struct uuid id;
    uint64_t bits[2] = {rng_u64(&c->rng), rng_u64(&c->rng)};
    memcpy(id.bytes, bits, sizeof bits);
    size_t at = timers_begin(out, work_tenant, 1);
    struct timer_op op = {
        .kind = TIMER_SCHEDULE,
        .delay_us = rng_span(&c->rng, 0, 20000000),
        .queue = slice_of("alarm"),
        .key = slice_of(key),
        .partition = lane_name(LANE_ALARM + 1),
        .item = {.flags = ITEM_TRANSACTION | ITEM_ID, .transaction = slice_of(text), .id = id, .payload = slice_of(payload)}};
    timer_op_add(out, &op);
    timers_end(out, at);
}

static void step_send(struct client *c)
{
    struct stepper *s = outer(c, struct stepper, client);
    const struct step_seen *k = &steps[s->step];
    struct op *o = &s->op;
    op_clear(o);
    o->kind = CALL_WRITE;
    o->grows = true;
    o->ctx = s;
    o->read = step_read;
    o->answered = step_answered;
    s->has_refusal = false;
    s->next.count = s->next.claim_count = 0;
    size_t at = step_begin(&o->command);
    delivered_ack_encode(&s->got, GROUP_STEPS, s->got.count, ACK_COMPLETED, &o->command);
    results_push(s, k, &o->command);
    marks_put(s, &o->command);
    if (k->timer) timer_put(s, c, &o->command);
    if (s->wants_next) {
        o->has_next = true;
        o->pop = pop_make(c);
        o->wait = rng_chance(&c->rng, 500);
        o->next_wait_us = o->wait ? 2000000 : 0;
        pop_encode(&o->command, &o->pop);
    }
    step_end(&o->command, at);
    delivered_release(&s->got);
    s->sends++;
    op_send(o);
}

void step_work_start(void)
{
    for (uint32_t i = 0; i < STEPPERS; i++) client_start(&steppers[i].client, "stepper", i, stepper_pop);
}

/* ---- the end ------------------------------------------------------------------------------------------------------- */

static void step_check(struct sim_node *n, uint32_t number, uint32_t *markers)
{
    const struct step_seen *k = &steps[number];
    char key[32], text[24], value[16];
    snprintf(key, sizeof key, "once/%u", number);
    bool marked = work_kv_get(n, key, value, sizeof value, NULL);
    *markers += marked;
    if (k->committed && !marked) sim_fail("step %u was answered as committed, and its marker is not there", number);
    if (marked && !k->possible) sim_fail("step %u is committed, although every attempt was refused", number);
    for (uint32_t i = 0; i < k->count; i++) {
        snprintf(text, sizeof text, "r%u-%u", number, i);
        if (queue_final_has(k->result_lane, text, NULL) != marked)
            sim_fail("step %u is %scommitted, and its result %s is %sthere", number, marked ? "" : "not ", text,
                     marked ? "not " : "");
    }
    snprintf(text, sizeof text, "u%u", number);
    bool fired = queue_final_has(LANE_ALARM + 1, text, NULL);
    if (fired != (marked && k->timer))
        sim_fail("step %u is %scommitted, and its timer %s", number, marked ? "" : "not ", fired ? "fired" : "did not fire");
}

struct input {
    uint32_t lane, step;
    uint64_t offset;
};

static int inputs_compare(const void *a, const void *b)
{
    const struct input *x = a, *y = b;
    if (x->lane != y->lane) return x->lane < y->lane ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

void step_work_check(void)
{
    struct sim_node *n = sim_leader();
    must(n != NULL);
    struct input *inputs = calloc((size_t)(step_count + 1) * STEP_ITEMS_MAX, sizeof inputs[0]);
    uint32_t markers = 0, input_count = 0;
    must(inputs != NULL);
    for (uint32_t i = 1; i <= step_count; i++) {
        uint32_t before = markers;
        step_check(n, i, &markers);
        for (uint32_t k = 0; markers > before && k < steps[i].count; k++)
            inputs[input_count++] =
                (struct input){.lane = steps[i].input_lanes[k], .offset = steps[i].input_offsets[k], .step = i};
    }
    qsort(inputs, input_count, sizeof inputs[0], inputs_compare);
    for (uint32_t i = 1; i < input_count; i++) {
        if (inputs_compare(&inputs[i], &inputs[i - 1]) == 0)
            sim_fail("steps %u and %u are both committed for offset %llu of lane %u", inputs[i - 1].step, inputs[i].step,
                     (unsigned long long)inputs[i].offset, inputs[i].lane);
    }
    free(inputs);
    char value[32];
    bool there = work_kv_get(n, "steps", value, sizeof value, NULL);
    unsigned long counted = there ? strtoul(value, NULL, 10) : 0;
    if (counted != markers) sim_fail("the counter of steps is %lu, and %u are committed", counted, markers);
}
