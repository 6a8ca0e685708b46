/* Replay of old messages: the lanes are filled, the broker is stopped and started again, so that none of it is in memory, and a new group
 * reads everything from the beginning.
 *
 * Between stop and start the pages that the kernel keeps of the data folder's files are given back (posix_fadvise), so that what is read
 * comes from the disk. An operation is a pop of `batch` messages with its ack; `second` is the ack alone. Measured until
 * nearly everything is read: the last lanes, for which more connections than lanes wait, are not. */
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <unistd.h>

#include "cli/bench.h"

enum { FILL_BATCH = 100 };
static const double READY_LIMIT_S = 300;
static const double STOP_LIMIT_S = 60;

static int pages_give_back(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)at;
    if (type != FTW_F) return 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    return 0;
}

static bool drained(void *arg)
{
    struct drain_shared *s = arg;
    return atomic_load_explicit(&s->done, memory_order_relaxed) >= s->enough;
}

static int replay_measure(struct bench *b)
{
    const struct bench_options *o = &b->options;
    struct drain_shared s;
    char query[64];
    struct load l;
    snprintf(query, sizeof query, "batch=%u&partitions=%u", o->batch, o->partitions);
    drain_shared_make(&s, b, query);
    s.one_lane = o->partitions == 1;
    s.ack = o->ack;
    s.enough = o->count - o->count / 20;
    bench_aim(b, &l);
    load_add(&l, &drain_work, &s, o->conns, 0);
    int rc = bench_run(b, &l, drained, &s);
    if (rc == BENCH_UNREACHABLE) return rc;
    report_second(&b->report, &l.total.second);
    uint64_t done = atomic_load(&s.done);
    report_count(&b->report, "read_in_all", done);
    if (done >= s.enough && done <= o->count) return rc;
    fprintf(stderr, "queen bench: %llu of %llu messages were read\n", (unsigned long long)done, (unsigned long long)o->count);
    return BENCH_REFUSED;
}

/* What the broker's group waited for by itself. */
static int waits_report(struct bench *b)
{
    static const struct {
        const char *family, *name;
    } numbers[] = {
        {"queen_cold_row_reads_total{during=\"entry\"} ", "rows_waited_for"},
        {"queen_cold_row_read_seconds_total{during=\"entry\"} ", "rows_waited_s"},
        {"queen_cold_block_reads_total ", "blocks_waited_for"},
        {"queen_cold_foreseen_total{outcome=\"read\"} ", "foreseen"},
    };
    int rc = bench_call(b, "GET", "/metrics/prometheus", NULL, 200);
    for (size_t i = 0; rc == BENCH_OK && i < sizeof numbers / sizeof numbers[0]; i++) {
        const char *at = memmem(b->client.body.at, b->client.body.len, numbers[i].family, strlen(numbers[i].family));
        if (at != NULL) report_number(&b->report, numbers[i].name, strtod(at + strlen(numbers[i].family), NULL), 3);
    }
    return rc;
}

static int replay_fill(struct bench *b, struct proc_broker *broker)
{
    struct bench_options *o = &b->options;
    o->count = (o->count + FILL_BATCH - 1) / FILL_BATCH * FILL_BATCH;
    int rc = bench_queue_create(b);
    if (rc == BENCH_OK) rc = bench_fill(b, o->count, FILL_BATCH);
    client_close(&b->client);
    int code = proc_broker_stop(broker, STOP_LIMIT_S);
    if (rc == BENCH_OK && code != 0) {
        fprintf(stderr, "queen bench: the broker did not stop cleanly (code %d), see %s\n", code, broker->log_path);
        rc = BENCH_REFUSED;
    }
    return rc;
}

int bench_replay(struct bench *b)
{
    const struct bench_options *o = &b->options;
    struct proc_broker broker = {.binary = o->binary, .data = o->data, .port = o->port};
    if (proc_broker_start(&broker, READY_LIMIT_S) < 0) return BENCH_UNREACHABLE;
    int rc = replay_fill(b, &broker);
    if (rc != BENCH_OK) return rc;
    if (nftw(o->data, pages_give_back, 16, FTW_PHYS) != 0) fprintf(stderr, "queen bench: %s cannot be walked\n", o->data);
    double ready_ms = proc_broker_start(&broker, READY_LIMIT_S);
    if (ready_ms < 0) return BENCH_UNREACHABLE;
    report_number(&b->report, "ready_s", ready_ms / 1e3, 2);
    b->pid = broker.pid;
    rc = replay_measure(b);
    if (rc == BENCH_OK) rc = waits_report(b);
    proc_broker_stop(&broker, STOP_LIMIT_S);
    return rc;
}
