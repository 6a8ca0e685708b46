/* The end of the log at start: unfinished writes are cut, damage is refused, and what was cut never comes back. */
#include "log_test.h"

static const char FIRST[] = "0000000000000000.seg";

enum { HEAD = 48 };

/* A crashed log of `count` entries of `len` bytes, one sync each. Places are left in pos[1..count]. */
static void crashed_log(struct fixture *f, uint64_t *pos, uint64_t count, size_t len)
{
    fixture_new(f, MIB);
    fixture_open(f);
    for (uint64_t i = 1; i <= count; i++) {
        pos[i] = put(f, i, 1, len);
        wait_synced(f);
    }
    fixture_crash(f);
}

/* The same directory again and again: saved aside, restored before each try. */
static void save(struct fixture *f, char *saved)
{
    snprintf(saved, 300, "%s.saved", f->dir);
    dir_copy(f->dir, saved);
}

static void restore(struct fixture *f, const char *saved)
{
    dir_remove(f->dir);
    dir_copy(saved, f->dir);
}

static void flip(struct fixture *f, const char *name, uint64_t offset)
{
    char c;
    file_bytes_get(f->dir, name, offset, &c, 1);
    c ^= 0x10;
    file_bytes_set(f->dir, name, offset, &c, 1);
}

static void a_file_cut_anywhere_in_its_last_records_is_cut_there(void **state)
{
    (void)state;
    struct fixture f;
    char saved[300];
    uint64_t pos[20];
    crashed_log(&f, pos, 10, 40);
    save(&f, saved);
    uint64_t begin = pos[8] - HEAD, end = pos[10] + 40;
    for (uint64_t cut = begin; cut <= end; cut++) {
        restore(&f, saved);
        file_cut(f.dir, FIRST, cut);
        uint64_t last = cut < pos[8] + 40 ? 7 : cut < pos[9] + 40 ? 8 : cut < end ? 9 : 10;
        fixture_open(&f);
        check_entries(&f, 1, last);
        if (cut % 8 == 0) {
            put_synced(&f, last + 1, 2, 30);
            fixture_close(&f);
            fixture_open(&f);
            check_entries(&f, 1, last + 1);
            assert_int_equal(f.seen.records[last].term, 2);
        }
        fixture_close(&f);
    }
    dir_remove(saved);
    fixture_free(&f);
}

/* The same with zeros instead of a shorter file: what an unfinished write leaves in a zeroed one. */
static void zeros_from_anywhere_in_the_last_records_are_cut_there(void **state)
{
    (void)state;
    struct fixture f;
    char saved[300];
    static const char zeros[8192];
    uint64_t pos[20];
    crashed_log(&f, pos, 10, 40);
    save(&f, saved);
    uint64_t begin = pos[8] - HEAD, end = pos[10] + 40;
    for (uint64_t from = begin; from <= end; from += 3) {
        restore(&f, saved);
        file_bytes_set(f.dir, FIRST, from, zeros, sizeof zeros);
        fixture_open(&f);
        assert_true(f.seen.last >= 7 && f.seen.last <= 10);
        if (from <= pos[9] - HEAD) assert_true(f.seen.last <= 8);
        check_readable(&f);
        fixture_close(&f);
    }
    dir_remove(saved);
    fixture_free(&f);
}

static void garbage_behind_the_end_is_ignored(void **state)
{
    (void)state;
    struct fixture f;
    uint64_t pos[20];
    static char garbage[300000];
    crashed_log(&f, pos, 10, 90);
    for (size_t i = 0; i < sizeof garbage; i++) garbage[i] = body_byte(77, i);
    file_bytes_set(f.dir, FIRST, pos[10] + 96, garbage, sizeof garbage);
    fixture_open(&f);
    check_entries(&f, 1, 10);
    put_synced(&f, 11, 1, 5000);
    fixture_crash(&f);
    fixture_open(&f);
    check_entries(&f, 1, 11);
    fixture_free(&f);
}

