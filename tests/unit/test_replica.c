/* One raft group with one voter: starts, order, restarts, kills, and directories that must be refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "replica/replica.h"

enum { WAIT_US_MAX = 20 * 1000 * 1000, SEGMENT_BYTES = 1 << 20, ENTRIES_MAX = 1 << 17 };

struct applied {
    uint64_t index, term, number, pos;
    uint32_t len;
};

struct fixture {
    char dir[64];
    struct loop *loop;
    struct loop_hook hook;
    struct loop_timer late;
    uint32_t want;
    struct replica *replica;
    uint64_t applied_index, applied_term, applied_pos; /* what the next open says the store holds */
    struct applied *seen;
    uint32_t count;
    uint32_t batches, leads;
    int failures;
    bool order_broken;
    uint32_t apply_before_lead;
};

/* A body: its number, then as many bytes of a pattern as its length asks. */
static void body_fill(char *at, uint64_t number, uint32_t len)
{
    memcpy(at, &number, sizeof number);
    for (uint32_t i = sizeof number; i < len; i++) at[i] = (char)(number * 31 + i);
}

static void on_apply(void *ctx, uint64_t index, uint64_t term, uint64_t pos, struct slice body)
{
    struct fixture *f = ctx;
    assert_true(f->count < ENTRIES_MAX);
    struct applied *a = &f->seen[f->count];
    *a = (struct applied){.index = index, .term = term, .pos = pos, .len = (uint32_t)body.len};
    assert_true(body.len >= sizeof a->number);
    memcpy(&a->number, body.at, sizeof a->number);
    for (size_t i = sizeof a->number; i < body.len; i++) {
        if (body.at[i] != (char)(a->number * 31 + i)) f->order_broken = true;
    }
    uint64_t before = f->count > 0 ? f->seen[f->count - 1].index : f->applied_index;
    if (index <= before || index > before + 2) f->order_broken = true; /* entry 1 is raft's own */
    f->count++;
    if (f->leads == 0) f->apply_before_lead++;
}

static void on_batch(void *ctx)
{
    ((struct fixture *)ctx)->batches++;
}

static void on_role(void *ctx, enum replica_role role)
{
    if (role == REPLICA_LEADER) ((struct fixture *)ctx)->leads++;
}

static void on_failed(void *ctx, const char *what)
{
    (void)what;
    ((struct fixture *)ctx)->failures++;
}

static bool on_turn(struct loop_hook *hook)
{
    struct fixture *f = (struct fixture *)(void *)((char *)hook - offsetof(struct fixture, hook));
    if (f->count >= f->want && f->leads > 0) loop_stop(f->loop);
    return false;
}

static void on_late(struct loop_timer *timer)
{
    loop_stop(((struct fixture *)(void *)((char *)timer - offsetof(struct fixture, late)))->loop);
}

static enum log_status open_try(struct fixture *f, uint64_t node_id, struct buf *error)
{
    f->loop = loop_new();
    f->count = f->batches = f->leads = f->apply_before_lead = 0;
    struct replica_options o = {.dir = f->dir,
                                .loop = f->loop,
                                .segment_bytes = SEGMENT_BYTES,
                                .cache_bytes_max = SEGMENT_BYTES,
                                .cache_age_us = 1000000,
                                .node_id = node_id,
                                .applied_index = f->applied_index,
                                .applied_term = f->applied_term,
                                .applied_pos = f->applied_pos,
                                .ctx = f,
                                .apply = on_apply,
                                .applied_batch = on_batch,
                                .role = on_role,
                                .failed = on_failed};
    f->hook.run = on_turn;
    f->late = (struct loop_timer){.fire = on_late};
    loop_hook_add(f->loop, &f->hook);
    return replica_open(&f->replica, &o, error);
}

static void close_it(struct fixture *f)
{
    replica_close(f->replica);
    loop_free(f->loop);
    f->replica = NULL;
    f->loop = NULL;
}

/* ---- loop until something holds */

/* Runs the loop until so many entries were applied and the replica leads. */
static void wait_for(struct fixture *f, uint32_t count)
{
    f->want = count;
    loop_timer_set(f->loop, &f->late, clock_mono_us() + WAIT_US_MAX);
    loop_run(f->loop);
    loop_timer_cancel(f->loop, &f->late);
    assert_true(f->count >= count && f->leads > 0);
}

static void open_it(struct fixture *f)
{
    struct buf error = {0};
    enum log_status status = open_try(f, 0, &error);
    if (status != LOG_OK) fail_msg("%.*s", (int)error.len, error.at);
    buf_free(&error);
    wait_for(f, 0);
}

