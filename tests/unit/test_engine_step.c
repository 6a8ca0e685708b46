/* The engine: KV, timers, locks and steps. */
#include "engine_kit.h"

#include "engine/row.h"

/* ---- KV ---- */

static struct kv_op kv_of(enum kv_op_kind kind, const char *key, const char *value)
{
    return (struct kv_op){.kind = (uint8_t)kind,
                          .name_space = slice_of("ns"),
                          .key = slice_of(key),
                          .value = slice_of(value == NULL ? "" : value)};
}

static struct kv_op expecting(struct kv_op op, uint64_t version)
{
    op.flags |= KV_EXPECT;
    op.expect = version;
    return op;
}

static struct kv_op required(struct kv_op op)
{
    op.flags |= KV_REQUIRED;
    return op;
}

static void kv_put_ops(struct buf *b, const struct kv_op *ops, uint32_t count)
{
    size_t at = kv_begin(b, KIT_TENANT, count);
    for (uint32_t i = 0; i < count; i++) kv_op_add(b, &ops[i]);
    kv_end(b, at);
}

static const struct kv_result *kv_call(struct kit *k, const struct kv_op *ops, uint32_t count)
{
    struct buf b = {0};
    kv_put_ops(&b, ops, count);
    kit_do(k, &b);
    return &k->result.kv;
}

static const struct kv_outcome *kv_one(struct kit *k, struct kv_op op)
{
    return &kv_call(k, &op, 1)->items[0];
}

static void assert_lost(const struct kv_outcome *o, enum kv_reason reason, uint64_t version, const char *value)
{
    assert_false(o->applied);
    assert_int_equal(o->reason, reason);
    assert_int_equal(o->version, version);
    assert_int_equal(o->has_value, value != NULL);
    if (value != NULL) assert_true(slice_is(o->value, value));
}

static void versions_rise_and_are_never_given_twice(void **state)
{
    struct kit k;
    (void)state;
    kit_open(&k);
    assert_int_equal(kv_one(&k, kv_of(KV_PUT, "a", "1"))->version, 1);
    assert_int_equal(kv_one(&k, kv_of(KV_PUT, "a", "2"))->version, 2);
    const struct kv_outcome *o = kv_one(&k, kv_of(KV_DELETE, "a", NULL));
    assert_true(o->applied && slice_is(o->value, "2"));
    assert_int_equal(o->version, 2);
    assert_int_equal(kv_one(&k, kv_of(KV_PUT, "a", "3"))->version, 3);
    kit_cut(&k);
    kit_reload(&k, engine_applied_index(k.e));
    assert_int_equal(kv_one(&k, kv_of(KV_PUT, "b", "3"))->version, 4);
    kit_close(&k);
}

static void preconditions_lose_with_the_live_row(void **state)
{
    struct kit k;
    (void)state;
    kit_open(&k);
    assert_lost(kv_one(&k, expecting(kv_of(KV_PUT, "a", "1"), 9)), KV_ABSENT, 0, NULL);
    assert_true(kv_one(&k, expecting(kv_of(KV_PUT, "a", "\"x\""), 0))->applied);
    assert_lost(kv_one(&k, expecting(kv_of(KV_PUT, "a", "2"), 0)), KV_EXISTS, 1, "\"x\"");
    assert_lost(kv_one(&k, expecting(kv_of(KV_PUT, "a", "2"), 7)), KV_VERSION, 1, "\"x\"");
    assert_lost(kv_one(&k, expecting(kv_of(KV_CHECK, "a", NULL), 7)), KV_VERSION, 1, "\"x\"");
    assert_lost(kv_one(&k, expecting(kv_of(KV_CHECK, "b", NULL), 7)), KV_ABSENT, 0, NULL);
    assert_int_equal(kv_one(&k, expecting(kv_of(KV_CHECK, "a", NULL), 1))->version, 1);
    assert_lost(kv_one(&k, kv_of(KV_DELETE, "b", NULL)), KV_ABSENT, 0, NULL);
    assert_true(kv_one(&k, expecting(kv_of(KV_DELETE, "b", NULL), 0))->applied);
    assert_lost(kv_one(&k, kv_of(KV_INCR, "a", "1")), KV_TYPE, 1, "0");
    kit_close(&k);
}

static void an_expired_row_is_gone_before_any_sweep(void **state)
{
    struct kit k;
    (void)state;
    kit_open(&k);
    struct kv_op op = kv_of(KV_PUT, "a", "5");
    op.ttl_us = 1000000;
    kv_one(&k, op);
    int64_t expires_us = kv_one(&k, kv_of(KV_GET, "a", NULL))->expires_us;
    k.wall_us = expires_us - 1;
    assert_true(kv_one(&k, kv_of(KV_GET, "a", NULL))->found);
    k.wall_us = expires_us;
    assert_false(kv_one(&k, kv_of(KV_GET, "a", NULL))->found);
    assert_lost(kv_one(&k, expecting(kv_of(KV_PUT, "a", "1"), 1)), KV_ABSENT, 0, NULL);
    const struct kv_outcome *o = kv_one(&k, kv_of(KV_INCR, "a", "3"));
    assert_true(o->applied && slice_is(o->value, "3"));
    assert_int_equal(kv_one(&k, kv_of(KV_GET, "a", NULL))->expires_us, 0);
    kit_close(&k);
}

