/* (:key takes slashes.)
 *
 * POST   /api/v1/kv                           [op,...] or {"operations":[op,...]}: {"results":[...]} aligned with the ops, or the
 *                                             verdict {"ok":false,"reason":"kv_precondition",...} when a required op lost
 * GET    /api/v1/kv/:ns/:key                  the get element alone, ETag with the version when found
 * PUT    /api/v1/kv/:ns/:key                  {"value",...}: the put element alone
 * DELETE /api/v1/kv/:ns/:key                  {"expect"?,"required"?} or nothing: the delete element alone
 * GET    /api/v1/resources/kv/namespaces      {"namespaces":[{"namespace","keys"}]}: for browsing
 * POST   /api/v1/resources/kv/list            {"namespace","prefix"?,"after"?,"limit"?,"keysOnly"?}: a page of rows; the prefix may be empty
 *
 * Ops and elements: data_ops.h. A call with a put, delete or incr is one command in the log; all others are reads on the group
 * thread, which executes entries in order: what was answered before is seen.
 * Errors: {"error","reason","detail"}: 400 kv_bad_request, 413 payload_too_large, 429 rate_limited or overloaded, 503
 * kv_unavailable, 507 storage_full. */
#include <stdio.h>

#include "base/limits.h"
#include "http/answer.h"
#include "http/edge.h"
#include "http/kv_answer.h"
#include "http/metrics_step.h"
#include "http/name.h"
#include "http/render.h"
#include "http/route.h"

struct kv_plan {
    struct kv_inputs in;
    struct kv_command command; /* of a read */
    struct kv_result result;   /* of a read */
    bool alone;                /* answer the only element as it is */
};

/* ---- answers ------------------------------------------------------------------------------------------------------- */

static void verdict_render(struct buf *out, const struct kv_result *result)
{
    const struct kv_outcome *o = &result->items[result->failed];
    buf_text(out, "{\"ok\":false,\"reason\":\"kv_precondition\",\"failedIndex\":");
    buf_decimal(out, result->failed);
    buf_text(out, ",\"kvReason\":\"");
    buf_text(out, kv_reason_text(o->reason));
    buf_text(out, "\",\"version\":");
    buf_decimal(out, o->version);
    buf_text(out, ",\"value\":");
    buf_slice(out, kv_lost_value(o));
    buf_byte(out, '}');
}

/* "<version>" */
static void etag_set(struct request *r, const struct kv_outcome *o)
{
    enum { ETAG_BYTES_MAX = 24 };
    char *end = (char *)arena_get(request_arena(r), ETAG_BYTES_MAX) + ETAG_BYTES_MAX, *p = end;
    uint64_t rest = o->version;
    *--p = 0;
    *--p = '"';
    for (; rest > 0; rest /= 10) *--p = (char)('0' + rest % 10);
    *--p = '"';
    r->etag = p;
}

static void kv_render(struct request *r, const struct kv_plan *p, const struct kv_result *result)
{
    struct buf *out = &r->out;
    must(result->count == p->in.count);
    if (result->refused) {
        must(result->failed < result->count);
        verdict_render(out, result);
    } else if (p->alone) {
        kv_element_open(out, p->in.items, result->items, 0);
        buf_byte(out, '}');
        if (p->in.items->op.kind == KV_GET && result->items->found) etag_set(r, result->items);
    } else {
        buf_text(out, "{\"results\":[");
        for (uint32_t i = 0; i < result->count; i++) {
            if (i > 0) buf_byte(out, ',');
            kv_element_open(out, &p->in.items[i], &result->items[i], i);
            buf_byte(out, '}');
        }
        buf_text(out, "]}");
    }
    answer_json(r, 200);
    metrics_kv(edge_metrics_of(r->edge), &p->in, result);
}

/* True when the call has a result. Without one its ops are counted here. */
static bool outcome_good(struct request *r)
{
    const struct kv_plan *p = r->route_data;
    if (kv_answer_outcome(r)) return true;
    metrics_kv(edge_metrics_of(r->edge), &p->in, NULL);
    return false;
}

static void write_after(struct request *r)
{
    if (!outcome_good(r)) return;
    must(r->call.result.kind == COMMAND_KV);
    kv_render(r, r->route_data, &r->call.result.kv);
}

static void read_after(struct request *r)
{
    const struct kv_plan *p = r->route_data;
    if (outcome_good(r)) kv_render(r, p, &p->result);
}

/* ---- calls --------------------------------------------------------------------------------------------------------- */

static void kv_read(struct call *call, struct engine *e, struct engine_now now)
{
    struct kv_plan *p = call->read_ctx;
    engine_kv_read(e, &p->command, now, &call->arena, &p->result);
}

/* Reads take the same way as writes, through the encoded command: one meaning for both. */
static void command_read_back(struct slice encoded, struct kv_command *out)
{
    struct command c;
    must(command_next(&encoded, &c) && kv_decode(&c, out));
}

static void kv_submit(struct request *r, struct kv_plan *p)
{
    r->route_data = p;
    if (!kv_answer_rate(r, p->in.writes)) return;
    kv_ops_encode(&p->in, r->tenant, &r->command);
    uint32_t timeout_ms = r->http->config->statement_timeout_ms;
    if (p->in.writes) {
        r->call.kind = CALL_WRITE;
        r->call.grows = p->in.grows;
        r->call.command = buf_view(&r->command);
        request_submit(r, timeout_ms, write_after);
        return;
    }
    command_read_back(buf_view(&r->command), &p->command);
    r->call.kind = CALL_READ;
    r->call.read = kv_read;
    r->call.foreseen = buf_view(&r->command);
    r->call.read_ctx = p;
    request_submit(r, timeout_ms, read_after);
}

