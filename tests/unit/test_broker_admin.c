/* Long polls while operators seek, delete and re-date their groups and move dead letters: a real engine, log, replica and store. */
#include "test_broker_rig.h"

static struct shot *write_start(struct rig *r, struct shot *s)
{
    (void)r;
    shot_write(s, false);
    return s;
}

static struct shot *seek(struct rig *r, const char *queue, const char *lane, const char *group, bool to_end)
{
    struct shot *s = shot_new(r, CALL_WRITE);
    struct seek_command c = {.tenant = rig_tenant,
                             .to_end = to_end,
                             .has_partition = lane != NULL,
                             .group = slice_of(group),
                             .queue = slice_of(queue),
                             .partition = slice_of(lane == NULL ? "" : lane)};
    seek_encode(&s->command, &c);
    return write_start(r, s);
}

static struct shot *group_delete(struct rig *r, const char *queue, const char *group, bool keep)
{
    struct shot *s = shot_new(r, CALL_WRITE);
    struct group_delete_command c = {
        .tenant = rig_tenant, .keep_registration = keep, .group = slice_of(group), .queue = slice_of(queue)};
    group_delete_encode(&s->command, &c);
    return write_start(r, s);
}

static struct shot *redate(struct rig *r, const char *group, int64_t us)
{
    struct shot *s = shot_new(r, CALL_WRITE);
    struct subscription_command c = {.tenant = rig_tenant, .us = us, .group = slice_of(group)};
    subscription_encode(&s->command, &c);
    return write_start(r, s);
}

static void expect_changed(struct shot *s, uint32_t lanes)
{
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_int_equal(s->call.result.changed.lanes, lanes);
    shot_free(s);
}

/* The group has consumed the one message of lane "a". */
static void consumed(struct rig *r, const char *group)
{
    push(r, "q", "a", "0");
    struct shot *s = pop_start(r, (struct pop_wish){.queue = "q", .group = group, .auto_ack = true});
    expect_payload(s, "0");
    shot_free(s);
}

/* A caller that is parked leaves only when somebody wakes it: far before its time is up, and with one pop in the log. */
static void expect_woken(struct shot *s, const char *payload)
{
    expect_payload(s, payload);
    shot_free(s);
}

/* ---- seek ----------------------------------------------------------------------------------------------------------- */

static void test_a_seek_back_wakes_a_waiting_caller(void **state)
{
    struct rig *r = *state;
    consumed(r, "g");
    struct shot *s = poll_start(r, (struct pop_wish){.queue = "q", .group = "g"});
    uint64_t c = commands(r);
    expect_changed(seek(r, "q", NULL, "g", false), 1);
    expect_woken(s, "0");
    assert_int_equal(commands(r), c + 2); /* the seek and one pop */
}

static void test_a_seek_wakes_as_many_as_there_are_lanes(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a,b", "0");
    struct shot *all =
        pop_start(r, (struct pop_wish){.queue = "q", .group = "g", .batch = 10, .partitions = 10, .auto_ack = true});
    assert_int_equal(shot_wait(all), CALL_OK);
    shot_free(all);
    struct shot *s[3];
    for (int i = 0; i < 3; i++) s[i] = poll_start(r, (struct pop_wish){.queue = "q", .group = "g", .lease_ms = 60000});
    uint64_t c = commands(r);
    expect_changed(seek(r, "q", NULL, "g", false), 2);
    expect_woken(s[0], "0");
    expect_woken(s[1], "0");
    assert_int_equal(commands(r), c + 3);
    assert_false(s[2]->done);
    cancel(s[2]);
}

static void test_a_seek_makes_a_group_known_to_its_pinned_callers(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "0");
    struct shot *s = poll_start(r, (struct pop_wish){.queue = "q", .lane = "a", .group = "g", .from_new = true});
    struct shot *other = poll_start(r, (struct pop_wish){.queue = "q", .lane = "a", .group = "h", .from_new = true});
    expect_changed(seek(r, "q", "a", "g", false), 1);
    expect_woken(s, "0");
    assert_false(other->done);
    cancel(other);
}

