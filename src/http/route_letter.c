/* What operators do with dead letters. (Looking at them: route_dlq.c.)
 *
 * POST   /api/v1/dlq/:id/replay
 * POST   /api/v1/messages/:partitionId/:transactionId/retry     the newest dead letter of that address
 *   body    none, or {"queue"?,"partition"?}: where to, if not where it came from
 *   answer  200 {"success":true,"result":"moved"|"duplicate","queue","partition","consumerGroup","dlqId","originalTransactionId",
 *           "replayedAs":{"index":0,"message_id","transaction_id","queueName","status","offset"},"dlqRowRemoved"}: queue and partition are where
 *           it went. A duplicate was there already: nothing was pushed and the dead letter stays
 *   errors  400 {"success":false,"error"}, 404 {"success":false,"result":"gone","error"}, 413 name_too_long, 507, 503
 *
 * DELETE /api/v1/dlq?queue=&consumerGroup=                      all dead letters of a queue, or of a group there
 * DELETE /api/v1/messages/:partitionId/:transactionId           the dead letters of that address, of every group
 *   answer  200 {"success":true,...,"deleted":n}; the second 404 when there is none
 *
 * A move is one command: the message is pushed under the transaction id dlq:<id> and the letter removed, or neither. Its bytes are found and
 * encoded first, on the group thread; what happened to the letter meanwhile, the command sees. An address is looked for among the dead
 * letters of its lane, in visits (visit.h), LETTERS_LOOKED_MAX at most. */
#include <stdio.h>

#include "base/limits.h"
#include "http/answer.h"
#include "http/json.h"
#include "http/message_view.h"
#include "http/name.h"
#include "http/render.h"
#include "http/route.h"
#include "http/visit.h"

enum {
    LETTERS_A_PIECE = 500,
    LETTERS_A_VISIT = 128,
    LETTERS_LOOKED_MAX = 100000,
    LETTERS_DELETED_MAX = 10000,
    LETTER_NAME_BYTES = 4 + UUID_TEXT
};

/* ---- finding -------------------------------------------------------------------------------------------------------- */

struct letters {
    /* by address */
    struct slice lane_id, transaction;
    uint64_t before, looked;
    /* to delete */
    char *found; /* sequences, u64 each */
    uint32_t count, cap, given;
    uint64_t deleted;
    /* to move */
    struct uuid id;
    bool by_id;
    struct slice queue, partition; /* target; at == NULL: its own */
    struct slice group, original;
    bool has, damaged, too_long;
};

/* Of a letter at hand: is it of the address? */
static enum piece_state letter_look(struct request *r, const struct letters *l, const struct dead_letter_view *v, bool *fits)
{
    struct message_bytes m;
    char room[UUID_TEXT];
    enum piece_state state = message_load(r, v->partition_number, &v->piece, &m);
    *fits = state == PIECE_HERE && slice_equal(message_transaction(&m, room), l->transaction);
    if (state == PIECE_HERE) message_release(r, &m);
    return state;
}

/* Goes through the letters of the address's lane, newest first; `found` gives false to end. True: there is more to look at. When some
 * of their bytes are not there yet, the others of the visit are named, none is found, and it stands where it stood. */
static bool letters_look(struct request *r, struct letters *l, struct engine *e,
                         bool (*found)(struct request *r, struct letters *l, const struct dead_letter_view *v,
                                       uint64_t sequence))
{
    struct lane_view lane;
    struct dead_letter_view v;
    const struct letters before = *l;
    bool more = lane_of_id(e, r->tenant, l->lane_id, &lane), fits, coming = false;
    for (uint32_t n = 0; more && n < LETTERS_A_VISIT; n++) {
        uint64_t at = l->before;
        more = l->looked++ < LETTERS_LOOKED_MAX && engine_dead_letter_in(e, lane.number, &l->before, &v);
        if (!more) break;
        enum piece_state state = letter_look(r, l, &v, &fits);
        if (state == PIECE_LATER) {
            l->before = at;
            break;
        }
        coming |= state == PIECE_COMING;
        if (fits && !coming) more = found(r, l, &v, l->before);
    }
    if (coming) *l = before;
    return coming || more;
}

