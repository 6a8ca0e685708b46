/* The log alone: group commits a second, MB a second, latency and CPU, for batches of several sizes.
 *
 *   bench_log DIR [seconds a row] [segment MiB]
 *
 * Two ways of driving it. "wait": one batch, then wait until it is durable, then the next: the latency of one group commit. "stream":
 * batches are appended as fast as the log takes them, at most `window` bytes not durable: what a busy broker does; commits are then as
 * large as they become. Everything behind is trimmed as it goes, so files are made, zeroed and recycled as in real use.
 * CPU is the whole process's, user and system. */
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/logger.h"
#include "log/log.h"

enum { SAMPLES_MAX = 1 << 20 };

struct bench {
    struct log *log;
    int event;
    uint64_t index;
    atomic_bool failed;
};

static void on_synced(void *ctx)
{
    struct bench *b = ctx;
    uint64_t one = 1;
    if (write(b->event, &one, sizeof one) < 0) atomic_store(&b->failed, true);
}

static void on_failed(void *ctx, const char *what)
{
    struct bench *b = ctx;
    fprintf(stderr, "%s\n", what);
    atomic_store(&b->failed, true);
    on_synced(ctx);
}

static void on_record(void *ctx, const struct log_record *r)
{
    ((struct bench *)ctx)->index = r->index;
}

static void event_wait(struct bench *b)
{
    uint64_t count;
    if (read(b->event, &count, sizeof count) < 0 || atomic_load(&b->failed)) exit(1);
}

static int64_t cpu_us(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return ((int64_t)r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1000000 + r.ru_utime.tv_usec + r.ru_stime.tv_usec;
}

static void append(struct bench *b, const char *body, size_t bytes)
{
    char *at = log_reserve(b->log, bytes);
    memcpy(at, body, bytes);
    log_append(b->log, ++b->index, 1, 1, bytes);
    log_flush(b->log);
}

static int order(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return left < right ? -1 : left > right;
}

static void row(struct bench *b, const char *way, size_t bytes, size_t window, double seconds, const char *body,
                uint32_t *samples)
{
    struct log_stats before, after;
    log_stats(b->log, &before);
    int64_t begun = clock_mono_us(), end = begun + (int64_t)(seconds * 1e6), cpu = cpu_us();
    uint64_t batches = 0, count = 0;
    while (clock_mono_us() < end) {
        int64_t one = clock_mono_us();
        append(b, body, bytes);
        batches++;
        while (log_unsynced_bytes(b->log) > window) event_wait(b);
        if (window == 0 && count < SAMPLES_MAX) samples[count++] = (uint32_t)(clock_mono_us() - one);
        if (batches % 4096 == 0 || bytes >= 65536) log_trim(b->log, log_end_pos(b->log), NULL, NULL);
    }
    while (log_unsynced_bytes(b->log) > 0) event_wait(b);
    double took = (double)(clock_mono_us() - begun) / 1e6;
    cpu = cpu_us() - cpu;
    log_stats(b->log, &after);
    double syncs = (double)(after.syncs - before.syncs), data = (double)batches * (double)bytes / 1e6;
    printf("%-7s %8zu  %9.0f  %9.0f  %7.0f  %7.1f %8.1f  %6.1f", way, bytes, (double)batches / took, syncs / took, data / took,
           (double)cpu / syncs, (double)cpu / data, 100.0 * (double)cpu / 1e6 / took);
    if (count > 0) {
        qsort(samples, count, sizeof *samples, order);
        printf("  %6u %6u %6u", samples[count / 2], samples[count * 99 / 100], samples[count - 1]);
    } else {
        double us = (double)(after.sync_us_total - before.sync_us_total) / syncs;
        printf("  %6.0f      - %6llu", us, (unsigned long long)after.sync_us_max);
    }
    printf("\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: bench_log DIR [seconds a row] [segment MiB]\n");
        return 1;
    }
    double seconds = argc > 2 ? atof(argv[2]) : 2;
    uint64_t segment = (argc > 3 ? strtoull(argv[3], NULL, 10) : 64) << 20;
    struct bench b = {.event = eventfd(0, EFD_CLOEXEC)};
    struct log_options o = {.dir = argv[1],
                            .segment_bytes = segment,
                            .cache_bytes_max = 64 << 20,
                            .cache_age_us = 10000000,
                            .ctx = &b,
                            .record = on_record,
                            .synced = on_synced,
                            .failed = on_failed};
    struct buf error = {.len = 0};
    logger_init(LOGGER_INFO, false);
    int64_t begun = clock_mono_us();
    if (log_open(&b.log, &o, &error) != LOG_OK) {
        fprintf(stderr, "%.*s\n", (int)error.len, error.at);
        return 1;
    }
    printf("open: %.1f ms\n", (double)(clock_mono_us() - begun) / 1000);
    static const size_t sizes[] = {256, 4096, 65536, 1 << 20};
    char *body = malloc(1 << 20);
    uint32_t *samples = malloc(SAMPLES_MAX * sizeof *samples);
    if (body == NULL || samples == NULL) return 1;
    for (size_t i = 0; i < 1 << 20; i++) body[i] = (char)(i * 2654435761u >> 13);
    printf("way        bytes  batches/s    syncs/s     MB/s  us/sync    us/MB   CPU %%  p50 us p99 us max us\n");
    for (int i = 0; i < 4; i++) row(&b, "wait", sizes[i], 0, seconds, body, samples);
    for (int i = 0; i < 4; i++) row(&b, "stream", sizes[i], 16 << 20, seconds, body, samples);
    log_close(b.log);
    free(body);
    free(samples);
    buf_free(&error);
    return 0;
}
