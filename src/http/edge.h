/* An edge: one thread's share of the connections.
 *
 * It owns daemons of libmicrohttpd in external mode; their epoll descriptors hang in our loop. All daemons that have something
 * to do run once at the end of a turn, so the answers of one log sync leave together.
 *
 * Waiting for the log, two ways. A call answered within EDGE_RUN_US leaves its connection where it is: the daemon asks for the
 * answer each time it runs, which costs some 50 ns, and no system call. A longer one (a parked long poll) is suspended in the
 * daemon; resuming makes the daemon look through all its suspended connections, so a daemon has few (EDGE_DAEMON_CONNECTIONS)
 * and more connections mean more daemons. The fullest-first filling keeps a few connections in one daemon.
 *
 * A suspended connection is not watched by the daemon. For a waiting pop the edge watches the socket itself and gives the
 * call up when the client is gone (broker_cancel), so no claim is made for nobody. A client that closes only its sending side
 * counts as gone.
 *
 * Slow clients are cut by time, in each state (limits in http.h). */
#ifndef QUEEN_HTTP_EDGE_H
#define QUEEN_HTTP_EDGE_H

#include <sys/socket.h>

#include "http/http.h"
#include "http/metrics.h"

struct edge;

struct edge *edge_new(struct http *h, struct loop *loop);
struct loop *edge_loop(const struct edge *e);
struct edge_metrics *edge_metrics_of(struct edge *e);
uint32_t edge_connections(const struct edge *e); /* any thread */

/* For an edge that shares the group's loop, once the broker has added its hooks: answers leave in the turn that brings them. */
void edge_behind_broker(struct edge *e);

/* A connected, non-blocking socket; from any thread. It is closed when it cannot be served. */
struct edge_socket {
    struct loop_task task;
    struct edge *edge;
    int fd;
    socklen_t address_len;
    struct sockaddr_storage address;
};
void edge_give(struct edge *e, struct edge_socket *s); /* takes `s` (malloc) over */

/* Asks each group for the seed of its message ids until it is known. On the edge's loop, once. */
void edge_seed_fetch(struct edge *e);

/* Graceful stop, on the edge's loop, once the broker has answered all calls: what is in flight is sent, connections are closed,
 * the rest is cut after EDGE_STOP_US; then `stopped`. edge_free after the loop ended. */
void edge_stop(struct edge *e, void (*stopped)(void *ctx), void *ctx);
void edge_free(struct edge *e);

/* Runs whenever a connection is closed: the listener may accept again. */
void edge_on_close(struct edge *e, void (*closed)(void *ctx), void *ctx);

#endif
