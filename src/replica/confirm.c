/* Is this leader still the one? (Raft's read index, without a log write.)
 *
 *   asked -> (next turn, an entry of the leader's own term is committed) round: PROBE to all -> PROBED by a majority of voters -> ok
 *
 * A member answers when its term, which is durable, is still the leader's. So a majority had not gone on to a newer term when the answers
 * were given, after the question: no newer leader had committed anything by then. The commit index at the round's start covers
 * all that was answered before the question. Until an entry of its own term is committed a leader may not know all that is
 * committed. Lost PROBEs are repeated with the heartbeats. */
#include "replica/replica_inner.h"

static void list_end(struct replica_confirm **list, bool ok, uint64_t index)
{
    struct replica_confirm *c = *list, *first = NULL;
    *list = NULL;
    while (c != NULL) { /* in the order they were asked in */
        struct replica_confirm *next = c->next;
        c->next = first;
        first = c;
        c = next;
    }
    while (first != NULL) {
        struct replica_confirm *next = first->next;
        first->done(first, ok, index);
        first = next;
    }
}

static bool leads_surely(struct replica *r)
{
    return raft_state(&r->raft) == RAFT_LEADER && r->commit_max >= r->lead_index;
}

static bool majority_has(struct replica *r)
{
    const struct raft_configuration *c = &r->raft.configuration;
    unsigned votes = 0;
    for (unsigned i = 0; i < c->n; i++) {
        if (c->servers[i].role != RAFT_VOTER) continue;
        const struct peer *p = peer_of(r, c->servers[i].id);
        if (c->servers[i].id == r->identity.node || (p != NULL && p->round == r->confirm.round)) votes++;
    }
    return votes > voter_count(c) / 2;
}

void confirm_probe(struct replica *r, bool again)
{
    if (r->confirm.under_way == NULL || raft_state(&r->raft) != RAFT_LEADER) return;
    struct frame f = {.kind = FRAME_PROBE, .term = raft_current_term(&r->raft), .a = r->confirm.round};
    for (uint32_t i = 0; i < r->peer_count; i++) {
        struct peer *p = &r->peers[i];
        if (!voter_has(&r->raft.configuration, p->id) || (again && p->round == r->confirm.round)) continue;
        frame_send(r, p->id, &f);
    }
}

static void round_begin(struct replica *r)
{
    r->confirm.under_way = r->confirm.asked;
    r->confirm.asked = NULL;
    r->confirm.round++;
    r->confirm.index = r->commit_max;
    r->confirm.term = raft_current_term(&r->raft);
    for (struct replica_confirm *c = r->confirm.under_way; c != NULL; c = c->next) c->round = r->confirm.round;
    confirm_probe(r, false);
}

void confirm_check(struct replica *r)
{
    if (r->confirm.asked == NULL && r->confirm.under_way == NULL) return;
    bool leads = raft_state(&r->raft) == RAFT_LEADER && !atomic_load(&r->broken);
    if (r->confirm.under_way != NULL && (!leads || r->confirm.term != raft_current_term(&r->raft)))
        list_end(&r->confirm.under_way, false, 0);
    if (!leads) list_end(&r->confirm.asked, false, 0);
    if (r->confirm.under_way != NULL && majority_has(r)) list_end(&r->confirm.under_way, true, r->confirm.index);
    if (r->confirm.under_way == NULL && r->confirm.asked != NULL && !r->confirm.posted && leads_surely(r)) {
        round_begin(r);
        if (majority_has(r)) list_end(&r->confirm.under_way, true, r->confirm.index);
    }
}

void confirm_start(struct loop_task *task)
{
    struct replica *r = (struct replica *)(void *)((char *)task - offsetof(struct replica, confirm_task));
    r->confirm.posted = false;
    confirm_check(r);
}

void replica_confirm(struct replica *r, struct replica_confirm *c)
{
    if (raft_state(&r->raft) != RAFT_LEADER || atomic_load(&r->broken)) {
        c->done(c, false, 0);
        return;
    }
    if (sole_voter(r) && leads_surely(r)) {
        c->done(c, true, r->commit_max);
        return;
    }
    c->next = r->confirm.asked;
    r->confirm.asked = c;
    /* In the next turn, which comes at once: all questions of this one share the round. */
    if (r->confirm.under_way != NULL || r->confirm.posted) return;
    r->confirm.posted = true;
    loop_post(r->o.loop, &r->confirm_task);
}
