/* Mostly dead segments of the log: what is still wanted of them is copied, and they go. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>

#include "test_broker_rig.h"

enum { PAYLOAD_BYTES = 3000, ROUNDS = 100, DEAD_A_ROUND = 49, KEPT = ROUNDS }; /* 15 MB of log, a fiftieth wanted */

static void payload_make(char *out, uint32_t n)
{
    int used = snprintf(out, PAYLOAD_BYTES, "\"%u ", n);
    for (int i = used; i < PAYLOAD_BYTES - 2; i++) out[i] = (char)('a' + (n + (uint32_t)i) % 26);
    out[PAYLOAD_BYTES - 2] = '"';
    out[PAYLOAD_BYTES - 1] = '\0';
}

static void delete_queue(struct rig *r, const char *name)
{
    struct queue_delete_command d = {.tenant = rig_tenant, .queue = slice_of(name)};
    struct shot *s = shot_new(r, CALL_WRITE);
    queue_delete_encode(&s->command, &d);
    shot_write(s, false);
    assert_int_equal(shot_wait(s), CALL_OK);
    shot_free(s);
}

static void timer_schedule(struct rig *r, const char *key, int64_t delay_ms)
{
    struct shot *s = shot_new(r, CALL_WRITE);
    timer_encode(&s->command, "timers", key, "t", delay_ms);
    shot_write(s, true);
    assert_int_equal(shot_wait(s), CALL_OK);
    shot_free(s);
}

/* A lane kept for ever in the same segments as a queue that is deleted, and a timer and a dead letter at the front. */
static void fill(struct rig *r)
{
    char payload[PAYLOAD_BYTES];
    struct shot *shots[DEAD_A_ROUND + 1];
    timer_schedule(r, "far", 3600000);
    timer_schedule(r, "near", 1);
    push(r, "letters", "l", "\"lost\"");
    struct shot *s = pop_start(r, (struct pop_wish){.queue = "letters", .group = "g", .lease_ms = 60000});
    assert_int_equal(shot_wait(s), CALL_OK);
    struct shot *dlq = ack_start(r, s, ACK_DLQ);
    assert_int_equal(shot_wait(dlq), CALL_OK);
    shot_free(dlq);
    shot_free(s);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        payload_make(payload, i);
        for (uint32_t k = 0; k < DEAD_A_ROUND; k++) shots[k] = push_start(r, "dead", "d", payload);
        shots[DEAD_A_ROUND] = push_start(r, "kept", i % 3 == 0 ? "a" : "b", payload);
        for (uint32_t k = 0; k <= DEAD_A_ROUND; k++) {
            assert_int_equal(shot_wait(shots[k]), CALL_OK);
            shot_free(shots[k]);
        }
    }
    delete_queue(r, "dead");
}

static int reclaim_setup(void **state)
{
    rig_setup(state);
    struct rig *r = *state;
    rig_close(r);
    r->config.cache_bytes = 0;
    r->config.durable_every_ms = 20;
    r->config.reclaim_after_ms = 0;
    r->config.reclaim_bytes_s = UINT64_C(1) << 40;
    rig_open(r);
    return 0;
}

#define with_reclaim(f) cmocka_unit_test_setup_teardown(f, reclaim_setup, rig_teardown)

static uint64_t log_files(struct rig *r)
{
    return rig_numbers(r).metrics.log.files;
}

/* Files of the log that are no spares. */
static uint32_t files_of(struct rig *r, const char *part)
{
    char path[4200];
    uint32_t count = 0;
    snprintf(path, sizeof path, "%s/%s", r->config.dir, part);
    DIR *d = opendir(path);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) count += strstr(e->d_name, ".seg") != NULL;
    if (d != NULL) closedir(d);
    return count;
}

static bool is_small(void *arg)
{
    return files_of(arg, "log") <= 4;
}

static void wait_small(struct rig *r)
{
    for (int i = 0; i < 200 && !is_small(r); i++) rig_pass(r, 50);
    assert_true(is_small(r));
}

