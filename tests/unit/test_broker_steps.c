/* Steps and their next batch, ticks, reads that wait: the broker's part of them, with a real engine, log, replica and store. */
#include "test_broker_rig.h"

#include <fcntl.h>

/* A step with one pushed message and a next on queue "q". */
static struct shot *next_start(struct rig *r, struct pop_wish next)
{
    if (next.queue == NULL) next.queue = "q";
    return step_start(r, (struct step_wish){.lanes = "o", .queue = "out", .payload = "\"o\"", .next = next});
}

static uint64_t out_count(struct rig *r)
{
    struct shot *s = pop_start(r, (struct pop_wish){.queue = "out", .batch = 1000, .auto_ack = true});
    enum call_outcome outcome = shot_wait(s);
    uint64_t n = outcome == CALL_OK ? s->call.result.pop.messages : 0;
    shot_free(s);
    return n;
}

static void expect_committed(const struct shot *s)
{
    assert_non_null(s->call.step);
    assert_int_equal(s->call.step->refusal, STEP_COMMITTED);
    assert_int_equal(s->call.step->push.count, 1);
    assert_int_equal(s->call.step->push.items[0].status, PUSH_QUEUED);
}

/* The queue knows its group, and holds nothing. */
static void queue_known(struct rig *r)
{
    push(r, "q", "a", "0");
    struct shot *s = pop_start(r, (struct pop_wish){.queue = "q", .auto_ack = true});
    expect_payload(s, "0");
    shot_free(s);
}

static struct shot *next_park(struct rig *r, struct pop_wish next)
{
    uint64_t before = parked(r);
    if (next.wait_ms == 0) next.wait_ms = 20000;
    struct shot *s = next_start(r, next);
    wait_parked(r, before);
    assert_false(s->done);
    return s;
}

/* ---- claimed at once ------------------------------------------------------------------------------------------------ */

static void test_next_is_claimed_in_the_entry_of_its_step(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "1");
    push(r, "q", "a", "2");
    struct shot *held = pop_start(r, (struct pop_wish){.queue = "q"});
    expect_payload(held, "1");
    uint64_t e = entries(r), c = commands(r);
    struct shot *s = step_start(
        r, (struct step_wish){
               .acks = held, .lanes = "o", .queue = "out", .payload = "\"o\"", .next = {.queue = "q", .wait_ms = 5000}});
    expect_payload(s, "2");
    expect_committed(s);
    assert_int_equal(s->call.step->acks.count, 1);
    assert_int_equal(s->call.step->acks.items[0].verdict, ACK_OK);
    assert_int_equal(s->call.kind, CALL_WRITE);
    assert_int_equal(s->call.result.kind, COMMAND_POP);
    assert_int_equal(entries(r), e + 1);
    assert_int_equal(commands(r), c + 1);
    /* Its claim is held under the lease of the call. */
    struct shot *last = step_start(r, (struct step_wish){.acks = s, .next = {.queue = "q"}});
    assert_int_equal(shot_wait(last), CALL_EMPTY);
    assert_int_equal(last->call.step->acks.items[0].verdict, ACK_OK);
    assert_int_equal(out_count(r), 1);
    shot_free(last);
    shot_free(s);
    shot_free(held);
}

static void test_a_refused_step_claims_nothing(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "1");
    struct shot *s = step_start(r, (struct step_wish){.refused = true,
                                                      .lanes = "o",
                                                      .queue = "out",
                                                      .payload = "1",
                                                      .next = {.queue = "q", .wait_ms = 5000, .lease_ms = 60000}});
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_null(s->call.step);
    assert_int_equal(s->call.result.kind, COMMAND_STEP);
    assert_int_equal(s->call.result.step.refusal, STEP_REJECTED_ACK);
    shot_free(s);
    assert_int_equal(out_count(r), 0);
    struct shot *p = pop_start(r, (struct pop_wish){.queue = "q"});
    expect_payload(p, "1");
    assert_int_equal(p->call.result.pop.claims[0].attempt, 1);
    shot_free(p);
}

static void test_a_step_without_next_is_a_plain_write(void **state)
{
    struct rig *r = *state;
    struct shot *s = step_start(r, (struct step_wish){.lanes = "o", .queue = "out", .payload = "1"});
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_null(s->call.step);
    assert_int_equal(s->call.result.kind, COMMAND_STEP);
    assert_int_equal(s->call.result.step.push.items[0].status, PUSH_QUEUED);
    shot_free(s);
}

static void test_an_empty_next_that_does_not_wait(void **state)
{
    struct rig *r = *state;
    struct shot *s = next_start(r, (struct pop_wish){0});
    assert_int_equal(shot_wait(s), CALL_EMPTY);
    expect_committed(s);
    shot_free(s);
    assert_int_equal(out_count(r), 1);
}

/* ---- waiting -------------------------------------------------------------------------------------------------------- */

static void test_next_parks_and_is_handed_a_later_message(void **state)
{
    struct rig *r = *state;
    queue_known(r);
    struct shot *s = next_park(r, (struct pop_wish){0});
    expect_committed(s); /* durable before it waits */
    uint64_t e = entries(r), c = commands(r);
    push(r, "q", "a", "7");
    expect_payload(s, "7");
    assert_int_equal(s->call.kind, CALL_POP);
    expect_committed(s);
    assert_int_equal(entries(r), e + 1);
    assert_int_equal(commands(r), c + 2);
    assert_int_equal(s->call.result.pop.claims[0].attempt, 1);
    ack(r, s);
    shot_free(s);
    assert_int_equal(out_count(r), 1);
}

