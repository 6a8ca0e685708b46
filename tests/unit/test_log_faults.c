/* Failing system calls. This program defines the calls itself (its symbols win over libc's), passes them on, and makes the chosen one
 * fail: the next `after`-th call of a kind, on this thread or another. */
#include <stdarg.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "log_test.h"

enum call {
    CALL_PWRITEV,
    CALL_PWRITE,
    CALL_FDATASYNC,
    CALL_FSYNC,
    CALL_OPENAT,
    CALL_RENAMEAT,
    CALL_FALLOCATE,
    CALL_PREAD,
    CALL_COUNT
};

static struct {
    atomic_int after; /* calls until the one that fails; 0: off */
    atomic_int error;
    atomic_int short_bytes; /* instead of failing, do only so many bytes */
    atomic_int passed;
} faults[CALL_COUNT];

static atomic_bool direct_refused; /* as by a file system without O_DIRECT */

static void fault_set(enum call c, int after, int error)
{
    atomic_store(&faults[c].error, error);
    atomic_store(&faults[c].short_bytes, 0);
    atomic_store(&faults[c].after, after);
}

static void faults_clear(void)
{
    for (int c = 0; c < CALL_COUNT; c++) {
        atomic_store(&faults[c].after, 0);
        atomic_store(&faults[c].passed, 0);
    }
}

/* True when this call is the one. */
static bool fault_now(enum call c)
{
    atomic_fetch_add(&faults[c].passed, 1);
    int after = atomic_load(&faults[c].after);
    while (after > 0)
        if (atomic_compare_exchange_weak(&faults[c].after, &after, after - 1)) {
            if (after != 1) return false;
            errno = atomic_load(&faults[c].error);
            return true;
        }
    return false;
}

static size_t cut_len(enum call c, size_t len)
{
    size_t part = (size_t)atomic_load(&faults[c].short_bytes);
    return part != 0 && part < len ? part : len;
}

ssize_t pwritev(int fd, const struct iovec *iov, int count, off_t offset)
{
    if (fault_now(CALL_PWRITEV)) {
        if (atomic_load(&faults[CALL_PWRITEV].short_bytes) == 0) return -1;
        return syscall(SYS_pwrite64, fd, iov[0].iov_base, cut_len(CALL_PWRITEV, iov[0].iov_len), offset);
    }
    return syscall(SYS_pwritev, fd, iov, count, offset, 0);
}

ssize_t pwrite(int fd, const void *at, size_t len, off_t offset)
{
    if (fault_now(CALL_PWRITE)) {
        if (atomic_load(&faults[CALL_PWRITE].short_bytes) == 0) return -1;
        len = cut_len(CALL_PWRITE, len);
    }
    return syscall(SYS_pwrite64, fd, at, len, offset);
}

ssize_t pread(int fd, void *at, size_t len, off_t offset)
{
    if (fault_now(CALL_PREAD)) {
        if (atomic_load(&faults[CALL_PREAD].short_bytes) == 0) return -1;
        len = cut_len(CALL_PREAD, len);
    }
    return syscall(SYS_pread64, fd, at, len, offset);
}

