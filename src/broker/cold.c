/* Calls that wait for bytes from the log's files.
 *
 *   cold_load  -> everything in ranges read lately: no wait
 *              -> a job: given to the readers, or waiting for those before it; the call is READING
 *   cold_fetch -> a job, of a read
 *   job_back   -> the blocks go to the call's pieces, the call goes on (pop_loaded); or the job stays with its read, which runs again
 *                 (read_run). The next jobs are given
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
    struct cold_read *found_next; /* of a read's */
    uint64_t bytes, first_pos, end_pos;
    bool given;      /* to the readers */
    bool ahead;      /* nothing but rows, of a pop that has claimed nothing yet */
    struct buf rows; /* warm.c: to be read first */
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
    buf_free(&r->rows);
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

static void pop_goes_on(struct broker *b, struct call *c, struct cold_read *r)
{
    bool good = true;
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
    read_free(r);
}

static void read_goes_on(struct broker *b, struct call *c, struct cold_read *r)
{
    for (uint32_t i = 0; i < r->job.count; i++) {
        if (r->pieces[i].fault != NULL) damage_say(b, r->pieces[i].where, r->pieces[i].bytes, r->pieces[i].fault);
    }
    r->found_next = c->found;
    c->found = r;
    room_hold(c, cold_found_bytes(c));
    read_run(b, c);
}

static void pop_begins(struct broker *b, struct call *c, struct cold_read *r)
{
    read_free(r);
    if (c->late || b->stopping) {
        call_finish_empty(b, c);
    } else {
        pop_resume(b, c);
    }
}

static void call_goes_on(struct broker *b, struct cold_read *r)
{
    struct call *c = r->call;
    must(c->state == CALL_STATE_READING && c->reading == r);
    call_list_remove(c);
    c->reading = NULL;
    if (c->kind == CALL_READ) {
        read_goes_on(b, c, r);
    } else if (r->ahead) {
        pop_begins(b, c, r);
    } else {
        pop_goes_on(b, c, r);
    }
}

