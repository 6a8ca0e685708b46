/* The net alone: two nodes in one process, each with a loop and a thread, over loopback.
 *
 *   bench_net [seconds a row]
 *
 * "round trip": one small frame there and one back, then the next: the way of an AppendEntries and its result. "stream": frames as fast as
 * the peer takes them, with at most 32 MiB not sent. "tag": the tag alone. CPU is of the whole process: user (ours, and OpenSSL's) and
 * system (the kernel's sockets), for one frame sent and received. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/logger.h"
#include "net/net.h"
#include "net/seal.h"

enum { CHANNEL = 1, WINDOW_BYTES = 32 << 20 };

struct node {
    struct loop *loop;
    struct net *net;
    pthread_t thread;
    uint64_t id, other;
    struct loop_hook hook;
    struct loop_task begin;
    _Atomic uint64_t frames;
    _Atomic uint32_t bytes_each, batch; /* 0: not sending */
    atomic_bool echo;
    char *bytes;
};

static void send_one(struct node *n, uint32_t len)
{
    struct slice part = slice_make(n->bytes, len);
    net_send(n->net, n->other, CHANNEL, 1, 0, &part, 1);
}

static void on_frame(void *ctx, uint64_t peer, uint8_t kind, struct slice frame)
{
    struct node *n = ctx;
    (void)peer, (void)kind;
    atomic_fetch_add_explicit(&n->frames, 1, memory_order_relaxed);
    if (atomic_load_explicit(&n->echo, memory_order_relaxed)) send_one(n, (uint32_t)frame.len);
}

/* Keeps the window full. */
static bool on_turn(struct loop_hook *hook)
{
    struct node *n = (struct node *)(void *)((char *)hook - offsetof(struct node, hook));
    uint32_t len = atomic_load_explicit(&n->bytes_each, memory_order_relaxed);
    uint32_t batch = atomic_load_explicit(&n->batch, memory_order_relaxed);
    if (len == 0 || batch == 0) return false;
    for (uint32_t i = 0; i < batch && net_backlog(n->net, n->other) < WINDOW_BYTES; i++) send_one(n, len);
    return net_backlog(n->net, n->other) < WINDOW_BYTES;
}

static void begin_run(struct loop_task *task)
{
    struct node *n = (struct node *)(void *)((char *)task - offsetof(struct node, begin));
    uint32_t len = atomic_load(&n->bytes_each);
    if (atomic_load(&n->echo)) send_one(n, len);
}

static void *thread_run(void *arg)
{
    loop_run(((struct node *)arg)->loop);
    return NULL;
}

static void node_open(struct node *n, uint64_t id, const char *const tls[3])
{
    struct buf error = {0};
    n->loop = loop_new();
    n->id = id;
    n->other = 3 - id;
    n->bytes = calloc(1, 8 << 20);
    must(n->loop != NULL && n->bytes != NULL);
    struct net_options o = {.loop = n->loop,
                            .self = {.node = id},
                            .secret = "a secret for the benchmark",
                            .listen_host = "127.0.0.1",
                            .tls_cert = tls[0],
                            .tls_key = tls[1],
                            .tls_ca = tls[2]};
    n->net = net_open(&o, &error);
    if (n->net == NULL) {
        fprintf(stderr, "%.*s\n", (int)error.len, error.at);
        exit(1);
    }
    net_attach(n->net, CHANNEL, &(struct net_channel){.ctx = n, .frame = on_frame});
    n->hook.run = on_turn;
    n->begin.run = begin_run;
    loop_hook_add(n->loop, &n->hook);
}

struct cpu {
    double user_us, system_us;
};

static struct cpu cpu_now(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (struct cpu){(double)r.ru_utime.tv_sec * 1e6 + (double)r.ru_utime.tv_usec,
                        (double)r.ru_stime.tv_sec * 1e6 + (double)r.ru_stime.tv_usec};
}

static void report(const char *what, uint32_t len, uint64_t frames, int64_t took_us, struct cpu before)
{
    struct cpu after = cpu_now();
    double f = (double)frames;
    printf("%-22s %8u %12.0f %10.1f %12.2f %12.2f\n", what, len, f * 1e6 / (double)took_us,
           f * len / (double)took_us * 1e6 / (1 << 20), (after.user_us - before.user_us) / f,
           (after.system_us - before.system_us) / f);
    fflush(stdout);
}

