/* Calls arrive, wait and leave.
 *
 *   broker_submit (home) -> call_arrive (group): refused, or ARRIVED (reads, pops), or QUEUED (writes)
 *   turn's end: reads run (watch.c); pops are granted, parked or answered empty (parked.c); what is queued goes into an entry (batch.c)
 *
 * Arrived pops are looked at before the turn's pushes are batched, so a push finds also the callers that came with it.
 *
 * Failures: a deadline passes -> answered by state; a client leaves -> broker_cancel; overload -> refused at arrival. A call
 * submitted from another loop and cancelled before `done` goes through a handshake: the cancel task travels to the group loop and
 * back, and `done` waits for it, so that no task of a freed call is under way. */
#include <stdlib.h>

#include "base/clock.h"
#include "broker/broker_internal.h"

void call_list_put_before(struct call_list *l, struct call *c, struct call *at)
{
    if (at == NULL) {
        call_list_append(l, c);
        return;
    }
    must(c->list == NULL && at->list == l);
    c->list = l;
    c->next = at;
    c->previous = at->previous;
    if (at->previous != NULL) {
        at->previous->next = c;
    } else {
        l->first = c;
    }
    at->previous = c;
    l->count++;
}

void call_list_put_ordered(struct call_list *l, struct call *c)
{
    enum { STEPS_MAX = 64 };
    if (l->last == NULL || l->last->arrival < c->arrival) {
        call_list_append(l, c);
        return;
    }
    struct call *at = l->first;
    for (int i = 0; at->arrival < c->arrival && i < STEPS_MAX; i++) at = at->next;
    must(at != NULL);
    call_list_put_before(l, c, at);
}

void call_list_remove(struct call *c)
{
    struct call_list *l = c->list;
    must(l != NULL && l->count > 0);
    if (c->previous != NULL) {
        c->previous->next = c->next;
    } else {
        l->first = c->next;
    }
    if (c->next != NULL) {
        c->next->previous = c->previous;
    } else {
        l->last = c->previous;
    }
    l->count--;
    c->list = NULL;
    c->next = c->previous = NULL;
}

void inbox_clock(struct broker *b)
{
    struct clocks c = {.mono_us = clock_mono_us(), .wall_us = clock_wall_us()};
    b->mono_us = c.mono_us;
    b->now = stamps_now(&b->stamps, c);
}

static void kick_run(struct loop_task *t)
{
    owner_of(t, struct broker, kick)->kicked = false;
}

void inbox_kick(struct broker *b)
{
    if (b->kicked) return;
    b->kicked = true;
    b->kick.run = kick_run;
    loop_post(b->loop, &b->kick);
}

size_t pop_bytes_max(const struct pop_command *p)
{
    size_t names = p->group.len + p->queue.len + p->partition.len + p->name_space.len + p->task.len;
    return COMMAND_HEAD_BYTES + 256 + names;
}

static size_t call_bytes(const struct call *c)
{
    return c->kind == CALL_POP ? pop_bytes_max(&c->pop) : c->command.len;
}

/* A piece of work over a whole queue or tenant. */
static bool call_is_bulk(const struct call *c)
{
    if (c->kind != CALL_WRITE || c->command.len < COMMAND_HEAD_BYTES) return false;
    uint8_t kind = command_kind(c->command);
    return kind == COMMAND_SEEK || kind == COMMAND_GROUP_DELETE || kind == COMMAND_SUBSCRIPTION ||
           kind == COMMAND_LETTERS_DELETE;
}

void inbox_queue(struct broker *b, struct call *c)
{
    c->state = CALL_STATE_QUEUED;
    c->queued_us = b->mono_us;
    b->queued_bytes += call_bytes(c);
    call_list_append(call_is_bulk(c) ? &b->bulk : &b->queued, c);
}

