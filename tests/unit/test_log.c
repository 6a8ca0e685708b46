/* The log in use: append, reopen, cut, roll, large records, views and the cache, cold reads, trim. */
#include "log_test.h"

static void empty_log_opens_and_reopens(void **state)
{
    (void)state;
    struct fixture f;
    fixture_new(&f, MIB);
    fixture_open(&f);
    assert_int_equal(log_synced_index(f.log), 0);
    assert_int_equal(log_unsynced_bytes(f.log), 0);
    fixture_close(&f);
    fixture_open(&f);
    assert_int_equal(f.seen.last, 0);
    assert_int_equal(log_synced_index(f.log), 0);
    fixture_free(&f);
}

static void entries_come_back(void **state)
{
    (void)state;
    struct fixture f;
    fixture_new(&f, MIB);
    fixture_open(&f);
    for (uint64_t i = 1; i <= 1000; i++) {
        put(&f, i, 1 + i / 300, (size_t)(i * 37 % 2000));
        if (i % 7 == 0) log_flush(f.log);
    }
    wait_synced(&f);
    assert_int_equal(log_synced_index(f.log), 1000);
    fixture_close(&f);
    fixture_open(&f);
    check_entries(&f, 1, 1000);
    for (uint64_t i = 1; i <= 1000; i++) {
        const struct log_record *r = &f.seen.records[i - 1];
        assert_int_equal(r->term, 1 + i / 300);
        assert_int_equal(r->len, i * 37 % 2000);
        assert_int_equal(r->type, 1);
    }
    /* and the log goes on */
    for (uint64_t i = 1001; i <= 1100; i++) put_synced(&f, i, 9, 100);
    fixture_crash(&f);
    fixture_open(&f);
    check_entries(&f, 1, 1100);
    fixture_free(&f);
}

static void lower_entries_are_skipped(void **state)
{
    (void)state;
    struct fixture f;
    fixture_new(&f, MIB);
    fixture_open(&f);
    for (uint64_t i = 1; i <= 100; i++) put(&f, i, 1, 50);
    fixture_close(&f);
    f.o.first_index = 60;
    fixture_open(&f);
    check_entries(&f, 60, 100);
    fixture_free(&f);
}

static void a_lower_index_cuts(void **state)
{
    (void)state;
    struct fixture f;
    fixture_new(&f, MIB);
    fixture_open(&f);
    for (uint64_t i = 1; i <= 20; i++) put(&f, i, 1, 100);
    wait_synced(&f);
    assert_int_equal(log_synced_index(f.log), 20);
    put(&f, 12, 2, 300);
    assert_int_equal(log_synced_index(f.log), 11);
    put(&f, 13, 2, 300);
    wait_synced(&f);
    assert_int_equal(log_synced_index(f.log), 13);
    fixture_crash(&f);
    fixture_open(&f);
    check_entries(&f, 1, 13);
    assert_int_equal(f.seen.records[10].term, 1);
    assert_int_equal(f.seen.records[11].term, 2);
    assert_int_equal(f.seen.records[11].len, 300);
    put_synced(&f, 3, 5, 10);
    assert_int_equal(log_synced_index(f.log), 3);
    fixture_close(&f);
    fixture_open(&f);
    check_entries(&f, 1, 3);
    fixture_free(&f);
}

static void every_size_survives(void **state)
{
    (void)state;
    struct fixture f;
    fixture_new(&f, MIB);
    fixture_open(&f);
    uint64_t index = 0;
    for (size_t len = 0; len < 300; len++) put(&f, ++index, 3, len);
    /* around a page, a block (512 KiB), a segment */
    static const size_t around[] = {4096, 8192, 512 << 10, MIB, 2 * MIB, 3 * MIB};
    for (size_t n = 0; n < sizeof around / sizeof *around; n++)
        for (size_t d = 0; d <= 4200; d += d < 120 ? 8 : 340) {
            put(&f, ++index, 3, around[n] > d ? around[n] - d : d);
            if (index % 3 == 0) put(&f, ++index, 3, 10);
        }
    wait_synced(&f);
    uint64_t end = log_end_pos(f.log);
    fixture_close(&f);
    fixture_open(&f);
    check_entries(&f, 1, index);
    assert_true(log_end_pos(f.log) >= end);
    assert_true(log_covers(f.log, 0, end));
    assert_false(log_covers(f.log, 0, end + (uint64_t)1000 * MIB));
    fixture_free(&f);
}

