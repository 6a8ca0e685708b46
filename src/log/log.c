/* The writer's side: building records in memory, flush points, opening and closing.
 *
 *   log_reserve   place in the block of memory being filled; if the reservation does not fit, in a new one kept `ahead`
 *   log_append    seals the record there. A body that was built ahead but turns out to fit is moved back into the old block,
 *                 so that generous reservations waste nothing
 *   log_flush     a mark (position, index) for the disk thread
 *
 * A cut (an index that is not the next) lowers the index of every mark not synced yet, so that log_synced_index never names
 * an entry that is no longer part of the log. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/logger.h"
#include "base/uuid.h"
#include "log/log_internal.h"

/* ---- appending */

static bool fits_now(const struct log *l, uint64_t need)
{
    return l->now != NULL && l->off + need <= l->now->cap;
}

/* Waits while too much is not durable yet. */
static void writer_wait(struct log *l)
{
    uint64_t most = l->o.unsynced_bytes_max == 0 ? LOG_UNSYNCED_BYTES_MAX : l->o.unsynced_bytes_max;
    uint64_t end = atomic_load_explicit(&l->end_pos, memory_order_relaxed);
    if (end - atomic_load_explicit(&l->synced_pos, memory_order_relaxed) <= most) return;
    log_flush(l);
    pthread_mutex_lock(&l->state_lock);
    while (!l->failed && end - atomic_load(&l->synced_pos) > most) pthread_cond_wait(&l->state_cond, &l->state_lock);
    pthread_mutex_unlock(&l->state_lock);
}

char *log_reserve(struct log *l, size_t bytes_max)
{
    must(bytes_max <= LOG_BODY_BYTES_MAX);
    writer_wait(l);
    uint64_t need = record_bytes(bytes_max);
    l->reserved_bytes = bytes_max;
    l->reserved_ahead = !fits_now(l, need);
    if (!l->reserved_ahead) {
        l->reserved = l->now->base + l->off + LOG_HEAD;
        return l->reserved;
    }
    uint64_t blocks = round_up(need, l->block_bytes) / l->block_bytes;
    if (l->ahead != NULL && l->ahead->mem_bytes < blocks * l->block_bytes + LOG_PAGE) {
        image_put_back(l, l->ahead);
        l->ahead = NULL;
    }
    if (l->ahead == NULL) l->ahead = image_new(l, blocks);
    l->reserved = l->ahead->mem + LOG_PAGE + LOG_HEAD;
    return l->reserved;
}

/* Puts a head at `off` of the block being filled and moves on. */
static void record_put(struct log *l, struct record_head h, const char *body)
{
    struct image *i = l->now;
    must(i != NULL && i->base != NULL);
    uint64_t pos = i->pos + l->off, need = record_bytes(body == NULL ? 0 : h.len);
    h.synced = atomic_load_explicit(&l->synced_pos, memory_order_relaxed);
    record_seal(l, pos, &h, body);
    char *at = i->base + l->off;
    memcpy(at, &h, LOG_HEAD);
    if (body != NULL) memset(at + LOG_HEAD + h.len, 0, need - LOG_HEAD - h.len);
    l->off += need;
    atomic_store_explicit(&i->used, l->off, memory_order_release);
    bool full = i->cap - l->off < LOG_HEAD || i->cap > l->block_bytes;
    atomic_store_explicit(&l->end_pos, full ? i->pos + i->cap : i->pos + l->off, memory_order_relaxed);
    if (full) l->now = NULL;
}

static void image_place(struct log *l, struct image *i, uint64_t pos, uint64_t cap)
{
    bool first = pos == l->seg_first;
    i->base = first ? i->mem : i->mem + LOG_PAGE;
    i->pos = pos;
    i->cap = cap;
    i->seg_first = l->seg_first;
    i->seg_end = l->seg_end;
    l->off = first ? LOG_PAGE : 0;
    atomic_store_explicit(&i->used, l->off, memory_order_relaxed);
    image_add(l, i);
    l->now = i;
    l->block_us = clock_mono_us();
    atomic_store_explicit(&l->now_us, l->block_us, memory_order_relaxed);
}

