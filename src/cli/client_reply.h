/* Reading one HTTP/1.1 answer out of a growing buffer. Shared by the client of the verbs and by the load generator.
 *
 *   at                head_len          head_len + body_len          total_len
 *   | status, headers | body (a chunked one is joined in place) .... | next answer
 *
 * Feed the same bytes again with more behind them until the answer is DONE; nothing is allocated, work already done is
 * not repeated. The body's place is valid while the caller keeps the buffer. Not thread-safe. */
#ifndef QUEEN_CLI_CLIENT_REPLY_H
#define QUEEN_CLI_CLIENT_REPLY_H

#include "base/slice.h"

enum {
    CLIENT_REPLY_HEAD_BYTES_MAX = 65536,
};

/* A longer answer is refused: the broker's own limit of a body, four times over. */
#define CLIENT_REPLY_BODY_BYTES_MAX ((size_t)256 * 1024 * 1024)

enum client_reply_state {
    CLIENT_REPLY_MORE, /* incomplete: read more */
    CLIENT_REPLY_DONE,
    CLIENT_REPLY_BAD, /* not HTTP/1.x, or over a limit: close the connection */
};

struct client_reply {
    unsigned status;
    unsigned retry_after_s; /* 0: none sent */
    bool closes;            /* the server ends the connection after this answer */
    bool chunked;
    bool until_close; /* neither length nor chunks: the body ends with the connection */
    size_t head_len;  /* 0: the headers are not complete */
    size_t body_len;
    size_t total_len;
    size_t scanned; /* progress: bytes without an end of headers, or the next chunk's place */
};

static inline void client_reply_reset(struct client_reply *r)
{
    *r = (struct client_reply){0};
}

enum client_reply_state client_reply_read(struct client_reply *r, char *at, size_t len);

/* The connection has ended: completes an answer whose body ends so. */
enum client_reply_state client_reply_end(struct client_reply *r, size_t len);

#endif