static void generous_reservations_waste_nothing(void **state)
{
    (void)state;
    struct fixture f;
    fixture_new(&f, MIB);
    fixture_open(&f);
    uint64_t begin = log_end_pos(f.log);
    for (uint64_t i = 1; i <= 3000; i++) {
        char *at = log_reserve(f.log, 3 * MIB); /* more than a segment */
        body_fill(at, 200, i, 1);
        log_append(f.log, i, 1, 1, 200);
        if (i % 100 == 0) wait_synced(&f);
    }
    assert_true(log_end_pos(f.log) - begin < 3000 * 248 + 20000);
    fixture_close(&f);
    fixture_open(&f);
    check_entries(&f, 1, 3000);
    fixture_free(&f);
}

static void a_reservation_can_be_forgotten(void **state)
{
    (void)state;
    struct fixture f;
    fixture_new(&f, MIB);
    fixture_open(&f);
    uint64_t begin = log_end_pos(f.log);
    memset(log_reserve(f.log, 100), 'x', 100);
    memset(log_reserve(f.log, 700000), 'y', 700000);
    memset(log_reserve(f.log, 50), 'z', 50);
    assert_int_equal(log_end_pos(f.log), begin);
    put_synced(&f, 1, 1, 77);
    fixture_close(&f);
    fixture_open(&f);
    check_entries(&f, 1, 1);
    fixture_free(&f);
}

static void large_records_get_room(void **state)
{
    (void)state;
    struct fixture f;
    fixture_new(&f, MIB);
    fixture_open(&f);
    static const size_t sizes[] = {100, 5 * MIB, 100, 600 << 10, 20 * MIB, 20 * MIB, 3, 40 * MIB, 0, 1100000};
    uint64_t index = 0;
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        uint64_t pos = put(&f, ++index, 4, sizes[n]);
        struct slice view;
        struct log_pin pin;
        assert_true(log_view(f.log, pos, sizes[n], &view, &pin));
        assert_true(body_right(view.at, view.len, index, 4));
        log_unpin(f.log, pin);
        if (n % 2 == 0) log_flush(f.log);
    }
    wait_synced(&f);
    fixture_crash(&f);
    fixture_open(&f);
    check_entries(&f, 1, index);
    put_synced(&f, ++index, 4, 9 * MIB);
    fixture_close(&f);
    fixture_open(&f);
    check_entries(&f, 1, index);
    fixture_free(&f);
}

static void pins_hold_memory(void **state)
{
    (void)state;
    struct fixture f;
    fixture_new(&f, MIB);
    f.o.cache_bytes_max = MIB;
    fixture_open(&f);
    uint64_t pos[64];
    for (uint64_t i = 1; i <= 4; i++) pos[i] = put(&f, i, 1, 1000);
    wait_synced(&f);
    struct slice first;
    struct log_pin pin;
    assert_true(log_view(f.log, pos[1], 1000, &first, &pin));
    for (uint64_t i = 5; i <= 40; i++) {
        pos[i] = put(&f, i, 1, 300 << 10);
        wait_synced(&f);
    }
    assert_true(body_right(first.at, first.len, 1, 1));
    struct slice view;
    struct log_pin other;
    assert_true(log_view(f.log, pos[2], 1000, &view, &other)); /* same block, pinned by the first */
    log_unpin(f.log, other);
    assert_false(log_view(f.log, pos[10], 300 << 10, &view, &other));
    assert_true(log_view(f.log, pos[40], 300 << 10, &view, &other));
    log_unpin(f.log, other);
    struct log_stats stats;
    log_stats(f.log, &stats);
    assert_true(stats.cache_bytes <= 3 * MIB);
    log_unpin(f.log, pin);
    log_idle(f.log);
    assert_false(log_view(f.log, pos[1], 1000, &view, &other));
    /* beyond the end there is nothing to see */
    assert_false(log_view(f.log, log_end_pos(f.log), 1, &view, &other));
    assert_false(log_view(f.log, pos[40], 600 << 10, &view, &other));
    fixture_free(&f);
}

