#include "engine/dedup_filter.h"

#include "base/memory.h"

void dedup_filter_make(struct dedup_filter *f, uint32_t blocks, uint64_t keys)
{
    enum { THIN_BITS = 11 };
    f->thin = (uint64_t)blocks * DEDUP_BLOCK_BYTES * 8 < keys * THIN_BITS;
    f->count = blocks;
    f->blocks = memory_table_new((size_t)blocks * DEDUP_BLOCK_BYTES);
}

void dedup_filter_drop(struct dedup_filter *f)
{
    if (f->blocks != NULL) memory_table_free(f->blocks, (size_t)f->count * DEDUP_BLOCK_BYTES);
    f->blocks = NULL;
}