static void assert_kept(struct rig *r, const char *group)
{
    static const char *const lanes[] = {"a", "b"};
    for (int lane = 0; lane < 2; lane++) {
        struct shot *s = pop_start(
            r, (struct pop_wish){.queue = "kept", .lane = lanes[lane], .group = group, .batch = 1000, .lease_ms = 60000});
        assert_int_equal(shot_wait(s), CALL_OK);
        uint32_t n = 0;
        for (uint32_t i = 0; i < KEPT; i++) {
            if ((i % 3 == 0) != (lane == 0)) continue;
            char payload[PAYLOAD_BYTES];
            payload_make(payload, i);
            assert_payload(s, n++, payload);
        }
        assert_int_equal(s->call.result.pop.messages, n);
        shot_free(s);
    }
}

static void assert_timer_and_letter(struct rig *r, const char *group)
{
    struct timer_view t;
    assert_true(engine_timer_get(r->broker->engine, rig_tenant, slice_of("timers"), slice_of("far"), &t));
    assert_true(place_archived(t.piece.where));
    struct dead_letter_view d;
    uint64_t before = UINT64_MAX;
    assert_true(engine_dead_letter_next(r->broker->engine, rig_tenant, slice_of(""), slice_of(""), &before, &d));
    assert_true(place_archived(d.piece.where));
    struct shot *s =
        pop_start(r, (struct pop_wish){.queue = "timers", .lane = "t", .group = group, .batch = 1, .lease_ms = 60000});
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_payload(s, 0, "\"tick\"");
    assert_true(place_archived(s->call.result.pop.claims[0].pieces[0].where));
    shot_free(s);
}

static void test_what_is_wanted_is_copied_and_files_go(void **state)
{
    struct rig *r = *state;
    fill(r);
    assert_true(log_files(r) > 10);
    wait_small(r);
    assert_in_range(files_of(r, "archive"), 1, 3);
    assert_kept(r, "g1");
    assert_timer_and_letter(r, "g1");
    rig_close(r);
    rig_open(r);
    assert_kept(r, "g2");
    rig_abandon(r);
    rig_open(r);
    assert_kept(r, "g3");
    assert_timer_and_letter(r, "g3");
    assert_null(engine_check(r->broker->engine));
}

static void test_an_archive_file_that_is_dead_goes_too(void **state)
{
    struct rig *r = *state;
    for (int i = 0; i < 3; i++) {
        fill(r);
        wait_small(r);
    }
    delete_queue(r, "kept");
    delete_queue(r, "letters");
    for (int i = 0; i < 100 && files_of(r, "archive") > 2; i++) {
        push(r, "other", "x", "\"1\""); /* the durable state moves on */
        rig_pass(r, 50);
    }
    assert_in_range(files_of(r, "archive"), 1, 2);
}

