/* Wire form of KV, TIMERS, LOCKS, POSITIONS, STEP and TICK. */
#include "engine/command.h"
#include "engine/command_io.h"

/* Head, tenant, number of ops. */
static size_t ops_begin(struct buf *out, enum command_kind kind, struct uuid tenant, uint32_t count)
{
    size_t at = command_begin(out, kind, 0);
    put_uuid(out, tenant);
    buf_u32(out, count);
    return at;
}

static bool ops_decode(const struct command *c, struct uuid *tenant, uint32_t *count, struct slice *ops)
{
    struct reader r = reader_of(c->body);
    *tenant = read_uuid(&r);
    *count = read_u32(&r);
    *ops = slice_make(r.at, (size_t)(r.end - r.at));
    return !r.bad;
}

static bool rest_take(struct slice *rest, const struct reader *r)
{
    if (r->bad) return false;
    rest->len = (size_t)(r->end - r->at);
    rest->at = r->at;
    return true;
}

/* u32 length, bytes. */
static void put_text(struct buf *out, struct slice s)
{
    buf_u32(out, (uint32_t)s.len);
    buf_slice(out, s);
}

static struct slice read_text(struct reader *r)
{
    uint32_t len = read_u32(r);
    return read_bytes(r, len);
}

/* ---- KV ----------------------------------------------------------------------------------------------------------- */

size_t kv_begin(struct buf *out, struct uuid tenant, uint32_t op_count)
{
    must(op_count <= KV_OPS_MAX);
    return ops_begin(out, COMMAND_KV, tenant, op_count);
}

void kv_op_add(struct buf *out, const struct kv_op *op)
{
    buf_byte(out, (char)op->kind);
    buf_byte(out, (char)op->flags);
    put_name(out, op->name_space);
    if (op->flags & KV_EXPECT) buf_u64(out, op->expect);
    if (op->kind == KV_GET_MANY) {
        buf_u16(out, op->key_count);
        put_text(out, op->key);
        return;
    }
    put_name(out, op->key);
    if (op->kind == KV_PUT || op->kind == KV_INCR) put_i64(out, op->ttl_us);
    if (op->kind == KV_PUT || op->kind == KV_INCR || op->kind == KV_GET_PREFIX) put_text(out, op->value);
    if (op->kind == KV_GET_PREFIX) buf_u32(out, op->limit);
    if (op->flags & KV_HAS_MIN) put_text(out, op->min);
    if (op->flags & KV_HAS_MAX) put_text(out, op->max);
}

void kv_end(struct buf *out, size_t command_at)
{
    command_finish(out, command_at);
}

void kv_key_put(struct buf *keys, struct slice key)
{
    put_name(keys, key);
}

bool kv_key_next(struct slice *keys, struct slice *key)
{
    struct reader r = reader_of(*keys);
    *key = read_name(&r);
    return rest_take(keys, &r);
}

static bool keys_fit(const struct kv_op *op)
{
    struct slice keys = op->key, key;
    for (uint32_t i = 0; i < op->key_count; i++) {
        if (!kv_key_next(&keys, &key) || key.len == 0 || key.len > KV_KEY_BYTES_MAX) return false;
    }
    return keys.len == 0 && op->key_count <= KV_KEYS_MAX;
}

static bool lifetime_valid(int64_t ttl_us)
{
    return ttl_us >= 0 && ttl_us <= TIMER_DELAY_US_MAX;
}

static bool kv_op_valid(const struct kv_op *op)
{
    if (op->name_space.len == 0 || op->name_space.len > KV_NAME_SPACE_BYTES_MAX || !lifetime_valid(op->ttl_us)) {
        return false;
    }
    if (op->kind == KV_GET_MANY) return keys_fit(op);
    if (op->kind == KV_GET_PREFIX && (op->limit == 0 || op->limit > KV_PREFIX_ROWS_MAX)) return false;
    if (op->kind == KV_CHECK && !(op->flags & KV_EXPECT)) return false;
    return (op->key.len > 0 || op->kind == KV_GET_PREFIX) && op->key.len <= KV_KEY_BYTES_MAX;
}

