/* Memory that is free in this process goes back to the system.
 *
 * memory_give_back asks the allocator in use (mimalloc when it is linked, else the C library's) to return what the calling thread's
 * heap holds free. For moments when much was freed and nothing is in a hurry: it may take milliseconds.
 *
 * Between memory_give_at_once(true) and (false) what is freed goes back right away, in the whole process: for freeing very much in
 * steps. mimalloc otherwise keeps pages for a while and looks at them only when it has something to do near them. */
#ifndef QUEEN_BASE_MEMORY_H
#define QUEEN_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

void memory_give_back(void);
void memory_give_at_once(bool on);

/* Zeroed memory for large tables that are read at random places, from huge pages where the system has them: a read then costs one
 * miss, not two. Aligned to a cache line. Out of memory stops the process. It takes memory when it is touched. */
void *memory_table_new(size_t bytes);
void memory_table_free(void *at, size_t bytes); /* NULL: nothing to do */

#endif
