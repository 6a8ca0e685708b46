#include "engine/dedup_table.h"

#include <stdlib.h>
#include <string.h>

#include "base/must.h"

enum {
    SHARD_SLOTS = 16, /* at first */
    SWEEPS = 8,       /* in the time that ids are kept */
};

static struct dedup_shard *shard_of(const struct dedup_table *t, uint64_t low)
{
    return (struct dedup_shard *)(uintptr_t)&t->shards[low >> 56];
}

/* Capacities are any number, so that a table can grow by half: the place is the hash's lower half scaled to it. */
static uint32_t home_of(const struct dedup_shard *s, uint64_t low)
{
    return (uint32_t)((low & 0xffffffffU) * s->cap >> 32);
}

static uint32_t place_after(const struct dedup_shard *s, uint32_t i)
{
    return i + 1 == s->cap ? 0 : i + 1;
}

/* How far place i is behind a slot's home. */
static uint32_t place_distance(const struct dedup_shard *s, uint32_t home, uint32_t i)
{
    return i >= home ? i - home : i + s->cap - home;
}

static void shard_resize(struct dedup_shard *s, uint32_t cap)
{
    struct dedup_shard other = {.cap = cap, .count = s->count};
    must(other.count < cap);
    other.slots = calloc(cap, sizeof other.slots[0]);
    must(other.slots != NULL);
    for (uint32_t i = 0; i < s->cap; i++) {
        if (s->slots[i].words[0] == 0) continue;
        uint32_t at = home_of(&other, s->slots[i].words[0]);
        while (other.slots[at].words[0] != 0) at = place_after(&other, at);
        other.slots[at] = s->slots[i];
    }
    free(s->slots);
    *s = other;
}

/* One that a burst made large and that time has emptied. */
static void shard_fit(struct dedup_shard *s)
{
    if (s->cap > SHARD_SLOTS && s->count < s->cap / 8) shard_resize(s, s->count * 2 + SHARD_SLOTS);
}

/* The key's slot, or the empty one where it belongs. NULL in a shard that was never used. */
static struct dedup_record *slot_find(const struct dedup_table *t, struct dedup_key k)
{
    struct dedup_shard *s = shard_of(t, k.low);
    if (s->cap == 0) return NULL;
    for (uint32_t i = home_of(s, k.low);; i = place_after(s, i)) {
        if (s->slots[i].words[0] == 0 || dedup_record_is(&s->slots[i], k)) return &s->slots[i];
    }
}

void dedup_table_prefetch(const struct dedup_table *t, struct dedup_key k)
{
    const struct dedup_shard *s = shard_of(t, k.low);
    if (s->cap != 0) __builtin_prefetch(&s->slots[home_of(s, k.low)], 1);
}

static uint32_t list_new(struct dedup_table *t)
{
    if (t->list_free != 0) {
        uint32_t at = t->list_free;
        t->list_free = t->lists[at].next_free;
        t->lists[at] = (struct dedup_list){0};
        return at;
    }
    if (t->list_count + 1 >= t->list_cap) {
        t->list_cap = t->list_cap == 0 ? 16 : t->list_cap * 2;
        t->lists = realloc(t->lists, t->list_cap * sizeof t->lists[0]);
        must(t->lists != NULL);
    }
    uint32_t at = ++t->list_count; /* number 0 is not used */
    t->lists[at] = (struct dedup_list){0};
    return at;
}

static void list_drop(struct dedup_table *t, uint32_t at)
{
    t->pairs_bytes -= t->lists[at].cap * 2 * sizeof(uint64_t);
    free(t->lists[at].pairs);
    t->lists[at] = (struct dedup_list){.next_free = t->list_free};
    t->list_free = at;
}

static void list_append(struct dedup_table *t, struct dedup_list *l, uint64_t offset, uint64_t time)
{
    if (l->start + l->count == l->cap && l->start > l->cap / 2) {
        memmove(l->pairs, l->pairs + 2 * (size_t)l->start, l->count * 2 * sizeof l->pairs[0]);
        l->start = 0;
    }
    if (l->start + l->count == l->cap) {
        uint32_t cap = l->cap == 0 ? 4 : l->cap * 2;
        t->pairs_bytes += (cap - l->cap) * 2 * sizeof l->pairs[0];
        l->cap = cap;
        l->pairs = realloc(l->pairs, l->cap * 2 * sizeof l->pairs[0]);
        must(l->pairs != NULL);
    }
    uint64_t *pair = l->pairs + 2 * (size_t)(l->start + l->count++);
    pair[0] = offset;
    pair[1] = time;
}

