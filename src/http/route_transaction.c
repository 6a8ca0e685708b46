/* POST /api/v1/transaction
 *
 *   body    {"operations"?,"requiredLeases"?,"kv"?,"timers"?,"positions"?,"next"?}, each an array (next: an object) or null.
 *           An operation is an ack {"type":"ack","transactionId","partitionId","consumerGroup"?,"leaseId"?,"status"?,"error"?}, or a push:
 *           {"type":"push","items":[...]} with the items of the push route, or one item in the operation itself. An ack without a
 *           leaseId has the one lease that requiredLeases and the other acks name, if they name exactly one; else it has none.
 *           kv and timers: the ops of their routes. positions: {"queue","consumerGroup","partition"?,"offset","metadata"?,
 *           "subscriptionMode"?}. next: take a batch in the same call, once it has committed: {"queue","partition"?} and the parameters
 *           of a pop (not namespace, task, autoAck).
 *   answer  200 {"transactionId","success":true,"results":[...],"next"?}: one flat index space of acks and pushed items in order, KV ops,
 *           timer ops, positions; `next` is what a pop answers. Or 200 {"transactionId","success":false,"reason","error","results":[]}:
 *           nothing was changed, nothing was taken.
 *   errors  400, 413 in the latter form for what can never be right; and as everywhere 413 name_too_long, 429 overloaded, 507
 *           storage_full, 503, 500: then the outcome may be unknown.
 *
 * All of it is one command, so it is done whole or not at all. What is committed is durable before `next` waits; when that wait ends
 * in whatever way, the answer says that the transaction is committed. The deadline is QUEEN_STMT_TIMEOUT_MS, and for the wait the
 * `timeout` of next on top. */
#include "base/clock.h"
#include "base/limits.h"
#include "http/answer.h"
#include "http/edge.h"
#include "http/metrics_step.h"
#include "http/pop_params.h"
#include "http/render.h"
#include "http/route.h"
#include "http/transaction.h"

/* ---- committed ---------------------------------------------------------------------------------------------------- */

/* The queue name of each lane as JSON. The command is not needed any more: its memory takes them. */
static const struct slice *queue_names(struct request *r, const struct lanes *lanes)
{
    struct slice *names = arena_get(request_arena(r), lanes->count * sizeof *names);
    buf_clear(&r->command);
    for (uint32_t i = 0; i < lanes->count; i++) {
        size_t at = r->command.len;
        render_text(&r->command, lanes->items[i].queue);
        names[i].len = r->command.len - at;
    }
    const char *at = r->command.at;
    for (uint32_t i = 0; i < lanes->count; at += names[i++].len) names[i].at = at;
    return names;
}

static inline void element_begin(struct buf *out, uint32_t index)
{
    if (index > 0) buf_byte(out, ',');
}

static void slots_render(struct request *r, const struct transaction_input *in, const struct step_result *step)
{
    const struct slice *queues = queue_names(r, &in->lanes);
    uint32_t index = 0;
    for (const struct transaction_slot *s = in->slots; s != NULL; s = s->next, index++) {
        element_begin(&r->out, index);
        if (s->kind == SLOT_ACK) {
            render_step_ack(&r->out, index, s->ack.item.transaction, s->ack.item.status == ACK_DLQ);
            continue;
        }
        render_step_push(&r->out, &(struct push_line){.index = index,
                                                      .outcome = &step->push.items[s->number],
                                                      .has_transaction = s->push.has_transaction,
                                                      .transaction = s->push.transaction,
                                                      .queue = queues[s->place]});
    }
}

static void riders_render(struct buf *out, const struct transaction_input *in, const struct step_result *step)
{
    uint32_t index = in->slot_count;
    for (uint32_t i = 0; i < in->kv.count; i++, index++) {
        element_begin(out, index);
        kv_element_open(out, &in->kv.items[i], &step->kv.items[i], index);
        buf_text(out, ",\"opIndex\":");
        buf_decimal(out, i);
        buf_text(out, ",\"type\":\"kv\"}");
    }
    for (uint32_t i = 0; i < in->timers.count; i++, index++) {
        element_begin(out, index);
        timer_element_open(out, &in->timers.items[i], &step->timers.items[i]);
        buf_printf(out, ",\"opIndex\":%u,\"index\":%u,\"type\":\"timer\"}", i, index);
    }
    for (uint32_t i = 0; i < in->position_count; i++, index++) {
        element_begin(out, index);
        buf_printf(out, "{\"index\":%u,\"opIndex\":%u,\"type\":\"position\",\"success\":true}", index, i);
    }
}

