/* The body of a transaction, in one pass.
 *
 * Shape comes first: the first thing that is not of the shape wanted ends the reading. All else that is wrong is kept with its rank
 * while the reading goes on, and the lowest rank wins at the end: so the order of checks does not depend on the order of members. */
#include <stdarg.h>
#include <stdio.h>

#include "base/limits.h"
#include "base/must.h"
#include "http/body_inner.h"
#include "http/name.h"
#include "http/pop_params.h"
#include "http/transaction.h"

enum rank {
    RANK_SHAPE,
    RANK_TIMERS,
    RANK_KV,
    RANK_POSITIONS,
    RANK_EMPTY,
    RANK_OPERATIONS,
    RANK_STATE, /* what the engine would refuse, known beforehand */
    RANK_NONE
};

/* Which leases the body names, as far as it matters: none, one, or several. */
struct leases {
    struct slice text; /* of the first */
    struct uuid id;
    bool any, several;
};

struct reading {
    struct json j;
    const struct config *config;
    struct uuid tenant;
    struct transaction_input *in;
    struct transaction_slot **tail; /* where the next slot hangs */
    struct transaction_refusal *why;
    enum rank rank; /* of `why` */
    struct leases leases;
    uint32_t operations, unfenced;
};

/* ---- refusals ----------------------------------------------------------------------------------------------------- */

/* Keeps the refusal if it ranks before what is kept already. Always false. */
__attribute__((format(printf, 5, 6))) static bool refuse(struct reading *r, enum rank rank, uint32_t status, const char *reason,
                                                         const char *format, ...)
{
    va_list args;
    if (rank >= r->rank) return false;
    r->rank = rank;
    *r->why = (struct transaction_refusal){.status = status, .reason = reason};
    va_start(args, format);
    vsnprintf(r->why->text, sizeof r->why->text, format, args);
    va_end(args);
    return false;
}

static bool refuse_shape(struct reading *r, const char *where)
{
    return refuse(r, RANK_SHAPE, 400, "bad_request", "%s: %s at byte %zu", where,
                  r->j.error == NULL ? "wrong shape" : r->j.error, (size_t)(r->j.at - r->j.start));
}

static bool refuse_member(struct reading *r, uint32_t index, const char *name)
{
    return refuse(r, RANK_SHAPE, 400, "bad_request", "operations[%u].%s: %s", index, name, r->j.error);
}

/* Steps over an array whose reading stopped somewhere. */
static bool array_pass(struct reading *r, const char *at, const char *where)
{
    r->j.at = at;
    r->j.error = NULL;
    return json_skip(&r->j, NULL) || refuse_shape(r, where);
}

static bool array_is_next(struct reading *r, const char *where)
{
    return json_peek(&r->j) == JSON_ARRAY || refuse(r, RANK_SHAPE, 400, "bad_request", "%s: an array is required", where);
}

/* ---- leases ------------------------------------------------------------------------------------------------------- */

static struct uuid lease_note(struct leases *l, struct slice text)
{
    if (l->any && slice_equal(l->text, text)) return l->id;
    struct uuid id;
    bool parsed = uuid_parse(text, &id);
    if (!parsed) memset(&id, 0xff, sizeof id);
    if (!l->any) {
        *l = (struct leases){.text = text, .id = id, .any = true};
    } else if (!parsed || !uuid_equal(id, l->id)) {
        l->several = true;
    }
    return id;
}

static bool required_leases_read(struct reading *r)
{
    bool first;
    struct slice text = {0};
    if (!array_is_next(r, "requiredLeases")) return false;
    json_array_open(&r->j, &first);
    while (json_array_next(&r->j, &first)) {
        if (!json_string(&r->j, &text)) return refuse_shape(r, "requiredLeases");
        if (text.len > 0) lease_note(&r->leases, text);
    }
    return r->j.error == NULL || refuse_shape(r, "requiredLeases");
}

