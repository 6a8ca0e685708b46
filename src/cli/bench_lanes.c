/* Many lanes: one message into each, popped and acked by one group; memory at rest; then kill -9 and the time until the
 * broker is ready again, and what it remembers. */
#include <stdio.h>

#include "cli/bench.h"

static const double READY_LIMIT_S = 300;
static const double STOP_LIMIT_S = 30;

struct lanes_shared {
    struct bench *bench;
    _Atomic uint64_t next; /* lane */
    _Atomic uint64_t stored;
    uint64_t lanes;
};

static void lanes_open(struct load_conn *c)
{
    struct lanes_shared *s = c->group->shared;
    struct push_request *p = calloc(1, sizeof *p);
    must(p != NULL);
    push_request_make(p, s->bench, c->index, s->bench->options.batch);
    c->work = p;
}

static void lanes_close(struct load_conn *c)
{
    struct push_request *p = c->work;
    if (p == NULL) return;
    push_request_free(p);
    free(p);
}

static bool lanes_begin(struct load_conn *c)
{
    struct lanes_shared *s = c->group->shared;
    struct push_request *p = c->work;
    uint64_t first = atomic_fetch_add(&s->next, p->batch);
    if (first >= s->lanes) return false;
    push_request_renew(p);
    for (uint32_t i = 0; i < p->batch; i++) push_request_lane(p, i, (uint32_t)first + i);
    c->out = p->text;
    c->out_len = p->len;
    return true;
}

static enum load_verdict lanes_reply(struct load_conn *c, const struct load_answer *a, int64_t now_ns)
{
    struct lanes_shared *s = c->group->shared;
    struct push_request *p = c->work;
    enum load_verdict verdict = LOAD_DONE;
    if (!load_expect(c, a, 201, now_ns, &verdict)) return verdict;
    if (text_count(a->body, a->body_len, "\"status\":\"queued\"") != p->batch) {
        load_complain(c, "a push was not stored whole", a);
        return LOAD_DONE;
    }
    atomic_fetch_add(&s->stored, p->batch);
    return LOAD_DONE;
}

static const struct load_work lanes_work = {
    .open = lanes_open,
    .begin = lanes_begin,
    .reply = lanes_reply,
    .close = lanes_close,
};

static int phase_run(struct bench *b, const struct load_work *work, void *shared, const _Atomic uint64_t *value, uint64_t want,
                     const char *what)
{
    struct load l;
    bench_aim(b, &l);
    load_add(&l, work, shared, b->options.conns, 0);
    if (!load_start(&l)) return BENCH_UNREACHABLE;
    bool all = bench_await(&l, value, want);
    load_stop(&l);
    uint64_t wrong = l.total.errors + l.total.broken;
    if (all && wrong == 0) return BENCH_OK;
    fprintf(stderr, "queen bench: %s: %llu of %llu done, %llu wrong answers\n", what, (unsigned long long)atomic_load(value),
            (unsigned long long)want, (unsigned long long)wrong);
    return BENCH_REFUSED;
}

int bench_lanes_fill(struct bench *b)
{
    struct lanes_shared s = {.bench = b, .lanes = b->options.lanes};
    int64_t from = load_now_ns();
    int rc = phase_run(b, &lanes_work, &s, &s.stored, s.lanes, "pushing");
    report_number(&b->report, "push_s", (double)(load_now_ns() - from) / 1e9, 2);
    return rc;
}

int bench_lanes_drain(struct bench *b)
{
    const struct bench_options *o = &b->options;
    if (!o->pop) return BENCH_OK;
    struct drain_shared s;
    char query[64];
    snprintf(query, sizeof query, "batch=%u&partitions=%u", o->partitions, o->partitions);
    drain_shared_make(&s, b, query);
    s.one_lane = o->partitions == 1;
    s.ack = o->ack;
    int64_t from = load_now_ns();
    int rc = phase_run(b, &drain_work, &s, &s.done, o->lanes, "popping");
    report_number(&b->report, o->ack ? "pop_ack_s" : "pop_s", (double)(load_now_ns() - from) / 1e9, 2);
    return rc;
}