bool kv_op_next(struct slice *rest, struct kv_op *out)
{
    struct reader r = reader_of(*rest);
    struct slice none = slice_of("");
    *out = (struct kv_op){.value = none, .min = none, .max = none, .key = none};
    out->kind = read_u8(&r);
    out->flags = read_u8(&r);
    if (out->kind > KV_GET_PREFIX) return false;
    out->name_space = read_name(&r);
    if (out->flags & KV_EXPECT) out->expect = read_u64(&r);
    if (out->kind == KV_GET_MANY) {
        out->key_count = read_u16(&r);
        out->key = read_text(&r);
    } else {
        out->key = read_name(&r);
        if (out->kind == KV_PUT || out->kind == KV_INCR) out->ttl_us = read_i64(&r);
        if (out->kind == KV_PUT || out->kind == KV_INCR || out->kind == KV_GET_PREFIX) out->value = read_text(&r);
        if (out->kind == KV_GET_PREFIX) out->limit = read_u32(&r);
        if (out->flags & KV_HAS_MIN) out->min = read_text(&r);
        if (out->flags & KV_HAS_MAX) out->max = read_text(&r);
    }
    return kv_op_valid(out) && rest_take(rest, &r);
}

bool kv_decode(const struct command *c, struct kv_command *out)
{
    struct kv_op op;
    if (!ops_decode(c, &out->tenant, &out->op_count, &out->ops) || out->op_count > KV_OPS_MAX) return false;
    struct slice rest = out->ops;
    for (uint32_t i = 0; i < out->op_count; i++) {
        if (!kv_op_next(&rest, &op)) return false;
    }
    return true;
}

/* ---- timers ------------------------------------------------------------------------------------------------------- */

size_t timers_begin(struct buf *out, struct uuid tenant, uint32_t op_count)
{
    return ops_begin(out, COMMAND_TIMERS, tenant, op_count);
}

void timer_op_add(struct buf *out, const struct timer_op *op)
{
    buf_byte(out, (char)op->kind);
    put_name(out, op->key);
    if (op->kind == TIMER_CANCEL) {
        put_name(out, op->queue);
        return;
    }
    must((op->item.flags & ITEM_TRANSACTION) && (op->item.flags & ITEM_ID) && op->delay_us <= TIMER_DELAY_US_MAX);
    put_i64(out, op->delay_us);
    struct push_writer w = {.out = out};
    push_group_begin(&w, op->queue, op->partition, 1);
    push_item_add(&w, &op->item);
    push_group_end(&w);
}

void timers_end(struct buf *out, size_t command_at)
{
    command_finish(out, command_at);
}

bool timer_op_next(struct slice *rest, struct timer_op *out)
{
    struct reader r = reader_of(*rest);
    *out = (struct timer_op){.kind = read_u8(&r)};
    out->key = read_name(&r);
    if (out->key.len == 0 || out->key.len > TIMER_KEY_BYTES_MAX || out->kind > TIMER_CANCEL) return false;
    if (out->kind == TIMER_CANCEL) {
        out->queue = read_name(&r);
        return rest_take(rest, &r);
    }
    out->delay_us = read_i64(&r);
    if (!rest_take(rest, &r) || out->delay_us > TIMER_DELAY_US_MAX || out->delay_us < -TIMER_DELAY_US_MAX) return false;
    struct push_group g;
    if (!push_group_next(rest, &g) || g.item_count != 1) return false;
    push_group_item(&g, 0, &out->item);
    out->queue = g.queue;
    out->partition = g.partition;
    out->block = g.block;
    return (out->item.flags & ITEM_TRANSACTION) && (out->item.flags & ITEM_ID);
}

