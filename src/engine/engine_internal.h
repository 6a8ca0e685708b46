/* The engine's state and the functions its files share.
 *
 *   queue --- lanes (linked by number, creation order) --- partitions in memory --- runs (appends: offsets, time, place of the bytes)
 *     |            |
 *     |            +--- cursors (one per group that has to do with the lane) --- lease, delay, history
 *     +------- groups --- ready list (cursors, oldest first), heap of leases, heap of delays
 *
 * A cursor's state says where it is: IDLE (nothing behind it), READY (in its group's ready list), LEASED (in the lease heap),
 * DELAYED (in the delay heap). An expired lease stays attached to a READY cursor until the next claim (an ack without a lease
 * id is still bounded by it).
 *
 * Files: queue.c (queues, groups: life), lane.c (partitions: life; which are in memory), run.c (append runs), cursor.c (cursors, ready lists, leases), push.c, pop.c,
 * ack.c, letter.c, kv.c, timer.c, lock.c, position.c, step.c, admin.c, retention.c (commands), row.c (rows, cut, load, digest), view.c (reads), engine.c (apply, housekeeping). */
#ifndef QUEEN_ENGINE_INTERNAL_H
#define QUEEN_ENGINE_INTERNAL_H

#include "base/hash.h"
#include "base/heap.h"
#include "base/limits.h"
#include "base/must.h"
#include "engine/dedup.h"
#include "engine/engine.h"
#include "engine/idmap.h"
#include "engine/row.h"
#include "engine/slab.h"
#include "engine/tree.h"

/* Contiguous messages of one append. 40 bytes. */
struct run {
    uint64_t first, where;
    int64_t created_us;
    uint32_t count, item0, block_bytes, bytes; /* bytes: payload home bytes counted as live, and RUN_BYTES_ flags */
};

#define RUN_BYTES_AUTO 0x80000000U
#define RUN_BYTES_OWN_ID 0x40000000U /* the message's id stands in its block (ITEM_ID): fired by a timer; count is 1 */
#define RUN_BYTES_MASK 0x3fffffffU

static inline uint64_t run_end(const struct run *r)
{
    return r->first + r->count;
}

/* What is always in memory of a lane: 24 bytes. */
struct lane {
    struct partition *p;  /* NULL: at rest, in the store only */
    uint32_t queue, next; /* queue 0 = no such lane; next: in the queue, by creation: numbers rise */
    uint32_t
        oldest_s; /* of one that is in the store only: createdAt of the oldest message in seconds, rounded down; 0 = empty */
};

/* A lane in memory, with its cursors. Does not move. */
struct partition {
    uint16_t name_len;
    uint8_t dirty;
    bool touched; /* by an entry since it was looked at for leaving */
    uint32_t queue, number;
    uint32_t cursors; /* first cursor */
    uint32_t run_count, run_cap;
    uint32_t last_lease_s;    /* wall time */
    uint32_t unstored, uncut; /* the last so many offsets are not readable from the store / in no cut yet */
    uint64_t tail, start;
    int64_t created_us, last_created_us;
    int64_t start_us; /* createdAt of the oldest retained message; of no meaning in an empty lane */
    uint64_t bytes;
    uint64_t cut_revision;           /* of the last cut that had a row of it or of its cursors */
    struct partition *newer, *older; /* of those in memory */
    struct run *runs;                /* the newest runs; what is missing at the front is stored */
    char name[];
};

enum cursor_state { CURSOR_IDLE, CURSOR_READY, CURSOR_LEASED, CURSOR_DELAYED };
enum { CURSOR_DIRTY = 1, CURSOR_CLAIMED = 2, CURSOR_SEEDED = 4 };

struct cursor {
    uint32_t partition, group, next; /* next: of the partition */
    uint32_t ready_next, ready_previous;
    uint32_t lease, delay, history; /* slab numbers, 0 = none */
    int64_t committed;              /* last acked offset, -1 = none */
    uint64_t attempt_start;
    uint32_t attempt;
    uint16_t retries;
    uint8_t state, flags;
    int64_t ready_turn; /* place in the ready list: the order is state, it decides what a pop gets */
};

struct lease {
    struct uuid id;
    uint64_t first, last; /* first delivered; batch end, inclusive */
    int64_t expiry_us;    /* log time */
    uint32_t cursor, next_same_id;
    struct heap_node due;
};

struct delay {
    struct heap_node due; /* wall time */
    uint32_t cursor;
};

/* The last lease that was settled whole: for the repeat rule. */
struct history {
    struct uuid id;
    uint64_t low, high;
};

struct group {
    uint32_t number, queue, next; /* next: of the queue; number 0 = no such group */
    struct slice name;
    bool registered, conflates, dirty;
    bool retired;    /* deleted: see group_retire */
    uint8_t mode;    /* enum subscription_mode */
    int64_t from_us; /* messages before are skipped, but for SUBSCRIBE_ALL; for SUBSCRIBE_NEW when it was registered */
    uint32_t scan;   /* partitions up to this number have been looked at; of a retired one: have none of its cursors */
    uint32_t ready_head, ready_tail, ready_count;
    int64_t ready_turn_last;
    uint64_t cursor_count, dead_letters;
    struct heap leases, delays;
    int64_t delay_shift_us; /* what waits in `delays` is due by so much before its key, or later: see group_delays_shorten */
};