static void incr_keeps_the_lifetime_of_a_live_row(void **state)
{
    struct kit k;
    (void)state;
    kit_open(&k);
    struct kv_op op = kv_of(KV_INCR, "a", "0.1");
    op.ttl_us = 5000000;
    kv_one(&k, op);
    int64_t expires_us = kv_one(&k, kv_of(KV_GET, "a", NULL))->expires_us;
    op.ttl_us = 90000000;
    op.value = slice_of("0.2");
    assert_true(slice_is(kv_one(&k, op)->value, "0.3"));
    assert_int_equal(kv_one(&k, kv_of(KV_GET, "a", NULL))->expires_us, expires_us);
    op.flags = KV_HAS_MAX;
    op.max = slice_of("0.35");
    assert_lost(kv_one(&k, op), KV_LIMIT, 2, "0.3");
    kit_close(&k);
}

static void a_get_sees_the_row_of_its_place_in_the_call(void **state)
{
    struct kit k;
    (void)state;
    kit_open(&k);
    kv_one(&k, kv_of(KV_PUT, "k", "\"old\""));
    struct kv_op ops[] = {kv_of(KV_GET, "k", NULL), kv_of(KV_PUT, "k", "\"new\""), kv_of(KV_GET, "k", NULL)};
    const struct kv_result *r = kv_call(&k, ops, 3);
    assert_true(slice_is(r->items[0].value, "\"old\"") && slice_is(r->items[2].value, "\"new\""));
    kit_close(&k);
}

static void one_lost_required_op_leaves_nothing_written(void **state)
{
    struct kit k;
    (void)state;
    kit_open(&k);
    kv_one(&k, kv_of(KV_PUT, "b", "1"));
    struct kv_op ops[] = {kv_of(KV_PUT, "a", "1"), required(expecting(kv_of(KV_PUT, "b", "2"), 0)), kv_of(KV_PUT, "c", "1")};
    const struct kv_result *r = kv_call(&k, ops, 3);
    assert_true(r->refused);
    assert_int_equal(r->failed, 1);
    assert_lost(&r->items[1], KV_EXISTS, 1, "1");
    assert_false(kv_one(&k, kv_of(KV_GET, "a", NULL))->found);
    assert_int_equal(kv_one(&k, kv_of(KV_PUT, "d", "1"))->version, 2);
    kit_close(&k);
}

static void prefixes_are_paged_in_byte_order_within_their_namespace(void **state)
{
    struct kit k;
    (void)state;
    kit_open(&k);
    const char *keys[] = {"a/3", "a/1", "a/5", "b/1", "a/2", "a/4"};
    for (size_t i = 0; i < 6; i++) kv_one(&k, kv_of(KV_PUT, keys[i], "1"));
    struct kv_op other = kv_of(KV_PUT, "a/0", "1");
    other.name_space = slice_of("ns2");
    kv_one(&k, other);
    struct kv_op page = kv_of(KV_GET_PREFIX, "a/", "");
    page.limit = 2;
    const char *wanted[][2] = {{"a/1", "a/2"}, {"a/3", "a/4"}, {"a/5", NULL}};
    for (int i = 0; i < 3; i++) {
        const struct kv_outcome *o = kv_one(&k, page);
        assert_int_equal(o->row_count, i < 2 ? 2 : 1);
        for (uint32_t j = 0; j < o->row_count; j++) assert_true(slice_is(o->rows[j].key, wanted[i][j]));
        assert_int_equal(o->truncated, i < 2);
        page.value = slice_of(wanted[i][1] == NULL ? wanted[i][0] : wanted[i][1]);
    }
    struct kv_space_view v;
    assert_true(engine_kv_space_next(k.e, KIT_TENANT, slice_of(""), &v));
    assert_true(slice_is(v.name, "ns"));
    assert_int_equal(v.rows, 6);
    assert_true(engine_kv_space_next(k.e, KIT_TENANT, slice_of("ns"), &v));
    assert_true(slice_is(v.name, "ns2"));
    assert_false(engine_kv_space_next(k.e, KIT_TENANT, slice_of("ns2"), &v));
    kit_close(&k);
}

