/* How old delivered messages were, by queue and minute; and what the engine tells of a tenant's rows. */
#include "engine_kit.h"

#include "broker/broker_internal.h"

enum { MINUTE = 60000000 };

struct lags {
    struct kit kit;
    struct broker *b;
};

static void lags_open(struct lags *l)
{
    kit_open(&l->kit);
    l->b = calloc(1, sizeof *l->b);
    assert_non_null(l->b);
    l->b->engine = l->kit.e;
    l->b->mono_us = 100 * (int64_t)MINUTE;
}

static void lags_close(struct lags *l)
{
    pop_lag_free(l->b);
    free(l->b);
    kit_close(&l->kit);
}

/* A delivery of `count` messages of this age from the lane with this number. */
static void deliver(struct lags *l, uint32_t partition, uint32_t count, int64_t age_us)
{
    struct delivery_piece piece = {.count = count, .created_us = 5000000000 - age_us};
    struct claim claim = {.partition = partition, .message_count = count, .pieces = &piece, .piece_count = 1};
    struct call c = {.wall_us = 5000000000, .pop = {.tenant = KIT_TENANT}};
    c.result.pop.claims = &claim;
    c.result.pop.count = 1;
    pop_lag_count(l->b, &c);
}

static void told(struct lags *l, uint32_t queue, uint64_t average_us, uint64_t max_us)
{
    struct pop_lag lag;
    assert_true(broker_pop_lag(l->b, queue, &lag));
    assert_int_equal(lag.average_us, average_us);
    assert_int_equal(lag.max_us, max_us);
}

static void not_told(struct lags *l, uint32_t queue)
{
    struct pop_lag lag;
    assert_false(broker_pop_lag(l->b, queue, &lag));
}

static void lags_are_by_queue_weighted_by_messages(void **state)
{
    struct lags l;
    (void)state;
    lags_open(&l);
    kit_push(&l.kit, "a", "p", "x");
    kit_push(&l.kit, "b", "p", "x");
    kit_push(&l.kit, "a", "q", "x");
    not_told(&l, 1);
    deliver(&l, 1, 1, 900);
    deliver(&l, 3, 3, 100);
    deliver(&l, 2, 1, 7);
    told(&l, 1, 300, 900);
    told(&l, 2, 7, 7);
    not_told(&l, 3);
    deliver(&l, 2, 1, -50); /* a clock that was set back: no negative ages */
    told(&l, 2, 3, 7);
    deliver(&l, 99, 1, 5); /* a lane that is gone */
    lags_close(&l);
}

static void what_was_delivered_is_told_for_one_to_two_minutes(void **state)
{
    struct lags l;
    (void)state;
    lags_open(&l);
    kit_push(&l.kit, "a", "p", "x");
    kit_push(&l.kit, "b", "p", "x");
    deliver(&l, 1, 1, 1000);
    deliver(&l, 2, 1, 10);
    l.b->mono_us += MINUTE;
    told(&l, 1, 1000, 1000);
    deliver(&l, 1, 1, 500);
    told(&l, 1, 750, 1000);
    l.b->mono_us += MINUTE;
    told(&l, 1, 500, 500);
    not_told(&l, 2);
    assert_int_equal(l.b->pop_lags.queues.count, 1);
    l.b->mono_us += MINUTE;
    not_told(&l, 1);
    assert_int_equal(l.b->pop_lags.queues.count, 0);
    deliver(&l, 1, 1, 1000);
    l.b->mono_us += 2 * (int64_t)MINUTE; /* nobody looked in between */
    not_told(&l, 1);
    lags_close(&l);
}

static void put(struct kit *k, struct uuid tenant, const char *name_space, const char *key, const char *value)
{
    struct kv_op op = {
        .kind = KV_PUT, .name_space = slice_of(name_space), .key = slice_of(key), .value = slice_of(value), .ttl_us = 1000000};
    struct buf b = {0};
    size_t at = kv_begin(&b, tenant, 1);
    kv_op_add(&b, &op);
    kv_end(&b, at);
    kit_do(k, &b);
}

static void rows_of_tenants_and_permits_are_counted(void **state)
{
    struct uuid last;
    struct kit k;
    struct tenant_rows rows;
    struct engine_stats stats;
    (void)state;
    memset(last.bytes, 0xff, sizeof last.bytes);
    kit_open(&k);
    engine_tenant_rows(k.e, last, &rows);
    assert_int_equal(rows.kv_rows + rows.kv_bytes + rows.timers, 0);
    put(&k, last, "ns", "key", "12");
    put(&k, last, LOCK_NAME_SPACE, "l#0", "{}");
    put(&k, last, "queen-lock", "l#0", "{}");
    engine_tenant_rows(k.e, last, &rows);
    assert_int_equal(rows.kv_rows, 3);
    assert_int_equal(rows.kv_bytes, 7 + 11 + 5 + 10 + 5);
    put(&k, KIT_TENANT, "ns", "key", "1");
    engine_tenant_rows(k.e, last, &rows);
    assert_int_equal(rows.kv_rows, 3);
    assert_int_equal(rows.kv_bytes, 0);
    engine_tenant_rows(k.e, KIT_TENANT, &rows);
    assert_int_equal(rows.kv_rows, 1);
    engine_stats(k.e, &stats);
    assert_int_equal(stats.lock_rows, 1);
    kit_cut(&k);
    kit_reload(&k, engine_applied_index(k.e));
    engine_stats(k.e, &stats);
    assert_int_equal(stats.lock_rows, 1);
    assert_int_equal(stats.timer_first_us, 0);
    kit_pass(&k, 2000000);
    put(&k, KIT_TENANT, "ns", "new", "1"); /* sweeps */
    while (engine_housekeep(k.e)) continue;
    engine_stats(k.e, &stats);
    assert_int_equal(stats.lock_rows, 0);
    assert_int_equal(stats.kv_rows, 1);
    kit_close(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lags_are_by_queue_weighted_by_messages),
        cmocka_unit_test(what_was_delivered_is_told_for_one_to_two_minutes),
        cmocka_unit_test(rows_of_tenants_and_permits_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
