/* What a start reads, and filters that leave memory and come back. */
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "engine/dedup_inner.h"

enum { META_BYTES = 2 + 8 + 8 + 4 + 4 + 8 };

/* ---- filters -------------------------------------------------------------------------------------------------------- */

void dedup_filter_leave(struct dedup *d, struct dedup_generation *g)
{
    d->filter_bytes -= dedup_filter_memory(&g->filter);
    dedup_filter_drop(&g->filter);
}

static bool is_filled(const struct dedup *d, const struct dedup_generation *g)
{
    return d->seal.active && d->seal.generation == g->number;
}

/* Filters within their limit: the one whose generation ends first goes. Not that of the generation `but`, nor of the one being filled. */
void dedup_filters_fit(struct dedup *d, uint32_t but)
{
    while (d->filter_bytes > d->filter_limit) {
        struct dedup_generation *first = NULL;
        for (uint32_t i = 0; i < d->generation_count; i++) {
            struct dedup_generation *g = &d->generations[i];
            if (g->filter.blocks == NULL || g->number == but || is_filled(d, g)) continue;
            if (first == NULL || dedup_generation_end_ms(g) < dedup_generation_end_ms(first)) first = g;
        }
        if (first == NULL) return;
        dedup_filter_leave(d, first);
    }
}

void dedup_filter_piece(const struct dedup_filter *f, uint32_t shard, uint32_t *from, uint32_t *to)
{
    *from = (uint32_t)((uint64_t)f->count * shard / DEDUP_PIECES);
    *to = (uint32_t)((uint64_t)f->count * (shard + 1) / DEDUP_PIECES);
}

/* Copies a row's piece into the filter. False: it is not of it. */
static bool piece_take(struct dedup_filter *f, struct slice key, struct slice value)
{
    uint64_t shard = row_key_number(key.at + 6, 4);
    uint32_t from, to;
    if (shard >= DEDUP_PIECES) return false;
    dedup_filter_piece(f, (uint32_t)shard, &from, &to);
    if (value.len != (uint64_t)(to - from) * DEDUP_BLOCK_BYTES) return false;
    if (f->blocks != NULL) memcpy(f->blocks[from], value.at, value.len);
    return true;
}

void dedup_spare(struct dedup *d, uint64_t bytes)
{
    d->filter_limit = d->filter_share + bytes;
    dedup_filters_fit(d, 0);
}

static void return_end(struct dedup *d)
{
    d->filter_bytes -= dedup_filter_memory(&d->returning.filter);
    dedup_filter_drop(&d->returning.filter);
}

/* Of those without a filter the generation that ends last, if there is room for its. */
static struct dedup_generation *return_begin(struct dedup *d)
{
    struct dedup_generation *last = NULL;
    for (uint32_t i = 0; i < d->generation_count; i++) {
        struct dedup_generation *g = &d->generations[i];
        if (g->filter.blocks != NULL || g->parts == 0 || is_filled(d, g)) continue;
        if (last == NULL || dedup_generation_end_ms(g) > dedup_generation_end_ms(last)) last = g;
    }
    if (last == NULL) return NULL;
    uint64_t bytes = (uint64_t)last->filter.count * DEDUP_BLOCK_BYTES;
    if (d->filter_bytes + bytes > d->filter_limit - d->filter_limit / 16) return NULL;
    dedup_filter_make(&d->returning.filter, last->filter.count, last->capacity);
    d->returning.generation = last->number;
    d->returning.piece = 0;
    d->filter_bytes += bytes;
    return last;
}

static bool piece_row(void *ctx, struct slice key, struct slice value)
{
    must(piece_take(ctx, key, value));
    return true;
}

bool dedup_filter_return(struct dedup *d)
{
    enum { PIECES_A_CALL = 8 };
    struct dedup_generation *g = NULL;
    if (d->returning.filter.blocks != NULL) {
        g = dedup_generation_at(d, d->returning.generation);
        if (g == NULL || d->filter_bytes > d->filter_limit) {
            return_end(d);
            return false;
        }
    } else {
        g = return_begin(d);
        if (g == NULL) return false;
    }
    struct row_key from, to;
    uint8_t part = (uint8_t)(g->parts - 1);
    dedup_key_filter(&from, g->number, part, d->returning.piece);
    d->returning.piece += PIECES_A_CALL;
    dedup_key_filter(&to, g->number, part, d->returning.piece);
    d->cold.scan(d->cold.ctx, row_key_view(&from), row_key_view(&to), piece_row, &d->returning.filter);
    if (d->returning.piece < DEDUP_PIECES) return true;
    g->filter = d->returning.filter;
    d->returning.filter = (struct dedup_filter){0};
    return true;
}

/* ---- generations and the journal ------------------------------------------------------------------------------------ */

int64_t dedup_generation_end_ms(const struct dedup_generation *g)
{
    return g->newest_ms + dedup_keep_ms(g->class);
}

void dedup_key_generation(struct row_key *key, uint32_t number)
{
    *key = (struct row_key){0};
    row_key_begin(key, ROW_DEDUP_GENERATION);
    row_key_u32(key, number);
}

void dedup_key_filter(struct row_key *key, uint32_t generation, uint8_t part, uint32_t shard)
{
    *key = (struct row_key){0};
    row_key_begin(key, ROW_DEDUP_FILTER);
    row_key_u32(key, generation);
    row_key_u8(key, part);
    row_key_u32(key, shard);
}

struct dedup_generation *dedup_generation_add(struct dedup *d, const struct dedup_generation *g)
{
    if (d->generation_count == d->generation_cap) {
        d->generation_cap = d->generation_cap == 0 ? 16 : d->generation_cap * 2;
        d->generations = realloc(d->generations, d->generation_cap * sizeof d->generations[0]);
        must(d->generations != NULL);
    }
    d->generations[d->generation_count] = *g;
    if (g->number > d->generation_last) d->generation_last = g->number;
    return &d->generations[d->generation_count++];
}

