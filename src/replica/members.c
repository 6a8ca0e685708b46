/* Members: what raft's configuration says of them, changes of it, and handing leadership over.
 *
 * raft does not let two members have the same address. Addresses are the caller's texts and not our business, so they are kept with
 * the member's id in front ("3 host:port/..."), which also takes an exchange of two addresses one change at a time.
 *
 * raft's own transfer asks the other to start an election too early, when it has any new entry and not the last one, and then does
 * not ask again. So raft is told to transfer only once the other has everything; nothing new is taken meanwhile. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/logger.h"
#include "replica/replica_inner.h"

unsigned voter_count(const struct raft_configuration *c)
{
    unsigned voters = 0;
    for (unsigned i = 0; i < c->n; i++) voters += c->servers[i].role == RAFT_VOTER;
    return voters;
}

static const struct raft_server *server_of(const struct raft_configuration *c, uint64_t id)
{
    for (unsigned i = 0; i < c->n; i++) {
        if (c->servers[i].id == id) return &c->servers[i];
    }
    return NULL;
}

bool voter_has(const struct raft_configuration *c, uint64_t id)
{
    const struct raft_server *s = server_of(c, id);
    return s != NULL && s->role == RAFT_VOTER;
}

bool sole_voter(const struct replica *r)
{
    return voter_count(&r->raft.configuration) == 1 && voter_has(&r->raft.configuration, r->identity.node);
}

char *member_address_text(uint64_t id, const char *address)
{
    size_t bytes = strlen(address) + 24;
    char *text = malloc(bytes);
    must(text != NULL);
    snprintf(text, bytes, "%" PRIu64 " %s", id, address);
    return text;
}

static const char *address_read(const struct raft_server *s)
{
    char head[24];
    int n = snprintf(head, sizeof head, "%llu ", s->id);
    return strncmp(s->address, head, (size_t)n) == 0 ? s->address + n : s->address;
}

static int member_order(const void *a, const void *b)
{
    const struct replica_member *left = a, *right = b;
    return left->id < right->id ? -1 : left->id > right->id;
}

void members_list(const struct raft_configuration *c, struct replica_members *out)
{
    for (unsigned i = 0; i < c->n && out->count < REPLICA_MEMBERS_MAX; i++) {
        struct replica_member *m = &out->at[out->count++];
        m->id = c->servers[i].id;
        m->role = c->servers[i].role == RAFT_VOTER ? REPLICA_VOTER : REPLICA_LEARNER;
        snprintf(m->address, sizeof m->address, "%s", address_read(&c->servers[i]));
    }
    qsort(out->at, out->count, sizeof out->at[0], member_order);
}

void replica_members(const struct replica *r, struct replica_members *out)
{
    const struct raft_configuration *c = &r->raft.configuration;
    *out =
        (struct replica_members){.committed = r->raft.configuration_uncommitted_index == 0,
                                 .index = r->raft.configuration_uncommitted_index != 0 ? r->raft.configuration_uncommitted_index
                                                                                       : r->raft.configuration_committed_index};
    members_list(c, out);
}

bool replica_votes(const struct replica *r)
{
    return voter_has(&r->raft.configuration, r->identity.node);
}

void members_update(struct replica *r)
{
    uint64_t committed = r->raft.configuration_committed_index, uncommitted = r->raft.configuration_uncommitted_index;
    if (committed == r->told_committed && uncommitted == r->told_uncommitted) return;
    r->told_committed = committed;
    r->told_uncommitted = uncommitted;
    if (raft_state(&r->raft) == RAFT_LEADER) peers_sync(r, false);
    if (r->o.members_changed != NULL) r->o.members_changed(r->o.ctx);
}

bool replica_progress(const struct replica *r, uint64_t id, struct replica_progress *out)
{
    raft_index match;
    *out = (struct replica_progress){.heard_age_us = -1};
    if (raft_match_index(&r->raft, id, &match) != 0) return false;
    out->match = match;
    if (id == r->identity.node) out->heard_age_us = 0;
    for (uint32_t i = 0; i < r->peer_count; i++) {
        const struct peer *p = &r->peers[i];
        if (p->id != id) continue;
        if (p->heard_us != 0) out->heard_age_us = loop_now_us(r->o.loop) - p->heard_us;
        out->snapshot = p->snapshot;
    }
    return true;
}

int64_t replica_quorum_age_us(const struct replica *r)
{
    const struct raft_configuration *c = &r->raft.configuration;
    int64_t ages[REPLICA_MEMBERS_MAX] = {0};
    unsigned voters = voter_count(c), count = 0, need = voters / 2 + 1;
    if (r->raft.state != RAFT_LEADER) return -1;
    for (unsigned i = 0; i < c->n; i++) {
        struct replica_progress p;
        if (c->servers[i].role != RAFT_VOTER || !replica_progress(r, c->servers[i].id, &p) || p.heard_age_us < 0) continue;
        unsigned at = count++;
        for (; at > 0 && ages[at - 1] > p.heard_age_us; at--) ages[at] = ages[at - 1];
        ages[at] = p.heard_age_us;
    }
    return count < need ? -1 : ages[need - 1];
}

/* ---- changes */

