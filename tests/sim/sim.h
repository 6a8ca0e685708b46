/* The simulator: a whole cluster in one process and one thread, under a virtual clock.
 *
 *   product, as it is      engine, replica (with libraft), broker
 *   simulated here         loop, clocks, randomness, log, store, net, files, system calls on files, the end of a process
 *
 *   sim_core.c    events in order of virtual time, nodes' lives, random streams, the trace
 *   sim_base.c    loop.h, clock.h, logger.h, memory.h, random bytes, must
 *   sim_files.c   a file system per node with what is durable and what is not; the system calls on it; files.h
 *   sim_log.c     log.h         sim_store.c   store.h         sim_net.c   net.h
 *   sim_cold.c, sim_reclaim.c   the broker's threads that read the log and copy to the archive: events instead
 *   sim_node.c    a node: boot, graceful stop, kill, power loss
 *   work_*.c      clients and what they remember          check_*.c   what must hold
 *   faults.c      the schedule of faults: made from the seed, printed, read, carried out
 *   main.c        seeds, children, shrinking
 *
 * Everything that happens is an event at a virtual time; equal times are ordered by number. All randomness comes from streams seeded
 * from the run's seed, one per purpose, so that leaving out a fault leaves the other streams alone. A run is a function of
 * (seed, schedule): its trace is hashed, and the same run gives the same hash.
 *
 * A node's code runs inside an event of the node, under a guard: when it ends its process (or is killed in the middle of a disk
 * operation) control comes back to the event loop, and whatever belonged to the process is dropped. Its memory is not given back: a
 * run is a process of its own. */
#ifndef QUEEN_TESTS_SIM_H
#define QUEEN_TESTS_SIM_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/heap.h"
#include "base/loop.h"
#include "base/must.h"
#include "base/slice.h"
#include "base/uuid.h"

enum { SIM_NODES_MAX = 8 };
#define SIM_WALL_BASE_US INT64_C(1900000000000000) /* wall clock at virtual time 0 */
#define SIM_MINUTE_US INT64_C(60000000)

#define outer(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

/* ---- random streams */

struct rng {
    uint64_t state;
};
uint64_t rng_u64(struct rng *r);
uint64_t rng_below(struct rng *r, uint64_t n);              /* 0 .. n-1; 0 for n == 0 */
int64_t rng_span(struct rng *r, int64_t low, int64_t high); /* low .. high */
bool rng_chance(struct rng *r, uint32_t in_thousand);
struct rng rng_for(uint64_t seed, const char *purpose, uint64_t number);

/* ---- events */

struct sim_node;

/* Runs once at its time. Belongs to the caller; start zeroed. `node` may be NULL; an event of a node is dropped when that life of the
 * node has ended (`life`), unless `survives`. */
struct sim_event {
    struct heap_node at;
    void (*run)(struct sim_event *e);
    struct sim_node *node;
    uint64_t life;
    bool survives;
};
void sim_at(struct sim_event *e, struct sim_node *node, int64_t at_us); /* sets or moves */
void sim_cancel(struct sim_event *e);

/* ---- nodes */

enum sim_end { SIM_END_KILL, SIM_END_POWER, SIM_END_EXIT };

struct vfile;
struct broker;
struct replica;
struct net;

struct sim_disk {
    struct vfile *root;      /* the directory / of the node */
    uint64_t capacity, used; /* bytes */
    uint64_t ballast;        /* of others: a full disk */
    int64_t sync_us;         /* typical time of a sync */
    int64_t slow_until_us;   /* virtual time */
    uint32_t slow_factor;
    uint32_t fail_syncs; /* so many coming syncs fail */
    bool had_failure;    /* an I/O failure was injected in this life: exit code 3 is right */
};

struct sim_node {
    uint32_t id; /* 1.. */
    bool up, stopping, paused, wiped, refused, removed, damaged, joins, waits_for_swap;
    uint64_t life; /* grows with every end */
    uint64_t boots;
    struct sim_disk disk;
    struct rng rng, random; /* timing; what random_bytes gives */
    /* clocks: mono = mono_base + (now - true_base) * (1 + drift); wall = SIM_WALL_BASE_US + wall_offset + (now - ...) likewise */
    int64_t true_base_us, mono_base_us, wall_base_us;
    int32_t drift_ppm;
    uint64_t boot_id;
    struct loop *loop;
    struct broker *broker;
    struct net *net;
    int64_t paused_until_us;
    int64_t up_since_us;
    uint32_t io_points_left; /* 0: none; else dies at that many I/O operations from now */
    enum sim_end io_point_end;
    int64_t io_point_down_us;
    struct sim_event boot_event, resume_event, stop_event;
    bool again; /* this stop is to swap a fetched state in */
    bool booting;
    void *host; /* sim_node.c */
};

struct sim {
    uint64_t seed;
    int64_t now_us, ahead_us; /* ahead: virtual time the running node has spent in blocking calls */
    struct sim_node *node;    /* whose code runs, or NULL */
    struct heap events;
    uint64_t event_count, tie;
    uint64_t trace;
    uint32_t node_count; /* that exist, ids 1..node_count */
    struct sim_node nodes[SIM_NODES_MAX + 1];
    sigjmp_buf death;
    bool guarded;
    int64_t end_us;
    bool over;
    bool calm; /* the final phase: no faults any more */
    FILE *log; /* narrative, or NULL */
    int log_level;
    char failure[1024];
    void (*on_fail)(void);
};
extern struct sim sim;

