/* A state is taken on one node and fetched by another: real directories, logs and stores; lost and damaged frames, sources that die, leaders
 * that change, remains of earlier fetches. */
#include "test_snapshot_rig.h"

enum { I = 200, BEYOND = 260, LIVE = 40 };

static bool fetched_2(struct rig *r)
{
    return r->nodes[2].fetched != 0;
}

static bool idle_2(struct rig *r)
{
    struct snapshots_view v;
    snapshots_view(r->nodes[2].snapshots, &v);
    return !v.fetching;
}

static bool half_2(struct rig *r)
{
    struct snapshots_view v;
    snapshots_view(r->nodes[2].snapshots, &v);
    return v.bytes_total > 0 && v.bytes_done * 2 >= v.bytes_total;
}

static bool wanted(void *ctx, uint64_t first_pos, uint64_t end_pos)
{
    (void)end_pos;
    return first_pos >= ((struct node *)ctx)->pos[LIVE] / MIB * MIB && first_pos < 6 * (uint64_t)MIB;
}

/* A leader whose state at I is in the store, with entries beyond; segments at the front are trimmed, with a hole behind the live ones. */
static void leader_make(struct rig *r, uint64_t id, uint64_t seed)
{
    struct node *n = &r->nodes[id];
    node_open(r, id, id, MIB);
    entries_put(n, 1, BEYOND, seed);
    for (uint64_t i = 0; i < I; i += 25) rows_put(n, i + 1, i + 25, i + 18, seed, i == 100);
    log_trim(n->log, n->pos[I - 7], wanted, n);
    assert_in_range(kept_note(n, I), 40, I - 60);
}

static void follower_make(struct rig *r, uint64_t leader, uint64_t last)
{
    struct node *n = &r->nodes[2];
    node_open(r, 2, leader, MIB);
    entries_put(n, 1, last, 1);
    rows_put(n, 1, last, 1, 1, true);
}

static void fetch_all(struct rig *r)
{
    snapshots_fetch(r->nodes[2].snapshots, r->nodes[2].replica.leader, 150);
    run_until(r, fetched_2);
}

static void the_state_is_fetched_and_goes_on(void **state)
{
    struct rig *r = *state;
    leader_make(r, 1, 1);
    follower_make(r, 1, 30);
    fetch_all(r);
    assert_int_equal(r->nodes[2].fetched, I);
    assert_true(r->nodes[1].replica.pinned);
    assert_int_equal(r->nodes[1].replica.pin, I);
    assert_int_equal(r->nodes[1].replica.pins, 2); /* all of it while it was taken */
    assert_true(there(&r->nodes[2], "incoming/ready"));
    assert_false(there(&r->nodes[2], "log/ready"));
    assert_int_equal(r->sames, 0);
    swapped_check(&r->nodes[2], &r->nodes[1], I, 1);
}

/* Nothing but the present state, no entry beyond; and a store that is asked for the first time. */
static void without_entries_beyond_it(void **state)
{
    struct rig *r = *state;
    struct node *n = &r->nodes[1];
    node_open(r, 1, 1, MIB);
    entries_put(n, 1, 37, 1); /* the last one is large: it ends a block early */
    rows_put(n, 1, 37, 37, 1, false);
    assert_int_equal(kept_note(n, 37), 34); /* three are empty */
    node_open(r, 2, 1, MIB);
    fetch_all(r);
    assert_int_equal(r->nodes[2].fetched, 37);
    swapped_check(&r->nodes[2], n, 37, 1);
}

static void a_source_without_any_state_has_nothing(void **state)
{
    struct rig *r = *state;
    node_open(r, 1, 1, MIB);
    entries_put(&r->nodes[1], 1, 3, 1);
    node_open(r, 2, 1, MIB);
    snapshots_fetch(r->nodes[2].snapshots, 1, 1);
    run_until(r, idle_2);
    assert_false(r->nodes[1].replica.pinned);
    assert_false(there(&r->nodes[1], "snapshot"));
    assert_int_equal(r->nodes[2].fetched, 0);
}

