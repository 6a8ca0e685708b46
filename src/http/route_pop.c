/* GET /api/v1/pop/queue/:queue                        any lane of the queue
 * GET /api/v1/pop/queue/:queue/partition/:partition   that lane
 * GET /api/v1/pop?namespace=&task=                    any lane of the queues with these labels
 *
 *   query   batch (200, at least 1, at most 100,000), partitions (1, 1..64; with conflation: batch), wait (false), timeout
 *           (30,000 ms, 1..60,000), leaseSeconds (0 = the queue's; at most a year), consumerGroup, autoAck or commitOnDelivery,
 *           subscriptionMode (new, new-only, new_only, newonly; anything else is all), subscriptionFrom (now, or an ISO time;
 *           beats the mode; what is neither is ignored), conflation, autopilot (queue pops). Integers and booleans are strict.
 *   answer  200 with messages, 204 when there is nothing to deliver (200 without messages for a conflating group, so that clients see
 *           the key `conflation`)
 *   errors  400 {"success":false,"error","messages":[]} for parameters that do not go together, 400 text for wrong types,
 *           413 name_too_long, 429 overloaded (too many parked polls), 503, 500
 *
 * A waiting pop ends min(250 ms, a quarter of its time) before its timeout, so that the answer is there in time. */
#include "base/clock.h"
#include "base/isotime.h"
#include "base/limits.h"
#include "http/answer.h"
#include "http/edge.h"
#include "http/name.h"
#include "http/pop_params.h"
#include "http/render.h"
#include "http/route.h"

static bool integers_read(struct request *r, struct pop_params *q)
{
    bool given;
    if (!query_int(r, "batch", &q->batch, &q->batch_given) ||
        !query_int(r, "partitions", &q->partitions, &q->partitions_given) || !query_int(r, "timeout", &q->timeout_ms, &given) ||
        !query_int(r, "leaseSeconds", &q->lease_seconds, &given)) {
        return false;
    }
    if (q->timeout_ms >= 0) return true;
    answer_plain(r, 400, "query parameter timeout: milliseconds are required");
    return false;
}

static bool booleans_read(struct request *r, struct pop_params *q)
{
    bool given, commit = false;
    if (!query_bool(r, "wait", &q->wait, &given) || !query_bool(r, "autoAck", &q->auto_ack, &given) ||
        !query_bool(r, "commitOnDelivery", &commit, &given) || !query_bool(r, "autopilot", &q->autopilot, &given) ||
        !query_bool(r, "conflation", &q->conflation, &q->conflation_given)) {
        return false;
    }
    q->auto_ack |= commit;
    return true;
}

static int64_t clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

void pop_params_begin(struct pop_params *p, const struct config *config)
{
    *p = (struct pop_params){
        .batch = POP_BATCH_DEFAULT, .partitions = 1, .timeout_ms = config->pop_timeout_ms, .group = slice_of(QUEUE_MODE_GROUP)};
}

const char *pop_params_settle(struct pop_params *p)
{
    if (p->group.len == 0) return "consumerGroup must not be empty";
    if (name_has_control(p->group)) return "consumerGroup has a control character";
    if (p->conflation && !p->group_given) return "conflation needs a consumerGroup";
    if (p->conflation && p->auto_ack) return "conflation cannot be combined with autoAck or commitOnDelivery";
    p->batch = clamp(p->batch, 1, POP_BATCH_MAX);
    if (!p->partitions_given && p->conflation) p->partitions = p->batch;
    p->partitions = clamp(p->partitions, 1, POP_PARTITIONS_MAX);
    p->timeout_ms = clamp(p->timeout_ms, 1, DEADLINE_MS_MAX);
    p->lease_seconds = clamp(p->lease_seconds, 0, LEASE_SECONDS_MAX);
    return NULL;
}

/* False: an answer was set. */
static bool query_read(struct request *r, struct pop_params *q)
{
    struct slice group = {0};
    pop_params_begin(q, r->http->config);
    if (!integers_read(r, q) || !booleans_read(r, q)) return false;
    q->group_given = query_text(r, "consumerGroup", &group);
    if (group.at != NULL) q->group = group;
    query_text(r, "subscriptionMode", &q->mode);
    query_text(r, "subscriptionFrom", &q->from);
    const char *refusal = pop_params_settle(q);
    if (refusal != NULL) answer_pop_refusal(r, refusal);
    return refusal == NULL;
}

uint8_t subscription_mode_of(struct slice text, const struct config *config)
{
    if (text.len == 0) return config->subscribe_all ? SUBSCRIBE_ALL : SUBSCRIBE_NEW;
    bool is_new = name_equals_caseless(text, "new") || name_equals_caseless(text, "new-only") ||
                  name_equals_caseless(text, "new_only") || name_equals_caseless(text, "newonly");
    return is_new ? SUBSCRIBE_NEW : SUBSCRIBE_ALL;
}

