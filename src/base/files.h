/* The small part of a file system that whole-file movers need (snapshots, backups, the files of a node): names, sizes, bytes at
 * offsets, durable renames. One seam, so that a simulated disk can take its place.
 *
 * Every call returns 0 or an errno value. Paths are at most FILES_PATH_BYTES long. Thread-safe: no state. */
#ifndef QUEEN_BASE_FILES_H
#define QUEEN_BASE_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/slice.h"

enum { FILES_PATH_BYTES = 4200 };

struct files_entry {
    char name[256];
    uint64_t bytes;
    bool is_dir;
};
/* Entries of a directory, without . and .., in the order of their names' bytes, until `entry` returns false. */
int files_list(const char *dir, bool (*entry)(void *ctx, const struct files_entry *e), void *ctx);

int files_make_dir(const char *dir);                /* one level; existing is fine; not durable by itself */
int files_size(const char *path, uint64_t *bytes);  /* ENOENT when missing */
int files_link(const char *from, const char *to);   /* hard link; where there are none, a copy */
int files_rename(const char *from, const char *to); /* durable on return: both directories are synced */
int files_remove(const char *path);                 /* a file; missing is fine */
int files_remove_tree(const char *dir);             /* with all that is in it; missing is fine */
int files_sync(const char *path);                   /* a file's bytes, or a directory's names, are durable */
int files_read(const char *path, uint64_t offset, size_t len, struct buf *out); /* appended; less only at the end of the file */
int files_write(const char *path, uint64_t offset, struct slice bytes);         /* made when missing; grows; not durable yet */
int files_truncate(const char *path, uint64_t bytes);                           /* to that size, zeros when it grows */
/* Replaces a small file by temporary name, sync, rename. Durable on return. */
int files_replace(const char *path, struct slice bytes);

#endif
