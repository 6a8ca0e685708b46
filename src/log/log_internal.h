/* Inside of the log room. The contract is log.h; this is how the parts share one log.
 *
 * Stream and files. Positions count bytes of one endless stream. A segment file holds [first_pos, end_pos) of it; end_pos -
 * first_pos is segment_bytes, or a multiple of it when one record needs more. Blocks divide the stream evenly:
 *
 *   segment   | page: file head | records ...      | records ...      | ...   block_bytes each
 *             ^ first_pos                          ^ block border
 *
 *   record    0      4      8      12     16       24       32         40        44     45     46     48
 *             | magic| crc  | len  | gen  | index  | term   | synced   | body crc| type | kind | 0    | body, padded to 8 |
 *
 *   magic    drawn per log, so that a payload cannot imitate a record
 *   crc      of the record's position and the head from `len` on, seeded per log: a record is valid in one place of one log only.
 *            So bytes of an earlier life of a file (recycled, restored, copied) never count
 *   gen      number of the log_open that wrote it; never falls along the log. What lay behind a cut has a lower one
 *   synced   the position up to which everything was durable when this record was appended: the proof that what lies before
 *            it was promised to somebody
 *   kind     ENTRY: of the caller. MARK: written by log_open (makes its generation durable) and log_close (proves the last records).
 *            PAD: skips `len` bytes, to the end of the block or of the segment
 *
 * A record lies inside one block. If it is larger, it begins at a block's first place and the next record begins at the first block
 * border after its end. When fewer than 48 bytes remain in a block the next record begins at the border, without a PAD.
 *
 * Threads and locks (a thread holds at most one of them):
 *   writer   images and positions                      state_lock  marks, synced, failed
 *   disk     taken range -> pwritev, fdatasync         image_lock  the list of images, pins taken under it
 *   keeper   next segment, zeroing, removing           file_lock   segments, descriptors, orders to the keeper */
#ifndef QUEEN_LOG_LOG_INTERNAL_H
#define QUEEN_LOG_LOG_INTERNAL_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/must.h"
#include "log/log.h"

enum {
    LOG_PAGE = 4096,
    LOG_HEAD = 48,
    LOG_BLOCK_BYTES_MAX = 8 << 20,
    LOG_BODY_BYTES_MAX = 256 << 20,    /* one record; asserted */
    LOG_TAKE_BYTES_MAX = 32 << 20,     /* one write and sync, unless one record is larger */
    LOG_UNSYNCED_BYTES_MAX = 64 << 20, /* unless the options say another bound */
    LOG_MARKS_MAX = 256,               /* flush points not yet synced; more are merged */
    LOG_MARK_BYTES = 1 << 20,          /* flushes closer together than this share a mark */
    LOG_FIRST_ZERO_BYTES = 1 << 20,    /* zeroed before a new file gets its name */
    LOG_ZERO_SLICE_BYTES = 1 << 20,    /* zeroed at a time: the longest a write may find in its way */
    LOG_RATE_US = 500000,              /* a period in which what is written is counted */
    LOG_FAST_BYTES_S = 2 << 20,        /* a period with more: no zeros ahead in it */
    LOG_FAST_PERIODS = 4,              /* and in those after it */
    LOG_READ_FDS_MAX = 64,             /* open files for cold reads; the least recently used is closed */
    LOG_RESERVE_FDS = 4,               /* descriptors kept for our own files when the process has none left */
    LOG_SPARES_MAX = 2,                /* trimmed files kept for the next segments */
    LOG_FREE_IMAGES_MAX = 4,           /* unused blocks of memory kept for the next ones */
    LOG_FAULT_BYTES = 512,
};

enum log_kind { LOG_ENTRY = 1, LOG_PAD = 2, LOG_MARK = 3 };

struct record_head {
    uint32_t magic, crc;
    uint32_t len, gen;
    uint64_t index, term, synced;
    uint32_t body_crc;
    uint8_t type, kind;
    uint16_t zero;
};

