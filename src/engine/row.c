/* Rows: what a cut writes, a start reads and the digest hashes. All numbers little-endian in values. */
#include "engine/row.h"

#include <stdlib.h>

#include "engine/engine_internal.h"

enum { META_VERSION = 6 };

/* ---- keys ----------------------------------------------------------------------------------------------------------- */

void row_key_begin(struct row_key *k, enum row_kind kind)
{
    k->bytes[0] = (unsigned char)kind;
    k->len = 1;
}

void row_key_u8(struct row_key *k, uint8_t v)
{
    must(k->len < sizeof k->bytes);
    k->bytes[k->len++] = v;
}

void row_key_u32(struct row_key *k, uint32_t v)
{
    for (int shift = 24; shift >= 0; shift -= 8) k->bytes[k->len++] = (unsigned char)(v >> shift);
}

void row_key_u64(struct row_key *k, uint64_t v)
{
    row_key_u32(k, (uint32_t)(v >> 32));
    row_key_u32(k, (uint32_t)v);
}

void row_key_lane(struct row_key *k, uint32_t queue, uint32_t partition)
{
    row_key_begin(k, ROW_LANE);
    row_key_u32(k, queue);
    row_key_u32(k, partition);
}

void row_key_run(struct row_key *k, uint32_t queue, uint32_t partition, uint64_t last_offset)
{
    row_key_begin(k, ROW_RUN);
    row_key_u32(k, queue);
    row_key_u32(k, partition);
    row_key_u64(k, last_offset);
}

void row_key_timer(struct row_key *k, int64_t due_us, uint64_t sequence)
{
    row_key_begin(k, ROW_TIMER);
    row_key_u64(k, (uint64_t)due_us);
    row_key_u64(k, sequence);
}

void engine_timer_rows(int64_t from_us, int64_t until_us, char from[TIMER_ROW_KEY_BYTES], char to[TIMER_ROW_KEY_BYTES])
{
    struct row_key k;
    row_key_timer(&k, from_us, 0);
    must(k.len == TIMER_ROW_KEY_BYTES);
    memcpy(from, k.bytes, k.len);
    row_key_timer(&k, until_us, UINT64_MAX);
    memcpy(to, k.bytes, k.len);
}

int64_t engine_timer_row_due_us(struct slice key)
{
    must(key.len == TIMER_ROW_KEY_BYTES);
    return (int64_t)row_key_number(key.at + 1, 8);
}

struct key_reader {
    const unsigned char *at, *end;
    bool bad;
};

static uint32_t key_u32(struct key_reader *r)
{
    if (r->end - r->at < 4) {
        r->bad = true;
        return 0;
    }
    uint32_t v = (uint32_t)row_key_number(r->at, 4);
    r->at += 4;
    return v;
}

static uint64_t key_u64(struct key_reader *r)
{
    uint64_t high = key_u32(r);
    return high << 32 | key_u32(r);
}

/* ---- values --------------------------------------------------------------------------------------------------------- */

static void put_text(struct buf *b, struct slice s)
{
    buf_u16(b, (uint16_t)s.len);
    buf_slice(b, s);
}

static void value_queue(struct buf *b, const struct queue *q)
{
    buf_put(b, q->tenant.bytes, 16);
    buf_u64(b, (uint64_t)q->created_us);
    buf_u64(b, q->messages);
    buf_u64(b, q->bytes);
    buf_u64(b, q->pushed_total);
    buf_byte(b, q->deleted);
    buf_put(b, q->options.numbers, sizeof q->options.numbers);
    put_text(b, q->name);
    put_text(b, q->options.sink_hold);
    put_text(b, q->options.name_space);
    put_text(b, q->options.task);
}

static void value_group(struct buf *b, const struct group *g)
{
    buf_byte(b, g->registered);
    buf_byte(b, g->conflates);
    buf_byte(b, g->retired);
    buf_byte(b, (char)g->mode);
    buf_u64(b, (uint64_t)g->from_us);
    buf_u32(b, g->scan);
    buf_u64(b, (uint64_t)g->ready_turn_last);
    buf_u64(b, (uint64_t)g->delay_shift_us);
    put_text(b, g->name);
}

static void value_partition(struct buf *b, const struct partition *p)
{
    buf_u64(b, p->tail);
    buf_u64(b, p->start);
    buf_u64(b, (uint64_t)p->created_us);
    buf_u64(b, (uint64_t)p->last_created_us);
    buf_u64(b, (uint64_t)p->start_us);
    buf_u64(b, p->bytes);
    buf_u32(b, p->last_lease_s);
    put_text(b, partition_name(p));
}

enum { CURSOR_HAS_LEASE = 1, CURSOR_HAS_HISTORY = 2 };

