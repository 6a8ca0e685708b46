/* Term and vote: two files of one page each, written in turn.
 *
 *   magic 8 | format 4 | crc 4 (of what follows) | version 8 | term 8 | vote 8 | node 8 | cluster 16 | waits 8 | zeros
 *
 * Version v goes to meta-(v & 1), over the older of the two, so that a write cut short leaves the newer one whole. A page that fails
 * its checks is such a write; the other one counts. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/crash_point.h"
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

static ssize_t page_read(int fd, char *page)
{
    size_t have = 0;
    while (have < META_BYTES) {
        ssize_t n = pread(fd, page + have, META_BYTES - have, (off_t)have);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        if (n == 0) break;
        have += (size_t)n;
    }
    return (ssize_t)have;
}

/* Takes over the page of file `i` when it is valid and newer than what was found so far. */
static enum log_status page_take(struct meta *m, int i, ssize_t len, bool *valid, struct buf *error)
{
    struct meta_page p;
    memcpy(&p, m->page, sizeof p);
    *valid = len == META_BYTES && memcmp(p.magic, META_MAGIC, 8) == 0 && p.crc == page_crc(m->page) && p.version != 0 &&
             (p.version & 1) == (uint64_t)i;
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

static enum log_status file_read(struct meta *m, int i, bool *damaged, struct buf *error)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/meta-%d", m->dir, i);
    m->fds[i] = open(path, O_RDWR | O_CLOEXEC);
    if (m->fds[i] < 0 && errno == ENOENT) return LOG_OK;
    ssize_t len = m->fds[i] < 0 ? -1 : page_read(m->fds[i], m->page);
    if (len < 0) {
        buf_printf(error, "%s: cannot be read: %s", path, strerror(errno));
        return LOG_IO;
    }
    bool valid;
    if (len > 0) m->files++;
    enum log_status status = page_take(m, i, len, &valid, error);
    *damaged = !valid && len > 0;
    return status;
}

enum log_status meta_open(struct meta *m, const char *dir, struct buf *error)
{
    *m = (struct meta){.dir = strdup(dir), .fds = {-1, -1}, .page = aligned_alloc(META_BYTES, META_BYTES)};
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

static bool file_create(struct meta *m, int i, struct buf *error)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/meta-%d", m->dir, i);
    m->fds[i] = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0640);
    int dir = m->fds[i] < 0 ? -1 : open(m->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok = dir >= 0 && fsync(dir) == 0;
    if (!ok) buf_printf(error, "%s: cannot be created: %s", path, strerror(errno));
    if (dir >= 0) close(dir);
    return ok;
}

enum log_status meta_write(struct meta *m, uint64_t term, uint64_t vote, struct buf *error)
{
    must(term >= m->term);
    uint64_t version = m->version + 1;
    int i = (int)(version & 1);
    if (m->fds[i] < 0 && !file_create(m, i, error)) return LOG_IO;
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
    ssize_t n;
    do {
        n = pwrite(m->fds[i], m->page, META_BYTES, 0);
    } while (n < 0 && errno == EINTR);
    if (n >= 0 && n != META_BYTES) errno = ENOSPC;
    if (n != META_BYTES || fdatasync(m->fds[i]) != 0) {
        buf_printf(error, "%s/meta-%d: cannot be written: %s", m->dir, i, strerror(errno));
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
    for (int i = 0; i < 2; i++) {
        if (m->fds[i] >= 0) close(m->fds[i]);
    }
    free(m->page);
    free(m->dir);
    *m = (struct meta){.fds = {-1, -1}};
}
