/* The wire form of commands: what the edge writes, the log keeps and the engine executes.
 *
 * An entry (the body of one log record) is a head and commands, all little-endian, everything 8-byte aligned:
 *
 *   entry head (48 bytes)
 *   +---------+---------+----------+----------+---------------+---------------+
 *   | magic   | count   | log_us   | wall_us  | clock_id      | clock_us      |   magic = "QEN1"; u32 u32 i64 i64 u64 i64
 *   +---------+---------+----------+----------+---------------+---------------+   + u32 origins_at, u32 reserved (0)
 *   command: u32 bytes (head included, multiple of 8), u8 kind, u8 flags, u16 reserved(0), then fields by kind, zero padded
 *
 *   log_us    leader's time for leases: goes on with its monotonic clock from the last entry's value, never back
 *   wall_us   leader's wall time, made increasing: at least the last entry's wall_us + its count + 1. The time of command
 *             number i is wall_us + i, so no two commands of a log share a time
 *   clock_id, clock_us   boot id and monotonic time of the leader when it stamped the entry: only for going on with log_us
 *             after a restart on the same boot; the engine does not read them
 *   origins_at  where in the entry the ORIGINS command is; 0 = there is none
 *
 * PUSH
 *   tenant[16], u32 group_count, u32 0, then groups, each 8-byte aligned:
 *     u32 bytes (whole group, multiple of 8)   u32 crc32c of all bytes of the group after this field
 *     u16 queue_len  u16 partition_len  u32 item_count
 *     queue name, partition name, zero pad to 4
 *     u32 ends[item_count]      end of each item, counted from the first item's first byte
 *     items, back to back:  u8 flags, u8 0, u16 transaction_len,
 *                           [16 bytes trace id]  [16 bytes message id]  [u16 subject_len]  transaction id, [subject],
 *                           payload (to the item's end)
 *   A group is the payload's home: the engine keeps its place in the log, deliveries are rendered from its bytes.
 *
 * STEP: a transaction. 8 bytes reserved (0), then nested commands, each whole with its head, in this order: any number of ACK (by
 * group name), then at most one each of PUSH, POSITIONS, KV, TIMERS, POP (claim the next batch). All of one tenant.
 *
 * The others: see the structs and encoders below. They are decoded into structs whose slices point into the command.
 *
 * Decoding is total: any bytes give a struct or false, never a crash (fuzzed). Thread-safe: no state. */
#ifndef QUEEN_ENGINE_COMMAND_H
#define QUEEN_ENGINE_COMMAND_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/uuid.h"

enum command_kind {
    COMMAND_PUSH = 1,
    COMMAND_POP,
    COMMAND_ACK,
    COMMAND_EXTEND,
    COMMAND_CONFIGURE,
    COMMAND_QUEUE_DELETE,
    COMMAND_CLAIM_RETURN, /* a pop's caller is gone: hand its claims back with their attempts */
    COMMAND_INIT,         /* the first command of a log: the cluster's id seed */
    COMMAND_KV,
    COMMAND_TIMERS,
    COMMAND_LOCKS,
    COMMAND_POSITIONS, /* only inside a step */
    COMMAND_STEP,
    COMMAND_TICK, /* fires timers that are due */
    COMMAND_SEEK,
    COMMAND_GROUP_DELETE,
    COMMAND_SUBSCRIPTION,
    COMMAND_LETTERS_DELETE,
    COMMAND_LETTER_MOVE,
    COMMAND_TRIM,    /* retention: messages at the front of lanes go */
    COMMAND_ORIGINS, /* which node, and which call there, waits for a command of this entry: the last one of its entry */
    COMMAND_DIGEST,  /* what the leader's state was after an earlier entry: a node whose own differs stops */
};

enum { ENTRY_MAGIC = 0x314e4551, ENTRY_HEAD_BYTES = 48, COMMAND_HEAD_BYTES = 8 };

struct entry_head {
    uint32_t count;
    int64_t log_us, wall_us;
    uint64_t clock_id;
    int64_t clock_us;
    uint32_t origins_at;
};

