/* Places: who holds which payload bytes, and what happens when they move.
 *
 *   engine_lane_holders .. -> the caller copies -> engine_move
 *     run      in memory and, unless it is so new that no cut had it, in a stored row: that one is read, changed and kept here
 *              (struct moved_row) until the store has it. Who reads rows of runs sees it instead of the store's
 *     timer    its row is read if it is at rest, and cut again
 *     letter   the same
 *
 * A moved row that is given up, or whose queue is gone, is not put again: what is gone stays gone. While a deleted queue is being reaped its
 * rows are still kept right: after a restart they say which segments get what back. Nothing here is part of the state that nodes
 * share: neither results nor digests depend on places. */
#include <stdlib.h>

#include "base/planted.h"
#include "engine/engine_internal.h"

/* The row of a letter that moved; its value follows. */
struct moved_letter {
    uint32_t queue, len;
    uint64_t sequence; /* 0: it was given up since */
};

static uint64_t key_hash(struct slice key)
{
    return hash64(key, 2);
}

static struct moved_row *moved_at(const struct engine *e, uint32_t at)
{
    return slab_at(&e->moved.rows, at);
}

void moved_init(struct engine *e)
{
    slab_init(&e->moved.rows, sizeof(struct moved_row));
}

void moved_free(struct engine *e)
{
    for (uint32_t i = 0; i < e->moved.list.count; i++) free(moved_at(e, e->moved.list.at[i])->value);
    slab_free(&e->moved.rows);
    idmap_free(&e->moved.keys);
    free(e->moved.list.at);
    buf_free(&e->moved.letters);
}

uint64_t engine_revision(const struct engine *e)
{
    return e->applied_index + e->moved.count + e->reaped_steps;
}

/* ---- rows that the store does not have yet -------------------------------------------------------------------------- */

static uint32_t moved_number(const struct engine *e, struct slice key)
{
    uint32_t at = 0, number;
    uint64_t hash = key_hash(key);
    must(key.len == RUN_KEY_BYTES);
    while ((number = idmap_next(&e->moved.keys, hash, &at)) != 0) {
        if (memcmp(moved_at(e, number)->key, key.at, RUN_KEY_BYTES) == 0) return number;
    }
    return 0;
}

const struct moved_row *moved_find(const struct engine *e, struct slice key)
{
    uint32_t number = e->moved.list.count == 0 ? 0 : moved_number(e, key);
    return number == 0 ? NULL : moved_at(e, number);
}

static void moved_touch(struct engine *e, struct moved_row *m)
{
    if (!m->dirty) e->moved.dirty++;
    m->dirty = true;
}

static uint32_t moved_add(struct engine *e, const struct partition *p, struct slice key, struct slice value)
{
    uint32_t number = slab_add(&e->moved.rows);
    struct moved_row *m = moved_at(e, number);
    m->queue = p->queue;
    m->partition = p->number;
    m->len = value.len;
    m->value = malloc(value.len);
    must(m->value != NULL);
    memcpy(m->value, value.at, value.len);
    e->moved.bytes += value.len;
    memcpy(m->key, key.at, RUN_KEY_BYTES);
    idmap_add(&e->moved.keys, key_hash(key), number);
    numbers_add(&e->moved.list, number);
    return number;
}

static void moved_free_row(struct engine *e, uint32_t number)
{
    e->moved.bytes -= moved_at(e, number)->len;
    free(moved_at(e, number)->value);
    slab_remove(&e->moved.rows, number);
}

/* It stays in the list, of which it goes in the next cut. */
static void moved_leave(struct engine *e, uint32_t number)
{
    struct moved_row *m = moved_at(e, number);
    idmap_remove(&e->moved.keys, key_hash(slice_make((char *)m->key, RUN_KEY_BYTES)), number);
    if (m->dirty) e->moved.dirty--;
    m->dirty = false;
    m->gone = true;
    if (e->moved.last == number) e->moved.last = 0;
}

