/* POST   /api/v1/configure                           {"queue","mode"?,"options"?|options at the top level,"namespace"?,"task"?}
 * DELETE /api/v1/resources/queues/:queue
 * GET    /api/v1/resources/queues                    ?stats=lanes for the short form; namespace and task filter
 * GET    /api/v1/resources/queues/:queue
 * GET    /api/v1/resources/queues/:queue/depth       ?group=
 * GET    /api/v1/status/queues, .../:queue           the list, and the detail in other words
 *
 * Shapes: see the functions. Times are in microseconds, counts are messages, bytes are bytes of payload.
 * Errors: 400 bad_body, bad_request, 404 {"error":"Queue not found"}, 413 name_too_long, 429, 503.
 *
 * The three reads run on the group thread and list what the contract lists: all queues, or all lanes of one. They cost about
 * 0.5 us a lane (list), 1 us and 400 bytes of answer a lane (detail), 0.3 us (depth), and nothing else runs meanwhile: a queue of a million
 * lanes holds the broker up for a second. The short form of the list costs nothing a lane. */
#include <stdlib.h>

#include "base/limits.h"
#include "http/answer.h"
#include "http/body.h"
#include "http/name.h"
#include "http/options.h"
#include "http/render.h"
#include "http/route.h"

/* ---- configure, delete ---------------------------------------------------------------------------------------------- */

static void configure_after(struct request *r)
{
    const struct engine_result *result = &r->call.result;
    const struct slice *queue = r->route_data;
    if (!answer_outcome(r)) return;
    must(result->kind == COMMAND_CONFIGURE);
    if (result->configure.refused != NULL) {
        answer_error(r, 400, "bad_request", result->configure.refused);
        return;
    }
    struct buf *out = &r->out;
    buf_text(out, "{\"configured\":true,\"queueId\":");
    render_uuid(out, result->configure.queue_id);
    buf_text(out, ",\"partitionId\":null,\"queue\":");
    render_text(out, *queue);
    buf_text(out, ",\"namespace\":");
    render_text(out, result->configure.options.name_space);
    buf_text(out, ",\"task\":");
    render_text(out, result->configure.options.task);
    buf_text(out, ",\"storage\":\"segments\",\"options\":");
    options_render(out, &result->configure.options);
    buf_byte(out, '}');
    answer_json(r, 200);
}

void route_configure(struct request *r)
{
    struct configure_command c;
    struct body_refusal why;
    if (!body_configure_read(request_body(r), request_arena(r), &c, &why)) {
        answer_refusal(r, &why);
        return;
    }
    if (!name_fits(c.queue, slice_make("", 0), slice_make("", 0))) {
        answer_name_too_long(r);
        return;
    }
    struct slice *queue = arena_get(request_arena(r), sizeof *queue);
    *queue = c.queue;
    c.tenant = r->tenant;
    configure_encode(&r->command, &c);
    r->route_data = queue;
    r->call.kind = CALL_WRITE;
    r->call.command = buf_view(&r->command);
    request_submit(r, r->http->config->pop_timeout_ms, configure_after);
}

static void delete_after(struct request *r)
{
    if (!answer_outcome(r)) return;
    must(r->call.result.kind == COMMAND_QUEUE_DELETE);
    bool existed = r->call.result.queue_delete.existed;
    buf_printf(&r->out, "{\"deleted\":%s,\"existed\":%s,\"queue\":", existed ? "true" : "false", existed ? "true" : "false");
    render_text(&r->out, r->params[0]);
    if (!existed) buf_text(&r->out, ",\"message\":\"the queue does not exist\"");
    buf_byte(&r->out, '}');
    answer_json(r, 200);
}

void route_queue_delete(struct request *r)
{
    struct queue_delete_command d = {.tenant = r->tenant, .queue = r->params[0]};
    if (!name_fits(d.queue, slice_make("", 0), slice_make("", 0))) {
        answer_name_too_long(r);
        return;
    }
    queue_delete_encode(&r->command, &d);
    r->call.kind = CALL_WRITE;
    r->call.command = buf_view(&r->command);
    request_submit(r, r->http->config->pop_timeout_ms, delete_after);
}

/* ---- reads: what they share ------------------------------------------------------------------------------------------ */

static void read_after(struct request *r)
{
    if (!answer_outcome(r)) return;
    buf_slice(&r->out, buf_view(&r->call.answer));
    answer_json(r, r->call.status == 0 ? 200 : r->call.status);
}

