/* The side that has the state.
 *
 *   WHO, this node leads                                      LAST
 *   WANT, this node leads, nothing taken yet, or what was taken is too old for it
 *     pin everything -> links of all segments, also of the archive -> store_checkpoint (store thread)            TAKING
 *     its mark is index I -> pin from I on -> where entry I ends -> manifest                READY, MANIFEST to who waits
 *   ASK -> read -> SAME or BYTES
 *   nobody asked for SNAPSHOT_KEPT_US, or this node does not lead any more -> unpinned, files removed
 *
 * Why the links hold all that the state at I needs: the checkpoint has the batches submitted before it was ordered, so I was applied, and
 * its entries stored, when the links were made, in the same turn and before. A segment that was trimmed before that was not wanted by a
 * durable state at or before I. What is trimmed later keeps its link, and the log does not write over a file that has one. The
 * segment that is still written to is shared: bytes before the end of entry I do not change any more. The archive has all that the state may
 * point to when the links are made: copies are durable before anything moves to them.
 *
 * Failures: of the checkpoint, of a link or a read: told, dropped, whoever waits gets GONE and will want again. Nothing of the node
 * itself depends on it. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/crash_point.h"
#include "base/logger.h"
#include "base/uuid.h"
#include "broker/snapshot_inner.h"

static const struct slice NONE = {0};

/* What WANT and ASK find when there is nothing for them. */
static void gone_send(struct snapshots *s, uint64_t peer, uint64_t id)
{
    snapshot_frame_send(s, peer, FRAME_GONE, id, NONE, NONE);
}

static void files_drop(struct snapshots *s)
{
    char path[FILES_PATH_BYTES];
    must(snapshot_path(s, "snapshot", NULL, NULL, path));
    int code = files_remove_tree(path);
    if (code != 0) log_warn("%s: cannot be removed: %s", path, strerror(code));
}

static void source_clear(struct source *c)
{
    manifest_free(&c->manifest);
    buf_free(&c->encoded);
    buf_free(&c->bytes);
    c->state = SOURCE_NONE;
    c->unwanted = false;
    c->id = 0;
    c->waiting_count = 0;
}

static void source_drop(struct snapshots *s)
{
    struct source *c = &s->source;
    for (uint32_t n = 0; n < c->waiting_count; n++) gone_send(s, c->waiting[n], c->id);
    source_clear(c);
    replica_unpin(s->o.replica);
    files_drop(s);
}

/* ---- taking */

struct linking {
    struct snapshots *s;
    int code;
};

static bool segment_link(struct linking *k, const char *part, const struct files_entry *e)
{
    uint64_t first_pos;
    char from[FILES_PATH_BYTES], to[FILES_PATH_BYTES];
    if (e->is_dir || !manifest_segment(e->name, &first_pos)) return true;
    k->code = ENAMETOOLONG;
    if (!snapshot_path(k->s, part, e->name, NULL, from) || !snapshot_path(k->s, "snapshot", part, e->name, to)) return false;
    k->code = files_link(from, to);
    if (k->code == ENOENT) k->code = 0; /* trimmed this very moment */
    return k->code == 0;
}

static bool log_link(void *ctx, const struct files_entry *e)
{
    return segment_link(ctx, "log", e);
}

static bool archive_link(void *ctx, const struct files_entry *e)
{
    return segment_link(ctx, "archive", e);
}

static int part_link(struct snapshots *s, const char *part, bool (*link)(void *ctx, const struct files_entry *e))
{
    char from[FILES_PATH_BYTES], to[FILES_PATH_BYTES];
    struct linking k = {.s = s};
    must(snapshot_path(s, part, NULL, NULL, from) && snapshot_path(s, "snapshot", part, NULL, to));
    int code = files_make_dir(to);
    if (code == 0) code = files_list(from, link, &k);
    return code != 0 ? code : k.code;
}

/* Directories and links; 0 or an errno value. */
static int links_make(struct snapshots *s)
{
    char top[FILES_PATH_BYTES];
    must(snapshot_path(s, "snapshot", NULL, NULL, top));
    int code = files_remove_tree(top);
    if (code == 0) code = files_make_dir(top);
    if (code == 0) code = part_link(s, "log", log_link);
    s->source.archive_end = s->o.archive_end == NULL ? 0 : s->o.archive_end(s->o.ctx);
    if (code == 0 && s->source.archive_end > 0) code = part_link(s, "archive", archive_link);
    return code;
}

struct listing {
    struct snapshots *s;
    uint64_t end; /* of the log, of the archive */
    enum manifest_part part;
    bool bad;
};

