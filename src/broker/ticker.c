/* Timers fire by ticks: commands of the leader, put into the log when one is due.
 *
 *   an entry applied, or time passed -> stale -> ticker_turn: due now -> a tick into the next entry
 *                                                         due later -> the loop's timer, a second at most
 *
 * One tick is on its way at a time, and fires at most TIMERS_A_TICK timers: when it has applied and more are due, the next entry gets
 * another. Due times are wall time, so the clock is looked at again every second while any timer is pending; with none pending
 * nothing wakes. Nothing is proposed while not leading.
 *
 * Timers at rest (engine/timer_rest.c) are read ahead: their rows lie in the order in which they are due, and a reader of cold messages goes
 * over those of the next AHEAD_US, so that they are in the store's cache when they fire. A tick that would read rows which nobody
 * has gone over waits for the reader: a slow disk makes a timer late, not everybody. The other nodes see to it as for all entries (warm.c). */
#include "broker/broker_internal.h"

enum { LOOK_EVERY_US = 1000000, AHEAD_US = 3000000, AHEAD_AGAIN_US = 1500000, AHEAD_BYTES = 1 << 20, AHEAD_LOOKS = 16 };

/* ---- reading ahead ------------------------------------------------------------------------------------------------ */

static bool row_passed(void *ctx, struct slice key, struct slice value)
{
    struct timers_ahead *a = ctx;
    uint64_t bytes = key.len + value.len;
    if (bytes >= a->left) {
        a->until_us = engine_timer_row_due_us(key);
        return false;
    }
    a->left -= bytes;
    return true;
}

/* On a reader's thread. What cannot be read whoever wants it will see. */
static void ahead_run(struct cold_job *j)
{
    struct timers_ahead *a = owner_of(j, struct timers_ahead, job);
    struct broker *b = owner_of(a, struct broker, ticker.ahead);
    char from[TIMER_ROW_KEY_BYTES], to[TIMER_ROW_KEY_BYTES];
    engine_timer_rows(a->from_us, a->until_us, from, to);
    a->left = AHEAD_BYTES;
    store_find(b->store, slice_make(from, sizeof from), slice_make(to, sizeof to), row_passed, a, NULL, NULL);
}

static void ahead_back(struct loop_task *t)
{
    struct timers_ahead *a = owner_of(t, struct timers_ahead, job.task);
    struct broker *b = owner_of(a, struct broker, ticker.ahead);
    a->reading = false;
    a->reached_us = a->until_us;
    b->ticker.stale = true; /* the turn that follows looks */
}

/* False: what is due now is being read. */
static bool ahead_look(struct broker *b)
{
    struct timers_ahead *a = &b->ticker.ahead;
    int64_t due_us, now_us = b->now.wall_us;
    if (!engine_timer_at_rest(b->engine, now_us + AHEAD_US, AHEAD_LOOKS, &due_us) || due_us <= a->reached_us) return true;
    if (!a->reading && due_us < now_us + AHEAD_AGAIN_US) {
        *a = (struct timers_ahead){
            .reading = true, .from_us = due_us, .until_us = now_us + AHEAD_US, .reached_us = a->reached_us};
        a->job = (struct cold_job){.task.run = ahead_back, .run = ahead_run, .urgent = true};
        cold_reader_submit(b->cold.reader, &a->job);
    }
    return due_us > now_us;
}

/* ---- ticks -------------------------------------------------------------------------------------------------------- */

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
    } else if (!ahead_look(b)) {
        return; /* ahead_back brings the next turn */
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
