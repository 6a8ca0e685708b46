/* names.c - how to take back creates, renames, links and unlinks whose directory was not synced.
 *
 * QFAULT_STATE/names is a text log, one line a step, fields separated by tabs:
 *
 *   I seq kind directory1 directory2 inode grave path1 path2    about to happen
 *   D seq inode                                                 happened (inode of a created file)
 *   F seq                                                       did not happen
 *   S seq directory                                             a sync: steps up to seq in that directory (0: in any) are durable
 *
 * kinds: create, mkdir, link (path1 came into being), rename (path1 -> path2), unlink, rmdir (path1 went).
 * An inode that loses its last name gets another one in QFAULT_STATE/grave/<seq>, so that it can come back.
 * directory1/2 are the inodes of the directories of path1/path2; a sync of either makes the step durable.
 * Paths are absolute. When no step is live the log is cut to nothing.
 */
#define _GNU_SOURCE
#include "faults.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct step {
    struct step *next;
    uint64_t seq;
    uint64_t directory1;
    uint64_t directory2;
    bool has_grave;
};

static pthread_mutex_t names_lock = PTHREAD_MUTEX_INITIALIZER;
static struct step *steps;
static uint64_t seq_last;
static int log_fd = -1;

static bool step_covered(const struct step *step, uint64_t directory, uint64_t mark)
{
    return step->seq <= mark && (directory == 0 || step->directory1 == directory || step->directory2 == directory);
}

static void steps_remove(uint64_t directory, uint64_t mark)
{
    for (struct step **at = &steps; *at;) {
        struct step *step = *at;
        if (!step_covered(step, directory, mark)) {
            at = &step->next;
            continue;
        }
        *at = step->next;
        free(step);
    }
}

static void log_write(const char *line, int len)
{
    if (len <= 0 || syscall(SYS_write, log_fd, line, (size_t)len) != len)
        fault_die("cannot write the names log", strerror(errno));
}

static struct step *step_add(uint64_t seq, uint64_t directory1, uint64_t directory2, bool has_grave)
{
    struct step *step = calloc(1, sizeof *step);
    if (!step) fault_die("no memory", "names");
    step->seq = seq;
    step->directory1 = directory1;
    step->directory2 = directory2;
    step->has_grave = has_grave;
    step->next = steps;
    steps = step;
    return step;
}

static void step_remove(uint64_t seq)
{
    for (struct step **at = &steps; *at; at = &(*at)->next)
        if ((*at)->seq == seq) {
            struct step *gone = *at;
            *at = gone->next;
            free(gone);
            return;
        }
}

/* Steps of an earlier process on the same state are still not durable. */
static void log_load(void)
{
    char path[FAULT_PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/names", fault_settings()->state);
    log_fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log_fd < 0) fault_die("cannot open", path);
    struct stat st;
    if (fstat(log_fd, &st) != 0) fault_die("cannot stat", path);
    char *text = calloc(1, (size_t)st.st_size + 1);
    if (!text || syscall(SYS_pread64, log_fd, text, (size_t)st.st_size, 0L) != st.st_size) fault_die("cannot read", path);
    char *rest = text;
    for (char *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n")) {
        unsigned long long seq = 0, directory1 = 0, directory2 = 0;
        int grave = 0;
        if (sscanf(line, "I\t%llu\t%*s\t%llu\t%llu\t%*u\t%d", &seq, &directory1, &directory2, &grave) == 4)
            step_add(seq, directory1, directory2, grave != 0);
        else if (sscanf(line, "F\t%llu", &seq) == 1)
            step_remove(seq);
        else if (sscanf(line, "S\t%llu\t%llu", &seq, &directory1) == 2)
            steps_remove(directory1, seq);
        if (seq > seq_last) seq_last = seq;
    }
    free(text);
}

static void names_enter(void)
{
    pthread_mutex_lock(&names_lock);
    if (log_fd < 0) log_load();
}

