#include "base/uuid.h"

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

void uuid_text(struct uuid id, char out[UUID_TEXT])
{
    static const char digits[] = "0123456789abcdef";
    char *to = out;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) *to++ = '-';
        *to++ = digits[id.bytes[i] >> 4];
        *to++ = digits[id.bytes[i] & 15];
    }
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

bool uuid_parse(struct slice text, struct uuid *out)
{
    if (text.len != UUID_TEXT) return false;
    const char *at = text.at;
    for (int i = 0; i < 16; i++) {
        if ((i == 4 || i == 6 || i == 8 || i == 10) && *at++ != '-') return false;
        int high = hex_value(at[0]), low = hex_value(at[1]);
        if (high < 0 || low < 0) return false;
        out->bytes[i] = (uint8_t)(high << 4 | low);
        at += 2;
    }
    return true;
}
