/* Timers: messages that are appended later.
 *
 * A schedule's message is logged with it as a push group and stays where it is: the timer keeps its place, and firing appends a run that
 * points there. So nothing can refuse a fire, and no payload is in memory. Nor is anything else but a stub of those that nobody wanted
 * lately: timer_rest.c.
 *
 * Order of firing: by due time, then by the order in which they were scheduled. */
#include <stdlib.h>

#include "base/planted.h"
#include "engine/engine_internal.h"

static struct slice path_of(const void *ctx, uint32_t at)
{
    return timer_path(timer_at(ctx, at)->body);
}

void timers_init(struct engine *e)
{
    slab_init(&e->timers, sizeof(struct timer));
    slab_init(&e->timer_tenants, sizeof(struct timer_tenant));
    tree_init(&e->timer_order, path_of, e);
}

void timers_free(struct engine *e)
{
    tree_free(&e->timer_order);
    for (struct timer_body *b = e->timer_oldest, *newer; b != NULL; b = newer) {
        newer = b->newer;
        free(b);
    }
    heap_free(&e->timers_due);
    idmap_free(&e->timer_paths);
    idmap_free(&e->timer_tenant_ids);
    slab_free(&e->timers);
    slab_free(&e->timer_tenants);
    free(e->dirty_timers.at);
    buf_free(&e->gone_timers);
    buf_free(&e->gone_timer_paths);
    buf_free(&e->timer_span.from);
    buf_free(&e->timer_span.to);
}

struct slice timer_path_make(char out[TIMER_PATH_MAX], struct uuid tenant, struct slice queue, struct slice key)
{
    must(queue.len <= NAMES_BYTES_MAX && key.len <= TIMER_KEY_BYTES_MAX);
    memcpy(out, tenant.bytes, 16);
    out[16] = (char)(queue.len >> 8);
    out[17] = (char)queue.len;
    memcpy(out + 18, queue.at, queue.len);
    if (key.len > 0) memcpy(out + 18 + queue.len, key.at, key.len);
    return slice_make(out, 18 + queue.len + key.len);
}

static struct slice timer_queue(const struct timer_body *b)
{
    return slice_make(b->texts + 18, b->queue_len);
}

static struct slice timer_key(const struct timer_body *b)
{
    size_t before = 18U + b->queue_len;
    return slice_make(b->texts + before, b->path_len - before);
}

static struct slice timer_partition(const struct timer_body *b)
{
    return slice_make(b->texts + b->path_len, b->partition_len);
}

static struct slice timer_transaction(const struct timer_body *b)
{
    return slice_make(b->texts + b->path_len + b->partition_len, b->transaction_len);
}

static struct uuid path_tenant(struct slice path)
{
    struct uuid tenant;
    memcpy(tenant.bytes, path.at, 16);
    return tenant;
}

static uint32_t timer_find(const struct engine *e, struct slice path)
{
    uint64_t hash = hash64(path, 1);
    uint32_t at = 0, number;
    while ((number = idmap_next(&e->timer_paths, hash, &at)) != 0) {
        if (slice_equal(timer_path(timer_open(e, number)), path)) return number;
    }
    return 0;
}

/* ---- how many a tenant has ------------------------------------------------------------------------------------------- */

static uint32_t tenant_find(const struct engine *e, struct uuid tenant)
{
    uint64_t hash = hash64(slice_make(tenant.bytes, sizeof tenant.bytes), 1);
    uint32_t at = 0, number;
    while ((number = idmap_next(&e->timer_tenant_ids, hash, &at)) != 0) {
        const struct timer_tenant *t = slab_at(&e->timer_tenants, number);
        if (uuid_equal(t->tenant, tenant)) return number;
    }
    return 0;
}

uint64_t timers_of_tenant(const struct engine *e, struct uuid tenant)
{
    uint32_t at = tenant_find(e, tenant);
    return at == 0 ? 0 : ((const struct timer_tenant *)slab_at(&e->timer_tenants, at))->count;
}

static void tenant_count(struct engine *e, struct uuid tenant, bool more)
{
    uint64_t hash = hash64(slice_make(tenant.bytes, sizeof tenant.bytes), 1);
    uint32_t at = tenant_find(e, tenant);
    if (at == 0) {
        must(more);
        at = slab_add(&e->timer_tenants);
        ((struct timer_tenant *)slab_at(&e->timer_tenants, at))->tenant = tenant;
        idmap_add(&e->timer_tenant_ids, hash, at);
    }
    struct timer_tenant *t = slab_at(&e->timer_tenants, at);
    t->count += more ? 1 : UINT64_MAX;
    if (t->count > 0) return;
    idmap_remove(&e->timer_tenant_ids, hash, at);
    slab_remove(&e->timer_tenants, at);
}

