#include "engine/ids.h"

#define OFFSET_BITS 42
#define OFFSET_MASK ((UINT64_C(1) << OFFSET_BITS) - 1)

static uint32_t round_mix(uint32_t half, uint64_t seed, uint32_t round)
{
    uint64_t x = (half + UINT64_C(0x9e3779b97f4a7c15) * (round + 1)) ^ seed;
    x ^= x >> 31;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 29;
    x *= UINT64_C(0x94d049bb133111eb);
    return (uint32_t)(x >> 40) & 0xffffU;
}

/* A Feistel network over 2 x 16 bits: one-to-one for every seed, so two numbers never share a tag. */
static uint32_t tag_make(uint64_t seed, uint32_t number)
{
    uint32_t left = number >> 16, right = number & 0xffffU;
    for (uint32_t round = 0; round < 4; round++) {
        uint32_t next = left ^ round_mix(right, seed, round);
        left = right;
        right = next;
    }
    return left << 16 | right;
}

static struct uuid id_build(uint64_t ms, uint64_t count, uint32_t tag)
{
    uint64_t high = ms << 16 | UINT64_C(0x7000) | count >> 30;
    uint64_t low = UINT64_C(0x8000000000000000) | (count & 0x3fffffffU) << 32 | tag;
    struct uuid id;
    for (int i = 0; i < 8; i++) {
        id.bytes[i] = (uint8_t)(high >> (56 - 8 * i));
        id.bytes[8 + i] = (uint8_t)(low >> (56 - 8 * i));
    }
    return id;
}

struct uuid message_id(uint64_t seed, uint32_t partition, uint64_t offset, int64_t created_us)
{
    return message_id_tagged(tag_make(seed, partition), offset, created_us);
}

uint32_t message_tag(uint64_t seed, uint32_t partition)
{
    return tag_make(seed, partition);
}

struct uuid message_id_tagged(uint32_t tag, uint64_t offset, int64_t created_us)
{
    return id_build((uint64_t)(created_us / 1000), offset & OFFSET_MASK, tag);
}

bool message_id_parse(uint64_t seed, struct uuid id, uint32_t partition, uint64_t *offset, int64_t *created_ms)
{
    uint64_t high = 0, low = 0;
    for (int i = 0; i < 8; i++) {
        high = high << 8 | id.bytes[i];
        low = low << 8 | id.bytes[8 + i];
    }
    if ((high >> 12 & 0xf) != 7 || low >> 62 != 2 || (uint32_t)low != tag_make(seed, partition)) return false;
    *offset = (high & 0xfff) << 30 | (low >> 32 & 0x3fffffffU);
    *created_ms = (int64_t)(high >> 16);
    return true;
}

struct uuid thing_id(uint64_t seed, enum id_space space, uint64_t number, int64_t created_us)
{
    uint64_t spread = (seed ^ UINT64_C(0x9e3779b97f4a7c15)) * ((uint64_t)space * 2 + 1);
    return id_build((uint64_t)(created_us / 1000), number & OFFSET_MASK,
                    tag_make(spread, (uint32_t)(number >> 32) ^ (uint32_t)spread));
}

uint64_t thing_number(struct uuid id)
{
    uint64_t high = 0, low = 0;
    for (int i = 0; i < 8; i++) {
        high = high << 8 | id.bytes[i];
        low = low << 8 | id.bytes[8 + i];
    }
    return (high & 0xfff) << 30 | (low >> 32 & 0x3fffffffU);
}
