/* What left memory and will be wanted soon is read ahead, by the threads of cold reads, so that who wants it finds it in memory.
 *
 *   an entry is on its way to the disk -> warm_entry: the engine names what its commands will read (engine_rows_foreseen) -> jobs, urgent
 *   reader thread                      -> rows through the store's block cache, blocks of the log into the ranges (cold_read.c); or
 *                                         nothing, when the entry is applied already
 *   a read                             -> warm_read: the same, and the call waits for it (READING) before it runs
 *   a pop pinned to a lane at rest     -> warm_pop: the same, before it looks whether there is anything for it
 *   work over many lanes, in steps     -> warm_step: the same, before each step
 *
 * Nobody waits for an entry's rows: what is not there in time is read where it is wanted, as if nothing had been foreseen, and counted there.
 *
 * Limits: WARM_JOBS_MAX jobs of WARM_WANTS_MAX ranges and blocks each; further ones are dropped, and counted. WARM_RANGE_BYTES a range of an
 * entry, COLD_ROWS_BYTES of a read; a call waits for WARM_ROUNDS jobs, then it reads what is missing itself. */
#include <stdlib.h>

#include "broker/broker_internal.h"

enum {
    WARM_JOBS_MAX = 64,
    WARM_WANTS_MAX = 16,
    WARM_RANGE_BYTES = 64 << 10,
    WARM_BLOCK_BYTES_MAX = 4 << 20,
    WARM_ROUNDS = 2,
    SEARCH_MARK = UINT16_MAX, /* in the place of a key's length: a search by time follows */
};

struct warm_job {
    struct cold_job job;
    struct broker *broker;
    struct warm_job *next, *previous;
    uint64_t index; /* of the entry */
    struct buf rows;
    struct cold_piece pieces[WARM_WANTS_MAX];
};

/* ---- rows --------------------------------------------------------------------------------------------------------- */

void warm_rows_put(struct buf *rows, struct slice from, struct slice to)
{
    uint16_t head[2] = {(uint16_t)from.len, (uint16_t)to.len};
    must(from.len <= ROW_KEY_BYTES_MAX && to.len <= ROW_KEY_BYTES_MAX);
    buf_put(rows, head, sizeof head);
    buf_slice(rows, from);
    buf_slice(rows, to);
}

static void search_put(struct buf *rows, const struct engine_time_search *s)
{
    uint16_t head[2] = {SEARCH_MARK, sizeof *s};
    buf_put(rows, head, sizeof head);
    buf_put(rows, s, sizeof *s);
}

/* What cannot be read is not told, as of store_warm. */
static void search_scan(void *ctx, struct slice from, struct slice to,
                        bool (*row)(void *row_ctx, struct slice key, struct slice value), void *row_ctx)
{
    store_find(ctx, from, to, row, row_ctx, NULL, NULL);
}

void warm_rows_read(struct store *store, struct slice rows, size_t range_bytes)
{
    const struct engine_cold cold = {.ctx = store, .scan = search_scan};
    for (size_t at = 0; at < rows.len;) {
        uint16_t head[2];
        memcpy(head, rows.at + at, sizeof head);
        at += sizeof head;
        if (head[0] == SEARCH_MARK) {
            struct engine_time_search s;
            memcpy(&s, rows.at + at, sizeof s);
            engine_time_search_rows(&s, &cold);
            at += sizeof s;
            continue;
        }
        struct slice from = slice_make(rows.at + at, head[0]), to = slice_make(rows.at + at + head[0], head[1]);
        store_warm(store, from, to, range_bytes);
        at += (size_t)head[0] + head[1];
    }
}

/* ---- jobs --------------------------------------------------------------------------------------------------------- */

static void warm_unlink(struct warming *w, struct warm_job *j)
{
    *(j->previous != NULL ? &j->previous->next : &w->first) = j->next;
    if (j->next != NULL) j->next->previous = j->previous;
    must(w->count > 0);
    w->count--;
}

