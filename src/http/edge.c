/* Life of an edge, and its turn:
 *
 *   events   a daemon's epoll descriptor is ready -> the daemon is dirty; a watched socket was closed -> its call is given up
 *   tasks    calls are done -> answers rendered -> their daemons are dirty; sockets arrive -> added to a daemon
 *   hook     dirty daemons run: read, hand over, send. A run that made work for another one is repeated at once, a few times
 *
 * What can go wrong: a daemon cannot be started or a connection not added (out of memory or descriptors): the socket is closed,
 * one log line per 5 s. Everything else is the client's fault and ends its connection. */
#include "http/edge_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/logger.h"
#include "http/route.h"

enum { RUNS_A_TURN = 4, FRUITLESS_MAX = 256, SWEEP_US = 1000000, STUCK_US = 2000000 };

/* ---- lists -------------------------------------------------------------------------------------------------------- */

static void list_remove(struct connection *c)
{
    struct connection_queue *q = &c->edge->lists[c->list];
    if (c->previous != NULL)
        c->previous->next = c->next;
    else
        q->first = c->next;
    if (c->next != NULL)
        c->next->previous = c->previous;
    else
        q->last = c->previous;
    if (c->list == LIST_RUNNING) c->daemon->running--;
    c->previous = c->next = NULL;
}

static void list_append(struct connection *c, enum connection_list list)
{
    struct connection_queue *q = &c->edge->lists[list];
    c->list = (uint8_t)list;
    c->since_us = loop_now_us(c->edge->loop);
    c->previous = q->last;
    c->next = NULL;
    if (q->last != NULL)
        q->last->next = c;
    else
        q->first = c;
    q->last = c;
    if (list == LIST_RUNNING) c->daemon->running++;
}

void edge_list_move(struct connection *c, enum connection_list list)
{
    list_remove(c);
    list_append(c, list);
}

void edge_cut(struct connection *c)
{
    shutdown(c->fd, SHUT_RDWR);
    if (c->list != LIST_RUNNING && c->list != LIST_PARKED) edge_list_move(c, LIST_CUT);
    edge_dirty(c->daemon);
}

/* ---- daemons ------------------------------------------------------------------------------------------------------ */

void edge_dirty(struct edge_daemon *d)
{
    if (d->dirty) return;
    d->dirty = true;
    d->fruitless = 0;
    d->next_dirty = d->edge->dirty;
    d->edge->dirty = d;
}

static void daemon_ready(struct loop_fd *ready, uint32_t events)
{
    (void)events;
    edge_dirty((struct edge_daemon *)(void *)((char *)ready - offsetof(struct edge_daemon, ready)));
}

/* Does the daemon want to run again at once? While answers are waited for it always says so: then only our own mark counts. */
static bool daemon_wants_more(struct edge_daemon *d)
{
    if (d->again) {
        d->fruitless = 0;
        return true;
    }
    MHD_UNSIGNED_LONG_LONG ms;
    if (d->running > 0 || MHD_get_timeout(d->mhd, &ms) == MHD_NO || ms != 0) return false;
    return ++d->fruitless < FRUITLESS_MAX;
}

static bool daemons_run(struct loop_hook *hook)
{
    struct edge *e = (struct edge *)(void *)((char *)hook - offsetof(struct edge, hook));
    struct edge_daemon *list = e->dirty;
    e->dirty = NULL;
    while (list != NULL) {
        struct edge_daemon *d = list;
        list = d->next_dirty;
        bool more = true;
        for (int i = 0; i < RUNS_A_TURN && more; i++) {
            d->again = false;
            d->runs++;
            MHD_run(d->mhd);
            more = daemon_wants_more(d);
        }
        d->dirty = false;
        if (!more) continue;
        uint32_t fruitless = d->fruitless;
        edge_dirty(d);
        d->fruitless = fruitless;
    }
    return e->dirty != NULL;
}

