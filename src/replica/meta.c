/* Term and vote: two files of one page each, written in turn.
 *
 *   magic 8 | format 4 | crc 4 (of what follows) | version 8 | term 8 | vote 8 | node 8 | cluster 16 | waits 8 | zeros
 *
 * Version v goes to meta-(v & 1), over the older of the two, so that a write cut short leaves the newer one whole. A page that fails
 * its checks is such a write; the other one counts. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/crash_point.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/logger.h"
#include "replica/replica_inner.h"

static const char META_MAGIC[8] = {'Q', 'U', 'E', 'E', 'N', 'M', 'E', 'T'};

struct meta_page {
    char magic[8];
    uint32_t format, crc;
    uint64_t version, term, vote, node;
    struct uuid cluster;
    uint64_t waits; /* 1: made without members, and no entry is durable here yet */
};

static uint32_t page_crc(const char *page)
{
    return crc32c(0, page + 16, META_BYTES - 16);
}

/* Takes over the page of file `i` when it is valid and newer than what was found so far. */
static enum log_status page_take(struct meta *m, int i, size_t len, bool *valid, struct buf *error)
{
    struct meta_page p;
    *valid = false;
    if (len != META_BYTES) return LOG_OK;
    memcpy(&p, m->page, sizeof p);
    *valid =
        memcmp(p.magic, META_MAGIC, 8) == 0 && p.crc == page_crc(m->page) && p.version != 0 && (p.version & 1) == (uint64_t)i;
    if (!*valid) return LOG_OK;
    if (p.format != META_FORMAT) {
        buf_printf(error, "%s/meta-%d: has format %" PRIu32 ", this program reads format %d: use a newer version of it", m->dir,
                   i, p.format, META_FORMAT);
        return LOG_DAMAGED;
    }
    if (p.version <= m->version) return LOG_OK;
    m->version = p.version;
    m->term = p.term;
    m->vote = p.vote;
    m->node = p.node;
    m->cluster = p.cluster;
    m->waits = p.waits != 0;
    return LOG_OK;
}

static void path_make(const struct meta *m, int i, char out[FILES_PATH_BYTES])
{
    snprintf(out, FILES_PATH_BYTES, "%.4096s/meta-%d", m->dir, i);
}

static enum log_status file_read(struct meta *m, int i, bool *damaged, struct buf *error)
{
    char path[FILES_PATH_BYTES];
    struct buf bytes = {0};
    path_make(m, i, path);
    int code = files_read(path, 0, META_BYTES, &bytes);
    enum log_status status = LOG_OK;
    if (code == 0) {
        bool valid;
        if (bytes.len > 0) m->files++;
        memset(m->page, 0, META_BYTES);
        if (bytes.len > 0) memcpy(m->page, bytes.at, bytes.len);
        status = page_take(m, i, bytes.len, &valid, error);
        *damaged = !valid && bytes.len > 0;
    } else if (code != ENOENT) {
        buf_printf(error, "%s: cannot be read: %s", path, strerror(code));
        status = LOG_IO;
    }
    buf_free(&bytes);
    return status;
}

enum log_status meta_open(struct meta *m, const char *dir, struct buf *error)
{
    *m = (struct meta){.dir = strdup(dir), .page = malloc(META_BYTES)};
    must(m->dir != NULL && m->page != NULL);
    bool damaged[2] = {false, false};
    for (int i = 0; i < 2; i++) {
        enum log_status status = file_read(m, i, &damaged[i], error);
        if (status != LOG_OK) return status;
    }
    for (int i = 0; i < 2; i++) {
        if (damaged[i] && m->version != 0)
            log_warn("%s/meta-%d: not whole, a write to it was cut short; meta-%d counts", dir, i, 1 - i);
    }
    return LOG_OK;
}

/* Durable on return: the bytes, and the name when the file is new. */
static int page_store(struct meta *m, int i)
{
    char path[FILES_PATH_BYTES];
    path_make(m, i, path);
    int code = files_write(path, 0, slice_make(m->page, META_BYTES));
    if (code == 0) code = files_sync(path);
    if (code == 0 && !m->there[i]) code = files_sync(m->dir);
    if (code == 0) m->there[i] = true;
    return code;
}

enum log_status meta_write(struct meta *m, uint64_t term, uint64_t vote, struct buf *error)
{
    must(term >= m->term);
    uint64_t version = m->version + 1;
    int i = (int)(version & 1);
    struct meta_page p = {.format = META_FORMAT,
                          .version = version,
                          .term = term,
                          .vote = vote,
                          .node = m->node,
                          .cluster = m->cluster,
                          .waits = m->waits};
    memcpy(p.magic, META_MAGIC, 8);
    memset(m->page, 0, META_BYTES);
    memcpy(m->page, &p, sizeof p);
    p.crc = page_crc(m->page);
    memcpy(m->page, &p, sizeof p);
    int code = page_store(m, i);
    if (code != 0) {
        buf_printf(error, "%s/meta-%d: cannot be written: %s", m->dir, i, strerror(code));
        return LOG_IO;
    }
    m->version = version;
    m->term = term;
    m->vote = vote;
    crash_point("meta-written");
    return LOG_OK;
}

void meta_close(struct meta *m)
{
    free(m->page);
    free(m->dir);
    *m = (struct meta){0};
}
