/* Cursors: where each group stands in each lane, who holds it, and the lists by which lanes are found. */
#include <stdlib.h>

#include "engine/engine_internal.h"

struct cursor *cursor_at(const struct engine *e, uint32_t at)
{
    return slab_at(&e->cursors, at);
}

struct lease *lease_at(const struct engine *e, uint32_t at)
{
    return slab_at(&e->leases, at);
}

struct history *history_at(const struct engine *e, uint32_t at)
{
    return slab_at(&e->histories, at);
}

static struct delay *delay_at(const struct engine *e, uint32_t at)
{
    return slab_at(&e->delays, at);
}

static struct partition *partition_of(const struct engine *e, const struct cursor *c)
{
    return lane_at(e, c->partition)->p; /* one whose cursor is in memory is in memory */
}

uint32_t cursor_find(const struct engine *e, const struct partition *p, uint32_t group)
{
    uint32_t at = p->cursors;
    while (at != 0 && cursor_at(e, at)->group != group) at = cursor_at(e, at)->next;
    return at;
}

bool cursor_is_live(const struct engine *e, uint32_t at)
{
    return e->retiring.count == 0 || !group_at(e, cursor_at(e, at)->group)->retired;
}

uint32_t cursor_live(const struct engine *e, uint32_t at)
{
    while (at != 0 && !cursor_is_live(e, at)) at = cursor_at(e, at)->next;
    return at;
}

uint32_t cursor_link(struct engine *e, struct partition *p, uint32_t group)
{
    uint32_t at = slab_add(&e->cursors);
    struct cursor *c = cursor_at(e, at);
    c->partition = p->number;
    c->group = group;
    c->committed = -1;
    c->next = p->cursors;
    p->cursors = at;
    return at;
}

uint32_t cursor_add(struct engine *e, struct partition *p, struct group *g)
{
    g->cursor_count++;
    return cursor_link(e, p, g->number);
}

void cursor_unlink(struct engine *e, uint32_t at)
{
    struct cursor *c = cursor_at(e, at);
    struct partition *p = partition_of(e, c);
    must(c->state == CURSOR_IDLE && c->lease == 0);
    if (c->history != 0) slab_remove(&e->histories, c->history);
    uint32_t *link = &p->cursors;
    while (*link != at) link = &cursor_at(e, *link)->next;
    *link = c->next;
    memset(c, 0, sizeof *c);
    slab_remove(&e->cursors, at);
}

void cursor_touch(struct engine *e, uint32_t at)
{
    struct cursor *c = cursor_at(e, at);
    if (c->flags & CURSOR_DIRTY) return;
    c->flags |= CURSOR_DIRTY;
    numbers_add(&e->dirty_cursors, at);
}

bool cursor_pending(const struct cursor *c, const struct partition *p)
{
    int64_t next = c->committed + 1 > (int64_t)p->start ? c->committed + 1 : (int64_t)p->start;
    return next < (int64_t)p->tail;
}

/* ---- lists -------------------------------------------------------------------------------------------------------- */

void cursor_unlist(struct engine *e, uint32_t at)
{
    struct cursor *c = cursor_at(e, at);
    struct group *g = group_at(e, c->group);
    if (c->state == CURSOR_READY) {
        if (c->ready_previous != 0) {
            cursor_at(e, c->ready_previous)->ready_next = c->ready_next;
        } else {
            g->ready_head = c->ready_next;
        }
        if (c->ready_next != 0) {
            cursor_at(e, c->ready_next)->ready_previous = c->ready_previous;
        } else {
            g->ready_tail = c->ready_previous;
        }
        c->ready_next = c->ready_previous = 0;
        g->ready_count--;
    } else if (c->state == CURSOR_LEASED) {
        heap_remove(&g->leases, &lease_at(e, c->lease)->due);
    } else if (c->state == CURSOR_DELAYED) {
        heap_remove(&g->delays, &delay_at(e, c->delay)->due);
        slab_remove(&e->delays, c->delay);
        c->delay = 0;
    }
    c->state = CURSOR_IDLE;
}

static void ready_link(struct engine *e, uint32_t at, bool first)
{
    struct cursor *c = cursor_at(e, at);
    struct group *g = group_at(e, c->group);
    c->state = CURSOR_READY;
    g->ready_count++;
    if (first) {
        c->ready_next = g->ready_head;
        if (g->ready_head != 0) cursor_at(e, g->ready_head)->ready_previous = at;
        g->ready_head = at;
        if (g->ready_tail == 0) g->ready_tail = at;
    } else {
        c->ready_previous = g->ready_tail;
        if (g->ready_tail != 0) cursor_at(e, g->ready_tail)->ready_next = at;
        g->ready_tail = at;
        if (g->ready_head == 0) g->ready_head = at;
    }
}

static void ready_put(struct engine *e, uint32_t at, bool first)
{
    struct cursor *c = cursor_at(e, at);
    struct group *g = group_at(e, c->group);
    if (first && g->ready_head != 0) {
        c->ready_turn = cursor_at(e, g->ready_head)->ready_turn - 1;
    } else {
        c->ready_turn = ++g->ready_turn_last;
        group_touch(e, g);
    }
    ready_link(e, at, first);
    if (e->sink != NULL && e->sink->ready != NULL) {
        e->sink->ready(e->sink->ctx, c->group, c->partition, partition_name(partition_of(e, c)));
    }
}