static void the_log_is_trimmed_and_written_on_while_it_is_served(void **state)
{
    struct rig *r = *state;
    struct node *n = &r->nodes[1];
    leader_make(r, 1, 1);
    follower_make(r, 1, 30);
    struct node *as_it_was = malloc(sizeof *as_it_was);
    assert_non_null(as_it_was);
    snapshots_fetch(r->nodes[2].snapshots, 1, 150);
    run_until(r, half_2);
    memcpy(as_it_was, n, sizeof *as_it_was);
    /* All of the log goes, its files would be written over several times; the state moves on. */
    for (uint64_t i = BEYOND + 1; i < BEYOND + 400; i += 40) {
        entries_put(n, i, i + 39, 3);
        log_trim(n->log, log_end_pos(n->log), NULL, NULL);
    }
    rows_put(n, 1, 300, 300, 3, true);
    run_until(r, fetched_2);
    assert_int_equal(r->nodes[2].fetched, I);
    swapped_check(&r->nodes[2], as_it_was, I, 1);
    free(as_it_was);
}

static void lost_frames_are_asked_for_again(void **state)
{
    struct rig *r = *state;
    r->fast = true;
    r->drop_percent = 30;
    leader_make(r, 1, 1);
    follower_make(r, 1, 30);
    fetch_all(r);
    assert_int_equal(r->nodes[2].fetched, I);
    swapped_check(&r->nodes[2], &r->nodes[1], I, 1);
}

/* Every seventh range is damaged on its way; some in the head, so that it is for another place, or in the digest. */
static void damage(struct rig *r, struct frame *f)
{
    if (f->bytes[0] != FRAME_BYTES || ++r->damaged % 7 != 0) return;
    size_t at = r->damaged % 3 == 0 ? 9 + draw(r, 24) : 33 + draw(r, (uint32_t)f->len - 33);
    f->bytes[at] = (char)(f->bytes[at] ^ 1 << draw(r, 8));
}

static void damaged_ranges_are_asked_for_again(void **state)
{
    struct rig *r = *state;
    r->fast = true;
    r->tamper = damage;
    leader_make(r, 1, 1);
    follower_make(r, 1, 30);
    fetch_all(r);
    assert_true(r->damaged >= 21);
    swapped_check(&r->nodes[2], &r->nodes[1], I, 1);
}

static void damage_all(struct rig *r, struct frame *f)
{
    if (f->bytes[0] == FRAME_BYTES) f->bytes[f->len - 1] ^= 1;
    r->damaged++;
}

static void nothing_but_damage_is_given_up(void **state)
{
    struct rig *r = *state;
    r->tamper = damage_all;
    leader_make(r, 1, 1);
    follower_make(r, 1, 30);
    snapshots_fetch(r->nodes[2].snapshots, 1, 150);
    run_until(r, idle_2);
    assert_int_equal(r->nodes[2].fetched, 0);
    assert_false(there(&r->nodes[2], "incoming/ready"));
    /* Not at once again. */
    uint64_t before = r->frames;
    snapshots_fetch(r->nodes[2].snapshots, 1, 150);
    assert_true(idle_2(r));
    assert_int_equal(r->frames, before);
}

static void the_source_dies_and_another_takes_over(void **state)
{
    struct rig *r = *state;
    r->fast = true;
    leader_make(r, 1, 1);
    follower_make(r, 1, 30);
    snapshots_fetch(r->nodes[2].snapshots, 1, 150);
    run_until(r, half_2);
    r->cut[1] = true;
    run_until(r, idle_2); /* silent */
    assert_int_equal(r->nodes[2].fetched, 0);
    assert_true(there(&r->nodes[2], "incoming"));
    /* The new leader has the same entries, and a log and a store of its own making: other files under the same names. */
    leader_make(r, 3, 3);
    r->nodes[2].replica.leader = 3;
    atomic_fetch_add(&clock_ahead_us, 2000000);
    fetch_all(r);
    swapped_check(&r->nodes[2], &r->nodes[3], I, 3);
}