/* A copy of the log's own bytes, as a payload or by a broken disk, is not valid in another place. */
static void records_in_another_place_are_garbage(void **state)
{
    (void)state;
    struct fixture f;
    uint64_t pos[20];
    static char copy[8192];
    crashed_log(&f, pos, 10, 90);
    file_bytes_get(f.dir, FIRST, 4096, copy, pos[10] + 96 - 4096);
    file_bytes_set(f.dir, FIRST, pos[10] + 96, copy, pos[10] + 96 - 4096);
    fixture_open(&f);
    check_entries(&f, 1, 10);
    fixture_free(&f);
}

static void a_flipped_bit_in_the_middle_is_damage(void **state)
{
    (void)state;
    struct fixture f;
    char saved[300], offset[64];
    uint64_t pos[20];
    crashed_log(&f, pos, 10, 90);
    save(&f, saved);
    for (uint64_t at = pos[4] - HEAD; at < pos[4] + 90; at += 1) {
        restore(&f, saved);
        flip(&f, FIRST, at);
        assert_int_equal(fixture_try(&f), LOG_DAMAGED);
        snprintf(offset, sizeof offset, "offset %llu", (unsigned long long)(pos[4] - HEAD));
        assert_true(error_has(&f, FIRST));
        assert_true(error_has(&f, offset));
        /* and it stays refused: nothing was changed */
        assert_int_equal(fixture_try(&f), LOG_DAMAGED);
    }
    dir_remove(saved);
    fixture_free(&f);
}

static void a_flipped_bit_in_the_last_record_is_cut(void **state)
{
    (void)state;
    struct fixture f;
    char saved[300];
    uint64_t pos[20];
    crashed_log(&f, pos, 10, 90);
    save(&f, saved);
    for (uint64_t at = pos[10] - HEAD; at < pos[10] + 90; at += 5) {
        restore(&f, saved);
        flip(&f, FIRST, at);
        fixture_open(&f);
        check_entries(&f, 1, 9);
        fixture_close(&f);
    }
    dir_remove(saved);
    fixture_free(&f);
}

/* After an orderly close nothing may be missing: the closing record proves it. */
static void after_a_close_the_last_record_is_proven(void **state)
{
    (void)state;
    struct fixture f;
    uint64_t pos[20];
    fixture_new(&f, MIB);
    fixture_open(&f);
    for (uint64_t i = 1; i <= 10; i++) pos[i] = put(&f, i, 1, 90);
    fixture_close(&f);
    flip(&f, FIRST, pos[10] + 5);
    assert_int_equal(fixture_try(&f), LOG_DAMAGED);
    fixture_free(&f);
}

static void unsynced_records_behind_a_torn_one_are_cut(void **state)
{
    (void)state;
    struct fixture f;
    uint64_t pos[20];
    fixture_new(&f, MIB);
    fixture_open(&f);
    put_synced(&f, 1, 1, 90);
    for (uint64_t i = 2; i <= 10; i++) pos[i] = put(&f, i, 1, 90); /* one write, one sync */
    wait_synced(&f);
    fixture_crash(&f);
    flip(&f, FIRST, pos[5]);
    fixture_open(&f);
    check_entries(&f, 1, 4);
    /* New entries up to exactly where an old one begins: it must not be taken for their successor. */
    for (uint64_t i = 5; i <= 6; i++) put_synced(&f, i, 2, 90);
    fixture_crash(&f);
    fixture_open(&f);
    check_entries(&f, 1, 6);
    fixture_free(&f);
}

/* Old records survive behind a cut where a new write ends exactly on a page's border: here one record a page, so that the new ones end
 * where an old one with the very index that would follow begins. */
static void old_generations_never_come_back(void **state)
{
    (void)state;
    struct fixture f;
    char saved[300];
    uint64_t pos[40];
    fixture_new(&f, MIB);
    fixture_open(&f);
    put_synced(&f, 1, 1, 4096 - 2 * HEAD); /* with the opening record: the first page */
    for (uint64_t i = 2; i <= 30; i++) pos[i] = put(&f, i, 1, 4096 - HEAD);
    wait_synced(&f);
    assert_int_equal((pos[2] - HEAD) % 4096, 0);
    fixture_crash(&f);
    flip(&f, FIRST, pos[2]);
    save(&f, saved);
    for (uint64_t count = 1; count < 8; count++) {
        restore(&f, saved);
        uint64_t last = 1;
        for (int generation = 0; generation < 3; generation++) {
            fixture_open(&f);
            check_entries(&f, 1, last);
            put_synced(&f, ++last, 2, 4096 - 2 * HEAD);
            for (uint64_t i = 1; i < count; i++) put_synced(&f, ++last, 2, 4096 - HEAD);
            fixture_crash(&f);
        }
        fixture_open(&f);
        check_entries(&f, 1, last);
        fixture_close(&f);
    }
    dir_remove(saved);
    fixture_free(&f);
}

