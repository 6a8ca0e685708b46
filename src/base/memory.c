#include "base/memory.h"

#include <malloc.h>
#include <stdbool.h>
#include <stddef.h>

void mi_collect(bool force) __attribute__((weak)); /* there when mimalloc is linked */

void memory_give_back(void)
{
    if (mi_collect != NULL) {
        mi_collect(true);
    } else {
        malloc_trim(0);
    }
}
