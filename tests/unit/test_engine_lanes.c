/* Lanes at rest: when they leave memory, that they come back as they were, and that walks over many need little. */
#include "engine_kit.h"

enum { MANY = 3000 };

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

static struct engine_stats stats(const struct kit *k)
{
    struct engine_stats s;
    engine_stats(k->e, &s);
    return s;
}

static void lane_name(char out[24], int i)
{
    snprintf(out, 24, "lane-%d", i);
}

/* One message in each lane. */
static void lanes_push(struct kit *k, int count)
{
    char name[24];
    for (int i = 0; i < count; i++) {
        lane_name(name, i);
        kit_push(k, "q", name, "a");
    }
}

/* The group takes all there is and acks it as it is delivered. */
static void lanes_drain(struct kit *k, const char *group)
{
    struct pop_command p = kit_pop_of("q", group, 1);
    p.auto_ack = true;
    p.partitions = 64;
    do kit_pop(k, &p);
    while (k->result.pop.count > 0);
}

static void all_leave(struct kit *k)
{
    kit_cut(k);
    engine_idle(k->e);
    while (engine_housekeep(k->e)) continue;
}

static void a_lane_comes_back_as_it_was(void **state)
{
    struct kit *k = *state;
    struct cursor_view before, after;
    struct pop_command p = kit_pop_of("q", "g", 7);
    kit_push(k, "q", "p", "a b c");
    p.batch = 2;
    kit_pop(k, &p);
    assert_int_equal(kit_ack(k, "g", 1, 7, "a", ACK_COMPLETED), ACK_OK);
    assert_int_equal(kit_ack(k, "g", 1, 7, "b", ACK_COMPLETED), ACK_OK);
    lanes_drain(k, "g");
    assert_true(engine_cursor_get(k->e, 1, 1, kit_now(k), &before));
    struct hash128_pair x = engine_digest(k->e);
    all_leave(k);
    assert_int_equal(stats(k).lanes_in_memory, 0);
    assert_int_equal(stats(k).lane_bytes, 0);
    assert_int_equal(stats(k).cursors, 1);
    assert_int_equal(stats(k).partitions, 1);
    struct hash128_pair y = engine_digest(k->e);
    assert_true(x.low == y.low && x.high == y.high);
    assert_null(engine_check(k->e));
    assert_int_equal(stats(k).lanes_in_memory, 0); /* digest and check let go again */
    assert_true(engine_cursor_get(k->e, 1, 1, kit_now(k), &after));
    assert_memory_equal(&before, &after, sizeof before);
    /* The repeat rule still knows the lease, the dedup window still knows the ids. */
    assert_int_equal(kit_ack(k, "g", 1, 7, "b", ACK_COMPLETED), ACK_OK);
    assert_int_equal(kit_ack(k, "g", 1, 6, "b", ACK_COMPLETED), ACK_REFUSED_LEASE);
    kit_push(k, "q", "p", "c d");
    assert_int_equal(k->result.push.items[0].status, PUSH_DUPLICATE);
    assert_int_equal(k->result.push.items[1].offset, 3);
    kit_pop(k, &p);
    assert_int_equal(k->result.pop.messages, 1);
    assert_int_equal(k->result.pop.claims[0].first_offset, 3);
}

static void what_is_waited_for_or_not_stored_stays(void **state)
{
    struct kit *k = *state;
    struct pop_command p = kit_pop_of("q", "g", 1);
    k->ready = 0;
    kit_push(k, "q", "leased", "a");
    kit_pop(k, &p);
    kit_push(k, "q", "ready", "a");
    kit_push(k, "other", "without-group", "a");
    all_leave(k);
    assert_int_equal(stats(k).lanes_in_memory, 2);
    /* Changed and in a cut, but the store does not say so yet. */
    kit_push(k, "other", "without-group", "b");
    uint64_t first = kit_cut_begin(k);
    kit_push(k, "other", "without-group", "c");
    uint64_t second = kit_cut_begin(k);
    engine_cut_stored(k->e, first);
    engine_idle(k->e);
    while (engine_housekeep(k->e)) continue;
    assert_int_equal(stats(k).lanes_in_memory, 3);
    engine_cut_stored(k->e, second);
    engine_idle(k->e);
    while (engine_housekeep(k->e)) continue;
    assert_int_equal(stats(k).lanes_in_memory, 2);
    /* The same of a cursor alone. */
    kit_pass(k, 400000000);
    lanes_drain(k, "g");
    first = kit_cut_begin(k);
    engine_idle(k->e);
    while (engine_housekeep(k->e)) continue;
    assert_int_equal(stats(k).lanes_in_memory, 2);
    engine_cut_stored(k->e, first);
    engine_idle(k->e);
    while (engine_housekeep(k->e)) continue;
    assert_int_equal(stats(k).lanes_in_memory, 0);
}

