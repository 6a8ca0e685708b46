/* The step, two ways.
 *
 * Open throttle (no --rate): the input lanes are filled first, then --conns workers step until the measured time is over or
 * 95 % is drained, so that nothing but pops and transactions is in the broker's CPU. `latency` is the whole step, `second`
 * the transaction alone (with --next they are one call: no `second`).
 *
 * At a rate (--rate STEPS/S): --pushers feeders push --batch messages to one lane when they are due, workers wait for them in
 * long polls, --consumers consumers take the outputs. `latency` runs from the moment an input's push was due to the moment a
 * consumer has its output in hand; `second` is the transaction alone. CPU then covers feeding and consuming too. */
#include <stdio.h>

#include "cli/bench_step.h"

enum {
    FILL_ITEMS = 100, /* of one push: groups of --batch messages, each to the next lane */
    PACED_WAIT_MS = 30000,
    PACED_NEXT_WAIT_MS = 1000, /* a transaction waits so long for its next batch */
};

/* ---- filling ---- */

struct fill {
    struct step_shared *step;
    uint64_t groups; /* of `batch` messages to one lane */
    _Atomic uint64_t next;
    _Atomic uint64_t stored;
};

static void fill_open(struct load_conn *c)
{
    struct fill *f = c->group->shared;
    const struct bench *b = f->step->bench;
    struct push_request *p = calloc(1, sizeof *p);
    must(p != NULL);
    uint32_t groups = b->options.batch < FILL_ITEMS ? FILL_ITEMS / b->options.batch : 1;
    push_request_make(p, b, c->index, groups * b->options.batch);
    c->work = p;
}

static void fill_close(struct load_conn *c)
{
    struct push_request *p = c->work;
    if (p == NULL) return;
    push_request_free(p);
    free(p);
}

static bool fill_begin(struct load_conn *c)
{
    struct fill *f = c->group->shared;
    struct push_request *p = c->work;
    const struct bench_options *o = &f->step->bench->options;
    uint64_t group = atomic_fetch_add(&f->next, p->batch / o->batch);
    if (group >= f->groups) return false;
    push_request_renew(p);
    for (uint32_t i = 0; i < p->batch; i++) {
        push_request_lane(p, i, (uint32_t)((group + i / o->batch) % o->lanes));
    }
    c->out = p->text;
    c->out_len = p->len;
    return true;
}

static enum load_verdict fill_reply(struct load_conn *c, const struct load_answer *a, int64_t now_ns)
{
    struct fill *f = c->group->shared;
    struct push_request *p = c->work;
    enum load_verdict verdict = LOAD_DONE;
    if (!load_expect(c, a, 201, now_ns, &verdict)) return verdict;
    if (text_count(a->body, a->body_len, "\"status\":\"queued\"") != p->batch) {
        load_complain(c, "a push was not stored whole", a);
        return LOAD_DONE;
    }
    atomic_fetch_add(&f->stored, p->batch);
    return LOAD_DONE;
}

static const struct load_work fill_work = {
    .open = fill_open,
    .begin = fill_begin,
    .reply = fill_reply,
    .close = fill_close,
};

/* Fills the lanes evenly with at least `count` messages; the input is then a multiple of what one push holds. */
static int step_fill(struct step_shared *s, uint64_t count, uint64_t *filled)
{
    struct bench *b = s->bench;
    uint32_t batch = b->options.batch;
    uint64_t each = batch < FILL_ITEMS ? FILL_ITEMS / batch * batch : batch;
    struct fill f = {.step = s};
    *filled = (count + each - 1) / each * each;
    f.groups = *filled / batch;
    struct load l;
    bench_aim(b, &l);
    load_add(&l, &fill_work, &f, 32, 0);
    if (!load_start(&l)) return BENCH_UNREACHABLE;
    int64_t from = load_now_ns();
    bool all = bench_await(&l, &f.stored, *filled);
    double seconds = (double)(load_now_ns() - from) / 1e9;
    load_stop(&l);
    report_count(&b->report, "filled", atomic_load(&f.stored));
    report_number(&b->report, "fill_s", seconds, 2);
    if (all && l.total.errors + l.total.broken == 0) return BENCH_OK;
    fprintf(stderr, "queen bench: the lanes could not be filled\n");
    return BENCH_REFUSED;
}

/* ---- the run ---- */

static void pop_put(struct buf *out, const struct bench *b, const char *queue, bool wait)
{
    const struct bench_options *o = &b->options;
    buf_printf(out,
               "GET /api/v1/pop/queue/%s?batch=%u&partitions=1&wait=%s&timeout=%d&consumerGroup=%s&subscriptionMode=all "
               "HTTP/1.1\r\nHost: %s:%u\r\n\r\n",
               queue, o->batch, wait ? "true" : "false", PACED_WAIT_MS, o->group, o->host, o->port);
}

static void step_requests_make(struct step_shared *s)
{
    const struct bench_options *o = &s->bench->options;
    pop_put(&s->pop, s->bench, s->bench->queue, s->paced);
    if (s->paced) pop_put(&s->consume, s->bench, s->out.queue, true);
    if (!o->next) return;
    buf_printf(
        &s->next,
        ",\"next\":{\"queue\":\"%s\",\"consumerGroup\":\"%s\",\"batch\":%u,\"partitions\":1,\"subscriptionMode\":\"all\","
        "\"wait\":%s,\"timeout\":%d}",
        s->bench->queue, o->group, o->batch, s->paced ? "true" : "false", PACED_NEXT_WAIT_MS);
}

