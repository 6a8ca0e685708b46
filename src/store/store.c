/* The store thread.
 *
 *   submit: batch -> waiting list
 *   thread: takes the whole list; writes it in order, several batches in one write while they are small; when one of them asked
 *           for it, flushes once; moves the batches to the written and the flushed list, whose callbacks a loop task runs
 *   A checkpoint is an order in the same line: what stands before it is written and flushed first, what stands behind it waits
 *
 * A failure ends the thread's work: what was not written by then never is, and its callbacks never run. */
#include "store/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crash_point.h"
#include "base/logger.h"
#include "store/store_inner.h"
#include "store/store_rocks.h"

enum {
    OPEN_BYTES = 1 << 20,      /* free space asked for at start */
    WRITE_BYTES_MAX = 4 << 20, /* of merged batches; one larger batch is written alone */
    SPARE_BATCHES_MAX = 4,     /* kept for reuse ... */
    SPARE_BYTES_MAX = 1 << 20, /* ... unless they have grown larger than this */
};

struct batch_list {
    struct store_batch *first, **end;
};

struct store {
    struct store_options o;
    char *dir;
    rocksdb_t *db;
    rocksdb_options_t *options[STORE_FAMILIES];
    rocksdb_column_family_handle_t *families[STORE_FAMILIES];
    uint32_t family_ids[STORE_FAMILIES];
    rocksdb_cache_t *cache;
    rocksdb_writeoptions_t *write_options;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct batch_list waiting, written;         /* under the lock */
    struct store_batch *flushed, **flushed_end; /* under the lock; linked by next_flush */
    bool closing, posted;                       /* under the lock */
    struct loop_task task;

    /* Of the store thread. */
    struct buf merged;
    struct buf gone;                              /* ranges of batches that were written, for when they are durable */
    struct store_batch *to_flush, **to_flush_end; /* written, waiting for the flush; linked by next_flush */
    bool unflushed, broken;
    struct store_mark mark; /* of the last batch written */

    /* Of the group thread. */
    struct store_batch *spare;
    uint32_t spare_count;

    atomic_uint_fast64_t pending; /* batches submitted, not yet written */
    atomic_uint_fast64_t batches, rows, flushes, write_us, flush_us;
};

rocksdb_t *store_rocksdb(struct store *s)
{
    return s->db;
}

rocksdb_column_family_handle_t *store_rocks_family(struct store *s, int family)
{
    return s->families[family];
}

const char *store_dir(const struct store *s)
{
    return s->dir;
}

/* ---- lists */

static void list_init(struct batch_list *l)
{
    l->first = NULL;
    l->end = &l->first;
}

static void list_put(struct batch_list *l, struct store_batch *b)
{
    b->next = NULL;
    *l->end = b;
    l->end = &b->next;
}

static struct store_batch *list_take(struct batch_list *l)
{
    struct store_batch *first = l->first;
    list_init(l);
    return first;
}

static void batch_free(struct store_batch *b)
{
    buf_free(&b->rows);
    buf_free(&b->gone);
    free(b->checkpoint_dir);
    free(b->checkpoint_error);
    free(b);
}

static void batches_free(struct store_batch *b)
{
    while (b != NULL) {
        struct store_batch *next = b->next;
        batch_free(b);
        b = next;
    }
}

/* ---- store thread */

static void store_fail(struct store *s, const char *doing, char *text)
{
    struct buf what = {0};
    store_error(text, doing, s->dir, &what);
    buf_byte(&what, '\0');
    s->broken = true;
    s->o.failed(s->o.ctx, what.at);
    buf_free(&what);
}

static void rows_write(struct store *s, const struct buf *rows)
{
    crash_point("store-write-before");
    int64_t from_us = clock_mono_us();
    char *text = NULL;
    rocksdb_writebatch_t *w = rocksdb_writebatch_create_from(rows->at, rows->len);
    rocksdb_write(s->db, s->write_options, w, &text);
    rocksdb_writebatch_destroy(w);
    if (text != NULL) {
        store_fail(s, "a write failed", text);
        return;
    }
    s->unflushed = true;
    atomic_fetch_add_explicit(&s->write_us, (uint64_t)(clock_mono_us() - from_us), memory_order_relaxed);
    crash_point("store-write-after");
}

