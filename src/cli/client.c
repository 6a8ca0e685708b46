#include "cli/client.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    CLIENT_CONNECT_MS_MAX = 5000,
    CLIENT_READ_BYTES = 16384,
};

static bool url_refuse(struct client *c, const char *url, const char *why)
{
    snprintf(c->error, sizeof c->error, "%.100s is not a server address: %s", url, why);
    return false;
}

static bool part_copy(char *out, size_t cap, const char *from, size_t len)
{
    if (len >= cap) return false;
    memcpy(out, from, len);
    out[len] = 0;
    return true;
}

bool client_init(struct client *c, const char *url)
{
    *c = (struct client){.fd = -1};
    const char *at = url;
    if (strncmp(at, "https://", 8) == 0) return url_refuse(c, url, "https is not spoken here, use http://HOST:PORT");
    if (strncmp(at, "http://", 7) == 0) at += 7;
    const char *path = at + strcspn(at, "/");
    const char *host_end;
    if (*at == '[') {
        const char *bracket = memchr(at, ']', (size_t)(path - at));
        if (bracket == NULL) return url_refuse(c, url, "the ] is missing");
        at++;
        host_end = bracket;
    } else {
        host_end = at + strcspn(at, ":/");
    }
    const char *port = *host_end == ']' ? host_end + 1 : host_end;
    if (!part_copy(c->host, sizeof c->host, at, (size_t)(host_end - at)) || c->host[0] == 0) {
        return url_refuse(c, url, "the host is missing or too long");
    }
    strcpy(c->port, "6632");
    if (port < path) {
        size_t digits = strspn(port + 1, "0123456789");
        if (*port != ':' || digits == 0 || port + 1 + digits != path || !part_copy(c->port, sizeof c->port, port + 1, digits) ||
            atoi(c->port) < 1 || atoi(c->port) > 65535) {
            return url_refuse(c, url, "the port is not a number from 1 to 65535");
        }
    }
    size_t prefix = strlen(path);
    while (prefix > 0 && path[prefix - 1] == '/') prefix--;
    if (!part_copy(c->prefix, sizeof c->prefix, path, prefix)) return url_refuse(c, url, "the path is too long");
    return true;
}

void client_close(struct client *c)
{
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    buf_free(&c->out);
    buf_free(&c->in);
}

static void connection_drop(struct client *c)
{
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
}

/* Waits for a socket event. False: time is up (error is set). */
static bool socket_wait(struct client *c, int fd, short events, int timeout_ms)
{
    struct pollfd p = {.fd = fd, .events = events};
    int n;
    do {
        n = poll(&p, 1, timeout_ms);
    } while (n < 0 && errno == EINTR);
    if (n > 0) return true;
    snprintf(c->error, sizeof c->error, "no answer within %d ms", timeout_ms);
    return false;
}

static int address_connect(struct client *c, const struct addrinfo *to, int timeout_ms)
{
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    int failure = 0;
    socklen_t size = sizeof failure;
    if (connect(fd, to->ai_addr, to->ai_addrlen) != 0) {
        if (errno != EINPROGRESS) {
            failure = errno;
        } else if (!socket_wait(c, fd, POLLOUT, timeout_ms)) {
            failure = ETIMEDOUT;
        } else {
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &size);
        }
    }
    if (failure != 0) {
        close(fd);
        errno = failure;
        return -1;
    }
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static bool connection_open(struct client *c, int timeout_ms)
{
    if (timeout_ms > CLIENT_CONNECT_MS_MAX) timeout_ms = CLIENT_CONNECT_MS_MAX;
    struct addrinfo want = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *all = NULL;
    int rc = getaddrinfo(c->host, c->port, &want, &all);
    if (rc != 0) {
        snprintf(c->error, sizeof c->error, "%.100s: %s", c->host, gai_strerror(rc));
        return false;
    }
    for (struct addrinfo *to = all; to != NULL && c->fd < 0; to = to->ai_next) {
        c->fd = address_connect(c, to, timeout_ms);
    }
    int failure = errno;
    freeaddrinfo(all);
    if (c->fd >= 0) return true;
    snprintf(c->error, sizeof c->error, "%.100s:%s: %s", c->host, c->port, strerror(failure));
    return false;
}

