/* Pops of messages whose bytes are no longer in memory: read by other threads while the group goes on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "test_broker_rig.h"

enum { PAYLOAD_BYTES = 3000, OLD_MESSAGES = 800, FRESH_MESSAGES = 700 };

static void payload_make(char *out, uint32_t n)
{
    int used = snprintf(out, PAYLOAD_BYTES, "\"%u ", n);
    for (int i = used; i < PAYLOAD_BYTES - 2; i++) out[i] = (char)('a' + (n + (uint32_t)i) % 26);
    out[PAYLOAD_BYTES - 2] = '"';
    out[PAYLOAD_BYTES - 1] = '\0';
}

/* Messages first..first+count-1, one push each, many at a time. */
static void fill(struct rig *r, const char *queue, const char *lane, uint32_t first, uint32_t count)
{
    enum { AT_ONCE = 50 };
    struct shot *shots[AT_ONCE];
    char payload[PAYLOAD_BYTES];
    for (uint32_t at = 0; at < count; at += AT_ONCE) {
        uint32_t n = count - at < AT_ONCE ? count - at : AT_ONCE;
        for (uint32_t i = 0; i < n; i++) {
            payload_make(payload, first + at + i);
            shots[i] = push_start(r, queue, lane, payload);
        }
        for (uint32_t i = 0; i < n; i++) {
            assert_int_equal(shot_wait(shots[i]), CALL_OK);
            shot_free(shots[i]);
        }
    }
}

static int cold_setup(void **state)
{
    rig_setup(state);
    struct rig *r = *state;
    rig_close(r);
    r->config.cache_bytes = 0; /* only what is being written */
    rig_open(r);
    fill(r, "old", "a", 0, OLD_MESSAGES);
    fill(r, "fresh", "x", 0, FRESH_MESSAGES); /* pushes the first ones out of memory */
    return 0;
}

#define with_cold(f) cmocka_unit_test_setup_teardown(f, cold_setup, rig_teardown)

static uint64_t cold_reads(struct rig *r)
{
    return rig_numbers(r).metrics.log.cold_reads;
}

static void assert_messages(const struct shot *s, uint32_t first, uint32_t count)
{
    char payload[PAYLOAD_BYTES];
    assert_int_equal(s->call.result.pop.messages, count);
    for (uint32_t i = 0; i < count; i++) {
        payload_make(payload, first + i);
        assert_payload(s, i, payload);
    }
}

static struct pop_wish old_wish(uint32_t batch)
{
    return (struct pop_wish){.queue = "old", .lane = "a", .group = "g", .batch = batch, .lease_ms = 60000};
}

static bool is_reading(void *arg)
{
    const struct shot *s = arg;
    must(!s->done);
    return s->call.state == CALL_STATE_READING;
}

struct reading_act {
    struct shot *s;
    void (*act)(struct shot *s);
};

static bool reading_run(void *arg)
{
    struct reading_act *a = arg;
    if (!is_reading(a->s)) return false;
    a->act(a->s);
    return true;
}

/* In the turn in which it began to read: whatever the reader does, nothing of it has been heard yet. */
static void while_reading(struct shot *s, void (*act)(struct shot *s))
{
    struct reading_act a = {.s = s, .act = act};
    assert_true(rig_run(s->rig, reading_run, &a, 5000));
}

/* ---- content ------------------------------------------------------------------------------------------------------ */

static void test_old_messages_come_whole_and_in_order(void **state)
{
    struct rig *r = *state;
    uint64_t before = cold_reads(r);
    for (uint32_t at = 0; at < OLD_MESSAGES; at += 100) {
        struct shot *s = pop_start(r, old_wish(100));
        assert_int_equal(shot_wait(s), CALL_OK);
        assert_messages(s, at, 100);
        ack(r, s);
        shot_free(s);
    }
    uint64_t reads = cold_reads(r) - before;
    assert_in_range(reads, 3, 40); /* 2.4 MB: in large pieces, not message by message */
    assert_int_equal(r->broker->cold.given_count, 0);
    assert_int_equal(r->broker->cold.given_bytes, 0);
}

