/* The broker: wiring of engine, replica and store, and the life of a call.
 *
 *   edge loop                       group loop (may be the same thread)                    edge loop
 *   broker_submit(call) ----------> inbox                                                   call->done(call)
 *                                   turn's end: admission, pops forecast,                        ^
 *                                   commands into one entry, parked pops behind the pushes       |
 *                                   that arm them -> replica_submit                              |
 *                                   committed: engine_apply -> results into call->arena -------->+
 *                                   store cut now and then
 *
 * States of a call (asserted):
 *   IDLE -> QUEUED (inbox) -> PROPOSED (in an entry) -> DONE
 *                          -> PARKED (long poll, nothing to claim) -> PROPOSED -> PARKED ... -> DONE
 *   a step with `next`     -> PROPOSED -> [committed, nothing to claim] PARKED -> PROPOSED ... -> DONE
 *   what was claimed left memory: PROPOSED -> READING (a thread reads it from disk) -> DONE
 *   a read                 -> WAITING (nothing to answer yet) -> runs again -> WAITING ... -> DONE
 *                          -> READING (a thread reads what it wants to show) -> runs again ... -> DONE
 *   broker_cancel: the client is gone. A queued, parked, reading or waiting call is done at once (CALL_CANCELLED); the claims of a proposed
 *   pop, or of a step's next, are handed back (COMMAND_CLAIM_RETURN) when its entry has applied, then done. `done` runs exactly once for
 *   every submitted call, on its home loop, also at shutdown.
 *
 * Deadlines: at deadline_us a queued or parked pop is answered empty, a read runs a last time, a queued write is CALL_TIMEOUT; a proposed
 * call is left to its entry for a bounded time, then CALL_TIMEOUT (a write may still happen; claims go back).
 *
 * A pop that finds nothing is CALL_EMPTY; result.pop then carries the conflation flags (no claims). An autoAck pop's claims cannot be
 * handed back: the messages of one whose caller left while it was in the log are gone (at most once, as asked for).
 *
 * A step with has_next: when it commits, its claim is made in the same entry. If that found nothing and `wait` is set, the call goes on
 * as a long poll of its `pop` for next_wait_us (CALL_POP from then on: cancelled, timed out and stopped like one). Once the step has
 * committed, `step` is set and the caller answers it as committed in every case: with the batch when the outcome is CALL_OK and
 * result.pop has messages (pieces as of a pop), else with none. A step that was refused is CALL_OK with result.step, and `step` is NULL.
 *
 * Timers: the leader puts a tick into the log when a timer is due; parked callers of its lane go right behind it.
 *
 * A read that waits: `read` may set `waits` and name lanes with broker_watch; it runs again when something was appended to one of
 * them (once a turn, however much was), and a last time at the deadline or when the broker stops: `late` is set then, and it answers with
 * what there is. `waits` is false, `answer` empty and `status` 0 before each run; nothing else is put back, so what a run needs for itself it
 * allocates elsewhere than in `arena`, which grows until the call is done. Too many of them (PARKED_POLLS_MAX callers that wait, reads
 * and polls together): CALL_OVERLOADED. Leadership lost: CALL_NO_LEADER.
 *
 * A read that shows stored messages asks for their bytes piece by piece (broker_piece_load). Those that left memory are read by other
 * threads after `read` has returned, and then it runs again, everything as above: nobody waits for a disk on the group thread.
 *
 * Several nodes. Any node takes any call; the group's leader puts it into the log, and the node it came to answers it when it applies
 * that entry itself, from its own state and its own copy of the bytes (forward.c). A change of leader moves no answer: a call is
 * proposed again only when it is certain that it is in no entry. Reads are linearizable: they run once a majority has
 * confirmed the leader after they arrived, and this node has applied what was committed by then. While no leader is known, calls are
 * held LEADER_WAIT_US, then CALL_NO_LEADER.
 *
 * Ownership: the caller owns struct call, its arena and what `command` points to, and leaves them alone from submit to done. */
#ifndef QUEEN_BROKER_BROKER_H
#define QUEEN_BROKER_BROKER_H

#include <stdatomic.h>

