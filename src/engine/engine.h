/* The engine: the deterministic state machine. The ONLY code that changes what the broker knows.
 *
 * Input is a committed entry (command.h) and the state; output is a result per command and changed rows. It reads no clock,
 * does no I/O, takes no lock, starts no thread and depends on no address or hash order: the same entries give the same
 * results and the same rows on every node and at every replay. One thread at a time uses an engine (the group thread).
 *
 * What left memory, or never was there (payload bytes), is read through struct engine_cold, which the caller supplies. The
 * answer is the same whatever is cached.
 *
 * `where`: a node-local place of payload bytes: a byte position in the log or, with PLACE_ARCHIVE set, one in the archive. The engine
 * stores it with each append run and hands it out with deliveries; it takes no part in any decision nor in the digest.
 *
 * Life: engine_new, engine_load_row for each stored row, engine_loaded, then engine_apply for each entry in log order. From
 * time to time engine_cut collects the changed rows; the caller stores them together with the applied index. */
#ifndef QUEEN_ENGINE_ENGINE_H
#define QUEEN_ENGINE_ENGINE_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/limits.h"
#include "engine/command.h"
#include "engine/ids.h"

struct engine;
struct queue;
struct timer_tally;

#define PLACE_ARCHIVE (UINT64_C(1) << 63)

/* Reads of stored rows, from what engine_cut gave earlier. */
struct engine_cold {
    void *ctx;
    /* Calls `row` for stored rows with from <= key < to in key order until it returns false. */
    void (*scan)(void *ctx, struct slice from, struct slice to,
                 bool (*row)(void *row_ctx, struct slice key, struct slice value), void *row_ctx);
    /* Copies `bytes` bytes of the log from the place `where` (a push group's block). Must succeed or stop the node: what a
     * command decides may not depend on whether this node's disk can read. */
    void (*block)(void *ctx, uint64_t where, uint32_t bytes, char *out);
};

/* How much of what is stored too may stay in memory, in bytes; 0 = the default of its part. A bound is kept between entries, node by
 * node, and changes no answer. What is not stored yet, leased or waiting for somebody stays whatever the bound. */
struct engine_budget {
    uint64_t lanes;     /* lanes at rest with their cursors */
    uint64_t dedup;     /* ids of dedup windows, with what finds those that left: also what the others leave of theirs */
    uint64_t kv_values; /* KV rows that could rest, and values of the others */
    uint64_t runs;      /* append runs */
    uint64_t timers;    /* names and details of timers; when they are due stays */
};

struct engine_options {
    struct engine_cold cold;
    struct engine_budget budget;
    uint8_t segment_shift; /* log2 of the unit in which live payload bytes are counted: a log segment (26 = 64 MiB) */
};

struct engine *engine_new(const struct engine_options *o);
void engine_free(struct engine *e);

/* ---- results ---------------------------------------------------------------------------------------------------- */

enum push_status { PUSH_QUEUED, PUSH_DUPLICATE };

struct push_outcome {
    uint8_t status;
    uint64_t offset;
    struct uuid id; /* the message's; of a duplicate the original's */
};

/* Contiguous messages of one append: items item0 .. item0+count-1 of the push group whose block is at `where`. */
struct delivery_piece {
    uint64_t where;
    uint32_t block_bytes; /* length of the push group's block */
    uint32_t item0, count;
    uint64_t first_offset;
    int64_t created_us;
};

struct claim {
    uint32_t partition; /* number */
    uint32_t attempt;
    uint64_t first_offset, last_offset; /* first and last delivered */
    struct slice partition_name;
    struct delivery_piece *pieces;
    uint32_t piece_count, message_count;
};

enum ack_verdict { ACK_OK, ACK_NOOP, ACK_REFUSED_LEASE, ACK_REFUSED_STALE, ACK_NO_PARTITION, ACK_FOREIGN_PARTITION };

struct ack_outcome {
    uint8_t verdict; /* enum ack_verdict */
    bool lease_released, dead_lettered;
};

struct push_result {
    struct push_outcome *items; /* groups in command order, items in group order */
    uint32_t count;
};

struct pop_result {
    struct claim *claims;
    uint32_t count, messages;
    bool conflates;           /* the group's effective policy */
    bool conflation_conflict; /* the request's wish differs from it */
};

struct ack_result {
    struct ack_outcome *items;
    uint32_t count;
};

enum kv_reason { KV_FINE, KV_EXISTS, KV_ABSENT, KV_VERSION, KV_LIMIT, KV_TYPE };

struct kv_row_view {
    struct slice key, value; /* value empty when only keys were asked for */
    uint64_t version;
    int64_t expires_us; /* wall time; 0 = never */
    int64_t updated_us;
};