struct queue {
    uint32_t number; /* 0 = no such queue */
    bool deleted, dirty;
    struct uuid tenant;
    struct slice name;
    int64_t created_us;
    struct queue_options options;
    uint32_t partition_first, partition_last, partition_count;
    uint32_t groups, retired; /* first of its groups; of those that were deleted */
    uint64_t messages, bytes, pushed_total, dead_letters;
};

/* A dead letter's facts; how they are kept: letter.c. */
struct dead_letter {
    uint64_t sequence; /* 0: a new one */
    uint32_t queue, partition, group, retries, item, block_bytes;
    uint64_t offset, where;
    int64_t created_us, failed_us;
    struct slice error;
};

/* A letter holds its message in the log also when retention has taken it off its lane: by so many bytes, which need not be exact. */
enum { LETTER_HOLDS = 1 };

/* A cut that the store has not confirmed: which partitions' runs become readable with it. */
struct cut_part {
    uint64_t revision;
    uint32_t partition;
    uint64_t tail;
};

/* Rows of lanes and cursors, taken apart. `name` is in the row. */
struct lane_row {
    uint32_t queue, number, last_lease_s;
    uint64_t tail, start, bytes;
    int64_t created_us, last_created_us, start_us;
    struct slice name;
};
struct cursor_row {
    uint32_t queue, partition, group, attempt;
    int64_t committed, turn_or_due;
    uint64_t attempt_start;
    uint16_t retries;
    uint8_t flags, state;
    bool leased, remembered;
    struct lease lease; /* id, first, last, expiry_us */
    struct history history;
};

struct name_pool {
    char *free_lists[(NAMES_BYTES_MAX + 8) / 8 + 1];
    char **chunks;
    uint32_t chunk_count, chunk_cap;
    size_t used;
};

struct numbers {
    uint32_t *at;
    uint32_t count, cap;
};

/* A key of the KV store. `path`: tenant (16 bytes), namespace, a zero byte, key. An expired row is as good as gone and is swept
 * sometime. One at rest has no record (kv_rest.c); one that was removed keeps its record until the store has that. 72 bytes. */
struct kv_row {
    char *bytes; /* path, then the value, unless it is absent */
    uint16_t path_len;
    uint8_t space_len; /* length of the namespace */
    uint8_t flags;     /* KV_ROW_DIRTY and those behind it */
    uint32_t value_len;
    uint64_t version;
    int64_t updated_us;
    struct heap_node due; /* wall time at which it expires; in no heap: never */
    int64_t cut_due_us;   /* of the due row (kv_due.c) that the last cut left; 0 = it left none */
};
enum {
    KV_ROW_DIRTY = 1,    /* in the next cut */
    KV_ROW_UNSTORED = 2, /* in a cut that the store has not confirmed */
    KV_ROW_ABSENT = 4,   /* the value is in the store only: kv_value.c */
    KV_ROW_USED = 8,     /* somebody wanted it lately */
    KV_ROW_GONE = 16,    /* removed, which the store may not know: out of the order, found by nobody */
    KV_ROW_LEAVES = 32,  /* counted in kv_row_bytes: it may leave when it is stored */
};
enum { KV_PATH_MAX = 16 + KV_NAME_SPACE_BYTES_MAX + 1 + KV_KEY_BYTES_MAX };

/* A row in a cut that the store has not confirmed. */
struct kv_cut {
    uint64_t revision, version;
    uint32_t row;
    bool gone; /* the cut removed it */
};

/* Rows at rest of a namespace (`path` up to its zero byte) or, 16 bytes long, of a tenant. There is none without rows at rest. */
struct kv_space {
    char *path;
    uint32_t path_len;
    uint64_t away;
};

static inline struct slice kv_row_path(const struct kv_row *r)
{
    return slice_make(r->bytes, r->path_len);
}
static inline struct slice kv_row_key(const struct kv_row *r)
{
    size_t before = 16U + r->space_len + 1U;
    return slice_make(r->bytes + before, r->path_len - before);
}
static inline bool kv_path_is_permit(struct slice path, uint8_t space_len)
{
    return slice_is(slice_make(path.at + 16, space_len), LOCK_NAME_SPACE);
}
static inline int64_t kv_row_expires_us(const struct kv_row *r)
{
    return heap_holds(&r->due) ? r->due.key : 0;
}

/* What is always in memory of a pending timer: 40 bytes. */
struct timer {
    struct heap_node due;    /* wall time; `tie` is its sequence, the order in which they were scheduled. 0 = a free record */
    uint64_t where;          /* of its message: the push group in the schedule command that was logged */
    struct timer_body *body; /* NULL: at rest, in the store only */
};

/* The rest of one in memory. `path`: tenant (16 bytes), length of the queue's name (2, big-endian), queue, key. */
struct timer_body {
    struct timer_body *newer, *older; /* by when they were wanted */
    uint32_t number;
    uint16_t path_len, queue_len, partition_len, transaction_len;
    uint32_t block_bytes, item_bytes;
    bool dirty, cut; /* cut: a cut gave its rows, the last time when it was due at cut_due_us */
    struct uuid message;
    int64_t created_us, updated_us, cut_due_us;
    uint64_t cut_revision; /* of that cut; 0: read from the store */
    char texts[];          /* path, partition, transaction id */
};

static inline struct slice timer_path(const struct timer_body *b)
{
    return slice_make(b->texts, b->path_len);
}

