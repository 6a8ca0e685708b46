/* Places of payloads that move between entries: who holds what, and that nothing but places changes. */
#include "engine_kit.h"

static int setup(void **state)
{
    struct kit *k = calloc(1, sizeof *k);
    kit_open(k);
    *state = k;
    return 0;
}

static int teardown(void **state)
{
    kit_close(*state);
    free(*state);
    return 0;
}

static void digest_same(struct kit *k, struct hash128_pair before)
{
    struct hash128_pair now = engine_digest(k->e);
    assert_true(now.low == before.low && now.high == before.high);
    assert_null(engine_check(k->e));
}

static uint32_t archived(struct kit *k)
{
    struct kit_holders all = {0};
    kit_holders(k, PLACE_ARCHIVE, UINT64_MAX, &all);
    free(all.at);
    return all.count;
}

/* All that lies in the log goes to the archive; how many could. */
static uint32_t log_empty(struct kit *k)
{
    struct kit_holders all = {0};
    uint32_t moved = 0;
    kit_holders(k, 0, PLACE_ARCHIVE, &all);
    for (uint32_t i = 0; i < all.count; i++) moved += kit_move(k, &all.at[i]);
    free(all.at);
    return moved;
}

static void runs_move_in_memory_and_in_rows(void **state)
{
    struct kit *k = *state;
    for (int i = 0; i < 100; i++) kit_push(k, "q", i % 2 == 0 ? "even" : "odd", "- -");
    kit_cut(k);
    for (int i = 0; i < 10; i++) kit_push(k, "q", "even", "-"); /* in no cut yet */
    struct hash128_pair digest = engine_digest(k->e);
    assert_int_equal(log_empty(k), 110);
    digest_same(k, digest);
    assert_int_equal(engine_segment_live(k->e, 0), 0);
    assert_true(engine_segment_live(k->e, PLACE_ARCHIVE) > 0);
    assert_int_equal(engine_archive_last(k->e), PLACE_ARCHIVE | (k->archive.len - 1) >> 16 << 16);
    kit_cut(k);
    kit_reload(k, engine_applied_index(k->e));
    digest_same(k, digest);
    assert_int_equal(archived(k), 110);
    struct pop_command p = kit_pop_of("q", "g", 1);
    kit_pop(k, &p);
    assert_true(k->result.pop.claims[0].pieces[0].where & PLACE_ARCHIVE);
}

static void what_is_on_its_way_to_the_store_stays_where_it_is(void **state)
{
    struct kit *k = *state;
    for (int i = 0; i < 5; i++) kit_push(k, "q", "p", "-");
    uint64_t first = kit_cut_begin(k);
    assert_int_equal(log_empty(k), 0);
    engine_cut_stored(k->e, first);
    assert_int_equal(log_empty(k), 5);
    assert_true(engine_revision(k->e) > first);
    uint64_t second = kit_cut_begin(k);
    engine_cut_stored(k->e, first); /* says nothing of the second one */
    assert_int_equal(archived(k), 5);
    engine_cut_stored(k->e, second);
    assert_int_equal(archived(k), 5);
    assert_int_equal(engine_cut_size(k->e), 0);
}

static void rows_given_up_meanwhile_stay_given_up(void **state)
{
    struct kit *k = *state;
    struct buf b = {0};
    for (int i = 0; i < 3; i++) {
        kit_push(k, "q", "p", "- -");
        kit_push(k, "gone", "p", "-");
        kit_cut(k);
    }
    size_t rows = k->store.count;
    assert_int_equal(log_empty(k), 6);
    struct trim_item item = {.partition = 1, .start = 4};
    trim_encode(&b, &item, 1);
    kit_do(k, &b);
    struct queue_delete_command d = {.tenant = KIT_TENANT, .queue = slice_of("gone")};
    queue_delete_encode(&b, &d);
    kit_do(k, &b);
    while (engine_housekeep(k->e)) continue;
    kit_cut(k);
    assert_int_equal(k->store.count, rows - 2 - 5); /* two rows of runs of the first; queue, lane, three of runs of the other */
    assert_null(engine_check(k->e));
    assert_int_equal(archived(k), 1);
    kit_reload(k, engine_applied_index(k->e));
    assert_int_equal(archived(k), 1);
    assert_null(engine_check(k->e));
}

static void a_holder_that_changed_is_left_alone(void **state)
{
    struct kit *k = *state;
    struct kit_holders all = {0};
    struct buf b = {0};
    for (int i = 0; i < 4; i++) kit_push(k, "q", "p", "-");
    kit_cut(k);
    kit_holders(k, 0, PLACE_ARCHIVE, &all);
    assert_int_equal(all.count, 4);
    assert_true(kit_move(k, &all.at[0]));
    assert_false(kit_move(k, &all.at[0])); /* it is elsewhere by now */
    struct trim_item item = {.partition = 1, .start = 2};
    trim_encode(&b, &item, 1);
    kit_do(k, &b);
    assert_false(kit_move(k, &all.at[1]));
    assert_true(kit_move(k, &all.at[3]));
    assert_null(engine_check(k->e));
    free(all.at);
}

