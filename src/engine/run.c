/* Append runs: which messages a partition holds and where their bytes are. The newest are in memory, the others in the store: a row
 * holds the runs that one cut found new, under the key of its last offset. */
#include <stdlib.h>

#include "engine/engine_internal.h"
#include "engine/row.h"

/* Runs in memory although stored: what consumers near the tail want next. A lane keeps so many; with more than the budget has room for in
 * all (three quarters of it, the rest is for runs read back) what is stored leaves memory at once. */
enum { RUNS_KEPT = 32 };
#define RUNS_BUDGET (UINT64_C(16) << 20)

_Static_assert(sizeof(struct run) == ENGINE_RUN_BYTES, "the statistics count with it");

static uint64_t runs_budget(const struct engine *e)
{
    return e->options.budget.runs == 0 ? RUNS_BUDGET : e->options.budget.runs;
}

static bool runs_are_many(const struct engine *e)
{
    return e->run_count > runs_budget(e) / 4 * 3 / sizeof(struct run);
}

void run_append(struct engine *e, struct partition *p, const struct run *r)
{
    must(r->first == p->tail && r->count > 0);
    if (p->tail == p->start) p->start_us = r->created_us;
    if (p->run_count == p->run_cap) {
        p->run_cap = p->run_cap == 0 ? 1 : p->run_cap * 2;
        p->runs = realloc(p->runs, p->run_cap * sizeof p->runs[0]);
        must(p->runs != NULL);
    }
    p->runs[p->run_count++] = *r;
    p->tail += r->count;
    p->unstored += r->count;
    p->uncut += r->count;
    p->last_created_us = r->created_us;
    if (r->created_us > e->safe_us) e->safe_us = r->created_us;
    p->bytes += r->bytes & RUN_BYTES_MASK;
    e->run_count++;
    segment_hold(e, r->where, r->bytes & RUN_BYTES_MASK);
}

/* First offset that is not in memory's runs but in the store's: memory holds [this, tail). */
uint64_t run_memory_first(const struct partition *p)
{
    return p->run_count == 0 ? p->tail : p->runs[0].first;
}

/* ---- runs read back -------------------------------------------------------------------------------------------------- */

/* Who works off a backlog reads a lane's runs one after the other: those that come next are read too and kept. Of stored runs only
 * places change (run_cache_forget), and partition numbers are never used again, so nothing here becomes wrong. */
enum { READ_BACK_LANES_MIN = 64, READ_BACK_LANES_MAX = 8192, READ_BACK_RUNS = 32 };

struct read_back {
    uint32_t partition, count;
    struct run runs[READ_BACK_RUNS];
};

static uint32_t read_back_lanes(const struct engine *e)
{
    uint64_t lanes = runs_budget(e) / 4 / sizeof(struct read_back);
    return lanes < READ_BACK_LANES_MIN   ? READ_BACK_LANES_MIN
           : lanes > READ_BACK_LANES_MAX ? READ_BACK_LANES_MAX
                                         : (uint32_t)lanes;
}

static bool read_back_find(const struct engine *e, uint32_t partition, uint64_t offset, struct run *out)
{
    const struct read_back *b = e->read_back == NULL ? NULL : e->read_back[partition % read_back_lanes(e)];
    if (b == NULL || b->partition != partition || b->count == 0 || offset < b->runs[0].first) return false;
    for (uint32_t i = 0; i < b->count; i++) {
        if (offset >= run_end(&b->runs[i])) continue;
        *out = b->runs[i];
        return true;
    }
    return false;
}

static struct read_back *read_back_of(const struct engine *e, uint32_t partition)
{
    struct engine *own = (struct engine *)(uintptr_t)e; /* a cache: no part of the state */
    if (own->read_back == NULL) own->read_back = calloc(read_back_lanes(e), sizeof own->read_back[0]);
    must(own->read_back != NULL);
    struct read_back **place = &own->read_back[partition % read_back_lanes(e)];
    if (*place == NULL) *place = malloc(sizeof **place);
    must(*place != NULL);
    (*place)->partition = partition;
    (*place)->count = 0;
    return *place;
}