static void value_cursor(struct buf *b, const struct engine *e, const struct cursor *c)
{
    buf_u64(b, (uint64_t)c->committed);
    buf_u64(b, c->attempt_start);
    buf_u32(b, c->attempt);
    buf_u16(b, c->retries);
    buf_byte(b, (char)(c->flags & ~CURSOR_DIRTY));
    buf_byte(b, (char)c->state);
    buf_u64(b, c->state == CURSOR_READY     ? (uint64_t)c->ready_turn
               : c->state == CURSOR_DELAYED ? (uint64_t)cursor_delay_key(e, c)
                                            : 0);
    buf_byte(b, (char)((c->lease != 0 ? CURSOR_HAS_LEASE : 0) | (c->history != 0 ? CURSOR_HAS_HISTORY : 0)));
    if (c->lease != 0) {
        const struct lease *l = lease_at(e, c->lease);
        buf_put(b, l->id.bytes, 16);
        buf_u64(b, l->first);
        buf_u64(b, l->last);
        buf_u64(b, (uint64_t)l->expiry_us);
    }
    if (c->history != 0) {
        const struct history *h = history_at(e, c->history);
        buf_put(b, h->id.bytes, 16);
        buf_u64(b, h->low);
        buf_u64(b, h->high);
    }
}

void value_dead_letter(struct buf *b, const struct dead_letter *d, bool logical)
{
    buf_u32(b, d->partition);
    buf_u32(b, d->group);
    buf_u32(b, d->retries);
    buf_u32(b, d->item);
    buf_u64(b, d->offset);
    buf_u64(b, logical ? 0 : d->where);
    buf_u32(b, d->block_bytes);
    buf_u64(b, (uint64_t)d->created_us);
    buf_u64(b, (uint64_t)d->failed_us);
    put_text(b, d->error);
}

static void value_kv(struct buf *b, const struct engine *e, const struct kv_row *r)
{
    buf_byte(b, (char)r->space_len);
    buf_u64(b, r->version);
    buf_u64(b, (uint64_t)r->updated_us);
    buf_u64(b, (uint64_t)kv_row_expires_us(r));
    buf_slice(b, kv_row_value(e, r));
}

static void value_timer(struct buf *b, const struct timer *t)
{
    const struct timer_body *body = t->body;
    buf_u64(b, t->where);
    buf_u32(b, body->block_bytes);
    buf_u32(b, body->item_bytes);
    buf_put(b, body->message.bytes, 16);
    buf_u64(b, (uint64_t)body->created_us);
    buf_u64(b, (uint64_t)body->updated_us);
    buf_u16(b, body->queue_len);
    put_text(b, timer_path(body));
    put_text(b, slice_make(body->texts + body->path_len, body->partition_len));
    put_text(b, slice_make(body->texts + body->path_len + body->partition_len, body->transaction_len));
}

static void value_meta(struct buf *b, const struct engine *e)
{
    buf_u32(b, META_VERSION);
    buf_u64(b, e->seed);
    buf_u64(b, e->applied_index);
    buf_u32(b, e->queue_last);
    buf_u32(b, e->partition_last);
    buf_u32(b, e->group_last);
    buf_u64(b, e->dead_letter_last);
    buf_u64(b, e->kv_version);
    buf_u64(b, e->timer_last);
    buf_u64(b, (uint64_t)e->safe_us);
    buf_u64(b, e->digest);
    char head[ENTRY_HEAD_BYTES];
    entry_head_write(head, &e->last_head);
    buf_put(b, head, sizeof head);
}

/* ---- cut ------------------------------------------------------------------------------------------------------------ */

struct cutter {
    struct engine *e;
    const struct engine_rows *rows;
    struct row_key key;
    struct buf value;
};

static void cut_put(struct cutter *c)
{
    c->rows->put(c->rows->ctx, row_key_view(&c->key), buf_view(&c->value));
    buf_clear(&c->value);
}

static void cut_gone(struct cutter *c)
{
    static const enum row_kind kinds[] = {ROW_GROUP, ROW_LANE, ROW_DEAD_LETTER, ROW_RUN};
    for (uint32_t i = 0; i < c->e->gone_queues.count; i++) {
        uint32_t q = c->e->gone_queues.at[i];
        row_key_begin(&c->key, ROW_QUEUE);
        row_key_u32(&c->key, q);
        c->rows->delete (c->rows->ctx, row_key_view(&c->key));
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            struct row_key to;
            row_key_begin(&c->key, kinds[k]);
            row_key_u32(&c->key, q);
            row_key_begin(&to, kinds[k]);
            row_key_u32(&to, q + 1);
            c->rows->delete_range(c->rows->ctx, row_key_view(&c->key), row_key_view(&to));
        }
    }
    c->e->gone_queues.count = 0;
}

/* Of lanes and queues that stay. They come before what is put, which may have the same keys again. */
static void cut_removed(struct cutter *c)
{
    struct engine *e = c->e;
    for (size_t at = 0; at < e->gone_cursors.len; at += 12) {
        uint32_t key[3];
        memcpy(key, e->gone_cursors.at + at, sizeof key);
        row_key_lane(&c->key, key[0], key[1]);
        row_key_u32(&c->key, key[2]);
        c->rows->delete (c->rows->ctx, row_key_view(&c->key));
    }
    buf_clear(&e->gone_cursors);
    for (size_t at = 0; at < e->gone_groups.len; at += 8) {
        uint32_t key[2];
        memcpy(key, e->gone_groups.at + at, sizeof key);
        row_key_begin(&c->key, ROW_GROUP);
        for (int i = 0; i < 2; i++) row_key_u32(&c->key, key[i]);
        c->rows->delete (c->rows->ctx, row_key_view(&c->key));
    }
    buf_clear(&e->gone_groups);
    for (size_t at = 0; at < e->gone_runs.len; at += RUN_KEY_BYTES) {
        c->rows->delete (c->rows->ctx, slice_make(e->gone_runs.at + at, RUN_KEY_BYTES));
    }
    buf_clear(&e->gone_runs);
    for (size_t at = 0; at < e->gone_letters.len; at += 16) {
        uint64_t key[2];
        memcpy(key, e->gone_letters.at + at, sizeof key);
        row_key_begin(&c->key, ROW_DEAD_LETTER);
        row_key_u32(&c->key, (uint32_t)key[0]);
        row_key_u64(&c->key, key[1]);
        c->rows->delete (c->rows->ctx, row_key_view(&c->key));
    }
    buf_clear(&e->gone_letters);
}

