/* Generations: reading them. Keys:
 *
 *   8b generation part bucket                    records, 24 bytes each
 *   8b generation part bucket key chunk          of an id with many occurrences: DEDUP_LIST_PAIRS of them, 16 bytes each
 *
 * Such an id has one record in its bucket, of class DEDUP_CLASS_LIST, whose offset is the number of its occurrences and whose time is its
 * part. Rows are read one by one, by their keys: a part is written in the order of its keys and lies in few files, which are never merged
 * with another's. They may outlive their generation (store.h), so generations are never numbered anew. */
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "engine/dedup_inner.h"

enum { PAIR_BYTES = 16, BUCKET_KEY_BYTES = 10 };

void dedup_key_bucket(struct row_key *key, uint32_t generation, uint8_t part, uint32_t bucket)
{
    *key = (struct row_key){0};
    row_key_begin(key, ROW_DEDUP_RECORDS);
    row_key_u32(key, generation);
    row_key_u8(key, part);
    row_key_u32(key, bucket);
}

void dedup_key_list(struct row_key *key, uint32_t generation, uint8_t part, uint32_t bucket, struct dedup_key k, uint32_t chunk)
{
    dedup_key_bucket(key, generation, part, bucket);
    row_key_u64(key, k.low);
    row_key_u32(key, k.high);
    row_key_u32(key, chunk);
}

struct dedup_generation *dedup_generation_at(struct dedup *d, uint32_t number)
{
    for (uint32_t i = d->generation_count; i > 0; i--) {
        if (d->generations[i - 1].number == number) return &d->generations[i - 1];
    }
    return NULL;
}

/* ---- rows that were read -------------------------------------------------------------------------------------------- */

static void entry_drop(struct dedup *d, struct dedup_cache_entry *e)
{
    d->cache_bytes -= e->len;
    free(e->bytes);
    *e = (struct dedup_cache_entry){0};
}

void dedup_cache_free(struct dedup *d)
{
    for (uint32_t i = 0; i < d->cache_count; i++) entry_drop(d, &d->cache[i]);
    free(d->cache);
    buf_free(&d->read);
}

static void entry_fill(struct dedup *d, struct dedup_cache_entry *e, const struct row_key *key)
{
    entry_drop(d, e);
    for (uint32_t n = 0; n < d->cache_count && d->cache_bytes + d->read.len > d->cache_limit; n++) {
        entry_drop(d, &d->cache[d->cache_hand]);
        d->cache_hand = (d->cache_hand + 1) % d->cache_count;
    }
    *e = (struct dedup_cache_entry){.key = *key, .used = true, .len = (uint32_t)d->read.len};
    e->bytes = malloc(e->len == 0 ? 1 : e->len);
    must(e->bytes != NULL);
    memcpy(e->bytes, buf_view(&d->read).at, e->len);
    d->cache_bytes += e->len;
}

static bool row_take(void *ctx, struct slice key, struct slice value)
{
    (void)key;
    buf_slice(ctx, value);
    return false;
}

/* The value of the row with this key, empty if there is none. It lives until the next call. A row of a part that counts never changes. */
static struct slice row_read(struct dedup *d, const struct row_key *key)
{
    struct dedup_cache_entry *e = &d->cache[hash64(row_key_view(key), 0) % d->cache_count];
    bool known = e->used && slice_equal(row_key_view(&e->key), row_key_view(key));
    if (!known) {
        d->rows_read++;
        struct row_key behind = *key;
        row_key_u8(&behind, 0);
        buf_clear(&d->read);
        d->cold.scan(d->cold.ctx, row_key_view(key), row_key_view(&behind), row_take, &d->read);
        entry_fill(d, e, key);
    }
    return slice_make(e->bytes, e->len);
}

/* ---- look-ups ------------------------------------------------------------------------------------------------------- */

static uint64_t pair_half(struct slice row, uint32_t pair, int half)
{
    uint64_t v;
    memcpy(&v, row.at + (size_t)pair * PAIR_BYTES + 8 * half, sizeof v);
    return v;
}

static struct slice list_chunk(struct dedup *d, const struct dedup_generation *g, struct dedup_key k, uint8_t part,
                               uint32_t chunk)
{
    struct row_key key;
    dedup_key_list(&key, g->number, part, dedup_bucket(g, k), k, chunk);
    struct slice row = row_read(d, &key);
    must(row.len >= PAIR_BYTES); /* its bucket tells of it */
    return row;
}

static bool pair_before(struct slice row, uint32_t pair, const struct dedup_wish *w, int64_t oldest_ms)
{
    return (pair_half(row, pair, 0) & DEDUP_OFFSET_MASK) < w->from || dedup_time_ms(pair_half(row, pair, 1)) < oldest_ms;
}

