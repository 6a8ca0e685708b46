/* Putting a fetched state in place, cut short at every step, and once more while it goes on: it ends with the whole new state, or with the
 * whole old one when the new one was not whole. The steps are the calls of base/files.h that change something; each may end the
 * process before it, in the middle of it, or fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/files.h"

/* What is cut short frees nothing. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "detect_leaks=0";
}

/* ---- the calls that change something */

static jmp_buf crash;
static uint32_t steps, crash_at; /* 0: never */
static bool fails;               /* at that step, instead */

static int step(void)
{
    if (++steps != crash_at) return 0;
    if (fails) return EIO;
    longjmp(crash, 1);
}

static int step_rename(const char *from, const char *to)
{
    int code = step();
    if (code == 0 && rename(from, to) != 0) code = errno;
    return code != 0 ? code : step();
}

static int step_remove(const char *path)
{
    int code = step();
    return code != 0 ? code : files_remove(path);
}

static int step_sync(const char *path)
{
    int code = step();
    return code != 0 ? code : access(path, F_OK) == 0 ? 0 : errno;
}

struct inside {
    const char *dir;
    int code;
};

static bool inside_remove(void *ctx, const struct files_entry *e)
{
    struct inside *in = ctx;
    char path[600];
    snprintf(path, sizeof path, "%s/%s", in->dir, e->name);
    in->code = step();
    if (in->code == 0) in->code = files_remove_tree(path);
    return in->code == 0;
}

/* Entry by entry, as the real one. */
static int step_remove_tree(const char *dir)
{
    struct inside in = {.dir = dir};
    int code = files_list(dir, inside_remove, &in);
    if (code == ENOENT) return 0;
    if (code == 0) code = in.code;
    if (code == 0) code = step();
    return code != 0 ? code : files_remove_tree(dir);
}

/* Crash points in every build, for this file's copy of the code. */
#ifndef QUEEN_CRASH_POINTS
#define QUEEN_CRASH_POINTS 1
#endif
#include "../../src/base/crash_point.c"

#define files_rename step_rename
#define files_remove step_remove
#define files_remove_tree step_remove_tree
#define files_sync step_sync
#include "../../src/broker/incoming.c"
#undef files_rename
#undef files_remove
#undef files_remove_tree
#undef files_sync

/* ---- a group */

struct group {
    char top[64], dir[80];
};

static void put(const struct group *g, const char *name, const char *text)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", g->dir, name);
    assert_int_equal(files_write(path, 0, slice_of(text)), 0);
}

static void make_dir(const struct group *g, const char *name)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", g->dir, name);
    assert_int_equal(files_make_dir(path), 0);
}

static bool there(const struct group *g, const char *name)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", g->dir, name);
    return access(path, F_OK) == 0;
}

static bool holds(const struct group *g, const char *name, const char *text)
{
    char path[300];
    struct buf b = {0};
    snprintf(path, sizeof path, "%s/%s", g->dir, name);
    bool same = files_read(path, 0, strlen(text), &b) == 0 && slice_is(buf_view(&b), text);
    buf_free(&b);
    return same;
}

static const char SEGMENT[] = "0000000000000000.seg";

static void own_put(const struct group *g)
{
    make_dir(g, "store");
    make_dir(g, "log");
    put(g, "store/CURRENT", "old");
    put(g, "store/000001.sst", "old");
    put(g, "log/0000000000000000.seg", "old");
    put(g, "log/0000000000100000.seg", "old");
    put(g, "configuration", "old");
}

static void incoming_put(const struct group *g)
{
    struct manifest m = {.cluster = {{1}},
                         .node = 3,
                         .mark = {.index = 77, .term = 2, .scan_pos = 4096 + 48},
                         .log_end = 5000,
                         .segment_bytes = 1 << 20};
    struct buf b = {0};
    char path[300];
    buf_text(&m.configuration, "new");
    assert_true(manifest_add(&m, MANIFEST_STORE, "000009.sst", 3) && manifest_add(&m, MANIFEST_STORE, "CURRENT", 3) &&
                manifest_add(&m, MANIFEST_LOG, SEGMENT, 5000));
    make_dir(g, "incoming");
    make_dir(g, "incoming/store");
    make_dir(g, "incoming/log");
    put(g, "incoming/store/CURRENT", "new");
    put(g, "incoming/store/000009.sst", "new");
    put(g, "incoming/log/0000000000000000.seg", "new");
    snprintf(path, sizeof path, "%s/incoming/log/%s", g->dir, SEGMENT);
    assert_int_equal(files_truncate(path, 8192), 0);
    put(g, "incoming/configuration", "new");
    manifest_encode(&m, &b);
    snprintf(path, sizeof path, "%s/incoming/ready", g->dir);
    assert_int_equal(files_write(path, 0, buf_view(&b)), 0);
    buf_free(&b);
    manifest_free(&m);
}

