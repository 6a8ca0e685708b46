/* Lanes (partitions): how they come and go, and how those at rest leave memory and come back.
 *
 * Every lane has a stub (struct lane) and a place in the index of names. Its record, name and cursors are in memory while something
 * uses them; a lane at rest, all of it readable from the store, may leave and is read back when somebody wants it: one range of
 * rows, the lane's and behind it its cursors'.
 *
 *   wanted --> in memory --> [not touched by an entry for a round, or memory is short, or the broker is idle] --> stub
 *
 * When lanes leave: between entries only (engine_cut_stored, engine_housekeep, engine_visits_over), but for those that a walk over many
 * lanes brought in itself, which leave when the walk has passed them. So a pointer to a lane holds until the entry ends. */
#include <stdlib.h>

#include "engine/foresee_inner.h"
#include "engine/row.h"

enum {
    LANES_READ_AHEAD = 128, /* lanes of one scan, at most */
    LOOKS_A_CALL = 8192,    /* at lanes that may leave */
    LOOKS_OVER_MAX = 16384, /* the same above the budget */
    LOOKS_OVER_MIN = 256,
    VISITORS_KEPT = 256,    /* lanes that only reads brought in */
    REAP_LANES = 128,       /* lanes of a deleted queue taken out at a time */
    REAP_ROWS_A_CALL = 512, /* and rows of their runs */
};
#define ROUND_US INT64_C(60000000) /* a look at every lane, while entries come */
#define LANE_BYTES_DEFAULT (UINT64_C(256) << 20)

static struct engine *own(const struct engine *e)
{
    return (struct engine *)(uintptr_t)e; /* what is in memory is no part of the state */
}

static uint64_t name_hash(uint32_t queue, struct slice name)
{
    return hash64(name, queue);
}

struct lane *lane_at(const struct engine *e, uint32_t number)
{
    struct lane *l = table_at(&e->lanes, number);
    return l == NULL || l->queue == 0 ? NULL : l;
}

/* ---- in memory ------------------------------------------------------------------------------------------------------ */

static void list_put(struct engine *e, struct partition *p)
{
    p->older = e->lane_newest;
    p->newer = NULL;
    if (e->lane_newest != NULL) e->lane_newest->newer = p;
    e->lane_newest = p;
    if (e->lane_oldest == NULL) e->lane_oldest = p;
}

static void list_take(struct engine *e, struct partition *p)
{
    *(p->newer != NULL ? &p->newer->older : &e->lane_newest) = p->older;
    *(p->older != NULL ? &p->older->newer : &e->lane_oldest) = p->newer;
}

static struct partition *record_new(struct engine *e, struct lane *l, uint32_t number, struct slice name)
{
    struct partition *p = malloc(sizeof *p + name.len);
    must(p != NULL && l->p == NULL && name.len <= NAMES_BYTES_MAX);
    *p = (struct partition){.number = number, .queue = l->queue, .name_len = (uint16_t)name.len};
    if (name.len > 0) memcpy(p->name, name.at, name.len);
    l->p = p;
    list_put(e, p);
    e->lanes_in_memory++;
    e->lane_record_bytes += sizeof *p + name.len;
    return p;
}

/* Its cursors are gone already. */
static void record_free(struct engine *e, struct partition *p)
{
    e->lanes_in_memory--;
    e->lane_record_bytes -= sizeof *p + p->name_len;
    e->run_count -= p->run_count;
    list_take(e, p);
    free(p->runs);
    free(p);
}

uint64_t lane_bytes(const struct engine *e)
{
    return e->lane_record_bytes + (uint64_t)e->cursors.used * sizeof(struct cursor) +
           (uint64_t)e->histories.used * sizeof(struct history) + e->run_count * sizeof(struct run);
}

void lanes_free(struct engine *e)
{
    while (e->lane_oldest != NULL) record_free(e, e->lane_oldest);
    table_free(&e->lanes);
    idmap_free(&e->partition_names);
    buf_free(&e->loading);
    free(e->visitors.at);
    free(e->reap);
}

/* ---- coming --------------------------------------------------------------------------------------------------------- */

static struct lane *stub_add(struct engine *e, struct queue *q, uint32_t number)
{
    struct lane *l = table_add(&e->lanes, number);
    l->queue = q->number;
    if (q->partition_last != 0) {
        lane_at(e, q->partition_last)->next = number;
    } else {
        q->partition_first = number;
    }
    q->partition_last = number;
    q->partition_count++;
    return l;
}