static bool refuse_body(struct ops_refusal *why, const char *detail)
{
    *why = (struct ops_refusal){.status = 400, .error = "kv_bad_request", .reason = "kv_bad_body"};
    snprintf(why->detail, sizeof why->detail, "%s", detail);
    return false;
}

static bool body_read(struct request *r, struct kv_inputs *in, struct ops_refusal *why)
{
    const struct config *config = r->http->config;
    struct json j;
    struct slice key;
    bool first, seen = false;
    json_open(&j, request_body(r), request_arena(r));
    if (json_peek(&j) == JSON_ARRAY) {
        if (!kv_ops_read(&j, OPS_ROUTE, config, in, why)) return false;
        return json_end(&j) || refuse_body(why, j.error);
    }
    if (!json_object_open(&j, &first)) return refuse_body(why, "an array of operations, or an object with one, is required");
    while (json_object_next(&j, &first, &key)) {
        if (!slice_is(key, "operations")) {
            if (!json_skip(&j, NULL)) break;
            continue;
        }
        if (seen) return refuse_body(why, "operations is given twice");
        seen = true;
        if (!kv_ops_read(&j, OPS_ROUTE, config, in, why)) return false;
    }
    if (!json_end(&j)) return refuse_body(why, j.error);
    return seen || refuse_body(why, "operations is required");
}

void route_kv(struct request *r)
{
    struct kv_plan *p = arena_zero(request_arena(r), sizeof *p);
    struct ops_refusal why;
    if (!body_read(r, &p->in, &why)) {
        kv_answer_refusal(r, &why);
        return;
    }
    if (p->in.count == 0) {
        buf_text(&r->out, "{\"results\":[]}");
        answer_json(r, 200);
        return;
    }
    kv_submit(r, p);
}

/* ---- one key, named by the path -------------------------------------------------------------------------------------- */

/* A query string is refused: most likely the key has a ? that was not encoded. */
static void path_run(struct request *r, const char *name, struct slice body)
{
    struct kv_plan *p = arena_zero(request_arena(r), sizeof *p);
    struct ops_refusal why;
    if (memchr(r->target.at, '?', r->target.len) != NULL) {
        why = (struct ops_refusal){.status = 400, .error = "kv_bad_request", .reason = "kv_no_query_string"};
        snprintf(why.detail, sizeof why.detail, "these routes take no query string; a ? of the key is written %%3F");
        kv_answer_refusal(r, &why);
        return;
    }
    if (!kv_path_op_read(body, name, r->params[0], r->params[1], request_arena(r), r->http->config, &p->in, &why)) {
        kv_answer_refusal(r, &why);
        return;
    }
    p->alone = true;
    kv_submit(r, p);
}

void route_kv_get(struct request *r)
{
    path_run(r, "get", slice_make("", 0));
}

void route_kv_put(struct request *r)
{
    path_run(r, "put", request_body(r));
}

void route_kv_delete(struct request *r)
{
    path_run(r, "delete", request_body(r));
}

/* ---- browsing -------------------------------------------------------------------------------------------------------- */

static void spaces_read(struct call *call, struct engine *e, struct engine_now now)
{
    const struct request *r = call->read_ctx;
    struct buf *out = &call->answer;
    struct kv_space_view view;
    char last[KV_NAME_SPACE_BYTES_MAX];
    struct slice after = slice_make(last, 0);
    (void)now;
    buf_text(out, "{\"namespaces\":[");
    while (engine_kv_space_next(e, r->tenant, after, &view)) {
        if (after.len > 0) buf_byte(out, ',');
        buf_text(out, "{\"namespace\":");
        render_text(out, view.name);
        buf_text(out, ",\"keys\":");
        buf_decimal(out, view.rows);
        buf_byte(out, '}');
        must(view.name.len > 0 && view.name.len <= sizeof last);
        memcpy(last, view.name.at, view.name.len);
        after.len = view.name.len;
    }
    buf_text(out, "]}");
}

static void spaces_after(struct request *r)
{
    if (!kv_answer_outcome(r)) return;
    buf_slice(&r->out, buf_view(&r->call.answer));
    answer_json(r, 200);
}

void route_kv_spaces(struct request *r)
{
    r->call.kind = CALL_READ;
    r->call.read = spaces_read;
    r->call.read_ctx = r;
    request_submit(r, r->http->config->statement_timeout_ms, spaces_after);
}

static void list_after(struct request *r)
{
    const struct kv_plan *p = r->route_data;
    if (!outcome_good(r)) return;
    metrics_kv(edge_metrics_of(r->edge), &p->in, &p->result);
    buf_text(&r->out, "{\"namespace\":");
    render_text(&r->out, p->in.items->op.name_space);
    kv_page_render(&r->out, p->in.items, p->result.items);
    buf_byte(&r->out, '}');
    answer_json(r, 200);
}

void route_kv_list(struct request *r)
{
    struct kv_plan *p = arena_zero(request_arena(r), sizeof *p);
    struct ops_refusal why;
    if (!kv_list_read(request_body(r), request_arena(r), r->http->config, &p->in, &why)) {
        kv_answer_refusal(r, &why);
        return;
    }
    r->route_data = p;
    if (!kv_answer_rate(r, false)) return;
    kv_ops_encode(&p->in, r->tenant, &r->command);
    command_read_back(buf_view(&r->command), &p->command);
    r->call.kind = CALL_READ;
    r->call.read = kv_read;
    r->call.foreseen = buf_view(&r->command);
    r->call.read_ctx = p;
    request_submit(r, r->http->config->statement_timeout_ms, list_after);
}
