/* What a command will read that left memory: everything engine_apply then reads has been foreseen. */
#include "engine_kit.h"

enum { TOLD_MAX = 4096, LANES = 40, LANE_MESSAGES = 5 };

struct span {
    char from[ROW_KEY_BYTES_MAX], to[ROW_KEY_BYTES_MAX];
    size_t from_len, to_len;
};

struct bench {
    struct kit k;
    struct span told[TOLD_MAX];
    uint64_t blocks_told[TOLD_MAX];
    uint32_t told_count, blocks_told_count;
    bool watching; /* every scan and block must have been told */
    uint32_t scans, blocks, untold;
};

static struct bench *bench_of(void *ctx)
{
    return ctx; /* the kit is its first member */
}

static bool span_has(const struct span *s, struct slice key)
{
    return slice_compare(slice_make(s->from, s->from_len), key) <= 0 && slice_compare(key, slice_make(s->to, s->to_len)) < 0;
}

static void watched_scan(void *ctx, struct slice from, struct slice to, bool (*row)(void *, struct slice, struct slice),
                         void *row_ctx)
{
    struct bench *b = bench_of(ctx);
    bool told = false;
    for (uint32_t i = 0; b->watching && i < b->told_count; i++) told = told || span_has(&b->told[i], from);
    if (b->watching) b->scans++;
    if (b->watching && !told) b->untold++;
    kit_scan(&b->k, from, to, row, row_ctx);
}

static void watched_block(void *ctx, uint64_t where, uint32_t bytes, char *out)
{
    struct bench *b = bench_of(ctx);
    bool told = false;
    for (uint32_t i = 0; b->watching && i < b->blocks_told_count; i++) told = told || b->blocks_told[i] == where;
    if (b->watching) b->blocks++;
    if (b->watching && !told) b->untold++;
    kit_block(&b->k, where, bytes, out);
}

static void tell_range(void *ctx, struct slice from, struct slice to)
{
    struct bench *b = bench_of(ctx);
    assert_true(b->told_count < TOLD_MAX && slice_compare(from, to) < 0);
    assert_true(from.len <= ROW_KEY_BYTES_MAX && to.len <= ROW_KEY_BYTES_MAX);
    struct span *s = &b->told[b->told_count++];
    memcpy(s->from, from.at, s->from_len = from.len);
    memcpy(s->to, to.at, s->to_len = to.len);
}

/* On a reader's thread: what it reads is told, from where it begins to the last row it looks at. */
struct reader_scan {
    struct bench *b;
    bool (*row)(void *, struct slice, struct slice);
    void *row_ctx;
    struct span *s;
};

static bool reader_row(void *ctx, struct slice key, struct slice value)
{
    struct reader_scan *r = ctx;
    memcpy(r->s->to, key.at, key.len);
    r->s->to[key.len] = 0;
    r->s->to_len = key.len + 1;
    return r->row(r->row_ctx, key, value);
}

static void reader_scan(void *ctx, struct slice from, struct slice to, bool (*row)(void *, struct slice, struct slice),
                        void *row_ctx)
{
    struct bench *b = bench_of(ctx);
    assert_true(b->told_count < TOLD_MAX);
    struct reader_scan r = {.b = b, .row = row, .row_ctx = row_ctx, .s = &b->told[b->told_count++]};
    memcpy(r.s->from, from.at, r.s->from_len = from.len);
    memcpy(r.s->to, from.at, r.s->to_len = from.len);
    r.s->to[r.s->to_len++] = 0;
    kit_scan(&b->k, from, to, reader_row, &r);
}

static void tell_search(void *ctx, const struct engine_time_search *s)
{
    struct engine_cold cold = {.ctx = ctx, .scan = reader_scan};
    engine_time_search_rows(s, &cold);
}

static void tell_block(void *ctx, uint64_t where, uint32_t bytes)
{
    struct bench *b = bench_of(ctx);
    assert_true(b->blocks_told_count < TOLD_MAX && bytes > 0);
    b->blocks_told[b->blocks_told_count++] = where;
}