static void the_same_source_goes_on_where_it_was_cut_short(void **state)
{
    struct rig *r = *state;
    leader_make(r, 1, 1);
    follower_make(r, 1, 30);
    snapshots_fetch(r->nodes[2].snapshots, 1, 150);
    run_until(r, half_2);
    /* The node is killed and starts anew: nothing is ready, what is there counts. */
    struct buf error = {0};
    uint64_t first = r->range_bytes;
    node_close(&r->nodes[2]);
    assert_true(incoming_finish(r->nodes[2].dir, &error));
    parts_open(&r->nodes[2], MIB);
    mover_new(&r->nodes[2]);
    fetch_all(r);
    struct snapshots_view v;
    snapshots_view(r->nodes[1].snapshots, &v);
    assert_int_equal(v.serves_total, 2);
    assert_true(r->sames > 4);
    assert_true(r->range_bytes - first < first * 3 / 2);
    assert_int_equal(r->nodes[1].replica.pins, 2); /* still the one snapshot */
    swapped_check(&r->nodes[2], &r->nodes[1], I, 1);
}

/* What a failed write or sync covered must not be believed by the next try. */
static void after_an_error_of_the_disk_it_begins_anew(void **state)
{
    struct rig *r = *state;
    char path[FILES_PATH_BYTES];
    leader_make(r, 1, 1);
    follower_make(r, 1, 30);
    snapshots_fetch(r->nodes[2].snapshots, 1, 150);
    run_until(r, half_2);
    assert_true(there(&r->nodes[2], "incoming"));
    snprintf(path, sizeof path, "%s/incoming/configuration", r->nodes[2].dir); /* no file can be put there */
    assert_int_equal(files_make_dir(path), 0);
    r->fast = true;
    run_until(r, idle_2);
    assert_int_equal(r->nodes[2].fetched, 0);
    assert_false(there(&r->nodes[2], "incoming"));
    atomic_fetch_add(&clock_ahead_us, 60000000);
    r->sames = 0;
    fetch_all(r);
    assert_int_equal(r->sames, 0);
    swapped_check(&r->nodes[2], &r->nodes[1], I, 1);
}

static void remains_of_another_fetch_do_no_harm(void **state)
{
    struct rig *r = *state;
    leader_make(r, 1, 1);
    follower_make(r, 1, 30);
    struct node *n = &r->nodes[2];
    char path[300];
    static const char *const dirs[] = {"incoming", "incoming/store", "incoming/log", "incoming/else", "incoming/store/deep"};
    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", n->dir, dirs[i]);
        assert_int_equal(files_make_dir(path), 0);
    }
    /* Names that will come, with other bytes: longer, shorter; and names that will not. */
    char *junk = malloc(3 * MIB);
    assert_non_null(junk);
    memset(junk, 0x5a, 3 * MIB);
    static const char *const names[] = {"incoming/store/CURRENT",     "incoming/store/999999.sst",
                                        "incoming/store/CURRENT.tmp", "incoming/log/0000000000200000.seg",
                                        "incoming/log/next.tmp",      "incoming/ready",
                                        "incoming/configuration",     "incoming/store/deep/file",
                                        "incoming/else/file"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", n->dir, names[i]);
        assert_int_equal(files_write(path, 0, slice_make(junk, 3 * MIB)), 0);
    }
    /* The last segment, longer than what counts of it: behind its end there must be zeros. */
    uint64_t last = r->nodes[1].pos[I] / MIB * MIB;
    snprintf(path, sizeof path, "%s/incoming/log/%016llx.seg", n->dir, (unsigned long long)last);
    assert_int_equal(files_write(path, 0, slice_make(junk, MIB)), 0);
    free(junk);
    fetch_all(r);
    assert_false(there(n, "incoming/store/999999.sst"));
    assert_false(there(n, "incoming/else"));
    assert_false(there(n, "incoming/store/deep"));
    struct buf tail = {0};
    uint64_t end = 0;
    assert_int_equal(log_entry_end(r->nodes[1].log, r->nodes[1].pos[I], I, term_of(I), &end), LOG_OK);
    assert_int_equal(files_read(path, end - last, MIB, &tail), 0);
    assert_true(tail.len < 4096);
    for (size_t i = 0; i < tail.len; i++) assert_int_equal(tail.at[i], 0);
    buf_free(&tail);
    swapped_check(n, &r->nodes[1], I, 1);
}

