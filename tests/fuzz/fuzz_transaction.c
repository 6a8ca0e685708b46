/* The body of a transaction: any bytes are read or refused with a reason; what is read becomes a command that decodes as it was meant. */
#include <stdlib.h>

#include "base/must.h"
#include "broker/config.h"
#include "http/json.h"
#include "http/transaction.h"

static const struct uuid tenant = {{1, 2, 3}};

static const struct config *settings(void)
{
    static struct config config;
    static bool read;
    struct buf error = {0};
    if (!read) must(config_read(&config, 0, NULL, &error));
    read = true;
    return &config;
}

/* Every ack stands in the command under its number, with its group. */
static void acks_check(const struct transaction_input *in, const struct step_command *step)
{
    struct slice rest = step->acks, group = {0};
    struct command c;
    uint32_t number = 0, index;
    must(step->ack_items == in->ack_count && step->ack_commands == in->groups.count);
    while (command_next(&rest, &c)) {
        struct ack_command ack;
        struct ack_item item;
        must(ack_decode(&c, &ack));
        must(number == 0 || slice_compare(group, ack.group) < 0);
        group = ack.group;
        for (uint32_t i = 0; i < ack.item_count; i++, number++) {
            const struct transaction_slot *s = number < 64 ? transaction_slot_find(in, SLOT_ACK, number, &index) : NULL;
            must(ack_item_next(&ack.items, &item));
            if (s == NULL) continue;
            must(slice_equal(s->ack.group, ack.group) && slice_equal(s->ack.item.transaction, item.transaction));
            must(s->ack.item.partition == item.partition && s->ack.item.status == item.status);
            must(s->ack.item.fenced == item.fenced && (!item.fenced || uuid_equal(s->ack.item.lease, item.lease)));
        }
    }
    must(number == in->ack_count);
}

static void pushes_check(const struct transaction_input *in, const struct step_command *step)
{
    struct push_command push;
    struct push_group g;
    uint32_t number = 0, index;
    must(step->has_push == (in->push_count > 0));
    if (!step->has_push) return;
    must(push_decode(&step->push, &push) && push.group_count == in->lanes.count);
    for (uint32_t i = 0; i < push.group_count; i++) {
        must(push_group_next(&push.groups, &g) && push_group_crc_ok(g.block));
        for (uint32_t k = 0; k < g.item_count; k++, number++) {
            const struct transaction_slot *s = number < 64 ? transaction_slot_find(in, SLOT_PUSH, number, &index) : NULL;
            struct push_item item;
            push_group_item(&g, k, &item);
            if (s == NULL) continue;
            must(slice_equal(s->push.queue, g.queue) && slice_equal(s->push.partition, g.partition));
            must(slice_equal(s->push.payload, item.payload) &&
                 s->push.has_transaction == ((item.flags & ITEM_TRANSACTION) != 0));
            must(slice_equal(s->push.transaction, item.transaction));
        }
    }
    must(number == in->push_count);
}

static void riders_check(const struct transaction_input *in, const struct step_command *step)
{
    struct kv_command kv;
    struct timers_command timers;
    struct positions_command positions;
    struct pop_command pop;
    must(step->has_kv == (in->kv.count > 0) && step->has_timers == (in->timers.count > 0));
    must(step->has_positions == (in->position_count > 0) && step->has_pop == in->has_next);
    if (step->has_kv) must(kv_decode(&step->kv, &kv) && kv.op_count == in->kv.count);
    if (step->has_timers) must(timers_decode(&step->timers, &timers) && timers.op_count == in->timers.count);
    if (step->has_positions) {
        must(positions_decode(&step->positions, &positions) && positions.item_count == in->position_count);
    }
    if (!step->has_pop) return;
    must(pop_decode(&step->pop, &pop) && !pop.auto_ack && slice_equal(pop.queue, in->pop.queue));
    must(pop.scope != POP_DISCOVERY && in->wait_us > 0 && in->wait_us <= INT64_C(60000000));
}

static void refusal_check(const struct transaction_refusal *why)
{
    must(why->text[0] != 0 && (why->status == 200 || why->status == 400 || why->status == 413));
    must((why->reason == NULL) == (why->code != NULL));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena arena;
    struct transaction_input in;
    struct transaction_refusal why = {0};
    if (size > 1u << 20) return 0;
    char *copy = calloc(1, size + JSON_PAD);
    must(copy != NULL);
    if (size > 0) memcpy(copy, data, size);
    arena_init(&arena);
    if (!body_transaction_read(slice_make(copy, size), &arena, settings(), tenant, &in, &why) ||
        !transaction_plan(&in, &arena, &why)) {
        refusal_check(&why);
    } else if (!transaction_is_empty(&in)) {
        struct buf out = {0};
        struct command c;
        struct step_command step;
        transaction_encode(&in, tenant, &arena, &out);
        struct slice rest = buf_view(&out);
        must(command_next(&rest, &c) && rest.len == 0 && c.kind == COMMAND_STEP);
        must(step_decode(&c, &step) && uuid_equal(step.tenant, tenant));
        acks_check(&in, &step);
        pushes_check(&in, &step);
        riders_check(&in, &step);
        buf_free(&out);
    }
    arena_free(&arena);
    free(copy);
    return 0;
}