static bool file_add(void *ctx, const struct files_entry *e)
{
    struct listing *l = ctx;
    uint64_t first_pos, bytes = e->bytes;
    char path[FILES_PATH_BYTES];
    if (e->is_dir) return true;
    if (l->part != MANIFEST_STORE) {
        if (!manifest_segment(e->name, &first_pos) || first_pos >= l->end) {
            if (snapshot_path(l->s, "snapshot", manifest_dir((uint8_t)l->part), e->name, path))
                files_remove(path); /* made ahead: nothing of it counts */
            return true;
        }
        if (bytes > l->end - first_pos) bytes = l->end - first_pos;
    }
    l->bad = !manifest_add(&l->s->source.manifest, l->part, e->name, bytes);
    if (l->bad) log_warn("snapshot: the file %s of %s does not belong there", e->name, manifest_dir((uint8_t)l->part));
    return !l->bad;
}

static bool manifest_make(struct snapshots *s, struct store_mark mark)
{
    struct manifest *m = &s->source.manifest;
    struct log *log = replica_log(s->o.replica);
    if (mark.index == 0) {
        log_warn("snapshot: the store holds no state yet");
        return false;
    }
    *m = (struct manifest){.cluster = s->o.cluster, .node = s->o.node, .mark = mark, .segment_bytes = log_segment_bytes(log)};
    /* Not from the scan position on: that may be far before it, for entries that are kept. */
    if (log_entry_end(log, replica_entry_pos(s->o.replica, mark.index), mark.index, mark.term, &m->log_end) != LOG_OK) {
        log_warn("snapshot: entry %" PRIu64 " is not in the log any more", mark.index);
        return false;
    }
    replica_configuration_file(s->o.replica, &m->configuration);
    for (int part = MANIFEST_STORE; part <= MANIFEST_PARTS; part++) {
        char path[FILES_PATH_BYTES];
        struct listing l = {
            .s = s, .end = part == MANIFEST_LOG ? m->log_end : s->source.archive_end, .part = (enum manifest_part)part};
        if (part == MANIFEST_ARCHIVE && s->source.archive_end == 0) continue;
        must(snapshot_path(s, "snapshot", manifest_dir((uint8_t)part), NULL, path));
        int code = files_list(path, file_add, &l);
        if (code != 0) log_warn("%s: cannot be listed: %s", path, strerror(code));
        if (code != 0 || l.bad) return false;
    }
    manifest_encode(m, &s->source.encoded);
    /* What nobody could read would be fetched for nothing. */
    struct manifest again;
    const char *wrong = manifest_decode(buf_view(&s->source.encoded), &again);
    manifest_free(&again);
    if (wrong != NULL) log_warn("snapshot: cannot be described: %s", wrong);
    return wrong == NULL;
}

static void manifest_send(struct snapshots *s, uint64_t peer)
{
    s->source.serves_total++;
    snapshot_frame_send(s, peer, FRAME_MANIFEST, s->source.id, buf_view(&s->source.encoded), NONE);
}

static void taken(void *ctx, struct store_mark mark, const char *error)
{
    struct snapshots *s = ctx;
    struct source *c = &s->source;
    must(c->state == SOURCE_TAKING);
    crash_point("snapshot-taken");
    if (error != NULL) log_warn("snapshot: %s", error);
    if (error != NULL || c->unwanted || !manifest_make(s, mark)) {
        source_drop(s);
        tick_arm(s);
        return;
    }
    replica_pin(s->o.replica, mark.index);
    c->state = SOURCE_READY;
    c->asked_us = clock_mono_us();
    log_info("snapshot: the state at entry %" PRIu64 " can be fetched: %" PRIu32 " files, %" PRIu64 " bytes", mark.index,
             c->manifest.count, manifest_bytes(&c->manifest));
    for (uint32_t n = 0; n < c->waiting_count; n++) manifest_send(s, c->waiting[n]);
    c->waiting_count = 0;
    tick_arm(s);
}

static void snapshot_take(struct snapshots *s)
{
    struct source *c = &s->source;
    char path[FILES_PATH_BYTES];
    must(c->state == SOURCE_NONE && snapshot_path(s, "snapshot", "store", NULL, path));
    replica_pin(s->o.replica, 1);
    do random_bytes(&c->id, sizeof c->id);
    while (c->id == 0);
    int code = links_make(s);
    if (code != 0) {
        log_warn("snapshot: the log's files cannot be linked: %s", strerror(code));
        source_drop(s);
        return;
    }
    c->state = SOURCE_TAKING;
    store_checkpoint(s->o.store, path, s, taken);
}

/* ---- serving */

/* As raft sees it. That it has not committed anything in its term yet does not matter: it may need the very node that fetches to do so. */
static bool leads(const struct snapshots *s)
{
    return s->o.replica != NULL && replica_leader(s->o.replica) == s->o.node;
}

