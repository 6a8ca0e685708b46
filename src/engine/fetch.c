/* Reading by offset: no cursor, no lease, nothing changes. */
#include "engine/engine_internal.h"

static enum fetch_status lane_find(struct engine *e, struct uuid tenant, struct slice queue, struct slice partition,
                                   struct partition **out)
{
    const struct queue *q = queue_find(e, tenant, queue);
    *out = q == NULL ? NULL : partition_find(e, q, partition);
    return q == NULL ? FETCH_NO_QUEUE : FETCH_OK;
}

static void piece_add(struct arena *arena, struct fetch_view *out, uint32_t *cap, const struct run *r, uint64_t from,
                      uint32_t n)
{
    if (out->piece_count == *cap) {
        uint32_t grown = *cap == 0 ? 4 : *cap * 4;
        struct delivery_piece *pieces = arena_get(arena, grown * sizeof pieces[0]);
        if (*cap > 0) memcpy(pieces, out->pieces, *cap * sizeof pieces[0]);
        out->pieces = pieces;
        *cap = grown;
    }
    out->pieces[out->piece_count++] = (struct delivery_piece){.where = r->where,
                                                              .block_bytes = r->block_bytes,
                                                              .item0 = r->item0 + (uint32_t)(from - r->first),
                                                              .count = n,
                                                              .first_offset = from,
                                                              .created_us = r->created_us};
    out->message_count += n;
}

enum fetch_status engine_fetch(struct engine *e, struct uuid tenant, struct slice queue, struct slice partition,
                               uint64_t offset, uint64_t bytes_max, uint32_t messages_max, struct arena *arena,
                               struct fetch_view *out)
{
    struct partition *p;
    uint32_t cap = 0;
    *out = (struct fetch_view){0};
    enum fetch_status s = lane_find(e, tenant, queue, partition, &p);
    if (s != FETCH_OK || p == NULL) return s == FETCH_OK && offset > 0 ? FETCH_OUT_OF_RANGE : s;
    out->partition = p->number;
    out->start = p->start;
    out->tail = p->tail;
    if (offset < p->start || offset > p->tail) return FETCH_OUT_OF_RANGE;
    while (offset < p->tail && out->message_count < messages_max && (out->message_count == 0 || out->bytes < bytes_max)) {
        struct run r;
        must(run_find(e, p, offset, &r));
        uint64_t n = run_end(&r) - offset, each = (r.bytes & RUN_BYTES_MASK) / r.count;
        if (n > messages_max - out->message_count) n = messages_max - out->message_count;
        piece_add(arena, out, &cap, &r, offset, (uint32_t)n);
        out->bytes += n * (each == 0 ? 1 : each);
        offset += n;
    }
    return FETCH_OK;
}

enum fetch_status engine_offset_at(struct engine *e, struct uuid tenant, struct slice queue, struct slice partition, int64_t us,
                                   bool *found, uint64_t *offset, int64_t *created_us, uint64_t *start, uint64_t *tail)
{
    struct partition *p;
    struct run r;
    *found = false;
    *offset = *start = *tail = 0;
    *created_us = 0;
    enum fetch_status s = lane_find(e, tenant, queue, partition, &p);
    if (p == NULL) return s;
    *start = p->start;
    *tail = p->tail;
    uint64_t first = run_offset_at(e, p, us);
    if (first >= p->tail || !run_find(e, p, first, &r)) return s;
    *found = true;
    *offset = first;
    *created_us = r.created_us;
    return s;
}

int64_t engine_safe_time_us(const struct engine *e)
{
    return e->safe_us;
}
