/* Queued calls become one entry.
 *
 *   1. gather   the broker's own commands first, behind a tick the parked pops that its timers arm; then calls in order of arrival,
 *               behind each push, ack or step the parked pops it arms
 *   2. write    head and commands straight into the log's memory
 *   3. submit   one flight more; the disk thread takes it with whatever else is appended
 *
 * Group commit is driven by backlog: with nothing in flight an entry is closed at once; while one is being synced the batch fills,
 * unless it is large already. A few entries may be in flight, bounded in number and bytes.
 *
 * Of the pieces of what concerns a whole queue or tenant at most one goes into an entry, behind everything else, and none while the store
 * is behind: the rows that it changes would pile up, and the cut that collects them would take long. What it will read of the store is read
 * by other threads before (warm.c).
 *
 * Failure: not the leader any more -> every gathered call is answered CALL_NO_LEADER, nothing was written. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/logger.h"
#include "base/planted.h"
#include "broker/broker_internal.h"

/* ---- flights ------------------------------------------------------------------------------------------------------ */

struct flight *flight_new(struct broker *b)
{
    struct flight *f = b->flight_free;
    if (f != NULL) {
        b->flight_free = f->next;
        f->next = NULL;
        return f;
    }
    f = calloc(1, sizeof *f);
    must(f != NULL);
    return f;
}

void flight_recycle(struct broker *b, struct flight *f)
{
    must(f->armed == NULL && f->touched_count == 0);
    if (f->ticks) ticker_flight_gone(b);
    f->ticks = false;
    f->origin_count = 0;
    f->slot_count = 0;
    f->bulk_most = 0;
    f->bytes = 0;
    f->next = b->flight_free;
    b->flight_free = f;
}

static void flight_append(struct broker *b, struct flight *f)
{
    if (b->flight_last != NULL) {
        b->flight_last->next = f;
    } else {
        b->flight_first = f;
    }
    b->flight_last = f;
    b->flight_count++;
    b->flight_bytes += f->bytes;
}

static struct flight *flight_take(struct broker *b)
{
    struct flight *f = b->flight_first;
    b->flight_first = f->next;
    if (f->next == NULL) b->flight_last = NULL;
    f->next = NULL;
    b->flight_count--;
    b->flight_bytes -= f->bytes;
    return f;
}

/* An entry of ours that will not be applied, since another leader's took its place: its calls are proposed anew. */
static void flight_drop(struct broker *b, struct flight *f)
{
    for (uint32_t i = 0; i < f->slot_count; i++) {
        struct call *c = f->slots[i].call;
        f->slots[i].call = NULL;
        if (c != NULL) call_redispatch(b, c);
    }
    parked_flight_applied(b, f);
    flight_recycle(b, f);
}

void flights_resolve(struct broker *b, uint64_t term)
{
    if (PLANTED("answer-by-index")) return;
    while (b->flight_first != NULL && b->flight_first->term < term) flight_drop(b, flight_take(b));
}

struct flight *flight_next(struct broker *b, uint64_t index, uint64_t term)
{
    while (b->flight_first != NULL && b->flight_first->index <= index) {
        struct flight *f = flight_take(b);
        if (f->index == index && (f->term == term || PLANTED("answer-by-index"))) return f;
        flight_drop(b, f);
    }
    return NULL;
}

static void flight_free(struct flight *f)
{
    free(f->slots);
    free(f->touched);
    free(f);
}

void flights_free(struct broker *b)
{
    while (b->flight_first != NULL) {
        struct flight *f = flight_take(b);
        parked_flight_applied(b, f);
        flight_free(f);
    }
    while (b->flight_free != NULL) {
        struct flight *f = b->flight_free;
        b->flight_free = f->next;
        flight_free(f);
    }
}

/* ---- the broker's own commands ------------------------------------------------------------------------------------ */

void internal_claim_return(struct broker *b, struct uuid lease)
{
    claim_return_encode(&b->internal, lease);
    b->internal_count++;
    inbox_kick(b);
}

void internal_init(struct broker *b)
{
    uint64_t seed = 0;
    while (seed == 0) random_bytes(&seed, sizeof seed);
    init_encode(&b->internal, seed);
    b->internal_count++;
    inbox_kick(b);
}

void internal_tick(struct broker *b)
{
    tick_encode(&b->internal);
    b->internal_count++;
    b->ticks_total++;
}

