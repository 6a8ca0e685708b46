/* Looking at consumer groups. (What is done to them: route_group.c.)
 *
 * GET /api/v1/consumer-groups                             an array, one row a (group, queue) with a cursor, by group, then queue
 * GET /api/v1/consumer-groups/:group                      {queue: {"conflation","kind","partitions":[...]}}; 404 without a cursor
 * GET /api/v1/consumer-groups/lagging?minLagSeconds=3600  an array, one row a cursor that is more seconds behind, the largest lag first
 *
 * Lag in messages is what is not acked, lag in time the age of the oldest such message. All three look at cursors lane by lane in visits
 * (visit.h), about 0.3 us a cursor; one that lags and left memory costs a read of the store. Bounds: GROUP_ROWS_MAX lanes of a group and
 * LAGGING_ROWS_MAX rows; what was left out is told by "partial":true in the rows (of the second in the queue's object). */
#include <stdlib.h>

#include "base/clock.h"
#include "http/answer.h"
#include "http/render.h"
#include "http/route.h"
#include "http/visit.h"

enum { GROUP_ROWS_MAX = 20000, LAGGING_ROWS_MAX = 10000, LAGGING_SECONDS_DEFAULT = 3600, STATE_LAGGING_SECONDS = 300 };

/* ---- list ----------------------------------------------------------------------------------------------------------- */

struct group_row {
    uint32_t number;
    struct slice name, queue;
    uint64_t cursors, lagging, lag;
    int64_t oldest_us, from_us;
    uint8_t mode;
    bool consumed, conflates, queue_mode;
};

struct groups {
    struct lane_walk walk;
    struct arena *arena;
    struct group_row *rows;
    uint32_t count, cap;
    uint32_t *table; /* 1 + index by number of the group, open addressing */
    uint32_t table_size;
    int64_t now_us;
    const struct queue_view *queue; /* of the lane being looked at */
    struct engine *engine;
};

static void groups_grow(struct groups *s)
{
    uint32_t cap = s->cap == 0 ? 16 : s->cap * 2, size = cap * 2;
    struct group_row *rows = arena_get(s->arena, cap * sizeof *rows);
    if (s->count > 0) memcpy(rows, s->rows, s->count * sizeof *rows);
    s->rows = rows;
    s->cap = cap;
    s->table_size = size;
    s->table = arena_zero(s->arena, size * sizeof *s->table);
    for (uint32_t i = 0; i < s->count; i++) {
        uint32_t at = rows[i].number * 2654435761U % size;
        while (s->table[at] != 0) at = (at + 1) % size;
        s->table[at] = i + 1;
    }
}

/* Of the group; made when it is met first. */
static struct group_row *groups_row(struct groups *s, uint32_t number)
{
    struct group_view g;
    bool registered;
    if (s->count == s->cap) groups_grow(s);
    uint32_t at = number * 2654435761U % s->table_size;
    for (; s->table[at] != 0; at = (at + 1) % s->table_size) {
        if (s->rows[s->table[at] - 1].number == number) return &s->rows[s->table[at] - 1];
    }
    must(engine_group_get(s->engine, number, &g));
    struct group_row *row = &s->rows[s->count];
    *row = (struct group_row){.number = number,
                              .name = arena_copy(s->arena, g.name),
                              .queue = arena_copy(s->arena, s->queue->name),
                              .conflates = g.conflates,
                              .queue_mode = slice_is(g.name, QUEUE_MODE_GROUP)};
    engine_group_subscription(s->engine, number, &row->mode, &row->from_us, &registered);
    s->table[at] = ++s->count;
    return row;
}

static void groups_cursor(void *ctx, const struct cursor_view *c)
{
    struct groups *s = ctx;
    struct group_row *row = groups_row(s, c->group);
    row->cursors++;
    row->lagging += c->offset_lag > 0 ? 1 : 0;
    row->lag += c->offset_lag;
    row->consumed |= c->committed >= 0;
    if (c->oldest_us != 0 && (row->oldest_us == 0 || c->oldest_us < row->oldest_us)) row->oldest_us = c->oldest_us;
}

static void groups_lane(void *ctx, struct engine *e, struct engine_now now, const struct queue_view *q,
                        const struct lane_view *lane)
{
    struct groups *s = ctx;
    s->queue = q;
    engine_lane_cursors(e, lane->number, now, groups_cursor, s);
}

