/* A store that nobody has open, read without changing anything in its directory: of a stopped node, of a backup. Single-threaded. */
#ifndef QUEEN_STORE_STORE_LOOK_H
#define QUEEN_STORE_STORE_LOOK_H

#include "store/store.h"

struct store_look;

enum store_status store_look_open(struct store_look **out, const char *dir, struct store_mark *mark, struct buf *error);
void store_look_close(struct store_look *l);
/* As store_scan. */
enum store_status store_look_scan(struct store_look *l, struct slice from, struct slice to,
                                  bool (*row)(void *ctx, struct slice key, struct slice value), void *ctx, struct buf *error);

/* Reads every table file of the directory and checks each block's checksum; needs no store that can be opened. `damaged` is called
 * for each file that has any. STORE_IO: the directory cannot be listed. Any thread.
 *
 * With `pace` the store may be open and its files come and go: what has gone says nothing, what was written in the last minute may be
 * unfinished and is left out, and bytes come from the disk, not from the kernel's cache. */
enum { STORE_VERIFY_AGE_S = 60 };
struct store_verify {
    void *ctx;
    void (*damaged)(void *ctx, const char *file, const char *what);
    bool (*pace)(void *ctx, uint64_t bytes); /* after each file; false: no more. May be NULL */
    uint64_t files, bytes;                   /* the outcome */
};
enum store_status store_verify(const char *dir, struct store_verify *v, struct buf *error);

#endif