static void old_images_go(void **state)
{
    (void)state;
    struct fixture f;
    fixture_new(&f, MIB);
    f.o.cache_bytes_max = 512 * MIB;
    f.o.cache_age_us = 50000;
    fixture_open(&f);
    uint64_t pos[32];
    for (uint64_t i = 1; i <= 20; i++) pos[i] = put(&f, i, 1, 400 << 10);
    wait_synced(&f);
    struct log_stats stats;
    log_stats(f.log, &stats);
    assert_true(stats.cache_bytes >= 8 * MIB);
    struct slice view;
    struct log_pin pin;
    int64_t until = clock_mono_us() + DEADLINE_US;
    do {
        assert_true(clock_mono_us() < until);
        usleep(20000);
        assert_true(log_view(f.log, pos[7], 10, &view, &pin)); /* in use: stays */
        log_unpin(f.log, pin);
        log_idle(f.log);
        log_stats(f.log, &stats);
    } while (stats.cache_bytes > 2 * MIB);
    assert_true(log_view(f.log, pos[7], 400 << 10, &view, &pin));
    assert_true(body_right(view.at, view.len, 7, 1));
    log_unpin(f.log, pin);
    fixture_free(&f);
}

static void cold_bytes_are_read_from_files(void **state)
{
    (void)state;
    struct fixture f;
    fixture_new(&f, MIB);
    f.o.cache_bytes_max = 0;
    fixture_open(&f);
    uint64_t pos[200];
    static char room[MIB];
    for (uint64_t i = 1; i < 200; i++) pos[i] = put(&f, i, 1, 100 + (size_t)i * 600);
    wait_synced(&f);
    put_synced(&f, 200, 1, 500 << 10); /* a new block: the others may go */
    struct slice view;
    struct log_pin pin;
    uint32_t cold = 0;
    for (uint64_t i = 1; i < 200; i++) {
        if (log_view(f.log, pos[i], 1, &view, &pin))
            log_unpin(f.log, pin);
        else
            cold++;
        assert_int_equal(log_read(f.log, pos[i], 100 + (size_t)i * 600, room), LOG_OK);
        assert_true(body_right(room, 100 + (size_t)i * 600, i, 1));
    }
    struct log_stats stats;
    log_stats(f.log, &stats);
    assert_true(cold > 100);
    assert_int_equal(stats.cold_reads, cold);
    assert_int_equal(log_read(f.log, log_end_pos(f.log) + (uint64_t)64 * MIB, 8, room), LOG_DAMAGED);
    fixture_free(&f);
}

static bool wanted_odd(void *ctx, uint64_t first_pos, uint64_t end_pos)
{
    uint64_t *asked = ctx;
    (*asked)++;
    assert_int_equal(end_pos - first_pos, MIB);
    return first_pos / MIB % 2 == 1;
}

static void wait_files(struct fixture *f, uint32_t count)
{
    int64_t until = clock_mono_us() + DEADLINE_US;
    while (files_named(f->dir, ".seg") != count) {
        assert_true(clock_mono_us() < until);
        usleep(1000);
    }
}

