/* KV rows at rest: no record in memory, found again in the store, counted as ever. */
#include "engine_kit.h"

#include "base/hash.h"

enum { ROWS = 700 };

static struct slice key_of(char text[32], uint32_t n)
{
    return slice_make(text, (size_t)snprintf(text, 32, "key-%05u", n));
}

static const struct kv_outcome *call(struct kit *k, const char *space, struct kv_op op)
{
    struct buf b = {0};
    op.name_space = slice_of(space);
    size_t at = kv_begin(&b, KIT_TENANT, 1);
    kv_op_add(&b, &op);
    kv_end(&b, at);
    kit_do(k, &b);
    return &k->result.kv.items[0];
}

static void put(struct kit *k, const char *space, struct slice key, const char *value)
{
    assert_true(call(k, space, (struct kv_op){.kind = KV_PUT, .key = key, .value = slice_of(value)})->applied);
}

static const struct kv_outcome *get(struct kit *k, struct slice key)
{
    return call(k, "ns", (struct kv_op){.kind = KV_GET, .key = key});
}

static struct engine_stats stats_of(const struct kit *k)
{
    struct engine_stats s;
    engine_stats(k->e, &s);
    return s;
}

static void rest(struct kit *k)
{
    kit_cut(k);
    engine_idle(k->e);
    while (engine_housekeep(k->e)) continue;
    assert_null(engine_check(k->e));
}

static void filled(struct kit *k)
{
    char text[32];
    kit_open(k);
    for (uint32_t n = 0; n < ROWS; n++) put(k, "ns", key_of(text, n), "1");
}

static uint64_t spaces(struct kit *k, char *out)
{
    struct kv_space_view v;
    struct slice after = slice_of("");
    char last[64];
    uint64_t rows = 0;
    *out = '\0';
    while (engine_kv_space_next(k->e, KIT_TENANT, after, &v)) {
        sprintf(out + strlen(out), "%.*s:%lu ", (int)v.name.len, v.name.at, v.rows);
        rows += v.rows;
        memcpy(last, v.name.at, v.name.len);
        after = slice_make(last, v.name.len);
    }
    return rows;
}

static void an_idle_broker_keeps_no_record(void **state)
{
    (void)state;
    struct kit k;
    char text[32];
    filled(&k);
    struct hash128_pair before = engine_digest(k.e);
    uint64_t bytes = stats_of(&k).kv_bytes;
    rest(&k);
    assert_int_equal(stats_of(&k).kv_rows, ROWS);
    assert_int_equal(stats_of(&k).kv_rows_in_memory, 0);
    assert_int_equal(stats_of(&k).kv_bytes, bytes);
    struct hash128_pair after = engine_digest(k.e);
    assert_true(before.low == after.low && before.high == after.high);
    assert_int_equal(stats_of(&k).kv_rows_in_memory, 0);
    kit_reload(&k, engine_applied_index(k.e));
    assert_int_equal(stats_of(&k).kv_rows, ROWS);
    assert_int_equal(stats_of(&k).kv_rows_in_memory, 0);
    assert_int_equal(stats_of(&k).kv_bytes, bytes);
    after = engine_digest(k.e);
    assert_true(before.low == after.low && before.high == after.high);
    k.scans = 0;
    assert_true(get(&k, key_of(text, 5))->found);
    assert_int_equal(k.scans, 1);
    assert_false(get(&k, slice_of("nowhere"))->found);
    put(&k, "ns", slice_of("new"), "1");
    assert_int_equal(k.scans, 1); /* nothing is at rest under their hashes */
    assert_int_equal(stats_of(&k).kv_rows_in_memory, 2);
    kit_close(&k);
}

static void put_for(struct kit *k, const char *space, struct slice key, const char *value, int64_t seconds)
{
    struct kv_op op = {.kind = KV_PUT, .key = key, .value = slice_of(value), .ttl_us = seconds * 1000000};
    assert_true(call(k, space, op)->applied);
}

