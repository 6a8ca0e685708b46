/* Values of KV rows: in memory, or only in the store.
 *
 *   written -> dirty -> in a cut (unstored) -> the store has it: may leave -> [touched: read back] -> may leave again
 *
 * What leaves: a hand goes round the rows, as in a clock; a row touched since it last passed stays for another round. Between entries the
 * values and records in memory are within the budget, but for those that are not stored yet. A row that may rest leaves whole
 * (kv_rest.c); of one that was written to live short (kv_due.c) the record stays, and the value leaves if it is worth it (more than
 * VALUE_STAYS_BYTES: a place in memory that a pointer would take too).
 *
 * A stored row that is wanted is there, and is the present one: a row that changed since its cut was stored is in memory. */
#include <stdlib.h>

#include "engine/engine_internal.h"
#include "engine/row.h"

enum { VALUE_STAYS_BYTES = 16 };
#define VALUES_BUDGET (UINT64_C(256) << 20)

static uint64_t values_budget(const struct engine *e)
{
    return e->options.budget.kv_values == 0 ? VALUES_BUDGET : e->options.budget.kv_values;
}

static bool value_counts(const struct kv_row *r)
{
    return r->value_len > VALUE_STAYS_BYTES;
}

static void value_came(struct engine *e, const struct kv_row *r)
{
    if (!value_counts(r)) return;
    e->kv_value_bytes += r->value_len;
    e->kv_came++;
}

static void value_went(struct engine *e, const struct kv_row *r)
{
    if (!value_counts(r)) return;
    must(e->kv_value_bytes >= r->value_len);
    e->kv_value_bytes -= r->value_len;
}

static void bytes_resize(struct kv_row *r, size_t len)
{
    r->bytes = realloc(r->bytes, r->path_len + len);
    must(r->bytes != NULL);
}

static void value_fill(struct engine *e, struct kv_row *r, struct slice value)
{
    must(r->flags & KV_ROW_ABSENT && value.len == r->value_len);
    bytes_resize(r, value.len);
    memcpy(r->bytes + r->path_len, value.at, value.len);
    r->flags &= (uint8_t)~KV_ROW_ABSENT;
    e->kv_absent_bytes -= r->value_len;
    value_came(e, r);
}

void kv_value_set(struct engine *e, struct kv_row *r, struct slice value)
{
    if (r->flags & KV_ROW_ABSENT) {
        e->kv_absent_bytes -= r->value_len;
    } else {
        value_went(e, r);
    }
    if (r->flags & (KV_ROW_DIRTY | KV_ROW_UNSTORED)) e->kv_unstored_bytes -= r->value_len;
    if (value.len != r->value_len || r->flags & KV_ROW_ABSENT) bytes_resize(r, value.len);
    r->flags &= (uint8_t) ~(KV_ROW_ABSENT | KV_ROW_UNSTORED);
    r->flags |= KV_ROW_USED;
    e->kv_bytes += value.len;
    e->kv_bytes -= r->value_len;
    r->value_len = (uint32_t)value.len;
    if (value.len > 0) memcpy(r->bytes + r->path_len, value.at, value.len);
    if (r->flags & KV_ROW_DIRTY) e->kv_unstored_bytes += value.len;
    value_came(e, r);
}

void kv_value_load(struct engine *e, struct kv_row *r, struct slice value, bool must_stay)
{
    bool room = must_stay || e->kv_value_bytes + value.len <= values_budget(e);
    r->value_len = (uint32_t)value.len;
    e->kv_bytes += value.len;
    if (!room && value_counts(r)) {
        r->flags |= KV_ROW_ABSENT;
        e->kv_absent_bytes += value.len;
        return;
    }
    bytes_resize(r, value.len);
    if (value.len > 0) memcpy(r->bytes + r->path_len, value.at, value.len);
    value_came(e, r);
}

void kv_value_forget(struct engine *e, struct kv_row *r)
{
    if (r->flags & KV_ROW_ABSENT) {
        e->kv_absent_bytes -= r->value_len;
    } else {
        value_went(e, r);
    }
    if (r->flags & (KV_ROW_DIRTY | KV_ROW_UNSTORED)) e->kv_unstored_bytes -= r->value_len;
    e->kv_bytes -= r->value_len;
}

/* ---- the store ------------------------------------------------------------------------------------------------------ */

void kv_touch(struct engine *e, uint32_t at)
{
    struct kv_row *r = kv_row_at(e, at);
    if (r->flags & KV_ROW_DIRTY) return;
    must(!(r->flags & KV_ROW_ABSENT));
    if (!(r->flags & KV_ROW_UNSTORED)) e->kv_unstored_bytes += r->value_len;
    r->flags |= KV_ROW_DIRTY;
    numbers_add(&e->dirty_kv, at);
}

void kv_cut_made(struct engine *e, uint32_t at)
{
    struct kv_row *r = kv_row_at(e, at);
    r->flags &= (uint8_t)~KV_ROW_DIRTY;
    bool gone = r->flags & KV_ROW_GONE;
    if (!gone) r->flags |= KV_ROW_UNSTORED;
    struct kv_cut cut = {.revision = engine_revision(e), .version = r->version, .row = at, .gone = gone};
    buf_put(&e->kv_cuts, &cut, sizeof cut);
}

/* Its record may have been used for another row since. */
static void cut_confirmed(struct engine *e, const struct kv_cut *cut)
{
    struct kv_row *r = slab_find(&e->kv_rows, cut->row);
    if (r == NULL || r->version != cut->version) return;
    if (cut->gone) {
        if (r->flags & KV_ROW_GONE) kv_row_drop(e, cut->row);
        return;
    }
    if (!(r->flags & KV_ROW_UNSTORED)) return;
    r->flags &= (uint8_t)~KV_ROW_UNSTORED;
    if (!(r->flags & KV_ROW_DIRTY)) e->kv_unstored_bytes -= r->value_len;
}