void source_who(struct snapshots *s, uint64_t peer)
{
    if (!leads(s)) return;
    uint64_t numbers[2] = {replica_term(s->o.replica), replica_last_index(s->o.replica)};
    snapshot_frame_send(s, peer, FRAME_LAST, 0, slice_make(numbers, sizeof numbers), NONE);
}

void source_want(struct snapshots *s, uint64_t peer, struct slice in)
{
    struct source *c = &s->source;
    uint64_t index;
    if (!u64_take(&in, &index)) return;
    if (!leads(s)) {
        gone_send(s, peer, 0);
        return;
    }
    c->asked_us = clock_mono_us();
    if ((index & WANT_NOT_OLDER) != 0 && (c->state != SOURCE_READY || c->manifest.mark.index < (index & ~WANT_NOT_OLDER))) {
        if (!s->o.reach(s->o.ctx, index & ~WANT_NOT_OLDER)) {
            snapshot_frame_send(s, peer, FRAME_TAKING, 0, NONE, NONE);
            return;
        }
        if (c->state == SOURCE_READY) source_drop(s); /* who fetches it begins anew, with what it has */
    }
    if (c->state == SOURCE_READY) { /* all entries behind it are in the log: it serves, whatever index was asked for */
        manifest_send(s, peer);
        return;
    }
    uint32_t n = 0;
    while (n < c->waiting_count && c->waiting[n] != peer) n++;
    if (n == c->waiting_count && n < SOURCE_WAITING_MAX) c->waiting[c->waiting_count++] = peer;
    if (c->state == SOURCE_NONE) snapshot_take(s);
    if (c->state == SOURCE_TAKING) snapshot_frame_send(s, peer, FRAME_TAKING, 0, NONE, NONE);
}

static bool range_fits(const struct manifest *m, const struct range *r)
{
    if (r->file >= m->count || r->len == 0 || r->len > FETCH_RANGE_BYTES) return false;
    uint64_t bytes = m->files[r->file].bytes;
    return r->offset <= bytes && r->len <= bytes - r->offset;
}

void source_ask(struct snapshots *s, uint64_t peer, uint64_t id, struct slice in)
{
    struct source *c = &s->source;
    struct range r;
    uint64_t digest;
    if (!range_take(&in, &r) || in.len != 9) return;
    bool have = in.at[0] != 0;
    in = slice_make(in.at + 1, in.len - 1);
    must(u64_take(&in, &digest));
    if (c->state != SOURCE_READY || c->id != id || !leads(s)) {
        gone_send(s, peer, id);
        return;
    }
    if (!range_fits(&c->manifest, &r)) return;
    const struct manifest_file *f = &c->manifest.files[r.file];
    char path[FILES_PATH_BYTES];
    must(snapshot_path(s, "snapshot", manifest_dir(f->part), f->name, path));
    buf_clear(&c->bytes);
    int code = files_read(path, r.offset, r.len, &c->bytes);
    if (code != 0 || c->bytes.len != r.len) {
        log_warn("%s: cannot be read at offset %" PRIu64 ": %s", path, r.offset, code != 0 ? strerror(code) : "it is cut off");
        gone_send(s, peer, id);
        source_drop(s);
        return;
    }
    c->asked_us = clock_mono_us();
    uint64_t ours = range_digest(buf_view(&c->bytes));
    bool same = have && digest == ours;
    struct buf head = {0};
    range_put(&head, &r);
    buf_u64(&head, ours);
    snapshot_frame_send(s, peer, same ? FRAME_SAME : FRAME_BYTES, id, buf_view(&head), same ? NONE : buf_view(&c->bytes));
    buf_free(&head);
}

int64_t source_tick(struct snapshots *s, int64_t now_us)
{
    struct source *c = &s->source;
    if (c->state == SOURCE_TAKING) c->unwanted = !leads(s);
    if (c->state != SOURCE_READY) return c->state == SOURCE_NONE ? 0 : now_us + SOURCE_TICK_US;
    bool idle = now_us - c->asked_us >= SNAPSHOT_KEPT_US;
    if (!idle && leads(s)) return now_us + SOURCE_TICK_US;
    log_info("snapshot: the state at entry %" PRIu64 " goes: %s", c->manifest.mark.index,
             idle ? "nobody asks for it" : "this node does not lead any more");
    source_drop(s);
    return 0;
}

/* The replica and the store may be closed by now. */
void source_free(struct snapshots *s)
{
    bool some = s->source.state != SOURCE_NONE;
    source_clear(&s->source);
    if (some) files_drop(s);
}