static struct partition *partition_add(struct engine *e, struct queue *q, struct slice name)
{
    uint32_t number = ++e->partition_last;
    struct partition *p = record_new(e, stub_add(e, q, number), number, name);
    idmap_add(&e->partition_names, name_hash(q->number, name), number);
    p->created_us = e->wall_us;
    p->touched = true;
    return p;
}

struct partition *partition_obtain(struct engine *e, struct queue *q, struct slice name)
{
    struct partition *p = partition_find(e, q, name);
    if (p != NULL) return p;
    uint32_t before = q->partition_last;
    p = partition_add(e, q, name);
    partition_touch(e, p);
    queue_touch(e, q);
    for (uint32_t n = q->groups; n != 0;) {
        struct group *g = group_at(e, n);
        /* A group that has seen all lanes so far sees this one at once; another finds it when its scan gets there. */
        if (g->registered && g->scan == before) {
            g->scan = p->number;
            group_touch(e, g);
        }
        n = g->next;
    }
    return p;
}

void partition_touch(struct engine *e, struct partition *p)
{
    if (p->dirty) return;
    p->dirty = 1;
    numbers_add(&e->dirty_partitions, p->number);
}

/* ---- coming back ---------------------------------------------------------------------------------------------------- */

static uint32_t oldest_s(uint64_t start, uint64_t tail, int64_t start_us)
{
    int64_t s = start_us / 1000000;
    return start == tail ? 0 : s < 1 ? 1 : s > UINT32_MAX ? UINT32_MAX : (uint32_t)s;
}

static struct partition *record_of_row(struct engine *e, struct lane *l, const struct lane_row *row)
{
    struct partition *p = record_new(e, l, row->number, row->name);
    p->tail = row->tail;
    p->start = row->start;
    p->created_us = row->created_us;
    p->last_created_us = row->last_created_us;
    p->start_us = row->start_us;
    p->bytes = row->bytes;
    p->last_lease_s = row->last_lease_s;
    return p;
}

/* The cursor of a row goes to its lane; its group has counted it. */
static uint32_t cursor_of_row(struct engine *e, struct partition *p, const struct cursor_row *row)
{
    uint32_t at = cursor_link(e, p, row->group);
    struct cursor *c = cursor_at(e, at);
    c->committed = row->committed;
    c->attempt_start = row->attempt_start;
    c->attempt = row->attempt;
    c->retries = row->retries;
    c->flags = row->flags;
    if (row->leased) lease_grant(e, at, row->lease.id, row->lease.first, row->lease.last, row->lease.expiry_us);
    if (row->remembered) history_set(e, c, row->history.id, row->history.low, row->history.high);
    cursor_restore(e, at, row->state, row->turn_or_due);
    return at;
}

static bool row_at_rest(const struct cursor_row *row)
{
    return row->state == CURSOR_IDLE && !row->leased;
}

struct lane_read {
    struct engine *e;
    struct partition *p;  /* the one that comes back now; NULL: its rows are passed over */
    uint32_t left;        /* lanes that may still be begun */
    struct numbers *came; /* NULL, or where the numbers of those that came back go */
};

static bool read_row(void *ctx, struct slice key, struct slice value)
{
    struct lane_read *r = ctx;
    if (key.len == LANE_KEY_BYTES) {
        struct lane_row row;
        if (r->left-- == 0) return false;
        must(row_lane_read(key, value, &row));
        struct lane *l = lane_at(r->e, row.number);
        r->p = NULL;
        if (l == NULL || l->p != NULL) return true;
        r->p = record_of_row(r->e, l, &row);
        if (r->came != NULL) numbers_add(r->came, row.number);
    } else if (r->p != NULL) {
        struct cursor_row row;
        must(row_cursor_read(key, value, &row) && row.partition == r->p->number && row_at_rest(&row));
        cursor_of_row(r->e, r->p, &row);
    }
    return true;
}

/* Brings back the lane, and those of the next count-1 in its queue that left too. */
static void lanes_read(struct engine *e, uint32_t number, uint32_t count, struct numbers *came)
{
    const struct lane *l = lane_at(e, number);
    struct lane_read r = {.e = e, .left = count, .came = came};
    struct row_key from, to;
    row_key_lane(&from, l->queue, number);
    if (count == 1) {
        row_key_lane(&to, l->queue, number + 1);
    } else {
        row_key_lane(&to, l->queue + 1, 0);
    }
    e->options.cold.scan(e->options.cold.ctx, row_key_view(&from), row_key_view(&to), read_row, &r);
    must(l->p != NULL); /* its row was stored before it left */
}

