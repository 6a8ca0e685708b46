/* store.h: rows in memory, in order of their keys, and a file of batches with what has been flushed.
 *
 *   submitted -> [a little later] written: readable, in memory -> [flush asked for, or by itself now and then] in the file, synced
 *
 * A process that ends, however, comes back at what was flushed. The file is batch after batch, each with its checksum, so that a flush
 * cut short is a prefix of batches. A checkpoint is one batch with all rows. It is named CURRENT, the file that a snapshot must hold. */
#include "store/store.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/planted.h"
#include "sim.h"

enum { OP_PUT = 1, OP_DELETE, OP_RANGE, COMPACT_BYTES = 1 << 20 };

struct row {
    char *key, *value;
    uint32_t key_len, value_len;
};

struct rows {
    struct row *at;
    uint32_t count, cap;
    uint64_t bytes;
};

struct store_batch {
    struct buf ops;
    uint32_t rows;
};

struct waiting {
    struct waiting *next;
    struct store_batch *batch;
    struct store_mark mark;
    bool flush;
    void *ctx;
    void (*written)(void *ctx, struct store_mark mark);
    void (*flushed)(void *ctx, struct store_mark mark);
    char *dir; /* a checkpoint */
    void (*done)(void *ctx, struct store_mark mark, const char *error);
};

struct store {
    struct sim_node *node;
    struct store_options o;
    char *dir;
    struct vfile *file;
    struct rows rows;
    struct buf unflushed; /* frames written and not in the file */
    struct store_mark mark, durable;
    struct waiting *first, *last;
    struct sim_event job;
    int step; /* of the first one that waits: 0 not begun, 1 being written, 2 being flushed */
    bool closed, failed;
    struct store_stats stats;
};

static struct store *stores[SIM_NODES_MAX + 1];
static uint64_t durable_index[SIM_NODES_MAX + 1]; /* also of nodes that are down */

/* ---- rows ---------------------------------------------------------------------------------------------------------- */

