/* Lock ops as JSON. An op's fields are taken as they come, then judged together. */
#include "http/lock_ops.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/limits.h"
#include "http/render.h"

enum { NAME_BYTES_MAX = 256, SLOT_ROWS_MAX = 4096, GET_ROWS = 1000 };
#define TTL_SECONDS_MAX (TIMER_DELAY_US_MAX / 1000000)

static const struct lock_name {
    const char *name;
    uint8_t kind;
} lock_names[] = {{"acquire", LOCK_ACQUIRE}, {"renew", LOCK_RENEW}, {"release", LOCK_RELEASE}, {"get", LOCK_GET}};

static const char bad_request[] = "locks_bad_request";

__attribute__((format(printf, 3, 4))) static bool refuse(struct ops_refusal *why, const char *reason, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(why->detail, sizeof why->detail, format, args);
    va_end(args);
    must(n > 0);
    why->status = 400;
    why->error = "locks_bad_request";
    why->reason = reason;
    return false;
}

static bool refuse_json(struct ops_refusal *why, const struct json *j)
{
    return refuse(why, "locks_bad_body", "%s at byte %zu", j->error == NULL ? "wrong shape" : j->error,
                  (size_t)(j->at - j->start));
}

/* ---- an op's fields ------------------------------------------------------------------------------------------------ */

enum field { FIELD_OP, FIELD_NAME, FIELD_TTL, FIELD_OWNER, FIELD_LIMIT, FIELD_TOKEN, FIELD_SLOT, FIELD_FOREVER, FIELD_COUNT };
static const char *const field_names[FIELD_COUNT] = {"op", "name", "ttlSeconds", "owner", "limit", "token", "slot", "forever"};

struct fields {
    uint32_t seen;
    bool tenant;
    struct {
        struct slice text; /* of a string what it says, else the bytes sent */
        enum json_type type;
    } at[FIELD_COUNT]; /* JSON_BAD: absent */
};

static bool fields_read(struct json *j, uint32_t index, struct fields *f, struct ops_refusal *why)
{
    static const char *const tenants[] = {"tenant", "tenantId", "_tenant"};
    bool first;
    struct slice key;
    *f = (struct fields){0};
    if (json_peek(j) != JSON_OBJECT) {
        if (!json_skip(j, NULL)) return refuse_json(why, j);
        return refuse(why, bad_request, "operation %u: not an object", index);
    }
    json_object_open(j, &first);
    while (json_object_next(j, &first, &key)) {
        unsigned i = 0;
        while (i < FIELD_COUNT && !slice_is(key, field_names[i])) i++;
        for (unsigned t = 0; i == FIELD_COUNT && t < 3; t++) f->tenant |= slice_is(key, tenants[t]);
        if (i == FIELD_COUNT) {
            if (!json_skip(j, NULL)) break;
            continue;
        }
        if ((f->seen >> i & 1) != 0) return refuse(why, bad_request, "operation %u: %s is given twice", index, field_names[i]);
        f->seen |= 1u << i;
        enum json_type type = json_peek(j);
        if (type == JSON_STRING ? !json_string(j, &f->at[i].text) : !json_skip(j, &f->at[i].text)) break;
        f->at[i].type = type;
    }
    return j->error == NULL || refuse_json(why, j);
}

static bool given(const struct fields *f, enum field i)
{
    return f->at[i].type != JSON_BAD && f->at[i].type != JSON_NULL;
}

/* ---- judging them -------------------------------------------------------------------------------------------------- */

struct lock_reader {
    struct ops_refusal *why;
    struct arena *arena;
    uint32_t index;
    struct fields f;
};

/* 1 to 256 bytes without control characters: ASCII's and Unicode's second set (U+0080..U+009F). */
static bool word_ok(struct slice s)
{
    if (s.len == 0 || s.len > NAME_BYTES_MAX) return false;
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.at[i];
        if (c < 0x20 || c == 0x7f) return false;
        if (c == 0xc2 && (unsigned char)s.at[i + 1] < 0xa0) return false; /* UTF-8: a second byte is there */
    }
    return true;
}

