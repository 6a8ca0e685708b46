/* The socket is read and written by a BIO of our own, so that a write to a closed socket is an error and no signal. */
#include "net/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/must.h"

struct tls_context {
    SSL_CTX *ctx;
    BIO_METHOD *socket;
};

struct tls {
    SSL *ssl;
    int fd;
    char why[200];
};

static int socket_write(BIO *b, const char *at, size_t len, size_t *written)
{
    struct tls *t = BIO_get_data(b);
    BIO_clear_retry_flags(b);
    ssize_t n = send(t->fd, at, len, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(b);
    *written = n < 0 ? 0 : (size_t)n;
    return n >= 0;
}

static int socket_read(BIO *b, char *at, size_t len, size_t *got)
{
    struct tls *t = BIO_get_data(b);
    BIO_clear_retry_flags(b);
    ssize_t n = recv(t->fd, at, len, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(b);
    if (n == 0) BIO_set_flags(b, BIO_FLAGS_IN_EOF);
    *got = n < 0 ? 0 : (size_t)n;
    return n > 0;
}

static long socket_ctrl(BIO *b, int cmd, long num, void *ptr)
{
    (void)num, (void)ptr;
    if (cmd == BIO_CTRL_EOF) return BIO_test_flags(b, BIO_FLAGS_IN_EOF) != 0;
    return cmd == BIO_CTRL_FLUSH || cmd == BIO_CTRL_PUSH || cmd == BIO_CTRL_POP;
}

static void errors_text(char *out, size_t max)
{
    unsigned long code = ERR_peek_last_error();
    const char *reason = code == 0 ? NULL : ERR_reason_error_string(code);
    snprintf(out, max, "%s", reason != NULL ? reason : "unknown reason");
    ERR_clear_error();
}

static bool context_files(SSL_CTX *ctx, const char *cert, const char *key, const char *ca, struct buf *error)
{
    const char *file = NULL;
    char why[160];
    ERR_clear_error();
    if (SSL_CTX_use_certificate_chain_file(ctx, cert) != 1) {
        file = cert;
    } else if (SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1 || SSL_CTX_check_private_key(ctx) != 1) {
        file = key;
    } else if (SSL_CTX_load_verify_locations(ctx, ca, NULL) != 1) {
        file = ca;
    }
    if (file == NULL) return true;
    errors_text(why, sizeof why);
    buf_printf(error, "TLS between nodes: %s: %s", file, why);
    return false;
}

struct tls_context *tls_context_new(const char *cert, const char *key, const char *ca, struct buf *error)
{
    struct tls_context *t = calloc(1, sizeof *t);
    must(t != NULL);
    t->ctx = SSL_CTX_new(TLS_method());
    t->socket = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "queen socket");
    must(t->ctx != NULL && t->socket != NULL);
    BIO_meth_set_write_ex(t->socket, socket_write);
    BIO_meth_set_read_ex(t->socket, socket_read);
    BIO_meth_set_ctrl(t->socket, socket_ctrl);
    must(SSL_CTX_set_min_proto_version(t->ctx, TLS1_2_VERSION) == 1);
    /* An end without notice is an end: what is cut off shows in the records' own tags. */
    SSL_CTX_set_options(t->ctx,
                        SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_num_tickets(t->ctx, 0);
    SSL_CTX_set_session_cache_mode(t->ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_verify(t->ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_mode(t->ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    if (!context_files(t->ctx, cert, key, ca, error)) {
        tls_context_free(t);
        return NULL;
    }
    return t;
}

void tls_context_free(struct tls_context *t)
{
    if (t == NULL) return;
    SSL_CTX_free(t->ctx);
    BIO_meth_free(t->socket);
    free(t);
}

struct tls *tls_new(struct tls_context *context, int fd, bool dialled)
{
    struct tls *t = calloc(1, sizeof *t);
    must(t != NULL);
    t->fd = fd;
    t->ssl = SSL_new(context->ctx);
    BIO *bio = BIO_new(context->socket);
    must(t->ssl != NULL && bio != NULL);
    BIO_set_data(bio, t);
    BIO_set_init(bio, 1);
    SSL_set_bio(t->ssl, bio, bio);
    if (dialled) {
        SSL_set_connect_state(t->ssl);
    } else {
        SSL_set_accept_state(t->ssl);
    }
    return t;
}

void tls_free(struct tls *t)
{
    if (t == NULL) return;
    SSL_free(t->ssl);
    free(t);
}

static void failure_keep(struct tls *t, int kind)
{
    long verified = SSL_get_verify_result(t->ssl);
    if (verified != X509_V_OK) {
        snprintf(t->why, sizeof t->why, "TLS: the other's certificate: %s", X509_verify_cert_error_string(verified));
    } else if (kind == SSL_ERROR_ZERO_RETURN) {
        snprintf(t->why, sizeof t->why, "TLS: closed by the other end");
    } else if (kind == SSL_ERROR_SYSCALL && ERR_peek_error() == 0) {
        snprintf(t->why, sizeof t->why, "TLS: %s", errno != 0 ? strerror(errno) : "closed by the other end");
    } else {
        char why[160];
        errors_text(why, sizeof why);
        snprintf(t->why, sizeof t->why, "TLS: %s", why);
    }
    ERR_clear_error();
}

enum tls_status tls_handshake(struct tls *t)
{
    ERR_clear_error();
    errno = 0;
    int code = SSL_do_handshake(t->ssl);
    if (code == 1) return TLS_DONE;
    int kind = SSL_get_error(t->ssl, code);
    if (kind == SSL_ERROR_WANT_READ) return TLS_WANTS_READ;
    if (kind == SSL_ERROR_WANT_WRITE) return TLS_WANTS_WRITE;
    failure_keep(t, kind);
    return TLS_FAILED;
}

static ssize_t result(struct tls *t, int done, size_t bytes)
{
    if (done == 1) return (ssize_t)bytes;
    int kind = SSL_get_error(t->ssl, done);
    if (kind == SSL_ERROR_ZERO_RETURN) return 0;
    if (kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE) {
        errno = EAGAIN;
        return -1;
    }
    failure_keep(t, kind);
    errno = EPROTO;
    return -1;
}

ssize_t tls_read(struct tls *t, void *at, size_t len)
{
    size_t bytes = 0;
    ERR_clear_error();
    errno = 0;
    int done = SSL_read_ex(t->ssl, at, len, &bytes);
    return result(t, done, bytes);
}

ssize_t tls_write(struct tls *t, const void *at, size_t len)
{
    size_t bytes = 0;
    ERR_clear_error();
    errno = 0;
    int done = SSL_write_ex(t->ssl, at, len, &bytes);
    return result(t, done, bytes);
}

bool tls_pending(const struct tls *t)
{
    return SSL_has_pending(t->ssl) == 1;
}

const char *tls_why(const struct tls *t)
{
    return t->why;
}
