/* Retention: messages at the front of lanes go when the queue's options say so.
 *
 *   retentionEnabled  retentionSeconds           older ones go, consumed or not
 *                     completedRetentionSeconds  older ones go that every group has passed
 *   maxWaitTimeSeconds                           older ones go for everybody, whatever retentionEnabled says
 *
 * The leader looks for lanes (engine_trim_due) and puts what it finds into the log; every node gives up the same. Whole appends go, a
 * bounded number at a time: of a lane that has more of them the front goes first. */
#include "engine/foresee_inner.h"
#include "engine/row.h"

/* ---- giving up ------------------------------------------------------------------------------------------------------ */

/* Groups that waited for messages that are gone wait no more. */
static void cursors_settle(struct engine *e, struct partition *p)
{
    for (uint32_t at = cursor_live(e, p->cursors); at != 0; at = cursor_live(e, cursor_at(e, at)->next)) {
        const struct cursor *c = cursor_at(e, at);
        bool waits = c->state == CURSOR_READY || c->state == CURSOR_DELAYED;
        if (waits && !cursor_pending(c, p)) cursor_settle(e, at);
    }
}

bool trim_apply(struct engine *e, const struct command *c, struct engine_result *result)
{
    struct trim_command trim;
    if (!trim_decode(c, &trim)) return false;
    for (uint32_t i = 0; i < trim.count; i++) {
        struct trim_item item;
        struct run r;
        trim_item_read(&trim, i, &item);
        struct partition *p = partition_at(e, item.partition);
        if (p == NULL || item.start <= p->start) continue;
        uint64_t start = item.start < p->tail ? item.start : p->tail;
        if (run_find(e, p, start, &r)) start = r.first;
        if (start <= p->start) continue;
        result->trim.lanes++;
        result->trim.messages += start - p->start;
        run_forget(e, p, start);
        partition_touch(e, p);
        queue_touch(e, queue_at(e, p->queue));
        cursors_settle(e, p);
    }
    return true;
}

/* ---- looking -------------------------------------------------------------------------------------------------------- */

struct cutoffs {
    int64_t any_us, completed_us; /* messages created before go; 0 = none */
};

static int64_t cutoff(int64_t now_us, int32_t seconds)
{
    int64_t us = now_us - (int64_t)seconds * 1000000;
    return seconds > 0 && us > 0 ? us : 0;
}

static bool cutoffs_of(const struct queue *q, int64_t now_us, struct cutoffs *out)
{
    const int32_t *o = q->options.numbers;
    *out = (struct cutoffs){.any_us = cutoff(now_us, o[OPTION_MAX_WAIT_TIME_SECONDS])};
    if (o[OPTION_RETENTION_ENABLED]) {
        int64_t any_us = cutoff(now_us, o[OPTION_RETENTION_SECONDS]);
        if (any_us > out->any_us) out->any_us = any_us;
        out->completed_us = cutoff(now_us, o[OPTION_COMPLETED_RETENTION_SECONDS]);
    }
    return out->any_us > 0 || out->completed_us > 0;
}

/* The first offset that some group still wants; a registered group that has not come to the lane wants all of it. */
static uint64_t completed_end(const struct engine *e, const struct queue *q, const struct partition *p)
{
    uint64_t end = p->tail;
    uint32_t at = cursor_live(e, p->cursors);
    if (at == 0) return p->start;
    for (; at != 0; at = cursor_live(e, cursor_at(e, at)->next)) {
        uint64_t next = (uint64_t)(cursor_at(e, at)->committed + 1);
        if (next < end) end = next;
    }
    for (uint32_t n = q->groups; n != 0; n = group_at(e, n)->next) {
        const struct group *g = group_at(e, n);
        if (g->registered && cursor_find(e, p, n) == 0) return p->start;
    }
    return end;
}

/* From the front of a lane, the appends that may go. */
struct lane_trim {
    int64_t any_us, completed_us;
    uint64_t completed_end, stored_end; /* what every group has passed; what is readable from the store */
    uint64_t start;
    uint32_t *runs; /* so many more may be looked at */
};

static bool run_goes(void *ctx, const struct run *r)
{
    struct lane_trim *t = ctx;
    bool completed = r->created_us < t->completed_us && run_end(r) <= t->completed_end;
    if (*t->runs == 0 || (r->created_us >= t->any_us && !completed) || run_end(r) > t->stored_end) return false;
    t->start = run_end(r);
    --*t->runs;
    return true;
}

static uint64_t lane_start(const struct engine *e, const struct queue *q, const struct partition *p, const struct cutoffs *c,
                           uint32_t *runs)
{
    struct lane_trim t = {.any_us = c->any_us, .start = p->start, .stored_end = p->tail - p->unstored, .runs = runs};
    if (p->start == p->tail || (c->any_us <= p->start_us && c->completed_us <= p->start_us)) return p->start;
    if (c->completed_us > p->start_us) {
        t.completed_us = c->completed_us;
        t.completed_end = completed_end(e, q, p);
    }
    run_each_from(e, p, p->start, run_goes, &t);
    return t.start;
}

