/* The manifest of a state as files: of a snapshot that is fetched, of `ready` in GROUP/incoming.
 *
 *   magic 8 | format 4 | crc32c of what follows 4 | length of what follows 8
 *   cluster 16 | node 8 | index 8 | term 8 | scan position 8 | end of the log 8 | segment bytes 8
 *   length 4, configuration | count 4 | files:  part 1 | length 1, name | bytes 8
 *
 * Files stand in the order of (part, name). The bytes of a log file are those that count: of the last one, those before the end of the log;
 * what is read behind them is zeros. The same of the archive, of which there may be nothing.
 *
 * Reading is for bytes from outside: a manifest that was read has names without slashes, each once, segments that fit each other from the scan
 * position to the end, and sizes that add up without overflow. */
#ifndef QUEEN_BROKER_SNAPSHOT_MANIFEST_H
#define QUEEN_BROKER_SNAPSHOT_MANIFEST_H

#include "base/buf.h"
#include "base/uuid.h"
#include "store/store.h"

enum {
    MANIFEST_FILES_MAX = 1 << 16,
    MANIFEST_NAME_BYTES = 64, /* with its NUL */
    MANIFEST_CONFIGURATION_BYTES_MAX = 1 << 20,
    MANIFEST_BYTES_MAX = 8 << 20, /* encoded */
};

enum manifest_part { MANIFEST_STORE = 1, MANIFEST_LOG, MANIFEST_ARCHIVE, MANIFEST_PARTS = MANIFEST_ARCHIVE };

struct manifest_file {
    uint64_t bytes;
    uint8_t part;
    char name[MANIFEST_NAME_BYTES];
};

struct manifest {
    struct uuid cluster;
    uint64_t node; /* it was taken there */
    struct store_mark mark;
    uint64_t log_end, segment_bytes;
    struct buf configuration; /* content of the file */
    struct manifest_file *files;
    uint32_t count, cap;
};

/* Zeroed to begin with. false: the name is none for that part, or there are too many. */
bool manifest_add(struct manifest *m, enum manifest_part part, const char *name, uint64_t bytes);
/* Appends it. The files must have been added in order. */
void manifest_encode(const struct manifest *m, struct buf *out);
/* NULL, or what is wrong with the bytes; then `out` is empty. */
const char *manifest_decode(struct slice bytes, struct manifest *out);
void manifest_free(struct manifest *m); /* and zeroes it */
uint64_t manifest_bytes(const struct manifest *m);

/* "store", "log" or "archive": its directory in GROUP. */
const char *manifest_dir(uint8_t part);
/* Is this file the last one of its part? */
bool manifest_is_last(const struct manifest *m, uint32_t n);
/* Is it a segment's name, and of which position? */
bool manifest_segment(const char *name, uint64_t *first_pos);

#endif
