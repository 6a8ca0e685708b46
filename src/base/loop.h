/* An event loop: one thread, one epoll. Everything registered with a loop runs on the thread that calls loop_run.
 *
 *   wait -> ready descriptors -> posted tasks -> due timers -> hooks (in order of registration) -> wait
 *
 * Only loop_post, loop_stop and loop_wake may be called from other threads. A task posted from the loop's own thread costs
 * no system call; from another thread at most one eventfd write while the loop sleeps or is about to. */
#ifndef QUEEN_BASE_LOOP_H
#define QUEEN_BASE_LOOP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/heap.h"

struct loop;

/* A descriptor to watch; `events` of `ready` are EPOLL bits. The struct belongs to the caller and must stay until removed. */
struct loop_fd {
    int fd;
    void (*ready)(struct loop_fd *self, uint32_t events);
};

/* A piece of work from any thread. Belongs to the caller; free again once `run` was entered. Tasks of one poster run in order. */
struct loop_task {
    struct loop_task *next;
    void (*run)(struct loop_task *self);
};

/* Fires once at or after `at_us` of clock_mono_us; start zeroed. Setting it again moves it. */
struct loop_timer {
    struct heap_node node;
    void (*fire)(struct loop_timer *self);
};

/* Runs once each turn, after all events of the turn: the place to batch. `run` returns true when it made new work for this turn
 * (the loop then goes round without sleeping). */
struct loop_hook {
    struct loop_hook *next;
    bool (*run)(struct loop_hook *self);
};

struct loop *loop_new(void); /* NULL with errno */
void loop_free(struct loop *l);
void loop_run(struct loop *l); /* until loop_stop */
void loop_stop(struct loop *l);
void loop_turn(struct loop *l); /* one turn without waiting, by the thread that will run it, before it does: long work at a start */

bool loop_fd_add(struct loop *l, struct loop_fd *f, uint32_t events); /* false with errno */
bool loop_fd_change(struct loop *l, struct loop_fd *f, uint32_t events);
void loop_fd_remove(struct loop *l, struct loop_fd *f);

void loop_post(struct loop *l, struct loop_task *t);
void loop_wake(struct loop *l);
bool loop_is_mine(const struct loop *l); /* called on the loop's thread? */

void loop_timer_set(struct loop *l, struct loop_timer *t, int64_t at_us);
void loop_timer_cancel(struct loop *l, struct loop_timer *t);
void loop_hook_add(struct loop *l, struct loop_hook *h);

int64_t loop_now_us(const struct loop *l); /* clock_mono_us at the start of this turn */

#endif