/* Of one op. All memory is the result's arena. */
struct kv_outcome {
    bool applied;   /* writes, check */
    bool found;     /* GET */
    bool has_value; /* `value` is the JSON text to show, else null */
    bool truncated; /* GET_MANY, GET_PREFIX */
    uint8_t reason; /* enum kv_reason, when not applied */
    uint64_t version;
    struct slice
        value; /* PUT applied: empty (the caller has it); DELETE: the removed one; INCR: the new number; lost: the live row's */
    int64_t expires_us, updated_us; /* GET */
    struct kv_row_view *rows;       /* GET_MANY, GET_PREFIX: key order */
    uint32_t row_count;
    struct slice *missing; /* GET_MANY: input order */
    uint32_t missing_count;
};

struct kv_result {
    bool
        refused; /* a required op lost: nothing was written, `failed` says which (items has its outcome, the others' are unset) */
    uint32_t failed;
    struct kv_outcome *items; /* in the order of the command */
    uint32_t count;
};

enum timer_status { TIMER_SCHEDULED, TIMER_RESCHEDULED, TIMER_CANCELLED, TIMER_ABSENT };

struct timer_outcome {
    uint8_t status;           /* enum timer_status */
    int64_t due_us;           /* scheduled: wall time */
    struct uuid message;      /* scheduled: the promised message id */
    struct slice transaction; /* cancelled: of the timer removed */
};

struct timers_result {
    struct timer_outcome *items;
    uint32_t count;
};

struct lock_holder {
    uint32_t slot;
    struct kv_row_view row;
};

struct lock_outcome {
    bool done;    /* acquired, renewed, released; GET: somebody holds it */
    bool already; /* ACQUIRE: the owner held it before; nothing was written */
    uint32_t slot;
    uint64_t token;
    struct lock_holder *holders; /* when not done, and for GET */
    uint32_t holder_count;
};

struct locks_result {
    struct lock_outcome *items;
    uint32_t count;
};

enum step_refusal { STEP_COMMITTED, STEP_REJECTED_ACK, STEP_QUEUE_NOT_FOUND, STEP_DUPLICATE, STEP_KV_PRECONDITION };

/* A transaction's result: committed, then every part that was asked for has its result; or refused, and nothing was changed. */
struct step_result {
    uint8_t refusal;        /* enum step_refusal */
    uint32_t failed;        /* the item refused: of the acks, positions, pushed items or KV ops, in command order */
    uint64_t offset;        /* STEP_DUPLICATE: the original's */
    struct ack_result acks; /* of all ACK commands together, in order. Set also when STEP_REJECTED_ACK */
    struct push_result push;
    struct kv_result kv; /* set also when STEP_KV_PRECONDITION */
    struct timers_result timers;
    struct pop_result next; /* the claim for the next batch */
};

enum letter_fate { LETTER_GONE, LETTER_MOVED, LETTER_DUPLICATE };

struct engine_result {
    uint8_t kind; /* command_kind */
    union {
        struct push_result push;
        struct pop_result pop;
        struct ack_result ack;
        struct kv_result kv;
        struct timers_result timers;
        struct locks_result locks;
        struct step_result step;
        struct {
            uint32_t renewed;
            int64_t expires_wall_us; /* the earliest */
        } extend;
        struct {
            struct uuid queue_id;
            struct queue_options options; /* effective, slices in the arena */
            const char *refused;          /* NULL, or why (text); nothing changed then */
        } configure;
        struct {
            bool existed;
        } queue_delete;
        struct {
            uint32_t
                lanes; /* SEEK: cursors put; GROUP_DELETE: cursors removed; SUBSCRIPTION: queues; LETTERS_DELETE: letters */
            struct slice *queues; /* GROUP_DELETE: names of the queues where the group was known */
            uint32_t queue_count;
            bool more; /* that was a piece: the same command with `next` goes on */
            struct piece next;
        } changed;
        struct {
            uint8_t fate;             /* enum letter_fate */
            struct push_outcome push; /* moved, or the message that has the id already */
        } letter_move;
        struct {
            uint32_t fired,
                duplicates;  /* duplicates: of timers whose transaction id the lane had already; nothing was appended */
            int64_t late_us; /* of the last one: how long after its time; 0 when there was none */
        } tick;
        struct {
            uint32_t lanes;
            uint64_t messages;
        } trim;
    };
};

/* Where results go. `arena(slot)` gives the memory for command number `slot`'s result (it must live until the answer was
 * rendered); `result` is called once per command in order. Both may be NULL on a replay: results are then dropped.
 * `ready` tells that a lane of (queue, group) became claimable: called for every such change, so that exactly as many parked
 * callers can be woken as there are lanes. It must not call back into the engine. Any of them may be NULL. */
struct engine_sink {
    void *ctx;
    struct arena *(*arena)(void *ctx, uint32_t slot);
    void (*result)(void *ctx, uint32_t slot, const struct engine_result *r);
    void (*ready)(void *ctx, uint32_t group_number, uint32_t partition_number, struct slice partition_name);
    /* Messages were appended to a lane (for readers by offset that wait). Any number of times; must not call back. May be NULL. */
    void (*appended)(void *ctx, uint32_t partition_number);
};

