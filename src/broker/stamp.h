/* The two times of entries (pure: the clocks are given).
 *
 *   log_us   goes on from the last entry's with the monotonic clock. After a restart on the same boot the time the process was
 *            away counts; after another boot it goes on where it stood. A new leader goes on
 *            from the last entry with the time since it got it. A new log starts at wall time.
 *   wall_us  the wall clock, but at least the last entry's + its count + 1 (no two commands share a time), and while the wall
 *            clock is behind what was stamped before, the last stamp plus monotonic time: it never stands still nor goes back. */
#ifndef QUEEN_BROKER_STAMP_H
#define QUEEN_BROKER_STAMP_H

#include "engine/engine.h"

struct clocks {
    int64_t mono_us, wall_us;
};

struct stamps {
    struct entry_head last;
    int64_t last_mono_us; /* monotonic time that belongs to last.log_us and last.wall_us */
    uint64_t clock_id;
    bool gap; /* the time since the last entry is not known: another boot */
};

enum stamp_skew { STAMP_FINE, STAMP_WALL_BEHIND, STAMP_WALL_JUMPED };

/* received_us: when this process got the last entry from another leader, by c's clock; 0 = it did not, or that is not known. */
void stamps_start(struct stamps *s, const struct entry_head *last, uint64_t clock_id, int64_t received_us, struct clocks c);
struct engine_now stamps_now(const struct stamps *s, struct clocks c);
/* Stamps an entry of `count` commands; what to warn about. */
enum stamp_skew stamps_take(struct stamps *s, struct clocks c, uint32_t count, struct entry_head *out);

#endif
