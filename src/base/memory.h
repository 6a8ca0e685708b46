/* Zeroed memory for large tables that are read at random places, from huge pages where the system has them: a read then costs one
 * miss, not two. Aligned to a cache line. Out of memory stops the process. It takes memory when it is touched. Any thread.
 *
 * With it comes how the process's allocator, jemalloc, is set up (memory.c): what is free goes back to the system by itself. */
#ifndef QUEEN_BASE_MEMORY_H
#define QUEEN_BASE_MEMORY_H

#include <stddef.h>

void *memory_table_new(size_t bytes);
void memory_table_free(void *at, size_t bytes); /* NULL: nothing to do */

#endif
