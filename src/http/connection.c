/* What the daemons call for a connection, in order:
 *
 *   connection_on_notify     connected (edge.c)
 *   connection_on_target     a request line was read: a request begins
 *   connection_on_request    the head is complete: checked, routed, admitted, or refused without reading the body;
 *                            then with each piece of the body; then, until there is an answer, each time the daemon runs
 *   connection_on_completed  the answer was sent, or the connection broke
 *   connection_on_notify     closed
 *
 * An answer queued at the first call makes the daemon close the connection: right for refusals of a body nobody will read. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/limits.h"
#include "base/must.h"
#include "http/answer.h"
#include "http/edge_internal.h"
#include "http/head.h"
#include "http/json.h"
#include "http/route.h"

static const struct uuid default_tenant = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};

/* ---- requests ----------------------------------------------------------------------------------------------------- */

static void buf_keep_small(struct buf *b)
{
    if (b->cap > EDGE_BODY_KEEP) buf_free(b);
    buf_clear(b);
}

static void request_place(struct request *r, struct uuid tenant)
{
    struct node *n = r->http->node;
    r->tenant = tenant;
    r->group = n == NULL ? 0 : node_group_of_tenant(n, tenant);
    r->broker = n == NULL ? NULL : node_group(n, r->group);
}

struct request *request_take(struct edge *e)
{
    struct request *r = e->reserve;
    if (r != NULL) {
        e->reserve = r->next;
        e->reserve_count--;
        r->next = NULL;
    } else {
        r = calloc(1, sizeof *r);
        must(r != NULL);
        arena_init(&r->call.arena);
    }
    r->edge = e;
    r->http = e->http;
    request_place(r, default_tenant);
    return r;
}

static void request_free(struct request *r)
{
    arena_free(&r->call.arena);
    buf_free(&r->target_bytes);
    buf_free(&r->body);
    buf_free(&r->out);
    buf_free(&r->command);
    free(r);
}

void request_give_back(struct request *r)
{
    must(!r->call_pending && r->connection == NULL);
    struct edge *e = r->edge;
    if (r->admitted > 0) broker_admit_return(r->admitter, r->admitted);
    if (r->call.held > 0) broker_answer_held(&r->call, 0);
    buf_free(&r->call.answer);
    if (e == NULL || e->reserve_count >= EDGE_REQUESTS_KEPT || r->call.arena.total > EDGE_BODY_KEEP) {
        request_free(r);
        return;
    }
    arena_reset(&r->call.arena);
    struct arena arena = r->call.arena;
    memset(&r->REQUEST_CLEARED_FROM, 0, sizeof *r - offsetof(struct request, REQUEST_CLEARED_FROM));
    r->call.arena = arena;
    buf_keep_small(&r->target_bytes);
    buf_keep_small(&r->body);
    buf_keep_small(&r->out);
    buf_keep_small(&r->command);
    r->next = e->reserve;
    e->reserve = r;
    e->reserve_count++;
}

static void watch_end(struct connection *c)
{
    if (!c->watched) return;
    loop_fd_remove(c->edge->loop, &c->watch);
    c->watched = false;
}

/* A parked request goes on: the daemon takes it up again when it runs. */
static void request_resume(struct request *r)
{
    struct connection *c = r->connection;
    must(r->state == REQUEST_PARKED && c->list == LIST_PARKED);
    watch_end(c);
    edge_list_move(c, LIST_RUNNING);
    counter_add(&c->edge->metrics.parked, (uint64_t)-1);
    MHD_resume_connection(c->mhd);
    edge_dirty(c->daemon);
}

static void handed_back(struct request *r)
{
    answer_empty(r); /* to nobody */
}

/* A poll is watched only once it is parked (EDGE_RUN_US): a client that left before, while its batch came, would hold the lease until it
 * ends. */
static bool claims_hand_back(struct request *r)
{
    struct call *call = &r->call;
    bool holds = call->outcome == CALL_OK && call->wait && !call->pop.auto_ack && call->result.kind == COMMAND_POP &&
                 call->result.pop.messages > 0;
    if (!holds || r->handing_back || !edge_peer_left(r->connection)) return false;
    if (call->pieces != NULL) broker_pieces_release(r->broker, call);
    r->handing_back = true;
    buf_clear(&r->command);
    claim_return_encode(&r->command, call->pop.lease_id);
    call->kind = CALL_WRITE;
    call->wait = call->has_next = call->grows = false;
    call->command = buf_view(&r->command);
    request_submit(r, DEADLINE_MS_MAX, handed_back);
    return true;
}

