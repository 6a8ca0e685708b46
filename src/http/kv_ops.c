/* KV ops as JSON. One pass over the body: an op's fields are taken as they come, then judged together, because the op's name may
 * come last. Limits are checked as early as they can be exceeded, so that a body cannot make us keep more than they allow. */
#include <stdarg.h>
#include <stdio.h>

#include "base/decimal.h"
#include "base/hash.h"
#include "base/limits.h"
#include "broker/config.h"
#include "http/data_ops.h"
#include "http/kv_value.h"
#include "http/name.h"
#include "http/render.h"

enum { NUMBER_BYTES_MAX = 256, LIMIT_DEFAULT = 100, LIMIT_MAX = 1000 };
#define TTL_SECONDS_MAX (TIMER_DELAY_US_MAX / 1000000)

static const char bad_request[] = "kv_bad_request";

__attribute__((format(printf, 3, 4))) static bool refuse(struct ops_refusal *why, const char *reason, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(why->detail, sizeof why->detail, format, args);
    va_end(args);
    must(n > 0);
    why->status = 400;
    why->error = "kv_bad_request";
    why->reason = reason;
    return false;
}

static bool refuse_large(struct ops_refusal *why, const char *reason, uint32_t index, const char *what, uint32_t bytes_max)
{
    refuse(why, reason, "operation %u: %s may have %u bytes", index, what, bytes_max);
    why->status = 413;
    why->error = "payload_too_large";
    return false;
}

static bool refuse_json(struct ops_refusal *why, const struct json *j)
{
    return refuse(why, "kv_bad_body", "%s at byte %zu", j->error == NULL ? "wrong shape" : j->error,
                  (size_t)(j->at - j->start));
}

/* ---- an op's fields ------------------------------------------------------------------------------------------------ */

enum field {
    FIELD_OP,
    FIELD_NS,
    FIELD_KEY,
    FIELD_KEYS,
    FIELD_VALUE,
    FIELD_EXPECT,
    FIELD_REQUIRED,
    FIELD_TTL,
    FIELD_FOREVER,
    FIELD_DELTA,
    FIELD_MIN,
    FIELD_MAX,
    FIELD_PREFIX,
    FIELD_AFTER,
    FIELD_LIMIT,
    FIELD_KEYS_ONLY,
    FIELD_TENANT,
    FIELD_NAMESPACE, /* nobody's, but one that must not stand beside a path */
    FIELD_UNKNOWN
};

static const char *const field_names[] = {"op",         "ns",       "key",    "keys",      "value",  "expect", "required",
                                          "ttlSeconds", "forever",  "delta",  "min",       "max",    "prefix", "after",
                                          "limit",      "keysOnly", "tenant", "namespace", "a field"};

struct fields {
    uint32_t seen, given; /* bits of enum field; given: not null, where null is as good as absent */
    struct {
        struct slice text; /* of a string what it says, else the bytes sent */
        enum json_type type;
    } at[FIELD_UNKNOWN];
};

static inline bool given(const struct fields *f, enum field i)
{
    return (f->given >> i & 1) != 0;
}