static uint64_t directory_inode(const char *path)
{
    char directory[FAULT_PATH_MAX];
    snprintf(directory, sizeof directory, "%s", path);
    char *slash = strrchr(directory, '/');
    if (!slash) return 0;
    *(slash == directory ? slash + 1 : slash) = 0;
    struct stat st;
    return stat(directory, &st) == 0 ? (uint64_t)st.st_ino : 0;
}

static void grave_path(char *out, size_t out_len, uint64_t seq)
{
    snprintf(out, out_len, "%s/grave/%llu", fault_settings()->state, (unsigned long long)seq);
}

static void grave_clear(uint64_t seq)
{
    char grave[FAULT_PATH_MAX + 64];
    grave_path(grave, sizeof grave, seq);
    struct stat st;
    if (stat(grave, &st) != 0) return;
    if (st.st_nlink == 1) undo_remove((uint64_t)st.st_ino);
    syscall(SYS_unlinkat, AT_FDCWD, grave, 0);
}

/* Give the inode a second name. A directory needs none: it is empty when it goes. */
static bool grave_dig(const char *path, uint64_t seq, const struct stat *st)
{
    if (S_ISDIR(st->st_mode)) return false;
    char grave[FAULT_PATH_MAX + 64];
    grave_path(grave, sizeof grave, seq);
    grave_clear(seq); /* of an earlier process that was killed before it cleared this one */
    if (syscall(SYS_linkat, AT_FDCWD, path, AT_FDCWD, grave, 0) != 0)
        fault_die("cannot keep an unlinked file (QFAULT_STATE must be on the same file system)", path);
    return true;
}

static struct step *step_begin(const char *kind, const char *path1, const char *path2, uint64_t inode, const struct stat *dying)
{
    uint64_t seq = ++seq_last;
    bool has_grave = dying && grave_dig(path2 ? path2 : path1, seq, dying);
    uint64_t directory1 = directory_inode(path1);
    uint64_t directory2 = path2 ? directory_inode(path2) : 0;
    char line[3 * FAULT_PATH_MAX];
    int len = snprintf(line, sizeof line, "I\t%llu\t%s\t%llu\t%llu\t%llu\t%d\t%s\t%s\n", (unsigned long long)seq, kind,
                       (unsigned long long)directory1, (unsigned long long)directory2, (unsigned long long)inode, has_grave,
                       path1, path2 ? path2 : "");
    log_write(line, len);
    stat_add(STAT_NAME_OPS, 1);
    return step_add(seq, directory1, directory2, has_grave);
}

static void step_drop(struct step *step)
{
    char line[64];
    log_write(line, snprintf(line, sizeof line, "F\t%llu\n", (unsigned long long)step->seq));
    if (step->has_grave) grave_clear(step->seq);
    step_remove(step->seq);
    if (!steps && syscall(SYS_ftruncate, log_fd, 0L) != 0) fault_die("cannot cut the names log", strerror(errno));
}

/* Ends a step with the result of its call; keeps errno. */
static int step_end(struct step *step, long result, uint64_t inode)
{
    int error = errno;
    if (result < 0) {
        step_drop(step);
    } else {
        char line[96];
        log_write(line,
                  snprintf(line, sizeof line, "D\t%llu\t%llu\n", (unsigned long long)step->seq, (unsigned long long)inode));
    }
    errno = error;
    return (int)result;
}

int names_open(const char *path, int flags, mode_t mode, bool *created)
{
    *created = false;
    names_enter();
    struct stat st;
    long fd;
    if (lstat(path, &st) == 0) {
        fd = syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    } else {
        struct step *step = step_begin("create", path, NULL, 0, NULL);
        fd = syscall(SYS_openat, AT_FDCWD, path, flags, mode);
        uint64_t inode = 0;
        if (fd >= 0 && fstat((int)fd, &st) == 0) {
            inode = (uint64_t)st.st_ino;
            *created = true;
        }
        step_end(step, fd, inode);
    }
    pthread_mutex_unlock(&names_lock);
    return (int)fd;
}

