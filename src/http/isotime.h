/* ISO 8601 times as clients send them: YYYY-MM-DD, then optionally THH:MM, :SS, a fraction, and Z or an offset (+HH:MM, +HHMM,
 * +HH); without one it is UTC. Pure; any thread. */
#ifndef QUEEN_HTTP_ISOTIME_H
#define QUEEN_HTTP_ISOTIME_H

#include "base/slice.h"

/* Microseconds since 1970, cut to whole milliseconds. False: not such a time, or before 1970 or after 9999. */
bool isotime_parse(struct slice text, int64_t *wall_us);

#endif
