/* Changes of the members.
 *
 *   here (run)     for each change, for each group: who leads it? -> we: the change is led here; another: it is asked -> the next group
 *   lead           on the group's loop, again and again until done: is it so already? is it allowed? -> replica_change -> committed?
 *
 * A change begins only once the one before is committed (raft's rule), with a majority there before and after (unless forced), and an addition
 * only once the new node has answered, so that its disk is known and stands in the configuration. Each step may be done twice: it then
 * finds that nothing is left to do. So whoever asked may simply ask again when a leader changed or a time ran out.
 *
 * What can go wrong: no leader, or it does not answer: RETRY, LEADER_UNREACHABLE; the time is up while a change is under way: TIMEOUT,
 * and it may still happen. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/logger.h"
#include "broker/node_inner.h"

enum {
    STEP_US = 10000,           /* between two looks at a change under way */
    LEADER_AGAIN_US = 50000,   /* until the leader is looked for again */
    LEADERLESS_US = 5000000,   /* without a leader for so long: RETRY */
    UNREACHABLE_US = 3000000,  /* the leader does not answer for so long: LEADER_UNREACHABLE */
    ASK_US = 30000000,         /* one question to a leader at most */
    ANSWER_MARGIN_US = 200000, /* the leader answers so much before the asker gives up */
    PATIENCE_US = 1500000,     /* so long a majority, or the end of another change, is waited for: then NO_QUORUM, IN_FLIGHT */
    PROMOTE_LIVE_ELECTIONS = 3 /* heard of within so many election timeouts: live */
};

#define holder_of(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

/* ---- led here ----------------------------------------------------------------------------------------------------- */

struct lead {
    struct node *node;
    uint32_t group;
    struct node_change change;
    int64_t deadline_us, began_us;
    void (*done)(void *ctx, enum node_change_code code);
    void *ctx;
    struct node_visit visit;
    struct loop_timer timer;
    struct loop_task ended;
    char address[REPLICA_ADDRESS_BYTES]; /* of an addition, once the node has answered; empty: not yet */
    bool held;
    /* of the visits */
    bool begun, over;
    enum node_change_code code;
};

/* How many voters there are and are live, when `without` is not counted (0: all are). */
static void voters_count(const struct lead *l, struct replica *r, const struct replica_members *all, uint64_t without,
                         uint32_t *voters, uint32_t *live)
{
    int64_t limit_us = (int64_t)l->node->config->election_ms * 1000 * PROMOTE_LIVE_ELECTIONS;
    *voters = *live = 0;
    for (uint32_t i = 0; i < all->count; i++) {
        const struct replica_member *m = &all->at[i];
        struct replica_progress p;
        if (m->role != REPLICA_VOTER || m->id == without) continue;
        ++*voters;
        bool heard = replica_progress(r, m->id, &p) && p.heard_age_us >= 0 && p.heard_age_us <= limit_us;
        *live += m->id == l->node->id || heard;
    }
}

static bool majority(uint32_t live, uint32_t voters)
{
    return 2 * live > voters;
}

/* NODE_CHANGE_OK: go on; *nothing: it is so already. */
static enum node_change_code add_judge(const struct lead *l, const struct replica_member *m, const struct replica_members *all,
                                       bool *nothing)
{
    if (m == NULL) return all->count == REPLICA_MEMBERS_MAX ? NODE_CHANGE_FULL : NODE_CHANGE_OK;
    struct node_member now;
    node_member_read(m, &now);
    *nothing = true;
    if (m->role == REPLICA_VOTER) return NODE_CHANGE_ALREADY_VOTER;
    bool same = strcmp(now.raft, l->change.raft) == 0 && strcmp(now.http, l->change.http) == 0;
    return same ? NODE_CHANGE_OK : NODE_CHANGE_ADDRESS_MISMATCH;
}

