#include "log/log_check.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log/log_internal.h"

enum { WINDOW_BYTES = 1 << 20 };

_Static_assert((int)SEGMENT_HEAD_BYTES == (int)LOG_HEAD && (int)SEGMENT_ENTRY == (int)LOG_ENTRY &&
                   (int)SEGMENT_PAD == (int)LOG_PAD && (int)SEGMENT_MARK == (int)LOG_MARK,
               "the same numbers under public names");

struct walk {
    struct segment_walk *w;
    struct buf *error;
    struct log *key; /* holds the log's keys, nothing else */
    int fd;
    char *window;
    size_t cap, len;
    uint64_t offset; /* of the window in the file */
};

static enum log_status io_fail(struct walk *k, uint64_t offset)
{
    char reason[128];
    int code = errno;
    buf_printf(k->error, "cannot read the log file %s at offset %llu: %s", k->w->path, (unsigned long long)offset,
               strerror_r(code, reason, sizeof reason));
    return LOG_IO;
}

/* `len` bytes at `offset`, what the file does not have as zeros. NULL: a read failed, or `pace` says to end. */
static const char *bytes_at(struct walk *k, uint64_t offset, size_t len, enum log_status *status)
{
    if (offset >= k->offset && offset + len <= k->offset + k->len) return k->window + (offset - k->offset);
    size_t wanted = len < WINDOW_BYTES ? WINDOW_BYTES : len;
    if (wanted > k->cap) {
        free(k->window);
        k->window = malloc(wanted);
        must(k->window != NULL);
        k->cap = wanted;
    }
    k->len = 0;
    if (k->w->past_cache) posix_fadvise(k->fd, (off_t)offset, (off_t)wanted, POSIX_FADV_DONTNEED);
    ssize_t n = file_read(k->fd, k->window, wanted, offset, false);
    if (k->w->past_cache) posix_fadvise(k->fd, (off_t)offset, (off_t)wanted, POSIX_FADV_DONTNEED);
    if (n < 0) {
        *status = io_fail(k, offset);
        return NULL;
    }
    memset(k->window + n, 0, wanted - (size_t)n);
    k->offset = offset;
    k->len = wanted;
    k->w->ended_early = k->w->pace != NULL && !k->w->pace(k->w->ctx, (uint64_t)n);
    return k->w->ended_early ? NULL : k->window;
}

static enum log_status head_take(struct walk *k, bool *good)
{
    struct segment_walk *w = k->w;
    enum log_status status = LOG_OK;
    struct file_head h;
    struct stat st;
    *good = false;
    if (fstat(k->fd, &st) != 0) return io_fail(k, 0);
    w->file_bytes = (uint64_t)st.st_size;
    const char *page = bytes_at(k, 0, LOG_PAGE, &status);
    if (page == NULL) return status;
    enum file_head_state state = file_head_read(page, w->first_pos, &h);
    w->head_newer = state == FILE_HEAD_NEWER;
    if (state != FILE_HEAD_GOOD) return LOG_OK;
    w->id = h.id;
    w->segment_bytes = h.segment_bytes;
    w->block_bytes = h.block_bytes;
    w->end_pos = w->first_pos + h.len;
    log_key_set(k->key, h.id);
    *good = true;
    return LOG_OK;
}

static uint64_t border_behind(const struct segment_walk *w, uint64_t pos)
{
    return pos / w->block_bytes * w->block_bytes + w->block_bytes;
}

/* Where a valid head says that its record ends, and the next one begins. False: it does not fit where it is. */
static bool place_find(const struct segment_walk *w, uint64_t pos, const struct record_head *h, uint64_t *next)
{
    uint64_t border = border_behind(w, pos);
    if (h->kind == LOG_PAD) {
        *next = pos + LOG_HEAD + h->len;
        return *next == border || *next == w->end_pos;
    }
    uint64_t end = pos + record_bytes(h->len);
    bool own = end > border; /* blocks of its own: it begins at a block's first place */
    if (own && pos != (pos - w->first_pos < w->block_bytes ? w->first_pos + LOG_PAGE : border - w->block_bytes)) return false;
    if (own) border = round_up(end, w->block_bytes);
    *next = own || border - end < LOG_HEAD ? border : end;
    return end <= w->end_pos;
}

