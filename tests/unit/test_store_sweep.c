/* Sweeps: what threads read ahead comes in order and whole, with any number of them; early ends, damage, long rows, slow callers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "store/store.h"

enum { ROWS = 60000, BATCHES = 6, VALUE_BYTES = 120, LONG_BYTES = 700000, LONG_ROWS = 40 };

struct place {
    char top[48], dir[80];
    struct loop *loop;
    struct store *store;
};

static void on_failed(void *ctx, const char *what)
{
    (void)ctx;
    fail_msg("%s", what);
}

static void store_begin(struct place *p)
{
    struct store_mark mark;
    struct buf error = {0};
    p->loop = loop_new();
    struct store_options o = {.dir = p->dir, .loop = p->loop, .write_buffer_bytes = 1 << 20, .failed = on_failed};
    if (store_open(&p->store, &o, &mark, &error) != STORE_OK) fail_msg("%.*s", (int)error.len, error.at);
}

static void store_end(struct place *p)
{
    store_close(p->store);
    loop_free(p->loop);
}

/* Three kinds of keys: numbers, numbers below one prefix longer than what pieces are told apart by, and few with long values. */
static struct slice key_of(char at[96], unsigned n)
{
    int len;
    if (n % LONG_ROWS == 7 && n / LONG_ROWS < LONG_ROWS)
        len = snprintf(at, 96, "\x07%08u", n);
    else if (n % 3 == 0)
        len = snprintf(at, 96, "\x09tenant-namespace-and-so-on-for-more-than-forty-bytes/%08u", n);
    else
        len = snprintf(at, 96, "\x04%08u", n * 2654435761U % 100000000U);
    return slice_make(at, (size_t)len);
}

/* Bytes that do not compress, and that tell which row they are of. */
static void value_put(struct buf *out, unsigned n)
{
    uint64_t x = n + 1;
    size_t bytes =
        n % LONG_ROWS == 7 && n / LONG_ROWS < LONG_ROWS ? (n / LONG_ROWS % 4 == 0 ? LONG_BYTES : 90000) : VALUE_BYTES;
    for (size_t i = 0; i < bytes; i += 8) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        buf_u64(out, x ^ x >> 29);
    }
}

