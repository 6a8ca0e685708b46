/* Many parked long polls: what they cost at rest, and how fast they are all woken.
 *
 * Every connection parks one pop. After the warm-up the broker is watched for the measured time; then one message goes into
 * each of as many lanes, and every poll brings one. `latency` runs from the push that carried a message to its receipt. */
#include <stdio.h>

#include "cli/bench.h"

enum {
    WAKE_BATCH = 1000,
};

struct polls_conn {
    bool woken;
};

static void polls_open(struct load_conn *c)
{
    c->work = calloc(1, sizeof(struct polls_conn));
    must(c->work != NULL);
}

static void polls_close(struct load_conn *c)
{
    free(c->work);
}

static bool polls_begin(struct load_conn *c)
{
    struct drain_shared *s = c->group->shared;
    const struct polls_conn *p = c->work;
    if (p->woken) return false;
    c->out = s->pop;
    c->out_len = s->pop_len;
    return true;
}

static enum load_verdict polls_reply(struct load_conn *c, const struct load_answer *a, int64_t now_ns)
{
    struct drain_shared *s = c->group->shared;
    struct polls_conn *p = c->work;
    enum load_verdict verdict = LOAD_DONE;
    if (a->status == 204) return LOAD_DONE;
    if (!load_expect(c, a, 200, now_ns, &verdict)) return verdict;
    struct slice stamp = text_value(a->body, a->body_len, "\"at\":\"");
    if (stamp.len != PUSH_STAMP_DIGITS || text_count(a->body, a->body_len, "\"transactionId\":\"") != 1) {
        load_complain(c, "a poll that did not bring one message", a);
        return LOAD_DONE;
    }
    p->woken = true;
    atomic_fetch_add_explicit(&s->done, 1, memory_order_relaxed);
    if (load_measures(c, now_ns)) {
        load_counts(c)->messages++;
        hist_add(&load_counts(c)->latency, now_ns - strtoll(stamp.at, NULL, 10));
    }
    return LOAD_DONE;
}

static const struct load_work polls_work = {
    .open = polls_open,
    .begin = polls_begin,
    .reply = polls_reply,
    .close = polls_close,
};

/* One message into each of `count` lanes. */
static int polls_wake(struct bench *b, uint32_t count)
{
    struct push_request push;
    uint32_t batch = count < WAKE_BATCH ? count : WAKE_BATCH;
    push_request_make(&push, b, 0, batch);
    int rc = BENCH_OK;
    for (uint32_t lane = 0; rc == BENCH_OK && lane < count; lane += batch) {
        push_request_renew(&push);
        int64_t now = load_now_ns();
        for (uint32_t i = 0; i < batch; i++) {
            push_request_lane(&push, i, (lane + i) % count);
            push_request_stamp(&push, i, now);
        }
        struct slice body = push_request_body(&push);
        if (client_call(&b->client, "POST", slice_of("/api/v1/push"), body, 60000) != CLIENT_ANSWERED) {
            fprintf(stderr, "queen bench: the push that wakes: %s\n", b->client.error);
            rc = BENCH_UNREACHABLE;
        } else if (b->client.status != 201) {
            fprintf(stderr, "queen bench: the push that wakes: status %u\n", b->client.status);
            rc = BENCH_REFUSED;
        }
    }
    push_request_free(&push);
    return rc;
}

static int polls_measure(struct bench *b, struct load *l, struct drain_shared *s, const struct proc_sample *before)
{
    const struct bench_options *o = &b->options;
    struct report *r = &b->report;
    struct proc_sample from, to;
    bench_sleep(o->warmup_s);
    proc_sample(b->pid, &from);
    bench_sleep(o->duration_s);
    proc_sample(b->pid, &to);
    report_number(r, "seconds", (double)(to.at_ns - from.at_ns) / 1e9, 2);
    report_cost(r, &from, &to, 0, 0);
    report_number(r, "broker_rss_before_mb", (double)before->rss_bytes / 1e6, 1);
    report_number(r, "broker_kb_per_poll", ((double)to.rss_bytes - (double)before->rss_bytes) / 1e3 / o->conns, 2);
    uint64_t early = atomic_load(&s->done);
    int64_t wake_ns = load_now_ns();
    atomic_store(&l->window_from_ns, wake_ns);
    int rc = polls_wake(b, o->conns);
    bool all = rc == BENCH_OK && bench_await(l, &s->done, o->conns);
    report_number(r, "wake_all_s", (double)(load_now_ns() - wake_ns) / 1e9, 3);
    report_count(r, "woken", atomic_load(&s->done));
    if (early > 0) fprintf(stderr, "queen bench: %llu polls were answered before the push\n", (unsigned long long)early);
    if (!all && rc == BENCH_OK) fprintf(stderr, "queen bench: not every poll was woken\n");
    return all && early == 0 ? BENCH_OK : rc != BENCH_OK ? rc : BENCH_REFUSED;
}

int bench_polls(struct bench *b)
{
    int rc = bench_queue_create(b);
    if (rc != BENCH_OK) return rc;
    struct drain_shared shared;
    drain_shared_make(&shared, b, "batch=1&wait=true&timeout=60000");
    struct load l;
    bench_aim(b, &l);
    load_add(&l, &polls_work, &shared, b->options.conns, 0);
    struct proc_sample before;
    proc_sample(b->pid, &before);
    if (!load_start(&l)) return BENCH_UNREACHABLE;
    rc = polls_measure(b, &l, &shared, &before);
    load_stop(&l);
    report_count(&b->report, "errors", l.total.errors + l.total.broken);
    report_latency(&b->report, &l.total.latency);
    bench_queue_delete(b);
    return rc == BENCH_OK && l.total.errors + l.total.broken > 0 ? BENCH_REFUSED : rc;
}
