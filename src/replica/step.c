/* Feeding raft and carrying out what it wants, in this order:
 *
 *   term or vote  written and synced before anything else of the update and before the next step
 *   entries       to the log, by index; the disk thread makes them durable -> step_synced -> PERSISTED_ENTRIES
 *   commit index  our own maximum: raft's may go back
 *   messages      to the wire at once: they live in raft's memory until the next step
 *   state, timer
 *
 * An entry's body is already in the log's memory when it is the caller's (replica_reserve). Others (a barrier, what a leader sends) are
 * copied there; if the caller's reservation is open then, they wait aside and are appended first when it ends, since the log has one
 * reservation only and needs its indexes in order. Entries aside are durable for nobody yet; an entry there counts before one of
 * the same index in the ring, which is about to be cut. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/logger.h"
#include "base/planted.h"
#include "replica/replica_inner.h"

enum { STALL_READ_US = 5000 };

/* Marks a batch whose memory is not raft's to give or take. */
static char batch_ours;

/* ---- entries by index */

bool entry_find(const struct replica *r, uint64_t index, struct slot *slot, struct slice *aside_body)
{
    bool found = ring_has(&r->ring, index);
    *aside_body = (struct slice){0};
    if (found) *slot = *ring_at(&r->ring, index);
    if (r->aside.len == 0 || index < r->aside_first) return found;
    for (size_t at = 0; at < r->aside.len;) {
        struct aside_head h;
        memcpy(&h, r->aside.at + at, sizeof h);
        at += sizeof h;
        if (h.index == index) {
            *slot = (struct slot){.term = h.term, .len = (uint32_t)h.len, .type = h.type};
            *aside_body = slice_make(r->aside.at + at, h.len);
            found = true;
        }
        at += h.len;
    }
    return found;
}

uint64_t term_of(const struct replica *r, uint64_t index)
{
    struct slot s;
    struct slice aside;
    if (index == 0 || index > raft_last_index((struct raft *)(uintptr_t)&r->raft)) return 0;
    if (entry_find(r, index, &s, &aside)) return s.term;
    return index == r->raft.trail.snapshot.index ? r->raft.trail.snapshot.term : 0;
}

uint64_t stored_commit(const struct replica *r)
{
    if (PLANTED("answer-before-quorum") && r->raft.state == RAFT_LEADER) return r->raft.last_stored;
    if (PLANTED("apply-before-durable")) return r->commit_max < r->ring.next - 1 ? r->commit_max : r->ring.next - 1;
    return r->commit_max < r->raft.last_stored ? r->commit_max : r->raft.last_stored;
}

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

/* The first entry of a node that waited for it: its configuration is stored before it, so that a log with entries never lacks one. */
static bool first_conf_store(struct replica *r, uint64_t index, const struct raft_entry *e)
{
    must(index == 1 && e->type == RAFT_CHANGE && r->meta.waits);
    struct buf error = {0};
    r->conf.index = 1;
    buf_clear(&r->conf.encoded);
    buf_put(&r->conf.encoded, e->buf.base, e->buf.len);
    bool ok = conf_store(r->dir, &r->conf, &error) == LOG_OK;
    if (!ok) {
        buf_byte(&error, '\0');
        replica_fail(r, error.at);
    }
    buf_free(&error);
    return ok;
}

