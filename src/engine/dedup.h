/* Which transaction ids a partition has: the exact index behind dedup and acks.
 *
 * How long an occurrence of an id is kept: DEDUP_KEEP_MIN_MS << class, the class chosen when it is added. Whether it still counts is judged
 * by time alone at each look-up, never by what was swept, sealed or cached: where an id lies changes memory and speed, not answers. An
 * occurrence is kept at least as long as one of the same id before it that is still kept.
 *
 *   young        the newest ids of a class, in memory (dedup_table.h, about 34 bytes an id), journalled in chunk rows at each cut
 *   generation   ids that were sealed: rows of about 4 KiB of records, the row of a key known from its hash (24 bytes an id); in memory
 *                a filter (dedup_filter.h, 2.25 bytes an id), which is stored too
 *
 * When the young tables hold their share of the budget, the largest becomes immutable and goes into a generation of its class, one shard a
 * dedup_housekeep; the cut that has its last rows also counts them as the generation's and deletes the journal they came from, so that a crash
 * comes back with the one or the other. Until that cut is stored its look-ups are answered from memory. A start reads the journal and the
 * filters, no records. A generation of an eighth of its class's ids goes as a whole when its last id is past.
 *
 * Budget: a fifth for young tables, a sixteenth for record rows that were read, five eighths for filters, with what is left over of other
 * budgets (dedup_spare). New filters become thinner as that fills up (18, 14, 10, 7, 6 bits an id); when it is full the generation that ends
 * first loses its filter until there is room again, and then every look-up that may concern it reads a row: answers stay exact, speed falls.
 * Not in the budget: what no cut has taken yet.
 *
 * False hits: two different ids of one partition equal in 96 bits. With 10^9 ids in the index that is 10^-20 a look-up.
 *
 * Threads: one at a time. Cost: a cache miss for each class in use and for each generation that the time asked for may reach
 * (dedup_prefetch starts them early); a row read for a hit in a generation and for every 2,000th other look-up in one.
 *
 * Files: dedup_table.c, dedup_filter.c; dedup_generation.c reads generations, dedup_seal.c makes and ends them (rows, cuts), dedup_load.c is the
 * way back (start, filters), dedup.c asks all of them. */
#ifndef QUEEN_ENGINE_DEDUP_H
#define QUEEN_ENGINE_DEDUP_H

#include "base/hash.h"
#include "engine/engine.h"

enum { DEDUP_KEEP_MIN_MS = 900000, DEDUP_CLASS_MAX = 40 };

struct dedup;

/* One occurrence, as stored in rows: dedup_table.h. */
struct dedup_record {
    uint64_t words[3];
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

/* `cold` reads what was cut and stored; it must outlive the index. budget_bytes 0 = 1 GiB. */
struct dedup *dedup_new(const struct engine_cold *cold, uint64_t budget_bytes);
void dedup_free(struct dedup *d);

/* Before a look-up of what was created at or after `since_ms`, and an addition of the class. */
void dedup_prefetch(const struct dedup *d, struct dedup_key k, int64_t since_ms, uint8_t class);
void dedup_add(struct dedup *d, struct dedup_key k, uint64_t offset, int64_t created_ms, uint8_t class, bool own_id);
/* Lowest occurrence with from <= offset < to, created at or after `since_ms`, still kept at `now_ms`. */
bool dedup_find(struct dedup *d, struct dedup_key k, uint64_t from, uint64_t to, int64_t since_ms, int64_t now_ms,
                struct dedup_hit *out);
/* The push's question: the lowest occurrence in the window, or else any at or after `first` (an earlier item of the same entry). */
bool dedup_seen(struct dedup *d, struct dedup_key k, uint64_t first, uint64_t to, int64_t since_ms, int64_t now_ms,
                struct dedup_hit *out);
uint64_t dedup_rows_read(const struct dedup *d); /* so many times a look-up asked the store */
/* The stored rows that a look-up of this key will read. */
void dedup_foreseen(const struct dedup *d, struct dedup_key k, int64_t since_ms,
                    void (*range)(void *ctx, struct slice from, struct slice to), void *ctx);

/* A bounded amount, well under a millisecond: ids that are not kept any more leave young tables; one shard is sealed, or twice as many ids as
 * were added since the last call. True: call again soon. */
bool dedup_housekeep(struct dedup *d, int64_t now_ms);

/* So many bytes more than the budget may be used for filters until the next call. */
void dedup_spare(struct dedup *d, uint64_t bytes);

/* The rows of kinds ROW_DEDUP, ROW_DEDUP_GENERATION, ROW_DEDUP_FILTER and ROW_DEDUP_RECORDS. */
void dedup_cut(struct dedup *d, const struct engine_rows *rows, uint64_t revision, int64_t now_ms);
uint64_t dedup_cut_size(const struct dedup *d);
/* A seal has rows, or its end, for a cut, and the last one was of this revision: it goes on with a cut of another. */
bool dedup_awaits_cut(const struct dedup *d, uint64_t revision);
void dedup_cut_stored(struct dedup *d, uint64_t revision);
/* A row of the first three kinds at start, in key order, and the end of them: NULL, or why it cannot be. */
const char *dedup_load(struct dedup *d, struct slice key, struct slice value, int64_t now_ms);
const char *dedup_loaded(const struct dedup *d);

/* Calls `each` for every occurrence that is still kept. Reads all stored records. */
void dedup_each(struct dedup *d, int64_t now_ms, void (*each)(void *ctx, const struct dedup_record *r), void *ctx);
uint64_t dedup_ids(const struct dedup *d); /* also those that are past and not swept yet */
uint64_t dedup_memory(const struct dedup *d);
uint32_t dedup_generations(const struct dedup *d);

#endif
