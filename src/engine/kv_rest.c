/* KV rows at rest: in the store only.
 *
 *   stored as it is --> [memory is short, or the broker is idle] --> at rest --> wanted: a record again
 *                                                                            --> its time has come: kv_due.c
 *
 * What stays of one is a place in the index of paths (KV_AWAY under its hash) and its share of three sums. A path that hashes so is looked
 * for in the store; one that does not has no row.
 *
 * Every row of the store is one of three: it is at rest, or has a record that may be newer, or was removed, which the record that is kept
 * until the store knows says (KV_ROW_GONE). So what has no record is at rest, and present. Rows leave between entries only: a record that was
 * found holds until the entry ends. */
#include <stdlib.h>

#include "engine/engine_internal.h"
#include "engine/row.h"

enum { BACK_ROWS_MIN = 16, BACK_ROWS_MAX = 256, BACK_BYTES = 1 << 20 }; /* of one scan of a walk */

static struct kv_space *space_at(const struct engine *e, uint32_t at)
{
    return slab_at(&e->kv_spaces, at);
}

static struct slice space_path(const void *ctx, uint32_t at)
{
    const struct kv_space *s = space_at(ctx, at);
    return slice_make(s->path, s->path_len);
}

void kv_rest_init(struct engine *e)
{
    slab_init(&e->kv_spaces, sizeof(struct kv_space));
    tree_init(&e->kv_spaces_order, space_path, e);
}

void kv_rest_free(struct engine *e)
{
    struct tree_place p = tree_seek(&e->kv_spaces_order, slice_of(""));
    for (uint32_t at; (at = tree_next(&p)) != 0;) free(space_at(e, at)->path);
    tree_free(&e->kv_spaces_order);
    slab_free(&e->kv_spaces);
}

/* ---- sums ----------------------------------------------------------------------------------------------------------- */

static uint32_t space_find(const struct engine *e, struct slice path)
{
    struct tree_place p = tree_seek(&e->kv_spaces_order, path);
    uint32_t at = tree_next(&p);
    return at != 0 && slice_equal(space_path(e, at), path) ? at : 0;
}

uint64_t kv_space_away(const struct engine *e, struct slice path)
{
    uint32_t at = e->kv_away == 0 ? 0 : space_find(e, path);
    return at == 0 ? 0 : space_at(e, at)->away;
}

const struct kv_space *kv_space_from(const struct engine *e, struct slice path)
{
    struct tree_place p = tree_seek(&e->kv_spaces_order, path);
    for (uint32_t at; (at = tree_next(&p)) != 0;) {
        if (space_at(e, at)->path_len > 16) return space_at(e, at); /* no tenant's */
    }
    return NULL;
}

/* Most rows come and go next to others: *last is the one that was wanted last. */
static uint32_t space_obtain(struct engine *e, struct slice path, uint32_t *last)
{
    if (*last != 0 && slice_equal(space_path(e, *last), path)) return *last;
    uint32_t at = space_find(e, path);
    if (at == 0) {
        at = slab_add(&e->kv_spaces);
        struct kv_space *s = space_at(e, at);
        s->path = malloc(path.len);
        must(s->path != NULL);
        memcpy(s->path, path.at, path.len);
        s->path_len = (uint32_t)path.len;
        tree_insert(&e->kv_spaces_order, at);
    }
    *last = at;
    return at;
}

static void space_count(struct engine *e, struct slice path, uint32_t *last, bool goes)
{
    uint32_t at = space_obtain(e, path, last);
    struct kv_space *s = space_at(e, at);
    must(goes || s->away > 0);
    s->away += goes ? 1 : UINT64_MAX;
    if (s->away > 0) return;
    tree_remove(&e->kv_spaces_order, at);
    free(s->path);
    slab_remove(&e->kv_spaces, at);
    *last = 0;
}

static void rest_count(struct engine *e, struct slice path, uint8_t space_len, bool goes)
{
    space_count(e, slice_make(path.at, 16), &e->kv_tenant_last, goes);
    space_count(e, slice_make(path.at, 17U + space_len), &e->kv_space_last, goes);
}

void kv_rest_add(struct engine *e, struct slice path, uint8_t space_len, uint32_t value_len, int64_t expires_us)
{
    idmap_add(&e->kv_paths, hash64(path, 0), KV_AWAY);
    rest_count(e, path, space_len, true);
    e->kv_away++;
    e->kv_away_bytes += path.len + value_len;
    e->kv_bytes += path.len + value_len;
    e->lock_rows += kv_path_is_permit(path, space_len);
    if (expires_us == 0) return;
    if (e->kv_away_due++ == 0 || expires_us < e->kv_due_us) e->kv_due_us = expires_us;
}

void kv_rest_take(struct engine *e, struct slice path, uint8_t space_len, uint32_t value_len, int64_t expires_us)
{
    must(e->kv_away > 0 && e->kv_away_bytes >= path.len + value_len);
    idmap_remove(&e->kv_paths, hash64(path, 0), KV_AWAY);
    rest_count(e, path, space_len, false);
    e->kv_away--;
    e->kv_away_bytes -= path.len + value_len;
    e->kv_bytes -= path.len + value_len;
    e->lock_rows -= kv_path_is_permit(path, space_len);
    must(expires_us == 0 || e->kv_away_due > 0);
    e->kv_away_due -= expires_us != 0;
}

/* ---- coming back ---------------------------------------------------------------------------------------------------- */

struct coming {
    struct engine *e;
    uint32_t last, rows_left; /* last: the record of the last row that came back */
    int64_t bytes_left;
    size_t seen_len;
    char *seen; /* NULL, or where the path of the last row seen goes */
};

