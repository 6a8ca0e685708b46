/* A whole broker (engine, log, replica, store) in a temporary directory and one loop that the test turns by conditions. */
#ifndef QUEEN_TESTS_BROKER_RIG_H
#define QUEEN_TESTS_BROKER_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/logger.h"
#include "base/must.h"
#include "broker/broker_internal.h"

struct rig {
    struct loop *loop;
    struct broker *broker;
    struct config config;
    char dir[128];
    struct loop_hook hook;
    struct loop_timer timeout;
    bool (*condition)(void *arg);
    void *arg;
    bool timed_out, stopped;
    uint64_t turns;
    int32_t done_count;
};

/* A call of the test: it lives until the test frees it. */
struct shot {
    struct call call;
    struct rig *rig;
    struct buf command;
    bool done;
    int32_t order; /* n-th call of the rig that was done */
    int64_t done_us;
};

#define outer(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

static const struct uuid rig_tenant = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};

static inline bool rig_hook_run(struct loop_hook *h)
{
    struct rig *r = outer(h, struct rig, hook);
    r->turns++;
    if (r->condition != NULL && r->condition(r->arg)) {
        r->condition = NULL;
        loop_stop(r->loop);
    }
    return false;
}

static inline void rig_timeout(struct loop_timer *t)
{
    struct rig *r = outer(t, struct rig, timeout);
    r->timed_out = true;
    loop_stop(r->loop);
}

/* Turns the loop until the condition holds; false after `limit_ms`. */
static inline bool rig_run(struct rig *r, bool (*condition)(void *arg), void *arg, int limit_ms)
{
    r->condition = condition;
    r->arg = arg;
    r->timed_out = false;
    r->timeout.fire = rig_timeout;
    loop_timer_set(r->loop, &r->timeout, clock_mono_us() + (int64_t)limit_ms * 1000);
    loop_run(r->loop);
    loop_timer_cancel(r->loop, &r->timeout);
    r->condition = NULL;
    return !r->timed_out;
}

static inline bool rig_never(void *arg)
{
    (void)arg;
    return false;
}

static inline void rig_pass(struct rig *r, int ms)
{
    rig_run(r, rig_never, NULL, ms);
}

static inline bool rig_is_ready(void *arg)
{
    return broker_ready(((struct rig *)arg)->broker);
}

/* Opens without waiting; the exit code of broker_open, 0 when it went well. */
static inline int rig_open_only(struct rig *r, struct buf *error)
{
    int code = 0;
    r->loop = loop_new();
    must(r->loop != NULL);
    r->stopped = false;
    memset(&r->timeout, 0, sizeof r->timeout);
    struct broker_place place = {.dir = r->config.dir};
    r->broker = broker_open(&r->config, &place, r->loop, &code, error);
    if (r->broker == NULL) {
        loop_free(r->loop);
        r->loop = NULL;
        return code;
    }
    r->hook.run = rig_hook_run;
    loop_hook_add(r->loop, &r->hook);
    return 0;
}

static inline void rig_open(struct rig *r)
{
    struct buf error = {0};
    int code = rig_open_only(r, &error);
    if (code != 0) print_message("broker_open: %d %.*s\n", code, (int)error.len, error.at);
    assert_int_equal(code, 0);
    buf_free(&error);
    assert_true(rig_run(r, rig_is_ready, r, 20000));
}

static inline void rig_stopped(void *ctx)
{
    ((struct rig *)ctx)->stopped = true;
}

static inline bool rig_is_stopped(void *arg)
{
    return ((struct rig *)arg)->stopped;
}

static inline void rig_close(struct rig *r)
{
    broker_stop(r->broker, rig_stopped, r);
    assert_true(rig_run(r, rig_is_stopped, r, 15000));
    broker_close(r->broker);
    loop_free(r->loop);
    r->broker = NULL;
    r->loop = NULL;
}

