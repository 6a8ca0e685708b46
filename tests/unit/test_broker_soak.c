/* Random traffic on one broker: pushes, wide and pinned polls of several groups, acks of all kinds, steps with and without a next
 * batch, timers, leases that run out, delays, callers who leave, queues deleted. After every few steps nothing may be parked that could be served: a lane that is claimable is
 * always on its way to somebody who waits for it. And no lane is ever held twice at once in a group. */
#include "test_broker_rig.h"

enum { SHOTS = 200, STEPS = 4000, HELD = 64, QUEUES = 3, LANES = 5, GROUPS = 3, REST_MS = 700 };

struct soak {
    struct rig rig;
    struct shot *polls[SHOTS];
    struct shot *held[HELD];
    struct shot *writes[SHOTS];
    uint64_t random, delivered, empty, cancelled, acked, stepped, refused, chained;
};

static const char *const queue_names[QUEUES] = {"plain", "delayed", "windowed"};
static const char *const lane_names[LANES] = {"a", "b", "c", "d", "e"};
static const char *const group_names[GROUPS] = {QUEUE_MODE_GROUP, "g1", "g2"};

static uint32_t dice(struct soak *s, uint32_t sides)
{
    s->random = s->random * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(s->random >> 33) % sides;
}

static struct shot **slot_free(struct shot **slots, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (slots[i] == NULL) return &slots[i];
    }
    return NULL;
}

static void configure(struct soak *s, const char *queue, enum queue_option option, int32_t value)
{
    struct shot **at = slot_free(s->writes, SHOTS);
    if (at == NULL) return;
    struct shot *w = *at = shot_new(&s->rig, CALL_WRITE);
    struct configure_command c = {.tenant = rig_tenant, .queue = slice_of(queue), .given = 1U << option};
    c.options.numbers[option] = value;
    c.options.sink_hold = c.options.name_space = c.options.task = slice_of("");
    configure_encode(&w->command, &c);
    shot_write(w, false);
}

static void step_push(struct soak *s)
{
    struct shot **at = slot_free(s->writes, SHOTS);
    char lanes[16] = "";
    if (at == NULL) return;
    for (uint32_t i = 0, n = 1 + dice(s, 3); i < n; i++) {
        if (i > 0) strcat(lanes, ",");
        strcat(lanes, lane_names[dice(s, LANES)]);
    }
    *at = push_start(&s->rig, queue_names[dice(s, QUEUES)], lanes, "1");
}

static struct pop_wish wish_any(struct soak *s)
{
    return (struct pop_wish){
        .queue = queue_names[dice(s, QUEUES)],
        .lane = dice(s, 3) == 0 ? lane_names[dice(s, LANES)] : NULL,
        .group = group_names[dice(s, GROUPS)],
        .batch = 1 + dice(s, 3),
        .partitions = 1 + dice(s, 3),
        .wait_ms = dice(s, 5) == 0 ? 0 : 20 + (int)dice(s, 3000),
        .lease_ms = 20 + dice(s, 300),
        .auto_ack = dice(s, 4) == 0,
        .from_new = dice(s, 2) == 0,
    };
}

static void step_poll(struct soak *s)
{
    struct shot **at = slot_free(s->polls, SHOTS);
    if (at != NULL) *at = pop_start(&s->rig, wish_any(s));
}

/* Acks what is held, maybe too late, pushes, and takes the next batch. */
static void step_step(struct soak *s)
{
    struct shot **at = slot_free(s->polls, SHOTS), **held = &s->held[dice(s, HELD)];
    if (at == NULL) return;
    struct step_wish wish = {.next = wish_any(s), .acks = *held, .refused = dice(s, 8) == 0};
    if (*held != NULL && dice(s, 2) == 0) { /* the next of the same loop, as a worker does it */
        wish.next.queue = queue_names[0];
        for (uint32_t i = 0; i < QUEUES; i++) {
            if (slice_is((*held)->call.pop.queue, queue_names[i])) wish.next.queue = queue_names[i];
        }
        for (uint32_t i = 0; i < GROUPS; i++) {
            if (slice_is((*held)->call.pop.group, group_names[i])) wish.next.group = group_names[i];
        }
    }
    if (dice(s, 3) > 0) {
        wish.queue = queue_names[dice(s, QUEUES)];
        wish.lanes = lane_names[dice(s, LANES)];
        wish.payload = "1";
    }
    wish.next.auto_ack = false;
    *at = step_start(&s->rig, wish);
    if (*held == NULL) return;
    shot_free(*held);
    *held = NULL;
}

