/* The threads of cold reads: at most COLD_THREADS_MAX, each started when a job comes and no thread waits for one. They end with the
 * broker. When not even one can be started, jobs are read on the group's thread. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "base/logger.h"
#include "base/must.h"
#include "broker/cold.h"

struct cold_reader {
    struct loop *loop;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct cold_job *first, *last, *last_urgent; /* not begun; the urgent ones come first */
    uint32_t thread_count, idle;
    bool stopping, told;
    pthread_t threads[COLD_THREADS_MAX];
};

/* Both under the lock. */
static struct cold_job *job_take(struct cold_reader *r)
{
    struct cold_job *j = r->first;
    r->first = j->next;
    if (r->first == NULL) r->last = NULL;
    if (r->last_urgent == j) r->last_urgent = NULL;
    return j;
}

static void job_put(struct cold_reader *r, struct cold_job *j)
{
    struct cold_job *before = j->urgent ? r->last_urgent : r->last;
    struct cold_job **place = before != NULL ? &before->next : &r->first;
    j->next = *place;
    *place = j;
    if (j->next == NULL) r->last = j;
    if (j->urgent) r->last_urgent = j;
}

static void *reader_main(void *ctx)
{
    struct cold_reader *r = ctx;
    pthread_mutex_lock(&r->lock);
    for (;;) {
        r->idle++;
        while (r->first == NULL && !r->stopping) pthread_cond_wait(&r->wake, &r->lock);
        r->idle--;
        if (r->stopping) break;
        struct cold_job *j = job_take(r);
        pthread_mutex_unlock(&r->lock);
        j->run(j);
        loop_post(r->loop, &j->task);
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

struct cold_reader *cold_reader_new(struct loop *loop)
{
    struct cold_reader *r = calloc(1, sizeof *r);
    must(r != NULL && pthread_mutex_init(&r->lock, NULL) == 0 && pthread_cond_init(&r->wake, NULL) == 0);
    r->loop = loop;
    return r;
}

/* Under the lock. */
static void thread_start(struct cold_reader *r)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&r->threads[r->thread_count], NULL, reader_main, r) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started) {
        pthread_setname_np(r->threads[r->thread_count++], "cold-read");
    } else if (!r->told) {
        r->told = true;
        log_warn("no further thread could be started to read old messages");
    }
}

void cold_reader_submit(struct cold_reader *r, struct cold_job *j)
{
    pthread_mutex_lock(&r->lock);
    if (r->idle == 0 && r->thread_count < COLD_THREADS_MAX) thread_start(r);
    bool alone = r->thread_count == 0;
    if (!alone) {
        job_put(r, j);
        pthread_cond_signal(&r->wake);
    }
    pthread_mutex_unlock(&r->lock);
    if (!alone) return;
    if (!j->urgent) j->run(j); /* else it would be waited for */
    loop_post(r->loop, &j->task);
}

void cold_reader_free(struct cold_reader *r)
{
    pthread_mutex_lock(&r->lock);
    r->stopping = true;
    pthread_cond_broadcast(&r->wake);
    pthread_mutex_unlock(&r->lock);
    for (uint32_t i = 0; i < r->thread_count; i++) pthread_join(r->threads[i], NULL);
    pthread_cond_destroy(&r->wake);
    pthread_mutex_destroy(&r->lock);
    free(r);
}
