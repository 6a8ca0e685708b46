/* Bytes in and out of one connection.
 *
 *   out   outbox -> chunks taken, head and tag put around them (sealed) -> writev from where they lie -> back to the outbox
 *   in    recv into the connection's buffer -> whole records, tag checked -> items to channels from the buffer itself;
 *         pieces of a large frame are put together in memory of their own
 *
 * What can fail: a write or read (the other end is gone), a record or tag that is not right, a time limit. Each closes the connection;
 * what was not written is lost, and what was not read is never looked at. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/logger.h"
#include "net/net_inner.h"

enum { IOVECS = 16, IN_BYTES_FEW = 2048, ROOM_MIN = 64 << 10 };

static void conn_ready(struct loop_fd *self, uint32_t events);

static void conn_name(struct conn *c, const struct lookup_address *a)
{
    char host[NI_MAXHOST], service[NI_MAXSERV];
    if (getnameinfo((const struct sockaddr *)&a->at, a->len, host, sizeof host, service, sizeof service,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        snprintf(c->name, sizeof c->name, "?");
        return;
    }
    bool six = a->at.ss_family == AF_INET6;
    snprintf(c->name, sizeof c->name, "%s%.*s%s:%.*s", six ? "[" : "", NAME_BYTES - 12, host, six ? "]" : "", 6, service);
}

struct conn *conn_new(struct net *n, int fd, bool dialled, const struct lookup_address *address)
{
    struct conn *c = calloc(1, sizeof *c);
    int one = 1, unsent = UNSENT_BYTES;
    must(c != NULL);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
    c->fd = (struct loop_fd){.fd = fd, .ready = conn_ready};
    c->net = n;
    c->dialled = dialled;
    c->state = dialled ? CONN_CONNECTING : CONN_TLS;
    c->began_us = c->heard_us = c->sent_us = loop_now_us(n->loop);
    c->out_end = &c->out;
    c->frames.bytes_max = NET_FRAME_BYTES_MAX;
    c->events = dialled ? EPOLLOUT : EPOLLIN;
    conn_name(c, address);
    c->next = n->conns;
    if (c->next != NULL) c->next->prev = c;
    n->conns = c;
    if (!dialled) n->strangers++;
    if (!loop_fd_add(n->loop, &c->fd, c->events)) {
        c->broken = true;
        c->error = errno;
    }
    return c;
}

static void out_drop(struct conn *c)
{
    while (c->out != NULL) {
        struct chunk *k = c->out;
        c->out = k->next;
        k->next = NULL;
        if (k->plain) {
            free(k);
        } else {
            atomic_fetch_add_explicit(&c->peer->dropped_frames, k->frames, memory_order_relaxed);
            outbox_give_back(&c->peer->outbox, k);
        }
    }
    c->out_end = &c->out;
    c->out_bytes = c->out_at = 0;
}

static void conn_unlink(struct conn *c)
{
    struct net *n = c->net;
    if (c->prev != NULL) {
        c->prev->next = c->next;
    } else {
        n->conns = c->next;
    }
    if (c->next != NULL) c->next->prev = c->prev;
    c->prev = NULL;
    c->next = n->graveyard;
    n->graveyard = c;
}

static void close_say(const struct conn *c, enum conn_state was, const char *why)
{
    struct net *n = c->net;
    if (was == CONN_UP || c->dialled) {
        struct net_peer *p = c->peer;
        const char *what = was == CONN_UP ? (c->dialled ? "connection to" : "connection from") : "no connection to";
        if (was == CONN_UP || logger_every(&p->said_us, was == CONN_CONNECTING ? SAY_UNREACHABLE_US : SAY_US)) {
            log_warn("%s node %llu (%s): %s", what, (unsigned long long)atomic_load(&p->id), c->name, why);
        }
    } else if (logger_every(&n->strange_said_us, SAY_US)) {
        log_warn("connection from %s not taken: %s", c->name, why);
    }
}

void conn_close(struct conn *c, const char *why, ...)
{
    enum conn_state was = c->state;
    if (was == CONN_DEAD) return;
    if (why != NULL) {
        char text[HELLO_TEXT_MAX + 200];
        va_list args;
        va_start(args, why);
        vsnprintf(text, sizeof text, why, args);
        va_end(args);
        close_say(c, was, text);
    }
    c->state = CONN_DEAD;
    loop_fd_remove(c->net->loop, &c->fd);
    tls_free(c->tls);
    c->tls = NULL;
    close(c->fd.fd);
    if (!c->dialled && was != CONN_UP) c->net->strangers--;
    out_drop(c);
    conn_unlink(c);
    if (c->peer != NULL) peer_conn_gone(c, was == CONN_UP);
}

void conn_free_dead(struct net *n)
{
    while (n->graveyard != NULL) {
        struct conn *c = n->graveyard;
        n->graveyard = c->next;
        seal_close(&c->in_seal);
        seal_close(&c->out_seal);
        buf_free(&c->hello);
        buf_free(&c->answer);
        wire_frames_free(&c->frames);
        free(c->in);
        free(c);
    }
}

void conn_check(struct conn *c)
{
    if (c->broken && !conn_dead(c)) {
        conn_close(c, "%s", c->error == EPROTO && c->tls != NULL ? tls_why(c->tls) : strerror(c->error));
    }
}

static void conn_events(struct conn *c, uint32_t events)
{
    if (c->events == events) return;
    c->events = events;
    if (!loop_fd_change(c->net->loop, &c->fd, events)) {
        c->broken = true;
        c->error = errno;
    }
}

/* ---- out */

