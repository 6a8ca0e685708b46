/* The broker's inside: one struct, owned by the group thread, and what its files offer each other.
 *
 *   inbox.c       calls arrive, wait, time out, are cancelled
 *   batch.c       queued calls become one entry: gathered, copied into the log's memory, submitted
 *   parked.c      parked callers: who waits on which lanes, who is woken
 *   cold.c        calls whose payload bytes are read from disk
 *   piece.c       payload bytes for reads
 *   warm.c        rows and blocks that will be wanted soon
 *   answer.c      an entry applied: results to calls, payload bytes pinned, answers sent home in chains
 *   dispatch.c    where a call can be answered: here, by the leader, or nowhere yet
 *   forward.c     calls that the leader works on for this node
 *   remote.c      calls that this node, as the leader, works on for others
 *   confirm.c     reads wait until it is certain that they see the newest state
 *   watch.c       reads, and those among them that wait for appends
 *   ticker.c      timers that are due: ticks into the log
 *   expire.c      KV rows at rest whose time is over: removed, on each node for itself
 *   retention.c   messages whose time is over: trims into the log
 *   keeper.c      cuts and flushes of the store, log trimming, housekeeping
 *   reclaim.c     what is wanted of mostly dead log segments is copied to the archive
 *   admission.c   refusing early
 *   disk_guard.c  room on the disk
 *   stamp.c       times of entries
 *   broker.c      opening, stopping, numbers */
#ifndef QUEEN_BROKER_BROKER_INTERNAL_H
#define QUEEN_BROKER_BROKER_INTERNAL_H

#include <stdatomic.h>
#include <stddef.h>

#include "base/limits.h"
#include "base/must.h"
#include "broker/broker.h"
#include "broker/cold.h"
#include "broker/die.h"
#include "broker/hash_table.h"
#include "broker/pace.h"
#include "broker/place.h"
#include "broker/reclaim.h"
#include "broker/snapshot.h"
#include "broker/stamp.h"
#include "replica/replica.h"
#include "store/store.h"

enum {
    FLIGHTS_MAX = 4,             /* entries submitted and not applied */
    FLIGHT_BYTES_MAX = 32 << 20, /* their bytes: above, the next batch waits */
    BATCH_BYTES_EAGER = 1 << 20, /* a pending batch this large does not wait for the entry in flight */
    BATCH_CALLS_EAGER = 32,      /* nor so many calls: the disk works while further calls are read */
    QUEUED_CALLS_MAX = 65536,    /* above: CALL_OVERLOADED */
    WATCHES_MAX = 1 << 20,       /* lanes watched by waiting reads, all in all; above: CALL_OVERLOADED */
    APPENDS_KEPT_MAX = 65536,    /* lanes of one entry that are told apart for watches; above: every waiting read runs */
    PROPOSED_GRACE_US = 2000000, /* how long past its deadline a proposed call waits for its entry */
    POP_MARGIN_US_MAX = 50000,   /* an empty long poll is answered this much before its deadline at most */
    HOMES_MAX = 64,              /* edge loops */
    CUT_ROWS = 4096,             /* a cut is taken when about so many rows changed */
    CUT_ROWS_BULK = 1024,        /* while bulk work goes on: it takes less long each time */
    BULK_SMALL = 128,            /* lanes, queues or letters of a piece of bulk work beside other calls (pace.h) */
    BULK_RECENT_US = 100000,
    BULK_WAITS_US = 100000, /* so much later although the store is behind: it goes on, if slowly */
    HOUSEKEEP_WAITS_US = 20000,
    CUTS_WAITING_MAX = 2,        /* batches submitted to the store and not written */
    STOP_HAND_OVER_US = 3000000, /* graceful stop: for another node to take over leadership */
    STOP_ANSWERS_US = 5000000,   /* graceful stop: for entries in flight */
    STOP_ALL_US = 10000000,      /* graceful stop: all in all */
    LATENCY_BUCKETS = 24,
    SLOW_COMMAND_US = 50000,
    REFUSED_US = 20000,      /* after the replica took no entry, so long until the next try */
    DIGEST_ENTRIES = 256,    /* between two digests in the log */
    CACHE_AGE_US = 10000000, /* log images not used for so long leave memory */
};

