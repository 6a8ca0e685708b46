/* The keeper thread: everything about files that nobody should wait for.
 *
 *   next segment   spare or new file -> file head (and first zeros) -> fdatasync -> rename to its name -> sync of the directory
 *   zeroing        ZERO_AHEAD_BYTES ahead of the writer, in its segment and the next one, a slice at a time, each slice synced, so
 *                  that the disk thread's writes change no metadata. Paced: without haste unless the writer comes near. Not
 *                  further ahead: what is zeroed must be read at the next start, to see that nothing is there, and a writer below
 *                  LOG_FAST_BYTES_S is four seconds away. Not while writes are large, or so many that more than LOG_FAST_BYTES_S
 *                  were written in one of the last LOG_FAST_PERIODS: they gain little, and every byte would go to the disk twice
 *   removing       trimmed files become spares or are unlinked; then the directory is synced. A spare that has another name besides
 *                  (hard link) is not written to again
 *
 * A name NNN.seg appears only over a file whose head is durable, and the next name only after the disk thread has entered the
 * segment before it: so a missing file between two others is always damage.
 *
 * Zeroing and data never meet: the disk thread announces how far its write goes (`claimed`) and waits for a slice that
 * overlaps (`zero_from`, `zero_to`); the keeper begins every slice behind `claimed`.
 *
 * Failures: a next segment that cannot be made ahead of time (no space, no descriptor) is tried again when the disk thread
 * needs it; then, and for everything on named files, a failure is final (log_fail). */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/crash_point.h"
#include "base/logger.h"
#include "log/log_internal.h"

enum { PACE_MS = 3, ZERO_AHEAD_BYTES = 8 << 20, ZERO_WRITES_MAX = 256 << 10 };

static const char NEXT_NAME[] = "next.tmp";

static void spare_name(uint32_t id, char out[LOG_NAME_BYTES])
{
    snprintf(out, LOG_NAME_BYTES, "spare-%u.tmp", id);
}

/* ---- the next segment */

static bool file_begin(struct log *l, int fd, struct segment *s, bool fresh, struct fault *f)
{
    char *page = aligned_alloc(LOG_PAGE, LOG_PAGE);
    must(page != NULL);
    file_head_make(l, s->first_pos, s->end_pos - s->first_pos, page);
    int error = 0;
    bool ok = true;
    if (fresh) {
        /* Claims the space, so that a full disk shows now and not in the middle of a write. */
        if (fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)l->segment_bytes) != 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
            error = errno;
            ok = false;
        }
        ok = ok && file_write(l, fd, l->zeros, LOG_FIRST_ZERO_BYTES, 0, &error);
        s->zeroed = LOG_FIRST_ZERO_BYTES;
    } else {
        struct stat st;
        ok = fstat(fd, &st) == 0;
        if (!ok) error = errno;
        s->zeroed = ok ? (uint64_t)st.st_size / LOG_PAGE * LOG_PAGE : 0;
    }
    ok = ok && file_write(l, fd, page, LOG_PAGE, 0, &error);
    free(page);
    if (ok && fdatasync(fd) != 0) {
        error = errno;
        ok = false;
    }
    s->file_bytes = s->zeroed;
    char name[LOG_NAME_BYTES];
    segment_name(s->first_pos, name);
    return ok || fault_say(f, error, "cannot prepare the log file %s/%s", l->dir, name);
}

static bool spare_take(struct log *l, uint32_t *id)
{
    pthread_mutex_lock(&l->file_lock);
    bool have = l->spare_count > 0;
    if (have) *id = l->spare_ids[--l->spare_count];
    pthread_mutex_unlock(&l->file_lock);
    return have;
}

/* Somebody may still read a trimmed file by a name of his own (a snapshot's link): it is his then. Nobody makes links of a spare, so
 * the answer stays true. */