/* An ack without a lease has the only one that the body names. */
static void leases_lend(struct reading *r)
{
    if (r->unfenced == 0 || !r->leases.any || r->leases.several) return;
    for (struct transaction_slot *s = r->in->slots; s != NULL; s = s->next) {
        if (s->kind != SLOT_ACK || s->ack.item.fenced) continue;
        s->ack.item.fenced = 1;
        s->ack.item.lease = r->leases.id;
    }
}

/* ---- operations --------------------------------------------------------------------------------------------------- */

enum op_member {
    OP_TYPE,
    OP_TRANSACTION,
    OP_PARTITION_ID,
    OP_GROUP,
    OP_LEASE,
    OP_STATUS,
    OP_ERROR,
    OP_QUEUE,
    OP_PARTITION,
    OP_PAYLOAD,
    OP_TRACE,
    OP_ITEMS,
    OP_UNKNOWN
};
static const char *const op_member_names[] = {"type",    "transactionId", "partitionId", "consumerGroup", "leaseId",
                                              "status",  "error",         "queue",       "partition",     "payload",
                                              "traceId", "items",         "a field"};

static inline bool key_is(struct slice key, const char *name, size_t len)
{
    return memcmp(key.at, name, len) == 0;
}

/* Constant lengths: no call is made. */
static inline enum op_member op_member_of(struct slice key)
{
    switch (key.len) {
    case 4:
        return key_is(key, "type", 4) ? OP_TYPE : OP_UNKNOWN;
    case 5:
        return key_is(key, "queue", 5)   ? OP_QUEUE
               : key_is(key, "items", 5) ? OP_ITEMS
               : key_is(key, "error", 5) ? OP_ERROR
                                         : OP_UNKNOWN;
    case 6:
        return key_is(key, "status", 6) ? OP_STATUS : OP_UNKNOWN;
    case 7:
        return key_is(key, "leaseId", 7)   ? OP_LEASE
               : key_is(key, "payload", 7) ? OP_PAYLOAD
               : key_is(key, "traceId", 7) ? OP_TRACE
                                           : OP_UNKNOWN;
    case 9:
        return key_is(key, "partition", 9) ? OP_PARTITION : OP_UNKNOWN;
    case 11:
        return key_is(key, "partitionId", 11) ? OP_PARTITION_ID : OP_UNKNOWN;
    case 13:
        return key_is(key, "transactionId", 13) ? OP_TRANSACTION : key_is(key, "consumerGroup", 13) ? OP_GROUP : OP_UNKNOWN;
    default:
        return OP_UNKNOWN;
    }
}

/* One operation as it stands: what it is may come last. */
struct operation {
    uint32_t index, seen;
    struct slice type, partition_id, group, lease, status, error;
    bool has_error;
    struct push_input push; /* transactionId is here also for an ack */
    struct transaction_slot *items, **items_tail;
    uint32_t item_count;
};

static struct transaction_slot *slot_new(struct reading *r, enum slot_kind kind)
{
    struct transaction_slot *s = arena_get(r->j.arena, sizeof *s);
    s->next = NULL;
    s->kind = (uint8_t)kind;
    return s;
}

static void slots_append(struct reading *r, struct transaction_slot *first, struct transaction_slot **tail, uint32_t count)
{
    if (count == 0) return;
    *r->tail = first;
    r->tail = tail;
    r->in->slot_count += count;
}

/* A pushed item's id that is too long is the engine's to refuse, so in its envelope. */
static bool refuse_long_id(struct reading *r)
{
    refuse(r, RANK_SHAPE, 400, NULL, "the transactionId of a pushed item is longer than %d bytes", TRANSACTION_ID_BYTES_MAX);
    r->why->code = "bad_request";
    return false;
}

