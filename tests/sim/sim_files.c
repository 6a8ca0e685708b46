/* A file system per node, in memory, that knows what would survive a loss of power.
 *
 *   file        bytes as written; what was written since its last sync can be undone, write by write, the last one in part
 *   directory   names as they are, and names as of its last sync
 *
 *   kill        everything stays as written
 *   power loss  of each file's unsynced writes a prefix stays, the next one is torn at a sector; of each directory's unsynced changes
 *               all stay or none
 *
 * Reached through the system calls that the product makes on paths below /sim/n<id> (wrapped when linked) and through files.h. Each
 * call is a place where a fault may end the process. */
#include "base/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <unistd.h>

#include "sim.h"

enum { SECTOR = 512, FDS_MAX = 1024, FD_BASE = 1 << 20, META_OP_US = 20 };

struct vundo {
    uint64_t at, old_size;
    char *old;
    size_t old_len, len; /* old bytes; bytes written */
};

struct vname {
    char *name;
    struct vfile *file;
};

struct vnames {
    struct vname *at;
    uint32_t count, cap;
};

struct vfile {
    bool dir, names_dirty;
    uint64_t number;
    uint32_t links;
    struct buf data;
    struct vundo *undo;
    uint32_t undo_count, undo_cap;
    struct vnames live, kept;
};

struct vfd {
    struct sim_node *node;
    struct vfile *file;
    uint64_t at;
    uint64_t life;
};
static struct vfd fds[FDS_MAX];
static struct vfile top = {.dir = true, .number = 1}; /* /sim */
static uint64_t file_numbers = 1000;

/* ---- names --------------------------------------------------------------------------------------------------------- */

static struct vfile *vfile_new(bool dir)
{
    struct vfile *f = calloc(1, sizeof *f);
    must(f != NULL);
    f->dir = dir;
    f->number = ++file_numbers;
    return f;
}

