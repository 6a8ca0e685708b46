/* POP: which messages a group may have now, and the claim. Also the questions the leader asks before it proposes one. */
#include "engine/engine_internal.h"

enum { WINDOW_FULL = 100, PIECES_A_BLOCK = 16 };
#define LEASE_DEFAULT_US INT64_C(60000000)

/* ---- what may be delivered ------------------------------------------------------------------------------------------ */

/* delayedProcessing hides what is younger than N seconds. windowBuffer holds a lane back until N seconds after the first message
 * that waits there, or until about 100 wait. */
void visible_get(const struct engine *e, const struct queue *q, const struct partition *p, uint64_t from, int64_t now_us,
                 struct visible *out)
{
    int64_t delay_us = (int64_t)q->options.numbers[OPTION_DELAYED_PROCESSING] * 1000000;
    int64_t window_us = (int64_t)q->options.numbers[OPTION_WINDOW_BUFFER] * 1000000;
    struct run r;
    *out = (struct visible){.first = from, .end = p->tail};
    if (from >= p->tail) return;
    if (delay_us > 0 && p->last_created_us > now_us - delay_us) {
        out->end = run_offset_at(e, p, now_us - delay_us + 1);
        if (out->end <= from && run_find(e, p, from, &r)) out->due_us = r.created_us + delay_us;
    }
    if (window_us > 0 && out->end > from && p->tail - from < WINDOW_FULL && p->last_created_us > now_us - window_us) {
        if (run_find(e, p, from, &r) && r.created_us + window_us > now_us) {
            out->end = from;
            out->due_us = r.created_us + window_us;
        }
    }
    if (out->end < from) out->end = from;
}

static uint64_t next_wanted(const struct cursor *c, const struct partition *p)
{
    uint64_t next = (uint64_t)(c->committed + 1);
    return next > p->start ? next : p->start;
}

/* ---- claiming ------------------------------------------------------------------------------------------------------- */

struct pop_work {
    struct engine *e;
    const struct pop_command *pop;
    struct arena *arena;
    struct pop_result *r;
    uint32_t claims_max, batch_left;
    int64_t bytes_left;
};

static void piece_add(struct pop_work *w, struct claim *c, uint32_t *cap, const struct delivery_piece *piece)
{
    if (c->piece_count == *cap) {
        uint32_t grown = *cap == 0 ? 1 : *cap * 4;
        struct delivery_piece *pieces = arena_get(w->arena, grown * sizeof pieces[0]);
        if (c->piece_count > 0) memcpy(pieces, c->pieces, c->piece_count * sizeof pieces[0]);
        c->pieces = pieces;
        *cap = grown;
    }
    c->pieces[c->piece_count++] = *piece;
    c->message_count += piece->count;
}

/* Collects from <= o < end, up to the budgets; at least one message. */
static void claim_collect(struct pop_work *w, const struct partition *p, uint64_t from, uint64_t end, struct claim *c)
{
    uint32_t cap = 0;
    struct run r;
    while (from < end && w->batch_left > 0 && (c->message_count == 0 || w->bytes_left > 0)) {
        must(run_find(w->e, p, from, &r));
        uint64_t n = run_end(&r) < end ? run_end(&r) - from : end - from;
        if (n > w->batch_left) n = w->batch_left;
        uint64_t each = (r.bytes & RUN_BYTES_MASK) / r.count + 1;
        if (w->bytes_left < (int64_t)(n * each)) {
            uint64_t fit = w->bytes_left > 0 ? (uint64_t)w->bytes_left / each : 0;
            n = fit > 0 ? fit : c->message_count == 0 ? 1 : 0;
            if (n == 0) break;
        }
        struct delivery_piece piece = {.where = r.where,
                                       .block_bytes = r.block_bytes,
                                       .count = (uint32_t)n,
                                       .first_offset = from,
                                       .item0 = r.item0 + (uint32_t)(from - r.first),
                                       .created_us = r.created_us};
        piece_add(w, c, &cap, &piece);
        w->batch_left -= (uint32_t)n;
        w->bytes_left -= (int64_t)(n * each);
        from += n;
    }
}

