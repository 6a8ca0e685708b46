/* One replica among peers that the test plays: what they send, in any order and of any kind, and what it answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "test_replica_rig.h"

enum { ME = 1, SENT_MAX = 256 };

struct fixture {
    struct rig *rig;
    struct buf sent[SENT_MAX]; /* to anyone, newest last */
    uint64_t to[SENT_MAX];
    uint32_t count;
};

static struct fixture *now; /* the one of the running test */

static bool on_send(void *ctx, uint64_t peer, bool vital, const struct slice *parts, uint32_t count)
{
    (void)ctx;
    (void)vital;
    assert_true(now->count < SENT_MAX);
    now->to[now->count] = peer;
    struct buf *b = &now->sent[now->count++];
    buf_clear(b);
    for (uint32_t i = 0; i < count; i++) buf_slice(b, parts[i]);
    return true;
}

static struct replica *me(void)
{
    return now->rig->nodes[ME].replica;
}

static void turns(int n)
{
    for (int i = 0; i < n; i++) rig_turn(now->rig);
}

static void open_me(void)
{
    rig_open(now->rig, ME);
    me()->o.send = on_send;
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    f->rig = rig_new(3);
    f->rig->foreign_bodies = true;
    f->rig->election_ms = 100000; /* it acts when it is told to */
    f->rig->heartbeat_ms = 50000;
    *state = now = f;
    open_me();
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    rig_free(f->rig);
    for (uint32_t i = 0; i < SENT_MAX; i++) buf_free(&f->sent[i]);
    free(f);
    return 0;
}

/* ---- frames of peers */

struct entry {
    uint64_t term;
    uint8_t type;
    struct slice body;
};

static void frame_make(struct buf *out, struct frame f, const struct entry *entries, uint32_t count)
{
    f.count = count;
    frame_head_write(&f, buf_reserve(out, FRAME_HEAD_BYTES));
    out->len += FRAME_HEAD_BYTES;
    for (uint32_t i = 0; i < count; i++) {
        struct frame_entry e = {.term = entries[i].term, .type = entries[i].type, .body = entries[i].body};
        frame_entry_write(&e, buf_reserve(out, FRAME_ENTRY_BYTES));
        out->len += FRAME_ENTRY_BYTES;
        buf_slice(out, entries[i].body);
    }
}

static void deliver(uint64_t from, struct frame f, const struct entry *entries, uint32_t count)
{
    struct buf b = {0};
    frame_make(&b, f, entries, count);
    now->count = 0;
    replica_receive(me(), from, buf_view(&b));
    buf_free(&b);
}

static void append(uint64_t from, uint64_t term, uint64_t prev, uint64_t prev_term, uint64_t commit,
                   const struct entry *entries, uint32_t count)
{
    deliver(from, (struct frame){.kind = FRAME_APPEND, .stream = 9, .term = term, .a = prev, .b = prev_term, .c = commit},
            entries, count);
}

static struct entry command(uint64_t term, const char *text)
{
    return (struct entry){.term = term, .type = RAFT_COMMAND, .body = slice_of(text)};
}

static struct buf conf_bytes;

/* Members 1 .. voters. */
static struct entry change(uint64_t term, uint64_t voters)
{
    struct raft_configuration c;
    struct raft_buffer encoded;
    raft_configuration_init(&c);
    for (uint64_t id = 1; id <= voters; id++) {
        char *text = member_address_text(id, "x");
        assert_int_equal(raft_configuration_add(&c, id, text, RAFT_VOTER), 0);
        free(text);
    }
    assert_int_equal(raft_configuration_encode(&c, &encoded), 0);
    raft_configuration_close(&c);
    buf_clear(&conf_bytes);
    buf_put(&conf_bytes, encoded.base, encoded.len);
    raft_free(encoded.base);
    return (struct entry){.term = term, .type = RAFT_CHANGE, .body = buf_view(&conf_bytes)};
}

