/* Wire form of what nodes tell each other through the log: ORIGINS and DIGEST. */
#include "engine/command.h"
#include "engine/command_io.h"

void origins_encode(struct buf *out, const struct origin *origins, uint32_t count)
{
    size_t at = command_begin(out, COMMAND_ORIGINS, 0);
    buf_u32(out, count);
    buf_u32(out, 0);
    for (uint32_t i = 0; i < count; i++) {
        buf_u64(out, origins[i].sequence);
        buf_u32(out, origins[i].slot);
        buf_u32(out, origins[i].node);
    }
    command_finish(out, at);
}

bool origins_decode(const struct command *c, struct origins_command *out)
{
    struct reader r = reader_of(c->body);
    out->count = read_u32(&r);
    read_u32(&r);
    if (r.bad || out->count > (size_t)(r.end - r.at) / ORIGIN_BYTES) return false;
    out->origins = r.at;
    return true;
}

void origin_read(const struct origins_command *o, uint32_t i, struct origin *out)
{
    const char *at = o->origins + (size_t)i * ORIGIN_BYTES;
    memcpy(&out->sequence, at, 8);
    memcpy(&out->slot, at + 8, 4);
    memcpy(&out->node, at + 12, 4);
}

bool origins_of_entry(struct slice entry, struct origins_command *out)
{
    struct entry_head head;
    struct command c;
    if (!entry_head_read(entry, &head) || head.origins_at < ENTRY_HEAD_BYTES || head.origins_at >= entry.len) return false;
    struct slice rest = slice_make(entry.at + head.origins_at, entry.len - head.origins_at);
    return command_next(&rest, &c) && c.kind == COMMAND_ORIGINS && origins_decode(&c, out);
}

void digest_encode(struct buf *out, uint64_t index, uint64_t digest)
{
    size_t at = command_begin(out, COMMAND_DIGEST, 0);
    buf_u64(out, index);
    buf_u64(out, digest);
    command_finish(out, at);
}

bool digest_decode(const struct command *c, uint64_t *index, uint64_t *digest)
{
    struct reader r = reader_of(c->body);
    *index = read_u64(&r);
    *digest = read_u64(&r);
    return !r.bad;
}
