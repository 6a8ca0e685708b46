/* Questions about what is in flight or to come: read only, no part of what an entry does. */
#include "engine/foresee_inner.h"
#include "engine/row.h"

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
    const struct lane *lane = l->count > 0 && l->partition <= UINT32_MAX ? lane_at(e, (uint32_t)l->partition) : NULL;
    const struct partition *p = lane == NULL ? NULL : lane->p; /* one that is leased is in memory */
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

/* ---- what left memory and will be wanted ---------------------------------------------------------------------------- */

void foresee_range(struct foresight *s, struct slice from, struct slice to)
{
    if (s->left == 0) return;
    s->left--;
    s->f->range(s->f->ctx, from, to);
}

void foresee_lanes(struct foresight *s, uint32_t queue, uint32_t number, uint32_t end)
{
    struct row_key from, to;
    row_key_lane(&from, queue, number);
    row_key_lane(&to, queue, end);
    foresee_range(s, row_key_view(&from), row_key_view(&to));
}

void foresee_search(struct foresight *s, const struct engine_time_search *t)
{
    if (s->f->search == NULL) {
        foresee_lanes(s, t->queue, t->lane, t->end);
        return;
    }
    if (s->left == 0) return;
    s->left--;
    s->f->search(s->f->ctx, t);
}

/* Rows of runs from this offset on, with so many messages. A row may end behind them: a few more are told. */
static void runs_tell(struct foresight *s, uint32_t queue, uint32_t lane, uint64_t offset, uint64_t count)
{
    enum { MORE = 64 };
    struct row_key from, to;
    uint64_t most = UINT64_MAX - offset, more = count < most / 4 ? 2 * count + MORE : most;
    row_key_run(&from, queue, lane, offset);
    row_key_run(&to, queue, lane, offset + (more < most ? more : most));
    foresee_range(s, row_key_view(&from), row_key_view(&to));
}

struct partition *foresee_lane(struct foresight *s, uint32_t number)
{
    const struct lane *l = lane_at(s->e, number);
    if (l == NULL || l->p != NULL) return l == NULL ? NULL : l->p;
    if (s->f->warmed) return partition_at(s->e, number);
    foresee_lanes(s, l->queue, number, number + 1);
    foresee_again(s);
    return NULL;
}

struct partition *foresee_name(struct foresight *s, const struct queue *q, struct slice name)
{
    uint32_t away;
    struct partition *p = q == NULL ? NULL : partition_find_here(s->e, q, name, &away);
    if (p != NULL || q == NULL || away == 0) return p;
    if (s->f->warmed) return partition_find(s->e, q, name);
    foresee_lane(s, away);
    return NULL;
}

void foresee_messages(struct foresight *s, const struct partition *p, uint64_t from, uint64_t count)
{
    uint64_t end = p->tail - from < count ? p->tail : from + count;
    if (from < p->start || from >= p->tail) return;
    uint64_t missing = run_missing(s->e, p, from, end);
    if (missing < end && missing < run_memory_first(p)) runs_tell(s, p->queue, p->number, missing, end - missing);
}

void foresee_time(struct foresight *s, const struct partition *p, enum engine_search_kind kind, int64_t us)
{
    uint64_t stored_end = run_memory_first(p);
    bool is_stored = p->tail > p->start && stored_end > p->start && us > p->start_us && p->last_created_us >= us &&
                     (p->run_count == 0 || p->runs[0].created_us >= us);
    if (!is_stored || s->f->search == NULL) return;
    struct engine_time_search t = {.kind = (uint8_t)kind,
                                   .queue = p->queue,
                                   .lane = p->number,
                                   .end = p->number + 1,
                                   .looks = SEARCH_COST,
                                   .low = p->start,
                                   .high = stored_end,
                                   .us = us};
    foresee_search(s, &t);
}

/* What visible_get will look for. */
static void visible_foresee(struct foresight *s, const struct partition *p, int64_t now_us)
{
    int64_t delay_us = (int64_t)queue_at(s->e, p->queue)->options.numbers[OPTION_DELAYED_PROCESSING] * 1000000;
    if (delay_us > 0 && p->last_created_us > now_us - delay_us) foresee_time(s, p, SEARCH_TIME, now_us - delay_us + 1);
}

