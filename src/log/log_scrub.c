#include <stdio.h>

#include "log/log_check.h"
#include "log/log_internal.h"

enum log_status log_scrub(struct log *l, uint64_t *from, struct log_scrub *o, struct buf *error)
{
    char name[LOG_NAME_BYTES];
    struct segment *s = scrub_hold(l, *from);
    o->any = o->damaged = false;
    if (s == NULL) return LOG_OK;
    segment_name(s->first_pos, name);
    snprintf(o->path, sizeof o->path, "%.1024s/%s", l->dir, name);
    struct segment_walk w = {.path = o->path, .first_pos = s->first_pos, .past_cache = true, .ctx = o->ctx, .pace = o->pace};
    enum log_status status = segment_walk(&w, error);
    *from = s->end_pos;
    if (status == LOG_OK && !w.ended_early) {
        o->any = true;
        o->damaged = w.end_pos != s->end_pos || w.stop_pos != s->end_pos;
        o->offset = w.end_pos == 0 ? 0 : w.stop_pos - w.first_pos;
    }
    scrub_let(l, s);
    return status;
}
