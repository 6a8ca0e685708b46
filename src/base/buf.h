/* A growing byte buffer for building answers, rows and commands. Grows by doubling; out of memory stops the process.
 * Not thread-safe. The bytes move when it grows: keep offsets, not pointers, while appending. */
#ifndef QUEEN_BASE_BUF_H
#define QUEEN_BASE_BUF_H

#include <stdlib.h>

#include "base/must.h"
#include "base/slice.h"

struct buf {
    char *at;
    size_t len;
    size_t cap;
};

void buf_grow(struct buf *b, size_t more);

/* Room for `more` bytes after len; the caller writes there and adds to len. */
static inline char *buf_reserve(struct buf *b, size_t more)
{
    if (b->cap - b->len < more) buf_grow(b, more);
    return b->at + b->len;
}

static inline void buf_put(struct buf *b, const void *at, size_t len)
{
    if (len == 0) return;
    memcpy(buf_reserve(b, len), at, len);
    b->len += len;
}

static inline void buf_slice(struct buf *b, struct slice s)
{
    buf_put(b, s.at, s.len);
}

static inline void buf_text(struct buf *b, const char *text)
{
    buf_put(b, text, strlen(text));
}

static inline void buf_byte(struct buf *b, char c)
{
    *buf_reserve(b, 1) = c;
    b->len++;
}

/* Little-endian integers, the byte order of everything we store or send between nodes. */
static inline void buf_u16(struct buf *b, uint16_t v)
{
    buf_put(b, &v, sizeof v);
}
static inline void buf_u32(struct buf *b, uint32_t v)
{
    buf_put(b, &v, sizeof v);
}
static inline void buf_u64(struct buf *b, uint64_t v)
{
    buf_put(b, &v, sizeof v);
}

/* Decimal, without terminator. */
void buf_decimal(struct buf *b, uint64_t v);
void buf_signed(struct buf *b, int64_t v);
__attribute__((format(printf, 2, 3))) void buf_printf(struct buf *b, const char *format, ...);

static inline void buf_clear(struct buf *b)
{
    b->len = 0;
}

static inline struct slice buf_view(const struct buf *b)
{
    return (struct slice){.at = b->at == NULL ? "" : b->at, .len = b->len};
}

void buf_free(struct buf *b);

#endif