enum { ON_THE_WAY = BATCH_CALLS_EAGER + 1 };
static struct shot *on_the_way[ON_THE_WAY];

static void push_behind(struct shot *s)
{
    for (int i = 0; i < ON_THE_WAY; i++) on_the_way[i] = push_start(s->rig, "q", "fresh", "1");
    assert_int_equal(s->rig->broker->flight_count, 2);
}

static void test_next_of_a_lane_is_handed_what_was_on_its_way(void **state)
{
    struct rig *r = *state;
    push(r, "q", "other", "0");
    /* A group nobody knows, that begins with the step. So many pushes are in the log before the step has applied. */
    struct shot *s = next_start(r, (struct pop_wish){.lane = "fresh", .group = "g", .from_new = true, .wait_ms = 20000});
    while_in_flight(s, push_behind);
    expect_payload(s, "1");
    assert_int_equal(s->call.result.pop.claims[0].first_offset, 0);
    shot_free(s);
    for (int i = 0; i < ON_THE_WAY; i++) {
        assert_int_equal(shot_wait(on_the_way[i]), CALL_OK);
        shot_free(on_the_way[i]);
    }
}

static void test_waiting_for_next_ends_at_its_own_deadline(void **state)
{
    struct rig *r = *state;
    queue_known(r);
    int64_t began_us = clock_mono_us();
    struct shot *s = next_park(r, (struct pop_wish){.wait_ms = 400});
    assert_int_equal(shot_wait(s), CALL_EMPTY);
    assert_in_range((s->done_us - began_us) / 1000, 290, 700);
    expect_committed(s);
    shot_free(s);
    assert_int_equal(parked(r), 0);
}

static void test_a_lease_that_ends_wakes_a_waiting_next(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "1");
    struct shot *holder = pop_start(r, (struct pop_wish){.queue = "q", .lease_ms = 300});
    expect_payload(holder, "1");
    struct shot *s = next_park(r, (struct pop_wish){0});
    expect_payload(s, "1");
    assert_in_range((s->done_us - holder->done_us) / 1000, 250, 700);
    expect_committed(s);
    shot_free(s);
    shot_free(holder);
}

/* ---- leaving -------------------------------------------------------------------------------------------------------- */

/* The message is there as if nobody had ever claimed it. */
static void expect_untouched(struct rig *r, const char *payload)
{
    struct shot *p = pop_start(r, (struct pop_wish){.queue = "q", .wait_ms = 5000});
    expect_payload(p, payload);
    assert_int_equal(p->call.result.pop.claims[0].attempt, 1);
    shot_free(p);
}

static void test_cancel_of_a_queued_step_writes_nothing(void **state)
{
    struct rig *r = *state;
    uint64_t c = commands(r);
    struct shot *s = next_start(r, (struct pop_wish){.wait_ms = 5000});
    cancel(s);
    assert_int_equal(commands(r), c);
    assert_int_equal(out_count(r), 0);
}

static void test_cancel_of_a_step_in_the_log_hands_its_claims_back(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "1");
    for (int i = 0; i < 3; i++) {
        struct shot *s = next_start(r, (struct pop_wish){.wait_ms = 5000, .lease_ms = 60000});
        cancel_in_flight(s);
    }
    assert_int_equal(out_count(r), 3);
    expect_untouched(r, "1");
}

static void test_cancel_of_a_waiting_next(void **state)
{
    struct rig *r = *state;
    queue_known(r);
    struct shot *s = next_park(r, (struct pop_wish){0});
    cancel(s);
    assert_int_equal(parked(r), 0);
    /* And once more while it is in the log as a pop. */
    s = next_park(r, (struct pop_wish){.lease_ms = 60000});
    struct shot *p = push_start(r, "q", "a", "1");
    s->call.flight = NULL;
    cancel_in_flight(s);
    assert_int_equal(shot_wait(p), CALL_OK);
    shot_free(p);
    assert_int_equal(out_count(r), 2);
    expect_untouched(r, "1");
}

static void test_a_step_whose_entry_takes_too_long_hands_its_claims_back(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "1");
    struct shot *s = next_start(r, (struct pop_wish){.wait_ms = 5000, .lease_ms = 60000});
    expire_in_flight(s);
    assert_int_equal(shot_wait(s), CALL_TIMEOUT);
    assert_null(s->call.step); /* nobody knows yet */
    shot_free(s);
    assert_int_equal(out_count(r), 1);
    expect_untouched(r, "1");
    /* A refused one has nothing to hand back. */
    uint64_t c = commands(r);
    s = step_start(r, (struct step_wish){.refused = true, .next = {.queue = "q", .wait_ms = 5000}});
    expire_in_flight(s);
    assert_int_equal(shot_wait(s), CALL_TIMEOUT);
    shot_free(s);
    rig_pass(r, 30);
    assert_int_equal(commands(r), c + 1);
}

static void test_a_late_step_does_not_wait_for_its_next(void **state)
{
    struct rig *r = *state;
    struct shot *s = next_start(r, (struct pop_wish){.wait_ms = 20000});
    while_in_flight(s, shot_late); /* its deadline passed while it was in the log */
    int64_t began_us = clock_mono_us();
    assert_int_equal(shot_wait(s), CALL_EMPTY);
    assert_true(s->done_us - began_us < 5000000);
    expect_committed(s);
    shot_free(s);
}

