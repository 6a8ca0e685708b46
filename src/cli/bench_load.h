/* The load core: many raw keep-alive sockets driven by one epoll loop a thread.
 *
 *   begin() fills the connection's `out` -> sent -> answer framed -> reply() says what comes next
 *
 *   idle --begin--> busy --reply: LOAD_DONE--> idle (an offered rate) or begin again (closed loop)
 *                    ^ \--reply: LOAD_AGAIN--> busy (the next request of the same operation is in `out`)
 *                    |  \-reply: LOAD_PAUSE--> paused until wake_ns, then `out` is sent
 *                    \--- a broken connection is counted, opened again after 100 ms and begins anew
 *
 * Latency is correct under an offered rate: operation k is due at start + k / rate whether or not a connection is free, and
 * start_ns is that moment, so the time it had to wait for a free connection counts (no coordinated omission).
 *
 * A group is a set of connections that do the same work. Connections and their state belong to one thread, so work
 * functions need no lock; what they share between threads is atomic and theirs to define. */
#ifndef QUEEN_CLI_BENCH_LOAD_H
#define QUEEN_CLI_BENCH_LOAD_H

#include <netinet/in.h>
#include <stdatomic.h>

#include "base/heap.h"
#include "base/slice.h"
#include "cli/bench_hist.h"
#include "cli/client_reply.h"

enum {
    LOAD_GROUPS_MAX = 4,
    LOAD_THREADS_MAX = 16,
    LOAD_CONNS_MAX = 60000,
    LOAD_BREAKS_MAX = 1000, /* more broken connections than this end the run */
};

enum load_verdict { LOAD_DONE, LOAD_AGAIN, LOAD_PAUSE };

enum load_state { LOAD_IDLE, LOAD_BUSY, LOAD_PAUSED, LOAD_DOWN };

struct load_thread;
struct load_group;

struct load_conn {
    int fd;
    enum load_state state;
    uint32_t index; /* in the group, over all threads */
    struct load_thread *thread;
    struct load_group *group;
    const char *out; /* the request: owned by the work */
    size_t out_len, out_sent;
    char *in;
    size_t in_len, in_cap;
    struct client_reply reply;
    uint32_t replies_due; /* RESP: answers still missing */
    int64_t start_ns;     /* when the operation was due */
    int64_t sent_ns;      /* when its latest request was handed to the kernel */
    int64_t wake_ns;      /* LOAD_PAUSE: set by reply() */
    struct heap_node pause;
    struct load_conn *next_idle;
    void *work; /* the work's own state of this connection */
};

/* One answer. RESP: status is 200, or 500 when any reply was an error; body is all replies as they came. */
struct load_answer {
    unsigned status;
    unsigned retry_after_s;
    char *body;
    size_t body_len;
};

struct load_work {
    bool resp; /* replies are Redis's protocol, replies_due of them; else HTTP */
    /* Sets up c->work. Called once a connection, before the threads start. */
    void (*open)(struct load_conn *c);
    /* Fills c->out. False: nothing to do any more, the connection stays idle. */
    bool (*begin)(struct load_conn *c);
    enum load_verdict (*reply)(struct load_conn *c, const struct load_answer *a, int64_t now_ns);
    void (*close)(struct load_conn *c);
};

struct load_group {
    const struct load_work *work;
    void *shared; /* the workload's own */
    uint32_t conns;
    double rate; /* operations a second over all threads; 0: closed loop */
    struct load_conn *conn;
};

/* What a thread counted inside the measured window. */
struct load_counts {
    uint64_t requests;
    uint64_t operations;
    uint64_t messages;
    uint64_t refused; /* 429, 503, 507 */
    uint64_t errors;  /* other statuses, and answers that are not as they must be */
    uint64_t broken;  /* connections lost, whenever */
    uint64_t checked; /* answers read in full */
    struct hist latency;
    struct hist second; /* of a part of the operation, as the workload says */
};

struct load {
    struct sockaddr_in to;
    const char *host_text;
    uint32_t threads;
    struct load_group groups[LOAD_GROUPS_MAX];
    uint32_t group_count;
    struct load_thread *thread; /* [threads] */
    _Atomic int64_t window_from_ns, window_to_ns;
    _Atomic bool stop;
    _Atomic bool failed; /* the server went away */
    _Atomic uint32_t complaints;
    struct load_counts total; /* after load_stop */
};

int64_t load_now_ns(void);

/* Adds a group; its connections are opened by load_start. */
struct load_group *load_add(struct load *l, const struct load_work *work, void *shared, uint32_t conns, double rate);

/* Opens all connections and starts the threads. False: the server could not be reached; the reason is on stderr. */
bool load_start(struct load *l);

/* Ends the threads, closes the connections, adds up the counts. */
void load_stop(struct load *l);

/* True when an event of this moment is to be counted. */
static inline bool load_measures(const struct load_conn *c, int64_t now_ns);

/* For work functions: this thread's counts. */
static inline struct load_counts *load_counts(struct load_conn *c);

/* Counts an answer that is not `status`, complains about the first few on stderr, and says what to do: a pause for a
 * refusal (as long as it asks, at most 1 s), else the end of the operation. True: the answer is as wanted. */
bool load_expect(struct load_conn *c, const struct load_answer *a, unsigned status, int64_t now_ns, enum load_verdict *verdict);

/* Says on stderr what is wrong with an answer (the first few only) and counts an error. */
void load_complain(struct load_conn *c, const char *what, const struct load_answer *a);

/* ---- inside ---- */

struct load_thread {
    struct load *load;
    uint32_t number;
    int epoll;
    unsigned long handle;
    struct heap paused;
    struct {
        struct load_conn *idle;
        double interval_ns;
        double due_ns;
    } group[LOAD_GROUPS_MAX];
    struct load_counts counts;
};

static inline bool load_measures(const struct load_conn *c, int64_t now_ns)
{
    const struct load *l = c->thread->load;
    return now_ns >= atomic_load_explicit(&l->window_from_ns, memory_order_relaxed) &&
           now_ns < atomic_load_explicit(&l->window_to_ns, memory_order_relaxed);
}

static inline struct load_counts *load_counts(struct load_conn *c)
{
    return &c->thread->counts;
}

#endif
