/* A writer, readers of every kind, trim, idle and statistics at once. Meant to run under a thread sanitizer as well. */
#include <pthread.h>
#include <sched.h>

#include "log_test.h"

enum { READERS = 3, ENTRIES = 6000, PLACES = 8192, BODY_MAX = 60000 };

struct place {
    _Atomic uint64_t index, pos, len;
};

struct shared {
    struct fixture f;
    struct place places[PLACES];  /* the entry i is at i % PLACES */
    _Atomic uint64_t last, first; /* entries that can be read */
    _Atomic uint64_t viewed, read, gone;
    atomic_bool stop;
};

static uint64_t next_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static void read_one(struct shared *s, uint64_t index, char *room, bool pinned)
{
    struct place *p = &s->places[index % PLACES];
    uint64_t pos = atomic_load(&p->pos), len = atomic_load(&p->len);
    if (atomic_load(&p->index) != index) return;
    struct slice view;
    struct log_pin pin;
    if (pinned && log_view(s->f.log, pos, len, &view, &pin)) {
        bool right = body_right(view.at, view.len, index, 7);
        log_unpin(s->f.log, pin);
        if (!right) abort();
        atomic_fetch_add(&s->viewed, 1);
        return;
    }
    enum log_status status = log_read(s->f.log, pos, len, room);
    if (status == LOG_OK) {
        if (!body_right(room, len, index, 7)) abort();
        atomic_fetch_add(&s->read, 1);
    } else { /* only if it was trimmed meanwhile */
        if (status != LOG_DAMAGED || index >= atomic_load(&s->first)) abort();
        atomic_fetch_add(&s->gone, 1);
    }
}

static void *reader(void *arg)
{
    struct shared *s = arg;
    uint64_t seed = 0x1234567 + (uint64_t)(uintptr_t)&seed, count = 0;
    char *room = malloc(BODY_MAX);
    if (room == NULL) abort();
    while (!atomic_load(&s->stop)) {
        uint64_t last = atomic_load(&s->last), first = atomic_load(&s->first);
        if (last < first + 2) continue;
        uint64_t near = last - next_random(&seed) % (last - first > 20 ? 20 : last - first);
        uint64_t far = first + next_random(&seed) % (last - first);
        count++;
        read_one(s, count % 2 == 0 ? near : far, room, count % 3 != 0);
        struct log_stats stats;
        if (count % 64 == 0) log_stats(s->f.log, &stats);
        log_synced_index(s->f.log);
        log_end_pos(s->f.log);
    }
    free(room);
    return NULL;
}

static void everything_at_once(void **state)
{
    (void)state;
    static struct shared s;
    fixture_new(&s.f, MIB);
    s.f.o.cache_bytes_max = 2 * MIB;
    s.f.o.cache_age_us = 20000;
    fixture_open(&s.f);
    atomic_store(&s.first, 1);
    pthread_t threads[READERS];
    for (int i = 0; i < READERS; i++) assert_int_equal(pthread_create(&threads[i], NULL, reader, &s), 0);
    uint64_t seed = 99;
    for (uint64_t i = 1; i <= ENTRIES; i++) {
        size_t len = next_random(&seed) % 10 == 0 ? next_random(&seed) % BODY_MAX : next_random(&seed) % 2000;
        struct place *p = &s.places[i % PLACES];
        uint64_t pos = put(&s.f, i, 7, len);
        atomic_store(&p->pos, pos);
        atomic_store(&p->len, len);
        atomic_store(&p->index, i);
        atomic_store(&s.last, i);
        if (next_random(&seed) % 4 == 0) log_flush(s.f.log);
        if (i % 50 == 0) log_idle(s.f.log);
        if (i % 500 == 0) {
            wait_synced(&s.f);
            assert_int_equal(log_synced_index(s.f.log), i);
            uint64_t keep = i > 1500 ? i - 1500 : 1;
            atomic_store(&s.first, keep);
            log_trim(s.f.log, atomic_load(&s.places[keep % PLACES].pos), NULL, NULL);
        }
    }
    wait_synced(&s.f);
    atomic_store(&s.stop, true);
    for (int i = 0; i < READERS; i++) pthread_join(threads[i], NULL);
    assert_true(atomic_load(&s.viewed) > 100);
    assert_true(atomic_load(&s.read) > 20);
    uint64_t first = atomic_load(&s.first);
    s.f.o.first_index = first;
    s.f.o.first_pos = atomic_load(&s.places[first % PLACES].pos);
    fixture_close(&s.f);
    fixture_open(&s.f);
    check_entries(&s.f, first, ENTRIES);
    fixture_free(&s.f);
}

/* Many small group commits, each waited for: no wake-up gets lost. */
static void no_wake_is_lost(void **state)
{
    (void)state;
    struct fixture f;
    fixture_new(&f, MIB);
    fixture_open(&f);
    int64_t until = clock_mono_us() + 120 * 1000000;
    for (uint64_t i = 1; i <= 3000; i++) {
        put(&f, i, 1, 64);
        log_flush(f.log);
        while (log_synced_index(f.log) != i) {
            assert_true(clock_mono_us() < until);
            sched_yield();
        }
    }
    fixture_free(&f);
}

/* Without a chance for the keeper to be ahead: opens, writes through several segments, closes at once. */
static void hasty_lives(void **state)
{
    (void)state;
    struct fixture f;
    fixture_new(&f, MIB);
    uint64_t index = 0, seed = 5;
    for (int life = 0; life < 40; life++) {
        fixture_open(&f);
        assert_int_equal(log_synced_index(f.log), index);
        for (int i = 0; i < 6; i++) {
            put(&f, ++index, 7, next_random(&seed) % (900 << 10));
            if (i % 2 == 0) log_flush(f.log);
        }
        fixture_close(&f);
    }
    fixture_open(&f);
    check_entries(&f, 1, index);
    fixture_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_at_once),
        cmocka_unit_test(no_wake_is_lost),
        cmocka_unit_test(hasty_lives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