void dedup_chunk_add(struct dedup_stream *s, uint64_t sequence, int64_t newest_ms)
{
    if (s->chunk_first + s->chunk_count == s->chunk_cap && s->chunk_first > s->chunk_cap / 2) {
        memmove(s->chunks, s->chunks + s->chunk_first, s->chunk_count * sizeof s->chunks[0]);
        s->chunk_first = 0;
    }
    if (s->chunk_first + s->chunk_count == s->chunk_cap) {
        s->chunk_cap = s->chunk_cap == 0 ? 16 : s->chunk_cap * 2;
        s->chunks = realloc(s->chunks, s->chunk_cap * sizeof s->chunks[0]);
        must(s->chunks != NULL);
    }
    s->chunks[s->chunk_first + s->chunk_count++] = (struct dedup_chunk){sequence, newest_ms};
}

enum { PREFETCH_RECORDS = 16 };

static const char *chunk_load(struct dedup *d, struct slice key, struct slice value, int64_t now_ms)
{
    int64_t newest_ms = 0;
    if (key.len != 10 || (uint8_t)key.at[1] > DEDUP_CLASS_MAX || value.len % sizeof(struct dedup_record) != 0)
        return "a row of the dedup journal is damaged";
    struct dedup_stream *s = dedup_stream_obtain(d, (uint8_t)key.at[1]);
    for (size_t at = 0; at < value.len; at += sizeof(struct dedup_record)) {
        struct dedup_record r;
        size_t ahead = at + PREFETCH_RECORDS * sizeof r;
        if (ahead < value.len) { /* its slot is on its way into the cache when it is put */
            memcpy(&r, value.at + ahead, sizeof r);
            dedup_table_prefetch(&s->young, dedup_record_key(&r));
        }
        memcpy(&r, value.at + at, sizeof r);
        int64_t created_ms = dedup_time_ms(dedup_record_time(&r));
        if (r.words[0] == 0 || dedup_time_class(dedup_record_time(&r)) != s->young.class)
            return "a record of the dedup journal is damaged";
        if (created_ms > newest_ms) newest_ms = created_ms;
        if (created_ms + dedup_keep_ms(s->young.class) >= now_ms) dedup_table_put(&s->young, &r);
    }
    uint64_t sequence = row_key_number(key.at + 2, 8);
    dedup_chunk_add(s, sequence, newest_ms);
    if (sequence > d->chunk_last) d->chunk_last = sequence;
    return NULL;
}

static const char *generation_load(struct dedup *d, struct slice key, struct slice value)
{
    struct dedup_generation g = {.number = (uint32_t)row_key_number(key.at + 1, 4)};
    uint32_t blocks;
    if (g.number == 0 && value.len == sizeof d->generation_last) {
        memcpy(&d->generation_last, value.at, sizeof d->generation_last);
        return NULL;
    }
    if (value.len != META_BYTES) return "the row of a generation of ids is damaged";
    g.class = (uint8_t)value.at[0];
    g.parts = (uint8_t)value.at[1];
    memcpy(&g.ids, value.at + 2, 8);
    memcpy(&g.capacity, value.at + 10, 8);
    memcpy(&g.buckets, value.at + 18, 4);
    memcpy(&blocks, value.at + 22, 4);
    memcpy(&g.newest_ms, value.at + 26, 8);
    if (g.class > DEDUP_CLASS_MAX || g.parts > DEDUP_PARTS_MAX || g.buckets == 0 || g.buckets % DEDUP_SHARDS != 0 ||
        blocks == 0 || g.number == 0 || (uint64_t)blocks > g.capacity || dedup_generation_at(d, g.number) != NULL)
        return "the row of a generation of ids is damaged";
    dedup_stream_obtain(d, g.class);
    dedup_filter_make(&g.filter, blocks, g.capacity);
    d->filter_bytes += dedup_filter_memory(&g.filter);
    dedup_filters_fit(d, dedup_generation_add(d, &g)->number);
    return NULL;
}

/* Rows of parts before the last, of one that is not whole and of generations that are gone may be there still. */
static const char *filter_load(struct dedup *d, struct slice key, struct slice value)
{
    struct dedup_generation *g = dedup_generation_at(d, (uint32_t)row_key_number(key.at + 1, 4));
    if (g == NULL || (uint8_t)key.at[5] + 1U != g->parts) return NULL;
    g->pieces++;
    return piece_take(&g->filter, key, value) ? NULL : "a filter's row is damaged";
}

const char *dedup_load(struct dedup *d, struct slice key, struct slice value, int64_t now_ms)
{
    switch ((unsigned char)key.at[0]) {
    case ROW_DEDUP:
        return chunk_load(d, key, value, now_ms);
    case ROW_DEDUP_FILTER:
        return key.len == 10 ? filter_load(d, key, value) : "a filter's row is damaged";
    default:
        return key.len == 5 ? generation_load(d, key, value) : "a row of the dedup index is damaged";
    }
}

/* A filter that lacks a piece would deny ids. */
const char *dedup_loaded(const struct dedup *d)
{
    for (uint32_t i = 0; i < d->generation_count; i++) {
        const struct dedup_generation *g = &d->generations[i];
        uint32_t pieces = 0, from, to;
        for (uint32_t shard = 0; shard < DEDUP_PIECES; shard++) {
            dedup_filter_piece(&g->filter, shard, &from, &to);
            if (from < to) pieces++;
        }
        if (g->parts > 0 && g->pieces != pieces) return "a generation of ids lacks rows of its filter";
    }
    return NULL;
}