/* IDLE -> ARRIVED -> QUEUED -> PROPOSED -> DONE, pops also through PARKED and, behind PROPOSED, READING, reads through WAITING and
 * READING, any number of times. With several nodes also: HELD (no leader to be had), FORWARDED -> PROPOSED (its entry is being applied here), reads through ASKING. A call
 * is in at most one list (c->list). */
enum call_state {
    CALL_STATE_IDLE,
    CALL_STATE_COMING, /* submitted on another loop, the task is on its way */
    CALL_STATE_ARRIVED,
    CALL_STATE_QUEUED,
    CALL_STATE_PARKED,
    CALL_STATE_WAITING,
    CALL_STATE_HELD,
    CALL_STATE_FORWARDED,
    CALL_STATE_ASKING,
    CALL_STATE_PROPOSED,
    CALL_STATE_READING,
    CALL_STATE_DONE,
};

struct call_list {
    struct call *first, *last;
    uint32_t count;
};

static inline void call_list_append(struct call_list *l, struct call *c)
{
    must(c->list == NULL);
    c->list = l;
    c->next = NULL;
    c->previous = l->last;
    if (l->last != NULL) {
        l->last->next = c;
    } else {
        l->first = c;
    }
    l->last = c;
    l->count++;
}

void call_list_put_before(struct call_list *l, struct call *c, struct call *at); /* NULL: at the end */
void call_list_put_ordered(struct call_list *l, struct call *c); /* by arrival number: at the end, or near the front */
void call_list_remove(struct call *c);

struct flight_slot {
    struct call *call; /* NULL: the broker's own command, or a call that no longer waits */
    struct uuid lease; /* of a pop, or a step's next, whose call no longer waits: its claims are handed back */
    uint64_t orphan;   /* its sequence, when another node put it into the entry */
    bool orphan_pop;
    bool settled; /* its result came */
};

/* A lane for which a parked pop was placed behind a push in an entry not applied yet. */
struct armed_lane {
    struct hash_node node;
    struct armed_lane *next;
};

/* A group with parked callers that an entry may change, and its lane when somebody is pinned to it. */
struct touched {
    struct group_wait *group;
    struct lane_wait *lane;
};

/* An entry submitted and not applied yet. Flights are kept and used again. */
struct flight {
    struct flight *next;
    uint64_t index, term;
    int64_t submitted_us, wall_us;
    uint64_t bytes;
    uint32_t slot_count, slot_cap, touched_count, touched_cap;
    bool ticks; /* holds a tick */
    uint32_t bulk_slot,
        bulk_most; /* the piece of bulk work in it, and what that looks at at most; bulk_most 0 = there is none */
    uint32_t origin_count;
    struct flight_slot *slots;
    struct touched *touched; /* looked at when it applied */
    struct armed_lane *armed;
};

/* Parked callers and pops in flight of one queue, and of one (queue, group) in it. They exist while they hold something. */
struct queue_wait {
    struct hash_node node;
    struct uuid tenant;
    struct group_wait *groups;
    struct slice name; /* behind the struct */
};

enum wake_reason { WAKE_READY = 1, WAKE_DUE = 2, WAKE_RETURNED = 4 };

struct group_wait {
    struct hash_node by_name, by_number;
    struct queue_wait *queue;
    struct group_wait *queue_next, *queue_previous;
    struct group_wait *dirty_next;
    uint64_t id;              /* never used again: part of the keys of lanes */
    uint32_t number;          /* the engine's; 0 = not known there yet */
    uint32_t pops_in_flight;  /* granted or proposed, not settled */
    uint32_t lanes_in_flight; /* lanes they may take */
    uint32_t parked_count;    /* parked callers, pinned ones included */
    uint32_t refs;            /* flights that touch it */
    uint32_t futile;          /* granted pops that came back empty in a row */
    uint32_t lane_count;
    uint64_t parked_lanes; /* lanes the unpinned parked callers would take */
    bool dirty;
    uint8_t reasons;         /* enum wake_reason bits; none: only look when the next lane is due */
    struct call_list parked; /* any lane of the queue, oldest first */
    struct lane_wait *lanes_first, *lanes_last;
    struct heap_node due;
    struct slice name; /* behind the struct */
};

