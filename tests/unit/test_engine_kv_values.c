/* Values of KV rows leave memory when the store has them and the budget wants room, and are read back when they are asked for: the same
 * answers as ever, neighbours with one read. */
#include "engine_kit.h"

enum { ROWS = 300, VALUE_BYTES = 100 };

static uint32_t scans;

static void counting_scan(void *ctx, struct slice from, struct slice to, bool (*row)(void *, struct slice, struct slice),
                          void *row_ctx)
{
    scans++;
    kit_scan(ctx, from, to, row, row_ctx);
}

static void open_with(struct kit *k, uint64_t budget)
{
    *k = (struct kit){.log = calloc(1, sizeof *k->log), .log_us = 1, .wall_us = INT64_C(1900000000000000)};
    arena_init(&k->arena);
    struct engine_options o = {
        .cold = {.ctx = k, .scan = counting_scan, .block = kit_block}, .budget = {.kv_values = budget}, .segment_shift = 16};
    k->e = engine_new(&o);
    scans = 0;
}

static void reload_with(struct kit *k, uint64_t budget)
{
    uint64_t index = engine_applied_index(k->e);
    engine_free(k->e);
    struct engine_options o = {
        .cold = {.ctx = k, .scan = counting_scan, .block = kit_block}, .budget = {.kv_values = budget}, .segment_shift = 16};
    k->e = engine_new(&o);
    for (size_t i = 0; i < k->store.count; i++)
        assert_null(engine_load_row(k->e, buf_view(&k->store.rows[i].key), buf_view(&k->store.rows[i].value)));
    assert_null(engine_loaded(k->e, index));
    scans = 0;
}

static struct slice key_of(struct arena *a, uint32_t n)
{
    char text[32];
    return arena_copy(a, slice_make(text, (size_t)snprintf(text, sizeof text, "key-%05u", n)));
}

static struct slice value_of(struct arena *a, uint32_t n)
{
    char text[VALUE_BYTES];
    memset(text, 'x', sizeof text);
    text[0] = text[sizeof text - 1] = '"';
    memcpy(text + 1, key_of(a, n).at, 9);
    return arena_copy(a, slice_make(text, sizeof text));
}

static const struct kv_result *call(struct kit *k, struct kv_op op)
{
    struct buf b = {0};
    op.name_space = slice_of("ns");
    size_t at = kv_begin(&b, KIT_TENANT, 1);
    kv_op_add(&b, &op);
    kv_end(&b, at);
    kit_do(k, &b);
    return &k->result.kv;
}

static void put(struct kit *k, uint32_t n)
{
    struct arena a;
    arena_init(&a);
    assert_true(call(k, (struct kv_op){.kind = KV_PUT, .key = key_of(&a, n), .value = value_of(&a, n)})->items[0].applied);
    arena_free(&a);
}

static void assert_got(struct kit *k, uint32_t n)
{
    struct arena a;
    arena_init(&a);
    const struct kv_outcome *o = &call(k, (struct kv_op){.kind = KV_GET, .key = key_of(&a, n)})->items[0];
    assert_true(o->found && slice_equal(o->value, value_of(&a, n)));
    arena_free(&a);
}

static struct engine_stats stats_of(const struct kit *k)
{
    struct engine_stats s;
    engine_stats(k->e, &s);
    return s;
}

static void fill(struct kit *k)
{
    for (uint32_t n = 0; n < ROWS; n++) put(k, n);
}

static void what_is_not_stored_stays(void **state)
{
    (void)state;
    struct kit k;
    open_with(&k, 1000);
    fill(&k);
    assert_int_equal(stats_of(&k).kv_value_bytes, ROWS * VALUE_BYTES);
    assert_in_range(stats_of(&k).unstored_bytes, ROWS * VALUE_BYTES, ROWS * VALUE_BYTES * 2);
    struct engine_rows rows = {.ctx = &k.store, .put = kit_put, .delete = kit_delete, .delete_range = kit_delete_range};
    engine_cut(k.e, &rows);
    engine_housekeep(k.e);
    assert_int_equal(stats_of(&k).kv_value_bytes, ROWS * VALUE_BYTES); /* the cut may be on its way */
    put(&k, 7);                                                        /* and again, behind the cut */
    engine_cut_stored(k.e, engine_applied_index(k.e) - 1);
    assert_in_range(stats_of(&k).unstored_bytes, VALUE_BYTES, VALUE_BYTES * 2);
    while (engine_housekeep(k.e)) continue;
    assert_true(stats_of(&k).kv_value_bytes <= 1000);
    scans = 0;
    assert_got(&k, 7); /* what is in the store of it is old, had it left */
    assert_int_equal(scans, 0);
    assert_null(engine_check(k.e));
    kit_close(&k);
}

