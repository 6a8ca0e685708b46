#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "http/edge_internal.h"

static void drain_end(struct drain *l)
{
    struct edge *e = l->edge;
    loop_fd_remove(e->loop, &l->watch);
    close(l->watch.fd);
    if (l->previous != NULL)
        l->previous->next = l->next;
    else
        e->drains = l->next;
    if (l->next != NULL) l->next->previous = l->previous;
    e->drain_count--;
    free(l);
    atomic_fetch_sub_explicit(&e->connections, 1, memory_order_relaxed);
    if (e->closed != NULL) e->closed(e->closed_ctx);
}

static void drain_ready(struct loop_fd *watch, uint32_t events)
{
    struct drain *l = (struct drain *)(void *)((char *)watch - offsetof(struct drain, watch));
    char sink[16384];
    ssize_t n = recv(watch->fd, sink, sizeof sink, MSG_DONTWAIT);
    if (n > 0) {
        l->left_bytes -= (size_t)n < l->left_bytes ? (size_t)n : l->left_bytes;
        if (l->left_bytes > 0) return;
    } else if (n < 0 && (errno == EAGAIN || errno == EINTR) && (events & (EPOLLERR | EPOLLHUP)) == 0) {
        return;
    }
    drain_end(l);
}

void drain_start(struct edge *e, int fd, uint64_t told)
{
    /* It takes a descriptor more: not when connections are near their limit. */
    if (e->drain_count >= EDGE_DRAINS_MAX || e->stopping) return;
    if (edge_connections(e) + 2 * EDGE_DRAINS_MAX > e->http->config->connections_max / e->http->edge_count) return;
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return;
    struct drain *l = calloc(1, sizeof *l);
    must(l != NULL);
    *l = (struct drain){.edge = e,
                        .watch = {.fd = copy, .ready = drain_ready},
                        .until_us = loop_now_us(e->loop) + EDGE_DRAIN_US,
                        .left_bytes = told <= EDGE_DRAIN_BYTES       ? EDGE_DRAIN_BYTES
                                      : told < EDGE_DRAIN_LENGTH_MAX ? (size_t)told
                                                                     : EDGE_DRAIN_LENGTH_MAX,
                        .next = e->drains};
    /* The daemon still reads the socket until the answer is on its way; from then on only we do. Both only throw away. */
    if (!loop_fd_add(e->loop, &l->watch, EPOLLIN | EPOLLRDHUP)) {
        close(copy);
        free(l);
        return;
    }
    if (e->drains != NULL) e->drains->previous = l;
    e->drains = l;
    e->drain_count++;
    atomic_fetch_add_explicit(&e->connections, 1, memory_order_relaxed);
}

void drain_sweep(struct edge *e, int64_t now_us, bool all)
{
    for (struct drain *l = e->drains, *next; l != NULL; l = next) {
        next = l->next;
        if (all || l->until_us <= now_us) drain_end(l);
    }
}