static int64_t lease_length_us(const struct pop_work *w, const struct queue *q)
{
    if (w->pop->lease_us > 0) return w->pop->lease_us;
    int32_t seconds = q->options.numbers[OPTION_LEASE_TIME];
    if (w->pop->scope == POP_DISCOVERY || seconds <= 0) return LEASE_DEFAULT_US;
    return (int64_t)seconds * 1000000;
}

static void cursor_claim_leased(struct pop_work *w, struct queue *q, uint32_t at, struct claim *claim)
{
    struct engine *e = w->e;
    struct cursor *c = cursor_at(e, at);
    c->attempt = c->attempt > 0 && c->attempt_start == claim->first_offset ? c->attempt + 1 : 1;
    c->attempt_start = claim->first_offset;
    claim->attempt = c->attempt;
    lease_grant(e, at, w->pop->lease_id, claim->first_offset, claim->last_offset, e->log_us + lease_length_us(w, q));
    cursor_settle(e, at);
}

static void cursor_claim_committed(struct pop_work *w, uint32_t at, struct claim *claim)
{
    struct engine *e = w->e;
    struct cursor *c = cursor_at(e, at);
    cursor_unlist(e, at);
    if (c->lease != 0) lease_drop(e, at);
    claim->attempt = 1;
    c->committed = (int64_t)claim->last_offset;
    c->attempt = 0;
    c->retries = 0;
    cursor_settle(e, at);
    run_trim(e, lane_open(e, c->partition));
}

/* Claims what the cursor may have. False: nothing now; it has been put where it waits. */
static bool cursor_claim(struct pop_work *w, struct queue *q, struct group *g, uint32_t at)
{
    struct engine *e = w->e;
    struct cursor *c = cursor_at(e, at);
    struct partition *p = lane_open(e, c->partition);
    struct visible v;
    cursor_seed(e, g, p, c);
    cursor_touch(e, at);
    visible_get(e, q, p, next_wanted(c, p), e->wall_us, &v);
    if (v.first >= v.end) {
        if (v.due_us > 0) {
            cursor_delay(e, at, v.due_us);
        } else {
            cursor_settle(e, at);
        }
        return false;
    }
    struct claim *claim = &w->r->claims[w->r->count];
    *claim = (struct claim){.partition = p->number};
    uint64_t from = g->conflates ? v.end - 1 : v.first;
    claim_collect(w, p, from, v.end, claim);
    claim->partition_name = arena_copy(w->arena, partition_name(p));
    claim->first_offset = from;
    claim->last_offset = from + claim->message_count - 1;
    c->flags |= CURSOR_CLAIMED;
    p->last_lease_s = (uint32_t)(e->wall_us / 1000000);
    partition_touch(e, p);
    if (w->pop->auto_ack) {
        cursor_claim_committed(w, at, claim);
    } else {
        cursor_claim_leased(w, q, at, claim);
    }
    w->r->count++;
    w->r->messages += claim->message_count;
    return true;
}

static bool work_open(const struct pop_work *w)
{
    return w->r->count < w->claims_max && w->batch_left > 0 && w->bytes_left > 0;
}

static void group_claim(struct pop_work *w, struct queue *q, struct group *g)
{
    enum { LOOKS_MAX = 512, SCAN_MAX = 1024 };
    uint32_t unseen = SCAN_MAX; /* lanes that may be looked at */
    for (int looks = 0; looks < LOOKS_MAX && work_open(w); looks++) {
        if (g->ready_head == 0) group_expire(w->e, g, w->claims_max - w->r->count);
        if (g->ready_head == 0) group_scan(w->e, g, w->claims_max - w->r->count, &unseen);
        if (g->ready_head == 0) return;
        cursor_claim(w, q, g, g->ready_head);
    }
}

/* ---- groups --------------------------------------------------------------------------------------------------------- */

static void subscription_set(struct engine *e, struct group *g, const struct pop_command *pop)
{
    bool all = pop->mode == SUBSCRIBE_ALL || group_is_queue_mode(g);
    g->mode = all ? SUBSCRIBE_ALL : pop->mode;
    g->from_us = all ? 0 : pop->mode == SUBSCRIBE_NEW ? e->wall_us : pop->from_us;
}

static struct group *group_obtain(struct engine *e, struct queue *q, const struct pop_command *pop)
{
    struct group *g = group_find(e, q, pop->group);
    if (g != NULL) return g;
    g = group_add(e, q, ++e->group_last, pop->group);
    subscription_set(e, g, pop);
    group_touch(e, g);
    return g;
}