static void values_come_back_when_they_are_wanted(void **state)
{
    (void)state;
    struct kit k;
    open_with(&k, 1000);
    fill(&k);
    kit_cut(&k);
    while (engine_housekeep(k.e)) continue;
    scans = 0;
    for (uint32_t n = 0; n < ROWS; n++) assert_got(&k, n);
    assert_true(scans >= ROWS - 10 && scans <= ROWS);
    assert_true(stats_of(&k).kv_value_bytes <= 1000 + VALUE_BYTES);
    scans = 0;
    assert_got(&k, ROWS - 1);
    assert_int_equal(scans, 0); /* it was wanted a moment ago */
    assert_null(engine_check(k.e));
    kit_close(&k);
}

static void a_prefix_is_read_back_with_one_scan(void **state)
{
    (void)state;
    struct kit k;
    open_with(&k, 1000);
    fill(&k);
    kit_cut(&k);
    while (engine_housekeep(k.e)) continue;
    scans = 0;
    struct kv_op op = {.kind = KV_GET_PREFIX, .key = slice_of("key-001"), .value = slice_of(""), .limit = 1000};
    const struct kv_outcome *o = &call(&k, op)->items[0];
    assert_int_equal(o->row_count, 100);
    for (uint32_t i = 0; i < 100; i++) {
        struct arena a;
        arena_init(&a);
        assert_true(slice_equal(o->rows[i].value, value_of(&a, 100 + i)));
        arena_free(&a);
    }
    assert_true(scans >= 1 && scans <= 2);
    op.flags = KV_KEYS_ONLY;
    op.key = slice_of("key-000");
    while (engine_housekeep(k.e)) continue;
    scans = 0;
    assert_int_equal(call(&k, op)->items[0].row_count, 100);
    assert_in_range(scans, 1, 2); /* the keys left too */
    kit_close(&k);
}

static void checks_and_sums_read_back(void **state)
{
    (void)state;
    struct kit k;
    open_with(&k, 1);
    struct kv_op sum = {.kind = KV_INCR, .key = slice_of("n"), .value = slice_of("1234567890123456789012")};
    call(&k, sum);
    fill(&k);
    kit_cut(&k);
    while (engine_housekeep(k.e)) continue;
    assert_int_equal(stats_of(&k).kv_value_bytes, 0);
    assert_true(slice_is(call(&k, sum)->items[0].value, "2469135780246913578024"));
    struct kv_op lost = {.kind = KV_PUT, .flags = KV_EXPECT, .expect = 0, .key = slice_of("key-00003"), .value = slice_of("1")};
    const struct kv_outcome *o = &call(&k, lost)->items[0];
    struct arena a;
    arena_init(&a);
    assert_true(!o->applied && o->has_value && slice_equal(o->value, value_of(&a, 3)));
    o = &call(&k, (struct kv_op){.kind = KV_DELETE, .key = slice_of("key-00004")})->items[0];
    assert_true(o->applied && slice_equal(o->value, value_of(&a, 4)));
    arena_free(&a);
    put(&k, 5); /* over an absent one */
    assert_got(&k, 5);
    assert_null(engine_check(k.e));
    kit_close(&k);
}

static void a_start_takes_no_more_than_the_budget(void **state)
{
    (void)state;
    struct kit k;
    open_with(&k, 0);
    fill(&k);
    kit_cut(&k);
    while (engine_housekeep(k.e)) continue;
    assert_int_equal(stats_of(&k).kv_value_bytes, ROWS * VALUE_BYTES);
    struct hash128_pair before = engine_digest(k.e);
    reload_with(&k, 2000);
    assert_true(stats_of(&k).kv_value_bytes <= 2000);
    assert_int_equal(stats_of(&k).kv_bytes, ROWS * (VALUE_BYTES + 28));
    struct hash128_pair after = engine_digest(k.e);
    assert_true(before.low == after.low && before.high == after.high);
    assert_true(stats_of(&k).kv_value_bytes <= 2000);
    for (uint32_t n = 0; n < ROWS; n++) assert_got(&k, n);
    assert_null(engine_check(k.e));
    kit_close(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_stored_stays),
        cmocka_unit_test(values_come_back_when_they_are_wanted),
        cmocka_unit_test(a_prefix_is_read_back_with_one_scan),
        cmocka_unit_test(checks_and_sums_read_back),
        cmocka_unit_test(a_start_takes_no_more_than_the_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