/* The same of a lane that may be away: then the search begins at its row. */
void foresee_name_time(struct foresight *s, const struct queue *q, struct slice name, int64_t us)
{
    uint32_t away;
    const struct partition *p = partition_find_here(s->e, q, name, &away);
    struct engine_time_search t = {.queue = q->number, .lane = away, .end = away + 1, .looks = SEARCH_COST, .us = us};
    if (p != NULL) {
        foresee_time(s, p, SEARCH_TIME, us);
    } else if (away != 0) {
        foresee_search(s, &t);
    }
}

static void cursor_foresee(struct foresight *s, uint32_t at, uint64_t count)
{
    const struct cursor *c = cursor_at(s->e, at);
    const struct partition *p = foresee_lane(s, c->partition);
    if (p == NULL) return;
    foresee_messages(s, p, next_wanted(c, p), count);
    visible_foresee(s, p, s->now_us);
}

/* Lanes that the group has not looked at: the next ones to be brought in, and the messages it begins with. */
static void unseen_foresee(struct foresight *s, const struct queue *q, uint32_t seen, uint32_t lanes, uint64_t count)
{
    enum { LANES_TOGETHER = 128 };
    const struct lane *before = seen == 0 ? NULL : lane_at(s->e, seen);
    uint32_t number = before == NULL ? q->partition_first : before->next;
    bool told = false;
    for (; number != 0 && lanes > 0 && s->left > 0; lanes--) {
        const struct lane *l = lane_at(s->e, number);
        if (l == NULL) return;
        if (l->p != NULL) {
            foresee_messages(s, l->p, l->p->start, count);
        } else {
            if (!told) foresee_lanes(s, l->queue, number, number + LANES_TOGETHER);
            if (l->oldest_s != 0) runs_tell(s, l->queue, number, 0, count);
            told = true;
        }
        number = l->next;
    }
}

/* Pops of entries that are not applied yet take the first ready lanes, so each looks behind those before it. */
static uint32_t spoken_for(struct engine *e, uint32_t group, uint32_t more)
{
    if (e->foreseen_index != e->applied_index || e->foreseen_group != group) {
        e->foreseen_index = e->applied_index;
        e->foreseen_group = group;
        e->foreseen_count = 0;
    }
    uint32_t before = e->foreseen_count;
    e->foreseen_count += more;
    return before;
}

static void queue_pop_foresee(struct foresight *s, const struct queue *q, const struct pop_command *pop)
{
    enum { SKIPS_MAX = 1024 };
    const struct group *g = group_find(s->e, q, pop->group);
    if (g == NULL || !g->registered) {
        bool all = pop->mode == SUBSCRIBE_ALL || slice_is(pop->group, QUEUE_MODE_GROUP);
        if (all) unseen_foresee(s, q, 0, pop->partitions, pop->batch);
        return;
    }
    uint32_t skip = spoken_for(s->e, g->number, pop->partitions), lanes = pop->partitions;
    if (skip > SKIPS_MAX) return;
    for (uint32_t at = g->ready_head; at != 0 && lanes > 0; at = cursor_at(s->e, at)->ready_next) {
        if (skip > 0) {
            skip--;
            continue;
        }
        cursor_foresee(s, at, pop->batch);
        lanes--;
    }
    if (lanes > 0 && g->scan != q->partition_last && g->mode == SUBSCRIBE_ALL) unseen_foresee(s, q, g->scan, lanes, pop->batch);
}

static void pinned_pop_foresee(struct foresight *s, const struct queue *q, const struct pop_command *pop)
{
    const struct partition *p = foresee_name(s, q, pop->partition);
    const struct group *g = p == NULL ? NULL : group_find(s->e, q, pop->group);
    uint32_t at = g == NULL ? 0 : cursor_find(s->e, p, g->number);
    uint8_t mode = g != NULL && g->registered ? g->mode : pop->mode;
    if (at != 0) {
        cursor_foresee(s, at, pop->batch);
    } else if (p != NULL && (mode == SUBSCRIBE_ALL || slice_is(pop->group, QUEUE_MODE_GROUP))) {
        foresee_messages(s, p, p->start, pop->batch);
    } else if (p != NULL && mode != SUBSCRIBE_NEW) {
        foresee_time(s, p, SEARCH_TIME, g != NULL && g->registered ? g->from_us : pop->from_us);
    }
    if (p != NULL && at == 0) visible_foresee(s, p, s->now_us);
}

static void pop_foresee(struct foresight *s, const struct command *c)
{
    struct pop_command pop;
    if (!pop_decode(c, &pop) || pop.scope == POP_DISCOVERY) return;
    const struct queue *q = queue_find(s->e, pop.tenant, pop.queue);
    if (q == NULL) return;
    if (pop.scope == POP_QUEUE) {
        queue_pop_foresee(s, q, &pop);
    } else {
        pinned_pop_foresee(s, q, &pop);
    }
}