/* Of a lane that left. Those that come for a read only are remembered, so that they leave again soon. */
static void lane_come(struct engine *e, uint32_t number, uint32_t count)
{
    lanes_read(e, number, count, e->applying ? NULL : &e->visitors);
}

struct partition *lane_open(const struct engine *e, uint32_t number)
{
    struct lane *l = lane_at(e, number);
    must(l != NULL);
    if (l->p == NULL) lane_come(own(e), number, 1);
    if (e->applying) l->p->touched = true;
    return l->p;
}

struct partition *lane_open_ahead(const struct engine *e, uint32_t number)
{
    struct lane *l = lane_at(e, number);
    must(l != NULL);
    if (l->p == NULL) lane_come(own(e), number, LANES_READ_AHEAD);
    return l->p;
}

struct partition *partition_at(const struct engine *e, uint32_t number)
{
    const struct lane *l = lane_at(e, number);
    return l == NULL || queue_at(e, l->queue) == NULL ? NULL : lane_open(e, number);
}

struct queue *partition_queue(const struct engine *e, uint32_t number)
{
    const struct lane *l = lane_at(e, number);
    return l == NULL ? NULL : queue_at(e, l->queue);
}

struct partition *partition_find(const struct engine *e, const struct queue *q, struct slice name)
{
    uint64_t hash = name_hash(q->number, name);
    uint32_t at = 0, number;
    while ((number = idmap_next(&e->partition_names, hash, &at)) != 0) {
        if (lane_at(e, number)->queue != q->number) continue;
        struct partition *p = lane_open(e, number);
        if (slice_equal(partition_name(p), name)) return p;
    }
    return NULL;
}

struct partition *partition_find_here(const struct engine *e, const struct queue *q, struct slice name, uint32_t *away)
{
    uint64_t hash = name_hash(q->number, name);
    uint32_t at = 0, number;
    *away = 0;
    while ((number = idmap_next(&e->partition_names, hash, &at)) != 0) {
        const struct lane *l = lane_at(e, number);
        if (l->queue != q->number) continue;
        if (l->p == NULL) {
            *away = number;
        } else if (slice_equal(partition_name(l->p), name)) {
            *away = 0;
            return l->p;
        }
    }
    return NULL;
}

/* ---- start ---------------------------------------------------------------------------------------------------------- */

/* The rows of one lane are kept until the next lane's come: then it is known whether it is at rest. */
static void loading_keep(struct engine *e, struct slice key, struct slice value)
{
    buf_u32(&e->loading, (uint32_t)key.len);
    buf_u32(&e->loading, (uint32_t)value.len);
    buf_slice(&e->loading, key);
    buf_slice(&e->loading, value);
}

/* A place in the index of many names is far away: it is filled some lanes later. */
static void loading_name(struct engine *e, uint64_t hash, uint32_t number)
{
    uint32_t at = e->loading_turn++ % LOADING_NAMES;
    if (e->loading_names[at].number != 0) {
        idmap_add(&e->partition_names, e->loading_names[at].hash, e->loading_names[at].number);
    }
    e->loading_names[at].hash = hash;
    e->loading_names[at].number = number;
    if (number != 0) idmap_prefetch(&e->partition_names, hash);
}

static void loading_end(struct engine *e)
{
    struct partition *p = NULL;
    for (size_t at = 0; e->loading_awake && at < e->loading.len;) {
        uint32_t len[2];
        memcpy(len, e->loading.at + at, sizeof len);
        struct slice key = slice_make(e->loading.at + at + sizeof len, len[0]), value = slice_make(key.at + len[0], len[1]);
        struct lane_row lane;
        struct cursor_row cursor;
        if (p == NULL) {
            must(row_lane_read(key, value, &lane));
            p = record_of_row(e, lane_at(e, lane.number), &lane);
        } else {
            must(row_cursor_read(key, value, &cursor));
            uint32_t c = cursor_of_row(e, p, &cursor);
            if (cursor.state == CURSOR_READY) numbers_add(&e->loaded_ready, c);
        }
        at += sizeof len + len[0] + len[1];
    }
    buf_clear(&e->loading);
    e->loading_lane = 0;
    e->loading_awake = false;
}

