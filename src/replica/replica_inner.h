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
void conf_write(const struct conf *c, struct buf *out); /* the file's content */

/* Replaces DATA/name: temporary file, sync, rename, sync of the directory. LOG_IO with `error`. */
enum log_status file_replace(const char *dir, const char *name, struct slice bytes, struct buf *error);
/* Reads a small file whole. Missing: found = false. Larger than bytes_max: LOG_DAMAGED. */
enum log_status file_load(const char *dir, const char *name, size_t bytes_max, struct buf *out, bool *found, struct buf *error);

/* ---- term and vote: DATA/meta-0, DATA/meta-1 */

enum { META_BYTES = 4096, META_FORMAT = 1 };

struct meta {
    char *dir;
    bool there[2]; /* the files' names are durable: known once one was written */
    char *page;    /* META_BYTES */
    struct uuid cluster;
    uint64_t node;
    uint64_t version; /* of the last write; 0 = never written */
    uint64_t term, vote;
    bool waits;     /* was made without members and has no entry yet */
    uint32_t files; /* that held something at open, valid or not */
};

/* Reads both; the newest valid one counts. version stays 0 when none is valid. LOG_DAMAGED: a newer format. */
enum log_status meta_open(struct meta *m, const char *dir, struct buf *error);
/* Durable on return. */
enum log_status meta_write(struct meta *m, uint64_t term, uint64_t vote, struct buf *error);
void meta_close(struct meta *m);

/* ---- entries that raft knows of: where their bodies are. From the first one kept behind the stored state to the last. */

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

static inline bool ring_has(const struct ring *r, uint64_t index)
{
    return index >= r->first && index < r->next;
}

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

/* ---- frames between replicas (wire.c), little-endian:
 *
 *   0       1    2     3               4      8    16 24 32  40    44       46       48
 *   version kind flags message version stream term a  b  c   count features capacity [entries]
 *   entry:  term 8 | length 4 | type 1 | zero 3 | body
 *
 *   kind          a               b              c       flags
 *   APPEND        entry before    its term       commit            `count` entries
 *   APPENDED      rejected        last
 *   VOTE          last            its term               pre-vote, disrupt
 *   VOTED                                                pre-vote, granted
 *   TIMEOUT_NOW   last            its term
 *   INSTALL       state's index   its term                         the entries wanted are gone
 *   PROBE, PROBED round                                            is it still your term?
 *   COMMIT        committed       its term
 *
 * `stream` numbers the leader's runs of APPEND frames to one peer; an answer carries the number of what it answers. */
enum frame_kind {
    FRAME_APPEND = 1,
    FRAME_APPENDED,
    FRAME_VOTE,
    FRAME_VOTED,
    FRAME_TIMEOUT_NOW,
    FRAME_INSTALL,
    FRAME_PROBE,
    FRAME_PROBED,
    FRAME_COMMIT,
    FRAME_KINDS
};
enum { FRAME_PRE_VOTE = 1, FRAME_DISRUPT = 2, FRAME_GRANTED = 4 };
enum { FRAME_VERSION = 1, FRAME_HEAD_BYTES = 48, FRAME_ENTRY_BYTES = 16, FRAME_ENTRIES_MAX = 1 << 16 };

struct frame {
    uint8_t kind, flags, message_version;
    uint32_t stream;
    uint64_t term, a, b, c;
    uint32_t count;
    uint16_t features, capacity;
    struct slice entries; /* checked: frame_entry reads `count` of them */
};

struct frame_entry {
    uint64_t term;
    uint8_t type;
    struct slice body;
};

void frame_head_write(const struct frame *f, char out[FRAME_HEAD_BYTES]);
void frame_entry_write(const struct frame_entry *e, char out[FRAME_ENTRY_BYTES]); /* without the body */
/* NULL when it is one; else what is wrong with it. Any bytes. */
const char *frame_read(struct slice bytes, struct frame *out);
void frame_entry_read(struct slice *rest, struct frame_entry *out); /* of a frame that was read */
bool configuration_valid(struct slice encoded);                     /* raft's own decoder trusts its input */

/* ---- the leader's view of another member (stream.c) */

struct peer {
    uint64_t id;
    /* A stream: entries behind `base` (known to be stored there) were sent in order up to `cursor`; raft wants them up to `told`.
     * Not open: what was sent was lost, or nothing was. Proven: it answered in this stream. */
    bool open, proven, snapshot;
    bool lost; /* entries it had stored */
    uint32_t stream;
    uint64_t base, cursor, told;
    uint64_t commit_told; /* the commit index it can know by what was sent */
    uint64_t hint;        /* the last entry it has, when it last rejected one */
    uint64_t round;       /* of replica_confirm, acknowledged */
    int64_t heard_us, sent_us;
};

/* An APPEND frame's entries, for several peers in one step. parts[0] is the head's place. */
enum { OUTGOING_PARTS_MAX = 600 };
struct outgoing {
    bool valid;
    uint64_t prev;
    uint32_t count, part_count, pin_count;
    struct buf small; /* heads and small bodies; parts point into it once it is complete */
    struct slice parts[OUTGOING_PARTS_MAX];
    struct log_pin pins[OUTGOING_PARTS_MAX / 2];
};

