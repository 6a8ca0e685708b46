/* Inside of foresight: what foresee.c (entries) and foresee_read.c (reads) share. */
#ifndef QUEEN_ENGINE_FORESEE_INNER_H
#define QUEEN_ENGINE_FORESEE_INNER_H

#include "engine/engine_internal.h"

struct foresight {
    struct engine *e;
    const struct engine_foreseen *f;
    uint32_t left;  /* what may still be told */
    int64_t now_us; /* about when what is foreseen will be done */
};

static inline struct foresight foresight_of(struct engine *e, const struct engine_foreseen *f)
{
    return (struct foresight){.e = e, .f = f, .left = FORESEEN_MAX, .now_us = e->last_head.wall_us};
}

static inline void foresee_again(const struct foresight *s)
{
    if (s->f->again != NULL && !s->f->warmed) *s->f->again = true;
}

void foresee_range(struct foresight *s, struct slice from, struct slice to);
void foresee_lanes(struct foresight *s, uint32_t queue, uint32_t number,
                   uint32_t end); /* rows of lanes: number <= lane < end */
void foresee_search(struct foresight *s, const struct engine_time_search *t);
/* The lane if it is in memory, or comes in since its rows were read (warmed); else its rows are told: NULL. */
struct partition *foresee_lane(struct foresight *s, uint32_t number);
struct partition *foresee_name(struct foresight *s, const struct queue *q, struct slice name);
bool lane_is_stored(const struct lane *l); /* are some of its rows not in memory? */
void foresee_timer(struct foresight *s, const struct timer *t, int64_t until_us);
/* Rows of the appends that hold these messages, but for what is in memory. */
void foresee_messages(struct foresight *s, const struct partition *p, uint64_t from, uint64_t count);
/* What run_offset_at will read; or, SEARCH_BEFORE, and what is before that. */
void foresee_time(struct foresight *s, const struct partition *p, enum engine_search_kind kind, int64_t us);
void foresee_name_time(struct foresight *s, const struct queue *q, struct slice name, int64_t us);
void lanes_reap_foresee(struct foresight *s, const struct queue *q); /* lane.c */

#endif