/* Large writes get no zeros ahead: the file must have its whole length all the same, or the next start takes it for a cut one. */
static void a_full_segment_has_its_whole_length(void **state)
{
    (void)state;
    struct fixture f;
    fixture_new(&f, 8 * MIB);
    fixture_open(&f);
    for (uint64_t i = 1; i <= 14; i++) put_synced(&f, i, 1, 900 << 10);
    fixture_close(&f);
    assert_int_equal(file_size_of(f.dir, "0000000000000000.seg"), 8 * MIB);
    fixture_open(&f);
    assert_true(log_covers(f.log, 0, 8 * MIB));
    check_entries(&f, 1, 14);
    fixture_close(&f);
    fixture_free(&f);
}

/* A full segment gets its whole length when the next one is entered. A crash between the two leaves a short file. */
static void a_full_segment_left_short_is_completed(void **state)
{
    (void)state;
    struct fixture f;
    fixture_new(&f, 8 * MIB);
    fixture_open(&f);
    uint64_t last = 0, pos[15];
    for (uint64_t i = 1; i <= 14; i++) {
        pos[i] = put(&f, i, 1, 900 << 10);
        wait_synced(&f);
        if (pos[i] < 8 * MIB) last = i;
    }
    assert_in_range(last, 2, 13);
    fixture_crash(&f);
    char path[600];
    snprintf(path, sizeof path, "%s/0000000000800000.seg", f.dir);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/0000000001000000.seg", f.dir);
    unlink(path);
    uint64_t end = 8 * MIB;
    char byte = 0;
    while (byte == 0) file_bytes_get(f.dir, "0000000000000000.seg", --end, &byte, 1);
    end = (end + 4096) / 4096 * 4096;
    assert_in_range(end, pos[last] + (900 << 10), 8 * MIB - 1);
    snprintf(path, sizeof path, "%s/0000000000000000.seg", f.dir);
    assert_int_equal(truncate(path, (off_t)end), 0);
    fixture_open(&f);
    check_entries(&f, 1, last);
    assert_true(log_covers(f.log, 0, 8 * MIB));
    assert_int_equal(file_size_of(f.dir, "0000000000000000.seg"), 8 * MIB);
    fixture_close(&f);
    fixture_free(&f);
}

/* Every byte of zeros is one more byte written, and read at the next start. */
static void zeros_end_a_little_ahead(void **state)
{
    (void)state;
    struct fixture f;
    fixture_new(&f, 64 * MIB);
    fixture_open(&f);
    put_synced(&f, 1, 1, 100);
    int64_t until = clock_mono_us() + DEADLINE_US;
    while (file_size_of(f.dir, "0000000000000000.seg") < 8 * MIB) {
        assert_true(clock_mono_us() < until);
        usleep(1000);
    }
    usleep(100000);
    assert_in_range(file_size_of(f.dir, "0000000000000000.seg"), 8 * MIB, 9 * MIB);
    fixture_free(&f);
}

static void trim_leaves_what_is_wanted(void **state)
{
    (void)state;
    struct fixture f;
    static char room[MIB];
    fixture_new(&f, MIB);
    f.o.cache_bytes_max = 0;
    fixture_open(&f);
    uint64_t pos[64], asked = 0;
    for (uint64_t i = 1; i <= 40; i++) pos[i] = put(&f, i, 1, 400 << 10); /* two a segment */
    wait_synced(&f);
    log_idle(f.log);
    wait_files(&f, 21); /* 20 with entries, one prepared */
    log_trim(f.log, pos[20], wanted_odd, &asked);
    assert_int_equal(asked, 9); /* entries 1..18 lie wholly below */
    wait_files(&f, 21 - 5);
    assert_false(log_covers(f.log, pos[1], pos[1] + 10));
    assert_true(log_covers(f.log, pos[3], pos[3] + 10));
    assert_false(log_covers(f.log, pos[3], pos[5] + 10));
    assert_int_equal(log_read(f.log, pos[5], 400 << 10, room), LOG_DAMAGED);
    assert_int_equal(log_read(f.log, pos[3], 400 << 10, room), LOG_OK);
    assert_true(body_right(room, 400 << 10, 3, 1));
    /* Holes below first_pos are fine at start. */
    f.o.first_pos = pos[20];
    f.o.first_index = 20;
    fixture_crash(&f);
    fixture_open(&f);
    check_entries(&f, 20, 40);
    assert_true(log_covers(f.log, pos[3], pos[3] + 10));
    assert_false(log_covers(f.log, pos[1], pos[1] + 10));
    assert_int_equal(log_read(f.log, pos[3], 400 << 10, room), LOG_OK);
    assert_true(body_right(room, 400 << 10, 3, 1));
    /* Everything goes but what is being written. */
    log_trim(f.log, log_end_pos(f.log), NULL, NULL);
    wait_files(&f, 2);
    fixture_close(&f);
    f.o.first_pos = pos[40];
    f.o.first_index = 41;
    fixture_open(&f);
    assert_int_equal(f.seen.last, 0);
    assert_int_equal(log_synced_index(f.log), 40);
    put_synced(&f, 41, 1, 10);
    fixture_free(&f);
}