/* Executes one entry. `where` is the log position of the entry's first byte. Returns NULL, or the reason why the entry cannot
 * be applied (malformed): the caller must stop the node with index and reason; the state is then undefined. Total for every
 * entry whose commands came from the encoders with limits.h respected. */
const char *engine_apply(struct engine *e, uint64_t index, uint64_t where, struct slice entry, const struct engine_sink *sink);

uint64_t engine_applied_index(const struct engine *e);
struct entry_head engine_last_head(const struct engine *e); /* of the last entry applied (zero when none): to go on stamping */
uint64_t engine_id_seed(const struct engine *e);            /* 0 until INIT was applied */

/* Of all entries' results up to the applied one, kept with the rows. A DIGEST command holds that of another node: where it differs,
 * engine_apply gives a reason. */
uint64_t engine_running_digest(const struct engine *e);

/* ---- questions the leader asks before it proposes ---------------------------------------------------------------- */

struct engine_now {
    int64_t log_us, wall_us; /* the stamps an entry made now would carry */
};

enum pop_forecast {
    POP_NOTHING,   /* nothing to claim: do not propose; park or answer empty */
    POP_CLAIMABLE, /* would claim something (or may: a forecast may be wrong, the pop then returns no claims) */
    POP_REGISTERS, /* nothing to claim, but the pop creates a queue or registers a group and so belongs in the log */
};
enum pop_forecast engine_pop_forecast(struct engine *e, const struct pop_command *p, struct engine_now now);

/* For parked callers: the number of the (queue, group) a pop waits on, or of the group that its push or seek would arm.
 * 0 when it does not exist (yet). Numbers are never reused. */
uint32_t engine_group_find(struct engine *e, struct uuid tenant, struct slice queue, struct slice group);
/* Lanes of the group that are claimable at `now` (upper bound; counts up to `limit` only). */
uint32_t engine_group_ready(struct engine *e, uint32_t group_number, struct engine_now now, uint32_t limit);
/* When the next lane of the group becomes claimable by time alone (lease end, delay), as a waiting time from `now` in
 * microseconds; -1 = never. 0 = now. */
int64_t engine_group_due_us(struct engine *e, uint32_t group_number, struct engine_now now);
/* Would this push, once applied, make its lane claimable for the group? (For hand-off in one entry.) Upper bound. */
bool engine_push_arms(struct engine *e, uint32_t group_number, struct slice partition, struct engine_now now);
/* The lanes that this ack, once applied, frees with more to deliver: `each` for every such lane, with the number of its group. (For
 * hand-off in one entry. A guess: it counts items, it does not resolve them.) */
void engine_ack_frees(struct engine *e, const struct ack_command *a, struct engine_now now,
                      void (*each)(void *ctx, uint32_t group_number, struct slice partition), void *ctx);
/* When the lane of a pinned pop becomes claimable for it by time alone, like engine_group_due_us. */
int64_t engine_pop_due_us(struct engine *e, const struct pop_command *p, struct engine_now now);
/* Is it decided where the group of a pinned pop begins in the lane? Else the pop's own mode decides, so that of two callers of the
 * lane one may have something to get and the other not. */
bool engine_pop_is_seeded(struct engine *e, const struct pop_command *p);
/* What autopilot chooses where the client sent nothing (0 in the command): sets batch and/or partitions. */
void engine_autopilot(struct engine *e, struct pop_command *p, bool choose_batch, bool choose_partitions,
                      struct engine_now now);
/* Conflation policy of a pop as it would be answered if empty: sets both flags. */
void engine_pop_policy(struct engine *e, const struct pop_command *p, bool *conflates, bool *conflict);
/* How long from `now` until the next timer is due, in microseconds; 0 = now; -1 = none is pending. */
int64_t engine_timer_due_us(struct engine *e, struct engine_now now);
/* Of the timers due until `until_us`, `limit` of which are looked at, the one at rest that is due first: it is read from the store
 * when it fires. False: none was seen. */
bool engine_timer_at_rest(struct engine *e, int64_t until_us, uint32_t limit, int64_t *due_us);
/* Where the rows of timers due in [from_us, until_us] are, and which time such a row's is. */
enum { TIMER_ROW_KEY_BYTES = 17 };
void engine_timer_rows(int64_t from_us, int64_t until_us, char from[TIMER_ROW_KEY_BYTES], char to[TIMER_ROW_KEY_BYTES]);
int64_t engine_timer_row_due_us(struct slice key);
/* The lanes that the timers due at `now` will append to, at most `limit` timers (for hand-off in one entry). Order and repeats are
 * unspecified. Gives the number of due timers seen. Names of timers at rest are read from the store; `each` NULL: they are counted only. */
uint32_t engine_timers_due(struct engine *e, struct engine_now now, uint32_t limit,
                           void (*each)(void *ctx, struct uuid tenant, struct slice queue, struct slice partition), void *ctx);
