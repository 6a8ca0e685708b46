/* Several members: elections, replication, leaders that come and go, what is confirmed and what is noticed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "test_replica_rig.h"

static int setup_three(void **state)
{
    *state = rig_new(3);
    return 0;
}

static int setup_five(void **state)
{
    *state = rig_new(5);
    return 0;
}

static int teardown(void **state)
{
    rig_free(*state);
    return 0;
}

static uint64_t other_than(struct rig *g, uint64_t a, uint64_t b)
{
    for (uint64_t id = 1; id <= g->count; id++) {
        if (id != a && id != b) return id;
    }
    return 0;
}

/* ---- electing and replicating */

static void test_three_elect_and_replicate(void **state)
{
    struct rig *g = *state;
    rig_open_all(g);
    uint64_t leader = rig_lead_wait(g);
    for (uint32_t i = 0; i < 500; i++) assert_true(rig_submit(g, leader, 8 + i % 900) > 0);
    rig_agree(g);
    for (uint64_t id = 1; id <= 3; id++) {
        assert_int_equal(g->nodes[id].applies, 500);
        assert_int_equal(g->nodes[id].arrivals, id == leader ? 0 : 500);
        assert_int_equal(replica_leader(rig_of(g, id)), leader);
        assert_int_equal(g->nodes[id].leader, leader);
        assert_int_equal(g->nodes[id].leader_term, replica_term(rig_of(g, leader)));
        assert_int_equal(replica_in_flight_entries(rig_of(g, id)), 0);
        assert_int_equal(replica_in_flight_bytes(rig_of(g, id)), 0);
    }
    struct replica_members members;
    replica_members(rig_of(g, leader), &members);
    assert_int_equal(members.count, 3);
    assert_true(members.committed);
    assert_int_equal(members.index, 1);
    assert_int_equal(members.at[1].id, 2);
    assert_string_equal(members.at[1].address, "address of 2");
}

static void test_five_elect_and_replicate(void **state)
{
    struct rig *g = *state;
    rig_open_all(g);
    uint64_t leader = rig_lead_wait(g);
    for (uint32_t i = 0; i < 200; i++) assert_true(rig_submit(g, leader, 100) > 0);
    rig_agree(g);
    rig_isolate(g, other_than(g, leader, 0), true);
    rig_isolate(g, other_than(g, leader, other_than(g, leader, 0)), true);
    uint64_t index = rig_submit(g, leader, 100);
    rig_wait(g, replica_applied_index(rig_of(g, leader)) >= index); /* three of five are enough */
}

static void test_a_new_leader_goes_on(void **state)
{
    struct rig *g = *state;
    rig_open_all(g);
    for (int round = 0; round < 6; round++) {
        uint64_t leader = rig_lead_wait(g), term = replica_term(rig_of(g, leader));
        for (uint32_t i = 0; i < 50; i++) rig_submit(g, leader, 64);
        rig_agree(g);
        rig_close(g, leader);
        uint64_t next = rig_lead_wait(g);
        assert_true(replica_term(rig_of(g, next)) > term);
        assert_true(rig_submit(g, next, 64) > 0);
        rig_open(g, leader);
        rig_agree(g);
    }
}

/* An old leader's entries that nobody else has are cut when it returns; the others' take their place. */
static void test_a_tail_nobody_has_is_cut(void **state)
{
    struct rig *g = *state;
    rig_open_all(g);
    uint64_t old = rig_lead_wait(g);
    for (uint32_t i = 0; i < 20; i++) rig_submit(g, old, 64);
    rig_agree(g);
    uint64_t common = replica_last_index(rig_of(g, old));
    rig_isolate(g, old, true);
    for (uint32_t i = 0; i < 30; i++) assert_true(rig_submit(g, old, 5000) > 0);
    rig_wait(g, rig_of(g, old)->raft.last_stored == common + 30);
    rig_wait(g, rig_leader(g) != 0 && rig_leader(g) != old);
    uint64_t leader = rig_leader(g);
    rig_wait(g, g->nodes[old].losts == 1);
    for (uint32_t i = 0; i < 10; i++) assert_true(rig_submit(g, leader, 64) > 0);
    rig_isolate(g, old, false);
    rig_agree(g);
    assert_int_equal(replica_last_index(rig_of(g, old)), replica_last_index(rig_of(g, leader)));
    assert_int_equal(replica_in_flight_bytes(rig_of(g, old)), 0);
    /* And so they lie on its disk. */
    rig_close(g, old);
    rig_open(g, old);
    rig_agree(g);
}

/* ---- notices */

static uint64_t frames(struct rig *g, uint64_t from, uint64_t to, enum frame_kind kind)
{
    return g->links[from][to].kinds[kind];
}