static void warm_back(struct loop_task *t)
{
    struct warm_job *j = owner_of(t, struct warm_job, job.task);
    warm_unlink(&j->broker->warming, j);
    buf_free(&j->rows);
    free(j);
}

static void warm_run(struct cold_job *c)
{
    struct warm_job *j = owner_of(c, struct warm_job, job);
    if (atomic_load_explicit(&j->broker->applied, memory_order_relaxed) >= j->index) return;
    warm_rows_read(j->broker->store, buf_view(&j->rows), WARM_RANGE_BYTES);
    cold_job_read(c);
    for (uint32_t i = 0; i < c->count; i++) {
        if (c->pieces[i].range != NULL) cold_range_drop(c->pieces[i].range);
        c->pieces[i].range = NULL;
    }
}

static struct warm_job *warm_new(struct broker *b, uint64_t index)
{
    struct warm_job *j = calloc(1, sizeof *j);
    must(j != NULL);
    j->broker = b;
    j->index = index;
    j->job = (struct cold_job){.task.run = warm_back,
                               .run = warm_run,
                               .urgent = true,
                               .places = b->places,
                               .cache = b->cold.cache,
                               .segment_bytes = b->config.segment_bytes,
                               .pieces = j->pieces};
    return j;
}

static void warm_submit(struct broker *b, struct warm_job *j)
{
    struct warming *w = &b->warming;
    j->next = w->first;
    if (w->first != NULL) w->first->previous = j;
    w->first = j;
    w->count++;
    cold_reader_submit(b->cold.reader, &j->job);
}

/* ---- entries ------------------------------------------------------------------------------------------------------ */

struct entry_wants {
    struct broker *b;
    uint64_t index;
    struct warm_job *job; /* being filled, with `count` of both kinds; NULL */
    uint32_t count;
};

/* The job that takes one more; NULL: there is no room. */
static struct warm_job *wants_job(struct entry_wants *w)
{
    struct warming *all = &w->b->warming;
    if (w->job != NULL && w->count == WARM_WANTS_MAX) {
        warm_submit(w->b, w->job);
        w->job = NULL;
    }
    if (w->job == NULL && all->count == WARM_JOBS_MAX) {
        all->dropped_total++;
        return NULL;
    }
    if (w->job == NULL) {
        w->job = warm_new(w->b, w->index);
        w->count = 0;
    }
    w->count++;
    all->foreseen_total++;
    return w->job;
}

static void entry_range(void *ctx, struct slice from, struct slice to)
{
    struct warm_job *j = wants_job(ctx);
    if (j != NULL) warm_rows_put(&j->rows, from, to);
}

static void entry_search(void *ctx, const struct engine_time_search *s)
{
    struct warm_job *j = wants_job(ctx);
    if (j != NULL) search_put(&j->rows, s);
}

static void entry_block(void *ctx, uint64_t where, uint32_t bytes)
{
    struct entry_wants *w = ctx;
    struct slice block;
    struct log_pin pin;
    if (bytes > WARM_BLOCK_BYTES_MAX) return;
    if (place_view(&w->b->places, where, bytes, &block, &pin)) {
        log_unpin(w->b->places.log, pin);
        return;
    }
    struct warm_job *j = wants_job(w);
    if (j != NULL) j->pieces[j->job.count++] = (struct cold_piece){.where = where, .bytes = bytes};
}

void warm_entry(struct broker *b, uint64_t index, struct slice entry)
{
    struct entry_wants w = {.b = b, .index = index};
    struct engine_foreseen f = {.ctx = &w, .range = entry_range, .block = entry_block, .search = entry_search};
    struct entry_head head;
    struct command c;
    if (b->cold.reader == NULL || !entry_head_read(entry, &head)) return;
    struct slice rest = slice_make(entry.at + ENTRY_HEAD_BYTES, entry.len - ENTRY_HEAD_BYTES);
    while (command_next(&rest, &c)) engine_rows_foreseen(b->engine, &c, &f);
    if (w.job != NULL) warm_submit(b, w.job);
}