/* Retention: what the queues' options let go. Looks at a bounded number of lanes and appends, going on where the last call ended; of a lane
 * with more appends to go only the first of them. Only what is stored here is given up, so that its rows are found. */
struct trim_limits {
    uint32_t looks; /* at lanes */
    uint32_t lanes; /* that get a new start; as many may be brought into memory */
    uint32_t runs;  /* appends looked at */
};
enum trim_round {
    TRIM_GOES_ON,    /* call again soon */
    TRIM_ROUND_DONE, /* all lanes were looked at; another round later may find more */
    TRIM_NEVER,      /* the same, and nothing is there that could become due without an entry */
};
enum trim_round engine_trim_due(struct engine *e, struct engine_now now, const struct trim_limits *most, struct trim_item *out,
                                uint32_t *count);
/* Node-local work that no answer depends on (freeing what deleted queues and expired keys held): a bounded amount. True when there is more.
 * Call it between entries, also on an otherwise idle node until it says false. */
bool engine_housekeep(struct engine *e);
/* KV rows at rest may have expired by the time of the last entry, the first of them at *from_us: rows that say so are stored between. False:
 * none has. */
bool engine_kv_expired(const struct engine *e, int64_t *from_us);
/* Those of them are removed that expire before then, up to `most` of them; their rows are read from the store. True: more have
 * expired. Node-local, as engine_housekeep. */
bool engine_kv_expire(struct engine *e, int64_t before_us, uint32_t most);
/* Where the rows of those that expire in [from_us, before_us) are, and which time such a row's is. */
enum { KV_DUE_KEY_BYTES = 9 };
void engine_kv_due_rows(int64_t from_us, int64_t before_us, char from[KV_DUE_KEY_BYTES], char to[KV_DUE_KEY_BYTES]);
int64_t engine_kv_due_row_us(struct slice key);
/* Nothing was applied for a while: lanes and KV rows at rest leave memory, in steps of engine_housekeep; the next entry ends it. */
void engine_idle(struct engine *e);
/* After reads, between entries: lanes that only reads brought into memory leave when they are many. Names that reads gave end. */
void engine_visits_over(struct engine *e);

/* What this command, or a read of its kind, will read because it left memory. For who warms it on other threads while the entry that holds
 * the command is on its way to the disk. A guess: what is left out is read when it is wanted. Reads nothing by itself; about as
 * much work as finding what the command names. At most FORESEEN_MAX of a command. */
enum { FORESEEN_MAX = 1024 };
/* What a reader's thread looks up by itself, since each row says which comes next: in the lanes [lane, end) of a queue as their rows are
 * stored, or in one that is in memory. */
enum engine_search_kind {
    SEARCH_TIME,   /* the first append at or after the time */
    SEARCH_BEFORE, /* and the one before it */
    SEARCH_FRONT,  /* the appends from the front of the lane to the time */
};
struct engine_time_search {
    uint8_t kind; /* enum engine_search_kind */
    uint32_t queue, lane, end;
    uint32_t looks; /* after so many it ends: a lane is one, one with appends to look for SEARCH_COST, at the front one each */
    uint64_t low, high; /* of a lane in memory: offsets whose rows are stored. high 0: as the lanes' rows say */
    int64_t us;
};
enum { SEARCH_COST = 10 };
struct engine_foreseen {
    void *ctx;
    /* Rows: the first of [from, to) on, as many as lie together. The slices live until it returns. */
    void (*range)(void *ctx, struct slice from, struct slice to);
    void (*block)(void *ctx, uint64_t where, uint32_t bytes); /* of the log, as engine_cold.block */
    /* Rows that are found one by the other (engine_time_search_rows). NULL: only the lanes' own are told */
    void (*search)(void *ctx, const struct engine_time_search *s);
    bool warmed; /* what was told before has been read: lanes may be brought in, and what is wanted of them is told */
    bool *again; /* NULL, or set to true when there will be more to tell then */
};
/* What the next engine_trim_due will read. */
void engine_trim_foreseen(struct engine *e, struct engine_now now, const struct trim_limits *most,
                          const struct engine_foreseen *f);
/* What the next engine_housekeep will read of deleted queues and groups. */
void engine_housekeep_foreseen(struct engine *e, const struct engine_foreseen *f);
void engine_rows_foreseen(struct engine *e, const struct command *c, const struct engine_foreseen *f);
/* Reads the rows that who searches will look at, through `cold`. Any thread. */
void engine_time_search_rows(const struct engine_time_search *s, const struct engine_cold *cold);

/* The same of reads that are no commands, and of a pop that looks before it is one. Asked twice: first for lanes that are away; then `warmed`,
 * which brings them in and tells what is wanted of them (appends, ids). */
void engine_pop_foreseen(struct engine *e, const struct pop_command *pop, struct engine_now now,
                         const struct engine_foreseen *f);