void moved_gone(struct engine *e, struct slice key)
{
    uint32_t number = e->moved.list.count == 0 ? 0 : moved_number(e, key);
    if (number != 0) moved_leave(e, number);
}

void moved_letter_gone(struct engine *e, uint64_t sequence)
{
    struct moved_letter m;
    for (size_t at = 0; at < e->moved.letters.len; at += sizeof m + m.len) {
        memcpy(&m, e->moved.letters.at + at, sizeof m);
        if (m.sequence != sequence) continue;
        m.sequence = 0;
        memcpy(e->moved.letters.at + at, &m, sizeof m);
    }
}

static void letters_cut(struct engine *e, const struct engine_rows *rows)
{
    struct moved_letter m;
    for (size_t at = 0; at < e->moved.letters.len; at += sizeof m + m.len) {
        memcpy(&m, e->moved.letters.at + at, sizeof m);
        const struct queue *q = table_at(&e->queues, m.queue);
        if (m.sequence == 0 || q == NULL || q->number == 0) continue;
        struct row_key key;
        row_key_begin(&key, ROW_DEAD_LETTER);
        row_key_u32(&key, m.queue);
        row_key_u64(&key, m.sequence);
        rows->put(rows->ctx, row_key_view(&key), slice_make(e->moved.letters.at + at + sizeof m, m.len));
    }
    e->moved.letter_count = 0;
    buf_clear(&e->moved.letters);
}

void moved_cut(struct engine *e, const struct engine_rows *rows)
{
    letters_cut(e, rows);
    struct numbers *list = &e->moved.list;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        uint32_t number = list->at[i];
        struct moved_row *m = moved_at(e, number);
        const struct queue *q = table_at(&e->queues, m->queue);
        if (!m->gone && (q == NULL || q->number == 0)) moved_leave(e, number);
        if (m->gone) {
            moved_free_row(e, number);
            continue;
        }
        list->at[kept++] = number;
        if (!m->dirty) continue;
        m->dirty = false;
        e->moved.dirty--;
        m->cut_revision = engine_revision(e);
        rows->put(rows->ctx, slice_make((char *)m->key, RUN_KEY_BYTES), slice_make(m->value, m->len));
    }
    list->count = kept;
}

void moved_stored(struct engine *e, uint64_t revision)
{
    struct numbers *list = &e->moved.list;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        uint32_t number = list->at[i];
        struct moved_row *m = moved_at(e, number);
        if (!m->gone && !m->dirty && m->cut_revision <= revision) moved_leave(e, number);
        if (m->gone) {
            moved_free_row(e, number);
        } else {
            list->at[kept++] = number;
        }
    }
    list->count = kept;
}

/* ---- who holds ------------------------------------------------------------------------------------------------------ */

struct holders {
    uint64_t first, end, next;
    int64_t until_us;
    uint32_t lane, left;
    bool pushed, over; /* over: what follows is not wanted */
    void (*found)(void *ctx, const struct holder *h);
    void *ctx;
};

static bool run_holds(void *ctx, const struct run *r)
{
    struct holders *s = ctx;
    bool fired = r->bytes & RUN_BYTES_OWN_ID;
    /* What is pushed to a lane lies in the order of the log. */
    bool behind = s->pushed && !fired && !(r->where & PLACE_ARCHIVE) && r->where >= s->end;
    s->over = behind || r->created_us > s->until_us;
    if (s->over) return false;
    s->next = run_end(r);
    if (r->where >= s->first && r->where < s->end) {
        struct holder h = {.where = r->where,
                           .number = r->first,
                           .us = r->created_us,
                           .bytes = r->block_bytes,
                           .at = s->lane,
                           .kind = HOLDER_RUN};
        s->found(s->ctx, &h);
    }
    return --s->left > 0;
}