static bool items_read(struct reading *r, struct operation *op)
{
    struct body_refusal why;
    bool first;
    if (json_peek(&r->j) == JSON_NULL) return json_skip(&r->j, NULL) || refuse_shape(r, "operations");
    if (!json_array_open(&r->j, &first)) return refuse_member(r, op->index, "items");
    op->items_tail = &op->items;
    for (; json_array_next(&r->j, &first); op->item_count++) {
        struct transaction_slot *s = slot_new(r, SLOT_PUSH);
        if (!body_push_item_read(&r->j, op->item_count, &s->push, &why)) {
            if (s->push.transaction.len > TRANSACTION_ID_BYTES_MAX) return refuse_long_id(r);
            return refuse(r, RANK_SHAPE, 400, "bad_request", "operations[%u].%s", op->index, why.text);
        }
        *op->items_tail = s;
        op->items_tail = &s->next;
    }
    return r->j.error == NULL || refuse_shape(r, "operations");
}

static bool op_member_read(struct json *j, enum op_member member, struct operation *op)
{
    bool given;
    switch (member) {
    case OP_TYPE:
        return body_field_read(j, FIELD_STRING, &op->type, &given);
    case OP_TRANSACTION:
        return body_field_read(j, FIELD_STRING, &op->push.transaction, &op->push.has_transaction);
    case OP_PARTITION_ID:
        return body_field_read(j, FIELD_STRING, &op->partition_id, &given);
    case OP_GROUP:
        return body_field_read(j, FIELD_NAME, &op->group, &given);
    case OP_LEASE:
        return body_field_read(j, FIELD_STRING, &op->lease, &given);
    case OP_STATUS:
        return body_field_read(j, FIELD_STRING, &op->status, &given);
    case OP_ERROR:
        return body_field_read(j, FIELD_STRING, &op->error, &op->has_error);
    case OP_QUEUE:
        return body_field_read(j, FIELD_NAME, &op->push.queue, &given);
    case OP_PARTITION:
        return body_push_field_read(j, PUSH_PARTITION, &op->push);
    case OP_PAYLOAD:
        return body_push_field_read(j, PUSH_PAYLOAD, &op->push);
    case OP_TRACE:
        return body_push_field_read(j, PUSH_TRACE, &op->push);
    default:
        return json_skip(j, NULL);
    }
}

/* A push without `items`: the operation is the item. */
static bool inline_take(struct reading *r, const struct operation *op)
{
    const struct push_input *in = &op->push;
    if (in->has_transaction && in->transaction.len > TRANSACTION_ID_BYTES_MAX) return refuse_long_id(r);
    if (in->has_transaction && !body_control_free(&r->j, in->transaction)) {
        return refuse(r, RANK_SHAPE, 400, "bad_request", "operations[%u].transactionId: a control character", op->index);
    }
    if (in->queue.len == 0 || in->payload.at == NULL) {
        refuse(r, RANK_OPERATIONS, 200, "bad_request", "QTXN operations[%u]: a push needs %s", op->index,
               in->queue.len == 0 ? "a queue" : "a payload");
        return true;
    }
    struct transaction_slot *s = slot_new(r, SLOT_PUSH);
    s->push = *in;
    if (in->partition.len == 0) s->push.partition = slice_of(DEFAULT_PARTITION);
    slots_append(r, s, &s->next, 1);
    r->in->push_count++;
    return true;
}

static void ack_take(struct reading *r, const struct operation *op)
{
    struct transaction_slot *s = slot_new(r, SLOT_ACK);
    struct ack_item *item = &s->ack.item;
    s->ack.group = op->group.len > 0 ? op->group : slice_of(QUEUE_MODE_GROUP);
    *item = (struct ack_item){.status = body_ack_status(op->status),
                              .transaction = op->push.transaction,
                              .error = body_error_cut(op->error),
                              .has_error = op->has_error};
    if (!body_partition_number(op->partition_id, &item->partition)) {
        refuse(r, RANK_OPERATIONS, 200, "bad_request", "QTXN operations[%u]: partitionId is not a partition id", op->index);
    }
    if (item->transaction.len > TRANSACTION_ID_BYTES_MAX) { /* no message has it */
        refuse(r, RANK_STATE, 200, "rejected_ack", "QTXN the ack of operations[%u] was refused: no such message", op->index);
        item->transaction.len = 0;
    }
    if (op->lease.len > 0) {
        item->lease = lease_note(&r->leases, op->lease);
        item->fenced = 1;
    } else {
        r->unfenced++;
    }
    slots_append(r, s, &s->next, 1);
    r->in->ack_count++;
}