static uint32_t name_place(const struct vnames *n, const char *name, size_t len, bool *found)
{
    uint32_t low = 0, high = n->count;
    *found = false;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        int order = slice_compare(slice_of(n->at[middle].name), slice_make(name, len));
        if (order == 0) {
            *found = true;
            return middle;
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static void name_put(struct vnames *n, const char *name, size_t len, struct vfile *f)
{
    bool found;
    uint32_t at = name_place(n, name, len, &found);
    if (found) {
        n->at[at].file = f;
        return;
    }
    if (n->count == n->cap) {
        n->cap = n->cap * 2 + 8;
        n->at = realloc(n->at, n->cap * sizeof n->at[0]);
        must(n->at != NULL);
    }
    memmove(&n->at[at + 1], &n->at[at], (n->count - at) * sizeof n->at[0]);
    n->at[at] = (struct vname){.name = strndup(name, len), .file = f};
    n->count++;
}

static void name_drop(struct vnames *n, const char *name, size_t len)
{
    bool found;
    uint32_t at = name_place(n, name, len, &found);
    if (!found) return;
    memmove(&n->at[at], &n->at[at + 1], (n->count - at - 1) * sizeof n->at[0]);
    n->count--;
}

static struct vfile *name_get(const struct vnames *n, const char *name, size_t len)
{
    bool found;
    uint32_t at = name_place(n, name, len, &found);
    return found ? n->at[at].file : NULL;
}

static void names_copy(struct vnames *to, const struct vnames *from)
{
    to->count = 0;
    if (to->cap < from->count) {
        to->cap = from->count;
        to->at = realloc(to->at, to->cap * sizeof to->at[0]);
        must(to->at != NULL);
    }
    if (from->count > 0) memcpy(to->at, from->at, from->count * sizeof to->at[0]);
    to->count = from->count;
}

/* Splits a path into the directory it is in and its last name. NULL with errno. */
static struct vfile *path_walk(const char *path, struct sim_node **node, struct slice *last)
{
    errno = ENOENT;
    if (strncmp(path, "/sim/n", 6) != 0) return NULL;
    char *end;
    unsigned long id = strtoul(path + 6, &end, 10);
    if (id < 1 || id > SIM_NODES_MAX) return NULL;
    *node = &sim.nodes[id];
    must(sim.node == NULL || sim.node == *node);
    struct vfile *at = (*node)->disk.root;
    *last = slice_of("");
    while (*end == '/') end++;
    while (*end != '\0') {
        size_t len = strcspn(end, "/");
        if (last->len > 0) {
            at = name_get(&at->live, last->at, last->len);
            if (at == NULL) return NULL;
            if (!at->dir) {
                errno = ENOTDIR;
                return NULL;
            }
        }
        *last = slice_make(end, len);
        end += len;
        while (*end == '/') end++;
    }
    return at;
}

static struct vfile *path_find(const char *path, struct sim_node **node)
{
    struct slice last;
    if (strcmp(path, "/sim") == 0 || strcmp(path, "/sim/") == 0) {
        *node = sim.node;
        return &top;
    }
    struct vfile *dir = path_walk(path, node, &last);
    if (dir == NULL) return NULL;
    if (last.len == 0) return dir;
    struct vfile *f = name_get(&dir->live, last.at, last.len);
    if (f == NULL) errno = ENOENT;
    return f;
}

static void space_take(struct sim_node *n, uint64_t before, uint64_t after)
{
    n->disk.used = n->disk.used + after - before;
}

static void dir_put(struct sim_node *n, struct vfile *dir, struct slice name, struct vfile *f)
{
    struct vfile *old = name_get(&dir->live, name.at, name.len);
    f->links++;
    if (old != NULL && --old->links == 0) space_take(n, old->data.len, 0);
    name_put(&dir->live, name.at, name.len, f);
    dir->names_dirty = true;
}

static void dir_drop(struct sim_node *n, struct vfile *dir, struct slice name)
{
    struct vfile *old = name_get(&dir->live, name.at, name.len);
    if (old == NULL) return;
    if (--old->links == 0) space_take(n, old->data.len, 0);
    name_drop(&dir->live, name.at, name.len);
    dir->names_dirty = true;
}

void vfile_dir_sync(struct vfile *dir)
{
    if (dir->names_dirty) names_copy(&dir->kept, &dir->live);
    dir->names_dirty = false;
}

/* ---- bytes --------------------------------------------------------------------------------------------------------- */

static void undo_clear(struct vfile *f)
{
    for (uint32_t i = 0; i < f->undo_count; i++) free(f->undo[i].old);
    f->undo_count = 0;
}

static void size_set(struct sim_node *n, struct vfile *f, uint64_t size)
{
    uint64_t before = f->data.len;
    if (size == before) return;
    if (size > before) {
        memset(buf_reserve(&f->data, size - before), 0, size - before);
    }
    f->data.len = size;
    space_take(n, before, size);
}

static bool bytes_put(struct sim_node *n, struct vfile *f, uint64_t at, struct slice s)
{
    uint64_t end = at + s.len, size = f->data.len;
    if (end > size && n->disk.used + n->disk.ballast + (end - size) > n->disk.capacity) return false;
    if (f->undo_count == f->undo_cap) {
        f->undo_cap = f->undo_cap * 2 + 8;
        f->undo = realloc(f->undo, f->undo_cap * sizeof f->undo[0]);
        must(f->undo != NULL);
    }
    struct vundo *u = &f->undo[f->undo_count++];
    *u = (struct vundo){.at = at, .old_size = size, .len = s.len};
    if (at < size) {
        u->old_len = size - at < s.len ? size - at : s.len;
        u->old = malloc(u->old_len + 1);
        must(u->old != NULL);
        memcpy(u->old, f->data.at + at, u->old_len);
    }
    if (at > size) size_set(n, f, at);
    if (end > f->data.len) {
        buf_reserve(&f->data, end - f->data.len);
        space_take(n, f->data.len, end);
        f->data.len = end;
    }
    if (s.len > 0) memcpy(f->data.at + at, s.at, s.len);
    return true;
}

static void undo_tear(struct sim_node *n, struct vfile *f)
{
    if (f->undo_count == 0) return;
    uint32_t keep = (uint32_t)rng_below(&n->rng, f->undo_count + 1);
    for (uint32_t i = f->undo_count; i-- > keep;) {
        struct vundo *u = &f->undo[i];
        size_t torn = i == keep ? rng_below(&n->rng, u->len + 1) / SECTOR * SECTOR : 0;
        char *part = malloc(torn + 1);
        must(part != NULL);
        if (torn > 0) memcpy(part, f->data.at + u->at, torn);
        size_set(n, f, u->old_size);
        if (u->old_len > 0) memcpy(f->data.at + u->at, u->old, u->old_len);
        if (torn > 0 && u->at + torn > f->data.len) size_set(n, f, u->at + torn);
        if (torn > 0) memcpy(f->data.at + u->at, part, torn);
        free(part);
    }
    undo_clear(f);
}

static void tree_power_loss(struct sim_node *n, struct vfile *f)
{
    if (!f->dir) {
        undo_tear(n, f);
        return;
    }
    if (f->names_dirty) {
        if (rng_chance(&n->rng, 500)) {
            names_copy(&f->kept, &f->live);
        } else {
            names_copy(&f->live, &f->kept);
        }
        f->names_dirty = false;
    }
    for (uint32_t i = 0; i < f->live.count; i++) tree_power_loss(n, f->live.at[i].file);
}

static void tree_links_clear(struct vfile *f)
{
    f->links = 0;
    for (uint32_t i = 0; i < f->live.count; i++) tree_links_clear(f->live.at[i].file);
}

static uint64_t tree_links_count(struct vfile *f)
{
    uint64_t bytes = f->links++ == 0 ? f->data.len : 0;
    for (uint32_t i = 0; i < f->live.count; i++) bytes += tree_links_count(f->live.at[i].file);
    return bytes;
}

void sim_disk_power_loss(struct sim_node *n)
{
    tree_power_loss(n, n->disk.root);
    tree_links_clear(n->disk.root);
    n->disk.used = tree_links_count(n->disk.root);
}

void sim_disk_wipe(struct sim_node *n)
{
    n->disk.root = vfile_new(true);
    n->disk.used = 0;
}

void sim_disk_init(struct sim_node *n)
{
    n->disk = (struct sim_disk){.capacity = UINT64_C(4) << 30, .sync_us = 200, .slow_factor = 1};
    sim_disk_wipe(n);
}

void sim_files_forget(struct sim_node *n)
{
    for (int i = 0; i < FDS_MAX; i++) {
        if (fds[i].node == n) fds[i] = (struct vfd){0};
    }
}

/* ---- for the simulated log and store ------------------------------------------------------------------------------- */

struct vfile *vfile_find(struct sim_node *n, const char *path)
{
    struct sim_node *of;
    struct vfile *f = path_find(path, &of);
    must(f == NULL || of == n);
    return f;
}

struct vfile *vfile_make(struct sim_node *n, const char *path, bool dir)
{
    struct sim_node *of;
    struct slice last;
    struct vfile *f = vfile_find(n, path);
    if (f != NULL) return f;
    char text[FILES_PATH_BYTES];
    snprintf(text, sizeof text, "%s", path);
    for (char *slash = strchr(text + 5, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (vfile_find(n, text) == NULL) vfile_make(n, text, true);
        *slash = '/';
    }
    struct vfile *parent = path_walk(path, &of, &last);
    must(parent != NULL && last.len > 0);
    f = vfile_new(dir);
    dir_put(n, parent, last, f);
    vfile_dir_sync(parent);
    return f;
}

void vfile_remove(struct sim_node *n, const char *path, bool durable)
{
    struct sim_node *of;
    struct slice last;
    struct vfile *dir = path_walk(path, &of, &last);
    if (dir == NULL) return;
    dir_drop(n, dir, last);
    if (durable) vfile_dir_sync(dir);
}

bool vfile_append(struct sim_node *n, struct vfile *f, struct slice bytes)
{
    return bytes_put(n, f, f->data.len, bytes);
}

void vfile_cut(struct sim_node *n, struct vfile *f, uint64_t bytes)
{
    undo_clear(f);
    if (bytes < f->data.len) size_set(n, f, bytes);
}

void vfile_replace(struct sim_node *n, struct vfile *f, struct slice bytes)
{
    undo_clear(f);
    space_take(n, f->data.len, bytes.len);
    buf_clear(&f->data);
    buf_slice(&f->data, bytes);
}

void vfile_sync(struct vfile *f)
{
    undo_clear(f);
}

void vfile_tear(struct sim_node *n, struct vfile *f)
{
    undo_tear(n, f);
}

struct slice vfile_bytes(const struct vfile *f)
{
    return buf_view(&f->data);
}

char *vfile_at(struct vfile *f)
{
    return f->data.at;
}

uint32_t vfile_count(const struct vfile *dir)
{
    return dir->live.count;
}

const char *vfile_name(const struct vfile *dir, uint32_t i)
{
    return dir->live.at[i].name;
}

struct vfile *vfile_child(const struct vfile *dir, uint32_t i)
{
    return dir->live.at[i].file;
}

/* ---- one operation of node code ------------------------------------------------------------------------------------ */

static void op(void)
{
    sim_io_point();
    if (sim.node != NULL) sim_block(META_OP_US);
}

static bool sync_ok(void)
{
    struct sim_node *n = sim.node;
    sim_io_point();
    if (n == NULL) return true;
    sim_block(sim_disk_us(n));
    if (n->disk.fail_syncs == 0) return true;
    n->disk.fail_syncs--;
    n->disk.had_failure = true;
    errno = EIO;
    return false;
}

static bool full(void)
{
    if (sim.node != NULL) sim.node->disk.had_failure = true;
    errno = ENOSPC;
    return false;
}

static bool sim_path(const char *path)
{
    return strncmp(path, "/sim", 4) == 0 && (path[4] == '/' || path[4] == '\0');
}

static struct vfd *fd_get(int fd)
{
    if (fd < FD_BASE || fd >= FD_BASE + FDS_MAX) return NULL;
    must(fds[fd - FD_BASE].file != NULL);
    return &fds[fd - FD_BASE];
}

/* ---- system calls -------------------------------------------------------------------------------------------------- */

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    if (!sim_path(path)) {
        va_list args;
        va_start(args, flags);
        int mode = (flags & O_CREAT) != 0 ? va_arg(args, int) : 0;
        va_end(args);
        return __real_open(path, flags, mode);
    }
    op();
    struct sim_node *n;
    struct slice last;
    struct vfile *f = path_find(path, &n);
    if (f == NULL && (flags & O_CREAT) != 0) {
        struct vfile *dir = path_walk(path, &n, &last);
        if (dir == NULL) return -1;
        f = vfile_new(false);
        dir_put(n, dir, last, f);
    } else if (f != NULL && (flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL)) {
        errno = EEXIST;
        return -1;
    }
    if (f == NULL) return -1;
    if ((flags & O_DIRECTORY) != 0 && !f->dir) {
        errno = ENOTDIR;
        return -1;
    }
    if ((flags & O_TRUNC) != 0 && f->data.len > 0) vfile_cut(n, f, 0);
    for (int i = 0; i < FDS_MAX; i++) {
        if (fds[i].file != NULL) continue;
        fds[i] = (struct vfd){.node = sim.node, .file = f};
        return FD_BASE + i;
    }
    errno = EMFILE;
    return -1;
}

int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_close(int fd)
{
    struct vfd *v = fd_get(fd);
    if (v == NULL) return __real_close(fd);
    *v = (struct vfd){0};
    return 0;
}

static ssize_t bytes_get(const struct vfile *f, void *to, size_t len, uint64_t at)
{
    if (at >= f->data.len) return 0;
    size_t n = f->data.len - at < len ? f->data.len - at : len;
    memcpy(to, f->data.at + at, n);
    return (ssize_t)n;
}

ssize_t __real_read(int fd, void *to, size_t len);
ssize_t __wrap_read(int fd, void *to, size_t len);
ssize_t __wrap_read(int fd, void *to, size_t len)
{
    struct vfd *v = fd_get(fd);
    if (v == NULL) return __real_read(fd, to, len);
    ssize_t n = bytes_get(v->file, to, len, v->at);
    v->at += (uint64_t)n;
    return n;
}

ssize_t __real_pread(int fd, void *to, size_t len, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t len, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t len, off_t at)
{
    struct vfd *v = fd_get(fd);
    return v == NULL ? __real_pread(fd, to, len, at) : bytes_get(v->file, to, len, (uint64_t)at);
}

ssize_t __real_write(int fd, const void *from, size_t len);
ssize_t __wrap_write(int fd, const void *from, size_t len);
ssize_t __wrap_write(int fd, const void *from, size_t len)
{
    struct vfd *v = fd_get(fd);
    if (v == NULL) return __real_write(fd, from, len);
    op();
    if (!bytes_put(v->node, v->file, v->at, slice_make(from, len))) return full() ? 0 : -1;
    v->at += len;
    return (ssize_t)len;
}

ssize_t __real_pwrite(int fd, const void *from, size_t len, off_t at);
ssize_t __wrap_pwrite(int fd, const void *from, size_t len, off_t at);
ssize_t __wrap_pwrite(int fd, const void *from, size_t len, off_t at)
{
    struct vfd *v = fd_get(fd);
    if (v == NULL) return __real_pwrite(fd, from, len, at);
    op();
    if (!bytes_put(v->node, v->file, (uint64_t)at, slice_make(from, len))) return full() ? 0 : -1;
    return (ssize_t)len;
}

static int vfile_fsync(struct vfile *f)
{
    if (!sync_ok()) return -1;
    if (f->dir) {
        vfile_dir_sync(f);
    } else {
        vfile_sync(f);
    }
    return 0;
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    struct vfd *v = fd_get(fd);
    return v == NULL ? __real_fsync(fd) : vfile_fsync(v->file);
}

int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd);
int __wrap_fdatasync(int fd)
{
    struct vfd *v = fd_get(fd);
    return v == NULL ? __real_fdatasync(fd) : vfile_fsync(v->file);
}

int __real_ftruncate(int fd, off_t bytes);
int __wrap_ftruncate(int fd, off_t bytes);
int __wrap_ftruncate(int fd, off_t bytes)
{
    struct vfd *v = fd_get(fd);
    if (v == NULL) return __real_ftruncate(fd, bytes);
    op();
    if ((uint64_t)bytes < v->file->data.len) undo_clear(v->file);
    size_set(v->node, v->file, (uint64_t)bytes);
    return 0;
}

int __real_flock(int fd, int how);
int __wrap_flock(int fd, int how);
int __wrap_flock(int fd, int how)
{
    return fd_get(fd) == NULL ? __real_flock(fd, how) : 0;
}

static int name_move(const char *from, const char *to, bool durable)
{
    struct sim_node *n;
    struct slice name_from, name_to;
    struct vfile *dir_from = path_walk(from, &n, &name_from), *dir_to = path_walk(to, &n, &name_to);
    if (dir_from == NULL || dir_to == NULL) return ENOENT;
    struct vfile *f = name_get(&dir_from->live, name_from.at, name_from.len);
    if (f == NULL) return ENOENT;
    struct vfile *there = name_get(&dir_to->live, name_to.at, name_to.len);
    if (there == f) return 0;
    if (there != NULL && there->dir && there->live.count > 0) return ENOTEMPTY;
    dir_put(n, dir_to, name_to, f);
    dir_drop(n, dir_from, name_from);
    if (durable) {
        vfile_dir_sync(dir_to);
        vfile_dir_sync(dir_from);
    }
    return 0;
}

static int code_of(int code)
{
    if (code == 0) return 0;
    errno = code;
    return -1;
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to)
{
    if (!sim_path(from)) return __real_rename(from, to);
    op();
    return code_of(name_move(from, to, false));
}

static int name_remove(const char *path, bool dir)
{
    struct sim_node *n;
    struct slice last;
    struct vfile *parent = path_walk(path, &n, &last);
    struct vfile *f = parent == NULL || last.len == 0 ? NULL : name_get(&parent->live, last.at, last.len);
    if (f == NULL) return ENOENT;
    if (f->dir != dir) return dir ? ENOTDIR : EISDIR;
    if (dir && f->live.count > 0) return ENOTEMPTY;
    dir_drop(n, parent, last);
    return 0;
}

int __real_unlink(const char *path);
int __wrap_unlink(const char *path);
int __wrap_unlink(const char *path)
{
    if (!sim_path(path)) return __real_unlink(path);
    op();
    return code_of(name_remove(path, false));
}

int __real_rmdir(const char *path);
int __wrap_rmdir(const char *path);
int __wrap_rmdir(const char *path)
{
    if (!sim_path(path)) return __real_rmdir(path);
    op();
    return code_of(name_remove(path, true));
}

static int name_link(const char *from, const char *to)
{
    struct sim_node *n;
    struct slice last;
    struct vfile *f = path_find(from, &n);
    struct vfile *dir = path_walk(to, &n, &last);
    if (f == NULL || dir == NULL) return ENOENT;
    if (name_get(&dir->live, last.at, last.len) != NULL) return EEXIST;
    dir_put(n, dir, last, f);
    return 0;
}

int __real_link(const char *from, const char *to);
int __wrap_link(const char *from, const char *to);
int __wrap_link(const char *from, const char *to)
{
    if (!sim_path(from)) return __real_link(from, to);
    op();
    return code_of(name_link(from, to));
}

static int dir_make(const char *path)
{
    struct sim_node *n;
    struct slice last;
    if (path_find(path, &n) != NULL) return EEXIST;
    struct vfile *dir = path_walk(path, &n, &last);
    if (dir == NULL) return ENOENT;
    dir_put(n, dir, last, vfile_new(true));
    return 0;
}

int __real_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode)
{
    if (!sim_path(path)) return __real_mkdir(path, mode);
    op();
    return code_of(dir_make(path));
}

