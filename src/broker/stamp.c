#include "broker/stamp.h"

#include "base/must.h"
#include "base/planted.h"

enum { WALL_JUMP_US = 10000000 };

void stamps_start(struct stamps *s, const struct entry_head *last, uint64_t clock_id, int64_t received_us, struct clocks c)
{
    *s = (struct stamps){.last = *last, .last_mono_us = c.mono_us, .clock_id = clock_id};
    bool fresh = last->log_us == 0;
    bool same_boot = !fresh && last->clock_id == clock_id && last->clock_us <= c.mono_us;
    if (fresh) s->last.log_us = c.wall_us;
    if (same_boot) s->last_mono_us = last->clock_us;
    if (!same_boot && !fresh && received_us > 0 && received_us < c.mono_us) s->last_mono_us = received_us;
    s->gap = !same_boot;
}

static int64_t elapsed_us(const struct stamps *s, struct clocks c)
{
    return c.mono_us > s->last_mono_us ? c.mono_us - s->last_mono_us : 0;
}

struct engine_now stamps_now(const struct stamps *s, struct clocks c)
{
    struct engine_now now = {.log_us = s->last.log_us + elapsed_us(s, c), .wall_us = c.wall_us};
    if (c.wall_us < s->last.wall_us) now.wall_us = s->last.wall_us + elapsed_us(s, c);
    int64_t least_us = s->last.wall_us + s->last.count + 1;
    if (now.wall_us < least_us) now.wall_us = least_us;
    if (PLANTED("lease-by-wall-clock")) now.log_us = now.wall_us;
    return now;
}

enum stamp_skew stamps_take(struct stamps *s, struct clocks c, uint32_t count, struct entry_head *out)
{
    must(count > 0);
    if (c.mono_us < s->last_mono_us) c.mono_us = s->last_mono_us;
    enum stamp_skew skew = STAMP_FINE;
    if (s->last.wall_us != 0) {
        int64_t expected_us = s->last.wall_us + elapsed_us(s, c);
        if (c.wall_us < s->last.wall_us - 1000) skew = STAMP_WALL_BEHIND;
        if (!s->gap && c.wall_us > expected_us + WALL_JUMP_US) skew = STAMP_WALL_JUMPED;
    }
    struct engine_now now = stamps_now(s, c);
    must(now.log_us >= s->last.log_us && now.wall_us > s->last.wall_us);
    *out = (struct entry_head){
        .count = count, .log_us = now.log_us, .wall_us = now.wall_us, .clock_id = s->clock_id, .clock_us = c.mono_us};
    s->last = *out;
    s->last_mono_us = c.mono_us;
    s->gap = false;
    return skew;
}
