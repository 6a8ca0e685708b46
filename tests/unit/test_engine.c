/* The engine's rules one by one, with log time and wall time moved by hand. What can be seen over HTTP is in tests/api; here is
 * what only the inside shows: exact edges of windows, wake-ups, what leaves memory, what a cut and a reload keep. */
#include "engine/dedup.h"
#include "engine_kit.h"

enum { SECOND = 1000000 };

static int setup(void **state)
{
    struct kit *k = malloc(sizeof *k);
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

static void configure(struct kit *k, const char *queue, enum queue_option option, int32_t value)
{
    struct buf b = {0};
    struct configure_command c = {.tenant = KIT_TENANT, .queue = slice_of(queue), .given = 1U << option};
    c.options.numbers[option] = value;
    configure_encode(&b, &c);
    kit_do(k, &b);
}

static void assert_push(struct kit *k, uint32_t item, enum push_status status, uint64_t offset)
{
    assert_int_equal(k->result.push.items[item].status, status);
    assert_int_equal(k->result.push.items[item].offset, offset);
}

static void a_message_exactly_window_old_still_counts(void **state)
{
    struct kit *k = *state;
    configure(k, "q", OPTION_DEDUP_WINDOW_SECONDS, 2);
    k->wall_us = k->wall_us / 1000 * 1000 + 5000;
    kit_push(k, "q", "p", "x");
    struct uuid first = k->result.push.items[0].id;
    kit_pass(k, 2 * SECOND);
    kit_push(k, "q", "p", "x");
    assert_push(k, 0, PUSH_DUPLICATE, 0);
    assert_true(uuid_equal(k->result.push.items[0].id, first));
    kit_pass(k, 1000);
    kit_push(k, "q", "p", "x");
    assert_push(k, 0, PUSH_QUEUED, 1);
    kit_push(k, "q", "p", "x");
    assert_push(k, 0, PUSH_DUPLICATE, 1);
}

static void the_lowest_occurrence_inside_the_window_is_answered(void **state)
{
    struct kit *k = *state;
    configure(k, "q", OPTION_DEDUP_WINDOW_SECONDS, 0);
    kit_push(k, "q", "p", "x");
    kit_pass(k, 5 * SECOND);
    kit_push(k, "q", "p", "x");
    kit_push(k, "q", "p", "x");
    assert_push(k, 0, PUSH_QUEUED, 2);
    configure(k, "q", OPTION_DEDUP_WINDOW_SECONDS, 3);
    kit_push(k, "q", "p", "x");
    assert_push(k, 0, PUSH_DUPLICATE, 1);
}

static void a_stored_messages_own_id_is_a_duplicate_too(void **state)
{
    struct kit *k = *state;
    char text[UUID_TEXT + 1] = {0};
    kit_push(k, "q", "p", "- named");
    uuid_text(k->result.push.items[0].id, text);
    kit_push(k, "q", "p", text);
    assert_push(k, 0, PUSH_DUPLICATE, 0);
    kit_push(k, "q", "other", text);
    assert_push(k, 0, PUSH_QUEUED, 0);
    kit_push(k, "q", "p", "named");
    uuid_text(k->result.push.items[0].id, text);
    kit_push(k, "q", "p", text); /* the id of a message that has another identity is a new one */
    assert_push(k, 0, PUSH_QUEUED, 2);
}

static void message_ids_sort_like_offsets_and_are_unique(void **state)
{
    struct kit *k = *state;
    struct uuid last = {{0}};
    for (int i = 0; i < 50; i++) {
        kit_push(k, "q", "p", "- - -");
        for (int j = 0; j < 3; j++) {
            struct uuid id = k->result.push.items[j].id;
            assert_true(memcmp(last.bytes, id.bytes, 16) < 0);
            assert_int_equal(id.bytes[6] >> 4, 7);
            assert_int_equal(id.bytes[8] >> 6, 2);
            last = id;
        }
    }
    kit_push(k, "q", "other", "-");
    assert_false(
        uuid_equal(message_id(engine_id_seed(k->e), 1, 0, k->wall_us), message_id(engine_id_seed(k->e), 2, 0, k->wall_us)));
}

static void a_constant_id_without_window_stays_cheap_and_one_ack_settles_its_batch(void **state)
{
    struct kit *k = *state;
    configure(k, "q", OPTION_DEDUP_WINDOW_SECONDS, 0);
    for (int i = 0; i < 2000; i++) kit_push(k, "q", "p", "same");
    struct pop_command p = kit_pop_of("q", "g", 1);
    p.batch = 10;
    kit_pop(k, &p);
    assert_int_equal(kit_ack(k, "g", 1, 1, "same", ACK_COMPLETED), ACK_OK);
    uint64_t pending, processing;
    engine_lane_depth(k->e, 1, engine_group_find(k->e, KIT_TENANT, slice_of("q"), slice_of("g")), kit_now(k), &pending,
                      &processing);
    assert_int_equal(pending, 1990);
    assert_int_equal(processing, 0);
}

static void an_expired_lease_is_taken_over_and_its_late_ack_changes_nothing(void **state)
{
    struct kit *k = *state;
    kit_push(k, "q", "p", "a b");
    struct pop_command p = kit_pop_of("q", "g", 1);
    p.lease_us = 2 * SECOND;
    kit_pop(k, &p);
    assert_int_equal(k->result.pop.claims[0].attempt, 1);
    kit_pass(k, 2 * SECOND - 1);
    p.lease_id = kit_lease(2);
    kit_pop(k, &p);
    assert_int_equal(k->result.pop.count, 0);
    kit_pass(k, 1);
    kit_pop(k, &p);
    assert_int_equal(k->result.pop.claims[0].attempt, 2);
    assert_int_equal(kit_ack(k, "g", 1, 1, "a", ACK_FAILED), ACK_REFUSED_LEASE);
    assert_int_equal(kit_ack(k, "g", 1, 2, "b", ACK_COMPLETED), ACK_OK);
}

static void an_ack_at_the_very_expiry_is_accepted(void **state)
{
    struct kit *k = *state;
    kit_push(k, "q", "p", "a");
    struct pop_command p = kit_pop_of("q", "g", 1);
    p.lease_us = SECOND;
    kit_pop(k, &p);
    kit_pass(k, SECOND);
    assert_int_equal(kit_ack(k, "g", 1, 1, "a", ACK_COMPLETED), ACK_OK);
}

static void a_returned_claim_is_the_next_one_and_costs_no_attempt(void **state)
{
    struct kit *k = *state;
    struct buf b = {0};
    kit_push(k, "q", "first", "a");
    kit_push(k, "q", "second", "b");
    struct pop_command p = kit_pop_of("q", "g", 1);
    kit_pop(k, &p);
    assert_int_equal(k->result.pop.claims[0].partition, 1);
    claim_return_encode(&b, kit_lease(1));
    kit_do(k, &b);
    p.lease_id = kit_lease(2);
    kit_pop(k, &p);
    assert_int_equal(k->result.pop.claims[0].partition, 1);
    assert_int_equal(k->result.pop.claims[0].attempt, 1);
}

static void every_lane_that_becomes_claimable_is_reported_once(void **state)
{
    struct kit *k = *state;
    struct pop_command p = kit_pop_of("q", "g1", 1), p2 = kit_pop_of("q", "g2", 2);
    kit_pop(k, &p);
    kit_pop(k, &p2);
    k->ready = 0;
    kit_push(k, "q", "new", "a");
    assert_int_equal(k->ready, 2); /* a brand-new lane, both groups */
    kit_push(k, "q", "new", "b");
    assert_int_equal(k->ready, 2); /* it was ready already */
    kit_pop(k, &p);
    k->ready = 0;
    kit_push(k, "q", "new", "c");
    assert_int_equal(k->ready, 0); /* leased by g1, still ready for g2 */
    assert_int_equal(kit_ack(k, "g1", 1, 1, "b", ACK_COMPLETED), ACK_OK);
    assert_int_equal(k->ready, 1); /* c waits for g1 */
    assert_int_equal(
        engine_group_ready(k->e, engine_group_find(k->e, KIT_TENANT, slice_of("q"), slice_of("g1")), kit_now(k), 9), 1);
}

static void due_times_tell_when_a_lane_becomes_claimable_by_itself(void **state)
{
    struct kit *k = *state;
    configure(k, "q", OPTION_DELAYED_PROCESSING, 2);
    struct pop_command p = kit_pop_of("q", "g", 1);
    p.lease_us = 5 * SECOND;
    kit_push(k, "q", "p", "a");
    kit_pop(k, &p);
    assert_int_equal(k->result.pop.count, 0);
    uint32_t g = engine_group_find(k->e, KIT_TENANT, slice_of("q"), slice_of("g"));
    assert_in_range(engine_group_due_us(k->e, g, kit_now(k)), 2 * SECOND - 20, 2 * SECOND);
    assert_int_equal(engine_pop_forecast(k->e, &p, kit_now(k)), POP_NOTHING);
    kit_pass(k, 2 * SECOND + 20);
    assert_int_equal(engine_pop_forecast(k->e, &p, kit_now(k)), POP_CLAIMABLE);
    kit_pop(k, &p);
    assert_int_equal(k->result.pop.messages, 1);
    assert_int_equal(engine_group_due_us(k->e, g, kit_now(k)), 5 * SECOND);
}

static void an_ack_finds_ids_that_the_index_has_forgotten(void **state)
{
    struct kit *k = *state;
    configure(k, "q", OPTION_DEDUP_WINDOW_SECONDS, 10);
    kit_push(k, "q", "p", "old-1 old-2 old-3");
    kit_cut(k);
    kit_pass(k, INT64_C(3) * DEDUP_KEEP_MIN_MS * 1000);
    for (int i = 0; i < 300; i++) kit_push(k, "q", "other", "-"); /* lets the sweep come by */
    kit_reload(k, engine_applied_index(k->e) == 0 ? 0 : (kit_cut(k), engine_applied_index(k->e)));
    struct pop_command p = kit_pop_of("q", "g", 1);
    p.scope = POP_PARTITION;
    p.partition = slice_of("p");
    kit_pop(k, &p);
    assert_int_equal(k->result.pop.messages, 3);
    assert_int_equal(kit_ack(k, "g", 1, 1, "old-2", ACK_COMPLETED), ACK_OK);
    assert_int_equal(kit_ack(k, "g", 1, 1, "never", ACK_COMPLETED), ACK_REFUSED_STALE);
    assert_int_equal(kit_ack(k, "g", 1, 1, "old-3", ACK_COMPLETED), ACK_OK);
    assert_true(k->result.ack.items[0].lease_released);
}

static void consumed_and_cold_runs_leave_memory_and_are_found_again(void **state)
{
    struct kit *k = *state;
    struct engine_stats s;
    for (int i = 0; i < 500; i++) {
        kit_push(k, "q", "p", "-");
        if (i % 7 == 0) kit_cut(k);
    }
    kit_cut(k);
    engine_stats(k->e, &s);
    assert_in_range(s.runs_in_memory, 1, 64);
    struct pop_command p = kit_pop_of("q", "g", 1);
    p.batch = 1000;
    kit_pop(k, &p);
    assert_int_equal(k->result.pop.messages, 500);
    uint64_t next = 0;
    for (uint32_t i = 0; i < k->result.pop.claims[0].piece_count; i++) {
        assert_int_equal(k->result.pop.claims[0].pieces[i].first_offset, next);
        next += k->result.pop.claims[0].pieces[i].count;
    }
}

static void a_deleted_queue_gives_back_its_lanes_rows_and_live_bytes(void **state)
{
    struct kit *k = *state;
    struct buf b = {0};
    struct engine_stats s;
    for (int i = 0; i < 100; i++) {
        char lane[24];
        snprintf(lane, sizeof lane, "lane-%d", i % 1000);
        kit_push(k, "q", lane, "a b c");
    }
    struct pop_command p = kit_pop_of("q", "g", 1);
    p.partitions = 50;
    p.batch = 1000;
    kit_pop(k, &p);
    kit_ack(k, "g", 1, 1, "a", ACK_DLQ);
    kit_cut(k);
    assert_true(engine_segment_live(k->e, 0) > 0);
    struct queue_delete_command d = {.tenant = KIT_TENANT, .queue = slice_of("q")};
    queue_delete_encode(&b, &d);
    kit_do(k, &b);
    assert_true(k->result.queue_delete.existed);
    assert_int_equal(kit_ack(k, "g", 2, 1, "a", ACK_COMPLETED), ACK_NO_PARTITION);
    kit_push(k, "q", "lane-0", "a");
    assert_push(k, 0, PUSH_QUEUED, 0);
    uint64_t live = engine_segment_live(k->e, 0);
    while (engine_housekeep(k->e)) continue;
    kit_cut(k);
    engine_stats(k->e, &s);
    assert_int_equal(s.partitions, 1);
    assert_int_equal(s.cursors, 0);
    assert_int_equal(s.leases, 0);
    assert_int_equal(s.dead_letters, 0);
    assert_in_range(engine_segment_live(k->e, 0), 1, live / 50);
    size_t rows_of_lanes = 0;
    for (size_t i = 0; i < k->store.count; i++) {
        unsigned char kind = (unsigned char)k->store.rows[i].key.at[0];
        rows_of_lanes += kind >= 3 && kind <= 6;
    }
    assert_int_equal(rows_of_lanes, 1);
}

static void a_queue_deleted_right_before_a_crash_is_reaped_after_it(void **state)
{
    struct kit *k = *state;
    struct buf b = {0};
    struct engine_stats s;
    for (int i = 0; i < 10; i++) kit_push(k, "q", "p", "-");
    struct queue_delete_command d = {.tenant = KIT_TENANT, .queue = slice_of("q")};
    queue_delete_encode(&b, &d);
    kit_do(k, &b);
    kit_cut(k);
    kit_reload(k, engine_applied_index(k->e));
    engine_stats(k->e, &s);
    assert_int_equal(s.partitions, 1);
    while (engine_housekeep(k->e)) continue;
    engine_stats(k->e, &s);
    assert_int_equal(s.partitions, 0);
    assert_int_equal(engine_segment_live(k->e, 0), 0);
}

static void dead_letters_are_listed_newest_first_also_after_a_restart(void **state)
{
    struct kit *k = *state;
    struct dead_letter_view d;
    for (uint32_t i = 0; i < 6; i++) {
        const char *queue = i % 2 == 0 ? "even" : "odd";
        kit_push(k, queue, "p", "-");
        char id[UUID_TEXT + 1] = {0};
        uuid_text(k->result.push.items[0].id, id);
        struct pop_command p = kit_pop_of(queue, "g", i + 1);
        kit_pop(k, &p);
        assert_int_equal(kit_ack(k, "g", k->result.pop.claims[0].partition, i + 1, id, ACK_DLQ), ACK_OK);
    }
    for (int round = 0; round < 2; round++) {
        uint64_t before = UINT64_MAX, last_us = INT64_MAX;
        for (uint32_t i = 6; i-- > 0;) {
            assert_true(engine_dead_letter_next(k->e, KIT_TENANT, slice_of(""), slice_of(""), &before, &d));
            assert_true(slice_is(d.queue, i % 2 == 0 ? "even" : "odd"));
            assert_true((uint64_t)d.failed_us < last_us);
            last_us = (uint64_t)d.failed_us;
        }
        assert_false(engine_dead_letter_next(k->e, KIT_TENANT, slice_of(""), slice_of(""), &before, &d));
        before = UINT64_MAX;
        for (int i = 0; i < 3; i++)
            assert_true(engine_dead_letter_next(k->e, KIT_TENANT, slice_of("odd"), slice_of("g"), &before, &d));
        assert_false(engine_dead_letter_next(k->e, KIT_TENANT, slice_of("odd"), slice_of("g"), &before, &d));
        kit_cut(k);
        kit_reload(k, engine_applied_index(k->e));
    }
}

static void damaged_rows_and_entries_are_named_not_believed(void **state)
{
    struct kit *k = *state;
    kit_push(k, "q", "p", "a");
    assert_non_null(engine_apply(k->e, 99, 0, slice_of("no entry"), NULL));
    struct engine_options o = {0};
    struct engine *e = engine_new(&o);
    assert_non_null(engine_load_row(e, slice_of("\x04zz"), slice_of("short")));
    assert_non_null(engine_load_row(e, slice_of("\x40"), slice_of("")));
    assert_non_null(engine_load_row(e, slice_of("\x01"), slice_of("x")));
    engine_free(e);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_message_exactly_window_old_still_counts),
        TEST(the_lowest_occurrence_inside_the_window_is_answered),
        TEST(a_stored_messages_own_id_is_a_duplicate_too),
        TEST(message_ids_sort_like_offsets_and_are_unique),
        TEST(a_constant_id_without_window_stays_cheap_and_one_ack_settles_its_batch),
        TEST(an_expired_lease_is_taken_over_and_its_late_ack_changes_nothing),
        TEST(an_ack_at_the_very_expiry_is_accepted),
        TEST(a_returned_claim_is_the_next_one_and_costs_no_attempt),
        TEST(every_lane_that_becomes_claimable_is_reported_once),
        TEST(due_times_tell_when_a_lane_becomes_claimable_by_itself),
        TEST(an_ack_finds_ids_that_the_index_has_forgotten),
        TEST(consumed_and_cold_runs_leave_memory_and_are_found_again),
        TEST(a_deleted_queue_gives_back_its_lanes_rows_and_live_bytes),
        TEST(a_queue_deleted_right_before_a_crash_is_reaped_after_it),
        TEST(dead_letters_are_listed_newest_first_also_after_a_restart),
        TEST(damaged_rows_and_entries_are_named_not_believed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
