/* What entries will read is read ahead, and nobody waits for it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "test_broker_rig.h"
#include "test_broker_slow.h"

enum { LANES = 1500 };

static void lane_name(char out[16], int n)
{
    snprintf(out, 16, "lane-%d", n);
}

/* One message into each of `count` lanes from `first` on, in one command. */
static struct shot *wide_push_start(struct rig *r, int first, int count)
{
    struct push_writer w;
    char lane[16];
    struct shot *s = shot_new(r, CALL_WRITE);
    push_begin(&w, &s->command, rig_tenant);
    for (int n = first; n < first + count; n++) {
        struct push_item item = {.payload = slice_of("1")};
        lane_name(lane, n);
        push_group_begin(&w, slice_of("q"), slice_of(lane), 1);
        push_item_add(&w, &item);
        push_group_end(&w);
    }
    push_end(&w);
    shot_write(s, true);
    return s;
}

/* Lanes with a message each; after a start all of it is in the store only. */
static int warm_setup(void **state)
{
    rig_setup(state);
    struct rig *r = *state;
    r->config.memory.kv_values = 1;
    rig_close(r);
    rig_open(r);
    struct shot *s = wide_push_start(r, 0, LANES);
    assert_int_equal(shot_wait(s), CALL_OK);
    shot_free(s);
    rig_close(r);
    rig_open(r);
    return 0;
}

#define with_warm(f) cmocka_unit_test_setup_teardown(f, warm_setup, rig_teardown)

static void test_an_entry_is_read_ahead_of_and_does_not_wait(void **state)
{
    struct rig *r = *state;
    struct broker *b = r->broker;
    assert_int_equal(b->warming.foreseen_total, 0);
    push(r, "q", "lane-7", "\"1\""); /* while the disk reads nothing */
    assert_int_equal(reader.count, 1);
    assert_true(reader.first->urgent);
    assert_true(b->warming.foreseen_total > 0);
    assert_int_equal(b->warming.count, 1);
    assert_true(b->entry_rows.count > 0); /* it was not there in time */
    reader_go();
    rig_pass(r, 5);
    assert_int_equal(b->warming.count, 0);
    uint64_t before = b->warming.foreseen_total;
    push(r, "q", "lane-7", "\"2\"");
    assert_int_equal(b->warming.foreseen_total, before); /* it is in memory */
    assert_int_equal(reader.count, 0);
}

static void test_what_is_foreseen_is_bounded(void **state)
{
    struct rig *r = *state;
    struct broker *b = r->broker;
    struct shot *one = wide_push_start(r, 0, LANES / 2), *two = wide_push_start(r, LANES / 2, LANES / 2);
    assert_int_equal(shot_wait(one), CALL_OK);
    assert_int_equal(shot_wait(two), CALL_OK);
    assert_int_equal(b->warming.count, 64);
    assert_int_equal(b->warming.foreseen_total, 64 * 16);
    assert_int_equal(b->warming.dropped_total, LANES - 64 * 16);
    reader_go();
    rig_pass(r, 5);
    assert_int_equal(b->warming.count, 0);
    shot_free(one);
    shot_free(two);
}

static void test_a_broker_closes_with_jobs_that_nobody_read(void **state)
{
    struct rig *r = *state;
    push(r, "q", "lane-9", "\"1\"");
    assert_int_equal(r->broker->warming.count, 1);
    rig_abandon(r);
    rig_open(r);
}

static void kv_encode(struct buf *out, enum kv_op_kind kind, const char *value)
{
    size_t at = kv_begin(out, rig_tenant, 1);
    kv_op_add(out, &(struct kv_op){
                       .kind = (uint8_t)kind, .name_space = slice_of("n"), .key = slice_of("k"), .value = slice_of(value)});
    kv_end(out, at);
}

struct get {
    struct buf command;
    struct kv_result result;
    int runs;
};

static void get_read(struct call *c, struct engine *e, struct engine_now now)
{
    struct get *g = c->read_ctx;
    struct slice rest = buf_view(&g->command);
    struct command command;
    struct kv_command kv;
    must(command_next(&rest, &command) && kv_decode(&command, &kv));
    g->runs++;
    engine_kv_read(e, &kv, now, &c->arena, &g->result);
}

static bool is_reading(void *arg)
{
    return ((struct shot *)arg)->call.state == CALL_STATE_READING;
}

static void test_a_kv_read_waits_for_its_value(void **state)
{
    static const char value[] = "\"a value that is worth a place of its own\"";
    struct rig *r = *state;
    struct shot *put = shot_new(r, CALL_WRITE);
    kv_encode(&put->command, KV_PUT, value);
    shot_write(put, true);
    assert_int_equal(shot_wait(put), CALL_OK);
    shot_free(put);
    rig_close(r);
    rig_open(r); /* the value is in the store only */
    struct get g = {0};
    kv_encode(&g.command, KV_GET, "");
    struct shot *s = shot_new(r, CALL_READ);
    s->call.read = get_read;
    s->call.read_ctx = &g;
    s->call.foreseen = buf_view(&g.command);
    broker_submit(r->broker, &s->call);
    assert_true(rig_run(r, is_reading, s, 5000));
    assert_int_equal(g.runs, 0);
    push(r, "other", "b", "\"1\"");
    assert_false(s->done);
    reader_go();
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_int_equal(g.runs, 1);
    assert_true(slice_is(g.result.items[0].value, value));
    shot_free(s);
    g.runs = 0;
    s = shot_new(r, CALL_READ); /* it is in memory now, or will be asked for again: it never waits twice */
    s->call.read = get_read;
    s->call.read_ctx = &g;
    s->call.foreseen = buf_view(&g.command);
    reader.open = true;
    broker_submit(r->broker, &s->call);
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_int_equal(g.runs, 1);
    shot_free(s);
    buf_free(&g.command);
}

/* A piece of a seek over lanes at rest goes into an entry when what it will look at was read. Others go on meanwhile; when the
 * one who asked leaves, the next one's is read. */
static void test_a_piece_of_bulk_work_waits_for_its_rows(void **state)
{
    struct rig *r = *state;
    struct seek_command seek = {
        .tenant = rig_tenant, .queue = slice_of("q"), .group = slice_of("g"), .us = 1, .piece.most = 1000};
    struct shot *left = shot_new(r, CALL_WRITE), *s = shot_new(r, CALL_WRITE);
    seek_encode(&left->command, &seek);
    seek_encode(&s->command, &seek);
    shot_write(left, false);
    rig_pass(r, 20);
    assert_false(left->done);
    assert_int_equal(reader.count, 1);
    push(r, "other", "b", "\"1\"");
    broker_cancel(r->broker, &left->call);
    assert_int_equal(shot_wait(left), CALL_CANCELLED);
    shot_write(s, false);
    rig_pass(r, 20);
    assert_int_equal(reader.count, 1); /* one job at a time */
    reader_go();
    rig_pass(r, 20);
    assert_false(s->done);
    assert_int_equal(reader.count, 1);
    reader_go();
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_in_range(s->call.result.changed.lanes, 100, 1000);
    assert_true(s->call.result.changed.more);
    shot_free(left);
    shot_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_warm(test_an_entry_is_read_ahead_of_and_does_not_wait), with_warm(test_what_is_foreseen_is_bounded),
        with_warm(test_a_broker_closes_with_jobs_that_nobody_read),  with_warm(test_a_kv_read_waits_for_its_value),
        with_warm(test_a_piece_of_bulk_work_waits_for_its_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