/* Without any goodbye: what a crash leaves is what the log and the store have synced. */
static inline void rig_abandon(struct rig *r)
{
    broker_close(r->broker);
    loop_free(r->loop);
    r->broker = NULL;
    r->loop = NULL;
}

static inline void rig_start(struct rig *r)
{
    memset(r, 0, sizeof *r);
    const char *base = getenv("TMPDIR");
    snprintf(r->dir, sizeof r->dir, "%s/queen-broker-XXXXXX", base == NULL ? "/tmp" : base);
    must(mkdtemp(r->dir) != NULL);
    struct buf error = {0};
    must(config_read(&r->config, 0, NULL, &error));
    snprintf(r->config.dir, sizeof r->config.dir, "%s/data", r->dir);
    r->config.segment_bytes = 1 << 20;
    r->config.disk_high_pct = 100;
    r->config.disk_low_pct = 99;
    logger_init(LOGGER_ERROR, false);
    rig_open(r);
}

static inline void rig_remove(struct rig *r)
{
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", r->dir);
    must(system(command) == 0);
}

static inline void rig_end(struct rig *r)
{
    if (r->broker != NULL) rig_close(r);
    rig_remove(r);
}

/* ---- calls -------------------------------------------------------------------------------------------------------- */

static inline void shot_done(struct call *c)
{
    struct shot *s = outer(c, struct shot, call);
    must(!s->done);
    s->done = true;
    s->done_us = clock_mono_us();
    s->order = ++s->rig->done_count;
}

static inline struct shot *shot_new(struct rig *r, enum call_kind kind)
{
    struct shot *s = calloc(1, sizeof *s);
    must(s != NULL);
    s->rig = r;
    s->call.home = r->loop;
    s->call.done = shot_done;
    s->call.kind = kind;
    s->call.deadline_us = clock_mono_us() + 30000000;
    arena_init(&s->call.arena);
    return s;
}

static inline void shot_free(struct shot *s)
{
    must(s->done);
    broker_pieces_release(s->rig->broker, &s->call);
    arena_free(&s->call.arena);
    buf_free(&s->command);
    buf_free(&s->call.answer);
    free(s);
}

static inline bool shot_is_done(void *arg)
{
    return ((struct shot *)arg)->done;
}

/* Turns until the call is done; its outcome. */
static inline enum call_outcome shot_wait(struct shot *s)
{
    assert_true(rig_run(s->rig, shot_is_done, s, 20000));
    return s->call.outcome;
}

struct rig_numbers {
    struct broker_metrics metrics;
    uint64_t seed;
};

static inline void numbers_read(struct call *c, struct engine *e, struct engine_now now)
{
    (void)now;
    struct rig_numbers *n = c->read_ctx;
    broker_metrics(c->broker, &n->metrics);
    n->seed = engine_id_seed(e);
}

static inline struct rig_numbers rig_numbers(struct rig *r)
{
    struct rig_numbers n;
    struct shot *s = shot_new(r, CALL_READ);
    s->call.read = numbers_read;
    s->call.read_ctx = &n;
    broker_submit(r->broker, &s->call);
    assert_int_equal(shot_wait(s), CALL_OK);
    shot_free(s);
    return n;
}

static inline void shot_write(struct shot *s, bool grows)
{
    s->call.command = buf_view(&s->command);
    s->call.grows = grows;
    broker_submit(s->rig->broker, &s->call);
}

/* One message in each of the comma-separated lanes. */
static inline void push_encode(struct buf *out, const char *queue, const char *lanes, const char *payload)
{
    struct push_writer w;
    push_begin(&w, out, rig_tenant);
    for (const char *at = lanes; at != NULL && *at != '\0';) {
        const char *comma = strchr(at, ',');
        size_t len = comma == NULL ? strlen(at) : (size_t)(comma - at);
        struct push_item item = {.payload = slice_of(payload)};
        push_group_begin(&w, slice_of(queue), slice_make(at, len), 1);
        push_item_add(&w, &item);
        push_group_end(&w);
        at = comma == NULL ? NULL : comma + 1;
    }
    push_end(&w);
}

