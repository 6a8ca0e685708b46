/* ACK, EXTEND, CLAIM_RETURN: what happens to a lease.
 *
 * One call's items are taken in groups of (partition, lease), each against the state the one before left:
 *
 *   1. no cursor that ever delivered       -> refuse all
 *   2. fenced and not the live lease       -> the repeat rule, else refuse all
 *   3. resolve each item to an offset in (committed, batch end]
 *   4. no signal and everything delivered is named -> done, lease released
 *   5. else the lowest signal is the head: completed below it is cumulative, the head decides
 *
 * All of this is worked out on a copy of the cursor (struct settling) and carried out afterwards: at once for an ACK; for a step when
 * nothing else in it was refused. In a step the repeat rule does not hold and one refused item refuses all.
 */
#include <stdlib.h>

#include "engine/engine_internal.h"

enum { SCAN_MAX = 65536 };
#define NOT_FOUND UINT64_MAX

struct resolved {
    struct ack_item item;
    struct ack_outcome *out;
    uint64_t offset; /* in (committed, end], or NOT_FOUND */
    bool below;      /* known at or below committed */
    uint32_t order;
};

struct burial {
    struct dead_letter letter;
    struct burial *next;
};

/* What will become of a cursor. */
struct settling {
    struct settling *next;
    uint32_t at; /* the cursor */
    struct queue *q;
    int64_t committed;
    uint64_t attempt_start;
    uint32_t attempt;
    uint16_t retries;
    bool leased, remembered; /* still holds its lease; history is to be set */
    struct lease lease;      /* as it was; only when it had one */
    struct history history;
    struct burial *burials, **burials_end;
};

struct ack_plan {
    struct engine *e;
    struct arena *arena;
    bool whole;                    /* of a step */
    struct settling *first, **end; /* a step's, in order of first appearance */
    struct settling **buckets;     /* by cursor */
    uint32_t bucket_mask;
};

struct ack_group {
    struct ack_plan *plan;
    struct engine *e;
    struct partition *p;
    struct queue *q;
    struct group *g;
    struct settling *c;
    struct resolved *items;
    uint32_t count;
    bool fenced;
    struct uuid lease;
    uint64_t first, end;         /* first <= o < end may be acked */
    int64_t since_ms;            /* nothing from `first` on was created before */
    struct resolved **by_offset; /* the resolved ones, ascending */
    uint32_t by_offset_count;
};

/* ---- resolving ------------------------------------------------------------------------------------------------------ */

/* An id that is a message's own id: its offset is in it. */
static bool resolve_auto(const struct ack_group *a, struct slice id, uint64_t from, uint64_t to, uint64_t *out)
{
    struct uuid u;
    uint64_t offset;
    int64_t created_ms;
    struct run r;
    if (!uuid_parse(id, &u) || !message_id_parse(a->e->seed, u, a->p->number, &offset, &created_ms)) return false;
    if (offset < from || offset >= to || !run_find(a->e, a->p, offset, &r)) return false;
    if (!(r.bytes & RUN_BYTES_AUTO) || r.created_us / 1000 != created_ms) return false;
    *out = offset;
    return true;
}

static bool resolve_key(const struct ack_group *a, struct dedup_key k, struct slice id, uint64_t from, uint64_t to,
                        uint64_t *out)
{
    struct dedup_hit hit;
    int64_t since_ms = from >= a->first ? a->since_ms : INT64_MIN;
    if (dedup_find(a->e->dedup, k, from, to, since_ms, a->e->wall_us / 1000, &hit)) {
        *out = hit.offset;
        return true;
    }
    return resolve_auto(a, id, from, to, out);
}

static bool resolve_one(const struct ack_group *a, struct slice id, uint64_t from, uint64_t to, uint64_t *out)
{
    return resolve_key(a, dedup_key(a->e->seed, a->p->number, id), id, from, to, out);
}

static uint64_t hash_of(struct slice id)
{
    return hash64(id, 0);
}

