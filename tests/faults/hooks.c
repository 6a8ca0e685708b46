/* hooks.c - the libc functions the library takes over: descriptors, names, syncs. hooks_io.c has reads and writes. */
#define _GNU_SOURCE
#include "hooks.h"
#include "faults.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct fault_settings settings;
static pthread_once_t settings_once = PTHREAD_ONCE_INIT;

_Noreturn void fault_die(const char *what, const char *detail)
{
    char line[FAULT_PATH_MAX + 256];
    int len = snprintf(line, sizeof line, "libq_faults: %s: %s\n", what, detail);
    syscall(SYS_write, 2, line, (size_t)len);
    abort();
}

void fault_kill_self(void)
{
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

static void settings_load(void)
{
    const char *root = getenv("QFAULT_DIR");
    const char *state = getenv("QFAULT_STATE");
    if (!root || !*root) return;
    static char resolved[PATH_MAX];
    if (!realpath(root, resolved) || strlen(resolved) >= sizeof settings.root) fault_die("QFAULT_DIR cannot be resolved", root);
    strcpy(settings.root, resolved);
    settings.root_len = strlen(resolved);
    if (state && *state) {
        if (!realpath(state, resolved) || strlen(resolved) >= sizeof settings.state)
            fault_die("QFAULT_STATE cannot be resolved", state);
        strcpy(settings.state, resolved);
        char path[FAULT_PATH_MAX + 16];
        snprintf(path, sizeof path, "%s/undo", settings.state);
        syscall(SYS_mkdirat, AT_FDCWD, path, 0755);
        snprintf(path, sizeof path, "%s/grave", settings.state);
        syscall(SYS_mkdirat, AT_FDCWD, path, 0755);
        settings.tracking = true;
    }
    settings.watching = true;
}

const struct fault_settings *fault_settings(void)
{
    pthread_once(&settings_once, settings_load);
    return &settings;
}

const char *fault_relative(const char *path)
{
    const struct fault_settings *set = fault_settings();
    if (strncmp(path, set->root, set->root_len) != 0) return path;
    path += set->root_len;
    return *path == '/' ? path + 1 : path;
}

static bool below_root(const char *path)
{
    const struct fault_settings *set = fault_settings();
    return strncmp(path, set->root, set->root_len) == 0 && (path[set->root_len] == 0 || path[set->root_len] == '/');
}

/* Makes `path` absolute and free of links. False when it is not below QFAULT_DIR (or its directory doesn't exist). */
static bool path_resolve(int dir_fd, const char *path, char out[PATH_MAX])
{
    if (!fault_settings()->watching || !path || !*path) return false;
    if (strncmp(path, "/proc/", 6) == 0 || strncmp(path, "/sys/", 5) == 0 || strncmp(path, "/dev/", 5) == 0) return false;
    int error = errno;
    char joined[PATH_MAX * 2];
    if (path[0] == '/' || dir_fd == AT_FDCWD) {
        if (strlen(path) >= PATH_MAX) return false;
        strcpy(joined, path);
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", dir_fd);
        ssize_t n = readlink(link, joined, PATH_MAX - 1);
        if (n <= 0 || strlen(path) >= PATH_MAX) return false;
        joined[n] = '/';
        strcpy(joined + n + 1, path);
    }
    bool found = realpath(joined, out) != NULL;
    if (!found) {
        char *slash = strrchr(joined, '/');
        char base[NAME_MAX + 1];
        snprintf(base, sizeof base, "%s", slash ? slash + 1 : joined);
        if (slash) *(slash == joined ? slash + 1 : slash) = 0;
        if (*base && realpath(slash ? joined : ".", out) && strlen(out) + strlen(base) + 2 < PATH_MAX) {
            strcat(out, "/");
            strcat(out, base);
            found = true;
        }
    }
    errno = error;
    return found && below_root(out);
}

/* ---- descriptors ---- */

static int open_watched(const char *path, int flags, mode_t mode)
{
    struct fault_verdict verdict = fault_check(FAULT_OPEN, path);
    if (verdict.error) {
        errno = verdict.error;
        return -1;
    }
    bool tracking = fault_settings()->tracking;
    bool created = false;
    /* With the model on, O_TRUNC is done by hand so that the old contents can be saved first. */
    int open_flags = tracking ? flags & ~O_TRUNC : flags;
    bool makes_name = tracking && (flags & O_CREAT) && (flags & O_TMPFILE) != O_TMPFILE;
    int fd =
        makes_name ? names_open(path, open_flags, mode, &created) : (int)syscall(SYS_openat, AT_FDCWD, path, open_flags, mode);
    if (fd < 0) return fd;
    struct stat st;
    if (fstat(fd, &st) != 0) fault_die("cannot stat", path);
    if (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) {
        struct node *node = table_intern((uint64_t)st.st_ino, S_ISDIR(st.st_mode), path);
        table_set(fd, node, flags);
        if (created && S_ISREG(st.st_mode)) {
            pthread_mutex_lock(&node->lock);
            undo_reset(node);
            pthread_mutex_unlock(&node->lock);
        }
        if (tracking && (flags & O_TRUNC) && st.st_size > 0 && ftruncate(fd, 0) != 0) fault_die("cannot truncate", path);
    }
    if (verdict.kill_after) fault_kill_self();
    return fd;
}

static int open_at(int dir_fd, const char *path, int flags, mode_t mode)
{
    char resolved[PATH_MAX];
    int fd;
    if (path_resolve(dir_fd, path, resolved)) {
        fd = open_watched(resolved, flags, mode);
    } else {
        fd = (int)syscall(SYS_openat, dir_fd, path, flags, mode);
        if (fd >= 0) table_clear(fd);
    }
    return fd;
}

static mode_t mode_of(int flags, va_list arguments)
{
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? (mode_t)va_arg(arguments, unsigned) : 0;
}

#define OPEN_HOOK(name)                                                                                                        \
    HOOK int name(const char *path, int flags, ...)                                                                            \
    {                                                                                                                          \
        va_list arguments;                                                                                                     \
        va_start(arguments, flags);                                                                                            \
        mode_t mode = mode_of(flags, arguments);                                                                               \
        va_end(arguments);                                                                                                     \
        return open_at(AT_FDCWD, path, flags, mode);                                                                           \
    }
#define OPENAT_HOOK(name)                                                                                                      \
    HOOK int name(int dir_fd, const char *path, int flags, ...)                                                                \
    {                                                                                                                          \
        va_list arguments;                                                                                                     \
        va_start(arguments, flags);                                                                                            \
        mode_t mode = mode_of(flags, arguments);                                                                               \
        va_end(arguments);                                                                                                     \
        return open_at(dir_fd, path, flags, mode);                                                                             \
    }
OPEN_HOOK(open)
OPEN_HOOK(open64)
OPENAT_HOOK(openat)
OPENAT_HOOK(openat64)

HOOK int __open_2(const char *path, int flags)
{
    return open_at(AT_FDCWD, path, flags, 0);
}
HOOK int __open64_2(const char *path, int flags)
{
    return open_at(AT_FDCWD, path, flags, 0);
}
HOOK int __openat_2(int dir_fd, const char *path, int flags)
{
    return open_at(dir_fd, path, flags, 0);
}
HOOK int __openat64_2(int dir_fd, const char *path, int flags)
{
    return open_at(dir_fd, path, flags, 0);
}
HOOK int creat(const char *path, mode_t mode)
{
    return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}
HOOK int creat64(const char *path, mode_t mode)
{
    return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

HOOK int close(int fd)
{
    struct node *node = table_get(fd, NULL);
    struct fault_verdict verdict = {0};
    if (node) {
        verdict = fault_check(FAULT_CLOSE, node->path);
        table_clear(fd);
    }
    int result = (int)syscall(SYS_close, fd);
    if (verdict.error) {
        errno = verdict.error;
        return -1;
    }
    return result;
}

/* fclose closes the descriptor inside libc, where close() above is not called. */
HOOK int fclose(FILE *file)
{
    static int (*real_fclose)(FILE *);
    if (!real_fclose) *(void **)&real_fclose = dlsym(RTLD_NEXT, "fclose");
    int fd = fileno(file);
    if (fd >= 0) table_clear(fd);
    return real_fclose(file);
}

HOOK int dup(int fd)
{
    int copy = (int)syscall(SYS_dup, fd);
    if (copy >= 0) table_copy(fd, copy);
    return copy;
}
HOOK int dup2(int fd, int to)
{
    int copy = fd == to ? (int)syscall(SYS_fcntl, fd, F_GETFD, 0) : (int)syscall(SYS_dup3, fd, to, 0);
    if (copy < 0) return copy;
    table_copy(fd, to);
    return to;
}
HOOK int dup3(int fd, int to, int flags)
{
    int copy = (int)syscall(SYS_dup3, fd, to, flags);
    if (copy >= 0) table_copy(fd, to);
    return copy;
}

#define FCNTL_HOOK(name)                                                                                                       \
    HOOK int name(int fd, int command, ...)                                                                                    \
    {                                                                                                                          \
        va_list arguments;                                                                                                     \
        va_start(arguments, command);                                                                                          \
        void *argument = va_arg(arguments, void *);                                                                            \
        va_end(arguments);                                                                                                     \
        int result = (int)syscall(SYS_fcntl, fd, command, argument);                                                           \
        if (result >= 0 && (command == F_DUPFD || command == F_DUPFD_CLOEXEC)) table_copy(fd, result);                         \
        return result;                                                                                                         \
    }
FCNTL_HOOK(fcntl)
FCNTL_HOOK(fcntl64)

/* ---- syncs ---- */

static int directory_sync(int fd, uint64_t inode, const char *path, long call)
{
    struct fault_verdict verdict = fault_check(FAULT_DIRSYNC, path);
    if (verdict.error) {
        errno = verdict.error;
        return -1;
    }
    if (verdict.lie) return 0;
    bool tracking = fault_settings()->tracking;
    uint64_t mark = tracking ? names_mark() : 0;
    int result = (int)syscall(call, fd);
    if (result == 0 && tracking) {
        stat_add(STAT_DIR_SYNCS, 1);
        names_sync_done(inode, mark);
    }
    if (verdict.kill_after) fault_kill_self();
    return result;
}

static int file_sync(int fd, struct node *node, enum fault_op op, long call)
{
    bool tracking = fault_settings()->tracking;
    struct fault_verdict verdict = fault_check(op, node->path);
    if (verdict.lie) return 0;
    pthread_mutex_lock(&node->lock);
    uint64_t mark = node->undo_end;
    pthread_mutex_unlock(&node->lock);
    int result = verdict.error ? -1 : (int)syscall(call, fd);
    int error = verdict.error ? verdict.error : errno;
    if (tracking) {
        pthread_mutex_lock(&node->lock);
        if (result == 0)
            undo_sync_done(node, mark);
        else
            undo_sync_failed(node, mark);
        pthread_mutex_unlock(&node->lock);
        stat_add(STAT_SYNCS, 1);
    }
    if (verdict.kill_after) fault_kill_self();
    errno = error;
    return result;
}

static int sync_fd(int fd, enum fault_op op, long call)
{
    struct node *node = table_get(fd, NULL);
    if (node) return node->is_dir ? directory_sync(fd, node->inode, node->path, call) : file_sync(fd, node, op, call);
    struct stat st;
    /* opendir() opens inside libc; its descriptor is recognised by the inode */
    if (fault_settings()->watching && fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)) {
        char link[64], path[PATH_MAX];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, path, sizeof path - 1);
        if (n > 0) {
            path[n] = 0;
            if (below_root(path)) return directory_sync(fd, (uint64_t)st.st_ino, path, call);
        }
    }
    return (int)syscall(call, fd);
}