static void test_a_seek_frees_what_a_lease_held(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "0");
    struct shot *held = pop_start(r, (struct pop_wish){.queue = "q", .group = "g", .lease_ms = 600000});
    expect_payload(held, "0");
    struct shot *wide = poll_start(r, (struct pop_wish){.queue = "q", .group = "g", .lease_ms = 600000});
    expect_changed(seek(r, "q", NULL, "g", false), 1);
    expect_woken(wide, "0");
    struct shot *pinned = poll_start(r, (struct pop_wish){.queue = "q", .lane = "a", .group = "g"});
    expect_changed(seek(r, "q", "a", "g", false), 1);
    expect_woken(pinned, "0");
    shot_free(held);
}

/* Beside other calls a piece looks at few lanes only; with nothing else it does what it was asked for. */
static void test_pieces_are_small_beside_other_calls(void **state)
{
    enum { LANES = 3 * BULK_SMALL };
    struct rig *r = *state;
    char lane[16];
    for (int i = 0; i < LANES; i++) {
        snprintf(lane, sizeof lane, "l%d", i);
        push(r, "q", lane, "\"1\"");
    }
    struct shot *s = seek(r, "q", NULL, "g", false);
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_int_equal(s->call.result.changed.lanes, BULK_SMALL);
    assert_true(s->call.result.changed.more);
    struct seek_command rest = {
        .tenant = rig_tenant, .group = slice_of("g"), .queue = slice_of("q"), .piece = s->call.result.changed.next};
    shot_free(s);
    rig_pass(r, 2 * PACE_QUIET_US / 1000);
    s = shot_new(r, CALL_WRITE);
    seek_encode(&s->command, &rest);
    write_start(r, s);
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_int_equal(s->call.result.changed.lanes, LANES - BULK_SMALL);
    assert_false(s->call.result.changed.more);
    shot_free(s);
}

static void test_a_seek_to_the_end_leaves_callers_waiting(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "0");
    struct shot *held = pop_start(r, (struct pop_wish){.queue = "q", .group = "g", .lease_ms = 50});
    expect_payload(held, "0");
    struct shot *s = poll_start(r, (struct pop_wish){.queue = "q", .group = "g"});
    expect_changed(seek(r, "q", NULL, "g", true), 1);
    rig_pass(r, 150); /* past the end of the lease that is no more */
    assert_false(s->done);
    push(r, "q", "a", "1");
    expect_woken(s, "1");
    shot_free(held);
}

/* ---- delete --------------------------------------------------------------------------------------------------------- */

static void test_callers_of_a_deleted_group_make_it_known_again(void **state)
{
    struct rig *r = *state;
    consumed(r, "g");
    struct shot *s = poll_start(r, (struct pop_wish){.queue = "q", .group = "g"});
    expect_changed(group_delete(r, "q", "g", false), 1);
    expect_woken(s, "0"); /* it wants all, and begins anew */
}

static void test_callers_of_a_deleted_group_that_want_new_messages(void **state)
{
    struct rig *r = *state;
    consumed(r, "g");
    struct shot *wide = poll_start(r, (struct pop_wish){.queue = "q", .group = "g", .from_new = true});
    struct shot *pinned = poll_start(r, (struct pop_wish){.queue = "q", .lane = "b", .group = "g", .from_new = true});
    expect_changed(group_delete(r, "q", "g", false), 1);
    rig_pass(r, 50);
    assert_false(wide->done || pinned->done);
    push(r, "q", "b", "1");
    expect_woken(pinned, "1");
    push(r, "q", "c", "2");
    expect_woken(wide, "2");
}

static void test_a_group_deleted_with_nothing_left_costs_one_pop(void **state)
{
    struct rig *r = *state;
    consumed(r, "g");
    struct shot *s[3];
    for (int i = 0; i < 3; i++) s[i] = poll_start(r, (struct pop_wish){.queue = "q", .group = "g", .from_new = true});
    uint64_t c = commands(r);
    expect_changed(group_delete(r, "", "g", false), 1);
    rig_pass(r, 50);
    assert_int_equal(commands(r), c + 2); /* the delete, and the pop that makes the group known */
    for (int i = 0; i < 3; i++) assert_false(s[i]->done);
    push(r, "q", "a", "1");
    expect_woken(s[0], "1");
    cancel(s[1]);
    cancel(s[2]);
}