static bool middle_goes(void *ctx, uint64_t first_pos, uint64_t end_pos)
{
    (void)ctx, (void)end_pos;
    return first_pos < 3 * MIB || first_pos >= 5 * MIB;
}

/* The archive: what is trimmed leaves holes anywhere, no file is kept for later, and a start looks only behind the last hole. */
static void a_sparse_log_may_have_holes(void **state)
{
    (void)state;
    struct fixture f;
    uint64_t pos[21] = {0};
    char *room = malloc(400 << 10);
    fixture_new(&f, MIB);
    f.o.sparse = true;
    fixture_open(&f);
    for (uint64_t i = 1; i <= 20; i++) pos[i] = put(&f, i, 1, 400 << 10);
    wait_synced(&f);
    log_trim(f.log, log_end_pos(f.log), middle_goes, NULL);
    wait_files(&f, 11 - 2);
    fixture_crash(&f);
    f.o.sparse = false;
    assert_int_equal(fixture_try(&f), LOG_DAMAGED);
    f.o.sparse = true;
    fixture_open(&f);
    assert_int_equal(f.seen.last, 20);
    assert_int_equal(log_synced_index(f.log), 20);
    assert_int_equal(log_read(f.log, pos[1], 400 << 10, room), LOG_OK);
    assert_true(body_right(room, 400 << 10, 1, 1));
    assert_int_equal(log_read(f.log, pos[7], 400 << 10, room), LOG_DAMAGED);
    assert_int_equal(log_read(f.log, pos[20], 400 << 10, room), LOG_OK);
    put_synced(&f, 21, 1, 10);
    fixture_close(&f);
    f.o.first_pos = 3 * MIB; /* a segment that is gone, though something in it is wanted */
    assert_int_equal(fixture_try(&f), LOG_DAMAGED);
    f.o.first_pos = 2 * MIB; /* one that is there: the scan begins behind the hole all the same */
    fixture_open(&f);
    assert_int_equal(log_synced_index(f.log), 21);
    free(room);
    fixture_free(&f);
}

/* Trimmed files are used again: their old records must never come back. */
static void recycled_files_hold_no_ghosts(void **state)
{
    (void)state;
    struct fixture f;
    fixture_new(&f, MIB);
    fixture_open(&f);
    uint64_t index = 0, pos = 0, before = 0;
    for (int round = 0; round < 60; round++) {
        before = index;
        for (int i = 0; i < 7; i++) pos = put(&f, ++index, 1, 100 << 10);
        wait_synced(&f);
        log_trim(f.log, log_end_pos(f.log), NULL, NULL);
        if (round % 10 != 9) continue;
        f.o.first_pos = pos;
        f.o.first_index = before + 1;
        fixture_crash(&f);
        fixture_open(&f);
        assert_int_equal(f.seen.last, index);
        check_readable(&f);
    }
    fixture_free(&f);
}

