/* What concerns a whole queue or tenant is done in pieces: together they come to what one command would have done, whatever happens
 * between them, and nobody sees what is given back later. */
#include "engine_kit.h"

enum { LANES = 7 };

static void lane_name(int lane, char out[16])
{
    snprintf(out, 16, "lane-%02d", lane);
}

static void lanes_push(struct kit *k, const char *queue, const char *id)
{
    char lane[16];
    for (int i = 0; i < LANES; i++) {
        lane_name(i, lane);
        kit_push(k, queue, lane, id);
        kit_pass(k, 1000);
    }
}

static uint32_t lane_number(struct kit *k, const char *queue, int lane)
{
    char name[16];
    struct lane_view v;
    lane_name(lane, name);
    assert_true(engine_lane_find(k->e, KIT_TENANT, slice_of(queue), slice_of(name), &v));
    return v.number;
}

static int64_t committed(struct kit *k, const char *queue, int lane, const char *group)
{
    struct cursor_view c;
    uint32_t g = engine_group_find(k->e, KIT_TENANT, slice_of(queue), slice_of(group));
    if (g == 0 || !engine_cursor_get(k->e, lane_number(k, queue, lane), g, kit_now(k), &c)) return -2;
    return c.committed;
}

/* Pops and acks the oldest message of one lane. False: there is none. */
static bool consume(struct kit *k, const char *queue, int lane, const char *group)
{
    char name[16];
    struct pop_command p = kit_pop_of(queue, group, 1);
    lane_name(lane, name);
    p.scope = POP_PARTITION;
    p.partition = slice_of(name);
    p.auto_ack = true;
    p.batch = 1;
    kit_pop(k, &p);
    return k->result.pop.count == 1;
}

static struct seek_command seek_of(const char *queue, const char *group, bool to_end, uint32_t most)
{
    return (struct seek_command){.tenant = KIT_TENANT,
                                 .to_end = to_end,
                                 .group = slice_of(group),
                                 .queue = slice_of(queue),
                                 .partition = slice_of(""),
                                 .piece = {.most = most}};
}

/* One piece; `s` goes on where it ended. True: there is more. */
static bool seek_piece(struct kit *k, struct seek_command *s, uint32_t *lanes)
{
    struct buf b = {0};
    seek_encode(&b, s);
    kit_do(k, &b);
    *lanes += k->result.changed.lanes;
    s->piece = k->result.changed.next;
    return k->result.changed.more;
}

static void pieces_of_a_seek_are_as_one_whole(void **state)
{
    struct kit *k = *state, other;
    struct kit *both[] = {k, &other};
    kit_open(&other);
    for (int i = 0; i < 2; i++) {
        uint32_t lanes = 0, pieces = 1;
        lanes_push(both[i], "q", "a b c");
        for (int lane = 0; lane < LANES; lane += 2) assert_true(consume(both[i], "q", lane, "g"));
        struct seek_command s = seek_of("q", "g", true, i == 0 ? 65536 : 2);
        for (; seek_piece(both[i], &s, &lanes); pieces++) assert_int_equal(both[i]->result.changed.lanes, 2);
        assert_int_equal(lanes, LANES);
        assert_int_equal(pieces, i == 0 ? 1 : (LANES + 1) / 2);
        /* The rest of the log stands at the same times. */
        for (; pieces < LANES; pieces++) {
            struct buf nothing = {0};
            init_encode(&nothing, 1);
            kit_do(both[i], &nothing);
        }
        s = seek_of("q", "g", false, i == 0 ? 65536 : 3);
        s.us = both[i]->wall_us; /* in the future: the end, too */
        while (seek_piece(both[i], &s, &lanes)) pieces++;
        for (; pieces < 2 * LANES; pieces++) {
            struct buf nothing = {0};
            init_encode(&nothing, 1);
            kit_do(both[i], &nothing);
        }
    }
    struct hash128_pair x = engine_digest(k->e), y = engine_digest(other.e);
    assert_true(x.low == y.low && x.high == y.high);
    kit_close(&other);
}

