/* Calls that another node, the leader, puts into the log for this one.
 *
 *   forward_call: {term, sequence, the encoded command} -> leader: its queue, its parked callers, an entry {..., ORIGINS}
 *   every node applies every entry. This one finds its sequences in ORIGINS, and the calls are answered as if it had proposed them: from the
 *   results of its own engine and the bytes in its own log. Nothing of a result travels.
 *   CALLS_DONE: what ended without an entry (nothing to deliver in time, overloaded, ...)
 *
 * A forwarded call names the term: a leader takes it only in that term, so its entry, if there ever is one, has that term; see
 * dispatch.c for when it is certain that there is none. When a connection between this node and the leader broke, frames may be
 * lost in either direction: CALLS_FENCE asks the leader to forget what it has of us outside the log, and to tell how far its log goes;
 * when that is applied here, what was sent before the fence and not seen is in no entry.
 *
 * A caller that leaves, or whose time is up, is answered at once: the leader is told (CALLS_CANCEL), and an orphan remembers the lease, so
 * that claims made nonetheless are handed back when their entry applies here. */
#include <stdlib.h>
#include <string.h>

#include "base/logger.h"
#include "broker/broker_internal.h"

enum { VITAL_BYTES_MAX = 65536 };

bool calls_send(struct broker *b, uint64_t peer, const struct slice *parts, uint32_t count)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) bytes += parts[i].len;
    uint32_t flags = bytes <= VITAL_BYTES_MAX ? NET_VITAL : 0;
    return peer != 0 && net_send(b->place.net, peer, (uint16_t)b->place.group, FRAME_CALLS, flags, parts, count);
}

bool calls_head_send(struct broker *b, uint64_t peer, const struct calls_head *h)
{
    struct slice part = slice_make((const char *)h, sizeof *h);
    return calls_send(b, peer, &part, 1);
}

static struct call *forward_find(struct broker *b, uint64_t sequence)
{
    struct hash_node *n = hash_table_find(&b->cluster.forwards, sequence);
    return n == NULL ? NULL : owner_of(n, struct call, forwarded);
}

static struct orphan *orphan_find(struct broker *b, uint64_t sequence)
{
    struct hash_node *n = hash_table_find(&b->cluster.orphans, sequence);
    return n == NULL ? NULL : owner_of(n, struct orphan, node);
}

/* ---- out ---------------------------------------------------------------------------------------------------------- */

static uint8_t flags_of(const struct call *c)
{
    unsigned flags = 0;
    if (c->wait) flags |= FORWARD_WAIT;
    if (c->grows) flags |= FORWARD_GROWS;
    if (c->kind == CALL_WRITE && c->has_next) flags |= FORWARD_NEXT;
    if (c->choose_batch) flags |= FORWARD_CHOOSE_BATCH;
    if (c->choose_partitions) flags |= FORWARD_CHOOSE_PARTITIONS;
    return (uint8_t)flags;
}

bool forward_call(struct broker *b, struct call *c)
{
    struct cluster *k = &b->cluster;
    must(c->kind != CALL_READ && c->list == NULL);
    if (k->forwarded.count >= QUEUED_CALLS_MAX + PARKED_POLLS_MAX) {
        c->retry_after_s = admission_retry_after(b);
        call_finish(b, c, CALL_OVERLOADED);
        return true;
    }
    struct forward_head h = {.frame = CALLS_FORWARD,
                             .kind = (uint8_t)c->kind,
                             .flags = flags_of(c),
                             .term = k->leader_term,
                             .sequence = k->sequence + 1,
                             .time_us = inbox_due_us(b, c) - b->mono_us};
    struct slice parts[2] = {slice_make((const char *)&h, sizeof h), c->command};
    if (c->kind == CALL_POP) {
        buf_clear(&b->encoded);
        pop_encode(&b->encoded, &c->pop);
        parts[1] = buf_view(&b->encoded);
    }
    if (h.time_us <= 0 || !calls_send(b, k->leader, parts, 2)) return false;
    k->sequence++;
    call_unhold(b, c);
    c->state = CALL_STATE_FORWARDED;
    c->sequence = h.sequence;
    c->sent_term = h.term;
    call_list_append(&k->forwarded, c);
    hash_table_put(&k->forwards, &c->forwarded, c->sequence);
    return true;
}

static void orphan_add(struct broker *b, const struct call *c)
{
    struct cluster *k = &b->cluster;
    struct orphan *o = calloc(1, sizeof *o);
    must(o != NULL);
    *o = (struct orphan){.sequence = c->sequence,
                         .sent_term = c->sent_term,
                         .lease = c->pop.lease_id,
                         .once = c->kind == CALL_WRITE,
                         .previous = k->orphan_last};
    hash_table_put(&k->orphans, &o->node, o->sequence);
    if (k->orphan_last != NULL) {
        k->orphan_last->next = o;
    } else {
        k->orphan_first = o;
    }
    k->orphan_last = o;
}