void entry_head_write(char out[ENTRY_HEAD_BYTES], const struct entry_head *h);
bool entry_head_read(struct slice entry, struct entry_head *out);

/* One command of an entry or of a buffer. `next` steps over `rest`; false when rest is empty or malformed. */
struct command {
    uint8_t kind, flags;
    struct slice all;  /* head included: what is copied into an entry */
    struct slice body; /* after the head */
};

bool command_next(struct slice *rest, struct command *out);
/* Of an encoded command, of at least COMMAND_HEAD_BYTES. */
static inline uint8_t command_kind(struct slice all)
{
    return (uint8_t)all.at[4];
}

/* ---- PUSH ------------------------------------------------------------------------------------------------------- */

/* ITEM_ID: the message has the id minted at the edge (a timer's, promised when it was scheduled), not one made from its offset. */
enum { ITEM_TRANSACTION = 1, ITEM_TRACE = 2, ITEM_SUBJECT = 4, ITEM_ENCRYPTED = 8, ITEM_ID = 16 };

struct push_item {
    uint8_t flags;
    struct slice transaction; /* when ITEM_TRANSACTION; may be empty then */
    struct uuid trace;        /* when ITEM_TRACE */
    struct uuid id;           /* when ITEM_ID */
    struct slice subject;     /* when ITEM_SUBJECT */
    struct slice payload;     /* JSON text, or an encrypted envelope; empty = null */
};

struct push_group {
    struct slice block; /* the whole group, from its `bytes` field */
    struct slice queue, partition;
    uint32_t item_count;
    const char *ends;  /* u32 each, maybe unaligned by 2: read with memcpy */
    const char *items; /* first byte of the first item */
};

struct push_command {
    struct uuid tenant;
    uint32_t group_count;
    struct slice groups;
};

bool push_decode(const struct command *c, struct push_command *out);
bool push_group_next(struct slice *rest, struct push_group *out); /* checks every length of the group, not the crc */
bool push_group_crc_ok(struct slice block);                       /* for bytes read back from disk */
void push_group_item(const struct push_group *g, uint32_t i, struct push_item *out); /* i < item_count, checked group */
bool push_group_of(struct slice block, struct push_group *out); /* one group from its block alone (block may run on) */
uint32_t push_group_bytes(struct slice head);                   /* the `bytes` field of a block's first 4 bytes */

/* Writes a PUSH command. Items are given group by group: begin, then for each group: group_begin, item..., group_end. */
struct push_writer {
    struct buf *out;
    size_t command_at, group_at, ends_at, items_at;
    uint32_t group_count, item_count, item_total;
};
void push_begin(struct push_writer *w, struct buf *out, struct uuid tenant);
void push_group_begin(struct push_writer *w, struct slice queue, struct slice partition, uint32_t item_count);
void push_item_add(struct push_writer *w, const struct push_item *item);
void push_group_end(struct push_writer *w);
void push_end(struct push_writer *w);

/* ---- POP -------------------------------------------------------------------------------------------------------- */

enum pop_scope { POP_QUEUE, POP_PARTITION, POP_DISCOVERY };
enum subscription_mode { SUBSCRIBE_ALL, SUBSCRIBE_NEW, SUBSCRIBE_FROM };
enum conflation_wish { CONFLATION_ABSENT, CONFLATION_OFF, CONFLATION_ON };

struct pop_command {
    struct uuid tenant;
    struct uuid lease_id;          /* minted per pop; also set for autoAck pops */
    uint8_t scope;                 /* enum pop_scope */
    uint8_t mode;                  /* enum subscription_mode: for the registration of an unknown group */
    uint8_t conflation;            /* enum conflation_wish */
    uint8_t auto_ack;              /* bool */
    uint32_t batch;                /* >= 1 */
    uint32_t partitions;           /* 1..POP_PARTITIONS_MAX */
    uint32_t bytes_max;            /* of payloads, 1..POP_BYTES_MAX; 0 = POP_BYTES_MAX. One message always fits */
    int64_t lease_us;              /* > 0 overrides; 0 = the queue's */
    int64_t from_us;               /* for SUBSCRIBE_FROM: wall time */
    struct slice group;            /* QUEUE_MODE_GROUP when the caller named none */
    struct slice queue;            /* POP_QUEUE, POP_PARTITION */
    struct slice partition;        /* POP_PARTITION */
    struct slice name_space, task; /* POP_DISCOVERY: empty = any */
};
#define QUEUE_MODE_GROUP "__QUEUE_MODE__"
#define DEFAULT_PARTITION "Default"

