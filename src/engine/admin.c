/* What operators do: seek, delete and re-date groups; delete and move dead letters. */
#include <stdlib.h>

#include "engine/engine_internal.h"

/* ---- groups --------------------------------------------------------------------------------------------------------- */

static void lane_seek(struct engine *e, struct group *g, struct partition *p, const struct seek_command *s)
{
    uint32_t at = cursor_find(e, p, g->number);
    if (at == 0) at = cursor_add(e, p, g);
    struct cursor *c = cursor_at(e, at);
    uint64_t next = s->to_end ? p->tail : run_offset_at(e, p, s->us);
    cursor_unlist(e, at);
    if (c->lease != 0) lease_drop(e, at);
    c->committed = (int64_t)next - 1;
    c->retries = 0;
    c->attempt = 0;
    c->flags |= CURSOR_SEEDED;
    cursor_settle(e, at);
    run_trim(e, p);
}

bool seek_apply(struct engine *e, const struct command *c, struct engine_result *r)
{
    struct seek_command s;
    if (!seek_decode(c, &s)) return false;
    struct queue *q = queue_find(e, s.tenant, s.queue);
    if (q == NULL || q->partition_count == 0) return true;
    struct partition *one = s.has_partition ? partition_find(e, q, s.partition) : NULL;
    if (s.has_partition && one == NULL) return true;
    struct group *g = group_find(e, q, s.group);
    if (g == NULL) {
        g = group_add(e, q, ++e->group_last, s.group);
        group_touch(e, g);
    }
    if (one != NULL) {
        lane_seek(e, g, one, &s);
        r->changed.lanes = 1;
        return true;
    }
    struct lane_walk w;
    struct partition *p;
    lane_walk_begin(&w, e, q->partition_first);
    for (; (p = lane_walk_next(&w)) != NULL; r->changed.lanes++) lane_seek(e, g, p, &s);
    return true;
}

static uint32_t cursors_remove(struct engine *e, struct queue *q, const struct group *g)
{
    uint32_t removed = 0;
    struct lane_walk w;
    struct partition *p;
    lane_walk_begin(&w, e, q->partition_first);
    while (g->cursor_count > 0 && (p = lane_walk_next(&w)) != NULL) {
        uint32_t at = cursor_find(e, p, g->number);
        if (at == 0) continue;
        cursor_forget(e, p, at);
        removed++;
        run_trim(e, p);
    }
    lane_walk_end(&w);
    return removed;
}

/* The group's record stays, under its number: dead letters name it. Without registration and cursors nothing else knows of it. */
bool group_delete_apply(struct engine *e, const struct command *c, struct arena *arena, struct engine_result *r)
{
    struct group_delete_command d;
    if (!group_delete_decode(c, &d)) return false;
    uint32_t cap = 0;
    for (uint32_t n = 1; n <= e->queue_last; n++) {
        struct queue *q = queue_at(e, n);
        if (q == NULL || !uuid_equal(q->tenant, d.tenant)) continue;
        if (d.queue.len > 0 && !slice_equal(d.queue, q->name)) continue;
        struct group *g = group_find(e, q, d.group);
        if (g == NULL || (!g->registered && g->cursor_count == 0)) continue;
        r->changed.lanes += cursors_remove(e, q, g);
        g->scan = 0;
        if (!d.keep_registration) {
            g->registered = g->conflates = false;
            g->mode = SUBSCRIBE_ALL;
            g->from_us = 0;
        }
        group_touch(e, g);
        if (r->changed.queue_count == cap) {
            uint32_t grown = cap == 0 ? 8 : cap * 4;
            struct slice *queues = arena_get(arena, grown * sizeof queues[0]);
            if (cap > 0) memcpy(queues, r->changed.queues, cap * sizeof queues[0]);
            r->changed.queues = queues;
            cap = grown;
        }
        r->changed.queues[r->changed.queue_count++] = arena_copy(arena, q->name);
    }
    return true;
}

bool subscription_apply(struct engine *e, const struct command *c, struct engine_result *r)
{
    struct subscription_command s;
    if (!subscription_decode(c, &s)) return false;
    for (uint32_t n = 1; n <= e->queue_last; n++) {
        struct queue *q = queue_at(e, n);
        struct group *g = q == NULL || !uuid_equal(q->tenant, s.tenant) ? NULL : group_find(e, q, s.group);
        if (g == NULL || !g->registered || group_is_queue_mode(g)) continue;
        g->mode = SUBSCRIBE_FROM;
        g->from_us = s.us;
        g->scan = 0; /* lanes without messages since the old time may have some since the new one */
        group_touch(e, g);
        r->changed.lanes++;
    }
    return true;
}

