/* An ordered, counted set of record numbers: a B+ tree whose order is that of the records' keys (byte strings). It holds 4 bytes a
 * record; the keys stay in the records and are asked for when comparing.
 *
 * Finding, inserting, removing, counting what lies before a key: O(log n) key comparisons. Walking on from a place, or back: O(1).
 * A record's key may not change while it is in, and its record must exist until it was removed. Not thread-safe. */
#ifndef QUEEN_ENGINE_TREE_H
#define QUEEN_ENGINE_TREE_H

#include <stdint.h>

#include "base/slice.h"

struct tree_leaf;

struct tree {
    struct slice (*key)(const void *ctx, uint32_t record);
    const void *ctx;
    void *root; /* a leaf when height is 0 */
    uint32_t height;
    uint64_t count;
};

/* A place in the order; not valid any more once the tree has changed. */
struct tree_place {
    const struct tree_leaf *leaf;
    uint32_t index;
};

void tree_init(struct tree *t, struct slice (*key)(const void *ctx, uint32_t record), const void *ctx);
void tree_insert(struct tree *t, uint32_t record); /* its key is not in yet */
void tree_remove(struct tree *t, uint32_t record); /* must be in */
void tree_free(struct tree *t);

/* The first record whose key is >= `key`. */
struct tree_place tree_seek(const struct tree *t, struct slice key);
/* The record there, and on to the next place; 0 at the end. */
uint32_t tree_next(struct tree_place *p);
/* The record before the place, which moves there; 0 at the start. */
uint32_t tree_previous(struct tree_place *p);
/* How many records have a smaller key. */
uint64_t tree_rank(const struct tree *t, struct slice key);
/* The smallest byte string behind all that begin with `prefix`, written to `out` (prefix.len bytes of room): false when there is none. */
bool tree_prefix_end(struct slice prefix, char *out, struct slice *end);

#endif