static void expired_rows_leave_memory_and_the_store(void **state)
{
    struct kit k;
    struct engine_stats stats;
    (void)state;
    kit_open(&k);
    for (uint32_t i = 0; i < 1000; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%u", i);
        struct kv_op op = kv_of(KV_PUT, key, "1");
        op.ttl_us = 1000000;
        kv_one(&k, op);
    }
    kit_cut(&k);
    size_t rows = k.store.count;
    kit_pass(&k, 5000000);
    kv_one(&k, kv_of(KV_PUT, "last", "1"));
    while (engine_housekeep(k.e)) continue;
    engine_stats(k.e, &stats);
    assert_int_equal(stats.kv_rows, 1);
    kit_cut(&k);
    assert_int_equal(k.store.count, rows - 1000 + 1);
    kit_close(&k);
}

/* ---- timers ---- */

static void timer_put(struct buf *b, const char *key, int64_t delay_us, const char *transaction)
{
    size_t at = timers_begin(b, KIT_TENANT, 1);
    struct timer_op op = {.kind = transaction == NULL ? TIMER_CANCEL : TIMER_SCHEDULE,
                          .queue = slice_of("q"),
                          .key = slice_of(key),
                          .partition = slice_of("p"),
                          .delay_us = delay_us};
    if (transaction != NULL) {
        op.item = (struct push_item){.flags = ITEM_TRANSACTION | ITEM_ID,
                                     .transaction = slice_of(transaction),
                                     .id = kit_lease(777),
                                     .payload = slice_of("{\"t\":1}")};
    }
    timer_op_add(b, &op);
    timers_end(b, at);
}

static const struct timer_outcome *timer_do(struct kit *k, const char *key, int64_t delay_us, const char *transaction)
{
    struct buf b = {0};
    timer_put(&b, key, delay_us, transaction);
    kit_do(k, &b);
    return &k->result.timers.items[0];
}

static void tick(struct kit *k)
{
    struct buf b = {0};
    tick_encode(&b);
    kit_do(k, &b);
}

static uint64_t pushed(struct kit *k)
{
    struct queue_view v;
    return engine_queue_get(k->e, KIT_TENANT, slice_of("q"), &v) ? v.pushed_total : 0;
}

static void a_timer_fires_once_and_never_early(void **state)
{
    struct kit k;
    (void)state;
    kit_open(&k);
    const struct timer_outcome *o = timer_do(&k, "t", 500000, "txn-1");
    assert_int_equal(o->status, TIMER_SCHEDULED);
    int64_t due_us = o->due_us;
    assert_int_equal(due_us, k.wall_us + 500000);
    k.wall_us = due_us - 1;
    tick(&k);
    assert_int_equal(pushed(&k), 0);
    assert_int_equal(engine_timer_due_us(k.e, (struct engine_now){.wall_us = due_us - 5}), 5);
    k.wall_us = due_us;
    k.appended = 0;
    tick(&k);
    assert_int_equal(pushed(&k), 1);
    assert_int_equal(k.appended, 1);
    tick(&k);
    assert_int_equal(pushed(&k), 1);
    assert_int_equal(engine_timer_due_us(k.e, kit_now(&k)), -1);
    struct pop_command p = kit_pop_of("q", "g", 1);
    kit_pop(&k, &p);
    assert_int_equal(k.result.pop.messages, 1);
    const struct delivery_piece *piece = &k.result.pop.claims[0].pieces[0];
    struct push_group g;
    struct push_item item;
    assert_true(push_group_of(slice_make(k.log->bytes.at + piece->where, piece->block_bytes), &g));
    push_group_item(&g, piece->item0, &item);
    struct uuid promised = kit_lease(777);
    assert_true(uuid_equal(item.id, promised));
    assert_true(slice_is(item.transaction, "txn-1") && slice_is(item.payload, "{\"t\":1}"));
    kit_close(&k);
}

static void a_later_schedule_replaces_and_a_cancel_removes(void **state)
{
    struct kit k;
    (void)state;
    kit_open(&k);
    timer_do(&k, "t", 500000, "txn-1");
    assert_int_equal(timer_do(&k, "t", 900000, "txn-2")->status, TIMER_RESCHEDULED);
    kit_pass(&k, 600000);
    tick(&k);
    assert_int_equal(pushed(&k), 0);
    const struct timer_outcome *o = timer_do(&k, "t", 0, NULL);
    assert_int_equal(o->status, TIMER_CANCELLED);
    assert_true(slice_is(o->transaction, "txn-2"));
    assert_int_equal(timer_do(&k, "t", 0, NULL)->status, TIMER_ABSENT);
    kit_pass(&k, 600000);
    tick(&k);
    assert_int_equal(pushed(&k), 0);
    /* What pointed into the log's segments does not any more. */
    assert_int_equal(engine_segment_live(k.e, 0), 0);
    kit_close(&k);
}

