/* Inside of the store room. */
#ifndef QUEEN_STORE_STORE_INNER_H
#define QUEEN_STORE_STORE_INNER_H

#include <rocksdb/c.h>

#include "store/store.h"

/* Rows of some kinds have a RocksDB column family of their own, by how they come and go. A flush is of all families at once.
 *
 *   MIXED  everything else: changed in any order
 *   BRIEF  written in rising order and soon deleted: many runs lie until they are merged once, and most is deleted by then
 *   ONCE   written once, in about rising order, never changed, deleted in ranges: files are moved, not merged, a row is found in one file.
 *          No deletion is written: a tombstone's file would span, and rewrite, all between it and the newest rows. When the batch that
 *          deletes a range is durable, the files that lie in it are removed */
enum family_way { FAMILY_MIXED, FAMILY_BRIEF, FAMILY_ONCE };
enum { STORE_FAMILIES = 4 };

struct store_family {
    const char *name;
    enum family_way way;
    const char *from, *to; /* one byte each: its kind and the next. NULL for the first, which has what no other has */
};
extern const struct store_family STORE_FAMILY[STORE_FAMILIES];
int store_family_of(struct slice key);

/* A range of keys, family by family, in key order. Begin with {from, to}; an empty `to` is no bound. */
struct store_walk {
    struct slice from, to;
    bool over;
};
bool store_walk_next(struct store_walk *w, struct slice *from, struct slice *to, int *family);

/* A batch holds its rows in RocksDB's own form of a write batch (the one of its log and its replication interface), so that the
 * group thread appends bytes and the store thread hands them over without a call a row:
 *
 *   sequence 8 | count 4 | rows:  tag 1 | [varint family] | varint length, key | varint length, value or end of range */
enum { BATCH_HEAD_BYTES = 12 };

struct store_batch {
    struct store_batch *next;       /* in the lists of waiting and written ones */
    struct store_batch *next_flush; /* in the lists of those that asked for a flush */
    struct buf rows;
    struct buf gone; /* ranges of ONCE families: family 1 | lengths 2 + 2 | from | to */
    const uint32_t *family_ids;
    uint32_t count;
    struct store_mark mark;
    bool flush;
    void *ctx;
    void (*written)(void *ctx, struct store_mark mark);
    void (*flushed)(void *ctx, struct store_mark mark);
    /* No batch but the order to make a checkpoint in this place of the line. */
    char *checkpoint_dir; /* NULL: a batch */
    char *checkpoint_error;
    void (*checkpoint_done)(void *ctx, struct store_mark mark, const char *error);
};

/* Kind and two numbers: a lane with its cursors, a lane's runs. Filters know which a file has, so that reading one looks into few files. */
enum { STORE_PREFIX_BYTES = 9 };

enum { STORE_FORMAT = 2, STORE_KIND_OWN = 0, MARK_BYTES = 24 };

struct slice store_mark_key(void);
struct slice store_format_key(void);

void batch_reset(struct store_batch *b);
void batch_put(struct store_batch *b, struct slice key, struct slice value); /* any kind of key */
void batch_mark_put(struct store_batch *b);
void batch_head_put(struct buf *rows, uint32_t count);

/* One for each family; that of the first has what is of the whole database. On an error there are none, and no cache. */
void options_new(const struct store_options *o, rocksdb_options_t *out[STORE_FAMILIES], rocksdb_cache_t **cache, char **error);

/* Turns RocksDB's text into a status and a sentence; frees `text`. */
enum store_status store_error(char *text, const char *doing, const char *dir, struct buf *error);

/* What store_scan does, within one family or several. Gives RocksDB's text of an error, or NULL. readahead_bytes 0: RocksDB's own way. */
char *scan_rows(struct store *s, struct slice from, struct slice to, size_t readahead_bytes,
                bool (*row)(void *ctx, struct slice key, struct slice value), void *ctx);

rocksdb_t *store_rocksdb(struct store *s);
rocksdb_column_family_handle_t *store_rocks_family(struct store *s, int family);
const char *store_dir(const struct store *s);

#endif
