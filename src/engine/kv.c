/* KV: rows by key, versions from one counter, lifetimes.
 *
 * A call of several ops is judged against one state and then carried out, ops of a single key in order of (namespace, key), ties in input
 * order, then getMany and getPrefix. As a key is written or checked at most once in a call, judging first and writing later gives
 * what doing one after the other would give.
 *
 * An expired row counts as absent for everybody; when it is swept changes memory, never an answer. */
#include <stdlib.h>

#include "base/decimal.h"
#include "engine/engine_internal.h"

/* ---- rows ----------------------------------------------------------------------------------------------------------- */

struct kv_row *kv_row_at(const struct engine *e, uint32_t at)
{
    return slab_at(&e->kv_rows, at);
}

static struct slice row_path(const void *ctx, uint32_t at)
{
    return kv_row_path(kv_row_at(ctx, at));
}

void kv_init(struct engine *e)
{
    slab_init(&e->kv_rows, sizeof(struct kv_row));
    tree_init(&e->kv_order, row_path, e);
    kv_rest_init(e);
}

void kv_free(struct engine *e)
{
    for (uint32_t at = 0; at < e->kv_rows.chunk_high << SLAB_CHUNK_BITS; at++) {
        const struct kv_row *r = slab_find(&e->kv_rows, at);
        if (r != NULL && r->version != 0) free(r->bytes);
    }
    kv_rest_free(e);
    tree_free(&e->kv_order);
    heap_free(&e->kv_expiry);
    idmap_free(&e->kv_paths);
    slab_free(&e->kv_rows);
    free(e->dirty_kv.at);
    buf_free(&e->kv_cuts);
}

size_t kv_path(char out[KV_PATH_MAX], struct uuid tenant, struct slice name_space, struct slice key)
{
    must(name_space.len <= KV_NAME_SPACE_BYTES_MAX && key.len <= KV_KEY_BYTES_MAX);
    memcpy(out, tenant.bytes, 16);
    memcpy(out + 16, name_space.at, name_space.len);
    out[16 + name_space.len] = 0;
    memcpy(out + 17 + name_space.len, key.at, key.len);
    return 17 + name_space.len + key.len;
}

uint32_t kv_row_here(const struct engine *e, struct slice path, bool *away)
{
    uint64_t hash = hash64(path, 0);
    uint32_t at = 0, number;
    *away = false;
    while ((number = idmap_next(&e->kv_paths, hash, &at)) != 0) {
        if (number == KV_AWAY) {
            *away = true;
        } else if (slice_equal(kv_row_path(kv_row_at(e, number)), path)) {
            *away = false;
            return number;
        }
    }
    return 0;
}

uint32_t kv_row_find(const struct engine *e, struct slice path)
{
    bool away;
    uint32_t at = kv_row_here(e, path, &away);
    if (away) return kv_row_back((struct engine *)(uintptr_t)e, path); /* what is in memory is no part of the state */
    return at == 0 || kv_row_at(e, at)->flags & KV_ROW_GONE ? 0 : at;
}

static bool row_live(const struct kv_row *r, int64_t now_us)
{
    return !heap_holds(&r->due) || r->due.key > now_us;
}

uint32_t kv_find(const struct engine *e, struct slice path, int64_t now_us)
{
    uint32_t at = kv_row_find(e, path);
    return at != 0 && row_live(kv_row_at(e, at), now_us) ? at : 0;
}

static bool row_is_permit(const struct kv_row *r)
{
    return kv_path_is_permit(kv_row_path(r), r->space_len);
}

bool kv_row_may_rest(const struct kv_row *r)
{
    return !(r->flags & KV_ROW_GONE) && (!heap_holds(&r->due) || kv_has_due_row(r->updated_us, r->due.key));
}

uint64_t kv_row_cost(const struct kv_row *r)
{
    enum { PLACES = 32 }; /* in the index, in the order, and what the allocator adds */
    return sizeof *r + PLACES + r->path_len;
}

/* The record's bytes count as what may leave, or do not any more. */
static void row_weigh(struct engine *e, struct kv_row *r)
{
    bool leaves = kv_row_may_rest(r), counted = r->flags & KV_ROW_LEAVES;
    if (leaves == counted) return;
    r->flags ^= KV_ROW_LEAVES;
    e->kv_row_bytes += leaves ? kv_row_cost(r) : 0;
    e->kv_row_bytes -= leaves ? 0 : kv_row_cost(r);
}