static void stat_fill(const struct vfile *f, struct stat *out)
{
    memset(out, 0, sizeof *out);
    out->st_ino = f->number;
    out->st_dev = 77;
    out->st_nlink = f->links == 0 ? 1 : f->links;
    out->st_size = (off_t)f->data.len;
    out->st_mode = f->dir ? S_IFDIR | 0750 : S_IFREG | 0640;
}

int __real_stat(const char *path, struct stat *out);
int __wrap_stat(const char *path, struct stat *out);
int __wrap_stat(const char *path, struct stat *out)
{
    if (!sim_path(path)) return __real_stat(path, out);
    struct sim_node *n;
    struct vfile *f = path_find(path, &n);
    if (f == NULL) return -1;
    stat_fill(f, out);
    return 0;
}

int __real_lstat(const char *path, struct stat *out);
int __wrap_lstat(const char *path, struct stat *out);
int __wrap_lstat(const char *path, struct stat *out)
{
    return sim_path(path) ? __wrap_stat(path, out) : __real_lstat(path, out);
}

int __real_fstat(int fd, struct stat *out);
int __wrap_fstat(int fd, struct stat *out);
int __wrap_fstat(int fd, struct stat *out)
{
    struct vfd *v = fd_get(fd);
    if (v == NULL) return __real_fstat(fd, out);
    stat_fill(v->file, out);
    return 0;
}

