/* Retention: the leader looks for messages that the queues' options let go, and puts it into the log.
 *
 *   an entry applied -> a round is due after retention_every_ms
 *   a round: what the next step will read of lanes at rest is read by other threads (warm.c)
 *            -> a step: lanes are looked at, scan_per_s of them a second at most; what is found goes into the next entry (TRIM): TRIMS_AN_ENTRY
 *            lanes and RUNS_AN_ENTRY appends, every STEP_US, a fourth of it four times as often beside other calls, more seldom while the
 *            store is behind
 *   nothing left that could become due -> no timer until an entry is applied
 *
 * Nothing is proposed while not leading. What a crash leaves undone the next round finds again. */
#include "broker/broker_internal.h"

enum { STEP_US = 10000, SMALL = 4, TRIMS_AN_ENTRY = 256, RUNS_AN_ENTRY = 8192, STEPS_POSTPONED_MAX = 10 };

static void timer_set(struct broker *b, int64_t in_us)
{
    struct loop_timer *t = &b->retention.timer;
    if (!heap_holds(&t->node)) loop_timer_set(b->loop, t, b->mono_us + in_us);
}

static void round_set(struct broker *b)
{
    timer_set(b, (int64_t)b->config.retention_every_ms * 1000);
}

void retention_applied(struct broker *b)
{
    if (b->retention.pending) return;
    b->retention.pending = true;
    round_set(b);
}

static void step_plan(struct broker *b)
{
    struct retention *r = &b->retention;
    uint32_t part = pace_is_small(b->mono_us, b->keeper.others_us) ? SMALL : 1;
    r->step_us = STEP_US / part;
    r->most.looks = (uint32_t)((uint64_t)b->config.retention_scan_per_s * (uint64_t)r->step_us / 1000000) + 1;
    r->most.lanes = TRIMS_AN_ENTRY / part;
    r->most.runs = RUNS_AN_ENTRY / part;
}

static void step_foresee(struct broker *b, const struct engine_foreseen *f)
{
    engine_trim_foreseen(b->engine, b->now, &b->retention.most, f);
}

static void step_read(struct broker *b)
{
    timer_set(b, 0);
}

void retention_fire(struct loop_timer *t)
{
    struct broker *b = owner_of(t, struct broker, retention.timer);
    struct retention *r = &b->retention;
    struct trim_item items[TRIMS_AN_ENTRY];
    uint32_t count = 0;
    inbox_clock(b);
    if (!b->serving || b->stopping) {
        round_set(b);
        return;
    }
    if (!keeper_has_room(b) && ++r->postponed < STEPS_POSTPONED_MAX) {
        timer_set(b, STEP_US);
        return;
    }
    if (!r->rows.read && !r->rows.reading) step_plan(b);
    if (!warm_step(b, &r->rows, step_foresee, step_read)) return;
    r->rows.read = false;
    r->postponed = 0;
    enum trim_round round = engine_trim_due(b->engine, b->now, &r->most, items, &count);
    if (count > 0) internal_trim(b, items, count);
    if (round == TRIM_NEVER) {
        r->pending = false; /* the next entry begins anew */
    } else if (round == TRIM_GOES_ON) {
        timer_set(b, r->step_us);
    } else {
        round_set(b);
    }
}
