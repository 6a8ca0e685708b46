/* Start and stop of `queen serve`.
 *
 *   main thread   loop 0: signals, the other nodes, the listener; the group when there is one; edge 0 as well with one or two cores,
 *                 or when the groups have threads of their own
 *   edge threads  one loop each
 *
 *   start: the listener and the edges first, so that /health tells how far it is -> the node, whose state is loaded -> calls are taken
 *
 *   stop: SIGTERM -> no new connections -> the node answers every call -> the edges send what is in flight and close -> the
 *         loops end -> the node is closed. Each step has a limit in time. A second signal ends the process at once.
 *
 *   again: the node fetched a state, or learned its cluster, and must start anew: the same stop, then the process executes itself with
 *          its own arguments and environment; its number stays. A signal meanwhile makes it a plain stop. */
#include "http/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/logger.h"
#include "http/edge.h"
#include "http/kv_rates.h"
#include "http/listener.h"
#include "http/raft_view.h"

struct serve_edge {
    struct serve *serve;
    struct edge *edge;
    struct loop *loop;
    struct loop_task stop;
    pthread_t thread;
    bool has_thread, runs;
};

struct serve {
    struct config config;
    struct http http;
    struct loop *loop; /* main */
    struct loop_fd signals;
    bool stopping, again, signalled;
    struct listener *listener;
    struct loop_timer ready_timer;
    struct serve_edge *edges;
    struct loop_task close_listener, ended;
    atomic_uint edges_open;
};

static struct serve *serve_of(void *member, size_t at)
{
    return (struct serve *)(void *)((char *)member - at);
}

/* ---- stop --------------------------------------------------------------------------------------------------------- */

static void all_ended(struct loop_task *t)
{
    struct serve *s = serve_of(t, offsetof(struct serve, ended));
    loop_stop(s->loop);
}

static void edge_stopped(void *ctx)
{
    struct serve_edge *e = ctx;
    struct serve *s = e->serve;
    if (e->has_thread) loop_stop(e->loop);
    if (atomic_fetch_sub(&s->edges_open, 1) == 1) loop_post(s->loop, &s->ended);
}

static void edge_stop_run(struct loop_task *t)
{
    struct serve_edge *e = (struct serve_edge *)(void *)((char *)t - offsetof(struct serve_edge, stop));
    edge_stop(e->edge, edge_stopped, e);
}

static void node_stopped(void *ctx)
{
    struct serve *s = ctx;
    atomic_store(&s->edges_open, s->http.edge_count);
    s->ended.run = all_ended;
    for (uint32_t i = 0; i < s->http.edge_count; i++) {
        s->edges[i].stop.run = edge_stop_run;
        loop_post(s->edges[i].loop, &s->edges[i].stop);
    }
}

static void listener_close_run(struct loop_task *t)
{
    struct serve *s = serve_of(t, offsetof(struct serve, close_listener));
    listener_close(s->listener);
}

static void stop_begin(struct serve *s, const char *why)
{
    s->stopping = true;
    log_info("stopping (%s)", why);
    atomic_store(&s->http.stopping, true);
    loop_timer_cancel(s->loop, &s->ready_timer);
    s->close_listener.run = listener_close_run;
    loop_post(s->edges[0].loop, &s->close_listener);
    backups_stop(s->http.backups);
    node_stop(s->http.node, node_stopped, s);
}

static void stop_signal(struct serve *s, uint32_t number)
{
    if (s->signalled) {
        log_warn("second signal: leaving at once");
        _exit(0);
    }
    if (s->http.node == NULL) { /* nobody was answered and nothing is written: as good as a stop before the start */
        log_info("stopped while the state was loaded");
        _exit(0);
    }
    s->signalled = true;
    s->again = false;
    if (!s->stopping) stop_begin(s, number == SIGINT ? "SIGINT" : "SIGTERM");
}

static void start_anew(void *ctx)
{
    struct serve *s = ctx;
    if (s->stopping) return;
    s->again = true;
    stop_begin(s, "to start anew");
}

static void signals_ready(struct loop_fd *f, uint32_t events)
{
    struct serve *s = serve_of(f, offsetof(struct serve, signals));
    struct signalfd_siginfo info;
    (void)events;
    while (read(f->fd, &info, sizeof info) == (ssize_t)sizeof info) stop_signal(s, info.ssi_signo);
}

/* ---- start -------------------------------------------------------------------------------------------------------- */

static bool signals_open(struct serve *s)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    s->signals = (struct loop_fd){.fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC), .ready = signals_ready};
    return s->signals.fd >= 0 && loop_fd_add(s->loop, &s->signals, EPOLLIN);
}

