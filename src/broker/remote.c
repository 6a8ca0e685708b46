/* Calls that other nodes took and sent to this one, the leader: served like its own, but the answer is the entry itself.
 *
 *   frame -> struct remote with a call of its own -> queue or parked callers -> an entry; its slot is named in ORIGINS
 *         -> the entry applies: nothing to send, its origin applies it too. An empty pop that waits parks again
 *         -> it ended outside the log: CALLS_DONE
 *
 * A connection that breaks, or a lost leadership, drops what is not in an entry: the origin asks again once it is certain. What is in an
 * entry goes its way; its claims are not handed back for a broken connection, since the origin delivers them when it applies the
 * entry. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "broker/broker_internal.h"

static uint64_t remote_hash(uint64_t peer, uint64_t sequence)
{
    uint64_t key[2] = {peer, sequence};
    return hash64(slice_make((const char *)key, sizeof key), 0);
}

static struct remote *remote_find(struct broker *b, uint64_t peer, uint64_t sequence)
{
    struct hash_node *n = hash_table_find(&b->cluster.remotes, remote_hash(peer, sequence));
    for (; n != NULL; n = hash_table_again(n)) {
        struct remote *r = owner_of(n, struct remote, node);
        if (r->peer == peer && r->sequence == sequence) return r;
    }
    return NULL;
}

static void done_send(struct broker *b, uint64_t peer, uint64_t sequence, enum call_outcome outcome, uint32_t retry_after_s)
{
    struct calls_head h = {
        .frame = CALLS_DONE, .outcome = (uint8_t)outcome, .retry_after_s = retry_after_s, .number = sequence};
    calls_head_send(b, peer, &h);
}

static void remote_forget(struct broker *b, struct remote *r)
{
    struct cluster *k = &b->cluster;
    hash_table_remove(&k->remotes, &r->node);
    if (r->previous != NULL) {
        r->previous->next = r->next;
    } else {
        k->remote_first = r->next;
    }
    if (r->next != NULL) r->next->previous = r->previous;
    broker_admit_return(b, r->admitted);
    arena_free(&r->call.arena);
    buf_free(&r->bytes);
    free(r);
}

static void remote_done(struct call *c)
{
    struct remote *r = c->remote;
    struct broker *b = c->broker;
    bool outside = (c->outcome == CALL_EMPTY && c->kind == CALL_POP) || c->outcome == CALL_OVERLOADED ||
                   c->outcome == CALL_STORAGE_FULL || c->outcome == CALL_TIMEOUT || c->outcome == CALL_NO_LEADER ||
                   c->outcome == CALL_CANCELLED;
    if (outside && !r->proposed) done_send(b, r->peer, r->sequence, c->outcome, c->retry_after_s);
    remote_forget(b, r);
}

static bool command_take(struct remote *r, const struct forward_head *h)
{
    struct call *c = &r->call;
    struct slice rest = buf_view(&r->bytes);
    struct command command;
    struct step_command step;
    if (!command_next(&rest, &command) || rest.len > 0 || command.all.len > COMMAND_BYTES_MAX) return false;
    if (h->kind == CALL_POP) return command.kind == COMMAND_POP && pop_decode(&command, &c->pop);
    if (h->kind != CALL_WRITE) return false;
    c->command = command.all;
    if ((h->flags & FORWARD_NEXT) == 0) return true;
    c->has_next =
        command.kind == COMMAND_STEP && step_decode(&command, &step) && step.has_pop && pop_decode(&step.pop, &c->pop);
    return c->has_next;
}

void remote_call(struct broker *b, uint64_t peer, struct slice frame)
{
    struct cluster *k = &b->cluster;
    struct forward_head h;
    memcpy(&h, frame.at, sizeof h);
    if (!b->serving || h.term != replica_term(b->replica)) {
        done_send(b, peer, h.sequence, CALL_NO_LEADER, 0);
        return;
    }
    uint32_t retry_after_s = 0;
    if (!broker_admit(b, frame.len, &retry_after_s)) {
        done_send(b, peer, h.sequence, CALL_OVERLOADED, retry_after_s);
        return;
    }
    struct remote *r = calloc(1, sizeof *r);
    must(r != NULL);
    r->peer = peer;
    r->sequence = h.sequence;
    r->admitted = frame.len;
    buf_put(&r->bytes, frame.at + sizeof h, frame.len - sizeof h);
    struct call *c = &r->call;
    arena_init(&c->arena);
    c->home = b->loop;
    c->done = remote_done;
    c->kind = (enum call_kind)h.kind;
    c->remote = r;
    hash_table_put(&k->remotes, &r->node, remote_hash(peer, h.sequence));
    r->next = k->remote_first;
    if (r->next != NULL) r->next->previous = r;
    k->remote_first = r;
    if (!command_take(r, &h)) { /* another version of this program sent it */
        done_send(b, peer, h.sequence, CALL_UNKNOWN, 0);
        remote_forget(b, r);
        return;
    }
    c->wait = c->kind == CALL_POP && (h.flags & FORWARD_WAIT) != 0;
    c->grows = (h.flags & FORWARD_GROWS) != 0;
    c->choose_batch = (h.flags & FORWARD_CHOOSE_BATCH) != 0;
    c->choose_partitions = (h.flags & FORWARD_CHOOSE_PARTITIONS) != 0;
    c->deadline_us = b->mono_us + (h.time_us < (int64_t)DEADLINE_MS_MAX * 1000 ? h.time_us : (int64_t)DEADLINE_MS_MAX * 1000);
    broker_submit(b, c);
}