static void letters_foresee(struct call *c, struct engine *e, struct engine_now now, const struct engine_foreseen *f)
{
    const struct request *r = c->read_ctx;
    const struct letters *l = c->foresee_ctx;
    uint32_t number = l->by_id ? 0 : lane_number_of_id(l->lane_id);
    (void)now;
    if (l->by_id) engine_letter_foreseen(e, r->tenant, l->id, f);
    if (number != 0) engine_lane_foreseen(e, number, f);
}

static void letters_visit(struct request *r, struct letters *l, visit_run *visit, void (*after)(struct request *r, void *data))
{
    r->call.foresee = letters_foresee;
    r->call.foresee_ctx = l;
    visits_then(r, visit, l, after);
}

/* ---- move: the command ---------------------------------------------------------------------------------------------- */

static void letter_name(struct uuid id, char out[LETTER_NAME_BYTES])
{
    memcpy(out, "dlq:", 4);
    uuid_text(id, out + 4);
}

static void move_encode(struct request *r, const struct letters *l, const struct push_item *from)
{
    struct push_writer w;
    char name[LETTER_NAME_BYTES];
    struct push_item item = *from;
    letter_name(l->id, name);
    item.flags = (uint8_t)(ITEM_TRANSACTION | (from->flags & (ITEM_TRACE | ITEM_SUBJECT | ITEM_ENCRYPTED)));
    item.transaction = slice_make(name, sizeof name);
    size_t at = letter_move_begin(&r->command, r->tenant, l->id);
    push_begin(&w, &r->command, r->tenant);
    push_group_begin(&w, l->queue, l->partition, 1);
    push_item_add(&w, &item);
    push_group_end(&w);
    push_end(&w);
    letter_move_end(&r->command, at);
}

/* The letter that is to be moved. Nothing is prepared while its bytes are not there. */
static bool move_prepare(struct request *r, struct letters *l, const struct dead_letter_view *v, uint64_t sequence)
{
    struct arena *arena = request_arena(r);
    struct message_bytes m;
    char room[UUID_TEXT];
    (void)sequence;
    enum piece_state state = message_load(r, v->partition_number, &v->piece, &m);
    if (state == PIECE_COMING || state == PIECE_LATER) return true;
    l->has = true;
    l->id = v->id;
    if (l->queue.at == NULL) l->queue = arena_copy(arena, v->queue);
    if (l->partition.at == NULL) l->partition = arena_copy(arena, v->partition);
    l->group = arena_copy(arena, v->group);
    l->too_long = !name_fits(l->queue, l->partition, slice_of(""));
    l->damaged = state == PIECE_DAMAGED;
    if (!l->damaged) {
        l->original = arena_copy(arena, message_transaction(&m, room));
        if (!l->too_long) move_encode(r, l, &m.item);
        message_release(r, &m);
    }
    return false;
}

static bool move_visit(struct request *r, void *data, struct buf *out, struct engine *e, struct engine_now now)
{
    struct letters *l = data;
    struct dead_letter_view v;
    uint64_t sequence;
    (void)out;
    (void)now;
    if (!l->by_id) return letters_look(r, l, e, move_prepare);
    return engine_dead_letter_get(e, r->tenant, l->id, &sequence, &v) && move_prepare(r, l, &v, sequence);
}

/* ---- move: the answer ----------------------------------------------------------------------------------------------- */

static void answer_gone(struct request *r)
{
    buf_clear(&r->out);
    buf_text(&r->out, "{\"success\":false,\"result\":\"gone\",\"error\":\"Message not found\"}");
    answer_json(r, 404);
}

static void move_after(struct request *r)
{
    const struct letters *l = r->route_data;
    const struct engine_result *result = &r->call.result;
    struct buf *out = &r->out;
    char name[LETTER_NAME_BYTES];
    if (!answer_outcome(r)) return;
    must(result->kind == COMMAND_LETTER_MOVE);
    if (result->letter_move.fate == LETTER_GONE) {
        answer_gone(r);
        return;
    }
    bool moved = result->letter_move.fate == LETTER_MOVED;
    letter_name(l->id, name);
    buf_printf(out, "{\"success\":true,\"result\":\"%s\"", moved ? "moved" : "duplicate");
    field_text(out, ",\"queue\":", l->queue);
    field_text(out, ",\"partition\":", l->partition);
    field_text(out, ",\"consumerGroup\":", l->group);
    buf_text(out, ",\"dlqId\":");
    render_uuid(out, l->id);
    field_text(out, ",\"originalTransactionId\":", l->original);
    buf_text(out, ",\"replayedAs\":{\"index\":0,\"message_id\":");
    render_uuid(out, moved ? result->letter_move.push.id : (struct uuid){0});
    field_text(out, ",\"transaction_id\":", slice_make(name, sizeof name));
    field_text(out, ",\"queueName\":", l->queue);
    buf_printf(out, ",\"status\":\"%s\"", moved ? "queued" : "duplicate");
    field_number(out, ",\"offset\":", result->letter_move.push.offset);
    field_bool(out, "},\"dlqRowRemoved\":", moved);
    buf_byte(out, '}');
    answer_json(r, 200);
}

