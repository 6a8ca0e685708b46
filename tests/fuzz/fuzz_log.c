/* The log's loader, without its threads: the input is what a segment file holds. Whatever the open answers, it must not crash or hang; what it reports can be
 * read back; and a log that opened can be written to and opened again, with the same entries and the new one.
 *
 * Input: one byte that says how to lay the rest out, then the bytes.
 *   bit 0  the bytes lie behind a good file head (else they are the whole file)
 *   bit 1  magic and checksums of what looks like records are put right first (not where a kind has its top bit set), so that the
 *          reader behind them is reached
 *   bit 2  a prepared next segment follows
 *   bit 3  a second segment holds the second half of the bytes
 *   bit 4  the first file has its full length */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/logger.h"
#include "log/log_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SEGMENT = 1 << 20, ENTRIES_MAX = 4096 };

struct seen {
    struct log_record records[ENTRIES_MAX];
    uint64_t first, last, count;
};

static char dir[64];

static void on_record(void *ctx, const struct log_record *r)
{
    struct seen *s = ctx;
    must(r->index != 0);
    if (s->count == 0) s->first = r->index;
    if (r->index < s->first) s->first = r->index;
    s->records[r->index % ENTRIES_MAX] = *r;
    s->last = r->index;
    s->count++;
}

static void on_failed(void *ctx, const char *what)
{
    (void)ctx;
    (void)what;
    abort();
}

static void dir_make(void)
{
    if (dir[0] != 0) return;
    const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(dir, sizeof dir, "%s/queen-fuzz-log-XXXXXX", base);
    must(mkdtemp(dir) != NULL);
    logger_init(LOGGER_ERROR, false);
}

static void dir_clear(void)
{
    static const char *const names[] = {"0000000000000000.seg", "0000000000100000.seg", "0000000000200000.seg",
                                        "0000000000300000.seg"};
    char path[128];
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
}

static void file_put(const struct log *model, uint64_t first_pos, bool head, const uint8_t *data, size_t size, size_t whole)
{
    char path[128], name[LOG_NAME_BYTES], page[LOG_PAGE];
    segment_name(first_pos, name);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    must(fd >= 0);
    off_t at = 0;
    if (head) {
        file_head_make(model, first_pos, SEGMENT, page);
        must(pwrite(fd, page, LOG_PAGE, 0) == LOG_PAGE);
        at = LOG_PAGE;
    }
    must(size == 0 || pwrite(fd, data, size, at) == (ssize_t)size);
    must(whole == 0 || ftruncate(fd, (off_t)whole) == 0);
    close(fd);
}

/* Walks the bytes as the loader would and makes heads valid, keeping lengths, indexes, kinds as they are. */
static void records_repair(const struct log *model, uint64_t pos, uint8_t *data, size_t size)
{
    size_t at = 0;
    for (int n = 0; n < 64 && at + LOG_HEAD <= size; n++) {
        struct record_head h;
        memcpy(&h, data + at, LOG_HEAD);
        bool leave = (h.kind & 0x80) != 0;
        h.kind = (uint8_t)(h.kind % 3 + 1);
        if (h.len > size) h.len %= (uint32_t)size;
        uint64_t synced = h.synced;
        uint32_t gen = h.gen % 8;
        struct log writer = *model;
        writer.gen = gen;
        h.synced = synced % (4 * SEGMENT);
        size_t body = size - at - LOG_HEAD < h.len ? size - at - LOG_HEAD : h.len;
        uint32_t len = h.len;
        if (h.kind != LOG_PAD) h.len = (uint32_t)body;
        record_seal(&writer, pos + at, &h, h.kind == LOG_PAD ? NULL : (const char *)data + at + LOG_HEAD);
        if (!leave) memcpy(data + at, &h, LOG_HEAD);
        at += h.kind == LOG_PAD ? LOG_HEAD + len : record_bytes(h.len);
    }
}

static void check_readable(struct log *l, const struct seen *s)
{
    if (s->count == 0 || s->count > ENTRIES_MAX) return;
    char *room = malloc(SEGMENT);
    must(room != NULL);
    for (uint64_t index = s->first; index <= s->last; index++) {
        const struct log_record *r = &s->records[index % ENTRIES_MAX];
        must(r->index == index && r->len <= SEGMENT);
        must(log_covers(l, r->pos, r->pos + r->len));
        must(log_read(l, r->pos, r->len, room) == LOG_OK);
    }
    free(room);
}

static enum log_status open_log(struct log **l, struct seen *s)
{
    memset(s, 0, sizeof *s);
    struct log_options o = {.dir = dir,
                            .segment_bytes = SEGMENT,
                            .cache_bytes_max = SEGMENT,
                            .cache_age_us = 1000000,
                            .first_index = 1,
                            .ctx = s,
                            .record = on_record,
                            .failed = on_failed};
    struct buf error = {.len = 0};
    enum log_status status = log_open_still(l, &o, &error);
    must((status == LOG_OK) == (error.len == 0));
    buf_free(&error);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct seen seen, again;
    if (size < 1 || size > SEGMENT / 2) return 0;
    dir_make();
    dir_clear();
    uint8_t how = data[0];
    uint8_t *bytes = malloc(size);
    must(bytes != NULL);
    memcpy(bytes, data + 1, --size);
    static struct log model;
    model.segment_bytes = SEGMENT;
    model.block_bytes = SEGMENT / 2;
    model.gen = 1;
    log_key_set(&model, 0x0123456789abcdef);
    size_t first = (how & 8) != 0 ? size / 16 * 8 : size;
    if ((how & 2) != 0) {
        records_repair(&model, LOG_PAGE, bytes, first);
        records_repair(&model, SEGMENT + LOG_PAGE, bytes + first, size - first);
    }
    file_put(&model, 0, (how & 1) != 0, bytes, first, (how & 16) != 0 ? SEGMENT : 0);
    if ((how & 12) != 0) file_put(&model, SEGMENT, true, bytes + first, (how & 8) != 0 ? size - first : 0, SEGMENT);
    free(bytes);

    struct log *l;
    if (open_log(&l, &seen) != LOG_OK) return 0;
    check_readable(l, &seen);
    must(seen.count == 0 || log_synced_index(l) == seen.last);
    uint64_t end = log_end_pos(l);
    struct fault f;
    memcpy(log_reserve(l, 5), "hello", 5);
    log_append(l, seen.last + 1, 99, 3, 5);
    must(disk_write(l, end, log_end_pos(l), &f));
    log_free(l);
    must(open_log(&l, &again) == LOG_OK);
    must(again.last == seen.last + 1 && again.records[again.last % ENTRIES_MAX].term == 99);
    check_readable(l, &again);
    log_free(l);
    return 0;
}
