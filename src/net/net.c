#include "net/net.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/logger.h"
#include "net/net_inner.h"

enum { SECRET_BYTES_MIN = 16, LISTEN_BACKLOG = 64 };

/* ---- accepting */

static void strangers_limit(struct net *n)
{
    while (n->strangers >= STRANGERS_MAX) { /* the newest are at the front of the list */
        struct conn *oldest = NULL;
        for (struct conn *c = n->conns; c != NULL; c = c->next) {
            if (!c->dialled && c->state != CONN_UP) oldest = c;
        }
        must(oldest != NULL);
        conn_close(oldest, "too many connections have not said who they are");
    }
}

static void accept_ready(struct loop_fd *self, uint32_t events)
{
    struct net *n = (struct net *)(void *)((char *)self - offsetof(struct net, listen));
    (void)events;
    for (int i = 0; i < ACCEPTS_A_TURN; i++) {
        struct lookup_address a = {.len = sizeof a.at};
        int fd = accept4(self->fd, (struct sockaddr *)&a.at, &a.len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)) return;
        if (fd < 0) { /* no descriptors, no memory: it would be told again at once */
            if (logger_every(&n->strange_said_us, SAY_US))
                log_warn("a node's connection could not be taken: %s", strerror(errno));
            loop_fd_change(n->loop, &n->listen, 0);
            loop_timer_set(n->loop, &n->accept_again, clock_mono_us() + ACCEPT_PAUSE_US);
            return;
        }
        strangers_limit(n);
        struct conn *c = conn_new(n, fd, false, &a);
        if (n->tls == NULL) handshake_begin(c);
        conn_check(c);
    }
}

static void accept_again(struct loop_timer *t)
{
    struct net *n = (struct net *)(void *)((char *)t - offsetof(struct net, accept_again));
    loop_fd_change(n->loop, &n->listen, EPOLLIN);
}

static int listen_at(const struct addrinfo *a)
{
    int one = 1;
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, LISTEN_BACKLOG) == 0) return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static bool listen_open(struct net *n, const char *host, uint16_t port, struct buf *error)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    if (host == NULL || host[0] == 0) host = "127.0.0.1";
    int code = getaddrinfo(host, service, &hints, &list);
    if (code != 0) {
        buf_printf(error, "the address for nodes, %s: %s", host, gai_strerror(code));
        return false;
    }
    int fd = -1;
    for (struct addrinfo *a = list; a != NULL && fd < 0; a = a->ai_next) fd = listen_at(a);
    int failure = errno;
    freeaddrinfo(list);
    struct sockaddr_storage at = {0};
    socklen_t len = sizeof at;
    if (fd < 0 || getsockname(fd, (struct sockaddr *)&at, &len) != 0) {
        buf_printf(error, "the address for nodes, %s:%u: %s", host, port, strerror(failure));
        return false;
    }
    n->port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port : ((struct sockaddr_in *)&at)->sin_port);
    n->listen = (struct loop_fd){.fd = fd, .ready = accept_ready};
    return true;
}

/* ---- turns */

static bool peers_flush(struct net *n)
{
    bool more = false;
    if (!atomic_load(&n->dirty)) return false;
    atomic_store(&n->dirty, false);
    for (uint32_t i = 0; i < NET_PEERS_MAX; i++) {
        struct net_peer *p = &n->peers[i];
        if (!atomic_load_explicit(&p->dirty, memory_order_relaxed) || !atomic_exchange(&p->dirty, false)) continue;
        struct conn *c = p->out;
        if (c == NULL || c->state != CONN_UP) continue;
        if ((c->events & EPOLLOUT) == 0 && conn_write(c)) {
            peer_write_on(p);
            more = true;
        }
        conn_check(c);
    }
    return more;
}

/* Frames of other loops, and of hooks that run after ours: there is a turn for them, and the hook at its end writes. */
static void flush_run(struct loop_task *task)
{
    struct net *n = (struct net *)(void *)((char *)task - offsetof(struct net, flush_task));
    atomic_store(&n->flush_posted, false);
}

static bool net_turn(struct loop_hook *hook)
{
    struct net *n = (struct net *)(void *)((char *)hook - offsetof(struct net, hook));
    bool more = peers_flush(n);
    if (n->graveyard != NULL) conn_free_dead(n);
    return more;
}

static void conn_sweep(struct conn *c, int64_t now_us)
{
    if (c->state != CONN_UP) {
        if (now_us - c->began_us < HANDSHAKE_US) return;
        conn_close(c, "%s", c->state == CONN_CONNECTING ? "no answer" : "the handshake was not done in time");
        return;
    }
    if (!c->paused && now_us - c->heard_us > SILENCE_US) {
        conn_close(c, "nothing was heard for %d s", SILENCE_US / 1000000);
        return;
    }
    if (now_us - c->sent_us >= SIGN_US - SWEEP_US && c->out == NULL) conn_queue_record(c, WIRE_DATA, slice_of(""));
    conn_check(c);
    if (!conn_dead(c) && now_us - c->heard_us >= SIGN_US / 2) wire_frames_trim(&c->frames);
}

