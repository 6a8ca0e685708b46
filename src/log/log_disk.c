/* The disk thread: makes durable what the writer flushed.
 *
 *   take everything up to the last mark (at most LOG_TAKE_BYTES_MAX, at least one mark)
 *   -> pwritev per block: whole pages from its image; the page where the range ends comes from a page of our own, with zeros behind
 *      the end, since the writer may be filling the rest of it; the next write repeats that page
 *   -> fdatasync -> publish -> options.synced -> look again; nothing there: sleep until log_flush wakes it
 *
 * A range that goes on in another segment syncs the first file before it writes the second: files become durable in order.
 *
 * Failures: the first failed write or sync ends it (log_fail): what it covered is never published, nothing is tried again, the thread
 * waits for log_close. */
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crash_point.h"
#include "base/logger.h"
#include "log/log_internal.h"

/* From a log thread, without locks. options.failed runs once. */
void log_fail(struct log *l, const struct fault *f)
{
    pthread_mutex_lock(&l->state_lock);
    bool first = !l->failed;
    l->failed = true;
    pthread_cond_broadcast(&l->state_cond);
    pthread_mutex_unlock(&l->state_lock);
    pthread_mutex_lock(&l->file_lock);
    pthread_cond_broadcast(&l->file_cond); /* the disk thread may wait for a segment that will not come */
    pthread_mutex_unlock(&l->file_lock);
    if (!first) return;
    log_error("log: %s; nothing that is not synced yet will be", f->text);
    if (l->o.failed != NULL) l->o.failed(l->o.ctx, f->text);
}

static bool log_has_failed(struct log *l)
{
    pthread_mutex_lock(&l->state_lock);
    bool failed = l->failed;
    pthread_mutex_unlock(&l->state_lock);
    return failed;
}

/* ---- sleeping: a word that is 1 while the thread sleeps or is about to */

