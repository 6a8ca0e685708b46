/* The group's side of reclaim: which segment, who holds bytes there, moving them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/crash_point.h"
#include "base/files.h"
#include "base/logger.h"
#include "broker/broker_internal.h"
#include "broker/snapshot_manifest.h"
#include "log/log_check.h"

/* A segment that could be given back, and since when; or when it was tried, in vain. It is not worth it while more than `enough`
 * of it is wanted (engine_segment_live). */
struct candidate {
    uint64_t first, enough;
    int64_t since_us, again_us;
};

enum reclaim_state { RECLAIM_IDLE, RECLAIM_SCANS, RECLAIM_FINDS, RECLAIM_COPIES, RECLAIM_MOVES };
enum reclaim_phase { PHASE_LANES, PHASE_TIMERS, PHASE_LETTERS, PHASE_OVER };

struct reclaim {
    struct broker *b;
    struct reclaim_worker *worker;
    struct loop_timer timer;
    enum reclaim_state state;
    struct candidate *candidates; /* by place */
    uint32_t candidate_count, candidate_cap;

    /* the segment at work. It is gone through twice: what would be copied is added up first */
    uint64_t first, end, live; /* live: wanted of it when it was chosen */
    bool weighs;
    uint64_t weight, weighed; /* of the copies as they would lie in the archive; the last one's place */
    enum reclaim_phase phase;
    uint32_t look;
    uint64_t next; /* of timers, letters */
    uint32_t moved;
    struct reclaim_job job;
    struct reclaim_stats stats;
    uint64_t archive_end;
};

/* ---- the archive ---------------------------------------------------------------------------------------------------- */

static bool archive_check(struct broker *b, struct buf *error)
{
    uint64_t bytes = b->config.segment_bytes, last = engine_archive_last(b->engine);
    struct log *archive = b->places.archive;
    uint64_t end = archive == NULL ? 0 : log_end_pos(archive);
    if (archive != NULL && log_segment_bytes(archive) != bytes) {
        buf_printf(error, "%s/archive: its files are of %llu bytes, those of the log of %llu: they do not belong together",
                   b->config.dir, (unsigned long long)log_segment_bytes(archive), (unsigned long long)bytes);
        return false;
    }
    for (uint64_t at = PLACE_ARCHIVE; last != 0 && at <= last; at += bytes) {
        uint64_t live = engine_segment_live(b->engine, at), first = at & ~PLACE_ARCHIVE;
        uint64_t to = first + bytes < end ? first + bytes : end;
        if (live == 0 || (first < to && log_covers(archive, first, to))) continue;
        buf_printf(
            error,
            "%s/archive/%016llx.seg: the segment file is missing, but %llu bytes of messages in it are still wanted. Put it "
            "back from a backup",
            b->config.dir, (unsigned long long)first, (unsigned long long)live);
        return false;
    }
    return true;
}

static void reclaim_fire(struct loop_timer *t);
static void scanned(struct loop_task *t);

/* All of it is durable. */
static void archive_show(struct broker *b)
{
    b->reclaim->archive_end = log_end_pos(b->places.archive);
    atomic_store_explicit(&b->archive_seen, b->places.archive, memory_order_release);
}

static bool segment_any(void *ctx, const struct files_entry *e)
{
    uint64_t first_pos;
    bool *any = ctx;
    *any = *any || manifest_segment(e->name, &first_pos);
    return !*any;
}

static bool archive_unreadable(const char *dir, int code, struct buf *error)
{
    buf_printf(error, "%s: cannot be listed: %s", dir, strerror(code));
    return false;
}

bool reclaim_open(struct broker *b, int *exit_code, struct buf *error)
{
    struct reclaim *r = calloc(1, sizeof *r);
    char dir[4200];
    must(r != NULL);
    b->reclaim = r;
    r->b = b;
    r->timer.fire = reclaim_fire;
    r->worker = reclaim_worker_new(b->loop, b->config.reclaim_bytes_s == 0 ? 1 : b->config.reclaim_bytes_s);
    r->job = (struct reclaim_job){.worker = r->worker, .dir = b->config.dir, .segment_bytes = b->config.segment_bytes};
    arena_init(&r->job.names);
    snprintf(dir, sizeof dir, "%s/archive", b->config.dir);
    *exit_code = 2;
    bool any = engine_archive_last(b->engine) != 0;
    int code = any ? 0 : files_list(dir, segment_any, &any);
    if (!any) return code == 0 || code == ENOENT || archive_unreadable(dir, code, error);
    uint64_t first_pos = engine_archive_last(b->engine) & ~PLACE_ARCHIVE;
    enum log_status s = archive_open(&b->places.archive, b->config.dir, b->config.segment_bytes, first_pos, r->worker,
                                     reclaim_worker_synced, error);
    if (s == LOG_IO) *exit_code = 3;
    if (s != LOG_OK) return false;
    archive_show(b);
    return archive_check(b, error);
}