HOOK int fsync(int fd)
{
    return sync_fd(fd, FAULT_FSYNC, SYS_fsync);
}
HOOK int fdatasync(int fd)
{
    return sync_fd(fd, FAULT_FDATASYNC, SYS_fdatasync);
}

static void node_synced(struct node *node)
{
    pthread_mutex_lock(&node->lock);
    if (!node->is_dir) undo_sync_done(node, node->undo_end);
    pthread_mutex_unlock(&node->lock);
}

/* Writes that run at the same time are taken as synced too: a program may not count on them either way. */
HOOK int syncfs(int fd)
{
    bool tracking = fault_settings()->tracking;
    uint64_t mark = tracking ? names_mark() : 0;
    int result = (int)syscall(SYS_syncfs, fd);
    if (result == 0 && tracking) {
        table_each(node_synced);
        names_sync_all(mark);
    }
    return result;
}
HOOK void sync(void)
{
    bool tracking = fault_settings()->tracking;
    uint64_t mark = tracking ? names_mark() : 0;
    syscall(SYS_sync);
    if (tracking) {
        table_each(node_synced);
        names_sync_all(mark);
    }
}

/* ---- names ---- */

static int checked(enum fault_op op, const char *path, bool *kill_after)
{
    struct fault_verdict verdict = fault_check(op, path);
    *kill_after = verdict.kill_after;
    if (!verdict.error) return 0;
    errno = verdict.error;
    return -1;
}

