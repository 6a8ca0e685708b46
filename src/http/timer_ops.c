/* Timer ops: read, encoded, rendered.
 *
 * An op is read in two steps: its members as they stand, then, when the kind is known, what that kind needs of them. So the order of
 * members does not matter, and a cancel may carry whatever only a schedule would look at. */
#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/limits.h"
#include "broker/config.h"
#include "http/data_ops.h"
#include "http/name.h"
#include "http/render.h"
#include "http/timer_payload.h"

enum timer_member {
    MEMBER_OP,
    MEMBER_QUEUE,
    MEMBER_KEY,
    MEMBER_PARTITION,
    MEMBER_DELAY,
    MEMBER_TXN,
    MEMBER_PAYLOAD,
    MEMBER_ZSTD,
    MEMBER_ENCRYPTED,
    MEMBER_COUNT
};
static const char *const member_names[] = {"op",  "queue",   "timerKey",    "partition", "delayMs",
                                           "txn", "payload", "payloadZstd", "encrypted"};

/* One member: JSON_NULL when it is absent or null; `text` of a string without its quotes, of anything else as sent. */
struct member {
    enum json_type type;
    struct slice text;
};

struct ops_reading {
    struct json *j;
    enum ops_place place;
    const struct config *config;
    struct ops_refusal *why;
    uint32_t index;  /* of the op being read */
    size_t room;     /* bytes that the command may still grow by */
    int64_t wall_us; /* for the ids minted */
    struct member members[MEMBER_COUNT];
};

/* ---- refusals ----------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 5, 6))) static bool refuse(struct ops_reading *r, uint32_t status, const char *error,
                                                         const char *reason, const char *format, ...)
{
    char text[160];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    *r->why = (struct ops_refusal){.status = status, .error = error, .reason = reason};
    snprintf(r->why->detail, sizeof r->why->detail, "QTIMER ops[%u]: %s", r->index, text);
    return false;
}

static bool refuse_shape(struct ops_reading *r, const char *reason, const char *member, const char *wanted)
{
    return refuse(r, 400, "timers_bad_request", reason, "%s: %s", member, wanted);
}

static bool refuse_json(struct ops_reading *r)
{
    const struct json *j = r->j;
    return refuse(r, 400, "timers_bad_request", "timers_bad_body", "%s at byte %zu", j->error, (size_t)(j->at - j->start));
}

/* ---- members ------------------------------------------------------------------------------------------------------ */

static int member_of(struct slice key)
{
    for (int i = 0; i < MEMBER_COUNT; i++) {
        if (slice_is(key, member_names[i])) return i;
    }
    return -1;
}

enum owned { OWNED_NOT, OWNED_HERE, OWNED_EVERYWHERE };

/* What only the broker says. Inside a transaction just the subject and what begins with _ have a reason of their own. */
static enum owned owned_of(struct slice key)
{
    static const char *const names[] = {"messageId",  "message_id",  "tenant",       "tenantId",      "tenant_id",
                                        "deliverAt",  "deliver_at",  "delaySeconds", "delay_seconds", "attempts",
                                        "claimToken", "claim_token", "claimedUntil"};
    if (key.len > 0 && key.at[0] == '_') return OWNED_EVERYWHERE;
    if (slice_is(key, "producerSub") || slice_is(key, "producer_sub")) return OWNED_EVERYWHERE;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (slice_is(key, names[i])) return OWNED_HERE;
    }
    return OWNED_NOT;
}

static bool refuse_owned(struct ops_reading *r, enum owned owned)
{
    bool named = owned == OWNED_EVERYWHERE || r->place == OPS_ROUTE;
    return refuse(r, 400, "timers_bad_request", named ? "timers_server_owned_field" : "timers_bad_op",
                  "has a field that the broker sets or does not take; see delayMs and txn");
}

static bool member_read(struct ops_reading *r, int i)
{
    struct member *m = &r->members[i];
    if (m->text.at != NULL) return refuse_shape(r, "timers_bad_op", member_names[i], "given twice");
    m->type = json_peek(r->j);
    bool read = m->type == JSON_STRING ? json_string(r->j, &m->text) : json_skip(r->j, &m->text);
    return read || refuse_json(r);
}

