/* Nodes of a cluster in one process, each with a loop and a thread of its own, and a proxy that can spoil what passes. */
#ifndef QUEEN_TEST_NET_RIG_H
#define QUEEN_TEST_NET_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/logger.h"
#include "net/net.h"

#define SECRET "a secret that the cluster shares"
enum { CHANNEL = 3, NOTES_MAX = 4096 };

enum note_type { NOTE_FRAME, NOTE_LINK, NOTE_RECEIVING };

/* What a channel was told, in order. */
struct note {
    enum note_type type;
    uint64_t peer;
    uint8_t kind;
    size_t len;
    uint64_t first; /* the frame's first 8 bytes, zero-filled */
    enum net_link which;
    bool up, right; /* right: the frame's bytes are those of frame_fill */
};

struct node {
    struct loop *loop;
    struct net *net;
    pthread_t thread;
    struct net_options options;
    pthread_mutex_t lock; /* of the rest */
    struct note notes[NOTES_MAX];
    uint32_t note_count;
    char refused[256];
    uint64_t refused_by, refused_count, met;
    const char *meet_says;
    _Atomic int nap_us; /* in every frame */
};

enum { BLOCK = 256 };

/* Bytes that tell where they are: a frame's content is known from its length and first number. Quick under sanitizers too. */
static inline size_t block_fill(char block[BLOCK], uint64_t seed, size_t at, size_t len)
{
    uint64_t number = seed + at / BLOCK;
    memset(block, (int)(number * 2654435761u >> 24 & 0xff), BLOCK);
    memcpy(block, &number, sizeof number);
    return len - at < BLOCK ? len - at : BLOCK;
}

static inline void frame_fill(char *at, size_t len, uint64_t seed)
{
    char block[BLOCK];
    for (size_t i = 0; i < len; i += BLOCK) memcpy(at + i, block, block_fill(block, seed, i, len));
}

static inline bool frame_right(const char *at, size_t len)
{
    uint64_t seed = 0;
    char block[BLOCK];
    if (len < 8) return true;
    memcpy(&seed, at, 8);
    for (size_t i = 0; i < len; i += BLOCK) {
        size_t n = block_fill(block, seed, i, len);
        if (memcmp(at + i, block, n) != 0) return false;
    }
    return true;
}

static inline void node_note(struct node *n, struct note note)
{
    pthread_mutex_lock(&n->lock);
    if (n->note_count < NOTES_MAX) n->notes[n->note_count] = note;
    n->note_count++;
    pthread_mutex_unlock(&n->lock);
}

static inline void node_frame(void *ctx, uint64_t peer, uint8_t kind, struct slice frame)
{
    struct node *n = ctx;
    struct note note = {.type = NOTE_FRAME, .peer = peer, .kind = kind, .len = frame.len};
    memcpy(&note.first, frame.at, frame.len < 8 ? frame.len : 8);
    note.right = frame_right(frame.at, frame.len);
    int nap_us = atomic_load(&n->nap_us);
    if (nap_us > 0) usleep((useconds_t)nap_us);
    node_note(n, note);
}

static inline void node_link(void *ctx, uint64_t peer, enum net_link which, bool up)
{
    node_note(ctx, (struct note){.type = NOTE_LINK, .peer = peer, .which = which, .up = up});
}

static inline void node_receiving(void *ctx, uint64_t peer)
{
    node_note(ctx, (struct note){.type = NOTE_RECEIVING, .peer = peer});
}

static inline const char *node_meet(void *ctx, const struct net_self *peer)
{
    struct node *n = ctx;
    (void)peer;
    pthread_mutex_lock(&n->lock);
    n->met++;
    const char *says = n->meet_says;
    pthread_mutex_unlock(&n->lock);
    return says;
}

static inline void node_refused(void *ctx, uint64_t peer, const char *why)
{
    struct node *n = ctx;
    pthread_mutex_lock(&n->lock);
    n->refused_by = peer;
    n->refused_count++;
    snprintf(n->refused, sizeof n->refused, "%s", why);
    pthread_mutex_unlock(&n->lock);
}

static inline void *node_thread(void *arg)
{
    loop_run(arg);
    return NULL;
}

static inline void node_init(struct node *n, uint64_t id)
{
    memset(n, 0, sizeof *n);
    pthread_mutex_init(&n->lock, NULL);
    n->loop = loop_new();
    assert_non_null(n->loop);
    n->options = (struct net_options){.loop = n->loop,
                                      .self = {.node = id, .starts = 1, .version = 1},
                                      .secret = SECRET,
                                      .listen_host = "127.0.0.1",
                                      .ctx = n,
                                      .meet = node_meet,
                                      .refused = node_refused};
    memset(n->options.self.cluster.bytes, 7, 16);
}