static void row_enter(struct engine *e, uint32_t at)
{
    struct kv_row *r = kv_row_at(e, at);
    tree_insert(&e->kv_order, at);
    e->kv_bytes += r->path_len;
    e->lock_rows += row_is_permit(r);
    e->kv_came++;
    row_weigh(e, r);
}

static uint32_t row_new(struct engine *e, struct slice path, uint8_t space_len)
{
    uint32_t at = slab_add(&e->kv_rows);
    struct kv_row *r = kv_row_at(e, at);
    r->bytes = malloc(path.len);
    must(r->bytes != NULL);
    memcpy(r->bytes, path.at, path.len);
    r->path_len = (uint16_t)path.len;
    r->space_len = space_len;
    idmap_add(&e->kv_paths, hash64(path, 0), at);
    return at;
}

static uint32_t row_add(struct engine *e, struct slice path, uint8_t space_len)
{
    uint32_t at = row_new(e, path, space_len);
    row_enter(e, at);
    return at;
}

/* A record for a new row of the path: that of the one removed lately, or a new one. */
static uint32_t row_obtain(struct engine *e, struct slice path, uint8_t space_len)
{
    bool away;
    uint32_t at = kv_row_here(e, path, &away);
    if (at == 0) return row_add(e, path, space_len);
    struct kv_row *r = kv_row_at(e, at);
    must(r->flags & KV_ROW_GONE && r->space_len == space_len);
    r->flags &= (uint8_t)~KV_ROW_GONE;
    row_enter(e, at);
    return at;
}

static void row_expiry_set(struct engine *e, uint32_t at, int64_t expires_us)
{
    struct kv_row *r = kv_row_at(e, at);
    if (expires_us == 0) {
        heap_remove(&e->kv_expiry, &r->due);
    } else {
        heap_put(&e->kv_expiry, &r->due, expires_us, r->version);
    }
    row_weigh(e, r);
}

uint32_t kv_store(struct engine *e, struct slice path, uint8_t space_len, struct slice value, int64_t ttl_us, bool keep_expiry)
{
    uint32_t at = kv_row_find(e, path);
    bool live = at != 0 && row_live(kv_row_at(e, at), e->wall_us);
    if (at == 0) at = row_obtain(e, path, space_len);
    struct kv_row *r = kv_row_at(e, at);
    kv_value_set(e, r, value);
    r->version = ++e->kv_version;
    r->updated_us = e->wall_us;
    row_expiry_set(e, at, keep_expiry && live ? kv_row_expires_us(r) : ttl_us == 0 ? 0 : e->wall_us + ttl_us);
    kv_touch(e, at);
    return at;
}

/* Out of the order and the sums. */
static void row_out(struct engine *e, uint32_t at)
{
    struct kv_row *r = kv_row_at(e, at);
    tree_remove(&e->kv_order, at);
    kv_value_forget(e, r);
    e->kv_bytes -= r->path_len;
    e->lock_rows -= row_is_permit(r);
    if (r->flags & KV_ROW_LEAVES) e->kv_row_bytes -= kv_row_cost(r);
    r->flags &= (uint8_t)~KV_ROW_LEAVES;
}

void kv_row_rest(struct engine *e, uint32_t at)
{
    struct kv_row *r = kv_row_at(e, at);
    must(kv_row_may_rest(r) && !(r->flags & (KV_ROW_DIRTY | KV_ROW_UNSTORED)));
    kv_rest_add(e, kv_row_path(r), r->space_len, r->value_len, kv_row_expires_us(r));
    row_out(e, at);
    heap_remove(&e->kv_expiry, &r->due);
    kv_row_drop(e, at);
}

void kv_remove(struct engine *e, uint32_t at)
{
    struct kv_row *r = kv_row_at(e, at);
    row_out(e, at);
    heap_remove(&e->kv_expiry, &r->due);
    r->flags &= KV_ROW_DIRTY;
    r->flags |= KV_ROW_GONE;
    r->value_len = 0;
    r->bytes = realloc(r->bytes, r->path_len);
    must(r->bytes != NULL);
    kv_touch(e, at);
}

