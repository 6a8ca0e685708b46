/* The broker at a glance.
 *
 * GET /api/v1/resources/overview              {"queues","partitions","namespaces","tasks","messages":{...},"lag":{...},"timestamp","statsAge":0}
 * GET /api/v1/resources/namespaces, .../tasks {"namespaces":[{"namespace","queues","partitions","messages":{"total","pending"}}]}
 * GET /api/v1/resources/queues/:queue/sizes   {"queue","partitions":{name: retained bytes}}; 404 {"error":"Queue not found"}
 * GET /api/v1/status                          ?from=&to=&queue=&namespace=&task=: the figures of now; no history is kept, so throughput is empty
 * GET /api/v1/status/analytics                one data point: now
 *
 * Counts are by the rules of the queue listing: pending excludes what is leased. Times of lag are whole seconds, averages are over the queues
 * that lag. All are counted lane by lane in visits (visit.h): figures of many lanes are not of one moment; "partial":true is added when a
 * call ended before the last lane. A visit costs about 0.5 us a lane. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/isotime.h"
#include "http/answer.h"
#include "http/render.h"
#include "http/route.h"
#include "http/visit.h"

#define HOUR_US INT64_C(3600000000)

/* ---- sums by queue -------------------------------------------------------------------------------------------------- */

struct queue_sum {
    struct slice name_space, task;
    struct lane_counts n;
    uint64_t partitions, leases, leased_lanes, dead_letters;
    int64_t oldest_us; /* of what is not consumed; 0 = none */
};

struct sums {
    struct lane_walk walk;
    struct slice name_space, task; /* filters */
    struct arena *arena;
    struct queue_sum *rows;
    uint32_t count, cap;
    int64_t from_us, to_us, now_us;
    bool by_task;
};

static struct queue_sum *sums_row(struct sums *s, const struct queue_view *q)
{
    s->rows = arena_room(s->arena, s->rows, s->count, &s->cap, sizeof s->rows[0]);
    struct queue_sum *row = &s->rows[s->count++];
    *row = (struct queue_sum){.name_space = arena_copy(s->arena, q->options->name_space),
                              .task = arena_copy(s->arena, q->options->task),
                              .partitions = q->partition_count,
                              .dead_letters = q->dead_letters};
    return row;
}

static bool label_fits(struct slice wanted, struct slice label)
{
    return wanted.len == 0 || slice_equal(wanted, label);
}

static bool queue_fits(const struct sums *s, const struct queue_view *q)
{
    return label_fits(s->name_space, q->options->name_space) && label_fits(s->task, q->options->task);
}

static bool sum_queue(void *ctx, struct engine *e, const struct queue_view *q)
{
    struct sums *s = ctx;
    (void)e;
    if (!queue_fits(s, q)) return false;
    sums_row(s, q);
    return true;
}

static void sum_lane(void *ctx, struct engine *e, struct engine_now now, const struct queue_view *q,
                     const struct lane_view *lane)
{
    struct sums *s = ctx;
    struct lane_counts n;
    int64_t oldest_us;
    uint32_t leases;
    (void)q;
    struct queue_sum *row = &s->rows[s->count - 1];
    engine_lane_standing(e, lane->number, now, &n, &oldest_us, &leases);
    row->n.total += n.total;
    row->n.pending += n.pending;
    row->n.processing += n.processing;
    row->leases += leases;
    row->leased_lanes += leases > 0 ? 1 : 0;
    if (oldest_us != 0 && (row->oldest_us == 0 || oldest_us < row->oldest_us)) row->oldest_us = oldest_us;
}

static bool sums_visit(struct request *r, void *data, struct buf *out, struct engine *e, struct engine_now now)
{
    struct sums *s = data;
    struct lane_walker walker = {.queue = sum_queue, .lane = sum_lane, .ctx = s};
    (void)out;
    s->now_us = now.wall_us;
    return lane_walk_go(&s->walk, r, e, now, &walker);
}