static uint64_t submit(struct fixture *f, uint64_t number, uint32_t len)
{
    body_fill(replica_reserve(f->replica, len), number, len);
    uint64_t index = replica_submit(f->replica, len);
    assert_true(index > 0);
    return index;
}

static void refused(struct fixture *f, const char *naming)
{
    struct buf error = {0};
    assert_int_equal(open_try(f, 0, &error), LOG_DAMAGED);
    assert_null(f->replica);
    buf_byte(&error, '\0');
    if (strstr(error.at, naming) == NULL) fail_msg("'%s' does not name %s", error.at, naming);
    buf_free(&error);
    loop_free(f->loop);
    f->loop = NULL;
}

static int unlink_each(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    f->seen = malloc(ENTRIES_MAX * sizeof *f->seen);
    snprintf(f->dir, sizeof f->dir, "/tmp/test_replica.XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    if (f->replica != NULL) close_it(f);
    nftw(f->dir, unlink_each, 16, FTW_DEPTH | FTW_PHYS);
    free(f->seen);
    free(f);
    return 0;
}

static bool nobody_wants(void *ctx, uint64_t first_pos, uint64_t end_pos)
{
    (void)ctx;
    (void)first_pos;
    (void)end_pos;
    return false;
}

static char *path_of(struct fixture *f, const char *name)
{
    static char path[160];
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    return path;
}

static void file_flip(struct fixture *f, const char *name, off_t offset)
{
    int fd = open(path_of(f, name), O_RDWR);
    assert_true(fd >= 0);
    char c;
    assert_int_equal(pread(fd, &c, 1, offset), 1);
    c = (char)(c ^ 0x40);
    assert_int_equal(pwrite(fd, &c, 1, offset), 1);
    close(fd);
}

/* ---- tests */

static void test_a_new_node_leads(void **state)
{
    struct fixture *f = *state;
    struct buf error = {0};
    assert_int_equal(open_try(f, 0, &error), LOG_OK);
    assert_int_equal(replica_role(f->replica), REPLICA_STARTING);
    wait_for(f, 0);
    assert_int_equal(replica_role(f->replica), REPLICA_LEADER);
    assert_int_equal(f->leads, 1);
    assert_int_equal(f->count, 0); /* entry 1 is the replica's own */
    assert_int_equal(replica_last_index(f->replica), 1);
    assert_int_equal(replica_commit_index(f->replica), 1);
    assert_int_equal(replica_in_flight_entries(f->replica), 0);
    assert_int_equal(access(path_of(f, "identity"), R_OK), 0);
    assert_int_equal(access(path_of(f, "configuration"), R_OK), 0);
    buf_free(&error);
}

static void test_nothing_is_taken_before_it_leads(void **state)
{
    struct fixture *f = *state;
    struct buf error = {0};
    assert_int_equal(open_try(f, 0, &error), LOG_OK);
    body_fill(replica_reserve(f->replica, 16), 1, 16);
    assert_int_equal(replica_submit(f->replica, 16), 0);
    wait_for(f, 0);
    assert_int_equal(submit(f, 1, 16), 2);
    wait_for(f, 1);
    buf_free(&error);
}

static void test_entries_are_applied_in_order(void **state)
{
    struct fixture *f = *state;
    open_it(f);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < 5000; i++) {
        uint32_t len = 8 + i % 700;
        assert_int_equal(submit(f, i, len), i + 2);
        bytes += len;
    }
    assert_int_equal(replica_in_flight_entries(f->replica), 5000);
    assert_int_equal(replica_in_flight_bytes(f->replica), bytes);
    assert_int_equal(f->count, 0); /* nothing is applied before it is durable */
    wait_for(f, 5000);
    assert_false(f->order_broken);
    assert_int_equal(f->count, 5000);
    for (uint32_t i = 0; i < 5000; i++) {
        assert_int_equal(f->seen[i].index, i + 2);
        assert_int_equal(f->seen[i].number, i);
        assert_int_equal(f->seen[i].term, replica_term(f->replica));
    }
    assert_true(f->batches > 0);
    assert_int_equal(replica_in_flight_entries(f->replica), 0);
    assert_int_equal(replica_in_flight_bytes(f->replica), 0);
    assert_int_equal(replica_commit_index(f->replica), 5001);
}

