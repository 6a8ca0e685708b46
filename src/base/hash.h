/* Hashes: thin wrappers of xxHash (XXH3) and CRC32C. Stable for ever: some are stored. */
#ifndef QUEEN_BASE_HASH_H
#define QUEEN_BASE_HASH_H

#include "base/slice.h"

struct hash128 {
    uint64_t low, high;
};

uint64_t hash64(struct slice s, uint64_t seed);
struct hash128 hash128(struct slice s, uint64_t seed);

/* CRC32C (Castagnoli) of the bytes, going on from `crc` (0 to begin). Uses SSE4.2 where the machine has it. */
uint32_t crc32c(uint32_t crc, const void *at, size_t len);

#endif
