/* GROUP/incoming while a fetch fills it.
 *
 *   incoming/store/..., incoming/log/..., incoming/archive/...
 *                                           as in the manifest; what is there when a fetch begins and has a name of it is offered to the
 *                                           source by its digest, whatever its history: right bytes are not sent again
 *   incoming/configuration, incoming/ready  only at the end, ready last: the manifest itself
 *
 * Every file is durable before ready is. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/crash_point.h"
#include "base/logger.h"
#include "broker/snapshot_inner.h"

enum { PAGE = 4096 };

static int fault(const char *path, const char *doing, int code)
{
    if (code != 0) log_warn("fetch: %s: cannot be %s: %s", path, doing, strerror(code));
    return code;
}

static void file_path(struct snapshots *s, uint32_t file, char out[FILES_PATH_BYTES])
{
    const struct manifest_file *m = &s->fetch.manifest.files[file];
    must(snapshot_path(s, "incoming", manifest_dir(m->part), m->name, out));
}

/* ---- what is there */

struct sweep {
    struct snapshots *s;
    const char *sub; /* NULL: incoming itself */
    uint8_t part;
    int code;
};

/* Number of the manifest's file, or its count. */
static uint32_t file_find(const struct fetch *f, uint8_t part, const char *name)
{
    uint32_t low = 0, high = f->manifest.count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct manifest_file *m = &f->manifest.files[middle];
        int order = m->part != part ? (m->part < part ? -1 : 1) : strcmp(m->name, name);
        if (order == 0) return middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return f->manifest.count;
}

/* Keeps what the manifest names, notes its size; the rest goes. */
static bool entry_sweep(void *ctx, const struct files_entry *e)
{
    struct sweep *w = ctx;
    struct fetch *f = &w->s->fetch;
    char path[FILES_PATH_BYTES];
    w->code = ENAMETOOLONG;
    if (!snapshot_path(w->s, "incoming", w->sub == NULL ? e->name : w->sub, w->sub == NULL ? NULL : e->name, path))
        return false;
    w->code = 0;
    if (w->sub == NULL) {
        for (int part = MANIFEST_STORE; part <= MANIFEST_PARTS; part++)
            if (e->is_dir && strcmp(e->name, manifest_dir((uint8_t)part)) == 0) return true;
    } else if (!e->is_dir) {
        uint32_t n = file_find(f, w->part, e->name);
        if (n < f->manifest.count) {
            uint64_t bytes = f->manifest.files[n].bytes;
            f->files[n].had = e->bytes < bytes ? e->bytes : bytes;
            return true;
        }
    }
    w->code = fault(path, "removed", files_remove_tree(path));
    return w->code == 0;
}

static int dir_begin(struct snapshots *s, const char *sub, uint8_t part)
{
    char path[FILES_PATH_BYTES];
    must(snapshot_path(s, "incoming", sub, NULL, path));
    int code = fault(path, "made", files_make_dir(path));
    struct sweep w = {.s = s, .sub = sub, .part = part};
    if (code == 0) code = fault(path, "listed", files_list(path, entry_sweep, &w));
    return code != 0 ? code : w.code;
}

int incoming_begin(struct snapshots *s)
{
    struct fetch *f = &s->fetch;
    char path[FILES_PATH_BYTES];
    must(f->files == NULL);
    f->files = calloc(f->manifest.count, sizeof *f->files);
    must(f->files != NULL);
    for (uint32_t n = 0; n < f->manifest.count; n++) f->files[n].missing = f->manifest.files[n].bytes;
    /* An older `ready` must be gone before anything else is: it vouches for all that is there. */
    must(snapshot_path(s, "incoming", NULL, NULL, path));
    int code = fault(path, "made", files_make_dir(path));
    must(snapshot_path(s, "incoming", "ready", NULL, path));
    if (code == 0) code = fault(path, "removed", files_remove(path));
    must(snapshot_path(s, "incoming", NULL, NULL, path));
    if (code == 0) code = fault(path, "synced", files_sync(path));
    if (code == 0) code = fault(s->dir, "synced", files_sync(s->dir));
    if (code == 0) code = dir_begin(s, NULL, 0);
    for (int part = MANIFEST_STORE; part <= MANIFEST_PARTS && code == 0; part++)
        code = dir_begin(s, manifest_dir((uint8_t)part), (uint8_t)part);
    return code;
}

int incoming_remove(struct snapshots *s)
{
    char path[FILES_PATH_BYTES];
    must(snapshot_path(s, "incoming", NULL, NULL, path));
    return fault(path, "removed", files_remove_tree(path));
}

/* ---- ranges */

int incoming_read(struct snapshots *s, const struct range *r)
{
    char path[FILES_PATH_BYTES];
    file_path(s, r->file, path);
    buf_clear(&s->fetch.bytes);
    int code = files_read(path, r->offset, r->len, &s->fetch.bytes);
    return fault(path, "read", code == 0 && s->fetch.bytes.len != r->len ? EIO : code);
}

int incoming_write(struct snapshots *s, const struct range *r, struct slice bytes)
{
    struct fetch_file *f = &s->fetch.files[r->file];
    char path[FILES_PATH_BYTES];
    file_path(s, r->file, path);
    int code = fault(path, "written", files_write(path, r->offset, bytes));
    if (code != 0) return code;
    f->unsynced += bytes.len;
    if (f->unsynced < FETCH_SYNC_BYTES) return 0;
    f->unsynced = 0; /* a little at a time: the last sync is not to stop the node for long */
    return fault(path, "synced", files_sync(path));
}

int incoming_done(struct snapshots *s, uint32_t file)
{
    const struct manifest_file *m = &s->fetch.manifest.files[file];
    char path[FILES_PATH_BYTES];
    file_path(s, file, path);
    /* The log writes whole pages. */
    uint64_t bytes = m->part != MANIFEST_STORE ? (m->bytes + PAGE - 1) / PAGE * PAGE : m->bytes;
    int code = m->bytes == 0 ? fault(path, "made", files_write(path, 0, slice_make("", 0))) : 0;
    /* In two steps: what an earlier fetch left behind the end reads as zeros then. */
    if (code == 0) code = fault(path, "cut", files_truncate(path, m->bytes));
    if (code == 0 && bytes > m->bytes) code = fault(path, "cut", files_truncate(path, bytes));
    if (code == 0) code = fault(path, "synced", files_sync(path));
    return code;
}

int incoming_ready(struct snapshots *s)
{
    const struct fetch *f = &s->fetch;
    char path[FILES_PATH_BYTES];
    int code = 0;
    for (int part = MANIFEST_STORE; part <= MANIFEST_PARTS && code == 0; part++) {
        must(snapshot_path(s, "incoming", manifest_dir((uint8_t)part), NULL, path));
        code = fault(path, "synced", files_sync(path));
    }
    must(snapshot_path(s, "incoming", "configuration", NULL, path));
    if (code == 0) code = fault(path, "written", files_replace(path, buf_view(&f->manifest.configuration)));
    crash_point("incoming-complete");
    must(snapshot_path(s, "incoming", "ready", NULL, path));
    if (code == 0) code = fault(path, "written", files_replace(path, buf_view(&f->encoded)));
    if (code == 0) crash_point("incoming-ready");
    return code;
}