static void lanes_that_no_entry_touched_for_a_round_leave(void **state)
{
    struct kit *k = *state;
    lanes_push(k, 100);
    for (int i = 0; i < 12; i++) {
        kit_push(k, "q", "lane-5", "-");
        kit_cut(k);
        kit_pass(k, 20000000);
    }
    assert_in_range(stats(k).lanes_in_memory, 1, 2);
    kit_push(k, "q", "lane-5", "-");
    k->scans = 0;
    kit_push(k, "q", "lane-5", "-");
    assert_int_equal(k->scans, 0);
}

static void memory_stays_within_the_budget(void **state)
{
    struct kit *k = *state;
    k->budget.lanes = 40000;
    kit_cut(k);
    kit_reload(k, engine_applied_index(k->e));
    for (int i = 0; i < MANY; i++) {
        char name[24];
        lane_name(name, i);
        kit_push(k, "q", name, "a");
        if (i % 50 == 0) kit_cut(k);
        if (i > 400) assert_in_range(stats(k).lane_bytes, 1, 40000 + 50 * 400);
    }
    kit_cut(k);
    assert_in_range(stats(k).lane_bytes, 1, 40000);
    assert_int_equal(stats(k).partitions, MANY);
}

static void walks_over_many_lanes_need_little(void **state)
{
    struct kit *k = *state;
    struct lane_counts counts;
    struct lane_view lane = {0};
    struct partition_view partition;
    lanes_push(k, MANY);
    lanes_drain(k, "g");
    all_leave(k);
    k->scans = 0;
    uint32_t seen = 0;
    for (; engine_lane_next(k->e, 1, lane.number, &lane); seen++) {
        engine_lane_counts(k->e, lane.number, kit_now(k), &counts);
        assert_int_equal(counts.total, 1);
        assert_int_equal(counts.pending, 0);
        engine_visits_over(k->e);
        assert_in_range(stats(k).lanes_in_memory, 0, 1000);
    }
    assert_int_equal(seen, MANY);
    assert_in_range(k->scans, 1, MANY / 100 + 10);
    k->scans = 0;
    for (uint32_t after = 0; engine_partition_next(k->e, 1, after, kit_now(k), &partition); after = partition.number)
        engine_visits_over(k->e);
    engine_idle(k->e);
    while (engine_housekeep(k->e)) continue;
    assert_int_equal(stats(k).lanes_in_memory, 0);
    /* A new group looks for lanes with messages: it takes what it claims, no more. */
    struct pop_command p = kit_pop_of("q", "new", 9);
    p.partitions = 2;
    k->scans = 0;
    kit_pop(k, &p);
    assert_int_equal(k->result.pop.count, 2);
    assert_int_equal(stats(k).lanes_in_memory, 2);
}

static void a_start_makes_stubs_of_lanes_at_rest(void **state)
{
    struct kit *k = *state;
    struct pop_command p = kit_pop_of("q", "g", 3);
    lanes_push(k, 50);
    lanes_drain(k, "g");
    kit_push(k, "q", "lane-7", "b");
    kit_push(k, "q", "lane-9", "b");
    kit_pop(k, &p);
    struct hash128_pair x = engine_digest(k->e);
    kit_cut(k);
    k->scans = 0;
    kit_reload(k, engine_applied_index(k->e));
    assert_int_equal(k->scans, 0);
    assert_int_equal(stats(k).lanes_in_memory, 2);
    assert_int_equal(stats(k).cursors, 50);
    assert_int_equal(stats(k).leases, 1);
    struct hash128_pair y = engine_digest(k->e);
    assert_true(x.low == y.low && x.high == y.high);
    kit_pop(k, &p);
    assert_int_equal(k->result.pop.claims[0].partition, 10);
}

