/* Members that come and go: waiting to be added, learning from the log or from a fetched state, voting, leaving; leadership that is
 * handed over; and what of the log is kept for those that come back. */
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

static int setup_two(void **state)
{
    *state = rig_new(2);
    return 0;
}

static int setup_one(void **state)
{
    *state = rig_new(1);
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

static enum replica_change_status change(struct rig *g, uint64_t leader, enum replica_change what, uint64_t id)
{
    struct replica_member m = {.id = id};
    snprintf(m.address, sizeof m.address, "address of %u", (unsigned)id);
    return replica_change(rig_of(g, leader), what, &m);
}

static bool settled(struct rig *g, uint64_t id)
{
    struct replica_members m;
    replica_members(rig_of(g, id), &m);
    return m.committed;
}

static bool is_member(struct rig *g, uint64_t at, uint64_t id, enum replica_member_role role)
{
    struct replica_members m;
    replica_members(rig_of(g, at), &m);
    for (uint32_t i = 0; i < m.count; i++) {
        if (m.at[i].id == id) return m.at[i].role == role && m.committed;
    }
    return false;
}

static void submit_many(struct rig *g, uint32_t count, uint32_t len)
{
    uint64_t leader = rig_lead_wait(g);
    for (uint32_t i = 0; i < count; i++) assert_true(rig_submit(g, leader, len) > 0);
    rig_agree(g);
}

/* ---- waiting, learning, voting */

static void test_a_node_waits_to_be_added(void **state)
{
    struct rig *g = *state;
    struct replica_members m;
    for (int round = 0; round < 3; round++) { /* also across restarts */
        rig_open(g, 4);
        rig_pass(g, 400000); /* longer than any election timeout */
        assert_int_equal(replica_role(rig_of(g, 4)), REPLICA_FOLLOWER);
        assert_int_equal(replica_last_index(rig_of(g, 4)), 0);
        assert_int_equal(replica_leader(rig_of(g, 4)), 0);
        assert_int_equal(replica_term(rig_of(g, 4)), 0);
        assert_false(replica_votes(rig_of(g, 4)));
        replica_members(rig_of(g, 4), &m);
        assert_int_equal(m.count, 0);
        rig_close(g, 4);
    }
}

static void test_added_promoted_removed(void **state)
{
    struct rig *g = *state;
    rig_open_all(g);
    submit_many(g, 100, 1000);
    rig_open(g, 4);
    uint64_t leader = rig_leader(g);
    assert_int_equal(change(g, leader, REPLICA_ADD_LEARNER, 4), REPLICA_CHANGE_BEGUN);
    assert_int_equal(change(g, leader, REPLICA_REMOVE, 4), REPLICA_CHANGE_IN_FLIGHT);
    rig_agree(g);
    rig_wait(g, is_member(g, leader, 4, REPLICA_LEARNER) && is_member(g, 4, 4, REPLICA_LEARNER));
    assert_int_equal(g->nodes[4].applies, 100);
    assert_false(replica_votes(rig_of(g, 4)));
    assert_int_equal(change(g, leader, REPLICA_ADD_LEARNER, 4), REPLICA_CHANGE_NOTHING);
    assert_int_equal(change(g, leader, REPLICA_PROMOTE, 5), REPLICA_CHANGE_NOT_A_MEMBER);
    rig_close(g, 4); /* it knows what it is at the next start */
    rig_open(g, 4);
    assert_false(replica_votes(rig_of(g, 4)));
    submit_many(g, 10, 1000);
    leader = rig_leader(g);
    assert_int_equal(change(g, leader, REPLICA_PROMOTE, 4), REPLICA_CHANGE_BEGUN);
    rig_wait(g, is_member(g, leader, 4, REPLICA_VOTER) && is_member(g, 4, 4, REPLICA_VOTER));
    assert_int_equal(change(g, leader, REPLICA_PROMOTE, 4), REPLICA_CHANGE_NOTHING);
    /* Four voters: the new one and the leader are no majority. */
    uint64_t a = other_than(g, leader, 0), b = other_than(g, leader, a);
    rig_close(g, a);
    submit_many(g, 10, 1000);
    rig_close(g, b);
    uint64_t index = rig_submit(g, leader, 100);
    rig_pass(g, 100000);
    assert_true(replica_commit_index(rig_of(g, leader)) < index);
    rig_open(g, a);
    rig_agree(g);
    rig_wait(g, rig_leader(g) != 0);
    leader = rig_leader(g);
    assert_int_equal(change(g, leader, REPLICA_REMOVE, b), REPLICA_CHANGE_BEGUN);
    rig_wait(g, settled(g, leader) && !is_member(g, leader, b, REPLICA_VOTER));
    submit_many(g, 10, 1000);
    /* The removed one does not know; it asks for votes in vain, and nobody is disturbed. */
    uint64_t term = replica_term(rig_of(g, leader));
    rig_open(g, b);
    rig_pass(g, 500000 * RIG_SLOW);
    assert_int_equal(rig_leader(g), leader);
    assert_int_equal(replica_term(rig_of(g, leader)), term);
    rig_close(g, b);
    submit_many(g, 10, 100);
}

static void test_changes_that_cannot_be(void **state)
{
    struct rig *g = *state;
    struct replica_member m = {.id = 1, .address = "elsewhere"};
    rig_open_all(g);
    uint64_t leader = rig_lead_wait(g);
    rig_agree(g);
    assert_int_equal(change(g, leader, REPLICA_REMOVE, leader), REPLICA_CHANGE_LAST_VOTER);
    assert_int_equal(change(g, leader, REPLICA_PROMOTE, leader), REPLICA_CHANGE_NOTHING);
    assert_int_equal(change(g, leader, REPLICA_REMOVE, 3), REPLICA_CHANGE_NOT_A_MEMBER);
    assert_int_equal(change(g, leader, REPLICA_READDRESS, 3), REPLICA_CHANGE_NOT_A_MEMBER);
    for (uint64_t id = 2; id <= 9; id++) {
        assert_int_equal(change(g, leader, REPLICA_ADD_LEARNER, id), REPLICA_CHANGE_BEGUN);
        rig_wait(g, settled(g, leader));
    }
    assert_int_equal(change(g, leader, REPLICA_ADD_LEARNER, 10), REPLICA_CHANGE_FULL);
    assert_int_equal(replica_change(rig_of(g, leader), REPLICA_READDRESS, &m), REPLICA_CHANGE_BEGUN);
    rig_wait(g, settled(g, leader));
    assert_int_equal(replica_change(rig_of(g, leader), REPLICA_READDRESS, &m), REPLICA_CHANGE_NOTHING);
    m.id = 2; /* two members may say the same */
    assert_int_equal(replica_change(rig_of(g, leader), REPLICA_READDRESS, &m), REPLICA_CHANGE_BEGUN);
    rig_wait(g, settled(g, leader));
    struct replica_members all;
    rig_close(g, 1);
    rig_open(g, 1);
    replica_members(rig_of(g, 1), &all);
    assert_int_equal(all.count, 9);
    assert_string_equal(all.at[0].address, "elsewhere");
    assert_string_equal(all.at[1].address, "elsewhere");
    assert_string_equal(all.at[2].address, "address of 3");
}

static void test_a_leader_removes_itself(void **state)
{
    struct rig *g = *state;
    rig_open_all(g);
    submit_many(g, 20, 100);
    uint64_t old = rig_leader(g);
    int64_t begun_us = clock_mono_us();
    assert_int_equal(change(g, old, REPLICA_REMOVE, old), REPLICA_CHANGE_BEGUN);
    rig_wait(g, rig_leader(g) != 0 && rig_leader(g) != old);
    print_message("a new leader %lld us after the old one began to leave\n", (long long)(clock_mono_us() - begun_us));
    uint64_t leader = rig_leader(g), index = rig_submit(g, leader, 100);
    rig_wait(g, replica_applied_index(rig_of(g, leader)) >= index);
    assert_int_equal(replica_role(rig_of(g, old)), REPLICA_FOLLOWER);
    struct replica_members m;
    replica_members(rig_of(g, leader), &m);
    assert_int_equal(m.count, 2);
    replica_members(rig_of(g, old), &m);
    assert_int_equal(m.count, 2);
    uint64_t term = replica_term(rig_of(g, leader));
    rig_pass(g, 400000);
    assert_int_equal(replica_term(rig_of(g, leader)), term);
}

/* From two to one: the one that stays leads alone, in a term of its own. */
static void test_the_last_two_become_one(void **state)
{
    struct rig *g = *state;
    rig_open_all(g);
    submit_many(g, 20, 100);
    uint64_t old = rig_leader(g), term = replica_term(rig_of(g, old));
    assert_int_equal(change(g, old, REPLICA_REMOVE, old), REPLICA_CHANGE_BEGUN);
    for (int i = 0; i < 5; i++) rig_submit(g, old, 100);
    uint64_t leader = other_than(g, old, 0);
    rig_wait(g, replica_role(rig_of(g, leader)) == REPLICA_LEADER);
    assert_true(replica_term(rig_of(g, leader)) > term);
    uint64_t index = rig_submit(g, leader, 100);
    rig_wait(g, replica_applied_index(rig_of(g, leader)) >= index);
    rig_close(g, leader);
    rig_close(g, old);
    rig_open(g, leader);
    rig_wait(g, replica_role(rig_of(g, leader)) == REPLICA_LEADER && replica_applied_index(rig_of(g, leader)) >= index);
}

static void test_one_becomes_three(void **state)
{
    struct rig *g = *state;
    rig_open_all(g);
    submit_many(g, 50, 3000);
    for (uint64_t id = 2; id <= 3; id++) {
        rig_open(g, id);
        assert_int_equal(change(g, rig_leader(g), REPLICA_ADD_LEARNER, id), REPLICA_CHANGE_BEGUN);
        rig_agree(g);
        rig_wait(g, is_member(g, id, id, REPLICA_LEARNER) && settled(g, rig_leader(g)));
        assert_int_equal(change(g, rig_leader(g), REPLICA_PROMOTE, id), REPLICA_CHANGE_BEGUN);
        rig_wait(g, is_member(g, id, id, REPLICA_VOTER) && settled(g, 1));
        submit_many(g, 10, 100);
    }
    rig_close(g, 1);
    uint64_t leader = rig_lead_wait(g);
    assert_true(leader == 2 || leader == 3);
    submit_many(g, 10, 100);
    rig_open(g, 1);
    rig_agree(g);
}

/* ---- handing over */

/* One that is given up (on a machine that is busy with other things) is tried again. */
static bool handed_over(struct rig *g, uint64_t old, uint64_t to)
{
    uint64_t leader = rig_leader(g);
    if (leader == old) replica_transfer(rig_of(g, old), to);
    return leader != 0 && leader != old;
}

static void test_leadership_is_handed_over(void **state)
{
    struct rig *g = *state;
    int64_t worst_us = 0;
    rig_open_all(g);
    for (int round = 0; round < 10; round++) {
        submit_many(g, 10, 500);
        uint64_t old = rig_leader(g), to = round % 2 == 0 ? 0 : other_than(g, old, other_than(g, old, 0));
        for (int i = 0; i < 20; i++) rig_submit(g, old, 5000); /* with entries in flight */
        int64_t begun_us = clock_mono_us();
        assert_true(replica_transfer(rig_of(g, old), to));
        assert_false(replica_transfer(rig_of(g, old), to));
        assert_int_equal(rig_submit(g, old, 100), 0);
        rig_wait(g, handed_over(g, old, to));
        if (clock_mono_us() - begun_us > worst_us) worst_us = clock_mono_us() - begun_us;
        if (to != 0 && RIG_SLOW == 1) assert_int_equal(rig_leader(g), to);
    }
    print_message("handed over within %lld us\n", (long long)worst_us);
    assert_in_range(worst_us, 0, 400000); /* a loaded machine */
    rig_agree(g);
}

static void test_a_transfer_is_given_up(void **state)
{
    struct rig *g = *state;
    rig_open_all(g);
    submit_many(g, 10, 500);
    uint64_t leader = rig_leader(g), to = other_than(g, leader, 0);
    assert_false(replica_transfer(rig_of(g, leader), leader));
    assert_false(replica_transfer(rig_of(g, leader), 7));
    assert_false(replica_transfer(rig_of(g, to), leader));
    rig_isolate(g, to, true);
    uint64_t index = rig_submit(g, leader, 500);
    rig_wait(g, replica_applied_index(rig_of(g, leader)) >= index);
    assert_true(replica_transfer(rig_of(g, leader), to)); /* it lacks an entry and is out of reach */
    assert_int_equal(rig_submit(g, leader, 100), 0);
    rig_wait(g, rig_submit(g, leader, 100) > 0);
    assert_int_equal(rig_leader(g), leader);
    rig_isolate(g, to, false);
    rig_agree(g);
    /* The request to take over is lost. */
    leader = rig_leader(g);
    to = other_than(g, leader, 0);
    g->links[leader][to].cut = true;
    assert_true(replica_transfer(rig_of(g, leader), to));
    assert_int_equal(rig_submit(g, leader, 100), 0);
    rig_wait(g, rig_leader(g) != 0 && rig_submit(g, rig_leader(g), 100) > 0);
    g->links[leader][to].cut = false;
    rig_agree(g);
}

/* ---- what is kept */

static void test_who_comes_back_finds_the_kept_entries(void **state)
{
    struct rig *g = *state;
    g->keep_bytes = 2 << 20;
    rig_open_all(g);
    submit_many(g, 100, 5000);
    uint64_t leader = rig_leader(g), away = other_than(g, leader, 0), third = other_than(g, leader, away);
    rig_close(g, away);
    submit_many(g, 100, 5000);
    /* Everything is stored; the log keeps its tail all the same, also across restarts. */
    for (uint64_t id = 1; id <= 3; id++) {
        if (id == away) continue;
        rig_store(g, id, replica_applied_index(rig_of(g, id)));
        struct replica *r = rig_of(g, id);
        assert_true(r->ring.first < r->applied - 150);
        rig_close(g, id);
        rig_open(g, id);
        r = rig_of(g, id);
        assert_true(r->ring.first < r->applied - 150);
    }
    submit_many(g, 10, 100);
    rig_open(g, away);
    rig_agree(g);
    assert_int_equal(g->nodes[away].wanted, 0);
    (void)third;
}

static void test_the_kept_tail_is_bounded(void **state)
{
    struct rig *g = *state;
    g->keep_bytes = 1 << 20;
    rig_open_all(g);
    for (int round = 0; round < 10; round++) {
        submit_many(g, 60, 20000);
        uint64_t last = replica_applied_index(rig_of(g, 1));
        rig_store(g, 1, last);
        struct replica *r = rig_of(g, 1);
        const struct slot *from = ring_at(&r->ring, r->ring.first), *to = ring_at(&r->ring, last);
        assert_in_range(to->pos + to->len - from->pos, round == 0 ? 1 : (1 << 20) - 25000, 1 << 20);
        if (round % 3 == 2) {
            rig_close(g, 1);
            rig_open(g, 1);
            rig_lead_wait(g);
        }
    }
    /* A pin holds it. */
    struct replica *r = rig_of(g, 1);
    uint64_t first = r->ring.first;
    replica_pin(r, 1);
    submit_many(g, 120, 20000);
    rig_store(g, 1, replica_applied_index(r));
    assert_int_equal(r->ring.first, first);
    rig_close(g, 1); /* the stored position does not count on it */
    rig_open(g, 1);
    rig_lead_wait(g);
    r = rig_of(g, 1);
    replica_pin(r, replica_applied_index(r));
    uint64_t pinned = replica_applied_index(r);
    submit_many(g, 120, 20000);
    rig_store(g, 1, replica_applied_index(r));
    assert_true(r->ring.first <= pinned);
    replica_unpin(r);
    submit_many(g, 1, 8);
    rig_store(g, 1, replica_applied_index(r));
    assert_true(r->ring.first > pinned);
}

/* What fetching a state comes to: a store that has applied I, a log whose last entry is I, the configuration. */
static void fetch(struct rig *g, uint64_t id, uint64_t from, uint64_t index)
{
    struct rig_node *n = &g->nodes[id];
    struct replica *source = rig_of(g, from);
    struct buf conf = {0}, error = {0};
    char path[256], log_dir[200];
    const struct slot s = *ring_at(&source->ring, index);
    char *body = malloc(s.len + 1);
    assert_int_equal(log_read(source->log, s.pos, s.len, body), LOG_OK);
    replica_configuration_file(source, &conf);
    if (n->replica != NULL) rig_close(g, id);
    snprintf(log_dir, sizeof log_dir, "%s/log", n->dir);
    nftw(log_dir, rig_unlink_each, 16, FTW_DEPTH | FTW_PHYS);
    struct log *log;
    struct log_options o = {.dir = log_dir, .segment_bytes = RIG_SEGMENT_BYTES};
    assert_int_equal(log_open(&log, &o, &error), LOG_OK);
    memcpy(log_reserve(log, s.len), body, s.len);
    n->applied_pos = log_append(log, index, s.term, s.type, s.len);
    log_close(log);
    snprintf(path, sizeof path, "%s/configuration", n->dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(conf.at, 1, conf.len, file), conf.len);
    fclose(file);
    n->applied_index = index;
    n->applied_term = s.term;
    free(body);
    buf_free(&conf);
    buf_free(&error);
    rig_open(g, id);
}

static void test_who_lacks_too_much_fetches_the_state(void **state)
{
    struct rig *g = *state;
    rig_open_all(g);
    submit_many(g, 50, 5000);
    uint64_t leader = rig_leader(g), away = other_than(g, leader, 0);
    rig_close(g, away);
    submit_many(g, 50, 5000);
    for (uint64_t id = 1; id <= 3; id++) {
        if (id != away) rig_store(g, id, replica_applied_index(rig_of(g, id)));
    }
    uint64_t stored = g->nodes[leader].applied_index;
    submit_many(g, 20, 5000);
    rig_open(g, away);
    rig_wait(g, g->nodes[away].wanted > 0);
    assert_int_equal(g->nodes[away].wanted_leader, leader);
    assert_int_equal(g->nodes[away].wanted_index, stored);
    struct replica_progress p;
    assert_true(replica_progress(rig_of(g, leader), away, &p));
    assert_true(p.snapshot && p.heard_age_us >= 0);
    /* While that goes on the others do too; it is asked again now and then, not all the time. */
    uint64_t asked = g->nodes[away].wanted, term = replica_term(rig_of(g, leader));
    for (int i = 0; i < 20; i++) {
        rig_submit(g, leader, 1000);
        rig_pass(g, 60000);
    }
    assert_in_range(g->nodes[away].wanted - asked, 1, 3);
    assert_int_equal(replica_term(rig_of(g, leader)), term);
    /* A later state than asked for. */
    uint64_t index = replica_applied_index(rig_of(g, leader)) - 3;
    fetch(g, away, leader, index);
    int64_t begun_us = clock_mono_us();
    rig_agree(g);
    assert_in_range(clock_mono_us() - begun_us, 0, 3000000);
    leader = rig_leader(g);
    assert_true(replica_progress(rig_of(g, leader), away, &p));
    assert_false(p.snapshot);
    assert_true(p.match >= index);
    /* It is a member like any other: it may even lead. */
    rig_wait(g, replica_transfer(rig_of(g, rig_leader(g)), away));
    rig_wait(g, rig_leader(g) == away);
    submit_many(g, 10, 100);
}

/* The state that was asked for exactly, and one that the leader has gone past meanwhile with its log trimmed behind it. */
static void test_a_fetched_state_fits_whatever_the_leader_did(void **state)
{
    struct rig *g = *state;
    rig_open_all(g);
    for (int round = 0; round < 4; round++) {
        submit_many(g, 20, 5000);
        uint64_t away = other_than(g, rig_leader(g), 0);
        rig_close(g, away);
        submit_many(g, 30, 5000);
        for (uint64_t id = 1; id <= 3; id++) { /* whoever leads from here on */
            if (id == away) continue;
            rig_store(g, id, replica_applied_index(rig_of(g, id)));
            replica_pin(rig_of(g, id), replica_applied_index(rig_of(g, id)));
        }
        rig_open(g, away);
        g->nodes[away].wanted = 0;
        rig_wait(g, g->nodes[away].wanted > 0);
        uint64_t wanted = g->nodes[away].wanted_index, leader = rig_lead_wait(g);
        for (int i = 0; i < 10; i++) rig_submit(g, leader, 1000);
        struct replica *r = rig_of(g, leader);
        rig_wait(g, replica_applied_index(r) >= wanted + 5);
        if (round % 2 == 1) rig_store(g, leader, replica_applied_index(r));
        fetch(g, away, leader, wanted);
        g->nodes[away].wanted = 0;
        rig_agree(g);
        assert_int_equal(g->nodes[away].wanted, 0);
        for (uint64_t id = 1; id <= 3; id++) replica_unpin(rig_of(g, id));
    }
}

/* A node that waits gets a state instead of the first entries. */
static void test_a_new_member_fetches_the_state(void **state)
{
    struct rig *g = *state;
    rig_open_all(g);
    submit_many(g, 50, 5000);
    for (uint64_t id = 1; id <= 3; id++) rig_store(g, id, replica_applied_index(rig_of(g, id)));
    uint64_t leader = rig_lead_wait(g);
    rig_open(g, 4);
    assert_int_equal(change(g, leader, REPLICA_ADD_LEARNER, 4), REPLICA_CHANGE_BEGUN);
    rig_wait(g, g->nodes[4].wanted > 0);
    rig_close(g, 4);
    rig_open(g, 4); /* still nothing here */
    g->nodes[4].wanted = 0;
    rig_wait(g, g->nodes[4].wanted > 0);
    fetch(g, 4, leader, g->nodes[4].wanted_index);
    rig_agree(g);
    rig_wait(g, is_member(g, 4, 4, REPLICA_LEARNER));
    leader = rig_lead_wait(g);
    assert_int_equal(change(g, leader, REPLICA_PROMOTE, 4), REPLICA_CHANGE_BEGUN);
    rig_wait(g, is_member(g, 4, 4, REPLICA_VOTER));
    rig_close(g, 4);
    rig_open(g, 4);
    assert_true(replica_votes(rig_of(g, 4)));
    submit_many(g, 10, 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_node_waits_to_be_added, setup_three, teardown),
        cmocka_unit_test_setup_teardown(test_added_promoted_removed, setup_three, teardown),
        cmocka_unit_test_setup_teardown(test_changes_that_cannot_be, setup_one, teardown),
        cmocka_unit_test_setup_teardown(test_a_leader_removes_itself, setup_three, teardown),
        cmocka_unit_test_setup_teardown(test_the_last_two_become_one, setup_two, teardown),
        cmocka_unit_test_setup_teardown(test_one_becomes_three, setup_one, teardown),
        cmocka_unit_test_setup_teardown(test_leadership_is_handed_over, setup_three, teardown),
        cmocka_unit_test_setup_teardown(test_a_transfer_is_given_up, setup_three, teardown),
        cmocka_unit_test_setup_teardown(test_who_comes_back_finds_the_kept_entries, setup_three, teardown),
        cmocka_unit_test_setup_teardown(test_the_kept_tail_is_bounded, setup_one, teardown),
        cmocka_unit_test_setup_teardown(test_who_lacks_too_much_fetches_the_state, setup_three, teardown),
        cmocka_unit_test_setup_teardown(test_a_fetched_state_fits_whatever_the_leader_did, setup_three, teardown),
        cmocka_unit_test_setup_teardown(test_a_new_member_fetches_the_state, setup_three, teardown),
    };
    cmocka_set_test_filter(getenv("TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
