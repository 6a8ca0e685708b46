/* Inside of the replica room. */
#ifndef QUEEN_REPLICA_REPLICA_INNER_H
#define QUEEN_REPLICA_REPLICA_INNER_H

#include <raft.h>
#include <stdatomic.h>

#include "base/uuid.h"
#include "replica/replica.h"

/* `struct raft` is allocated by us, so header and library must be one version; and the rules followed here are those of its code. */
_Static_assert(RAFT_VERSION_NUMBER == 2201, "exactly libraft 0.22.1 is needed");

/* ---- who this node is: DATA/identity (text). Written once. */

struct identity {
    struct uuid cluster;
    uint64_t node, generation;
};

enum log_status identity_load(const char *dir, struct identity *out, bool *found, struct buf *error);
enum log_status identity_store(const char *dir, const struct identity *id, struct buf *error);

/* ---- the last committed configuration: DATA/configuration. raft wants it next to a snapshot's index; the entry that holds it may be
 * trimmed. It may be newer than the stored state, never older. */

struct conf {
    uint64_t index;
    struct buf encoded; /* by raft_configuration_encode */
};

enum log_status conf_load(const char *dir, struct conf *out, bool *found, struct buf *error);
enum log_status conf_store(const char *dir, const struct conf *c, struct buf *error);

/* Replaces DATA/name: temporary file, sync, rename, sync of the directory. LOG_IO with `error`. */
enum log_status file_replace(const char *dir, const char *name, struct slice bytes, struct buf *error);
/* Reads a small file whole. Missing: found = false. Larger than bytes_max: LOG_DAMAGED. */
enum log_status file_load(const char *dir, const char *name, size_t bytes_max, struct buf *out, bool *found, struct buf *error);

/* ---- term and vote: DATA/meta-0, DATA/meta-1 */

enum { META_BYTES = 4096, META_FORMAT = 1 };

struct meta {
    char *dir;
    int fds[2];
    char *page; /* META_BYTES */
    struct uuid cluster;
    uint64_t node;
    uint64_t version; /* of the last write; 0 = never written */
    uint64_t term, vote;
    uint32_t files; /* that held something at open, valid or not */
};

/* Reads both; the newest valid one counts. version stays 0 when none is valid. LOG_DAMAGED: a newer format. */
enum log_status meta_open(struct meta *m, const char *dir, struct buf *error);
/* Durable on return. */
enum log_status meta_write(struct meta *m, uint64_t term, uint64_t vote, struct buf *error);
void meta_close(struct meta *m);

/* ---- entries after the applied one: where their bodies are */

struct slot {
    uint64_t pos, term;
    uint32_t len;
    uint8_t type;
};

/* Entries first .. next-1, slot of index i at i & (cap - 1). */
struct ring {
    struct slot *slots;
    uint64_t cap, first, next;
};

void ring_init(struct ring *r, uint64_t first);
void ring_put(struct ring *r, uint64_t index, const struct slot *s); /* at most next; an earlier one cuts first */
void ring_pop(struct ring *r);                                       /* the first one */
void ring_free(struct ring *r);

static inline struct slot *ring_at(const struct ring *r, uint64_t index)
{
    return &r->slots[index & (r->cap - 1)];
}

/* ---- marks: where in the log an entry is, roughly, and its term exactly. Entries between two marks have the earlier one's term. */

struct mark {
    uint64_t index, term, pos;
};

struct marks {
    struct mark *at;
    uint32_t count, cap;
    uint64_t spacing; /* bytes of log between two marks of one term */
};

void marks_note(struct marks *m, uint64_t index, uint64_t term, uint64_t pos); /* of every entry, in order; a repeat cuts */
const struct mark *marks_find(const struct marks *m, uint64_t index);          /* the last one at or before; must be there */
void marks_trim(struct marks *m, uint64_t index);                              /* forgets what no later question needs */
void marks_free(struct marks *m);

/* ---- the replica */

struct replica {
    struct replica_options o;
    char *dir, *log_dir;
    struct log *log;
    struct raft raft;
    bool raft_open;
    struct meta meta;
    struct identity identity;
    struct conf conf;

    struct ring ring;
    struct marks marks;
    uint64_t applied, commit_max, stored;
    uint64_t applied_term; /* of entry `applied` */
    uint64_t lead_index; /* leading counts once this entry is applied */
    uint64_t flight_bytes;
    enum replica_role role;
    bool applying, stepping;

    char *reserved; /* the caller's open reservation in the log, or NULL */
    size_t reserved_bytes;
    struct buf aside; /* entries of raft's own that wait for the reservation to end: struct aside_head, body */
    struct buf body;  /* of an entry that is not in the log's memory */

    struct loop_hook hook;
    struct loop_timer timer;
    struct loop_task synced_task;
    atomic_bool synced_posted, broken, closing;

    /* Of replica_open. */
    const char *open_fault; /* why the records do not fit, or NULL */
    uint64_t open_index;    /* of that record */
};

struct aside_head {
    uint64_t index, term;
    uint64_t len;
    uint8_t type;
};

void replica_fail(struct replica *r, const char *what);

/* step.c. Feeds an event and carries out the update. raft's return value. */
int step_run(struct replica *r, struct raft_event *event);
void step_aside_flush(struct replica *r); /* no reservation is open */
void step_synced(struct loop_task *task);
void step_timeout(struct loop_timer *timer);
void step_timer_arm(struct replica *r);

/* An entry of our own of any type (a barrier, a change). Returns its index or 0. */
uint64_t step_submit_own(struct replica *r, enum raft_entry_type type, struct slice body);

/* apply.c. Applies what is committed and stored, a bounded amount; the hook does the rest. */
void apply_run(struct replica *r);
bool apply_hook(struct loop_hook *hook);
void role_update(struct replica *r);

/* open.c */
void open_record(void *ctx, const struct log_record *rec);

#endif