static void conn_seal(struct conn *c, struct chunk *k, enum wire_record_type type)
{
    wire_record_write(k->at, type, k->used);
    seal_tag(&c->out_seal, k->at, WIRE_RECORD_HEAD + k->used, (uint8_t *)k->at + WIRE_RECORD_HEAD + k->used);
    k->size = WIRE_RECORD_HEAD + k->used + WIRE_TAG;
    *c->out_end = k;
    c->out_end = &k->next;
    c->out_bytes += k->size;
}

static void conn_fill(struct conn *c)
{
    struct chunk *k = outbox_take(&c->peer->outbox, WRITE_BYTES);
    while (k != NULL) {
        struct chunk *next = k->next;
        k->next = NULL;
        conn_seal(c, k, WIRE_DATA);
        k = next;
    }
}

static ssize_t conn_send(struct conn *c)
{
    if (c->tls != NULL) return tls_write(c->tls, c->out->at + c->out_at, c->out->size - c->out_at);
    struct iovec v[IOVECS];
    int count = 0;
    for (struct chunk *k = c->out; k != NULL && count < IOVECS; k = k->next) {
        uint32_t skip = count == 0 ? c->out_at : 0;
        v[count++] = (struct iovec){.iov_base = k->at + skip, .iov_len = k->size - skip};
    }
    struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)count};
    return sendmsg(c->fd.fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void conn_sent(struct conn *c, size_t bytes)
{
    struct chunk *done = NULL, **done_end = &done;
    uint64_t frames = 0;
    c->out_bytes -= (uint32_t)bytes;
    while (bytes > 0) {
        struct chunk *k = c->out;
        size_t left = k->size - c->out_at;
        if (bytes < left) {
            c->out_at += (uint32_t)bytes;
            break;
        }
        bytes -= left;
        c->out_at = 0;
        c->out = k->next;
        if (c->out == NULL) c->out_end = &c->out;
        k->next = NULL;
        frames += k->frames;
        if (k->plain) {
            free(k);
        } else {
            *done_end = k;
            done_end = &k->next;
        }
    }
    if (frames > 0) atomic_fetch_add_explicit(&c->peer->sent_frames, frames, memory_order_relaxed);
    if (done != NULL) outbox_give_back(&c->peer->outbox, done);
}

bool conn_write(struct conn *c)
{
    size_t share = WRITE_A_TURN;
    while (!c->broken) {
        if (c->state == CONN_UP && c->dialled && c->out_bytes < WRITE_BYTES) conn_fill(c);
        if (c->out == NULL) {
            if (c->state >= CONN_AWAIT_HELLO) conn_events(c, c->events & ~(uint32_t)EPOLLOUT);
            return false;
        }
        ssize_t n = conn_send(c);
        if (n < 0 && errno == EAGAIN) {
            conn_events(c, c->events | EPOLLOUT);
            return false;
        }
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            c->broken = true;
            c->error = errno;
            return false;
        }
        c->sent_us = loop_now_us(c->net->loop);
        if (c->peer != NULL) atomic_fetch_add_explicit(&c->peer->sent_bytes, (uint64_t)n, memory_order_relaxed);
        conn_sent(c, (size_t)n);
        if ((size_t)n >= share) return c->out != NULL || atomic_load(&c->peer->outbox.backlog) > 0;
        share -= (size_t)n;
    }
    return false;
}

