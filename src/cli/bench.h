/* `queen bench`: the load generator. One file a workload; this header is what they share.
 *
 * A workload fills a report and returns an exit code: 0 measured, 4 the server refused or answered wrongly, 5 it could not
 * be reached. Everything runs on the main thread but the load threads of bench_load.h. */
#ifndef QUEEN_CLI_BENCH_H
#define QUEEN_CLI_BENCH_H

#include "cli/bench_load.h"
#include "cli/bench_proc.h"
#include "cli/bench_report.h"
#include "cli/client.h"

enum {
    BENCH_OK = 0,
    BENCH_USAGE = 1,
    BENCH_REFUSED = 4,
    BENCH_UNREACHABLE = 5,

    BENCH_BATCH_MAX = 10000,
    BENCH_KV_OPS_MAX = 256, /* of one call */
    BENCH_LANES_MAX = 100000000,
    BENCH_SIZE_MAX = 1048576,
    BENCH_SIZE_MIN = 40,
    BENCH_ID_BYTES = 36,
    BENCH_CHECK_EVERY = 64, /* one answer in so many is read in full */
};

struct bench_options {
    const char *host;
    uint16_t port;
    int pid;           /* 0: found by the port */
    const char *queue; /* NULL: a new name each run, deleted afterwards */
    const char *group;
    uint32_t conns, consumers, pushers, threads;
    uint32_t lanes, batch, size, partitions;
    uint32_t keys, ttl_s; /* ttl_s 0: for ever */
    uint64_t count;
    double duration_s, warmup_s, rate;
    bool dedup, spread, json, pop, ack, next, get;
    const char *script;
    const char *binary;
    const char *data;
};

struct bench {
    struct bench_options options;
    struct client client; /* for the few calls around the load */
    pid_t pid;
    char queue[128];
    int call_ms; /* how long a call may take; 0: a minute */
    char run_id[24]; /* 23 characters: the beginning of every transactionId of this run */
    struct report report;
    struct proc_sample from, to; /* of the measured time */
    /* Called when the measured time is over, before the load is stopped: lets work under way end. May be NULL. */
    void (*settle)(struct load *l, void *arg);
    void *settle_arg;
};

/* ---- around the load (bench.c) ---- */

/* Fills in client, pid, queue and run id. */
int bench_open(struct bench *b);

/* One call; what is not `status` is said on stderr. `body` may be NULL. */
int bench_call(struct bench *b, const char *method, const char *path, const char *body, unsigned status);

/* Makes the queue: dedup on or off, leases of 300 s. */
int bench_queue_create(struct bench *b);
void bench_queue_delete(struct bench *b);

/* Aims a load at the server of the options. */
void bench_aim(const struct bench *b, struct load *l);

/* Starts the load, lets it warm up, measures until the duration is over or `finished` (may be NULL) says so, stops it.
 * Adds rates, counts and cost to the report under the usual names. */
int bench_run(struct bench *b, struct load *l, bool (*finished)(void *arg), void *arg);

/* ---- prepared pushes (bench_items.c) ---- */

/* A push request whose ids, lanes and time stamps are patched in place: nothing is formatted while the load runs. */
struct push_request {
    char *text;
    size_t len;
    uint32_t batch;
    uint32_t body_at;
    uint32_t head_len; /* up to the first item */
    uint32_t item_len; /* distance between items; each has its id, lane and stamp at the same place */
    uint32_t lane_at, id_at, stamp_at;
    uint32_t conn;    /* part of every id */
    uint32_t counter; /* of ids */
};

enum {
    PUSH_LANE_DIGITS = 8,
    PUSH_STAMP_DIGITS = 19,
};

void push_request_make(struct push_request *p, const struct bench *b, uint32_t conn, uint32_t batch);
void push_request_free(struct push_request *p);
void push_request_lane(struct push_request *p, uint32_t item, uint32_t lane);
void push_request_id(struct push_request *p, uint32_t item, uint32_t counter);
void push_request_stamp(struct push_request *p, uint32_t item, int64_t ns);

/* The body alone, without the headers. */
struct slice push_request_body(const struct push_request *p);

/* New ids for all items. */
void push_request_renew(struct push_request *p);

/* How often `text` occurs. */
uint32_t text_count(const char *at, size_t len, const char *text);

/* ---- popped messages (bench_items.c) ---- */

/* Writes an ack of everything in a pop's answer into `out` (a whole request). Returns the number of messages, 0 when the
 * answer is not understood. one_lane: all messages are of the first one's partition. */
uint32_t ack_request_make(struct buf *out, const struct bench *b, const char *body, size_t len, bool one_lane);

/* The first string value of a key ("\"key\":\"" without blanks, as the broker writes it); at == NULL: not there. */
struct slice text_value(const char *at, size_t len, const char *key);

/* The next `key` behind the one at `at`, NULL: none. First where the distance `stride` of the last two (0: unknown) would put
 * it, as messages of one batch are nearly always equally long, else by search. */
const char *text_next(const char *at, const char *end, size_t stride, const char *key, size_t key_len);

/* ---- shared push work (bench_push.c) ---- */

struct push_shared {
    struct bench *bench;
    uint32_t conns;          /* of the group: lanes are shared out so that no two connections meet in one */
    _Atomic int64_t left;    /* messages to send; INT64_MAX: no end */
    _Atomic uint64_t stored; /* messages answered as queued */
    enum push_counting { PUSH_COUNTED, PUSH_UNCOUNTED, PUSH_SECOND } counting; /* SECOND: only its latency, as `second` */
    bool stamped;                                                              /* payloads say when their push was due */
};

extern const struct load_work push_work;

/* Pushes `count` messages as fast as it goes, unmeasured. */
int bench_fill(struct bench *b, uint64_t count, uint32_t batch);

/* ---- shared pop and ack work (bench_popack.c) ---- */

struct drain_shared {
    struct bench *bench;
    char pop[512]; /* the request */
    size_t pop_len;
    bool one_lane; /* a pop claims one lane */
    bool ack;      /* else popped counts as done */
    _Atomic uint64_t done;
    uint64_t enough; /* so many done messages end the measurement */
};

extern const struct load_work drain_work;

/* query: "batch=..&..", without group and mode. */
void drain_shared_make(struct drain_shared *s, struct bench *b, const char *query);

/* Waits until *value reaches `want`, the load fails, or nothing has moved for 30 s. True: reached. */
bool bench_await(struct load *l, const _Atomic uint64_t *value, uint64_t want);

void bench_sleep(double s);

/* ---- many lanes (bench_lanes.c) ---- */

/* One message into each lane; all of them popped and acked by the group. */
int bench_lanes_fill(struct bench *b);
int bench_lanes_drain(struct bench *b);

/* ---- workloads ---- */

int bench_push(struct bench *b);
int bench_popack(struct bench *b);
int bench_deliver(struct bench *b);
int bench_jobs(struct bench *b);
int bench_idle(struct bench *b);
int bench_lanes(struct bench *b);
int bench_replay(struct bench *b);
int bench_bulk(struct bench *b);
int bench_polls(struct bench *b);
int bench_redis(struct bench *b);
int bench_step(struct bench *b);
int bench_kv(struct bench *b);
int bench_redis_step(struct bench *b);

#endif