/* ---- life ----------------------------------------------------------------------------------------------------------- */

static uint32_t timer_add(struct engine *e, struct slice path)
{
    uint32_t at = slab_add(&e->timers);
    idmap_add(&e->timer_paths, hash64(path, 1), at);
    tenant_count(e, path_tenant(path), true);
    return at;
}

/* Its rows go with the next cut, if a cut gave them. */
static void rows_drop(struct engine *e, const struct timer *t)
{
    const struct timer_body *b = t->body;
    if (!b->cut) return;
    buf_u64(&e->gone_timers, (uint64_t)b->cut_due_us);
    buf_u64(&e->gone_timers, t->due.tie);
    buf_u16(&e->gone_timer_paths, b->path_len);
    buf_slice(&e->gone_timer_paths, timer_path(b));
}

static void timer_drop(struct engine *e, uint32_t at)
{
    struct timer *t = timer_at(e, at);
    struct slice path = timer_path(timer_open(e, at));
    rows_drop(e, t);
    segment_release(e, t->where, t->body->item_bytes);
    idmap_remove(&e->timer_paths, hash64(path, 1), at);
    tenant_count(e, path_tenant(path), false);
    heap_remove(&e->timers_due, &t->due);
    timer_body_drop(e, t);
    memset(t, 0, sizeof *t);
    slab_remove(&e->timers, at);
}

void timer_load(struct engine *e, const struct timer_row *row)
{
    struct timer *t = timer_at(e, timer_add(e, row->path));
    t->where = row->where;
    heap_put(&e->timers_due, &t->due, row->due_us, row->sequence);
}

/* ---- ops ------------------------------------------------------------------------------------------------------------ */

static void schedule(struct engine *e, const struct timers_command *c, const struct timer_op *op, uint64_t where,
                     struct timer_outcome *out)
{
    char room[TIMER_PATH_MAX];
    struct push_group g;
    struct timer_body before = {0};
    struct timer_row row = {.path = timer_path_make(room, c->tenant, op->queue, op->key),
                            .partition = op->partition,
                            .transaction = op->item.transaction,
                            .queue_len = (uint16_t)op->queue.len,
                            .block_bytes = (uint32_t)op->block.len,
                            .message = op->item.id,
                            .created_us = e->wall_us,
                            .updated_us = e->wall_us};
    must(push_group_of(op->block, &g));
    memcpy(&row.item_bytes, g.ends, sizeof row.item_bytes);
    uint32_t at = timer_find(e, row.path);
    out->status = at == 0 ? TIMER_SCHEDULED : TIMER_RESCHEDULED;
    if (at == 0) {
        at = timer_add(e, row.path);
        timer_at(e, at)->due.tie = ++e->timer_last;
    } else {
        before = *timer_at(e, at)->body;
        row.created_us = before.created_us;
        segment_release(e, timer_at(e, at)->where, before.item_bytes);
    }
    struct timer *t = timer_at(e, at);
    struct timer_body *b = timer_body_new(e, at, &row);
    b->dirty = before.dirty;
    b->cut = before.cut;
    b->cut_due_us = before.cut_due_us;
    b->cut_revision = before.cut_revision;
    t->where = where;
    segment_hold(e, t->where, row.item_bytes);
    out->due_us = e->wall_us + op->delay_us;
    out->message = row.message;
    heap_put(&e->timers_due, &t->due, out->due_us, t->due.tie);
    timer_touch(e, b);
}