/* As after a start: all that is at rest is in the store only. */
static void rest(struct bench *b)
{
    struct engine_options o = {
        .cold = {.ctx = b, .scan = watched_scan, .block = watched_block}, .budget = b->k.budget, .segment_shift = 16};
    kit_cut(&b->k);
    uint64_t applied = engine_applied_index(b->k.e);
    engine_free(b->k.e);
    b->k.e = engine_new(&o);
    for (size_t i = 0; i < b->k.store.count; i++) {
        struct slice key = buf_view(&b->k.store.rows[i].key);
        if (slice_compare(key, slice_of(ENGINE_ROWS_LOADED_END)) >= 0) break;
        assert_null(engine_load_row(b->k.e, key, buf_view(&b->k.store.rows[i].value)));
    }
    assert_null(engine_loaded(b->k.e, applied));
}

static void foresee(struct bench *b, struct slice commands)
{
    struct engine_foreseen f = {.ctx = b, .range = tell_range, .block = tell_block, .search = tell_search};
    struct command c;
    bool watching = b->watching;
    b->watching = true; /* it reads nothing */
    uint32_t before = b->scans + b->blocks;
    while (command_next(&commands, &c)) engine_rows_foreseen(b->k.e, &c, &f);
    assert_int_equal(b->scans + b->blocks, before);
    b->watching = watching;
}

/* Foreseen, then done: nothing was read that was not told. */
static void foreseen_do(struct bench *b, struct buf *command)
{
    b->told_count = b->blocks_told_count = b->scans = b->blocks = b->untold = 0;
    foresee(b, buf_view(command));
    b->watching = true;
    kit_do(&b->k, command);
    b->watching = false;
    assert_int_equal(b->untold, 0);
}

static void push_one(struct buf *out, const char *queue, const char *lane, const char *id)
{
    struct push_writer w;
    struct push_item item = {.flags = ITEM_TRANSACTION, .transaction = slice_of(id), .payload = slice_of("1")};
    push_begin(&w, out, KIT_TENANT);
    push_group_begin(&w, slice_of(queue), slice_of(lane), 1);
    push_item_add(&w, &item);
    push_group_end(&w);
    push_end(&w);
}

static int setup(void **state)
{
    struct bench *b = calloc(1, sizeof *b);
    char lane[16], id[16];
    assert_non_null(b);
    kit_open(&b->k);
    for (int m = 0; m < LANE_MESSAGES; m++) {
        for (int l = 0; l < LANES; l++) {
            snprintf(lane, sizeof lane, "lane-%d", l);
            snprintf(id, sizeof id, "m%d", m);
            kit_push(&b->k, "q", lane, id);
        }
        kit_cut(&b->k);
    }
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    struct bench *b = *state;
    kit_close(&b->k);
    free(b);
    return 0;
}

static void test_a_push_to_a_lane_at_rest(void **state)
{
    struct bench *b = *state;
    struct buf c = {0};
    rest(b);
    push_one(&c, "q", "lane-7", "new");
    foreseen_do(b, &c);
    assert_true(b->scans > 0);
    assert_true(b->told_count <= 2);
    push_one(&c, "q", "lane-7", "newer");
    foreseen_do(b, &c); /* it is in memory now */
    assert_int_equal(b->scans, 0);
    assert_int_equal(b->told_count, 0);
}

static void test_a_new_groups_first_pops(void **state)
{
    struct bench *b = *state;
    rest(b);
    uint32_t scans = 0;
    for (uint32_t n = 0; n < LANES; n += 4) {
        struct pop_command p = kit_pop_of("q", "new", n + 1);
        struct buf c = {0};
        p.partitions = 4;
        pop_encode(&c, &p);
        foreseen_do(b, &c);
        assert_int_equal(b->k.result.pop.count, 4);
        scans += b->scans;
    }
    assert_in_range(scans, LANES, 3 * LANES);
}

static void test_pops_of_lanes_that_are_ready(void **state)
{
    struct bench *b = *state;
    struct pop_command p = kit_pop_of("q", "g", 1);
    p.partitions = LANES;
    p.batch = LANES; /* one of each lane */
    struct buf c = {0};
    pop_encode(&c, &p);
    kit_do(&b->k, &c);
    b->k.log_us += 3600 * INT64_C(1000000); /* the leases end: all are ready again */
    rest(b);
    for (uint32_t n = 0; n < 8; n++) {
        p = kit_pop_of("q", "g", 100 + n);
        pop_encode(&c, &p);
        foreseen_do(b, &c);
        assert_int_equal(b->k.result.pop.count, 1);
    }
}