static bool members_read(struct ops_reading *r)
{
    bool first;
    struct slice key;
    for (int i = 0; i < MEMBER_COUNT; i++) r->members[i] = (struct member){.type = JSON_NULL};
    if (json_peek(r->j) != JSON_OBJECT) {
        return json_skip(r->j, NULL) ? refuse(r, 400, "timers_bad_request", "timers_bad_op", "not an object") : refuse_json(r);
    }
    json_object_open(r->j, &first);
    while (json_object_next(r->j, &first, &key)) {
        enum owned owned = owned_of(key);
        if (owned != OWNED_NOT) return refuse_owned(r, owned);
        int i = member_of(key);
        if (i >= 0 ? !member_read(r, i) : !json_skip(r->j, NULL)) return i < 0 ? refuse_json(r) : false;
    }
    return r->j->error == NULL || refuse_json(r);
}

/* ---- what a kind of op needs -------------------------------------------------------------------------------------- */

/* A string that is there, not empty and without control characters. */
static bool name_read(struct ops_reading *r, enum timer_member i, const char *reason, struct slice *out)
{
    const struct member *m = &r->members[i];
    *out = m->text;
    if (m->type != JSON_STRING || m->text.len == 0)
        return refuse_shape(r, reason, member_names[i], "a non-empty string is required");
    return !name_has_control(m->text) || refuse_shape(r, "timers_bad_op", member_names[i], "has a control character");
}

static bool kind_read(struct ops_reading *r, uint8_t *kind)
{
    const struct member *m = &r->members[MEMBER_OP];
    bool text = m->type == JSON_STRING;
    *kind = text && slice_is(m->text, "cancel") ? TIMER_CANCEL : TIMER_SCHEDULE;
    if (*kind == TIMER_CANCEL || (text && (slice_is(m->text, "schedule") || slice_is(m->text, "reschedule")))) return true;
    return refuse_shape(r, "timers_bad_op", "op", "schedule, reschedule or cancel is required");
}

static bool identity_read(struct ops_reading *r, struct timer_op *op)
{
    if (!name_read(r, MEMBER_QUEUE, "timers_queue_required", &op->queue) ||
        !name_read(r, MEMBER_KEY, "timers_bad_op", &op->key)) {
        return false;
    }
    if (op->key.len > TIMER_KEY_BYTES_MAX) return refuse_shape(r, "timers_bad_op", "timerKey", "longer than 512 bytes");
    op->partition = slice_of(DEFAULT_PARTITION);
    bool placed = op->kind == TIMER_SCHEDULE && r->members[MEMBER_PARTITION].type != JSON_NULL;
    if (placed && !name_read(r, MEMBER_PARTITION, "timers_bad_op", &op->partition)) return false;
    if (name_fits(op->queue, op->partition, slice_make("", 0))) return true;
    return refuse(r, 413, "payload_too_large", "name_too_long", "queue and partition may have 411 bytes together");
}

static bool delay_read(struct ops_reading *r, struct timer_op *op)
{
    const struct member *m = &r->members[MEMBER_DELAY];
    if (m->type != JSON_NUMBER) return refuse_shape(r, "timers_delay_required", "delayMs", "a number is required");
    op->delay_us = number_ms_to_us(m->text);
    if (op->delay_us < -TIMER_DELAY_US_MAX) op->delay_us = -TIMER_DELAY_US_MAX; /* due at once, like any negative one */
    if (r->place == OPS_ROUTE && op->delay_us > (int64_t)r->config->timer_horizon_s * 1000000) {
        return refuse(r, 403, "timer_horizon_exceeded", "timers_horizon", "delayMs: beyond %llu seconds",
                      (unsigned long long)r->config->timer_horizon_s);
    }
    return op->delay_us <= TIMER_DELAY_US_MAX || refuse_shape(r, "timers_bad_op", "delayMs", "too far ahead");
}

/* Absent and null are false. */
static bool flag_read(struct ops_reading *r, enum timer_member i, bool *out)
{
    enum json_type type = r->members[i].type;
    *out = type == JSON_TRUE;
    return type == JSON_TRUE || type == JSON_FALSE || type == JSON_NULL ||
           refuse_shape(r, "timers_bad_op", member_names[i], "true or false is required");
}