/* The last frame of that kind that it sent since the last delivery. */
static bool sent(enum frame_kind kind, struct frame *out)
{
    for (uint32_t i = now->count; i-- > 0;) {
        assert_null(frame_read(buf_view(&now->sent[i]), out));
        if (out->kind == kind) return true;
    }
    return false;
}

static void stored_wait(uint64_t index)
{
    rig_wait(now->rig, me()->raft.last_stored >= index);
}

/* ---- tests */

static void test_it_answers_what_it_has_stored(void **state)
{
    (void)state;
    struct frame f;
    struct entry e[3] = {command(5, "12345678a"), command(5, "12345678b"), command(5, "12345678c")};
    append(2, 5, 1, 1, 1, e, 3);
    assert_false(sent(FRAME_APPENDED, &f)); /* not durable yet */
    stored_wait(4);
    assert_true(sent(FRAME_APPENDED, &f));
    assert_int_equal(f.a, 0);
    assert_int_equal(f.b, 4);
    assert_int_equal(f.term, 5);
    assert_int_equal(f.stream, 9);
    assert_int_equal(replica_leader(me()), 2);
    assert_int_equal(me()->applied, 1);
    append(2, 5, 4, 5, 3, NULL, 0);
    assert_true(sent(FRAME_APPENDED, &f));
    turns(2);
    assert_int_equal(me()->applied, 3);
    deliver(2, (struct frame){.kind = FRAME_COMMIT, .term = 5, .a = 4, .b = 5}, NULL, 0);
    assert_int_equal(now->count, 0); /* needs no answer */
    turns(2);
    assert_int_equal(me()->applied, 4);
}

static void test_notices_are_checked(void **state)
{
    (void)state;
    struct entry e[2] = {command(5, "12345678a"), command(5, "12345678b")};
    append(2, 5, 1, 1, 1, e, 2);
    stored_wait(3);
    deliver(3, (struct frame){.kind = FRAME_COMMIT, .term = 5, .a = 3, .b = 5}, NULL, 0); /* not the leader */
    deliver(2, (struct frame){.kind = FRAME_COMMIT, .term = 4, .a = 3, .b = 4}, NULL, 0); /* of an old term */
    deliver(2, (struct frame){.kind = FRAME_COMMIT, .term = 5, .a = 3, .b = 4}, NULL, 0); /* another entry */
    deliver(2, (struct frame){.kind = FRAME_COMMIT, .term = 5, .a = 4, .b = 5}, NULL, 0); /* not here */
    turns(2);
    assert_int_equal(replica_commit_index(me()), 1);
    assert_int_equal(me()->applied, 1);
}

static void test_gaps_and_old_terms_are_refused(void **state)
{
    (void)state;
    struct frame f;
    struct entry e = command(5, "12345678a");
    append(2, 5, 10, 5, 1, &e, 1);
    assert_true(sent(FRAME_APPENDED, &f));
    assert_int_equal(f.a, 10);
    assert_int_equal(f.b, 1);
    append(2, 5, 1, 1, 1, &e, 1);
    stored_wait(2);
    append(3, 4, 2, 4, 2, &e, 0); /* a leader of the past is told of the term */
    assert_true(sent(FRAME_APPENDED, &f));
    assert_int_equal(f.term, 5);
    assert_int_equal(f.b, 0);
    assert_int_equal(replica_leader(me()), 2);
    assert_int_equal(replica_commit_index(me()), 1);
}

