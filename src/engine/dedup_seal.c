/* From memory to rows: the journal of young ids, sealing, the end of generations. Keys:
 *
 *   07 class sequence               chunk of the journal
 *   0b generation                   class, parts, ids, capacity, buckets, blocks of the filter, newest createdAt
 *   0b 0                            the last number of a generation
 *   0c generation part shard        the filter's blocks of that shard's keys when the part was added
 *   8b ...                          dedup_generation.c
 *
 * A part is written shard by shard over several cuts, and counts from the cut on that has its last rows. One that a crash left half-written is
 * written again, or stays unread until its generation goes. The journal has all its ids still, so a row that is not written again holds only
 * what is past. */
#include <stdlib.h>
#include <string.h>

#include "base/crash_point.h"
#include "base/must.h"
#include "base/planted.h"
#include "engine/dedup_inner.h"

enum {
    CHUNK_RECORDS = 4096,
    ROW_BYTES = 4096,             /* of a bucket's records when its generation is full */
    ROWS_WAITING_BYTES = 6 << 20, /* sealed and in no cut yet: no more is sealed meanwhile */
    ROWS_BYTES_A_ROW = 1 << 10,   /* how they count for dedup_cut_size */
    SWEEP_SLOTS = 1 << 11,
    STEP_RECORDS = 1 << 14, /* occurrences of long lists that one step writes */
};

/* ---- rows for the next cut ------------------------------------------------------------------------------------------ */

/* Room for a value of `len` bytes, to be filled in before the next row is added. */
static char *row_room(struct buf *rows, const struct row_key *key, uint32_t len)
{
    buf_byte(rows, (char)key->len);
    buf_u32(rows, len);
    buf_put(rows, key->bytes, key->len);
    char *at = buf_reserve(rows, len);
    rows->len += len;
    return at;
}

static void rows_flush(struct buf *waiting, const struct engine_rows *rows)
{
    for (size_t at = 0; at < waiting->len;) {
        uint8_t key_len = (uint8_t)waiting->at[at];
        uint32_t len;
        memcpy(&len, waiting->at + at + 1, sizeof len);
        struct slice key = slice_make(waiting->at + at + 5, key_len);
        at += 5U + key_len;
        rows->put(rows->ctx, key, slice_make(waiting->at + at, len));
        at += len;
    }
    if (waiting->cap > 1 << 20) {
        buf_free(waiting);
    } else {
        buf_clear(waiting);
    }
}

/* ---- generations ---------------------------------------------------------------------------------------------------- */

static uint32_t filter_blocks(const struct dedup *d, uint64_t capacity)
{
    static const struct {
        uint32_t bits, eighths; /* bits an id while the filters hold less than so much of their limit */
    } steps[] = {{18, 2}, {14, 4}, {10, 6}, {7, 7}};
    uint32_t bits = 6;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        if (d->filter_bytes + capacity * steps[i].bits / 8 > d->filter_limit / 8 * steps[i].eighths) continue;
        bits = steps[i].bits;
        break;
    }
    return (uint32_t)(capacity * bits / 8 / DEDUP_BLOCK_BYTES) + 1;
}

static void generation_cut(const struct engine_rows *rows, const struct dedup_generation *g)
{
    struct row_key key;
    struct buf value = {0};
    dedup_key_generation(&key, g->number);
    buf_byte(&value, (char)g->class);
    buf_byte(&value, (char)g->parts);
    buf_u64(&value, g->ids);
    buf_u64(&value, g->capacity);
    buf_u32(&value, g->buckets);
    buf_u32(&value, g->filter.count);
    buf_u64(&value, (uint64_t)g->newest_ms);
    rows->put(rows->ctx, row_key_view(&key), buf_view(&value));
    buf_free(&value);
}

static void generation_last_cut(const struct dedup *d, const struct engine_rows *rows)
{
    struct row_key key;
    dedup_key_generation(&key, 0);
    rows->put(rows->ctx, row_key_view(&key), slice_make(&d->generation_last, sizeof d->generation_last));
}

/* Where so many ids of a class go: the newest generation of the class while it has room, or a new one of an eighth of the class's ids:
 * few generations to ask, and little that is kept too long. A part rewrites the whole filter, so there are few parts in one, too. */