static void type_refuse(struct reading *r, const struct operation *op)
{
    bool rider = slice_is(op->type, "kv") || slice_is(op->type, "timer") || slice_is(op->type, "timers");
    refuse(r, RANK_OPERATIONS, 400, "bad_request", "operations[%u].type: %s", op->index,
           rider ? "kv and timers stand at the top level of the body" : "ack or push is required");
}

/* False: the shape is wrong. */
static bool op_take(struct reading *r, struct operation *op)
{
    if (slice_is(op->type, "ack")) {
        ack_take(r, op);
    } else if (!slice_is(op->type, "push")) {
        type_refuse(r, op);
    } else if (op->items_tail == NULL) {
        return inline_take(r, op);
    } else {
        slots_append(r, op->items, op->items_tail, op->item_count);
        r->in->push_count += op->item_count;
    }
    return true;
}

static bool operations_read(struct reading *r)
{
    bool first, first_member;
    struct slice key;
    struct json *j = &r->j;
    if (!array_is_next(r, "operations")) return false;
    json_array_open(j, &first);
    for (; json_array_next(j, &first); r->operations++) {
        struct operation op = {.index = r->operations};
        if (!json_object_open(j, &first_member)) {
            return refuse(r, RANK_SHAPE, 400, "bad_request", "operations[%u]: not an object", op.index);
        }
        while (json_object_next(j, &first_member, &key)) {
            enum op_member member = op_member_of(key);
            if (member != OP_UNKNOWN && !body_field_once(j, &op.seen, member)) {
                return refuse_member(r, op.index, op_member_names[member]);
            }
            if (member == OP_ITEMS) {
                if (!items_read(r, &op)) return false;
            } else if (!op_member_read(j, member, &op)) {
                return refuse_member(r, op.index, op_member_names[member]);
            }
        }
        if (j->error != NULL) return refuse_shape(r, "operations");
        if (!op_take(r, &op)) return false;
    }
    return j->error == NULL || refuse_shape(r, "operations");
}

/* ---- riders ------------------------------------------------------------------------------------------------------- */

static bool kv_read(struct reading *r)
{
    struct ops_refusal why;
    if (!array_is_next(r, "kv")) return false;
    const char *at = r->j.at;
    if (kv_ops_read(&r->j, OPS_TRANSACTION, r->config, &r->in->kv, &why)) return true;
    r->in->kv = (struct kv_inputs){0};
    refuse(r, RANK_KV, why.status, why.reason != NULL ? why.reason : why.error, "QKV %s", why.detail);
    return array_pass(r, at, "kv");
}

static bool timers_read(struct reading *r)
{
    struct ops_refusal why;
    if (!array_is_next(r, "timers")) return false;
    const char *at = r->j.at;
    if (timer_ops_read(&r->j, OPS_TRANSACTION, r->config, &r->in->timers, &why)) return true;
    r->in->timers = (struct timer_inputs){0};
    const char *reason = why.reason == NULL ? "" : why.reason;
    if (strcmp(reason, "timers_call_too_large") == 0)
        refuse(r, RANK_TIMERS, 200, "too_large", "%s", why.detail);
    else if (strcmp(reason, "timers_server_owned_field") == 0)
        refuse(r, RANK_TIMERS, 400, reason, "%s", why.detail);
    else
        refuse(r, RANK_TIMERS, 400, "bad_request", "%s", why.detail);
    return array_pass(r, at, "timers");
}

/* ---- positions ---------------------------------------------------------------------------------------------------- */

enum position_member {
    POSITION_QUEUE,
    POSITION_GROUP,
    POSITION_PARTITION,
    POSITION_OFFSET,
    POSITION_METADATA,
    POSITION_MODE,
    POSITION_UNKNOWN
};
static const char *const position_member_names[] = {"queue",    "consumerGroup",    "partition", "offset",
                                                    "metadata", "subscriptionMode", "a field"};