/* A leader that begins at entry 1 (what it knew of us is old) while our log was trimmed long ago. */
static void test_entries_that_were_trimmed_are_not_taken_again(void **state)
{
    (void)state;
    struct frame f;
    struct entry e[6] = {change(1, 3)};
    for (int i = 1; i < 6; i++) e[i] = command(5, "12345678");
    append(2, 5, 1, 1, 1, e + 1, 4);
    stored_wait(5);
    append(2, 5, 5, 5, 4, NULL, 0);
    turns(3);
    assert_int_equal(me()->applied, 4);
    rig_store(now->rig, ME, 4);
    assert_int_equal(me()->ring.first, 4);
    append(3, 6, 0, 0, 4, e, 2); /* nothing of it is new */
    assert_true(sent(FRAME_APPENDED, &f));
    assert_int_equal(f.a, 0);
    assert_int_equal(f.b, 4);
    assert_int_equal(replica_last_index(me()), 5);
    append(3, 6, 0, 0, 4, e, 6);
    stored_wait(6);
    assert_true(sent(FRAME_APPENDED, &f));
    assert_int_equal(f.b, 6);
    assert_int_equal(replica_last_index(me()), 6);
    append(3, 6, 2, 5, 4, NULL, 0); /* a question about a place that is trimmed */
    assert_true(sent(FRAME_APPENDED, &f));
    assert_int_equal(f.a, 0);
    assert_int_equal(f.b, 4);
}

/* raft alone would go back one entry a question. */
static void test_a_long_tail_of_another_term_is_passed_over(void **state)
{
    (void)state;
    struct frame f;
    struct entry e[60];
    for (int i = 0; i < 60; i++) e[i] = command(i < 20 ? 5 : 6, "12345678");
    append(2, 6, 1, 1, 1, e, 60);
    stored_wait(61);
    append(2, 6, 61, 6, 10, NULL, 0);
    append(3, 8, 61, 7, 10, NULL, 0);
    assert_true(sent(FRAME_APPENDED, &f));
    assert_int_equal(f.a, 61);
    assert_int_equal(f.b, 21); /* the last one of term 5 */
    append(3, 8, 21, 4, 10, NULL, 0);
    assert_true(sent(FRAME_APPENDED, &f));
    assert_int_equal(f.a, 21);
    assert_int_equal(f.b, 10); /* committed */
}

static void test_a_commit_index_never_goes_back(void **state)
{
    (void)state;
    struct frame f;
    struct entry e[60];
    for (int i = 0; i < 60; i++) e[i] = command(5, "12345678");
    append(2, 5, 1, 1, 1, e, 60);
    stored_wait(61);
    append(2, 5, 61, 5, 50, NULL, 0);
    turns(2);
    assert_int_equal(replica_commit_index(me()), 50);
    append(2, 5, 20, 5, 55, NULL, 0); /* a probe further back */
    assert_true(sent(FRAME_APPENDED, &f));
    assert_int_equal(f.a, 0);
    assert_int_equal(f.b, 50); /* so far they agree for sure */
    assert_int_equal(replica_commit_index(me()), 50);
    append(2, 5, 61, 5, 40, NULL, 0);
    assert_int_equal(replica_commit_index(me()), 50);
    assert_int_equal(me()->applied, 50);
    append(2, 5, 1, 1, 61, e, 60); /* all of it once more */
    turns(3);
    assert_int_equal(me()->applied, 61);
    assert_int_equal(now->rig->nodes[ME].applies, 60);
}

static void test_a_later_leader_cuts_the_tail(void **state)
{
    (void)state;
    struct frame f;
    struct entry e[5], later[2] = {command(6, "12345678new"), command(6, "12345678new2")};
    for (int i = 0; i < 5; i++) e[i] = command(5, "12345678old");
    append(2, 5, 1, 1, 1, e, 5);
    append(3, 6, 3, 5, 1, later, 2); /* before the old ones are durable */
    stored_wait(5);
    assert_true(sent(FRAME_APPENDED, &f));
    assert_int_equal(f.b, 5);
    assert_int_equal(replica_last_index(me()), 5);
    assert_int_equal(replica_in_flight_bytes(me()), 11 + 11 + 11 + 12 + me()->conf.encoded.len * (me()->applied == 0));
    append(3, 6, 5, 6, 5, NULL, 0);
    turns(3);
    assert_int_equal(me()->applied, 5);
    assert_int_equal(now->rig->history[4].term, 6);
    rig_close(now->rig, ME);
    open_me();
    append(3, 6, 5, 6, 5, NULL, 0);
    turns(3);
    assert_int_equal(me()->applied, 5); /* the same as before, or the rig would have said so */
}

