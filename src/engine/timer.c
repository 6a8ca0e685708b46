/* Timers: messages that are appended later.
 *
 * A schedule's message is logged with it as a push group and stays where it is: the timer keeps its place, and firing appends a run that
 * points there. So nothing can refuse a fire, and no payload is in memory.
 *
 * Order of firing: by due time, then by the order in which they were scheduled. */
#include <stdlib.h>

#include "base/planted.h"
#include "engine/engine_internal.h"

struct timer *timer_at(const struct engine *e, uint32_t at)
{
    return slab_at(&e->timers, at);
}

static struct slice path_of(const void *ctx, uint32_t at)
{
    return timer_path(timer_at(ctx, at));
}

void timers_init(struct engine *e)
{
    slab_init(&e->timers, sizeof(struct timer));
    tree_init(&e->timer_order, path_of, e);
}

void timers_free(struct engine *e)
{
    struct tree_place p = tree_seek(&e->timer_order, slice_of(""));
    uint32_t at;
    while ((at = tree_next(&p)) != 0) free(timer_at(e, at)->bytes);
    tree_free(&e->timer_order);
    heap_free(&e->timers_due);
    idmap_free(&e->timer_paths);
    slab_free(&e->timers);
    free(e->dirty_timers.at);
    buf_free(&e->gone_timers);
}

static struct slice path_make(char out[TIMER_PATH_MAX], struct uuid tenant, struct slice queue, struct slice key)
{
    must(queue.len <= NAMES_BYTES_MAX && key.len <= TIMER_KEY_BYTES_MAX);
    memcpy(out, tenant.bytes, 16);
    out[16] = (char)(queue.len >> 8);
    out[17] = (char)queue.len;
    memcpy(out + 18, queue.at, queue.len);
    if (key.len > 0) memcpy(out + 18 + queue.len, key.at, key.len);
    return slice_make(out, 18 + queue.len + key.len);
}

static struct slice timer_queue(const struct timer *t)
{
    return slice_make(t->bytes + 18, t->queue_len);
}

static struct slice timer_key(const struct timer *t)
{
    size_t before = 18U + t->queue_len;
    return slice_make(t->bytes + before, t->path_len - before);
}

static struct slice timer_partition(const struct timer *t)
{
    return slice_make(t->bytes + t->path_len, t->partition_len);
}

static struct slice timer_transaction(const struct timer *t)
{
    return slice_make(t->bytes + t->path_len + t->partition_len, t->transaction_len);
}

static struct uuid timer_tenant(const struct timer *t)
{
    struct uuid tenant;
    memcpy(tenant.bytes, t->bytes, 16);
    return tenant;
}

static uint32_t timer_find(const struct engine *e, struct slice path)
{
    uint64_t hash = hash64(path, 1);
    uint32_t at = 0, number;
    while ((number = idmap_next(&e->timer_paths, hash, &at)) != 0) {
        if (slice_equal(timer_path(timer_at(e, number)), path)) return number;
    }
    return 0;
}

/* ---- life ----------------------------------------------------------------------------------------------------------- */

/* Text behind the path: partition, transaction. */
static void texts_set(struct timer *t, struct slice partition, struct slice transaction)
{
    t->bytes = realloc(t->bytes, t->path_len + partition.len + transaction.len);
    must(t->bytes != NULL);
    memcpy(t->bytes + t->path_len, partition.at, partition.len);
    if (transaction.len > 0) memcpy(t->bytes + t->path_len + partition.len, transaction.at, transaction.len);
    t->partition_len = (uint16_t)partition.len;
    t->transaction_len = (uint16_t)transaction.len;
}

static uint32_t timer_add(struct engine *e, struct slice path, size_t queue_len)
{
    uint32_t at = slab_add(&e->timers);
    struct timer *t = timer_at(e, at);
    t->bytes = malloc(path.len);
    must(t->bytes != NULL);
    memcpy(t->bytes, path.at, path.len);
    t->path_len = (uint16_t)path.len;
    t->queue_len = (uint16_t)queue_len;
    idmap_add(&e->timer_paths, hash64(path, 1), at);
    tree_insert(&e->timer_order, at);
    return at;
}

static void timer_drop(struct engine *e, uint32_t at)
{
    struct timer *t = timer_at(e, at);
    buf_u64(&e->gone_timers, t->sequence);
    segment_release(e, t->where, t->item_bytes);
    tree_remove(&e->timer_order, at);
    idmap_remove(&e->timer_paths, hash64(timer_path(t), 1), at);
    heap_remove(&e->timers_due, &t->due);
    free(t->bytes);
    memset(t, 0, sizeof *t);
    slab_remove(&e->timers, at);
}