bool timers_decode(const struct command *c, struct timers_command *out)
{
    struct timer_op op;
    if (!ops_decode(c, &out->tenant, &out->op_count, &out->ops)) return false;
    struct slice rest = out->ops;
    for (uint32_t i = 0; i < out->op_count; i++) {
        if (!timer_op_next(&rest, &op)) return false;
    }
    return true;
}

void tick_encode(struct buf *out)
{
    command_finish(out, command_begin(out, COMMAND_TICK, 0));
}

/* ---- locks -------------------------------------------------------------------------------------------------------- */

size_t locks_begin(struct buf *out, struct uuid tenant, uint32_t op_count)
{
    return ops_begin(out, COMMAND_LOCKS, tenant, op_count);
}

void lock_op_add(struct buf *out, const struct lock_op *op)
{
    buf_byte(out, (char)op->kind);
    buf_byte(out, (char)op->has_owner);
    buf_u32(out, op->limit);
    buf_u32(out, op->slot);
    buf_u64(out, op->token);
    put_i64(out, op->ttl_us);
    put_name(out, op->name);
    if (op->has_owner) put_name(out, op->owner);
}

void locks_end(struct buf *out, size_t command_at)
{
    command_finish(out, command_at);
}

bool lock_op_next(struct slice *rest, struct lock_op *out)
{
    struct reader r = reader_of(*rest);
    out->kind = read_u8(&r);
    out->has_owner = read_u8(&r);
    out->limit = read_u32(&r);
    out->slot = read_u32(&r);
    out->token = read_u64(&r);
    out->ttl_us = read_i64(&r);
    out->name = read_name(&r);
    out->owner = out->has_owner ? read_name(&r) : slice_of("null");
    bool valid = out->kind <= LOCK_GET && out->limit <= LOCK_SLOTS_MAX && out->slot < LOCK_SLOTS_MAX &&
                 lifetime_valid(out->ttl_us) && out->name.len > 0 && out->name.len <= 256;
    return valid && rest_take(rest, &r);
}

bool locks_decode(const struct command *c, struct locks_command *out)
{
    struct lock_op op;
    if (!ops_decode(c, &out->tenant, &out->op_count, &out->ops) || out->op_count > LOCK_OPS_MAX) return false;
    struct slice rest = out->ops;
    for (uint32_t i = 0; i < out->op_count; i++) {
        if (!lock_op_next(&rest, &op)) return false;
    }
    return true;
}

/* ---- positions ---------------------------------------------------------------------------------------------------- */

size_t positions_begin(struct buf *out, struct uuid tenant, uint32_t item_count)
{
    must(item_count <= POSITIONS_MAX);
    return ops_begin(out, COMMAND_POSITIONS, tenant, item_count);
}

void position_add(struct buf *out, const struct position_item *item)
{
    must(item->metadata.len <= METADATA_BYTES_MAX || !item->has_metadata);
    buf_byte(out, (char)item->forget);
    buf_byte(out, (char)item->mode);
    buf_byte(out, (char)item->has_metadata);
    buf_u64(out, item->offset);
    put_i64(out, item->from_us);
    put_name(out, item->queue);
    put_name(out, item->partition);
    put_name(out, item->group);
    if (item->has_metadata) put_name(out, item->metadata);
}

void positions_end(struct buf *out, size_t command_at)
{
    command_finish(out, command_at);
}

bool position_next(struct slice *rest, struct position_item *out)
{
    struct reader r = reader_of(*rest);
    out->forget = read_u8(&r);
    out->mode = read_u8(&r);
    out->has_metadata = read_u8(&r);
    out->offset = read_u64(&r);
    out->from_us = read_i64(&r);
    out->queue = read_name(&r);
    out->partition = read_name(&r);
    out->group = read_name(&r);
    out->metadata = out->has_metadata ? read_name(&r) : slice_of("");
    return out->mode <= SUBSCRIBE_FROM && out->offset <= INT64_MAX && out->metadata.len <= METADATA_BYTES_MAX &&
           rest_take(rest, &r);
}