static void job_back(struct loop_task *t)
{
    struct cold_read *r = owner_of(t, struct cold_read, job.task);
    struct broker *b = r->broker;
    inbox_clock(b);
    read_unlink(&b->cold, r);
    if (r->call != NULL) {
        call_goes_on(b, r);
    } else {
        read_free(r);
    }
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

static void read_add(struct cold_read *r, const struct cold_piece *p)
{
    r->pieces[r->job.count++] = *p;
    r->bytes += p->bytes;
    if (p->where < r->first_pos) r->first_pos = p->where;
    if (p->where + p->bytes > r->end_pos) r->end_pos = p->where + p->bytes;
}

static void read_job_run(struct cold_job *j)
{
    struct cold_read *r = owner_of(j, struct cold_read, job);
    warm_rows_read(r->broker->store, buf_view(&r->rows), COLD_ROWS_BYTES);
    cold_job_read(j);
}

static struct cold_read *read_new(struct broker *b, struct call *c, uint32_t count)
{
    struct cold_read *r = calloc(1, sizeof *r + count * sizeof r->pieces[0]);
    must(r != NULL);
    *r = (struct cold_read){.broker = b, .call = c, .first_pos = UINT64_MAX};
    r->job = (struct cold_job){.task.run = job_back,
                               .run = read_job_run,
                               .cache = b->cold.cache,
                               .segment_bytes = b->config.segment_bytes,
                               .pieces = r->pieces};
    return r;
}

/* In line behind the others; the call is READING. */
static void read_submit(struct broker *b, struct call *c, struct cold_read *r)
{
    struct cold_reads *k = &b->cold;
    c->reading = r;
    c->state = CALL_STATE_READING;
    call_list_append(&k->calls, c);
    r->previous = k->last;
    if (k->last != NULL) {
        k->last->next = r;
    } else {
        k->first = r;
    }
    k->last = r;
    if (k->waiting == NULL) k->waiting = r;
    reads_give(b);
}

static void read_add_claims(struct cold_read *r, struct call *c)
{
    uint32_t slot = 0;
    for (uint32_t i = 0; i < c->result.pop.count; i++) {
        const struct claim *claim = &c->result.pop.claims[i];
        for (uint32_t p = 0; p < claim->piece_count; p++, slot++) {
            struct call_piece *out = &c->pieces[slot];
            if (out->range != NULL) cold_range_drop(out->range); /* a reader finds it again */
            out->range = NULL;
            if (out->pinned) continue;
            const struct delivery_piece *d = &claim->pieces[p];
            read_add(r, &(struct cold_piece){.where = d->where, .bytes = d->block_bytes, .slot = slot, .of = d});
        }
    }
}

bool cold_load(struct broker *b, struct call *c, uint32_t count, uint64_t bytes)
{
    must(count > 0 && c->list == NULL && c->reading == NULL);
    if (bytes <= COLD_RANGE_BYTES && load_from_ranges(b, c)) return true;
    struct cold_read *r = read_new(b, c, count);
    read_add_claims(r, c);
    must(r->job.count == count);
    c->group = NULL; /* its lanes were given back */
    c->lane = NULL;
    c->flight = NULL;
    if (c->held_us != 0) inbox_due_set(b, c);
    c->held_us = 0;
    read_submit(b, c, r);
    return false;
}

void cold_fetch(struct broker *b, struct call *c, const struct cold_want *wants, uint32_t count)
{
    must(c->kind == CALL_READ && c->list == NULL && c->reading == NULL && count > 0);
    struct cold_read *r = read_new(b, c, count);
    for (uint32_t i = 0; i < count; i++) read_add(r, &(struct cold_piece){.where = wants[i].where, .bytes = wants[i].bytes});
    read_submit(b, c, r);
}

void cold_fetch_rows(struct broker *b, struct call *c, struct buf *rows)
{
    must(c->kind != CALL_WRITE && c->list == NULL && c->reading == NULL);
    struct cold_read *r = read_new(b, c, 0);
    r->ahead = c->kind == CALL_POP;
    r->rows = *rows;
    *rows = (struct buf){0};
    read_submit(b, c, r);
}

static int piece_order(const void *where, const void *piece)
{
    const uint64_t *left = where;
    const struct cold_piece *right = piece;
    return *left < right->where ? -1 : *left > right->where;
}

const struct cold_piece *cold_found(const struct call *c, uint64_t where)
{
    for (const struct cold_read *r = c->found; r != NULL; r = r->found_next) {
        const struct cold_piece *p = bsearch(&where, r->pieces, r->job.count, sizeof r->pieces[0], piece_order);
        if (p != NULL) return p;
    }
    return NULL;
}

uint64_t cold_found_bytes(const struct call *c)
{
    uint64_t bytes = 0;
    for (const struct cold_read *r = c->found; r != NULL; r = r->found_next) bytes += r->bytes;
    return bytes;
}

void cold_found_drop(struct call *c)
{
    while (c->found != NULL) {
        struct cold_read *r = c->found;
        c->found = r->found_next;
        read_free(r);
    }
}

void cold_leave(struct broker *b, struct call *c)
{
    struct cold_read *r = c->reading;
    must(c->state == CALL_STATE_READING && (r == NULL || r->call == c));
    call_list_remove(c);
    if (r == NULL) { /* it waits for room */
        claims_hand_back(b, c);
        return;
    }
    c->reading = NULL;
    r->call = NULL;
    if (c->kind == CALL_READ) {
        cold_found_drop(c);
    } else if (!r->ahead) {
        broker_pieces_release(b, c);
        claims_hand_back(b, c);
    }
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
    warm_free(b);
    while (k->first != NULL) {
        struct cold_read *r = k->first;
        k->first = r->next;
        read_free(r);
    }
    cold_cache_free(k->cache);
    buf_free(&k->run.wants);
    k->reader = NULL;
}