int __real_access(const char *path, int mode);
int __wrap_access(const char *path, int mode);
int __wrap_access(const char *path, int mode)
{
    struct sim_node *n;
    if (!sim_path(path)) return __real_access(path, mode);
    return path_find(path, &n) == NULL ? -1 : 0;
}

int __real_statvfs(const char *path, struct statvfs *out);
int __wrap_statvfs(const char *path, struct statvfs *out);
int __wrap_statvfs(const char *path, struct statvfs *out)
{
    if (!sim_path(path)) return __real_statvfs(path, out);
    const struct sim_disk *d = &sim.node->disk;
    uint64_t used = d->used + d->ballast, left = used < d->capacity ? d->capacity - used : 0;
    memset(out, 0, sizeof *out);
    out->f_bsize = out->f_frsize = 4096;
    out->f_blocks = d->capacity / 4096;
    out->f_bfree = out->f_bavail = left / 4096;
    return 0;
}

/* ---- files.h ------------------------------------------------------------------------------------------------------- */

int files_list(const char *dir, bool (*entry)(void *ctx, const struct files_entry *e), void *ctx)
{
    struct sim_node *n;
    struct vfile *d = path_find(dir, &n);
    if (d == NULL) return errno;
    if (!d->dir) return ENOTDIR;
    struct vnames names = {0};
    names_copy(&names, &d->live); /* what is called may change the directory */
    for (uint32_t i = 0; i < names.count; i++) {
        const struct vfile *f = names.at[i].file;
        struct files_entry e = {.bytes = f->dir ? 0 : f->data.len, .is_dir = f->dir};
        snprintf(e.name, sizeof e.name, "%s", names.at[i].name);
        if (!entry(ctx, &e)) break;
    }
    free(names.at);
    return 0;
}

