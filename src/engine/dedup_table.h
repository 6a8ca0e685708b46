/* The ids of one keep class that are in memory: an exact table, or the records of one.
 *
 *   record, 24 bytes:  96 bits of XXH3-128(partition, id) | 1 bit own id | 47 bits offset | 6 bits keep class | 42 bits createdAt, milliseconds
 *
 * A slot of the table is a record. An id that occurs more than once (window passed, or window 0) has one slot that points to a list of its
 * occurrences in offset order, so a constant id costs a binary search, not a walk. With growth and load about 34 bytes an id.
 *
 * One thread at a time. Cost: one cache miss a look-up, which dedup_table_prefetch starts early. */
#ifndef QUEEN_ENGINE_DEDUP_TABLE_H
#define QUEEN_ENGINE_DEDUP_TABLE_H

#include "engine/dedup.h"

enum { DEDUP_SHARDS = 256 };

#define DEDUP_OWN_ID (UINT64_C(1) << 47) /* in an offset field: the message has an id of its own */
#define DEDUP_OFFSET_MASK (DEDUP_OWN_ID - 1)
#define DEDUP_MS_BITS 42
#define DEDUP_MS_MASK ((UINT64_C(1) << DEDUP_MS_BITS) - 1)
#define DEDUP_CLASS_LIST 63U /* a table's slot: the offset field is a list number; a stored record: dedup_generation.c */

struct dedup_shard {
    struct dedup_record *slots;
    uint32_t cap, count;
};

struct dedup_list {  /* occurrences of one id */
    uint64_t *pairs; /* offset field, time word; ascending */
    uint32_t start, count, cap, next_free;
};

struct dedup_table {
    struct dedup_shard shards[DEDUP_SHARDS];
    struct dedup_list *lists;
    uint32_t list_count, list_cap, list_free;
    uint32_t sweep_shard, sweep_slot, shrink_shard;
    int64_t swept_ms; /* when the last sweep began; 0: never looked at */
    bool sweeping;
    uint64_t ids, pairs_bytes;
    uint8_t class;
};

/* What a look-up wants: the lowest occurrence with from <= offset < to, created at or after `since_ms`, kept at `now_ms`. */
struct dedup_wish {
    uint64_t from, to;
    int64_t since_ms, now_ms;
};

static inline uint64_t dedup_time_word(uint8_t class, int64_t ms)
{
    return (uint64_t) class << DEDUP_MS_BITS | ((uint64_t)ms & DEDUP_MS_MASK);
}

static inline uint8_t dedup_time_class(uint64_t time)
{
    return (uint8_t)(time >> DEDUP_MS_BITS);
}

static inline int64_t dedup_time_ms(uint64_t time)
{
    return (int64_t)(time & DEDUP_MS_MASK);
}

static inline struct dedup_record dedup_record_make(struct dedup_key k, uint64_t offset, uint64_t time)
{
    return (struct dedup_record){{k.low, (uint64_t)k.high << 32 | (offset & 0xffffffffU), offset >> 32 << 48 | time}};
}

static inline struct dedup_key dedup_record_key(const struct dedup_record *r)
{
    return (struct dedup_key){.low = r->words[0], .high = (uint32_t)(r->words[1] >> 32)};
}

static inline uint64_t dedup_record_offset(const struct dedup_record *r)
{
    return r->words[2] >> 48 << 32 | (r->words[1] & 0xffffffffU);
}

static inline uint64_t dedup_record_time(const struct dedup_record *r)
{
    return r->words[2] & ((UINT64_C(1) << 48) - 1);
}

static inline bool dedup_record_is(const struct dedup_record *r, struct dedup_key k)
{
    return r->words[0] == k.low && r->words[1] >> 32 == k.high;
}

/* The oldest createdAt that a wish accepts in a class. */
static inline int64_t dedup_wish_oldest_ms(const struct dedup_wish *w, uint8_t class)
{
    if (w->now_ms == INT64_MIN) return w->since_ms;
    int64_t kept_ms = w->now_ms - dedup_keep_ms(class);
    return w->since_ms > kept_ms ? w->since_ms : kept_ms;
}

static inline bool dedup_pair_fits(uint64_t place, uint64_t time, const struct dedup_wish *w, int64_t oldest_ms,
                                   struct dedup_hit *out)
{
    uint64_t offset = place & DEDUP_OFFSET_MASK;
    if (offset < w->from || offset >= w->to || dedup_time_ms(time) < oldest_ms) return false;
    *out = (struct dedup_hit){.offset = offset, .created_ms = dedup_time_ms(time), .own_id = (place & DEDUP_OWN_ID) != 0};
    return true;
}

void dedup_table_prefetch(const struct dedup_table *t, struct dedup_key k);
/* In offset order of one key. */
void dedup_table_put(struct dedup_table *t, const struct dedup_record *r);
bool dedup_table_has(const struct dedup_table *t, struct dedup_key k); /* any occurrence, also one that is past */
bool dedup_table_find(const struct dedup_table *t, struct dedup_key k, const struct dedup_wish *w, struct dedup_hit *out);
/* Now and then, by time: looks at up to `slots` slots, drops what is not kept any more, and gives back room of shards that got small. True:
 * the sweep goes on. */
bool dedup_table_sweep(struct dedup_table *t, uint32_t slots, int64_t now_ms);
/* The list of a slot, or NULL: the slot is its only occurrence. */
const struct dedup_list *dedup_table_list(const struct dedup_table *t, const struct dedup_record *slot);
/* Of the occurrences of a list from its start on, the first that was created at `oldest_ms` or later. */
uint32_t dedup_list_kept(const struct dedup_list *l, int64_t oldest_ms);
void dedup_table_each(const struct dedup_table *t, int64_t now_ms, void (*each)(void *ctx, const struct dedup_record *r),
                      void *ctx);
uint64_t dedup_table_memory(const struct dedup_table *t);
/* Gives back one shard's memory; false: nothing was left. The table is of no use any more but for dedup_table_free. */
bool dedup_table_shrink(struct dedup_table *t);
void dedup_table_free(struct dedup_table *t);

#endif