int fdatasync(int fd)
{
    return fault_now(CALL_FDATASYNC) ? -1 : (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd)
{
    return fault_now(CALL_FSYNC) ? -1 : (int)syscall(SYS_fsync, fd);
}

int openat(int dir_fd, const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(args, mode_t) : 0;
    va_end(args);
    if ((flags & O_DIRECT) != 0 && atomic_load(&direct_refused)) {
        errno = EINVAL;
        return -1;
    }
    return fault_now(CALL_OPENAT) ? -1 : (int)syscall(SYS_openat, dir_fd, path, flags, mode);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return fault_now(CALL_RENAMEAT) ? -1 : (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, 0);
}

int fallocate(int fd, int mode, off_t offset, off_t len)
{
    return fault_now(CALL_FALLOCATE) ? -1 : (int)syscall(SYS_fallocate, fd, mode, offset, len);
}

/* ---- helpers */

/* Waits until the keeper has nothing to do, so that the next calls are the disk thread's. */
static void wait_quiet(struct fixture *f)
{
    int64_t until = clock_mono_us() + DEADLINE_US;
    while (files_named(f->dir, ".seg") < 2 || file_size_of(f->dir, "0000000000000000.seg") != f->o.segment_bytes ||
           file_size_of(f->dir, "0000000000100000.seg") != f->o.segment_bytes) {
        assert_true(clock_mono_us() < until);
        usleep(1000);
    }
    int before;
    do {
        before = atomic_load(&faults[CALL_FDATASYNC].passed);
        usleep(30000);
    } while (before != atomic_load(&faults[CALL_FDATASYNC].passed));
}

static void wait_failed(struct fixture *f)
{
    int64_t until = clock_mono_us() + DEADLINE_US;
    while (atomic_load(&f->seen.failures) == 0) {
        assert_true(clock_mono_us() < until);
        usleep(1000);
    }
}

static void check_failed(struct fixture *f, uint64_t synced, const char *file, const char *reason)
{
    wait_failed(f);
    assert_int_equal(atomic_load(&f->seen.failures), 1);
    if (strstr(f->seen.failure, file) == NULL || strstr(f->seen.failure, reason) == NULL)
        fail_msg("failure names not %s, %s: %s", file, reason, f->seen.failure);
    assert_int_equal(log_synced_index(f->log), synced);
}

static void begin(struct fixture *f)
{
    faults_clear();
    fixture_new(f, MIB);
    fixture_open(f);
    for (uint64_t i = 1; i <= 5; i++) put_synced(f, i, 1, 1000);
    wait_quiet(f);
}

/* After a failure more is appended and flushed, even though the device works again: none of it may count. */
static void check_stays_failed(struct fixture *f, uint64_t synced)
{
    uint64_t syncs = atomic_load(&f->seen.syncs);
    for (uint64_t i = 7; i <= 12; i++) {
        put(f, i, 1, 200000);
        log_flush(f->log);
    }
    usleep(20000);
    assert_int_equal(log_synced_index(f->log), synced);
    assert_int_equal(atomic_load(&f->seen.syncs), syncs);
    assert_int_equal(atomic_load(&f->seen.failures), 1);
    faults_clear();
    fixture_close(f);
    fixture_open(f);
    assert_true(f->seen.last >= synced && f->seen.last <= 12);
    check_readable(f);
    put_synced(f, f->seen.last + 1, 2, 10);
    fixture_free(f);
}

static void a_failed_write_is_final(void **state)
{
    (void)state;
    static const struct {
        int error;
        const char *text;
    } cases[] = {{EIO, "Input/output error"}, {ENOSPC, "No space left"}, {EROFS, "Read-only"}, {EDQUOT, "quota"}};
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        struct fixture f;
        begin(&f);
        fault_set(CALL_PWRITEV, 1, cases[n].error);
        put(&f, 6, 1, 1000);
        log_flush(f.log);
        check_failed(&f, 5, "0000000000000000.seg", cases[n].text);
        check_stays_failed(&f, 5);
    }
}

static void a_failed_sync_is_final(void **state)
{
    (void)state;
    static const int errors[] = {EIO, ENOSPC, EINTR};
    for (size_t n = 0; n < sizeof errors / sizeof *errors; n++) {
        struct fixture f;
        begin(&f);
        fault_set(CALL_FDATASYNC, 1, errors[n]);
        put(&f, 6, 1, 1000);
        log_flush(f.log);
        check_failed(&f, 5, "0000000000000000.seg", "cannot sync");
        check_stays_failed(&f, 5);
    }
}

static void an_interrupted_write_goes_on(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    fault_set(CALL_PWRITEV, 1, EINTR);
    put_synced(&f, 6, 1, 1000);
    assert_int_equal(log_synced_index(f.log), 6);
    fixture_free(&f);
}

static void a_short_write_goes_on(void **state)
{
    (void)state;
    static const int parts[] = {1, 512, 4095, 4096, 5000, 8192, 40960};
    for (size_t n = 0; n < sizeof parts / sizeof *parts; n++) {
        struct fixture f;
        begin(&f);
        struct log_stats stats;
        log_stats(f.log, &stats);
        if (stats.direct && parts[n] % 512 != 0) { /* such a request is refused by the kernel: a real short write is aligned */
            fixture_free(&f);
            continue;
        }
        fault_set(CALL_PWRITEV, 1, 0);
        atomic_store(&faults[CALL_PWRITEV].short_bytes, parts[n]);
        put(&f, 6, 1, 50000);
        put_synced(&f, 7, 1, 100);
        assert_int_equal(log_synced_index(f.log), 7);
        assert_int_equal(atomic_load(&f.seen.failures), 0);
        faults_clear();
        fixture_crash(&f);
        fixture_open(&f);
        check_entries(&f, 1, 7);
        fixture_free(&f);
    }
}

/* The rest of a short write fails. */
static void a_write_that_fails_in_the_middle_is_final(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    fault_set(CALL_PWRITEV, 1, 0);
    atomic_store(&faults[CALL_PWRITEV].short_bytes, 8192);
    fault_set(CALL_PWRITE, 1, ENOSPC);
    put(&f, 6, 1, 50000);
    log_flush(f.log);
    check_failed(&f, 5, "0000000000000000.seg", "No space left");
    check_stays_failed(&f, 5);
}