/* Answers that the broker's hooks brought home after our own hook ran: the loop goes round again without sleeping. */
static bool answers_wait(struct loop_hook *hook)
{
    struct edge *e = (struct edge *)(void *)((char *)hook - offsetof(struct edge, late_hook));
    return e->dirty != NULL;
}

void edge_behind_broker(struct edge *e)
{
    e->late_hook.run = answers_wait;
    loop_hook_add(e->loop, &e->late_hook);
}

static struct edge_daemon *daemon_start(struct edge *e)
{
    struct edge_daemon *d = calloc(1, sizeof *d);
    must(d != NULL);
    d->edge = e;
    d->mhd = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_NO_LISTEN_SOCKET | MHD_USE_TURBO | MHD_USE_ERROR_LOG, 0, NULL, NULL,
        connection_on_request, d, MHD_OPTION_EXTERNAL_LOGGER, connection_on_log, d, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)EDGE_CONNECTION_MEMORY, MHD_OPTION_CONNECTION_LIMIT, (unsigned)EDGE_DAEMON_CONNECTIONS,
        MHD_OPTION_CONNECTION_TIMEOUT, 0u, MHD_OPTION_URI_LOG_CALLBACK, connection_on_target, d, MHD_OPTION_UNESCAPE_CALLBACK,
        connection_on_unescape, NULL, MHD_OPTION_NOTIFY_COMPLETED, connection_on_completed, d,
#if MHD_VERSION >= 0x00097701
        MHD_OPTION_CLIENT_DISCIPLINE_LVL, 1,
#endif
        MHD_OPTION_NOTIFY_CONNECTION, connection_on_notify, d, MHD_OPTION_END);
    if (d->mhd == NULL) goto fail;
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(d->mhd, MHD_DAEMON_INFO_EPOLL_FD);
    must(info != NULL);
    d->ready = (struct loop_fd){.fd = info->epoll_fd, .ready = daemon_ready};
    if (!loop_fd_add(e->loop, &d->ready, 1 /* EPOLLIN */)) goto fail;
    return d;
fail:
    if (d->mhd != NULL) MHD_stop_daemon(d->mhd);
    free(d);
    return NULL;
}

/* The first daemon with room; a new one when all are full. */
static struct edge_daemon *daemon_with_room(struct edge *e)
{
    for (; e->daemon_room < e->daemon_count; e->daemon_room++) {
        if (e->daemons[e->daemon_room]->connections < EDGE_DAEMON_CONNECTIONS) return e->daemons[e->daemon_room];
    }
    struct edge_daemon *d = daemon_start(e);
    if (d == NULL) return NULL;
    struct edge_daemon **grown = realloc(e->daemons, (e->daemon_count + 1) * sizeof *grown);
    must(grown != NULL);
    e->daemons = grown;
    e->daemons[e->daemon_count++] = d;
    return d;
}

/* ---- connections -------------------------------------------------------------------------------------------------- */

static void sweep_arm(struct edge *e)
{
    if (e->sweep_set) return;
    e->sweep_set = true;
    loop_timer_set(e->loop, &e->sweep, loop_now_us(e->loop) + SWEEP_US);
}

void connection_on_notify(void *cls, struct MHD_Connection *mhd, void **context, enum MHD_ConnectionNotificationCode code)
{
    struct edge_daemon *d = cls;
    struct edge *e = d->edge;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        struct connection *c = calloc(1, sizeof *c);
        must(c != NULL);
        c->edge = e;
        c->daemon = d;
        c->mhd = mhd;
        c->fd = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        list_append(c, LIST_IDLE);
        d->connections++;
        atomic_fetch_add_explicit(&e->connections, 1, memory_order_relaxed);
        sweep_arm(e);
        *context = c;
        return;
    }
    struct connection *c = *context;
    *context = NULL;
    must(c != NULL && c->request == NULL && !c->watched);
    connection_on_closed(c);
    list_remove(c);
    must(d->connections > 0);
    d->connections--;
    for (uint32_t i = 0; i < e->daemon_room; i++) {
        if (e->daemons[i] == d) e->daemon_room = i;
    }
    free(c);
    atomic_fetch_sub_explicit(&e->connections, 1, memory_order_relaxed);
    if (e->closed != NULL) e->closed(e->closed_ctx);
}