void internal_trim(struct broker *b, const struct trim_item *items, uint32_t count)
{
    trim_encode(&b->internal, items, count);
    b->internal_count++;
    inbox_kick(b);
}

/* Replicas prove that they agree: now and then an entry tells what the leader's state came to. */
static void digest_due(struct broker *b)
{
    uint64_t applied = engine_applied_index(b->engine);
    if (!b->cluster.on || applied < b->cluster.digest_index + DIGEST_ENTRIES) return;
    digest_encode(&b->internal, applied, engine_running_digest(b->engine));
    b->internal_count++;
    b->cluster.digest_index = applied;
}

/* ---- gather ------------------------------------------------------------------------------------------------------- */

static void slots_grow(struct flight *f, uint32_t cap)
{
    f->slot_cap = cap;
    f->slots = realloc(f->slots, f->slot_cap * sizeof f->slots[0]);
    must(f->slots != NULL);
}

void flight_slots_make(struct flight *f, uint32_t count)
{
    if (f->slot_cap < count) slots_grow(f, count);
    memset(f->slots, 0, count * sizeof f->slots[0]);
    f->slot_count = count;
}

static struct flight_slot *slot_add(struct flight *f, struct call *c)
{
    if (f->slot_count == f->slot_cap) slots_grow(f, f->slot_cap == 0 ? 64 : f->slot_cap * 2);
    struct flight_slot *s = &f->slots[f->slot_count];
    *s = (struct flight_slot){.call = c};
    if (c != NULL) {
        c->state = CALL_STATE_PROPOSED;
        c->flight = f;
        c->slot = f->slot_count;
        if (c->remote != NULL) {
            f->bytes += f->origin_count == 0 ? ORIGIN_BYTES + 2 * COMMAND_HEAD_BYTES : ORIGIN_BYTES;
            f->origin_count++;
            c->remote->proposed = true;
        }
    }
    f->slot_count++;
    return s;
}

static bool entry_has_room(const struct flight *f, size_t bytes)
{
    return f->slot_count == 0 || (f->slot_count < BATCH_COMMANDS_MAX && f->bytes + bytes <= ENTRY_BYTES_MAX);
}

static bool handoff_place(struct broker *b, struct flight *f, struct call *c)
{
    (void)b;
    size_t bytes = pop_bytes_max(&c->pop);
    if (!entry_has_room(f, bytes)) return false;
    f->bytes += bytes;
    slot_add(f, c);
    return true;
}

static void push_handoff(struct broker *b, struct handoff *h, const struct command *command)
{
    struct push_command push;
    struct push_group g;
    if (!push_decode(command, &push)) return;
    while (push_group_next(&push.groups, &g)) parked_push(b, h, push.tenant, g.queue, g.partition);
}

static void ack_handoff(struct broker *b, struct handoff *h, const struct command *command)
{
    struct ack_command ack;
    if (ack_open(command, &ack)) parked_ack(b, h, &ack);
}

static void step_handoff(struct broker *b, struct handoff *h, struct call *c, const struct command *command)
{
    struct step_command step;
    struct command ack;
    if (!step_decode(command, &step)) return;
    h->may_fail = true;
    if (c->has_next) parked_next_propose(b, c, h);
    while (command_next(&step.acks, &ack)) ack_handoff(b, h, &ack);
    if (step.has_push) push_handoff(b, h, &step.push);
}

/* The dead letter may be gone, or its message there already. */
static void letter_handoff(struct broker *b, struct handoff *h, const struct command *command)
{
    struct letter_move_command move;
    if (!letter_move_decode(command, &move)) return;
    h->may_fail = true;
    push_handoff(b, h, &move.push);
}

/* Parked callers whom this write serves go right behind it. */
static void write_handoff(struct broker *b, struct flight *f, struct call *c)
{
    struct handoff h = {.f = f, .place = handoff_place};
    struct slice rest = c->command;
    struct command command;
    must(command_next(&rest, &command));
    if (command.kind == COMMAND_PUSH) push_handoff(b, &h, &command);
    if (command.kind == COMMAND_ACK) ack_handoff(b, &h, &command);
    if (command.kind == COMMAND_STEP) step_handoff(b, &h, c, &command);
    if (command.kind == COMMAND_LETTER_MOVE) letter_handoff(b, &h, &command);
}

struct tick_handoff {
    struct broker *b;
    struct handoff h;
};

static void timer_lane(void *ctx, struct uuid tenant, struct slice queue, struct slice partition)
{
    struct tick_handoff *t = ctx;
    parked_push(t->b, &t->h, tenant, queue, partition);
}

