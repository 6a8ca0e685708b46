/* GET /api/v1/messages                                   what is stored, newest first
 *
 *   query   queue, partition, namespace, task (filters), status (pending, processing, completed, dead_letter), from (inclusive, default
 *           one hour ago), to (its whole minute included, default now), limit (200, 1..1000), offset (0)
 *   answer  200 {"messages":[...],"total": rows of this page,"pagination":{"limit","offset"},"mode":{...}}
 *   errors  400 bad_request for a time that is none, 400 text for a bad integer, 503
 *
 * GET /api/v1/messages/:partitionId/:transactionId       one of them; partitionId: digits or UUID; a transaction id may have slashes
 *
 *   answer  200 {...,"queueConfig","mode","consumerGroups":[{"name","committed","consumed","leaseExpiresAt"}]}: of several with the same
 *           id the first
 *   errors  404 {"error":"Message not found"}
 *
 * Both are read in visits (visit.h). A list first looks at the lanes of the filter, then merges them by time; it ends early after
 * MESSAGES_LOOKED_MAX messages (those skipped by `offset` or `status` count), and after 32 MiB of rows. A message is found by its id at
 * once for as long as the id is kept for deduplication, at least 15 minutes; older ones are looked for from the lane's beginning, as far as
 * FIND_BYTES_MAX of stored blocks. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/isotime.h"
#include "base/limits.h"
#include "http/answer.h"
#include "http/message_view.h"
#include "http/options.h"
#include "http/render.h"
#include "http/route.h"
#include "http/visit.h"

enum {
    LIST_LIMIT_DEFAULT = 200,
    LIST_LIMIT_MAX = 1000,
    MESSAGES_A_VISIT = 128,
    MESSAGES_LOOKED_MAX = 100000,
    FIND_BLOCKS_A_VISIT = 64,
    FIND_BYTES_A_VISIT = 4 << 20,
    FIND_BYTES_MAX = 256 << 20,
};
#define HOUR_US INT64_C(3600000000)
#define MINUTE_US INT64_C(60000000)
#define ID_KEPT_US INT64_C(900000000)

/* ---- list: which lanes ---------------------------------------------------------------------------------------------- */

/* A lane, and its newest message that was not looked at yet. */
struct lane_head {
    int64_t created_us;
    uint64_t offset;
    uint32_t lane;
};

struct list {
    struct slice queue, partition, name_space, task;
    int status; /* enum message_status; -1 = any, -2 = none that there is */
    int64_t from_us, to_us;
    uint64_t limit, offset;
    /* what was found so far */
    struct lane_walk walk;
    struct consume_modes modes;
    struct arena *arena;
    struct lane_head *heads; /* then a heap, newest first */
    uint32_t head_count, head_cap;
    struct lane_head taken[MESSAGES_A_VISIT]; /* newest of all; those from `shown` on are not in the answer yet */
    uint32_t taken_count, shown;
    bool merging, opened; /* opened: the answer has its beginning */
    uint64_t skip;        /* of `offset` */
    uint64_t looked, rows, bytes;
};

static void head_add(struct list *l, struct lane_head head)
{
    l->heads = arena_room(l->arena, l->heads, l->head_count, &l->head_cap, sizeof l->heads[0]);
    l->heads[l->head_count++] = head;
}

/* The newest message of the lane in the time asked for. */
static void lane_consider(struct list *l, struct engine *e, const struct lane_view *lane)
{
    struct delivery_piece piece;
    if (lane->tail_offset == lane->start_offset || lane->last_created_us < l->from_us) return;
    struct lane_head head = {.lane = lane->number, .created_us = lane->last_created_us, .offset = lane->tail_offset - 1};
    if (head.created_us >= l->to_us) {
        uint64_t end = engine_lane_offset_at(e, lane->number, l->to_us);
        if (end <= lane->start_offset || !engine_message_at(e, lane->number, end - 1, &piece)) return;
        head.offset = end - 1;
        head.created_us = piece.created_us;
        if (head.created_us < l->from_us) return;
    }
    head_add(l, head);
}

