/* Segment files: names, descriptors, cold reads, trim.
 *
 * file_lock guards the list and the descriptors; no system call that may be slow runs under it. A read holds its segment by
 * `readers`; a trimmed segment leaves the list at once, its file goes when the last reader is done.
 *
 * Descriptors. The segment being written and the next one are opened ahead of their use. LOG_RESERVE_FDS descriptors are kept back:
 * when the process has no more, one is given up for a file of ours and taken again when the file is closed. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/crash_point.h"
#include "base/logger.h"
#include "log/log_internal.h"

void segment_name(uint64_t first_pos, char out[LOG_NAME_BYTES])
{
    snprintf(out, LOG_NAME_BYTES, "%016llx.seg", (unsigned long long)first_pos);
}

bool fault_say(struct fault *f, int error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(f->text, sizeof f->text, format, args);
    va_end(args);
    size_t len = n < 0 ? 0 : (size_t)n < sizeof f->text ? (size_t)n : sizeof f->text - 1;
    if (error != 0) {
        char reason[128];
        snprintf(f->text + len, sizeof f->text - len, ": %s", strerror_r(error, reason, sizeof reason));
    }
    return false;
}

/* ---- descriptors */

void reserve_fill(struct log *l)
{
    for (int i = 0; i < LOG_RESERVE_FDS; i++)
        if (l->reserve_fds[i] < 0) l->reserve_fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* file_lock held. Closes the cold-read descriptor that was not used for longest; false when all are in use. */
static bool read_fd_close_oldest(struct log *l)
{
    uint32_t oldest = LOG_READ_FDS_MAX;
    for (uint32_t n = 0; n < l->read_open_count; n++) {
        struct segment *s = l->read_open[n];
        if (s->readers == 0 && (oldest == LOG_READ_FDS_MAX || s->read_turn < l->read_open[oldest]->read_turn)) oldest = n;
    }
    if (oldest == LOG_READ_FDS_MAX) return false;
    close(l->read_open[oldest]->read_fd);
    l->read_open[oldest]->read_fd = -1;
    l->read_open[oldest] = l->read_open[--l->read_open_count];
    return true;
}

static bool reserve_give(struct log *l)
{
    for (int i = 0; i < LOG_RESERVE_FDS; i++) {
        if (l->reserve_fds[i] < 0) continue;
        close(l->reserve_fds[i]);
        l->reserve_fds[i] = -1;
        return true;
    }
    return false;
}

int file_open(struct log *l, const char *name, int flags)
{
    for (;;) {
        int fd = openat(l->dir_fd, name, flags | O_CLOEXEC | O_NOFOLLOW, 0640);
        if (fd >= 0) return fd;
        int error = errno;
        if (error == EINTR) continue;
        bool more = false;
        if (error == EMFILE || error == ENFILE) {
            pthread_mutex_lock(&l->file_lock);
            more = read_fd_close_oldest(l) || reserve_give(l);
            pthread_mutex_unlock(&l->file_lock);
        }
        errno = error;
        if (!more) return -1;
    }
}

bool file_write(struct log *l, int fd, const char *at, size_t len, uint64_t offset, int *error)
{
    while (len > 0) {
        ssize_t n = pwrite(fd, at, len, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            *error = n < 0 ? errno : EIO;
            return false;
        }
        /* A short O_DIRECT write may end off a page: go on from the page's beginning. */
        size_t done = (size_t)n;
        if (l->direct && done < len) done = done / LOG_PAGE * LOG_PAGE;
        if (done == 0) {
            *error = ENOSPC;
            return false;
        }
        at += done;
        offset += done;
        len -= done;
    }
    return true;
}

/* A short read is the end of the file only when the file's size says so: the rest of the world is not trusted to be that simple. */
ssize_t file_read(int fd, char *at, size_t len, uint64_t offset, bool direct)
{
    size_t done = 0;
    while (done < len) {
        ssize_t n = pread(fd, at + done, len - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        done += (size_t)n;
        if (n == 0 || done == len) break;
        struct stat st;
        if (fstat(fd, &st) != 0) return -1;
        if (offset + done >= (uint64_t)st.st_size) break;
        if (direct && done % LOG_PAGE != 0) {
            if (n < LOG_PAGE) { /* neither the end nor progress */
                errno = EIO;
                return -1;
            }
            done -= done % LOG_PAGE;
        }
    }
    return (ssize_t)done;
}

bool dir_sync(struct log *l, struct fault *f)
{
    if (fsync(l->dir_fd) == 0) return true;
    f->final = true; /* a second try could succeed without having done what this one promised */
    return fault_say(f, errno, "cannot sync the directory %s", l->dir);
}

/* ---- the list */

struct segment *segment_new(uint64_t first_pos, uint64_t end_pos)
{
    struct segment *s = calloc(1, sizeof *s);
    must(s != NULL);
    s->first_pos = first_pos;
    s->end_pos = end_pos;
    s->fd = s->read_fd = -1;
    return s;
}

/* Number of the first segment that ends after pos. */
static uint32_t segment_search(const struct log *l, uint64_t pos)
{
    uint32_t low = 0, high = l->segment_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (l->segments[middle]->end_pos <= pos)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void segment_add(struct log *l, struct segment *s)
{
    must(l->segment_count == 0 || l->segments[l->segment_count - 1]->end_pos <= s->first_pos);
    if (l->segment_count == l->segment_cap) {
        l->segment_cap = l->segment_cap == 0 ? 64 : l->segment_cap * 2;
        l->segments = realloc(l->segments, l->segment_cap * sizeof(struct segment *));
        must(l->segments != NULL);
    }
    l->segments[l->segment_count++] = s;
}

struct segment *segment_at(struct log *l, uint64_t pos)
{
    uint32_t n = segment_search(l, pos);
    if (n == l->segment_count || l->segments[n]->first_pos > pos) return NULL;
    return l->segments[n];
}

static void write_fd_close(struct log *l, struct segment *s)
{
    if (!s->sealed || s->fd < 0 || s->readers != 0) return;
    close(s->fd);
    s->fd = -1;
    reserve_fill(l);
}

void segment_seal(struct log *l, struct segment *s)
{
    s->sealed = true;
    write_fd_close(l, s);
}

static void segment_free(struct segment *s)
{
    if (s->fd >= 0) close(s->fd);
    if (s->read_fd >= 0) close(s->read_fd);
    free(s);
}

void segments_close(struct log *l)
{
    for (uint32_t n = 0; n < l->segment_count; n++) segment_free(l->segments[n]);
    for (uint32_t n = 0; n < l->removal_count; n++) segment_free(l->removals[n]);
    free(l->segments);
    free(l->removals);
    for (int i = 0; i < LOG_RESERVE_FDS; i++)
        if (l->reserve_fds[i] >= 0) close(l->reserve_fds[i]);
}

bool log_covers(struct log *l, uint64_t first_pos, uint64_t end_pos)
{
    pthread_mutex_lock(&l->file_lock);
    uint32_t n = segment_search(l, first_pos);
    uint64_t pos = first_pos;
    while (pos < end_pos && n < l->segment_count && l->segments[n]->first_pos <= pos) {
        const struct segment *s = l->segments[n++];
        bool ends_here = end_pos <= s->end_pos;
        if (ends_here && s->sealed && end_pos - s->first_pos > s->file_bytes) break; /* the file was cut */
        pos = s->end_pos;
    }
    pthread_mutex_unlock(&l->file_lock);
    return pos >= end_pos;
}

/* ---- cold reads */

/* file_lock held; may let it go for the open. The segment is held by `readers`. -1 with errno. */
static int read_fd_get(struct log *l, struct segment *s)
{
    if (s->read_fd >= 0) return s->read_fd;
    char name[LOG_NAME_BYTES];
    segment_name(s->first_pos, name);
    pthread_mutex_unlock(&l->file_lock);
    int fd = file_open(l, name, O_RDONLY);
    int error = errno;
    pthread_mutex_lock(&l->file_lock);
    if (fd < 0) {
        errno = error;
        return s->read_fd; /* another reader may have had more luck */
    }
    if (s->read_fd >= 0) {
        close(fd);
        return s->read_fd;
    }
    s->read_fd = fd;
    if (l->read_open_count == LOG_READ_FDS_MAX) read_fd_close_oldest(l);
    if (l->read_open_count < LOG_READ_FDS_MAX && !s->removed) l->read_open[l->read_open_count++] = s;
    return fd;
}

static bool read_fd_listed(const struct log *l, const struct segment *s)
{
    for (uint32_t n = 0; n < l->read_open_count; n++)
        if (l->read_open[n] == s) return true;
    return false;
}

/* file_lock held. */
static void read_done(struct log *l, struct segment *s)
{
    must(s->readers > 0);
    if (--s->readers != 0) return;
    write_fd_close(l, s);
    if (s->read_fd >= 0 && !read_fd_listed(l, s)) {
        close(s->read_fd);
        s->read_fd = -1;
        reserve_fill(l);
    }
    if (s->removed) pthread_cond_signal(&l->keeper_cond);
}

bool log_segment_next(struct log *l, uint64_t from, uint64_t *first_pos, uint64_t *end_pos)
{
    pthread_mutex_lock(&l->file_lock);
    uint32_t n = segment_search(l, from);
    while (n < l->segment_count && l->segments[n]->first_pos < from) n++;
    const struct segment *s = n < l->segment_count ? l->segments[n] : NULL;
    if (s != NULL) {
        *first_pos = s->first_pos;
        *end_pos = s->end_pos;
    }
    pthread_mutex_unlock(&l->file_lock);
    return s != NULL;
}

bool sealed_next(struct log *l, uint64_t from, uint64_t *first_pos, uint64_t *end_pos)
{
    const struct segment *s = NULL;
    pthread_mutex_lock(&l->file_lock);
    for (uint32_t n = 0; n < l->segment_count && s == NULL; n++)
        if (l->segments[n]->first_pos >= from) s = l->segments[n];
    bool found = s != NULL && s->sealed && s != l->write_seg; /* else what is behind it is not sealed either */
    if (found) {
        *first_pos = s->first_pos;
        *end_pos = s->end_pos;
    }
    pthread_mutex_unlock(&l->file_lock);
    return found;
}

/* Through O_DIRECT, a megabyte at a time: a file that is still written must not get pages into the kernel's cache. */
static ssize_t read_aligned(int fd, char *out, size_t len, uint64_t offset)
{
    size_t slice = 1 << 20;
    uint64_t need = round_up(offset % LOG_PAGE + len, LOG_PAGE);
    size_t room = need < slice ? need : slice;
    char *bounce = aligned_alloc(LOG_PAGE, room);
    must(bounce != NULL);
    size_t done = 0;
    while (done < len) {
        uint64_t at = offset + done, page = at / LOG_PAGE * LOG_PAGE;
        size_t want = round_up(len - done + (at - page), LOG_PAGE);
        ssize_t n = file_read(fd, bounce, want < room ? want : room, page, true);
        if (n < 0) {
            free(bounce);
            return -1;
        }
        size_t lead = at - page, have = (size_t)n > lead ? (size_t)n - lead : 0;
        if (have > len - done) have = len - done;
        if (have == 0) break;
        memcpy(out + done, bounce + lead, have);
        done += have;
    }
    free(bounce);
    return (ssize_t)done;
}

static enum log_status read_cold(struct log *l, uint64_t pos, size_t len, char *out)
{
    pthread_mutex_lock(&l->file_lock);
    struct segment *s = segment_at(l, pos);
    if (s == NULL || s->end_pos - pos < len) {
        pthread_mutex_unlock(&l->file_lock);
        return LOG_DAMAGED;
    }
    s->readers++;
    s->read_turn = ++l->read_turn;
    bool aligned = l->direct && !s->sealed;
    int fd = aligned ? s->fd : read_fd_get(l, s);
    int error = errno;
    uint64_t offset = pos - s->first_pos;
    pthread_mutex_unlock(&l->file_lock);

    ssize_t n = -1;
    if (fd >= 0) {
        n = aligned ? read_aligned(fd, out, len, offset) : file_read(fd, out, len, offset, false);
        error = errno;
    }
    pthread_mutex_lock(&l->file_lock);
    read_done(l, s);
    pthread_mutex_unlock(&l->file_lock);
    if (n == (ssize_t)len) return LOG_OK;
    return n < 0 && error != ENOENT ? LOG_IO : LOG_DAMAGED;
}

enum log_status log_read(struct log *l, uint64_t pos, size_t len, char *out)
{
    struct slice seen;
    struct log_pin pin;
    if (log_view(l, pos, len, &seen, &pin)) {
        if (len != 0) memcpy(out, seen.at, len);
        log_unpin(l, pin);
        return LOG_OK;
    }
    atomic_fetch_add_explicit(&l->cold_reads, 1, memory_order_relaxed);
    return read_cold(l, pos, len, out);
}

enum log_status log_read_record(struct log *l, uint64_t pos, size_t len, char *out)
{
    struct slice seen;
    struct log_pin pin;
    struct record_head h;
    if (log_view(l, pos, len, &seen, &pin)) {
        if (len != 0) memcpy(out, seen.at, len);
        log_unpin(l, pin);
        return LOG_OK;
    }
    atomic_fetch_add_explicit(&l->cold_reads, 1, memory_order_relaxed);
    enum log_status status = read_cold(l, pos - LOG_HEAD, LOG_HEAD, (char *)&h);
    if (status == LOG_OK) status = read_cold(l, pos, len, out);
    if (status != LOG_OK) return status;
    bool good = record_head_valid(l, pos - LOG_HEAD, &h) && h.len == len && h.body_crc == record_body_crc(l, out, len);
    return good ? LOG_OK : LOG_DAMAGED;
}

/* ---- trim */

/* file_lock held. */
static void segment_remove(struct log *l, struct segment *s)
{
    uint32_t n = segment_search(l, s->first_pos);
    must(n < l->segment_count && l->segments[n] == s);
    memmove(&l->segments[n], &l->segments[n + 1], (l->segment_count - n - 1) * sizeof(struct segment *));
    l->segment_count--;
    for (uint32_t r = 0; r < l->read_open_count; r++) {
        if (l->read_open[r] != s) continue;
        l->read_open[r] = l->read_open[--l->read_open_count];
        break;
    }
    s->removed = true;
    if (l->removal_count == l->removal_cap) {
        l->removal_cap = l->removal_cap == 0 ? 16 : l->removal_cap * 2;
        l->removals = realloc(l->removals, l->removal_cap * sizeof(struct segment *));
        must(l->removals != NULL);
    }
    l->removals[l->removal_count++] = s;
}

void log_trim(struct log *l, uint64_t pos, bool (*wanted)(void *ctx, uint64_t first_pos, uint64_t end_pos), void *ctx)
{
    uint64_t from = 0;
    bool any = false;
    for (;;) {
        /* Only this thread removes segments and the written one is never removed, so the range stays valid outside the lock. */
        pthread_mutex_lock(&l->file_lock);
        uint32_t n = segment_search(l, from);
        struct segment *s = n < l->segment_count ? l->segments[n] : NULL;
        bool behind = s != NULL && s->end_pos <= pos && l->write_seg != NULL && s->end_pos <= l->write_seg->first_pos;
        pthread_mutex_unlock(&l->file_lock);
        if (!behind) break;
        from = s->end_pos;
        if (wanted != NULL && wanted(ctx, s->first_pos, s->end_pos)) continue;
        if (!any) crash_point("trim-before");
        any = true;
        pthread_mutex_lock(&l->file_lock);
        segment_remove(l, s);
        pthread_cond_signal(&l->keeper_cond);
        pthread_mutex_unlock(&l->file_lock);
    }
}
