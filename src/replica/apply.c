/* Applying: entries that are committed and stored, by index, each exactly once. The same path replays what a start found in the
 * log and applies what was just submitted. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "replica/replica_inner.h"

enum {
    RUN_ENTRIES_MAX = 512, /* of one run; the rest is the hook's, so that a replay leaves the loop alive */
    RUN_BYTES_MAX = 8 << 20,
    BODY_SPARE_BYTES = 1 << 20, /* of the buffer for cold bodies, kept between turns */
};

/* The body of an entry; `pin` must be given back when *pinned. */
static bool body_get(struct replica *r, const struct slot *s, struct slice *body, struct log_pin *pin, bool *pinned)
{
    *pinned = log_view(r->log, s->pos, s->len, body, pin);
    if (*pinned) return true;
    buf_clear(&r->body);
    char *at = buf_reserve(&r->body, s->len + 1);
    if (log_read_record(r->log, s->pos, s->len, at) != LOG_OK) {
        replica_damaged(r, s->pos);
        replica_fail(r, "an entry that is committed cannot be read back from the log");
        return false;
    }
    *body = slice_make(at, s->len);
    return true;
}

/* A committed change of the members: raft is told, outside the step that committed it, and our copy for the next start is renewed. */
static void change_apply(struct replica *r, uint64_t index, struct slice body)
{
    struct buf error = {0};
    if (index > r->conf.index) {
        r->conf.index = index;
        buf_clear(&r->conf.encoded);
        buf_slice(&r->conf.encoded, body);
        if (conf_store(r->dir, &r->conf, &error) != LOG_OK) {
            buf_byte(&error, '\0');
            replica_fail(r, error.at);
            buf_free(&error);
            return;
        }
    }
    struct raft_event event = {.type = RAFT_CONFIGURATION, .configuration.index = index};
    struct raft_buffer encoded = {.base = (void *)(uintptr_t)body.at, .len = body.len};
    must(raft_configuration_decode(&encoded, &event.configuration.conf) == 0);
    bool leads = raft_state(&r->raft) == RAFT_LEADER && index == r->raft.configuration_uncommitted_index;
    if (leads && !voter_has(&event.configuration.conf, r->identity.node)) transfer_away(r);
    step_must(r, &event); /* takes the configuration */
}

static bool entry_apply(struct replica *r, uint64_t index)
{
    struct slot s = *ring_at(&r->ring, index); /* a copy: a submit inside apply may move the ring */
    if (s.type != RAFT_BARRIER) {
        struct slice body;
        struct log_pin pin;
        bool pinned;
        if (!body_get(r, &s, &body, &pin, &pinned)) return false;
        if (s.type == RAFT_COMMAND) {
            r->o.apply(r->o.ctx, index, s.term, s.pos, body);
        } else {
            must(s.type == RAFT_CHANGE);
            change_apply(r, index, body);
        }
        if (pinned) log_unpin(r->log, pin);
    }
    r->flight_bytes -= s.len;
    r->applied = index;
    r->applied_term = s.term;
    return !atomic_load_explicit(&r->broken, memory_order_relaxed);
}

void apply_run(struct replica *r)
{
    if (r->applying || atomic_load_explicit(&r->broken, memory_order_relaxed)) return;
    uint64_t entries = 0, bytes = 0;
    r->applying = true;
    /* Committed may be ahead of what this node stored; the state must never outrun the log. */
    while (r->applied < stored_commit(r) && entries < RUN_ENTRIES_MAX && bytes < RUN_BYTES_MAX) {
        bytes += ring_at(&r->ring, r->applied + 1)->len;
        if (!entry_apply(r, r->applied + 1)) break;
        entries++;
    }
    r->applying = false;
    if (r->body.cap > BODY_SPARE_BYTES) buf_free(&r->body);
    if (entries > 0 && r->o.applied_batch != NULL) r->o.applied_batch(r->o.ctx);
    role_update(r);
}

bool apply_hook(struct loop_hook *hook)
{
    struct replica *r = (struct replica *)(void *)((char *)hook - offsetof(struct replica, hook));
    if (atomic_load_explicit(&r->broken, memory_order_relaxed)) return false;
    uint64_t applied = r->applied;
    enum replica_role role = r->role;
    if (r->applied < stored_commit(r)) apply_run(r);
    settle(r);
    bool more = r->applied != applied || r->role != role;
    /* The others hooks may still submit an entry that tells the others what is committed; so the notice waits for one more round. */
    if (!notice_due(r)) {
        r->notice_waited = false;
    } else if (!r->notice_waited) {
        r->notice_waited = more = true;
    } else {
        r->notice_waited = false;
        notice_send(r);
    }
    /* What was applied or told here is news for the hooks before this one too. */
    return more;
}

static enum replica_role role_now(struct replica *r)
{
    switch (raft_state(&r->raft)) {
    case RAFT_LEADER:
        /* Leading counts once all that was recovered is applied. */
        return r->applied >= r->lead_index ? REPLICA_LEADER : r->role == REPLICA_STARTING ? REPLICA_STARTING : REPLICA_FOLLOWER;
    case RAFT_CANDIDATE:
        return REPLICA_CANDIDATE;
    default:
        return REPLICA_FOLLOWER;
    }
}

void role_update(struct replica *r)
{
    enum replica_role role = role_now(r);
    if (role == r->role) return;
    bool lost = r->role == REPLICA_LEADER;
    r->role = role;
    if (lost && r->o.lost != NULL) r->o.lost(r->o.ctx);
    if (r->o.role != NULL) r->o.role(r->o.ctx, role);
}