/* As many descriptors as the system lets us have. Where they are few, stores keep fewer files open, and there are fewer connections when what
 * is left is not enough for the log, the stores and ourselves. False: there are too few to work at all. */
static bool files_raise(struct config *c)
{
    enum { FILES_OWN = 64, STORE_FILES_MIN = 20, STORE_FILES_MAX = 256, STORES_SHARE = 4, CONNECTIONS_MIN = 16 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return true;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) log_warn("the limit of open files stays as it is: %s", strerror(errno));
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return true;
    uint64_t each = limit.rlim_cur / STORES_SHARE / c->groups;
    c->store_files = each < STORE_FILES_MIN ? STORE_FILES_MIN : each > STORE_FILES_MAX ? STORE_FILES_MAX : (uint32_t)each;
    uint64_t daemons = c->connections_max / EDGE_DAEMON_CONNECTIONS + c->edge_threads; /* each has a descriptor */
    uint64_t reserved = FILES_OWN + (uint64_t)c->groups * c->store_files + daemons;
    if (limit.rlim_cur >= c->connections_max + reserved) return true;
    if (limit.rlim_cur < reserved + CONNECTIONS_MIN) {
        log_error("open files are limited to %llu: at least %llu are needed (ulimit -n)", (unsigned long long)limit.rlim_cur,
                  (unsigned long long)reserved + CONNECTIONS_MIN);
        return false;
    }
    c->connections_max = (uint32_t)(limit.rlim_cur - reserved);
    log_warn("open files are limited to %llu: at most %u connections, the rest is for the log and the store",
             (unsigned long long)limit.rlim_cur, c->connections_max);
    return true;
}

static void ready_fire(struct loop_timer *t)
{
    struct serve *s = serve_of(t, offsetof(struct serve, ready_timer));
    if (!http_ready(&s->http)) {
        loop_timer_set(s->loop, t, loop_now_us(s->loop) + 1000);
        return;
    }
    log_info("ready");
}

static void *edge_thread(void *ctx)
{
    struct serve_edge *e = ctx;
    loop_run(e->loop);
    return NULL;
}

static void seed_run(struct loop_task *t)
{
    struct serve_edge *e = (struct serve_edge *)(void *)((char *)t - offsetof(struct serve_edge, stop));
    edge_seed_fetch(e->edge);
}

/* Edges before the broker: their hooks run first in a shared loop, so what they read enters the log in the same turn. */
static bool edges_make(struct serve *s)
{
    uint32_t count = s->config.edge_threads;
    s->edges = calloc(count, sizeof *s->edges);
    s->http.edges = calloc(count, sizeof *s->http.edges);
    must(s->edges != NULL && s->http.edges != NULL);
    for (uint32_t i = 0; i < count; i++) {
        struct serve_edge *e = &s->edges[i];
        e->serve = s;
        e->has_thread = i > 0 || (s->config.groups == 1 && s->config.group_own_thread);
        e->loop = e->has_thread ? loop_new() : s->loop;
        if (e->loop == NULL) return false;
        e->edge = edge_new(&s->http, e->loop);
        s->http.edges[i] = e->edge;
        s->http.edge_count = i + 1;
    }
    return true;
}

static bool edges_run(struct serve *s)
{
    for (uint32_t i = 0; i < s->http.edge_count; i++) {
        struct serve_edge *e = &s->edges[i];
        e->runs = e->has_thread && pthread_create(&e->thread, NULL, edge_thread, e) == 0;
        if (e->has_thread && !e->runs) return false;
    }
    return true;
}

static void edges_join(struct serve *s)
{
    for (uint32_t i = 0; i < s->http.edge_count; i++) {
        if (s->edges[i].runs) pthread_join(s->edges[i].thread, NULL);
        s->edges[i].runs = false;
    }
}

/* The process ends, with nothing to wait for. */
static void edges_halt(struct serve *s)
{
    for (uint32_t i = 0; i < s->http.edge_count; i++) {
        if (s->edges[i].runs) loop_stop(s->edges[i].loop);
    }
    edges_join(s);
}

static void state_loading(void *ctx, uint64_t rows, uint32_t per_mille)
{
    struct serve *s = ctx;
    atomic_store_explicit(&s->http.rows_loaded, rows, memory_order_relaxed);
    atomic_store_explicit(&s->http.loaded_per_mille, per_mille, memory_order_relaxed);
    loop_turn(s->loop);
}

static void say_listening(const struct serve *s)
{
    const char *host = s->config.host;
    bool six = strchr(host, ':') != NULL;
    log_info("listening on http://%s%s%s:%u (no authentication; set HOST to listen elsewhere)", six ? "[" : "", host,
             six ? "]" : "", listener_port(s->listener));
}

