#include <stdlib.h>

#include "replica/replica_inner.h"

enum { RING_CAP_MIN = 1024, MARKS_MAX = 1 << 16 };

void ring_init(struct ring *r, uint64_t first)
{
    *r = (struct ring){.first = first, .next = first};
}

static void ring_resize(struct ring *r, uint64_t cap)
{
    struct ring old = *r;
    r->slots = malloc(cap * sizeof *r->slots);
    must(r->slots != NULL);
    r->cap = cap;
    for (uint64_t i = old.first; i < old.next; i++) *ring_at(r, i) = *ring_at(&old, i);
    free(old.slots);
}

void ring_put(struct ring *r, uint64_t index, const struct slot *s)
{
    must(index >= r->first && index <= r->next);
    r->next = index;
    if (r->next - r->first == r->cap) ring_resize(r, r->cap == 0 ? RING_CAP_MIN : r->cap * 2);
    *ring_at(r, index) = *s;
    r->next++;
}

void ring_pop(struct ring *r)
{
    must(r->first < r->next);
    r->first++;
    /* What a replay needed is given back. */
    if (r->cap > RING_CAP_MIN && r->next - r->first < r->cap / 8) ring_resize(r, r->cap / 2);
}

void ring_free(struct ring *r)
{
    free(r->slots);
    *r = (struct ring){0};
}

/* ---- marks */

/* Keeps every second mark, and those where a term begins. */
static void marks_thin(struct marks *m)
{
    uint32_t kept = 1;
    for (uint32_t i = 1; i < m->count; i++) {
        bool term_begins = m->at[i].term != m->at[i - 1].term;
        if (term_begins || i % 2 == 0) m->at[kept++] = m->at[i];
    }
    m->count = kept;
    m->spacing *= 2;
}

void marks_note(struct marks *m, uint64_t index, uint64_t term, uint64_t pos)
{
    while (m->count > 0 && m->at[m->count - 1].index >= index) m->count--;
    const struct mark *last = m->count == 0 ? NULL : &m->at[m->count - 1];
    if (last != NULL && last->term == term && pos >= last->pos && pos - last->pos < m->spacing) return;
    if (m->count == m->cap && m->cap >= MARKS_MAX) marks_thin(m);
    if (m->count == m->cap) {
        m->cap = m->cap == 0 ? 64 : m->cap * 2;
        m->at = realloc(m->at, m->cap * sizeof *m->at);
        must(m->at != NULL);
    }
    m->at[m->count++] = (struct mark){.index = index, .term = term, .pos = pos};
}

const struct mark *marks_find(const struct marks *m, uint64_t index)
{
    must(m->count > 0 && m->at[0].index <= index);
    uint32_t low = 0, high = m->count; /* at[low].index <= index < at[high].index */
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (m->at[middle].index <= index) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return &m->at[low];
}

void marks_trim(struct marks *m, uint64_t index)
{
    const struct mark *first = marks_find(m, index);
    uint32_t gone = (uint32_t)(first - m->at);
    if (gone == 0) return;
    m->count -= gone;
    memmove(m->at, first, m->count * sizeof *m->at);
}

void marks_free(struct marks *m)
{
    free(m->at);
    *m = (struct marks){0};
}