void dedup_table_put(struct dedup_table *t, const struct dedup_record *r)
{
    struct dedup_key k = dedup_record_key(r);
    struct dedup_shard *shard = shard_of(t, k.low);
    if ((uint64_t)(shard->count + 1) * 8 > (uint64_t)shard->cap * 7)
        shard_resize(shard, shard->cap == 0 ? SHARD_SLOTS : shard->cap + shard->cap / 2);
    struct dedup_record *s = slot_find(t, k);
    t->ids++;
    if (s->words[0] == 0) {
        *s = *r;
        shard->count++;
        return;
    }
    if (dedup_time_class(dedup_record_time(s)) != DEDUP_CLASS_LIST) {
        if (dedup_time_ms(dedup_record_time(s)) + dedup_keep_ms(t->class) < dedup_time_ms(dedup_record_time(r))) {
            *s = *r; /* the one before is past */
            t->ids--;
            return;
        }
        uint32_t at = list_new(t);
        list_append(t, &t->lists[at], dedup_record_offset(s), dedup_record_time(s));
        *s = dedup_record_make(k, at, dedup_time_word(DEDUP_CLASS_LIST, 0));
    }
    list_append(t, &t->lists[dedup_record_offset(s)], dedup_record_offset(r), dedup_record_time(r));
}

const struct dedup_list *dedup_table_list(const struct dedup_table *t, const struct dedup_record *slot)
{
    if (dedup_time_class(dedup_record_time(slot)) != DEDUP_CLASS_LIST) return NULL;
    return &t->lists[dedup_record_offset(slot)];
}