/* Bytes of the broker's own commands that go into this entry; their slots come first, then those of pops that a tick serves. */
static size_t gather_internal(struct broker *b, struct flight *f)
{
    struct slice rest = buf_view(&b->internal);
    struct command command;
    size_t bytes = 0;
    while (b->internal_count > 0 && f->slot_count < BATCH_COMMANDS_MAX / 2 && command_next(&rest, &command)) {
        slot_add(f, NULL);
        b->internal_count--;
        bytes += command.all.len;
        f->ticks |= command.kind == COMMAND_TICK;
    }
    f->bytes += bytes;
    if (f->ticks && b->parked.count > 0) {
        struct tick_handoff t = {.b = b, .h = {.f = f, .place = handoff_place}};
        engine_timers_due(b->engine, b->now, TIMERS_A_TICK, timer_lane, &t);
    }
    return bytes;
}

static void bulk_foresee(struct broker *b, const struct engine_foreseen *f)
{
    struct command command;
    buf_clear(&b->encoded);
    buf_slice(&b->encoded, b->bulk.first->command);
    command_piece_set(b->encoded.at, b->keeper.bulk_step.most);
    struct slice rest = buf_view(&b->encoded);
    if (command_next(&rest, &command)) engine_rows_foreseen(b->engine, &command, f);
}

static bool bulk_is_ready(struct broker *b)
{
    const struct call *c = b->bulk.first;
    struct bulk_step *s = &b->keeper.bulk_step;
    if (c == NULL || !b->serving) return false;
    if (!s->rows.reading && s->arrival != c->arrival) {
        s->arrival = c->arrival;
        s->rows.read = false;
        s->most = keeper_bulk_most(b);
    }
    return warm_step(b, &s->rows, bulk_foresee, inbox_kick) && s->arrival == c->arrival && keeper_bulk_due(b);
}

static void gather_bulk(struct broker *b, struct flight *f)
{
    struct call *c = b->bulk.first;
    if (!bulk_is_ready(b) || !entry_has_room(f, c->command.len)) return;
    call_list_remove(c);
    b->queued_bytes -= c->command.len;
    f->bytes += c->command.len;
    f->bulk_slot = f->slot_count;
    f->bulk_most = b->keeper.bulk_step.most;
    b->keeper.bulk_step.rows.read = false;
    pace_begin(&b->keeper.bulk, b->mono_us);
    slot_add(f, c);
}

static void gather_calls(struct broker *b, struct flight *f)
{
    struct call *c;
    while ((c = b->queued.first) != NULL) {
        size_t bytes = c->kind == CALL_POP ? pop_bytes_max(&c->pop) : c->command.len;
        if (!entry_has_room(f, bytes)) return;
        call_list_remove(c);
        b->queued_bytes -= bytes;
        f->bytes += bytes;
        slot_add(f, c);
        if (c->kind == CALL_WRITE && b->parked.count > 0) write_handoff(b, f, c);
    }
    gather_bulk(b, f);
}

/* ---- write -------------------------------------------------------------------------------------------------------- */

/* Parked pops keep what autopilot chose when they were granted, so the bytes gathered for them are enough. */
static size_t pop_write(struct broker *b, const struct call *c, char *at)
{
    buf_clear(&b->encoded);
    pop_encode(&b->encoded, &c->pop);
    must(b->encoded.len <= pop_bytes_max(&c->pop) && b->encoded.len % 8 == 0);
    memcpy(at, b->encoded.at, b->encoded.len);
    return b->encoded.len;
}

static void internal_take(struct broker *b, size_t bytes)
{
    memmove(b->internal.at, b->internal.at + bytes, b->internal.len - bytes);
    b->internal.len -= bytes;
    if (b->internal.len == 0) buf_free(&b->internal);
}

/* Who waits elsewhere for which command: the last command of the entry. */
static size_t origins_write(struct broker *b, const struct flight *f, char *at)
{
    struct origin *origins = arena_get(&b->scratch, f->origin_count * sizeof *origins);
    uint32_t count = 0;
    for (uint32_t i = 0; i < f->slot_count; i++) {
        const struct call *c = f->slots[i].call;
        if (c == NULL || c->remote == NULL) continue;
        origins[count++] = (struct origin){.sequence = c->remote->sequence, .slot = i, .node = (uint32_t)c->remote->peer};
    }
    must(count == f->origin_count);
    buf_clear(&b->encoded);
    origins_encode(&b->encoded, origins, count);
    memcpy(at, b->encoded.at, b->encoded.len);
    return b->encoded.len;
}

