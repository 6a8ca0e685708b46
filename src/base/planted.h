/* Bugs on purpose. PLANTED("name") marks a place where a test build can be made to do the wrong thing, to show that the simulator finds
 * it (tests/sim). In every other build it is `false` and the compiler leaves nothing of it. */
#ifndef QUEEN_BASE_PLANTED_H
#define QUEEN_BASE_PLANTED_H

#ifdef QUEEN_PLANT
#include <stdbool.h>
bool planted(const char *name); /* the simulator's: is it this one that the run asked for? */
#define PLANTED(name) planted(name)
#else
#define PLANTED(name) false
#endif

#endif
