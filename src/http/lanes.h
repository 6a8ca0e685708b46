/* The lanes that the items of a call go to, numbered in order of first appearance. (Also the groups of acks: then without partitions.)
 *
 * A few are looked through, more are found through a hash table. Memory is the arena's. Linear, about 10 ns an item that goes where the
 * one before it went. */
#ifndef QUEEN_HTTP_LANES_H
#define QUEEN_HTTP_LANES_H

#include "base/arena.h"

struct lane {
    struct slice queue, partition;
    uint32_t count;     /* items: the caller counts */
    uint32_t start;     /* number of the first one in the command: the caller's, once all are counted */
    void *first, *last; /* the caller's: a list of the items */
};

struct lanes {
    struct lane *items;
    uint32_t count, cap;
    uint32_t last;   /* found last */
    uint32_t *table; /* open addressing, 1 + index; NULL while there are few. At most half full */
    uint32_t table_mask;
};

/* Number of the lane; a new one has all else zero. Starts from a zeroed struct. */
uint32_t lanes_find(struct lanes *l, struct arena *arena, struct slice queue, struct slice partition);

#endif
