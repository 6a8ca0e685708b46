/* One raft group on this node: libraft's raft_step core, the log, term and vote.
 *
 * The replica turns bodies into committed entries, in order:
 *
 *   replica_reserve -> fill -> replica_submit(bytes)   (leader only; one entry; several may be in flight)
 *      log append, disk thread syncs, PERSISTED_ENTRIES, commit index moves
 *   options.apply(index, term, pos, body) for each committed entry, exactly once and in index order, on the loop's thread
 *
 * It keeps raft's own entry types (barrier, configuration) to itself: apply is called only for commands. Term and vote are in two
 * alternating files DATA/meta-0 and DATA/meta-1 (version, crc; rename-free: written in place alternately and synced) before any
 * other part of an update and before the next step. DATA/identity holds cluster id, node id and generation, written at creation.
 *
 * At start: the store's applied index N says where to go on: entries after N are replayed through apply as soon as they are known
 * committed (with one voter: at once). `role` tells when the node leads and everything recovered has been applied.
 *
 * A directory is refused (LOG_DAMAGED, with the file's name) when its parts do not belong together: identity, configuration, term and vote,
 * log, and what the store says it has applied. Each start of a group's only voter has a term of its own: (term, index) never names
 * two entries.
 *
 * Failure: a failed meta write, log write or sync calls options.failed once; the process must stop (exit 3). On lost leadership, `lost` says
 * that entries in flight have an unknown outcome.
 *
 * Threads: all calls on the loop's thread, except the failed callback (disk thread). */
#ifndef QUEEN_REPLICA_REPLICA_H
#define QUEEN_REPLICA_REPLICA_H

#include "base/buf.h"
#include "base/loop.h"
#include "log/log.h"

struct replica;

enum replica_role { REPLICA_STARTING, REPLICA_FOLLOWER, REPLICA_CANDIDATE, REPLICA_LEADER };

struct replica_options {
    const char *dir; /* DATA */
    struct loop *loop;
    uint64_t segment_bytes, cache_bytes_max;
    int64_t cache_age_us;
    uint64_t node_id; /* 0: whatever the directory says, 1 in a new one. A directory of another node is refused */
    /* What the store holds: everything up to applied_index (of term applied_term) is in it; records after it begin at or after
     * applied_pos in the log. All 0 for a new node. */
    uint64_t applied_index, applied_term, applied_pos;
    void *ctx;
    void (*apply)(void *ctx, uint64_t index, uint64_t term, uint64_t pos, struct slice body);
    void (*applied_batch)(void *ctx);                /* after a run of apply calls (end of a turn's commits) */
    void (*role)(void *ctx, enum replica_role role); /* on change; REPLICA_LEADER only when all recovered entries are applied */
    void (*lost)(void *ctx);
    void (*failed)(void *ctx, const char *what);
};

/* log_status codes; `error` as in log_open. Runs on the thread that will run the loop, or before it starts. Replay happens in the
 * loop's turns, a bounded amount each. */
enum log_status replica_open(struct replica **out, const struct replica_options *o, struct buf *error);
/* Flushes and syncs what was submitted; it is applied at the next start. The loop must not run again after it. */
void replica_close(struct replica *r);

/* Memory for the next entry's body, in the log itself. To be submitted (or reserved anew, which forgets it) within the turn:
 * entries that raft makes itself wait for it. */
char *replica_reserve(struct replica *r, size_t bytes_max);
/* Submits the reserved body as one entry. Returns its index, or 0 when not leader: then the body is forgotten. term of it:
 * replica_term. Below 1 us besides what the log costs. Allowed inside apply. */
uint64_t replica_submit(struct replica *r, size_t bytes);

uint64_t replica_term(const struct replica *r);
enum replica_role replica_role(const struct replica *r);
uint64_t replica_commit_index(const struct replica *r);
uint64_t replica_last_index(const struct replica *r);
uint64_t replica_in_flight_bytes(const struct replica *r); /* submitted or recovered, not yet applied */
uint64_t replica_in_flight_entries(const struct replica *r);

/* The store is durable up to `index` (an applied entry): the log before it is not needed for recovery any more. `wanted` as in
 * log_trim. */
void replica_stored(struct replica *r, uint64_t index, bool (*wanted)(void *ctx, uint64_t first_pos, uint64_t end_pos),
                    void *ctx);
/* Position at which a scan must begin to find every record after `index` (an applied one). To be stored with `index`. */
uint64_t replica_scan_pos(const struct replica *r, uint64_t index);

struct log *replica_log(struct replica *r);

#endif