static void item_count(struct segment_walk *w, const struct record_head *h)
{
    w->records++;
    w->gen = h->gen;
    if (h->kind != LOG_ENTRY) return;
    if (w->entries++ == 0) {
        w->first_index = h->index;
        w->first_term = h->term;
    }
    w->last_index = h->index;
    w->last_term = h->term;
    w->entry_bytes += h->len;
}

/* One record. `more`: the walk goes on. */
static enum log_status record_walk(struct walk *k, bool *more)
{
    struct segment_walk *w = k->w;
    enum log_status status = LOG_OK;
    struct record_head h;
    uint64_t offset = w->stop_pos - w->first_pos, next = 0;
    *more = false;
    const char *at = bytes_at(k, offset, LOG_HEAD, &status);
    if (at == NULL) return status;
    memcpy(&h, at, LOG_HEAD);
    if (!record_head_valid(k->key, w->stop_pos, &h) || h.gen < w->gen) return LOG_OK;
    w->head_valid = true;
    if (!place_find(w, w->stop_pos, &h, &next)) return LOG_OK;
    struct segment_item i = {.pos = w->stop_pos,
                             .next = next,
                             .index = h.index,
                             .term = h.term,
                             .synced = h.synced,
                             .len = h.len,
                             .gen = h.gen,
                             .type = h.type,
                             .kind = h.kind};
    if (h.kind != LOG_PAD && !w->heads_only) {
        at = bytes_at(k, offset, LOG_HEAD + (size_t)h.len, &status);
        if (at == NULL) return status;
        i.body = slice_make(at + LOG_HEAD, h.len);
        if (h.body_crc != record_body_crc(k->key, i.body.at, i.body.len)) return LOG_OK;
    }
    w->head_valid = false;
    item_count(w, &h);
    w->stop_pos = next;
    w->ended_early = w->item != NULL && !w->item(w->ctx, &i);
    *more = !w->ended_early && next < w->end_pos;
    return LOG_OK;
}

/* From a stop on, heads of this log wherever they are. */
static enum log_status proof_find(struct walk *k, uint64_t pos)
{
    struct segment_walk *w = k->w;
    enum log_status status = LOG_OK;
    for (uint64_t offset = pos - w->first_pos; offset + LOG_HEAD <= w->file_bytes; offset += 8) {
        const char *at = bytes_at(k, offset, LOG_HEAD, &status);
        if (at == NULL) return status;
        uint32_t magic;
        memcpy(&magic, at, sizeof magic);
        if (magic != k->key->magic) continue;
        struct record_head h;
        memcpy(&h, at, LOG_HEAD);
        if (!record_head_valid(k->key, w->first_pos + offset, &h) || h.synced <= w->proof_synced) continue;
        w->proof_synced = h.synced;
        w->proof_pos = w->first_pos + offset;
    }
    return LOG_OK;
}

static enum log_status records_walk(struct walk *k)
{
    struct segment_walk *w = k->w;
    bool more;
    enum log_status status = head_take(k, &more);
    if (status != LOG_OK || !more) return status;
    w->stop_pos = w->first_pos + LOG_PAGE;
    w->gen = w->gen_least;
    while (status == LOG_OK && more) status = record_walk(k, &more);
    if (status == LOG_OK && !w->ended_early && w->stop_pos < w->end_pos) status = proof_find(k, w->stop_pos);
    return status;
}

enum log_status segment_walk(struct segment_walk *w, struct buf *error)
{
    struct walk k = {.w = w, .error = error, .key = calloc(1, sizeof(struct log))};
    must(k.key != NULL);
    w->end_pos = w->stop_pos = w->records = w->entries = w->entry_bytes = w->proof_synced = w->proof_pos = 0;
    w->first_index = w->last_index = w->first_term = w->last_term = 0;
    w->ended_early = w->head_valid = w->head_newer = false;
    k.fd = open(w->path, O_RDONLY | O_CLOEXEC);
    enum log_status status = k.fd < 0 ? io_fail(&k, 0) : records_walk(&k);
    if (k.fd >= 0) close(k.fd);
    free(k.window);
    free(k.key);
    return status;
}