static enum node_change_code promote_judge(const struct lead *l, struct replica *r, const struct replica_member *m,
                                           const struct replica_members *all, bool *nothing)
{
    struct replica_progress p = {0};
    if (m == NULL) return NODE_CHANGE_NOT_A_LEARNER;
    *nothing = m->role == REPLICA_VOTER;
    if (*nothing || l->change.force) return NODE_CHANGE_OK;
    int64_t limit_us = (int64_t)l->node->config->election_ms * 1000 * PROMOTE_LIVE_ELECTIONS;
    uint32_t voters, live;
    bool known = replica_progress(r, m->id, &p) && p.heard_age_us >= 0 && !p.snapshot;
    if (!known || p.match + l->node->config->promote_max_lag < replica_last_index(r)) return NODE_CHANGE_LEARNER_BEHIND;
    voters_count(l, r, all, 0, &voters, &live);
    bool after = majority(live + (p.heard_age_us <= limit_us), voters + 1);
    return majority(live, voters) && after ? NODE_CHANGE_OK : NODE_CHANGE_NO_QUORUM;
}

static enum node_change_code remove_judge(const struct lead *l, struct replica *r, const struct replica_member *m,
                                          const struct replica_members *all, bool *nothing)
{
    uint32_t voters, live, voters_before, live_before;
    *nothing = m == NULL;
    if (m == NULL) return NODE_CHANGE_OK;
    voters_count(l, r, all, 0, &voters_before, &live_before);
    voters_count(l, r, all, m->id, &voters, &live);
    if (m->role == REPLICA_VOTER && voters == 0) return NODE_CHANGE_LAST_VOTER;
    bool there = majority(live_before, voters_before) && majority(live, voters);
    return l->change.force || there ? NODE_CHANGE_OK : NODE_CHANGE_NO_QUORUM;
}

static enum node_change_code readdress_judge(const struct lead *l, const struct replica_member *m, bool *nothing)
{
    struct node_member now;
    if (m == NULL) return NODE_CHANGE_NOT_A_MEMBER;
    node_member_read(m, &now);
    *nothing = strcmp(now.raft, l->change.raft) == 0 && strcmp(now.http, l->change.http) == 0;
    return NODE_CHANGE_OK;
}

static enum node_change_code judge(const struct lead *l, struct replica *r, const struct replica_members *all, bool *nothing)
{
    const struct replica_member *m = members_find(all, l->change.id);
    switch (l->change.kind) {
    case NODE_ADD_LEARNER:
        return add_judge(l, m, all, nothing);
    case NODE_PROMOTE:
        return promote_judge(l, r, m, all, nothing);
    case NODE_REMOVE:
        return remove_judge(l, r, m, all, nothing);
    case NODE_READDRESS:
        return readdress_judge(l, m, nothing);
    }
    must(false);
}

/* Is it so by now? */
static bool achieved(const struct lead *l, const struct replica_members *all)
{
    const struct replica_member *m = members_find(all, l->change.id);
    bool nothing = false;
    switch (l->change.kind) {
    case NODE_ADD_LEARNER:
        return m != NULL;
    case NODE_PROMOTE:
        return m != NULL && m->role == REPLICA_VOTER;
    case NODE_REMOVE:
        return m == NULL;
    case NODE_READDRESS:
        return readdress_judge(l, m, &nothing) == NODE_CHANGE_OK && nothing;
    }
    must(false);
}

static void lead_over(struct lead *l, enum node_change_code code)
{
    l->over = true;
    l->code = code;
}

/* Another change is under way, or a voter is not heard of: that may be over soon. */
static void lead_await(struct lead *l, enum node_change_code code)
{
    if (clock_mono_us() - l->began_us > PATIENCE_US) lead_over(l, code);
}