static bool payload_unpack(struct ops_reading *r, size_t bytes_max, struct slice *payload)
{
    switch (payload_unzstd(*payload, bytes_max, r->j->arena, payload)) {
    case UNZSTD_OK:
        return true;
    case UNZSTD_BAD:
        return refuse_shape(r, "timers_payload_not_zstd", "payload", "not Zstandard, though payloadZstd says so");
    case UNZSTD_TOO_LARGE:
        break;
    }
    return refuse(r, 413, "payload_too_large", "timers_payload_too_large", "payload: more than %zu bytes", bytes_max);
}

static bool payload_read(struct ops_reading *r, struct push_item *item)
{
    const struct member *m = &r->members[MEMBER_PAYLOAD];
    bool zstd, encrypted;
    if (m->type != JSON_STRING) return refuse_shape(r, "timers_payload_required", "payload", "a base64 string is required");
    if (!flag_read(r, MEMBER_ZSTD, &zstd) || !flag_read(r, MEMBER_ENCRYPTED, &encrypted)) return false;
    if (!base64_decode(m->text, r->j->arena, &item->payload)) {
        return refuse_shape(r, "timers_payload_not_base64", "payload", "standard base64 with padding is required");
    }
    size_t bytes_max = r->place == OPS_ROUTE ? r->config->timer_payload_bytes_max : r->config->body_bytes_max;
    if (zstd && !payload_unpack(r, bytes_max, &item->payload)) return false;
    if (item->payload.len > bytes_max) {
        return refuse(r, 413, "payload_too_large", "timers_payload_too_large", "payload: more than %zu bytes", bytes_max);
    }
    struct json json;
    json_open(&json, item->payload, r->j->arena);
    if (!json_skip(&json, NULL) || !json_end(&json)) {
        return refuse(r, 400, "timers_bad_request", "timers_payload_not_json", "payload: not JSON: %s at byte %zu", json.error,
                      (size_t)(json.at - json.start));
    }
    if (encrypted) item->flags |= ITEM_ENCRYPTED;
    return true;
}

static bool schedule_read(struct ops_reading *r, struct timer_input *in)
{
    struct push_item *item = &in->op.item;
    if (!delay_read(r, &in->op) || !name_read(r, MEMBER_TXN, "timers_bad_op", &in->transaction)) return false;
    if (in->transaction.len > TRANSACTION_ID_BYTES_MAX)
        return refuse_shape(r, "timers_bad_op", "txn", "longer than 65535 bytes");
    item->flags = ITEM_TRANSACTION | ITEM_ID;
    item->transaction = in->transaction;
    item->id = uuid_mint(r->wall_us);
    return payload_read(r, item);
}

static bool cancel_read(struct ops_reading *r, struct timer_input *in)
{
    const struct member *m = &r->members[MEMBER_TXN];
    if (m->type == JSON_NULL) return true;
    if (m->type != JSON_STRING) return refuse_shape(r, "timers_bad_op", "txn", "a string is required");
    in->transaction = m->text;
    return true;
}

/* Everything one op adds to the command, on the safe side. */
static bool room_take(struct ops_reading *r, const struct timer_op *op)
{
    enum { OP_HEAD_BYTES = 128 };
    size_t bytes =
        OP_HEAD_BYTES + op->key.len + op->queue.len + op->partition.len + op->item.transaction.len + op->item.payload.len;
    if (bytes > r->room)
        return refuse(r, 413, "payload_too_large", "timers_call_too_large", "the call is larger than one may be");
    r->room -= bytes;
    return true;
}

static bool op_read(struct ops_reading *r, struct timer_input *in)
{
    *in = (struct timer_input){0};
    if (!members_read(r) || !kind_read(r, &in->op.kind) || !identity_read(r, &in->op)) return false;
    return (in->op.kind == TIMER_SCHEDULE ? schedule_read(r, in) : cancel_read(r, in)) && room_take(r, &in->op);
}

/* ---- the call ----------------------------------------------------------------------------------------------------- */

static bool same_timer(const struct timer_op *a, const struct timer_op *b)
{
    return slice_equal(a->key, b->key) && slice_equal(a->queue, b->queue);
}

