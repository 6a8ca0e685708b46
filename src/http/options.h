/* Queue options as the wire knows them: names, kinds, ranges, and the echo of all of them. */
#ifndef QUEEN_HTTP_OPTIONS_H
#define QUEEN_HTTP_OPTIONS_H

#include "base/buf.h"
#include "engine/command.h"

struct option_rule {
    const char *name;
    bool is_bool;
    int32_t low, high;  /* numbers: the range */
    bool clamps;        /* outside: clamped, else refused */
    int32_t zero_means; /* how a stored 0 (of a queue nobody configured) reads */
};
extern const struct option_rule option_rules[OPTION_COUNT];

int options_find(struct slice key); /* enum queue_option, or -1 */
bool options_sink_name_ok(struct slice name);

/* The object of 20 keys that answers carry (maxSize twice, as maxQueueSize too; without namespace and task). */
void options_render(struct buf *out, const struct queue_options *o);

#endif