static void test_a_body_may_be_larger_than_a_segment(void **state)
{
    struct fixture *f = *state;
    open_it(f);
    submit(f, 1, 3 * SEGMENT_BYTES);
    submit(f, 2, 100);
    wait_for(f, 2);
    close_it(f);
    open_it(f);
    assert_int_equal(f->count, 2);
    assert_int_equal(f->seen[0].len, 3 * SEGMENT_BYTES);
    assert_false(f->order_broken);
}

static void test_a_reservation_may_be_given_up(void **state)
{
    struct fixture *f = *state;
    open_it(f);
    memset(replica_reserve(f->replica, 5000), 'x', 5000);
    body_fill(replica_reserve(f->replica, 5000), 7, 20); /* and be larger than what is submitted */
    replica_submit(f->replica, 20);
    wait_for(f, 1);
    assert_int_equal(f->seen[0].number, 7);
    assert_int_equal(f->seen[0].len, 20);
}

/* ---- restarts */

static void test_restart_replays_what_the_store_does_not_have(void **state)
{
    struct fixture *f = *state;
    open_it(f);
    for (uint32_t i = 0; i < 3000; i++) submit(f, i, 64);
    close_it(f); /* nothing was waited for */
    open_it(f);
    assert_int_equal(f->count, 3000);
    assert_int_equal(f->apply_before_lead, 3000);
    assert_false(f->order_broken);
    uint64_t terms = replica_term(f->replica);
    f->applied_index = f->seen[1999].index;
    f->applied_term = f->seen[1999].term;
    f->applied_pos = replica_scan_pos(f->replica, f->applied_index);
    close_it(f);
    open_it(f);
    assert_int_equal(f->count, 1000);
    assert_int_equal(f->seen[0].index, f->applied_index + 1);
    assert_int_equal(f->seen[0].number, 2000);
    assert_false(f->order_broken);
    assert_true(replica_term(f->replica) > terms);
}

static void test_restart_with_all_in_the_store(void **state)
{
    struct fixture *f = *state;
    open_it(f);
    for (uint32_t i = 0; i < 100; i++) submit(f, i, 64);
    wait_for(f, 100);
    f->applied_index = 101;
    f->applied_term = replica_term(f->replica);
    f->applied_pos = replica_scan_pos(f->replica, 101);
    close_it(f);
    open_it(f);
    assert_int_equal(f->count, 0);
    assert_int_equal(replica_last_index(f->replica), 101);
    assert_int_equal(submit(f, 1, 64), 102);
    wait_for(f, 1);
    replica_stored(f->replica, 101, nobody_wants, f); /* what it started with: nothing to do */
    replica_stored(f->replica, 102, nobody_wants, f);
    assert_int_equal(submit(f, 2, 64), 103);
    wait_for(f, 2);
}

static void test_each_start_has_its_own_term(void **state)
{
    struct fixture *f = *state;
    uint64_t term = 0;
    for (uint32_t round = 0; round < 30; round++) {
        open_it(f);
        assert_int_equal(f->count, round);
        assert_true(replica_term(f->replica) > term);
        term = replica_term(f->replica);
        submit(f, round, 64);
        wait_for(f, round + 1);
        assert_int_equal(f->seen[round].term, term);
        close_it(f);
    }
}

static unsigned files_in(struct fixture *f)
{
    struct log_stats s;
    log_stats(replica_log(f->replica), &s);
    return (unsigned)s.files;
}

/* Stores and restarts over many segments: the scan finds what is wanted, and old segments go. */
static void test_stored_entries_are_trimmed(void **state)
{
    struct fixture *f = *state;
    open_it(f);
    unsigned most = 0;
    uint64_t number = 0;
    for (int round = 0; round < 60; round++) {
        for (int i = 0; i < 40; i++) submit(f, number++, 10000);
        wait_for(f, f->count + 40);
        uint64_t end = log_end_pos(replica_log(f->replica)), last = replica_last_index(f->replica), back = 5;
        uint64_t index = last - back, pos = replica_scan_pos(f->replica, index);
        assert_true(end - pos < SEGMENT_BYTES + 40 * 10100);
        if (round % 3 == 0) replica_stored(f->replica, index, nobody_wants, f);
        if (files_in(f) > most) most = files_in(f);
        if (round % 7 == 6) {
            f->applied_index = index;
            f->applied_term = f->seen[f->count - 1 - back].term;
            f->applied_pos = pos;
            close_it(f);
            open_it(f);
            assert_int_equal(f->count, back);
            assert_int_equal(f->seen[back - 1].number, number - 1);
            assert_false(f->order_broken);
        }
    }
    assert_in_range(most, 2, 8);
}

/* ---- refusals */

