/* raft's small files of a directory that nobody has open. Nothing is written. */
#ifndef QUEEN_REPLICA_LOOK_H
#define QUEEN_REPLICA_LOOK_H

#include "replica/replica.h"

struct replica_look {
    bool has_identity;
    struct uuid cluster;
    uint64_t node, generation;
    bool has_meta; /* a valid file of term and vote */
    uint64_t version, term, vote;
    bool waits; /* was made without members, and has no entry yet */
    bool has_members;
    struct replica_members members; /* of the configuration file */
};

/* Reads what is there. LOG_DAMAGED or LOG_IO: the first file that cannot be read is told in `error`; `out` has what was read before it. */
enum log_status replica_look(const char *dir, struct replica_look *out, struct buf *error);

/* The body of a configuration's entry. False: it is none. */
bool replica_members_decode(struct slice body, struct replica_members *out);

enum replica_entry_type { REPLICA_ENTRY_COMMAND = 1, REPLICA_ENTRY_BARRIER, REPLICA_ENTRY_MEMBERS }; /* log_record.type */

#endif