int files_make_dir(const char *dir)
{
    op();
    int code = dir_make(dir);
    return code == EEXIST ? 0 : code;
}

int files_size(const char *path, uint64_t *bytes)
{
    struct sim_node *n;
    struct vfile *f = path_find(path, &n);
    if (f == NULL) return errno;
    *bytes = f->data.len;
    return 0;
}

int files_link(const char *from, const char *to)
{
    op();
    return name_link(from, to);
}

int files_rename(const char *from, const char *to)
{
    op();
    int code = name_move(from, to, false);
    if (code != 0) return code;
    if (!sync_ok()) return errno;
    struct sim_node *n;
    struct slice last;
    vfile_dir_sync(path_walk(to, &n, &last));
    sim_io_point();
    struct vfile *dir_from = path_walk(from, &n, &last);
    if (dir_from != NULL) vfile_dir_sync(dir_from);
    return 0;
}

int files_remove(const char *path)
{
    op();
    int code = name_remove(path, false);
    return code == ENOENT ? 0 : code;
}

static void tree_remove(struct sim_node *n, struct vfile *dir)
{
    while (dir->live.count > 0) {
        struct vname v = dir->live.at[dir->live.count - 1];
        if (v.file->dir) tree_remove(n, v.file);
        sim_io_point();
        dir_drop(n, dir, slice_of(v.name));
    }
}

