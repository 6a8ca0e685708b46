#include "base/heap.h"

#include <stdlib.h>

#include "base/must.h"

static bool node_less(const struct heap_node *a, const struct heap_node *b)
{
    return a->key != b->key ? a->key < b->key : a->tie < b->tie;
}

static void node_set(struct heap *h, uint32_t at, struct heap_node *n)
{
    h->nodes[at] = n;
    n->place = at + 1;
}

static void sift_up(struct heap *h, uint32_t at, struct heap_node *n)
{
    while (at > 0) {
        uint32_t parent = (at - 1) / 2;
        if (!node_less(n, h->nodes[parent])) break;
        node_set(h, at, h->nodes[parent]);
        at = parent;
    }
    node_set(h, at, n);
}

static void sift_down(struct heap *h, uint32_t at, struct heap_node *n)
{
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= h->count) break;
        if (child + 1 < h->count && node_less(h->nodes[child + 1], h->nodes[child])) child++;
        if (!node_less(h->nodes[child], n)) break;
        node_set(h, at, h->nodes[child]);
        at = child;
    }
    node_set(h, at, n);
}

void heap_put(struct heap *h, struct heap_node *n, int64_t key, uint64_t tie)
{
    heap_remove(h, n);
    if (h->count == h->cap) {
        h->cap = h->cap == 0 ? 16 : h->cap * 2;
        h->nodes = realloc(h->nodes, h->cap * sizeof h->nodes[0]);
        must(h->nodes != NULL);
    }
    n->key = key;
    n->tie = tie;
    sift_up(h, h->count++, n);
}

void heap_remove(struct heap *h, struct heap_node *n)
{
    if (n->place == 0) return;
    uint32_t at = n->place - 1;
    must(at < h->count && h->nodes[at] == n);
    n->place = 0;
    struct heap_node *last = h->nodes[--h->count];
    if (last == n) return;
    if (at > 0 && node_less(last, h->nodes[(at - 1) / 2])) {
        sift_up(h, at, last);
    } else {
        sift_down(h, at, last);
    }
}

void heap_free(struct heap *h)
{
    free(h->nodes);
    *h = (struct heap){0};
}