static bool row_back(void *ctx, struct slice key, struct slice stored)
{
    struct coming *c = ctx;
    struct kv_stored row;
    bool away;
    must(key.len > 1 && key.len <= 1 + KV_PATH_MAX && row_kv_read(stored, &row));
    struct slice path = slice_make(key.at + 1, key.len - 1);
    if (kv_row_here(c->e, path, &away) == 0) {
        c->last = kv_row_come(c->e, path, &row);
        c->bytes_left -= (int64_t)stored.len;
    }
    if (c->seen != NULL) {
        memcpy(c->seen, path.at, path.len);
        c->seen_len = path.len;
    }
    return --c->rows_left > 0 && c->bytes_left > 0;
}

static void rows_scan(struct engine *e, struct slice from, struct slice end,
                      bool (*row)(void *ctx, struct slice key, struct slice stored), void *ctx)
{
    char low[1 + KV_PATH_MAX + 1], high[1 + KV_PATH_MAX + 1];
    must(from.len <= KV_PATH_MAX + 1 && end.len <= KV_PATH_MAX + 1);
    low[0] = high[0] = ROW_KV;
    if (from.len > 0) memcpy(low + 1, from.at, from.len);
    memcpy(high + 1, end.at, end.len);
    if (end.len == 0) high[0] = ROW_KV + 1;
    e->options.cold.scan(e->options.cold.ctx, slice_make(low, 1 + from.len), slice_make(high, 1 + end.len), row, ctx);
}

uint32_t kv_row_back(struct engine *e, struct slice path)
{
    char behind[KV_PATH_MAX + 1];
    struct coming c = {.e = e, .rows_left = 1, .bytes_left = INT64_MAX};
    memcpy(behind, path.at, path.len);
    behind[path.len] = 0;
    rows_scan(e, path, slice_make(behind, path.len + 1), row_back, &c);
    return c.last;
}

/* ---- walks ---------------------------------------------------------------------------------------------------------- */

void kv_walk_begin(struct kv_walk *w, const struct engine *e, struct slice prefix, struct slice from, uint32_t rows)
{
    const char *zero = memchr(prefix.at + 16, 0, prefix.len - 16);
    must(zero != NULL && from.len <= KV_PATH_MAX);
    w->e = (struct engine *)(uintptr_t)e; /* what is in memory is no part of the state */
    w->prefix = prefix;
    w->place = tree_seek(&e->kv_order, from);
    w->last = 0;
    w->rows = rows < BACK_ROWS_MIN ? BACK_ROWS_MIN : rows > BACK_ROWS_MAX ? BACK_ROWS_MAX : rows;
    w->whole = kv_space_away(e, slice_make(prefix.at, (size_t)(zero + 1 - prefix.at))) == 0;
    w->known_len = from.len;
    memcpy(w->known, from.at, from.len);
}

/* The next rows that are at rest come back. */
static void walk_read(struct kv_walk *w)
{
    char end[KV_PATH_MAX], seen[KV_PATH_MAX + 1], behind[KV_PATH_MAX + 1];
    struct coming c = {.e = w->e, .rows_left = w->rows, .bytes_left = BACK_BYTES, .seen = seen};
    struct slice to, from = slice_make(w->known, w->known_len), next = from;
    if (!tree_prefix_end(w->prefix, end, &to)) to = slice_of("");
    rows_scan(w->e, from, to, row_back, &c);
    if (w->last != 0) {
        struct slice path = kv_row_path(kv_row_at(w->e, w->last));
        memcpy(behind, path.at, path.len);
        behind[path.len] = 0;
        next = slice_make(behind, path.len + 1);
    } else {
        memcpy(behind, w->known, w->known_len);
        next = slice_make(behind, w->known_len);
    }
    w->whole = c.rows_left > 0 && c.bytes_left > 0;
    if (!w->whole) {
        memcpy(w->known, seen, c.seen_len);
        w->known[c.seen_len] = 0;
        w->known_len = c.seen_len + 1;
    }
    w->place = tree_seek(&w->e->kv_order, next);
}

static bool walk_has(const struct kv_walk *w, struct slice path)
{
    return path.len >= w->prefix.len && memcmp(path.at, w->prefix.at, w->prefix.len) == 0;
}

uint32_t kv_walk_next(struct kv_walk *w)
{
    for (;;) {
        struct tree_place place = w->place;
        uint32_t at = tree_next(&place);
        struct slice path = at == 0 ? slice_of("") : kv_row_path(kv_row_at(w->e, at));
        bool inside = at != 0 && walk_has(w, path);
        if (w->whole || (inside && slice_compare(path, slice_make(w->known, w->known_len)) < 0)) {
            w->place = place;
            w->last = at;
            return inside ? at : 0;
        }
        walk_read(w);
    }
}

/* ---- all of them ---------------------------------------------------------------------------------------------------- */

struct resting {
    struct engine *e;
    void (*each)(void *ctx, struct slice path, struct slice stored);
    void *ctx;
};

static bool row_rests(void *ctx, struct slice key, struct slice stored)
{
    struct resting *r = ctx;
    struct slice path = slice_make(key.at + 1, key.len - 1);
    bool away;
    if (kv_row_here(r->e, path, &away) == 0) r->each(r->ctx, path, stored);
    return true;
}

void kv_rest_each(struct engine *e, void (*each)(void *ctx, struct slice path, struct slice stored), void *ctx)
{
    struct resting r = {.e = e, .each = each, .ctx = ctx};
    if (e->kv_away > 0) rows_scan(e, slice_of(""), slice_of(""), row_rests, &r);
}