void kv_cut_stored(struct engine *e, uint64_t revision)
{
    size_t at = 0;
    for (; at < e->kv_cuts.len; at += sizeof(struct kv_cut)) {
        struct kv_cut cut;
        memcpy(&cut, e->kv_cuts.at + at, sizeof cut);
        if (cut.revision > revision) break;
        cut_confirmed(e, &cut);
    }
    if (at == 0) return;
    e->kv_cuts.len -= at;
    memmove(e->kv_cuts.at, e->kv_cuts.at + at, e->kv_cuts.len);
    if (e->kv_cuts.len == 0 && e->kv_cuts.cap > 1 << 20) buf_free(&e->kv_cuts);
}

/* ---- reading back --------------------------------------------------------------------------------------------------- */

struct read_back_values {
    struct engine *e;
    uint32_t rows_left;
    int64_t bytes_left;
};

static bool value_read(void *ctx, struct slice key, struct slice stored)
{
    struct read_back_values *b = ctx;
    struct slice path = slice_make(key.at + 1, key.len - 1);
    struct kv_stored row;
    bool away;
    must(key.len > 1 && row_kv_read(stored, &row));
    uint32_t at = kv_row_here(b->e, path, &away);
    struct kv_row *r = at == 0 ? NULL : kv_row_at(b->e, at);
    if (r != NULL && r->flags & KV_ROW_ABSENT) {
        must(r->version == row.version);
        value_fill(b->e, r, row.value);
        r->flags |= KV_ROW_USED;
        b->bytes_left -= (int64_t)row.value.len;
    }
    return --b->rows_left > 0 && b->bytes_left > 0;
}

void kv_values_read(const struct engine *e, const struct kv_row *r, struct slice prefix, uint32_t rows, int64_t bytes)
{
    char from[1 + KV_PATH_MAX], to[1 + KV_PATH_MAX + 1];
    struct engine *own = (struct engine *)(uintptr_t)e; /* what is in memory is no part of the state */
    struct read_back_values b = {.e = own, .rows_left = rows, .bytes_left = bytes};
    if (!(r->flags & KV_ROW_ABSENT)) return;
    from[0] = to[0] = ROW_KV;
    memcpy(from + 1, r->bytes, r->path_len);
    struct slice end;
    if (prefix.len == 0 || !tree_prefix_end(prefix, to + 1, &end)) { /* alone: up to the next longer path */
        memcpy(to + 1, r->bytes, r->path_len);
        to[1 + r->path_len] = 0;
        end = slice_make(to + 1, r->path_len + 1U);
        b.rows_left = 1;
    }
    e->options.cold.scan(e->options.cold.ctx, slice_make(from, 1U + r->path_len), slice_make(to, 1 + end.len), value_read, &b);
    must(!(r->flags & KV_ROW_ABSENT)); /* it is stored */
}

struct slice kv_row_value(const struct engine *e, const struct kv_row *r)
{
    struct kv_row *own = (struct kv_row *)(uintptr_t)r;
    kv_values_read(e, r, slice_of(""), 1, 1);
    own->flags |= KV_ROW_USED;
    return slice_make(r->bytes + r->path_len, r->value_len);
}

bool kv_value_absent(const struct kv_row *r)
{
    return r->flags & KV_ROW_ABSENT;
}

/* ---- leaving -------------------------------------------------------------------------------------------------------- */

void kv_value_leave(struct engine *e, struct kv_row *r)
{
    value_went(e, r);
    bytes_resize(r, 0);
    r->flags |= KV_ROW_ABSENT;
    e->kv_absent_bytes += r->value_len;
}

/* Looks at the record under the hand. True: something left. */
static bool hand_step(struct engine *e, bool all)
{
    uint32_t end = e->kv_rows.chunk_high << SLAB_CHUNK_BITS;
    if (++e->kv_hand >= end) e->kv_hand = 1;
    struct kv_row *r = end == 0 ? NULL : slab_find(&e->kv_rows, e->kv_hand);
    if (r == NULL) {
        e->kv_hand |= SLAB_CHUNK - 1; /* the chunk is empty */
        return false;
    }
    if (r->version == 0 || r->flags & (KV_ROW_DIRTY | KV_ROW_UNSTORED | KV_ROW_GONE)) return false;
    bool used = r->flags & KV_ROW_USED && !all;
    r->flags &= (uint8_t)~KV_ROW_USED;
    if (used) return false;
    if (kv_row_may_rest(r)) {
        kv_row_rest(e, e->kv_hand);
        return true;
    }
    if (all || r->flags & KV_ROW_ABSENT || !value_counts(r)) return false;
    kv_value_leave(e, r);
    return true;
}

bool kv_values_bound(struct engine *e, uint32_t looks)
{
    uint64_t budget = values_budget(e);
    bool left = false;
    looks += 8 * e->kv_came; /* it keeps up with what comes */
    e->kv_came = 0;
    for (; e->kv_value_bytes + e->kv_row_bytes > budget && looks > 0; looks--) left = hand_step(e, false) || left;
    return left && e->kv_value_bytes + e->kv_row_bytes > budget;
}

bool kv_leave_all(struct engine *e)
{
    enum { LOOKS = 8192 };
    for (int i = 0; i < LOOKS && e->kv_leaving > 0; i++, e->kv_leaving--) hand_step(e, true);
    return e->kv_leaving > 0;
}
