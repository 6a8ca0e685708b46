/* What reads want of the store: told before they run, so that other threads read it and the group does not wait for a disk.
 *
 * A read is asked twice. First lanes that are away are told by their numbers; when their rows have been read (warmed) they come in, which
 * then looks into memory only, and tell where they stand: which appends and ids are wanted. What is left out, or leaves the
 * store's cache before the read runs, is read by the read itself. */
#include "engine/foresee_inner.h"
#include "engine/row.h"

/* What listings say of a lane: the age of its oldest message, and of the oldest that a group has not acked. */
static void appends_tell(struct foresight *s, const struct partition *p)
{
    foresee_messages(s, p, p->start, 1);
    for (uint32_t at = cursor_live(s->e, p->cursors); at != 0; at = cursor_live(s->e, cursor_at(s->e, at)->next)) {
        const struct cursor *c = cursor_at(s->e, at);
        const struct group *g = group_at(s->e, c->group);
        uint64_t next = (uint64_t)(c->committed + 1);
        if (next > p->start) foresee_messages(s, p, next, 1);
        if (!(c->flags & CURSOR_SEEDED) && g->mode != SUBSCRIBE_ALL) foresee_time(s, p, SEARCH_TIME, g->from_us);
    }
}

void engine_messages_foreseen(struct engine *e, uint32_t partition, uint64_t offset, uint32_t before,
                              const struct engine_foreseen *f)
{
    struct foresight s = foresight_of(e, f);
    const struct partition *p = foresee_lane(&s, partition);
    if (p == NULL) return;
    appends_tell(&s, p);
    uint64_t from = offset > before ? offset - before : 0;
    if (from < p->start) from = p->start;
    if (from <= offset) foresee_messages(&s, p, from, offset - from + 1);
}

void engine_lane_foreseen(struct engine *e, uint32_t partition, const struct engine_foreseen *f)
{
    struct foresight s = foresight_of(e, f);
    foresee_lane(&s, partition);
}

void engine_fetch_foreseen(struct engine *e, struct uuid tenant, struct slice queue, struct slice partition, uint64_t offset,
                           uint64_t bytes_max, uint32_t messages_max, const struct engine_foreseen *f)
{
    struct foresight s = foresight_of(e, f);
    const struct partition *p = foresee_name(&s, queue_find(e, tenant, queue), partition);
    if (p == NULL || offset < p->start || offset >= p->tail) return;
    uint64_t each = p->bytes / (p->tail - p->start) + 1,
             messages = bytes_max / each + 1; /* so many, if they are like the others */
    foresee_messages(&s, p, offset, messages < messages_max ? messages : messages_max);
}

void engine_offset_foreseen(struct engine *e, struct uuid tenant, struct slice queue, struct slice partition, int64_t us,
                            const struct engine_foreseen *f)
{
    struct foresight s = foresight_of(e, f);
    const struct partition *p = foresee_name(&s, queue_find(e, tenant, queue), partition);
    if (p == NULL) return;
    if (us <= p->start_us) foresee_messages(&s, p, p->start, 1);
    foresee_time(&s, p, SEARCH_BEFORE, us);
}

static void id_tell(void *ctx, struct slice from, struct slice to)
{
    foresee_range(ctx, from, to);
}

/* Where the message stands may only be known once the rows of ids are read: warmed, they are looked up. */
void engine_message_foreseen(struct engine *e, uint32_t partition, struct slice transaction, const struct engine_foreseen *f)
{
    struct foresight s = foresight_of(e, f);
    struct dedup_key k = dedup_key(e->seed, partition, transaction);
    struct dedup_hit hit;
    struct uuid id;
    uint64_t offset;
    int64_t created_ms;
    if (lane_at(e, partition) == NULL) return;
    const struct partition *p = foresee_lane(&s, partition);
    if (!f->warmed) dedup_foreseen(e->dedup, k, INT64_MIN, id_tell, &s);
    if (p != NULL && s.left < FORESEEN_MAX) foresee_again(&s);
    if (p == NULL) return;
    appends_tell(&s, p);
    if (f->warmed && dedup_find(e->dedup, k, p->start, p->tail, INT64_MIN, e->last_head.wall_us / 1000, &hit)) {
        foresee_messages(&s, p, hit.offset, 1);
    } else if (uuid_parse(transaction, &id) && message_id_parse(e->seed, id, partition, &offset, &created_ms)) {
        foresee_messages(&s, p, offset, 1);
    }
}