#include "base/arena.h"
#include "base/loop.h"
#include "broker/config.h"
#include "broker/hash_table.h"
#include "engine/engine.h"
#include "log/log.h"
#include "net/net.h"
#include "replica/replica.h"

struct broker;

/* What a node's calls have in memory together, whatever their groups: bodies let in, and batches and answers that are not sent. */
struct admission {
    uint64_t bodies_max, answers_max; /* bodies_max 0: no bound */
    atomic_uint_fast64_t bodies, answers, refused;
};
void admission_open(struct admission *a, const struct config *c);
bool admission_presses(const struct admission *a); /* answers that are not taken have to go soon. Any thread */

enum call_kind { CALL_WRITE, CALL_POP, CALL_READ };

enum call_outcome {
    CALL_OK,
    CALL_EMPTY,        /* pop: nothing to deliver */
    CALL_OVERLOADED,   /* 429 overloaded; retry_after_s */
    CALL_STORAGE_FULL, /* 507 */
    CALL_TIMEOUT,      /* 503 timeout */
    CALL_NO_LEADER,    /* 503 no_leader: also while starting and stopping */
    CALL_UNKNOWN,      /* 503 outcome_unknown */
    CALL_CANCELLED,    /* broker_cancel: nobody is there to answer */
    CALL_DAMAGED,      /* 500 internal: a payload could not be read back (logged with its place) */
};

struct cold_range;
struct cold_read;
struct cold_want;

/* A delivered piece with its bytes at hand: the push group's block (memory of the log, pinned, or read from disk). */
struct call_piece {
    struct push_group group;
    struct log_pin pin;
    bool pinned;
    struct cold_range *range; /* of a cold read */
};

struct call {
    /* set by the caller */
    struct loop *home;
    void (*done)(struct call *c);
    enum call_kind kind;
    int64_t deadline_us;    /* clock_mono_us */
    struct arena arena;     /* initialised; results are put here. The caller frees it after done */
    struct slice command;   /* CALL_WRITE: one encoded command */
    bool grows;             /* CALL_WRITE: needs room on disk (pushes, schedules, puts): CALL_STORAGE_FULL when it is scarce */
    struct pop_command pop; /* CALL_POP: slices must outlive the call */
    bool wait;              /* CALL_POP: long poll */
    bool has_next;          /* CALL_WRITE of a step that holds a POP (not of discovery): `pop` is the same pop; see above */
    int64_t next_wait_us;   /* with has_next and `wait`: how long to wait for a batch once the step has committed */
    /* CALL_POP: autopilot picks what the client did not send. False when done: it did not pick */
    bool choose_batch, choose_partitions;
    void (*read)(struct call *c, struct engine *e,
                 struct engine_now now); /* CALL_READ: runs on the group thread, writes to `answer` */
    bool always;                         /* CALL_READ: also while starting and stopping (metrics) */
    bool counts; /* its answer's memory is bounded: the caller tells with broker_answer_held what becomes of it */
    /* CALL_READ: the encoded command that `read` will carry out: what it needs of the store is read before. Or empty */
    struct slice foreseen;
    /* CALL_READ, or NULL: the same of what is no command; asked twice (engine.h: foreseen reads), changes nothing that `read` answers */
    void (*foresee)(struct call *c, struct engine *e, struct engine_now now, const struct engine_foreseen *f);
    void *foresee_ctx;
    bool waits; /* CALL_READ, set by `read`: nothing to answer yet (see broker_watch). False before each run */
    void *read_ctx;
    /* the answer */
    enum call_outcome outcome;
    uint32_t retry_after_s;
    struct engine_result result; /* CALL_OK of writes and pops */
    const struct step_result
        *step; /* with has_next: the step has committed, whatever `outcome` says; `result.pop` is the batch, if any */
    struct call_piece *pieces; /* CALL_POP: for all claims' pieces, in order */
    int64_t wall_us;           /* time of the command's execution (lease end of a delivery is counted from it) */
    struct buf answer;         /* CALL_READ: freed by the caller */
    uint32_t status;           /* CALL_READ: HTTP status chosen by `read` (0 = 200) */
    uint64_t held;             /* bytes counted for it as answers; kept from one submit to the next */
    /* the broker's own: zeroed before the first submit; a call may be submitted again after done */
    struct broker *broker;
    struct loop_task task, cancel_task;
    bool cancelled, cancel_pending, done_held; /* written on home */
    uint8_t state;                             /* from here on the group thread's between submit and done */
    bool late;                                 /* its time is up. `read` may look: it can not wait any more */
    bool gone, registers;
    uint32_t lanes, slot;
    struct remote *remote;      /* the leader's side of a call that another node took */
    struct hash_node forwarded; /* of a call that the leader works on, by `sequence` */
    uint64_t sequence, sent_term;
    uint64_t read_index; /* the entry to be applied before it is answered */
    int64_t held_us;     /* since when it waits for a leader; 0 = it does not */
    struct call *next, *previous;
    struct call_list *list;
    struct heap_node due;
    struct group_wait *group;
    struct lane_wait *lane;
    struct flight *flight;
    struct cold_read *reading;
    struct cold_read *found; /* of a read: what was read for it */
    uint32_t rounds;         /* so many jobs */
    uint32_t warmed;         /* of a read or a pinned pop: so often it was asked what it wants of the store */
    struct watch *watches;
    uint32_t watch_count;
    uint64_t arrival;
    int64_t queued_us;
};

