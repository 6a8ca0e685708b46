/* What operators do: seek, delete and re-date groups; delete and move dead letters.
 *
 * What concerns many lanes, queues or letters is done in pieces (command.h): one command looks at a bounded number and its result says how
 * the next goes on. Who took the call proposes them one after the other. One that is cut short in between has been done up to there, and
 * doing it again from the start does no harm. */
#include "engine/engine_internal.h"

/* ---- pieces --------------------------------------------------------------------------------------------------------- */

/* Gives whether it is the first one, which fixes how far all of them go. */
static bool piece_begin(struct piece *p, uint64_t last)
{
    if (p->until != 0) return false;
    p->until = last;
    p->after = 0;
    return true;
}

/* Up to `after` is done. */
static void piece_end(const struct piece *p, uint64_t after, bool more, struct engine_result *r)
{
    r->changed.next = *p;
    r->changed.next.after = after;
    r->changed.more = more;
}

/* ---- seek ----------------------------------------------------------------------------------------------------------- */

/* As it would have been at the moment of the first piece: what was pushed since then is not skipped, and what the group has passed of that
 * since is not delivered again. */
static void lane_seek(struct engine *e, struct group *g, struct partition *p, const struct seek_command *s)
{
    bool ends = s->to_end || s->us > s->piece.moment_us;
    uint64_t next = run_offset_at(e, p, ends ? s->piece.moment_us : s->us);
    uint32_t at = cursor_find(e, p, g->number);
    if (at == 0) at = cursor_add(e, p, g);
    struct cursor *c = cursor_at(e, at);
    if (ends && c->committed >= (int64_t)next) return;
    cursor_unlist(e, at);
    if (c->lease != 0) lease_drop(e, at);
    c->committed = (int64_t)next - 1;
    c->retries = 0;
    c->attempt = 0;
    c->flags |= CURSOR_SEEDED;
    cursor_settle(e, at);
    run_trim(e, p);
}

/* A time inside of what a lane holds has to be looked for, maybe in the store: that counts as much as this many lanes. */
static uint32_t seek_cost(const struct partition *p, const struct seek_command *s)
{
    enum { SEARCHED = 10 };
    int64_t us = s->to_end || s->us > s->piece.moment_us ? s->piece.moment_us : s->us;
    return p->tail > p->start && p->start_us < us && us <= p->last_created_us ? SEARCHED : 1;
}

static void lanes_seek(struct engine *e, struct queue *q, struct group *g, const struct seek_command *s,
                       struct engine_result *r)
{
    const struct lane *last = s->piece.after == 0 ? NULL : lane_at(e, (uint32_t)s->piece.after);
    uint64_t after = s->piece.after;
    struct lane_walk w;
    lane_walk_begin_many(&w, e, last == NULL ? q->partition_first : last->next, s->piece.most);
    for (uint32_t looks = 0; w.next != 0 && w.next <= s->piece.until && looks < s->piece.most; r->changed.lanes++) {
        after = w.next;
        struct partition *p = lane_walk_next(&w);
        looks += seek_cost(p, s);
        lane_seek(e, g, p, s);
    }
    piece_end(&s->piece, after, w.next != 0 && w.next <= s->piece.until, r);
    lane_walk_end(&w);
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
    if (piece_begin(&s.piece, q->partition_last)) {
        if (g == NULL) {
            g = group_add(e, q, ++e->group_last, s.group);
            group_touch(e, g);
        }
        s.piece.queue = q->number;
        s.piece.group = g->number;
        s.piece.moment_us = e->wall_us;
    } else if (q->number != s.piece.queue || g == NULL || g->number != s.piece.group) {
        return true; /* deleted since */
    }
    if (one != NULL) {
        lane_seek(e, g, one, &s);
        r->changed.lanes = 1;
    } else {
        lanes_seek(e, q, g, &s, r);
    }
    return true;
}

/* ---- groups --------------------------------------------------------------------------------------------------------- */

/* The next queue of the tenant and the piece; NULL: the piece ends, `r` says how it goes on. */
static struct queue *queue_piece_next(struct engine *e, const struct piece *p, struct uuid tenant, uint32_t *looks,
                                      struct engine_result *r)
{
    for (uint64_t n = p->after + *looks + 1;; n++, ++*looks) {
        if (n > p->until || *looks == p->most) {
            piece_end(p, n - 1, n <= p->until, r);
            return NULL;
        }
        struct queue *q = queue_at(e, (uint32_t)n);
        if (q == NULL || !uuid_equal(q->tenant, tenant)) continue;
        ++*looks;
        return q;
    }
}