static enum field field_of(struct slice key)
{
    switch (key.len) {
    case 2:
        return memcmp(key.at, "op", 2) == 0 ? FIELD_OP : memcmp(key.at, "ns", 2) == 0 ? FIELD_NS : FIELD_UNKNOWN;
    case 3:
        return memcmp(key.at, "key", 3) == 0   ? FIELD_KEY
               : memcmp(key.at, "min", 3) == 0 ? FIELD_MIN
               : memcmp(key.at, "max", 3) == 0 ? FIELD_MAX
                                               : FIELD_UNKNOWN;
    case 4:
        return memcmp(key.at, "keys", 4) == 0 ? FIELD_KEYS : FIELD_UNKNOWN;
    case 5:
        return memcmp(key.at, "value", 5) == 0   ? FIELD_VALUE
               : memcmp(key.at, "delta", 5) == 0 ? FIELD_DELTA
               : memcmp(key.at, "limit", 5) == 0 ? FIELD_LIMIT
               : memcmp(key.at, "after", 5) == 0 ? FIELD_AFTER
                                                 : FIELD_UNKNOWN;
    case 6:
        return memcmp(key.at, "expect", 6) == 0   ? FIELD_EXPECT
               : memcmp(key.at, "prefix", 6) == 0 ? FIELD_PREFIX
               : memcmp(key.at, "tenant", 6) == 0 ? FIELD_TENANT
                                                  : FIELD_UNKNOWN;
    case 7:
        return memcmp(key.at, "forever", 7) == 0   ? FIELD_FOREVER
               : memcmp(key.at, "_tenant", 7) == 0 ? FIELD_TENANT
                                                   : FIELD_UNKNOWN;
    case 8:
        return memcmp(key.at, "required", 8) == 0   ? FIELD_REQUIRED
               : memcmp(key.at, "keysOnly", 8) == 0 ? FIELD_KEYS_ONLY
               : memcmp(key.at, "tenantId", 8) == 0 ? FIELD_TENANT
                                                    : FIELD_UNKNOWN;
    case 9:
        return memcmp(key.at, "namespace", 9) == 0 ? FIELD_NAMESPACE : FIELD_UNKNOWN;
    case 10:
        return memcmp(key.at, "ttlSeconds", 10) == 0 ? FIELD_TTL : FIELD_UNKNOWN;
    default:
        return FIELD_UNKNOWN;
    }
}

/* The value of member i: strings that name something unescaped, the rest as sent. */
static bool field_read(struct json *j, enum field i, struct fields *f)
{
    static const uint32_t texts =
        1u << FIELD_OP | 1u << FIELD_NS | 1u << FIELD_KEY | 1u << FIELD_PREFIX | 1u << FIELD_AFTER | 1u << FIELD_NAMESPACE;
    enum json_type type = json_peek(j);
    f->at[i].type = type;
    f->seen |= 1u << i;
    if (type != JSON_NULL || i == FIELD_VALUE || i == FIELD_EXPECT || i == FIELD_TENANT) f->given |= 1u << i;
    if (type == JSON_STRING && (texts >> i & 1) != 0) return json_string(j, &f->at[i].text);
    return json_skip(j, &f->at[i].text);
}

/* All members of the object that comes next. */
static bool fields_read(struct json *j, uint32_t index, struct fields *f, struct ops_refusal *why)
{
    bool first;
    struct slice key;
    f->seen = f->given = 0;
    if (json_peek(j) != JSON_OBJECT) {
        if (!json_skip(j, NULL)) return refuse_json(why, j);
        return refuse(why, bad_request, "operation %u: not an object", index);
    }
    json_object_open(j, &first);
    while (json_object_next(j, &first, &key)) {
        enum field i = field_of(key);
        if (i == FIELD_UNKNOWN) {
            if (!json_skip(j, NULL)) break;
            continue;
        }
        if ((f->seen >> i & 1) != 0 && i != FIELD_TENANT) {
            return refuse(why, bad_request, "operation %u: %s is given twice", index, field_names[i]);
        }
        if (!field_read(j, i, f)) break;
    }
    return j->error == NULL || refuse_json(why, j);
}

/* ---- judging them -------------------------------------------------------------------------------------------------- */

static const struct op_name {
    const char *name;
    uint8_t kind; /* enum kv_op_kind */
    bool absent;  /* putIfAbsent: expects nothing there */
} op_names[] = {
    {"get", KV_GET, false},          {"put", KV_PUT, false},
    {"putIfAbsent", KV_PUT, true},   {"incr", KV_INCR, false},
    {"delete", KV_DELETE, false},    {"check", KV_CHECK, false},
    {"getMany", KV_GET_MANY, false}, {"getPrefix", KV_GET_PREFIX, false},
};

static const struct op_name *op_name_of(struct slice text)
{
    for (size_t i = 0; i < sizeof op_names / sizeof op_names[0]; i++) {
        if (slice_is(text, op_names[i].name)) return &op_names[i];
    }
    return NULL;
}

