/* Frames between replicas as bytes. What is read here came from a peer that knows the cluster's secret, yet nothing of it is
 * trusted: lengths, counts, types, the order of terms and the members of a configuration are checked before raft sees them. */
#include "replica/replica_inner.h"

enum { NUMBER_BITS_MAX = 62 };

static void put(char *at, const void *from, size_t len)
{
    memcpy(at, from, len);
}

void frame_head_write(const struct frame *f, char out[FRAME_HEAD_BYTES])
{
    const uint8_t head[4] = {FRAME_VERSION, f->kind, f->flags, f->message_version};
    put(out, head, 4);
    put(out + 4, &f->stream, 4);
    put(out + 8, &f->term, 8);
    put(out + 16, &f->a, 8);
    put(out + 24, &f->b, 8);
    put(out + 32, &f->c, 8);
    put(out + 40, &f->count, 4);
    put(out + 44, &f->features, 2);
    put(out + 46, &f->capacity, 2);
}

void frame_entry_write(const struct frame_entry *e, char out[FRAME_ENTRY_BYTES])
{
    uint32_t len = (uint32_t)e->body.len;
    memset(out, 0, FRAME_ENTRY_BYTES);
    put(out, &e->term, 8);
    put(out + 8, &len, 4);
    out[12] = (char)e->type;
}

/* False when there is none whole. */
static bool entry_take(struct slice *rest, struct frame_entry *out)
{
    if (rest->len < FRAME_ENTRY_BYTES) return false;
    uint32_t len, kind;
    memcpy(&out->term, rest->at, 8);
    memcpy(&len, rest->at + 8, 4);
    memcpy(&kind, rest->at + 12, 4);
    if (kind > UINT8_MAX || len > rest->len - FRAME_ENTRY_BYTES) return false;
    out->type = (uint8_t)kind;
    out->body = slice_make(rest->at + FRAME_ENTRY_BYTES, len);
    rest->at += FRAME_ENTRY_BYTES + len;
    rest->len -= FRAME_ENTRY_BYTES + len;
    return true;
}

void frame_entry_read(struct slice *rest, struct frame_entry *out)
{
    must(entry_take(rest, out));
}

/* format 1 | servers 8 | each: id 8, address, zero, role 1 | zeros */
bool configuration_valid(struct slice encoded)
{
    uint64_t count, ids[REPLICA_MEMBERS_MAX];
    struct slice addresses[REPLICA_MEMBERS_MAX];
    if (encoded.len < 9 || encoded.at[0] != 1) return false;
    memcpy(&count, encoded.at + 1, 8);
    if (count == 0 || count > REPLICA_MEMBERS_MAX) return false;
    size_t at = 9;
    for (uint64_t i = 0; i < count; i++) {
        if (encoded.len - at < 8) return false;
        memcpy(&ids[i], encoded.at + at, 8);
        at += 8;
        const char *end = memchr(encoded.at + at, '\0', encoded.len - at);
        if (end == NULL) return false;
        addresses[i] = slice_make(encoded.at + at, (size_t)(end - (encoded.at + at)));
        at += addresses[i].len + 1;
        if (at == encoded.len || (uint8_t)encoded.at[at] > RAFT_SPARE) return false;
        at++;
        if (ids[i] == 0 || addresses[i].len > REPLICA_ADDRESS_BYTES + 32) return false;
        for (uint64_t j = 0; j < i; j++) {
            if (ids[j] == ids[i] || slice_equal(addresses[j], addresses[i])) return false;
        }
    }
    return true;
}

static const char *entries_check(const struct frame *f)
{
    struct slice rest = f->entries;
    uint64_t term = f->b;
    for (uint32_t i = 0; i < f->count; i++) {
        struct frame_entry e;
        if (!entry_take(&rest, &e)) return "an entry that is not whole";
        if (e.type != RAFT_COMMAND && e.type != RAFT_BARRIER && e.type != RAFT_CHANGE) return "an entry of unknown type";
        if (e.term == 0 || e.term < term || e.term > f->term) return "an entry whose term cannot be";
        if (e.type == RAFT_CHANGE && !configuration_valid(e.body)) return "a configuration that cannot be read";
        term = e.term;
    }
    return rest.len == 0 ? NULL : "bytes behind its entries";
}

const char *frame_read(struct slice bytes, struct frame *out)
{
    if (bytes.len < FRAME_HEAD_BYTES) return "too few bytes";
    if ((uint8_t)bytes.at[0] != FRAME_VERSION) return "a format this program does not read";
    *out = (struct frame){.kind = (uint8_t)bytes.at[1], .flags = (uint8_t)bytes.at[2], .message_version = (uint8_t)bytes.at[3]};
    memcpy(&out->stream, bytes.at + 4, 4);
    memcpy(&out->term, bytes.at + 8, 8);
    memcpy(&out->a, bytes.at + 16, 8);
    memcpy(&out->b, bytes.at + 24, 8);
    memcpy(&out->c, bytes.at + 32, 8);
    memcpy(&out->count, bytes.at + 40, 4);
    memcpy(&out->features, bytes.at + 44, 2);
    memcpy(&out->capacity, bytes.at + 46, 2);
    out->entries = slice_make(bytes.at + FRAME_HEAD_BYTES, bytes.len - FRAME_HEAD_BYTES);
    if (out->kind == 0 || out->kind >= FRAME_KINDS) return "an unknown kind";
    if ((out->term | out->a | out->b | out->c) >> NUMBER_BITS_MAX != 0 || out->term == 0) return "a number that cannot be";
    if (out->kind != FRAME_APPEND) return out->entries.len == 0 && out->count == 0 ? NULL : "bytes behind its end";
    if (out->count > FRAME_ENTRIES_MAX) return "too many entries";
    if ((out->a == 0) != (out->b == 0) || out->b > out->term) return "an entry before its first one that cannot be";
    return entries_check(out);
}
