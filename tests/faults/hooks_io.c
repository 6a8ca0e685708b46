/* hooks_io.c - the libc functions the library takes over: reads, writes, sizes. */
#define _GNU_SOURCE
#include "faults.h"
#include "hooks.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NO_OFFSET = -1 };

static size_t iov_bytes(const struct iovec *iov, int count)
{
    size_t total = 0;
    for (int i = 0; i < count; i++) total += iov[i].iov_len;
    return total;
}

/* ---- writes ---- */

static long write_raw(int fd, const struct iovec *iov, int count, off_t offset, int flags)
{
    if (offset == NO_OFFSET && flags == 0) return syscall(SYS_writev, fd, iov, count);
    return syscall(SYS_pwritev2, fd, iov, count, (long)offset, 0L, flags);
}

/* Writes the first bytes_max bytes only. */
static long write_cut(int fd, const struct iovec *iov, int count, off_t offset, size_t bytes_max)
{
    long done = 0;
    for (int i = 0; i < count && bytes_max > 0; i++) {
        size_t part = iov[i].iov_len < bytes_max ? iov[i].iov_len : bytes_max;
        struct iovec one = {.iov_base = iov[i].iov_base, .iov_len = part};
        long n = write_raw(fd, &one, 1, offset == NO_OFFSET ? NO_OFFSET : offset + done, 0);
        if (n < 0) return done > 0 ? done : n;
        done += n;
        bytes_max -= (size_t)n;
        if ((size_t)n < part) break;
    }
    return done;
}

static long write_watched(int fd, struct node *node, int open_flags, const struct iovec *iov, int count, off_t offset,
                          int flags)
{
    struct fault_verdict verdict = fault_check(FAULT_WRITE, node->path);
    size_t len = iov_bytes(iov, count);
    if (verdict.error && verdict.bytes_max >= len) {
        errno = verdict.error;
        return -1;
    }
    bool tracking = fault_settings()->tracking;
    uint64_t record_at = 0;
    pthread_mutex_lock(&node->lock);
    if (tracking && len > 0) {
        struct stat st;
        if (fstat(fd, &st) != 0) fault_die("cannot stat", node->path);
        off_t at = offset;
        if (open_flags & O_APPEND)
            at = st.st_size;
        else if (offset == NO_OFFSET)
            at = lseek(fd, 0, SEEK_CUR);
        if (at < 0) fault_die("cannot tell the position in", node->path);
        record_at = undo_save(node, fd, UNDO_WRITE, (uint64_t)at, len, (uint64_t)st.st_size);
        stat_add(STAT_WRITES, 1);
        stat_add(STAT_WRITE_BYTES, len);
    }
    long result = verdict.bytes_max < len ? write_cut(fd, iov, count, offset, verdict.bytes_max)
                                          : write_raw(fd, iov, count, offset, flags);
    int error = errno;
    if (tracking && result > 0 && (size_t)result == len && ((open_flags & O_DSYNC) || (flags & (RWF_DSYNC | RWF_SYNC))))
        undo_keep(node, record_at);
    pthread_mutex_unlock(&node->lock);
    if (verdict.kill_after) fault_kill_self();
    errno = verdict.error ? verdict.error : error;
    return verdict.error ? -1 : result;
}

static long write_any(int fd, const struct iovec *iov, int count, off_t offset, int flags)
{
    int open_flags = 0;
    struct node *node = table_get(fd, &open_flags);
    return node ? write_watched(fd, node, open_flags, iov, count, offset, flags) : write_raw(fd, iov, count, offset, flags);
}

HOOK ssize_t write(int fd, const void *at, size_t len)
{
    if (!table_get(fd, NULL)) return syscall(SYS_write, fd, at, len);
    struct iovec iov = {.iov_base = (void *)(uintptr_t)at, .iov_len = len};
    return write_any(fd, &iov, 1, NO_OFFSET, 0);
}
HOOK ssize_t pwrite(int fd, const void *at, size_t len, off_t offset)
{
    if (!table_get(fd, NULL)) return syscall(SYS_pwrite64, fd, at, len, offset);
    struct iovec iov = {.iov_base = (void *)(uintptr_t)at, .iov_len = len};
    return write_any(fd, &iov, 1, offset, 0);
}
HOOK ssize_t pwrite64(int fd, const void *at, size_t len, off64_t offset)
{
    return pwrite(fd, at, len, offset);
}
HOOK ssize_t writev(int fd, const struct iovec *iov, int count)
{
    return write_any(fd, iov, count, NO_OFFSET, 0);
}
HOOK ssize_t pwritev(int fd, const struct iovec *iov, int count, off_t offset)
{
    return write_any(fd, iov, count, offset, 0);
}
HOOK ssize_t pwritev64(int fd, const struct iovec *iov, int count, off64_t offset)
{
    return write_any(fd, iov, count, offset, 0);
}
HOOK ssize_t pwritev2(int fd, const struct iovec *iov, int count, off_t offset, int flags)
{
    return write_any(fd, iov, count, offset, flags);
}
HOOK ssize_t pwritev64v2(int fd, const struct iovec *iov, int count, off64_t offset, int flags)
{
    return write_any(fd, iov, count, offset, flags);
}

