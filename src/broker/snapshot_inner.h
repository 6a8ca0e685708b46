/* Inside of the movers of snapshots: the frames, and the two sides' state.
 *
 *   kind 1 | id 8 | ...                                     all numbers little-endian
 *
 *   WANT          0 | index 8                               fetcher: is there a state at `index` or later? Without the top bit any will do:
 *                                                           what follows it is in the source's log
 *   WHO           0                                         a group under repair: do you lead?
 *   LAST          0 | term 8 | index 8                      I do, in this term; my log ends there
 *   TAKING        0                                         source: it is being made, ask again
 *   MANIFEST      id | manifest
 *   ASK           id | file 4 | length 4 | offset 8 | have 1 | digest 8     have: the fetcher's bytes there have this digest
 *   SAME          id | file 4 | length 4 | offset 8 | digest 8              so do the source's
 *   BYTES         id | file 4 | length 4 | offset 8 | digest 8 | bytes
 *   GONE          id or 0                                   source: not that (any more): it does not lead, or dropped it
 *
 * `id` is drawn for each snapshot taken, so that late frames of an earlier one match nothing. Every frame may be lost: the fetcher asks
 * again. A frame that does not fit the format is dropped. */
#ifndef QUEEN_BROKER_SNAPSHOT_INNER_H
#define QUEEN_BROKER_SNAPSHOT_INNER_H

#include "base/files.h"
#include "broker/snapshot.h"
#include "broker/snapshot_manifest.h"

enum frame_kind {
    FRAME_WANT = 1,
    FRAME_TAKING,
    FRAME_MANIFEST,
    FRAME_ASK,
    FRAME_SAME,
    FRAME_BYTES,
    FRAME_GONE,
    FRAME_WHO,
    FRAME_LAST,
};

#define WANT_NOT_OLDER (UINT64_C(1) << 63)

enum {
    SOURCE_TICK_US = 1000000,
    SOURCE_WAITING_MAX = 16, /* nodes that are told when it is taken; the others ask again */
    FETCH_TICK_US = 250000,
    FETCH_RETRY_US = 1000000,         /* a question without an answer is asked again */
    FETCH_BURST_US = 4000,            /* what the pace may lag behind and make up for */
    FETCH_BAD_MAX = 64,               /* answers with a wrong digest, in one fetch */
    FETCH_SYNC_BYTES = 8 << 20,       /* written and not synced, of one file */
    FETCH_AGAIN_US = 1000000,         /* after a fetch that came to nothing */
    FETCH_AGAIN_FAILED_US = 30000000, /* after one that failed here: no space, a failing disk */
    INCOMING_KEPT_US = 600000000,     /* what an unfinished fetch left behind, when nobody goes on with it */
};

/* A range of a file of the manifest. */
struct range {
    uint32_t file, len;
    uint64_t offset;
};

enum source_state { SOURCE_NONE, SOURCE_TAKING, SOURCE_READY };

struct source {
    enum source_state state;
    bool unwanted; /* while it is taken: drop it when that is done */
    uint64_t id;
    struct manifest manifest;
    struct buf encoded;
    uint64_t waiting[SOURCE_WAITING_MAX];
    uint32_t waiting_count;
    uint64_t archive_end; /* when it was taken; 0: there was none */
    int64_t asked_us;     /* when somebody last asked for any of it */
    uint64_t serves_total;
    struct buf bytes;
};

enum fetch_state { FETCH_NONE, FETCH_WANTED, FETCH_RANGES, FETCH_DONE };

struct fetch_file {
    uint64_t had;     /* bytes that were there when the fetch began, and may be right */
    uint64_t missing; /* bytes that are not yet known to be right */
    uint64_t unsynced;
};

struct fetch_slot {
    bool used, have;
    struct range range;
    uint64_t digest; /* of ours; have */
    int64_t asked_us;
};

struct fetch {
    enum fetch_state state;
    uint64_t peer, index; /* who leads, what was wanted; of a repair: at least that */
    uint64_t id;
    struct manifest manifest;
    struct buf encoded;
    struct fetch_file *files;
    uint32_t file; /* with `offset`: the next range to ask for */
    uint64_t offset;
    struct fetch_slot slots[FETCH_RANGES_MAX];
    uint32_t files_left, bad;
    int64_t heard_us, wanted_us; /* last frame of the source; last WANT */
    int64_t pace_us;             /* the next range may be asked for */
    int64_t again_us;            /* no fetch begins before */
    uint64_t bytes_total, bytes_done, fetches_total;
    struct buf bytes;
};

struct snapshots {
    struct snapshots_options o;
    char *dir;
    struct source source;
    struct fetch fetch;
    struct loop_timer tick, pace;
    int64_t leftover_us; /* GROUP/incoming holds something that nobody goes on with; 0 = no */
};

uint64_t range_digest(struct slice bytes);
/* GROUP/a, GROUP/a/b, GROUP/a/b/c; false when it does not fit. */
bool snapshot_path(const struct snapshots *s, const char *a, const char *b, const char *c, char out[FILES_PATH_BYTES]);
bool snapshot_frame_send(struct snapshots *s, uint64_t peer, enum frame_kind kind, uint64_t id, struct slice head,
                         struct slice rest);
void range_put(struct buf *out, const struct range *r);
bool range_take(struct slice *in, struct range *r);
bool u64_take(struct slice *in, uint64_t *v);
void tick_arm(struct snapshots *s);

/* snapshot_source.c */
void source_want(struct snapshots *s, uint64_t peer, struct slice in);
void source_who(struct snapshots *s, uint64_t peer);
void source_ask(struct snapshots *s, uint64_t peer, uint64_t id, struct slice in);
int64_t source_tick(struct snapshots *s, int64_t now_us); /* when it is to be called next; 0 = not */
void source_free(struct snapshots *s);

/* fetch.c */
void fetch_last(struct snapshots *s, uint64_t peer, struct slice in);
void fetch_taking(struct snapshots *s, uint64_t peer);
void fetch_manifest(struct snapshots *s, uint64_t peer, uint64_t id, struct slice in);
void fetch_answer(struct snapshots *s, uint64_t peer, uint64_t id, bool same, struct slice in);
void fetch_gone(struct snapshots *s, uint64_t peer, uint64_t id);
void fetch_link_up(struct snapshots *s, uint64_t peer);
void fetch_pace(struct loop_timer *timer);
int64_t fetch_tick(struct snapshots *s, int64_t now_us);
void fetch_free(struct snapshots *s);

/* fetch_files.c: GROUP/incoming. 0 or an errno value, which incoming_fault has told. */
int incoming_begin(struct snapshots *s);                       /* for fetch.manifest; sets files */
int incoming_read(struct snapshots *s, const struct range *r); /* into fetch.bytes */
int incoming_write(struct snapshots *s, const struct range *r, struct slice bytes);
int incoming_done(struct snapshots *s, uint32_t file); /* whole: to its size, durable */
int incoming_ready(struct snapshots *s);               /* all of it; durable on return */
int incoming_remove(struct snapshots *s);

#endif
