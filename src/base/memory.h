/* Memory that is free in this process goes back to the system.
 *
 * memory_give_back asks the allocator in use (mimalloc when it is linked, else the C library's) to return what the calling thread's
 * heap holds free. For moments when much was freed and nothing is in a hurry: it may take milliseconds. */
#ifndef QUEEN_BASE_MEMORY_H
#define QUEEN_BASE_MEMORY_H

void memory_give_back(void);

#endif
