/* What the verbs share: the server, calls with retries, lines in and out.
 *
 * A call is tried again, a bounded number of times, when the server says so (429, 503: as long as Retry-After asks, at most
 * 10 s) or the connection breaks after the server was reached once. That is safe for most calls: pushes carry
 * transactionIds, an ack sent twice answers as the first time, what a lost pop had leased comes back by itself. A call that
 * would do its work twice sets `once`: it is made again only where the first one certainly did nothing.
 * Not thread-safe; one verb a process. */
#ifndef QUEEN_CLI_VERB_H
#define QUEEN_CLI_VERB_H

#include <getopt.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "cli/json_view.h"

enum {
    VERB_LINE_BYTES_MAX = 64 * 1024 * 1024,
    VERB_BODY_BYTES = 4 * 1024 * 1024, /* a batch is sent when it has grown to this */
    VERB_BATCH_MAX = 10000,
    VERB_RETRIES_MAX = 1000,
    VERB_RETRIES = 10,
    VERB_WAIT_S_MAX = 10,
    VERB_CALL_MS = 40000, /* above the server's own deadline of 30 s */
};

struct verb {
    const char *name;
    const char *server; /* NULL: QUEEN_SERVER, else http://127.0.0.1:6632 */
    uint32_t retries;
    bool reached;
    bool once;                                /* a call whose answer is lost, or that ended in 503, is not made again */
    const char *(*advise)(struct slice code); /* what to do about a refusal of this code, NULL: nothing known. May be NULL */
    struct client client;
    int rc; /* the exit code so far: the worst of what happened */
};

/* Reads the server's address. False: it is wrong; said on stderr, rc is set. */
bool verb_open(struct verb *v);
void verb_close(struct verb *v);

/* One call with retries. True: the answer has one of the two wanted statuses (0: none). False: said on stderr, rc is set. */
bool verb_send(struct verb *v, const char *method, struct slice path, struct slice body, int timeout_ms, unsigned wanted,
               unsigned wanted_too);

/* Notes a failure; the exit code never gets better. */
void verb_fail(struct verb *v, int rc);

/* Says that an answer of 200 is not what it should be; rc is set. Always false. */
bool verb_answer_wrong(struct verb *v);

/* An error line: "queen VERB: ..." */
__attribute__((format(printf, 2, 3))) void verb_say(const struct verb *v, const char *format, ...);

/* Prints a value as one line. */
void verb_line(struct buf *scratch, struct slice value);

/* The whole of standard input as one JSON value; *value points into `in`. False: said on stderr, rc is set. */
bool verb_input(struct verb *v, struct buf *in, const char *what, struct slice *value);

/* Hands what was printed to the reader. False: it cannot be written; said on stderr, rc is set. */
bool verb_flush(struct verb *v);

/* Waits, without a call. */
void verb_sleep_ms(uint64_t ms);

/* A whole number option in a range. False: said on stderr. */
bool verb_number(const struct verb *v, const char *option, const char *text, uint64_t least, uint64_t most, uint64_t *out);

/* Is it a number as JSON writes them? */
bool verb_json_number(const char *text);

/* verb_number, when the option was given (text is not NULL). */
static inline bool verb_number_given(const struct verb *v, const char *option, const char *text, uint64_t least, uint64_t most,
                                     uint64_t *out)
{
    return text == NULL || verb_number(v, option, text, least, most, out);
}

/* ---- lines of standard input ---- */

struct lines {
    struct buf in;
    size_t at; /* what was handed out */
    size_t scanned;
    bool ended;
    uint64_t number; /* of the latest line, from 1 */
};

enum lines_state {
    LINES_ONE,
    LINES_NONE, /* wait is false and no whole line is there yet */
    LINES_END,
    LINES_BROKEN, /* a read failed, or a line is over the limit: said on stderr */
};

/* The next line without its end; valid until the next call. Empty lines are skipped. */
enum lines_state lines_next(struct lines *l, struct verb *v, bool wait, struct slice *line);

#endif