static void request_done(struct call *call)
{
    struct request *r = (struct request *)(void *)((char *)call - offsetof(struct request, call));
    must(r->call_pending);
    r->call_pending = false;
    r->edge->pending_calls--;
    if (r->connection == NULL || r->state == REQUEST_GONE) { /* nobody is there to be answered */
        if (call->pieces != NULL) broker_pieces_release(r->broker, call);
        if (r->connection == NULL) request_give_back(r);
        return;
    }
    if (claims_hand_back(r)) return;
    r->after(r);
    if (r->call_pending) return; /* another one */
    buf_free(&r->call.answer);
    broker_answer_held(&r->call, r->out.len + request_arena(r)->total);
    must(r->status != 0);
    if (r->state == REQUEST_PARKED) request_resume(r);
    must(r->state == REQUEST_RUNNING || r->state == REQUEST_PARKED);
    r->state = REQUEST_ANSWERED;
    edge_dirty(r->connection->daemon);
}

static bool body_admit(struct request *r, uint64_t bytes);

/* What a body has become, with what is known of its items, may be many times its size: then more is admitted for it. Once a request. */
static bool memory_admit(struct request *r)
{
    enum { FREE_BYTES = 65536 }; /* the connection's share */
    if (r->weighed || r->body_wanted == 0) return true;
    r->weighed = true;
    uint64_t taken = (uint64_t)r->body.len + r->command.len + r->out.cap + request_arena(r)->total;
    uint64_t covered = (uint64_t)r->admitted * MEMORY_BODY_COPIES + FREE_BYTES;
    return taken <= covered || body_admit(r, (taken - covered) / MEMORY_BODY_COPIES);
}

static void submit(struct request *r, int64_t from_us, uint32_t deadline_ms, void (*after)(struct request *r))
{
    struct call *call = &r->call;
    must((r->state == REQUEST_RUNNING || r->state == REQUEST_PARKED) && !r->call_pending);
    if (!memory_admit(r)) return; /* answered */
    if (deadline_ms < 1) deadline_ms = 1;
    if (deadline_ms > DEADLINE_MS_MAX) deadline_ms = DEADLINE_MS_MAX;
    call->home = r->edge->loop;
    call->done = request_done;
    call->deadline_us = from_us + (int64_t)deadline_ms * 1000;
    call->counts = true;
    r->after = after;
    r->call_pending = true;
    r->edge->pending_calls++;
    broker_submit(r->broker, call);
}

void request_submit(struct request *r, uint32_t deadline_ms, void (*after)(struct request *r))
{
    submit(r, r->run_us, deadline_ms, after);
}

void request_submit_next(struct request *r, uint32_t deadline_ms, void (*after)(struct request *r))
{
    submit(r, loop_now_us(r->edge->loop), deadline_ms, after);
}

void request_wait(struct request *r, void (*after)(struct request *r))
{
    must((r->state == REQUEST_RUNNING || r->state == REQUEST_PARKED) && !r->call_pending);
    r->after = after;
    r->call_pending = r->elsewhere = true;
    r->edge->pending_calls++;
}

static void wake_run(struct loop_task *t)
{
    struct request *r = (struct request *)(void *)((char *)t - offsetof(struct request, wake));
    must(r->elsewhere);
    r->elsewhere = false;
    request_done(&r->call);
}

void request_wake(struct request *r)
{
    r->wake.run = wake_run;
    loop_post(r->edge->loop, &r->wake);
}

/* ---- answers ------------------------------------------------------------------------------------------------------ */

static void header_add(struct MHD_Response *response, const char *name, const char *value)
{
    must(MHD_add_response_header(response, name, value) == MHD_YES);
}

static struct MHD_Response *response_make(struct request *r)
{
    if (r->status == 204 && !r->close) return r->edge->no_content;
    struct MHD_Response *response = MHD_create_response_from_buffer(r->out.len, r->out.at, MHD_RESPMEM_PERSISTENT);
    must(response != NULL);
    if (r->status != 204) {
        header_add(response, "Content-Type", r->content_type == NULL ? "application/json" : r->content_type);
    }
    if (r->retry_after_s > 0) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%u", r->retry_after_s);
        header_add(response, "Retry-After", seconds);
    }
    if (r->etag != NULL) header_add(response, "ETag", r->etag);
    if (r->allow != NULL) header_add(response, "Allow", r->allow);
    if (r->timers_hint != NULL) header_add(response, "x-queen-timers-hint", r->timers_hint);
    if (r->close) header_add(response, "Connection", "close");
    return response;
}