static bool spare_is_ours(struct log *l, const char *name)
{
    struct stat st;
    if (fstatat(l->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_nlink == 1) return true;
    unlinkat(l->dir_fd, name, 0);
    return false;
}

bool segment_make(struct log *l, uint64_t first_pos, struct segment **out, struct fault *f)
{
    struct segment *s = segment_new(first_pos, first_pos + l->segment_bytes);
    char temporary[LOG_NAME_BYTES], name[LOG_NAME_BYTES];
    segment_name(first_pos, name);
    uint32_t spare;
    bool reuse = false;
    while (!reuse && spare_take(l, &spare)) {
        spare_name(spare, temporary);
        reuse = spare_is_ours(l, temporary);
    }
    if (!reuse) snprintf(temporary, sizeof temporary, "%s", NEXT_NAME);
    int flags = O_RDWR | (reuse ? 0 : O_CREAT | O_TRUNC) | (l->direct ? O_DIRECT : 0);
    s->fd = file_open(l, temporary, flags);
    bool ok = s->fd >= 0 || fault_say(f, errno, "cannot open the log file %s/%s", l->dir, temporary);
    ok = ok && file_begin(l, s->fd, s, !reuse, f);
    if (ok && renameat(l->dir_fd, temporary, l->dir_fd, name) != 0)
        ok = fault_say(f, errno, "cannot rename %s/%s to %s", l->dir, temporary, name);
    if (!ok) {
        unlinkat(l->dir_fd, temporary, 0);
        if (s->fd >= 0) close(s->fd);
        free(s);
        return false;
    }
    /* The name exists from here on: whether it is durable is known only if this sync succeeds. */
    if (!dir_sync(l, f)) {
        close(s->fd);
        free(s);
        return false;
    }
    crash_point("log-segment-created");
    *out = s;
    return true;
}

/* file_lock held; lets it go. */
static void next_make(struct log *l)
{
    uint64_t pos = l->want_pos;
    bool urgent = l->want_urgent;
    pthread_mutex_unlock(&l->file_lock);
    struct segment *s = NULL;
    struct fault f = {.final = urgent};
    bool ok = segment_make(l, pos, &s, &f);
    if (!ok && f.final) log_fail(l, &f);
    if (!ok && !f.final) log_warn("log: %s; it is tried again when it is needed", f.text);
    pthread_mutex_lock(&l->file_lock);
    if (ok)
        segment_add(l, s);
    else
        l->want_gave_up = true;
    pthread_cond_broadcast(&l->file_cond);
}

static bool next_wanted(struct log *l)
{
    return l->want_pos != 0 && !l->want_gave_up && segment_at(l, l->want_pos) == NULL;
}

/* ---- zeroing */

/* Where the next slice of the segment would begin; its length when there is nothing to do. All of zeroing: file_lock held. */
static uint64_t zero_begin(const struct segment *s)
{
    uint64_t len = s->end_pos - s->first_pos, claimed = round_up(s->claimed, LOG_PAGE);
    uint64_t at = s->zeroed > claimed ? s->zeroed : claimed;
    return s->sealed || s->fd < 0 || at > len ? len : at;
}

/* The segment that should get its next slice of zeros, or NULL. Once the writer has come to within half of the distance, zeroing
 * goes on until the whole of it is there: many slices a wake-up. */
struct segment *zero_pick(struct log *l, bool *slow)
{
    struct segment *now = l->write_seg, *next = NULL;
    if (now == NULL || l->write_mean > ZERO_WRITES_MAX || l->fast_periods > 0) return NULL;
    uint64_t len = now->end_pos - now->first_pos, begin = zero_begin(now);
    uint64_t ahead = begin > now->claimed ? begin - now->claimed : 0;
    if (begin == len) {
        next = segment_at(l, now->end_pos);
        if (next == NULL) return NULL;
        begin = zero_begin(next);
        ahead += begin;
        len = next->end_pos - next->first_pos;
    }
    if (ahead >= ZERO_AHEAD_BYTES) l->zeroing = false;
    if (ahead < ZERO_AHEAD_BYTES / 2) l->zeroing = true;
    *slow = ahead > ZERO_AHEAD_BYTES / 4;
    if (!l->zeroing || begin == len) return NULL;
    return next != NULL ? next : now;
}

/* file_lock held; lets it go for the write. */
static bool zero_slice(struct log *l, struct segment *s, struct fault *f)
{
    uint64_t from = zero_begin(s), len = s->end_pos - s->first_pos - from;
    if (len > LOG_ZERO_SLICE_BYTES) len = LOG_ZERO_SLICE_BYTES;
    s->zero_from = from;
    s->zero_to = from + len;
    int fd = s->fd, error = 0;
    s->readers++; /* keeps the descriptor */
    pthread_mutex_unlock(&l->file_lock);
    bool written = file_write(l, fd, l->zeros, len, from, &error), ok = written;
    pthread_mutex_lock(&l->file_lock);
    s->zero_from = s->zero_to = 0;
    pthread_cond_broadcast(&l->file_cond);
    pthread_mutex_unlock(&l->file_lock);
    if (ok && fdatasync(fd) != 0) {
        error = errno;
        ok = false;
    }
    pthread_mutex_lock(&l->file_lock);
    if (ok) s->zeroed = from + len;
    if (ok && s->file_bytes < s->zeroed) s->file_bytes = s->zeroed;
    if (--s->readers == 0 && s->sealed) segment_seal(l, s);
    if (ok) return true;
    char name[LOG_NAME_BYTES];
    segment_name(s->first_pos, name);
    if (!written && (error == ENOSPC || error == EDQUOT)) { /* nothing is lost by it: the rest stays as it is */
        log_warn("log: no space to write zeros ahead to %s/%s", l->dir, name);
        s->zeroed = s->end_pos - s->first_pos;
        return true;
    }
    return fault_say(f, error, "cannot write zeros to the log file %s/%s", l->dir, name);
}

/* file_lock held. Gives the disk a rest between slices; orders end it early. */
static void pace(struct log *l)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += PACE_MS * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&l->keeper_cond, &l->file_lock, &until);
}

