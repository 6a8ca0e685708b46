/* POST /api/v1/push
 *
 *   body    {"items":[{"queue","partition"?,"payload","transactionId"?,"traceId"?}]}: queue a non-empty string; partition a
 *           string or null ("" and null are `Default`); payload any JSON value, kept byte for byte; transactionId a string of at
 *           most 65,535 bytes or null; traceId is kept when it is a UUID. Unknown fields are ignored, also producerSub.
 *   answer  201 and an array in input order: {"index","message_id","transaction_id","queueName","status":"queued"|"duplicate","offset"}
 *   errors  400 bad_body (the whole request), 413 name_too_long, 429 overloaded, 507 storage_full, 503, 500
 *
 * All items are one command. Items are grouped by (queue, partition) in order of first appearance; in a group they keep their
 * order. The deadline is POP_DEFAULT_TIMEOUT_MS. Cost: linear; two copies of a payload, body to command to log. */
#include "base/hash.h"
#include "base/limits.h"
#include "http/answer.h"
#include "http/body.h"
#include "http/edge.h"
#include "http/name.h"
#include "http/render.h"
#include "http/route.h"

struct push_group_plan {
    struct slice queue, partition;
    uint32_t count, start; /* items; number of the first one in the command */
};

/* What the answer needs of each item, in input order. */
struct push_answer {
    struct slice transaction;
    uint32_t group, number; /* place in the group; with the group's start the place in the command */
    bool has_transaction;
};

struct push_plan {
    uint32_t count, group_count, group_cap;
    struct push_answer *answers;
    struct push_group_plan *groups;
    uint32_t *table; /* open addressing over groups, 1 + index; NULL while there are few */
    uint32_t table_mask;
};

enum { GROUPS_SCANNED = 8 };

static bool group_is(const struct push_group_plan *g, const struct push_input *item)
{
    return slice_equal(g->partition, item->partition) && slice_equal(g->queue, item->queue);
}

static uint32_t *table_slot(const struct push_plan *p, struct slice queue, struct slice partition)
{
    uint32_t at = (uint32_t)hash64(partition, hash64(queue, 0)) & p->table_mask;
    for (;; at = (at + 1) & p->table_mask) {
        uint32_t g = p->table[at];
        if (g == 0) return &p->table[at];
        if (slice_equal(p->groups[g - 1].partition, partition) && slice_equal(p->groups[g - 1].queue, queue))
            return &p->table[at];
    }
}

/* At most half full, for all groups that can still come. */
static void table_build(struct push_plan *p, struct arena *arena)
{
    uint32_t size = 32;
    while (size < p->count * 2) size *= 2;
    p->table = arena_zero(arena, size * sizeof *p->table);
    p->table_mask = size - 1;
    for (uint32_t i = 0; i < p->group_count; i++) *table_slot(p, p->groups[i].queue, p->groups[i].partition) = i + 1;
}

static uint32_t group_add(struct push_plan *p, struct arena *arena, const struct push_input *item)
{
    if (p->group_count == p->group_cap) {
        uint32_t cap = p->group_cap == 0 ? 4 : p->group_cap * 2;
        struct push_group_plan *grown = arena_get(arena, cap * sizeof *grown);
        if (p->group_count > 0) memcpy(grown, p->groups, p->group_count * sizeof *grown);
        p->groups = grown;
        p->group_cap = cap;
    }
    p->groups[p->group_count] = (struct push_group_plan){.queue = item->queue, .partition = item->partition};
    return p->group_count++;
}

static uint32_t group_find(struct push_plan *p, struct arena *arena, const struct push_input *item, uint32_t last)
{
    if (last < p->group_count && group_is(&p->groups[last], item)) return last;
    if (p->table == NULL) {
        for (uint32_t i = 0; i < p->group_count; i++) {
            if (group_is(&p->groups[i], item)) return i;
        }
        if (p->group_count < GROUPS_SCANNED) return group_add(p, arena, item);
        table_build(p, arena);
    }
    uint32_t *slot = table_slot(p, item->queue, item->partition);
    if (*slot == 0) *slot = 1 + group_add(p, arena, item);
    return *slot - 1;
}

/* False: a name is too long. */
static bool plan_make(struct push_plan *p, struct arena *arena, const struct push_input *items, uint32_t count)
{
    uint32_t last = UINT32_MAX;
    *p = (struct push_plan){.count = count, .answers = arena_get(arena, count * sizeof *p->answers)};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t before = p->group_count;
        last = group_find(p, arena, &items[i], last);
        if (p->group_count > before && !name_fits(items[i].queue, items[i].partition, slice_make("", 0))) return false;
        p->answers[i] = (struct push_answer){.transaction = items[i].transaction,
                                             .group = last,
                                             .number = p->groups[last].count++,
                                             .has_transaction = items[i].has_transaction};
    }
    for (uint32_t i = 0, start = 0; i < p->group_count; i++) {
        p->groups[i].start = start;
        start += p->groups[i].count;
    }
    return true;
}

static void item_write(struct push_writer *w, const struct push_input *in)
{
    struct push_item item = {.flags = 0, .payload = in->payload};
    if (in->has_transaction) {
        item.flags |= ITEM_TRANSACTION;
        item.transaction = in->transaction;
    }
    if (in->has_trace) {
        item.flags |= ITEM_TRACE;
        item.trace = in->trace;
    }
    push_item_add(w, &item);
}

static void command_write(struct request *r, const struct push_plan *p, const struct push_input *items)
{
    struct push_writer w;
    uint32_t *order = NULL;
    if (p->group_count > 1) {
        order = arena_get(request_arena(r), p->count * sizeof *order);
        for (uint32_t i = 0; i < p->count; i++) order[p->groups[p->answers[i].group].start + p->answers[i].number] = i;
    }
    push_begin(&w, &r->command, r->tenant);
    for (uint32_t g = 0; g < p->group_count; g++) {
        const struct push_group_plan *group = &p->groups[g];
        push_group_begin(&w, group->queue, group->partition, group->count);
        for (uint32_t k = group->start; k < group->start + group->count; k++)
            item_write(&w, &items[order == NULL ? k : order[k]]);
        push_group_end(&w);
    }
    push_end(&w);
}

static void push_after(struct request *r)
{
    const struct push_plan *p = r->route_data;
    if (!answer_outcome(r)) return;
    must(r->call.result.kind == COMMAND_PUSH && r->call.result.push.count == p->count);
    struct slice *queues = arena_get(request_arena(r), p->group_count * sizeof *queues);
    struct buf text = {0};
    for (uint32_t g = 0; g < p->group_count; g++) {
        buf_clear(&text);
        render_text(&text, p->groups[g].queue);
        queues[g] = arena_copy(request_arena(r), buf_view(&text));
    }
    buf_free(&text);
    buf_byte(&r->out, '[');
    for (uint32_t i = 0; i < p->count; i++) {
        const struct push_answer *a = &p->answers[i];
        if (i > 0) buf_byte(&r->out, ',');
        render_push_line(&r->out, &(struct push_line){
                                      .index = i,
                                      .outcome = &r->call.result.push.items[p->groups[a->group].start + a->number],
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
    if (!body_push_read(request_body(r), arena, items, &why)) {
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