static bool label_fits(struct slice wanted, struct slice label)
{
    return wanted.len == 0 || slice_equal(wanted, label);
}

static bool queue_fits(const struct list *l, const struct queue_view *q)
{
    return label_fits(l->name_space, q->options->name_space) && label_fits(l->task, q->options->task);
}

static bool list_queue(void *ctx, struct engine *e, const struct queue_view *q)
{
    struct list *l = ctx;
    if (!queue_fits(l, q)) return false;
    modes_add(&l->modes, e, q->number);
    return true;
}

static void list_lane(void *ctx, struct engine *e, struct engine_now now, const struct queue_view *q,
                      const struct lane_view *lane)
{
    struct list *l = ctx;
    (void)now;
    (void)q;
    if (label_fits(l->partition, lane->name)) lane_consider(l, e, lane);
}

/* True: there are more lanes to look at. */
static bool lanes_look(struct request *r, struct list *l, struct engine *e, struct engine_now now)
{
    struct queue_view q;
    struct lane_view lane;
    if (l->queue.len > 0 && l->partition.len > 0) {
        if (!engine_queue_get(e, r->tenant, l->queue, &q) || !queue_fits(l, &q)) return false;
        modes_add(&l->modes, e, q.number);
        if (engine_lane_find(e, r->tenant, l->queue, l->partition, &lane)) lane_consider(l, e, &lane);
        return false;
    }
    struct lane_walker walker = {.queue = list_queue, .lane = list_lane, .ctx = l};
    l->walk.queue = l->queue;
    return lane_walk_go(&l->walk, r, e, now, &walker);
}

/* ---- list: newest first --------------------------------------------------------------------------------------------- */

static bool head_newer(const struct lane_head *a, const struct lane_head *b)
{
    if (a->created_us != b->created_us) return a->created_us > b->created_us;
    if (a->offset != b->offset) return a->offset > b->offset;
    return a->lane < b->lane;
}

static void head_sink(struct list *l, uint32_t at)
{
    for (;;) {
        uint32_t top = at, child = 2 * at + 1;
        for (uint32_t i = child; i < child + 2 && i < l->head_count; i++) {
            if (head_newer(&l->heads[i], &l->heads[top])) top = i;
        }
        if (top == at) return;
        struct lane_head moved = l->heads[at];
        l->heads[at] = l->heads[top];
        l->heads[top] = moved;
        at = top;
    }
}

/* The newest message of all; its lane goes on with the one before it. */
static struct lane_head head_take(struct list *l, struct request *r, struct engine *e)
{
    struct lane_head taken = l->heads[0], *head = &l->heads[0];
    struct lane_view lane;
    struct delivery_piece piece;
    bool more = head->offset > 0 && engine_lane_get(e, r->tenant, head->lane, &lane) && head->offset > lane.start_offset &&
                engine_message_at(e, head->lane, head->offset - 1, &piece) && piece.created_us >= l->from_us;
    if (more) {
        head->offset--;
        head->created_us = piece.created_us;
    } else {
        *head = l->heads[--l->head_count];
    }
    head_sink(l, 0);
    return taken;
}

/* ---- list: rows ----------------------------------------------------------------------------------------------------- */

struct row_view {
    struct queue_view queue;
    struct lane_view lane;
    struct delivery_piece piece;
    struct message_bytes bytes;
    const struct consumers *consumers;
    enum message_status status;
    uint32_t consumed;
    uint64_t batch_first;
};

static int64_t queue_mode_lease_us(const struct consumers *c)
{
    for (uint32_t i = 0; i < consumers_count(c); i++) {
        if (consumers_at(c, i)->queue_mode) return consumers_at(c, i)->lease_expires_us;
    }
    return 0;
}