/* Offsets and times rise together: the first chunk whose last pair is not before what is wanted, then the first pair in it. */
static bool list_find(struct dedup *d, const struct dedup_generation *g, struct dedup_key k, uint8_t part, uint64_t count,
                      const struct dedup_wish *w, struct dedup_hit *out)
{
    uint32_t chunks = (uint32_t)((count + DEDUP_LIST_PAIRS - 1) / DEDUP_LIST_PAIRS), low = 0, high = chunks;
    int64_t oldest_ms = dedup_wish_oldest_ms(w, g->class);
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        struct slice row = list_chunk(d, g, k, part, middle);
        if (pair_before(row, (uint32_t)(row.len / PAIR_BYTES) - 1, w, oldest_ms)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == chunks) return false;
    struct slice row = list_chunk(d, g, k, part, low);
    uint32_t pair = 0;
    while (pair_before(row, pair, w, oldest_ms)) pair++;
    return dedup_pair_fits(pair_half(row, pair, 0), pair_half(row, pair, 1), w, oldest_ms, out);
}

static bool part_find(struct dedup *d, const struct dedup_generation *g, struct dedup_key k, uint8_t part,
                      const struct dedup_wish *w, struct dedup_hit *out)
{
    int64_t oldest_ms = dedup_wish_oldest_ms(w, g->class);
    struct row_key key;
    struct dedup_hit hit;
    bool found = false;
    dedup_key_bucket(&key, g->number, part, dedup_bucket(g, k));
    struct slice row = row_read(d, &key);
    for (size_t at = 0; at + sizeof(struct dedup_record) <= row.len; at += sizeof(struct dedup_record)) {
        struct dedup_record r;
        memcpy(&r, row.at + at, sizeof r);
        if (!dedup_record_is(&r, k)) continue;
        uint64_t time = dedup_record_time(&r);
        if (dedup_time_class(time) == DEDUP_CLASS_LIST) /* it has no other record */
            return list_find(d, g, k, part, dedup_record_offset(&r), w, out);
        if (!dedup_pair_fits(dedup_record_offset(&r), time, w, oldest_ms, &hit)) continue;
        if (!found || hit.offset < out->offset) *out = hit;
        found = true;
    }
    return found;
}

bool dedup_generation_find(struct dedup *d, const struct dedup_generation *g, struct dedup_key k, const struct dedup_wish *w,
                           struct dedup_hit *out)
{
    for (uint8_t part = 0; part < g->parts; part++)
        if (part_find(d, g, k, part, w, out)) return true;
    return false;
}

/* ---- all of them ---------------------------------------------------------------------------------------------------- */

static bool bucket_row(void *ctx, struct slice key, struct slice value)
{
    if (key.len == BUCKET_KEY_BYTES) buf_slice(ctx, value);
    return true;
}

void dedup_generation_each(struct dedup *d, const struct dedup_generation *g, int64_t now_ms,
                           void (*each)(void *ctx, const struct dedup_record *r), void *ctx)
{
    struct buf records = {0};
    struct row_key from, to;
    int64_t oldest_ms = now_ms - dedup_keep_ms(g->class);
    dedup_key_bucket(&from, g->number, 0, 0);
    dedup_key_bucket(&to, g->number, (uint8_t)g->parts, 0);
    d->cold.scan(d->cold.ctx, row_key_view(&from), row_key_view(&to), bucket_row, &records);
    for (size_t at = 0; at < records.len; at += sizeof(struct dedup_record)) {
        struct dedup_record r;
        memcpy(&r, records.at + at, sizeof r);
        uint64_t time = dedup_record_time(&r);
        if (dedup_time_class(time) != DEDUP_CLASS_LIST) {
            if (dedup_time_ms(time) >= oldest_ms) each(ctx, &r);
            continue;
        }
        struct dedup_key k = dedup_record_key(&r);
        uint64_t count = dedup_record_offset(&r);
        for (uint64_t i = 0; i < count; i++) {
            struct slice row = list_chunk(d, g, k, (uint8_t)dedup_time_ms(time), (uint32_t)(i / DEDUP_LIST_PAIRS));
            uint32_t pair = (uint32_t)(i % DEDUP_LIST_PAIRS);
            struct dedup_record one = dedup_record_make(k, pair_half(row, pair, 0), pair_half(row, pair, 1));
            if (dedup_time_ms(pair_half(row, pair, 1)) >= oldest_ms) each(ctx, &one);
        }
    }
    buf_free(&records);
}
