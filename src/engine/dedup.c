/* The index as a whole: which of its parts a question goes to. */
#include "engine/dedup.h"

#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "engine/dedup_inner.h"

enum {
    BUDGET_BYTES = 1 << 30,
    YOUNG_ID_BYTES = 34,
    YOUNG_MIN = 64,
    YOUNG_MAX = 4 << 20,
    CACHE_ROW_BYTES = 5 << 10, /* about what one takes */
    CACHE_ROWS_MIN = 64,       /* of small ones, in a small budget */
};

struct dedup_key dedup_key(uint64_t seed, uint32_t partition, struct slice id)
{
    struct hash128 h = hash128(id, seed + partition * UINT64_C(0x9e3779b97f4a7c15));
    return (struct dedup_key){.low = h.low == 0 ? 1 : h.low, .high = (uint32_t)(h.high >> 32)};
}

uint8_t dedup_class(int64_t keep_ms)
{
    uint8_t class = 0;
    while (class < DEDUP_CLASS_MAX && dedup_keep_ms(class) < keep_ms) class ++;
    return class;
}

struct dedup *dedup_new(const struct engine_cold *cold, uint64_t budget_bytes)
{
    struct dedup *d = calloc(1, sizeof *d);
    must(d != NULL);
    uint64_t budget = budget_bytes == 0 ? BUDGET_BYTES : budget_bytes;
    d->cold = *cold;
    d->young_max = budget / 5 / YOUNG_ID_BYTES;
    if (d->young_max < YOUNG_MIN) d->young_max = YOUNG_MIN;
    if (d->young_max > YOUNG_MAX) d->young_max = YOUNG_MAX;
    d->filter_share = d->filter_limit = budget / 8 * 5;
    d->cache_limit = budget / 16;
    d->cache_count = (uint32_t)(d->cache_limit / CACHE_ROW_BYTES);
    if (d->cache_count < CACHE_ROWS_MIN) d->cache_count = CACHE_ROWS_MIN;
    d->cache = calloc(d->cache_count, sizeof d->cache[0]);
    must(d->cache != NULL);
    return d;
}

void dedup_free(struct dedup *d)
{
    if (d == NULL) return;
    for (uint32_t i = 0; i < d->class_count; i++) {
        struct dedup_stream *s = d->streams[d->classes[i]];
        dedup_table_free(&s->young);
        buf_free(&s->added);
        free(s->chunks);
        free(s);
    }
    for (uint32_t i = 0; i < d->generation_count; i++) dedup_filter_drop(&d->generations[i].filter);
    dedup_filter_drop(&d->returning.filter);
    free(d->generations);
    dedup_table_free(&d->seal.table);
    dedup_table_free(&d->dead);
    buf_free(&d->seal.rows);
    dedup_cache_free(d);
    free(d);
}

struct dedup_stream *dedup_stream_obtain(struct dedup *d, uint8_t class)
{
    if (d->streams[class] != NULL) return d->streams[class];
    struct dedup_stream *s = calloc(1, sizeof *s);
    must(s != NULL);
    s->young.class = class;
    d->streams[class] = s;
    uint32_t at = d->class_count++;
    for (; at > 0 && d->classes[at - 1] > class; at--) d->classes[at] = d->classes[at - 1];
    d->classes[at] = class;
    return s;
}

void dedup_prefetch(const struct dedup *d, struct dedup_key k, int64_t since_ms, uint8_t class)
{
    for (uint32_t i = 0; i < d->class_count; i++) dedup_table_prefetch(&d->streams[d->classes[i]]->young, k);
    if (d->seal.active) dedup_table_prefetch(&d->seal.table, k);
    for (uint32_t i = 0; i < d->generation_count; i++) {
        const struct dedup_generation *g = &d->generations[i];
        if (g->newest_ms >= since_ms || g->class > class) dedup_filter_prefetch(&g->filter, k);
    }
}

static void hit_keep(const struct dedup_hit *hit, bool *found, struct dedup_hit *lowest)
{
    if (!*found || hit->offset < lowest->offset) *lowest = *hit;
    *found = true;
}

static bool tables_find(const struct dedup *d, struct dedup_key k, const struct dedup_wish *w, struct dedup_hit *out)
{
    struct dedup_hit hit;
    bool found = false;
    for (uint32_t i = 0; i < d->class_count; i++) {
        if (dedup_table_find(&d->streams[d->classes[i]]->young, k, w, &hit)) hit_keep(&hit, &found, out);
    }
    if (d->seal.active && dedup_table_find(&d->seal.table, k, w, &hit)) hit_keep(&hit, &found, out);
    return found;
}

/* Most ids that are asked for are new: one look-up then, whatever is wished. */
static bool tables_have(const struct dedup *d, struct dedup_key k)
{
    for (uint32_t i = 0; i < d->class_count; i++) {
        if (dedup_table_has(&d->streams[d->classes[i]]->young, k)) return true;
    }
    return d->seal.active && dedup_table_has(&d->seal.table, k);
}

static bool generations_find(struct dedup *d, struct dedup_key k, const struct dedup_wish *w, bool found, struct dedup_hit *out)
{
    struct dedup_hit hit;
    for (uint32_t i = 0; i < d->generation_count; i++) {
        const struct dedup_generation *g = &d->generations[i];
        if (dedup_generation_may_have(g, k, w) && dedup_generation_find(d, g, k, w, &hit)) hit_keep(&hit, &found, out);
    }
    return found;
}

