/* Reads by offset: no lease, no cursor. Served from this node's applied state.
 *
 * POST /api/v1/fetch
 *   body    {"entries":[{"queue","partition"?,"offset","maxBytes"? (1 MiB, 1..8 MiB)}],"maxWaitMs"? (0, at most 30,000),"minBytes"? (1),
 *           "maxBytes"? (of the whole answer: FETCH_BYTES_MAX at most)}
 *   answer  200 {"entries":[{"queue","partition","records":[{"offset","transactionId","payload","ts"}],"highWatermark","logStartOffset",
 *           "error"?}]}: whole appends, at least one. One answer carries at most FETCH_BYTES_MAX of payload and FETCH_MESSAGES_MAX
 *           messages; entries behind that have no records this time. It waits until minBytes are there
 *           (as stored: a little more than their payloads), an entry has an error or the time is over
 * POST /api/v1/fetch/offsets
 *   body    {"entries":[{"queue","partition"?,"timestamp"}]}: epoch ms or an ISO time
 *   answer  200 {"entries":[{"queue","partition","offset","ts","highWatermark","logStartOffset","error"?}]}
 * POST /api/v1/partitions/changed
 *   body    {"entries":[{"queue","since"?,"after"?,"limit"? (1000, 1..1000)}]}
 *   answer  200 {"entries":[{"queue","partitions":[{"id","name","lastOffset","logStart","lastWriteAt"}],"next"}],"safeTime",
 *           "safeTimeDegraded":false}. A call looks at LANES_SCANNED_MAX lanes at most; `next` tells where it stopped
 *
 *   errors  UNKNOWN_TOPIC_OR_PARTITION, OFFSET_OUT_OF_RANGE, BAD_CURSOR inside entries; 400 for a body of another shape, 503, 500
 *
 * Everything is rendered on the group thread. Blocks that left memory are read by other threads first: the call then runs again, with
 * all of them there. It reads COLD_CALL_BYTES at most; entries behind that have fewer records, or none, this time. */
#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/isotime.h"
#include "base/limits.h"
#include "http/answer.h"
#include "http/json.h"
#include "http/name.h"
#include "http/render.h"
#include "http/route.h"
#include "http/timer_payload.h"
#include "http/visit.h"

enum {
    FETCH_BYTES_DEFAULT = 1 << 20,
    FETCH_ENTRY_BYTES_MAX = 8 << 20,
    FETCH_BYTES_MAX = 32 << 20,
    FETCH_MESSAGES_MAX = 100000,
    FETCH_WAIT_MS_MAX = 30000,
    CHANGED_LIMIT_MAX = 1000,
    LANES_SCANNED_MAX = 50000,
    CURSOR_TEXT = 24, /* hex: number of the lane, check */
};

/* One entry of any of the three. */
struct fetch_entry {
    struct slice queue, partition;
    uint64_t offset, bytes_max;
    int64_t us; /* timestamp; since, or INT64_MIN */
    struct slice after;
    uint32_t limit;
};

struct fetch_plan {
    struct fetch_entry *entries;
    uint32_t count;
    int64_t wait_ms, bytes_min, bytes_max;
    bool by_time; /* offsets are looked for */
};

/* ---- reading bodies ----------------------------------------------------------------------------------------------- */

enum fetch_route { FETCH, FETCH_OFFSETS, FETCH_CHANGED };
enum fetch_field {
    FIELD_QUEUE,
    FIELD_PARTITION,
    FIELD_OFFSET,
    FIELD_BYTES,
    FIELD_TIME,
    FIELD_SINCE,
    FIELD_AFTER,
    FIELD_LIMIT,
    FIELD_COUNT
};

static const struct {
    const char *name;
    uint8_t routes; /* bit of each route that knows it */
} fields[FIELD_COUNT] = {
    [FIELD_QUEUE] = {"queue", 1 << FETCH | 1 << FETCH_OFFSETS | 1 << FETCH_CHANGED},
    [FIELD_PARTITION] = {"partition", 1 << FETCH | 1 << FETCH_OFFSETS},
    [FIELD_OFFSET] = {"offset", 1 << FETCH},
    [FIELD_BYTES] = {"maxBytes", 1 << FETCH},
    [FIELD_TIME] = {"timestamp", 1 << FETCH_OFFSETS},
    [FIELD_SINCE] = {"since", 1 << FETCH_CHANGED},
    [FIELD_AFTER] = {"after", 1 << FETCH_CHANGED},
    [FIELD_LIMIT] = {"limit", 1 << FETCH_CHANGED},
};

