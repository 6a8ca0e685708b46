#include "base/memory.h"

#include <sys/mman.h>

#include "base/must.h"

/* What jemalloc reads before main. Free pages go back to the system within seconds, by a thread of its own, which sleeps when there are none;
 * few threads allocate much, so few arenas. Huge pages would make 2 MiB out of every few live bytes. */
extern const char *malloc_conf;
const char *malloc_conf = "background_thread:true,max_background_threads:1,narenas:4,dirty_decay_ms:2000,muzzy_decay_ms:0,thp:"
                          "never,metadata_thp:disabled";

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
