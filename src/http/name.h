/* Names from outside: checks, comparison, percent-decoding. Pure; any thread. */
#ifndef QUEEN_HTTP_NAME_H
#define QUEEN_HTTP_NAME_H

#include "base/arena.h"
#include "base/slice.h"

bool name_has_control(struct slice s);                        /* a byte below 0x20 */
bool name_equals_caseless(struct slice s, const char *lower); /* ASCII case only */

/* tenant (36) + queue + the longer of partition and group fit the store's budget (NAMES_BYTES_MAX). */
bool name_fits(struct slice queue, struct slice partition, struct slice group);

/* Percent-decodes into the arena (the input itself when nothing is encoded). `plus`: + is a space (query strings). False: a bad
 * escape, or bytes that are not UTF-8. */
bool name_decode(struct slice raw, bool plus, struct arena *arena, struct slice *out);

#endif
