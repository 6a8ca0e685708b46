/* Calls that wait for bytes from the log's files.
 *
 *   cold_load -> everything in ranges read lately: no wait
 *             -> a job: given to the readers, or waiting for those before it; the call is READING
 *   job_back  -> the blocks go to the call's pieces, the call goes on (pop_loaded); the next jobs are given
 *   cold_leave: the caller is gone, its time is over, or the broker stops: its claims go back, the job ends for nobody
 *
 * The log keeps a segment of which something is under way (cold_wants), also when its messages were acked or expired meanwhile. */
#include <stdlib.h>

#include "base/clock.h"
#include "broker/broker_internal.h"
#include "broker/cold.h"

struct cold_read {
    struct cold_job job;
    struct broker *broker;
    struct call *call; /* NULL: it left */
    struct cold_read *next, *previous;
    uint64_t bytes, first_pos, end_pos;
    bool given; /* to the readers */
    struct cold_piece pieces[];
};

void cold_start(struct broker *b)
{
    b->cold.cache = cold_cache_new(b->config.memory.cold_cache);
    b->cold.reader = cold_reader_new(b->loop);
}

/* ---- jobs --------------------------------------------------------------------------------------------------------- */

static void read_free(struct cold_read *r)
{
    for (uint32_t i = 0; i < r->job.count; i++) {
        if (r->pieces[i].range != NULL) cold_range_drop(r->pieces[i].range);
    }
    free(r);
}

static void read_unlink(struct cold_reads *k, struct cold_read *r)
{
    if (k->waiting == r) k->waiting = r->next;
    if (r->previous != NULL) {
        r->previous->next = r->next;
    } else {
        k->first = r->next;
    }
    if (r->next != NULL) {
        r->next->previous = r->previous;
    } else {
        k->last = r->previous;
    }
    if (r->given) {
        must(k->given_count > 0 && k->given_bytes >= r->bytes);
        k->given_count--;
        k->given_bytes -= r->bytes;
    }
}

/* In order of arrival. Those given are not always the oldest: they come back in any order, but none is given past one that waits. */
static void reads_give(struct broker *b)
{
    struct cold_reads *k = &b->cold;
    struct cold_read *r;
    while ((r = k->waiting) != NULL) {
        bool room = k->given_count < COLD_JOBS_MAX && k->given_bytes + r->bytes <= b->config.memory.cold_reads;
        if (!room && k->given_count > 0) return;
        k->waiting = r->next;
        r->given = true;
        k->given_count++;
        k->given_bytes += r->bytes;
        r->job.places = b->places;
        cold_reader_submit(k->reader, &r->job);
    }
}

static void call_goes_on(struct broker *b, struct cold_read *r)
{
    struct call *c = r->call;
    bool good = true;
    must(c->state == CALL_STATE_READING && c->reading == r);
    call_list_remove(c);
    c->reading = NULL;
    for (uint32_t i = 0; i < r->job.count; i++) {
        struct cold_piece *p = &r->pieces[i];
        if (p->fault != NULL) {
            damage_say(b, p->where, p->bytes, p->fault);
            good = false;
            continue;
        }
        struct call_piece *out = &c->pieces[p->slot];
        out->range = p->range;
        p->range = NULL;
        if (!piece_take(b, p->of, p->block, out)) good = false;
    }
    pop_loaded(b, c, good);
}

static void job_back(struct loop_task *t)
{
    struct cold_read *r = owner_of(t, struct cold_read, job.task);
    struct broker *b = r->broker;
    inbox_clock(b);
    read_unlink(&b->cold, r);
    if (r->call != NULL) call_goes_on(b, r);
    read_free(r);
    if (!b->stopped) reads_give(b);
}

/* ---- calls -------------------------------------------------------------------------------------------------------- */