static bool groups_visit(struct request *r, void *data, struct buf *out, struct engine *e, struct engine_now now)
{
    struct groups *s = data;
    struct lane_walker walker = {.lane = groups_lane, .ctx = s};
    (void)out;
    s->engine = e;
    s->now_us = now.wall_us;
    return lane_walk_go(&s->walk, r, e, now, &walker);
}

static int row_compare(const void *x, const void *y)
{
    const struct group_row *a = x, *b = y;
    int order = slice_compare(a->name, b->name);
    return order != 0 ? order : slice_compare(a->queue, b->queue);
}

static void subscription_render(struct buf *out, const struct group_row *row)
{
    static const char *const texts[] = {
        [SUBSCRIBE_ALL] = "\"all\"", [SUBSCRIBE_NEW] = "\"new\"", [SUBSCRIBE_FROM] = "\"timestamp\""};
    buf_printf(out, ",\"subscriptionMode\":%s,\"subscriptionTimestamp\":", row->queue_mode ? "null" : texts[row->mode]);
    if (row->queue_mode)
        buf_text(out, "null");
    else
        render_time_us(out, row->mode == SUBSCRIBE_ALL ? 0 : row->from_us);
    field_time_us(out, ",\"subscriptionCreatedAt\":", row->mode == SUBSCRIBE_NEW && !row->queue_mode ? row->from_us : 0);
}

static void group_row_render(struct buf *out, const struct groups *s, const struct group_row *row)
{
    uint64_t age = age_seconds(row->oldest_us, s->now_us);
    const char *state = age > STATE_LAGGING_SECONDS ? "Lagging" : row->consumed ? "Stable" : "Dead";
    field_text(out, "{\"name\":", row->name);
    field_text(out, ",\"topics\":[", row->queue);
    field_text(out, "],\"queueName\":", row->queue);
    field_number(out, ",\"members\":", row->cursors);
    field_number(out, ",\"partitionCursors\":", row->cursors);
    field_number(out, ",\"partitionsWithLag\":", row->lagging);
    field_number(out, ",\"totalLag\":", row->lag);
    field_number(out, ",\"maxTimeLag\":", age);
    buf_printf(out, ",\"state\":\"%s\",\"storage\":\"segments\",\"kind\":\"queen\"", state);
    subscription_render(out, row);
    field_bool(out, ",\"conflation\":", row->conflates);
    buf_text(out, s->walk.partial ? ",\"partial\":true}" : "}");
}

static void groups_after(struct request *r, void *data)
{
    struct groups *s = data;
    if (s->count > 1) qsort(s->rows, s->count, sizeof *s->rows, row_compare);
    buf_byte(&r->out, '[');
    for (uint32_t i = 0; i < s->count; i++) {
        if (i > 0) buf_byte(&r->out, ',');
        group_row_render(&r->out, s, &s->rows[i]);
    }
    buf_byte(&r->out, ']');
    answer_json(r, 200);
}

void route_group_list(struct request *r)
{
    struct groups *s = arena_zero(request_arena(r), sizeof *s);
    s->arena = request_arena(r);
    walk_foreseen(r, &s->walk, FORESEEN_APPENDS);
    visits_then(r, groups_visit, s, groups_after);
}

/* ---- one group ------------------------------------------------------------------------------------------------------ */

struct cursor_row {
    struct slice queue, partition;
    struct cursor_view c;
    bool conflates;
};

struct group_cursors {
    struct lane_walk walk;
    struct slice group;
    uint32_t in_queue; /* number of the group in the queue the walk is in */
    struct slice queue;
    bool conflates, full;
    struct arena *arena;
    struct cursor_row *rows;
    uint32_t count, cap;
    int64_t now_us;
};

static bool detail_queue(void *ctx, struct engine *e, const struct queue_view *q)
{
    struct group_cursors *s = ctx;
    struct group_view g;
    s->in_queue = engine_group_find(e, q->tenant, q->name, s->group);
    if (!engine_group_get(e, s->in_queue, &g) || g.cursors == 0) return false;
    s->queue = arena_copy(s->arena, q->name);
    s->conflates = g.conflates;
    return true;
}

