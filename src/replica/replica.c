/* What the caller asks: numbers, and trimming once the store holds the state. */
#include "replica/replica.h"

#include "replica/replica_inner.h"

/* raft keeps the stored entry itself: whoever receives a snapshot at it must find it in the log. */
enum { TRAILING_ENTRIES = 1 };

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
    return r->ring.next - 1;
}

uint64_t replica_in_flight_bytes(const struct replica *r)
{
    return r->flight_bytes;
}

uint64_t replica_in_flight_entries(const struct replica *r)
{
    return r->ring.next - r->ring.first;
}

struct log *replica_log(struct replica *r)
{
    return r->log;
}

uint64_t replica_scan_pos(const struct replica *r, uint64_t index)
{
    must(index > 0 && index <= r->applied);
    return marks_find(&r->marks, index)->pos;
}

/* The rule for the event: never while a snapshot is being installed, only rising, only for an entry raft still knows. */
static void snapshot_tell(struct replica *r, uint64_t index)
{
    if (r->raft.snapshot.installing || index <= r->raft.trail.snapshot.index) return;
    must(index > r->raft.trail.offset && index <= raft_last_index(&r->raft));
    struct raft_buffer encoded = {.base = r->conf.encoded.at, .len = r->conf.encoded.len};
    struct raft_event event = {
        .type = RAFT_SNAPSHOT,
        .snapshot = {
            .metadata = {.index = index, .term = marks_find(&r->marks, index)->term, .configuration_index = r->conf.index},
            .trailing = TRAILING_ENTRIES}};
    must(raft_configuration_decode(&encoded, &event.snapshot.metadata.configuration) == 0);
    int rv = step_run(r, &event); /* takes the configuration */
    if (rv != 0) replica_fail(r, raft_strerror(rv));
}

void replica_stored(struct replica *r, uint64_t index, bool (*wanted)(void *ctx, uint64_t first_pos, uint64_t end_pos),
                    void *ctx)
{
    if (index == 0 || index < r->stored) return;
    must(index <= r->applied);
    snapshot_tell(r, index);
    r->stored = index;
    marks_trim(&r->marks, index);
    log_trim(r->log, r->marks.at[0].pos, wanted, ctx);
}
