/* Reads that show messages whose bytes are no longer in memory. The disk is as slow as the test wants. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>

#include "test_broker_rig.h"
#include "test_broker_slow.h"

enum { PAYLOAD_BYTES = 3000, OLD_MESSAGES = 200, FRESH_MESSAGES = 700 };

/* ---- reads -------------------------------------------------------------------------------------------------------- */

static void payload_make(char *out, uint32_t n)
{
    int used = snprintf(out, PAYLOAD_BYTES, "\"%u ", n);
    for (int i = used; i < PAYLOAD_BYTES - 2; i++) out[i] = (char)('a' + (n + (uint32_t)i) % 26);
    out[PAYLOAD_BYTES - 2] = '"';
    out[PAYLOAD_BYTES - 1] = '\0';
}

static void fill(struct rig *r, const char *queue, const char *lane, uint32_t count)
{
    enum { AT_ONCE = 50 };
    struct shot *shots[AT_ONCE];
    char payload[PAYLOAD_BYTES];
    for (uint32_t at = 0; at < count; at += AT_ONCE) {
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            payload_make(payload, at + i);
            shots[i] = push_start(r, queue, lane, payload);
        }
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            assert_int_equal(shot_wait(shots[i]), CALL_OK);
            shot_free(shots[i]);
        }
    }
}

static int cold_setup(void **state)
{
    rig_setup(state);
    struct rig *r = *state;
    rig_close(r);
    r->config.cache_bytes = 0; /* only what is being written */
    rig_open(r);
    fill(r, "old", "a", OLD_MESSAGES);
    fill(r, "fresh", "x", FRESH_MESSAGES); /* pushes the first ones out of memory */
    return 0;
}

#define with_cold(f) cmocka_unit_test_setup_teardown(f, cold_setup, rig_teardown)

/* Shows messages of the old lane: what `read` keeps beside the answer. */
struct look {
    uint64_t from;
    uint32_t count;
    uint32_t runs, here, coming, later, damaged; /* pieces, of the last run */
    bool moves_on;                               /* every run wants other messages than the one before */
    bool waits;                                  /* then for an append */
    uint64_t first_where;
};

static void look_read(struct call *c, struct engine *e, struct engine_now now)
{
    struct look *l = c->read_ctx;
    struct fetch_view v;
    struct arena arena;
    (void)now;
    arena_init(&arena);
    if (l->moves_on) l->from = l->runs * 5;
    l->runs++;
    l->here = l->coming = l->later = l->damaged = 0;
    must(engine_fetch(e, rig_tenant, slice_of("old"), slice_of("a"), l->from, 1 << 30, l->count, &arena, &v) == FETCH_OK);
    for (uint32_t i = 0; i < v.piece_count; i++) {
        struct call_piece piece;
        struct push_item item;
        if (i == 0) l->first_where = v.pieces[i].where;
        switch (broker_piece_load(c->broker, &v.pieces[i], &piece)) {
        case PIECE_HERE:
            push_group_item(&piece.group, v.pieces[i].item0, &item);
            buf_slice(&c->answer, item.payload);
            broker_piece_release(c->broker, &piece);
            l->here++;
            break;
        case PIECE_COMING:
            l->coming++;
            break;
        case PIECE_LATER:
            l->later++;
            break;
        case PIECE_DAMAGED:
            l->damaged++;
        }
    }
    if (l->waits && !c->late) {
        broker_watch(c->broker, c, rig_tenant, slice_of("old"), slice_of("b"));
        c->waits = true;
    }
    arena_free(&arena);
}

static struct shot *look_start(struct rig *r, struct look *l)
{
    struct shot *s = shot_new(r, CALL_READ);
    s->call.read = look_read;
    s->call.read_ctx = l;
    broker_submit(r->broker, &s->call);
    return s;
}