static void test_stop_answers_a_waiting_next_as_committed(void **state)
{
    struct rig *r = *state;
    queue_known(r);
    push(r, "q", "a", "1");
    struct shot *waits = next_park(r, (struct pop_wish){.queue = "elsewhere"});
    struct shot *queued = next_start(r, (struct pop_wish){.wait_ms = 20000});
    struct shot *empty = next_start(r, (struct pop_wish){.queue = "elsewhere", .wait_ms = 20000});
    broker_stop(r->broker, rig_stopped, r);
    assert_true(rig_run(r, rig_is_stopped, r, 15000));
    assert_true(waits->done && queued->done && empty->done);
    assert_int_equal(waits->call.outcome, CALL_EMPTY);
    expect_committed(waits);
    /* What was queued is written still, but waits for nothing. */
    expect_payload(queued, "1");
    expect_committed(queued);
    assert_int_equal(empty->call.outcome, CALL_EMPTY);
    expect_committed(empty);
    shot_free(waits);
    shot_free(queued);
    shot_free(empty);
    broker_close(r->broker);
    loop_free(r->loop);
    rig_open(r);
    assert_int_equal(out_count(r), 3);
}

static void test_lost_leadership_leaves_a_waiting_next_committed(void **state)
{
    struct rig *r = *state;
    queue_known(r);
    struct shot *s = next_park(r, (struct pop_wish){0});
    inbox_end(r->broker, CALL_NO_LEADER, CALL_UNKNOWN);
    assert_int_equal(shot_wait(s), CALL_NO_LEADER);
    expect_committed(s);
    shot_free(s);
    assert_int_equal(parked(r), 0);
}

/* ---- damage --------------------------------------------------------------------------------------------------------- */

/* Finds the text in the first segment file, and writes `to` over its first byte. */
static void segment_poke(const struct rig *r, const char *text, char to)
{
    static char block[65536];
    char path[4200];
    size_t len = strlen(text);
    snprintf(path, sizeof path, "%s/log/%016x.seg", r->config.dir, 0);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    for (off_t at = 0;; at += (off_t)sizeof block / 2) {
        ssize_t n = pread(fd, block, sizeof block, at);
        assert_true(n > 0);
        char *hit = memmem(block, (size_t)n, text, len);
        if (hit == NULL) continue;
        assert_int_equal(pwrite(fd, &to, 1, at + (hit - block)), 1);
        break;
    }
    assert_int_equal(fsync(fd), 0);
    close(fd);
}

static void test_a_damaged_next_leaves_the_step_committed(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "\"precious-payload\"");
    char *text = malloc((256 << 10) + 1);
    memset(text, '1', 256 << 10);
    text[256 << 10] = '\0';
    for (int i = 0; i < 12; i++) push(r, "filler", "f", text);
    free(text);
    rig_close(r);
    r->config.cache_bytes = 1 << 20;
    rig_open(r);
    segment_poke(r, "precious-payload", 'X');
    struct shot *s = next_start(r, (struct pop_wish){.wait_ms = 5000, .lease_ms = 60000});
    assert_int_equal(shot_wait(s), CALL_DAMAGED);
    expect_committed(s);
    shot_free(s);
    segment_poke(r, "Xrecious-payload", 'p');
    expect_untouched(r, "\"precious-payload\"");
}

/* ---- others who wait ------------------------------------------------------------------------------------------------ */

static void test_a_step_hands_off_like_pushes_and_acks(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "1");
    push(r, "q", "a", "2");
    struct shot *holder = pop_start(r, (struct pop_wish){.queue = "q"});
    expect_payload(holder, "1");
    struct shot *freed = poll_start(r, (struct pop_wish){.queue = "q"});
    struct shot *pushed = poll_start(r, (struct pop_wish){.queue = "out"});
    uint64_t e = entries(r), c = commands(r);
    struct shot *s = step_start(r, (struct step_wish){.acks = holder, .lanes = "o", .queue = "out", .payload = "\"o\""});
    assert_int_equal(shot_wait(s), CALL_OK);
    expect_payload(freed, "2");
    expect_payload(pushed, "\"o\"");
    assert_int_equal(entries(r), e + 1);
    assert_int_equal(commands(r), c + 3);
    shot_free(s);
    shot_free(holder);
    shot_free(freed);
    shot_free(pushed);
}

static void test_a_refused_step_sends_the_handed_off_back_to_wait(void **state)
{
    struct rig *r = *state;
    struct shot *p = poll_start(r, (struct pop_wish){.queue = "out"});
    for (int i = 0; i < 3; i++) {
        struct shot *s = step_start(r, (struct step_wish){.refused = true, .lanes = "o", .queue = "out", .payload = "1"});
        assert_int_equal(shot_wait(s), CALL_OK);
        assert_int_equal(s->call.result.step.refusal, STEP_REJECTED_ACK);
        shot_free(s);
    }
    rig_pass(r, 20);
    assert_int_equal(parked(r), 1);
    assert_false(p->done);
    push(r, "out", "o", "2");
    expect_payload(p, "2");
    shot_free(p);
}

