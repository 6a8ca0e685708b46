/* An entry applied: results go to their calls, calls go home.
 *
 *   the replica's apply -> engine_apply -> sink: arena and result per slot, lanes that became ready
 *                       -> slots settled in order: writes are done; pops get their bytes, or wait for them (cold.c), or park
 *                          again, or hand back
 *                       -> a committed step's next: as a pop; with nothing to claim it goes on as a long poll
 *                       -> reads that wait for appends are marked (watch.c)
 *   turn's end          -> calls_go_home: one chain and one task per home loop; on the group's own loop `done` is called there
 *
 * Failures: an entry that cannot be applied stops the process (exit 4). A payload that cannot be read back: CALL_DAMAGED, logged with
 * its place, the claims handed back. The caller left while its pop was in the log: claims handed back, then done. */
#include <unistd.h>

#include "base/clock.h"
#include "base/crash_point.h"
#include "base/logger.h"
#include "broker/broker_internal.h"

/* ---- going home --------------------------------------------------------------------------------------------------- */

static struct home *home_of(struct broker *b, struct loop *loop)
{
    for (uint32_t i = 0; i < b->home_count; i++) {
        if (b->homes[i].loop == loop) return &b->homes[i];
    }
    must(b->home_count < HOMES_MAX);
    struct home *h = &b->homes[b->home_count++];
    *h = (struct home){.loop = loop};
    return h;
}

void call_finish(struct broker *b, struct call *c, enum call_outcome outcome)
{
    must(c->state != CALL_STATE_DONE && c->list == NULL);
    heap_remove(&b->deadlines, &c->due);
    if (outcome != CALL_OK && outcome != CALL_EMPTY && c->retry_after_s == 0) c->retry_after_s = 1;
    if (outcome != CALL_OK) room_hold(c, 0);
    c->state = CALL_STATE_DONE;
    c->outcome = outcome;
    c->group = NULL;
    c->lane = NULL;
    c->flight = NULL;
    c->next = NULL;
    struct home *h = home_of(b, c->home);
    if (h->last != NULL) {
        h->last->next = c;
    } else {
        h->first = c;
    }
    h->last = c;
}

void call_finish_empty(struct broker *b, struct call *c)
{
    c->result = (struct engine_result){.kind = COMMAND_POP};
    engine_pop_policy(b->engine, &c->pop, &c->result.pop.conflates, &c->result.pop.conflation_conflict);
    call_finish(b, c, CALL_EMPTY);
}

static void chain_done(struct call *c)
{
    while (c != NULL) {
        struct call *next = c->next;
        if (c->cancel_pending) {
            c->done_held = true;
        } else {
            c->done(c);
        }
        c = next;
    }
}

static void chain_run(struct loop_task *t)
{
    chain_done(owner_of(t, struct call, task));
}

void calls_go_home(struct broker *b)
{
    struct call *mine = NULL;
    for (uint32_t i = 0; i < b->home_count; i++) {
        struct home *h = &b->homes[i];
        struct call *first = h->first;
        if (first == NULL) continue;
        h->first = h->last = NULL;
        if (h->loop == b->loop) {
            mine = first;
            continue;
        }
        first->task.run = chain_run;
        loop_post(h->loop, &first->task);
    }
    chain_done(mine);
}

/* ---- payload bytes ------------------------------------------------------------------------------------------------ */

void damage_say(struct broker *b, uint64_t where, uint32_t bytes, const char *what)
{
    char text[PLACE_TEXT_BYTES];
    place_text(where, b->config.segment_bytes, text);
    broker_damaged(b, text, false);
    if (!logger_every(&b->damage_said_us, 1000000)) return;
    log_error("the payload in %s/%s (%u bytes) cannot be delivered: %s", b->config.dir, text, bytes, what);
}

