/* What waits to be sent to one peer: any thread puts frames in, the net's loop takes chunks out.
 *
 *   peer -- lane of channel 0:  [chunk][chunk]      a chunk is one record to be: room for the head, items, room for the tag
 *        -- lane of channel 3:  [chunk]
 *
 * Frames of a channel leave in order. Lanes take turns, a chunk each, so a large frame of one channel does not hold up another's.
 * Bytes are copied once, into the chunk from which they are written to the socket. */
#ifndef QUEEN_NET_OUTBOX_H
#define QUEEN_NET_OUTBOX_H

#include <pthread.h>
#include <stdatomic.h>

#include "net/wire.h"

struct chunk {
    struct chunk *next;
    uint32_t used;   /* payload bytes */
    uint32_t frames; /* that end in it */
    uint32_t size;   /* bytes to write: 0 until it is sealed */
    bool plain;      /* of the handshake: no record, not of an outbox */
    char at[];
};

struct lane {
    struct lane *next, *next_ready;
    uint16_t channel;
    struct chunk *first, *last;
};

struct outbox {
    pthread_mutex_t lock;
    bool open;
    uint64_t backlog_max;
    uint64_t peer;   /* whose it is: the place may be another's by now */
    uint64_t opened; /* how often: a frame is of one connection */
    struct lane *lanes, *ready, *ready_last;
    struct chunk *spare;
    uint32_t spare_count;
    _Atomic uint64_t backlog; /* payload bytes in chunks, also in those taken and not yet written */
};

void outbox_init(struct outbox *o, uint64_t backlog_max); /* above, frames are not taken; vital ones up to twice that */
void outbox_free(struct outbox *o);                       /* chunks that are taken must be back */

/* Any thread. false: closed, or the backlog is at its limit. */
bool outbox_put(struct outbox *o, uint64_t peer, uint16_t channel, uint8_t kind, bool vital, const struct slice *parts,
                uint32_t count, uint32_t total);

/* The rest on the net's loop. Chunks in the order they are to be written, at least `bytes` of them or all there are. */
struct chunk *outbox_take(struct outbox *o, uint32_t bytes);
void outbox_give_back(struct outbox *o, struct chunk *chain); /* written, or lost */
void outbox_open(struct outbox *o, uint64_t peer);
uint64_t outbox_close(struct outbox *o); /* drops what waits; frames dropped */
void outbox_trim(struct outbox *o);      /* frees spare chunks */
struct chunk *chunk_new(uint32_t bytes); /* room for that many at `at` */

#endif