static bool group_delete(struct engine *e, struct queue *q, struct group *g, bool keep_registration, struct engine_result *r)
{
    if (g == NULL || (!g->registered && g->cursor_count == 0)) return false;
    r->changed.lanes += (uint32_t)g->cursor_count;
    struct group old = *g;
    group_retire(e, q, g);
    if (!keep_registration || !old.registered) return true;
    g = group_add(e, q, ++e->group_last, old.name);
    g->registered = true;
    g->conflates = old.conflates;
    g->mode = old.mode;
    g->from_us = old.from_us;
    group_touch(e, g);
    return true;
}

/* At one moment for each queue: what is known under the name from here on is another group (group_retire). */
bool group_delete_apply(struct engine *e, const struct command *c, struct arena *arena, struct engine_result *r)
{
    struct group_delete_command d;
    struct queue *q;
    uint32_t cap = 0, looks = 0;
    if (!group_delete_decode(c, &d)) return false;
    if (d.queue.len > 0) {
        q = queue_find(e, d.tenant, d.queue);
        if (q == NULL || !group_delete(e, q, group_find(e, q, d.group), d.keep_registration, r)) return true;
        r->changed.queues = arena_get(arena, sizeof r->changed.queues[0]);
        r->changed.queues[r->changed.queue_count++] = arena_copy(arena, q->name);
        return true;
    }
    piece_begin(&d.piece, e->queue_last);
    while ((q = queue_piece_next(e, &d.piece, d.tenant, &looks, r)) != NULL) {
        if (!group_delete(e, q, group_find(e, q, d.group), d.keep_registration, r)) continue;
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
    struct queue *q;
    uint32_t looks = 0;
    if (!subscription_decode(c, &s)) return false;
    piece_begin(&s.piece, e->queue_last);
    while ((q = queue_piece_next(e, &s.piece, s.tenant, &looks, r)) != NULL) {
        struct group *g = group_find(e, q, s.group);
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

static bool letters_of_ids(struct engine *e, const struct letters_delete_command *d, struct engine_result *r)
{
    for (uint32_t i = 0; i < d->count; i++) {
        uint64_t sequence;
        struct dead_letter letter;
        memcpy(&sequence, d->sequences + (size_t)i * 8, sizeof sequence);
        uint32_t at = dead_letter_at(e, sequence);
        if (at == 0) continue;
        dead_letter_read(e, at, &letter);
        const struct queue *q = queue_at(e, letter.queue);
        if (q == NULL || !uuid_equal(q->tenant, d->tenant)) continue;
        dead_letter_forget(e, at);
        r->changed.lanes++;
    }
    return true;
}

bool letters_delete_apply(struct engine *e, const struct command *c, struct engine_result *r)
{
    struct letters_delete_command d;
    if (!letters_delete_decode(c, &d)) return false;
    if (d.count > 0) return letters_of_ids(e, &d, r);
    const struct queue *q = queue_find(e, d.tenant, d.queue);
    if (q == NULL) return true;
    if (piece_begin(&d.piece, e->dead_letter_last)) {
        d.piece.queue = q->number;
    } else if (d.piece.queue != q->number) {
        return true; /* deleted since */
    }
    uint64_t after = d.piece.after;
    for (uint32_t looks = 0, at; (at = dead_letter_after(e, q->number, after)) != 0; looks++) {
        struct dead_letter letter;
        dead_letter_read(e, at, &letter);
        if (letter.sequence > d.piece.until) return true;
        if (looks == d.piece.most) {
            piece_end(&d.piece, after, true, r);
            return true;
        }
        after = letter.sequence;
        if (d.group.len > 0 && !slice_equal(group_at(e, letter.group)->name, d.group)) continue;
        dead_letter_forget(e, at);
        r->changed.lanes++;
    }
    return true;
}

bool letter_move_apply(struct engine *e, const struct command *c, uint64_t where, struct arena *arena, struct engine_result *r)
{
    struct letter_move_command m;
    struct push_command push;
    struct push_result pushed;
    uint32_t item;
    if (!letter_move_decode(c, &m)) return false;
    must(push_decode(&m.push, &push));
    uint32_t at = letter_find(e, m.tenant, m.letter);
    r->letter_move.fate = LETTER_GONE;
    if (at == 0) return true;
    r->letter_move.fate = LETTER_DUPLICATE;
    if (push_duplicate(e, &push, &item, &r->letter_move.push.offset)) return true;
    push_do(e, &m.push, &push, where + (uint64_t)(m.push.all.at - c->all.at), arena, &pushed);
    r->letter_move.fate = LETTER_MOVED;
    r->letter_move.push = pushed.items[0];
    dead_letter_forget(e, at);
    return true;
}
