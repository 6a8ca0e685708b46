/* The files of a backup, on its own thread with its own descriptors. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crash_point.h"
#include "base/hash.h"
#include "broker/backup_inner.h"
#include "broker/node_inner.h"
#include "log/log_check.h"

enum { COPY_BYTES = 1 << 20, SLEEP_US = 50000, FILE_MODE = 0640 };

/* ---- the directory -------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static bool refuse(char why[BACKUP_ERROR_BYTES], const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, BACKUP_ERROR_BYTES, format, args);
    va_end(args);
    return false;
}

static bool entry_any(void *ctx, const struct files_entry *e)
{
    (void)e;
    *(bool *)ctx = true;
    return false;
}

/* Is `path` the directory `dir` or in it? Both resolved. */
static bool is_inside(const char *path, const char *dir)
{
    size_t len = strlen(dir);
    while (len > 1 && dir[len - 1] == '/') len--;
    return strncmp(path, dir, len) == 0 && (path[len] == '\0' || path[len] == '/' || len == 1);
}

/* Where the directory is, or will be, without links and dots. */
static bool dir_resolve(const char *dir, char out[PATH_MAX], char why[BACKUP_ERROR_BYTES])
{
    char parent[BACKUP_PATH_BYTES];
    if (realpath(dir, out) != NULL) return true;
    if (errno != ENOENT) return refuse(why, "%s: %s", dir, strerror(errno));
    const char *slash = strrchr(dir, '/');
    must(slash != NULL);
    if (strcmp(slash, "/..") == 0 || strcmp(slash, "/.") == 0) return refuse(why, "%s: there is no such directory", dir);
    snprintf(parent, sizeof parent, "%.*s", slash == dir ? 1 : (int)(slash - dir), dir);
    if (realpath(parent, out) == NULL) return refuse(why, "%s: %s: make it first", parent, strerror(errno));
    size_t len = strcmp(out, "/") == 0 ? 0 : strlen(out);
    int n = snprintf(out + len, PATH_MAX - len, "%s", slash);
    return (n > 0 && (size_t)n < PATH_MAX - len) || refuse(why, "%s: the path is too long", dir);
}

static bool previous_load(struct backups *b, char why[BACKUP_ERROR_BYTES])
{
    const char *previous = b->order.previous;
    struct buf error = {0};
    b->has_previous = previous[0] != '\0';
    if (!b->has_previous) return true;
    if (previous[0] != '/') return refuse(why, "the previous backup must be given by its whole path, not %s", previous);
    bool good = backup_file_load(previous, &b->previous, NULL, &error);
    if (!good) refuse(why, "%.*s", (int)error.len, error.at);
    buf_free(&error);
    return good;
}

static bool dir_make(struct backups *b, const char *dir, char why[BACKUP_ERROR_BYTES])
{
    bool any = false;
    b->made_dir = mkdir(dir, 0750) == 0;
    if (b->made_dir) return true;
    if (errno != EEXIST) return refuse(why, "%s: cannot be made: %s", dir, strerror(errno));
    int code = files_list(dir, entry_any, &any);
    if (code != 0) return refuse(why, "%s: %s", dir, strerror(code));
    return !any || refuse(why, "%s is not empty: every backup has a directory of its own", dir);
}

bool backup_dir_prepare(struct backups *b, char why[BACKUP_ERROR_BYTES])
{
    char dir[PATH_MAX];
    char *given = b->order.dir;
    size_t len = strlen(given);
    while (len > 1 && given[len - 1] == '/') given[--len] = '\0';
    if (given[0] != '/' || len < 2) return refuse(why, "the directory must be given by its whole path, not %s", given);
    if (len > BACKUP_PATH_BYTES - 256) return refuse(why, "the path is too long");
    if (!dir_resolve(given, dir, why)) return false;
    if (is_inside(dir, b->data)) return refuse(why, "%s is in the data directory", given);
    if (is_inside(b->data, dir)) return refuse(why, "%s holds the data directory", given);
    return previous_load(b, why) && dir_make(b, given, why);
}