static void a_seek_to_the_end_skips_nothing_that_is_pushed_meanwhile(void **state)
{
    struct kit *k = *state;
    uint32_t lanes = 0;
    lanes_push(k, "q", "a b");
    struct seek_command s = seek_of("q", "g", true, 3);
    assert_true(seek_piece(k, &s, &lanes));
    lanes_push(k, "q", "c d");
    kit_push(k, "q", "lane-new", "a");
    while (seek_piece(k, &s, &lanes)) continue;
    assert_int_equal(lanes, LANES); /* the new one has no place in it */
    for (int lane = 0; lane < LANES; lane++) assert_int_equal(committed(k, "q", lane, "g"), 1);
}

static void a_seek_to_the_end_gives_nothing_again_that_was_taken_meanwhile(void **state)
{
    struct kit *k = *state;
    uint32_t lanes = 0;
    lanes_push(k, "q", "a b");
    struct seek_command s = seek_of("q", "g", true, 3);
    assert_true(seek_piece(k, &s, &lanes));
    lanes_push(k, "q", "c d");
    for (int i = 0; i < 3; i++) assert_true(consume(k, "q", LANES - 1, "g")); /* a b c */
    assert_int_equal(committed(k, "q", LANES - 1, "g"), 2);
    while (seek_piece(k, &s, &lanes)) continue;
    assert_int_equal(committed(k, "q", LANES - 1, "g"), 2);
    assert_int_equal(committed(k, "q", LANES - 2, "g"), 1);
}

/* Whoever makes the entry says how much an encoded piece looks at, whatever it is a piece of, and nothing else of it. */
static void how_much_a_piece_does_is_set_where_it_is_encoded(void **state)
{
    (void)state;
    for (uint32_t most = 1; most <= 200; most += 99) {
        struct seek_command s = seek_of("q", "g", true, 100), got_s;
        struct group_delete_command g = {.queue = slice_of("q"), .group = slice_of("g"), .piece = {.most = 100, .after = 7}},
                                    got_g;
        struct subscription_command u = {.group = slice_of("g"), .us = 7, .piece.most = 100}, got_u;
        struct letters_delete_command l = {.queue = slice_of("q"), .group = slice_of("g"), .piece.most = 100}, got_l;
        struct buf b[4] = {0};
        struct command c[4];
        seek_encode(&b[0], &s);
        group_delete_encode(&b[1], &g);
        subscription_encode(&b[2], &u);
        letters_delete_encode(&b[3], &l);
        for (int i = 0; i < 4; i++) {
            struct slice rest = buf_view(&b[i]);
            command_piece_set(b[i].at, most);
            assert_true(command_next(&rest, &c[i]));
        }
        assert_true(seek_decode(&c[0], &got_s) && group_delete_decode(&c[1], &got_g) && subscription_decode(&c[2], &got_u) &&
                    letters_delete_decode(&c[3], &got_l));
        assert_int_equal(got_s.piece.most, most);
        assert_int_equal(got_g.piece.most, most);
        assert_int_equal(got_g.piece.after, 7);
        assert_int_equal(got_u.piece.most, most);
        assert_int_equal(got_u.us, 7);
        assert_int_equal(got_l.piece.most, most);
        assert_true(uuid_equal(got_s.tenant, s.tenant) && slice_is(got_s.queue, "q") && slice_is(got_l.group, "g"));
        for (int i = 0; i < 4; i++) buf_free(&b[i]);
    }
}

static void a_seek_ends_with_its_queue_and_its_group(void **state)
{
    struct kit *k = *state;
    uint32_t lanes = 0;
    for (int round = 0; round < 2; round++) {
        struct buf b = {0};
        lanes_push(k, "q", "a b");
        struct seek_command s = seek_of("q", "g", true, 3);
        assert_true(seek_piece(k, &s, &lanes));
        if (round == 0) {
            queue_delete_encode(&b, &(struct queue_delete_command){.tenant = KIT_TENANT, .queue = slice_of("q")});
        } else {
            group_delete_encode(
                &b, &(struct group_delete_command){.tenant = KIT_TENANT, .queue = slice_of("q"), .group = slice_of("g")});
        }
        kit_do(k, &b);
        lanes_push(k, "q", "c");
        assert_true(consume(k, "q", LANES - 1, "g")); /* another queue, or group, of that name */
        lanes = 0;
        assert_false(seek_piece(k, &s, &lanes));
        assert_int_equal(lanes, 0);
        assert_int_equal(committed(k, "q", LANES - 1, "g"), 0);
    }
}