static void round_trips(struct node *a, struct node *b, uint32_t len, int64_t row_us)
{
    atomic_store(&a->echo, true);
    atomic_store(&b->echo, true);
    atomic_store(&a->bytes_each, len);
    atomic_store(&a->batch, 0);
    loop_post(a->loop, &a->begin);
    usleep(50000);
    uint64_t frames = atomic_load(&a->frames) + atomic_load(&b->frames);
    struct cpu before = cpu_now();
    int64_t began_us = clock_mono_us();
    usleep((useconds_t)row_us);
    frames = atomic_load(&a->frames) + atomic_load(&b->frames) - frames;
    report("round trip, each way", len, frames, clock_mono_us() - began_us, before);
    atomic_store(&a->echo, false);
    atomic_store(&b->echo, false);
    atomic_store(&a->bytes_each, 0);
    usleep(50000);
}

static void stream(struct node *a, struct node *b, uint32_t len, uint32_t batch, int64_t row_us)
{
    atomic_store(&a->batch, batch);
    atomic_store(&a->bytes_each, len);
    loop_post(a->loop, &a->begin);
    usleep(100000);
    uint64_t frames = atomic_load(&b->frames);
    struct cpu before = cpu_now();
    int64_t began_us = clock_mono_us();
    usleep((useconds_t)row_us);
    frames = atomic_load(&b->frames) - frames;
    char what[32];
    snprintf(what, sizeof what, "stream, %u a turn", batch);
    report(what, len, frames, clock_mono_us() - began_us, before);
    atomic_store(&a->bytes_each, 0);
    while (net_backlog(a->net, 2) > 0) usleep(1000);
    usleep(50000);
}

static void tags(uint32_t len)
{
    struct seal_key key = {.key = "0123456789abcde"};
    struct seal s = {0};
    uint8_t tag[SEAL_TAG];
    char *at = calloc(1, len);
    must(at != NULL);
    seal_open(&s, &key);
    uint64_t count = 0;
    struct cpu before = cpu_now();
    int64_t began_us = clock_mono_us();
    while (clock_mono_us() - began_us < 300000) {
        for (int i = 0; i < 100; i++, count++) seal_tag(&s, at, len, tag);
    }
    report("tag alone", len, count, clock_mono_us() - began_us, before);
    seal_close(&s);
    free(at);
}

struct dial {
    struct loop_task task;
    struct node *n;
    uint16_t port;
};

static void set_run(struct loop_task *task)
{
    struct dial *d = (struct dial *)(void *)task;
    net_peer_set(d->n->net, d->n->other, "127.0.0.1", d->port);
}

int main(int argc, char **argv)
{
    static struct node a, b;
    double seconds = argc > 1 ? atof(argv[1]) : 2;
    int64_t row_us = (int64_t)(seconds * 1e6);
    const char *const tls[3] = {argc > 4 ? argv[2] : NULL, argc > 4 ? argv[3] : NULL, argc > 4 ? argv[4] : NULL};
    if (row_us <= 0) {
        fprintf(stderr, "usage: bench_net [seconds a row [cert key ca]]\n");
        return 1;
    }
    logger_init(LOGGER_ERROR, false);
    node_open(&a, 1, tls);
    node_open(&b, 2, tls);
    struct dial to_b = {{.run = set_run}, &a, net_port(b.net)}, to_a = {{.run = set_run}, &b, net_port(a.net)};
    must(pthread_create(&a.thread, NULL, thread_run, &a) == 0 && pthread_create(&b.thread, NULL, thread_run, &b) == 0);
    loop_post(a.loop, &to_b.task);
    loop_post(b.loop, &to_a.task);
    while (!net_connected(a.net, 2) || !net_connected(b.net, 1)) usleep(1000);
    printf("%-22s %8s %12s %10s %12s %12s\n", "", "bytes", "frames/s", "MiB/s", "user us each", "system us");
    tags(100);
    tags(4096);
    tags(128 << 10);
    round_trips(&a, &b, 100, row_us);
    round_trips(&a, &b, 4096, row_us);
    stream(&a, &b, 100, 1, row_us);
    stream(&a, &b, 100, 16, row_us);
    stream(&a, &b, 100, 256, row_us);
    stream(&a, &b, 4096, 64, row_us);
    stream(&a, &b, 64 << 10, 16, row_us);
    stream(&a, &b, 1 << 20, 4, row_us);
    stream(&a, &b, 4 << 20, 2, row_us);
    loop_stop(a.loop);
    loop_stop(b.loop);
    pthread_join(a.thread, NULL);
    pthread_join(b.thread, NULL);
    net_close(a.net);
    net_close(b.net);
    loop_free(a.loop);
    loop_free(b.loop);
    free(a.bytes);
    free(b.bytes);
    return 0;
}
