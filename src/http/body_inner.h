/* What the readers of bodies share (body.c). */
#ifndef QUEEN_HTTP_BODY_INNER_H
#define QUEEN_HTTP_BODY_INNER_H

#include "http/body.h"
#include "http/json.h"

/* Always false. */
__attribute__((format(printf, 3, 4))) bool body_refuse(struct body_refusal *why, const char *code, const char *format, ...);

enum field_kind {
    FIELD_STRING, /* a string or null */
    FIELD_NAME,   /* the same, without control characters */
};

/* A member that must be a string or null. */
bool body_field_read(struct json *j, enum field_kind kind, struct slice *out, bool *given);

/* Is a string that the reader gave without control characters? */
bool body_control_free(const struct json *j, struct slice s);

/* Marks field number i as seen; false when it was already. */
bool body_field_once(struct json *j, uint32_t *seen, unsigned i);

/* The fields of a pushed item. */
enum push_field { PUSH_QUEUE, PUSH_PARTITION, PUSH_PAYLOAD, PUSH_TRANSACTION, PUSH_TRACE, PUSH_UNKNOWN };
bool body_push_field_read(struct json *j, enum push_field field, struct push_input *item);

/* One element of `items`. A transactionId that is too long is refused with item->transaction holding it. */
bool body_push_item_read(struct json *j, uint32_t index, struct push_input *item, struct body_refusal *why);

uint8_t body_ack_status(struct slice text); /* enum ack_status */

/* A partitionId: false when it is not digits. A number that is too large becomes one that no partition has. */
bool body_partition_number(struct slice text, uint64_t *out);
/* The error text of an ack: at most ERROR_TEXT_BYTES_MAX of it, cut between characters. */
struct slice body_error_cut(struct slice text);
/* The lease of an ack: text that is no UUID becomes one that matches nothing. */
struct uuid body_lease(struct slice text);

#endif
