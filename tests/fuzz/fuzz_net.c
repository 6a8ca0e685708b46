/* Any bytes as what a connection brings. The first says which: a stranger's handshake, or records' payloads of a peer, each with a length
 * before it. What decodes must be written again as the same bytes; frames put together must be exactly the bytes of their pieces. */
#include <stdlib.h>

#include "base/hash.h"
#include "net/hello.h"
#include "net/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CHANNELS = 1 << 16, FRAME_MAX = 4096 };

static void same(struct buf *written, struct slice read)
{
    if (!slice_equal(buf_view(written), read)) abort();
    buf_free(written);
}

static void message(const struct hello_message *m)
{
    struct buf b = {0};
    struct hello h;
    struct answer a;
    struct verdict v;
    if (m->type == HELLO_HELLO && hello_read(m->body, &h)) {
        hello_write(&b, &h);
        same(&b, m->whole);
    } else if (m->type == HELLO_ANSWER && answer_read(m->body, &a)) {
        answer_write(&b, &a);
        same(&b, m->whole);
    } else if (m->type == HELLO_VERDICT && verdict_read(m->body, &v)) {
        verdict_write(&b, &v);
        same(&b, m->whole);
    }
}

static void handshake(struct slice in)
{
    struct hello_message m;
    while (hello_next(in, &m) == HELLO_OK) {
        if (m.whole.len > HELLO_MESSAGE_MAX || m.whole.len > in.len) abort();
        message(&m);
        in = slice_make(in.at + m.whole.len, in.len - m.whole.len);
    }
}

/* What a channel's pieces came to so far. */
struct under_way {
    uint32_t bytes, crc;
};

static void item_take(struct wire_frames *f, struct under_way *all, const struct wire_item *item, bool *bad)
{
    struct under_way *u = &all[item->channel];
    struct wire_frame *out = NULL;
    struct slice bytes = item->bytes;
    if (item->piece == WIRE_FIRST && bytes.len >= WIRE_TOTAL) {
        *u = (struct under_way){0};
        bytes = slice_make(bytes.at + WIRE_TOTAL, bytes.len - WIRE_TOTAL);
    }
    u->crc = crc32c(u->crc, bytes.at, bytes.len);
    u->bytes += (uint32_t)bytes.len;
    bool wanted = item->kind % 8 != 7;
    switch (wire_frames_take(f, item, wanted, &out)) {
    case WIRE_BAD:
        *bad = true;
        break;
    case WIRE_MORE:
        break;
    case WIRE_FRAME:
        if (!wanted || out->total != u->bytes || out->have != u->bytes || out->total > FRAME_MAX) abort();
        if (crc32c(0, out->at, out->total) != u->crc) abort();
        wire_frame_done(f, out);
        break;
    }
}

static void payloads(struct slice in)
{
    static struct under_way all[CHANNELS];
    struct wire_frames f = {.bytes_max = FRAME_MAX};
    bool bad = false;
    while (!bad && in.len >= WIRE_RECORD_HEAD) {
        struct wire_record r;
        if (!wire_record_read(in.at, &r)) break;
        char head[WIRE_RECORD_HEAD];
        wire_record_write(head, r.type, r.payload_bytes);
        if (memcmp(head, in.at, WIRE_RECORD_HEAD) != 0) abort();
        if (r.payload_bytes > in.len - WIRE_RECORD_HEAD) break;
        struct slice rest = slice_make(in.at + WIRE_RECORD_HEAD, r.payload_bytes);
        in = slice_make(rest.at + rest.len, in.len - WIRE_RECORD_HEAD - rest.len);
        struct wire_item item;
        while (!bad && wire_item_next(&rest, &item)) {
            if (item.piece != WIRE_WHOLE) item_take(&f, all, &item, &bad);
        }
        if (rest.len > 0) bad = true;
    }
    wire_frames_free(&f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    struct slice in = slice_make(data + 1, size - 1);
    if (data[0] % 2 == 0) {
        handshake(in);
    } else {
        payloads(in);
    }
    return 0;
}