void pop_encode(struct buf *out, const struct pop_command *p);
bool pop_decode(const struct command *c, struct pop_command *out);

/* ---- ACK -------------------------------------------------------------------------------------------------------- */

enum ack_status { ACK_COMPLETED, ACK_FAILED, ACK_RETRY, ACK_DLQ };

struct ack_item {
    uint64_t partition; /* number */
    uint8_t status;     /* enum ack_status */
    uint8_t fenced;     /* a leaseId was sent; `lease` is all ones when it was not a UUID (never matches) */
    struct uuid lease;
    struct slice transaction;
    struct slice error; /* cut to ERROR_TEXT_BYTES_MAX by the edge; has_error tells null from "" */
    uint8_t has_error;
};

struct ack_command {
    struct uuid tenant;
    struct slice group;
    uint32_t item_count;
    struct slice items;
};

void ack_begin(struct buf *out, struct uuid tenant, struct slice group, uint32_t item_count);
void ack_item_add(struct buf *out, const struct ack_item *item);
void ack_end(struct buf *out, size_t command_at);                  /* command_at = out->len before ack_begin */
bool ack_decode(const struct command *c, struct ack_command *out); /* checks all items */
bool ack_open(const struct command *c, struct ack_command *out);   /* checks none: there may be fewer than it says */
bool ack_item_next(struct slice *rest, struct ack_item *out);

/* ---- KV --------------------------------------------------------------------------------------------------------- */

enum kv_op_kind {
    KV_PUT, /* also putIfAbsent: expect 0 */
    KV_DELETE,
    KV_INCR,
    KV_CHECK,
    KV_GET,
    KV_GET_MANY,
    KV_GET_PREFIX, /* not inside a step */
};
enum { KV_REQUIRED = 1, KV_EXPECT = 2, KV_KEYS_ONLY = 4, KV_HAS_MIN = 8, KV_HAS_MAX = 16 };

/* The edge has checked everything that needs no state: names, sizes, one write or check a key, at most KV_OPS_MAX ops. */
struct kv_op {
    uint8_t kind; /* enum kv_op_kind */
    uint8_t flags;
    uint16_t key_count; /* GET_MANY */
    uint32_t limit;     /* GET_PREFIX: rows, 1..1000 */
    uint64_t expect;    /* when KV_EXPECT: the version that must be live; 0 = must not exist */
    int64_t ttl_us;     /* PUT, INCR: lifetime; 0 = for ever */
    struct slice name_space;
    struct slice
        key; /* GET_PREFIX: the prefix, which may be empty; GET_MANY: key_count keys, each u16 length and bytes (kv_key_next) */
    struct slice
        value; /* PUT: compact JSON; INCR: delta, a JSON number; GET_PREFIX: keys behind this one only (may be empty) */
    struct slice min, max; /* INCR: JSON numbers, when KV_HAS_MIN, KV_HAS_MAX */
};

struct kv_command {
    struct uuid tenant;
    uint32_t op_count;
    struct slice ops;
};

static inline bool kv_op_writes(uint8_t kind)
{
    return kind == KV_PUT || kind == KV_DELETE || kind == KV_INCR;
}

size_t kv_begin(struct buf *out, struct uuid tenant, uint32_t op_count); /* gives command_at for kv_end */
void kv_op_add(struct buf *out, const struct kv_op *op);
void kv_end(struct buf *out, size_t command_at);
bool kv_decode(const struct command *c, struct kv_command *out); /* checks all ops */
bool kv_op_next(struct slice *rest, struct kv_op *out);
void kv_key_put(struct buf *keys, struct slice key); /* builds `key` of a GET_MANY */
bool kv_key_next(struct slice *keys, struct slice *key);

