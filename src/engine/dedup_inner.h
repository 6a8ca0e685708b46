/* What the files of the dedup index share. */
#ifndef QUEEN_ENGINE_DEDUP_INNER_H
#define QUEEN_ENGINE_DEDUP_INNER_H

#include "engine/dedup_filter.h"
#include "engine/dedup_table.h"
#include "engine/row.h"

enum {
    DEDUP_LIST_PAIRS = 128,     /* occurrences in one row of a long list */
    DEDUP_INLINE_MAX = 16,      /* occurrences of one id that stand in its bucket; more are a long list */
    DEDUP_PARTS_MAX = 16,       /* of a generation */
    DEDUP_PIECES = DEDUP_SHARDS /* rows of a filter */
};

struct dedup_chunk {
    uint64_t sequence;
    int64_t newest_ms;
};

/* The young ids of one class. */
struct dedup_stream {
    struct dedup_table young;
    struct buf added;           /* records added since the last cut, in order */
    struct dedup_chunk *chunks; /* its journal: stored chunks, oldest first */
    uint32_t chunk_first, chunk_count, chunk_cap;
};

/* Ids of one class that were sealed, in `parts` turns. A key's bucket is known from its hash; it has a row in each part. Of an id that is in
 * several parts the earlier has the lower offsets. */
struct dedup_generation {
    int64_t newest_ms; /* createdAt of its last id */
    struct dedup_filter filter;
    uint32_t number, buckets;
    uint8_t class, parts; /* parts: those that may be read */
    uint32_t pieces;      /* of its filter that a start has seen */
    uint64_t ids, capacity;
};

/* The table that is on its way into a generation. */
struct dedup_seal {
    bool active, whole; /* whole: all its rows are in `rows` or in a cut */
    bool cut;           /* the cut that ends it was taken, at cut_revision */
    uint64_t cut_revision;
    struct dedup_table table;
    uint32_t generation, shard, slot, pair;
    uint64_t journal_to; /* last chunk of its journal */
    uint64_t ids;
    int64_t newest_ms;
    struct buf rows; /* for the next cut: key and value, each with its length before */
};

struct dedup_cache_entry {
    struct row_key key;
    bool used;
    char *bytes;
    uint32_t len;
};

struct dedup {
    struct engine_cold cold;
    uint64_t rows_read;                               /* times that a look-up asked the store */
    uint64_t young_max;                               /* ids */
    uint64_t filter_share, filter_limit, cache_limit; /* bytes; filter_limit: with what others leave of theirs */
    struct dedup_stream *streams[DEDUP_CLASS_MAX + 1];
    uint8_t classes[DEDUP_CLASS_MAX + 1]; /* those that have a stream, ascending */
    uint32_t class_count;
    struct dedup_generation *generations;
    uint32_t generation_count, generation_cap, generation_last;
    uint64_t chunk_last, filter_bytes;
    struct dedup_seal seal;
    struct dedup_table dead; /* being given back */
    struct {
        struct dedup_filter filter; /* blocks NULL: none */
        uint32_t generation, piece; /* pieces before it are read */
    } returning;                    /* a filter on its way back into memory */
    uint64_t cut_revision;          /* of the last cut */
    uint64_t added;                 /* ids since the last dedup_housekeep */
    struct dedup_cache_entry *cache;
    uint32_t cache_count, cache_hand;
    uint64_t cache_bytes;
    struct buf read; /* rows being read */
};

struct dedup_stream *dedup_stream_obtain(struct dedup *d, uint8_t class);

/* ---- dedup_generation.c ---- */
static inline uint32_t dedup_bucket(const struct dedup_generation *g, struct dedup_key k)
{
    uint32_t each = g->buckets / DEDUP_SHARDS;
    return (uint32_t)(k.low >> 56) * each + (uint32_t)((k.low >> 24 & 0xffffffffU) * each >> 32);
}

static inline bool dedup_generation_may_have(const struct dedup_generation *g, struct dedup_key k, const struct dedup_wish *w)
{
    return g->newest_ms >= dedup_wish_oldest_ms(w, g->class) && dedup_filter_may_have(&g->filter, k);
}

void dedup_key_bucket(struct row_key *key, uint32_t generation, uint8_t part, uint32_t bucket);
void dedup_key_list(struct row_key *key, uint32_t generation, uint8_t part, uint32_t bucket, struct dedup_key k,
                    uint32_t chunk);
struct dedup_generation *dedup_generation_at(struct dedup *d, uint32_t number); /* NULL: none */
/* Reads its rows: after dedup_generation_may_have. */
bool dedup_generation_find(struct dedup *d, const struct dedup_generation *g, struct dedup_key k, const struct dedup_wish *w,
                           struct dedup_hit *out);
void dedup_generation_each(struct dedup *d, const struct dedup_generation *g, int64_t now_ms,
                           void (*each)(void *ctx, const struct dedup_record *r), void *ctx);
void dedup_cache_free(struct dedup *d);

/* ---- dedup_load.c ---- */
struct dedup_generation *dedup_generation_add(struct dedup *d, const struct dedup_generation *g);
int64_t dedup_generation_end_ms(const struct dedup_generation *g);
void dedup_chunk_add(struct dedup_stream *s, uint64_t sequence, int64_t newest_ms);
void dedup_key_generation(struct row_key *key, uint32_t number); /* number 0: of the row with the last number that was used */
void dedup_key_filter(struct row_key *key, uint32_t generation, uint8_t part, uint32_t shard);
void dedup_filter_piece(const struct dedup_filter *f, uint32_t shard, uint32_t *from, uint32_t *to);
void dedup_filter_leave(struct dedup *d, struct dedup_generation *g);
void dedup_filters_fit(struct dedup *d, uint32_t but);
bool dedup_filter_return(struct dedup *d); /* a piece of work on bringing one back. True: there is more */

#endif
