/* stats.c - counters in QFAULT_STATE/stats: STAT_COUNT little-endian 64-bit numbers in the order of enum stat_kind. */
#define _GNU_SOURCE
#include "faults.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint64_t *counters;
static pthread_once_t counters_once = PTHREAD_ONCE_INIT;

static void counters_map(void)
{
    char path[FAULT_PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/stats", fault_settings()->state);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0 || syscall(SYS_ftruncate, fd, (long)(STAT_COUNT * sizeof(uint64_t))) != 0) fault_die("cannot make", path);
    long at = syscall(SYS_mmap, NULL, STAT_COUNT * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0L);
    if (at == -1) fault_die("cannot map", path);
    counters = (uint64_t *)at;
    syscall(SYS_close, fd);
}

void stat_add(enum stat_kind kind, uint64_t n)
{
    if (!fault_settings()->tracking) return;
    pthread_once(&counters_once, counters_map);
    __atomic_fetch_add(&counters[kind], n, __ATOMIC_RELAXED);
}