static void timer_schedule(struct kit *k, int64_t delay_us)
{
    struct buf b = {0};
    size_t at = timers_begin(&b, KIT_TENANT, 1);
    struct timer_op op = {
        .kind = TIMER_SCHEDULE, .queue = slice_of("q"), .key = slice_of("t"), .partition = slice_of("p"), .delay_us = delay_us};
    op.item = (struct push_item){.flags = ITEM_TRANSACTION | ITEM_ID,
                                 .transaction = slice_of("txn"),
                                 .id = kit_lease(777),
                                 .payload = slice_of("{\"t\":1}")};
    timer_op_add(&b, &op);
    timers_end(&b, at);
    kit_do(k, &b);
}

static void a_timer_fires_from_where_it_is(void **state)
{
    struct kit *k = *state;
    struct buf b = {0};
    timer_schedule(k, 1000000);
    kit_cut(k);
    struct hash128_pair digest = engine_digest(k->e);
    assert_int_equal(log_empty(k), 1);
    digest_same(k, digest);
    kit_cut(k);
    kit_reload(k, engine_applied_index(k->e));
    kit_pass(k, 2000000);
    tick_encode(&b);
    kit_do(k, &b);
    assert_int_equal(k->result.tick.fired, 1);
    assert_int_equal(archived(k), 1); /* the run */
    kit_push(k, "q", "p", "txn");     /* its id is read there */
    assert_int_equal(k->result.push.items[0].status, PUSH_DUPLICATE);
    assert_true(uuid_equal(k->result.push.items[0].id, kit_lease(777)));
    assert_null(engine_check(k->e));
}

static void letters_move_with_their_rows(void **state)
{
    struct kit *k = *state;
    kit_push(k, "q", "p", "a b");
    struct pop_command p = kit_pop_of("q", "g", 1);
    kit_pop(k, &p);
    assert_int_equal(kit_ack(k, "g", 1, 1, "a", ACK_DLQ), ACK_OK);
    kit_cut(k);
    struct hash128_pair digest = engine_digest(k->e);
    assert_int_equal(log_empty(k), 2); /* the run and the letter */
    digest_same(k, digest);
    kit_cut(k);
    kit_reload(k, engine_applied_index(k->e));
    digest_same(k, digest);
    struct dead_letter_view d;
    uint64_t before = UINT64_MAX;
    assert_true(engine_dead_letter_next(k->e, KIT_TENANT, slice_of(""), slice_of(""), &before, &d));
    assert_true(d.piece.where & PLACE_ARCHIVE);
}

static void found(void *ctx, const struct holder *h)
{
    assert_true(h->bytes > 0);
    ++*(uint32_t *)ctx;
}

static void a_lane_is_looked_at_between_two_times_only(void **state)
{
    struct kit *k = *state;
    int64_t us[30];
    uint64_t where[30];
    for (int i = 0; i < 30; i++) {
        where[i] = k->log->bytes.len;
        kit_push(k, "q", "p", "-");
        us[i] = k->wall_us;
        kit_pass(k, 1000);
        if (i % 7 == 0) kit_cut(k);
    }
    uint32_t count = 0;
    struct lane_look l = {
        .tenant = KIT_TENANT, .queue = slice_of("q"), .lane = slice_of("p"), .from_us = us[10], .until_us = us[19]};
    uint32_t calls = 1;
    for (; !engine_lane_holders(k->e, &l, 0, PLACE_ARCHIVE, 4, found, &count); calls++) continue;
    assert_int_equal(count, 10);
    assert_int_equal(calls, 3);
    count = 0;
    l = (struct lane_look){.partition = 1, .from_us = us[10], .until_us = INT64_MAX, .pushed = true};
    while (!engine_lane_holders(k->e, &l, where[10], where[15], 1, found, &count)) continue;
    assert_int_equal(count, 5);
    assert_true(l.next < 20); /* what lies behind was not looked at */
    l = (struct lane_look){.tenant = KIT_TENANT, .queue = slice_of("q"), .lane = slice_of("none"), .until_us = INT64_MAX};
    assert_true(engine_lane_holders(k->e, &l, 0, UINT64_MAX, 1, found, &count));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(runs_move_in_memory_and_in_rows),
        TEST(what_is_on_its_way_to_the_store_stays_where_it_is),
        TEST(rows_given_up_meanwhile_stay_given_up),
        TEST(a_holder_that_changed_is_left_alone),
        TEST(a_timer_fires_from_where_it_is),
        TEST(letters_move_with_their_rows),
        TEST(a_lane_is_looked_at_between_two_times_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