static void socket_take(struct loop_task *task)
{
    struct edge_socket *s = (struct edge_socket *)(void *)task;
    struct edge *e = s->edge;
    struct edge_daemon *d = e->stopping ? NULL : daemon_with_room(e);
    bool added = false;
    if (d == NULL) {
        close(s->fd);
    } else {
        added = MHD_add_connection(d->mhd, s->fd, (const struct sockaddr *)&s->address, s->address_len) == MHD_YES;
        edge_dirty(d);
    }
    free(s);
    if (added) {
        counter_add(&e->metrics.accepted, 1);
        return;
    }
    if (!e->stopping && logger_every(&e->logged_us, 5000000)) log_warn("a connection could not be taken: %s", strerror(errno));
    if (e->closed != NULL) e->closed(e->closed_ctx);
}

void edge_give(struct edge *e, struct edge_socket *s)
{
    s->edge = e;
    s->task.run = socket_take;
    if (loop_is_mine(e->loop))
        socket_take(&s->task);
    else
        loop_post(e->loop, &s->task);
}

/* ---- time --------------------------------------------------------------------------------------------------------- */

static void cut_slow(struct connection *c)
{
    counter_add(&c->edge->metrics.cut_slow, 1);
    edge_cut(c);
}

/* A chunk line so long that it fills the daemon's buffer is never going to be read: bytes wait, and nothing moves. */
static bool is_stuck(const struct connection *c, int64_t now_us)
{
    int waiting = 0;
    return c->request != NULL && c->request->chunked && now_us - c->since_us > STUCK_US &&
           ioctl(c->fd, FIONREAD, &waiting) == 0 && waiting > 0;
}

/* The daemon misses an end of the stream that arrives together with the last bytes (it asks for edges, and stops reading at a
 * short read): half a request, or an idle connection, would stay open until its time is up. */
