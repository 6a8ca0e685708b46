#include "engine/dedup.h"

#include <stdlib.h>
#include <string.h>

#include "base/must.h"

#define MS_BITS 42
#define MS_MASK ((UINT64_C(1) << MS_BITS) - 1)
#define OWN_ID (UINT64_C(1) << 47) /* in an offset field: the message has an id of its own */
#define OFFSET_MASK (OWN_ID - 1)
#define CLASS_LIST 63U /* the slot's offset field is a list number */

struct dedup_list {
    uint64_t *pairs; /* offset field, class << 42 | ms; ascending */
    uint32_t start, count, cap, next_free;
};

struct dedup_key dedup_key(uint64_t seed, uint32_t partition, struct slice id)
{
    struct hash128 h = hash128(id, seed + partition * UINT64_C(0x9e3779b97f4a7c15));
    return (struct dedup_key){.low = h.low == 0 ? 1 : h.low, .high = (uint32_t)(h.high >> 32)};
}

uint8_t dedup_class(int64_t keep_ms)
{
    uint8_t class = 0;
    while (class < DEDUP_CLASS_MAX && dedup_keep_ms(class) < keep_ms) class ++;
    return class;
}

static uint64_t time_word(uint8_t class, int64_t ms)
{
    return (uint64_t) class << MS_BITS | ((uint64_t)ms & MS_MASK);
}

static struct dedup_slot slot_make(struct dedup_key k, uint64_t offset, uint64_t time)
{
    must(offset >> 48 == 0);
    return (struct dedup_slot){{k.low, (uint64_t)k.high << 32 | (offset & 0xffffffffU), offset >> 32 << 48 | time}};
}

static uint64_t slot_offset(const struct dedup_slot *s)
{
    return s->words[2] >> 48 << 32 | (s->words[1] & 0xffffffffU);
}

static uint64_t slot_time(const struct dedup_slot *s)
{
    return s->words[2] & ((UINT64_C(1) << 48) - 1);
}

static uint8_t time_class(uint64_t time)
{
    return (uint8_t)(time >> MS_BITS);
}

static int64_t time_ms(uint64_t time)
{
    return (int64_t)(time & MS_MASK);
}

static bool time_kept(uint64_t time, int64_t now_ms)
{
    return time_ms(time) + dedup_keep_ms(time_class(time)) >= now_ms;
}

static bool slot_is(const struct dedup_slot *s, struct dedup_key k)
{
    return s->words[0] == k.low && s->words[1] >> 32 == k.high;
}

