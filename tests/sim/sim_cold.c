/* The readers of cold payloads (broker/cold.h), without threads: a job is read after a while, in an event of its own. */
#if __has_include("broker/cold.h")
#include "broker/cold.h"

#include <stdlib.h>

#include "sim.h"

struct cold_reader {
    struct sim_node *node;
    struct loop *loop;
    bool stopped;
};

struct reading {
    struct sim_event event;
    struct cold_reader *reader;
    struct cold_job *job;
};

struct cold_reader *cold_reader_new(struct loop *loop)
{
    struct cold_reader *r = calloc(1, sizeof *r);
    must(r != NULL);
    *r = (struct cold_reader){.node = sim.node, .loop = loop};
    return r;
}

static void reading_run(struct sim_event *e)
{
    struct reading *g = outer(e, struct reading, event);
    if (!g->reader->stopped) {
        g->job->run(g->job);
        loop_post(g->reader->loop, &g->job->task);
    }
    free(g);
}

void cold_reader_submit(struct cold_reader *r, struct cold_job *j)
{
    struct reading *g = calloc(1, sizeof *g);
    must(g != NULL);
    *g = (struct reading){.reader = r, .job = j};
    g->event.run = reading_run;
    sim_at(&g->event, r->node, sim.now_us + sim.ahead_us + sim_disk_us(r->node));
}

/* What is under way finds out: the memory stays. */
void cold_reader_free(struct cold_reader *r)
{
    r->stopped = true;
}
#else
typedef int sim_cold_nothing;
#endif
