/* `queen bench step`: what its files share.
 *
 *   bench_step.c        the workload: filling, the run, the report
 *   bench_step_work.c   a worker: pop -> transaction -> pop ..., or transaction -> transaction with --next
 *   bench_step_check.c  what is looked at afterwards
 *
 * A step takes up to --batch messages of one lane of the input queue; its transaction acks each of them, pushes as many
 * outputs (256 B, under the inputs' own transactionIds) to the same lane of the output queue, puts one of --keys KV keys
 * (64 B) and a marker named by the first input (putIfAbsent, required, an hour). */
#ifndef QUEEN_CLI_BENCH_STEP_H
#define QUEEN_CLI_BENCH_STEP_H

#include "cli/bench.h"

enum {
    STEP_PARTITION_BYTES = 13,    /* "lane-00000000" */
    STEP_NEXT_FIELDS_BYTES = 768, /* the messages of a `next` begin before that: our names are short */
};

struct step_shared {
    struct bench *bench;
    struct bench out;   /* a copy whose queue is the output queue */
    struct buf pop;     /* the request */
    struct buf consume; /* the request that pops outputs; paced only */
    struct buf next;    /* `,"next":{...}`; empty: two calls a step */
    bool paced;         /* inputs come at a rate: workers wait in the pop, outputs carry the inputs' time stamps */
    _Atomic bool stopping;
    _Atomic uint32_t committing;      /* transactions under way */
    _Atomic uint64_t steps, messages; /* committed, whenever */
    _Atomic uint64_t short_steps;     /* of fewer messages than --batch */
    _Atomic uint64_t consumed;        /* outputs, paced only */
    uint64_t enough;                  /* so many messages end the measurement */
};

extern const struct load_work step_work;
extern const struct load_work step_consume_work; /* shared: struct step_shared */

/* The transaction of a popped batch, as a worker sends it: for tests. Returns the number of messages, 0 when the pop's answer
 * is not understood. */
struct step_conn;
struct step_conn *step_conn_make(const struct step_shared *s, uint32_t index);
void step_conn_free(struct step_conn *w);
uint32_t step_request_make(struct step_conn *w, const struct step_shared *s, const char *body, size_t len,
                           struct slice *request);

/* After the run, nothing under way: the outputs are as many as the committed steps', those of some lanes are exactly their
 * inputs in order, and their markers are there. */
int step_check(struct step_shared *s);

#endif
