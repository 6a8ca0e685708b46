/* Frames from other members.
 *
 *   frame_read (any bytes) -> what must not reach raft is dropped or put right here -> raft -> settle
 *
 * raft checks neither what it is given nor, in the package, its own assertions. So here:
 *
 *   entries that are committed here       are compared, not taken again: a difference ends the process. raft forgets commit indexes
 *                                         and entries that were trimmed, and would append such an entry a second time
 *   a change of the members               comes alone in its message; the one before it is known to be committed then and raft is told
 *                                         so before it takes the next, or it could not take that back
 *   a vote's result                       only for an election that is going on, of its kind (raft reads state it does not have)
 *   a request to install a state          never: the caller is asked to fetch it, or the sender told that we have it
 *   rejections of an older stream         only say that the member is alive */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/logger.h"
#include "replica/replica_inner.h"

enum { WANTED_AGAIN_US = 1000000, RESULT_VERSION = 2, RESULT_FEATURES = 1 /* as raft's own */ };

static const char NO_ADDRESS[] = "";

static void step_message(struct replica *r, struct raft_message *m)
{
    struct raft_event event = {.type = RAFT_RECEIVE, .receive.message = m};
    m->server_address = NO_ADDRESS;
    int rv = step_run(r, &event);
    if (rv == 0) return;
    char what[RAFT_ERRMSG_BUF_SIZE + 96];
    snprintf(what, sizeof what, "raft: a message of kind %d from node %llu is refused: %s", (int)m->type, m->server_id,
             raft_strerror(rv));
    if (rv == RAFT_SHUTDOWN || rv == RAFT_NOMEM || rv == RAFT_MALFORMED)
        replica_fail(r, what);
    else
        log_warn("%s", what);
}

static uint64_t leader_now(struct replica *r)
{
    return raft_state(&r->raft) == RAFT_FOLLOWER ? r->raft.follower_state.current_leader.id : 0;
}

/* ---- entries */

static void conflict_fail(struct replica *r, uint64_t peer, uint64_t index, uint64_t ours, uint64_t its)
{
    char what[200];
    snprintf(what, sizeof what,
             "entry %" PRIu64 " of term %" PRIu64 " is committed here, but node %" PRIu64 " leads with one of term %" PRIu64,
             index, ours, peer, its);
    replica_fail(r, what);
}

/* Is the entry, when it is committed here, the same as the leader's? Below the first one known here only the leader can tell. */
static bool committed_same(struct replica *r, uint64_t peer, uint64_t index, uint64_t term)
{
    if (index == 0 || index > r->commit_max) return true;
    uint64_t ours = term_of(r, index);
    if (ours == 0 || ours == term) return true;
    conflict_fail(r, peer, index, ours, term);
    return false;
}

/* The members' last change is committed if a leader has made another one. */
static void change_before_commit(struct replica *r, uint64_t index, uint64_t prev_term)
{
    uint64_t before = r->raft.configuration_uncommitted_index;
    if (before == 0 || before >= index || term_of(r, index - 1) != prev_term || term_of(r, index) != 0) return;
    struct raft_buffer encoded;
    struct raft_event event = {.type = RAFT_CONFIGURATION, .configuration.index = before};
    must(raft_configuration_encode(&r->raft.configuration, &encoded) == 0);
    must(raft_configuration_decode(&encoded, &event.configuration.conf) == 0);
    raft_free(encoded.base);
    step_must(r, &event);
}

static void entries_room(struct replica *r, uint32_t count)
{
    if (count <= r->entries_cap) return;
    r->entries_cap = count < 64 ? 64 : count;
    free(r->entries);
    r->entries = malloc(r->entries_cap * sizeof *r->entries);
    must(r->entries != NULL);
}

/* Gives raft `count` entries (those in r->entries) behind prev. */
static void append_feed(struct replica *r, uint64_t peer, const struct frame *f, uint64_t prev, uint64_t prev_term,
                        uint32_t count)
{
    struct raft_message m = {.type = RAFT_APPEND_ENTRIES,
                             .server_id = peer,
                             .append_entries = {.version = f->message_version,
                                                .term = f->term,
                                                .prev_log_index = prev,
                                                .prev_log_term = prev_term,
                                                .leader_commit = f->c,
                                                .entries = r->entries,
                                                .n_entries = count}};
    if (count > 0) {
        void *batch = raft_malloc(1); /* raft frees it, or leaves it to the update's end: the bodies are the frame's */
        must(batch != NULL);
        for (uint32_t i = 0; i < count; i++) r->entries[i].batch = batch;
        if (r->entries[0].type == RAFT_CHANGE) change_before_commit(r, prev + 1, prev_term);
    }
    r->answer_stream = r->append_stream = f->stream;
    step_message(r, &m);
}