static void test_small_batches_find_what_was_read_ahead(void **state)
{
    struct rig *r = *state;
    uint64_t before = cold_reads(r);
    for (uint32_t at = 0; at < 300; at++) {
        struct shot *s = pop_start(r, old_wish(1));
        assert_int_equal(shot_wait(s), CALL_OK);
        assert_messages(s, at, 1);
        ack(r, s);
        shot_free(s);
    }
    assert_in_range(cold_reads(r) - before, 2, 20);
}

static void test_ranges_leave_memory_when_they_are_not_used(void **state)
{
    struct rig *r = *state;
    struct slice block;
    struct shot *s = pop_start(r, old_wish(1));
    assert_int_equal(shot_wait(s), CALL_OK);
    const struct delivery_piece *d = &s->call.result.pop.claims[0].pieces[0];
    struct cold_range *range = cold_cache_find(r->broker->cold.cache, d->where, d->block_bytes, &block);
    assert_non_null(range);
    cold_range_drop(range);
    cold_idle(r->broker);
    range = cold_cache_find(r->broker->cold.cache, d->where, d->block_bytes, &block);
    assert_non_null(range); /* used a moment ago */
    cold_range_drop(range);
    cold_cache_age(r->broker->cold.cache, INT64_MAX);
    assert_null(cold_cache_find(r->broker->cold.cache, d->where, d->block_bytes, &block));
    assert_messages(s, 0, 1); /* the call's own reference */
    shot_free(s);
}

static void test_other_calls_are_answered_while_one_reads(void **state)
{
    struct rig *r = *state;
    struct shot *slow = pop_start(r, old_wish(OLD_MESSAGES));
    assert_true(rig_run(r, is_reading, slow, 5000));
    push(r, "other", "b", "\"1\"");
    assert_int_equal(shot_wait(slow), CALL_OK);
    assert_messages(slow, 0, OLD_MESSAGES);
    shot_free(slow);
}

static void test_many_calls_read_at_once(void **state)
{
    enum { GROUPS = 24, BATCH = 200 };
    struct rig *r = *state;
    struct shot *shots[GROUPS];
    char names[GROUPS][8];
    for (uint32_t i = 0; i < GROUPS; i++) {
        struct pop_wish wish = old_wish(BATCH);
        snprintf(names[i], sizeof names[i], "g%u", i);
        wish.group = names[i];
        shots[i] = pop_start(r, wish);
    }
    for (uint32_t i = 0; i < GROUPS; i++) {
        assert_int_equal(shot_wait(shots[i]), CALL_OK);
        assert_messages(shots[i], 0, BATCH);
        shot_free(shots[i]);
    }
    assert_int_equal(r->broker->cold.calls.count, 0);
}

static void test_a_steps_next_reads_too(void **state)
{
    struct rig *r = *state;
    push(r, "in", "a", "\"in\"");
    struct shot *in = pop_start(r, (struct pop_wish){.queue = "in", .group = "g", .lease_ms = 60000});
    assert_int_equal(shot_wait(in), CALL_OK);
    struct shot *s = step_start(r, (struct step_wish){.acks = in, .next = old_wish(50)});
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_non_null(s->call.step);
    assert_messages(s, 0, 50);
    shot_free(s);
    shot_free(in);
}

/* ---- damage ------------------------------------------------------------------------------------------------------- */

static void byte_flip(struct rig *r, uint64_t where)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/log/%016llx.seg", r->config.dir,
             (unsigned long long)(where & ~(r->config.segment_bytes - 1)));
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    off_t at = (off_t)(where & (r->config.segment_bytes - 1));
    unsigned char byte;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x20;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void test_damage_is_found_and_the_claims_go_back(void **state)
{
    struct rig *r = *state;
    struct shot *s = pop_start(r, old_wish(10));
    assert_int_equal(shot_wait(s), CALL_OK);
    struct delivery_piece bad = s->call.result.pop.claims[0].pieces[5];
    ack(r, s);
    shot_free(s);
    s = pop_start(r, (struct pop_wish){.queue = "old", .lane = "a", .group = "h", .batch = 5, .lease_ms = 60000});
    assert_int_equal(shot_wait(s), CALL_OK);
    ack(r, s);
    shot_free(s);
    cold_cache_age(r->broker->cold.cache, INT64_MAX);
    byte_flip(r, bad.where + bad.block_bytes / 2);
    for (int i = 0; i < 3; i++) { /* the lease is given back each time, so it is tried again */
        s = pop_start(r, (struct pop_wish){.queue = "old", .lane = "a", .group = "h", .batch = 5, .lease_ms = 60000});
        assert_int_equal(shot_wait(s), CALL_DAMAGED);
        assert_null(s->call.pieces);
        shot_free(s);
        rig_pass(r, 20);
    }
    byte_flip(r, bad.where + bad.block_bytes / 2); /* repaired, while the bad bytes may be in a range: read once more */
    s = pop_start(r, (struct pop_wish){.queue = "old", .lane = "a", .group = "h", .batch = 5, .lease_ms = 60000});
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_messages(s, 5, 5);
    shot_free(s);
}