void engine_fetch_foreseen(struct engine *e, struct uuid tenant, struct slice queue, struct slice partition, uint64_t offset,
                           uint64_t bytes_max, uint32_t messages_max, const struct engine_foreseen *f);
void engine_offset_foreseen(struct engine *e, struct uuid tenant, struct slice queue, struct slice partition, int64_t us,
                            const struct engine_foreseen *f);
void engine_standing_foreseen(struct engine *e, struct uuid tenant, struct slice queue, struct slice partition,
                              const struct engine_foreseen *f); /* what its cursors' views show */
void engine_lane_foreseen(struct engine *e, uint32_t partition, const struct engine_foreseen *f); /* that it is there */
void engine_message_foreseen(struct engine *e, uint32_t partition, struct slice transaction, const struct engine_foreseen *f);
/* The message at this offset, and `before` ones before it. */
void engine_messages_foreseen(struct engine *e, uint32_t partition, uint64_t offset, uint32_t before,
                              const struct engine_foreseen *f);
/* Lanes of the queue behind `after`, as a walk takes them: at most `lanes`, fewer when much had to be told. Gives how many were looked at;
 * `all`: these are all there are. */
enum foreseen_depth {
    FORESEEN_LANES,   /* the lanes with their cursors */
    FORESEEN_APPENDS, /* and the oldest append, and those where groups stand */
    FORESEEN_TIME,    /* and the appends around the time `us` */
};
uint32_t engine_lanes_foreseen(struct engine *e, uint32_t queue, uint32_t after, uint32_t lanes, enum foreseen_depth depth,
                               int64_t us, bool *all, const struct engine_foreseen *f);
/* Lanes of dead letters, as engine_dead_letter_look finds them below `before`: `skipped` are passed over, then so many `rows`; `looks` in
 * all. */
void engine_letters_foreseen(struct engine *e, struct uuid tenant, struct slice queue, struct slice group, uint64_t before,
                             uint64_t skipped, uint64_t rows, uint32_t looks, const struct engine_foreseen *f);
void engine_letter_foreseen(struct engine *e, struct uuid tenant, struct uuid id, const struct engine_foreseen *f);
/* Timers at rest behind the key `after`, as engine_timer_next finds them, `rows` of them at most. */
void engine_timers_foreseen(struct engine *e, struct uuid tenant, struct slice queue, struct slice after, uint32_t rows,
                            const struct engine_foreseen *f);
/* Rows of a count that goes on. False: none is wanted. */
bool engine_timers_count_foreseen(struct engine *e, struct uuid tenant, struct slice queue, struct slice prefix,
                                  const struct timer_tally *tally, const struct engine_foreseen *f);
/* May it be that the look at this pinned pop reads the store? */
bool engine_pop_reads(struct engine *e, const struct pop_command *pop);

/* ---- reads (group thread, between entries) ------------------------------------------------------------------------ */

struct lane_counts {
    uint64_t total, pending, processing, completed, dead_letters; /* pending includes processing */
};

struct queue_view {
    uint32_t number;
    struct uuid id, tenant;
    struct slice name;
    int64_t created_us;
    const struct queue_options *options;
    uint32_t partition_count;
    uint64_t retained_messages, retained_bytes, dead_letters;
    uint64_t pushed_total; /* messages ever stored */
};

struct partition_view {
    uint32_t number;
    struct uuid id;
    struct slice name;
    int64_t created_us;
    int64_t last_created_us;            /* newest append; 0 when none */
    int64_t oldest_created_us;          /* of the first retained message; 0 when none */
    int64_t last_lease_us;              /* wall time of the last lease taken by any group; 0 = none */
    uint64_t start_offset, tail_offset; /* retained: start <= o < tail */
    uint64_t retained_bytes;
    struct lane_counts counts; /* by the rules of the queue listing: slowest named group, else queue mode, else -1 */
};

struct group_view {
    uint32_t number;
    struct slice name;
    bool registered, conflates;
    uint64_t cursors;
};

struct dead_letter_view {
    struct uuid id, message;
    struct slice queue, partition, group, error;
    uint32_t partition_number, retries;
    uint64_t offset;
    int64_t created_us, failed_us;
    struct delivery_piece piece; /* the message: payload and transaction id are in its group's block */
};

/* Queues of a tenant in creation order; `after` = number of the last one seen (0 to begin). False at the end. */
bool engine_queue_next(struct engine *e, struct uuid tenant, uint32_t after, struct queue_view *out);
bool engine_queue_get(struct engine *e, struct uuid tenant, struct slice name, struct queue_view *out);
bool engine_partition_next(struct engine *e, uint32_t queue, uint32_t after, struct engine_now now, struct partition_view *out);
bool engine_partition_get(struct engine *e, uint32_t number, struct engine_now now, struct partition_view *out);
/* Whose lane this is. False when there is none (any more). The names, like those of all lanes that reads show, live until the next entry
 * is applied and until engine_housekeep and engine_visits_over. */