static void what_is_not_stored_or_lives_short_stays(void **state)
{
    (void)state;
    struct kit k;
    kit_open(&k);
    put(&k, "ns", slice_of("stored"), "1");
    put(&k, LOCK_NAME_SPACE, slice_of("a#0"), "1");
    put_for(&k, LOCK_NAME_SPACE, slice_of("a#1"), "1", 61);
    put_for(&k, "ns", slice_of("long"), "1", 61);
    put_for(&k, "ns", slice_of("short"), "1", 60);
    kit_cut(&k);
    put(&k, "ns", slice_of("not stored"), "1");
    engine_idle(k.e);
    while (engine_housekeep(k.e)) continue;
    assert_int_equal(stats_of(&k).kv_rows_in_memory, 2);
    assert_int_equal(stats_of(&k).kv_rows, 6);
    assert_int_equal(stats_of(&k).lock_rows, 2);
    assert_null(engine_check(k.e));
    kit_pass(&k, 60000000);
    rest(&k);
    put(&k, "ns", slice_of("another"), "1");
    assert_false(get(&k, slice_of("short"))->found);
    put_for(&k, "ns", slice_of("stored"), "2", 1);
    kit_pass(&k, 2000000);
    assert_false(get(&k, slice_of("stored"))->found); /* it has an expiry now, and is swept */
    assert_false(get(&k, slice_of("long"))->found);
    assert_null(engine_check(k.e));
    kit_close(&k);
}

/* Rows of the store of that kind. */
static uint32_t stored(const struct kit *k, unsigned kind)
{
    uint32_t count = 0;
    for (size_t i = 0; i < k->store.count; i++) count += (unsigned char)k->store.rows[i].key.at[0] == kind;
    return count;
}

enum { KV_ROWS = 9, DUE_ROWS = 0x89 };

/* Row n expires in 100 + n seconds; all are at rest. */
static void filled_for(struct kit *k)
{
    char text[32];
    kit_open(k);
    for (uint32_t n = 0; n < ROWS; n++) put_for(k, "ns", key_of(text, n), "some value of a row", 100 + n);
    rest(k);
    assert_int_equal(stats_of(k).kv_rows_in_memory, 0);
    assert_int_equal(stored(k, DUE_ROWS), ROWS);
}

static void expires(struct kit *k)
{
    while (engine_kv_expire(k->e, INT64_MAX, 50)) continue;
    assert_null(engine_check(k->e));
}

static void rows_expire_at_rest(void **state)
{
    (void)state;
    struct kit k;
    char text[32], list[256];
    int64_t from_us;
    filled_for(&k);
    assert_false(engine_kv_expired(k.e, &from_us));
    kit_pass(&k, 300 * INT64_C(1000000));
    put(&k, "other", slice_of("x"), "1"); /* an entry: time passes in the log */
    struct hash128_pair before = engine_digest(k.e);
    assert_true(engine_kv_expired(k.e, &from_us));
    k.scans = 0;
    assert_true(engine_kv_expire(k.e, INT64_MAX, 150));
    assert_int_equal(k.scans, 1); /* of due rows: the rows themselves are not read */
    assert_int_equal(stats_of(&k).kv_rows, ROWS - 150 + 1);
    expires(&k);
    assert_int_equal(stats_of(&k).kv_rows, ROWS - 201 + 1);
    assert_int_equal(spaces(&k, list), ROWS - 201 + 1);
    assert_false(engine_kv_expired(k.e, &from_us));
    struct hash128_pair after = engine_digest(k.e);
    assert_true(before.low == after.low && before.high == after.high);
    assert_int_equal(stored(&k, KV_ROWS), ROWS);
    assert_false(get(&k, key_of(text, 200))->found); /* the store has it still */
    assert_true(get(&k, key_of(text, 201))->found);
    rest(&k);
    assert_int_equal(stored(&k, KV_ROWS), ROWS - 201 + 1);
    assert_int_equal(stored(&k, DUE_ROWS), ROWS - 201);
    assert_int_equal(stats_of(&k).kv_rows_in_memory, 0);
    kit_close(&k);
}