struct fetch_reading {
    struct json j;
    enum fetch_route route;
    struct body_refusal *why;
    uint32_t index, seen; /* of the entry being read; its fields that were not null */
};

__attribute__((format(printf, 3, 4))) static bool refuse(struct fetch_reading *r, const char *code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(r->why->text, sizeof r->why->text, format, args);
    va_end(args);
    r->why->code = code;
    return false;
}

static bool refuse_json(struct fetch_reading *r)
{
    const struct json *j = &r->j;
    return refuse(r, "bad_body", "%s at byte %zu", j->error == NULL ? "wrong shape" : j->error, (size_t)(j->at - j->start));
}

static bool refuse_field(struct fetch_reading *r, enum fetch_field f, const char *code, const char *wanted)
{
    return refuse(r, code, "entries[%u].%s: %s", r->index, fields[f].name, wanted);
}

static int field_of(const struct fetch_reading *r, struct slice key)
{
    for (int i = 0; i < FIELD_COUNT; i++) {
        if ((fields[i].routes >> r->route & 1) && slice_is(key, fields[i].name)) return i;
    }
    return -1;
}

static int64_t clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* A name, or a whole number that stands for its digits. */
static bool partition_read(struct fetch_reading *r, struct slice *out)
{
    int64_t number;
    struct json *j = &r->j;
    if (json_peek(j) != JSON_NUMBER) return json_string(j, out);
    struct json digits = *j;
    return json_integer(j, &number) && json_skip(&digits, out);
}

static bool timestamp_read(struct fetch_reading *r, enum fetch_field f, int64_t *us)
{
    struct slice text;
    enum json_type type = json_peek(&r->j);
    if (type == JSON_NUMBER && f == FIELD_TIME) {
        if (!json_skip(&r->j, &text)) return refuse_json(r);
        *us = number_ms_to_us(text);
        return text.at[0] != '-' || *us == 0 || refuse_field(r, f, NULL, "must not be negative");
    }
    if (type != JSON_STRING) return refuse_field(r, f, NULL, "an ISO time is required");
    if (!json_string(&r->j, &text)) return refuse_json(r);
    return isotime_parse_us(text, us) || refuse_field(r, f, NULL, "not an ISO time");
}

/* A value that is not null. */
static bool value_read(struct fetch_reading *r, enum fetch_field f, struct fetch_entry *e)
{
    int64_t number = 0;
    bool read = true;
    switch (f) {
    case FIELD_QUEUE:
        read = json_string(&r->j, &e->queue);
        break;
    case FIELD_PARTITION:
        read = partition_read(r, &e->partition);
        break;
    case FIELD_OFFSET:
        read = json_integer(&r->j, &number);
        if (read && number < 0) return refuse_field(r, f, NULL, "must not be negative");
        e->offset = (uint64_t)number;
        break;
    case FIELD_BYTES:
        read = json_integer(&r->j, &number);
        e->bytes_max = (uint64_t)clamp(number, 1, FETCH_ENTRY_BYTES_MAX);
        break;
    case FIELD_AFTER:
        read = json_string(&r->j, &e->after);
        break;
    case FIELD_LIMIT:
        read = json_integer(&r->j, &number);
        e->limit = (uint32_t)clamp(number, 1, CHANGED_LIMIT_MAX);
        break;
    default:
        return timestamp_read(r, f, &e->us);
    }
    return read || refuse_field(r, f, "bad_body", r->j.error);
}

static bool entry_complete(struct fetch_reading *r, struct fetch_entry *e)
{
    if (e->queue.len == 0) return refuse_field(r, FIELD_QUEUE, "bad_body", "a non-empty string is required");
    if (name_has_control(e->queue)) return refuse_field(r, FIELD_QUEUE, "bad_body", "a control character");
    if (name_has_control(e->partition)) return refuse_field(r, FIELD_PARTITION, "bad_body", "a control character");
    if (e->partition.len == 0) e->partition = slice_of(DEFAULT_PARTITION);
    if (r->route == FETCH && !(r->seen >> FIELD_OFFSET & 1)) return refuse_field(r, FIELD_OFFSET, "bad_body", "required");
    if (r->route == FETCH_OFFSETS && !(r->seen >> FIELD_TIME & 1)) return refuse_field(r, FIELD_TIME, NULL, "required");
    return true;
}

