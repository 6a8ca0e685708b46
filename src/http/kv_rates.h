/* How many calls a tenant may make in a second: one bucket of reads and one of writes a tenant, kept in memory of this node. Off unless
 * QUEEN_KV_READ_RATE or _WRITE_RATE is set. Any thread. */
#ifndef QUEEN_HTTP_KV_RATES_H
#define QUEEN_HTTP_KV_RATES_H

#include "base/uuid.h"
#include "broker/config.h"

enum { KV_RATES_TENANTS_MAX = 10000 }; /* with buckets that are not full; above: the next one's calls are refused */

enum kv_rate { KV_RATE_READ, KV_RATE_WRITE };

struct kv_rates;
struct kv_rates *kv_rates_new(const struct config *config); /* NULL when no rate is set: then everything is admitted */
void kv_rates_free(struct kv_rates *k);

/* One call. 0: admitted; else in how many seconds to try again (429). now_us: clock_mono_us. */
uint32_t kv_rates_take(struct kv_rates *k, struct uuid tenant, enum kv_rate which, int64_t now_us);

#endif
