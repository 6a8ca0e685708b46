/* Reads that must see the newest state.
 *
 *   confirm_read -> waiting -> [turn] one question for all that wait:  leader    replica_confirm: a majority still follows it
 *                                                                      others    CALLS_READ to the leader, which does the same
 *                -> answered with an index -> confirmed -> that index is applied here -> the read runs (watch.c)
 *
 * What comes while a question is under way waits for the next one: it may have come after the majority was asked. Without an answer (the
 * leader or a connection changed) they are dispatched again.
 *
 * An empty pop that does not wait: a leader commits what a majority has stored, maybe before its own disk has it, so others may have answered
 * what it has not applied. It applies all that is committed, then it looks again; nobody is asked.
 *
 * A read that runs again because of an append (watch.c) does not ask again: what it sees is committed and newer. */
#include "broker/broker_internal.h"

void confirm_read(struct broker *b, struct call *c)
{
    c->state = CALL_STATE_ASKING;
    call_list_append(&b->cluster.reads.waiting, c);
}

bool confirm_pop(struct broker *b, struct call *c)
{
    uint64_t commit = replica_commit_index(b->replica);
    if (!b->cluster.on || c->read_index > 0 || commit <= replica_applied_index(b->replica)) return false;
    c->read_index = commit;
    c->state = CALL_STATE_ASKING;
    call_list_append(&b->cluster.reads.confirmed, c);
    return true;
}

void confirm_leave(struct broker *b, struct call *c)
{
    (void)b;
    must(c->state == CALL_STATE_ASKING);
    call_list_remove(c);
}

static void list_move(struct call_list *from, struct call_list *to)
{
    struct call *c;
    while ((c = from->first) != NULL) {
        call_list_remove(c);
        call_list_append(to, c);
    }
}

void confirm_answer(struct broker *b, uint64_t number, bool ok, uint64_t index)
{
    struct confirming *r = &b->cluster.reads;
    if (!r->asking || number != r->number) return;
    r->asking = false;
    for (struct call *c = r->asked.first; ok && c != NULL; c = c->next) c->read_index = index;
    if (ok) list_move(&r->asked, &r->confirmed);
    /* Refused: not before the next turn, by when it may be known who leads. */
    struct call *c;
    while ((c = r->asked.first) != NULL) {
        call_list_remove(c);
        call_hold(b, c);
    }
    inbox_kick(b);
}

void confirm_lost(struct broker *b)
{
    struct confirming *r = &b->cluster.reads;
    confirm_answer(b, r->number, false, 0);
    struct call *c;
    while ((c = r->waiting.first) != NULL) {
        call_list_remove(c);
        call_hold(b, c);
    }
}

/* The replica's answer: it may come inside the question. */
static void question_done(struct replica_confirm *q, bool ok, uint64_t index)
{
    struct broker *b = owner_of(q, struct broker, cluster.reads.question);
    b->cluster.reads.question.done = NULL;
    confirm_answer(b, b->cluster.reads.number, ok, index);
}

static void ask(struct broker *b)
{
    struct confirming *r = &b->cluster.reads;
    if (b->serving && r->question.done != NULL) return; /* an old question of ours is not answered yet */
    list_move(&r->waiting, &r->asked);
    r->asking = true;
    r->number++;
    if (b->serving) {
        r->question.done = question_done;
        replica_confirm(b->replica, &r->question);
        return;
    }
    struct calls_head h = {.frame = CALLS_READ, .number = r->number};
    if (!calls_head_send(b, b->cluster.leader, &h)) confirm_answer(b, r->number, false, 0);
}

void confirm_turn(struct broker *b)
{
    struct confirming *r = &b->cluster.reads;
    if (!r->asking && r->waiting.count > 0) ask(b);
    struct call *c;
    uint64_t applied = replica_applied_index(b->replica);
    while ((c = r->confirmed.first) != NULL && c->read_index <= applied) {
        call_list_remove(c);
        if (c->kind == CALL_READ) {
            read_run(b, c);
        } else {
            pop_resume(b, c);
        }
    }
}