struct file_head {
    uint64_t magic;
    uint32_t version, page_bytes;
    uint64_t id, first_pos, len, segment_bytes, block_bytes;
    uint32_t gen, crc;
};

/* One block (or the blocks of one large record) in memory. `mem` has a page more than the blocks need: the record is built
 * before its place is known, and the first block of a segment begins with the file head's page. */
struct image {
    char *mem, *base; /* base: the byte at `pos`, page-aligned */
    size_t mem_bytes, cap;
    uint64_t pos, seg_first, seg_end;
    atomic_size_t used; /* bytes from base with sealed records; only the writer moves it */
    atomic_uint pins;   /* raised under image_lock only */
    _Atomic int64_t used_us;
    struct image *next_free;
};

struct segment {
    uint64_t first_pos, end_pos, file_bytes;
    int fd;      /* of the disk thread, O_DIRECT when possible; -1 once sealed */
    int read_fd; /* buffered, for cold reads; -1 when not open */
    uint64_t read_turn;
    uint32_t readers;            /* reads under way */
    bool sealed;                 /* nothing is written to it any more */
    bool removed;                /* trimmed; goes when `readers` is 0 */
    uint64_t zeroed, claimed;    /* file offsets: zeroed or written up to; writes of the disk thread reach up to */
    uint64_t zero_from, zero_to; /* the slice the keeper is writing */
};

struct log_mark {
    uint64_t start, pos, index;
};

struct fault {
    bool final; /* must not be tried again */
    char text[LOG_FAULT_BYTES];
};

struct log {
    struct log_options o;
    char *dir;
    int dir_fd;
    bool direct;
    uint64_t segment_bytes, block_bytes;
    uint64_t id;
    uint32_t magic, key, gen;

    /* writer */
    struct image *now, *ahead;
    size_t off; /* in `now`, of the next record */
    uint64_t seg_first, seg_end;
    uint64_t last_index;
    char *reserved;
    size_t reserved_bytes;
    bool reserved_ahead;
    _Atomic uint64_t end_pos;
    uint64_t flushed_pos;

    pthread_mutex_t state_lock;
    pthread_cond_t state_cond; /* synced moved, or failed */
    struct log_mark marks[LOG_MARKS_MAX];
    uint32_t mark_first, mark_count;
    uint64_t taken_pos;
    bool failed, failed_told;
    _Atomic uint64_t synced_pos, synced_index;
    _Atomic uint32_t disk_asleep;
    atomic_bool disk_stop;

    pthread_mutex_t image_lock;
    struct image **images; /* by position */
    uint32_t image_count, image_cap;
    struct image *free_images;
    uint32_t free_count;
    uint64_t image_bytes;
    _Atomic int64_t now_us;
    int64_t block_us; /* when the writer last changed blocks */

    pthread_mutex_t file_lock;
    pthread_cond_t keeper_cond, file_cond;
    struct segment **segments; /* by position */
    uint32_t segment_count, segment_cap;
    struct segment **removals;
    uint32_t removal_count, removal_cap;
    struct segment *write_seg;
    uint64_t want_pos; /* first position of the segment that must be ready next */
    bool want_urgent, want_gave_up, keeper_stop;
    bool zeroing;          /* towards the full distance ahead of the writer */
    uint64_t write_mean;   /* bytes of a write, moving average */
    uint32_t fast_periods; /* so many more periods count as fast ones */
    uint64_t rate_bytes;   /* in this period */
    int64_t rate_us;
    uint32_t spare_ids[LOG_SPARES_MAX]; /* spare-<id>.tmp */
    uint32_t spare_count, spare_next;
    struct segment *read_open[LOG_READ_FDS_MAX];
    uint32_t read_open_count;
    uint64_t read_turn;
    int reserve_fds[LOG_RESERVE_FDS];
    char *zeros; /* LOG_ZERO_SLICE_BYTES, page-aligned, never written */

    /* disk thread */
    char *tail_page;
    bool dirty; /* write_seg has writes that are not synced */
    pthread_t disk_thread, keeper_thread;