bool piece_take(struct broker *b, const struct delivery_piece *d, struct slice block, struct call_piece *out)
{
    if (push_group_of(block, &out->group) && d->item0 + d->count <= out->group.item_count) return true;
    damage_say(b, d->where, d->block_bytes, "not a push group");
    return false;
}

/* False: the call waits for them. */
static bool pieces_load(struct broker *b, struct call *c, bool *good)
{
    *good = true;
    if (c->remote != NULL) return true; /* delivered where it came from */
    uint32_t total = 0, at = 0, cold = 0;
    uint64_t cold_bytes = 0;
    for (uint32_t i = 0; i < c->result.pop.count; i++) total += c->result.pop.claims[i].piece_count;
    c->pieces = arena_zero(&c->arena, (total + 1) * sizeof c->pieces[0]);
    for (uint32_t i = 0; *good && i < c->result.pop.count; i++) {
        const struct claim *claim = &c->result.pop.claims[i];
        for (uint32_t k = 0; *good && k < claim->piece_count; k++) {
            const struct delivery_piece *d = &claim->pieces[k];
            struct call_piece *out = &c->pieces[at++];
            struct slice block;
            out->pinned = place_view(&b->places, d->where, d->block_bytes, &block, &out->pin);
            if (out->pinned) {
                *good = piece_take(b, d, block, out);
            } else {
                cold++;
                cold_bytes += d->block_bytes;
            }
        }
    }
    return !*good || cold == 0 || cold_load(b, c, cold, cold_bytes);
}

void broker_pieces_release(struct broker *b, struct call *c)
{
    if (c->pieces == NULL) return;
    uint32_t at = 0;
    for (uint32_t i = 0; i < c->result.pop.count; i++) {
        for (uint32_t k = 0; k < c->result.pop.claims[i].piece_count; k++, at++) {
            broker_piece_release(b, &c->pieces[at]);
        }
    }
    c->pieces = NULL;
}

/* ---- the sink ----------------------------------------------------------------------------------------------------- */

static struct arena *sink_arena(void *ctx, uint32_t slot)
{
    struct broker *b = ctx;
    struct call *c = b->applying->slots[slot].call;
    return c != NULL ? &c->arena : &b->scratch;
}

static const struct pop_result *claims_of(const struct engine_result *r)
{
    if (r->kind == COMMAND_POP) return &r->pop;
    return r->kind == COMMAND_STEP && r->step.refusal == STEP_COMMITTED ? &r->step.next : NULL;
}

/* What the broker's own commands did. */
static void internal_count_up(struct broker *b, const struct engine_result *r)
{
    if (r->kind == COMMAND_TICK) {
        b->timers_fired_total += r->tick.fired;
        b->timers_duplicate_total += r->tick.duplicates;
        if (r->tick.fired + r->tick.duplicates > 0) b->timer_late_us = r->tick.late_us;
    } else if (r->kind == COMMAND_TRIM) {
        b->trimmed_lanes_total += r->trim.lanes;
        b->trimmed_messages_total += r->trim.messages;
    }
}

static void sink_result(void *ctx, uint32_t slot, const struct engine_result *r)
{
    struct broker *b = ctx;
    must(slot < b->applying->slot_count);
    struct flight_slot *s = &b->applying->slots[slot];
    const struct pop_result *claims = claims_of(r);
    if (s->call != NULL) {
        s->call->result = *r;
        s->call->wall_us = b->applying->wall_us + slot;
        s->settled = true;
    } else if (s->orphan_pop && claims != NULL && claims->count > 0) {
        internal_claim_return(b, s->lease);
        forward_orphan_claimed(b, s->orphan);
    } else {
        internal_count_up(b, r);
    }
}

static void sink_ready(void *ctx, uint32_t group_number, uint32_t partition_number, struct slice partition_name)
{
    (void)partition_number;
    parked_lane_ready(ctx, group_number, partition_name);
}

static void sink_appended(void *ctx, uint32_t partition_number)
{
    watch_appended(ctx, partition_number);
}

