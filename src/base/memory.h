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

void memory_give_back(void);
void memory_give_at_once(bool on);

#endif
