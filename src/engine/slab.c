#include "engine/slab.h"

#include <stdlib.h>
#include <string.h>

#include "base/must.h"

void slab_init(struct slab *s, uint32_t record_bytes)
{
    must(record_bytes >= sizeof(uint32_t));
    *s = (struct slab){.record_bytes = record_bytes};
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

static void open_put(struct slab *s, uint32_t chunk)
{
    s->rooms[chunk].older = s->open;
    s->rooms[chunk].newer = 0;
    if (s->open != 0) s->rooms[s->open - 1].newer = chunk + 1;
    s->open = chunk + 1;
}

static void open_take(struct slab *s, uint32_t chunk)
{
    const struct slab_room *r = &s->rooms[chunk];
    *(r->newer != 0 ? &s->rooms[r->newer - 1].older : &s->open) = r->older;
    if (r->older != 0) s->rooms[r->older - 1].newer = r->newer;
}

static void chunk_open(struct slab *s)
{
    uint32_t chunk;
    if (s->absent != 0) {
        chunk = s->absent - 1;
        s->absent = s->rooms[chunk].older;
    } else {
        chunk = s->chunk_high++;
        must(chunk < UINT32_MAX >> SLAB_CHUNK_BITS);
        if (chunk >= s->chunk_cap) {
            uint32_t cap = s->chunk_cap == 0 ? 16 : s->chunk_cap * 2;
            s->chunks = grown(s->chunks, s->chunk_cap, cap, sizeof s->chunks[0]);
            s->rooms = grown(s->rooms, s->chunk_cap, cap, sizeof s->rooms[0]);
            s->chunk_cap = cap;
        }
    }
    s->chunks[chunk] = chunk_new(s->record_bytes);
    s->rooms[chunk] = (struct slab_room){.fresh = chunk == 0}; /* 0 is no record */
    open_put(s, chunk);
}

uint32_t slab_add(struct slab *s)
{
    if (s->open == 0) chunk_open(s);
    uint32_t chunk = s->open - 1, place;
    struct slab_room *r = &s->rooms[chunk];
    if (r->free_head != 0) {
        place = r->free_head - 1U;
        void *record = s->chunks[chunk] + (size_t)place * s->record_bytes;
        memcpy(&r->free_head, record, sizeof r->free_head);
        memset(record, 0, s->record_bytes);
    } else {
        place = r->fresh++;
    }
    r->used++;
    s->used++;
    if (r->free_head == 0 && r->fresh == SLAB_CHUNK) open_take(s, chunk);
    return chunk << SLAB_CHUNK_BITS | place;
}

void slab_remove(struct slab *s, uint32_t at)
{
    uint32_t chunk = at >> SLAB_CHUNK_BITS;
    must(at != 0 && chunk < s->chunk_high && s->chunks[chunk] != NULL && s->used > 0);
    struct slab_room *r = &s->rooms[chunk];
    if (r->free_head == 0 && r->fresh == SLAB_CHUNK) open_put(s, chunk);
    memcpy(slab_at(s, at), &r->free_head, sizeof r->free_head);
    r->free_head = (uint16_t)((at & (SLAB_CHUNK - 1)) + 1);
    s->used--;
    /* One stays, so that a record that comes and goes alone costs no chunk each time. */
    if (--r->used > 0 || (r->newer == 0 && r->older == 0)) return;
    open_take(s, chunk);
    free(s->chunks[chunk]);
    s->chunks[chunk] = NULL;
    r->older = s->absent;
    s->absent = chunk + 1;
}

void slab_free(struct slab *s)
{
    for (uint32_t i = 0; i < s->chunk_cap; i++) free(s->chunks[i]);
    free(s->chunks);
    free(s->rooms);
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