/* ---- walks ---------------------------------------------------------------------------------------------------------- */

enum {
    AWAY_AT_ONCE = 128, /* lanes that come in for what is wanted of them */
    WALK_AHEAD = 128,   /* lanes that a walk's step reads ahead, beyond those that were asked for */
    LANES_TOGETHER = 128,
};

struct lanes_look {
    struct foresight s;
    enum foreseen_depth depth;
    int64_t us;                             /* FORESEEN_TIME */
    uint32_t queue, from, in_range, looked; /* from: of the range of rows that is being put together; 0 = none */
    uint32_t away_count;
    uint32_t away[AWAY_AT_ONCE];
};

static void lanes_range_end(struct lanes_look *k, uint32_t end)
{
    struct engine_time_search t = {
        .kind = SEARCH_BEFORE, .queue = k->queue, .lane = k->from, .end = end, .looks = UINT32_MAX, .us = k->us};
    if (k->from != 0 && k->depth == FORESEEN_TIME) {
        foresee_search(&k->s, &t);
    } else if (k->from != 0) {
        foresee_lanes(&k->s, k->queue, k->from, end);
    }
    k->from = 0;
    k->in_range = 0;
}

/* First time: ranges of rows, each of lanes that follow one another, whether they are away or not. */
static void lane_range(struct lanes_look *k, uint32_t number, bool away)
{
    if (k->from != 0 && k->in_range == LANES_TOGETHER) lanes_range_end(k, number);
    if (k->from == 0 && away) k->from = number;
    if (k->from != 0) k->in_range++;
}

/* False: enough was told. */
static bool lane_look(struct lanes_look *k, uint32_t number)
{
    const struct lane *l = lane_at(k->s.e, number);
    bool appends = k->depth == FORESEEN_APPENDS, warmed = k->s.f->warmed;
    bool away = l->p == NULL || (k->depth == FORESEEN_TIME && lane_is_stored(l));
    if (k->depth != FORESEEN_LANES && away && k->away_count == AWAY_AT_ONCE) return false;
    if (away && warmed && appends) k->away[k->away_count] = number;
    if (away) k->away_count++;
    if (!warmed) {
        lane_range(k, number, away);
        if (!away && appends) appends_tell(&k->s, l->p);
    }
    k->looked++;
    return k->s.left > FORESEEN_MAX / 8;
}

void engine_standing_foreseen(struct engine *e, struct uuid tenant, struct slice queue, struct slice partition,
                              const struct engine_foreseen *f)
{
    struct foresight s = foresight_of(e, f);
    const struct partition *p = foresee_name(&s, queue_find(e, tenant, queue), partition);
    if (p != NULL) appends_tell(&s, p);
}

uint32_t engine_lanes_foreseen(struct engine *e, uint32_t queue, uint32_t after, uint32_t lanes, enum foreseen_depth depth,
                               int64_t us, bool *all, const struct engine_foreseen *f)
{
    struct lanes_look k = {.s = foresight_of(e, f), .depth = depth, .us = us, .queue = queue};
    const struct queue *q = queue_at(e, queue);
    const struct lane *before = after == 0 ? NULL : lane_at(e, after);
    *all = true;
    if (q == NULL || (f->warmed && depth != FORESEEN_APPENDS)) return 0;
    uint32_t number = before != NULL && before->queue == queue ? before->next : q->partition_first;
    while (number != 0 && k.looked < lanes && lane_look(&k, number)) number = lane_at(e, number)->next;
    *all = number == 0;
    if (depth == FORESEEN_APPENDS && k.away_count > 0) foresee_again(&k.s);
    if (!f->warmed) {
        if (depth == FORESEEN_TIME) lanes_range_end(&k, number == 0 ? UINT32_MAX : number);
        k.depth = FORESEEN_LANES;
        k.from = depth == FORESEEN_TIME && k.away_count > 0 ? number : k.from;
        for (uint32_t i = 0; k.from != 0 && number != 0 && i < WALK_AHEAD; i++) number = lane_at(e, number)->next;
        lanes_range_end(&k, number == 0 ? UINT32_MAX : number);
    }
    for (uint32_t i = 0; f->warmed && i < k.away_count; i++) appends_tell(&k.s, lane_open_ahead(e, k.away[i]));
    return k.looked;
}

/* ---- dead letters --------------------------------------------------------------------------------------------------- */