/* Ids whose index entries are past: read from the messages themselves. Looks at `run`'s messages from `from` on. */
static void resolve_in_run(struct ack_group *a, const struct run *r, uint64_t from, uint64_t to, const uint64_t *hashes)
{
    struct push_group g;
    struct push_item m;
    char *block = malloc(r->block_bytes);
    must(block != NULL);
    a->e->options.cold.block(a->e->options.cold.ctx, r->where, r->block_bytes, block);
    must(push_group_of(slice_make(block, r->block_bytes), &g) && r->item0 + r->count <= g.item_count);
    for (uint64_t o = from; o < to; o++) {
        push_group_item(&g, r->item0 + (uint32_t)(o - r->first), &m);
        if (!(m.flags & ITEM_TRANSACTION)) continue;
        uint64_t h = hash_of(m.transaction);
        for (uint32_t i = 0; i < a->count; i++) {
            struct resolved *item = &a->items[i];
            if (item->offset == NOT_FOUND && hashes[i] == h && slice_equal(item->item.transaction, m.transaction))
                item->offset = o;
        }
    }
    free(block);
}

static void resolve_from_messages(struct ack_group *a)
{
    uint32_t missing = 0;
    uint64_t *hashes = malloc(a->count * sizeof hashes[0]);
    must(hashes != NULL);
    for (uint32_t i = 0; i < a->count; i++) {
        hashes[i] = hash_of(a->items[i].item.transaction);
        missing += a->items[i].offset == NOT_FOUND && !a->items[i].below;
    }
    uint64_t end = a->end - a->first > SCAN_MAX ? a->first + SCAN_MAX : a->end;
    struct run r;
    /* Only what is older than the shortest time ids are kept can be missing from the index. */
    int64_t kept_since_us = a->e->wall_us - (int64_t)DEDUP_KEEP_MIN_MS * 1000;
    for (uint64_t o = a->first; missing > 0 && o < end; o = run_end(&r)) {
        must(run_find(a->e, a->p, o, &r));
        if (r.created_us >= kept_since_us) break;
        if (!(r.bytes & RUN_BYTES_AUTO)) resolve_in_run(a, &r, o, run_end(&r) < end ? run_end(&r) : end, hashes);
    }
    free(hashes);
}

/* Generations of ids that are older than what may be acked need not be asked. Times rise with offsets. Not worth a read. */
static int64_t since_of(const struct ack_group *a)
{
    struct run r;
    if (a->p->run_count == 0 || a->first < a->p->runs[0].first || !run_find(a->e, a->p, a->first, &r)) return INT64_MIN;
    return r.created_us / 1000;
}

static void resolve_all(struct ack_group *a)
{
    enum { PREFETCH = 32 };
    bool missing = false;
    struct dedup_key keys[PREFETCH];
    for (uint32_t i = 0; i < a->count; i++) {
        if (i % PREFETCH == 0) {
            for (uint32_t k = 0; k < PREFETCH && i + k < a->count; k++) {
                keys[k] = dedup_key(a->e->seed, a->p->number, a->items[i + k].item.transaction);
                dedup_prefetch(a->e->dedup, keys[k], a->since_ms, DEDUP_CLASS_MAX);
            }
        }
        struct resolved *r = &a->items[i];
        struct dedup_key key = keys[i % PREFETCH];
        uint64_t ignored;
        r->offset = NOT_FOUND;
        if (resolve_key(a, key, r->item.transaction, a->first, a->end, &r->offset)) continue;
        r->below = a->first > 0 && resolve_key(a, key, r->item.transaction, 0, a->first, &ignored);
        missing |= !r->below;
    }
    if (missing && a->first < a->end) resolve_from_messages(a);
}

static int resolved_compare(const void *x, const void *y)
{
    const struct resolved *a = *(struct resolved *const *)x, *b = *(struct resolved *const *)y;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    return a->order < b->order ? -1 : 1;
}

static void sort_by_offset(struct ack_group *a, struct arena *arena)
{
    bool sorted = true;
    a->by_offset = arena_get(arena, (a->count + 1) * sizeof a->by_offset[0]);
    for (uint32_t i = 0; i < a->count; i++) {
        if (a->items[i].offset == NOT_FOUND) continue;
        if (a->by_offset_count > 0 && a->by_offset[a->by_offset_count - 1]->offset > a->items[i].offset) sorted = false;
        a->by_offset[a->by_offset_count++] = &a->items[i];
    }
    if (!sorted) qsort(a->by_offset, a->by_offset_count, sizeof a->by_offset[0], resolved_compare);
}