int names_rename(const char *from, const char *to, unsigned flags)
{
    names_enter();
    struct stat source, target;
    long result;
    bool replaces = lstat(to, &target) == 0;
    if (lstat(from, &source) != 0 || (replaces && source.st_ino == target.st_ino)) {
        result = syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, flags);
    } else {
        struct step *step = step_begin("rename", from, to, (uint64_t)source.st_ino, replaces ? &target : NULL);
        result = step_end(step, syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, flags), (uint64_t)source.st_ino);
    }
    pthread_mutex_unlock(&names_lock);
    return (int)result;
}

int names_unlink(const char *path, bool is_dir)
{
    names_enter();
    struct stat st;
    long result;
    if (lstat(path, &st) != 0 || S_ISDIR(st.st_mode) != is_dir) {
        result = syscall(SYS_unlinkat, AT_FDCWD, path, is_dir ? AT_REMOVEDIR : 0);
    } else {
        struct step *step = step_begin(is_dir ? "rmdir" : "unlink", path, NULL, (uint64_t)st.st_ino, &st);
        result = step_end(step, syscall(SYS_unlinkat, AT_FDCWD, path, is_dir ? AT_REMOVEDIR : 0), (uint64_t)st.st_ino);
    }
    pthread_mutex_unlock(&names_lock);
    return (int)result;
}

static int names_new(const char *kind, const char *path, long (*make)(const char *path, const void *context),
                     const void *context)
{
    names_enter();
    struct stat st;
    long result;
    if (lstat(path, &st) == 0) {
        result = make(path, context);
    } else {
        struct step *step = step_begin(kind, path, NULL, 0, NULL);
        result = make(path, context);
        int error = errno;
        uint64_t inode = result == 0 && lstat(path, &st) == 0 ? (uint64_t)st.st_ino : 0;
        errno = error;
        step_end(step, result, inode);
    }
    pthread_mutex_unlock(&names_lock);
    return (int)result;
}

static long make_directory(const char *path, const void *context)
{
    return syscall(SYS_mkdirat, AT_FDCWD, path, *(const mode_t *)context);
}

static long make_link(const char *path, const void *context)
{
    return syscall(SYS_linkat, AT_FDCWD, (const char *)context, AT_FDCWD, path, 0);
}

int names_mkdir(const char *path, mode_t mode)
{
    return names_new("mkdir", path, make_directory, &mode);
}

int names_link(const char *from, const char *to)
{
    return names_new("link", to, make_link, from);
}

uint64_t names_mark(void)
{
    names_enter();
    uint64_t mark = seq_last;
    pthread_mutex_unlock(&names_lock);
    return mark;
}

/* One line for all of it: a kill can't leave a later step durable and an earlier one not. */
static void sync_done(uint64_t directory, uint64_t mark)
{
    names_enter();
    bool any = false;
    for (const struct step *step = steps; step; step = step->next) any |= step_covered(step, directory, mark);
    if (any) {
        char line[64];
        log_write(line,
                  snprintf(line, sizeof line, "S\t%llu\t%llu\n", (unsigned long long)mark, (unsigned long long)directory));
        for (const struct step *step = steps; step; step = step->next)
            if (step->has_grave && step_covered(step, directory, mark)) grave_clear(step->seq);
        steps_remove(directory, mark);
        if (!steps && syscall(SYS_ftruncate, log_fd, 0L) != 0) fault_die("cannot cut the names log", strerror(errno));
    }
    pthread_mutex_unlock(&names_lock);
}

void names_sync_done(uint64_t directory, uint64_t mark)
{
    sync_done(directory, mark);
}

void names_sync_all(uint64_t mark)
{
    sync_done(0, mark);
}