static void a_fired_id_that_is_in_the_window_appends_nothing_and_keeps_the_promised_id(void **state)
{
    struct kit k;
    (void)state;
    kit_open(&k);
    timer_do(&k, "t", 0, "same");
    tick(&k);
    kit_push(&k, "q", "p", "same");
    assert_int_equal(k.result.push.items[0].status, PUSH_DUPLICATE);
    assert_true(uuid_equal(k.result.push.items[0].id, kit_lease(777)));
    timer_do(&k, "u", 0, "same");
    tick(&k);
    assert_int_equal(pushed(&k), 1);
    assert_int_equal(engine_timer_due_us(k.e, kit_now(&k)), -1);
    kit_cut(&k);
    kit_reload(&k, engine_applied_index(k.e));
    kit_push(&k, "q", "p", "same");
    assert_true(uuid_equal(k.result.push.items[0].id, kit_lease(777)));
    kit_close(&k);
}

/* Counted a few rows at a time. */
static uint64_t timers_counted(struct kit *k, const char *queue, const char *prefix)
{
    struct timer_tally tally = {0};
    while (engine_timers_count(k->e, KIT_TENANT, slice_of(queue), slice_of(prefix), 1, &tally)) continue;
    return tally.count;
}

static void pending_timers_survive_a_restart_and_are_listed_by_key(void **state)
{
    struct kit k;
    (void)state;
    kit_open(&k);
    const char *keys[] = {"b2", "a1", "b1", "c1"};
    for (size_t i = 0; i < 4; i++) timer_do(&k, keys[i], 1000000 * (int64_t)(i + 1), "txn");
    kit_cut(&k);
    kit_reload(&k, engine_applied_index(k.e));
    struct timer_view v;
    const char *sorted[] = {"a1", "b1", "b2", "c1"};
    struct slice after = slice_of("");
    for (size_t i = 0; i < 4; i++) {
        assert_true(engine_timer_next(k.e, KIT_TENANT, slice_of("q"), after, &v));
        assert_true(slice_is(v.key, sorted[i]));
        after = slice_of(sorted[i]);
    }
    assert_false(engine_timer_next(k.e, KIT_TENANT, slice_of("q"), after, &v));
    assert_int_equal(timers_counted(&k, "q", "b"), 2);
    assert_int_equal(timers_counted(&k, "other", "b"), 0);
    assert_true(engine_timer_get(k.e, KIT_TENANT, slice_of("q"), slice_of("b1"), &v));
    assert_true(slice_is(v.transaction, "txn") && slice_is(v.partition, "p"));
    kit_pass(&k, 10000000);
    tick(&k);
    /* All four carry the same id: one message. */
    assert_int_equal(pushed(&k), 1);
    assert_false(engine_timer_get(k.e, KIT_TENANT, slice_of("q"), slice_of("b1"), &v));
    kit_close(&k);
}

static uint64_t timers_here(struct kit *k)
{
    struct engine_stats s;
    engine_stats(k->e, &s);
    return s.timers_in_memory;
}

static uint32_t timer_rows(const struct kit *k)
{
    uint32_t count = 0;
    for (size_t i = 0; i < k->store.count; i++) {
        unsigned char kind = (unsigned char)k->store.rows[i].key.at[0];
        count += kind == ROW_TIMER || kind == ROW_TIMER_PATH;
    }
    return count;
}

static void timers_to_rest(struct kit *k)
{
    kit_cut(k);
    engine_visits_over(k->e);
    assert_int_equal(timers_here(k), 0);
}

enum { RESTING = 60 };

static void timers_at_rest(struct kit *k)
{
    kit_open(k);
    engine_free(k->e);
    k->budget.timers = 1;
    kit_engine_open(k);
    for (uint32_t i = 0; i < RESTING; i++) {
        char key[16];
        snprintf(key, sizeof key, "t%02u", i * 7 % RESTING);
        timer_do(k, key, 1000000 + (int64_t)i * 1000, key);
    }
    assert_int_equal(timers_here(k), RESTING);
    timers_to_rest(k);
    assert_int_equal(timer_rows(k), 2 * RESTING);
    assert_null(engine_check(k->e));
}