static void change_begin(struct lead *l, struct replica *r, const struct replica_members *all)
{
    static const enum replica_change kinds[] = {[NODE_ADD_LEARNER] = REPLICA_ADD_LEARNER,
                                                [NODE_PROMOTE] = REPLICA_PROMOTE,
                                                [NODE_REMOVE] = REPLICA_REMOVE,
                                                [NODE_READDRESS] = REPLICA_READDRESS};
    const struct replica_member *now = members_find(all, l->change.id);
    struct replica_member m = {.id = l->change.id, .role = REPLICA_LEARNER};
    if (now != NULL) m = *now;
    if (l->change.kind == NODE_ADD_LEARNER) memcpy(m.address, l->address, sizeof m.address);
    if (l->change.kind == NODE_READDRESS) {
        struct node_member old;
        node_member_read(now, &old);
        node_address_make(m.address, l->change.raft, l->change.http, old.has_disk ? &old.disk : NULL);
    }
    switch (replica_change(r, kinds[l->change.kind], &m)) {
    case REPLICA_CHANGE_BEGUN:
        l->begun = true;
        return;
    case REPLICA_CHANGE_NOTHING:
        lead_over(l, NODE_CHANGE_OK);
        return;
    case REPLICA_CHANGE_NOT_LEADER:
        lead_over(l, NODE_CHANGE_RETRY);
        return;
    case REPLICA_CHANGE_IN_FLIGHT:
        lead_await(l, NODE_CHANGE_IN_FLIGHT);
        return;
    case REPLICA_CHANGE_NOT_A_MEMBER:
        lead_over(l, NODE_CHANGE_NOT_A_MEMBER);
        return;
    case REPLICA_CHANGE_LAST_VOTER:
        lead_over(l, NODE_CHANGE_LAST_VOTER);
        return;
    case REPLICA_CHANGE_FULL:
        lead_over(l, NODE_CHANGE_FULL);
        return;
    }
    must(false);
}

static void lead_run(struct node_visit *v, struct broker *b)
{
    struct lead *l = holder_of(v, struct lead, visit);
    struct replica *r = broker_replica(b);
    struct replica_members all;
    bool nothing = false;
    replica_members(r, &all);
    if (replica_role(r) != REPLICA_LEADER) {
        lead_over(l, NODE_CHANGE_RETRY);
        return;
    }
    if (l->begun) {
        if (all.committed && achieved(l, &all))
            lead_over(l, NODE_CHANGE_OK);
        else if (all.committed && !achieved(l, &all))
            l->begun = false; /* it was given up (a learner that did not catch up): judged anew */
        return;
    }
    enum node_change_code code = judge(l, r, &all, &nothing);
    if (code == NODE_CHANGE_NO_QUORUM) {
        lead_await(l, code);
    } else if (code != NODE_CHANGE_OK || nothing) {
        lead_over(l, code);
    } else if (!all.committed) {
        lead_await(l, NODE_CHANGE_IN_FLIGHT);
    } else if (l->change.kind == NODE_ADD_LEARNER && l->address[0] == '\0') {
        return; /* not until the new node has answered */
    } else if (l->change.kind == NODE_REMOVE && l->change.id == l->node->id && replica_transfer(r, 0)) {
        return; /* somebody else leads that, once we do not lead */
    } else {
        change_begin(l, r, &all);
    }
}

static void lead_end(struct lead *l)
{
    if (l->held) peers_release(l->node, l->change.id);
    l->done(l->ctx, l->code);
    free(l);
}

static void lead_visit(struct lead *l)
{
    struct node *n = l->node;
    const struct peer_seen *seen = peers_seen(n, l->change.id);
    if (l->change.kind == NODE_ADD_LEARNER && l->address[0] == '\0' && seen != NULL && net_connected(n->net, l->change.id))
        node_address_make(l->address, l->change.raft, l->change.http, &seen->disk);
    node_visit(n, l->group, &l->visit);
}

static void lead_fire(struct loop_timer *t)
{
    lead_visit(holder_of(t, struct lead, timer));
}

static void lead_done(struct node_visit *v)
{
    struct lead *l = holder_of(v, struct lead, visit);
    struct node *n = l->node;
    int64_t now_us = clock_mono_us();
    if (!l->over && n->stopping) lead_over(l, NODE_CHANGE_RETRY);
    if (!l->over && now_us >= l->deadline_us) lead_over(l, NODE_CHANGE_TIMEOUT);
    if (!l->over && l->change.kind == NODE_ADD_LEARNER && !l->held) {
        l->held = peers_hold(n, l->change.id, l->change.raft);
        if (!l->held) lead_over(l, NODE_CHANGE_FULL);
    }
    if (!l->over) {
        loop_timer_set(n->loop, &l->timer, now_us + STEP_US);
        return;
    }
    if (l->code == NODE_CHANGE_OK && l->begun)
        log_info("group %" PRIu32 ": node %" PRIu64 " %s", l->group, l->change.id,
                 l->change.kind == NODE_ADD_LEARNER ? "was added"
                 : l->change.kind == NODE_PROMOTE   ? "votes now"
                 : l->change.kind == NODE_REMOVE    ? "was removed"
                                                    : "has another address");
    lead_end(l);
}

