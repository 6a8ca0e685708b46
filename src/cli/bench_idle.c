/* A broker that has nothing to do: time from exec to ready on an empty folder, then memory and CPU at rest. */
#include <stdio.h>

#include "cli/bench.h"

static const double READY_LIMIT_S = 30;
static const double STOP_LIMIT_S = 10;
static const double SETTLE_S = 1;
static const double SETTLE_LIMIT_S = 15;

/* Waits until the work of a start (the next log segment is prepared in the background) is over: a second without CPU. */
static void start_settle(pid_t pid, struct proc_sample *s)
{
    double before = -1;
    for (double waited = 0; waited < SETTLE_LIMIT_S; waited += SETTLE_S) {
        bench_sleep(SETTLE_S);
        proc_sample(pid, s);
        if (s->user_s + s->system_s <= before) return;
        before = s->user_s + s->system_s;
    }
}

int bench_idle(struct bench *b)
{
    const struct bench_options *o = &b->options;
    struct report *r = &b->report;
    struct proc_broker broker = {.binary = o->binary, .data = o->data, .port = o->port};
    double ready_ms = proc_broker_start(&broker, READY_LIMIT_S);
    if (ready_ms < 0) return BENCH_UNREACHABLE;
    report_number(r, "ready_ms", ready_ms, 1);
    struct proc_sample from, to;
    start_settle(broker.pid, &from);
    bench_sleep(o->duration_s > 0 ? o->duration_s : 1);
    proc_sample(broker.pid, &to);
    double seconds = (double)(to.at_ns - from.at_ns) / 1e9;
    report_number(r, "seconds", seconds, 2);
    report_number(r, "start_cpu_ms", (from.user_s + from.system_s) * 1e3, 0);
    report_number(r, "cpu_percent", 100 * (to.user_s + to.system_s - from.user_s - from.system_s) / seconds, 2);
    report_number(r, "rss_mb", (double)to.rss_bytes / 1e6, 1);
    report_number(r, "rss_anonymous_mb", (double)to.rss_bytes_anonymous / 1e6, 1);
    int code = proc_broker_stop(&broker, STOP_LIMIT_S);
    report_number(r, "stop_code", code, 0);
    if (code != 0) fprintf(stderr, "queen bench: the broker did not stop cleanly (code %d)\n", code);
    return code == 0 ? BENCH_OK : BENCH_REFUSED;
}
