/* The worker of reclaim (broker/reclaim.h), without a thread: a job is done after a while, in an event of its own, and its group hears of it
 * after another while. The group goes on meanwhile. */
#include "broker/reclaim.h"

#include <stdlib.h>

#include "sim.h"
#include "work.h"

struct reclaim_worker {
    struct sim_node *node;
    struct loop *loop;
    bool stopped;
};

struct errand {
    struct sim_event event;
    struct reclaim_worker *worker;
    struct reclaim_job *job;
    bool done;
};

struct reclaim_worker *reclaim_worker_new(struct loop *loop, uint64_t bytes_s)
{
    struct reclaim_worker *w = calloc(1, sizeof *w);
    must(w != NULL && bytes_s > 0);
    *w = (struct reclaim_worker){.node = sim.node, .loop = loop};
    return w;
}

/* Mostly soon; now and then so late that most of what was found is another state's. */
static void errand_wait(struct errand *d)
{
    struct sim_node *n = d->worker->node;
    int64_t us = rng_chance(&n->rng, 100) ? rng_span(&n->rng, 0, 5000000) : rng_span(&n->rng, 0, 50000);
    sim_at(&d->event, n, sim.now_us + sim.ahead_us + us);
}

static void errand_run(struct sim_event *e)
{
    struct errand *d = outer(e, struct errand, event);
    struct reclaim_job *j = d->job;
    if (d->worker->stopped) { /* the job is gone */
        free(d);
    } else if (d->done) {
        loop_post(d->worker->loop, &j->task);
        free(d);
    } else {
        if (j->scans) {
            reclaim_scan(j);
        } else {
            reclaim_copy(j);
            for (uint32_t i = 0; i < j->count; i++) work_counts.reclaimed += j->to[i] != 0;
        }
        d->done = true;
        errand_wait(d);
    }
}

bool reclaim_worker_submit(struct reclaim_worker *w, struct reclaim_job *j)
{
    struct errand *d = calloc(1, sizeof *d);
    must(d != NULL);
    *d = (struct errand){.worker = w, .job = j};
    d->event.run = errand_run;
    errand_wait(d);
    return true;
}

/* What is under way finds out: the memory stays. */
void reclaim_worker_free(struct reclaim_worker *w)
{
    w->stopped = true;
}

bool reclaim_worker_pace(struct reclaim_worker *w, uint64_t bytes)
{
    (void)bytes;
    return !w->stopped;
}

void reclaim_worker_synced(void *worker)
{
    (void)worker;
}

bool reclaim_worker_await(struct reclaim_worker *w, struct log *archive)
{
    sim_log_await(archive);
    return !w->stopped;
}
