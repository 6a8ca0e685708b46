/* Refusing early, so that what is accepted is answered soon and memory stays flat.
 *
 *   by bytes   broker_admit, before a body is read: all bodies being read and calls being served share one budget. Large bodies
 *              leave a quarter of it to the small ones, which a few uploads that stop half way would else shut out
 *   by count   QUEUED_CALLS_MAX calls wait for an entry
 *   by time    the oldest queued call has waited admit_hold_ms: a newcomer would wait at least as long. What wins room back
 *              (acks, deletes) is let in four times as long as what takes room
 *   by store   the store is far behind the log (keeper.c)
 *   by disk    disk_guard.c */
#include "broker/broker_internal.h"

enum { SMALL_CALLS_PATIENCE = 4, RETRY_AFTER_MAX_S = 5, LARGE_BODY_BYTES = 1 << 18 };

/* 1 to 5 seconds: longer the longer the overload lasts. */
uint32_t admission_retry_after(struct broker *b)
{
    if (b->overload_since_us == 0) b->overload_since_us = b->mono_us;
    int64_t seconds = 1 + (b->mono_us - b->overload_since_us) / 1000000;
    uint32_t retry_s = seconds > RETRY_AFTER_MAX_S ? RETRY_AFTER_MAX_S : (uint32_t)seconds;
    atomic_store_explicit(&b->retry_after_s, retry_s, memory_order_relaxed);
    return retry_s;
}

static bool overloaded(struct broker *b, const struct call *c)
{
    if (b->queued.count >= QUEUED_CALLS_MAX) return true;
    if (c->grows && keeper_is_full(b)) return true;
    if (b->queued.first == NULL) return false;
    int64_t age_us = b->mono_us - b->queued.first->queued_us;
    int64_t hold_us = (int64_t)b->config.admit_hold_ms * 1000;
    return age_us > (c->grows ? hold_us : SMALL_CALLS_PATIENCE * hold_us);
}

bool admission_write_refused(struct broker *b, struct call *c)
{
    if (overloaded(b, c)) {
        c->retry_after_s = admission_retry_after(b);
        atomic_fetch_add_explicit(&b->admit_refused_total, 1, memory_order_relaxed);
        call_finish(b, c, CALL_OVERLOADED);
        return true;
    }
    if (b->overload_since_us != 0 && b->queued.count == 0) {
        b->overload_since_us = 0;
        atomic_store_explicit(&b->retry_after_s, 1, memory_order_relaxed);
    }
    if (!disk_guard_refuses(b, c)) return false;
    call_finish(b, c, CALL_STORAGE_FULL);
    return true;
}

bool broker_admit(struct broker *b, size_t bytes, uint32_t *retry_after_s)
{
    uint64_t max = b->config.admit_bytes_max;
    if (bytes > LARGE_BODY_BYTES) max -= max / 4;
    uint64_t now = atomic_load_explicit(&b->admitted_bytes, memory_order_relaxed);
    do {
        /* One body larger than the whole budget is let in when it is alone. */
        if (max != 0 && now != 0 && now + bytes > max) {
            atomic_fetch_add_explicit(&b->admit_refused_total, 1, memory_order_relaxed);
            *retry_after_s = atomic_load_explicit(&b->retry_after_s, memory_order_relaxed);
            return false;
        }
    } while (!atomic_compare_exchange_weak_explicit(&b->admitted_bytes, &now, now + bytes, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

void broker_admit_return(struct broker *b, size_t bytes)
{
    uint64_t before = atomic_fetch_sub_explicit(&b->admitted_bytes, bytes, memory_order_relaxed);
    must(before >= bytes);
}