/* The group's place among the nodes. */
/* Kinds of frames in a group's channel. */
enum { FRAME_REPLICA = 1, FRAME_CALLS = 2, FRAME_SNAPSHOT = 3 };

struct broker_place {
    const char *dir; /* of the group */
    uint32_t group;
    struct admission *admission; /* the node's; NULL: it has its own */
    struct net *net;             /* NULL: this node is alone */
    struct uuid cluster;
    uint64_t node; /* 0: whatever the directory says */
    const struct replica_member *members;
    uint32_t member_count;
    bool join;
    void *ctx;
    void (*again)(void *ctx); /* any thread: a state was fetched, the process must start anew */
    /* Inside broker_open, while rows are loaded, every few milliseconds: how many so far, and how far that is, about. May be NULL. */
    void (*loading)(void *ctx, uint64_t rows, uint32_t per_mille);
    /* Any thread: something stored here cannot be read, or fails its checks. `what` names it; `ends`: the process ends for it. May be NULL. */
    void (*damaged)(void *ctx, const char *what, bool ends);
    bool *is_damaged; /* may be NULL. broker_open failed (exit code 2) since what is stored fails its checks */
};

/* Opens everything under place->dir. exit_code: 2 data unusable, 3 I/O (conventions of `queen serve`); `error` says it in one line.
 * `group_loop` runs the group; edge loops are the callers' homes. Ready when broker_ready. */
struct broker *broker_open(const struct config *config, const struct broker_place *place, struct loop *group_loop,
                           int *exit_code, struct buf *error);
/* Graceful stop, on the group loop: parked pops get their empty answer, proposed calls are waited for (bounded), the state is cut
 * and flushed; then `stopped` runs. */
void broker_stop(struct broker *b, void (*stopped)(void *ctx), void *ctx);
void broker_close(struct broker *b); /* after stopped and after the loops ended */

/* Both on c->home; `done` never runs inside them, but from the home loop's next tasks or hooks. broker_cancel only before done ran. */
void broker_submit(struct broker *b, struct call *c);
void broker_cancel(struct broker *b, struct call *c);
void broker_pieces_release(struct broker *b, struct call *c); /* any thread, after the answer was rendered */

/* Stored messages' bytes, inside `read` of a CALL_READ. Never waits. */
enum piece_state {
    PIECE_HERE, /* `out` is set: release it once rendered, any thread */
    /* It is on disk: `read` will run again, with the piece in memory, and what this run wrote is forgotten. It should name whatever
     * else it will need and leave its own state as it was when it began. */
    PIECE_COMING,
    /* On disk, and much was read for this call already: it answers with what it has. Never said of the first piece of a run. */
    PIECE_LATER,
    PIECE_DAMAGED, /* logged with its place */
};
enum piece_state broker_piece_load(struct broker *b, const struct delivery_piece *d, struct call_piece *out);
void broker_piece_release(struct broker *b, struct call_piece *p);