void inbox_unlist(struct broker *b, struct call *c)
{
    switch (c->state) {
    case CALL_STATE_ARRIVED:
        call_list_remove(c);
        return;
    case CALL_STATE_QUEUED:
        b->queued_bytes -= call_bytes(c);
        call_list_remove(c);
        if (c->kind == CALL_POP) parked_pop_drop(b, c);
        return;
    case CALL_STATE_PARKED:
        parked_unpark(b, c);
        return;
    case CALL_STATE_WAITING:
        watch_leave(b, c);
        return;
    case CALL_STATE_HELD:
        call_list_remove(c);
        return;
    case CALL_STATE_FORWARDED:
        forward_leave(b, c, true);
        return;
    case CALL_STATE_ASKING:
        confirm_leave(b, c);
        return;
    case CALL_STATE_READING:
        cold_leave(b, c);
        return;
    default:
        must(false);
    }
}

/* An empty long poll leaves a little early, so that nothing is claimed for a client that is about to give up. */
int64_t inbox_due_us(const struct broker *b, const struct call *c)
{
    if (c->kind != CALL_POP || !c->wait || c->deadline_us <= b->mono_us) return c->deadline_us;
    int64_t margin_us = (c->deadline_us - b->mono_us) / 4;
    return c->deadline_us - (margin_us < POP_MARGIN_US_MAX ? margin_us : POP_MARGIN_US_MAX);
}

void inbox_due_set(struct broker *b, struct call *c)
{
    heap_put(&b->deadlines, &c->due, inbox_due_us(b, c), c->arrival);
}

static void call_arrive(struct broker *b, struct call *c)
{
    c->state = CALL_STATE_ARRIVED;
    c->arrival = ++b->arrivals;
    c->gone = c->late = c->registers = false;
    c->lanes = 0;
    c->group = NULL;
    c->lane = NULL;
    c->flight = NULL;
    c->list = NULL;
    c->pieces = NULL;
    c->reading = c->found = NULL;
    c->rounds = 0;
    c->warmed = 0;
    c->read_index = 0;
    c->step = NULL;
    c->watches = NULL;
    c->watch_count = 0;
    c->sequence = 0;
    c->held_us = 0;
    inbox_kick(b);
    bool taken = (b->serving || b->cluster.on) && !b->stopping;
    if (b->stopped || (!taken && !(c->kind == CALL_READ && c->always))) {
        call_finish(b, c, CALL_NO_LEADER);
        return;
    }
    b->mono_us = clock_mono_us();
    if (c->kind == CALL_WRITE)
        must(c->command.len >= COMMAND_HEAD_BYTES && c->command.len % 8 == 0 && c->command.len <= COMMAND_BYTES_MAX);
    if (c->kind != CALL_WRITE) b->keeper.others_us = b->mono_us; /* writes count when their entry is applied */
    inbox_due_set(b, c);
    call_dispatch(b, c);
}

void inbox_next_wait(struct broker *b, struct call *c)
{
    c->kind = CALL_POP;
    c->flight = NULL;
    c->arrival = ++b->arrivals;
    c->deadline_us = b->mono_us + c->next_wait_us;
    inbox_due_set(b, c);
    if (b->serving) {
        parked_next_wait(b, c);
    } else {
        parked_next_from_now(c);
        call_dispatch(b, c);
    }
}

static void arrive_run(struct loop_task *t)
{
    struct call *c = owner_of(t, struct call, task);
    call_arrive(c->broker, c);
}

void broker_submit(struct broker *b, struct call *c)
{
    must(c->state == CALL_STATE_IDLE || c->state == CALL_STATE_DONE);
    must(c->home != NULL && c->done != NULL && !c->cancel_pending);
    c->broker = b;
    c->cancelled = c->done_held = false;
    if (c->home == b->loop) {
        call_arrive(b, c);
        return;
    }
    c->state = CALL_STATE_COMING;
    c->task.run = arrive_run;
    loop_post(b->loop, &c->task);
}