static bool queue_exists(struct rig *r, const char *queue)
{
    struct queue_view v;
    return engine_queue_get(r->broker->engine, rig_tenant, slice_of(queue), &v);
}

static void test_a_refused_step_brings_no_deleted_queue_back(void **state)
{
    struct rig *r = *state;
    struct shot *p = poll_start(r, (struct pop_wish){.queue = "gone"});
    struct shot *d = shot_new(r, CALL_WRITE);
    queue_delete_encode(&d->command, &(struct queue_delete_command){.tenant = rig_tenant, .queue = slice_of("gone")});
    shot_write(d, false);
    assert_int_equal(shot_wait(d), CALL_OK);
    shot_free(d);
    struct step_wish wish = {.refused = true, .lanes = "o", .queue = "gone", .payload = "1"};
    struct shot *s = step_start(r, wish);
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_int_equal(s->call.result.step.refusal, STEP_REJECTED_ACK);
    shot_free(s);
    rig_pass(r, 20);
    assert_false(queue_exists(r, "gone") || p->done);
    assert_int_equal(parked(r), 1);
    wish.refused = false;
    s = step_start(r, wish);
    expect_payload(p, "1");
    assert_int_equal(shot_wait(s), CALL_OK);
    shot_free(s);
    shot_free(p);
}

static void test_what_next_will_take_is_left_to_it(void **state)
{
    struct rig *r = *state;
    for (int i = 0; i < 4; i++) push(r, "q", "a", "1");
    struct shot *held = pop_start(r, (struct pop_wish){.queue = "q"});
    expect_payload(held, "1");
    struct shot *p = poll_start(r, (struct pop_wish){.queue = "q"});
    for (int i = 0; i < 3; i++) {
        uint64_t c = commands(r);
        struct shot *s = step_start(r, (struct step_wish){.acks = held, .next = {.queue = "q", .wait_ms = 5000}});
        expect_payload(s, "1");
        assert_int_equal(commands(r), c + 1); /* nobody went behind it in vain */
        shot_free(held);
        held = s;
    }
    assert_false(p->done);
    /* Without a next the lane goes to who is parked. */
    push(r, "q", "a", "2");
    struct shot *s = step_start(r, (struct step_wish){.acks = held});
    expect_payload(p, "2");
    assert_int_equal(shot_wait(s), CALL_OK);
    shot_free(s);
    shot_free(held);
    shot_free(p);
}

static void test_pinned_callers_see_what_next_took(void **state)
{
    struct rig *r = *state;
    push(r, "q", "b", "0");
    struct shot *wide = poll_start(r, (struct pop_wish){.queue = "q", .group = "g", .from_new = true});
    struct shot *pinned = poll_start(r, (struct pop_wish){.queue = "q", .lane = "a", .group = "g", .from_new = true});
    int64_t began_us = clock_mono_us();
    struct shot *s = step_start(
        r,
        (struct step_wish){.lanes = "a", .queue = "q", .payload = "1", .next = {.queue = "q", .group = "g", .lease_ms = 300}});
    expect_payload(s, "1");
    rig_pass(r, 50);
    assert_false(pinned->done || wide->done);
    /* The lease ends: the message is for who is pinned to its lane. */
    expect_payload(pinned, "1");
    assert_in_range((pinned->done_us - began_us) / 1000, 280, 800);
    assert_int_equal(pinned->call.result.pop.claims[0].attempt, 2);
    assert_false(wide->done);
    cancel(wide);
    shot_free(pinned);
    shot_free(s);
}

static void test_a_lease_of_next_that_ends_wakes_a_wide_caller(void **state)
{
    struct rig *r = *state;
    queue_known(r);
    push(r, "q", "a", "1");
    /* Both in one turn: the step takes the lane, the poll finds it promised to nobody and comes back empty. */
    struct shot *s = next_start(r, (struct pop_wish){.lease_ms = 300});
    struct shot *p = pop_start(r, (struct pop_wish){.queue = "q", .wait_ms = 20000});
    expect_payload(s, "1");
    expect_payload(p, "1");
    assert_in_range((p->done_us - s->done_us) / 1000, 250, 700);
    shot_free(s);
    shot_free(p);
}

static void test_a_group_made_known_by_next_counts_for_pinned_callers(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "1");
    push(r, "q", "b", "2");
    struct shot *pinned = poll_start(r, (struct pop_wish){.queue = "q", .lane = "b", .group = "g", .from_new = true});
    /* The group begins with everything there is, so lane b has something for its pinned caller too. */
    struct shot *s = next_start(r, (struct pop_wish){.group = "g"});
    expect_payload(s, "1");
    expect_payload(pinned, "2");
    shot_free(pinned);
    shot_free(s);
    /* The same when the caller of the step does not wait for its entry. */
    pinned = poll_start(r, (struct pop_wish){.queue = "q", .lane = "b", .group = "h", .from_new = true});
    s = next_start(r, (struct pop_wish){.group = "h"});
    expire_in_flight(s);
    assert_int_equal(shot_wait(s), CALL_TIMEOUT);
    expect_payload(pinned, "2");
    shot_free(pinned);
    shot_free(s);
}

