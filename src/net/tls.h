/* TLS on a non-blocking socket, both sides with certificates of one authority. */
#ifndef QUEEN_NET_TLS_H
#define QUEEN_NET_TLS_H

#include <sys/types.h>

#include "base/buf.h"

struct tls_context;
struct tls;

/* NULL: error says which file is wrong. TLS 1.2 or later. */
struct tls_context *tls_context_new(const char *cert, const char *key, const char *ca, struct buf *error);
void tls_context_free(struct tls_context *t);

struct tls *tls_new(struct tls_context *t, int fd, bool dialled);
void tls_free(struct tls *t);

enum tls_status { TLS_DONE, TLS_WANTS_READ, TLS_WANTS_WRITE, TLS_FAILED };
enum tls_status tls_handshake(struct tls *t);
/* As recv and send: bytes, 0 at the end, -1 with errno (EAGAIN; EPROTO: tls_why). */
ssize_t tls_read(struct tls *t, void *at, size_t len);
ssize_t tls_write(struct tls *t, const void *at, size_t len);
bool tls_pending(const struct tls *t); /* bytes were read from the socket already */
const char *tls_why(const struct tls *t);

#endif