static int ended(int result, bool kill_after)
{
    if (kill_after) fault_kill_self();
    return result;
}

static int rename_at(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    char from_path[PATH_MAX], to_path[PATH_MAX];
    bool from_watched = path_resolve(from_fd, from, from_path);
    bool to_watched = path_resolve(to_fd, to, to_path);
    if (!from_watched && !to_watched) return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
    if (!from_watched || !to_watched || (flags & ~(unsigned)RENAME_NOREPLACE))
        fault_die("rename across the watched directory is not supported", from);
    bool kill_after;
    if (checked(FAULT_RENAME, to_path, &kill_after) != 0) return -1;
    int result = fault_settings()->tracking ? names_rename(from_path, to_path, flags)
                                            : (int)syscall(SYS_renameat2, AT_FDCWD, from_path, AT_FDCWD, to_path, flags);
    struct stat st;
    if (result == 0 && lstat(to_path, &st) == 0 && table_find((uint64_t)st.st_ino))
        table_intern((uint64_t)st.st_ino, S_ISDIR(st.st_mode), to_path); /* rules go by the new name */
    return ended(result, kill_after);
}

HOOK int rename(const char *from, const char *to)
{
    return rename_at(AT_FDCWD, from, AT_FDCWD, to, 0);
}
HOOK int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return rename_at(from_fd, from, to_fd, to, 0);
}
HOOK int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    return rename_at(from_fd, from, to_fd, to, flags);
}