/* Those of one call expire at one moment: the ones that are removed and that the store still has do not hold up the others. */
static void rows_that_expire_together(void **state)
{
    enum { TOGETHER = 100 };
    (void)state;
    struct kit k;
    char text[32];
    struct buf b = {0};
    kit_open(&k);
    size_t at = kv_begin(&b, KIT_TENANT, TOGETHER);
    for (uint32_t n = 0; n < TOGETHER; n++) {
        struct kv_op op = {.kind = KV_PUT, .key = key_of(text, n), .value = slice_of("1"), .ttl_us = 100 * INT64_C(1000000)};
        op.name_space = slice_of("ns");
        kv_op_add(&b, &op);
    }
    kv_end(&b, at);
    kit_do(&k, &b);
    rest(&k);
    kit_pass(&k, 200 * INT64_C(1000000));
    put(&k, "other", slice_of("x"), "1");
    for (uint32_t n = 0; n < TOGETHER / 10; n++) engine_kv_expire(k.e, INT64_MAX, 10);
    assert_int_equal(stats_of(&k).kv_rows, 1);
    assert_null(engine_check(k.e));
    kit_close(&k);
}

static void an_expired_row_at_rest_is_found_by_nobody(void **state)
{
    (void)state;
    struct kit k;
    char text[32];
    filled_for(&k);
    kit_pass(&k, 300 * INT64_C(1000000));
    assert_false(get(&k, key_of(text, 5))->found);
    assert_true(get(&k, key_of(text, 300))->found);
    struct kv_op claim = {.kind = KV_PUT, .key = key_of(text, 7), .value = slice_of("2"), .flags = KV_EXPECT};
    assert_true(call(&k, "ns", claim)->applied); /* it was not there */
    struct kv_op all = {.kind = KV_GET_PREFIX, .key = slice_of("key-"), .value = slice_of(""), .limit = 1000};
    assert_int_equal(call(&k, "ns", all)->row_count, ROWS - 201 + 1); /* row 7 is there */
    rest(&k);
    expires(&k);
    assert_true(slice_is(get(&k, key_of(text, 7))->value, "2"));
    kit_close(&k);
}

/* The due row of what was changed says what is so now, or is gone. */
static void rows_renewed_or_removed_at_rest(void **state)
{
    (void)state;
    struct kit k;
    char text[32];
    filled_for(&k);
    for (uint32_t n = 0; n < 100; n++) put_for(&k, "ns", key_of(text, n), "renewed", 1000);
    for (uint32_t n = 100; n < 150; n++) put(&k, "ns", key_of(text, n), "for ever");
    for (uint32_t n = 150; n < 180; n++) put_for(&k, "ns", key_of(text, n), "short", 30);
    for (uint32_t n = 180; n < 200; n++) call(&k, "ns", (struct kv_op){.kind = KV_DELETE, .key = key_of(text, n)});
    rest(&k);
    assert_int_equal(stored(&k, DUE_ROWS), ROWS - 100);
    kit_pass(&k, 850 * INT64_C(1000000));
    put(&k, "other", slice_of("x"), "1");
    expires(&k);
    rest(&k);
    assert_int_equal(stats_of(&k).kv_rows, 151);
    assert_int_equal(stored(&k, DUE_ROWS), 100);
    assert_true(slice_is(get(&k, key_of(text, 99))->value, "renewed"));
    assert_true(slice_is(get(&k, key_of(text, 149))->value, "for ever"));
    rest(&k);
    kit_pass(&k, 200 * INT64_C(1000000));
    put(&k, "other", slice_of("x"), "1");
    expires(&k);
    assert_int_equal(stats_of(&k).kv_rows, 51);
    rest(&k);
    assert_int_equal(stored(&k, DUE_ROWS), 0);
    assert_int_equal(stored(&k, KV_ROWS), 51);
    kit_close(&k);
}