static void cut_queues(struct cutter *c)
{
    for (uint32_t i = 0; i < c->e->dirty_queues.count; i++) {
        struct queue *q = table_at(&c->e->queues, c->e->dirty_queues.at[i]);
        if (q == NULL || q->number == 0 || !q->dirty) continue;
        q->dirty = false;
        row_key_begin(&c->key, ROW_QUEUE);
        row_key_u32(&c->key, q->number);
        value_queue(&c->value, q);
        cut_put(c);
    }
    c->e->dirty_queues.count = 0;
}

static void cut_groups(struct cutter *c)
{
    for (uint32_t i = 0; i < c->e->dirty_groups.count; i++) {
        struct group *g = group_at(c->e, c->e->dirty_groups.at[i]);
        if (g == NULL || !g->dirty) continue;
        g->dirty = false;
        row_key_begin(&c->key, ROW_GROUP);
        row_key_u32(&c->key, g->queue);
        row_key_u32(&c->key, g->number);
        value_group(&c->value, g);
        cut_put(c);
    }
    c->e->dirty_groups.count = 0;
}

/* Remembers until when the lane's runs are readable from the store only after this cut. */
static void cut_part_add(struct engine *e, const struct partition *p)
{
    if (e->cut_part_count == e->cut_part_cap) {
        e->cut_part_cap = e->cut_part_cap == 0 ? 64 : e->cut_part_cap * 2;
        e->cut_parts = realloc(e->cut_parts, e->cut_part_cap * sizeof e->cut_parts[0]);
        must(e->cut_parts != NULL);
    }
    e->cut_parts[e->cut_part_count++] = (struct cut_part){engine_revision(e), p->number, p->tail};
}

/* The runs that are new, a bounded number a row, so that one can be read and given up in little time. */
static void cut_runs(struct cutter *c, struct partition *p)
{
    enum { RUNS_A_ROW = 512 };
    uint32_t first = p->run_count;
    uint64_t uncut = p->tail - p->uncut;
    if (p->uncut == 0) return;
    while (first > 0 && p->runs[first - 1].first >= uncut) first--;
    must(first < p->run_count && p->runs[first].first == uncut);
    for (uint32_t count; first < p->run_count; first += count) {
        count = p->run_count - first < RUNS_A_ROW ? p->run_count - first : RUNS_A_ROW;
        row_key_run(&c->key, p->queue, p->number, run_end(&p->runs[first + count - 1]) - 1);
        buf_put(&c->value, &p->runs[first], count * sizeof p->runs[0]);
        cut_put(c);
    }
    p->uncut = 0;
    cut_part_add(c->e, p);
}

static void cut_partitions(struct cutter *c)
{
    for (uint32_t i = 0; i < c->e->dirty_partitions.count; i++) {
        const struct lane *l = lane_at(c->e, c->e->dirty_partitions.at[i]);
        struct partition *p = l == NULL ? NULL : l->p;
        if (p == NULL || !p->dirty) continue;
        p->dirty = 0;
        p->cut_revision = engine_revision(c->e);
        row_key_lane(&c->key, p->queue, p->number);
        value_partition(&c->value, p);
        cut_put(c);
        cut_runs(c, p);
    }
    c->e->dirty_partitions.count = 0;
}

static void cut_cursors(struct cutter *c)
{
    for (uint32_t i = 0; i < c->e->dirty_cursors.count; i++) {
        struct cursor *k = slab_find(&c->e->cursors, c->e->dirty_cursors.at[i]);
        if (k == NULL || !(k->flags & CURSOR_DIRTY)) continue;
        k->flags &= (uint8_t)~CURSOR_DIRTY;
        struct partition *p = lane_at(c->e, k->partition)->p;
        p->cut_revision = engine_revision(c->e);
        row_key_lane(&c->key, p->queue, k->partition);
        row_key_u32(&c->key, k->group);
        value_cursor(&c->value, c->e, k);
        cut_put(c);
    }
    c->e->dirty_cursors.count = 0;
}

static void cut_dead_letters(struct cutter *c)
{
    struct engine *e = c->e;
    struct dead_letter d = {.sequence = e->dead_letter_cut};
    for (uint32_t at; (at = dead_letter_after(e, 0, d.sequence)) != 0;) {
        dead_letter_read(e, at, &d);
        row_key_begin(&c->key, ROW_DEAD_LETTER);
        row_key_u32(&c->key, d.queue);
        row_key_u64(&c->key, d.sequence);
        value_dead_letter(&c->value, &d, false);
        cut_put(c);
    }
    e->dead_letter_cut = e->dead_letter_last;
}