/* Skips what is left of the stream up to `target`, a block's border. */
static void writer_skip(struct log *l, uint64_t target)
{
    uint64_t pos = atomic_load_explicit(&l->end_pos, memory_order_relaxed);
    if (pos == target) return;
    if (l->now == NULL) image_place(l, image_new(l, 1), pos, l->block_bytes);
    record_put(l, (struct record_head){.kind = LOG_PAD, .len = (uint32_t)(target - pos - LOG_HEAD)}, NULL);
    l->now = NULL;
    atomic_store_explicit(&l->end_pos, target, memory_order_relaxed);
}

/* Finds the place for the image built ahead, whose record needs `need` bytes. */
static void writer_turn(struct log *l, uint64_t need)
{
    struct image *i = l->ahead;
    l->ahead = NULL;
    uint64_t pos = atomic_load_explicit(&l->end_pos, memory_order_relaxed);
    uint64_t border = l->now == NULL ? pos : l->now->pos + l->now->cap;
    uint64_t cap = round_up(need, l->block_bytes);
    if (border + cap > l->seg_end) {
        writer_skip(l, l->seg_end);
        cap = round_up(LOG_PAGE + need, l->block_bytes);
        l->seg_first = l->seg_end;
        l->seg_end = l->seg_first + round_up(cap, l->segment_bytes);
        border = l->seg_first;
    } else {
        writer_skip(l, border);
    }
    image_place(l, i, border, cap);
    images_drop(l, false);
}

static uint64_t record_append(struct log *l, struct record_head h, size_t bytes)
{
    must(l->reserved != NULL && bytes <= l->reserved_bytes);
    h.len = (uint32_t)bytes;
    uint64_t need = record_bytes(bytes);
    if (l->reserved_ahead && fits_now(l, need))
        memcpy(l->now->base + l->off + LOG_HEAD, l->reserved, bytes);
    else if (l->reserved_ahead)
        writer_turn(l, need);
    l->reserved = NULL;
    const char *body = l->now->base + l->off + LOG_HEAD;
    uint64_t pos = l->now->pos + l->off + LOG_HEAD;
    record_put(l, h, body);
    return pos;
}

static void writer_cut(struct log *l, uint64_t index)
{
    pthread_mutex_lock(&l->state_lock);
    if (atomic_load(&l->synced_index) >= index) atomic_store(&l->synced_index, index - 1);
    for (uint32_t n = 0; n < l->mark_count; n++) {
        struct log_mark *m = &l->marks[(l->mark_first + n) % LOG_MARKS_MAX];
        if (m->index >= index) m->index = index - 1;
    }
    pthread_mutex_unlock(&l->state_lock);
}

uint64_t log_append(struct log *l, uint64_t index, uint64_t term, uint8_t type, size_t bytes)
{
    must(index != 0 && (l->last_index == 0 || index <= l->last_index + 1));
    if (index <= l->last_index) writer_cut(l, index);
    l->last_index = index;
    return record_append(l, (struct record_head){.kind = LOG_ENTRY, .index = index, .term = term, .type = type}, bytes);
}

/* A record of the log's own. */
void writer_mark(struct log *l)
{
    log_reserve(l, 0);
    record_append(l, (struct record_head){.kind = LOG_MARK, .index = l->last_index}, 0);
}

void log_flush(struct log *l)
{
    uint64_t pos = atomic_load_explicit(&l->end_pos, memory_order_relaxed);
    if (pos == l->flushed_pos) return;
    pthread_mutex_lock(&l->state_lock);
    struct log_mark *last = l->mark_count == 0 ? NULL : &l->marks[(l->mark_first + l->mark_count - 1) % LOG_MARKS_MAX];
    bool open = last != NULL && last->pos > l->taken_pos;
    if (open && (pos - last->start <= LOG_MARK_BYTES || l->mark_count == LOG_MARKS_MAX)) {
        last->pos = pos;
        last->index = l->last_index;
    } else {
        must(l->mark_count < LOG_MARKS_MAX);
        l->marks[(l->mark_first + l->mark_count++) % LOG_MARKS_MAX] =
            (struct log_mark){.start = l->flushed_pos, .pos = pos, .index = l->last_index};
    }
    pthread_mutex_unlock(&l->state_lock);
    l->flushed_pos = pos;
    disk_wake(l);
}

/* ---- numbers */

uint64_t log_synced_index(struct log *l)
{
    return atomic_load(&l->synced_index);
}