/* A count keeps its expiry, and its due row the size and version of what is there now. */
static void a_row_that_keeps_its_expiry(void **state)
{
    (void)state;
    struct kit k;
    struct kv_op add = {.kind = KV_INCR, .key = slice_of("n"), .value = slice_of("100"), .ttl_us = 100 * INT64_C(1000000)};
    kit_open(&k);
    assert_true(call(&k, "ns", add)->applied);
    rest(&k);
    assert_true(call(&k, "ns", add)->applied);
    add.value = slice_of("9900000");
    assert_true(call(&k, "ns", add)->applied);
    rest(&k);
    assert_int_equal(stored(&k, DUE_ROWS), 1);
    assert_int_equal(stats_of(&k).kv_rows_in_memory, 0);
    kit_pass(&k, 50 * INT64_C(1000000));
    assert_true(call(&k, "ns", add)->applied); /* written for less than a minute from here: in memory until then */
    rest(&k);
    assert_int_equal(stored(&k, DUE_ROWS), 0);
    assert_int_equal(stats_of(&k).kv_rows_in_memory, 1);
    kit_pass(&k, 60 * INT64_C(1000000));
    put(&k, "other", slice_of("x"), "1");
    rest(&k);
    assert_int_equal(stats_of(&k).kv_rows, 1);
    kit_close(&k);
}

/* A crash when rows were removed and the store does not know: the next start finds them expired again. */
static void a_start_between_expiry_and_the_stores_removal(void **state)
{
    (void)state;
    struct kit k;
    char text[32];
    int64_t from_us;
    filled_for(&k);
    kit_pass(&k, 300 * INT64_C(1000000));
    put(&k, "other", slice_of("x"), "1");
    kit_cut(&k);
    struct hash128_pair before = engine_digest(k.e);
    expires(&k);
    kit_reload(&k, engine_applied_index(k.e));
    assert_null(engine_check(k.e));
    assert_int_equal(stats_of(&k).kv_rows, ROWS + 1);
    assert_true(engine_kv_expired(k.e, &from_us));
    struct hash128_pair after = engine_digest(k.e);
    assert_true(before.low == after.low && before.high == after.high);
    assert_false(get(&k, key_of(text, 3))->found);
    expires(&k);
    uint64_t revision = kit_cut_begin(&k); /* on its way: one comes again */
    put_for(&k, "ns", key_of(text, 4), "again", 500);
    engine_cut_stored(k.e, revision);
    rest(&k);
    assert_int_equal(stats_of(&k).kv_rows_in_memory, 0);
    assert_true(slice_is(get(&k, key_of(text, 4))->value, "again"));
    assert_int_equal(stats_of(&k).kv_rows, ROWS - 200 + 1);
    kit_close(&k);
}

static void holders_at_rest_hold(void **state)
{
    (void)state;
    struct kit k;
    struct lock_op op = {.kind = LOCK_ACQUIRE, .name = slice_of("l"), .limit = 3, .ttl_us = 100 * INT64_C(1000000)};
    kit_open(&k);
    for (int round = 0; round < 5; round++) {
        struct buf b = {0};
        size_t at = locks_begin(&b, KIT_TENANT, 1);
        lock_op_add(&b, &op);
        locks_end(&b, at);
        kit_do(&k, &b);
        assert_int_equal(k.result.locks.items[0].done, round < 3 || round == 4);
        if (round == 3) assert_int_equal(k.result.locks.items[0].holder_count, 3);
        rest(&k);
        assert_int_equal(stats_of(&k).kv_rows_in_memory, 0);
        if (round < 3) assert_int_equal(stats_of(&k).lock_rows, round + 1);
        if (round == 3) kit_pass(&k, 100 * INT64_C(1000000));
    }
    expires(&k);
    assert_int_equal(stats_of(&k).lock_rows, 1);
    kit_close(&k);
}

