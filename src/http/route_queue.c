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
 * The list is read in one go, about 0.5 us a lane of all queues; the short form costs nothing a lane. Detail and depth are read in visits
 * (visit.h), 1 us and 400 bytes of answer a lane, and 0.3 us; "partial":true says that they ended early. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/limits.h"
#include "http/answer.h"
#include "http/body.h"
#include "http/name.h"
#include "http/options.h"
#include "http/render.h"
#include "http/route.h"
#include "http/visit.h"

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

/* ---- what listings share ------------------------------------------------------------------------------------------ */

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

static void list_row(struct buf *out, const struct queue_view *q, struct lane_counts n)
{
    n.dead_letters = q->dead_letters;
    n.completed = n.total > n.pending + n.dead_letters ? n.total - n.pending - n.dead_letters : 0;
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

/* Queues and what their lanes hold, collected in visits, then shown in visits: newest queue first, the engine gives them oldest first. */
struct list_queue {
    uint32_t number;
    struct lane_counts n;
};

struct list {
    struct list_query query;
    struct lane_walk walk;
    struct arena *arena;
    struct list_queue *queues;
    uint32_t count, cap;
    bool collected, any;
};

static bool list_queue_add(void *ctx, struct engine *e, const struct queue_view *q)
{
    struct list *l = ctx;
    (void)e;
    if (l->query.name_space.len > 0 && !slice_equal(l->query.name_space, q->options->name_space)) return false;
    if (l->query.task.len > 0 && !slice_equal(l->query.task, q->options->task)) return false;
    l->queues = arena_room(l->arena, l->queues, l->count, &l->cap, sizeof l->queues[0]);
    l->queues[l->count++] = (struct list_queue){.number = q->number};
    return true;
}

static void list_lane_add(void *ctx, struct engine *e, struct engine_now now, const struct queue_view *q,
                          const struct lane_view *lane)
{
    struct list *l = ctx;
    struct lane_counts *n = &l->queues[l->count - 1].n, one;
    (void)q;
    engine_lane_counts(e, lane->number, now, &one);
    n->total += one.total;
    n->pending += one.pending;
    n->processing += one.processing;
}

/* Queues behind the last lane that a walk looks at are listed too, with what is known of them without counting. */
static void list_rest_add(struct list *l, struct request *r, struct engine *e)
{
    struct queue_view q;
    for (uint32_t after = l->walk.at_queue; engine_queue_next(e, r->tenant, after, &q); after = q.number) {
        if (list_queue_add(l, e, &q)) l->queues[l->count - 1].n.total = q.retained_messages;
    }
}

static void list_end(struct request *r, struct list *l, struct buf *out, struct engine *e)
{
    struct tenant_rows rows;
    if (l->query.lanes) {
        buf_text(out, "],\"stats\":\"lanes\"}");
        return;
    }
    engine_tenant_rows(e, r->tenant, &rows);
    field_number(out, "],\"kvRows\":", rows.kv_rows);
    field_number(out, ",\"kvBytes\":", rows.kv_bytes);
    field_number(out, ",\"timerRows\":", rows.timers);
    buf_text(out, ",\"timerBytes\":0}");
}

static bool list_visit(struct request *r, void *data, struct buf *out, struct engine *e, struct engine_now now)
{
    struct list *l = data;
    struct lane_walker walker = {.queue = list_queue_add, .lane = l->query.lanes ? NULL : list_lane_add, .ctx = l};
    if (!l->collected) {
        if (lane_walk_go(&l->walk, r, e, now, &walker)) return true;
        if (l->walk.partial) list_rest_add(l, r, e);
        l->collected = true;
        buf_text(out, "{\"queues\":[");
    }
    int64_t began_us = clock_mono_us();
    while (l->count > 0 && !visit_over(began_us)) {
        const struct list_queue *one = &l->queues[--l->count];
        struct queue_view q;
        if (!engine_queue_next(e, r->tenant, one->number - 1, &q) || q.number != one->number) continue; /* deleted since */
        if (l->any) buf_byte(out, ',');
        l->any = true;
        if (l->query.lanes)
            lanes_row(out, &q);
        else
            list_row(out, &q, one->n);
    }
    if (l->count > 0) return true;
    list_end(r, l, out, e);
    return false;
}

void route_queue_list(struct request *r)
{
    struct list *l = arena_zero(request_arena(r), sizeof *l);
    struct slice stats = {0};
    l->arena = request_arena(r);
    l->query.lanes = query_text(r, "stats", &stats) && slice_is(stats, "lanes");
    query_text(r, "namespace", &l->query.name_space);
    query_text(r, "task", &l->query.task);
    if (!l->query.lanes) walk_foreseen(r, &l->walk, FORESEEN_LANES);
    visits_answer(r, list_visit, l);
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

/* The lanes of a queue, collected in visits. */
struct lane_rows {
    struct lane_walk walk;
    struct arena *arena;
    struct partition_view *rows; /* names in the arena */
    uint32_t count, cap;
    uint64_t messages, bytes;
};

static struct lane_rows *lane_rows_new(struct request *r)
{
    struct lane_rows *l = arena_zero(request_arena(r), sizeof *l);
    l->arena = request_arena(r);
    l->walk.queue = r->params[0];
    walk_foreseen(r, &l->walk, FORESEEN_APPENDS);
    return l;
}

static void lane_rows_add(void *ctx, struct engine *e, struct engine_now now, const struct queue_view *q,
                          const struct lane_view *lane)
{
    struct lane_rows *l = ctx;
    l->rows = arena_room(l->arena, l->rows, l->count, &l->cap, sizeof l->rows[0]);
    struct partition_view *row = &l->rows[l->count];
    if (!engine_partition_get(e, lane->number, now, row)) return;
    row->name = arena_copy(l->arena, row->name);
    l->messages = q->retained_messages;
    l->bytes = q->retained_bytes;
    l->count++;
}

/* True: there are more lanes. */
static bool lane_rows_visit(struct request *r, struct lane_rows *l, struct engine *e, struct engine_now now)
{
    struct lane_walker walker = {.lane = lane_rows_add, .ctx = l};
    return lane_walk_go(&l->walk, r, e, now, &walker);
}

static void lane_rows_sort(struct lane_rows *l)
{
    if (l->count > 1) qsort(l->rows, l->count, sizeof *l->rows, by_name);
}

static void counts_add(struct lane_counts *sum, const struct lane_counts *n)
{
    sum->total += n->total;
    sum->pending += n->pending;
    sum->processing += n->processing;
    sum->completed += n->completed;
    sum->dead_letters += n->dead_letters;
}

static void lane_rows_render(struct buf *out, struct lane_rows *l, struct lane_counts *sum)
{
    lane_rows_sort(l);
    buf_text(out, "\"partitions\":[");
    for (uint32_t i = 0; i < l->count; i++) {
        if (i > 0) buf_byte(out, ',');
        partition_row(out, &l->rows[i]);
        counts_add(sum, &l->rows[i].counts);
    }
    buf_byte(out, ']');
}

/* What stands before the lanes is rendered by the first visit. False: there is no such queue. */
static bool queue_there(struct request *r, const struct lane_rows *l, struct buf *out, struct engine *e, struct queue_view *q)
{
    if (l->walk.begun || engine_queue_get(e, r->tenant, r->params[0], q)) return true;
    buf_text(out, "{\"error\":\"Queue not found\"}");
    r->call.status = 404;
    return false;
}

static bool detail_visit(struct request *r, void *data, struct buf *out, struct engine *e, struct engine_now now)
{
    struct lane_rows *l = data;
    struct queue_view q;
    if (!queue_there(r, l, out, e, &q)) return false;
    if (!l->walk.begun) {
        buf_byte(out, '{');
        queue_head_render(out, &q);
        buf_text(out, ",\"createdAt\":");
        render_time_us(out, q.created_us);
        buf_text(out, ",\"options\":");
        options_render(out, q.options);
        buf_byte(out, ',');
    }
    return lane_rows_visit(r, l, e, now);
}

static void detail_after(struct request *r, void *data)
{
    struct lane_rows *l = data;
    struct lane_counts sum = {0};
    struct buf *out = &r->out;
    if (r->call.status == 404) {
        answer_json(r, 404);
        return;
    }
    lane_rows_render(out, l, &sum);
    field_number(out, ",\"segments\":{\"segments\":0,\"messages\":", l->messages);
    buf_text(out, "},\"totals\":");
    counts_render(out, &sum);
    field_number(out, ",\"retainedBytes\":", l->bytes);
    buf_text(out, l->walk.partial ? ",\"partial\":true}" : "}");
    answer_json(r, 200);
}

void route_queue_detail(struct request *r)
{
    visits_then(r, detail_visit, lane_rows_new(r), detail_after);
}

/* GET /api/v1/status/queues/:queue: the same in other words. */
static bool status_visit(struct request *r, void *data, struct buf *out, struct engine *e, struct engine_now now)
{
    struct lane_rows *l = data;
    struct queue_view q;
    if (!queue_there(r, l, out, e, &q)) return false;
    if (!l->walk.begun) {
        buf_text(out, "{\"queue\":{");
        queue_head_render(out, &q);
        buf_text(out, ",\"priority\":");
        buf_signed(out, q.options->numbers[OPTION_PRIORITY]);
        buf_text(out, ",\"createdAt\":");
        render_time_us(out, q.created_us);
        buf_text(out, ",\"config\":");
        options_render(out, q.options);
        buf_text(out, "},");
    }
    return lane_rows_visit(r, l, e, now);
}

static void status_after(struct request *r, void *data)
{
    struct lane_counts sum = {0};
    if (r->call.status == 404) {
        answer_json(r, 404);
        return;
    }
    lane_rows_render(&r->out, data, &sum);
    buf_text(&r->out, ",\"totals\":{\"messages\":");
    counts_render(&r->out, &sum);
    buf_text(&r->out, "}}");
    answer_json(r, 200);
}

void route_status_queue(struct request *r)
{
    visits_then(r, status_visit, lane_rows_new(r), status_after);
}

/* ---- depth ----------------------------------------------------------------------------------------------------------- */

struct depth_row {
    struct slice name;
    uint64_t pending, processing;
};

struct depth {
    struct lane_walk walk;
    struct slice wanted; /* group; empty: the worst of the named groups */
    uint32_t group;
    bool unknown, conflates;
    uint64_t pending, processing, lanes_pending, lanes_ready;
    struct arena *arena;
    struct depth_row *rows;
    uint32_t count, cap;
};

static bool depth_queue(void *ctx, struct engine *e, const struct queue_view *q)
{
    struct depth *d = ctx;
    struct group_view g;
    d->group = d->wanted.len == 0 ? 0 : engine_group_find(e, q->tenant, q->name, d->wanted);
    d->unknown = d->wanted.len > 0 && d->group == 0;
    d->conflates = d->group != 0 && engine_group_get(e, d->group, &g) && g.conflates;
    return true;
}

static void depth_lane(void *ctx, struct engine *e, struct engine_now now, const struct queue_view *q,
                       const struct lane_view *p)
{
    struct depth *d = ctx;
    uint64_t pending = p->tail_offset - p->start_offset, processing = 0; /* a group nobody knows wants everything */
    (void)q;
    if (!d->unknown) engine_lane_depth(e, p->number, d->group, now, &pending, &processing);
    if (processing > pending) processing = pending;
    d->pending += pending;
    d->processing += processing;
    d->lanes_pending += pending > 0 ? 1 : 0;
    d->lanes_ready += pending > processing ? 1 : 0;
    d->rows = arena_room(d->arena, d->rows, d->count, &d->cap, sizeof d->rows[0]);
    d->rows[d->count++] =
        (struct depth_row){.name = arena_copy(d->arena, p->name), .pending = pending, .processing = processing};
}

static int by_depth_name(const void *a, const void *b)
{
    return slice_compare(((const struct depth_row *)a)->name, ((const struct depth_row *)b)->name);
}

static bool depth_visit(struct request *r, void *data, struct buf *out, struct engine *e, struct engine_now now)
{
    struct depth *d = data;
    struct lane_walker walker = {.queue = depth_queue, .lane = depth_lane, .ctx = d};
    bool begun = d->walk.begun, more = lane_walk_go(&d->walk, r, e, now, &walker);
    if (begun || d->walk.begun) return more;
    buf_text(out, "{\"error\":\"Queue not found\"}");
    r->call.status = 404;
    return false;
}

static void depth_after(struct request *r, void *data)
{
    struct depth *d = data;
    struct buf *out = &r->out;
    uint64_t ready = d->pending - d->processing;
    if (r->call.status == 404) {
        answer_json(r, 404);
        return;
    }
    if (d->count > 1) qsort(d->rows, d->count, sizeof *d->rows, by_depth_name);
    field_text(out, "{\"queue\":", r->params[0]);
    field_text_or_null(out, ",\"group\":", d->wanted.len > 0 ? d->wanted : slice_make(NULL, 0));
    field_number(out, ",\"pending\":", d->pending);
    field_number(out, ",\"processing\":", d->processing);
    field_number(out, ",\"ready\":", ready);
    field_number(out, ",\"partitionsPending\":", d->lanes_pending);
    field_number(out, ",\"partitionsReady\":", d->lanes_ready);
    field_bool(out, ",\"conflation\":", d->conflates);
    field_number(out, ",\"effectivePending\":", d->conflates ? d->lanes_pending : d->pending);
    field_number(out, ",\"effectiveReady\":", d->conflates ? d->lanes_ready : ready);
    buf_text(out, ",\"partitions\":[");
    for (uint32_t i = 0; i < d->count; i++) {
        const struct depth_row *row = &d->rows[i];
        field_text(out, i > 0 ? ",{\"partition\":" : "{\"partition\":", row->name);
        field_number(out, ",\"pending\":", row->pending);
        field_number(out, ",\"processing\":", row->processing);
        field_number(out, ",\"ready\":", row->pending - row->processing);
        buf_byte(out, '}');
    }
    buf_text(out, d->walk.partial ? "],\"partial\":true}" : "]}");
    answer_json(r, 200);
}

void route_queue_depth(struct request *r)
{
    struct depth *d = arena_zero(request_arena(r), sizeof *d);
    query_text(r, "group", &d->wanted);
    d->arena = request_arena(r);
    d->walk.queue = r->params[0];
    walk_foreseen(r, &d->walk, FORESEEN_LANES);
    visits_then(r, depth_visit, d, depth_after);
}