static void lead_change(struct node *n, uint32_t group, const struct node_change *change, int64_t deadline_us,
                        void (*done)(void *ctx, enum node_change_code code), void *ctx)
{
    struct lead *l = calloc(1, sizeof *l);
    must(l != NULL);
    *l = (struct lead){.node = n,
                       .group = group,
                       .change = *change,
                       .deadline_us = deadline_us,
                       .began_us = clock_mono_us(),
                       .done = done,
                       .ctx = ctx};
    l->visit = (struct node_visit){.home = n->loop, .run = lead_run, .done = lead_done};
    l->timer.fire = lead_fire;
    lead_visit(l);
}

/* ---- asked by another node ---------------------------------------------------------------------------------------- */

struct change_question {
    uint32_t version, group, kind, force;
    uint64_t id, timeout_us;
    char raft[NODE_ADDRESS_BYTES], http[NODE_ADDRESS_BYTES];
};

static void asked_done(void *ctx, enum node_change_code code)
{
    struct node_question *q = ctx;
    uint32_t number = code;
    node_reply(*q, slice_make(&number, sizeof number));
    free(q);
}

void change_asked(struct node *n, struct node_question q, struct slice question)
{
    struct change_question c;
    if (question.len != sizeof c || n->waits || n->repairs) return;
    memcpy(&c, question.at, sizeof c);
    c.raft[sizeof c.raft - 1] = c.http[sizeof c.http - 1] = '\0';
    if (c.version != 1 || c.group >= n->group_count || c.kind > NODE_READDRESS || c.timeout_us > ASK_US || c.id == 0) return;
    struct node_change change = {.kind = (enum node_change_kind)c.kind, .id = c.id, .force = c.force != 0};
    memcpy(change.raft, c.raft, sizeof change.raft);
    memcpy(change.http, c.http, sizeof change.http);
    struct node_question *kept = malloc(sizeof *kept);
    must(kept != NULL);
    *kept = q;
    lead_change(n, c.group, &change, clock_mono_us() + (int64_t)c.timeout_us, asked_done, kept);
}

/* ---- asked here --------------------------------------------------------------------------------------------------- */

struct node_change_run {
    struct node *node;
    struct node_change changes[NODE_CHANGES_MAX];
    uint32_t count, at, group;
    int64_t deadline_us;
    int64_t leaderless_since_us, silent_since_us; /* 0: not so */
    bool found;                                   /* the member to be removed was one in an earlier group */
    uint64_t leader;
    struct node_visit visit;
    struct loop_timer timer;
    struct loop_task ended;
    enum node_change_code code;
    node_changed *done;
    void *ctx;
};

static void run_ended(struct loop_task *t)
{
    struct node_change_run *r = holder_of(t, struct node_change_run, ended);
    r->done(r->ctx, r->code, r->group, r->at);
    free(r);
}

static void run_end(struct node_change_run *r, enum node_change_code code)
{
    r->code = code;
    r->ended.run = run_ended;
    loop_post(r->node->loop, &r->ended);
}

static void run_step(struct node_change_run *r)
{
    node_visit(r->node, r->group, &r->visit);
}

static void run_fire(struct loop_timer *t)
{
    run_step(holder_of(t, struct node_change_run, timer));
}

static void run_later(struct node_change_run *r)
{
    loop_timer_set(r->node->loop, &r->timer, clock_mono_us() + LEADER_AGAIN_US);
}

static void run_next(struct node_change_run *r)
{
    r->leaderless_since_us = r->silent_since_us = 0;
    if (++r->group == r->node->group_count) {
        r->group = 0;
        if (++r->at == r->count) {
            node_look(r->node); /* so that views know it soon */
            run_end(r, NODE_CHANGE_OK);
            return;
        }
    }
    run_step(r);
}