static bool entry_read(struct fetch_reading *r, struct fetch_entry *e)
{
    bool first;
    uint32_t given = 0;
    struct slice key;
    *e = (struct fetch_entry){.bytes_max = FETCH_BYTES_DEFAULT, .us = INT64_MIN, .limit = CHANGED_LIMIT_MAX};
    r->seen = 0;
    if (!json_object_open(&r->j, &first)) return refuse_json(r);
    while (json_object_next(&r->j, &first, &key)) {
        int f = field_of(r, key);
        if (f < 0) {
            if (!json_skip(&r->j, NULL)) return refuse_json(r);
            continue;
        }
        if (given >> f & 1) return refuse_field(r, (enum fetch_field)f, "bad_body", "given twice");
        given |= 1u << f;
        if (json_peek(&r->j) == JSON_NULL) {
            if (!json_skip(&r->j, NULL)) return refuse_json(r);
            continue;
        }
        r->seen |= 1u << f;
        if (!value_read(r, (enum fetch_field)f, e)) return false;
    }
    return r->j.error == NULL ? entry_complete(r, e) : refuse_json(r);
}

static bool entries_read(struct fetch_reading *r, struct buf *entries)
{
    bool first;
    struct fetch_entry e;
    if (!json_array_open(&r->j, &first)) return refuse_json(r);
    for (r->index = 0; json_array_next(&r->j, &first); r->index++) {
        if (r->index == FETCH_ENTRIES_MAX) return refuse(r, NULL, "too many entries");
        if (!entry_read(r, &e)) return false;
        buf_put(entries, &e, sizeof e);
    }
    return r->j.error == NULL || refuse_json(r);
}

/* An integer member of the body; null is as good as absent. */
static bool whole_read(struct fetch_reading *r, const char *name, int64_t *out)
{
    if (json_peek(&r->j) == JSON_NULL ? json_skip(&r->j, NULL) : json_integer(&r->j, out)) return true;
    return refuse(r, "bad_body", "%s: %s", name, r->j.error);
}

static bool body_read(struct fetch_reading *r, struct fetch_plan *p, struct buf *entries)
{
    static const char *const names[] = {"entries", "maxWaitMs", "minBytes", "maxBytes"};
    enum { NAMES = sizeof names / sizeof *names };
    int64_t *const numbers[NAMES] = {NULL, &p->wait_ms, &p->bytes_min, &p->bytes_max};
    bool first, read = true;
    uint32_t given = 0;
    struct slice key;
    if (!json_object_open(&r->j, &first)) return refuse_json(r);
    while (read && json_object_next(&r->j, &first, &key)) {
        uint32_t n = 0;
        while (n < NAMES && (!slice_is(key, names[n]) || (n > 0 && r->route != FETCH))) n++;
        if (n < NAMES && (given >> n & 1)) return refuse(r, "bad_body", "%s: given twice", names[n]);
        given |= 1u << n;
        if (n == NAMES)
            read = json_skip(&r->j, NULL) || refuse_json(r);
        else
            read = n == 0 ? entries_read(r, entries) : whole_read(r, names[n], numbers[n]);
    }
    if (!read) return false;
    if (!json_end(&r->j)) return refuse_json(r);
    return (given & 1) || refuse(r, "bad_body", "entries: an array is required");
}