/* A timer's row, taken apart. The texts are in the row. */
struct timer_row {
    uint64_t sequence, where;
    int64_t due_us, created_us, updated_us;
    uint32_t block_bytes, item_bytes;
    uint16_t queue_len;
    struct uuid message;
    struct slice path, partition, transaction;
};

struct timer_tenant {
    struct uuid tenant;
    uint64_t count;
};

/* Where engine_trim_due goes on. */
struct trim_walk {
    uint32_t queue, partition;
    bool wanted; /* a queue looked at since the last round began may have something to give up, now or later */
};

/* Paths of which all are in memory: from < path <= to. */
struct timer_span {
    struct buf from, to;
    uint32_t ahead; /* rows to look at next */
    bool known;
};

/* Live bytes by segment of the log, from `base` on. */
struct segments {
    uint64_t *bytes;
    uint64_t base, count;
};

/* Where payloads are at home: the log, the archive. */
enum { HOME_LOG, HOME_ARCHIVE, HOME_COUNT };

/* A row of runs whose places changed and that the store does not have yet: place.c. */
struct moved_row {
    char *value;
    size_t len;
    uint64_t cut_revision; /* of the cut that had it */
    uint32_t queue, partition;
    bool gone, dirty; /* dirty: in no cut yet */
    unsigned char key[RUN_KEY_BYTES];
};

struct moved {
    struct slab rows;
    struct idmap keys;
    struct numbers list;  /* of rows */
    uint64_t bytes;       /* of their values */
    uint32_t dirty, last; /* rows that are dirty; the row of the last run moved */
    uint64_t count;       /* moves ever, and other changes of rows without an entry: part of the revision */
    uint32_t letter_count;
    struct buf letters; /* rows of letters that moved since the last cut: struct moved_letter and value, each */
};

enum { ENGINE_DIGESTS_KEPT = 4096, LOADING_NAMES = 32 };

struct engine {
    struct engine_options options;
    uint64_t seed, applied_index;
    struct entry_head last_head;
    uint64_t digest;                                 /* running, of all entries' results: digest.c */
    uint64_t digests[ENGINE_DIGESTS_KEPT];           /* of the last entries, by index; 0 = not known */
    uint32_t queue_last, partition_last, group_last; /* numbers given */
    uint64_t dead_letter_last;
    struct table queues, lanes, groups;
    struct slab cursors, leases, delays, histories;
    struct idmap queue_names, partition_names, group_names, lease_ids;
    struct name_pool names;
    struct dedup *dedup;
    struct slab letters;
    struct tree letters_all, letters_of_queue, letters_of_lane, letters_at_place;
    uint64_t dead_letter_cut;                    /* sequence of the last one in a cut */
    struct partition *lane_newest, *lane_oldest; /* in memory, by when they came or were looked at for leaving */
    uint32_t lanes_in_memory, leaving;           /* leaving: so many are still to be looked at because the broker is idle */
    uint64_t lane_record_bytes, cut_stored;      /* cut_stored: revision up to which all cuts are readable */
    uint64_t reaped_steps;                       /* of what was given back: they change rows between entries */
    int64_t round_at_us;
    uint32_t looks_over;     /* lanes to be looked at, at the next cut, when they take too much */
    bool applying;           /* an entry */
    struct numbers visitors; /* lanes that reads brought back */
    struct reap *reap;       /* lane.c: of the queue being reaped */
    struct buf loading;      /* at start: rows of the lane that was begun */
    uint32_t loading_lane;
    uint32_t loading_turn;
    struct {
        uint64_t hash;
        uint32_t number;
    } loading_names[LOADING_NAMES]; /* on their way into partition_names */
    bool loading_awake;
    struct numbers loaded_ready; /* at start: ready cursors, to be listed in their order */
    struct numbers dirty_queues, dirty_groups, dirty_partitions, dirty_cursors, gone_queues;
    struct cut_part *cut_parts;
    uint32_t cut_part_count, cut_part_cap;
    struct segments segments[HOME_COUNT], reaped[HOME_COUNT]; /* reaped: what the queue being reaped will give back */
    struct moved moved;
    bool segments_dirty;
    struct numbers reaping;  /* deleted queues whose memory is being given back */
    struct numbers retiring; /* deleted groups, the same */
    struct buf gone_groups;  /* of queues that stay, since the last cut: queue, group, u32 each */
    uint64_t run_count;
    struct read_back **read_back; /* run.c */
    struct slab kv_rows, kv_spaces, timers, timer_tenants;
    struct idmap kv_paths, timer_paths, timer_tenant_ids; /* kv_paths: of a row at rest KV_AWAY */
    struct tree kv_order, kv_spaces_order, timer_order;   /* timer_order: of those in memory */
    struct timer_body *timer_newest, *timer_oldest;       /* in memory, by when they were wanted */
    uint64_t timer_bytes;                                 /* of those */
    struct timer_span timer_span;
    struct heap kv_expiry, timers_due;
    uint64_t kv_version, kv_bytes, timer_last; /* counters: version given, bytes of paths and values, timer sequence given */
    uint64_t lock_rows;                        /* of kv_rows */
    /* kv_value.c: bytes of values in memory (but of short ones), in the store only while the key is here, and in memory only */
    uint64_t kv_value_bytes, kv_absent_bytes, kv_unstored_bytes;
    struct buf kv_cuts;                     /* struct kv_cut */
    uint32_t kv_hand, kv_came;              /* the clock's hand; values and rows that came since it last moved */
    uint32_t kv_leaving;                    /* so many are still to be looked at because the broker is idle */
    uint64_t kv_row_bytes;                  /* of records that may leave */
    uint64_t kv_away, kv_away_bytes;        /* kv_rest.c: rows at rest, their paths and values */
    uint64_t kv_away_due;                   /* of those, the ones with an expiry */
    int64_t kv_due_us;                      /* none of those expires before */
    uint32_t kv_space_last, kv_tenant_last; /* records of kv_spaces that were wanted last */
    struct trim_walk trim;
    struct buf gone_runs;    /* keys of runs' rows given up since the last cut, 17 bytes each */
    struct buf gone_cursors; /* removed since the last cut while their lanes stay: queue, partition, group, u32 each */
    struct buf gone_letters; /* removed since the last cut while their queues stay: queue, sequence, u64 each */
    struct numbers dirty_kv, dirty_timers;
    struct buf gone_timers;      /* removed since the last cut: when they were due and sequence, u64 each */
    struct buf gone_timer_paths; /* of those, each u16 length and bytes */
    int64_t safe_us;             /* newest createdAt of all lanes */
    /* foresee.c: so many of this group's ready cursors are spoken for, by pops that come after this entry */
    uint64_t foreseen_index;
    uint32_t foreseen_group, foreseen_count;
    uint64_t foreseen_ids_read, foreseen_ids_until; /* as long as look-ups of ids ask the store, they are foreseen */
    /* of the command being applied */
    int64_t log_us, wall_us;
    const struct engine_sink *sink;
};

