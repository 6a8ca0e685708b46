/* POST /api/v1/push
 *
 *   body    {"items":[{"queue","partition"?,"payload","transactionId"?,"traceId"?}]}: queue a non-empty string; partition a
 *           string or null ("" and null are `Default`); payload any JSON value, kept byte for byte; transactionId a string of at
 *           most 65,535 bytes or null; traceId is kept when it is a UUID. Unknown fields are ignored, also producerSub.
 *   answer  201 and an array in input order: {"index","message_id","transaction_id","queueName","status":"queued"|"duplicate","offset"}
 *   errors  400 bad_body (the whole request), 413 name_too_long, 413 too_many_items, 429 overloaded, 507 storage_full, 503, 500
 *
 * All items are one command. Items are grouped by (queue, partition) in order of first appearance; in a group they keep their
 * order. The deadline is POP_DEFAULT_TIMEOUT_MS. Cost: linear; two copies of a payload, body to command to log. */
#include "base/limits.h"
#include "http/answer.h"
#include "http/body.h"
#include "http/edge.h"
#include "http/lanes.h"
#include "http/name.h"
#include "http/render.h"
#include "http/route.h"

enum { PUSH_ITEM_BYTES = 512 }; /* of an item however small, with its answer: all of a push have at most the bodies' share */

/* What the answer needs of each item, in input order. */
struct push_answer {
    struct slice transaction;
    uint32_t group, number; /* place in the group; with the group's start the place in the command */
    bool has_transaction;
};

struct push_plan {
    uint32_t count;
    struct push_answer *answers;
    struct lanes lanes;
};

/* False: a name is too long. */
static bool plan_make(struct push_plan *p, struct arena *arena, const struct push_input *items, uint32_t count)
{
    struct lanes *l = &p->lanes;
    *p = (struct push_plan){.count = count, .answers = arena_get(arena, count * sizeof *p->answers)};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t before = l->count, number = lanes_find(l, arena, items[i].queue, items[i].partition);
        if (l->count > before && !name_fits(items[i].queue, items[i].partition, slice_make("", 0))) return false;
        p->answers[i] = (struct push_answer){.transaction = items[i].transaction,
                                             .group = number,
                                             .number = l->items[number].count++,
                                             .has_transaction = items[i].has_transaction};
    }
    for (uint32_t i = 0, start = 0; i < l->count; i++) {
        l->items[i].start = start;
        start += l->items[i].count;
    }
    return true;
}

static void command_write(struct request *r, const struct push_plan *p, const struct push_input *items)
{
    struct push_writer w;
    uint32_t *order = NULL;
    if (p->lanes.count > 1) {
        order = arena_get(request_arena(r), p->count * sizeof *order);
        for (uint32_t i = 0; i < p->count; i++) order[p->lanes.items[p->answers[i].group].start + p->answers[i].number] = i;
    }
    push_begin(&w, &r->command, r->tenant);
    for (uint32_t g = 0; g < p->lanes.count; g++) {
        const struct lane *group = &p->lanes.items[g];
        push_group_begin(&w, group->queue, group->partition, group->count);
        for (uint32_t k = group->start; k < group->start + group->count; k++)
            push_input_write(&w, &items[order == NULL ? k : order[k]]);
        push_group_end(&w);
    }
    push_end(&w);
}

static void push_after(struct request *r)
{
    const struct push_plan *p = r->route_data;
    if (!answer_outcome(r)) return;
    must(r->call.result.kind == COMMAND_PUSH && r->call.result.push.count == p->count);
    struct slice *queues = arena_get(request_arena(r), p->lanes.count * sizeof *queues);
    struct buf text = {0};
    for (uint32_t g = 0; g < p->lanes.count; g++) {
        buf_clear(&text);
        render_text(&text, p->lanes.items[g].queue);
        queues[g] = arena_copy(request_arena(r), buf_view(&text));
    }
    buf_free(&text);
    buf_byte(&r->out, '[');
    for (uint32_t i = 0; i < p->count; i++) {
        const struct push_answer *a = &p->answers[i];
        if (i > 0) buf_byte(&r->out, ',');
        render_push_line(&r->out, &(struct push_line){
                                      .index = i,
                                      .outcome = &r->call.result.push.items[p->lanes.items[a->group].start + a->number],
                                      .has_transaction = a->has_transaction,
                                      .transaction = a->transaction,
                                      .queue = queues[a->group],
                                  });
    }
    buf_byte(&r->out, ']');
    answer_json(r, 201);
    counter_add(&edge_metrics_of(r->edge)->push_messages, p->count);
}

void route_push(struct request *r)
{
    struct arena *arena = request_arena(r);
    struct body_refusal why;
    struct buf *items = &r->out; /* free until there is an answer */
    uint64_t items_max = r->http->config->memory.bodies / PUSH_ITEM_BYTES;
    if (!body_push_read(request_body(r), items_max == 0 ? UINT32_MAX : items_max, arena, items, &why)) {
        answer_refusal(r, &why);
        return;
    }
    uint32_t count = (uint32_t)(items->len / sizeof(struct push_input));
    if (count == 0) {
        buf_text(&r->out, "[]");
        answer_json(r, 201);
        return;
    }
    struct push_plan *p = arena_get(arena, sizeof *p);
    const struct push_input *inputs = (const struct push_input *)(const void *)items->at;
    if (!plan_make(p, arena, inputs, count)) {
        answer_name_too_long(r);
        return;
    }
    command_write(r, p, inputs);
    buf_clear(&r->out);
    if (r->command.len > COMMAND_BYTES_MAX) {
        answer_error(r, 413, "bad_request", "the items are larger than one command may be");
        return;
    }
    r->route_data = p;
    r->call.kind = CALL_WRITE;
    r->call.grows = true;
    r->call.command = buf_view(&r->command);
    request_submit(r, r->http->config->pop_timeout_ms, push_after);
}
