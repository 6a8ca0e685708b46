/* The check of a request's head that libmicrohttpd does not make itself, or makes too leniently.
 *
 * Two readers of one byte stream (a proxy and we) must agree where a request ends, else a second request can be hidden in a
 * body. So every form that some reader takes differently is refused and the connection closed: Content-Length together with
 * Transfer-Encoding, either of them twice, any coding but exactly `chunked`, white space before a colon, folded lines, bare LF,
 * NUL and other control characters, odd spacing of the request line, a missing or doubled Host.
 *
 * The daemon hands out parsed headers only, but they all lie where they were received: from the distances between method,
 * target, version, names and values one sees what stood between them (CR LF or LF, a colon with or without blanks, a fold). */
#ifndef QUEEN_HTTP_HEAD_H
#define QUEEN_HTTP_HEAD_H

#include <microhttpd.h>

#include "http/request.h"

/* Versions of the daemon whose buffer is laid out like that. Newer ones refuse these forms themselves when asked to
 * (MHD_OPTION_CLIENT_DISCIPLINE_LVL, set where it exists). */
enum { HEAD_LAYOUT_KNOWN = MHD_VERSION < 0x00097701 };

struct head {
    uint32_t status; /* 0 = fine; else what to refuse it with, closing the connection */
    const char *error;
    bool has_length, chunked;
    uint64_t length;
    bool expect_bad; /* an Expect that is not 100-continue */
    bool encoded;    /* a Content-Encoding other than identity */
    struct slice tenant;
    bool has_tenant;
};

void head_check(struct head *out, struct MHD_Connection *c, const struct request *r, const char *method, const char *version);

#endif
