#include "engine/dedup_filter.h"

#include <stdlib.h>

#include "base/must.h"

void dedup_filter_make(struct dedup_filter *f, uint32_t blocks, uint64_t keys)
{
    enum { THIN_BITS = 11 };
    f->thin = (uint64_t)blocks * DEDUP_BLOCK_BYTES * 8 < keys * THIN_BITS;
    f->count = blocks;
    f->memory = calloc((size_t)blocks + 1, DEDUP_BLOCK_BYTES);
    must(f->memory != NULL);
    uintptr_t at = ((uintptr_t)f->memory + DEDUP_BLOCK_BYTES - 1) / DEDUP_BLOCK_BYTES * DEDUP_BLOCK_BYTES;
    f->blocks = (void *)at;
}

void dedup_filter_drop(struct dedup_filter *f)
{
    free(f->memory);
    f->memory = NULL;
    f->blocks = NULL;
}
