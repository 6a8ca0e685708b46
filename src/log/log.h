/* The segmented log: the only place where data becomes durable first, and the payloads' home.
 *
 * A log is a stream of records with byte positions. Segments are files DATA/log/%016llx.seg named by the position of their first
 * byte, segment_bytes long (or a multiple, when one record needs more), zeroed ahead of the writer in the background,
 * written with O_DIRECT from memory images (blocks) that stay as the cache of the newest bytes.
 *
 *   record, 8-byte aligned:  magic  body length  generation  index  term  synced position when staged  crc32c of head, body  type
 *
 *   writer (group thread):  log_reserve -> fill -> log_append (more records...) -> log_flush
 *   disk thread:            takes everything appended so far -> one write -> one fdatasync -> options.synced
 *
 * While one sync runs the next batch fills; no timers. A later record with the same index wins at load (raft may cut its tail).
 * A record lies in one block, or in several of its own, so a body is always contiguous in memory and in its file.
 *
 * Failures: a failed write or sync is final (options.failed, with the file's name): nothing it covers is ever reported as synced,
 * it is not retried, the process must stop. Crash: what was synced is there; an unsynced tail is cut at load with an info line. A
 * record that fails its checks although a later record proves it had been synced is damage: LOG_DAMAGED with file and offset.
 *
 * Threads: everything is for the one writer thread, except log_view/log_read/log_unpin (any thread) and the counters. */
#ifndef QUEEN_LOG_LOG_H
#define QUEEN_LOG_LOG_H

#include "base/buf.h"
#include "base/slice.h"

struct log;

enum log_status { LOG_OK = 0, LOG_DAMAGED, LOG_IO };

struct log_record {
    uint64_t index, term;
    uint64_t pos; /* of the body's first byte */
    uint32_t len;
    uint8_t type; /* the caller's (raft entry type) */
};

struct log_options {
    const char *dir;             /* DATA/log: created when missing */
    uint64_t segment_bytes;      /* power of two, 1 MiB .. 1 GiB; fixed when the log is created */
    uint64_t cache_bytes_max;    /* memory images kept beyond the one being written (soft limit: pinned ones stay) */
    uint64_t unsynced_bytes_max; /* above, log_reserve waits for the disk thread; 0 = 64 MiB */
    int64_t cache_age_us;        /* images not used for so long leave memory (log_idle) */
    uint64_t first_index;        /* records with a lower index are not reported */
    uint64_t first_pos;          /* no wanted record is before this position: where the scan begins (0 = the oldest file) */
    bool
        sparse; /* segments are trimmed in any order: the scan begins behind the last one that is missing, and no trimmed file is
                                 kept for later segments */
    void *ctx;
    void (*record)(void *ctx, const struct log_record *r); /* during log_open: each wanted record in index order; a repeat of
                                                              an index replaces everything from it on */
    void (*synced)(void *ctx);                             /* disk thread, after each sync: post a task, nothing more */
    void (*failed)(void *ctx, const char *what);           /* a thread of the log, once */
};

/* Opens or creates. On failure `error` has one line: what, which file, which offset, what to do. */
enum log_status log_open(struct log **out, const struct log_options *o, struct buf *error);
/* Flushes, syncs, joins the threads. Leaves a record that proves that everything before it was durable. No pin may be left. */
void log_close(struct log *l);

/* Contiguous memory for the next record's body, at most 256 MiB. Never NULL. A generous bytes_max costs nothing: only what is
 * appended takes space. Reserving again without log_append forgets the last reservation. Waits for the disk thread only while
 * more than unsynced_bytes_max are not durable, and not after a failure. */
char *log_reserve(struct log *l, size_t bytes_max);
/* Seals the reserved body (bytes <= reserved) as a record. Returns its body's position. index may repeat or go back: that cuts. */
uint64_t log_append(struct log *l, uint64_t index, uint64_t term, uint8_t type, size_t bytes);
void log_flush(struct log *l); /* hands what was appended to the disk thread */

uint64_t log_synced_index(struct log *l); /* highest index durable with everything below it, after cuts. Any thread */
uint64_t log_unsynced_bytes(struct log *l);
uint64_t log_end_pos(struct log *l);
uint64_t log_segment_bytes(const struct log *l); /* of the existing log, whatever the options asked for */
/* The same before it is opened, for who counts in segments of it; 0 when there is no log that can be read. */
enum log_status log_segment_bytes_peek(const char *log_dir, uint64_t *bytes, struct buf *error);

/* Bytes of a body. A pin keeps the memory image. log_view: only from memory, false when not there. log_read: memory, else the file
 * (blocking; `out` has `len` bytes; LOG_IO or LOG_DAMAGED for a missing file). The caller checks its own checksum of cold bytes. */
struct log_pin {
    void *image;
};
bool log_view(struct log *l, uint64_t pos, size_t len, struct slice *out, struct log_pin *pin);
void log_unpin(struct log *l, struct log_pin pin);
enum log_status log_read(struct log *l, uint64_t pos, size_t len, char *out);
/* The same for a whole record's body, which is held against the record's checksums when it comes from the file: LOG_DAMAGED. */
enum log_status log_read_record(struct log *l, uint64_t pos, size_t len, char *out);

/* Removes sealed segments that lie wholly below `pos` (the state stored durably needs no record before it for replay) and for
 * which `wanted` says no (NULL: all go). They are gone for readers at once; the files are removed, or kept for coming segments, in the
 * background. A segment that is being read stays until the read is done. */
void log_trim(struct log *l, uint64_t pos, bool (*wanted)(void *ctx, uint64_t first_pos, uint64_t end_pos), void *ctx);
/* Is every byte of the range in an existing segment? For the check at start that live payloads are there. */
bool log_covers(struct log *l, uint64_t first_pos, uint64_t end_pos);
/* Where the record of entry (index, term) ends in the stream: with all before that position, and zeros after it, the log ends with that
 * entry. Looks from `from` on, the position of an entry at or before it (as in a log_record). LOG_DAMAGED when it is not there. Reads
 * the heads in between (100 ns each, 1 us when they left memory). The writer's thread. For who copies the log's files: their bytes below the
 * synced end never change, and a file that has a second name (hard link) stays as it is when it is trimmed. */
enum log_status log_entry_end(struct log *l, uint64_t from, uint64_t index, uint64_t term, uint64_t *end);
/* The first segment that begins at or behind `from`, sealed or not; those made ahead too. One that was trimmed is none any more. Any thread. */
bool log_segment_next(struct log *l, uint64_t from, uint64_t *first_pos, uint64_t *end_pos);
void log_idle(struct log *l); /* now and then from the writer: lets old images go */

struct log_stats {
    uint64_t files, file_bytes, written_bytes, syncs, cache_bytes, cold_reads;
    uint64_t sync_us_total, sync_us_max; /* max since the last call of log_stats */
    uint64_t sync_buckets[24];           /* syncs that took < 2^i * 16 us: bucket i; the last one is open */
    bool direct;
};
void log_stats(struct log *l, struct log_stats *out);

#endif
