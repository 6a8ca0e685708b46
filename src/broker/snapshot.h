/* The state of a group as files: taken here, fetched by a node that lacks the entries, put in place at a start.
 *
 *   source (a leader)   snapshot_take: store_checkpoint -> links of the log's segments -> manifest, all in GROUP/snapshot/
 *                       snapshot_serve: answers requests for the manifest and for ranges of its files; gone some time after the last
 *   fetcher             fetch_begin: manifest -> files, range by range, into GROUP/incoming/ -> all synced -> GROUP/incoming/ready
 *                       -> done: the process stops in good order and starts itself anew
 *   start               incoming_finish: `ready` there: old parts out, new ones in, by renames that may be cut short anywhere and go
 *                       on at the next start; no `ready`: what was fetched is kept for the next try when its manifest is the same
 *
 * Manifest: cluster, node and disk it came from, mark of the store (index, term, position to scan from), end of the log that belongs to
 * it, segment size, configuration file, and for each file name, bytes, CRC32C of the part that counts. A file already there with the
 * right checksum is not fetched again. Rows and records carry their own checksums besides, checked when they are read.
 *
 * What is kept of the fetcher's own: identity, term and vote. Its log and store are replaced as one.
 *
 * A fetch is given up (and begun anew when still wanted) when its source is silent for FETCH_SILENT_US, is no longer the leader, or our
 * own log went on meanwhile: fetching must never cut entries that this node has acknowledged, so at the end of a fetch our
 * last index must still be below the snapshot's. The pace is FETCH_BYTES_S_MAX at most.
 *
 * All on the group's loop. Frames travel in the group's channel. */
#ifndef QUEEN_BROKER_SNAPSHOT_H
#define QUEEN_BROKER_SNAPSHOT_H

#include "base/buf.h"
#include "base/loop.h"
#include "replica/replica.h"
#include "store/store.h"

enum {
    FETCH_RANGE_BYTES = 256 << 10,
    FETCH_RANGES_MAX = 4, /* asked for and not answered */
    FETCH_BYTES_S_MAX = 256 << 20,
    FETCH_SILENT_US = 10000000,
    SNAPSHOT_KEPT_US = 60000000, /* a snapshot nobody asks for any more goes */
};

struct snapshots;

struct snapshots_options {
    const char *dir; /* of the group */
    struct loop *loop;
    struct uuid cluster;
    uint64_t node;
    struct replica *replica;
    struct store *store;
    void *ctx;
    bool (*send)(void *ctx, uint64_t peer, const struct slice *parts,
                 uint32_t count); /* a frame for the peer's snapshots_receive */
    /* Everything up to `index` is fetched and durable in GROUP/incoming: stop, and start anew. */
    void (*fetched)(void *ctx, uint64_t index);
};

struct snapshots *snapshots_new(const struct snapshots_options *o);
void snapshots_free(struct snapshots *s);
void snapshots_receive(struct snapshots *s, uint64_t peer, struct slice frame);
void snapshots_link(struct snapshots *s, uint64_t peer, bool up);
/* The replica's snapshot_wanted. One fetch at a time; calls while one goes on cost nothing. */
void snapshots_fetch(struct snapshots *s, uint64_t leader, uint64_t index);

struct snapshots_view {
    bool fetching, serving;
    uint64_t index, bytes_total, bytes_done; /* of the fetch */
    uint64_t fetches_total, serves_total;
};
void snapshots_view(const struct snapshots *s, struct snapshots_view *out);

/* Before anything of GROUP is opened. true: nothing was there, or it is in place now (log_info says so). false: I/O, in `error`. */
bool incoming_finish(const char *group_dir, struct buf *error);

#endif
