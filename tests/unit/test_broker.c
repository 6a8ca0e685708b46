/* The broker's promises, with a real engine, log, replica and store: hand-off in one entry, exact wake-ups, deadlines, callers
 * that leave, claims handed back, lanes that become claimable by time, restart, damage, stop. */
#include "test_broker_rig.h"

#include <dirent.h>
#include <fcntl.h>

/* ---- the simple way ----------------------------------------------------------------------------------------------- */

static void test_push_pop_ack(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "\"one\"");
    push(r, "q", "a", "\"two\"");
    struct shot *p = pop_start(r, (struct pop_wish){.queue = "q", .batch = 10});
    assert_int_equal(shot_wait(p), CALL_OK);
    assert_int_equal(p->call.result.pop.messages, 2);
    assert_payload(p, 0, "\"one\"");
    assert_payload(p, 1, "\"two\"");
    assert_true(p->call.wall_us > 0);
    expect_empty(pop_start(r, (struct pop_wish){.queue = "q"}));
    ack(r, p);
    shot_free(p);
    expect_empty(pop_start(r, (struct pop_wish){.queue = "q"}));
}

/* Pushes `count` messages in one turn; returns how many entries they took. */
static uint64_t entries_of_one_turn(struct rig *r, const char *lane, int count)
{
    uint64_t before = entries(r);
    int32_t done_before = r->done_count;
    struct shot *s[100];
    for (int i = 0; i < count; i++) s[i] = push_start(r, "q", lane, "1");
    for (int i = 0; i < count; i++) {
        assert_int_equal(shot_wait(s[i]), CALL_OK);
        assert_int_equal(s[i]->order, done_before + i + 1);
        assert_int_equal(s[i]->call.result.push.items[0].offset, i);
        if (i > 0) assert_true(s[i]->call.wall_us > s[i - 1]->call.wall_us);
    }
    for (int i = 0; i < count; i++) shot_free(s[i]);
    return entries(r) - before;
}

static void test_calls_of_one_turn_share_an_entry(void **state)
{
    struct rig *r = *state;
    assert_int_equal(entries_of_one_turn(r, "few", BATCH_CALLS_EAGER - 1), 1);
    /* The disk does not wait for the last of many. */
    assert_in_range(entries_of_one_turn(r, "many", 100), 2, FLIGHTS_MAX + 1);
}

static void test_a_pop_registers_its_group_and_then_waits(void **state)
{
    struct rig *r = *state;
    expect_empty(pop_start(r, (struct pop_wish){.queue = "fresh", .group = "g"}));
    struct shot *p = poll_start(r, (struct pop_wish){.queue = "fresh2", .group = "g", .from_new = true});
    push(r, "fresh2", "a", "7");
    expect_payload(p, "7");
    shot_free(p);
}

static void test_auto_ack_leaves_the_lane_open(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "1");
    push(r, "q", "a", "2");
    struct shot *one = pop_start(r, (struct pop_wish){.queue = "q", .auto_ack = true});
    expect_payload(one, "1");
    struct shot *two = pop_start(r, (struct pop_wish){.queue = "q", .auto_ack = true});
    expect_payload(two, "2");
    expect_empty(pop_start(r, (struct pop_wish){.queue = "q", .auto_ack = true}));
    shot_free(one);
    shot_free(two);
}

static void test_discovery_never_waits(void **state)
{
    struct rig *r = *state;
    push(r, "billing.mail", "a", "5");
    struct shot *p = pop_start(r, (struct pop_wish){.wait_ms = 5000});
    expect_payload(p, "5");
    shot_free(p);
    int64_t began_us = clock_mono_us();
    expect_empty(pop_start(r, (struct pop_wish){.wait_ms = 5000}));
    assert_true(clock_mono_us() - began_us < 1000000);
    assert_int_equal(parked(r), 0);
}

static void test_autopilot_leaves_conflating_groups_alone(void **state)
{
    struct rig *r = *state;
    for (int i = 0; i < 3; i++) push(r, "q", "a", i == 2 ? "2" : "1");
    struct shot *one =
        pop_start(r, (struct pop_wish){.queue = "q", .group = "g", .conflation = CONFLATION_ON, .auto_ack = true});
    expect_payload(one, "2");
    shot_free(one);
    push(r, "q", "a", "3");
    push(r, "q", "b", "4");
    /* The caller does not say that the group conflates, and lets the broker choose. */
    struct shot *s = shot_new(r, CALL_POP);
    s->call.pop = pop_of((struct pop_wish){.queue = "q", .group = "g", .auto_ack = true});
    s->call.pop.batch = s->call.pop.partitions = 0;
    s->call.choose_batch = s->call.choose_partitions = true;
    broker_submit(r->broker, &s->call);
    expect_payload(s, "3");
    assert_false(s->call.choose_batch || s->call.choose_partitions);
    assert_int_equal(s->call.pop.batch, POP_BATCH_DEFAULT);
    assert_int_equal(s->call.pop.partitions, 1);
    shot_free(s);
}