static enum position_member position_member_of(struct slice key)
{
    for (unsigned i = 0; i < POSITION_UNKNOWN; i++) {
        if (slice_is(key, position_member_names[i])) return (enum position_member)i;
    }
    return POSITION_UNKNOWN;
}

static bool position_member_read(struct json *j, enum position_member member, struct position_item *p, struct slice *mode)
{
    bool given;
    int64_t offset = 0;
    switch (member) {
    case POSITION_QUEUE:
        return body_field_read(j, FIELD_NAME, &p->queue, &given);
    case POSITION_GROUP:
        return body_field_read(j, FIELD_NAME, &p->group, &given);
    case POSITION_PARTITION:
        return body_field_read(j, FIELD_NAME, &p->partition, &given);
    case POSITION_OFFSET:
        if (json_peek(j) == JSON_NULL) {
            p->forget = 1;
            return json_skip(j, NULL);
        }
        if (!json_integer(j, &offset)) return false;
        p->offset = (uint64_t)offset;
        return offset >= 0 || json_fail(j, "negative");
    case POSITION_METADATA:
        if (!body_field_read(j, FIELD_STRING, &p->metadata, &given)) return false;
        p->has_metadata = given;
        return true;
    case POSITION_MODE:
        return body_field_read(j, FIELD_STRING, mode, &given);
    default:
        return json_skip(j, NULL);
    }
}

static bool position_refuse(struct reading *r, uint32_t index, const char *name, const char *what)
{
    return refuse(r, RANK_POSITIONS, 200, "bad_request", "QTXN positions[%u]%s%s: %s", index, name[0] == 0 ? "" : ".", name,
                  what);
}

static bool position_read(struct reading *r, uint32_t index, struct position_item *p)
{
    struct json *j = &r->j;
    bool first;
    uint32_t seen = 0;
    struct slice key, mode = {0};
    *p = (struct position_item){0};
    if (!json_object_open(j, &first)) return position_refuse(r, index, "", "not an object");
    while (json_object_next(j, &first, &key)) {
        enum position_member member = position_member_of(key);
        if ((member != POSITION_UNKNOWN && !body_field_once(j, &seen, member)) || !position_member_read(j, member, p, &mode)) {
            return position_refuse(r, index, position_member_names[member], j->error);
        }
    }
    if (j->error != NULL) return position_refuse(r, index, "", j->error);
    if (p->queue.len == 0) return position_refuse(r, index, "queue", "a non-empty string is required");
    if (p->group.len == 0) return position_refuse(r, index, "consumerGroup", "a non-empty string is required");
    if ((seen >> POSITION_OFFSET & 1) == 0) return position_refuse(r, index, "offset", "required");
    if (p->metadata.len > METADATA_BYTES_MAX) {
        return refuse(r, RANK_POSITIONS, 200, "too_large", "QTXN positions[%u].metadata: longer than %d bytes", index,
                      METADATA_BYTES_MAX);
    }
    if (p->partition.len == 0) p->partition = slice_of(DEFAULT_PARTITION);
    if (!name_fits(p->queue, p->partition, p->group)) {
        return refuse(r, RANK_POSITIONS, 200, "name_too_long", "QTXN positions[%u]: its names are too long", index);
    }
    p->mode = slice_is(p->group, QUEUE_MODE_GROUP) ? SUBSCRIBE_ALL : subscription_mode_of(mode, r->config);
    return true;
}

