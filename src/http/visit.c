#include "http/visit.h"

#include "base/clock.h"
#include "http/answer.h"
#include "http/body_inner.h"
#include "http/name.h"
#include "http/render.h"

/* ---- reads ---------------------------------------------------------------------------------------------------------- */

struct visits {
    visit_run *visit;
    void *data;
    void (*after)(struct request *r, void *data); /* NULL: the text is the answer */
    bool more;
};

static void visit_read(struct call *c, struct engine *e, struct engine_now now)
{
    struct request *r = c->read_ctx;
    struct visits *v = r->route_data;
    v->more = v->visit(r, v->data, &c->answer, e, now);
}

static void visit_after(struct request *r)
{
    struct visits *v = r->route_data;
    if (!answer_outcome(r)) return;
    if (r->out.len == 0) { /* large answers change hands */
        struct buf spare = r->out;
        r->out = r->call.answer;
        r->call.answer = spare;
    } else {
        buf_slice(&r->out, buf_view(&r->call.answer));
    }
    buf_clear(&r->call.answer);
    if (v->more) {
        request_submit(r, r->http->config->pop_timeout_ms, visit_after);
    } else if (v->after != NULL) {
        v->after(r, v->data);
    } else {
        answer_json(r, r->call.status == 0 ? 200 : r->call.status);
    }
}

void visits_then(struct request *r, visit_run *visit, void *data, void (*after)(struct request *r, void *data))
{
    struct visits *v = arena_zero(request_arena(r), sizeof *v);
    v->visit = visit;
    v->data = data;
    v->after = after;
    r->route_data = v;
    r->call.kind = CALL_READ;
    r->call.read = visit_read;
    r->call.read_ctx = r;
    request_submit(r, r->http->config->pop_timeout_ms, visit_after);
}

void visits_answer(struct request *r, visit_run *visit, void *data)
{
    visits_then(r, visit, data, NULL);
}

bool visit_over(int64_t began_us)
{
    return clock_mono_us() - began_us >= VISIT_US;
}

/* ---- walks ---------------------------------------------------------------------------------------------------------- */

static bool walk_queue(struct lane_walk *w, struct uuid tenant, struct engine *e, struct queue_view *q)
{
    if (w->queue.len > 0) return !w->begun && engine_queue_get(e, tenant, w->queue, q);
    return engine_queue_next(e, tenant, w->at_queue, q);
}

/* One queue or lane further; false at the end. `inside`: among the lanes of the queue `q`. */
static bool walk_step(struct lane_walk *w, struct request *r, struct engine *e, struct engine_now now,
                      const struct lane_walker *each, struct queue_view *q, bool *inside)
{
    struct lane_view lane;
    if (*inside && engine_lane_next(e, q->number, w->at_lane, &lane)) {
        w->at_lane = lane.number;
        each->lane(each->ctx, e, now, q, &lane);
        return true;
    }
    if (!walk_queue(w, r->tenant, e, q)) return false;
    w->begun = true;
    w->at_queue = q->number;
    w->at_lane = 0;
    bool wanted = each->queue == NULL || each->queue(each->ctx, e, q);
    *inside = wanted && each->lane != NULL;
    return true;
}

bool lane_walk_go(struct lane_walk *w, struct request *r, struct engine *e, struct engine_now now,
                  const struct lane_walker *each)
{
    struct queue_view q = {0};
    int64_t began_us = clock_mono_us();
    if (!w->begun) w->began_us = began_us;
    /* The queue in which the last visit stopped, unless it is deleted by now. */
    bool inside = w->begun && !w->over && engine_queue_next(e, r->tenant, w->at_queue - 1, &q) && q.number == w->at_queue;
    inside = inside && w->inside;
    for (uint32_t n = 0; !w->over; n++, w->walked++) {
        bool late = w->begun && (w->walked >= LANES_WALKED_MAX || r->call.late || began_us - w->began_us > WALK_US_MAX);
        if (late) w->partial = w->over = true;
        if (late || n == VISIT_LANES || (w->foreseen > 0 && n >= w->foreseen) || (n % 8 == 7 && visit_over(began_us))) break;
        w->over = !walk_step(w, r, e, now, each, &q, &inside);
    }
    w->inside = inside;
    return !w->over;
}