/* On the group's loop: nobody waits for this call any more. */
static void call_abandon(struct broker *b, struct call *c)
{
    switch (c->state) {
    case CALL_STATE_ARRIVED:
    case CALL_STATE_QUEUED:
    case CALL_STATE_PARKED:
    case CALL_STATE_WAITING:
    case CALL_STATE_HELD:
    case CALL_STATE_FORWARDED:
    case CALL_STATE_ASKING:
    case CALL_STATE_READING:
        inbox_unlist(b, c);
        call_finish(b, c, CALL_CANCELLED);
        inbox_kick(b);
        return;
    case CALL_STATE_PROPOSED:
        c->gone = true;
        return;
    default:
        must(c->state == CALL_STATE_DONE);
    }
}

static void cancel_home_run(struct loop_task *t)
{
    struct call *c = owner_of(t, struct call, cancel_task);
    c->cancel_pending = false;
    if (c->done_held) c->done(c);
}

static void cancel_run(struct loop_task *t)
{
    struct call *c = owner_of(t, struct call, cancel_task);
    struct loop *home = c->home;
    call_abandon(c->broker, c);
    c->cancel_task.run = cancel_home_run;
    loop_post(home, &c->cancel_task);
}

void broker_cancel(struct broker *b, struct call *c)
{
    must(c->broker == b);
    if (c->cancelled) return;
    c->cancelled = true;
    if (c->home == b->loop) {
        call_abandon(b, c);
        return;
    }
    c->cancel_pending = true;
    c->cancel_task.run = cancel_run;
    loop_post(b->loop, &c->cancel_task);
}

/* A call in the log whose time is up leaves its slot; the entry goes its way without it. Without a leader nobody knows what becomes of it. */
static void proposed_expire(struct broker *b, struct call *c)
{
    /* Claims of an autoAck pop cannot be handed back: it waits for its entry, whose outcome is near or never. */
    bool claims = c->kind == CALL_POP || c->has_next, unknown = hold_expired(b, c);
    bool keeps = claims && c->pop.auto_ack && !b->stopping;
    if (!unknown && (!c->late || keeps)) {
        c->late = true;
        heap_put(&b->deadlines, &c->due, b->mono_us + PROPOSED_GRACE_US, c->arrival);
        return;
    }
    struct flight_slot *s = &c->flight->slots[c->slot];
    must(s->call == c);
    s->call = NULL;
    if (claims) {
        s->orphan_pop = !c->pop.auto_ack;
        s->lease = c->pop.lease_id;
    }
    if (c->kind == CALL_POP) {
        parked_pop_drop(b, c);
    } else if (claims) {
        parked_next_drop(b, c);
    }
    call_finish(b, c, c->gone ? CALL_CANCELLED : unknown ? CALL_UNKNOWN : CALL_TIMEOUT);
}

/* It knows what it answers: it is given time to get its bytes, and an autoAck pop, whose claims cannot be handed back, all that it takes. */
static void reading_expire(struct broker *b, struct call *c)
{
    bool keeps = c->kind != CALL_READ && c->pop.auto_ack && !b->stopping;
    if (!c->late || keeps) {
        c->late = true;
        heap_put(&b->deadlines, &c->due, b->mono_us + PROPOSED_GRACE_US, c->arrival);
        return;
    }
    inbox_unlist(b, c);
    call_finish(b, c, CALL_TIMEOUT);
}

