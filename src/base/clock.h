/* The two clocks of a node. The engine never reads them: it is given times in its entries.
 *
 * clock_mono_us   microseconds since boot, counting suspend (CLOCK_BOOTTIME): never steps, comparable between processes
 *                 of one boot. Leases and delays run on it.
 * clock_wall_us   microseconds since 1970 (CLOCK_REALTIME): may step. Only for createdAt and the like.
 * clock_boot_id   a number that is the same for every process of one boot and differs between boots. */
#ifndef QUEEN_BASE_CLOCK_H
#define QUEEN_BASE_CLOCK_H

#include <stdint.h>

int64_t clock_mono_us(void);
int64_t clock_wall_us(void);
uint64_t clock_boot_id(void);

#endif
