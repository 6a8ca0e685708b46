#include "base/uuid.h"

#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/must.h"

void random_bytes(void *at, size_t len)
{
    char *to = at;
    while (len > 0) {
        ssize_t n = getrandom(to, len, 0);
        must(n > 0);
        to += n;
        len -= (size_t)n;
    }
}

/* 48 bits of milliseconds, version, 12 high bits of the counter, variant, 18 low bits of it, 44 random bits. The counter
 * starts at a random value below 2^29 each millisecond; when it would overflow, the millisecond moves on by one. */
struct uuid uuid_mint(int64_t wall_us)
{
    static _Thread_local uint64_t last_ms, counter, pool[16];
    static _Thread_local unsigned pool_left;
    uint64_t ms = (uint64_t)(wall_us / 1000);
    if (pool_left < 2) {
        random_bytes(pool, sizeof pool);
        pool_left = 16;
    }
    if (ms > last_ms) {
        last_ms = ms;
        counter = pool[--pool_left] & 0x1fffffffU;
    } else if (++counter > 0x3fffffffU) {
        last_ms++;
        counter = 0;
    }
    uint64_t random = pool[--pool_left];
    uint64_t high = last_ms << 16 | 0x7000U | counter >> 18;
    uint64_t low = 0x8000000000000000U | (counter & 0x3ffffU) << 44 | (random & 0xfffffffffffU);
    struct uuid id;
    for (int i = 0; i < 8; i++) {
        id.bytes[i] = (uint8_t)(high >> (56 - 8 * i));
        id.bytes[8 + i] = (uint8_t)(low >> (56 - 8 * i));
    }
    return id;
}

/* Where the digits of each byte stand. */
static const uint8_t PLACES[16] = {0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34};

static const char PAIRS[] = "000102030405060708090a0b0c0d0e0f"
                            "101112131415161718191a1b1c1d1e1f"
                            "202122232425262728292a2b2c2d2e2f"
                            "303132333435363738393a3b3c3d3e3f"
                            "404142434445464748494a4b4c4d4e4f"
                            "505152535455565758595a5b5c5d5e5f"
                            "606162636465666768696a6b6c6d6e6f"
                            "707172737475767778797a7b7c7d7e7f"
                            "808182838485868788898a8b8c8d8e8f"
                            "909192939495969798999a9b9c9d9e9f"
                            "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf"
                            "b0b1b2b3b4b5b6b7b8b9babbbcbdbebf"
                            "c0c1c2c3c4c5c6c7c8c9cacbcccdcecf"
                            "d0d1d2d3d4d5d6d7d8d9dadbdcdddedf"
                            "e0e1e2e3e4e5e6e7e8e9eaebecedeeef"
                            "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff";

void uuid_text(struct uuid id, char out[UUID_TEXT])
{
    out[8] = out[13] = out[18] = out[23] = '-';
    for (int i = 0; i < 16; i++) memcpy(out + PLACES[i], PAIRS + 2 * (size_t)id.bytes[i], 2);
}

/* A digit's value + 1; 0 = it is none. */
static const uint8_t HEX[256] = {
    ['0'] = 1,  ['1'] = 2,  ['2'] = 3,  ['3'] = 4,  ['4'] = 5,  ['5'] = 6,  ['6'] = 7,  ['7'] = 8,
    ['8'] = 9,  ['9'] = 10, ['a'] = 11, ['b'] = 12, ['c'] = 13, ['d'] = 14, ['e'] = 15, ['f'] = 16,
    ['A'] = 11, ['B'] = 12, ['C'] = 13, ['D'] = 14, ['E'] = 15, ['F'] = 16,
};

bool uuid_parse(struct slice text, struct uuid *out)
{
    if (text.len != UUID_TEXT) return false;
    const char *at = text.at;
    if (at[8] != '-' || at[13] != '-' || at[18] != '-' || at[23] != '-') return false;
    for (int i = 0; i < 16; i++) {
        unsigned high = HEX[(uint8_t)at[PLACES[i]]], low = HEX[(uint8_t)at[PLACES[i] + 1]];
        if (high == 0 || low == 0) return false;
        out->bytes[i] = (uint8_t)((high - 1) << 4 | (low - 1));
    }
    return true;
}
