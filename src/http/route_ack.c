/* POST /api/v1/ack, POST /api/v1/ack/batch (both take both bodies)
 *
 *   body    {"transactionId","partitionId","leaseId"?,"consumerGroup"?,"status"?,"error"?} or {"consumerGroup"?,"acknowledgments":[...]}
 *           partitionId is a string of digits; status (any case) failed, retry or dlq, everything else means completed; the group
 *           stands at the top level only. Without acknowledgments, or with none, the top level is the one item.
 *   answer  200 and an array in input order: {"index","transactionId","success","error","leaseReleased","dlq","noop"}
 *   errors  400 bad_body, 400 bad_request (empty consumerGroup), 413 name_too_long, 503, 500
 *
 * All items are one command. Items that cannot be acks (a partitionId that is no number, an id longer than any can be) are
 * answered here and do not reach it.
 *
 * POST /api/v1/lease/:leaseId/extend
 *
 *   body    {"seconds":60}: 60 when absent or unreadable, at least 1, at most a year
 *   answer  200 {"leaseId","success","renewed","newExpiresAt","expiresAt","lease_expires_at"}: the times are the earliest end, ms,
 *           null when nothing was held under that id */
#include "base/limits.h"
#include "http/answer.h"
#include "http/body_inner.h"
#include "http/edge.h"
#include "http/name.h"
#include "http/render.h"
#include "http/route.h"

/* ---- ack ---------------------------------------------------------------------------------------------------------- */

enum item_fate { ITEM_SENT, ITEM_NO_NUMBER, ITEM_STALE };

struct ack_plan_item {
    struct slice transaction, partition; /* as sent */
    uint32_t number;                     /* in the command, when sent */
    uint8_t fate;
};

struct ack_plan {
    uint32_t count, sent;
    struct ack_plan_item *items;
};

static void item_plan(struct ack_plan *p, const struct ack_input *in, struct buf *command)
{
    struct ack_plan_item *item = &p->items[p->count++];
    struct ack_item out = {
        .status = in->status, .transaction = in->transaction, .error = body_error_cut(in->error), .has_error = in->has_error};
    *item = (struct ack_plan_item){.transaction = in->transaction, .partition = in->partition};
    if (!body_partition_number(in->partition, &out.partition)) {
        item->fate = ITEM_NO_NUMBER;
        return;
    }
    if (in->transaction.len > TRANSACTION_ID_BYTES_MAX) {
        item->fate = ITEM_STALE;
        return;
    }
    if (in->lease.len > 0) {
        out.fenced = 1;
        out.lease = body_lease(in->lease);
    }
    item->number = p->sent++;
    ack_item_add(command, &out);
}

static const char stale_text[] = "transaction is unresolvable, already committed, or acknowledgment is stale";

static void error_render(struct buf *out, const struct ack_plan_item *item, const struct ack_outcome *outcome)
{
    if (item->fate == ITEM_NO_NUMBER) {
        buf_text(out, "\"partitionId is not a partition id\"");
        return;
    }
    if (item->fate == ITEM_STALE) {
        buf_printf(out, "\"%s\"", stale_text);
        return;
    }
    switch ((enum ack_verdict)outcome->verdict) {
    case ACK_OK:
    case ACK_NOOP:
        buf_text(out, "null");
        return;
    case ACK_REFUSED_LEASE:
        buf_text(out, "\"invalid or expired lease\"");
        return;
    case ACK_REFUSED_STALE:
        buf_printf(out, "\"%s\"", stale_text);
        return;
    case ACK_NO_PARTITION:
        buf_printf(out, "\"no partition %.*s\"", (int)item->partition.len, item->partition.at); /* digits only */
        return;
    case ACK_FOREIGN_PARTITION:
        buf_printf(out, "\"partition %.*s not owned by this tenant\"", (int)item->partition.len, item->partition.at);
        return;
    }
    must(false);
}

static void ack_line(struct buf *out, uint32_t index, const struct ack_plan_item *item, const struct ack_outcome *o)
{
    static const struct ack_outcome refused = {.verdict = ACK_REFUSED_STALE};
    if (item->fate != ITEM_SENT) o = &refused;
    bool success = o->verdict == ACK_OK || o->verdict == ACK_NOOP;
    buf_text(out, "{\"index\":");
    buf_decimal(out, index);
    buf_text(out, ",\"transactionId\":");
    render_text(out, item->transaction);
    buf_text(out, success ? ",\"success\":true,\"error\":" : ",\"success\":false,\"error\":");
    error_render(out, item, o);
    buf_text(out, o->lease_released ? ",\"leaseReleased\":true" : ",\"leaseReleased\":false");
    buf_text(out, o->dead_lettered ? ",\"dlq\":true" : ",\"dlq\":false");
    buf_text(out, o->verdict == ACK_NOOP ? ",\"noop\":true}" : ",\"noop\":false}");
}

