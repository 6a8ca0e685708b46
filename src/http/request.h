/* One HTTP request on its way through the edge.
 *
 *   HEAD      request line seen; the head may still be incomplete
 *   BODY      head checked, admitted; the body is being collected
 *   RUNNING   handed to its route, which gave it to the broker; the daemon asks for the answer each time it runs
 *   PARKED    the same, but for longer than EDGE_RUN_US: suspended in the daemon. A waiting pop's socket is watched
 *   ANSWERED  the answer is complete; the daemon takes it when it runs next
 *   SENDING   handed to the daemon
 *   GONE      the client left while PARKED; the connection closes when the daemon runs next
 *
 * A request whose connection is closed while the broker still has its call is detached: it lives until the call is done.
 * Everything happens on the edge's thread. Memory: the arena and the buffers live until the answer was sent. */
#ifndef QUEEN_HTTP_REQUEST_H
#define QUEEN_HTTP_REQUEST_H

#include "http/http.h"

struct connection;
struct route;

enum request_state {
    REQUEST_HEAD,
    REQUEST_BODY,
    REQUEST_RUNNING,
    REQUEST_PARKED,
    REQUEST_ANSWERED,
    REQUEST_SENDING,
    REQUEST_GONE,
};

enum { REQUEST_PARAMS_MAX = 3, REQUEST_QUERY_MAX = 24 };

struct query_pair {
    struct slice name, value; /* decoded */
};

struct request {
    /* Kept when a request is reused: buffers, and what its counts make meaningless. */
    struct query_pair query[REQUEST_QUERY_MAX];
    struct buf target_bytes;
    struct buf body; /* followed by JSON_PAD zero bytes */
    struct buf out;  /* the answer */
    struct buf command;

#define REQUEST_CLEARED_FROM edge /* from here on all is zero at the start, but for the memory of call.arena */
    struct edge *edge;
    struct http *http;
    struct connection *connection; /* NULL: detached */
    struct request *next;          /* of the edge's reserve */
    enum request_state state;
    bool call_pending;
    bool elsewhere; /* it is not a call that is pending: request_wait */
    bool close;     /* the connection ends with this answer */
    bool
        handing_back; /* the client left before its batch came: the call is now the return of the claims, which nobody cancels */
    bool chunked;
    int64_t started_us; /* request line seen */
    int64_t run_us;     /* handed to the route */

    /* what was asked */
    const struct route *route; /* NULL: none of ours */
    struct uuid tenant;
    uint32_t group;          /* the tenant's */
    struct broker *broker;   /* that group's; a route that asks several groups sets it to each of them. NULL: starting */
    struct broker *admitter; /* gets `admitted` back */
    struct slice target;     /* raw, in target_bytes */
    uintptr_t target_place;  /* where the daemon has it: for the check of the head's layout */
    struct slice params[REQUEST_PARAMS_MAX]; /* of the path, decoded */
    uint32_t query_count;
    uint64_t body_wanted; /* Content-Length; UINT64_MAX for a chunked body */
    size_t admitted;
    bool weighed;         /* what the body has become is admitted too */
    uint64_t body_marked; /* body bytes when progress was last noted */

    /* the answer */
    uint32_t status; /* 0 = none yet */
    uint32_t retry_after_s;
    const char *content_type; /* NULL: application/json */
    const char *allow;
    const char *etag;
    const char *timers_hint; /* x-queen-timers-hint */

    /* the call */
    struct call call;                 /* call.arena is the request's arena */
    void (*after)(struct request *r); /* renders the answer from the finished call */
    void *route_data;                 /* in the arena */
    struct loop_task wake;
};

static inline struct arena *request_arena(struct request *r)
{
    return &r->call.arena;
}

/* Of the ids of the group's messages. */
static inline uint64_t request_seed(const struct request *r)
{
    return atomic_load_explicit(&r->http->id_seeds[r->group], memory_order_relaxed);
}

static inline struct slice request_body(const struct request *r)
{
    return buf_view(&r->body);
}

/* Gives the call to the broker. The route has filled in kind and what belongs to it; `after` runs when it is done, unless the
 * client is gone, and must make an answer or submit the call again. deadline_ms is clamped to 1..DEADLINE_MS_MAX. */
void request_submit(struct request *r, uint32_t deadline_ms, void (*after)(struct request *r));
/* From `after`: the next piece of a work that may take long. Its time begins anew. */
void request_submit_next(struct request *r, uint32_t deadline_ms, void (*after)(struct request *r));

/* Waits for something else than a call: `after` runs when request_wake was called, on the edge's loop. Whoever will wake it must do so
 * within a bounded time, also when the client is gone. request_wake: any thread, once. */
void request_wait(struct request *r, void (*after)(struct request *r));
void request_wake(struct request *r);

#endif
