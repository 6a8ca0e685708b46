/* Which keys a set may have: a split block Bloom filter. A key has one block of 64 bytes (one cache line) and in each of its eight words one
 * bit; in a thin filter, of few bits a key, in each of four. It never says no to a key that was added; with 18 bits a key it says yes to
 * 0.05 % of the others, with 14 to 0.2 %, with 10 to 1.2 %, with 7 to 4 %.
 *
 * Blocks lie in the order of the keys' low words, so that a range of keys has a range of blocks. */
#ifndef QUEEN_ENGINE_DEDUP_FILTER_H
#define QUEEN_ENGINE_DEDUP_FILTER_H

#include "engine/dedup.h"

enum { DEDUP_FILTER_WORDS = 8, DEDUP_BLOCK_BYTES = 64 };

struct dedup_filter {
    uint64_t (*blocks)[DEDUP_FILTER_WORDS]; /* NULL: there is none, every key may be in the set */
    uint32_t count;
    bool thin;
};

static inline uint32_t dedup_filter_block(const struct dedup_filter *f, struct dedup_key k)
{
    return (uint32_t)((unsigned __int128)k.low * f->count >> 64);
}

/* Six bits for each word, from the top. The block takes the key's highest bits: these are of the others. */
static inline uint64_t dedup_filter_bits(struct dedup_key k)
{
    return ((uint64_t)k.high << 24 ^ (k.low & 0xffffff)) * UINT64_C(0x9e3779b97f4a7c15);
}

/* Of a thin filter's block: the first word of the half that is the key's. */
static inline uint32_t dedup_filter_half(uint64_t bits)
{
    return (uint32_t)(bits >> 39 & 1) * (DEDUP_FILTER_WORDS / 2);
}

static inline void dedup_filter_prefetch(const struct dedup_filter *f, struct dedup_key k)
{
    if (f->blocks != NULL) __builtin_prefetch(f->blocks[dedup_filter_block(f, k)]);
}

static inline bool dedup_filter_may_have(const struct dedup_filter *f, struct dedup_key k)
{
    if (f->blocks == NULL) return true;
    const uint64_t *block = f->blocks[dedup_filter_block(f, k)];
    uint64_t bits = dedup_filter_bits(k), all = 1;
    if (f->thin) {
        block += dedup_filter_half(bits);
        for (int i = 0; i < DEDUP_FILTER_WORDS / 2; i++) all &= block[i] >> (bits >> (40 + 6 * i) & 63);
    } else {
        for (int i = 0; i < DEDUP_FILTER_WORDS; i++) all &= block[i] >> (bits >> (16 + 6 * i) & 63);
    }
    return all & 1;
}

static inline void dedup_filter_add(struct dedup_filter *f, struct dedup_key k)
{
    uint64_t *block = f->blocks[dedup_filter_block(f, k)];
    uint64_t bits = dedup_filter_bits(k);
    if (f->thin) {
        block += dedup_filter_half(bits);
        for (int i = 0; i < DEDUP_FILTER_WORDS / 2; i++) block[i] |= UINT64_C(1) << (bits >> (40 + 6 * i) & 63);
        return;
    }
    for (int i = 0; i < DEDUP_FILTER_WORDS; i++) block[i] |= UINT64_C(1) << (bits >> (16 + 6 * i) & 63);
}

/* Empty, of so many blocks, for so many keys. The memory is touched when keys are added. */
void dedup_filter_make(struct dedup_filter *f, uint32_t blocks, uint64_t keys);
void dedup_filter_drop(struct dedup_filter *f); /* its count stays */

static inline uint64_t dedup_filter_memory(const struct dedup_filter *f)
{
    return f->blocks == NULL ? 0 : (uint64_t)f->count * DEDUP_BLOCK_BYTES;
}

#endif
