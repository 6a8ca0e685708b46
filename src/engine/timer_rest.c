/* Timers at rest: what is in memory of a pending timer, and what is in the store only.
 *
 *   scheduled -> dirty -> in a cut -> the store has it: may leave -> [wanted: read back] -> may leave again
 *
 * Every timer has a stub (struct timer): when it is due, its sequence, where its message is; and a place in the index of paths, as a
 * hash. Its names and all else are a body (struct timer_body), which is in memory while it was wanted lately. Bodies are in the order
 * in which they were last wanted; the oldest leave when there are more of them than the budget has room for, and those that may not leave
 * yet hold up the ones behind them: a cut that is under way ends that. Two rows are of a timer: one by when it is due, which is
 * what fires it, and one by its path, for listings (row.h).
 *
 * When bodies leave: between entries and reads only (engine_cut_stored, engine_housekeep, engine_visits_over). So a pointer to one holds
 * until the entry or read is over. */
#include <stdlib.h>

#include "engine/engine_internal.h"
#include "engine/row.h"

enum { LEAVE_A_CUT = 16384, LEAVE_A_CALL = 1024, PATHS_AHEAD_MIN = 16, PATHS_AHEAD_MAX = 256 };
#define TIMERS_BUDGET (UINT64_C(16) << 20)

static struct engine *own(const struct engine *e)
{
    return (struct engine *)(uintptr_t)e; /* what is in memory is no part of the state */
}

struct timer *timer_at(const struct engine *e, uint32_t at)
{
    return slab_at(&e->timers, at);
}

uint32_t timer_numbered(const struct engine *e, struct slice path, uint64_t sequence)
{
    uint64_t hash = hash64(path, 1);
    uint32_t at = 0, number;
    while ((number = idmap_next(&e->timer_paths, hash, &at)) != 0) {
        if (timer_at(e, number)->due.tie == sequence) return number;
    }
    return 0;
}

/* ---- in memory ------------------------------------------------------------------------------------------------------ */

static void list_put(struct engine *e, struct timer_body *b)
{
    b->older = e->timer_newest;
    b->newer = NULL;
    if (e->timer_newest != NULL) e->timer_newest->newer = b;
    e->timer_newest = b;
    if (e->timer_oldest == NULL) e->timer_oldest = b;
}

static void list_take(struct engine *e, struct timer_body *b)
{
    *(b->newer != NULL ? &b->newer->older : &e->timer_newest) = b->older;
    *(b->older != NULL ? &b->older->newer : &e->timer_oldest) = b->newer;
}

static size_t body_bytes(const struct timer_body *b)
{
    return sizeof *b + b->path_len + b->partition_len + b->transaction_len;
}

static void body_free(struct engine *e, struct timer_body *b)
{
    list_take(e, b);
    e->timer_bytes -= body_bytes(b);
    free(b);
}

struct timer_body *timer_body_new(struct engine *e, uint32_t at, const struct timer_row *row)
{
    struct timer *t = timer_at(e, at);
    struct timer_body *b = malloc(sizeof *b + row->path.len + row->partition.len + row->transaction.len), *before = t->body;
    must(b != NULL);
    *b = (struct timer_body){.number = at,
                             .path_len = (uint16_t)row->path.len,
                             .queue_len = row->queue_len,
                             .partition_len = (uint16_t)row->partition.len,
                             .transaction_len = (uint16_t)row->transaction.len,
                             .block_bytes = row->block_bytes,
                             .item_bytes = row->item_bytes,
                             .message = row->message,
                             .created_us = row->created_us,
                             .updated_us = row->updated_us};
    memcpy(b->texts, row->path.at, row->path.len);
    if (row->partition.len > 0) memcpy(b->texts + row->path.len, row->partition.at, row->partition.len);
    if (row->transaction.len > 0)
        memcpy(b->texts + row->path.len + row->partition.len, row->transaction.at, row->transaction.len);
    t->body = b;
    list_put(e, b);
    e->timer_bytes += body_bytes(b);
    if (before == NULL) {
        tree_insert(&e->timer_order, at);
    } else {
        body_free(e, before); /* of the same path, so the order stays */
    }
    return b;
}

void timer_body_drop(struct engine *e, struct timer *t)
{
    tree_remove(&e->timer_order, t->body->number);
    body_free(e, t->body);
    t->body = NULL;
}

void timer_touch(struct engine *e, struct timer_body *b)
{
    if (b->dirty) return;
    b->dirty = true;
    numbers_add(&e->dirty_timers, b->number);
}

/* ---- coming back ---------------------------------------------------------------------------------------------------- */

struct timers_read {
    struct engine *e;
    uint32_t left; /* rows */
};