/* Where a group starts that the broker does not know yet. Queue mode always starts at the beginning. */
static void subscription_set(const struct pop_params *q, const struct config *config, struct pop_command *p)
{
    p->mode = SUBSCRIBE_ALL;
    if (!q->group_given || slice_is(q->group, QUEUE_MODE_GROUP)) return;
    p->mode = subscription_mode_of(q->mode, config);
    if (q->from.len == 0) return;
    if (name_equals_caseless(q->from, "now"))
        p->mode = SUBSCRIBE_NEW;
    else if (isotime_parse(q->from, &p->from_us))
        p->mode = SUBSCRIBE_FROM;
}

void pop_params_command(const struct pop_params *p, const struct config *config, struct uuid tenant, struct pop_command *out)
{
    out->tenant = tenant;
    out->lease_id = uuid_mint(clock_wall_us());
    out->auto_ack = p->auto_ack;
    out->batch = (uint32_t)p->batch;
    out->partitions = out->scope == POP_PARTITION ? 1 : (uint32_t)p->partitions;
    out->lease_us = p->lease_seconds * 1000000;
    uint64_t bytes = config->memory.answers / 4; /* so that several fit */
    if (bytes < POP_BYTES_MAX) out->bytes_max = (uint32_t)bytes;
    out->conflation = !p->conflation_given ? CONFLATION_ABSENT : p->conflation ? CONFLATION_ON : CONFLATION_OFF;
    out->group = p->group;
    subscription_set(p, config, out);
}

void pop_answer_append(struct request *r, const struct engine_result *result)
{
    struct call *call = &r->call;
    struct engine_result empty = {.kind = COMMAND_POP};
    if (result != NULL && result->pop.messages == 0) {
        empty.pop.conflates = result->pop.conflates;
        empty.pop.conflation_conflict = result->pop.conflation_conflict;
    }
    if (result == NULL || result->pop.messages == 0) result = &empty;
    struct pop_answer a = {
        .result = result,
        .pieces = call->pieces,
        .id_seed = request_seed(r),
        .queue = call->pop.scope == POP_DISCOVERY ? slice_make("", 0) : call->pop.queue,
        .group = call->pop.group,
        .lease = call->pop.lease_id,
        .auto_ack = call->pop.auto_ack != 0,
        .autopilot = call->choose_batch || call->choose_partitions,
        .chosen_partitions = call->pop.partitions,
        .chosen_batch = call->pop.batch,
    };
    if (call->held > EDGE_BODY_KEEP) buf_reserve(&r->out, call->held); /* at once: growing would hold it twice */
    render_pop(&r->out, &a);
    if (call->pieces != NULL) broker_pieces_release(r->broker, call);
    counter_add(&edge_metrics_of(r->edge)->pop_messages, result->pop.messages);
}

static void pop_after(struct request *r)
{
    struct call *call = &r->call;
    if (!answer_outcome(r)) return;
    const struct engine_result *result = &call->result;
    if (call->outcome == CALL_EMPTY) call->result.pop.messages = 0;
    if (result->pop.messages == 0 && !result->pop.conflates && !result->pop.conflation_conflict) {
        if (call->pieces != NULL) broker_pieces_release(r->broker, call);
        answer_empty(r);
        return;
    }
    pop_answer_append(r, result);
    answer_json(r, 200);
}

static void pop_submit(struct request *r, const struct pop_params *q, struct pop_command *p)
{
    struct call *call = &r->call;
    pop_params_command(q, r->http->config, r->tenant, p);
    call->kind = CALL_POP;
    call->wait = q->wait && p->scope != POP_DISCOVERY;
    if (q->autopilot && p->scope == POP_QUEUE && !q->conflation) {
        call->choose_batch = !q->batch_given;
        call->choose_partitions = !q->partitions_given;
        if (call->choose_batch) p->batch = 0;
        if (call->choose_partitions) p->partitions = 0;
    }
    call->pop = *p;
    request_submit(r, (uint32_t)q->timeout_ms, pop_after); /* the broker ends a long poll early */
}

void route_pop_queue(struct request *r)
{
    struct pop_params q;
    struct pop_command p = {.scope = POP_QUEUE, .queue = r->params[0]};
    if (!query_read(r, &q)) return;
    if (!name_fits(p.queue, slice_make("", 0), q.group))
        answer_name_too_long(r);
    else
        pop_submit(r, &q, &p);
}

void route_pop_partition(struct request *r)
{
    struct pop_params q;
    struct pop_command p = {.scope = POP_PARTITION, .queue = r->params[0], .partition = r->params[1]};
    if (!query_read(r, &q)) return;
    if (!name_fits(p.queue, p.partition, q.group))
        answer_name_too_long(r);
    else
        pop_submit(r, &q, &p);
}

void route_pop_discovery(struct request *r)
{
    struct pop_params q;
    struct pop_command p = {.scope = POP_DISCOVERY};
    if (!query_read(r, &q)) return;
    bool labelled = query_text(r, "namespace", &p.name_space);
    labelled |= query_text(r, "task", &p.task);
    if (!labelled)
        answer_pop_refusal(r, "namespace or task is required");
    else if (p.name_space.len > NAMES_BYTES_MAX || p.task.len > NAMES_BYTES_MAX ||
             !name_fits(slice_make("", 0), slice_make("", 0), q.group)) /* a label configure takes is one to pop by */
        answer_name_too_long(r);
    else
        pop_submit(r, &q, &p);
}