/* ---- hand-off and wake-ups ---------------------------------------------------------------------------------------- */

static void test_push_hands_off_in_the_same_entry(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "0");
    struct shot *first = pop_start(r, (struct pop_wish){.queue = "q", .auto_ack = true});
    expect_payload(first, "0");
    shot_free(first);
    struct shot *p = poll_start(r, (struct pop_wish){.queue = "q"});
    uint64_t e = entries(r), c = commands(r);
    push(r, "q", "a", "1");
    expect_payload(p, "1");
    assert_int_equal(entries(r), e + 1);
    assert_int_equal(commands(r), c + 2);
    shot_free(p);
}

static void test_push_to_a_new_lane_hands_off_to_every_group(void **state)
{
    struct rig *r = *state;
    struct shot *p[3];
    static const char *const groups[3] = {"g1", "g2", NULL};
    for (int i = 0; i < 3; i++) p[i] = poll_start(r, (struct pop_wish){.queue = "q", .group = groups[i], .from_new = true});
    for (int round = 0; round < 20; round++) {
        char lane[16], payload[16];
        snprintf(lane, sizeof lane, "lane-%d", round);
        snprintf(payload, sizeof payload, "%d", round);
        uint64_t e = entries(r);
        push(r, "q", lane, payload);
        for (int i = 0; i < 3; i++) {
            expect_payload(p[i], payload);
            shot_free(p[i]);
        }
        assert_int_equal(entries(r), e + 1);
        for (int i = 0; i < 3; i++) p[i] = poll_start(r, (struct pop_wish){.queue = "q", .group = groups[i], .from_new = true});
    }
    for (int i = 0; i < 3; i++) cancel(p[i]);
}

static void test_as_many_are_woken_as_there_are_lanes(void **state)
{
    struct rig *r = *state;
    struct shot *p[6];
    for (int i = 0; i < 6; i++) p[i] = poll_start(r, (struct pop_wish){.queue = "q"});
    uint64_t c = commands(r);
    push(r, "q", "a,b", "1");
    expect_payload(p[0], "1");
    expect_payload(p[1], "1");
    rig_pass(r, 30);
    assert_int_equal(commands(r), c + 3);
    assert_int_equal(parked(r), 4);
    /* A lane that is leased arms nobody. */
    push(r, "q", "a", "2");
    rig_pass(r, 30);
    assert_int_equal(commands(r), c + 4);
    /* One lane pushed to many times in one entry arms one caller. */
    struct shot *s[50];
    for (int i = 0; i < 50; i++) s[i] = push_start(r, "q", "c", "3");
    expect_payload(p[2], "3");
    for (int i = 0; i < 50; i++) {
        shot_wait(s[i]);
        shot_free(s[i]);
    }
    rig_pass(r, 30);
    assert_int_equal(commands(r), c + 4 + 51);
    assert_int_equal(parked(r), 3);
    for (int i = 0; i < 3; i++) shot_free(p[i]);
    for (int i = 3; i < 6; i++) cancel(p[i]);
}

static void test_the_oldest_caller_is_served_first(void **state)
{
    struct rig *r = *state;
    struct shot *p[4];
    for (int i = 0; i < 4; i++) p[i] = poll_start(r, (struct pop_wish){.queue = "q"});
    for (int i = 0; i < 4; i++) {
        char lane[8];
        snprintf(lane, sizeof lane, "%d", i);
        push(r, "q", lane, lane);
        expect_payload(p[i], lane);
        for (int k = i + 1; k < 4; k++) assert_false(p[k]->done);
    }
    for (int i = 0; i < 4; i++) shot_free(p[i]);
}

static void test_ack_hands_off_in_the_same_entry(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "1");
    push(r, "q", "a", "2");
    struct shot *holder = pop_start(r, (struct pop_wish){.queue = "q"});
    expect_payload(holder, "1");
    struct shot *p = poll_start(r, (struct pop_wish){.queue = "q"});
    uint64_t e = entries(r), c = commands(r);
    ack(r, holder);
    expect_payload(p, "2");
    assert_int_equal(entries(r), e + 1);
    assert_int_equal(commands(r), c + 2);
    shot_free(holder);
    shot_free(p);
}

static void test_a_failed_ack_wakes_a_parked_caller(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "1");
    struct shot *holder = pop_start(r, (struct pop_wish){.queue = "q"});
    expect_payload(holder, "1");
    struct shot *p = poll_start(r, (struct pop_wish){.queue = "q"});
    struct shot *s = ack_start(r, holder, ACK_FAILED);
    expect_payload(p, "1");
    assert_int_equal(p->call.result.pop.claims[0].attempt, 2);
    assert_int_equal(shot_wait(s), CALL_OK);
    shot_free(s);
    shot_free(holder);
    shot_free(p);
}