uint64_t log_unsynced_bytes(struct log *l)
{
    uint64_t synced = atomic_load(&l->synced_pos), end = atomic_load(&l->end_pos);
    return end > synced ? end - synced : 0;
}

uint64_t log_end_pos(struct log *l)
{
    return atomic_load(&l->end_pos);
}

uint64_t log_segment_bytes(const struct log *l)
{
    return l->segment_bytes;
}

void log_stats(struct log *l, struct log_stats *out)
{
    *out = (struct log_stats){.direct = l->direct};
    pthread_mutex_lock(&l->file_lock);
    out->files = l->segment_count;
    for (uint32_t n = 0; n < l->segment_count; n++) out->file_bytes += l->segments[n]->file_bytes;
    out->files += l->spare_count;
    out->file_bytes += l->spare_count * l->segment_bytes;
    pthread_mutex_unlock(&l->file_lock);
    pthread_mutex_lock(&l->image_lock);
    out->cache_bytes = l->image_bytes;
    pthread_mutex_unlock(&l->image_lock);
    out->written_bytes = atomic_load(&l->written_bytes);
    out->syncs = atomic_load(&l->syncs);
    out->cold_reads = atomic_load(&l->cold_reads);
    out->sync_us_total = atomic_load(&l->sync_us_total);
    out->sync_us_max = atomic_exchange(&l->sync_us_max, 0);
    for (int i = 0; i < 24; i++) out->sync_buckets[i] = atomic_load(&l->sync_buckets[i]);
}

/* ---- opening and closing */

/* Where the writer goes on: `pos` in the segment [seg_first, seg_end); `now` holds the block's bytes before pos, or NULL
 * when pos is at a block's border. */
void writer_start(struct log *l, uint64_t seg_first, uint64_t seg_end, uint64_t pos, struct image *now)
{
    l->seg_first = seg_first;
    l->seg_end = seg_end;
    l->now = now;
    l->off = now == NULL ? 0 : pos - now->pos;
    if (now == NULL && pos == seg_first + LOG_PAGE) image_place(l, image_new(l, 1), seg_first, l->block_bytes);
    l->flushed_pos = l->taken_pos = pos;
    atomic_store(&l->end_pos, pos);
    atomic_store(&l->synced_pos, pos);
    atomic_store(&l->synced_index, l->last_index);
}

static enum log_status io_error(struct buf *error, const struct log *l, const char *what)
{
    char reason[128];
    buf_printf(error, "cannot %s the log directory %s: %s", what, l->dir, strerror_r(errno, reason, sizeof reason));
    return LOG_IO;
}

