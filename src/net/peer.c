/* Peers and their dialling: lookup -> connect -> handshake -> up; at any failure a pause, then again. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/logger.h"
#include "net/net_inner.h"

struct net_peer *peer_find(const struct net *n, uint64_t id)
{
    for (uint32_t i = 0; i < NET_PEERS_MAX; i++) {
        const struct net_peer *p = &n->peers[i];
        if (id != 0 && atomic_load_explicit(&p->id, memory_order_acquire) == id) return (struct net_peer *)(uintptr_t)p;
    }
    return NULL;
}

static void peer_try(struct net_peer *p);

static void peer_retry(struct loop_timer *t)
{
    peer_try((struct net_peer *)(void *)((char *)t - offsetof(struct net_peer, retry)));
}

struct net_peer *peer_place(struct net *n, uint64_t id)
{
    struct net_peer *p = peer_find(n, id);
    for (uint32_t i = 0; i < NET_PEERS_MAX && p == NULL; i++) {
        if (atomic_load(&n->peers[i].id) != 0) continue;
        p = &n->peers[i];
        p->pause_us = PAUSE_MIN_US;
        p->said_us = p->refused_us = 0;
        p->has_run = false;
        p->retry.fire = peer_retry;
        atomic_store(&p->sent_frames, 0);
        atomic_store(&p->sent_bytes, 0);
        atomic_store(&p->received_frames, 0);
        atomic_store(&p->received_bytes, 0);
        atomic_store(&p->dropped_frames, 0);
        atomic_store(&p->connects, 0);
        atomic_store(&p->heard_us, 0);
        atomic_store_explicit(&p->id, id, memory_order_release);
    }
    return p;
}

/* A place that neither an address nor a connection holds is free again. */
static void peer_release(struct net_peer *p)
{
    if (p->host == NULL && p->in == NULL && p->out == NULL) atomic_store(&p->id, 0);
}

static void peer_again(struct net_peer *p)
{
    if (p->host == NULL || p->net->closing) return;
    loop_timer_set(p->net->loop, &p->retry, clock_mono_us() + p->pause_us);
    p->pause_us = p->pause_us * 2 < PAUSE_MAX_US ? p->pause_us * 2 : PAUSE_MAX_US;
}

static void peer_found(void *ctx, const struct lookup_address *addresses, uint32_t count, const char *why)
{
    struct net_peer *p = ctx;
    struct net *n = p->net;
    p->lookup = NULL;
    if (count == 0) {
        if (logger_every(&p->said_us, SAY_UNREACHABLE_US)) {
            log_warn("no connection to node %" PRIu64 " (%s:%u): %s", atomic_load(&p->id), p->host, p->port, why);
        }
        peer_again(p);
        return;
    }
    const struct lookup_address *a = &addresses[p->address_at % count];
    int fd = socket(a->at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        if (logger_every(&p->said_us, SAY_US)) log_warn("no socket for a connection to a node: %s", strerror(errno));
        peer_again(p);
        return;
    }
    p->out = conn_new(n, fd, true, a);
    p->out->peer = p;
    if (connect(fd, (const struct sockaddr *)&a->at, a->len) != 0 && errno != EINPROGRESS) {
        p->out->broken = true;
        p->out->error = errno;
    }
    conn_check(p->out);
}

static void peer_try(struct net_peer *p)
{
    if (p->host == NULL || p->out != NULL || p->lookup != NULL) return;
    p->lookup = lookup_start(p->net->loop, p->host, p->port, peer_found, p);
}

void peer_dial_soon(struct net_peer *p)
{
    if (!heap_holds(&p->retry.node)) return;
    p->pause_us = PAUSE_MIN_US;
    loop_timer_set(p->net->loop, &p->retry, clock_mono_us());
}

void peer_out_up(struct net_peer *p)
{
    struct conn *c = p->out;
    c->state = CONN_UP;
    c->up_us = loop_now_us(p->net->loop);
    atomic_fetch_add(&p->connects, 1);
    conn_queue_record(c, WIRE_DATA, slice_of("")); /* the accepter takes the connection with it */
    outbox_open(&p->outbox, atomic_load(&p->id));
    atomic_store(&p->out_up, true);
    atomic_store_explicit(&p->heard_us, c->heard_us, memory_order_relaxed);
    log_info("connection to node %" PRIu64 " (%s)", atomic_load(&p->id), c->name);
    channels_link(p->net, atomic_load(&p->id), NET_LINK_OUT, true);
}

