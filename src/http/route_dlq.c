/* GET /api/v1/dlq
 *
 *   query   queue, consumerGroup (filters), limit (100, 1..1000), offset (0): skips that many
 *   answer  200 {"messages":[...],"total":n,"pagination":{"limit","offset","total","hasMore"}}, newest failure first. Row: id, queue, partition,
 *           partitionId (digits), consumerGroup, offset, messageId, transactionId, data, payload (the same), errorMessage,
 *           retryCount, createdAt and failedAt (when it failed, us). A row whose payload cannot be read has data null and
 *           "damaged":true.
 *   errors  400 text for a bad integer, 503
 *
 * What is skipped is walked over, and what the filters leave out: LOOKS dead letters a read, then another read goes on from there, so that
 * nobody else waits for long however many there are. What fails or is removed meanwhile may move a page as it does between two requests.
 * When payloads have to come from disk a read runs again once they are there. An answer ends early once it has 32 MiB, or had to read
 * COLD_CALL_BYTES of blocks; hasMore is true then. */
#include "base/limits.h"
#include "http/answer.h"
#include "http/render.h"
#include "http/route.h"

enum { LOOKS = 4096 };

/* Where a page is: `at` when a read begins, which may run several times; `next` when it is over. */
struct dlq_walk {
    uint64_t before, passed, rows; /* the sequence to go on below; letters that match so far; those of them that are shown */
    bool over;
};

struct dlq_query {
    struct slice queue, group;
    uint64_t limit, offset, total;
    struct dlq_walk at, next;
};

/* Message id, transaction id and payload; `piece` is NULL when they cannot be read, which is said: the listing is for people. */
static void message_render(struct buf *out, const struct request *r, const struct call_piece *piece,
                           const struct dead_letter_view *v)
{
    struct push_item item;
    buf_text(out, ",\"messageId\":");
    if (piece == NULL) {
        render_uuid(out, v->message);
        buf_text(out, ",\"transactionId\":null,\"data\":null,\"payload\":null,\"damaged\":true");
        return;
    }
    push_group_item(&piece->group, v->piece.item0, &item);
    struct uuid id = render_message_id(&item, message_tag(request_seed(r), v->partition_number), v->offset, v->created_us);
    struct slice payload = item.payload.len == 0 ? slice_of("null") : item.payload;
    render_uuid(out, id);
    buf_text(out, ",\"transactionId\":");
    if (item.flags & ITEM_TRANSACTION)
        render_text(out, item.transaction);
    else
        render_uuid(out, id);
    buf_text(out, ",\"data\":");
    buf_slice(out, payload);
    buf_text(out, ",\"payload\":");
    buf_slice(out, payload);
}

static void row_render(struct buf *out, const struct request *r, const struct call_piece *piece,
                       const struct dead_letter_view *v)
{
    buf_text(out, "{\"id\":");
    render_uuid(out, v->id);
    buf_text(out, ",\"queue\":");
    render_text(out, v->queue);
    buf_text(out, ",\"partition\":");
    render_text(out, v->partition);
    buf_printf(out, ",\"partitionId\":\"%u\",\"consumerGroup\":", v->partition_number);
    render_text(out, v->group);
    buf_text(out, ",\"offset\":");
    buf_decimal(out, v->offset);
    message_render(out, r, piece, v);
    buf_text(out, ",\"errorMessage\":");
    render_text(out, v->error);
    buf_printf(out, ",\"retryCount\":%u,\"createdAt\":", v->retries);
    render_time_us(out, v->failed_us);
    buf_text(out, ",\"failedAt\":");
    render_time_us(out, v->failed_us);
    buf_byte(out, '}');
}

/* False: the page ends before it. */
static bool row_add(struct buf *out, const struct request *r, const struct dead_letter_view *v, bool first)
{
    struct call_piece piece;
    enum piece_state state = broker_piece_load(r->broker, &v->piece, &piece);
    if (state == PIECE_LATER) return false;
    if (state == PIECE_COMING) return true; /* this page is not shown */
    if (!first) buf_byte(out, ',');
    row_render(out, r, state == PIECE_HERE ? &piece : NULL, v);
    if (state == PIECE_HERE) broker_piece_release(r->broker, &piece);
    return true;
}

static void dlq_read(struct call *c, struct engine *e, struct engine_now now)
{
    const struct request *r = c->read_ctx;
    struct dlq_query *q = r->route_data;
    struct dlq_walk *w = &q->next;
    struct dead_letter_view v;
    uint32_t looks = LOOKS;
    (void)now;
    *w = q->at;
    q->total = engine_dead_letter_count(e, r->tenant, q->queue, q->group);
    while (w->rows < q->limit && r->out.len + c->answer.len <= POP_BYTES_MAX) {
        bool shown = w->passed >= q->offset;
        if (!engine_dead_letter_look(e, r->tenant, q->queue, q->group, &w->before, &looks, shown ? &v : NULL)) {
            w->over = looks > 0;
            return;
        }
        w->passed++;
        if (!shown) continue;
        if (!row_add(&c->answer, r, &v, w->rows == 0)) break;
        w->rows++;
    }
    w->over = true;
}

static void dlq_foresee(struct call *c, struct engine *e, struct engine_now now, const struct engine_foreseen *f)
{
    const struct request *r = c->read_ctx;
    const struct dlq_query *q = r->route_data;
    const struct dlq_walk *w = &q->at;
    uint64_t skipped = w->passed < q->offset ? q->offset - w->passed : 0;
    (void)now;
    engine_letters_foreseen(e, r->tenant, q->queue, q->group, w->before, skipped, q->limit - w->rows, LOOKS, f);
}

static void dlq_after(struct request *r)
{
    struct dlq_query *q = r->route_data;
    struct buf *out = &r->out;
    if (r->call.outcome != CALL_OK) buf_clear(out);
    if (!answer_outcome(r)) return;
    buf_slice(out, buf_view(&r->call.answer));
    buf_clear(&r->call.answer);
    q->at = q->next;
    if (!q->at.over) {
        request_submit_next(r, r->http->config->pop_timeout_ms, dlq_after);
        return;
    }
    buf_text(out, "],\"total\":");
    buf_decimal(out, q->total);
    buf_text(out, ",\"pagination\":{\"limit\":");
    buf_decimal(out, q->limit);
    buf_text(out, ",\"offset\":");
    buf_decimal(out, q->offset);
    buf_text(out, ",\"total\":");
    buf_decimal(out, q->total);
    buf_printf(out, ",\"hasMore\":%s}}", q->offset < q->total && q->at.rows < q->total - q->offset ? "true" : "false");
    answer_json(r, 200);
}

void route_dlq(struct request *r)
{
    struct dlq_query *q = arena_zero(request_arena(r), sizeof *q);
    int64_t limit = 100, offset = 0;
    bool given;
    if (!query_int(r, "limit", &limit, &given) || !query_int(r, "offset", &offset, &given)) return;
    q->limit = limit < 1 ? 1 : limit > 1000 ? 1000 : (uint64_t)limit;
    q->offset = offset < 0 ? 0 : (uint64_t)offset;
    query_text(r, "queue", &q->queue);
    query_text(r, "consumerGroup", &q->group);
    q->at.before = UINT64_MAX;
    r->route_data = q;
    buf_text(&r->out, "{\"messages\":[");
    r->call.kind = CALL_READ;
    r->call.read = dlq_read;
    r->call.read_ctx = r;
    r->call.foresee = dlq_foresee;
    request_submit(r, r->http->config->pop_timeout_ms, dlq_after);
}