static void assert_shown(const struct shot *s, uint32_t first, uint32_t count)
{
    char payload[PAYLOAD_BYTES];
    assert_int_equal(s->call.answer.len, (size_t)count * (PAYLOAD_BYTES - 1));
    for (uint32_t i = 0; i < count; i++) {
        payload_make(payload, first + i);
        assert_memory_equal(s->call.answer.at + (size_t)i * (PAYLOAD_BYTES - 1), payload, PAYLOAD_BYTES - 1);
    }
}

static bool is_reading(void *arg)
{
    const struct shot *s = arg;
    must(!s->done);
    return s->call.state == CALL_STATE_READING;
}

static void until_reading(struct shot *s)
{
    assert_true(rig_run(s->rig, is_reading, s, 5000));
}

/* ---- content ------------------------------------------------------------------------------------------------------ */

static void test_a_read_runs_again_when_its_bytes_are_there(void **state)
{
    struct rig *r = *state;
    struct look l = {.count = 100};
    struct shot *s = look_start(r, &l);
    until_reading(s);
    assert_int_equal(l.runs, 1);
    assert_int_equal(l.coming, 100); /* all of them are named at once */
    reader_go();
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_int_equal(l.runs, 2);
    assert_int_equal(reader.all, 1);
    assert_shown(s, 0, 100);
    assert_null(s->call.found);
    shot_free(s);
}

static void test_what_is_in_memory_needs_no_reading(void **state)
{
    struct rig *r = *state;
    push(r, "old", "b", "\"1\"");
    struct look l = {.from = OLD_MESSAGES - 3, .count = 3};
    reader.open = true;
    struct shot *s = look_start(r, &l);
    assert_int_equal(shot_wait(s), CALL_OK);
    shot_free(s);
    l.runs = 0;
    s = look_start(r, &l); /* ranges read lately */
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_int_equal(l.runs, 1);
    assert_int_equal(reader.all, 1);
    assert_shown(s, OLD_MESSAGES - 3, 3);
    shot_free(s);
}

static void test_pieces_stay_with_their_call_whatever_leaves_the_ranges(void **state)
{
    struct rig *r = *state;
    struct look l = {.count = 100};
    struct shot *s = look_start(r, &l);
    until_reading(s);
    reader_go();
    cold_cache_age(r->broker->cold.cache, INT64_MAX);
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_int_equal(l.runs, 2);
    assert_shown(s, 0, 100);
    shot_free(s);
}

static void test_other_calls_do_not_wait_for_the_disk(void **state)
{
    struct rig *r = *state;
    struct look l = {.count = 100};
    struct shot *s = look_start(r, &l);
    until_reading(s);
    for (int i = 0; i < 20; i++) push(r, "other", "b", "\"1\"");
    struct shot *pop = pop_start(r, (struct pop_wish){.queue = "other", .group = "g", .batch = 20, .lease_ms = 60000});
    assert_int_equal(shot_wait(pop), CALL_OK);
    ack(r, pop);
    shot_free(pop);
    assert_false(s->done); /* the disk has not answered yet */
    assert_int_equal(reader.count, 1);
    reader_go();
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_shown(s, 0, 100);
    shot_free(s);
}

static bool is_waiting(void *arg)
{
    return ((struct shot *)arg)->call.state == CALL_STATE_WAITING;
}

static void test_a_read_may_read_and_then_wait(void **state)
{
    struct rig *r = *state;
    struct look l = {.count = 10, .waits = true};
    struct shot *s = look_start(r, &l);
    until_reading(s);
    assert_int_equal(r->broker->watching.watches, 0);
    reader_go();
    assert_true(rig_run(r, is_waiting, s, 5000));
    assert_null(s->call.found); /* it holds nothing while it waits */
    l.waits = false;
    push(r, "old", "b", "\"1\"");
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_shown(s, 0, 10);
    shot_free(s);
}

/* ---- limits ------------------------------------------------------------------------------------------------------- */