/* Pinned callers of one lane. */
struct lane_wait {
    struct hash_node node;
    struct group_wait *group;
    struct lane_wait *next, *previous; /* of the group */
    struct lane_wait *dirty_next;
    uint32_t pops_in_flight, refs;
    bool dirty;
    struct call_list parked;
    struct heap_node due;
    struct slice name; /* behind the struct */
};

struct parked {
    struct hash_table queues, groups_by_name, groups_by_number, lanes, armed;
    struct heap groups_due, lanes_due;
    struct loop_timer timer;
    struct group_wait *dirty_groups;
    struct lane_wait *dirty_lanes;
    uint64_t group_ids;
    uint32_t count; /* parked callers */
};

/* Reads that wait. */
struct watching {
    struct hash_table lanes;
    struct call_list marked; /* to run again in this turn */
    struct call *reading;    /* its `read` runs now */
    uint32_t count;          /* calls that wait */
    uint32_t watches;        /* theirs, all in all */
    bool full;               /* the one that runs wanted more than WATCHES_MAX */
    uint32_t *appended;      /* lanes the entry being applied appended to, while anybody watches */
    uint32_t appended_count, appended_cap;
    bool appended_all; /* more than APPENDS_KEPT_MAX */
};

/* What the `read` that runs now asked for so far. */
struct pieces_run {
    struct buf wants; /* struct cold_want each: those that are not there */
    uint64_t bytes;   /* theirs */
    uint64_t checked; /* bytes of ranges whose checksums were looked at */
    bool served;      /* a piece was there */
};

/* Jobs by arrival; the first ones are given to the readers. */
struct cold_reads {
    struct cold_cache *cache;
    struct cold_reader *reader;
    struct cold_read *first, *last, *waiting; /* waiting: the first one that is not given */
    uint32_t given_count;
    uint64_t given_bytes;
    struct call_list calls;
    struct pieces_run run;
};

struct warm_job;

struct warming {
    struct warm_job *first;
    uint32_t count;
    uint64_t foreseen_total, dropped_total; /* ranges and blocks */
};

/* Rows that the next step of some work will read: read before it. All zeros at the start. */
struct warm_step {
    struct cold_job job;
    struct broker *broker;
    void (*back)(struct broker *b);
    struct buf rows;
    bool reading, read; /* under way; done, for the step that comes next: who has made it sets `read` to false */
};

/* The piece of bulk work that comes next. */
struct bulk_step {
    struct warm_step rows;
    uint64_t arrival; /* of its call */
    uint32_t most;    /* what it may look at at most */
};

struct retention {
    struct loop_timer timer;
    struct warm_step rows;
    struct trim_limits most; /* of the next step */
    int64_t step_us;
    bool pending;       /* a round is under way or due */
    uint32_t postponed; /* steps, while the store is behind */
};

struct queue_lag;

struct pop_lags {
    struct hash_table queues;
    struct queue_lag *first;
    int64_t minute; /* the one under way */
};

/* Rows of timers at rest, read before they are due: ticker.c. */
struct timers_ahead {
    struct cold_job job;
    bool reading;
    int64_t from_us, until_us; /* of the job under way; it ends earlier when there is much */
    uint64_t left;             /* bytes */
    int64_t reached_us;        /* what is due until then was read */
};

struct ticker {
    struct loop_timer timer;
    struct timers_ahead ahead;
    bool stale;    /* something happened since the last look at when a timer is due */
    bool proposed; /* a tick waits for its entry or is in the log, not applied */
};

/* KV rows at rest that expire: expire.c. */
struct expiring {
    struct cold_job job;
    bool reading;
    int64_t from_us, until_us; /* of the job under way: the rows wanted */
    int64_t before_us;         /* it passed all that expire before */
    uint64_t left;             /* bytes */
    int64_t reached_us;        /* rows of what expires before were passed; 0: of none */
    int64_t look_us, step_us;  /* the next rows are read then, and removed then */
    int64_t since_us;          /* when nothing that has expired was left, the last time */
};