/* Waits until the memory has not changed by more than 0.5 % for 14 s (at most a minute): what is at rest leaves memory on a broker that
 * was idle for 11 s. */
static void memory_settle(pid_t pid, struct proc_sample *s)
{
    double steady = 0;
    double base = 0;
    for (double waited = 0; steady < 14 && waited < 60; waited += 0.5) {
        bench_sleep(0.5);
        proc_sample(pid, s);
        double now = (double)s->rss_bytes;
        bool same = now <= base * 1.005 && now >= base * 0.995;
        steady = same ? steady + 0.5 : 0;
        if (!same) base = now;
    }
}

/* After the restart: the group has nothing left to take, and a new group finds the messages. */
static int lanes_verify(struct bench *b)
{
    const struct bench_options *o = &b->options;
    char path[512];
    snprintf(path, sizeof path, "/api/v1/pop/queue/%s?batch=64&partitions=64&consumerGroup=%s", b->queue, o->group);
    int rc = bench_call(b, "GET", path, NULL, o->pop ? 204 : 200);
    if (rc != BENCH_OK) return rc;
    snprintf(path, sizeof path, "/api/v1/pop/queue/%s?batch=64&partitions=64&consumerGroup=%s-after&subscriptionMode=all",
             b->queue, o->group);
    rc = bench_call(b, "GET", path, NULL, 200);
    if (rc != BENCH_OK) return rc;
    uint32_t want = o->lanes < 64 ? o->lanes : 64;
    uint32_t found = text_count(b->client.body.at, b->client.body.len, "\"transactionId\":\"");
    if (found == want) return BENCH_OK;
    fprintf(stderr, "queen bench: %u of %u messages were found after the restart\n", found, want);
    return BENCH_REFUSED;
}

static int lanes_restart(struct bench *b, struct proc_broker *broker)
{
    struct report *r = &b->report;
    proc_broker_kill(broker);
    client_close(&b->client);
    double ready_ms = proc_broker_start(broker, READY_LIMIT_S);
    if (ready_ms < 0) return BENCH_UNREACHABLE;
    report_number(r, "ready_again_s", ready_ms / 1e3, 2);
    struct proc_sample s;
    proc_sample(broker->pid, &s);
    report_number(r, "rss_ready_mb", (double)s.rss_bytes / 1e6, 1);
    int rc = lanes_verify(b);
    memory_settle(broker->pid, &s);
    report_number(r, "rss_after_restart_mb", (double)s.rss_bytes / 1e6, 1);
    report_number(r, "rss_after_restart_peak_mb", (double)s.rss_bytes_peak / 1e6, 1);
    return rc;
}

static int lanes_measure(struct bench *b, struct proc_broker *broker)
{
    struct report *r = &b->report;
    struct proc_sample s;
    proc_sample(broker->pid, &s);
    report_number(r, "rss_empty_mb", (double)s.rss_bytes / 1e6, 1);
    int rc = bench_queue_create(b);
    if (rc == BENCH_OK) rc = bench_lanes_fill(b);
    if (rc == BENCH_OK) rc = bench_lanes_drain(b);
    if (rc != BENCH_OK) return rc;
    memory_settle(broker->pid, &s);
    report_number(r, "rss_mb", (double)s.rss_bytes / 1e6, 1);
    report_number(r, "rss_peak_mb", (double)s.rss_bytes_peak / 1e6, 1);
    report_number(r, "rss_anonymous_mb", (double)s.rss_bytes_anonymous / 1e6, 1);
    return lanes_restart(b, broker);
}

int bench_lanes(struct bench *b)
{
    struct bench_options *o = &b->options;
    if (o->batch > o->lanes) o->batch = o->lanes;
    o->lanes = o->lanes / o->batch * o->batch; /* whole batches */
    struct proc_broker broker = {.binary = o->binary, .data = o->data, .port = o->port};
    if (proc_broker_start(&broker, READY_LIMIT_S) < 0) return BENCH_UNREACHABLE;
    b->pid = broker.pid;
    int rc = lanes_measure(b, &broker);
    proc_broker_stop(&broker, STOP_LIMIT_S);
    return rc;
}