static void test_a_read_that_always_wants_something_else_ends(void **state)
{
    struct rig *r = *state;
    struct look l = {.count = 1, .moves_on = true};
    r->config.cache_bytes = 0;
    struct shot *s = look_start(r, &l);
    while (!s->done) {
        cold_cache_age(r->broker->cold.cache, INT64_MAX);
        reader_go();
        rig_pass(r, 1);
    }
    assert_int_equal(s->call.outcome, CALL_TIMEOUT);
    assert_int_equal(l.runs, COLD_ROUNDS_MAX + 1);
    assert_null(s->call.found);
    shot_free(s);
}

static void large_push(struct rig *r, size_t bytes)
{
    char *payload = malloc(bytes + 1);
    must(payload != NULL);
    memset(payload, 'a', bytes);
    payload[0] = payload[bytes - 1] = '"';
    payload[bytes] = '\0';
    push(r, "large", "a", payload);
    free(payload);
}

static void large_read(struct call *c, struct engine *e, struct engine_now now)
{
    struct look *l = c->read_ctx;
    struct fetch_view v;
    struct arena arena;
    (void)now;
    arena_init(&arena);
    l->runs++;
    l->here = l->coming = l->later = 0;
    must(engine_fetch(e, rig_tenant, slice_of("large"), slice_of("a"), 0, 1 << 30, 1000, &arena, &v) == FETCH_OK);
    for (uint32_t i = 0; i < v.piece_count; i++) {
        struct call_piece piece;
        enum piece_state state = broker_piece_load(c->broker, &v.pieces[i], &piece);
        l->here += state == PIECE_HERE;
        l->coming += state == PIECE_COMING;
        l->later += state == PIECE_LATER;
        if (state == PIECE_HERE) broker_piece_release(c->broker, &piece);
    }
    arena_free(&arena);
}

static void test_a_call_reads_no_more_than_its_share(void **state)
{
    enum { MESSAGES = 6, BYTES = 10 << 20 };
    struct rig *r = *state;
    for (int i = 0; i < MESSAGES; i++) large_push(r, BYTES);
    fill(r, "fresh", "x", FRESH_MESSAGES);
    struct look l = {0};
    struct shot *s = shot_new(r, CALL_READ);
    s->call.read = large_read;
    s->call.read_ctx = &l;
    reader.open = true;
    broker_submit(r->broker, &s->call);
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_int_equal(l.runs, 2);
    uint64_t most = r->config.memory.cold_reads < COLD_CALL_BYTES ? r->config.memory.cold_reads : COLD_CALL_BYTES;
    assert_int_equal(l.here, most / (BYTES + 4096));
    assert_int_equal(l.later, MESSAGES - l.here);
    shot_free(s);
}

/* ---- damage ------------------------------------------------------------------------------------------------------- */

static void byte_flip(struct rig *r, uint64_t where)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/log/%016llx.seg", r->config.dir,
             (unsigned long long)(where & ~(r->config.segment_bytes - 1)));
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    off_t at = (off_t)(where & (r->config.segment_bytes - 1));
    unsigned char byte;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x20;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void test_damage_is_told_piece_by_piece(void **state)
{
    struct rig *r = *state;
    struct look l = {.from = 50, .count = 10};
    struct shot *s = look_start(r, &l);
    until_reading(s);
    byte_flip(r, l.first_where + PAYLOAD_BYTES / 2);
    reader_go();
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_int_equal(l.damaged, 1);
    assert_int_equal(l.here, 9);
    assert_shown(s, 51, 9);
    byte_flip(r, l.first_where + PAYLOAD_BYTES / 2);
    shot_free(s);
}

/* ---- leaving ------------------------------------------------------------------------------------------------------ */

static void test_a_caller_leaves_while_its_bytes_are_read(void **state)
{
    struct rig *r = *state;
    struct look l = {.count = 100};
    struct shot *s = look_start(r, &l);
    until_reading(s);
    broker_cancel(r->broker, &s->call);
    assert_int_equal(shot_wait(s), CALL_CANCELLED);
    shot_free(s);
    assert_int_equal(r->broker->cold.calls.count, 0);
    reader_go(); /* for nobody */
    rig_pass(r, 5);
    assert_null(r->broker->cold.first);
    assert_int_equal(l.runs, 1);
}