static enum MHD_Result answer_queue(struct request *r)
{
    struct connection *c = r->connection;
    must(r->status != 0);
    if (atomic_load_explicit(&r->http->stopping, memory_order_relaxed)) r->close = true;
    struct MHD_Response *response = response_make(r);
    enum MHD_Result queued = MHD_queue_response(c->mhd, r->status, response);
    if (response != r->edge->no_content) MHD_destroy_response(response);
    r->state = REQUEST_SENDING;
    edge_list_move(c, LIST_SENDING);
    c->send_by_us = c->since_us + EDGE_SEND_US + (int64_t)(r->out.len * 1000000 / EDGE_SEND_BYTES_S);
    c->daemon->again = true;
    return queued;
}

void connection_refuse_raw(struct connection *c, uint32_t status, const char *reason, const char *text)
{
    char bytes[512];
    int n = snprintf(bytes, sizeof bytes,
                     "HTTP/1.1 %u %s\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: %zu\r\n%s\r\n%s\n",
                     status, reason, strlen(text) + 1, status == 429 ? "Retry-After: 1\r\n" : "", text);
    must(n > 0 && (size_t)n < sizeof bytes);
    ssize_t sent = send(c->fd, bytes, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)sent; /* the client may be gone already; the connection ends anyway */
    c->refused = true;
    if (c->request != NULL) c->request->status = status;
    drain_start(c->edge, c->fd, 0);
}

/* ---- the head ----------------------------------------------------------------------------------------------------- */

static void tenant_read(struct request *r, const struct head *h)
{
    if (!r->http->config->tenancy_header || !h->has_tenant || r->status != 0) return;
    struct uuid tenant;
    if (uuid_parse(h->tenant, &tenant)) {
        request_place(r, tenant);
        return;
    }
    answer_error(r, 400, NULL, "invalid x-queen-tenant header (must be a UUID)");
}

/* Room for the announced body, or for the first piece of a chunked one. */
static bool body_admit(struct request *r, uint64_t bytes)
{
    uint32_t retry_after_s = 1;
    if (!broker_admit(r->broker, bytes, &retry_after_s)) {
        answer_error(r, 429, "overloaded", "the broker has more work than it admits: try again later");
        r->retry_after_s = retry_after_s == 0 ? 1 : retry_after_s;
        return false;
    }
    r->admitted += bytes;
    r->admitter = r->broker;
    return true;
}

/* Sets an answer when the request is refused here. One that has no body, and whose head is sound, is only answered at the end
 * so that its connection stays open. */
static void head_judge(struct request *r, const struct head *h, const char *method)
{
    if (h->status != 0) {
        answer_plain(r, h->status, h->error);
        r->close = true;
        counter_add(&r->edge->metrics.refused_heads, 1);
        return;
    }
    if (h->expect_bad) {
        answer_plain(r, 417, "only Expect: 100-continue is known");
        r->close = true;
        return;
    }
    route_find(r, method);
    tenant_read(r, h);
    if (r->status != 0) return;
    if (r->body_wanted > 0 && h->encoded) {
        answer_plain(r, 415, "a body with a Content-Encoding is not taken");
    } else if (h->has_length && h->length > r->http->config->body_bytes_max) {
        answer_plain(r, 413, "the body is larger than QUEEN_MAX_BODY_BYTES");
    } else if (r->body_wanted > 0 && r->broker == NULL) {
        answer_no_leader(r);
    } else if (h->has_length && h->length > 0 && body_admit(r, h->length)) {
        buf_reserve(&r->body, (size_t)h->length + JSON_PAD);
    }
}

static enum MHD_Result request_begin(struct request *r, struct MHD_Connection *mhd, const char *method, const char *version)
{
    struct head head;
    r->connection->daemon->heading = NULL;
    head_check(&head, mhd, r, method, version);
    r->chunked = head.chunked;
    r->body_wanted = head.chunked ? UINT64_MAX : head.has_length ? head.length : 0;
    head_judge(r, &head, method);
    if (r->status != 0 && (r->close || r->body_wanted > 0)) {
        r->close = true;
        drain_start(r->edge, r->connection->fd, r->chunked ? 0 : r->body_wanted);
        return answer_queue(r);
    }
    r->state = REQUEST_BODY;
    return MHD_YES;
}

