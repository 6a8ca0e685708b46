/* Helpers of the log's tests: a directory of its own, records with bodies that can be checked, a listener, a crash. */
#ifndef QUEEN_TESTS_LOG_TEST_H
#define QUEEN_TESTS_LOG_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "log/log.h"

enum { MIB = 1 << 20, RECORDS_MAX = 400000, DEADLINE_US = 30 * 1000000 };

/* What log_open reported: the entries by index, after repeats. */
struct seen {
    struct log_record *records; /* [index - first] */
    uint64_t first, last;       /* 0: nothing */
    _Atomic uint64_t syncs;
    atomic_int failures;
    char failure[600];
};

struct fixture {
    char dir[256];
    struct log_options o;
    struct seen seen;
    struct buf error;
    struct log *log;
};

static inline void seen_record(void *ctx, const struct log_record *r)
{
    struct seen *s = ctx;
    if (s->first == 0) {
        s->first = r->index;
        s->records = malloc(RECORDS_MAX * sizeof *s->records);
        assert_non_null(s->records);
    }
    assert_true(r->index >= s->first && r->index - s->first < RECORDS_MAX);
    assert_true(s->last == 0 || r->index <= s->last + 1);
    s->records[r->index - s->first] = *r;
    s->last = r->index;
}

static inline void seen_synced(void *ctx)
{
    atomic_fetch_add(&((struct seen *)ctx)->syncs, 1);
}

static inline void seen_failed(void *ctx, const char *what)
{
    struct seen *s = ctx;
    snprintf(s->failure, sizeof s->failure, "%s", what);
    atomic_fetch_add(&s->failures, 1);
}

static inline void dir_remove(const char *dir)
{
    DIR *d = opendir(dir);
    if (d == NULL) return;
    struct dirent *e;
    char path[600];
    while ((e = readdir(d)) != NULL) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        unlink(path);
    }
    closedir(d);
    rmdir(dir);
}

static inline void fixture_reset(struct fixture *f)
{
    free(f->seen.records);
    f->seen = (struct seen){.first = 0};
    buf_clear(&f->error);
}

static inline void fixture_new(struct fixture *f, uint64_t segment_bytes)
{
    *f = (struct fixture){.log = NULL};
    const char *base = getenv("TMPDIR");
    snprintf(f->dir, sizeof f->dir, "%.200s/queen-log-XXXXXX", base == NULL ? "/tmp" : base);
    assert_non_null(mkdtemp(f->dir));
    f->o = (struct log_options){.dir = f->dir,
                                .segment_bytes = segment_bytes,
                                .cache_bytes_max = 8 * MIB,
                                .cache_age_us = 1000000,
                                .first_index = 1,
                                .ctx = &f->seen,
                                .record = seen_record,
                                .synced = seen_synced,
                                .failed = seen_failed};
}

static inline enum log_status fixture_try(struct fixture *f)
{
    fixture_reset(f);
    f->log = NULL;
    return log_open(&f->log, &f->o, &f->error);
}

static inline void fixture_open(struct fixture *f)
{
    enum log_status status = fixture_try(f);
    if (status != LOG_OK) fail_msg("log_open: %.*s", (int)f->error.len, f->error.at);
}

static inline void fixture_close(struct fixture *f)
{
    log_close(f->log);
    f->log = NULL;
}

static inline void fixture_free(struct fixture *f)
{
    if (f->log != NULL) fixture_close(f);
    fixture_reset(f);
    buf_free(&f->error);
    dir_remove(f->dir);
}

static inline bool error_has(struct fixture *f, const char *text)
{
    return f->error.len != 0 && memmem(f->error.at, f->error.len, text, strlen(text)) != NULL;
}

/* ---- bodies: a function of index, term and place */

static inline char body_byte(uint64_t seed, size_t i)
{
    uint64_t x = (seed + i / 8) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    return (char)(x >> (i % 8 * 8));
}

static inline uint64_t body_seed(uint64_t index, uint64_t term)
{
    return index * 1000003 + term * 7919;
}

static inline void body_fill(char *at, size_t len, uint64_t index, uint64_t term)
{
    for (size_t i = 0; i < len; i++) at[i] = body_byte(body_seed(index, term), i);
}

static inline bool body_right(const char *at, size_t len, uint64_t index, uint64_t term)
{
    for (size_t i = 0; i < len; i++)
        if (at[i] != body_byte(body_seed(index, term), i)) return false;
    return true;
}

static inline uint64_t put(struct fixture *f, uint64_t index, uint64_t term, size_t len)
{
    char *at = log_reserve(f->log, len);
    body_fill(at, len, index, term);
    return log_append(f->log, index, term, 1, len);
}

