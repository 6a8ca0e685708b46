/* A hash index from names (or any hashed key) to record numbers: 8 bytes a slot, the upper half of the hash beside the number.
 * Sharded, so that growing moves one shard and never stalls a batch for long. The caller compares the full key of a candidate.
 *
 *   uint32_t at = 0, number;
 *   while ((number = idmap_next(&m, hash, &at)) != 0) if (key of number is the one) break;
 */
#ifndef QUEEN_ENGINE_IDMAP_H
#define QUEEN_ENGINE_IDMAP_H

#include <stddef.h>
#include <stdint.h>

enum { IDMAP_SHARDS = 64 };

struct idmap_shard {
    uint64_t *slots; /* hash tag << 32 | number; 0 = empty */
    uint32_t cap, count;
};

struct idmap {
    struct idmap_shard shards[IDMAP_SHARDS];
};

void idmap_add(struct idmap *m, uint64_t hash, uint32_t number);
/* The slot of an idmap_add to come is on its way into the cache then. */
void idmap_prefetch(const struct idmap *m, uint64_t hash);
void idmap_remove(struct idmap *m, uint64_t hash, uint32_t number); /* must be there */
/* Candidates for a hash, one a call; `at` starts at 0. 0 at the end. */
uint32_t idmap_next(const struct idmap *m, uint64_t hash, uint32_t *at);
uint64_t idmap_bytes(const struct idmap *m);
void idmap_free(struct idmap *m);

#endif