/* The caller fills a body while another leader's entries come in and cut what it had submitted. */
static void test_entries_meet_an_open_reservation(void **state)
{
    (void)state;
    struct frame f;
    struct entry e[3] = {command(5, "12345678a"), command(5, "12345678b"), command(5, "12345678c")};
    struct entry later = command(6, "12345678x");
    append(2, 5, 1, 1, 1, e, 3); /* not durable yet */
    char *at = replica_reserve(me(), 100000);
    memset(at, 'r', 100000);
    append(3, 6, 2, 5, 1, &later, 1); /* cuts entry 3 and 4 */
    assert_int_equal(replica_last_index(me()), 3);
    for (int i = 0; i < 100000; i++) assert_int_equal(at[i], 'r');
    rig_wait(now->rig, log_synced_index(me()->log) >= 4 && me()->raft.last_stored >= 2);
    turns(20);
    assert_int_equal(me()->raft.last_stored, 2); /* it is not in the log yet; the one it cuts counts for nothing */
    assert_int_equal(term_of(me(), 3), 6);
    memset(at, 's', 100000);
    assert_int_equal(replica_submit(me(), 100000), 0);
    at = replica_reserve(me(), 8);
    stored_wait(3);
    assert_true(sent(FRAME_APPENDED, &f));
    assert_int_equal(f.b, 3);
    append(3, 6, 3, 6, 3, NULL, 0);
    turns(3);
    assert_int_equal(me()->applied, 3);
    assert_int_equal(now->rig->history[3].len, 9);
}

static void test_a_conflict_with_what_is_committed_ends_it(void **state)
{
    (void)state;
    struct entry e[3] = {command(5, "12345678a"), command(5, "12345678b"), command(5, "12345678c")};
    struct entry later[2] = {command(6, "12345678x"), command(6, "12345678y")};
    append(2, 5, 1, 1, 3, e, 3);
    stored_wait(4);
    append(2, 5, 2, 5, 3, NULL, 0);
    append(3, 6, 2, 5, 1, later, 2); /* entry 3 is committed */
    assert_int_equal(now->rig->failures, 1);
    now->rig->failures = 0;
    assert_int_equal(replica_last_index(me()), 4);
}

/* raft would note the change under the first new entry's index. */
static void test_a_change_among_others(void **state)
{
    (void)state;
    struct entry e[4] = {command(5, "12345678a"), command(5, "12345678b"), change(5, 4), command(5, "12345678c")};
    append(2, 5, 1, 1, 1, e, 4);
    assert_int_equal(me()->raft.configuration_uncommitted_index, 4);
    assert_int_equal(me()->raft.configuration.n, 4);
    stored_wait(5);
    append(2, 5, 5, 5, 5, NULL, 0);
    turns(3);
    assert_int_equal(me()->applied, 5);
    assert_int_equal(me()->raft.configuration_uncommitted_index, 0);
    assert_int_equal(me()->raft.configuration_committed_index, 4);
    assert_int_equal(now->rig->nodes[ME].changes, 2); /* it holds; it is committed */
}

/* Two changes before the first one is applied here; the second is cut: back to the first, not to what was before it. */
static void test_the_second_of_two_changes_is_taken_back(void **state)
{
    (void)state;
    struct entry first[2] = {command(5, "12345678a"), change(5, 4)};
    append(2, 5, 1, 1, 1, first, 2);
    struct entry second = change(5, 5);
    append(2, 5, 3, 5, 3, &second, 1);
    assert_int_equal(me()->raft.configuration.n, 5);
    struct entry other = command(6, "12345678x");
    append(3, 6, 3, 5, 3, &other, 1);
    assert_int_equal(me()->raft.configuration.n, 4);
    assert_int_equal(me()->raft.configuration_committed_index, 3);
    assert_int_equal(me()->raft.configuration_uncommitted_index, 0);
    stored_wait(4);
    append(3, 6, 4, 6, 4, NULL, 0);
    turns(3);
    assert_int_equal(me()->applied, 4);
    assert_int_equal(me()->raft.configuration.n, 4);
    rig_close(now->rig, ME);
    open_me();
    assert_int_equal(me()->raft.configuration.n, 4);
}

