/* BACKUP: what a backup directory is. Written last: without it the directory is no backup.
 *
 *   DIR/BACKUP             this
 *   DIR/groups             of a node with several groups: which tenant is in which (DATA/groups)
 *   DIR/group-<i>/         manifest (snapshot_manifest.h), configuration, store/, log/, archive/: the state of one group at one entry
 *
 * JSON, laid out a member a line as we write it, and read only in that layout: the last line holds the CRC32C of all bytes before it, so
 * an edited file is a damaged one. Files stand in the order of their names' bytes, each with its size and the CRC32C of its bytes. */
#ifndef QUEEN_BROKER_BACKUP_FILE_H
#define QUEEN_BROKER_BACKUP_FILE_H

#include "base/buf.h"
#include "base/uuid.h"
#include "broker/config.h"

enum {
    BACKUP_FORMAT = 1,
    BACKUP_NAME_BYTES = 128, /* of a file in it, with its NUL */
    BACKUP_FILES_MAX = 4 << 20,
    BACKUP_FILE_BYTES_MAX = 512 << 20 /* of BACKUP itself */
};

struct backup_entry {
    char *name; /* "group-0/log/0000000000000000.seg" */
    uint64_t bytes;
    uint32_t crc;
};

struct backup_file {
    struct uuid id, cluster;
    uint64_t node;
    int64_t wall_us;
    char version[32];
    uint32_t group_count;
    struct {
        uint64_t index, term;
    } groups[CONFIG_GROUPS_MAX];
    struct backup_entry *files;
    uint32_t count, cap;
};

/* Zeroed to begin with. `name` is copied. False: it is no name of a file in a backup, or there are too many. */
bool backup_file_add(struct backup_file *f, const char *name, uint64_t bytes, uint32_t crc);
void backup_file_sort(struct backup_file *f);
const struct backup_entry *backup_file_find(const struct backup_file *f, const char *name); /* sorted ones; NULL: none */
uint64_t backup_file_bytes(const struct backup_file *f);                                    /* of all files */
void backup_file_encode(const struct backup_file *f, struct buf *out);                      /* sorted */
const char *backup_file_decode(struct slice bytes, struct backup_file *out);                /* NULL, or what is wrong */
void backup_file_free(struct backup_file *f);                                               /* and zeroes it */

/* Reads DIR/BACKUP. False: one line in `error`; `missing` (may be NULL) tells that there is none. */
bool backup_file_load(const char *dir, struct backup_file *out, bool *missing, struct buf *error);

#endif
