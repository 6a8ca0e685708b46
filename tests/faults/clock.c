/* clock.c - clocks that step and drift, wall and monotonic apart.
 *
 * QFAULT_CLOCK names a file of four native 64-bit numbers, mapped shared, so a test changes them in a running process:
 *
 *   0              8                  16                   24
 *   | wall offset ns | monotonic offset ns | wall rate ppm | monotonic rate ppm |
 *
 * A rate works on the time since the file was mapped: 1,000,000 ppm makes a clock run at double speed. The kernel's own timers (poll timeouts,
 * timed waits on condition variables) keep true time; only what the program reads is changed. A monotonic clock may be sped up or
 * pushed forward by a test, never back.
 */
#define _GNU_SOURCE
#include "faults.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct clock_shift {
    int64_t wall_offset_ns;
    int64_t monotonic_offset_ns;
    int64_t wall_rate_ppm;
    int64_t monotonic_rate_ppm;
};

static const struct clock_shift *shift;
static int64_t base_ns; /* true monotonic time when the file was mapped */
static pthread_once_t shift_once = PTHREAD_ONCE_INIT;

static int64_t true_ns(clockid_t id)
{
    struct timespec now;
    syscall(SYS_clock_gettime, id, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void shift_map(void)
{
    const char *path = getenv("QFAULT_CLOCK");
    if (!path || !*path) return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) fault_die("cannot open QFAULT_CLOCK", path);
    struct stat st;
    if (fstat(fd, &st) != 0 || st.st_size < (off_t)sizeof *shift) fault_die("QFAULT_CLOCK is too short", path);
    long at = syscall(SYS_mmap, NULL, sizeof *shift, PROT_READ, MAP_SHARED, fd, 0L);
    if (at == -1) fault_die("cannot map QFAULT_CLOCK", path);
    syscall(SYS_close, fd);
    base_ns = true_ns(CLOCK_MONOTONIC);
    shift = (const struct clock_shift *)at;
}

static int64_t drift_ns(int64_t ppm)
{
    return ppm ? (int64_t)((__int128)(true_ns(CLOCK_MONOTONIC) - base_ns) * ppm / 1000000) : 0;
}

static int64_t clock_extra_ns(clockid_t id)
{
    pthread_once(&shift_once, shift_map);
    if (!shift) return 0;
    switch (id) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
        return __atomic_load_n(&shift->wall_offset_ns, __ATOMIC_RELAXED) +
               drift_ns(__atomic_load_n(&shift->wall_rate_ppm, __ATOMIC_RELAXED));
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_MONOTONIC_RAW:
    case CLOCK_BOOTTIME:
        return __atomic_load_n(&shift->monotonic_offset_ns, __ATOMIC_RELAXED) +
               drift_ns(__atomic_load_n(&shift->monotonic_rate_ppm, __ATOMIC_RELAXED));
    default:
        return 0;
    }
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *out)
{
    long result = syscall(SYS_clock_gettime, id, out);
    if (result != 0) return (int)result;
    int64_t extra = clock_extra_ns(id);
    if (extra != 0) {
        int64_t now = (int64_t)out->tv_sec * 1000000000 + out->tv_nsec + extra;
        out->tv_sec = now / 1000000000;
        out->tv_nsec = now % 1000000000;
    }
    return 0;
}

__attribute__((visibility("default"))) int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    if (zone) memset(zone, 0, sizeof(struct timezone));
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

__attribute__((visibility("default"))) time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