/* The safety of it: what this node has acknowledged behind the state may not go. */
static void when_the_own_log_went_on_it_is_thrown_away(void **state)
{
    struct rig *r = *state;
    leader_make(r, 1, 1);
    follower_make(r, 1, 30);
    snapshots_fetch(r->nodes[2].snapshots, 1, 150);
    run_until(r, half_2);
    r->nodes[2].replica.last_index = I; /* a new leader had the entries */
    r->nodes[2].replica.entry_term = term_of(I);
    run_until(r, idle_2);
    assert_int_equal(r->nodes[2].fetched, 0);
    assert_false(there(&r->nodes[2], "incoming"));
    /* Nor is one begun that would not help. */
    atomic_fetch_add(&clock_ahead_us, 2000000);
    snapshots_fetch(r->nodes[2].snapshots, 1, 150);
    run_until(r, idle_2);
    assert_false(there(&r->nodes[2], "incoming"));
}

/* Its state is past that entry, which it does not even keep. */
static void when_the_own_state_went_on_it_is_thrown_away(void **state)
{
    struct rig *r = *state;
    leader_make(r, 1, 1);
    follower_make(r, 1, 30);
    snapshots_fetch(r->nodes[2].snapshots, 1, 150);
    run_until(r, half_2);
    r->nodes[2].replica.last_index = I + 50;
    r->nodes[2].replica.entry_term = 0;
    run_until(r, idle_2);
    assert_int_equal(r->nodes[2].fetched, 0);
    assert_false(there(&r->nodes[2], "incoming"));
}

/* Entries that no majority ever had, longer than the state: they do not count, and it could not catch up without it. */
static void entries_that_were_never_committed_do_not_keep_it_away(void **state)
{
    struct rig *r = *state;
    leader_make(r, 1, 1);
    follower_make(r, 1, 30);
    r->nodes[2].replica.last_index = I + 50;
    r->nodes[2].replica.entry_term = term_of(I) - 1;
    fetch_all(r);
    swapped_check(&r->nodes[2], &r->nodes[1], I, 1);
}

static void term_and_leader_must_fit_at_the_end(void **state)
{
    struct rig *r = *state;
    leader_make(r, 1, 1);
    follower_make(r, 1, 30);
    r->nodes[2].replica.term = term_of(I) - 1;
    snapshots_fetch(r->nodes[2].snapshots, 1, 150);
    run_until(r, idle_2);
    assert_int_equal(r->nodes[2].fetched, 0);
    assert_false(there(&r->nodes[2], "incoming/ready"));
    r->nodes[2].replica.term = term_of(I);
    atomic_fetch_add(&clock_ahead_us, 2000000);
    snapshots_fetch(r->nodes[2].snapshots, 1, 150);
    run_until(r, half_2);
    r->nodes[2].replica.leader = 3;
    run_until(r, idle_2);
    assert_int_equal(r->nodes[2].fetched, 0);
    r->nodes[2].replica.leader = 0; /* none known: no reason to stop */
    atomic_fetch_add(&clock_ahead_us, 2000000);
    snapshots_fetch(r->nodes[2].snapshots, 1, 150);
    run_until(r, fetched_2);
    swapped_check(&r->nodes[2], &r->nodes[1], I, 1);
}

static void a_node_that_does_not_lead_serves_nothing(void **state)
{
    struct rig *r = *state;
    leader_make(r, 1, 1);
    follower_make(r, 1, 30);
    r->nodes[1].replica.leader = 0;
    snapshots_fetch(r->nodes[2].snapshots, 1, 150);
    run_until(r, idle_2);
    assert_int_equal(r->nodes[1].replica.pins, 0);
    r->nodes[1].replica.leader = 1;
    atomic_fetch_add(&clock_ahead_us, 2000000);
    snapshots_fetch(r->nodes[2].snapshots, 1, 150);
    run_until(r, half_2);
    r->nodes[1].replica.leader = 0;
    run_until(r, idle_2);
    assert_int_equal(r->nodes[2].fetched, 0);
    r->fast = true;
    run_for(r, NULL, 2500);
    assert_false(r->nodes[1].replica.pinned);
    assert_false(there(&r->nodes[1], "snapshot"));
}