static void test_a_full_disk_refuses_steps_that_grow(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "1");
    struct shot *held = pop_start(r, (struct pop_wish){.queue = "q"});
    expect_payload(held, "1");
    atomic_store(&r->broker->storage_full, true);
    r->broker->guard.checked_us = INT64_MAX;
    struct shot *s = next_start(r, (struct pop_wish){.wait_ms = 5000});
    assert_int_equal(shot_wait(s), CALL_STORAGE_FULL);
    assert_null(s->call.step);
    shot_free(s);
    s = step_start(r, (struct step_wish){.acks = held, .next = {.queue = "q"}});
    assert_int_equal(shot_wait(s), CALL_EMPTY);
    assert_int_equal(s->call.step->acks.items[0].verdict, ACK_OK);
    shot_free(s);
    shot_free(held);
}

/* ---- ticks ---------------------------------------------------------------------------------------------------------- */

static int64_t schedule(struct rig *r, const char *key, const char *lane, int64_t delay_ms)
{
    struct shot *s = shot_new(r, CALL_WRITE);
    timer_encode(&s->command, "timers", key, lane, delay_ms);
    shot_write(s, true);
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_true(s->call.result.timers.items[0].status <= TIMER_RESCHEDULED);
    int64_t due_us = s->call.result.timers.items[0].due_us;
    shot_free(s);
    return due_us;
}

static uint64_t ticks(struct rig *r)
{
    return rig_numbers(r).metrics.ticks_total;
}

static void test_a_tick_fires_at_the_due_time_and_wakes(void **state)
{
    struct rig *r = *state;
    struct shot *p = poll_start(r, (struct pop_wish){.queue = "timers"});
    int64_t due_us = schedule(r, "k", "t", 300);
    uint64_t e = entries(r), c = commands(r);
    int64_t left_us = due_us - clock_wall_us(), began_us = clock_mono_us();
    expect_payload(p, "\"tick\"");
    int64_t fired_us = p->call.result.pop.claims[0].pieces[0].created_us - due_us;
    int64_t delivered_us = p->done_us - began_us - left_us;
    print_message("fired %lld us, delivered %lld us after it was due\n", (long long)fired_us, (long long)delivered_us);
    assert_true(fired_us >= 0 && fired_us < 100000); /* never early */
    assert_true(delivered_us < 1000000);
    /* Tick and pop in one entry. */
    assert_int_equal(entries(r), e + 1);
    assert_int_equal(commands(r), c + 2);
    assert_int_equal(ticks(r), 1);
    shot_free(p);
}

static void test_nothing_is_written_before_a_timer_is_due(void **state)
{
    struct rig *r = *state;
    struct shot *p = poll_start(r, (struct pop_wish){.queue = "timers"});
    schedule(r, "far", "t", 3600000);
    rig_pass(r, 1500); /* what the store still had to do */
    uint64_t e = entries(r), turns = r->turns;
    rig_pass(r, 2000);
    assert_int_equal(entries(r), e);
    assert_true(r->turns - turns < 20);
    /* None pending: nothing wakes at all. */
    struct shot *s = shot_new(r, CALL_WRITE);
    struct timer_op op = {.kind = TIMER_CANCEL, .queue = slice_of("timers"), .key = slice_of("far")};
    size_t at = timers_begin(&s->command, rig_tenant, 1);
    timer_op_add(&s->command, &op);
    timers_end(&s->command, at);
    shot_write(s, false);
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_int_equal(s->call.result.timers.items[0].status, TIMER_CANCELLED);
    shot_free(s);
    assert_false(heap_holds(&r->broker->ticker.timer.node));
    assert_int_equal(ticks(r), 0);
    cancel(p);
}

static void test_an_earlier_timer_is_not_late_for_a_later_one(void **state)
{
    struct rig *r = *state;
    schedule(r, "far", "t", 3600000);
    int64_t due_us[2];
    due_us[1] = schedule(r, "soon", "t", 700);
    due_us[0] = schedule(r, "sooner", "t", 200);
    for (int i = 0; i < 2; i++) {
        struct shot *p = pop_start(r, (struct pop_wish){.queue = "timers", .auto_ack = true, .wait_ms = 20000});
        expect_payload(p, "\"tick\"");
        int64_t late_us = p->call.result.pop.claims[0].pieces[0].created_us - due_us[i];
        assert_true(late_us >= 0 && late_us < 250000);
        shot_free(p);
    }
    assert_int_equal(ticks(r), 2);
}

static void test_a_timer_of_the_past_fires_at_once(void **state)
{
    struct rig *r = *state;
    schedule(r, "past", "t", -5000);
    struct shot *p = pop_start(r, (struct pop_wish){.queue = "timers", .wait_ms = 5000});
    int64_t began_us = clock_mono_us();
    expect_payload(p, "\"tick\"");
    assert_true(p->done_us - began_us < 500000);
    shot_free(p);
}

static bool tick_is_proposed(void *arg)
{
    return ((struct rig *)arg)->broker->ticker.proposed;
}

