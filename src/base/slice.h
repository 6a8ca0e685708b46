/* A slice: bytes that somebody else owns. Everything that comes from outside (names, ids, payloads, bodies) is a slice,
 * never a C string: it may hold zero bytes and is not terminated. Copying a slice copies the pointer only. */
#ifndef QUEEN_BASE_SLICE_H
#define QUEEN_BASE_SLICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct slice {
    const char *at;
    size_t len;
};

static inline struct slice slice_make(const void *at, size_t len)
{
    return (struct slice){.at = (const char *)at, .len = len};
}

/* Of a NUL-terminated literal or name. */
static inline struct slice slice_of(const char *text)
{
    return (struct slice){.at = text, .len = strlen(text)};
}

static inline bool slice_equal(struct slice a, struct slice b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.at, b.at, a.len) == 0);
}

static inline bool slice_is(struct slice a, const char *text)
{
    return slice_equal(a, slice_of(text));
}

/* Byte order; a prefix sorts first. */
static inline int slice_compare(struct slice a, struct slice b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    int order = n == 0 ? 0 : memcmp(a.at, b.at, n);
    if (order != 0) return order;
    return a.len < b.len ? -1 : a.len > b.len;
}

#endif