static int fail(int code, const char *what, const struct buf *error)
{
    if (error == NULL || error->len == 0)
        log_error("%s", what);
    else
        log_error("%s%.*s", what, (int)error->len, error->at);
    return code;
}

/* Only when that fails does it come back. */
static int exec_self(void)
{
    enum { ARGUMENTS_BYTES_MAX = 1 << 21, ARGUMENTS_MAX = 1024 };
    static char *arguments[ARGUMENTS_MAX + 1];
    char *bytes = malloc(ARGUMENTS_BYTES_MAX);
    size_t len = 0, count = 0;
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    must(bytes != NULL);
    for (ssize_t n = 1; fd >= 0 && n > 0 && len<ARGUMENTS_BYTES_MAX - 1; len += n> 0 ? (size_t)n : 0)
        n = read(fd, bytes + len, ARGUMENTS_BYTES_MAX - 1 - len);
    for (size_t at = 0; at < len && count < ARGUMENTS_MAX; at += strlen(bytes + at) + 1) arguments[count++] = bytes + at;
    if (count > 0) {
        close_range(3, ~0u, CLOSE_RANGE_CLOEXEC); /* whatever a library left open */
        execv("/proc/self/exe", arguments);
    }
    log_error("cannot start anew: %s", strerror(errno));
    return 3;
}

static int node_begin(struct serve *s, struct buf *error)
{
    int exit_code = 2;
    struct node_owner owner = {.ctx = s, .again = start_anew, .loading = state_loading};
    struct node *n = node_open(&s->config, s->loop, &owner, &exit_code, error);
    if (n == NULL) return exit_code;
    s->http.backups = backups_new(n, &s->config);
    s->http.scrub = scrub_new(n, &s->config);
    atomic_store(&s->http.loaded_per_mille, 1000);
    s->http.node = n;
    raft_answers(&s->http);
    s->edges[0].stop.run = seed_run;
    loop_post(s->edges[0].loop, &s->edges[0].stop);
    return 0;
}

static int serve_run(struct serve *s, struct buf *error)
{
    s->loop = loop_new();
    if (s->loop == NULL || !signals_open(s) || !edges_make(s)) return fail(3, "cannot make an event loop", NULL);
    s->listener = listener_open(&s->http, s->edges[0].loop, error);
    if (s->listener == NULL) return fail(1, "", error);
    listener_accept(s->listener);
    say_listening(s);
    int code = 3;
    if (edges_run(s))
        code = node_begin(s, error);
    else
        buf_text(error, "cannot start a thread");
    if (code == NODE_AGAIN) return exec_self();
    if (code != 0) {
        edges_halt(s);
        return fail(code, "", error);
    }
    if (!s->edges[0].has_thread) edge_behind_broker(s->edges[0].edge);
    s->ready_timer.fire = ready_fire;
    loop_timer_set(s->loop, &s->ready_timer, clock_mono_us());
    loop_run(s->loop);
    edges_join(s);
    return 0;
}

static void serve_free(struct serve *s)
{
    for (uint32_t i = 0; i < s->http.edge_count; i++) edge_free(s->http.edges[i]);
    scrub_free(s->http.scrub);
    node_close(s->http.node);
    backups_free(s->http.backups);
    listener_free(s->listener);
    kv_rates_free(s->http.kv_rates);
    for (uint32_t i = 0; i < s->http.edge_count; i++) {
        if (s->edges[i].has_thread) loop_free(s->edges[i].loop);
    }
    close(s->signals.fd);
    loop_free(s->loop);
    free(s->edges);
    free(s->http.edges);
    free(s);
}

int serve_main(int argc, char **argv)
{
    struct serve *s = calloc(1, sizeof *s);
    struct buf error = {0};
    must(s != NULL && argc >= 1);
    s->http.started_us = clock_mono_us();
    s->http.config = &s->config;
    if (!config_read(&s->config, argc - 1, argv + 1, &error)) {
        fprintf(stderr, "%.*s\n", (int)error.len, error.at);
        buf_free(&error);
        free(s);
        return 1;
    }
    logger_init((enum logger_level)s->config.log_level, s->config.log_json);
    config_print(&s->config);
    s->http.kv_rates = kv_rates_new(&s->config);
    int code = files_raise(&s->config) ? serve_run(s, &error) : 1;
    buf_free(&error);
    if (code != 0) return code; /* the process ends; what was opened is closed by that */
    bool again = s->again;
    serve_free(s);
    log_info(again ? "starting anew" : "stopped");
    return again ? exec_self() : 0;
}
