#include "cli/verb.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum {
    LINES_READ_BYTES = 65536,
    BACKOFF_MS = 200,
};

void verb_say(const struct verb *v, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "queen %s: ", v->name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

void verb_fail(struct verb *v, int rc)
{
    if (rc > v->rc) v->rc = rc;
}

bool verb_answer_wrong(struct verb *v)
{
    verb_say(v, "the answer is not what it should be (is that address a Queen server?)");
    verb_fail(v, CLI_REFUSED);
    return false;
}

bool verb_open(struct verb *v)
{
    const char *server = v->server != NULL ? v->server : getenv("QUEEN_SERVER");
    if (server == NULL || server[0] == 0) server = "http://127.0.0.1:6632";
    if (client_init(&v->client, server)) return true;
    verb_say(v, "%s", v->client.error);
    verb_fail(v, CLI_USAGE);
    return false;
}

void verb_close(struct verb *v)
{
    client_close(&v->client);
}

void verb_sleep_ms(uint64_t ms)
{
    struct timespec t = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    while (nanosleep(&t, &t) != 0 && errno == EINTR) continue;
}

static const char *advice(unsigned status)
{
    switch (status) {
    case 401:
        return " (the server wants a token)";
    case 404:
        return " (is that address a Queen server?)";
    case 413:
        return " (send less in one call: --batch; or a shorter name)";
    case 429:
    case 503:
        return " (it is busy or has no leader: try again later, or more often with --retries)";
    case 507:
        return " (the server's disk is nearly full: consume or delete, or give it room)";
    default:
        return "";
    }
}

/* "refused with 413 name_too_long: the text (what to do)". Three shapes: {"error":text,"code"}, {"error":text,"reason"} of a
 * transaction, {"error":code,"reason","detail":text} of KV, timers and locks. */
static void refusal_say(const struct verb *v)
{
    enum { CODE, ERROR, REASON, DETAIL, SUCCESS, MEMBERS };
    static const char *const names[MEMBERS] = {"code", "error", "reason", "detail", "success"};
    struct slice m[MEMBERS] = {{0}};
    struct slice whole;
    struct slice body = v->client.body;
    if (!view_whole(body, &whole) || !view_members(whole, names, m, MEMBERS) || !view_is_string(m[ERROR])) {
        int shown = body.len > 300 ? 300 : (int)body.len;
        verb_say(v, "refused with %u: %.*s%s", v->client.status, shown, body.at, advice(v->client.status));
        return;
    }
    struct buf text = {0};
    const char *known = v->advise != NULL && view_is_string(m[CODE]) ? v->advise(view_unquoted(m[CODE])) : NULL;
    if (view_is_string(m[CODE]) || (view_is_string(m[REASON]) && m[SUCCESS].at != NULL)) {
        buf_slice(&text, view_unquoted(view_is_string(m[CODE]) ? m[CODE] : m[REASON]));
        buf_text(&text, ": ");
        buf_slice(&text, view_unquoted(m[ERROR]));
    } else {
        buf_slice(&text, view_unquoted(m[ERROR]));
        if (view_is_string(m[REASON])) buf_byte(&text, ' '), buf_slice(&text, view_unquoted(m[REASON]));
        if (view_is_string(m[DETAIL])) buf_text(&text, ": "), buf_slice(&text, view_unquoted(m[DETAIL]));
    }
    verb_say(v, "refused with %u %.*s%s%s%s", v->client.status, (int)text.len, text.at, known != NULL ? " (" : "",
             known != NULL ? known : advice(v->client.status), known != NULL ? ")" : "");
    buf_free(&text);
}

/* How long to wait before the same call is made again; 0: not at all. */
static uint64_t retry_after_ms(const struct verb *v, enum client_outcome outcome, uint32_t attempt)
{
    if (outcome == CLIENT_ANSWERED) {
        if (v->client.status != 429 && (v->client.status != 503 || v->once)) return 0;
        uint64_t s = v->client.retry_after_s == 0 ? 1 : v->client.retry_after_s;
        return (s > VERB_WAIT_S_MAX ? VERB_WAIT_S_MAX : s) * 1000;
    }
    if (!v->reached || (outcome == CLIENT_LOST && v->once)) return 0;
    uint64_t ms = (uint64_t)BACKOFF_MS << (attempt > 4 ? 4 : attempt);
    return ms;
}

bool verb_send(struct verb *v, const char *method, struct slice path, struct slice body, int timeout_ms, unsigned wanted,
               unsigned wanted_too)
{
    for (uint32_t attempt = 0;; attempt++) {
        if (v->once) client_close(&v->client); /* a kept connection that was closed meanwhile would be tried twice */
        enum client_outcome outcome = client_call(&v->client, method, path, body, timeout_ms);
        if (outcome == CLIENT_ANSWERED) {
            v->reached = true;
            if (v->client.status == wanted || (wanted_too != 0 && v->client.status == wanted_too)) return true;
        }
        uint64_t ms = attempt < v->retries ? retry_after_ms(v, outcome, attempt) : 0;
        if (ms > 0) {
            verb_sleep_ms(ms);
            continue;
        }
        if (outcome == CLIENT_ANSWERED) {
            refusal_say(v);
            bool unknown = v->once && v->client.status == 503;
            if (unknown) verb_say(v, "it may have taken effect, so it was not made again");
            verb_fail(v, unknown ? CLI_UNREACHABLE : CLI_REFUSED);
        } else if (outcome == CLIENT_LOST && v->once) {
            verb_say(v, "the call was cut off: %s; it may have taken effect, so it was not made again", v->client.error);
            verb_fail(v, CLI_UNREACHABLE);
        } else {
            verb_say(v, "%s: %s (is the server running? give its address with --server or QUEEN_SERVER)",
                     outcome == CLIENT_UNREACHABLE ? "cannot reach the server" : "the call was cut off", v->client.error);
            verb_fail(v, CLI_UNREACHABLE);
        }
        return false;
    }
}

void verb_line(struct buf *scratch, struct slice value)
{
    buf_clear(scratch);
    view_one_line(scratch, value);
    buf_byte(scratch, '\n');
    fwrite(scratch->at, 1, scratch->len, stdout);
}

bool verb_input(struct verb *v, struct buf *in, const char *what, struct slice *value)
{
    ssize_t n;
    do {
        if (in->len > VERB_LINE_BYTES_MAX) {
            verb_say(v, "standard input is longer than %d bytes", VERB_LINE_BYTES_MAX);
            verb_fail(v, CLI_REFUSED);
            return false;
        }
        n = read(0, buf_reserve(in, LINES_READ_BYTES), LINES_READ_BYTES);
        if (n > 0) in->len += (size_t)n;
    } while (n > 0 || (n < 0 && errno == EINTR));
    if (n < 0) {
        verb_say(v, "cannot read standard input: %s", strerror(errno));
        verb_fail(v, CLI_REFUSED);
        return false;
    }
    if (view_whole(buf_view(in), value)) return true;
    verb_say(v, "%s on standard input is not one JSON value", what);
    verb_fail(v, CLI_REFUSED);
    return false;
}

bool verb_flush(struct verb *v)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return true;
    verb_say(v, "cannot write the output: %s", strerror(errno));
    verb_fail(v, CLI_REFUSED);
    return false;
}

