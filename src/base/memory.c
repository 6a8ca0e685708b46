#include "base/memory.h"

#include <malloc.h>

/* There when mimalloc is linked. */
void mi_collect(bool force) __attribute__((weak));
void mi_option_set(int option, long value) __attribute__((weak));

enum { MI_OPTION_PURGE_DELAY = 15, MI_PURGE_DELAY_MS = 25 }; /* mimalloc 2.0 calls it decommit_delay; and its default */

void memory_give_back(void)
{
    if (mi_collect != NULL) {
        mi_collect(true);
    } else {
        malloc_trim(0);
    }
}

void memory_give_at_once(bool on)
{
    if (mi_option_set != NULL) mi_option_set(MI_OPTION_PURGE_DELAY, on ? 0 : MI_PURGE_DELAY_MS);
}