static size_t entry_write(struct broker *b, const struct flight *f, size_t internal_bytes, char *at, uint32_t *origins_at)
{
    size_t len = ENTRY_HEAD_BYTES;
    if (internal_bytes > 0) {
        memcpy(at + len, b->internal.at, internal_bytes);
        len += internal_bytes;
        internal_take(b, internal_bytes);
    }
    for (uint32_t i = 0; i < f->slot_count; i++) {
        const struct call *c = f->slots[i].call;
        if (c == NULL) continue;
        if (c->kind == CALL_POP) {
            len += pop_write(b, c, at + len);
        } else {
            memcpy(at + len, c->command.at, c->command.len);
            if (f->bulk_most > 0 && i == f->bulk_slot) command_piece_set(at + len, f->bulk_most);
            len += c->command.len;
        }
    }
    *origins_at = f->origin_count > 0 ? (uint32_t)len : 0;
    if (f->origin_count > 0) len += origins_write(b, f, at + len);
    must(len <= ENTRY_HEAD_BYTES + f->bytes);
    return len;
}

static void skew_say(struct broker *b, enum stamp_skew skew, struct clocks c)
{
    static const char *const texts[] = {
        [STAMP_WALL_BEHIND] = "the wall clock is behind times already given; createdAt goes on with the monotonic clock",
        [STAMP_WALL_JUMPED] = "the wall clock jumped ahead; leases and delays are not affected",
    };
    if (skew == STAMP_FINE || !logger_every(&b->skew_said_us, 60000000)) return;
    log_warn("clock: %s (wall clock %lld us)", texts[skew], (long long)c.wall_us);
}

/* Nothing was written. With other nodes it is worth another try, there or here. */
static void flight_refuse(struct broker *b, struct flight *f)
{
    b->serving = false;
    b->refused_until_us = b->mono_us + REFUSED_US;
    for (uint32_t i = 0; i < f->slot_count; i++) {
        struct call *c = f->slots[i].call;
        if (c == NULL) continue;
        if (c->remote != NULL) c->remote->proposed = false;
        if (b->cluster.on && c->remote == NULL) {
            call_redispatch(b, c);
            continue;
        }
        if (c->kind == CALL_POP) parked_pop_drop(b, c);
        call_finish(b, c, CALL_NO_LEADER);
    }
    f->slot_count = 0;
    parked_flight_applied(b, f);
    flight_recycle(b, f);
}

bool batch_due(struct broker *b)
{
    if (b->queued.count == 0 && b->internal_count == 0 && !bulk_is_ready(b)) return false;
    if (!b->leading || (!b->serving && !b->init_proposed)) return false;
    if (b->flight_count == 0) return true;
    if (b->flight_count >= FLIGHTS_MAX || b->flight_bytes >= FLIGHT_BYTES_MAX) return false;
    return b->queued_bytes >= BATCH_BYTES_EAGER || b->queued.count >= BATCH_CALLS_EAGER;
}

static bool entry_close(struct broker *b)
{
    struct flight *f = flight_new(b);
    uint32_t origins_at;
    digest_due(b);
    size_t internal_bytes = gather_internal(b, f);
    gather_calls(b, f);
    must(f->slot_count > 0);
    if (f->origin_count > 0) slot_add(f, NULL);
    char *at = replica_reserve(b->replica, ENTRY_HEAD_BYTES + f->bytes);
    size_t len = entry_write(b, f, internal_bytes, at, &origins_at);
    struct clocks clocks = {.mono_us = clock_mono_us(), .wall_us = clock_wall_us()};
    struct entry_head head;
    enum stamp_skew skew = stamps_take(&b->stamps, clocks, f->slot_count, &head);
    head.origins_at = origins_at;
    entry_head_write(at, &head);
    f->submitted_us = clocks.mono_us;
    f->wall_us = head.wall_us;
    f->term = replica_term(b->replica);
    f->index = replica_submit(b->replica, len);
    if (f->index == 0) {
        flight_refuse(b, f);
        return false;
    }
    flight_append(b, f);
    warm_entry(b, f->index, slice_make(at, len));
    b->now = stamps_now(&b->stamps, clocks);
    skew_say(b, skew, clocks);
    return true;
}

void batch_turn(struct broker *b)
{
    while (batch_due(b) && entry_close(b)) continue;
}
