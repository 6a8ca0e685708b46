#include "base/crash_point.h"

#ifdef QUEEN_CRASH_POINTS

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void crash_point(const char *name)
{
    static atomic_long passes;
    const char *wanted = getenv("QUEEN_CRASH_AT");
    if (wanted == NULL) return;
    size_t len = strcspn(wanted, ":");
    if (strlen(name) != len || memcmp(name, wanted, len) != 0) return;
    long at = wanted[len] == ':' ? strtol(wanted + len + 1, NULL, 10) : 1;
    if (atomic_fetch_add(&passes, 1) + 1 == at) kill(getpid(), SIGKILL);
}

#else

/* ISO C wants a declaration in every file. */
typedef int crash_points_off;

#endif
