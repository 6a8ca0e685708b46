/* Cold reads: payloads whose bytes left the log's memory, read by threads of their own, so that the group goes on meanwhile.
 *
 *   group thread   a pop's pieces: in the log's memory, or in a range read lately -> delivered at once (cold_load)
 *                  a read's pieces: the same, piece by piece while its `read` runs (piece.c)
 *                  else a job: the pieces that are missing; the call is READING
 *   reader thread  cold_job_read: in order of positions, neighbours in one read, every block against its checksum -> job->task
 *   group thread   job_back: a pop goes on where it stopped; a read runs again, with the pieces at hand
 *
 * cold.c          jobs: what is under way, waits, came back, is not wanted any more
 * piece.c         the pieces of reads
 * warm.c          what left memory and will be wanted soon: read ahead, for nobody
 * cold_read.c     ranges and reading
 * cold_reader.c   the threads. A program without threads brings its own cold_reader_*, which read at once
 *
 * Ranges. What is read stays for a while (config.memory.cold_cache bytes in all): who goes through the log in order finds the next blocks there. A read
 * that goes on where an earlier one ended takes twice as much as that one, up to COLD_RANGE_BYTES, of what is durable in the same
 * segment. Blocks are slices of their range, which lives as long as somebody refers to it.
 *
 * Limits: config.memory.cold_reads bytes and COLD_JOBS_MAX given to the readers; further jobs wait in order of their arrival. One larger job is read alone.
 * Of a read: COLD_CALL_BYTES (but not more than may be given) and COLD_CALL_PIECES in all, COLD_ROUNDS_MAX jobs one after the other.
 *
 * Failures: a block that cannot be read, or fails its checksum also when it is read once more from its file, is a fault of its piece
 * and the caller's to report. A call that leaves while it is READING hands its claims back at once; its job ends for nobody. */
#ifndef QUEEN_BROKER_COLD_H
#define QUEEN_BROKER_COLD_H

#include "base/buf.h"
#include "base/loop.h"
#include "base/slice.h"
#include "broker/place.h"

enum {
    COLD_THREADS_MAX = 2, /* of a group, started when they are needed */
    COLD_JOBS_MAX = 256,
    COLD_RANGES_MAX = 64,
    COLD_RANGE_BYTES = 1 << 20,   /* larger ones are not kept */
    COLD_AHEAD_BYTES = 128 << 10, /* the first read ahead */
    COLD_GAP_BYTES = 64 << 10,    /* so close, blocks are neighbours */
    COLD_CALL_BYTES = 40 << 20,   /* of a read, but for the first piece of a run */
    COLD_CALL_PIECES = 65536,
    COLD_WANTS_KEPT = 64 << 10,  /* bytes of memory for names, kept from read to read */
    COLD_ROWS_BYTES = 512 << 10, /* of a range of rows */
    COLD_ROUNDS_MAX = 8,         /* a read that then still finds something missing is CALL_TIMEOUT */
};

struct cold_range;
struct cold_cache;

/* A piece that a read named. */
struct cold_want {
    uint64_t where;
    uint32_t bytes;
};

struct cold_piece {
    uint64_t where;
    uint32_t bytes;
    uint32_t slot; /* the submitter's, as `of` */
    const struct delivery_piece *of;
    struct slice block;       /* of `range`, checked, when there is no fault */
    struct cold_range *range; /* a reference */
    const char *fault;        /* NULL: good */
};

/* `run`, on a thread of the reader, may wait for the disk; then `task` is posted to the loop. */
struct cold_job {
    struct loop_task task;
    void (*run)(struct cold_job *j);
    bool urgent;           /* before those that are not: small, and soon of no use */
    struct cold_job *next; /* the reader's */
    /* of cold_job_read */
    struct places places;
    struct cold_cache *cache;
    uint64_t segment_bytes;
    uint32_t count;
    struct cold_piece *pieces; /* in order of positions once it was read */
};

/* ---- cold_read.c: any thread */
struct cold_cache *cold_cache_new(uint64_t bytes_max);
uint64_t cold_cache_bytes(struct cold_cache *c);
void cold_cache_free(struct cold_cache *c); /* ranges that are referred to stay until they are dropped */
void cold_cache_age(struct cold_cache *c, int64_t unused_since_us); /* forgets what was not used since then */
/* The block, not checked, and a reference to its range; NULL: not there. Never waits for a read. */
struct cold_range *cold_cache_find(struct cold_cache *c, uint64_t where, uint32_t bytes, struct slice *block);
struct cold_range *cold_range_hold(struct cold_range *r);
void cold_range_drop(struct cold_range *r);
void cold_job_read(struct cold_job *j); /* waits for the disk; the log must stay open */

/* ---- cold_reader.c: the group's thread */
struct cold_reader;
struct cold_reader *cold_reader_new(struct loop *loop);
void cold_reader_submit(struct cold_reader *r, struct cold_job *j); /* j->task runs later, never within */
/* Ends the threads. The loop must not run any more: tasks may have been posted, and jobs may be left that were not read. */
void cold_reader_free(struct cold_reader *r);

/* ---- cold.c: the group's thread */
struct broker;
struct call;
void cold_start(struct broker *b);
/* The pieces of c that are not in the log's memory: `count` of them, `bytes` in all.
 * True: all there. False: c is READING and goes on in pop_loaded. */
bool cold_load(struct broker *b, struct call *c, uint32_t count, uint64_t bytes);
/* The same of a read, whose pieces are not in any order: it goes on in read_run, with the job in c->found. */
void cold_fetch(struct broker *b, struct call *c, const struct cold_want *wants, uint32_t count);
void cold_fetch_rows(struct broker *b, struct call *c,
                     struct buf *rows); /* the same for rows (warm.c), also of a pop: it arrives again; takes them */
const struct cold_piece *cold_found(const struct call *c, uint64_t where);     /* of c->found; NULL: it was not read */
uint64_t cold_found_bytes(const struct call *c);                               /* all that was read for it */
void cold_found_drop(struct call *c);                                          /* a read has no use for its pieces any more */
void cold_leave(struct broker *b, struct call *c);                             /* not READING any more: its claims go back */
bool cold_wants(const struct broker *b, uint64_t first_pos, uint64_t end_pos); /* is anything of it being read? */
void cold_idle(struct broker *b);
void cold_free(struct broker *b); /* before the log is closed */

#endif