static struct group *group_register(struct engine *e, struct queue *q, const struct pop_command *pop)
{
    struct group *g = group_obtain(e, q, pop);
    if (g->registered) return g;
    subscription_set(e, g, pop);
    g->registered = true;
    g->conflates = pop->conflation == CONFLATION_ON && !group_is_queue_mode(g);
    group_touch(e, g);
    return g;
}

static void policy_note(struct pop_result *r, const struct group *g, uint8_t wish)
{
    bool conflates = g != NULL && g->conflates;
    if (conflates) r->conflates = true;
    if (g != NULL && wish != CONFLATION_ABSENT && (wish == CONFLATION_ON) != conflates) r->conflation_conflict = true;
}

static void pop_queue(struct pop_work *w, struct queue *q)
{
    struct group *g = group_register(w->e, q, w->pop);
    policy_note(w->r, g, w->pop->conflation);
    group_claim(w, q, g);
}

/* A pinned pop of a group that is not registered stores nothing until it delivers: is there something by its own seed? */
static bool pinned_would_claim(struct engine *e, const struct queue *q, const struct partition *p,
                               const struct pop_command *pop, int64_t now_us)
{
    struct visible v;
    uint64_t from = p->start;
    bool all = pop->mode == SUBSCRIBE_ALL || slice_is(pop->group, QUEUE_MODE_GROUP);
    if (!all) from = run_offset_at(e, p, pop->mode == SUBSCRIBE_NEW ? now_us : pop->from_us);
    visible_get(e, q, p, from, now_us, &v);
    return v.first < v.end;
}

static void pop_pinned(struct pop_work *w)
{
    struct engine *e = w->e;
    const struct pop_command *pop = w->pop;
    struct queue *q = queue_find(e, pop->tenant, pop->queue);
    struct partition *p = q == NULL ? NULL : partition_find(e, q, pop->partition);
    if (p == NULL) return;
    struct group *g = group_find(e, q, pop->group);
    if (pop->conflation == CONFLATION_ON && (g == NULL || !g->registered)) g = group_register(e, q, pop);
    policy_note(w->r, g, pop->conflation);
    uint32_t at = g == NULL ? 0 : cursor_find(e, p, g->number);
    if (at == 0) {
        bool registered = g != NULL && g->registered;
        if (!registered && !pinned_would_claim(e, q, p, pop, e->wall_us)) return;
        if (g == NULL) g = group_obtain(e, q, pop);
        at = cursor_add(e, p, g);
        if (!registered) {
            /* This lane starts as this request says, whatever other lanes of the unregistered group did. */
            struct group seed = {.mode = SUBSCRIBE_ALL};
            if (!group_is_queue_mode(g) && pop->mode != SUBSCRIBE_ALL) seed.mode = SUBSCRIBE_FROM;
            seed.from_us = pop->mode == SUBSCRIBE_NEW ? e->wall_us : pop->from_us;
            cursor_seed(e, &seed, p, cursor_at(e, at));
            cursor_at(e, at)->flags |= CURSOR_SEEDED;
        }
        cursor_settle(e, at);
    }
    struct cursor *c = cursor_at(e, at);
    if (c->lease != 0 && lease_live(e, lease_at(e, c->lease))) return;
    cursor_claim(w, q, g, at);
}

static bool label_fits(struct slice wanted, struct slice label)
{
    return wanted.len == 0 || slice_equal(wanted, label);
}

static bool discovers(const struct pop_command *pop, const struct queue *q)
{
    return uuid_equal(q->tenant, pop->tenant) && label_fits(pop->name_space, q->options.name_space) &&
           label_fits(pop->task, q->options.task);
}

static void pop_discovery(struct pop_work *w)
{
    for (uint32_t n = 1; n <= w->e->queue_last; n++) {
        struct queue *q = queue_at(w->e, n);
        if (q != NULL && discovers(w->pop, q)) pop_queue(w, q);
    }
}