static void test_parked_callers_take_only_their_share_of_ready_lanes(void **state)
{
    struct rig *r = *state;
    /* 10 lanes are ready at once when a lease over all of them is handed back by time. */
    push(r, "q", "0,1,2,3,4,5,6,7,8,9", "1");
    struct shot *all = pop_start(r, (struct pop_wish){.queue = "q", .batch = 64, .partitions = 64, .lease_ms = 300});
    assert_int_equal(shot_wait(all), CALL_OK);
    assert_int_equal(all->call.result.pop.count, 10);
    struct shot *p[5];
    for (int i = 0; i < 5; i++) p[i] = poll_start(r, (struct pop_wish){.queue = "q", .batch = 4, .partitions = 4});
    uint64_t c = commands(r);
    uint32_t lanes = 0;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(shot_wait(p[i]), CALL_OK);
        lanes += p[i]->call.result.pop.count;
        shot_free(p[i]);
    }
    assert_int_equal(lanes, 10);
    rig_pass(r, 50);
    assert_int_equal(commands(r), c + 3);
    for (int i = 3; i < 5; i++) cancel(p[i]);
    shot_free(all);
}

static void test_nothing_is_written_while_callers_wait(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "1");
    struct shot *holder = pop_start(r, (struct pop_wish){.queue = "q", .lease_ms = 60000});
    expect_payload(holder, "1");
    struct shot *wide = poll_start(r, (struct pop_wish){.queue = "q"});
    struct shot *pinned = poll_start(r, (struct pop_wish){.queue = "q", .lane = "a"});
    struct shot *elsewhere = poll_start(r, (struct pop_wish){.queue = "q", .lane = "none", .group = "other"});
    rig_pass(r, 1500); /* what the store still had to do */
    uint64_t e = entries(r), turns = r->turns;
    rig_pass(r, 1000);
    assert_int_equal(entries(r), e);
    assert_true(r->turns - turns < 20);
    cancel(wide);
    cancel(pinned);
    cancel(elsewhere);
    shot_free(holder);
}

/* ---- time --------------------------------------------------------------------------------------------------------- */

static void test_an_empty_poll_ends_at_its_deadline(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "1");
    int64_t began_us = clock_mono_us();
    struct shot *p = poll_start(r, (struct pop_wish){.queue = "q", .group = "later", .from_new = true, .wait_ms = 400});
    assert_int_equal(shot_wait(p), CALL_EMPTY);
    int64_t took_ms = (p->done_us - began_us) / 1000;
    assert_in_range(took_ms, 290, 600);
    shot_free(p);
    assert_int_equal(parked(r), 0);
}

static void test_a_lease_that_ends_wakes_a_parked_caller(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "1");
    struct shot *holder = pop_start(r, (struct pop_wish){.queue = "q", .lease_ms = 300});
    expect_payload(holder, "1");
    struct shot *wide = poll_start(r, (struct pop_wish){.queue = "q"});
    expect_payload(wide, "1");
    assert_in_range((wide->done_us - holder->done_us) / 1000, 250, 700);
    assert_int_equal(wide->call.result.pop.claims[0].attempt, 2);
    shot_free(holder);
    shot_free(wide);
}

static void test_a_lease_that_ends_wakes_a_pinned_caller(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a,b", "1");
    struct shot *one = pop_start(r, (struct pop_wish){.queue = "q", .lane = "a", .lease_ms = 400});
    expect_payload(one, "1");
    struct shot *two = pop_start(r, (struct pop_wish){.queue = "q", .lane = "b", .lease_ms = 100});
    expect_payload(two, "1");
    /* Lane b becomes free before a and stays so: that is nothing to a caller of lane a. */
    struct shot *p = poll_start(r, (struct pop_wish){.queue = "q", .lane = "a"});
    uint64_t turns = r->turns;
    expect_payload(p, "1");
    assert_in_range((p->done_us - one->done_us) / 1000, 350, 800);
    assert_true(r->turns - turns < 30);
    shot_free(one);
    shot_free(two);
    shot_free(p);
}

static void configure_number(struct rig *r, const char *queue, enum queue_option option, int32_t value)
{
    struct shot *s = shot_new(r, CALL_WRITE);
    struct configure_command c = {.tenant = rig_tenant, .queue = slice_of(queue), .given = 1U << option};
    c.options.numbers[option] = value;
    c.options.sink_hold = c.options.name_space = c.options.task = slice_of("");
    configure_encode(&s->command, &c);
    shot_write(s, false);
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_null(s->call.result.configure.refused);
    shot_free(s);
}

