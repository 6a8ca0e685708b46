#include "http/message_view.h"

#include "engine/ids.h"
#include "http/render.h"

enum piece_state message_load(struct request *r, uint32_t partition, const struct delivery_piece *piece,
                              struct message_bytes *out)
{
    enum piece_state state = broker_piece_load(r->broker, piece, &out->piece);
    if (state == PIECE_HERE) message_pick(r, partition, piece, out);
    return state;
}

void message_pick(struct request *r, uint32_t partition, const struct delivery_piece *piece, struct message_bytes *m)
{
    must(piece->item0 < m->piece.group.item_count);
    push_group_item(&m->piece.group, piece->item0, &m->item);
    m->id = render_message_id(&m->item, message_tag(request_seed(r), partition), piece->first_offset, piece->created_us);
}

void message_release(struct request *r, struct message_bytes *m)
{
    broker_piece_release(r->broker, &m->piece);
}

struct slice message_transaction(const struct message_bytes *m, char *room)
{
    if (m->item.flags & ITEM_TRANSACTION) return m->item.transaction;
    uuid_text(m->id, room);
    return slice_make(room, UUID_TEXT);
}

/* ---- consumers ------------------------------------------------------------------------------------------------------ */

static void consumers_list(struct consumers *c, struct engine *e, uint32_t queue)
{
    struct group_view g;
    buf_clear(&c->list);
    c->queue = queue;
    c->lane = 0;
    for (uint32_t after = 0; engine_group_next(e, queue, after, &g); after = g.number) {
        if (!g.registered && g.cursors == 0) continue;
        struct consumer one = {
            .group = g.number, .name = g.name, .registered = g.registered, .queue_mode = slice_is(g.name, QUEUE_MODE_GROUP)};
        buf_put(&c->list, &one, sizeof one);
    }
}

void consumers_of(struct consumers *c, struct engine *e, struct engine_now now, const struct lane_view *lane)
{
    if (c->queue != lane->queue) consumers_list(c, e, lane->queue);
    if (c->lane == lane->number) return;
    c->lane = lane->number;
    c->named = 0;
    c->queue_mode = false;
    for (uint32_t i = 0; i < consumers_count(c); i++) {
        struct consumer *one = (struct consumer *)(void *)c->list.at + i;
        struct cursor_view v;
        one->here = engine_cursor_get(e, lane->number, one->group, now, &v);
        one->leased = one->here && v.leased;
        one->lease_expires_us = one->leased ? v.lease_expires_us : 0;
        one->committed = one->here ? v.committed : engine_group_start(e, one->group, lane->number);
        if (!one->here && !one->registered) continue;
        c->queue_mode |= one->queue_mode;
        c->named += one->queue_mode ? 0 : 1;
    }
}

void consumers_free(struct consumers *c)
{
    buf_free(&c->list);
}

const char *const message_status_text[MESSAGE_STATUSES] = {
    [MESSAGE_PENDING] = "pending",
    [MESSAGE_PROCESSING] = "processing",
    [MESSAGE_COMPLETED] = "completed",
    [MESSAGE_DEAD] = "dead_letter",
};

enum message_status message_status_of(const struct consumers *c, uint64_t offset, bool dead, uint32_t *consumed)
{
    bool leased = false, by_queue_mode = false;
    *consumed = 0;
    for (uint32_t i = 0; i < consumers_count(c); i++) {
        const struct consumer *one = consumers_at(c, i);
        if (!one->here && !one->registered) continue;
        bool passed = one->committed >= (int64_t)offset;
        leased |= one->leased;
        if (one->queue_mode)
            by_queue_mode = passed;
        else
            *consumed += passed ? 1 : 0;
    }
    if (dead) return MESSAGE_DEAD;
    if (c->named > 0 ? *consumed == c->named : by_queue_mode) return MESSAGE_COMPLETED;
    return leased ? MESSAGE_PROCESSING : MESSAGE_PENDING;
}

/* ---- rendering ------------------------------------------------------------------------------------------------------ */

void modes_add(struct consume_modes *m, struct engine *e, uint32_t queue)
{
    struct group_view g;
    for (uint32_t after = 0; engine_group_next(e, queue, after, &g); after = g.number) {
        if (!g.registered && g.cursors == 0) continue;
        if (slice_is(g.name, QUEUE_MODE_GROUP))
            m->queue_mode = true;
        else
            m->groups++;
    }
}

void modes_render(struct buf *out, const struct consume_modes *m)
{
    const char *type = m->groups == 0 ? (m->queue_mode ? "queue" : "none") : m->queue_mode ? "hybrid" : "bus";
    field_bool(out, "{\"hasQueueMode\":", m->queue_mode);
    field_number(out, ",\"busGroupsCount\":", m->groups);
    buf_printf(out, ",\"type\":\"%s\"}", type);
}

void message_fields(struct buf *out, const struct message_bytes *m)
{
    struct slice payload = m->item.payload.len == 0 ? slice_of("null") : m->item.payload;
    buf_text(out, ",\"data\":");
    buf_slice(out, payload);
    buf_text(out, ",\"payload\":");
    buf_slice(out, payload);
    buf_text(out, ",\"traceId\":");
    if (m->item.flags & ITEM_TRACE)
        render_uuid(out, m->item.trace);
    else
        buf_text(out, "null");
    field_text_or_null(out, ",\"producerSub\":", m->item.flags & ITEM_SUBJECT ? m->item.subject : slice_make(NULL, 0));
}