/* Pops of one entry, and of entries behind it, take one lane after the other. */
static void test_pops_together_look_at_different_lanes(void **state)
{
    struct bench *b = *state;
    struct pop_command p = kit_pop_of("q", "g", 1);
    p.partitions = LANES;
    p.batch = LANES;
    struct buf c = {0};
    pop_encode(&c, &p);
    kit_do(&b->k, &c);
    for (uint32_t l = 1; l <= LANES; l++) kit_ack(&b->k, "g", l, 1, "m0", ACK_COMPLETED);
    rest(b);
    for (uint32_t n = 0; n < 6; n++) {
        p = kit_pop_of("q", "g", 200 + n);
        pop_encode(&c, &p);
    }
    b->told_count = 0;
    foresee(b, buf_view(&c));
    assert_int_equal(b->told_count, 6);
    for (uint32_t i = 1; i < b->told_count; i++) assert_memory_not_equal(b->told[i].from, b->told[0].from, b->told[0].from_len);
    b->watching = true;
    b->untold = 0;
    kit_entry(&b->k, buf_view(&c), 6);
    assert_int_equal(b->untold, 0);
    buf_free(&c);
}

static void test_a_pinned_pop(void **state)
{
    struct bench *b = *state;
    struct pop_command p = kit_pop_of("q", "g", 1);
    struct buf c = {0};
    kit_pop(&b->k, &p); /* the group is known */
    rest(b);
    p = kit_pop_of("q", "g", 2);
    p.scope = POP_PARTITION;
    p.partition = slice_of("lane-1");
    pop_encode(&c, &p);
    b->told_count = 0;
    foresee(b, buf_view(&c));
    assert_true(b->told_count > 0);
    buf_free(&c);
}

static void test_acks_by_ids_that_no_index_has(void **state)
{
    struct bench *b = *state;
    kit_pass(&b->k, 7200 * INT64_C(1000000));
    kit_push(&b->k, "other", "x", "tick"); /* the ids of the first messages are past */
    rest(b);
    struct pop_command p = kit_pop_of("q", "late", 1);
    p.batch = LANE_MESSAGES;
    kit_pop(&b->k, &p);
    uint32_t lane = b->k.result.pop.claims[0].partition;
    struct buf c = {0};
    struct ack_item item = {
        .partition = lane, .status = ACK_COMPLETED, .fenced = 1, .lease = kit_lease(1), .transaction = slice_of("m1")};
    size_t at = c.len;
    ack_begin(&c, KIT_TENANT, slice_of("late"), 1);
    ack_item_add(&c, &item);
    ack_end(&c, at);
    foreseen_do(b, &c);
    assert_true(b->blocks > 0);
    assert_int_equal(b->k.result.ack.items[0].verdict, ACK_OK);
}

/* Lanes with an append every second, some with many. */
static void histories(struct bench *b, int lanes)
{
    char lane[16], id[16];
    for (int m = 0; m < 40; m++) {
        snprintf(id, sizeof id, "m%d", m);
        for (int l = 0; l < lanes; l++) {
            snprintf(lane, sizeof lane, "lane-%d", l);
            if (m < 3 || l % 3 == 0) kit_push(&b->k, "old", lane, id);
        }
        kit_pass(&b->k, 1000000);
        if (m % 8 == 7) kit_cut(&b->k);
    }
}

static void seek_do(struct bench *b, struct seek_command s)
{
    struct buf c = {0};
    s.tenant = KIT_TENANT;
    s.queue = slice_of("old");
    s.group = slice_of("g");
    s.piece.most = 1000;
    do {
        seek_encode(&c, &s);
        foreseen_do(b, &c);
        s.piece = b->k.result.changed.next;
    } while (b->k.result.changed.more);
}

static void test_a_seek_to_a_time(void **state)
{
    struct bench *b = *state;
    int64_t began_us = b->k.wall_us;
    histories(b, 150);
    int64_t end_us = b->k.wall_us;
    for (int part = 0; part < 4; part++) {
        rest(b);
        seek_do(b, (struct seek_command){.us = began_us + (end_us - began_us) / 4 * part});
        rest(b);
        seek_do(b, (struct seek_command){.us = end_us + part, .to_end = part == 1});
        rest(b);
        seek_do(b, (struct seek_command){.us = began_us + 20000000, .has_partition = true, .partition = slice_of("lane-0")});
        assert_true(b->scans > 0);
    }
}