/* ---- view.c ---- */
uint64_t engine_tables_bytes(const struct engine *e); /* estimate of all tables but the index of ids */

/* ---- engine.c ---- */
void numbers_add(struct numbers *n, uint32_t v);
void segments_add(struct segments *s, uint64_t segment, uint64_t bytes);
void segments_subtract(struct segments *s, struct segments *less); /* empties `less` */
void segments_shorten(struct segments *s);                         /* empty ones at the front go */
void segments_hold(struct engine *e, struct segments homes[HOME_COUNT], uint64_t where, uint64_t bytes);
void segment_hold(struct engine *e, uint64_t where, uint64_t bytes); /* bytes of the log at `where` are wanted */
void segment_release(struct engine *e, uint64_t where, uint64_t bytes);

/* ---- queue.c ---- */
char *name_add(struct name_pool *p, struct slice s);
void name_remove(struct name_pool *p, char *at, size_t len);
void name_pool_free(struct name_pool *p);

void options_default(struct queue_options *o);
void options_set_text(struct slice *to, struct slice from);
struct queue *queue_at(const struct engine *e, uint32_t number); /* NULL when none */
struct queue *queue_find(const struct engine *e, struct uuid tenant, struct slice name);
struct queue *queue_obtain(struct engine *e, struct uuid tenant, struct slice name); /* made with the implicit options */
struct queue *queue_add(struct engine *e, uint32_t number, struct uuid tenant, struct slice name, int64_t created_us);
void queue_loaded(struct engine *e, struct queue *q); /* of a row: findable, or to be reaped when it was deleted */
void queue_touch(struct engine *e, struct queue *q);
void queue_configure(struct engine *e, const struct configure_command *c, struct arena *arena, struct engine_result *r);
bool queue_delete(struct engine *e, struct uuid tenant, struct slice name);
bool queue_reap(struct engine *e); /* true: more */
int64_t queue_dedup_window_ms(const struct queue *q);
int64_t queue_dedup_keep_ms(const struct queue *q);

/* ---- lane.c ---- */
struct lane *lane_at(const struct engine *e, uint32_t number); /* NULL when none */
/* The lane in memory; one that left is read back. It must be there. Of a walk's steps: _ahead reads the next ones too. */
struct partition *lane_open(const struct engine *e, uint32_t number);
struct partition *lane_open_ahead(const struct engine *e, uint32_t number);
/* The lane if it is in memory. Else *away: one that left and may be it (its name is not in memory), 0 = there is none. */
struct partition *partition_find_here(const struct engine *e, const struct queue *q, struct slice name, uint32_t *away);
struct partition *partition_at(const struct engine *e, uint32_t number); /* the same; NULL when none or its queue is deleted */
struct queue *partition_queue(const struct engine *e, uint32_t number);  /* without bringing it back; NULL as partition_at */
struct partition *partition_find(const struct engine *e, const struct queue *q, struct slice name);
struct partition *partition_obtain(struct engine *e, struct queue *q, struct slice name);
void partition_touch(struct engine *e, struct partition *p);
static inline struct slice partition_name(const struct partition *p)
{
    return slice_make(p->name, p->name_len);
}

/* The lanes of a queue from `next` on, one by one. One that left is read back, with those that follow, and leaves again when the walk has
 * passed it, unless it was changed: a walk over any number of lanes needs little memory and few scans. What it gives holds until the
 * next call. */
struct lane_walk {
    struct engine *e;
    uint32_t next, ahead;
    struct numbers came;
};
void lane_walk_begin(struct lane_walk *w, const struct engine *e, uint32_t next);
void lane_walk_begin_many(struct lane_walk *w, const struct engine *e, uint32_t next,
                          uint32_t count);             /* surely so many: fewer scans */