static void byte_flip(struct rig *r, uint64_t where)
{
    char path[4200];
    uint64_t pos = where & ~PLACE_ARCHIVE;
    snprintf(path, sizeof path, "%s/%s/%016llx.seg", r->config.dir, place_archived(where) ? "archive" : "log",
             (unsigned long long)(pos & ~(r->config.segment_bytes - 1)));
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    off_t at = (off_t)(pos & (r->config.segment_bytes - 1));
    unsigned char byte;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x20;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void test_damage_in_the_archive_is_found_and_not_served(void **state)
{
    struct rig *r = *state;
    for (int i = 0; i < 3; i++) { /* its newest bytes stay in memory */
        fill(r);
        wait_small(r);
    }
    rig_close(r);
    rig_open(r);
    struct pop_wish wish = {.queue = "kept", .lane = "a", .group = "g", .batch = 1, .lease_ms = 60000};
    struct shot *s = pop_start(r, wish);
    assert_int_equal(shot_wait(s), CALL_OK);
    struct delivery_piece d = s->call.result.pop.claims[0].pieces[0];
    assert_true(place_archived(d.where));
    shot_free(s);
    cold_cache_age(r->broker->cold.cache, INT64_MAX);
    byte_flip(r, d.where + d.block_bytes / 2);
    wish.group = "h";
    s = pop_start(r, wish);
    assert_int_equal(shot_wait(s), CALL_DAMAGED);
    shot_free(s);
}

static void test_damaged_bytes_are_not_copied(void **state)
{
    struct rig *r = *state;
    rig_close(r);
    r->config.reclaim_bytes_s = 0;
    rig_open(r);
    fill(r);
    struct shot *s = pop_start(r, (struct pop_wish){.queue = "kept", .lane = "a", .group = "g", .batch = 1, .lease_ms = 60000});
    assert_int_equal(shot_wait(s), CALL_OK);
    struct delivery_piece d = s->call.result.pop.claims[0].pieces[0];
    shot_free(s);
    rig_close(r);
    byte_flip(r, d.where + d.block_bytes / 2);
    r->config.reclaim_bytes_s = UINT64_C(1) << 40;
    rig_open(r);
    for (int i = 0; i < 200 && files_of(r, "log") > 5; i++) {
        push(r, "other", "x", "\"1\"");
        rig_pass(r, 50);
    }
    assert_in_range(files_of(r, "log"), 2, 5); /* the damaged one stays */
    assert_true(engine_segment_live(r->broker->engine, d.where) > 0);
    s = pop_start(r, (struct pop_wish){.queue = "kept", .lane = "a", .group = "h", .batch = 1, .lease_ms = 60000});
    assert_int_equal(shot_wait(s), CALL_DAMAGED);
    shot_free(s);
}

static void test_a_missing_archive_file_is_named_at_start(void **state)
{
    struct rig *r = *state;
    fill(r);
    wait_small(r);
    rig_close(r);
    char command[4300];
    struct buf error = {0};
    snprintf(command, sizeof command, "rm '%s/archive/0000000000000000.seg'", r->config.dir);
    assert_int_equal(system(command), 0);
    assert_int_equal(rig_open_only(r, &error), 2);
    buf_byte(&error, '\0');
    assert_non_null(strstr(error.at, "archive/0000000000000000.seg"));
    buf_free(&error);
    rig_remove(r);
    rig_start(r); /* for the teardown */
}

static uint64_t copied_bytes(struct rig *r)
{
    struct reclaim_stats stats;
    reclaim_stats(r->broker, &stats);
    return stats.copied_bytes;
}

static void push_many(struct rig *r, const char *queue, uint32_t count, const char *payload)
{
    struct shot *shots[50];
    for (uint32_t i = 0; i < count; i += 50) {
        for (uint32_t k = 0; k < 50; k++) shots[k] = push_start(r, queue, "l", payload);
        for (uint32_t k = 0; k < 50; k++) {
            assert_int_equal(shot_wait(shots[k]), CALL_OK);
            shot_free(shots[k]);
        }
    }
}

/* Payloads of one byte are a thirtieth of an archive's file that holds nothing else. */
static void test_an_archive_file_that_is_all_wanted_is_left_alone(void **state)
{
    struct rig *r = *state;
    char payload[PAYLOAD_BYTES];
    payload_make(payload, 1);
    for (int i = 0; i < 3; i++) {
        push_many(r, "small", 3500, "1");
        push_many(r, "dead", 1000, payload);
        delete_queue(r, "dead");
    }
    wait_small(r);
    assert_true(files_of(r, "archive") >= 2);
    uint64_t before = copied_bytes(r);
    for (int i = 0; i < 5; i++) { /* it looks once a second, when the durable state has moved on */
        push(r, "other", "x", "\"1\"");
        rig_pass(r, 500);
    }
    assert_int_equal(copied_bytes(r), before);
    assert_true(before > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_reclaim(test_what_is_wanted_is_copied_and_files_go),
        with_reclaim(test_an_archive_file_that_is_dead_goes_too),
        with_reclaim(test_damage_in_the_archive_is_found_and_not_served),
        with_reclaim(test_damaged_bytes_are_not_copied),
        with_reclaim(test_a_missing_archive_file_is_named_at_start),
        with_reclaim(test_an_archive_file_that_is_all_wanted_is_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