/* What the next visit will look at, from the lane where the last one ended on; which queues the walker leaves out is not known here. */
void lane_walk_foresee(struct lane_walk *w, const struct request *r, struct engine *e, const struct engine_foreseen *f)
{
    struct lane_walk ahead = *w;
    struct queue_view q;
    uint32_t looked = 0;
    if (!f->warmed) w->foreseen = 0;
    if (w->over) return;
    bool inside = w->inside && engine_queue_next(e, r->tenant, w->at_queue - 1, &q) && q.number == w->at_queue, all = true;
    if (inside) looked = engine_lanes_foreseen(e, q.number, w->at_lane, VISIT_LANES, w->depth, w->us, &all, f);
    while (all && looked < VISIT_LANES && walk_queue(&ahead, r->tenant, e, &q)) {
        ahead.begun = true;
        ahead.at_queue = q.number;
        looked += 1 + engine_lanes_foreseen(e, q.number, 0, VISIT_LANES - looked, w->depth, w->us, &all, f);
    }
    if (!f->warmed) w->foreseen = looked;
}

static void walk_foresee(struct call *c, struct engine *e, struct engine_now now, const struct engine_foreseen *f)
{
    (void)now;
    lane_walk_foresee(c->foresee_ctx, c->read_ctx, e, f);
}

void walk_foreseen(struct request *r, struct lane_walk *w, enum foreseen_depth depth)
{
    w->depth = depth;
    r->call.foresee = walk_foresee;
    r->call.foresee_ctx = w;
}

/* ---- addresses ------------------------------------------------------------------------------------------------------ */

uint32_t lane_number_of_id(struct slice id)
{
    uint64_t number;
    struct uuid uuid;
    if (!body_partition_number(id, &number)) number = uuid_parse(id, &uuid) ? thing_number(uuid) : 0;
    return number > UINT32_MAX ? 0 : (uint32_t)number;
}

bool lane_of_id(struct engine *e, struct uuid tenant, struct slice id, struct lane_view *out)
{
    uint64_t number;
    struct uuid uuid;
    bool digits = body_partition_number(id, &number);
    if (!digits) {
        if (!uuid_parse(id, &uuid)) return false;
        number = thing_number(uuid);
    }
    if (number == 0 || number > UINT32_MAX || !engine_lane_get(e, tenant, (uint32_t)number, out)) return false;
    return digits || uuid_equal(uuid, engine_lane_id(e, out));
}

bool path_names_good(struct request *r, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        if (r->params[i].len == 0) {
            answer_error(r, 400, "bad_request", "a name in the path is empty");
            return false;
        }
        if (name_has_control(r->params[i])) {
            answer_error(r, 400, "bad_request", "a name in the path has a control character");
            return false;
        }
    }
    return true;
}

/* ---- pieces of answers ---------------------------------------------------------------------------------------------- */

void field_text(struct buf *out, const char *key, struct slice text)
{
    buf_text(out, key);
    render_text(out, text);
}

void field_number(struct buf *out, const char *key, uint64_t value)
{
    buf_text(out, key);
    buf_decimal(out, value);
}

void field_signed(struct buf *out, const char *key, int64_t value)
{
    buf_text(out, key);
    buf_signed(out, value);
}

void field_bool(struct buf *out, const char *key, bool value)
{
    buf_text(out, key);
    buf_text(out, value ? "true" : "false");
}

void field_time_us(struct buf *out, const char *key, int64_t wall_us)
{
    buf_text(out, key);
    render_time_us_or_null(out, wall_us);
}

void field_time_ms(struct buf *out, const char *key, int64_t wall_us)
{
    buf_text(out, key);
    if (wall_us == 0)
        buf_text(out, "null");
    else
        render_time_ms(out, wall_us);
}

void field_text_or_null(struct buf *out, const char *key, struct slice text)
{
    buf_text(out, key);
    if (text.at == NULL)
        buf_text(out, "null");
    else
        render_text(out, text);
}

void answer_unsuccessful(struct request *r, uint32_t status, const char *text)
{
    answer_error(r, status, NULL, "");
    buf_clear(&r->out);
    field_text(&r->out, "{\"success\":false,\"error\":", slice_of(text));
    buf_byte(&r->out, '}');
}

uint64_t age_seconds(int64_t from_us, int64_t to_us)
{
    return from_us == 0 || from_us >= to_us ? 0 : (uint64_t)(to_us - from_us) / 1000000;
}
