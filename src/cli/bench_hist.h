/* A histogram of times with logarithmic buckets: 128 to a power of two, so a value is kept within 0.8 %.
 *
 * Values are nanoseconds, 0 up to about 18 minutes (longer ones count as that). Fixed size (33 KiB), no allocation.
 * Adding is a few instructions. Not thread-safe: one a thread, merged at the end. */
#ifndef QUEEN_CLI_BENCH_HIST_H
#define QUEEN_CLI_BENCH_HIST_H

#include <stddef.h>
#include <stdint.h>

enum {
    HIST_SUB_BITS = 7,
    HIST_SUB = 1 << HIST_SUB_BITS,
    HIST_VALUE_BITS = 40,
    HIST_BUCKETS = (HIST_VALUE_BITS - HIST_SUB_BITS + 1) * HIST_SUB,
};

struct hist {
    uint64_t count;
    int64_t max_ns;
    double sum_ns;
    uint64_t buckets[HIST_BUCKETS];
};

void hist_add(struct hist *h, int64_t ns);
void hist_merge(struct hist *into, const struct hist *from);

/* The value at or below which `share` (0 to 1) of the values lie; 0 when there are none. Cost: one walk. */
int64_t hist_at(const struct hist *h, double share);

#endif