/* A lane in memory may still have to be searched by time. */
bool engine_pop_reads(struct engine *e, const struct pop_command *pop)
{
    uint32_t away = 0;
    const struct queue *q = queue_find(e, pop->tenant, pop->queue);
    const struct partition *p = q == NULL ? NULL : partition_find_here(e, q, pop->partition, &away);
    if (p == NULL) return away != 0;
    const int32_t *options = q->options.numbers;
    bool waits = options[OPTION_DELAYED_PROCESSING] > 0 || options[OPTION_WINDOW_BUFFER] > 0;
    return run_memory_first(p) > p->start && (waits || pop->mode == SUBSCRIBE_FROM);
}

void engine_pop_foreseen(struct engine *e, const struct pop_command *pop, struct engine_now now,
                         const struct engine_foreseen *f)
{
    struct foresight s = foresight_of(e, f);
    s.now_us = now.wall_us;
    const struct queue *q = queue_find(e, pop->tenant, pop->queue);
    if (q != NULL && pop->scope == POP_PARTITION) pinned_pop_foresee(&s, q, pop);
}

/* Ids of old messages are looked up in the store. Asking for each whether it is such a one costs as much as the look-up in memory, so it is
 * done only for some entries after one that had such ids. */
static bool ids_are_old(struct engine *e)
{
    enum { ENTRIES = 64 };
    uint64_t read = dedup_rows_read(e->dedup);
    if (read != e->foreseen_ids_read) e->foreseen_ids_until = e->applied_index + ENTRIES;
    e->foreseen_ids_read = read;
    return e->applied_index < e->foreseen_ids_until;
}

static void id_tell(void *ctx, struct slice from, struct slice to)
{
    foresee_range(ctx, from, to);
}

static void ids_pushed_foresee(struct foresight *s, const struct queue *q, const struct partition *p,
                               const struct push_group *g)
{
    struct push_item item;
    int64_t window_ms = queue_dedup_window_ms(q), now_ms = s->e->last_head.wall_us / 1000;
    for (uint32_t i = 0; window_ms > 0 && i < g->item_count && s->left > 0; i++) {
        push_group_item(g, i, &item);
        if (!(item.flags & ITEM_TRANSACTION)) continue;
        dedup_foreseen(s->e->dedup, dedup_key(s->e->seed, p->number, item.transaction), now_ms - window_ms, id_tell, s);
    }
}

static bool lanes_are_here(const struct engine *e)
{
    return e->lanes_in_memory == e->lanes.used;
}

static void push_foresee(struct foresight *s, const struct command *c)
{
    struct push_command push;
    struct push_group g;
    bool ids = ids_are_old(s->e);
    if ((!ids && lanes_are_here(s->e)) || !push_decode(c, &push)) return;
    while (push_group_next(&push.groups, &g)) {
        const struct queue *q = queue_find(s->e, push.tenant, g.queue);
        const struct partition *p = foresee_name(s, q, g.partition);
        if (p != NULL && ids) ids_pushed_foresee(s, q, p, &g);
    }
}

/* Ids that are in no index any more are looked up in the messages themselves: those that are leased. */
static void lease_foresee(struct foresight *s, const struct queue *q, const struct partition *p, const struct lease *l)
{
    struct run r;
    int64_t kept_us = s->e->last_head.wall_us - queue_dedup_keep_ms(q) * 1000;
    for (uint64_t o = l->first; o <= l->last && s->left > 0 && run_find_here(s->e, p, o, &r); o = run_end(&r)) {
        if (r.created_us >= kept_us || r.bytes & RUN_BYTES_AUTO) continue;
        s->left--;
        s->f->block(s->f->ctx, r.where, r.block_bytes);
    }
}

/* Of a lane whose messages are acked: those of its items that are only in the store are told. */
struct acked_lane {
    uint32_t number, queue;
    bool looks;                   /* else none of them is, as far as it is worth a look */
    const struct partition *p;    /* NULL: it is away */
    uint64_t told_from, told_end; /* offsets */
};

