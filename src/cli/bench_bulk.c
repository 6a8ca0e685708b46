/* What others notice of work over a whole queue: pushes and pops of a small queue at an offered rate, first alone, then while a group
 * seeks over many lanes, is deleted, and while their queue is deleted.
 *
 * Latency counts from the moment a call was due. The window of a work is from when it is asked for until its answer is there and the
 * memory it frees is given back, WINDOW_S_MIN at least; a ratio is that of the p99 in it to the p99 alone, of pushes or pops, whichever
 * is larger. */
#include <pthread.h>
#include <stdio.h>

#include "cli/bench.h"

enum { BULK_SEEK, BULK_SEEK_END, BULK_GROUP, BULK_QUEUE, BULK_COUNT };

static const double READY_LIMIT_S = 300;
static const double STOP_LIMIT_S = 30;
static const double WINDOW_S_MIN = 1;
static const double WINDOW_S_MAX = 300;

static const struct bulk_work {
    const char *took, *window, *push_p50, *push_p99, *push_max, *pop_p99, *ratio;
    const char *gone; /* the figure of /metrics that falls when memory was given back, or NULL */
} WORKS[] = {
    {"seek_s", "seek_window_s", "seek_push_p50_ms", "seek_push_p99_ms", "seek_push_max_ms", "seek_pop_p99_ms", "seek_ratio",
     NULL},
    {"seek_end_s", "seek_end_window_s", "seek_end_push_p50_ms", "seek_end_push_p99_ms", "seek_end_push_max_ms",
     "seek_end_pop_p99_ms", "seek_end_ratio", NULL},
    {"group_delete_s", "group_delete_window_s", "group_delete_push_p50_ms", "group_delete_push_p99_ms",
     "group_delete_push_max_ms", "group_delete_pop_p99_ms", "group_delete_ratio", "{kind=\"cursors\"}"},
    {"queue_delete_s", "queue_delete_window_s", "queue_delete_push_p50_ms", "queue_delete_push_p99_ms",
     "queue_delete_push_max_ms", "queue_delete_pop_p99_ms", "queue_delete_ratio", "{kind=\"partitions\"}"},
};

/* ---- the pops of the traffic ---------------------------------------------------------------------------------------- */

struct pops_shared {
    char pop[512];
    size_t len;
};

static void pops_open(struct load_conn *c)
{
    (void)c;
}

static bool pops_begin(struct load_conn *c)
{
    const struct pops_shared *s = c->group->shared;
    c->out = s->pop;
    c->out_len = s->len;
    return true;
}

static enum load_verdict pops_reply(struct load_conn *c, const struct load_answer *a, int64_t now_ns)
{
    enum load_verdict verdict = LOAD_DONE;
    if (a->status != 204 && !load_expect(c, a, 200, now_ns, &verdict)) return verdict;
    if (load_measures(c, now_ns)) hist_add(&load_counts(c)->second, now_ns - c->start_ns);
    return LOAD_DONE;
}

static const struct load_work pops_work = {.open = pops_open, .begin = pops_begin, .reply = pops_reply};

/* ---- a window ------------------------------------------------------------------------------------------------------- */

struct bulk {
    struct bench *bench, other; /* other: the queue of the traffic */
    struct push_shared push;
    struct pops_shared pops;
    double alone_push_ns, alone_pop_ns;
    int run;
};

static bool traffic_start(struct bulk *k, struct load *l)
{
    const struct bench_options *o = &k->bench->options;
    double calls = o->rate / o->batch;
    bench_aim(&k->other, l);
    k->other.run_id[sizeof k->other.run_id - 2] = (char)('a' + k->run++); /* ids are new ones each time */
    k->push = (struct push_shared){.bench = &k->other, .conns = o->conns, .counting = PUSH_COUNTED};
    atomic_store(&k->push.left, INT64_MAX);
    load_add(l, &push_work, &k->push, o->conns, calls);
    load_add(l, &pops_work, &k->pops, o->conns, calls);
    return load_start(l);
}

static int traffic_end(struct load *l)
{
    atomic_store(&l->window_to_ns, load_now_ns());
    load_stop(l);
    uint64_t wrong = l->total.errors + l->total.broken + l->total.refused;
    if (wrong == 0 && !atomic_load(&l->failed)) return BENCH_OK;
    fprintf(stderr, "queen bench: %llu calls of the traffic went wrong\n", (unsigned long long)wrong);
    return BENCH_REFUSED;
}

static double milliseconds(const struct hist *h, double share)
{
    return (double)hist_at(h, share) / 1e6;
}

static int alone_measure(struct bulk *k)
{
    const struct bench_options *o = &k->bench->options;
    struct report *r = &k->bench->report;
    struct load l;
    if (!traffic_start(k, &l)) return BENCH_UNREACHABLE;
    bench_sleep(o->warmup_s);
    atomic_store(&l.window_from_ns, load_now_ns());
    bench_sleep(o->duration_s);
    int rc = traffic_end(&l);
    k->alone_push_ns = (double)hist_at(&l.total.latency, 0.99);
    k->alone_pop_ns = (double)hist_at(&l.total.second, 0.99);
    report_number(r, "alone_push_p50_ms", milliseconds(&l.total.latency, 0.5), 3);
    report_number(r, "alone_push_p99_ms", milliseconds(&l.total.latency, 0.99), 3);
    report_number(r, "alone_push_max_ms", (double)l.total.latency.max_ns / 1e6, 3);
    report_number(r, "alone_pop_p99_ms", milliseconds(&l.total.second, 0.99), 3);
    return rc;
}