static void test_many_due_timers_take_as_many_ticks_as_they_need(void **state)
{
    enum { CALLS = 8, N = CALLS * TIMER_OPS_MAX };
    struct rig *r = *state;
    struct shot *s[CALLS];
    for (int i = 0; i < CALLS; i++) {
        s[i] = shot_new(r, CALL_WRITE);
        size_t at = timers_begin(&s[i]->command, rig_tenant, TIMER_OPS_MAX);
        for (int k = 0; k < TIMER_OPS_MAX; k++) {
            char key[16];
            snprintf(key, sizeof key, "k%d-%d", i, k);
            timer_op_encode(&s[i]->command, "timers", key, "t", 200);
        }
        timers_end(&s[i]->command, at);
        shot_write(s[i], true);
    }
    for (int i = 0; i < CALLS; i++) {
        assert_int_equal(shot_wait(s[i]), CALL_OK);
        shot_free(s[i]);
    }
    /* One at a time, whatever else is applied meanwhile. */
    assert_true(rig_run(r, tick_is_proposed, r, 10000));
    r->broker->ticker.stale = true;
    ticker_turn(r->broker);
    assert_int_equal(r->broker->ticks_total, 1);
    uint32_t got = 0;
    while (got < N) {
        struct shot *p = pop_start(r, (struct pop_wish){.queue = "timers", .batch = 5000, .auto_ack = true, .wait_ms = 10000});
        assert_int_equal(shot_wait(p), CALL_OK);
        got += p->call.result.pop.messages;
        shot_free(p);
    }
    rig_pass(r, 50);
    assert_int_equal(got, N);
    assert_in_range(ticks(r), N / TIMERS_A_TICK, N / TIMERS_A_TICK + 4);
    assert_int_equal(rig_numbers(r).metrics.engine.timers, 0);
    /* All have fired: nothing more is written. */
    uint64_t e = entries(r);
    rig_pass(r, 50);
    assert_int_equal(entries(r), e);
}

static void test_a_timer_of_a_step_fires(void **state)
{
    struct rig *r = *state;
    struct shot *p = poll_start(r, (struct pop_wish){.queue = "timers"});
    struct shot *s = step_start(r, (struct step_wish){.timer = true, .delay_ms = 100});
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_int_equal(s->call.result.step.timers.items[0].status, TIMER_SCHEDULED);
    expect_payload(p, "\"tick\"");
    assert_true(p->done_us - s->done_us >= 50000);
    shot_free(p);
    shot_free(s);
}

static void test_a_timer_that_came_due_while_away_fires_at_start(void **state)
{
    struct rig *r = *state;
    schedule(r, "k", "t", 100);
    rig_abandon(r);
    usleep(200000);
    rig_open(r);
    struct shot *p = pop_start(r, (struct pop_wish){.queue = "timers", .wait_ms = 10000});
    int64_t began_us = clock_mono_us();
    expect_payload(p, "\"tick\"");
    assert_true(p->done_us - began_us < 1000000);
    shot_free(p);
}

static void test_no_tick_while_stopping(void **state)
{
    struct rig *r = *state;
    schedule(r, "k", "t", 50);
    struct shot *s = push_start(r, "q", "a", "1");
    broker_stop(r->broker, rig_stopped, r);
    usleep(80000); /* due now */
    assert_true(rig_run(r, rig_is_stopped, r, 15000));
    assert_int_equal(s->call.outcome, CALL_OK);
    shot_free(s);
    assert_int_equal(r->broker->ticks_total, 0);
    broker_close(r->broker);
    loop_free(r->loop);
    rig_open(r);
    struct shot *p = pop_start(r, (struct pop_wish){.queue = "timers", .wait_ms = 10000});
    expect_payload(p, "\"tick\"");
    shot_free(p);
}

/* ---- reads that wait ------------------------------------------------------------------------------------------------ */

/* Waits until queue "q" holds more than `have` messages; watches the lanes. */
struct look {
    uint64_t have;
    const char *lanes[4];
    uint32_t runs, filler;
    bool late, stubborn;
};

static void look_read(struct call *c, struct engine *e, struct engine_now now)
{
    struct look *k = c->read_ctx;
    struct queue_view v;
    (void)now;
    assert_int_equal(c->answer.len, 0);
    assert_false(c->waits);
    k->runs++;
    k->late = c->late;
    uint64_t has = engine_queue_get(e, rig_tenant, slice_of("q"), &v) ? v.pushed_total : 0;
    buf_decimal(&c->answer, has);
    if ((has > k->have || c->late) && !k->stubborn) return;
    c->waits = true;
    for (int i = 0; i < 4 && k->lanes[i] != NULL; i++) {
        broker_watch(c->broker, c, rig_tenant, slice_of("q"), slice_of(k->lanes[i]));
    }
    for (uint32_t i = 0; i < k->filler; i++) {
        char lane[16];
        snprintf(lane, sizeof lane, "f%u", i);
        broker_watch(c->broker, c, rig_tenant, slice_of("q"), slice_of(lane));
    }
}

static struct shot *look_submit(struct rig *r, struct look *k, int wait_ms)
{
    struct shot *s = shot_new(r, CALL_READ);
    s->call.read = look_read;
    s->call.read_ctx = k;
    s->call.deadline_us = clock_mono_us() + (int64_t)wait_ms * 1000;
    broker_submit(r->broker, &s->call);
    return s;
}

static struct shot *look_start(struct rig *r, struct look *k, int wait_ms)
{
    struct shot *s = look_submit(r, k, wait_ms);
    rig_pass(r, 5);
    assert_false(s->done);
    assert_int_equal(k->runs, 1);
    return s;
}

static void expect_answer(struct shot *s, const char *answer)
{
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_true(slice_is(buf_view(&s->call.answer), answer));
    shot_free(s);
}