static void test_only_what_is_damaged_is_a_fault(void **state)
{
    struct rig *r = *state;
    struct shot *s = pop_start(r, old_wish(3));
    assert_int_equal(shot_wait(s), CALL_OK);
    const struct delivery_piece *d = s->call.result.pop.claims[0].pieces;
    struct cold_piece pieces[3];
    for (uint32_t i = 0; i < 3; i++)
        pieces[i] = (struct cold_piece){.where = d[2 - i].where, .bytes = d[2 - i].block_bytes, .slot = i};
    pieces[1].where += r->config.segment_bytes * 1000; /* there is no such segment */
    struct cold_job j = {.places = r->broker->places,
                         .cache = r->broker->cold.cache,
                         .segment_bytes = r->config.segment_bytes,
                         .count = 3,
                         .pieces = pieces};
    cold_job_read(&j);
    assert_int_equal(pieces[0].slot, 2); /* in order of positions */
    assert_null(pieces[0].fault);
    assert_int_equal(pieces[1].slot, 0);
    assert_null(pieces[1].fault);
    assert_non_null(pieces[2].fault);
    assert_int_equal(pieces[0].block.len, d[0].block_bytes);
    for (int i = 0; i < 3; i++)
        if (pieces[i].range != NULL) cold_range_drop(pieces[i].range);
    shot_free(s);
}

/* ---- leaving ------------------------------------------------------------------------------------------------------ */

static void expect_again(struct rig *r, uint32_t count)
{
    struct pop_wish wish = old_wish(count);
    wish.wait_ms = 5000;
    struct shot *s = pop_start(r, wish);
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_messages(s, 0, count); /* claims that were handed back, long before the lease would have ended */
    shot_free(s);
}

static void test_a_caller_that_leaves_hands_its_claims_back(void **state)
{
    struct rig *r = *state;
    struct shot *s = pop_start(r, old_wish(300));
    while_reading(s, shot_leave);
    assert_int_equal(shot_wait(s), CALL_CANCELLED);
    assert_null(s->call.pieces);
    shot_free(s); /* while its bytes may still be read */
    expect_again(r, 300);
}

static void late_twice(struct shot *s)
{
    struct broker *b = s->rig->broker;
    heap_put(&b->deadlines, &s->call.due, 0, s->call.arrival);
    inbox_deadline_fire(&b->deadline_timer);
    assert_int_equal(s->call.state, CALL_STATE_READING); /* its time is up, but its bytes are near */
    assert_true(s->call.late);
    heap_put(&b->deadlines, &s->call.due, 0, s->call.arrival);
    inbox_deadline_fire(&b->deadline_timer);
}

static void test_a_read_that_takes_too_long_times_out(void **state)
{
    struct rig *r = *state;
    struct shot *s = pop_start(r, old_wish(300));
    while_reading(s, late_twice);
    assert_int_equal(shot_wait(s), CALL_TIMEOUT);
    shot_free(s);
    expect_again(r, 300);
}

static void test_an_auto_ack_pop_waits_for_its_bytes(void **state)
{
    struct rig *r = *state;
    struct pop_wish wish = old_wish(300);
    wish.auto_ack = true;
    struct shot *s = pop_start(r, wish);
    while_reading(s, late_twice);
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_messages(s, 0, 300);
    shot_free(s);
}

