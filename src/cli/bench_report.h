/* The result of one run: named figures in order, printed as a short table or as one JSON line.
 * Not thread-safe. Names are literals that outlive the report; texts are copied. */
#ifndef QUEEN_CLI_BENCH_REPORT_H
#define QUEEN_CLI_BENCH_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/bench_hist.h"
#include "cli/bench_proc.h"

enum {
    REPORT_FIELDS_MAX = 64,
    REPORT_TEXT_MAX = 96,
};

struct report {
    uint32_t count;
    struct report_field {
        const char *name;
        bool quoted;
        char text[REPORT_TEXT_MAX];
    } fields[REPORT_FIELDS_MAX];
};

void report_text(struct report *r, const char *name, const char *text);
void report_number(struct report *r, const char *name, double value, int decimals);
void report_count(struct report *r, const char *name, uint64_t value);

/* p50 p90 p99 p99.9 max in milliseconds, under names that begin with `prefix` (a literal of the list in the source). */
void report_latency(struct report *r, const struct hist *h);
void report_second(struct report *r, const struct hist *h);

/* CPU of broker, client and everything else between two samples, and the broker's memory at the second one. `requests`
 * and `messages` divide the broker's CPU; 0 leaves that figure out. */
void report_cost(struct report *r, const struct proc_sample *from, const struct proc_sample *to, uint64_t requests,
                 uint64_t messages);

void report_print(const struct report *r, bool json);

#endif