static void timers_at_rest_are_listed_found_and_counted(void **state)
{
    struct kit k;
    struct timer_view v;
    char key[16] = "", expected[16];
    (void)state;
    timers_at_rest(&k);
    timer_do(&k, "t10x", 1000000, "here"); /* in memory, between two that are not */
    k.scans = 0;
    for (uint32_t i = 0; i <= RESTING; i++) {
        assert_true(engine_timer_next(k.e, KIT_TENANT, slice_of("q"), slice_of(key), &v));
        snprintf(expected, sizeof expected, i == 11 ? "t10x" : "t%02u", i < 11 ? i : i - 1);
        assert_true(slice_is(v.key, expected));
        memcpy(key, expected, sizeof key);
    }
    assert_false(engine_timer_next(k.e, KIT_TENANT, slice_of("q"), slice_of(key), &v));
    assert_in_range(k.scans, 1, RESTING + 5); /* each once, and the paths many at a time */
    assert_int_equal(timers_counted(&k, "q", "t"), RESTING + 1);
    timers_to_rest(&k);
    assert_int_equal(timers_counted(&k, "q", "t1"), 11);
    assert_int_equal(timers_here(&k), 0);
    assert_true(engine_timer_get(k.e, KIT_TENANT, slice_of("q"), slice_of("t07"), &v));
    assert_true(slice_is(v.transaction, "t07") && slice_is(v.partition, "p") && v.due_us > k.wall_us);
    assert_false(engine_timer_get(k.e, KIT_TENANT, slice_of("q"), slice_of("t0"), &v));
    struct tenant_rows rows;
    engine_tenant_rows(k.e, KIT_TENANT, &rows);
    assert_int_equal(rows.timers, RESTING + 1);
    kit_close(&k);
}

static void timers_at_rest_are_cancelled_replaced_and_fire_in_order(void **state)
{
    struct kit k;
    (void)state;
    timers_at_rest(&k);
    assert_true(slice_is(timer_do(&k, "t14", 0, NULL)->transaction, "t14"));
    assert_int_equal(timer_do(&k, "t07", 5000000, "later")->status, TIMER_RESCHEDULED);
    assert_int_equal(timer_do(&k, "t21", 0, NULL)->status, TIMER_CANCELLED);
    /* The same path in one cut: gone and back. */
    assert_int_equal(timer_do(&k, "t21", 1003500, "again")->status, TIMER_SCHEDULED);
    timers_to_rest(&k);
    assert_int_equal(timer_rows(&k), 2 * (RESTING - 1));
    kit_reload(&k, engine_applied_index(k.e));
    assert_int_equal(timers_here(&k), 0);
    kit_pass(&k, 3000000);
    k.scans = 0;
    tick(&k);
    assert_in_range(k.scans, 1, 3); /* all that are due by one */
    assert_int_equal(pushed(&k), RESTING - 2);
    assert_int_equal(timers_counted(&k, "q", "t"), 1);
    struct pop_command p = kit_pop_of("q", "g", 1);
    kit_pop(&k, &p);
    const struct claim *c = &k.result.pop.claims[0];
    struct push_group g;
    struct push_item item;
    const char *first[] = {"t00", "again", "t28"}; /* t07 was put off, t14 cancelled */
    for (size_t i = 0; i < 3; i++) {
        assert_true(push_group_of(slice_make(k.log->bytes.at + c->pieces[i].where, c->pieces[i].block_bytes), &g));
        push_group_item(&g, c->pieces[i].item0, &item);
        assert_true(slice_is(item.transaction, first[i]));
    }
    kit_pass(&k, 3000000);
    tick(&k);
    assert_int_equal(pushed(&k), RESTING - 1);
    kit_cut(&k);
    assert_int_equal(timer_rows(&k), 0);
    kit_close(&k);
}

static void a_timer_that_no_cut_had_leaves_no_row_to_remove(void **state)
{
    struct kit k;
    (void)state;
    kit_open(&k);
    timer_do(&k, "t", 1000, "txn");
    kit_pass(&k, 1000000);
    kit_cut(&k);
    timer_do(&k, "u", 1000, "txn-2");
    uint64_t before = engine_cut_size(k.e);
    timer_do(&k, "u", 0, NULL);
    assert_int_equal(engine_cut_size(k.e), before);
    timer_do(&k, "t", 0, NULL);
    assert_int_equal(engine_cut_size(k.e), before + 1);
    kit_cut(&k);
    assert_int_equal(timer_rows(&k), 0);
    kit_close(&k);
}

static void one_tick_fires_a_bounded_number(void **state)
{
    struct kit k;
    (void)state;
    kit_open(&k);
    for (uint32_t i = 0; i < TIMERS_A_TICK + 10; i++) {
        char key[16];
        snprintf(key, sizeof key, "t%u", i);
        timer_do(&k, key, 1000, key);
    }
    kit_pass(&k, 1000000);
    tick(&k);
    assert_int_equal(pushed(&k), TIMERS_A_TICK);
    assert_int_equal(engine_timer_due_us(k.e, kit_now(&k)), 0);
    tick(&k);
    assert_int_equal(pushed(&k), TIMERS_A_TICK + 10);
    kit_close(&k);
}

/* ---- locks ---- */

static const struct lock_outcome *lock_do(struct kit *k, enum lock_op_kind kind, const char *owner, uint64_t token,
                                          uint32_t limit, uint32_t slot)
{
    struct buf b = {0};
    size_t at = locks_begin(&b, KIT_TENANT, 1);
    struct lock_op op = {.kind = (uint8_t)kind,
                         .has_owner = owner != NULL,
                         .owner = slice_of(owner == NULL ? "null" : owner),
                         .token = token,
                         .limit = limit,
                         .slot = slot,
                         .ttl_us = 1000000,
                         .name = slice_of("bay")};
    lock_op_add(&b, &op);
    locks_end(&b, at);
    kit_do(k, &b);
    return &k->result.locks.items[0];
}

