/* Where a call can be answered.
 *
 *   call_dispatch -> this node leads: the queue (batch.c), the pops' forecast (parked.c), a read's confirmation (confirm.c)
 *                 -> another node leads: forward.c; reads ask it how far the log goes and are answered here
 *                 -> nobody known, or it cannot be reached: HELD, at most leader_wait_ms, then CALL_NO_LEADER
 *
 * When the leader changes, what is proposed or forwarded stays where it is: it may be in the log. It is answered when its entry is applied
 * here, or dispatched again when it is certain that it is in none:
 *
 *   an entry of a higher term was applied here   every leader's log goes on from what is committed, so what an older term's leader
 *                                                was given and is not applied by now never will be (each term begins with an entry)
 *   a fence was answered and its index applied   the same leader, but a connection broke: see forward.c
 *
 * So no call runs twice, and none is told a wrong outcome; who cannot wait is told that it is unknown. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/logger.h"
#include "base/planted.h"
#include "broker/broker_internal.h"

enum { HOLD_RETRY_US = 20000 };

/* ---- held --------------------------------------------------------------------------------------------------------- */

/* It waits for a leader, no longer than that may take. */
static void hold_begin(struct broker *b, struct call *c)
{
    if (c->held_us == 0) c->held_us = b->mono_us;
    int64_t until_us = c->held_us + (int64_t)b->config.leader_wait_ms * 1000;
    if (until_us < c->due.key) heap_put(&b->deadlines, &c->due, until_us, c->arrival);
}

void call_unhold(struct broker *b, struct call *c)
{
    if (c->held_us != 0) inbox_due_set(b, c);
    c->held_us = 0;
}

void call_hold(struct broker *b, struct call *c)
{
    struct cluster *k = &b->cluster;
    hold_begin(b, c);
    c->state = CALL_STATE_HELD;
    call_list_append(&k->held, c);
    if (!heap_holds(&k->hold_timer.node)) loop_timer_set(b->loop, &k->hold_timer, b->mono_us + HOLD_RETRY_US);
}

bool hold_expired(struct broker *b, struct call *c)
{
    return c->held_us != 0 && b->mono_us - c->held_us >= (int64_t)b->config.leader_wait_ms * 1000;
}

static void held_dispatch(struct broker *b)
{
    struct call_list all = b->cluster.held;
    struct call *c;
    for (c = all.first; c != NULL; c = c->next) c->list = &all;
    b->cluster.held = (struct call_list){0};
    while ((c = all.first) != NULL) {
        call_list_remove(c);
        call_dispatch(b, c);
    }
}

static bool leader_reachable(const struct broker *b)
{
    const struct cluster *k = &b->cluster;
    return b->serving || (k->leader != 0 && k->leader != b->place.node && net_connected(b->place.net, k->leader));
}

/* The leader may have refused because it was not ready: asked again now and then. */
static void hold_fire(struct loop_timer *t)
{
    struct broker *b = owner_of(t, struct broker, cluster.hold_timer);
    inbox_clock(b);
    if (b->cluster.held.count == 0) return;
    if (leader_reachable(b)) held_dispatch(b);
    if (b->cluster.held.count > 0 && !heap_holds(&t->node)) loop_timer_set(b->loop, t, b->mono_us + HOLD_RETRY_US);
}

/* ---- dispatch ----------------------------------------------------------------------------------------------------- */

void call_take(struct broker *b, struct call *c)
{
    if (c->kind == CALL_WRITE) {
        if (admission_write_refused(b, c)) return;
        inbox_queue(b, c);
        /* Many at once: the disk begins with the first of them while the others are still being read. */
        if (b->queued.count >= BATCH_CALLS_EAGER) batch_turn(b);
        return;
    }
    c->state = CALL_STATE_ARRIVED;
    call_list_append(&b->arrived, c);
}

void call_dispatch(struct broker *b, struct call *c)
{
    must(c->list == NULL && c->group == NULL && c->flight == NULL);
    inbox_kick(b);
    if (c->kind == CALL_READ && (c->always || !b->cluster.on)) {
        call_take(b, c);
    } else if (b->serving) {
        call_unhold(b, c);
        if (c->kind == CALL_READ) {
            confirm_read(b, c);
        } else {
            call_take(b, c);
        }
    } else if (b->guard.exhausted) { /* entries are not applied here, so nothing can be answered */
        call_finish(b, c, CALL_NO_LEADER);
    } else if (!leader_reachable(b)) {
        call_hold(b, c);
    } else if (c->kind == CALL_READ) {
        if (c->held_us != 0) inbox_due_set(b, c);
        confirm_read(b, c);
    } else if (!forward_call(b, c)) {
        call_hold(b, c);
    }
}

