/* What a leader sends to the other members.
 *
 * raft says which entries a member should get (up to `told`); the frames go out here, in a stream of their own pace:
 *
 *      base            cursor              told
 *   ----|---------------|-------------------|
 *        sent, not       waits: the window
 *        acknowledged    is full
 *
 * Frames of one peer are not overtaken, so everything sent later (entries, heartbeats) names the entry at `cursor` as the one before it.
 * If something of the stream was lost, the next frame is rejected, with the stream's number: the stream is closed and begun
 * anew behind what the member is known to have. Rejections of older streams say nothing. raft repeats its messages when it has
 * doubts (a slow member, a late heartbeat): what is already under way is not sent again.
 *
 * A stream that was not answered yet sends one small frame at most: raft is still looking for the place where the logs part. */
#include <stdlib.h>

#include "base/logger.h"
#include "replica/replica_inner.h"

enum {
    FRAME_BYTES = 4 << 20,        /* of entries in a frame, unless one is larger */
    FRAME_FIRST_BYTES = 64 << 10, /* in a stream's first one, as long as it is not answered */
    SMALL_BYTES = 16 << 10,       /* bodies up to it are copied into the frame, larger ones sent from the log's memory */
    SMALL_SPARE_BYTES = 8 << 20,
    BODIES_MAX = OUTGOING_PARTS_MAX / 2 - 2, /* of those in a frame */
};

struct peer *peer_of(struct replica *r, uint64_t id)
{
    for (uint32_t i = 0; i < r->peer_count; i++) {
        if (r->peers[i].id == id) return &r->peers[i];
    }
    return NULL;
}

bool peer_heard(const struct replica *r, const struct peer *p)
{
    return p->heard_us != 0 && loop_now_us(r->o.loop) - p->heard_us < (int64_t)r->o.election_ms * 1000;
}

void peers_sync(struct replica *r, bool fresh)
{
    struct peer old[REPLICA_MEMBERS_MAX];
    uint32_t old_count = fresh ? 0 : r->peer_count, count = 0;
    memcpy(old, r->peers, sizeof old);
    for (unsigned i = 0; i < r->raft.configuration.n; i++) {
        uint64_t id = r->raft.configuration.servers[i].id;
        if (id == r->identity.node) continue;
        must(count < REPLICA_MEMBERS_MAX);
        struct peer *p = &r->peers[count++];
        *p = (struct peer){.id = id};
        for (uint32_t j = 0; j < old_count; j++) {
            if (old[j].id == id) *p = old[j];
        }
    }
    r->peer_count = count;
    if (fresh) r->notice_commit = 0;
}

/* ---- frames */

bool frame_send(struct replica *r, uint64_t peer, const struct frame *f)
{
    char head[FRAME_HEAD_BYTES];
    frame_head_write(f, head);
    struct slice part = slice_make(head, sizeof head);
    return r->opened && r->o.send != NULL && r->o.send(r->o.ctx, peer, true, &part, 1);
}

void stream_release(struct replica *r)
{
    struct outgoing *g = &r->outgoing;
    for (uint32_t i = 0; i < g->pin_count; i++) log_unpin(r->log, g->pins[i]);
    g->pin_count = g->part_count = 0;
    g->valid = false;
    buf_clear(&g->small);
    if (g->small.cap > SMALL_SPARE_BYTES) buf_free(&g->small);
}

/* Ends the run of copied bytes that began at *from: a part of its own. Its place is known once all are there. */
static void small_end(struct outgoing *g, size_t *from)
{
    if (g->small.len == *from) return;
    g->parts[g->part_count++] = slice_make(NULL, g->small.len - *from);
    *from = g->small.len;
}

static bool body_put(struct replica *r, const struct slot *s, struct slice aside_body, size_t *from)
{
    struct outgoing *g = &r->outgoing;
    struct slice body;
    struct log_pin pin;
    if (aside_body.at != NULL) {
        buf_slice(&g->small, aside_body);
        return true;
    }
    if (s->len > SMALL_BYTES && g->pin_count < BODIES_MAX && log_view(r->log, s->pos, s->len, &body, &pin)) {
        small_end(g, from);
        g->pins[g->pin_count++] = pin;
        g->parts[g->part_count++] = body;
        return true;
    }
    if (log_read_record(r->log, s->pos, s->len, buf_reserve(&g->small, s->len + 1)) != LOG_OK) {
        replica_damaged(r, s->pos);
        return false;
    }
    g->small.len += s->len;
    return true;
}

