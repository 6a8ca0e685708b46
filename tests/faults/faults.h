/* faults.h - the parts of the fault library (libq_faults.so, loaded with LD_PRELOAD).
 *
 * The library stands between a program and libc. Below one directory (QFAULT_DIR) it
 *
 *   - remembers how to take back everything that is not durable yet (undo.c, names.c), so that tests/faults/powercut.py can
 *     put the directory into a state that a power cut could have left;
 *   - lets calls fail, stall or be cut short by rules of a control file (inject.c);
 *   - shifts the clocks (clock.c; everywhere, not only below the directory).
 *
 *   variable        | meaning                                                                  | unset
 *   QFAULT_DIR      | the directory under test; exists when the program starts                 | nothing is watched
 *   QFAULT_STATE    | where the undo records go; outside QFAULT_DIR, on the same file system   | no power loss model
 *   QFAULT_CONTROL  | file with fault rules, read again whenever it was replaced               | no faults
 *   QFAULT_CLOCK    | 32 bytes, see clock.c                                                    | true clocks
 *
 * What counts as durable is what POSIX promises and no more: file contents by fsync, fdatasync, O_SYNC/O_DSYNC of that file;
 * names by fsync of their directory. sync_file_range promises nothing (it does not flush the disk's cache) and is ignored.
 *
 * Limits: writes through shared mappings, sendfile, copy_file_range and RENAME_EXCHANGE stop the program with a message when they
 * touch a watched file; stdio (fopen, fwrite) and io_uring are not seen. Real calls are raw system calls, so the library needs
 * no dlsym on its way and may be entered before its constructor and from inside an allocator.
 *
 * Threads: everything here may be called from any thread.
 */
#ifndef QUEEN_TESTS_FAULTS_H
#define QUEEN_TESTS_FAULTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

#pragma GCC visibility push(hidden)

enum {
    FAULT_PATH_MAX = 4096,
    FAULT_FD_MAX = 65536,
};

/* One watched inode: a file or a directory. Found again by inode number, never freed (their number is small). */
struct node {
    struct node *next;
    pthread_mutex_t lock; /* guards the undo fields and orders writes and their records */
    uint64_t inode;
    bool is_dir;
    int open_count;   /* fd slots that point here; guarded by the table lock */
    char *path;       /* as last opened; replaced, never freed */
    int undo_fd;      /* -1 until the first write */
    int read_fd;      /* own buffered descriptor, reads old contents; -1 until the first write */
    uint64_t undo_at; /* start of the live records in the undo file */
    uint64_t undo_end;
    uint64_t undo_lost; /* live records before this were covered by a sync that failed */
};

/* hooks.c: settings and the table of descriptors. */
struct fault_settings {
    bool watching;
    bool tracking; /* power loss model on */
    char root[FAULT_PATH_MAX];
    size_t root_len;
    char state[FAULT_PATH_MAX];
};

const struct fault_settings *fault_settings(void);
_Noreturn void fault_die(const char *what, const char *detail);
void fault_kill_self(void);
/* The path relative to QFAULT_DIR ("" for the directory itself). */
const char *fault_relative(const char *path);

/* table.c: descriptors and nodes. */
struct node *table_get(int fd, int *open_flags);
void table_set(int fd, struct node *node, int open_flags);
void table_clear(int fd);
void table_copy(int from_fd, int to_fd);
/* The node of an inode, made when it is new. */
struct node *table_intern(uint64_t inode, bool is_dir, const char *path);
struct node *table_find(uint64_t inode);
void table_each(void (*visit)(struct node *node));

/* undo.c: contents. All need node->lock unless said otherwise. */
enum undo_kind { UNDO_WRITE = 1, UNDO_TRUNCATE = 2 };
/* Save what [offset, offset + len) holds now; size is the file's size now. Returns the record's position. */
uint64_t undo_save(struct node *node, int fd, enum undo_kind kind, uint64_t offset, uint64_t len, uint64_t size);
/* The record's range became durable by itself (O_DSYNC). */
void undo_keep(struct node *node, uint64_t record_at);
void undo_sync_done(struct node *node, uint64_t mark);
void undo_sync_failed(struct node *node, uint64_t mark);
/* A new file begins under this inode number: forget what was there. */
void undo_reset(struct node *node);
/* Last descriptor closed: give descriptors back. Takes no lock; the table lock is held. */
void undo_release(struct node *node);
void undo_remove(uint64_t inode);

/* names.c: creates, renames, links, unlinks. They take their own lock. Return as the system call does, with errno. */
int names_open(const char *path, int flags, mode_t mode, bool *created);
int names_rename(const char *from, const char *to, unsigned flags);
int names_unlink(const char *path, bool is_dir);
int names_mkdir(const char *path, mode_t mode);
int names_link(const char *from, const char *to);
uint64_t names_mark(void);
void names_sync_done(uint64_t directory_inode, uint64_t mark);
void names_sync_all(uint64_t mark);

/* inject.c */
enum fault_op {
    FAULT_OPEN,
    FAULT_READ,
    FAULT_WRITE,
    FAULT_FSYNC,
    FAULT_FDATASYNC,
    FAULT_DIRSYNC,
    FAULT_RENAME,
    FAULT_UNLINK,
    FAULT_TRUNCATE,
    FAULT_ALLOCATE,
    FAULT_MKDIR,
    FAULT_LINK,
    FAULT_CLOSE,
    FAULT_OP_COUNT,
};

struct fault_verdict {
    int error;        /* 0: go on */
    size_t bytes_max; /* a write or read is cut to so many bytes; SIZE_MAX: whole */
    bool kill_after;
    bool lie; /* a sync answers ok without being done */
};

/* Counts the call, stalls if a rule says so, and says what shall happen. */
struct fault_verdict fault_check(enum fault_op op, const char *path);

/* stats.c: counters in QFAULT_STATE/stats, so that a test can see that the library saw the work. */
enum stat_kind { STAT_WRITES, STAT_WRITE_BYTES, STAT_SYNCS, STAT_DIR_SYNCS, STAT_NAME_OPS, STAT_FAULTS, STAT_COUNT };
void stat_add(enum stat_kind kind, uint64_t n);

#pragma GCC visibility pop

#endif
