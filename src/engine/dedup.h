/* Which transaction ids a partition has: the exact index behind dedup and acks.
 *
 *   slot, 24 bytes:  96 bits of XXH3-128(partition, id) | 1 bit own id | 47 bits offset | 6 bits keep class | 42 bits createdAt, milliseconds
 *
 * An id that occurs more than once (window passed, or window 0) has one slot that points to a list of its occurrences in offset
 * order, so a constant id costs a binary search, not a walk.
 *
 * How long an occurrence is kept: DEDUP_KEEP_MIN_MS << class, the class chosen when it is added. Whether it still counts is judged by
 * time alone at each look-up, never by whether the sweep has come by: sweeping changes memory, not answers.
 *
 * False hits: two different ids of one partition equal in 96 bits. With 10^9 ids in the index that is 10^-20 a look-up. */
#ifndef QUEEN_ENGINE_DEDUP_H
#define QUEEN_ENGINE_DEDUP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/hash.h"

enum { DEDUP_SHARDS = 256, DEDUP_KEEP_MIN_MS = 900000, DEDUP_CLASS_MAX = 40 };

struct dedup_slot {
    uint64_t words[3];
};

struct dedup_shard {
    struct dedup_slot *slots;
    uint32_t cap, count;
};

struct dedup_list; /* occurrences of one id */

struct dedup {
    struct dedup_shard shards[DEDUP_SHARDS];
    struct dedup_list *lists;
    uint32_t list_count, list_cap, list_free;
    uint32_t sweep_shard, sweep_slot;
    uint64_t ids;
    struct buf added; /* dedup_record of each occurrence added since the last cut, in order */
};

/* One occurrence, as stored in rows. */
struct dedup_record {
    uint64_t words[3]; /* as a slot */
};

struct dedup_hit {
    uint64_t offset;
    int64_t created_ms;
    bool own_id; /* the message's id is not the one made from its offset (ITEM_ID) */
};

struct dedup_key {
    uint64_t low;
    uint32_t high;
};

struct dedup_key dedup_key(uint64_t seed, uint32_t partition, struct slice id);
uint8_t dedup_class(int64_t keep_ms); /* smallest class that keeps at least so long */
static inline int64_t dedup_keep_ms(uint8_t class)
{
    return (int64_t)DEDUP_KEEP_MIN_MS << class;
}

void dedup_prefetch(const struct dedup *d, struct dedup_key k);
void dedup_add(struct dedup *d, struct dedup_key k, uint64_t offset, int64_t created_ms, uint8_t class, bool own_id);
/* Lowest occurrence with from <= offset < to, created at or after `since_ms`, still kept at `now_ms`. */
bool dedup_find(const struct dedup *d, struct dedup_key k, uint64_t from, uint64_t to, int64_t since_ms, int64_t now_ms,
                struct dedup_hit *out);
/* The push's question: the lowest occurrence in the window, or else any at or after `first` (an earlier item of the same push). */
bool dedup_seen(const struct dedup *d, struct dedup_key k, uint64_t first, uint64_t to, int64_t since_ms, int64_t now_ms,
                struct dedup_hit *out);

void dedup_load(struct dedup *d, const struct dedup_record *r);
int64_t dedup_record_expiry_ms(const struct dedup_record *r);
void dedup_sweep(struct dedup *d, uint32_t slots, int64_t now_ms); /* looks at so many slots, drops what is not kept any more */
/* Calls `each` for every occurrence that is still kept. */
void dedup_each(const struct dedup *d, int64_t now_ms, void (*each)(void *ctx, const struct dedup_record *r), void *ctx);
uint64_t dedup_memory(const struct dedup *d);
void dedup_free(struct dedup *d);

#endif
