/* The replica's parts: entries of its own that meet an open reservation, the ring, the marks, and creation killed at any point. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "replica/replica_inner.h"

enum { WAIT_US_MAX = 20 * 1000 * 1000, SEEN_MAX = 100 };

struct fixture {
    char dir[64];
    struct loop *loop;
    struct replica *replica;
    struct loop_hook hook;
    struct loop_timer timer;
    uint64_t want, submit_in_apply;
    char seen[SEEN_MAX][32];
    uint64_t index[SEEN_MAX];
    uint32_t count;
    bool leads;
};

static void text_submit(struct fixture *f, const char *text);

static void on_apply(void *ctx, uint64_t index, uint64_t term, uint64_t pos, struct slice body)
{
    struct fixture *f = ctx;
    (void)term;
    (void)pos;
    assert_true(f->count < SEEN_MAX && body.len < 32);
    memcpy(f->seen[f->count], body.at, body.len);
    f->seen[f->count][body.len] = '\0';
    f->index[f->count++] = index;
    if (f->submit_in_apply > 0) {
        f->submit_in_apply--;
        text_submit(f, "nested");
    }
}

static void on_role(void *ctx, enum replica_role role)
{
    ((struct fixture *)ctx)->leads = role == REPLICA_LEADER;
}

static void on_failed(void *ctx, const char *what)
{
    (void)ctx;
    fail_msg("%s", what);
}

static bool on_turn(struct loop_hook *hook)
{
    struct fixture *f = (struct fixture *)(void *)((char *)hook - offsetof(struct fixture, hook));
    if (f->leads && f->replica->applied >= f->want) loop_stop(f->loop);
    return false;
}

static void on_late(struct loop_timer *timer)
{
    loop_stop(((struct fixture *)(void *)((char *)timer - offsetof(struct fixture, timer)))->loop);
}

static void wait_applied(struct fixture *f, uint64_t index)
{
    f->want = index;
    loop_timer_set(f->loop, &f->timer, clock_mono_us() + WAIT_US_MAX);
    loop_run(f->loop);
    loop_timer_cancel(f->loop, &f->timer);
    assert_true(f->leads && f->replica->applied >= index);
}

static void open_it(struct fixture *f)
{
    struct buf error = {0};
    f->loop = loop_new();
    f->count = 0;
    f->leads = false;
    f->hook.run = on_turn;
    f->timer = (struct loop_timer){.fire = on_late};
    struct replica_options o = {.dir = f->dir,
                                .loop = f->loop,
                                .segment_bytes = 1 << 20,
                                .cache_bytes_max = 1 << 20,
                                .ctx = f,
                                .apply = on_apply,
                                .role = on_role,
                                .failed = on_failed};
    enum log_status status = replica_open(&f->replica, &o, &error);
    if (status != LOG_OK) fail_msg("%.*s", (int)error.len, error.at);
    buf_free(&error);
    loop_hook_add(f->loop, &f->hook);
    wait_applied(f, 1);
}

static void close_it(struct fixture *f)
{
    replica_close(f->replica);
    loop_free(f->loop);
    f->replica = NULL;
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    snprintf(f->dir, sizeof f->dir, "/tmp/test_replica_steps.XXXXXX");
    *state = f;
    return mkdtemp(f->dir) == NULL;
}

static int unlink_each(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    if (f->replica != NULL) close_it(f);
    nftw(f->dir, unlink_each, 16, FTW_DEPTH | FTW_PHYS);
    free(f);
    return 0;
}

static void text_submit(struct fixture *f, const char *text)
{
    memcpy(replica_reserve(f->replica, strlen(text)), text, strlen(text));
    assert_true(replica_submit(f->replica, strlen(text)) > 0);
}

static void seen_check(struct fixture *f, uint32_t n, const char *text, uint64_t index)
{
    assert_true(n < f->count);
    assert_string_equal(f->seen[n], text);
    assert_int_equal(f->index[n], index);
}

/* ---- an entry of raft's own while the caller fills a body */

static void test_own_entry_without_a_reservation(void **state)
{
    struct fixture *f = *state;
    open_it(f);
    text_submit(f, "a");
    assert_int_equal(step_submit_own(f->replica, RAFT_BARRIER, slice_of("barrier!")), 3);
    text_submit(f, "b");
    wait_applied(f, 4);
    seen_check(f, 0, "a", 2);
    seen_check(f, 1, "b", 4);
}