static void test_a_delay_that_ends_wakes_parked_callers(void **state)
{
    struct rig *r = *state;
    configure_number(r, "q", OPTION_DELAYED_PROCESSING, 1);
    struct shot *wide = poll_start(r, (struct pop_wish){.queue = "q"});
    struct shot *pinned = poll_start(r, (struct pop_wish){.queue = "q", .lane = "a", .group = "unknown", .from_new = true});
    int64_t began_us = clock_mono_us();
    push(r, "q", "a", "1");
    uint64_t c = commands(r);
    expect_payload(wide, "1");
    expect_payload(pinned, "1");
    assert_in_range((wide->done_us - began_us) / 1000, 950, 1500);
    assert_in_range((pinned->done_us - began_us) / 1000, 950, 1500);
    assert_true(commands(r) - c <= 4);
    shot_free(wide);
    shot_free(pinned);
}

static void test_lifting_a_delay_wakes_parked_callers(void **state)
{
    struct rig *r = *state;
    configure_number(r, "q", OPTION_DELAYED_PROCESSING, 1000);
    struct shot *wide = poll_start(r, (struct pop_wish){.queue = "q"});
    struct shot *pinned = poll_start(r, (struct pop_wish){.queue = "q", .lane = "a", .group = "unknown"});
    push(r, "q", "a", "1");
    rig_pass(r, 50);
    assert_false(wide->done || pinned->done);
    configure_number(r, "q", OPTION_DELAYED_PROCESSING, 0);
    expect_payload(wide, "1");
    expect_payload(pinned, "1");
    shot_free(wide);
    shot_free(pinned);
}

/* ---- pinned ------------------------------------------------------------------------------------------------------- */

static void test_a_pinned_caller_sees_its_lane_being_created(void **state)
{
    struct rig *r = *state;
    struct shot *p = poll_start(r, (struct pop_wish){.queue = "q", .lane = "a", .group = "g", .from_new = true});
    struct shot *other = poll_start(r, (struct pop_wish){.queue = "q", .lane = "b", .group = "g", .from_new = true});
    uint64_t e = entries(r);
    push(r, "q", "a", "1");
    expect_payload(p, "1");
    assert_int_equal(entries(r), e + 1);
    assert_false(other->done);
    push(r, "q", "b", "2");
    expect_payload(other, "2");
    shot_free(p);
    shot_free(other);
}

static void test_pinned_callers_of_one_lane_take_turns(void **state)
{
    struct rig *r = *state;
    struct shot *p[3];
    for (int i = 0; i < 3; i++) p[i] = poll_start(r, (struct pop_wish){.queue = "q", .lane = "a"});
    push(r, "q", "a", "1");
    expect_payload(p[0], "1");
    push(r, "q", "a", "2");
    rig_pass(r, 30);
    assert_false(p[1]->done);
    ack(r, p[0]);
    expect_payload(p[1], "2");
    assert_false(p[2]->done);
    cancel(p[2]);
    shot_free(p[0]);
    shot_free(p[1]);
}

static void test_auto_ack_callers_of_one_lane_are_all_served(void **state)
{
    struct rig *r = *state;
    struct shot *p[5];
    for (int i = 0; i < 5; i++) p[i] = poll_start(r, (struct pop_wish){.queue = "q", .lane = "a", .auto_ack = true});
    struct shot *s[5];
    for (int i = 0; i < 5; i++) s[i] = push_start(r, "q", "a", "1");
    for (int i = 0; i < 5; i++) {
        expect_payload(p[i], "1");
        shot_wait(s[i]);
        shot_free(s[i]);
        shot_free(p[i]);
    }
}

/* ---- leaving ------------------------------------------------------------------------------------------------------ */

static void test_cancel_while_parked_or_queued(void **state)
{
    struct rig *r = *state;
    struct shot *p = poll_start(r, (struct pop_wish){.queue = "q"});
    cancel(p);
    assert_int_equal(parked(r), 0);
    uint64_t c = commands(r);
    struct shot *s = push_start(r, "q", "a", "1");
    struct shot *w = pop_start(r, (struct pop_wish){.queue = "q", .wait_ms = 1000});
    broker_cancel(r->broker, &s->call);
    broker_cancel(r->broker, &w->call);
    broker_cancel(r->broker, &w->call);
    assert_false(s->done || w->done); /* never inside broker_cancel */
    assert_int_equal(shot_wait(s), CALL_CANCELLED);
    assert_int_equal(shot_wait(w), CALL_CANCELLED);
    assert_int_equal(commands(r), c);
    shot_free(s);
    shot_free(w);
}

static void test_claims_of_a_caller_who_left_go_back(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "1");
    for (int i = 0; i < 3; i++) {
        struct shot *p = pop_start(r, (struct pop_wish){.queue = "q", .lease_ms = 60000, .wait_ms = 5000});
        cancel_in_flight(p);
    }
    struct shot *p = pop_start(r, (struct pop_wish){.queue = "q", .wait_ms = 5000});
    expect_payload(p, "1");
    assert_int_equal(p->call.result.pop.claims[0].attempt, 1);
    shot_free(p);
}