static void lane_ack_foresee(struct foresight *s, const struct ack_command *ack, const struct ack_item *item,
                             struct acked_lane *l)
{
    const struct partition *p = l->p = foresee_lane(s, l->number);
    const struct queue *q = partition_queue(s->e, l->number);
    const struct group *g = q == NULL ? NULL : group_find(s->e, q, ack->group);
    uint32_t at = g == NULL || p == NULL ? 0 : cursor_find(s->e, p, g->number);
    l->looks = g != NULL && p == NULL;
    if (l->looks) l->queue = q->number;
    if (at == 0) return;
    const struct cursor *c = cursor_at(s->e, at);
    const struct lease *lease = c->lease == 0 ? NULL : lease_at(s->e, c->lease);
    uint64_t stored_end = run_memory_first(p);
    if (lease != NULL) {
        uint64_t first = next_wanted(c, p);
        if (first <= lease->last) foresee_messages(s, p, first, lease->last - first + 1);
        lease_foresee(s, q, p, lease);
    }
    bool again = lease == NULL || (item->fenced && !uuid_equal(lease->id, item->lease)); /* an ack that was made before */
    l->looks = stored_end > p->start && (again || next_wanted(c, p) < stored_end);
}

/* Of a message's own id: the offset is in it. */
static void acked_message_foresee(struct foresight *s, struct acked_lane *l, struct slice id)
{
    enum { TOGETHER = 64 };
    struct uuid u;
    uint64_t offset;
    int64_t created_ms;
    if (!uuid_parse(id, &u) || !message_id_parse(s->e->seed, u, l->number, &offset, &created_ms)) return;
    if (offset >= l->told_from && offset < l->told_end) return;
    if (l->p != NULL) {
        foresee_messages(s, l->p, offset, TOGETHER);
    } else {
        runs_tell(s, l->queue, l->number, offset, TOGETHER);
    }
    l->told_from = offset;
    l->told_end = offset + TOGETHER;
}

static void ack_foresee(struct foresight *s, const struct command *c)
{
    struct ack_command ack;
    struct ack_item item;
    struct acked_lane l = {0};
    bool ids = ids_are_old(s->e);
    if (!ack_open(c, &ack)) return;
    for (struct slice rest = ack.items; s->left > 0 && ack_item_next(&rest, &item);) {
        if (item.partition > UINT32_MAX) continue;
        if (item.partition != l.number) {
            l = (struct acked_lane){.number = (uint32_t)item.partition};
            lane_ack_foresee(s, &ack, &item, &l);
        }
        if (l.looks) acked_message_foresee(s, &l, item.transaction);
        if (ids || l.looks)
            dedup_foreseen(s->e->dedup, dedup_key(s->e->seed, l.number, item.transaction), INT64_MIN, id_tell, s);
    }
}

/* A put needs a row at rest, but no value of one that has a record. */
static void path_foresee(struct foresight *s, struct uuid tenant, struct slice name_space, struct slice key, bool value)
{
    char from[1 + KV_PATH_MAX + 1];
    from[0] = ROW_KV;
    size_t len = kv_path(from + 1, tenant, name_space, key);
    bool away;
    uint32_t at = kv_row_here(s->e, slice_make(from + 1, len), &away);
    bool absent = value && at != 0 && kv_value_absent(kv_row_at(s->e, at));
    if (!away && !absent) return;
    char to[sizeof from];
    memcpy(to, from, 1 + len);
    to[1 + len] = 0;
    foresee_range(s, slice_make(from, 1 + len), slice_make(to, 2 + len));
}

/* The page's values that left: a range from the first of them on, and another one behind each TOGETHER bytes. */
static void prefix_foresee(struct foresight *s, struct uuid tenant, const struct kv_op *op)
{
    enum { TOGETHER = 32 << 10 };
    char path[KV_PATH_MAX], after[KV_PATH_MAX], from[1 + KV_PATH_MAX], to[1 + KV_PATH_MAX + 1];
    struct slice prefix = slice_make(path, kv_path(path, tenant, op->name_space, op->key)), end;
    struct slice behind = slice_make(after, kv_path(after, tenant, op->name_space, op->value));
    from[0] = to[0] = ROW_KV;
    if (!tree_prefix_end(prefix, to + 1, &end)) return;
    bool resumes = op->value.len > 0 && slice_compare(behind, prefix) >= 0;
    struct slice first = resumes ? behind : prefix;
    if (kv_space_away(s->e, slice_make(prefix.at, 17U + op->name_space.len)) > 0) {
        memcpy(from + 1, first.at, first.len);
        foresee_range(s, slice_make(from, 1 + first.len), slice_make(to, 1 + end.len));
    }
    if (op->flags & KV_KEYS_ONLY) return;
    struct tree_place place = tree_seek(&s->e->kv_order, first);
    uint32_t at, bytes = TOGETHER;
    for (uint32_t rows = 0; rows < op->limit && s->left > 0 && (at = tree_next(&place)) != 0; rows++) {
        const struct kv_row *r = kv_row_at(s->e, at);
        struct slice row = kv_row_path(r);
        if (row.len < prefix.len || memcmp(row.at, prefix.at, prefix.len) != 0) return;
        if (!kv_value_absent(r)) continue;
        if (bytes >= TOGETHER) {
            memcpy(from + 1, row.at, row.len);
            foresee_range(s, slice_make(from, 1 + row.len), slice_make(to, 1 + end.len));
            bytes = 0;
        }
        bytes += r->value_len;
    }
}

