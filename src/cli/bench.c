#include "cli/bench.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/uuid.h"

enum {
    BENCH_CALL_MS = 60000,
};

void bench_sleep(double s)
{
    if (s <= 0) return;
    struct timespec t = {.tv_sec = (time_t)s, .tv_nsec = (long)((s - (double)(time_t)s) * 1e9)};
    nanosleep(&t, NULL);
}

int bench_open(struct bench *b)
{
    const struct bench_options *o = &b->options;
    char url[300];
    snprintf(url, sizeof url, "http://%s:%u", o->host, o->port);
    struct in_addr address;
    if (inet_pton(AF_INET, o->host, &address) != 1 || !client_init(&b->client, url)) {
        fprintf(stderr, "queen bench: --host takes an IPv4 address, not %s\n", o->host);
        return BENCH_USAGE;
    }
    char id[UUID_TEXT];
    uint8_t random[4];
    random_bytes(random, sizeof random);
    uuid_text(uuid_mint(clock_wall_us()), id);
    memcpy(b->run_id, id, sizeof b->run_id - 1); /* aaaaaaaa-bbbb-7ccc-8ddd */
    if (o->queue != NULL) {
        snprintf(b->queue, sizeof b->queue, "%s", o->queue);
    } else {
        snprintf(b->queue, sizeof b->queue, "bench-%02x%02x%02x%02x", random[0], random[1], random[2], random[3]);
    }
    b->pid = o->pid > 0 ? o->pid : proc_listener(o->port);
    return BENCH_OK;
}

int bench_call(struct bench *b, const char *method, const char *path, const char *body, unsigned status)
{
    struct slice text = slice_of(body == NULL ? "" : body);
    if (client_call(&b->client, method, slice_of(path), text, b->call_ms > 0 ? b->call_ms : BENCH_CALL_MS) != CLIENT_ANSWERED) {
        fprintf(stderr, "queen bench: %s %s: %s (is the server running? see --host, --port)\n", method, path, b->client.error);
        return BENCH_UNREACHABLE;
    }
    if (b->client.status == status) return BENCH_OK;
    int shown = b->client.body.len > 400 ? 400 : (int)b->client.body.len;
    fprintf(stderr, "queen bench: %s %s: status %u: %.*s\n", method, path, b->client.status, shown, b->client.body.at);
    return BENCH_REFUSED;
}

int bench_queue_create(struct bench *b)
{
    char body[400];
    snprintf(body, sizeof body, "{\"queue\":\"%s\",\"options\":{\"dedupWindowSeconds\":%d,\"leaseTime\":300}}", b->queue,
             b->options.dedup ? 3600 : 0);
    return bench_call(b, "POST", "/api/v1/configure", body, 200);
}

void bench_queue_delete(struct bench *b)
{
    if (b->options.queue != NULL) return;
    char path[300];
    snprintf(path, sizeof path, "/api/v1/resources/queues/%s", b->queue);
    bench_call(b, "DELETE", path, NULL, 200);
}

void bench_aim(const struct bench *b, struct load *l)
{
    *l = (struct load){.threads = b->options.threads, .host_text = b->options.host};
    l->to.sin_family = AF_INET;
    l->to.sin_port = htons(b->options.port);
    int rc = inet_pton(AF_INET, b->options.host, &l->to.sin_addr);
    must(rc == 1); /* bench_open has checked it */
}

bool bench_await(struct load *l, const _Atomic uint64_t *value, uint64_t want)
{
    enum { STEP_US = 1000, STILL_US_MAX = 30000000 };
    uint64_t before = 0;
    for (uint64_t still_us = 0; still_us < STILL_US_MAX; still_us += STEP_US) {
        uint64_t now = atomic_load(value);
        if (now >= want) return true;
        if (atomic_load(&l->stop)) return false;
        if (now != before) still_us = 0;
        before = now;
        bench_sleep(STEP_US / 1e6);
    }
    return false;
}

int bench_run(struct bench *b, struct load *l, bool (*finished)(void *arg), void *arg)
{
    const struct bench_options *o = &b->options;
    if (!load_start(l)) return BENCH_UNREACHABLE;
    bench_sleep(o->warmup_s);
    proc_sample(b->pid, &b->from);
    atomic_store(&l->window_from_ns, b->from.at_ns);
    for (;;) {
        double left = o->duration_s - (double)(load_now_ns() - b->from.at_ns) / 1e9;
        if (left <= 0 || atomic_load(&l->stop) || (finished != NULL && finished(arg))) break;
        bench_sleep(left < 0.002 ? left : 0.002);
    }
    atomic_store(&l->window_to_ns, load_now_ns());
    proc_sample(b->pid, &b->to);
    if (b->settle != NULL) b->settle(l, b->settle_arg);
    load_stop(l);
    if (atomic_load(&l->failed)) {
        fprintf(stderr, "queen bench: the server went away (%llu connections broke)\n", (unsigned long long)l->total.broken);
        return BENCH_UNREACHABLE;
    }
    const struct load_counts *c = &l->total;
    double seconds = (double)(b->to.at_ns - b->from.at_ns) / 1e9;
    report_number(&b->report, "seconds", seconds, 2);
    report_number(&b->report, "messages_per_s", (double)c->messages / seconds, 0);
    report_number(&b->report, "requests_per_s", (double)c->requests / seconds, 0);
    report_count(&b->report, "messages", c->messages);
    report_count(&b->report, "errors", c->errors + c->broken);
    report_count(&b->report, "refused", c->refused);
    report_count(&b->report, "answers_checked", c->checked);
    report_latency(&b->report, &c->latency);
    report_cost(&b->report, &b->from, &b->to, c->requests, c->messages);
    if (c->messages == 0) {
        fprintf(stderr,
                "queen bench: nothing happened in the measured time (too little to do, or a warm-up that took it all)\n");
    }
    return c->errors + c->broken > 0 || c->messages == 0 ? BENCH_REFUSED : BENCH_OK;
}