static int work_call(struct bench *b, int work)
{
    char path[400];
    const char *group = b->options.group;
    switch (work) {
    case BULK_SEEK:
    case BULK_SEEK_END:
        snprintf(path, sizeof path, "/api/v1/consumer-groups/%s/queues/%s/seek", group, b->queue);
        return bench_call(b, "POST", path, work == BULK_SEEK ? "{\"timestamp\":\"1970-01-01T00:00:00Z\"}" : "{\"toEnd\":true}",
                          200);
    case BULK_GROUP:
        snprintf(path, sizeof path, "/api/v1/consumer-groups/%s/queues/%s", group, b->queue);
        return bench_call(b, "DELETE", path, NULL, 200);
    default:
        snprintf(path, sizeof path, "/api/v1/resources/queues/%s", b->queue);
        return bench_call(b, "DELETE", path, NULL, 200);
    }
}

/* Has so much been given back that only the traffic's own is left? */
static bool given_back(struct bench *b, const char *label)
{
    if (label == NULL) return true;
    if (bench_call(b, "GET", "/metrics/prometheus", NULL, 200) != BENCH_OK) return true;
    char name[64];
    int n = snprintf(name, sizeof name, "queen_engine_objects%s ", label);
    for (const char *at = b->client.body.at, *end = at + b->client.body.len; at + n < end; at++) {
        if (memcmp(at, name, (size_t)n) == 0) return strtod(at + n, NULL) < b->options.lanes / 2.0;
        at = memchr(at, '\n', (size_t)(end - at));
        if (at == NULL) break;
    }
    return true;
}

static int work_measure(struct bulk *k, int work)
{
    const struct bulk_work *names = &WORKS[work];
    struct report *r = &k->bench->report;
    struct load l;
    if (!traffic_start(k, &l)) return BENCH_UNREACHABLE;
    bench_sleep(k->bench->options.warmup_s);
    int64_t from_ns = load_now_ns();
    atomic_store(&l.window_from_ns, from_ns);
    int rc = work_call(k->bench, work);
    double took_s = (double)(load_now_ns() - from_ns) / 1e9, window_s = took_s;
    while (rc == BENCH_OK && window_s < WINDOW_S_MAX && !given_back(k->bench, names->gone)) {
        bench_sleep(0.1);
        window_s = (double)(load_now_ns() - from_ns) / 1e9;
    }
    bench_sleep(WINDOW_S_MIN - window_s);
    window_s = (double)(load_now_ns() - from_ns) / 1e9;
    int wrong = traffic_end(&l);
    double push = (double)hist_at(&l.total.latency, 0.99) / k->alone_push_ns;
    double pop = (double)hist_at(&l.total.second, 0.99) / k->alone_pop_ns;
    report_number(r, names->took, took_s, 2);
    report_number(r, names->window, window_s, 2);
    report_number(r, names->push_p50, milliseconds(&l.total.latency, 0.5), 3);
    report_number(r, names->push_p99, milliseconds(&l.total.latency, 0.99), 3);
    report_number(r, names->push_max, (double)l.total.latency.max_ns / 1e6, 3);
    report_number(r, names->pop_p99, milliseconds(&l.total.second, 0.99), 3);
    report_number(r, names->ratio, push > pop ? push : pop, 2);
    return rc == BENCH_OK ? wrong : rc;
}

/* ---- the run -------------------------------------------------------------------------------------------------------- */

static int bulk_measure(struct bulk *k)
{
    struct bench *b = k->bench;
    struct bench_options kept = b->options;
    int rc = bench_queue_create(b);
    b->options.batch = b->options.lanes < 1000 ? 1 : 1000;
    b->options.lanes = b->options.lanes / b->options.batch * b->options.batch;
    b->options.partitions = 64;
    if (rc == BENCH_OK) rc = bench_lanes_fill(b);
    if (rc == BENCH_OK) rc = bench_lanes_drain(b);
    uint32_t lanes = b->options.lanes;
    b->options = kept;
    b->options.lanes = lanes;
    if (rc == BENCH_OK) rc = bench_queue_create(&k->other);
    if (rc == BENCH_OK) rc = alone_measure(k);
    for (int work = 0; rc == BENCH_OK && work < BULK_COUNT; work++) rc = work_measure(k, work);
    return rc;
}

int bench_bulk(struct bench *b)
{
    struct bench_options *o = &b->options;
    struct proc_broker broker = {.binary = o->binary, .data = o->data, .port = o->port};
    if (proc_broker_start(&broker, READY_LIMIT_S) < 0) return BENCH_UNREACHABLE;
    b->pid = broker.pid;
    static struct bulk k;
    b->call_ms = (int)WINDOW_S_MAX * 1000; /* a seek over many lanes takes its time */
    k.bench = b;
    k.other.options = *o;
    k.other.options.lanes = 200;
    int rc = bench_open(&k.other);
    if (rc == BENCH_OK) {
        int n = snprintf(k.pops.pop, sizeof k.pops.pop,
                         "GET /api/v1/pop/queue/%s?batch=20&partitions=10&autoAck=true&subscriptionMode=all&consumerGroup=%s "
                         "HTTP/1.1\r\nHost: %s:%u\r\n\r\n",
                         k.other.queue, o->group, o->host, o->port);
        must(n > 0 && (size_t)n < sizeof k.pops.pop);
        k.pops.len = (size_t)n;
        rc = bulk_measure(&k);
    }
    client_close(&k.other.client);
    proc_broker_stop(&broker, STOP_LIMIT_S);
    return rc;
}
