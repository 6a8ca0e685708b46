/* POST   /api/v1/timers                     an array of ops, or {"operations":[...]} (data_ops.h): one command, all or nothing
 * GET    /api/v1/timers/:queue              ?after=&limit= (100, 1..1000), or mode=list: rows in the byte order of their keys
 *                                           ?mode=count&prefix= (1..128 bytes, literal): how many
 * GET    /api/v1/timers/:queue/:timerKey    one timer with its payload, or found false; a key may have slashes
 * DELETE /api/v1/timers/:queue/:timerKey    ?txn=: the cancel's element alone. Needs no room, so a full disk does not refuse it
 *
 *   answer  200 {"results":[...]} in the order of the ops; {"rows":[...],"truncated","nextAfter"}; {"count"}; {"found":...}
 *   errors  {"error","reason"?,"detail"?}: 400 timers_bad_request, 403 timer_horizon_exceeded, 413 payload_too_large, 429 overloaded,
 *           rate_limited (a call that schedules counts as a KV write), 500 timers_error, 503 timers_unavailable, 507 storage_full.
 *           A call refused as a whole that held both schedules and cancels has the header x-queen-timers-hint: its cancels go
 *           through alone with DELETE
 *
 * The deadline is QUEEN_STMT_TIMEOUT_MS. Reads see all that was answered before. A list costs about 1 us a row, and what its timers' blocks
 * cost to read where they left memory: so a page ends early, truncated, once it has read LIST_BYTES_MAX of them. */
#include <stdio.h>

#include "base/clock.h"
#include "base/limits.h"
#include "http/answer.h"
#include "http/data_ops.h"
#include "http/edge.h"
#include "http/kv_answer.h"
#include "http/metrics_step.h"
#include "http/name.h"
#include "http/render.h"
#include "http/route.h"
#include "http/timer_payload.h"

enum { LIST_LIMIT_DEFAULT = 100, LIST_LIMIT_MAX = 1000, LIST_BYTES_MAX = 32 << 20, COUNT_PREFIX_BYTES_MAX = 128 };

/* ---- refusals ----------------------------------------------------------------------------------------------------- */

static void answer_bad(struct request *r, const char *reason, const char *detail)
{
    ops_answer_failure(r, 400, "timers_bad_request", reason, detail);
}

/* True when the call has a result. */
static bool outcome_good(struct request *r)
{
    static const struct ops_family timers = {.unavailable = "timers_unavailable",
                                             .timeout = "timers_timeout",
                                             .no_leader = "no_leader",
                                             .retry = "timers_retry",
                                             .error = "timers_error"};
    return ops_answer_outcome(r, &timers);
}

/* The names of a path, which were only decoded. */
static bool path_names_good(struct request *r, bool with_key)
{
    const struct slice *p = r->params;
    if (p[0].len == 0 || (with_key && p[1].len == 0)) {
        answer_bad(r, "timers_bad_op", "the path has an empty name");
    } else if (name_has_control(p[0]) || (with_key && name_has_control(p[1]))) {
        answer_bad(r, "timers_bad_op", "a name in the path has a control character");
    } else if (!name_fits(p[0], slice_make("", 0), slice_make("", 0)) || (with_key && p[1].len > TIMER_KEY_BYTES_MAX)) {
        ops_answer_failure(r, 413, "payload_too_large", "name_too_long", "a queue may have 411 bytes, a timerKey 512");
    } else {
        return true;
    }
    return false;
}

/* ---- ops ---------------------------------------------------------------------------------------------------------- */

enum { SEES_SCHEDULE = 1, SEES_CANCEL = 2, SEES_BOTH = 3 };

static unsigned inputs_see(const struct timer_inputs *in)
{
    unsigned seen = 0;
    for (uint32_t i = 0; i < in->count; i++) seen |= in->items[i].op.kind == TIMER_CANCEL ? SEES_CANCEL : SEES_SCHEDULE;
    return seen;
}