/* What is being read: one op on its way from JSON to struct kv_op. */
struct op_reader {
    struct json *j;
    const struct config *config;
    struct ops_refusal *why;
    uint32_t index;
    struct fields f;
};

bool kv_name_space_ok(struct slice name)
{
    if (name.len == 0 || name.len > KV_NAME_SPACE_BYTES_MAX) return false;
    for (size_t i = 0; i < name.len; i++) {
        char c = name.at[i];
        if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) continue;
        if (i == 0 || (c != '.' && c != '_' && c != '-')) return false;
    }
    return true;
}

static inline bool is_text(enum json_type type)
{
    return type == JSON_STRING || type == JSON_NUMBER; /* a number is as good as its text */
}

static bool name_space_judge(struct op_reader *o, struct kv_op *op)
{
    op->name_space = o->f.at[FIELD_NS].text;
    if (given(&o->f, FIELD_NS) && is_text(o->f.at[FIELD_NS].type) && kv_name_space_ok(op->name_space)) return true;
    return refuse(o->why, "kv_bad_namespace",
                  "operation %u: ns must be 1 to 64 of a-z 0-9 . _ - and begin with a letter or digit", o->index);
}

static bool key_judge(struct op_reader *o, struct slice key)
{
    if (key.len > KV_KEY_BYTES_MAX) return refuse_large(o->why, "kv_key_too_large", o->index, "a key", KV_KEY_BYTES_MAX);
    if (key.len > 0 && memchr(key.at, 0, key.len) == NULL) return true;
    return refuse(o->why, "kv_bad_key", "operation %u: a key must not be empty nor hold a NUL", o->index);
}

static bool single_key_judge(struct op_reader *o, struct kv_op *op)
{
    op->key = o->f.at[FIELD_KEY].text;
    if (given(&o->f, FIELD_KEY) && is_text(o->f.at[FIELD_KEY].type)) return key_judge(o, op->key);
    return refuse(o->why, "kv_bad_key", "operation %u: key must be a string", o->index);
}

/* An integer without sign tricks: digits, maybe with a minus in front. False: anything else, or it does not fit. */
static bool integer_of(struct slice raw, int64_t *out)
{
    bool negative = raw.len > 0 && raw.at[0] == '-';
    uint64_t value = 0, limit = (uint64_t)INT64_MAX + (negative ? 1 : 0);
    if (raw.len == (negative ? 1u : 0u)) return false;
    for (size_t i = negative ? 1 : 0; i < raw.len; i++) {
        if (raw.at[i] < '0' || raw.at[i] > '9') return false;
        uint64_t digit = (uint64_t)(raw.at[i] - '0');
        if (value > (limit - digit) / 10) return false;
        value = value * 10 + digit;
    }
    *out = negative ? (int64_t)(0 - value) : (int64_t)value;
    return true;
}

static bool expect_judge(struct op_reader *o, struct kv_op *op, const struct op_name *name)
{
    int64_t version = 0;
    if (name->absent) op->flags |= KV_EXPECT;
    if (!given(&o->f, FIELD_EXPECT)) {
        if (op->kind != KV_CHECK) return true;
        return refuse(o->why, "kv_bad_expect", "operation %u: check needs expect", o->index);
    }
    if (op->kind == KV_INCR) return refuse(o->why, bad_request, "operation %u: incr takes no expect", o->index);
    bool fine = o->f.at[FIELD_EXPECT].type == JSON_NUMBER && integer_of(o->f.at[FIELD_EXPECT].text, &version) && version >= 0;
    if (!fine) return refuse(o->why, "kv_bad_expect", "operation %u: expect must be a version, or 0", o->index);
    if (name->absent && version != 0) {
        return refuse(o->why, "kv_bad_expect", "operation %u: putIfAbsent may only expect 0", o->index);
    }
    op->flags |= KV_EXPECT;
    op->expect = (uint64_t)version;
    return true;
}

static bool flag_judge(struct op_reader *o, enum field i, uint8_t flag, struct kv_op *op)
{
    if (!given(&o->f, i)) return true;
    enum json_type type = o->f.at[i].type;
    if (type == JSON_TRUE) op->flags |= flag;
    if (type == JSON_TRUE || type == JSON_FALSE) return true;
    return refuse(o->why, bad_request, "operation %u: %s must be true or false", o->index, field_names[i]);
}