struct partition *lane_walk_next(struct lane_walk *w); /* NULL at the end */
void lane_walk_end(struct lane_walk *w);

uint64_t lane_bytes(const struct engine *e);        /* of those in memory, with their cursors and runs */
void lanes_rest(struct engine *e);                  /* after a cut was stored: some leave */
void lanes_visited(struct engine *e);               /* those that reads brought back leave when they are many */
bool lanes_leave_all(struct engine *e);             /* e->leaving: some of them; true: more */
bool lanes_reap(struct engine *e, struct queue *q); /* some lanes of a deleted queue are taken out; true: more */
void lanes_free(struct engine *e);
/* Start: a lane's row, then its cursors' rows; lanes_loaded behind the last one. */
const char *lane_load(struct engine *e, struct slice key, struct slice value);
const char *lane_load_cursor(struct engine *e, struct slice key, struct slice value);
void lanes_loaded(struct engine *e);

/* ---- row.c: false when it is damaged ---- */
bool row_lane_read(struct slice key, struct slice value, struct lane_row *out);
bool row_cursor_read(struct slice key, struct slice value, struct cursor_row *out);
bool row_timer_read(struct slice key, struct slice value, struct timer_row *out);
bool row_run_key_read(struct slice key, uint32_t *partition, uint64_t *last_offset);

/* ---- queue.c: groups ---- */
struct group *group_at(const struct engine *e, uint32_t number);
struct group *group_find(const struct engine *e, const struct queue *q, struct slice name);
struct group *group_add(struct engine *e, struct queue *q, uint32_t number, struct slice name);
void group_touch(struct engine *e, struct group *g);
bool group_is_queue_mode(const struct group *g);
void group_retire(struct engine *e, struct queue *q, struct group *g);
void group_retired_check(struct engine *e, struct group *g); /* its last dead letter may have gone */
bool group_reap(struct engine *e);                           /* true: more */

/* ---- run.c ---- */
uint64_t
run_memory_first(const struct partition *p); /* the first offset whose run is in memory; before it the store has them */
void run_append(struct engine *e, struct partition *p, const struct run *r);
bool run_find(const struct engine *e, const struct partition *p, uint64_t offset, struct run *out); /* start <= offset < tail */
/* First offset whose message was created at or after `us`; tail when there is none. */
uint64_t run_offset_at(const struct engine *e, const struct partition *p, int64_t us);
void run_forget(struct engine *e, struct partition *p,
                uint64_t start);                      /* retention: the lane begins at `start`, a run's first */
void run_trim(struct engine *e, struct partition *p); /* forgets what is stored and consumed, or cold */
/* The first offset at or behind `offset` whose run is not at hand; at or behind `end`, or at the first one in memory: none before it. */
uint64_t run_missing(const struct engine *e, const struct partition *p, uint64_t offset, uint64_t end);
/* The run, if it is at hand. */
bool run_find_here(const struct engine *e, const struct partition *p, uint64_t offset, struct run *out);
void run_cache_drop(struct engine *e);
void run_cache_forget(struct engine *e, uint32_t partition); /* of one lane: places of its runs changed */
void run_each(const struct engine *e, const struct partition *p, void (*each)(void *ctx, const struct run *r), void *ctx);
/* Those that begin at `from`, a run's first, or behind it, until `each` says false. */
void run_each_from(const struct engine *e, const struct partition *p, uint64_t from,
                   bool (*each)(void *ctx, const struct run *r), void *ctx);
/* Stored rows of runs, [from, to), with the places they have by now; and those of a lane that hold `offset` and what lies behind it. */
void run_rows_scan(const struct engine *e, const struct row_key *from, const struct row_key *to,
                   bool (*row)(void *ctx, struct slice key, struct slice value), void *ctx);
void run_rows_of(const struct engine *e, const struct partition *p, uint64_t offset,
                 bool (*row)(void *ctx, struct slice key, struct slice value), void *ctx);
/* ---- place.c ---- */
void moved_init(struct engine *e);
void moved_free(struct engine *e);
const struct moved_row *moved_find(const struct engine *e, struct slice key); /* NULL: the store has the row as it is */
void moved_gone(struct engine *e, struct slice key);                          /* the row was given up */
void moved_letter_gone(struct engine *e, uint64_t sequence);                  /* the letter was given up */
void moved_cut(struct engine *e, const struct engine_rows *rows);
void moved_stored(struct engine *e, uint64_t revision);

/* ---- cursor.c ---- */
struct cursor *cursor_at(const struct engine *e, uint32_t at);
uint32_t cursor_find(const struct engine *e, const struct partition *p, uint32_t group);
/* `at`, or the first of the lane's cursors behind it that is of a group that was not deleted. For walking: from p->cursors on, each one's
 * `next`. */
uint32_t cursor_live(const struct engine *e, uint32_t at);
bool cursor_is_live(const struct engine *e, uint32_t at);
uint32_t cursor_add(struct engine *e, struct partition *p, struct group *g);
void cursor_drop(struct engine *e, uint32_t at); /* frees what hangs on it */
uint32_t cursor_link(struct engine *e, struct partition *p,
                     uint32_t group);              /* one that its group has counted comes into memory */
