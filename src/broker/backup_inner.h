/* Inside of backups: backup.c (orders, life, the state of each group) and backup_copy.c (files). */
#ifndef QUEEN_BROKER_BACKUP_INNER_H
#define QUEEN_BROKER_BACKUP_INNER_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/files.h"
#include "broker/backup.h"
#include "broker/backup_file.h"
#include "broker/snapshot_manifest.h"

enum {
    BACKUP_READ_US = 30000000,  /* for a leader to be known, and the state to be the newest */
    BACKUP_RETRY_US = 1000,     /* the store has enough to write, the log is not synced that far */
    BACKUP_SETTLE_US = 60000000 /* such waits, all in all */
};

/* The state of one group: filled in on its loop. */
struct backup_group {
    struct backups *backups;
    uint32_t number;
    char dir[FILES_PATH_BYTES]; /* GROUP */
    struct call call;
    struct loop_timer timer;
    struct broker *broker;
    int64_t give_up_us;
    bool over, good; /* under the lock */
    char error[BACKUP_ERROR_BYTES];
    struct manifest manifest; /* without files until they are copied */
    uint64_t archive_end;     /* of the archive, as the state has it; 0: there is none */
    /* Segments with a link in GROUP/backup, by place: those made on the thread beforehand, and all that belong to the state. */
    struct positions {
        uint64_t *at;
        uint32_t count, cap;
    } linked, kept;
};

struct backups {
    struct node *node;
    const struct config *config;
    char data[BACKUP_PATH_BYTES]; /* resolved */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool running, joinable, stopping; /* under the lock */
    atomic_bool cancelled;
    pthread_t thread;
    struct backups_view view; /* under the lock */
    struct uuid id;
    struct backup_order order;
    struct loop_task begin_task;
    struct backup_group *groups;
    uint32_t group_count, groups_over, calls_over; /* the latter two under the lock */

    /* of the thread */
    bool made_dir;
    struct backup_file previous, made;
    bool has_previous;
    char *bytes;
    int64_t pace_us;
};

bool backup_group_path(const struct backup_group *g, const char *a, const char *b, char out[FILES_PATH_BYTES]);
bool positions_has(const struct positions *p, uint64_t pos);
/* One line; false. */
__attribute__((format(printf, 2, 3))) bool backup_fail(struct backups *b, const char *format, ...);

/* backup_copy.c, on the thread: false = failed, told by backup_fail. */
bool backup_dir_prepare(struct backups *b, char why[BACKUP_ERROR_BYTES]); /* false: refused */
bool backup_copy(struct backups *b);                                      /* everything, BACKUP too */
void backup_undo(struct backups *b);                                      /* removes what was made */

#endif