bool engine_partition_names(const struct engine *e, uint32_t partition, struct uuid *tenant, struct slice *queue,
                            struct slice *name);
bool engine_group_next(struct engine *e, uint32_t queue, uint32_t after, struct group_view *out);
/* Depth of one lane for a group: `group` 0 = the worst of the named groups, else queue mode (http-admin 5.3). */
void engine_lane_depth(struct engine *e, uint32_t partition, uint32_t group, struct engine_now now, uint64_t *pending,
                       uint64_t *processing);
/* Dead letters of a tenant, newest first; `before` = sequence number to go on below (UINT64_MAX to begin), updated. `out` NULL: it is
 * passed over, without bringing its lane into memory. */
bool engine_dead_letter_next(struct engine *e, struct uuid tenant, struct slice queue, struct slice group, uint64_t *before,
                             struct dead_letter_view *out);
/* The same, with `looks` at letters left, those that do not match among them; counted down. False with none left: go on from `before`. */
bool engine_dead_letter_look(struct engine *e, struct uuid tenant, struct slice queue, struct slice group, uint64_t *before,
                             uint32_t *looks, struct dead_letter_view *out);

/* How many there are. O(groups of the queue), or of the tenant. */
uint64_t engine_dead_letter_count(struct engine *e, struct uuid tenant, struct slice queue, struct slice group);

/* Reads of KV, timers and locks at `now`. Results are in the arena. */
void engine_kv_read(struct engine *e, const struct kv_command *c, struct engine_now now, struct arena *arena,
                    struct kv_result *out); /* reads and checks only */
void engine_locks_read(struct engine *e, const struct locks_command *c, struct engine_now now, struct arena *arena,
                       struct locks_result *out); /* LOCK_GET only */

struct kv_space_view {
    struct slice name;
    uint64_t rows; /* also those that are expired and not swept yet */
};
/* Namespaces of a tenant that hold rows, in name order; `after` = the last one seen (empty to begin). The view's name lives until the
 * next entry is applied. */
bool engine_kv_space_next(struct engine *e, struct uuid tenant, struct slice after, struct kv_space_view *out);

struct timer_view {
    struct slice key, partition, transaction; /* live until the next entry is applied */
    struct uuid message;
    int64_t due_us, created_us, updated_us;
    struct delivery_piece piece; /* one item: subject, flags and payload are in its block */
};
bool engine_timer_get(struct engine *e, struct uuid tenant, struct slice queue, struct slice key, struct timer_view *out);
/* The first timer of the queue behind the key `after` (empty to begin), in key byte order. */
bool engine_timer_next(struct engine *e, struct uuid tenant, struct slice queue, struct slice after, struct timer_view *out);
/* How many timers of the queue have keys that begin with the prefix: a part of the count, of so many rows of the store at most. `tally`
 * is zeroed at first. True: there is more to count; between two calls timers may come and go. */
enum { TIMER_PATH_MAX = 16 + 2 + NAMES_BYTES_MAX + TIMER_KEY_BYTES_MAX };
struct timer_tally {
    uint64_t count;
    size_t next_len;
    char next[TIMER_PATH_MAX]; /* where it goes on */
};
bool engine_timers_count(struct engine *e, struct uuid tenant, struct slice queue, struct slice prefix, uint32_t looks,
                         struct timer_tally *tally);

/* Reading by offset: no cursor, no lease. */
enum fetch_status { FETCH_OK, FETCH_NO_QUEUE, FETCH_OUT_OF_RANGE };
struct fetch_view {
    uint32_t partition;   /* number; 0 = never written */
    uint64_t start, tail; /* retained: start <= o < tail */
    struct delivery_piece *pieces;
    uint32_t piece_count, message_count;
    uint64_t bytes;
};
/* From `offset` on, whole appends until bytes_max is reached (at least one), at most `messages_max` messages. */
enum fetch_status engine_fetch(struct engine *e, struct uuid tenant, struct slice queue, struct slice partition,
                               uint64_t offset, uint64_t bytes_max, uint32_t messages_max, struct arena *arena,
                               struct fetch_view *out);
/* The first offset appended at or after `us` and its time. False: none. start and tail are set when the queue exists. */
enum fetch_status engine_offset_at(struct engine *e, struct uuid tenant, struct slice queue, struct slice partition, int64_t us,
                                   bool *found, uint64_t *offset, int64_t *created_us, uint64_t *start, uint64_t *tail);
int64_t engine_safe_time_us(const struct engine *e); /* greatest wall time applied */

bool engine_dead_letter_get(struct engine *e, struct uuid tenant, struct uuid id, uint64_t *sequence,
                            struct dead_letter_view *out);