static inline struct shot *push_start(struct rig *r, const char *queue, const char *lanes, const char *payload)
{
    struct shot *s = shot_new(r, CALL_WRITE);
    push_encode(&s->command, queue, lanes, payload);
    shot_write(s, true);
    return s;
}

static inline void push(struct rig *r, const char *queue, const char *lanes, const char *payload)
{
    struct shot *s = push_start(r, queue, lanes, payload);
    assert_int_equal(shot_wait(s), CALL_OK);
    shot_free(s);
}

struct pop_wish {
    const char *queue, *lane, *group;
    uint32_t batch, partitions;
    int wait_ms; /* 0 = does not wait */
    int64_t lease_ms;
    bool auto_ack, from_new;
    enum conflation_wish conflation;
};

static inline struct pop_command pop_of(struct pop_wish wish)
{
    return (struct pop_command){
        .tenant = rig_tenant,
        .lease_id = uuid_mint(clock_wall_us()),
        .scope = wish.queue == NULL  ? POP_DISCOVERY
                 : wish.lane != NULL ? POP_PARTITION
                                     : POP_QUEUE,
        .mode = wish.from_new ? SUBSCRIBE_NEW : SUBSCRIBE_ALL,
        .conflation = (uint8_t)wish.conflation,
        .auto_ack = wish.auto_ack,
        .batch = wish.batch == 0 ? 1 : wish.batch,
        .partitions = wish.partitions == 0 ? 1 : wish.partitions,
        .lease_us = wish.lease_ms * 1000,
        .group = slice_of(wish.group == NULL ? QUEUE_MODE_GROUP : wish.group),
        .queue = slice_of(wish.queue == NULL ? "" : wish.queue),
        .partition = slice_of(wish.lane == NULL ? "" : wish.lane),
        .name_space = slice_of(""),
        .task = slice_of(""),
    };
}

static inline struct shot *pop_start(struct rig *r, struct pop_wish wish)
{
    struct shot *s = shot_new(r, CALL_POP);
    s->call.pop = pop_of(wish);
    s->call.wait = wish.wait_ms > 0;
    if (wish.wait_ms > 0) s->call.deadline_us = clock_mono_us() + (int64_t)wish.wait_ms * 1000;
    broker_submit(r->broker, &s->call);
    return s;
}

/* Payload of the n-th message of a pop's answer, over all pieces. */
static inline struct slice pop_payload(const struct shot *s, uint32_t n)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < s->call.result.pop.count; i++) {
        const struct claim *c = &s->call.result.pop.claims[i];
        for (uint32_t k = 0; k < c->piece_count; k++, at++) {
            if (n < c->pieces[k].count) {
                struct push_item item;
                push_group_item(&s->call.pieces[at].group, c->pieces[k].item0 + n, &item);
                return item.payload;
            }
            n -= c->pieces[k].count;
        }
    }
    return slice_of("(no such message)");
}

static inline void assert_payload(const struct shot *s, uint32_t n, const char *expected)
{
    struct slice p = pop_payload(s, n);
    if (!slice_is(p, expected)) print_message("got %.*s, expected %s\n", (int)p.len, p.at, expected);
    assert_true(slice_is(p, expected));
}

