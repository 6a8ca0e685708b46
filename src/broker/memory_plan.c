#include "broker/memory_plan.h"

#include "base/limits.h"

#define KIB (1ull << 10)
#define MIB (1ull << 20)

/* Bounds of the parts of a node. Least: with less a group cannot work. Most: more is of no use. */
enum {
    BASE_MIB = 20,    /* program and libraries, tables that are always there */
    GROUP_MIB = 2,    /* of each group: threads, RocksDB without its buffers */
    THREAD_MIB = 1,   /* of each edge */
    BLOCK_MIB = 8,    /* of the log: the one being written and the next one */
    REST_MIN_MIB = 8, /* lanes, dedup, KV values, runs, timers */
};

static uint64_t between(uint64_t value, uint64_t least, uint64_t most)
{
    return value < least ? least : value > most ? most : value;
}

uint64_t memory_plan_min(uint32_t groups, uint32_t edge_threads, bool clustered)
{
    return (128u + (clustered ? 64u : 0u) + 100 * ((uint64_t)groups - 1) + 3 * ((uint64_t)edge_threads - 1)) * MIB;
}

/* ---- fixed shares --------------------------------------------------------------------------------------------------- */

static void requests_share(struct memory_plan *p, const struct memory_wish *w)
{
    uint64_t total = w->total;
    p->body_bytes_max = w->body_bytes_max != 0 ? w->body_bytes_max : between(total / 32, MIB, BODY_BYTES_MAX_DEFAULT);
    p->admit_bytes_max = w->admit_bytes_max != 0 ? w->admit_bytes_max : between(total / 24, MIB, 128 * MIB);
    uint64_t most = p->admit_bytes_max > p->body_bytes_max ? p->admit_bytes_max : p->body_bytes_max;
    p->bodies = MEMORY_BODY_COPIES * most;
    p->answers = between(total / 16, 4 * MIB, 512 * MIB);
    p->connections = total / 12;
    p->connections_max = w->connections_max;
    if (p->connections_max == 0) {
        uint64_t count = p->connections / MEMORY_CONNECTION_BYTES;
        p->connections_max = count > UINT32_MAX ? UINT32_MAX : (uint32_t)count;
    }
    p->connections = (uint64_t)p->connections_max * MEMORY_CONNECTION_BYTES;
}

static void files_share(struct memory_plan *p, const struct memory_wish *w)
{
    uint64_t total = w->total, groups = w->groups;
    p->log_cache = w->log_cache != 0 ? w->log_cache : between(total / 16, 8 * MIB * groups, 512 * MIB);
    p->log_unsynced = between(total / 32, 4 * MIB * groups, 64 * MIB * groups);
    p->log = p->log_cache + p->log_unsynced + 2 * BLOCK_MIB * MIB * groups;
    p->cold_cache = between(total / 64, MIB * groups, 32 * MIB * groups);
    p->cold_reads = between(total / 32, 2 * MIB * groups, 64 * MIB * groups);
    p->store_buffers = between(total / 32, 4 * MIB * groups, 64 * MIB * groups);
    p->store_cache = between(total / 32, 2 * MIB * groups, 512 * MIB);
    p->store = p->store_buffers + p->store_cache;
    p->peers = w->clustered ? between(total / 12, 16 * MIB, 256 * MIB) : 0;
    p->peer_backlog = p->peers / 4; /* the other half: small frames that may pass the bound, and what comes in */
    p->unstored = between(total / 32, 4 * MIB * groups, 256 * MIB);
}

/* ---- the whole ------------------------------------------------------------------------------------------------------ */

static bool does_not_fit(const struct memory_plan *p, const struct memory_wish *w, uint64_t fixed, struct buf *error)
{
    buf_printf(error, "QUEEN_MEMORY_MAX=%llu is too little for", (unsigned long long)p->total);
    if (w->log_cache != 0) buf_printf(error, " QUEEN_LOG_CACHE_BYTES=%llu,", (unsigned long long)w->log_cache);
    if (w->connections_max != 0) buf_printf(error, " QUEEN_CONNECTIONS_MAX=%u (16 KiB each),", w->connections_max);
    if (w->body_bytes_max != 0)
        buf_printf(error, " QUEEN_MAX_BODY_BYTES=%llu (three times),", (unsigned long long)w->body_bytes_max);
    if (w->admit_bytes_max != 0)
        buf_printf(error, " QUEEN_RAFT_ADMIT_MAX_MB=%llu (three times),", (unsigned long long)(w->admit_bytes_max / MIB));
    buf_printf(error, " %u group%s and what else a broker needs: at least %llu is needed", w->groups, w->groups == 1 ? "" : "s",
               (unsigned long long)(fixed + REST_MIN_MIB * MIB * w->groups));
    return false;
}

bool memory_plan_make(struct memory_plan *p, const struct memory_wish *w, struct buf *error)
{
    *p = (struct memory_plan){.total = w->total};
    uint64_t least = memory_plan_min(w->groups, w->edge_threads, w->clustered);
    if (w->total < least) {
        buf_printf(error, "QUEEN_MEMORY_MAX=%llu is too little; at least %llu is needed", (unsigned long long)w->total,
                   (unsigned long long)least);
        return false;
    }
    p->base = (BASE_MIB + GROUP_MIB * (uint64_t)w->groups + THREAD_MIB * (uint64_t)w->edge_threads) * MIB;
    p->margin = w->total / 8;
    requests_share(p, w);
    files_share(p, w);
    uint64_t fixed = p->base + p->margin + p->connections + (w->admit_off ? 0 : p->bodies) + p->answers + p->log +
                     p->cold_cache + p->cold_reads + p->store + p->peers + p->unstored;
    if (fixed + REST_MIN_MIB * MIB * w->groups > w->total) return does_not_fit(p, w, fixed, error);
    uint64_t rest = w->total - fixed;
    p->runs = between(rest / 16, 0, 32 * MIB * w->groups);
    p->timers = between(rest / 32, 0, 16 * MIB * w->groups);
    p->dedup = rest / 100 * 36;
    p->kv_values = rest / 100 * 26;
    p->lanes = rest - p->runs - p->timers - p->dedup - p->kv_values;
    if (w->admit_off) p->bodies = p->admit_bytes_max = 0;
    return true;
}

void memory_plan_group(struct memory_plan *out, const struct memory_plan *node, uint32_t groups)
{
    *out = *node;
    uint64_t *shares[] = {&out->log,       &out->cold_cache,   &out->cold_reads,    &out->store,      &out->unstored,
                          &out->runs,      &out->timers,       &out->lanes,         &out->dedup,      &out->kv_values,
                          &out->log_cache, &out->log_unsynced, &out->store_buffers, &out->store_cache};
    for (uint32_t i = 0; i < sizeof shares / sizeof shares[0]; i++) *shares[i] /= groups;
}