static void fill(struct fixture *f, uint32_t entries)
{
    open_it(f);
    for (uint32_t i = 0; i < entries; i++) submit(f, i, 64);
    wait_for(f, entries);
    close_it(f);
}

static void test_one_torn_meta_file_is_survived(void **state)
{
    struct fixture *f = *state;
    fill(f, 10);
    for (int i = 0; i < 8; i++) {
        const char *name = i % 2 == 0 ? "meta-0" : "meta-1";
        if (i < 4) {
            file_flip(f, name, 30);
        } else {
            assert_int_equal(truncate(path_of(f, name), i < 6 ? 100 : 0), 0);
        }
        open_it(f);
        assert_int_equal(f->count, 10);
        close_it(f);
        open_it(f); /* both are whole again */
        close_it(f);
    }
}

static void test_both_meta_files_torn_is_damage(void **state)
{
    struct fixture *f = *state;
    fill(f, 10);
    file_flip(f, "meta-0", 40);
    file_flip(f, "meta-1", 40);
    refused(f, "meta-0");
    file_flip(f, "meta-1", 40);
    open_it(f);
    close_it(f);
    remove(path_of(f, "meta-0"));
    remove(path_of(f, "meta-1"));
    refused(f, "meta-0");
}

static void test_an_old_term_is_raised_by_the_log(void **state)
{
    struct fixture *f = *state;
    fill(f, 1);
    char keep[2][4096];
    for (int i = 0; i < 2; i++) {
        int fd = open(path_of(f, i == 0 ? "meta-0" : "meta-1"), O_RDONLY);
        assert_int_equal(read(fd, keep[i], sizeof keep[i]), (ssize_t)sizeof keep[i]);
        close(fd);
    }
    uint64_t term = 0;
    for (int i = 0; i < 4; i++) {
        open_it(f);
        submit(f, 2, 64);
        wait_for(f, f->count + 1);
        term = replica_term(f->replica);
        close_it(f);
    }
    for (int i = 0; i < 2; i++) {
        int fd = open(path_of(f, i == 0 ? "meta-0" : "meta-1"), O_WRONLY);
        assert_int_equal(write(fd, keep[i], sizeof keep[i]), (ssize_t)sizeof keep[i]);
        close(fd);
    }
    open_it(f);
    assert_int_equal(f->count, 5);
    assert_true(replica_term(f->replica) > term);
}

static void test_identity(void **state)
{
    struct fixture *f = *state;
    fill(f, 10);
    struct buf error = {0};
    assert_int_equal(open_try(f, 2, &error), LOG_DAMAGED); /* another node's directory */
    buf_byte(&error, '\0');
    assert_non_null(strstr(error.at, "identity"));
    buf_free(&error);
    loop_free(f->loop);
    assert_int_equal(open_try(f, 1, &error), LOG_OK);
    wait_for(f, 10);
    close_it(f);
    file_flip(f, "identity", 30);
    refused(f, "identity");
    file_flip(f, "identity", 30);
    open_it(f);
    close_it(f);
    char away[160];
    snprintf(away, sizeof away, "%s", path_of(f, "identity.away"));
    assert_int_equal(rename(path_of(f, "identity"), away), 0);
    refused(f, "identity");
    /* A new node's identity in the place of ours. */
    struct fixture other = *f;
    snprintf(other.dir, sizeof other.dir, "/tmp/test_replica.XXXXXX");
    assert_non_null(mkdtemp(other.dir));
    fill(&other, 1);
    char from[160];
    snprintf(from, sizeof from, "%s", path_of(&other, "identity"));
    assert_int_equal(rename(from, path_of(f, "identity")), 0);
    refused(f, "identity");
    nftw(other.dir, unlink_each, 16, FTW_DEPTH | FTW_PHYS);
}

static void test_a_damaged_or_missing_configuration_is_refused(void **state)
{
    struct fixture *f = *state;
    fill(f, 10);
    file_flip(f, "configuration", 34);
    refused(f, "configuration");
    remove(path_of(f, "configuration"));
    refused(f, "configuration");
}

static void test_store_and_log_must_belong_together(void **state)
{
    struct fixture *f = *state;
    fill(f, 10);
    f->applied_index = 11;
    f->applied_term = 99;
    refused(f, "log");
    f->applied_index = 12; /* the store is ahead of the log */
    f->applied_term = 2;
    refused(f, "log");
    f->applied_index = f->applied_term = 0;
    open_it(f);
    assert_int_equal(f->count, 10);
}

static void test_a_lost_log_is_damage(void **state)
{
    struct fixture *f = *state;
    fill(f, 10);
    nftw(path_of(f, "log"), unlink_each, 16, FTW_DEPTH | FTW_PHYS);
    refused(f, "log");
}

