/* The broker's parts that need no broker: times of entries, the hash table, the order of parked callers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "broker/broker_internal.h"

#define SECOND INT64_C(1000000)
#define WALL INT64_C(1900000000000000)

static struct entry_head take(struct stamps *s, int64_t mono_us, int64_t wall_us, uint32_t count, enum stamp_skew skew)
{
    struct entry_head h;
    struct entry_head before = s->last;
    struct clocks c = {.mono_us = mono_us, .wall_us = wall_us};
    struct engine_now now = stamps_now(s, c);
    assert_int_equal(stamps_take(s, c, count, &h), skew);
    assert_int_equal(h.log_us, now.log_us);
    assert_int_equal(h.wall_us, now.wall_us);
    assert_true(h.log_us >= before.log_us);
    assert_true(h.wall_us > before.wall_us + before.count);
    return h;
}

static void test_a_new_log_starts_at_wall_time(void **state)
{
    (void)state;
    struct stamps s;
    struct entry_head none = {0};
    stamps_start(&s, &none, 7, 0, (struct clocks){.mono_us = 50 * SECOND, .wall_us = WALL});
    struct entry_head h = take(&s, 51 * SECOND, WALL + SECOND, 3, STAMP_FINE);
    assert_int_equal(h.log_us, WALL + SECOND);
    assert_int_equal(h.wall_us, WALL + SECOND);
    assert_int_equal(h.clock_id, 7);
    assert_int_equal(h.clock_us, 51 * SECOND);
    assert_int_equal(h.count, 3);
}

static void test_log_time_counts_a_restart_on_the_same_boot_only(void **state)
{
    (void)state;
    struct entry_head last = {.count = 1, .log_us = 1000, .wall_us = WALL, .clock_id = 7, .clock_us = 100 * SECOND};
    struct stamps s;
    stamps_start(&s, &last, 7, 0, (struct clocks){.mono_us = 130 * SECOND, .wall_us = WALL + 30 * SECOND});
    assert_int_equal(take(&s, 131 * SECOND, WALL + 31 * SECOND, 1, STAMP_FINE).log_us, 1000 + 31 * SECOND);
    stamps_start(&s, &last, 8, 0, (struct clocks){.mono_us = 5 * SECOND, .wall_us = WALL + 3000 * SECOND});
    assert_int_equal(take(&s, 6 * SECOND, WALL + 3001 * SECOND, 1, STAMP_FINE).log_us, 1000 + SECOND);
    /* A boot id that lies (a copied directory): never back. */
    stamps_start(&s, &last, 7, 0, (struct clocks){.mono_us = 5 * SECOND, .wall_us = WALL + 3000 * SECOND});
    assert_int_equal(take(&s, 6 * SECOND, WALL + 3001 * SECOND, 1, STAMP_FINE).log_us, 1000 + SECOND);
}

static void test_wall_time_never_stands_still_nor_goes_back(void **state)
{
    (void)state;
    struct entry_head last = {.count = 10, .log_us = 1000, .wall_us = WALL, .clock_id = 7, .clock_us = 0};
    struct stamps s;
    stamps_start(&s, &last, 7, 0, (struct clocks){.mono_us = 0, .wall_us = WALL});
    /* Same instant: behind the last entry's commands. */
    assert_int_equal(take(&s, 0, WALL, 5, STAMP_FINE).wall_us, WALL + 11);
    /* An hour back: it goes on with the monotonic clock. */
    int64_t back = WALL - 3600 * SECOND;
    assert_int_equal(take(&s, 10 * SECOND, back + 10 * SECOND, 1, STAMP_WALL_BEHIND).wall_us, WALL + 11 + 10 * SECOND);
    assert_int_equal(take(&s, 20 * SECOND, back + 20 * SECOND, 1, STAMP_WALL_BEHIND).wall_us, WALL + 11 + 20 * SECOND);
    /* Set right again: the wall clock counts. */
    assert_int_equal(take(&s, 30 * SECOND, WALL + 31 * SECOND, 1, STAMP_FINE).wall_us, WALL + 31 * SECOND);
    /* An hour ahead: taken over, and said. Leases run on. */
    struct entry_head h = take(&s, 31 * SECOND, WALL + 3600 * SECOND, 1, STAMP_WALL_JUMPED);
    assert_int_equal(h.wall_us, WALL + 3600 * SECOND);
    assert_int_equal(h.log_us, 1000 + 31 * SECOND);
    /* A monotonic clock that stands or errs does no harm. */
    take(&s, 31 * SECOND, WALL + 3600 * SECOND, 1, STAMP_FINE);
    take(&s, 30 * SECOND, WALL + 3600 * SECOND, 1, STAMP_FINE);
}