static void test_a_call_whose_entry_takes_too_long_is_answered(void **state)
{
    struct rig *r = *state;
    struct shot *w = push_start(r, "q", "a", "1");
    expire_in_flight(w);
    assert_int_equal(shot_wait(w), CALL_TIMEOUT);
    assert_int_equal(w->call.retry_after_s, 1);
    shot_free(w);
    /* The write happened all the same; a pop's claims go back. */
    struct shot *p = pop_start(r, (struct pop_wish){.queue = "q", .wait_ms = 5000, .lease_ms = 60000});
    expire_in_flight(p);
    assert_int_equal(shot_wait(p), CALL_TIMEOUT);
    shot_free(p);
    p = pop_start(r, (struct pop_wish){.queue = "q", .wait_ms = 5000});
    expect_payload(p, "1");
    assert_int_equal(p->call.result.pop.claims[0].attempt, 1);
    shot_free(p);
    /* Claims of an autoAck pop could not: it waits for its entry. */
    push(r, "q", "b", "2");
    p = pop_start(r, (struct pop_wish){.queue = "q", .wait_ms = 5000, .auto_ack = true});
    expire_in_flight(p);
    expect_payload(p, "2");
    shot_free(p);
}

static void test_writes_are_refused_when_the_queue_is_old(void **state)
{
    struct rig *r = *state;
    struct shot *first = push_start(r, "q", "a", "1");
    r->broker->queued.first->queued_us -= (int64_t)r->config.admit_hold_ms * 2000;
    struct shot *second = push_start(r, "q", "a", "1");
    struct shot *settles = shot_new(r, CALL_WRITE);
    struct extend_command e = {.tenant = rig_tenant, .seconds = 1};
    extend_encode(&settles->command, &e);
    shot_write(settles, false);
    assert_int_equal(shot_wait(second), CALL_OVERLOADED);
    assert_in_range(second->call.retry_after_s, 1, 5);
    assert_int_equal(shot_wait(first), CALL_OK);
    assert_int_equal(shot_wait(settles), CALL_OK); /* wins room back, so it is taken longer */
    shot_free(first);
    shot_free(second);
    shot_free(settles);
    push(r, "q", "a", "1");
}

static void test_claims_handed_back_wake_the_next_caller(void **state)
{
    struct rig *r = *state;
    struct shot *gone = poll_start(r, (struct pop_wish){.queue = "q"});
    struct shot *next = poll_start(r, (struct pop_wish){.queue = "q"});
    struct shot *s = push_start(r, "q", "a", "1");
    while_in_flight(gone, shot_leave);
    assert_int_equal(shot_wait(gone), CALL_CANCELLED);
    expect_payload(next, "1");
    assert_int_equal(next->call.result.pop.claims[0].attempt, 1);
    assert_int_equal(shot_wait(s), CALL_OK);
    shot_free(gone);
    shot_free(next);
    shot_free(s);
}

static void test_a_granted_caller_who_leaves_gives_its_lane_to_the_next(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "1");
    /* Both arrive in one turn: one lane, so one is granted and the other parks. The granted one leaves before it is proposed. */
    struct shot *one = pop_start(r, (struct pop_wish){.queue = "q", .wait_ms = 5000});
    struct shot *two = pop_start(r, (struct pop_wish){.queue = "q", .wait_ms = 5000});
    broker_cancel(r->broker, &one->call);
    assert_int_equal(shot_wait(one), CALL_CANCELLED);
    expect_payload(two, "1");
    shot_free(one);
    shot_free(two);
}

static void test_a_deleted_queue_keeps_its_callers(void **state)
{
    struct rig *r = *state;
    struct shot *p = poll_start(r, (struct pop_wish){.queue = "q", .group = "g", .from_new = true});
    struct shot *s = shot_new(r, CALL_WRITE);
    struct queue_delete_command d = {.tenant = rig_tenant, .queue = slice_of("q")};
    queue_delete_encode(&s->command, &d);
    shot_write(s, false);
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_true(s->call.result.queue_delete.existed);
    shot_free(s);
    rig_pass(r, 20);
    assert_false(p->done);
    push(r, "q", "a", "new life");
    expect_payload(p, "new life");
    shot_free(p);
}

/* ---- many --------------------------------------------------------------------------------------------------------- */

struct many {
    struct shot **shots;
    uint32_t count;
};

static bool all_done(void *arg)
{
    struct many *m = arg;
    while (m->count > 0 && m->shots[m->count - 1]->done) m->count--;
    return m->count == 0;
}