static bool expiry_judge(struct op_reader *o, struct kv_op *op)
{
    int64_t seconds = 0;
    bool forever = given(&o->f, FIELD_FOREVER) && o->f.at[FIELD_FOREVER].type != JSON_FALSE;
    if (forever && o->f.at[FIELD_FOREVER].type != JSON_TRUE) {
        return refuse(o->why, "kv_bad_ttl", "operation %u: forever must be true", o->index);
    }
    if (forever == given(&o->f, FIELD_TTL)) {
        return refuse(o->why, "kv_expiry_not_specified", "operation %u: one of ttlSeconds and forever:true is required",
                      o->index);
    }
    if (forever) return true;
    bool fine = o->f.at[FIELD_TTL].type == JSON_NUMBER && integer_of(o->f.at[FIELD_TTL].text, &seconds) && seconds > 0 &&
                seconds <= TTL_SECONDS_MAX;
    if (!fine) {
        return refuse(o->why, "kv_bad_ttl", "operation %u: ttlSeconds must be a whole number from 1 to %lld", o->index,
                      (long long)TTL_SECONDS_MAX);
    }
    op->ttl_us = seconds * 1000000;
    return true;
}

static bool value_judge(struct op_reader *o, struct kv_op *op)
{
    if (!given(&o->f, FIELD_VALUE)) return refuse(o->why, bad_request, "operation %u: value is required", o->index);
    if (kv_value_compact(o->j->arena, o->f.at[FIELD_VALUE].text, o->config->kv_value_bytes_max, &op->value)) return true;
    return refuse_large(o->why, "kv_value_too_large", o->index, "a value", o->config->kv_value_bytes_max);
}

static bool number_judge(struct op_reader *o, enum field i, struct slice *out)
{
    struct decimal d;
    *out = o->f.at[i].text;
    if (o->f.at[i].type == JSON_NUMBER && out->len <= NUMBER_BYTES_MAX && decimal_parse(*out, &d)) return true;
    return refuse(o->why, bad_request, "operation %u: %s must be a number of at most %d digits", o->index, field_names[i],
                  DECIMAL_DIGITS_MAX);
}

static bool incr_judge(struct op_reader *o, struct kv_op *op)
{
    if (!given(&o->f, FIELD_DELTA)) return refuse(o->why, bad_request, "operation %u: delta is required", o->index);
    if (!number_judge(o, FIELD_DELTA, &op->value)) return false;
    if (given(&o->f, FIELD_MIN)) {
        op->flags |= KV_HAS_MIN;
        if (!number_judge(o, FIELD_MIN, &op->min)) return false;
    }
    if (!given(&o->f, FIELD_MAX)) return true;
    op->flags |= KV_HAS_MAX;
    return number_judge(o, FIELD_MAX, &op->max);
}

/* The array was checked when its bytes were taken; here it is read again for what it says. */
static bool keys_read(struct op_reader *o, struct buf *keys, struct kv_op *op)
{
    struct json *j = o->j;
    bool first;
    j->at = o->f.at[FIELD_KEYS].text.at;
    json_array_open(j, &first);
    while (json_array_next(j, &first)) {
        struct slice key;
        if (op->key_count == KV_KEYS_MAX) {
            return refuse(o->why, "kv_too_many_keys", "operation %u: more than %d keys", o->index, (int)KV_KEYS_MAX);
        }
        enum json_type type = json_peek(j);
        if (!is_text(type)) return refuse(o->why, "kv_bad_key", "operation %u: keys must be strings", o->index);
        if (type == JSON_STRING ? !json_string(j, &key) : !json_skip(j, &key)) return refuse_json(o->why, j);
        if (!key_judge(o, key)) return false;
        kv_key_put(keys, key);
        op->key_count++;
    }
    return true;
}

