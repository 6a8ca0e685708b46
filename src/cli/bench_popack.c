/* Popping and acking messages that exist.
 *
 * The lanes are filled first; then every connection pops a batch under a lease and acks it whole, until the measured time is
 * over or nearly everything is drained: the last lanes, for which more connections than lanes wait, are not measured.
 * With --pushers N, N connections push at the same time and nothing is filled first. An operation is a pop with its ack;
 * `second` is the ack alone. */
#include <stdio.h>

#include "cli/bench.h"

enum { FILL_BATCH = 100 };

struct drain_conn {
    struct buf ack;
    uint32_t messages; /* of the ack under way; 0: a pop is */
    uint32_t answers;
};

static void drain_open(struct load_conn *c)
{
    c->work = calloc(1, sizeof(struct drain_conn));
    must(c->work != NULL);
}

static void drain_close(struct load_conn *c)
{
    struct drain_conn *d = c->work;
    if (d == NULL) return;
    buf_free(&d->ack);
    free(d);
}

static bool drain_begin(struct load_conn *c)
{
    struct drain_shared *s = c->group->shared;
    struct drain_conn *d = c->work;
    d->messages = 0;
    c->out = s->pop;
    c->out_len = s->pop_len;
    return true;
}

/* The operation is over and was right. */
static enum load_verdict drain_counted(struct load_conn *c, int64_t now_ns)
{
    struct drain_shared *s = c->group->shared;
    const struct drain_conn *d = c->work;
    struct load_counts *n = load_counts(c);
    atomic_fetch_add_explicit(&s->done, d->messages, memory_order_relaxed);
    if (load_measures(c, now_ns)) {
        n->operations++;
        n->messages += d->messages;
        hist_add(&n->latency, now_ns - c->start_ns);
        if (s->ack) hist_add(&n->second, now_ns - c->sent_ns);
    }
    return LOAD_DONE;
}

static enum load_verdict drain_popped(struct load_conn *c, const struct load_answer *a, int64_t now_ns)
{
    struct drain_shared *s = c->group->shared;
    struct drain_conn *d = c->work;
    enum load_verdict verdict = LOAD_DONE;
    if (a->status == 204) {
        /* Every lane that holds something is leased. */
        c->wake_ns = now_ns + 1000000;
        c->start_ns = c->wake_ns;
        return LOAD_PAUSE;
    }
    if (!load_expect(c, a, 200, now_ns, &verdict)) return verdict;
    d->messages = ack_request_make(&d->ack, s->bench, a->body, a->body_len, s->one_lane);
    if (d->messages == 0) {
        load_complain(c, "a pop that is not understood", a);
        return LOAD_DONE;
    }
    if (!s->ack) return drain_counted(c, now_ns);
    c->out = d->ack.at;
    c->out_len = d->ack.len;
    return LOAD_AGAIN;
}

static enum load_verdict drain_reply(struct load_conn *c, const struct load_answer *a, int64_t now_ns)
{
    struct drain_conn *d = c->work;
    if (d->messages == 0) return drain_popped(c, a, now_ns);
    enum load_verdict verdict = LOAD_DONE;
    if (!load_expect(c, a, 200, now_ns, &verdict)) return verdict;
    struct load_counts *n = load_counts(c);
    if (d->answers++ % BENCH_CHECK_EVERY == 0) {
        n->checked++;
        if (text_count(a->body, a->body_len, "\"success\":true") != d->messages) {
            load_complain(c, "an ack was not honoured whole", a);
            return LOAD_DONE;
        }
    }
    return drain_counted(c, now_ns);
}

const struct load_work drain_work = {
    .open = drain_open,
    .begin = drain_begin,
    .reply = drain_reply,
    .close = drain_close,
};

void drain_shared_make(struct drain_shared *s, struct bench *b, const char *query)
{
    const struct bench_options *o = &b->options;
    *s = (struct drain_shared){.bench = b, .ack = true, .enough = UINT64_MAX};
    int n = snprintf(s->pop, sizeof s->pop,
                     "GET /api/v1/pop/queue/%s?%s&consumerGroup=%s&subscriptionMode=all HTTP/1.1\r\nHost: %s:%u\r\n\r\n",
                     b->queue, query, o->group, o->host, o->port);
    must(n > 0 && (size_t)n < sizeof s->pop);
    s->pop_len = (size_t)n;
}

static bool drained(void *arg)
{
    struct drain_shared *s = arg;
    return atomic_load_explicit(&s->done, memory_order_relaxed) >= s->enough;
}

static int popack_measure(struct bench *b, struct drain_shared *s)
{
    const struct bench_options *o = &b->options;
    struct load l;
    bench_aim(b, &l);
    load_add(&l, &drain_work, s, o->conns, 0);
    struct push_shared push = {.bench = b, .conns = o->pushers, .counting = PUSH_UNCOUNTED};
    atomic_store(&push.left, INT64_MAX);
    if (o->pushers > 0) {
        load_add(&l, &push_work, &push, o->pushers, o->rate / o->batch);
        s->enough = UINT64_MAX;
    }
    int rc = bench_run(b, &l, drained, s);
    if (rc == BENCH_UNREACHABLE) return rc;
    report_second(&b->report, &l.total.second);
    uint64_t acked = atomic_load(&s->done);
    uint64_t pushed = o->pushers > 0 ? atomic_load(&push.stored) + (uint64_t)o->pushers * o->batch : o->count;
    report_count(&b->report, "acked_in_all", acked);
    if (acked > pushed) {
        fprintf(stderr, "queen bench: %llu messages were acked but only %llu pushed\n", (unsigned long long)acked,
                (unsigned long long)pushed);
        return BENCH_REFUSED;
    }
    return rc;
}

int bench_popack(struct bench *b)
{
    struct bench_options *o = &b->options;
    int rc = bench_queue_create(b);
    if (rc != BENCH_OK) return rc;
    o->count = (o->count + FILL_BATCH - 1) / FILL_BATCH * FILL_BATCH;
    struct drain_shared shared;
    char query[64];
    snprintf(query, sizeof query, "batch=%u&partitions=%u", o->batch, o->partitions);
    drain_shared_make(&shared, b, query);
    shared.one_lane = o->partitions == 1;
    shared.enough = o->count - o->count / 20;
    if (o->pushers == 0) rc = bench_fill(b, o->count, FILL_BATCH);
    if (rc == BENCH_OK) rc = popack_measure(b, &shared);
    bench_queue_delete(b);
    return rc;
}