static void disk_sleep(struct log *l)
{
    syscall(SYS_futex, &l->disk_asleep, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
}

void disk_wake(struct log *l)
{
    if (atomic_exchange(&l->disk_asleep, 0) == 1) syscall(SYS_futex, &l->disk_asleep, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* ---- writing */

static bool sync_now(struct log *l, struct fault *f)
{
    if (!l->dirty) return true;
    if (fdatasync(l->write_seg->fd) != 0) {
        int error = errno;
        char name[LOG_NAME_BYTES];
        segment_name(l->write_seg->first_pos, name);
        return fault_say(f, error, "cannot sync the log file %s/%s", l->dir, name);
    }
    l->dirty = false;
    return true;
}

static bool file_extend(struct log *l, struct segment *s, struct fault *f)
{
    int error = 0;
    file_head_make(l, s->first_pos, s->end_pos - s->first_pos, l->tail_page);
    if (file_write(l, s->fd, l->tail_page, LOG_PAGE, 0, &error)) return true;
    char name[LOG_NAME_BYTES];
    segment_name(s->first_pos, name);
    return fault_say(f, error, "cannot write to the log file %s/%s", l->dir, name);
}

/* A segment that is full gets its whole length, also when no zeros were written to its end: a shorter one is damage. */
static bool file_complete(struct log *l, struct segment *s, struct fault *f)
{
    uint64_t len = s->end_pos - s->first_pos;
    if (s->file_bytes >= len) return true;
    if (ftruncate(s->fd, (off_t)len) != 0) {
        int error = errno;
        char name[LOG_NAME_BYTES];
        segment_name(s->first_pos, name);
        return fault_say(f, error, "cannot extend the log file %s/%s", l->dir, name);
    }
    pthread_mutex_lock(&l->file_lock);
    s->file_bytes = len;
    pthread_mutex_unlock(&l->file_lock);
    l->dirty = true;
    return true;
}

/* The image lies in another segment than the one written last. */
static bool segment_enter(struct log *l, const struct image *i, struct fault *f)
{
    if (l->write_seg != NULL && !file_complete(l, l->write_seg, f)) return false;
    if (!sync_now(l, f)) return false;
    pthread_mutex_lock(&l->file_lock);
    struct segment *s;
    while ((s = segment_at(l, i->seg_first)) == NULL) {
        l->want_pos = i->seg_first;
        l->want_urgent = true;
        l->want_gave_up = false;
        pthread_cond_signal(&l->keeper_cond);
        pthread_cond_wait(&l->file_cond, &l->file_lock);
        pthread_mutex_unlock(&l->file_lock);
        if (log_has_failed(l)) return fault_say(f, 0, "no next log file");
        pthread_mutex_lock(&l->file_lock);
    }
    must(s->first_pos == i->seg_first && s->fd >= 0);
    bool longer = s->end_pos != i->seg_end;
    s->end_pos = i->seg_end;
    segment_seal(l, l->write_seg);
    l->write_seg = s;
    l->want_pos = s->end_pos;
    l->want_urgent = false;
    l->want_gave_up = false;
    pthread_cond_signal(&l->keeper_cond);
    pthread_mutex_unlock(&l->file_lock);
    crash_point("log-roll");
    return !longer || file_extend(l, s, f);
}

/* file_lock held. What decides whether zeros are written ahead. */
static void rate_count(struct log *l, uint64_t bytes)
{
    int64_t now_us = clock_mono_us(), past_us = now_us - l->rate_us;
    l->write_mean = (l->write_mean * 7 + bytes) / 8;
    l->rate_bytes += bytes;
    if (past_us < LOG_RATE_US) return;
    uint64_t periods = (uint64_t)past_us / LOG_RATE_US;
    bool fast = l->rate_bytes * 1000000 / (uint64_t)past_us > LOG_FAST_BYTES_S;
    l->fast_periods = fast ? LOG_FAST_PERIODS : l->fast_periods > periods ? l->fast_periods - (uint32_t)periods : 0;
    l->rate_us = now_us;
    l->rate_bytes = 0;
}

/* Keeps the keeper's zeros out of the way of [from, to) of the file. */
static void range_claim(struct log *l, struct segment *s, uint64_t from, uint64_t to)
{
    pthread_mutex_lock(&l->file_lock);
    if (s->claimed < to) s->claimed = to;
    rate_count(l, to - from);
    while (s->zero_from < to && from < s->zero_to) pthread_cond_wait(&l->file_cond, &l->file_lock);
    if (s->file_bytes < to) s->file_bytes = to;
    bool slow;
    if (zero_pick(l, &slow) != NULL) pthread_cond_signal(&l->keeper_cond);
    pthread_mutex_unlock(&l->file_lock);
}

/* Writes bytes [from, to) of the image, widened to whole pages. */
static bool piece_write(struct log *l, struct image *i, size_t from, size_t to, struct fault *f)
{
    struct segment *s = l->write_seg;
    size_t begin = from / LOG_PAGE * LOG_PAGE, full = to / LOG_PAGE * LOG_PAGE;
    uint64_t offset = i->pos - s->first_pos;
    struct iovec parts[2];
    int count = 0, error = 0;
    if (full > begin) parts[count++] = (struct iovec){.iov_base = i->base + begin, .iov_len = full - begin};
    if (to > full) {
        memcpy(l->tail_page, i->base + full, to - full);
        memset(l->tail_page + (to - full), 0, LOG_PAGE - (to - full));
        parts[count++] = (struct iovec){.iov_base = l->tail_page, .iov_len = LOG_PAGE};
    }
    size_t total = round_up(to, LOG_PAGE) - begin;
    range_claim(l, s, offset + begin, offset + begin + total);
    l->dirty = true;
    ssize_t n;
    do {
        n = pwritev(s->fd, parts, count, (off_t)(offset + begin));
    } while (n < 0 && errno == EINTR);
    bool ok = n >= 0;
    if (!ok) error = errno;
    size_t done = ok ? (size_t)n / LOG_PAGE * LOG_PAGE : 0;
    if (ok && done < total) { /* a short write: what is left, part by part */
        size_t left_full = begin + done < full ? full - begin - done : 0;
        ok = left_full == 0 || file_write(l, s->fd, i->base + begin + done, left_full, offset + begin + done, &error);
        ok = ok && (to == full || file_write(l, s->fd, l->tail_page, LOG_PAGE, offset + full, &error));
    }
    atomic_fetch_add_explicit(&l->written_bytes, total, memory_order_relaxed);
    if (ok) return true;
    char name[LOG_NAME_BYTES];
    segment_name(s->first_pos, name);
    return fault_say(f, error, "cannot write to the log file %s/%s", l->dir, name);
}

bool disk_write(struct log *l, uint64_t from, uint64_t to, struct fault *f)
{
    uint64_t pos = from;
    while (pos < to) {
        struct image *i = image_from(l, pos);
        if (i == NULL || i->pos >= to) break; /* what is left is space that was skipped */
        if (pos < i->pos) pos = i->pos;
        if (i->seg_first != l->write_seg->first_pos && !segment_enter(l, i, f)) return false;
        size_t used = atomic_load_explicit(&i->used, memory_order_acquire);
        size_t begin = pos - i->pos, end = to - i->pos < used ? to - i->pos : used;
        if (begin < LOG_PAGE && i->pos == i->seg_first) begin = LOG_PAGE; /* the file head stays */
        if (begin < end && !piece_write(l, i, begin, end, f)) return false;
        pos = i->pos + i->cap;
    }
    crash_point("log-written");
    return sync_now(l, f);
}

/* ---- marks */

/* The next range to write; false when there is none. */
static bool disk_take(struct log *l, uint64_t *from, uint64_t *to)
{
    pthread_mutex_lock(&l->state_lock);
    *from = *to = l->taken_pos;
    for (uint32_t n = 0; n < l->mark_count; n++) {
        const struct log_mark *m = &l->marks[(l->mark_first + n) % LOG_MARKS_MAX];
        if (*to > *from && m->pos - *from > LOG_TAKE_BYTES_MAX) break;
        *to = m->pos;
    }
    l->taken_pos = *to;
    pthread_mutex_unlock(&l->state_lock);
    return *to > *from;
}

/* Everything before pos is durable. */
void disk_publish(struct log *l, uint64_t pos)
{
    pthread_mutex_lock(&l->state_lock);
    if (!l->failed) {
        while (l->mark_count > 0 && l->marks[l->mark_first].pos <= pos) {
            atomic_store(&l->synced_index, l->marks[l->mark_first].index);
            l->mark_first = (l->mark_first + 1) % LOG_MARKS_MAX;
            l->mark_count--;
        }
        atomic_store(&l->synced_pos, pos);
        pthread_cond_broadcast(&l->state_cond);
    }
    pthread_mutex_unlock(&l->state_lock);
}

static void sync_count(struct log *l, int64_t begun_us)
{
    int64_t now_us = clock_mono_us();
    uint64_t us = now_us > begun_us ? (uint64_t)(now_us - begun_us) : 0;
    uint32_t bucket = 0;
    while (bucket < 23 && us >= (uint64_t)16 << bucket) bucket++;
    atomic_fetch_add_explicit(&l->sync_buckets[bucket], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&l->sync_us_total, us, memory_order_relaxed);
    atomic_fetch_add_explicit(&l->syncs, 1, memory_order_relaxed);
    if (atomic_load_explicit(&l->sync_us_max, memory_order_relaxed) < us)
        atomic_store_explicit(&l->sync_us_max, us, memory_order_relaxed);
    atomic_store_explicit(&l->now_us, now_us, memory_order_relaxed);
}

void *disk_main(void *log)
{
    struct log *l = log;
    struct fault f = {.final = true};
    uint64_t from, to;
    for (;;) {
        if (!disk_take(l, &from, &to)) {
            if (atomic_load(&l->disk_stop)) return NULL;
            atomic_store(&l->disk_asleep, 1);
            if (disk_take(l, &from, &to))
                atomic_store(&l->disk_asleep, 0);
            else {
                while (atomic_load(&l->disk_asleep) == 1 && !atomic_load(&l->disk_stop)) disk_sleep(l);
                continue;
            }
        }
        crash_point("log-staged");
        int64_t begun_us = clock_mono_us();
        if (!disk_write(l, from, to, &f)) break;
        sync_count(l, begun_us);
        crash_point("log-synced");
        disk_publish(l, to);
        if (l->o.synced != NULL && !log_has_failed(l)) l->o.synced(l->o.ctx);
    }
    log_fail(l, &f);
    while (!atomic_load(&l->disk_stop)) {
        atomic_store(&l->disk_asleep, 1);
        if (!atomic_load(&l->disk_stop)) disk_sleep(l);
    }
    return NULL;
}
