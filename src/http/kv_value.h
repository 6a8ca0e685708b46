/* Compact JSON: what KV stores. Pure; any thread. */
#ifndef QUEEN_HTTP_KV_VALUE_H
#define QUEEN_HTTP_KV_VALUE_H

#include "base/arena.h"
#include "base/slice.h"

/* A checked JSON value without the white space outside its strings; all else as sent. `out` is the input itself when there is none,
 * else a copy in the arena. False: it would have more than bytes_max. Needs no pad. Cost: 0.1 ns a byte without white space, 2 ns with. */
bool kv_value_compact(struct arena *arena, struct slice value, size_t bytes_max, struct slice *out);

#endif