static void orphan_drop(struct broker *b, struct orphan *o)
{
    struct cluster *k = &b->cluster;
    if (o->previous != NULL) {
        o->previous->next = o->next;
    } else {
        k->orphan_first = o->next;
    }
    if (o->next != NULL) {
        o->next->previous = o->previous;
    } else {
        k->orphan_last = o->previous;
    }
    hash_table_remove(&k->orphans, &o->node);
    free(o);
}

void forward_orphan_claimed(struct broker *b, uint64_t sequence)
{
    struct orphan *o = sequence == 0 ? NULL : orphan_find(b, sequence);
    if (o != NULL) orphan_drop(b, o);
}

static bool claims(const struct call *c)
{
    return (c->kind == CALL_POP || c->has_next) && !c->pop.auto_ack;
}

static void forward_unlist(struct broker *b, struct call *c)
{
    must(c->state == CALL_STATE_FORWARDED);
    call_list_remove(c);
    hash_table_remove(&b->cluster.forwards, &c->forwarded);
}

void forward_leave(struct broker *b, struct call *c, bool tell)
{
    forward_unlist(b, c);
    if (tell && claims(c)) orphan_add(b, c);
    if (tell && c->kind == CALL_POP)
        calls_head_send(b, b->cluster.leader, &(struct calls_head){.frame = CALLS_CANCEL, .number = c->sequence});
    c->sequence = 0;
}

void forward_again(struct broker *b, struct call *c)
{
    struct cluster *k = &b->cluster;
    must(c->sequence != 0 && c->list == NULL);
    c->state = CALL_STATE_FORWARDED;
    c->flight = NULL;
    hash_table_put(&k->forwards, &c->forwarded, c->sequence);
    /* In its old place: the list is in order of sequence, and it is near the front. */
    struct call *at = k->forwarded.first;
    while (at != NULL && at->sequence < c->sequence) at = at->next;
    call_list_put_before(&k->forwarded, c, at);
}

void forward_claims_return(struct broker *b)
{
    struct slice rest = buf_view(&b->internal);
    struct command command;
    if (b->internal_count == 0 || b->leading || !net_connected(b->place.net, b->cluster.leader)) return;
    while (command_next(&rest, &command)) {
        struct calls_head h = {.frame = CALLS_RETURN};
        struct slice parts[2] = {slice_make((const char *)&h, sizeof h), command.all};
        must(command.kind == COMMAND_CLAIM_RETURN);
        calls_send(b, b->cluster.leader, parts, 2); /* lost: the lease ends by itself */
    }
    buf_free(&b->internal);
    b->internal_count = 0;
}

/* ---- an entry is applied ------------------------------------------------------------------------------------------ */

/* What autopilot chose at the leader, for the answer. */
static void choice_read(struct call *c, struct slice entry, uint32_t slot)
{
    struct slice rest = slice_make(entry.at + ENTRY_HEAD_BYTES, entry.len - ENTRY_HEAD_BYTES);
    struct command command;
    struct pop_command pop;
    for (uint32_t i = 0; i <= slot; i++) {
        if (!command_next(&rest, &command)) return;
    }
    if (!pop_decode(&command, &pop)) return;
    c->pop.batch = pop.batch;
    c->pop.partitions = pop.partitions;
}

static void slot_claim(struct broker *b, struct flight *f, const struct origin *o, struct slice entry)
{
    struct flight_slot *s = &f->slots[o->slot];
    struct call *c = forward_find(b, o->sequence);
    if (c != NULL) {
        forward_unlist(b, c);
        c->state = CALL_STATE_PROPOSED;
        c->flight = f;
        c->slot = o->slot;
        s->call = c;
        if (c->kind == CALL_POP && (c->choose_batch || c->choose_partitions)) choice_read(c, entry, o->slot);
        return;
    }
    struct orphan *orphan = orphan_find(b, o->sequence);
    if (orphan == NULL) return;
    s->orphan_pop = true;
    s->orphan = orphan->sequence;
    s->lease = orphan->lease;
    if (orphan->once) orphan_drop(b, orphan); /* a pop that finds nothing may be tried again by the leader */
}

struct flight *forward_flight(struct broker *b, struct slice entry)
{
    struct cluster *k = &b->cluster;
    struct origins_command origins;
    struct entry_head head;
    struct flight *f = NULL;
    if (k->forwarded.count == 0 && k->orphan_first == NULL) return NULL;
    if (!entry_head_read(entry, &head) || !origins_of_entry(entry, &origins)) return NULL;
    for (uint32_t i = 0; i < origins.count; i++) {
        struct origin o;
        origin_read(&origins, i, &o);
        if (o.node != b->place.node || o.slot >= head.count) continue;
        if (f == NULL) {
            f = flight_new(b);
            flight_slots_make(f, head.count);
            f->wall_us = head.wall_us;
            f->submitted_us = b->mono_us;
        }
        slot_claim(b, f, &o, entry);
    }
    return f;
}

/* ---- in ----------------------------------------------------------------------------------------------------------- */