uint32_t timer_load(struct engine *e, const struct timer *from, struct slice path, struct slice partition,
                    struct slice transaction, int64_t due_us)
{
    uint32_t at = timer_add(e, path, from->queue_len);
    struct timer *t = timer_at(e, at);
    char *bytes = t->bytes;
    uint16_t path_len = t->path_len;
    *t = *from;
    t->bytes = bytes;
    t->path_len = path_len;
    texts_set(t, partition, transaction);
    heap_put(&e->timers_due, &t->due, due_us, t->sequence);
    return at;
}

/* ---- ops ------------------------------------------------------------------------------------------------------------ */

static void schedule(struct engine *e, const struct timers_command *c, const struct timer_op *op, uint64_t where,
                     struct timer_outcome *out)
{
    char room[TIMER_PATH_MAX];
    struct slice path = path_make(room, c->tenant, op->queue, op->key);
    uint32_t at = timer_find(e, path);
    out->status = at == 0 ? TIMER_SCHEDULED : TIMER_RESCHEDULED;
    if (at == 0) {
        at = timer_add(e, path, op->queue.len);
        timer_at(e, at)->sequence = ++e->timer_last;
        timer_at(e, at)->created_us = e->wall_us;
    } else {
        segment_release(e, timer_at(e, at)->where, timer_at(e, at)->item_bytes);
    }
    struct timer *t = timer_at(e, at);
    struct push_group g;
    must(push_group_of(op->block, &g));
    uint32_t item_bytes;
    memcpy(&item_bytes, g.ends, sizeof item_bytes);
    texts_set(t, op->partition, op->item.transaction);
    t->where = where;
    t->block_bytes = (uint32_t)op->block.len;
    t->item_bytes = item_bytes;
    t->message = op->item.id;
    t->updated_us = e->wall_us;
    segment_hold(e, t->where, t->item_bytes);
    out->due_us = e->wall_us + op->delay_us;
    out->message = t->message;
    heap_put(&e->timers_due, &t->due, out->due_us, t->sequence);
    if (t->dirty) return;
    t->dirty = 1;
    numbers_add(&e->dirty_timers, at);
}

static void cancel(struct engine *e, const struct timers_command *c, const struct timer_op *op, struct arena *arena,
                   struct timer_outcome *out)
{
    char room[TIMER_PATH_MAX];
    uint32_t at = timer_find(e, path_make(room, c->tenant, op->queue, op->key));
    out->status = at == 0 ? TIMER_ABSENT : TIMER_CANCELLED;
    if (at == 0) return;
    out->transaction = arena_copy(arena, timer_transaction(timer_at(e, at)));
    timer_drop(e, at);
}

void timers_do(struct engine *e, const struct timers_command *c, uint64_t where_of_ops, struct arena *arena,
               struct timers_result *out)
{
    struct slice rest = c->ops;
    struct timer_op op;
    out->count = c->op_count;
    out->items = arena_zero(arena, (c->op_count == 0 ? 1U : c->op_count) * sizeof out->items[0]);
    for (uint32_t i = 0; i < c->op_count; i++) {
        must(timer_op_next(&rest, &op));
        if (op.kind == TIMER_SCHEDULE) {
            schedule(e, c, &op, where_of_ops + (uint64_t)(op.block.at - c->ops.at), &out->items[i]);
        } else {
            cancel(e, c, &op, arena, &out->items[i]);
        }
    }
}

bool timers_apply(struct engine *e, const struct command *c, uint64_t where, struct arena *arena, struct engine_result *r)
{
    struct timers_command timers;
    if (!timers_decode(c, &timers)) return false;
    timers_do(e, &timers, where + (uint64_t)(timers.ops.at - c->all.at), arena, &r->timers);
    return true;
}

/* ---- firing --------------------------------------------------------------------------------------------------------- */

static uint32_t timer_of(struct engine *e, const struct heap_node *n)
{
    const struct timer *t = (const struct timer *)(const void *)((const char *)n - offsetof(struct timer, due));
    return timer_find(e, timer_path(t));
}

static void fire(struct engine *e, uint32_t at, struct engine_result *r)
{
    const struct timer *t = timer_at(e, at);
    struct run place = {.where = t->where, .block_bytes = t->block_bytes, .bytes = t->item_bytes};
    bool appended = push_fire(e, timer_tenant(t), timer_queue(t), timer_partition(t), timer_transaction(t), &place);
    if (appended) {
        r->tick.fired++;
    } else {
        r->tick.duplicates++;
    }
    r->tick.late_us = e->wall_us - t->due.key;
    if (PLANTED("timer-twice") && e->wall_us - t->due.key < 3000) return;
    timer_drop(e, at);
}