/* ---- removing */

/* Takes a removed segment without readers from the list. */
static struct segment *removal_take(struct log *l)
{
    for (uint32_t n = 0; n < l->removal_count; n++) {
        struct segment *s = l->removals[n];
        if (s->readers != 0) continue;
        l->removals[n] = l->removals[--l->removal_count];
        return s;
    }
    return NULL;
}

/* file_lock held; lets it go. A file of the usual size becomes a spare; its old bytes are never valid in another place. */
static bool removal_do(struct log *l, struct segment *s, struct fault *f)
{
    char name[LOG_NAME_BYTES], spare[LOG_NAME_BYTES];
    bool keep = !l->o.sparse && l->spare_count < LOG_SPARES_MAX && s->end_pos - s->first_pos == l->segment_bytes;
    uint32_t id = l->spare_next++;
    pthread_mutex_unlock(&l->file_lock);
    segment_name(s->first_pos, name);
    spare_name(id, spare);
    if (s->read_fd >= 0) {
        posix_fadvise(s->read_fd, 0, 0, POSIX_FADV_DONTNEED);
        close(s->read_fd);
    }
    if (s->fd >= 0) close(s->fd);
    if (keep) keep = renameat(l->dir_fd, name, l->dir_fd, spare) == 0;
    if (!keep && unlinkat(l->dir_fd, name, 0) != 0 && errno != ENOENT)
        log_warn("log: cannot remove %s/%s: %s", l->dir, name, strerror(errno));
    free(s);
    bool ok = dir_sync(l, f);
    if (ok) crash_point("trim-after");
    pthread_mutex_lock(&l->file_lock);
    if (keep) l->spare_ids[l->spare_count++] = id;
    l->want_gave_up = false; /* there is space again */
    reserve_fill(l);
    return ok;
}

void *keeper_main(void *log)
{
    struct log *l = log;
    struct fault f = {.final = true};
    struct segment *s;
    bool ok = true, slow;
    pthread_mutex_lock(&l->file_lock);
    while (!l->keeper_stop) {
        if (!ok) {
            pthread_cond_wait(&l->keeper_cond, &l->file_lock);
            continue;
        }
        if (next_wanted(l)) {
            next_make(l);
        } else if ((s = removal_take(l)) != NULL) {
            ok = removal_do(l, s, &f);
        } else if ((s = zero_pick(l, &slow)) != NULL) {
            ok = zero_slice(l, s, &f);
            if (ok && slow && !l->keeper_stop) pace(l);
        } else {
            pthread_cond_wait(&l->keeper_cond, &l->file_lock);
        }
        if (!ok) {
            pthread_mutex_unlock(&l->file_lock);
            log_fail(l, &f);
            pthread_mutex_lock(&l->file_lock);
        }
    }
    pthread_mutex_unlock(&l->file_lock);
    return NULL;
}
