/* What operators do to consumer groups. (Looking at them: route_groups.c.)
 *
 * POST   /api/v1/consumer-groups/:group/queues/:queue/seek
 * POST   /api/v1/consumer-groups/:group/queues/:queue/partitions/:partition/seek
 *   body    {"toEnd":true} or {"timestamp":"<ISO time>"}; no body: to the end
 *   answer  200 {"success":true,"consumerGroup","queueName","partitionName","seekToEnd","targetTimestamp","partitionsUpdated","updated":true}
 *   errors  400 and 404 {"success":false,"error",...}
 * DELETE /api/v1/consumer-groups/:group                 ?deleteMetadata=false keeps how the group began
 * DELETE /api/v1/consumer-groups/:group/queues/:queue
 *   answer  200 {"success":true,"consumerGroup","queueName","deletedPartitions","metadataDeleted","queues"}, also when there was nothing
 * POST   /api/v1/consumer-groups/:group/subscription
 *   body    {"subscriptionTimestamp":"<ISO time>"}
 *   answer  200 {"success":true,"consumerGroup","newTimestamp","rowsUpdated"}
 * POST   /api/v1/consumer-groups/positions
 *   body    {"consumerGroup","entries"?:[{"queue","partition"?}]}: without entries all that the group has
 *   answer  200 {"consumerGroup","entries":[{"queue","partition","offset","metadata"}]}: the next offset to read, null without a cursor
 *
 * A seek of all lanes goes piece by piece (engine/command.h), each proposed when the one before was applied; how many lanes one has, the
 * leader says (keeper.c). So nobody else waits for long. All lanes are put as they would have been when the first piece was applied; what is pushed meanwhile is not
 * skipped. The same for the queues of a tenant, each of which a delete or a new subscription concerns at one moment. Every piece has the
 * whole time of a call. When one fails, what came before it has happened: the answer is that of the failed piece, and to send the request
 * again does it all. So it is when the client leaves.
 *
 * Long polls of the group are served by what the change makes claimable; of a deleted group they are as newcomers, and make it known
 * again. */
#include <stdio.h>

#include "base/isotime.h"
#include "base/limits.h"
#include "http/answer.h"
#include "http/json.h"
#include "http/name.h"
#include "http/render.h"
#include "http/route.h"
#include "http/visit.h"

enum { POSITION_ENTRIES_MAX = 65536 };

static void write_submit(struct request *r, void *data, void (*after)(struct request *r))
{
    r->route_data = data;
    r->call.kind = CALL_WRITE;
    r->call.command = buf_view(&r->command);
    request_submit(r, r->http->config->pop_timeout_ms, after);
}

static void piece_submit(struct request *r, void (*after)(struct request *r))
{
    r->call.command = buf_view(&r->command);
    request_submit_next(r, r->http->config->pop_timeout_ms, after);
}

static bool names_fit(struct request *r, struct slice queue, struct slice partition, struct slice group)
{
    if (name_fits(queue, partition, group)) return true;
    answer_name_too_long(r);
    return false;
}

/* ---- seek ----------------------------------------------------------------------------------------------------------- */

/* Absent and null leave `us` and `given` alone. */
static bool time_read(struct json *j, int64_t *us, bool *given)
{
    struct slice text;
    enum json_type type = json_peek(j);
    if (type == JSON_NULL) return json_skip(j, NULL);
    if (type != JSON_STRING) return json_fail(j, "an ISO time is required");
    if (!json_string(j, &text)) return false;
    *given = true;
    return isotime_parse_us(text, us) || json_fail(j, "not an ISO time");
}

static bool seek_read(struct json *j, struct seek_command *s, bool *timed)
{
    bool first, flag;
    uint32_t seen = 0;
    struct slice key;
    if (!json_object_open(j, &first)) return false;
    while (json_object_next(j, &first, &key)) {
        uint32_t field = slice_is(key, "toEnd") ? 1 : slice_is(key, "timestamp") ? 2 : 0;
        if (seen & field) return json_fail(j, "a field is given twice");
        seen |= field;
        if (field == 1 && json_peek(j) != JSON_NULL) {
            if (!json_bool(j, &flag)) return false;
            s->to_end = flag;
        } else if (field == 2) {
            if (!time_read(j, &s->us, timed)) return false;
        } else if (!json_skip(j, NULL)) {
            return false;
        }
    }
    return json_end(j);
}

static bool body_is_blank(struct slice body)
{
    for (size_t i = 0; i < body.len; i++) {
        if (memchr(" \t\r\n", body.at[i], 4) == NULL) return false;
    }
    return true;
}