void backup_undo(struct backups *b)
{
    const char *dir = b->order.dir;
    char path[FILES_PATH_BYTES];
    for (uint32_t i = 0; i < b->group_count; i++) {
        snprintf(path, sizeof path, "%s/group-%" PRIu32, dir, i);
        files_remove_tree(path);
    }
    snprintf(path, sizeof path, "%s/groups", dir);
    files_remove(path);
    if (b->made_dir) rmdir(dir);
}

/* ---- bytes ---------------------------------------------------------------------------------------------------------- */

static bool cancelled(struct backups *b)
{
    return atomic_load_explicit(&b->cancelled, memory_order_relaxed);
}

/* False: cancelled. */
static bool pace(struct backups *b, uint64_t bytes)
{
    if (b->order.bytes_s > 0) {
        int64_t now_us = clock_mono_us();
        if (b->pace_us < now_us) b->pace_us = now_us;
        b->pace_us += (int64_t)(bytes * 1000000 / b->order.bytes_s);
        for (int64_t left_us; !cancelled(b) && (left_us = b->pace_us - clock_mono_us()) > 0;) {
            if (left_us > SLEEP_US) left_us = SLEEP_US;
            nanosleep(&(struct timespec){.tv_nsec = (long)left_us * 1000}, NULL);
        }
    }
    return !cancelled(b) || backup_fail(b, "cancelled");
}

static void progress(struct backups *b, uint64_t files, uint64_t done, uint64_t linked, uint64_t copied)
{
    pthread_mutex_lock(&b->lock);
    b->view.files_done += files;
    b->view.bytes_done += done;
    b->view.bytes_linked += linked;
    b->view.bytes_copied += copied;
    pthread_mutex_unlock(&b->lock);
}

static bool bytes_write(int fd, const char *at, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, at, len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return false;
        at += n;
        len -= (size_t)n;
    }
    return true;
}

struct source {
    const char *path, *to;
    uint64_t bytes;
    uint32_t crc;
};