/* From ranges read lately. Only little of it: the checksums are looked at here. False: one is not there, or not good. */
static bool load_from_ranges(struct broker *b, struct call *c)
{
    uint32_t slot = 0;
    for (uint32_t i = 0; i < c->result.pop.count; i++) {
        const struct claim *claim = &c->result.pop.claims[i];
        for (uint32_t k = 0; k < claim->piece_count; k++, slot++) {
            const struct delivery_piece *d = &claim->pieces[k];
            struct call_piece *out = &c->pieces[slot];
            struct slice block;
            if (out->pinned) continue;
            out->range = cold_cache_find(b->cold.cache, d->where, d->block_bytes, &block);
            if (out->range == NULL || !push_group_crc_ok(block)) return false;
            if (!push_group_of(block, &out->group) || d->item0 + d->count > out->group.item_count) return false;
        }
    }
    return true;
}

static void read_want(struct cold_read *r, const struct delivery_piece *d, uint32_t slot)
{
    r->pieces[r->job.count++] = (struct cold_piece){.where = d->where, .bytes = d->block_bytes, .slot = slot, .of = d};
    r->bytes += d->block_bytes;
    if (d->where < r->first_pos) r->first_pos = d->where;
    if (d->where + d->block_bytes > r->end_pos) r->end_pos = d->where + d->block_bytes;
}

static struct cold_read *read_new(struct broker *b, struct call *c, uint32_t count)
{
    struct cold_reads *k = &b->cold;
    struct cold_read *r = calloc(1, sizeof *r + count * sizeof r->pieces[0]);
    must(r != NULL);
    *r = (struct cold_read){.broker = b, .call = c, .first_pos = UINT64_MAX};
    r->job = (struct cold_job){
        .task.run = job_back, .cache = k->cache, .segment_bytes = b->config.segment_bytes, .pieces = r->pieces};
    uint32_t slot = 0;
    for (uint32_t i = 0; i < c->result.pop.count; i++) {
        const struct claim *claim = &c->result.pop.claims[i];
        for (uint32_t p = 0; p < claim->piece_count; p++, slot++) {
            struct call_piece *out = &c->pieces[slot];
            if (out->range != NULL) cold_range_drop(out->range); /* a reader finds it again */
            out->range = NULL;
            if (!out->pinned) read_want(r, &claim->pieces[p], slot);
        }
    }
    must(r->job.count == count);
    r->previous = k->last;
    if (k->last != NULL) {
        k->last->next = r;
    } else {
        k->first = r;
    }
    k->last = r;
    if (k->waiting == NULL) k->waiting = r;
    return r;
}

bool cold_load(struct broker *b, struct call *c, uint32_t count, uint64_t bytes)
{
    must(count > 0 && c->list == NULL && c->reading == NULL);
    if (bytes <= COLD_RANGE_BYTES && load_from_ranges(b, c)) return true;
    c->reading = read_new(b, c, count);
    c->state = CALL_STATE_READING;
    c->group = NULL; /* its lanes were given back */
    c->lane = NULL;
    c->flight = NULL;
    if (c->held_us != 0) inbox_due_set(b, c);
    c->held_us = 0;
    call_list_append(&b->cold.calls, c);
    reads_give(b);
    return false;
}

void cold_leave(struct broker *b, struct call *c)
{
    struct cold_read *r = c->reading;
    must(c->state == CALL_STATE_READING && r != NULL && r->call == c);
    call_list_remove(c);
    c->reading = NULL;
    r->call = NULL;
    broker_pieces_release(b, c);
    claims_hand_back(b, c);
    if (r->given) return;
    read_unlink(&b->cold, r);
    read_free(r);
}

bool cold_wants(const struct broker *b, uint64_t first_pos, uint64_t end_pos)
{
    for (const struct cold_read *r = b->cold.first; r != NULL; r = r->next) {
        if (r->first_pos < end_pos && first_pos < r->end_pos) return true;
    }
    return false;
}

void cold_idle(struct broker *b)
{
    cold_cache_age(b->cold.cache, clock_mono_us() - CACHE_AGE_US);
}

void cold_free(struct broker *b)
{
    struct cold_reads *k = &b->cold;
    if (k->reader == NULL) return;
    cold_reader_free(k->reader);
    while (k->first != NULL) {
        struct cold_read *r = k->first;
        k->first = r->next;
        read_free(r);
    }
    cold_cache_free(k->cache);
    k->reader = NULL;
}