/* The next segment cannot be made ahead of time: nothing is lost yet. When it is needed and still cannot, that is final. */
static void next_segment_fails(enum call c, int error, int times)
{
    struct fixture f;
    begin(&f);
    put_synced(&f, 6, 1, 400 << 10);
    put_synced(&f, 7, 1, 400 << 10);
    /* entering the second segment orders the third */
    fault_set(c, 1, error);
    uint64_t index = 7;
    put_synced(&f, ++index, 1, 400 << 10);
    int64_t until = clock_mono_us() + DEADLINE_US;
    while (atomic_load(&faults[c].after) != 0) {
        assert_true(clock_mono_us() < until);
        usleep(1000);
    }
    usleep(5000);
    assert_int_equal(atomic_load(&f.seen.failures), 0);
    assert_int_equal(log_synced_index(f.log), index);
    if (times > 1) fault_set(c, 1, error);
    while (index < 12 && atomic_load(&f.seen.failures) == 0) put_synced(&f, ++index, 1, 400 << 10);
    if (times == 1) {
        assert_int_equal(atomic_load(&f.seen.failures), 0);
        assert_int_equal(log_synced_index(f.log), 12);
    } else {
        wait_failed(&f);
        assert_true(strstr(f.seen.failure, f.dir) != NULL);
        assert_true(log_synced_index(f.log) < index);
    }
    uint64_t synced = log_synced_index(f.log);
    faults_clear();
    fixture_close(&f);
    fixture_open(&f);
    assert_true(f.seen.last >= synced);
    check_readable(&f);
    fixture_free(&f);
}

static void a_next_segment_is_tried_again_when_needed(void **state)
{
    (void)state;
    next_segment_fails(CALL_OPENAT, EMFILE, 1); /* the reserve helps */
    next_segment_fails(CALL_OPENAT, EACCES, 1);
    next_segment_fails(CALL_FALLOCATE, ENOSPC, 1);
    next_segment_fails(CALL_RENAMEAT, EIO, 1);
}

static void without_a_next_segment_the_log_fails(void **state)
{
    (void)state;
    next_segment_fails(CALL_OPENAT, EACCES, 2);
    next_segment_fails(CALL_FALLOCATE, ENOSPC, 2);
    next_segment_fails(CALL_RENAMEAT, EIO, 2);
}

static void a_failed_directory_sync_is_final(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    fault_set(CALL_FSYNC, 1, EIO);
    for (uint64_t i = 6; i <= 9; i++) {
        put(&f, i, 1, 400 << 10);
        log_flush(f.log);
    }
    wait_failed(&f);
    assert_true(strstr(f.seen.failure, "directory") != NULL);
    uint64_t synced = log_synced_index(f.log);
    usleep(20000);
    assert_int_equal(log_synced_index(f.log), synced);
    faults_clear();
    fixture_close(&f);
    fixture_open(&f);
    assert_true(f.seen.last >= synced);
    check_readable(&f);
    fixture_free(&f);
}

/* Each system call of an open fails once: LOG_IO with a reason, and the next open finds everything. */
static void a_failing_open_reports_and_leaves_the_log_alone(void **state)
{
    (void)state;
    struct fixture f;
    faults_clear();
    fixture_new(&f, MIB);
    fixture_open(&f);
    for (uint64_t i = 1; i <= 20; i++) put_synced(&f, i, 1, 100000);
    fixture_crash(&f);
    uint32_t failed = 0;
    static const enum call calls[] = {CALL_PREAD, CALL_OPENAT, CALL_FDATASYNC, CALL_FSYNC, CALL_PWRITEV};
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++) {
        for (int nth = 1; nth < 12; nth++) {
            fault_set(calls[c], nth, EIO);
            enum log_status status = fixture_try(&f);
            faults_clear();
            if (status == LOG_OK) { /* it hit the keeper, the probe for direct writes, or nothing */
                assert_int_equal(f.seen.last, 20);
                check_readable(&f);
                fixture_close(&f);
                continue;
            }
            assert_int_equal(status, LOG_IO);
            assert_true(error_has(&f, f.dir) && error_has(&f, "Input/output error"));
            failed++;
        }
    }
    assert_true(failed >= 10);
    fixture_open(&f);
    check_entries(&f, 1, 20);
    fixture_free(&f);
}

