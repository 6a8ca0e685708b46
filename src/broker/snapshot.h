/* The state of a group as files: taken here, fetched by a node that lacks the entries, put in place at a start.
 *
 *   source (the leader)  GROUP/snapshot: links of the log's segments -> store_checkpoint -> manifest
 *                        answers questions for the manifest and for ranges of its files; gone SNAPSHOT_KEPT_US after the last one
 *   fetcher              manifest -> files, range by range, into GROUP/incoming, each synced -> GROUP/incoming/ready
 *                        -> options.fetched: the process stops in good order and starts itself anew
 *   start                incoming_finish: `ready` there: old parts out, new ones in, by renames that may be cut short anywhere and go
 *                        on at the next start; no `ready`: what was fetched is kept for the next try
 *
 * Manifest (snapshot_manifest.h): cluster and node it came from, mark of the store (index I, term, position to scan from), end of entry I in
 * the log, segment size, configuration file, and for each file its name and the bytes that count. Log and store are one: the segments the
 * state at I points into, the last one cut behind entry I. While it is served the source's log keeps all entries from I on (replica_pin),
 * so that the fetcher goes on from there.
 *
 * Checks: each range comes with a digest of what the source read. What is in GROUP/incoming already, of whatever fetch, is offered by its
 * digest and not sent again when the source has the same there: so a fetch goes on where one was cut short, also from a newer snapshot
 * of the same node, whose files are mostly the same ones. No file is read as a whole beforehand. Rows and records carry checksums of
 * their own besides, which every reader checks: they show what a disk of the source gave wrongly.
 *
 * What is kept of the fetcher's own: identity, term and vote. Its log and store are replaced as one.
 *
 * A fetch is given up (and begun anew when still wanted) when its source is silent for FETCH_SILENT_US, is no longer the leader, or our
 * own log has entry I meanwhile: fetching must never cut entries that this node has acknowledged and that may count. With a last index
 * below I, or another entry at I, nothing that counts is cut (fetch.c has the argument). That must hold in the turn that makes `ready`, and from
 * the call of `fetched` on nothing may be given to the replica that could add entries. The pace is FETCH_BYTES_S_MAX at most.
 *
 * Repair. A group whose own files are damaged has neither replica nor store open: it asks each peer who leads (snapshots_who, `last`) and
 * fetches a state at the leader's last entry or later (snapshots_repair). What this node has acknowledged and lost is in it
 * (docs/decisions/0028).
 *
 * All on the group's loop, in pieces of at most FETCH_RANGE_BYTES; the checkpoint on the store's thread. Frames travel in the group's channel;
 * any may be lost. All of the file system goes through base/files.h; GROUP/log/<16 hex digits>.seg are the log's files (log.h). */
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
    struct uuid cluster; /* all zero: not known yet, a state of any is taken */
    uint64_t node;
    struct replica *replica; /* with `store` NULL: the group is under repair */
    struct store *store;
    void *ctx;
    bool (*send)(void *ctx, uint64_t peer, const struct slice *parts,
                 uint32_t count);       /* a frame for the peer's snapshots_receive */
    uint64_t (*archive_end)(void *ctx); /* reclaim_archive_end; NULL: there is no archive */
    /* Everything up to `index` is fetched and durable in GROUP/incoming: give the replica no more frames, stop, and start anew. Not to
     * be freed inside. */
    void (*fetched)(void *ctx, uint64_t index);
    /* Source: make the state reach `index`, so that the next checkpoint has it. True: it does. Else it is asked again. */
    bool (*reach)(void *ctx, uint64_t index);
    /* Repair: that peer leads in `term`, and its log ends with `index`. */
    void (*last)(void *ctx, uint64_t peer, uint64_t term, uint64_t index);
};

/* Removes GROUP/snapshot of the last run. */
struct snapshots *snapshots_new(const struct snapshots_options *o);
/* Once the store is closed: a checkpoint may be under way until then. Uses neither it nor the replica. */
void snapshots_free(struct snapshots *s);
/* A frame of a peer's snapshots. Bytes that are none are dropped. */
void snapshots_receive(struct snapshots *s, uint64_t peer, struct slice frame);
void snapshots_link(struct snapshots *s, uint64_t peer,
                    bool up); /* either direction: after a break questions are asked again */
/* The replica's snapshot_wanted. One fetch at a time; calls while one goes on cost nothing. */
void snapshots_fetch(struct snapshots *s, uint64_t leader, uint64_t index);
/* Of a group under repair: asks whether that peer leads; `last` comes when it does. */
void snapshots_who(struct snapshots *s, uint64_t peer);
/* Of a group under repair: fetches a state at `index` or later; as snapshots_fetch. */
void snapshots_repair(struct snapshots *s, uint64_t leader, uint64_t index);

struct snapshots_view {
    bool fetching, serving;
    uint64_t index, bytes_total, bytes_done; /* of the fetch */
    uint64_t fetches_total, serves_total;
};
void snapshots_view(const struct snapshots *s, struct snapshots_view *out);

/* Before anything of GROUP is opened or looked at. true: nothing was there, or it is in place now (log_info says so), or it was not whole and
 * is thrown away (log_warn). false: I/O, in `error`; the next start goes on. */
bool incoming_finish(const char *group_dir, struct buf *error);

#endif