/* ---- reads: only for faults ---- */

static long read_any(int fd, const struct iovec *iov, int count, off_t offset, int flags)
{
    struct node *node = table_get(fd, NULL);
    struct fault_verdict verdict = {.bytes_max = SIZE_MAX};
    if (node) verdict = fault_check(FAULT_READ, node->path);
    if (verdict.error) {
        errno = verdict.error;
        return -1;
    }
    if (verdict.bytes_max < iov_bytes(iov, count)) {
        struct iovec one = {.iov_base = iov[0].iov_base,
                            .iov_len = iov[0].iov_len < verdict.bytes_max ? iov[0].iov_len : verdict.bytes_max};
        return offset == NO_OFFSET ? syscall(SYS_readv, fd, &one, 1) : syscall(SYS_preadv, fd, &one, 1, (long)offset, 0L);
    }
    if (offset == NO_OFFSET && flags == 0) return syscall(SYS_readv, fd, iov, count);
    return syscall(SYS_preadv2, fd, iov, count, (long)offset, 0L, flags);
}

HOOK ssize_t read(int fd, void *at, size_t len)
{
    if (!table_get(fd, NULL)) return syscall(SYS_read, fd, at, len);
    struct iovec iov = {.iov_base = at, .iov_len = len};
    return read_any(fd, &iov, 1, NO_OFFSET, 0);
}
HOOK ssize_t pread(int fd, void *at, size_t len, off_t offset)
{
    if (!table_get(fd, NULL)) return syscall(SYS_pread64, fd, at, len, offset);
    struct iovec iov = {.iov_base = at, .iov_len = len};
    return read_any(fd, &iov, 1, offset, 0);
}
HOOK ssize_t pread64(int fd, void *at, size_t len, off64_t offset)
{
    return pread(fd, at, len, offset);
}
HOOK ssize_t readv(int fd, const struct iovec *iov, int count)
{
    return read_any(fd, iov, count, NO_OFFSET, 0);
}
HOOK ssize_t preadv(int fd, const struct iovec *iov, int count, off_t offset)
{
    return read_any(fd, iov, count, offset, 0);
}
HOOK ssize_t preadv64(int fd, const struct iovec *iov, int count, off64_t offset)
{
    return read_any(fd, iov, count, offset, 0);
}
HOOK ssize_t preadv2(int fd, const struct iovec *iov, int count, off_t offset, int flags)
{
    return read_any(fd, iov, count, offset, flags);
}

/* libc's checked variants; the buffer size was checked by the compiler's caller */
ssize_t __read_chk(int fd, void *at, size_t len, size_t room);
ssize_t __pread_chk(int fd, void *at, size_t len, off_t offset, size_t room);
ssize_t __pread64_chk(int fd, void *at, size_t len, off64_t offset, size_t room);

HOOK ssize_t __read_chk(int fd, void *at, size_t len, size_t room)
{
    if (len > room) fault_die("read beyond its buffer", "__read_chk");
    return read(fd, at, len);
}
HOOK ssize_t __pread_chk(int fd, void *at, size_t len, off_t offset, size_t room)
{
    if (len > room) fault_die("read beyond its buffer", "__pread_chk");
    return pread(fd, at, len, offset);
}
HOOK ssize_t __pread64_chk(int fd, void *at, size_t len, off64_t offset, size_t room)
{
    return __pread_chk(fd, at, len, offset, room);
}

/* ---- sizes ---- */

static int truncate_watched(int fd, struct node *node, off_t size)
{
    struct fault_verdict verdict = fault_check(FAULT_TRUNCATE, node->path);
    if (verdict.error) {
        errno = verdict.error;
        return -1;
    }
    pthread_mutex_lock(&node->lock);
    struct stat st;
    if (fault_settings()->tracking) {
        if (fstat(fd, &st) != 0) fault_die("cannot stat", node->path);
        if (size < st.st_size)
            undo_save(node, fd, UNDO_TRUNCATE, (uint64_t)size, (uint64_t)(st.st_size - size), (uint64_t)st.st_size);
        else if (size > st.st_size)
            undo_save(node, fd, UNDO_TRUNCATE, (uint64_t)st.st_size, (uint64_t)(size - st.st_size), (uint64_t)st.st_size);
    }
    int result = (int)syscall(SYS_ftruncate, fd, size);
    pthread_mutex_unlock(&node->lock);
    if (verdict.kill_after) fault_kill_self();
    return result;
}