/* Inside `read` of a CALL_READ that sets c->waits: run it again when something is appended to this lane, which need not exist yet. At
 * most FETCH_ENTRIES_MAX lanes a run. Lanes named by an earlier run are forgotten. */
void broker_watch(struct broker *b, struct call *c, struct uuid tenant, struct slice queue, struct slice partition);

/* Admission by bytes, before a body is read: false = answer 429 (retry_after_s set). Give back the same amount once answered.
 * Any thread. */
bool broker_admit(struct broker *b, size_t bytes, uint32_t *retry_after_s);
void broker_admit_return(struct broker *b, size_t bytes);
/* A call that `counts`, after done, any thread: what is kept of its answer takes so many bytes now; 0: nothing, it was sent. While answers
 * that nobody takes fill their share, batches wait for room (their claims go back when their time is up) and reads are CALL_OVERLOADED. */
void broker_answer_held(struct call *c, uint64_t bytes);

bool broker_ready(const struct broker *b);        /* any thread */
bool broker_storage_full(const struct broker *b); /* any thread */

/* ready: a leader is known and this node has applied what it should have (QUEEN_RAFT_READY_LAG_*), and heard of a majority lately. */
struct broker_health {
    bool ready, leader, storage_ready;
    const char *role;
    uint64_t term, applied, commit;
    uint64_t leader_id;    /* 0 = none known */
    int64_t lag_us;        /* age of the last applied entry while more than the allowed entries behind; 0 = up to date */
    int64_t quorum_age_us; /* since a majority was heard of (leader), or the leader (others); -1 = never */
};
void broker_health(const struct broker *b, struct broker_health *out); /* any thread */

/* Mostly dead files given back, since the start. */
struct reclaim_stats {
    uint64_t files, bytes, copied_bytes; /* copied_bytes: of them, what was still wanted, to the archive */
};

enum { TIMERS_DUE_COUNTED = 10000 };
/* What the group thread itself read of the store or the log's files: reads, and microseconds; of rows, the blocks that no cache had. */
struct cold_waits {
    uint64_t count, us, blocks;
};
/* Numbers for /metrics, collected on the group thread (a CALL_READ's read may call it). */
struct broker_metrics {
    uint64_t log_index, commit_index, applied_index, durable_index, in_flight_entries, in_flight_bytes;
    uint64_t entries_total, commands_total, slow_commands_total;
    uint64_t admitted_bytes, answer_bytes, admit_refused_total; /* the node's */
    uint64_t cold_cache_bytes, cold_read_bytes;
    uint64_t parked, reads_waiting, ticks_total;
    uint64_t timers_fired_total, timers_duplicate_total;
    uint64_t trimmed_lanes_total, trimmed_messages_total; /* by retention */
    int64_t timer_late_us;                                /* of the timer that fired last: how long after its time */
    int64_t timer_overdue_us;                             /* how long the first pending timer has been due; 0 = none is */
    uint32_t timers_due;                                  /* due and pending, counted up to TIMERS_DUE_COUNTED */
    uint64_t entry_us_total;                              /* submit to applied, summed */
    uint64_t entry_buckets[24];                           /* entries by submit-to-applied time: < 2^i * 16 us */
    uint64_t apply_us_total;
    struct log_stats log, archive;
    struct reclaim_stats reclaim;
    struct engine_stats engine;
    struct cold_waits cold_entry_rows, cold_call_rows,
        cold_entry_blocks;                           /* rows while entries were executed; otherwise; blocks */
    uint64_t foreseen_total, foreseen_dropped_total; /* ranges and blocks read ahead for entries, or not for want of room */
    uint64_t store_batches, store_rows, store_flushes, store_bytes, store_memory;
    bool storage_full;
};
void broker_metrics(struct broker *b, struct broker_metrics *out);

/* On the group's loop: members, progress and changes (replica.h). */
struct replica *broker_replica(struct broker *b);
struct log *broker_archive(struct broker *b); /* NULL: there is none yet. Any thread */

/* How old the messages of a queue (by its number) were that were delivered in the last minute or two. Where broker_metrics may be
 * called. False: none were. O(1). */
struct pop_lag {
    uint64_t average_us, max_us;
};
bool broker_pop_lag(struct broker *b, uint32_t queue, struct pop_lag *out);

#endif