static void path_render(struct buf *out, const char *key, const struct row_view *v)
{
    buf_text(out, key);
    buf_byte(out, '"');
    render_text_inside(out, v->queue.name);
    buf_byte(out, '/');
    render_text_inside(out, v->lane.name);
    buf_byte(out, '"');
}

static void place_fields(struct buf *out, struct engine *e, const struct row_view *v)
{
    field_text(out, ",\"queue\":", v->queue.name);
    field_text(out, ",\"partition\":", v->lane.name);
    buf_text(out, ",\"partitionId\":");
    render_uuid(out, engine_lane_id(e, &v->lane));
    path_render(out, ",\"queuePath\":", v);
    field_text(out, ",\"namespace\":", v->queue.options->name_space);
    field_text(out, ",\"task\":", v->queue.options->task);
    buf_printf(out, ",\"status\":\"%s\"", message_status_text[v->status]);
    field_bool(out, ",\"isEncrypted\":", v->bytes.item.flags & ITEM_ENCRYPTED);
}

static void row_render(struct buf *out, struct engine *e, const struct row_view *v)
{
    char room[UUID_TEXT];
    struct slice transaction = message_transaction(&v->bytes, room);
    struct hash128 hash = hash128(transaction, v->lane.number);
    buf_text(out, "{\"id\":");
    render_uuid(out, v->bytes.id);
    field_text(out, ",\"transactionId\":", transaction);
    buf_printf(out, ",\"txnHash\":\"%016llx%016llx\"", (unsigned long long)hash.high, (unsigned long long)hash.low);
    message_fields(out, &v->bytes);
    field_time_ms(out, ",\"createdAt\":", v->piece.created_us);
    field_number(out, ",\"offset\":", v->piece.first_offset);
    place_fields(out, e, v);
    buf_printf(out, ",\"queueStatus\":\"%s\"", message_status_text[v->status]);
    field_number(out, ",\"busStatus\":{\"consumedBy\":", v->consumed);
    field_number(out, ",\"totalGroups\":", v->consumers->named);
    field_signed(out, "},\"queuePriority\":", v->queue.options->numbers[OPTION_PRIORITY]);
    field_number(out, ",\"payloadAvailable\":true,\"segment\":{\"seq\":", v->batch_first);
    field_number(out, ",\"frameIdx\":", v->piece.first_offset - v->batch_first);
    field_time_ms(out, "},\"leaseExpiresAt\":", queue_mode_lease_us(v->consumers));
    buf_byte(out, '}');
}

struct list_visit {
    struct request *r;
    struct list *l;
    struct engine *e;
    struct engine_now now;
    struct buf *out;
    struct consumers consumers;
};

/* A row whose bytes cannot be read is left out; the log says where. PIECE_COMING, PIECE_LATER: it has to be looked at again. */
static enum piece_state head_render(struct list_visit *v, const struct lane_head *head, bool dead)
{
    struct list *l = v->l;
    struct row_view row = {.consumers = &v->consumers};
    if (!engine_lane_get(v->e, v->r->tenant, head->lane, &row.lane) ||
        !engine_queue_next(v->e, v->r->tenant, row.lane.queue - 1, &row.queue) ||
        !engine_message_at(v->e, head->lane, head->offset, &row.piece)) {
        return PIECE_HERE;
    }
    consumers_of(&v->consumers, v->e, v->now, &row.lane);
    row.status = message_status_of(&v->consumers, head->offset, dead, &row.consumed);
    if (l->status != -1 && l->status != (int)row.status) return PIECE_HERE;
    if (l->skip > 0) {
        l->skip--;
        return PIECE_HERE;
    }
    if (!engine_message_batch(v->e, head->lane, head->offset, &row.batch_first)) return PIECE_HERE;
    enum piece_state state = message_load(v->r, head->lane, &row.piece, &row.bytes);
    if (state != PIECE_HERE) return state;
    size_t before = v->out->len;
    if (l->rows++ > 0) buf_byte(v->out, ',');
    row_render(v->out, v->e, &row);
    l->bytes += v->out->len - before;
    message_release(v->r, &row.bytes);
    return PIECE_HERE;
}

