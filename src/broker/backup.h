/* Backups of a node that goes on serving.
 *
 *   order     the directory is looked at -> `begun` tells whether it begins -> links of the log's segments to GROUP/backup
 *   state     a read in each group, so that everything answered before the order is in it -> what is applied goes to the store ->
 *             GROUP/backup: links of segments that are new since, checkpoint of the store, in one turn of the group's loop
 *   copy      files from GROUP/backup to DIR/group-<i>, each read once for its checksum: a hard link where DIR is on the same file
 *             system; else a link of the same file in the previous backup; else a copy
 *   end       DIR/BACKUP, by rename; GROUP/backup goes
 *
 * Each group is consistent at one entry of its log: a transaction belongs to one group, so it is there or not. Segments below the
 * end of that entry and the store's files never change; the segment that is still written to is copied up to there. Trimming and
 * recycling leave a file that has a second name alone.
 *
 * Failures: a file of the node that is damaged (a record or its bytes fail their checks), no room, a directory that goes away, no leader:
 * the backup ends, says why, and removes what it made. The node itself goes on. A process that dies leaves a directory without
 * BACKUP behind, and GROUP/backup, which the next start removes.
 *
 * Threads: a thread of its own for the looks and the copies; links and checkpoints are ordered on the groups' loops. One at a time. */
#ifndef QUEEN_BROKER_BACKUP_H
#define QUEEN_BROKER_BACKUP_H

#include "broker/node.h"

struct backups;

enum { BACKUP_PATH_BYTES = 4096, BACKUP_ERROR_BYTES = 1024 };

/* Main thread, before the loops run. Removes what a backup of an earlier process left in the groups' directories. */
struct backups *backups_new(struct node *n, const struct config *config);
void backups_stop(struct backups *b); /* cancels; before node_stop. Any thread */
void backups_free(struct backups *b); /* after node_close, when no loop runs any more */

enum backup_answer { BACKUP_BEGUN, BACKUP_BUSY, BACKUP_REFUSED, BACKUP_STOPPING };

struct backup_order {
    char dir[BACKUP_PATH_BYTES], previous[BACKUP_PATH_BYTES]; /* absolute; previous: empty = none */
    uint64_t bytes_s;                                         /* read and copied at most; 0 = as fast as it goes */
    void *ctx;
    /* Once, from any thread, maybe inside: `id` of the backup that began, or `why` not (until it returns). */
    void (*begun)(void *ctx, enum backup_answer answer, struct uuid id, const char *why);
};
void backups_begin(struct backups *b, const struct backup_order *o); /* any thread; copied */
bool backups_cancel(struct backups *b);                              /* any thread; false: none is under way */

enum backup_state { BACKUP_NONE, BACKUP_RUNNING, BACKUP_DONE, BACKUP_FAILED };

struct backups_view {
    enum backup_state state; /* of the last one */
    struct uuid id;
    char dir[BACKUP_PATH_BYTES], error[BACKUP_ERROR_BYTES];
    bool copying;               /* RUNNING: false while the state is being taken */
    int64_t began_us, ended_us; /* wall time */
    uint64_t files_total, files_done, bytes_total, bytes_done, bytes_linked, bytes_copied;
    uint32_t group_count;
    uint64_t index[CONFIG_GROUPS_MAX]; /* once it copies */
};
void backups_view(struct backups *b, struct backups_view *out); /* any thread */

#endif