static void detail_lane(void *ctx, struct engine *e, struct engine_now now, const struct queue_view *q,
                        const struct lane_view *lane)
{
    struct group_cursors *s = ctx;
    struct cursor_view c;
    (void)q;
    if (!engine_cursor_get(e, lane->number, s->in_queue, now, &c)) return;
    if (s->count == GROUP_ROWS_MAX) {
        s->full = true;
        return;
    }
    s->rows = arena_room(s->arena, s->rows, s->count, &s->cap, sizeof s->rows[0]);
    s->rows[s->count++] = (struct cursor_row){
        .queue = s->queue, .partition = arena_copy(s->arena, lane->name), .c = c, .conflates = s->conflates};
}

static bool detail_visit(struct request *r, void *data, struct buf *out, struct engine *e, struct engine_now now)
{
    struct group_cursors *s = data;
    struct lane_walker walker = {.queue = detail_queue, .lane = detail_lane, .ctx = s};
    (void)out;
    s->now_us = now.wall_us;
    return lane_walk_go(&s->walk, r, e, now, &walker);
}

static int cursor_compare(const void *x, const void *y)
{
    const struct cursor_row *a = x, *b = y;
    int order = slice_compare(a->queue, b->queue);
    return order != 0 ? order : slice_compare(a->partition, b->partition);
}

static void worker_render(struct buf *out, const char *key, const struct cursor_view *c)
{
    buf_text(out, key);
    if (c->leased)
        render_uuid(out, c->lease);
    else
        buf_text(out, "null");
}

static void cursor_row_render(struct buf *out, const struct cursor_row *row, int64_t now_us)
{
    field_text(out, "{\"partition\":", row->partition);
    worker_render(out, ",\"workerId\":", &row->c);
    field_signed(out, ",\"lastConsumedAt\":null,\"totalConsumed\":", row->c.committed + 1);
    field_number(out, ",\"offsetLag\":", row->c.offset_lag);
    field_number(out, ",\"timeLagSeconds\":", age_seconds(row->c.oldest_us, now_us));
    field_bool(out, ",\"leaseActive\":", row->c.leased);
    buf_byte(out, '}');
}

static void detail_after(struct request *r, void *data)
{
    struct group_cursors *s = data;
    struct buf *out = &r->out;
    if (s->count == 0) {
        answer_error(r, 404, NULL, "Consumer group not found");
        return;
    }
    qsort(s->rows, s->count, sizeof *s->rows, cursor_compare);
    const char *tail = s->full || s->walk.partial ? "],\"partial\":true}" : "]}";
    for (uint32_t i = 0; i < s->count; i++) {
        const struct cursor_row *row = &s->rows[i];
        bool opens = i == 0 || !slice_equal(row->queue, row[-1].queue);
        if (opens && i > 0) buf_text(out, tail);
        if (opens) {
            field_text(out, i == 0 ? "{" : ",", row->queue);
            field_bool(out, ":{\"conflation\":", row->conflates);
            buf_text(out, ",\"kind\":\"queen\",\"partitions\":[");
        }
        if (!opens) buf_byte(out, ',');
        cursor_row_render(out, row, s->now_us);
    }
    buf_text(out, tail);
    buf_byte(out, '}');
    answer_json(r, 200);
}

void route_group_detail(struct request *r)
{
    struct group_cursors *s = arena_zero(request_arena(r), sizeof *s);
    s->arena = request_arena(r);
    s->group = r->params[0];
    walk_foreseen(r, &s->walk, FORESEEN_APPENDS);
    visits_then(r, detail_visit, s, detail_after);
}

/* ---- lagging -------------------------------------------------------------------------------------------------------- */

struct lagging {
    struct lane_walk walk;
    int64_t lag_us;
    struct arena *arena;
    struct cursor_view *rows; /* at 2 * LAGGING_ROWS_MAX cut to the half that lags most */
    uint32_t count, cap, shown;
    int64_t now_us;
    bool full, sorted, any;
};

/* Oldest first; of the same age in order of their numbers. */
static int lag_compare(const void *x, const void *y)
{
    const struct cursor_view *a = x, *b = y;
    if (a->oldest_us != b->oldest_us) return a->oldest_us < b->oldest_us ? -1 : 1;
    if (a->partition != b->partition) return a->partition < b->partition ? -1 : 1;
    return a->group < b->group ? -1 : a->group > b->group;
}

