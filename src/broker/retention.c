/* Retention: the leader looks for messages that the queues' options let go, and puts it into the log.
 *
 *   an entry applied -> a round is due after retention_every_ms
 *   a round: lanes are looked at, scan_per_s of them a second at most; what is found goes into the next entry (TRIM): TRIMS_AN_ENTRY lanes
 *            and RUNS_AN_ENTRY appends, every STEP_US, more seldom while the store is behind
 *   nothing left that could become due -> no timer until an entry is applied
 *
 * Nothing is proposed while not leading. What a crash leaves undone the next round finds again. */
#include "broker/broker_internal.h"

enum { STEP_US = 10000, TRIMS_AN_ENTRY = 256, RUNS_AN_ENTRY = 8192, STEPS_POSTPONED_MAX = 10 };

static void timer_set(struct broker *b, int64_t in_us)
{
    struct loop_timer *t = &b->retention.timer;
    if (!heap_holds(&t->node)) loop_timer_set(b->loop, t, b->mono_us + in_us);
}

void retention_applied(struct broker *b)
{
    if (b->retention.pending) return;
    b->retention.pending = true;
    timer_set(b, (int64_t)b->config.retention_every_ms * 1000);
}

void retention_fire(struct loop_timer *t)
{
    struct broker *b = owner_of(t, struct broker, retention.timer);
    struct trim_item items[TRIMS_AN_ENTRY];
    uint32_t count = 0;
    inbox_clock(b);
    if (!b->serving || b->stopping) {
        timer_set(b, (int64_t)b->config.retention_every_ms * 1000);
        return;
    }
    if (!keeper_has_room(b) && ++b->retention.postponed < STEPS_POSTPONED_MAX) {
        timer_set(b, STEP_US);
        return;
    }
    b->retention.postponed = 0;
    uint32_t looks = (uint32_t)((uint64_t)b->config.retention_scan_per_s * STEP_US / 1000000) + 1;
    enum trim_round round = engine_trim_due(b->engine, b->now, looks, RUNS_AN_ENTRY, items, TRIMS_AN_ENTRY, &count);
    if (count > 0) internal_trim(b, items, count);
    if (round == TRIM_NEVER) {
        b->retention.pending = false; /* the next entry begins anew */
    } else {
        timer_set(b, round == TRIM_GOES_ON ? STEP_US : (int64_t)b->config.retention_every_ms * 1000);
    }
}
