/* A fetched state takes the place of the group's own.
 *
 *   for store, log, archive:   GROUP/part -> GROUP/outgoing-part;  GROUP/incoming/part -> GROUP/part        each rename durable
 *   then                   GROUP/incoming/configuration -> GROUP/configuration
 *   then                   incoming/ready removed (durable): it is done; then what is left of incoming and outgoing-*
 *
 * Where a part is says how far an earlier start came: as long as it is under incoming it has not been moved, so each step is done, or
 * done again, until nothing of it is left to do. Cut short between the two renames of a part, GROUP/part is not there: no start
 * takes that for an empty group, since this runs before anything of it is opened.
 *
 * Before the first rename what `ready` vouches for is looked at: every file, with its size. If something is missing there (a disk that
 * lies) the fetched state is thrown away and the group goes on with what it has; once begun there is no way back, and that is an
 * error. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/crash_point.h"
#include "base/logger.h"
#include "broker/snapshot_inner.h"

struct swap {
    const char *dir;
    struct buf *error;
};

static void path_make(const struct swap *w, const char *a, const char *b, const char *c, char out[FILES_PATH_BYTES])
{
    int n = snprintf(out, FILES_PATH_BYTES, "%s/%s%s%s%s%s", w->dir, a, b == NULL ? "" : "/", b == NULL ? "" : b,
                     c == NULL ? "" : "/", c == NULL ? "" : c);
    must(n > 0 &&
         n < FILES_PATH_BYTES); /* the names are ours or the manifest's; incoming_finish has looked at the directory's */
}

static bool fault(const struct swap *w, const char *path, const char *doing, int code)
{
    if (code != 0) buf_printf(w->error, "%s: cannot be %s: %s", path, doing, strerror(code));
    return code == 0;
}

struct look {
    const char *name;
    bool found;
};

static bool entry_found(void *ctx, const struct files_entry *e)
{
    struct look *look = ctx;
    look->found = strcmp(e->name, look->name) == 0;
    return !look->found;
}

/* Is there such a name in GROUP, or in GROUP/sub? */
static bool exists(const struct swap *w, const char *sub, const char *name, bool *out)
{
    struct look look = {.name = name};
    char path[FILES_PATH_BYTES];
    if (sub != NULL)
        path_make(w, sub, NULL, NULL, path);
    else
        snprintf(path, sizeof path, "%s", w->dir);
    int code = files_list(path, entry_found, &look);
    *out = code == 0 && look.found;
    return code == ENOENT || fault(w, path, "listed", code);
}

static bool remove_tree(const struct swap *w, const char *name)
{
    char path[FILES_PATH_BYTES];
    path_make(w, name, NULL, NULL, path);
    return fault(w, path, "removed", files_remove_tree(path));
}

static bool move(const struct swap *w, const char *from, const char *to)
{
    char old[FILES_PATH_BYTES], new[FILES_PATH_BYTES];
    path_make(w, from, NULL, NULL, old);
    path_make(w, to, NULL, NULL, new);
    return fault(w, old, "renamed", files_rename(old, new));
}

/* ---- before the first rename */

static const char *ready_read(const struct swap *w, struct manifest *m)
{
    char path[FILES_PATH_BYTES];
    uint64_t bytes = 0;
    struct buf file = {0};
    path_make(w, "incoming", "ready", NULL, path);
    int code = files_size(path, &bytes);
    if (code == 0 && bytes > MANIFEST_BYTES_MAX) code = EFBIG;
    if (code == 0) code = files_read(path, 0, (size_t)bytes, &file);
    const char *wrong = code != 0 ? strerror(code) : manifest_decode(buf_view(&file), m);
    buf_free(&file);
    return wrong;
}

/* Everything fetched is still under incoming, as the manifest says? */
static bool whole(const struct swap *w, const struct manifest *m)
{
    for (uint32_t n = 0; n < m->count; n++) {
        const struct manifest_file *f = &m->files[n];
        char path[FILES_PATH_BYTES];
        uint64_t bytes = 0;
        path_make(w, "incoming", manifest_dir(f->part), f->name, path);
        int code = files_size(path, &bytes);
        bool fits = f->part != MANIFEST_STORE ? bytes >= f->bytes : bytes == f->bytes;
        if (code == 0 && fits) continue;
        log_warn("%s: %s", path, code != 0 ? strerror(code) : "has not the size it should have");
        return false;
    }
    return true;
}