/* ---- TIMERS ------------------------------------------------------------------------------------------------------ */

enum timer_op_kind { TIMER_SCHEDULE, TIMER_CANCEL };

/* A schedule carries its message as a push group of one item (ITEM_TRANSACTION and ITEM_ID, maybe ITEM_SUBJECT, ITEM_ENCRYPTED) with
 * the destination's queue and partition: it is the payload's home, and the message when it fires. */
struct timer_op {
    uint8_t kind;           /* enum timer_op_kind */
    int64_t delay_us;       /* SCHEDULE: may be 0 or negative (due at once); at most TIMER_DELAY_US_MAX */
    struct slice queue;     /* of the timer's identity, and where it fires */
    struct slice key;       /* 1..TIMER_KEY_BYTES_MAX */
    struct slice partition; /* SCHEDULE */
    struct push_item item;  /* SCHEDULE */
    struct slice block;     /* SCHEDULE, decoded only: the push group */
};

struct timers_command {
    struct uuid tenant;
    uint32_t op_count;
    struct slice ops;
};

size_t timers_begin(struct buf *out, struct uuid tenant, uint32_t op_count);
void timer_op_add(struct buf *out, const struct timer_op *op); /* writes queue, key, partition, item; not `block` */
void timers_end(struct buf *out, size_t command_at);
bool timers_decode(const struct command *c, struct timers_command *out);
bool timer_op_next(struct slice *rest, struct timer_op *out);

void tick_encode(struct buf *out);

/* ---- LOCKS ------------------------------------------------------------------------------------------------------- */

enum lock_op_kind { LOCK_ACQUIRE, LOCK_RENEW, LOCK_RELEASE, LOCK_GET };
#define LOCK_NAME_SPACE "queen-locks"
enum { LOCK_SLOTS_MAX = 1024 };

/* A permit is the KV row (LOCK_NAME_SPACE, "<name>#<slot>"), value {"owner":<string or null>} or, once renewed,
 * {"owner":...,"since":"<time of the first acquire, in KV spelling>"}; the token is its version. */
struct lock_op {
    uint8_t kind; /* enum lock_op_kind */
    uint8_t has_owner;
    uint32_t limit;     /* ACQUIRE: permits, 1..LOCK_SLOTS_MAX */
    uint32_t slot;      /* RENEW, RELEASE */
    uint64_t token;     /* RENEW, RELEASE */
    int64_t ttl_us;     /* ACQUIRE, RENEW */
    struct slice name;  /* 1..256 bytes */
    struct slice owner; /* when has_owner: a JSON string with its quotes, as render_text writes it */
};

struct locks_command {
    struct uuid tenant;
    uint32_t op_count;
    struct slice ops;
};

size_t locks_begin(struct buf *out, struct uuid tenant, uint32_t op_count);
void lock_op_add(struct buf *out, const struct lock_op *op);
void locks_end(struct buf *out, size_t command_at);
bool locks_decode(const struct command *c, struct locks_command *out);
bool lock_op_next(struct slice *rest, struct lock_op *out);

/* ---- POSITIONS --------------------------------------------------------------------------------------------------- */

struct position_item {
    uint8_t forget; /* offset null: the group's cursor goes back to how a new one begins */
    uint8_t mode;   /* enum subscription_mode: for the registration of an unknown group */
    uint8_t has_metadata;
    uint64_t offset;                                /* next to read, at most INT64_MAX */
    int64_t from_us;                                /* SUBSCRIBE_FROM */
    struct slice queue, partition, group, metadata; /* metadata at most METADATA_BYTES_MAX */
};

struct positions_command {
    struct uuid tenant;
    uint32_t item_count;
    struct slice items;
};

size_t positions_begin(struct buf *out, struct uuid tenant, uint32_t item_count);
void position_add(struct buf *out, const struct position_item *item);
void positions_end(struct buf *out, size_t command_at);
bool positions_decode(const struct command *c, struct positions_command *out);
bool position_next(struct slice *rest, struct position_item *out);