void kv_row_drop(struct engine *e, uint32_t at)
{
    struct kv_row *r = kv_row_at(e, at);
    idmap_remove(&e->kv_paths, hash64(kv_row_path(r), 0), at);
    free(r->bytes);
    memset(r, 0, sizeof *r);
    slab_remove(&e->kv_rows, at);
}

void kv_row_expire(struct engine *e, struct slice path, uint32_t value_len, uint64_t version, int64_t due_us)
{
    const char *zero = memchr(path.at + 16, 0, path.len - 16);
    must(zero != NULL);
    uint8_t space_len = (uint8_t)(zero - path.at - 16);
    kv_rest_take(e, path, space_len, value_len, due_us);
    uint32_t at = row_new(e, path, space_len);
    struct kv_row *r = kv_row_at(e, at);
    r->flags = KV_ROW_GONE;
    r->version = version;
    r->cut_due_us = due_us;
    kv_touch(e, at);
}

bool kv_sweep(struct engine *e, uint32_t most, int64_t now_us)
{
    struct heap_node *n;
    while ((n = heap_min(&e->kv_expiry)) != NULL && n->key <= now_us) {
        if (most-- == 0) return true;
        const struct kv_row *r = (const struct kv_row *)(const void *)((char *)n - offsetof(struct kv_row, due));
        kv_remove(e, kv_row_find(e, kv_row_path(r)));
    }
    return false;
}

/* A record for a stored row. */
static uint32_t row_of_stored(struct engine *e, struct slice path, const struct kv_stored *row, bool with_value)
{
    uint32_t at = row_add(e, path, row->space_len);
    struct kv_row *r = kv_row_at(e, at);
    kv_value_load(e, r, row->value, with_value);
    r->version = row->version;
    r->updated_us = row->updated_us;
    r->cut_due_us = kv_has_due_row(row->updated_us, row->expires_us) ? row->expires_us : 0;
    row_expiry_set(e, at, row->expires_us);
    return at;
}

void kv_row_load(struct engine *e, struct slice path, const struct kv_stored *row)
{
    if (row->expires_us == 0 || kv_has_due_row(row->updated_us, row->expires_us)) {
        kv_rest_add(e, path, row->space_len, (uint32_t)row->value.len, row->expires_us);
    } else {
        row_of_stored(e, path, row, false);
    }
}

uint32_t kv_row_come(struct engine *e, struct slice path, const struct kv_stored *row)
{
    kv_rest_take(e, path, row->space_len, (uint32_t)row->value.len, row->expires_us);
    uint32_t at = row_of_stored(e, path, row, true);
    kv_row_at(e, at)->flags |= KV_ROW_USED;
    return at;
}

void kv_row_show(const struct engine *e, const struct kv_row *r, bool with_value, struct arena *arena, struct kv_row_view *out)
{
    *out = (struct kv_row_view){.version = r->version, .updated_us = r->updated_us, .expires_us = kv_row_expires_us(r)};
    out->key = arena_copy(arena, kv_row_key(r));
    out->value = with_value ? arena_copy(arena, kv_row_value(e, r)) : slice_of("");
}

/* ---- judging -------------------------------------------------------------------------------------------------------- */

struct planned {
    struct kv_op op;
    struct slice path; /* of a single key */
    uint32_t index;
    struct slice number; /* INCR: the sum */
};

struct kv_plan {
    struct engine *e;
    struct uuid tenant;
    struct arena *arena;
    struct kv_result *out;
    int64_t now_us;
    struct planned *ops;
    struct planned **order; /* ops of a single key, in the order in which they run */
    uint32_t count, order_count;
    int64_t bytes_left; /* of values that getMany and getPrefix may still show */
};

static int planned_compare(const void *x, const void *y)
{
    const struct planned *a = *(struct planned *const *)x, *b = *(struct planned *const *)y;
    int order = slice_compare(a->path, b->path);
    if (order != 0) return order;
    return a->index < b->index ? -1 : 1;
}