static bool keys_judge(struct op_reader *o, struct kv_op *op)
{
    op->key = slice_of("");
    if (!given(&o->f, FIELD_KEYS)) return true;
    if (o->f.at[FIELD_KEYS].type != JSON_ARRAY) {
        return refuse(o->why, bad_request, "operation %u: keys must be an array", o->index);
    }
    struct buf keys = {0};
    const char *behind = o->j->at;
    bool fine = keys_read(o, &keys, op);
    if (fine) {
        op->key = arena_copy(o->j->arena, buf_view(&keys));
        o->j->at = behind;
    }
    buf_free(&keys);
    return fine;
}

/* Which part of what has the prefix. */
static bool page_judge(struct op_reader *o, struct kv_op *op)
{
    int64_t limit = LIMIT_DEFAULT;
    op->value = slice_of("");
    if (given(&o->f, FIELD_AFTER)) {
        if (!is_text(o->f.at[FIELD_AFTER].type))
            return refuse(o->why, bad_request, "operation %u: after must be a key", o->index);
        op->value = o->f.at[FIELD_AFTER].text;
        if (op->value.len > KV_KEY_BYTES_MAX)
            op->value.len = KV_KEY_BYTES_MAX; /* no key is longer: the same keys come behind */
    }
    if (given(&o->f, FIELD_LIMIT)) {
        bool fine = o->f.at[FIELD_LIMIT].type == JSON_NUMBER && integer_of(o->f.at[FIELD_LIMIT].text, &limit);
        if (!fine) return refuse(o->why, bad_request, "operation %u: limit must be an integer", o->index);
    }
    op->limit = (uint32_t)(limit < 1 ? 1 : limit > LIMIT_MAX ? LIMIT_MAX : limit);
    return flag_judge(o, FIELD_KEYS_ONLY, KV_KEYS_ONLY, op);
}

static bool prefix_judge(struct op_reader *o, struct kv_op *op)
{
    op->key = o->f.at[FIELD_PREFIX].text;
    if (!given(&o->f, FIELD_PREFIX) || !is_text(o->f.at[FIELD_PREFIX].type) || op->key.len == 0) {
        return refuse(o->why, "kv_prefix_required", "operation %u: prefix must be a string that is not empty", o->index);
    }
    return key_judge(o, op->key) && page_judge(o, op);
}

/* What belongs to the kind alone. */
static bool kind_judge(struct op_reader *o, struct kv_op *op, const struct op_name *name)
{
    switch ((enum kv_op_kind)op->kind) {
    case KV_GET:
        return single_key_judge(o, op);
    case KV_GET_MANY:
        return keys_judge(o, op);
    case KV_GET_PREFIX:
        return prefix_judge(o, op);
    case KV_PUT:
        return single_key_judge(o, op) && expect_judge(o, op, name) && flag_judge(o, FIELD_REQUIRED, KV_REQUIRED, op) &&
               expiry_judge(o, op) && value_judge(o, op);
    case KV_INCR:
        return single_key_judge(o, op) && expect_judge(o, op, name) && flag_judge(o, FIELD_REQUIRED, KV_REQUIRED, op) &&
               expiry_judge(o, op) && incr_judge(o, op);
    case KV_DELETE:
    case KV_CHECK:
        return single_key_judge(o, op) && expect_judge(o, op, name) && flag_judge(o, FIELD_REQUIRED, KV_REQUIRED, op);
    }
    must(false);
}

static bool op_judge(struct op_reader *o, enum ops_place place, struct kv_input *out)
{
    const struct op_name *name = NULL;
    *out = (struct kv_input){0};
    if (given(&o->f, FIELD_TENANT)) {
        return refuse(o->why, "kv_tenant_not_an_input", "operation %u: the tenant comes from the request", o->index);
    }
    if (given(&o->f, FIELD_OP) && o->f.at[FIELD_OP].type == JSON_STRING) name = op_name_of(o->f.at[FIELD_OP].text);
    if (name == NULL) return refuse(o->why, "kv_unknown_op", "operation %u: unknown op", o->index);
    out->name = name->name;
    out->op.kind = name->kind;
    if (name->kind == KV_GET_PREFIX && place == OPS_TRANSACTION) {
        return refuse(o->why, "kv_get_prefix_not_allowed_in_transaction",
                      "operation %u: getPrefix is not possible in a transaction", o->index);
    }
    return name_space_judge(o, &out->op) && kind_judge(o, &out->op, name);
}

