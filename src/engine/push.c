/* PUSH: dedup, offsets, append runs. */
#include <stdlib.h>

#include "base/planted.h"
#include "engine/engine_internal.h"

enum { PREFETCH = 32 };

struct push_lane {
    struct engine *e;
    struct queue *q;
    struct partition *p;
    const struct push_group *g;
    uint64_t where; /* of the group's block */
    uint32_t tag;
    char tag_text[8];
    uint8_t class;
    uint64_t first;                       /* the lane's tail before this command */
    int64_t created_us, now_ms, since_ms; /* since_ms: an older occurrence does not count */
    struct run run;                       /* being built; count 0 = none */
    uint32_t item_start;                  /* bytes: end of the item before */
};

static void tag_write(struct push_lane *l)
{
    char text[UUID_TEXT];
    uuid_text(message_id_tagged(l->tag, 0, 0), text);
    memcpy(l->tag_text, text + UUID_TEXT - 8, 8);
}

/* An explicit id may be the message id of a stored message that had none of its own. */
static bool auto_id_find(const struct push_lane *l, struct slice id, struct push_outcome *out)
{
    struct uuid u;
    uint64_t low_offset;
    int64_t created_ms;
    struct run r;
    if (id.len != UUID_TEXT || memcmp(id.at + UUID_TEXT - 8, l->tag_text, 8) != 0 || !uuid_parse(id, &u)) return false;
    if (!message_id_parse(l->e->seed, u, l->p->number, &low_offset, &created_ms)) return false;
    if (low_offset >= l->p->tail || created_ms < l->since_ms) return false;
    if (!run_find(l->e, l->p, low_offset, &r) || !(r.bytes & RUN_BYTES_AUTO)) return false;
    if (r.created_us / 1000 != created_ms) return false;
    *out = (struct push_outcome){.status = PUSH_DUPLICATE, .offset = low_offset, .id = u};
    return true;
}

/* The offset that the next stored item gets: the open run is not on the lane yet. */
static uint64_t lane_next(const struct push_lane *l)
{
    return l->run.count > 0 ? run_end(&l->run) : l->p->tail;
}

/* The id of a message that has one of its own: it stands in its block. */
static struct uuid own_id_read(const struct push_lane *l, uint64_t offset)
{
    struct run r;
    struct push_group g;
    struct push_item item;
    if (!run_find(l->e, l->p, offset, &r) || !(r.bytes & RUN_BYTES_OWN_ID)) return message_id_tagged(l->tag, offset, 0);
    char *block = malloc(r.block_bytes);
    must(block != NULL);
    l->e->options.cold.block(l->e->options.cold.ctx, r.where, r.block_bytes, block);
    must(push_group_of(slice_make(block, r.block_bytes), &g) && r.item0 < g.item_count);
    push_group_item(&g, r.item0, &item);
    must(item.flags & ITEM_ID);
    struct uuid id = item.id;
    free(block);
    return id;
}

static bool duplicate_find(const struct push_lane *l, struct dedup_key k, struct slice id, struct push_outcome *out)
{
    struct dedup_hit hit;
    bool found = dedup_seen(l->e->dedup, k, l->first, lane_next(l), l->since_ms, l->now_ms, &hit);
    if (!found) return auto_id_find(l, id, out);
    *out = (struct push_outcome){.status = PUSH_DUPLICATE, .offset = hit.offset};
    out->id = hit.own_id ? own_id_read(l, hit.offset) : message_id_tagged(l->tag, hit.offset, hit.created_ms * 1000);
    return true;
}

static void run_close(struct push_lane *l)
{
    if (l->run.count > 0) run_append(l->e, l->p, &l->run);
    l->run.count = 0;
}

static uint32_t item_end(const struct push_group *g, uint32_t i)
{
    uint32_t end;
    memcpy(&end, g->ends + (size_t)i * 4, 4);
    return end;
}