static void run_answered(void *ctx, enum node_change_code code)
{
    struct node_change_run *r = ctx;
    int64_t now_us = clock_mono_us();
    if (code == NODE_CHANGE_OK) {
        run_next(r);
    } else if (r->node->stopping) {
        run_end(r, NODE_CHANGE_RETRY);
    } else if (code == NODE_CHANGE_RETRY && now_us < r->deadline_us) {
        run_later(r);
    } else if (code == NODE_CHANGE_LEADER_UNREACHABLE && now_us < r->deadline_us) {
        if (r->silent_since_us == 0) r->silent_since_us = now_us;
        if (now_us - r->silent_since_us > UNREACHABLE_US)
            run_end(r, code);
        else
            run_later(r);
    } else if (code == NODE_CHANGE_RETRY || code == NODE_CHANGE_LEADER_UNREACHABLE) {
        run_end(r, NODE_CHANGE_TIMEOUT);
    } else {
        run_end(r, code);
    }
}

static void run_replied(void *ctx, uint64_t peer, bool ok, struct slice bytes)
{
    uint32_t code = NODE_CHANGE_LEADER_UNREACHABLE;
    (void)peer;
    if (ok && bytes.len == sizeof code) memcpy(&code, bytes.at, sizeof code);
    run_answered(ctx, code < NODE_CHANGE_CODES ? (enum node_change_code)code : NODE_CHANGE_LEADER_UNREACHABLE);
}

static void run_ask(struct node_change_run *r)
{
    const struct node_change *c = &r->changes[r->at];
    int64_t left_us = r->deadline_us - clock_mono_us();
    if (left_us > ASK_US) left_us = ASK_US;
    if (left_us < 2 * ANSWER_MARGIN_US) left_us = 2 * ANSWER_MARGIN_US;
    struct change_question q = {.version = 1, .group = r->group, .kind = c->kind, .force = c->force, .id = c->id};
    q.timeout_us = (uint64_t)(left_us - ANSWER_MARGIN_US);
    memcpy(q.raft, c->raft, sizeof q.raft);
    memcpy(q.http, c->http, sizeof q.http);
    node_ask(r->node, r->leader, NODE_ASK_CHANGE, slice_make(&q, sizeof q), left_us, run_replied, r);
}

static void leader_run(struct node_visit *v, struct broker *b)
{
    holder_of(v, struct node_change_run, visit)->leader = replica_leader(broker_replica(b));
}

static void leader_done(struct node_visit *v)
{
    struct node_change_run *r = holder_of(v, struct node_change_run, visit);
    int64_t now_us = clock_mono_us();
    if (r->leader != 0) r->leaderless_since_us = 0;
    if (r->node->stopping) {
        run_end(r, NODE_CHANGE_RETRY);
    } else if (r->leader == r->node->id) {
        lead_change(r->node, r->group, &r->changes[r->at], r->deadline_us, run_answered, r);
    } else if (r->leader != 0) {
        run_ask(r);
    } else {
        if (r->leaderless_since_us == 0) r->leaderless_since_us = now_us;
        if (now_us - r->leaderless_since_us > LEADERLESS_US || now_us > r->deadline_us)
            run_end(r, NODE_CHANGE_RETRY);
        else
            run_later(r);
    }
}

void node_change(struct node *n, const struct node_change *changes, uint32_t count, int64_t timeout_us, node_changed *done,
                 void *ctx)
{
    struct node_change_run *r = calloc(1, sizeof *r);
    must(r != NULL && count >= 1 && count <= NODE_CHANGES_MAX);
    *r = (struct node_change_run){
        .node = n, .count = count, .deadline_us = clock_mono_us() + timeout_us, .done = done, .ctx = ctx};
    memcpy(r->changes, changes, count * sizeof *changes);
    r->visit = (struct node_visit){.home = n->loop, .run = leader_run, .done = leader_done};
    r->timer.fire = run_fire;
    if (n->waits || n->repairs || n->stopping)
        run_end(r, NODE_CHANGE_RETRY);
    else
        run_step(r);
}