struct home {
    struct loop *loop;
    struct call *first, *last;
};

/* A log segment that nothing live points into, and the state that said so first (engine_revision). */
struct dead_segment {
    uint64_t first_pos, seen_revision;
};

/* By place; [0, kept) and [next, count) while the log is trimmed. */
struct dead_segments {
    struct dead_segment *at;
    uint32_t count, cap, kept, next;
};

struct keeper {
    uint64_t cut_revision, flush_revision, durable_revision; /* given to the store, with a flush; durable there */
    uint64_t cuts[CUTS_WAITING_MAX];                         /* revisions of those that wait for the store */
    uint64_t flush_index, durable_index, durable_pos;
    uint64_t flush_pos; /* end of the log when the last flush was asked for */
    uint64_t applied_term, seen_revision;
    int64_t unflushed_since_us; /* 0 = everything applied is flushed or being flushed */
    int64_t idle_at_us;
    bool house_more; /* the last step of housekeeping left something to do */
    struct pace bulk, house;
    struct bulk_step bulk_step;
    struct warm_step house_rows;
    int64_t others_us; /* when something else came last: a call, or an entry applied */
    uint32_t cuts_waiting;
    bool flush_waiting, behind;
    struct loop_timer timer;
    struct dead_segments dead[2]; /* of the log, of the archive */
};

/* Batches that wait until answers were sent: their calls are READING without a job. */
struct answer_room {
    struct call_list waiting;
    struct loop_timer timer;
};

struct disk_guard {
    int64_t checked_us;
    uint64_t room_bytes; /* until the guard closes, counted down by pushes between two looks */
    uint64_t reserve_bytes;
    uint64_t taken_bytes; /* from the leader since the last look */
    bool exhausted;       /* no entries of the leader are taken */
    struct loop_timer timer;
};

/* Frames of a group's channel, by kind. */

/* A pop, or a step's next, that was answered without waiting for the leader: claims that are made for it nonetheless go back. It is
 * forgotten when they have, or when the leader says that there will be none. */
struct orphan {
    struct hash_node node; /* by sequence */
    struct orphan *next, *previous;
    bool once; /* a step's: it is in one entry at most */
    uint64_t sequence, sent_term;
    struct uuid lease;
};

/* A call that another node took: the leader's side of it. */
struct remote {
    struct hash_node node; /* by origin and sequence */
    struct remote *next, *previous;
    uint64_t peer, sequence;
    bool proposed; /* it is in an entry that is not applied yet */
    size_t admitted;
    struct buf bytes;
    struct call call;
};

/* Reads that wait for certainty: asking, a question at a time for all that came meanwhile. */
struct confirming {
    struct call_list waiting, asked, confirmed; /* confirmed: the entry they need is not applied yet */
    struct replica_confirm question;            /* leader */
    uint64_t number;                            /* of the question to the leader; others' answers are late */
    bool asking;
};

struct cluster {
    bool on; /* there are other nodes, or may come to be */
    uint64_t leader, leader_term;
    struct call_list held;
    struct loop_timer hold_timer;
    struct call_list forwarded; /* in order of sequence */
    struct hash_table forwards, orphans;
    struct orphan *orphan_first, *orphan_last;
    uint64_t sequence; /* of the last one sent */
    /* After a break of a connection with the leader: what was sent before fence_sequence is in an entry up to fence_index, or in none. */
    bool fence_wanted, fence_asked, fenced;
    uint64_t fence_number, fence_sequence, fence_index;
    uint64_t resolved_term;
    struct confirming reads;
    struct hash_table remotes;
    struct remote *remote_first;
    uint64_t digest_index; /* entries up to here are covered by a digest in the log */
    int64_t entry_us;      /* when the last entry was applied here as a follower: mono; 0 = never */
};

struct broker {
    struct config config;
    struct broker_place place;
    struct loop *loop;
    struct engine *engine;
    struct store *store;
    struct replica *replica;
    struct places places;
    int lock_fd;
    struct loop_hook hook, late_hook; /* before and after the replica's own */
    struct loop_task kick;
    bool kicked;

