/* Checkpoints of the store: exactly the batches before the order, however many stand around it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "store/store.h"

enum { WAIT_US_MAX = 20 * 1000 * 1000, CHECKPOINTS_MAX = 8 };

struct fixture {
    char top[64];
    struct loop *loop;
    struct loop_timer late;
    struct store *store;
    struct store_mark mark;
    int failures;
    int want, done;
    struct store_mark marks[CHECKPOINTS_MAX];
    char error[CHECKPOINTS_MAX][300];
    uint64_t written, flushed, written_at_done[CHECKPOINTS_MAX], flushed_at_done[CHECKPOINTS_MAX];
};

static void on_failed(void *ctx, const char *what)
{
    (void)what;
    ((struct fixture *)ctx)->failures++;
}

static void on_late(struct loop_timer *timer)
{
    loop_stop(((struct fixture *)(void *)((char *)timer - offsetof(struct fixture, late)))->loop);
}

static void open_it(struct fixture *f, const char *name)
{
    char dir[128];
    struct buf error = {0};
    snprintf(dir, sizeof dir, "%s/%s", f->top, name);
    f->loop = loop_new();
    assert_non_null(f->loop);
    f->late = (struct loop_timer){.fire = on_late};
    struct store_options o = {.dir = dir, .loop = f->loop, .write_buffer_bytes = 1 << 20, .ctx = f, .failed = on_failed};
    if (store_open(&f->store, &o, &f->mark, &error) != STORE_OK) fail_msg("%.*s", (int)error.len, error.at);
    buf_free(&error);
}

static void close_it(struct fixture *f)
{
    store_close(f->store);
    loop_free(f->loop);
    f->store = NULL;
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    snprintf(f->top, sizeof f->top, "/tmp/test_store_checkpoint.XXXXXX");
    assert_non_null(mkdtemp(f->top));
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    if (f->store != NULL) close_it(f);
    assert_int_equal(files_remove_tree(f->top), 0);
    free(f);
    return 0;
}

static void on_written(void *ctx, struct store_mark mark)
{
    ((struct fixture *)ctx)->written = mark.index;
}

static void on_flushed(void *ctx, struct store_mark mark)
{
    ((struct fixture *)ctx)->flushed = mark.index;
}

static void on_checkpoint(void *ctx, struct store_mark mark, const char *error)
{
    struct fixture *f = ctx;
    assert_true(f->done < CHECKPOINTS_MAX);
    f->written_at_done[f->done] = f->written;
    f->flushed_at_done[f->done] = f->flushed;
    f->marks[f->done] = mark;
    if (error != NULL) snprintf(f->error[f->done], sizeof f->error[0], "%s", error);
    if (++f->done == f->want) loop_stop(f->loop);
}

/* Batch i sets row i, and rows 0 to 9 to i. */
static void submit(struct fixture *f, uint64_t i, bool flush)
{
    struct store_batch *b = store_batch_new(f->store);
    for (uint64_t n = 0; n <= 10; n++) {
        char key[16];
        int len = snprintf(key, sizeof key, "k%08u", (unsigned)(n == 10 ? 10 + i : n));
        store_batch_put(b, slice_make(key, (size_t)len), slice_make(&i, sizeof i));
    }
    store_submit(f->store, b, (struct store_mark){.index = i, .term = i / 10 + 1, .scan_pos = i * 100}, flush, f, on_written,
                 flush ? on_flushed : NULL);
}

static void checkpoint(struct fixture *f, const char *name)
{
    char dir[128];
    snprintf(dir, sizeof dir, "%s/%s", f->top, name);
    store_checkpoint(f->store, dir, f, on_checkpoint);
}

static void wait_for(struct fixture *f, int want)
{
    f->want = want;
    loop_timer_set(f->loop, &f->late, clock_mono_us() + WAIT_US_MAX);
    loop_run(f->loop);
    loop_timer_cancel(f->loop, &f->late);
    assert_int_equal(f->done, want);
}

static bool row_count(void *ctx, struct slice key, struct slice value)
{
    uint64_t *sums = ctx;
    uint64_t v;
    assert_int_equal(value.len, sizeof v);
    memcpy(&v, value.at, sizeof v);
    sums[0]++;
    if (slice_compare(key, slice_of("k00000010")) < 0) sums[1] += v;
    return true;
}

