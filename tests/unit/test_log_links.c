/* The log for who copies its files: where an entry ends, and that a file with a second name is never written over. */
#include "log_test.h"

#include "base/files.h"

/* A log of `total` entries of mixed sizes; pos[i] is where entry i is. */
static void log_make(struct fixture *f, uint64_t total, uint64_t *pos)
{
    static const size_t sizes[] = {10, 100, 3000, 0, 70 << 10, 500, 300 << 10, 1 << 20, 48, 600 << 10, 5};
    fixture_new(f, MIB);
    fixture_open(f);
    for (uint64_t i = 1; i <= total; i++) pos[i] = put(f, i, 1 + i / 20, sizes[i * 7 % 11]);
    wait_synced(f);
}

static bool entry_end(struct fixture *f, uint64_t from, uint64_t index, uint64_t term, uint64_t *end)
{
    return log_entry_end(f->log, from, index, term, end) == LOG_OK;
}

/* What a copier does: the files below `end`, the last one up to it. */
static void copy_up_to(const char *from, const char *to, uint64_t end)
{
    DIR *d = opendir(from);
    assert_non_null(d);
    struct dirent *e;
    assert_int_equal(mkdir(to, 0750), 0);
    while ((e = readdir(d)) != NULL) {
        size_t len = strlen(e->d_name);
        char in[600], out[600];
        if (len != 20) continue;
        uint64_t first = strtoull(e->d_name, NULL, 16), bytes = 0;
        if (first >= end) continue;
        snprintf(in, sizeof in, "%s/%s", from, e->d_name);
        snprintf(out, sizeof out, "%s/%s", to, e->d_name);
        file_copy(in, out);
        assert_int_equal(files_size(out, &bytes), 0);
        if (bytes > end - first) assert_int_equal(files_truncate(out, end - first), 0);
    }
    closedir(d);
}

/* For each entry: the log cut at its end opens with it as the last one, reads back, goes on, and opens again. */
static void a_log_cut_at_an_entrys_end_goes_on_there(void **state)
{
    (void)state;
    enum { TOTAL = 66 };
    struct fixture f;
    uint64_t pos[TOTAL + 1], end = 0, before = 0;
    log_make(&f, TOTAL, pos);
    for (uint64_t i = 1; i <= TOTAL; i++) {
        assert_true(entry_end(&f, pos[i > 5 ? i - 5 : 1], i, 1 + i / 20, &end));
        assert_true(end >= pos[i] && end > before && end <= log_end_pos(f.log));
        if (i < TOTAL) assert_true(pos[i + 1] > end);
        before = end;
        uint64_t same = 0;
        assert_true(entry_end(&f, pos[i], i, 1 + i / 20, &same));
        assert_int_equal(same, end);

        struct fixture copy = {.o = f.o, .log = NULL};
        snprintf(copy.dir, sizeof copy.dir, "%.200s.copy", f.dir);
        copy_up_to(f.dir, copy.dir, end);
        copy.o.dir = copy.dir;
        copy.o.ctx = &copy.seen;
        copy.o.first_index = i > 3 ? i - 3 : 1;
        copy.o.first_pos = pos[copy.o.first_index];
        fixture_open(&copy);
        check_entries(&copy, copy.o.first_index, i);
        for (uint64_t n = 1; n <= 3; n++) put_synced(&copy, i + n, 90, 200 << 10);
        fixture_crash(&copy);
        fixture_open(&copy);
        check_entries(&copy, copy.o.first_index, i + 3);
        fixture_free(&copy);
    }
    assert_int_equal(end, log_end_pos(f.log));
    fixture_free(&f);
}

