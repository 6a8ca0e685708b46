#include "store/store_inner.h"

static bool text_begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

enum store_status store_error(char *text, const char *doing, const char *dir, struct buf *error)
{
    must(text != NULL);
    /* A file that should be there and is not is damage, not a device that fails. */
    bool io = text_begins(text, "IO error") && strstr(text, "No such file") == NULL;
    bool locked = io && strstr(text, "lock") != NULL && strstr(text, "LOCK") != NULL;
    if (error != NULL && locked) {
        buf_printf(error, "%s: the store is in use by another process (%s)", dir, text);
    } else if (error != NULL) {
        buf_printf(error, "%s: %s: %s", dir, doing, text);
    }
    rocksdb_free(text);
    return io ? STORE_IO : STORE_DAMAGED;
}

static rocksdb_readoptions_t *read_options_new(bool fill_cache)
{
    rocksdb_readoptions_t *r = rocksdb_readoptions_create();
    rocksdb_readoptions_set_verify_checksums(r, 1);
    rocksdb_readoptions_set_fill_cache(r, fill_cache);
    return r;
}

/* Do all keys of the range begin with the same STORE_PREFIX_BYTES? */
static bool one_prefix(struct slice from, struct slice to)
{
    char next[STORE_PREFIX_BYTES];
    if (from.len < sizeof next || to.len < sizeof next) return false;
    if (memcmp(from.at, to.at, sizeof next) == 0) return true;
    memcpy(next, from.at, sizeof next);
    for (size_t i = sizeof next; i-- > 0 && ++next[i] == 0;) continue;
    return to.len == sizeof next && memcmp(next, to.at, sizeof next) == 0;
}

/* Of one prefix: the files' filters tell which have any of it. */
static char *rows_scan(struct store *s, bool fill_cache, struct slice from, struct slice to, size_t readahead_bytes,
                       bool (*row)(void *ctx, struct slice key, struct slice value), void *ctx)
{
    bool one = one_prefix(from, to);
    rocksdb_readoptions_t *r = read_options_new(fill_cache);
    rocksdb_readoptions_set_total_order_seek(r, !one);
    rocksdb_readoptions_set_prefix_same_as_start(r, one);
    if (to.len > 0) rocksdb_readoptions_set_iterate_upper_bound(r, to.at, to.len);
    if (readahead_bytes > 0) rocksdb_readoptions_set_readahead_size(r, readahead_bytes);
    rocksdb_iterator_t *it = rocksdb_create_iterator(store_rocksdb(s), r);
    for (rocksdb_iter_seek(it, from.at, from.len); rocksdb_iter_valid(it); rocksdb_iter_next(it)) {
        struct slice key, value;
        key.at = rocksdb_iter_key(it, &key.len);
        value.at = rocksdb_iter_value(it, &value.len);
        if (!row(ctx, key, value)) break;
    }
    char *text = NULL;
    rocksdb_iter_get_error(it, &text);
    rocksdb_iter_destroy(it);
    rocksdb_readoptions_destroy(r);
    return text;
}

char *scan_rows(struct store *s, struct slice from, struct slice to, size_t readahead_bytes,
                bool (*row)(void *ctx, struct slice key, struct slice value), void *ctx)
{
    return rows_scan(s, false, from, to, readahead_bytes, row, ctx);
}

static enum store_status scan(struct store *s, bool fill_cache, struct slice from, struct slice to,
                              bool (*row)(void *ctx, struct slice key, struct slice value), void *ctx, struct buf *error)
{
    static const char first_key[] = {STORE_KIND_OWN + 1};
    if (from.len == 0) from = slice_make(first_key, 1);
    must(from.at[0] != STORE_KIND_OWN);
    char *text = rows_scan(s, fill_cache, from, to, 0, row, ctx);
    return text == NULL ? STORE_OK : store_error(text, "a scan failed", store_dir(s), error);
}

enum store_status store_scan(struct store *s, struct slice from, struct slice to,
                             bool (*row)(void *ctx, struct slice key, struct slice value), void *ctx, struct buf *error)
{
    return scan(s, false, from, to, row, ctx, error);
}

enum store_status store_find(struct store *s, struct slice from, struct slice to,
                             bool (*row)(void *ctx, struct slice key, struct slice value), void *ctx, struct buf *error)
{
    return scan(s, true, from, to, row, ctx, error);
}

static bool row_count(void *ctx, struct slice key, struct slice value)
{
    size_t *left = ctx, bytes = key.len + value.len;
    if (*left <= bytes) return false;
    *left -= bytes;
    return true;
}

void store_warm(struct store *s, struct slice from, struct slice to, size_t bytes)
{
    scan(s, true, from, to, row_count, &bytes, NULL);
}

enum store_status store_get(struct store *s, struct slice key, struct buf *out, bool *found, struct buf *error)
{
    must(key.len > 0);
    char *text = NULL;
    rocksdb_readoptions_t *r = read_options_new(true);
    rocksdb_pinnableslice_t *row = rocksdb_get_pinned(store_rocksdb(s), r, key.at, key.len, &text);
    rocksdb_readoptions_destroy(r);
    *found = row != NULL;
    if (row != NULL) {
        size_t len = 0;
        const char *at = rocksdb_pinnableslice_value(row, &len);
        buf_put(out, at, len);
        rocksdb_pinnableslice_destroy(row);
    }
    return text == NULL ? STORE_OK : store_error(text, "a read failed", store_dir(s), error);
}
