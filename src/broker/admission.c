/* Refusing early, so that what is accepted is answered soon and memory stays flat.
 *
 *   by bytes   broker_admit, before a body is read: all bodies being read and calls being served share one budget. Large bodies
 *              leave a quarter of it to the small ones, which a few uploads that stop half way would else shut out
 *   by count   QUEUED_CALLS_MAX calls wait for an entry
 *   by time    the oldest queued call has waited admit_hold_ms: a newcomer would wait at least as long. What wins room back
 *              (acks, deletes) is let in four times as long as what takes room
 *   by store   the store is far behind the log (keeper.c)
 *   by disk    disk_guard.c
 *   by answers batches and answers that clients do not take share another budget: a batch waits for room, in order, before its bytes are
 *              looked at, and its claims go back when its time is up; reads are refused */
#include "broker/broker_internal.h"

void admission_open(struct admission *a, const struct config *c)
{
    a->bodies_max = c->admit_bytes_max;
    a->answers_max = c->memory.answers;
}

enum { SMALL_CALLS_PATIENCE = 4, RETRY_AFTER_MAX_S = 5, LARGE_BODY_BYTES = 1 << 18 };

/* 1 to 5 seconds: longer the longer the overload lasts. */
uint32_t admission_retry_after(struct broker *b)
{
    if (b->overload_since_us == 0) b->overload_since_us = b->mono_us;
    int64_t seconds = 1 + (b->mono_us - b->overload_since_us) / 1000000;
    uint32_t retry_s = seconds > RETRY_AFTER_MAX_S ? RETRY_AFTER_MAX_S : (uint32_t)seconds;
    atomic_store_explicit(&b->retry_after_s, retry_s, memory_order_relaxed);
    return retry_s;
}

static bool overloaded(struct broker *b, const struct call *c)
{
    if (b->queued.count >= QUEUED_CALLS_MAX) return true;
    if (c->grows && keeper_is_full(b)) return true;
    if (b->queued.first == NULL) return false;
    int64_t age_us = b->mono_us - b->queued.first->queued_us;
    int64_t hold_us = (int64_t)b->config.admit_hold_ms * 1000;
    return age_us > (c->grows ? hold_us : SMALL_CALLS_PATIENCE * hold_us);
}

bool admission_write_refused(struct broker *b, struct call *c)
{
    if (overloaded(b, c)) {
        c->retry_after_s = admission_retry_after(b);
        atomic_fetch_add_explicit(&b->admission->refused, 1, memory_order_relaxed);
        call_finish(b, c, CALL_OVERLOADED);
        return true;
    }
    if (b->overload_since_us != 0 && b->queued.count == 0) {
        b->overload_since_us = 0;
        atomic_store_explicit(&b->retry_after_s, 1, memory_order_relaxed);
    }
    if (!disk_guard_refuses(b, c)) return false;
    call_finish(b, c, CALL_STORAGE_FULL);
    return true;
}

bool broker_admit(struct broker *b, size_t bytes, uint32_t *retry_after_s)
{
    struct admission *a = b->admission;
    uint64_t max = a->bodies_max;
    if (bytes > LARGE_BODY_BYTES) max -= max / 4;
    uint64_t now = atomic_load_explicit(&a->bodies, memory_order_relaxed);
    do {
        /* One body larger than the whole budget is let in when it is alone. */
        if (max != 0 && now != 0 && now + bytes > max) {
            atomic_fetch_add_explicit(&b->admission->refused, 1, memory_order_relaxed);
            *retry_after_s = atomic_load_explicit(&b->retry_after_s, memory_order_relaxed);
            return false;
        }
    } while (!atomic_compare_exchange_weak_explicit(&a->bodies, &now, now + bytes, memory_order_relaxed, memory_order_relaxed));
    return true;
}

void broker_admit_return(struct broker *b, size_t bytes)
{
    uint64_t before = atomic_fetch_sub_explicit(&b->admission->bodies, bytes, memory_order_relaxed);
    must(before >= bytes);
}

/* ---- answers -------------------------------------------------------------------------------------------------------- */

