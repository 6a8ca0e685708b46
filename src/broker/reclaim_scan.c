/* What the records of a segment say about who may hold bytes in it, and copying.
 *
 * A scan gathers lanes: of log entries those that commands push to, with the times between which they did, and those where a timer's message
 * may have been fired, from its due time on; of archive records what their heads say. */
#include "broker/reclaim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crash_point.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/logger.h"
#include "base/must.h"
#include "broker/die.h"
#include "engine/command.h"
#include "log/log_check.h"
#include "replica/look.h"

/* ---- lanes ---------------------------------------------------------------------------------------------------------- */

struct scan_lane { /* until_us 0: none */
    uint64_t hash;
    uint32_t number; /* 0: by names */
    struct uuid tenant;
    struct slice queue, lane;
    int64_t from_us, until_us; /* from > until: nothing pushed */
    int64_t fired_us;          /* from when on a timer may have fired there; INT64_MAX: none */
};

struct scan {
    struct reclaim_job *j;
    struct scan_lane *lanes; /* open addressing */
    uint32_t cap, count;
    size_t names_bytes;
};

static bool lane_is(const struct scan_lane *l, const struct scan_lane *key)
{
    if (l->hash != key->hash || l->number != key->number) return false;
    return key->number != 0 ||
           (uuid_equal(l->tenant, key->tenant) && slice_equal(l->queue, key->queue) && slice_equal(l->lane, key->lane));
}

/* The lane's, or an empty one. */
static uint32_t lane_slot(const struct scan *s, const struct scan_lane *key)
{
    uint32_t at = (uint32_t)key->hash & (s->cap - 1);
    while (s->lanes[at].until_us != 0 && !lane_is(&s->lanes[at], key)) at = (at + 1) & (s->cap - 1);
    return at;
}

static void lanes_grow(struct scan *s)
{
    struct scan_lane *old = s->lanes;
    uint32_t cap = s->cap;
    s->cap = cap == 0 ? 1024 : cap * 2;
    s->lanes = calloc(s->cap, sizeof s->lanes[0]);
    must(s->lanes != NULL);
    for (uint32_t i = 0; i < cap; i++)
        if (old[i].until_us != 0) s->lanes[lane_slot(s, &old[i])] = old[i];
    free(old);
}

static struct scan_lane *lane_of(struct scan *s, struct scan_lane key)
{
    struct slice number = slice_make((const char *)&key.number, sizeof key.number);
    key.hash = hash64(number, 0) ^ hash64(key.queue, 1) ^ hash64(key.lane, 2);
    if (s->count * 2 >= s->cap) lanes_grow(s);
    uint32_t at = lane_slot(s, &key);
    if (s->lanes[at].until_us != 0) return &s->lanes[at];
    key.queue = arena_copy(&s->j->names, key.queue);
    key.lane = arena_copy(&s->j->names, key.lane);
    key.from_us = key.fired_us = INT64_MAX;
    key.until_us = -1;
    s->lanes[at] = key;
    s->count++;
    s->names_bytes += key.queue.len + key.lane.len;
    return &s->lanes[at];
}

static void pushed(struct scan_lane *l, int64_t from_us, int64_t until_us)
{
    if (from_us < l->from_us) l->from_us = from_us;
    if (until_us > l->until_us) l->until_us = until_us;
}

static void fired(struct scan_lane *l, int64_t from_us)
{
    if (from_us < l->fired_us) l->fired_us = from_us;
}

/* ---- entries -------------------------------------------------------------------------------------------------------- */

/* createdAt is the command's time, or a little later where a lane had that one already. */
enum { CREATED_SLACK_US = 1000000 };

static void push_scan(struct scan *s, const struct command *c, int64_t us)
{
    struct push_command push;
    struct push_group g;
    if (!push_decode(c, &push)) return;
    for (struct slice rest = push.groups; rest.len > 0 && push_group_next(&rest, &g);)
        pushed(lane_of(s, (struct scan_lane){.tenant = push.tenant, .queue = g.queue, .lane = g.partition}), us,
               us + CREATED_SLACK_US);
}

static void timers_scan(struct scan *s, const struct command *c, int64_t us)
{
    struct timers_command timers;
    struct timer_op op;
    if (!timers_decode(c, &timers)) return;
    struct slice rest = timers.ops;
    for (uint32_t i = 0; i < timers.op_count && timer_op_next(&rest, &op); i++) {
        if (op.kind != TIMER_SCHEDULE) continue;
        fired(lane_of(s, (struct scan_lane){.tenant = timers.tenant, .queue = op.queue, .lane = op.partition}),
              us + op.delay_us);
    }
}