static bool still_follows(struct replica *r, uint64_t peer, uint64_t term)
{
    return !atomic_load(&r->broken) && raft_current_term(&r->raft) == term && leader_now(r) == peer;
}

/* The entries behind `skip` of the frame, a change of the members alone each. */
static void entries_feed(struct replica *r, uint64_t peer, const struct frame *f, uint64_t skip)
{
    struct slice rest = f->entries;
    uint64_t prev = f->a, prev_term = f->b;
    uint32_t have = 0;
    entries_room(r, f->count);
    for (uint32_t i = 0; i < f->count; i++) {
        struct frame_entry e;
        uint64_t index = f->a + 1 + i;
        frame_entry_read(&rest, &e);
        if (!committed_same(r, peer, index, e.term)) return;
        if (index <= skip) {
            prev = index;
            prev_term = e.term;
            continue;
        }
        bool alone = e.type == RAFT_CHANGE;
        if (alone && have > 0) {
            append_feed(r, peer, f, prev, prev_term, have);
            if (!still_follows(r, peer, f->term) || raft_last_index(&r->raft) < index - 1) return;
            prev_term = r->entries[have - 1].term;
            prev += have;
            have = 0;
        }
        r->entries[have++] = (struct raft_entry){
            .term = e.term, .type = e.type, .buf = {.base = (void *)(uintptr_t)e.body.at, .len = e.body.len}};
        if (!alone && i + 1 < f->count) continue;
        append_feed(r, peer, f, prev, prev_term, have);
        if (!still_follows(r, peer, f->term) || raft_last_index(&r->raft) < index) return;
        prev = index;
        prev_term = e.term;
        have = 0;
    }
    if (have > 0) append_feed(r, peer, f, prev, prev_term, have);
}

static void append_take(struct replica *r, uint64_t peer, const struct frame *f)
{
    uint64_t term = raft_current_term(&r->raft);
    if (f->term == term && raft_state(&r->raft) == RAFT_LEADER) {
        log_warn("raft: node %" PRIu64 " says it leads term %" PRIu64 ", as this one does; dropped", peer, term);
        return;
    }
    if (f->term < term) { /* it is told so */
        r->answer_stale = true;
        append_feed(r, peer, f, f->a, f->b, 0);
        r->answer_stale = false;
        return;
    }
    if (r->full) { /* the leader is heard, so that nobody is elected, and gets no answer, so that it sends nothing again */
        struct frame heard = {.kind = FRAME_APPEND, .term = f->term, .message_version = f->message_version};
        r->answer_none = true;
        append_feed(r, peer, &heard, 0, 0, 0);
        r->answer_none = false;
        return;
    }
    bool first = r->conf.index == 0 && f->count > 0; /* of a node that waits for its entries */
    if (first) {
        struct slice rest = f->entries;
        struct frame_entry e;
        frame_entry_read(&rest, &e);
        if (f->a == 0 && e.type != RAFT_CHANGE) {
            log_warn("raft: node %" PRIu64 " sends a first entry that is not a configuration; dropped", peer);
            return;
        }
    }
    if (!committed_same(r, peer, f->a, f->b)) return;
    uint64_t have = stored_commit(r), end = f->a + f->count;
    if (f->a >= have) {
        if (f->count == 0)
            append_feed(r, peer, f, f->a, f->b, 0);
        else
            entries_feed(r, peer, f, 0);
    } else if (end > have) {
        entries_feed(r, peer, f, have);
    } else {
        /* Nothing new. Whatever place it names, we agree up to `have`. */
        struct slice rest = f->entries;
        for (uint32_t i = 0; i < f->count; i++) {
            struct frame_entry e;
            frame_entry_read(&rest, &e);
            if (!committed_same(r, peer, f->a + 1 + i, e.term)) return;
        }
        append_feed(r, peer, f, have, term_of(r, have), 0);
    }
}

static void commit_take(struct replica *r, uint64_t peer, const struct frame *f)
{
    if (f->term != raft_current_term(&r->raft) || leader_now(r) != peer || f->a <= r->commit_max) return;
    /* The same entry here: so everything before it is the same too. */
    if (f->a <= raft_last_index(&r->raft) && term_of(r, f->a) == f->b) r->commit_max = f->a;
}