/* The entries prev+1 .. prev+count as parts. False: one is damaged here. It is not sent; who lacks it gets it from another leader. */
static bool outgoing_make(struct replica *r, uint64_t prev, uint32_t count)
{
    struct outgoing *g = &r->outgoing;
    if (g->valid && g->prev == prev && g->count == count) return true;
    stream_release(r);
    g->part_count = 1;
    size_t from = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct slot s;
        struct slice aside = {0};
        must(entry_find(r, prev + 1 + i, &s, &aside));
        struct frame_entry e = {.term = s.term, .type = s.type, .body = slice_make(NULL, s.len)};
        frame_entry_write(&e, buf_reserve(&g->small, FRAME_ENTRY_BYTES));
        g->small.len += FRAME_ENTRY_BYTES;
        if (body_put(r, &s, aside, &from)) continue;
        stream_release(r);
        return false;
    }
    small_end(g, &from);
    size_t at = 0;
    for (uint32_t i = 1; i < g->part_count; i++) {
        if (g->parts[i].at != NULL) continue;
        g->parts[i].at = g->small.at + at;
        at += g->parts[i].len;
    }
    g->valid = true;
    g->prev = prev;
    g->count = count;
    return true;
}

static bool append_send(struct replica *r, struct peer *p, uint64_t prev, uint32_t count)
{
    struct frame f = {.kind = FRAME_APPEND,
                      .stream = p->stream,
                      .term = raft_current_term(&r->raft),
                      .a = prev,
                      .b = term_of(r, prev),
                      .c = r->commit_max,
                      .count = count};
    bool sent;
    if (!r->opened || (prev != 0 && f.b == 0)) return false; /* not known any more: raft will come to that */
    if (count == 0) {
        sent = frame_send(r, p->id, &f);
    } else {
        char head[FRAME_HEAD_BYTES];
        if (!outgoing_make(r, prev, count)) return false;
        frame_head_write(&f, head);
        r->outgoing.parts[0] = slice_make(head, sizeof head);
        sent = r->o.send != NULL && r->o.send(r->o.ctx, p->id, false, r->outgoing.parts, r->outgoing.part_count);
        r->outgoing.parts[0] = (struct slice){0};
    }
    if (!sent) return false;
    p->sent_us = loop_now_us(r->o.loop);
    uint64_t told = prev + count < r->commit_max ? prev + count : r->commit_max;
    if (told > p->commit_told) p->commit_told = told;
    return true;
}

/* How many entries from `first` on go into one frame: a change of the members alone. At least one when `some`. */
static uint32_t frame_fit(struct replica *r, uint64_t first, uint64_t last, size_t bytes_max, bool some)
{
    size_t bytes = 0;
    uint32_t n = 0;
    for (uint64_t i = first; i <= last && n < FRAME_ENTRIES_MAX; i++, n++) {
        struct slot s;
        struct slice aside;
        if (!entry_find(r, i, &s, &aside)) break;
        bytes += FRAME_ENTRY_BYTES + s.len;
        if (bytes > bytes_max && !(n == 0 && some)) break;
        if (s.type == RAFT_CHANGE) return n == 0 ? 1 : n;
    }
    return n;
}

/* ---- streams */

/* Bytes of log between the two: what is under way. */
static uint64_t span_bytes(const struct replica *r, uint64_t base, uint64_t cursor)
{
    uint64_t first = base + 1 < r->ring.first ? r->ring.first : base + 1;
    if (cursor < first || !ring_has(&r->ring, first) || !ring_has(&r->ring, cursor)) return 0;
    const struct slot *from = ring_at(&r->ring, first), *to = ring_at(&r->ring, cursor);
    return to->pos + to->len - from->pos;
}