/* Acks every message of an answered pop with one status. Transaction ids are the message ids, as none were pushed. */
static inline void ack_encode(struct rig *r, struct buf *out, const struct shot *pop, enum ack_status status)
{
    uint64_t seed = rig_numbers(r).seed;
    size_t at = out->len;
    ack_begin(out, rig_tenant, pop->call.pop.group, pop->call.result.pop.messages);
    for (uint32_t i = 0; i < pop->call.result.pop.count; i++) {
        const struct claim *c = &pop->call.result.pop.claims[i];
        for (uint32_t k = 0; k < c->piece_count; k++) {
            for (uint32_t m = 0; m < c->pieces[k].count; m++) {
                struct uuid id = message_id(seed, c->partition, c->pieces[k].first_offset + m, c->pieces[k].created_us);
                char text[UUID_TEXT];
                uuid_text(id, text);
                struct ack_item item = {.partition = c->partition,
                                        .status = (uint8_t)status,
                                        .fenced = 1,
                                        .lease = pop->call.pop.lease_id,
                                        .transaction = slice_make(text, UUID_TEXT)};
                ack_item_add(out, &item);
            }
        }
    }
    ack_end(out, at);
}

static inline struct shot *ack_start(struct rig *r, const struct shot *pop, enum ack_status status)
{
    struct shot *s = shot_new(r, CALL_WRITE);
    ack_encode(r, &s->command, pop, status);
    shot_write(s, false);
    return s;
}

static inline void ack(struct rig *r, const struct shot *pop)
{
    struct shot *s = ack_start(r, pop, ACK_COMPLETED);
    assert_int_equal(shot_wait(s), CALL_OK);
    for (uint32_t i = 0; i < s->call.result.ack.count; i++) assert_int_equal(s->call.result.ack.items[i].verdict, ACK_OK);
    shot_free(s);
}

/* ---- steps -------------------------------------------------------------------------------------------------------- */

/* What is not given is not in the step. */
struct step_wish {
    const struct shot *acks;             /* all messages of this pop */
    const char *lanes, *queue, *payload; /* pushed */
    bool refused;                        /* an ack under a lease that nobody has: nothing happens */
    struct pop_wish next;                /* with a queue */
    bool timer;                          /* of queue "timers", lane "t", in delay_ms */
    int64_t delay_ms;
};

static inline void timer_op_encode(struct buf *out, const char *queue, const char *key, const char *lane, int64_t delay_ms)
{
    struct push_item item = {.flags = ITEM_TRANSACTION | ITEM_ID,
                             .transaction = slice_of(key),
                             .id = uuid_mint(clock_wall_us()),
                             .payload = slice_of("\"tick\"")};
    struct timer_op op = {.kind = TIMER_SCHEDULE,
                          .delay_us = delay_ms * 1000,
                          .queue = slice_of(queue),
                          .key = slice_of(key),
                          .partition = slice_of(lane),
                          .item = item};
    timer_op_add(out, &op);
}

static inline void timer_encode(struct buf *out, const char *queue, const char *key, const char *lane, int64_t delay_ms)
{
    size_t at = timers_begin(out, rig_tenant, 1);
    timer_op_encode(out, queue, key, lane, delay_ms);
    timers_end(out, at);
}

static inline void stray_ack_encode(struct buf *out)
{
    struct ack_item item = {.partition = 1, .fenced = 1, .lease = uuid_mint(clock_wall_us()), .transaction = slice_of("none")};
    size_t at = out->len;
    ack_begin(out, rig_tenant, slice_of(QUEUE_MODE_GROUP), 1);
    ack_item_add(out, &item);
    ack_end(out, at);
}

static inline struct shot *step_start(struct rig *r, struct step_wish wish)
{
    struct shot *s = shot_new(r, CALL_WRITE);
    size_t at = step_begin(&s->command);
    if (wish.acks != NULL) ack_encode(r, &s->command, wish.acks, ACK_COMPLETED);
    if (wish.refused) stray_ack_encode(&s->command);
    if (wish.lanes != NULL) push_encode(&s->command, wish.queue, wish.lanes, wish.payload);
    if (wish.timer) timer_encode(&s->command, "timers", "step", "t", wish.delay_ms);
    if (wish.next.queue != NULL) {
        s->call.has_next = true;
        s->call.pop = pop_of(wish.next);
        s->call.wait = wish.next.wait_ms > 0;
        s->call.next_wait_us = wish.next.wait_ms * 1000;
        pop_encode(&s->command, &s->call.pop);
    }
    step_end(&s->command, at);
    shot_write(s, wish.lanes != NULL);
    return s;
}

