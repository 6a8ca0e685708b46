/* Listings in pages: {"rows":[...],"nextAfter":key or null}, one row a line. For `kv list` and `timers list`.
 *
 * Owned by the caller; rows_free at the end. Not thread-safe. */
#ifndef QUEEN_CLI_ROWS_H
#define QUEEN_CLI_ROWS_H

#include "cli/verb.h"

enum { ROWS_PAGE_MAX = 1000 };

struct rows {
    uint64_t limit; /* rows at most, of all pages */
    uint64_t printed;
    struct buf after; /* where the next page begins: a raw JSON string; empty: at the first key */
    struct buf scratch;
};

/* `after`: the option's text, NULL: from the first key. */
void rows_begin(struct rows *r, const char *after);
/* Asks for pages until the last one or the limit. page(ctx, count) gets one of at most `count` rows and hands it to rows_page. */
void rows_list(struct rows *r, bool (*page)(void *ctx, uint64_t count), void *ctx);
/* Prints the rows of a page (a value that passed view_whole) and notes where the next begins. False: it is not a page, or it cannot
 * be written; said on stderr, rc is set. */
bool rows_page(struct rows *r, struct verb *v, struct slice page);
/* Prints the elements of an array. False: it is none. */
bool rows_print(struct rows *r, struct slice array);
void rows_free(struct rows *r);

#endif