bool tick_apply(struct engine *e, struct engine_result *r)
{
    struct heap_node *n;
    for (int i = 0; i < TIMERS_A_TICK && (n = heap_min(&e->timers_due)) != NULL && n->key <= e->wall_us; i++) {
        fire(e, timer_of(e, n), r);
    }
    return true;
}

int64_t engine_timer_due_us(struct engine *e, struct engine_now now)
{
    const struct heap_node *n = heap_min(&e->timers_due);
    if (n == NULL) return -1;
    return n->key > now.wall_us ? n->key - now.wall_us : 0;
}

struct due_walk {
    struct engine *e;
    int64_t now_us;
    uint32_t left;
    void (*each)(void *ctx, struct uuid tenant, struct slice queue, struct slice partition);
    void *ctx;
};

/* The top of the heap only: what is due. */
static void due_walk(struct due_walk *w, uint32_t at)
{
    const struct heap *h = &w->e->timers_due;
    if (w->left == 0 || at >= h->count || h->nodes[at]->key > w->now_us) return;
    const struct timer *t = (const struct timer *)(const void *)((const char *)h->nodes[at] - offsetof(struct timer, due));
    w->left--;
    w->each(w->ctx, timer_tenant(t), timer_queue(t), timer_partition(t));
    due_walk(w, 2 * at + 1);
    due_walk(w, 2 * at + 2);
}

uint32_t engine_timers_due(struct engine *e, struct engine_now now, uint32_t limit,
                           void (*each)(void *ctx, struct uuid tenant, struct slice queue, struct slice partition), void *ctx)
{
    struct due_walk w = {.e = e, .now_us = now.wall_us, .left = limit, .each = each, .ctx = ctx};
    due_walk(&w, 0);
    return limit - w.left;
}

/* ---- reads ---------------------------------------------------------------------------------------------------------- */

static void timer_show(const struct timer *t, struct timer_view *out)
{
    *out = (struct timer_view){
        .key = timer_key(t),
        .partition = timer_partition(t),
        .transaction = timer_transaction(t),
        .message = t->message,
        .due_us = t->due.key,
        .created_us = t->created_us,
        .updated_us = t->updated_us,
        .piece = {.where = t->where, .block_bytes = t->block_bytes, .count = 1, .created_us = t->updated_us},
    };
}

bool engine_timer_get(struct engine *e, struct uuid tenant, struct slice queue, struct slice key, struct timer_view *out)
{
    char room[TIMER_PATH_MAX];
    if (queue.len > NAMES_BYTES_MAX || key.len > TIMER_KEY_BYTES_MAX) return false;
    uint32_t at = timer_find(e, path_make(room, tenant, queue, key));
    if (at == 0) return false;
    timer_show(timer_at(e, at), out);
    return true;
}

bool engine_timer_next(struct engine *e, struct uuid tenant, struct slice queue, struct slice after, struct timer_view *out)
{
    char room[TIMER_PATH_MAX];
    if (queue.len > NAMES_BYTES_MAX || after.len > TIMER_KEY_BYTES_MAX) return false;
    struct slice from = path_make(room, tenant, queue, after);
    struct tree_place place = tree_seek(&e->timer_order, from);
    uint32_t at = tree_next(&place);
    if (at != 0 && after.len > 0 && slice_equal(timer_path(timer_at(e, at)), from)) at = tree_next(&place);
    if (at == 0) return false;
    const struct timer *t = timer_at(e, at);
    size_t same = 18 + queue.len;
    if (t->path_len < same || memcmp(t->bytes, room, same) != 0) return false;
    timer_show(t, out);
    return true;
}

uint64_t engine_timer_count(struct engine *e, struct uuid tenant, struct slice queue, struct slice prefix)
{
    char room[TIMER_PATH_MAX], behind[TIMER_PATH_MAX];
    if (queue.len > NAMES_BYTES_MAX || prefix.len > TIMER_KEY_BYTES_MAX) return 0;
    struct slice from = path_make(room, tenant, queue, prefix), to;
    uint64_t end = e->timer_order.count;
    if (tree_prefix_end(from, behind, &to)) end = tree_rank(&e->timer_order, to);
    return end - tree_rank(&e->timer_order, from);
}