void warm_free(struct broker *b)
{
    buf_free(&b->keeper.bulk_step.rows.rows);
    buf_free(&b->keeper.house_rows.rows);
    buf_free(&b->retention.rows.rows);
    while (b->warming.first != NULL) warm_back(&b->warming.first->job.task);
}

/* ---- reads -------------------------------------------------------------------------------------------------------- */

static void read_range(void *ctx, struct slice from, struct slice to)
{
    warm_rows_put(ctx, from, to);
}

static void read_block(void *ctx, uint64_t where, uint32_t bytes)
{
    (void)ctx, (void)where, (void)bytes; /* a read asks for these itself (piece.c) */
}

static void read_search(void *ctx, const struct engine_time_search *s)
{
    search_put(ctx, s);
}

static struct engine_foreseen foreseen_to(struct buf *rows, const struct call *c, bool *again)
{
    return (struct engine_foreseen){
        .ctx = rows, .range = read_range, .block = read_block, .search = read_search, .warmed = c->warmed > 0, .again = again};
}

static bool rows_wait(struct broker *b, struct call *c, struct buf *rows, bool again)
{
    c->warmed = again ? c->warmed + 1 : WARM_ROUNDS;
    if (rows->len == 0) return false;
    cold_fetch_rows(b, c, rows);
    return true;
}

bool warm_read(struct broker *b, struct call *c)
{
    struct buf rows = {0};
    bool again = false;
    struct engine_foreseen f = foreseen_to(&rows, c, &again);
    struct slice rest = c->foreseen;
    struct command command;
    if (c->warmed >= WARM_ROUNDS || c->late || b->cold.reader == NULL) return false;
    if (!f.warmed && command_next(&rest, &command)) engine_rows_foreseen(b->engine, &command, &f);
    if (c->foresee != NULL) c->foresee(c, b->engine, b->now, &f);
    return rows_wait(b, c, &rows, again);
}

bool warm_pop(struct broker *b, struct call *c)
{
    struct buf rows = {0};
    bool again = false;
    struct engine_foreseen f = foreseen_to(&rows, c, &again);
    const struct pop_command *p = &c->pop;
    if (p->scope != POP_PARTITION || c->warmed >= WARM_ROUNDS || b->cold.reader == NULL) return false;
    if (c->warmed == 0 && !engine_pop_reads(b->engine, p)) return false;
    engine_pop_foreseen(b->engine, p, b->now, &f);
    return rows_wait(b, c, &rows, again);
}

/* ---- steps -------------------------------------------------------------------------------------------------------- */

static void step_run(struct cold_job *j)
{
    struct warm_step *s = owner_of(j, struct warm_step, job);
    warm_rows_read(s->broker->store, buf_view(&s->rows), COLD_ROWS_BYTES);
}

static void step_back(struct loop_task *t)
{
    struct warm_step *s = owner_of(t, struct warm_step, job.task);
    s->reading = false;
    buf_free(&s->rows);
    if (!s->broker->stopped) s->back(s->broker);
}

bool warm_step(struct broker *b, struct warm_step *s, void (*foresee)(struct broker *b, const struct engine_foreseen *f),
               void (*back)(struct broker *b))
{
    if (s->reading) return false;
    if (s->read || b->cold.reader == NULL) return true;
    struct engine_foreseen f = {.ctx = &s->rows, .range = read_range, .block = read_block, .search = read_search};
    foresee(b, &f);
    s->read = true;
    if (s->rows.len == 0) return true;
    s->broker = b;
    s->back = back;
    s->reading = true;
    s->job = (struct cold_job){.task.run = step_back, .run = step_run};
    cold_reader_submit(b->cold.reader, &s->job);
    return false;
}