void engine_letters_foreseen(struct engine *e, struct uuid tenant, struct slice queue, struct slice group, uint64_t before,
                             uint64_t skipped, uint64_t rows, uint32_t looks, const struct engine_foreseen *f)
{
    struct foresight s = foresight_of(e, f);
    const struct queue *one = queue.len == 0 ? NULL : queue_find(e, tenant, queue);
    if (queue.len > 0 && one == NULL) return;
    for (uint32_t at; looks > 0 && rows > 0 && s.left > 0; looks--) {
        struct dead_letter d;
        at = dead_letter_before(e, one == NULL ? 0 : one->number, before);
        if (at == 0) return;
        dead_letter_read(e, at, &d);
        before = d.sequence;
        const struct queue *q = queue_at(e, d.queue);
        if (q == NULL || !uuid_equal(q->tenant, tenant)) continue;
        if (group.len > 0 && !slice_equal(group, group_at(e, d.group)->name)) continue;
        if (skipped > 0) {
            skipped--;
        } else {
            foresee_lane(&s, d.partition);
            rows--;
        }
    }
}

void engine_letter_foreseen(struct engine *e, struct uuid tenant, struct uuid id, const struct engine_foreseen *f)
{
    struct foresight s = foresight_of(e, f);
    struct dead_letter d;
    uint32_t at = letter_find(e, tenant, id);
    if (at == 0) return;
    dead_letter_read(e, at, &d);
    foresee_lane(&s, d.partition);
}

/* ---- timers --------------------------------------------------------------------------------------------------------- */

struct timer_rows {
    struct foresight *s;
    uint32_t left;
};

static bool timer_row(void *ctx, struct slice key, struct slice value)
{
    struct timer_rows *r = ctx;
    uint64_t sequence;
    must(value.len == sizeof sequence);
    memcpy(&sequence, value.at, sizeof sequence);
    uint32_t at = timer_numbered(r->s->e, slice_make(key.at + 1, key.len - 1), sequence);
    const struct timer *t = at == 0 ? NULL : timer_at(r->s->e, at);
    if (t != NULL && t->body == NULL) foresee_timer(r->s, t, t->due.key);
    return --r->left > 0;
}

/* First where those of the keys are, in the order of keys; then, as these say, the timers' own. */
void engine_timers_foreseen(struct engine *e, struct uuid tenant, struct slice queue, struct slice after, uint32_t rows,
                            const struct engine_foreseen *f)
{
    struct foresight s = foresight_of(e, f);
    char from[1 + TIMER_PATH_MAX], to[1 + TIMER_PATH_MAX], path[TIMER_PATH_MAX];
    struct slice end;
    bool none = e->timers.used == e->timer_order.count || queue.len > NAMES_BYTES_MAX || after.len > TIMER_KEY_BYTES_MAX;
    if (none || rows == 0 || !tree_prefix_end(timer_path_make(path, tenant, queue, slice_of("")), to + 1, &end)) return;
    from[0] = to[0] = (char)ROW_TIMER_PATH;
    struct slice first = slice_make(from, 1 + timer_path_make(from + 1, tenant, queue, after).len);
    struct slice behind = slice_make(to, 1 + end.len);
    struct timer_rows r = {.s = &s, .left = rows < FORESEEN_MAX ? rows : FORESEEN_MAX};
    if (f->warmed) {
        e->options.cold.scan(e->options.cold.ctx, first, behind, timer_row, &r);
    } else {
        foresee_range(&s, first, behind);
        foresee_again(&s);
    }
}

bool engine_timers_count_foreseen(struct engine *e, struct uuid tenant, struct slice queue, struct slice prefix,
                                  const struct timer_tally *tally, const struct engine_foreseen *f)
{
    struct foresight s = foresight_of(e, f);
    char from[1 + TIMER_PATH_MAX], to[1 + TIMER_PATH_MAX], path[TIMER_PATH_MAX];
    struct slice first, end;
    bool none = e->timers.used == e->timer_order.count || queue.len > NAMES_BYTES_MAX || prefix.len > TIMER_KEY_BYTES_MAX;
    if (none || f->warmed) return false;
    first = timer_path_make(path, tenant, queue, prefix);
    from[0] = to[0] = (char)ROW_TIMER_PATH;
    if (!tree_prefix_end(first, to + 1, &end)) return false;
    if (tally->next_len > 0) first = slice_make(tally->next, tally->next_len);
    memcpy(from + 1, first.at, first.len);
    foresee_range(&s, slice_make(from, 1 + first.len), slice_make(to, 1 + end.len));
    return true;
}