uint64_t reclaim_archive_end(const struct broker *b)
{
    return b->places.archive == NULL ? 0 : b->reclaim->archive_end;
}

bool reclaim_owns_archive(const struct broker *b)
{
    const struct reclaim *r = b->reclaim;
    return r->state == RECLAIM_COPIES || r->state == RECLAIM_MOVES;
}

void reclaim_free(struct broker *b)
{
    struct reclaim *r = b->reclaim;
    if (r == NULL) return;
    loop_timer_cancel(b->loop, &r->timer);
    reclaim_worker_free(r->worker);
    if (r->state == RECLAIM_COPIES) b->places.archive = r->job.places.archive; /* it may have been made */
    if (b->places.archive != NULL) log_close(b->places.archive);
    b->places.archive = NULL;
    arena_free(&r->job.names);
    free(r->job.looks);
    free(r->job.holders);
    free(r->job.to);
    free(r->candidates);
    free(r);
    b->reclaim = NULL;
}

void reclaim_stats(const struct broker *b, struct reclaim_stats *out)
{
    *out = b->reclaim->stats;
}

/* ---- choosing ------------------------------------------------------------------------------------------------------- */

struct choice {
    struct reclaim *r;
    struct candidate *before; /* of the last look */
    uint32_t before_count, before_at;
    uint64_t first, end, live; /* the chosen one; end 0: none */
    int64_t due_us;            /* when one will have been dead for long enough; 0: none */
};

static struct candidate candidate_of(struct choice *c, uint64_t first)
{
    while (c->before_at < c->before_count && c->before[c->before_at].first < first) c->before_at++;
    if (c->before_at < c->before_count && c->before[c->before_at].first == first) return c->before[c->before_at];
    return (struct candidate){.first = first, .enough = UINT64_MAX, .since_us = c->r->b->mono_us};
}

static void candidate_keep(struct reclaim *r, struct candidate n)
{
    if (r->candidate_count == r->candidate_cap) {
        r->candidate_cap = r->candidate_cap == 0 ? 64 : r->candidate_cap * 2;
        r->candidates = realloc(r->candidates, r->candidate_cap * sizeof r->candidates[0]);
        must(r->candidates != NULL);
    }
    r->candidates[r->candidate_count++] = n;
}

/* With a full disk only into room that is there already. */
static bool has_room(const struct broker *b, uint64_t live)
{
    if (!broker_storage_full(b)) return true;
    const struct log *archive = b->places.archive;
    if (archive == NULL) return false;
    uint64_t used = log_end_pos(b->places.archive) & (b->config.segment_bytes - 1);
    return used != 0 && b->config.segment_bytes - used > live + live / 4 + (1 << 20);
}

static void segment_look(struct choice *c, uint64_t first, uint64_t end)
{
    struct broker *b = c->r->b;
    uint64_t live = 0;
    for (uint64_t at = first; at < end; at += b->config.segment_bytes) live += engine_segment_live(b->engine, at);
    if (live == 0 || live >= (end - first) / 100 * b->config.reclaim_live_pct) return;
    struct candidate n = candidate_of(c, first);
    candidate_keep(c->r, n);
    if (live > n.enough) return;
    int64_t due_us = n.since_us + (int64_t)b->config.reclaim_after_ms * 1000;
    if (n.again_us > due_us) due_us = n.again_us;
    if (due_us > b->mono_us) {
        if (c->due_us == 0 || due_us < c->due_us) c->due_us = due_us;
    } else if (c->end == 0 && has_room(b, live)) {
        c->first = first;
        c->end = end;
        c->live = live;
    }
}

/* What lies behind `limit` is needed for other things, or still written to. */
static void log_look(struct choice *c, struct log *l, uint64_t top, uint64_t limit)
{
    uint64_t first, end;
    for (uint64_t pos = 0; log_segment_next(l, pos, &first, &end) && end <= limit; pos = end)
        segment_look(c, first | top, end | top);
}

static void segment_choose(struct reclaim *r, struct choice *out)
{
    struct broker *b = r->b;
    *out = (struct choice){.r = r, .before = r->candidates, .before_count = r->candidate_count};
    r->candidates = NULL;
    r->candidate_count = r->candidate_cap = 0;
    uint64_t limit = replica_kept_pos(b->replica), archived = 0;
    if (limit > b->keeper.durable_pos) limit = b->keeper.durable_pos;
    log_look(out, b->places.log, 0, limit);
    if (b->places.archive != NULL) archived = log_end_pos(b->places.archive) & ~(b->config.segment_bytes - 1);
    if (archived > 0) log_look(out, b->places.archive, PLACE_ARCHIVE, archived);
    free(out->before);
}