/* A group's cursor in a lane, as listings show it. */
struct cursor_view {
    uint32_t partition, group; /* numbers */
    int64_t committed;         /* last acked offset, -1 = none; where its subscription begins if it has not started */
    uint64_t offset_lag;       /* messages not acked */
    int64_t oldest_us;         /* createdAt of the oldest of them; 0 = none */
    bool leased;               /* held now */
    struct uuid lease;
    int64_t lease_expires_us; /* wall time, when leased */
    uint32_t attempt;
    uint16_t retries;
};
/* False: the group has no cursor there. */
bool engine_cursor_get(struct engine *e, uint32_t partition, uint32_t group, struct engine_now now, struct cursor_view *out);
/* The group of this number; false when there is none. */
bool engine_group_get(struct engine *e, uint32_t number, struct group_view *out);
/* How the group began: mode and time. */
bool engine_group_subscription(struct engine *e, uint32_t group, uint8_t *mode, int64_t *from_us, bool *registered);
/* The message at an offset of a lane, and the offsets an id has there (the first one at or after `from`). */
bool engine_message_at(struct engine *e, uint32_t partition, uint64_t offset, struct delivery_piece *out);
bool engine_message_find(struct engine *e, struct uuid tenant, uint32_t partition, struct slice transaction, uint64_t from,
                         uint64_t *offset);

/* ---- lanes one by one, for listings over many of them ---- */

struct lane_view {
    uint32_t number, queue; /* numbers */
    struct slice name;
    uint64_t start_offset, tail_offset, retained_bytes;
    int64_t created_us, last_created_us; /* newest append; 0 when none */
};
/* Lanes of a queue in creation order, without counting anything: about 20 ns. `after` = number of the last one seen. */
bool engine_lane_next(struct engine *e, uint32_t queue, uint32_t after, struct lane_view *out);
/* The lane of this number, if it is the tenant's. */
bool engine_lane_get(struct engine *e, struct uuid tenant, uint32_t partition, struct lane_view *out);
bool engine_lane_find(struct engine *e, struct uuid tenant, struct slice queue, struct slice partition, struct lane_view *out);
struct uuid engine_lane_id(const struct engine *e, const struct lane_view *lane);
/* `dead_letters` 0. */
void engine_lane_counts(struct engine *e, uint32_t partition, struct engine_now now, struct lane_counts *out);
/* Counts without dead letters, and createdAt of the oldest message not acked (0 = none). Reads the store when a lane with such messages
 * has left memory. */
void engine_lane_standing(struct engine *e, uint32_t partition, struct engine_now now, struct lane_counts *counts,
                          int64_t *oldest_us, uint32_t *leases);
/* Every cursor of the lane. */
void engine_lane_cursors(struct engine *e, uint32_t partition, struct engine_now now,
                         void (*each)(void *ctx, const struct cursor_view *c), void *ctx);
/* The first offset whose message was created at or after `us`; the tail when there is none. */
uint64_t engine_lane_offset_at(struct engine *e, uint32_t partition, int64_t us);
/* Where a registered group that has no cursor in the lane would begin, as a committed offset. */
int64_t engine_group_start(struct engine *e, uint32_t group, uint32_t partition);
/* The first offset of the append that holds this message. */
bool engine_message_batch(struct engine *e, uint32_t partition, uint64_t offset, uint64_t *first);
/* Dead letters of one lane, newest first; `before` as in engine_dead_letter_next. */
bool engine_dead_letter_in(struct engine *e, uint32_t partition, uint64_t *before, struct dead_letter_view *out);
/* The newest of this message. */
bool engine_dead_letter_at(struct engine *e, uint32_t partition, uint64_t offset, struct dead_letter_view *out);

struct lane_place {
    uint32_t partition;
    uint64_t offset;
    bool dead; /* a dead letter of some group holds it */
};
/* Sets `dead`: O(log dead letters) a place. */
void engine_dead_letters_mark(struct engine *e, struct lane_place *places, uint32_t count);

/* What a tenant has besides queues. O(log n). */
struct tenant_rows {
    uint64_t kv_rows;  /* also those that are expired and not swept yet */
    uint64_t kv_bytes; /* namespaces, keys and values; 0 while other tenants have rows too: they are not counted apart */
    uint64_t timers;
};
void engine_tenant_rows(const struct engine *e, struct uuid tenant, struct tenant_rows *out);

enum { ENGINE_RUN_BYTES = 40 };

struct engine_stats {
    uint64_t kv_rows, kv_bytes, timers;
    uint64_t kv_rows_in_memory, kv_row_bytes; /* kv_row_bytes: what those that may leave take besides their values */
    uint64_t timers_in_memory, timer_bytes;   /* those that are not at rest; what of them the budget counts */
    uint64_t lock_rows;                       /* permits: kv_rows of the locks' namespace, of all tenants */
    int64_t timer_first_us;                   /* when the first timer is due, wall time; 0 = none is pending */
    uint64_t queues, partitions, groups, cursors, leases, dedup_ids, dead_letters, runs_in_memory;
    uint64_t retained_messages, retained_bytes;
    uint64_t log_live_bytes, archive_live_bytes;                       /* payloads at home there */
    uint64_t memory_bytes;                                             /* estimate of the engine's tables */
    uint64_t lanes_in_memory, lane_bytes, dedup_bytes, kv_value_bytes; /* what of the budgets is used */
    uint64_t unstored_bytes;                                           /* engine_unstored_bytes */
};
void engine_stats(const struct engine *e, struct engine_stats *out);

