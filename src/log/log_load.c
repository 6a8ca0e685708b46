/* Finding the end of the log, and telling an unfinished write from damage.
 *
 *   list the files -> the segment that holds first_pos -> record by record, segment by segment, to the first place P where no valid
 *   record begins -> everything behind P is searched for a record head of this log
 *
 * Each record says up to where everything was durable when it was appended. If one behind P says more than P, the record at P was
 * durable once and is gone: LOG_DAMAGED with file and offset, and nothing is changed. Otherwise what lies behind P was never
 * promised to anybody: the end of the log, or writes that a crash cut short. The log goes on at P; later files are removed, and
 * records of the old generation behind P are never taken for valid, because the new one is durable before anything follows.
 *
 * A file that is shorter than it should be reads as zeros from there on. A read error is LOG_IO, never an end. */
#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/logger.h"
#include "base/uuid.h"
#include "log/log_internal.h"

enum { SLICE_BYTES = 1 << 20, PATH_BYTES = 1024 + 64 };

struct load {
    struct log *l;
    struct buf *error;
    uint32_t at;      /* number of the segment being read */
    int fd;           /* its file, -1 when closed */
    uint64_t pos;     /* of the next record */
    uint64_t proven;  /* highest `synced` seen in valid records */
    uint32_t gen_max; /* of any record seen, valid place or not */
    struct image *image;
    size_t loaded; /* bytes of `image` that were read */
    bool leftover; /* something that is not zeros lies at the end */
};

/* What was found behind the end. */
struct proof {
    uint64_t synced, pos;
    uint32_t at;
};