static void cursor_place(struct engine *e, uint32_t at, bool first)
{
    struct cursor *c = cursor_at(e, at);
    cursor_unlist(e, at);
    cursor_touch(e, at);
    if (c->lease != 0 && lease_live(e, lease_at(e, c->lease))) {
        struct lease *l = lease_at(e, c->lease);
        c->state = CURSOR_LEASED;
        heap_put(&group_at(e, c->group)->leases, &l->due, l->expiry_us, c->partition);
    } else if (cursor_pending(c, partition_of(e, c))) {
        ready_put(e, at, first);
    }
}

void cursor_settle(struct engine *e, uint32_t at)
{
    cursor_place(e, at, false);
}

void cursor_settle_first(struct engine *e, uint32_t at)
{
    cursor_place(e, at, true);
}

void cursor_delay(struct engine *e, uint32_t at, int64_t due_wall_us)
{
    cursor_unlist(e, at);
    struct cursor *c = cursor_at(e, at);
    struct group *g = group_at(e, c->group);
    c->delay = slab_add(&e->delays);
    struct delay *d = delay_at(e, c->delay);
    d->cursor = at;
    c->state = CURSOR_DELAYED;
    heap_put(&g->delays, &d->due, due_wall_us + g->delay_shift_us, c->partition);
    cursor_touch(e, at);
}

int64_t cursor_delay_key(const struct engine *e, const struct cursor *c)
{
    return delay_at(e, c->delay)->due.key;
}

/* Exactly the state that was stored: a lease that is past but was not looked at yet stays in its heap, so that the next pop finds
 * the lanes in the order in which the node that did not stop finds them. */
void cursor_restore(struct engine *e, uint32_t at, uint8_t state, int64_t turn_or_due)
{
    struct cursor *c = cursor_at(e, at);
    if (state == CURSOR_LEASED) {
        must(c->lease != 0);
        c->state = CURSOR_LEASED;
        heap_put(&group_at(e, c->group)->leases, &lease_at(e, c->lease)->due, lease_at(e, c->lease)->expiry_us, c->partition);
    } else if (state == CURSOR_DELAYED) {
        cursor_delay(e, at, turn_or_due - group_at(e, c->group)->delay_shift_us);
    } else {
        c->ready_turn = turn_or_due;
    }
}

static int ready_compare(const void *x, const void *y, void *e)
{
    const struct cursor *a = cursor_at(e, *(const uint32_t *)x), *b = cursor_at(e, *(const uint32_t *)y);
    if (a->ready_turn != b->ready_turn) return a->ready_turn < b->ready_turn ? -1 : 1;
    return a->partition < b->partition ? -1 : a->partition > b->partition;
}

void group_restore_ready(struct engine *e, uint32_t *cursors, uint32_t count)
{
    if (count > 0) qsort_r(cursors, count, sizeof cursors[0], ready_compare, e);
    for (uint32_t i = 0; i < count; i++) ready_link(e, cursors[i], false);
}

void cursor_drop(struct engine *e, uint32_t at)
{
    struct cursor *c = cursor_at(e, at);
    cursor_unlist(e, at);
    if (c->lease != 0) lease_drop(e, at);
    group_at(e, c->group)->cursor_count--;
    cursor_unlink(e, at);
}

void cursor_forget(struct engine *e, struct partition *p, uint32_t at)
{
    uint32_t key[3] = {p->queue, p->number, cursor_at(e, at)->group};
    buf_put(&e->gone_cursors, key, sizeof key);
    partition_touch(e, p); /* it may not leave before the row is gone */
    cursor_drop(e, at);
}

/* ---- seeding ------------------------------------------------------------------------------------------------------ */

/* Where a group starts in a lane it has not delivered from: decided once the lane has a message that counts. */
void cursor_seed(const struct engine *e, const struct group *g, const struct partition *p, struct cursor *c)
{
    if (c->flags & CURSOR_SEEDED) return;
    if (g->mode == SUBSCRIBE_ALL) {
        c->flags |= CURSOR_SEEDED;
        return;
    }
    uint64_t first = run_offset_at(e, p, g->from_us);
    if (first < p->tail) c->flags |= CURSOR_SEEDED;
    if ((int64_t)first - 1 > c->committed) c->committed = (int64_t)first - 1;
}

/* After an append: every group that has looked at this lane gets it, the others find it when their scan comes here. */
void cursor_arm(struct engine *e, struct partition *p)
{
    struct queue *q = queue_at(e, p->queue);
    for (uint32_t n = q->groups; n != 0;) {
        struct group *g = group_at(e, n);
        n = g->next;
        uint32_t at = cursor_find(e, p, g->number);
        if (at == 0) {
            if (!g->registered || g->scan < p->number) continue;
            at = cursor_add(e, p, g);
        }
        if (cursor_at(e, at)->state == CURSOR_IDLE) cursor_settle(e, at);
    }
}