/* A candidate with an old term and the longer log: it must learn the term, or neither of two could ever win. */
static void test_a_refused_pre_vote_tells_the_term(void **state)
{
    (void)state;
    struct frame f;
    append(2, 9, 1, 1, 1, NULL, 0);
    rig_close(now->rig, ME);
    open_me(); /* knows no leader */
    assert_int_equal(replica_term(me()), 9);
    deliver(3, (struct frame){.kind = FRAME_VOTE, .message_version = 2, .term = 6, .a = 50, .b = 5, .flags = FRAME_PRE_VOTE},
            NULL, 0);
    assert_true(sent(FRAME_VOTED, &f));
    assert_int_equal(f.flags, FRAME_PRE_VOTE);
    assert_int_equal(f.term, 9);
    deliver(3, (struct frame){.kind = FRAME_VOTE, .message_version = 2, .term = 10, .a = 50, .b = 5, .flags = FRAME_PRE_VOTE},
            NULL, 0);
    assert_true(sent(FRAME_VOTED, &f));
    assert_int_equal(f.flags, FRAME_PRE_VOTE | FRAME_GRANTED);
    assert_int_equal(f.term, 10);
    assert_int_equal(replica_term(me()), 9);
}

static void candidate_make(void)
{
    raft_set_election_timeout(&me()->raft, 1); /* due at once */
    step_timer_arm(me());
    rig_wait(now->rig, raft_state(&me()->raft) == RAFT_CANDIDATE);
    raft_set_election_timeout(&me()->raft, 100000);
    step_timer_arm(me());
}

static void test_it_learns_the_term_from_a_refused_pre_vote(void **state)
{
    (void)state;
    candidate_make();
    deliver(2, (struct frame){.kind = FRAME_VOTED, .message_version = 2, .term = 1 + 8, .flags = FRAME_PRE_VOTE, .capacity = 9},
            NULL, 0);
    assert_int_equal(replica_term(me()), 9);
    assert_int_equal(raft_state(&me()->raft), RAFT_FOLLOWER);
}

static void test_late_votes_do_nothing(void **state)
{
    (void)state;
    struct frame voted = {.kind = FRAME_VOTED, .message_version = 2, .term = 7, .flags = FRAME_PRE_VOTE | FRAME_GRANTED};
    deliver(2, voted, NULL, 0); /* it asked for none */
    voted.flags = FRAME_GRANTED;
    deliver(2, voted, NULL, 0);
    assert_int_equal(replica_term(me()), 1);
    assert_int_equal(raft_state(&me()->raft), RAFT_FOLLOWER);
}

/* It wins, and its term's first entry is a barrier although nothing was uncommitted. */
static void test_a_new_leader_makes_an_entry_of_its_term(void **state)
{
    (void)state;
    struct frame f;
    turns(3);
    candidate_make();
    deliver(2, (struct frame){.kind = FRAME_VOTED, .message_version = 2, .term = 2, .flags = FRAME_PRE_VOTE | FRAME_GRANTED},
            NULL, 0);
    assert_int_equal(replica_term(me()), 2);
    deliver(2, (struct frame){.kind = FRAME_VOTED, .message_version = 2, .term = 2, .flags = FRAME_GRANTED}, NULL, 0);
    assert_int_equal(raft_state(&me()->raft), RAFT_LEADER);
    assert_int_equal(replica_last_index(me()), 2);
    assert_int_equal(term_of(me(), 2), 2);
    assert_int_equal(replica_role(me()), REPLICA_FOLLOWER);
    assert_true(sent(FRAME_APPEND, &f));
    stored_wait(2);
    assert_int_equal(replica_commit_index(me()), 1);
    deliver(3, (struct frame){.kind = FRAME_APPENDED, .message_version = 2, .stream = f.stream, .term = 2, .b = 2}, NULL, 0);
    assert_int_equal(replica_commit_index(me()), 2);
    rig_wait(now->rig, replica_role(me()) == REPLICA_LEADER);
}

