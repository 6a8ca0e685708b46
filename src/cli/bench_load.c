#include "cli/bench_load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/must.h"

enum {
    LOAD_IN_BYTES = 4096,
    LOAD_EVENTS = 256,
    LOAD_COMPLAINTS_MAX = 5,
};

static const int64_t RECONNECT_NS = 100000000;
static const int64_t LOOP_SLEEP_NS = 10000000; /* longest sleep: how late `stop` may be noticed */

int64_t load_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

struct load_group *load_add(struct load *l, const struct load_work *work, void *shared, uint32_t conns, double rate)
{
    must(l->group_count < LOAD_GROUPS_MAX && conns > 0 && conns <= LOAD_CONNS_MAX);
    struct load_group *g = &l->groups[l->group_count++];
    *g = (struct load_group){.work = work, .shared = shared, .conns = conns, .rate = rate};
    g->conn = calloc(conns, sizeof *g->conn);
    must(g->conn != NULL);
    return g;
}

/* ---- a connection ---- */

static void conn_send(struct load_conn *c);
static void conn_begin(struct load_conn *c);

static void conn_watch(struct load_conn *c)
{
    int on = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
    int rc = epoll_ctl(c->thread->epoll, EPOLL_CTL_ADD, c->fd, &e);
    must(rc == 0);
}

static void conn_pause(struct load_conn *c, enum load_state state, int64_t wake_ns)
{
    c->state = state;
    heap_put(&c->thread->paused, &c->pause, wake_ns, c->index);
}

static void conn_break(struct load_conn *c)
{
    close(c->fd);
    c->fd = -1;
    c->in_len = 0;
    struct load *l = c->thread->load;
    if (atomic_load(&l->stop)) return;
    if (++c->thread->counts.broken > LOAD_BREAKS_MAX) {
        atomic_store(&l->failed, true);
        atomic_store(&l->stop, true);
        return;
    }
    conn_pause(c, LOAD_DOWN, load_now_ns() + RECONNECT_NS);
}

/* Opens the connection again without waiting for it; a refusal shows as an event. */
static void conn_reopen(struct load_conn *c)
{
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    must(c->fd >= 0);
    const struct sockaddr_in *to = &c->thread->load->to;
    if (connect(c->fd, (const struct sockaddr *)to, sizeof *to) != 0 && errno != EINPROGRESS) {
        conn_break(c);
        return;
    }
    conn_watch(c);
    c->start_ns = load_now_ns();
    conn_begin(c);
}

static void conn_send(struct load_conn *c)
{
    c->state = LOAD_BUSY;
    while (c->out_sent < c->out_len) {
        ssize_t n = send(c->fd, c->out + c->out_sent, c->out_len - c->out_sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0) {
            if (errno == EINTR) continue;
            if (errno == EAGAIN || errno == ENOTCONN) return; /* an event follows */
            conn_break(c);
            return;
        }
        c->out_sent += (size_t)n;
    }
}

static void conn_idle(struct load_conn *c)
{
    size_t g = (size_t)(c->group - c->thread->load->groups);
    c->state = LOAD_IDLE;
    c->next_idle = c->thread->group[g].idle;
    c->thread->group[g].idle = c;
}

/* Sends what the work prepared. */
static void conn_go(struct load_conn *c)
{
    c->out_sent = 0;
    client_reply_reset(&c->reply);
    c->sent_ns = load_now_ns();
    conn_send(c);
}

static void conn_begin(struct load_conn *c)
{
    if (c->group->work->begin(c)) {
        conn_go(c);
    } else {
        conn_idle(c);
    }
}

static void conn_answered(struct load_conn *c, const struct load_answer *a)
{
    int64_t now = load_now_ns();
    if (load_measures(c, now)) c->thread->counts.requests++;
    switch (c->group->work->reply(c, a, now)) {
    case LOAD_AGAIN:
        conn_go(c);
        return;
    case LOAD_PAUSE:
        conn_pause(c, LOAD_PAUSED, c->wake_ns);
        return;
    case LOAD_DONE:
        if (c->group->rate > 0) {
            conn_idle(c);
        } else {
            c->start_ns = now;
            conn_begin(c);
        }
        return;
    }
    must(!"a verdict");
}