static uint64_t match_of(const struct replica *r, const struct peer *p)
{
    raft_index match = 0;
    if (raft_match_index(&r->raft, p->id, &match) != 0) return 0;
    return match;
}

void stream_pump(struct replica *r, struct peer *p, bool force)
{
    bool sent = false;
    while (p->open && p->cursor < p->told) {
        bool steady = p->proven && peer_heard(r, p);
        if (p->cursor > p->base && (!steady || span_bytes(r, p->base, p->cursor) >= r->o.window_bytes)) break;
        bool some = p->proven || p->base <= match_of(r, p);
        uint32_t n = frame_fit(r, p->cursor + 1, p->told, steady ? FRAME_BYTES : FRAME_FIRST_BYTES, some);
        if (n == 0 || !append_send(r, p, p->cursor, n)) break;
        p->cursor += n;
        sent = true;
    }
    if (!sent && force && p->open) append_send(r, p, p->cursor, 0);
}

static void stream_open(struct replica *r, struct peer *p, uint64_t prev, uint64_t told)
{
    p->open = true;
    p->proven = false;
    p->stream = ++r->stream_count;
    p->base = p->cursor = prev;
    p->told = told;
    stream_pump(r, p, true);
}

/* Begun anew at what it is known to have, else at the last entry it says it has. */
void stream_restart(struct replica *r, struct peer *p)
{
    uint64_t match = match_of(r, p), at = term_of(r, match) != 0 ? match : p->hint;
    if (p->open || at == 0 || term_of(r, at) == 0) return;
    stream_open(r, p, at, raft_last_index(&r->raft));
}

/* The log has been trimmed beyond the place where it stands: nothing can be sent of it, not even a heartbeat. */
bool stream_behind(const struct replica *r, const struct peer *p)
{
    return p->open && p->cursor != 0 && term_of(r, p->cursor) == 0;
}

/* raft wants `count` entries behind prev_log_index sent (none: a heartbeat). A stream that is open knows better where to go on. */
void stream_told(struct replica *r, const struct raft_message *m)
{
    struct peer *p = peer_of(r, m->server_id);
    uint64_t prev = m->append_entries.prev_log_index, told = prev + m->append_entries.n_entries;
    if (p == NULL) return;
    if (!p->open || stream_behind(r, p)) {
        stream_open(r, p, prev, told);
        return;
    }
    if (told > p->told) p->told = told;
    int64_t quiet_us = loop_now_us(r->o.loop) - p->sent_us;
    stream_pump(r, p, m->append_entries.n_entries == 0 || quiet_us >= (int64_t)r->o.heartbeat_ms * 1000);
}

void stream_extend(struct replica *r)
{
    uint64_t last = raft_last_index(&r->raft);
    for (uint32_t i = 0; i < r->peer_count; i++) {
        struct peer *p = &r->peers[i];
        if (!p->open || !p->proven || p->snapshot || !peer_heard(r, p) || p->told >= last) continue;
        p->told = last;
        stream_pump(r, p, false);
    }
}

/* ---- what is committed, told once */

static uint64_t notice_index(const struct replica *r, const struct peer *p)
{
    if (!p->open || !p->proven) return 0;
    return r->commit_max < p->cursor ? r->commit_max : p->cursor;
}

bool notice_due(struct replica *r)
{
    if (r->commit_max == r->notice_commit || r->peer_count == 0 || raft_state(&r->raft) != RAFT_LEADER) return false;
    for (uint32_t i = 0; i < r->peer_count; i++) {
        if (notice_index(r, &r->peers[i]) > r->peers[i].commit_told) return true;
    }
    r->notice_commit = r->commit_max;
    return false;
}

void notice_send(struct replica *r)
{
    r->notice_commit = r->commit_max;
    for (uint32_t i = 0; i < r->peer_count; i++) {
        struct peer *p = &r->peers[i];
        uint64_t index = notice_index(r, p);
        struct frame f = {.kind = FRAME_COMMIT, .term = raft_current_term(&r->raft), .a = index};
        if (index <= p->commit_told) continue;
        f.b = term_of(r, index);
        if (f.b != 0 && frame_send(r, p->id, &f)) p->commit_told = index;
    }
}