static struct dedup_generation *generation_obtain(struct dedup *d, uint8_t class, uint64_t ids, const struct engine_rows *rows)
{
    enum { SHARE = 8, PARTS = 8, SHARE_LEAST = 32 };
    struct dedup_generation *newest = NULL;
    uint64_t total = ids;
    for (uint32_t i = 0; i < d->generation_count; i++) {
        struct dedup_generation *g = &d->generations[i];
        if (g->class != class) continue;
        total += g->ids;
        if (newest == NULL || g->number > newest->number) newest = g;
    }
    if (newest != NULL && newest->filter.blocks != NULL && newest->parts < DEDUP_PARTS_MAX &&
        newest->ids + ids <= newest->capacity + newest->capacity / 16)
        return newest;
    uint64_t capacity = total / SHARE < PARTS * ids ? total / SHARE : PARTS * ids;
    if (capacity < total / SHARE_LEAST) capacity = total / SHARE_LEAST;
    if (capacity < ids) capacity = ids;
    struct dedup_generation g = {.number = d->generation_last + 1, .class = class, .capacity = capacity};
    g.newest_ms = INT64_MIN / 2; /* of no id yet */
    uint64_t each = capacity * sizeof(struct dedup_record) / ROW_BYTES / DEDUP_SHARDS + 1;
    must(each < UINT32_MAX / DEDUP_SHARDS / 2);
    g.buckets = (uint32_t)each * DEDUP_SHARDS;
    dedup_filter_make(&g.filter, filter_blocks(d, capacity), capacity);
    d->filter_bytes += dedup_filter_memory(&g.filter);
    struct dedup_generation *added = dedup_generation_add(d, &g);
    dedup_filters_fit(d, added->number);
    generation_cut(rows, added);
    generation_last_cut(d, rows);
    return added;
}

/* The numbers around one that are no generation's: what rows of them were left behind goes with its. */
static void generation_gap(const struct dedup *d, uint32_t number, uint32_t *first, uint32_t *end)
{
    *first = 1;
    *end = number + 1;
    uint32_t next = UINT32_MAX;
    for (uint32_t i = 0; i < d->generation_count; i++) {
        uint32_t other = d->generations[i].number;
        if (other < number && other >= *first) *first = other + 1;
        if (other > number && other < next) next = other;
    }
    if (next != UINT32_MAX) *end = next;
}

static void generation_drop(struct dedup *d, struct dedup_generation *g, const struct engine_rows *rows)
{
    struct row_key from, to;
    uint32_t first, end;
    crash_point("dedup-drop");
    generation_gap(d, g->number, &first, &end);
    dedup_key_generation(&from, g->number);
    rows->delete (rows->ctx, row_key_view(&from));
    dedup_key_filter(&from, first, 0, 0);
    dedup_key_filter(&to, end, 0, 0);
    rows->delete_range(rows->ctx, row_key_view(&from), row_key_view(&to));
    dedup_key_bucket(&from, first, 0, 0);
    dedup_key_bucket(&to, end, 0, 0);
    rows->delete_range(rows->ctx, row_key_view(&from), row_key_view(&to));
    dedup_filter_leave(d, g);
    uint32_t behind = (uint32_t)(d->generations + d->generation_count - (g + 1));
    memmove(g, g + 1, behind * sizeof *g);
    d->generation_count--;
}

static void generations_expire(struct dedup *d, const struct engine_rows *rows, int64_t now_ms)
{
    for (uint32_t i = 0; i < d->generation_count;) {
        struct dedup_generation *g = &d->generations[i];
        bool filling = d->seal.active && d->seal.generation == g->number;
        if (filling || dedup_generation_end_ms(g) >= now_ms) {
            i++;
            continue;
        }
        generation_drop(d, g, rows);
    }
}

/* ---- sealing -------------------------------------------------------------------------------------------------------- */

struct sealing {
    struct dedup_seal *s;
    struct dedup_generation *g;
    int64_t oldest_ms; /* what was created before is past */
    uint32_t first_bucket, buckets;
    uint32_t *counts;
    char **places;
};

static void occurrence_note(struct sealing *x, uint64_t count, uint64_t newest_time)
{
    x->s->ids += count;
    if (dedup_time_ms(newest_time) > x->s->newest_ms) x->s->newest_ms = dedup_time_ms(newest_time);
}

/* Writes chunks of a long list from where the last step ended, at most `most` occurrences. Returns how many. */
static uint32_t list_seal(struct sealing *x, struct dedup_key k, const struct dedup_list *l, uint32_t most)
{
    struct dedup_seal *s = x->s;
    uint32_t done = 0;
    while (s->pair < l->count && done < most) {
        uint32_t n = l->count - s->pair < DEDUP_LIST_PAIRS ? l->count - s->pair : DEDUP_LIST_PAIRS;
        struct row_key key;
        dedup_key_list(&key, x->g->number, x->g->parts, dedup_bucket(x->g, k), k, s->pair / DEDUP_LIST_PAIRS);
        char *at = row_room(&s->rows, &key, n * 16);
        memcpy(at, l->pairs + 2 * (size_t)(l->start + s->pair), n * 16);
        s->pair += n;
        done += n;
    }
    return done;
}

