#include "engine/slab.h"

#include <stdlib.h>
#include <string.h>

#include "base/must.h"

void slab_init(struct slab *s, uint32_t record_bytes)
{
    must(record_bytes >= sizeof(uint32_t));
    *s = (struct slab){.record_bytes = record_bytes, .high = 1};
}

static void *grown(void *array, uint32_t old_count, uint32_t new_count, size_t size)
{
    char *at = realloc(array, new_count * size);
    must(at != NULL);
    memset(at + old_count * size, 0, (new_count - old_count) * size);
    return at;
}

static char *chunk_new(uint32_t record_bytes)
{
    char *chunk = calloc(SLAB_CHUNK, record_bytes);
    must(chunk != NULL);
    return chunk;
}

uint32_t slab_add(struct slab *s)
{
    uint32_t at = s->free_head;
    s->used++;
    if (at != 0) {
        void *record = slab_at(s, at);
        memcpy(&s->free_head, record, sizeof s->free_head);
        memset(record, 0, s->record_bytes);
        return at;
    }
    at = s->high++;
    must(at != 0);
    uint32_t chunk = at >> SLAB_CHUNK_BITS;
    if (chunk >= s->chunk_cap) {
        uint32_t cap = s->chunk_cap == 0 ? 16 : s->chunk_cap * 2;
        s->chunks = grown(s->chunks, s->chunk_cap, cap, sizeof s->chunks[0]);
        s->chunk_cap = cap;
    }
    if (s->chunks[chunk] == NULL) s->chunks[chunk] = chunk_new(s->record_bytes);
    return at;
}

void slab_remove(struct slab *s, uint32_t at)
{
    must(at != 0 && at < s->high && s->used > 0);
    memcpy(slab_at(s, at), &s->free_head, sizeof s->free_head);
    s->free_head = at;
    s->used--;
}

void slab_free(struct slab *s)
{
    for (uint32_t i = 0; i < s->chunk_cap; i++) free(s->chunks[i]);
    free(s->chunks);
    slab_init(s, s->record_bytes);
}

void table_init(struct table *t, uint32_t record_bytes)
{
    *t = (struct table){.record_bytes = record_bytes};
}

void *table_add(struct table *t, uint32_t number)
{
    must(number != 0);
    uint32_t chunk = number >> SLAB_CHUNK_BITS;
    if (chunk >= t->chunk_cap) {
        uint32_t cap = t->chunk_cap == 0 ? 16 : t->chunk_cap;
        while (cap <= chunk) cap *= 2;
        t->chunks = grown(t->chunks, t->chunk_cap, cap, sizeof t->chunks[0]);
        t->live = grown(t->live, t->chunk_cap, cap, sizeof t->live[0]);
        t->chunk_cap = cap;
    }
    if (t->chunks[chunk] == NULL) t->chunks[chunk] = chunk_new(t->record_bytes);
    t->live[chunk]++;
    t->used++;
    return table_at(t, number);
}

void table_remove(struct table *t, uint32_t number)
{
    uint32_t chunk = number >> SLAB_CHUNK_BITS;
    void *record = table_at(t, number);
    must(record != NULL && t->live[chunk] > 0);
    memset(record, 0, t->record_bytes);
    t->used--;
    if (--t->live[chunk] == 0) {
        free(t->chunks[chunk]);
        t->chunks[chunk] = NULL;
    }
}

void table_free(struct table *t)
{
    for (uint32_t i = 0; i < t->chunk_cap; i++) free(t->chunks[i]);
    free(t->chunks);
    free(t->live);
    table_init(t, t->record_bytes);
}
