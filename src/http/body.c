#include "http/body.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/limits.h"
#include "http/body_inner.h"
#include "http/name.h"

bool body_refuse(struct body_refusal *why, const char *code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(why->text, sizeof why->text, format, args);
    va_end(args);
    must(n > 0);
    why->code = code;
    return false;
}

/* A text that is not JSON, or not of the shape wanted: says what and where. */
static bool refuse_json(struct body_refusal *why, const struct json *j, const char *where)
{
    return body_refuse(why, "bad_body", "%s: %s at byte %zu", where, j->error == NULL ? "wrong shape" : j->error,
                       (size_t)(j->at - j->start));
}

/* JSON has no control characters in strings but as escapes, and strings with escapes do not lie in the text. */
bool body_control_free(const struct json *j, struct slice s)
{
    return (s.at >= j->start && s.at < j->end) || !name_has_control(s);
}

bool body_field_read(struct json *j, enum field_kind kind, struct slice *out, bool *given)
{
    *given = false;
    if (json_peek(j) == JSON_NULL) return json_skip(j, NULL);
    if (!json_string(j, out)) return false;
    *given = true;
    if (kind == FIELD_NAME && !body_control_free(j, *out)) return json_fail(j, "a control character");
    return true;
}

bool body_field_once(struct json *j, uint32_t *seen, unsigned i)
{
    if (*seen >> i & 1) return json_fail(j, "given twice");
    *seen |= 1u << i;
    return true;
}

/* ---- push --------------------------------------------------------------------------------------------------------- */

static const char *const push_field_names[] = {"queue", "partition", "payload", "transactionId", "traceId", "a field"};

static enum push_field push_field_of(struct slice key)
{
    switch (key.len) {
    case 5:
        return memcmp(key.at, "queue", 5) == 0 ? PUSH_QUEUE : PUSH_UNKNOWN;
    case 7:
        return memcmp(key.at, "payload", 7) == 0 ? PUSH_PAYLOAD : memcmp(key.at, "traceId", 7) == 0 ? PUSH_TRACE : PUSH_UNKNOWN;
    case 9:
        return memcmp(key.at, "partition", 9) == 0 ? PUSH_PARTITION : PUSH_UNKNOWN;
    case 13:
        return memcmp(key.at, "transactionId", 13) == 0 ? PUSH_TRANSACTION : PUSH_UNKNOWN;
    default:
        return PUSH_UNKNOWN;
    }
}

bool body_push_field_read(struct json *j, enum push_field field, struct push_input *item)
{
    bool given;
    struct slice text = {0};
    switch (field) {
    case PUSH_QUEUE:
        return json_string(j, &item->queue) && (body_control_free(j, item->queue) || json_fail(j, "a control character"));
    case PUSH_PARTITION:
        return body_field_read(j, FIELD_NAME, &item->partition, &given);
    case PUSH_PAYLOAD:
        return json_skip(j, &item->payload);
    case PUSH_TRANSACTION:
        return body_field_read(j, FIELD_NAME, &item->transaction, &item->has_transaction) &&
               (item->transaction.len <= TRANSACTION_ID_BYTES_MAX || json_fail(j, "longer than 65535 bytes"));
    case PUSH_TRACE:
        if (json_peek(j) != JSON_STRING) return json_skip(j, NULL);
        if (!json_skip(j, &text)) return false; /* not unescaped: no UUID has escapes */
        item->has_trace = uuid_parse(slice_make(text.at + 1, text.len - 2), &item->trace);
        return true;
    default:
        return json_skip(j, NULL);
    }
}

bool body_push_item_read(struct json *j, uint32_t index, struct push_input *item, struct body_refusal *why)
{
    bool first;
    uint32_t seen = 0;
    struct slice key;
    *item = (struct push_input){0};
    if (!json_object_open(j, &first)) return body_refuse(why, "bad_body", "items[%u]: not an object", index);
    while (json_object_next(j, &first, &key)) {
        enum push_field field = push_field_of(key);
        if ((field != PUSH_UNKNOWN && !body_field_once(j, &seen, field)) || !body_push_field_read(j, field, item)) {
            return body_refuse(why, "bad_body", "items[%u].%s: %s", index, push_field_names[field], j->error);
        }
    }
    if (j->error != NULL) return refuse_json(why, j, "items");
    if (item->queue.len == 0) return body_refuse(why, "bad_body", "items[%u].queue: a non-empty string is required", index);
    if ((seen >> PUSH_PAYLOAD & 1) == 0) return body_refuse(why, "bad_body", "items[%u].payload: required", index);
    if (item->partition.len == 0) item->partition = slice_of(DEFAULT_PARTITION);
    return true;
}