static void a_deleted_queue_of_lanes_at_rest_is_reaped_by_scans(void **state)
{
    struct kit *k = *state;
    struct buf b = {0};
    lanes_push(k, MANY);
    lanes_drain(k, "g");
    kit_push(k, "keeps", "p", "a");
    all_leave(k);
    for (int i = 0; i < 10; i++) { /* some in memory, some of these with runs that no row has */
        char name[24];
        lane_name(name, i * 7);
        kit_push(k, "q", name, "more");
        if (i == 5) kit_cut(k);
    }
    uint64_t kept = engine_segment_live(k->e, 0);
    assert_true(kept > 0);
    struct queue_delete_command d = {.tenant = KIT_TENANT, .queue = slice_of("q")};
    queue_delete_encode(&b, &d);
    kit_do(k, &b);
    k->scans = 0;
    while (engine_housekeep(k->e)) assert_in_range(stats(k).lanes_in_memory, 0, 12);
    assert_in_range(k->scans, 1, MANY / 50);
    assert_int_equal(stats(k).partitions, 1);
    assert_int_equal(stats(k).cursors, 0);
    assert_null(engine_check(k->e));
    kit_cut(k);
    size_t rows = 0;
    for (size_t i = 0; i < k->store.count; i++) {
        unsigned char kind = (unsigned char)k->store.rows[i].key.at[0];
        rows += kind == 4 || kind == 0x81;
    }
    assert_int_equal(rows, 2);
}

static void retention_passes_lanes_at_rest_by_their_stubs(void **state)
{
    struct kit *k = *state;
    struct buf b = {0};
    struct trim_item items[200];
    uint32_t count = 0, found = 0;
    struct configure_command c = {.tenant = KIT_TENANT, .queue = slice_of("q")};
    c.options.numbers[OPTION_RETENTION_ENABLED] = 1;
    c.options.numbers[OPTION_RETENTION_SECONDS] = 100;
    c.given = 1u << OPTION_RETENTION_ENABLED | 1u << OPTION_RETENTION_SECONDS;
    configure_encode(&b, &c);
    kit_do(k, &b);
    lanes_push(k, 200);
    lanes_drain(k, "g");
    kit_pass(k, 60000000);
    kit_push(k, "q", "lane-3", "young");
    lanes_drain(k, "g");
    all_leave(k);
    k->scans = 0;
    assert_int_equal(engine_trim_due(k->e, kit_now(k), &(struct trim_limits){10000, 200, 10000}, items, &count),
                     TRIM_ROUND_DONE);
    assert_int_equal(count, 0);
    assert_int_equal(k->scans, 0);
    assert_int_equal(stats(k).lanes_in_memory, 0);
    kit_pass(k, 50000000);
    while (engine_trim_due(k->e, kit_now(k), &(struct trim_limits){10000, 200, 10000}, items, &count) == TRIM_GOES_ON)
        found += count;
    found += count;
    assert_int_equal(found, 200);
    trim_encode(&b, items, found);
    kit_do(k, &b);
    assert_int_equal(k->result.trim.messages, 200);
    all_leave(k);
    k->scans = 0;
    engine_trim_due(k->e, kit_now(k), &(struct trim_limits){10000, 200, 10000}, items, &count);
    assert_int_equal(k->scans, 0); /* 199 are empty, the other is young */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_lane_comes_back_as_it_was, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_waited_for_or_not_stored_stays, setup, teardown),
        cmocka_unit_test_setup_teardown(lanes_that_no_entry_touched_for_a_round_leave, setup, teardown),
        cmocka_unit_test_setup_teardown(memory_stays_within_the_budget, setup, teardown),
        cmocka_unit_test_setup_teardown(walks_over_many_lanes_need_little, setup, teardown),
        cmocka_unit_test_setup_teardown(a_start_makes_stubs_of_lanes_at_rest, setup, teardown),
        cmocka_unit_test_setup_teardown(a_deleted_queue_of_lanes_at_rest_is_reaped_by_scans, setup, teardown),
        cmocka_unit_test_setup_teardown(retention_passes_lanes_at_rest_by_their_stubs, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
