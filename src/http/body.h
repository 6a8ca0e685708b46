/* Request bodies: JSON texts turned into structs, shape by shape. The only place that knows the field names of bodies.
 *
 * Rules of all bodies: unknown fields are checked and ignored; a known field given twice is refused; a name (queue, partition,
 * transactionId, consumerGroup, namespace, task) with a control character is refused, naming the field; `null` is as good as
 * absent where the field is optional. Slices point into the body or, when they had escapes, into the arena; both must outlive
 * the struct. A reader returns false with `why` filled in: text for the client, never with the client's bytes in it, so it needs
 * no escaping. Any thread. Linear time, no recursion. */
#ifndef QUEEN_HTTP_BODY_H
#define QUEEN_HTTP_BODY_H

#include "base/arena.h"
#include "base/buf.h"
#include "engine/command.h"

struct body_refusal {
    char text[160];
    const char *code; /* bad_body, bad_request, name_too_long, too_many_items; NULL = an envelope without code */
};

/* ---- push --------------------------------------------------------------------------------------------------------- */

struct push_input {
    struct slice queue, partition; /* never empty: `Default` where none was given */
    struct slice transaction;      /* when has_transaction */
    struct slice payload;          /* JSON text, verbatim; `null` counts as a payload */
    struct uuid trace;             /* when has_trace: a traceId that is a UUID; others are ignored */
    bool has_transaction, has_trace;
};

/* Appends a struct push_input per item to `items`, at most so many. */
bool body_push_read(struct slice body, uint64_t items_max, struct arena *arena, struct buf *items, struct body_refusal *why);
void push_input_write(struct push_writer *w, const struct push_input *in);

/* ---- ack ---------------------------------------------------------------------------------------------------------- */

struct ack_input {
    struct slice transaction, partition, lease, error; /* as sent; empty when absent or null */
    uint8_t status;                                    /* enum ack_status */
    bool has_error;
};

/* Appends a struct ack_input per item to `items`: of `acknowledgments` when it has any, else one of the top level. `group` is
 * QUEUE_MODE_GROUP when none was given. */
bool body_ack_read(struct slice body, struct arena *arena, struct buf *items, struct slice *group, struct body_refusal *why);

/* ---- the small ones ------------------------------------------------------------------------------------------------ */

/* `seconds` of a lease extension: 60 when the body is empty, unreadable or without it; at least 1, at most LEASE_SECONDS_MAX. */
int64_t body_extend_read(struct slice body, struct arena *arena);

/* A configure body: fills in everything but the tenant. Ranges are checked and clamped here. */
bool body_configure_read(struct slice body, struct arena *arena, struct configure_command *out, struct body_refusal *why);

#endif
