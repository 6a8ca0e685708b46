/* The parts of a net, for the files of this room.
 *
 *   net.c        open, close, accept, the sweep (silence, time limits, idle memory), statistics
 *   peer.c       peers, dialling
 *   handshake.c  who is there
 *   conn.c       bytes in and out of a connection
 *   channel.c    frames to the channels' owners, also on other loops
 *   outbox.c     what waits to be sent
 *   wire.c seal.c hello.c   formats, keys, messages of the handshake
 *   tls.c, lookup.c
 *
 * A connection's life, both sides:
 *
 *   dialler    CONNECTING -> TLS -> AWAIT_ANSWER -> AWAIT_VERDICT -> UP -> DEAD
 *   accepter                 TLS -> AWAIT_HELLO -> AWAIT_PROOF -> AWAIT_FIRST -> UP -> DEAD
 *
 * It can die in any state: conn_close. Its memory stays until the turn's end, as callers up the stack may still hold it. Up to UP a
 * connection has HANDSHAKE_US; after that it is dead after SILENCE_US without a byte.
 *
 * A new connection of a peer is UP with its first record, which only the living holder of both the secret and this connection's keys can
 * make. It then takes the place of the peer's older one, whose unread bytes are dropped. Connections of one run of a peer are numbered
 * by it, so one that was held up on the way cannot take a newer one's place. */
#ifndef QUEEN_NET_NET_INNER_H
#define QUEEN_NET_NET_INNER_H

#include <stdatomic.h>

#include "net/hello.h"
#include "net/lookup.h"
#include "net/net.h"
#include "net/outbox.h"
#include "net/seal.h"
#include "net/tls.h"

enum {
    HANDSHAKE_US = 3000000,
    SILENCE_US = 5000000,
    SIGN_US = 1000000, /* of life, when nothing else is sent */
    SWEEP_US = 250000,
    PAUSE_MIN_US = 20000,
    PAUSE_MAX_US = 1000000,
    STEADY_US = 1000000, /* up that long: the next pause is short again */
    SAY_US = 1000000,    /* between log lines of one cause */
    SAY_UNREACHABLE_US = 30000000,
    ACCEPT_PAUSE_US = 100000, /* without descriptors */
    RECEIVING_US = 10000,
    STRANGERS_MAX = 32, /* connections not authenticated yet: above, the oldest is closed */
    ACCEPTS_A_TURN = 16,
    READ_BYTES = 256 << 10,    /* buffer of a connection that is read */
    READ_A_TURN = 1 << 20,     /* then others have their turn */
    WRITE_BYTES = 512 << 10,   /* sealed ahead for one write */
    WRITE_A_TURN = 4 << 20,    /* then others have their turn */
    UNSENT_BYTES = 1 << 20,    /* in a socket, beyond what is on the way: more would wait there behind a large frame */
    WRITE_AT_ONCE = 256 << 10, /* queued by the net's own loop: do not wait for the turn's end */
    NAME_BYTES = 64,
    CHANNEL_BYTES_MAX = 32 << 20, /* frames on their way to another loop: above, connections are not read */
    CHANNELS_MAX = 1025,
};

enum conn_state {
    CONN_CONNECTING,
    CONN_TLS,
    CONN_AWAIT_HELLO,
    CONN_AWAIT_ANSWER,
    CONN_AWAIT_PROOF,
    CONN_AWAIT_VERDICT,
    CONN_AWAIT_FIRST,
    CONN_UP,
    CONN_DEAD,
};

struct channel;

struct conn {
    struct loop_fd fd;
    struct net *net;
    struct conn *next, *prev; /* all of the net; when dead: the graveyard */
    struct net_peer *peer;    /* dialled: from the start; accepted: once UP */
    enum conn_state state;
    bool dialled, paused, broken; /* broken: a write failed, to be closed by whoever may call back */
    uint32_t events;              /* as registered */
    int error;
    int64_t began_us, heard_us, sent_us, up_us;
    struct tls *tls;
    struct hello said; /* the dialler's hello: ours or the other's */
    struct net_self other;
    struct buf hello, answer; /* the messages as sent or read, until UP */
    struct seal in_seal, out_seal;
    char *in;
    uint32_t in_start, in_end, in_cap;
    struct chunk *out, **out_end; /* sealed */
    uint32_t out_at, out_bytes;   /* written of the first; left of all */
    struct wire_frames frames;
    char name[NAME_BYTES]; /* the other end's address */
};