/* ---- the swap */

static const char *const PARTS[MANIFEST_PARTS][3] = {{"store", "incoming/store", "outgoing-store"},
                                                     {"log", "incoming/log", "outgoing-log"},
                                                     {"archive", "incoming/archive", "outgoing-archive"}};

static bool part_swap(const struct swap *w, const char *const part[3])
{
    bool incoming, present;
    if (!exists(w, "incoming", part[0], &incoming) || !exists(w, NULL, part[0], &present)) return false;
    if (!incoming) return true;
    if (present) {
        /* of an earlier swap, whose last step was cut short */
        if (!remove_tree(w, part[2]) || !move(w, part[0], part[2])) return false;
        crash_point("incoming-old-out");
    }
    if (!move(w, part[1], part[0])) return false;
    crash_point("incoming-new-in");
    return true;
}

static bool leftovers_remove(const struct swap *w)
{
    for (int n = 0; n < MANIFEST_PARTS; n++)
        if (!remove_tree(w, PARTS[n][2])) return false;
    return true;
}

static bool ready_remove(const struct swap *w)
{
    char path[FILES_PATH_BYTES];
    path_make(w, "incoming", "ready", NULL, path);
    if (!fault(w, path, "removed", files_remove(path))) return false;
    path_make(w, "incoming", NULL, NULL, path);
    return fault(w, path, "synced", files_sync(path));
}

static bool swap_run(const struct swap *w, const struct manifest *m)
{
    for (int n = 0; n < MANIFEST_PARTS; n++)
        if (!part_swap(w, PARTS[n])) return false;
    bool incoming;
    if (!exists(w, "incoming", "configuration", &incoming)) return false;
    if (incoming && !move(w, "incoming/configuration", "configuration")) return false;
    crash_point("incoming-configuration");
    if (!ready_remove(w)) return false;
    crash_point("incoming-ready-gone");
    log_info("%s: the state at entry %" PRIu64 ", fetched from node %" PRIu64 ", is in place", w->dir, m->mark.index, m->node);
    if (!remove_tree(w, "incoming") || !leftovers_remove(w)) return false;
    crash_point("incoming-removed");
    return true;
}

bool incoming_finish(const char *group_dir, struct buf *error)
{
    struct swap w = {.dir = group_dir, .error = error};
    if (strlen(group_dir) + MANIFEST_NAME_BYTES + 64 > FILES_PATH_BYTES) {
        buf_printf(error, "%s: the path is too long", group_dir);
        return false;
    }
    bool ready, store, log, configuration;
    if (!exists(&w, "incoming", "ready", &ready) || !exists(&w, "incoming", "store", &store) ||
        !exists(&w, "incoming", "log", &log) || !exists(&w, "incoming", "configuration", &configuration))
        return false;
    if (!ready) /* a fetch may go on with what is there, unless it is only what a swap left */
        return leftovers_remove(&w) && (store || log || remove_tree(&w, "incoming"));
    bool group_store = true, untouched = store && log && configuration;
    if (untouched && !exists(&w, NULL, "store", &group_store)) return false;
    if (!group_store && !exists(&w, NULL, "outgoing-store", &store)) return false;
    if (!group_store && store) untouched = false; /* between the first two renames */
    struct manifest m;
    const char *wrong = ready_read(&w, &m);
    if (wrong == NULL && untouched && !whole(&w, &m)) wrong = "a file of it is missing or has another size";
    bool ok = true;
    if (wrong == NULL) {
        ok = swap_run(&w, &m);
    } else if (untouched) {
        log_warn("%s/incoming: the fetched state is thrown away: %s", group_dir, wrong);
        ok = ready_remove(&w) && remove_tree(&w, "incoming");
    } else {
        buf_printf(
            error,
            "%s/incoming/ready: %s, and parts of the state are in place already; empty the directory and add the node anew",
            group_dir, wrong);
        ok = false;
    }
    manifest_free(&m);
    return ok;
}