void conn_queue_plain(struct conn *c, struct slice bytes)
{
    struct chunk *k = chunk_new((uint32_t)bytes.len);
    k->plain = true;
    k->size = (uint32_t)bytes.len;
    memcpy(k->at, bytes.at, bytes.len);
    *c->out_end = k;
    c->out_end = &k->next;
    c->out_bytes += k->size;
    conn_write(c);
}

void conn_queue_record(struct conn *c, enum wire_record_type type, struct slice payload)
{
    struct chunk *k = chunk_new(WIRE_RECORD_HEAD + (uint32_t)payload.len + WIRE_TAG);
    k->plain = true;
    k->used = (uint32_t)payload.len;
    if (payload.len > 0) memcpy(k->at + WIRE_RECORD_HEAD, payload.at, payload.len);
    conn_seal(c, k, type);
    conn_write(c);
}

/* ---- in */

/* The net keeps one buffer for all connections that have no part of a record waiting. */
static void in_grow(struct conn *c, uint32_t cap)
{
    struct net *n = c->net;
    if (c->in == NULL && cap == READ_BYTES && n->spare_in != NULL) {
        c->in = n->spare_in;
        n->spare_in = NULL;
    } else {
        c->in = realloc(c->in, cap);
        must(c->in != NULL);
    }
    c->in_cap = cap;
}

static void in_release(struct conn *c)
{
    struct net *n = c->net;
    if (c->in_start != c->in_end) return;
    if (n->spare_in == NULL && c->in_cap == READ_BYTES) {
        n->spare_in = c->in;
    } else {
        free(c->in);
    }
    c->in = NULL;
    c->in_start = c->in_end = c->in_cap = 0;
}

static bool in_room(struct conn *c)
{
    uint32_t cap = c->dialled || c->state < CONN_AWAIT_FIRST ? IN_BYTES_FEW : READ_BYTES;
    if (c->in_cap < cap) in_grow(c, cap);
    if (c->in_start == c->in_end) {
        c->in_start = c->in_end = 0;
    } else if (c->in_start > 0 && c->in_cap - c->in_end < ROOM_MIN) {
        memmove(c->in, c->in + c->in_start, c->in_end - c->in_start);
        c->in_end -= c->in_start;
        c->in_start = 0;
    }
    return c->in_end < c->in_cap;
}

static ssize_t conn_recv(struct conn *c)
{
    char *at = c->in + c->in_end;
    size_t room = c->in_cap - c->in_end;
    return c->tls != NULL ? tls_read(c->tls, at, room) : recv(c->fd.fd, at, room, MSG_DONTWAIT);
}

static void piece_take(struct conn *c, const struct wire_item *item)
{
    struct wire_frame *frame = NULL;
    switch (wire_frames_take(&c->frames, item, channel_wanted(c->net, item->channel), &frame)) {
    case WIRE_BAD:
        conn_close(c, "pieces of frames that do not fit together");
        return;
    case WIRE_FRAME:
        channel_frame(c, item, frame);
        wire_frame_done(&c->frames, frame);
        return;
    case WIRE_MORE:
        if (frame == NULL || loop_now_us(c->net->loop) - frame->told_us < RECEIVING_US) return;
        frame->told_us = loop_now_us(c->net->loop);
        channel_receiving(c, item->channel);
        return;
    }
}

static void items_take(struct conn *c, struct slice rest)
{
    struct wire_item item;
    while (!conn_dead(c) && wire_item_next(&rest, &item)) {
        if (item.piece == WIRE_WHOLE) {
            channel_frame(c, &item, NULL);
        } else {
            piece_take(c, &item);
        }
    }
    if (!conn_dead(c) && rest.len > 0) conn_close(c, "a record that is not well formed");
}

/* Whole records of the buffer. */
static void records_take(struct conn *c)
{
    struct wire_record r;
    while (!conn_dead(c) && !c->paused && c->in_end - c->in_start >= WIRE_RECORD_HEAD) {
        char *at = c->in + c->in_start;
        if (!wire_record_read(at, &r)) {
            conn_close(c, "bytes that are no record");
            return;
        }
        uint32_t covered = WIRE_RECORD_HEAD + r.payload_bytes;
        if (c->in_end - c->in_start < covered + WIRE_TAG) return;
        if (!seal_check(&c->in_seal, at, covered, (uint8_t *)at + covered)) {
            conn_close(c, "a record whose tag is not right: damaged or forged on the way");
            return;
        }
        c->in_start += covered + WIRE_TAG;
        struct slice payload = slice_make(at + WIRE_RECORD_HEAD, r.payload_bytes);
        if (r.type == WIRE_REFUSE) {
            handshake_refused(c, payload);
            return;
        }
        if (c->state == CONN_AWAIT_FIRST) handshake_first(c);
        if (c->dialled && payload.len > 0) conn_close(c, "frames on a connection that is ours to send on");
        if (!conn_dead(c)) items_take(c, payload);
    }
}