enum { ROOM_LOOK_US = 2000, ANSWER_SMALL_BYTES = 16384, MESSAGE_BYTES = 256 };

void room_hold(struct call *c, uint64_t bytes)
{
    if (!c->counts || c->broker == NULL) return;
    if (bytes < ANSWER_SMALL_BYTES) bytes = 0; /* the connection's share has room for it */
    atomic_uint_fast64_t *answers = &c->broker->admission->answers;
    if (bytes > c->held) atomic_fetch_add_explicit(answers, bytes - c->held, memory_order_relaxed);
    if (bytes < c->held) must(atomic_fetch_sub_explicit(answers, c->held - bytes, memory_order_relaxed) >= c->held - bytes);
    c->held = bytes;
}

void broker_answer_held(struct call *c, uint64_t bytes)
{
    room_hold(c, bytes);
}

/* Large batches leave a quarter to small ones, which go past those that wait. One larger than what there is room for goes when at most
 * half is taken. */
static bool room_for(const struct broker *b, uint64_t bytes)
{
    uint64_t now = atomic_load_explicit(&b->admission->answers, memory_order_relaxed), max = b->admission->answers_max;
    if (bytes < ANSWER_SMALL_BYTES) return true;
    if (bytes <= LARGE_BODY_BYTES) return now + bytes <= max;
    return now + bytes <= max - max / 4 || (bytes > max / 2 && now <= max / 2);
}

bool room_is_full(const struct broker *b)
{
    return atomic_load_explicit(&b->admission->answers, memory_order_relaxed) >= b->admission->answers_max;
}

bool admission_presses(const struct admission *a)
{
    return atomic_load_explicit(&a->answers, memory_order_relaxed) >= a->answers_max / 2;
}

/* At most: of a block only some messages may be delivered. It is told anew when the answer was made. */
static uint64_t batch_bytes(const struct call *c)
{
    uint64_t bytes = (uint64_t)c->result.pop.messages * MESSAGE_BYTES, last = UINT64_MAX;
    for (uint32_t i = 0; i < c->result.pop.count; i++) {
        const struct claim *claim = &c->result.pop.claims[i];
        for (uint32_t p = 0; p < claim->piece_count; p++) {
            if (claim->pieces[p].where != last) bytes += claim->pieces[p].block_bytes;
            last = claim->pieces[p].where;
        }
    }
    return bytes;
}

bool room_take(struct broker *b, struct call *c)
{
    if (!c->counts || c->remote != NULL) return true;
    uint64_t bytes = batch_bytes(c);
    if (room_for(b, bytes) && (bytes <= LARGE_BODY_BYTES || b->room.waiting.count == 0)) {
        room_hold(c, bytes);
        return true;
    }
    c->state = CALL_STATE_READING;
    c->reading = NULL;
    c->group = NULL; /* its lanes were given back */
    c->lane = NULL;
    c->flight = NULL;
    if (c->held_us != 0) inbox_due_set(b, c);
    c->held_us = 0;
    call_list_append(&b->room.waiting, c);
    if (!heap_holds(&b->room.timer.node)) loop_timer_set(b->loop, &b->room.timer, b->mono_us + ROOM_LOOK_US);
    return false;
}

void room_fire(struct loop_timer *t)
{
    struct broker *b = owner_of(t, struct broker, room.timer);
    struct call *c;
    inbox_clock(b);
    while ((c = b->room.waiting.first) != NULL && room_for(b, batch_bytes(c))) {
        call_list_remove(c);
        room_hold(c, batch_bytes(c));
        pop_load(b, c);
    }
    if (c != NULL) loop_timer_set(b->loop, t, b->mono_us + ROOM_LOOK_US);
}

/* ---- callers that wait ---------------------------------------------------------------------------------------------- */

uint32_t parked_max(const struct broker *b)
{
    enum { FORWARDED = 4 }; /* a call of another node has no connection here, and takes that much less */
    uint64_t most = (uint64_t)FORWARDED * b->config.memory.connections_max;
    return most < PARKED_POLLS_MAX ? (uint32_t)most : PARKED_POLLS_MAX;
}
