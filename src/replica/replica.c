/* What the caller asks: numbers, and trimming once the store holds the state. */
#include "replica/replica.h"

#include "replica/replica_inner.h"

enum { KEEP_ENTRIES_MAX = 1 << 18 };

uint64_t replica_term(const struct replica *r)
{
    return raft_current_term(&r->raft);
}

enum replica_role replica_role(const struct replica *r)
{
    return r->role;
}

uint64_t replica_commit_index(const struct replica *r)
{
    return r->commit_max;
}

void replica_full(struct replica *r, bool full)
{
    r->full = full;
}

uint64_t replica_applied_index(const struct replica *r)
{
    return r->applied;
}

uint64_t replica_applied_term(const struct replica *r)
{
    return r->applied_term;
}

uint64_t replica_last_index(const struct replica *r)
{
    return raft_last_index((struct raft *)(uintptr_t)&r->raft); /* which only reads */
}

uint64_t replica_in_flight_bytes(const struct replica *r)
{
    return r->flight_bytes;
}

uint64_t replica_in_flight_entries(const struct replica *r)
{
    return r->ring.next - 1 - r->applied;
}

struct log *replica_log(struct replica *r)
{
    return r->log;
}

uint64_t replica_leader(const struct replica *r)
{
    /* As raft_leader, which names none while leadership is handed over: until that is done this one still answers. */
    if (r->raft.state == RAFT_LEADER) return r->identity.node;
    return r->raft.state == RAFT_FOLLOWER ? r->raft.follower_state.current_leader.id : 0;
}

/* ---- what is kept of the log */

/* The first entry that stays when the state is stored up to `index`: that entry itself, whoever receives a state at it must find it in
 * the log; and as many before it as may be kept for members that come back. */
uint64_t keep_start(const struct replica *r, uint64_t index)
{
    must(ring_has(&r->ring, index));
    const struct slot *last = ring_at(&r->ring, index);
    uint64_t low = r->ring.first, high = index;
    if (index - low >= KEEP_ENTRIES_MAX) low = index - KEEP_ENTRIES_MAX + 1;
    while (low < high) { /* positions rise with the index */
        uint64_t middle = low + (high - low) / 2;
        if (last->pos + last->len - ring_at(&r->ring, middle)->pos <= r->o.keep_bytes)
            high = middle;
        else
            low = middle + 1;
    }
    return high;
}

uint64_t replica_kept_pos(const struct replica *r)
{
    return r->marks.count == 0 ? 0 : r->marks.at[0].pos;
}

uint64_t replica_scan_pos(const struct replica *r, uint64_t index)
{
    must(index > 0 && index <= r->applied);
    return marks_find(&r->marks, keep_start(r, index))->pos;
}

uint64_t replica_entry_pos(const struct replica *r, uint64_t index)
{
    return ring_has(&r->ring, index) ? ring_at(&r->ring, index)->pos : 0;
}

uint64_t replica_entry_term(const struct replica *r, uint64_t index)
{
    return term_of(r, index);
}

void replica_pin(struct replica *r, uint64_t index)
{
    must(index > 0);
    r->pin = index;
}

void replica_unpin(struct replica *r)
{
    r->pin = 0;
}

void replica_configuration_file(const struct replica *r, struct buf *out)
{
    conf_write(&r->conf, out);
}

/* The rule for the event: never while a snapshot is being installed, only rising, only for an entry raft still knows. */
static void snapshot_tell(struct replica *r, uint64_t index, uint64_t keep)
{
    if (r->raft.snapshot.installing || index <= r->raft.trail.snapshot.index) return;
    must(index > r->raft.trail.offset && index <= raft_last_index(&r->raft) && keep > r->raft.trail.offset && keep <= index);
    struct raft_buffer encoded = {.base = r->conf.encoded.at, .len = r->conf.encoded.len};
    struct raft_event event = {
        .type = RAFT_SNAPSHOT,
        .snapshot = {.metadata = {.index = index, .term = term_of(r, index), .configuration_index = r->conf.index},
                     .trailing = (unsigned)(index - keep + 1)}};
    must(raft_configuration_decode(&encoded, &event.snapshot.metadata.configuration) == 0);
    step_must(r, &event); /* takes the configuration */
    while (r->ring.first <= r->raft.trail.offset) ring_pop(&r->ring);
}

void replica_stored(struct replica *r, uint64_t index, bool (*wanted)(void *ctx, uint64_t first_pos, uint64_t end_pos),
                    void *ctx)
{
    if (index == 0 || index < r->stored || atomic_load(&r->broken)) return;
    must(index <= r->applied);
    uint64_t keep = keep_start(r, index);
    if (r->pin != 0 && r->pin < keep) keep = r->pin < r->ring.first ? r->ring.first : r->pin;
    snapshot_tell(r, index, keep);
    r->stored = index;
    if (keep > r->ring.first) keep = r->ring.first; /* what raft still knows */
    marks_trim(&r->marks, keep);
    log_trim(r->log, r->marks.at[0].pos, wanted, ctx);
}