void run_cache_forget(struct engine *e, uint32_t partition)
{
    struct read_back *b = e->read_back == NULL ? NULL : e->read_back[partition % read_back_lanes(e)];
    if (b != NULL && b->partition == partition) b->count = 0;
}

void run_cache_drop(struct engine *e)
{
    for (uint32_t i = 0; e->read_back != NULL && i < read_back_lanes(e); i++) free(e->read_back[i]);
    free(e->read_back);
    e->read_back = NULL;
}

struct run_search {
    uint64_t offset;
    struct read_back *keep; /* NULL, or where the found one and those behind it go */
    int64_t created_us;     /* search by time when > 0 */
    struct run found;
    bool hit;
};

static bool run_row_search(void *ctx, struct slice key, struct slice value)
{
    struct run_search *s = ctx;
    (void)key;
    for (size_t at = 0; at + sizeof(struct run) <= value.len; at += sizeof(struct run)) {
        struct run r;
        memcpy(&r, value.at + at, sizeof r);
        bool fits = s->created_us > 0 ? r.created_us >= s->created_us && run_end(&r) > s->offset : run_end(&r) > s->offset;
        if (!s->hit && !fits) continue;
        if (!s->hit) s->found = r;
        s->hit = true;
        if (s->keep == NULL) return false;
        s->keep->runs[s->keep->count++] = r;
        if (s->keep->count == READ_BACK_RUNS) return false;
    }
    return true;
}

/* Rows as the store has them, but for those whose places changed and that it does not have yet. */
struct rows_scan {
    const struct engine *e;
    bool (*row)(void *ctx, struct slice key, struct slice value);
    void *ctx;
};

static bool row_moved(void *ctx, struct slice key, struct slice value)
{
    const struct rows_scan *s = ctx;
    const struct moved_row *m = moved_find(s->e, key);
    return s->row(s->ctx, key, m == NULL ? value : slice_make(m->value, m->len));
}

void run_rows_scan(const struct engine *e, const struct row_key *from, const struct row_key *to,
                   bool (*row)(void *ctx, struct slice key, struct slice value), void *ctx)
{
    struct rows_scan s = {.e = e, .row = row, .ctx = ctx};
    e->options.cold.scan(e->options.cold.ctx, row_key_view(from), row_key_view(to), row_moved, &s);
}

void run_rows_of(const struct engine *e, const struct partition *p, uint64_t offset,
                 bool (*row)(void *ctx, struct slice key, struct slice value), void *ctx)
{
    struct row_key from, to;
    row_key_run(&from, p->queue, p->number, offset);
    row_key_run(&to, p->queue, p->number, UINT64_MAX);
    run_rows_scan(e, &from, &to, row, ctx);
}

static void run_search_cold(const struct engine *e, const struct partition *p, struct run_search *s)
{
    run_rows_of(e, p, s->offset, run_row_search, s);
}

bool run_find(const struct engine *e, const struct partition *p, uint64_t offset, struct run *out)
{
    if (offset >= p->tail || offset < p->start) return false;
    if (offset < run_memory_first(p)) {
        if (read_back_find(e, p->number, offset, out)) return true;
        struct run_search s = {.offset = offset, .keep = read_back_of(e, p->number)};
        run_search_cold(e, p, &s);
        *out = s.found;
        return s.hit && s.found.first <= offset;
    }
    uint32_t low = 0, high = p->run_count - 1;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (p->runs[middle].first <= offset) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    *out = p->runs[low];
    return true;
}

uint64_t run_missing(const struct engine *e, const struct partition *p, uint64_t offset, uint64_t end)
{
    uint64_t stored_end = run_memory_first(p);
    struct run r;
    if (end > stored_end) end = stored_end;
    while (offset < end && read_back_find(e, p->number, offset, &r)) offset = run_end(&r);
    return offset < end ? offset : end;
}