static void cut_kv(struct cutter *c)
{
    struct engine *e = c->e;
    char key[1 + KV_PATH_MAX];
    key[0] = ROW_KV;
    for (uint32_t i = 0; i < e->dirty_kv.count; i++) {
        struct kv_row *r = kv_row_at(e, e->dirty_kv.at[i]);
        memcpy(key + 1, r->bytes, r->path_len);
        kv_cut_made(e, e->dirty_kv.at[i]);
        kv_due_cut(r, c->rows);
        if (r->flags & KV_ROW_GONE) {
            c->rows->delete (c->rows->ctx, slice_make(key, 1U + r->path_len));
            continue;
        }
        value_kv(&c->value, e, r);
        c->rows->put(c->rows->ctx, slice_make(key, 1U + r->path_len), buf_view(&c->value));
        buf_clear(&c->value);
    }
    e->dirty_kv.count = 0;
}

/* Removed first: a path that came back in the same cut is put behind it. */
static void cut_gone_timers(struct cutter *c)
{
    struct engine *e = c->e;
    char path[1 + TIMER_PATH_MAX];
    path[0] = (char)ROW_TIMER_PATH;
    for (size_t at = 0; at < e->gone_timers.len; at += 16) {
        uint64_t key[2];
        memcpy(key, e->gone_timers.at + at, sizeof key);
        row_key_timer(&c->key, (int64_t)key[0], key[1]);
        c->rows->delete (c->rows->ctx, row_key_view(&c->key));
    }
    for (size_t at = 0; at < e->gone_timer_paths.len;) {
        uint16_t len;
        memcpy(&len, e->gone_timer_paths.at + at, sizeof len);
        memcpy(path + 1, e->gone_timer_paths.at + at + 2, len);
        c->rows->delete (c->rows->ctx, slice_make(path, 1U + len));
        at += 2U + len;
    }
    buf_clear(&e->gone_timers);
    buf_clear(&e->gone_timer_paths);
    if (e->gone_timer_paths.cap > 1 << 20) buf_free(&e->gone_timer_paths);
}

/* Both rows of one that is new, else the one that changed; its key may be another one than before. */
static void cut_timer(struct cutter *c, const struct timer *t)
{
    struct timer_body *b = t->body;
    if (b->cut && b->cut_due_us != t->due.key) {
        row_key_timer(&c->key, b->cut_due_us, t->due.tie);
        c->rows->delete (c->rows->ctx, row_key_view(&c->key));
    }
    row_key_timer(&c->key, t->due.key, t->due.tie);
    value_timer(&c->value, t);
    cut_put(c);
    if (!b->cut) {
        char path[1 + TIMER_PATH_MAX];
        path[0] = (char)ROW_TIMER_PATH;
        memcpy(path + 1, b->texts, b->path_len);
        buf_u64(&c->value, t->due.tie);
        c->rows->put(c->rows->ctx, slice_make(path, 1U + b->path_len), buf_view(&c->value));
        buf_clear(&c->value);
    }
    b->dirty = false;
    b->cut = true;
    b->cut_due_us = t->due.key;
    b->cut_revision = engine_revision(c->e);
}

static void cut_timers(struct cutter *c)
{
    struct engine *e = c->e;
    cut_gone_timers(c);
    for (uint32_t i = 0; i < e->dirty_timers.count; i++) {
        const struct timer *t = slab_find(&e->timers, e->dirty_timers.at[i]);
        if (t != NULL && t->due.tie != 0 && t->body != NULL && t->body->dirty) cut_timer(c, t);
    }
    e->dirty_timers.count = 0;
}

static void cut_segments(struct cutter *c)
{
    if (!c->e->segments_dirty) return;
    c->e->segments_dirty = false;
    for (int home = 0; home < HOME_COUNT; home++) {
        struct segments *s = &c->e->segments[home];
        segments_shorten(s);
        row_key_begin(&c->key, ROW_SEGMENT);
        c->key.bytes[c->key.len++] = (unsigned char)home;
        buf_u64(&c->value, s->base);
        if (s->count > 0) buf_put(&c->value, s->bytes, s->count * sizeof s->bytes[0]);
        cut_put(c);
    }
}

void engine_cut(struct engine *e, const struct engine_rows *rows)
{
    struct cutter c = {.e = e, .rows = rows};
    cut_gone(&c);
    cut_removed(&c);
    cut_queues(&c);
    cut_groups(&c);
    cut_partitions(&c);
    cut_cursors(&c);
    cut_dead_letters(&c);
    dedup_cut(e->dedup, rows, engine_revision(e), e->last_head.wall_us / 1000);
    cut_kv(&c);
    cut_timers(&c);
    cut_segments(&c);
    moved_cut(e, rows);
    row_key_begin(&c.key, ROW_META);
    value_meta(&c.value, e);
    cut_put(&c);
    buf_free(&c.value);
}

uint64_t engine_cut_size(const struct engine *e)
{
    return (uint64_t)e->dirty_queues.count + e->dirty_groups.count + e->dirty_partitions.count + e->dirty_cursors.count +
           e->gone_queues.count + e->gone_cursors.len / 12 + e->gone_groups.len / 8 + e->gone_runs.len / RUN_KEY_BYTES +
           e->gone_letters.len / 16 + e->dirty_kv.count + e->dirty_timers.count + e->gone_timers.len / 16 +
           (e->dead_letter_last - e->dead_letter_cut) + e->moved.dirty + e->moved.letter_count + dedup_cut_size(e->dedup);
}

