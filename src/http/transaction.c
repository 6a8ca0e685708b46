#include "http/transaction.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/limits.h"
#include "base/must.h"
#include "http/name.h"

/* ---- plan --------------------------------------------------------------------------------------------------------- */

/* What the parts take of the command, on the safe side. */
enum {
    STEP_BYTES = 512, /* heads of the step and its parts, the pop */
    ACK_BYTES = 40,
    ACK_GROUP_BYTES = 64,
    PUSH_BYTES = 28,
    PUSH_LANE_BYTES = 40,
    POSITION_BYTES = 64,
    KV_BYTES = 96,
    TIMER_BYTES = 128,
};

static bool refuse(struct transaction_refusal *why, uint32_t status, const char *reason, const char *code, const char *text)
{
    *why = (struct transaction_refusal){.status = status, .reason = reason, .code = code};
    snprintf(why->text, sizeof why->text, "%s", text);
    return false;
}

static void lane_append(struct lane *l, struct transaction_slot *s)
{
    struct transaction_slot *last = l->last;
    s->peer = NULL;
    if (last == NULL)
        l->first = s;
    else
        last->peer = s;
    l->last = s;
    l->count++;
}

/* False: a name is too long. */
static bool slot_place(struct transaction_input *in, struct arena *arena, struct transaction_slot *s, uint64_t *bytes)
{
    const struct slice none = slice_make("", 0);
    bool ack = s->kind == SLOT_ACK;
    struct lanes *lanes = ack ? &in->groups : &in->lanes;
    struct slice name = ack ? s->ack.group : s->push.queue, partition = ack ? none : s->push.partition;
    uint32_t before = lanes->count;
    s->place = lanes_find(lanes, arena, name, partition);
    lane_append(&lanes->items[s->place], s);
    if (lanes->count > before) {
        *bytes += name.len + partition.len + (ack ? ACK_GROUP_BYTES : PUSH_LANE_BYTES);
        if (ack ? !name_fits(none, none, name) : !name_fits(name, partition, none)) return false;
    }
    if (ack)
        *bytes += ACK_BYTES + s->ack.item.transaction.len + s->ack.item.error.len;
    else
        *bytes += PUSH_BYTES + s->push.transaction.len + s->push.payload.len;
    return true;
}

static uint64_t riders_bytes(const struct transaction_input *in)
{
    uint64_t bytes = STEP_BYTES;
    for (uint32_t i = 0; i < in->position_count; i++) {
        const struct position_item *p = &in->positions[i];
        bytes += POSITION_BYTES + p->queue.len + p->partition.len + p->group.len + p->metadata.len;
    }
    for (uint32_t i = 0; i < in->kv.count; i++) {
        const struct kv_op *op = &in->kv.items[i].op;
        bytes += KV_BYTES + op->name_space.len + op->key.len + op->value.len + op->min.len + op->max.len;
    }
    for (uint32_t i = 0; i < in->timers.count; i++) {
        const struct timer_op *op = &in->timers.items[i].op;
        bytes +=
            TIMER_BYTES + 2 * op->queue.len + op->partition.len + op->key.len + op->item.transaction.len + op->item.payload.len;
    }
    return bytes + in->pop.group.len + in->pop.queue.len + in->pop.partition.len;
}

bool transaction_plan(struct transaction_input *in, struct arena *arena, struct transaction_refusal *why)
{
    uint64_t bytes = riders_bytes(in);
    for (struct transaction_slot *s = in->slots; s != NULL; s = s->next) {
        if (slot_place(in, arena, s, &bytes)) continue;
        if (s->kind == SLOT_ACK) return refuse(why, 200, "name_too_long", NULL, "QTXN the consumerGroup of an ack is too long");
        return refuse(why, 413, NULL, "name_too_long", "queue and partition of a pushed item may have 411 bytes together");
    }
    return bytes <= COMMAND_BYTES_MAX || refuse(why, 200, "too_large", NULL, "QTXN the transaction is larger than one may be");
}

/* ---- command ------------------------------------------------------------------------------------------------------ */

bool transaction_is_empty(const struct transaction_input *in)
{
    return in->slot_count == 0 && in->kv.count == 0 && in->timers.count == 0 && in->position_count == 0 && !in->has_next;
}

static int lane_by_name(const void *a, const void *b)
{
    const struct lane *const *left = a, *const *right = b;
    return slice_compare((*left)->queue, (*right)->queue);
}

/* One command a group, in byte order of the groups' names. */
static void acks_encode(const struct transaction_input *in, struct uuid tenant, struct arena *arena, struct buf *out)
{
    uint32_t count = in->groups.count, number = 0;
    const struct lane **order = arena_get(arena, count * sizeof *order);
    for (uint32_t i = 0; i < count; i++) order[i] = &in->groups.items[i];
    if (count > 1) qsort(order, count, sizeof *order, lane_by_name);
    for (uint32_t i = 0; i < count; i++) {
        size_t at = out->len;
        ack_begin(out, tenant, order[i]->queue, order[i]->count);
        for (struct transaction_slot *s = order[i]->first; s != NULL; s = s->peer) {
            s->number = number++;
            ack_item_add(out, &s->ack.item);
        }
        ack_end(out, at);
    }
    must(number == in->ack_count);
}

static void pushes_encode(const struct transaction_input *in, struct uuid tenant, struct buf *out)
{
    struct push_writer w;
    uint32_t number = 0;
    push_begin(&w, out, tenant);
    for (uint32_t i = 0; i < in->lanes.count; i++) {
        const struct lane *lane = &in->lanes.items[i];
        push_group_begin(&w, lane->queue, lane->partition, lane->count);
        for (struct transaction_slot *s = lane->first; s != NULL; s = s->peer) {
            s->number = number++;
            push_input_write(&w, &s->push);
        }
        push_group_end(&w);
    }
    push_end(&w);
    must(number == in->push_count);
}

void transaction_encode(struct transaction_input *in, struct uuid tenant, struct arena *arena, struct buf *out)
{
    must(!transaction_is_empty(in) && in->ack_count + in->push_count == in->slot_count);
    size_t step = step_begin(out);
    if (in->ack_count > 0) acks_encode(in, tenant, arena, out);
    if (in->push_count > 0) pushes_encode(in, tenant, out);
    if (in->position_count > 0) {
        size_t at = positions_begin(out, tenant, in->position_count);
        for (uint32_t i = 0; i < in->position_count; i++) position_add(out, &in->positions[i]);
        positions_end(out, at);
    }
    if (in->kv.count > 0) kv_ops_encode(&in->kv, tenant, out);
    if (in->timers.count > 0) timer_ops_encode(&in->timers, tenant, out);
    if (in->has_next) pop_encode(out, &in->pop);
    step_end(out, step);
}

const struct transaction_slot *transaction_slot_find(const struct transaction_input *in, enum slot_kind kind, uint32_t number,
                                                     uint32_t *index)
{
    *index = 0;
    for (const struct transaction_slot *s = in->slots; s != NULL; s = s->next, ++*index) {
        if (s->kind == kind && s->number == number) return s;
    }
    return NULL;
}
