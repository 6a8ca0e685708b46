/* The side that lacks entries.
 *
 *   snapshots_fetch    WANT to the leader, again and again                                            WANTED
 *   MANIFEST           of our cluster, of a state behind our last entry -> GROUP/incoming              RANGES
 *                      range by range, up to FETCH_RANGES_MAX asked for at a time: what is there already with its digest, to be
 *                      confirmed; what comes is checked, written, and each file synced when it is whole
 *   all there          is it still right to take it? -> `ready` -> options.fetched                    DONE
 *
 * Why it is right: the entries up to I in the fetched log are committed, so they are the only ones there will ever be at those indexes. Let
 * L be our last index. When L < I, every entry this node has acknowledged is at or below I, and either is the one in the fetched log or
 * was never committed and never will be. When L >= I and our entry I is of another term, it was never committed, so nothing behind it
 * was. In both cases nothing that counts is cut. Else entry I is ours already, or trimmed because our own state is past it: the fetch has
 * become pointless, and what follows I may count: it is thrown away. This is looked at in the very turn that makes `ready`; after
 * `fetched` the replica is given nothing more that could add entries. The term of entry I must not be above ours, so that term and vote
 * fit the log they stay with.
 *
 * A repair has no log to compare: it fetches a state at the last entry that the leader had when it was asked, or later, from a leader
 * of a term not below our own. All this node has ever acknowledged and that may count is at or before that entry.
 *
 * Given up: the source is silent, does not lead or has dropped it (GONE), another leader is known, our own log went on, too many
 * damaged answers, or an error of our disk. What was fetched stays for the next try, but not after such an error: what a failed sync
 * covered may read as it should and be gone with the power. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/logger.h"
#include "broker/snapshot_inner.h"

static const struct slice NONE = {0};

static void fetch_clear(struct fetch *f)
{
    manifest_free(&f->manifest);
    buf_free(&f->encoded);
    buf_free(&f->bytes);
    free(f->files);
    f->files = NULL;
    f->state = FETCH_NONE;
    f->id = f->peer = 0;
    memset(f->slots, 0, sizeof f->slots);
}

static void give_up(struct snapshots *s, const char *why, int64_t again_us)
{
    struct fetch *f = &s->fetch;
    log_info("fetch of the state from node %" PRIu64 " is given up: %s", f->peer, why);
    if (f->state == FETCH_RANGES) s->leftover_us = clock_mono_us();
    fetch_clear(f);
    f->again_us = clock_mono_us() + again_us;
    loop_timer_cancel(s->o.loop, &s->pace);
}

static void give_up_failed(struct snapshots *s)
{
    give_up(s, "it cannot be stored here", FETCH_AGAIN_FAILED_US);
    if (incoming_remove(s) == 0) s->leftover_us = 0;
}

static void give_up_needless(struct snapshots *s)
{
    give_up(s, "this node's own log went on", FETCH_AGAIN_US);
    if (incoming_remove(s) == 0) s->leftover_us = 0;
}

/* Is entry I ours already? */
static bool needless(const struct snapshots *s)
{
    const struct store_mark *mark = &s->fetch.manifest.mark;
    if (s->o.replica == NULL) return false;
    if (replica_last_index(s->o.replica) < mark->index) return false;
    uint64_t ours = replica_entry_term(s->o.replica, mark->index);
    return ours == 0 || ours == mark->term;
}

static void want_send(struct snapshots *s, int64_t now_us)
{
    struct fetch *f = &s->fetch;
    f->wanted_us = now_us;
    uint64_t index = f->index | (s->o.replica == NULL ? WANT_NOT_OLDER : 0);
    snapshot_frame_send(s, f->peer, FRAME_WANT, 0, slice_make(&index, sizeof index), NONE);
}

void snapshots_who(struct snapshots *s, uint64_t peer)
{
    snapshot_frame_send(s, peer, FRAME_WHO, 0, NONE, NONE);
}

