/* The dedup index over hours of log time: engine and store, driven by a clock of their own, without log and edge.
 *
 *   bench_dedup DIR [ids [ids a second of log time [budget MiB [lent MiB [window s]]]]]       180,000,000  50,000  1024  0  3600
 *
 * Pushes of 500 new ids each to 1,000 lanes, stamped as if they came at that rate. Rows are cut as a broker does it: when about 4,096
 * changed, and flushed every second of log time. Lent: what lanes and KV values leave of their budgets. Times of entries are CPU of the group's
 * thread, "cpu" is the whole process's. Then the process's memory, the time of a push at the beginning and at the end, ids that
 * are known asked again (all must be found), and a start from what is stored. DIR is made and stays: remove it. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/loop.h"
#include "broker/rows.h"

enum { BATCH = 500, LANES = 1000, CUT_ROWS = 4096, CUTS_WAITING_MAX = 2, ID_BYTES = 36, SAMPLES = 16, LANES_BYTES = 1 << 20 };

static const struct uuid TENANT = {{1}};

struct bench {
    const char *dir;
    uint64_t ids, rate, budget_bytes, lent_bytes, window_s;
    struct engine *e;
    struct store *store;
    struct loop *loop;
    struct loop_hook hook;
    uint64_t index, where, cuts[CUTS_WAITING_MAX];
    int waiting;
    int64_t log_us, flushed_us;
    int64_t engine_us, store_wait_us, longest_us; /* longest: of one entry with what was sealed behind it */
    uint64_t duplicates;
    struct arena arena;
};

static void failed(void *ctx, const char *what)
{
    (void)ctx;
    fprintf(stderr, "bench_dedup: %s\n", what);
    exit(1);
}

static int64_t cpu_us(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return ((int64_t)r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1000000 + r.ru_utime.tv_usec + r.ru_stime.tv_usec;
}

static int64_t thread_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * INT64_C(1000000) + t.tv_nsec / 1000;
}

static double resident_mb(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f == NULL || fscanf(f, "%*s %ld", &pages) != 1) pages = 0;
    if (f != NULL) fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / 1e6;
}

/* Written to the disk by this process until now, in bytes. */
static uint64_t disk_written(void)
{
    char line[128];
    uint64_t bytes = 0;
    FILE *f = fopen("/proc/self/io", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL && sscanf(line, "write_bytes: %" SCNu64, &bytes) != 1) continue;
    if (f != NULL) fclose(f);
    return bytes;
}

/* ---- the store ------------------------------------------------------------------------------------------------------ */

static void scan(void *ctx, struct slice from, struct slice to, bool (*row)(void *, struct slice, struct slice), void *row_ctx)
{
    struct bench *b = ctx;
    struct buf error = {0};
    if (store_scan(b->store, from, to, row, row_ctx, &error) != STORE_OK) failed(b, "a row cannot be read");
}

static void block(void *ctx, uint64_t where, uint32_t bytes, char *out)
{
    (void)where;
    (void)bytes;
    (void)out;
    failed(ctx, "a message is wanted");
}

static void written(void *ctx, struct store_mark mark)
{
    struct bench *b = ctx;
    (void)mark;
    engine_cut_stored(b->e, b->cuts[0]);
    memmove(b->cuts, b->cuts + 1, sizeof b->cuts[0] * (size_t)--b->waiting);
}

/* One turn of the loop: what the store has done is told. */
static bool turn(struct loop_hook *hook)
{
    loop_stop(((struct bench *)(void *)((char *)hook - offsetof(struct bench, hook)))->loop);
    return true;
}

static void wait_for_room(struct bench *b, int waiting_max)
{
    int64_t from_us = clock_mono_us();
    loop_run(b->loop);
    while (b->waiting > waiting_max) {
        usleep(200);
        loop_run(b->loop);
    }
    b->store_wait_us += clock_mono_us() - from_us;
}

static void cut(struct bench *b, bool flush)
{
    wait_for_room(b, CUTS_WAITING_MAX - 1);
    int64_t from_us = thread_us();
    struct store_batch *batch = store_batch_new(b->store);
    struct engine_rows rows = rows_of_batch(batch);
    engine_cut(b->e, &rows);
    b->engine_us += thread_us() - from_us;
    b->cuts[b->waiting++] = engine_revision(b->e);
    if (flush) b->flushed_us = b->log_us;
    store_submit(b->store, batch, (struct store_mark){.index = b->index, .term = 1}, flush, b, written, NULL);
}

/* ---- load ----------------------------------------------------------------------------------------------------------- */

static void id_write(char out[ID_BYTES + 1], uint64_t n)
{
    snprintf(out, ID_BYTES + 1, "%08x-%04x-7000-8000-%012" PRIx64, (uint32_t)(n * 2654435761U), (uint32_t)(n & 0xffff), n);
}