/* ---- the replica */

struct replica {
    struct replica_options o;
    char *dir, *log_dir;
    struct log *log;
    struct raft raft;
    bool raft_open;
    bool opened; /* replica_open has returned: from here on the caller is told things */
    struct meta meta;
    struct identity identity;
    struct conf conf;

    struct ring ring;
    struct marks marks;
    uint64_t applied, commit_max, stored;
    uint64_t applied_term; /* of entry `applied` */
    uint64_t lead_index;   /* leading counts once this entry is applied */
    uint64_t flight_bytes;
    uint64_t pin; /* entries from here on stay; 0 = none */
    enum replica_role role;
    bool applying, stepping;

    char *reserved; /* the caller's open reservation in the log, or NULL */
    size_t reserved_bytes;
    struct buf aside;     /* entries that wait for the reservation to end: struct aside_head, body */
    uint64_t aside_first; /* lowest index in it */
    struct buf body;      /* of an entry that is not in the log's memory */

    /* Leader. */
    struct peer peers[REPLICA_MEMBERS_MAX];
    uint32_t peer_count, stream_count;
    struct outgoing outgoing;
    bool barrier_due;
    uint64_t notice_commit; /* the last commit index that was told to all who can use it */
    bool notice_waited;
    uint64_t transfer_to;
    int64_t transfer_us;
    bool transfer_begun;

    /* Follower. */
    uint32_t append_stream, answer_stream;
    bool full;         /* replica_full */
    bool answer_none;  /* the APPEND being fed gets no answer */
    bool answer_stale; /* the APPEND being answered is of an older term */
    uint64_t wanted_leader;
    int64_t wanted_us; /* when snapshot_wanted was last called */
    uint64_t bad_frames;
    int64_t bad_frame_us;
    struct raft_entry *entries;
    uint32_t entries_cap;

    struct {
        struct replica_confirm *asked, *under_way; /* wait for the next round; for this one */
        uint64_t round, index, term;
        bool posted;
    } confirm;

    uint64_t told_leader, told_term;           /* options.leader */
    uint64_t told_committed, told_uncommitted; /* options.members_changed */

    struct loop_hook hook;
    struct loop_timer timer;
    bool timer_deferred;
    struct loop_task synced_task, confirm_task;
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

void replica_damaged(struct replica *r, uint64_t pos); /* says it */
void replica_fail(struct replica *r, const char *what);

/* step.c. Feeds an event and carries out the update. raft's return value. */
int step_run(struct replica *r, struct raft_event *event);
void step_must(struct replica *r, struct raft_event *event); /* one that cannot be refused */
void step_aside_flush(struct replica *r);                    /* no reservation is open */
void step_synced(struct loop_task *task);
void step_timeout(struct loop_timer *timer);
void step_timer_arm(struct replica *r);
/* After an outermost event: what the caller is told, and what follows from the new state. */
void settle(struct replica *r);
bool entry_find(const struct replica *r, uint64_t index, struct slot *slot, struct slice *aside_body);
uint64_t term_of(const struct replica *r, uint64_t index); /* 0 = not known */
uint64_t stored_commit(const struct replica *r);           /* committed and stored here */

/* An entry of our own of any type (a barrier, a change). Returns its index or 0. */
uint64_t step_submit_own(struct replica *r, enum raft_entry_type type, struct slice body);

/* stream.c: what the leader sends */
struct peer *peer_of(struct replica *r, uint64_t id);
void peers_sync(struct replica *r, bool fresh); /* with raft's configuration; fresh: a new leadership */
void stream_told(struct replica *r, const struct raft_message *m);
bool stream_behind(const struct replica *r, const struct peer *p);
void stream_extend(struct replica *r); /* new entries are in the log */
void stream_pump(struct replica *r, struct peer *p, bool force);
void stream_restart(struct replica *r, struct peer *p); /* what was sent is lost: again from what it has */
void stream_release(struct replica *r);
bool notice_due(struct replica *r);
void notice_send(struct replica *r);
bool frame_send(struct replica *r, uint64_t peer, const struct frame *f);
bool peer_heard(const struct replica *r, const struct peer *p); /* within an election timeout */

/* confirm.c */
void confirm_check(struct replica *r);
void confirm_probe(struct replica *r, bool again);
void confirm_start(struct loop_task *task);

/* members.c */
unsigned voter_count(const struct raft_configuration *c);
bool voter_has(const struct raft_configuration *c, uint64_t id);
/* Its servers by id, behind what `out` has of itself. */
void members_list(const struct raft_configuration *c, struct replica_members *out);
void members_update(struct replica *r);
void transfer_check(struct replica *r);
void transfer_away(struct replica *r);                       /* this leader is no member any more */
char *member_address_text(uint64_t id, const char *address); /* as raft's configuration has it; to be freed */
bool sole_voter(const struct replica *r);

/* apply.c. Applies what is committed and stored, a bounded amount; the hook does the rest. */
void apply_run(struct replica *r);
bool apply_hook(struct loop_hook *hook);
void role_update(struct replica *r);

/* replica.c */
uint64_t keep_start(const struct replica *r, uint64_t index);

/* open.c */
void open_record(void *ctx, const struct log_record *rec);

#endif