    struct stamps stamps;
    int64_t mono_us;       /* at the start of this turn */
    struct engine_now now; /* the stamps an entry made now would carry */

    struct call_list arrived, queued;
    struct call_list
        bulk; /* queued pieces of what concerns a whole queue or tenant: one an entry, as fast as the store keeps up */
    uint64_t queued_bytes;
    uint64_t arrivals;
    struct heap deadlines;
    struct loop_timer deadline_timer;
    int64_t deadline_timer_us; /* 0 = not set */
    int64_t overload_since_us; /* 0 = not overloaded */

    struct buf internal; /* the broker's own commands for the next entry */
    uint32_t internal_count;
    struct flight *flight_first, *flight_last, *flight_free, *applying;
    uint32_t flight_count;
    uint64_t flight_bytes;
    struct arena scratch; /* results nobody waits for */
    struct buf encoded;

    struct parked parked;
    struct watching watching;
    struct ticker ticker;
    struct expiring expiring;
    struct retention retention;
    struct pop_lags pop_lags;
    uint64_t trimmed_lanes_total, trimmed_messages_total;
    uint64_t timers_fired_total, timers_duplicate_total;
    int64_t timer_late_us; /* of the last one fired */
    struct home homes[HOMES_MAX];
    uint32_t home_count;
    struct keeper keeper;
    struct cold_reads cold;
    struct reclaim *reclaim;
    struct answer_room room;
    struct admission *admission, own_admission;
    struct warming warming;
    bool executing; /* an entry */
    struct cold_waits entry_rows, call_rows, entry_blocks;
    struct disk_guard guard;
    struct cluster cluster;
    struct snapshots *snapshots; /* NULL: alone */
    bool fetched;                /* a state is there that replaces this one: the replica gets no more frames */
    bool leading, housekeeping, init_proposed;
    int64_t refused_until_us; /* the replica takes no entries for a moment: leadership is being handed over */
    bool serving;             /* leads, and the log has its first command: entries may be proposed */

    bool handing_over, stopping, stopped;
    int64_t stop_began_us;
    struct loop_timer stop_timer;
    void (*stopped_call)(void *ctx);
    void *stopped_ctx;

    uint64_t entries_total, commands_total, slow_commands_total, apply_us_total, entry_us_total, ticks_total;
    uint64_t entry_buckets[LATENCY_BUCKETS];
    int64_t damage_said_us, replay_said_us, skew_said_us;

    /* read and written from any thread */
    atomic_bool ready, storage_full;
    _Atomic(struct log *) archive_seen; /* places.archive */
    atomic_uint_fast64_t leader_id;
    atomic_int_fast64_t heard_us,
        lag_us; /* of a majority (leader) or the leader: mono; how old the last applied entry is while behind */
    atomic_int role;
    atomic_uint_fast64_t term, applied, commit;
    atomic_uint retry_after_s;
};

/* inbox.c */
void inbox_clock(struct broker *b); /* reads the clocks for this turn */
void inbox_turn(struct broker *b);  /* reads run, pops are looked at, writes stay queued */
void inbox_deadlines_arm(struct broker *b);
void inbox_deadline_fire(struct loop_timer *t);
void inbox_queue(struct broker *b, struct call *c);                 /* for the next entry */
void inbox_unlist(struct broker *b, struct call *c);                /* out of whatever list it waits in */
int64_t inbox_due_us(const struct broker *b, const struct call *c); /* when it is answered without having been served */
void inbox_due_set(struct broker *b, struct call *c);
void inbox_next_wait(struct broker *b, struct call *c); /* a committed step goes on as a long poll of its next */
void inbox_kick(struct broker *b);                      /* another turn */
void inbox_end(struct broker *b, enum call_outcome of_queued, enum call_outcome of_proposed); /* everything left is answered */
size_t pop_bytes_max(const struct pop_command *p);                                            /* upper bound of its encoding */