    _Atomic uint64_t written_bytes, syncs, cold_reads, sync_us_total, sync_us_max, sync_buckets[24];
};

static inline uint64_t round_up(uint64_t v, uint64_t unit)
{
    return (v + unit - 1) / unit * unit;
}

static inline uint64_t record_bytes(size_t body)
{
    return round_up(LOG_HEAD + (uint64_t)body, 8);
}

/* ---- log_format.c */
void record_seal(const struct log *l, uint64_t pos, struct record_head *h, const char *body);
bool record_head_valid(const struct log *l, uint64_t pos, const struct record_head *h);
uint32_t record_body_crc(const struct log *l, const char *body, size_t len);
void file_head_make(const struct log *l, uint64_t first_pos, uint64_t len, char page[LOG_PAGE]);
enum file_head_state { FILE_HEAD_GOOD, FILE_HEAD_BAD, FILE_HEAD_NEWER };
enum file_head_state file_head_read(const char page[LOG_PAGE], uint64_t first_pos, struct file_head *out);
void log_key_set(struct log *l, uint64_t id);

/* ---- log_image.c. image_new, image_add, images_drop: writer (or log_open) only */
struct image *image_new(struct log *l, uint64_t blocks);
void image_put_back(struct log *l, struct image *i); /* of one that was never added */
void image_add(struct log *l, struct image *i);
struct image *image_from(struct log *l, uint64_t pos); /* first one that ends after pos; NULL when none */
void images_drop(struct log *l, bool by_age);
void images_free(struct log *l);
char *pages_map(size_t bytes);
void pages_unmap(char *at, size_t bytes);

/* ---- log_file.c. Names are relative to dir_fd */
enum { LOG_NAME_BYTES = 32 };
void segment_name(uint64_t first_pos, char out[LOG_NAME_BYTES]);
__attribute__((format(printf, 3, 4))) bool fault_say(struct fault *f, int error, const char *format, ...); /* false */
int file_open(struct log *l, const char *name, int flags); /* file_lock not held; -1 with errno */
bool file_write(struct log *l, int fd, const char *at, size_t len, uint64_t offset, int *error);
ssize_t file_read(int fd, char *at, size_t len, uint64_t offset,
                  bool direct); /* whole, or to the end of the file; -1 with errno */
bool dir_sync(struct log *l, struct fault *f);
struct segment *segment_new(uint64_t first_pos, uint64_t end_pos);
void segment_add(struct log *l, struct segment *s);      /* file_lock held */
struct segment *segment_at(struct log *l, uint64_t pos); /* file_lock held; the one that holds pos, or NULL */
void segment_seal(struct log *l, struct segment *s);     /* file_lock held */
/* The first sealed segment at or behind `from`. Any thread; it may be trimmed at any time. */
bool sealed_next(struct log *l, uint64_t from, uint64_t *first_pos, uint64_t *end_pos);
void segments_close(struct log *l);
void reserve_fill(struct log *l); /* file_lock held */

/* ---- log_keeper.c */
void *keeper_main(void *log);
struct segment *zero_pick(struct log *l, bool *slow);
bool segment_make(struct log *l, uint64_t first_pos, struct segment **out, struct fault *f); /* file_lock not held */

/* ---- log_disk.c */
void *disk_main(void *log);
bool disk_write(struct log *l, uint64_t from, uint64_t to, struct fault *f); /* writes and syncs */
void disk_publish(struct log *l, uint64_t pos);
void disk_wake(struct log *l);
void log_fail(struct log *l, const struct fault *f);

/* ---- log_load.c: finds the end; on LOG_OK the writer's state, segments and images are set up */
enum log_status log_load(struct log *l, struct buf *error);

/* ---- log.c */
void writer_start(struct log *l, uint64_t seg_first, uint64_t seg_end, uint64_t pos, struct image *now);
void writer_mark(struct log *l);
enum log_status log_open_still(struct log **out, const struct log_options *o, struct buf *error); /* log_open without threads */
void log_free(struct log *l);                                                                     /* and its end */

#endif