static void test_deleting_another_group_or_queue_wakes_nobody(void **state)
{
    struct rig *r = *state;
    consumed(r, "g");
    push(r, "other", "a", "0");
    struct shot *known = pop_start(r, (struct pop_wish){.queue = "other", .group = "g", .auto_ack = true});
    expect_payload(known, "0");
    shot_free(known);
    known = pop_start(r, (struct pop_wish){.queue = "q", .group = "h", .auto_ack = true});
    expect_payload(known, "0");
    shot_free(known);
    struct shot *s = poll_start(r, (struct pop_wish){.queue = "q", .group = "g"});
    expect_changed(group_delete(r, "q", "h", false), 1);
    expect_changed(group_delete(r, "other", "g", false), 1);
    rig_pass(r, 30);
    assert_false(s->done);
    push(r, "q", "a", "1");
    expect_woken(s, "1");
}

static void test_a_delete_that_keeps_the_registration_starts_it_anew(void **state)
{
    struct rig *r = *state;
    consumed(r, "g");
    struct shot *s = poll_start(r, (struct pop_wish){.queue = "q", .group = "g", .from_new = true});
    expect_changed(group_delete(r, "q", "g", true), 1);
    expect_woken(s, "0"); /* it was registered for all */
}

static void test_a_pop_in_flight_when_its_group_is_deleted(void **state)
{
    struct rig *r = *state;
    consumed(r, "g");
    struct shot *waits = poll_start(r, (struct pop_wish){.queue = "q", .group = "g", .from_new = true});
    struct shot *d = group_delete(r, "q", "g", false);
    struct shot *p = push_start(r, "q", "a", "1");
    struct shot *late = pop_start(r, (struct pop_wish){.queue = "q", .group = "g", .from_new = true, .wait_ms = 20000});
    expect_changed(d, 1);
    assert_int_equal(shot_wait(p), CALL_OK);
    shot_free(p);
    push(r, "q", "a,b", "2");
    assert_int_equal(shot_wait(waits), CALL_OK);
    assert_int_equal(shot_wait(late), CALL_OK);
    shot_free(waits);
    shot_free(late);
    assert_int_equal(parked(r), 0);
}

/* ---- re-date -------------------------------------------------------------------------------------------------------- */

static void test_an_earlier_date_wakes_callers(void **state)
{
    struct rig *r = *state;
    push(r, "q", "a", "0");
    struct shot *s = poll_start(r, (struct pop_wish){.queue = "q", .group = "g", .from_new = true});
    struct shot *other = poll_start(r, (struct pop_wish){.queue = "q", .group = "h", .from_new = true});
    expect_changed(redate(r, "g", 0), 1);
    expect_woken(s, "0");
    assert_false(other->done);
    expect_changed(redate(r, "h", 0), 1);
    expect_woken(other, "0");
}

/* ---- dead letters --------------------------------------------------------------------------------------------------- */

struct letter {
    struct uuid id;
    uint64_t count;
};

static void letter_read(struct call *c, struct engine *e, struct engine_now now)
{
    struct letter *l = c->read_ctx;
    struct dead_letter_view v;
    (void)now;
    l->count = 0;
    for (uint64_t before = UINT64_MAX; engine_dead_letter_next(e, rig_tenant, slice_of(""), slice_of(""), &before, &v);
         l->count++)
        l->id = v.id;
}

static struct letter oldest_letter(struct rig *r)
{
    struct letter l = {0};
    struct shot *s = shot_new(r, CALL_READ);
    s->call.read = letter_read;
    s->call.read_ctx = &l;
    broker_submit(r->broker, &s->call);
    assert_int_equal(shot_wait(s), CALL_OK);
    shot_free(s);
    return l;
}