static void command_scan(struct scan *s, const struct command *c, int64_t us)
{
    struct step_command step;
    struct letter_move_command move;
    if (c->kind == COMMAND_PUSH) {
        push_scan(s, c, us);
    } else if (c->kind == COMMAND_TIMERS) {
        timers_scan(s, c, us);
    } else if (c->kind == COMMAND_LETTER_MOVE && letter_move_decode(c, &move)) {
        push_scan(s, &move.push, us);
    } else if (c->kind == COMMAND_STEP && step_decode(c, &step)) {
        if (step.has_push) push_scan(s, &step.push, us);
        if (step.has_timers) timers_scan(s, &step.timers, us);
    }
}

bool archive_head_read(struct slice body, struct archive_head *out, struct slice *block)
{
    if (body.len < sizeof *out) return false;
    memcpy(out, body.at, sizeof *out);
    *block = slice_make(body.at + sizeof *out, body.len - sizeof *out);
    return true;
}

static void archived_scan(struct scan *s, struct slice body)
{
    struct archive_head h;
    struct slice block;
    struct push_group g;
    if (!archive_head_read(body, &h, &block)) return;
    if (h.lane != 0) {
        pushed(lane_of(s, (struct scan_lane){.number = h.lane}), h.from_us, h.until_us);
    } else if (h.from_us <= h.until_us && push_group_of(block, &g)) {
        fired(lane_of(s, (struct scan_lane){.tenant = h.tenant, .queue = g.queue, .lane = g.partition}), h.from_us);
    }
}

static bool item_scan(void *ctx, const struct segment_item *i)
{
    struct scan *s = ctx;
    struct reclaim_job *j = s->j;
    struct entry_head head;
    struct command c;
    uint64_t pos = i->pos | (j->first & PLACE_ARCHIVE);
    if (i->kind != SEGMENT_ENTRY || pos < j->from) return true;
    if (s->count >= RECLAIM_LANES_MAX || s->names_bytes >= RECLAIM_NAMES_BYTES_MAX) {
        j->from = pos; /* the next part begins here */
        return false;
    }
    if (place_archived(j->first)) {
        archived_scan(s, i->body);
        return true;
    }
    if (i->type != REPLICA_ENTRY_COMMAND || !entry_head_read(i->body, &head)) return true;
    struct slice rest = slice_make(i->body.at + ENTRY_HEAD_BYTES, i->body.len - ENTRY_HEAD_BYTES);
    for (uint32_t n = 0; n < head.count && command_next(&rest, &c); n++) command_scan(s, &c, head.wall_us + n);
    return true;
}

static bool pace_scan(void *ctx, uint64_t bytes)
{
    struct scan *s = ctx;
    return reclaim_worker_pace(s->j->worker, bytes);
}

static void look_add(struct reclaim_job *j, const struct scan_lane *l, int64_t from_us, int64_t until_us, bool in_order)
{
    if (j->look_count == j->look_cap) {
        j->look_cap = j->look_cap == 0 ? 256 : j->look_cap * 2;
        j->looks = realloc(j->looks, j->look_cap * sizeof j->looks[0]);
        must(j->looks != NULL);
    }
    j->looks[j->look_count++] = (struct lane_look){.partition = l->number,
                                                   .tenant = l->tenant,
                                                   .queue = l->queue,
                                                   .lane = l->lane,
                                                   .from_us = from_us,
                                                   .until_us = until_us,
                                                   .pushed = in_order};
}

void reclaim_scan(struct reclaim_job *j)
{
    struct scan s = {.j = j};
    struct buf error = {0};
    char path[4300];
    uint64_t first_pos = j->first & ~PLACE_ARCHIVE;
    snprintf(path, sizeof path, "%s/%s/%016llx.seg", j->dir, place_archived(j->first) ? "archive" : "log",
             (unsigned long long)first_pos);
    struct segment_walk w = {
        .path = path, .first_pos = first_pos, .past_cache = true, .ctx = &s, .item = item_scan, .pace = pace_scan};
    enum log_status status = segment_walk(&w, &error);
    if (status != LOG_OK) log_warn("reclaim: %.*s", (int)error.len, error.at);
    if (status == LOG_OK && !w.ended_early && w.stop_pos != w.end_pos)
        log_warn("reclaim: %s is damaged at offset %llu: what lies behind stays where it is", path,
                 (unsigned long long)(w.stop_pos - w.first_pos));
    j->over = status != LOG_OK || !w.ended_early;
    j->look_count = 0;
    for (uint32_t i = 0; i < s.cap; i++) {
        const struct scan_lane *l = &s.lanes[i];
        if (l->until_us == 0) continue;
        if (l->from_us <= l->until_us) look_add(j, l, l->from_us, l->until_us, !place_archived(j->first));
        if (l->fired_us != INT64_MAX) look_add(j, l, l->fired_us, INT64_MAX, false);
    }
    free(s.lanes);
    buf_free(&error);
}

/* ---- copying -------------------------------------------------------------------------------------------------------- */

static void archive_failed(void *ctx, const char *what)
{
    (void)ctx;
    broker_die(3, "%s", what);
}