/* ---- groups --------------------------------------------------------------------------------------------------------- */

static struct group_delete_command delete_of(const char *queue, const char *group, bool keep, uint32_t most)
{
    return (struct group_delete_command){.tenant = KIT_TENANT,
                                         .keep_registration = keep,
                                         .group = slice_of(group),
                                         .queue = slice_of(queue),
                                         .piece = {.most = most}};
}

static void group_delete(struct kit *k, struct group_delete_command d)
{
    struct buf b = {0};
    group_delete_encode(&b, &d);
    kit_do(k, &b);
}

static uint64_t cursor_count(struct kit *k)
{
    struct engine_stats s;
    engine_stats(k->e, &s);
    return s.cursors;
}

static void a_deleted_group_is_gone_at_once_and_its_memory_later(void **state)
{
    struct kit *k = *state;
    lanes_push(k, "q", "a b");
    struct pop_command p = kit_pop_of("q", "g", 1);
    p.partitions = p.batch = LANES;
    kit_pop(k, &p);
    assert_int_equal(k->result.pop.count, LANES / 2 + 1); /* of two messages each */
    uint64_t had = cursor_count(k);
    uint32_t number = engine_group_find(k->e, KIT_TENANT, slice_of("q"), slice_of("g"));
    group_delete(k, delete_of("q", "g", false, 0));
    assert_int_equal(k->result.changed.lanes, had);
    assert_int_equal(cursor_count(k), had);
    assert_int_equal(engine_group_find(k->e, KIT_TENANT, slice_of("q"), slice_of("g")), 0);
    struct group_view v;
    assert_false(engine_group_get(k->e, number, &v));
    struct buf b = {0};
    extend_encode(&b, &(struct extend_command){.tenant = KIT_TENANT, .lease = kit_lease(1), .seconds = 10});
    kit_do(k, &b);
    assert_int_equal(k->result.extend.renewed, 0);
    /* The name is free: all from the start. */
    for (int lane = 0; lane < LANES; lane++) {
        assert_true(consume(k, "q", lane, "g") && consume(k, "q", lane, "g"));
        assert_false(consume(k, "q", lane, "g"));
    }
    while (engine_housekeep(k->e)) continue;
    assert_int_equal(cursor_count(k), LANES);
    for (int lane = 0; lane < LANES; lane++) assert_int_equal(committed(k, "q", lane, "g"), 1);
    group_delete(k, delete_of("q", "g", false, 0));
    while (engine_housekeep(k->e)) continue;
    group_delete(k, delete_of("q", "g", false, 0));
    assert_int_equal(k->result.changed.queue_count, 0);
}

/* The same digest at every step whether what was deleted has been given back or not, also when a crash comes in between. */
static void what_a_deleted_group_leaves_behind_is_not_seen(void **state)
{
    struct kit *k = *state, other;
    kit_open(&other);
    struct kit *both[] = {k, &other};
    for (int i = 0; i < 2; i++) {
        lanes_push(both[i], "q", "a b");
        for (int lane = 0; lane < LANES; lane++) assert_true(consume(both[i], "q", lane, "g"));
        group_delete(both[i], delete_of("q", "g", true, 0));
        if (i == 0) continue;
        while (engine_housekeep(other.e)) continue;
        kit_cut(&other);
    }
    struct hash128_pair x = engine_digest(k->e), y = engine_digest(other.e);
    assert_true(x.low == y.low && x.high == y.high);
    kit_cut(k);
    kit_reload(k, engine_applied_index(k->e));
    x = engine_digest(k->e);
    assert_true(x.low == y.low && x.high == y.high);
    while (engine_housekeep(k->e)) continue;
    x = engine_digest(k->e);
    assert_true(x.low == y.low && x.high == y.high);
    assert_int_equal(cursor_count(k), 0);
    kit_cut(k);
    assert_int_equal(k->store.count, other.store.count);
    kit_close(&other);
}