/* ---- one segment ---------------------------------------------------------------------------------------------------- */

static void go_on(struct reclaim *r, int64_t in_us)
{
    loop_timer_set(r->b->loop, &r->timer, clock_mono_us() + in_us);
}

static void segment_over(struct reclaim *r)
{
    struct broker *b = r->b;
    uint64_t left = 0;
    for (uint64_t at = r->first; at < r->end; at += b->config.segment_bytes) left += engine_segment_live(b->engine, at);
    char text[PLACE_TEXT_BYTES];
    place_text(r->first, b->config.segment_bytes, text);
    log_debug("reclaim: %s: %llu bytes were wanted of it, %u holders moved, %llu bytes stay", text, (unsigned long long)r->live,
              r->moved, (unsigned long long)left);
    if (left == 0) {
        r->stats.files++;
        r->stats.bytes += r->end - r->first;
    }
    for (uint32_t i = 0; left > 0 && i < r->candidate_count; i++)
        if (r->candidates[i].first == r->first) r->candidates[i].again_us = b->mono_us + RECLAIM_AGAIN_US;
    r->state = RECLAIM_IDLE;
    arena_reset(&r->job.names);
    go_on(r, RECLAIM_REST_US);
}

static void scan_order(struct reclaim *r)
{
    r->state = RECLAIM_SCANS;
    r->job.scans = true;
    r->job.first = r->first;
    r->job.task.run = scanned;
    r->look = 0;
    r->job.look_count = 0;
    arena_reset(&r->job.names);
    if (!reclaim_worker_submit(r->worker, &r->job)) r->state = RECLAIM_IDLE;
}

static void pass_begin(struct reclaim *r)
{
    r->phase = PHASE_LANES;
    r->next = 0;
    r->job.from = r->first;
    r->job.count = 0;
    r->job.bytes = 0;
    scan_order(r);
}

static void segment_begin(struct reclaim *r)
{
    struct choice c;
    segment_choose(r, &c);
    if (c.end == 0) {
        if (c.due_us != 0) loop_timer_set(r->b->loop, &r->timer, c.due_us);
        return;
    }
    r->first = c.first;
    r->end = c.end;
    r->live = c.live;
    r->moved = 0;
    r->weighs = true;
    r->weight = r->weighed = 0;
    pass_begin(r);
}

static void scanned(struct loop_task *t)
{
    struct reclaim *r = owner_of(t, struct reclaim, job.task);
    must(r->state == RECLAIM_SCANS);
    r->state = RECLAIM_FINDS;
    go_on(r, 0);
}

/* ---- finding -------------------------------------------------------------------------------------------------------- */

/* Of one copy in the archive. */
static uint64_t copy_bytes(uint32_t block_bytes)
{
    return (SEGMENT_HEAD_BYTES + sizeof(struct archive_head) + block_bytes + 7) & ~UINT64_C(7);
}

static void holder_found(void *ctx, const struct holder *h)
{
    struct reclaim *r = ctx;
    struct reclaim_job *j = &r->job;
    if (r->weighs) {
        if (h->where != r->weighed) r->weight += copy_bytes(h->bytes);
        r->weighed = h->where;
        return;
    }
    if (j->count == j->cap) {
        j->cap = j->cap == 0 ? 256 : j->cap * 2;
        j->holders = realloc(j->holders, j->cap * sizeof j->holders[0]);
        must(j->holders != NULL);
    }
    j->holders[j->count++] = *h;
    j->bytes += h->bytes;
}

/* False: another part of the segment must be scanned first. */
static bool find_some(struct reclaim *r)
{
    struct engine *e = r->b->engine;
    struct reclaim_job *j = &r->job;
    switch (r->phase) {
    case PHASE_LANES:
        if (r->look == j->look_count) {
            if (!j->over) return false;
            r->phase = PHASE_TIMERS;
            r->next = 0;
        } else if (engine_lane_holders(e, &j->looks[r->look], r->first, r->end, RECLAIM_LOOKS, holder_found, r)) {
            r->look++;
        }
        break;
    case PHASE_TIMERS:
        if (!engine_timer_holders(e, &r->next, r->first, r->end, RECLAIM_LOOKS, holder_found, r)) break;
        r->phase = PHASE_LETTERS;
        r->next = 0;
        break;
    case PHASE_LETTERS:
        if (engine_letter_holders(e, &r->next, r->first, r->end, RECLAIM_LOOKS, holder_found, r)) r->phase = PHASE_OVER;
        break;
    case PHASE_OVER:
        break;
    }
    return true;
}

