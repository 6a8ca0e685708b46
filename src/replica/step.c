/* Feeding raft and carrying out what it wants, in this order:
 *
 *   term or vote  written and synced before anything else of the update and before the next step
 *   entries       to the log, by index; the disk thread makes them durable -> step_synced -> PERSISTED_ENTRIES
 *   commit index  our own maximum: raft's may go back
 *   state, timer
 *
 * An entry's body is already in the log's memory when it is the caller's (replica_reserve). Entries of raft's own (a barrier) are copied
 * there; if the caller's reservation is open then, they wait aside and are appended first when it ends, since the log has one
 * reservation only and needs its indexes in order. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "replica/replica_inner.h"

/* Marks a batch whose memory is not raft's to give or take. */
static char batch_ours;

static void entry_logged(struct replica *r, uint64_t index, uint64_t term, uint8_t type, size_t len, uint64_t pos)
{
    struct slot s = {.pos = pos, .term = term, .len = (uint32_t)len, .type = type};
    for (uint64_t i = index; i < r->ring.next; i++) r->flight_bytes -= ring_at(&r->ring, i)->len; /* cut */
    ring_put(&r->ring, index, &s);
    marks_note(&r->marks, index, term, pos);
    r->flight_bytes += len;
}

static void body_copy_append(struct replica *r, uint64_t index, uint64_t term, uint8_t type, struct slice body)
{
    char *at = log_reserve(r->log, body.len);
    if (body.len > 0) memcpy(at, body.at, body.len);
    entry_logged(r, index, term, type, body.len, log_append(r->log, index, term, type, body.len));
}

static void entry_append(struct replica *r, uint64_t index, const struct raft_entry *e)
{
    must(index > r->applied && e->term > 0 && e->buf.len <= UINT32_MAX);
    uint8_t type = (uint8_t)e->type;
    if (r->reserved != NULL && e->buf.base == r->reserved) {
        entry_logged(r, index, e->term, type, e->buf.len, log_append(r->log, index, e->term, type, e->buf.len));
        r->reserved = NULL;
    } else if (r->reserved != NULL) {
        struct aside_head h = {.index = index, .term = e->term, .len = e->buf.len, .type = type};
        buf_put(&r->aside, &h, sizeof h);
        buf_put(&r->aside, e->buf.base, e->buf.len);
    } else {
        body_copy_append(r, index, e->term, type, slice_make(e->buf.base, e->buf.len));
    }
}

void step_aside_flush(struct replica *r)
{
    must(r->reserved == NULL);
    size_t at = 0;
    while (at < r->aside.len) {
        struct aside_head h;
        memcpy(&h, r->aside.at + at, sizeof h);
        at += sizeof h;
        body_copy_append(r, h.index, h.term, h.type, slice_make(r->aside.at + at, h.len));
        at += h.len;
    }
    buf_clear(&r->aside);
    log_flush(r->log);
}

static void entries_append(struct replica *r, const struct raft_update *u)
{
    must(u->entries.n > 0);
    for (unsigned i = 0; i < u->entries.n; i++) entry_append(r, u->entries.index + i, &u->entries.batch[i]);
    void *batch = u->entries.batch[0].batch;
    if (batch != &batch_ours) raft_free(batch);
    log_flush(r->log);
}

static bool term_write(struct replica *r)
{
    struct buf error = {0};
    enum log_status status = meta_write(&r->meta, raft_current_term(&r->raft), raft_voted_for(&r->raft), &error);
    if (status != LOG_OK) {
        buf_byte(&error, '\0');
        replica_fail(r, error.at);
    }
    buf_free(&error);
    return status == LOG_OK;
}

static void update_carry_out(struct replica *r, const struct raft_update *u)
{
    bool term_moved = (u->flags & (RAFT_UPDATE_CURRENT_TERM)) != 0 || (u->flags & (RAFT_UPDATE_VOTED_FOR)) != 0;
    if (term_moved && !term_write(r)) return;
    if ((u->flags & (RAFT_UPDATE_ENTRIES)) != 0) entries_append(r, u);
    /* With one voter nobody is there to send to or to install from. */
    must((u->flags & (RAFT_UPDATE_SNAPSHOT)) == 0);
    must(u->messages.n == 0);
    if ((u->flags & (RAFT_UPDATE_COMMIT_INDEX)) != 0) {
        uint64_t commit = raft_commit_index(&r->raft);
        if (commit > r->commit_max) r->commit_max = commit;
    }
    if ((u->flags & (RAFT_UPDATE_STATE)) != 0 && raft_state(&r->raft) == RAFT_LEADER) r->lead_index = raft_last_index(&r->raft);
    if ((u->flags & (RAFT_UPDATE_TIMEOUT)) != 0 || (u->flags & (RAFT_UPDATE_STATE)) != 0) step_timer_arm(r);
}

