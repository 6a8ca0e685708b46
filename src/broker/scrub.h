/* Reads the sealed files of the log and of the archive, and the table files of the store, now and then, so that damage is known before
 * somebody needs what is damaged.
 *
 * One thread for all groups, at most scrub_bytes_s, past the kernel's cache: segment after segment, each record against its checksum; table
 * after table (those older than a minute), each block. A round that has seen all rests SCRUB_REST_US. Damage is logged once, with file
 * and place, and counted; a node with peers is repaired for it (node_repair.c), one without goes on: reads check what they read
 * themselves, and never serve it. */
#ifndef QUEEN_BROKER_SCRUB_H
#define QUEEN_BROKER_SCRUB_H

#include "broker/node.h"

enum { SCRUB_BEGIN_US = 2000000, SCRUB_KNOWN_MAX = 256 };
#define SCRUB_REST_US INT64_C(3600000000)

struct scrub;

struct scrub *scrub_new(struct node *n, const struct config *config); /* never NULL; without a thread when scrub_bytes_s is 0 */
void scrub_free(struct scrub *s);                                     /* ends the thread; before node_close */

struct scrub_view {
    uint64_t bytes_total, damaged_total, rounds_total;
};
void scrub_view(struct scrub *s, struct scrub_view *out); /* any thread */

#endif
