/* Reclaim: mostly dead segments of the log give their room back. What is still wanted of one is copied to the archive (place.h), then the
 * segment is dead and goes as any other. Segments of the archive are treated the same.
 *
 *   group thread   choose    a sealed segment that the durable state needs nothing else of, less than reclaim_live_pct of it wanted, for
 *                            reclaim_after_ms: the oldest one, one at a time
 *   worker         scan      its records, in parts: which lanes have, or may get, messages whose bytes are in it
 *   group thread   find      who holds bytes there (engine_lane_holders ..), a little at a time. The first time only how much their copies
 *                            would take: as much as reclaim_live_pct of the segment is too much, and it stays until less is wanted
 *   worker         copy      the blocks, each against its checksum, into records of the archive; synced
 *   group thread   move      the holders (engine_move), a few at a time. The next cut writes their rows; once that is durable, and not before,
 *                            the segment may go (keeper.c)
 *
 * A holder that changes between find and move is left where it is: the segment stays, and is tried again RECLAIM_AGAIN_US later. A block that
 * cannot be read or fails its checksum stays too, and is logged with file and offset.
 *
 * The archive is made when it is needed first. Records, one a block; the body:
 *
 *   0           4      8         16         24        40
 *   | lane 4    | 0 4  | from 8  | until 8  | tenant  | block        lane 0: the one that the block names (a timer's), or nobody's (a letter's:
 *   |           |      |         |          | 16      |              until < from). from, until: createdAt of what may hold it
 *
 * It is a log (log.h) whose writer is the worker while it copies, else the group thread. What a crash leaves there without a holder is dead
 * space. Node-local: nothing of this is in the log or in any digest; nodes differ in it.
 *
 * reclaim.c         the group's thread: choosing, finding, moving, the archive's life
 * reclaim_scan.c    what a segment's records say; copying
 * reclaim_worker.c  the thread and its pace. A program without threads brings its own reclaim_worker_*
 *
 * Limits: the enum below, and reclaim_bytes_s read and written a second. While the disk is full a segment is only chosen when what is copied
 * fits into the archive's last file. A failed write of the archive ends the process as one of the log does. */
#ifndef QUEEN_BROKER_RECLAIM_H
#define QUEEN_BROKER_RECLAIM_H

#include "base/arena.h"
#include "base/loop.h"
#include "broker/place.h"

enum {
    RECLAIM_LANES_MAX = 16384,         /* of one part of a segment */
    RECLAIM_NAMES_BYTES_MAX = 4 << 20, /* theirs */
    RECLAIM_COPY_BYTES = 4 << 20,      /* copied at a time, or one larger block */
    RECLAIM_COPY_HOLDERS = 16384,      /* the same */
    RECLAIM_LOOKS = 128,               /* runs looked at in one go */
    RECLAIM_TURN_US = 300,             /* for looking or moving, then other work goes on */
    RECLAIM_REST_US = 1000,
    RECLAIM_LOOK_US = 1000000, /* between two searches for a segment */
    RECLAIM_AGAIN_US = 60000000,
};

struct archive_head {
    uint32_t lane, zero;
    int64_t from_us, until_us;
    struct uuid tenant;
};
_Static_assert(sizeof(struct archive_head) == 40, "it is written as it is: little-endian");

/* What the worker does. */
struct reclaim_job {
    struct loop_task task; /* posted to the group's loop when it is done */
    struct reclaim_worker *worker;
    struct places places;
    bool scans; /* else it copies */

    /* scan: [first_pos, ..) of the log or archive, from the record at `from` on */
    const char *dir;      /* GROUP */
    uint64_t first, from; /* places */
    bool over;            /* to the segment's end; else the next part begins at `from` */
    struct arena names;
    struct lane_look *looks;
    uint32_t look_count, look_cap;

    /* copy */
    uint64_t segment_bytes;
    struct holder *holders; /* in order of places afterwards */
    uint64_t *to;           /* their new places; 0: not copied */
    uint32_t count, cap, to_cap;
    uint64_t bytes; /* of all blocks */
    uint64_t copied_bytes;
};

/* ---- reclaim_scan.c: the worker's thread */
void reclaim_scan(struct reclaim_job *j);
void reclaim_copy(struct reclaim_job *j); /* the archive is made when there is none */
enum log_status archive_open(struct log **out, const char *group_dir, uint64_t segment_bytes, uint64_t first_pos, void *ctx,
                             void (*synced)(void *ctx), struct buf *error);
bool archive_head_read(struct slice body, struct archive_head *out, struct slice *block);

/* ---- reclaim_worker.c */
struct reclaim_worker;
struct reclaim_worker *reclaim_worker_new(struct loop *loop, uint64_t bytes_s);
bool reclaim_worker_submit(struct reclaim_worker *w,
                           struct reclaim_job *j);  /* one at a time. False: no thread could be started */
void reclaim_worker_free(struct reclaim_worker *w); /* ends what it does, early */
/* On its thread: so many bytes were read or written. Sleeps; false: it is time to end. */
bool reclaim_worker_pace(struct reclaim_worker *w, uint64_t bytes);
void reclaim_worker_synced(void *worker); /* the archive's `synced` */
bool reclaim_worker_await(struct reclaim_worker *w,
                          struct log *archive); /* until all of it is durable; false: it is time to end */

/* ---- reclaim.c: the group's thread */
struct broker;
bool reclaim_open(struct broker *b, int *exit_code, struct buf *error); /* the archive, when there is one */
void reclaim_wake(struct broker *b);                                    /* the durable state moved on */
bool reclaim_owns_archive(const struct broker *b); /* its worker writes to it, or copies wait to be moved */
void reclaim_free(struct broker *b);
/* All that anything points to lies in the archive before this position, durable. 0: there is none. */
uint64_t reclaim_archive_end(const struct broker *b);

struct reclaim_stats;
void reclaim_stats(const struct broker *b, struct reclaim_stats *out);

#endif
