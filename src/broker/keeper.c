/* What goes on behind the calls: changed rows to the store, the log trimmed, memory given back.
 *
 *   applied -> [about CUT_ROWS rows changed, or the cadence] cut -> store thread writes -> engine_cut_stored
 *                                                 the cadence: with a flush -> replica_stored: log segments go that nobody wants, now
 *                                                 and in the durable state
 *
 * A cut is also taken when what it would hold takes much memory; when the store stays behind with that, pushes are refused too.
 * The cadence is durable_every_ms after the first change that is not durable, or durable_every_bytes of log. At most
 * CUTS_WAITING_MAX batches wait for the store; when it stays behind by 4 x durable_every_bytes of log, pushes are refused until it
 * has caught up: the log never grows without end. Nothing applied, nothing done: an idle broker sets no timer.
 *
 * Failure: the store's `failed` ends the process (broker.c). */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/crash_point.h"
#include "base/logger.h"
#include "broker/broker_internal.h"
#include "broker/rows.h"

/* What the store does not have yet is in memory twice while it is written: a cut is taken at a fourth of its share, pushes are refused at
 * half of it. */
enum { BEHIND_FACTOR = 4, UNSTORED_CUT = 4, UNSTORED_FULL = 2 };

static void dead_keep(struct dead_segments *k, struct dead_segment d)
{
    if (k->kept == k->next) { /* no room in front of what is still to be looked at */
        uint32_t ahead = k->count - k->next, room = 16;
        if (k->count + room > k->cap) {
            k->cap = k->cap * 2 + room;
            k->at = realloc(k->at, k->cap * sizeof k->at[0]);
            must(k->at != NULL);
        }
        memmove(&k->at[k->next + room], &k->at[k->next], ahead * sizeof k->at[0]);
        k->next += room;
        k->count += room;
    }
    k->at[k->kept++] = d;
}

/* Asked in the order of places. The live bytes are those of the present state, but a crash comes back at the durable one, in
 * which a segment may be wanted that has been given up since. So it goes only when the durable state has seen it dead. */
static bool places_wanted(struct broker *b, struct dead_segments *k, uint64_t first, uint64_t end)
{
    must(first < end);
    uint64_t bytes = b->config.segment_bytes;
    if (cold_wants(b, first, end)) return true;
    for (uint64_t at = first; at < end; at += bytes)
        if (engine_segment_live(b->engine, at) > 0) return true;
    while (k->next < k->count && k->at[k->next].first_pos < first) k->next++;
    bool known = k->next < k->count && k->at[k->next].first_pos == first;
    struct dead_segment d = {.first_pos = first, .seen_revision = engine_revision(b->engine)};
    if (known) d = k->at[k->next++];
    if (d.seen_revision <= b->keeper.durable_revision) return false;
    dead_keep(k, d);
    return true;
}

static bool segment_wanted(void *ctx, uint64_t first_pos, uint64_t end_pos)
{
    struct broker *b = ctx;
    return places_wanted(b, &b->keeper.dead[0], first_pos, end_pos);
}

static bool archive_wanted(void *ctx, uint64_t first_pos, uint64_t end_pos)
{
    struct broker *b = ctx;
    return places_wanted(b, &b->keeper.dead[1], first_pos | PLACE_ARCHIVE, end_pos | PLACE_ARCHIVE);
}

static void log_cut(struct broker *b)
{
    struct keeper *k = &b->keeper;
    k->dead[0].kept = k->dead[0].next = 0;
    replica_stored(b->replica, k->durable_index, segment_wanted, b);
    k->dead[0].count = k->dead[0].kept;
    struct log *archive = b->places.archive;
    if (archive == NULL || reclaim_owns_archive(b)) return;
    k->dead[1].kept = k->dead[1].next = 0;
    log_trim(archive, log_end_pos(archive), archive_wanted, b);
    k->dead[1].count = k->dead[1].kept;
    log_idle(archive);
}

static void behind_set(struct broker *b)
{
    uint64_t gap = log_end_pos(replica_log(b->replica)) - b->keeper.durable_pos;
    bool behind = gap > BEHIND_FACTOR * b->config.durable_every_bytes;
    if (behind == b->keeper.behind) return;
    b->keeper.behind = behind;
    if (behind)
        log_warn("the store is behind: %llu bytes of log are not in it yet; pushes are refused until it caught up",
                 (unsigned long long)gap);
    if (!behind) log_info("the store caught up");
}