static bool row_came(void *ctx, struct slice key, struct slice value)
{
    struct timers_read *r = ctx;
    struct timer_row row;
    must(row_timer_read(key, value, &row));
    uint32_t at = timer_numbered(r->e, row.path, row.sequence);
    struct timer *t = at == 0 ? NULL : timer_at(r->e, at);
    if (t != NULL && t->body == NULL) {
        must(t->due.key == row.due_us && t->where == row.where);
        struct timer_body *b = timer_body_new(r->e, at, &row);
        b->cut = true;
        b->cut_due_us = row.due_us;
    }
    return --r->left > 0;
}

void timers_wake(const struct engine *e, const struct timer *from, int64_t until_us, uint32_t most)
{
    struct timers_read r = {.e = own(e), .left = most};
    struct row_key first, behind;
    must(from->body == NULL && until_us >= from->due.key && most > 0);
    row_key_timer(&first, from->due.key, from->due.tie);
    row_key_timer(&behind, until_us, UINT64_MAX);
    e->options.cold.scan(e->options.cold.ctx, row_key_view(&first), row_key_view(&behind), row_came, &r);
    must(from->body != NULL); /* its row was stored before it left */
}

struct timer_body *timer_open(const struct engine *e, uint32_t at)
{
    const struct timer *t = timer_at(e, at);
    if (t->body == NULL) timers_wake(e, t, t->due.key, 1);
    return t->body;
}

/* ---- leaving -------------------------------------------------------------------------------------------------------- */

static bool may_leave(const struct engine *e, const struct timer_body *b)
{
    return b->cut && !b->dirty && b->cut_revision <= e->cut_stored;
}

static bool bodies_leave(struct engine *e, uint32_t most)
{
    uint64_t budget = e->options.budget.timers == 0 ? TIMERS_BUDGET : e->options.budget.timers;
    for (; e->timer_bytes > budget && e->timer_oldest != NULL && may_leave(e, e->timer_oldest); most--) {
        if (most == 0) return true;
        timer_body_drop(e, timer_at(e, e->timer_oldest->number));
        e->timer_span.known = false;
    }
    return false;
}

void timers_rest(struct engine *e)
{
    bodies_leave(e, LEAVE_A_CUT);
}

bool timers_leave(struct engine *e)
{
    return bodies_leave(e, LEAVE_A_CALL);
}

/* ---- in the order of paths ------------------------------------------------------------------------------------------ */

/* Of a queue: all paths behind it. */
static struct slice queue_end(struct slice path, char out[TIMER_PATH_MAX])
{
    size_t queue_len = (size_t)row_key_number(path.at + 16, 2);
    struct slice end;
    must(path.len >= 18 + queue_len && tree_prefix_end(slice_make(path.at, 18 + queue_len), out, &end));
    return end;
}

static struct slice key_of_path(char room[1 + TIMER_PATH_MAX], struct slice path)
{
    room[0] = (char)ROW_TIMER_PATH;
    memcpy(room + 1, path.at, path.len);
    return slice_make(room, 1 + path.len);
}

/* Of a row that says which timer has a path: its number if it is at rest, else 0. */
static uint32_t rests(const struct engine *e, struct slice path, struct slice value)
{
    uint64_t sequence;
    must(value.len == sizeof sequence);
    memcpy(&sequence, value.at, sizeof sequence);
    uint32_t at = timer_numbered(e, path, sequence);
    return at == 0 || timer_at(e, at)->body != NULL ? 0 : at;
}

struct paths_read {
    const struct engine *e;
    struct slice after; /* passed over; empty: nothing is */
    uint32_t left, count;
    uint32_t found[PATHS_AHEAD_MAX];
    struct buf *to; /* the last path looked at */
    bool cut;       /* there is more */
};

static bool path_came(void *ctx, struct slice key, struct slice value)
{
    struct paths_read *r = ctx;
    struct slice path = slice_make(key.at + 1, key.len - 1);
    if (slice_equal(path, r->after)) return true;
    if (r->left == 0) {
        r->cut = true;
        return false;
    }
    r->left--;
    buf_clear(r->to);
    buf_slice(r->to, path);
    uint32_t at = rests(r->e, path, value);
    if (at != 0) r->found[r->count++] = at;
    return true;
}

/* Brings back what rests behind `after`, some of the queue's; the span of paths of which all are in memory grows by that. */
static void span_grow(const struct engine *e, struct slice after, struct slice end)
{
    struct timer_span *s = &own(e)->timer_span;
    char first[1 + TIMER_PATH_MAX], last[1 + TIMER_PATH_MAX];
    struct buf to = {0};
    struct paths_read r = {.e = e, .after = after, .left = s->ahead, .to = &to};
    e->options.cold.scan(e->options.cold.ctx, key_of_path(first, after), key_of_path(last, end), path_came, &r);
    for (uint32_t i = 0; i < r.count; i++) timer_open(e, r.found[i]);
    buf_clear(&s->to);
    buf_slice(&s->to, r.cut ? buf_view(&to) : end);
    buf_free(&to);
    s->ahead = s->ahead * 2 < PATHS_AHEAD_MAX ? s->ahead * 2 : PATHS_AHEAD_MAX;
}