/* Files in ranges that the durable state has nothing in. One that is not removed is left to those who delete its neighbours. */
static void gone_remove(struct store *s)
{
    for (size_t at = 0; at < s->gone.len;) {
        uint16_t lens[2];
        int family = s->gone.at[at];
        memcpy(lens, s->gone.at + at + 1, sizeof lens);
        const char *from = s->gone.at + at + 1 + sizeof lens, *to = from + lens[0];
        char *text = NULL;
        crash_point("store-gone");
        rocksdb_delete_file_in_range_cf(s->db, s->families[family], from, lens[0], to, lens[1], &text);
        if (text != NULL) log_warn("%s: files whose rows are deleted stay: %s", s->dir, text);
        if (text != NULL) rocksdb_free(text);
        at += 1 + sizeof lens + (size_t)lens[0] + lens[1];
    }
    buf_clear(&s->gone);
}

static void flush(struct store *s)
{
    if (!s->unflushed) return;
    crash_point("checkpoint-before");
    int64_t from_us = clock_mono_us();
    char *text = rocks_flush(s->db, s->families, STORE_FAMILIES);
    if (text != NULL) {
        store_fail(s, "a flush failed", text);
        return;
    }
    s->unflushed = false;
    atomic_fetch_add_explicit(&s->flush_us, (uint64_t)(clock_mono_us() - from_us), memory_order_relaxed);
    atomic_fetch_add_explicit(&s->flushes, 1, memory_order_relaxed);
    crash_point("checkpoint-after");
    gone_remove(s);
}

/* Posts the callbacks' task unless it is on its way. Under the lock. */
static void done_post(struct store *s)
{
    if (s->posted || s->closing) return;
    s->posted = true;
    loop_post(s->o.loop, &s->task);
}

/* Writes batches from `b` to before `end` as one. */
static void batches_write(struct store *s, struct store_batch *b, struct store_batch *end, uint32_t count)
{
    struct buf *rows = &b->rows;
    if (b->next != end) {
        rows = &s->merged;
        rows->len = 0;
        buf_put(rows, b->rows.at, BATCH_HEAD_BYTES);
        for (struct store_batch *i = b; i != end; i = i->next) {
            buf_put(rows, i->rows.at + BATCH_HEAD_BYTES, i->rows.len - BATCH_HEAD_BYTES);
        }
    }
    batch_head_put(rows, count);
    rows_write(s, rows);
    if (s->broken) return;
    atomic_fetch_add_explicit(&s->rows, count, memory_order_relaxed);
}

/* Takes as many batches from the front as make one write. */
static struct store_batch *merge_end(struct store_batch *b, uint32_t *count)
{
    size_t bytes = 0;
    *count = 0;
    struct store_batch *first = b;
    for (; b != NULL && b->checkpoint_dir == NULL; b = b->next) {
        bytes += b->rows.len;
        if (b != first && (bytes > WRITE_BYTES_MAX || *count > UINT32_MAX - b->count)) break;
        *count += b->count;
    }
    return b;
}

/* Written batches go to the loop; those that asked for a flush are also remembered until it is done. */
static void batches_done(struct store *s, struct store_batch *b, struct store_batch *end)
{
    pthread_mutex_lock(&s->lock);
    while (b != end) {
        struct store_batch *next = b->next;
        if (b->flush) {
            b->next_flush = NULL;
            *s->to_flush_end = b;
            s->to_flush_end = &b->next_flush;
        }
        s->mark = b->mark;
        buf_slice(&s->gone, buf_view(&b->gone));
        list_put(&s->written, b);
        atomic_fetch_sub(&s->pending, 1);
        atomic_fetch_add_explicit(&s->batches, 1, memory_order_relaxed);
        b = next;
    }
    done_post(s);
    pthread_mutex_unlock(&s->lock);
}

static void flushed_done(struct store *s)
{
    pthread_mutex_lock(&s->lock);
    *s->flushed_end = s->to_flush;
    s->flushed_end = s->to_flush_end;
    s->to_flush = NULL;
    s->to_flush_end = &s->to_flush;
    done_post(s);
    pthread_mutex_unlock(&s->lock);
}

static void to_flush_flush(struct store *s)
{
    if (s->to_flush == NULL) return;
    flush(s);
    if (!s->broken) flushed_done(s);
}

/* All that stands before it is written. A checkpoint that fails leaves the store as it is. */
static void checkpoint_make(struct store *s, struct store_batch *b)
{
    crash_point("store-checkpoint-before");
    char *text = NULL;
    rocksdb_checkpoint_t *c = rocksdb_checkpoint_object_create(s->db, &text);
    /* 0: flushes what is not in a file yet. That is never a row of a batch, which is flushed by now. */
    if (text == NULL) rocksdb_checkpoint_create(c, b->checkpoint_dir, 0, &text);
    if (c != NULL) rocksdb_checkpoint_object_destroy(c);
    if (text != NULL) {
        struct buf what = {0};
        store_error(text, "a checkpoint failed", b->checkpoint_dir, &what);
        buf_byte(&what, '\0');
        b->checkpoint_error = what.at;
    }
    b->mark = s->mark;
    pthread_mutex_lock(&s->lock);
    list_put(&s->written, b);
    done_post(s);
    pthread_mutex_unlock(&s->lock);
    crash_point("store-checkpoint-after");
}

