/* A binary min-heap of things due at a time. Intrusive: an element holds a struct heap_node and so can be removed or
 * moved in O(log n). Equal keys leave in the order of their second key (`tie`, for example an arrival number), so the order
 * never depends on addresses. Not thread-safe. */
#ifndef QUEEN_BASE_HEAP_H
#define QUEEN_BASE_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct heap_node {
    int64_t key;
    uint64_t tie;
    uint32_t place; /* 1 + index in the heap; 0 = not in one. A node starts zeroed */
};

struct heap {
    struct heap_node **nodes;
    uint32_t count, cap;
};

void heap_put(struct heap *h, struct heap_node *n, int64_t key, uint64_t tie); /* also moves one that is in */
void heap_remove(struct heap *h, struct heap_node *n);                         /* no-op when it is not in */
void heap_free(struct heap *h);

static inline struct heap_node *heap_min(const struct heap *h)
{
    return h->count == 0 ? NULL : h->nodes[0];
}

static inline bool heap_holds(const struct heap_node *n)
{
    return n->place != 0;
}

#endif
