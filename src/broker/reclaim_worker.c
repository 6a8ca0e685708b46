/* The thread of reclaim, started with the first job. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/logger.h"
#include "base/must.h"
#include "broker/reclaim.h"

struct reclaim_worker {
    struct loop *loop;
    uint64_t bytes_s;
    int64_t pace_us;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct reclaim_job *job; /* not begun */
    bool stopping, has_thread;
    pthread_t thread;
};

static void *worker_main(void *ctx)
{
    struct reclaim_worker *w = ctx;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (w->job == NULL && !w->stopping) pthread_cond_wait(&w->wake, &w->lock);
        if (w->stopping) break;
        struct reclaim_job *j = w->job;
        w->job = NULL;
        pthread_mutex_unlock(&w->lock);
        if (j->scans) {
            reclaim_scan(j);
        } else {
            reclaim_copy(j);
        }
        loop_post(w->loop, &j->task);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

struct reclaim_worker *reclaim_worker_new(struct loop *loop, uint64_t bytes_s)
{
    struct reclaim_worker *w = calloc(1, sizeof *w);
    pthread_condattr_t attr;
    must(w != NULL && bytes_s > 0 && pthread_mutex_init(&w->lock, NULL) == 0);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->wake, &attr);
    pthread_condattr_destroy(&attr);
    w->loop = loop;
    w->bytes_s = bytes_s;
    return w;
}

bool reclaim_worker_submit(struct reclaim_worker *w, struct reclaim_job *j)
{
    if (!w->has_thread) {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        w->has_thread = pthread_create(&w->thread, NULL, worker_main, w) == 0;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (!w->has_thread) return false;
        pthread_setname_np(w->thread, "reclaim");
    }
    pthread_mutex_lock(&w->lock);
    must(w->job == NULL);
    w->job = j;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->lock);
    return true;
}

void reclaim_worker_free(struct reclaim_worker *w)
{
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->lock);
    if (w->has_thread) pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

bool reclaim_worker_pace(struct reclaim_worker *w, uint64_t bytes)
{
    int64_t now_us = clock_mono_us();
    if (w->pace_us < now_us) w->pace_us = now_us;
    w->pace_us += (int64_t)(bytes * 1000000 / w->bytes_s);
    struct timespec until = {.tv_sec = w->pace_us / 1000000, .tv_nsec = w->pace_us % 1000000 * 1000};
    pthread_mutex_lock(&w->lock);
    int code = 0;
    while (!w->stopping && code != ETIMEDOUT && clock_mono_us() < w->pace_us)
        code = pthread_cond_timedwait(&w->wake, &w->lock, &until);
    bool stopping = w->stopping;
    pthread_mutex_unlock(&w->lock);
    return !stopping;
}

void reclaim_worker_synced(void *worker)
{
    struct reclaim_worker *w = worker;
    pthread_mutex_lock(&w->lock);
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

bool reclaim_worker_await(struct reclaim_worker *w, struct log *archive)
{
    pthread_mutex_lock(&w->lock);
    while (!w->stopping && log_unsynced_bytes(archive) > 0) pthread_cond_wait(&w->wake, &w->lock);
    bool stopping = w->stopping;
    pthread_mutex_unlock(&w->lock);
    return !stopping;
}