/* As a listing of messages does that ends in the past: what was newest in each lane then. */
static void test_a_walk_that_asks_each_lane_for_a_time(void **state)
{
    struct bench *b = *state;
    struct engine_foreseen f = {.ctx = b, .range = tell_range, .block = tell_block, .search = tell_search};
    struct queue_view q;
    struct lane_view lane = {0};
    struct delivery_piece piece;
    int64_t began_us = b->k.wall_us;
    uint32_t after = 0, looked = 0, found = 0;
    bool all = false;
    histories(b, 200);
    int64_t us = (began_us + b->k.wall_us) / 2 + 500000;
    rest(b);
    assert_true(engine_queue_get(b->k.e, KIT_TENANT, slice_of("old"), &q));
    b->watching = true;
    while (!all) {
        b->told_count = 0;
        uint32_t count = engine_lanes_foreseen(b->k.e, q.number, after, 1000, FORESEEN_TIME, us, &all, &f);
        assert_in_range(count, 1, 128);
        for (; count > 0; count--, looked++) {
            assert_true(engine_lane_next(b->k.e, q.number, after, &lane));
            after = lane.number;
            if (lane.last_created_us < us) continue;
            uint64_t end = engine_lane_offset_at(b->k.e, after, us);
            if (end <= lane.start_offset) continue;
            assert_true(engine_message_at(b->k.e, after, end - 1, &piece));
            assert_true(piece.created_us < us);
            found++;
        }
    }
    b->watching = false;
    assert_int_equal(looked, 200);
    assert_int_equal(found, 67); /* the others had nothing since */
    assert_true(b->scans > 100);
    assert_int_equal(b->untold, 0);
}

/* Ids that are the messages' own tell where these are. */
static void test_acks_of_a_lease_that_was_taken_before_a_start(void **state)
{
    struct bench *b = *state;
    enum { MESSAGES = 90 };
    struct buf c = {0};
    struct uuid ids[MESSAGES];
    char text[UUID_TEXT + 1];
    for (int m = 0; m < MESSAGES; m++) {
        struct push_writer w;
        struct push_item item = {.payload = slice_of("1")};
        push_begin(&w, &c, KIT_TENANT);
        push_group_begin(&w, slice_of("own"), slice_of("p"), 1);
        push_item_add(&w, &item);
        push_group_end(&w);
        push_end(&w);
        kit_do(&b->k, &c);
        ids[m] = b->k.result.push.items[0].id;
        kit_cut(&b->k);
    }
    for (int turn = 0; turn < 2; turn++) {
        struct pop_command p = kit_pop_of("own", "g", (uint32_t)turn + 1);
        p.batch = MESSAGES;
        if (turn == 0) kit_pop(&b->k, &p);
        rest(b);
        size_t at = c.len;
        ack_begin(&c, KIT_TENANT, slice_of("g"), MESSAGES);
        for (int m = 0; m < MESSAGES; m++) {
            struct ack_item item = {.partition = LANES + 1, .status = ACK_COMPLETED, .fenced = 1, .lease = kit_lease(1)};
            uuid_text(ids[(m * 37) % MESSAGES], text);
            item.transaction = slice_make(text, UUID_TEXT);
            ack_item_add(&c, &item);
        }
        ack_end(&c, at);
        foreseen_do(b, &c);
        assert_true(b->scans > 0);
        for (int m = 0; m < MESSAGES; m++) assert_int_equal(b->k.result.ack.items[m].verdict, ACK_OK);
    }
}