bool keeper_is_full(const struct broker *b)
{
    return b->keeper.behind || engine_unstored_bytes(b->engine) > b->config.memory.unstored / UNSTORED_FULL;
}

static void cut_written(void *ctx, struct store_mark mark)
{
    struct broker *b = ctx;
    struct keeper *k = &b->keeper;
    (void)mark;
    must(k->cuts_waiting > 0);
    engine_cut_stored(b->engine, k->cuts[0]);
    k->cuts_waiting--;
    memmove(k->cuts, k->cuts + 1, k->cuts_waiting * sizeof k->cuts[0]);
    b->housekeeping = true; /* what waited for it goes on, also when no entry comes */
    inbox_kick(b);
}

static void cut_flushed(void *ctx, struct store_mark mark)
{
    struct broker *b = ctx;
    struct keeper *k = &b->keeper;
    k->flush_waiting = false;
    k->durable_index = mark.index;
    k->durable_revision = k->flush_revision;
    k->durable_pos = k->flush_pos;
    log_cut(b);
    reclaim_wake(b);
    log_idle(replica_log(b->replica));
    cold_idle(b);
    behind_set(b);
    inbox_kick(b);
}

static void cut_submit(struct broker *b, bool flush)
{
    struct keeper *k = &b->keeper;
    crash_point("cut-before");
    struct store_batch *batch = store_batch_new(b->store);
    struct engine_rows rows = rows_of_batch(batch);
    engine_cut(b->engine, &rows);
    uint64_t index = engine_applied_index(b->engine);
    struct store_mark mark = {.index = index, .term = k->applied_term, .scan_pos = replica_scan_pos(b->replica, index)};
    k->cut_revision = engine_revision(b->engine);
    must(k->cuts_waiting < CUTS_WAITING_MAX);
    k->cuts[k->cuts_waiting++] = k->cut_revision;
    if (flush) {
        k->flush_index = index;
        k->flush_revision = k->cut_revision;
        k->flush_pos = log_end_pos(replica_log(b->replica));
        k->flush_waiting = true;
        k->unflushed_since_us = 0;
    }
    store_submit(b->store, batch, mark, flush, b, cut_written, flush ? cut_flushed : NULL);
}

bool keeper_cut(struct broker *b)
{
    struct keeper *k = &b->keeper;
    if (k->cut_revision == engine_revision(b->engine)) return true;
    if (k->cuts_waiting >= CUTS_WAITING_MAX) return false;
    cut_submit(b, false);
    return true;
}

static int64_t flush_due_us(const struct broker *b)
{
    return b->keeper.unflushed_since_us + (int64_t)b->config.durable_every_ms * 1000;
}

/* What changes many rows goes on step by step, not faster than the store, in small cuts and with pauses, so that nobody else waits. */
static uint64_t cut_rows(const struct broker *b)
{
    const struct keeper *k = &b->keeper;
    bool bulk = b->bulk.count > 0 || b->mono_us < k->bulk.ended_us + BULK_RECENT_US || k->house_more;
    return bulk ? CUT_ROWS_BULK : CUT_ROWS;
}

bool keeper_has_room(const struct broker *b)
{
    return b->keeper.cuts_waiting < CUTS_WAITING_MAX && engine_cut_size(b->engine) < 2 * cut_rows(b);
}

static int64_t bulk_due_us(const struct broker *b)
{
    return pace_due_us(&b->keeper.bulk, b->keeper.others_us) + (keeper_has_room(b) ? 0 : BULK_WAITS_US);
}

bool keeper_bulk_due(const struct broker *b)
{
    return b->bulk.count > 0 && b->mono_us >= bulk_due_us(b);
}

uint32_t keeper_bulk_most(const struct broker *b)
{
    return pace_is_small(b->mono_us, b->keeper.others_us) ? BULK_SMALL : PIECE_MOST;
}

/* Not while the broker stops: what is left the next start finds. */
static bool housekeeps(const struct broker *b)
{
    return b->housekeeping && !b->stopping;
}

/* The first step after a rest is looked at with each entry: mostly there is nothing to do. */
static int64_t house_due_us(const struct broker *b)
{
    const struct keeper *k = &b->keeper;
    return k->house_more ? pace_due_us(&k->house, k->others_us) : 0;
}

static void house_foresee(struct broker *b, const struct engine_foreseen *f)
{
    engine_housekeep_foreseen(b->engine, f);
}