static void test_twenty_thousand_parked_callers_are_cheap(void **state)
{
    struct rig *r = *state;
    enum { N = 20000 };
    struct shot **p = calloc(N, sizeof p[0]);
    push(r, "q", "a", "0");
    struct shot *first = pop_start(r, (struct pop_wish){.queue = "q", .auto_ack = true});
    expect_payload(first, "0");
    shot_free(first);
    for (int i = 0; i < N; i++) p[i] = pop_start(r, (struct pop_wish){.queue = "q", .auto_ack = true, .wait_ms = 60000});
    assert_int_equal(parked(r), N);
    uint64_t c = commands(r);
    int64_t began_us = clock_mono_us();
    for (int i = 0; i < 200; i++) {
        push(r, "q", "a", "1");
        expect_payload(p[i], "1");
    }
    assert_true(clock_mono_us() - began_us < 5000000);
    assert_int_equal(commands(r), c + 400);
    assert_int_equal(parked(r), N - 200);
    for (int i = 200; i < N; i++) broker_cancel(r->broker, &p[i]->call);
    struct many m = {.shots = p, .count = N};
    assert_true(rig_run(r, all_done, &m, 20000));
    assert_int_equal(parked(r), 0);
    for (int i = 0; i < N; i++) shot_free(p[i]);
    free(p);
}

static void test_too_many_queued_calls_are_refused(void **state)
{
    struct rig *r = *state;
    enum { N = 70000 };
    struct shot **s = calloc(N, sizeof s[0]);
    for (int i = 0; i < N; i++) s[i] = push_start(r, "q", "a", "1");
    struct many m = {.shots = s, .count = N};
    assert_true(rig_run(r, all_done, &m, 60000));
    uint32_t good = 0, refused = 0;
    for (int i = 0; i < N; i++) {
        if (s[i]->call.outcome == CALL_OK) {
            good++;
        } else {
            assert_int_equal(s[i]->call.outcome, CALL_OVERLOADED);
            assert_in_range(s[i]->call.retry_after_s, 1, 5);
            refused++;
        }
        shot_free(s[i]);
    }
    free(s);
    /* Also those are refused that come when the first ones have waited too long already. Some are in flight and wait no more. */
    assert_in_range(good, 1, QUEUED_CALLS_MAX + FLIGHTS_MAX * BATCH_CALLS_EAGER);
    assert_int_equal(refused, N - good);
    assert_true(rig_numbers(r).metrics.admit_refused_total >= refused);
}

static void test_admission_is_a_budget_of_bytes(void **state)
{
    struct rig *r = *state;
    uint32_t retry_s = 0;
    uint64_t max = r->config.admit_bytes_max;
    assert_true(broker_admit(r->broker, max - 10, &retry_s));
    assert_true(broker_admit(r->broker, 10, &retry_s));
    assert_false(broker_admit(r->broker, 1, &retry_s));
    assert_in_range(retry_s, 1, 5);
    broker_admit_return(r->broker, max - 10);
    broker_admit_return(r->broker, 10);
    assert_true(broker_admit(r->broker, max * 2, &retry_s)); /* alone it may be larger */
    assert_false(broker_admit(r->broker, 1, &retry_s));
    broker_admit_return(r->broker, max * 2);
}

static void test_large_and_small_commands_mix(void **state)
{
    struct rig *r = *state;
    r->broker->config.admit_hold_ms = 60000; /* however slow the machine is */
    size_t big = 9 << 20;
    char *text = malloc(big + 1);
    memset(text, 'x', big);
    text[0] = text[big - 1] = '"';
    text[big] = '\0';
    struct shot *s[6];
    for (int i = 0; i < 6; i++) s[i] = push_start(r, "q", "a", i % 2 == 0 ? text : "\"small\"");
    for (int i = 0; i < 6; i++) {
        assert_int_equal(shot_wait(s[i]), CALL_OK);
        shot_free(s[i]);
    }
    struct shot *p = pop_start(r, (struct pop_wish){.queue = "q", .batch = 2});
    assert_int_equal(shot_wait(p), CALL_OK);
    assert_int_equal(p->call.result.pop.messages, 2);
    assert_int_equal(pop_payload(p, 0).len, big);
    assert_payload(p, 1, "\"small\"");
    shot_free(p);
    free(text);
}

/* ---- restart, damage, stop ---------------------------------------------------------------------------------------- */

static void test_restart_keeps_leases_and_delivers_old_payloads(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "\"old\"");
    push(r, "q", "b", "\"leased\"");
    struct shot *p = pop_start(r, (struct pop_wish){.queue = "q", .lane = "b", .lease_ms = 60000});
    expect_payload(p, "\"leased\"");
    struct uuid lease = p->call.pop.lease_id;
    shot_free(p);
    rig_close(r);
    rig_open(r);
    struct shot *old = pop_start(r, (struct pop_wish){.queue = "q", .batch = 10, .partitions = 10});
    expect_payload(old, "\"old\"");
    shot_free(old);
    struct shot *s = shot_new(r, CALL_WRITE);
    struct extend_command e = {.tenant = rig_tenant, .lease = lease, .seconds = 60};
    extend_encode(&s->command, &e);
    shot_write(s, false);
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_int_equal(s->call.result.extend.renewed, 1);
    shot_free(s);
}