void cursor_unlink(struct engine *e, uint32_t at); /* an idle one leaves it */
/* The group has to do with the lane no more: the row goes too. */
void cursor_forget(struct engine *e, struct partition *p, uint32_t at);
void cursor_touch(struct engine *e, uint32_t at);
void cursor_settle(struct engine *e, uint32_t at);       /* puts it where its state belongs after a change */
void cursor_settle_first(struct engine *e, uint32_t at); /* the same, at the head of the ready list */
void cursor_unlist(struct engine *e, uint32_t at);
void cursor_delay(struct engine *e, uint32_t at, int64_t due_wall_us);
int64_t cursor_delay_key(const struct engine *e, const struct cursor *c);
void cursor_restore(struct engine *e, uint32_t at, uint8_t state,
                    int64_t turn_or_due);                                      /* of a row; ready ones are listed later */
void group_restore_ready(struct engine *e, uint32_t *cursors, uint32_t count); /* all ready ones of one or more groups */
void cursor_seed(const struct engine *e, const struct group *g, const struct partition *p, struct cursor *c);
bool cursor_pending(const struct cursor *c, const struct partition *p);
void cursor_arm(struct engine *e, struct partition *p);                /* after an append: every group */
void group_expire(struct engine *e, struct group *g, uint32_t wanted); /* due leases and delays become ready */
/* Looks at partitions it has not seen, `looks` of them at most (counted down). */
void group_scan(struct engine *e, struct group *g, uint32_t wanted, uint32_t *looks);
void group_delays_shorten(struct engine *e, struct group *g, int64_t us);
static inline int64_t group_delay_now(const struct group *g, int64_t wall_us) /* in keys of `delays` */
{
    return wall_us + g->delay_shift_us;
}

struct lease *lease_at(const struct engine *e, uint32_t at);
bool lease_live(const struct engine *e, const struct lease *l); /* for pops: expiry > now */
void lease_grant(struct engine *e, uint32_t cursor, struct uuid id, uint64_t first, uint64_t last, int64_t expiry_us);
void lease_drop(struct engine *e, uint32_t cursor);
uint32_t lease_find(const struct engine *e, struct uuid id);
void history_set(struct engine *e, struct cursor *c, struct uuid id, uint64_t low, uint64_t high);
struct history *history_at(const struct engine *e, uint32_t at);

/* ---- letter.c ---- (letters by number of their record, 0 = none) */
void letters_init(struct engine *e);
void letters_free(struct engine *e);
/* A new one gets the next sequence number, and its message's place in the log is held; one from a row has its own. Copies the text. */
void dead_letter_add(struct engine *e, const struct dead_letter *d);
void dead_letter_read(const struct engine *e, uint32_t at, struct dead_letter *out);
void dead_letter_forget(struct engine *e, uint32_t at);
uint32_t dead_letter_at(const struct engine *e, uint64_t sequence);
/* Of a queue, or of all (0): the first with a higher, the last with a lower sequence. */
uint32_t dead_letter_after(const struct engine *e, uint32_t queue, uint64_t after);
uint32_t dead_letter_before(const struct engine *e, uint32_t queue, uint64_t before);
uint32_t dead_letter_of_lane_before(const struct engine *e, uint32_t partition, uint64_t before);
uint32_t dead_letter_of_message(const struct engine *e, uint32_t partition, uint64_t offset); /* the newest */
uint64_t dead_letters_of_lane(const struct engine *e, uint32_t partition);
uint32_t letter_find(const struct engine *e, struct uuid tenant, struct uuid id);
bool dead_letters_reap(struct engine *e, uint32_t queue); /* true: more */
void dead_letter_place(struct engine *e, uint32_t at, uint64_t where);
void value_dead_letter(struct buf *b, const struct dead_letter *d, bool logical); /* row.c: its row */

/* ---- commands ---- */
struct visible {
    uint64_t first, end; /* messages that may be delivered now: first <= o < end */
    int64_t due_us;      /* none now: wall time at which some will be; 0 = not by time */
};
void visible_get(const struct engine *e, const struct queue *q, const struct partition *p, uint64_t from, int64_t now_us,
                 struct visible *out);
bool push_apply(struct engine *e, const struct command *c, uint64_t where, struct arena *arena, struct engine_result *r);
bool pop_apply(struct engine *e, const struct command *c, struct arena *arena, struct engine_result *r);
bool ack_apply(struct engine *e, const struct command *c, struct arena *arena, struct engine_result *r);
bool kv_apply(struct engine *e, const struct command *c, struct arena *arena, struct engine_result *r);
bool timers_apply(struct engine *e, const struct command *c, uint64_t where, struct arena *arena, struct engine_result *r);
bool tick_apply(struct engine *e, struct engine_result *r);
bool seek_apply(struct engine *e, const struct command *c, struct engine_result *r);
bool group_delete_apply(struct engine *e, const struct command *c, struct arena *arena, struct engine_result *r);
bool subscription_apply(struct engine *e, const struct command *c, struct engine_result *r);
bool letters_delete_apply(struct engine *e, const struct command *c, struct engine_result *r);
bool letter_move_apply(struct engine *e, const struct command *c, uint64_t where, struct arena *arena, struct engine_result *r);
bool trim_apply(struct engine *e, const struct command *c, struct engine_result *r);
bool locks_apply(struct engine *e, const struct command *c, struct arena *arena, struct engine_result *r);
bool step_apply(struct engine *e, const struct command *c, uint64_t where, struct arena *arena, struct engine_result *r);
bool extend_apply(struct engine *e, const struct command *c, struct engine_result *r);
bool claim_return_apply(struct engine *e, const struct command *c);