void pop_resume(struct broker *b, struct call *c)
{
    if (b->serving) {
        call_take(b, c);
        inbox_kick(b);
    } else if (c->remote != NULL) {
        call_finish(b, c, CALL_NO_LEADER);
    } else {
        call_dispatch(b, c);
    }
}

/* A planted bug: an ack whose entry was lost is answered as if it had been made. */
static bool ack_pretend(struct call *c)
{
    struct slice rest = c->command;
    struct command command;
    struct ack_command ack;
    if (c->kind != CALL_WRITE || !command_next(&rest, &command) || command.kind != COMMAND_ACK) return false;
    if (!ack_decode(&command, &ack)) return false;
    c->result = (struct engine_result){.kind = COMMAND_ACK};
    c->result.ack.count = ack.item_count;
    c->result.ack.items = arena_zero(&c->arena, (ack.item_count + 1) * sizeof c->result.ack.items[0]);
    return true;
}

void call_redispatch(struct broker *b, struct call *c)
{
    if (c->group != NULL) parked_pop_drop(b, c);
    c->flight = NULL;
    c->registers = false;
    call_unhold(b, c);
    if (PLANTED("ack-lost-on-step-down") && ack_pretend(c)) {
        call_finish(b, c, CALL_OK);
    } else if (c->gone) {
        call_finish(b, c, CALL_CANCELLED);
    } else if (b->stopping) {
        call_finish(b, c, CALL_NO_LEADER);
    } else {
        call_dispatch(b, c);
    }
}

/* ---- what changes ------------------------------------------------------------------------------------------------- */

/* The deadlines' heap holds every call that is not answered. */
static void calls_each(struct broker *b, void (*each)(struct broker *b, struct call *c))
{
    uint32_t count = b->deadlines.count;
    struct call **calls = malloc((count + 1) * sizeof calls[0]);
    must(calls != NULL);
    for (uint32_t i = 0; i < count; i++) calls[i] = owner_of(b->deadlines.nodes[i], struct call, due);
    for (uint32_t i = 0; i < count; i++) each(b, calls[i]);
    free(calls);
}

/* What no entry holds goes elsewhere. */
static void lost_move(struct broker *b, struct call *c)
{
    bool here = c->state == CALL_STATE_QUEUED || c->state == CALL_STATE_PARKED ||
                (c->state == CALL_STATE_ARRIVED && !(c->kind == CALL_READ && c->always));
    if (!here || c->remote != NULL) return;
    inbox_unlist(b, c);
    call_dispatch(b, c);
}

static bool may_be_in_the_log(const struct call *c)
{
    return c->remote == NULL &&
           (c->state == CALL_STATE_PROPOSED || (c->state == CALL_STATE_FORWARDED && c->kind == CALL_WRITE));
}

/* What may be in the log waits for a leader no longer than what is held. */
static void leaderless_begin(struct broker *b, struct call *c)
{
    if (may_be_in_the_log(c) && c->held_us == 0) hold_begin(b, c);
}

static void leaderless_end(struct broker *b, struct call *c)
{
    if (may_be_in_the_log(c)) call_unhold(b, c);
}

/* Of the broker's own commands only claims that go back are still wanted by whoever leads. */
static void internal_keep_returns(struct broker *b)
{
    struct buf all = b->internal;
    struct slice rest = buf_view(&all);
    struct command command;
    uint32_t count = b->internal_count;
    b->internal = (struct buf){0};
    b->internal_count = 0;
    for (; count > 0 && command_next(&rest, &command); count--) {
        if (command.kind == COMMAND_TICK) ticker_flight_gone(b);
        if (command.kind != COMMAND_CLAIM_RETURN) continue;
        buf_slice(&b->internal, command.all);
        b->internal_count++;
    }
    buf_free(&all);
}

void dispatch_role(struct broker *b)
{
    if (!b->cluster.on) return;
    confirm_lost(b);
    if (!b->leading) {
        b->serving = false;
        internal_keep_returns(b);
        remote_drop(b, 0);
        calls_each(b, lost_move);
    }
    inbox_kick(b);
}

void dispatch_leader(struct broker *b, uint64_t leader, uint64_t term)
{
    struct cluster *k = &b->cluster;
    if (leader != k->leader) {
        if (leader == 0)
            log_info("group %u: no leader is known (term %llu)", b->place.group, (unsigned long long)term);
        else
            log_info("group %u: node %llu leads in term %llu", b->place.group, (unsigned long long)leader,
                     (unsigned long long)term);
    }
    k->leader = leader;
    k->leader_term = term;
    k->fence_wanted = true;
    k->fence_asked = k->fenced = false;
    atomic_store_explicit(&b->leader_id, leader, memory_order_relaxed);
    confirm_lost(b);
    calls_each(b, leader == 0 ? leaderless_begin : leaderless_end);
    if (leader_reachable(b)) held_dispatch(b);
    inbox_kick(b);
}

