/* Room on the disk: pushes are refused (CALL_STORAGE_FULL) before the log could meet a full disk; acks, pops and deletes go on, so
 * that room can be won back.
 *
 * Closed above disk_high_pct, or with less free than the reserve (5 segments, 16 to 256 MiB, at most a quarter of the file system);
 * open again below disk_low_pct with some more than the reserve. Looked at when pushes come, at most every LOOK_EVERY_US, and at once
 * when the pushes since the last look could have used up the room it found; while closed also once a second by a timer, so that freed
 * room is noticed without any traffic.
 *
 * A node that follows stores what its leader let in, so it looks as entries come. With less than half of the reserve left it takes none
 * until there is room again, and calls made to it are sent away (503): the others go on without it, and it catches up. */
#include <errno.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/logger.h"
#include "broker/broker_internal.h"

enum { LOOK_EVERY_US = 500000, CLOSED_LOOK_US = 1000000, FOLLOWER_LOOK_US = 2000000 };

static uint64_t reserve_bytes(const struct broker *b, uint64_t total)
{
    uint64_t reserve = 5 * b->config.segment_bytes;
    if (reserve < 16 << 20) reserve = 16 << 20;
    if (reserve > 256 << 20) reserve = 256 << 20;
    return reserve > total / 4 ? total / 4 : reserve;
}

static void guard_set(struct broker *b, bool full, uint64_t free_bytes, uint64_t total)
{
    if (full) loop_timer_set(b->loop, &b->guard.timer, b->mono_us + CLOSED_LOOK_US);
    if (atomic_load_explicit(&b->storage_full, memory_order_relaxed) == full) return;
    atomic_store_explicit(&b->storage_full, full, memory_order_relaxed);
    unsigned long long free_mib = free_bytes >> 20, total_mib = total >> 20;
    if (full) log_warn("disk: %llu of %llu MiB free: pushes are refused until there is room", free_mib, total_mib);
    if (!full) log_info("disk: %llu of %llu MiB free: pushes are taken again", free_mib, total_mib);
}

/* Its own calls are refused long before. */
static void follower_look(struct broker *b, uint64_t free_bytes)
{
    bool full = free_bytes < b->guard.reserve_bytes / 2;
    if (full == b->guard.exhausted || b->replica == NULL || !b->cluster.on) return;
    b->guard.exhausted = full;
    replica_full(b->replica, full);
    if (full && !b->leading) dispatch_exhausted(b);
    if (full)
        log_warn("disk: %llu MiB free: entries of the leader are not taken until there is room",
                 (unsigned long long)(free_bytes >> 20));
    else
        log_info("disk: entries of the leader are taken again");
}

void disk_guard_look(struct broker *b)
{
    struct disk_guard *g = &b->guard;
    struct statvfs v;
    g->checked_us = b->mono_us;
    if (statvfs(b->config.dir, &v) != 0) {
        log_error("disk: cannot look at %s: %s", b->config.dir, strerror(errno));
        return;
    }
    uint64_t unit = v.f_frsize, free_bytes = v.f_bavail * unit, used = (v.f_blocks - v.f_bfree) * unit,
             total = used + free_bytes;
    g->reserve_bytes = reserve_bytes(b, total);
    uint64_t used_max = total / 100 * b->config.disk_high_pct;
    uint64_t room = used_max > used ? used_max - used : 0;
    uint64_t room_reserve = free_bytes > g->reserve_bytes ? free_bytes - g->reserve_bytes : 0;
    if (room_reserve < room) room = room_reserve;
    g->room_bytes = room;
    bool full = atomic_load_explicit(&b->storage_full, memory_order_relaxed);
    if (full) {
        bool low = used < total / 100 * b->config.disk_low_pct && free_bytes > g->reserve_bytes + g->reserve_bytes / 4;
        full = !low;
    } else {
        full = room == 0;
    }
    follower_look(b, free_bytes);
    guard_set(b, full, free_bytes, total);
}

void disk_guard_bytes(struct broker *b, size_t bytes)
{
    struct disk_guard *g = &b->guard;
    g->taken_bytes += bytes;
    if (g->taken_bytes < g->reserve_bytes / 16 && b->mono_us - g->checked_us < FOLLOWER_LOOK_US) return;
    g->taken_bytes = 0;
    disk_guard_look(b);
}

void disk_guard_fire(struct loop_timer *t)
{
    struct broker *b = owner_of(t, struct broker, guard.timer);
    inbox_clock(b);
    disk_guard_look(b);
}

bool disk_guard_refuses(struct broker *b, const struct call *c)
{
    struct disk_guard *g = &b->guard;
    if (!c->grows) return false;
    if (b->mono_us - g->checked_us >= LOOK_EVERY_US || c->command.len > g->room_bytes) disk_guard_look(b);
    if (atomic_load_explicit(&b->storage_full, memory_order_relaxed) || c->command.len > g->room_bytes) return true;
    g->room_bytes -= c->command.len;
    return false;
}