/* Ten segments of two entries each. */
static void long_log(struct fixture *f, uint64_t *pos)
{
    crashed_log(f, pos, 20, 400 << 10);
}

static const char FIFTH[] = "0000000000400000.seg";

static void a_missing_middle_file_is_damage(void **state)
{
    (void)state;
    struct fixture f;
    uint64_t pos[32];
    char path[600];
    long_log(&f, pos);
    snprintf(path, sizeof path, "%s/%s", f.dir, FIFTH);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(fixture_try(&f), LOG_DAMAGED);
    assert_true(error_has(&f, FIFTH) && error_has(&f, "missing"));
    /* also when it holds the place where the scan should begin */
    f.o.first_pos = pos[9];
    assert_int_equal(fixture_try(&f), LOG_DAMAGED);
    assert_true(error_has(&f, FIFTH) && error_has(&f, "missing"));
    /* but not when everything wanted is behind it */
    f.o.first_pos = pos[12];
    f.o.first_index = 12;
    fixture_open(&f);
    check_entries(&f, 12, 20);
    fixture_free(&f);
}

static void a_short_middle_file_is_damage(void **state)
{
    (void)state;
    struct fixture f;
    char saved[300];
    uint64_t pos[32];
    long_log(&f, pos);
    save(&f, saved);
    static const uint64_t sizes[] = {0, 1, 4095, 4096, 5000, 300000, 600000, 1000000};
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        restore(&f, saved);
        file_cut(f.dir, FIFTH, sizes[n]);
        enum log_status status = fixture_try(&f);
        if (status == LOG_OK) { /* only padding was lost */
            assert_true(sizes[n] >= 1000000);
            check_entries(&f, 1, 20);
            fixture_close(&f);
            continue;
        }
        assert_int_equal(status, LOG_DAMAGED);
        assert_true(error_has(&f, FIFTH));
    }
    dir_remove(saved);
    fixture_free(&f);
}

static void a_damaged_middle_file_is_damage(void **state)
{
    (void)state;
    struct fixture f;
    char saved[300];
    uint64_t pos[32];
    long_log(&f, pos);
    save(&f, saved);
    static const uint64_t places[] = {0, 20, 63, 4096, 4100, 100000, 524288 + 60};
    for (size_t n = 0; n < sizeof places / sizeof *places; n++) {
        restore(&f, saved);
        flip(&f, FIFTH, places[n]);
        assert_int_equal(fixture_try(&f), LOG_DAMAGED);
        assert_true(error_has(&f, FIFTH));
    }
    dir_remove(saved);
    fixture_free(&f);
}

static void files_of_another_log_are_refused(void **state)
{
    (void)state;
    struct fixture f, other;
    uint64_t pos[32];
    char from[600], to[600];
    long_log(&f, pos);
    long_log(&other, pos);
    snprintf(from, sizeof from, "%s/%s", other.dir, FIFTH);
    snprintf(to, sizeof to, "%s/%s", f.dir, FIFTH);
    file_copy(from, to);
    assert_int_equal(fixture_try(&f), LOG_DAMAGED);
    assert_true(error_has(&f, FIFTH) && error_has(&f, "another log"));
    fixture_free(&other);
    fixture_free(&f);
}

