/* Fixed-size records addressed by 32-bit numbers, in chunks that never move. 0 is no record.
 *
 * slab    numbers are reused: for records whose number is private to the engine (cursors, leases)
 * table   numbers rise for ever and are never reused: for what clients see (partitions) or others remember (groups)
 *
 * A chunk whose records are all gone is freed (a slab keeps one).
 *
 * Half the size of pointers, and one cache line a record. Records start zeroed. */
#ifndef QUEEN_ENGINE_SLAB_H
#define QUEEN_ENGINE_SLAB_H

#include <stddef.h>
#include <stdint.h>

enum { SLAB_CHUNK_BITS = 9, SLAB_CHUNK = 1 << SLAB_CHUNK_BITS };

/* What is free in a chunk of a slab. */
struct slab_room {
    uint32_t newer, older; /* of the chunks with room */
    uint16_t used, fresh;  /* fresh: records that were never used begin here */
    uint16_t free_head;    /* place in the chunk + 1; 0 = none */
};

struct slab {
    char **chunks;
    struct slab_room *rooms;
    uint32_t chunk_cap, chunk_high, record_bytes, used;
    uint32_t open, absent; /* chunks with room, the next to be used first; freed ones below chunk_high. Number + 1; 0 = none */
};

void slab_init(struct slab *s, uint32_t record_bytes);
uint32_t slab_add(struct slab *s);
void slab_remove(struct slab *s, uint32_t at);
void slab_free(struct slab *s);

static inline void *slab_at(const struct slab *s, uint32_t at)
{
    return s->chunks[at >> SLAB_CHUNK_BITS] + (size_t)(at & (SLAB_CHUNK - 1)) * s->record_bytes;
}

/* The same for a number that may be of a record that is gone: NULL when its whole chunk is absent. */
static inline void *slab_find(const struct slab *s, uint32_t at)
{
    return s->chunks[at >> SLAB_CHUNK_BITS] == NULL ? NULL : slab_at(s, at);
}

struct table {
    char **chunks;
    uint16_t *live; /* records of each chunk */
    uint32_t chunk_cap, record_bytes, used;
};

void table_init(struct table *t, uint32_t record_bytes);
void *table_add(struct table *t, uint32_t number); /* number > 0, not in use */
void table_remove(struct table *t, uint32_t number);
void table_free(struct table *t);

/* The record's memory, or NULL when its whole chunk is absent. Whether the record itself is in use its own fields must say. */
static inline void *table_at(const struct table *t, uint32_t number)
{
    uint32_t chunk = number >> SLAB_CHUNK_BITS;
    if (chunk >= t->chunk_cap || t->chunks[chunk] == NULL) return NULL;
    return t->chunks[chunk] + (size_t)(number & (SLAB_CHUNK - 1)) * t->record_bytes;
}

#endif