/* ---- the body ----------------------------------------------------------------------------------------------------- */

/* A chunk's bytes still stand behind the line that announced them: did it end with a bare LF? What an earlier read left there is
 * the head, whose line ends the daemon has overwritten with zeros. */
static bool chunk_line_bad(const char *at)
{
    return at[-1] == '\n' && at[-2] != '\r';
}

static enum MHD_Result body_append(struct request *r, const char *at, size_t len)
{
    struct connection *c = r->connection;
    uint64_t total = r->body.len + len;
    if (r->chunked) {
        if (HEAD_LAYOUT_KNOWN && chunk_line_bad(at)) {
            connection_refuse_raw(c, 400, "Bad Request", "chunk lines must end with CR LF");
            return MHD_NO;
        }
        if (total > r->http->config->body_bytes_max) {
            connection_refuse_raw(c, 413, "Content Too Large", "the body is larger than QUEEN_MAX_BODY_BYTES");
            return MHD_NO;
        }
        if (total > r->admitted && !body_admit(r, total > 2 * r->admitted ? total - r->admitted + 4096 : r->admitted)) {
            connection_refuse_raw(c, 429, "Too Many Requests", "overloaded");
            return MHD_NO;
        }
    }
    must(r->chunked || total <= r->body_wanted);
    buf_reserve(&r->body, len + JSON_PAD);
    buf_put(&r->body, at, len);
    if (total - r->body_marked >= EDGE_READ_BYTES) {
        r->body_marked = total;
        edge_list_move(c, LIST_READING);
    }
    c->daemon->again = true;
    return MHD_YES;
}

/* ---- running ------------------------------------------------------------------------------------------------------ */

static void request_run(struct request *r)
{
    struct connection *c = r->connection;
    memset(buf_reserve(&r->body, JSON_PAD), 0, JSON_PAD);
    r->state = REQUEST_RUNNING;
    r->run_us = loop_now_us(r->edge->loop);
    edge_list_move(c, LIST_RUNNING);
    if (r->status != 0) return; /* refused at its head, kindly */
    must(r->route != NULL);
    /* No broker: its head came while the state was being loaded. The routes outside of /api/ tell of the process, not of a node. */
    bool able = r->route->always ? r->http->node != NULL || strncmp(r->route->pattern, "/api/", 5) != 0
                                 : r->broker != NULL && http_serves(r->http, r->group);
    if (!able) {
        answer_no_leader(r);
        return;
    }
    r->route->run(r);
    must(r->status != 0 || r->call_pending);
}

static void watch_ready(struct loop_fd *watch, uint32_t events)
{
    struct connection *c = (struct connection *)(void *)((char *)watch - offsetof(struct connection, watch));
    struct request *r = c->request;
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) == 0) return;
    must(r != NULL && r->state == REQUEST_PARKED);
    counter_add(&c->edge->metrics.left_while_parked, 1);
    request_resume(r);
    r->state = REQUEST_GONE;
    if (r->call_pending && !r->handing_back && !r->elsewhere) broker_cancel(r->broker, &r->call);
}

static void request_park(struct request *r)
{
    struct connection *c = r->connection;
    MHD_suspend_connection(c->mhd);
    r->state = REQUEST_PARKED;
    edge_list_move(c, LIST_PARKED);
    counter_add(&c->edge->metrics.parked, 1);
    if (r->elsewhere || (!r->call.has_next && r->call.kind == CALL_WRITE)) return; /* nobody's leaving undoes a write */
    c->watch = (struct loop_fd){.fd = c->fd, .ready = watch_ready};
    c->watched = loop_fd_add(c->edge->loop, &c->watch, EPOLLRDHUP);
}

enum MHD_Result connection_on_request(void *cls, struct MHD_Connection *mhd, const char *url, const char *method,
                                      const char *version, const char *upload, size_t *upload_len, void **context)
{
    struct edge_daemon *d = cls;
    struct request *r = *context;
    (void)url;
    must(r != NULL && r->connection != NULL && r->connection->daemon == d);
    if (r->state == REQUEST_HEAD) return request_begin(r, mhd, method, version);
    if (*upload_len > 0) {
        size_t len = *upload_len;
        *upload_len = 0;
        must(r->state == REQUEST_BODY);
        return body_append(r, upload, len);
    }
    if (r->state == REQUEST_BODY) {
        request_run(r);
        if (r->status != 0) return answer_queue(r);
        edge_park_arm(r->edge);
        return MHD_YES;
    }
    if (r->state == REQUEST_ANSWERED) return answer_queue(r);
    if (r->state == REQUEST_GONE) return MHD_NO;
    must(r->state == REQUEST_RUNNING);
    if (loop_now_us(r->edge->loop) - r->run_us >= EDGE_RUN_US) request_park(r);
    return MHD_YES;
}