/* No heartbeat for seconds, yet the others apply at once. */
static void test_what_is_committed_is_told_at_once(void **state)
{
    struct rig *g = *state;
    rig_open_all(g);
    for (uint64_t id = 1; id <= 3; id++) rig_wait(g, rig_leader(g) != 0);
    uint64_t leader = rig_leader(g);
    rig_agree(g);
    raft_set_heartbeat_timeout(&rig_of(g, leader)->raft, 100000);
    raft_set_election_timeout(&rig_of(g, leader)->raft, 100000);
    for (uint64_t id = 1; id <= 3; id++) raft_set_election_timeout(&rig_of(g, id)->raft, 100000);
    rig_pass(g, 50000);
    uint64_t a = other_than(g, leader, 0), b = other_than(g, leader, a);
    uint64_t notices = frames(g, leader, a, FRAME_COMMIT) + frames(g, leader, b, FRAME_COMMIT);
    for (int i = 0; i < 20; i++) {
        int64_t begun_us = clock_mono_us();
        uint64_t index = rig_submit(g, leader, 100);
        rig_wait(g, rig_applied(g, index));
        assert_in_range(clock_mono_us() - begun_us, 0, 1000000);
    }
    rig_pass(g, 20000);
    notices = frames(g, leader, a, FRAME_COMMIT) + frames(g, leader, b, FRAME_COMMIT) - notices;
    assert_in_range(notices, 20, 40);
    uint64_t sent = g->links[leader][a].sent + g->links[leader][b].sent;
    rig_pass(g, 100000);
    assert_int_equal(g->links[leader][a].sent + g->links[leader][b].sent, sent); /* nothing more to say */
}

/* ---- confirmation */

struct question {
    struct replica_confirm confirm;
    int oks, fails;
    uint64_t index;
};

static void on_answer(struct replica_confirm *c, bool ok, uint64_t index)
{
    struct question *q = (struct question *)(void *)c;
    if (ok) {
        q->oks++;
        q->index = index;
    } else {
        q->fails++;
    }
}

static void ask(struct rig *g, uint64_t id, struct question *q)
{
    *q = (struct question){.confirm.done = on_answer};
    replica_confirm(rig_of(g, id), &q->confirm);
}

static void test_a_leader_confirms_with_a_majority(void **state)
{
    struct rig *g = *state;
    enum { MANY = 100 };
    struct question q[MANY];
    rig_open_all(g);
    uint64_t leader = rig_lead_wait(g), a = other_than(g, leader, 0), b = other_than(g, leader, a);
    uint64_t index = rig_submit(g, leader, 100);
    rig_wait(g, replica_applied_index(rig_of(g, leader)) >= index);
    uint64_t probes = frames(g, leader, a, FRAME_PROBE);
    for (int i = 0; i < MANY; i++) ask(g, leader, &q[i]);
    for (int i = 0; i < MANY; i++) assert_int_equal(q[i].oks + q[i].fails, 0); /* nobody was asked yet */
    rig_wait(g, q[MANY - 1].oks == 1);
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(q[i].oks, 1);
        assert_int_equal(q[i].fails, 0);
        assert_true(q[i].index >= index);
    }
    assert_in_range(frames(g, leader, a, FRAME_PROBE) - probes, 1, 3); /* one round, repeated with a heartbeat at most */
    ask(g, a, &q[0]);
    assert_int_equal(q[0].fails, 1);
    rig_isolate(g, b, true); /* one of the others is enough */
    ask(g, leader, &q[1]);
    rig_wait(g, q[1].oks == 1);
}

static void test_an_old_leader_confirms_nothing(void **state)
{
    struct rig *g = *state;
    struct question q[3];
    rig_open_all(g);
    for (int round = 0; round < 3; round++) {
        uint64_t old = rig_lead_wait(g);
        rig_agree(g);
        rig_isolate(g, old, true);
        ask(g, old, &q[0]);
        rig_wait(g, rig_leader(g) != 0 && rig_leader(g) != old);
        uint64_t leader = rig_leader(g), index = rig_submit(g, leader, 100);
        rig_wait(g, replica_applied_index(rig_of(g, leader)) >= index);
        bool leads = replica_role(rig_of(g, old)) == REPLICA_LEADER;
        ask(g, old, &q[1]);
        if (!leads) assert_int_equal(q[1].fails, 1);
        rig_wait(g, q[0].fails == 1 && q[1].fails == 1);
        assert_int_equal(q[0].oks + q[1].oks, 0);
        ask(g, leader, &q[2]);
        rig_wait(g, q[2].oks == 1);
        assert_true(q[2].index >= index);
        rig_isolate(g, old, false);
        rig_agree(g);
    }
}

