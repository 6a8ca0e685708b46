/* A small blocking HTTP/1.1 client for the verbs: one server, one keep-alive connection, one call at a time.
 *
 * The answer stays in the client until the next call. Bodies with a length, chunked, without a body (204) or ended by the
 * connection are understood. Not thread-safe. A call allocates only when its buffers grow. */
#ifndef QUEEN_CLI_CLIENT_H
#define QUEEN_CLI_CLIENT_H

#include "base/buf.h"
#include "cli/client_reply.h"

enum client_outcome {
    CLIENT_ANSWERED,    /* status, body, retry_after_s are set, whatever the status */
    CLIENT_UNREACHABLE, /* no connection: the server has not seen the request */
    CLIENT_LOST,        /* the connection ended or the time was up: the request may have taken effect */
};

struct client {
    char host[256]; /* name or address, without brackets */
    char port[8];
    char prefix[256]; /* path in front of every call, "" or "/base" */
    char error[256];  /* of the last call that was not answered */
    int fd;           /* -1: not connected */
    struct buf out;
    struct buf in;
    struct client_reply reply;
    unsigned status;
    unsigned retry_after_s;
    struct slice body; /* until the next call */
};

/* url: http://HOST[:PORT][/BASE] or HOST[:PORT]; port 6632 when none is given. False: it is not of that form (error is set). */
bool client_init(struct client *c, const char *url);

/* path begins with '/', already percent-encoded. timeout_ms limits connecting (at most 5 s) and each wait for bytes. A kept
 * connection that the server has closed meanwhile is opened again once, when nothing of an answer had come. */
enum client_outcome client_call(struct client *c, const char *method, struct slice path, struct slice body, int timeout_ms);

void client_close(struct client *c);

/* Appends a name as one path segment or query value, percent-encoded. */
void client_escape(struct buf *b, struct slice name);

#endif