/* dispatch.c */
void dispatch_start(struct broker *b);
void call_dispatch(struct broker *b, struct call *c);   /* in no list; it may be answered in it */
void call_redispatch(struct broker *b, struct call *c); /* the same, of one that may have been granted lanes here */
void pop_resume(struct broker *b, struct call *c);      /* one that waited before it was looked at */
void call_take(struct broker *b, struct call *c);       /* by the leader: into the queue, or to be looked at in this turn */
void call_hold(struct broker *b, struct call *c);
void call_unhold(struct broker *b, struct call *c);  /* it waits for a leader no longer: its own deadline counts again */
bool hold_expired(struct broker *b, struct call *c); /* its wait for a leader is over (else its own time is) */
void dispatch_role(struct broker *b);                /* leading began or ended */
void dispatch_leader(struct broker *b, uint64_t leader, uint64_t term);
void dispatch_link(struct broker *b, uint64_t peer, enum net_link which, bool up);
void dispatch_turn(struct broker *b);
void dispatch_exhausted(struct broker *b); /* no entries are taken for want of room: who waits for one is told */
bool dispatch_hopeless(const struct broker *b);
void dispatch_free(struct broker *b);

/* forward.c */
bool forward_call(struct broker *b, struct call *c);              /* to the leader; false: it cannot be sent */
void forward_leave(struct broker *b, struct call *c, bool tell);  /* out of the list; claims that come all the same go back */
void forward_orphan_claimed(struct broker *b, uint64_t sequence); /* its claims go back; 0: nobody's */
void forward_again(struct broker *b, struct call *c);             /* its entry gave it nothing: the leader goes on with it */
/* The flight of an entry with calls of ours that the leader put there, or NULL. */
struct flight *forward_flight(struct broker *b, struct slice entry);
void forward_frame(struct broker *b, uint64_t peer, struct slice frame); /* any frame of FRAME_CALLS */
void forward_turn(struct broker *b);
void forward_claims_return(struct broker *b); /* those that wait in b->internal go to the leader */
void forward_free(struct broker *b);
bool calls_send(struct broker *b, uint64_t peer, const struct slice *parts, uint32_t count);

/* remote.c */
void remote_call(struct broker *b, uint64_t peer, struct slice frame);
void remote_cancel(struct broker *b, uint64_t peer, uint64_t sequence);
void remote_fence(struct broker *b, uint64_t peer, uint64_t number);
void remote_read(struct broker *b, uint64_t peer, uint64_t number);
void remote_drop(struct broker *b, uint64_t peer); /* what is not in an entry; peer 0: everybody's */
void remote_free(struct broker *b);

/* confirm.c */
void confirm_read(struct broker *b, struct call *c);
/* Of a pop that found nothing: true: it comes again (pop_resume) when all that is committed now was applied. Once a call. */
bool confirm_pop(struct broker *b, struct call *c);
void confirm_leave(struct broker *b, struct call *c);
void confirm_answer(struct broker *b, uint64_t number, bool ok, uint64_t index); /* of the leader */
void confirm_lost(struct broker *b);                                             /* the question will not be answered */
void confirm_turn(struct broker *b);

/* The frames between forward.c and remote.c, all of FRAME_CALLS; the first byte says which. */
enum calls_frame {
    CALLS_FORWARD = 1, /* struct forward_head, then the encoded command */
    CALLS_CANCEL,      /* sequence */
    CALLS_DONE,        /* sequence, outcome, retry_after: it is in no entry and will not be */
    CALLS_FENCE,       /* number: forget what is not in an entry, tell how far the log goes */
    CALLS_FENCED,      /* number, index */
    CALLS_READ,        /* number */
    CALLS_READ_AT,     /* number, ok, index */
    CALLS_RETURN,      /* lease: its claims go back */
};
enum { FORWARD_WAIT = 1, FORWARD_GROWS = 2, FORWARD_NEXT = 4, FORWARD_CHOOSE_BATCH = 8, FORWARD_CHOOSE_PARTITIONS = 16 };
struct forward_head {
    uint8_t frame, kind, flags, zero[5];
    uint64_t term, sequence;
    int64_t time_us; /* left until its deadline */
};
struct calls_head {
    uint8_t frame, outcome, ok, zero;
    uint32_t retry_after_s;
    uint64_t number, index;
};
_Static_assert(sizeof(struct forward_head) == 32 && sizeof(struct calls_head) == 24, "they travel as they are: little-endian");
bool calls_head_send(struct broker *b, uint64_t peer, const struct calls_head *h);