/* A new leader knows what is committed only once an entry of its own term is; the answer waits for it. */
static void test_a_new_leader_confirms_all_that_was_committed(void **state)
{
    struct rig *g = *state;
    struct question q;
    rig_open_all(g);
    uint64_t old = rig_lead_wait(g);
    for (int round = 0; round < 5; round++) {
        uint64_t index = 0;
        for (int i = 0; i < 10; i++) index = rig_submit(g, old, 100);
        rig_wait(g, replica_applied_index(rig_of(g, old)) >= index);
        rig_close(g, old);
        uint64_t leader = 0;
        while (leader == 0) { /* before it has applied anything of its own */
            for (uint64_t id = 1; id <= 3; id++) {
                struct replica *r = rig_of(g, id);
                if (r != NULL && raft_state(&r->raft) == RAFT_LEADER) leader = id;
            }
            if (leader == 0) rig_turn(g);
        }
        ask(g, leader, &q);
        rig_wait(g, q.oks + q.fails == 1);
        if (q.oks == 1) assert_true(q.index >= index);
        rig_open(g, old);
        rig_agree(g);
        old = rig_lead_wait(g);
    }
}

/* ---- large entries */

static void test_large_entries_do_not_unseat_a_leader(void **state)
{
    struct rig *g = *state;
    g->election_ms = 300 * RIG_SLOW;
    g->heartbeat_ms = 50 * RIG_SLOW;
    g->bytes_s = 400 << 20;
    g->window_bytes = 8 << 20;
    rig_open_all(g);
    uint64_t leader = rig_lead_wait(g), term = replica_term(rig_of(g, leader));
    rig_agree(g);
    static const struct {
        uint32_t len, count;
    } kinds[] = {{64 << 10, 60}, {1 << 20, 12}, {RIG_SLOW == 1 ? 96 << 20 : 16 << 20, 1}};
    for (int k = 0; k < 3; k++) {
        for (uint32_t i = 0; i < kinds[k].count; i++) {
            uint64_t index = rig_submit(g, leader, kinds[k].len);
            assert_true(index > 0);
            if (k == 2) rig_wait(g, rig_applied(g, index));
        }
        rig_agree(g);
        assert_int_equal(rig_leader(g), leader);
        assert_int_equal(replica_term(rig_of(g, leader)), term);
    }
}

/* What is under way to one member stays within the window, also when it reads slowly; the other goes on meanwhile. */
static void test_the_window_bounds_what_is_under_way(void **state)
{
    struct rig *g = *state;
    g->window_bytes = 1 << 20;
    rig_open_all(g);
    uint64_t leader = rig_lead_wait(g), slow = other_than(g, leader, 0);
    rig_agree(g);
    g->links[leader][slow].bytes = 0;
    g->links[slow][leader].cut = true; /* it gets everything and its answers are lost */
    uint64_t index = 0;
    for (int i = 0; i < 400; i++) index = rig_submit(g, leader, 32 << 10);
    rig_wait(g, replica_applied_index(rig_of(g, leader)) >= index);
    assert_in_range(g->links[leader][slow].bytes, 1 << 20, 12 << 20); /* one frame may exceed it */
    g->links[slow][leader].cut = false;
    rig_agree(g);
    assert_true(g->links[leader][slow].bytes >= 400 * (32 << 10));
    assert_true(g->links[leader][slow].bytes < 3 * 400 * (32 << 10));
}

static void test_lost_frames_are_sent_again(void **state)
{
    struct rig *g = *state;
    g->drop_per_mille = 50;
    g->delay_us_min = 100;
    g->delay_us_max = 2000;
    rig_open_all(g);
    for (int round = 0; round < 20; round++) {
        uint64_t leader = rig_lead_wait(g);
        for (int i = 0; i < 40; i++) rig_submit(g, leader, 2000);
        rig_pass(g, 20000);
    }
    g->drop_per_mille = 0;
    rig_agree(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_three_elect_and_replicate, setup_three, teardown),
        cmocka_unit_test_setup_teardown(test_five_elect_and_replicate, setup_five, teardown),
        cmocka_unit_test_setup_teardown(test_a_new_leader_goes_on, setup_three, teardown),
        cmocka_unit_test_setup_teardown(test_a_tail_nobody_has_is_cut, setup_three, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_committed_is_told_at_once, setup_three, teardown),
        cmocka_unit_test_setup_teardown(test_a_leader_confirms_with_a_majority, setup_three, teardown),
        cmocka_unit_test_setup_teardown(test_an_old_leader_confirms_nothing, setup_three, teardown),
        cmocka_unit_test_setup_teardown(test_a_new_leader_confirms_all_that_was_committed, setup_three, teardown),
        cmocka_unit_test_setup_teardown(test_large_entries_do_not_unseat_a_leader, setup_three, teardown),
        cmocka_unit_test_setup_teardown(test_the_window_bounds_what_is_under_way, setup_three, teardown),
        cmocka_unit_test_setup_teardown(test_lost_frames_are_sent_again, setup_three, teardown),
    };
    cmocka_set_test_filter(getenv("TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