void pop_do(struct engine *e, const struct pop_command *pop, struct arena *arena, struct pop_result *out)
{
    struct pop_work w = {.e = e, .pop = pop, .arena = arena, .r = out, .batch_left = pop->batch, .bytes_left = POP_BYTES_MAX};
    if (pop->bytes_max > 0) w.bytes_left = pop->bytes_max;
    w.claims_max = pop->scope == POP_PARTITION ? 1 : pop->partitions;
    out->claims = arena_get(arena, w.claims_max * sizeof out->claims[0]);
    if (pop->scope == POP_PARTITION) {
        pop_pinned(&w);
    } else if (pop->scope == POP_QUEUE) {
        pop_queue(&w, queue_obtain(e, pop->tenant, pop->queue));
    } else {
        pop_discovery(&w);
    }
}

bool pop_apply(struct engine *e, const struct command *c, struct arena *arena, struct engine_result *r)
{
    struct pop_command pop;
    if (!pop_decode(c, &pop)) return false;
    pop_do(e, &pop, arena, &r->pop);
    return true;
}

/* ---- forecasts ------------------------------------------------------------------------------------------------------ */

static bool heap_due(const struct heap *h, int64_t now_us)
{
    struct heap_node *n = heap_min(h);
    return n != NULL && n->key <= now_us;
}

static bool group_claimable(const struct engine *e, const struct group *g, struct engine_now now)
{
    const struct queue *q = queue_at(e, g->queue);
    if (q == NULL) return false;
    return g->ready_count > 0 || heap_due(&g->leases, now.log_us) || heap_due(&g->delays, group_delay_now(g, now.wall_us)) ||
           (g->registered && g->scan != q->partition_last);
}

static enum pop_forecast forecast_queue(const struct engine *e, const struct queue *q, const struct pop_command *p,
                                        struct engine_now now)
{
    const struct group *g = q == NULL ? NULL : group_find(e, q, p->group);
    if (g != NULL && g->registered) return group_claimable(e, g, now) ? POP_CLAIMABLE : POP_NOTHING;
    return POP_REGISTERS;
}

static enum pop_forecast forecast_pinned(struct engine *e, const struct pop_command *p, struct engine_now now)
{
    const struct queue *q = queue_find(e, p->tenant, p->queue);
    const struct partition *part = q == NULL ? NULL : partition_find(e, q, p->partition);
    if (part == NULL) return POP_NOTHING;
    const struct group *g = group_find(e, q, p->group);
    if (p->conflation == CONFLATION_ON && (g == NULL || !g->registered)) return POP_REGISTERS;
    uint32_t at = g == NULL ? 0 : cursor_find(e, part, g->number);
    if (at == 0) {
        if (g != NULL && g->registered) return part->tail > part->start ? POP_CLAIMABLE : POP_NOTHING;
        return pinned_would_claim(e, q, part, p, now.wall_us) ? POP_CLAIMABLE : POP_NOTHING;
    }
    const struct cursor *c = cursor_at(e, at);
    if (c->lease != 0 && lease_at(e, c->lease)->expiry_us > now.log_us) return POP_NOTHING;
    struct visible v;
    if (!cursor_pending(c, part)) return POP_NOTHING;
    visible_get(e, q, part, next_wanted(c, part), now.wall_us, &v);
    return v.first < v.end ? POP_CLAIMABLE : POP_NOTHING;
}

enum pop_forecast engine_pop_forecast(struct engine *e, const struct pop_command *p, struct engine_now now)
{
    if (p->scope == POP_PARTITION) return forecast_pinned(e, p, now);
    if (p->scope == POP_QUEUE) return forecast_queue(e, queue_find(e, p->tenant, p->queue), p, now);
    enum pop_forecast best = POP_NOTHING;
    for (uint32_t n = 1; n <= e->queue_last; n++) {
        const struct queue *q = queue_at(e, n);
        if (q == NULL || !discovers(p, q)) continue;
        enum pop_forecast f = forecast_queue(e, q, p, now);
        if (f == POP_CLAIMABLE) return f;
        if (f == POP_REGISTERS) best = f;
    }
    return best;
}

uint32_t engine_group_find(struct engine *e, struct uuid tenant, struct slice queue, struct slice group)
{
    const struct queue *q = queue_find(e, tenant, queue);
    const struct group *g = q == NULL ? NULL : group_find(e, q, group);
    /* One that was deleted has no more than its number. */
    return g == NULL || (!g->registered && g->cursor_count == 0) ? 0 : g->number;
}

