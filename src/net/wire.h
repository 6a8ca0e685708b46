/* What travels on a connection once both ends are known: records, and in them items. Pure: no I/O, no keys.
 *
 *   record   payload_bytes u32 | type u8 | 0 0 0 | payload ... | tag 16        one tag a record, at most 128 KiB in all
 *   item     bytes u32 | channel u16 | kind u8 | piece u8 | bytes ...          inside a payload of type WIRE_DATA, one after another
 *
 * A frame is one item (WIRE_WHOLE), or, when it does not fit, a first piece, pieces between, and a last one. The first piece's bytes
 * begin with the frame's total length (u32). Pieces of one channel come in order; those of several channels may alternate. A payload
 * of no items is a sign of life. WIRE_REFUSE carries a text: its sender will not talk to the receiver, and says why.
 *
 * Integers are little-endian. The tag covers head and payload (seal.h). */
#ifndef QUEEN_NET_WIRE_H
#define QUEEN_NET_WIRE_H

#include "base/slice.h"

enum {
    WIRE_RECORD_HEAD = 8,
    WIRE_TAG = 16,
    WIRE_RECORD_MAX = 128 << 10, /* whole, with head and tag */
    WIRE_PAYLOAD_MAX = WIRE_RECORD_MAX - WIRE_RECORD_HEAD - WIRE_TAG,
    WIRE_ITEM_HEAD = 8,
    WIRE_TOTAL = 4,
};

enum wire_record_type { WIRE_DATA = 1, WIRE_REFUSE = 2 };
enum wire_piece { WIRE_WHOLE = 0, WIRE_FIRST = 1, WIRE_BETWEEN = 2, WIRE_LAST = 3 };

struct wire_record {
    enum wire_record_type type;
    uint32_t payload_bytes;
};

struct wire_item {
    uint16_t channel;
    uint8_t kind;
    enum wire_piece piece;
    struct slice bytes;
};

void wire_record_write(char at[WIRE_RECORD_HEAD], enum wire_record_type type, uint32_t payload_bytes);
/* Of the first WIRE_RECORD_HEAD bytes. false: no record begins like that. */
bool wire_record_read(const char at[WIRE_RECORD_HEAD], struct wire_record *out);

void wire_item_write(char at[WIRE_ITEM_HEAD], uint16_t channel, uint8_t kind, enum wire_piece piece, uint32_t bytes);
/* The next item of a payload; the bytes stay where they are. false: none is left, or (rest->len is not 0) it is not well formed. */
bool wire_item_next(struct slice *rest, struct wire_item *out);

/* ---- frames of several pieces, put together again */

struct wire_frame {
    struct wire_frame *next;
    uint16_t channel;
    uint8_t kind;
    bool unwanted; /* counted, not kept */
    uint32_t total, have;
    size_t cap;
    char *at;        /* malloc'ed; cap grows with the bytes that came */
    int64_t told_us; /* the caller's: when it last said that the frame is coming in */
};

struct wire_frames {
    struct wire_frame *under_way; /* at most one a channel */
    uint32_t bytes_max;           /* of a frame */
    char *spare;                  /* memory of the last large frame, for the next one */
    size_t spare_cap;
};

enum wire_result { WIRE_BAD, WIRE_MORE, WIRE_FRAME };

/* Takes a piece (not a WIRE_WHOLE). WIRE_FRAME: `out` is a complete frame that was wanted; wire_frame_done gives it back (set its `at` to
 * NULL before when the bytes went elsewhere). WIRE_MORE: `out` is the frame under way, NULL when it is not wanted: that is
 * swallowed. WIRE_BAD: pieces that do not fit together. `wanted` counts at the first piece. */
enum wire_result wire_frames_take(struct wire_frames *f, const struct wire_item *piece, bool wanted, struct wire_frame **out);
void wire_frame_done(struct wire_frames *f, struct wire_frame *frame);
void wire_frames_trim(struct wire_frames *f); /* gives the spare memory back */
void wire_frames_free(struct wire_frames *f);

#endif