uint64_t engine_unstored_bytes(const struct engine *e)
{
    enum { ROW_BYTES = 64 };
    return e->kv_unstored_bytes + e->moved.bytes + e->moved.letters.len + engine_cut_size(e) * ROW_BYTES;
}

void engine_cut_stored(struct engine *e, uint64_t revision)
{
    uint32_t i = 0;
    dedup_cut_stored(e->dedup, revision);
    kv_cut_stored(e, revision);
    kv_values_bound(e, KV_LOOKS);
    moved_stored(e, revision);
    for (; i < e->cut_part_count && e->cut_parts[i].revision <= revision; i++) {
        const struct cut_part *part = &e->cut_parts[i];
        const struct lane *l = lane_at(e, part->partition);
        struct partition *p = l == NULL ? NULL : l->p;
        if (p == NULL) continue;
        uint64_t after = part->tail > p->start ? part->tail : p->start;
        p->unstored = (uint32_t)(p->tail - after);
        run_trim(e, p);
    }
    if (i > 0) {
        e->cut_part_count -= i;
        memmove(e->cut_parts, e->cut_parts + i, e->cut_part_count * sizeof e->cut_parts[0]);
    }
    if (e->cut_part_count == 0 && e->cut_part_cap > 65536) {
        free(e->cut_parts);
        e->cut_parts = NULL;
        e->cut_part_cap = 0;
    }
    e->cut_stored = revision;
    lanes_rest(e);
    timers_rest(e);
}

/* ---- load ----------------------------------------------------------------------------------------------------------- */

struct value_reader {
    const char *at, *end;
    bool bad;
};

static inline __attribute__((always_inline)) struct slice value_bytes(struct value_reader *r, size_t len)
{
    if (r->bad || (size_t)(r->end - r->at) < len) {
        r->bad = true;
        return slice_of("");
    }
    struct slice s = slice_make(r->at, len);
    r->at += len;
    return s;
}

static inline __attribute__((always_inline)) void value_into(struct value_reader *r, void *out, size_t len)
{
    struct slice s = value_bytes(r, len);
    memset(out, 0, len);
    if (s.len == len) memcpy(out, s.at, len);
}

static uint8_t value_u8(struct value_reader *r)
{
    uint8_t v;
    value_into(r, &v, sizeof v);
    return v;
}

static uint16_t value_u16(struct value_reader *r)
{
    uint16_t v;
    value_into(r, &v, sizeof v);
    return v;
}

static uint32_t value_u32(struct value_reader *r)
{
    uint32_t v;
    value_into(r, &v, sizeof v);
    return v;
}

static uint64_t value_u64(struct value_reader *r)
{
    uint64_t v;
    value_into(r, &v, sizeof v);
    return v;
}

static struct slice value_text(struct value_reader *r)
{
    return value_bytes(r, value_u16(r));
}

static const char *load_meta(struct engine *e, struct value_reader *v)
{
    if (value_u32(v) != META_VERSION) return "the state was written by another version of this program";
    e->seed = value_u64(v);
    e->applied_index = value_u64(v);
    e->queue_last = value_u32(v);
    e->partition_last = value_u32(v);
    e->group_last = value_u32(v);
    e->dead_letter_last = e->dead_letter_cut = value_u64(v);
    e->kv_version = value_u64(v);
    e->timer_last = value_u64(v);
    e->safe_us = (int64_t)value_u64(v);
    e->digest = value_u64(v);
    struct slice head = value_bytes(v, ENTRY_HEAD_BYTES);
    if (v->bad || !entry_head_read(head, &e->last_head)) return "the meta row is damaged";
    e->log_us = e->last_head.log_us;
    e->wall_us = e->last_head.wall_us;
    return NULL;
}

static const char *load_queue(struct engine *e, struct key_reader *k, struct value_reader *v)
{
    uint32_t number = key_u32(k);
    struct uuid tenant;
    value_into(v, tenant.bytes, 16);
    int64_t created_us = (int64_t)value_u64(v);
    uint64_t messages = value_u64(v), bytes = value_u64(v), pushed = value_u64(v);
    bool deleted = value_u8(v);
    struct slice numbers = value_bytes(v, sizeof(((struct queue_options *)0)->numbers));
    struct slice name = value_text(v), sink_hold = value_text(v), name_space = value_text(v), task = value_text(v);
    if (v->bad || k->bad || number == 0 || number > e->queue_last || name.len > NAMES_BYTES_MAX)
        return "a queue row is damaged";
    struct queue *q = queue_add(e, number, tenant, name, created_us);
    q->messages = messages;
    q->bytes = bytes;
    q->pushed_total = pushed;
    memcpy(q->options.numbers, numbers.at, numbers.len);
    options_set_text(&q->options.sink_hold, sink_hold);
    options_set_text(&q->options.name_space, name_space);
    options_set_text(&q->options.task, task);
    q->deleted = deleted;
    queue_loaded(e, q);
    return NULL;
}

/* The queue of a row, also a deleted one that is not reaped yet. */
static struct queue *queue_of_row(const struct engine *e, uint32_t number)
{
    struct queue *q = table_at(&e->queues, number);
    return q == NULL || q->number == 0 ? NULL : q;
}