void lanes_loaded(struct engine *e)
{
    loading_end(e);
    for (int i = 0; i < LOADING_NAMES; i++) loading_name(e, 0, 0);
}

const char *lane_load(struct engine *e, struct slice key, struct slice value)
{
    struct lane_row row;
    loading_end(e);
    const bool good = row_lane_read(key, value, &row);
    struct queue *q = good ? table_at(&e->queues, row.queue) : NULL;
    if (q == NULL || q->number == 0 || row.number == 0 || row.number > e->partition_last || row.number <= q->partition_last ||
        lane_at(e, row.number) != NULL)
        return "a partition's row is damaged";
    stub_add(e, q, row.number)->oldest_s = oldest_s(row.start, row.tail, row.start_us);
    loading_name(e, name_hash(row.queue, row.name), row.number);
    e->loading_lane = row.number;
    loading_keep(e, key, value);
    return NULL;
}

const char *lane_load_cursor(struct engine *e, struct slice key, struct slice value)
{
    struct cursor_row row;
    struct group *g = row_cursor_read(key, value, &row) ? group_at(e, row.group) : NULL;
    if (g == NULL || row.partition != e->loading_lane || row.partition == 0 || g->queue != row.queue)
        return "a cursor's row is damaged";
    g->cursor_count++;
    if (!row_at_rest(&row)) e->loading_awake = true;
    loading_keep(e, key, value);
    return NULL;
}

/* ---- leaving -------------------------------------------------------------------------------------------------------- */

static bool may_leave(const struct engine *e, const struct partition *p)
{
    if (p->dirty || p->unstored > 0 || p->uncut > 0 || p->cut_revision > e->cut_stored) return false;
    for (uint32_t at = p->cursors; at != 0; at = cursor_at(e, at)->next) {
        const struct cursor *c = cursor_at(e, at);
        if (c->state != CURSOR_IDLE || c->lease != 0 || c->flags & CURSOR_DIRTY) return false;
    }
    return true;
}

static void lane_leave(struct engine *e, struct partition *p)
{
    struct lane *l = lane_at(e, p->number);
    while (p->cursors != 0) cursor_unlink(e, p->cursors);
    l->oldest_s = oldest_s(p->start, p->tail, p->start_us);
    l->p = NULL;
    record_free(e, p);
}

static bool lanes_over(const struct engine *e)
{
    uint64_t budget = e->options.budget.lanes == 0 ? LANE_BYTES_DEFAULT : e->options.budget.lanes;
    return lane_bytes(e) > budget;
}

/* Looks at the lane that was not looked at for longest. */
static void clock_step(struct engine *e, bool all)
{
    struct partition *p = e->lane_oldest;
    bool touched = p->touched && !all;
    list_take(e, p);
    list_put(e, p);
    p->touched = false;
    if (!touched && may_leave(e, p)) lane_leave(e, p);
}

/* Looks at fewer each time when none may leave: then it is what must stay that takes the room. */
static void over_budget(struct engine *e)
{
    uint32_t before = e->lanes_in_memory, looks = before * 2; /* the first look takes the mark away */
    if (!lanes_over(e)) {
        e->looks_over = LOOKS_OVER_MAX;
        return;
    }
    if (looks > e->looks_over) looks = e->looks_over;
    for (; looks > 0 && e->lane_oldest != NULL && lanes_over(e); looks--) clock_step(e, false);
    uint32_t next = e->lanes_in_memory < before ? e->looks_over * 2 : e->looks_over / 2;
    e->looks_over = next > LOOKS_OVER_MAX ? LOOKS_OVER_MAX : next < LOOKS_OVER_MIN ? LOOKS_OVER_MIN : next;
}

void lanes_rest(struct engine *e)
{
    int64_t now_us = e->last_head.wall_us, passed_us = now_us - e->round_at_us;
    if (passed_us < 0 || passed_us > ROUND_US) passed_us = ROUND_US;
    uint64_t looks = (uint64_t)passed_us * e->lanes_in_memory / (uint64_t)ROUND_US;
    if (looks > 0 || e->lanes_in_memory == 0) e->round_at_us = now_us;
    if (looks > LOOKS_A_CALL) looks = LOOKS_A_CALL;
    for (; looks > 0 && e->lane_oldest != NULL; looks--) clock_step(e, false);
    over_budget(e);
}

