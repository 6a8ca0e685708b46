#include <sys/mman.h>

#include "base/memory.h"
#include "base/must.h"

void *memory_table_new(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(at != MAP_FAILED);
    (void)madvise(at, bytes, MADV_HUGEPAGE); /* a wish: without huge pages it is slower */
    return at;
}

void memory_table_free(void *at, size_t bytes)
{
    if (at != NULL) must(munmap(at, bytes) == 0);
}
