/* LOCKS: permits with a lifetime, kept as rows of the KV store. Each op stands alone and sees what the ones before it did. */
#include <stdlib.h>

#include "base/isotime.h"
#include "engine/engine_internal.h"

/* The beginning of a value that names this owner, and the key's room. */
struct permit {
    struct engine *e;
    struct uuid tenant;
    const struct lock_op *op;
    int64_t now_us;
    char path[KV_PATH_MAX];
};

static struct slice permit_path(struct permit *p, uint32_t slot)
{
    char key[256 + 8];
    size_t len = p->op->name.len;
    uint32_t unit = slot >= 1000 ? 1000 : slot >= 100 ? 100 : slot >= 10 ? 10 : 1;
    must(len <= 256 && slot < LOCK_SLOTS_MAX);
    memcpy(key, p->op->name.at, len);
    key[len++] = '#';
    for (; unit > 0; unit /= 10) key[len++] = (char)('0' + slot / unit % 10);
    return slice_make(p->path, kv_path(p->path, p->tenant, slice_of(LOCK_NAME_SPACE), slice_make(key, len)));
}

static struct kv_row *permit_row(struct permit *p, uint32_t slot)
{
    struct slice path = permit_path(p, slot);
    uint32_t at = kv_find(p->e, path, p->now_us);
    if (at == 0) return NULL;
    size_t before = 16 + sizeof LOCK_NAME_SPACE + p->op->name.len + 1; /* the permits of one lock stand together */
    kv_values_read(p->e, kv_row_at(p->e, at), slice_make(path.at, before), LOCK_SLOTS_MAX, INT64_MAX);
    return kv_row_at(p->e, at);
}

static const char owner_key[] = "{\"owner\":", since_key[] = ",\"since\":";

/* Length of the JSON string that `s` begins with, quotes included; 0: it begins with none. */
static size_t string_len(struct slice s)
{
    if (s.len == 0 || s.at[0] != '"') return 0;
    for (size_t i = 1; i < s.len; i++) {
        if (s.at[i] == '"') return i + 1;
        if (s.at[i] == '\\') i++;
    }
    return 0;
}

static bool skip(struct slice *s, const char *text, size_t len)
{
    if (s->len < len || memcmp(s->at, text, len) != 0) return false;
    *s = slice_make(s->at + len, s->len - len);
    return true;
}

/* What the row says, as JSON: the owner, `null` when it names none; since when, empty when it is not a renewed permit. Rows are written by
 * permit_write; of one written by hand only what looks the same counts, so that what is made of it is JSON again. */
static void permit_read(const struct engine *e, const struct kv_row *r, struct slice *owner, struct slice *since)
{
    struct slice rest = kv_row_value(e, r);
    *owner = slice_of("null");
    *since = slice_of("");
    if (!skip(&rest, owner_key, sizeof owner_key - 1)) return;
    struct slice named = slice_make(rest.at, string_len(rest));
    if (named.len > 0) {
        rest = slice_make(rest.at + named.len, rest.len - named.len);
        if (rest.len > 0 && (rest.at[0] == '}' || rest.at[0] == ',')) *owner = named;
    } else if (!skip(&rest, "null", 4)) {
        return;
    }
    if (!skip(&rest, since_key, sizeof since_key - 1)) return;
    size_t len = string_len(rest);
    if (len > 0 && rest.len == len + 1 && rest.at[len] == '}') *since = slice_make(rest.at, len);
}

static bool owned(const struct permit *p, const struct kv_row *r)
{
    struct slice owner, since;
    permit_read(p->e, r, &owner, &since);
    return p->op->has_owner && slice_equal(owner, p->op->owner);
}

static uint64_t permit_write(struct permit *p, uint32_t slot, struct slice owner, struct slice since)
{
    struct buf value = {0};
    buf_text(&value, owner_key);
    buf_slice(&value, owner);
    if (since.len > 0) {
        buf_text(&value, since_key);
        buf_slice(&value, since);
    }
    buf_byte(&value, '}');
    uint8_t space_len = sizeof LOCK_NAME_SPACE - 1;
    uint32_t at = kv_store(p->e, permit_path(p, slot), space_len, buf_view(&value), p->op->ttl_us, false);
    buf_free(&value);
    return kv_row_at(p->e, at)->version;
}

/* ---- who holds it --------------------------------------------------------------------------------------------------- */

static int holder_compare(const void *x, const void *y)
{
    const struct lock_holder *a = x, *b = y;
    return a->slot < b->slot ? -1 : a->slot > b->slot;
}

/* The slot number that a key ends with; false: not a permit of this lock. */
static bool slot_of_key(const struct kv_row *r, size_t name_len, uint32_t *slot)
{
    struct slice key = kv_row_key(r);
    uint32_t n = 0;
    if (key.len < name_len + 2 || key.len > name_len + 5) return false;
    for (size_t i = name_len + 1; i < key.len; i++) {
        if (key.at[i] < '0' || key.at[i] > '9') return false;
        n = n * 10 + (uint32_t)(key.at[i] - '0');
    }
    *slot = n;
    return n < LOCK_SLOTS_MAX && (key.at[name_len + 1] != '0' || key.len == name_len + 2);
}