/* The first that asks for ids which left memory, too. */
static void test_acks_by_ids_that_left_memory(void **state)
{
    struct bench *b = *state;
    enum { MESSAGES = 40, YOUNG = 6000 /* more than stay in memory with the least budget */ };
    struct buf c = {0};
    char id[16];
    b->k.budget.dedup = 1;
    rest(b);
    for (int m = 0; m < MESSAGES; m++) {
        snprintf(id, sizeof id, "old-%d", m);
        kit_push(&b->k, "ids", "p", id);
    }
    for (int m = 0; m < YOUNG; m++) {
        snprintf(id, sizeof id, "new-%d", m);
        kit_push(&b->k, "ids", "other", id);
        if (m % 500 == 499) kit_cut(&b->k);
        while (engine_housekeep(b->k.e)) continue;
    }
    struct pop_command p = kit_pop_of("ids", "g", 1);
    p.batch = MESSAGES;
    kit_pop(&b->k, &p);
    rest(b);
    size_t at = c.len;
    ack_begin(&c, KIT_TENANT, slice_of("g"), MESSAGES);
    for (int m = 0; m < MESSAGES; m++) {
        struct ack_item item = {.partition = LANES + 1, .status = ACK_COMPLETED, .fenced = 1, .lease = kit_lease(1)};
        snprintf(id, sizeof id, "old-%d", m);
        item.transaction = slice_of(id);
        ack_item_add(&c, &item);
    }
    ack_end(&c, at);
    foreseen_do(b, &c);
    assert_true(b->scans >= MESSAGES);
    for (int m = 0; m < MESSAGES; m++) assert_int_equal(b->k.result.ack.items[m].verdict, ACK_OK);
}

static void kv_one(struct buf *out, struct kv_op op)
{
    size_t at = kv_begin(out, KIT_TENANT, 1);
    op.name_space = slice_of("n");
    kv_op_add(out, &op);
    kv_end(out, at);
}

static void test_kv_values(void **state)
{
    struct bench *b = *state;
    struct buf c = {0};
    char key[8];
    b->k.budget.kv_values = 1;
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof key, "k%02d", i);
        kv_one(&c, (struct kv_op){.kind = KV_PUT,
                                  .key = slice_of(key),
                                  .value = slice_of("\"a value that is worth a place of its own\"")});
        kit_do(&b->k, &c);
    }
    rest(b);
    kv_one(&c, (struct kv_op){.kind = KV_DELETE, .key = slice_of("k03")});
    foreseen_do(b, &c);
    assert_int_equal(b->scans, 1);
    kv_one(&c,
           (struct kv_op){.kind = KV_PUT, .flags = KV_EXPECT, .expect = 99, .key = slice_of("k04"), .value = slice_of("1")});
    foreseen_do(b, &c);
    assert_int_equal(b->scans, 1);
    kv_one(&c, (struct kv_op){.kind = KV_PUT, .key = slice_of("k05"), .value = slice_of("1")});
    foreseen_do(b, &c);
    assert_int_equal(b->scans, 1); /* whether it is there, and how long its value was */
    kv_one(&c, (struct kv_op){.kind = KV_PUT, .key = slice_of("k05"), .value = slice_of("2")});
    foreseen_do(b, &c);
    assert_int_equal(b->told_count, 0);
    kv_one(&c, (struct kv_op){.kind = KV_GET_PREFIX, .limit = 10, .key = slice_of("k1"), .value = slice_of("")});
    foreseen_do(b, &c);
    assert_true(b->scans > 0);
    assert_int_equal(b->told_count, 1);
}

static void timer_op_put(struct buf *out, uint8_t kind, const char *key)
{
    size_t at = timers_begin(out, KIT_TENANT, 1);
    struct timer_op op = {.kind = kind, .queue = slice_of("late"), .key = slice_of(key), .partition = slice_of("p")};
    op.delay_us = 60000000;
    op.item = (struct push_item){.flags = ITEM_TRANSACTION | ITEM_ID, .payload = slice_of("1"), .transaction = slice_of(key)};
    op.item.id = kit_lease(7);
    timer_op_add(out, &op);
    timers_end(out, at);
}

static void test_timers_at_rest(void **state)
{
    struct bench *b = *state;
    struct buf c = {0};
    char key[16];
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof key, "t%d", i);
        timer_op_put(&c, TIMER_SCHEDULE, key);
        kit_do(&b->k, &c);
    }
    rest(b);
    timer_op_put(&c, TIMER_CANCEL, "t3");
    foreseen_do(b, &c);
    assert_int_equal(b->k.result.timers.items[0].status, TIMER_CANCELLED);
    assert_int_equal(b->scans, 1);
    timer_op_put(&c, TIMER_SCHEDULE, "t4");
    foreseen_do(b, &c);
    assert_int_equal(b->scans, 1);
    timer_op_put(&c, TIMER_CANCEL, "nobody");
    foreseen_do(b, &c);
    assert_int_equal(b->scans + b->told_count, 0);
    kit_pass(&b->k, 61000000);
    tick_encode(&c);
    foreseen_do(b, &c);
    assert_int_equal(b->k.result.tick.fired, 19);
}