static void net_sweep(struct loop_timer *t)
{
    struct net *n = (struct net *)(void *)((char *)t - offsetof(struct net, sweep));
    int64_t now_us = loop_now_us(n->loop);
    for (struct conn *c = n->conns, *next; c != NULL; c = next) {
        next = c->next;
        conn_sweep(c, now_us);
        if (next != NULL && conn_dead(next)) next = n->conns; /* closed by a callback: begin again */
    }
    for (uint32_t i = 0; i < NET_PEERS_MAX; i++) {
        struct net_peer *p = &n->peers[i];
        if (p->out == NULL || now_us - p->out->sent_us >= SIGN_US / 2) outbox_trim(&p->outbox);
    }
    loop_timer_set(n->loop, &n->sweep, now_us + SWEEP_US);
}

/* ---- open and close */

static bool tls_open(struct net *n, const struct net_options *o, struct buf *error)
{
    int given = (o->tls_cert != NULL) + (o->tls_key != NULL) + (o->tls_ca != NULL);
    if (given == 0) return true;
    if (given != 3) {
        buf_text(error, "TLS between nodes needs a certificate, its key and the authority's certificate: all three or none");
        return false;
    }
    n->tls = tls_context_new(o->tls_cert, o->tls_key, o->tls_ca, error);
    return n->tls != NULL;
}

static void net_free(struct net *n)
{
    tls_context_free(n->tls);
    free(n->spare_in);
    if (n->secret.at != NULL) {
        explicit_bzero((char *)(uintptr_t)n->secret.at, n->secret.len);
        free((char *)(uintptr_t)n->secret.at);
    }
    for (uint32_t i = 0; i < NET_PEERS_MAX; i++) outbox_free(&n->peers[i].outbox);
    free(n);
}

struct net *net_open(const struct net_options *o, struct buf *error)
{
    must(o->loop != NULL && o->self.node != 0);
    if (o->secret == NULL || strlen(o->secret) < SECRET_BYTES_MIN) {
        buf_printf(error, "nodes need a secret of at least %d bytes that the cluster shares", SECRET_BYTES_MIN);
        return NULL;
    }
    struct net *n = calloc(1, sizeof *n);
    must(n != NULL);
    n->loop = o->loop;
    n->options = *o;
    n->self = o->self;
    n->secret = slice_make(strdup(o->secret), strlen(o->secret));
    must(n->secret.at != NULL);
    n->options.secret = n->options.listen_host = n->options.tls_cert = n->options.tls_key = n->options.tls_ca = NULL;
    random_bytes(&n->run, sizeof n->run);
    for (uint32_t i = 0; i < NET_PEERS_MAX; i++) {
        n->peers[i].net = n;
        outbox_init(&n->peers[i].outbox, o->backlog_bytes_max == 0 ? NET_BACKLOG_BYTES_MAX : o->backlog_bytes_max);
    }
    if (!tls_open(n, o, error) || !listen_open(n, o->listen_host, o->listen_port, error)) {
        net_free(n);
        return NULL;
    }
    n->flush_task.run = flush_run;
    n->hook.run = net_turn;
    n->sweep.fire = net_sweep;
    n->accept_again.fire = accept_again;
    must(loop_fd_add(n->loop, &n->listen, o->held ? 0 : EPOLLIN));
    loop_hook_add(n->loop, &n->hook);
    loop_timer_set(n->loop, &n->sweep, clock_mono_us() + SWEEP_US);
    return n;
}

void net_close(struct net *n)
{
    if (n == NULL) return;
    n->closing = true;
    for (uint32_t i = 0; i < NET_PEERS_MAX; i++) peer_close(&n->peers[i]);
    while (n->conns != NULL) conn_close(n->conns, NULL);
    conn_free_dead(n);
    loop_timer_cancel(n->loop, &n->sweep);
    loop_timer_cancel(n->loop, &n->accept_again);
    loop_fd_remove(n->loop, &n->listen);
    close(n->listen.fd);
    channels_free(n);
    net_free(n);
}

void net_accept(struct net *n)
{
    must(loop_fd_change(n->loop, &n->listen, EPOLLIN));
}

uint16_t net_port(const struct net *n)
{
    return n->port;
}

void net_self_cluster(struct net *n, struct uuid cluster)
{
    n->self.cluster = cluster;
}

uint32_t net_stats(const struct net *n, struct net_peer_stats *out, uint32_t max)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < NET_PEERS_MAX && count < max; i++) {
        const struct net_peer *p = &n->peers[i];
        uint64_t id = atomic_load(&p->id);
        if (id == 0) continue;
        out[count++] = (struct net_peer_stats){
            .peer = id,
            .sent_frames = atomic_load(&p->sent_frames),
            .sent_bytes = atomic_load(&p->sent_bytes),
            .received_frames = atomic_load(&p->received_frames),
            .received_bytes = atomic_load(&p->received_bytes),
            .dropped_frames = atomic_load(&p->dropped_frames),
            .connects = atomic_load(&p->connects),
            .backlog_bytes = atomic_load(&p->outbox.backlog),
            .out_up = atomic_load(&p->out_up),
            .in_up = atomic_load(&p->in_up),
            .heard_us = atomic_load(&p->heard_us),
        };
    }
    return count;
}