static void a_group_that_letters_name_stays_until_they_go(void **state)
{
    struct kit *k = *state;
    struct dead_letter_view d;
    struct engine_stats s;
    struct buf b = {0};
    uint64_t before = UINT64_MAX;
    kit_push(k, "q", "p", "id");
    struct pop_command p = kit_pop_of("q", "g", 1);
    kit_pop(k, &p);
    assert_int_equal(kit_ack(k, "g", k->result.pop.claims[0].partition, 1, "id", ACK_DLQ), ACK_OK);
    group_delete(k, delete_of("", "g", false, 0));
    while (engine_housekeep(k->e)) continue;
    kit_cut(k);
    kit_reload(k, engine_applied_index(k->e));
    while (engine_housekeep(k->e)) continue;
    assert_true(engine_dead_letter_next(k->e, KIT_TENANT, slice_of("q"), slice_of("g"), &before, &d));
    assert_true(slice_is(d.group, "g"));
    letters_delete_encode(
        &b, &(struct letters_delete_command){.tenant = KIT_TENANT, .queue = slice_of("q"), .group = slice_of("g")});
    kit_do(k, &b);
    assert_int_equal(k->result.changed.lanes, 1);
    while (engine_housekeep(k->e)) continue;
    engine_stats(k->e, &s);
    assert_int_equal(s.groups, 0);
    kit_cut(k);
    kit_reload(k, engine_applied_index(k->e));
    engine_stats(k->e, &s);
    assert_int_equal(s.groups, 0);
}

static void groups_of_many_queues_go_in_pieces(void **state)
{
    struct kit *k = *state;
    char queue[16];
    uint32_t lanes = 0, queues = 0, pieces = 1;
    for (int i = 0; i < 20; i++) {
        snprintf(queue, sizeof queue, "q%02d", i);
        lanes_push(k, queue, "a");
        assert_true(consume(k, queue, i % LANES, "g"));
    }
    struct group_delete_command d = delete_of("", "g", false, 6);
    for (;; pieces++) {
        group_delete(k, d);
        lanes += k->result.changed.lanes;
        queues += k->result.changed.queue_count;
        assert_true(k->result.changed.queue_count <= 6);
        if (!k->result.changed.more) break;
        d.piece = k->result.changed.next;
    }
    assert_int_equal(lanes, 20);
    assert_int_equal(queues, 20);
    assert_int_equal(pieces, 4);
}

static void subscriptions_of_many_queues_change_in_pieces(void **state)
{
    struct kit *k = *state;
    char queue[16];
    uint32_t rows = 0, pieces = 1;
    for (int i = 0; i < 9; i++) {
        snprintf(queue, sizeof queue, "q%02d", i);
        struct pop_command p = kit_pop_of(queue, i % 3 == 0 ? "other" : "g", 1);
        kit_pop(k, &p);
    }
    struct subscription_command s = {.tenant = KIT_TENANT, .us = 7, .group = slice_of("g"), .piece.most = 2};
    for (;; pieces++) {
        struct buf b = {0};
        subscription_encode(&b, &s);
        kit_do(k, &b);
        rows += k->result.changed.lanes;
        if (!k->result.changed.more) break;
        s.piece = k->result.changed.next;
    }
    assert_int_equal(rows, 6);
    assert_int_equal(pieces, 5);
}

/* ---- dead letters --------------------------------------------------------------------------------------------------- */

static void letter_file(struct kit *k, const char *queue, const char *lane, const char *group, uint32_t lease)
{
    kit_push(k, queue, lane, "-");
    char id[UUID_TEXT + 1] = {0};
    uuid_text(k->result.push.items[0].id, id);
    struct pop_command p = kit_pop_of(queue, group, lease);
    kit_pop(k, &p);
    assert_int_equal(k->result.pop.count, 1);
    assert_int_equal(kit_ack(k, group, k->result.pop.claims[0].partition, lease, id, ACK_DLQ), ACK_OK);
}

static uint32_t letters_count(struct kit *k, const char *queue, const char *group)
{
    struct dead_letter_view d;
    uint64_t before = UINT64_MAX;
    uint32_t n = 0;
    while (engine_dead_letter_next(k->e, KIT_TENANT, slice_of(queue), slice_of(group), &before, &d)) n++;
    return n;
}