static bool step_drained(void *arg)
{
    struct step_shared *s = arg;
    return atomic_load_explicit(&s->messages, memory_order_relaxed) >= s->enough;
}

/* Open throttle: no worker begins another transaction; those under way are answered. */
static void settle_workers(struct load *l, void *arg)
{
    struct step_shared *s = arg;
    atomic_store(&s->stopping, true);
    for (int ms = 0; ms < 10000 && atomic_load(&s->committing) > 0 && !atomic_load(&l->stop); ms++) bench_sleep(0.001);
}

struct paced {
    struct step_shared *step;
    struct push_shared push;
};

/* At a rate: the feeders stop, everything fed is stepped and consumed, then the workers stop. */
static void settle_paced(struct load *l, void *arg)
{
    struct paced *p = arg;
    struct step_shared *s = p->step;
    atomic_store(&p->push.left, 0);
    int still_ms = 0;
    for (int ms = 0; ms < 20000 && still_ms < 200 && !atomic_load(&l->stop); ms++) {
        bench_sleep(0.001);
        uint64_t fed = atomic_load(&p->push.stored);
        bool all = atomic_load(&s->messages) == fed && atomic_load(&s->consumed) == fed;
        still_ms = all ? still_ms + 1 : 0;
    }
    settle_workers(l, s);
}

static void step_report(struct step_shared *s, const struct load *l)
{
    struct bench *b = s->bench;
    struct report *r = &b->report;
    double seconds = (double)(b->to.at_ns - b->from.at_ns) / 1e9;
    double steps = (double)l->total.operations;
    double cpu_us = 1e6 * (b->to.user_s + b->to.system_s - b->from.user_s - b->from.system_s);
    bool known = b->from.alive && b->to.alive && steps > 0;
    report_number(r, "steps_per_s", steps / seconds, 0);
    report_count(r, "steps", l->total.operations);
    if (known) report_number(r, s->paced ? "broker_us_per_step_fed_and_consumed" : "broker_us_per_step", cpu_us / steps, 2);
    if (steps > 0) report_number(r, "client_us_per_step", 1e6 * (b->to.own_s - b->from.own_s) / steps, 2);
    if (!b->options.next) report_second(r, &l->total.second);
    report_count(r, "steps_in_all", atomic_load(&s->steps));
    report_count(r, "short_steps", atomic_load(&s->short_steps));
}

static int step_measure(struct step_shared *s)
{
    struct bench *b = s->bench;
    const struct bench_options *o = &b->options;
    struct load l;
    struct paced paced = {.step = s, .push = {.bench = b, .conns = o->pushers, .counting = PUSH_UNCOUNTED, .stamped = true}};
    bench_aim(b, &l);
    b->settle = s->paced ? settle_paced : settle_workers;
    b->settle_arg = s->paced ? (void *)&paced : (void *)s;
    load_add(&l, &step_work, s, o->conns, 0);
    if (s->paced) {
        atomic_store(&paced.push.left, INT64_MAX);
        load_add(&l, &push_work, &paced.push, o->pushers, o->rate);
        load_add(&l, &step_consume_work, s, o->consumers, 0);
    }
    int rc = bench_run(b, &l, step_drained, s);
    if (rc == BENCH_UNREACHABLE) return rc;
    step_report(s, &l);
    uint64_t fed = atomic_load(&paced.push.stored);
    uint64_t stepped = atomic_load(&s->messages);
    uint64_t consumed = atomic_load(&s->consumed);
    if (atomic_load(&s->committing) > 0 || (s->paced && (stepped != fed || consumed != fed))) {
        fprintf(stderr, "queen bench: work was left at the end: %llu fed, %llu stepped, %llu consumed\n",
                (unsigned long long)fed, (unsigned long long)stepped, (unsigned long long)consumed);
        return BENCH_REFUSED;
    }
    return rc;
}

int bench_step(struct bench *b)
{
    static struct step_shared s;
    struct bench_options *o = &b->options;
    s.bench = b;
    s.paced = o->rate > 0;
    s.enough = UINT64_MAX;
    s.out = *b;
    snprintf(s.out.queue, sizeof s.out.queue, "%.100s-out", b->queue);
    step_requests_make(&s);
    report_text(&b->report, "calls", o->next ? "one: transaction with next" : "two: pop, transaction");
    report_text(&b->report, "input", s.paced ? "fed meanwhile" : "filled before");
    int rc = bench_queue_create(b);
    if (rc == BENCH_OK) rc = bench_queue_create(&s.out);
    if (rc == BENCH_OK && !s.paced) {
        /* Enough for a little more than the goals. */
        double rate = o->next ? 40000 : o->batch == 1 ? 45000 : 30000;
        uint64_t count = o->count > 0 ? o->count : (uint64_t)(rate * (o->duration_s + o->warmup_s)) * o->batch;
        if (o->count == 0 && count < (uint64_t)o->lanes * o->batch) count = (uint64_t)o->lanes * o->batch;
        uint64_t filled = 0;
        rc = step_fill(&s, count, &filled);
        s.enough = filled - filled / 20;
    }
    if (rc == BENCH_OK) rc = step_measure(&s);
    if (rc == BENCH_OK) rc = step_check(&s);
    client_close(&s.out.client);
    bench_queue_delete(b);
    bench_queue_delete(&s.out);
    buf_free(&s.pop);
    buf_free(&s.consume);
    buf_free(&s.next);
    return rc;
}