/* NULL: an answer was set. */
static struct fetch_plan *plan_read(struct request *r, enum fetch_route route)
{
    struct body_refusal why;
    struct fetch_reading reading = {.route = route, .why = &why};
    struct fetch_plan *p = arena_zero(request_arena(r), sizeof *p);
    struct buf entries = {0};
    p->bytes_min = 1;
    p->bytes_max = FETCH_BYTES_MAX;
    json_open(&reading.j, request_body(r), request_arena(r));
    bool read = body_read(&reading, p, &entries);
    if (read) {
        p->count = (uint32_t)(entries.len / sizeof *p->entries);
        p->entries = arena_get(request_arena(r), entries.len + 1);
        memcpy(p->entries, buf_view(&entries).at, entries.len);
        p->wait_ms = clamp(p->wait_ms, 0, FETCH_WAIT_MS_MAX);
        p->bytes_max = clamp(p->bytes_max, 1, FETCH_BYTES_MAX);
    } else {
        answer_refusal(r, &why);
    }
    buf_free(&entries);
    return read ? p : NULL;
}

/* ---- what the three share ----------------------------------------------------------------------------------------- */

static void read_after(struct request *r)
{
    if (!answer_outcome(r)) return;
    struct buf spare = r->out; /* large answers change hands */
    r->out = r->call.answer;
    r->call.answer = spare;
    answer_json(r, r->call.status == 0 ? 200 : r->call.status);
}

/* The lanes that are named, and the appends from the offset, or the time, on. */
static void entries_foresee(struct call *c, struct engine *e, struct engine_now now, const struct engine_foreseen *f)
{
    const struct fetch_plan *p = c->foresee_ctx;
    const struct request *r = c->read_ctx;
    (void)now;
    for (uint32_t i = 0; i < p->count; i++) {
        const struct fetch_entry *in = &p->entries[i];
        if (p->by_time)
            engine_offset_foreseen(e, r->tenant, in->queue, in->partition, in->us, f);
        else
            engine_fetch_foreseen(e, r->tenant, in->queue, in->partition, in->offset, in->bytes_max, FETCH_MESSAGES_MAX, f);
    }
}

static void read_submit(struct request *r, struct fetch_plan *p, int64_t deadline_ms,
                        void (*read)(struct call *c, struct engine *e, struct engine_now now))
{
    r->route_data = p;
    r->call.foresee = entries_foresee;
    r->call.foresee_ctx = p;
    r->call.kind = CALL_READ;
    r->call.read = read;
    r->call.read_ctx = r;
    request_submit(r, (uint32_t)deadline_ms, read_after);
}

static void bounds_render(struct buf *out, uint64_t start, uint64_t tail)
{
    buf_text(out, ",\"highWatermark\":");
    buf_decimal(out, tail);
    buf_text(out, ",\"logStartOffset\":");
    buf_decimal(out, start);
}

static void status_render(struct buf *out, enum fetch_status status)
{
    if (status == FETCH_NO_QUEUE) buf_text(out, ",\"error\":\"UNKNOWN_TOPIC_OR_PARTITION\"");
    if (status == FETCH_OUT_OF_RANGE) buf_text(out, ",\"error\":\"OFFSET_OUT_OF_RANGE\"");
}

/* ---- fetch -------------------------------------------------------------------------------------------------------- */

struct fetched {
    enum fetch_status status;
    struct fetch_view view;
};

struct fetch_sum {
    uint64_t bytes, messages;
    bool error;
};

static void entries_fetch(const struct request *r, const struct fetch_plan *p, struct engine *e, struct arena *arena,
                          struct fetched *out, struct fetch_sum *sum)
{
    uint64_t whole_max = (uint64_t)p->bytes_max;
    for (uint32_t i = 0; i < p->count; i++) {
        const struct fetch_entry *in = &p->entries[i];
        bool full = sum->bytes >= whole_max || sum->messages >= FETCH_MESSAGES_MAX;
        uint64_t bytes_left = full ? 1 : whole_max - sum->bytes;
        uint64_t bytes_max = in->bytes_max < bytes_left ? in->bytes_max : bytes_left;
        uint32_t messages_max = full ? 1 : (uint32_t)(FETCH_MESSAGES_MAX - sum->messages);
        out[i].view = (struct fetch_view){0};
        out[i].status =
            engine_fetch(e, r->tenant, in->queue, in->partition, in->offset, bytes_max, messages_max, arena, &out[i].view);
        struct fetch_view *v = &out[i].view;
        if (full || out[i].status != FETCH_OK) v->piece_count = v->message_count = 0;
        if (v->piece_count > 0) sum->bytes += v->bytes > v->message_count ? v->bytes : v->message_count;
        sum->messages += v->message_count;
        sum->error |= out[i].status != FETCH_OK;
    }
}