void fetch_last(struct snapshots *s, uint64_t peer, struct slice in)
{
    uint64_t term, index;
    if (s->o.replica != NULL || !u64_take(&in, &term) || !u64_take(&in, &index)) return;
    s->o.last(s->o.ctx, peer, term, index);
}

void snapshots_repair(struct snapshots *s, uint64_t leader, uint64_t index)
{
    must(s->o.replica == NULL && (index & WANT_NOT_OLDER) == 0);
    snapshots_fetch(s, leader, index);
}

void snapshots_fetch(struct snapshots *s, uint64_t leader, uint64_t index)
{
    struct fetch *f = &s->fetch;
    int64_t now_us = clock_mono_us();
    must(leader != 0 && leader != s->o.node);
    if (f->state == FETCH_DONE || (f->state != FETCH_NONE && f->peer == leader)) return;
    if (f->state != FETCH_NONE) give_up(s, "there is another leader", 0);
    if (now_us < f->again_us) return;
    f->state = FETCH_WANTED;
    f->peer = leader;
    f->index = index;
    f->heard_us = now_us;
    f->bad = 0;
    f->bytes_total = f->bytes_done = 0;
    want_send(s, now_us);
    loop_timer_set(s->o.loop, &s->tick, now_us); /* not from here: the replica calls */
}

/* ---- the end */

static void finish(struct snapshots *s)
{
    struct fetch *f = &s->fetch;
    struct replica *r = s->o.replica;
    uint64_t index = f->manifest.mark.index, leader = r == NULL ? 0 : replica_leader(r);
    if (needless(s)) {
        give_up_needless(s);
        return;
    }
    if ((leader != 0 && leader != f->peer) || (r != NULL && replica_term(r) < f->manifest.mark.term)) {
        give_up(s, "its source does not lead any more", FETCH_AGAIN_US);
        return;
    }
    int code = incoming_ready(s);
    if (code != 0) {
        give_up_failed(s);
        return;
    }
    log_info("fetched the state at entry %" PRIu64 " from node %" PRIu64 ": %" PRIu64
             " bytes; it is put in place at the next start",
             index, f->peer, f->bytes_total);
    f->state = FETCH_DONE;
    loop_timer_cancel(s->o.loop, &s->pace);
    s->o.fetched(s->o.ctx, index);
}

/* ---- asking */

static void slot_send(struct snapshots *s, struct fetch_slot *slot, int64_t now_us)
{
    struct buf head = {0};
    slot->asked_us = now_us;
    range_put(&head, &slot->range);
    buf_byte(&head, slot->have);
    buf_u64(&head, slot->digest);
    snapshot_frame_send(s, s->fetch.peer, FRAME_ASK, s->fetch.id, buf_view(&head), NONE);
    buf_free(&head);
}

/* A file all of whose ranges are right. 0 or an errno value. */
static int file_finish(struct snapshots *s, uint32_t file)
{
    must(s->fetch.files_left > 0);
    s->fetch.files_left--;
    return incoming_done(s, file);
}

/* Takes the next range of the manifest into the slot; false when there is none left. Empty files are made on the way. */
static bool slot_fill(struct snapshots *s, struct fetch_slot *slot, int *code)
{
    struct fetch *f = &s->fetch;
    while (f->file < f->manifest.count && f->offset == f->manifest.files[f->file].bytes) {
        if (f->offset == 0) *code = file_finish(s, f->file);
        if (*code != 0) return false;
        f->file++;
        f->offset = 0;
    }
    if (f->file == f->manifest.count) return false;
    uint64_t left = f->manifest.files[f->file].bytes - f->offset;
    *slot = (struct fetch_slot){.used = true, .range = {.file = f->file, .offset = f->offset}};
    slot->range.len = left < FETCH_RANGE_BYTES ? (uint32_t)left : FETCH_RANGE_BYTES;
    f->offset += slot->range.len;
    if (slot->range.offset + slot->range.len > f->files[f->file].had) return true;
    /* What cannot be read is asked for. */
    slot->have = incoming_read(s, &slot->range) == 0;
    if (slot->have) slot->digest = range_digest(buf_view(&f->bytes));
    return true;
}