struct net_peer {
    struct net *net;
    _Atomic uint64_t id; /* 0: a free place */
    struct outbox outbox;
    atomic_bool dirty, out_up, in_up;
    _Atomic uint64_t sent_frames, sent_bytes, received_frames, received_bytes, dropped_frames, connects;
    _Atomic int64_t heard_us;
    /* of the net's loop */
    char *host; /* NULL: not dialled, known by its own connection only */
    uint16_t port;
    struct conn *out, *in;
    struct lookup *lookup;
    struct loop_timer retry;
    int64_t pause_us, said_us, refused_us;
    uint32_t address_at; /* failed tries: which of its addresses is next */
    uint64_t dials;
    bool has_run;
    uint64_t run, run_dial; /* of its newest connection to us */
};

struct net {
    struct loop *loop;
    struct net_options options;
    struct net_self self;
    struct slice secret;
    uint64_t run;
    struct tls_context *tls;
    struct loop_fd listen;
    uint16_t port;
    struct loop_timer sweep, accept_again;
    struct loop_hook hook;
    struct loop_task flush_task;
    atomic_bool flush_posted, dirty; /* dirty: some peer is */
    struct conn *conns, *graveyard;
    char *spare_in; /* READ_BYTES, when no connection has it */
    uint32_t strangers;
    int64_t strange_said_us, refused_us;
    struct net_peer peers[NET_PEERS_MAX];
    struct channel *channels[CHANNELS_MAX];
    uint32_t channel_count, channel_last; /* last: found last, mostly the next one too */
    bool closing;
};

/* ---- conn.c */
struct conn *conn_new(struct net *n, int fd, bool dialled, const struct lookup_address *address);
/* `why` NULL: nobody needs to be told. Never inside net_send. */
__attribute__((format(printf, 2, 3))) void conn_close(struct conn *c, const char *why, ...);
void conn_free_dead(struct net *n);
void conn_queue_plain(struct conn *c, struct slice bytes); /* and writes */
void conn_queue_record(struct conn *c, enum wire_record_type type, struct slice payload);
/* Writes until all is written, the socket is full, or the turn's share is used: then true. A failure is kept in c->broken. */
bool conn_write(struct conn *c);
void conn_check(struct conn *c); /* closes a broken one */
void conn_resume(struct conn *c);
static inline bool conn_dead(const struct conn *c)
{
    return c->state == CONN_DEAD;
}

/* ---- handshake.c */
void handshake_begin(struct conn *c); /* bytes can flow (after TLS) */
/* Takes one message of `in`. false: more bytes are needed, or the connection is closed, or records follow now. */
bool handshake_take(struct conn *c);
void handshake_first(struct conn *c);                      /* the first record has a right tag */
void handshake_refused(struct conn *c, struct slice text); /* the other side will not have us */

/* ---- peer.c */
struct net_peer *peer_find(const struct net *n, uint64_t id); /* any thread */
struct net_peer *peer_place(struct net *n, uint64_t id);      /* found or made; NULL: all places are taken */
void peer_out_up(struct net_peer *p);
void peer_conn_gone(struct conn *c, bool was_up); /* called by conn_close, last */
void peer_write_on(struct net_peer *p);           /* more is to be written, in the next turn */
void peer_dial_soon(struct net_peer *p);
void peer_close(struct net_peer *p); /* at net_close */

/* ---- channel.c */
void channel_frame(struct conn *c, const struct wire_item *item, struct wire_frame *large);
bool channel_wanted(struct net *n, uint16_t number);
void channel_receiving(struct conn *c, uint16_t number);
void channels_link(struct net *n, uint64_t peer, enum net_link which, bool up);
void channels_post(struct net *n); /* what was gathered for other loops goes off */
void channels_free(struct net *n);

#endif