/* All live permits of the lock, by slot. */
static void holders_collect(struct permit *p, struct arena *arena, struct lock_outcome *out)
{
    char key[256 + 1];
    memcpy(key, p->op->name.at, p->op->name.len);
    key[p->op->name.len] = '#';
    struct slice prefix =
        slice_make(p->path, kv_path(p->path, p->tenant, slice_of(LOCK_NAME_SPACE), slice_make(key, p->op->name.len + 1)));
    struct kv_walk walk;
    uint32_t at, cap = 0;
    kv_walk_begin(&walk, p->e, prefix, prefix, LOCK_SLOTS_MAX);
    while ((at = kv_walk_next(&walk)) != 0 && out->holder_count < LOCK_SLOTS_MAX) {
        const struct kv_row *r = kv_row_at(p->e, at);
        uint32_t slot;
        int64_t expires_us = kv_row_expires_us(r);
        if ((expires_us != 0 && expires_us <= p->now_us) || !slot_of_key(r, p->op->name.len, &slot)) continue;
        if (out->holder_count == cap) {
            uint32_t grown = cap == 0 ? 4 : cap * 4;
            struct lock_holder *holders = arena_get(arena, grown * sizeof holders[0]);
            if (cap > 0) memcpy(holders, out->holders, cap * sizeof holders[0]);
            out->holders = holders;
            cap = grown;
        }
        struct lock_holder *h = &out->holders[out->holder_count++];
        h->slot = slot;
        kv_values_read(p->e, r, prefix, LOCK_SLOTS_MAX, INT64_MAX);
        kv_row_show(p->e, r, true, arena, &h->row);
    }
    if (out->holder_count > 1) qsort(out->holders, out->holder_count, sizeof out->holders[0], holder_compare);
}

/* ---- ops ------------------------------------------------------------------------------------------------------------ */

static bool won(struct lock_outcome *out, uint32_t slot, uint64_t token)
{
    out->done = true;
    out->slot = slot;
    out->token = token;
    return true;
}

static bool acquire(struct permit *p, struct lock_outcome *out)
{
    uint32_t unused = LOCK_SLOTS_MAX;
    for (uint32_t slot = 0; slot < p->op->limit; slot++) {
        const struct kv_row *r = permit_row(p, slot);
        if (r == NULL && unused == LOCK_SLOTS_MAX) unused = slot;
        if (r == NULL && !p->op->has_owner) break;
        if (r == NULL || !owned(p, r)) continue;
        out->already = true;
        return won(out, slot, r->version);
    }
    if (unused == LOCK_SLOTS_MAX) return false;
    return won(out, unused, permit_write(p, unused, p->op->owner, slice_of("")));
}

static bool renew(struct permit *p, struct arena *arena, struct lock_outcome *out)
{
    const struct kv_row *r = permit_row(p, p->op->slot);
    out->slot = p->op->slot;
    if (r == NULL || (r->version != p->op->token && !owned(p, r))) return false;
    struct slice since, owner;
    permit_read(p->e, r, &owner, &since);
    since = arena_copy(arena, since);
    owner = arena_copy(arena, owner);
    if (since.len == 0) {
        char text[ISOTIME_KV_BYTES_MAX + 10];
        text[0] = '"';
        size_t len = 1 + isotime_kv(r->updated_us, text + 1);
        text[len++] = '"';
        since = arena_copy(arena, slice_make(text, len));
    }
    return won(out, p->op->slot, permit_write(p, p->op->slot, owner, since));
}

static bool release(struct permit *p, struct lock_outcome *out)
{
    uint32_t at = kv_find(p->e, permit_path(p, p->op->slot), p->now_us);
    out->slot = p->op->slot;
    if (at == 0 || kv_row_at(p->e, at)->version != p->op->token) return false;
    kv_remove(p->e, at);
    return won(out, p->op->slot, p->op->token);
}

static void op_do(struct permit *p, struct arena *arena, struct lock_outcome *out)
{
    bool done = false;
    switch ((enum lock_op_kind)p->op->kind) {
    case LOCK_ACQUIRE:
        done = acquire(p, out);
        break;
    case LOCK_RENEW:
        done = renew(p, arena, out);
        break;
    case LOCK_RELEASE:
        done = release(p, out);
        break;
    case LOCK_GET:
        break;
    }
    if (done) return;
    holders_collect(p, arena, out);
    if (p->op->kind == LOCK_GET) out->done = out->holder_count > 0;
}

static void ops_do(struct engine *e, const struct locks_command *c, int64_t now_us, struct arena *arena,
                   struct locks_result *out)
{
    struct slice rest = c->ops;
    struct lock_op op;
    out->count = c->op_count;
    out->items = arena_zero(arena, (c->op_count == 0 ? 1U : c->op_count) * sizeof out->items[0]);
    for (uint32_t i = 0; i < c->op_count; i++) {
        must(lock_op_next(&rest, &op));
        struct permit p = {.e = e, .tenant = c->tenant, .op = &op, .now_us = now_us};
        op_do(&p, arena, &out->items[i]);
    }
}

bool locks_apply(struct engine *e, const struct command *c, struct arena *arena, struct engine_result *r)
{
    struct locks_command locks;
    if (!locks_decode(c, &locks)) return false;
    ops_do(e, &locks, e->wall_us, arena, &r->locks);
    kv_sweep(e, 2 * locks.op_count + 8, e->wall_us);
    return true;
}

void engine_locks_read(struct engine *e, const struct locks_command *c, struct engine_now now, struct arena *arena,
                       struct locks_result *out)
{
    struct slice rest = c->ops;
    struct lock_op op;
    for (uint32_t i = 0; i < c->op_count; i++) must(lock_op_next(&rest, &op) && op.kind == LOCK_GET);
    ops_do(e, c, now.wall_us, arena, out);
    kv_values_bound(e, KV_LOOKS);
}