static void group_make(struct group *g)
{
    assert_int_equal(files_remove_tree(g->dir), 0);
    assert_int_equal(files_make_dir(g->dir), 0);
    put(g, "identity", "mine");
    put(g, "meta-0", "mine");
    steps = crash_at = 0;
    fails = false;
}

static void is_new(const struct group *g)
{
    assert_true(holds(g, "store/CURRENT", "new") && holds(g, "store/000009.sst", "new"));
    assert_true(holds(g, "log/0000000000000000.seg", "new") && holds(g, "configuration", "new"));
    assert_false(there(g, "store/000001.sst"));
    assert_false(there(g, "log/0000000000100000.seg"));
}

static void is_old(const struct group *g)
{
    assert_true(holds(g, "store/CURRENT", "old") && holds(g, "store/000001.sst", "old"));
    assert_true(holds(g, "log/0000000000000000.seg", "old") && holds(g, "log/0000000000100000.seg", "old"));
    assert_true(holds(g, "configuration", "old"));
    assert_false(there(g, "store/000009.sst"));
}

static void is_tidy(const struct group *g)
{
    assert_false(there(g, "outgoing-store"));
    assert_false(there(g, "outgoing-log"));
    assert_false(there(g, "incoming/ready"));
    assert_true(holds(g, "identity", "mine") && holds(g, "meta-0", "mine"));
}

/* true: it came to its end; false: it was cut short at the n-th step. */
static bool runs(struct group *g, uint32_t n)
{
    struct buf error = {0};
    steps = 0;
    crash_at = n;
    if (setjmp(crash) != 0) return false;
    bool ok = incoming_finish(g->dir, &error);
    if (!ok && !fails) fail_msg("%.*s", (int)error.len, error.at);
    if (!ok) assert_true(error.len > 0 && memmem(error.at, error.len, g->top, strlen(g->top)) != NULL);
    buf_free(&error);
    return ok;
}

static int setup(void **state)
{
    struct group *g = calloc(1, sizeof *g);
    assert_non_null(g);
    const char *base = getenv("TMPDIR");
    snprintf(g->top, sizeof g->top, "%.40s/incoming.XXXXXX", base == NULL ? "/tmp" : base);
    assert_non_null(mkdtemp(g->top));
    snprintf(g->dir, sizeof g->dir, "%s/g", g->top);
    group_make(g);
    *state = g;
    return 0;
}

static int teardown(void **state)
{
    struct group *g = *state;
    assert_int_equal(files_remove_tree(g->top), 0);
    free(g);
    return 0;
}

/* ---- */

static void nothing_fetched_nothing_done(void **state)
{
    struct group *g = *state;
    assert_true(runs(g, 0));
    assert_int_equal(files_remove_tree(g->dir), 0);
    assert_true(runs(g, 0)); /* not even a directory */
    group_make(g);
    own_put(g);
    incoming_put(g);
    char path[300];
    snprintf(path, sizeof path, "%s/incoming/ready", g->dir);
    assert_int_equal(files_remove(path), 0);
    assert_true(runs(g, 0)); /* not ready: it is kept for the next try */
    is_old(g);
    assert_true(holds(g, "incoming/store/CURRENT", "new"));
    make_dir(g, "outgoing-log");
    put(g, "outgoing-log/x", "older");
    assert_true(runs(g, 0));
    is_tidy(g);
    is_old(g);
}

static void swap_interrupted(struct group *g, bool own, bool outgoing)
{
    uint32_t all = 0;
    for (uint32_t first = 1;; first++) {
        bool whole = false;
        for (uint32_t second = 0; !whole && second <= all + 1; second++) {
            group_make(g);
            if (own) own_put(g);
            incoming_put(g);
            if (outgoing) {
                make_dir(g, "outgoing-store");
                make_dir(g, "outgoing-log");
                put(g, "outgoing-store/CURRENT", "older");
            }
            whole = runs(g, first);
            if (!whole) runs(g, second);
            assert_true(runs(g, 0));
            is_new(g);
            is_tidy(g);
            assert_false(there(g, "incoming"));
        }
        all = first;
        if (whole) break;
    }
    assert_in_range(all, own ? 15 : 8, 60);
}

static void cut_short_anywhere_it_goes_on(void **state)
{
    swap_interrupted(*state, true, false);
}

static void with_remains_of_an_earlier_one(void **state)
{
    swap_interrupted(*state, true, true);
}

static void a_group_that_had_nothing_yet(void **state)
{
    swap_interrupted(*state, false, false);
}

/* A step that fails is told, and the next start goes on from there. */
static void errors_are_told_and_gone_on_from(void **state)
{
    struct group *g = *state;
    uint32_t failures = 0;
    for (uint32_t n = 1;; n++) {
        group_make(g);
        own_put(g);
        incoming_put(g);
        fails = true;
        bool ok = runs(g, n);
        bool reached = steps >= n;
        failures += !ok;
        fails = false;
        assert_true(runs(g, 0));
        is_new(g);
        is_tidy(g);
        if (!reached) break;
    }
    assert_true(failures >= 12);
}