/* ---- STEP -------------------------------------------------------------------------------------------------------- */

struct step_command {
    struct uuid tenant;
    struct slice acks; /* ACK commands: walk with command_next */
    uint32_t ack_commands, ack_items;
    bool has_push, has_positions, has_kv, has_timers, has_pop;
    struct command push, positions, kv, timers, pop;
};

/* size_t at = step_begin(out); ack_begin...; push_begin...; ...; step_end(out, at); */
size_t step_begin(struct buf *out);
void step_end(struct buf *out, size_t command_at);
bool step_decode(const struct command *c, struct step_command *out); /* checks order and tenants, and decodes every part once */

/* ---- the small ones --------------------------------------------------------------------------------------------- */

struct extend_command {
    struct uuid tenant, lease;
    int64_t seconds; /* >= 1 */
};
void extend_encode(struct buf *out, const struct extend_command *e);
bool extend_decode(const struct command *c, struct extend_command *out);

/* Queue options. A command carries those to set (bit in `given`), those to put back to their default (bit in `reset`);
 * with `replace` all others become their default. Bit numbers are enum queue_option. Booleans are 0 or 1. */
enum queue_option {
    OPTION_PRIORITY,
    OPTION_LEASE_TIME,
    OPTION_RETRY_LIMIT,
    OPTION_RETRY_DELAY,
    OPTION_MAX_SIZE,
    OPTION_TTL,
    OPTION_DEAD_LETTER_QUEUE,
    OPTION_DLQ_AFTER_MAX_RETRIES,
    OPTION_DELAYED_PROCESSING,
    OPTION_WINDOW_BUFFER,
    OPTION_RETENTION_SECONDS,
    OPTION_COMPLETED_RETENTION_SECONDS,
    OPTION_RETENTION_ENABLED,
    OPTION_ENCRYPTION_ENABLED,
    OPTION_MAX_WAIT_TIME_SECONDS,
    OPTION_MIN_POP_WAIT_TIME,
    OPTION_DEDUP_WINDOW_SECONDS,
    OPTION_RETENTION_SINK_HOLD_MAX_SECONDS,
    OPTION_NUMBERS, /* count of the numeric ones */
    OPTION_RETENTION_SINK_HOLD = OPTION_NUMBERS,
    OPTION_NAMESPACE,
    OPTION_TASK,
    OPTION_COUNT
};

struct queue_options {
    int32_t numbers[OPTION_NUMBERS];
    struct slice sink_hold, name_space, task;
};

struct configure_command {
    struct uuid tenant;
    struct slice queue;
    uint8_t replace;
    uint32_t given, reset;
    struct queue_options options; /* only `given` ones count */
};
void configure_encode(struct buf *out, const struct configure_command *c);
bool configure_decode(const struct command *c, struct configure_command *out);

struct queue_delete_command {
    struct uuid tenant;
    struct slice queue;
};
void queue_delete_encode(struct buf *out, const struct queue_delete_command *d);
bool queue_delete_decode(const struct command *c, struct queue_delete_command *out);

/* ---- what operators do to groups and dead letters ------------------------------------------------------------------- */

/* What concerns a whole queue or tenant goes piece by piece, so that no entry takes long: each command does a bounded part, and its result
 * says how the next one begins. All zeros: the first piece. */
struct piece {
    uint32_t most;     /* so many lanes, queues or letters are looked at: 1..PIECE_MOST_MAX; 0 is encoded as PIECE_MOST */
    uint32_t queue;    /* SEEK: number of the queue; when the name is another one's by now, nothing is left to do */
    uint32_t group;    /* SEEK: the same of the group */
    uint64_t after;    /* the last lane (its number), queue (its number) or letter (its sequence) that was looked at */
    uint64_t until;    /* the last one there was at the first piece; what came later is left alone */
    int64_t moment_us; /* SEEK: the time of the first piece. All lanes are put as they would have been then */
};
enum { PIECE_MOST = 1000, PIECE_MOST_MAX = 65536 };
/* Of an encoded SEEK, GROUP_DELETE, SUBSCRIPTION or LETTERS_DELETE: its piece looks at so many (1..PIECE_MOST_MAX). */
void command_piece_set(char *command, uint32_t most);

