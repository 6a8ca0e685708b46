/* Inside of foresight: what foresee.c (entries) and foresee_read.c (reads) share. */
#ifndef QUEEN_ENGINE_FORESEE_INNER_H
#define QUEEN_ENGINE_FORESEE_INNER_H

#include "engine/engine_internal.h"

struct foresight {
    struct engine *e;
    const struct engine_foreseen *f;
    uint32_t left; /* what may still be told */
};

static inline void foresee_again(const struct foresight *s)
{
    if (s->f->again != NULL && !s->f->warmed) *s->f->again = true;
}

void foresee_range(struct foresight *s, struct slice from, struct slice to);
void foresee_lanes(struct foresight *s, uint32_t queue, uint32_t number,
                   uint32_t end); /* rows of lanes: number <= lane < end */
/* The lane if it is in memory, or comes in since its rows were read (warmed); else its rows are told: NULL. */
struct partition *foresee_lane(struct foresight *s, uint32_t number);
struct partition *foresee_name(struct foresight *s, const struct queue *q, struct slice name);
/* Rows of the appends that hold these messages, but for what is in memory. */
void foresee_messages(struct foresight *s, const struct partition *p, uint64_t from, uint64_t count);
void foresee_time(struct foresight *s, const struct partition *p, int64_t us); /* what run_offset_at will read */

#endif
