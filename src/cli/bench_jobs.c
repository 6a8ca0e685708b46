/* Jobs at an offered rate, each one message: push, then pop (waiting), then ack, each alone on the same connection.
 *
 * The pop may bring another connection's job: every job pushes one and finishes one. `latency` is the whole job from when it
 * was due, `second` its pop. Broker CPU a message is broker CPU a job. */
#include <stdio.h>

#include "cli/bench.h"

struct jobs_shared {
    struct drain_shared pop;
    uint32_t conns;
};

struct jobs_conn {
    struct push_request push;
    struct buf ack;
    uint32_t lane_next;
    enum { JOB_PUSH, JOB_POP, JOB_ACK } step;
};

static void jobs_open(struct load_conn *c)
{
    struct jobs_shared *s = c->group->shared;
    struct jobs_conn *j = calloc(1, sizeof *j);
    must(j != NULL);
    push_request_make(&j->push, s->pop.bench, c->index, 1);
    j->lane_next = c->index % s->pop.bench->options.lanes;
    c->work = j;
}

static void jobs_close(struct load_conn *c)
{
    struct jobs_conn *j = c->work;
    if (j == NULL) return;
    push_request_free(&j->push);
    buf_free(&j->ack);
    free(j);
}

static bool jobs_begin(struct load_conn *c)
{
    struct jobs_shared *s = c->group->shared;
    struct jobs_conn *j = c->work;
    uint32_t lanes = s->pop.bench->options.lanes;
    push_request_renew(&j->push);
    push_request_lane(&j->push, 0, j->lane_next);
    j->lane_next = j->lane_next + s->conns < lanes ? j->lane_next + s->conns : c->index % lanes;
    j->step = JOB_PUSH;
    c->out = j->push.text;
    c->out_len = j->push.len;
    return true;
}

static enum load_verdict jobs_wrong(struct load_conn *c, const char *what, const struct load_answer *a)
{
    load_complain(c, what, a);
    return LOAD_DONE;
}

static enum load_verdict jobs_acked(struct load_conn *c, const struct load_answer *a, int64_t now_ns)
{
    if (text_count(a->body, a->body_len, "\"success\":true") != 1) return jobs_wrong(c, "an ack was not honoured", a);
    if (load_measures(c, now_ns)) {
        struct load_counts *n = load_counts(c);
        n->operations++;
        n->messages++;
        hist_add(&n->latency, now_ns - c->start_ns);
    }
    return LOAD_DONE;
}

static enum load_verdict jobs_reply(struct load_conn *c, const struct load_answer *a, int64_t now_ns)
{
    struct jobs_shared *s = c->group->shared;
    struct jobs_conn *j = c->work;
    enum load_verdict verdict = LOAD_DONE;
    if (j->step == JOB_POP && a->status == 204) return LOAD_AGAIN; /* nothing was ready in all that time: ask again */
    if (!load_expect(c, a, j->step == JOB_PUSH ? 201 : 200, now_ns, &verdict)) return verdict;
    load_counts(c)->checked++;
    switch (j->step) {
    case JOB_PUSH:
        if (text_count(a->body, a->body_len, "\"status\":\"queued\"") != 1) {
            return jobs_wrong(c, "a push was not stored", a);
        }
        j->step = JOB_POP;
        c->out = s->pop.pop;
        c->out_len = s->pop.pop_len;
        return LOAD_AGAIN;
    case JOB_POP:
        if (ack_request_make(&j->ack, s->pop.bench, a->body, a->body_len, true) != 1) {
            return jobs_wrong(c, "a pop that is not one message", a);
        }
        if (load_measures(c, now_ns)) hist_add(&load_counts(c)->second, now_ns - c->sent_ns);
        j->step = JOB_ACK;
        c->out = j->ack.at;
        c->out_len = j->ack.len;
        return LOAD_AGAIN;
    case JOB_ACK:
        return jobs_acked(c, a, now_ns);
    }
    must(!"a step");
}

static const struct load_work jobs_work = {
    .open = jobs_open,
    .begin = jobs_begin,
    .reply = jobs_reply,
    .close = jobs_close,
};

int bench_jobs(struct bench *b)
{
    const struct bench_options *o = &b->options;
    int rc = bench_queue_create(b);
    if (rc != BENCH_OK) return rc;
    struct jobs_shared shared = {.conns = o->conns};
    drain_shared_make(&shared.pop, b, "batch=1&wait=true&timeout=5000");
    struct load l;
    bench_aim(b, &l);
    load_add(&l, &jobs_work, &shared, o->conns, o->rate);
    rc = bench_run(b, &l, NULL, NULL);
    if (rc != BENCH_UNREACHABLE) report_second(&b->report, &l.total.second);
    bench_queue_delete(b);
    return rc;
}