enum log_status archive_open(struct log **out, const char *group_dir, uint64_t segment_bytes, uint64_t first_pos, void *ctx,
                             void (*synced)(void *ctx), struct buf *error)
{
    char dir[4200];
    snprintf(dir, sizeof dir, "%s/archive", group_dir);
    struct log_options o = {.dir = dir,
                            .segment_bytes = segment_bytes,
                            .cache_age_us = 1000000,
                            .first_pos = first_pos,
                            .sparse = true,
                            .ctx = ctx,
                            .synced = synced,
                            .failed = archive_failed};
    return log_open(out, &o, error);
}

static int holder_order(const void *left, const void *right)
{
    const struct holder *a = left, *b = right;
    if (a->where != b->where) return a->where < b->where ? -1 : 1;
    return a->kind < b->kind ? -1 : a->kind > b->kind;
}

static struct archive_head head_of(const struct holder *h)
{
    if (h->kind == HOLDER_RUN) return (struct archive_head){.lane = h->at, .from_us = h->us, .until_us = h->us};
    if (h->kind == HOLDER_TIMER) return (struct archive_head){.from_us = h->us, .until_us = INT64_MAX, .tenant = h->tenant};
    return (struct archive_head){.from_us = 1};
}

/* Its new place; 0: it cannot be read. */
static uint64_t block_copy(struct reclaim_job *j, const struct holder *h, uint64_t index)
{
    struct log *archive = j->places.archive;
    struct archive_head head = head_of(h);
    char *at = log_reserve(archive, sizeof head + h->bytes);
    memcpy(at, &head, sizeof head);
    enum log_status status = place_read(&j->places, h->where, h->bytes, at + sizeof head);
    if (status != LOG_OK || !push_group_crc_ok(slice_make(at + sizeof head, h->bytes))) {
        char text[PLACE_TEXT_BYTES];
        place_text(h->where, j->segment_bytes, text);
        log_error("the payload in %s/%s (%u bytes) cannot be copied to the archive: %s", j->dir, text, h->bytes,
                  status != LOG_OK ? "its segment file is missing or unreadable" : "checksum mismatch");
        return 0;
    }
    j->copied_bytes += h->bytes;
    return PLACE_ARCHIVE | (log_append(archive, index, 1, 1, sizeof head + h->bytes) + sizeof head);
}

struct leftovers {
    const char *dir;
    int code;
};

static bool leftover_remove(void *ctx, const struct files_entry *e)
{
    struct leftovers *l = ctx;
    char path[FILES_PATH_BYTES + sizeof e->name];
    snprintf(path, sizeof path, "%.4199s/%.255s", l->dir, e->name);
    l->code = files_remove(path);
    return l->code == 0;
}

/* While there is no archive nothing in its directory is wanted. What a try that failed left there goes: a file, or a directory, whose
 * sync failed must not be taken for a durable one by the next. */
static int archive_clear(const char *group_dir, const char *dir)
{
    struct leftovers l = {.dir = dir};
    int code = files_list(dir, leftover_remove, &l);
    if (code == ENOENT) return 0;
    if (code == 0) code = l.code;
    return code != 0 ? code : files_sync(group_dir);
}

static bool archive_have(struct reclaim_job *j)
{
    struct buf error = {0};
    char dir[4200];
    if (j->places.archive != NULL) return true;
    snprintf(dir, sizeof dir, "%s/archive", j->dir);
    enum log_status status = LOG_IO;
    int code = archive_clear(j->dir, dir);
    if (code == 0) {
        status = archive_open(&j->places.archive, j->dir, j->segment_bytes, 0, j->worker, reclaim_worker_synced, &error);
    } else {
        buf_printf(&error, "%s: cannot be emptied: %s", dir, strerror(code));
    }
    if (status != LOG_OK) log_error("reclaim: %.*s", (int)error.len, error.at);
    buf_free(&error);
    return status == LOG_OK;
}

void reclaim_copy(struct reclaim_job *j)
{
    uint64_t since = 0;
    j->copied_bytes = 0;
    memset(j->to, 0, j->count * sizeof j->to[0]);
    if (!archive_have(j)) return;
    qsort(j->holders, j->count, sizeof j->holders[0], holder_order);
    uint64_t index = log_synced_index(j->places.archive); /* nothing is under way */
    for (uint32_t i = 0; i < j->count; i++) {
        if (i > 0 && j->holders[i].where == j->holders[i - 1].where) {
            j->to[i] = j->to[i - 1];
            continue;
        }
        j->to[i] = block_copy(j, &j->holders[i], index + 1);
        if (j->to[i] != 0) index++;
        since += j->holders[i].bytes;
        if (since < 256 << 10 && i + 1 < j->count) continue;
        log_flush(j->places.archive);
        if (!reclaim_worker_pace(j->worker, 2 * since)) break;
        since = 0;
    }
    log_flush(j->places.archive);
    reclaim_worker_await(j->worker, j->places.archive);
    crash_point("reclaim-copied");
}