void sim_start(uint64_t seed);
void sim_run_until(int64_t end_us); /* returns when virtual time is there, nothing is left to happen, or sim.over */
void sim_trace(uint64_t value);     /* mixes into the trace hash */
void sim_trace_bytes(struct slice s);
__attribute__((format(printf, 1, 2))) void sim_say(const char *format, ...);
/* A violation: remembered (the first one), the run ends. */
__attribute__((noreturn, format(printf, 1, 2))) void sim_fail(const char *format, ...);

/* Runs `f` as the node's own code under the guard. False when the node's process ended in it. */
bool sim_as_node(struct sim_node *n, void (*f)(void *ctx), void *ctx);
/* Ends the process of the running node; does not return. */
__attribute__((noreturn)) void sim_process_end(enum sim_end how, int code);
/* Called at every disk operation of node code: the place where a fault may end the process. */
void sim_io_point(void);
void sim_block(int64_t us); /* the running node's thread waits so long */

/* Ends a node from outside (kill, power loss). */
void sim_node_end(struct sim_node *n, enum sim_end how, int code);

int64_t sim_mono_of(const struct sim_node *n, int64_t true_us);
int64_t sim_true_of(const struct sim_node *n, int64_t mono_us); /* the first true time at which its clock shows it */
int64_t sim_wall_of(const struct sim_node *n, int64_t true_us);
void sim_clock_step(struct sim_node *n, int64_t by_us);
void sim_clock_drift(struct sim_node *n, int32_t ppm);
void sim_clock_boot(struct sim_node *n, bool reboot);
int64_t sim_disk_us(struct sim_node *n); /* how long a sync begun now takes */

/* sim_base.c */
void sim_turn_done(struct sim_node *n); /* sim_node.c: called after each turn of one of its loops */
void sim_loops_drop(struct sim_node *n);
void sim_loop_kick(struct loop *l); /* look again at when its next turn is due */
/* Work for a loop's next turn from outside of node code, in order. `run` frees itself. */
struct sim_work {
    struct sim_work *next;
    void (*run)(struct sim_work *w);
};
void sim_loop_give(struct loop *l, struct sim_work *w);

/* sim_files.c */
void sim_disk_init(struct sim_node *n);
void sim_disk_wipe(struct sim_node *n);
void sim_disk_power_loss(struct sim_node *n);
void sim_files_forget(struct sim_node *n); /* open descriptors of a process that ended */
struct vfile *vfile_find(struct sim_node *n, const char *path);
struct vfile *vfile_make(struct sim_node *n, const char *path, bool dir); /* makes parents too, all durable */
void vfile_remove(struct sim_node *n, const char *path, bool durable);
bool vfile_append(struct sim_node *n, struct vfile *f, struct slice bytes);  /* not durable; false: no room */
void vfile_cut(struct sim_node *n, struct vfile *f, uint64_t bytes);         /* durable at once */
void vfile_replace(struct sim_node *n, struct vfile *f, struct slice bytes); /* durable at once */
void vfile_sync(struct vfile *f);
void vfile_tear(struct sim_node *n, struct vfile *f); /* a random part of what is not durable goes (a killed writer) */
struct slice vfile_bytes(const struct vfile *f);
char *vfile_at(struct vfile *f);
/* Names in a directory, in byte order. */
uint32_t vfile_count(const struct vfile *dir);
const char *vfile_name(const struct vfile *dir, uint32_t i);
struct vfile *vfile_child(const struct vfile *dir, uint32_t i);
void vfile_dir_sync(struct vfile *dir);

/* sim_log.c */
void sim_log_end(struct sim_node *n, enum sim_end how);
/* Is entry `index` with this body durable in the node's log, whether the node is up or not? */
bool sim_log_durable(const struct sim_node *n, uint64_t index, struct slice body);
void sim_log_wiped(struct sim_node *n);
void sim_log_block(struct sim_node *n); /* its thread waits: the disk goes on */
struct log;
void sim_log_await(struct log *l); /* until all that was handed over is durable */
/* Flips a bit of a stopped node's log that must be missed when it starts. */
struct sim_flip {
    char path[128];
    uint64_t begin, offset; /* of the record, of the byte */
    uint8_t bit;
};
bool sim_log_flip(struct sim_node *n, struct rng *r, struct sim_flip *out);
/* Flips it back. False: the file is another one by now, or gone. */
bool sim_log_mend(struct sim_node *n, const struct sim_flip *f);

/* sim_store.c */
void sim_store_end(struct sim_node *n, enum sim_end how);
uint64_t sim_store_durable_index(const struct sim_node *n);
void sim_store_wiped(struct sim_node *n);

/* sim_net.c */
void sim_net_init(void);
void sim_net_end(struct sim_node *n, enum sim_end how);
void sim_net_cut(uint32_t from, uint32_t to, bool cut);
void sim_net_break(uint32_t from, uint32_t to);
void sim_net_slow(uint32_t from, uint32_t to, int64_t delay_us);
void sim_net_paused(struct sim_node *n, bool paused);
void sim_net_heal(void);

/* sim_node.c */
void sim_cluster_start(uint32_t nodes, bool alone);
void sim_node_boot(struct sim_node *n); /* now */
void sim_node_boot_at(struct sim_node *n, int64_t at_us);
void sim_node_stop(struct sim_node *n, int64_t down_us); /* graceful; starts again after it */
void sim_node_ended(struct sim_node *n, enum sim_end how, int code);
void sim_cluster_heal(void);
struct node *sim_node_host(struct sim_node *n); /* NULL: not open */
struct sim_node *sim_leader(void);              /* a node that leads, or NULL */

#endif