bool verb_number(const struct verb *v, const char *option, const char *text, uint64_t least, uint64_t most, uint64_t *out)
{
    char *end = NULL;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (errno == 0 && end != text && *end == 0 && text[0] >= '0' && text[0] <= '9' && n >= least && n <= most) {
        *out = n;
        return true;
    }
    verb_say(v, "%s takes a whole number from %llu to %llu, not %s", option, (unsigned long long)least,
             (unsigned long long)most, text);
    return false;
}

bool verb_json_number(const char *text)
{
    struct slice value;
    return (text[0] == '-' || (text[0] >= '0' && text[0] <= '9')) && view_whole(slice_of(text), &value);
}

/* ---- lines ---- */

/* Reads more of standard input. False: nothing can be read now (or ever: ended). */
static enum lines_state lines_read(struct lines *l, struct verb *v, bool wait)
{
    struct pollfd p = {.fd = 0, .events = POLLIN};
    if (!wait && poll(&p, 1, 0) == 0) return LINES_NONE;
    if (l->at > 0) {
        memmove(l->in.at, l->in.at + l->at, l->in.len - l->at);
        l->in.len -= l->at;
        l->scanned -= l->at;
        l->at = 0;
    }
    if (l->in.len > VERB_LINE_BYTES_MAX) {
        verb_say(v, "line %llu is longer than %d bytes", (unsigned long long)l->number + 1, VERB_LINE_BYTES_MAX);
        verb_fail(v, CLI_REFUSED);
        return LINES_BROKEN;
    }
    ssize_t n;
    do {
        n = read(0, buf_reserve(&l->in, LINES_READ_BYTES), LINES_READ_BYTES);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        verb_say(v, "cannot read standard input: %s", strerror(errno));
        verb_fail(v, CLI_REFUSED);
        return LINES_BROKEN;
    }
    l->in.len += (size_t)n;
    l->ended = n == 0;
    return LINES_ONE;
}

static bool line_is_blank(struct slice s)
{
    for (size_t i = 0; i < s.len; i++) {
        if (s.at[i] != ' ' && s.at[i] != '\t' && s.at[i] != '\r') return false;
    }
    return true;
}

enum lines_state lines_next(struct lines *l, struct verb *v, bool wait, struct slice *line)
{
    for (;;) {
        const char *from = l->in.at + l->scanned;
        const char *end = l->in.len > l->scanned ? memchr(from, '\n', l->in.len - l->scanned) : NULL;
        if (end == NULL && !l->ended) {
            l->scanned = l->in.len;
            enum lines_state state = lines_read(l, v, wait);
            if (state != LINES_ONE) return state;
            continue;
        }
        if (end == NULL && l->in.len == l->at) return LINES_END;
        size_t stop = end == NULL ? l->in.len : (size_t)(end - l->in.at);
        *line = slice_make(l->in.at + l->at, stop - l->at);
        l->at = end == NULL ? stop : stop + 1;
        l->scanned = l->at;
        l->number++;
        if (!line_is_blank(*line)) return LINES_ONE;
    }
}