/* What a refused body asked for, as far as it can be read. */
static unsigned ops_see(struct json *j)
{
    bool first, first_member;
    struct slice key, text = {0};
    unsigned seen = 0;
    if (!json_array_open(j, &first)) return 0;
    while (seen != SEES_BOTH && json_array_next(j, &first)) {
        if (json_peek(j) != JSON_OBJECT) {
            json_skip(j, NULL);
            continue;
        }
        json_object_open(j, &first_member);
        while (json_object_next(j, &first_member, &key)) {
            if (!slice_is(key, "op") || json_peek(j) != JSON_STRING) {
                json_skip(j, NULL);
            } else if (json_string(j, &text)) {
                seen |= slice_is(text, "cancel") ? SEES_CANCEL : SEES_SCHEDULE;
            }
        }
    }
    return seen;
}

static void hint_set(struct request *r, unsigned seen)
{
    if (seen == SEES_BOTH)
        r->timers_hint = "DELETE /api/v1/timers/{queue}/{timerKey} cancels one timer whatever refused the schedules";
}

/* Goes to the array of ops: the body itself, or its member `operations`. */
static bool ops_find(struct json *j, bool *wrapped, bool *first)
{
    struct slice key;
    *wrapped = json_peek(j) == JSON_OBJECT;
    if (!*wrapped) return true;
    json_object_open(j, first);
    while (json_object_next(j, first, &key)) {
        if (slice_is(key, "operations")) return true;
        if (!json_skip(j, NULL)) return false;
    }
    return json_fail(j, "operations: an array is required");
}

/* The rest of the body behind the ops. */
static bool ops_left(struct json *j, bool wrapped, bool *first)
{
    struct slice key;
    while (wrapped && json_object_next(j, first, &key)) {
        if (slice_is(key, "operations")) return json_fail(j, "operations: given twice");
        if (!json_skip(j, NULL)) return false;
    }
    return json_end(j);
}

static void refuse_body(const struct json *j, struct ops_refusal *why)
{
    *why = (struct ops_refusal){.status = 400, .error = "timers_bad_request", .reason = "timers_bad_body"};
    snprintf(why->detail, sizeof why->detail, "QTIMER body: %s at byte %zu", j->error, (size_t)(j->at - j->start));
}

static bool body_read(struct request *r, struct timer_inputs *in, struct ops_refusal *why)
{
    struct json j;
    bool wrapped, first;
    json_open(&j, request_body(r), request_arena(r));
    if (!ops_find(&j, &wrapped, &first)) {
        refuse_body(&j, why);
        return false;
    }
    struct json ops = j;
    if (!timer_ops_read(&j, OPS_ROUTE, r->http->config, in, why)) {
        hint_set(r, ops_see(&ops));
        return false;
    }
    if (ops_left(&j, wrapped, &first)) return true;
    refuse_body(&j, why);
    return false;
}

static void ops_after(struct request *r)
{
    const struct timer_inputs *in = r->route_data;
    struct edge_metrics *metrics = edge_metrics_of(r->edge);
    if (!outcome_good(r)) {
        hint_set(r, inputs_see(in));
        if (in->schedules) metrics_schedule_refused(metrics, r->status, false);
        return;
    }
    const struct timers_result *result = &r->call.result.timers;
    must(r->call.result.kind == COMMAND_TIMERS && result->count == in->count);
    buf_text(&r->out, "{\"results\":[");
    for (uint32_t i = 0; i < in->count; i++) {
        if (i > 0) buf_byte(&r->out, ',');
        timer_element_open(&r->out, &in->items[i], &result->items[i]);
        buf_byte(&r->out, '}');
    }
    buf_text(&r->out, "]}");
    answer_json(r, 200);
    metrics_timers(metrics, result);
}

static void ops_submit(struct request *r, struct timer_inputs *in, void (*after)(struct request *r))
{
    timer_ops_encode(in, r->tenant, &r->command);
    r->route_data = in;
    r->call.kind = CALL_WRITE;
    r->call.grows = in->schedules;
    r->call.command = buf_view(&r->command);
    request_submit(r, r->http->config->statement_timeout_ms, after);
}