/* The store in `name` is the state after batch `index`, no more and no less. */
static void is_state(struct fixture *f, const char *name, uint64_t index)
{
    uint64_t sums[2] = {0, 0};
    open_it(f, name);
    assert_int_equal(f->mark.index, index);
    assert_int_equal(f->mark.term, index == 0 ? 0 : index / 10 + 1);
    assert_int_equal(f->mark.scan_pos, index * 100);
    assert_int_equal(store_scan(f->store, (struct slice){0}, (struct slice){0}, row_count, sums, NULL), STORE_OK);
    assert_int_equal(sums[0], index == 0 ? 0 : 10 + index);
    assert_int_equal(sums[1], 10 * index);
    close_it(f);
}

static void holds_what_was_submitted_before_it(void **state)
{
    struct fixture *f = *state;
    open_it(f, "store");
    for (uint64_t i = 1; i <= 40; i++) submit(f, i, i == 20);
    checkpoint(f, "at40");
    for (uint64_t i = 41; i <= 70; i++) submit(f, i, i == 50);
    checkpoint(f, "at70");
    checkpoint(f, "at70too");
    for (uint64_t i = 71; i <= 90; i++) submit(f, i, false);
    wait_for(f, 3);
    assert_int_equal(f->marks[0].index, 40);
    assert_int_equal(f->marks[0].term, 5);
    assert_int_equal(f->marks[0].scan_pos, 4000);
    assert_int_equal(f->marks[1].index, 70);
    assert_int_equal(f->marks[2].index, 70);
    for (int i = 0; i < 3; i++) assert_string_equal(f->error[i], "");
    assert_true(f->written_at_done[0] >= 40 && f->written_at_done[1] >= 70);
    close_it(f);
    is_state(f, "at40", 40);
    is_state(f, "at70", 70);
    is_state(f, "at70too", 70);
    is_state(f, "store", 90);
    assert_int_equal(f->failures, 0);
}

static void of_a_store_without_batches(void **state)
{
    struct fixture *f = *state;
    open_it(f, "store");
    checkpoint(f, "empty");
    wait_for(f, 1);
    assert_int_equal(f->marks[0].index, 0);
    assert_string_equal(f->error[0], "");
    submit(f, 1, false);
    close_it(f);
    is_state(f, "empty", 0);

    /* Opened again: the mark is known without a batch written since. */
    open_it(f, "store");
    checkpoint(f, "again");
    wait_for(f, 2);
    assert_int_equal(f->marks[1].index, 1);
    assert_int_equal(f->marks[1].scan_pos, 100);
    close_it(f);
    is_state(f, "again", 1);
}

static void later_writes_and_compactions_do_not_touch_it(void **state)
{
    struct fixture *f = *state;
    open_it(f, "store");
    for (uint64_t i = 1; i <= 30; i++) submit(f, i, true);
    checkpoint(f, "at30");
    for (uint64_t i = 31; i <= 120; i++) submit(f, i, true);
    checkpoint(f, "at120");
    wait_for(f, 2);
    close_it(f);
    is_state(f, "at30", 30);
    is_state(f, "at120", 120);
}

static void a_failed_one_leaves_the_store_as_it_is(void **state)
{
    struct fixture *f = *state;
    char dir[128];
    open_it(f, "store");
    submit(f, 1, false);
    snprintf(dir, sizeof dir, "%s/there", f->top);
    assert_int_equal(files_make_dir(dir), 0);
    checkpoint(f, "there"); /* in the way */
    checkpoint(f, "no/such/parent");
    submit(f, 2, false);
    checkpoint(f, "good");
    wait_for(f, 3);
    assert_non_null(strstr(f->error[0], "/there: a checkpoint failed"));
    assert_non_null(strstr(f->error[1], "/no/such/parent: a checkpoint failed"));
    assert_string_equal(f->error[2], "");
    assert_int_equal(f->failures, 0);
    close_it(f);
    is_state(f, "good", 2);
    is_state(f, "store", 2);
}

static void closing_with_one_on_its_way(void **state)
{
    struct fixture *f = *state;
    open_it(f, "store");
    submit(f, 1, true);
    checkpoint(f, "late");
    close_it(f);
    assert_int_equal(f->done, 0); /* nobody is called back any more */
    is_state(f, "store", 1);
    is_state(f, "late", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(holds_what_was_submitted_before_it, setup, teardown),
        cmocka_unit_test_setup_teardown(of_a_store_without_batches, setup, teardown),
        cmocka_unit_test_setup_teardown(later_writes_and_compactions_do_not_touch_it, setup, teardown),
        cmocka_unit_test_setup_teardown(a_failed_one_leaves_the_store_as_it_is, setup, teardown),
        cmocka_unit_test_setup_teardown(closing_with_one_on_its_way, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