/* False: an answer was set. */
static bool seek_body(struct request *r, struct seek_command *s)
{
    struct json j;
    bool timed = false;
    char text[160];
    s->to_end = body_is_blank(request_body(r));
    if (s->to_end) return true;
    json_open(&j, request_body(r), request_arena(r));
    if (!seek_read(&j, s, &timed)) {
        snprintf(text, sizeof text, "%s at byte %zu", j.error == NULL ? "wrong shape" : j.error, (size_t)(j.at - j.start));
        answer_unsuccessful(r, 400, text);
        return false;
    }
    if (s->to_end || timed) return true;
    answer_unsuccessful(r, 400, "toEnd: true, or a timestamp, is required");
    return false;
}

struct seek {
    struct seek_command c;
    uint64_t lanes;
};

static void seek_answer(struct request *r, const struct seek *k)
{
    const struct seek_command *s = &k->c;
    struct buf *out = &r->out;
    if (k->lanes == 0) {
        field_text(out, "{\"success\":false,\"error\":\"No partitions found\",\"consumerGroup\":", s->group);
        field_text(out, ",\"queueName\":", s->queue);
        buf_text(out, ",\"partitionsUpdated\":0}");
        answer_json(r, 404);
        return;
    }
    field_text(out, "{\"success\":true,\"consumerGroup\":", s->group);
    field_text(out, ",\"queueName\":", s->queue);
    field_text_or_null(out, ",\"partitionName\":", s->has_partition ? s->partition : slice_make(NULL, 0));
    field_bool(out, ",\"seekToEnd\":", s->to_end);
    buf_text(out, ",\"targetTimestamp\":");
    if (s->to_end)
        buf_text(out, "null");
    else
        render_time_us(out, s->us);
    field_number(out, ",\"partitionsUpdated\":", k->lanes);
    buf_text(out, ",\"updated\":true}");
    answer_json(r, 200);
}

static void seek_after(struct request *r)
{
    struct seek *k = r->route_data;
    if (!answer_outcome(r)) return;
    must(r->call.result.kind == COMMAND_SEEK);
    k->lanes += r->call.result.changed.lanes;
    if (r->call.result.changed.more) {
        k->c.piece = r->call.result.changed.next;
        buf_clear(&r->command);
        seek_encode(&r->command, &k->c);
        piece_submit(r, seek_after);
    } else {
        seek_answer(r, k);
    }
}

static void seek_submit(struct request *r, bool has_partition)
{
    struct seek *k = arena_zero(request_arena(r), sizeof *k);
    struct seek_command *s = &k->c;
    *s = (struct seek_command){.tenant = r->tenant,
                               .has_partition = has_partition,
                               .group = r->params[0],
                               .queue = r->params[1],
                               .partition = has_partition ? r->params[2] : slice_of("")};
    if (!names_fit(r, s->queue, s->partition, s->group) || !seek_body(r, s)) return;
    seek_encode(&r->command, s);
    write_submit(r, k, seek_after);
}

void route_group_seek(struct request *r)
{
    seek_submit(r, false);
}

void route_group_seek_lane(struct request *r)
{
    seek_submit(r, true);
}

/* ---- delete --------------------------------------------------------------------------------------------------------- */

struct deleted_queues { /* of one piece */
    struct slice *names;
    uint32_t count;
    struct deleted_queues *next;
};

struct group_delete {
    struct group_delete_command c;
    uint64_t lanes;
    struct deleted_queues *first, **last;
};

static void delete_answer(struct request *r, const struct group_delete *g)
{
    struct buf *out = &r->out;
    bool any = false;
    field_text(out, "{\"success\":true,\"consumerGroup\":", g->c.group);
    field_text_or_null(out, ",\"queueName\":", g->c.queue.len > 0 ? g->c.queue : slice_make(NULL, 0));
    field_number(out, ",\"deletedPartitions\":", g->lanes);
    field_bool(out, ",\"metadataDeleted\":", !g->c.keep_registration);
    buf_text(out, ",\"queues\":[");
    for (const struct deleted_queues *q = g->first; q != NULL; q = q->next) {
        for (uint32_t i = 0; i < q->count; i++) {
            field_text(out, any ? "," : "", q->names[i]);
            any = true;
        }
    }
    buf_text(out, "]}");
    answer_json(r, 200);
}

static void delete_after(struct request *r)
{
    struct group_delete *g = r->route_data;
    if (!answer_outcome(r)) return;
    must(r->call.result.kind == COMMAND_GROUP_DELETE);
    struct deleted_queues *q = arena_zero(request_arena(r), sizeof *q);
    q->names = r->call.result.changed.queues;
    q->count = r->call.result.changed.queue_count;
    *g->last = q;
    g->last = &q->next;
    g->lanes += r->call.result.changed.lanes;
    if (r->call.result.changed.more) {
        g->c.piece = r->call.result.changed.next;
        buf_clear(&r->command);
        group_delete_encode(&r->command, &g->c);
        piece_submit(r, delete_after);
    } else {
        delete_answer(r, g);
    }
}

