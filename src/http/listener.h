/* The listening socket: accepts and hands connections to the edges, the emptiest first.
 *
 * It never spins: at the connection limit, or when the process or the system is out of descriptors or memory, it stops listening to
 * the socket until a connection is closed (and looks again every 100 ms), with one log line per 5 s; clients wait in the backlog.
 * Files of the log and the store have descriptors of their own: connections_max leaves them free. Everything on one loop. */
#ifndef QUEEN_HTTP_LISTENER_H
#define QUEEN_HTTP_LISTENER_H

#include "http/http.h"

struct listener;

/* Binds and listens, does not accept yet. NULL: `error` says why. `loop` must be the loop of edges[0]. */
struct listener *listener_open(struct http *h, struct loop *loop, struct buf *error);
uint16_t listener_port(const struct listener *l);
void listener_accept(struct listener *l); /* begins; on its loop or before it runs */
void listener_close(struct listener *l);  /* on its loop or after that ended: no more connections */
void listener_free(struct listener *l);   /* closed, and all loops ended */

#endif