/* ---- parts of commands, for steps: first everything is judged, then everything is done ---- */

/* push.c: the first item, in command order, whose id is in its lane's window already. The command has been decoded. */
bool push_duplicate(struct engine *e, const struct push_command *push, uint32_t *item, uint64_t *offset);
/* One message of a timer onto its lane; false: its id was there already and nothing was appended. */
bool push_fire(struct engine *e, struct uuid tenant, struct slice queue, struct slice partition, struct slice transaction,
               const struct run *place);

/* ack.c */
struct ack_plan;
/* Judges the items of one ACK command as part of a step: against the state that the plan's earlier ones leave, which is carried out by
 * ack_plan_commit. `out` has room for all items. False: item *failed is refused. */
struct ack_plan *ack_plan_new(struct engine *e, uint32_t items_max, struct arena *arena);
bool ack_plan_add(struct ack_plan *p, const struct ack_command *ack, struct ack_outcome *out, uint32_t *failed);
void ack_plan_commit(struct ack_plan *p);

/* kv.c: what a call of several ops does, judged against one state. */
struct kv_plan;
struct kv_plan *kv_plan_new(struct engine *e, const struct kv_command *c, struct arena *arena, struct kv_result *out);
bool kv_plan_judge(struct kv_plan *p); /* false: a required op lost; the result says so */
void kv_plan_commit(struct kv_plan *p);
/* The live row of a path, or 0. */
uint32_t kv_find(const struct engine *e, struct slice path, int64_t now_us);
struct kv_row *kv_row_at(const struct engine *e, uint32_t at);
size_t kv_path(char out[KV_PATH_MAX], struct uuid tenant, struct slice name_space, struct slice key);
/* Writes the row under a new version. ttl_us 0 = for ever; `keep_expiry`: as it is, if the row is live. Gives the row. */
uint32_t kv_store(struct engine *e, struct slice path, uint8_t space_len, struct slice value, int64_t ttl_us, bool keep_expiry);
void kv_remove(struct engine *e, uint32_t at);
void kv_row_drop(struct engine *e, uint32_t at); /* the record goes; it is in no order and no heap any more */
bool kv_row_may_rest(const struct kv_row *r);    /* for ever, or so long that it has a due row */
/* One at rest whose time has come is removed; its due row, read from the store, says what is needed. */
void kv_row_expire(struct engine *e, struct slice path, uint32_t value_len, uint64_t version, int64_t due_us);
uint64_t kv_row_cost(const struct kv_row *r); /* bytes of its record and places, without the value */
void kv_row_show(const struct engine *e, const struct kv_row *r, bool with_value, struct arena *arena, struct kv_row_view *out);
uint32_t kv_row_find(const struct engine *e, struct slice path); /* also an expired one, and reads one at rest back; 0 = none */
/* The record of a path, also of a removed row, if there is one. *away: it may be at rest. */
uint32_t kv_row_here(const struct engine *e, struct slice path, bool *away);
bool kv_sweep(struct engine *e, uint32_t most, int64_t now_us); /* true: there is more */
/* Of a stored row, `value` what is left of it behind its head. */
struct kv_stored {
    uint8_t space_len;
    uint64_t version;
    int64_t updated_us, expires_us;
    struct slice value;
};
void kv_row_load(struct engine *e, struct slice path, const struct kv_stored *row);

/* kv_value.c: where a row's value is. */
struct slice kv_row_value(const struct engine *e, const struct kv_row *r); /* reads it back; lives until the entry is over */
void kv_value_set(struct engine *e, struct kv_row *r, struct slice value); /* `value` may not lie in the row */
/* Of a stored row: if there is room or `must_stay`, in memory. */
void kv_value_load(struct engine *e, struct kv_row *r, struct slice value, bool must_stay);
void kv_value_forget(struct engine *e, struct kv_row *r); /* the row goes */
void kv_touch(struct engine *e, uint32_t at);             /* into the next cut */
void kv_cut_made(struct engine *e, uint32_t at);
void kv_cut_stored(struct engine *e, uint64_t revision);
bool kv_value_absent(const struct kv_row *r);
void kv_value_leave(struct engine *e, struct kv_row *r); /* it must be stored */
/* If r's value is absent: reads it back, and with a prefix of its path those of the rows behind it that have the prefix too, by one scan
 * that ends after so many rows or bytes of values. */
void kv_values_read(const struct engine *e, const struct kv_row *r, struct slice prefix, uint32_t rows, int64_t bytes);
/* Between entries: values leave until the budget is kept or so many rows were looked at (more when many came). True: going on helps. */
enum { KV_LOOKS = 256 };
bool kv_values_bound(struct engine *e, uint32_t looks);
bool kv_leave_all(struct engine *e); /* while the broker is idle: true: there is more */

/* kv_rest.c: rows at rest. */
#define KV_AWAY UINT32_MAX
void kv_row_rest(struct engine *e, uint32_t at); /* it is stored as it is, and kv_row_may_rest */
uint32_t kv_row_come(struct engine *e, struct slice path,
                     const struct kv_stored *row); /* kv.c: one at rest gets its record back */