static void call_expire(struct broker *b, struct call *c)
{
    bool held = c->state == CALL_STATE_HELD, asking = c->state == CALL_STATE_ASKING;
    if (c->state == CALL_STATE_PROPOSED) {
        proposed_expire(b, c);
        return;
    }
    if (c->state == CALL_STATE_READING) {
        reading_expire(b, c);
        return;
    }
    bool unknown = c->state == CALL_STATE_FORWARDED && c->kind == CALL_WRITE && hold_expired(b, c);
    if (c->state == CALL_STATE_FORWARDED && c->kind == CALL_WRITE && !c->late && !unknown) {
        c->late = true; /* it may be in the log */
        heap_put(&b->deadlines, &c->due, b->mono_us + PROPOSED_GRACE_US, c->arrival);
        return;
    }
    inbox_unlist(b, c);
    if (held && (hold_expired(b, c) || c->kind != CALL_POP || !c->wait)) {
        call_finish(b, c, CALL_NO_LEADER);
    } else if (asking && c->kind == CALL_READ) {
        call_finish(b, c, CALL_TIMEOUT);
    } else if (c->kind == CALL_POP) {
        call_finish_empty(b, c);
    } else if (c->kind == CALL_READ) {
        read_run_late(b, c);
    } else {
        call_finish(b, c, unknown ? CALL_UNKNOWN : CALL_TIMEOUT);
    }
}

void inbox_deadline_fire(struct loop_timer *t)
{
    struct broker *b = owner_of(t, struct broker, deadline_timer);
    b->deadline_timer_us = 0;
    inbox_clock(b);
    struct heap_node *n;
    while ((n = heap_min(&b->deadlines)) != NULL && n->key <= b->mono_us) {
        heap_remove(&b->deadlines, n);
        call_expire(b, owner_of(n, struct call, due));
    }
}

/* The timer may be set too early (its call was answered): it then only sets itself anew. */
void inbox_deadlines_arm(struct broker *b)
{
    struct heap_node *n = heap_min(&b->deadlines);
    if (n == NULL || (b->deadline_timer_us != 0 && b->deadline_timer_us <= n->key)) return;
    b->deadline_timer_us = n->key;
    loop_timer_set(b->loop, &b->deadline_timer, n->key);
}

void inbox_turn(struct broker *b)
{
    struct call *c;
    while ((c = b->arrived.first) != NULL) {
        call_list_remove(c);
        if (c->kind == CALL_READ) {
            read_run(b, c);
        } else if (!warm_pop(b, c)) {
            parked_pop_arrive(b, c);
        }
    }
}

/* Stopping, or leadership of the only node lost. The deadlines' heap holds every call that is not answered. */
void inbox_end(struct broker *b, enum call_outcome of_queued, enum call_outcome of_proposed)
{
    uint32_t count = b->deadlines.count;
    struct call **calls = malloc((count + 1) * sizeof calls[0]);
    must(calls != NULL);
    for (uint32_t i = 0; i < count; i++) calls[i] = owner_of(b->deadlines.nodes[i], struct call, due);
    for (uint32_t i = 0; i < count; i++) {
        struct call *c = calls[i];
        bool sent = c->state == CALL_STATE_FORWARDED && c->kind == CALL_WRITE;
        bool nowhere = c->state == CALL_STATE_HELD || c->state == CALL_STATE_ASKING || c->remote != NULL;
        if (c->state == CALL_STATE_PROPOSED) {
            if (of_proposed == CALL_OK) continue;
            c->flight->slots[c->slot].call = NULL;
            if (c->kind == CALL_POP) parked_pop_drop(b, c);
            call_finish(b, c, of_proposed);
        } else if (c->state == CALL_STATE_READING) {
            if (of_proposed == CALL_OK || !b->stopping) continue;
            inbox_unlist(b, c);
            call_finish(b, c, of_proposed);
        } else if (sent) {
            if (of_proposed == CALL_OK) continue;
            inbox_unlist(b, c);
            call_finish(b, c, of_proposed);
        } else if (nowhere && b->stopping) {
            inbox_unlist(b, c);
            call_finish(b, c, CALL_NO_LEADER);
        } else if (c->kind == CALL_POP && b->stopping) {
            inbox_unlist(b, c);
            call_finish_empty(b, c);
        } else if (c->state == CALL_STATE_WAITING && b->stopping) {
            inbox_unlist(b, c);
            read_run_late(b, c);
        } else if (of_queued != CALL_OK) {
            inbox_unlist(b, c);
            call_finish(b, c, of_queued);
        }
    }
    free(calls);
}
