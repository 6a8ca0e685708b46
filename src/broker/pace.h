/* How fast work over many lanes goes on (pieces of a seek, what a delete gives back) beside other calls.
 *
 * Nothing else came since the last step: the next one at once. Something came: steps are small, and after each there is a pause of
 * PACE_PAUSES times as long as it took, so that others have almost all of the group's thread however slow a step is. Steps are large
 * again when nothing else has come for PACE_QUIET_US.
 *
 * Plain data, all zeros at the start; of the group's thread. */
#ifndef BROKER_PACE_H
#define BROKER_PACE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    PACE_PAUSES = 9,
    PACE_PAUSE_US_MIN = 2000,
    PACE_PAUSE_US_MAX = 100000, /* one step that took long because the machine was busy does not stop all for long */
    PACE_QUIET_US = 100000,
};

struct pace {
    int64_t began_us, ended_us, took_us; /* of the last step */
};

/* Of a step: at the start, and at its end. */
static inline void pace_begin(struct pace *p, int64_t now_us)
{
    p->began_us = now_us;
}

static inline void pace_end(struct pace *p, int64_t now_us, int64_t took_us)
{
    p->ended_us = now_us;
    p->took_us = took_us > 0 ? took_us : 0;
}

/* When the next step may be; others_us: when something else came last. One that has begun is waited for, but not for long: it may be lost. */
static inline int64_t pace_due_us(const struct pace *p, int64_t others_us)
{
    if (p->began_us > p->ended_us) return p->began_us + PACE_PAUSE_US_MAX;
    if (others_us < p->began_us) return p->ended_us;
    int64_t pause_us = p->took_us * PACE_PAUSES;
    if (pause_us < PACE_PAUSE_US_MIN) pause_us = PACE_PAUSE_US_MIN;
    return p->ended_us + (pause_us < PACE_PAUSE_US_MAX ? pause_us : PACE_PAUSE_US_MAX);
}

static inline bool pace_is_small(int64_t now_us, int64_t others_us)
{
    return now_us < others_us + PACE_QUIET_US;
}

#endif