/* ---- settling ------------------------------------------------------------------------------------------------------- */

/* What the items say of one offset: a signal beats completed; dlq beats failed beats retry. */
struct said {
    uint64_t offset;
    bool completed, failed, retry, dlq;
    struct resolved *teller; /* item whose error text counts */
};

/* The next offset named at or after place i; `i` moves behind it. False at the end. */
static bool said_next(const struct ack_group *a, uint32_t *i, struct said *out)
{
    if (*i >= a->by_offset_count) return false;
    *out = (struct said){.offset = a->by_offset[*i]->offset};
    for (; *i < a->by_offset_count && a->by_offset[*i]->offset == out->offset; (*i)++) {
        struct resolved *r = a->by_offset[*i];
        uint8_t s = r->item.status;
        out->completed |= s == ACK_COMPLETED;
        out->failed |= s == ACK_FAILED;
        out->retry |= s == ACK_RETRY;
        out->dlq |= s == ACK_DLQ;
        if (s != ACK_COMPLETED && (out->teller == NULL || (out->teller->item.error.len == 0 && r->item.error.len > 0)))
            out->teller = r;
    }
    return true;
}

static bool is_signal(const struct said *s)
{
    return s->dlq || s->failed || s->retry;
}

static bool files_dead_letters(const struct queue *q)
{
    return q->options.numbers[OPTION_DEAD_LETTER_QUEUE] || q->options.numbers[OPTION_DLQ_AFTER_MAX_RETRIES];
}

static struct slice error_text(const struct ack_group *a, const struct said *s)
{
    if (s->teller != NULL && s->teller->item.has_error && s->teller->item.error.len > 0) return s->teller->item.error;
    for (uint32_t i = 0; i < a->count; i++) {
        const struct ack_item *item = &a->items[i].item;
        if (item->status != ACK_COMPLETED && item->has_error && item->error.len > 0) return item->error;
    }
    return slice_of("Retries exhausted");
}

/* Files (or drops) the message at the offset. */
static void offset_bury(struct ack_group *a, const struct said *s)
{
    struct run r;
    if (!files_dead_letters(a->q)) return;
    struct burial *b = arena_get(a->plan->arena, sizeof *b);
    must(run_find(a->e, a->p, s->offset, &r));
    *b = (struct burial){0};
    b->letter = (struct dead_letter){.queue = a->q->number,
                                     .partition = a->p->number,
                                     .group = a->g->number,
                                     .retries = a->c->retries,
                                     .offset = s->offset,
                                     .where = r.where,
                                     .block_bytes = r.block_bytes,
                                     .item = r.item0 + (uint32_t)(s->offset - r.first),
                                     .created_us = r.created_us,
                                     .failed_us = a->e->wall_us,
                                     .error = error_text(a, s)};
    *a->c->burials_end = b;
    a->c->burials_end = &b->next;
    for (uint32_t i = 0; i < a->by_offset_count; i++) {
        if (a->by_offset[i]->offset == s->offset && a->by_offset[i]->item.status != ACK_COMPLETED) {
            a->by_offset[i]->out->dead_lettered = true;
        }
    }
}

static bool budget_spent(const struct ack_group *a)
{
    int32_t limit = a->q->options.numbers[OPTION_RETRY_LIMIT];
    return a->c->retries >= (limit < 0 ? 0 : limit);
}

static void counters_reset(struct settling *c)
{
    c->retries = 0;
    c->attempt = 0;
}

static void lease_release(struct ack_group *a)
{
    if (!a->c->leased) return;
    a->c->leased = false;
    for (uint32_t i = 0; i < a->count; i++) a->items[i].out->lease_released = true;
}

/* The batch is settled to its end: release, remember it for the repeat rule, fresh counters. */
static void batch_finish(struct ack_group *a, bool remember)
{
    if (a->c->leased && remember) {
        const struct lease *l = &a->c->lease;
        a->c->history = (struct history){.id = l->id, .low = l->first, .high = l->last};
        a->c->remembered = true;
    }
    lease_release(a);
    counters_reset(a->c);
}