static inline void node_open_net(struct node *n)
{
    struct buf error = {0};
    n->net = net_open(&n->options, &error);
    if (n->net == NULL) fail_msg("net_open: %.*s", (int)error.len, error.at);
    buf_free(&error);
}

static inline void node_attach(struct node *n, uint16_t channel, struct loop *loop)
{
    struct net_channel c = {.ctx = n, .loop = loop, .frame = node_frame, .link = node_link, .receiving = node_receiving};
    net_attach(n->net, channel, &c);
}

static inline void node_go(struct node *n)
{
    assert_int_equal(pthread_create(&n->thread, NULL, node_thread, n->loop), 0);
}

static inline void node_start(struct node *n, uint64_t id)
{
    node_init(n, id);
    node_open_net(n);
    node_attach(n, CHANNEL, NULL);
    node_go(n);
}

static inline void node_halt(struct node *n)
{
    loop_stop(n->loop);
    pthread_join(n->thread, NULL);
    net_close(n->net);
    loop_free(n->loop);
    pthread_mutex_destroy(&n->lock);
}

/* Something on the node's loop; the caller waits for it. */
struct errand {
    struct loop_task task;
    void (*run)(void *ctx);
    void *ctx;
    atomic_bool done;
};

static inline void errand_run(struct loop_task *task)
{
    struct errand *e = (struct errand *)(void *)task;
    e->run(e->ctx);
    atomic_store(&e->done, true);
}

static inline void node_do(struct node *n, void (*run)(void *ctx), void *ctx)
{
    struct errand e = {.task.run = errand_run, .run = run, .ctx = ctx};
    loop_post(n->loop, &e.task);
    while (!atomic_load(&e.done)) usleep(100);
}

struct peer_errand {
    struct net *net;
    uint64_t peer;
    uint16_t port;
    const char *host;
};

static inline void peer_set_run(void *ctx)
{
    struct peer_errand *e = ctx;
    net_peer_set(e->net, e->peer, e->host, e->port);
}

static inline void peer_remove_run(void *ctx)
{
    struct peer_errand *e = ctx;
    net_peer_remove(e->net, e->peer);
}

static inline void node_dial(struct node *n, uint64_t peer, uint16_t port)
{
    struct peer_errand e = {n->net, peer, port, "127.0.0.1"};
    node_do(n, peer_set_run, &e);
}

static inline void node_remove(struct node *n, uint64_t peer)
{
    struct peer_errand e = {.net = n->net, .peer = peer};
    node_do(n, peer_remove_run, &e);
}

/* Waits until the condition holds; fails the test after 20 s (sanitizers are slow). */
#define eventually(cond)                                                                                                       \
    do {                                                                                                                       \
        int64_t until_us = clock_mono_us() + 20000000;                                                                         \
        while (!(cond)) {                                                                                                      \
            if (clock_mono_us() > until_us) fail_msg("not within 20 s: %s", #cond);                                            \
            usleep(500);                                                                                                       \
        }                                                                                                                      \
    } while (0)

static inline uint32_t node_count(struct node *n, enum note_type type)
{
    uint32_t count = 0;
    pthread_mutex_lock(&n->lock);
    for (uint32_t i = 0; i < n->note_count && i < NOTES_MAX; i++) count += n->notes[i].type == type;
    pthread_mutex_unlock(&n->lock);
    return count;
}

static inline uint32_t node_links(struct node *n, enum net_link which, bool up)
{
    uint32_t count = 0;
    pthread_mutex_lock(&n->lock);
    for (uint32_t i = 0; i < n->note_count && i < NOTES_MAX; i++) {
        count += n->notes[i].type == NOTE_LINK && n->notes[i].which == which && n->notes[i].up == up;
    }
    pthread_mutex_unlock(&n->lock);
    return count;
}

static inline uint64_t node_refusals(struct node *n)
{
    pthread_mutex_lock(&n->lock);
    uint64_t count = n->refused_count;
    pthread_mutex_unlock(&n->lock);
    return count;
}

/* The i-th frame that came. */
static inline struct note node_frame_at(struct node *n, uint32_t i)
{
    struct note found = {.type = NOTE_LINK};
    pthread_mutex_lock(&n->lock);
    for (uint32_t at = 0; at < n->note_count && at < NOTES_MAX; at++) {
        if (n->notes[at].type == NOTE_FRAME && i-- == 0) {
            found = n->notes[at];
            break;
        }
    }
    pthread_mutex_unlock(&n->lock);
    assert_int_equal(found.type, NOTE_FRAME);
    return found;
}

static inline bool node_send_on(struct node *n, uint64_t peer, uint16_t channel, size_t len, uint64_t seed, uint8_t kind)
{
    char *at = malloc(len + 8);
    frame_fill(at, len, seed);
    struct slice parts[3] = {slice_make(at, len / 3), slice_make(at, 0), slice_make(at + len / 3, len - len / 3)};
    bool sent = net_send(n->net, peer, channel, kind, 0, parts, 3);
    free(at);
    return sent;
}

static inline bool node_send(struct node *n, uint64_t peer, size_t len, uint64_t seed)
{
    return node_send_on(n, peer, CHANNEL, len, seed, 1);
}

static inline struct net_peer_stats node_stats(struct node *n, uint64_t peer)
{
    struct net_peer_stats all[NET_PEERS_MAX], none = {0};
    uint32_t count = net_stats(n->net, all, NET_PEERS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        if (all[i].peer == peer) return all[i];
    }
    return none;
}

/* ---- plain sockets */

static inline int dial_plain(uint16_t port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

static inline int listen_plain(uint16_t *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    *port = ntohs(at.sin_port);
    return fd;
}

/* Does the other end close within the time? What comes before is read away (kept, when there is room). */
static inline bool closed_within(int fd, int ms, char *kept, size_t *kept_len, size_t max)
{
    char bytes[4096];
    int64_t until_us = clock_mono_us() + (int64_t)ms * 1000;
    while (clock_mono_us() < until_us) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 20) <= 0) continue;
        ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN)) return true;
        if (n > 0 && kept != NULL && *kept_len + (size_t)n <= max) {
            memcpy(kept + *kept_len, bytes, (size_t)n);
            *kept_len += (size_t)n;
        }
    }
    return false;
}