bool engine_lane_holders(struct engine *e, struct lane_look *l, uint64_t first, uint64_t end, uint32_t looks,
                         void (*found)(void *ctx, const struct holder *h), void *ctx)
{
    struct partition *p = NULL;
    must(looks > 0);
    if (l->partition != 0) {
        p = partition_at(e, l->partition);
    } else {
        struct queue *q = queue_find(e, l->tenant, l->queue);
        if (q != NULL) p = partition_find(e, q, l->lane);
    }
    if (p == NULL) return true;
    l->partition = p->number;
    if (l->next == 0) l->next = run_offset_at(e, p, l->from_us);
    if (l->next < p->start) l->next = p->start;
    struct holders s = {.first = first,
                        .end = end,
                        .next = l->next,
                        .until_us = l->until_us,
                        .lane = p->number,
                        .left = looks,
                        .pushed = l->pushed,
                        .found = found,
                        .ctx = ctx};
    if (s.next < p->tail) run_each_from(e, p, s.next, run_holds, &s);
    l->next = s.next;
    return s.over || s.next >= p->tail;
}

static uint32_t timers_high(const struct engine *e)
{
    return e->timers.chunk_high << SLAB_CHUNK_BITS;
}

bool engine_timer_holders(struct engine *e, uint64_t *next, uint64_t first, uint64_t end, uint32_t looks,
                          void (*found)(void *ctx, const struct holder *h), void *ctx)
{
    enum { LOOKS_OF_A_READ = 16 }; /* what is at rest costs as much */
    uint32_t at = *next == 0 ? 1 : (uint32_t)*next;
    for (; at < timers_high(e) && looks > 0; at++, looks--) {
        const struct timer *t = slab_find(&e->timers, at);
        if (t == NULL || t->due.tie == 0 || t->where < first || t->where >= end) continue; /* 0: a free record */
        if (t->body == NULL) looks = looks > LOOKS_OF_A_READ ? looks - LOOKS_OF_A_READ : 1;
        const struct timer_body *body = timer_open(e, at);
        struct holder h = {.where = t->where,
                           .number = t->due.tie,
                           .us = t->due.key,
                           .bytes = body->block_bytes,
                           .at = at,
                           .kind = HOLDER_TIMER};
        memcpy(h.tenant.bytes, body->texts, sizeof h.tenant.bytes);
        found(ctx, &h);
    }
    *next = at;
    return at >= timers_high(e);
}

bool engine_letter_holders(struct engine *e, uint64_t *next, uint64_t first, uint64_t end, uint32_t looks,
                           void (*found)(void *ctx, const struct holder *h), void *ctx)
{
    for (uint32_t at; looks > 0; looks--) {
        struct dead_letter d;
        if ((at = dead_letter_after(e, 0, *next)) == 0) return true;
        dead_letter_read(e, at, &d);
        *next = d.sequence;
        if (d.where < first || d.where >= end) continue;
        struct holder h = {
            .where = d.where, .number = d.sequence, .us = d.created_us, .bytes = d.block_bytes, .kind = HOLDER_LETTER};
        found(ctx, &h);
    }
    return false;
}

uint64_t engine_archive_last(const struct engine *e)
{
    const struct segments *s = &e->segments[HOME_ARCHIVE];
    for (uint64_t i = s->count; i-- > 0;)
        if (s->bytes[i] > 0) return PLACE_ARCHIVE | (s->base + i) << e->options.segment_shift;
    return 0;
}

/* ---- moving --------------------------------------------------------------------------------------------------------- */

/* The run in a row, or NULL. `at`: where it begins. */
static bool row_run(const char *value, size_t len, uint64_t first, size_t *at, struct run *out)
{
    for (*at = 0; *at + sizeof *out <= len; *at += sizeof *out) {
        memcpy(out, value + *at, sizeof *out);
        if (out->first >= first) return out->first == first;
    }
    return false;
}

struct row_take {
    struct engine *e;
    const struct partition *p;
    uint64_t first;
    uint32_t number; /* of the row found; 0 = none */
};

static bool row_take(void *ctx, struct slice key, struct slice value)
{
    struct row_take *t = ctx;
    struct run r;
    size_t at;
    if (!row_run(value.at, value.len, t->first, &at, &r)) return false;
    t->number = moved_number(t->e, key);
    if (t->number == 0) t->number = moved_add(t->e, t->p, key, value);
    return false;
}

