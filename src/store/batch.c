#include <stdlib.h>

#include "store/store_inner.h"

/* Tags of RocksDB's write batch; part of its stable log format. */
enum { TAG_DELETE = 0x00, TAG_PUT = 0x01, TAG_DELETE_RANGE = 0x0f };
/* The same of a named column family. */
enum { TAG_FAMILY_DELETE = 0x04, TAG_FAMILY_PUT = 0x05, TAG_FAMILY_DELETE_RANGE = 0x0e };

enum { VARINT_BYTES_MAX = 5 };

static char *varint_put(char *at, uint32_t v)
{
    while (v >= 128) {
        *at++ = (char)(v | 128);
        v >>= 7;
    }
    *at++ = (char)v;
    return at;
}

static char *slice_put(char *at, struct slice s)
{
    at = varint_put(at, (uint32_t)s.len);
    memcpy(at, s.at, s.len);
    return at + s.len;
}

static char family_tag(char tag)
{
    if (tag == TAG_DELETE) return TAG_FAMILY_DELETE;
    return tag == TAG_PUT ? TAG_FAMILY_PUT : TAG_FAMILY_DELETE_RANGE;
}

/* One row of a key and, unless it is NULL, a second part. */
static void row_put(struct store_batch *b, char tag, struct slice key, const struct slice *second)
{
    int family = store_family_of(key);
    must(key.len > 0 && key.len < UINT32_MAX && b->count < UINT32_MAX);
    must(second == NULL || second->len < UINT32_MAX);
    size_t most = 1 + 2 * VARINT_BYTES_MAX + key.len + (second == NULL ? 0 : VARINT_BYTES_MAX + second->len);
    char *from = buf_reserve(&b->rows, most), *at = from;
    *at++ = family == 0 ? tag : family_tag(tag);
    if (family != 0) at = varint_put(at, b->family_ids[family]);
    at = slice_put(at, key);
    if (second != NULL && second->len == 0) {
        *at++ = 0;
    } else if (second != NULL) {
        at = slice_put(at, *second);
    }
    b->rows.len += (size_t)(at - from);
    b->count++;
}

void batch_head_put(struct buf *rows, uint32_t count)
{
    must(rows->len >= BATCH_HEAD_BYTES);
    memset(rows->at, 0, BATCH_HEAD_BYTES);
    memcpy(rows->at + 8, &count, sizeof count);
}

void batch_reset(struct store_batch *b)
{
    b->rows.len = b->gone.len = 0;
    b->count = 0;
    b->next = NULL;
    buf_reserve(&b->rows, BATCH_HEAD_BYTES);
    b->rows.len = BATCH_HEAD_BYTES;
}

void batch_put(struct store_batch *b, struct slice key, struct slice value)
{
    row_put(b, TAG_PUT, key, &value);
}

static bool key_is_callers(struct slice key)
{
    return key.len > 0 && key.at[0] != STORE_KIND_OWN;
}

void store_batch_put(struct store_batch *b, struct slice key, struct slice value)
{
    must(key_is_callers(key));
    row_put(b, TAG_PUT, key, &value);
}

void store_batch_delete(struct store_batch *b, struct slice key)
{
    must(key_is_callers(key) && STORE_FAMILY[store_family_of(key)].way != FAMILY_ONCE);
    row_put(b, TAG_DELETE, key, NULL);
}

void store_batch_delete_range(struct store_batch *b, struct slice from, struct slice to)
{
    must(key_is_callers(from) && key_is_callers(to));
    if (slice_compare(from, to) >= 0) return;
    int family = store_family_of(from);
    must(family == 0 || slice_compare(to, slice_make(STORE_FAMILY[family].to, 1)) <= 0);
    if (STORE_FAMILY[family].way == FAMILY_ONCE) {
        uint16_t lens[2] = {(uint16_t)from.len, (uint16_t)to.len};
        must(from.len <= UINT16_MAX && to.len <= UINT16_MAX);
        buf_byte(&b->gone, (char)family);
        buf_put(&b->gone, lens, sizeof lens);
        buf_slice(&b->gone, from);
        buf_slice(&b->gone, to);
        return;
    }
    row_put(b, TAG_DELETE_RANGE, from, &to);
}

size_t store_batch_bytes(const struct store_batch *b)
{
    return b->rows.len - BATCH_HEAD_BYTES;
}

struct slice store_mark_key(void)
{
    return slice_make("\0mark", 5);
}

struct slice store_format_key(void)
{
    return slice_make("\0format", 7);
}

void batch_mark_put(struct store_batch *b)
{
    uint64_t value[3] = {b->mark.index, b->mark.term, b->mark.scan_pos};
    _Static_assert(sizeof value == MARK_BYTES, "the mark row");
    row_put(b, TAG_PUT, store_mark_key(), &(struct slice){.at = (const char *)value, .len = sizeof value});
}
