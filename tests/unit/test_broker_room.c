/* Batches and answers that nobody takes have one share of memory: further ones wait for room, in order, and give their claims back when
 * their time is up; small ones go past; reads are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "test_broker_rig.h"

enum { PAYLOAD_BYTES = 600000, LANES = 6, ROOM_BYTES = 2 << 20 };

static int room_setup(void **state)
{
    rig_setup(state);
    struct rig *r = *state;
    static char payload[PAYLOAD_BYTES];
    rig_close(r);
    r->config.memory.answers = ROOM_BYTES; /* two large batches leave the quarter that they may not take */
    rig_open(r);
    memset(payload, '1', sizeof payload - 1);
    for (char lane[] = "a"; lane[0] < 'a' + LANES; lane[0]++) push(r, "q", lane, payload);
    push(r, "small", "a", "1");
    return 0;
}

#define with_room(f) cmocka_unit_test_setup_teardown(f, room_setup, rig_teardown)

static struct shot *large(struct rig *r, int64_t deadline_ms)
{
    struct shot *s = shot_new(r, CALL_POP);
    s->call.pop = pop_of((struct pop_wish){.queue = "q", .group = "g", .lease_ms = 60000});
    s->call.counts = true;
    s->call.deadline_us = clock_mono_us() + deadline_ms * 1000;
    broker_submit(r->broker, &s->call);
    return s;
}

static uint64_t answers(struct rig *r)
{
    return rig_numbers(r).metrics.answer_bytes;
}

static void sent(struct shot *s)
{
    broker_pieces_release(s->rig->broker, &s->call);
    broker_answer_held(&s->call, 0);
    shot_free(s);
}

static void turns(struct rig *r, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) rig_numbers(r);
}

static void batches_wait_until_others_were_sent(void **state)
{
    struct rig *r = *state;
    struct shot *first = large(r, 20000), *second = large(r, 20000);
    assert_int_equal(shot_wait(first), CALL_OK);
    assert_int_equal(shot_wait(second), CALL_OK);
    assert_in_range(answers(r), 2 * PAYLOAD_BYTES, 2 * PAYLOAD_BYTES + 4096);
    struct shot *third = large(r, 20000), *fourth = large(r, 20000);
    turns(r, 20);
    assert_false(third->done || fourth->done);
    sent(first);
    assert_int_equal(shot_wait(third), CALL_OK);
    turns(r, 20);
    assert_false(fourth->done);
    sent(third);
    assert_int_equal(shot_wait(fourth), CALL_OK);
    assert_int_equal(pop_payload(fourth, 0).len, PAYLOAD_BYTES - 1);
    sent(second);
    sent(fourth);
    assert_int_equal(answers(r), 0);
}

static void an_answer_counts_as_it_is(void **state)
{
    struct rig *r = *state;
    struct shot *s = large(r, 20000);
    assert_int_equal(shot_wait(s), CALL_OK);
    broker_answer_held(&s->call, 100000);
    assert_int_equal(answers(r), 100000);
    broker_answer_held(&s->call, 900000);
    assert_int_equal(answers(r), 900000);
    broker_answer_held(&s->call, 100); /* so little is not counted */
    assert_int_equal(answers(r), 0);
    sent(s);
}

static void small_batches_go_past(void **state)
{
    struct rig *r = *state;
    struct shot *first = large(r, 20000), *second = large(r, 20000), *third = large(r, 20000);
    assert_int_equal(shot_wait(second), CALL_OK);
    struct shot *s = shot_new(r, CALL_POP);
    s->call.pop = pop_of((struct pop_wish){.queue = "small", .group = "g", .lease_ms = 60000});
    s->call.counts = true;
    broker_submit(r->broker, &s->call);
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_false(third->done);
    sent(s);
    sent(first);
    sent(second);
    assert_int_equal(shot_wait(third), CALL_OK);
    sent(third);
}

static void claims_go_back_when_there_is_no_room_in_time(void **state)
{
    struct rig *r = *state;
    struct shot *first = large(r, 20000), *second = large(r, 20000);
    assert_int_equal(shot_wait(first), CALL_OK);
    assert_int_equal(shot_wait(second), CALL_OK);
    struct shot *third = large(r, 50);
    assert_int_equal(shot_wait(third), CALL_TIMEOUT);
    sent(third);
    sent(first);
    sent(second);
    struct shot *all[LANES - 2];
    for (int i = 0; i < LANES - 2; i++) { /* also what the third one had claimed */
        all[i] = large(r, 20000);
        assert_int_equal(shot_wait(all[i]), CALL_OK);
        assert_int_equal(all[i]->call.result.pop.messages, 1);
        sent(all[i]);
    }
    assert_int_equal(answers(r), 0);
}

static void a_caller_that_leaves_gives_its_claims_back(void **state)
{
    struct rig *r = *state;
    struct shot *first = large(r, 20000), *second = large(r, 20000);
    assert_int_equal(shot_wait(first), CALL_OK);
    assert_int_equal(shot_wait(second), CALL_OK);
    struct shot *third = large(r, 20000);
    turns(r, 20);
    broker_cancel(r->broker, &third->call);
    assert_int_equal(shot_wait(third), CALL_CANCELLED);
    shot_free(third);
    sent(first);
    sent(second);
    uint32_t got = 0;
    for (int i = 0; i < LANES - 2; i++) {
        struct shot *s = large(r, 20000);
        assert_int_equal(shot_wait(s), CALL_OK);
        got += s->call.result.pop.messages;
        sent(s);
    }
    assert_int_equal(got, LANES - 2);
}

static void answer_much(struct call *c, struct engine *e, struct engine_now now)
{
    (void)e, (void)now;
    memset(buf_reserve(&c->answer, ROOM_BYTES), 'x', ROOM_BYTES);
    c->answer.len = ROOM_BYTES;
}

static struct shot *reading(struct rig *r, bool always)
{
    struct shot *s = shot_new(r, CALL_READ);
    s->call.read = answer_much;
    s->call.counts = true;
    s->call.always = always;
    broker_submit(r->broker, &s->call);
    return s;
}

static void reads_are_refused_while_answers_fill_their_share(void **state)
{
    struct rig *r = *state;
    struct shot *first = reading(r, false);
    assert_int_equal(shot_wait(first), CALL_OK);
    assert_true(answers(r) >= ROOM_BYTES);
    struct shot *second = reading(r, false);
    assert_int_equal(shot_wait(second), CALL_OVERLOADED);
    assert_true(second->call.retry_after_s >= 1);
    struct shot *third = reading(r, true); /* those of operators are not */
    assert_int_equal(shot_wait(third), CALL_OK);
    sent(first);
    sent(third);
    sent(second);
    second = reading(r, false);
    assert_int_equal(shot_wait(second), CALL_OK);
    sent(second);
    assert_int_equal(answers(r), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_room(batches_wait_until_others_were_sent),
        with_room(an_answer_counts_as_it_is),
        with_room(small_batches_go_past),
        with_room(claims_go_back_when_there_is_no_room_in_time),
        with_room(a_caller_that_leaves_gives_its_claims_back),
        with_room(reads_are_refused_while_answers_fill_their_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
