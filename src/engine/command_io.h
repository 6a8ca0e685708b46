/* Reading and writing the fields of commands and rows: shared by the codec's files. All little-endian. */
#ifndef QUEEN_ENGINE_COMMAND_IO_H
#define QUEEN_ENGINE_COMMAND_IO_H

#include "base/limits.h"
#include "base/must.h"
#include "engine/command.h"

/* ---- reading ------------------------------------------------------------------------------------------------------ */

/* A cursor over bytes that may be anything. Once something was missing `bad` stays set and all reads give zeros. */
struct reader {
    const char *at, *end;
    bool bad;
};

static inline struct reader reader_of(struct slice s)
{
    return (struct reader){.at = s.at, .end = s.at + s.len};
}

static inline struct slice read_bytes(struct reader *r, size_t len)
{
    if (r->bad || (size_t)(r->end - r->at) < len) {
        r->bad = true;
        return (struct slice){.at = "", .len = 0};
    }
    struct slice s = slice_make(r->at, len);
    r->at += len;
    return s;
}

static inline void read_into(struct reader *r, void *out, size_t len)
{
    struct slice s = read_bytes(r, len);
    if (s.len == len) {
        memcpy(out, s.at, len);
    } else {
        memset(out, 0, len);
    }
}

static inline uint8_t read_u8(struct reader *r)
{
    uint8_t v;
    read_into(r, &v, sizeof v);
    return v;
}

static inline uint16_t read_u16(struct reader *r)
{
    uint16_t v;
    read_into(r, &v, sizeof v);
    return v;
}

static inline uint32_t read_u32(struct reader *r)
{
    uint32_t v;
    read_into(r, &v, sizeof v);
    return v;
}

static inline uint64_t read_u64(struct reader *r)
{
    uint64_t v;
    read_into(r, &v, sizeof v);
    return v;
}

static inline int64_t read_i64(struct reader *r)
{
    int64_t v;
    read_into(r, &v, sizeof v);
    return v;
}

static inline struct uuid read_uuid(struct reader *r)
{
    struct uuid v;
    read_into(r, v.bytes, sizeof v.bytes);
    return v;
}

/* u16 length, bytes. */
static inline struct slice read_name(struct reader *r)
{
    uint16_t len = read_u16(r);
    return read_bytes(r, len);
}

/* ---- writing ------------------------------------------------------------------------------------------------------ */

static inline void put_name(struct buf *out, struct slice s)
{
    must(s.len <= UINT16_MAX);
    buf_u16(out, (uint16_t)s.len);
    buf_slice(out, s);
}

static inline void put_i64(struct buf *out, int64_t v)
{
    buf_put(out, &v, sizeof v);
}

static inline void put_uuid(struct buf *out, struct uuid id)
{
    buf_put(out, id.bytes, sizeof id.bytes);
}

static inline void put_u32_at(struct buf *out, size_t at, uint32_t v)
{
    memcpy(out->at + at, &v, sizeof v);
}

static inline size_t command_begin(struct buf *out, enum command_kind kind, uint8_t flags)
{
    size_t at = out->len;
    must(at % 8 == 0);
    buf_u32(out, 0);
    buf_byte(out, (char)kind);
    buf_byte(out, (char)flags);
    buf_u16(out, 0);
    return at;
}

static inline void pad_to(struct buf *out, size_t from, size_t unit)
{
    while ((out->len - from) % unit != 0) buf_byte(out, 0);
}

static inline void command_finish(struct buf *out, size_t at)
{
    pad_to(out, at, 8);
    must(out->len - at <= COMMAND_BYTES_MAX);
    put_u32_at(out, at, (uint32_t)(out->len - at));
}

#endif