static void a_log_without_any_good_head_is_refused(void **state)
{
    (void)state;
    struct fixture f;
    char saved[300];
    uint64_t pos[20];
    crashed_log(&f, pos, 10, 90);
    save(&f, saved);
    char path[600];
    snprintf(path, sizeof path, "%s/%s", f.dir, "0000000000100000.seg");
    unlink(path); /* the prepared one */
    flip(&f, FIRST, 8);
    assert_int_equal(fixture_try(&f), LOG_DAMAGED);
    assert_true(error_has(&f, FIRST));
    file_cut(f.dir, FIRST, 0);
    assert_int_equal(fixture_try(&f), LOG_DAMAGED);
    /* with the head of the prepared file the log is known again; its entries are gone: damage too */
    restore(&f, saved);
    flip(&f, FIRST, 8);
    assert_int_equal(fixture_try(&f), LOG_DAMAGED);
    dir_remove(saved);
    fixture_free(&f);
}

static void a_newer_format_is_refused(void **state)
{
    (void)state;
    struct fixture f;
    uint64_t pos[20];
    crashed_log(&f, pos, 3, 90);
    char head[64];
    file_bytes_get(f.dir, FIRST, 0, head, sizeof head);
    uint32_t version = 2;
    memcpy(head + 8, &version, sizeof version);
    uint32_t crc = crc32c(0, head, 60);
    memcpy(head + 60, &crc, sizeof crc);
    file_bytes_set(f.dir, FIRST, 0, head, sizeof head);
    char path[600];
    snprintf(path, sizeof path, "%s/%s", f.dir, "0000000000100000.seg");
    unlink(path);
    assert_int_equal(fixture_try(&f), LOG_DAMAGED);
    assert_true(error_has(&f, "version 2"));
    fixture_free(&f);
}

static void the_state_may_not_be_ahead_of_the_log(void **state)
{
    (void)state;
    struct fixture f;
    uint64_t pos[20];
    crashed_log(&f, pos, 10, 90);
    f.o.first_pos = pos[10] + 4096;
    assert_int_equal(fixture_try(&f), LOG_DAMAGED);
    f.o.first_pos = 500 * (uint64_t)MIB;
    assert_int_equal(fixture_try(&f), LOG_DAMAGED);
    char path[600];
    f.o.first_pos = pos[10];
    snprintf(path, sizeof path, "%s/%s", f.dir, FIRST);
    unlink(path);
    assert_int_equal(fixture_try(&f), LOG_DAMAGED);
    snprintf(path, sizeof path, "%s/%s", f.dir, "0000000000100000.seg");
    unlink(path);
    assert_int_equal(fixture_try(&f), LOG_DAMAGED); /* not a new log */
    fixture_free(&f);
}

static void the_end_position_is_a_good_place_to_begin(void **state)
{
    (void)state;
    struct fixture f;
    fixture_new(&f, MIB);
    fixture_open(&f);
    uint64_t index = 0;
    for (int round = 0; round < 120; round++) {
        uint64_t from = log_end_pos(f.log), before = index;
        put(&f, ++index, 1, (size_t)(round * 7919 % 90000));
        put(&f, ++index, 1, 24);
        wait_synced(&f);
        f.o.first_pos = from;
        f.o.first_index = before + 1;
        fixture_crash(&f);
        fixture_open(&f);
        check_entries(&f, before + 1, index);
        /* nothing is wanted from the end on */
        f.o.first_pos = log_end_pos(f.log);
        f.o.first_index = index + 1;
        fixture_crash(&f);
        fixture_open(&f);
        assert_int_equal(f.seen.last, 0);
        assert_int_equal(log_synced_index(f.log), index);
    }
    fixture_free(&f);
}

/* A large record that was not finished: its segment goes back to the usual length. */
static void a_torn_large_record_is_cut(void **state)
{
    (void)state;
    struct fixture f;
    char saved[300];
    fixture_new(&f, MIB);
    fixture_open(&f);
    put_synced(&f, 1, 1, 1000);
    uint64_t pos = put(&f, 2, 1, 5 * MIB);
    put(&f, 3, 1, 100);
    wait_synced(&f);
    fixture_crash(&f);
    save(&f, saved);
    assert_int_equal(pos, MIB + 4096 + HEAD);
    static const uint64_t sizes[] = {4096, 4100, 100000, MIB, MIB + 5, 3 * MIB, 5 * MIB};
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        restore(&f, saved);
        file_cut(f.dir, "0000000000100000.seg", sizes[n]);
        fixture_open(&f);
        check_entries(&f, 1, 1);
        put(&f, 2, 2, 3 * MIB);
        put(&f, 3, 2, 10);
        wait_synced(&f);
        fixture_crash(&f);
        fixture_open(&f);
        check_entries(&f, 1, 3);
        fixture_close(&f);
    }
    dir_remove(saved);
    fixture_free(&f);
}