static struct kv_plan *plan_new(struct engine *e, const struct kv_command *c, int64_t now_us, struct arena *arena,
                                struct kv_result *out)
{
    struct kv_plan *p = arena_get(arena, sizeof *p);
    size_t n = c->op_count == 0 ? 1 : c->op_count;
    *p = (struct kv_plan){.e = e, .tenant = c->tenant, .arena = arena, .out = out, .now_us = now_us, .count = c->op_count};
    p->bytes_left = KV_READ_BYTES_MAX;
    p->ops = arena_get(arena, n * sizeof p->ops[0]);
    p->order = arena_get(arena, n * sizeof p->order[0]);
    struct slice rest = c->ops;
    for (uint32_t i = 0; i < c->op_count; i++) {
        struct planned *o = &p->ops[i];
        must(kv_op_next(&rest, &o->op));
        o->index = i;
        if (o->op.kind == KV_GET_MANY || o->op.kind == KV_GET_PREFIX) continue;
        size_t room = 17 + o->op.name_space.len + o->op.key.len;
        char *path = arena_get(arena, room);
        o->path = slice_make(path, kv_path(path, c->tenant, o->op.name_space, o->op.key));
        p->order[p->order_count++] = o;
    }
    if (p->order_count > 1) qsort(p->order, p->order_count, sizeof p->order[0], planned_compare);
    *out = (struct kv_result){.items = arena_zero(arena, n * sizeof out->items[0]), .count = c->op_count};
    return p;
}

struct kv_plan *kv_plan_new(struct engine *e, const struct kv_command *c, struct arena *arena, struct kv_result *out)
{
    return plan_new(e, c, e->wall_us, arena, out);
}

static void outcome_value(struct kv_plan *p, struct kv_outcome *out, const struct kv_row *r)
{
    out->version = r->version;
    out->value = arena_copy(p->arena, kv_row_value(p->e, r));
    out->has_value = true;
}

static bool lost(struct kv_plan *p, struct kv_outcome *out, enum kv_reason reason, const struct kv_row *live)
{
    out->reason = (uint8_t)reason;
    if (live != NULL) outcome_value(p, out, live);
    return false;
}

/* Does `expect` hold? */
static bool expected(struct kv_plan *p, const struct planned *o, struct kv_outcome *out, const struct kv_row *live)
{
    if (!(o->op.flags & KV_EXPECT)) return true;
    if (o->op.expect == 0) return live == NULL || lost(p, out, KV_EXISTS, live);
    if (live == NULL) return lost(p, out, KV_ABSENT, NULL);
    return live->version == o->op.expect || lost(p, out, KV_VERSION, live);
}

static bool is_number(struct slice value)
{
    return value.len > 0 && (value.at[0] == '-' || (value.at[0] >= '0' && value.at[0] <= '9'));
}

static bool bound_holds(const struct kv_op *op, const struct decimal *sum)
{
    struct decimal bound;
    if (op->flags & KV_HAS_MIN && (!decimal_parse(op->min, &bound) || decimal_compare(sum, &bound) < 0)) return false;
    return !(op->flags & KV_HAS_MAX) || (decimal_parse(op->max, &bound) && decimal_compare(sum, &bound) <= 0);
}

static bool incr_judge(struct kv_plan *p, struct planned *o, struct kv_outcome *out, const struct kv_row *live)
{
    struct decimal current = {0}, delta, sum;
    if (live != NULL && !is_number(kv_row_value(p->e, live))) {
        out->reason = KV_TYPE;
        out->version = live->version;
        out->value = slice_of("0");
        out->has_value = true;
        return false;
    }
    bool fits = (live == NULL || decimal_parse(kv_row_value(p->e, live), &current)) && decimal_parse(o->op.value, &delta) &&
                decimal_add(&current, &delta, &sum) && bound_holds(&o->op, &sum);
    if (!fits) {
        if (live == NULL) out->value = slice_of("0");
        out->has_value = true;
        return lost(p, out, KV_LIMIT, live);
    }
    char *text = arena_get(p->arena, DECIMAL_TEXT_MAX);
    o->number = slice_make(text, decimal_text(&sum, text));
    return true;
}

static bool op_judge(struct kv_plan *p, struct planned *o)
{
    struct kv_outcome *out = &p->out->items[o->index];
    uint32_t at = kv_find(p->e, o->path, p->now_us);
    const struct kv_row *live = at == 0 ? NULL : kv_row_at(p->e, at);
    out->reason = KV_FINE;
    switch ((enum kv_op_kind)o->op.kind) {
    case KV_PUT:
        return expected(p, o, out, live);
    case KV_CHECK:
        if (!expected(p, o, out, live)) return false;
        out->version = o->op.expect;
        return true;
    case KV_DELETE:
        if (!expected(p, o, out, live)) return false;
        return live != NULL || o->op.flags & KV_EXPECT || lost(p, out, KV_ABSENT, NULL);
    case KV_INCR:
        return incr_judge(p, o, out, live);
    default:
        return true; /* a read */
    }
}

