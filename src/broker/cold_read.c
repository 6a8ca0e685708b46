/* Ranges of the log's files in memory, and how a job is read.
 *
 *   for each piece, in order of positions
 *     in a range -> that one; in a range that another thread reads just now -> wait for it
 *     else a new range: the piece and its neighbours, and what lies behind them when the read goes on where an earlier one ended
 *     each block against its checksum; a mismatch is read once more from the file
 *   a range that cannot be read: without what was read ahead, then piece by piece, so that only what is damaged is a fault
 *
 * Ranges are in the cache's list by last use. `reading`: its thread fills it; others wait for cache->filled. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/must.h"
#include "broker/cold.h"
#include "engine/command.h"

struct cold_range {
    atomic_uint refs;
    uint64_t pos;
    uint32_t len; /* the cache's lock while it is listed and `reading` */
    bool reading; /* the cache's lock */
    int64_t used_us;
    struct cold_range *newer, *older;
    char *bytes;
};

struct cold_cache {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    struct cold_range *newest, *oldest;
    uint64_t bytes, bytes_max;
    uint32_t count;
};

/* ---- ranges ------------------------------------------------------------------------------------------------------- */

static struct cold_range *range_new(uint64_t pos, uint32_t len)
{
    struct cold_range *r = calloc(1, sizeof *r);
    must(r != NULL);
    r->bytes = malloc(len);
    must(r->bytes != NULL);
    r->pos = pos;
    r->len = len;
    atomic_init(&r->refs, 1);
    return r;
}

struct cold_range *cold_range_hold(struct cold_range *r)
{
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
    return r;
}

void cold_range_drop(struct cold_range *r)
{
    if (atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) != 1) return;
    free(r->bytes);
    free(r);
}

static bool range_has(const struct cold_range *r, uint64_t where, uint32_t bytes)
{
    return where >= r->pos && where + bytes <= r->pos + r->len;
}

static struct slice range_slice(const struct cold_range *r, uint64_t where, uint32_t bytes)
{
    must(range_has(r, where, bytes));
    return slice_make(r->bytes + (where - r->pos), bytes);
}

/* ---- the list: under the lock ------------------------------------------------------------------------------------- */

static void list_put(struct cold_cache *c, struct cold_range *r)
{
    r->newer = NULL;
    r->older = c->newest;
    if (c->newest != NULL) {
        c->newest->newer = r;
    } else {
        c->oldest = r;
    }
    c->newest = r;
    c->bytes += r->len;
    c->count++;
}

static void list_take(struct cold_cache *c, struct cold_range *r)
{
    must(c->count > 0 && c->bytes >= r->len);
    if (r->newer != NULL) {
        r->newer->older = r->older;
    } else {
        c->newest = r->older;
    }
    if (r->older != NULL) {
        r->older->newer = r->newer;
    } else {
        c->oldest = r->newer;
    }
    c->bytes -= r->len;
    c->count--;
}

/* Room for `bytes` more. Ranges that are being read stay: there are no more than readers. */
static void list_evict(struct cold_cache *c, uint32_t bytes)
{
    struct cold_range *newer;
    for (struct cold_range *r = c->oldest; r != NULL; r = newer) {
        newer = r->newer;
        if (c->bytes + bytes <= c->bytes_max && c->count < COLD_RANGES_MAX) return;
        if (r->reading) continue;
        list_take(c, r);
        cold_range_drop(r);
    }
}

static struct cold_range *list_find(const struct cold_cache *c, uint64_t where, uint32_t bytes)
{
    for (struct cold_range *r = c->newest; r != NULL; r = r->older) {
        if (range_has(r, where, bytes)) return r;
    }
    return NULL;
}

static void list_use(struct cold_cache *c, struct cold_range *r)
{
    r->used_us = clock_mono_us();
    if (c->newest == r) return;
    list_take(c, r);
    list_put(c, r);
}

/* How much to read at `pos`: what is needed, and more behind it when a range ends there. */
static uint32_t list_ahead(const struct cold_cache *c, uint64_t pos, uint32_t needed, uint64_t limit)
{
    for (const struct cold_range *r = c->newest; r != NULL; r = r->older) {
        if (pos < r->pos || pos > r->pos + r->len + COLD_GAP_BYTES) continue;
        uint64_t len = (uint64_t)r->len * 2;
        if (len < COLD_AHEAD_BYTES) len = COLD_AHEAD_BYTES;
        if (len > COLD_RANGE_BYTES) len = COLD_RANGE_BYTES;
        if (pos + len > limit) len = limit > pos ? limit - pos : 0;
        return len > needed ? (uint32_t)len : needed;
    }
    return needed;
}

/* ---- the cache ---------------------------------------------------------------------------------------------------- */

struct cold_cache *cold_cache_new(uint64_t bytes_max)
{
    struct cold_cache *c = calloc(1, sizeof *c);
    must(c != NULL && pthread_mutex_init(&c->lock, NULL) == 0 && pthread_cond_init(&c->filled, NULL) == 0);
    c->bytes_max = bytes_max;
    return c;
}

uint64_t cold_cache_bytes(struct cold_cache *c)
{
    pthread_mutex_lock(&c->lock);
    uint64_t bytes = c->bytes;
    pthread_mutex_unlock(&c->lock);
    return bytes;
}

