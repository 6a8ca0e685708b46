#include "base/hash.h"

#include <xxhash.h>
#if defined(__x86_64__)
#include <nmmintrin.h>
#include <wmmintrin.h>
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

/* One instruction waits for the one before, and a machine can have three on their way: three stretches side by side, and then the first two
 * moved to where they stand. Moving over zeros is a multiplication by a power of x: x^(8 * LANE_BYTES - 33), bits reversed, and the
 * instruction itself does the rest. */
enum { LANE_BYTES = 256 };
#define LANE_POWER 0xb9e02b86U

__attribute__((target("sse4.2,pclmul"))) static uint64_t lane_move(uint64_t crc)
{
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)crc), _mm_cvtsi32_si128((int)LANE_POWER), 0);
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

/* Takes whole blocks of three stretches off the front. */
__attribute__((target("sse4.2,pclmul"))) static uint32_t crc_lanes(uint32_t crc, const unsigned char **at, size_t *len)
{
    uint64_t a = crc;
    for (; *len >= 3 * LANE_BYTES; *at += 3 * LANE_BYTES, *len -= 3 * LANE_BYTES) {
        uint64_t b = 0, c = 0;
        for (size_t i = 0; i < LANE_BYTES; i += 8) {
            uint64_t words[3];
            memcpy(&words[0], *at + i, 8);
            memcpy(&words[1], *at + LANE_BYTES + i, 8);
            memcpy(&words[2], *at + 2 * LANE_BYTES + i, 8);
            a = _mm_crc32_u64(a, words[0]);
            b = _mm_crc32_u64(b, words[1]);
            c = _mm_crc32_u64(c, words[2]);
        }
        a = lane_move(lane_move(a) ^ b) ^ c;
    }
    return (uint32_t)a;
}

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
    const unsigned char *bytes = at;
    crc = ~crc;
    if (!__builtin_cpu_supports("sse4.2")) return ~crc_bytes(crc, bytes, len);
    if (len >= 3 * LANE_BYTES && __builtin_cpu_supports("pclmul")) crc = crc_lanes(crc, &bytes, &len);
    return ~crc_sse(crc, bytes, len);
}

#else

uint32_t crc32c(uint32_t crc, const void *at, size_t len)
{
    return ~crc_bytes(~crc, at, len);
}

#endif