static void piece_render(struct buf *out, const struct call_piece *piece, const struct delivery_piece *d, uint32_t tag,
                         struct slice ts, bool first)
{
    for (uint32_t i = 0; i < d->count; i++) {
        struct push_item item;
        push_group_item(&piece->group, d->item0 + i, &item);
        if (!first || i > 0) buf_byte(out, ',');
        uint64_t offset = d->first_offset + i;
        render_record(out, &item, render_message_id(&item, tag, offset, d->created_us), offset, ts);
    }
}

/* PIECE_LATER: fewer than there are. Once something is COMING the rest is named only. */
static enum piece_state records_render(struct buf *out, struct request *r, const struct fetch_view *v, bool coming)
{
    uint32_t tag = message_tag(request_seed(r), v->partition);
    struct buf ts = {0};
    enum piece_state state = PIECE_HERE;
    for (uint32_t k = 0; k < v->piece_count; k++) {
        const struct delivery_piece *d = &v->pieces[k];
        struct call_piece piece;
        state = broker_piece_load(r->broker, d, &piece);
        if (state == PIECE_LATER || state == PIECE_DAMAGED) break;
        coming |= state == PIECE_COMING;
        if (!coming) {
            buf_clear(&ts);
            render_time_us(&ts, d->created_us);
            piece_render(out, &piece, d, tag, buf_view(&ts), k == 0);
        }
        if (state == PIECE_HERE) broker_piece_release(r->broker, &piece);
    }
    buf_free(&ts);
    return coming ? PIECE_COMING : state;
}

static void fetched_render(struct call *c, struct request *r, const struct fetch_plan *p, const struct fetched *fetched,
                           const struct fetch_sum *sum)
{
    enum { RECORD_BYTES = 128, ENTRY_BYTES = 256 }; /* about, without payloads and names */
    struct buf *out = &c->answer;
    enum piece_state state;
    bool good = true, coming = false;
    buf_reserve(out, sum->bytes + sum->messages * RECORD_BYTES + p->count * ENTRY_BYTES);
    buf_text(out, "{\"entries\":[");
    for (uint32_t i = 0; i < p->count && good; i++) {
        field_text(out, i > 0 ? ",{\"queue\":" : "{\"queue\":", p->entries[i].queue);
        field_text(out, ",\"partition\":", p->entries[i].partition);
        buf_text(out, ",\"records\":[");
        state = records_render(out, r, &fetched[i].view, coming);
        coming |= state == PIECE_COMING;
        good = state != PIECE_DAMAGED;
        buf_byte(out, ']');
        bounds_render(out, fetched[i].view.start, fetched[i].view.tail);
        status_render(out, fetched[i].status);
        buf_byte(out, '}');
    }
    buf_text(out, "]}");
    if (good) return;
    buf_clear(out);
    buf_text(out, "{\"error\":\"a stored message could not be read: see the broker's log\",\"code\":\"internal\"}");
    c->status = 500;
}

static void fetch_read(struct call *c, struct engine *e, struct engine_now now)
{
    struct request *r = c->read_ctx;
    const struct fetch_plan *p = r->route_data;
    struct fetch_sum sum = {0};
    struct arena scratch;
    (void)now;
    arena_init(&scratch);
    struct fetched *fetched = arena_get(&scratch, p->count * sizeof *fetched + 1);
    entries_fetch(r, p, e, &scratch, fetched, &sum);
    if (p->wait_ms == 0 || c->late || sum.error || p->count == 0 || (int64_t)sum.bytes >= p->bytes_min) {
        fetched_render(c, r, p, fetched, &sum);
    } else {
        for (uint32_t i = 0; i < p->count; i++)
            broker_watch(r->broker, c, r->tenant, p->entries[i].queue, p->entries[i].partition);
        c->waits = true;
    }
    arena_free(&scratch);
}

void route_fetch(struct request *r)
{
    struct fetch_plan *p = plan_read(r, FETCH);
    if (p == NULL) return;
    read_submit(r, p, p->wait_ms > 0 ? p->wait_ms : r->http->config->pop_timeout_ms, fetch_read);
}

/* ---- offsets ------------------------------------------------------------------------------------------------------ */