static void test_stamps_rise_whatever_the_clocks_do(void **state)
{
    (void)state;
    struct entry_head none = {0};
    struct stamps s;
    int64_t mono = 0, wall = WALL;
    srand(7);
    stamps_start(&s, &none, 1, 0, (struct clocks){.mono_us = mono, .wall_us = wall});
    int64_t log_start = 0;
    for (int i = 0; i < 10000; i++) {
        mono += rand() % 1000000;
        wall += rand() % 10000000 - 5000000;
        struct entry_head h, before = s.last;
        stamps_take(&s, (struct clocks){.mono_us = mono, .wall_us = wall}, 1 + (uint32_t)rand() % 5, &h);
        if (i == 0) log_start = h.log_us - mono;
        assert_int_equal(h.log_us, log_start + mono);
        assert_true(h.wall_us > before.wall_us + before.count);
        /* It is never further behind real time than the wall clock itself. */
        assert_true(h.wall_us >= wall);
    }
}

struct thing {
    struct hash_node node;
    uint32_t value;
    bool in;
};

static void test_hash_table(void **state)
{
    (void)state;
    enum { N = 2000 };
    struct thing *things = calloc(N, sizeof things[0]);
    struct hash_table t = {0};
    uint32_t count = 0;
    assert_null(hash_table_find(&t, 1));
    srand(11);
    for (int step = 0; step < 40000; step++) {
        uint32_t i = (uint32_t)rand() % N;
        uint64_t hash = i % 500; /* four things share each hash */
        things[i].value = i;
        if (things[i].in) {
            hash_table_remove(&t, &things[i].node);
            count--;
        } else {
            hash_table_put(&t, &things[i].node, hash);
            count++;
        }
        things[i].in = !things[i].in;
        assert_int_equal(t.count, count);
        uint32_t found = 0, expected = 0;
        for (uint32_t k = (uint32_t)hash; k < N; k += 500) expected += things[k].in;
        for (struct hash_node *n = hash_table_find(&t, hash); n != NULL; n = hash_table_again(n)) {
            assert_int_equal(owner_of(n, struct thing, node)->value % 500, hash);
            found++;
        }
        assert_int_equal(found, expected);
    }
    hash_table_free(&t);
    free(things);
}

static void expect_order(const struct call_list *l, const uint64_t *arrivals, uint32_t count)
{
    uint32_t i = 0;
    const struct call *previous = NULL;
    for (const struct call *c = l->first; c != NULL; previous = c, c = c->next, i++) {
        assert_true(i < count);
        assert_int_equal(c->arrival, arrivals[i]);
        assert_ptr_equal(c->previous, previous);
    }
    assert_int_equal(i, count);
    assert_ptr_equal(l->last, previous);
    assert_int_equal(l->count, count);
}

