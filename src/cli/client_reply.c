#include "cli/client_reply.h"

#include <strings.h>

#include "base/must.h"

/* "HTTP/1.1 200 OK": the three digits of the status, 0 when it is something else. */
static unsigned status_read(const char *at, size_t len)
{
    if (len < 12 || memcmp(at, "HTTP/1.", 7) != 0 || at[8] != ' ') return 0;
    unsigned status = 0;
    for (size_t i = 9; i < 12; i++) {
        if (at[i] < '0' || at[i] > '9') return 0;
        status = status * 10 + (unsigned)(at[i] - '0');
    }
    return status;
}

static bool number_read(const char *at, size_t len, size_t *out)
{
    size_t n = 0;
    if (len == 0) return false;
    for (size_t i = 0; i < len; i++) {
        if (at[i] < '0' || at[i] > '9' || n > CLIENT_REPLY_BODY_BYTES_MAX) return false;
        n = n * 10 + (size_t)(at[i] - '0');
    }
    *out = n;
    return true;
}

static bool name_is(const char *line, size_t len, const char *name, size_t name_len)
{
    return len > name_len && line[name_len] == ':' && strncasecmp(line, name, name_len) == 0;
}

#define NAME_IS(line, len, name) name_is(line, len, name, sizeof(name) - 1)

/* One header line. False: the answer cannot be framed. */
static bool header_read(struct client_reply *r, const char *line, size_t len, bool *sized)
{
    const char *colon = memchr(line, ':', len);
    if (colon == NULL) return false;
    const char *value = colon + 1;
    const char *end = line + len;
    while (value < end && (*value == ' ' || *value == '\t')) value++;
    while (end > value && (end[-1] == ' ' || end[-1] == '\t')) end--;
    size_t value_len = (size_t)(end - value);
    size_t number = 0;
    switch (line[0] | 0x20) {
    case 'c':
        if (NAME_IS(line, len, "content-length")) {
            *sized = number_read(value, value_len, &r->body_len);
            return *sized;
        }
        if (NAME_IS(line, len, "connection")) r->closes = value_len == 5 && strncasecmp(value, "close", 5) == 0;
        return true;
    case 't':
        if (NAME_IS(line, len, "transfer-encoding")) {
            r->chunked = value_len == 7 && strncasecmp(value, "chunked", 7) == 0;
            return r->chunked;
        }
        return true;
    case 'r':
        if (NAME_IS(line, len, "retry-after") && number_read(value, value_len, &number) && number < 86400) {
            r->retry_after_s = (unsigned)number;
        }
        return true;
    default:
        return true;
    }
}

static enum client_reply_state head_read(struct client_reply *r, const char *at, size_t len)
{
    const char *from = at + (r->scanned > 3 ? r->scanned - 3 : 0);
    const char *stop = memmem(from, len - (size_t)(from - at), "\r\n\r\n", 4);
    if (stop == NULL) {
        r->scanned = len;
        return len > CLIENT_REPLY_HEAD_BYTES_MAX ? CLIENT_REPLY_BAD : CLIENT_REPLY_MORE;
    }
    r->status = status_read(at, len);
    if (r->status < 200) return CLIENT_REPLY_BAD;
    const char *line = memchr(at, '\n', len);
    must(line != NULL);
    bool sized = false;
    for (line++; line < stop;) {
        const char *end = memchr(line, '\r', (size_t)(stop + 1 - line));
        must(end != NULL);
        if (!header_read(r, line, (size_t)(end - line), &sized)) return CLIENT_REPLY_BAD;
        line = end + 2;
    }
    r->head_len = (size_t)(stop + 4 - at);
    r->scanned = r->head_len;
    if (r->status == 204 || r->status == 304) {
        r->chunked = false;
        r->body_len = 0;
        sized = true;
    }
    if (r->chunked) r->body_len = 0;
    r->until_close = !r->chunked && !sized;
    return r->body_len > CLIENT_REPLY_BODY_BYTES_MAX ? CLIENT_REPLY_BAD : CLIENT_REPLY_DONE;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') return (c | 0x20) - 'a' + 10;
    return -1;
}

/* Joins the chunks that are complete. Trailers are skipped. */
static enum client_reply_state chunks_read(struct client_reply *r, char *at, size_t len)
{
    for (;;) {
        const char *line = at + r->scanned;
        const char *end = memmem(line, len - r->scanned, "\r\n", 2);
        if (end == NULL) return len - r->scanned > 4096 ? CLIENT_REPLY_BAD : CLIENT_REPLY_MORE;
        size_t size = 0;
        const char *digit = line;
        for (; digit < end && hex_value(*digit) >= 0; digit++) {
            size = size * 16 + (size_t)hex_value(*digit);
            if (size > CLIENT_REPLY_BODY_BYTES_MAX) return CLIENT_REPLY_BAD;
        }
        if (digit == line) return CLIENT_REPLY_BAD;
        size_t data = (size_t)(end + 2 - at);
        if (size == 0) {
            const char *last = memmem(end, len - (size_t)(end - at), "\r\n\r\n", 4);
            if (last == NULL) return len - r->scanned > CLIENT_REPLY_HEAD_BYTES_MAX ? CLIENT_REPLY_BAD : CLIENT_REPLY_MORE;
            r->total_len = (size_t)(last + 4 - at);
            return CLIENT_REPLY_DONE;
        }
        if (len < data + size + 2) return CLIENT_REPLY_MORE;
        if (at[data + size] != '\r' || r->body_len + size > CLIENT_REPLY_BODY_BYTES_MAX) return CLIENT_REPLY_BAD;
        memmove(at + r->head_len + r->body_len, at + data, size);
        r->body_len += size;
        r->scanned = data + size + 2;
    }
}

enum client_reply_state client_reply_read(struct client_reply *r, char *at, size_t len)
{
    if (r->head_len == 0) {
        enum client_reply_state head = head_read(r, at, len);
        if (head != CLIENT_REPLY_DONE) return head;
    }
    if (r->chunked) return chunks_read(r, at, len);
    if (r->until_close) {
        return len - r->head_len > CLIENT_REPLY_BODY_BYTES_MAX ? CLIENT_REPLY_BAD : CLIENT_REPLY_MORE;
    }
    r->total_len = r->head_len + r->body_len;
    return len >= r->total_len ? CLIENT_REPLY_DONE : CLIENT_REPLY_MORE;
}

enum client_reply_state client_reply_end(struct client_reply *r, size_t len)
{
    if (r->head_len == 0 || !r->until_close) return CLIENT_REPLY_BAD;
    r->body_len = len - r->head_len;
    r->total_len = len;
    r->closes = true;
    return CLIENT_REPLY_DONE;
}