static const char *load_group(struct engine *e, struct key_reader *k, struct value_reader *v)
{
    struct queue *q = queue_of_row(e, key_u32(k));
    uint32_t number = key_u32(k);
    bool registered = value_u8(v), conflates = value_u8(v), retired = value_u8(v);
    uint8_t mode = value_u8(v);
    int64_t from_us = (int64_t)value_u64(v);
    uint32_t scan = value_u32(v);
    int64_t turn = (int64_t)value_u64(v), shift_us = (int64_t)value_u64(v);
    struct slice name = value_text(v);
    if (v->bad || k->bad || q == NULL || number == 0 || number > e->group_last || name.len > NAMES_BYTES_MAX) {
        return "a consumer group's row is damaged";
    }
    struct group *g = group_add(e, q, number, name);
    g->registered = registered;
    g->conflates = conflates;
    g->mode = mode;
    g->from_us = from_us;
    g->scan = scan;
    g->ready_turn_last = turn;
    g->delay_shift_us = shift_us;
    if (retired) group_retire(e, q, g);
    return NULL;
}

static struct key_reader key_behind_kind(struct slice key)
{
    return (struct key_reader){.at = (const unsigned char *)key.at + 1, .end = (const unsigned char *)key.at + key.len};
}

bool row_lane_read(struct slice key, struct slice value, struct lane_row *out)
{
    struct key_reader k = key_behind_kind(key);
    struct value_reader v = {.at = value.at, .end = value.at + value.len};
    out->queue = key_u32(&k);
    out->number = key_u32(&k);
    out->tail = value_u64(&v);
    out->start = value_u64(&v);
    out->created_us = (int64_t)value_u64(&v);
    out->last_created_us = (int64_t)value_u64(&v);
    out->start_us = (int64_t)value_u64(&v);
    out->bytes = value_u64(&v);
    out->last_lease_s = value_u32(&v);
    out->name = value_text(&v);
    return key.len == LANE_KEY_BYTES && !v.bad && out->start <= out->tail && out->name.len <= NAMES_BYTES_MAX;
}

bool row_cursor_read(struct slice key, struct slice value, struct cursor_row *out)
{
    struct key_reader k = key_behind_kind(key);
    struct value_reader v = {.at = value.at, .end = value.at + value.len};
    out->queue = key_u32(&k);
    out->partition = key_u32(&k);
    out->group = key_u32(&k);
    out->committed = (int64_t)value_u64(&v);
    out->attempt_start = value_u64(&v);
    out->attempt = value_u32(&v);
    out->retries = value_u16(&v);
    out->flags = value_u8(&v) & (uint8_t)~CURSOR_DIRTY;
    out->state = value_u8(&v);
    out->turn_or_due = (int64_t)value_u64(&v);
    uint8_t has = value_u8(&v);
    out->leased = has & CURSOR_HAS_LEASE;
    out->remembered = has & CURSOR_HAS_HISTORY;
    if (out->leased) {
        value_into(&v, out->lease.id.bytes, 16);
        out->lease.first = value_u64(&v);
        out->lease.last = value_u64(&v);
        out->lease.expiry_us = (int64_t)value_u64(&v);
    }
    if (out->remembered) {
        value_into(&v, out->history.id.bytes, 16);
        out->history.low = value_u64(&v);
        out->history.high = value_u64(&v);
    }
    return key.len == CURSOR_KEY_BYTES && !v.bad && out->state <= CURSOR_DELAYED &&
           (out->state != CURSOR_LEASED || out->leased);
}

bool row_run_key_read(struct slice key, uint32_t *partition, uint64_t *last_offset)
{
    struct key_reader k = key_behind_kind(key);
    key_u32(&k);
    *partition = key_u32(&k);
    *last_offset = key_u64(&k);
    return !k.bad && key.len == RUN_KEY_BYTES;
}

static const char *load_dead_letter(struct engine *e, struct key_reader *k, struct value_reader *v)
{
    struct queue *q = queue_of_row(e, key_u32(k));
    struct dead_letter d = {.sequence = key_u64(k)};
    d.partition = value_u32(v);
    d.group = value_u32(v);
    d.retries = value_u32(v);
    d.item = value_u32(v);
    d.offset = value_u64(v);
    d.where = value_u64(v);
    d.block_bytes = value_u32(v);
    d.created_us = (int64_t)value_u64(v);
    d.failed_us = (int64_t)value_u64(v);
    d.error = value_text(v);
    if (k->bad || v->bad || q == NULL) return "a dead letter's row is damaged";
    d.queue = q->number;
    dead_letter_add(e, &d);
    return NULL;
}

bool row_kv_read(struct slice stored, struct kv_stored *out)
{
    struct value_reader v = {.at = stored.at, .end = stored.at + stored.len};
    out->space_len = value_u8(&v);
    out->version = value_u64(&v);
    out->updated_us = (int64_t)value_u64(&v);
    out->expires_us = (int64_t)value_u64(&v);
    out->value = slice_make(v.at, (size_t)(v.end - v.at));
    return !v.bad;
}

