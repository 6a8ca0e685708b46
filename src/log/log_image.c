/* Memory images: blocks of the stream that are being written, or that stay as the cache of the newest bytes.
 *
 * The list is in the order of positions. The writer adds at its end and drops; readers look up and pin under image_lock; an
 * image is dropped only when it has no pin, is synced and is not the writer's own, so a pin keeps its bytes in place. */
#include <sys/mman.h>

#include "base/clock.h"
#include "log/log_internal.h"

char *pages_map(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(at != MAP_FAILED); /* out of memory */
    return at;
}

void pages_unmap(char *at, size_t bytes)
{
    must(munmap(at, bytes) == 0);
}

static struct image *free_take(struct log *l, size_t mem_bytes)
{
    pthread_mutex_lock(&l->image_lock);
    struct image *i = l->free_images;
    if (i != NULL && i->mem_bytes == mem_bytes) {
        l->free_images = i->next_free;
        l->free_count--;
    } else {
        i = NULL;
    }
    pthread_mutex_unlock(&l->image_lock);
    return i;
}

struct image *image_new(struct log *l, uint64_t blocks)
{
    size_t mem_bytes = blocks * l->block_bytes + LOG_PAGE;
    struct image *i = blocks == 1 ? free_take(l, mem_bytes) : NULL;
    if (i == NULL) {
        i = calloc(1, sizeof *i);
        must(i != NULL);
        i->mem_bytes = mem_bytes;
        i->mem = pages_map(mem_bytes);
    }
    i->base = i->mem;
    i->next_free = NULL;
    atomic_store_explicit(&i->used, 0, memory_order_relaxed);
    atomic_store_explicit(&i->used_us, atomic_load_explicit(&l->now_us, memory_order_relaxed), memory_order_relaxed);
    return i;
}

static void image_unmap(struct image *i)
{
    pages_unmap(i->mem, i->mem_bytes);
    free(i);
}

/* image_lock held. Blocks of the usual size are kept for reuse, one, or more while the cache has room. */
static void image_release(struct log *l, struct image *i)
{
    uint64_t kept = l->image_bytes + (l->free_count + 1) * i->mem_bytes;
    bool full = l->free_count >= LOG_FREE_IMAGES_MAX || (l->free_count > 0 && kept > l->o.cache_bytes_max);
    if (i->mem_bytes != l->block_bytes + LOG_PAGE || full) {
        image_unmap(i);
        return;
    }
    i->next_free = l->free_images;
    l->free_images = i;
    l->free_count++;
}

void image_put_back(struct log *l, struct image *i)
{
    pthread_mutex_lock(&l->image_lock);
    image_release(l, i);
    pthread_mutex_unlock(&l->image_lock);
}

void image_add(struct log *l, struct image *i)
{
    pthread_mutex_lock(&l->image_lock);
    must(l->image_count == 0 || l->images[l->image_count - 1]->pos + l->images[l->image_count - 1]->cap <= i->pos);
    if (l->image_count == l->image_cap) {
        l->image_cap = l->image_cap == 0 ? 64 : l->image_cap * 2;
        l->images = realloc(l->images, l->image_cap * sizeof *l->images);
        must(l->images != NULL);
    }
    l->images[l->image_count++] = i;
    l->image_bytes += i->mem_bytes;
    pthread_mutex_unlock(&l->image_lock);
}

/* image_lock held. Number of the first image that ends after pos. */
static uint32_t image_search(const struct log *l, uint64_t pos)
{
    uint32_t low = 0, high = l->image_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct image *i = l->images[middle];
        if (i->pos + i->cap <= pos)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct image *image_from(struct log *l, uint64_t pos)
{
    pthread_mutex_lock(&l->image_lock);
    uint32_t n = image_search(l, pos);
    struct image *i = n < l->image_count ? l->images[n] : NULL;
    pthread_mutex_unlock(&l->image_lock);
    return i;
}

/* Drops what is beyond cache_bytes_max, oldest first; by_age also what was not used for cache_age_us, and unused memory. */
void images_drop(struct log *l, bool by_age)
{
    uint64_t synced = atomic_load(&l->synced_pos);
    int64_t before_us = atomic_load(&l->now_us) - l->o.cache_age_us;
    pthread_mutex_lock(&l->image_lock);
    uint32_t kept = 0;
    for (uint32_t n = 0; n < l->image_count; n++) {
        struct image *i = l->images[n];
        uint64_t now_bytes = l->now == NULL ? 0 : l->now->mem_bytes;
        bool over = l->image_bytes - now_bytes > l->o.cache_bytes_max;
        bool old = by_age && atomic_load_explicit(&i->used_us, memory_order_relaxed) < before_us;
        bool free_to_go = i != l->now && atomic_load(&i->pins) == 0 && i->pos + atomic_load(&i->used) <= synced;
        if (free_to_go && (over || old)) {
            l->image_bytes -= i->mem_bytes;
            image_release(l, i);
        } else {
            l->images[kept++] = i;
        }
    }
    l->image_count = kept;
    while (by_age && l->block_us < before_us && l->free_images != NULL) {
        struct image *i = l->free_images;
        l->free_images = i->next_free;
        l->free_count--;
        image_unmap(i);
    }
    pthread_mutex_unlock(&l->image_lock);
}

void images_free(struct log *l)
{
    for (uint32_t n = 0; n < l->image_count; n++) image_unmap(l->images[n]);
    free(l->images);
    while (l->free_images != NULL) {
        struct image *next = l->free_images->next_free;
        image_unmap(l->free_images);
        l->free_images = next;
    }
    if (l->ahead != NULL) image_unmap(l->ahead);
}

bool log_view(struct log *l, uint64_t pos, size_t len, struct slice *out, struct log_pin *pin)
{
    bool found = false;
    pthread_mutex_lock(&l->image_lock);
    uint32_t n = image_search(l, pos);
    if (n < l->image_count) {
        struct image *i = l->images[n];
        size_t used = atomic_load_explicit(&i->used, memory_order_acquire);
        if (pos >= i->pos && pos - i->pos <= used && len <= used - (pos - i->pos)) {
            atomic_fetch_add_explicit(&i->pins, 1, memory_order_relaxed);
            *out = slice_make(i->base + (pos - i->pos), len);
            pin->image = i;
            found = true;
        }
    }
    pthread_mutex_unlock(&l->image_lock);
    if (found)
        atomic_store_explicit(&((struct image *)pin->image)->used_us, atomic_load_explicit(&l->now_us, memory_order_relaxed),
                              memory_order_relaxed);
    return found;
}

void log_unpin(struct log *l, struct log_pin pin)
{
    (void)l;
    struct image *i = pin.image;
    must(i != NULL && atomic_fetch_sub_explicit(&i->pins, 1, memory_order_release) != 0);
}

void log_idle(struct log *l)
{
    int64_t now_us = clock_mono_us();
    atomic_store(&l->now_us, now_us);
    if (l->ahead != NULL && l->reserved == NULL && l->block_us < now_us - l->o.cache_age_us) {
        image_put_back(l, l->ahead);
        l->ahead = NULL;
    }
    images_drop(l, true);
}