/* After the head was buried: what else is settled above it, until something must come back. */
static void settle_upward(struct ack_group *a, uint32_t next, uint64_t head)
{
    uint64_t top_completed = 0, settled = head;
    bool any_completed = false;
    for (uint32_t i = next; i < a->by_offset_count; i++) {
        if (a->by_offset[i]->item.status == ACK_COMPLETED) {
            top_completed = a->by_offset[i]->offset;
            any_completed = true;
        }
    }
    struct said s;
    bool named = said_next(a, &next, &s);
    for (uint64_t o = head + 1; o < a->end; o++) {
        if (!named || s.offset > o) {
            if (!any_completed || top_completed < o) break;
            /* Not named, a completed one above: everything from here to the next named offset is done. */
            uint64_t until = named && s.offset < top_completed ? s.offset : top_completed;
            o = until - 1;
            settled = o;
            continue;
        }
        if (s.dlq || (s.failed && budget_spent(a))) {
            offset_bury(a, &s);
        } else if (s.failed || s.retry) {
            break;
        }
        settled = o;
        named = said_next(a, &next, &s);
    }
    a->c->committed = (int64_t)settled;
}

static void head_apply(struct ack_group *a, const struct said *head, uint32_t next)
{
    struct settling *c = a->c;
    if (!c->leased) return; /* a signal without any lease changes nothing */
    if (!head->dlq && head->failed && !budget_spent(a)) {
        c->retries++;
        lease_release(a);
    } else if (!head->dlq && !head->failed) {
        lease_release(a);
    } else {
        offset_bury(a, head);
        bool whole;
        uint64_t end = a->end;
        /* The budget stays spent for the messages above that failed in the same call; it is fresh afterwards. */
        settle_upward(a, next, head->offset);
        whole = (uint64_t)(c->committed + 1) >= end;
        batch_finish(a, whole);
    }
}

static bool bit_set(uint64_t *bits, uint64_t i)
{
    bool fresh = (bits[i / 64] & 1ull << i % 64) == 0;
    bits[i / 64] |= 1ull << i % 64;
    return fresh;
}

/* Are the offsets first..last all named when an item names every copy of its id? An id stands more than once in a batch when
 * the dedup window was shorter than the time between the copies. Costs one look-up an id and copy. */
static bool copies_fill(const struct ack_group *a, uint64_t first, uint64_t last, struct arena *arena)
{
    uint64_t left = last - first + 1;
    size_t words = (size_t)(left + 63) / 64;
    uint64_t *bits = arena_get(arena, words * sizeof bits[0]);
    memset(bits, 0, words * sizeof bits[0]);
    for (uint32_t i = 0; i < a->by_offset_count; i++) {
        uint64_t o = a->by_offset[i]->offset;
        if (i > 0 && a->by_offset[i - 1]->offset == o) continue;
        do {
            if (o >= first && o <= last && bit_set(bits, o - first)) left--;
        } while (o < last && resolve_one(a, a->by_offset[i]->item.transaction, o + 1, last + 1, &o));
    }
    return left == 0;
}

static bool all_delivered_named(const struct ack_group *a, struct arena *arena)
{
    uint32_t i = 0;
    struct said s;
    if (!a->c->leased || !a->fenced) return false;
    const struct lease *l = &a->c->lease;
    uint64_t wanted = a->first > l->first ? a->first : l->first;
    bool gap = false;
    while (said_next(a, &i, &s)) {
        if (is_signal(&s)) return false;
        gap |= s.offset > wanted;
        if (s.offset == wanted) wanted++;
    }
    if (!gap && wanted == l->last + 1) return true;
    /* With the last message named the cumulative rule comes to the same. */
    return s.offset < l->last && l->last - wanted < POP_BATCH_MAX && copies_fill(a, wanted, l->last, arena);
}

static void completed_move(struct ack_group *a, uint64_t completed)
{
    struct settling *c = a->c;
    c->committed = (int64_t)completed;
    if (c->leased && completed >= c->lease.last) {
        batch_finish(a, true);
    } else if (c->leased) {
        c->attempt_start = completed + 1; /* the next claim starts here as a further attempt */
    }
}