static void letters_go_in_pieces(void **state)
{
    struct kit *k = *state;
    uint32_t gone = 0, pieces = 0;
    for (uint32_t i = 0; i < 30; i++) letter_file(k, i % 3 == 0 ? "q" : "r", i % 2 == 0 ? "a" : "b", "g", i + 1);
    struct letters_delete_command d = {.tenant = KIT_TENANT, .queue = slice_of("r"), .group = slice_of(""), .piece.most = 6};
    for (bool more = true; more; pieces++) {
        struct buf b = {0};
        letters_delete_encode(&b, &d);
        kit_do(k, &b);
        assert_true(k->result.changed.lanes <= 6);
        gone += k->result.changed.lanes;
        more = k->result.changed.more;
        d.piece = k->result.changed.next;
        if (pieces == 0) letter_file(k, "r", "a", "g", 99); /* it came later: it stays */
    }
    assert_int_equal(pieces, 4);
    assert_int_equal(gone, 20);
    assert_int_equal(letters_count(k, "r", ""), 1);
    assert_int_equal(letters_count(k, "q", ""), 10);
    assert_int_equal(engine_dead_letter_count(k->e, KIT_TENANT, slice_of(""), slice_of("g")), 11);
    assert_int_equal(engine_dead_letter_count(k->e, KIT_TENANT, slice_of("r"), slice_of("")), 1);
    assert_int_equal(engine_dead_letter_count(k->e, KIT_TENANT, slice_of("q"), slice_of("h")), 0);
    assert_int_equal(letters_count(k, "", "g"), 11);
    assert_null(engine_check(k->e));
}

static void letters_are_found_by_lane_and_message(void **state)
{
    struct kit *k = *state;
    struct dead_letter_view d;
    struct partition_view p;
    for (uint32_t i = 0; i < 10; i++) letter_file(k, "q", i % 2 == 0 ? "a" : "b", "g", i + 1);
    for (int round = 0; round < 2; round++) {
        for (uint32_t lane = 1; lane <= 2; lane++) {
            uint64_t before = UINT64_MAX;
            assert_true(engine_partition_get(k->e, lane, kit_now(k), &p));
            assert_int_equal(p.counts.dead_letters, 5);
            for (uint64_t offset = 5; offset-- > 0;) {
                struct lane_place place = {.partition = lane, .offset = offset};
                assert_true(engine_dead_letter_in(k->e, lane, &before, &d));
                assert_int_equal(d.offset, offset);
                assert_true(engine_dead_letter_at(k->e, lane, offset, &d));
                assert_int_equal(d.offset, offset);
                engine_dead_letters_mark(k->e, &place, 1);
                assert_true(place.dead);
            }
            assert_false(engine_dead_letter_in(k->e, lane, &before, &d));
            assert_false(engine_dead_letter_at(k->e, lane, 5, &d));
        }
        kit_cut(k);
        kit_reload(k, engine_applied_index(k->e));
    }
}

static void letters_of_a_deleted_queue_go_with_it(void **state)
{
    struct kit *k = *state;
    struct buf b = {0};
    struct engine_stats s;
    for (uint32_t i = 0; i < 10; i++) letter_file(k, i < 5 ? "q" : "r", "a", "g", i + 1);
    queue_delete_encode(&b, &(struct queue_delete_command){.tenant = KIT_TENANT, .queue = slice_of("q")});
    kit_do(k, &b);
    assert_int_equal(letters_count(k, "", ""), 5);
    kit_cut(k);
    kit_reload(k, engine_applied_index(k->e));
    while (engine_housekeep(k->e)) continue;
    assert_null(engine_check(k->e));
    engine_stats(k->e, &s);
    assert_int_equal(s.dead_letters, 5);
    kit_cut(k);
    kit_reload(k, engine_applied_index(k->e));
    engine_stats(k->e, &s);
    assert_int_equal(s.dead_letters, 5);
}

/* ---- retention ------------------------------------------------------------------------------------------------------ */

static void queue_retain(struct kit *k, const char *queue, int32_t seconds)
{
    struct buf b = {0};
    struct configure_command c = {.tenant = KIT_TENANT, .queue = slice_of(queue)};
    c.options.numbers[OPTION_RETENTION_ENABLED] = 1;
    c.options.numbers[OPTION_RETENTION_SECONDS] = seconds;
    c.given = 1u << OPTION_RETENTION_ENABLED | 1u << OPTION_RETENTION_SECONDS;
    configure_encode(&b, &c);
    kit_do(k, &b);
}