static bool integer_judge(const struct fields *f, enum field i, int64_t min, int64_t max, int64_t *out)
{
    struct slice raw = f->at[i].text;
    int64_t value = 0;
    if (f->at[i].type != JSON_NUMBER || raw.len > 18) return false;
    for (size_t n = 0; n < raw.len; n++) {
        if (raw.at[n] < '0' || raw.at[n] > '9') return false;
        value = value * 10 + (raw.at[n] - '0');
    }
    *out = value;
    return value >= min && value <= max;
}

/* A JSON string of what was sent, in the arena. */
static struct slice quoted(struct arena *arena, struct slice text)
{
    struct buf out = {0};
    render_text(&out, text);
    struct slice copy = arena_copy(arena, buf_view(&out));
    buf_free(&out);
    return copy;
}

static bool ttl_judge(struct lock_reader *o, struct lock_op *op)
{
    int64_t seconds;
    if (given(&o->f, FIELD_FOREVER)) {
        return refuse(o->why, "locks_ttl_required", "operation %u: a lock is not held for ever: ttlSeconds is required",
                      o->index);
    }
    if (!given(&o->f, FIELD_TTL)) {
        return refuse(o->why, "locks_ttl_required", "operation %u: ttlSeconds is required", o->index);
    }
    if (!integer_judge(&o->f, FIELD_TTL, 1, TTL_SECONDS_MAX, &seconds)) {
        return refuse(o->why, "locks_bad_ttl", "operation %u: ttlSeconds must be a whole number from 1 to %lld", o->index,
                      (long long)TTL_SECONDS_MAX);
    }
    op->ttl_us = seconds * 1000000;
    return true;
}

static bool owner_judge(struct lock_reader *o, struct lock_op *op)
{
    if (!given(&o->f, FIELD_OWNER)) return true;
    if (o->f.at[FIELD_OWNER].type != JSON_STRING || !word_ok(o->f.at[FIELD_OWNER].text)) {
        return refuse(o->why, "locks_bad_owner",
                      "operation %u: owner must be a string of 1 to %d bytes without control characters", o->index,
                      NAME_BYTES_MAX);
    }
    op->has_owner = 1;
    op->owner = quoted(o->arena, o->f.at[FIELD_OWNER].text);
    return true;
}

static bool token_judge(struct lock_reader *o, struct lock_op *op)
{
    int64_t token;
    if (!given(&o->f, FIELD_TOKEN)) return refuse(o->why, "locks_token_required", "operation %u: token is required", o->index);
    if (!integer_judge(&o->f, FIELD_TOKEN, 1, INT64_MAX, &token)) {
        return refuse(o->why, "locks_bad_token", "operation %u: token must be an integer above 0", o->index);
    }
    op->token = (uint64_t)token;
    return true;
}

static bool slot_judge(struct lock_reader *o, struct lock_op *op)
{
    int64_t slot = 0;
    if (given(&o->f, FIELD_SLOT) && !integer_judge(&o->f, FIELD_SLOT, 0, LOCK_SLOTS_MAX - 1, &slot)) {
        return refuse(o->why, "locks_bad_slot", "operation %u: slot must be an integer from 0 to %d", o->index,
                      LOCK_SLOTS_MAX - 1);
    }
    op->slot = (uint32_t)slot;
    return true;
}

static bool limit_judge(struct lock_reader *o, struct lock_op *op)
{
    int64_t limit = 1;
    if (given(&o->f, FIELD_LIMIT) && !integer_judge(&o->f, FIELD_LIMIT, 1, LOCK_SLOTS_MAX, &limit)) {
        return refuse(o->why, "locks_bad_limit", "operation %u: limit must be an integer from 1 to %d", o->index,
                      LOCK_SLOTS_MAX);
    }
    op->limit = (uint32_t)limit;
    return true;
}

static bool name_judge(struct lock_reader *o, struct lock_input *in)
{
    struct slice name = o->f.at[FIELD_NAME].text;
    if (o->f.at[FIELD_NAME].type != JSON_STRING || !word_ok(name) || memchr(name.at, '#', name.len) != NULL) {
        return refuse(o->why, "locks_bad_name",
                      "operation %u: name must be a string of 1 to %d bytes without control characters and #", o->index,
                      NAME_BYTES_MAX);
    }
    struct slice text = quoted(o->arena, name);
    in->op.name = name;
    in->name = slice_make(text.at + 1, text.len - 2);
    return true;
}

