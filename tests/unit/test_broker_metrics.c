/* What the broker's numbers say of timers that could not fire in time, and of what it did by itself. */
#include "test_broker_rig.h"

static void timer_schedule(struct rig *r, const char *key, const char *lane, int64_t delay_ms)
{
    struct shot *s = shot_new(r, CALL_WRITE);
    timer_encode(&s->command, "timers", key, lane, delay_ms);
    shot_write(s, true);
    assert_int_equal(shot_wait(s), CALL_OK);
    shot_free(s);
}

static bool both_fired(void *arg)
{
    struct rig *r = arg;
    return r->broker->timers_fired_total == 2;
}

static void test_due_timers_are_told_until_they_fire(void **state)
{
    struct rig *r = *state;
    r->broker->ticker.proposed = true; /* as if a tick were on its way for long */
    timer_schedule(r, "a", "p", 1);
    timer_schedule(r, "b", "p", 30);
    timer_schedule(r, "c", "p", 600000);
    rig_pass(r, 100);
    struct broker_metrics m = rig_numbers(r).metrics;
    assert_int_equal(m.engine.timers, 3);
    assert_int_equal(m.timers_due, 2);
    assert_in_range(m.timer_overdue_us, 70000, 30000000);
    assert_int_equal(m.timers_fired_total, 0);
    assert_int_equal(m.ticks_total, 0);
    ticker_flight_gone(r->broker);
    inbox_kick(r->broker);
    assert_true(rig_run(r, both_fired, r, 5000));
    m = rig_numbers(r).metrics;
    assert_int_equal(m.engine.timers, 1);
    assert_int_equal(m.timers_due, 0);
    assert_int_equal(m.timer_overdue_us, 0);
    assert_int_equal(m.timers_duplicate_total, 0);
    assert_in_range(m.timer_late_us, 40000, 30000000); /* of b, the later one */
    assert_true(m.ticks_total >= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_rig(test_due_timers_are_told_until_they_fire),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
