/* Pushing: the first two rows of the table, and filling for the others.
 *
 * Each connection owns the lanes index, index + conns, index + 2 conns, ... and takes them in turn, so no two requests under
 * way meet in one lane. With fewer lanes than connections they share. */
#include <stdio.h>

#include "cli/bench.h"

struct push_conn {
    struct push_request request;
    uint32_t lane_next;
    uint32_t sent;
};

static void push_open(struct load_conn *c)
{
    struct push_shared *s = c->group->shared;
    struct push_conn *p = calloc(1, sizeof *p);
    must(p != NULL);
    push_request_make(&p->request, s->bench, c->index, s->bench->options.batch);
    p->lane_next = c->index % s->bench->options.lanes;
    c->work = p;
}

static void push_close(struct load_conn *c)
{
    struct push_conn *p = c->work;
    if (p == NULL) return;
    push_request_free(&p->request);
    free(p);
}

static uint32_t lane_take(struct push_conn *p, const struct load_conn *c, const struct push_shared *s)
{
    uint32_t lane = p->lane_next;
    uint32_t lanes = s->bench->options.lanes;
    p->lane_next = lane + s->conns < lanes ? lane + s->conns : c->index % lanes;
    return lane;
}

static bool push_begin(struct load_conn *c)
{
    struct push_shared *s = c->group->shared;
    struct push_conn *p = c->work;
    uint32_t batch = p->request.batch;
    if (atomic_load_explicit(&s->left, memory_order_relaxed) != INT64_MAX && atomic_fetch_sub(&s->left, (int64_t)batch) <= 0) {
        return false;
    }
    push_request_renew(&p->request);
    uint32_t lane = lane_take(p, c, s);
    for (uint32_t i = 0; i < batch; i++) {
        push_request_lane(&p->request, i, lane);
        if (s->bench->options.spread) lane = lane_take(p, c, s);
        if (s->stamped) push_request_stamp(&p->request, i, c->start_ns);
    }
    c->out = p->request.text;
    c->out_len = p->request.len;
    return true;
}

static enum load_verdict push_reply(struct load_conn *c, const struct load_answer *a, int64_t now_ns)
{
    struct push_shared *s = c->group->shared;
    struct push_conn *p = c->work;
    enum load_verdict verdict = LOAD_DONE;
    if (!load_expect(c, a, 201, now_ns, &verdict)) return verdict;
    uint32_t batch = p->request.batch;
    struct load_counts *n = load_counts(c);
    if (p->sent++ % BENCH_CHECK_EVERY == 0) {
        n->checked++;
        if (text_count(a->body, a->body_len, "\"status\":\"queued\"") != batch) {
            load_complain(c, "a push was not stored whole", a);
            return LOAD_DONE;
        }
    }
    atomic_fetch_add_explicit(&s->stored, batch, memory_order_relaxed);
    if (s->counting != PUSH_UNCOUNTED && load_measures(c, now_ns)) {
        if (s->counting == PUSH_SECOND) {
            hist_add(&n->second, now_ns - c->start_ns);
            return LOAD_DONE;
        }
        n->operations++;
        n->messages += batch;
        hist_add(&n->latency, now_ns - c->start_ns);
    }
    return LOAD_DONE;
}

const struct load_work push_work = {
    .open = push_open,
    .begin = push_begin,
    .reply = push_reply,
    .close = push_close,
};

int bench_fill(struct bench *b, uint64_t count, uint32_t batch)
{
    struct bench_options kept = b->options;
    b->options.batch = batch;
    struct push_shared shared = {.bench = b, .conns = 64};
    uint64_t want = (count + batch - 1) / batch * batch;
    atomic_store(&shared.left, (int64_t)want);
    struct load l;
    bench_aim(b, &l);
    load_add(&l, &push_work, &shared, shared.conns, 0);
    int rc = BENCH_UNREACHABLE;
    if (load_start(&l)) {
        bool filled = bench_await(&l, &shared.stored, want);
        load_stop(&l);
        rc = filled ? BENCH_OK : BENCH_REFUSED;
        if (!filled) fprintf(stderr, "queen bench: the lanes could not be filled\n");
    }
    b->options = kept;
    return rc;
}

int bench_push(struct bench *b)
{
    int rc = bench_queue_create(b);
    if (rc == BENCH_OK && b->options.count > 0) rc = bench_fill(b, b->options.count, b->options.batch);
    if (rc != BENCH_OK) return rc;
    struct push_shared shared = {.bench = b, .conns = b->options.conns};
    atomic_store(&shared.left, INT64_MAX);
    struct load l;
    bench_aim(b, &l);
    load_add(&l, &push_work, &shared, b->options.conns, b->options.rate / b->options.batch);
    rc = bench_run(b, &l, NULL, NULL);
    bench_queue_delete(b);
    return rc;
}