static void list_write(struct store *s, struct store_batch *b)
{
    while (b != NULL && !s->broken) {
        if (b->checkpoint_dir != NULL) {
            to_flush_flush(s);
            if (!s->broken) flush(s);
            if (s->broken) break;
            struct store_batch *next = b->next;
            checkpoint_make(s, b);
            b = next;
            continue;
        }
        uint32_t count;
        struct store_batch *end = merge_end(b, &count);
        batches_write(s, b, end, count);
        if (s->broken) break;
        batches_done(s, b, end);
        b = end;
    }
    batches_free(b);
    if (!s->broken) to_flush_flush(s);
}

static void *thread_main(void *arg)
{
    struct store *s = arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (s->waiting.first == NULL && !s->closing) pthread_cond_wait(&s->wake, &s->lock);
        struct store_batch *b = list_take(&s->waiting);
        if (b == NULL) break;
        pthread_mutex_unlock(&s->lock);
        list_write(s, b);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    if (!s->broken) flush(s);
    return NULL;
}

/* ---- group thread */

static void batch_recycle(struct store *s, struct store_batch *b)
{
    if (s->spare_count >= SPARE_BATCHES_MAX || b->rows.cap > SPARE_BYTES_MAX) {
        batch_free(b);
        return;
    }
    b->next = s->spare;
    s->spare = b;
    s->spare_count++;
}

static void done_run(struct loop_task *task)
{
    struct store *s = (struct store *)(void *)((char *)task - offsetof(struct store, task));
    pthread_mutex_lock(&s->lock);
    s->posted = false;
    struct store_batch *written = list_take(&s->written), *flushed = s->flushed;
    s->flushed = NULL;
    s->flushed_end = &s->flushed;
    pthread_mutex_unlock(&s->lock);
    while (written != NULL) {
        struct store_batch *b = written;
        written = b->next;
        if (b->checkpoint_dir != NULL) {
            b->checkpoint_done(b->ctx, b->mark, b->checkpoint_error);
            batch_free(b);
            continue;
        }
        if (b->written != NULL) b->written(b->ctx, b->mark);
        if (!b->flush) batch_recycle(s, b);
    }
    /* Its `written` ran before: a batch enters that list first. */
    while (flushed != NULL) {
        struct store_batch *b = flushed;
        flushed = b->next_flush;
        if (b->flushed != NULL) b->flushed(b->ctx, b->mark);
        batch_recycle(s, b);
    }
}

struct store_batch *store_batch_new(struct store *s)
{
    struct store_batch *b = s->spare;
    if (b != NULL) {
        s->spare = b->next;
        s->spare_count--;
    } else {
        b = calloc(1, sizeof *b);
        must(b != NULL);
    }
    batch_reset(b);
    b->family_ids = s->family_ids;
    return b;
}

void store_batch_drop(struct store *s, struct store_batch *b)
{
    batch_recycle(s, b);
}

static void list_submit(struct store *s, struct store_batch *b)
{
    pthread_mutex_lock(&s->lock);
    must(!s->closing);
    list_put(&s->waiting, b);
    pthread_mutex_unlock(&s->lock);
    pthread_cond_signal(&s->wake);
}

void store_submit(struct store *s, struct store_batch *b, struct store_mark mark, bool flush_it, void *ctx,
                  void (*written)(void *ctx, struct store_mark mark), void (*flushed)(void *ctx, struct store_mark mark))
{
    b->mark = mark;
    b->flush = flush_it;
    b->ctx = ctx;
    b->written = written;
    b->flushed = flushed;
    batch_mark_put(b);
    atomic_fetch_add(&s->pending, 1);
    list_submit(s, b);
}

void store_checkpoint(struct store *s, const char *dir, void *ctx,
                      void (*done)(void *ctx, struct store_mark mark, const char *error))
{
    must(done != NULL);
    struct store_batch *b = calloc(1, sizeof *b);
    must(b != NULL);
    b->checkpoint_dir = strdup(dir);
    must(b->checkpoint_dir != NULL);
    b->ctx = ctx;
    b->checkpoint_done = done;
    list_submit(s, b);
}