static void visitors_leave(struct engine *e, uint32_t kept)
{
    struct numbers *v = &e->visitors;
    uint32_t count = v->count - kept;
    for (uint32_t i = 0; i < count; i++) {
        const struct lane *l = lane_at(e, v->at[i]);
        if (l != NULL && l->p != NULL && !l->p->touched && may_leave(e, l->p)) lane_leave(e, l->p);
    }
    if (kept > 0) memmove(v->at, v->at + count, kept * sizeof v->at[0]);
    v->count = kept;
}

void lanes_visited(struct engine *e)
{
    if (e->visitors.count > 2 * VISITORS_KEPT) visitors_leave(e, VISITORS_KEPT);
}

bool lanes_leave_all(struct engine *e)
{
    if (e->leaving == 0) return false;
    for (int i = 0; i < LOOKS_A_CALL && e->leaving > 0 && e->lane_oldest != NULL; i++, e->leaving--) clock_step(e, true);
    if (e->lane_oldest == NULL) e->leaving = 0;
    if (e->leaving == 0) visitors_leave(e, 0);
    return e->leaving > 0;
}

/* ---- walks ---------------------------------------------------------------------------------------------------------- */

void lane_walk_begin(struct lane_walk *w, const struct engine *e, uint32_t next)
{
    *w = (struct lane_walk){.e = own(e), .next = next, .ahead = 1};
}

void lane_walk_begin_many(struct lane_walk *w, const struct engine *e, uint32_t next, uint32_t count)
{
    lane_walk_begin(w, e, next);
    w->ahead = count < 1 ? 1 : count < LANES_READ_AHEAD ? count : LANES_READ_AHEAD;
}

void lane_walk_end(struct lane_walk *w)
{
    for (uint32_t i = 0; i < w->came.count; i++) {
        struct partition *p = lane_at(w->e, w->came.at[i])->p;
        if (p != NULL && may_leave(w->e, p)) lane_leave(w->e, p);
    }
    free(w->came.at);
    w->came = (struct numbers){0};
}

struct partition *lane_walk_next(struct lane_walk *w)
{
    const struct lane *l = w->next == 0 ? NULL : lane_at(w->e, w->next);
    if (l == NULL || l->p == NULL) lane_walk_end(w);
    if (l == NULL) return NULL;
    if (l->p == NULL) {
        lanes_read(w->e, w->next, w->ahead, &w->came);
        w->ahead = w->ahead * 2 < LANES_READ_AHEAD ? w->ahead * 2 : LANES_READ_AHEAD;
    }
    w->next = l->next;
    return l->p;
}

/* ---- a deleted queue's lanes ---------------------------------------------------------------------------------------- */

/* Lanes that are out of the tables; the live bytes of their stored runs are still to be taken off. */
struct reap {
    uint32_t count, at; /* lanes; the one whose rows come next */
    uint64_t offset;    /* and from which last offset on */
    struct {
        uint32_t number;
        uint64_t start, below; /* runs with start <= first < below count */
    } lanes[REAP_LANES];
};

static void run_release(struct engine *e, const struct run *r)
{
    segments_hold(e, e->reaped, r->where, r->bytes & RUN_BYTES_MASK);
}

static void lane_remove(struct engine *e, uint32_t queue, uint32_t number, struct slice name)
{
    idmap_remove(&e->partition_names, name_hash(queue, name), number);
    table_remove(&e->lanes, number);
}

static void lane_drop(struct engine *e, struct partition *p)
{
    while (p->cursors != 0) cursor_drop(e, p->cursors);
    for (uint32_t i = 0; i < p->run_count; i++) run_release(e, &p->runs[i]);
    lane_remove(e, p->queue, p->number, partition_name(p));
    record_free(e, p);
}

/* Rows of lanes that left: their names and cursors are counted out without bringing them back. */
struct reap_read {
    struct engine *e;
    uint32_t at, out; /* place in e->reap; number of the lane that is being taken out, 0 = none */
};

static bool reap_row(void *ctx, struct slice key, struct slice value)
{
    struct reap_read *r = ctx;
    struct reap *reap = r->e->reap;
    if (key.len == LANE_KEY_BYTES) {
        struct lane_row row;
        must(row_lane_read(key, value, &row));
        while (r->at < reap->count && reap->lanes[r->at].number < row.number) r->at++;
        const struct lane *l = lane_at(r->e, row.number);
        r->out = 0;
        if (l == NULL || l->p != NULL) return true;
        must(r->at < reap->count && reap->lanes[r->at].number == row.number);
        reap->lanes[r->at].start = row.start;
        r->out = row.number;
        lane_remove(r->e, row.queue, row.number, row.name);
    } else if (r->out != 0) {
        struct cursor_row row;
        must(row_cursor_read(key, value, &row) && row.partition == r->out);
        group_at(r->e, row.group)->cursor_count--;
    }
    return true;
}

