/* Columns for people: cells are collected, then printed with the widths they need.
 *
 *   NODE  ROLE   STATE     LAG
 *   1     voter  leader      0
 *
 * Cells are copied; control characters become '?'. Not thread-safe. */
#ifndef QUEEN_CLI_COLUMNS_H
#define QUEEN_CLI_COLUMNS_H

#include "base/buf.h"

enum { COLUMNS_MAX = 12, COLUMNS_CELLS_MAX = 1024 };

struct columns {
    uint32_t across; /* set before the first cell */
    uint32_t right;  /* bit i: column i is aligned to the right */
    struct buf text;
    uint32_t end[COLUMNS_CELLS_MAX]; /* of cell i in text */
    uint32_t count;                  /* of cells */
};

/* The next cell, row by row; the first row is the heading. Beyond COLUMNS_CELLS_MAX cells they are left out. */
void columns_cell(struct columns *t, struct slice value);
__attribute__((format(printf, 2, 3))) void columns_cellf(struct columns *t, const char *format, ...);

/* Prints to standard output the rows that are whole, and empties it. */
void columns_print(struct columns *t);
void columns_free(struct columns *t);

#endif