static enum replica_change_status change_check(const struct raft_configuration *c, enum replica_change what,
                                               const struct replica_member *m, const struct raft_server *s)
{
    bool voter = s != NULL && s->role == RAFT_VOTER;
    switch (what) {
    case REPLICA_ADD_LEARNER:
        if (s != NULL) return REPLICA_CHANGE_NOTHING;
        return c->n >= REPLICA_MEMBERS_MAX ? REPLICA_CHANGE_FULL : REPLICA_CHANGE_BEGUN;
    case REPLICA_PROMOTE:
        if (s == NULL) return REPLICA_CHANGE_NOT_A_MEMBER;
        return voter ? REPLICA_CHANGE_NOTHING : REPLICA_CHANGE_BEGUN;
    case REPLICA_REMOVE:
        if (s == NULL) return REPLICA_CHANGE_NOT_A_MEMBER;
        return voter && voter_count(c) == 1 ? REPLICA_CHANGE_LAST_VOTER : REPLICA_CHANGE_BEGUN;
    default:
        if (s == NULL) return REPLICA_CHANGE_NOT_A_MEMBER;
        return strcmp(address_read(s), m->address) == 0 ? REPLICA_CHANGE_NOTHING : REPLICA_CHANGE_BEGUN;
    }
}

static void server_put(struct raft_configuration *c, uint64_t id, const char *text, int role)
{
    must(raft_configuration_add(c, id, text, role) == 0);
}

/* The new configuration, encoded. The members' order stays: raft keeps its notes on them by place. */
static struct raft_buffer change_encode(const struct raft_configuration *now, enum replica_change what,
                                        const struct replica_member *m)
{
    struct raft_configuration c;
    struct raft_buffer encoded;
    char *text = member_address_text(m->id, m->address);
    raft_configuration_init(&c);
    for (unsigned i = 0; i < now->n; i++) {
        const struct raft_server *s = &now->servers[i];
        bool it = s->id == m->id;
        if (it && what == REPLICA_REMOVE) continue;
        server_put(&c, s->id, it && what == REPLICA_READDRESS ? text : s->address,
                   it && what == REPLICA_PROMOTE ? RAFT_VOTER : s->role);
    }
    if (what == REPLICA_ADD_LEARNER) server_put(&c, m->id, text, RAFT_STANDBY);
    must(raft_configuration_encode(&c, &encoded) == 0);
    raft_configuration_close(&c);
    free(text);
    return encoded;
}

enum replica_change_status replica_change(struct replica *r, enum replica_change what, const struct replica_member *m)
{
    must(m->id != 0 && memchr(m->address, '\0', sizeof m->address) != NULL);
    if (raft_state(&r->raft) != RAFT_LEADER || r->transfer_to != 0 || atomic_load(&r->broken)) return REPLICA_CHANGE_NOT_LEADER;
    enum replica_change_status status = change_check(&r->raft.configuration, what, m, server_of(&r->raft.configuration, m->id));
    if (status != REPLICA_CHANGE_BEGUN && r->raft.configuration_uncommitted_index == 0) return status;
    /* Also not before an entry of this leader's own term is committed: else two changes of two leaders could each have
     * a majority of its own. */
    if (r->raft.configuration_uncommitted_index != 0 || r->commit_max < r->lead_index) return REPLICA_CHANGE_IN_FLIGHT;
    struct raft_buffer encoded = change_encode(&r->raft.configuration, what, m);
    uint64_t index = step_submit_own(r, RAFT_CHANGE, slice_make(encoded.base, encoded.len));
    raft_free(encoded.base);
    settle(r);
    return index != 0 ? REPLICA_CHANGE_BEGUN : REPLICA_CHANGE_NOT_LEADER;
}

/* ---- handing over */

/* The voter that has most of the log, 0 = there is no other. */
static uint64_t transferee_pick(struct replica *r, uint64_t *match_out)
{
    uint64_t best = 0, best_match = 0;
    for (uint32_t i = 0; i < r->peer_count; i++) {
        raft_index match;
        if (!voter_has(&r->raft.configuration, r->peers[i].id)) continue;
        if (raft_match_index(&r->raft, r->peers[i].id, &match) != 0) continue;
        if (best != 0 && match <= best_match) continue;
        best = r->peers[i].id;
        best_match = match;
    }
    if (match_out != NULL) *match_out = best_match;
    return best;
}

static bool transfer_run(struct replica *r, uint64_t to)
{
    struct raft_event event = {.type = RAFT_TRANSFER, .transfer.server_id = to};
    return step_run(r, &event) == 0;
}

bool replica_transfer(struct replica *r, uint64_t to)
{
    if (raft_state(&r->raft) != RAFT_LEADER || r->transfer_to != 0 || atomic_load(&r->broken)) return false;
    if (to == 0) to = transferee_pick(r, NULL);
    if (to == 0 || to == r->identity.node || !voter_has(&r->raft.configuration, to)) return false;
    r->transfer_to = to;
    r->transfer_us = loop_now_us(r->o.loop);
    r->transfer_begun = false;
    settle(r);
    return true;
}

void transfer_check(struct replica *r)
{
    if (r->transfer_to == 0) return;
    raft_index match = 0;
    bool over = raft_state(&r->raft) != RAFT_LEADER || !voter_has(&r->raft.configuration, r->transfer_to) ||
                (r->transfer_begun && raft_transferee(&r->raft) == 0);
    bool late = loop_now_us(r->o.loop) - r->transfer_us >= (int64_t)r->o.election_ms * 1000;
    if (over || (late && !r->transfer_begun)) {
        r->transfer_to = 0;
        return;
    }
    if (r->transfer_begun || raft_match_index(&r->raft, r->transfer_to, &match) != 0) return;
    if (match != raft_last_index(&r->raft)) return;
    r->transfer_begun = transfer_run(r, r->transfer_to);
    if (!r->transfer_begun) r->transfer_to = 0;
}

void transfer_away(struct replica *r)
{
    uint64_t match, to = transferee_pick(r, &match);
    notice_send(r); /* the others need not wait for the next leader to know that this one is out */
    if (to != 0 && match == raft_last_index(&r->raft) && raft_transferee(&r->raft) == 0) transfer_run(r, to);
}