static bool positions_read(struct reading *r)
{
    enum { ROOM_FIRST = 8 };
    bool first;
    uint32_t room = 0, count = 0;
    struct position_item *items = NULL;
    if (!array_is_next(r, "positions")) return false;
    const char *at = r->j.at;
    json_array_open(&r->j, &first);
    for (; json_array_next(&r->j, &first); count++) {
        if (count == POSITIONS_MAX) {
            refuse(r, RANK_POSITIONS, 400, "bad_request", "QTXN positions: at most %d", POSITIONS_MAX);
            return array_pass(r, at, "positions");
        }
        if (count == room) {
            room = room == 0 ? ROOM_FIRST : room * 2;
            struct position_item *grown = arena_get(r->j.arena, room * sizeof *grown);
            if (count > 0) memcpy(grown, items, count * sizeof *grown);
            items = grown;
        }
        if (!position_read(r, count, &items[count])) return array_pass(r, at, "positions");
    }
    r->in->positions = items;
    r->in->position_count = count;
    return r->j.error == NULL || refuse_shape(r, "positions");
}

/* ---- next --------------------------------------------------------------------------------------------------------- */

enum next_member {
    NEXT_QUEUE,
    NEXT_PARTITION,
    NEXT_GROUP,
    NEXT_BATCH,
    NEXT_PARTITIONS,
    NEXT_WAIT,
    NEXT_TIMEOUT,
    NEXT_LEASE,
    NEXT_MODE,
    NEXT_FROM,
    NEXT_CONFLATION,
    NEXT_NAMESPACE,
    NEXT_TASK,
    NEXT_AUTO_ACK,
    NEXT_COMMIT_ON_DELIVERY,
    NEXT_UNKNOWN
};
static const char *const next_member_names[] = {"queue",
                                                "partition",
                                                "consumerGroup",
                                                "batch",
                                                "partitions",
                                                "wait",
                                                "timeout",
                                                "leaseSeconds",
                                                "subscriptionMode",
                                                "subscriptionFrom",
                                                "conflation",
                                                "namespace",
                                                "task",
                                                "autoAck",
                                                "commitOnDelivery",
                                                "a field"};

static enum next_member next_member_of(struct slice key)
{
    for (unsigned i = 0; i < NEXT_UNKNOWN; i++) {
        if (slice_is(key, next_member_names[i])) return (enum next_member)i;
    }
    return NEXT_UNKNOWN;
}

static bool next_refused_read(struct json *j, enum next_member member)
{
    bool value = true;
    if (member == NEXT_NAMESPACE || member == NEXT_TASK) return json_fail(j, "only a queue or a lane can be taken from");
    if (!json_bool(j, &value)) return false;
    return !value || json_fail(j, "what is taken with a transaction is leased");
}

/* A member that is not null. */
static bool next_member_read(struct json *j, enum next_member member, struct pop_params *p, struct pop_command *pop)
{
    bool given;
    switch (member) {
    case NEXT_QUEUE:
        return body_field_read(j, FIELD_NAME, &pop->queue, &given);
    case NEXT_PARTITION:
        return body_field_read(j, FIELD_NAME, &pop->partition, &given);
    case NEXT_GROUP:
        return body_field_read(j, FIELD_NAME, &p->group, &p->group_given);
    case NEXT_BATCH:
        return p->batch_given = json_integer(j, &p->batch);
    case NEXT_PARTITIONS:
        return p->partitions_given = json_integer(j, &p->partitions);
    case NEXT_WAIT:
        return json_bool(j, &p->wait);
    case NEXT_TIMEOUT:
        return json_integer(j, &p->timeout_ms) && (p->timeout_ms >= 0 || json_fail(j, "milliseconds are required"));
    case NEXT_LEASE:
        return json_integer(j, &p->lease_seconds);
    case NEXT_MODE:
        return body_field_read(j, FIELD_STRING, &p->mode, &given);
    case NEXT_FROM:
        return body_field_read(j, FIELD_STRING, &p->from, &given);
    case NEXT_CONFLATION:
        return p->conflation_given = json_bool(j, &p->conflation);
    case NEXT_UNKNOWN:
        return json_skip(j, NULL);
    default:
        return next_refused_read(j, member);
    }
}