bool edge_peer_left(const struct connection *c)
{
    char byte;
    return recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* Looks once at each connection that fell idle a second ago. */
static void sweep_idle(struct edge *e, int64_t now_us)
{
    struct connection *c;
    while ((c = e->lists[LIST_IDLE].first) != NULL && now_us - c->since_us > EDGE_IDLE_US) edge_cut(c);
    for (struct connection *previous = NULL, *i = e->lists[LIST_IDLE].last; i != NULL; i = previous) {
        previous = i->previous;
        if (i->since_us > now_us - SWEEP_US) continue;
        if (i->since_us <= e->swept_us - SWEEP_US) break;
        if (edge_peer_left(i)) edge_cut(i);
    }
}

static void sweep_reading(struct edge *e, int64_t now_us)
{
    for (struct connection *c = e->lists[LIST_READING].first, *next; c != NULL; c = next) {
        next = c->next;
        if (edge_peer_left(c)) {
            edge_cut(c);
        } else if (now_us - c->since_us > EDGE_READ_US) {
            cut_slow(c);
        } else if (is_stuck(c, now_us)) {
            connection_refuse_raw(c, 400, "Bad Request", "bad chunked body");
            cut_slow(c);
            /* With a full buffer the daemon reads no more, so it would never see the end; its last read is longer ago than this. */
            MHD_set_connection_option(c->mhd, MHD_CONNECTION_OPTION_TIMEOUT, 1u);
        }
    }
}

/* While memory for answers is short, who takes his slowly gets less time. */
static void sweep_sending(struct edge *e, int64_t now_us)
{
    bool pressed = e->http->node != NULL && admission_presses(node_admission(e->http->node));
    for (struct connection *next = NULL, *s = e->lists[LIST_SENDING].first; s != NULL; s = next) {
        next = s->next;
        int64_t by_us = s->send_by_us;
        if (pressed && s->request != NULL)
            by_us = s->since_us + EDGE_PRESSED_US + (int64_t)(s->request->out.len * 1000000 / EDGE_PRESSED_BYTES_S);
        if (by_us < now_us) cut_slow(s);
    }
}

static void sweep_fire(struct loop_timer *t)
{
    struct edge *e = (struct edge *)(void *)((char *)t - offsetof(struct edge, sweep));
    int64_t now_us = loop_now_us(e->loop);
    e->sweep_set = false;
    sweep_idle(e, now_us);
    sweep_reading(e, now_us);
    e->swept_us = now_us;
    sweep_sending(e, now_us);
    drain_sweep(e, now_us, false);
    if (edge_connections(e) > 0) sweep_arm(e);
}

void edge_park_arm(struct edge *e)
{
    if (e->park_set) return;
    e->park_set = true;
    loop_timer_set(e->loop, &e->park, loop_now_us(e->loop) + EDGE_RUN_US);
}

/* Those that ran for long are suspended when their daemon asks the next time: make it ask. */
static void park_fire(struct loop_timer *t)
{
    struct edge *e = (struct edge *)(void *)((char *)t - offsetof(struct edge, park));
    struct connection *c = e->lists[LIST_RUNNING].first;
    e->park_set = false;
    int64_t now_us = loop_now_us(e->loop);
    for (; c != NULL && now_us - c->since_us >= EDGE_RUN_US; c = c->next) edge_dirty(c->daemon);
    if (e->lists[LIST_RUNNING].first != NULL) edge_park_arm(e);
}

/* ---- the seeds of message ids ---------------------------------------------------------------------------------------- */

static void seed_read(struct call *call, struct engine *engine, struct engine_now now)
{
    (void)now;
    uint64_t seed = engine_id_seed(engine);
    buf_put(&call->answer, &seed, sizeof seed);
}

static void seed_ask(struct edge_seed *s);

static void seed_fire(struct loop_timer *t)
{
    seed_ask((struct edge_seed *)(void *)((char *)t - offsetof(struct edge_seed, timer)));
}

static void seed_done(struct call *call)
{
    enum { PAUSE_US_MAX = 100000 };
    struct edge_seed *s = (struct edge_seed *)(void *)((char *)call - offsetof(struct edge_seed, call));
    struct edge *e = s->edge;
    uint64_t seed = 0;
    if (call->outcome == CALL_OK && call->answer.len == sizeof seed) memcpy(&seed, call->answer.at, sizeof seed);
    buf_free(&call->answer);
    arena_free(&call->arena);
    e->seeds_pending--;
    if (seed != 0) {
        atomic_store_explicit(&e->http->id_seeds[s->group], seed, memory_order_release);
    } else if (!e->stopping) {
        loop_timer_set(e->loop, &s->timer, loop_now_us(e->loop) + s->pause_us);
        s->pause_us = s->pause_us * 2 > PAUSE_US_MAX ? PAUSE_US_MAX : s->pause_us * 2;
    }
}

/* The seed is made by the group's first entry and never changes: whatever this node has applied is good enough. */
static void seed_ask(struct edge_seed *s)
{
    struct edge *e = s->edge;
    if (e->stopping) return;
    e->seeds_pending++;
    s->call = (struct call){.home = e->loop,
                            .done = seed_done,
                            .kind = CALL_READ,
                            .read = seed_read,
                            .always = true,
                            .deadline_us = loop_now_us(e->loop) + 1000000};
    arena_init(&s->call.arena);
    broker_submit(node_group(e->http->node, s->group), &s->call);
}

void edge_seed_fetch(struct edge *e)
{
    uint32_t count = node_group_count(e->http->node);
    must(e->seeds == NULL);
    e->seeds = calloc(count, sizeof *e->seeds);
    must(e->seeds != NULL);
    for (uint32_t i = 0; i < count; i++) {
        struct edge_seed *s = &e->seeds[i];
        *s = (struct edge_seed){.edge = e, .group = i, .pause_us = 2000};
        s->timer.fire = seed_fire;
        if (node_group(e->http->node, i) != NULL) seed_ask(s);
    }
}

/* ---- start and stop ------------------------------------------------------------------------------------------------- */

struct edge *edge_new(struct http *h, struct loop *loop)
{
    struct edge *e = calloc(1, sizeof *e);
    must(e != NULL);
    e->http = h;
    e->loop = loop;
    e->hook.run = daemons_run;
    e->sweep.fire = sweep_fire;
    e->park.fire = park_fire;
    e->no_content = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    must(e->no_content != NULL);
    loop_hook_add(loop, &e->hook);
    return e;
}

struct loop *edge_loop(const struct edge *e)
{
    return e->loop;
}

struct edge_metrics *edge_metrics_of(struct edge *e)
{
    return &e->metrics;
}

uint32_t edge_connections(const struct edge *e)
{
    return atomic_load_explicit(&e->connections, memory_order_relaxed);
}

void edge_on_close(struct edge *e, void (*closed)(void *ctx), void *ctx)
{
    e->closed = closed;
    e->closed_ctx = ctx;
}

/* Connections without a request go at once, the others when their answers are sent or the time is up. */
static void stop_fire(struct loop_timer *t)
{
    struct edge *e = (struct edge *)(void *)((char *)t - offsetof(struct edge, stop_timer));
    int64_t now_us = loop_now_us(e->loop);
    bool late = now_us >= e->stop_by_us;
    static const enum connection_list lists[] = {LIST_IDLE, LIST_READING, LIST_SENDING};
    for (size_t i = 0; i < (late ? 3u : 1u); i++) {
        struct connection *c;
        while ((c = e->lists[lists[i]].first) != NULL) edge_cut(c);
    }
    drain_sweep(e, now_us, true);
    bool closed = edge_connections(e) == 0;
    if ((closed && e->pending_calls == 0 && e->seeds_pending == 0) || now_us >= e->stop_by_us + 1000000) {
        e->stopped(e->stopped_ctx);
        return;
    }
    loop_timer_set(e->loop, &e->stop_timer, now_us + 2000);
}

void edge_stop(struct edge *e, void (*stopped)(void *ctx), void *ctx)
{
    e->stopping = true;
    e->stopped = stopped;
    e->stopped_ctx = ctx;
    e->stop_by_us = loop_now_us(e->loop) + EDGE_STOP_US;
    e->stop_timer.fire = stop_fire;
    stop_fire(&e->stop_timer);
}

void edge_free(struct edge *e)
{
    uint32_t seeds = e->seeds == NULL ? 0 : node_group_count(e->http->node);
    for (uint32_t i = 0; i < seeds; i++) loop_timer_cancel(e->loop, &e->seeds[i].timer);
    loop_timer_cancel(e->loop, &e->sweep);
    loop_timer_cancel(e->loop, &e->park);
    loop_timer_cancel(e->loop, &e->stop_timer);
    for (struct connection *c = e->lists[LIST_PARKED].first; c != NULL; c = c->next) MHD_resume_connection(c->mhd);
    for (uint32_t i = 0; i < e->daemon_count; i++) {
        MHD_stop_daemon(e->daemons[i]->mhd);
        free(e->daemons[i]);
    }
    free(e->daemons);
    drain_sweep(e, 0, true);
    free(e->seeds);
    MHD_destroy_response(e->no_content);
    while (e->reserve != NULL) {
        struct request *r = e->reserve;
        e->reserve = r->next;
        r->edge = NULL;
        request_give_back(r);
    }
    free(e);
}
