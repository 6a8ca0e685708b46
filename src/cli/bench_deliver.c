/* From a push to its delivery: one message a call at an offered rate, consumers parked in long polls.
 *
 * `latency` runs from the moment a push was due to the moment a consumer has the message in hand (the payload carries the
 * former); `second` is the push's own answer. Each message is acked alone before its consumer parks again. */
#include <stdio.h>

#include "cli/bench.h"

struct deliver_conn {
    struct buf ack;
    bool acking;
};

static void deliver_open(struct load_conn *c)
{
    c->work = calloc(1, sizeof(struct deliver_conn));
    must(c->work != NULL);
}

static void deliver_close(struct load_conn *c)
{
    struct deliver_conn *d = c->work;
    if (d == NULL) return;
    buf_free(&d->ack);
    free(d);
}

static bool deliver_begin(struct load_conn *c)
{
    struct drain_shared *s = c->group->shared;
    struct deliver_conn *d = c->work;
    d->acking = false;
    c->out = s->pop;
    c->out_len = s->pop_len;
    return true;
}

static enum load_verdict deliver_popped(struct load_conn *c, const struct load_answer *a, int64_t now_ns)
{
    struct drain_shared *s = c->group->shared;
    struct deliver_conn *d = c->work;
    enum load_verdict verdict = LOAD_DONE;
    if (a->status == 204) return LOAD_DONE;
    if (!load_expect(c, a, 200, now_ns, &verdict)) return verdict;
    struct slice stamp = text_value(a->body, a->body_len, "\"at\":\"");
    if (stamp.len != PUSH_STAMP_DIGITS || ack_request_make(&d->ack, s->bench, a->body, a->body_len, true) != 1) {
        load_complain(c, "a pop that is not one message", a);
        return LOAD_DONE;
    }
    if (load_measures(c, now_ns)) {
        load_counts(c)->messages++;
        hist_add(&load_counts(c)->latency, now_ns - strtoll(stamp.at, NULL, 10));
    }
    atomic_fetch_add_explicit(&s->done, 1, memory_order_relaxed);
    d->acking = true;
    c->out = d->ack.at;
    c->out_len = d->ack.len;
    return LOAD_AGAIN;
}

static enum load_verdict deliver_reply(struct load_conn *c, const struct load_answer *a, int64_t now_ns)
{
    struct deliver_conn *d = c->work;
    if (!d->acking) return deliver_popped(c, a, now_ns);
    enum load_verdict verdict = LOAD_DONE;
    if (!load_expect(c, a, 200, now_ns, &verdict)) return verdict;
    load_counts(c)->checked++;
    if (text_count(a->body, a->body_len, "\"success\":true") != 1) load_complain(c, "an ack was not honoured", a);
    return LOAD_DONE;
}

static const struct load_work deliver_work = {
    .open = deliver_open,
    .begin = deliver_begin,
    .reply = deliver_reply,
    .close = deliver_close,
};

int bench_deliver(struct bench *b)
{
    const struct bench_options *o = &b->options;
    int rc = bench_queue_create(b);
    if (rc != BENCH_OK) return rc;
    struct drain_shared polls;
    drain_shared_make(&polls, b, "batch=1&wait=true&timeout=30000");
    struct push_shared push = {.bench = b, .conns = o->conns, .counting = PUSH_SECOND, .stamped = true};
    atomic_store(&push.left, INT64_MAX);
    struct load l;
    bench_aim(b, &l);
    load_add(&l, &deliver_work, &polls, o->consumers, 0);
    load_add(&l, &push_work, &push, o->conns, o->rate / o->batch);
    rc = bench_run(b, &l, NULL, NULL);
    if (rc != BENCH_UNREACHABLE) report_second(&b->report, &l.total.second);
    uint64_t received = atomic_load(&polls.done);
    uint64_t most = atomic_load(&push.stored) + o->conns;
    if (received > most) {
        fprintf(stderr, "queen bench: %llu deliveries of at most %llu messages\n", (unsigned long long)received,
                (unsigned long long)most);
        rc = BENCH_REFUSED;
    }
    bench_queue_delete(b);
    return rc;
}