static void result(void *ctx, uint32_t slot, const struct engine_result *r)
{
    struct bench *b = ctx;
    (void)slot;
    if (r->kind != COMMAND_PUSH) return;
    for (uint32_t i = 0; i < r->push.count; i++) b->duplicates += r->push.items[i].status == PUSH_DUPLICATE;
}

static struct arena *arena(void *ctx, uint32_t slot)
{
    (void)slot;
    return &((struct bench *)ctx)->arena;
}

static void entry(struct bench *b, struct buf *commands)
{
    struct entry_head head = {.count = 1, .log_us = b->log_us, .wall_us = INT64_C(1900000000000000) + b->log_us};
    char bytes[ENTRY_HEAD_BYTES];
    struct buf all = {0};
    entry_head_write(bytes, &head);
    buf_put(&all, bytes, sizeof bytes);
    buf_slice(&all, buf_view(commands));
    struct engine_sink sink = {.ctx = b, .arena = arena, .result = result};
    int64_t from_us = thread_us();
    const char *refused = engine_apply(b->e, ++b->index, b->where, buf_view(&all), &sink);
    engine_housekeep(b->e);
    int64_t took_us = thread_us() - from_us;
    b->engine_us += took_us;
    if (took_us > b->longest_us) b->longest_us = took_us;
    if (refused != NULL) failed(b, refused);
    b->where += all.len;
    arena_reset(&b->arena);
    buf_free(&all);
    buf_clear(commands);
}

static void push(struct bench *b, struct buf *commands, uint64_t first, uint64_t step, uint32_t lane_number)
{
    struct push_writer w;
    char lane[32], ids[BATCH][ID_BYTES + 1];
    int len = snprintf(lane, sizeof lane, "lane-%u", lane_number);
    push_begin(&w, commands, TENANT);
    push_group_begin(&w, slice_of("bench"), slice_make(lane, (size_t)len), BATCH);
    for (uint64_t i = 0; i < BATCH; i++) {
        id_write(ids[i], first + i * step);
        push_item_add(&w, &(struct push_item){.flags = ITEM_TRANSACTION,
                                              .transaction = slice_make(ids[i], ID_BYTES),
                                              .payload = slice_of("{}")});
    }
    push_group_end(&w);
    push_end(&w);
    entry(b, commands);
    if (b->log_us - b->flushed_us >= 1000000) {
        cut(b, true);
    } else if (engine_cut_size(b->e) >= CUT_ROWS) {
        cut(b, false);
    }
}

static void begin(struct bench *b, struct buf *commands)
{
    init_encode(commands, 4711);
    entry(b, commands);
    struct configure_command c = {.tenant = TENANT, .queue = slice_of("bench"), .given = 1U << OPTION_DEDUP_WINDOW_SECONDS};
    c.options.numbers[OPTION_DEDUP_WINDOW_SECONDS] = (int32_t)b->window_s;
    configure_encode(commands, &c);
    entry(b, commands);
}

static void fill(struct bench *b)
{
    struct buf commands = {0};
    uint64_t sample = b->ids / SAMPLES / BATCH * BATCH;
    printf("%12s %10s %10s %10s %10s %10s %10s %9s\n", "ids", "log s", "ids/s", "us an id", "max ms", "cpu us/id", "dedup MB",
           "RSS MB");
    begin(b, &commands);
    int64_t began_us = clock_mono_us(), cpu = cpu_us();
    for (uint64_t id = 0; id < b->ids; id += BATCH) {
        b->log_us += (int64_t)(BATCH * UINT64_C(1000000) / b->rate);
        push(b, &commands, id, 1, (uint32_t)(id / BATCH % LANES));
        if (sample == 0 || (id + BATCH) % sample != 0) continue;
        struct engine_stats s;
        engine_stats(b->e, &s);
        double seconds = (double)(clock_mono_us() - began_us) / 1e6;
        printf("%12" PRIu64 " %10.0f %10.0f %10.3f %10.1f %10.3f %10.1f %9.1f\n", id + BATCH, (double)b->log_us / 1e6,
               (double)sample / seconds, (double)b->engine_us / (double)sample, (double)b->longest_us / 1e3,
               (double)(cpu_us() - cpu) / (double)sample, (double)s.dedup_bytes / 1e6, resident_mb());
        fflush(stdout);
        began_us = clock_mono_us();
        cpu = cpu_us();
        b->engine_us = b->longest_us = 0;
    }
    if (b->duplicates != 0) failed(b, "a new id was taken for a known one");
    buf_free(&commands);
}