/* One reply of Redis's protocol at `at`: its length, 0 when incomplete. Arrays add their elements to *due. */
static size_t resp_length(const char *at, size_t len, uint32_t *due, bool *error)
{
    const char *end = memchr(at, '\n', len);
    if (end == NULL) return 0;
    size_t head = (size_t)(end + 1 - at);
    if (at[0] == '-') *error = true;
    if (at[0] != '$' && at[0] != '*') return head;
    long n = strtol(at + 1, NULL, 10);
    if (n <= 0) return at[0] == '$' && n == 0 ? (len >= head + 2 ? head + 2 : 0) : head;
    if (at[0] == '*') {
        *due += (uint32_t)n;
        return head;
    }
    return len >= head + (size_t)n + 2 ? head + (size_t)n + 2 : 0;
}

/* Counts whole replies; `scanned` of the reply state keeps the place. */
static bool resp_read(struct load_conn *c, struct load_answer *a)
{
    bool error = c->reply.closes; /* kept over partial reads */
    while (c->replies_due > 0) {
        size_t n = resp_length(c->in + c->reply.scanned, c->in_len - c->reply.scanned, &c->replies_due, &error);
        c->reply.closes = error;
        if (n == 0) return false;
        c->reply.scanned += n;
        c->replies_due--;
    }
    *a = (struct load_answer){.status = error ? 500 : 200, .body = c->in, .body_len = c->reply.scanned};
    c->reply.closes = false;
    c->reply.total_len = c->reply.scanned;
    return true;
}

static bool http_read(struct load_conn *c, struct load_answer *a)
{
    switch (client_reply_read(&c->reply, c->in, c->in_len)) {
    case CLIENT_REPLY_MORE:
        return false;
    case CLIENT_REPLY_BAD:
        conn_break(c);
        return false;
    case CLIENT_REPLY_DONE:
        break;
    }
    *a = (struct load_answer){
        .status = c->reply.status,
        .retry_after_s = c->reply.retry_after_s,
        .body = c->in + c->reply.head_len,
        .body_len = c->reply.body_len,
    };
    return true;
}

/* Handles the answer in the buffer, if it is whole. At most one: one request is under way on a connection. */
static void conn_frame(struct load_conn *c)
{
    struct load_answer a;
    if (c->state != LOAD_BUSY || c->in_len == 0) return;
    if (!(c->group->work->resp ? resp_read(c, &a) : http_read(c, &a))) return;
    if (c->reply.total_len != c->in_len) {
        load_complain(c, "bytes behind an answer", &a);
        conn_break(c);
        return;
    }
    bool closes = c->reply.closes;
    c->in_len = 0;
    conn_answered(c, &a);
    if (closes && c->fd >= 0) conn_break(c);
}

static void conn_read(struct load_conn *c)
{
    for (;;) {
        if (c->in_cap - c->in_len < LOAD_IN_BYTES / 4) {
            c->in_cap = c->in_cap == 0 ? LOAD_IN_BYTES : c->in_cap * 2;
            c->in = realloc(c->in, c->in_cap);
            must(c->in != NULL);
        }
        size_t room = c->in_cap - c->in_len;
        ssize_t n = recv(c->fd, c->in + c->in_len, room, MSG_DONTWAIT);
        if (n < 0) {
            if (errno == EINTR) continue;
            if (errno != EAGAIN) conn_break(c);
            return;
        }
        if (n == 0) {
            conn_break(c);
            return;
        }
        c->in_len += (size_t)n;
        conn_frame(c);
        /* Edge-triggered: a short read has emptied the socket, or a new edge will come. */
        if ((size_t)n < room || c->fd < 0) return;
    }
}

static void conn_event(struct load_conn *c, uint32_t events)
{
    if (c->fd < 0) return;
    if ((events & EPOLLOUT) && c->state == LOAD_BUSY && c->out_sent < c->out_len) conn_send(c);
    if (c->fd >= 0 && (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))) conn_read(c);
}

/* ---- a thread ---- */