/* Asks for as much as pace and slots allow; ends the fetch when nothing is missing. */
static void ranges_ask(struct snapshots *s)
{
    struct fetch *f = &s->fetch;
    int64_t now_us = clock_mono_us();
    int code = 0;
    if (f->pace_us < now_us - FETCH_BURST_US) f->pace_us = now_us - FETCH_BURST_US;
    for (uint32_t n = 0; n < FETCH_RANGES_MAX && code == 0 && f->pace_us <= now_us; n++) {
        struct fetch_slot *slot = &f->slots[n];
        if (slot->used) continue;
        if (!slot_fill(s, slot, &code)) break;
        f->pace_us += (int64_t)slot->range.len * 1000000 / FETCH_BYTES_S_MAX;
        slot_send(s, slot, now_us);
    }
    if (code != 0) {
        give_up_failed(s);
        return;
    }
    bool more = f->file < f->manifest.count;
    if (more && f->pace_us > now_us) loop_timer_set(s->o.loop, &s->pace, f->pace_us);
    if (f->files_left == 0) finish(s);
}

void fetch_pace(struct loop_timer *timer)
{
    struct snapshots *s = (struct snapshots *)(void *)((char *)timer - offsetof(struct snapshots, pace));
    if (s->fetch.state != FETCH_RANGES) return;
    ranges_ask(s);
    tick_arm(s);
}

/* ---- what the source says */

static bool heard(struct snapshots *s, uint64_t peer)
{
    struct fetch *f = &s->fetch;
    if (f->state == FETCH_NONE || f->state == FETCH_DONE || peer != f->peer) return false;
    f->heard_us = clock_mono_us();
    return true;
}

void fetch_taking(struct snapshots *s, uint64_t peer)
{
    heard(s, peer);
}

void fetch_gone(struct snapshots *s, uint64_t peer, uint64_t id)
{
    if (!heard(s, peer)) return;
    if (s->fetch.state == FETCH_RANGES && id != s->fetch.id) return;
    give_up(s, "the source has it no more", FETCH_AGAIN_US);
}

/* NULL, or why this state is not for us. */
static const char *manifest_refuse(const struct snapshots *s, const struct manifest *m)
{
    static const struct uuid unknown = {{0}};
    if (!uuid_equal(s->o.cluster, unknown) && !uuid_equal(s->o.cluster, m->cluster)) return "it is of another cluster";
    if (m->node != s->fetch.peer) return "it is of another node";
    return NULL;
}

void fetch_manifest(struct snapshots *s, uint64_t peer, uint64_t id, struct slice in)
{
    struct fetch *f = &s->fetch;
    if (!heard(s, peer) || f->state != FETCH_WANTED || id == 0) return;
    const char *wrong = manifest_decode(in, &f->manifest);
    if (wrong == NULL) wrong = manifest_refuse(s, &f->manifest);
    if (wrong != NULL) {
        log_warn("fetch: the manifest of node %" PRIu64 " is refused: %s", peer, wrong);
        give_up(s, "no use for its manifest", FETCH_AGAIN_FAILED_US);
        return;
    }
    if (needless(s)) {
        give_up_needless(s);
        return;
    }
    if (s->o.replica == NULL && f->manifest.mark.index < f->index) {
        give_up(s, "it is older than what this node may have acknowledged", FETCH_AGAIN_US);
        return;
    }
    buf_slice(&f->encoded, in);
    f->state = FETCH_RANGES;
    f->id = id;
    f->file = 0;
    f->offset = 0;
    f->files_left = f->manifest.count;
    f->bytes_total = manifest_bytes(&f->manifest);
    f->fetches_total++;
    s->leftover_us = 0;
    log_info("fetching the state at entry %" PRIu64 " from node %" PRIu64 ": %" PRIu32 " files, %" PRIu64 " bytes",
             f->manifest.mark.index, peer, f->manifest.count, f->bytes_total);
    int code = incoming_begin(s);
    if (code != 0)
        give_up_failed(s);
    else
        ranges_ask(s);
}