static struct sums *sums_new(struct request *r)
{
    struct sums *s = arena_zero(request_arena(r), sizeof *s);
    s->arena = request_arena(r);
    walk_foreseen(r, &s->walk, FORESEEN_APPENDS);
    return s;
}

/* Of all queues; `pending` without what is leased. */
static struct queue_sum sums_all(const struct sums *s)
{
    struct queue_sum all = {0};
    for (uint32_t i = 0; i < s->count; i++) {
        const struct queue_sum *row = &s->rows[i];
        all.n.total += row->n.total;
        all.n.pending += row->n.pending - row->n.processing;
        all.n.processing += row->n.processing;
        all.n.dead_letters += row->dead_letters;
        all.partitions += row->partitions;
        all.leases += row->leases;
        all.leased_lanes += row->leased_lanes;
        uint64_t open = row->n.pending + row->dead_letters;
        all.n.completed += row->n.total > open ? row->n.total - open : 0;
    }
    return all;
}

static void messages_render(struct buf *out, const char *key, const struct lane_counts *n)
{
    buf_text(out, key);
    field_number(out, "{\"total\":", n->total);
    field_number(out, ",\"pending\":", n->pending);
    field_number(out, ",\"processing\":", n->processing);
    field_number(out, ",\"completed\":", n->completed);
    field_number(out, ",\"failed\":0,\"deadLetter\":", n->dead_letters);
    buf_byte(out, '}');
}

static void sums_end(struct request *r, const struct sums *s)
{
    buf_text(&r->out, s->walk.partial ? ",\"partial\":true}" : "}");
    answer_json(r, 200);
}

/* ---- labels --------------------------------------------------------------------------------------------------------- */

static int by_name_space(const void *a, const void *b)
{
    return slice_compare(((const struct queue_sum *)a)->name_space, ((const struct queue_sum *)b)->name_space);
}

static int by_task(const void *a, const void *b)
{
    return slice_compare(((const struct queue_sum *)a)->task, ((const struct queue_sum *)b)->task);
}

static void sums_sort(struct sums *s)
{
    if (s->count > 1) qsort(s->rows, s->count, sizeof *s->rows, s->by_task ? by_task : by_name_space);
}

static struct slice label_of(const struct sums *s, uint32_t i)
{
    return s->by_task ? s->rows[i].task : s->rows[i].name_space;
}

/* Non-empty labels. */
static uint64_t labels_count(struct sums *s, bool tasks)
{
    uint64_t count = 0;
    s->by_task = tasks;
    sums_sort(s);
    for (uint32_t i = 0; i < s->count; i++) {
        struct slice label = label_of(s, i);
        count += label.len > 0 && (i == 0 || !slice_equal(label, label_of(s, i - 1)));
    }
    return count;
}

static void label_row(struct buf *out, struct slice label, bool task, uint64_t queues, const struct queue_sum *sum)
{
    field_text(out, task ? "{\"task\":" : "{\"namespace\":", label);
    field_number(out, ",\"queues\":", queues);
    field_number(out, ",\"partitions\":", sum->partitions);
    field_number(out, ",\"messages\":{\"total\":", sum->n.total);
    field_number(out, ",\"pending\":", sum->n.pending);
    buf_text(out, "}}");
}

static void labels_after(struct request *r, void *data)
{
    struct sums *s = data;
    struct buf *out = &r->out;
    bool first = true;
    sums_sort(s);
    buf_text(out, s->by_task ? "{\"tasks\":[" : "{\"namespaces\":[");
    for (uint32_t i = 0, end; i < s->count; i = end) {
        struct slice label = label_of(s, i);
        struct queue_sum sum = {0};
        for (end = i; end < s->count && slice_equal(label, label_of(s, end)); end++) {
            sum.partitions += s->rows[end].partitions;
            sum.n.total += s->rows[end].n.total;
            sum.n.pending += s->rows[end].n.pending - s->rows[end].n.processing;
        }
        if (label.len == 0) continue;
        if (!first) buf_byte(out, ',');
        first = false;
        label_row(out, label, s->by_task, end - i, &sum);
    }
    buf_byte(out, ']');
    sums_end(r, s);
}