/* Item i is stored: it goes on the open run when it follows it in the block and in kind. */
static void item_store(struct push_lane *l, uint32_t i, bool named, struct dedup_key k, struct push_outcome *out)
{
    struct run *r = &l->run;
    uint32_t kind = named ? 0 : RUN_BYTES_AUTO, bytes = item_end(l->g, i) - (i == 0 ? 0 : item_end(l->g, i - 1));
    if (r->count > 0 && (r->item0 + r->count != i || (r->bytes & RUN_BYTES_AUTO) != kind)) run_close(l);
    if (r->count == 0) {
        *r = (struct run){.first = l->p->tail,
                          .where = l->where,
                          .created_us = l->created_us,
                          .item0 = i,
                          .block_bytes = (uint32_t)l->g->block.len,
                          .bytes = kind};
    }
    uint64_t offset = r->first + r->count++;
    r->bytes += bytes;
    if (named) dedup_add(l->e->dedup, k, offset, l->created_us / 1000, l->class, false);
    *out = (struct push_outcome){.status = PUSH_QUEUED, .offset = offset};
    out->id = message_id_tagged(l->tag, offset, l->created_us);
}

/* Items base .. base+n-1 and, of those with an id, the keys, whose places in the index are on their way into the cache then. */
static void items_prefetch(const struct push_lane *l, const struct push_group *g, uint32_t base, uint32_t n,
                           struct push_item *items, struct dedup_key *keys)
{
    for (uint32_t i = 0; i < n; i++) {
        push_group_item(g, base + i, &items[i]);
        if (!(items[i].flags & ITEM_TRANSACTION)) continue;
        keys[i] = dedup_key(l->e->seed, l->p->number, items[i].transaction);
        dedup_prefetch(l->e->dedup, keys[i], l->since_ms, l->class);
    }
}

static void lane_items(struct push_lane *l, struct push_outcome *out)
{
    struct push_item items[PREFETCH];
    struct dedup_key keys[PREFETCH];
    for (uint32_t base = 0; base < l->g->item_count; base += PREFETCH) {
        uint32_t n = l->g->item_count - base < PREFETCH ? l->g->item_count - base : PREFETCH;
        items_prefetch(l, l->g, base, n, items, keys);
        for (uint32_t i = 0; i < n; i++) {
            bool named = items[i].flags & ITEM_TRANSACTION;
            struct push_outcome *o = &out[base + i];
            if (named && duplicate_find(l, keys[i], items[i].transaction, o)) continue;
            item_store(l, base + i, named, named ? keys[i] : (struct dedup_key){0}, o);
        }
    }
    run_close(l);
}

static struct push_lane lane_of(struct engine *e, struct queue *q, struct partition *p)
{
    struct push_lane l = {.e = e, .q = q, .p = p, .first = p->tail};
    int64_t window_ms = queue_dedup_window_ms(q);
    l.created_us = e->wall_us > p->last_created_us ? e->wall_us : p->last_created_us + 1;
    l.now_ms = e->wall_us / 1000;
    l.since_ms = window_ms > 0 ? l.now_ms - window_ms : INT64_MAX;
    l.class = dedup_class(queue_dedup_keep_ms(q));
    l.tag = message_tag(e->seed, p->number);
    tag_write(&l);
    return l;
}

/* Something was appended behind l->first: counters, and who waits for the lane. */
static void lane_appended(struct push_lane *l, uint64_t bytes_before)
{
    uint64_t count = l->p->tail - l->first;
    l->q->messages += count;
    l->q->pushed_total += count;
    l->q->bytes += l->p->bytes - bytes_before;
    queue_touch(l->e, l->q);
    partition_touch(l->e, l->p);
    cursor_arm(l->e, l->p);
    const struct engine_sink *sink = l->e->sink;
    if (sink != NULL && sink->appended != NULL) sink->appended(sink->ctx, l->p->number);
}

static void lane_push(struct engine *e, struct uuid tenant, const struct push_group *g, uint64_t where,
                      struct push_outcome *out)
{
    struct queue *q = queue_obtain(e, tenant, g->queue);
    struct push_lane l = lane_of(e, q, partition_obtain(e, q, g->partition));
    l.g = g;
    l.where = where;
    uint64_t bytes = l.p->bytes;
    lane_items(&l, out);
    if (l.p->tail > l.first) lane_appended(&l, bytes);
}