uint32_t timer_behind(const struct engine *e, struct slice path)
{
    struct timer_span *s = &own(e)->timer_span;
    char room[TIMER_PATH_MAX];
    struct slice end = queue_end(path, room);
    if (!s->known || slice_compare(path, buf_view(&s->from)) < 0 || slice_compare(path, buf_view(&s->to)) > 0) {
        buf_clear(&s->from);
        buf_slice(&s->from, path);
        buf_clear(&s->to);
        buf_slice(&s->to, path);
        s->known = true;
        s->ahead = PATHS_AHEAD_MIN;
    }
    for (;;) {
        struct tree_place place = tree_seek(&e->timer_order, path);
        uint32_t at = tree_next(&place);
        if (at != 0 && slice_equal(timer_path(timer_at(e, at)->body), path)) at = tree_next(&place);
        struct slice found = at == 0 ? end : timer_path(timer_at(e, at)->body);
        if (slice_compare(found, end) >= 0) found = end;
        if (slice_compare(found, buf_view(&s->to)) <= 0) return found.at == end.at ? 0 : at;
        if (e->timers.used == e->timer_order.count) return found.at == end.at ? 0 : at; /* none rests */
        char from[TIMER_PATH_MAX];
        memcpy(from, s->to.at, s->to.len);
        span_grow(e, slice_make(from, s->to.len), end);
    }
}

struct tally_read {
    const struct engine *e;
    struct timer_tally *t;
    uint32_t left;
    bool cut;
};

static bool path_tallied(void *ctx, struct slice key, struct slice value)
{
    struct tally_read *r = ctx;
    struct slice path = slice_make(key.at + 1, key.len - 1);
    if (r->left == 0) {
        memcpy(r->t->next, path.at, path.len);
        r->t->next_len = path.len;
        r->cut = true;
        return false;
    }
    r->left--;
    r->t->count += rests(r->e, path, value) != 0;
    return true;
}

bool timers_tally(const struct engine *e, struct slice prefix, uint32_t looks, struct timer_tally *t)
{
    char first[1 + TIMER_PATH_MAX], last[1 + TIMER_PATH_MAX], from_room[TIMER_PATH_MAX], end_room[TIMER_PATH_MAX];
    struct slice from = t->next_len == 0 ? prefix : slice_make(from_room, t->next_len), end;
    if (t->next_len > 0) memcpy(from_room, t->next, t->next_len);
    if (!tree_prefix_end(prefix, end_room, &end))
        end = slice_make(memset(end_room, 0xff, 18), 18); /* no path begins like that */
    struct tally_read r = {.e = e, .t = t, .left = looks};
    if (e->timers.used > e->timer_order.count)
        e->options.cold.scan(e->options.cold.ctx, key_of_path(first, from), key_of_path(last, end), path_tallied, &r);
    struct slice to = r.cut ? slice_make(t->next, t->next_len) : end;
    t->count += tree_rank(&e->timer_order, to) - tree_rank(&e->timer_order, from);
    return r.cut;
}

/* ---- all ------------------------------------------------------------------------------------------------------------ */

struct rest_walk {
    const struct engine *e;
    void (*each)(void *ctx, const struct timer *t, const struct timer_row *row, struct slice value);
    void *ctx;
    uint64_t count;
};

static bool rest_row(void *ctx, struct slice key, struct slice value)
{
    struct rest_walk *w = ctx;
    struct timer_row row;
    must(row_timer_read(key, value, &row));
    uint32_t at = timer_numbered(w->e, row.path, row.sequence);
    const struct timer *t = at == 0 ? NULL : timer_at(w->e, at);
    if (t == NULL || t->body != NULL || t->due.key != row.due_us) return true;
    w->count++;
    w->each(w->ctx, t, &row, value);
    return true;
}

uint64_t timers_at_rest(const struct engine *e,
                        void (*each)(void *ctx, const struct timer *t, const struct timer_row *row, struct slice value),
                        void *ctx)
{
    struct rest_walk w = {.e = e, .each = each, .ctx = ctx};
    struct row_key from, to;
    row_key_begin(&from, ROW_TIMER);
    row_key_begin(&to, ROW_TIMER + 1);
    if (e->timers.used > e->timer_order.count)
        e->options.cold.scan(e->options.cold.ctx, row_key_view(&from), row_key_view(&to), rest_row, &w);
    return w.count;
}