/* Random sectors of the last write are missing, as after a power loss: whatever was synced before is there. */
static void any_sectors_of_the_last_write_may_be_missing(void **state)
{
    (void)state;
    struct fixture f;
    char saved[300];
    static const char zeros[512];
    uint64_t seed = 88172645463325252u;
    fixture_new(&f, MIB);
    fixture_open(&f);
    for (uint64_t i = 1; i <= 30; i++) put_synced(&f, i, 1, 700);
    uint64_t safe = log_end_pos(f.log);
    for (uint64_t i = 31; i <= 90; i++) put(&f, i, 1, 700);
    wait_synced(&f);
    uint64_t end = log_end_pos(f.log);
    fixture_crash(&f);
    save(&f, saved);
    for (int round = 0; round < 60; round++) {
        restore(&f, saved);
        for (uint64_t at = (safe + 511) / 512 * 512; at < end; at += 512) {
            seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
            if (seed % 5 == 0) file_bytes_set(f.dir, FIRST, at, zeros, sizeof zeros);
        }
        fixture_open(&f);
        assert_true(f.seen.last >= 30 && f.seen.last <= 90);
        check_readable(&f);
        uint64_t last = f.seen.last;
        for (uint64_t i = last + 1; i <= last + 20; i++) put_synced(&f, i, 2, 700);
        fixture_crash(&f);
        fixture_open(&f);
        check_entries(&f, 1, last + 20);
        fixture_close(&f);
    }
    dir_remove(saved);
    fixture_free(&f);
}

static void leftovers_in_the_directory_do_not_matter(void **state)
{
    (void)state;
    struct fixture f;
    uint64_t pos[20];
    crashed_log(&f, pos, 10, 90);
    static const char *const names[] = {"next.tmp", "spare-0.tmp", "probe.tmp", "readme.txt", "zz.seg", "00000000000g0000.seg"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", f.dir, names[n]);
        int fd = open(path, O_WRONLY | O_CREAT, 0640);
        assert_true(fd >= 0 && write(fd, "x", 1) == 1);
        close(fd);
    }
    fixture_open(&f);
    check_entries(&f, 1, 10);
    fixture_free(&f);
}

int main(void)
{
    /* A thousand starts: what they read matters here, not the disk. */
    if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_cut_anywhere_in_its_last_records_is_cut_there),
        cmocka_unit_test(zeros_from_anywhere_in_the_last_records_are_cut_there),
        cmocka_unit_test(garbage_behind_the_end_is_ignored),
        cmocka_unit_test(records_in_another_place_are_garbage),
        cmocka_unit_test(a_flipped_bit_in_the_middle_is_damage),
        cmocka_unit_test(a_flipped_bit_in_the_last_record_is_cut),
        cmocka_unit_test(after_a_close_the_last_record_is_proven),
        cmocka_unit_test(unsynced_records_behind_a_torn_one_are_cut),
        cmocka_unit_test(old_generations_never_come_back),
        cmocka_unit_test(a_missing_middle_file_is_damage),
        cmocka_unit_test(a_short_middle_file_is_damage),
        cmocka_unit_test(a_damaged_middle_file_is_damage),
        cmocka_unit_test(files_of_another_log_are_refused),
        cmocka_unit_test(a_log_without_any_good_head_is_refused),
        cmocka_unit_test(a_newer_format_is_refused),
        cmocka_unit_test(the_state_may_not_be_ahead_of_the_log),
        cmocka_unit_test(the_end_position_is_a_good_place_to_begin),
        cmocka_unit_test(a_torn_large_record_is_cut),
        cmocka_unit_test(any_sectors_of_the_last_write_may_be_missing),
        cmocka_unit_test(leftovers_in_the_directory_do_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