/* Starts what is due under an offered rate, as far as connections are free. Returns when the next is due. */
static int64_t thread_release(struct load_thread *t, int64_t now)
{
    int64_t next = now + LOOP_SLEEP_NS;
    for (uint32_t g = 0; g < t->load->group_count; g++) {
        if (t->group[g].interval_ns <= 0) continue;
        while (t->group[g].idle != NULL && t->group[g].due_ns <= (double)now) {
            struct load_conn *c = t->group[g].idle;
            t->group[g].idle = c->next_idle;
            c->start_ns = (int64_t)t->group[g].due_ns;
            t->group[g].due_ns += t->group[g].interval_ns;
            conn_begin(c);
            if (c->state == LOAD_IDLE) break; /* it had nothing to do */
        }
        if (t->group[g].idle != NULL && (int64_t)t->group[g].due_ns < next) next = (int64_t)t->group[g].due_ns;
    }
    return next;
}

static int64_t thread_wake(struct load_thread *t, int64_t now, int64_t next)
{
    struct heap_node *n;
    while ((n = heap_min(&t->paused)) != NULL && n->key <= now) {
        heap_remove(&t->paused, n);
        struct load_conn *c = (struct load_conn *)((char *)n - offsetof(struct load_conn, pause));
        if (c->state == LOAD_DOWN) {
            conn_reopen(c);
        } else {
            conn_go(c);
        }
    }
    return n != NULL && n->key < next ? n->key : next;
}

static void *thread_run(void *arg)
{
    struct load_thread *t = arg;
    struct load *l = t->load;
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
    int64_t now = load_now_ns();
    for (uint32_t g = 0; g < l->group_count; g++) {
        struct load_group *group = &l->groups[g];
        if (group->rate > 0) {
            t->group[g].interval_ns = 1e9 / group->rate * l->threads;
            /* The threads take turns. */
            t->group[g].due_ns = (double)now + t->group[g].interval_ns * (t->number + 1) / l->threads;
        }
        for (uint32_t i = t->number; i < group->conns; i += l->threads) {
            struct load_conn *c = &group->conn[i];
            c->start_ns = now;
            if (group->rate > 0) {
                conn_idle(c);
            } else {
                conn_begin(c);
            }
        }
    }
    struct epoll_event events[LOAD_EVENTS];
    while (!atomic_load_explicit(&l->stop, memory_order_relaxed)) {
        now = load_now_ns();
        int64_t next = thread_wake(t, now, thread_release(t, now));
        int64_t wait = next > now ? next - now : 0;
        struct timespec limit = {.tv_sec = 0, .tv_nsec = wait};
        int n = epoll_pwait2(t->epoll, events, LOAD_EVENTS, &limit, NULL);
        must(n >= 0 || errno == EINTR);
        for (int i = 0; i < n; i++) conn_event(events[i].data.ptr, events[i].events);
    }
    return NULL;
}

/* ---- the run ---- */

static void files_allow(uint64_t want)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur >= want) return;
    if (r.rlim_max < want) r.rlim_max = want; /* only root may */
    r.rlim_cur = want;
    if (setrlimit(RLIMIT_NOFILE, &r) == 0 || getrlimit(RLIMIT_NOFILE, &r) != 0) return;
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
}

/* One address gives some 28,000 ports, and finding a free one gets slow after half of them: on the loopback network the
 * connections are spread over several source addresses. */
static void conn_bind(const struct load *l, const struct load_conn *c)
{
    enum { CONNS_PER_ADDRESS = 8000 };
    if ((ntohl(l->to.sin_addr.s_addr) >> 24) != 127 || c->index < CONNS_PER_ADDRESS) return;
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + c->index / CONNS_PER_ADDRESS)};
    int on = 1;
    setsockopt(c->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    if (bind(c->fd, (const struct sockaddr *)&from, sizeof from) != 0) return; /* the kernel chooses, as without it */
}

