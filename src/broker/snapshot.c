#include "broker/snapshot.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/logger.h"
#include "broker/snapshot_inner.h"

uint64_t range_digest(struct slice bytes)
{
    return hash64(bytes, 0x534e4150);
}

bool snapshot_path(const struct snapshots *s, const char *a, const char *b, const char *c, char out[FILES_PATH_BYTES])
{
    int n = snprintf(out, FILES_PATH_BYTES, "%s/%s%s%s%s%s", s->dir, a, b == NULL ? "" : "/", b == NULL ? "" : b,
                     c == NULL ? "" : "/", c == NULL ? "" : c);
    return n > 0 && n < FILES_PATH_BYTES;
}

/* ---- frames */

bool snapshot_frame_send(struct snapshots *s, uint64_t peer, enum frame_kind kind, uint64_t id, struct slice head,
                         struct slice rest)
{
    char first[9] = {(char)kind};
    memcpy(first + 1, &id, sizeof id);
    struct slice parts[3] = {slice_make(first, sizeof first)};
    uint32_t count = 1;
    if (head.len > 0) parts[count++] = head;
    if (rest.len > 0) parts[count++] = rest;
    return s->o.send(s->o.ctx, peer, parts, count);
}

void range_put(struct buf *out, const struct range *r)
{
    buf_u32(out, r->file);
    buf_u32(out, r->len);
    buf_u64(out, r->offset);
}

static bool take(struct slice *in, void *to, size_t len)
{
    if (in->len < len) return false;
    memcpy(to, in->at, len);
    in->at += len;
    in->len -= len;
    return true;
}

bool u64_take(struct slice *in, uint64_t *v)
{
    return take(in, v, sizeof *v);
}

bool range_take(struct slice *in, struct range *r)
{
    return take(in, &r->file, sizeof r->file) && take(in, &r->len, sizeof r->len) && take(in, &r->offset, sizeof r->offset);
}

void snapshots_receive(struct snapshots *s, uint64_t peer, struct slice frame)
{
    uint8_t kind;
    uint64_t id;
    if (!take(&frame, &kind, 1) || !u64_take(&frame, &id)) return;
    switch (kind) {
    case FRAME_WANT:
        source_want(s, peer, frame);
        break;
    case FRAME_ASK:
        source_ask(s, peer, id, frame);
        break;
    case FRAME_TAKING:
        fetch_taking(s, peer);
        break;
    case FRAME_MANIFEST:
        fetch_manifest(s, peer, id, frame);
        break;
    case FRAME_SAME:
    case FRAME_BYTES:
        fetch_answer(s, peer, id, kind == FRAME_SAME, frame);
        break;
    case FRAME_GONE:
        fetch_gone(s, peer, id);
        break;
    case FRAME_WHO:
        source_who(s, peer);
        break;
    case FRAME_LAST:
        fetch_last(s, peer, frame);
        break;
    default:
        break;
    }
    tick_arm(s);
}

void snapshots_link(struct snapshots *s, uint64_t peer, bool up)
{
    if (up) fetch_link_up(s, peer);
}

/* ---- time */

void tick_arm(struct snapshots *s)
{
    int64_t now_us = clock_mono_us(), source_us = source_tick(s, now_us), fetch_us = fetch_tick(s, now_us);
    int64_t at_us = source_us == 0 || (fetch_us != 0 && fetch_us < source_us) ? fetch_us : source_us;
    if (at_us != 0)
        loop_timer_set(s->o.loop, &s->tick, at_us);
    else
        loop_timer_cancel(s->o.loop, &s->tick);
}

static void tick_fire(struct loop_timer *timer)
{
    tick_arm((struct snapshots *)(void *)((char *)timer - offsetof(struct snapshots, tick)));
}

/* ---- life */

static bool entry_seen(void *ctx, const struct files_entry *e)
{
    (void)e;
    *(bool *)ctx = true;
    return false;
}

struct snapshots *snapshots_new(const struct snapshots_options *o)
{
    must(o->send != NULL && o->fetched != NULL && (o->replica == NULL) == (o->store == NULL));
    struct snapshots *s = calloc(1, sizeof *s);
    must(s != NULL);
    s->o = *o;
    s->dir = strdup(o->dir);
    must(s->dir != NULL);
    s->o.dir = s->dir;
    s->tick.fire = tick_fire;
    s->pace.fire = fetch_pace;
    char path[FILES_PATH_BYTES];
    bool some = false;
    must(snapshot_path(s, "snapshot", NULL, NULL, path));
    int code = files_remove_tree(path); /* of the last run */
    if (code != 0) log_warn("%s: cannot be removed: %s", path, strerror(code));
    must(snapshot_path(s, "incoming", NULL, NULL, path));
    if (files_list(path, entry_seen, &some) == 0) s->leftover_us = clock_mono_us();
    if (s->leftover_us != 0) tick_arm(s);
    return s;
}

void snapshots_free(struct snapshots *s)
{
    if (s == NULL) return;
    loop_timer_cancel(s->o.loop, &s->tick);
    loop_timer_cancel(s->o.loop, &s->pace);
    source_free(s);
    fetch_free(s);
    free(s->dir);
    free(s);
}

void snapshots_view(const struct snapshots *s, struct snapshots_view *out)
{
    const struct fetch *f = &s->fetch;
    *out = (struct snapshots_view){
        .fetching = f->state != FETCH_NONE,
        .serving = s->source.state != SOURCE_NONE,
        .index = f->state == FETCH_NONE ? 0 : f->manifest.mark.index,
        .bytes_total = f->bytes_total,
        .bytes_done = f->bytes_done,
        .fetches_total = f->fetches_total,
        .serves_total = s->source.serves_total,
    };
}