static void test_a_caller_parks_again_in_its_old_place(void **state)
{
    (void)state;
    struct call *calls = calloc(300, sizeof calls[0]);
    struct call_list l = {0};
    for (uint32_t i = 0; i < 5; i++) {
        calls[i].arrival = i + 1;
        call_list_put_ordered(&l, &calls[i]);
    }
    expect_order(&l, (const uint64_t[]){1, 2, 3, 4, 5}, 5);
    call_list_remove(&calls[0]);
    call_list_remove(&calls[1]);
    call_list_put_ordered(&l, &calls[1]);
    call_list_put_ordered(&l, &calls[0]);
    expect_order(&l, (const uint64_t[]){1, 2, 3, 4, 5}, 5);
    call_list_remove(&calls[4]);
    call_list_remove(&calls[2]);
    call_list_put_ordered(&l, &calls[4]);
    call_list_put_ordered(&l, &calls[2]);
    expect_order(&l, (const uint64_t[]){1, 2, 3, 4, 5}, 5);
    /* Newcomers go to the end however many wait: the walk from the front is bounded. */
    for (uint32_t i = 5; i < 300; i++) {
        calls[i].arrival = i + 1;
        call_list_put_ordered(&l, &calls[i]);
        assert_ptr_equal(l.last, &calls[i]);
    }
    while (l.first != NULL) call_list_remove(l.first);
    expect_order(&l, NULL, 0);
    free(calls);
}

/* ---- pace ----------------------------------------------------------------------------------------------------------- */

static void test_a_step_with_nothing_else_is_followed_at_once(void **state)
{
    struct pace p = {0};
    (void)state;
    assert_true(pace_due_us(&p, 0) <= PACE_PAUSE_US_MIN);
    pace_begin(&p, 1000000);
    pace_end(&p, 1003000, 3000);
    assert_int_equal(pace_due_us(&p, 999999), 1003000);
}

static void test_others_get_most_of_the_time(void **state)
{
    struct pace p = {0};
    (void)state;
    pace_begin(&p, 1000000);
    pace_end(&p, 1003000, 3000);
    assert_int_equal(pace_due_us(&p, 1000000), 1003000 + 3000 * PACE_PAUSES); /* it came beside the step */
    assert_int_equal(pace_due_us(&p, 1009999), 1003000 + 3000 * PACE_PAUSES); /* or behind it */
    pace_end(&p, 1003000, 1);
    assert_int_equal(pace_due_us(&p, 1000000), 1003000 + PACE_PAUSE_US_MIN);
    pace_end(&p, 1003000, 10000000); /* the machine slept */
    assert_int_equal(pace_due_us(&p, 1000000), 1003000 + PACE_PAUSE_US_MAX);
}

static void test_a_step_that_does_not_end_is_not_waited_for_for_ever(void **state)
{
    struct pace p = {.ended_us = 500000, .took_us = 3000};
    (void)state;
    pace_begin(&p, 1000000);
    assert_int_equal(pace_due_us(&p, 0), 1000000 + PACE_PAUSE_US_MAX);
    assert_int_equal(pace_due_us(&p, 1000001), 1000000 + PACE_PAUSE_US_MAX);
}

static void test_steps_are_small_until_it_is_quiet(void **state)
{
    (void)state;
    assert_true(pace_is_small(1000000, 1000000));
    assert_true(pace_is_small(1000000 + PACE_QUIET_US - 1, 1000000));
    assert_false(pace_is_small(1000000 + PACE_QUIET_US, 1000000));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_new_log_starts_at_wall_time),
        cmocka_unit_test(test_log_time_counts_a_restart_on_the_same_boot_only),
        cmocka_unit_test(test_wall_time_never_stands_still_nor_goes_back),
        cmocka_unit_test(test_stamps_rise_whatever_the_clocks_do),
        cmocka_unit_test(test_hash_table),
        cmocka_unit_test(test_a_caller_parks_again_in_its_old_place),
        cmocka_unit_test(test_a_step_with_nothing_else_is_followed_at_once),
        cmocka_unit_test(test_others_get_most_of_the_time),
        cmocka_unit_test(test_a_step_that_does_not_end_is_not_waited_for_for_ever),
        cmocka_unit_test(test_steps_are_small_until_it_is_quiet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