static void move_found(struct request *r, void *data)
{
    const struct letters *l = data;
    if (!l->has) {
        answer_gone(r);
    } else if (l->damaged) {
        answer_error(r, 500, "internal", "a stored message could not be read: see the broker's log");
    } else if (l->too_long) {
        answer_name_too_long(r);
    } else {
        r->route_data = data;
        r->call.kind = CALL_WRITE;
        r->call.grows = true;
        r->call.command = buf_view(&r->command);
        request_submit(r, r->http->config->pop_timeout_ms, move_after);
    }
}

/* ---- move: the body ------------------------------------------------------------------------------------------------- */

static struct slice trimmed(struct slice s)
{
    while (s.len > 0 && memchr(" \t\r\n", s.at[0], 4) != NULL) s = slice_make(s.at + 1, s.len - 1);
    while (s.len > 0 && memchr(" \t\r\n", s.at[s.len - 1], 4) != NULL) s.len--;
    return s;
}

static bool target_name(struct json *j, struct slice *out)
{
    if (json_peek(j) == JSON_NULL) return json_skip(j, NULL);
    if (json_peek(j) != JSON_STRING) return json_fail(j, "queue and partition: strings are required");
    if (!json_string(j, out)) return false;
    *out = trimmed(*out);
    if (out->len == 0) return json_fail(j, "queue and partition must not be empty");
    return !name_has_control(*out) || json_fail(j, "queue and partition: a control character");
}

static bool target_read(struct json *j, struct letters *l)
{
    bool first;
    struct slice key;
    if (!json_object_open(j, &first)) return false;
    while (json_object_next(j, &first, &key)) {
        struct slice *name = slice_is(key, "queue") ? &l->queue : slice_is(key, "partition") ? &l->partition : NULL;
        if (name != NULL && name->at != NULL) return json_fail(j, "a field is given twice");
        if (name != NULL ? !target_name(j, name) : !json_skip(j, NULL)) return false;
    }
    return json_end(j);
}

/* NULL: an answer was set. */
static struct letters *move_begin(struct request *r)
{
    struct letters *l = arena_zero(request_arena(r), sizeof *l);
    struct json j;
    char text[160];
    l->before = UINT64_MAX;
    if (trimmed(request_body(r)).len == 0) return l;
    json_open(&j, request_body(r), request_arena(r));
    if (target_read(&j, l)) return l;
    snprintf(text, sizeof text, "%s at byte %zu", j.error == NULL ? "wrong shape" : j.error, (size_t)(j.at - j.start));
    answer_unsuccessful(r, 400, text);
    return NULL;
}

void route_dlq_replay(struct request *r)
{
    struct letters *l = move_begin(r);
    if (l == NULL) return;
    l->by_id = true;
    if (uuid_parse(r->params[0], &l->id))
        letters_visit(r, l, move_visit, move_found);
    else
        answer_gone(r);
}

void route_message_retry(struct request *r)
{
    if (!path_names_good(r, 2)) return;
    struct letters *l = move_begin(r);
    if (l == NULL) return;
    l->lane_id = r->params[0];
    l->transaction = r->params[1];
    letters_visit(r, l, move_visit, move_found);
}

/* ---- delete --------------------------------------------------------------------------------------------------------- */

static void delete_submit(struct request *r, struct letters_delete_command *d, void *data, void (*after)(struct request *r))
{
    d->tenant = r->tenant;
    letters_delete_encode(&r->command, d);
    r->route_data = data;
    r->call.kind = CALL_WRITE;
    r->call.command = buf_view(&r->command);
    request_submit(r, r->http->config->pop_timeout_ms, after);
}

struct dlq_delete {
    struct letters_delete_command c;
    uint64_t letters;
};