static void damage(struct group *g, const char *name, bool cut)
{
    char path[300];
    uint64_t bytes = 0;
    snprintf(path, sizeof path, "%s/%s", g->dir, name);
    assert_int_equal(files_size(path, &bytes), 0);
    if (cut)
        assert_int_equal(files_truncate(path, bytes / 2), 0);
    else
        assert_int_equal(files_write(path, bytes / 2, slice_of("?")), 0);
}

/* Thrown away before anything was moved, however that is cut short: the group goes on with what it has. */
static void what_is_not_whole_is_thrown_away(void **state)
{
    struct group *g = *state;
    static const char *const names[] = {"incoming/ready", "incoming/store/CURRENT", "incoming/store/000009.sst",
                                        "incoming/log/0000000000000000.seg"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        for (uint32_t n = 0; n < 12; n++) {
            group_make(g);
            own_put(g);
            incoming_put(g);
            damage(g, names[i], true);
            if (n == 0 && i == 0) {
                incoming_put(g);
                damage(g, names[i], false);
            }
            runs(g, n);
            assert_true(runs(g, 0));
            is_old(g);
            is_tidy(g);
        }
        char path[300];
        group_make(g);
        own_put(g);
        incoming_put(g);
        snprintf(path, sizeof path, "%s/%s", g->dir, names[i]);
        if (i > 0) assert_int_equal(files_remove(path), 0);
        assert_true(runs(g, 0));
        if (i > 0) is_old(g);
        is_tidy(g);
    }
}

/* Once begun there is no way back: a manifest that cannot be read any more stops the start, and nothing is touched. */
static void damage_in_the_middle_of_it_is_an_error(void **state)
{
    struct group *g = *state;
    uint32_t refusals = 0;
    for (uint32_t n = 1; n < 60; n++) {
        group_make(g);
        own_put(g);
        incoming_put(g);
        if (runs(g, n)) break;
        if (!there(g, "incoming/ready")) continue;
        bool begun = !there(g, "store/CURRENT") || holds(g, "store/CURRENT", "new");
        damage(g, "incoming/ready", false);
        fails = true; /* an error is fine */
        bool ok = runs(g, 0);
        assert_int_equal(ok, !begun);
        refusals += !ok;
        fails = false;
        if (!begun) is_old(g);
    }
    assert_true(refusals >= 5);
}

static void a_path_too_long(void **state)
{
    (void)state;
    struct buf error = {0};
    char *dir = malloc(FILES_PATH_BYTES);
    assert_non_null(dir);
    memset(dir, 'x', FILES_PATH_BYTES - 1);
    dir[FILES_PATH_BYTES - 1] = '\0';
    assert_false(incoming_finish(dir, &error));
    assert_true(error.len > 0);
    buf_free(&error);
    free(dir);
}

/* ---- killed at the named points */

static int killed_at(const char *point, const char *dir)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setenv("QUEEN_CRASH_AT", point, 1);
        execl("/proc/self/exe", "test_snapshot_incoming", "finish", dir, NULL);
        _exit(9);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
}

static void killed_at_each_point_it_goes_on(void **state)
{
    struct group *g = *state;
    static const char *const points[] = {"incoming-old-out:1", "incoming-new-in:1",      "incoming-old-out:2",
                                         "incoming-new-in:2",  "incoming-configuration", "incoming-ready-gone",
                                         "incoming-removed"};
    for (size_t i = 0; i < sizeof points / sizeof points[0]; i++) {
        group_make(g);
        own_put(g);
        incoming_put(g);
        assert_int_equal(killed_at(points[i], g->dir), SIGKILL);
        for (size_t k = i; k < sizeof points / sizeof points[0]; k++) killed_at(points[k], g->dir);
        assert_int_equal(killed_at("none", g->dir), 0);
        is_new(g);
        is_tidy(g);
        assert_false(there(g, "incoming"));
    }
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "finish") == 0) {
        struct buf error = {0};
        return incoming_finish(argv[2], &error) ? 0 : 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nothing_fetched_nothing_done, setup, teardown),
        cmocka_unit_test_setup_teardown(cut_short_anywhere_it_goes_on, setup, teardown),
        cmocka_unit_test_setup_teardown(with_remains_of_an_earlier_one, setup, teardown),
        cmocka_unit_test_setup_teardown(a_group_that_had_nothing_yet, setup, teardown),
        cmocka_unit_test_setup_teardown(errors_are_told_and_gone_on_from, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_not_whole_is_thrown_away, setup, teardown),
        cmocka_unit_test_setup_teardown(damage_in_the_middle_of_it_is_an_error, setup, teardown),
        cmocka_unit_test(a_path_too_long),
        cmocka_unit_test_setup_teardown(killed_at_each_point_it_goes_on, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