/* Nothing but the log's own records is left: it still knows how far it had come. */
static void the_last_index_outlives_its_entry(void **state)
{
    (void)state;
    struct fixture f;
    fixture_new(&f, MIB);
    fixture_open(&f);
    for (uint64_t i = 1; i <= 9; i++) put(&f, i, 1, 100 << 10);
    put_synced(&f, 10, 1, MIB - 4096 - 48 - 40); /* fills a segment to the end */
    uint64_t end = log_end_pos(f.log);
    assert_int_equal(end % MIB, 0);
    fixture_close(&f);
    f.o.first_pos = end;
    f.o.first_index = 11;
    fixture_open(&f);
    assert_int_equal(log_synced_index(f.log), 10);
    log_trim(f.log, log_end_pos(f.log), NULL, NULL);
    wait_files(&f, 2);
    fixture_crash(&f);
    fixture_open(&f);
    assert_int_equal(f.seen.last, 0);
    assert_int_equal(log_synced_index(f.log), 10);
    put_synced(&f, 11, 1, 10);
    assert_int_equal(log_synced_index(f.log), 11);
    fixture_free(&f);
}

static void a_second_opener_is_refused(void **state)
{
    (void)state;
    struct fixture f;
    fixture_new(&f, MIB);
    fixture_open(&f);
    struct log *other = NULL;
    assert_int_equal(log_open(&other, &f.o, &f.error), LOG_IO);
    assert_true(error_has(&f, "in use"));
    fixture_free(&f);
}

static void the_first_size_stays(void **state)
{
    (void)state;
    struct fixture f;
    fixture_new(&f, MIB);
    fixture_open(&f);
    for (uint64_t i = 1; i <= 10; i++) put(&f, i, 1, 300 << 10);
    fixture_close(&f);
    f.o.segment_bytes = 4 * MIB;
    fixture_open(&f);
    assert_int_equal(log_segment_bytes(f.log), MIB);
    check_entries(&f, 1, 10);
    fixture_free(&f);
}

static void numbers_add_up(void **state)
{
    (void)state;
    struct fixture f;
    fixture_new(&f, MIB);
    fixture_open(&f);
    for (uint64_t i = 1; i <= 50; i++) put_synced(&f, i, 1, 5000);
    struct log_stats stats;
    log_stats(f.log, &stats);
    uint64_t counted = 0;
    for (int i = 0; i < 24; i++) counted += stats.sync_buckets[i];
    assert_int_equal(counted, stats.syncs);
    assert_true(stats.syncs >= 50 && stats.syncs == atomic_load(&f.seen.syncs));
    assert_true(stats.written_bytes >= 50 * 5000);
    assert_true(stats.sync_us_max > 0 && stats.sync_us_total >= stats.sync_us_max);
    log_stats(f.log, &stats);
    assert_int_equal(stats.sync_us_max, 0);
    fixture_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty_log_opens_and_reopens),
        cmocka_unit_test(entries_come_back),
        cmocka_unit_test(lower_entries_are_skipped),
        cmocka_unit_test(a_lower_index_cuts),
        cmocka_unit_test(every_size_survives),
        cmocka_unit_test(generous_reservations_waste_nothing),
        cmocka_unit_test(a_reservation_can_be_forgotten),
        cmocka_unit_test(large_records_get_room),
        cmocka_unit_test(pins_hold_memory),
        cmocka_unit_test(old_images_go),
        cmocka_unit_test(cold_bytes_are_read_from_files),
        cmocka_unit_test(a_full_segment_has_its_whole_length),
        cmocka_unit_test(a_full_segment_left_short_is_completed),
        cmocka_unit_test(zeros_end_a_little_ahead),
        cmocka_unit_test(trim_leaves_what_is_wanted),
        cmocka_unit_test(a_sparse_log_may_have_holes),
        cmocka_unit_test(recycled_files_hold_no_ghosts),
        cmocka_unit_test(the_last_index_outlives_its_entry),
        cmocka_unit_test(a_second_opener_is_refused),
        cmocka_unit_test(the_first_size_stays),
        cmocka_unit_test(numbers_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
