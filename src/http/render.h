/* Writing JSON answers: texts, times, ids, and the two hot ones (push and pop). Append to a buf; any thread. */
#ifndef QUEEN_HTTP_RENDER_H
#define QUEEN_HTTP_RENDER_H

#include "base/buf.h"
#include "broker/broker.h"

/* A JSON string: quotes around the escaped bytes. Bytes that are not UTF-8 are the caller's fault and go out as they are. */
void render_text(struct buf *out, struct slice text);
void render_text_inside(struct buf *out, struct slice text); /* without the quotes */
void render_uuid(struct buf *out, struct uuid id);           /* with quotes */

/* Times in UTC, with quotes: 2031-02-03T04:05:06.789Z and ...06.789012Z. */
enum { TIME_MS_BYTES = 24, TIME_US_BYTES = 27 };
void render_time_ms(struct buf *out, int64_t wall_us);
void render_time_us(struct buf *out, int64_t wall_us);
void render_time_kv(struct buf *out, int64_t wall_us);         /* as KV spells it: isotime_kv */
void render_time_us_or_null(struct buf *out, int64_t wall_us); /* 0 = null */

/* The id of a stored message: one it brought along (a timer's), else the one made from its place. `tag` is the lane's message_tag. */
struct uuid render_message_id(const struct push_item *item, uint32_t tag, uint64_t offset, int64_t created_us);

/* A record of a read by offset. `ts`: the rendered time, quotes included. */
void render_record(struct buf *out, const struct push_item *item, struct uuid id, uint64_t offset, struct slice ts);

/* The answer of a pop: everything from { to }. */
struct pop_answer {
    const struct engine_result *result;
    const struct call_piece *pieces; /* of all claims, in order */
    uint64_t id_seed;
    struct slice queue; /* top level; empty for a discovery pop */
    struct slice group;
    struct uuid lease;
    bool auto_ack;
    bool autopilot;
    uint32_t chosen_partitions, chosen_batch; /* autopilot's echo */
};
void render_pop(struct buf *out, const struct pop_answer *a);

/* One element of a push's answer. `queue` is the rendered queue name with quotes. transaction_len of a message without an id
 * of its own: has_transaction false, the message's id is answered. */
struct push_line {
    uint32_t index;
    const struct push_outcome *outcome;
    bool has_transaction;
    struct slice transaction, queue;
};
void render_push_line(struct buf *out, const struct push_line *line);

/* Elements of a transaction's results: a push (`duplicate`: it repeats an earlier item of the transaction), and an ack. */
void render_step_push(struct buf *out, const struct push_line *line);
void render_step_ack(struct buf *out, uint32_t index, struct slice transaction, bool dead_letter);

#endif