bool kv_plan_judge(struct kv_plan *p)
{
    for (uint32_t i = 0; i < p->order_count; i++) {
        struct planned *o = p->order[i];
        if (o->op.kind == KV_GET) continue;
        struct kv_outcome *out = &p->out->items[o->index];
        out->applied = op_judge(p, o);
        if (out->applied || !(o->op.flags & KV_REQUIRED)) continue;
        p->out->refused = true;
        p->out->failed = o->index;
        return false;
    }
    return true;
}

/* ---- carrying out --------------------------------------------------------------------------------------------------- */

static void op_get(struct kv_plan *p, const struct planned *o, struct kv_outcome *out)
{
    uint32_t at = kv_find(p->e, o->path, p->now_us);
    if (at == 0) return;
    const struct kv_row *r = kv_row_at(p->e, at);
    out->found = true;
    out->updated_us = r->updated_us;
    out->expires_us = kv_row_expires_us(r);
    outcome_value(p, out, r);
}

static void op_delete(struct kv_plan *p, const struct planned *o, struct kv_outcome *out)
{
    uint32_t at = kv_row_find(p->e, o->path);
    if (at == 0) return;
    if (row_live(kv_row_at(p->e, at), p->now_us)) outcome_value(p, out, kv_row_at(p->e, at));
    kv_remove(p->e, at);
}

static void op_do(struct kv_plan *p, const struct planned *o)
{
    struct kv_outcome *out = &p->out->items[o->index];
    uint8_t space_len = (uint8_t)o->op.name_space.len;
    if (o->op.kind == KV_GET) {
        op_get(p, o, out);
        return;
    }
    if (!out->applied) return;
    if (o->op.kind == KV_PUT) {
        uint32_t at = kv_store(p->e, o->path, space_len, o->op.value, o->op.ttl_us, false);
        out->version = kv_row_at(p->e, at)->version;
        out->has_value = true;
    } else if (o->op.kind == KV_INCR) {
        uint32_t at = kv_store(p->e, o->path, space_len, o->number, o->op.ttl_us, true);
        out->version = kv_row_at(p->e, at)->version;
        out->value = o->number;
        out->has_value = true;
    } else if (o->op.kind == KV_DELETE) {
        op_delete(p, o, out);
    }
}

static int slice_order(const void *x, const void *y)
{
    return slice_compare(*(const struct slice *)x, *(const struct slice *)y);
}

/* The row as the next of the rows shown; false when the call has read enough values. */
static bool row_take(struct kv_plan *p, struct kv_outcome *out, const struct kv_row *r, bool with_value)
{
    if (p->bytes_left <= 0) {
        out->truncated = true;
        return false;
    }
    kv_row_show(p->e, r, with_value, p->arena, &out->rows[out->row_count++]);
    if (with_value) p->bytes_left -= r->value_len;
    return true;
}

static void op_get_many(struct kv_plan *p, const struct planned *o)
{
    struct kv_outcome *out = &p->out->items[o->index];
    uint32_t n = o->op.key_count;
    struct slice *keys = arena_get(p->arena, (n + 1) * sizeof keys[0]), rest = o->op.key;
    char path[KV_PATH_MAX];
    out->rows = arena_get(p->arena, (n + 1) * sizeof out->rows[0]);
    out->missing = arena_get(p->arena, (n + 1) * sizeof out->missing[0]);
    for (uint32_t i = 0; i < n; i++) {
        must(kv_key_next(&rest, &keys[i]));
        struct slice place = slice_make(path, kv_path(path, p->tenant, o->op.name_space, keys[i]));
        if (kv_find(p->e, place, p->now_us) == 0) out->missing[out->missing_count++] = keys[i];
    }
    qsort(keys, n, sizeof keys[0], slice_order);
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0 && slice_equal(keys[i - 1], keys[i])) continue;
        struct slice place = slice_make(path, kv_path(path, p->tenant, o->op.name_space, keys[i]));
        uint32_t at = kv_find(p->e, place, p->now_us);
        if (at != 0 && !row_take(p, out, kv_row_at(p->e, at), true)) return;
    }
}