static void a_read_error_is_no_end_and_no_damage(void **state)
{
    (void)state;
    struct fixture f;
    static char room[MIB];
    faults_clear();
    fixture_new(&f, MIB);
    f.o.cache_bytes_max = 0;
    fixture_open(&f);
    uint64_t pos[20];
    for (uint64_t i = 1; i <= 10; i++) {
        pos[i] = put(&f, i, 1, 400 << 10);
        wait_synced(&f);
    }
    log_idle(f.log);
    fault_set(CALL_PREAD, 1, EIO);
    assert_int_equal(log_read(f.log, pos[1], 400 << 10, room), LOG_IO);
    assert_int_equal(log_read(f.log, pos[1], 400 << 10, room), LOG_OK);
    assert_true(body_right(room, 400 << 10, 1, 1));
    /* short reads are continued */
    for (int part = 1; part < 6000; part += 977) {
        fault_set(CALL_PREAD, 1, 0);
        atomic_store(&faults[CALL_PREAD].short_bytes, part);
        assert_int_equal(log_read(f.log, pos[2], 400 << 10, room), LOG_OK);
        assert_true(body_right(room, 400 << 10, 2, 1));
    }
    /* no descriptor to be had: the reserve is used, more than once */
    for (int i = 0; i < 10; i++) {
        fault_set(CALL_OPENAT, 1, EMFILE);
        assert_int_equal(log_read(f.log, pos[i % 5 + 3], 1000, room), LOG_OK);
    }
    faults_clear();
    fixture_free(&f);
}

static void short_reads_at_start_are_no_end(void **state)
{
    (void)state;
    struct fixture f;
    faults_clear();
    fixture_new(&f, MIB);
    fixture_open(&f);
    for (uint64_t i = 1; i <= 20; i++) put_synced(&f, i, 1, 100000);
    fixture_crash(&f);
    for (int nth = 2; nth < 10; nth++) {
        fault_set(CALL_PREAD, nth, 0);
        atomic_store(&faults[CALL_PREAD].short_bytes, 4096 * (nth % 3 + 1));
        fixture_open(&f);
        check_entries(&f, 1, 20);
        faults_clear();
        fixture_close(&f);
    }
    fixture_free(&f);
}

/* The same life on a file system that has no direct writes. */
static void without_direct_writes_it_works_as_well(void **state)
{
    (void)state;
    struct fixture f;
    faults_clear();
    atomic_store(&direct_refused, true);
    fixture_new(&f, MIB);
    f.o.cache_bytes_max = 0;
    fixture_open(&f);
    struct log_stats stats;
    log_stats(f.log, &stats);
    assert_false(stats.direct);
    static char room[MIB];
    uint64_t pos[40];
    for (uint64_t i = 1; i <= 30; i++) {
        pos[i] = put(&f, i, 1, i % 5 == 0 ? 300 << 10 : 777);
        wait_synced(&f);
        assert_int_equal(log_read(f.log, pos[i / 2 + 1], 700, room), LOG_OK);
        assert_true(body_right(room, 700, i / 2 + 1, 1));
    }
    fixture_crash(&f);
    fixture_open(&f);
    check_entries(&f, 1, 30);
    fixture_close(&f);
    atomic_store(&direct_refused, false); /* and either way reads what the other wrote */
    fixture_open(&f);
    log_stats(f.log, &stats);
    check_entries(&f, 1, 30);
    put_synced(&f, 31, 1, 5000);
    fixture_crash(&f);
    atomic_store(&direct_refused, true);
    fixture_open(&f);
    check_entries(&f, 1, 31);
    put(&f, 32, 1, 5000);
    fault_set(CALL_FDATASYNC, 1, EIO);
    log_flush(f.log);
    wait_failed(&f);
    assert_int_equal(log_synced_index(f.log), 31);
    faults_clear();
    atomic_store(&direct_refused, false);
    fixture_free(&f);
}

/* The writer is stopped by a slow disk at the stated bound, and goes on when the log has failed. */
static void a_blocked_writer_is_let_go_by_a_failure(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    fault_set(CALL_FDATASYNC, 1, EIO);
    for (uint64_t i = 6; i <= 100; i++) put(&f, i, 1, MIB); /* more than may be unsynced */
    wait_failed(&f);
    assert_int_equal(log_synced_index(f.log), 5);
    faults_clear();
    fixture_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_write_is_final),
        cmocka_unit_test(a_failed_sync_is_final),
        cmocka_unit_test(an_interrupted_write_goes_on),
        cmocka_unit_test(a_short_write_goes_on),
        cmocka_unit_test(a_write_that_fails_in_the_middle_is_final),
        cmocka_unit_test(a_next_segment_is_tried_again_when_needed),
        cmocka_unit_test(without_a_next_segment_the_log_fails),
        cmocka_unit_test(a_failed_directory_sync_is_final),
        cmocka_unit_test(a_failing_open_reports_and_leaves_the_log_alone),
        cmocka_unit_test(a_read_error_is_no_end_and_no_damage),
        cmocka_unit_test(short_reads_at_start_are_no_end),
        cmocka_unit_test(without_direct_writes_it_works_as_well),
        cmocka_unit_test(a_blocked_writer_is_let_go_by_a_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
