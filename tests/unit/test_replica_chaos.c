/* Three and five replicas under everything at once: lost and late frames, cuts, closed and opened nodes, stored states and kept tails,
 * changes of leader and of the members; and all of them killed at any moment. What was applied anywhere stays, and is the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <sys/wait.h>

#include "test_replica_rig.h"

struct promise {
    uint64_t index, term;
    uint32_t crc;
};

enum {
    PROMISES_MAX = 1 << 17,
    CHAOS_ENTRIES = 50,         /* so many must come about in the middle of it, */
    CHAOS_LONGEST_US = 60000000 /* in whatever time: a machine may be slow, but a group that stands still has failed */
};

struct fixture {
    struct rig *rig;
    struct promise *promises; /* applied by the leader that took them */
    uint32_t count;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    f->promises = malloc(PROMISES_MAX * sizeof *f->promises);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    if (f->rig != NULL) rig_free(f->rig);
    free(f->promises);
    free(f);
    return 0;
}

static void cuts_end(struct rig *g)
{
    for (uint64_t a = 1; a <= RIG_NODES_MAX; a++) {
        for (uint64_t b = 1; b <= RIG_NODES_MAX; b++) g->links[a][b].cut = false;
    }
}

static uint32_t running(struct rig *g)
{
    uint32_t n = 0;
    for (uint64_t id = 1; id <= g->count; id++) n += rig_of(g, id) != NULL;
    return n;
}

/* What a node has stored trails what it has applied. */
static void store_some(struct rig *g, uint64_t id)
{
    struct replica *r = rig_of(g, id);
    if (r == NULL || r->applied <= r->stored) return;
    uint64_t index = r->stored + 1 + rig_random(g) % (r->applied - r->stored);
    rig_store(g, id, index);
}

static void mischief(struct rig *g)
{
    uint64_t id = 1 + rig_random(g) % g->count, other = 1 + rig_random(g) % g->count;
    switch (rig_random(g) % 12) {
    case 0:
    case 1:
        if (rig_of(g, id) != NULL) rig_close(g, id);
        break;
    case 2:
    case 3:
    case 4:
        if (rig_of(g, id) == NULL) rig_open(g, id);
        break;
    case 5:
        rig_isolate(g, id, true);
        break;
    case 6:
        if (id != other) rig_cut(g, id, other, true);
        break;
    case 7:
        if (id != other) g->links[id][other].cut = true; /* one way */
        break;
    case 8:
    case 9:
        cuts_end(g);
        break;
    case 10:
        if (rig_of(g, id) != NULL) replica_transfer(rig_of(g, id), 0);
        break;
    default:
        store_some(g, id);
    }
}

static void load(struct rig *g)
{
    for (uint64_t id = 1; id <= g->count; id++) {
        struct replica *r = rig_of(g, id);
        if (r == NULL || replica_role(r) != REPLICA_LEADER || replica_in_flight_entries(r) > 200) continue;
        uint64_t many = rig_random(g) % 6;
        for (uint64_t i = 0; i < many; i++) rig_submit(g, id, 8 + (uint32_t)(rig_random(g) % (i == 0 ? 60000 : 900)));
    }
}

/* The history has what anybody applied; at the end everybody has applied all of it, whatever was stored and restarted. */
static void chaos(struct fixture *f, uint32_t nodes, uint64_t seed, int64_t us)
{
    struct rig *g = f->rig = rig_new(nodes);
    g->random += seed * 7919;
    g->keep_bytes = 64 << 20; /* nobody falls so far behind that he needs a state */
    g->election_ms = 100 * RIG_SLOW;
    g->heartbeat_ms = 20 * RIG_SLOW;
    g->delay_us_min = 50;
    g->delay_us_max = 3000;
    g->drop_per_mille = 20;
    rig_open_all(g);
    int64_t begin_us = clock_mono_us();
    for (int64_t past_us = 0; past_us < us || (g->history_last <= CHAOS_ENTRIES && past_us < CHAOS_LONGEST_US);
         past_us = clock_mono_us() - begin_us) {
        load(g);
        rig_pass(g, 3000);
        if (rig_random(g) % 12 == 0) mischief(g);
    }
    uint64_t entries = g->history_last;
    cuts_end(g);
    g->drop_per_mille = 0;
    g->delay_us_max = 200;
    for (uint64_t id = 1; id <= g->count; id++) {
        if (rig_of(g, id) == NULL) rig_open(g, id);
    }
    assert_int_equal(running(g), nodes);
    rig_lead_wait(g);
    rig_wait(g, rig_leader(g) != 0 && rig_submit(g, rig_leader(g), 100) > 0);
    rig_agree(g);
    for (uint64_t id = 1; id <= g->count; id++) assert_true(g->nodes[id].seen_index >= g->history_last);
    print_message("%u nodes: %llu entries, term %llu\n", nodes, (unsigned long long)g->history_last,
                  (unsigned long long)replica_term(rig_of(g, 1)));
    assert_true(entries > CHAOS_ENTRIES);
    assert_int_equal(g->failures, 0);
    rig_free(g);
    f->rig = NULL;
}

