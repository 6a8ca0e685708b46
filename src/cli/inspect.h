/* `queen inspect`: what its parts share. A directory that nobody has open, or a backup; nothing is written.
 *
 * Output is for people in columns, or with `json` one object a line. */
#ifndef QUEEN_CLI_INSPECT_H
#define QUEEN_CLI_INSPECT_H

#include "broker/backup_file.h"
#include "broker/snapshot_manifest.h"
#include "cli/verb.h"
#include "log/log_check.h"
#include "store/store_look.h"

enum { INSPECT_DAMAGED = 2, INSPECT_IO = 3, INSPECT_PATH_BYTES = 4300 };

/* One segment file. */
struct inspect_segment {
    char path[INSPECT_PATH_BYTES];
    struct segment_walk walk;
    uint64_t synced_max; /* the highest position its records prove to have been durable */
    enum { SEGMENT_WHOLE, SEGMENT_ENDS, SEGMENT_UNUSED, SEGMENT_DAMAGED } state; /* ENDS: the log does, in it */
};

struct inspect_group {
    uint32_t number;
    char dir[INSPECT_PATH_BYTES];
    struct inspect_segment *segments; /* after inspect_log_walk; by position */
    uint32_t segment_count;
    struct inspect_segment *archive; /* after inspect_archive_walk; by position */
    uint32_t archive_count;
    struct store_look *store; /* after inspect_store_open */
    struct store_mark mark;
};

struct inspect {
    struct verb verb;
    const char *dir;
    bool backup, json;
    uint64_t from, to, limit; /* of entries; to and limit: 0 = all */
    int only_group;           /* -1: all */
    const char *kind;         /* of rows; NULL: counts of all */
    struct inspect_group *groups;
    uint32_t group_count;
    uint32_t findings;
    struct buf line;
};

/* Damage: said at once, rc is set. `offset`: UINT64_MAX = none. */
__attribute__((format(printf, 4, 5))) void inspect_find(struct inspect *i, const char *file, uint64_t offset,
                                                        const char *format, ...);
/* What can not be read: said on stderr, rc is set. */
__attribute__((format(printf, 2, 3))) void inspect_io(struct inspect *i, const char *format, ...);

/* Walks all segments and judges where the log ends. `item` sees every record of the segments that hold any of the entries wanted.
 * False: a file cannot be read. */
bool inspect_log_walk(struct inspect *i, struct inspect_group *g, bool heads_only,
                      bool (*item)(void *ctx, const struct inspect_segment *s, const struct segment_item *r), void *ctx);
/* The same of the archive, which may lack any segment; there may be none. */
bool inspect_archive_walk(struct inspect *i, struct inspect_group *g, bool heads_only,
                          bool (*item)(void *ctx, const struct inspect_segment *s, const struct segment_item *r), void *ctx);
/* False: it cannot be opened; a finding, or told. */
bool inspect_store_open(struct inspect *i, struct inspect_group *g);

void inspect_summary(struct inspect *i, struct inspect_group *g);
void inspect_segments(struct inspect *i, struct inspect_group *g);
void inspect_entries(struct inspect *i, struct inspect_group *g);
void inspect_rows(struct inspect *i, struct inspect_group *g);
void inspect_identity(struct inspect *i);
void inspect_raft(struct inspect *i, struct inspect_group *g);
void inspect_check(struct inspect *i);

/* "name":"value" and the like, for lines of JSON; `first` of an object. */
void inspect_text(struct inspect *i, const char *key, struct slice text);
__attribute__((format(printf, 3, 4))) void inspect_field(struct inspect *i, const char *key, const char *format, ...);
void inspect_line_end(struct inspect *i); /* prints {line} and empties it */
void inspect_time(struct buf *out, int64_t wall_us);
/* A key or a name in one line: printable bytes as they are, others as \xNN. */
void inspect_bytes(struct buf *out, struct slice bytes);

#endif