int step_run(struct replica *r, struct raft_event *event)
{
    must(!r->stepping);
    r->stepping = true;
    event->time = (raft_time)(loop_now_us(r->o.loop) / 1000);
    event->capacity = USHRT_MAX;
    struct raft_update update = {0};
    int rv = raft_step(&r->raft, event, &update);
    if (rv == 0) update_carry_out(r, &update);
    r->stepping = false;
    return rv;
}

/* An event that one voter cannot refuse. */
static void step_must(struct replica *r, struct raft_event *event)
{
    int rv = step_run(r, event);
    if (rv == 0) return;
    char what[RAFT_ERRMSG_BUF_SIZE + 64];
    snprintf(what, sizeof what, "raft: event %d is refused: %s", (int)event->type, raft_strerror(rv));
    replica_fail(r, what);
}

/* ---- submitting */

static uint64_t submit(struct replica *r, enum raft_entry_type type, void *at, size_t bytes)
{
    struct raft_entry entry = {
        .term = raft_current_term(&r->raft), .type = type, .buf = {.base = at, .len = bytes}, .batch = &batch_ours};
    struct raft_event event = {.type = RAFT_SUBMIT, .submit = {.entries = &entry, .n = 1}};
    uint64_t index = raft_last_index(&r->raft) + 1;
    if (step_run(r, &event) != 0) return 0;
    must(raft_last_index(&r->raft) == index);
    return index;
}

uint64_t step_submit_own(struct replica *r, enum raft_entry_type type, struct slice body)
{
    if (raft_state(&r->raft) != RAFT_LEADER || atomic_load(&r->broken)) return 0;
    return submit(r, type, (void *)(uintptr_t)body.at, body.len);
}

char *replica_reserve(struct replica *r, size_t bytes_max)
{
    r->reserved = NULL; /* one that was never submitted is forgotten */
    if (r->aside.len > 0) step_aside_flush(r);
    r->reserved = log_reserve(r->log, bytes_max);
    r->reserved_bytes = bytes_max;
    return r->reserved;
}

/* Entries of raft's own were made since the body was reserved: they go first, so the body moves. */
static void body_move_behind(struct replica *r, size_t bytes)
{
    struct buf body = {0};
    buf_put(&body, r->reserved, bytes);
    r->reserved = NULL;
    step_aside_flush(r);
    r->reserved = log_reserve(r->log, bytes);
    if (bytes > 0) memcpy(r->reserved, body.at, bytes);
    buf_free(&body);
}

uint64_t replica_submit(struct replica *r, size_t bytes)
{
    must(r->reserved != NULL && bytes <= r->reserved_bytes);
    uint64_t index = 0;
    if (r->aside.len > 0) body_move_behind(r, bytes);
    if (r->role == REPLICA_LEADER && !atomic_load_explicit(&r->broken, memory_order_relaxed)) {
        index = submit(r, RAFT_COMMAND, r->reserved, bytes);
    }
    r->reserved = NULL;
    return index;
}

/* ---- becoming durable */

static struct replica *replica_of_task(struct loop_task *task)
{
    return (struct replica *)(void *)((char *)task - offsetof(struct replica, synced_task));
}

void step_synced(struct loop_task *task)
{
    struct replica *r = replica_of_task(task);
    atomic_store(&r->synced_posted, false); /* first: a sync from here on posts again */
    if (atomic_load(&r->broken)) return;
    uint64_t index = log_synced_index(r->log);
    if (index > r->raft.last_stored) {
        must(index <= raft_last_index(&r->raft) && !r->raft.snapshot.installing);
        struct raft_event event = {.type = RAFT_PERSISTED_ENTRIES, .persisted_entries.index = index};
        step_must(r, &event);
    }
    apply_run(r);
}

/* ---- time */

void step_timer_arm(struct replica *r)
{
    /* The only server of its configuration has nobody to send heartbeats to and is its own majority: as a leader it never
     * needs the timer, and without it an idle group never wakes. */
    if (raft_state(&r->raft) == RAFT_LEADER && r->raft.configuration.n == 1) {
        loop_timer_cancel(r->o.loop, &r->timer);
        return;
    }
    loop_timer_set(r->o.loop, &r->timer, (int64_t)raft_timeout(&r->raft) * 1000);
}

void step_timeout(struct loop_timer *timer)
{
    struct replica *r = (struct replica *)(void *)((char *)timer - offsetof(struct replica, timer));
    if (atomic_load(&r->broken)) return;
    struct raft_event event = {.type = RAFT_TIMEOUT};
    step_must(r, &event);
    step_timer_arm(r);
    role_update(r);
}