static bool gone_1(struct rig *r)
{
    struct snapshots_view v;
    snapshots_view(r->nodes[1].snapshots, &v);
    return !v.serving;
}

static void nobody_asks_and_it_goes(void **state)
{
    struct rig *r = *state;
    leader_make(r, 1, 1);
    follower_make(r, 1, 30);
    fetch_all(r);
    assert_true(there(&r->nodes[1], "snapshot/store/CURRENT"));
    int64_t from_us = clock_mono_us();
    r->fast = true;
    run_until(r, gone_1);
    assert_in_range(clock_mono_us() - from_us, SNAPSHOT_KEPT_US - 1000000, SNAPSHOT_KEPT_US + 3000000);
    assert_false(there(&r->nodes[1], "snapshot"));
    assert_false(r->nodes[1].replica.pinned);
}

static void two_nodes_fetch_the_same_one(void **state)
{
    struct rig *r = *state;
    leader_make(r, 1, 1);
    follower_make(r, 1, 30);
    node_open(r, 3, 1, MIB);
    snapshots_fetch(r->nodes[2].snapshots, 1, 150);
    snapshots_fetch(r->nodes[3].snapshots, 1, 150);
    run_until(r, fetched_2);
    r->fast = true;
    for (int i = 0; i < 1000 && r->nodes[3].fetched == 0; i++) run_for(r, NULL, 20);
    assert_int_equal(r->nodes[3].fetched, I);
    assert_int_equal(r->nodes[1].replica.pins, 2);
    swapped_check(&r->nodes[2], &r->nodes[1], I, 1);
    swapped_check(&r->nodes[3], &r->nodes[1], I, 1);
}

static void a_link_that_comes_back_is_used_at_once(void **state)
{
    struct rig *r = *state;
    leader_make(r, 1, 1);
    follower_make(r, 1, 30);
    snapshots_fetch(r->nodes[2].snapshots, 1, 150);
    run_until(r, half_2);
    r->cut[1] = true;
    run_for(r, NULL, 100);
    r->cut[1] = false;
    int64_t from_us = clock_mono_us();
    snapshots_link(r->nodes[2].snapshots, 1, false);
    snapshots_link(r->nodes[2].snapshots, 3, true);
    snapshots_link(r->nodes[2].snapshots, 1, true);
    run_until(r, fetched_2);
    assert_true(clock_mono_us() - from_us < FETCH_RETRY_US - 100000);
}

static void remains_nobody_goes_on_with_are_removed(void **state)
{
    struct rig *r = *state;
    leader_make(r, 1, 1);
    follower_make(r, 1, 30);
    snapshots_fetch(r->nodes[2].snapshots, 1, 150);
    run_until(r, half_2);
    node_close(&r->nodes[2]);
    parts_open(&r->nodes[2], MIB);
    mover_new(&r->nodes[2]);
    r->fast = true;
    run_for(r, NULL, INCOMING_KEPT_US / 1000 - 5000);
    assert_true(there(&r->nodes[2], "incoming/store"));
    run_for(r, NULL, 6000);
    assert_false(there(&r->nodes[2], "incoming"));
}

/* Frames from outside: cut short, of no kind, with impossible numbers. Nothing is read that is not there, nothing is asserted. */
static void bytes_that_are_no_frames_are_dropped(void **state)
{
    struct rig *r = *state;
    leader_make(r, 1, 1);
    follower_make(r, 1, 30);
    snapshots_fetch(r->nodes[2].snapshots, 1, 150);
    run_until(r, half_2);
    uint64_t id = r->nodes[1].snapshots->source.id;
    uint32_t files = r->nodes[1].snapshots->source.manifest.count;
    r->nodes[1].reaches = UINT32_MAX; /* who wants a newer state waits for it */
    for (int n = 0; n < 20000; n++) {
        char at[64];
        size_t len = draw(r, sizeof at);
        for (size_t i = 0; i < len; i++) at[i] = (char)draw(r, 256);
        if (len > 0) at[0] = (char)draw(r, FRAME_LAST + 1);
        if (len > 0 && at[0] == FRAME_GONE) at[0] = 0; /* it is not signed by anything but its sender */
        if (len > 9 && draw(r, 4) != 0) memcpy(at + 1, &id, sizeof id);
        uint32_t file = draw(r, files + 2);
        if (len > 13 && draw(r, 4) != 0) memcpy(at + 9, &file, sizeof file);
        struct slice frame = slice_make(at, len);
        snapshots_receive(r->nodes[1 + draw(r, 2)].snapshots, 1 + draw(r, 3), frame);
    }
    run_until(r, fetched_2);
    swapped_check(&r->nodes[2], &r->nodes[1], I, 1);
}

