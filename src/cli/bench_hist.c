#include "cli/bench_hist.h"

#include "base/must.h"

static size_t bucket_of(uint64_t v)
{
    if (v < HIST_SUB) return (size_t)v;
    unsigned top = 63u - (unsigned)__builtin_clzll(v);
    unsigned shift = top - HIST_SUB_BITS;
    return ((size_t)shift + 1) * HIST_SUB + (size_t)((v >> shift) - HIST_SUB);
}

/* The highest value that falls into the bucket. */
static int64_t bucket_top(size_t bucket)
{
    if (bucket < HIST_SUB) return (int64_t)bucket;
    size_t shift = bucket / HIST_SUB - 1;
    uint64_t base = HIST_SUB + bucket % HIST_SUB;
    return (int64_t)(((base + 1) << shift) - 1);
}

void hist_add(struct hist *h, int64_t ns)
{
    const int64_t most = ((int64_t)1 << HIST_VALUE_BITS) - 1;
    int64_t v = ns < 0 ? 0 : ns > most ? most : ns;
    size_t bucket = bucket_of((uint64_t)v);
    must(bucket < HIST_BUCKETS);
    h->buckets[bucket]++;
    h->count++;
    h->sum_ns += (double)v;
    if (v > h->max_ns) h->max_ns = v;
}

void hist_merge(struct hist *into, const struct hist *from)
{
    for (size_t i = 0; i < HIST_BUCKETS; i++) into->buckets[i] += from->buckets[i];
    into->count += from->count;
    into->sum_ns += from->sum_ns;
    if (from->max_ns > into->max_ns) into->max_ns = from->max_ns;
}

int64_t hist_at(const struct hist *h, double share)
{
    must(share >= 0 && share <= 1);
    if (h->count == 0) return 0;
    uint64_t want = (uint64_t)(share * (double)h->count + 0.5);
    if (want < 1) want = 1;
    uint64_t seen = 0;
    for (size_t i = 0; i < HIST_BUCKETS; i++) {
        seen += h->buckets[i];
        if (seen >= want) return bucket_top(i) < h->max_ns ? bucket_top(i) : h->max_ns;
    }
    return h->max_ns;
}