static uint32_t row_place(const struct rows *r, struct slice key)
{
    uint32_t low = 0, high = r->count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (slice_compare(slice_make(r->at[middle].key, r->at[middle].key_len), key) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static bool row_is(const struct rows *r, uint32_t at, struct slice key)
{
    return at < r->count && slice_equal(slice_make(r->at[at].key, r->at[at].key_len), key);
}

static char *bytes_copy(struct slice s)
{
    char *at = malloc(s.len + 1);
    must(at != NULL);
    if (s.len > 0) memcpy(at, s.at, s.len);
    return at;
}

static void row_put(struct rows *r, struct slice key, struct slice value)
{
    uint32_t at = row_place(r, key);
    if (row_is(r, at, key)) {
        free(r->at[at].value);
        r->bytes = r->bytes - r->at[at].value_len + value.len;
    } else {
        if (r->count == r->cap) {
            r->cap = r->cap * 2 + 256;
            r->at = realloc(r->at, r->cap * sizeof r->at[0]);
            must(r->at != NULL);
        }
        memmove(&r->at[at + 1], &r->at[at], (r->count - at) * sizeof r->at[0]);
        r->count++;
        r->at[at] = (struct row){.key = bytes_copy(key), .key_len = (uint32_t)key.len};
        r->bytes += key.len + value.len;
    }
    r->at[at].value = bytes_copy(value);
    r->at[at].value_len = (uint32_t)value.len;
}

static void rows_drop(struct rows *r, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        r->bytes -= r->at[i].key_len + r->at[i].value_len;
        free(r->at[i].key);
        free(r->at[i].value);
    }
    memmove(&r->at[from], &r->at[to], (r->count - to) * sizeof r->at[0]);
    r->count -= to - from;
}

/* ---- batches:  op 1 | key length 4 | value length 4 | key | value ----------------------------------------------------- */

static void op_put(struct store_batch *b, uint8_t op, struct slice key, struct slice value)
{
    buf_byte(&b->ops, (char)op);
    buf_u32(&b->ops, (uint32_t)key.len);
    buf_u32(&b->ops, (uint32_t)value.len);
    buf_slice(&b->ops, key);
    buf_slice(&b->ops, value);
    b->rows++;
}

static bool op_next(struct slice *rest, uint8_t *op, struct slice *key, struct slice *value)
{
    uint32_t lens[2];
    if (rest->len < 9) return false;
    *op = (uint8_t)rest->at[0];
    memcpy(lens, rest->at + 1, 8);
    *key = slice_make(rest->at + 9, lens[0]);
    *value = slice_make(rest->at + 9 + lens[0], lens[1]);
    size_t len = 9 + (size_t)lens[0] + lens[1];
    *rest = slice_make(rest->at + len, rest->len - len);
    return true;
}

static void ops_apply(struct rows *r, struct slice ops)
{
    uint8_t op;
    struct slice key, value;
    while (op_next(&ops, &op, &key, &value)) {
        uint32_t at = row_place(r, key);
        if (op == OP_PUT) {
            row_put(r, key, value);
        } else if (op == OP_DELETE) {
            if (row_is(r, at, key)) rows_drop(r, at, at + 1);
        } else {
            uint32_t to = row_place(r, value);
            if (to > at) rows_drop(r, at, to);
        }
    }
}

/* frame:  crc of the rest 4 | length of ops 4 | mark 24 | ops */
static void frame_put(struct buf *out, const struct store_mark *m, struct slice ops)
{
    size_t at = out->len;
    buf_u32(out, 0);
    buf_u32(out, (uint32_t)ops.len);
    buf_u64(out, m->index);
    buf_u64(out, m->term);
    buf_u64(out, m->scan_pos);
    buf_slice(out, ops);
    uint32_t crc = crc32c(0, out->at + at + 4, out->len - at - 4);
    memcpy(out->at + at, &crc, 4);
}

static bool frame_next(struct slice *rest, struct store_mark *m, struct slice *ops)
{
    uint32_t crc, len;
    if (rest->len < 32) return false;
    memcpy(&crc, rest->at, 4);
    memcpy(&len, rest->at + 4, 4);
    if (len > rest->len - 32 || crc32c(0, rest->at + 4, 28 + (size_t)len) != crc) return false;
    memcpy(&m->index, rest->at + 8, 8);
    memcpy(&m->term, rest->at + 16, 8);
    memcpy(&m->scan_pos, rest->at + 24, 8);
    *ops = slice_make(rest->at + 32, len);
    *rest = slice_make(rest->at + 32 + len, rest->len - 32 - len);
    return true;
}

/* All rows as one batch. */
static void rows_frame(const struct rows *r, const struct store_mark *m, bool checkpoint, struct buf *out)
{
    struct store_batch all = {0};
    for (uint32_t i = 0; i < r->count; i++) {
        if (checkpoint && i == r->count / 2 && PLANTED("snapshot-missing-row")) continue;
        op_put(&all, OP_PUT, slice_make(r->at[i].key, r->at[i].key_len), slice_make(r->at[i].value, r->at[i].value_len));
    }
    frame_put(out, m, buf_view(&all.ops));
    buf_free(&all.ops);
}

/* ---- opening ------------------------------------------------------------------------------------------------------- */

static void path_of(char out[512], const char *dir, const char *name)
{
    snprintf(out, 512, "%s/%s", dir, name);
}

enum store_status store_open(struct store **out, const struct store_options *o, struct store_mark *mark, struct buf *error)
{
    must(sim.node != NULL && stores[sim.node->id] == NULL);
    char path[512];
    struct store *s = calloc(1, sizeof *s);
    must(s != NULL);
    sim_io_point();
    s->node = sim.node;
    s->o = *o;
    s->dir = strdup(o->dir);
    vfile_make(s->node, o->dir, true);
    path_of(path, o->dir, "CURRENT");
    s->file = vfile_make(s->node, path, false);
    struct slice rest = vfile_bytes(s->file), ops;
    uint64_t whole = 0, bytes = rest.len;
    while (frame_next(&rest, &s->mark, &ops)) {
        ops_apply(&s->rows, ops);
        whole = bytes - rest.len;
    }
    if (whole < bytes) {
        /* A flush that was cut short was never promised. Damage within is told by a whole frame behind it. */
        struct slice later = rest;
        struct store_mark m;
        for (; later.len > 32; later = slice_make(later.at + 1, later.len - 1)) {
            struct slice probe = later;
            if (!frame_next(&probe, &m, &ops)) continue;
            buf_printf(error, "%s: damaged", path);
            return STORE_DAMAGED;
        }
        vfile_cut(s->node, s->file, whole);
    }
    vfile_sync(s->file);
    s->durable = s->mark;
    durable_index[s->node->id] = s->mark.index;
    *mark = s->mark;
    stores[s->node->id] = s;
    *out = s;
    sim_block(1000 + rng_span(&s->node->rng, 0, 4000));
    return STORE_OK;
}

void sim_store_end(struct sim_node *n, enum sim_end how)
{
    (void)how;
    struct store *s = stores[n->id];
    stores[n->id] = NULL;
    if (s == NULL) return;
    sim_cancel(&s->job);
}

void sim_store_wiped(struct sim_node *n)
{
    durable_index[n->id] = 0;
}

uint64_t sim_store_durable_index(const struct sim_node *n)
{
    return durable_index[n->id];
}

/* ---- the thread's work --------------------------------------------------------------------------------------------- */

static bool flush_now(struct store *s)
{
    if (s->unflushed.len > 0 && !vfile_append(s->node, s->file, buf_view(&s->unflushed))) return false;
    s->stats.flushes++;
    return true;
}

static void flush_done(struct store *s)
{
    vfile_sync(s->file);
    buf_clear(&s->unflushed);
    s->durable = s->mark;
    durable_index[s->node->id] = s->mark.index;
    if (vfile_bytes(s->file).len < COMPACT_BYTES || vfile_bytes(s->file).len < 2 * s->rows.bytes) return;
    struct buf all = {0};
    rows_frame(&s->rows, &s->mark, false, &all);
    vfile_replace(s->node, s->file, buf_view(&all));
    buf_free(&all);
}

struct told {
    struct loop_task task;
    struct store_mark mark;
    void *ctx;
    void (*call)(void *ctx, struct store_mark mark);
    void (*done)(void *ctx, struct store_mark mark, const char *error);
    const char *error;
};

static void told_run(struct loop_task *t)
{
    struct told *d = outer(t, struct told, task);
    if (d->call != NULL) d->call(d->ctx, d->mark);
    if (d->done != NULL) d->done(d->ctx, d->mark, d->error);
    free(d);
}

static void tell(struct store *s, const struct waiting *w, bool flushed)
{
    void (*call)(void *ctx, struct store_mark mark) = flushed ? w->flushed : w->written;
    bool checkpoint = w->done != NULL;
    if (call == NULL && !checkpoint) return;
    struct told *d = calloc(1, sizeof *d);
    must(d != NULL);
    *d = (struct told){.mark = w->mark, .ctx = w->ctx, .call = call};
    d->task.run = told_run;
    if (checkpoint) {
        d->call = NULL;
        d->done = w->done;
        d->mark = s->durable;
    }
    loop_post(s->o.loop, &d->task);
}

static void checkpoint_write(struct store *s, const char *dir)
{
    char path[512];
    struct buf all = {0};
    vfile_make(s->node, dir, true);
    path_of(path, dir, "CURRENT");
    rows_frame(&s->rows, &s->mark, true, &all);
    struct vfile *f = vfile_make(s->node, path, false);
    vfile_replace(s->node, f, buf_view(&all));
    buf_free(&all);
}

static void store_fail(struct store *s, const char *what)
{
    s->failed = true;
    s->node->disk.had_failure = true;
    s->o.failed(s->o.ctx, what);
}

static void job_arm(struct store *s, int64_t us)
{
    sim_at(&s->job, s->node, sim.now_us + sim.ahead_us + us);
}

static void waiting_next(struct store *s)
{
    struct waiting *w = s->first;
    s->first = w->next;
    if (s->first == NULL) s->last = NULL;
    if (w->batch != NULL) store_batch_drop(s, w->batch);
    free(w->dir);
    free(w);
    s->step = 0;
}

static void written(struct store *s, struct waiting *w)
{
    if (w->batch != NULL) {
        ops_apply(&s->rows, buf_view(&w->batch->ops));
        s->mark = w->mark;
        frame_put(&s->unflushed, &s->mark, buf_view(&w->batch->ops));
        s->stats.batches++;
        s->stats.rows += w->batch->rows;
        tell(s, w, false);
    }
    if (!w->flush && !rng_chance(&s->node->rng, 20)) {
        waiting_next(s);
        return;
    }
    if (!flush_now(s)) {
        store_fail(s, "store: a flush failed: No space left on device (injected)");
        return;
    }
    s->step = 2;
    job_arm(s, sim_disk_us(s->node) * 3);
}

static void job_run(struct sim_event *e)
{
    struct store *s = outer(e, struct store, job);
    struct waiting *w = s->first;
    if (s->step == 1) {
        written(s, w);
    } else if (s->step == 2) {
        if (s->node->disk.fail_syncs > 0) {
            s->node->disk.fail_syncs--;
            store_fail(s, "store: a sync failed: Input/output error (injected)");
            return;
        }
        flush_done(s);
        if (w->done != NULL) checkpoint_write(s, w->dir);
        if (w->flush) tell(s, w, true);
        waiting_next(s);
    }
    if (s->first != NULL && s->step == 0) {
        s->step = 1;
        job_arm(s, rng_span(&s->node->rng, 50, 2000));
    }
}

static void waiting_put(struct store *s, struct waiting *w)
{
    if (s->last != NULL) {
        s->last->next = w;
    } else {
        s->first = w;
    }
    s->last = w;
    s->job.run = job_run;
    if (s->step != 0) return;
    s->step = 1;
    job_arm(s, rng_span(&s->node->rng, 50, 2000));
}

/* ---- store.h ------------------------------------------------------------------------------------------------------- */

void store_close(struct store *s)
{
    if (s->closed) return;
    s->closed = true;
    sim_cancel(&s->job);
    if (s->step == 2) { /* the flush under way is in the file already */
        flush_done(s);
        waiting_next(s);
    }
    for (; s->first != NULL; waiting_next(s)) {
        if (s->first->batch == NULL) continue;
        ops_apply(&s->rows, buf_view(&s->first->batch->ops));
        s->mark = s->first->mark;
        frame_put(&s->unflushed, &s->mark, buf_view(&s->first->batch->ops));
    }
    if (!s->failed && flush_now(s)) flush_done(s);
    if (stores[s->node->id] == s) stores[s->node->id] = NULL;
}

enum store_status store_scan(struct store *s, struct slice from, struct slice to,
                             bool (*row)(void *ctx, struct slice key, struct slice value), void *ctx, struct buf *error)
{
    (void)error;
    for (uint32_t i = row_place(&s->rows, from); i < s->rows.count; i++) {
        const struct row *r = &s->rows.at[i];
        struct slice key = slice_make(r->key, r->key_len);
        if (to.len > 0 && slice_compare(key, to) >= 0) break;
        if (!row(ctx, key, slice_make(r->value, r->value_len))) break;
    }
    return STORE_OK;
}

enum store_status store_find(struct store *s, struct slice from, struct slice to,
                             bool (*row)(void *ctx, struct slice key, struct slice value), void *ctx, uint64_t *blocks_read,
                             struct buf *error)
{
    (void)blocks_read;
    return store_scan(s, from, to, row, ctx, error);
}

enum store_status store_sweep(struct store *s, const struct store_sweep *o, struct buf *error)
{
    return store_scan(s, o->from, o->to, o->row, o->ctx, error);
}

/* What is here is in memory anyway. */
void store_warm(struct store *s, struct slice from, struct slice to, size_t bytes)
{
    (void)s, (void)from, (void)to, (void)bytes;
}

enum store_status store_get(struct store *s, struct slice key, struct buf *out, bool *found, struct buf *error)
{
    (void)error;
    uint32_t at = row_place(&s->rows, key);
    *found = row_is(&s->rows, at, key);
    if (*found) buf_put(out, s->rows.at[at].value, s->rows.at[at].value_len);
    return STORE_OK;
}

struct store_batch *store_batch_new(struct store *s)
{
    (void)s;
    struct store_batch *b = calloc(1, sizeof *b);
    must(b != NULL);
    return b;
}

void store_batch_drop(struct store *s, struct store_batch *b)
{
    (void)s;
    buf_free(&b->ops);
    free(b);
}

void store_batch_put(struct store_batch *b, struct slice key, struct slice value)
{
    op_put(b, OP_PUT, key, value);
}

void store_batch_delete(struct store_batch *b, struct slice key)
{
    op_put(b, OP_DELETE, key, slice_of(""));
}

void store_batch_delete_range(struct store_batch *b, struct slice from, struct slice to)
{
    op_put(b, OP_RANGE, from, to);
}

size_t store_batch_bytes(const struct store_batch *b)
{
    return b->ops.len;
}

void store_submit(struct store *s, struct store_batch *b, struct store_mark mark, bool flush, void *ctx,
                  void (*written_call)(void *ctx, struct store_mark mark),
                  void (*flushed_call)(void *ctx, struct store_mark mark))
{
    struct waiting *w = calloc(1, sizeof *w);
    must(w != NULL && mark.index >= s->mark.index);
    *w = (struct waiting){
        .batch = b, .mark = mark, .flush = flush, .ctx = ctx, .written = written_call, .flushed = flushed_call};
    sim_io_point();
    waiting_put(s, w);
}

void store_checkpoint(struct store *s, const char *dir, void *ctx,
                      void (*done)(void *ctx, struct store_mark mark, const char *error))
{
    struct waiting *w = calloc(1, sizeof *w);
    must(w != NULL);
    *w = (struct waiting){.flush = true, .ctx = ctx, .dir = strdup(dir), .done = done};
    waiting_put(s, w);
}

bool store_busy(const struct store *s)
{
    return s->first != NULL;
}

void store_stats(struct store *s, struct store_stats *out)
{
    *out = s->stats;
    out->disk_bytes = vfile_bytes(s->file).len;
    out->memory_bytes = s->rows.bytes;
}
