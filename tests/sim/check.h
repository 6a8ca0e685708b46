/* What must hold, looked at while the run goes on (check.c) and of the histories at its end (work_*.c). */
#ifndef QUEEN_TESTS_SIM_CHECK_H
#define QUEEN_TESTS_SIM_CHECK_H

#include "sim.h"

/* After every turn of a node: one leader a term. */
void check_turn(struct sim_node *n);
/* All nodes that are up have the same state at the same entry, and engines that agree with themselves. False: not at the same entry yet. */
bool check_states(void);
uint64_t check_entries(void); /* highest entry applied anywhere */

#endif