static void read_submit(struct request *r, void (*read)(struct call *c, struct engine *e, struct engine_now now))
{
    r->call.kind = CALL_READ;
    r->call.read = read;
    r->call.read_ctx = r;
    request_submit(r, r->http->config->pop_timeout_ms, read_after);
}

static void not_found(struct call *c)
{
    buf_text(&c->answer, "{\"error\":\"Queue not found\"}");
    c->status = 404;
}

static void field_text(struct buf *out, const char *key, struct slice text)
{
    buf_text(out, key);
    render_text(out, text);
}

static void field_number(struct buf *out, const char *key, uint64_t value)
{
    buf_text(out, key);
    buf_decimal(out, value);
}

/* `id`, `name` and labels, without the opening brace. */
static void queue_head_render(struct buf *out, const struct queue_view *q)
{
    buf_text(out, "\"id\":");
    render_uuid(out, q->id);
    field_text(out, ",\"name\":", q->name);
    field_text(out, ",\"namespace\":", q->options->name_space);
    field_text(out, ",\"task\":", q->options->task);
}

/* ---- list ------------------------------------------------------------------------------------------------------------ */

struct list_query {
    bool lanes;
    struct slice name_space, task;
};

static void lanes_row(struct buf *out, const struct queue_view *q)
{
    buf_text(out, "{\"id\":");
    render_uuid(out, q->id);
    field_text(out, ",\"name\":", q->name);
    field_text(out, ",\"queue\":", q->name);
    field_number(out, ",\"partitions\":", q->partition_count);
    buf_text(out, ",\"createdAt\":");
    render_time_us(out, q->created_us);
    buf_byte(out, '}');
}

static void list_row(struct buf *out, struct engine *e, const struct queue_view *q, struct engine_now now)
{
    struct lane_counts n;
    engine_queue_counts(e, q->number, now, &n);
    uint64_t waiting = n.pending > n.processing ? n.pending - n.processing : 0;
    buf_byte(out, '{');
    queue_head_render(out, q);
    field_text(out, ",\"queue\":", q->name);
    field_number(out, ",\"storage\":\"segments\",\"partitions\":", q->partition_count);
    field_number(out, ",\"segments\":{\"segments\":0,\"messages\":", q->retained_messages);
    field_number(out, "},\"messages\":{\"total\":", n.total);
    field_number(out, ",\"pending\":", waiting);
    field_number(out, ",\"processing\":", n.processing);
    field_number(out, ",\"completed\":", n.completed);
    field_number(out, ",\"deadLetter\":", n.dead_letters);
    field_number(out, "},\"retainedBytes\":", q->retained_bytes);
    buf_text(out, ",\"options\":");
    options_render(out, q->options);
    buf_text(out, ",\"createdAt\":");
    render_time_us(out, q->created_us);
    buf_byte(out, '}');
}

/* Newest queue first; the engine gives them oldest first. */
static void list_read(struct call *c, struct engine *e, struct engine_now now)
{
    const struct request *r = c->read_ctx;
    const struct list_query *query = r->route_data;
    struct buf views = {0}, *out = &c->answer;
    struct queue_view q;
    for (uint32_t after = 0; engine_queue_next(e, r->tenant, after, &q); after = q.number) {
        if (query->name_space.len > 0 && !slice_equal(query->name_space, q.options->name_space)) continue;
        if (query->task.len > 0 && !slice_equal(query->task, q.options->task)) continue;
        buf_put(&views, &q, sizeof q);
    }
    buf_text(out, "{\"queues\":[");
    for (size_t n = views.len / sizeof q; n-- > 0;) {
        memcpy(&q, views.at + n * sizeof q, sizeof q);
        if (query->lanes)
            lanes_row(out, &q);
        else
            list_row(out, e, &q, now);
        if (n > 0) buf_byte(out, ',');
    }
    buf_free(&views);
    if (query->lanes) {
        buf_text(out, "],\"stats\":\"lanes\"}");
        return;
    }
    struct tenant_rows rows;
    engine_tenant_rows(e, r->tenant, &rows);
    field_number(out, "],\"kvRows\":", rows.kv_rows);
    field_number(out, ",\"kvBytes\":", rows.kv_bytes);
    field_number(out, ",\"timerRows\":", rows.timers);
    buf_text(out, ",\"timerBytes\":0}");
}