static void test_a_state_is_wanted_only_when_it_helps(void **state)
{
    (void)state;
    struct frame f;
    struct rig_node *n = &now->rig->nodes[ME];
    struct entry e[3] = {command(5, "12345678a"), command(5, "12345678b"), command(5, "12345678c")};
    append(2, 5, 1, 1, 1, e, 3);
    stored_wait(4);
    deliver(3, (struct frame){.kind = FRAME_INSTALL, .term = 5, .a = 100, .b = 5}, NULL, 0); /* not its leader */
    deliver(2, (struct frame){.kind = FRAME_INSTALL, .term = 4, .a = 100, .b = 4}, NULL, 0); /* of the past */
    deliver(2, (struct frame){.kind = FRAME_INSTALL, .term = 6, .a = 100, .b = 6}, NULL, 0); /* it does not know it yet */
    assert_int_equal(n->wanted, 0);
    append(2, 5, 4, 5, 3, NULL, 0);
    deliver(2, (struct frame){.kind = FRAME_INSTALL, .term = 5, .a = 3, .b = 5}, NULL, 0); /* has it */
    assert_int_equal(n->wanted, 0);
    assert_true(sent(FRAME_APPENDED, &f));
    assert_int_equal(f.b, 3);
    deliver(2, (struct frame){.kind = FRAME_INSTALL, .term = 5, .a = 4, .b = 5}, NULL, 0); /* stored, but committed? */
    assert_int_equal(n->wanted, 1);
    for (int i = 0; i < 10; i++) deliver(2, (struct frame){.kind = FRAME_INSTALL, .term = 5, .a = 100, .b = 5}, NULL, 0);
    assert_int_equal(n->wanted, 1); /* not again and again */
}

static void test_probes_are_answered_in_the_same_term_only(void **state)
{
    (void)state;
    struct frame f;
    append(2, 5, 1, 1, 1, NULL, 0);
    deliver(2, (struct frame){.kind = FRAME_PROBE, .term = 5, .a = 77}, NULL, 0);
    assert_true(sent(FRAME_PROBED, &f));
    assert_int_equal(f.a, 77);
    assert_int_equal(f.term, 5);
    deliver(2, (struct frame){.kind = FRAME_PROBE, .term = 4, .a = 78}, NULL, 0);
    assert_int_equal(now->count, 0);
    deliver(2, (struct frame){.kind = FRAME_PROBE, .term = 6, .a = 79}, NULL, 0);
    assert_int_equal(now->count, 0);
    assert_int_equal(replica_term(me()), 5);
}

static void test_receiving_says_alive(void **state)
{
    (void)state;
    struct frame f;
    now->count = 0;
    replica_receiving(me(), 2);
    assert_int_equal(now->count, 0); /* it follows nobody */
    append(2, 5, 1, 1, 1, NULL, 0);
    now->count = 0;
    raft_time before = raft_timeout(&me()->raft);
    rig_pass(now->rig, 20000);
    replica_receiving(me(), 3);
    assert_int_equal(now->count, 0);
    replica_receiving(me(), 2);
    assert_true(sent(FRAME_APPENDED, &f));
    assert_int_equal(f.a + f.b + f.stream, 0);
    assert_true(raft_timeout(&me()->raft) > before);
}