/* Nodes of a heap with key <= now, counting up to `limit`: a walk of the top of the tree only. */
static uint32_t heap_count_due(const struct heap *h, uint32_t at, int64_t now_us, uint32_t limit)
{
    if (limit == 0 || at >= h->count || h->nodes[at]->key > now_us) return 0;
    uint32_t n = 1;
    n += heap_count_due(h, 2 * at + 1, now_us, limit - n);
    if (n < limit) n += heap_count_due(h, 2 * at + 2, now_us, limit - n);
    return n;
}

uint32_t engine_group_ready(struct engine *e, uint32_t group_number, struct engine_now now, uint32_t limit)
{
    const struct group *g = group_at(e, group_number);
    const struct queue *q = g == NULL ? NULL : queue_at(e, g->queue);
    if (q == NULL) return 0;
    uint32_t n = g->ready_count < limit ? g->ready_count : limit;
    n += heap_count_due(&g->leases, 0, now.log_us, limit - n);
    n += heap_count_due(&g->delays, 0, group_delay_now(g, now.wall_us), limit - n);
    if (n < limit && g->registered && g->scan != q->partition_last) {
        uint32_t unseen = q->partition_last - g->scan; /* at most so many of its lanes */
        if (unseen > q->partition_count) unseen = q->partition_count;
        n += unseen < limit - n ? unseen : limit - n;
    }
    return n;
}

static int64_t heap_wait_us(const struct heap *h, int64_t now_us)
{
    struct heap_node *n = heap_min(h);
    if (n == NULL) return -1;
    return n->key > now_us ? n->key - now_us : 0;
}

int64_t engine_group_due_us(struct engine *e, uint32_t group_number, struct engine_now now)
{
    const struct group *g = group_at(e, group_number);
    const struct queue *q = g == NULL ? NULL : queue_at(e, g->queue);
    if (q == NULL) return -1;
    if (group_claimable(e, g, now)) return 0;
    int64_t lease_us = heap_wait_us(&g->leases, now.log_us),
            delay_us = heap_wait_us(&g->delays, group_delay_now(g, now.wall_us));
    if (lease_us < 0 || delay_us < 0) return lease_us < 0 ? delay_us : lease_us;
    return lease_us < delay_us ? lease_us : delay_us;
}

bool engine_push_arms(struct engine *e, uint32_t group_number, struct slice partition, struct engine_now now)
{
    const struct group *g = group_at(e, group_number);
    const struct queue *q = g == NULL ? NULL : queue_at(e, g->queue);
    if (q == NULL) return false;
    if (q->options.numbers[OPTION_DELAYED_PROCESSING] > 0 || q->options.numbers[OPTION_WINDOW_BUFFER] > 0) return false;
    uint32_t away;
    const struct partition *p = partition_find_here(e, q, partition, &away);
    if (away != 0) return g->registered || g->cursor_count > 0; /* at rest: whatever cursors it has are idle */
    uint32_t at = p == NULL ? 0 : cursor_find(e, p, g->number);
    if (at == 0) return g->registered;
    const struct cursor *c = cursor_at(e, at);
    if (c->state == CURSOR_IDLE) return true;
    return c->state == CURSOR_LEASED && lease_at(e, c->lease)->expiry_us <= now.log_us;
}

void engine_autopilot(struct engine *e, struct pop_command *p, bool choose_batch, bool choose_partitions, struct engine_now now)
{
    const struct queue *q = queue_find(e, p->tenant, p->queue);
    const struct group *g = q == NULL ? NULL : group_find(e, q, p->group);
    if (g != NULL && g->conflates) return;
    uint32_t ready = g == NULL ? 1 : engine_group_ready(e, g->number, now, POP_PARTITIONS_MAX);
    if (ready < 1) ready = 1;
    /* Few lanes ready: a large batch from each. Many: more lanes a pop, so that one call drains about 1,000 messages. */
    if (choose_partitions) p->partitions = ready;
    if (choose_batch) p->batch = ready * 100 > 1000 ? 1000 : ready * 100;
}

void engine_pop_policy(struct engine *e, const struct pop_command *p, bool *conflates, bool *conflict)
{
    struct pop_result r = {0};
    const struct queue *q = queue_find(e, p->tenant, p->queue);
    policy_note(&r, q == NULL ? NULL : group_find(e, q, p->group), p->conflation);
    *conflates = r.conflates;
    *conflict = r.conflation_conflict;
}
