/* POST /api/v1/locks   [op,...] or {"operations":[op,...]}: {"results":[...]} aligned with the ops
 *
 *   acquire  name, ttlSeconds, owner?, limit?        -> acquired true: slot, token, owner, guard; false: reason held, holders
 *   renew    name, token, ttlSeconds, slot?, owner?  -> renewed true: slot, token, guard; false: reason lost, holders
 *   release  name, token, slot?                      -> released true: slot; false: reason lost, holders
 *   get      name                                    -> held, holders with all that is known of them
 *
 * Ops are independent of each other; all of a call are one command, so nothing comes between. Only gets: a read. Holders named to
 * somebody who was refused do not show their tokens.
 * Errors: 400 locks_bad_request with a reason; all else as the KV routes (route_kv.c). */
#include <stdio.h>

#include "broker/config.h"
#include "http/answer.h"
#include "http/edge.h"
#include "http/kv_answer.h"
#include "http/lock_ops.h"
#include "http/metrics_step.h"
#include "http/route.h"

struct locks_plan {
    struct lock_inputs in;
    struct locks_command command; /* of a read */
    struct locks_result result;   /* of a read */
};

static bool refuse_body(struct ops_refusal *why, const char *detail)
{
    *why = (struct ops_refusal){.status = 400, .error = "locks_bad_request", .reason = "locks_bad_body"};
    snprintf(why->detail, sizeof why->detail, "%s", detail);
    return false;
}

static bool body_read(struct request *r, struct lock_inputs *in, struct ops_refusal *why)
{
    struct json j;
    struct slice key;
    bool first, seen = false;
    json_open(&j, request_body(r), request_arena(r));
    if (json_peek(&j) == JSON_ARRAY) {
        if (!lock_ops_read(&j, in, why)) return false;
        return json_end(&j) || refuse_body(why, j.error);
    }
    if (!json_object_open(&j, &first)) return refuse_body(why, j.error);
    while (json_object_next(&j, &first, &key)) {
        if (!slice_is(key, "operations")) {
            if (!json_skip(&j, NULL)) break;
            continue;
        }
        if (seen) return refuse_body(why, "operations is given twice");
        seen = true;
        if (!lock_ops_read(&j, in, why)) return false;
    }
    if (!json_end(&j)) return refuse_body(why, j.error);
    return seen || refuse_body(why, "operations is required");
}

static void locks_render(struct request *r, const struct locks_plan *p, const struct locks_result *result)
{
    must(result->count == p->in.count);
    buf_text(&r->out, "{\"results\":[");
    for (uint32_t i = 0; i < p->in.count; i++) {
        if (i > 0) buf_byte(&r->out, ',');
        lock_element(&r->out, request_arena(r), &p->in.items[i], &result->items[i], i);
    }
    buf_text(&r->out, "]}");
    answer_json(r, 200);
    metrics_locks(edge_metrics_of(r->edge), &p->in, result);
}

/* True when the call has a result. Without one its ops are counted here. */
static bool outcome_good(struct request *r)
{
    const struct locks_plan *p = r->route_data;
    if (kv_answer_outcome(r)) return true;
    metrics_locks(edge_metrics_of(r->edge), &p->in, NULL);
    return false;
}

/* ---- calls --------------------------------------------------------------------------------------------------------- */

static void write_after(struct request *r)
{
    if (!outcome_good(r)) return;
    must(r->call.result.kind == COMMAND_LOCKS);
    locks_render(r, r->route_data, &r->call.result.locks);
}

static void read_after(struct request *r)
{
    const struct locks_plan *p = r->route_data;
    if (outcome_good(r)) locks_render(r, p, &p->result);
}

static void locks_read(struct call *call, struct engine *e, struct engine_now now)
{
    struct locks_plan *p = call->read_ctx;
    engine_locks_read(e, &p->command, now, &call->arena, &p->result);
}

void route_locks(struct request *r)
{
    struct locks_plan *p = arena_zero(request_arena(r), sizeof *p);
    struct ops_refusal why;
    uint32_t timeout_ms = r->http->config->statement_timeout_ms;
    if (!body_read(r, &p->in, &why)) {
        kv_answer_refusal(r, &why);
        return;
    }
    r->route_data = p;
    if (p->in.count == 0) {
        locks_render(r, p, &p->result);
        return;
    }
    if (!kv_answer_rate(r, p->in.writes)) return;
    lock_ops_encode(&p->in, r->tenant, &r->command);
    if (p->in.writes) {
        r->call.kind = CALL_WRITE;
        r->call.grows = p->in.grows;
        r->call.command = buf_view(&r->command);
        request_submit(r, timeout_ms, write_after);
        return;
    }
    struct slice encoded = buf_view(&r->command);
    struct command c;
    must(command_next(&encoded, &c) && locks_decode(&c, &p->command));
    r->call.kind = CALL_READ;
    r->call.foreseen = buf_view(&r->command);
    r->call.read = locks_read;
    r->call.read_ctx = p;
    request_submit(r, timeout_ms, read_after);
}