/* ---- settling ----------------------------------------------------------------------------------------------------- */

void claims_hand_back(struct broker *b, const struct call *c)
{
    if (c->result.pop.count > 0 && !c->pop.auto_ack) internal_claim_return(b, c->pop.lease_id);
}

/* The batch goes to its caller with its bytes at hand, or its claims go back. */
void pop_loaded(struct broker *b, struct call *c, bool good)
{
    if (good) {
        pop_lag_count(b, c);
        call_finish(b, c, CALL_OK);
        return;
    }
    broker_pieces_release(b, c);
    claims_hand_back(b, c);
    call_finish(b, c, CALL_DAMAGED);
}

void pop_load(struct broker *b, struct call *c)
{
    bool good;
    if (pieces_load(b, c, &good)) pop_loaded(b, c, good);
}

static void pop_deliver(struct broker *b, struct call *c)
{
    if (room_take(b, c)) pop_load(b, c);
}

static void pop_park(struct broker *b, struct call *c)
{
    c->flight = NULL; /* from here it may move to another leader */
    if (b->serving) {
        parked_park(b, c);
        return;
    }
    c->group = NULL; /* its lanes were given back */
    c->lane = NULL;
    call_dispatch(b, c);
}

static void pop_settle(struct broker *b, struct call *c)
{
    bool claimed = c->result.pop.count > 0;
    parked_pop_settle(b, c);
    if (c->gone) {
        claims_hand_back(b, c);
        call_finish(b, c, CALL_CANCELLED);
    } else if (claimed) {
        pop_deliver(b, c);
    } else if (c->wait && !c->late && !b->stopping && c->sequence != 0) {
        forward_again(b, c); /* it is parked at the leader again */
    } else if (c->wait && c->group != NULL && !c->late && !b->stopping) {
        pop_park(b, c);
    } else {
        call_finish_empty(b, c);
    }
}

/* The step is done whatever becomes of its next batch. */
static void next_settle(struct broker *b, struct call *c)
{
    struct step_result *step = arena_get(&c->arena, sizeof *step);
    *step = c->result.step;
    c->step = step;
    c->result = (struct engine_result){.kind = COMMAND_POP, .pop = step->next};
    parked_next_settle(b, c);
    if (c->gone) {
        claims_hand_back(b, c);
        call_finish(b, c, CALL_CANCELLED);
    } else if (step->next.count > 0) {
        pop_deliver(b, c);
    } else if (c->wait && c->next_wait_us > 0 && !c->late && !b->stopping) {
        inbox_next_wait(b, c);
    } else {
        call_finish_empty(b, c);
    }
}

static void group_delete_settle(struct broker *b, const struct call *c, const struct group_delete_command *d)
{
    for (uint32_t i = 0; i < c->result.changed.queue_count; i++)
        parked_group_deleted(b, d->tenant, c->result.changed.queues[i], d->group, c->wall_us + 1);
}

/* What a write changed for parked callers beyond the engine's `ready`. */
static void parked_tell(struct broker *b, const struct call *c)
{
    struct slice rest = c->command;
    struct command command;
    struct queue_delete_command q;
    struct configure_command o;
    struct group_delete_command g;
    struct seek_command s;
    struct subscription_command u;
    must(command_next(&rest, &command));
    switch (c->result.kind) {
    case COMMAND_QUEUE_DELETE:
        if (queue_delete_decode(&command, &q)) parked_queue_deleted(b, q.tenant, q.queue, c->wall_us + 1);
        return;
    case COMMAND_CONFIGURE:
        if (configure_decode(&command, &o)) parked_queue_changed(b, o.tenant, o.queue);
        return;
    case COMMAND_GROUP_DELETE:
        if (group_delete_decode(&command, &g)) group_delete_settle(b, c, &g);
        return;
    case COMMAND_SEEK: /* it may have made the group known */
        if (seek_decode(&command, &s) && s.piece.until == 0) parked_queue_changed(b, s.tenant, s.queue);
        return;
    case COMMAND_SUBSCRIPTION:
        if (subscription_decode(&command, &u)) parked_group_changed(b, u.tenant, u.group);
        return;
    default:
        return;
    }
}

