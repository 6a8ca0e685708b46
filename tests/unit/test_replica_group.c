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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_three_elect_and_replicate, setup_three, teardown),
        cmocka_unit_test_setup_teardown(test_five_elect_and_replicate, setup_five, teardown),
        cmocka_unit_test_setup_teardown(test_a_new_leader_goes_on, setup_three, teardown),
        cmocka_unit_test_setup_teardown(test_a_tail_nobody_has_is_cut, setup_three, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