static void test_a_lost_store_is_damage(void **state)
{
    struct fixture *f = *state;
    open_it(f);
    for (uint32_t i = 0; i < 500; i++) submit(f, i, 10000);
    wait_for(f, 500);
    replica_stored(f->replica, 400, nobody_wants, f);
    uint64_t until = (uint64_t)clock_mono_us() + WAIT_US_MAX;
    while (access(path_of(f, "log/0000000000000000.seg"), F_OK) == 0 && (uint64_t)clock_mono_us() < until) usleep(1000);
    close_it(f);
    refused(f, "log"); /* the next open says the store has nothing, but the log's beginning is gone */
}

/* Creation cut short after each of its files. */
static void test_creation_goes_on_where_it_was_cut_short(void **state)
{
    struct fixture *f = *state;
    static const char *const kept[][3] = {{"identity"}, {"identity", "configuration"}, {"configuration", "log"}};
    for (int i = 0; i < 2; i++) {
        open_it(f);
        close_it(f);
        bool conf = kept[i][1] != NULL;
        remove(path_of(f, "meta-0"));
        remove(path_of(f, "meta-1"));
        if (!conf) remove(path_of(f, "configuration"));
        nftw(path_of(f, "log"), unlink_each, 16, FTW_DEPTH | FTW_PHYS);
        open_it(f);
        assert_int_equal(submit(f, 1, 8), 2);
        wait_for(f, 1);
        close_it(f);
    }
}

/* ---- kill */

/* Submits numbers, several in flight, and tells through the pipe each that was applied. */
static void child_run(struct fixture *f, int fd, uint64_t number)
{
    open_it(f);
    uint32_t told = f->count;
    for (;;) {
        uint32_t many = 1 + (uint32_t)(number % 9);
        for (uint32_t i = 0; i < many; i++) {
            submit(f, number, 8 + (uint32_t)(number * 97 % 3000));
            number++;
        }
        wait_for(f, f->count + 1);
        for (; told < f->count; told++) {
            if (write(fd, &f->seen[told].number, sizeof(uint64_t)) != (ssize_t)sizeof(uint64_t)) _exit(9);
        }
    }
}

static void test_kill_loses_nothing_acknowledged(void **state)
{
    struct fixture *f = *state;
    uint64_t acked = 0, next = 0; /* numbers below `acked` were told */
    for (int round = 0; round < 20; round++) {
        int fds[2];
        assert_int_equal(pipe(fds), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            close(fds[0]);
            child_run(f, fds[1], next);
        }
        close(fds[1]);
        uint64_t number, want = acked + 50 + (uint64_t)round * 17;
        while (acked < want && read(fds[0], &number, sizeof number) == (ssize_t)sizeof number) acked = number + 1;
        kill(child, SIGKILL);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        while (read(fds[0], &number, sizeof number) == (ssize_t)sizeof number) acked = number + 1;
        close(fds[0]);
        open_it(f);
        assert_false(f->order_broken);
        assert_true(f->count >= acked);
        /* What was applied once is there again, in the same order, and nothing twice. */
        for (uint32_t i = 0; i < f->count; i++) assert_int_equal(f->seen[i].number, i);
        next = acked = f->count;
        close_it(f);
    }
    assert_true(acked > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_new_node_leads, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nothing_is_taken_before_it_leads, setup, teardown),
        cmocka_unit_test_setup_teardown(test_entries_are_applied_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_body_may_be_larger_than_a_segment, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_reservation_may_be_given_up, setup, teardown),
        cmocka_unit_test_setup_teardown(test_restart_replays_what_the_store_does_not_have, setup, teardown),
        cmocka_unit_test_setup_teardown(test_restart_with_all_in_the_store, setup, teardown),
        cmocka_unit_test_setup_teardown(test_each_start_has_its_own_term, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stored_entries_are_trimmed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_one_torn_meta_file_is_survived, setup, teardown),
        cmocka_unit_test_setup_teardown(test_both_meta_files_torn_is_damage, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_old_term_is_raised_by_the_log, setup, teardown),
        cmocka_unit_test_setup_teardown(test_identity, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_damaged_or_missing_configuration_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_store_and_log_must_belong_together, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_lost_log_is_damage, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_lost_store_is_damage, setup, teardown),
        cmocka_unit_test_setup_teardown(test_creation_goes_on_where_it_was_cut_short, setup, teardown),
        cmocka_unit_test_setup_teardown(test_kill_loses_nothing_acknowledged, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