/* Sends head and body. False: the connection is gone or the time is up. */
static bool request_send(struct client *c, struct slice body, int timeout_ms)
{
    size_t done = 0;
    size_t all = c->out.len + body.len;
    while (done < all) {
        struct iovec part[2] = {0};
        struct msghdr m = {.msg_iov = part, .msg_iovlen = 2};
        if (done < c->out.len) {
            part[0] = (struct iovec){c->out.at + done, c->out.len - done};
            part[1] = (struct iovec){(void *)(uintptr_t)body.at, body.len};
        } else {
            size_t sent = done - c->out.len;
            part[0] = (struct iovec){(void *)(uintptr_t)(body.at + sent), body.len - sent};
            m.msg_iovlen = 1;
        }
        ssize_t n = sendmsg(c->fd, &m, MSG_NOSIGNAL);
        if (n >= 0) {
            done += (size_t)n;
        } else if (errno == EAGAIN) {
            if (!socket_wait(c, c->fd, POLLOUT, timeout_ms)) return false;
        } else if (errno != EINTR) {
            /* The server may have answered early (413) and closed: its answer is read all the same. */
            return errno == EPIPE || errno == ECONNRESET;
        }
    }
    return true;
}

static enum client_reply_state reply_receive(struct client *c, int timeout_ms)
{
    client_reply_reset(&c->reply);
    buf_clear(&c->in);
    for (;;) {
        ssize_t n = recv(c->fd, buf_reserve(&c->in, CLIENT_READ_BYTES), CLIENT_READ_BYTES, 0);
        if (n < 0) {
            if (errno == EINTR) continue;
            if (errno == EAGAIN) {
                if (socket_wait(c, c->fd, POLLIN, timeout_ms)) continue;
                return CLIENT_REPLY_BAD;
            }
            snprintf(c->error, sizeof c->error, "%s", strerror(errno));
            return CLIENT_REPLY_BAD;
        }
        if (n == 0) {
            enum client_reply_state end = client_reply_end(&c->reply, c->in.len);
            if (end == CLIENT_REPLY_BAD) snprintf(c->error, sizeof c->error, "the server closed the connection");
            return end;
        }
        c->in.len += (size_t)n;
        enum client_reply_state state = client_reply_read(&c->reply, c->in.at, c->in.len);
        if (state == CLIENT_REPLY_BAD) snprintf(c->error, sizeof c->error, "the answer is not HTTP/1.1");
        if (state != CLIENT_REPLY_MORE) return state;
    }
}

enum client_outcome client_call(struct client *c, const char *method, struct slice path, struct slice body, int timeout_ms)
{
    must(path.len > 0 && path.at[0] == '/');
    bool get = strcmp(method, "GET") == 0;
    buf_clear(&c->out);
    buf_printf(&c->out, "%s %s", method, c->prefix);
    buf_slice(&c->out, path);
    buf_printf(&c->out, " HTTP/1.1\r\nHost: %s:%s\r\nAccept: application/json\r\n", c->host, c->port);
    if (!get) buf_printf(&c->out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", body.len);
    buf_text(&c->out, "\r\n");
    for (;;) {
        bool kept = c->fd >= 0;
        if (!kept && !connection_open(c, timeout_ms)) return CLIENT_UNREACHABLE;
        enum client_reply_state state = CLIENT_REPLY_BAD;
        buf_clear(&c->in);
        if (request_send(c, body, timeout_ms)) state = reply_receive(c, timeout_ms);
        if (state == CLIENT_REPLY_DONE) break;
        bool timed_out = strncmp(c->error, "no answer", 9) == 0;
        connection_drop(c);
        if (!kept || c->in.len > 0 || timed_out) return CLIENT_LOST;
    }
    c->status = c->reply.status;
    c->retry_after_s = c->reply.retry_after_s;
    c->body = slice_make(c->in.at + c->reply.head_len, c->reply.body_len);
    if (c->reply.closes || c->reply.total_len != c->in.len) connection_drop(c);
    return CLIENT_ANSWERED;
}

void client_escape(struct buf *b, struct slice name)
{
    static const char hex[] = "0123456789ABCDEF";
    for (size_t i = 0; i < name.len; i++) {
        unsigned char ch = (unsigned char)name.at[i];
        bool plain = (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || (ch >= '0' && ch <= '9') || ch == '-' ||
                     ch == '_' || ch == '.' || ch == '~';
        if (plain) {
            buf_byte(b, (char)ch);
        } else {
            buf_byte(b, '%');
            buf_byte(b, hex[ch >> 4]);
            buf_byte(b, hex[ch & 15]);
        }
    }
}
