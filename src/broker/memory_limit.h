/* How much memory this process may have: what its control group allows (version 2: memory.max of the group and of those it lies in;
 * version 1: the same of memory.limit_in_bytes), and at most what the machine has.
 *
 * `root` stands before /proc and /sys: "" but in tests. Reads a few small files; what cannot be read bounds nothing. */
#ifndef QUEEN_BROKER_MEMORY_LIMIT_H
#define QUEEN_BROKER_MEMORY_LIMIT_H

#include <stdint.h>

uint64_t memory_limit(const char *root);

#endif