void group_scan(struct engine *e, struct group *g, uint32_t wanted, uint32_t *looks)
{
    struct queue *q = queue_at(e, g->queue);
    if (!g->registered || g->scan == q->partition_last || *looks == 0) return;
    struct lane_walk w;
    lane_walk_begin(&w, e, g->scan == 0 ? q->partition_first : lane_at(e, g->scan)->next);
    group_touch(e, g);
    for (; *looks > 0 && g->ready_count < wanted && w.next != 0; --*looks) {
        const struct lane *l = lane_at(e, w.next);
        g->scan = w.next;
        if (l->p == NULL && l->oldest_s == 0) { /* an empty one */
            w.next = l->next;
            continue;
        }
        struct partition *p = lane_walk_next(&w);
        if (cursor_find(e, p, g->number) != 0 || p->tail == p->start) continue;
        if (g->mode != SUBSCRIBE_ALL && p->last_created_us < g->from_us) continue;
        cursor_settle(e, cursor_add(e, p, g));
    }
    lane_walk_end(&w);
}

void group_expire(struct engine *e, struct group *g, uint32_t wanted)
{
    enum { STEPS_MAX = 256 };
    for (int i = 0; i < STEPS_MAX && g->ready_count < wanted; i++) {
        struct heap_node *n = heap_min(&g->leases);
        if (n == NULL || n->key > e->log_us) break;
        struct lease *l = (struct lease *)(void *)((char *)n - offsetof(struct lease, due));
        cursor_settle(e, l->cursor);
    }
    for (int i = 0; i < STEPS_MAX && g->ready_count < wanted; i++) {
        struct heap_node *n = heap_min(&g->delays);
        if (n == NULL || n->key > group_delay_now(g, e->wall_us)) break;
        struct delay *d = (struct delay *)(void *)((char *)n - offsetof(struct delay, due));
        cursor_settle(e, d->cursor);
    }
}

/* The queue's delay options were shortened by so much, at most. What waits by the old ones is due earlier from here on: it is looked at by
 * pops, as much as is due, and waits again if that was too early. Nothing is touched now, however many lanes wait. */
void group_delays_shorten(struct engine *e, struct group *g, int64_t us)
{
    if (g->delays.count == 0) {
        g->delay_shift_us = 0;
    } else if (g->delay_shift_us < INT64_MAX / 4) {
        g->delay_shift_us += us;
    }
    group_touch(e, g);
}

/* ---- leases ------------------------------------------------------------------------------------------------------- */

static uint64_t lease_hash(struct uuid id)
{
    return hash64(slice_make(id.bytes, sizeof id.bytes), 0);
}

bool lease_live(const struct engine *e, const struct lease *l)
{
    return l->expiry_us > e->log_us;
}

uint32_t lease_find(const struct engine *e, struct uuid id)
{
    uint64_t hash = lease_hash(id);
    uint32_t at = 0, number;
    while ((number = idmap_next(&e->lease_ids, hash, &at)) != 0) {
        if (uuid_equal(lease_at(e, number)->id, id)) return number;
    }
    return 0;
}

void lease_grant(struct engine *e, uint32_t cursor, struct uuid id, uint64_t first, uint64_t last, int64_t expiry_us)
{
    struct cursor *c = cursor_at(e, cursor);
    cursor_unlist(e, cursor);
    if (c->lease != 0) lease_drop(e, cursor);
    uint32_t at = slab_add(&e->leases), head = lease_find(e, id);
    struct lease *l = lease_at(e, at);
    *l = (struct lease){.id = id, .first = first, .last = last, .expiry_us = expiry_us, .cursor = cursor};
    c->lease = at;
    if (head == 0) {
        idmap_add(&e->lease_ids, lease_hash(id), at);
    } else {
        l->next_same_id = lease_at(e, head)->next_same_id;
        lease_at(e, head)->next_same_id = at;
    }
}

/* The cursor must not be in the lease heap (cursor_unlist). */
void lease_drop(struct engine *e, uint32_t cursor)
{
    struct cursor *c = cursor_at(e, cursor);
    uint32_t at = c->lease;
    struct lease *l = lease_at(e, at);
    must(at != 0 && !heap_holds(&l->due));
    uint32_t head = lease_find(e, l->id);
    if (head == at) {
        idmap_remove(&e->lease_ids, lease_hash(l->id), at);
        if (l->next_same_id != 0) idmap_add(&e->lease_ids, lease_hash(l->id), l->next_same_id);
    } else {
        while (lease_at(e, head)->next_same_id != at) head = lease_at(e, head)->next_same_id;
        lease_at(e, head)->next_same_id = l->next_same_id;
    }
    c->lease = 0;
    slab_remove(&e->leases, at);
}

void history_set(struct engine *e, struct cursor *c, struct uuid id, uint64_t low, uint64_t high)
{
    if (c->history == 0) c->history = slab_add(&e->histories);
    *history_at(e, c->history) = (struct history){.id = id, .low = low, .high = high};
}