void *connection_on_target(void *cls, const char *uri, struct MHD_Connection *mhd)
{
    struct edge_daemon *d = cls;
    struct connection *c = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    struct request *r = request_take(d->edge);
    must(c != NULL && c->request == NULL && c->daemon == d);
    c->request = r;
    d->heading = c;
    r->connection = c;
    r->state = REQUEST_HEAD;
    r->started_us = loop_now_us(d->edge->loop);
    r->target_place = (uintptr_t)uri;
    buf_put(&r->target_bytes, uri, uri == NULL ? 0 : strlen(uri));
    r->target = buf_view(&r->target_bytes);
    edge_list_move(c, LIST_READING);
    return r;
}

/* What the daemon itself answered; 0: nothing. */
static uint32_t daemon_status(struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_HTTP_STATUS);
    return info == NULL ? 0 : info->http_status;
}

void connection_on_completed(void *cls, struct MHD_Connection *mhd, void **context, enum MHD_RequestTerminationCode why)
{
    struct edge_daemon *d = cls;
    struct request *r = *context;
    (void)why;
    *context = NULL;
    if (r == NULL) return;
    struct connection *c = r->connection;
    must(c != NULL && c->request == r && c->daemon == d);
    watch_end(c);
    if (c->list != LIST_CUT) edge_list_move(c, LIST_IDLE);
    if (d->heading == c) d->heading = NULL;
    c->answered_run = d->runs;
    c->request = NULL;
    r->connection = NULL;
    metrics_count(&d->edge->metrics, r->route == NULL ? ROUTE_NONE : r->route->id,
                  r->status != 0 ? r->status : daemon_status(mhd), loop_now_us(d->edge->loop) - r->started_us);
    if (!r->call_pending) {
        request_give_back(r);
    } else if (r->state != REQUEST_GONE && !r->handing_back &&
               !r->elsewhere) { /* the connection broke while the broker has the call */
        broker_cancel(r->broker, &r->call);
    }
}

/* Names and values are decoded by us, after splitting. */
size_t connection_on_unescape(void *cls, struct MHD_Connection *mhd, char *text)
{
    (void)cls;
    (void)mhd;
    return strlen(text);
}

/* The daemon (0.9.75) answers a Content-Length it cannot read with two heads. It logs before it does: then we answer and shut
 * the socket. Whose request it is, is known when one head at a time is incomplete, as good as always; else its own answer stands. */
void connection_on_log(void *cls, const char *format, va_list args)
{
    struct edge_daemon *d = cls;
    struct connection *c = d->heading;
    (void)args;
    if (c == NULL || c->request == NULL || c->request->state != REQUEST_HEAD || c->refused) return;
    bool large = strstr(format, "Too large value of 'Content-Length'") != NULL;
    if (!large && strstr(format, "Failed to parse `Content-Length'") == NULL) return;
    if (large)
        connection_refuse_raw(c, 413, "Content Too Large", "Content-Length is too large");
    else
        connection_refuse_raw(c, 400, "Bad Request", "bad Content-Length");
    counter_add(&d->edge->metrics.refused_heads, 1);
    shutdown(c->fd, SHUT_WR);
}

/* The daemon closes a connection without a word when its request line is none. (It does not shut the socket down: MHD_USE_TURBO.) */
void connection_on_closed(struct connection *c)
{
    char byte;
    bool wordless = c->list == LIST_IDLE && c->answered_run != c->daemon->runs && !c->refused && !c->edge->stopping;
    ssize_t left = wordless ? recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) : 0;
    if (left > 0 || (left < 0 && errno == EAGAIN)) { /* the client is still there */
        connection_refuse_raw(c, 400, "Bad Request", "not an HTTP request");
        metrics_count(&c->edge->metrics, ROUTE_NONE, 400, 0);
    }
    shutdown(c->fd, SHUT_WR);
}