static bool op_judge(struct lock_reader *o, struct lock_input *in)
{
    struct lock_op *op = &in->op;
    const struct lock_name *name = NULL;
    *in = (struct lock_input){0};
    if (o->f.tenant) {
        return refuse(o->why, "locks_tenant_not_an_input", "operation %u: the tenant comes from the request", o->index);
    }
    for (unsigned i = 0; i < 4 && o->f.at[FIELD_OP].type == JSON_STRING && name == NULL; i++) {
        if (slice_is(o->f.at[FIELD_OP].text, lock_names[i].name)) name = &lock_names[i];
    }
    if (name == NULL) return refuse(o->why, "locks_unknown_op", "operation %u: unknown op", o->index);
    op->kind = name->kind;
    if (!name_judge(o, in)) return false;
    switch ((enum lock_op_kind)op->kind) {
    case LOCK_ACQUIRE:
        return ttl_judge(o, op) && owner_judge(o, op) && limit_judge(o, op);
    case LOCK_RENEW:
        return token_judge(o, op) && ttl_judge(o, op) && slot_judge(o, op) && owner_judge(o, op);
    case LOCK_RELEASE:
        return token_judge(o, op) && slot_judge(o, op);
    case LOCK_GET:
        return true;
    }
    must(false);
}

/* Each on a different lock, and not too many rows to look at. */
static bool call_judge(const struct lock_inputs *p, struct ops_refusal *why)
{
    uint32_t rows = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        const struct lock_op *op = &p->items[i].op;
        for (uint32_t k = 0; k < i; k++) {
            if (!slice_equal(op->name, p->items[k].op.name)) continue;
            return refuse(why, "locks_duplicate_in_call", "operations %u and %u name the same lock", k, i);
        }
    }
    for (uint32_t i = 0; i < p->count; i++) {
        const struct lock_op *op = &p->items[i].op;
        rows += op->kind == LOCK_ACQUIRE ? op->limit : op->kind == LOCK_GET ? GET_ROWS : 1;
    }
    if (rows <= SLOT_ROWS_MAX) return true;
    return refuse(why, "locks_too_many_keys", "the operations look at more than %d slots (an acquire its limit, a get %d)",
                  SLOT_ROWS_MAX, GET_ROWS);
}

bool lock_ops_read(struct json *j, struct lock_inputs *p, struct ops_refusal *why)
{
    struct lock_reader o = {.why = why, .arena = j->arena};
    bool first;
    if (!json_array_open(j, &first)) return refuse_json(why, j);
    *p = (struct lock_inputs){.items = arena_get(j->arena, LOCK_OPS_MAX * sizeof *p->items)};
    for (; json_array_next(j, &first); o.index++) {
        if (o.index == LOCK_OPS_MAX) return refuse(why, "locks_too_many_ops", "more than %d operations", (int)LOCK_OPS_MAX);
        struct lock_input *in = &p->items[o.index];
        if (!fields_read(j, o.index, &o.f, why) || !op_judge(&o, in)) return false;
        p->count++;
        p->writes |= in->op.kind != LOCK_GET;
        p->grows |= in->op.kind == LOCK_ACQUIRE || in->op.kind == LOCK_RENEW;
    }
    return j->error == NULL ? call_judge(p, why) : refuse_json(why, j);
}

void lock_ops_encode(const struct lock_inputs *in, struct uuid tenant, struct buf *out)
{
    size_t at = locks_begin(out, tenant, in->count);
    for (uint32_t i = 0; i < in->count; i++) lock_op_add(out, &in->items[i].op);
    locks_end(out, at);
}

/* ---- results ------------------------------------------------------------------------------------------------------- */

/* What a permit's row says: JSON strings with their quotes, or empty when it does not (a row written by hand may hold anything). */
struct permit {
    struct slice owner, since;
};

