#include "base/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { COPY_BYTES = 1 << 20, TREE_DEPTH_MAX = 16, FILE_MODE = 0640, DIR_MODE = 0750 };

static int open_retry(int dir, const char *path, int flags, int *fd)
{
    do {
        *fd = openat(dir, path, flags | O_CLOEXEC, FILE_MODE);
    } while (*fd < 0 && errno == EINTR);
    return *fd < 0 ? errno : 0;
}

static int sync_retry(int fd)
{
    int rv;
    do {
        rv = fsync(fd);
    } while (rv != 0 && errno == EINTR);
    return rv == 0 ? 0 : errno;
}

static int write_all(int fd, const char *at, size_t len, uint64_t offset)
{
    while (len > 0) {
        ssize_t n = pwrite(fd, at, len, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (n == 0) return ENOSPC;
        at += n;
        offset += (uint64_t)n;
        len -= (size_t)n;
    }
    return 0;
}

/* Bytes read, or -1 with errno; less than len only at the end of the file. */
static ssize_t read_all(int fd, char *at, size_t len, uint64_t offset)
{
    size_t done = 0;
    while (done < len) {
        ssize_t n = pread(fd, at + done, len - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        if (n == 0) break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

/* ---- directories */

struct entries {
    struct files_entry *at;
    size_t count, cap;
};

static void entries_put(struct entries *all, const char *name, const struct stat *st)
{
    if (all->count == all->cap) {
        all->cap = all->cap == 0 ? 16 : all->cap * 2;
        all->at = realloc(all->at, all->cap * sizeof *all->at);
        must(all->at != NULL);
    }
    struct files_entry *e = &all->at[all->count++];
    *e = (struct files_entry){.bytes = (uint64_t)st->st_size, .is_dir = S_ISDIR(st->st_mode)};
    snprintf(e->name, sizeof e->name, "%s", name);
}

static int entries_order(const void *a, const void *b)
{
    return strcmp(((const struct files_entry *)a)->name, ((const struct files_entry *)b)->name);
}

static int entries_read(DIR *d, struct entries *all)
{
    for (;;) {
        errno = 0;
        struct dirent *e = readdir(d);
        if (e == NULL) break;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        struct stat st;
        if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            entries_put(all, e->d_name, &st);
        else if (errno != ENOENT) /* gone meanwhile is fine */
            break;
    }
    int code = errno;
    if (code == 0 && all->count > 1) qsort(all->at, all->count, sizeof *all->at, entries_order);
    return code;
}

int files_list(const char *dir, bool (*entry)(void *ctx, const struct files_entry *e), void *ctx)
{
    DIR *d = opendir(dir);
    if (d == NULL) return errno;
    struct entries all = {0};
    int code = entries_read(d, &all);
    closedir(d);
    for (size_t n = 0; code == 0 && n < all.count; n++)
        if (!entry(ctx, &all.at[n])) break;
    free(all.at);
    return code;
}

int files_make_dir(const char *dir)
{
    if (mkdir(dir, DIR_MODE) == 0) return 0;
    int code = errno;
    struct stat st;
    return code == EEXIST && stat(dir, &st) == 0 && S_ISDIR(st.st_mode) ? 0 : code;
}

/* Syncs the directory that holds `path`. */
static int parent_sync(const char *path)
{
    char dir[FILES_PATH_BYTES];
    int n = snprintf(dir, sizeof dir, "%s", path);
    if (n < 0 || (size_t)n >= sizeof dir) return ENAMETOOLONG;
    char *slash = strrchr(dir, '/');
    if (slash == NULL) return files_sync(".");
    if (slash == dir) slash++;
    *slash = '\0';
    return files_sync(dir);
}

int files_rename(const char *from, const char *to)
{
    if (rename(from, to) != 0) return errno;
    int code = parent_sync(to);
    return code != 0 ? code : parent_sync(from);
}

int files_remove(const char *path)
{
    return unlink(path) == 0 || errno == ENOENT ? 0 : errno;
}

/* Empties the open directory, which it closes. */
static int tree_empty(int fd, unsigned depth)
{
    DIR *d = fdopendir(fd);
    if (d == NULL) {
        int code = errno;
        close(fd);
        return code;
    }
    struct entries all = {0};
    int code = depth == TREE_DEPTH_MAX ? ELOOP : entries_read(d, &all);
    for (size_t n = 0; code == 0 && n < all.count; n++) {
        const struct files_entry *e = &all.at[n];
        int sub;
        if (e->is_dir) code = open_retry(dirfd(d), e->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, &sub);
        if (e->is_dir && code == 0) code = tree_empty(sub, depth + 1);
        if (code == 0 && unlinkat(dirfd(d), e->name, e->is_dir ? AT_REMOVEDIR : 0) != 0 && errno != ENOENT) code = errno;
    }
    free(all.at);
    closedir(d);
    return code;
}

int files_remove_tree(const char *dir)
{
    int fd, code = open_retry(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, &fd);
    if (code == ENOENT) return 0;
    if (code == ENOTDIR || code == ELOOP) return files_remove(dir);
    if (code == 0) code = tree_empty(fd, 0);
    if (code != 0) return code;
    return rmdir(dir) == 0 || errno == ENOENT ? 0 : errno;
}

/* ---- files */

int files_size(const char *path, uint64_t *bytes)
{
    struct stat st;
    if (stat(path, &st) != 0) return errno;
    *bytes = (uint64_t)st.st_size;
    return 0;
}

static int bytes_copy(int from, int to)
{
    char *at = malloc(COPY_BYTES);
    must(at != NULL);
    uint64_t offset = 0;
    int code = 0;
    for (;;) {
        ssize_t n = read_all(from, at, COPY_BYTES, offset);
        if (n < 0) code = errno;
        if (n <= 0) break;
        code = write_all(to, at, (size_t)n, offset);
        if (code != 0) break;
        offset += (uint64_t)n;
    }
    free(at);
    return code;
}

static int file_copy(const char *from, const char *to)
{
    int in, out;
    int code = open_retry(AT_FDCWD, from, O_RDONLY, &in);
    if (code != 0) return code;
    code = open_retry(AT_FDCWD, to, O_WRONLY | O_CREAT | O_EXCL, &out);
    if (code == 0) {
        code = bytes_copy(in, out);
        if (code == 0) code = sync_retry(out);
        if (close(out) != 0 && code == 0) code = errno;
        if (code != 0) unlink(to);
    }
    close(in);
    return code;
}

int files_link(const char *from, const char *to)
{
    if (link(from, to) == 0) return 0;
    bool none = errno == EXDEV || errno == EPERM || errno == EMLINK || errno == EOPNOTSUPP || errno == ENOSYS;
    return none ? file_copy(from, to) : errno;
}

int files_sync(const char *path)
{
    int fd, code = open_retry(AT_FDCWD, path, O_RDONLY, &fd);
    if (code != 0) return code;
    code = sync_retry(fd);
    close(fd);
    return code;
}

int files_read(const char *path, uint64_t offset, size_t len, struct buf *out)
{
    int fd, code = open_retry(AT_FDCWD, path, O_RDONLY, &fd);
    if (code != 0) return code;
    ssize_t n = len == 0 ? 0 : read_all(fd, buf_reserve(out, len), len, offset);
    if (n < 0)
        code = errno;
    else
        out->len += (size_t)n;
    close(fd);
    return code;
}

int files_write(const char *path, uint64_t offset, struct slice bytes)
{
    int fd, code = open_retry(AT_FDCWD, path, O_WRONLY | O_CREAT, &fd);
    if (code != 0) return code;
    code = write_all(fd, bytes.at, bytes.len, offset);
    if (close(fd) != 0 && code == 0) code = errno;
    return code;
}

int files_truncate(const char *path, uint64_t bytes)
{
    int rv;
    do {
        rv = truncate(path, (off_t)bytes);
    } while (rv != 0 && errno == EINTR);
    return rv == 0 ? 0 : errno;
}

int files_replace(const char *path, struct slice bytes)
{
    char temporary[FILES_PATH_BYTES];
    int n = snprintf(temporary, sizeof temporary, "%s.tmp", path), fd;
    if (n < 0 || (size_t)n >= sizeof temporary) return ENAMETOOLONG;
    int code = open_retry(AT_FDCWD, temporary, O_WRONLY | O_CREAT | O_TRUNC, &fd);
    if (code != 0) return code;
    code = write_all(fd, bytes.at, bytes.len, 0);
    if (code == 0) code = sync_retry(fd);
    if (close(fd) != 0 && code == 0) code = errno;
    if (code == 0 && rename(temporary, path) != 0) code = errno;
    if (code == 0) return parent_sync(path);
    unlink(temporary);
    return code;
}
