/* The HTTP edge as a whole: what its threads share.
 *
 *   listener (edge 0's loop) --fd--> edge: a loop, and daemons of libmicrohttpd that it runs
 *                                      |  head checked, body collected -> route -> struct call -> broker
 *                                      +-- done: answer rendered, sent in the same turn
 *
 * Fields without a note are set before the loops run and only read afterwards. While a node's state is loaded the edges are there
 * already: an edge in the main loop by turns of that loop within node_open. */
#ifndef QUEEN_HTTP_HTTP_H
#define QUEEN_HTTP_HTTP_H

#include <stdatomic.h>

#include "broker/backup.h"
#include "broker/node.h"
#include "broker/scrub.h"

struct edge;
struct kv_rates;

/* Limits of the edge: what each bounds, and what happens there. */
enum {
    EDGE_DAEMON_CONNECTIONS = 512, /* connections of one libmicrohttpd daemon; then another one is started. Bounds the walk that
                                        a resume costs (the daemon looks through all its suspended connections) */
    EDGE_CONNECTION_MEMORY = 8192, /* request head + answer head of one connection; longer heads: 431, 414 */
    EDGE_BODY_KEEP = 32768,        /* buffers up to this stay with a request that is kept for reuse */
    EDGE_REQUESTS_KEPT = 128,      /* requests kept for reuse by one edge */
    EDGE_IDLE_US = 75000000,       /* a connection without a complete request line is cut after this */
    EDGE_READ_US = 20000000,       /* head and body: at least EDGE_READ_BYTES in this time, else cut */
    EDGE_READ_BYTES = 4096,
    EDGE_SEND_US = 30000000, /* an answer must be taken within this + its size at EDGE_SEND_BYTES_S */
    EDGE_SEND_BYTES_S = 32768,
    EDGE_PRESSED_US = 5000000, /* the same while answers take more than half of their memory */
    EDGE_PRESSED_BYTES_S = 1 << 20,
    EDGE_RUN_US = 20000, /* a call not answered by then is suspended in the daemon, its client's leaving watched */
    EDGE_ACCEPTS_A_TURN = 64,
    EDGE_DRAINS_MAX = 32, /* refused uploads whose rest is read and thrown away so that the refusal arrives */
    EDGE_DRAIN_US = 2000000,
    EDGE_DRAIN_BYTES =
        8 << 20, /* of a refused request, thrown away before its connection is closed, so that the answer arrives */
    EDGE_DRAIN_LENGTH_MAX =
        128 << 20,           /* of one that told its length: a client that sends all of it first reads the answer only then */
    EDGE_STOP_US = 10000000, /* graceful stop: what is not sent by then is cut */
};

/* A number of one edge: written by its thread alone, read by any. */
struct counter {
    _Atomic uint64_t value;
};

static inline void counter_add(struct counter *c, uint64_t n)
{
    atomic_store_explicit(&c->value, atomic_load_explicit(&c->value, memory_order_relaxed) + n, memory_order_relaxed);
}

static inline uint64_t counter_get(const struct counter *c)
{
    return atomic_load_explicit(&c->value, memory_order_relaxed);
}

struct http {
    const struct config *config;
    struct node *_Atomic node; /* NULL while its state is loaded: only routes marked `always` are answered then */
    struct backups *backups;   /* set before any group serves */
    struct scrub *_Atomic scrub;
    struct kv_rates *kv_rates; /* NULL: no limits */
    struct edge **edges;
    uint32_t edge_count;
    int64_t started_us;                           /* clock_mono_us */
    _Atomic uint64_t id_seeds[CONFIG_GROUPS_MAX]; /* of message ids, a group's; 0 until its broker told it */
    atomic_bool stopping;                         /* no new connections; every answer closes its connection */
    atomic_uint_fast64_t rows_loaded;             /* of the node's state, so far */
    atomic_uint loaded_per_mille;                 /* how far that is, about; 1000 = all is there */
};

/* Can calls be given to this group? They may still wait there for a leader. Any thread. */
static inline bool http_serves(const struct http *h, uint32_t group)
{
    return h->node != NULL && atomic_load_explicit(&h->id_seeds[group], memory_order_acquire) != 0;
}

/* Is everything there that any request needs? Any thread. */
static inline bool http_ready(const struct http *h)
{
    if (h->node == NULL) return false;
    for (uint32_t i = 0; i < node_group_count(h->node); i++) {
        if (!http_serves(h, i) || !broker_ready(node_group(h->node, i))) return false;
    }
    return true;
}

#endif