/* Puts a group's cursors somewhere: leases are released, counters start anew, cursors are made where there were none. */
struct seek_command {
    struct uuid tenant;
    uint8_t to_end;        /* else to the first message created at or after `us` (none: the end) */
    uint8_t has_partition; /* else all lanes of the queue */
    int64_t us;            /* wall time */
    struct slice group, queue, partition;
    struct piece piece; /* of lanes */
};
void seek_encode(struct buf *out, const struct seek_command *s);
bool seek_decode(const struct command *c, struct seek_command *out);

/* Removes a group's cursors, and unless keep_registration is set what it knows of how it began. */
struct group_delete_command {
    struct uuid tenant;
    uint8_t keep_registration;
    struct slice group, queue; /* queue: empty = all queues of the tenant */
    struct piece piece;        /* of queues */
};
void group_delete_encode(struct buf *out, const struct group_delete_command *d);
bool group_delete_decode(const struct command *c, struct group_delete_command *out);

/* Lanes the group has not touched begin at messages of this time, on every queue where it is registered. */
struct subscription_command {
    struct uuid tenant;
    int64_t us;
    struct slice group;
    struct piece piece; /* of queues */
};
void subscription_encode(struct buf *out, const struct subscription_command *s);
bool subscription_decode(const struct command *c, struct subscription_command *out);

/* Removes dead letters: those with the given sequences (ids by letter_sequence), or all of the queue, or of a group there. */
struct letters_delete_command {
    struct uuid tenant;
    uint32_t count;            /* 0: by queue and group */
    const char *sequences;     /* u64 each, unaligned */
    struct slice queue, group; /* group: empty = any */
    struct piece piece;        /* of letters, when by queue and group */
};
void letters_delete_encode(struct buf *out, const struct letters_delete_command *d);
bool letters_delete_decode(const struct command *c, struct letters_delete_command *out);

/* Removes one dead letter and pushes its message, encoded anew by the edge, to where it shall go: both or neither. */
struct letter_move_command {
    struct uuid tenant;
    struct uuid letter;
    struct command push; /* one group of one item with ITEM_TRANSACTION */
};
size_t letter_move_begin(struct buf *out, struct uuid tenant, struct uuid letter); /* then push_begin..push_end, then: */
void letter_move_end(struct buf *out, size_t command_at);
bool letter_move_decode(const struct command *c, struct letter_move_command *out);

/* From which offset on each lane keeps its messages; the append that holds it stays whole. */
struct trim_item {
    uint32_t partition;
    uint64_t start;
};
struct trim_command {
    uint32_t count;
    struct slice items; /* 12 bytes each: u32 partition, u64 start */
};
void trim_encode(struct buf *out, const struct trim_item *items, uint32_t count);
bool trim_decode(const struct command *c, struct trim_command *out);
void trim_item_read(const struct trim_command *t, uint32_t i, struct trim_item *out);

void claim_return_encode(struct buf *out, struct uuid lease);
bool claim_return_decode(const struct command *c, struct uuid *lease);

/* ORIGINS: calls that other nodes took and sent to the leader. `sequence` is the origin's own number of its call. */
struct origin {
    uint64_t sequence;
    uint32_t slot, node;
};
enum { ORIGIN_BYTES = 16 };
struct origins_command {
    const char *origins;
    uint32_t count;
};
void origins_encode(struct buf *out, const struct origin *origins, uint32_t count);
bool origins_decode(const struct command *c, struct origins_command *out);
void origin_read(const struct origins_command *o, uint32_t i, struct origin *out);
bool origins_of_entry(struct slice entry, struct origins_command *out); /* false: it has none */

void digest_encode(struct buf *out, uint64_t index, uint64_t digest);
bool digest_decode(const struct command *c, uint64_t *index, uint64_t *digest);

void init_encode(struct buf *out, uint64_t id_seed);
bool init_decode(const struct command *c, uint64_t *id_seed);

#endif