static void step_timer(struct soak *s)
{
    struct shot **at = slot_free(s->writes, SHOTS);
    if (at == NULL) return;
    static const char *const keys[] = {"k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"};
    *at = shot_new(&s->rig, CALL_WRITE);
    timer_encode(&(*at)->command, queue_names[dice(s, QUEUES)], keys[dice(s, 8)], lane_names[dice(s, LANES)],
                 (int64_t)dice(s, 100) - 20);
    shot_write(*at, true);
}

static void step_ack(struct soak *s)
{
    static const enum ack_status statuses[] = {ACK_COMPLETED, ACK_COMPLETED, ACK_COMPLETED, ACK_FAILED, ACK_RETRY, ACK_DLQ};
    uint32_t i = dice(s, HELD);
    struct shot **at = slot_free(s->writes, SHOTS);
    if (s->held[i] == NULL || at == NULL) return;
    if (dice(s, 5) > 0) { /* else it is forgotten: its lease runs out */
        *at = ack_start(&s->rig, s->held[i], statuses[dice(s, 6)]);
        s->acked++;
    }
    shot_free(s->held[i]);
    s->held[i] = NULL;
}

static void step_rare(struct soak *s)
{
    uint32_t what = dice(s, 40);
    struct shot **at = slot_free(s->writes, SHOTS);
    if (what == 0 && at != NULL) {
        *at = shot_new(&s->rig, CALL_WRITE);
        struct queue_delete_command d = {.tenant = rig_tenant, .queue = slice_of(queue_names[dice(s, QUEUES)])};
        queue_delete_encode(&(*at)->command, &d);
        shot_write(*at, false);
    } else if (what < 3) {
        configure(s, "delayed", OPTION_DELAYED_PROCESSING, (int32_t)dice(s, 2));
    } else if (what < 5) {
        configure(s, "windowed", OPTION_WINDOW_BUFFER, (int32_t)dice(s, 2));
    } else {
        struct shot *p = s->polls[dice(s, SHOTS)];
        if (p != NULL && !p->done) broker_cancel(s->rig.broker, &p->call);
    }
}

/* Done calls are looked at and given back; what a leased pop got is held to be acked. */
static void collect(struct soak *s)
{
    for (uint32_t i = 0; i < SHOTS; i++) {
        struct shot *w = s->writes[i], *p = s->polls[i];
        if (w != NULL && w->done) {
            assert_int_equal(w->call.outcome, CALL_OK);
            shot_free(w);
            s->writes[i] = NULL;
        }
        if (p == NULL || !p->done) continue;
        s->polls[i] = NULL;
        struct shot **keep = slot_free(s->held, HELD);
        bool batch = p->call.outcome == CALL_OK && p->call.result.kind == COMMAND_POP;
        if (p->call.has_next && p->call.step != NULL) {
            s->stepped++;
            if (batch) s->chained++;
        }
        if (p->call.has_next && p->call.step == NULL && p->call.outcome == CALL_OK) {
            assert_int_equal(p->call.result.step.refusal, STEP_REJECTED_ACK);
            s->refused++;
        }
        if (batch) s->delivered++;
        if (p->call.outcome == CALL_EMPTY) s->empty++;
        if (p->call.outcome == CALL_CANCELLED) s->cancelled++;
        assert_true(p->call.outcome == CALL_OK || p->call.outcome == CALL_EMPTY || p->call.outcome == CALL_CANCELLED);
        if (batch && !p->call.pop.auto_ack && keep != NULL) {
            *keep = p;
        } else {
            shot_free(p);
        }
    }
}

static bool is_busy(const struct broker *b)
{
    return b->flight_count > 0 || b->queued.count > 0 || b->arrived.count > 0 || parked_is_dirty(b);
}

/* Nobody is parked for whom there is something. What creates a queue is no news for a caller of a deleted one. */
static bool nobody_waits_in_vain(void *arg)
{
    struct soak *s = arg;
    struct broker *b = s->rig.broker;
    if (is_busy(b)) return false;
    for (uint32_t i = 0; i < SHOTS; i++) {
        struct shot *p = s->polls[i];
        if (p == NULL || p->done || p->call.state != CALL_STATE_PARKED) continue;
        if (engine_pop_forecast(b->engine, &p->call.pop, b->now) == POP_CLAIMABLE) return false;
    }
    return true;
}