static void leadership_ends(struct shot *s)
{
    inbox_end(s->rig->broker, CALL_NO_LEADER, CALL_UNKNOWN);
    assert_int_equal(s->call.state, CALL_STATE_READING);
}

static void test_without_leadership_the_read_goes_on(void **state)
{
    struct rig *r = *state;
    struct shot *s = pop_start(r, old_wish(100));
    while_reading(s, leadership_ends);
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_messages(s, 0, 100);
    shot_free(s);
}

static void stop_begins(struct shot *s)
{
    broker_stop(s->rig->broker, rig_stopped, s->rig);
}

static void test_a_graceful_stop_waits_for_reads(void **state)
{
    struct rig *r = *state;
    struct shot *s = pop_start(r, old_wish(300));
    while_reading(s, stop_begins);
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_messages(s, 0, 300);
    shot_free(s);
    assert_true(rig_run(r, rig_is_stopped, r, 15000));
    broker_close(r->broker);
    loop_free(r->loop);
    rig_open(r);
}

static void stop_at_once(struct shot *s)
{
    struct broker *b = s->rig->broker;
    stop_begins(s);
    inbox_end(b, CALL_NO_LEADER, CALL_UNKNOWN);
}

static void test_a_stop_that_cannot_wait_answers_readers(void **state)
{
    struct rig *r = *state;
    struct shot *s = pop_start(r, old_wish(300));
    while_reading(s, stop_at_once);
    assert_int_equal(shot_wait(s), CALL_UNKNOWN);
    shot_free(s);
    assert_true(rig_run(r, rig_is_stopped, r, 15000));
    broker_close(r->broker);
    loop_free(r->loop);
    rig_open(r);
    expect_again(r, 300);
}

static void test_a_broker_closes_while_it_reads(void **state)
{
    struct rig *r = *state;
    struct shot *s = pop_start(r, old_wish(OLD_MESSAGES));
    assert_true(rig_run(r, is_reading, s, 5000));
    broker_cancel(r->broker, &s->call);
    assert_int_equal(s->call.state, CALL_STATE_DONE);
    calls_go_home(r->broker);
    assert_true(s->done);
    assert_non_null(r->broker->cold.first); /* for nobody */
    shot_free(s);
    rig_abandon(r);
    rig_open(r);
}

/* ---- limits ------------------------------------------------------------------------------------------------------- */

static void test_the_log_keeps_what_is_being_read(void **state)
{
    struct rig *r = *state;
    struct shot *s = pop_start(r, old_wish(100));
    assert_true(rig_run(r, is_reading, s, 5000));
    const struct delivery_piece *d = s->call.result.pop.claims[0].pieces;
    uint64_t segment = r->config.segment_bytes, first = d->where / segment * segment;
    assert_true(cold_wants(r->broker, first, first + segment));
    assert_false(cold_wants(r->broker, first + 100 * segment, first + 101 * segment));
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_false(cold_wants(r->broker, first, first + segment));
    shot_free(s);
}

struct waiting_reads {
    struct shot **shots;
    uint32_t count;
    uint64_t most_bytes;
    bool waited;
};

static bool all_done(void *arg)
{
    struct waiting_reads *w = arg;
    const struct cold_reads *k = &w->shots[0]->rig->broker->cold;
    bool done = true;
    if (k->given_bytes > w->most_bytes) w->most_bytes = k->given_bytes;
    if (k->waiting != NULL) w->waited = true;
    for (uint32_t i = 0; i < w->count; i++) done = done && w->shots[i]->done;
    return done;
}

static void test_reads_under_way_are_bounded(void **state)
{
    enum { GROUPS = 48 };
    struct rig *r = *state;
    struct shot *shots[GROUPS];
    char names[GROUPS][8];
    for (uint32_t i = 0; i < GROUPS; i++) {
        struct pop_wish wish = old_wish(OLD_MESSAGES);
        snprintf(names[i], sizeof names[i], "g%u", i);
        wish.group = names[i];
        shots[i] = pop_start(r, wish); /* 2.4 MB each, 115 MB in all */
    }
    struct waiting_reads w = {.shots = shots, .count = GROUPS};
    assert_true(rig_run(r, all_done, &w, 20000));
    assert_true(w.waited);
    assert_true(w.most_bytes <= r->config.memory.cold_reads);
    for (uint32_t i = 0; i < GROUPS; i++) {
        assert_int_equal(shots[i]->call.outcome, CALL_OK);
        assert_messages(shots[i], 0, OLD_MESSAGES);
        shot_free(shots[i]);
    }
}

