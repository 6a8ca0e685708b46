/* Addresses of a host name, found off the loop. A numeric address is turned into one at once; for a name a thread of its own asks the
 * resolver, however long that takes, and posts the answer to the loop. */
#ifndef QUEEN_NET_LOOKUP_H
#define QUEEN_NET_LOOKUP_H

#include <sys/socket.h>

#include "base/loop.h"

enum { LOOKUP_ADDRESSES_MAX = 8 };

struct lookup_address {
    struct sockaddr_storage at;
    socklen_t len;
};

struct lookup;

/* On the loop; `found` runs later on the loop (never inside), once, unless cancelled: count 0 and a text when nothing was found. It frees
 * the lookup. */
struct lookup *lookup_start(struct loop *loop, const char *host, uint16_t port,
                            void (*found)(void *ctx, const struct lookup_address *addresses, uint32_t count, const char *why),
                            void *ctx);
/* `found` will not run. loop_ended: the loop will not run again and may go away. */
void lookup_cancel(struct lookup *l, bool loop_ended);

/* A numeric address, at once. false: it is a name. */
bool lookup_numeric(const char *host, uint16_t port, struct lookup_address *out);

#endif