static void delete_submit(struct request *r, struct slice queue)
{
    bool metadata = true, given;
    struct group_delete *g = arena_zero(request_arena(r), sizeof *g);
    if (!query_bool(r, "deleteMetadata", &metadata, &given)) return;
    g->last = &g->first;
    g->c = (struct group_delete_command){
        .tenant = r->tenant, .keep_registration = !metadata, .group = r->params[0], .queue = queue};
    if (!names_fit(r, queue, slice_of(""), g->c.group)) return;
    group_delete_encode(&r->command, &g->c);
    write_submit(r, g, delete_after);
}

void route_group_delete(struct request *r)
{
    delete_submit(r, slice_of(""));
}

void route_group_delete_queue(struct request *r)
{
    delete_submit(r, r->params[1]);
}

/* ---- subscription --------------------------------------------------------------------------------------------------- */

struct subscription {
    struct subscription_command c;
    uint64_t rows;
};

static void subscription_after(struct request *r)
{
    struct subscription *s = r->route_data;
    if (!answer_outcome(r)) return;
    must(r->call.result.kind == COMMAND_SUBSCRIPTION);
    s->rows += r->call.result.changed.lanes;
    if (r->call.result.changed.more) {
        s->c.piece = r->call.result.changed.next;
        buf_clear(&r->command);
        subscription_encode(&r->command, &s->c);
        piece_submit(r, subscription_after);
        return;
    }
    field_text(&r->out, "{\"success\":true,\"consumerGroup\":", s->c.group);
    buf_text(&r->out, ",\"newTimestamp\":");
    render_time_us(&r->out, s->c.us);
    field_number(&r->out, ",\"rowsUpdated\":", s->rows);
    buf_byte(&r->out, '}');
    answer_json(r, 200);
}

static bool subscription_read(struct json *j, int64_t *us, bool *given)
{
    bool first, seen = false;
    struct slice key;
    if (!json_object_open(j, &first)) return false;
    while (json_object_next(j, &first, &key)) {
        if (!slice_is(key, "subscriptionTimestamp")) {
            if (!json_skip(j, NULL)) return false;
            continue;
        }
        if (seen) return json_fail(j, "subscriptionTimestamp: given twice");
        seen = true;
        if (!time_read(j, us, given)) return false;
    }
    return json_end(j);
}

void route_group_subscription(struct request *r)
{
    struct json j;
    bool given = false;
    struct subscription *s = arena_zero(request_arena(r), sizeof *s);
    s->c = (struct subscription_command){.tenant = r->tenant, .group = r->params[0]};
    if (!names_fit(r, slice_of(""), slice_of(""), s->c.group)) return;
    json_open(&j, request_body(r), request_arena(r));
    if (!subscription_read(&j, &s->c.us, &given) || !given) {
        answer_error(r, 400, "bad_request", "subscriptionTimestamp: an ISO time is required");
        return;
    }
    subscription_encode(&r->command, &s->c);
    write_submit(r, s, subscription_after);
}

/* ---- positions ------------------------------------------------------------------------------------------------------ */

struct position_entry {
    struct slice queue, partition;
};

struct positions {
    struct slice group;
    bool all; /* no entries were given */
    bool begun;
    struct position_entry *entries;
    uint32_t count, at; /* entries that were answered */
    struct lane_walk walk;
    uint32_t in_queue; /* number of the group in the queue the walk is in */
    /* of a visit */
    struct buf *out;
    uint32_t rows;
};

static bool refuse_positions(struct request *r, const char *text)
{
    answer_error(r, 400, "bad_request", text);
    return false;
}

static bool position_entry_read(struct json *j, struct position_entry *e)
{
    bool first;
    struct slice key;
    *e = (struct position_entry){.partition = slice_of(DEFAULT_PARTITION)};
    if (!json_object_open(j, &first)) return false;
    while (json_object_next(j, &first, &key)) {
        struct slice *field = slice_is(key, "queue") ? &e->queue : slice_is(key, "partition") ? &e->partition : NULL;
        if (field == NULL || json_peek(j) == JSON_NULL ? !json_skip(j, NULL) : !json_string(j, field)) return false;
    }
    if (e->partition.len == 0) e->partition = slice_of(DEFAULT_PARTITION);
    return e->queue.len > 0 || json_fail(j, "queue: a name is required");
}

static bool position_entries_read(struct json *j, struct buf *entries)
{
    bool first;
    struct position_entry e;
    if (!json_array_open(j, &first)) return false;
    for (uint32_t n = 0; json_array_next(j, &first); n++) {
        if (n == POSITION_ENTRIES_MAX) return json_fail(j, "entries: too many");
        if (!position_entry_read(j, &e)) return false;
        buf_put(entries, &e, sizeof e);
    }
    return j->error == NULL;
}