static void a_lock_has_one_holder_and_every_holder_another_token(void **state)
{
    struct kit k;
    (void)state;
    kit_open(&k);
    const struct lock_outcome *o = lock_do(&k, LOCK_ACQUIRE, "\"a\"", 0, 1, 0);
    uint64_t first = o->token;
    assert_true(o->done && !o->already);
    o = lock_do(&k, LOCK_ACQUIRE, "\"a\"", 0, 1, 0);
    assert_true(o->done && o->already && o->token == first);
    o = lock_do(&k, LOCK_ACQUIRE, "\"b\"", 0, 1, 0);
    assert_false(o->done);
    assert_int_equal(o->holder_count, 1);
    assert_true(slice_is(o->holders[0].row.value, "{\"owner\":\"a\"}"));
    o = lock_do(&k, LOCK_RENEW, NULL, first, 0, 0);
    uint64_t second = o->token;
    assert_true(o->done && second > first);
    assert_false(lock_do(&k, LOCK_RELEASE, NULL, first, 0, 0)->done);
    assert_true(lock_do(&k, LOCK_RENEW, "\"a\"", first, 0, 0)->done); /* stale, but the owner's own */
    o = lock_do(&k, LOCK_GET, NULL, 0, 0, 0);
    assert_true(o->done && o->holder_count == 1);
    assert_non_null(memmem(o->holders[0].row.value.at, o->holders[0].row.value.len, "\"since\":\"20", 11));
    kit_pass(&k, 1500000);
    o = lock_do(&k, LOCK_ACQUIRE, "\"b\"", 0, 1, 0);
    assert_true(o->done && !o->already && o->token > second);
    assert_true(lock_do(&k, LOCK_RELEASE, NULL, o->token, 0, 0)->done);
    kit_close(&k);
}

static void a_semaphore_has_as_many_holders_as_permits(void **state)
{
    struct kit k;
    (void)state;
    kit_open(&k);
    assert_int_equal(lock_do(&k, LOCK_ACQUIRE, "\"a\"", 0, 2, 0)->slot, 0);
    assert_int_equal(lock_do(&k, LOCK_ACQUIRE, NULL, 0, 2, 0)->slot, 1);
    const struct lock_outcome *o = lock_do(&k, LOCK_ACQUIRE, NULL, 0, 2, 0);
    assert_false(o->done);
    assert_int_equal(o->holder_count, 2);
    assert_int_equal(o->holders[1].slot, 1);
    kit_close(&k);
}

/* ---- steps ---- */

struct step_parts {
    uint32_t lease; /* 0: no ack */
    const char *ack, *push;
    struct kv_op kv;
    bool has_kv, has_timer, has_next;
};

static const struct step_result *step_do(struct kit *k, const struct step_parts *p)
{
    struct buf b = {0};
    size_t at = step_begin(&b);
    if (p->ack != NULL) {
        size_t ack_at = b.len;
        ack_begin(&b, KIT_TENANT, slice_of("g"), 1);
        struct ack_item item = {.partition = 1, .fenced = p->lease != 0, .transaction = slice_of(p->ack)};
        item.lease = kit_lease(p->lease);
        ack_item_add(&b, &item);
        ack_end(&b, ack_at);
    }
    if (p->push != NULL) {
        struct push_writer w;
        push_begin(&w, &b, KIT_TENANT);
        push_group_begin(&w, slice_of("out"), slice_of("p"), 1);
        struct push_item item = {.flags = ITEM_TRANSACTION, .transaction = slice_of(p->push), .payload = slice_of("1")};
        push_item_add(&w, &item);
        push_group_end(&w);
        push_end(&w);
    }
    if (p->has_kv) kv_put_ops(&b, &p->kv, 1);
    if (p->has_timer) timer_put(&b, "t", 1000000, "timer-1");
    if (p->has_next) {
        struct pop_command next = kit_pop_of("in", "g", 9);
        next.batch = 1;
        pop_encode(&b, &next);
    }
    step_end(&b, at);
    kit_do(k, &b);
    return &k->result.step;
}

static struct kv_op once(const char *key)
{
    struct kv_op op = required(expecting(kv_of(KV_PUT, key, "1"), 0));
    op.ttl_us = 60000000;
    return op;
}

/* One lane with a, b, c; a is leased under 1. */
static void lane_open(struct kit *k)
{
    kit_open(k);
    kit_push(k, "in", "p", "a b c");
    struct pop_command p = kit_pop_of("in", "g", 1);
    p.batch = 1;
    p.lease_us = 10000000;
    kit_pop(k, &p);
}