static void group_settle(struct ack_group *a, struct arena *arena)
{
    if (a->by_offset_count == 0) return;
    if (all_delivered_named(a, arena)) {
        a->c->committed = (int64_t)a->c->lease.last;
        batch_finish(a, true);
        return;
    }
    struct said s, head;
    bool has_head = false, has_completed = false;
    uint64_t completed = 0;
    uint32_t i = 0;
    while (!has_head && said_next(a, &i, &s)) {
        if (is_signal(&s)) {
            head = s;
            has_head = true;
        } else {
            completed = s.offset;
            has_completed = true;
        }
    }
    if (has_head) {
        if (has_completed) a->c->committed = (int64_t)completed;
        head_apply(a, &head, i);
    } else {
        completed_move(a, completed);
    }
}

/* ---- a group of items ----------------------------------------------------------------------------------------------- */

static void refuse_all(struct ack_group *a, enum ack_verdict v)
{
    for (uint32_t i = 0; i < a->count; i++) a->items[i].out->verdict = (uint8_t)v;
}

/* The same ack again after it had settled its batch: success, whoever has the lane now. */
static bool repeat_answer(struct ack_group *a, const struct cursor *c)
{
    bool any = false;
    if (a->plan->whole || c->history == 0) return false;
    const struct history *h = history_at(a->e, c->history);
    if (!uuid_equal(h->id, a->lease)) return false;
    uint64_t high = (int64_t)h->high <= c->committed ? h->high : (uint64_t)c->committed;
    for (uint32_t i = 0; i < a->count; i++) {
        uint64_t offset;
        bool hit = c->committed >= 0 && resolve_one(a, a->items[i].item.transaction, h->low, high + 1, &offset);
        a->items[i].out->verdict = hit ? ACK_OK : ACK_REFUSED_LEASE;
        a->items[i].out->lease_released = hit;
        any |= hit;
    }
    return any;
}

static bool lease_accepts(const struct ack_group *a)
{
    const struct lease *l = &a->c->lease;
    return a->c->leased && uuid_equal(l->id, a->lease) && l->expiry_us >= a->e->log_us;
}

static void verdicts_set(struct ack_group *a)
{
    for (uint32_t i = 0; i < a->count; i++) {
        struct resolved *r = &a->items[i];
        if (r->offset != NOT_FOUND) {
            r->out->verdict = ACK_OK;
        } else {
            r->out->verdict = r->below && r->item.status == ACK_COMPLETED ? ACK_NOOP : ACK_REFUSED_STALE;
        }
    }
}

/* ---- plans ---------------------------------------------------------------------------------------------------------- */

static struct settling *settling_new(struct ack_plan *p, struct queue *q, uint32_t at)
{
    const struct cursor *c = cursor_at(p->e, at);
    struct settling *s = arena_get(p->arena, sizeof *s);
    *s = (struct settling){.at = at,
                           .q = q,
                           .committed = c->committed,
                           .attempt_start = c->attempt_start,
                           .attempt = c->attempt,
                           .retries = c->retries,
                           .leased = c->lease != 0};
    if (c->lease != 0) s->lease = *lease_at(p->e, c->lease);
    s->burials_end = &s->burials;
    return s;
}

/* The cursor as the plan leaves it so far. */
static struct settling *settling_of(struct ack_plan *p, struct queue *q, uint32_t at)
{
    if (!p->whole) return settling_new(p, q, at);
    uint32_t bucket = at * 2654435769U & p->bucket_mask;
    while (p->buckets[bucket] != NULL && p->buckets[bucket]->at != at) bucket = (bucket + 1) & p->bucket_mask;
    if (p->buckets[bucket] == NULL) {
        p->buckets[bucket] = settling_new(p, q, at);
        *p->end = p->buckets[bucket];
        p->end = &p->buckets[bucket]->next;
    }
    return p->buckets[bucket];
}

static void settling_commit(struct engine *e, const struct settling *s)
{
    struct cursor *c = cursor_at(e, s->at);
    for (const struct burial *b = s->burials; b != NULL; b = b->next) {
        dead_letter_add(e, &b->letter);
        queue_touch(e, s->q);
    }
    c->committed = s->committed;
    c->attempt_start = s->attempt_start;
    c->attempt = s->attempt;
    c->retries = s->retries;
    if (c->lease != 0 && !s->leased) {
        cursor_unlist(e, s->at);
        lease_drop(e, s->at);
    }
    if (s->remembered) history_set(e, c, s->history.id, s->history.low, s->history.high);
    cursor_settle(e, s->at);
    run_trim(e, lane_open(e, c->partition));
}