static bool conn_open(struct load *l, struct load_conn *c)
{
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0) {
        fprintf(stderr, "queen bench: cannot open a socket: %s (raise `ulimit -n`)\n", strerror(errno));
        return false;
    }
    conn_bind(l, c);
    if (connect(c->fd, (const struct sockaddr *)&l->to, sizeof l->to) != 0) {
        char text[INET_ADDRSTRLEN];
        inet_ntop(AF_INET, &l->to.sin_addr, text, sizeof text);
        fprintf(stderr, "queen bench: cannot connect to %s:%u: %s (is the server running? see --host, --port)\n", text,
                ntohs(l->to.sin_port), strerror(errno));
        return false;
    }
    conn_watch(c);
    c->group->work->open(c);
    return true;
}

bool load_start(struct load *l)
{
    must(l->threads >= 1 && l->threads <= LOAD_THREADS_MAX && l->group_count > 0);
    uint64_t conns = 0;
    for (uint32_t g = 0; g < l->group_count; g++) conns += l->groups[g].conns;
    files_allow(conns + 100);
    atomic_store(&l->window_from_ns, INT64_MAX);
    atomic_store(&l->window_to_ns, INT64_MAX);
    l->thread = calloc(l->threads, sizeof *l->thread);
    must(l->thread != NULL);
    for (uint32_t i = 0; i < l->threads; i++) {
        l->thread[i].load = l;
        l->thread[i].number = i;
        l->thread[i].epoll = epoll_create1(EPOLL_CLOEXEC);
        must(l->thread[i].epoll >= 0);
    }
    for (uint32_t g = 0; g < l->group_count; g++) {
        for (uint32_t i = 0; i < l->groups[g].conns; i++) {
            struct load_conn *c = &l->groups[g].conn[i];
            c->fd = -1;
            c->index = i;
            c->group = &l->groups[g];
            c->thread = &l->thread[i % l->threads];
            if (!conn_open(l, c)) return false;
        }
    }
    for (uint32_t i = 0; i < l->threads; i++) {
        int rc = pthread_create(&l->thread[i].handle, NULL, thread_run, &l->thread[i]);
        must(rc == 0);
    }
    return true;
}

static void counts_add(struct load_counts *into, const struct load_counts *from)
{
    into->requests += from->requests;
    into->operations += from->operations;
    into->messages += from->messages;
    into->refused += from->refused;
    into->errors += from->errors;
    into->broken += from->broken;
    into->checked += from->checked;
    hist_merge(&into->latency, &from->latency);
    hist_merge(&into->second, &from->second);
}

void load_stop(struct load *l)
{
    atomic_store(&l->stop, true);
    for (uint32_t i = 0; i < l->threads; i++) {
        pthread_join(l->thread[i].handle, NULL);
        counts_add(&l->total, &l->thread[i].counts);
        close(l->thread[i].epoll);
        heap_free(&l->thread[i].paused);
    }
    for (uint32_t g = 0; g < l->group_count; g++) {
        for (uint32_t i = 0; i < l->groups[g].conns; i++) {
            struct load_conn *c = &l->groups[g].conn[i];
            if (c->fd >= 0) close(c->fd);
            free(c->in);
            if (c->group->work->close != NULL) c->group->work->close(c);
        }
        free(l->groups[g].conn);
    }
    free(l->thread);
    l->thread = NULL;
}

void load_complain(struct load_conn *c, const char *what, const struct load_answer *a)
{
    struct load *l = c->thread->load;
    c->thread->counts.errors++;
    if (atomic_fetch_add(&l->complaints, 1) >= LOAD_COMPLAINTS_MAX) return;
    int shown = a->body_len > 400 ? 400 : (int)a->body_len;
    fprintf(stderr, "queen bench: %s: status %u: %.*s\n", what, a->status, shown, a->body);
}

bool load_expect(struct load_conn *c, const struct load_answer *a, unsigned status, int64_t now_ns, enum load_verdict *verdict)
{
    if (a->status == status) return true;
    *verdict = LOAD_DONE;
    if (a->status == 429 || a->status == 503 || a->status == 507) {
        if (c->thread->counts.refused++ == 0) {
            fprintf(stderr, "queen bench: refused with %u: %.*s\n", a->status, a->body_len > 400 ? 400 : (int)a->body_len,
                    a->body);
        }
        c->wake_ns = now_ns + 1000000000;
        *verdict = LOAD_PAUSE;
        return false;
    }
    load_complain(c, "unexpected answer", a);
    return false;
}