static void offset_render(struct buf *out, struct engine *e, struct uuid tenant, const struct fetch_entry *in)
{
    bool found = false;
    uint64_t offset = 0, start = 0, tail = 0;
    int64_t created_us = 0;
    enum fetch_status status =
        engine_offset_at(e, tenant, in->queue, in->partition, in->us, &found, &offset, &created_us, &start, &tail);
    field_text(out, "{\"queue\":", in->queue);
    field_text(out, ",\"partition\":", in->partition);
    if (status == FETCH_OK && found) {
        buf_text(out, ",\"offset\":");
        buf_decimal(out, offset);
        buf_text(out, ",\"ts\":");
        render_time_us(out, created_us);
    } else {
        buf_text(out, ",\"offset\":null,\"ts\":null");
    }
    bounds_render(out, start, tail);
    status_render(out, status);
    buf_byte(out, '}');
}

static void offsets_read(struct call *c, struct engine *e, struct engine_now now)
{
    const struct request *r = c->read_ctx;
    const struct fetch_plan *p = r->route_data;
    (void)now;
    buf_text(&c->answer, "{\"entries\":[");
    for (uint32_t i = 0; i < p->count; i++) {
        if (i > 0) buf_byte(&c->answer, ',');
        offset_render(&c->answer, e, r->tenant, &p->entries[i]);
    }
    buf_text(&c->answer, "]}");
}

void route_fetch_offsets(struct request *r)
{
    struct fetch_plan *p = plan_read(r, FETCH_OFFSETS);
    if (p == NULL) return;
    p->by_time = true;
    read_submit(r, p, r->http->config->pop_timeout_ms, offsets_read);
}

/* ---- partitions/changed ------------------------------------------------------------------------------------------- */

/* Of a place in this queue's list of lanes; a cursor of another queue, or of a namesake made later, has another check. */
static uint64_t cursor_check(uint64_t seed, const struct queue_view *q, uint32_t number)
{
    char bytes[sizeof q->id.bytes + sizeof number];
    memcpy(bytes, q->id.bytes, sizeof q->id.bytes);
    memcpy(bytes + sizeof q->id.bytes, &number, sizeof number);
    return hash64(slice_make(bytes, sizeof bytes), seed);
}

static void cursor_text(uint64_t seed, const struct queue_view *q, uint32_t number, char out[CURSOR_TEXT + 1])
{
    snprintf(out, CURSOR_TEXT + 1, "%08x%016llx", number, (unsigned long long)cursor_check(seed, q, number));
}

static bool cursor_read(uint64_t seed, const struct queue_view *q, struct slice text, uint32_t *number)
{
    char again[CURSOR_TEXT + 1];
    *number = 0;
    if (text.len != CURSOR_TEXT) return false;
    for (size_t i = 0; i < 8; i++) {
        char c = text.at[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) return false;
        *number = *number << 4 | (uint32_t)digit;
    }
    cursor_text(seed, q, *number, again);
    return slice_equal(text, slice_make(again, CURSOR_TEXT));
}

static void lane_render(struct buf *out, struct engine *e, const struct lane_view *v)
{
    buf_text(out, "{\"id\":");
    render_uuid(out, engine_lane_id(e, v));
    field_text(out, ",\"name\":", v->name);
    buf_text(out, ",\"lastOffset\":");
    buf_signed(out, (int64_t)v->tail_offset - 1);
    buf_text(out, ",\"logStart\":");
    buf_decimal(out, v->start_offset);
    buf_text(out, ",\"lastWriteAt\":");
    render_time_us_or_null(out, v->last_created_us);
    buf_byte(out, '}');
}

/* Where the answer is: in visits, each of some lanes. */
struct changed {
    const struct fetch_plan *plan;
    uint32_t at, after, rows; /* entry; its lane and how many are in the answer */
    uint32_t scans_left;      /* of the whole call */
    uint32_t foreseen;        /* lanes of the next visit whose rows were read before it */
    int64_t safe_us;          /* of the first visit: what is appended later is not in the answer, or may not be */
    bool begun, inside;       /* inside: of the entry's list of lanes */
};

