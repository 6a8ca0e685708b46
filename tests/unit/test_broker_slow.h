/* A disk that is as slow as the test wants: cold_reader_* without threads, which reads when it is told to. In one file of a program. */
#ifndef QUEEN_TESTS_BROKER_SLOW_H
#define QUEEN_TESTS_BROKER_SLOW_H

#include "broker/broker_internal.h"

struct cold_reader {
    struct loop *loop;
    struct cold_job *first, *last;
    uint32_t count; /* held */
    uint64_t all;
    bool open; /* everything is read at once */
};

static struct cold_reader reader;

struct cold_reader *cold_reader_new(struct loop *loop)
{
    reader = (struct cold_reader){.loop = loop};
    return &reader;
}

/* Reads what is held. */
static void reader_go(void)
{
    while (reader.first != NULL) {
        struct cold_job *j = reader.first;
        reader.first = j->next;
        j->run(j);
        loop_post(reader.loop, &j->task);
    }
    reader.last = NULL;
    reader.count = 0;
}

void cold_reader_submit(struct cold_reader *r, struct cold_job *j)
{
    j->next = NULL;
    if (r->last != NULL) {
        r->last->next = j;
    } else {
        r->first = j;
    }
    r->last = j;
    r->count++;
    r->all++;
    if (r->open) reader_go();
}

void cold_reader_free(struct cold_reader *r)
{
    r->first = r->last = NULL;
}

#endif
