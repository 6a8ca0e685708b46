/* The inside of an edge, shared by edge.c (loop, daemons, life), connection.c (what the daemons call) and drain.c. */
#ifndef QUEEN_HTTP_EDGE_INTERNAL_H
#define QUEEN_HTTP_EDGE_INTERNAL_H

#include <microhttpd.h>
#include <stdarg.h>

#include "http/edge.h"
#include "http/request.h"

/* Which of the edge's lists a connection is in: what it is waited for. Lists are ordered by since_us, but SENDING. */
enum connection_list {
    LIST_IDLE,    /* a request line */
    LIST_READING, /* the rest of the head, the body */
    LIST_RUNNING, /* an answer, in the daemon's turn */
    LIST_PARKED,  /* an answer, suspended */
    LIST_SENDING, /* the client, to take the answer */
    LIST_CUT,     /* the daemon, to notice that we shut it down */
    LIST_COUNT
};

struct connection {
    struct edge *edge;
    struct edge_daemon *daemon;
    struct MHD_Connection *mhd;
    struct request *request;
    int fd;
    uint8_t list;
    bool watched;
    bool refused;          /* an answer was written past the daemon: it must not send another */
    uint64_t answered_run; /* the daemon's run that finished the last answer */
    int64_t since_us;
    int64_t send_by_us;
    struct connection *previous, *next;
    struct loop_fd watch;
};

struct connection_queue {
    struct connection *first, *last;
};

struct edge_daemon {
    struct edge *edge;
    struct MHD_Daemon *mhd;
    struct loop_fd ready;
    uint32_t connections;
    uint32_t running; /* connections in LIST_RUNNING: asked at every run */
    bool dirty;
    bool again;         /* this run made work for another one */
    uint32_t fruitless; /* runs in a row without any call of ours */
    uint64_t runs;
    struct connection *heading; /* whose request line was read last, while its head is incomplete */
    struct edge_daemon *next_dirty;
};

struct drain {
    struct drain *next, *previous;
    struct edge *edge;
    struct loop_fd watch;
    int64_t until_us;
    size_t left_bytes;
};

/* The question for a group's seed of message ids. */
struct edge_seed {
    struct edge *edge;
    uint32_t group;
    struct call call;
    struct loop_timer timer;
    int64_t pause_us;
};

struct edge {
    struct http *http;
    struct loop *loop;
    struct loop_hook hook, late_hook;
    struct loop_timer sweep, park;
    bool sweep_set, park_set;
    int64_t swept_us;
    struct edge_daemon **daemons;
    uint32_t daemon_count, daemon_room; /* no daemon before daemon_room has room */
    struct edge_daemon *dirty;
    struct connection_queue lists[LIST_COUNT];
    atomic_uint connections;   /* and draining sockets */
    struct request *reserve;
    uint32_t reserve_count, pending_calls;
    struct MHD_Response *no_content;
    struct drain *drains;
    uint32_t drain_count;
    void (*closed)(void *ctx);
    void *closed_ctx;
    bool stopping;
    int64_t stop_by_us;
    void (*stopped)(void *ctx);
    void *stopped_ctx;
    struct loop_timer stop_timer;
    struct edge_seed *seeds; /* of each group, while this edge asks for them */
    uint32_t seeds_pending;
    int64_t logged_us;
    struct edge_metrics metrics;
};

void edge_dirty(struct edge_daemon *d);
void edge_list_move(struct connection *c, enum connection_list list);
void edge_cut(struct connection *c); /* shuts the socket down; the daemon then closes the connection */
void edge_park_arm(struct edge *e);

/* The callbacks given to each daemon. */
void *connection_on_target(void *cls, const char *uri, struct MHD_Connection *mhd);
enum MHD_Result connection_on_request(void *cls, struct MHD_Connection *mhd, const char *url, const char *method,
                                      const char *version, const char *upload, size_t *upload_len, void **context);
void connection_on_completed(void *cls, struct MHD_Connection *mhd, void **context, enum MHD_RequestTerminationCode why);
void connection_on_notify(void *cls, struct MHD_Connection *mhd, void **context, enum MHD_ConnectionNotificationCode code);
void connection_on_log(void *cls, const char *format, va_list args);
void connection_on_closed(struct connection *c);
size_t connection_on_unescape(void *cls, struct MHD_Connection *mhd, char *text);

struct request *request_take(struct edge *e);
void request_give_back(struct request *r);

/* Keeps a copy of the socket open and throws away what still comes, so that the answer just sent is not destroyed by a reset. */
bool edge_peer_left(const struct connection *c);         /* has the client closed its side? One system call */
void drain_start(struct edge *e, int fd, uint64_t told); /* told: bytes that the request said would come; 0 = it did not say */
void drain_sweep(struct edge *e, int64_t now_us, bool all);

/* For when the daemon cannot answer any more: writes a whole answer to the socket. The connection must be closed then. */
void connection_refuse_raw(struct connection *c, uint32_t status, const char *reason, const char *text);

#endif