/* ---- all ops ------------------------------------------------------------------------------------------------------- */

static inline bool is_condition(uint8_t kind)
{
    return kv_op_writes(kind) || kind == KV_CHECK;
}

/* One write or check a key. A table of 2n..4n places by hash: linear, whatever was sent. */
static bool duplicates_check(const struct kv_inputs *in, struct arena *arena, struct ops_refusal *why)
{
    uint32_t places = 2;
    while (places < in->count * 2) places *= 2;
    uint16_t *table = arena_zero(arena, places * sizeof *table); /* index + 1 */
    for (uint32_t i = 0; i < in->count; i++) {
        const struct kv_op *op = &in->items[i].op;
        if (!is_condition(op->kind)) continue;
        uint64_t at = hash64(op->key, hash64(op->name_space, 0));
        for (;; at++) {
            uint16_t *place = &table[at & (places - 1)];
            if (*place == 0) {
                *place = (uint16_t)(i + 1);
                break;
            }
            const struct kv_op *other = &in->items[*place - 1].op;
            if (!slice_equal(other->key, op->key) || !slice_equal(other->name_space, op->name_space)) continue;
            return refuse(why, "kv_duplicate_key_in_call", "operations %u and %u write or check the same key",
                          (uint32_t)*place - 1, i);
        }
    }
    return true;
}

static bool budget_check(const struct kv_inputs *in, uint32_t keys_max, struct ops_refusal *why)
{
    uint64_t keys = 0;
    for (uint32_t i = 0; i < in->count; i++) {
        const struct kv_op *op = &in->items[i].op;
        keys += op->kind == KV_GET_MANY ? op->key_count : op->kind == KV_GET_PREFIX ? op->limit : 1;
    }
    if (keys <= keys_max) return true;
    return refuse(why, "kv_too_many_keys", "the operations name more than %u keys (a getPrefix counts its limit)", keys_max);
}

static void input_note(struct kv_inputs *in, uint8_t kind)
{
    in->count++;
    in->writes |= kv_op_writes(kind);
    in->grows |= kind == KV_PUT || kind == KV_INCR;
}

/* Room for one more: twice as many each time. */
static struct kv_input *input_next(struct kv_inputs *in, uint32_t *room, struct arena *arena)
{
    if (in->count == *room) {
        *room = *room == 0 ? 2 : *room * 2;
        struct kv_input *items = arena_get(arena, *room * sizeof *items);
        if (in->count > 0) memcpy(items, in->items, in->count * sizeof *items);
        in->items = items;
    }
    return &in->items[in->count];
}

bool kv_ops_read(struct json *j, enum ops_place place, const struct config *config, struct kv_inputs *out,
                 struct ops_refusal *why)
{
    uint32_t ops_max = place == OPS_TRANSACTION ? STEP_KV_OPS_MAX : config->kv_ops_max, room = 0;
    struct op_reader o = {.j = j, .config = config, .why = why};
    bool first;
    *out = (struct kv_inputs){0};
    must(ops_max <= KV_OPS_MAX);
    if (!json_array_open(j, &first)) return refuse_json(why, j);
    for (; json_array_next(j, &first); o.index++) {
        if (o.index == ops_max) return refuse(why, "kv_too_many_ops", "more than %u operations", ops_max);
        struct kv_input *in = input_next(out, &room, j->arena);
        if (!fields_read(j, o.index, &o.f, why) || !op_judge(&o, place, in)) return false;
        input_note(out, in->op.kind);
    }
    if (j->error != NULL) return refuse_json(why, j);
    if (out->count > 1 && !duplicates_check(out, j->arena, why)) return false;
    return budget_check(out, place == OPS_TRANSACTION ? STEP_KV_KEYS_MAX : config->kv_keys_max, why);
}

