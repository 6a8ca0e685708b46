#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>

void buf_grow(struct buf *b, size_t more)
{
    size_t cap = b->cap == 0 ? 256 : b->cap;
    while (cap - b->len < more) cap *= 2;
    char *at = realloc(b->at, cap);
    must(at != NULL);
    b->at = at;
    b->cap = cap;
}

void buf_decimal(struct buf *b, uint64_t v)
{
    char digits[20];
    size_t n = 0;
    do {
        digits[n++] = (char)('0' + v % 10);
        v /= 10;
    } while (v != 0);
    char *out = buf_reserve(b, n);
    for (size_t i = 0; i < n; i++) out[i] = digits[n - 1 - i];
    b->len += n;
}

void buf_signed(struct buf *b, int64_t v)
{
    if (v < 0) {
        buf_byte(b, '-');
        buf_decimal(b, (uint64_t)0 - (uint64_t)v);
    } else {
        buf_decimal(b, (uint64_t)v);
    }
}

void buf_printf(struct buf *b, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    must(n >= 0);
    char *at = buf_reserve(b, (size_t)n + 1);
    va_start(args, format);
    vsnprintf(at, (size_t)n + 1, format, args);
    va_end(args);
    b->len += (size_t)n;
}

void buf_free(struct buf *b)
{
    free(b->at);
    *b = (struct buf){0};
}