static void a_walk_finds_those_in_memory_and_at_rest_in_order(void **state)
{
    (void)state;
    struct kit k;
    char text[32];
    filled(&k);
    rest(&k);
    for (uint32_t n = 0; n < ROWS; n += 3) put(&k, "ns", key_of(text, n), "2");
    for (uint32_t n = 1; n < ROWS; n += 30) call(&k, "ns", (struct kv_op){.kind = KV_DELETE, .key = key_of(text, n)});
    struct kv_op op = {.kind = KV_GET_PREFIX, .key = slice_of("key-"), .value = slice_of("")};
    char after[32], wanted[32];
    uint32_t next = 0;
    bool more = true;
    for (op.limit = 7; more; op.limit += 60) {
        const struct kv_outcome *o = call(&k, "ns", op);
        for (uint32_t i = 0; i < o->row_count; i++, next++) {
            if (next % 30 == 1) next++;
            assert_true(slice_equal(o->rows[i].key, key_of(wanted, next)));
            assert_true(slice_is(o->rows[i].value, next % 3 == 0 ? "2" : "1"));
        }
        more = o->truncated;
        op.value = key_of(after, next - 1);
    }
    assert_int_equal(next, ROWS);
    assert_null(engine_check(k.e));
    kit_close(&k);
}

static void a_walk_that_ends_early_reads_little(void **state)
{
    (void)state;
    struct kit k;
    filled(&k);
    rest(&k);
    k.scans = 0;
    struct kv_op op = {.kind = KV_GET_PREFIX, .key = slice_of("key-"), .value = slice_of(""), .limit = 10};
    assert_int_equal(call(&k, "ns", op)->row_count, 10);
    assert_int_equal(k.scans, 1);
    assert_in_range(stats_of(&k).kv_rows_in_memory, 11, 16);
    kit_close(&k);
}

/* The store has the row still: nothing may find it. */
static void a_removed_row_does_not_come_back(void **state)
{
    (void)state;
    struct kit k;
    char text[32], list[256];
    filled(&k);
    rest(&k);
    struct kv_op all = {.kind = KV_GET_PREFIX, .key = slice_of("key-"), .value = slice_of(""), .limit = 1000};
    assert_true(call(&k, "ns", (struct kv_op){.kind = KV_DELETE, .key = key_of(text, 9)})->applied);
    assert_false(get(&k, key_of(text, 9))->found);
    assert_int_equal(call(&k, "ns", all)->row_count, ROWS - 1);
    uint64_t revision = kit_cut_begin(&k);
    put(&k, "ns", key_of(text, 9), "3"); /* while that is on its way */
    engine_cut_stored(k.e, revision);
    assert_true(slice_is(get(&k, key_of(text, 9))->value, "3"));
    call(&k, "ns", (struct kv_op){.kind = KV_DELETE, .key = key_of(text, 9)});
    rest(&k);
    assert_int_equal(stats_of(&k).kv_rows_in_memory, 0);
    assert_false(get(&k, key_of(text, 9))->found);
    assert_int_equal(spaces(&k, list), ROWS - 1);
    kit_close(&k);
}

static uint64_t path_hash(const char *key)
{
    char path[64];
    memcpy(path, KIT_TENANT.bytes, 16);
    return hash64(slice_make(path, 16U + (size_t)snprintf(path + 16, 48, "ns%c%s", 0, key)), 0);
}

struct hashed {
    uint32_t tag, n;
};

static int hashed_compare(const void *x, const void *y)
{
    const struct hashed *a = x, *b = y;
    return a->tag < b->tag ? -1 : a->tag > b->tag;
}

/* Two keys whose places in the index are the same. */
static bool twins(char a[32], char b[32])
{
    enum { KEYS = 400000 };
    struct hashed *all = malloc(KEYS * sizeof *all);
    bool found = false;
    for (uint32_t n = 0; n < KEYS; n++) {
        snprintf(a, 32, "twin-%u", n);
        all[n] = (struct hashed){.tag = (uint32_t)(path_hash(a) >> 32), .n = n};
    }
    qsort(all, KEYS, sizeof *all, hashed_compare);
    for (uint32_t i = 1; i < KEYS && !found; i++) {
        found = all[i].tag == all[i - 1].tag;
        snprintf(a, 32, "twin-%u", all[i].n);
        snprintf(b, 32, "twin-%u", all[i - 1].n);
    }
    free(all);
    return found;
}