/* The rows of the shard's long lists, which are written whole: what of them is past does no harm. False: there is more. */
static bool lists_seal(struct sealing *x)
{
    struct dedup_seal *s = x->s;
    const struct dedup_shard *shard = &s->table.shards[s->shard];
    uint32_t left = STEP_RECORDS;
    for (; s->table.list_count > 0 && s->slot < shard->cap; s->slot++, s->pair = 0) {
        const struct dedup_record *slot = &shard->slots[s->slot];
        const struct dedup_list *l = slot->words[0] == 0 ? NULL : dedup_table_list(&s->table, slot);
        if (l == NULL || l->count <= DEDUP_INLINE_MAX) continue;
        left -= list_seal(x, dedup_record_key(slot), l, left);
        if (s->pair < l->count) return false;
    }
    return true;
}

/* Of a slot: how many records stand in its bucket. */
static uint32_t slot_records(const struct sealing *x, const struct dedup_record *slot)
{
    const struct dedup_list *l = dedup_table_list(&x->s->table, slot);
    if (l == NULL) return dedup_time_ms(dedup_record_time(slot)) >= x->oldest_ms;
    if (l->count > DEDUP_INLINE_MAX) return 1;
    return l->count - dedup_list_kept(l, x->oldest_ms);
}

static void record_place(char **place, struct dedup_key k, uint64_t offset, uint64_t time)
{
    struct dedup_record r = dedup_record_make(k, offset, time);
    memcpy(*place, &r, sizeof r);
    *place += sizeof r;
}

static void slot_place(struct sealing *x, const struct dedup_record *slot, char **place)
{
    struct dedup_key k = dedup_record_key(slot);
    const struct dedup_list *l = dedup_table_list(&x->s->table, slot);
    dedup_filter_add(&x->g->filter, k);
    if (l == NULL) {
        record_place(place, k, dedup_record_offset(slot), dedup_record_time(slot));
        occurrence_note(x, 1, dedup_record_time(slot));
        return;
    }
    uint64_t newest = l->pairs[2 * (size_t)(l->start + l->count - 1) + 1];
    if (l->count > DEDUP_INLINE_MAX) {
        record_place(place, k, l->count, dedup_time_word(DEDUP_CLASS_LIST, x->g->parts));
        occurrence_note(x, l->count, newest);
        return;
    }
    uint32_t first = dedup_list_kept(l, x->oldest_ms);
    for (uint32_t i = first; i < l->count; i++) {
        const uint64_t *pair = l->pairs + 2 * (size_t)(l->start + i);
        record_place(place, k, pair[0], pair[1]);
    }
    occurrence_note(x, l->count - first, newest);
}

/* Room for the rows of the shard's buckets, in one piece. */
static void buckets_lay_out(struct sealing *x)
{
    struct buf *rows = &x->s->rows;
    struct row_key key;
    size_t need = 0;
    for (uint32_t b = 0; b < x->buckets; b++) need += 5 + sizeof key + x->counts[b] * sizeof(struct dedup_record);
    buf_reserve(rows, need);
    for (uint32_t b = 0; b < x->buckets; b++) {
        if (x->counts[b] == 0) continue;
        dedup_key_bucket(&key, x->g->number, x->g->parts, x->first_bucket + b);
        x->places[b] = row_room(rows, &key, x->counts[b] * (uint32_t)sizeof(struct dedup_record));
    }
}

/* The block that two shards share belongs to the second's piece, which is written after both. */
static void filter_seal(struct sealing *x)
{
    struct row_key key;
    uint32_t from, to;
    dedup_filter_piece(&x->g->filter, x->s->shard, &from, &to);
    if (from == to) return;
    dedup_key_filter(&key, x->g->number, x->g->parts, x->s->shard);
    char *at = row_room(&x->s->rows, &key, (to - from) * DEDUP_BLOCK_BYTES);
    memcpy(at, x->g->filter.blocks[from], (size_t)(to - from) * DEDUP_BLOCK_BYTES);
}

