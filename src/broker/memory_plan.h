/* How a node's memory is divided: QUEEN_MEMORY_MAX -> shares.
 *
 *   total = base + margin                               the program; what allocators and threads hold beyond what is asked for
 *         + connections + bodies + answers              requests: rising with clients, refused at their bounds
 *         + log + cold_cache + cold_reads + store       bytes of files that are kept, and rows on their way there
 *         + peers                                       frames of a cluster
 *         + unstored + runs + timers + lanes + dedup + kv_values what the engine keeps of what is stored too, and what is not yet
 *
 * The fixed shares grow with the total up to what is useful; the engine's take what is left. A node's groups share all of it: what a
 * group has is a share by the number of groups (memory_plan_group). A bound says where somebody is refused, made to wait or something
 * leaves memory; nothing is taken before it is needed.
 *
 * Pure: no clock, no machine. memory_limit.h finds out what the machine allows. */
#ifndef QUEEN_BROKER_MEMORY_PLAN_H
#define QUEEN_BROKER_MEMORY_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

/* What was asked for; 0 = whatever the plan gives. */
struct memory_wish {
    uint64_t total;
    uint32_t groups, edge_threads;
    uint64_t log_cache;       /* QUEEN_LOG_CACHE_BYTES */
    uint64_t body_bytes_max;  /* QUEEN_MAX_BODY_BYTES */
    uint64_t admit_bytes_max; /* QUEEN_RAFT_ADMIT_MAX_MB */
    uint32_t connections_max; /* QUEEN_CONNECTIONS_MAX */
    bool clustered;           /* there are, or may come to be, other nodes */
    bool admit_off;           /* QUEEN_RAFT_ADMIT_MAX_MB=0: bodies have no bound but their own sizes */
};

struct memory_plan {
    uint64_t total, base, margin;
    uint64_t connections; /* connections_max of them, each with the call that waits on it */
    uint64_t bodies;      /* MEMORY_BODY_COPIES x admit_bytes_max, or x the largest body */
    uint64_t answers;     /* batches with their bytes, and answers that are not sent yet */
    uint64_t log;         /* log_cache, log_unsynced and the blocks being written */
    uint64_t cold_cache, cold_reads;
    uint64_t store;    /* store_buffers and store_cache */
    uint64_t peers;    /* frames that wait for other nodes, peer_backlog for each of two, and those that come */
    uint64_t unstored; /* rows and values that the store has not written yet */
    uint64_t runs;     /* append runs kept although stored */
    uint64_t timers;   /* names of timers kept although stored */
    uint64_t lanes, dedup, kv_values;
    /* what the shares are made of */
    uint64_t log_cache, log_unsynced, store_buffers, store_cache, peer_backlog;
    uint64_t body_bytes_max, admit_bytes_max;
    uint32_t connections_max;
};

enum {
    MEMORY_BODY_COPIES = 3,          /* of a body: as read, as a command, and what is known of its items */
    MEMORY_CONNECTION_BYTES = 16384, /* of a connection whose call waits; measured, see docs/decisions/0024 */
};

/* The least total for so many groups and edge threads. */
uint64_t memory_plan_min(uint32_t groups, uint32_t edge_threads, bool clustered);
/* False: it does not fit; `error` says what, and what would. */
bool memory_plan_make(struct memory_plan *out, const struct memory_wish *w, struct buf *error);
/* One group's part of the shares that are a group's own; requests, answers and connections are the node's. */
void memory_plan_group(struct memory_plan *out, const struct memory_plan *node, uint32_t groups);

#endif