static void dlq_delete_after(struct request *r)
{
    struct dlq_delete *d = r->route_data;
    if (!answer_outcome(r)) return;
    must(r->call.result.kind == COMMAND_LETTERS_DELETE);
    d->letters += r->call.result.changed.lanes;
    if (r->call.result.changed.more) {
        d->c.piece = r->call.result.changed.next;
        buf_clear(&r->command);
        letters_delete_encode(&r->command, &d->c);
        r->call.command = buf_view(&r->command);
        request_submit_next(r, r->http->config->pop_timeout_ms, dlq_delete_after);
        return;
    }
    field_text(&r->out, "{\"success\":true,\"queue\":", d->c.queue);
    field_text_or_null(&r->out, ",\"consumerGroup\":", d->c.group.len > 0 ? d->c.group : slice_make(NULL, 0));
    field_number(&r->out, ",\"deleted\":", d->letters);
    buf_byte(&r->out, '}');
    answer_json(r, 200);
}

void route_dlq_delete(struct request *r)
{
    struct dlq_delete *data = arena_zero(request_arena(r), sizeof *data);
    struct letters_delete_command *d = &data->c;
    d->queue = d->group = slice_of("");
    d->piece.most = LETTERS_A_PIECE;
    if (!query_text(r, "queue", &d->queue)) {
        buf_text(&r->out,
                 "{\"success\":false,\"error\":\"queue required\",\"message\":\"the query parameter queue is required\"}");
        answer_json(r, 400);
        return;
    }
    query_text(r, "consumerGroup", &d->group);
    if (!name_fits(d->queue, slice_of(""), d->group)) {
        answer_name_too_long(r);
        return;
    }
    delete_submit(r, d, data, dlq_delete_after);
}

static bool letter_collect(struct request *r, struct letters *l, const struct dead_letter_view *v, uint64_t sequence)
{
    (void)v;
    l->found = arena_room(request_arena(r), l->found, l->count, &l->cap, sizeof sequence);
    memcpy(l->found + (size_t)l->count++ * sizeof sequence, &sequence, sizeof sequence);
    return l->count < LETTERS_DELETED_MAX;
}

static bool collect_visit(struct request *r, void *data, struct buf *out, struct engine *e, struct engine_now now)
{
    (void)out;
    (void)now;
    return letters_look(r, data, e, letter_collect);
}

static void message_deleted(struct request *r, uint64_t count)
{
    struct buf *out = &r->out;
    buf_clear(out);
    field_bool(out, "{\"success\":", count > 0);
    field_text(out, ",\"partitionId\":", r->params[0]);
    field_text(out, ",\"transactionId\":", r->params[1]);
    if (count > 0)
        field_number(out, ",\"deleted\":", count);
    else
        buf_text(out, ",\"error\":\"Message not found\",\"message\":\"no dead letter has this address; messages that are not "
                      "dead letters "
                      "cannot be deleted\"");
    buf_byte(out, '}');
    answer_json(r, count > 0 ? 200 : 404);
}

static void message_delete_found(struct request *r, void *data);

static void message_delete_after(struct request *r)
{
    struct letters *l = r->route_data;
    if (!answer_outcome(r)) return;
    must(r->call.result.kind == COMMAND_LETTERS_DELETE);
    l->deleted += r->call.result.changed.lanes;
    message_delete_found(r, l);
}

/* Of those found, the next LETTERS_A_PIECE. */
static void message_delete_found(struct request *r, void *data)
{
    struct letters *l = data;
    uint32_t left = l->count - l->given;
    struct letters_delete_command d = {.count = left < LETTERS_A_PIECE ? left : LETTERS_A_PIECE,
                                       .sequences = l->found + (size_t)l->given * sizeof(uint64_t),
                                       .queue = slice_of(""),
                                       .group = slice_of("")};
    if (left == 0) {
        message_deleted(r, l->deleted);
        return;
    }
    l->given += d.count;
    buf_clear(&r->command);
    delete_submit(r, &d, data, message_delete_after);
}

void route_message_delete(struct request *r)
{
    struct letters *l = arena_zero(request_arena(r), sizeof *l);
    if (!path_names_good(r, 2)) return;
    l->before = UINT64_MAX;
    l->lane_id = r->params[0];
    l->transaction = r->params[1];
    letters_visit(r, l, collect_visit, message_delete_found);
}