static void kv_foresee(struct foresight *s, const struct command *c)
{
    struct kv_command kv;
    struct kv_op op;
    struct slice key;
    if ((s->e->kv_absent_bytes == 0 && s->e->kv_away == 0) || !kv_decode(c, &kv)) return;
    while (kv_op_next(&kv.ops, &op)) {
        if (op.kind == KV_GET_PREFIX) {
            prefix_foresee(s, kv.tenant, &op);
        } else if (op.kind == KV_GET_MANY) {
            while (kv_key_next(&op.key, &key)) path_foresee(s, kv.tenant, op.name_space, key, true);
        } else {
            path_foresee(s, kv.tenant, op.name_space, op.key, op.kind != KV_PUT || op.flags & KV_EXPECT);
        }
    }
}

/* The permits of a lock stand together. */
static void locks_foresee(struct foresight *s, const struct command *c)
{
    struct locks_command locks;
    struct lock_op op;
    char key[256 + 1], from[1 + KV_PATH_MAX], to[1 + KV_PATH_MAX];
    struct slice end;
    if ((s->e->kv_absent_bytes == 0 && s->e->kv_away == 0) || !locks_decode(c, &locks)) return;
    from[0] = to[0] = ROW_KV;
    while (lock_op_next(&locks.ops, &op)) {
        memcpy(key, op.name.at, op.name.len);
        key[op.name.len] = '#';
        size_t len = kv_path(from + 1, locks.tenant, slice_of(LOCK_NAME_SPACE), slice_make(key, op.name.len + 1));
        if (tree_prefix_end(slice_make(from + 1, len), to + 1, &end))
            foresee_range(s, slice_make(from, 1 + len), slice_make(to, 1 + end.len));
    }
}

static void positions_foresee(struct foresight *s, const struct command *c)
{
    struct positions_command positions;
    struct position_item item;
    if (lanes_are_here(s->e) || !positions_decode(c, &positions)) return;
    while (position_next(&positions.items, &item))
        foresee_name(s, queue_find(s->e, positions.tenant, item.queue), item.partition);
}

static void trim_foresee(struct foresight *s, const struct command *c)
{
    struct trim_command trim;
    struct trim_item item;
    if (!trim_decode(c, &trim)) return;
    for (uint32_t i = 0; i < trim.count; i++) {
        trim_item_read(&trim, i, &item);
        const struct lane *l = lane_at(s->e, item.partition);
        if (l == NULL) continue;
        const struct partition *p = foresee_lane(s, item.partition);
        if (p == NULL || p->start < run_memory_first(p))
            runs_tell(s, l->queue, item.partition, p == NULL ? 0 : p->start, UINT64_MAX);
    }
}

/* Does it take a look into the store to know where a time is in the lane? */
bool lane_is_stored(const struct lane *l)
{
    return l->p == NULL || run_memory_first(l->p) > l->p->start;
}

static void lanes_seek_foresee(struct foresight *s, const struct queue *q, const struct piece *p, int64_t us)
{
    const struct lane *last = p->after == 0 ? NULL : lane_at(s->e, (uint32_t)p->after), *l;
    uint32_t number = last == NULL ? q->partition_first : last->next,
             end = p->until == 0 ? q->partition_last : (uint32_t)p->until, looks = p->most;
    for (; looks > 0 && number != 0 && number <= end; number = l->next, looks--) {
        l = lane_at(s->e, number);
        if (!lane_is_stored(l)) continue;
        struct engine_time_search t = {
            .kind = SEARCH_TIME, .queue = q->number, .lane = number, .end = end + 1, .looks = looks, .us = us};
        foresee_search(s, &t);
        return;
    }
}

