/* When KV rows at rest expire.
 *
 * A row in memory with an expiry stands in the heap kv_expiry. One at rest has no record, so a second row of the store, its due row, says when
 * it expires: the path behind the time, so that those that expire next are neighbours. It is written and removed in the same cuts as the row,
 * whether that is in memory or not.
 *
 *   at rest, its time has come --> [due rows are read, in order of time] --> removed: a record until the store knows (kv_rest.c)
 *
 * An expired row is as good as gone for everybody, wherever it is; when a node gets to it changes no answer and no digest.
 *
 * A row that was written to live shorter than DUE_ROW_US has no due row and does not rest: it would cost two rows of the store more than it
 * saves in memory. Which it is follows from the row alone (when it was written, when it expires), so a start knows it too.
 *
 * Where to look: no row at rest expires before e->kv_due_us, which each look moves on behind what it has looked at. So the removed rows of the
 * store that pile up before it are not walked over. */
#include "engine/engine_internal.h"
#include "engine/row.h"

#define DUE_ROW_US (INT64_C(60) * 1000000)
enum { VALUE_BYTES = 12, LOOKS = 4096 };

bool kv_has_due_row(int64_t updated_us, int64_t expires_us)
{
    return expires_us != 0 && expires_us - updated_us > DUE_ROW_US;
}

/* ---- rows ----------------------------------------------------------------------------------------------------------- */

static size_t key_begin(char *out, int64_t due_us)
{
    struct row_key k;
    row_key_begin(&k, ROW_KV_DUE);
    row_key_u64(&k, (uint64_t)due_us);
    must(k.len == KV_DUE_KEY_BYTES);
    memcpy(out, k.bytes, k.len);
    return k.len;
}

static struct slice key_of(char out[KV_DUE_KEY_BYTES + KV_PATH_MAX], int64_t due_us, struct slice path)
{
    size_t len = key_begin(out, due_us);
    memcpy(out + len, path.at, path.len);
    return slice_make(out, len + path.len);
}

void engine_kv_due_rows(int64_t from_us, int64_t before_us, char from[KV_DUE_KEY_BYTES], char to[KV_DUE_KEY_BYTES])
{
    key_begin(from, from_us);
    key_begin(to, before_us);
}

int64_t engine_kv_due_row_us(struct slice key)
{
    must(key.len > KV_DUE_KEY_BYTES);
    return (int64_t)row_key_number(key.at + 1, 8);
}

void kv_due_cut(struct kv_row *r, const struct engine_rows *rows)
{
    char key[KV_DUE_KEY_BYTES + KV_PATH_MAX];
    char value[VALUE_BYTES];
    bool wanted = !(r->flags & KV_ROW_GONE) && kv_has_due_row(r->updated_us, kv_row_expires_us(r));
    int64_t due_us = wanted ? r->due.key : 0;
    if (r->cut_due_us != 0 && r->cut_due_us != due_us) rows->delete (rows->ctx, key_of(key, r->cut_due_us, kv_row_path(r)));
    r->cut_due_us = due_us;
    if (!wanted) return;
    memcpy(value, &r->value_len, 4);
    memcpy(value + 4, &r->version, 8);
    rows->put(rows->ctx, key_of(key, due_us, kv_row_path(r)), slice_make(value, sizeof value));
}

/* ---- expiring ------------------------------------------------------------------------------------------------------- */

struct due_look {
    struct engine *e;
    int64_t next_us;               /* all that expire before were looked at */
    uint32_t left, looks, expired; /* left: to be removed */
};

static bool due_row(void *ctx, struct slice key, struct slice value)
{
    struct due_look *l = ctx;
    struct slice path = slice_make(key.at + KV_DUE_KEY_BYTES, key.len - KV_DUE_KEY_BYTES);
    int64_t due_us = engine_kv_due_row_us(key);
    bool away;
    if (l->left == 0 || l->looks == 0 || due_us > l->e->last_head.wall_us) {
        l->next_us = due_us;
        return false;
    }
    l->looks--;
    if (kv_row_here(l->e, path, &away) != 0) return true; /* in memory, or removed already: those of one call expire together */
    l->left--;
    uint32_t value_len;
    uint64_t version;
    must(value.len == VALUE_BYTES);
    memcpy(&value_len, value.at, 4);
    memcpy(&version, value.at + 4, 8);
    kv_row_expire(l->e, path, value_len, version, due_us);
    l->expired++;
    return true;
}

static void due_scan(struct engine *e, int64_t from_us, int64_t before_us,
                     bool (*row)(void *ctx, struct slice key, struct slice value), void *ctx)
{
    char from[KV_DUE_KEY_BYTES], to[KV_DUE_KEY_BYTES];
    engine_kv_due_rows(from_us, before_us, from, to);
    e->options.cold.scan(e->options.cold.ctx, slice_make(from, sizeof from), slice_make(to, sizeof to), row, ctx);
}

bool engine_kv_expired(const struct engine *e, int64_t *from_us)
{
    *from_us = e->kv_due_us;
    return e->kv_away_due > 0 && e->kv_due_us <= e->last_head.wall_us;
}

bool engine_kv_expire(struct engine *e, int64_t before_us, uint32_t most)
{
    struct due_look l = {.e = e, .left = most, .looks = LOOKS, .next_us = before_us};
    int64_t from_us;
    if (!engine_kv_expired(e, &from_us) || from_us >= before_us) return false;
    due_scan(e, from_us, before_us, due_row, &l);
    e->kv_due_us = l.next_us;
    if (l.expired > 0) e->reaped_steps++;
    return engine_kv_expired(e, &from_us);
}

/* ---- checking ------------------------------------------------------------------------------------------------------- */

struct due_count {
    struct engine *e;
    uint64_t resting;
};

static bool due_counted(void *ctx, struct slice key, struct slice value)
{
    struct due_count *c = ctx;
    bool away;
    (void)value;
    struct slice path = slice_make(key.at + KV_DUE_KEY_BYTES, key.len - KV_DUE_KEY_BYTES);
    if (kv_row_here(c->e, path, &away) != 0) return true;
    c->resting++;
    if (away && engine_kv_due_row_us(key) >= c->e->kv_due_us) return true;
    c->resting = UINT64_MAX;
    return false;
}

uint64_t kv_due_check(struct engine *e)
{
    struct due_count c = {.e = e};
    due_scan(e, 0, INT64_MAX, due_counted, &c);
    return c.resting;
}
