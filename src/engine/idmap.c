#include "engine/idmap.h"

#include <stdlib.h>
#include <string.h>

#include "base/must.h"

/* hash bits: 58..63 shard, 32..63 tag (with the shard's bits), 0..31 place. */
static struct idmap_shard *shard_of(const struct idmap *m, uint64_t hash)
{
    return (struct idmap_shard *)(uintptr_t)&m->shards[hash >> 58];
}

/* Of a hash or a slot. */
static uint32_t home_of(const struct idmap_shard *s, uint64_t tag_and_more)
{
    uint64_t x = (tag_and_more >> 32) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(x >> 32) & (s->cap - 1);
}

static void slot_place(struct idmap_shard *s, uint64_t slot)
{
    uint32_t i = home_of(s, slot);
    while (s->slots[i] != 0) i = (i + 1) & (s->cap - 1);
    s->slots[i] = slot;
}

static void shard_grow(struct idmap_shard *s)
{
    struct idmap_shard bigger = {.cap = s->cap == 0 ? 16 : s->cap * 2, .count = s->count};
    bigger.slots = calloc(bigger.cap, sizeof bigger.slots[0]);
    must(bigger.slots != NULL);
    for (uint32_t i = 0; i < s->cap; i++) {
        if (s->slots[i] != 0) slot_place(&bigger, s->slots[i]);
    }
    free(s->slots);
    *s = bigger;
}

void idmap_add(struct idmap *m, uint64_t hash, uint32_t number)
{
    struct idmap_shard *s = shard_of(m, hash);
    must(number != 0);
    if ((uint64_t)(s->count + 1) * 4 > (uint64_t)s->cap * 3) shard_grow(s);
    slot_place(s, (hash >> 32) << 32 | number);
    s->count++;
}

void idmap_prefetch(const struct idmap *m, uint64_t hash)
{
    const struct idmap_shard *s = shard_of(m, hash);
    if (s->cap != 0) __builtin_prefetch(&s->slots[home_of(s, hash)], 1);
}

uint32_t idmap_next(const struct idmap *m, uint64_t hash, uint32_t *at)
{
    const struct idmap_shard *s = shard_of(m, hash);
    if (s->cap == 0) return 0;
    uint64_t tag = hash >> 32;
    uint32_t home = home_of(s, hash);
    for (; *at < s->cap; (*at)++) {
        uint64_t slot = s->slots[(home + *at) & (s->cap - 1)];
        if (slot == 0) return 0;
        if (slot >> 32 == tag) {
            (*at)++;
            return (uint32_t)slot;
        }
    }
    return 0;
}

void idmap_remove(struct idmap *m, uint64_t hash, uint32_t number)
{
    struct idmap_shard *s = shard_of(m, hash);
    uint64_t wanted = (hash >> 32) << 32 | number;
    must(s->cap != 0);
    uint32_t mask = s->cap - 1, i = home_of(s, wanted);
    while (s->slots[i] != wanted) {
        must(s->slots[i] != 0);
        i = (i + 1) & mask;
    }
    for (uint32_t j = (i + 1) & mask; s->slots[j] != 0; j = (j + 1) & mask) {
        uint32_t home = home_of(s, s->slots[j]);
        if (((j - home) & mask) < ((j - i) & mask)) continue;
        s->slots[i] = s->slots[j];
        i = j;
    }
    s->slots[i] = 0;
    s->count--;
}

uint64_t idmap_bytes(const struct idmap *m)
{
    uint64_t slots = 0;
    for (int i = 0; i < IDMAP_SHARDS; i++) slots += m->shards[i].cap;
    return slots * sizeof m->shards[0].slots[0];
}

void idmap_free(struct idmap *m)
{
    for (int i = 0; i < IDMAP_SHARDS; i++) free(m->shards[i].slots);
    *m = (struct idmap){0};
}