/* As of lane_seek. Pieces that go to the end find it in memory, but for what was pushed since the first of them. */
static void seek_foresee(struct foresight *s, const struct command *c)
{
    struct seek_command seek;
    if (!seek_decode(c, &seek)) return;
    const struct queue *q = queue_find(s->e, seek.tenant, seek.queue);
    if (q == NULL) return;
    int64_t moment_us = seek.piece.until == 0 ? INT64_MAX : seek.piece.moment_us;
    int64_t us = seek.to_end || seek.us > moment_us ? moment_us : seek.us;
    if (seek.has_partition) {
        foresee_name_time(s, q, seek.partition, us);
    } else {
        lanes_seek_foresee(s, q, &seek.piece, us);
    }
}

void foresee_timer(struct foresight *s, const struct timer *t, int64_t until_us)
{
    struct row_key from, to;
    row_key_timer(&from, t->due.key, t->due.tie);
    row_key_timer(&to, until_us, UINT64_MAX);
    foresee_range(s, row_key_view(&from), row_key_view(&to));
}

static void timers_foresee(struct foresight *s, const struct command *c)
{
    struct timers_command timers;
    struct timer_op op;
    char room[TIMER_PATH_MAX];
    if (s->e->timers.used == s->e->timer_order.count || !timers_decode(c, &timers)) return;
    while (timer_op_next(&timers.ops, &op)) {
        uint64_t hash = hash64(timer_path_make(room, timers.tenant, op.queue, op.key), 1);
        uint32_t at = 0, number;
        while ((number = idmap_next(&s->e->timer_paths, hash, &at)) != 0) {
            const struct timer *t = timer_at(s->e, number);
            if (t->body == NULL) foresee_timer(s, t, t->due.key);
        }
    }
}

static void step_foresee(struct foresight *s, const struct command *c)
{
    struct step_command step;
    struct command ack;
    if (!step_decode(c, &step)) return;
    while (command_next(&step.acks, &ack)) ack_foresee(s, &ack);
    if (step.has_push) push_foresee(s, &step.push);
    if (step.has_positions) positions_foresee(s, &step.positions);
    if (step.has_kv) kv_foresee(s, &step.kv);
    if (step.has_timers) timers_foresee(s, &step.timers);
    if (step.has_pop) pop_foresee(s, &step.pop);
}

static void timer_lane_foresee(void *ctx, struct uuid tenant, struct slice queue, struct slice partition)
{
    struct foresight *s = ctx;
    foresee_name(s, queue_find(s->e, tenant, queue), partition);
}

static void due_foresee(struct foresight *s)
{
    enum { AHEAD_US = 1000000 }; /* when the entry will be applied is not known; but the first timer is due then */
    const struct heap_node *first = heap_min(&s->e->timers_due);
    if (first == NULL) return;
    int64_t due_us = first->key > s->e->last_head.wall_us ? first->key : s->e->last_head.wall_us;
    struct timers_due due = {
        .e = s->e, .until_us = due_us + AHEAD_US, .left = TIMERS_A_TICK, .each = timer_lane_foresee, .ctx = s};
    timers_due_walk(&due);
    if (due.resting != NULL) foresee_timer(s, due.resting, due.until_us);
}

void engine_rows_foreseen(struct engine *e, const struct command *c, const struct engine_foreseen *f)
{
    struct foresight s = foresight_of(e, f);
    struct letter_move_command move;
    switch (c->kind) {
    case COMMAND_PUSH:
        push_foresee(&s, c);
        return;
    case COMMAND_POP:
        pop_foresee(&s, c);
        return;
    case COMMAND_ACK:
        ack_foresee(&s, c);
        return;
    case COMMAND_STEP:
        step_foresee(&s, c);
        return;
    case COMMAND_KV:
        kv_foresee(&s, c);
        return;
    case COMMAND_LOCKS:
        locks_foresee(&s, c);
        return;
    case COMMAND_POSITIONS:
        positions_foresee(&s, c);
        return;
    case COMMAND_TRIM:
        trim_foresee(&s, c);
        return;
    case COMMAND_LETTER_MOVE:
        if (letter_move_decode(c, &move)) push_foresee(&s, &move.push);
        return;
    case COMMAND_TICK:
        due_foresee(&s);
        return;
    case COMMAND_SEEK:
        seek_foresee(&s, c);
        return;
    case COMMAND_TIMERS:
        timers_foresee(&s, c);
        return;
    default:
        return;
    }
}
