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
#include "http/render.h"
#include "http/route.h"

struct pop_query {
    int64_t batch, partitions, timeout_ms, lease_seconds;
    bool batch_given, partitions_given, wait, auto_ack, autopilot, conflation, conflation_given;
    bool group_given;
    struct slice group;
};

static bool integers_read(struct request *r, struct pop_query *q)
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

static bool booleans_read(struct request *r, struct pop_query *q)
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

/* False: an answer was set. */
static bool query_read(struct request *r, struct pop_query *q)
{
    *q = (struct pop_query){.batch = POP_BATCH_DEFAULT,
                            .partitions = 1,
                            .timeout_ms = r->http->config->pop_timeout_ms,
                            .group = slice_of(QUEUE_MODE_GROUP)};
    if (!integers_read(r, q) || !booleans_read(r, q)) return false;
    struct slice group = {0};
    q->group_given = query_text(r, "consumerGroup", &group);
    if (q->group_given) q->group = group;
    if (!q->group_given && group.at != NULL) {
        answer_pop_refusal(r, "consumerGroup must not be empty");
        return false;
    }
    if (name_has_control(q->group)) {
        answer_pop_refusal(r, "consumerGroup has a control character");
        return false;
    }
    if (q->conflation && !q->group_given) {
        answer_pop_refusal(r, "conflation needs a consumerGroup");
        return false;
    }
    if (q->conflation && q->auto_ack) {
        answer_pop_refusal(r, "conflation cannot be combined with autoAck or commitOnDelivery");
        return false;
    }
    q->batch = clamp(q->batch, 1, POP_BATCH_MAX);
    if (!q->partitions_given && q->conflation) q->partitions = q->batch;
    q->partitions = clamp(q->partitions, 1, POP_PARTITIONS_MAX);
    q->timeout_ms = clamp(q->timeout_ms, 1, DEADLINE_MS_MAX);
    q->lease_seconds = clamp(q->lease_seconds, 0, LEASE_SECONDS_MAX);
    return true;
}

static bool mode_is_new(struct slice text)
{
    return name_equals_caseless(text, "new") || name_equals_caseless(text, "new-only") ||
           name_equals_caseless(text, "new_only") || name_equals_caseless(text, "newonly");
}

/* Where a group starts that the broker does not know yet. Queue mode always starts at the beginning. */
static void subscription_read(struct request *r, const struct pop_query *q, struct pop_command *p)
{
    struct slice mode = {0}, from = {0};
    p->mode = SUBSCRIBE_ALL;
    if (!q->group_given || slice_is(q->group, QUEUE_MODE_GROUP)) return;
    if (query_text(r, "subscriptionMode", &mode))
        p->mode = mode_is_new(mode) ? SUBSCRIBE_NEW : SUBSCRIBE_ALL;
    else
        p->mode = r->http->config->subscribe_all ? SUBSCRIBE_ALL : SUBSCRIBE_NEW;
    if (!query_text(r, "subscriptionFrom", &from)) return;
    if (name_equals_caseless(from, "now"))
        p->mode = SUBSCRIBE_NEW;
    else if (isotime_parse(from, &p->from_us))
        p->mode = SUBSCRIBE_FROM;
}

static void pop_after(struct request *r)
{
    struct call *call = &r->call;
    if (!answer_outcome(r)) return;
    const struct engine_result *result = &call->result;
    bool nothing = call->outcome == CALL_EMPTY || result->pop.messages == 0;
    if (nothing && !result->pop.conflates && !result->pop.conflation_conflict) {
        if (call->pieces != NULL) broker_pieces_release(r->http->broker, call);
        answer_empty(r);
        return;
    }
    struct engine_result empty = {.kind = COMMAND_POP};
    empty.pop.conflates = result->pop.conflates;
    empty.pop.conflation_conflict = result->pop.conflation_conflict;
    struct pop_answer a = {
        .result = nothing ? &empty : result,
        .pieces = call->pieces,
        .id_seed = atomic_load_explicit(&r->http->id_seed, memory_order_relaxed),
        .queue = call->pop.scope == POP_DISCOVERY ? slice_make("", 0) : call->pop.queue,
        .group = call->pop.group,
        .lease = call->pop.lease_id,
        .auto_ack = call->pop.auto_ack != 0,
        .autopilot = call->choose_batch || call->choose_partitions,
        .chosen_partitions = call->pop.partitions,
        .chosen_batch = call->pop.batch,
    };
    render_pop(&r->out, &a);
    if (call->pieces != NULL) broker_pieces_release(r->http->broker, call);
    answer_json(r, 200);
    counter_add(&edge_metrics_of(r->edge)->pop_messages, a.result->pop.messages);
}

static void pop_submit(struct request *r, const struct pop_query *q, struct pop_command *p)
{
    struct call *call = &r->call;
    p->tenant = r->tenant;
    p->lease_id = uuid_mint(clock_wall_us());
    p->auto_ack = q->auto_ack;
    p->batch = (uint32_t)q->batch;
    p->partitions = p->scope == POP_PARTITION ? 1 : (uint32_t)q->partitions;
    p->lease_us = q->lease_seconds * 1000000;
    p->conflation = !q->conflation_given ? CONFLATION_ABSENT : q->conflation ? CONFLATION_ON : CONFLATION_OFF;
    p->group = q->group;
    subscription_read(r, q, p);
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
    struct pop_query q;
    struct pop_command p = {.scope = POP_QUEUE, .queue = r->params[0]};
    if (!query_read(r, &q)) return;
    if (!name_fits(p.queue, slice_make("", 0), q.group))
        answer_name_too_long(r);
    else
        pop_submit(r, &q, &p);
}

void route_pop_partition(struct request *r)
{
    struct pop_query q;
    struct pop_command p = {.scope = POP_PARTITION, .queue = r->params[0], .partition = r->params[1]};
    if (!query_read(r, &q)) return;
    if (!name_fits(p.queue, p.partition, q.group))
        answer_name_too_long(r);
    else
        pop_submit(r, &q, &p);
}

void route_pop_discovery(struct request *r)
{
    struct pop_query q;
    struct pop_command p = {.scope = POP_DISCOVERY};
    if (!query_read(r, &q)) return;
    bool labelled = query_text(r, "namespace", &p.name_space);
    labelled |= query_text(r, "task", &p.task);
    if (!labelled)
        answer_pop_refusal(r, "namespace or task is required");
    else if (!name_fits(p.name_space, slice_make("", 0), q.group) || !name_fits(p.task, slice_make("", 0), q.group))
        answer_name_too_long(r);
    else
        pop_submit(r, &q, &p);
}