bool run_find_here(const struct engine *e, const struct partition *p, uint64_t offset, struct run *out)
{
    if (offset < p->start || offset >= p->tail) return false;
    return offset < run_memory_first(p) ? read_back_find(e, p->number, offset, out) : run_find(e, p, offset, out);
}

/* Where searches by time look: the engine's rows, or, on other threads, what the store has of them. */
struct time_search {
    const struct engine *e; /* NULL: `cold` only */
    const struct engine_cold *cold;
    struct engine_time_search in;
};

static void time_search_look(const struct time_search *t, struct run_search *s)
{
    struct row_key from, to;
    row_key_run(&from, t->in.queue, t->in.lane, s->offset);
    row_key_run(&to, t->in.queue, t->in.lane, UINT64_MAX);
    if (t->e != NULL) {
        run_rows_scan(t->e, &from, &to, run_row_search, s);
    } else {
        t->cold->scan(t->cold->ctx, row_key_view(&from), row_key_view(&to), run_row_search, s);
    }
}

/* The first stored run at or after the time. Its place is found by halves, so that a lane's history may be long. */
static bool time_search_go(const struct time_search *t, struct run *found)
{
    enum { NEAR_OFFSETS = 4096 };
    uint64_t low = t->in.low, high = t->in.high;
    int64_t us = t->in.us;
    while (high - low > NEAR_OFFSETS) {
        struct run_search s = {.offset = low + (high - low) / 2};
        time_search_look(t, &s);
        if (!s.hit || s.found.first > s.offset) break;
        if (s.found.created_us >= us) {
            if (s.found.first <= low) break;
            high = s.found.first;
        } else {
            low = run_end(&s.found);
        }
    }
    struct run_search s = {.offset = low, .created_us = us < 1 ? 1 : us};
    time_search_look(t, &s);
    *found = s.found;
    return s.hit;
}

/* ---- searches of other threads: what is read is all that counts ------------------------------------------------------- */

enum { SEARCH_LANES = 128 /* of one scan */ };

struct lanes_search {
    uint32_t count;
    struct lane_row lanes[SEARCH_LANES]; /* without their names */
};

static bool search_lane_row(void *ctx, struct slice key, struct slice value)
{
    struct lanes_search *l = ctx;
    if (key.len != LANE_KEY_BYTES) return true; /* a cursor */
    if (l->count == SEARCH_LANES || !row_lane_read(key, value, &l->lanes[l->count])) return false;
    l->count++;
    return true;
}

struct front_search {
    int64_t us;
    uint32_t looks, left;
};

static bool search_front_row(void *ctx, struct slice key, struct slice value)
{
    struct front_search *f = ctx;
    (void)key;
    for (size_t at = 0; at + sizeof(struct run) <= value.len; at += sizeof(struct run)) {
        struct run r;
        memcpy(&r, value.at + at, sizeof r);
        if (r.created_us >= f->us || f->looks == f->left) return false;
        f->looks++;
    }
    return true;
}

/* Of the lane t->in.lane, with rows from `low` on, below `high`. Gives what it counts as. */
static uint32_t search_lane(const struct time_search *t, uint32_t left)
{
    struct run found;
    if (t->in.kind == SEARCH_FRONT) {
        struct front_search f = {.us = t->in.us, .left = left};
        struct row_key from, to;
        row_key_run(&from, t->in.queue, t->in.lane, t->in.low);
        row_key_run(&to, t->in.queue, t->in.lane, t->in.high);
        t->cold->scan(t->cold->ctx, row_key_view(&from), row_key_view(&to), search_front_row, &f);
        return 1 + f.looks;
    }
    uint64_t end = time_search_go(t, &found) ? found.first : t->in.high;
    struct run_search before = {.offset = end - 1};
    if (t->in.kind == SEARCH_BEFORE && end > t->in.low) time_search_look(t, &before);
    return SEARCH_COST;
}