bool dedup_find(struct dedup *d, struct dedup_key k, uint64_t from, uint64_t to, int64_t since_ms, int64_t now_ms,
                struct dedup_hit *out)
{
    struct dedup_wish w = {from, to, since_ms, now_ms};
    return generations_find(d, k, &w, tables_find(d, k, &w, out), out);
}

/* Items of the same entry are young: nothing is sealed while one is applied. */
bool dedup_seen(struct dedup *d, struct dedup_key k, uint64_t first, uint64_t to, int64_t since_ms, int64_t now_ms,
                struct dedup_hit *out)
{
    struct dedup_wish window = {0, to, since_ms, now_ms}, entry = {first, to, INT64_MIN, INT64_MIN};
    if (!tables_have(d, k)) return generations_find(d, k, &window, false, out);
    return generations_find(d, k, &window, tables_find(d, k, &window, out), out) || tables_find(d, k, &entry, out);
}

/* Is an occurrence of this class still kept? */
static bool class_keeps(struct dedup *d, uint8_t class, struct dedup_key k, int64_t now_ms)
{
    struct dedup_wish w = {0, UINT64_MAX, INT64_MIN, now_ms};
    struct dedup_hit hit;
    if (dedup_table_find(&d->streams[class]->young, k, &w, &hit)) return true;
    if (d->seal.active && d->seal.table.class == class && dedup_table_find(&d->seal.table, k, &w, &hit)) return true;
    for (uint32_t i = 0; i < d->generation_count; i++) {
        const struct dedup_generation *g = &d->generations[i];
        if (g->class != class || !dedup_generation_may_have(g, k, &w)) continue;
        if (dedup_generation_find(d, g, k, &w, &hit)) return true;
    }
    return false;
}

void dedup_add(struct dedup *d, struct dedup_key k, uint64_t offset, int64_t created_ms, uint8_t class, bool own_id)
{
    must(class <= DEDUP_CLASS_MAX && offset <= DEDUP_OFFSET_MASK);
    if (own_id) offset |= DEDUP_OWN_ID;
    for (uint32_t i = d->class_count; i > 0 && d->classes[i - 1] > class; i--) {
        if (class_keeps(d, d->classes[i - 1], k, created_ms)) class = d->classes[i - 1];
    }
    struct dedup_stream *s = dedup_stream_obtain(d, class);
    struct dedup_record r = dedup_record_make(k, offset, dedup_time_word(class, created_ms));
    dedup_table_put(&s->young, &r);
    d->added++;
    buf_put(&s->added, &r, sizeof r);
}

uint64_t dedup_rows_read(const struct dedup *d)
{
    return d->rows_read;
}

void dedup_foreseen(const struct dedup *d, struct dedup_key k, int64_t since_ms,
                    void (*range)(void *ctx, struct slice from, struct slice to), void *ctx)
{
    for (uint32_t i = 0; i < d->generation_count; i++) {
        const struct dedup_generation *g = &d->generations[i];
        if (g->newest_ms < since_ms || !dedup_filter_may_have(&g->filter, k)) continue;
        for (uint8_t part = 0; part < g->parts; part++) {
            struct row_key from, to;
            dedup_key_bucket(&from, g->number, part, dedup_bucket(g, k));
            to = from;
            row_key_u8(&to, 0);
            range(ctx, row_key_view(&from), row_key_view(&to));
        }
    }
}

void dedup_each(struct dedup *d, int64_t now_ms, void (*each)(void *ctx, const struct dedup_record *r), void *ctx)
{
    for (uint32_t i = 0; i < d->class_count; i++) dedup_table_each(&d->streams[d->classes[i]]->young, now_ms, each, ctx);
    if (d->seal.active) dedup_table_each(&d->seal.table, now_ms, each, ctx);
    for (uint32_t i = 0; i < d->generation_count; i++) dedup_generation_each(d, &d->generations[i], now_ms, each, ctx);
}

uint64_t dedup_ids(const struct dedup *d)
{
    uint64_t ids = d->seal.active ? d->seal.table.ids : 0;
    for (uint32_t i = 0; i < d->class_count; i++) ids += d->streams[d->classes[i]]->young.ids;
    for (uint32_t i = 0; i < d->generation_count; i++) ids += d->generations[i].ids;
    return ids;
}

uint64_t dedup_memory(const struct dedup *d)
{
    uint64_t bytes = sizeof *d + dedup_table_memory(&d->dead) + d->filter_bytes + d->cache_bytes + d->seal.rows.cap +
                     d->cache_count * sizeof d->cache[0] + d->read.cap + d->generation_cap * sizeof(struct dedup_generation);
    if (d->seal.active) bytes += dedup_table_memory(&d->seal.table);
    for (uint32_t i = 0; i < d->class_count; i++) {
        const struct dedup_stream *s = d->streams[d->classes[i]];
        bytes += dedup_table_memory(&s->young) + s->added.cap + s->chunk_cap * sizeof s->chunks[0];
    }
    return bytes;
}

uint32_t dedup_generations(const struct dedup *d)
{
    return d->generation_count;
}