static void expect_no_watches(struct rig *r)
{
    const struct watching *w = &r->broker->watching;
    assert_int_equal(w->count, 0);
    assert_int_equal(w->watches, 0);
    assert_int_equal(w->lanes.count, 0);
    assert_int_equal(w->marked.count, 0);
}

static void test_a_read_wakes_when_its_lane_gets_something(void **state)
{
    struct rig *r = *state;
    struct look k = {.lanes = {"a", "b"}}, other = {.have = 1, .lanes = {"c"}};
    struct shot *s = look_start(r, &k, 20000), *o = look_start(r, &other, 20000);
    assert_int_equal(rig_numbers(r).metrics.reads_waiting, 2);
    push(r, "q", "b", "1"); /* neither queue nor lane was there */
    expect_answer(s, "1");
    assert_int_equal(k.runs, 2);
    assert_false(k.late);
    rig_pass(r, 20);
    assert_int_equal(other.runs, 1); /* of another lane */
    push(r, "q", "b", "1");
    push(r, "elsewhere", "c", "1");
    rig_pass(r, 20);
    assert_int_equal(other.runs, 1);
    push(r, "q", "c", "1");
    expect_answer(o, "3");
    assert_int_equal(other.runs, 2);
    expect_no_watches(r);
}

static void test_a_read_wakes_by_steps_and_timers(void **state)
{
    struct rig *r = *state;
    struct look k = {.lanes = {"a"}};
    struct shot *s = look_start(r, &k, 20000);
    struct shot *step = step_start(r, (struct step_wish){.lanes = "a", .queue = "q", .payload = "1"});
    expect_answer(s, "1");
    assert_int_equal(shot_wait(step), CALL_OK);
    shot_free(step);
    struct look t = {.have = 1, .lanes = {"a"}};
    s = look_start(r, &t, 20000);
    struct shot *w = shot_new(r, CALL_WRITE);
    timer_encode(&w->command, "q", "k", "a", 50);
    shot_write(w, true);
    assert_int_equal(shot_wait(w), CALL_OK);
    shot_free(w);
    expect_answer(s, "2");
    assert_int_equal(t.runs, 2);
}

static void test_a_read_runs_once_a_turn_however_much_comes(void **state)
{
    struct rig *r = *state;
    struct look k = {.have = 1000, .lanes = {"a", "b", "c"}};
    struct shot *s = look_start(r, &k, 300);
    uint64_t turns = r->turns;
    struct shot *w[60];
    for (int i = 0; i < 60; i++) w[i] = push_start(r, "q", "a,b,c", "1");
    for (int i = 0; i < 60; i++) {
        assert_int_equal(shot_wait(w[i]), CALL_OK);
        shot_free(w[i]);
    }
    rig_pass(r, 20);
    assert_true(k.runs >= 2 && k.runs - 1 <= r->turns - turns);
    assert_in_range(k.runs, 2, 1 + FLIGHTS_MAX + 2);
    expect_answer(s, "180");
    assert_true(k.late);
    expect_no_watches(r);
}

static void test_a_read_runs_a_last_time_at_its_deadline(void **state)
{
    struct rig *r = *state;
    struct look k = {.lanes = {"a"}};
    int64_t began_us = clock_mono_us();
    struct shot *s = look_start(r, &k, 200);
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_in_range((s->done_us - began_us) / 1000, 195, 500);
    assert_true(k.late);
    assert_int_equal(k.runs, 2);
    expect_answer(s, "0");
    /* Also when its time is up before it ran at all. */
    struct look brief = {.lanes = {"a"}};
    s = look_submit(r, &brief, -1);
    expect_answer(s, "0");
    assert_true(brief.late);
    /* One that insists on waiting is not kept. */
    struct look stubborn = {.lanes = {"a"}, .stubborn = true};
    s = look_start(r, &stubborn, 50);
    assert_int_equal(shot_wait(s), CALL_TIMEOUT);
    shot_free(s);
    expect_no_watches(r);
}

static void test_a_waiting_read_can_be_cancelled(void **state)
{
    struct rig *r = *state;
    struct look k = {.lanes = {"a"}};
    struct shot *s = look_start(r, &k, 20000);
    cancel(s);
    expect_no_watches(r);
    push(r, "q", "a", "1");
    assert_int_equal(k.runs, 1);
    /* Arrived, and marked to run again in this turn. */
    struct look second = {.have = 1, .lanes = {"a"}};
    s = look_submit(r, &second, 20000);
    cancel(s);
    assert_int_equal(second.runs, 0);
    s = look_start(r, &second, 20000);
    watch_appended(r->broker, 1);
    watch_applied(r->broker);
    assert_int_equal(r->broker->watching.marked.count, 1);
    cancel(s);
    assert_int_equal(second.runs, 1);
    expect_no_watches(r);
}

static void test_stop_runs_waiting_reads_a_last_time(void **state)
{
    struct rig *r = *state;
    struct look k = {.lanes = {"a"}};
    struct shot *s = look_start(r, &k, 20000);
    broker_stop(r->broker, rig_stopped, r);
    assert_true(rig_run(r, rig_is_stopped, r, 15000));
    assert_true(s->done && k.late);
    expect_answer(s, "0");
    broker_close(r->broker);
    loop_free(r->loop);
    rig_open(r);
    struct look lost = {.lanes = {"a"}};
    s = look_start(r, &lost, 20000);
    inbox_end(r->broker, CALL_NO_LEADER, CALL_UNKNOWN);
    assert_int_equal(shot_wait(s), CALL_NO_LEADER);
    assert_int_equal(lost.runs, 1);
    shot_free(s);
    expect_no_watches(r);
}