void route_timers(struct request *r)
{
    struct ops_refusal why;
    struct timer_inputs *in = arena_get(request_arena(r), sizeof *in);
    struct edge_metrics *metrics = edge_metrics_of(r->edge);
    if (!body_read(r, in, &why)) {
        kv_answer_refusal(r, &why);
        metrics_schedule_refused(metrics, why.status, false);
    } else if (in->count == 0) {
        buf_text(&r->out, "{\"results\":[]}");
        answer_json(r, 200);
    } else if (!in->schedules || kv_answer_rate(r, true)) {
        ops_submit(r, in, ops_after);
    } else {
        hint_set(r, inputs_see(in));
        metrics_schedule_refused(metrics, r->status, true);
    }
}

static void cancel_after(struct request *r)
{
    const struct timer_inputs *in = r->route_data;
    if (!outcome_good(r)) return;
    must(r->call.result.kind == COMMAND_TIMERS && r->call.result.timers.count == 1);
    timer_element_open(&r->out, in->items, r->call.result.timers.items);
    buf_byte(&r->out, '}');
    answer_json(r, 200);
    metrics_timers(edge_metrics_of(r->edge), &r->call.result.timers);
}

void route_timer_cancel(struct request *r)
{
    struct timer_inputs *in = arena_zero(request_arena(r), sizeof *in);
    if (!path_names_good(r, true)) return;
    in->items = arena_zero(request_arena(r), sizeof *in->items);
    in->count = 1;
    in->items->op = (struct timer_op){.kind = TIMER_CANCEL, .queue = r->params[0], .key = r->params[1]};
    struct slice transaction;
    if (query_text(r, "txn", &transaction)) in->items->transaction = transaction;
    ops_submit(r, in, cancel_after);
}

/* ---- reads -------------------------------------------------------------------------------------------------------- */

struct timers_query {
    struct slice after, prefix;
    uint64_t limit;
    struct timer_tally tally;
    uint64_t looked, read_until; /* rows: counted, and read ahead by other threads */
    bool more;                   /* to be counted */
};

static void read_after(struct request *r)
{
    const struct timers_query *q = r->route_data;
    if (!outcome_good(r)) return;
    if (q != NULL && q->more) {
        request_submit(r, r->http->config->statement_timeout_ms, read_after);
        return;
    }
    buf_slice(&r->out, buf_view(&r->call.answer));
    answer_json(r, r->call.status == 0 ? 200 : r->call.status);
}

static void read_submit(struct request *r, void (*read)(struct call *c, struct engine *e, struct engine_now now))
{
    r->call.kind = CALL_READ;
    r->call.read = read;
    r->call.read_ctx = r;
    request_submit(r, r->http->config->statement_timeout_ms, read_after);
}

static void field_text(struct buf *out, const char *key, struct slice text)
{
    buf_text(out, key);
    render_text(out, text);
}

/* Without braces. A timer whose block cannot be read is told without what stands only there. */
static void timer_render(struct buf *out, struct slice queue, const struct timer_view *v, const struct push_item *item)
{
    field_text(out, "\"queue\":", queue);
    field_text(out, ",\"timerKey\":", v->key);
    field_text(out, ",\"partition\":", v->partition);
    buf_text(out, ",\"deliverAt\":");
    render_time_us(out, v->due_us);
    field_text(out, ",\"txn\":", v->transaction);
    buf_text(out, ",\"messageId\":");
    render_uuid(out, v->message);
    bool encrypted = item != NULL && (item->flags & ITEM_ENCRYPTED) != 0;
    buf_printf(out, ",\"payloadZstd\":false,\"encrypted\":%s,\"producerSub\":", encrypted ? "true" : "false");
    if (item != NULL && item->flags & ITEM_SUBJECT)
        render_text(out, item->subject);
    else
        buf_text(out, "null");
    buf_text(out, ",\"attempts\":0,\"lastError\":null,\"claimed\":false,\"createdAt\":");
    render_time_us(out, v->created_us);
    buf_text(out, ",\"updatedAt\":");
    render_time_us(out, v->updated_us);
    if (item == NULL) buf_text(out, ",\"damaged\":true");
}