static void store_fill(struct place *p)
{
    struct buf value = {0};
    char key[96];
    for (unsigned b = 0; b < BATCHES; b++) {
        struct store_batch *batch = store_batch_new(p->store);
        for (unsigned n = b; n < ROWS; n += BATCHES) {
            buf_clear(&value);
            value_put(&value, n);
            store_batch_put(batch, key_of(key, n), buf_view(&value));
        }
        if (b == 3)
            store_batch_delete_range(batch,
                                     slice_of("\x04"
                                              "20000000"),
                                     slice_of("\x04"
                                              "21000000"));
        store_submit(p->store, batch, (struct store_mark){b + 1, 1, b}, true, NULL, NULL, NULL);
        while (store_busy(p->store)) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    buf_free(&value);
}

static int unlink_each(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static int group_setup(void **state)
{
    static struct place p;
    snprintf(p.top, sizeof p.top, "/tmp/test_store_sweep.XXXXXX");
    if (mkdtemp(p.top) == NULL) return -1;
    snprintf(p.dir, sizeof p.dir, "%s/store", p.top);
    store_begin(&p);
    store_fill(&p);
    store_end(&p);
    *state = &p;
    return 0;
}

static int group_teardown(void **state)
{
    struct place *p = *state;
    return nftw(p->top, unlink_each, 16, FTW_DEPTH | FTW_PHYS);
}

/* What somebody saw of the rows: their number, and a hash of all in order. */
struct seen {
    uint64_t rows, rows_max, hash, done, whole;
    unsigned pulses, pulses_max;
    char last[96];
    size_t last_len;
    bool disordered, slow;
};

static bool row_see(void *ctx, struct slice key, struct slice value)
{
    struct seen *s = ctx;
    assert_true(key.len < sizeof s->last);
    size_t less = key.len < s->last_len ? key.len : s->last_len;
    int order = memcmp(s->last, key.at, less);
    s->disordered |= order > 0 || (order == 0 && s->last_len >= key.len);
    memcpy(s->last, key.at, key.len);
    s->last_len = key.len;
    s->hash = hash64(value, hash64(key, s->hash));
    if (s->slow && s->rows % 4096 == 0) nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    return ++s->rows != s->rows_max;
}

static bool pulse_see(void *ctx, uint64_t done, uint64_t whole)
{
    struct seen *s = ctx;
    assert_true(done >= s->done && done <= whole && (s->whole == 0 || s->whole == whole));
    s->done = done;
    s->whole = whole;
    return ++s->pulses != s->pulses_max;
}

static enum store_status sweep(struct place *p, const char *from, const char *to, uint32_t readers, struct seen *s,
                               struct buf *error)
{
    struct store_sweep o = {
        .from = slice_of(from), .to = slice_of(to), .readers = readers, .ctx = s, .row = row_see, .pulse = pulse_see};
    return store_sweep(p->store, &o, error);
}

static void plain(struct place *p, const char *from, const char *to, struct seen *s)
{
    assert_int_equal(store_scan(p->store, slice_of(from), slice_of(to), row_see, s, NULL), STORE_OK);
}

static void test_sweep_is_a_scan(void **state)
{
    struct place *p = *state;
    static const char *const ranges[][2] = {
        {"\x01", "\x80"},
        {"\x01", ""},
        {"\x04", "\x05"},
        {"\x04"
         "3",
         "\x04"
         "7"},
        {"\x09", "\x0a"},
        {"\x07", "\x08"},
        {"\x0b", "\x80"},
    };
    store_begin(p);
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        struct seen want = {0};
        plain(p, ranges[i][0], ranges[i][1], &want);
        assert_false(want.disordered);
        for (uint32_t readers = 0; readers <= (i == 0 ? 5 : 1); readers++) {
            struct seen got = {.slow = i == 0 && readers == 3};
            assert_int_equal(sweep(p, ranges[i][0], ranges[i][1], readers, &got, NULL), STORE_OK);
            assert_int_equal(got.rows, want.rows);
            assert_int_equal(got.hash, want.hash);
            assert_false(got.disordered);
            if (i == 0) assert_true(got.pulses > 4 && got.whole > (4 << 20)); /* it was read in pieces */
            if (i == 0) assert_true(got.done > got.whole / 2);
        }
    }
    store_end(p);
}

static void test_sweep_ends_early(void **state)
{
    struct place *p = *state;
    static const uint64_t ends[] = {1, 2, 1000, 9999, 30000};
    store_begin(p);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        struct seen want = {.rows_max = ends[i]}, got = {.rows_max = ends[i]};
        plain(p, "\x01", "\x80", &want);
        assert_int_equal(sweep(p, "\x01", "\x80", 3, &got, NULL), STORE_OK);
        assert_int_equal(got.rows, ends[i]);
        assert_int_equal(got.hash, want.hash);
    }
    struct seen got = {.pulses_max = 3};
    assert_int_equal(sweep(p, "\x01", "\x80", 3, &got, NULL), STORE_OK);
    assert_int_equal(got.pulses, 3);
    assert_true(got.rows < ROWS / 2);
    store_end(p);
}

/* The largest table file, one byte of it changed. */
static void file_spoil(struct place *p, int at_percent)
{
    char path[400] = "", one[400];
    off_t size = 0;
    struct stat st;
    DIR *d = opendir(p->dir);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        size_t len = strlen(e->d_name);
        if (len < 4 || strcmp(e->d_name + len - 4, ".sst") != 0) continue;
        snprintf(one, sizeof one, "%s/%s", p->dir, e->d_name);
        assert_int_equal(stat(one, &st), 0);
        if (st.st_size <= size) continue;
        size = st.st_size;
        memcpy(path, one, sizeof path);
    }
    closedir(d);
    int fd = open(path, O_RDWR);
    unsigned char byte;
    off_t at = size / 100 * at_percent;
    assert_true(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 0x40;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void test_damage_is_reported(void **state)
{
    struct place *p = *state;
    for (int at = 10; at <= 70; at += 30) {
        struct seen whole = {0}, got = {0};
        struct buf error = {0};
        store_begin(p);
        plain(p, "\x01", "\x80", &whole);
        store_end(p);
        file_spoil(p, at);
        store_begin(p);
        assert_int_equal(sweep(p, "\x01", "\x80", 4, &got, &error), STORE_DAMAGED);
        buf_byte(&error, '\0');
        assert_non_null(strstr(error.at, ".sst"));
        assert_false(got.disordered);
        assert_true(got.rows > 0 && got.rows < whole.rows);
        store_end(p);
        file_spoil(p, at); /* whole again */
        store_begin(p);
        struct seen before = {.rows_max = got.rows};
        plain(p, "\x01", "\x80", &before);
        assert_int_equal(before.hash, got.hash);
        store_end(p);
        buf_free(&error);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sweep_is_a_scan),
        cmocka_unit_test(test_sweep_ends_early),
        cmocka_unit_test(test_damage_is_reported),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
