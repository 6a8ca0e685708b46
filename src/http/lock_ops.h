/* Lock ops as they stand in the body of /api/v1/locks: read, encoded, and rendered as result elements. In the manner of data_ops.h.
 * Any thread. */
#ifndef QUEEN_HTTP_LOCK_OPS_H
#define QUEEN_HTTP_LOCK_OPS_H

#include "http/data_ops.h"

struct lock_input {
    struct lock_op op;
    struct slice name; /* the inside of a JSON string */
};

struct lock_inputs {
    struct lock_input *items;
    uint32_t count;
    bool writes; /* anything but gets */
    bool grows;  /* acquires or renews: needs room on disk */
};

/* The array of ops that comes next. Slices point into the body or the reader's arena. */
bool lock_ops_read(struct json *j, struct lock_inputs *out, struct ops_refusal *why);
/* Appends a LOCKS command with all ops in order. */
void lock_ops_encode(const struct lock_inputs *in, struct uuid tenant, struct buf *out);
/* Appends one result element. `arena`: for reading the rows of holders. */
void lock_element(struct buf *out, struct arena *arena, const struct lock_input *in, const struct lock_outcome *o,
                  uint32_t index);

#endif