void cold_cache_free(struct cold_cache *c)
{
    cold_cache_age(c, INT64_MAX);
    must(c->count == 0);
    pthread_cond_destroy(&c->filled);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

void cold_cache_age(struct cold_cache *c, int64_t unused_since_us)
{
    struct cold_range *newer;
    pthread_mutex_lock(&c->lock);
    for (struct cold_range *r = c->oldest; r != NULL; r = newer) {
        newer = r->newer;
        if (r->reading || r->used_us >= unused_since_us) continue;
        list_take(c, r);
        cold_range_drop(r);
    }
    pthread_mutex_unlock(&c->lock);
}

struct cold_range *cold_cache_find(struct cold_cache *c, uint64_t where, uint32_t bytes, struct slice *block)
{
    pthread_mutex_lock(&c->lock);
    struct cold_range *r = list_find(c, where, bytes);
    if (r != NULL && r->reading) r = NULL;
    if (r != NULL) {
        list_use(c, r);
        cold_range_hold(r);
        *block = range_slice(r, where, bytes);
    }
    pthread_mutex_unlock(&c->lock);
    return r;
}

/* ---- reading ------------------------------------------------------------------------------------------------------ */

/* Straight from the file, in no list. */
static struct cold_range *range_read(const struct cold_job *j, uint64_t pos, uint32_t len)
{
    struct cold_range *r = range_new(pos, len);
    if (place_read(&j->places, pos, len, r->bytes) == LOG_OK) return r;
    cold_range_drop(r);
    return NULL;
}

/* Fills a range that is in the list and `reading`. False: it is in the list no longer. */
static bool range_fill(const struct cold_job *j, struct cold_range *r, uint32_t needed)
{
    struct cold_cache *c = j->cache;
    uint32_t len = r->len;
    bool good = place_read(&j->places, r->pos, len, r->bytes) == LOG_OK;
    if (!good && len > needed) {
        len = needed;
        good = place_read(&j->places, r->pos, len, r->bytes) == LOG_OK;
    }
    pthread_mutex_lock(&c->lock);
    c->bytes -= r->len - len;
    r->len = len;
    r->reading = false;
    if (!good) {
        list_take(c, r);
        cold_range_drop(r);
    }
    pthread_cond_broadcast(&c->filled);
    pthread_mutex_unlock(&c->lock);
    return good;
}

/* A range with these bytes, from the cache or from the file; NULL: they cannot be read. */
static struct cold_range *range_get(const struct cold_job *j, uint64_t pos, uint32_t len)
{
    struct cold_cache *c = j->cache;
    struct cold_range *r;
    uint64_t stable_pos = place_stable(&j->places, pos);
    if (len > COLD_RANGE_BYTES) return range_read(j, pos, len);
    pthread_mutex_lock(&c->lock);
    while ((r = list_find(c, pos, len)) != NULL && r->reading) pthread_cond_wait(&c->filled, &c->lock);
    if (r != NULL) {
        list_use(c, r);
        cold_range_hold(r);
        pthread_mutex_unlock(&c->lock);
        return r;
    }
    uint64_t segment_end = (pos | (j->segment_bytes - 1)) + 1;
    uint32_t all = list_ahead(c, pos, len, segment_end < stable_pos ? segment_end : stable_pos);
    list_evict(c, all);
    r = range_new(pos, all);
    r->reading = true;
    r->used_us = clock_mono_us();
    list_put(c, r);
    cold_range_hold(r);
    pthread_mutex_unlock(&c->lock);
    if (range_fill(j, r, len)) return r;
    cold_range_drop(r);
    return NULL;
}

static void piece_check(const struct cold_job *j, struct cold_piece *p, struct cold_range *r)
{
    p->block = range_slice(r, p->where, p->bytes);
    if (push_group_crc_ok(p->block)) {
        p->range = cold_range_hold(r);
        return;
    }
    p->range = range_read(j, p->where, p->bytes);
    if (p->range == NULL) {
        p->fault = "its segment file is missing or unreadable";
        return;
    }
    p->block = range_slice(p->range, p->where, p->bytes);
    if (!push_group_crc_ok(p->block)) p->fault = "checksum mismatch";
}

static void piece_read(const struct cold_job *j, struct cold_piece *p)
{
    struct cold_range *r = range_get(j, p->where, p->bytes);
    if (r == NULL) {
        p->fault = "its segment file is missing or unreadable";
        return;
    }
    piece_check(j, p, r);
    cold_range_drop(r);
}

static int piece_order(const void *left, const void *right)
{
    const struct cold_piece *a = left, *b = right;
    if (a->where != b->where) return a->where < b->where ? -1 : 1;
    return a->slot < b->slot ? -1 : a->slot > b->slot;
}

/* The piece at `from` and those behind it that are read with it: the first that is not, and where they end. */
static uint32_t neighbours(const struct cold_job *j, uint32_t from, uint64_t *end)
{
    const struct cold_piece *first = &j->pieces[from];
    uint32_t i = from + 1;
    *end = first->where + first->bytes;
    for (; i < j->count; i++) {
        const struct cold_piece *p = &j->pieces[i];
        uint64_t p_end = p->where + p->bytes > *end ? p->where + p->bytes : *end;
        bool same = first->where / j->segment_bytes == p->where / j->segment_bytes;
        if (!same || p->where > *end + COLD_GAP_BYTES || p_end - first->where > COLD_RANGE_BYTES) break;
        *end = p_end;
    }
    return i;
}

void cold_job_read(struct cold_job *j)
{
    qsort(j->pieces, j->count, sizeof j->pieces[0], piece_order);
    for (uint32_t i = 0, next; i < j->count; i = next) {
        uint64_t end;
        next = neighbours(j, i, &end);
        struct cold_range *r = next - i == 1 ? NULL : range_get(j, j->pieces[i].where, (uint32_t)(end - j->pieces[i].where));
        for (uint32_t k = i; k < next; k++) {
            if (r != NULL) {
                piece_check(j, &j->pieces[k], r);
            } else {
                piece_read(j, &j->pieces[k]);
            }
        }
        if (r != NULL) cold_range_drop(r);
    }
}