static void lagging_sort(struct lagging *s)
{
    if (s->count > 1) qsort(s->rows, s->count, sizeof *s->rows, lag_compare);
    if (s->count <= LAGGING_ROWS_MAX) return;
    s->count = LAGGING_ROWS_MAX;
    s->full = true;
}

static void lagging_cursor(void *ctx, const struct cursor_view *c)
{
    struct lagging *s = ctx;
    if (c->oldest_us == 0 || s->now_us - c->oldest_us <= s->lag_us) return;
    if (s->count == 2 * LAGGING_ROWS_MAX) lagging_sort(s);
    if (s->count == s->cap) {
        uint32_t cap = s->cap == 0 ? 16 : s->cap * 2 > 2 * LAGGING_ROWS_MAX ? 2 * LAGGING_ROWS_MAX : s->cap * 2;
        struct cursor_view *rows = arena_get(s->arena, cap * sizeof *rows);
        if (s->count > 0) memcpy(rows, s->rows, s->count * sizeof *rows);
        s->rows = rows;
        s->cap = cap;
    }
    s->rows[s->count++] = *c;
}

static void lagging_lane(void *ctx, struct engine *e, struct engine_now now, const struct queue_view *q,
                         const struct lane_view *lane)
{
    (void)q;
    engine_lane_cursors(e, lane->number, now, lagging_cursor, ctx);
}

/* Nothing when the queue was deleted meanwhile. */
static void lagging_row(struct buf *out, struct request *r, struct lagging *s, struct engine *e, const struct cursor_view *c)
{
    struct group_view g;
    struct lane_view lane;
    struct queue_view q;
    uint64_t age = age_seconds(c->oldest_us, s->now_us), hundredths = age * 100 / 3600;
    if (!engine_lane_get(e, r->tenant, c->partition, &lane) || !engine_group_get(e, c->group, &g) ||
        !engine_queue_next(e, r->tenant, lane.queue - 1, &q)) {
        return;
    }
    field_text(out, s->any ? ",{\"consumer_group\":" : "{\"consumer_group\":", g.name);
    s->any = true;
    field_text(out, ",\"queue_name\":", q.name);
    field_text(out, ",\"partition_name\":", lane.name);
    buf_text(out, ",\"partition_id\":");
    render_uuid(out, engine_lane_id(e, &lane));
    worker_render(out, ",\"worker_id\":", c);
    field_number(out, ",\"kind\":\"queen\",\"offset_lag\":", c->offset_lag);
    field_number(out, ",\"time_lag_seconds\":", age);
    buf_printf(out, ",\"lag_hours\":%llu.%02llu", (unsigned long long)(hundredths / 100),
               (unsigned long long)(hundredths % 100));
    field_time_ms(out, ",\"oldest_unconsumed_at\":", c->oldest_us);
    buf_text(out, ",\"last_consumed_at\":null");
    buf_text(out, s->full || s->walk.partial ? ",\"partial\":true}" : "}");
}

static bool lagging_visit(struct request *r, void *data, struct buf *out, struct engine *e, struct engine_now now)
{
    struct lagging *s = data;
    struct lane_walker walker = {.lane = lagging_lane, .ctx = s};
    if (!s->sorted) {
        s->now_us = now.wall_us;
        if (lane_walk_go(&s->walk, r, e, now, &walker)) return true;
        lagging_sort(s);
        s->sorted = true;
        buf_byte(out, '[');
    }
    int64_t began_us = clock_mono_us();
    while (s->shown < s->count && !visit_over(began_us)) lagging_row(out, r, s, e, &s->rows[s->shown++]);
    if (s->shown < s->count) return true;
    buf_byte(out, ']');
    return false;
}

void route_group_lagging(struct request *r)
{
    struct lagging *s = arena_zero(request_arena(r), sizeof *s);
    int64_t seconds = LAGGING_SECONDS_DEFAULT;
    bool given;
    if (!query_int(r, "minLagSeconds", &seconds, &given)) return;
    if (seconds < 0) seconds = 0;
    s->lag_us = seconds > INT64_MAX / 2000000 ? INT64_MAX / 2 : seconds * 1000000;
    s->arena = request_arena(r);
    walk_foreseen(r, &s->walk, FORESEEN_APPENDS);
    visits_answer(r, lagging_visit, s);
}