/* Ids from all over the window: every one must be known. */
static void ask_again(struct bench *b)
{
    enum { ASKED = 100 };
    struct buf commands = {0};
    uint64_t kept = b->window_s * b->rate, first = b->ids > kept ? b->ids - kept : 0;
    /* An eighth of the window is left out: it ends while we ask. */
    first += (b->ids - first) / 8 / BATCH * BATCH;
    uint64_t step = (b->ids - first) / ASKED / BATCH * BATCH;
    int64_t cpu = cpu_us();
    b->duplicates = 0;
    b->engine_us = 0;
    for (uint64_t i = 0; i < ASKED; i++) {
        uint64_t id = first + i * step;
        b->log_us += 10000;
        push(b, &commands, id, 1, (uint32_t)(id / BATCH % LANES));
    }
    printf("known ids asked again: %d, %.1f us each, cpu %.1f us\n", ASKED * BATCH, (double)b->engine_us / (ASKED * BATCH),
           (double)(cpu_us() - cpu) / (ASKED * BATCH));
    if (b->duplicates != ASKED * BATCH) failed(b, "a known id was taken for a new one");
    buf_free(&commands);
}

struct loading {
    struct bench *b;
    uint64_t rows, bytes;
};

static bool row_load(void *ctx, struct slice key, struct slice value)
{
    struct loading *l = ctx;
    const char *wrong = engine_load_row(l->b->e, key, value);
    if (wrong != NULL) failed(l->b, wrong);
    l->rows++;
    l->bytes += key.len + value.len;
    return true;
}

static void open_all(struct bench *b)
{
    char path[4096];
    struct buf error = {0};
    struct store_mark mark;
    snprintf(path, sizeof path, "%s/store", b->dir);
    b->loop = loop_new();
    b->hook = (struct loop_hook){.run = turn};
    loop_hook_add(b->loop, &b->hook);
    struct store_options so = {.dir = path, .loop = b->loop, .ctx = b, .failed = failed};
    if (store_open(&b->store, &so, &mark, &error) != STORE_OK) failed(b, "the store cannot be opened");
    struct engine_options eo = {
        .cold = {.ctx = b, .scan = scan, .block = block},
        .budget = {.dedup = b->budget_bytes, .lanes = b->lent_bytes == 0 ? 0 : b->lent_bytes + LANES_BYTES},
        .segment_shift = 26};
    b->e = engine_new(&eo);
    if (mark.index == 0) return;
    struct loading l = {.b = b};
    if (store_scan(b->store, slice_of(""), slice_of(ENGINE_ROWS_LOADED_END), row_load, &l, &error) != STORE_OK)
        failed(b, "the store cannot be read");
    const char *wrong = engine_loaded(b->e, mark.index);
    if (wrong != NULL) failed(b, wrong);
    printf("rows read: %" PRIu64 ", %.1f MB\n", l.rows, (double)l.bytes / 1e6);
}

static void close_all(struct bench *b)
{
    store_close(b->store);
    engine_free(b->e);
    loop_free(b->loop);
}

static void start_again(struct bench *b)
{
    struct engine_stats s;
    struct store_stats stored;
    cut(b, true);
    wait_for_room(b, 0);
    engine_stats(b->e, &s);
    store_stats(b->store, &stored);
    printf("ids kept %" PRIu64 ", store %.1f MB: %.1f bytes an id; written %.1f MB: %.1f bytes an id pushed\n", s.dedup_ids,
           (double)stored.disk_bytes / 1e6, (double)stored.disk_bytes / (double)s.dedup_ids, (double)disk_written() / 1e6,
           (double)disk_written() / (double)b->ids);
    close_all(b);
    int64_t from_us = clock_mono_us(), cpu = cpu_us();
    open_all(b);
    engine_stats(b->e, &s);
    printf("start: %.2f s, cpu %.2f s, %" PRIu64 " ids, dedup %.1f MB, RSS %.1f MB\n",
           (double)(clock_mono_us() - from_us) / 1e6, (double)(cpu_us() - cpu) / 1e6, s.dedup_ids, (double)s.dedup_bytes / 1e6,
           resident_mb());
}

static uint64_t number(int argc, char **argv, int at, uint64_t otherwise)
{
    return argc > at ? strtoull(argv[at], NULL, 10) : otherwise;
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    if (argc < 2) {
        fprintf(stderr, "bench_dedup DIR [ids [ids a second [budget MiB [lent MiB [window s]]]]]\n");
        return 2;
    }
    b.dir = argv[1];
    b.ids = number(argc, argv, 2, 180000000);
    b.rate = number(argc, argv, 3, 50000);
    b.budget_bytes = number(argc, argv, 4, 1024) << 20;
    b.lent_bytes = number(argc, argv, 5, 0) << 20;
    b.window_s = number(argc, argv, 6, 3600);
    if (b.ids < BATCH || b.rate < BATCH || b.window_s == 0) return 2;
    if (mkdir(b.dir, 0777) != 0 && errno != EEXIST) failed(&b, "the directory cannot be made");
    arena_init(&b.arena);
    open_all(&b);
    if (b.index != engine_applied_index(b.e)) failed(&b, "the directory is not empty");
    fill(&b);
    ask_again(&b);
    start_again(&b);
    ask_again(&b);
    close_all(&b);
    arena_free(&b.arena);
    return 0;
}