bool body_push_read(struct slice body, uint64_t items_max, struct arena *arena, struct buf *items, struct body_refusal *why)
{
    struct json j;
    bool first, first_item;
    struct slice key;
    bool seen = false;
    json_open(&j, body, arena);
    if (!json_object_open(&j, &first)) return refuse_json(why, &j, "body");
    while (json_object_next(&j, &first, &key)) {
        if (!slice_is(key, "items")) {
            if (!json_skip(&j, NULL)) break;
            continue;
        }
        if (seen) return body_refuse(why, "bad_body", "items: given twice");
        seen = true;
        if (!json_array_open(&j, &first_item)) return refuse_json(why, &j, "items");
        for (uint32_t i = 0; json_array_next(&j, &first_item); i++) {
            if (i == items_max) {
                return body_refuse(why, "too_many_items", "items: more than %llu, for which there is memory (QUEEN_MEMORY_MAX)",
                                   (unsigned long long)items_max);
            }
            struct push_input *item = (struct push_input *)(void *)buf_reserve(items, sizeof *item);
            if (!body_push_item_read(&j, i, item, why)) return false;
            items->len += sizeof *item;
        }
    }
    if (!json_end(&j)) return refuse_json(why, &j, "body");
    return seen || body_refuse(why, "bad_body", "items: an array is required");
}

void push_input_write(struct push_writer *w, const struct push_input *in)
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

/* ---- ack ---------------------------------------------------------------------------------------------------------- */

enum ack_field { ACK_TRANSACTION, ACK_PARTITION, ACK_LEASE, ACK_STATUS, ACK_ERROR, ACK_GROUP, ACK_ITEMS, ACK_UNKNOWN };
static const char *const ack_field_names[] = {"transactionId", "partitionId",   "leaseId",         "status",
                                              "error",         "consumerGroup", "acknowledgments", "a field"};

static enum ack_field ack_field_of(struct slice key)
{
    for (unsigned i = 0; i < ACK_UNKNOWN; i++) {
        if (slice_is(key, ack_field_names[i])) return (enum ack_field)i;
    }
    return ACK_UNKNOWN;
}

uint8_t body_ack_status(struct slice text)
{
    switch (text.len) {
    case 3:
        return name_equals_caseless(text, "dlq") ? ACK_DLQ : ACK_COMPLETED;
    case 5:
        return name_equals_caseless(text, "retry") ? ACK_RETRY : ACK_COMPLETED;
    case 6:
        return name_equals_caseless(text, "failed") ? ACK_FAILED : ACK_COMPLETED;
    default:
        return ACK_COMPLETED;
    }
}

bool body_partition_number(struct slice text, uint64_t *out)
{
    uint64_t value = 0;
    bool over = false;
    for (size_t i = 0; i < text.len; i++) {
        if (text.at[i] < '0' || text.at[i] > '9') return false;
        uint64_t digit = (uint64_t)(text.at[i] - '0');
        over |= value > (UINT64_MAX - digit) / 10;
        value = value * 10 + digit;
    }
    *out = over ? UINT64_MAX : value;
    return text.len > 0;
}

struct slice body_error_cut(struct slice text)
{
    if (text.len <= ERROR_TEXT_BYTES_MAX) return text;
    size_t len = ERROR_TEXT_BYTES_MAX;
    while (len > 0 && ((unsigned char)text.at[len] & 0xc0) == 0x80) len--;
    return slice_make(text.at, len);
}

struct uuid body_lease(struct slice text)
{
    struct uuid lease;
    if (!uuid_parse(text, &lease)) memset(&lease, 0xff, sizeof lease);
    return lease;
}

static bool ack_field_read(struct json *j, enum ack_field field, struct ack_input *item)
{
    bool given;
    struct slice text = {0};
    switch (field) {
    case ACK_TRANSACTION:
        return body_field_read(j, FIELD_STRING, &item->transaction, &given);
    case ACK_PARTITION:
        return body_field_read(j, FIELD_STRING, &item->partition, &given);
    case ACK_LEASE:
        return body_field_read(j, FIELD_STRING, &item->lease, &given);
    case ACK_STATUS:
        if (!body_field_read(j, FIELD_STRING, &text, &given)) return false;
        item->status = body_ack_status(text);
        return true;
    case ACK_ERROR:
        return body_field_read(j, FIELD_STRING, &item->error, &item->has_error);
    default:
        return json_skip(j, NULL);
    }
}