static void test_own_entry_keeps_the_reservation(void **state)
{
    struct fixture *f = *state;
    open_it(f);
    char *at = replica_reserve(f->replica, 20);
    memcpy(at, "half", 4);
    assert_int_equal(step_submit_own(f->replica, RAFT_BARRIER, slice_of("barrier!")), 2);
    assert_int_equal(step_submit_own(f->replica, RAFT_BARRIER, slice_of("another")), 3);
    memcpy(at + 4, " more", 5);
    assert_int_equal(replica_submit(f->replica, 9), 4);
    text_submit(f, "next");
    wait_applied(f, 5);
    seen_check(f, 0, "half more", 4);
    seen_check(f, 1, "next", 5);
    close_it(f);
    open_it(f); /* and so they lie in the log */
    wait_applied(f, 5);
    assert_int_equal(f->count, 2);
    seen_check(f, 0, "half more", 4);
    seen_check(f, 1, "next", 5);
}

static void test_own_entry_and_a_forgotten_reservation(void **state)
{
    struct fixture *f = *state;
    open_it(f);
    memcpy(replica_reserve(f->replica, 20), "never", 5);
    assert_int_equal(step_submit_own(f->replica, RAFT_BARRIER, slice_of("barrier!")), 2);
    memcpy(replica_reserve(f->replica, 20), "kept", 4);
    assert_int_equal(replica_submit(f->replica, 4), 3);
    wait_applied(f, 3);
    assert_int_equal(f->count, 1);
    seen_check(f, 0, "kept", 3);
    memcpy(replica_reserve(f->replica, 20), "never", 5);
    assert_int_equal(step_submit_own(f->replica, RAFT_BARRIER, slice_of("barrier!")), 4);
    close_it(f); /* the barrier still goes to the log */
    open_it(f);
    wait_applied(f, 4);
    assert_int_equal(f->count, 1);
}

static void test_submitting_inside_apply(void **state)
{
    struct fixture *f = *state;
    open_it(f);
    f->submit_in_apply = 50;
    text_submit(f, "first");
    wait_applied(f, 52);
    assert_int_equal(f->count, 51);
    for (uint32_t i = 0; i < 51; i++) seen_check(f, i, i == 0 ? "first" : "nested", i + 2);
}

/* The members do not change here, but the entry, its file and raft's bookkeeping go the whole way. */
static void test_a_configuration_entry(void **state)
{
    struct fixture *f = *state;
    open_it(f);
    struct buf same = {0};
    buf_slice(&same, buf_view(&f->replica->conf.encoded));
    assert_int_equal(step_submit_own(f->replica, RAFT_CHANGE, buf_view(&same)), 2);
    text_submit(f, "after");
    wait_applied(f, 3);
    assert_int_equal(f->replica->conf.index, 2);
    assert_int_equal(f->replica->raft.configuration_committed_index, 2);
    assert_int_equal(f->replica->raft.configuration_uncommitted_index, 0);
    assert_int_equal(step_submit_own(f->replica, RAFT_CHANGE, buf_view(&same)), 4); /* the one before is done */
    wait_applied(f, 4);
    close_it(f);
    open_it(f);
    wait_applied(f, 4);
    seen_check(f, 0, "after", 3);
    assert_int_equal(f->replica->raft.configuration_committed_index, 4);
    buf_free(&same);
}

static void test_an_idle_leader_sets_no_timer(void **state)
{
    struct fixture *f = *state;
    open_it(f);
    assert_false(heap_holds(&f->replica->timer.node));
    text_submit(f, "x");
    wait_applied(f, 2);
    assert_false(heap_holds(&f->replica->timer.node));
}

static bool nobody_wants(void *ctx, uint64_t first_pos, uint64_t end_pos)
{
    (void)ctx;
    (void)first_pos;
    (void)end_pos;
    return false;
}

static void test_stored_trims_what_raft_remembers(void **state)
{
    struct fixture *f = *state;
    for (uint64_t round = 0; round < 20; round++) { /* a term each */
        open_it(f);
        f->count = 0;
        text_submit(f, "x");
        wait_applied(f, round + 2);
        if (round < 19) close_it(f);
    }
    assert_true(f->replica->marks.count >= 20);
    replica_stored(f->replica, 18, nobody_wants, f);
    assert_int_equal(f->replica->raft.trail.snapshot.index, 18);
    assert_int_equal(f->replica->raft.trail.offset, 17); /* the stored entry itself stays */
    assert_int_equal(f->replica->marks.at[0].index, 18);
    replica_stored(f->replica, 10, nobody_wants, f); /* late: nothing to do */
    assert_int_equal(f->replica->raft.trail.snapshot.index, 18);
    text_submit(f, "y");
    wait_applied(f, 22);
    replica_stored(f->replica, 22, nobody_wants, f);
    assert_int_equal(f->replica->marks.count, 1);
    text_submit(f, "z");
    wait_applied(f, 23);
}

/* ---- ring and marks */