static bool next_settle(struct reading *r, struct pop_params *p)
{
    struct transaction_input *in = r->in;
    struct pop_command *pop = &in->pop;
    if (pop->queue.len == 0) {
        return refuse(r, RANK_SHAPE, 400, "bad_request", "next.queue: a non-empty string is required");
    }
    const char *refusal = pop_params_settle(p);
    if (refusal != NULL) return refuse(r, RANK_SHAPE, 400, "bad_request", "next: %s", refusal);
    pop->scope = pop->partition.len > 0 ? POP_PARTITION : POP_QUEUE;
    pop_params_command(p, r->config, r->tenant, pop);
    in->has_next = true;
    in->wait = p->wait;
    in->wait_us = p->timeout_ms * 1000;
    if (!name_fits(pop->queue, pop->partition, pop->group)) {
        refuse(r, RANK_STATE, 413, NULL, "next: queue and the longer of partition and group may have 411 bytes together");
        if (r->rank == RANK_STATE && r->why->reason == NULL) r->why->code = "name_too_long";
    }
    return true;
}

static bool next_read(struct reading *r)
{
    struct json *j = &r->j;
    struct pop_params p;
    bool first;
    uint32_t seen = 0;
    struct slice key;
    pop_params_begin(&p, r->config);
    if (!json_object_open(j, &first)) return refuse(r, RANK_SHAPE, 400, "bad_request", "next: an object is required");
    while (json_object_next(j, &first, &key)) {
        enum next_member member = next_member_of(key);
        bool once = member == NEXT_UNKNOWN || body_field_once(j, &seen, member);
        bool read = once && (json_peek(j) == JSON_NULL ? json_skip(j, NULL) : next_member_read(j, member, &p, &r->in->pop));
        if (!read) return refuse(r, RANK_SHAPE, 400, "bad_request", "next.%s: %s", next_member_names[member], j->error);
    }
    if (j->error != NULL) return refuse_shape(r, "next");
    return next_settle(r, &p);
}

/* ---- the body ----------------------------------------------------------------------------------------------------- */

struct body_member {
    const char *name;
    bool (*read)(struct reading *r);
};
static const struct body_member body_members[] = {{"operations", operations_read},
                                                  {"requiredLeases", required_leases_read},
                                                  {"kv", kv_read},
                                                  {"timers", timers_read},
                                                  {"positions", positions_read},
                                                  {"next", next_read}};
enum { BODY_MEMBERS = sizeof body_members / sizeof body_members[0] };

static bool members_read(struct reading *r)
{
    struct json *j = &r->j;
    bool first;
    uint32_t seen = 0;
    struct slice key;
    if (!json_object_open(j, &first)) return refuse_shape(r, "body");
    while (json_object_next(j, &first, &key)) {
        unsigned i = 0;
        while (i < BODY_MEMBERS && !slice_is(key, body_members[i].name)) i++;
        if (i < BODY_MEMBERS && !body_field_once(j, &seen, i)) {
            return refuse(r, RANK_SHAPE, 400, "bad_request", "%s: given twice", body_members[i].name);
        }
        if (i == BODY_MEMBERS || json_peek(j) == JSON_NULL) {
            if (!json_skip(j, NULL)) break;
        } else if (!body_members[i].read(r)) {
            return false;
        }
    }
    return json_end(j) || refuse_shape(r, "body");
}

bool body_transaction_read(struct slice body, struct arena *arena, const struct config *config, struct uuid tenant,
                           struct transaction_input *out, struct transaction_refusal *why)
{
    struct reading r = {.config = config, .tenant = tenant, .in = out, .tail = &out->slots, .why = why, .rank = RANK_NONE};
    *out = (struct transaction_input){0};
    json_open(&r.j, body, arena);
    if (!members_read(&r)) return false;
    if (r.operations == 0 && out->kv.count == 0 && out->timers.count == 0 && out->position_count == 0) {
        refuse(&r, RANK_EMPTY, 200, "bad_request",
               "QTXN the transaction is empty: operations, kv, timers or positions are required");
    }
    leases_lend(&r);
    return r.rank == RANK_NONE;
}