static void write_settle(struct broker *b, struct call *c)
{
    if (c->has_next && c->result.kind == COMMAND_STEP && c->result.step.refusal == STEP_COMMITTED) {
        next_settle(b, c);
        return;
    }
    if (b->parked.queues.count > 0) parked_tell(b, c);
    call_finish(b, c, c->gone ? CALL_CANCELLED : CALL_OK);
}

static void flight_count_up(struct broker *b, const struct flight *f)
{
    int64_t took_us = clock_mono_us() - f->submitted_us;
    uint32_t bucket = 0;
    while (bucket + 1 < LATENCY_BUCKETS && took_us >= (int64_t)16 << bucket) bucket++;
    b->entry_buckets[bucket]++;
    b->entries_total++;
    b->entry_us_total += took_us > 0 ? (uint64_t)took_us : 0;
    b->commands_total += f->slot_count;
    if (took_us >= SLOW_COMMAND_US) b->slow_commands_total += f->slot_count;
}

static void flight_settle(struct broker *b, struct flight *f)
{
    for (uint32_t i = 0; i < f->slot_count; i++) {
        struct call *c = f->slots[i].call;
        if (c == NULL) continue;
        must(c->state == CALL_STATE_PROPOSED && c->slot == i && f->slots[i].settled);
        if (c->remote != NULL) c->remote->proposed = false;
        if (c->kind == CALL_POP) {
            pop_settle(b, c);
        } else {
            write_settle(b, c);
        }
    }
    parked_flight_applied(b, f);
    flight_count_up(b, f);
    flight_recycle(b, f);
}

void entry_apply(void *ctx, uint64_t index, uint64_t term, uint64_t pos, struct slice body)
{
    struct broker *b = ctx;
    struct flight *f = flight_next(b, index, term);
    if (f == NULL && b->cluster.on) f = forward_flight(b, body);
    struct engine_sink sink = {.ctx = b, .ready = sink_ready};
    if (f != NULL) {
        sink.arena = sink_arena;
        sink.result = sink_result;
    }
    if (b->watching.watches > 0) sink.appended = sink_appended;
    b->applying = f;
    crash_point("apply-before");
    int64_t began_us = clock_mono_us();
    b->executing = true;
    const char *reason = engine_apply(b->engine, index, pos, body, &sink);
    b->executing = false;
    b->mono_us = clock_mono_us();
    b->apply_us_total += (uint64_t)(b->mono_us - began_us);
    crash_point("apply-after");
    b->applying = NULL;
    if (reason != NULL) {
        broker_die(4, "entry %llu at log position %llu cannot be applied: %s", (unsigned long long)index,
                   (unsigned long long)pos, reason);
    }
    b->keeper.applied_term = term;
    if (f != NULL && f->bulk_most > 0) pace_end(&b->keeper.bulk, b->mono_us, b->mono_us - began_us);
    if (f == NULL || f->bulk_most == 0 || f->slot_count > 1) b->keeper.others_us = b->mono_us;
    b->cluster.entry_us = b->mono_us;
    b->housekeeping = b->ticker.stale = true;
    watch_applied(b);
    retention_applied(b);
    if (f != NULL) {
        flight_settle(b, f);
    } else if (atomic_load_explicit(&b->role, memory_order_relaxed) == REPLICA_STARTING &&
               logger_every(&b->replay_said_us, 1000000)) {
        log_info("replaying the log: entry %llu of %llu", (unsigned long long)index,
                 (unsigned long long)replica_last_index(b->replica));
    }
    if (b->scratch.total > 0) arena_free(&b->scratch);
}
