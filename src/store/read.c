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

struct scan {
    bool fill_cache;
    size_t readahead_bytes;
    bool (*row)(void *ctx, struct slice key, struct slice value);
    void *ctx;
    bool over; /* `row` wants no more */
};

/* Of one prefix: the files' filters tell which have any of it. */
static char *range_scan(struct store *s, struct scan *c, struct slice from, struct slice to, int family)
{
    bool one = STORE_FAMILY[family].way == FAMILY_MIXED && one_prefix(from, to);
    rocksdb_readoptions_t *r = read_options_new(c->fill_cache);
    rocksdb_readoptions_set_total_order_seek(r, !one);
    rocksdb_readoptions_set_prefix_same_as_start(r, one);
    if (to.len > 0) rocksdb_readoptions_set_iterate_upper_bound(r, to.at, to.len);
    if (c->readahead_bytes > 0) rocksdb_readoptions_set_readahead_size(r, c->readahead_bytes);
    rocksdb_iterator_t *it = rocksdb_create_iterator_cf(store_rocksdb(s), r, store_rocks_family(s, family));
    for (rocksdb_iter_seek(it, from.at, from.len); !c->over && rocksdb_iter_valid(it); rocksdb_iter_next(it)) {
        struct slice key, value;
        key.at = rocksdb_iter_key(it, &key.len);
        value.at = rocksdb_iter_value(it, &value.len);
        c->over = !c->row(c->ctx, key, value);
    }
    char *text = NULL;
    rocksdb_iter_get_error(it, &text);
    rocksdb_iter_destroy(it);
    rocksdb_readoptions_destroy(r);
    return text;
}

static rocksdb_pinnableslice_t *row_get(struct store *s, bool fill_cache, struct slice key, struct slice *value, char **text)
{
    rocksdb_readoptions_t *r = read_options_new(fill_cache);
    rocksdb_column_family_handle_t *family = store_rocks_family(s, store_family_of(key));
    rocksdb_pinnableslice_t *row = rocksdb_get_pinned_cf(store_rocksdb(s), r, family, key.at, key.len, text);
    rocksdb_readoptions_destroy(r);
    if (row != NULL) value->at = rocksdb_pinnableslice_value(row, &value->len);
    return row;
}

static bool one_key(struct slice from, struct slice to)
{
    return to.len == from.len + 1 && to.at[from.len] == 0 && memcmp(from.at, to.at, from.len) == 0;
}

static char *rows_scan(struct store *s, struct scan *c, struct slice from, struct slice to)
{
    char *text = NULL;
    int family;
    if (one_key(from, to)) {
        struct slice value;
        rocksdb_pinnableslice_t *row = row_get(s, c->fill_cache, from, &value, &text);
        if (row == NULL) return text;
        c->row(c->ctx, from, value);
        rocksdb_pinnableslice_destroy(row);
        return NULL;
    }
    for (struct store_walk w = {from, to, false}; text == NULL && !c->over && store_walk_next(&w, &from, &to, &family);)
        text = range_scan(s, c, from, to, family);
    return text;
}

char *scan_rows(struct store *s, struct slice from, struct slice to, size_t readahead_bytes,
                bool (*row)(void *ctx, struct slice key, struct slice value), void *ctx)
{
    struct scan c = {.readahead_bytes = readahead_bytes, .row = row, .ctx = ctx};
    return rows_scan(s, &c, from, to);
}

static enum store_status scan(struct store *s, bool fill_cache, struct slice from, struct slice to,
                              bool (*row)(void *ctx, struct slice key, struct slice value), void *ctx, struct buf *error)
{
    static const char first_key[] = {STORE_KIND_OWN + 1};
    if (from.len == 0) from = slice_make(first_key, 1);
    must(from.at[0] != STORE_KIND_OWN);
    struct scan c = {.fill_cache = fill_cache, .row = row, .ctx = ctx};
    char *text = rows_scan(s, &c, from, to);
    return text == NULL ? STORE_OK : store_error(text, "a scan failed", store_dir(s), error);
}

enum store_status store_scan(struct store *s, struct slice from, struct slice to,
                             bool (*row)(void *ctx, struct slice key, struct slice value), void *ctx, struct buf *error)
{
    return scan(s, false, from, to, row, ctx, error);
}

/* RocksDB counts for each thread what it does, while it is told to. */
enum store_status store_find(struct store *s, struct slice from, struct slice to,
                             bool (*row)(void *ctx, struct slice key, struct slice value), void *ctx, uint64_t *blocks_read,
                             struct buf *error)
{
    if (blocks_read == NULL) return scan(s, true, from, to, row, ctx, error);
    rocksdb_perfcontext_t *counts = rocksdb_perfcontext_create(); /* the thread's own */
    rocksdb_set_perf_level(rocksdb_enable_count);
    uint64_t before = rocksdb_perfcontext_metric(counts, rocksdb_block_read_count);
    enum store_status status = scan(s, true, from, to, row, ctx, error);
    *blocks_read += rocksdb_perfcontext_metric(counts, rocksdb_block_read_count) - before;
    rocksdb_set_perf_level(rocksdb_disable);
    rocksdb_perfcontext_destroy(counts);
    return status;
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
    struct slice value;
    char *text = NULL;
    rocksdb_pinnableslice_t *row = row_get(s, true, key, &value, &text);
    *found = row != NULL;
    if (row != NULL) {
        buf_slice(out, value);
        rocksdb_pinnableslice_destroy(row);
    }
    return text == NULL ? STORE_OK : store_error(text, "a read failed", store_dir(s), error);
}