/* The moved row that holds the run: the one of the last move, or read. */
static struct moved_row *moved_take(struct engine *e, const struct partition *p, uint64_t first)
{
    struct run r;
    size_t at;
    if (e->moved.last != 0) {
        struct moved_row *m = moved_at(e, e->moved.last);
        if (m->partition == p->number && row_run(m->value, m->len, first, &at, &r)) return m;
    }
    struct row_take t = {.e = e, .p = p, .first = first};
    run_rows_of(e, p, first, row_take, &t);
    e->moved.last = t.number;
    return t.number == 0 ? NULL : moved_at(e, t.number);
}

static struct run *run_in_memory(struct partition *p, uint64_t first)
{
    uint32_t low = 0, high = p->run_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (p->runs[middle].first < first) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < p->run_count && p->runs[low].first == first ? &p->runs[low] : NULL;
}

static void bytes_move(struct engine *e, uint64_t from, uint64_t to, uint64_t bytes)
{
    segment_release(e, from, bytes);
    segment_hold(e, to, bytes);
    e->moved.count++;
}

static bool run_move(struct engine *e, const struct holder *h, uint64_t to)
{
    struct partition *p = partition_at(e, h->at);
    if (p == NULL || h->number < p->start || h->number >= p->tail) return false;
    struct run *kept = run_in_memory(p, h->number), r;
    if (kept != NULL && kept->where != h->where) return false;
    if (h->number < p->tail - p->uncut) { /* a row has it */
        if (h->number >= p->tail - p->unstored) return false;
        struct moved_row *m = moved_take(e, p, h->number);
        size_t at;
        if (m == NULL || !row_run(m->value, m->len, h->number, &at, &r) || r.where != h->where) return false;
        r.where = to;
        memcpy(m->value + at, &r, sizeof r);
        if (!PLANTED("move-not-stored")) moved_touch(e, m);
        run_cache_forget(e, p->number);
    } else {
        if (kept == NULL) return false;
        r = *kept;
    }
    if (kept != NULL) kept->where = to;
    bytes_move(e, h->where, to, r.bytes & RUN_BYTES_MASK);
    return true;
}

static bool timer_move(struct engine *e, const struct holder *h, uint64_t to)
{
    struct timer *t = h->at < timers_high(e) ? slab_find(&e->timers, h->at) : NULL;
    if (t == NULL || t->due.tie != h->number || t->where != h->where) return false;
    struct timer_body *body = timer_open(e, h->at);
    t->where = to;
    bytes_move(e, h->where, to, body->item_bytes);
    timer_touch(e, body);
    return true;
}

static bool letter_move(struct engine *e, const struct holder *h, uint64_t to)
{
    struct dead_letter d;
    uint32_t at = dead_letter_at(e, h->number);
    if (at == 0) return false;
    dead_letter_read(e, at, &d);
    if (d.where != h->where || queue_at(e, d.queue) == NULL) return false;
    dead_letter_place(e, at, to);
    bytes_move(e, h->where, to, LETTER_HOLDS);
    if (h->number > e->dead_letter_cut) return true;
    struct buf value = {0};
    d.where = to;
    value_dead_letter(&value, &d, false);
    struct moved_letter m = {.queue = d.queue, .len = (uint32_t)value.len, .sequence = d.sequence};
    buf_put(&e->moved.letters, (const char *)&m, sizeof m);
    buf_slice(&e->moved.letters, buf_view(&value));
    buf_free(&value);
    e->moved.letter_count++;
    return true;
}

bool engine_move(struct engine *e, const struct holder *h, uint64_t to)
{
    switch ((enum holder_kind)h->kind) {
    case HOLDER_RUN:
        return run_move(e, h, to);
    case HOLDER_TIMER:
        return timer_move(e, h, to);
    case HOLDER_LETTER:
        return letter_move(e, h, to);
    }
    return false;
}