struct ack_plan *ack_plan_new(struct engine *e, uint32_t items_max, struct arena *arena)
{
    struct ack_plan *p = arena_get(arena, sizeof *p);
    uint32_t buckets = 4;
    while (buckets / 2 < items_max) buckets *= 2;
    *p = (struct ack_plan){.e = e, .arena = arena, .whole = true, .bucket_mask = buckets - 1};
    p->buckets = arena_zero(arena, buckets * sizeof p->buckets[0]);
    p->end = &p->first;
    return p;
}

void ack_plan_commit(struct ack_plan *p)
{
    for (const struct settling *s = p->first; s != NULL; s = s->next) settling_commit(p->e, s);
}

/* ---- calls ---------------------------------------------------------------------------------------------------------- */

static void group_ack(struct ack_group *a, struct slice group_name)
{
    struct engine *e = a->e;
    a->q = queue_at(e, a->p->queue);
    a->g = group_find(e, a->q, group_name);
    uint32_t at = a->g == NULL ? 0 : cursor_find(e, a->p, a->g->number);
    if (at == 0 || !(cursor_at(e, at)->flags & CURSOR_CLAIMED)) {
        refuse_all(a, a->fenced ? ACK_REFUSED_LEASE : ACK_REFUSED_STALE);
        return;
    }
    a->c = settling_of(a->plan, a->q, at);
    if (a->fenced && !lease_accepts(a)) {
        if (!repeat_answer(a, cursor_at(e, at))) refuse_all(a, ACK_REFUSED_LEASE);
        return;
    }
    a->first = (uint64_t)(a->c->committed + 1);
    if (a->first < a->p->start) a->first = a->p->start;
    a->end = a->c->leased ? a->c->lease.last + 1 : a->p->tail;
    if (a->end < a->first) a->end = a->first;
    a->since_ms = since_of(a);
    resolve_all(a);
    sort_by_offset(a, a->plan->arena);
    group_settle(a, a->plan->arena);
    verdicts_set(a);
    if (!a->plan->whole) settling_commit(e, a->c);
}

static void number_ack(struct ack_group *a, const struct ack_command *ack)
{
    uint64_t number = a->items[0].item.partition;
    a->p = number <= UINT32_MAX ? partition_at(a->e, (uint32_t)number) : NULL;
    if (a->p == NULL) {
        refuse_all(a, ACK_NO_PARTITION);
    } else if (!uuid_equal(queue_at(a->e, a->p->queue)->tenant, ack->tenant)) {
        refuse_all(a, ACK_FOREIGN_PARTITION);
    } else {
        group_ack(a, ack->group);
    }
}

/* By partition and lease; among equal ones in input order. */
static int place_compare(const void *x, const void *y)
{
    const struct resolved *a = x, *b = y;
    if (a->item.partition != b->item.partition) return a->item.partition < b->item.partition ? -1 : 1;
    if (a->item.fenced != b->item.fenced) return a->item.fenced < b->item.fenced ? -1 : 1;
    int order = a->item.fenced ? memcmp(a->item.lease.bytes, b->item.lease.bytes, sizeof a->item.lease.bytes) : 0;
    if (order != 0) return order;
    return a->order < b->order ? -1 : 1;
}

struct ack_stretch {
    struct resolved *first;
    uint32_t count;
};

static int stretch_compare(const void *x, const void *y)
{
    const struct ack_stretch *a = x, *b = y;
    return a->first->order < b->first->order ? -1 : 1;
}

static bool same_group(const struct ack_item *a, const struct ack_item *b)
{
    return a->partition == b->partition && a->fenced == b->fenced && (!a->fenced || uuid_equal(a->lease, b->lease));
}

/* Items of one (partition, lease) each, the groups in the order in which their first items stand. */
static uint32_t stretches_make(struct resolved *all, uint32_t count, struct ack_stretch *out)
{
    bool one = true;
    for (uint32_t i = 1; i < count && one; i++) one = same_group(&all[0].item, &all[i].item);
    if (!one) qsort(all, count, sizeof all[0], place_compare);
    uint32_t n = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (i == 0 || !same_group(&all[i - 1].item, &all[i].item)) out[n++] = (struct ack_stretch){.first = &all[i]};
        out[n - 1].count++;
    }
    if (n > 1) qsort(out, n, sizeof out[0], stretch_compare);
    return n;
}