/* batch.c */
void flights_resolve(struct broker *b, uint64_t term); /* those of lower terms are in no entry that will be applied */
struct flight *flight_new(struct broker *b);
void flight_slots_make(struct flight *f, uint32_t count);
bool batch_due(struct broker *b); /* is it time to close an entry? */
void batch_turn(struct broker *b);
struct flight *flight_next(struct broker *b, uint64_t index, uint64_t term); /* takes the oldest out if it is this one */
void flight_recycle(struct broker *b, struct flight *f);
void flights_free(struct broker *b);
void internal_claim_return(struct broker *b, struct uuid lease);
void internal_init(struct broker *b);
void internal_tick(struct broker *b);
void internal_trim(struct broker *b, const struct trim_item *items, uint32_t count);

/* parked.c */
/* A write in the entry being gathered, whose lanes are handed to parked callers. */
struct handoff {
    struct flight *f;
    bool (*place)(struct broker *b, struct flight *f, struct call *c); /* into the entry; false: it is full */
    bool may_fail;                 /* a step: when it is refused, what is placed behind it finds nothing */
    const struct pop_command *own; /* a step's own next, or NULL: it comes first to the lanes of its group */
    uint32_t own_lanes;            /* how many more it may take */
};
void parked_pop_arrive(struct broker *b, struct call *c);
void parked_pop_settle(struct broker *b, struct call *c); /* its entry applied (c->result): gives its promised lanes back */
void parked_pop_drop(struct broker *b, struct call *c);   /* a granted pop leaves without: others may have its lanes */
void parked_park(struct broker *b, struct call *c);
void parked_unpark(struct broker *b, struct call *c);
void parked_next_propose(struct broker *b, struct call *c, struct handoff *h); /* a step with a next goes into the entry */
void parked_next_settle(struct broker *b, struct call *c); /* it has committed (c->result is that of its pop) */
void parked_next_drop(struct broker *b, struct call *c);   /* its caller does not wait for the entry any longer */
void parked_next_wait(struct broker *b, struct call *c);   /* it goes on as a long poll */
/* What was pushed since the step is for the long poll, also by entries that are on their way already. */
void parked_next_from_now(struct call *c);
void parked_push(struct broker *b, struct handoff *h, struct uuid tenant, struct slice queue, struct slice partition);
void parked_ack(struct broker *b, struct handoff *h, const struct ack_command *ack);
void parked_flight_applied(struct broker *b, struct flight *f);
void parked_queue_deleted(struct broker *b, struct uuid tenant, struct slice queue, int64_t wall_us);
void parked_queue_changed(struct broker *b, struct uuid tenant, struct slice queue);
void parked_group_deleted(struct broker *b, struct uuid tenant, struct slice queue, struct slice group, int64_t wall_us);
void parked_group_changed(struct broker *b, struct uuid tenant, struct slice group);     /* on all queues: rare */
void parked_lane_ready(struct broker *b, uint32_t group_number, struct slice partition); /* the engine's sink */
void parked_turn(struct broker *b); /* wakes whom the last entries, or time, made lanes for */
static inline bool parked_is_dirty(const struct broker *b)
{
    return b->parked.dirty_groups != NULL || b->parked.dirty_lanes != NULL;
}
void parked_due_fire(struct loop_timer *t);
void parked_free(struct broker *b);

/* answer.c */
void entry_apply(void *ctx, uint64_t index, uint64_t term, uint64_t pos, struct slice body); /* the replica's apply */
void call_finish(struct broker *b, struct call *c, enum call_outcome outcome);
void call_finish_empty(struct broker *b, struct call *c);
void calls_go_home(struct broker *b);
bool piece_take(struct broker *b, const struct delivery_piece *d, struct slice block,
                struct call_piece *out);                            /* false: damaged */