void engine_time_search_rows(const struct engine_time_search *s, const struct engine_cold *cold)
{
    struct time_search t = {.cold = cold, .in = *s};
    if (s->high > 0) {
        search_lane(&t, s->looks);
        return;
    }
    struct lanes_search l = {.count = SEARCH_LANES};
    for (uint32_t looks = 0, lane = s->lane; l.count == SEARCH_LANES && lane < s->end && looks < s->looks;) {
        struct row_key from, to;
        l.count = 0;
        row_key_lane(&from, s->queue, lane);
        row_key_lane(&to, s->queue, s->end);
        cold->scan(cold->ctx, row_key_view(&from), row_key_view(&to), search_lane_row, &l);
        for (uint32_t i = 0; i < l.count && looks < s->looks; i++) {
            const struct lane_row *row = &l.lanes[i];
            bool has = row->tail > row->start && row->start_us < s->us;
            bool none = !has || (s->kind != SEARCH_FRONT && row->last_created_us < s->us);
            lane = row->number + 1;
            t.in.lane = row->number;
            t.in.low = row->start;
            t.in.high = row->tail;
            looks += none ? 1 : search_lane(&t, s->looks - looks);
        }
    }
}

uint64_t run_offset_at(const struct engine *e, const struct partition *p, int64_t us)
{
    if (p->tail == p->start || p->last_created_us < us) return p->tail;
    if (us <= p->start_us) return p->start;
    if (p->run_count == 0 || p->runs[0].created_us >= us) {
        if (run_memory_first(p) > p->start) {
            struct time_search t = {.e = e};
            t.in = (struct engine_time_search){
                .queue = p->queue, .lane = p->number, .low = p->start, .high = run_memory_first(p), .us = us};
            struct run found;
            if (time_search_go(&t, &found) && found.first < run_memory_first(p))
                return found.first < p->start ? p->start : found.first;
        }
        return run_memory_first(p);
    }
    uint32_t low = 0, high = p->run_count - 1;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (p->runs[middle].created_us >= us) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return p->runs[low].first;
}

/* The lowest offset that some group still wants, as far as cursors tell. */
static uint64_t run_wanted(const struct engine *e, const struct partition *p)
{
    uint64_t wanted = p->tail;
    uint32_t at = cursor_live(e, p->cursors);
    if (at == 0) return p->start;
    for (; at != 0; at = cursor_live(e, cursor_at(e, at)->next)) {
        uint64_t next = (uint64_t)(cursor_at(e, at)->committed + 1);
        if (next < wanted) wanted = next;
    }
    return wanted;
}

void run_trim(struct engine *e, struct partition *p)
{
    uint64_t stored = p->tail - p->unstored, wanted = run_wanted(e, p);
    uint32_t drop = 0;
    while (drop < p->run_count) {
        const struct run *r = &p->runs[drop];
        if (run_end(r) > stored) break;
        if (run_end(r) > wanted && p->run_count - drop <= RUNS_KEPT && !runs_are_many(e)) break;
        drop++;
    }
    if (drop == 0 || (drop < p->run_count && drop * 2 < p->run_count)) return;
    p->run_count -= drop;
    e->run_count -= drop;
    memmove(p->runs, p->runs + drop, p->run_count * sizeof p->runs[0]);
    if (p->run_count == 0) {
        free(p->runs);
        p->runs = NULL;
        p->run_cap = 0;
    }
}

/* Runs with from <= first < below. */
struct run_walk {
    uint64_t from, below;
    bool (*each)(void *ctx, const struct run *r);
    void *ctx;
    bool ended; /* it said false */
};

static bool run_row_walk(void *ctx, struct slice key, struct slice value)
{
    struct run_walk *w = ctx;
    (void)key;
    for (size_t at = 0; at + sizeof(struct run) <= value.len; at += sizeof(struct run)) {
        struct run r;
        memcpy(&r, value.at + at, sizeof r);
        if (r.first >= w->below) return false;
        if (r.first < w->from) continue;
        w->ended = !w->each(w->ctx, &r);
        if (w->ended) return false;
    }
    return true;
}