static bool verdict_refuses(uint8_t verdict)
{
    return verdict != ACK_OK && verdict != ACK_NOOP;
}

/* False: a step's item *failed is refused, nothing after its group was looked at. */
bool ack_plan_add(struct ack_plan *plan, const struct ack_command *ack, struct ack_outcome *out, uint32_t *failed)
{
    size_t n = ack->item_count == 0 ? 1 : ack->item_count;
    struct resolved *all = arena_get(plan->arena, n * sizeof all[0]);
    struct ack_stretch *stretches = arena_zero(plan->arena, n * sizeof stretches[0]);
    struct slice rest = ack->items;
    for (uint32_t i = 0; i < ack->item_count; i++) {
        all[i] = (struct resolved){.out = &out[i], .order = i};
        must(ack_item_next(&rest, &all[i].item));
    }
    uint32_t count = stretches_make(all, ack->item_count, stretches);
    for (uint32_t i = 0; i < count; i++) {
        const struct resolved *first = stretches[i].first;
        struct ack_group a = {.plan = plan,
                              .e = plan->e,
                              .items = stretches[i].first,
                              .count = stretches[i].count,
                              .fenced = first->item.fenced,
                              .lease = first->item.lease};
        number_ack(&a, ack);
        for (uint32_t k = 0; plan->whole && k < a.count; k++) {
            if (!verdict_refuses(a.items[k].out->verdict)) continue;
            *failed = a.items[k].order;
            return false;
        }
    }
    return true;
}

bool ack_apply(struct engine *e, const struct command *c, struct arena *arena, struct engine_result *r)
{
    struct ack_command ack;
    uint32_t ignored;
    if (!ack_decode(c, &ack)) return false;
    struct ack_plan plan = {.e = e, .arena = arena};
    r->ack.count = ack.item_count;
    r->ack.items = arena_zero(arena, (ack.item_count == 0 ? 1U : ack.item_count) * sizeof r->ack.items[0]);
    return ack_plan_add(&plan, &ack, r->ack.items, &ignored);
}

/* ---- leases by id --------------------------------------------------------------------------------------------------- */

bool extend_apply(struct engine *e, const struct command *c, struct engine_result *r)
{
    struct extend_command x;
    if (!extend_decode(c, &x)) return false;
    int64_t wanted_us = e->log_us + x.seconds * 1000000, earliest_us = INT64_MAX;
    for (uint32_t at = lease_find(e, x.lease); at != 0; at = lease_at(e, at)->next_same_id) {
        struct lease *l = lease_at(e, at);
        struct cursor *cursor = cursor_at(e, l->cursor);
        if (!cursor_is_live(e, l->cursor)) continue;
        struct partition *p = partition_at(e, cursor->partition);
        if (p == NULL || !uuid_equal(queue_at(e, p->queue)->tenant, x.tenant) || !lease_live(e, l)) continue;
        if (l->expiry_us < wanted_us) {
            l->expiry_us = wanted_us;
            cursor_settle(e, l->cursor);
        }
        if (l->expiry_us < earliest_us) earliest_us = l->expiry_us;
        r->extend.renewed++;
    }
    if (r->extend.renewed > 0) r->extend.expires_wall_us = e->wall_us + (earliest_us - e->log_us);
    return true;
}

/* The caller of a pop is gone: as if it had not been claimed. */
bool claim_return_apply(struct engine *e, const struct command *c)
{
    struct uuid id;
    if (!claim_return_decode(c, &id)) return false;
    /* Highest lane first, so that the lowest ends at the head: the order may not depend on how the leases are chained. */
    for (;;) {
        uint32_t last = 0;
        for (uint32_t at = lease_find(e, id); at != 0; at = lease_at(e, at)->next_same_id) {
            uint32_t cursor = lease_at(e, at)->cursor;
            if (!cursor_is_live(e, cursor)) continue;
            if (last == 0 || cursor_at(e, cursor)->partition > cursor_at(e, last)->partition) last = cursor;
        }
        if (last == 0) return true;
        if (cursor_at(e, last)->attempt > 0) cursor_at(e, last)->attempt--;
        cursor_unlist(e, last);
        lease_drop(e, last);
        cursor_settle_first(e, last);
    }
}
