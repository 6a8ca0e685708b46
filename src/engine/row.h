/* Keys of the engine's rows. Numbers in keys are big-endian, so that byte order is number order.
 *
 *   01                              meta: seed, counters, last entry head, applied index
 *   02 queue                        queue: tenant, name, options, counters
 *   03 queue group                  group: name, registration
 *   04 queue partition              lane: name, tail, times, bytes
 *   04 queue partition group        cursor in it, with its lease and history: a lane and its cursors are one range
 *   06 queue sequence               dead letter
 *   07 class sequence               chunk of the dedup journal (24 bytes a record)
 *   08 home                         live bytes of the segments of the log (0), of the archive (1): node-local
 *   09 path                         KV row: version, times, value (path: tenant, namespace, 0, key)
 *   0a due sequence                 timer: path, destination, place of its message
 *   0b generation                   a generation of the dedup index; of number 0: the last number used
 *   0c generation part shard        a piece of its filter, as of that part
 *   -- behind 80: not loaded at start
 *   81 queue partition last-offset  append runs (40 bytes each) that end with this offset
 *   89 due path                     when the KV row of that path expires, if it was written to live long: its version, bytes of its value
 *   8a path                         the sequence of the timer of that path (tenant, length of queue, queue, key)
 *   8b generation part bucket       dedup records (24 bytes each), and long lists of them: dedup_generation.c
 */
#ifndef QUEEN_ENGINE_ROW_H
#define QUEEN_ENGINE_ROW_H

#include <stdbool.h>

#include "base/slice.h"

enum row_kind {
    ROW_META = 1,
    ROW_QUEUE,
    ROW_GROUP,
    ROW_LANE, /* and its cursors */
    ROW_DEAD_LETTER = 6,
    ROW_DEDUP,
    ROW_SEGMENT,
    ROW_KV,
    ROW_TIMER,
    ROW_DEDUP_GENERATION,
    ROW_DEDUP_FILTER,
    ROW_RUN = 0x81,
    ROW_KV_DUE = 0x89,
    ROW_TIMER_PATH = 0x8a,
    ROW_DEDUP_RECORDS = 0x8b,
};

enum { LANE_KEY_BYTES = 9, CURSOR_KEY_BYTES = 13, RUN_KEY_BYTES = 17 };

struct row_key {
    unsigned char bytes[32];
    size_t len;
};

void row_key_begin(struct row_key *k, enum row_kind kind);
void row_key_u8(struct row_key *k, uint8_t v);
void row_key_u32(struct row_key *k, uint32_t v);
void row_key_u64(struct row_key *k, uint64_t v);
void row_key_lane(struct row_key *k, uint32_t queue, uint32_t partition);
void row_key_run(struct row_key *k, uint32_t queue, uint32_t partition, uint64_t last_offset);
void row_key_timer(struct row_key *k, int64_t due_us, uint64_t sequence);

struct kv_stored;
bool row_kv_read(struct slice stored, struct kv_stored *out); /* false: it is damaged */

/* A number as it stands in a key. */
static inline uint64_t row_key_number(const void *at, size_t bytes)
{
    uint64_t v = 0;
    for (size_t i = 0; i < bytes; i++) v = v << 8 | ((const unsigned char *)at)[i];
    return v;
}

static inline struct slice row_key_view(const struct row_key *k)
{
    return slice_make(k->bytes, k->len);
}

#endif