static void test_three_in_chaos(void **state)
{
    for (uint64_t seed = 1; seed <= 2; seed++) chaos(*state, 3, seed, 1500000);
}

static void test_five_in_chaos(void **state)
{
    chaos(*state, 5, 3, 2000000);
}

/* ---- all of them killed */

/* In the child: runs the nodes and tells what the leader has applied. */
static void child_run(struct rig *g, int fd)
{
    rig_open_all(g);
    uint64_t told = 0;
    for (;;) {
        uint64_t leader = rig_leader(g);
        if (leader != 0 && replica_in_flight_entries(rig_of(g, leader)) < 50)
            for (int i = 0; i < 5; i++) rig_submit(g, leader, 8 + (uint32_t)(rig_random(g) % 3000));
        rig_turn(g);
        for (; told <= g->history_last; told++) {
            const struct rig_fact *fact = &g->history[told];
            struct promise p = {.index = told, .term = fact->term, .crc = fact->crc};
            if (fact->term != 0 && write(fd, &p, sizeof p) != (ssize_t)sizeof p) _exit(9);
        }
    }
}

/* What was told must be applied, with the same term and body, after the next start. */
static void round_of_kill(struct fixture *f, uint32_t wanted, const char *crash_at)
{
    struct rig *g = f->rig;
    int fds[2], status;
    assert_int_equal(pipe(fds), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(fds[0]);
        g->random ^= (uint64_t)wanted << 20;
        if (crash_at != NULL) setenv("QUEEN_CRASH_AT", crash_at, 1);
        child_run(g, fds[1]);
    }
    close(fds[1]);
    uint32_t had = f->count;
    struct promise p;
    while (f->count < had + wanted && read(fds[0], &p, sizeof p) == (ssize_t)sizeof p) {
        assert_true(f->count < PROMISES_MAX);
        f->promises[f->count++] = p;
    }
    kill(child, SIGKILL);
    while (read(fds[0], &p, sizeof p) == (ssize_t)sizeof p) {
        assert_true(f->count < PROMISES_MAX);
        f->promises[f->count++] = p;
    }
    close(fds[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    rig_open_all(g);
    rig_lead_wait(g);
    rig_agree(g);
    for (uint32_t i = 0; i < f->count; i++) {
        const struct rig_fact *fact = &g->history[f->promises[i].index];
        assert_int_equal(fact->term, f->promises[i].term);
        assert_int_equal(fact->crc, f->promises[i].crc);
    }
    g->number += 1000000; /* bodies of the next child differ from this one's */
    for (uint64_t id = 1; id <= g->count; id++) rig_close(g, id);
}

static void test_all_killed_at_once(void **state)
{
    struct fixture *f = *state;
    f->rig = rig_new(3);
    f->rig->election_ms = 100 * RIG_SLOW;
    f->rig->heartbeat_ms = 20 * RIG_SLOW;
    for (uint32_t round = 0; round < 5; round++) round_of_kill(f, round * 150, NULL);
    assert_true(f->count > 1000);
}

#ifdef QUEEN_CRASH_POINTS
static void test_killed_at_each_point(void **state)
{
    struct fixture *f = *state;
    static const char *const points[] = {"meta-renamed", "meta-written", "log-staged",
                                         "log-written",  "log-synced",   "log-segment-created"};
    for (uint32_t p = 0; p < sizeof points / sizeof *points; p++) {
        for (int pass = 1; pass <= 13; pass += 3) { /* early ones are in the creation of the nodes */
            char at[64];
            f->rig = rig_new(3);
            f->rig->election_ms = 100 * RIG_SLOW;
            f->rig->heartbeat_ms = 20 * RIG_SLOW;
            f->count = 0;
            snprintf(at, sizeof at, "%s:%d", points[p], pass);
            round_of_kill(f, 400, at);
            rig_free(f->rig);
            f->rig = NULL;
        }
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_three_in_chaos, setup, teardown),
        cmocka_unit_test_setup_teardown(test_five_in_chaos, setup, teardown),
        cmocka_unit_test_setup_teardown(test_all_killed_at_once, setup, teardown),
#ifdef QUEEN_CRASH_POINTS
        cmocka_unit_test_setup_teardown(test_killed_at_each_point, setup, teardown),
#endif
    };
    cmocka_set_test_filter(getenv("TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