/* False: the page ends before it. */
static bool row_add(struct buf *out, struct request *r, const struct timer_view *v, bool first)
{
    struct call_piece piece;
    struct push_item item;
    enum piece_state state = broker_piece_load(r->broker, &v->piece, &piece);
    if (state == PIECE_LATER) return false;
    if (state == PIECE_COMING) return true; /* this page is not shown */
    if (state == PIECE_HERE) push_group_item(&piece.group, v->piece.item0, &item);
    buf_text(out, first ? "{" : ",{");
    timer_render(out, r->params[0], v, state == PIECE_HERE ? &item : NULL);
    buf_byte(out, '}');
    if (state == PIECE_HERE) broker_piece_release(r->broker, &piece);
    return true;
}

static void list_read(struct call *c, struct engine *e, struct engine_now now)
{
    struct request *r = c->read_ctx;
    const struct timers_query *q = r->route_data;
    struct buf *out = &c->answer;
    struct timer_view v;
    struct slice last = q->after;
    uint64_t rows = 0, bytes = 0;
    (void)now;
    buf_text(out, "{\"rows\":[");
    bool more = engine_timer_next(e, r->tenant, r->params[0], last, &v);
    while (more && rows < q->limit && bytes < LIST_BYTES_MAX && row_add(out, r, &v, rows == 0)) {
        rows++;
        bytes += v.piece.block_bytes;
        last = v.key;
        more = engine_timer_next(e, r->tenant, r->params[0], last, &v);
    }
    buf_printf(out, "],\"truncated\":%s,\"nextAfter\":", more ? "true" : "false");
    if (more)
        render_text(out, last);
    else
        buf_text(out, "null");
    buf_byte(out, '}');
}

/* Timers at rest are counted from rows of the store, some a visit. */
static void count_read(struct call *c, struct engine *e, struct engine_now now)
{
    enum { ROWS_A_LOOK = 256, VISIT_US = 2000 };
    const struct request *r = c->read_ctx;
    struct timers_query *q = r->route_data;
    int64_t began_us = clock_mono_us();
    (void)now;
    do {
        q->more = engine_timers_count(e, r->tenant, r->params[0], q->prefix, ROWS_A_LOOK, &q->tally);
        q->looked += ROWS_A_LOOK;
    } while (q->more && q->looked < q->read_until && clock_mono_us() - began_us < VISIT_US);
    if (q->more) return;
    buf_text(&c->answer, "{\"count\":");
    buf_decimal(&c->answer, q->tally.count);
    buf_byte(&c->answer, '}');
}

static void peek_payload(struct buf *out, struct slice payload)
{
    size_t len = base64_length(payload.len);
    buf_text(out, ",\"payload\":\"");
    base64_encode(payload, buf_reserve(out, len));
    out->len += len;
    buf_text(out, "\"}");
}

static void peek_read(struct call *c, struct engine *e, struct engine_now now)
{
    const struct request *r = c->read_ctx;
    struct buf *out = &c->answer;
    struct timer_view v;
    struct call_piece piece;
    struct push_item item;
    (void)now;
    if (!engine_timer_get(e, r->tenant, r->params[0], r->params[1], &v)) {
        field_text(out, "{\"found\":false,\"queue\":", r->params[0]);
        field_text(out, ",\"timerKey\":", r->params[1]);
        buf_byte(out, '}');
        return;
    }
    enum piece_state state = broker_piece_load(r->broker, &v.piece, &piece);
    if (state == PIECE_COMING) return;
    if (state == PIECE_HERE) {
        push_group_item(&piece.group, v.piece.item0, &item);
        buf_text(out, "{\"found\":true,");
        timer_render(out, r->params[0], &v, &item);
        peek_payload(out, item.payload);
        broker_piece_release(r->broker, &piece);
    } else {
        buf_text(out, "{\"error\":\"timers_error\",\"detail\":\"the payload could not be read: see the broker's log\"}");
        c->status = 500;
    }
}