/* First pair at or after `from`, not older than oldest_ms: both rise together. */
static uint32_t list_place(const struct dedup_list *l, uint64_t from, int64_t oldest_ms)
{
    uint32_t low = l->start, high = l->start + l->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const uint64_t *pair = l->pairs + 2 * (size_t)middle;
        if ((pair[0] & DEDUP_OFFSET_MASK) < from || dedup_time_ms(pair[1]) < oldest_ms) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

uint32_t dedup_list_kept(const struct dedup_list *l, int64_t oldest_ms)
{
    return list_place(l, 0, oldest_ms) - l->start;
}

bool dedup_table_find(const struct dedup_table *t, struct dedup_key k, const struct dedup_wish *w, struct dedup_hit *out)
{
    const struct dedup_record *s = slot_find(t, k);
    if (s == NULL || s->words[0] == 0) return false;
    int64_t oldest_ms = dedup_wish_oldest_ms(w, t->class);
    const struct dedup_list *l = dedup_table_list(t, s);
    if (l == NULL) return dedup_pair_fits(dedup_record_offset(s), dedup_record_time(s), w, oldest_ms, out);
    uint32_t at = list_place(l, w->from, oldest_ms);
    if (at == l->start + l->count) return false;
    return dedup_pair_fits(l->pairs[2 * (size_t)at], l->pairs[2 * (size_t)at + 1], w, oldest_ms, out);
}

bool dedup_table_has(const struct dedup_table *t, struct dedup_key k)
{
    const struct dedup_record *s = slot_find(t, k);
    return s != NULL && s->words[0] != 0;
}

static void slot_remove(struct dedup_shard *s, uint32_t i)
{
    for (uint32_t j = place_after(s, i); s->slots[j].words[0] != 0; j = place_after(s, j)) {
        uint32_t home = home_of(s, s->slots[j].words[0]);
        if (place_distance(s, home, j) < place_distance(s, i, j)) continue;
        s->slots[i] = s->slots[j];
        i = j;
    }
    s->slots[i] = (struct dedup_record){0};
    s->count--;
}

static bool slot_sweep(struct dedup_table *t, struct dedup_shard *s, uint32_t i, int64_t oldest_ms)
{
    struct dedup_record *slot = &s->slots[i];
    if (slot->words[0] == 0) return false;
    if (dedup_time_class(dedup_record_time(slot)) == DEDUP_CLASS_LIST) {
        uint32_t at = (uint32_t)dedup_record_offset(slot);
        struct dedup_list *l = &t->lists[at];
        uint32_t past = dedup_list_kept(l, oldest_ms);
        l->start += past;
        l->count -= past;
        t->ids -= past;
        if (l->count > 0) return false;
        list_drop(t, at);
    } else {
        if (dedup_time_ms(dedup_record_time(slot)) >= oldest_ms) return false;
        t->ids--;
    }
    slot_remove(s, i);
    return true;
}

/* The first of the slots [from, to) that may have something to drop; `to`: none. */
static uint32_t sweep_skip(const struct dedup_shard *s, uint32_t from, uint32_t to, int64_t oldest_ms)
{
    for (; from < to; from++) {
        uint64_t time = dedup_record_time(&s->slots[from]);
        if (s->slots[from].words[0] == 0) continue;
        if (dedup_time_class(time) == DEDUP_CLASS_LIST || dedup_time_ms(time) < oldest_ms) break;
    }
    return from;
}

bool dedup_table_sweep(struct dedup_table *t, uint32_t slots, int64_t now_ms)
{
    if (t->swept_ms == 0) t->swept_ms = now_ms;
    if (!t->sweeping && now_ms - t->swept_ms < dedup_keep_ms(t->class) / SWEEPS) return false;
    if (!t->sweeping) t->swept_ms = now_ms;
    t->sweeping = true;
    int64_t oldest_ms = now_ms - dedup_keep_ms(t->class);
    for (uint32_t n = 0; n < slots; n++) {
        struct dedup_shard *s = &t->shards[t->sweep_shard];
        uint32_t left = t->sweep_slot < s->cap ? s->cap - t->sweep_slot : 0, more = slots - n;
        uint32_t at = sweep_skip(s, t->sweep_slot, t->sweep_slot + (left < more ? left : more), oldest_ms);
        n += at - t->sweep_slot;
        t->sweep_slot = at;
        if (n == slots) return true;
        if (t->sweep_slot >= s->cap) {
            shard_fit(s);
            t->sweep_slot = 0;
            t->sweep_shard = (t->sweep_shard + 1) % DEDUP_SHARDS;
            if (t->sweep_shard == 0) {
                t->sweeping = false;
                return false;
            }
        } else if (!slot_sweep(t, s, t->sweep_slot, oldest_ms)) {
            t->sweep_slot++; /* after a removal another may have moved here */
        }
    }
    return true;
}

void dedup_table_each(const struct dedup_table *t, int64_t now_ms, void (*each)(void *ctx, const struct dedup_record *r),
                      void *ctx)
{
    int64_t oldest_ms = now_ms - dedup_keep_ms(t->class);
    for (int n = 0; n < DEDUP_SHARDS; n++) {
        const struct dedup_shard *s = &t->shards[n];
        for (uint32_t i = 0; i < s->cap; i++) {
            const struct dedup_record *slot = &s->slots[i];
            if (slot->words[0] == 0) continue;
            const struct dedup_list *l = dedup_table_list(t, slot);
            if (l == NULL && dedup_time_ms(dedup_record_time(slot)) >= oldest_ms) each(ctx, slot);
            for (uint32_t j = l == NULL ? 0 : dedup_list_kept(l, oldest_ms); l != NULL && j < l->count; j++) {
                const uint64_t *pair = l->pairs + 2 * (size_t)(l->start + j);
                struct dedup_record r = dedup_record_make(dedup_record_key(slot), pair[0], pair[1]);
                each(ctx, &r);
            }
        }
    }
}

uint64_t dedup_table_memory(const struct dedup_table *t)
{
    uint64_t bytes = sizeof *t + t->pairs_bytes + t->list_cap * sizeof(struct dedup_list);
    for (int n = 0; n < DEDUP_SHARDS; n++) bytes += (uint64_t)t->shards[n].cap * sizeof(struct dedup_record);
    return bytes;
}

bool dedup_table_shrink(struct dedup_table *t)
{
    for (; t->shrink_shard < DEDUP_SHARDS; t->shrink_shard++) {
        struct dedup_shard *s = &t->shards[t->shrink_shard];
        if (s->slots == NULL) continue;
        free(s->slots);
        *s = (struct dedup_shard){0};
        return true;
    }
    enum { LISTS_A_CALL = 256 };
    if (t->list_count == 0) return false;
    for (int n = 0; n < LISTS_A_CALL && t->list_count > 0; n++) list_drop(t, t->list_count--);
    if (t->list_count == 0) dedup_table_free(t);
    return true;
}

void dedup_table_free(struct dedup_table *t)
{
    for (int n = 0; n < DEDUP_SHARDS; n++) free(t->shards[n].slots);
    for (uint32_t i = 1; i <= t->list_count && t->lists != NULL; i++) free(t->lists[i].pairs);
    free(t->lists);
    *t = (struct dedup_table){.class = t->class};
}