static void housekeep(struct broker *b)
{
    struct keeper *k = &b->keeper;
    if (!housekeeps(b) || b->mono_us < house_due_us(b)) return;
    if (!keeper_has_room(b) && b->mono_us < k->house.ended_us + HOUSEKEEP_WAITS_US) return;
    if (!warm_step(b, &k->house_rows, house_foresee, inbox_kick)) return;
    k->house_rows.read = false;
    int64_t began_us = clock_mono_us();
    pace_begin(&k->house, began_us);
    k->house_more = engine_housekeep(b->engine);
    k->house_more = expire_step(b) || k->house_more;
    b->housekeeping = k->house_more;
    int64_t now_us = clock_mono_us();
    pace_end(&k->house, now_us, now_us - began_us);
}

static int64_t sooner(int64_t at_us, int64_t other_us)
{
    return at_us == 0 || other_us < at_us ? other_us : at_us;
}

static void timer_arm(struct broker *b)
{
    struct keeper *k = &b->keeper;
    int64_t at_us = k->idle_at_us;
    bool room = keeper_has_room(b);
    int64_t bulk_us = bulk_due_us(b); /* past: an entry that is on its way brings a turn */
    if (b->bulk.count > 0 && bulk_us > b->mono_us) at_us = sooner(at_us, bulk_us);
    if (housekeeps(b) && room && k->house_more && !k->house_rows.reading) at_us = sooner(at_us, house_due_us(b));
    /* While the store has enough to write, its callback brings the turn that goes on. */
    bool flushes = k->unflushed_since_us != 0 && !k->flush_waiting && k->cuts_waiting < CUTS_WAITING_MAX;
    if (flushes) at_us = sooner(at_us, flush_due_us(b));
    if (at_us == 0 || (heap_holds(&k->timer.node) && k->timer.node.key <= at_us)) return;
    loop_timer_set(b->loop, &k->timer, at_us);
}

/* Nothing came for a while: caches go, and the lanes at rest, which must be stored before. */
static void idle(struct broker *b)
{
    struct keeper *k = &b->keeper;
    k->idle_at_us = 0;
    log_idle(replica_log(b->replica));
    cold_idle(b);
    if (!keeper_settled(b)) k->idle_at_us = b->mono_us + CACHE_AGE_US;
    engine_idle(b->engine);
    b->housekeeping = true;
}

void keeper_fire(struct loop_timer *t)
{
    struct broker *b = owner_of(t, struct broker, keeper.timer);
    struct keeper *k = &b->keeper;
    inbox_clock(b);
    if (k->idle_at_us != 0 && b->mono_us >= k->idle_at_us) idle(b);
    /* the turn that follows cuts and sets the timer again */
}

static bool flush_due(const struct broker *b)
{
    const struct keeper *k = &b->keeper;
    if (k->unflushed_since_us == 0 || k->flush_waiting) return false;
    if (b->stopping || b->mono_us >= flush_due_us(b)) return true;
    return log_end_pos(replica_log(b->replica)) - k->flush_pos >= b->config.durable_every_bytes;
}

bool keeper_turn(struct broker *b)
{
    struct keeper *k = &b->keeper;
    engine_visits_over(b->engine);
    housekeep(b);
    uint64_t revision = engine_revision(b->engine);
    if (revision > k->flush_revision) {
        if (k->unflushed_since_us == 0) k->unflushed_since_us = b->mono_us;
        if (revision > k->seen_revision) k->idle_at_us = b->mono_us + CACHE_AGE_US + 1000000;
        if (revision > k->seen_revision) behind_set(b);
        k->seen_revision = revision;
        bool flush = flush_due(b);
        bool many = engine_cut_size(b->engine) >= cut_rows(b) ||
                    engine_unstored_bytes(b->engine) >= b->config.memory.unstored / UNSTORED_CUT;
        bool cut = flush || (revision > k->cut_revision && many);
        if (cut && k->cuts_waiting < CUTS_WAITING_MAX) cut_submit(b, flush);
    }
    timer_arm(b);
    return housekeeps(b) && !k->house_rows.reading && b->mono_us >= house_due_us(b) && keeper_has_room(b);
}

bool keeper_settled(struct broker *b)
{
    const struct keeper *k = &b->keeper;
    return k->cuts_waiting == 0 && !k->flush_waiting && k->durable_revision >= engine_revision(b->engine);
}