static void keys_that_hash_alike_are_told_apart(void **state)
{
    (void)state;
    struct kit k;
    char a[32], b[32];
    assert_true(twins(a, b));
    kit_open(&k);
    put(&k, "ns", slice_of(a), "1");
    rest(&k);
    k.scans = 0;
    assert_false(get(&k, slice_of(b))->found);
    assert_int_equal(k.scans, 1);
    put(&k, "ns", slice_of(b), "2");
    assert_int_equal(stats_of(&k).kv_rows_in_memory, 1);
    rest(&k);
    assert_int_equal(stats_of(&k).kv_rows_in_memory, 0);
    assert_true(slice_is(get(&k, slice_of(b))->value, "2"));
    assert_true(call(&k, "ns", (struct kv_op){.kind = KV_DELETE, .key = slice_of(b)})->applied);
    assert_false(get(&k, slice_of(b))->found); /* the store has it, and one that hashes alike is at rest */
    put(&k, "ns", slice_of(b), "3");
    call(&k, "ns", (struct kv_op){.kind = KV_DELETE, .key = slice_of(b)});
    rest(&k);
    assert_false(get(&k, slice_of(b))->found);
    assert_true(slice_is(get(&k, slice_of(a))->value, "1"));
    assert_null(engine_check(k.e));
    kit_close(&k);
}

static void namespaces_count_those_at_rest(void **state)
{
    (void)state;
    struct kit k;
    char text[32], list[256];
    struct tenant_rows rows;
    kit_open(&k);
    for (uint32_t n = 0; n < 5; n++) put(&k, "b", key_of(text, n), "1");
    for (uint32_t n = 0; n < 3; n++) put(&k, "d", key_of(text, n), "1");
    rest(&k);
    put(&k, "a", slice_of("x"), "1");
    put(&k, "c", slice_of("x"), "1");
    put(&k, "e", slice_of("x"), "1");
    put(&k, "d", slice_of("x"), "1");
    assert_int_equal(spaces(&k, list), 12);
    assert_string_equal(list, "a:1 b:5 c:1 d:4 e:1 ");
    engine_tenant_rows(k.e, KIT_TENANT, &rows);
    assert_int_equal(rows.kv_rows, 12);
    assert_int_equal(rows.kv_bytes, 8 * (1 + 9 + 1) + 4 * 3);
    for (uint32_t n = 0; n < 5; n++) call(&k, "b", (struct kv_op){.kind = KV_DELETE, .key = key_of(text, n)});
    assert_int_equal(spaces(&k, list), 7);
    assert_string_equal(list, "a:1 c:1 d:4 e:1 ");
    rest(&k);
    kit_reload(&k, engine_applied_index(k.e));
    assert_int_equal(spaces(&k, list), 7);
    assert_string_equal(list, "a:1 c:1 d:4 e:1 ");
    engine_tenant_rows(k.e, KIT_TENANT, &rows);
    assert_int_equal(rows.kv_rows, 7);
    kit_close(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_idle_broker_keeps_no_record),
        cmocka_unit_test(what_is_not_stored_or_lives_short_stays),
        cmocka_unit_test(rows_expire_at_rest),
        cmocka_unit_test(rows_that_expire_together),
        cmocka_unit_test(an_expired_row_at_rest_is_found_by_nobody),
        cmocka_unit_test(rows_renewed_or_removed_at_rest),
        cmocka_unit_test(a_row_that_keeps_its_expiry),
        cmocka_unit_test(a_start_between_expiry_and_the_stores_removal),
        cmocka_unit_test(holders_at_rest_hold),
        cmocka_unit_test(a_walk_finds_those_in_memory_and_at_rest_in_order),
        cmocka_unit_test(a_walk_that_ends_early_reads_little),
        cmocka_unit_test(a_removed_row_does_not_come_back),
        cmocka_unit_test(keys_that_hash_alike_are_told_apart),
        cmocka_unit_test(namespaces_count_those_at_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
