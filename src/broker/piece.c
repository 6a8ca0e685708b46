/* Payload bytes for reads.
 *
 *   `read` runs:  broker_piece_load -> in the log's memory, in what was read for this call, or in a range read lately: PIECE_HERE
 *                                   -> else named: PIECE_COMING
 *   pieces_run_end: something was named -> one job for all of it (cold.c), the call is READING; read_run runs it again
 *                   nothing             -> what was read for it goes, the answer stands
 *
 * A piece that was read stays with its call until a run is complete, so each run gets further, whatever leaves the ranges meanwhile.
 *
 * Limits: COLD_CALL_BYTES and COLD_CALL_PIECES a call, then PIECE_LATER; COLD_ROUNDS_MAX jobs a call, then CALL_TIMEOUT. The checksum of what
 * is in a range, but not of this call, is looked at here, of COLD_RANGE_BYTES a run; more is left to the readers. */
#include "broker/broker_internal.h"

void pieces_run_begin(struct broker *b)
{
    struct pieces_run *run = &b->cold.run;
    buf_clear(&run->wants);
    run->bytes = run->checked = 0;
    run->served = false;
}

static uint32_t wants_count(const struct pieces_run *run)
{
    return (uint32_t)(run->wants.len / sizeof(struct cold_want));
}

/* Named in this run already? Neighbours in an answer are often of one block: only the last few are looked at. */
static bool want_known(const struct pieces_run *run, uint64_t where)
{
    enum { LOOKS = 32 };
    const struct cold_want *wants = (const void *)run->wants.at;
    uint32_t count = wants_count(run);
    for (uint32_t i = count; i > 0 && count - i < LOOKS; i--) {
        if (wants[i - 1].where == where) return true;
    }
    return false;
}

static enum piece_state piece_want(struct broker *b, const struct call *c, const struct delivery_piece *d)
{
    struct pieces_run *run = &b->cold.run;
    uint32_t count = wants_count(run);
    if (want_known(run, d->where)) return PIECE_COMING;
    uint64_t all = cold_found_bytes(c) + run->bytes + d->block_bytes;
    uint64_t most = b->config.memory.cold_reads < COLD_CALL_BYTES ? b->config.memory.cold_reads : COLD_CALL_BYTES;
    bool first = count == 0 && !run->served;
    if (!first && (all > most || count == COLD_CALL_PIECES)) return count > 0 ? PIECE_COMING : PIECE_LATER;
    struct cold_want want = {.where = d->where, .bytes = d->block_bytes};
    buf_put(&run->wants, &want, sizeof want);
    run->bytes += want.bytes;
    return PIECE_COMING;
}

static bool piece_in_range(struct broker *b, const struct delivery_piece *d, struct slice *block, struct call_piece *out)
{
    struct pieces_run *run = &b->cold.run;
    if (run->checked + d->block_bytes > COLD_RANGE_BYTES) return false;
    out->range = cold_cache_find(b->cold.cache, d->where, d->block_bytes, block);
    if (out->range == NULL) return false;
    run->checked += d->block_bytes;
    if (push_group_crc_ok(*block)) return true;
    cold_range_drop(out->range);
    out->range = NULL;
    return false;
}

enum piece_state broker_piece_load(struct broker *b, const struct delivery_piece *d, struct call_piece *out)
{
    struct call *c = b->watching.reading;
    struct slice block;
    must(c != NULL);
    *out = (struct call_piece){0};
    out->pinned = place_view(&b->places, d->where, d->block_bytes, &block, &out->pin);
    const struct cold_piece *found = out->pinned ? NULL : cold_found(c, d->where);
    if (found != NULL) {
        if (found->fault != NULL) return PIECE_DAMAGED;
        block = found->block;
        out->range = cold_range_hold(found->range);
    } else if (!out->pinned && !piece_in_range(b, d, &block, out)) {
        return piece_want(b, c, d);
    }
    b->cold.run.served = true;
    if (piece_take(b, d, block, out)) return PIECE_HERE;
    broker_piece_release(b, out);
    return PIECE_DAMAGED;
}

void broker_piece_release(struct broker *b, struct call_piece *p)
{
    if (p->pinned) log_unpin(b->places.log, p->pin);
    if (p->range != NULL) cold_range_drop(p->range);
    p->pinned = false;
    p->range = NULL;
}

bool pieces_run_end(struct broker *b, struct call *c)
{
    struct pieces_run *run = &b->cold.run;
    uint32_t count = wants_count(run);
    if (count == 0 || c->rounds == COLD_ROUNDS_MAX) {
        cold_found_drop(c);
        c->rounds = 0;
        c->warmed = 0;
        if (count > 0) call_finish(b, c, CALL_TIMEOUT);
        return count > 0;
    }
    c->rounds++;
    if (c->late && !heap_holds(&c->due)) heap_put(&b->deadlines, &c->due, b->mono_us + PROPOSED_GRACE_US, c->arrival);
    cold_fetch(b, c, (const void *)run->wants.at, count);
    if (run->wants.cap > COLD_WANTS_KEPT) buf_free(&run->wants);
    return true;
}
