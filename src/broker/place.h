/* Bytes at a place. A place (`where` in the engine) is a position in the log or, with PLACE_ARCHIVE set, one in the archive: what was still
 * wanted of mostly dead segments, copied (reclaim.h). The archive is a log of its own in GROUP/archive: the same files, positions, checks. What
 * is read of either goes through here.
 *
 * Places that end up in memory are those of the newest bytes. place_view and place_read may run on any thread, as log_view and log_read. */
#ifndef QUEEN_BROKER_PLACE_H
#define QUEEN_BROKER_PLACE_H

#include "engine/engine.h"
#include "log/log.h"

struct places {
    struct log *log;
    struct log *archive; /* NULL: there is none yet */
};

static inline bool place_archived(uint64_t where)
{
    return (where & PLACE_ARCHIVE) != 0;
}

/* Only from memory; to be given back with log_unpin (of either log). */
bool place_view(const struct places *p, uint64_t where, size_t len, struct slice *out, struct log_pin *pin);
/* From memory or the file: blocks. LOG_OK, or the bytes are not to be had. The caller checks their checksum. */
enum log_status place_read(const struct places *p, uint64_t where, size_t len, char *out);
/* What lies before this place, in the same log, does not change any more. */
uint64_t place_stable(const struct places *p, uint64_t where);

/* The name of the file under GROUP that a place lies in, and the offset there, as messages to operators show them. A segment that is
 * longer than usual is named by its first part. */
enum { PLACE_TEXT_BYTES = 64 };
void place_text(uint64_t where, uint64_t segment_bytes, char out[PLACE_TEXT_BYTES]);

#endif