static void unanswerable(struct broker *b, struct call *c)
{
    if (c->state == CALL_STATE_FORWARDED && c->kind == CALL_POP) {
        inbox_unlist(b, c);
        call_finish(b, c, CALL_NO_LEADER);
    } else if (may_be_in_the_log(c)) {
        if (c->held_us == 0) c->held_us = 1; /* long ago */
        heap_put(&b->deadlines, &c->due, b->mono_us, c->arrival);
    }
}

void dispatch_exhausted(struct broker *b)
{
    calls_each(b, unanswerable);
    inbox_kick(b);
}

void dispatch_link(struct broker *b, uint64_t peer, enum net_link which, bool up)
{
    struct cluster *k = &b->cluster;
    inbox_clock(b);
    if (which == NET_LINK_IN && !up) remote_drop(b, peer);
    if (peer == k->leader && peer != b->place.node) {
        if (!up) confirm_lost(b);
        calls_each(b, net_connected(b->place.net, peer) ? leaderless_end : leaderless_begin);
        k->fence_wanted = true;
        k->fence_asked = k->fenced = false;
        if (leader_reachable(b)) held_dispatch(b);
    }
    inbox_kick(b);
}

/* ---- a turn ------------------------------------------------------------------------------------------------------- */

static void serving_begin(struct broker *b)
{
    if (b->serving || !b->leading || b->stopping || b->mono_us < b->refused_until_us) return;
    if (engine_id_seed(b->engine) == 0) {
        if (!b->init_proposed) internal_init(b);
        b->init_proposed = true;
        return;
    }
    b->serving = true;
    b->ticker.stale = true;
    retention_applied(b); /* what is due since before */
    log_info("ready: leads in term %llu, %llu entries applied", (unsigned long long)replica_term(b->replica),
             (unsigned long long)engine_applied_index(b->engine));
    held_dispatch(b);
}

/* Nothing will be committed here any more, as far as one can see: waiting for entries is of no use. */
bool dispatch_hopeless(const struct broker *b)
{
    return b->cluster.on && !b->leading && (b->fetched || b->cluster.leader == 0);
}

/* How far behind, and when we last heard of those that matter; for other threads. */
static void health_publish(struct broker *b)
{
    const struct cluster *k = &b->cluster;
    bool ready = b->serving;
    if (k->on && !ready && !b->stopping) {
        uint64_t applied = replica_applied_index(b->replica), commit = replica_commit_index(b->replica);
        bool behind = commit > applied + b->config.ready_lag_entries;
        struct entry_head last = engine_last_head(b->engine);
        int64_t lag_us = behind ? clock_wall_us() - last.wall_us : 0;
        atomic_store_explicit(&b->lag_us, lag_us > 0 ? lag_us : 0, memory_order_relaxed);
        struct snapshots_view v;
        snapshots_view(b->snapshots, &v);
        ready = k->leader != 0 && !v.fetching && !b->fetched && !b->guard.exhausted && engine_id_seed(b->engine) != 0 &&
                lag_us <= (int64_t)b->config.ready_lag_ms * 1000;
    } else if (k->on) {
        atomic_store_explicit(&b->lag_us, 0, memory_order_relaxed);
        int64_t age_us = replica_quorum_age_us(b->replica);
        if (b->leading && age_us >= 0) atomic_store_explicit(&b->heard_us, b->mono_us - age_us, memory_order_relaxed);
    }
    ready = ready && !b->stopping;
    if (ready != atomic_load_explicit(&b->ready, memory_order_relaxed)) atomic_store(&b->ready, ready);
}

void dispatch_turn(struct broker *b)
{
    serving_begin(b);
    if (b->cluster.on) {
        forward_turn(b);
        confirm_turn(b);
    }
    health_publish(b);
}

void dispatch_start(struct broker *b)
{
    struct cluster *k = &b->cluster;
    k->on = b->place.net != NULL;
    k->hold_timer.fire = hold_fire;
    random_bytes(&k->sequence, sizeof k->sequence); /* another start's numbers are others */
    k->sequence &= UINT64_MAX >> 1;
}

void dispatch_free(struct broker *b)
{
    remote_drop(b, 0);
    calls_go_home(b);
    must(b->cluster.held.count == 0 && b->cluster.forwarded.count == 0);
    forward_free(b);
    remote_free(b);
}