void run_each_from(const struct engine *e, const struct partition *p, uint64_t from,
                   bool (*each)(void *ctx, const struct run *r), void *ctx)
{
    struct run_walk w = {.from = from, .below = run_memory_first(p), .each = each, .ctx = ctx};
    if (w.below > from) run_rows_of(e, p, from, run_row_walk, &w);
    uint32_t low = 0, high = p->run_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (p->runs[middle].first < from) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    while (!w.ended && low < p->run_count) w.ended = !each(ctx, &p->runs[low++]);
}

struct run_all {
    void (*each)(void *ctx, const struct run *r);
    void *ctx;
};

static bool run_one(void *ctx, const struct run *r)
{
    const struct run_all *all = ctx;
    all->each(all->ctx, r);
    return true;
}

void run_each(const struct engine *e, const struct partition *p, void (*each)(void *ctx, const struct run *r), void *ctx)
{
    struct run_all all = {.each = each, .ctx = ctx};
    run_each_from(e, p, p->start, run_one, &all);
}

/* ---- retention ------------------------------------------------------------------------------------------------------ */

struct forget {
    struct engine *e;
    struct partition *p;
    uint64_t start;   /* the new one */
    int64_t start_us; /* createdAt of the message there; 0: not seen */
};

static void run_give_up(struct forget *f, const struct run *r)
{
    struct queue *q = queue_at(f->e, f->p->queue);
    uint64_t bytes = r->bytes & RUN_BYTES_MASK;
    segment_release(f->e, r->where, bytes);
    f->p->bytes -= bytes;
    q->bytes -= bytes;
    q->messages -= r->count;
}

static uint64_t row_last_offset(struct slice key)
{
    uint32_t partition;
    uint64_t last;
    must(row_run_key_read(key, &partition, &last));
    return last;
}

/* A row of runs: those before the new start are given up (but those that are in memory too, later), and the row if all of its are. */
static bool row_forget(void *ctx, struct slice key, struct slice value)
{
    struct forget *f = ctx;
    uint64_t memory_first = run_memory_first(f->p);
    for (size_t at = 0; at + sizeof(struct run) <= value.len; at += sizeof(struct run)) {
        struct run r;
        memcpy(&r, value.at + at, sizeof r);
        if (r.first == f->start) f->start_us = r.created_us;
        if (r.first >= f->start || r.first >= memory_first) break;
        if (r.first >= f->p->start) run_give_up(f, &r);
    }
    if (row_last_offset(key) >= f->start) return false;
    moved_gone(f->e, key);
    buf_slice(&f->e->gone_runs, key);
    return true;
}

void run_forget(struct engine *e, struct partition *p, uint64_t start)
{
    struct forget f = {.e = e, .p = p, .start = start};
    must(start > p->start && start <= p->tail);
    if (p->start < p->tail - p->unstored) {
        run_rows_of(e, p, p->start, row_forget, &f);
    }
    uint32_t drop = 0;
    for (; drop < p->run_count && p->runs[drop].first < start; drop++) {
        if (p->runs[drop].first >= p->start) run_give_up(&f, &p->runs[drop]);
    }
    if (drop > 0) {
        p->run_count -= drop;
        e->run_count -= drop;
        memmove(p->runs, p->runs + drop, p->run_count * sizeof p->runs[0]);
    }
    p->start = start;
    uint64_t kept = p->tail - start;
    if (p->unstored > kept) p->unstored = (uint32_t)kept;
    if (p->uncut > kept) p->uncut = (uint32_t)kept;
    struct run first;
    if (f.start_us > 0) {
        p->start_us = f.start_us;
    } else if (run_find(e, p, start, &first)) {
        p->start_us = first.created_us;
    }
}