static bool out_exists(struct kit *k)
{
    struct queue_view v;
    return engine_queue_get(k->e, KIT_TENANT, slice_of("out"), &v);
}

static void a_step_does_all_of_it_and_claims_the_next_batch(void **state)
{
    struct kit k;
    (void)state;
    lane_open(&k);
    struct step_parts all = {
        .lease = 1, .ack = "a", .push = "r-1", .kv = once("m"), .has_kv = true, .has_timer = true, .has_next = true};
    const struct step_result *r = step_do(&k, &all);
    assert_int_equal(r->refusal, STEP_COMMITTED);
    assert_int_equal(r->acks.items[0].verdict, ACK_OK);
    assert_int_equal(r->push.items[0].status, PUSH_QUEUED);
    assert_true(r->kv.items[0].applied);
    assert_int_equal(r->timers.items[0].status, TIMER_SCHEDULED);
    assert_int_equal(r->next.messages, 1);
    assert_int_equal(r->next.claims[0].first_offset, 1);
    /* The lease is settled, so the very same step is refused by its ack. */
    assert_int_equal(step_do(&k, &all)->refusal, STEP_REJECTED_ACK);
    kit_close(&k);
}

static void the_first_refusal_wins_in_the_order_acks_pushes_kv(void **state)
{
    struct kit k;
    (void)state;
    lane_open(&k);
    kit_push(&k, "out", "p", "x r-1");
    kv_one(&k, once("m"));
    struct step_parts p = {.lease = 5, .ack = "a", .push = "r-1", .kv = once("m"), .has_kv = true, .has_timer = true};
    assert_int_equal(step_do(&k, &p)->refusal, STEP_REJECTED_ACK);
    p.lease = 1;
    const struct step_result *r = step_do(&k, &p);
    assert_int_equal(r->refusal, STEP_DUPLICATE);
    assert_int_equal(r->offset, 1);
    p.push = "r-2";
    r = step_do(&k, &p);
    assert_int_equal(r->refusal, STEP_KV_PRECONDITION);
    assert_int_equal(r->kv.items[0].reason, KV_EXISTS);
    kit_close(&k);
}

static void a_refused_step_leaves_nothing(void **state)
{
    struct kit k;
    struct timer_view v;
    (void)state;
    lane_open(&k);
    kv_one(&k, once("m"));
    struct step_parts p = {
        .lease = 1, .ack = "a", .push = "r-1", .kv = once("m"), .has_kv = true, .has_timer = true, .has_next = true};
    assert_int_equal(step_do(&k, &p)->refusal, STEP_KV_PRECONDITION);
    assert_false(out_exists(&k));
    assert_false(engine_timer_get(k.e, KIT_TENANT, slice_of("q"), slice_of("t"), &v));
    assert_int_equal(kit_ack(&k, "g", 1, 1, "a", ACK_COMPLETED), ACK_OK);
    kit_close(&k);
}

static void two_acks_of_one_lane_build_on_each_other(void **state)
{
    struct kit k;
    (void)state;
    lane_open(&k);
    struct buf b = {0};
    size_t at = step_begin(&b), ack_at = b.len;
    ack_begin(&b, KIT_TENANT, slice_of("g"), 2);
    struct ack_item item = {.partition = 1, .fenced = 1, .lease = kit_lease(1), .transaction = slice_of("a")};
    ack_item_add(&b, &item);
    item.fenced = 0; /* unfenced, once the lease is settled: the rest of the lane */
    item.transaction = slice_of("b");
    ack_item_add(&b, &item);
    ack_end(&b, ack_at);
    step_end(&b, at);
    kit_do(&k, &b);
    assert_int_equal(k.result.step.refusal, STEP_COMMITTED);
    struct pop_command p = kit_pop_of("in", "g", 2);
    kit_pop(&k, &p);
    assert_int_equal(k.result.pop.claims[0].first_offset, 2);
    kit_close(&k);
}

static void position_do(struct kit *k, const char *queue, uint64_t offset, bool forget)
{
    struct buf b = {0};
    size_t at = step_begin(&b), positions_at = positions_begin(&b, KIT_TENANT, 1);
    struct position_item item = {
        .queue = slice_of(queue), .partition = slice_of("p"), .group = slice_of("g"), .offset = offset, .forget = forget};
    position_add(&b, &item);
    positions_end(&b, positions_at);
    step_end(&b, at);
    kit_do(k, &b);
}