bool kv_path_op_read(struct slice body, const char *name, struct slice name_space, struct slice key, struct arena *arena,
                     const struct config *config, struct kv_inputs *out, struct ops_refusal *why)
{
    static const uint32_t barred = 1u << FIELD_OP | 1u << FIELD_NS | 1u << FIELD_KEY | 1u << FIELD_NAMESPACE;
    struct json j;
    struct op_reader o = {.j = &j, .config = config, .why = why};
    o.f.seen = o.f.given = 0;
    *out = (struct kv_inputs){.items = arena_get(arena, sizeof(struct kv_input))};
    json_open(&j, body, arena);
    if (body.len > 0 || strcmp(name, "put") == 0) {
        if (json_peek(&j) != JSON_OBJECT) return refuse(why, "kv_bad_body", "an object is required");
        if (!fields_read(&j, 0, &o.f, why)) return false;
        if (!json_end(&j)) return refuse_json(why, &j);
        if ((o.f.seen & barred) != 0) {
            return refuse(why, "kv_field_in_path", "op, ns, namespace and key are given by the path");
        }
    }
    o.f.given |= 1u << FIELD_OP | 1u << FIELD_NS | 1u << FIELD_KEY;
    o.f.at[FIELD_OP].type = o.f.at[FIELD_NS].type = o.f.at[FIELD_KEY].type = JSON_STRING;
    o.f.at[FIELD_OP].text = slice_of(name);
    o.f.at[FIELD_NS].text = name_space;
    o.f.at[FIELD_KEY].text = key;
    if (!op_judge(&o, OPS_ROUTE, out->items)) return false;
    input_note(out, out->items->op.kind);
    return true;
}

bool kv_list_read(struct slice body, struct arena *arena, const struct config *config, struct kv_inputs *out,
                  struct ops_refusal *why)
{
    struct json j;
    struct op_reader o = {.j = &j, .config = config, .why = why};
    struct kv_input *in = arena_zero(arena, sizeof *in);
    struct kv_op *op = &in->op;
    *out = (struct kv_inputs){.items = in, .count = 1};
    json_open(&j, body, arena);
    if (json_peek(&j) != JSON_OBJECT) return refuse(why, "kv_bad_body", "an object is required");
    if (!fields_read(&j, 0, &o.f, why)) return false;
    if (!json_end(&j)) return refuse_json(why, &j);
    in->name = "getPrefix";
    op->kind = KV_GET_PREFIX;
    o.f.at[FIELD_NS] = o.f.at[FIELD_NAMESPACE];
    o.f.given = (o.f.given & ~(1u << FIELD_NS)) | (given(&o.f, FIELD_NAMESPACE) ? 1u << FIELD_NS : 0);
    if (!name_space_judge(&o, op) || !page_judge(&o, op)) return false;
    if (!given(&o.f, FIELD_PREFIX)) {
        op->key = slice_of("");
        return true;
    }
    op->key = o.f.at[FIELD_PREFIX].text;
    if (!is_text(o.f.at[FIELD_PREFIX].type)) return refuse(why, bad_request, "prefix must be a string");
    return op->key.len == 0 || key_judge(&o, op->key);
}

void kv_ops_encode(const struct kv_inputs *in, struct uuid tenant, struct buf *out)
{
    size_t at = kv_begin(out, tenant, in->count);
    for (uint32_t i = 0; i < in->count; i++) kv_op_add(out, &in->items[i].op);
    kv_end(out, at);
}

/* ---- results ------------------------------------------------------------------------------------------------------- */

const char *kv_reason_text(uint8_t reason)
{
    switch ((enum kv_reason)reason) {
    case KV_EXISTS:
        return "exists";
    case KV_ABSENT:
        return "absent";
    case KV_VERSION:
        return "version";
    case KV_LIMIT:
        return "limit";
    case KV_TYPE:
        return "type";
    case KV_FINE:
        break;
    }
    must(false);
}

struct slice kv_lost_value(const struct kv_outcome *o)
{
    if (o->reason == KV_TYPE) return slice_of("0");
    return o->has_value ? o->value : slice_of("null");
}

