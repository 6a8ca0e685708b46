/* The ops of KV and locks bodies.
 *
 * The first byte of an input says what the rest is: KV ops on the route, in a transaction, a put or delete named by its path, a listing,
 * lock ops. What is read can be encoded and decodes to the same ops; every value is compact JSON, every number one that counters
 * take; names and counts keep their limits. What is refused says why. */
#include <stdlib.h>

#include "base/decimal.h"
#include "base/limits.h"
#include "broker/config.h"
#include "http/data_ops.h"
#include "http/lock_ops.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct uuid tenant = {{9}};

/* JSON, and nothing could be left out of it. */
static void compact_check(struct slice value, struct arena *arena)
{
    struct json j;
    char *copy = arena_zero(arena, value.len + JSON_PAD);
    memcpy(copy, value.at, value.len);
    json_open(&j, slice_make(copy, value.len), arena);
    must(json_skip(&j, NULL) && json_end(&j));
    bool inside = false;
    for (size_t i = 0; i < value.len; i++) {
        if (inside && value.at[i] == '\\')
            i++;
        else if (value.at[i] == '"')
            inside = !inside;
        else
            must(inside || (unsigned char)value.at[i] > ' ');
    }
    must(!inside);
}

static void number_check(struct slice text)
{
    struct decimal d;
    must(decimal_parse(text, &d));
}

static void op_check(const struct kv_input *in, const struct kv_op *op, const struct config *config, struct arena *arena)
{
    const struct kv_op *sent = &in->op;
    must(op->kind == sent->kind && op->flags == sent->flags && op->ttl_us == sent->ttl_us && op->expect == sent->expect);
    must(slice_equal(op->name_space, sent->name_space) && kv_name_space_ok(op->name_space) && slice_equal(op->key, sent->key));
    must(op->ttl_us >= 0 && op->ttl_us <= TIMER_DELAY_US_MAX && in->name != NULL);
    if (op->kind == KV_GET_MANY) {
        must(op->key_count == sent->key_count && op->key_count <= config->kv_keys_max);
        return;
    }
    must(memchr(op->key.at, 0, op->key.len) == NULL);
    if (op->kind == KV_GET_PREFIX) {
        must(op->limit == sent->limit && op->limit >= 1 && op->limit <= 1000 && slice_equal(op->value, sent->value));
    } else if (op->kind == KV_PUT) {
        must(slice_equal(op->value, sent->value) && op->value.len <= config->kv_value_bytes_max);
        compact_check(op->value, arena);
    } else if (op->kind == KV_INCR) {
        must(slice_equal(op->value, sent->value));
        number_check(op->value);
        if (op->flags & KV_HAS_MIN) number_check(op->min);
        if (op->flags & KV_HAS_MAX) number_check(op->max);
    }
}

static void command_check(const struct kv_inputs *in, const struct config *config, struct arena *arena)
{
    struct buf encoded = {0};
    struct command c;
    struct kv_command kv;
    struct kv_op op;
    bool writes = false;
    kv_ops_encode(in, tenant, &encoded);
    struct slice rest = buf_view(&encoded);
    must(command_next(&rest, &c) && rest.len == 0 && c.kind == COMMAND_KV && kv_decode(&c, &kv));
    must(kv.op_count == in->count && in->count <= config->kv_ops_max && uuid_equal(kv.tenant, tenant));
    for (uint32_t i = 0; i < in->count; i++) {
        must(kv_op_next(&kv.ops, &op));
        op_check(&in->items[i], &op, config, arena);
        writes |= kv_op_writes(op.kind);
        for (uint32_t k = 0; k < i && (kv_op_writes(op.kind) || op.kind == KV_CHECK); k++) {
            const struct kv_op *other = &in->items[k].op;
            if (!kv_op_writes(other->kind) && other->kind != KV_CHECK) continue;
            must(!slice_equal(op.key, other->key) || !slice_equal(op.name_space, other->name_space));
        }
    }
    must(in->writes == writes && (in->writes || !in->grows));
    buf_free(&encoded);
}

static void refusal_check(const struct ops_refusal *why)
{
    must((why->status == 400 || why->status == 413) && why->error != NULL && why->reason != NULL && why->detail[0] != 0);
}

static void kv_try(struct slice text, unsigned how, struct arena *arena)
{
    static const struct config config = {.kv_value_bytes_max = 200, .kv_ops_max = 64, .kv_keys_max = 256};
    struct kv_inputs in;
    struct ops_refusal why = {0};
    struct json j;
    bool fine;
    json_open(&j, text, arena);
    switch (how) {
    case 0:
    case 1:
        fine = kv_ops_read(&j, how == 0 ? OPS_ROUTE : OPS_TRANSACTION, &config, &in, &why);
        break;
    case 2:
        fine = kv_path_op_read(text, "put", slice_of("n"), slice_of("a/b"), arena, &config, &in, &why);
        break;
    case 3:
        fine = kv_path_op_read(text, "delete", slice_of("n"), slice_of("a/b"), arena, &config, &in, &why);
        break;
    default:
        fine = kv_list_read(text, arena, &config, &in, &why);
        break;
    }
    if (fine)
        command_check(&in, &config, arena);
    else
        refusal_check(&why);
}

static void locks_try(struct slice text, struct arena *arena)
{
    struct lock_inputs in;
    struct ops_refusal why = {0};
    struct json j;
    struct buf encoded = {0};
    struct command c;
    struct locks_command locks;
    struct lock_op op;
    json_open(&j, text, arena);
    if (!lock_ops_read(&j, &in, &why)) {
        refusal_check(&why);
        return;
    }
    lock_ops_encode(&in, tenant, &encoded);
    struct slice rest = buf_view(&encoded);
    must(command_next(&rest, &c) && rest.len == 0 && c.kind == COMMAND_LOCKS && locks_decode(&c, &locks));
    must(locks.op_count == in.count && in.count <= LOCK_OPS_MAX);
    for (uint32_t i = 0; i < in.count; i++) {
        const struct lock_op *sent = &in.items[i].op;
        must(lock_op_next(&locks.ops, &op) && op.kind == sent->kind && op.limit == sent->limit && op.slot == sent->slot);
        must(op.token == sent->token && op.ttl_us == sent->ttl_us && slice_equal(op.name, sent->name));
        must(op.has_owner == sent->has_owner && (!op.has_owner || slice_equal(op.owner, sent->owner)));
        if (op.has_owner) compact_check(op.owner, arena);
    }
    buf_free(&encoded);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > 1u << 18) return 0;
    size_t len = size - 1;
    char *copy = calloc(1, len + JSON_PAD);
    must(copy != NULL);
    memcpy(copy, data + 1, len);
    struct arena arena;
    arena_init(&arena);
    unsigned how = data[0] % 6;
    if (how == 5)
        locks_try(slice_make(copy, len), &arena);
    else
        kv_try(slice_make(copy, len), how, &arena);
    arena_free(&arena);
    free(copy);
    return 0;
}