static void shard_seal(struct sealing *x)
{
    struct dedup_seal *s = x->s;
    const struct dedup_shard *shard = &s->table.shards[s->shard];
    x->buckets = x->g->buckets / DEDUP_SHARDS;
    x->first_bucket = s->shard * x->buckets;
    x->counts = calloc(x->buckets, sizeof x->counts[0]);
    x->places = calloc(x->buckets, sizeof x->places[0]);
    must(x->counts != NULL && x->places != NULL);
    for (uint32_t i = 0; i < shard->cap; i++) {
        const struct dedup_record *slot = &shard->slots[i];
        if (slot->words[0] == 0) continue;
        x->counts[dedup_bucket(x->g, dedup_record_key(slot)) - x->first_bucket] += slot_records(x, slot);
    }
    buckets_lay_out(x);
    for (uint32_t i = 0; i < shard->cap; i++) {
        const struct dedup_record *slot = &shard->slots[i];
        if (slot->words[0] == 0 || slot_records(x, slot) == 0) continue;
        slot_place(x, slot, &x->places[dedup_bucket(x->g, dedup_record_key(slot)) - x->first_bucket]);
    }
    free(x->counts);
    free(x->places);
    filter_seal(x);
}

/* One shard, or what is left of its long lists. */
static void seal_step(struct dedup *d, int64_t now_ms)
{
    struct dedup_seal *s = &d->seal;
    struct sealing x = {.s = s, .g = dedup_generation_at(d, s->generation)};
    must(x.g != NULL);
    x.oldest_ms = now_ms - dedup_keep_ms(x.g->class);
    if (!lists_seal(&x)) return;
    shard_seal(&x);
    crash_point("dedup-seal-shard");
    s->shard++;
    s->slot = s->pair = 0;
    s->whole = s->shard == DEDUP_SHARDS;
}

/* Twice as fast as ids come, so that the young table is half full at most when its predecessor has left. */
bool dedup_housekeep(struct dedup *d, int64_t now_ms)
{
    enum { BYTES_AN_ID = 48 };
    struct dedup_seal *s = &d->seal;
    bool frees = dedup_table_shrink(&d->dead);
    for (uint32_t i = 0; i < d->class_count; i++)
        frees |= dedup_table_sweep(&d->streams[d->classes[i]]->young, SWEEP_SLOTS, now_ms);
    if (dedup_filter_return(d)) frees = true;
    size_t enough = s->rows.len + 2 * BYTES_AN_ID * d->added;
    d->added = 0;
    do {
        if (!s->active || s->whole || s->rows.len >= ROWS_WAITING_BYTES) return frees;
        seal_step(d, now_ms);
    } while (s->rows.len < enough);
    return true;
}

/* ---- cut ------------------------------------------------------------------------------------------------------------ */

static void chunk_key(struct row_key *key, uint8_t class, uint64_t sequence)
{
    *key = (struct row_key){0};
    row_key_begin(key, ROW_DEDUP);
    row_key_u8(key, class);
    row_key_u64(key, sequence);
}

static void chunks_cut(struct dedup *d, struct dedup_stream *s, const struct engine_rows *rows)
{
    size_t records = s->added.len / sizeof(struct dedup_record);
    const char *at = s->added.at;
    if (PLANTED("dedup-not-kept")) records = 0;
    for (size_t done = 0; done < records;) {
        size_t n = records - done < CHUNK_RECORDS ? records - done : CHUNK_RECORDS;
        int64_t newest_ms = 0;
        for (size_t i = 0; i < n; i++) {
            struct dedup_record r;
            memcpy(&r, at + (done + i) * sizeof r, sizeof r);
            if (dedup_time_ms(dedup_record_time(&r)) > newest_ms) newest_ms = dedup_time_ms(dedup_record_time(&r));
        }
        struct row_key key;
        chunk_key(&key, s->young.class, ++d->chunk_last);
        rows->put(rows->ctx, row_key_view(&key),
                  slice_make(at + done * sizeof(struct dedup_record), n * sizeof(struct dedup_record)));
        dedup_chunk_add(s, d->chunk_last, newest_ms);
        done += n;
    }
    if (s->added.cap > 1 << 20) {
        buf_free(&s->added);
    } else {
        buf_clear(&s->added);
    }
}

static void chunk_pop(struct dedup_stream *s)
{
    s->chunk_first++;
    if (--s->chunk_count == 0) s->chunk_first = 0;
}

static void chunks_expire(struct dedup_stream *s, const struct engine_rows *rows, int64_t now_ms)
{
    while (s->chunk_count > 0) {
        const struct dedup_chunk *c = &s->chunks[s->chunk_first];
        if (c->newest_ms + dedup_keep_ms(s->young.class) >= now_ms) return;
        struct row_key key;
        chunk_key(&key, s->young.class, c->sequence);
        rows->delete (rows->ctx, row_key_view(&key));
        chunk_pop(s);
    }
}