__attribute__((format(printf, 3, 4))) static enum log_status load_fail(struct load *d, enum log_status status,
                                                                       const char *format, ...)
{
    char text[3 * PATH_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    buf_text(d->error, text);
    return status;
}

static struct segment *load_segment(const struct load *d)
{
    return d->l->segments[d->at];
}

static void load_path(const struct load *d, uint64_t first_pos, char out[PATH_BYTES])
{
    char name[LOG_NAME_BYTES];
    segment_name(first_pos, name);
    snprintf(out, PATH_BYTES, "%.1024s/%s", d->l->dir, name);
}

/* ---- the files */

static bool name_parse(const char *name, uint64_t *first_pos)
{
    char *end;
    if (strlen(name) != 20 || strcmp(name + 16, ".seg") != 0) return false;
    for (int i = 0; i < 16; i++)
        if (strchr("0123456789abcdef", name[i]) == NULL) return false;
    *first_pos = strtoull(name, &end, 16);
    return end == name + 16;
}

static int segment_order(const void *a, const void *b)
{
    uint64_t left = (*(struct segment *const *)a)->first_pos, right = (*(struct segment *const *)b)->first_pos;
    return left < right ? -1 : left > right;
}

static bool file_size(struct log *l, const char *name, uint64_t *size)
{
    struct stat st;
    if (fstatat(l->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0) return false;
    *size = (uint64_t)st.st_size;
    return true;
}

/* Lists the segments into l->segments (sorted, end_pos not yet known); leftovers of a crash (*.tmp) are removed. */
static enum log_status files_list(struct load *d)
{
    struct log *l = d->l;
    int fd = openat(l->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (dir == NULL) {
        if (fd >= 0) close(fd);
        return load_fail(d, LOG_IO, "cannot list the log directory %.1024s: %s", l->dir, strerror(errno));
    }
    struct dirent *e;
    for (errno = 0; (e = readdir(dir)) != NULL; errno = 0) { /* calls that succeed may leave any errno */
        uint64_t first_pos;
        size_t len = strlen(e->d_name);
        if (len > 4 && strcmp(e->d_name + len - 4, ".tmp") == 0) unlinkat(l->dir_fd, e->d_name, 0);
        if (!name_parse(e->d_name, &first_pos)) continue;
        struct segment *s = segment_new(first_pos, first_pos);
        if (!file_size(l, e->d_name, &s->file_bytes)) s->file_bytes = 0;
        if (l->segment_count == l->segment_cap) {
            l->segment_cap = l->segment_cap == 0 ? 64 : l->segment_cap * 2;
            l->segments = realloc(l->segments, l->segment_cap * sizeof(struct segment *));
            must(l->segments != NULL);
        }
        l->segments[l->segment_count++] = s;
    }
    int code = errno;
    closedir(dir);
    if (code != 0) return load_fail(d, LOG_IO, "cannot list the log directory %.1024s: %s", l->dir, strerror(code));
    if (l->segment_count > 1) qsort(l->segments, l->segment_count, sizeof(struct segment *), segment_order);
    return LOG_OK;
}

/* Can files here be used with O_DIRECT, a page at a time? Asked of an existing segment, else of a file made for it. */
static void direct_probe(struct load *d)
{
    struct log *l = d->l;
    char name[LOG_NAME_BYTES] = "probe.tmp";
    bool have = l->segment_count > 0;
    if (have) segment_name(l->segments[l->segment_count - 1]->first_pos, name);
    int fd = file_open(l, name, O_RDWR | O_DIRECT | (have ? 0 : O_CREAT | O_TRUNC));
    if (fd >= 0) {
        l->direct = (have || pwrite(fd, l->zeros, LOG_PAGE, 0) == LOG_PAGE) && pread(fd, l->tail_page, LOG_PAGE, 0) >= 0;
        close(fd);
    }
    if (!have) unlinkat(l->dir_fd, name, 0);
    if (!l->direct) log_info("log: %s does not take direct writes (O_DIRECT); using buffered ones", l->dir);
}

static enum log_status file_load_open(struct load *d)
{
    struct segment *s = load_segment(d);
    char name[LOG_NAME_BYTES], path[PATH_BYTES];
    if (d->fd >= 0) close(d->fd);
    segment_name(s->first_pos, name);
    d->fd = file_open(d->l, name, O_RDONLY | (d->l->direct ? O_DIRECT : 0));
    if (d->fd >= 0) return LOG_OK;
    load_path(d, s->first_pos, path);
    return load_fail(d, LOG_IO, "cannot open the log file %s: %s", path, strerror(errno));
}

/* Reads [offset, offset + len) of the current file; what the file does not have is zeros. `at` is page-aligned. */
static enum log_status file_load_read(struct load *d, char *at, size_t len, uint64_t offset)
{
    ssize_t n = file_read(d->fd, at, len, offset, d->l->direct);
    if (n < 0) {
        char path[PATH_BYTES];
        int code = errno;
        load_path(d, load_segment(d)->first_pos, path);
        return load_fail(d, LOG_IO, "cannot read the log file %s at offset %llu: %s", path, (unsigned long long)offset,
                         strerror(code));
    }
    memset(at + n, 0, len - (size_t)n);
    return LOG_OK;
}

static enum log_status file_load_head(struct load *d, struct file_head *h, enum file_head_state *state)
{
    enum log_status status = file_load_open(d);
    if (status != LOG_OK) return status;
    char *page = pages_map(LOG_PAGE);
    status = file_load_read(d, page, LOG_PAGE, 0);
    *state = file_head_read(page, load_segment(d)->first_pos, h);
    pages_unmap(page, LOG_PAGE);
    return status;
}

/* The log's own sizes and keys come from any file with a good head; LOG_DAMAGED when there are files but no such one. */
static enum log_status identity_load(struct load *d)
{
    struct log *l = d->l;
    char path[PATH_BYTES];
    for (uint32_t n = l->segment_count; n-- > 0;) {
        struct file_head h;
        enum file_head_state state;
        d->at = n;
        load_path(d, load_segment(d)->first_pos, path);
        enum log_status status = file_load_head(d, &h, &state);
        if (status != LOG_OK) return status;
        if (state == FILE_HEAD_NEWER)
            return load_fail(d, LOG_DAMAGED,
                             "the log file %s has format version %u, which this program does not know; "
                             "use the program that wrote it",
                             path, h.version);
        if (state == FILE_HEAD_BAD) continue;
        if (h.segment_bytes != l->segment_bytes)
            log_info("log: %s has segments of %llu bytes and keeps them; %llu were asked for", l->dir,
                     (unsigned long long)h.segment_bytes, (unsigned long long)l->segment_bytes);
        l->segment_bytes = h.segment_bytes;
        l->block_bytes = h.block_bytes;
        log_key_set(l, h.id);
        return LOG_OK;
    }
    return load_fail(d, LOG_DAMAGED,
                     "no file of the log in %.1024s has a valid file head (the last one is %s, offset 0); restore the "
                     "directory from a backup",
                     l->dir, path);
}

/* A file's length tells how much of the stream it holds, without opening it. */
static enum log_status ends_set(struct load *d)
{
    struct log *l = d->l;
    for (uint32_t n = 0; n < l->segment_count; n++) {
        struct segment *s = l->segments[n];
        char path[PATH_BYTES];
        uint64_t len = round_up(s->file_bytes == 0 ? 1 : s->file_bytes, l->segment_bytes);
        bool aligned = s->first_pos % l->segment_bytes == 0 && s->first_pos < (uint64_t)1 << 62 && len <= (uint64_t)2 << 30;
        s->end_pos = s->first_pos + len;
        s->sealed = true;
        if (aligned) continue;
        load_path(d, s->first_pos, path);
        return load_fail(d, LOG_DAMAGED,
                         "the log file %s cannot belong to this log (segments of %llu bytes); remove it if it is not "
                         "part of it",
                         path, (unsigned long long)l->segment_bytes);
    }
    return LOG_OK;
}

/* ---- records */

static bool all_zero(const char *at, size_t len)
{
    return len == 0 || (at[0] == 0 && memcmp(at, at + 1, len - 1) == 0);
}

/* Makes the first `bytes` of the image's block be in memory. */
static enum log_status block_need(struct load *d, size_t bytes)
{
    struct image *i = d->image;
    while (d->loaded < bytes) {
        size_t len = i->cap - d->loaded < SLICE_BYTES ? i->cap - d->loaded : SLICE_BYTES;
        enum log_status status = file_load_read(d, i->base + d->loaded, len, i->pos - i->seg_first + d->loaded);
        if (status != LOG_OK) return status;
        d->loaded += len;
    }
    return LOG_OK;
}

static void block_begin(struct load *d, uint64_t blocks)
{
    struct log *l = d->l;
    struct segment *s = load_segment(d);
    struct image *i = image_new(l, blocks);
    i->pos = d->pos / l->block_bytes * l->block_bytes;
    i->cap = blocks * l->block_bytes;
    i->seg_first = s->first_pos;
    i->seg_end = s->end_pos;
    d->image = i;
    d->loaded = 0;
}

/* The block is done: it joins the cache, as far as there is room. */
static void block_end(struct load *d, uint64_t used_pos)
{
    struct image *i = d->image;
    if (i == NULL) return;
    d->image = NULL;
    atomic_store(&i->used, used_pos - i->pos);
    image_add(d->l, i);
    atomic_store(&d->l->synced_pos, i->pos + i->cap);
    images_drop(d->l, false);
}

enum step { STEP_RECORD, STEP_END };

/* Does a valid record of the current generation rules begin at d->pos? If so `h` has it, its bytes are in d->image and *next says
 * where the next one begins. */
static enum log_status record_load(struct load *d, struct record_head *h, uint64_t *next, enum step *step)
{
    struct log *l = d->l;
    struct segment *s = load_segment(d);
    *step = STEP_END;
    if (d->image == NULL) block_begin(d, 1);
    size_t off = d->pos - d->image->pos;
    enum log_status status = block_need(d, off + LOG_HEAD);
    if (status != LOG_OK) return status;
    memcpy(h, d->image->base + off, LOG_HEAD);
    if (!record_head_valid(l, d->pos, h) || h->gen < l->gen) {
        d->leftover = !all_zero((const char *)h, LOG_HEAD);
        return LOG_OK;
    }
    uint64_t border = d->image->pos + d->image->cap;
    if (h->kind == LOG_PAD) {
        *next = d->pos + LOG_HEAD + h->len;
        if (*next == border || *next == s->end_pos) *step = STEP_RECORD;
        return LOG_OK;
    }
    uint64_t end = d->pos + record_bytes(h->len);
    if (end > border) {
        bool first = off == (d->image->pos == s->first_pos ? LOG_PAGE : 0);
        if (!first || end > s->end_pos) return LOG_OK;
        image_put_back(l, d->image);
        block_begin(d, round_up(end - d->image->pos, l->block_bytes) / l->block_bytes);
        border = d->image->pos + d->image->cap;
    }
    status = block_need(d, end - d->image->pos);
    if (status != LOG_OK) return status;
    if (h->body_crc != record_body_crc(l, d->image->base + off + LOG_HEAD, h->len)) return LOG_OK;
    *next = border - end < LOG_HEAD || d->image->cap > l->block_bytes ? border : end;
    *step = STEP_RECORD;
    return LOG_OK;
}

static enum log_status record_take(struct load *d, const struct record_head *h)
{
    struct log *l = d->l;
    if (h->gen > l->gen) l->gen = h->gen;
    if (h->synced > d->proven) d->proven = h->synced;
    if (h->kind == LOG_MARK && l->last_index == 0 && h->index >> 62 == 0)
        l->last_index = h->index; /* of entries that were trimmed */
    if (h->kind != LOG_ENTRY) return LOG_OK;
    if (h->index == 0 || h->index >> 62 != 0 || (l->last_index != 0 && h->index > l->last_index + 1)) {
        char path[PATH_BYTES];
        load_path(d, load_segment(d)->first_pos, path);
        return load_fail(d, LOG_DAMAGED,
                         "the log file %s has entry %llu at offset %llu where %llu should follow: entries are missing; "
                         "restore the directory from a backup",
                         path, (unsigned long long)h->index, (unsigned long long)(d->pos - load_segment(d)->first_pos),
                         (unsigned long long)l->last_index + 1);
    }
    l->last_index = h->index;
    struct log_record r = {.index = h->index, .term = h->term, .pos = d->pos + LOG_HEAD, .len = h->len, .type = h->type};
    if (h->index >= l->o.first_index && l->o.record != NULL) l->o.record(l->o.ctx, &r);
    return LOG_OK;
}

/* Reads one segment's records; *ended when the log ends inside it. */
static enum log_status segment_load(struct load *d, bool *ended)
{
    struct log *l = d->l;
    struct segment *s = load_segment(d);
    struct file_head h;
    enum file_head_state state;
    d->pos = s->first_pos;
    *ended = true;
    enum log_status status = file_load_head(d, &h, &state);
    if (status != LOG_OK) return status;
    bool ours =
        state == FILE_HEAD_GOOD && h.id == l->id && h.segment_bytes == l->segment_bytes && h.block_bytes == l->block_bytes;
    if (state == FILE_HEAD_GOOD && !ours) {
        char path[PATH_BYTES];
        load_path(d, s->first_pos, path);
        return load_fail(d, LOG_DAMAGED, "the log file %s belongs to another log; restore the directory from a backup", path);
    }
    if (!ours) return LOG_OK;
    s->end_pos = s->first_pos + h.len;
    d->pos = s->first_pos + LOG_PAGE;
    while (d->pos < s->end_pos) {
        struct record_head r;
        uint64_t next = 0;
        enum step step;
        status = record_load(d, &r, &next, &step);
        if (status != LOG_OK || step == STEP_END) return status;
        status = record_take(d, &r);
        if (status != LOG_OK) return status;
        uint64_t end = d->pos + (r.kind == LOG_PAD ? LOG_HEAD : record_bytes(r.len));
        d->pos = next;
        if (next >= d->image->pos + d->image->cap) block_end(d, end);
    }
    *ended = false;
    return LOG_OK;
}

/* ---- behind the end */

/* Searches a stretch that was read from `pos` of the current segment for heads of this log. */
static void stretch_search(struct load *d, const char *at, size_t len, uint64_t pos, struct proof *proof)
{
    for (size_t i = 0; i + LOG_HEAD <= len; i += 8) {
        uint32_t magic;
        memcpy(&magic, at + i, sizeof magic);
        if (magic != d->l->magic) continue;
        struct record_head h;
        memcpy(&h, at + i, LOG_HEAD);
        if (!record_head_valid(d->l, pos + i, &h)) continue;
        d->leftover = true;
        if (h.gen > d->gen_max) d->gen_max = h.gen;
        if (h.synced > proof->synced) *proof = (struct proof){.synced = h.synced, .pos = pos + i, .at = d->at};
    }
}

/* Searches the current file from file offset `from` (a multiple of 8) to its end. Holes and zeros are passed over. */
static enum log_status file_search(struct load *d, uint64_t from, struct proof *proof)
{
    struct segment *s = load_segment(d);
    char *mem = pages_map(LOG_PAGE + SLICE_BYTES); /* the page in front holds what a head across two slices needs */
    char *slice = mem + LOG_PAGE;
    enum log_status status = LOG_OK;
    size_t carry = 0;
    uint64_t page = from / LOG_PAGE * LOG_PAGE;
    while (page < s->file_bytes) {
        off_t data = lseek(d->fd, (off_t)page, SEEK_DATA);
        if (data < 0 && errno == ENXIO) break;
        if (data > 0 && (uint64_t)data / LOG_PAGE * LOG_PAGE > page) {
            page = (uint64_t)data / LOG_PAGE * LOG_PAGE;
            carry = 0;
        }
        uint64_t left = round_up(s->file_bytes - page, LOG_PAGE);
        size_t len = left < SLICE_BYTES ? left : SLICE_BYTES, lead = from > page ? from - page : 0;
        status = file_load_read(d, slice, len, page);
        if (status != LOG_OK) break;
        size_t end = len;
        while (end > 0 && all_zero(slice + end - LOG_PAGE, LOG_PAGE)) end -= LOG_PAGE;
        if (end > lead) stretch_search(d, slice + lead - carry, end - lead + carry, s->first_pos + page + lead - carry, proof);
        carry = LOG_HEAD - 8;
        memcpy(slice - carry, slice + len - carry, carry);
        page += len;
    }
    pages_unmap(mem, LOG_PAGE + SLICE_BYTES);
    return status;
}

/* The log seems to end at d->pos in the current segment: is that so? */
static enum log_status end_check(struct load *d)
{
    struct log *l = d->l;
    uint32_t ended_at = d->at;
    struct segment *s = load_segment(d);
    struct proof proof = {.synced = 0};
    d->gen_max = l->gen;
    enum log_status status = file_search(d, d->pos - s->first_pos, &proof);
    while (status == LOG_OK && d->at + 1 < l->segment_count) {
        d->at++;
        status = file_load_open(d);
        if (status == LOG_OK) status = file_search(d, LOG_PAGE, &proof);
    }
    if (status != LOG_OK) return status;
    uint32_t proof_at = proof.at;
    d->at = ended_at;
    if (proof.synced <= d->pos) return file_load_open(d);
    char path[PATH_BYTES], later[PATH_BYTES];
    load_path(d, s->first_pos, path);
    load_path(d, l->segments[proof_at]->first_pos, later);
    return load_fail(
        d, LOG_DAMAGED,
        "the log file %s is damaged at offset %llu: what begins there fails its checks, but the record "
        "in %s at offset %llu proves that it had been stored safely. Nothing was changed; restore the directory from "
        "a backup",
        path, (unsigned long long)(d->pos - s->first_pos), later,
        (unsigned long long)(proof.pos - l->segments[proof_at]->first_pos));
}

/* ---- going on from the end */

static enum log_status missing_fail(struct load *d, uint64_t pos)
{
    char path[PATH_BYTES];
    load_path(d, pos / d->l->segment_bytes * d->l->segment_bytes, path);
    return load_fail(d, LOG_DAMAGED, "the log file %s is missing (position %llu); restore it from a backup", path,
                     (unsigned long long)pos);
}

/* Removes the files behind the current segment, last one first, each removal durable before the next: a gap never shows. The one that
 * follows directly may stay when it is as a prepared one should be. */
static enum log_status later_remove(struct load *d)
{
    struct log *l = d->l;
    uint32_t at = d->at;
    while (l->segment_count > at + 1) {
        d->at = l->segment_count - 1;
        struct segment *s = load_segment(d);
        struct file_head h;
        enum file_head_state state;
        enum log_status status = file_load_head(d, &h, &state);
        if (status != LOG_OK) return status;
        bool next = d->at == at + 1 && s->first_pos == l->segments[at]->end_pos;
        if (next && state == FILE_HEAD_GOOD && h.len == l->segment_bytes && s->file_bytes >= LOG_FIRST_ZERO_BYTES &&
            s->file_bytes <= l->segment_bytes) {
            s->end_pos = s->first_pos + h.len;
            break;
        }
        char name[LOG_NAME_BYTES];
        struct fault f = {.final = true};
        segment_name(s->first_pos, name);
        bool ok = unlinkat(l->dir_fd, name, 0) == 0 || fault_say(&f, errno, "cannot remove %.1024s/%s", l->dir, name);
        if (!ok || !dir_sync(l, &f)) return load_fail(d, LOG_IO, "%s", f.text);
        l->segment_count--;
        free(s);
    }
    d->at = at;
    return LOG_OK;
}

/* Opens a segment for writing. */
static enum log_status segment_reopen(struct load *d, struct segment *s)
{
    char name[LOG_NAME_BYTES], path[PATH_BYTES];
    segment_name(s->first_pos, name);
    s->fd = file_open(d->l, name, O_RDWR | (d->l->direct ? O_DIRECT : 0));
    s->sealed = false;
    s->zeroed = s->file_bytes / LOG_PAGE * LOG_PAGE;
    if (s->fd >= 0) return LOG_OK;
    load_path(d, s->first_pos, path);
    return load_fail(d, LOG_IO, "cannot open the log file %s for writing: %s", path, strerror(errno));
}

/* Nothing valid is in the segment: it starts anew, with a new head and the usual length. */
static enum log_status segment_reset(struct load *d, struct segment *s)
{
    struct log *l = d->l;
    struct fault f;
    char *page = pages_map(LOG_PAGE);
    char path[PATH_BYTES];
    load_path(d, s->first_pos, path);
    file_head_make(l, s->first_pos, l->segment_bytes, page);
    int error = 0;
    bool ok = s->file_bytes <= l->segment_bytes || ftruncate(s->fd, (off_t)l->segment_bytes) == 0;
    if (!ok) error = errno;
    ok = ok && file_write(l, s->fd, page, LOG_PAGE, 0, &error);
    pages_unmap(page, LOG_PAGE);
    if (!ok) {
        fault_say(&f, error, "cannot write to the log file %s", path);
        return load_fail(d, LOG_IO, "%s", f.text);
    }
    if (s->file_bytes > l->segment_bytes) s->file_bytes = l->segment_bytes;
    s->zeroed = s->file_bytes / LOG_PAGE * LOG_PAGE;
    d->pos = s->first_pos + LOG_PAGE;
    return LOG_OK;
}

/* What was read but never synced by the process that wrote it must become durable before it is reported as such. The file that is
 * written next is synced then; names that a crash left unsynced are made durable as well. */
static enum log_status scanned_sync(struct load *d, bool inside)
{
    struct log *l = d->l;
    for (uint32_t n = 0; n < l->segment_count; n++) {
        struct segment *s = l->segments[n];
        if (s->end_pos <= d->proven || s->first_pos >= d->pos || (inside && n == d->at)) continue;
        char name[LOG_NAME_BYTES], path[PATH_BYTES];
        segment_name(s->first_pos, name);
        load_path(d, s->first_pos, path);
        int fd = file_open(l, name, O_RDWR);
        bool ok = fd >= 0 && fdatasync(fd) == 0;
        int code = errno;
        if (fd >= 0) close(fd);
        if (!ok) return load_fail(d, LOG_IO, "cannot sync the log file %s: %s", path, strerror(code));
    }
    struct fault f;
    return dir_sync(l, &f) ? LOG_OK : load_fail(d, LOG_IO, "%s", f.text);
}

static void end_say(struct load *d)
{
    struct segment *s = load_segment(d);
    char path[PATH_BYTES];
    if (!d->leftover) return;
    load_path(d, s->first_pos, path);
    log_info("log: ends in %s at offset %llu, behind entry %llu; what follows there is no complete record and is dropped", path,
             (unsigned long long)(d->pos - s->first_pos), (unsigned long long)d->l->last_index);
}

static enum log_status first_make(struct load *d, uint64_t first_pos)
{
    struct log *l = d->l;
    struct fault f;
    struct segment *s;
    if (!segment_make(l, first_pos, &s, &f)) return load_fail(d, LOG_IO, "%s", f.text);
    segment_add(l, s);
    d->at = l->segment_count - 1;
    d->pos = first_pos + LOG_PAGE;
    return LOG_OK;
}

static enum log_status go_on(struct load *d, bool inside)
{
    struct log *l = d->l;
    l->gen = (d->gen_max > l->gen ? d->gen_max : l->gen) + 1;
    enum log_status status = scanned_sync(d, inside);
    struct segment *s = load_segment(d);
    bool empty = inside && d->pos <= s->first_pos + LOG_PAGE;
    if (empty) s->end_pos = s->first_pos + l->segment_bytes; /* a longer one was for a record that did not survive */
    if (status == LOG_OK) status = later_remove(d);
    if (status == LOG_OK && !inside) { /* full, and there is no next file */
        status = first_make(d, s->end_pos);
        s = load_segment(d);
    } else if (status == LOG_OK) {
        end_say(d);
        status = segment_reopen(d, s);
        if (status == LOG_OK && empty) {
            if (d->image != NULL) image_put_back(l, d->image);
            d->image = NULL;
            status = segment_reset(d, s);
        }
    }
    if (status != LOG_OK) return status;
    s->claimed = d->pos - s->first_pos;
    if (d->at + 1 < l->segment_count) status = segment_reopen(d, l->segments[d->at + 1]);
    l->write_seg = s;
    l->want_pos = s->end_pos;
    struct image *now = d->image;
    if (now != NULL && d->pos == now->pos) { /* a block's border: the writer makes a new image */
        image_put_back(l, now);
        now = NULL;
    }
    d->image = NULL;
    if (now != NULL) {
        atomic_store(&now->used, d->pos - now->pos);
        image_add(l, now);
    }
    writer_start(l, s->first_pos, s->end_pos, d->pos, now);
    return status;
}

/* Number of the segment to begin with. */
static enum log_status scan_begin(struct load *d)
{
    struct log *l = d->l;
    uint64_t pos = l->o.first_pos;
    d->at = 0;
    if (pos == 0) return LOG_OK;
    uint64_t last_end = l->segments[l->segment_count - 1]->end_pos;
    if (pos == last_end) {
        d->at = l->segment_count - 1;
        return LOG_OK;
    }
    while (d->at < l->segment_count && l->segments[d->at]->end_pos <= pos) d->at++;
    if (d->at < l->segment_count && l->segments[d->at]->first_pos <= pos) return LOG_OK;
    return missing_fail(d, pos);
}

static void holes_pass(struct load *d)
{
    const struct log *l = d->l;
    for (uint32_t n = d->at + 1; n < l->segment_count; n++)
        if (l->segments[n - 1]->end_pos != l->segments[n]->first_pos) d->at = n;
}

/* The current segment is full. One that was followed by nothing when the process ended may not have got its whole length. */
static enum log_status full_complete(struct load *d)
{
    struct segment *s = load_segment(d);
    uint64_t len = s->end_pos - s->first_pos;
    if (s->file_bytes >= len) return LOG_OK;
    char name[LOG_NAME_BYTES], path[PATH_BYTES];
    segment_name(s->first_pos, name);
    load_path(d, s->first_pos, path);
    int fd = file_open(d->l, name, O_RDWR);
    bool ok = fd >= 0 && ftruncate(fd, (off_t)len) == 0 && fdatasync(fd) == 0;
    int code = errno;
    if (fd >= 0) close(fd);
    if (!ok) return load_fail(d, LOG_IO, "cannot extend the log file %s: %s", path, strerror(code));
    s->file_bytes = len;
    return LOG_OK;
}

static enum log_status load_run(struct load *d)
{
    struct log *l = d->l;
    enum log_status status = files_list(d);
    if (status != LOG_OK) return status;
    direct_probe(d);
    if (l->segment_count == 0) {
        if (l->o.first_pos != 0) return missing_fail(d, l->o.first_pos);
        uint64_t id;
        random_bytes(&id, sizeof id);
        log_key_set(l, id);
        l->gen = 1;
        status = first_make(d, 0);
        if (status != LOG_OK) return status;
        l->write_seg = load_segment(d);
        l->want_pos = l->write_seg->end_pos;
        l->write_seg->claimed = LOG_PAGE;
        writer_start(l, 0, l->segment_bytes, LOG_PAGE, NULL);
        return LOG_OK;
    }
    status = identity_load(d);
    if (status == LOG_OK) status = ends_set(d);
    if (status == LOG_OK) status = scan_begin(d);
    if (status != LOG_OK) return status;
    if (l->o.sparse) holes_pass(d);
    bool inside;
    for (;;) {
        status = segment_load(d, &inside);
        if (status == LOG_OK && !inside) status = full_complete(d);
        if (status != LOG_OK) return status;
        if (inside || d->at + 1 == l->segment_count) break;
        if (l->segments[d->at + 1]->first_pos != load_segment(d)->end_pos) return missing_fail(d, load_segment(d)->end_pos);
        d->at++;
    }
    if (inside) status = end_check(d);
    if (status != LOG_OK) return status;
    if (d->pos < l->o.first_pos) {
        char path[PATH_BYTES];
        load_path(d, load_segment(d)->first_pos, path);
        return load_fail(d, LOG_DAMAGED,
                         "the log file %s ends at offset %llu, but the stored state has entries up to position %llu; "
                         "restore the directory from a backup",
                         path, (unsigned long long)(d->pos - load_segment(d)->first_pos), (unsigned long long)l->o.first_pos);
    }
    return go_on(d, inside);
}

enum log_status log_load(struct log *l, struct buf *error)
{
    struct load d = {.l = l, .error = error, .fd = -1};
    enum log_status status = load_run(&d);
    if (d.fd >= 0) close(d.fd);
    if (d.image != NULL) image_put_back(l, d.image);
    return status;
}

static enum log_status peek_fail(struct buf *error, const char *dir, const char *name)
{
    char reason[128];
    buf_printf(error, "cannot read the log file %s/%s: %s", dir, name, strerror_r(errno, reason, sizeof reason));
    return LOG_IO;
}

enum log_status log_segment_bytes_peek(const char *log_dir, uint64_t *bytes, struct buf *error)
{
    *bytes = 0;
    DIR *dir = opendir(log_dir);
    if (dir == NULL) return errno == ENOENT ? LOG_OK : peek_fail(error, log_dir, "");
    enum log_status status = LOG_OK;
    for (struct dirent *e = readdir(dir); e != NULL && *bytes == 0 && status == LOG_OK; e = readdir(dir)) {
        uint64_t first_pos;
        char page[LOG_PAGE];
        struct file_head h;
        if (!name_parse(e->d_name, &first_pos)) continue;
        int fd = openat(dirfd(dir), e->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        ssize_t n = fd < 0 ? -1 : file_read(fd, page, LOG_PAGE, 0, false);
        if (n < 0)
            status = peek_fail(error, log_dir, e->d_name);
        else if (n == LOG_PAGE && file_head_read(page, first_pos, &h) == FILE_HEAD_GOOD)
            *bytes = h.segment_bytes;
        if (fd >= 0) close(fd);
    }
    closedir(dir);
    return status;
}