bool positions_decode(const struct command *c, struct positions_command *out)
{
    struct position_item item;
    if (!ops_decode(c, &out->tenant, &out->item_count, &out->items) || out->item_count > POSITIONS_MAX) return false;
    struct slice rest = out->items;
    for (uint32_t i = 0; i < out->item_count; i++) {
        if (!position_next(&rest, &item)) return false;
    }
    return true;
}

/* ---- step --------------------------------------------------------------------------------------------------------- */

enum { STEP_HEAD_BYTES = 8 };

size_t step_begin(struct buf *out)
{
    size_t at = command_begin(out, COMMAND_STEP, 0);
    buf_u64(out, 0);
    return at;
}

void step_end(struct buf *out, size_t command_at)
{
    command_finish(out, command_at);
}

/* Place of a part in the order of parts; 0 = not a part of a step. */
static int part_rank(uint8_t kind)
{
    static const uint8_t order[] = {COMMAND_ACK, COMMAND_PUSH, COMMAND_POSITIONS, COMMAND_KV, COMMAND_TIMERS, COMMAND_POP};
    for (int i = 0; i < (int)sizeof order; i++) {
        if (order[i] == kind) return i + 1;
    }
    return 0;
}

static bool groups_valid(const struct push_command *push)
{
    struct slice rest = push->groups;
    struct push_group g;
    for (uint32_t i = 0; i < push->group_count; i++) {
        if (!push_group_next(&rest, &g)) return false;
    }
    return true;
}

static bool part_decode(struct step_command *s, const struct command *c, struct uuid *tenant)
{
    union {
        struct ack_command ack;
        struct push_command push;
        struct positions_command positions;
        struct kv_command kv;
        struct timers_command timers;
        struct pop_command pop;
    } part;
    switch (c->kind) {
    case COMMAND_ACK:
        if (!ack_decode(c, &part.ack)) return false;
        *tenant = part.ack.tenant;
        s->ack_commands++;
        s->ack_items += part.ack.item_count;
        return true;
    case COMMAND_PUSH:
        if (!push_decode(c, &part.push) || !groups_valid(&part.push)) return false;
        *tenant = part.push.tenant;
        s->push = *c;
        return s->has_push = true;
    case COMMAND_POSITIONS:
        if (!positions_decode(c, &part.positions)) return false;
        *tenant = part.positions.tenant;
        s->positions = *c;
        return s->has_positions = true;
    case COMMAND_KV:
        if (!kv_decode(c, &part.kv)) return false;
        *tenant = part.kv.tenant;
        s->kv = *c;
        return s->has_kv = true;
    case COMMAND_TIMERS:
        if (!timers_decode(c, &part.timers)) return false;
        *tenant = part.timers.tenant;
        s->timers = *c;
        return s->has_timers = true;
    default:
        if (!pop_decode(c, &part.pop)) return false;
        *tenant = part.pop.tenant;
        s->pop = *c;
        return s->has_pop = true;
    }
}

bool step_decode(const struct command *c, struct step_command *out)
{
    *out = (struct step_command){0};
    if (c->body.len < STEP_HEAD_BYTES) return false;
    struct slice rest = slice_make(c->body.at + STEP_HEAD_BYTES, c->body.len - STEP_HEAD_BYTES);
    struct command part;
    int rank = 0;
    out->acks = slice_make(rest.at, 0);
    while (rest.len > 0) {
        if (!command_next(&rest, &part)) return false;
        int next = part_rank(part.kind);
        bool ordered = next > rank || (next == rank && part.kind == COMMAND_ACK);
        struct uuid tenant;
        if (next == 0 || !ordered || !part_decode(out, &part, &tenant)) return false;
        if (rank != 0 && !uuid_equal(tenant, out->tenant)) return false;
        out->tenant = tenant;
        rank = next;
        if (part.kind == COMMAND_ACK) out->acks.len = (size_t)(rest.at - out->acks.at);
    }
    return rank != 0;
}