void route_namespaces(struct request *r)
{
    visits_then(r, sums_visit, sums_new(r), labels_after);
}

void route_tasks(struct request *r)
{
    struct sums *s = sums_new(r);
    s->by_task = true;
    visits_then(r, sums_visit, s, labels_after);
}

/* ---- overview ------------------------------------------------------------------------------------------------------- */

static void lag_render(struct buf *out, const struct sums *s)
{
    uint64_t lagging = 0, seconds = 0, seconds_max = 0, messages = 0, messages_max = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        const struct queue_sum *row = &s->rows[i];
        uint64_t age = age_seconds(row->oldest_us, s->now_us);
        if (row->n.pending == 0) continue;
        lagging++;
        seconds += age;
        messages += row->n.pending;
        if (age > seconds_max) seconds_max = age;
        if (row->n.pending > messages_max) messages_max = row->n.pending;
    }
    if (lagging == 0) lagging = 1;
    field_number(out, ",\"lag\":{\"time\":{\"avg\":", seconds / lagging);
    field_number(out, ",\"median\":0,\"min\":0,\"max\":", seconds_max);
    field_number(out, "},\"offset\":{\"avg\":", messages / lagging);
    field_number(out, ",\"median\":0,\"min\":0,\"max\":", messages_max);
    buf_text(out, "}}");
}

static void overview_after(struct request *r, void *data)
{
    struct sums *s = data;
    struct queue_sum all = sums_all(s);
    struct buf *out = &r->out;
    field_number(out, "{\"queues\":", s->count);
    field_number(out, ",\"partitions\":", all.partitions);
    field_number(out, ",\"namespaces\":", labels_count(s, false));
    field_number(out, ",\"tasks\":", labels_count(s, true));
    messages_render(out, ",\"messages\":", &all.n);
    lag_render(out, s);
    field_time_ms(out, ",\"timestamp\":", s->now_us);
    buf_text(out, ",\"statsAge\":0");
    sums_end(r, s);
}

void route_overview(struct request *r)
{
    visits_then(r, sums_visit, sums_new(r), overview_after);
}

/* ---- status --------------------------------------------------------------------------------------------------------- */

static uint32_t bucket_minutes(int64_t window_us)
{
    static const struct {
        int64_t hours;
        uint32_t minutes;
    } steps[] = {{1, 1}, {6, 5}, {24, 15}, {7 * 24, 60}};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        if (window_us <= steps[i].hours * HOUR_US) return steps[i].minutes;
    }
    return 360;
}

static void status_after(struct request *r, void *data)
{
    struct sums *s = data;
    struct queue_sum all = sums_all(s);
    struct buf *out = &r->out;
    uint64_t active = 0, dead_queues = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        active += s->rows[i].n.pending > 0;
        dead_queues += s->rows[i].dead_letters > 0;
    }
    field_time_ms(out, "{\"timeRange\":{\"from\":", s->from_us);
    field_time_ms(out, ",\"to\":", s->to_us);
    field_number(out, "},\"bucketMinutes\":", bucket_minutes(s->to_us - s->from_us));
    field_number(out, ",\"pointCount\":0,\"throughput\":[],\"queues\":{\"total\":", s->count);
    field_number(out, ",\"active\":", active);
    field_number(out, ",\"partitions\":", all.partitions);
    messages_render(out, "},\"messages\":", &all.n);
    field_number(out, ",\"leases\":{\"active\":", all.leases);
    field_number(out, ",\"partitionsWithLeases\":", all.leased_lanes);
    field_number(out, "},\"deadLetterQueue\":{\"totalMessages\":", all.n.dead_letters);
    field_number(out, ",\"affectedQueues\":", dead_queues);
    buf_text(out, "},\"workers\":[],\"errors\":{},\"statsAge\":0,\"engine\":\"raft\"");
    sums_end(r, s);
}