bool store_busy(const struct store *s)
{
    return atomic_load(&s->pending) != 0;
}

void store_stats(struct store *s, struct store_stats *out)
{
    out->batches = atomic_load(&s->batches);
    out->rows = atomic_load(&s->rows);
    out->flushes = atomic_load(&s->flushes);
    out->write_us_total = atomic_load(&s->write_us);
    out->flush_us_total = atomic_load(&s->flush_us);
    out->disk_bytes = out->memory_bytes = 0;
    for (int i = 0; i < STORE_FAMILIES; i++) {
        uint64_t disk = 0, buffers = 0, tables = 0;
        rocksdb_property_int_cf(s->db, s->families[i], "rocksdb.total-sst-files-size", &disk);
        rocksdb_property_int_cf(s->db, s->families[i], "rocksdb.size-all-mem-tables", &buffers);
        rocksdb_property_int_cf(s->db, s->families[i], "rocksdb.estimate-table-readers-mem", &tables);
        out->disk_bytes += disk;
        out->memory_bytes += buffers + tables;
    }
    out->memory_bytes += rocksdb_cache_get_usage(s->cache);
}

/* ---- open, close */

/* RocksDB would create a new database over the remains of one whose CURRENT file is lost. */
static enum store_status remains_check(const char *dir, struct buf *error)
{
    DIR *d = opendir(dir);
    if (d == NULL && errno == ENOENT) return STORE_OK;
    if (d == NULL) {
        buf_printf(error, "%s: cannot be read: %s", dir, strerror(errno));
        return STORE_IO;
    }
    bool current = false, tables = false;
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        size_t len = strlen(e->d_name);
        current |= strcmp(e->d_name, "CURRENT") == 0;
        tables |= len > 4 && strcmp(e->d_name + len - 4, ".sst") == 0;
    }
    closedir(d);
    if (current || !tables) return STORE_OK;
    buf_printf(error, "%s/CURRENT: is missing although there are table files; restore the directory from a backup", dir);
    return STORE_DAMAGED;
}

/* RocksDB ends the process by an assertion when the disk has no room for the files it begins with: ask first. */
static enum store_status room_check(const char *dir, struct buf *error)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/probe.tmp", dir);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0 && errno == ENOENT) return STORE_OK; /* no directory yet: RocksDB makes it */
    int code = fd < 0 ? errno : posix_fallocate(fd, 0, OPEN_BYTES);
    if (fd >= 0) {
        close(fd);
        unlink(path);
    }
    if (code == 0) return STORE_OK;
    buf_printf(error, "%s: no room for the store's files: %s", path, strerror(code));
    return STORE_IO;
}

static enum store_status database_open(struct store *s, struct buf *error)
{
    enum store_status status = remains_check(s->dir, error);
    if (status == STORE_OK) status = room_check(s->dir, error);
    if (status != STORE_OK) return status;
    char *text = NULL;
    options_new(&s->o, s->options, &s->cache, &text);
    if (text != NULL) return store_error(text, "options are refused", s->dir, error);
    const char *names[STORE_FAMILIES];
    for (int i = 0; i < STORE_FAMILIES; i++) names[i] = STORE_FAMILY[i].name;
    s->db = rocksdb_open_column_families(s->options[0], s->dir, STORE_FAMILIES, names,
                                         (const rocksdb_options_t *const *)s->options, s->families, &text);
    if (text != NULL) return store_error(text, "cannot be opened", s->dir, error);
    for (int i = 0; i < STORE_FAMILIES; i++) s->family_ids[i] = rocksdb_column_family_handle_get_id(s->families[i]);
    s->write_options = rocksdb_writeoptions_create();
    rocksdb_writeoptions_disable_WAL(s->write_options, 1);
    return STORE_OK;
}

static bool row_seen(void *ctx, struct slice key, struct slice value)
{
    (void)key;
    (void)value;
    *(bool *)ctx = true;
    return false;
}

/* The format row is the first row ever written. It is durable as soon as any other row is, since a flush covers all before it. */
static enum store_status format_create(struct store *s, struct buf *error)
{
    bool rows = false;
    enum store_status status = store_scan(s, (struct slice){0}, (struct slice){0}, row_seen, &rows, error);
    if (status != STORE_OK) return status;
    if (rows) {
        buf_printf(error, "%s: rows without a format row: this is not a store of this broker, or it is damaged", s->dir);
        return STORE_DAMAGED;
    }
    struct store_batch *b = store_batch_new(s);
    uint32_t format = STORE_FORMAT;
    batch_put(b, store_format_key(), slice_make(&format, sizeof format));
    batch_head_put(&b->rows, b->count);
    char *text = NULL;
    rocksdb_writebatch_t *w = rocksdb_writebatch_create_from(b->rows.at, b->rows.len);
    rocksdb_write(s->db, s->write_options, w, &text);
    rocksdb_writebatch_destroy(w);
    batch_recycle(s, b);
    return text == NULL ? STORE_OK : store_error(text, "the first write failed", s->dir, error);
}