static void copied(struct loop_task *t)
{
    struct reclaim *r = owner_of(t, struct reclaim, job.task);
    struct broker *b = r->b;
    must(r->state == RECLAIM_COPIES);
    b->places.archive = r->job.places.archive;
    r->stats.copied_bytes += r->job.copied_bytes;
    if (b->places.archive != NULL) archive_show(b);
    r->state = RECLAIM_MOVES;
    go_on(r, 0);
}

static void copy_order(struct reclaim *r)
{
    struct reclaim_job *j = &r->job;
    if (j->to_cap < j->cap) {
        j->to_cap = j->cap;
        free(j->to);
        j->to = calloc(j->to_cap, sizeof j->to[0]);
        must(j->to != NULL);
    }
    r->state = RECLAIM_COPIES;
    j->scans = false;
    j->places = r->b->places;
    j->task.run = copied;
    if (!reclaim_worker_submit(r->worker, j)) r->state = RECLAIM_IDLE;
}

/* What is counted as live is payloads. Of small messages a copy is mostly head, and a dead letter counts for next to nothing: copies of
 * segments of the archive that hold nothing else would be as large as what they free, again and again. */
static void segment_weighed(struct reclaim *r)
{
    struct broker *b = r->b;
    uint64_t most = (r->end - r->first) / 100 * b->config.reclaim_live_pct;
    bool heavy = r->weight >= most, room = has_room(b, r->weight);
    r->weighs = false;
    if (!heavy && room) {
        pass_begin(r);
        return;
    }
    for (uint32_t i = 0; i < r->candidate_count; i++) {
        struct candidate *c = &r->candidates[i];
        if (c->first != r->first) continue;
        if (heavy) c->enough = r->live * most / (r->weight + 1); /* less than it is, each factor below 2^31 */
        if (!heavy) c->again_us = b->mono_us + RECLAIM_AGAIN_US;
    }
    log_debug("reclaim: copies of what is wanted of a segment would take %llu bytes: %s", (unsigned long long)r->weight,
              heavy ? "it stays" : "no room");
    r->state = RECLAIM_IDLE;
    go_on(r, RECLAIM_REST_US);
}

static void find_turn(struct reclaim *r)
{
    struct reclaim_job *j = &r->job;
    int64_t until_us = clock_mono_us() + RECLAIM_TURN_US;
    bool more = true;
    while (more && r->phase != PHASE_OVER && j->bytes < RECLAIM_COPY_BYTES && j->count < RECLAIM_COPY_HOLDERS) {
        more = find_some(r);
        if (more && clock_mono_us() >= until_us) {
            go_on(r, RECLAIM_REST_US);
            return;
        }
    }
    if (j->count > 0) {
        copy_order(r);
    } else if (!more) {
        scan_order(r);
    } else if (r->weighs) {
        segment_weighed(r);
    } else {
        segment_over(r);
    }
}

/* ---- moving --------------------------------------------------------------------------------------------------------- */

static void move_turn(struct reclaim *r)
{
    struct reclaim_job *j = &r->job;
    int64_t until_us = clock_mono_us() + RECLAIM_TURN_US;
    if (!keeper_has_room(r->b)) { /* every move is a row to be written */
        go_on(r, 5 * RECLAIM_REST_US);
        return;
    }
    while (j->count > 0) {
        j->count--;
        if (j->to[j->count] != 0 && engine_move(r->b->engine, &j->holders[j->count], j->to[j->count])) r->moved++;
        if (j->count % 8 == 0 && clock_mono_us() >= until_us) break;
    }
    inbox_kick(r->b); /* for the cut */
    if (j->count == 0) {
        crash_point("reclaim-moved");
        j->bytes = 0;
        r->state = RECLAIM_FINDS;
    }
    go_on(r, RECLAIM_REST_US);
}

static void reclaim_fire(struct loop_timer *t)
{
    struct reclaim *r = owner_of(t, struct reclaim, timer);
    struct broker *b = r->b;
    inbox_clock(b);
    if (b->stopping || b->fetched) return;
    switch (r->state) {
    case RECLAIM_IDLE:
        segment_begin(r);
        break;
    case RECLAIM_FINDS:
        find_turn(r);
        break;
    case RECLAIM_MOVES:
        move_turn(r);
        break;
    case RECLAIM_SCANS:
    case RECLAIM_COPIES:
        break;
    }
}

void reclaim_wake(struct broker *b)
{
    struct reclaim *r = b->reclaim;
    if (b->config.reclaim_bytes_s == 0 || r->state != RECLAIM_IDLE || b->stopping) return;
    if (heap_holds(&r->timer.node) && r->timer.node.key <= b->mono_us + RECLAIM_LOOK_US) return;
    loop_timer_set(b->loop, &r->timer, b->mono_us + RECLAIM_LOOK_US);
}