static void test_bad_frames_are_dropped(void **state)
{
    (void)state;
    struct entry good[2] = {command(5, "12345678a"), command(5, "12345678b")};
    struct buf b = {0};
    const struct frame head = {.kind = FRAME_APPEND, .stream = 9, .term = 5, .a = 1, .b = 1, .c = 1};
    frame_make(&b, head, good, 2);
    char *copy = malloc(b.len + 8);
    for (size_t len = 0; len < b.len; len++) { /* cut short anywhere; the copy has its end where memory has */
        char *exact = malloc(len == 0 ? 1 : len);
        memcpy(exact, b.at, len);
        replica_receive(me(), 2, slice_make(exact, len));
        free(exact);
    }
    memcpy(copy, b.at, b.len);
    copy[b.len] = 0;
    replica_receive(me(), 2, slice_make(copy, b.len + 1));
    static const struct {
        size_t at;
        uint8_t value;
    } flips[] = {{0, 2},  {0, 0},        {1, 0},          {1, FRAME_KINDS}, {1, 255},     {8 + 7, 0xff}, {16 + 7, 0xff},
                 {24, 0}, {24, 6},       {32 + 7, 0x80},  {40, 1},          {40, 3},      {43, 0xff},    {48, 0},
                 {48, 6}, {48 + 8, 200}, {48 + 11, 0xff}, {48 + 12, 0},     {48 + 12, 9}, {48 + 13, 1}};
    for (size_t i = 0; i < sizeof flips / sizeof *flips; i++) {
        memcpy(copy, b.at, b.len);
        copy[flips[i].at] = (char)flips[i].value;
        replica_receive(me(), 2, slice_make(copy, b.len));
    }
    struct entry falling[2] = {command(5, "12345678a"), command(4, "12345678b")};
    append(2, 5, 1, 1, 1, falling, 2);
    struct entry broken = change(5, 3);
    for (size_t len = 0; len < broken.body.len - 8; len++) {
        struct entry part = broken;
        part.body.len = len;
        append(2, 5, 1, 1, 1, &part, 1);
    }
    conf_bytes.at[1] = 9; /* more members than there are */
    append(2, 5, 1, 1, 1, &broken, 1);
    assert_int_equal(replica_term(me()), 1);
    assert_int_equal(replica_last_index(me()), 1);
    assert_int_equal(replica_leader(me()), 0);
    replica_receive(me(), ME, buf_view(&b)); /* from itself */
    assert_int_equal(replica_last_index(me()), 1);
    replica_receive(me(), 2, buf_view(&b));
    assert_int_equal(replica_last_index(me()), 3);
    free(copy);
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_it_answers_what_it_has_stored, setup, teardown),
        cmocka_unit_test_setup_teardown(test_notices_are_checked, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gaps_and_old_terms_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_entries_that_were_trimmed_are_not_taken_again, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_long_tail_of_another_term_is_passed_over, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_commit_index_never_goes_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_later_leader_cuts_the_tail, setup, teardown),
        cmocka_unit_test_setup_teardown(test_entries_meet_an_open_reservation, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_conflict_with_what_is_committed_ends_it, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_change_among_others, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_second_of_two_changes_is_taken_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_refused_pre_vote_tells_the_term, setup, teardown),
        cmocka_unit_test_setup_teardown(test_it_learns_the_term_from_a_refused_pre_vote, setup, teardown),
        cmocka_unit_test_setup_teardown(test_late_votes_do_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_new_leader_makes_an_entry_of_its_term, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_state_is_wanted_only_when_it_helps, setup, teardown),
        cmocka_unit_test_setup_teardown(test_probes_are_answered_in_the_same_term_only, setup, teardown),
        cmocka_unit_test_setup_teardown(test_receiving_says_alive, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_frames_are_dropped, setup, teardown),
    };
    cmocka_set_test_filter(getenv("TEST_FILTER"));
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    buf_free(&conf_bytes);
    return rc;
}