static void test_what_was_answered_survives_an_abrupt_end(void **state)
{
    struct rig *r = *state;
    for (int i = 0; i < 50; i++) push(r, "q", "a", "1");
    rig_abandon(r);
    rig_open(r);
    struct shot *p = pop_start(r, (struct pop_wish){.queue = "q", .batch = 100});
    assert_int_equal(shot_wait(p), CALL_OK);
    assert_int_equal(p->call.result.pop.messages, 50);
    shot_free(p);
}

static void fill_segments(struct rig *r, int megabytes)
{
    char *text = malloc((256 << 10) + 1);
    memset(text, 'x', 256 << 10);
    text[0] = text[(256 << 10) - 1] = '"';
    text[256 << 10] = '\0';
    for (int i = 0; i < megabytes * 4; i++) push(r, "filler", "f", text);
    free(text);
}

static void test_a_damaged_payload_is_not_delivered(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "\"precious-payload\"");
    fill_segments(r, 3);
    rig_close(r);
    r->config.cache_bytes = 1 << 20;
    rig_open(r);
    /* Flip a byte of the payload in its segment file, behind the broker's back. */
    char path[4200], block[65536];
    snprintf(path, sizeof path, "%s/log/%016x.seg", r->config.dir, 0);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    bool found = false;
    for (off_t at = 0; !found; at += (off_t)sizeof block / 2) {
        ssize_t n = pread(fd, block, sizeof block, at);
        assert_true(n > 0);
        char *hit = memmem(block, (size_t)n, "precious-payload", 16);
        if (hit == NULL) continue;
        found = true;
        assert_int_equal(pwrite(fd, "X", 1, at + (hit - block)), 1);
    }
    assert_int_equal(fsync(fd), 0);
    logger_init(LOGGER_ERROR, false);
    struct shot *p = pop_start(r, (struct pop_wish){.queue = "q"});
    assert_int_equal(shot_wait(p), CALL_DAMAGED);
    shot_free(p);
    logger_init(LOGGER_ERROR, false);
    close(fd);
}

static void test_a_missing_segment_is_named_at_start(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "\"keep\"");
    fill_segments(r, 4);
    rig_close(r);
    char path[4200];
    snprintf(path, sizeof path, "%s/log/%016x.seg", r->config.dir, 0);
    assert_int_equal(unlink(path), 0);
    struct buf error = {0};
    assert_int_equal(rig_open_only(r, &error), 2);
    buf_byte(&error, '\0');
    assert_non_null(strstr(error.at, "0000000000000000.seg"));
    buf_free(&error);
}

static uint32_t segment_files(const struct rig *r)
{
    char path[4200];
    uint32_t n = 0;
    snprintf(path, sizeof path, "%s/log", r->config.dir);
    DIR *d = opendir(path);
    must(d != NULL);
    for (struct dirent *e; (e = readdir(d)) != NULL;) n += strstr(e->d_name, ".seg") != NULL;
    closedir(d);
    return n;
}

static void test_the_log_shrinks_when_all_is_consumed(void **state)
{
    struct rig *r = *state;
    fill_segments(r, 12);
    rig_pass(r, 1500);
    assert_true(segment_files(r) >= 12);
    struct shot *s = shot_new(r, CALL_WRITE);
    struct queue_delete_command d = {.tenant = rig_tenant, .queue = slice_of("filler")};
    queue_delete_encode(&s->command, &d);
    shot_write(s, false);
    assert_int_equal(shot_wait(s), CALL_OK);
    shot_free(s);
    for (int i = 0; i < 50 && segment_files(r) > 5; i++) {
        push(r, "q", "a", "1");
        rig_pass(r, 200);
    }
    assert_true(segment_files(r) <= 5);
}

static void test_a_directory_serves_one_process(void **state)
{
    struct rig *r = *state;
    struct rig second = {.config = r->config};
    struct buf error = {0};
    assert_int_equal(rig_open_only(&second, &error), 2);
    buf_byte(&error, '\0');
    assert_non_null(strstr(error.at, "in use"));
    buf_free(&error);
}

static void test_not_ready_not_served(void **state)
{
    struct rig *r = *state;
    rig_close(r);
    struct buf error = {0};
    assert_int_equal(rig_open_only(r, &error), 0);
    assert_false(broker_ready(r->broker));
    struct shot *s = push_start(r, "q", "a", "1"), *p = pop_start(r, (struct pop_wish){.queue = "q", .wait_ms = 5000});
    assert_int_equal(shot_wait(s), CALL_NO_LEADER);
    assert_int_equal(shot_wait(p), CALL_NO_LEADER);
    assert_int_equal(s->call.retry_after_s, 1);
    shot_free(s);
    shot_free(p);
    assert_true(rig_run(r, rig_is_ready, r, 10000));
}