/* ---- answers */

static void appended_feed(struct replica *r, uint64_t peer, const struct frame *f, uint64_t rejected, uint64_t last)
{
    struct raft_message m = {.type = RAFT_APPEND_ENTRIES_RESULT,
                             .server_id = peer,
                             .append_entries_result = {.version = f->message_version,
                                                       .term = f->term,
                                                       .rejected = rejected,
                                                       .last_log_index = last,
                                                       .features = f->features,
                                                       .capacity = f->capacity}};
    step_message(r, &m);
}

static void rejected_take(struct replica *r, struct peer *p, const struct frame *f)
{
    raft_index match = 0;
    if (f->stream != p->stream || !p->open || raft_match_index(&r->raft, p->id, &match) != 0) {
        appended_feed(r, p->id, f, 0, 0);
        return;
    }
    uint64_t rejected = f->a, last = f->b < rejected ? f->b : rejected - 1;
    p->open = false;
    if (rejected <= match) { /* raft would count below what the member has stored: it never does that unless it lost it */
        if (!p->lost) log_warn("raft: node %" PRIu64 " has lost entries that it had stored, up to %llu", p->id, match);
        p->lost = true;
        appended_feed(r, p->id, f, 0, 0);
        return;
    }
    if (last < match) last = match;
    p->hint = last;
    appended_feed(r, p->id, f, rejected, last);
    if (raft_state(&r->raft) == RAFT_LEADER && !p->open) stream_restart(r, p);
}

static void appended_take(struct replica *r, uint64_t peer, const struct frame *f)
{
    uint64_t term = raft_current_term(&r->raft);
    struct peer *p = peer_of(r, peer);
    if (raft_state(&r->raft) != RAFT_LEADER || f->term < term || p == NULL) return;
    if (f->term > term) {
        appended_feed(r, peer, f, 0, 0);
        return;
    }
    p->heard_us = loop_now_us(r->o.loop);
    if (f->a > 0) {
        rejected_take(r, p, f);
    } else {
        uint64_t last = f->b < raft_last_index(&r->raft) ? f->b : raft_last_index(&r->raft);
        if (p->open && f->stream == p->stream) {
            p->proven = true;
            p->snapshot = false;
        }
        if (p->open && last > p->base) p->base = last;
        if (p->open && p->cursor < p->base) p->cursor = p->base;
        if (p->open && p->told < p->cursor) p->told = p->cursor;
        appended_feed(r, peer, f, 0, last);
    }
    if (raft_state(&r->raft) != RAFT_LEADER) return;
    stream_extend(r);
    p = peer_of(r, peer);
    if (p != NULL) stream_pump(r, p, false);
}

static void appended_answer(struct replica *r, uint64_t peer, uint64_t last)
{
    struct frame f = {.kind = FRAME_APPENDED,
                      .message_version = RESULT_VERSION,
                      .term = raft_current_term(&r->raft),
                      .b = last,
                      .features = RESULT_FEATURES,
                      .capacity = UINT16_MAX};
    frame_send(r, peer, &f);
}

/* ---- elections */

static void vote_take(struct replica *r, uint64_t peer, const struct frame *f)
{
    struct raft_message m = {.type = RAFT_REQUEST_VOTE,
                             .server_id = peer,
                             .request_vote = {.version = f->message_version,
                                              .term = f->term,
                                              .candidate_id = peer,
                                              .last_log_index = f->a,
                                              .last_log_term = f->b,
                                              .disrupt_leader = (f->flags & FRAME_DISRUPT) != 0,
                                              .pre_vote = (f->flags & FRAME_PRE_VOTE) != 0}};
    step_message(r, &m);
}

static void voted_take(struct replica *r, uint64_t peer, const struct frame *f)
{
    bool pre_vote = (f->flags & FRAME_PRE_VOTE) != 0;
    if (raft_state(&r->raft) != RAFT_CANDIDATE || pre_vote != r->raft.candidate_state.in_pre_vote) return;
    struct raft_message m = {.type = RAFT_REQUEST_VOTE_RESULT,
                             .server_id = peer,
                             .request_vote_result = {.version = f->message_version,
                                                     .term = f->term,
                                                     .vote_granted = (f->flags & FRAME_GRANTED) != 0,
                                                     .pre_vote = pre_vote,
                                                     .features = f->features,
                                                     .capacity = f->capacity}};
    if (pre_vote && m.request_vote_result.vote_granted && f->term > raft_current_term(&r->raft) + 1) return;
    step_message(r, &m);
}