static void time_is_up(struct shot *s)
{
    struct broker *b = s->rig->broker;
    heap_put(&b->deadlines, &s->call.due, 0, s->call.arrival);
    inbox_deadline_fire(&b->deadline_timer);
}

static void test_a_late_read_gets_its_bytes_if_they_are_near(void **state)
{
    struct rig *r = *state;
    struct look l = {.count = 100, .waits = true};
    struct shot *s = look_start(r, &l);
    until_reading(s);
    time_is_up(s);
    assert_int_equal(s->call.state, CALL_STATE_READING);
    reader_go();
    assert_int_equal(shot_wait(s), CALL_OK); /* it cannot wait any more */
    assert_shown(s, 0, 100);
    shot_free(s);
}

static void test_a_read_whose_disk_does_not_answer_times_out(void **state)
{
    struct rig *r = *state;
    struct look l = {.count = 100};
    struct shot *s = look_start(r, &l);
    until_reading(s);
    time_is_up(s);
    time_is_up(s);
    assert_int_equal(shot_wait(s), CALL_TIMEOUT);
    shot_free(s);
}

static void test_a_read_that_begins_to_read_when_its_time_is_up(void **state)
{
    struct rig *r = *state;
    struct look l = {.from = OLD_MESSAGES - 1, .count = 0, .waits = true};
    struct shot *s = look_start(r, &l);
    assert_true(rig_run(r, is_waiting, s, 5000));
    l.from = 0;
    l.count = 20;
    time_is_up(s);
    assert_int_equal(s->call.state, CALL_STATE_READING);
    assert_true(heap_holds(&s->call.due));
    reader_go();
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_shown(s, 0, 20);
    shot_free(s);
}

static void test_a_graceful_stop_waits_for_reads(void **state)
{
    struct rig *r = *state;
    struct look l = {.count = 100};
    struct shot *s = look_start(r, &l);
    until_reading(s);
    broker_stop(r->broker, rig_stopped, r);
    rig_pass(r, 20);
    assert_false(r->stopped);
    reader_go();
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_shown(s, 0, 100);
    shot_free(s);
    assert_true(rig_run(r, rig_is_stopped, r, 15000));
    broker_close(r->broker);
    loop_free(r->loop);
    rig_open(r);
}

static void test_a_broker_closes_while_it_reads(void **state)
{
    struct rig *r = *state;
    struct look l = {.count = 100};
    struct shot *s = look_start(r, &l);
    until_reading(s);
    broker_cancel(r->broker, &s->call);
    calls_go_home(r->broker);
    assert_true(s->done);
    shot_free(s);
    rig_abandon(r);
    rig_open(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_cold(test_a_read_runs_again_when_its_bytes_are_there),
        with_cold(test_what_is_in_memory_needs_no_reading),
        with_cold(test_pieces_stay_with_their_call_whatever_leaves_the_ranges),
        with_cold(test_other_calls_do_not_wait_for_the_disk),
        with_cold(test_a_read_may_read_and_then_wait),
        with_cold(test_a_read_that_always_wants_something_else_ends),
        with_cold(test_a_call_reads_no_more_than_its_share),
        with_cold(test_damage_is_told_piece_by_piece),
        with_cold(test_a_caller_leaves_while_its_bytes_are_read),
        with_cold(test_a_late_read_gets_its_bytes_if_they_are_near),
        with_cold(test_a_read_whose_disk_does_not_answer_times_out),
        with_cold(test_a_read_that_begins_to_read_when_its_time_is_up),
        with_cold(test_a_graceful_stop_waits_for_reads),
        with_cold(test_a_broker_closes_while_it_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