static bool told_2(struct rig *r)
{
    return r->nodes[2].told_by != 0;
}

static void a_repair_takes_what_is_not_older(void **state)
{
    struct rig *r = *state;
    leader_make(r, 1, 1);
    follower_make(r, 1, 30);
    struct node *leader = &r->nodes[1], *n = &r->nodes[2];
    snapshots_free(n->snapshots);
    n->repairs = true;
    mover_new(n);
    snapshots_who(n->snapshots, 3); /* which does not lead */
    snapshots_who(n->snapshots, 1);
    run_until(r, told_2);
    assert_int_equal(n->told_by, 1);
    assert_int_equal(n->told_term, leader->replica.term);
    assert_int_equal(n->told_last, leader->replica.last_index);

    /* The state that is there is older than what is wanted, and so is the one that is taken for it. */
    snapshots_repair(n->snapshots, 1, I + 1);
    r->fast = true;
    run_until(r, idle_2);
    assert_int_equal(n->fetched, 0);
    assert_true(leader->replica.pinned);

    /* One that is not older is fetched, once the source has it. Our own log has nothing to say. */
    atomic_fetch_add(&clock_ahead_us, FETCH_AGAIN_US);
    leader->reaches = 3;
    leader->snapshots->source.manifest.mark.index = I - 1; /* as if it had been taken before */
    snapshots_repair(n->snapshots, 1, I);
    run_until(r, fetched_2);
    assert_int_equal(leader->reaches, 0);
    assert_int_equal(n->fetched, I);
    swapped_check(n, leader, I, 1);
}

static void manifests_of_others_are_refused(void **state)
{
    struct rig *r = *state;
    leader_make(r, 1, 1);
    follower_make(r, 1, 30);
    r->nodes[1].snapshots->o.cluster = (struct uuid){{8}};
    snapshots_fetch(r->nodes[2].snapshots, 1, 150);
    run_until(r, idle_2);
    assert_int_equal(r->nodes[2].fetched, 0);
    assert_false(there(&r->nodes[2], "incoming"));
    r->fast = true;
    r->nodes[2].snapshots->o.cluster = (struct uuid){{0}}; /* any */
    atomic_fetch_add(&clock_ahead_us, FETCH_AGAIN_FAILED_US);
    fetch_all(r);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
    const struct CMUnitTest tests[] = {
        TEST(the_state_is_fetched_and_goes_on),
        TEST(without_entries_beyond_it),
        TEST(a_source_without_any_state_has_nothing),
        TEST(the_log_is_trimmed_and_written_on_while_it_is_served),
        TEST(lost_frames_are_asked_for_again),
        TEST(damaged_ranges_are_asked_for_again),
        TEST(nothing_but_damage_is_given_up),
        TEST(the_source_dies_and_another_takes_over),
        TEST(the_same_source_goes_on_where_it_was_cut_short),
        TEST(after_an_error_of_the_disk_it_begins_anew),
        TEST(remains_of_another_fetch_do_no_harm),
        TEST(when_the_own_log_went_on_it_is_thrown_away),
        TEST(when_the_own_state_went_on_it_is_thrown_away),
        TEST(entries_that_were_never_committed_do_not_keep_it_away),
        TEST(term_and_leader_must_fit_at_the_end),
        TEST(a_node_that_does_not_lead_serves_nothing),
        TEST(nobody_asks_and_it_goes),
        TEST(two_nodes_fetch_the_same_one),
        TEST(a_link_that_comes_back_is_used_at_once),
        TEST(remains_nobody_goes_on_with_are_removed),
        TEST(bytes_that_are_no_frames_are_dropped),
        TEST(manifests_of_others_are_refused),
        TEST(a_repair_takes_what_is_not_older),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