static void entries_that_are_not_there(void **state)
{
    (void)state;
    struct fixture f;
    uint64_t pos[31], end;
    log_make(&f, 30, pos);
    assert_false(entry_end(&f, pos[1], 31, 2, &end));    /* not yet */
    assert_false(entry_end(&f, pos[1], 7, 2, &end));     /* of another term */
    assert_false(entry_end(&f, pos[8], 7, 1, &end));     /* before */
    assert_false(entry_end(&f, pos[3] + 8, 7, 1, &end)); /* no record begins there */
    assert_false(entry_end(&f, 0, 7, 1, &end));
    assert_false(entry_end(&f, 1, 7, 1, &end));
    assert_false(entry_end(&f, UINT64_MAX, 7, 1, &end));
    assert_true(entry_end(&f, pos[1], 30, 2, &end));
    fixture_free(&f);
}

/* After a cut two records have the index: the term tells which one is meant. Also from the files, and behind a restart. */
static void of_an_index_that_was_written_twice(void **state)
{
    (void)state;
    struct fixture f;
    uint64_t pos[21], old, now, again;
    log_make(&f, 15, pos);
    assert_true(entry_end(&f, pos[2], 12, 1, &old));
    for (uint64_t i = 11; i <= 20; i++) pos[i] = put(&f, i, 5, 5000);
    wait_synced(&f);
    assert_true(entry_end(&f, pos[2], 12, 5, &now));
    assert_true(now > old);
    fixture_crash(&f);
    f.o.first_pos = pos[10];
    f.o.first_index = 10;
    f.o.cache_bytes_max = 1;
    fixture_open(&f);
    check_entries(&f, 10, 20);
    assert_true(entry_end(&f, pos[10], 12, 5, &again));
    assert_int_equal(again, now);
    put_synced(&f, 21, 6, 100);
    assert_true(entry_end(&f, pos[10], 21, 6, &again));
    fixture_free(&f);
}

static void a_trimmed_file_with_a_second_name_is_left_alone(void **state)
{
    (void)state;
    struct fixture f;
    char linked[300], path[600], before[8192], now[8192];
    fixture_new(&f, MIB);
    fixture_open(&f);
    snprintf(linked, sizeof linked, "%.200s.links", f.dir);
    assert_int_equal(files_make_dir(linked), 0);
    uint64_t index = 0, kept = 0;
    for (int round = 0; round < 40; round++) {
        uint64_t pos = 0;
        for (int i = 0; i < 7; i++) pos = put(&f, ++index, 1, 100 << 10);
        wait_synced(&f);
        /* Sealed ones get a second name in every other round. */
        uint64_t first = pos / MIB * MIB - MIB;
        snprintf(path, sizeof path, "%s/%016llx.seg", f.dir, (unsigned long long)first);
        char to[600];
        snprintf(to, sizeof to, "%s/%016llx.seg", linked, (unsigned long long)first);
        if (round % 2 == 0 && pos >= 2 * MIB && files_link(path, to) == 0) kept++;
        log_trim(f.log, pos, NULL, NULL);
    }
    assert_true(kept > 10);
    fixture_close(&f);
    /* Every kept file still begins with the head of its own place. */
    DIR *d = opendir(linked);
    assert_non_null(d);
    struct dirent *e;
    uint64_t seen = 0;
    while ((e = readdir(d)) != NULL) {
        if (strlen(e->d_name) != 20) continue;
        file_bytes_get(linked, e->d_name, 0, now, sizeof now);
        uint64_t first_pos;
        memcpy(&first_pos, now + 24, sizeof first_pos);
        assert_int_equal(first_pos, strtoull(e->d_name, NULL, 16));
        assert_true(seen == 0 || memcmp(before, now, sizeof now) != 0);
        memcpy(before, now, sizeof before);
        seen++;
    }
    closedir(d);
    assert_int_equal(seen, kept);
    assert_int_equal(files_remove_tree(linked), 0);
    fixture_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_log_cut_at_an_entrys_end_goes_on_there),
        cmocka_unit_test(entries_that_are_not_there),
        cmocka_unit_test(of_an_index_that_was_written_twice),
        cmocka_unit_test(a_trimmed_file_with_a_second_name_is_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