/* Reads the first `bytes` of the file for their checksum; with `out` >= 0 writes them there. */
static bool bytes_take(struct backups *b, struct source *s, int in, int out)
{
    s->crc = 0;
    for (uint64_t at = 0; at < s->bytes;) {
        size_t want = s->bytes - at < COPY_BYTES ? (size_t)(s->bytes - at) : COPY_BYTES;
        ssize_t n = pread(in, b->bytes, want, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return backup_fail(b, "%s: cannot be read at offset %" PRIu64 ": %s", s->path, at, strerror(errno));
        if (n == 0)
            return backup_fail(b, "%s: ends at offset %" PRIu64 ", it should have %" PRIu64 " bytes", s->path, at, s->bytes);
        s->crc = crc32c(s->crc, b->bytes, (size_t)n);
        if (out >= 0 && !bytes_write(out, b->bytes, (size_t)n))
            return backup_fail(b, "%s: cannot be written: %s", s->to, strerror(errno));
        at += (uint64_t)n;
        if (!pace(b, (uint64_t)n)) return false;
    }
    if (out >= 0 && fsync(out) != 0) return backup_fail(b, "%s: cannot be synced: %s", s->to, strerror(errno));
    return true;
}

static bool source_read(struct backups *b, struct source *s, bool copy)
{
    int in = open(s->path, O_RDONLY | O_CLOEXEC), out = -1;
    if (in < 0) return backup_fail(b, "%s: cannot be opened: %s", s->path, strerror(errno));
    if (copy) out = open(s->to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, FILE_MODE);
    bool good = !copy || out >= 0 || backup_fail(b, "%s: cannot be made: %s", s->to, strerror(errno));
    good = good && bytes_take(b, s, in, out);
    if (out >= 0 && close(out) != 0 && good) good = backup_fail(b, "%s: cannot be written: %s", s->to, strerror(errno));
    close(in);
    return good;
}

/* ---- a file --------------------------------------------------------------------------------------------------------- */

/* The file of that name and size in the previous backup. */
static const struct backup_entry *previous_find(struct backups *b, const char *name, uint64_t bytes,
                                                char path[FILES_PATH_BYTES])
{
    const struct backup_entry *e = b->has_previous ? backup_file_find(&b->previous, name) : NULL;
    int n = e == NULL ? 0 : snprintf(path, FILES_PATH_BYTES, "%s/%s", b->order.previous, e->name);
    struct stat st;
    bool there = e != NULL && e->bytes == bytes && n > 0 && n < FILES_PATH_BYTES && stat(path, &st) == 0;
    return there && (uint64_t)st.st_size == bytes ? e : NULL;
}

static bool same_inode(const char *left, const char *right)
{
    struct stat a, c;
    return stat(left, &a) == 0 && stat(right, &c) == 0 && a.st_ino == c.st_ino && a.st_dev == c.st_dev;
}

/* Brings one file to the backup. `fixed`: it never changes, so a link will do. `known`: its checksum was that of an earlier backup of
 * the very same file, so it was not read. */
static bool file_take(struct backups *b, struct source *s, const char *name, bool fixed, bool *known)
{
    char old[FILES_PATH_BYTES];
    const struct backup_entry *e = previous_find(b, name, s->bytes, old);
    bool linked = fixed && link(s->path, s->to) == 0;
    *known = linked && e != NULL && same_inode(s->path, old);
    if (*known)
        s->crc = e->crc;
    else if (!linked && e == NULL) {
        if (!source_read(b, s, true)) return false;
    } else if (!source_read(b, s, false)) {
        return false;
    }
    if (!linked && e != NULL) {
        linked = s->crc == e->crc && link(old, s->to) == 0;
        if (!linked && !source_read(b, s, true)) return false;
    }
    progress(b, 1, s->bytes, linked ? s->bytes : 0, linked ? 0 : s->bytes);
    return backup_file_add(&b->made, name, s->bytes, s->crc) || backup_fail(b, "%s: is no name for a backup", name);
}

static bool walk_pace(void *ctx, uint64_t bytes)
{
    (void)bytes;
    return !cancelled(ctx);
}

/* Every record in it up to `end_pos` is whole. What was never read since it was written may be damaged on the disk. */
static bool segment_verify(struct backups *b, const char *path, const char *told, uint64_t first_pos, uint64_t end_pos)
{
    struct segment_walk w = {.path = path, .first_pos = first_pos, .ctx = b, .pace = walk_pace};
    struct buf error = {0};
    bool good = segment_walk(&w, &error) == LOG_OK;
    if (!good)
        backup_fail(b, "%.*s", (int)error.len, error.at);
    else if (w.ended_early)
        good = backup_fail(b, "cancelled");
    else if (end_pos == 0 ? w.end_pos == 0 || w.stop_pos != w.end_pos : w.stop_pos != end_pos)
        good = backup_fail(b, "the log file %s is damaged at offset %" PRIu64 ": what begins there fails its checks", told,
                           w.end_pos == 0 ? 0 : w.stop_pos - first_pos);
    buf_free(&error);
    return good;
}

/* ---- a group -------------------------------------------------------------------------------------------------------- */

struct listing {
    struct backups *b;
    struct backup_group *g;
    enum manifest_part part;
    bool good;
};

static uint64_t part_end(const struct backup_group *g, uint8_t part)
{
    return part == MANIFEST_LOG ? g->manifest.log_end : g->archive_end;
}

static bool file_list(void *ctx, const struct files_entry *e)
{
    struct listing *l = ctx;
    struct manifest *m = &l->g->manifest;
    uint64_t first_pos, bytes = e->bytes;
    if (e->is_dir) return true;
    if (l->part != MANIFEST_STORE) {
        uint64_t end = part_end(l->g, (uint8_t)l->part), top = l->part == MANIFEST_ARCHIVE ? PLACE_ARCHIVE : 0;
        if (!manifest_segment(e->name, &first_pos) || first_pos >= end) return true; /* made ahead */
        if (!positions_has(&l->g->kept, first_pos | top)) return true;               /* trimmed before the state was taken */
        if (bytes > end - first_pos) bytes = end - first_pos;
    }
    l->good = manifest_add(m, l->part, e->name, bytes) ||
              backup_fail(l->b, "the file %s of %s does not belong there", e->name, manifest_dir((uint8_t)l->part));
    return l->good;
}

/* The files that make up the state, into its manifest. */
static bool group_list(struct backups *b, struct backup_group *g)
{
    if (!cluster_of_replica(g->dir, &g->manifest.cluster)) return backup_fail(b, "%s/identity: cannot be read", g->dir);
    for (int part = MANIFEST_STORE; part <= MANIFEST_PARTS; part++) {
        char path[FILES_PATH_BYTES];
        struct listing l = {.b = b, .g = g, .part = (enum manifest_part)part, .good = true};
        if (!backup_group_path(g, manifest_dir((uint8_t)part), NULL, path))
            return backup_fail(b, "%s: the path is too long", g->dir);
        int code = files_list(path, file_list, &l);
        if (code != 0) return backup_fail(b, "%s: cannot be listed: %s", path, strerror(code));
        if (!l.good) return false;
    }
    pthread_mutex_lock(&b->lock);
    b->view.files_total += g->manifest.count;
    b->view.bytes_total += manifest_bytes(&g->manifest);
    pthread_mutex_unlock(&b->lock);
    return true;
}

static bool small_write(struct backups *b, const char *name, struct slice bytes)
{
    char path[FILES_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", b->order.dir, name);
    int code = files_write(path, 0, bytes);
    if (code == 0) code = files_sync(path);
    if (code != 0) return backup_fail(b, "%s: cannot be written: %s", path, strerror(code));
    return backup_file_add(&b->made, name, bytes.len, crc32c(0, bytes.at, bytes.len)) ||
           backup_fail(b, "%s: too many files", name);
}

static bool group_small_files(struct backups *b, struct backup_group *g)
{
    struct manifest *m = &g->manifest, again;
    struct buf encoded = {0};
    char name[BACKUP_NAME_BYTES];
    manifest_encode(m, &encoded);
    const char *wrong = manifest_decode(buf_view(&encoded), &again); /* what nobody could read would be kept for nothing */
    manifest_free(&again);
    bool good = wrong == NULL || backup_fail(b, "group %" PRIu32 " cannot be described: %s", g->number, wrong);
    snprintf(name, sizeof name, "group-%" PRIu32 "/manifest", g->number);
    good = good && small_write(b, name, buf_view(&encoded));
    snprintf(name, sizeof name, "group-%" PRIu32 "/configuration", g->number);
    good = good && small_write(b, name, buf_view(&m->configuration));
    buf_free(&encoded);
    return good;
}

static bool manifest_file_take(struct backups *b, struct backup_group *g, uint32_t n)
{
    struct manifest *m = &g->manifest;
    const struct manifest_file *f = &m->files[n];
    char name[BACKUP_NAME_BYTES], from[FILES_PATH_BYTES], to[FILES_PATH_BYTES], told[FILES_PATH_BYTES];
    bool log = f->part != MANIFEST_STORE, last = manifest_is_last(m, n), known;
    uint64_t first_pos = 0;
    snprintf(name, sizeof name, "group-%" PRIu32 "/%s/%s", g->number, manifest_dir(f->part), f->name);
    int len = snprintf(to, sizeof to, "%s/%s", b->order.dir, name);
    if (len < 0 || (size_t)len >= sizeof to || !backup_group_path(g, manifest_dir(f->part), f->name, from))
        return backup_fail(b, "%s: the path is too long", b->order.dir);
    struct source s = {.path = from, .to = to, .bytes = f->bytes};
    if (!file_take(b, &s, name, !(log && last), &known)) return false;
    if (!log || known) return true;
    must(manifest_segment(f->name, &first_pos));
    len = snprintf(told, sizeof told, "%.*s/%s/%s", FILES_PATH_BYTES - 200, g->dir, manifest_dir(f->part), f->name);
    return segment_verify(b, last ? to : from, told, first_pos, last ? part_end(g, f->part) : 0);
}

static bool dir_below(struct backups *b, struct backup_group *g, const char *name, bool sync)
{
    char path[FILES_PATH_BYTES];
    snprintf(path, sizeof path, "%s/group-%" PRIu32 "%s%s", b->order.dir, g->number, name == NULL ? "" : "/",
             name == NULL ? "" : name);
    int code = sync ? files_sync(path) : files_make_dir(path);
    return code == 0 || backup_fail(b, "%s: cannot be %s: %s", path, sync ? "synced" : "made", strerror(code));
}

static bool group_copy(struct backups *b, struct backup_group *g)
{
    static const char *const dirs[] = {NULL, "store", "log", "archive"};
    int count = g->archive_end > 0 ? 4 : 3;
    for (int i = 0; i < count; i++)
        if (!dir_below(b, g, dirs[i], false)) return false;
    for (uint32_t n = 0; n < g->manifest.count; n++)
        if (!manifest_file_take(b, g, n)) return false;
    if (!group_small_files(b, g)) return false;
    for (int i = count - 1; i >= 0; i--)
        if (!dir_below(b, g, dirs[i], true)) return false;
    return true;
}

/* ---- all of it ------------------------------------------------------------------------------------------------------ */

static bool map_copy(struct backups *b)
{
    char path[FILES_PATH_BYTES + 8];
    struct buf text = {0};
    snprintf(path, sizeof path, "%s/groups", b->config->dir);
    int code = files_read(path, 0, 1 << 20, &text);
    bool good = code == ENOENT || (code == 0 ? small_write(b, "groups", buf_view(&text))
                                             : backup_fail(b, "%s: cannot be read: %s", path, strerror(code)));
    buf_free(&text);
    return good;
}

static bool mark_write(struct backups *b)
{
    struct backup_file *f = &b->made;
    char path[FILES_PATH_BYTES];
    struct buf text = {0};
    f->id = b->id;
    f->cluster = b->groups[0].manifest.cluster;
    f->node = node_id(b->node);
    f->wall_us = b->view.began_us;
    f->group_count = b->group_count;
    snprintf(f->version, sizeof f->version, "%s", b->config->version);
    for (uint32_t i = 0; i < b->group_count; i++) {
        f->groups[i].index = b->groups[i].manifest.mark.index;
        f->groups[i].term = b->groups[i].manifest.mark.term;
    }
    backup_file_sort(f);
    backup_file_encode(f, &text);
    snprintf(path, sizeof path, "%s/BACKUP", b->order.dir);
    crash_point("backup-before-mark");
    int code = files_sync(b->order.dir);
    if (code == 0) code = files_replace(path, buf_view(&text));
    buf_free(&text);
    return code == 0 || backup_fail(b, "%s: cannot be written: %s", path, strerror(code));
}

bool backup_copy(struct backups *b)
{
    b->bytes = malloc(COPY_BYTES);
    must(b->bytes != NULL);
    b->pace_us = 0;
    for (uint32_t i = 0; i < b->group_count; i++)
        if (!group_list(b, &b->groups[i])) return false;
    for (uint32_t i = 0; i < b->group_count; i++)
        if (!group_copy(b, &b->groups[i])) return false;
    crash_point("backup-copied");
    return map_copy(b) && mark_write(b);
}