/* One op a (queue, timerKey). */
static bool repeats_check(struct ops_reading *r, const struct timer_inputs *in)
{
    uint32_t size = 16;
    while (size < in->count * 2) size *= 2;
    uint32_t *table = arena_zero(r->j->arena, size * sizeof *table);
    for (uint32_t i = 0; i < in->count; i++) {
        const struct timer_op *op = &in->items[i].op;
        uint32_t at = (uint32_t)hash64(op->key, hash64(op->queue, 0)) & (size - 1);
        for (; table[at] != 0; at = (at + 1) & (size - 1)) {
            if (!same_timer(op, &in->items[table[at] - 1].op)) continue;
            r->index = i;
            return refuse(r, 400, "timers_bad_request", "timers_bad_op", "the timer of ops[%u] again", table[at] - 1);
        }
        table[at] = i + 1;
    }
    return true;
}

static bool ops_collect(struct ops_reading *r, struct buf *items, bool *schedules)
{
    bool first;
    struct timer_input in;
    if (json_peek(r->j) != JSON_ARRAY) {
        return refuse(r, 400, "timers_bad_request", "timers_bad_body", "an array of operations is required");
    }
    json_array_open(r->j, &first);
    for (r->index = 0; json_array_next(r->j, &first); r->index++) {
        if (r->index >= TIMER_OPS_MAX && r->place == OPS_ROUTE) {
            return refuse(r, 400, "timers_bad_request", "timers_too_many_ops", "at most %d operations a call", TIMER_OPS_MAX);
        }
        if (!op_read(r, &in)) return false;
        *schedules |= in.op.kind == TIMER_SCHEDULE;
        buf_put(items, &in, sizeof in);
    }
    return r->j->error == NULL || refuse_json(r);
}

bool timer_ops_read(struct json *j, enum ops_place place, const struct config *config, struct timer_inputs *out,
                    struct ops_refusal *why)
{
    enum { COMMAND_SPARE_BYTES = 4096 };
    struct ops_reading r = {.j = j,
                            .place = place,
                            .config = config,
                            .why = why,
                            .wall_us = clock_wall_us(),
                            .room = COMMAND_BYTES_MAX - COMMAND_SPARE_BYTES};
    struct buf items = {0};
    *out = (struct timer_inputs){0};
    bool read = ops_collect(&r, &items, &out->schedules);
    if (read) {
        out->count = (uint32_t)(items.len / sizeof *out->items);
        out->items = arena_get(j->arena, items.len + 1);
        memcpy(out->items, buf_view(&items).at, items.len);
    }
    buf_free(&items);
    return read && repeats_check(&r, out);
}

void timer_ops_encode(const struct timer_inputs *in, struct uuid tenant, struct buf *out)
{
    size_t at = timers_begin(out, tenant, in->count);
    for (uint32_t i = 0; i < in->count; i++) timer_op_add(out, &in->items[i].op);
    timers_end(out, at);
}

/* ---- answers ------------------------------------------------------------------------------------------------------ */

static void field_text(struct buf *out, const char *key, struct slice text)
{
    buf_text(out, key);
    render_text(out, text);
}

void timer_element_open(struct buf *out, const struct timer_input *in, const struct timer_outcome *o)
{
    static const char *const statuses[] = {[TIMER_SCHEDULED] = "scheduled",
                                           [TIMER_RESCHEDULED] = "rescheduled",
                                           [TIMER_CANCELLED] = "cancelled",
                                           [TIMER_ABSENT] = "absent"};
    must(o->status <= TIMER_ABSENT);
    buf_printf(out, "{\"ok\":%s,\"status\":\"%s\"", o->status == TIMER_ABSENT ? "false" : "true", statuses[o->status]);
    field_text(out, ",\"queue\":", in->op.queue);
    field_text(out, ",\"timerKey\":", in->op.key);
    if (o->status == TIMER_ABSENT && in->transaction.at == NULL)
        buf_text(out, ",\"txn\":null");
    else
        field_text(out, ",\"txn\":", o->status == TIMER_CANCELLED ? o->transaction : in->transaction);
    if (o->status == TIMER_CANCELLED || o->status == TIMER_ABSENT) return;
    buf_text(out, ",\"messageId\":");
    render_uuid(out, o->message);
    buf_text(out, ",\"deliverAt\":");
    render_time_us(out, o->due_us);
}
