/* UUIDs: 16 bytes, network order, so that byte order is text order. */
#ifndef QUEEN_BASE_UUID_H
#define QUEEN_BASE_UUID_H

#include "base/slice.h"

enum { UUID_TEXT = 36 };

struct uuid {
    uint8_t bytes[16];
};

/* A new UUIDv7: milliseconds of `wall_us`, then a counter and random bits. Unique between threads and processes; sorted
 * inside one thread also when the clock stands still or steps back. Thread-safe, no lock. */
struct uuid uuid_mint(int64_t wall_us);

/* 36 lower-case characters, not terminated. */
void uuid_text(struct uuid id, char out[UUID_TEXT]);

/* Accepts upper and lower case; anything else than 8-4-4-4-12 hex digits is refused. */
bool uuid_parse(struct slice text, struct uuid *out);

static inline bool uuid_equal(struct uuid a, struct uuid b)
{
    return memcmp(a.bytes, b.bytes, 16) == 0;
}

/* Random bytes from the kernel. Stops the process when there are none. */
void random_bytes(void *at, size_t len);

#endif