static void list_foresee(struct call *c, struct engine *e, struct engine_now now, const struct engine_foreseen *f)
{
    const struct request *r = c->read_ctx;
    const struct timers_query *q = r->route_data;
    (void)now;
    engine_timers_foreseen(e, r->tenant, r->params[0], q->after, (uint32_t)q->limit + 1, f);
}

/* Neighbours are about as long as each other; half of what is read ahead is counted before more is. */
static void count_foresee(struct call *c, struct engine *e, struct engine_now now, const struct engine_foreseen *f)
{
    enum { BYTES = 256 << 10, ROW_BYTES = 32 };
    const struct request *r = c->read_ctx;
    struct timers_query *q = r->route_data;
    (void)now;
    if (q->looked < q->read_until) return;
    size_t path = q->tally.next_len > 0 ? q->tally.next_len : r->params[0].len + q->prefix.len;
    if (engine_timers_count_foreseen(e, r->tenant, r->params[0], q->prefix, &q->tally, f))
        q->read_until = q->looked + BYTES / (path + ROW_BYTES);
}

static void list_submit(struct request *r, struct timers_query *q)
{
    int64_t limit = LIST_LIMIT_DEFAULT;
    bool given;
    if (!query_int(r, "limit", &limit, &given)) return;
    q->limit = limit < 1 ? 1 : limit > LIST_LIMIT_MAX ? LIST_LIMIT_MAX : (uint64_t)limit;
    query_text(r, "after", &q->after);
    if (q->after.len > TIMER_KEY_BYTES_MAX) q->after.len = TIMER_KEY_BYTES_MAX; /* no key lies between the two */
    r->call.foresee = list_foresee;
    read_submit(r, list_read);
}

static void count_submit(struct request *r, struct timers_query *q)
{
    struct slice page;
    if (query_text(r, "after", &page) || query_text(r, "limit", &page)) {
        answer_bad(r, "timers_count_page_parameters", "a count takes neither after nor limit");
    } else if (!query_text(r, "prefix", &q->prefix)) {
        answer_bad(r, "timers_count_prefix_required", "prefix: 1 to 128 bytes are required");
    } else if (q->prefix.len > COUNT_PREFIX_BYTES_MAX) {
        answer_bad(r, "timers_count_prefix_too_long", "prefix: at most 128 bytes");
    } else if (name_has_control(q->prefix)) {
        answer_bad(r, "timers_count_prefix_invalid", "prefix: a control character");
    } else {
        r->call.foresee = count_foresee;
        read_submit(r, count_read);
    }
}

void route_timer_list(struct request *r)
{
    struct timers_query *q = arena_zero(request_arena(r), sizeof *q);
    struct slice mode = slice_of("list");
    if (!path_names_good(r, false)) return;
    query_text(r, "mode", &mode);
    r->route_data = q;
    if (mode.len == 0 || slice_is(mode, "list"))
        list_submit(r, q);
    else if (slice_is(mode, "count"))
        count_submit(r, q);
    else
        answer_bad(r, "timers_read_mode_unknown", "mode: list or count");
}

void route_timer_peek(struct request *r)
{
    if (!path_names_good(r, true)) return;
    struct timer_op wanted = {.kind = TIMER_CANCEL, .queue = r->params[0], .key = r->params[1]};
    size_t at = timers_begin(&r->command, r->tenant, 1); /* it reads what a cancel would */
    timer_op_add(&r->command, &wanted);
    timers_end(&r->command, at);
    r->call.foreseen = buf_view(&r->command);
    read_submit(r, peek_read);
}
