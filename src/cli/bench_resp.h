/* Redis's protocol for the comparisons: building requests, and the few calls around a load. */
#ifndef QUEEN_CLI_BENCH_RESP_H
#define QUEEN_CLI_BENCH_RESP_H

#include "base/buf.h"
#include "cli/bench_load.h"

enum { RESP_SHA_BYTES = 41 }; /* of a script, as text with its end */

void resp_argument(struct buf *b, const char *at, size_t len);
void resp_text(struct buf *b, const char *text);

/* Puts an argument and returns where its bytes begin. */
size_t resp_place(struct buf *b, const char *text);

/* One blocking exchange on a connection of its own: sends `ask`, `count` requests whose replies are all simple (status,
 * integer, error, or a bulk string), and appends the replies as they came. False: said on stderr; an error reply is one. */
bool resp_ask(const struct load *l, struct slice ask, uint32_t count, struct buf *replies);

/* SCRIPT LOAD. False: said on stderr. */
bool resp_script_load(const struct load *l, struct slice script, char sha[RESP_SHA_BYTES]);

#endif
