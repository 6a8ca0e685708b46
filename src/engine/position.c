/* POSITIONS: a group's place in a lane, set from outside. Only inside a step. */
#include "engine/engine_internal.h"

int64_t positions_missing(const struct engine *e, const struct positions_command *c)
{
    struct slice rest = c->items;
    struct position_item item;
    for (uint32_t i = 0; i < c->item_count; i++) {
        must(position_next(&rest, &item));
        if (queue_find(e, c->tenant, item.queue) == NULL) return i;
    }
    return -1;
}

static struct group *group_known(struct engine *e, struct queue *q, const struct position_item *item)
{
    struct group *g = group_find(e, q, item->group);
    if (g != NULL && g->registered) return g;
    if (g == NULL) g = group_add(e, q, ++e->group_last, item->group);
    bool all = item->mode == SUBSCRIBE_ALL || group_is_queue_mode(g);
    g->mode = all ? SUBSCRIBE_ALL : item->mode;
    g->from_us = all ? 0 : item->mode == SUBSCRIBE_NEW ? e->wall_us : item->from_us;
    g->registered = true;
    group_touch(e, g);
    return g;
}

static void position_set(struct engine *e, struct partition *p, struct group *g, const struct position_item *item)
{
    uint32_t at = cursor_find(e, p, g->number);
    int64_t committed = (int64_t)item->offset - 1;
    if (at == 0 && item->forget) return;
    if (at == 0) at = cursor_add(e, p, g);
    struct cursor *c = cursor_at(e, at);
    if (!item->forget && c->lease == 0 && c->flags & CURSOR_SEEDED && c->committed == committed && c->retries == 0 &&
        c->attempt == 0) {
        return; /* it is there already */
    }
    cursor_unlist(e, at);
    if (c->lease != 0) lease_drop(e, at);
    c->retries = 0;
    c->attempt = 0;
    c->committed = item->forget ? -1 : committed;
    if (item->forget) {
        c->flags &= (uint8_t) ~(CURSOR_SEEDED | CURSOR_CLAIMED);
    } else {
        c->flags |= CURSOR_SEEDED;
    }
    cursor_settle(e, at);
    run_trim(e, p);
}

void positions_do(struct engine *e, const struct positions_command *c)
{
    struct slice rest = c->items;
    struct position_item item;
    for (uint32_t i = 0; i < c->item_count; i++) {
        must(position_next(&rest, &item));
        struct queue *q = queue_find(e, c->tenant, item.queue);
        must(q != NULL);
        if (item.forget && group_find(e, q, item.group) == NULL) continue;
        struct partition *p = partition_obtain(e, q, item.partition);
        position_set(e, p, group_known(e, q, &item), &item);
    }
}