bool push_fire(struct engine *e, struct uuid tenant, struct slice queue, struct slice partition, struct slice transaction,
               const struct run *place)
{
    struct push_outcome ignored;
    struct queue *q = queue_obtain(e, tenant, queue);
    struct push_lane l = lane_of(e, q, partition_obtain(e, q, partition));
    struct dedup_key k = dedup_key(e->seed, l.p->number, transaction);
    if (!PLANTED("timer-twice") && duplicate_find(&l, k, transaction, &ignored)) return false;
    uint64_t bytes = l.p->bytes;
    struct run r = *place;
    r.first = l.p->tail;
    r.created_us = l.created_us;
    r.count = 1;
    r.bytes |= RUN_BYTES_OWN_ID;
    dedup_add(e->dedup, k, r.first, l.created_us / 1000, l.class, true);
    run_append(e, l.p, &r);
    lane_appended(&l, bytes);
    return true;
}

/* *item counts on over the group's items, to the one found. */
static bool group_duplicate(const struct push_lane *l, const struct push_group *g, uint32_t *item, uint64_t *offset)
{
    struct push_item items[PREFETCH];
    struct dedup_key keys[PREFETCH];
    struct push_outcome found;
    for (uint32_t base = 0; base < g->item_count; base += PREFETCH) {
        uint32_t n = g->item_count - base < PREFETCH ? g->item_count - base : PREFETCH;
        items_prefetch(l, g, base, n, items, keys);
        for (uint32_t i = 0; i < n; i++, ++*item) {
            if (!(items[i].flags & ITEM_TRANSACTION)) continue;
            if (!duplicate_find(l, keys[i], items[i].transaction, &found)) continue;
            *offset = found.offset;
            return true;
        }
    }
    return false;
}

bool push_duplicate(struct engine *e, const struct push_command *push, uint32_t *item, uint64_t *offset)
{
    struct slice rest = push->groups;
    struct push_group g;
    *item = 0;
    for (uint32_t i = 0; i < push->group_count; i++) {
        must(push_group_of(rest, &g));
        rest.at += g.block.len;
        rest.len -= g.block.len;
        struct queue *q = queue_find(e, push->tenant, g.queue);
        struct partition *p = q == NULL ? NULL : partition_find(e, q, g.partition);
        if (p == NULL) {
            *item += g.item_count;
            continue;
        }
        struct push_lane l = lane_of(e, q, p);
        if (group_duplicate(&l, &g, item, offset)) return true;
    }
    return false;
}

void push_do(struct engine *e, const struct command *c, const struct push_command *push, uint64_t where, struct arena *arena,
             struct push_result *out)
{
    struct slice rest = push->groups;
    struct push_group g;
    uint32_t count = 0;
    for (uint32_t i = 0; i < push->group_count; i++) {
        must(push_group_of(rest, &g));
        count += g.item_count;
        rest.at += g.block.len;
        rest.len -= g.block.len;
    }
    rest = push->groups;
    out->count = count;
    out->items = arena_get(arena, (count == 0 ? 1U : count) * sizeof out->items[0]);
    struct push_outcome *items = out->items;
    for (uint32_t i = 0; i < push->group_count; i++) {
        const char *at = rest.at;
        push_group_of(rest, &g);
        lane_push(e, push->tenant, &g, where + (uint64_t)(at - c->all.at), items);
        rest.at += g.block.len;
        rest.len -= g.block.len;
        items += g.item_count;
    }
}

bool push_apply(struct engine *e, const struct command *c, uint64_t where, struct arena *arena, struct engine_result *r)
{
    struct push_command push;
    struct push_group g;
    if (!push_decode(c, &push)) return false;
    struct slice rest = push.groups;
    for (uint32_t i = 0; i < push.group_count; i++) {
        if (!push_group_next(&rest, &g)) return false;
    }
    push_do(e, c, &push, where, arena, &r->push);
    return true;
}