/* ---- dead letters --------------------------------------------------------------------------------------------------- */

static struct queue *queue_of_letter(const struct engine *e, const struct dead_letter *d)
{
    return partition_queue(e, d->partition);
}

static void letter_forget(struct engine *e, struct dead_letter *d, struct queue *q)
{
    uint64_t key[2] = {q->number, d->sequence};
    buf_put(&e->gone_letters, key, sizeof key);
    segment_release(e, d->where, LETTER_HOLDS);
    q->dead_letters--;
    queue_touch(e, q);
    free((char *)(uintptr_t)d->error.at);
}

/* Removes what `wanted` chooses, one pass. */
static uint32_t letters_remove(struct engine *e, bool (*wanted)(void *ctx, const struct dead_letter *d, const struct queue *q),
                               void *ctx)
{
    uint32_t kept = 0, count = e->dead_letter_count;
    for (uint32_t i = 0; i < count; i++) {
        struct dead_letter *d = &e->dead_letters[i];
        struct queue *q = queue_of_letter(e, d);
        if (q != NULL && wanted(ctx, d, q)) {
            letter_forget(e, d, q);
        } else {
            e->dead_letters[kept++] = *d;
        }
    }
    e->dead_letter_count = kept;
    return count - kept;
}

struct letters_wanted {
    struct engine *e;
    struct letters_delete_command d;
};

static bool sequence_wanted(const struct letters_delete_command *d, uint64_t sequence)
{
    for (uint32_t i = 0; i < d->count; i++) {
        uint64_t s;
        memcpy(&s, d->sequences + (size_t)i * 8, sizeof s);
        if (s == sequence) return true;
    }
    return false;
}

static bool letter_wanted(void *ctx, const struct dead_letter *d, const struct queue *q)
{
    const struct letters_wanted *w = ctx;
    if (!uuid_equal(q->tenant, w->d.tenant)) return false;
    if (w->d.count > 0) return sequence_wanted(&w->d, d->sequence);
    if (!slice_equal(q->name, w->d.queue)) return false;
    return w->d.group.len == 0 || slice_equal(group_at(w->e, d->group)->name, w->d.group);
}

bool letters_delete_apply(struct engine *e, const struct command *c, struct engine_result *r)
{
    struct letters_wanted w = {.e = e};
    if (!letters_delete_decode(c, &w.d)) return false;
    r->changed.lanes = letters_remove(e, letter_wanted, &w);
    return true;
}

struct dead_letter *letter_find(const struct engine *e, struct uuid tenant, struct uuid id)
{
    uint64_t sequence = thing_number(id);
    uint32_t low = 0, high = e->dead_letter_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (e->dead_letters[middle].sequence < sequence) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == e->dead_letter_count) return NULL;
    struct dead_letter *d = &e->dead_letters[low];
    const struct queue *q = queue_of_letter(e, d);
    if (q == NULL || !uuid_equal(q->tenant, tenant)) return NULL;
    return uuid_equal(id, thing_id(e->seed, ID_DEAD_LETTER, d->sequence, d->failed_us)) ? d : NULL;
}

static bool letter_is(void *ctx, const struct dead_letter *d, const struct queue *q)
{
    (void)q;
    return d->sequence == *(const uint64_t *)ctx;
}

bool letter_move_apply(struct engine *e, const struct command *c, uint64_t where, struct arena *arena, struct engine_result *r)
{
    struct letter_move_command m;
    struct push_command push;
    struct push_result pushed;
    uint32_t item;
    if (!letter_move_decode(c, &m)) return false;
    must(push_decode(&m.push, &push));
    const struct dead_letter *d = letter_find(e, m.tenant, m.letter);
    r->letter_move.fate = LETTER_GONE;
    if (d == NULL) return true;
    uint64_t sequence = d->sequence;
    r->letter_move.fate = LETTER_DUPLICATE;
    if (push_duplicate(e, &push, &item, &r->letter_move.push.offset)) return true;
    push_do(e, &m.push, &push, where + (uint64_t)(m.push.all.at - c->all.at), arena, &pushed);
    r->letter_move.fate = LETTER_MOVED;
    r->letter_move.push = pushed.items[0];
    letters_remove(e, letter_is, &sequence);
    return true;
}
