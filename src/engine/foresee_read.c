/* What reads want of the store: told before they run, so that other threads read it and the group does not wait for a disk.
 *
 * A read is asked twice. First lanes that are away are told by their numbers; when their rows have been read (warmed) they come in, which
 * then looks into memory only, and tell where they stand: which appends and ids are wanted. What is left out, or leaves the
 * store's cache before the read runs, is read by the read itself. */
#include "engine/foresee_inner.h"

bool engine_lane_away(struct engine *e, struct uuid tenant, struct slice queue, struct slice partition)
{
    const struct queue *q = queue_find(e, tenant, queue);
    uint32_t away = 0;
    if (q != NULL) partition_find_here(e, q, partition, &away);
    return away != 0;
}

/* What listings say of a lane: the age of its oldest message, and of the oldest that a group has not acked. */
static void appends_tell(struct foresight *s, const struct partition *p)
{
    foresee_messages(s, p, p->start, 1);
    for (uint32_t at = cursor_live(s->e, p->cursors); at != 0; at = cursor_live(s->e, cursor_at(s->e, at)->next)) {
        const struct cursor *c = cursor_at(s->e, at);
        const struct group *g = group_at(s->e, c->group);
        uint64_t next = (uint64_t)(c->committed + 1);
        if (next > p->start) foresee_messages(s, p, next, 1);
        if (!(c->flags & CURSOR_SEEDED) && g->mode != SUBSCRIBE_ALL) foresee_time(s, p, g->from_us);
    }
}

void engine_messages_foreseen(struct engine *e, uint32_t partition, uint64_t offset, uint32_t before,
                              const struct engine_foreseen *f)
{
    struct foresight s = {.e = e, .f = f, .left = FORESEEN_MAX};
    const struct partition *p = foresee_lane(&s, partition);
    if (p == NULL) return;
    appends_tell(&s, p);
    uint64_t from = offset > before ? offset - before : 0;
    if (from < p->start) from = p->start;
    if (from <= offset) foresee_messages(&s, p, from, offset - from + 1);
}

void engine_fetch_foreseen(struct engine *e, struct uuid tenant, struct slice queue, struct slice partition, uint64_t offset,
                           uint64_t bytes_max, uint32_t messages_max, const struct engine_foreseen *f)
{
    struct foresight s = {.e = e, .f = f, .left = FORESEEN_MAX};
    const struct partition *p = foresee_name(&s, queue_find(e, tenant, queue), partition);
    if (p == NULL || offset < p->start || offset >= p->tail) return;
    uint64_t each = p->bytes / (p->tail - p->start) + 1,
             messages = bytes_max / each + 1; /* so many, if they are like the others */
    foresee_messages(&s, p, offset, messages < messages_max ? messages : messages_max);
}

void engine_offset_foreseen(struct engine *e, struct uuid tenant, struct slice queue, struct slice partition, int64_t us,
                            const struct engine_foreseen *f)
{
    struct foresight s = {.e = e, .f = f, .left = FORESEEN_MAX};
    const struct partition *p = foresee_name(&s, queue_find(e, tenant, queue), partition);
    if (p == NULL) return;
    if (us <= p->start_us) foresee_messages(&s, p, p->start, 1);
    foresee_time(&s, p, us);
}

static void id_tell(void *ctx, struct slice from, struct slice to)
{
    foresee_range(ctx, from, to);
}

/* Where the message stands may only be known once the rows of ids are read: warmed, they are looked up. */
void engine_message_foreseen(struct engine *e, uint32_t partition, struct slice transaction, const struct engine_foreseen *f)
{
    struct foresight s = {.e = e, .f = f, .left = FORESEEN_MAX};
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
    uint32_t queue, from, in_range, looked; /* from: of the range of rows that is being put together; 0 = none */
    uint32_t away_count;
    uint32_t away[AWAY_AT_ONCE];
};

static void lanes_range_end(struct lanes_look *k, uint32_t end)
{
    if (k->from != 0) foresee_lanes(&k->s, k->queue, k->from, end);
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
static bool lane_look(struct lanes_look *k, uint32_t number, enum foreseen_depth depth)
{
    const struct lane *l = lane_at(k->s.e, number);
    bool away = l->p == NULL, warmed = k->s.f->warmed;
    if (depth == FORESEEN_APPENDS && away && k->away_count == AWAY_AT_ONCE) return false;
    if (away && warmed && depth == FORESEEN_APPENDS) k->away[k->away_count] = number;
    if (away) k->away_count++;
    if (!warmed) {
        lane_range(k, number, away);
        if (!away && depth == FORESEEN_APPENDS) appends_tell(&k->s, l->p);
    }
    k->looked++;
    return k->s.left > FORESEEN_MAX / 8;
}

void engine_standing_foreseen(struct engine *e, struct uuid tenant, struct slice queue, struct slice partition,
                              const struct engine_foreseen *f)
{
    struct foresight s = {.e = e, .f = f, .left = FORESEEN_MAX};
    const struct partition *p = foresee_name(&s, queue_find(e, tenant, queue), partition);
    if (p != NULL) appends_tell(&s, p);
}

uint32_t engine_lanes_foreseen(struct engine *e, uint32_t queue, uint32_t after, uint32_t lanes, enum foreseen_depth depth,
                               bool *all, const struct engine_foreseen *f)
{
    struct lanes_look k = {.s = {.e = e, .f = f, .left = FORESEEN_MAX}, .queue = queue};
    const struct queue *q = queue_at(e, queue);
    const struct lane *before = after == 0 ? NULL : lane_at(e, after);
    *all = true;
    if (q == NULL || (f->warmed && depth == FORESEEN_LANES)) return 0;
    uint32_t number = before != NULL && before->queue == queue ? before->next : q->partition_first;
    while (number != 0 && k.looked < lanes && lane_look(&k, number, depth)) number = lane_at(e, number)->next;
    *all = number == 0;
    if (depth == FORESEEN_APPENDS && k.away_count > 0) foresee_again(&k.s);
    if (!f->warmed) {
        for (uint32_t i = 0; k.from != 0 && number != 0 && i < WALK_AHEAD; i++) number = lane_at(e, number)->next;
        lanes_range_end(&k, number == 0 ? UINT32_MAX : number);
    }
    for (uint32_t i = 0; f->warmed && i < k.away_count; i++) appends_tell(&k.s, lane_open_ahead(e, k.away[i]));
    return k.looked;
}
