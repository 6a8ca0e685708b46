/* What the operators' routes share: reads in several visits to the group thread, walks over lanes, addresses of messages, and the
 * pieces of answers.
 *
 * A read of many lanes would hold up everything else if it were done in one go. So it is done in visits: each looks at lanes for VISIT_US,
 * at most VISIT_LANES, and then the group thread does its other work. Rows of lanes at rest are read by other threads before each visit
 * (walk_foreseen). (A lane is about 0.3 us; one that is read back from the store's cache 3 us, each append that is looked at 10 us.) A listing that takes several visits is not a picture of one moment: what changed meanwhile is seen or not. It
 * ends with what it has after LANES_WALKED_MAX lanes or WALK_US_MAX (`partial` says so).
 *
 * Threads: visits run on the group thread, all else on the edge's; what they hand each other is in the request's arena, or in malloc'd
 * memory that is freed within one visit. */
#ifndef QUEEN_HTTP_VISIT_H
#define QUEEN_HTTP_VISIT_H

#include "http/request.h"

enum {
    VISIT_LANES = 1000, /* lanes (and queues) of one visit */
    VISIT_US = 2000,
    LANES_WALKED_MAX = 1000000,
    WALK_US_MAX = 15000000,
};

/* ---- reads ---------------------------------------------------------------------------------------------------------- */

/* One visit: writes to `out` what belongs to the answer so far, may set r->call.status, gives true when there is more to do. */
typedef bool visit_run(struct request *r, void *data, struct buf *out, struct engine *e, struct engine_now now);

/* Visits until `visit` gives false, then answers with all that was written, as JSON. `data` goes to each visit. */
void visits_answer(struct request *r, visit_run *visit, void *data);
/* The same, but then `after` makes the answer, or submits a write. Its outcome is good then: others were answered. */
void visits_then(struct request *r, visit_run *visit, void *data, void (*after)(struct request *r, void *data));

/* Has this visit, begun at that time (clock_mono_us), taken long enough? */
bool visit_over(int64_t began_us);

/* ---- walks ---------------------------------------------------------------------------------------------------------- */

struct lane_walk {
    struct slice queue; /* only this one; empty: all of the tenant */
    uint32_t at_queue, at_lane, walked;
    int64_t began_us;
    bool partial; /* it ended early */
    bool begun, over, inside;
    enum foreseen_depth depth; /* what each->lane asks of lanes */
    int64_t us;                /* of FORESEEN_TIME */
    uint32_t foreseen;         /* lanes of the next visit whose rows were read before it; 0 = as many as there is time for */
};

/* What to do with each queue, before its lanes, and with each lane. Either may be NULL. `queue` gives false to leave its lanes out. */
struct lane_walker {
    bool (*queue)(void *ctx, struct engine *e, const struct queue_view *q);
    void (*lane)(void *ctx, struct engine *e, struct engine_now now, const struct queue_view *q, const struct lane_view *lane);
    void *ctx;
};

/* Before visits_then and visits_answer: visits are part of this walk. */
void walk_foreseen(struct request *r, struct lane_walk *w, enum foreseen_depth depth);
/* The same, of a read that wants other things too. */
void lane_walk_foresee(struct lane_walk *w, const struct request *r, struct engine *e, const struct engine_foreseen *f);
/* One visit's part of the walk. True: there is more. */
bool lane_walk_go(struct lane_walk *w, struct request *r, struct engine *e, struct engine_now now,
                  const struct lane_walker *each);

/* ---- addresses ------------------------------------------------------------------------------------------------------ */

/* A lane by what clients call partitionId: its number in digits, or its UUID. False: the tenant has no such lane. */
bool lane_of_id(struct engine *e, struct uuid tenant, struct slice id, struct lane_view *out);
/* Which lane that may be; 0: none. */
uint32_t lane_number_of_id(struct slice id);
/* The names of a path with `*`, which were only decoded: not empty, no control characters. False: a 400 is set. */
bool path_names_good(struct request *r, unsigned count);

/* ---- pieces of answers ---------------------------------------------------------------------------------------------- */

void field_text(struct buf *out, const char *key, struct slice text); /* `key` with its punctuation: ",\"name\":" */
void field_number(struct buf *out, const char *key, uint64_t value);
void field_signed(struct buf *out, const char *key, int64_t value);
void field_bool(struct buf *out, const char *key, bool value);
void field_time_us(struct buf *out, const char *key, int64_t wall_us); /* 0 = null */
void field_time_ms(struct buf *out, const char *key, int64_t wall_us);
void field_text_or_null(struct buf *out, const char *key, struct slice text); /* at == NULL = null */

/* {"success":false,"error":text} */
void answer_unsuccessful(struct request *r, uint32_t status, const char *text);
/* Whole seconds from `from_us` to `to_us`; 0 when it is not before, or 0. */
uint64_t age_seconds(int64_t from_us, int64_t to_us);

#endif
