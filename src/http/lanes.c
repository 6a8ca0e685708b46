#include "http/lanes.h"

#include "base/hash.h"

enum { LANES_SCANNED = 8 };

static bool lane_is(const struct lane *l, struct slice queue, struct slice partition)
{
    return slice_equal(l->partition, partition) && slice_equal(l->queue, queue);
}

static uint32_t *table_slot(const struct lanes *l, struct slice queue, struct slice partition)
{
    uint32_t at = (uint32_t)hash64(partition, hash64(queue, 0)) & l->table_mask;
    while (l->table[at] != 0 && !lane_is(&l->items[l->table[at] - 1], queue, partition)) at = (at + 1) & l->table_mask;
    return &l->table[at];
}

static void table_build(struct lanes *l, struct arena *arena)
{
    uint32_t size = 32;
    while (size < l->count * 4) size *= 2;
    l->table = arena_zero(arena, size * sizeof *l->table);
    l->table_mask = size - 1;
    for (uint32_t i = 0; i < l->count; i++) *table_slot(l, l->items[i].queue, l->items[i].partition) = i + 1;
}

static uint32_t lane_add(struct lanes *l, struct arena *arena, struct slice queue, struct slice partition)
{
    if (l->count == l->cap) {
        uint32_t cap = l->cap == 0 ? 4 : l->cap * 2;
        struct lane *grown = arena_get(arena, cap * sizeof *grown);
        if (l->count > 0) memcpy(grown, l->items, l->count * sizeof *grown);
        l->items = grown;
        l->cap = cap;
    }
    l->items[l->count] = (struct lane){.queue = queue, .partition = partition};
    return l->count++;
}

uint32_t lanes_find(struct lanes *l, struct arena *arena, struct slice queue, struct slice partition)
{
    if (l->last < l->count && lane_is(&l->items[l->last], queue, partition)) return l->last;
    if (l->table == NULL) {
        for (uint32_t i = 0; i < l->count; i++) {
            if (lane_is(&l->items[i], queue, partition)) return l->last = i;
        }
        if (l->count < LANES_SCANNED) return l->last = lane_add(l, arena, queue, partition);
        table_build(l, arena);
    }
    uint32_t *slot = table_slot(l, queue, partition);
    if (*slot == 0) {
        *slot = 1 + lane_add(l, arena, queue, partition);
        l->last = *slot - 1;
        if (l->count * 2 > l->table_mask) table_build(l, arena);
        return l->last;
    }
    return l->last = *slot - 1;
}