/* ---- expectations ------------------------------------------------------------------------------------------------- */

static inline uint64_t commands(struct rig *r)
{
    return rig_numbers(r).metrics.commands_total;
}

static inline uint64_t entries(struct rig *r)
{
    return rig_numbers(r).metrics.entries_total;
}

static inline uint64_t parked(struct rig *r)
{
    return rig_numbers(r).metrics.parked;
}

/* Turns until one more caller is parked than `before`. */
static inline void wait_parked(struct rig *r, uint64_t before)
{
    for (int i = 0; i < 1000 && parked(r) == before; i++) rig_pass(r, 1);
    assert_int_equal(parked(r), before + 1);
}

/* A long poll of a group the queue knows, so that nothing but a lane is missing. */
static inline struct shot *poll_start(struct rig *r, struct pop_wish wish)
{
    uint64_t before = parked(r);
    if (wish.wait_ms == 0) wish.wait_ms = 20000;
    struct shot *s = pop_start(r, wish);
    wait_parked(r, before);
    assert_false(s->done);
    return s;
}

static inline void expect_payload(struct shot *s, const char *payload)
{
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_int_equal(s->call.result.pop.messages, 1);
    assert_payload(s, 0, payload);
}

static inline void expect_empty(struct shot *s)
{
    assert_int_equal(shot_wait(s), CALL_EMPTY);
    assert_int_equal(s->call.result.kind, COMMAND_POP);
    shot_free(s);
}

static inline void cancel(struct shot *s)
{
    broker_cancel(s->rig->broker, &s->call);
    assert_int_equal(shot_wait(s), CALL_CANCELLED);
    shot_free(s);
}

/* Stops in the turn in which the call went into the log. */
static inline bool is_proposed(void *arg)
{
    return ((struct shot *)arg)->call.flight != NULL;
}

struct in_flight {
    struct shot *s;
    void (*act)(struct shot *s);
};

static inline bool in_flight_act(void *arg)
{
    struct in_flight *f = arg;
    if (!is_proposed(f->s)) return false;
    f->act(f->s);
    return true;
}

/* Does something to a call in the very turn in which it went into the log: a moment later the disk may have answered. */
static inline void while_in_flight(struct shot *s, void (*act)(struct shot *s))
{
    struct in_flight f = {.s = s, .act = act};
    assert_true(rig_run(s->rig, in_flight_act, &f, 1000));
}

static inline void shot_leave(struct shot *s)
{
    assert_false(s->done);
    broker_cancel(s->rig->broker, &s->call);
}

static inline void cancel_in_flight(struct shot *s)
{
    while_in_flight(s, shot_leave);
    assert_int_equal(shot_wait(s), CALL_CANCELLED);
    shot_free(s);
}

static inline void shot_late(struct shot *s)
{
    s->call.late = true;
}

/* As if the disk had not answered until long after the deadline. */
static inline void shot_expire(struct shot *s)
{
    struct broker *b = s->rig->broker;
    s->call.late = true;
    heap_put(&b->deadlines, &s->call.due, 0, s->call.arrival);
    inbox_deadline_fire(&b->deadline_timer);
}

static inline void expire_in_flight(struct shot *s)
{
    while_in_flight(s, shot_expire);
}

static inline int rig_setup(void **state)
{
    struct rig *r = malloc(sizeof *r);
    must(r != NULL);
    rig_start(r);
    *state = r;
    return 0;
}

static inline int rig_teardown(void **state)
{
    rig_end(*state);
    free(*state);
    return 0;
}

#define with_rig(f) cmocka_unit_test_setup_teardown(f, rig_setup, rig_teardown)

#endif