void broker_damaged(struct broker *b, const char *what, bool ends); /* to the node; any thread */
void damage_say(struct broker *b, uint64_t where, uint32_t bytes, const char *what);
void pop_load(struct broker *b, struct call *c);              /* there is room for its batch */
void pop_loaded(struct broker *b, struct call *c, bool good); /* its bytes are there, or it is damaged */
void claims_hand_back(struct broker *b, const struct call *c);

/* piece.c */
void pieces_run_begin(struct broker *b);
/* The run is over. True: pieces are missing; the call is READING, or it is done because it will not get them. */
bool pieces_run_end(struct broker *b, struct call *c);

/* warm.c */
void warm_entry(struct broker *b, uint64_t index, struct slice entry); /* it is on its way to the disk */
bool warm_read(struct broker *b, struct call *c);                      /* true: it is READING, and runs afterwards */
bool warm_pop(struct broker *b, struct call *c);                       /* true: it is READING, and arrives again afterwards */
void warm_rows_put(struct buf *rows, struct slice from, struct slice to);
void warm_rows_read(struct store *store, struct slice rows, size_t range_bytes); /* any thread */
/* May the step be made? Else it is asked again after `back`, which is called when its rows have been read. */
bool warm_step(struct broker *b, struct warm_step *s, void (*foresee)(struct broker *b, const struct engine_foreseen *f),
               void (*back)(struct broker *b));
void warm_free(struct broker *b);

/* watch.c */
void read_run(struct broker *b, struct call *c); /* answered, or WAITING */
void read_run_late(struct broker *b, struct call *c);
void watch_leave(struct broker *b, struct call *c);               /* waits no longer */
void watch_appended(struct broker *b, uint32_t partition_number); /* the engine's sink */
void watch_applied(struct broker *b);
void watch_turn(struct broker *b); /* runs the reads whose lanes got something */
void watch_free(struct broker *b);

/* ticker.c */
void ticker_turn(struct broker *b);
void ticker_flight_gone(struct broker *b); /* an entry with a tick applied, or will not */
void ticker_fire(struct loop_timer *t);

/* expire.c */
bool expire_step(struct broker *b); /* a bounded number; true: more may go at once */

/* keeper.c */
bool keeper_turn(struct broker *b);                /* true when housekeeping has more to do */
bool keeper_bulk_due(const struct broker *b);      /* a piece of bulk work may go into an entry */
uint32_t keeper_bulk_most(const struct broker *b); /* what it may look at at most */
bool keeper_has_room(const struct broker *b);      /* the store keeps up: work that changes many rows may go on */
void keeper_fire(struct loop_timer *t);
bool keeper_is_full(const struct broker *b); /* the store has enough to do: nothing that grows it is taken */
bool keeper_cut(struct broker *b);     /* all that is applied goes to the store; false: it has enough to write, try again */
bool keeper_settled(struct broker *b); /* stopping: everything applied is durable */

/* retention.c */
void retention_applied(struct broker *b); /* an entry was applied */
void retention_fire(struct loop_timer *t);

/* pop_lag.c */
void pop_lag_count(struct broker *b, const struct call *c); /* its batch is delivered */
void pop_lag_free(struct broker *b);

/* admission.c */
bool admission_write_refused(struct broker *b, struct call *c); /* answered already when true */
uint32_t admission_retry_after(struct broker *b);
bool room_take(struct broker *b, struct call *c); /* for a pop's batch; false: it waits and goes on in pop_load */
bool room_is_full(const struct broker *b);        /* reads are refused */
void room_hold(struct call *c, uint64_t bytes);   /* as broker_answer_held, on the group's thread before done */
void room_fire(struct loop_timer *t);
uint32_t parked_max(const struct broker *b); /* callers that wait, polls and reads together */

/* disk_guard.c */
bool disk_guard_refuses(struct broker *b, const struct call *c);
void disk_guard_look(struct broker *b);
void disk_guard_bytes(struct broker *b, size_t bytes); /* so many came from the leader */
void disk_guard_fire(struct loop_timer *t);

#define owner_of(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

#endif
