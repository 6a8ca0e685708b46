/* raft's part of a directory that is made from a state kept elsewhere (a backup).
 *
 * GROUP/log holds the log as the state at (index, term) left it: it ends with that entry. What is added: an entry with the new members, in a
 * term of its own, the same on every node that is made from the same state with the same members; configuration, term and vote; identity
 * last. So all nodes begin with one log, and none of them with anything the others would not have. A directory in which this did
 * not come to its end has no identity and is refused by replica_open. */
#ifndef QUEEN_REPLICA_RESTORE_H
#define QUEEN_REPLICA_RESTORE_H

#include "replica/replica.h"

struct replica_restore {
    const char *dir; /* GROUP */
    struct uuid cluster;
    uint64_t node;
    uint64_t index, term, scan_pos; /* the store's mark */
    uint64_t segment_bytes;
    const struct replica_member *members; /* `node` among them; none: this node alone */
    uint32_t member_count;
};

/* log_status codes; `error` as in log_open. Durable on return. Blocks; no loop needed. */
enum log_status replica_restore(const struct replica_restore *o, struct buf *error);

#endif
