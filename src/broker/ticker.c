/* Timers fire by ticks: commands of the leader, put into the log when one is due.
 *
 *   an entry applied, or time passed -> stale -> ticker_turn: due now -> a tick into the next entry
 *                                                         due later -> the loop's timer, a second at most
 *
 * One tick is on its way at a time, and fires at most TIMERS_A_TICK timers: when it has applied and more are due, the next entry gets
 * another. Due times are wall time, so the clock is looked at again every second while any timer is pending; with none pending
 * nothing wakes. Nothing is proposed while not leading. */
#include "broker/broker_internal.h"

enum { LOOK_EVERY_US = 1000000 };

static void timer_arm(struct broker *b, int64_t due_us)
{
    struct loop_timer *t = &b->ticker.timer;
    int64_t at_us = b->mono_us + (due_us < LOOK_EVERY_US ? due_us : LOOK_EVERY_US);
    if (heap_holds(&t->node) && t->node.key <= at_us) return; /* it looks anew when it fires */
    loop_timer_set(b->loop, t, at_us);
}

void ticker_turn(struct broker *b)
{
    struct ticker *t = &b->ticker;
    if (!t->stale || t->proposed || !b->serving || b->stopping) return;
    t->stale = false;
    inbox_clock(b); /* both clocks at one time: the waiting time counts from here */
    int64_t due_us = engine_timer_due_us(b->engine, b->now);
    if (due_us < 0) {
        loop_timer_cancel(b->loop, &t->timer);
    } else if (due_us > 0) {
        timer_arm(b, due_us);
    } else {
        t->proposed = true;
        internal_tick(b);
    }
}

void ticker_flight_gone(struct broker *b)
{
    b->ticker.proposed = false;
    b->ticker.stale = true;
}

void ticker_fire(struct loop_timer *t)
{
    owner_of(t, struct broker, ticker.timer)->ticker.stale = true;
    /* the turn that follows looks */
}