static bool ack_item_read(struct json *j, uint32_t index, struct ack_input *item, struct body_refusal *why)
{
    bool first;
    uint32_t seen = 0;
    struct slice key;
    *item = (struct ack_input){0};
    if (!json_object_open(j, &first)) return body_refuse(why, "bad_body", "acknowledgments[%u]: not an object", index);
    while (json_object_next(j, &first, &key)) {
        enum ack_field field = ack_field_of(key);
        if (field > ACK_ERROR) field = ACK_UNKNOWN; /* a group or list inside an item is nobody's field */
        if ((field != ACK_UNKNOWN && !body_field_once(j, &seen, field)) || !ack_field_read(j, field, item)) {
            return body_refuse(why, "bad_body", "acknowledgments[%u].%s: %s", index, ack_field_names[field], j->error);
        }
    }
    return j->error == NULL || refuse_json(why, j, "acknowledgments");
}

static bool ack_items_read(struct json *j, struct buf *items, struct body_refusal *why)
{
    bool first;
    if (json_peek(j) == JSON_NULL) return json_skip(j, NULL) || refuse_json(why, j, "acknowledgments");
    if (!json_array_open(j, &first)) return refuse_json(why, j, "acknowledgments");
    for (uint32_t i = 0; json_array_next(j, &first); i++) {
        struct ack_input *item = (struct ack_input *)(void *)buf_reserve(items, sizeof *item);
        if (!ack_item_read(j, i, item, why)) return false;
        items->len += sizeof *item;
    }
    return j->error == NULL || refuse_json(why, j, "acknowledgments");
}

bool body_ack_read(struct slice body, struct arena *arena, struct buf *items, struct slice *group, struct body_refusal *why)
{
    struct json j;
    bool first, has_group = false;
    uint32_t seen = 0;
    struct slice key;
    struct ack_input single = {0};
    json_open(&j, body, arena);
    if (!json_object_open(&j, &first)) return refuse_json(why, &j, "body");
    while (json_object_next(&j, &first, &key)) {
        enum ack_field field = ack_field_of(key);
        if (field != ACK_UNKNOWN && !body_field_once(&j, &seen, field)) {
            return body_refuse(why, "bad_body", "%s: given twice", ack_field_names[field]);
        }
        if (field == ACK_ITEMS) {
            if (!ack_items_read(&j, items, why)) return false;
        } else if (field == ACK_GROUP ? !body_field_read(&j, FIELD_NAME, group, &has_group)
                                      : !ack_field_read(&j, field, &single)) {
            return body_refuse(why, "bad_body", "%s: %s at byte %zu", ack_field_names[field], j.error,
                               (size_t)(j.at - j.start));
        }
    }
    if (!json_end(&j)) return refuse_json(why, &j, "body");
    if (!has_group) *group = slice_of(QUEUE_MODE_GROUP);
    if (group->len == 0) return body_refuse(why, "bad_request", "consumerGroup: must not be empty");
    if (items->len == 0) buf_put(items, &single, sizeof single);
    return true;
}

/* ---- extend ------------------------------------------------------------------------------------------------------- */

int64_t body_extend_read(struct slice body, struct arena *arena)
{
    enum { SECONDS_DEFAULT = 60 };
    struct json j;
    bool first;
    struct slice key;
    int64_t seconds = SECONDS_DEFAULT;
    json_open(&j, body, arena);
    if (!json_object_open(&j, &first)) return SECONDS_DEFAULT;
    while (json_object_next(&j, &first, &key)) {
        if (slice_is(key, "seconds") && json_peek(&j) != JSON_NULL) {
            if (!json_integer(&j, &seconds)) return SECONDS_DEFAULT;
        } else if (!json_skip(&j, NULL)) {
            return SECONDS_DEFAULT;
        }
    }
    if (!json_end(&j)) return SECONDS_DEFAULT;
    return seconds < 1 ? 1 : seconds > LEASE_SECONDS_MAX ? LEASE_SECONDS_MAX : seconds;
}