void remote_cancel(struct broker *b, uint64_t peer, uint64_t sequence)
{
    struct remote *r = remote_find(b, peer, sequence);
    if (r != NULL) broker_cancel(b, &r->call);
}

void remote_drop(struct broker *b, uint64_t peer)
{
    struct remote *next;
    for (struct remote *r = b->cluster.remote_first; r != NULL; r = next) {
        next = r->next; /* `done` runs at the end of the turn */
        if (peer != 0 && r->peer != peer) continue;
        struct call *c = &r->call;
        if (c->state == CALL_STATE_DONE) continue;
        if (c->state != CALL_STATE_PROPOSED) {
            inbox_unlist(b, c);
            call_finish(b, c, peer != 0 ? CALL_CANCELLED : CALL_NO_LEADER);
        } else if (peer == 0) {
            c->flight->slots[c->slot].call = NULL;
            if (c->kind == CALL_POP) parked_pop_drop(b, c);
            if (c->has_next) parked_next_drop(b, c);
            call_finish(b, c, CALL_UNKNOWN);
        }
    }
}

void remote_fence(struct broker *b, uint64_t peer, uint64_t number)
{
    struct calls_head h = {.frame = CALLS_FENCED, .ok = b->serving, .number = number, .index = replica_last_index(b->replica)};
    if (b->serving) remote_drop(b, peer);
    calls_head_send(b, peer, &h);
}

/* ---- reads of other nodes ----------------------------------------------------------------------------------------- */

struct remote_read {
    struct replica_confirm question;
    struct broker *broker;
    uint64_t peer, number;
};

static void read_answer(struct broker *b, uint64_t peer, uint64_t number, bool ok, uint64_t index)
{
    struct calls_head h = {.frame = CALLS_READ_AT, .ok = ok, .number = number, .index = index};
    calls_head_send(b, peer, &h);
}

static void read_confirmed(struct replica_confirm *q, bool ok, uint64_t index)
{
    struct remote_read *r = owner_of(q, struct remote_read, question);
    read_answer(r->broker, r->peer, r->number, ok, index);
    free(r);
}

void remote_read(struct broker *b, uint64_t peer, uint64_t number)
{
    if (!b->serving) {
        read_answer(b, peer, number, false, 0);
        return;
    }
    struct remote_read *r = calloc(1, sizeof *r);
    must(r != NULL);
    *r = (struct remote_read){.question.done = read_confirmed, .broker = b, .peer = peer, .number = number};
    replica_confirm(b->replica, &r->question);
}

void remote_free(struct broker *b)
{
    must(b->cluster.remote_first == NULL);
    hash_table_free(&b->cluster.remotes);
}