static inline void wait_synced(struct fixture *f)
{
    log_flush(f->log);
    int64_t until = clock_mono_us() + DEADLINE_US;
    while (log_unsynced_bytes(f->log) != 0 && atomic_load(&f->seen.failures) == 0) {
        assert_true(clock_mono_us() < until);
        usleep(100);
    }
}

static inline void put_synced(struct fixture *f, uint64_t index, uint64_t term, size_t len)
{
    put(f, index, term, len);
    wait_synced(f);
}

/* Every reported record can be read back with the right bytes. */
static inline void check_readable(struct fixture *f)
{
    if (f->seen.last == 0) return;
    for (uint64_t index = f->seen.first; index <= f->seen.last; index++) {
        const struct log_record *r = &f->seen.records[index - f->seen.first];
        assert_true(r->index == index && r->len <= 64 * MIB);
        char *room = malloc(r->len + 1); /* no more, so that a sanitizer sees what is written behind it */
        assert_non_null(room);
        assert_int_equal(log_read(f->log, r->pos, r->len, room), LOG_OK);
        if (!body_right(room, r->len, index, r->term)) fail_msg("entry %llu has wrong bytes", (unsigned long long)index);
        free(room);
    }
}

static inline void check_entries(struct fixture *f, uint64_t first, uint64_t last)
{
    assert_int_equal(f->seen.first, first);
    assert_int_equal(f->seen.last, last);
    assert_int_equal(log_synced_index(f->log), last);
    check_readable(f);
}

/* ---- files */

static inline uint64_t file_size_of(const char *dir, const char *name)
{
    char path[600];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return stat(path, &st) == 0 ? (uint64_t)st.st_size : UINT64_MAX;
}

static inline void file_bytes_get(const char *dir, const char *name, uint64_t offset, char *at, size_t len)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, at, len, (off_t)offset), len);
    close(fd);
}

static inline void file_bytes_set(const char *dir, const char *name, uint64_t offset, const char *at, size_t len)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, at, 0), 0);
    assert_int_equal(lseek(fd, (off_t)offset, SEEK_SET), offset);
    assert_int_equal(write(fd, at, len), len);
    close(fd);
}

static inline void file_cut(const char *dir, const char *name, uint64_t size)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(truncate(path, (off_t)size), 0);
}

static inline uint32_t files_named(const char *dir, const char *end)
{
    DIR *d = opendir(dir);
    assert_non_null(d);
    struct dirent *e;
    uint32_t count = 0;
    while ((e = readdir(d)) != NULL) {
        size_t len = strlen(e->d_name);
        if (len >= strlen(end) && strcmp(e->d_name + len - strlen(end), end) == 0) count++;
    }
    closedir(d);
    return count;
}

/* Copies one file; stretches of zeros become holes. */
static inline void file_copy(const char *from, const char *to)
{
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0640);
    if (in < 0) { /* the keeper renamed it */
        close(out);
        unlink(to);
        return;
    }
    assert_true(out >= 0);
    enum { BLOCK = 65536 }; /* most of a file is a hole, and stays one */
    char *room = malloc(BLOCK);
    assert_non_null(room);
    off_t at = 0;
    ssize_t n;
    while ((n = pread(in, room, BLOCK, at)) > 0) {
        bool zero = room[0] == 0 && memcmp(room, room + 1, (size_t)n - 1) == 0;
        if (!zero) {
            assert_int_equal(lseek(out, at, SEEK_SET), at);
            assert_int_equal(write(out, room, (size_t)n), n);
        }
        at += n;
    }
    assert_int_equal(ftruncate(out, at), 0);
    free(room);
    close(in);
    close(out);
}

static inline void dir_copy(const char *from, const char *to)
{
    mkdir(to, 0750);
    DIR *d = opendir(from);
    assert_non_null(d);
    struct dirent *e;
    char in[600], out[600];
    while ((e = readdir(d)) != NULL) {
        size_t len = strlen(e->d_name);
        if (len < 4 || strcmp(e->d_name + len - 4, ".seg") != 0) continue;
        snprintf(in, sizeof in, "%s/%s", from, e->d_name);
        snprintf(out, sizeof out, "%s/%s", to, e->d_name);
        file_copy(in, out);
    }
    closedir(d);
}

/* The process ends here without a chance to tidy up: what was synced is in the files, no closing record. f->log is gone, the
 * directory holds what a kill -9 would have left. */
static inline void fixture_crash(struct fixture *f)
{
    char copy[300];
    snprintf(copy, sizeof copy, "%s.crash", f->dir);
    dir_copy(f->dir, copy);
    fixture_close(f);
    dir_remove(f->dir);
    assert_int_equal(rename(copy, f->dir), 0);
}

#endif
