#include "net/wire.h"

#include <stdlib.h>

#include "base/must.h"

enum { FIRST_BYTES = 1 << 20, SPARE_BYTES_MAX = 8 << 20 };

void wire_record_write(char at[WIRE_RECORD_HEAD], enum wire_record_type type, uint32_t payload_bytes)
{
    must(payload_bytes <= WIRE_PAYLOAD_MAX);
    memset(at, 0, WIRE_RECORD_HEAD);
    memcpy(at, &payload_bytes, sizeof payload_bytes);
    at[4] = (char)type;
}

bool wire_record_read(const char at[WIRE_RECORD_HEAD], struct wire_record *out)
{
    memcpy(&out->payload_bytes, at, sizeof out->payload_bytes);
    out->type = (enum wire_record_type)(unsigned char)at[4];
    return out->payload_bytes <= WIRE_PAYLOAD_MAX && (out->type == WIRE_DATA || out->type == WIRE_REFUSE) && at[5] == 0 &&
           at[6] == 0 && at[7] == 0;
}

void wire_item_write(char at[WIRE_ITEM_HEAD], uint16_t channel, uint8_t kind, enum wire_piece piece, uint32_t bytes)
{
    memcpy(at, &bytes, sizeof bytes);
    memcpy(at + 4, &channel, sizeof channel);
    at[6] = (char)kind;
    at[7] = (char)piece;
}

bool wire_item_next(struct slice *rest, struct wire_item *out)
{
    if (rest->len < WIRE_ITEM_HEAD) return false;
    uint32_t bytes;
    memcpy(&bytes, rest->at, sizeof bytes);
    memcpy(&out->channel, rest->at + 4, sizeof out->channel);
    out->kind = (uint8_t)rest->at[6];
    uint8_t piece = (uint8_t)rest->at[7];
    if (bytes > rest->len - WIRE_ITEM_HEAD || piece > WIRE_LAST) return false;
    out->piece = (enum wire_piece)piece;
    out->bytes = slice_make(rest->at + WIRE_ITEM_HEAD, bytes);
    rest->at += WIRE_ITEM_HEAD + bytes;
    rest->len -= WIRE_ITEM_HEAD + bytes;
    return true;
}

static void frame_room(struct wire_frame *w, size_t more)
{
    size_t need = w->have + more;
    if (need <= w->cap) return;
    size_t cap = w->cap * 2;
    if (cap < FIRST_BYTES) cap = FIRST_BYTES;
    if (cap > w->total) cap = w->total;
    must(cap >= need || w->total >= need);
    if (cap < need) cap = need;
    w->at = realloc(w->at, cap);
    must(w->at != NULL);
    w->cap = cap;
}

static bool frame_add(struct wire_frame *w, struct slice bytes)
{
    if (bytes.len > w->total - w->have) return false;
    if (!w->unwanted && bytes.len > 0) {
        frame_room(w, bytes.len);
        memcpy(w->at + w->have, bytes.at, bytes.len);
    }
    w->have += (uint32_t)bytes.len;
    return true;
}

static struct wire_frame *frame_begin(struct wire_frames *f, const struct wire_item *piece, bool wanted)
{
    uint32_t total;
    if (piece->bytes.len < WIRE_TOTAL) return NULL;
    memcpy(&total, piece->bytes.at, sizeof total);
    if (total > f->bytes_max) return NULL;
    struct wire_frame *w = calloc(1, sizeof *w);
    must(w != NULL);
    *w = (struct wire_frame){
        .next = f->under_way, .channel = piece->channel, .kind = piece->kind, .unwanted = !wanted, .total = total};
    if (wanted && f->spare != NULL) {
        w->at = f->spare;
        w->cap = f->spare_cap;
        f->spare = NULL;
    }
    f->under_way = w;
    return w;
}

static struct wire_frame *frame_find(struct wire_frames *f, uint16_t channel)
{
    struct wire_frame *w = f->under_way;
    while (w != NULL && w->channel != channel) w = w->next;
    return w;
}

static void frame_unlink(struct wire_frames *f, struct wire_frame *w)
{
    struct wire_frame **at = &f->under_way;
    while (*at != w) at = &(*at)->next;
    *at = w->next;
}

enum wire_result wire_frames_take(struct wire_frames *f, const struct wire_item *piece, bool wanted, struct wire_frame **out)
{
    must(piece->piece != WIRE_WHOLE);
    struct slice bytes = piece->bytes;
    struct wire_frame *w = frame_find(f, piece->channel);
    if (piece->piece == WIRE_FIRST) {
        if (w != NULL || (w = frame_begin(f, piece, wanted)) == NULL) return WIRE_BAD;
        bytes = slice_make(bytes.at + WIRE_TOTAL, bytes.len - WIRE_TOTAL);
    }
    if (w == NULL || w->kind != piece->kind || !frame_add(w, bytes)) return WIRE_BAD;
    *out = w->unwanted ? NULL : w;
    if (piece->piece != WIRE_LAST) return WIRE_MORE;
    if (w->have != w->total) return WIRE_BAD;
    frame_unlink(f, w);
    if (w->unwanted) {
        wire_frame_done(f, w);
        return WIRE_MORE;
    }
    return WIRE_FRAME;
}

void wire_frame_done(struct wire_frames *f, struct wire_frame *frame)
{
    if (frame->at != NULL && f->spare == NULL && frame->cap <= SPARE_BYTES_MAX) {
        f->spare = frame->at;
        f->spare_cap = frame->cap;
    } else {
        free(frame->at);
    }
    free(frame);
}

void wire_frames_trim(struct wire_frames *f)
{
    free(f->spare);
    f->spare = NULL;
    f->spare_cap = 0;
}

void wire_frames_free(struct wire_frames *f)
{
    while (f->under_way != NULL) {
        struct wire_frame *w = f->under_way;
        f->under_way = w->next;
        free(w->at);
        free(w);
    }
    wire_frames_trim(f);
}