static bool positions_body_read(struct json *j, struct positions *p, struct buf *entries)
{
    bool first, good = true;
    struct slice key;
    if (!json_object_open(j, &first)) return false;
    while (good && json_object_next(j, &first, &key)) {
        bool null = json_peek(j) == JSON_NULL;
        if (!null && slice_is(key, "consumerGroup")) {
            good = json_string(j, &p->group);
        } else if (!null && slice_is(key, "entries")) {
            good = p->all ? position_entries_read(j, entries) : json_fail(j, "entries: given twice");
            p->all = false;
        } else {
            good = json_skip(j, NULL);
        }
    }
    return good && json_end(j);
}

static bool positions_read(struct request *r, struct positions *p)
{
    struct json j;
    struct buf entries = {0};
    char text[160];
    p->all = true;
    json_open(&j, request_body(r), request_arena(r));
    bool good = positions_body_read(&j, p, &entries);
    p->count = (uint32_t)(entries.len / sizeof *p->entries);
    p->entries = arena_get(request_arena(r), entries.len + 1);
    memcpy(p->entries, buf_view(&entries).at, entries.len);
    buf_free(&entries);
    if (!good) {
        snprintf(text, sizeof text, "%s at byte %zu", j.error == NULL ? "wrong shape" : j.error, (size_t)(j.at - j.start));
        return refuse_positions(r, text);
    }
    return p->group.len > 0 || refuse_positions(r, "consumerGroup: a name is required");
}

/* `lane` and `group` 0: there is none. */
static void position_render(struct positions *p, struct engine *e, struct engine_now now, struct slice queue,
                            struct slice partition, uint32_t lane, uint32_t group)
{
    struct cursor_view c;
    struct buf *out = p->out;
    bool known = lane != 0 && group != 0 && engine_cursor_get(e, lane, group, now, &c);
    if (!known && p->all) return;
    if (p->rows++ > 0) buf_byte(out, ',');
    field_text(out, "{\"queue\":", queue);
    field_text(out, ",\"partition\":", partition);
    if (known)
        field_signed(out, ",\"offset\":", c.committed + 1);
    else
        buf_text(out, ",\"offset\":null");
    buf_text(out, known ? ",\"metadata\":null}" : "}");
}

static bool position_queue(void *ctx, struct engine *e, const struct queue_view *q)
{
    struct positions *p = ctx;
    struct group_view g;
    p->in_queue = engine_group_find(e, q->tenant, q->name, p->group);
    return engine_group_get(e, p->in_queue, &g) && g.registered;
}

static void position_lane(void *ctx, struct engine *e, struct engine_now now, const struct queue_view *q,
                          const struct lane_view *lane)
{
    struct positions *p = ctx;
    position_render(p, e, now, q->name, lane->name, lane->number, p->in_queue);
}

static bool positions_visit(struct request *r, void *data, struct buf *out, struct engine *e, struct engine_now now)
{
    struct positions *p = data;
    struct lane_view lane;
    bool more;
    p->out = out;
    if (!p->begun) {
        field_text(out, "{\"consumerGroup\":", p->group);
        buf_text(out, ",\"entries\":[");
        p->begun = true;
    }
    if (p->all) {
        struct lane_walker walker = {.queue = position_queue, .lane = position_lane, .ctx = p};
        more = lane_walk_go(&p->walk, r, e, now, &walker);
    } else {
        for (uint32_t n = 0; n < VISIT_LANES && p->at < p->count; n++, p->at++) {
            const struct position_entry *entry = &p->entries[p->at];
            uint32_t number = engine_lane_find(e, r->tenant, entry->queue, entry->partition, &lane) ? lane.number : 0;
            position_render(p, e, now, entry->queue, entry->partition, number,
                            engine_group_find(e, r->tenant, entry->queue, p->group));
        }
        more = p->at < p->count;
    }
    if (!more) buf_text(out, "]}");
    return more;
}

/* The lanes that the next visit names. */
static void positions_foresee(struct call *c, struct engine *e, struct engine_now now, const struct engine_foreseen *f)
{
    const struct positions *p = c->foresee_ctx;
    const struct request *r = c->read_ctx;
    (void)now;
    for (uint32_t n = 0; n < VISIT_LANES && p->at + n < p->count; n++) {
        const struct position_entry *entry = &p->entries[p->at + n];
        engine_standing_foreseen(e, r->tenant, entry->queue, entry->partition, f);
    }
}

void route_group_positions(struct request *r)
{
    struct positions *p = arena_zero(request_arena(r), sizeof *p);
    if (!positions_read(r, p)) return;
    r->call.foresee = positions_foresee;
    r->call.foresee_ctx = p;
    if (p->all) walk_foreseen(r, &p->walk, FORESEEN_APPENDS);
    visits_answer(r, positions_visit, p);
}