/* The cut that ends a seal: the part counts, its journal goes, and the filter of the part before. */
static void seal_end(struct dedup *d, const struct engine_rows *rows)
{
    crash_point("dedup-seal-end");
    struct dedup_seal *s = &d->seal;
    struct dedup_stream *stream = d->streams[s->table.class];
    struct dedup_generation next = *dedup_generation_at(d, s->generation);
    struct row_key from, to;
    next.parts++;
    next.ids += s->ids;
    if (s->newest_ms > next.newest_ms) next.newest_ms = s->newest_ms;
    generation_cut(rows, &next);
    chunk_key(&from, s->table.class, 0);
    chunk_key(&to, s->table.class, s->journal_to + 1);
    rows->delete_range(rows->ctx, row_key_view(&from), row_key_view(&to));
    uint32_t first, end;
    generation_gap(d, next.number, &first, &end);
    dedup_key_filter(&from, first, 0, 0);
    dedup_key_filter(&to, next.number, (uint8_t)(next.parts - 1), 0);
    rows->delete_range(rows->ctx, row_key_view(&from), row_key_view(&to));
    while (stream->chunk_count > 0 && stream->chunks[stream->chunk_first].sequence <= s->journal_to) chunk_pop(stream);
    s->cut = true;
    s->cut_revision = d->cut_revision;
}

/* The young tables are full: the largest begins its way. Its ids are all in the journal. */
static void seal_begin(struct dedup *d, const struct engine_rows *rows)
{
    struct dedup_stream *largest = NULL;
    uint64_t ids = 0;
    for (uint32_t i = 0; i < d->class_count; i++) {
        struct dedup_stream *s = d->streams[d->classes[i]];
        ids += s->young.ids;
        if (largest == NULL || s->young.ids > largest->young.ids) largest = s;
    }
    if (ids < d->young_max) return;
    crash_point("dedup-seal-begin");
    struct dedup_generation *g = generation_obtain(d, largest->young.class, largest->young.ids, rows);
    d->seal = (struct dedup_seal){.active = true,
                                  .table = largest->young,
                                  .generation = g->number,
                                  .journal_to = d->chunk_last,
                                  .newest_ms = INT64_MIN / 2,
                                  .rows = d->seal.rows};
    largest->young = (struct dedup_table){.class = d->seal.table.class};
}

/* A second cut of one revision gives nothing of a seal: "stored up to this revision" must say that all of it is. */
void dedup_cut(struct dedup *d, const struct engine_rows *rows, uint64_t revision, int64_t now_ms)
{
    for (uint32_t i = 0; i < d->class_count; i++) {
        struct dedup_stream *s = d->streams[d->classes[i]];
        chunks_cut(d, s, rows);
        chunks_expire(s, rows, now_ms);
    }
    generations_expire(d, rows, now_ms);
    if (revision == d->cut_revision) return;
    d->cut_revision = revision;
    rows_flush(&d->seal.rows, rows);
    if (d->seal.active && d->seal.whole && !d->seal.cut) seal_end(d, rows);
    if (!d->seal.active) seal_begin(d, rows);
}

uint64_t dedup_cut_size(const struct dedup *d)
{
    uint64_t size = d->seal.rows.len / ROWS_BYTES_A_ROW;
    for (uint32_t i = 0; i < d->class_count; i++) {
        size += (d->streams[d->classes[i]]->added.len / sizeof(struct dedup_record) + CHUNK_RECORDS - 1) / CHUNK_RECORDS;
    }
    return size;
}

bool dedup_awaits_cut(const struct dedup *d, uint64_t revision)
{
    const struct dedup_seal *s = &d->seal;
    return revision == d->cut_revision && s->active && !s->cut && (s->whole || s->rows.len > 0);
}

void dedup_cut_stored(struct dedup *d, uint64_t revision)
{
    struct dedup_seal *s = &d->seal;
    if (!s->active || !s->cut || revision < s->cut_revision) return;
    crash_point("dedup-sealed");
    struct dedup_generation *g = dedup_generation_at(d, s->generation);
    g->parts++;
    g->ids += s->ids;
    if (s->newest_ms > g->newest_ms) g->newest_ms = s->newest_ms;
    dedup_table_free(&d->dead);
    d->dead = s->table;
    d->seal = (struct dedup_seal){.rows = s->rows};
}