/* The next lanes of the queue leave the tables. */
static void reap_begin(struct engine *e, struct queue *q)
{
    struct reap *reap = e->reap;
    bool away = false;
    uint32_t first = q->partition_first;
    *reap = (struct reap){0};
    for (; q->partition_first != 0 && reap->count < REAP_LANES; reap->count++) {
        const struct lane *l = lane_at(e, q->partition_first);
        reap->lanes[reap->count].number = q->partition_first;
        reap->lanes[reap->count].below = UINT64_MAX;
        q->partition_first = l->next;
        away |= l->p == NULL;
    }
    if (away) {
        struct reap_read r = {.e = e};
        struct row_key from, to;
        row_key_lane(&from, q->number, first);
        row_key_lane(&to, q->number, reap->lanes[reap->count - 1].number + 1);
        e->options.cold.scan(e->options.cold.ctx, row_key_view(&from), row_key_view(&to), reap_row, &r);
    }
    for (uint32_t i = 0; i < reap->count; i++) {
        const struct lane *l = lane_at(e, reap->lanes[i].number);
        if (l == NULL) continue;
        must(l->p != NULL);
        reap->lanes[i].start = l->p->start;
        reap->lanes[i].below = run_memory_first(l->p);
        lane_drop(e, l->p);
    }
}

/* What the next step of lanes_reap will read. */
void lanes_reap_foresee(struct foresight *s, const struct queue *q)
{
    const struct reap *reap = s->e->reap;
    struct row_key from, to;
    uint32_t first = q->partition_first, last = first;
    if (reap == NULL && first == 0) return;
    if (reap != NULL) {
        row_key_run(&from, q->number, reap->lanes[reap->at].number, reap->offset);
        last = reap->lanes[reap->count - 1].number;
    } else {
        for (uint32_t i = 1, n = first; i < REAP_LANES && (n = lane_at(s->e, n)->next) != 0; i++) last = n;
        foresee_lanes(s, q->number, first, last + 1);
        row_key_run(&from, q->number, first, 0);
    }
    row_key_run(&to, q->number, last + 1, 0);
    foresee_range(s, row_key_view(&from), row_key_view(&to));
}

struct reap_runs {
    struct engine *e;
    uint32_t left; /* rows */
};

static bool reap_run_row(void *ctx, struct slice key, struct slice value)
{
    struct reap_runs *r = ctx;
    struct reap *reap = r->e->reap;
    uint32_t number;
    uint64_t last_offset;
    must(row_run_key_read(key, &number, &last_offset));
    while (reap->at < reap->count && reap->lanes[reap->at].number < number) reap->at++;
    must(reap->at < reap->count && reap->lanes[reap->at].number == number);
    reap->offset = last_offset;
    if (r->left-- == 0) return false;
    for (size_t at = 0; at + sizeof(struct run) <= value.len; at += sizeof(struct run)) {
        struct run run;
        memcpy(&run, value.at + at, sizeof run);
        if (run.first >= reap->lanes[reap->at].start && run.first < reap->lanes[reap->at].below) run_release(r->e, &run);
    }
    return true;
}

bool lanes_reap(struct engine *e, struct queue *q)
{
    if (e->reap == NULL) {
        if (q->partition_first == 0) return false;
        e->reap = malloc(sizeof *e->reap);
        must(e->reap != NULL);
        reap_begin(e, q);
    }
    struct reap *reap = e->reap;
    struct reap_runs r = {.e = e, .left = REAP_ROWS_A_CALL};
    struct row_key from, to;
    row_key_run(&from, q->number, reap->lanes[reap->at].number, reap->offset);
    row_key_run(&to, q->number, reap->lanes[reap->count - 1].number + 1, 0);
    run_rows_scan(e, &from, &to, reap_run_row, &r);
    if (r.left == UINT32_MAX) return true; /* the row at reap->offset is the next */
    free(e->reap);
    e->reap = NULL;
    return q->partition_first != 0;
}