/* What retention lets go of two queues' lanes goes bit by bit, whatever was cut when; what is young stays. */
static void a_lane_of_many_appends_is_given_up_bit_by_bit(void **state)
{
    struct kit *k = *state;
    struct trim_item items[8];
    struct lane_view v;
    enum trim_round round = TRIM_GOES_ON;
    uint32_t count, messages = 0, entries = 0;
    for (int i = 0; i < 50; i++) {
        kit_push(k, "q", "fat", "- -");
        kit_push(k, i % 2 == 0 ? "q" : "r", "thin", "-");
        if (i % 7 == 0) kit_cut(k);
    }
    queue_retain(k, "q", 100);
    queue_retain(k, "r", 100);
    kit_pass(k, 200000000);
    kit_push(k, "q", "fat", "-");
    kit_push(k, "r", "thin", "-");
    kit_cut(k);
    for (; round == TRIM_GOES_ON; entries++) {
        struct buf b = {0};
        round = engine_trim_due(k->e, kit_now(k), &(struct trim_limits){100, 8, 10}, items, &count);
        trim_encode(&b, items, count);
        kit_do(k, &b);
        assert_true(k->result.trim.messages <= 20);
        messages += (uint32_t)k->result.trim.messages;
        assert_null(engine_check(k->e));
        if (entries % 3 == 0) kit_cut(k);
    }
    assert_int_equal(messages, 150);
    assert_true(entries >= 10);
    for (uint32_t lane = 1; lane <= 3; lane++) {
        assert_true(engine_lane_get(k->e, KIT_TENANT, lane, &v));
        assert_int_equal(v.tail_offset - v.start_offset, lane == 2 ? 0 : 1);
    }
}

/* Of one cut's runs each row holds a bounded number. */
static void many_appends_of_one_cut_are_found_in_their_rows(void **state)
{
    struct kit *k = *state;
    struct delivery_piece piece;
    for (int i = 0; i < 1500; i++) kit_push(k, "q", "p", "-");
    kit_cut(k);
    kit_reload(k, engine_applied_index(k->e));
    for (uint64_t offset = 0; offset < 1500; offset += 37) {
        assert_true(engine_message_at(k->e, 1, offset, &piece));
        assert_int_equal(piece.first_offset, offset);
    }
    size_t rows = 0;
    for (size_t i = 0; i < k->store.count; i++) {
        if (k->store.rows[i].key.at[0] != (char)0x81) continue;
        rows++;
        assert_true(k->store.rows[i].value.len <= 512 * 40);
    }
    assert_int_equal(rows, 3);
    assert_null(engine_check(k->e));
}

/* ---- delays --------------------------------------------------------------------------------------------------------- */

static void queue_delay(struct kit *k, const char *queue, int32_t seconds)
{
    struct buf b = {0};
    struct configure_command c = {.tenant = KIT_TENANT, .queue = slice_of(queue)};
    c.options.numbers[OPTION_DELAYED_PROCESSING] = seconds;
    c.given = 1u << OPTION_DELAYED_PROCESSING;
    configure_encode(&b, &c);
    kit_do(k, &b);
}