static void changed_foresee(struct call *c, struct engine *e, struct engine_now now, const struct engine_foreseen *f)
{
    struct changed *s = c->foresee_ctx;
    struct request *r = c->read_ctx;
    const struct fetch_entry *in = &s->plan->entries[s->at];
    struct queue_view q;
    uint32_t after = s->after;
    bool all;
    (void)now;
    s->foreseen = 0;
    if (s->at == s->plan->count || !engine_queue_get(e, r->tenant, in->queue, &q)) return;
    if (!s->inside && in->after.len > 0 && !cursor_read(request_seed(r), &q, in->after, &after)) return;
    s->foreseen = engine_lanes_foreseen(e, q.number, after, VISIT_LANES, FORESEEN_LANES, 0, &all, f);
}

/* The next lanes of the entry. False: it has its end. */
static bool lanes_render(struct buf *out, struct request *r, struct changed *s, const struct fetch_entry *in, struct engine *e,
                         const struct queue_view *q)
{
    struct lane_view v;
    uint32_t most = s->foreseen > 0 ? s->foreseen : VISIT_LANES;
    int64_t began_us = clock_mono_us();
    bool more = true, full = false;
    for (uint32_t n = 0; more && !full; n++) {
        if (n == most || (n % 8 == 7 && visit_over(began_us))) return true;
        more = engine_lane_next(e, q->number, s->after, &v);
        full = s->rows >= in->limit || s->scans_left == 0;
        if (!more || full) break;
        if (in->us == INT64_MIN || (v.last_created_us != 0 && v.last_created_us >= in->us)) {
            if (s->rows++ > 0) buf_byte(out, ',');
            lane_render(out, e, &v);
        }
        s->after = v.number;
        s->scans_left--;
    }
    buf_text(out, "],\"next\":");
    if (more) {
        char text[CURSOR_TEXT + 1];
        cursor_text(request_seed(r), q, s->after, text);
        buf_printf(out, "\"%s\"", text);
    } else {
        buf_text(out, "null");
    }
    return false;
}

/* Some more of the entry. False: it has its end. A queue that is deleted between two visits has no lanes any more. */
static bool changed_render(struct buf *out, struct request *r, struct changed *s, struct engine *e)
{
    const struct fetch_entry *in = &s->plan->entries[s->at];
    struct queue_view q;
    bool known = engine_queue_get(e, r->tenant, in->queue, &q);
    if (!s->inside) {
        field_text(out, s->at == 0 ? "{\"queue\":" : ",{\"queue\":", in->queue);
        s->after = s->rows = 0;
        if (!known) buf_text(out, ",\"error\":\"UNKNOWN_TOPIC_OR_PARTITION\"");
        if (known && in->after.len > 0 && !cursor_read(request_seed(r), &q, in->after, &s->after)) {
            buf_text(out, ",\"error\":\"BAD_CURSOR\"");
            known = false;
        }
        if (known) buf_text(out, ",\"partitions\":[");
        s->inside = known;
    } else if (!known) {
        buf_text(out, "],\"next\":null");
        s->inside = false;
    }
    s->inside = s->inside && lanes_render(out, r, s, in, e, &q);
    if (!s->inside) buf_byte(out, '}');
    return s->inside;
}

static bool changed_visit(struct request *r, void *data, struct buf *out, struct engine *e, struct engine_now now)
{
    struct changed *s = data;
    (void)now;
    if (!s->begun) {
        s->begun = true;
        s->safe_us = engine_safe_time_us(e);
        buf_text(out, "{\"entries\":[");
    }
    if (s->at < s->plan->count && !changed_render(out, r, s, e)) s->at++;
    if (s->at < s->plan->count) return true;
    buf_text(out, "],\"safeTime\":");
    render_time_us(out, s->safe_us);
    buf_text(out, ",\"safeTimeDegraded\":false}");
    return false;
}

void route_partitions_changed(struct request *r)
{
    struct fetch_plan *p = plan_read(r, FETCH_CHANGED);
    if (p == NULL) return;
    struct changed *s = arena_zero(request_arena(r), sizeof *s);
    s->plan = p;
    s->scans_left = LANES_SCANNED_MAX;
    r->call.foresee = changed_foresee;
    r->call.foresee_ctx = s;
    visits_answer(r, changed_visit, s);
}