static void timeout_now_take(struct replica *r, uint64_t peer, const struct frame *f)
{
    struct raft_message m = {
        .type = RAFT_TIMEOUT_NOW,
        .server_id = peer,
        .timeout_now = {.version = f->message_version, .term = f->term, .last_log_index = f->a, .last_log_term = f->b}};
    if (f->term != raft_current_term(&r->raft) || sole_voter(r)) return; /* the only voter needs no invitation */
    step_message(r, &m);
}

/* ---- the rest */

static void install_take(struct replica *r, uint64_t peer, const struct frame *f)
{
    if (f->term != raft_current_term(&r->raft) || leader_now(r) != peer) return;
    uint64_t have = stored_commit(r);
    if (have >= f->a) {
        r->append_stream = 0;
        appended_answer(r, peer, have);
        return;
    }
    int64_t now_us = loop_now_us(r->o.loop);
    if (r->wanted_leader == peer && now_us - r->wanted_us < WANTED_AGAIN_US) return;
    r->wanted_leader = peer;
    r->wanted_us = now_us;
    if (r->o.snapshot_wanted != NULL) r->o.snapshot_wanted(r->o.ctx, peer, f->a);
}

static void probe_take(struct replica *r, uint64_t peer, const struct frame *f)
{
    if (f->term != raft_current_term(&r->raft)) return;
    struct frame answer = {.kind = FRAME_PROBED, .term = f->term, .a = f->a};
    frame_send(r, peer, &answer);
}

static void probed_take(struct replica *r, uint64_t peer, const struct frame *f)
{
    struct peer *p = peer_of(r, peer);
    if (p == NULL || raft_state(&r->raft) != RAFT_LEADER || f->term != raft_current_term(&r->raft)) return;
    if (f->a > p->round && f->a <= r->confirm.round) p->round = f->a;
}

/* At most once a second: a node of another version sends nothing else. */
static void bad_frame_say(struct replica *r, uint64_t peer, size_t bytes, const char *fault)
{
    int64_t now_us = loop_now_us(r->o.loop);
    r->bad_frames++;
    if (r->bad_frame_us != 0 && now_us - r->bad_frame_us < 1000000) return;
    r->bad_frame_us = now_us;
    log_warn("raft: a frame of node %" PRIu64 " (%zu bytes) is dropped: it has %s; %" PRIu64 " so far", peer, bytes, fault,
             r->bad_frames);
}

void replica_receive(struct replica *r, uint64_t peer, struct slice frame)
{
    struct frame f;
    if (atomic_load(&r->broken) || atomic_load(&r->closing) || peer == 0 || peer == r->identity.node) return;
    const char *fault = frame_read(frame, &f);
    if (fault != NULL) {
        bad_frame_say(r, peer, frame.len, fault);
        return;
    }
    switch (f.kind) {
    case FRAME_APPEND:
        append_take(r, peer, &f);
        break;
    case FRAME_APPENDED:
        appended_take(r, peer, &f);
        break;
    case FRAME_VOTE:
        vote_take(r, peer, &f);
        break;
    case FRAME_VOTED:
        voted_take(r, peer, &f);
        break;
    case FRAME_TIMEOUT_NOW:
        timeout_now_take(r, peer, &f);
        break;
    case FRAME_INSTALL:
        install_take(r, peer, &f);
        break;
    case FRAME_PROBE:
        probe_take(r, peer, &f);
        break;
    case FRAME_PROBED:
        probed_take(r, peer, &f);
        break;
    default:
        commit_take(r, peer, &f);
    }
    stream_release(r);
    settle(r);
}

/* Part of a large frame came in: to raft it is a heartbeat that names nothing. It resets the timer and answers "alive". */
void replica_receiving(struct replica *r, uint64_t peer)
{
    if (atomic_load(&r->broken) || atomic_load(&r->closing) || leader_now(r) != peer || peer == 0) return;
    struct frame f = {.kind = FRAME_APPEND, .term = raft_current_term(&r->raft)};
    uint32_t stream = r->append_stream;
    append_feed(r, peer, &f, 0, 0, 0);
    r->answer_stream = r->append_stream = stream;
    settle(r);
}