static void explain(struct soak *s)
{
    struct broker *b = s->rig.broker;
    for (uint32_t i = 0; i < SHOTS; i++) {
        struct shot *p = s->polls[i];
        if (p == NULL || p->done) continue;
        const struct pop_command *c = &p->call.pop;
        const struct lane_wait *l = p->call.lane;
        if (l != NULL) {
            print_message("  lane: %u parked, %u in flight, %u refs, dirty %d, due in %lld us (asked: %lld)\n", l->parked.count,
                          l->pops_in_flight, l->refs, l->dirty,
                          heap_holds(&l->due) ? (long long)(l->due.key - b->mono_us) : -1LL,
                          (long long)engine_pop_due_us(b->engine, c, b->now));
        }
        print_message("%.*s/%.*s %.*s: state %d forecast %d futile %u in flight %u/%u ready %u due %lld\n", (int)c->queue.len,
                      c->queue.at, (int)c->partition.len, c->partition.at, (int)c->group.len, c->group.at, p->call.state,
                      engine_pop_forecast(b->engine, c, b->now), p->call.group == NULL ? 0 : p->call.group->futile,
                      p->call.group == NULL ? 0 : p->call.group->pops_in_flight,
                      p->call.group == NULL ? 0 : p->call.group->lanes_in_flight,
                      p->call.group == NULL ? 0 : engine_group_ready(b->engine, p->call.group->number, b->now, 100),
                      p->call.group == NULL ? 0LL : (long long)engine_group_due_us(b->engine, p->call.group->number, b->now));
    }
}

static bool everything_is_done(void *arg)
{
    struct soak *s = arg;
    for (uint32_t i = 0; i < SHOTS; i++) {
        if (s->polls[i] != NULL && !s->polls[i]->done) return false;
        if (s->writes[i] != NULL && !s->writes[i]->done) return false;
    }
    return true;
}

static void test_nobody_waits_for_what_is_there(void **state)
{
    (void)state;
    struct soak *s = calloc(1, sizeof *s);
    must(s != NULL);
    const char *seed = getenv("QUEEN_TEST_SEED");
    s->random = seed == NULL ? (uint64_t)clock_wall_us() : strtoull(seed, NULL, 10);
    print_message("QUEEN_TEST_SEED=%llu\n", (unsigned long long)s->random);
    rig_start(&s->rig);
    configure(s, "delayed", OPTION_DELAYED_PROCESSING, 1);
    configure(s, "windowed", OPTION_WINDOW_BUFFER, 1);
    int64_t worst_us = 0;
    for (uint32_t step = 0; step < STEPS; step++) {
        uint32_t what = dice(s, 14);
        if (what < 3)
            step_push(s);
        else if (what < 6)
            step_poll(s);
        else if (what < 9)
            step_ack(s);
        else if (what < 12)
            step_step(s);
        else if (what < 13)
            step_timer(s);
        else
            step_rare(s);
        if (dice(s, 8) > 0) continue;
        int64_t began_us = clock_mono_us();
        for (int tries = 0; !rig_run(&s->rig, nobody_waits_in_vain, s, REST_MS); tries++) {
            if (is_busy(s->rig.broker) && tries < 20) continue; /* the disk is slow */
            explain(s);
            fail_msg("a caller waits for a lane that is claimable");
        }
        if (clock_mono_us() - began_us > worst_us) worst_us = clock_mono_us() - began_us;
        if (dice(s, 10) == 0) rig_pass(&s->rig, 1 + (int)dice(s, 30));
        collect(s);
    }
    assert_true(rig_run(&s->rig, everything_is_done, s, 10000));
    collect(s);
    print_message("delivered %llu, empty %llu, cancelled %llu, acked %llu, steps %llu (%llu with a next batch, %llu refused), "
                  "ticks %llu; longest way to rest %lld ms\n",
                  (unsigned long long)s->delivered, (unsigned long long)s->empty, (unsigned long long)s->cancelled,
                  (unsigned long long)s->acked, (unsigned long long)s->stepped, (unsigned long long)s->chained,
                  (unsigned long long)s->refused, (unsigned long long)rig_numbers(&s->rig).metrics.ticks_total,
                  (long long)worst_us / 1000);
    assert_true(s->stepped > 100 && s->chained > 30 && s->refused > 10);
    assert_true(rig_numbers(&s->rig).metrics.ticks_total > 10);
    assert_true(s->delivered > 100 && s->empty > 10 && s->cancelled > 5 && s->acked > 50);
    assert_int_equal(rig_numbers(&s->rig).metrics.parked, 0);
    assert_int_equal(s->rig.broker->parked.queues.count, 0);
    for (uint32_t i = 0; i < HELD; i++) {
        if (s->held[i] != NULL) shot_free(s->held[i]);
    }
    rig_end(&s->rig);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nobody_waits_for_what_is_there)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