/* It ended at the leader without an entry. */
static void call_done(struct broker *b, const struct calls_head *h)
{
    struct call *c = forward_find(b, h->number);
    struct orphan *o = c == NULL ? orphan_find(b, h->number) : NULL;
    if (o != NULL) orphan_drop(b, o);
    if (c == NULL || h->outcome == CALL_CANCELLED) return; /* a broken connection cancelled it: the fence tells */
    forward_leave(b, c, false);
    c->retry_after_s = h->retry_after_s;
    switch ((enum call_outcome)h->outcome) {
    case CALL_NO_LEADER:
        call_hold(b, c); /* it is not the leader of that term, or not yet; asked again soon */
        return;
    case CALL_EMPTY:
        call_finish_empty(b, c);
        return;
    case CALL_OVERLOADED:
    case CALL_STORAGE_FULL:
    case CALL_TIMEOUT:
        call_finish(b, c, (enum call_outcome)h->outcome);
        return;
    default:
        call_finish(b, c, CALL_UNKNOWN);
    }
}

static void fenced(struct broker *b, const struct calls_head *h)
{
    struct cluster *k = &b->cluster;
    if (!k->fence_asked || h->number != k->fence_number) return;
    k->fence_asked = false;
    if (!h->ok) {
        k->fence_wanted = true;
        return;
    }
    k->fenced = true;
    k->fence_index = h->index;
}

static void claims_return(struct broker *b, struct slice bytes)
{
    struct command command;
    struct uuid lease;
    if (b->serving && command_next(&bytes, &command) && command.kind == COMMAND_CLAIM_RETURN &&
        claim_return_decode(&command, &lease))
        internal_claim_return(b, lease);
}

void forward_frame(struct broker *b, uint64_t peer, struct slice frame)
{
    struct calls_head h;
    inbox_clock(b);
    inbox_kick(b);
    if (frame.len >= sizeof(struct forward_head) && frame.at[0] == CALLS_FORWARD) {
        remote_call(b, peer, frame);
        return;
    }
    if (frame.len < sizeof h) return;
    memcpy(&h, frame.at, sizeof h);
    bool of_leader = peer == b->cluster.leader;
    switch ((enum calls_frame)h.frame) {
    case CALLS_CANCEL:
        remote_cancel(b, peer, h.number);
        return;
    case CALLS_DONE:
        call_done(b, &h); /* its sequence says which leader it was sent to */
        return;
    case CALLS_FENCE:
        remote_fence(b, peer, h.number);
        return;
    case CALLS_FENCED:
        if (of_leader) fenced(b, &h);
        return;
    case CALLS_READ:
        remote_read(b, peer, h.number);
        return;
    case CALLS_READ_AT:
        if (of_leader && !b->serving) confirm_answer(b, h.number, h.ok != 0, h.index);
        return;
    case CALLS_RETURN:
        claims_return(b, slice_make(frame.at + sizeof h, frame.len - sizeof h));
        return;
    case CALLS_FORWARD:
        return; /* cut short: never sent so */
    }
}

/* ---- a turn ------------------------------------------------------------------------------------------------------- */

static void fence_ask(struct broker *b)
{
    struct cluster *k = &b->cluster;
    if (!k->fence_wanted || k->fence_asked) return;
    if (k->forwarded.count == 0 && k->orphan_first == NULL) {
        k->fence_wanted = false;
        return;
    }
    struct calls_head h = {.frame = CALLS_FENCE, .number = k->fence_number + 1};
    if (b->leading || !net_connected(b->place.net, k->leader) || !calls_head_send(b, k->leader, &h)) return;
    k->fence_wanted = false;
    k->fence_asked = true;
    k->fenced = false;
    k->fence_number++;
    k->fence_sequence = k->sequence;
}

static void forwards_resolve(struct broker *b, uint64_t below_term, uint64_t up_to_sequence)
{
    struct cluster *k = &b->cluster;
    struct call *c;
    while ((c = k->forwarded.first) != NULL && (c->sent_term < below_term || c->sequence <= up_to_sequence)) {
        forward_leave(b, c, false);
        call_redispatch(b, c);
    }
    struct orphan *o;
    while ((o = k->orphan_first) != NULL && (o->sent_term < below_term || o->sequence <= up_to_sequence)) orphan_drop(b, o);
}

void forward_turn(struct broker *b)
{
    struct cluster *k = &b->cluster;
    uint64_t term = replica_applied_term(b->replica);
    if (term > k->resolved_term) {
        k->resolved_term = term;
        forwards_resolve(b, term, 0);
        flights_resolve(b, term);
    }
    if (k->fenced && replica_applied_index(b->replica) >= k->fence_index) {
        k->fenced = false;
        forwards_resolve(b, 0, k->fence_sequence);
    }
    fence_ask(b);
    forward_claims_return(b);
}

void forward_free(struct broker *b)
{
    struct cluster *k = &b->cluster;
    while (k->orphan_first != NULL) orphan_drop(b, k->orphan_first);
    hash_table_free(&k->forwards);
    hash_table_free(&k->orphans);
}
