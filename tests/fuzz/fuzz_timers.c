/* The ops of a timers body, and what has an encoding of its own inside them.
 *
 * The first byte of an input says what the rest is: ops on the route, ops in a transaction, a JSON number of milliseconds, base64,
 * Zstandard. What is read as ops can be encoded, and decodes to the same ops with the same payloads, which are JSON. A number is what
 * the C library makes of it, to within its precision. */
#include <stdio.h>
#include <stdlib.h>

#include "base/limits.h"
#include "broker/config.h"
#include "http/data_ops.h"
#include "http/timer_payload.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void input_check(const struct timer_input *in, const struct timer_op *op, struct arena *arena)
{
    struct json j;
    must(op->kind == in->op.kind && slice_equal(op->queue, in->op.queue) && slice_equal(op->key, in->op.key));
    must(op->key.len >= 1 && op->key.len <= TIMER_KEY_BYTES_MAX && op->queue.len >= 1);
    if (op->kind == TIMER_CANCEL) return;
    must(op->delay_us == in->op.delay_us && op->delay_us <= TIMER_DELAY_US_MAX);
    must(slice_equal(op->partition, in->op.partition) && op->partition.len >= 1);
    must(op->item.flags == in->op.item.flags && uuid_equal(op->item.id, in->op.item.id));
    must(op->item.transaction.len >= 1 && slice_equal(op->item.transaction, in->transaction));
    must(slice_equal(op->item.payload, in->op.item.payload));
    json_open(&j, in->op.item.payload, arena);
    must(json_skip(&j, NULL) && json_end(&j));
}

static void command_check(const struct timer_inputs *in, struct arena *arena)
{
    struct buf command = {0};
    struct command c;
    struct timers_command t;
    struct timer_op op;
    uint32_t schedules = 0;
    timer_ops_encode(in, (struct uuid){{7}}, &command);
    struct slice rest = buf_view(&command);
    must(command_next(&rest, &c) && rest.len == 0 && c.kind == COMMAND_TIMERS && timers_decode(&c, &t));
    must(t.op_count == in->count);
    for (uint32_t i = 0; i < in->count; i++) {
        must(timer_op_next(&t.ops, &op));
        input_check(&in->items[i], &op, arena);
        schedules += op.kind == TIMER_SCHEDULE ? 1 : 0;
    }
    must(in->schedules == (schedules > 0));
    buf_free(&command);
}

static void ops_try(struct slice text, enum ops_place place, struct arena *arena)
{
    struct json j;
    struct timer_inputs in;
    struct ops_refusal why = {0};
    const struct config config = {.timer_payload_bytes_max = 4096, .timer_horizon_s = 86400, .body_bytes_max = 1 << 16};
    json_open(&j, text, arena);
    if (timer_ops_read(&j, place, &config, &in, &why)) {
        must(place == OPS_TRANSACTION || in.count <= TIMER_OPS_MAX);
        command_check(&in, arena);
    } else {
        must(why.status >= 400 && why.error != NULL && why.reason != NULL && strncmp(why.detail, "QTIMER ", 7) == 0);
    }
}

static void number_try(struct slice text, struct arena *arena)
{
    struct json j;
    struct slice raw;
    json_open(&j, text, arena);
    if (json_peek(&j) != JSON_NUMBER || !json_skip(&j, &raw) || raw.len > 300) return;
    char number[301];
    memcpy(number, raw.at, raw.len);
    number[raw.len] = 0;
    long double wanted = strtold(number, NULL) * 1000;
    int64_t got = number_ms_to_us(raw);
    if (wanted >= (long double)MS_TO_US_LIMIT || wanted <= -(long double)MS_TO_US_LIMIT) {
        must(got > MS_TO_US_LIMIT - 100 || got < -MS_TO_US_LIMIT + 100);
        return;
    }
    long double off = (long double)got - wanted;
    must(off <= 0.6L && off >= -0.6L);
}

static void base64_try(struct slice text, struct arena *arena)
{
    struct slice bytes;
    if (!base64_decode(text, arena, &bytes)) return;
    must(base64_length(bytes.len) == text.len);
    char *again = arena_get(arena, text.len + 1);
    base64_encode(bytes, again);
    must(slice_equal(slice_make(again, text.len), text));
}

static void zstd_try(struct slice packed, struct arena *arena)
{
    struct slice out;
    size_t bytes_max = 1 << 16;
    if (payload_unzstd(packed, bytes_max, arena, &out) == UNZSTD_OK) must(out.len <= bytes_max && out.at[out.len] == 0);
    must(arena->total <= 8 * (bytes_max + packed.len + 4096));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > 1u << 18) return 0;
    size_t len = size - 1;
    char *copy = calloc(1, len + JSON_PAD);
    must(copy != NULL);
    memcpy(copy, data + 1, len);
    struct slice text = slice_make(copy, len);
    struct arena arena;
    arena_init(&arena);
    switch (data[0] % 5) {
    case 0:
        ops_try(text, OPS_ROUTE, &arena);
        break;
    case 1:
        ops_try(text, OPS_TRANSACTION, &arena);
        break;
    case 2:
        number_try(text, &arena);
        break;
    case 3:
        base64_try(text, &arena);
        break;
    default:
        zstd_try(text, &arena);
        break;
    }
    arena_free(&arena);
    free(copy);
    return 0;
}