static int unlink_at(int dir_fd, const char *path, bool is_dir)
{
    char resolved[PATH_MAX];
    if (!path_resolve(dir_fd, path, resolved)) return (int)syscall(SYS_unlinkat, dir_fd, path, is_dir ? AT_REMOVEDIR : 0);
    bool kill_after;
    if (checked(FAULT_UNLINK, resolved, &kill_after) != 0) return -1;
    int result = fault_settings()->tracking ? names_unlink(resolved, is_dir)
                                            : (int)syscall(SYS_unlinkat, AT_FDCWD, resolved, is_dir ? AT_REMOVEDIR : 0);
    return ended(result, kill_after);
}

HOOK int unlink(const char *path)
{
    return unlink_at(AT_FDCWD, path, false);
}
HOOK int unlinkat(int dir_fd, const char *path, int flags)
{
    return unlink_at(dir_fd, path, (flags & AT_REMOVEDIR) != 0);
}
HOOK int rmdir(const char *path)
{
    return unlink_at(AT_FDCWD, path, true);
}
HOOK int remove(const char *path)
{
    struct stat st;
    return unlink_at(AT_FDCWD, path, lstat(path, &st) == 0 && S_ISDIR(st.st_mode));
}

static int mkdir_at(int dir_fd, const char *path, mode_t mode)
{
    char resolved[PATH_MAX];
    if (!path_resolve(dir_fd, path, resolved)) return (int)syscall(SYS_mkdirat, dir_fd, path, mode);
    bool kill_after;
    if (checked(FAULT_MKDIR, resolved, &kill_after) != 0) return -1;
    int result = fault_settings()->tracking ? names_mkdir(resolved, mode) : (int)syscall(SYS_mkdirat, AT_FDCWD, resolved, mode);
    return ended(result, kill_after);
}

HOOK int mkdir(const char *path, mode_t mode)
{
    return mkdir_at(AT_FDCWD, path, mode);
}
HOOK int mkdirat(int dir_fd, const char *path, mode_t mode)
{
    return mkdir_at(dir_fd, path, mode);
}

static int link_at(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
    char from_path[PATH_MAX], to_path[PATH_MAX];
    if (!path_resolve(to_fd, to, to_path)) return (int)syscall(SYS_linkat, from_fd, from, to_fd, to, flags);
    if (!path_resolve(from_fd, from, from_path)) fault_die("link from outside of the watched directory is not supported", from);
    bool kill_after;
    if (checked(FAULT_LINK, to_path, &kill_after) != 0) return -1;
    int result = fault_settings()->tracking ? names_link(from_path, to_path)
                                            : (int)syscall(SYS_linkat, AT_FDCWD, from_path, AT_FDCWD, to_path, flags);
    return ended(result, kill_after);
}

HOOK int link(const char *from, const char *to)
{
    return link_at(AT_FDCWD, from, AT_FDCWD, to, 0);
}
HOOK int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
    return link_at(from_fd, from, to_fd, to, flags);
}