static void test_stop_answers_everybody(void **state)
{
    struct rig *r = *state;
    struct shot *p = poll_start(r, (struct pop_wish){.queue = "q"});
    struct shot *s[20];
    for (int i = 0; i < 20; i++) s[i] = push_start(r, "other", "a", "1");
    broker_stop(r->broker, rig_stopped, r);
    struct shot *late = push_start(r, "other", "a", "2");
    assert_true(rig_run(r, rig_is_stopped, r, 15000));
    assert_true(p->done && late->done);
    assert_int_equal(p->call.outcome, CALL_EMPTY);
    assert_int_equal(late->call.outcome, CALL_NO_LEADER);
    shot_free(p);
    shot_free(late);
    for (int i = 0; i < 20; i++) {
        assert_true(s[i]->done);
        assert_int_equal(s[i]->call.outcome, CALL_OK);
        shot_free(s[i]);
    }
    broker_close(r->broker);
    loop_free(r->loop);
    rig_open(r);
    /* Everything was flushed: nothing is replayed but what a start writes itself. */
    struct shot *q = pop_start(r, (struct pop_wish){.queue = "other", .batch = 100});
    assert_int_equal(shot_wait(q), CALL_OK);
    assert_int_equal(q->call.result.pop.messages, 20);
    shot_free(q);
}

static void test_a_full_disk_refuses_pushes_only(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "1");
    rig_close(r);
    r->config.disk_high_pct = 1; /* of a disk that surely holds more */
    r->config.disk_low_pct = 1;
    logger_init(LOGGER_ERROR, false);
    rig_open(r);
    struct shot *s = push_start(r, "q", "a", "2");
    assert_int_equal(shot_wait(s), CALL_STORAGE_FULL);
    shot_free(s);
    struct broker_health h;
    broker_health(r->broker, &h);
    assert_true(h.ready && h.leader && !h.storage_ready);
    struct shot *p = pop_start(r, (struct pop_wish){.queue = "q"});
    expect_payload(p, "1");
    ack(r, p);
    shot_free(p);
    logger_init(LOGGER_ERROR, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_rig(test_push_pop_ack),
        with_rig(test_calls_of_one_turn_share_an_entry),
        with_rig(test_a_pop_registers_its_group_and_then_waits),
        with_rig(test_auto_ack_leaves_the_lane_open),
        with_rig(test_discovery_never_waits),
        with_rig(test_autopilot_leaves_conflating_groups_alone),
        with_rig(test_push_hands_off_in_the_same_entry),
        with_rig(test_push_to_a_new_lane_hands_off_to_every_group),
        with_rig(test_as_many_are_woken_as_there_are_lanes),
        with_rig(test_the_oldest_caller_is_served_first),
        with_rig(test_ack_hands_off_in_the_same_entry),
        with_rig(test_a_failed_ack_wakes_a_parked_caller),
        with_rig(test_parked_callers_take_only_their_share_of_ready_lanes),
        with_rig(test_nothing_is_written_while_callers_wait),
        with_rig(test_an_empty_poll_ends_at_its_deadline),
        with_rig(test_a_lease_that_ends_wakes_a_parked_caller),
        with_rig(test_a_lease_that_ends_wakes_a_pinned_caller),
        with_rig(test_a_delay_that_ends_wakes_parked_callers),
        with_rig(test_lifting_a_delay_wakes_parked_callers),
        with_rig(test_a_pinned_caller_sees_its_lane_being_created),
        with_rig(test_pinned_callers_of_one_lane_take_turns),
        with_rig(test_auto_ack_callers_of_one_lane_are_all_served),
        with_rig(test_cancel_while_parked_or_queued),
        with_rig(test_claims_of_a_caller_who_left_go_back),
        with_rig(test_a_call_whose_entry_takes_too_long_is_answered),
        with_rig(test_writes_are_refused_when_the_queue_is_old),
        with_rig(test_claims_handed_back_wake_the_next_caller),
        with_rig(test_a_granted_caller_who_leaves_gives_its_lane_to_the_next),
        with_rig(test_a_deleted_queue_keeps_its_callers),
        with_rig(test_twenty_thousand_parked_callers_are_cheap),
        with_rig(test_too_many_queued_calls_are_refused),
        with_rig(test_admission_is_a_budget_of_bytes),
        with_rig(test_large_and_small_commands_mix),
        with_rig(test_restart_keeps_leases_and_delivers_old_payloads),
        with_rig(test_what_was_answered_survives_an_abrupt_end),
        with_rig(test_a_damaged_payload_is_not_delivered),
        with_rig(test_a_missing_segment_is_named_at_start),
        with_rig(test_the_log_shrinks_when_all_is_consumed),
        with_rig(test_a_directory_serves_one_process),
        with_rig(test_not_ready_not_served),
        with_rig(test_stop_answers_everybody),
        with_rig(test_a_full_disk_refuses_pushes_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