/* ---- a proxy: what goes from the dialler to the accepter is seen, and one byte of it may be turned */

struct proxy {
    int listener;
    uint16_t port, to;
    pthread_t thread;
    atomic_bool stop, cut, stalled;
    _Atomic int64_t flip_at; /* of the bytes towards `to` of a connection; -1: none */
    _Atomic uint32_t connections;
    pthread_mutex_t lock;
    char seen[4096]; /* the beginning of the last connection, towards `to` */
    size_t seen_len;
};

static inline bool send_whole(int fd, const char *at, size_t len)
{
    while (len > 0) {
        ssize_t n = send(fd, at, len, MSG_NOSIGNAL);
        if (n <= 0) return false;
        at += n;
        len -= (size_t)n;
    }
    return true;
}

static inline bool proxy_move(struct proxy *p, int from, int to, bool forward, int64_t *moved)
{
    static __thread char bytes[65536];
    ssize_t n = recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0) return false;
    if (forward) {
        int64_t flip = atomic_load(&p->flip_at);
        if (flip >= *moved && flip < *moved + n) bytes[flip - *moved] ^= 0x10;
        pthread_mutex_lock(&p->lock);
        size_t keep = sizeof p->seen - p->seen_len;
        if (keep > (size_t)n) keep = (size_t)n;
        memcpy(p->seen + p->seen_len, bytes, keep);
        p->seen_len += keep;
        pthread_mutex_unlock(&p->lock);
        *moved += n;
    }
    return send_whole(to, bytes, (size_t)n);
}

static inline void proxy_serve(struct proxy *p, int in)
{
    int out = dial_plain(p->to);
    int64_t moved = 0, back = 0;
    bool alive = true;
    while (alive && !atomic_load(&p->stop) && !atomic_load(&p->cut)) {
        struct pollfd f[2] = {{.fd = in, .events = POLLIN}, {.fd = out, .events = POLLIN}};
        if (atomic_load(&p->stalled)) {
            usleep(1000);
            continue;
        }
        if (poll(f, 2, 5) <= 0) continue;
        if (f[0].revents != 0) alive = proxy_move(p, in, out, true, &moved);
        if (alive && f[1].revents != 0) alive = proxy_move(p, out, in, false, &back);
    }
    close(out);
    close(in);
}

static inline void *proxy_thread(void *arg)
{
    struct proxy *p = arg;
    while (!atomic_load(&p->stop)) {
        struct pollfd f = {.fd = p->listener, .events = POLLIN};
        if (poll(&f, 1, 5) <= 0) continue;
        int in = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC);
        if (in < 0) continue;
        if (atomic_load(&p->cut)) {
            close(in);
            continue;
        }
        pthread_mutex_lock(&p->lock);
        p->seen_len = 0;
        pthread_mutex_unlock(&p->lock);
        atomic_fetch_add(&p->connections, 1);
        proxy_serve(p, in);
    }
    return NULL;
}

static inline void proxy_start(struct proxy *p, uint16_t to)
{
    memset(p, 0, sizeof *p);
    p->to = to;
    atomic_store(&p->flip_at, -1);
    pthread_mutex_init(&p->lock, NULL);
    p->listener = listen_plain(&p->port);
    assert_int_equal(pthread_create(&p->thread, NULL, proxy_thread, p), 0);
}

static inline void proxy_halt(struct proxy *p)
{
    atomic_store(&p->stop, true);
    pthread_join(p->thread, NULL);
    close(p->listener);
    pthread_mutex_destroy(&p->lock);
}

#endif
