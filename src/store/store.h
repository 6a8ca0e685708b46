/* The store: rows of state in RocksDB (DATA/store), behind the log.
 *
 * The raft log is the write-ahead log: RocksDB's own is off. A batch (struct store_batch) is a consistent set of changed rows with
 * the applied index they belong to; the index is a row in the same batch. Batches are written in order by the store thread. A batch is
 * readable at once after it was written (store_scan), durable after the next flush. A crash comes back at a flushed batch: the one
 * whose `flushed` ran, or a later one (RocksDB also flushes by itself when a write buffer is full), never between two.
 *
 *   group thread: store_batch_new, put/delete/delete_range..., store_submit(batch, mark, flush?)
 *   store thread: takes all that waits -> merged writes -> [one flush] -> done callbacks posted to the loop
 *
 * Keys: the first byte is the caller's kind of row, 1 to 255; kind 0 holds the store's own rows (mark, format version).
 *
 * Memory is bounded: write buffers and block cache by options. The row cache holds no payloads.
 *
 * Failure: a failed write or flush is final: options.failed (store thread), once, with the reason; nothing it covers is reported as
 * written. Damage found at open is reported with the file's name as RocksDB tells it; the log cannot rebuild what was trimmed, so the
 * node refuses to start. Every block read is checked against its checksum: damage is an error, never a wrong row.
 *
 * Threads: store_scan, store_find, store_warm, store_sweep, store_get and store_stats from any thread; the rest from the group thread. */
#ifndef QUEEN_STORE_STORE_H
#define QUEEN_STORE_STORE_H

#include "base/buf.h"
#include "base/loop.h"
#include "base/slice.h"

struct store;
struct store_batch;

enum store_status { STORE_OK = 0, STORE_DAMAGED, STORE_IO };

/* Kinds of rows that come in such numbers that they lie apart. Of the two that are written once (filter, records): a row may be put again
 * only with what it held or while nobody relies on it, deletions are ranges, and a row may be seen for a while, or until its neighbours go,
 * after it was deleted: whoever reads it must know from other rows what counts. */
enum { STORE_KIND_JOURNAL = 0x07, STORE_KIND_FILTER = 0x0c, STORE_KIND_RECORDS = 0x8b };

/* What the stored rows are a state of. */
struct store_mark {
    uint64_t index, term;
    uint64_t scan_pos; /* replica_scan_pos(index) */
};

enum { STORE_BUFFERS = 4 }; /* write buffers at most, with the batch being written */

struct store_options {
    const char *dir; /* DATA/store; created when missing, its parent must exist */
    struct loop *loop;
    size_t write_buffer_bytes; /* of one write buffer; 0 = 16 MiB */
    size_t block_cache_bytes;  /* 0 = 8 MiB */
    uint32_t open_files_max;   /* table files kept open, 20 at least; 0 = 256 */
    void *ctx;
    void (*failed)(void *ctx, const char *what);
};

/* A new store has the mark {0, 0, 0}. */
enum store_status store_open(struct store **out, const struct store_options *o, struct store_mark *mark, struct buf *error);
/* Writes what was submitted, flushes, joins. Callbacks not yet run are dropped. The loop must not run again after it. */
void store_close(struct store *s);

/* Rows with from <= key < to in key order until `row` returns false; an empty `from` or `to` is no bound. Sees all that was written
 * before the call. The slices live until `row` returns. A range of one key (`to` is `from` and a 0 behind it) costs no iterator. Returns
 * STORE_DAMAGED/STORE_IO with `error` (may be NULL). */
enum store_status store_scan(struct store *s, struct slice from, struct slice to,
                             bool (*row)(void *ctx, struct slice key, struct slice value), void *ctx, struct buf *error);

/* The same for who will come back for neighbours of these rows: the blocks they lie in stay in the block cache. `blocks_read` (may be
 * NULL) grows by those that were not there. */
enum store_status store_find(struct store *s, struct slice from, struct slice to,
                             bool (*row)(void *ctx, struct slice key, struct slice value), void *ctx, uint64_t *blocks_read,
                             struct buf *error);
/* Reads rows of [from, to), about `bytes` of them and at least the first, for who will look at them soon: their blocks are in memory then.
 * What cannot be read is not told: who wants it will see. */
void store_warm(struct store *s, struct slice from, struct slice to, size_t bytes);

/* store_scan of much, as at a start: threads read ahead in several places, `row` runs on the caller's thread, in key order, and what
 * it sees, also before an error, is what store_scan would show. At most 32 MiB of rows wait for it. What is read fills no cache. */
struct store_sweep {
    struct slice from, to; /* `from` may not be empty */
    uint32_t readers;      /* 0: by the number of cores */
    void *ctx;
    bool (*row)(void *ctx, struct slice key, struct slice value); /* false: no more */
    /* Between rows, every few milliseconds: how far it is, in bytes of files, about. False: no more. May be NULL. A small range is
     * read without it. */
    bool (*pulse)(void *ctx, uint64_t done, uint64_t whole);
};
enum store_status store_sweep(struct store *s, const struct store_sweep *o, struct buf *error);

/* One row. `found` says whether there is one; its bytes are appended to `out`. */
enum store_status store_get(struct store *s, struct slice key, struct buf *out, bool *found, struct buf *error);

/* Building a batch costs a copy of its bytes. A batch is one atomic change. A range ends before `to`, which may not be empty.
 * A batch not submitted is given back with store_batch_drop. */
struct store_batch *store_batch_new(struct store *s);
void store_batch_drop(struct store *s, struct store_batch *b);
void store_batch_put(struct store_batch *b, struct slice key, struct slice value);
void store_batch_delete(struct store_batch *b, struct slice key);
void store_batch_delete_range(struct store_batch *b, struct slice from, struct slice to);
size_t store_batch_bytes(const struct store_batch *b);

/* Hands the batch over. `written` runs on the loop when the rows are readable, `flushed` when everything up to this batch is durable
 * (only if flush was asked). Either may be NULL. */
void store_submit(struct store *s, struct store_batch *b, struct store_mark mark, bool flush, void *ctx,
                  void (*written)(void *ctx, struct store_mark mark), void (*flushed)(void *ctx, struct store_mark mark));

/* A consistent copy of the store with every batch submitted before the call and none after it, in a new directory `dir` on the same
 * file system: hard links where it can. Durable when `done` runs on the loop, with the mark of the last batch that is in it; `error` is NULL
 * or a sentence, and then `dir` is to be removed. A flush that fails before it is final as any other: `done` never runs. Cost: on the
 * store thread a flush and a few milliseconds; batches submitted meanwhile wait for it. */
void store_checkpoint(struct store *s, const char *dir, void *ctx,
                      void (*done)(void *ctx, struct store_mark mark, const char *error));
bool store_busy(const struct store *s); /* a submitted batch is not written yet */

struct store_stats {
    uint64_t batches, rows, flushes, disk_bytes, memory_bytes;
    uint64_t write_us_total, flush_us_total;
};
void store_stats(struct store *s, struct store_stats *out);

#endif
