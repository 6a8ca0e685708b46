/* The segment is read through a descriptor of its own and not held: trimming it, and the room it takes, wait for nobody who reads slowly.
 * What was read of a file that was trimmed meanwhile, and may be written over by now, says nothing. */
#include <stdio.h>

#include "log/log_check.h"
#include "log/log_internal.h"

struct scrubbing {
    struct log *log;
    struct log_scrub *o;
    uint64_t first_pos;
};

static bool is_there(struct scrubbing *s)
{
    uint64_t first_pos, end_pos;
    return sealed_next(s->log, s->first_pos, &first_pos, &end_pos) && first_pos == s->first_pos;
}

static bool scrub_pace(void *ctx, uint64_t bytes)
{
    struct scrubbing *s = ctx;
    return (s->o->pace == NULL || s->o->pace(s->o->ctx, bytes)) && is_there(s);
}

enum log_status log_scrub(struct log *l, uint64_t *from, struct log_scrub *o, struct buf *error)
{
    char name[LOG_NAME_BYTES];
    struct scrubbing s = {.log = l, .o = o};
    uint64_t end_pos;
    o->any = o->damaged = false;
    if (!sealed_next(l, *from, &s.first_pos, &end_pos)) return LOG_OK;
    segment_name(s.first_pos, name);
    snprintf(o->path, sizeof o->path, "%.1024s/%s", l->dir, name);
    struct segment_walk w = {.path = o->path, .first_pos = s.first_pos, .past_cache = true, .ctx = &s, .pace = scrub_pace};
    enum log_status status = segment_walk(&w, error);
    *from = end_pos;
    if (w.ended_early || !is_there(&s)) return LOG_OK;
    if (status != LOG_OK) return status;
    o->any = true;
    o->damaged = w.end_pos != end_pos || w.stop_pos != end_pos;
    o->offset = w.end_pos == 0 ? 0 : w.stop_pos - w.first_pos;
    return LOG_OK;
}