static void test_ring(void **state)
{
    (void)state;
    struct ring r;
    ring_init(&r, 5);
    for (uint64_t i = 5; i < 5000; i++) ring_put(&r, i, &(struct slot){.pos = i * 10});
    for (uint64_t i = 5; i < 5000; i++) assert_int_equal(ring_at(&r, i)->pos, i * 10);
    ring_put(&r, 3000, &(struct slot){.pos = 1}); /* cuts */
    assert_int_equal(r.next, 3001);
    ring_put(&r, 3001, &(struct slot){.pos = 2});
    for (uint64_t i = 5; i < 3000; i++) {
        assert_int_equal(ring_at(&r, r.first)->pos, i * 10);
        ring_pop(&r);
    }
    assert_true(r.cap <= 1024);
    assert_int_equal(ring_at(&r, 3000)->pos, 1);
    assert_int_equal(ring_at(&r, 3001)->pos, 2);
    ring_free(&r);
}

static void test_marks(void **state)
{
    (void)state;
    struct marks m = {.spacing = 1000};
    uint64_t terms[2001], pos[2001];
    for (uint64_t i = 1; i <= 2000; i++) {
        terms[i] = 1 + i / 300;
        pos[i] = i * 70;
        marks_note(&m, i, terms[i], pos[i]);
    }
    for (uint64_t i = 1; i <= 2000; i++) {
        const struct mark *at = marks_find(&m, i);
        assert_true(at->index <= i && at->pos <= pos[i] && pos[i] - at->pos <= 1000);
        assert_int_equal(at->term, terms[i]);
    }
    marks_note(&m, 1500, 9, 200000); /* cut: what was after it is gone */
    assert_int_equal(marks_find(&m, 5000)->index, 1500);
    assert_int_equal(marks_find(&m, 1499)->term, terms[1499]);
    marks_trim(&m, 1450);
    assert_true(m.at[0].index <= 1450 && m.at[1].index > 1450);
    assert_int_equal(marks_find(&m, 1450)->term, terms[1450]);
    marks_free(&m);
}

static void test_marks_are_bounded(void **state)
{
    (void)state;
    struct marks m = {.spacing = 16};
    for (uint64_t i = 1; i <= 400000; i++) marks_note(&m, i, i < 200000 ? 1 : 2, i * 16);
    assert_true(m.count <= 1 << 16);
    for (uint64_t i = 1; i <= 400000; i += 997) {
        assert_true(i * 16 - marks_find(&m, i)->pos <= 2 * m.spacing);
        assert_int_equal(marks_find(&m, i)->term, i < 200000 ? 1 : 2);
    }
    marks_free(&m);
}

/* ---- killed while it is created or started */

#ifdef QUEEN_CRASH_POINTS
static void test_killed_at_any_point_of_its_start(void **state)
{
    struct fixture *f = *state;
    static const char *const points[] = {"meta-renamed", "meta-written", "log-staged",
                                         "log-written",  "log-synced",   "log-segment-created"};
    uint32_t kills = 0, entries = 0;
    for (uint32_t p = 0; p < sizeof points / sizeof *points; p++) {
        for (int pass = 1; pass <= 3; pass++) {
            for (int again = 0; again < 2; again++) {
                pid_t child = fork();
                assert_true(child >= 0);
                if (child == 0) {
                    char at[64];
                    snprintf(at, sizeof at, "%s:%d", points[p], pass);
                    setenv("QUEEN_CRASH_AT", at, 1);
                    open_it(f);
                    _exit(0);
                }
                int status;
                assert_int_equal(waitpid(child, &status, 0), child);
                if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
                    kills++;
                else
                    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
            }
            open_it(f);
            wait_applied(f, 1 + entries);
            assert_int_equal(f->count, entries);
            text_submit(f, "x");
            wait_applied(f, 2 + entries);
            close_it(f);
            entries++;
            if (pass == 3) { /* the next point meets a new directory */
                nftw(f->dir, unlink_each, 16, FTW_DEPTH | FTW_PHYS);
                entries = 0;
            }
        }
    }
    assert_in_range(kills, 8, 36);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_own_entry_without_a_reservation, setup, teardown),
        cmocka_unit_test_setup_teardown(test_own_entry_keeps_the_reservation, setup, teardown),
        cmocka_unit_test_setup_teardown(test_own_entry_and_a_forgotten_reservation, setup, teardown),
        cmocka_unit_test_setup_teardown(test_submitting_inside_apply, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_configuration_entry, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_idle_leader_sets_no_timer, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stored_trims_what_raft_remembers, setup, teardown),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_marks_are_bounded),
#ifdef QUEEN_CRASH_POINTS
        cmocka_unit_test_setup_teardown(test_killed_at_any_point_of_its_start, setup, teardown),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
