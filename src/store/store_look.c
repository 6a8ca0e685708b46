#include "store/store_look.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/files.h"
#include "store/store_inner.h"
#include "store/store_rocks.h"

struct store_look {
    struct rocks_look *db;
    char *dir;
};

struct scan {
    bool (*row)(void *ctx, struct slice key, struct slice value);
    void *ctx;
    bool over;
};

static bool row_pass(void *ctx, const char *key, size_t key_len, const char *value, size_t value_len)
{
    struct scan *s = ctx;
    s->over = !s->row(s->ctx, slice_make(key, key_len), slice_make(value, value_len));
    return !s->over;
}

static enum store_status scan_any(struct store_look *l, struct slice from, struct slice to, struct scan *s, struct buf *error)
{
    char *text = NULL;
    int family;
    for (struct store_walk w = {from, to, false}; text == NULL && !s->over && store_walk_next(&w, &from, &to, &family);)
        text = rocks_look_scan(l->db, STORE_FAMILY[family].name, from.at, from.len, to.at, to.len, row_pass, s);
    return text == NULL ? STORE_OK : store_error(text, "a scan failed", l->dir, error);
}

enum store_status store_look_scan(struct store_look *l, struct slice from, struct slice to,
                                  bool (*row)(void *ctx, struct slice key, struct slice value), void *ctx, struct buf *error)
{
    static const char first_key[] = {STORE_KIND_OWN + 1};
    struct scan s = {.row = row, .ctx = ctx};
    if (from.len == 0) from = slice_make(first_key, 1);
    must(from.at[0] != STORE_KIND_OWN);
    return scan_any(l, from, to, &s, error);
}

struct own_rows {
    struct store_mark *mark;
    uint32_t format;
    bool mark_bad, others;
};

static bool own_row(void *ctx, struct slice key, struct slice value)
{
    struct own_rows *own = ctx;
    own->others = key.len == 0 || key.at[0] != STORE_KIND_OWN;
    if (own->others) return false;
    if (slice_equal(key, store_format_key()) && value.len == sizeof own->format) memcpy(&own->format, value.at, value.len);
    if (!slice_equal(key, store_mark_key())) return true;
    uint64_t v[3];
    own->mark_bad = value.len != sizeof v;
    if (own->mark_bad) return true;
    memcpy(v, value.at, sizeof v);
    *own->mark = (struct store_mark){.index = v[0], .term = v[1], .scan_pos = v[2]};
    return true;
}

static enum store_status own_read(struct store_look *l, struct store_mark *mark, struct buf *error)
{
    static const char first_key[] = {STORE_KIND_OWN};
    struct own_rows own = {.mark = mark};
    struct scan s = {.row = own_row, .ctx = &own};
    *mark = (struct store_mark){0};
    enum store_status status = scan_any(l, slice_make(first_key, 1), (struct slice){0}, &s, error);
    if (status != STORE_OK) return status;
    /* Nothing at all: a node that ended before its first rows were durable. */
    if (own.format == 0 && !own.others && mark->index == 0) return STORE_OK;
    if (own.mark_bad)
        buf_printf(error, "%s: the mark row is damaged", l->dir);
    else if (own.format != STORE_FORMAT)
        buf_printf(error, "%s: the data has format %u and this program reads format %u", l->dir, own.format, STORE_FORMAT);
    return own.mark_bad || own.format != STORE_FORMAT ? STORE_DAMAGED : STORE_OK;
}

enum store_status store_look_open(struct store_look **out, const char *dir, struct store_mark *mark, struct buf *error)
{
    char *text = NULL;
    *out = NULL;
    struct rocks_look *db = rocks_look_open(dir, &text);
    if (db == NULL) return store_error(text, "the store cannot be opened", dir, error);
    struct store_look *l = calloc(1, sizeof *l);
    must(l != NULL);
    l->db = db;
    l->dir = strdup(dir);
    must(l->dir != NULL);
    enum store_status status = own_read(l, mark, error);
    if (status == STORE_OK)
        *out = l;
    else
        store_look_close(l);
    return status;
}

void store_look_close(struct store_look *l)
{
    if (l == NULL) return;
    rocks_look_close(l->db);
    free(l->dir);
    free(l);
}

struct verifying {
    struct store_verify *v;
    const char *dir;
};

/* Is it one that is written no more? Then what the kernel has of it goes. */
static bool file_settled(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool settled = fstat(fd, &st) == 0 && time(NULL) - st.st_mtime >= STORE_VERIFY_AGE_S;
    if (settled) posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    return settled;
}

static bool file_verify(void *ctx, const struct files_entry *e)
{
    struct verifying *k = ctx;
    char path[FILES_PATH_BYTES + 300];
    size_t len = strlen(e->name);
    if (e->is_dir || len < 5 || strcmp(e->name + len - 4, ".sst") != 0) return true;
    snprintf(path, sizeof path, "%s/%s", k->dir, e->name);
    bool live = k->v->pace != NULL;
    if (live && !file_settled(path)) return true;
    char *text = rocks_file_verify(path);
    k->v->files++;
    k->v->bytes += e->bytes;
    if (text != NULL && (!live || file_settled(path))) k->v->damaged(k->v->ctx, path, text);
    free(text);
    return !live || k->v->pace(k->v->ctx, e->bytes);
}

enum store_status store_verify(const char *dir, struct store_verify *v, struct buf *error)
{
    struct verifying k = {.v = v, .dir = dir};
    v->files = v->bytes = 0;
    int code = files_list(dir, file_verify, &k);
    if (code != 0) buf_printf(error, "%s: cannot be listed: %s", dir, strerror(code));
    return code == 0 ? STORE_OK : STORE_IO;
}