int files_remove_tree(const char *dir)
{
    op();
    struct sim_node *n;
    struct slice last;
    struct vfile *d = path_find(dir, &n);
    if (d == NULL) return errno == ENOENT ? 0 : errno;
    if (!d->dir) return name_remove(dir, false);
    tree_remove(n, d);
    struct vfile *parent = path_walk(dir, &n, &last);
    if (last.len > 0) dir_drop(n, parent, last);
    return 0;
}

int files_sync(const char *path)
{
    struct sim_node *n;
    struct vfile *f = path_find(path, &n);
    if (f == NULL) return errno;
    return vfile_fsync(f) == 0 ? 0 : errno;
}

int files_read(const char *path, uint64_t offset, size_t len, struct buf *out)
{
    struct sim_node *n;
    struct vfile *f = path_find(path, &n);
    if (f == NULL) return errno;
    if (f->dir) return EISDIR;
    ssize_t got = bytes_get(f, buf_reserve(out, len), len, offset);
    out->len += (size_t)got;
    return 0;
}

static struct vfile *file_open(const char *path, struct sim_node **n, int *code)
{
    struct slice last;
    struct vfile *f = path_find(path, n);
    if (f == NULL) {
        struct vfile *dir = path_walk(path, n, &last);
        *code = ENOENT;
        if (dir == NULL) return NULL;
        f = vfile_new(false);
        dir_put(*n, dir, last, f);
    }
    *code = EISDIR;
    return f->dir ? NULL : f;
}

int files_write(const char *path, uint64_t offset, struct slice bytes)
{
    struct sim_node *n;
    int code;
    op();
    struct vfile *f = file_open(path, &n, &code);
    if (f == NULL) return code;
    return bytes_put(n, f, offset, bytes) || full() ? 0 : ENOSPC;
}

int files_truncate(const char *path, uint64_t bytes)
{
    struct sim_node *n;
    struct vfile *f = path_find(path, &n);
    op();
    if (f == NULL) return errno;
    if (bytes < f->data.len) undo_clear(f);
    size_set(n, f, bytes);
    return 0;
}

int files_replace(const char *path, struct slice bytes)
{
    char temporary[FILES_PATH_BYTES];
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    struct sim_node *n;
    int code;
    op();
    struct vfile *f = file_open(temporary, &n, &code);
    if (f == NULL) return code;
    vfile_cut(n, f, 0);
    sim_io_point();
    if (!bytes_put(n, f, 0, bytes)) return full() ? 0 : ENOSPC;
    if (vfile_fsync(f) != 0) return errno;
    return files_rename(temporary, path);
}