static enum log_status dir_open(struct log *l, struct buf *error)
{
    bool made = mkdir(l->dir, 0750) == 0;
    if (!made && errno != EEXIST) return io_error(error, l, "create");
    l->dir_fd = open(l->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (l->dir_fd < 0) return io_error(error, l, "open");
    if (flock(l->dir_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) return io_error(error, l, "lock");
        buf_printf(error, "the log directory %s is in use by another process", l->dir);
        return LOG_IO;
    }
    if (!made) return LOG_OK;
    int parent = openat(l->dir_fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok = parent >= 0 && fsync(parent) == 0;
    int code = errno;
    if (parent >= 0) close(parent);
    errno = code;
    return ok ? LOG_OK : io_error(error, l, "sync the parent of");
}

static bool threads_start(struct log *l)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool ok = pthread_create(&l->keeper_thread, NULL, keeper_main, l) == 0;
    if (ok && pthread_create(&l->disk_thread, NULL, disk_main, l) != 0) {
        pthread_mutex_lock(&l->file_lock);
        l->keeper_stop = true;
        pthread_cond_signal(&l->keeper_cond);
        pthread_mutex_unlock(&l->file_lock);
        pthread_join(l->keeper_thread, NULL);
        ok = false;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (ok) {
        pthread_setname_np(l->disk_thread, "log-disk");
        pthread_setname_np(l->keeper_thread, "log-keeper");
    }
    return ok;
}

void log_free(struct log *l)
{
    images_free(l);
    segments_close(l);
    if (l->dir_fd >= 0) close(l->dir_fd);
    pages_unmap(l->zeros, LOG_ZERO_SLICE_BYTES);
    pages_unmap(l->tail_page, LOG_PAGE);
    pthread_mutex_destroy(&l->state_lock);
    pthread_mutex_destroy(&l->image_lock);
    pthread_mutex_destroy(&l->file_lock);
    pthread_cond_destroy(&l->state_cond);
    pthread_cond_destroy(&l->keeper_cond);
    pthread_cond_destroy(&l->file_cond);
    free(l->dir);
    free(l);
}

static struct log *log_new(const struct log_options *o)
{
    struct log *l = calloc(1, sizeof *l);
    must(l != NULL);
    l->o = *o;
    l->dir = strdup(o->dir);
    must(l->dir != NULL);
    l->o.dir = l->dir;
    l->dir_fd = -1;
    l->segment_bytes = o->segment_bytes;
    l->block_bytes = o->segment_bytes / 2 < LOG_BLOCK_BYTES_MAX ? o->segment_bytes / 2 : LOG_BLOCK_BYTES_MAX;
    l->zeros = pages_map(LOG_ZERO_SLICE_BYTES);
    l->tail_page = pages_map(LOG_PAGE);
    for (int i = 0; i < LOG_RESERVE_FDS; i++) l->reserve_fds[i] = -1;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&l->state_lock, NULL);
    pthread_mutex_init(&l->image_lock, NULL);
    pthread_mutex_init(&l->file_lock, NULL);
    pthread_cond_init(&l->state_cond, NULL);
    pthread_cond_init(&l->keeper_cond, &attr);
    pthread_cond_init(&l->file_cond, NULL);
    pthread_condattr_destroy(&attr);
    atomic_store(&l->now_us, clock_mono_us());
    return l;
}

/* The generation becomes durable before anything is appended in it; so does what the scan has just reported. */
static enum log_status generation_begin(struct log *l, struct buf *error)
{
    struct fault f = {.final = true};
    writer_mark(l);
    uint64_t from = l->flushed_pos, to = atomic_load(&l->end_pos);
    if (!disk_write(l, from, to, &f)) {
        buf_text(error, f.text);
        return LOG_IO;
    }
    l->flushed_pos = l->taken_pos = to;
    atomic_store(&l->synced_pos, to);
    return LOG_OK;
}

/* All of log_open but the threads: the loader's tests need no more. */
enum log_status log_open_still(struct log **out, const struct log_options *o, struct buf *error)
{
    must(o->segment_bytes >= 1 << 20 && o->segment_bytes <= 1 << 30 && (o->segment_bytes & (o->segment_bytes - 1)) == 0);
    struct log *l = log_new(o);
    enum log_status status = dir_open(l, error);
    if (status == LOG_OK) {
        reserve_fill(l);
        status = log_load(l, error);
    }
    if (status == LOG_OK) status = generation_begin(l, error);
    if (status != LOG_OK) {
        log_free(l);
        return status;
    }
    *out = l;
    return LOG_OK;
}

enum log_status log_open(struct log **out, const struct log_options *o, struct buf *error)
{
    struct log *l;
    enum log_status status = log_open_still(&l, o, error);
    if (status != LOG_OK) return status;
    if (!threads_start(l)) {
        buf_text(error, "cannot start the log's threads");
        log_free(l);
        return LOG_IO;
    }
    *out = l;
    return LOG_OK;
}

/* Everything flushed is durable, or the log has failed (false). */
static bool writer_drain(struct log *l)
{
    log_flush(l);
    pthread_mutex_lock(&l->state_lock);
    while (!l->failed && atomic_load(&l->synced_pos) < l->flushed_pos) pthread_cond_wait(&l->state_cond, &l->state_lock);
    bool ok = !l->failed;
    pthread_mutex_unlock(&l->state_lock);
    return ok;
}

void log_close(struct log *l)
{
    if (writer_drain(l)) {
        writer_mark(l); /* says that all before it was durable */
        writer_drain(l);
    }
    atomic_store(&l->disk_stop, true);
    disk_wake(l);
    pthread_join(l->disk_thread, NULL);
    pthread_mutex_lock(&l->file_lock);
    l->keeper_stop = true;
    pthread_cond_signal(&l->keeper_cond);
    pthread_mutex_unlock(&l->file_lock);
    pthread_join(l->keeper_thread, NULL);
    log_free(l);
}