static void answer_open(struct request *r, bool success)
{
    buf_text(&r->out, "{\"transactionId\":");
    render_uuid(&r->out, uuid_mint(clock_wall_us()));
    buf_text(&r->out, success ? ",\"success\":true," : ",\"success\":false,");
}

static void commit_render(struct request *r, const struct step_result *step)
{
    const struct transaction_input *in = r->route_data;
    struct edge_metrics *metrics = edge_metrics_of(r->edge);
    must(step->acks.count == in->ack_count && step->push.count == in->push_count && step->kv.count == in->kv.count &&
         step->timers.count == in->timers.count);
    answer_open(r, true);
    buf_text(&r->out, "\"results\":[");
    slots_render(r, in, step);
    riders_render(&r->out, in, step);
    buf_byte(&r->out, ']');
    if (in->has_next) {
        bool known = r->call.outcome == CALL_OK || r->call.outcome == CALL_EMPTY;
        buf_text(&r->out, ",\"next\":");
        pop_answer_append(r, known ? &r->call.result : NULL);
    }
    buf_byte(&r->out, '}');
    answer_json(r, 200);
    counter_add(&metrics->ack_messages, in->ack_count);
    counter_add(&metrics->push_messages, in->push_count);
    metrics_step(metrics, &in->kv, step);
}

/* ---- refused ------------------------------------------------------------------------------------------------------ */

/* {"transactionId","success":false,"reason","error":"<text>": the caller goes on with the text, then refusal_close. */
static void refusal_open(struct request *r, const char *reason)
{
    answer_open(r, false);
    buf_printf(&r->out, "\"reason\":\"%s\",\"error\":\"", reason);
}

static const char *ack_refusal(const struct ack_outcome *o)
{
    switch ((enum ack_verdict)o->verdict) {
    case ACK_REFUSED_LEASE:
        return "invalid or expired lease";
    case ACK_NO_PARTITION:
        return "no such partition";
    case ACK_FOREIGN_PARTITION:
        return "the partition is not owned by this tenant";
    case ACK_OK:
    case ACK_NOOP:
    case ACK_REFUSED_STALE:
        break;
    }
    return "transaction is unresolvable, already committed, or acknowledgment is stale";
}

static void ack_render(struct request *r, const struct step_result *step)
{
    uint32_t index;
    must(step->failed < step->acks.count);
    const struct transaction_slot *s = transaction_slot_find(r->route_data, SLOT_ACK, step->failed, &index);
    must(s != NULL);
    refusal_open(r, "rejected_ack");
    buf_printf(&r->out, "QTXN the ack of index %u was refused: %s; the transaction rolled back\",\"results\":[]}", index,
               ack_refusal(&step->acks.items[step->failed]));
}

static void duplicate_render(struct request *r, const struct step_result *step)
{
    uint32_t index;
    const struct transaction_slot *s = transaction_slot_find(r->route_data, SLOT_PUSH, step->failed, &index);
    must(s != NULL);
    refusal_open(r, "duplicate");
    buf_text(&r->out, "QDUP a pushed message to ");
    render_text_inside(&r->out, s->push.queue);
    buf_byte(&r->out, '/');
    render_text_inside(&r->out, s->push.partition);
    buf_text(&r->out, " is a duplicate (original offset ");
    buf_decimal(&r->out, step->offset);
    buf_text(&r->out, "); the transaction rolled back\",\"results\":[]}");
}

static void queue_render(struct request *r, const struct step_result *step)
{
    const struct transaction_input *in = r->route_data;
    must(step->failed < in->position_count);
    refusal_open(r, "queue_not_found");
    buf_printf(&r->out, "QTXN positions[%u] names a queue that does not exist: ", step->failed);
    render_text_inside(&r->out, in->positions[step->failed].queue);
    buf_text(&r->out, "; the transaction rolled back\",\"results\":[]}");
}