static void bury(struct rig *r, const char *payload)
{
    push(r, "q", "a", payload);
    struct shot *s = pop_start(r, (struct pop_wish){.queue = "q"});
    expect_payload(s, payload);
    struct shot *a = ack_start(r, s, ACK_DLQ);
    assert_int_equal(shot_wait(a), CALL_OK);
    shot_free(a);
    shot_free(s);
}

static struct shot *move_start(struct rig *r, struct uuid letter, const char *queue, const char *lane, const char *payload)
{
    struct shot *s = shot_new(r, CALL_WRITE);
    struct push_writer w;
    struct push_item item = {.flags = ITEM_TRANSACTION, .transaction = slice_of("dlq:x"), .payload = slice_of(payload)};
    size_t at = letter_move_begin(&s->command, rig_tenant, letter);
    push_begin(&w, &s->command, rig_tenant);
    push_group_begin(&w, slice_of(queue), slice_of(lane), 1);
    push_item_add(&w, &item);
    push_group_end(&w);
    push_end(&w);
    letter_move_end(&s->command, at);
    shot_write(s, true);
    return s;
}

static void expect_fate(struct shot *s, enum letter_fate fate)
{
    assert_int_equal(shot_wait(s), CALL_OK);
    assert_int_equal(s->call.result.letter_move.fate, fate);
    shot_free(s);
}

static void test_a_moved_letter_is_handed_to_who_waits(void **state)
{
    struct rig *r = *state;
    bury(r, "0");
    struct letter l = oldest_letter(r);
    assert_int_equal(l.count, 1);
    struct shot *wide = poll_start(r, (struct pop_wish){.queue = "to", .from_new = true});
    uint64_t e = entries(r);
    expect_fate(move_start(r, l.id, "to", "b", "0"), LETTER_MOVED);
    expect_woken(wide, "0");
    assert_int_equal(entries(r), e + 1); /* in the move's own entry */
    assert_int_equal(oldest_letter(r).count, 0);
}

static void test_a_move_that_finds_nothing_leaves_callers_waiting(void **state)
{
    struct rig *r = *state;
    bury(r, "0");
    struct letter l = oldest_letter(r);
    struct shot *pinned = poll_start(r, (struct pop_wish){.queue = "q", .lane = "a"});
    struct shot *unknown = poll_start(r, (struct pop_wish){.queue = "to", .lane = "b", .group = "g", .from_new = true});
    expect_fate(move_start(r, uuid_mint(clock_wall_us()), "q", "a", "0"), LETTER_GONE);
    expect_fate(move_start(r, uuid_mint(clock_wall_us()), "to", "b", "0"), LETTER_GONE);
    rig_pass(r, 20);
    assert_false(pinned->done || unknown->done);
    expect_fate(move_start(r, l.id, "to", "b", "0"), LETTER_MOVED);
    expect_woken(unknown, "0");
    assert_false(pinned->done);
    cancel(pinned);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_rig(test_a_seek_back_wakes_a_waiting_caller),
        with_rig(test_a_seek_wakes_as_many_as_there_are_lanes),
        with_rig(test_a_seek_makes_a_group_known_to_its_pinned_callers),
        with_rig(test_a_seek_frees_what_a_lease_held),
        with_rig(test_pieces_are_small_beside_other_calls),
        with_rig(test_a_seek_to_the_end_leaves_callers_waiting),
        with_rig(test_callers_of_a_deleted_group_make_it_known_again),
        with_rig(test_callers_of_a_deleted_group_that_want_new_messages),
        with_rig(test_a_group_deleted_with_nothing_left_costs_one_pop),
        with_rig(test_deleting_another_group_or_queue_wakes_nobody),
        with_rig(test_a_delete_that_keeps_the_registration_starts_it_anew),
        with_rig(test_a_pop_in_flight_when_its_group_is_deleted),
        with_rig(test_an_earlier_date_wakes_callers),
        with_rig(test_a_moved_letter_is_handed_to_who_waits),
        with_rig(test_a_move_that_finds_nothing_leaves_callers_waiting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