static const char *load_kv(struct engine *e, struct slice path, struct slice value)
{
    struct kv_stored row;
    if (!row_kv_read(value, &row)) return "a KV row is damaged";
    size_t before = 17U + row.space_len;
    if (path.len <= before || path.len > KV_PATH_MAX || row.space_len > KV_NAME_SPACE_BYTES_MAX || path.at[before - 1] != 0 ||
        row.version == 0 || row.version > e->kv_version) {
        return "a KV row is damaged";
    }
    kv_row_load(e, path, &row);
    return NULL;
}

bool row_timer_read(struct slice key, struct slice value, struct timer_row *out)
{
    struct key_reader k = key_behind_kind(key);
    struct value_reader v = {.at = value.at, .end = value.at + value.len};
    out->due_us = (int64_t)key_u64(&k);
    out->sequence = key_u64(&k);
    out->where = value_u64(&v);
    out->block_bytes = value_u32(&v);
    out->item_bytes = value_u32(&v);
    value_into(&v, out->message.bytes, 16);
    out->created_us = (int64_t)value_u64(&v);
    out->updated_us = (int64_t)value_u64(&v);
    out->queue_len = value_u16(&v);
    out->path = value_text(&v);
    out->partition = value_text(&v);
    out->transaction = value_text(&v);
    return !v.bad && !k.bad && key.len == TIMER_ROW_KEY_BYTES && out->sequence != 0 && out->path.len <= TIMER_PATH_MAX &&
           out->path.len > 18U + out->queue_len;
}

static const char *load_timer(struct engine *e, struct slice key, struct slice value)
{
    struct timer_row row;
    if (!row_timer_read(key, value, &row) || row.sequence > e->timer_last) return "a timer's row is damaged";
    timer_load(e, &row);
    return NULL;
}

static const char *load_segments(struct engine *e, struct slice key, struct slice value)
{
    if (key.len != 2 || (unsigned char)key.at[1] >= HOME_COUNT || value.len < 8 || value.len % 8 != 0)
        return "the row of live segments is damaged";
    struct segments *s = &e->segments[(unsigned char)key.at[1]];
    memcpy(&s->base, value.at, 8);
    s->count = value.len / 8 - 1;
    s->bytes = malloc(s->count * 8 + 8);
    must(s->bytes != NULL);
    memcpy(s->bytes, value.at + 8, s->count * 8);
    return NULL;
}

const char *engine_load_row(struct engine *e, struct slice key, struct slice value)
{
    if (key.len == 0) return "a row has no key";
    struct key_reader k = key_behind_kind(key);
    struct value_reader v = {.at = value.at, .end = value.at + value.len};
    switch ((enum row_kind)(unsigned char)key.at[0]) {
    case ROW_META:
        return load_meta(e, &v);
    case ROW_QUEUE:
        return load_queue(e, &k, &v);
    case ROW_GROUP:
        return load_group(e, &k, &v);
    case ROW_LANE:
        return key.len == CURSOR_KEY_BYTES ? lane_load_cursor(e, key, value) : lane_load(e, key, value);
    case ROW_DEAD_LETTER:
        return load_dead_letter(e, &k, &v);
    case ROW_DEDUP:
    case ROW_DEDUP_GENERATION:
    case ROW_DEDUP_FILTER:
        return dedup_load(e->dedup, key, value, e->last_head.wall_us / 1000);
    case ROW_SEGMENT:
        return load_segments(e, key, value);
    case ROW_KV:
        return load_kv(e, slice_make(key.at + 1, key.len - 1), value);
    case ROW_TIMER:
        return load_timer(e, key, value);
    case ROW_RUN:
    case ROW_KV_DUE:
    case ROW_TIMER_PATH:
    case ROW_DEDUP_RECORDS:
        return NULL;
    }
    return "a row of unknown kind";
}

const char *engine_loaded(struct engine *e, uint64_t applied_index)
{
    lanes_loaded(e);
    if (e->applied_index != applied_index) return "the state and its applied index do not belong together";
    const char *wrong = dedup_loaded(e->dedup);
    if (wrong != NULL) return wrong;
    group_restore_ready(e, e->loaded_ready.at, e->loaded_ready.count);
    free(e->loaded_ready.at);
    e->loaded_ready = (struct numbers){0};
    for (uint32_t i = 0; i < e->dirty_cursors.count; i++) {
        cursor_at(e, e->dirty_cursors.at[i])->flags &= (uint8_t)~CURSOR_DIRTY;
    }
    e->dirty_cursors.count = 0;
    return NULL;
}

/* ---- digest --------------------------------------------------------------------------------------------------------- */

struct digester {
    const struct engine *e;
    struct hash128_pair sum;
    struct buf b;
    uint32_t partition;
};

/* The sum of row hashes does not depend on the order in which tables are walked. */
static void digest_add(struct digester *d, enum row_kind kind, uint64_t number)
{
    buf_byte(&d->b, (char)kind);
    buf_u64(&d->b, number);
    struct hash128 h = hash128(buf_view(&d->b), 0);
    d->sum.low += h.low;
    d->sum.high += h.high;
    buf_clear(&d->b);
}

static void digest_run(void *ctx, const struct run *r)
{
    struct digester *d = ctx;
    /* Runs of one append may be split or joined by nothing but dedup, so they are logical; where and block size are not. */
    buf_u64(&d->b, r->first);
    buf_u32(&d->b, r->count);
    buf_u32(&d->b, r->item0);
    buf_u32(&d->b, r->bytes);
    buf_u64(&d->b, (uint64_t)r->created_us);
    digest_add(d, ROW_RUN, d->partition);
}