void route_queue_list(struct request *r)
{
    struct list_query *query = arena_zero(request_arena(r), sizeof *query);
    struct slice stats = {0};
    query->lanes = query_text(r, "stats", &stats) && slice_is(stats, "lanes");
    query_text(r, "namespace", &query->name_space);
    query_text(r, "task", &query->task);
    r->route_data = query;
    read_submit(r, list_read);
}

/* ---- detail ---------------------------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return slice_compare(((const struct partition_view *)a)->name, ((const struct partition_view *)b)->name);
}

/* Here pending includes what is leased. */
static void counts_render(struct buf *out, const struct lane_counts *n)
{
    field_number(out, "{\"total\":", n->total);
    field_number(out, ",\"pending\":", n->pending);
    field_number(out, ",\"processing\":", n->processing);
    field_number(out, ",\"completed\":", n->completed);
    field_number(out, ",\"failed\":null,\"deadLetter\":", n->dead_letters);
    buf_byte(out, '}');
}

static void partition_row(struct buf *out, const struct partition_view *p)
{
    uint64_t consumed = p->tail_offset > p->counts.pending ? p->tail_offset - p->counts.pending : 0;
    buf_text(out, "{\"id\":");
    render_uuid(out, p->id);
    field_text(out, ",\"name\":", p->name);
    buf_text(out, ",\"createdAt\":");
    render_time_us(out, p->created_us);
    buf_text(out, ",\"messages\":");
    counts_render(out, &p->counts);
    buf_text(out, ",\"stats\":");
    counts_render(out, &p->counts);
    field_number(out, ",\"cursor\":{\"totalConsumed\":", consumed);
    buf_text(out, ",\"batchesConsumed\":0},\"lastActivity\":");
    render_time_us_or_null(out, p->last_lease_us);
    buf_text(out, ",\"oldestMessage\":");
    render_time_us_or_null(out, p->oldest_created_us);
    buf_text(out, ",\"newestMessage\":");
    render_time_us_or_null(out, p->last_created_us);
    field_number(out, ",\"retainedBytes\":", p->retained_bytes);
    buf_byte(out, '}');
}

static size_t partitions_collect(struct engine *e, uint32_t queue, struct engine_now now, struct buf *views)
{
    struct partition_view p;
    for (uint32_t after = 0; engine_partition_next(e, queue, after, now, &p); after = p.number) buf_put(views, &p, sizeof p);
    size_t count = views->len / sizeof p;
    if (count > 1) qsort(views->at, count, sizeof p, by_name);
    return count;
}

static void counts_add(struct lane_counts *sum, const struct lane_counts *n)
{
    sum->total += n->total;
    sum->pending += n->pending;
    sum->processing += n->processing;
    sum->completed += n->completed;
    sum->dead_letters += n->dead_letters;
}

static void detail_read(struct call *c, struct engine *e, struct engine_now now)
{
    const struct request *r = c->read_ctx;
    struct queue_view q;
    struct buf views = {0}, *out = &c->answer;
    struct lane_counts sum = {0};
    if (!engine_queue_get(e, r->tenant, r->params[0], &q)) {
        not_found(c);
        return;
    }
    size_t count = partitions_collect(e, q.number, now, &views);
    const struct partition_view *p = (const struct partition_view *)(const void *)views.at;
    buf_byte(out, '{');
    queue_head_render(out, &q);
    buf_text(out, ",\"createdAt\":");
    render_time_us(out, q.created_us);
    buf_text(out, ",\"options\":");
    options_render(out, q.options);
    buf_text(out, ",\"partitions\":[");
    for (size_t i = 0; i < count; i++) {
        if (i > 0) buf_byte(out, ',');
        partition_row(out, &p[i]);
        counts_add(&sum, &p[i].counts);
    }
    field_number(out, "],\"segments\":{\"segments\":0,\"messages\":", q.retained_messages);
    buf_text(out, "},\"totals\":");
    counts_render(out, &sum);
    field_number(out, ",\"retainedBytes\":", q.retained_bytes);
    buf_byte(out, '}');
    buf_free(&views);
}

void route_queue_detail(struct request *r)
{
    read_submit(r, detail_read);
}

