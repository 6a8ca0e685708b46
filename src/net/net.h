/* Frames between the nodes of a cluster.
 *
 *   node A  --A's connection: A's frames-->  node B      each node dials every peer and sends on the connection it dialled;
 *   node A  <--B's connection: B's frames--  node B      what it receives comes on the connection the peer dialled
 *
 * A frame {channel, kind, bytes} arrives whole and in the order of its channel, or not at all: what is sent while a peer is not
 * connected, or beyond the backlog limit, is dropped, and what was under way when a connection broke is lost. After a break the
 * receiver never sees frames of the old connection again: a new authenticated connection of a peer takes the old one's place.
 * Channels take turns on the connection, so a large frame of one does not hold up the others.
 *
 * One net serves all raft groups of the node: `channel` is the group's number. Its sockets live on one loop; a channel may live on
 * another loop (its thread): frames are then handed over in order, one task a batch.
 *
 * Authentication is mutual, with the cluster's secret, and a connection's frames cannot be forged or reordered: hello with nonces and
 * identities, HMAC-SHA256 of both over the secret, a key for each connection derived from both nonces, a tag on everything that is sent
 * (AES-GMAC with a counter; frames of one turn share one). Frames can be read on the way: with certificates all of it runs inside TLS
 * (1.2 or later) besides, and both ends must show one of the given authority. No secret: net_open refuses.
 *
 * A connection from which nothing was heard for 5 s (a sign of life is sent every second) is taken for dead. At most 32 connections
 * may be in the handshake, for 3 s; above, the oldest goes.
 *
 * Large frames travel in pieces; `receiving` tells while one is coming in, so that its sender is known to be alive. The receiver
 * accepts at most NET_FRAME_BYTES_MAX, and takes memory as bytes arrive, not as announced.
 *
 * Threads: net_send, net_backlog, net_connected, net_stats from any; the rest on the net's loop, or before it runs. */
#ifndef QUEEN_NET_NET_H
#define QUEEN_NET_NET_H

#include "base/buf.h"
#include "base/loop.h"
#include "base/slice.h"
#include "base/uuid.h"

struct net;

enum {
    NET_FRAME_BYTES_MAX = 160 << 20, /* a whole frame */
    NET_BACKLOG_BYTES_MAX =
        64 << 20,              /* unsent bytes to one peer: above, net_send drops (frames marked NET_VITAL up to twice that) */
    NET_CHANNEL_NODE = 0xffff, /* not a group's: node to node */
    NET_PEERS_MAX = 16,
};

/* Who a node is, told in the hello and checked by `meet`. */
struct net_self {
    struct uuid cluster; /* all zero: not known yet (a node that waits to be added); it takes the peer's */
    uint64_t node;
    struct uuid disk; /* made when the data directory was created */
    uint64_t starts;  /* of this directory: upper half counted durably, lower half random for each */
    uint64_t version; /* highest format this program reads */
};

struct net_options {
    struct loop *loop;
    struct net_self self;
    uint64_t backlog_bytes_max;              /* unsent bytes to one peer; 0 = NET_BACKLOG_BYTES_MAX */
    const char *secret;                      /* QUEEN_RAFT_TOKEN; at least 16 bytes */
    const char *listen_host;                 /* numeric or a name; */
    uint16_t listen_port;                    /* 0 = any: net_port */
    bool held;                               /* takes nobody in until net_accept */
    const char *tls_cert, *tls_key, *tls_ca; /* paths of PEM files, all or none */
    void *ctx;
    /* A peer has proved that it knows the secret, on its connection or on ours to it. NULL lets it in; a text (of at most 1000 bytes) refuses
     * it, and it is told that text. NULL pointer: everybody with the secret is let in. */
    const char *(*meet)(void *ctx, const struct net_self *peer);
    /* A peer refused us: the text of its `meet` (at most once a second a peer). What net itself refuses (wrong secret, another cluster,
     * another node at that address, our own) is logged on both sides, at most once a second. */
    void (*refused)(void *ctx, uint64_t peer, const char *why);
};

struct net *net_open(const struct net_options *o, struct buf *error); /* NULL: error says why (secret, certificate, port) */
void net_close(struct net *n); /* its loop and the channels' must not run again after it */
void net_accept(struct net *n);
uint16_t net_port(const struct net *n);
void net_self_cluster(struct net *n, struct uuid cluster); /* a waiting node learned it, in `meet` for example */

/* A peer to dial, or its new address; it is dialled again and again with growing pauses (20 ms to 1 s). The name is looked up at each
 * try, off the loop. Our own id is ignored. A peer that dials us need not be set: who may do so is for `meet` to say. */
void net_peer_set(struct net *n, uint64_t peer, const char *host, uint16_t port);
void net_peer_remove(struct net *n, uint64_t peer); /* closes both its connections */

enum net_link { NET_LINK_OUT = 1, NET_LINK_IN = 2 }; /* ours to it; its to us */

struct net_channel {
    void *ctx;
    struct loop *loop;
    /* On that loop. `frame` lives until the call returns. */
    void (*frame)(void *ctx, uint64_t peer, uint8_t kind, struct slice frame);
    /* A connection came up (authenticated) or broke; in order with the frames. On the net's own loop it may run inside net_attach (for
     * what is up), net_peer_set and net_peer_remove. Any call may be made from it. */
    void (*link)(void *ctx, uint64_t peer, enum net_link which, bool up);
    void (*receiving)(void *ctx, uint64_t peer); /* part of a large frame of this channel came in; at most every 10 ms */
};
/* The struct is copied; a loop of NULL is the net's. Frames of a channel that nobody attached are dropped. A channel on another loop that
 * does not keep up makes the net stop reading at 32 MiB under way to it: the peers' backlogs grow then. */
void net_attach(struct net *n, uint16_t channel, const struct net_channel *c);
/* Nothing is delivered to it any more when this returns; for a channel of another loop it waits for a call that is under way. */
void net_detach(struct net *n, uint16_t channel);

enum net_flags { NET_VITAL = 1 }; /* small and worth more than bulk: dropped later */

/* The parts, joined, as one frame. The bytes are copied before it returns. false: dropped. */
bool net_send(struct net *n, uint64_t peer, uint16_t channel, uint8_t kind, uint32_t flags, const struct slice *parts,
              uint32_t count);
bool net_connected(const struct net *n, uint64_t peer); /* ours to it is up */
uint64_t net_backlog(const struct net *n, uint64_t peer);

struct net_peer_stats {
    uint64_t peer, sent_frames, sent_bytes, received_frames, received_bytes, dropped_frames, connects, backlog_bytes;
    bool out_up, in_up;
    int64_t heard_us; /* clock_mono_us of the last byte from it; 0 = never */
};
uint32_t net_stats(const struct net *n, struct net_peer_stats *out, uint32_t max); /* how many were written. Any thread */

#endif