static struct fetch_slot *slot_find(struct fetch *f, const struct range *r)
{
    for (uint32_t n = 0; n < FETCH_RANGES_MAX; n++) {
        struct fetch_slot *slot = &f->slots[n];
        const struct range *mine = &slot->range;
        if (slot->used && mine->file == r->file && mine->offset == r->offset && mine->len == r->len) return slot;
    }
    return NULL;
}

/* The answer is not what its digest says, or not what we have: once more, without what we have. */
static void slot_again(struct snapshots *s, struct fetch_slot *slot)
{
    struct fetch *f = &s->fetch;
    log_warn("fetch: a damaged range of %s from node %" PRIu64 "; asked for again", f->manifest.files[slot->range.file].name,
             f->peer);
    if (++f->bad > FETCH_BAD_MAX) {
        give_up(s, "too many damaged ranges", FETCH_AGAIN_FAILED_US);
        return;
    }
    slot->have = false;
    slot_send(s, slot, clock_mono_us());
}

void fetch_answer(struct snapshots *s, uint64_t peer, uint64_t id, bool same, struct slice in)
{
    struct fetch *f = &s->fetch;
    struct range r;
    uint64_t digest;
    if (!heard(s, peer) || f->state != FETCH_RANGES || id != f->id) return;
    if (!range_take(&in, &r) || !u64_take(&in, &digest)) return;
    struct fetch_slot *slot = slot_find(f, &r);
    if (slot == NULL) return; /* answered before */
    bool right = same ? slot->have && digest == slot->digest : in.len == r.len && digest == range_digest(in);
    if (!right) {
        slot_again(s, slot);
        return;
    }
    int code = same ? 0 : incoming_write(s, &r, in);
    slot->used = false;
    f->bytes_done += r.len;
    must(f->files[r.file].missing >= r.len);
    f->files[r.file].missing -= r.len;
    if (code == 0 && f->files[r.file].missing == 0) code = file_finish(s, r.file);
    if (code != 0)
        give_up_failed(s);
    else
        ranges_ask(s);
}

/* ---- time */

void fetch_link_up(struct snapshots *s, uint64_t peer)
{
    struct fetch *f = &s->fetch;
    int64_t now_us = clock_mono_us();
    if (peer != f->peer) return;
    /* What was asked before the connection broke is lost. */
    if (f->state == FETCH_WANTED) want_send(s, now_us);
    if (f->state != FETCH_RANGES) return;
    for (uint32_t n = 0; n < FETCH_RANGES_MAX; n++)
        if (f->slots[n].used) slot_send(s, &f->slots[n], now_us);
}

int64_t fetch_tick(struct snapshots *s, int64_t now_us)
{
    struct fetch *f = &s->fetch;
    if (f->state == FETCH_DONE) return 0;
    if (f->state != FETCH_NONE) {
        uint64_t leader = s->o.replica == NULL ? 0 : replica_leader(s->o.replica);
        if (leader != 0 && leader != f->peer)
            give_up(s, "there is another leader", 0);
        else if (now_us - f->heard_us >= FETCH_SILENT_US)
            give_up(s, "its source is silent", FETCH_AGAIN_US);
    }
    if (f->state == FETCH_NONE) {
        if (s->leftover_us == 0) return 0;
        if (now_us - s->leftover_us < INCOMING_KEPT_US) return s->leftover_us + INCOMING_KEPT_US;
        if (incoming_remove(s) == 0) log_info("fetch: what an unfinished one left is removed; nobody went on with it");
        s->leftover_us = 0;
        return 0;
    }
    if (f->state == FETCH_WANTED && now_us - f->wanted_us >= FETCH_RETRY_US) want_send(s, now_us);
    for (uint32_t n = 0; f->state == FETCH_RANGES && n < FETCH_RANGES_MAX; n++)
        if (f->slots[n].used && now_us - f->slots[n].asked_us >= FETCH_RETRY_US) slot_send(s, &f->slots[n], now_us);
    return now_us + FETCH_TICK_US;
}

void fetch_free(struct snapshots *s)
{
    fetch_clear(&s->fetch);
}
