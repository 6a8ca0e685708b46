#include "http/listener.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/logger.h"
#include "http/edge.h"

enum { BACKLOG = 4096, RETRY_US = 100000, SAY_US = 5000000 };

struct listener {
    struct http *http;
    struct loop *loop;
    struct loop_fd socket;
    struct loop_timer retry;
    struct loop_task resume; /* posted by other edges when a connection closed */
    atomic_bool resume_posted;
    atomic_bool paused;
    bool accepting;
    uint32_t turn; /* among edges with equally many connections */
    int64_t said_us;
    uint16_t port;
};

/* ---- socket ------------------------------------------------------------------------------------------------------- */

static void option_set(int fd, int level, int name, int value)
{
    setsockopt(fd, level, name, &value, sizeof value);
}

/* Accepted sockets inherit these, so they cost no call a connection. Dead peers are noticed within about a minute, also while
 * an answer waits for them. */
static void options_set(int fd)
{
    option_set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    option_set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    option_set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    option_set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
    option_set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
    option_set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    option_set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 30000);
}

static int socket_bind(const struct addrinfo *a)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0) return -1;
    options_set(fd);
    if (a->ai_family == AF_INET6) option_set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static uint16_t port_of(int fd)
{
    struct sockaddr_storage address;
    socklen_t len = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &len) != 0) return 0;
    if (address.ss_family == AF_INET6) return ntohs(((struct sockaddr_in6 *)(void *)&address)->sin6_port);
    return ntohs(((struct sockaddr_in *)(void *)&address)->sin_port);
}

static int listen_on(const char *host, uint16_t port, struct buf *error)
{
    char service[8];
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    snprintf(service, sizeof service, "%u", port);
    int failed = getaddrinfo(host, service, &hints, &list);
    if (failed != 0) {
        buf_printf(error, "cannot listen on %s: %s", host, gai_strerror(failed));
        return -1;
    }
    int fd = -1;
    for (const struct addrinfo *a = list; a != NULL && fd < 0; a = a->ai_next) fd = socket_bind(a);
    if (fd < 0) buf_printf(error, "cannot listen on %s:%u: %s", host, port, strerror(errno));
    freeaddrinfo(list);
    return fd;
}

/* ---- accepting ---------------------------------------------------------------------------------------------------- */

static uint32_t connections_of(const struct http *h)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < h->edge_count; i++) n += edge_connections(h->edges[i]);
    return n;
}

static struct edge *edge_choose(struct listener *l)
{
    struct http *h = l->http;
    uint32_t best = UINT32_MAX;
    struct edge *chosen = NULL;
    l->turn++;
    for (uint32_t i = 0; i < h->edge_count; i++) {
        struct edge *e = h->edges[(l->turn + i) % h->edge_count];
        uint32_t n = edge_connections(e);
        if (n >= best) continue;
        best = n;
        chosen = e;
    }
    return chosen;
}

static void pause_accepting(struct listener *l, const char *why)
{
    if (!atomic_load(&l->paused)) {
        atomic_store(&l->paused, true);
        loop_fd_change(l->loop, &l->socket, 0);
    }
    loop_timer_set(l->loop, &l->retry, loop_now_us(l->loop) + RETRY_US);
    if (logger_every(&l->said_us, SAY_US)) log_warn("no connections are accepted for now: %s", why);
}

static void accept_some(struct listener *l)
{
    for (int i = 0; i < EDGE_ACCEPTS_A_TURN; i++) {
        if (connections_of(l->http) >= l->http->config->connections_max) {
            pause_accepting(l, "QUEEN_CONNECTIONS_MAX are open");
            return;
        }
        struct edge_socket *s = calloc(1, sizeof *s);
        must(s != NULL);
        s->address_len = sizeof s->address;
        s->fd = accept4(l->socket.fd, (struct sockaddr *)&s->address, &s->address_len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (s->fd >= 0) {
            edge_give(edge_choose(l), s);
            continue;
        }
        int why = errno;
        free(s);
        if (why == EMFILE || why == ENFILE || why == ENOMEM || why == ENOBUFS)
            pause_accepting(l, strerror(why));
        else if (why == EINTR || why == ECONNABORTED || why == EPROTO)
            continue;
        return;
    }
}

static void listener_ready(struct loop_fd *socket, uint32_t events)
{
    (void)events;
    accept_some((struct listener *)(void *)((char *)socket - offsetof(struct listener, socket)));
}

static void accept_again(struct listener *l)
{
    if (!l->accepting || !atomic_load(&l->paused)) return;
    atomic_store(&l->paused, false);
    loop_fd_change(l->loop, &l->socket, EPOLLIN);
    accept_some(l);
}

static void retry_fire(struct loop_timer *t)
{
    accept_again((struct listener *)(void *)((char *)t - offsetof(struct listener, retry)));
}

static void resume_run(struct loop_task *t)
{
    struct listener *l = (struct listener *)(void *)((char *)t - offsetof(struct listener, resume));
    atomic_store(&l->resume_posted, false);
    accept_again(l);
}

/* On the closing edge's thread. */
static void connection_closed(void *ctx)
{
    struct listener *l = ctx;
    if (!atomic_load(&l->paused) || atomic_exchange(&l->resume_posted, true)) return;
    loop_post(l->loop, &l->resume);
}

/* ---- life --------------------------------------------------------------------------------------------------------- */

struct listener *listener_open(struct http *h, struct loop *loop, struct buf *error)
{
    int fd = listen_on(h->config->host, h->config->port, error);
    if (fd < 0) return NULL;
    struct listener *l = calloc(1, sizeof *l);
    must(l != NULL);
    l->http = h;
    l->loop = loop;
    l->socket = (struct loop_fd){.fd = fd, .ready = listener_ready};
    l->retry.fire = retry_fire;
    l->resume.run = resume_run;
    l->port = port_of(fd);
    for (uint32_t i = 0; i < h->edge_count; i++) edge_on_close(h->edges[i], connection_closed, l);
    return l;
}

uint16_t listener_port(const struct listener *l)
{
    return l->port;
}

void listener_accept(struct listener *l)
{
    must(!l->accepting);
    l->accepting = loop_fd_add(l->loop, &l->socket, EPOLLIN);
    must(l->accepting);
}

void listener_close(struct listener *l)
{
    if (l->accepting) {
        loop_fd_remove(l->loop, &l->socket);
        loop_timer_cancel(l->loop, &l->retry);
        l->accepting = false;
    }
    if (l->socket.fd >= 0) close(l->socket.fd);
    l->socket.fd = -1;
}

void listener_free(struct listener *l)
{
    if (l != NULL) must(l->socket.fd < 0);
    free(l);
}
