/* The store: rows, order, marks, callbacks, and what a restart finds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "store/store.h"

enum { WAIT_US_MAX = 20 * 1000 * 1000 };

struct fixture {
    char top[64], dir[80];
    struct loop *loop;
    struct loop_hook hook;
    struct loop_timer late;
    uint64_t want_written, want_flushed;
    struct store *store;
    struct store_mark mark; /* at open */
    int failures;
    /* What the callbacks saw. */
    uint64_t written, flushed;
    int written_calls, flushed_calls;
    bool order_broken;
};

static int unlink_each(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static void on_failed(void *ctx, const char *what)
{
    (void)what;
    ((struct fixture *)ctx)->failures++;
}

static bool on_turn(struct loop_hook *hook)
{
    struct fixture *f = (struct fixture *)(void *)((char *)hook - offsetof(struct fixture, hook));
    if (f->written >= f->want_written && f->flushed >= f->want_flushed) loop_stop(f->loop);
    return false;
}

static void on_late(struct loop_timer *timer)
{
    loop_stop(((struct fixture *)(void *)((char *)timer - offsetof(struct fixture, late)))->loop);
}

static enum store_status open_try(struct fixture *f, struct buf *error)
{
    f->loop = loop_new();
    assert_non_null(f->loop);
    f->hook.run = on_turn;
    f->late = (struct loop_timer){.fire = on_late};
    loop_hook_add(f->loop, &f->hook);
    struct store_options o = {.dir = f->dir, .loop = f->loop, .write_buffer_bytes = 1 << 20, .ctx = f, .failed = on_failed};
    return store_open(&f->store, &o, &f->mark, error);
}

static void open_it(struct fixture *f)
{
    struct buf error = {0};
    enum store_status status = open_try(f, &error);
    if (status != STORE_OK) fail_msg("%.*s", (int)error.len, error.at);
    buf_free(&error);
}

static void close_it(struct fixture *f)
{
    store_close(f->store);
    loop_free(f->loop);
    f->store = NULL;
    f->loop = NULL;
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    snprintf(f->top, sizeof f->top, "/tmp/test_store.XXXXXX");
    assert_non_null(mkdtemp(f->top));
    snprintf(f->dir, sizeof f->dir, "%s/store", f->top);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    if (f->store != NULL) close_it(f);
    nftw(f->top, unlink_each, 16, FTW_DEPTH | FTW_PHYS);
    free(f);
    return 0;
}

/* ---- loop until something holds */

/* Runs the loop until the callbacks have seen these marks. */
static void wait_for(struct fixture *f, uint64_t written, uint64_t flushed)
{
    f->want_written = written;
    f->want_flushed = flushed;
    loop_timer_set(f->loop, &f->late, clock_mono_us() + WAIT_US_MAX);
    loop_run(f->loop);
    loop_timer_cancel(f->loop, &f->late);
    assert_true(f->written >= written && f->flushed >= flushed);
}

static void on_written(void *ctx, struct store_mark mark)
{
    struct fixture *f = ctx;
    f->order_broken |= mark.index <= f->written || mark.index <= f->flushed;
    f->written = mark.index;
    f->written_calls++;
}

static void on_flushed(void *ctx, struct store_mark mark)
{
    struct fixture *f = ctx;
    f->order_broken |= mark.index <= f->flushed || mark.index > f->written;
    f->flushed = mark.index;
    f->flushed_calls++;
}

static void submit(struct fixture *f, struct store_batch *b, uint64_t index, bool flush)
{
    struct store_mark mark = {.index = index, .term = index / 10 + 1, .scan_pos = index * 100};
    store_submit(f->store, b, mark, flush, f, on_written, flush ? on_flushed : NULL);
}

static struct slice key_of(char *at, unsigned n)
{
    int len = snprintf(at, 16, "k%08u", n);
    return slice_make(at, (size_t)len);
}

static void put_number(struct store_batch *b, unsigned n, uint64_t value)
{
    char key[16];
    store_batch_put(b, key_of(key, n), slice_make(&value, sizeof value));
}

static bool number_get(struct fixture *f, unsigned n, uint64_t *value)
{
    char key[16];
    struct buf out = {0};
    bool found;
    assert_int_equal(store_get(f->store, key_of(key, n), &out, &found, NULL), STORE_OK);
    if (found) {
        assert_int_equal(out.len, sizeof *value);
        memcpy(value, out.at, sizeof *value);
    }
    buf_free(&out);
    return found;
}

/* ---- scans */

struct seen {
    unsigned count, stop_at;
    uint64_t sum;
    char last[16];
    bool order_broken;
};

static bool see(void *ctx, struct slice key, struct slice value)
{
    struct seen *s = ctx;
    char now[16] = {0};
    assert_in_range(key.len, 1, sizeof now - 1);
    memcpy(now, key.at, key.len);
    if (s->count > 0 && strcmp(now, s->last) <= 0) s->order_broken = true;
    memcpy(s->last, now, sizeof now);
    uint64_t number = 0;
    memcpy(&number, value.at, value.len < sizeof number ? value.len : sizeof number);
    s->sum += number;
    s->count++;
    return s->count != s->stop_at;
}

static struct seen scan(struct fixture *f, const char *from, const char *to, unsigned stop_at)
{
    struct seen s = {.stop_at = stop_at};
    assert_int_equal(store_scan(f->store, slice_of(from), slice_of(to), see, &s, NULL), STORE_OK);
    assert_false(s.order_broken);
    return s;
}

static void test_new_store_is_empty(void **state)
{
    struct fixture *f = *state;
    open_it(f);
    assert_int_equal(f->mark.index, 0);
    assert_int_equal(f->mark.term, 0);
    assert_int_equal(f->mark.scan_pos, 0);
    assert_int_equal(scan(f, "", "", 0).count, 0);
    uint64_t value;
    assert_false(number_get(f, 1, &value));
}

static void test_rows_are_there_once_written(void **state)
{
    struct fixture *f = *state;
    open_it(f);
    struct store_batch *b = store_batch_new(f->store);
    for (unsigned i = 0; i < 1000; i++) put_number(b, i, i);
    store_batch_put(b, slice_of("z"), slice_make(NULL, 0)); /* an empty value is a value */
    size_t bytes = store_batch_bytes(b);
    assert_in_range(bytes, 1000 * 17, 1000 * 24);
    submit(f, b, 1, false);
    wait_for(f, 1, 0);
    assert_false(store_busy(f->store));
    struct seen all = scan(f, "", "", 0);
    assert_int_equal(all.count, 1001);
    assert_int_equal(all.sum, 999 * 1000 / 2);
    assert_int_equal(scan(f, "k00000010", "k00000020", 0).count, 10);
    assert_int_equal(scan(f, "k00000990", "", 0).count, 11);
    assert_int_equal(scan(f, "", "", 7).count, 7);
    struct buf out = {0};
    bool found;
    assert_int_equal(store_get(f->store, slice_of("z"), &out, &found, NULL), STORE_OK);
    assert_true(found);
    assert_int_equal(out.len, 0);
}

/* Kept in memory or not, warmed before or not: the same rows. */
static void test_rows_that_are_warmed_are_found(void **state)
{
    struct fixture *f = *state;
    open_it(f);
    struct store_batch *b = store_batch_new(f->store);
    for (unsigned i = 0; i < 5000; i++) put_number(b, i, i);
    submit(f, b, 1, true);
    wait_for(f, 1, 1);
    store_warm(f->store, slice_of("k00000100"), slice_of("k00004000"), 4096);
    store_warm(f->store, slice_of("x"), slice_of("y"), 4096); /* nothing there */
    for (int i = 0; i < 2; i++) {
        struct seen s = {0};
        assert_int_equal(store_find(f->store, slice_of("k00000010"), slice_of("k00000020"), see, &s, NULL, NULL), STORE_OK);
        assert_int_equal(s.count, 10);
        assert_int_equal(s.sum, 145);
        struct seen first = {.stop_at = 3};
        assert_int_equal(store_find(f->store, slice_of("k00004998"), slice_of(""), see, &first, NULL, NULL), STORE_OK);
        assert_int_equal(first.count, 2);
    }
}

static void test_later_batches_win_in_order(void **state)
{
    struct fixture *f = *state;
    open_it(f);
    /* Each batch overwrites row 0, adds a row, and removes the row of the batch before it. */
    for (unsigned i = 1; i <= 2000; i++) {
        struct store_batch *b = store_batch_new(f->store);
        put_number(b, 0, i);
        put_number(b, i, i);
        char key[16];
        if (i > 1) store_batch_delete(b, key_of(key, i - 1));
        submit(f, b, i, i % 500 == 0);
    }
    wait_for(f, 2000, 2000);
    assert_int_equal(f->written_calls, 2000);
    assert_int_equal(f->flushed_calls, 4);
    assert_false(f->order_broken);
    uint64_t value;
    assert_true(number_get(f, 0, &value));
    assert_int_equal(value, 2000);
    assert_int_equal(scan(f, "", "", 0).count, 2);
}

static void test_delete_range(void **state)
{
    struct fixture *f = *state;
    open_it(f);
    struct store_batch *b = store_batch_new(f->store);
    for (unsigned i = 0; i < 100; i++) put_number(b, i, 1);
    submit(f, b, 1, true);
    b = store_batch_new(f->store);
    store_batch_delete_range(b, slice_of("k00000010"), slice_of("k00000090"));
    put_number(b, 50, 5);                                        /* after the range: stays */
    store_batch_delete_range(b, slice_of("k2"), slice_of("k1")); /* empty */
    submit(f, b, 2, true);
    wait_for(f, 2, 2);
    assert_int_equal(scan(f, "", "", 0).count, 21);
    close_it(f);
    open_it(f);
    assert_int_equal(scan(f, "", "", 0).count, 21);
    uint64_t value;
    assert_true(number_get(f, 50, &value));
    assert_int_equal(value, 5);
    assert_false(number_get(f, 10, &value));
    assert_true(number_get(f, 90, &value));
}

static void test_close_keeps_all_and_the_mark(void **state)
{
    struct fixture *f = *state;
    open_it(f);
    for (unsigned i = 1; i <= 300; i++) {
        struct store_batch *b = store_batch_new(f->store);
        put_number(b, i, i);
        submit(f, b, i, false);
    }
    close_it(f); /* nothing was waited for */
    open_it(f);
    assert_int_equal(f->mark.index, 300);
    assert_int_equal(f->mark.term, 31);
    assert_int_equal(f->mark.scan_pos, 30000);
    assert_int_equal(scan(f, "", "", 0).count, 300);
}

/* ---- kinds that lie apart */

static const unsigned char APART[] = {STORE_KIND_JOURNAL, STORE_KIND_FILTER, STORE_KIND_RECORDS};

static struct slice apart_key(char *at, unsigned char kind, unsigned n)
{
    int len = snprintf(at, 16, "%c%08u", kind, n);
    return slice_make(at, (size_t)len);
}

static void put_apart(struct store_batch *b, unsigned char kind, unsigned n)
{
    char key[16];
    uint64_t value = n;
    store_batch_put(b, apart_key(key, kind, n), slice_make(&value, sizeof value));
}

static unsigned apart_count(struct fixture *f, unsigned char kind)
{
    char from[] = {(char)kind, 0}, to[] = {(char)(kind + 1), 0};
    return scan(f, from, to, 0).count;
}

static void test_kinds_apart_are_one_store(void **state)
{
    struct fixture *f = *state;
    open_it(f);
    for (unsigned i = 1; i <= 30; i++) {
        struct store_batch *b = store_batch_new(f->store);
        put_number(b, i, i);
        store_batch_put(b, slice_of("\1"), slice_make(&i, sizeof i));
        store_batch_put(b, slice_of("\xff"), slice_make(&i, sizeof i));
        for (size_t n = 0; n < sizeof APART; n++) put_apart(b, APART[n], i);
        submit(f, b, i, i % 10 == 0);
    }
    wait_for(f, 30, 30);
    /* In the order of keys, all of them, from anywhere, and not beyond the end. */
    assert_int_equal(scan(f, "", "", 0).count, 2 + 4 * 30);
    assert_int_equal(scan(f, "\7", "\x0c", 0).count, 30);
    assert_int_equal(scan(f,
                          "\7"
                          "00000011",
                          "\x0c"
                          "00000011",
                          0)
                         .count,
                     30);
    assert_int_equal(scan(f,
                          "\x8b"
                          "00000011",
                          "", 0)
                         .count,
                     21);
    assert_int_equal(scan(f, "\6", "\x8c", 61).count, 61);
    for (size_t n = 0; n < sizeof APART; n++) {
        char key[16], behind[17];
        struct slice from = apart_key(key, APART[n], 7);
        struct seen one = {0};
        memcpy(behind, key, sizeof key);
        behind[from.len] = 0;
        assert_int_equal(store_scan(f->store, from, slice_make(behind, from.len + 1), see, &one, NULL), STORE_OK);
        assert_true(one.count == 1 && one.sum == 7);
        one = (struct seen){0};
        from = apart_key(key, APART[n], 77);
        memcpy(behind, key, sizeof key);
        behind[from.len] = 0;
        assert_int_equal(store_scan(f->store, from, slice_make(behind, from.len + 1), see, &one, NULL), STORE_OK);
        assert_int_equal(one.count, 0);
    }
}

/* Files in a range that was deleted go once that is durable; what is outside of it stays. */
static void test_rows_written_once_go_with_their_files(void **state)
{
    enum { FILES = 40, EACH = 50, TRIES = 100 };
    struct fixture *f = *state;
    open_it(f);
    uint64_t index = 0;
    for (unsigned file = 0; file < FILES; file++) {
        struct store_batch *b = store_batch_new(f->store);
        for (unsigned i = 0; i < EACH; i++) put_apart(b, STORE_KIND_RECORDS, file * EACH + i);
        submit(f, b, ++index, true);
        wait_for(f, index, index);
    }
    unsigned left = FILES * EACH;
    for (int try = 0; try < TRIES && left > EACH * FILES / 4; try++) {
        char from[16], to[16];
        struct store_batch *b = store_batch_new(f->store);
        put_number(b, 1, 1);
        store_batch_delete_range(b, apart_key(from, STORE_KIND_RECORDS, 0),
                                 apart_key(to, STORE_KIND_RECORDS, EACH * (FILES - 8)));
        submit(f, b, ++index, true);
        wait_for(f, index, index);
        left = apart_count(f, STORE_KIND_RECORDS);
        assert_true(left >= 8 * EACH);
        usleep(20000); /* files are moved in the background */
    }
    assert_in_range(left, 8 * EACH, EACH * FILES / 4);
    close_it(f);
    open_it(f);
    assert_int_equal(apart_count(f, STORE_KIND_RECORDS), left);
    char last[16];
    struct buf out = {0};
    bool found;
    assert_int_equal(store_get(f->store, apart_key(last, STORE_KIND_RECORDS, EACH * (FILES - 8)), &out, &found, NULL),
                     STORE_OK);
    assert_true(found);
    buf_free(&out);
}

static void test_an_unused_batch_changes_nothing(void **state)
{
    struct fixture *f = *state;
    open_it(f);
    struct store_batch *b = store_batch_new(f->store);
    put_number(b, 1, 1);
    store_batch_drop(f->store, b);
    b = store_batch_new(f->store);
    assert_int_equal(store_batch_bytes(b), 0);
    put_number(b, 2, 2);
    submit(f, b, 1, false);
    wait_for(f, 1, 0);
    assert_int_equal(scan(f, "", "", 0).count, 1);
}

static void test_two_processes_cannot_open_it(void **state)
{
    struct fixture *f = *state;
    open_it(f);
    struct fixture other = *f;
    struct buf error = {0};
    assert_int_equal(open_try(&other, &error), STORE_IO);
    buf_byte(&error, 0);
    assert_non_null(strstr(error.at, "in use"));
    buf_free(&error);
    loop_free(other.loop);
}

/* ---- kill */

/* The child writes batches; batch i sets all rows 0..19 to i and adds a row i of each kind that lies apart. It tells through the pipe each mark that was flushed. */
static void child_run(struct fixture *f, int pipe_fd)
{
    open_it(f);
    f->written = f->flushed = f->mark.index;
    uint64_t told = f->flushed;
    for (uint64_t i = f->mark.index + 1;; i++) {
        struct store_batch *b = store_batch_new(f->store);
        for (unsigned n = 0; n < 20; n++) put_number(b, n, i);
        for (size_t n = 0; n < sizeof APART; n++) put_apart(b, APART[n], (unsigned)i);
        submit(f, b, i, i % 7 == 0);
        if (i % 7 == 0) wait_for(f, i, i);
        if (f->flushed > told) {
            told = f->flushed;
            if (write(pipe_fd, &told, sizeof told) != (ssize_t)sizeof told) _exit(9);
        }
    }
}

static void test_kill_comes_back_at_a_flushed_mark(void **state)
{
    struct fixture *f = *state;
    uint64_t told = 0;
    for (int round = 0; round < 20; round++) {
        int fds[2];
        assert_int_equal(pipe(fds), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            char fd[16];
            snprintf(fd, sizeof fd, "%d", fds[1]);
            close(fds[0]);
            execl("/proc/self/exe", "test_store", "child", f->dir, fd, NULL); /* threads do not survive a fork */
            _exit(8);
        }
        close(fds[1]);
        for (int i = 0; i < 3 + round % 10; i++) {
            uint64_t mark;
            assert_int_equal(read(fds[0], &mark, sizeof mark), sizeof mark);
            told = mark;
        }
        usleep((useconds_t)(round * 1100 % 7000)); /* also in the middle of a flush */
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
        for (uint64_t mark; read(fds[0], &mark, sizeof mark) == (ssize_t)sizeof mark;) told = mark;
        close(fds[0]);
        open_it(f);
        assert_true(f->mark.index >= told);
        assert_int_equal(f->mark.scan_pos, f->mark.index * 100);
        struct seen all = scan(f, "k", "l", 0);
        assert_int_equal(all.count, 20);
        assert_int_equal(all.sum, 20 * f->mark.index);
        for (size_t n = 0; n < sizeof APART; n++) assert_int_equal(apart_count(f, APART[n]), f->mark.index);
        close_it(f);
    }
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "child") == 0) {
        struct fixture f = {0};
        snprintf(f.dir, sizeof f.dir, "%s", argv[2]);
        child_run(&f, atoi(argv[3]));
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_new_store_is_empty, setup, teardown),
        cmocka_unit_test_setup_teardown(test_rows_are_there_once_written, setup, teardown),
        cmocka_unit_test_setup_teardown(test_rows_that_are_warmed_are_found, setup, teardown),
        cmocka_unit_test_setup_teardown(test_later_batches_win_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_delete_range, setup, teardown),
        cmocka_unit_test_setup_teardown(test_close_keeps_all_and_the_mark, setup, teardown),
        cmocka_unit_test_setup_teardown(test_kinds_apart_are_one_store, setup, teardown),
        cmocka_unit_test_setup_teardown(test_rows_written_once_go_with_their_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_unused_batch_changes_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_two_processes_cannot_open_it, setup, teardown),
        cmocka_unit_test_setup_teardown(test_kill_comes_back_at_a_flushed_mark, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
