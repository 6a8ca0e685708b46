/* A bucket is one number: the time at which it will be full again (the generic cell rate algorithm). One that is full is as good
 * as one that is not there, so a table that has filled up is emptied of those. */
#include "http/kv_rates.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/must.h"

enum { PLACES = 16384, BURST_FACTOR = 2 };
#define PURGE_EVERY_NS INT64_C(1000000000)

struct bucket_pair {
    struct uuid tenant;
    bool used;
    int64_t full_ns[2]; /* by enum kv_rate */
};

struct kv_rates {
    pthread_mutex_t lock;
    int64_t token_ns[2]; /* what one call costs; 0 = no limit */
    int64_t depth_ns[2]; /* of a full bucket */
    int64_t purged_ns;
    uint32_t count;
    struct bucket_pair places[PLACES];
};

static void limit_set(struct kv_rates *k, enum kv_rate which, uint32_t rate, uint32_t burst)
{
    if (rate == 0) return;
    if (burst == 0) burst = rate * BURST_FACTOR;
    k->token_ns[which] = 1000000000 / rate;
    k->depth_ns[which] = k->token_ns[which] * burst;
}

struct kv_rates *kv_rates_new(const struct config *config)
{
    if (config->kv_read_rate == 0 && config->kv_write_rate == 0) return NULL;
    struct kv_rates *k = calloc(1, sizeof *k);
    must(k != NULL && pthread_mutex_init(&k->lock, NULL) == 0);
    limit_set(k, KV_RATE_READ, config->kv_read_rate, config->kv_read_burst);
    limit_set(k, KV_RATE_WRITE, config->kv_write_rate, config->kv_write_burst);
    k->purged_ns = -PURGE_EVERY_NS;
    return k;
}

void kv_rates_free(struct kv_rates *k)
{
    if (k == NULL) return;
    pthread_mutex_destroy(&k->lock);
    free(k);
}

/* The tenant's place, or the empty one where it would go. There always is one: the table is larger than what it holds. */
static struct bucket_pair *place_of(struct kv_rates *k, struct uuid tenant)
{
    uint64_t at = hash64(slice_make((const char *)tenant.bytes, sizeof tenant.bytes), 0);
    for (;; at++) {
        struct bucket_pair *p = &k->places[at % PLACES];
        if (!p->used || memcmp(&p->tenant, &tenant, sizeof tenant) == 0) return p;
    }
}

/* Takes out the pairs that are full. At most once a second: it walks the table. */
static void purge(struct kv_rates *k, int64_t now_ns)
{
    if (now_ns - k->purged_ns < PURGE_EVERY_NS) return;
    k->purged_ns = now_ns;
    struct bucket_pair *kept = malloc(k->count * sizeof *kept);
    must(kept != NULL);
    uint32_t count = 0;
    for (uint32_t i = 0; i < PLACES; i++) {
        struct bucket_pair *p = &k->places[i];
        if (p->used && (p->full_ns[0] > now_ns || p->full_ns[1] > now_ns)) kept[count++] = *p;
        p->used = false;
    }
    for (uint32_t i = 0; i < count; i++) *place_of(k, kept[i].tenant) = kept[i];
    k->count = count;
    free(kept);
}

/* Under the lock. How long until the call may be made; 0: now, and it is counted. */
static int64_t take_ns(struct kv_rates *k, struct uuid tenant, enum kv_rate which, int64_t now_ns)
{
    struct bucket_pair *p = place_of(k, tenant);
    if (!p->used) {
        if (k->count == KV_RATES_TENANTS_MAX) purge(k, now_ns);
        if (k->count == KV_RATES_TENANTS_MAX) return 1;
        p = place_of(k, tenant);
        *p = (struct bucket_pair){.tenant = tenant, .used = true};
        k->count++;
    }
    int64_t full_ns = (p->full_ns[which] > now_ns ? p->full_ns[which] : now_ns) + k->token_ns[which];
    int64_t early_ns = full_ns - now_ns - k->depth_ns[which];
    if (early_ns > 0) return early_ns;
    p->full_ns[which] = full_ns;
    return 0;
}

uint32_t kv_rates_take(struct kv_rates *k, struct uuid tenant, enum kv_rate which, int64_t now_us)
{
    if (k == NULL || k->token_ns[which] == 0) return 0;
    pthread_mutex_lock(&k->lock);
    int64_t wait_ns = take_ns(k, tenant, which, now_us * 1000);
    pthread_mutex_unlock(&k->lock);
    return (uint32_t)((wait_ns + 999999999) / 1000000000);
}