/* ---- the readers -------------------------------------------------------------------------------------------------- */

struct held_job {
    struct cold_job job;
    struct held *held;
    pthread_mutex_t *gate; /* NULL: does not wait */
    uint32_t turn;         /* the how-many-th that began */
};

struct held {
    struct loop *loop;
    pthread_mutex_t gates[COLD_THREADS_MAX];
    atomic_uint begun;
    uint32_t left;
};

static void held_run(struct cold_job *j)
{
    struct held_job *h = outer(j, struct held_job, job);
    h->turn = atomic_fetch_add(&h->held->begun, 1) + 1;
    if (h->gate == NULL) return;
    pthread_mutex_lock(h->gate);
    pthread_mutex_unlock(h->gate);
}

static void held_back(struct loop_task *t)
{
    struct held *h = outer(t, struct held_job, job.task)->held;
    if (--h->left == 0) loop_stop(h->loop);
    if (h->left == COLD_THREADS_MAX - 1) {
        for (int i = 1; i < COLD_THREADS_MAX; i++) pthread_mutex_unlock(&h->gates[i]);
    }
}

/* All threads are at work, and then one goes on: of what waits the urgent ones go first, in order. */
static void test_urgent_jobs_go_first(void **state)
{
    enum { WAITING = 5, JOBS = COLD_THREADS_MAX + WAITING };
    static const bool urgent[WAITING] = {false, true, false, true, true};
    static const uint32_t turns[WAITING] = {4, 1, 5, 2, 3};
    (void)state;
    struct held h = {.loop = loop_new(), .left = JOBS};
    struct cold_reader *reader = cold_reader_new(h.loop);
    struct held_job jobs[JOBS] = {0};
    for (int i = 0; i < COLD_THREADS_MAX; i++) {
        pthread_mutex_init(&h.gates[i], NULL);
        pthread_mutex_lock(&h.gates[i]);
    }
    for (uint32_t i = 0; i < JOBS; i++) {
        bool busy = i < COLD_THREADS_MAX;
        jobs[i] = (struct held_job){.held = &h, .gate = busy ? &h.gates[i] : NULL};
        jobs[i].job =
            (struct cold_job){.task.run = held_back, .run = held_run, .urgent = !busy && urgent[i - COLD_THREADS_MAX]};
        cold_reader_submit(reader, &jobs[i].job);
        while (busy && atomic_load(&h.begun) <= i) usleep(100);
    }
    pthread_mutex_unlock(&h.gates[0]);
    loop_run(h.loop);
    for (uint32_t i = 0; i < WAITING; i++) assert_int_equal(jobs[COLD_THREADS_MAX + i].turn, COLD_THREADS_MAX + turns[i]);
    cold_reader_free(reader);
    loop_free(h.loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_cold(test_old_messages_come_whole_and_in_order),
        with_cold(test_small_batches_find_what_was_read_ahead),
        with_cold(test_ranges_leave_memory_when_they_are_not_used),
        with_cold(test_other_calls_are_answered_while_one_reads),
        with_cold(test_many_calls_read_at_once),
        with_cold(test_a_steps_next_reads_too),
        with_cold(test_damage_is_found_and_the_claims_go_back),
        with_cold(test_only_what_is_damaged_is_a_fault),
        with_cold(test_a_caller_that_leaves_hands_its_claims_back),
        with_cold(test_a_read_that_takes_too_long_times_out),
        with_cold(test_an_auto_ack_pop_waits_for_its_bytes),
        with_cold(test_without_leadership_the_read_goes_on),
        with_cold(test_a_graceful_stop_waits_for_reads),
        with_cold(test_a_stop_that_cannot_wait_answers_readers),
        with_cold(test_a_broker_closes_while_it_reads),
        with_cold(test_the_log_keeps_what_is_being_read),
        with_cold(test_reads_under_way_are_bounded),
        cmocka_unit_test(test_urgent_jobs_go_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