static void cancel(struct engine *e, const struct timers_command *c, const struct timer_op *op, struct arena *arena,
                   struct timer_outcome *out)
{
    char room[TIMER_PATH_MAX];
    uint32_t at = timer_find(e, timer_path_make(room, c->tenant, op->queue, op->key));
    out->status = at == 0 ? TIMER_ABSENT : TIMER_CANCELLED;
    if (at == 0) return;
    out->transaction = arena_copy(arena, timer_transaction(timer_at(e, at)->body));
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

static struct timer *timer_of(struct heap_node *n)
{
    return (struct timer *)(void *)((char *)n - offsetof(struct timer, due));
}

static void fire(struct engine *e, const struct timer *t, struct engine_result *r)
{
    const struct timer_body *b = t->body;
    struct run place = {.where = t->where, .block_bytes = b->block_bytes, .bytes = b->item_bytes};
    bool appended = push_fire(e, path_tenant(timer_path(b)), timer_queue(b), timer_partition(b), timer_transaction(b), &place);
    if (appended) {
        r->tick.fired++;
    } else {
        r->tick.duplicates++;
    }
    r->tick.late_us = e->wall_us - t->due.key;
    if (PLANTED("timer-twice") && e->wall_us - t->due.key < 3000) return;
    timer_drop(e, b->number);
}

bool tick_apply(struct engine *e, struct engine_result *r)
{
    struct heap_node *n;
    for (uint32_t i = 0; i < TIMERS_A_TICK && (n = heap_min(&e->timers_due)) != NULL && n->key <= e->wall_us; i++) {
        const struct timer *t = timer_of(n);
        if (t->body == NULL) timers_wake(e, t, e->wall_us, TIMERS_A_TICK - i);
        fire(e, t, r);
    }
    return true;
}

int64_t engine_timer_due_us(struct engine *e, struct engine_now now)
{
    const struct heap_node *n = heap_min(&e->timers_due);
    if (n == NULL) return -1;
    return n->key > now.wall_us ? n->key - now.wall_us : 0;
}

/* Those at rest are read once, as a tick would: many together. */
static void due_tell(struct timers_due *w, const struct timer *t)
{
    if (t->body == NULL && w->reads) {
        timers_wake(w->e, t, w->until_us, w->left + 1);
        w->reads = false;
    }
    const struct timer_body *b = t->body;
    if (b != NULL) {
        if (w->each != NULL) w->each(w->ctx, path_tenant(timer_path(b)), timer_queue(b), timer_partition(b));
    } else if (w->resting == NULL || t->due.key < w->resting->due.key ||
               (t->due.key == w->resting->due.key && t->due.tie < w->resting->due.tie)) {
        w->resting = t;
    }
}

/* The top of the heap only: what is due. */
static void due_walk(struct timers_due *w, uint32_t at)
{
    const struct heap *h = &w->e->timers_due;
    if (w->left == 0 || at >= h->count || h->nodes[at]->key > w->until_us) return;
    w->left--;
    due_tell(w, timer_of(h->nodes[at]));
    due_walk(w, 2 * at + 1);
    due_walk(w, 2 * at + 2);
}

void timers_due_walk(struct timers_due *w)
{
    due_walk(w, 0);
}

bool engine_timer_at_rest(struct engine *e, int64_t until_us, uint32_t limit, int64_t *due_us)
{
    struct timers_due w = {.e = e, .until_us = until_us, .left = limit};
    if (e->timers.used == e->timer_order.count) return false;
    due_walk(&w, 0);
    if (w.resting != NULL) *due_us = w.resting->due.key;
    return w.resting != NULL;
}

uint32_t engine_timers_due(struct engine *e, struct engine_now now, uint32_t limit,
                           void (*each)(void *ctx, struct uuid tenant, struct slice queue, struct slice partition), void *ctx)
{
    struct timers_due w = {.e = e, .until_us = now.wall_us, .left = limit, .reads = each != NULL, .each = each, .ctx = ctx};
    due_walk(&w, 0);
    return limit - w.left;
}

/* ---- reads ---------------------------------------------------------------------------------------------------------- */

static void timer_show(const struct engine *e, uint32_t at, struct timer_view *out)
{
    const struct timer_body *b = timer_open(e, at);
    const struct timer *t = timer_at(e, at);
    *out = (struct timer_view){
        .key = timer_key(b),
        .partition = timer_partition(b),
        .transaction = timer_transaction(b),
        .message = b->message,
        .due_us = t->due.key,
        .created_us = b->created_us,
        .updated_us = b->updated_us,
        .piece = {.where = t->where, .block_bytes = b->block_bytes, .count = 1, .created_us = b->updated_us},
    };
}

bool engine_timer_get(struct engine *e, struct uuid tenant, struct slice queue, struct slice key, struct timer_view *out)
{
    char room[TIMER_PATH_MAX];
    if (queue.len > NAMES_BYTES_MAX || key.len > TIMER_KEY_BYTES_MAX) return false;
    uint32_t at = timer_find(e, timer_path_make(room, tenant, queue, key));
    if (at == 0) return false;
    timer_show(e, at, out);
    return true;
}

bool engine_timer_next(struct engine *e, struct uuid tenant, struct slice queue, struct slice after, struct timer_view *out)
{
    char room[TIMER_PATH_MAX];
    if (queue.len > NAMES_BYTES_MAX || after.len > TIMER_KEY_BYTES_MAX) return false;
    uint32_t at = timer_behind(e, timer_path_make(room, tenant, queue, after));
    if (at == 0) return false;
    timer_show(e, at, out);
    return true;
}

bool engine_timers_count(struct engine *e, struct uuid tenant, struct slice queue, struct slice prefix, uint32_t looks,
                         struct timer_tally *tally)
{
    char room[TIMER_PATH_MAX];
    if (queue.len > NAMES_BYTES_MAX || prefix.len > TIMER_KEY_BYTES_MAX) return false;
    return timers_tally(e, timer_path_make(room, tenant, queue, prefix), looks, tally);
}