static enum store_status format_check(struct store *s, struct buf *error)
{
    struct buf row = {0};
    bool found;
    uint32_t format = 0;
    enum store_status status = store_get(s, store_format_key(), &row, &found, error);
    if (status == STORE_OK && !found) {
        status = format_create(s, error);
    } else if (status == STORE_OK && row.len != sizeof format) {
        buf_printf(error, "%s: the format row is damaged", s->dir);
        status = STORE_DAMAGED;
    } else if (status == STORE_OK) {
        memcpy(&format, row.at, sizeof format);
        if (format != STORE_FORMAT) {
            buf_printf(error, "%s: the data has format %u and this program reads format %u: use a %s version of it", s->dir,
                       format, STORE_FORMAT, format > STORE_FORMAT ? "newer" : "matching");
            status = STORE_DAMAGED;
        }
    }
    buf_free(&row);
    return status;
}

static enum store_status mark_read(struct store *s, struct store_mark *mark, struct buf *error)
{
    *mark = (struct store_mark){0};
    struct buf row = {0};
    bool found;
    enum store_status status = store_get(s, store_mark_key(), &row, &found, error);
    if (status == STORE_OK && found && row.len != MARK_BYTES) {
        buf_printf(error, "%s: the mark row is damaged", s->dir);
        status = STORE_DAMAGED;
    } else if (status == STORE_OK && found) {
        uint64_t value[3];
        memcpy(value, row.at, sizeof value);
        *mark = (struct store_mark){.index = value[0], .term = value[1], .scan_pos = value[2]};
    }
    buf_free(&row);
    return status;
}

static void database_free(struct store *s)
{
    for (int i = 0; s->db != NULL && i < STORE_FAMILIES; i++) rocksdb_column_family_handle_destroy(s->families[i]);
    if (s->db != NULL) rocksdb_close(s->db);
    if (s->write_options != NULL) rocksdb_writeoptions_destroy(s->write_options);
    for (int i = 0; i < STORE_FAMILIES; i++)
        if (s->options[i] != NULL) rocksdb_options_destroy(s->options[i]);
    if (s->cache != NULL) rocksdb_cache_destroy(s->cache);
    batches_free(s->spare);
    buf_free(&s->merged);
    buf_free(&s->gone);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->wake);
    free(s->dir);
    free(s);
}

enum store_status store_open(struct store **out, const struct store_options *o, struct store_mark *mark, struct buf *error)
{
    *out = NULL;
    struct store *s = calloc(1, sizeof *s);
    must(s != NULL && o->failed != NULL);
    s->o = *o;
    s->dir = strdup(o->dir);
    must(s->dir != NULL);
    s->o.dir = s->dir;
    s->task.run = done_run;
    list_init(&s->waiting);
    list_init(&s->written);
    s->flushed_end = &s->flushed;
    s->to_flush_end = &s->to_flush;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    /* Neither RocksDB's threads nor ours are to take the process's signals: they inherit this mask. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    enum store_status status = database_open(s, error);
    if (status == STORE_OK) status = format_check(s, error);
    if (status == STORE_OK) status = mark_read(s, mark, error);
    if (status == STORE_OK) s->mark = *mark;
    if (status == STORE_OK && pthread_create(&s->thread, NULL, thread_main, s) != 0) {
        buf_text(error, "cannot start the store's thread");
        status = STORE_IO;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status != STORE_OK) {
        database_free(s);
        return status;
    }
    pthread_setname_np(s->thread, "store");
    *out = s;
    return STORE_OK;
}

void store_close(struct store *s)
{
    if (s == NULL) return;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_mutex_unlock(&s->lock);
    pthread_cond_signal(&s->wake);
    pthread_join(s->thread, NULL);
    /* A batch that asked for a flush is in up to two lists and is freed from the second. */
    for (struct store_batch *b = list_take(&s->written), *next; b != NULL; b = next) {
        next = b->next;
        if (!b->flush) batch_free(b);
    }
    *s->flushed_end = s->to_flush;
    for (struct store_batch *b = s->flushed, *next; b != NULL; b = next) {
        next = b->next_flush;
        batch_free(b);
    }
    database_free(s);
}