static int place_order(const void *x, const void *y)
{
    const struct lane_place *a = x, *b = y;
    if (a->partition != b->partition) return a->partition < b->partition ? -1 : 1;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

static bool list_full(const struct list *l)
{
    return l->rows >= l->limit || l->bytes > POP_BYTES_MAX;
}

static void heads_take(struct list_visit *v)
{
    struct list *l = v->l;
    uint64_t wanted = l->status == -1 ? l->skip + l->limit - l->rows : MESSAGES_A_VISIT;
    int64_t began_us = clock_mono_us();
    l->taken_count = l->shown = 0;
    while (l->taken_count < MESSAGES_A_VISIT && l->taken_count < wanted && l->head_count > 0) {
        if (l->taken_count % 8 == 7 && visit_over(began_us)) break;
        l->taken[l->taken_count++] = head_take(l, v->r, v->e);
    }
    l->looked += l->taken_count;
}

/* The next messages in order: first taken, then looked up among the dead letters together, then shown. When some of their bytes are not
 * there yet, all that this run did but the taking is undone: true. */
static bool heads_show(struct list_visit *v)
{
    struct list *l = v->l;
    struct lane_place places[MESSAGES_A_VISIT];
    if (l->shown == l->taken_count) heads_take(v);
    const struct list before = *l;
    uint32_t count = l->taken_count - l->shown;
    bool coming = false;
    for (uint32_t i = 0; i < count; i++)
        places[i] = (struct lane_place){.partition = l->taken[l->shown + i].lane, .offset = l->taken[l->shown + i].offset};
    if (count > 1) qsort(places, count, sizeof places[0], place_order);
    engine_dead_letters_mark(v->e, places, count);
    for (; l->shown < l->taken_count && !list_full(l); l->shown++) {
        const struct lane_head *head = &l->taken[l->shown];
        struct lane_place key = {.partition = head->lane, .offset = head->offset};
        const struct lane_place *place = bsearch(&key, places, count, sizeof key, place_order);
        enum piece_state state = head_render(v, head, place->dead);
        if (state == PIECE_LATER) break;
        coming |= state == PIECE_COMING;
    }
    if (coming) *l = before;
    return coming;
}

static bool list_visit(struct request *r, void *data, struct buf *out, struct engine *e, struct engine_now now)
{
    struct list *l = data;
    if (!l->merging) {
        if (lanes_look(r, l, e, now)) return true;
        l->merging = true;
        for (uint32_t i = l->head_count / 2 + 1; i-- > 0;) head_sink(l, i);
        return true; /* what it looks at next is foreseen */
    }
    struct list_visit v = {.r = r, .l = l, .e = e, .now = now, .out = out};
    if (!l->opened) buf_text(out, "{\"messages\":[");
    bool coming = l->status != -2 && heads_show(&v);
    consumers_free(&v.consumers);
    if (coming) return true;
    l->opened = true;
    bool more = l->shown < l->taken_count || (l->head_count > 0 && l->looked < MESSAGES_LOOKED_MAX);
    if (l->status != -2 && !list_full(l) && more) return true;
    field_number(out, "],\"total\":", l->rows);
    return false;
}

/* The next ones that heads_take will take, but for those behind them in their lanes: places in the heap. */
static uint32_t heads_next(const struct list *l, uint32_t out[MESSAGES_A_VISIT])
{
    uint32_t open[MESSAGES_A_VISIT + 1], open_count = l->head_count > 0, count = 0;
    uint64_t wanted = l->status == -1 ? l->skip + l->limit - l->rows : MESSAGES_A_VISIT;
    open[0] = 0;
    while (open_count > 0 && count < wanted && count < MESSAGES_A_VISIT) {
        uint32_t newest = 0;
        for (uint32_t i = 1; i < open_count; i++) {
            if (head_newer(&l->heads[open[i]], &l->heads[open[newest]])) newest = i;
        }
        uint32_t at = out[count++] = open[newest];
        open[newest] = open[--open_count];
        for (uint32_t child = 2 * at + 1; child < 2 * at + 3 && child < l->head_count; child++) open[open_count++] = child;
    }
    return count;
}

static void list_foresee(struct call *c, struct engine *e, struct engine_now now, const struct engine_foreseen *f)
{
    enum { BEFORE = 32 };
    uint32_t heads[MESSAGES_A_VISIT], count;
    struct list *l = c->foresee_ctx;
    const struct request *r = c->read_ctx;
    l->walk.queue = l->queue;
    l->walk.depth = l->to_us <= now.wall_us ? FORESEEN_TIME : FORESEEN_LANES;
    l->walk.us = l->to_us;
    if (!l->merging && l->queue.len > 0 && l->partition.len > 0)
        engine_offset_foreseen(e, r->tenant, l->queue, l->partition, l->to_us, f);
    else if (!l->merging)
        lane_walk_foresee(&l->walk, r, e, f);
    for (uint32_t i = l->shown; l->merging && i < l->taken_count; i++)
        engine_messages_foreseen(e, l->taken[i].lane, l->taken[i].offset, 0, f);
    count = l->merging && l->shown == l->taken_count ? heads_next(l, heads) : 0;
    for (uint32_t i = 0; i < count; i++)
        engine_messages_foreseen(e, l->heads[heads[i]].lane, l->heads[heads[i]].offset, BEFORE, f);
}

static void list_after(struct request *r, void *data)
{
    const struct list *l = data;
    field_number(&r->out, ",\"pagination\":{\"limit\":", l->limit);
    field_number(&r->out, ",\"offset\":", l->offset);
    buf_text(&r->out, "},\"mode\":");
    modes_render(&r->out, &l->modes);
    buf_byte(&r->out, '}');
    answer_json(r, 200);
}

/* False: a 400 is set. */
static bool query_time(struct request *r, const char *name, int64_t *us, bool *given)
{
    struct slice text = {0};
    *given = query_text(r, name, &text);
    if (!*given || isotime_parse_us(text, us)) return true;
    answer_error(r, 400, "bad_request", "from and to: ISO times are required");
    return false;
}

static int status_of(struct slice text)
{
    for (int i = 0; i < MESSAGE_STATUSES; i++) {
        if (slice_is(text, message_status_text[i])) return i;
    }
    return -2;
}

void route_message_list(struct request *r)
{
    struct list *l = arena_zero(request_arena(r), sizeof *l);
    int64_t limit = LIST_LIMIT_DEFAULT, offset = 0, now_us = clock_wall_us();
    bool given;
    struct slice status = {0};
    if (!query_int(r, "limit", &limit, &given) || !query_int(r, "offset", &offset, &given)) return;
    l->limit = limit < 1 ? 1 : limit > LIST_LIMIT_MAX ? LIST_LIMIT_MAX : (uint64_t)limit;
    l->skip = l->offset = offset < 0 ? 0 : (uint64_t)offset;
    l->from_us = now_us - HOUR_US;
    l->to_us = now_us;
    if (!query_time(r, "from", &l->from_us, &given) || !query_time(r, "to", &l->to_us, &given)) return;
    l->to_us = l->to_us / MINUTE_US * MINUTE_US + MINUTE_US;
    query_text(r, "queue", &l->queue);
    query_text(r, "partition", &l->partition);
    query_text(r, "namespace", &l->name_space);
    query_text(r, "task", &l->task);
    l->status = query_text(r, "status", &status) ? status_of(status) : -1;
    l->arena = request_arena(r);
    r->call.foresee = list_foresee;
    r->call.foresee_ctx = l;
    visits_then(r, list_visit, l, list_after);
}

/* ---- one message ---------------------------------------------------------------------------------------------------- */

struct find {
    struct slice partition, transaction;
    bool searching;
    uint64_t offset, bytes;
};

static void consumers_render(struct buf *out, const struct consumers *c, uint64_t offset)
{
    bool first = true;
    buf_text(out, ",\"consumerGroups\":[");
    for (uint32_t i = 0; i < consumers_count(c); i++) {
        const struct consumer *one = consumers_at(c, i);
        if (!one->here && !one->registered) continue;
        field_text(out, first ? "{\"name\":" : ",{\"name\":", one->name);
        field_signed(out, ",\"committed\":", one->committed);
        field_bool(out, ",\"consumed\":", one->committed >= (int64_t)offset);
        field_time_ms(out, ",\"leaseExpiresAt\":", one->lease_expires_us);
        buf_byte(out, '}');
        first = false;
    }
    buf_byte(out, ']');
}

static void detail_render(struct request *r, struct buf *out, struct engine *e, struct engine_now now, struct row_view *v)
{
    char room[UUID_TEXT];
    struct dead_letter_view letter;
    struct consumers consumers = {0};
    struct consume_modes modes = {0};
    uint64_t offset = v->piece.first_offset;
    bool dead = engine_dead_letter_at(e, v->lane.number, offset, &letter);
    consumers_of(&consumers, e, now, &v->lane);
    modes_add(&modes, e, v->queue.number);
    v->status = message_status_of(&consumers, offset, dead, &v->consumed);
    buf_text(out, "{\"id\":");
    render_uuid(out, v->bytes.id);
    field_text(out, ",\"transactionId\":", message_transaction(&v->bytes, room));
    message_fields(out, &v->bytes);
    field_time_us(out, ",\"createdAt\":", v->piece.created_us);
    field_number(out, ",\"offset\":", offset);
    place_fields(out, e, v);
    field_text_or_null(out, ",\"errorMessage\":", dead ? letter.error : slice_make(NULL, 0));
    field_number(out, ",\"retryCount\":", dead ? letter.retries : 0);
    buf_text(out, ",\"queueConfig\":");
    options_render(out, v->queue.options);
    buf_text(out, ",\"mode\":");
    modes_render(out, &modes);
    consumers_render(out, &consumers, offset);
    buf_byte(out, '}');
    consumers_free(&consumers);
    (void)r;
}

static bool not_found(struct request *r, struct buf *out)
{
    buf_text(out, "{\"error\":\"Message not found\"}");
    r->call.status = 404;
    return false;
}

static bool detail_answer(struct request *r, struct buf *out, struct engine *e, struct engine_now now,
                          const struct lane_view *lane, uint64_t offset)
{
    struct row_view v = {.lane = *lane};
    if (!engine_message_at(e, lane->number, offset, &v.piece)) return not_found(r, out);
    must(engine_queue_next(e, r->tenant, lane->queue - 1, &v.queue));
    enum piece_state state = message_load(r, lane->number, &v.piece, &v.bytes);
    if (state == PIECE_HERE) {
        detail_render(r, out, e, now, &v);
        message_release(r, &v.bytes);
    } else if (state == PIECE_DAMAGED) {
        buf_text(out, "{\"error\":\"a stored message could not be read: see the broker's log\",\"code\":\"internal\"}");
        r->call.status = 500;
    }
    return state == PIECE_LATER;
}

enum search_state { SEARCH_ON, SEARCH_FOUND, SEARCH_OVER };

/* A block of the lane that is being searched. */
struct search {
    struct request *r;
    struct message_bytes block;
    uint64_t where;
    bool loaded, coming; /* coming: some block of this visit is not there yet */
};

/* False: the next visit. */
static bool search_block(struct search *s, uint32_t lane, const struct delivery_piece *piece)
{
    if (s->loaded) message_release(s->r, &s->block);
    enum piece_state state = message_load(s->r, lane, piece, &s->block);
    s->where = piece->where;
    s->loaded = state == PIECE_HERE;
    s->coming |= state == PIECE_COMING;
    return state != PIECE_LATER;
}

static bool search_hit(struct search *s, const struct find *f, uint32_t lane, const struct delivery_piece *piece)
{
    char room[UUID_TEXT];
    if (!s->loaded) return false;
    message_pick(s->r, lane, piece, &s->block);
    return slice_equal(message_transaction(&s->block, room), f->transaction);
}

/* Goes on through the lane's old messages, whose ids are in no index any more. When blocks are not there yet, those of the whole visit are
 * named and it stands where it stood. */
static enum search_state search_go(struct request *r, struct find *f, struct engine *e, struct engine_now now,
                                   const struct lane_view *lane)
{
    enum search_state state = SEARCH_ON;
    struct search s = {.r = r, .where = UINT64_MAX};
    struct delivery_piece piece;
    const struct find before = *f;
    uint64_t until = f->bytes + FIND_BYTES_A_VISIT;
    uint32_t blocks = 0;
    if (f->offset < lane->start_offset) f->offset = lane->start_offset;
    while (state == SEARCH_ON) {
        if (!engine_message_at(e, lane->number, f->offset, &piece) || piece.created_us > now.wall_us - ID_KEPT_US) {
            state = SEARCH_OVER;
        } else if (piece.where != s.where) {
            if (f->bytes >= FIND_BYTES_MAX) state = SEARCH_OVER;
            if (f->bytes >= until || blocks++ == FIND_BLOCKS_A_VISIT) break;
            if (!search_block(&s, lane->number, &piece)) break;
            f->bytes += piece.block_bytes;
        } else if (search_hit(&s, f, lane->number, &piece)) {
            state = SEARCH_FOUND;
        } else {
            f->offset++;
        }
    }
    if (s.loaded) message_release(r, &s.block);
    if (!s.coming) return state;
    *f = before;
    return SEARCH_ON;
}

static bool detail_visit(struct request *r, void *data, struct buf *out, struct engine *e, struct engine_now now)
{
    struct find *f = data;
    struct lane_view lane;
    if (!lane_of_id(e, r->tenant, f->partition, &lane)) return not_found(r, out);
    if (!f->searching) {
        if (engine_message_find(e, r->tenant, lane.number, f->transaction, 0, &f->offset))
            return detail_answer(r, out, e, now, &lane, f->offset);
        f->searching = true;
        f->offset = 0;
        return true; /* what it looks at next is foreseen */
    }
    enum search_state state = search_go(r, f, e, now, &lane);
    if (state == SEARCH_ON) return true;
    return state == SEARCH_FOUND ? detail_answer(r, out, e, now, &lane, f->offset) : not_found(r, out);
}

static void detail_foresee(struct call *c, struct engine *e, struct engine_now now, const struct engine_foreseen *f)
{
    enum { AHEAD = 256 };
    const struct find *find = c->foresee_ctx;
    uint32_t number = lane_number_of_id(find->partition);
    (void)now;
    if (number != 0 && !find->searching) engine_message_foreseen(e, number, find->transaction, f);
    if (number != 0 && find->searching) engine_messages_foreseen(e, number, find->offset + AHEAD - 1, AHEAD - 1, f);
}

void route_message_detail(struct request *r)
{
    struct find *f = arena_zero(request_arena(r), sizeof *f);
    if (!path_names_good(r, 2)) return;
    f->partition = r->params[0];
    f->transaction = r->params[1];
    r->call.foresee = detail_foresee;
    r->call.foresee_ctx = f;
    visits_answer(r, detail_visit, f);
}