static void version_render(struct buf *out, uint64_t version)
{
    buf_text(out, ",\"version\":");
    buf_decimal(out, version);
}

static void times_render(struct buf *out, int64_t expires_us, int64_t updated_us)
{
    buf_text(out, ",\"expiresAt\":");
    if (expires_us == 0)
        buf_text(out, "null");
    else
        render_time_kv(out, expires_us);
    buf_text(out, ",\"updatedAt\":");
    render_time_kv(out, updated_us);
}

static void row_render(struct buf *out, const struct kv_row_view *row, bool with_value)
{
    buf_text(out, "{\"key\":");
    render_text(out, row->key);
    if (with_value) {
        buf_text(out, ",\"value\":");
        buf_slice(out, row->value);
    }
    version_render(out, row->version);
    times_render(out, row->expires_us, row->updated_us);
    buf_byte(out, '}');
}

static void rows_render(struct buf *out, const struct kv_outcome *o, bool with_value)
{
    buf_text(out, ",\"rows\":[");
    for (uint32_t i = 0; i < o->row_count; i++) {
        if (i > 0) buf_byte(out, ',');
        row_render(out, &o->rows[i], with_value);
    }
    buf_byte(out, ']');
}

static void get_render(struct buf *out, const struct kv_input *in, const struct kv_outcome *o)
{
    buf_text(out, o->found ? ",\"found\":true,\"key\":" : ",\"found\":false,\"key\":");
    render_text(out, in->op.key);
    if (!o->found) return;
    buf_text(out, ",\"value\":");
    buf_slice(out, o->value);
    version_render(out, o->version);
    times_render(out, o->expires_us, o->updated_us);
}

static void many_render(struct buf *out, const struct kv_outcome *o)
{
    rows_render(out, o, true);
    buf_text(out, ",\"missing\":[");
    for (uint32_t i = 0; i < o->missing_count; i++) {
        if (i > 0) buf_byte(out, ',');
        render_text(out, o->missing[i]);
    }
    buf_text(out, o->truncated ? "],\"truncated\":true" : "],\"truncated\":false");
}

void kv_page_render(struct buf *out, const struct kv_input *in, const struct kv_outcome *o)
{
    rows_render(out, o, (in->op.flags & KV_KEYS_ONLY) == 0);
    buf_text(out, o->truncated ? ",\"truncated\":true,\"nextAfter\":" : ",\"truncated\":false,\"nextAfter\":");
    if (o->truncated && o->row_count > 0)
        render_text(out, o->rows[o->row_count - 1].key);
    else
        buf_text(out, "null");
}

static void condition_render(struct buf *out, const struct kv_input *in, const struct kv_outcome *o)
{
    if (o->applied) {
        buf_text(out, ",\"applied\":true,\"key\":");
    } else {
        buf_text(out, ",\"applied\":false,\"reason\":\"");
        buf_text(out, kv_reason_text(o->reason));
        buf_text(out, "\",\"key\":");
    }
    render_text(out, in->op.key);
    if (!o->applied || in->op.kind != KV_CHECK) {
        buf_text(out, ",\"value\":");
        buf_slice(out, !o->applied             ? kv_lost_value(o)
                       : in->op.kind == KV_PUT ? in->op.value
                       : o->has_value          ? o->value
                                               : slice_of("null"));
    }
    version_render(out, o->version);
}

void kv_element_open(struct buf *out, const struct kv_input *in, const struct kv_outcome *o, uint32_t index)
{
    buf_text(out, "{\"index\":");
    buf_decimal(out, index);
    buf_text(out, ",\"op\":\"");
    buf_text(out, in->name);
    buf_byte(out, '"');
    switch ((enum kv_op_kind)in->op.kind) {
    case KV_GET:
        get_render(out, in, o);
        return;
    case KV_GET_MANY:
        many_render(out, o);
        return;
    case KV_GET_PREFIX:
        kv_page_render(out, in, o);
        return;
    case KV_PUT:
    case KV_DELETE:
    case KV_INCR:
    case KV_CHECK:
        condition_render(out, in, o);
        return;
    }
    must(false);
}