static size_t characters(struct slice utf8)
{
    size_t n = 0;
    for (size_t i = 0; i < utf8.len; i++) n += ((unsigned char)utf8.at[i] & 0xc0) != 0x80;
    return n;
}

static void precondition_render(struct request *r, const struct step_result *step)
{
    enum { DETAIL_CHARACTERS_MAX = 4096 };
    const struct transaction_input *in = r->route_data;
    must(step->failed < step->kv.count && step->kv.count == in->kv.count);
    const struct kv_outcome *o = &step->kv.items[step->failed];
    refusal_open(r, "kv_precondition");
    buf_text(&r->out, "QKV a required KV precondition failed; the transaction rolled back\",\"results\":[],\"ok\":false");
    size_t at = r->out.len;
    buf_printf(&r->out, ",\"failedIndex\":%u,\"kvReason\":\"%s\",\"version\":", in->slot_count + step->failed,
               kv_reason_text(o->reason));
    buf_decimal(&r->out, o->version);
    buf_text(&r->out, ",\"value\":");
    buf_slice(&r->out, kv_lost_value(o));
    if (characters(slice_make(r->out.at + at, r->out.len - at)) > DETAIL_CHARACTERS_MAX) r->out.len = at;
    buf_byte(&r->out, '}');
}

static void rollback_render(struct request *r, const struct step_result *step)
{
    switch ((enum step_refusal)step->refusal) {
    case STEP_REJECTED_ACK:
        ack_render(r, step);
        break;
    case STEP_QUEUE_NOT_FOUND:
        queue_render(r, step);
        break;
    case STEP_DUPLICATE:
        duplicate_render(r, step);
        break;
    case STEP_KV_PRECONDITION:
        precondition_render(r, step);
        break;
    case STEP_COMMITTED:
        must(false);
    }
    answer_json(r, 200);
    metrics_step(edge_metrics_of(r->edge), &((const struct transaction_input *)r->route_data)->kv, step);
}

/* Refused before it became a command. */
static void refusal_answer(struct request *r, const struct transaction_refusal *why)
{
    counter_add(&edge_metrics_of(r->edge)->transactions[TRANSACTION_MALFORMED], 1);
    if (why->reason == NULL) {
        answer_error(r, why->status, why->code, why->text);
        return;
    }
    refusal_open(r, why->reason);
    render_text_inside(&r->out, slice_of(why->text));
    buf_text(&r->out, "\",\"results\":[]}");
    answer_json(r, why->status);
}

/* ---- the call ----------------------------------------------------------------------------------------------------- */

static void transaction_after(struct request *r)
{
    const struct step_result *step = r->call.step; /* set: it has committed, whatever became of its next batch */
    if (step == NULL) {
        if (!answer_outcome(r)) {
            metrics_step(edge_metrics_of(r->edge), &((const struct transaction_input *)r->route_data)->kv, NULL);
            return;
        }
        must(r->call.result.kind == COMMAND_STEP);
        step = &r->call.result.step;
    }
    if (step->refusal == STEP_COMMITTED)
        commit_render(r, step);
    else
        rollback_render(r, step);
}

void route_transaction(struct request *r)
{
    struct arena *arena = request_arena(r);
    struct transaction_input *in = arena_get(arena, sizeof *in);
    struct transaction_refusal why;
    struct call *call = &r->call;
    r->route_data = in;
    if (!body_transaction_read(request_body(r), arena, r->http->config, r->tenant, in, &why) ||
        !transaction_plan(in, arena, &why)) {
        refusal_answer(r, &why);
        return;
    }
    if (transaction_is_empty(in)) {
        commit_render(r, &(struct step_result){0});
        return;
    }
    transaction_encode(in, r->tenant, arena, &r->command);
    call->kind = CALL_WRITE;
    call->grows = in->push_count > 0 || in->kv.grows || in->timers.schedules;
    call->command = buf_view(&r->command);
    call->has_next = in->has_next;
    if (in->has_next) {
        call->pop = in->pop;
        call->wait = in->wait;
        call->next_wait_us = in->wait_us;
    }
    request_submit(r, r->http->config->statement_timeout_ms, transaction_after);
}