/* Hash of the whole logical state, independent of memory layout and of `where`. O(state): for tests and checks. */
struct hash128_pair {
    uint64_t low, high;
};
struct hash128_pair engine_digest(struct engine *e);
/* Do the counters say what the tables hold? NULL, or what is wrong. O(state): for tests and checks. */
const char *engine_check(struct engine *e);

/* ---- rows --------------------------------------------------------------------------------------------------------- */

enum { ROW_KEY_BYTES_MAX = 1 + TIMER_PATH_MAX };

/* Where a cut's rows go. Keys are at most ROW_KEY_BYTES_MAX; `put` of an existing key replaces it. delete_range is [from, to). */
struct engine_rows {
    void *ctx;
    void (*put)(void *ctx, struct slice key, struct slice value);
    void (*delete)(void *ctx, struct slice key);
    void (*delete_range)(void *ctx, struct slice from, struct slice to);
};

/* Rows changed since the last cut, as a consistent state at engine_applied_index. Cost: proportional to what changed. */
void engine_cut(struct engine *e, const struct engine_rows *rows);
uint64_t engine_cut_size(const struct engine *e); /* about how many rows a cut would give now */
/* Rises with everything that a cut could show: entries, and places and rows that change between them. It begins at the applied index. */
uint64_t engine_revision(const struct engine *e);
/* All cuts up to the one taken at this revision are stored (readable through engine_cold): what only waited for that may leave memory. */
void engine_cut_stored(struct engine *e, uint64_t revision);
/* About how many bytes stay in memory only because the store does not have them yet: changed rows, KV values in cuts under way. */
uint64_t engine_unstored_bytes(const struct engine *e);

/* Start: rows in key order, from the empty key to ENGINE_ROWS_LOADED_END (rows behind it stay cold), then loaded. NULL or the
 * reason why the row cannot be (damage). */
#define ENGINE_ROWS_LOADED_END "\x80"
const char *engine_load_row(struct engine *e, struct slice key, struct slice value);
const char *engine_loaded(struct engine *e, uint64_t applied_index);

/* Live payload bytes in the segment of the log, or of the archive, that holds the place `where`; one with 0 holds nothing wanted. */
uint64_t engine_segment_live(const struct engine *e, uint64_t where);
/* The archive's segment with live bytes that lies last: the place it begins at, 0 when there is none. */
uint64_t engine_archive_last(const struct engine *e);

/* ---- moving payloads: node-local, between entries ------------------------------------------------------------------
 *
 * Who copies what is still wanted of a segment asks for its holders, copies their blocks and says where they are now. Between the two, holders
 * may be given up or change; engine_move then does nothing. Rows that hold the places are in the next cut; until that one is durable the
 * segment they left must stay. */
enum holder_kind { HOLDER_RUN, HOLDER_TIMER, HOLDER_LETTER };

struct holder {
    uint64_t where;     /* of the block */
    uint64_t number;    /* run: its first offset; timer, letter: sequence */
    int64_t us;         /* run: createdAt; timer: when it is due */
    uint32_t bytes;     /* of the block */
    uint32_t at;        /* run: the lane's number; timer: the engine's own */
    uint8_t kind;       /* enum holder_kind */
    struct uuid tenant; /* timer */
};

/* A lane whose runs are looked at, by number or, 0, by its names (which must live on). */
struct lane_look {
    uint32_t partition;
    struct uuid tenant;
    struct slice queue, lane;
    int64_t from_us, until_us; /* createdAt of what may be wanted */
    uint64_t next;             /* 0 to begin; where it goes on */
    bool pushed;               /* only what was pushed into [first, end) counts, nothing that a timer fired */
};

/* Holders in [first, end), `found` for each; at most about `looks` are looked at. True: there are no more; else call again. */
bool engine_lane_holders(struct engine *e, struct lane_look *l, uint64_t first, uint64_t end, uint32_t looks,
                         void (*found)(void *ctx, const struct holder *h), void *ctx);
/* The same of all timers and dead letters; `next` 0 to begin. */
bool engine_timer_holders(struct engine *e, uint64_t *next, uint64_t first, uint64_t end, uint32_t looks,
                          void (*found)(void *ctx, const struct holder *h), void *ctx);
bool engine_letter_holders(struct engine *e, uint64_t *next, uint64_t first, uint64_t end, uint32_t looks,
                           void (*found)(void *ctx, const struct holder *h), void *ctx);
/* Its block is now at `to`. False: it is not at h->where any more, or so new that its row is under way. Reads the store. */
bool engine_move(struct engine *e, const struct holder *h, uint64_t to);

#endif