/* Lanes that wait by a long delay are due by the shorter one, in their order, and none of them is touched by the change. */
static void a_shortened_delay_counts_for_all_that_wait(void **state)
{
    struct kit *k = *state;
    queue_delay(k, "q", 3600);
    lanes_push(k, "q", "a");
    struct pop_command p = kit_pop_of("q", "g", 1);
    p.auto_ack = true;
    kit_pop(k, &p);
    assert_int_equal(k->result.pop.count, 0);
    uint32_t g = engine_group_find(k->e, KIT_TENANT, slice_of("q"), slice_of("g"));
    assert_in_range(engine_group_due_us(k->e, g, kit_now(k)), 3590000000, 3600000000);
    kit_cut(k);
    queue_delay(k, "q", 100);
    assert_true(engine_cut_size(k->e) <= 3); /* the queue, the group */
    queue_delay(k, "q", 200);                /* longer again: what is looked at too early waits anew */
    queue_delay(k, "q", 50);
    assert_int_equal(engine_group_due_us(k->e, g, kit_now(k)), 0);
    kit_pop(k, &p);
    assert_int_equal(k->result.pop.count, 0);
    assert_in_range(engine_group_due_us(k->e, g, kit_now(k)), 49000000, 50000000);
    kit_cut(k);
    kit_reload(k, engine_applied_index(k->e));
    assert_in_range(engine_group_due_us(k->e, g, kit_now(k)), 49000000, 50000000);
    kit_pass(k, 50000000);
    for (uint32_t lane = 1; lane <= LANES; lane++) {
        kit_pop(k, &p);
        assert_int_equal(k->result.pop.count, 1);
        assert_int_equal(k->result.pop.claims[0].partition, lane);
    }
    kit_pop(k, &p);
    assert_int_equal(k->result.pop.count, 0);
}

/* A pop of a group that has seen no lane yet looks at a bounded number of them. */
static void a_pop_looks_at_a_bounded_number_of_lanes(void **state)
{
    struct kit *k = *state;
    char lane[16];
    queue_delay(k, "q", 3600);
    for (int i = 0; i < 3000; i++) {
        snprintf(lane, sizeof lane, "l%d", i);
        kit_push(k, "q", lane, "-");
    }
    struct pop_command p = kit_pop_of("q", "g", 1);
    kit_pop(k, &p);
    assert_int_equal(k->result.pop.count, 0);
    uint64_t first = cursor_count(k);
    assert_in_range(first, 1, 1024);
    for (int i = 0; i < 20; i++) kit_pop(k, &p);
    assert_int_equal(cursor_count(k), 3000);
}

/* A time is found in a long stored history, also where many have the same. */
static void a_time_is_found_in_a_long_history(void **state)
{
    struct kit *k = *state;
    static int64_t created[15000];
    uint64_t offset = 0;
    for (int i = 0; i < 9000; i++) {
        kit_push(k, "q", "p", i % 3 == 0 ? "- -" : "-");
        for (int n = 0; n < (i % 3 == 0 ? 2 : 1); n++) created[offset++] = (int64_t)engine_last_head(k->e).wall_us;
        kit_pass(k, i % 50 == 0 ? 5000000 : 3);
        if (i % 1000 == 0) kit_cut(k);
    }
    kit_cut(k);
    kit_reload(k, engine_applied_index(k->e));
    for (uint64_t at = 0; at < offset; at += 61) {
        for (int64_t us = created[at] - 1; us <= created[at] + 1; us++) {
            uint64_t want = 0;
            while (want < offset && created[want] < us) want++;
            assert_int_equal(engine_lane_offset_at(k->e, 1, us), want);
        }
    }
}

static int setup(void **state)
{
    struct kit *k = malloc(sizeof *k);
    assert_non_null(k);
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

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(pieces_of_a_seek_are_as_one_whole),
        TEST(a_seek_to_the_end_skips_nothing_that_is_pushed_meanwhile),
        TEST(a_seek_to_the_end_gives_nothing_again_that_was_taken_meanwhile),
        TEST(how_much_a_piece_does_is_set_where_it_is_encoded),
        TEST(a_seek_ends_with_its_queue_and_its_group),
        TEST(a_deleted_group_is_gone_at_once_and_its_memory_later),
        TEST(what_a_deleted_group_leaves_behind_is_not_seen),
        TEST(a_group_that_letters_name_stays_until_they_go),
        TEST(groups_of_many_queues_go_in_pieces),
        TEST(subscriptions_of_many_queues_change_in_pieces),
        TEST(letters_go_in_pieces),
        TEST(letters_are_found_by_lane_and_message),
        TEST(letters_of_a_deleted_queue_go_with_it),
        TEST(a_lane_of_many_appends_is_given_up_bit_by_bit),
        TEST(many_appends_of_one_cut_are_found_in_their_rows),
        TEST(a_shortened_delay_counts_for_all_that_wait),
        TEST(a_pop_looks_at_a_bounded_number_of_lanes),
        TEST(a_time_is_found_in_a_long_history),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