static void test_trims(void **state)
{
    struct bench *b = *state;
    struct buf c = {0};
    struct trim_item items[] = {{.partition = 3, .start = 3}, {.partition = 9, .start = 5}};
    rest(b);
    trim_encode(&c, items, 2);
    foreseen_do(b, &c);
    assert_true(b->scans > 0);
}

/* What retention finds in lanes at rest, and what it reads for that. */
static void test_looks_for_what_is_due(void **state)
{
    struct bench *b = *state;
    struct engine_foreseen f = {.ctx = b, .range = tell_range, .block = tell_block, .search = tell_search};
    const struct trim_limits most = {.looks = 60, .lanes = 16, .runs = 200};
    struct trim_item items[16];
    uint32_t count, lanes = 0, steps = 0;
    enum trim_round round;
    histories(b, 150);
    struct buf command = {0};
    struct configure_command c = {.tenant = KIT_TENANT, .queue = slice_of("old")};
    c.options.numbers[OPTION_RETENTION_ENABLED] = 1;
    c.options.numbers[OPTION_RETENTION_SECONDS] = 20;
    c.given = 1u << OPTION_RETENTION_ENABLED | 1u << OPTION_RETENTION_SECONDS;
    configure_encode(&command, &c);
    kit_do(&b->k, &command);
    rest(b);
    do {
        b->told_count = 0;
        engine_trim_foreseen(b->k.e, kit_now(&b->k), &most, &f);
        b->watching = true;
        round = engine_trim_due(b->k.e, kit_now(&b->k), &most, items, &count);
        b->watching = false;
        lanes += count;
        steps++;
    } while (round == TRIM_GOES_ON);
    assert_int_equal(round, TRIM_ROUND_DONE);
    assert_int_equal(lanes, 150);
    assert_in_range(steps, 150 / 16, 60);
    assert_true(b->scans > 0);
    assert_int_equal(b->untold, 0);
}

static void test_a_command_tells_no_more_than_its_share(void **state)
{
    struct bench *b = *state;
    struct push_writer w;
    struct buf c = {0};
    char lane[16];
    for (int l = 0; l < FORESEEN_MAX + 50; l++) {
        snprintf(lane, sizeof lane, "wide-%d", l);
        kit_push(&b->k, "wide", lane, "m");
    }
    rest(b);
    push_begin(&w, &c, KIT_TENANT);
    for (int l = 0; l < FORESEEN_MAX + 50; l++) {
        struct push_item item = {.payload = slice_of("1")};
        snprintf(lane, sizeof lane, "wide-%d", l);
        push_group_begin(&w, slice_of("wide"), slice_of(lane), 1);
        push_item_add(&w, &item);
        push_group_end(&w);
    }
    push_end(&w);
    b->told_count = 0;
    foresee(b, buf_view(&c));
    assert_int_equal(b->told_count, FORESEEN_MAX);
    buf_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_push_to_a_lane_at_rest, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_new_groups_first_pops, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pops_of_lanes_that_are_ready, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pops_together_look_at_different_lanes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_pinned_pop, setup, teardown),
        cmocka_unit_test_setup_teardown(test_acks_by_ids_that_no_index_has, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_seek_to_a_time, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_walk_that_asks_each_lane_for_a_time, setup, teardown),
        cmocka_unit_test_setup_teardown(test_acks_of_a_lease_that_was_taken_before_a_start, setup, teardown),
        cmocka_unit_test_setup_teardown(test_acks_by_ids_that_left_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_kv_values, setup, teardown),
        cmocka_unit_test_setup_teardown(test_timers_at_rest, setup, teardown),
        cmocka_unit_test_setup_teardown(test_trims, setup, teardown),
        cmocka_unit_test_setup_teardown(test_looks_for_what_is_due, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_command_tells_no_more_than_its_share, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