HOOK int ftruncate(int fd, off_t size)
{
    struct node *node = table_get(fd, NULL);
    return node ? truncate_watched(fd, node, size) : (int)syscall(SYS_ftruncate, fd, size);
}
HOOK int ftruncate64(int fd, off64_t size)
{
    return ftruncate(fd, size);
}
HOOK int truncate(const char *path, off_t size)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return -1;
    int result = ftruncate(fd, size);
    int error = errno;
    close(fd);
    errno = error;
    return result;
}
HOOK int truncate64(const char *path, off64_t size)
{
    return truncate(path, size);
}

/* Saves what an allocation would replace or how it would grow the file. */
static void allocate_save(int fd, struct node *node, int mode, off_t offset, off_t len)
{
    struct stat st;
    if (fstat(fd, &st) != 0) fault_die("cannot stat", node->path);
    if (mode & ~(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE))
        fault_die("fallocate mode is not supported on", node->path);
    bool zeroes = (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) != 0;
    off_t end = offset + len;
    if ((mode & FALLOC_FL_KEEP_SIZE) && end > st.st_size) end = st.st_size;
    if (!zeroes && offset < st.st_size) offset = st.st_size < end ? st.st_size : end;
    if (end > offset) undo_save(node, fd, UNDO_WRITE, (uint64_t)offset, (uint64_t)(end - offset), (uint64_t)st.st_size);
}

static int allocate_any(int fd, int mode, off_t offset, off_t len)
{
    struct node *node = table_get(fd, NULL);
    if (!node) return (int)syscall(SYS_fallocate, fd, mode, offset, len);
    struct fault_verdict verdict = fault_check(FAULT_ALLOCATE, node->path);
    if (verdict.error) {
        errno = verdict.error;
        return -1;
    }
    pthread_mutex_lock(&node->lock);
    if (fault_settings()->tracking) allocate_save(fd, node, mode, offset, len);
    int result = (int)syscall(SYS_fallocate, fd, mode, offset, len);
    int error = errno;
    pthread_mutex_unlock(&node->lock);
    if (verdict.kill_after) fault_kill_self();
    errno = error;
    return result;
}

HOOK int fallocate(int fd, int mode, off_t offset, off_t len)
{
    return allocate_any(fd, mode, offset, len);
}
HOOK int fallocate64(int fd, int mode, off64_t offset, off64_t len)
{
    return allocate_any(fd, mode, offset, len);
}
HOOK int posix_fallocate(int fd, off_t offset, off_t len)
{
    int before = errno;
    int error = allocate_any(fd, 0, offset, len) == 0 ? 0 : errno;
    errno = before;
    return error;
}
HOOK int posix_fallocate64(int fd, off64_t offset, off64_t len)
{
    return posix_fallocate(fd, offset, len);
}

/* ---- ways to write that are not modelled: say so instead of missing them ---- */

HOOK void *mmap(void *address, size_t len, int protection, int flags, int fd, off_t offset)
{
    struct node *node = fd >= 0 && (flags & MAP_SHARED) && (protection & PROT_WRITE) ? table_get(fd, NULL) : NULL;
    if (node && fault_settings()->tracking) fault_die("a shared writable mapping is not modelled", node->path);
    return (void *)syscall(SYS_mmap, address, len, protection, flags, fd, offset);
}
HOOK void *mmap64(void *address, size_t len, int protection, int flags, int fd, off64_t offset)
{
    return mmap(address, len, protection, flags, fd, offset);
}

HOOK ssize_t copy_file_range(int from, off64_t *from_offset, int to, off64_t *to_offset, size_t len, unsigned flags)
{
    if (table_get(to, NULL) && fault_settings()->tracking)
        fault_die("copy_file_range is not modelled", table_get(to, NULL)->path);
    return syscall(SYS_copy_file_range, from, from_offset, to, to_offset, len, flags);
}
HOOK ssize_t sendfile(int to, int from, off_t *offset, size_t len)
{
    if (table_get(to, NULL) && fault_settings()->tracking) fault_die("sendfile is not modelled", table_get(to, NULL)->path);
    return syscall(SYS_sendfile, to, from, offset, len);
}
HOOK ssize_t sendfile64(int to, int from, off64_t *offset, size_t len)
{
    return sendfile(to, from, offset, len);
}