static void ack_render(struct request *r)
{
    const struct ack_plan *p = r->route_data;
    buf_byte(&r->out, '[');
    for (uint32_t i = 0; i < p->count; i++) {
        const struct ack_plan_item *item = &p->items[i];
        if (i > 0) buf_byte(&r->out, ',');
        ack_line(&r->out, i, item, item->fate == ITEM_SENT ? &r->call.result.ack.items[item->number] : NULL);
    }
    buf_byte(&r->out, ']');
    answer_json(r, 200);
    counter_add(&edge_metrics_of(r->edge)->ack_messages, p->count);
}

static void ack_after(struct request *r)
{
    const struct ack_plan *p = r->route_data;
    if (!answer_outcome(r)) return;
    must(r->call.result.kind == COMMAND_ACK && r->call.result.ack.count == p->sent);
    ack_render(r);
}

void route_ack(struct request *r)
{
    struct arena *arena = request_arena(r);
    struct body_refusal why;
    struct slice group = {0};
    struct buf *inputs = &r->out; /* free until there is an answer */
    if (!body_ack_read(request_body(r), arena, inputs, &group, &why)) {
        answer_refusal(r, &why);
        return;
    }
    if (!name_fits(slice_make("", 0), slice_make("", 0), group)) {
        answer_name_too_long(r);
        return;
    }
    uint32_t count = (uint32_t)(inputs->len / sizeof(struct ack_input)), sendable = 0;
    const struct ack_input *in = (const struct ack_input *)(const void *)inputs->at;
    struct ack_plan *p = arena_get(arena, sizeof *p);
    *p = (struct ack_plan){.items = arena_get(arena, count * sizeof *p->items)};
    for (uint32_t i = 0; i < count; i++) {
        uint64_t ignored;
        sendable +=
            body_partition_number(in[i].partition, &ignored) && in[i].transaction.len <= TRANSACTION_ID_BYTES_MAX ? 1 : 0;
    }
    size_t command_at = r->command.len;
    ack_begin(&r->command, r->tenant, group, sendable);
    for (uint32_t i = 0; i < count; i++) item_plan(p, &in[i], &r->command);
    ack_end(&r->command, command_at);
    must(p->sent == sendable);
    buf_clear(&r->out);
    r->route_data = p;
    if (sendable == 0) {
        ack_render(r);
        return;
    }
    if (r->command.len > COMMAND_BYTES_MAX) {
        answer_error(r, 413, "bad_request", "the acknowledgments are larger than one command may be");
        return;
    }
    r->call.kind = CALL_WRITE;
    r->call.command = buf_view(&r->command);
    request_submit(r, r->http->config->statement_timeout_ms, ack_after);
}

/* ---- lease extension ----------------------------------------------------------------------------------------------- */

static void extend_render(struct request *r, uint32_t renewed, int64_t expires_wall_us)
{
    static const char *const keys[] = {",\"newExpiresAt\":", ",\"expiresAt\":", ",\"lease_expires_at\":"};
    buf_text(&r->out, "{\"leaseId\":");
    render_text(&r->out, r->params[0]);
    buf_printf(&r->out, ",\"success\":%s,\"renewed\":%u", renewed > 0 ? "true" : "false", renewed);
    for (unsigned i = 0; i < 3; i++) {
        buf_text(&r->out, keys[i]);
        if (renewed == 0)
            buf_text(&r->out, "null");
        else
            render_time_ms(&r->out, expires_wall_us);
    }
    buf_byte(&r->out, '}');
    answer_json(r, 200);
}

static void extend_after(struct request *r)
{
    if (!answer_outcome(r)) return;
    must(r->call.result.kind == COMMAND_EXTEND);
    extend_render(r, r->call.result.extend.renewed, r->call.result.extend.expires_wall_us);
}

void route_extend(struct request *r)
{
    struct extend_command e = {.tenant = r->tenant, .seconds = body_extend_read(request_body(r), request_arena(r))};
    if (!uuid_parse(r->params[0], &e.lease)) {
        extend_render(r, 0, 0); /* nobody's lease */
        return;
    }
    extend_encode(&r->command, &e);
    r->call.kind = CALL_WRITE;
    r->call.command = buf_view(&r->command);
    request_submit(r, r->http->config->statement_timeout_ms, extend_after);
}
