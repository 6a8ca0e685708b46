/* Questions of the leader about what is in flight or to come: read only, no part of what an entry does. */
#include "engine/engine_internal.h"

static uint64_t next_wanted(const struct cursor *c, const struct partition *p)
{
    uint64_t next = (uint64_t)(c->committed + 1);
    return next > p->start ? next : p->start;
}

/* Where a group without a cursor would begin in the lane. */
static uint64_t seed_offset(const struct engine *e, const struct group *g, const struct partition *p,
                            const struct pop_command *pop, int64_t now_us)
{
    bool registered = g != NULL && g->registered;
    uint8_t mode = registered ? g->mode : pop->mode;
    if (mode == SUBSCRIBE_ALL || slice_is(pop->group, QUEUE_MODE_GROUP)) return p->start;
    if (registered) return run_offset_at(e, p, g->from_us);
    return run_offset_at(e, p, mode == SUBSCRIBE_NEW ? now_us : pop->from_us);
}

int64_t engine_pop_due_us(struct engine *e, const struct pop_command *pop, struct engine_now now)
{
    must(pop->scope == POP_PARTITION);
    const struct queue *q = queue_find(e, pop->tenant, pop->queue);
    const struct partition *p = q == NULL ? NULL : partition_find(e, q, pop->partition);
    if (p == NULL) return -1;
    const struct group *g = group_find(e, q, pop->group);
    uint32_t at = g == NULL ? 0 : cursor_find(e, p, g->number);
    int64_t leased_us = 0;
    uint64_t from;
    if (at == 0) {
        from = seed_offset(e, g, p, pop, now.wall_us);
    } else {
        const struct cursor *c = cursor_at(e, at);
        if (c->lease != 0) leased_us = lease_at(e, c->lease)->expiry_us - now.log_us;
        if (leased_us < 0) leased_us = 0;
        from = next_wanted(c, p);
    }
    struct visible v;
    visible_get(e, q, p, from, now.wall_us + leased_us, &v);
    if (v.first < v.end) return leased_us;
    return v.due_us > 0 ? v.due_us - now.wall_us : -1;
}

bool engine_pop_is_seeded(struct engine *e, const struct pop_command *pop)
{
    must(pop->scope == POP_PARTITION);
    if (slice_is(pop->group, QUEUE_MODE_GROUP)) return true;
    const struct queue *q = queue_find(e, pop->tenant, pop->queue);
    const struct group *g = q == NULL ? NULL : group_find(e, q, pop->group);
    if (g == NULL) return false;
    if (g->registered) return true;
    const struct partition *p = partition_find(e, q, pop->partition);
    return p != NULL && cursor_find(e, p, g->number) != 0;
}

struct ack_lane {
    uint64_t partition;
    struct uuid lease;
    bool fenced, signal;
    uint32_t count;
};

static bool lane_is_freed(struct engine *e, const struct ack_lane *l, const struct group *g, const struct partition *p,
                          struct engine_now now)
{
    uint32_t at = cursor_find(e, p, g->number);
    const struct cursor *c = at == 0 ? NULL : cursor_at(e, at);
    if (c == NULL || c->lease == 0) return false;
    const struct lease *lease = lease_at(e, c->lease);
    if (l->fenced && (!uuid_equal(lease->id, l->lease) || lease->expiry_us < now.log_us)) return false;
    if (l->signal) return true;
    uint64_t first = next_wanted(c, p);
    return first <= lease->last && l->count > lease->last - first && p->tail > lease->last + 1;
}

static void lane_tell(struct engine *e, const struct ack_command *a, const struct ack_lane *l, struct engine_now now,
                      void (*each)(void *ctx, uint32_t group_number, struct slice partition), void *ctx)
{
    struct partition *p = l->count > 0 && l->partition <= UINT32_MAX ? partition_at(e, (uint32_t)l->partition) : NULL;
    if (p == NULL) return;
    const struct queue *q = queue_at(e, p->queue);
    const struct group *g = q == NULL || !uuid_equal(q->tenant, a->tenant) ? NULL : group_find(e, q, a->group);
    if (g == NULL || q->options.numbers[OPTION_DELAYED_PROCESSING] > 0 || q->options.numbers[OPTION_WINDOW_BUFFER] > 0) return;
    if (lane_is_freed(e, l, g, p, now)) each(ctx, g->number, partition_name(p));
}

void engine_ack_frees(struct engine *e, const struct ack_command *a, struct engine_now now,
                      void (*each)(void *ctx, uint32_t group_number, struct slice partition), void *ctx)
{
    struct slice rest = a->items;
    struct ack_item item;
    struct ack_lane l = {0};
    while (ack_item_next(&rest, &item)) {
        bool same = l.count > 0 && item.partition == l.partition && item.fenced == l.fenced && uuid_equal(item.lease, l.lease);
        if (!same) {
            lane_tell(e, a, &l, now, each, ctx);
            l = (struct ack_lane){.partition = item.partition, .lease = item.lease, .fenced = item.fenced};
        }
        l.count++;
        l.signal |= item.status != ACK_COMPLETED;
    }
    lane_tell(e, a, &l, now, each, ctx);
}