/* Nothing of a lane at rest can be due when its oldest message is not. */
static bool lane_passed(const struct lane *l, const struct cutoffs *c)
{
    int64_t oldest_us = (int64_t)l->oldest_s * 1000000;
    return l->p == NULL && (l->oldest_s == 0 || (c->any_us <= oldest_us && c->completed_us <= oldest_us));
}

/* The next lane of queues with retention, from the walk's place on; 0: the end of all (done), or `looks` are used up. */
static uint32_t lane_next(const struct engine *e, struct trim_walk *w, int64_t now_us, struct cutoffs *c, uint32_t *looks,
                          bool *done)
{
    for (; *looks > 0; --*looks) {
        const struct queue *q = w->queue == 0 ? NULL : queue_at(e, w->queue);
        if (q != NULL && q->messages > 0 && cutoffs_of(q, now_us, c)) {
            const struct lane *last = w->partition == 0 ? NULL : lane_at(e, w->partition);
            uint32_t n = last == NULL ? q->partition_first : last->next;
            w->wanted = true;
            for (; n != 0 && *looks > 0; --*looks) {
                const struct lane *l = lane_at(e, n);
                w->partition = n;
                if (!lane_passed(l, c)) {
                    --*looks;
                    return n;
                }
                n = l->next;
            }
            if (n != 0) return 0;
        }
        w->partition = 0;
        if (w->queue >= e->queue_last) {
            w->queue = 0;
            *done = true;
            return 0;
        }
        w->queue++;
    }
    return 0;
}

/* Does it take a read to know what of the lane goes? */
static bool lane_reads(const struct lane *l, const struct cutoffs *c)
{
    return lane_is_stored(l) && (l->p == NULL || l->p->start_us < c->any_us || l->p->start_us < c->completed_us);
}

/* The walk stands before the lane again. */
static void walk_back(const struct engine *e, struct trim_walk *w, uint32_t before)
{
    const struct lane *last = before == 0 ? NULL : lane_at(e, before);
    w->partition = last != NULL && last->queue == w->queue ? before : 0;
}

enum trim_round engine_trim_due(struct engine *e, struct engine_now now, const struct trim_limits *most, struct trim_item *out,
                                uint32_t *count)
{
    struct cutoffs c;
    struct trim_walk *w = &e->trim;
    uint32_t n, before = w->partition, looks = most->looks, runs = most->runs, read = 0;
    bool done = false;
    *count = 0;
    while (*count < most->lanes && (n = lane_next(e, w, now.wall_us, &c, &looks, &done)) != 0) {
        if (lane_reads(lane_at(e, n), &c) && read++ == most->lanes) {
            walk_back(e, w, before);
            return TRIM_GOES_ON;
        }
        const struct partition *p = lane_open_ahead(e, n);
        uint64_t start = lane_start(e, queue_at(e, p->queue), p, &c, &runs);
        if (start > p->start) out[(*count)++] = (struct trim_item){.partition = n, .start = start};
        if (runs == 0) { /* this lane may have more: it comes next again */
            walk_back(e, w, before);
            return TRIM_GOES_ON;
        }
        before = n;
    }
    if (!done) return TRIM_GOES_ON;
    bool wanted = w->wanted;
    w->wanted = false;
    return wanted ? TRIM_ROUND_DONE : TRIM_NEVER;
}

/* ---- what the next look will read ----------------------------------------------------------------------------------- */

/* Lanes that follow one another, whether all of them are due or not. */
enum { LANES_AHEAD = 128 };

struct trim_range {
    uint32_t queue, first, last; /* 0 = none */
    int64_t us;
};

static void range_tell(struct foresight *s, struct trim_range *r, uint32_t runs)
{
    struct engine_time_search t = {
        .kind = SEARCH_FRONT, .queue = r->queue, .lane = r->first, .end = r->last + 1, .looks = runs, .us = r->us};
    if (r->first == 0) return;
    foresee_search(s, &t);
    foresee_lanes(s, r->queue, r->last + 1, r->last + LANES_AHEAD); /* lanes come in together */
    r->first = 0;
}

void engine_trim_foreseen(struct engine *e, struct engine_now now, const struct trim_limits *most,
                          const struct engine_foreseen *f)
{
    enum { APART_MAX = 64 }; /* numbers of lanes that are read together: what lies between two of them is not much */
    struct foresight s = foresight_of(e, f);
    struct trim_walk w = e->trim;
    struct trim_range r = {0};
    struct cutoffs c;
    uint32_t n, looks = most->looks, lanes = 0;
    bool done = false;
    while (lanes < most->lanes && (n = lane_next(e, &w, now.wall_us, &c, &looks, &done)) != 0) {
        const struct lane *l = lane_at(e, n);
        if (!lane_reads(l, &c)) continue;
        int64_t us = c.any_us > c.completed_us ? c.any_us : c.completed_us;
        bool joins = r.first != 0 && r.queue == l->queue && n - r.last <= APART_MAX;
        if (!joins) range_tell(&s, &r, most->runs);
        if (!joins) r = (struct trim_range){.queue = l->queue, .first = n, .us = us};
        r.last = n;
        lanes++;
    }
    range_tell(&s, &r, most->runs);
}
