/* Do the counters say what the tables hold? For tests and simulations. */
#include <stdlib.h>

#include "engine/engine_internal.h"
#include "engine/row.h"

struct sums {
    struct engine *e;
    struct segments live[HOME_COUNT];
    uint64_t messages, bytes, next;
    bool gap, moved;
};

static void live_add(struct sums *s, uint64_t where, uint64_t bytes)
{
    segments_hold(s->e, s->live, where, bytes);
}

static void run_count_up(void *ctx, const struct run *r)
{
    struct sums *s = ctx;
    if (r->first != s->next) s->gap = true;
    s->next = run_end(r);
    s->messages += r->count;
    s->bytes += r->bytes & RUN_BYTES_MASK;
    live_add(s, r->where, r->bytes & RUN_BYTES_MASK);
}

static const char *queue_check(struct sums *s, const struct queue *q)
{
    uint64_t messages = 0, bytes = 0;
    struct lane_walk w;
    const struct partition *p;
    const char *wrong = NULL;
    lane_walk_begin(&w, s->e, q->partition_first);
    while (wrong == NULL && (p = lane_walk_next(&w)) != NULL) {
        s->messages = s->bytes = 0;
        s->next = p->start;
        run_each(s->e, p, run_count_up, s);
        if (s->gap || (s->next != p->tail && p->start != p->tail)) wrong = "a lane's runs have a gap";
        if (s->bytes != p->bytes) wrong = "a lane's bytes are not those of its runs";
        if (s->messages != p->tail - p->start) wrong = "a lane's messages are not those of its runs";
        messages += s->messages;
        bytes += s->bytes;
    }
    lane_walk_end(&w);
    if (wrong != NULL) return wrong;
    if (messages != q->messages) return "a queue's messages are not those of its lanes";
    return bytes == q->bytes ? NULL : "a queue's bytes are not those of its lanes";
}

static const char *segments_compare(const struct engine *e, int home, const struct segments *live)
{
    uint64_t held = 0, wanted = 0, top = home == HOME_ARCHIVE ? PLACE_ARCHIVE : 0;
    for (uint64_t i = 0; i < e->segments[home].count; i++) held += e->segments[home].bytes[i];
    for (uint64_t i = 0; i < live->count; i++) {
        wanted += live->bytes[i];
        if (engine_segment_live(e, top | (live->base + i) << e->options.segment_shift) != live->bytes[i])
            return "a segment's live bytes are wrong";
    }
    return held == wanted ? NULL : "a segment is held by nothing";
}

struct rest_sums {
    const struct engine *e;
    uint64_t rows, bytes, of_space;
    size_t space_len;
    bool wrong;
    char space[KV_PATH_MAX];
};

static void rest_space_check(struct rest_sums *s)
{
    if (s->of_space != kv_space_away(s->e, slice_make(s->space, s->space_len))) s->wrong = true;
    s->of_space = 0;
}

static void rest_count_up(void *ctx, struct slice path, struct slice stored)
{
    struct rest_sums *s = ctx;
    struct kv_stored row;
    if (!row_kv_read(stored, &row)) s->wrong = true;
    size_t space_len = 17U + row.space_len;
    if (s->rows > 0 && (s->space_len != space_len || memcmp(s->space, path.at, space_len) != 0)) rest_space_check(s);
    memcpy(s->space, path.at, space_len);
    s->space_len = space_len;
    s->of_space++;
    s->rows++;
    s->bytes += path.len + row.value.len;
}

static const char *kv_check(const struct engine *e)
{
    uint64_t bytes = 0, absent = 0, unstored = 0, rows = 0;
    struct tree_place place = tree_seek(&e->kv_order, slice_of(""));
    for (uint32_t at; (at = tree_next(&place)) != 0;) {
        const struct kv_row *r = kv_row_at(e, at);
        bool waits = r->flags & (KV_ROW_DIRTY | KV_ROW_UNSTORED);
        bytes += (uint64_t)r->path_len + r->value_len;
        if (kv_row_may_rest(r)) rows += kv_row_cost(r);
        if (waits) unstored += r->value_len;
        if (kv_value_absent(r)) absent += r->value_len;
        if (waits && kv_value_absent(r)) return "a KV value that is not stored is not in memory";
    }
    struct rest_sums rest = {.e = e};
    kv_rest_each((struct engine *)(uintptr_t)e, rest_count_up, &rest);
    rest_space_check(&rest);
    if (rest.wrong) return "the KV rows at rest of a namespace are not counted right";
    if (rest.rows != e->kv_away || rest.bytes != e->kv_away_bytes) return "the KV rows at rest are not counted right";
    if (kv_due_check((struct engine *)(uintptr_t)e) != e->kv_away_due) return "when a KV row at rest expires is not found";
    if (rows != e->kv_row_bytes) return "the KV records that may leave are not counted right";
    bytes += rest.bytes;
    if (bytes != e->kv_bytes || absent != e->kv_absent_bytes) return "the bytes of KV rows are not counted right";
    return unstored == e->kv_unstored_bytes ? NULL : "the bytes of KV values that are not stored are not counted right";
}

static void timer_count_up(void *ctx, const struct timer *t, const struct timer_row *row, struct slice value)
{
    struct sums *s = ctx;
    (void)value;
    live_add(s, t->where, row->item_bytes);
    s->moved = s->moved || t->where != row->where;
}

static const char *timers_check(struct sums *s)
{
    struct engine *e = s->e;
    struct timer_tally tally = {0};
    uint64_t bytes = 0;
    struct tree_place place = tree_seek(&e->timer_order, slice_of(""));
    for (uint32_t at; (at = tree_next(&place)) != 0;) {
        const struct timer_body *b = timer_at(e, at)->body;
        live_add(s, timer_at(e, at)->where, b->item_bytes);
        bytes += sizeof *b + b->path_len + b->partition_len + b->transaction_len;
    }
    if (bytes != e->timer_bytes) return "the bytes of timers in memory are not counted right";
    if (timers_at_rest(e, timer_count_up, s) + e->timer_order.count != e->timers.used) return "a timer at rest has no row";
    if (s->moved) return "a timer at rest is elsewhere than its row says";
    while (timers_tally(e, slice_of(""), 7, &tally)) continue;
    return tally.count == e->timers.used ? NULL : "a timer is not found by its path";
}

const char *engine_check(struct engine *e)
{
    struct sums s = {.e = e};
    const char *wrong = NULL;
    if (e->reaping.count > 0) return NULL; /* half of a queue's are gone */
    for (uint32_t n = 1; n <= e->queue_last && wrong == NULL; n++) {
        if (queue_at(e, n) != NULL) wrong = queue_check(&s, queue_at(e, n));
    }
    struct dead_letter d = {0};
    for (uint32_t at; (at = dead_letter_after(e, 0, d.sequence)) != 0;) {
        dead_letter_read(e, at, &d);
        live_add(&s, d.where, LETTER_HOLDS);
    }
    if (wrong == NULL) wrong = timers_check(&s);
    for (int home = 0; home < HOME_COUNT; home++) {
        if (wrong == NULL) wrong = segments_compare(e, home, &s.live[home]);
        free(s.live[home].bytes);
    }
    if (wrong == NULL) wrong = kv_check(e);
    return wrong;
}
