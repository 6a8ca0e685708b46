/* Segment files read as they lie on disk, without a struct log: of a stopped log, of a backup, or a sealed one of a running log. Never
 * writes, needs no lock, takes no memory but for one window (1 MiB, or the largest record).
 *
 * The walk goes from record to record and checks each of them, head and body, by the rules of log_open: it ends at the first place where
 * no valid record begins. In a segment that is followed by another one that is damage. In the last one it is the end of the log,
 * unless a record behind it says that more had been durable: `proof`. Any thread. */
#ifndef QUEEN_LOG_LOG_CHECK_H
#define QUEEN_LOG_LOG_CHECK_H

#include "log/log.h"

enum segment_kind { SEGMENT_ENTRY = 1, SEGMENT_PAD, SEGMENT_MARK };

struct segment_item {
    uint64_t pos;  /* of its head in the stream; the body begins SEGMENT_HEAD_BYTES later */
    uint64_t next; /* of the record behind it */
    uint64_t index, term, synced;
    uint32_t len, gen;
    uint8_t type, kind;
    struct slice body; /* empty for a pad. Until the callback returns */
};
enum { SEGMENT_HEAD_BYTES = 48 };

struct segment_walk {
    /* set by the caller */
    const char *path;
    uint64_t first_pos; /* by its name */
    uint32_t gen_least; /* of the segment before it; 0 = none was seen */
    bool past_cache;    /* read what the disk has, not what the kernel remembers, and leave nothing there */
    bool heads_only;    /* bodies are neither read nor checked */
    void *ctx;
    bool (*item)(void *ctx, const struct segment_item *i); /* may be NULL; false ends the walk */
    bool (*pace)(void *ctx, uint64_t bytes);               /* may be NULL: so much was read; false ends the walk */
    /* the outcome */
    uint64_t file_bytes, id, segment_bytes, block_bytes, end_pos; /* end_pos: of the whole segment; 0 = its head is bad */
    bool head_newer;                                              /* a format this program does not know */
    bool ended_early;                                             /* by `item` or `pace` */
    bool head_valid;                                              /* where it stopped: the head is good, so the body is not */
    uint64_t stop_pos;                                            /* end_pos when the segment is full and whole */
    uint64_t records, entries, entry_bytes, first_index, last_index, first_term, last_term;
    uint64_t proof_synced, proof_pos; /* highest `synced` of a record behind stop_pos, and where that is; 0 = none there */
    uint32_t gen;                     /* of the last record */
};

/* LOG_IO: a read failed; `error` says where. Everything else is in the outcome. */
enum log_status segment_walk(struct segment_walk *w, struct buf *error);

/* Verifies one sealed segment of a log that is open: the first one at or behind *from, which moves to its end. Any thread; nobody waits
 * for it. One that is trimmed meanwhile is left. `pace` as above. */
struct log_scrub {
    void *ctx;
    bool (*pace)(void *ctx, uint64_t bytes);
    /* the outcome */
    bool any, damaged; /* any: there was such a segment, and it was read to its end, or to the damage */
    uint64_t offset;   /* damaged: where in the file */
    char path[1200];
};
enum log_status log_scrub(struct log *l, uint64_t *from, struct log_scrub *o, struct buf *error);

#endif