static void a_position_releases_the_lease_and_is_where_the_next_pop_starts(void **state)
{
    struct kit k;
    (void)state;
    lane_open(&k);
    position_do(&k, "ghost", 1, false);
    assert_int_equal(k.result.step.refusal, STEP_QUEUE_NOT_FOUND);
    position_do(&k, "in", 2, false);
    assert_int_equal(k.result.step.refusal, STEP_COMMITTED);
    assert_int_equal(kit_ack(&k, "g", 1, 1, "a", ACK_COMPLETED), ACK_REFUSED_LEASE);
    struct pop_command p = kit_pop_of("in", "g", 2);
    kit_pop(&k, &p);
    assert_int_equal(k.result.pop.claims[0].first_offset, 2);
    position_do(&k, "in", 0, true);
    p = kit_pop_of("in", "g", 3);
    kit_pop(&k, &p);
    assert_int_equal(k.result.pop.claims[0].first_offset, 0);
    assert_int_equal(k.result.pop.claims[0].attempt, 1);
    kit_close(&k);
}

/* ---- reading by offset ---- */

static void a_fetch_reads_whole_appends_and_moves_nothing(void **state)
{
    struct kit k;
    struct arena a;
    struct fetch_view v;
    (void)state;
    lane_open(&k);
    arena_init(&a);
    kit_push(&k, "in", "p", "d");
    struct slice q = slice_of("in"), p = slice_of("p");
    assert_int_equal(engine_fetch(k.e, KIT_TENANT, q, p, 1, 1, 1000, &a, &v), FETCH_OK);
    assert_int_equal(v.message_count, 2);
    assert_int_equal(v.pieces[0].first_offset, 1);
    assert_int_equal(v.tail, 4);
    assert_int_equal(engine_fetch(k.e, KIT_TENANT, q, p, 0, 1 << 20, 1000, &a, &v), FETCH_OK);
    assert_int_equal(v.message_count, 4);
    assert_int_equal(engine_fetch(k.e, KIT_TENANT, q, p, 4, 1 << 20, 1000, &a, &v), FETCH_OK);
    assert_int_equal(v.message_count, 0);
    assert_int_equal(engine_fetch(k.e, KIT_TENANT, q, p, 5, 1 << 20, 1000, &a, &v), FETCH_OUT_OF_RANGE);
    assert_int_equal(engine_fetch(k.e, KIT_TENANT, slice_of("ghost"), p, 0, 1, 1, &a, &v), FETCH_NO_QUEUE);
    assert_int_equal(engine_fetch(k.e, KIT_TENANT, q, slice_of("new"), 0, 1, 1, &a, &v), FETCH_OK);
    bool found;
    uint64_t offset, start, tail;
    int64_t created_us;
    assert_int_equal(engine_offset_at(k.e, KIT_TENANT, q, p, k.wall_us, &found, &offset, &created_us, &start, &tail), FETCH_OK);
    assert_true(found && offset == 3 && created_us == engine_safe_time_us(k.e));
    engine_offset_at(k.e, KIT_TENANT, q, p, k.wall_us + 1, &found, &offset, &created_us, &start, &tail);
    assert_false(found);
    arena_free(&a);
    kit_close(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(versions_rise_and_are_never_given_twice),
        cmocka_unit_test(preconditions_lose_with_the_live_row),
        cmocka_unit_test(an_expired_row_is_gone_before_any_sweep),
        cmocka_unit_test(incr_keeps_the_lifetime_of_a_live_row),
        cmocka_unit_test(a_get_sees_the_row_of_its_place_in_the_call),
        cmocka_unit_test(one_lost_required_op_leaves_nothing_written),
        cmocka_unit_test(prefixes_are_paged_in_byte_order_within_their_namespace),
        cmocka_unit_test(expired_rows_leave_memory_and_the_store),
        cmocka_unit_test(a_timer_fires_once_and_never_early),
        cmocka_unit_test(a_later_schedule_replaces_and_a_cancel_removes),
        cmocka_unit_test(a_fired_id_that_is_in_the_window_appends_nothing_and_keeps_the_promised_id),
        cmocka_unit_test(pending_timers_survive_a_restart_and_are_listed_by_key),
        cmocka_unit_test(timers_at_rest_are_listed_found_and_counted),
        cmocka_unit_test(timers_at_rest_are_cancelled_replaced_and_fire_in_order),
        cmocka_unit_test(a_timer_that_no_cut_had_leaves_no_row_to_remove),
        cmocka_unit_test(one_tick_fires_a_bounded_number),
        cmocka_unit_test(a_lock_has_one_holder_and_every_holder_another_token),
        cmocka_unit_test(a_semaphore_has_as_many_holders_as_permits),
        cmocka_unit_test(a_step_does_all_of_it_and_claims_the_next_batch),
        cmocka_unit_test(the_first_refusal_wins_in_the_order_acks_pushes_kv),
        cmocka_unit_test(a_refused_step_leaves_nothing),
        cmocka_unit_test(two_acks_of_one_lane_build_on_each_other),
        cmocka_unit_test(a_position_releases_the_lease_and_is_where_the_next_pop_starts),
        cmocka_unit_test(a_fetch_reads_whole_appends_and_moves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