static void entry_append(struct replica *r, uint64_t index, const struct raft_entry *e)
{
    must(index > r->applied && e->term > 0 && e->buf.len <= UINT32_MAX);
    uint8_t type = (uint8_t)e->type;
    if (r->conf.index == 0 && !first_conf_store(r, index, e)) return;
    if (r->reserved != NULL && e->buf.base == r->reserved) {
        entry_logged(r, index, e->term, type, e->buf.len, log_append(r->log, index, e->term, type, e->buf.len));
        r->reserved = NULL;
    } else if (r->reserved != NULL) {
        struct aside_head h = {.index = index, .term = e->term, .len = e->buf.len, .type = type};
        if (r->aside.len == 0 || index < r->aside_first) r->aside_first = index;
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
    log_flush(r->log);
    void *batch = u->entries.batch[0].batch;
    if (batch == &batch_ours) return;
    for (unsigned i = 0; r->o.arrived != NULL && i < u->entries.n; i++) {
        const struct raft_entry *e = &u->entries.batch[i];
        if (e->type == RAFT_COMMAND) r->o.arrived(r->o.ctx, u->entries.index + i, slice_make(e->buf.base, e->buf.len));
    }
    raft_free(batch);
}

/* ---- term and vote */

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

/* The only voter leads without an election, and raft lets it do so in the term it had: which may be another leader's, when the voters
 * became one. We hold that election on its behalf. */
static void sole_term_begin(struct replica *r)
{
    if (raft_state(&r->raft) != RAFT_FOLLOWER || !sole_voter(r)) return;
    r->raft.current_term++;
    r->raft.voted_for = r->identity.node;
    term_write(r);
}

/* ---- messages */

static void vote_result_send(struct replica *r, const struct raft_message *m)
{
    const struct raft_request_vote_result *v = &m->request_vote_result;
    struct frame f = {.kind = FRAME_VOTED,
                      .message_version = v->version,
                      .term = v->term,
                      .features = v->features,
                      .capacity = v->capacity,
                      .flags = (uint8_t)((v->pre_vote ? FRAME_PRE_VOTE : 0) | (v->vote_granted ? FRAME_GRANTED : 0))};
    /* raft repeats the question's term, so that a candidate with an old one would never learn of ours and ask in vain for
     * ever; when its log is the longer one, nobody else can win either. */
    if (v->pre_vote && !v->vote_granted && raft_current_term(&r->raft) > f.term) f.term = raft_current_term(&r->raft);
    frame_send(r, m->server_id, &f);
}

/* The last entry that may be the leader's too when it named another one than ours at `rejected`. raft goes back one entry at a time; all
 * those of one term are passed over at once, but none that is known to be the same. */
static uint64_t rejected_hint(const struct replica *r, uint64_t rejected, uint64_t hint)
{
    uint64_t floor = stored_commit(r), term = term_of(r, rejected);
    if (r->raft.follower_state.match > floor) floor = r->raft.follower_state.match;
    while (term != 0 && hint > floor && term_of(r, hint) == term) hint--;
    return hint;
}

static void append_result_send(struct replica *r, const struct raft_message *m)
{
    const struct raft_append_entries_result *a = &m->append_entries_result;
    struct frame f = {.kind = FRAME_APPENDED,
                      .message_version = a->version,
                      .stream = r->answer_stream,
                      .term = a->term,
                      .a = a->rejected,
                      .b = r->answer_stale ? 0 : a->last_log_index, /* which raft does not set then */
                      .features = a->features,
                      .capacity = a->capacity};
    if (r->answer_none) return;
    if (f.a > 0 && !r->answer_stale && raft_state(&r->raft) == RAFT_FOLLOWER) f.b = rejected_hint(r, f.a, f.b);
    frame_send(r, m->server_id, &f);
}

static void install_send(struct replica *r, const struct raft_message *m)
{
    const struct raft_install_snapshot *s = &m->install_snapshot;
    struct peer *p = peer_of(r, m->server_id);
    struct frame f = {
        .kind = FRAME_INSTALL, .message_version = s->version, .term = s->term, .a = s->last_index, .b = s->last_term};
    if (p == NULL || (p->open && p->proven && !stream_behind(r, p))) return; /* it is catching up by other means */
    p->open = false;
    p->snapshot = true;
    /* It has fetched one meanwhile, older than what raft would send now, and all that follows is still here. */
    if (p->hint > 0 && term_of(r, p->hint) != 0) return;
    frame_send(r, m->server_id, &f);
}

static void message_send(struct replica *r, const struct raft_message *m)
{
    const struct raft_request_vote *v = &m->request_vote;
    const struct raft_timeout_now *t = &m->timeout_now;
    struct frame f;
    switch (m->type) {
    case RAFT_APPEND_ENTRIES:
        stream_told(r, m);
        break;
    case RAFT_APPEND_ENTRIES_RESULT:
        append_result_send(r, m);
        break;
    case RAFT_REQUEST_VOTE:
        f = (struct frame){.kind = FRAME_VOTE,
                           .message_version = v->version,
                           .term = v->term,
                           .a = v->last_log_index,
                           .b = v->last_log_term,
                           .flags = (uint8_t)((v->pre_vote ? FRAME_PRE_VOTE : 0) | (v->disrupt_leader ? FRAME_DISRUPT : 0))};
        frame_send(r, m->server_id, &f);
        break;
    case RAFT_REQUEST_VOTE_RESULT:
        vote_result_send(r, m);
        break;
    case RAFT_INSTALL_SNAPSHOT:
        install_send(r, m);
        break;
    default:
        must(m->type == RAFT_TIMEOUT_NOW);
        f = (struct frame){.kind = FRAME_TIMEOUT_NOW,
                           .message_version = t->version,
                           .term = t->term,
                           .a = t->last_log_index,
                           .b = t->last_log_term};
        frame_send(r, m->server_id, &f);
    }
}

/* ---- the update */

static void state_take(struct replica *r)
{
    if (raft_state(&r->raft) != RAFT_LEADER) return;
    r->lead_index = raft_last_index(&r->raft);
    r->transfer_to = 0;
    /* Only an entry of its own term tells a leader what is committed. raft makes one if it sees something uncommitted. */
    r->barrier_due = voter_count(&r->raft.configuration) > 1 && r->raft.configuration.n > 1;
    peers_sync(r, true);
}

static void update_carry_out(struct replica *r, const struct raft_update *u)
{
    bool term_moved = (u->flags & (RAFT_UPDATE_CURRENT_TERM)) != 0 || (u->flags & (RAFT_UPDATE_VOTED_FOR)) != 0;
    if (term_moved && !term_write(r)) return;
    if ((u->flags & (RAFT_UPDATE_ENTRIES)) != 0) entries_append(r, u);
    if (atomic_load_explicit(&r->broken, memory_order_relaxed)) return;
    must((u->flags & (RAFT_UPDATE_SNAPSHOT)) == 0); /* it is never asked to install one */
    if ((u->flags & (RAFT_UPDATE_COMMIT_INDEX)) != 0) {
        uint64_t commit = raft_commit_index(&r->raft);
        if (commit > r->commit_max) r->commit_max = commit;
    }
    if ((u->flags & (RAFT_UPDATE_STATE)) != 0) state_take(r);
    bool leads = raft_state(&r->raft) == RAFT_LEADER;
    if (leads && r->peer_count + 1 < r->raft.configuration.n) peers_sync(r, false);
    for (unsigned i = 0; i < u->messages.n; i++) message_send(r, &u->messages.batch[i]);
    if (leads && (u->flags & (RAFT_UPDATE_ENTRIES)) != 0) stream_extend(r);
    if ((u->flags & (RAFT_UPDATE_TIMEOUT)) != 0 || (u->flags & (RAFT_UPDATE_STATE)) != 0) step_timer_arm(r);
}

static void barrier_submit(struct replica *r)
{
    static const char body[8] = {0};
    r->barrier_due = false;
    if (raft_state(&r->raft) != RAFT_LEADER || r->raft.leader_state.transferee != 0) return;
    if (term_of(r, raft_last_index(&r->raft)) != raft_current_term(&r->raft))
        step_submit_own(r, RAFT_BARRIER, slice_make(body, sizeof body));
    r->lead_index = raft_last_index(&r->raft);
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
    stream_release(r);
    r->stepping = false;
    if (r->barrier_due) barrier_submit(r);
    return rv;
}

void step_must(struct replica *r, struct raft_event *event)
{
    int rv = step_run(r, event);
    if (rv == 0) return;
    char what[RAFT_ERRMSG_BUF_SIZE + 64];
    snprintf(what, sizeof what, "raft: event %d is refused: %s", (int)event->type, raft_strerror(rv));
    replica_fail(r, what);
}

void settle(struct replica *r)
{
    if (atomic_load_explicit(&r->broken, memory_order_relaxed)) return;
    transfer_check(r);
    role_update(r);
    members_update(r);
    uint64_t leader = replica_leader(r), term = raft_current_term(&r->raft);
    if (leader != r->told_leader || term != r->told_term) {
        r->told_leader = leader;
        r->told_term = term;
        if (r->o.leader != NULL) r->o.leader(r->o.ctx, leader, term);
    }
    confirm_check(r);
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
    bool open = r->role == REPLICA_LEADER && r->transfer_to == 0;
    if (open && !atomic_load_explicit(&r->broken, memory_order_relaxed)) {
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

/* What a node that waited for its first entry has got is durable: from now on it must be there. */
static bool waiting_end(struct replica *r)
{
    r->meta.waits = false;
    return term_write(r);
}

void step_synced(struct loop_task *task)
{
    struct replica *r = replica_of_task(task);
    atomic_store(&r->synced_posted, false); /* first: a sync from here on posts again */
    if (atomic_load(&r->broken)) return;
    uint64_t index = log_synced_index(r->log);
    /* What waits aside is about to cut the log. */
    if (r->aside.len > 0 && index >= r->aside_first) index = r->aside_first - 1;
    if (index > r->raft.last_stored) {
        must(index <= raft_last_index(&r->raft) && !r->raft.snapshot.installing);
        if (r->meta.waits && !waiting_end(r)) return;
        struct raft_event event = {.type = RAFT_PERSISTED_ENTRIES, .persisted_entries.index = index};
        r->answer_stream = r->append_stream;
        step_must(r, &event);
    }
    apply_run(r);
    settle(r);
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

/* Fires far too late: the process stood still. What the others sent meanwhile is still on its way here, and those that stood still too
 * will send: that is waited for. */
static bool stalled(struct replica *r)
{
    int64_t late_us = loop_now_us(r->o.loop) - (int64_t)raft_timeout(&r->raft) * 1000;
    if (r->timer_deferred || late_us < (int64_t)r->o.election_ms * 500 || r->raft.configuration.n < 2) return false;
    r->timer_deferred = true;
    bool leads = raft_state(&r->raft) == RAFT_LEADER; /* the others wait for its heartbeat */
    int64_t wait_us = leads ? STALL_READ_US : (int64_t)r->o.heartbeat_ms * 1000;
    loop_timer_set(r->o.loop, &r->timer, loop_now_us(r->o.loop) + wait_us);
    return true;
}

void step_timeout(struct loop_timer *timer)
{
    struct replica *r = (struct replica *)(void *)((char *)timer - offsetof(struct replica, timer));
    if (atomic_load(&r->broken) || stalled(r)) return;
    r->timer_deferred = false;
    struct raft_event event = {.type = RAFT_TIMEOUT};
    bool due = loop_now_us(r->o.loop) / 1000 >= (int64_t)raft_timeout(&r->raft);
    if (due && r->raft.last_stored == raft_last_index(&r->raft)) sole_term_begin(r);
    if (atomic_load(&r->broken)) return;
    step_must(r, &event);
    if (raft_state(&r->raft) == RAFT_LEADER) confirm_probe(r, true);
    step_timer_arm(r);
    settle(r);
}