static struct permit permit_read(struct arena *arena, struct slice value)
{
    struct permit p = {.owner = slice_of("null"), .since = {0}};
    char *text = arena_zero(arena, value.len + JSON_PAD);
    struct json j;
    struct slice key, raw;
    bool first;
    memcpy(text, value.at, value.len);
    json_open(&j, slice_make(text, value.len), arena);
    if (!json_object_open(&j, &first)) return p;
    while (json_object_next(&j, &first, &key)) {
        bool text_next = json_peek(&j) == JSON_STRING;
        if (!json_skip(&j, &raw)) break;
        if (text_next && slice_is(key, "owner")) p.owner = raw;
        if (text_next && slice_is(key, "since")) p.since = raw;
    }
    return p;
}

static void holders_render(struct buf *out, struct arena *arena, const struct lock_outcome *o, bool whole)
{
    buf_text(out, ",\"holders\":[");
    for (uint32_t i = 0; i < o->holder_count; i++) {
        const struct lock_holder *h = &o->holders[i];
        struct permit p = permit_read(arena, h->row.value);
        buf_text(out, i > 0 ? ",{\"slot\":" : "{\"slot\":");
        buf_decimal(out, h->slot);
        buf_text(out, ",\"owner\":");
        buf_slice(out, p.owner);
        if (whole) {
            buf_text(out, ",\"token\":");
            buf_decimal(out, h->row.version);
            buf_text(out, ",\"since\":");
            if (p.since.len > 0)
                buf_slice(out, p.since);
            else
                render_time_kv(out, h->row.updated_us);
            buf_text(out, ",\"expiresAt\":");
            if (h->row.expires_us == 0)
                buf_text(out, "null");
            else
                render_time_kv(out, h->row.expires_us);
            buf_text(out, ",\"renewedAt\":");
            render_time_kv(out, h->row.updated_us);
        }
        buf_byte(out, '}');
    }
    buf_byte(out, ']');
}

static void slot_render(struct buf *out, uint32_t slot)
{
    buf_text(out, ",\"slot\":");
    buf_decimal(out, slot);
}

static void token_render(struct buf *out, const struct lock_outcome *o)
{
    slot_render(out, o->slot);
    buf_text(out, ",\"token\":");
    buf_decimal(out, o->token);
}

static void guard_render(struct buf *out, const struct lock_input *in, const struct lock_outcome *o)
{
    buf_text(out, ",\"guard\":{\"op\":\"check\",\"ns\":\"" LOCK_NAME_SPACE "\",\"key\":\"");
    buf_slice(out, in->name);
    buf_byte(out, '#');
    buf_decimal(out, o->slot);
    buf_text(out, "\",\"expect\":");
    buf_decimal(out, o->token);
    buf_text(out, ",\"required\":true}");
}

void lock_element(struct buf *out, struct arena *arena, const struct lock_input *in, const struct lock_outcome *o,
                  uint32_t index)
{
    static const char *const verbs[] = {"acquired", "renewed", "released", "held"}; /* by enum lock_op_kind */
    uint8_t kind = in->op.kind;
    buf_text(out, "{\"index\":");
    buf_decimal(out, index);
    buf_text(out, ",\"op\":\"");
    buf_text(out, lock_names[kind].name);
    buf_text(out, "\",\"name\":\"");
    buf_slice(out, in->name);
    buf_text(out, "\",\"");
    buf_text(out, verbs[kind]);
    buf_text(out, o->done ? "\":true" : "\":false");
    if (kind == LOCK_GET) {
        holders_render(out, arena, o, true);
    } else if (!o->done) {
        buf_text(out, kind == LOCK_ACQUIRE ? ",\"reason\":\"held\"" : ",\"reason\":\"lost\"");
        if (kind != LOCK_ACQUIRE) slot_render(out, in->op.slot);
        holders_render(out, arena, o, false);
    } else if (kind == LOCK_RELEASE) {
        slot_render(out, o->slot);
    } else {
        if (o->already) buf_text(out, ",\"already\":true");
        token_render(out, o);
        if (kind == LOCK_ACQUIRE) {
            buf_text(out, ",\"owner\":");
            buf_slice(out, in->op.has_owner ? in->op.owner : slice_of("null"));
        }
        guard_render(out, in, o);
    }
    buf_byte(out, '}');
}