static void test_waiting_reads_are_bounded(void **state)
{
    struct rig *r = *state;
    struct look wide = {.filler = FETCH_ENTRIES_MAX};
    struct shot *s = look_start(r, &wide, 20000);
    assert_int_equal(s->call.watch_count, FETCH_ENTRIES_MAX);
    struct watching *w = &r->broker->watching;
    uint32_t watches = w->watches, count = w->count;
    w->watches = WATCHES_MAX - 10;
    struct look refused = {.filler = 20};
    struct shot *t = look_submit(r, &refused, 20000);
    assert_int_equal(shot_wait(t), CALL_OVERLOADED);
    assert_in_range(t->call.retry_after_s, 1, 5);
    shot_free(t);
    assert_int_equal(w->watches, WATCHES_MAX - 10);
    w->watches = watches;
    w->count = PARKED_POLLS_MAX;
    t = look_submit(r, &refused, 20000);
    assert_int_equal(shot_wait(t), CALL_OVERLOADED);
    shot_free(t);
    queue_known(r);
    t = next_start(r, (struct pop_wish){.wait_ms = 20000});
    assert_int_equal(shot_wait(t), CALL_OVERLOADED);
    expect_committed(t); /* it could not wait, but it is committed */
    shot_free(t);
    w->count = count;
    push(r, "q", "f1023", "1");
    assert_int_equal(shot_wait(s), CALL_OK);
    shot_free(s);
    expect_no_watches(r);
}

static void test_more_appends_than_are_told_apart_wake_everybody(void **state)
{
    struct rig *r = *state;
    struct look k = {.have = 1000, .lanes = {"a"}};
    struct shot *s = look_start(r, &k, 20000);
    for (uint32_t i = 0; i < APPENDS_KEPT_MAX; i++) watch_appended(r->broker, 1000000 + i);
    watch_applied(r->broker);
    assert_int_equal(r->broker->watching.marked.count, 0);
    for (uint32_t i = 0; i < APPENDS_KEPT_MAX + 1; i++) watch_appended(r->broker, 1000000 + i);
    watch_applied(r->broker);
    assert_int_equal(r->broker->watching.marked.count, 1);
    inbox_kick(r->broker);
    rig_pass(r, 10);
    assert_int_equal(k.runs, 2);
    cancel(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_rig(test_next_is_claimed_in_the_entry_of_its_step),
        with_rig(test_a_refused_step_claims_nothing),
        with_rig(test_a_step_without_next_is_a_plain_write),
        with_rig(test_an_empty_next_that_does_not_wait),
        with_rig(test_next_parks_and_is_handed_a_later_message),
        with_rig(test_next_of_a_lane_is_handed_what_was_on_its_way),
        with_rig(test_waiting_for_next_ends_at_its_own_deadline),
        with_rig(test_a_lease_that_ends_wakes_a_waiting_next),
        with_rig(test_cancel_of_a_queued_step_writes_nothing),
        with_rig(test_cancel_of_a_step_in_the_log_hands_its_claims_back),
        with_rig(test_cancel_of_a_waiting_next),
        with_rig(test_a_step_whose_entry_takes_too_long_hands_its_claims_back),
        with_rig(test_a_late_step_does_not_wait_for_its_next),
        with_rig(test_stop_answers_a_waiting_next_as_committed),
        with_rig(test_lost_leadership_leaves_a_waiting_next_committed),
        with_rig(test_a_damaged_next_leaves_the_step_committed),
        with_rig(test_a_step_hands_off_like_pushes_and_acks),
        with_rig(test_a_refused_step_sends_the_handed_off_back_to_wait),
        with_rig(test_a_refused_step_brings_no_deleted_queue_back),
        with_rig(test_what_next_will_take_is_left_to_it),
        with_rig(test_pinned_callers_see_what_next_took),
        with_rig(test_a_lease_of_next_that_ends_wakes_a_wide_caller),
        with_rig(test_a_group_made_known_by_next_counts_for_pinned_callers),
        with_rig(test_a_full_disk_refuses_steps_that_grow),
        with_rig(test_a_tick_fires_at_the_due_time_and_wakes),
        with_rig(test_nothing_is_written_before_a_timer_is_due),
        with_rig(test_an_earlier_timer_is_not_late_for_a_later_one),
        with_rig(test_a_timer_of_the_past_fires_at_once),
        with_rig(test_many_due_timers_take_as_many_ticks_as_they_need),
        with_rig(test_a_timer_of_a_step_fires),
        with_rig(test_a_timer_that_came_due_while_away_fires_at_start),
        with_rig(test_no_tick_while_stopping),
        with_rig(test_a_read_wakes_when_its_lane_gets_something),
        with_rig(test_a_read_wakes_by_steps_and_timers),
        with_rig(test_a_read_runs_once_a_turn_however_much_comes),
        with_rig(test_a_read_runs_a_last_time_at_its_deadline),
        with_rig(test_a_waiting_read_can_be_cancelled),
        with_rig(test_stop_runs_waiting_reads_a_last_time),
        with_rig(test_waiting_reads_are_bounded),
        with_rig(test_more_appends_than_are_told_apart_wake_everybody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
