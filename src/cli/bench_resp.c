#include "cli/bench_resp.h"

#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

void resp_argument(struct buf *b, const char *at, size_t len)
{
    buf_printf(b, "$%zu\r\n", len);
    buf_put(b, at, len);
    buf_text(b, "\r\n");
}

void resp_text(struct buf *b, const char *text)
{
    resp_argument(b, text, strlen(text));
}

size_t resp_place(struct buf *b, const char *text)
{
    resp_text(b, text);
    return b->len - 2 - strlen(text);
}

/* The length of the simple reply at `at`, 0 when it is incomplete. */
static size_t reply_length(const char *at, size_t len)
{
    const char *end = memchr(at, '\n', len);
    if (end == NULL) return 0;
    size_t head = (size_t)(end + 1 - at);
    long n = at[0] == '$' ? strtol(at + 1, NULL, 10) : -1;
    if (n < 0) return head;
    return len >= head + (size_t)n + 2 ? head + (size_t)n + 2 : 0;
}

static bool replies_receive(int fd, uint32_t count, struct buf *replies)
{
    size_t at = replies->len;
    while (count > 0) {
        size_t n = reply_length(replies->at + at, replies->len - at);
        if (n > 0) {
            if (replies->at[at] == '-') {
                fprintf(stderr, "queen bench: Redis answers %.*s", (int)n, replies->at + at);
                return false;
            }
            at += n;
            count--;
            continue;
        }
        ssize_t got = recv(fd, buf_reserve(replies, 65536), 65536, 0);
        if (got <= 0) {
            fprintf(stderr, "queen bench: Redis: %s\n", got == 0 ? "the connection ended" : strerror(errno));
            return false;
        }
        replies->len += (size_t)got;
    }
    return true;
}

bool resp_ask(const struct load *l, struct slice ask, uint32_t count, struct buf *replies)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool sent = fd >= 0 && connect(fd, (const struct sockaddr *)&l->to, sizeof l->to) == 0 &&
                send(fd, ask.at, ask.len, MSG_NOSIGNAL) == (ssize_t)ask.len;
    if (!sent) fprintf(stderr, "queen bench: Redis on port %u: %s\n", ntohs(l->to.sin_port), strerror(errno));
    buf_reserve(replies, 1);
    bool answered = sent && replies_receive(fd, count, replies);
    if (fd >= 0) close(fd);
    return answered;
}

bool resp_script_load(const struct load *l, struct slice script, char sha[RESP_SHA_BYTES])
{
    struct buf ask = {0};
    struct buf reply = {0};
    buf_text(&ask, "*3\r\n");
    resp_text(&ask, "SCRIPT");
    resp_text(&ask, "LOAD");
    resp_argument(&ask, script.at, script.len);
    bool loaded = resp_ask(l, buf_view(&ask), 1, &reply);
    if (loaded && (reply.len != 47 || memcmp(reply.at, "$40\r\n", 5) != 0)) {
        fprintf(stderr, "queen bench: Redis does not name the script\n");
        loaded = false;
    }
    if (loaded) {
        memcpy(sha, reply.at + 5, 40);
        sha[40] = 0;
    }
    buf_free(&ask);
    buf_free(&reply);
    return loaded;
}
