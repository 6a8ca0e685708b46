/* A stored message as operators' routes show it: where it lies, its bytes, who has consumed it. Group thread, inside a read. */
#ifndef QUEEN_HTTP_MESSAGE_VIEW_H
#define QUEEN_HTTP_MESSAGE_VIEW_H

#include "http/request.h"
#include "http/visit.h"

/* A message with its bytes at hand: release it with message_release once rendered. */
struct message_bytes {
    struct call_piece piece;
    struct push_item item;
    struct uuid id;
};

/* As broker_piece_load; `out` is set when it is PIECE_HERE. */
enum piece_state message_load(struct request *r, uint32_t partition, const struct delivery_piece *piece,
                              struct message_bytes *out);
/* Another message of the same block. */
void message_pick(struct request *r, uint32_t partition, const struct delivery_piece *piece, struct message_bytes *m);
void message_release(struct request *r, struct message_bytes *m);
/* The transaction id: the text that was pushed, or the message's id, written to `room` (UUID_TEXT bytes). */
struct slice message_transaction(const struct message_bytes *m, char *room);

/* The groups of a queue, and where they stand in one of its lanes. Memory is malloc'd: consumers_free. */
struct consumer {
    uint32_t group; /* number */
    struct slice name;
    bool registered, queue_mode;
    bool here; /* it has a cursor in the lane */
    int64_t committed;
    bool leased;
    int64_t lease_expires_us;
};
struct consumers {
    struct buf list; /* struct consumer each */
    uint32_t queue, lane;
    uint32_t named; /* groups that count for a message: registered or with a cursor, not queue mode */
    bool queue_mode;
};
void consumers_of(struct consumers *c, struct engine *e, struct engine_now now,
                  const struct lane_view *lane); /* cheap when unchanged */
void consumers_free(struct consumers *c);
static inline uint32_t consumers_count(const struct consumers *c)
{
    return (uint32_t)(c->list.len / sizeof(struct consumer));
}
static inline const struct consumer *consumers_at(const struct consumers *c, uint32_t i)
{
    return (const struct consumer *)(const void *)c->list.at + i;
}

enum message_status { MESSAGE_PENDING, MESSAGE_PROCESSING, MESSAGE_COMPLETED, MESSAGE_DEAD, MESSAGE_STATUSES };
extern const char *const message_status_text[MESSAGE_STATUSES];
/* `consumed`: by how many of the named groups. */
enum message_status message_status_of(const struct consumers *c, uint64_t offset, bool dead, uint32_t *consumed);

/* Counts the groups of a queue for `mode`. */
struct consume_modes {
    bool queue_mode;
    uint64_t groups;
};
void modes_add(struct consume_modes *m, struct engine *e, uint32_t queue);
void modes_render(struct buf *out, const struct consume_modes *m); /* {"hasQueueMode","busGroupsCount","type"} */

/* ,"data":...,"payload":...,"traceId":...,"producerSub":... */
void message_fields(struct buf *out, const struct message_bytes *m);

#endif