static void op_get_prefix(struct kv_plan *p, const struct planned *o)
{
    enum { LOOKS_MAX = 100000 }; /* expired rows that are not swept yet are passed over */
    struct kv_outcome *out = &p->out->items[o->index];
    char from[KV_PATH_MAX], path[KV_PATH_MAX];
    struct slice prefix = slice_make(path, kv_path(path, p->tenant, o->op.name_space, o->op.key));
    struct slice after = slice_make(from, kv_path(from, p->tenant, o->op.name_space, o->op.value));
    bool resumes = o->op.value.len > 0 && slice_compare(after, prefix) >= 0;
    struct kv_walk walk;
    kv_walk_begin(&walk, p->e, prefix, resumes ? after : prefix, o->op.limit + 1);
    out->rows = arena_get(p->arena, (o->op.limit + 1) * sizeof out->rows[0]);
    uint32_t at;
    for (int looks = 0; (at = kv_walk_next(&walk)) != 0; looks++) {
        const struct kv_row *r = kv_row_at(p->e, at);
        if ((resumes && slice_equal(kv_row_path(r), after)) || !row_live(r, p->now_us)) continue;
        if (out->row_count == o->op.limit || (looks >= LOOKS_MAX && out->row_count > 0)) {
            out->truncated = true;
            return;
        }
        bool with_value = !(o->op.flags & KV_KEYS_ONLY);
        if (with_value) kv_values_read(p->e, r, prefix, o->op.limit - out->row_count, p->bytes_left);
        if (!row_take(p, out, r, with_value)) return;
    }
}

void kv_plan_commit(struct kv_plan *p)
{
    for (uint32_t i = 0; i < p->order_count; i++) op_do(p, p->order[i]);
    for (uint32_t i = 0; i < p->count; i++) {
        if (p->ops[i].op.kind == KV_GET_MANY) op_get_many(p, &p->ops[i]);
        if (p->ops[i].op.kind == KV_GET_PREFIX) op_get_prefix(p, &p->ops[i]);
    }
}

bool kv_apply(struct engine *e, const struct command *c, struct arena *arena, struct engine_result *r)
{
    struct kv_command kv;
    if (!kv_decode(c, &kv)) return false;
    struct kv_plan *p = kv_plan_new(e, &kv, arena, &r->kv);
    if (kv_plan_judge(p)) kv_plan_commit(p);
    kv_sweep(e, 2 * kv.op_count + 8, e->wall_us);
    return true;
}

/* ---- reads ---------------------------------------------------------------------------------------------------------- */

void engine_kv_read(struct engine *e, const struct kv_command *c, struct engine_now now, struct arena *arena,
                    struct kv_result *out)
{
    struct kv_plan *p = plan_new(e, c, now.wall_us, arena, out);
    for (uint32_t i = 0; i < c->op_count; i++) must(!kv_op_writes(p->ops[i].op.kind));
    if (kv_plan_judge(p)) kv_plan_commit(p);
    kv_values_bound(e, KV_LOOKS);
}

bool engine_kv_space_next(struct engine *e, struct uuid tenant, struct slice after, struct kv_space_view *out)
{
    char from[KV_PATH_MAX], to[KV_PATH_MAX];
    size_t len = kv_path(from, tenant, after, slice_of(""));
    if (after.len > 0) from[len - 1] = 1; /* behind every key of that namespace */
    struct slice start = slice_make(from, after.len > 0 ? len : 16);
    struct tree_place place = tree_seek(&e->kv_order, start);
    uint32_t at = tree_next(&place);
    const struct kv_row *r = at == 0 ? NULL : kv_row_at(e, at);
    const struct kv_space *away = kv_space_from(e, start);
    struct slice space = slice_of("");
    if (r != NULL) space = slice_make(r->bytes, 17U + r->space_len);
    if (away != NULL && (r == NULL || slice_compare(slice_make(away->path, away->path_len), space) < 0))
        space = slice_make(away->path, away->path_len);
    if (space.len == 0 || memcmp(space.at, tenant.bytes, 16) != 0) return false;
    out->name = slice_make(space.at + 16, space.len - 17);
    len = kv_path(to, tenant, out->name, slice_of(""));
    uint64_t before = tree_rank(&e->kv_order, slice_make(to, len));
    out->rows = kv_space_away(e, slice_make(to, len)) - before;
    to[len - 1] = 1;
    out->rows += tree_rank(&e->kv_order, slice_make(to, len));
    return true;
}