static void conn_process(struct conn *c)
{
    while (!conn_dead(c) && c->state < CONN_AWAIT_FIRST && handshake_take(c)) continue;
    if (!conn_dead(c) && c->state >= CONN_AWAIT_FIRST) records_take(c);
}

static void conn_read(struct conn *c)
{
    size_t share = READ_A_TURN;
    while (!conn_dead(c) && !c->paused) {
        if (!in_room(c)) {
            conn_close(c, "more bytes than it may send");
            break;
        }
        size_t room = c->in_cap - c->in_end;
        ssize_t n = conn_recv(c);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) break;
        if (n <= 0) {
            bool tls_failed = n < 0 && errno == EPROTO && c->tls != NULL;
            conn_close(c, "%s", n == 0 ? "closed by the other end" : tls_failed ? tls_why(c->tls) : strerror(errno));
            break;
        }
        c->heard_us = loop_now_us(c->net->loop);
        c->in_end += (uint32_t)n;
        if (c->peer != NULL) {
            atomic_fetch_add_explicit(&c->peer->received_bytes, (uint64_t)n, memory_order_relaxed);
            atomic_store_explicit(&c->peer->heard_us, c->heard_us, memory_order_relaxed);
        }
        conn_process(c);
        if (conn_dead(c)) break;
        if (c->tls == NULL && (size_t)n < room) break;
        share = (size_t)n < share ? share - (size_t)n : 0;
        /* epoll tells again of what is left in the socket, not of what TLS has taken from it. */
        if (share == 0 && (c->tls == NULL || !tls_pending(c->tls))) break;
    }
    in_release(c);
    channels_post(c->net);
}

void conn_resume(struct conn *c)
{
    c->paused = false;
    c->heard_us = loop_now_us(c->net->loop);
    conn_events(c, c->events | EPOLLIN);
    records_take(c);
    if (!conn_dead(c) && !c->paused) conn_read(c);
    if (!conn_dead(c) && c->paused) conn_events(c, c->events & ~(uint32_t)EPOLLIN);
    conn_check(c);
}

/* ---- events */

static void conn_connected(struct conn *c)
{
    int error = 0;
    socklen_t len = sizeof error;
    if (getsockopt(c->fd.fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0) error = errno;
    if (error != 0) {
        conn_close(c, "%s", strerror(error));
        return;
    }
    c->state = CONN_TLS;
    conn_events(c, EPOLLIN);
}

static void conn_tls(struct conn *c)
{
    struct net *n = c->net;
    if (n->tls != NULL) {
        if (c->tls == NULL) c->tls = tls_new(n->tls, c->fd.fd, c->dialled);
        switch (tls_handshake(c->tls)) {
        case TLS_WANTS_READ:
            conn_events(c, EPOLLIN);
            return;
        case TLS_WANTS_WRITE:
            conn_events(c, EPOLLOUT);
            return;
        case TLS_FAILED:
            conn_close(c, "%s", tls_why(c->tls));
            return;
        case TLS_DONE:
            break;
        }
        conn_events(c, EPOLLIN);
    }
    handshake_begin(c);
}

static void conn_ready(struct loop_fd *self, uint32_t events)
{
    struct conn *c = (struct conn *)(void *)self;
    if (c->state == CONN_CONNECTING) conn_connected(c);
    if (c->state == CONN_TLS) conn_tls(c);
    if (conn_dead(c) || c->state == CONN_TLS) return;
    if ((events & EPOLLOUT) != 0 && conn_write(c)) peer_write_on(c->peer);
    if (c->paused && (events & (EPOLLHUP | EPOLLERR)) != 0) conn_close(c, "closed by the other end");
    if (!conn_dead(c) && !c->paused && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) conn_read(c);
    if (!conn_dead(c) && c->paused) conn_events(c, c->events & ~(uint32_t)EPOLLIN);
    conn_check(c);
}
