/* Any bytes as an entry: decoding gives structs or says no, and the engine applies what decodes, twice to the same state. Names
 * and counts are bounded by the edge before a command enters the log; what breaks those bounds is only decoded here. */
#include <stdlib.h>

#include "base/limits.h"
#include "engine/engine.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool name_ok(struct slice s)
{
    return s.len <= NAMES_BYTES_MAX;
}

static bool push_ok(const struct command *c)
{
    struct push_command push;
    struct push_group g;
    if (!push_decode(c, &push)) return false;
    struct slice rest = push.groups;
    for (uint32_t i = 0; i < push.group_count; i++) {
        if (!push_group_next(&rest, &g) || !name_ok(g.queue) || !name_ok(g.partition)) return false;
        push_group_crc_ok(g.block);
        for (uint32_t j = 0; j < g.item_count; j++) {
            struct push_item item;
            push_group_item(&g, j, &item);
        }
    }
    return true;
}

static bool timers_ok(const struct command *c)
{
    struct timers_command timers;
    struct timer_op op;
    if (!timers_decode(c, &timers)) return false;
    for (uint32_t i = 0; i < timers.op_count; i++) {
        if (!timer_op_next(&timers.ops, &op) || !name_ok(op.queue) || !name_ok(op.partition)) return false;
    }
    return true;
}

static bool positions_ok(const struct command *c)
{
    struct positions_command positions;
    struct position_item item;
    if (!positions_decode(c, &positions)) return false;
    for (uint32_t i = 0; i < positions.item_count; i++) {
        if (!position_next(&positions.items, &item)) return false;
        if (!name_ok(item.queue) || !name_ok(item.partition) || !name_ok(item.group)) return false;
    }
    return true;
}

static bool command_ok(const struct command *c);

static bool step_ok(const struct command *c)
{
    struct step_command step;
    struct command part;
    if (!step_decode(c, &step)) return false;
    while (command_next(&step.acks, &part)) {
        if (!command_ok(&part)) return false;
    }
    return (!step.has_push || command_ok(&step.push)) && (!step.has_positions || positions_ok(&step.positions)) &&
           (!step.has_timers || timers_ok(&step.timers)) && (!step.has_pop || command_ok(&step.pop));
}

static bool command_ok(const struct command *c)
{
    struct kv_command kv;
    struct locks_command locks;
    struct seek_command seek;
    struct group_delete_command group_delete;
    struct subscription_command subscription;
    struct letters_delete_command letters;
    struct letter_move_command move;
    struct trim_command trim;
    struct pop_command pop;
    struct ack_command ack;
    struct extend_command extend;
    struct configure_command configure;
    struct queue_delete_command d;
    struct uuid lease;
    uint64_t seed;
    switch (c->kind) {
    case COMMAND_PUSH:
        return push_ok(c);
    case COMMAND_POP:
        return pop_decode(c, &pop) && name_ok(pop.queue) && name_ok(pop.partition) && name_ok(pop.group);
    case COMMAND_ACK:
        return ack_decode(c, &ack) && name_ok(ack.group);
    case COMMAND_EXTEND:
        return extend_decode(c, &extend);
    case COMMAND_CONFIGURE:
        return configure_decode(c, &configure) && name_ok(configure.queue);
    case COMMAND_QUEUE_DELETE:
        return queue_delete_decode(c, &d);
    case COMMAND_CLAIM_RETURN:
        return claim_return_decode(c, &lease);
    case COMMAND_INIT:
        return init_decode(c, &seed);
    case COMMAND_KV:
        return kv_decode(c, &kv);
    case COMMAND_TIMERS:
        return timers_ok(c);
    case COMMAND_LOCKS:
        return locks_decode(c, &locks);
    case COMMAND_STEP:
        return step_ok(c);
    case COMMAND_SEEK:
        return seek_decode(c, &seek) && name_ok(seek.queue) && name_ok(seek.group) && name_ok(seek.partition);
    case COMMAND_GROUP_DELETE:
        return group_delete_decode(c, &group_delete) && name_ok(group_delete.group);
    case COMMAND_SUBSCRIPTION:
        return subscription_decode(c, &subscription);
    case COMMAND_LETTERS_DELETE:
        return letters_delete_decode(c, &letters);
    case COMMAND_LETTER_MOVE:
        return letter_move_decode(c, &move) && push_ok(&move.push);
    case COMMAND_TRIM:
        return trim_decode(c, &trim);
    case COMMAND_TICK:
        return true;
    default:
        return false;
    }
}

static bool entry_ok(struct slice entry)
{
    struct entry_head head;
    struct command c;
    if (!entry_head_read(entry, &head)) return false;
    struct slice rest = slice_make(entry.at + ENTRY_HEAD_BYTES, entry.len - ENTRY_HEAD_BYTES);
    for (uint32_t i = 0; i < head.count; i++) {
        if (!command_next(&rest, &c) || !command_ok(&c)) return false;
    }
    /* The leader's stamps are times of this century. */
    return head.log_us >= 0 && head.log_us < INT64_C(1) << 52 && head.wall_us > 0 && head.wall_us < INT64_C(1) << 52;
}

static void nothing_scanned(void *ctx, struct slice from, struct slice to, bool (*row)(void *, struct slice, struct slice),
                            void *row_ctx)
{
    (void)ctx, (void)from, (void)to, (void)row, (void)row_ctx;
}

static void block_of(void *ctx, uint64_t where, uint32_t bytes, char *out)
{
    memcpy(out, (const char *)ctx + where, bytes);
}

static struct hash128_pair applied(struct slice entry)
{
    struct engine_options o = {.cold = {.ctx = (void *)(uintptr_t)entry.at, .scan = nothing_scanned, .block = block_of},
                               .segment_shift = 20};
    struct engine *e = engine_new(&o);
    if (engine_apply(e, 1, 0, entry, NULL) != NULL) abort();
    while (engine_housekeep(e)) continue;
    struct hash128_pair digest = engine_digest(e);
    engine_free(e);
    return digest;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct slice entry = slice_make(data, size);
    if (!entry_ok(entry)) return 0;
    struct hash128_pair a = applied(entry), b = applied(entry);
    if (a.low != b.low || a.high != b.high) abort();
    return 0;
}
