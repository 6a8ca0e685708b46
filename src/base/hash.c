#include "base/hash.h"

#include <xxhash.h>
#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

uint64_t hash64(struct slice s, uint64_t seed)
{
    return XXH3_64bits_withSeed(s.at, s.len, seed);
}

struct hash128 hash128(struct slice s, uint64_t seed)
{
    XXH128_hash_t h = XXH3_128bits_withSeed(s.at, s.len, seed);
    return (struct hash128){.low = h.low64, .high = h.high64};
}

static uint32_t crc_bytes(uint32_t crc, const unsigned char *at, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0x82f63b78U & (0U - (crc & 1U)));
    }
    return crc;
}

#if defined(__x86_64__)

__attribute__((target("sse4.2"))) static uint32_t crc_sse(uint32_t crc, const unsigned char *at, size_t len)
{
    uint64_t c = crc;
    while (len >= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        c = _mm_crc32_u64(c, word);
        at += 8;
        len -= 8;
    }
    uint32_t tail = (uint32_t)c;
    while (len-- > 0) tail = _mm_crc32_u8(tail, *at++);
    return tail;
}

uint32_t crc32c(uint32_t crc, const void *at, size_t len)
{
    crc = ~crc;
    crc = __builtin_cpu_supports("sse4.2") ? crc_sse(crc, at, len) : crc_bytes(crc, at, len);
    return ~crc;
}

#else

uint32_t crc32c(uint32_t crc, const void *at, size_t len)
{
    return ~crc_bytes(~crc, at, len);
}

#endif