void kv_rest_init(struct engine *e);
void kv_rest_free(struct engine *e);
void kv_rest_add(struct engine *e, struct slice path, uint8_t space_len, uint32_t value_len, int64_t expires_us);
void kv_rest_take(struct engine *e, struct slice path, uint8_t space_len, uint32_t value_len, int64_t expires_us);
uint32_t kv_row_back(struct engine *e, struct slice path);         /* 0: it is not at rest */
uint64_t kv_space_away(const struct engine *e, struct slice path); /* rows at rest of a namespace or a tenant */
/* The first namespace with rows at rest whose path is at or behind `path`; NULL: none. */
const struct kv_space *kv_space_from(const struct engine *e, struct slice path);
/* Rows at rest from the store, without bringing them back. */
void kv_rest_each(struct engine *e, void (*each)(void *ctx, struct slice path, struct slice stored), void *ctx);

/* Rows with a prefix, in order: those at rest come back as it gets to them, up to `rows` of them by one scan. A prefix holds a whole
 * namespace and its zero byte. Nothing else may add or remove rows while it is under way. */
struct kv_walk {
    struct engine *e;
    struct slice prefix; /* must live on */
    struct tree_place place;
    uint32_t last, rows;
    bool whole; /* nothing behind `known` is at rest */
    size_t known_len;
    char known[KV_PATH_MAX + 1]; /* all rows before it are in memory */
};
void kv_walk_begin(struct kv_walk *w, const struct engine *e, struct slice prefix, struct slice from, uint32_t rows);
uint32_t kv_walk_next(struct kv_walk *w); /* 0 at the end */

/* kv_due.c: when rows at rest expire. */
bool kv_has_due_row(int64_t updated_us, int64_t expires_us);
void kv_due_cut(struct kv_row *r, const struct engine_rows *rows); /* with the row itself */
/* The number of stored due rows of rows at rest; UINT64_MAX: one says what is not so. */
uint64_t kv_due_check(struct engine *e);

void kv_init(struct engine *e);
void kv_free(struct engine *e);

/* timer.c */
void timers_init(struct engine *e);
void timers_free(struct engine *e);
void timers_do(struct engine *e, const struct timers_command *c, uint64_t where_of_ops, struct arena *arena,
               struct timers_result *out);
uint64_t timers_of_tenant(const struct engine *e, struct uuid tenant);
void timer_load(struct engine *e, const struct timer_row *row); /* at rest */
struct slice timer_path_make(char out[TIMER_PATH_MAX], struct uuid tenant, struct slice queue, struct slice key);

/* A look at `left` of the timers due until then; counted down. */
struct timers_due {
    struct engine *e;
    int64_t until_us;
    uint32_t left;
    bool reads; /* names of those at rest, once: some are then still at rest */
    void (*each)(void *ctx, struct uuid tenant, struct slice queue, struct slice partition); /* in memory; or NULL */
    void *ctx;
    const struct timer *resting; /* out: the one at rest seen that is due first */
};
void timers_due_walk(struct timers_due *w);

/* timer_rest.c: what of them is in memory. */
struct timer *timer_at(const struct engine *e, uint32_t at);
uint32_t timer_numbered(const struct engine *e, struct slice path, uint64_t sequence); /* 0: there is none */
struct timer_body *timer_open(const struct engine *e, uint32_t at);                    /* one at rest is read back */
/* Reads back a timer at rest, and those due behind it until then, by one scan of so many rows. */
void timers_wake(const struct engine *e, const struct timer *from, int64_t until_us, uint32_t most);
/* In the place of the one that is there, whose path it must have. The slices may lie in that one's row, not in itself. */
struct timer_body *timer_body_new(struct engine *e, uint32_t at, const struct timer_row *row);
void timer_body_drop(struct engine *e, struct timer *t);
void timer_touch(struct engine *e, struct timer_body *b); /* into the next cut */
void timers_rest(struct engine *e);                       /* after a cut was stored: some leave */
bool timers_leave(struct engine *e);                      /* true: more may */
/* Of the path's queue the next timer behind it, in memory then; 0 = none. */
uint32_t timer_behind(const struct engine *e, struct slice path);
/* Goes on counting those whose path begins with the prefix; looks at so many rows. True: there is more. */
bool timers_tally(const struct engine *e, struct slice prefix, uint32_t looks, struct timer_tally *t);
/* All timers at rest, from their rows, in the order in which they are due. Gives their number. */
uint64_t timers_at_rest(const struct engine *e,
                        void (*each)(void *ctx, const struct timer *t, const struct timer_row *row, struct slice value),
                        void *ctx);

/* position.c: the first item whose queue does not exist; -1 = none. */
int64_t positions_missing(const struct engine *e, const struct positions_command *c);
void positions_do(struct engine *e, const struct positions_command *c);

/* pop.c */
void pop_do(struct engine *e, const struct pop_command *pop, struct arena *arena, struct pop_result *out);
void push_do(struct engine *e, const struct command *c, const struct push_command *push, uint64_t where, struct arena *arena,
             struct push_result *out);

/* digest.c */
void digest_result(struct engine *e, const struct engine_result *r);
void digest_entry(struct engine *e, uint64_t index);
/* False: the entry's state was another one than here. Unknown ones are passed. */
bool digest_check(const struct engine *e, uint64_t index, uint64_t digest);

#endif
