/* ISO 8601 times, UTC. Pure; any thread.
 *
 * Read as clients send them: YYYY-MM-DD, then optionally THH:MM, :SS, a fraction, and Z or an offset (+HH:MM, +HHMM, +HH); without one
 * it is UTC. Written: years 1970 to 9999; times outside are drawn to that range. */
#ifndef QUEEN_BASE_ISOTIME_H
#define QUEEN_BASE_ISOTIME_H

#include <stdint.h>

#include "base/slice.h"

/* Microseconds since 1970, cut to whole milliseconds. False: not such a time, or before 1970 or after 9999. */
bool isotime_parse(struct slice text, int64_t *wall_us);
bool isotime_parse_us(struct slice text, int64_t *wall_us); /* the same, cut to whole microseconds */

/* Writes YYYY-MM-DDTHH:MM:SS (ISOTIME_SECONDS_BYTES) and tells the microseconds in the second. Returns the end. */
enum { ISOTIME_SECONDS_BYTES = 19, ISOTIME_KV_BYTES_MAX = 32 };
char *isotime_seconds_put(char *p, int64_t wall_us, uint32_t *micros);

/* The spelling of KV rows: the fraction without trailing zeros, none when it is zero, and +00:00. Gives the length (at most
 * ISOTIME_KV_BYTES_MAX); no terminator. 2031-02-03T04:05:06.7+00:00 */
size_t isotime_kv(int64_t wall_us, char out[40]);

#endif
