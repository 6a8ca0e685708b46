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
#include "base/uuid.h"
#include "log/log.h"

struct replica;

enum replica_role { REPLICA_STARTING, REPLICA_FOLLOWER, REPLICA_CANDIDATE, REPLICA_LEADER };

struct replica_options {
    const char *dir; /* DATA */
    struct loop *loop;
    uint64_t segment_bytes, cache_bytes_max, unsynced_bytes_max;
    int64_t cache_age_us;
    uint64_t node_id; /* 0: whatever the directory says, 1 in a new one. A directory of another node is refused */
    /* The first configuration of a new directory. No members and not `join`: this node alone. With `join` a new node has none: it
     * waits until a leader adds it. The same list on every node gives the same first entry, wherever it is in the list. */
    const struct replica_member *members;
    uint32_t member_count;
    bool join;
    struct uuid cluster;                /* of a new directory; all zero: minted. Another one in an old directory is refused */
    uint32_t election_ms, heartbeat_ms; /* 0: 1000 and 100 */
    uint64_t window_bytes;              /* of entries sent to a follower and not acknowledged; 0 = 32 MiB */
    uint64_t keep_bytes;                /* of log kept behind the stored state for followers that come back; 0 = none */
    /* What the store holds: everything up to applied_index (of term applied_term) is in it; records after it begin at or after
     * applied_pos in the log. All 0 for a new node. */
    uint64_t applied_index, applied_term, applied_pos;
    void *ctx;
    void (*apply)(void *ctx, uint64_t index, uint64_t term, uint64_t pos, struct slice body);
    /* A command's entry came from the leader and is on its way to the disk; it will be applied, if it is not replaced before. May be NULL. */
    void (*arrived)(void *ctx, uint64_t index, struct slice body);
    void (*applied_batch)(void *ctx);                /* after a run of apply calls (end of a turn's commits) */
    void (*role)(void *ctx, enum replica_role role); /* on change; REPLICA_LEADER only when all recovered entries are applied */
    void (*lost)(void *ctx);
    /* With more than one member. A frame to a peer's replica of this group: it may be lost, not changed nor overtaken. Copied before it
     * returns. `vital` ones are small. false: it was dropped here. */
    bool (*send)(void *ctx, uint64_t peer, bool vital, const struct slice *parts, uint32_t count);
    void (*leader)(void *ctx, uint64_t leader, uint64_t term); /* on change of either; leader 0: none is known */
    /* The leader no longer has the entries we lack: the state up to `index` or later must be fetched from it, and this replica be
     * closed and opened anew on it. Called again every so often while that is so. */
    void (*snapshot_wanted)(void *ctx, uint64_t leader, uint64_t index);
    /* A configuration came into force (with its entry, before that is committed), was committed, or was taken back: replica_members has
     * it. Not for the one replica_open found. */
    void (*members_changed)(void *ctx);
    /* An entry that is in the log cannot be read back, or fails its checks. May be NULL. */
    void (*damaged)(void *ctx, const char *what);
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

/* A frame of a peer's replica (options.send there), and the news that a large one is coming in. Bad bytes are dropped with a warning. */
void replica_receive(struct replica *r, uint64_t peer, struct slice frame);
void replica_receiving(struct replica *r, uint64_t peer);

uint64_t replica_leader(const struct replica *r); /* 0 = none known */
/* Leader: how long ago, at the latest, a majority had answered it (0: alone). -1: not the leader, or not yet. */
int64_t replica_quorum_age_us(const struct replica *r);

/* Is what the leader has applied now the newest state there is? `done` runs once (maybe inside): ok with the index that must be applied
 * before the question can be answered, when a majority has confirmed this leader after the call; not ok when it is not the leader
 * or stopped being it. Questions asked in one turn, or while a round is under way, share a round. One voter: at once. replica_close
 * answers none. */
struct replica_confirm {
    struct replica_confirm *next;
    void (*done)(struct replica_confirm *c, bool ok, uint64_t index);
    uint64_t round; /* the replica's own */
};
void replica_confirm(struct replica *r, struct replica_confirm *c);

/* ---- members */

enum replica_member_role { REPLICA_VOTER, REPLICA_LEARNER };
enum { REPLICA_MEMBERS_MAX = 9, REPLICA_ADDRESS_BYTES = 600 };

struct replica_member {
    uint64_t id;
    enum replica_member_role role;
    char address[REPLICA_ADDRESS_BYTES]; /* the caller's text: "raft host:port/http host:port" */
};

struct replica_members {
    uint64_t index; /* of the entry that made it */
    bool committed; /* no change is under way */
    uint32_t count;
    struct replica_member at[REPLICA_MEMBERS_MAX];
};
void replica_members(const struct replica *r, struct replica_members *out); /* by id; count 0: waits to be added */
bool replica_votes(const struct replica *r);                                /* this node is a voter */

struct replica_progress {
    uint64_t match;       /* the highest entry known to be stored there */
    int64_t heard_age_us; /* since its last answer; -1 = none since this node leads */
    bool snapshot;        /* lacks entries the log no longer has */
};
bool replica_progress(const struct replica *r, uint64_t id, struct replica_progress *out); /* leader only: false */

/* Leader: asks for a change. The outcome comes as members_changed once it is committed. */
enum replica_change { REPLICA_ADD_LEARNER, REPLICA_PROMOTE, REPLICA_REMOVE, REPLICA_READDRESS };
enum replica_change_status {
    REPLICA_CHANGE_BEGUN,
    REPLICA_CHANGE_NOTHING, /* it is so already */
    REPLICA_CHANGE_NOT_LEADER,
    REPLICA_CHANGE_IN_FLIGHT, /* another one is not committed yet */
    REPLICA_CHANGE_NOT_A_MEMBER,
    REPLICA_CHANGE_LAST_VOTER,
    REPLICA_CHANGE_FULL, /* REPLICA_MEMBERS_MAX */
};
enum replica_change_status replica_change(struct replica *r, enum replica_change what, const struct replica_member *m);

/* Hands leadership to `to` (0: the voter that has most of the log). true: begun; `role` tells when it is done, it is given up after an
 * election timeout. While it lasts replica_submit refuses. */
bool replica_transfer(struct replica *r, uint64_t to);

/* Keeps entries from `index` on in the log (raft's and log_trim's part of it), whatever replica_stored says, until unpinned: somebody
 * fetches the state at index. An index that is trimmed already, 1 say, keeps all that is there now. A second pin takes the first one's
 * place. */
void replica_pin(struct replica *r, uint64_t index);
void replica_unpin(struct replica *r);
/* The configuration that holds at the stored state, encoded: for a fetched state's DATA/configuration (its file's whole content). */
void replica_configuration_file(const struct replica *r, struct buf *out);

uint64_t replica_term(const struct replica *r);
enum replica_role replica_role(const struct replica *r);
uint64_t replica_commit_index(const struct replica *r);
/* The last entry applied here, raft's own ones included: entries of lower terms that are not applied by now never will be. */
uint64_t replica_applied_index(const struct replica *r);
uint64_t replica_applied_term(const struct replica *r);
uint64_t replica_last_index(const struct replica *r);
uint64_t replica_in_flight_bytes(const struct replica *r); /* submitted or recovered, not yet applied */
uint64_t replica_in_flight_entries(const struct replica *r);

/* No room on the disk: entries of a leader are not taken until there is (what is on its way is). A leader is not affected. */
void replica_full(struct replica *r, bool full);

/* The store is durable up to `index` (an applied entry): the log before it is not needed for recovery any more. `wanted` as in
 * log_trim. */
void replica_stored(struct replica *r, uint64_t index, bool (*wanted)(void *ctx, uint64_t first_pos, uint64_t end_pos),
                    void *ctx);
/* What lies before this position goes when `wanted` says no. */
uint64_t replica_kept_pos(const struct replica *r);
/* Position at which a scan must begin to find every record after `index` (an applied one). To be stored with `index`. */
uint64_t replica_scan_pos(const struct replica *r, uint64_t index);
/* Position of an entry's body in the log; 0 when it is not among the entries that are kept. */
uint64_t replica_entry_pos(const struct replica *r, uint64_t index);
/* Term of an entry, also of one that is not stored yet; 0 when it is not among those that are kept, or there is none. */
uint64_t replica_entry_term(const struct replica *r, uint64_t index);

struct log *replica_log(struct replica *r);

#endif
