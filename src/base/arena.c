#include "base/arena.h"

#include <stdlib.h>

#include "base/must.h"

enum { BLOCK_FIRST = 2048, BLOCK_MAX = 1 << 20 };

struct arena_block {
    struct arena_block *next;
    size_t size;
    _Alignas(16) char data[];
};

void arena_init(struct arena *a)
{
    *a = (struct arena){0};
}

static struct arena_block *block_new(size_t size)
{
    struct arena_block *b = malloc(sizeof *b + size);
    must(b != NULL);
    b->next = NULL;
    b->size = size;
    return b;
}

static void *arena_grow(struct arena *a, size_t bytes)
{
    size_t size = a->now == NULL ? BLOCK_FIRST : a->now->size * 2;
    if (size > BLOCK_MAX) size = BLOCK_MAX;
    if (size < bytes) size = bytes;
    struct arena_block *b = block_new(size);
    if (a->now == NULL) {
        a->first = b;
    } else {
        b->next = a->now->next;
        a->now->next = b;
    }
    a->now = b;
    a->used = bytes;
    a->total += size;
    return b->data;
}

void *arena_get(struct arena *a, size_t bytes)
{
    bytes = (bytes + 15) & ~(size_t)15;
    if (a->now == NULL || a->now->size - a->used < bytes) return arena_grow(a, bytes);
    void *at = a->now->data + a->used;
    a->used += bytes;
    return at;
}

void *arena_zero(struct arena *a, size_t bytes)
{
    void *at = arena_get(a, bytes);
    memset(at, 0, bytes);
    return at;
}

struct slice arena_copy(struct arena *a, struct slice s)
{
    if (s.len == 0) return (struct slice){.at = "", .len = 0};
    char *at = arena_get(a, s.len);
    memcpy(at, s.at, s.len);
    return slice_make(at, s.len);
}

static void blocks_free(struct arena_block *b)
{
    while (b != NULL) {
        struct arena_block *next = b->next;
        free(b);
        b = next;
    }
}

void *arena_room(struct arena *a, void *items, uint32_t count, uint32_t *cap, size_t item_bytes)
{
    if (count < *cap) return items;
    *cap = *cap == 0 ? 16 : *cap * 2;
    void *larger = arena_get(a, *cap * item_bytes);
    if (count > 0) memcpy(larger, items, count * item_bytes);
    return larger;
}

void arena_reset(struct arena *a)
{
    if (a->first == NULL) return;
    blocks_free(a->first->next);
    a->first->next = NULL;
    a->now = a->first;
    a->used = 0;
    a->total = a->first->size;
}

void arena_free(struct arena *a)
{
    blocks_free(a->first);
    *a = (struct arena){0};
}