/* GET /api/v1/status/queues/:queue: the same in other words. */
static void status_read(struct call *c, struct engine *e, struct engine_now now)
{
    const struct request *r = c->read_ctx;
    struct queue_view q;
    struct buf views = {0}, *out = &c->answer;
    struct lane_counts sum = {0};
    if (!engine_queue_get(e, r->tenant, r->params[0], &q)) {
        not_found(c);
        return;
    }
    size_t count = partitions_collect(e, q.number, now, &views);
    const struct partition_view *p = (const struct partition_view *)(const void *)views.at;
    buf_text(out, "{\"queue\":{");
    queue_head_render(out, &q);
    buf_text(out, ",\"priority\":");
    buf_signed(out, q.options->numbers[OPTION_PRIORITY]);
    buf_text(out, ",\"createdAt\":");
    render_time_us(out, q.created_us);
    buf_text(out, ",\"config\":");
    options_render(out, q.options);
    buf_text(out, "},\"partitions\":[");
    for (size_t i = 0; i < count; i++) {
        if (i > 0) buf_byte(out, ',');
        partition_row(out, &p[i]);
        counts_add(&sum, &p[i].counts);
    }
    buf_text(out, "],\"totals\":{\"messages\":");
    counts_render(out, &sum);
    buf_text(out, "}}");
    buf_free(&views);
}

void route_status_queue(struct request *r)
{
    read_submit(r, status_read);
}

/* ---- depth ----------------------------------------------------------------------------------------------------------- */

struct depth {
    uint32_t group; /* 0: the worst of the named groups */
    bool named, unknown, conflates;
    uint64_t pending, processing, lanes_pending, lanes_ready;
};

static void depth_group_find(struct depth *d, struct engine *e, uint32_t queue, struct slice name)
{
    struct group_view g;
    d->named = true;
    d->unknown = true;
    for (uint32_t after = 0; engine_group_next(e, queue, after, &g); after = g.number) {
        if (!slice_equal(g.name, name)) continue;
        d->group = g.number;
        d->conflates = g.conflates;
        d->unknown = false;
        return;
    }
}

static void depth_lane(struct depth *d, struct engine *e, const struct partition_view *p, struct engine_now now,
                       struct buf *out)
{
    uint64_t pending = p->tail_offset - p->start_offset, processing = 0; /* a group nobody knows wants everything */
    if (!d->unknown) engine_lane_depth(e, p->number, d->group, now, &pending, &processing);
    if (processing > pending) processing = pending;
    d->pending += pending;
    d->processing += processing;
    d->lanes_pending += pending > 0 ? 1 : 0;
    d->lanes_ready += pending > processing ? 1 : 0;
    field_text(out, "{\"partition\":", p->name);
    field_number(out, ",\"pending\":", pending);
    field_number(out, ",\"processing\":", processing);
    field_number(out, ",\"ready\":", pending - processing);
    buf_byte(out, '}');
}

static void depth_read(struct call *c, struct engine *e, struct engine_now now)
{
    const struct request *r = c->read_ctx;
    const struct slice *group = r->route_data;
    struct queue_view q;
    struct depth d = {0};
    struct buf views = {0}, lanes = {0}, *out = &c->answer;
    if (!engine_queue_get(e, r->tenant, r->params[0], &q)) {
        not_found(c);
        return;
    }
    if (group->len > 0) depth_group_find(&d, e, q.number, *group);
    size_t count = partitions_collect(e, q.number, now, &views);
    const struct partition_view *p = (const struct partition_view *)(const void *)views.at;
    for (size_t i = 0; i < count; i++) {
        if (i > 0) buf_byte(&lanes, ',');
        depth_lane(&d, e, &p[i], now, &lanes);
    }
    uint64_t ready = d.pending - d.processing;
    field_text(out, "{\"queue\":", q.name);
    buf_text(out, ",\"group\":");
    if (group->len > 0)
        render_text(out, *group);
    else
        buf_text(out, "null");
    field_number(out, ",\"pending\":", d.pending);
    field_number(out, ",\"processing\":", d.processing);
    field_number(out, ",\"ready\":", ready);
    field_number(out, ",\"partitionsPending\":", d.lanes_pending);
    field_number(out, ",\"partitionsReady\":", d.lanes_ready);
    buf_text(out, d.conflates ? ",\"conflation\":true" : ",\"conflation\":false");
    field_number(out, ",\"effectivePending\":", d.conflates ? d.lanes_pending : d.pending);
    field_number(out, ",\"effectiveReady\":", d.conflates ? d.lanes_ready : ready);
    buf_text(out, ",\"partitions\":[");
    buf_slice(out, buf_view(&lanes));
    buf_text(out, "]}");
    buf_free(&lanes);
    buf_free(&views);
}

void route_queue_depth(struct request *r)
{
    struct slice *group = arena_zero(request_arena(r), sizeof *group);
    query_text(r, "group", group);
    r->route_data = group;
    read_submit(r, depth_read);
}
