/* An arena: memory with one lifetime (a request, a batch). Allocation is a pointer bump; nothing is freed singly.
 *
 *   first block (inline size chosen at init) -> bigger blocks, doubling up to 1 MiB, larger requests get their own
 *
 * Not thread-safe; an arena may be handed from thread to thread together with what it belongs to. Allocation never
 * returns NULL: out of memory stops the process (limits upstream keep demand bounded). Memory is 16-byte aligned and not
 * cleared, except by arena_zero. arena_reset keeps the first block for reuse; arena_free gives everything back. */
#ifndef QUEEN_BASE_ARENA_H
#define QUEEN_BASE_ARENA_H

#include "base/slice.h"

struct arena_block;

struct arena {
    struct arena_block *first;
    struct arena_block *now;
    size_t used;  /* bytes used of `now` */
    size_t total; /* bytes of all blocks */
};

void arena_init(struct arena *a);
void *arena_get(struct arena *a, size_t bytes);
void *arena_zero(struct arena *a, size_t bytes);
struct slice arena_copy(struct arena *a, struct slice s);
/* An array that grows: `items` (NULL at first) has `count` items and room for *cap. Gives it with room for one more: itself, or a copy of
 * twice the room; the one before stays in the arena. */
void *arena_room(struct arena *a, void *items, uint32_t count, uint32_t *cap, size_t item_bytes);
void arena_reset(struct arena *a);
void arena_free(struct arena *a);

#endif
