#include "base/loop.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/must.h"

enum { EVENTS_MAX = 256, TIMERS_A_TURN_MAX = 1024 };

struct loop {
    int epoll_fd, wake_fd;
    _Atomic(struct loop_task *) posted; /* newest first */
    atomic_bool sleeping, stopping;
    pthread_t thread;
    atomic_bool running;
    int64_t now_us;
    uint64_t timer_count;
    struct heap timers;
    struct loop_hook *hooks;
    uint32_t event_at, event_count; /* the turn's events, so that a removed descriptor is not called any more */
    struct epoll_event events[EVENTS_MAX];
};

struct loop *loop_new(void)
{
    struct loop *l = calloc(1, sizeof *l);
    must(l != NULL);
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event ev = {.events = EPOLLIN | EPOLLET, .data.ptr = NULL};
    if (l->epoll_fd < 0 || l->wake_fd < 0 || epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, l->wake_fd, &ev) != 0) {
        loop_free(l);
        return NULL;
    }
    l->now_us = clock_mono_us();
    return l;
}

void loop_free(struct loop *l)
{
    if (l == NULL) return;
    if (l->epoll_fd >= 0) close(l->epoll_fd);
    if (l->wake_fd >= 0) close(l->wake_fd);
    heap_free(&l->timers);
    free(l);
}

bool loop_is_mine(const struct loop *l)
{
    return atomic_load_explicit(&l->running, memory_order_acquire) && pthread_equal(l->thread, pthread_self());
}

void loop_wake(struct loop *l)
{
    uint64_t one = 1;
    ssize_t n = write(l->wake_fd, &one, sizeof one);
    must(n == (ssize_t)sizeof one || errno == EAGAIN);
}

void loop_post(struct loop *l, struct loop_task *t)
{
    struct loop_task *head = atomic_load_explicit(&l->posted, memory_order_relaxed);
    do {
        t->next = head;
    } while (!atomic_compare_exchange_weak(&l->posted, &head, t));
    if (atomic_load(&l->sleeping) && !loop_is_mine(l)) loop_wake(l);
}

void loop_stop(struct loop *l)
{
    atomic_store(&l->stopping, true);
    loop_wake(l);
}

bool loop_fd_add(struct loop *l, struct loop_fd *f, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = f};
    return epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, f->fd, &ev) == 0;
}

bool loop_fd_change(struct loop *l, struct loop_fd *f, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = f};
    return epoll_ctl(l->epoll_fd, EPOLL_CTL_MOD, f->fd, &ev) == 0;
}

void loop_fd_remove(struct loop *l, struct loop_fd *f)
{
    epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, f->fd, NULL);
    for (uint32_t i = l->event_at; i < l->event_count; i++) {
        if (l->events[i].data.ptr == f) l->events[i].data.ptr = NULL;
    }
}

static struct loop_timer *timer_of(struct heap_node *n)
{
    return (struct loop_timer *)(void *)((char *)n - offsetof(struct loop_timer, node));
}

void loop_timer_set(struct loop *l, struct loop_timer *t, int64_t at_us)
{
    heap_put(&l->timers, &t->node, at_us, l->timer_count++);
}

void loop_timer_cancel(struct loop *l, struct loop_timer *t)
{
    heap_remove(&l->timers, &t->node);
}

void loop_hook_add(struct loop *l, struct loop_hook *h)
{
    struct loop_hook **at = &l->hooks;
    while (*at != NULL) at = &(*at)->next;
    h->next = NULL;
    *at = h;
}

int64_t loop_now_us(const struct loop *l)
{
    return l->now_us;
}

static void tasks_run(struct loop *l)
{
    struct loop_task *newest = atomic_exchange(&l->posted, NULL), *oldest = NULL;
    while (newest != NULL) {
        struct loop_task *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    while (oldest != NULL) {
        struct loop_task *next = oldest->next;
        oldest->run(oldest);
        oldest = next;
    }
}

static void timers_run(struct loop *l)
{
    for (int i = 0; i < TIMERS_A_TURN_MAX; i++) {
        struct heap_node *n = heap_min(&l->timers);
        if (n == NULL || n->key > l->now_us) return;
        heap_remove(&l->timers, n);
        struct loop_timer *t = timer_of(n);
        t->fire(t);
    }
}

static bool hooks_run(struct loop *l)
{
    bool more = false;
    for (struct loop_hook *h = l->hooks; h != NULL; h = h->next) more |= h->run(h);
    return more;
}

static int wait_ms(struct loop *l)
{
    struct heap_node *n = heap_min(&l->timers);
    if (n == NULL) return -1;
    int64_t left_us = n->key - clock_mono_us();
    if (left_us <= 0) return 0;
    int64_t ms = (left_us + 999) / 1000;
    return ms > 3600000 ? 3600000 : (int)ms;
}

static void events_run(struct loop *l, bool more)
{
    atomic_store(&l->sleeping, true);
    bool busy = more || atomic_load(&l->posted) != NULL || atomic_load(&l->stopping);
    int n = epoll_wait(l->epoll_fd, l->events, EVENTS_MAX, busy ? 0 : wait_ms(l));
    atomic_store(&l->sleeping, false);
    must(n >= 0 || errno == EINTR);
    l->now_us = clock_mono_us();
    l->event_count = n < 0 ? 0 : (uint32_t)n;
    for (l->event_at = 0; l->event_at < l->event_count;) {
        struct epoll_event *ev = &l->events[l->event_at++];
        struct loop_fd *f = ev->data.ptr;
        if (f != NULL) f->ready(f, ev->events);
    }
    l->event_at = l->event_count = 0;
}

static void running_set(struct loop *l)
{
    /* Written once: others may be reading it when a loop is run again. */
    if (!pthread_equal(l->thread, pthread_self())) l->thread = pthread_self();
    atomic_store_explicit(&l->running, true, memory_order_release);
}

static bool turn(struct loop *l, bool more)
{
    events_run(l, more);
    tasks_run(l);
    timers_run(l);
    return hooks_run(l);
}

void loop_turn(struct loop *l)
{
    must(!atomic_load(&l->running));
    running_set(l);
    turn(l, true);
    atomic_store(&l->running, false);
}

void loop_run(struct loop *l)
{
    running_set(l);
    bool more = true;
    while (!atomic_load(&l->stopping)) more = turn(l, more);
    tasks_run(l);
    atomic_store(&l->running, false);
    atomic_store(&l->stopping, false);
}