void peer_conn_gone(struct conn *c, bool was_up)
{
    struct net_peer *p = c->peer;
    struct net *n = c->net;
    uint64_t id = atomic_load(&p->id);
    if (c->dialled) {
        must(p->out == c);
        p->out = NULL;
        if (was_up) {
            atomic_store(&p->out_up, false);
            atomic_fetch_add(&p->dropped_frames, outbox_close(&p->outbox));
            if (loop_now_us(n->loop) - c->up_us >= STEADY_US) p->pause_us = PAUSE_MIN_US;
        } else {
            p->address_at++;
        }
        peer_again(p);
    } else {
        if (p->in == c) p->in = NULL; /* else a newer one has its place */
        if (was_up) atomic_store(&p->in_up, false);
    }
    if (was_up && !n->closing) channels_link(n, id, c->dialled ? NET_LINK_OUT : NET_LINK_IN, false);
    if (atomic_load(&p->id) == id) peer_release(p);
}

static void peer_forget_address(struct net_peer *p, bool loop_ended)
{
    free(p->host);
    p->host = NULL;
    if (p->lookup != NULL) lookup_cancel(p->lookup, loop_ended);
    p->lookup = NULL;
    loop_timer_cancel(p->net->loop, &p->retry);
}

void net_peer_set(struct net *n, uint64_t peer, const char *host, uint16_t port)
{
    must(peer != 0 && host != NULL && host[0] != 0);
    if (peer == n->self.node) return;
    struct net_peer *p = peer_place(n, peer);
    if (p == NULL) {
        log_error("no place for node %" PRIu64 ": at most %d peers", peer, NET_PEERS_MAX);
        return;
    }
    if (p->host != NULL && p->port == port && strcmp(p->host, host) == 0) return;
    peer_forget_address(p, false);
    p->host = strdup(host);
    must(p->host != NULL);
    p->port = port;
    p->address_at = 0;
    p->pause_us = PAUSE_MIN_US;
    if (p->out != NULL) {
        conn_close(p->out, "its address is %s:%u now", host, port); /* dials again after a pause */
    } else {
        peer_try(p);
    }
}

void net_peer_remove(struct net *n, uint64_t peer)
{
    struct net_peer *p = peer_find(n, peer);
    if (p == NULL) return;
    peer_forget_address(p, false);
    struct conn *out = p->out, *in = p->in;
    if (out != NULL) conn_close(out, "the node was removed");
    if (in != NULL && !conn_dead(in)) conn_close(in, "the node was removed");
    if (atomic_load(&p->id) == peer) peer_release(p);
}

void peer_close(struct net_peer *p)
{
    peer_forget_address(p, true);
    if (p->out != NULL) conn_close(p->out, NULL);
    if (p->in != NULL) conn_close(p->in, NULL);
}

/* ---- sending */

static void flush_post(struct net *n)
{
    if (!atomic_exchange(&n->flush_posted, true)) loop_post(n->loop, &n->flush_task);
}

void peer_write_on(struct net_peer *p)
{
    if (p == NULL) return;
    atomic_store(&p->dirty, true);
    atomic_store(&p->net->dirty, true);
    flush_post(p->net);
}

static uint64_t parts_bytes(const struct slice *parts, uint32_t count)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < count; i++) total += parts[i].len;
    return total;
}

bool net_send(struct net *n, uint64_t peer, uint16_t channel, uint8_t kind, uint32_t flags, const struct slice *parts,
              uint32_t count)
{
    struct net_peer *p = peer_find(n, peer);
    uint64_t total = parts_bytes(parts, count);
    must(total <= NET_FRAME_BYTES_MAX);
    if (p == NULL) return false;
    if (!outbox_put(&p->outbox, peer, channel, kind, (flags & NET_VITAL) != 0, parts, count, (uint32_t)total)) {
        atomic_fetch_add_explicit(&p->dropped_frames, 1, memory_order_relaxed);
        return false;
    }
    if (!atomic_exchange(&p->dirty, true)) {
        atomic_store(&n->dirty, true);
        flush_post(n);
    }
    /* Nothing is called back from here: a failure waits for the turn's end. */
    if (atomic_load_explicit(&p->outbox.backlog, memory_order_relaxed) >= WRITE_AT_ONCE && loop_is_mine(n->loop) &&
        p->out != NULL && (p->out->events & EPOLLOUT) == 0) {
        conn_write(p->out);
    }
    return true;
}

bool net_connected(const struct net *n, uint64_t peer)
{
    struct net_peer *p = peer_find(n, peer);
    return p != NULL && atomic_load(&p->out_up);
}

uint64_t net_backlog(const struct net *n, uint64_t peer)
{
    struct net_peer *p = peer_find(n, peer);
    return p == NULL ? 0 : atomic_load(&p->outbox.backlog);
}
