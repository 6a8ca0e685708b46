#include "base/clock.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"

static int64_t clock_read_us(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t clock_mono_us(void)
{
    return clock_read_us(CLOCK_BOOTTIME);
}

int64_t clock_wall_us(void)
{
    return clock_read_us(CLOCK_REALTIME);
}

uint64_t clock_boot_id(void)
{
    char text[64];
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t n = read(fd, text, sizeof text);
    close(fd);
    return n <= 0 ? 0 : hash64(slice_make(text, (size_t)n), 0);
}