static struct dedup_shard *shard_of(const struct dedup *d, uint64_t low)
{
    return (struct dedup_shard *)(uintptr_t)&d->shards[low >> 56];
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

static void shard_grow(struct dedup_shard *s)
{
    struct dedup_shard bigger = {.cap = s->cap == 0 ? 16 : s->cap + s->cap / 2, .count = s->count};
    bigger.slots = calloc(bigger.cap, sizeof bigger.slots[0]);
    must(bigger.slots != NULL);
    for (uint32_t i = 0; i < s->cap; i++) {
        if (s->slots[i].words[0] == 0) continue;
        uint32_t at = home_of(&bigger, s->slots[i].words[0]);
        while (bigger.slots[at].words[0] != 0) at = place_after(&bigger, at);
        bigger.slots[at] = s->slots[i];
    }
    free(s->slots);
    *s = bigger;
}

/* The key's slot, or the empty one where it belongs. NULL in a shard that was never used. */
static struct dedup_slot *slot_find(const struct dedup *d, struct dedup_key k)
{
    struct dedup_shard *s = shard_of(d, k.low);
    if (s->cap == 0) return NULL;
    for (uint32_t i = home_of(s, k.low);; i = place_after(s, i)) {
        if (s->slots[i].words[0] == 0 || slot_is(&s->slots[i], k)) return &s->slots[i];
    }
}

void dedup_prefetch(const struct dedup *d, struct dedup_key k)
{
    const struct dedup_shard *s = shard_of(d, k.low);
    if (s->cap != 0) __builtin_prefetch(&s->slots[home_of(s, k.low)], 1);
}

static uint32_t list_new(struct dedup *d)
{
    if (d->list_free != 0) {
        uint32_t at = d->list_free;
        d->list_free = d->lists[at].next_free;
        d->lists[at] = (struct dedup_list){0};
        return at;
    }
    if (d->list_count + 1 >= d->list_cap) {
        d->list_cap = d->list_cap == 0 ? 16 : d->list_cap * 2;
        d->lists = realloc(d->lists, d->list_cap * sizeof d->lists[0]);
        must(d->lists != NULL);
    }
    uint32_t at = ++d->list_count; /* number 0 is not used */
    d->lists[at] = (struct dedup_list){0};
    return at;
}

static void list_drop(struct dedup *d, uint32_t at)
{
    free(d->lists[at].pairs);
    d->lists[at] = (struct dedup_list){.next_free = d->list_free};
    d->list_free = at;
}

/* A later occurrence is kept at least as long as the one before it, where that one is still kept: times and expiries rise together, so
 * that a binary search may use both. One that is past must not count: whether it was swept yet may not matter. Returns the time
 * word as it was put. */
static uint64_t list_append(struct dedup_list *l, uint64_t offset, uint64_t time)
{
    if (l->count > 0) {
        uint64_t last = l->pairs[2 * (size_t)(l->start + l->count - 1) + 1];
        if (time_kept(last, time_ms(time)) && time_class(last) > time_class(time))
            time = time_word(time_class(last), time_ms(time));
    }
    if (l->start + l->count == l->cap && l->start > l->cap / 2) {
        memmove(l->pairs, l->pairs + 2 * (size_t)l->start, l->count * 2 * sizeof l->pairs[0]);
        l->start = 0;
    }
    if (l->start + l->count == l->cap) {
        l->cap = l->cap == 0 ? 4 : l->cap * 2;
        l->pairs = realloc(l->pairs, l->cap * 2 * sizeof l->pairs[0]);
        must(l->pairs != NULL);
    }
    uint64_t *pair = l->pairs + 2 * (size_t)(l->start + l->count++);
    pair[0] = offset;
    pair[1] = time;
    return time;
}

static uint64_t slot_put(struct dedup *d, struct dedup_key k, uint64_t offset, uint64_t time)
{
    struct dedup_shard *shard = shard_of(d, k.low);
    if ((uint64_t)(shard->count + 1) * 8 > (uint64_t)shard->cap * 7) shard_grow(shard);
    struct dedup_slot *s = slot_find(d, k);
    d->ids++;
    if (s->words[0] == 0) {
        *s = slot_make(k, offset, time);
        shard->count++;
        return time;
    }
    if (time_class(slot_time(s)) != CLASS_LIST) {
        if (!time_kept(slot_time(s), time_ms(time))) {
            *s = slot_make(k, offset, time);
            d->ids--;
            return time;
        }
        uint32_t at = list_new(d);
        list_append(&d->lists[at], slot_offset(s), slot_time(s));
        *s = slot_make(k, at, time_word(CLASS_LIST, 0));
    }
    return list_append(&d->lists[slot_offset(s)], offset, time);
}

void dedup_add(struct dedup *d, struct dedup_key k, uint64_t offset, int64_t created_ms, uint8_t class, bool own_id)
{
    must(class <= DEDUP_CLASS_MAX && offset <= OFFSET_MASK);
    if (own_id) offset |= OWN_ID;
    uint64_t time = slot_put(d, k, offset, time_word(class, created_ms));
    struct dedup_slot s = slot_make(k, offset, time);
    buf_put(&d->added, &s, sizeof s);
}

static bool pair_fits(uint64_t place, uint64_t time, uint64_t from, uint64_t to, int64_t since_ms, int64_t now_ms,
                      struct dedup_hit *out)
{
    uint64_t offset = place & OFFSET_MASK;
    if (offset < from || offset >= to || time_ms(time) < since_ms || !time_kept(time, now_ms)) return false;
    *out = (struct dedup_hit){.offset = offset, .created_ms = time_ms(time), .own_id = (place & OWN_ID) != 0};
    return true;
}

/* First pair at or after `from`, not older than since_ms: both rise together. */
static bool list_find(const struct dedup_list *l, uint64_t from, uint64_t to, int64_t since_ms, int64_t now_ms,
                      struct dedup_hit *out)
{
    uint32_t low = l->start, high = l->start + l->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const uint64_t *pair = l->pairs + 2 * (size_t)middle;
        if ((pair[0] & OFFSET_MASK) < from || time_ms(pair[1]) < since_ms || !time_kept(pair[1], now_ms)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == l->start + l->count) return false;
    const uint64_t *pair = l->pairs + 2 * (size_t)low;
    return pair_fits(pair[0], pair[1], from, to, since_ms, now_ms, out);
}

static bool slot_hit(const struct dedup *d, const struct dedup_slot *s, uint64_t from, uint64_t to, int64_t since_ms,
                     int64_t now_ms, struct dedup_hit *out)
{
    uint64_t time = slot_time(s);
    if (time_class(time) == CLASS_LIST) return list_find(&d->lists[slot_offset(s)], from, to, since_ms, now_ms, out);
    return pair_fits(slot_offset(s), time, from, to, since_ms, now_ms, out);
}

bool dedup_find(const struct dedup *d, struct dedup_key k, uint64_t from, uint64_t to, int64_t since_ms, int64_t now_ms,
                struct dedup_hit *out)
{
    const struct dedup_slot *s = slot_find(d, k);
    return s != NULL && s->words[0] != 0 && slot_hit(d, s, from, to, since_ms, now_ms, out);
}

bool dedup_seen(const struct dedup *d, struct dedup_key k, uint64_t first, uint64_t to, int64_t since_ms, int64_t now_ms,
                struct dedup_hit *out)
{
    const struct dedup_slot *s = slot_find(d, k);
    if (s == NULL || s->words[0] == 0) return false;
    return slot_hit(d, s, 0, to, since_ms, now_ms, out) || slot_hit(d, s, first, to, INT64_MIN, INT64_MIN, out);
}

void dedup_load(struct dedup *d, const struct dedup_record *r)
{
    struct dedup_slot s;
    memcpy(&s, r, sizeof s);
    struct dedup_key k = {.low = s.words[0], .high = (uint32_t)(s.words[1] >> 32)};
    slot_put(d, k, slot_offset(&s), slot_time(&s));
}

int64_t dedup_record_expiry_ms(const struct dedup_record *r)
{
    struct dedup_slot s;
    memcpy(&s, r, sizeof s);
    return time_ms(slot_time(&s)) + dedup_keep_ms(time_class(slot_time(&s)));
}

static void slot_remove(struct dedup_shard *s, uint32_t i)
{
    for (uint32_t j = place_after(s, i); s->slots[j].words[0] != 0; j = place_after(s, j)) {
        uint32_t home = home_of(s, s->slots[j].words[0]);
        if (place_distance(s, home, j) < place_distance(s, i, j)) continue;
        s->slots[i] = s->slots[j];
        i = j;
    }
    s->slots[i] = (struct dedup_slot){0};
    s->count--;
}

/* Drops old occurrences from the front of a list. Returns how many are left. */
static uint32_t list_trim(struct dedup *d, struct dedup_list *l, int64_t now_ms)
{
    while (l->count > 0 && !time_kept(l->pairs[2 * (size_t)l->start + 1], now_ms)) {
        l->start++;
        l->count--;
        d->ids--;
    }
    return l->count;
}

static bool slot_sweep(struct dedup *d, struct dedup_shard *s, uint32_t i, int64_t now_ms)
{
    struct dedup_slot *slot = &s->slots[i];
    if (slot->words[0] == 0) return false;
    if (time_class(slot_time(slot)) == CLASS_LIST) {
        uint32_t list = (uint32_t)slot_offset(slot);
        if (list_trim(d, &d->lists[list], now_ms) > 0) return false;
        list_drop(d, list);
    } else {
        if (time_kept(slot_time(slot), now_ms)) return false;
        d->ids--;
    }
    slot_remove(s, i);
    return true;
}

void dedup_sweep(struct dedup *d, uint32_t slots, int64_t now_ms)
{
    for (uint32_t n = 0; n < slots; n++) {
        struct dedup_shard *s = &d->shards[d->sweep_shard];
        if (d->sweep_slot >= s->cap) {
            d->sweep_slot = 0;
            d->sweep_shard = (d->sweep_shard + 1) % DEDUP_SHARDS;
        } else if (!slot_sweep(d, s, d->sweep_slot, now_ms)) {
            d->sweep_slot++; /* after a removal another may have moved here */
        }
    }
}

void dedup_each(const struct dedup *d, int64_t now_ms, void (*each)(void *ctx, const struct dedup_record *r), void *ctx)
{
    for (int n = 0; n < DEDUP_SHARDS; n++) {
        const struct dedup_shard *s = &d->shards[n];
        for (uint32_t i = 0; i < s->cap; i++) {
            const struct dedup_slot *slot = &s->slots[i];
            if (slot->words[0] == 0) continue;
            struct dedup_key k = {.low = slot->words[0], .high = (uint32_t)(slot->words[1] >> 32)};
            struct dedup_list one = {.count = 1};
            uint64_t pair[2] = {slot_offset(slot), slot_time(slot)};
            one.pairs = pair;
            const struct dedup_list *l = time_class(pair[1]) == CLASS_LIST ? &d->lists[pair[0]] : &one;
            for (uint32_t j = l->start; j < l->start + l->count; j++) {
                const uint64_t *p = l->pairs + 2 * (size_t)j;
                struct dedup_slot out = slot_make(k, p[0], p[1]);
                struct dedup_record r;
                memcpy(&r, &out, sizeof r);
                if (time_kept(p[1], now_ms)) each(ctx, &r);
            }
        }
    }
}

uint64_t dedup_memory(const struct dedup *d)
{
    uint64_t bytes = d->added.cap + d->list_cap * sizeof(struct dedup_list);
    for (int n = 0; n < DEDUP_SHARDS; n++) bytes += (uint64_t)d->shards[n].cap * sizeof(struct dedup_slot);
    return bytes;
}

void dedup_free(struct dedup *d)
{
    for (int n = 0; n < DEDUP_SHARDS; n++) free(d->shards[n].slots);
    for (uint32_t i = 1; i <= d->list_count && d->lists != NULL; i++) free(d->lists[i].pairs);
    free(d->lists);
    buf_free(&d->added);
    *d = (struct dedup){0};
}