/* The contract has 500 for a bound that is no time. */
static bool bound_read(struct request *r, const char *name, int64_t *us)
{
    struct slice text = {0};
    if (!query_text(r, name, &text) || isotime_parse_us(text, us)) return true;
    answer_error(r, 500, NULL, "from and to: ISO times are required");
    return false;
}

void route_status_view(struct request *r)
{
    struct sums *s = sums_new(r);
    s->to_us = clock_wall_us();
    if (!bound_read(r, "to", &s->to_us)) return;
    s->from_us = s->to_us - HOUR_US;
    if (!bound_read(r, "from", &s->from_us)) return;
    query_text(r, "queue", &s->walk.queue);
    query_text(r, "namespace", &s->name_space);
    query_text(r, "task", &s->task);
    visits_then(r, sums_visit, s, status_after);
}

/* ---- analytics ------------------------------------------------------------------------------------------------------ */

struct analytics {
    struct lane_walk walk;
    uint64_t messages;
};

static bool analytics_queue(void *ctx, struct engine *e, const struct queue_view *q)
{
    struct analytics *a = ctx;
    (void)e;
    a->messages += q->retained_messages;
    return true;
}

static bool analytics_visit(struct request *r, void *data, struct buf *out, struct engine *e, struct engine_now now)
{
    struct analytics *a = data;
    struct lane_walker walker = {.queue = analytics_queue, .ctx = a};
    if (lane_walk_go(&a->walk, r, e, now, &walker)) return true;
    field_time_ms(out, "{\"dataPoints\":[{\"timestamp\":", now.wall_us);
    field_number(out, ",\"messages\":", a->messages);
    field_time_ms(out, "}],\"interval\":\"hour\",\"from\":", now.wall_us - 24 * HOUR_US);
    field_time_ms(out, ",\"to\":", now.wall_us);
    buf_byte(out, '}');
    return false;
}

void route_status_analytics(struct request *r)
{
    visits_answer(r, analytics_visit, arena_zero(request_arena(r), sizeof(struct analytics)));
}

/* ---- sizes ---------------------------------------------------------------------------------------------------------- */

struct sizes {
    struct lane_walk walk;
    struct buf *out; /* of a visit */
    uint64_t rows;
};

static void sizes_lane(void *ctx, struct engine *e, struct engine_now now, const struct queue_view *q,
                       const struct lane_view *lane)
{
    struct sizes *s = ctx;
    (void)e;
    (void)now;
    (void)q;
    field_text(s->out, s->rows++ > 0 ? "," : "", lane->name);
    field_number(s->out, ":", lane->retained_bytes);
}

static bool sizes_visit(struct request *r, void *data, struct buf *out, struct engine *e, struct engine_now now)
{
    struct sizes *s = data;
    struct lane_walker walker = {.lane = sizes_lane, .ctx = s};
    struct queue_view q;
    if (!s->walk.begun) {
        if (!engine_queue_get(e, r->tenant, r->params[0], &q)) {
            buf_text(out, "{\"error\":\"Queue not found\"}");
            r->call.status = 404;
            return false;
        }
        field_text(out, "{\"queue\":", q.name);
        buf_text(out, ",\"partitions\":{");
    }
    s->out = out;
    if (lane_walk_go(&s->walk, r, e, now, &walker)) return true;
    buf_text(out, s->walk.partial ? "},\"partial\":true}" : "}}");
    return false;
}

void route_queue_sizes(struct request *r)
{
    struct sizes *s = arena_zero(request_arena(r), sizeof *s);
    s->walk.queue = r->params[0];
    walk_foreseen(r, &s->walk, FORESEEN_LANES);
    visits_answer(r, sizes_visit, s);
}