static void digest_partition(struct digester *d, const struct partition *p)
{
    const struct engine *e = d->e;
    value_partition(&d->b, p);
    digest_add(d, ROW_LANE, p->number);
    d->partition = p->number;
    run_each(e, p, digest_run, d);
    for (uint32_t at = cursor_live(e, p->cursors); at != 0; at = cursor_live(e, cursor_at(e, at)->next)) {
        const struct cursor *c = cursor_at(e, at);
        value_cursor(&d->b, e, c);
        digest_add(d, ROW_LANE, (uint64_t)c->group << 32 | p->number);
    }
}

static void digest_dedup(void *ctx, const struct dedup_record *r)
{
    struct digester *d = ctx;
    buf_put(&d->b, r, sizeof *r);
    digest_add(d, ROW_DEDUP, 0);
}

static void digest_queue(struct digester *d, const struct queue *q)
{
    const struct engine *e = d->e;
    value_queue(&d->b, q);
    digest_add(d, ROW_QUEUE, q->number);
    for (uint32_t n = q->groups; n != 0; n = group_at(e, n)->next) {
        value_group(&d->b, group_at(e, n));
        digest_add(d, ROW_GROUP, n);
    }
    struct lane_walk w;
    const struct partition *p;
    lane_walk_begin(&w, e, q->partition_first);
    while ((p = lane_walk_next(&w)) != NULL) digest_partition(d, p);
}

/* What is past may have been swept or not. */
static bool digest_passes(const struct digester *d, int64_t expires_us)
{
    return expires_us != 0 && expires_us <= d->e->last_head.wall_us + d->e->last_head.count;
}

static void digest_kv_at_rest(void *ctx, struct slice path, struct slice stored)
{
    struct digester *d = ctx;
    struct kv_stored row;
    must(row_kv_read(stored, &row));
    if (digest_passes(d, row.expires_us)) return;
    buf_slice(&d->b, path);
    buf_slice(&d->b, stored);
    digest_add(d, ROW_KV, row.version);
}

static void digest_kv(struct digester *d)
{
    const struct engine *e = d->e;
    struct tree_place p = tree_seek(&e->kv_order, slice_of(""));
    uint32_t at;
    while ((at = tree_next(&p)) != 0) {
        const struct kv_row *r = kv_row_at(e, at);
        if (digest_passes(d, kv_row_expires_us(r))) continue;
        buf_slice(&d->b, kv_row_path(r));
        bool absent = kv_value_absent(r);
        value_kv(&d->b, e, r);
        digest_add(d, ROW_KV, r->version);
        if (absent) kv_value_leave((struct engine *)(uintptr_t)e, kv_row_at(e, at));
    }
    kv_rest_each((struct engine *)(uintptr_t)e, digest_kv_at_rest, d);
}

/* But for the place, with which its value begins. */
static void digest_timer(struct digester *d, const struct timer *t, struct slice value)
{
    must(value.len > 8);
    buf_slice(&d->b, slice_make(value.at + 8, value.len - 8));
    buf_u64(&d->b, (uint64_t)t->due.key);
    digest_add(d, ROW_TIMER, t->due.tie);
}

static void digest_timer_at_rest(void *ctx, const struct timer *t, const struct timer_row *row, struct slice value)
{
    (void)row;
    digest_timer(ctx, t, value);
}

static void digest_timers(struct digester *d)
{
    struct tree_place p = tree_seek(&d->e->timer_order, slice_of(""));
    struct buf value = {0};
    for (uint32_t at; (at = tree_next(&p)) != 0;) {
        buf_clear(&value);
        value_timer(&value, timer_at(d->e, at));
        digest_timer(d, timer_at(d->e, at), buf_view(&value));
    }
    buf_free(&value);
    timers_at_rest(d->e, digest_timer_at_rest, d);
}

struct hash128_pair engine_digest(struct engine *e)
{
    struct digester d = {.e = e};
    for (uint32_t n = 1; n <= e->queue_last; n++) {
        if (queue_at(e, n) != NULL) digest_queue(&d, queue_at(e, n));
    }
    struct dead_letter letter = {0};
    for (uint32_t at; (at = dead_letter_after(e, 0, letter.sequence)) != 0;) {
        dead_letter_read(e, at, &letter);
        if (queue_at(e, letter.queue) == NULL) continue;
        value_dead_letter(&d.b, &letter, true);
        digest_add(&d, ROW_DEAD_LETTER, letter.sequence);
    }
    dedup_each(e->dedup, e->last_head.wall_us / 1000, digest_dedup, &d);
    digest_kv(&d);
    digest_timers(&d);
    buf_u64(&d.b, e->kv_version);
    buf_u64(&d.b, e->timer_last);
    buf_u64(&d.b, e->seed);
    buf_u32(&d.b, e->queue_last);
    buf_u32(&d.b, e->partition_last);
    buf_u32(&d.b, e->group_last);
    buf_u64(&d.b, e->dead_letter_last);
    digest_add(&d, ROW_META, e->applied_index);
    buf_free(&d.b);
    return d.sum;
}
