/* What the store does with damaged files, lost files, files of a newer format, and writes that fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <rocksdb/c.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "store/store.h"

enum { ROWS = 4000, BATCHES = 8, VALUE_BYTES = 60, FILES_MAX = 64 };

struct place {
    char top[48], whole[80], work[80];
};

static atomic_int failures;

static void on_failed(void *ctx, const char *what)
{
    (void)ctx;
    (void)what;
    atomic_fetch_add(&failures, 1);
}

static enum store_status open_at(const char *dir, struct loop **loop, struct store **s, struct store_mark *mark,
                                 struct buf *error)
{
    *loop = loop_new();
    struct store_options o = {.dir = dir, .loop = *loop, .write_buffer_bytes = 1 << 20, .failed = on_failed};
    enum store_status status = store_open(s, &o, mark, error);
    if (status != STORE_OK) loop_free(*loop);
    return status;
}

static struct slice key_of(char *at, unsigned n)
{
    int len = snprintf(at, 16, "k%08u", n * 2654435761U % 100000000U);
    return slice_make(at, (size_t)len);
}

/* Row n holds its number, over and over. */
static void value_of(char *at, unsigned n)
{
    for (unsigned i = 0; i < VALUE_BYTES; i += 4) memcpy(at + i, &n, 4);
}

static void store_fill(const char *dir)
{
    struct loop *loop;
    struct store *s;
    struct store_mark mark;
    assert_int_equal(open_at(dir, &loop, &s, &mark, NULL), STORE_OK);
    for (unsigned b = 0; b < BATCHES; b++) {
        struct store_batch *batch = store_batch_new(s);
        for (unsigned n = b; n < ROWS; n += BATCHES) {
            char key[16], value[VALUE_BYTES];
            value_of(value, n);
            store_batch_put(batch, key_of(key, n), slice_make(value, VALUE_BYTES));
        }
        store_submit(s, batch, (struct store_mark){b + 1, 1, b}, true, NULL, NULL, NULL);
        while (store_busy(s)) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    store_close(s);
    loop_free(loop);
}

static int unlink_each(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static int group_setup(void **state)
{
    static struct place p;
    snprintf(p.top, sizeof p.top, "/tmp/test_store_damage.XXXXXX");
    if (mkdtemp(p.top) == NULL) return -1;
    snprintf(p.whole, sizeof p.whole, "%s/whole", p.top);
    snprintf(p.work, sizeof p.work, "%s/work", p.top);
    store_fill(p.whole);
    *state = &p;
    return 0;
}

static int group_teardown(void **state)
{
    struct place *p = *state;
    return nftw(p->top, unlink_each, 16, FTW_DEPTH | FTW_PHYS);
}

static void work_renew(struct place *p)
{
    char command[256];
    nftw(p->work, unlink_each, 16, FTW_DEPTH | FTW_PHYS);
    snprintf(command, sizeof command, "cp -r %s %s", p->whole, p->work);
    assert_int_equal(system(command), 0);
}

/* Names in the work directory that begin or end so. */
static unsigned files_find(struct place *p, const char *begin, const char *end, char names[][300])
{
    unsigned count = 0;
    DIR *d = opendir(p->work);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        size_t len = strlen(e->d_name), tail = strlen(end);
        if (strncmp(e->d_name, begin, strlen(begin)) != 0 || len < tail || strcmp(e->d_name + len - tail, end) != 0) continue;
        if (e->d_name[0] != '.' && count < FILES_MAX) snprintf(names[count++], 300, "%s", e->d_name);
    }
    closedir(d);
    return count;
}

struct check {
    unsigned count, batches;
    bool wrong;
};

static bool row_check(void *ctx, struct slice key, struct slice value)
{
    struct check *c = ctx;
    unsigned n;
    char want_key[16], want[VALUE_BYTES];
    c->count++;
    if (value.len != VALUE_BYTES) {
        c->wrong = true;
        return true;
    }
    memcpy(&n, value.at, sizeof n);
    value_of(want, n);
    c->wrong |= n >= ROWS || n % BATCHES >= c->batches || !slice_equal(key, key_of(want_key, n)) ||
                memcmp(want, value.at, VALUE_BYTES) != 0;
    return true;
}

/* Opens and reads all. True when the damage was reported, or showed as an earlier mark with exactly its rows (RocksDB ends its list of
 * files at the first record that fails its checks, as after a crash; the log then replays from that mark, or is refused when it does
 * not reach back so far). Otherwise every row and the mark must be right. */
static bool damage_is_reported(struct place *p)
{
    struct loop *loop;
    struct store *s;
    struct store_mark mark;
    struct buf error = {0};
    if (open_at(p->work, &loop, &s, &mark, &error) != STORE_OK) {
        assert_true(error.len > 0);
        buf_free(&error);
        return true;
    }
    struct check c = {.batches = (unsigned)mark.index};
    enum store_status status = store_scan(s, (struct slice){0}, (struct slice){0}, row_check, &c, &error);
    assert_false(c.wrong);
    if (status == STORE_OK) {
        assert_int_equal(c.count, ROWS / BATCHES * mark.index);
    } else {
        assert_true(error.len > 0);
    }
    store_close(s);
    loop_free(loop);
    buf_free(&error);
    return status != STORE_OK || mark.index < BATCHES;
}

static void file_flip(struct place *p, const char *name, uint64_t random)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", p->work, name);
    int fd = open(path, O_RDWR);
    struct stat st;
    assert_true(fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0);
    off_t at = (off_t)(random % (uint64_t)st.st_size);
    char c;
    assert_int_equal(pread(fd, &c, 1, at), 1);
    c = (char)(c ^ (1 << (random >> 32) % 8));
    assert_int_equal(pwrite(fd, &c, 1, at), 1);
    close(fd);
}

static uint64_t random_next(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static unsigned flips_reported(struct place *p, const char *begin, const char *end, unsigned rounds, uint64_t seed)
{
    unsigned reported = 0;
    static char names[FILES_MAX][300];
    for (unsigned i = 0; i < rounds; i++) {
        work_renew(p);
        unsigned count = files_find(p, begin, end, names);
        assert_true(count > 0);
        file_flip(p, names[random_next(&seed) % count], random_next(&seed));
        if (damage_is_reported(p)) reported++;
    }
    return reported;
}

static void test_whole_store_reads_well(void **state)
{
    struct place *p = *state;
    work_renew(p);
    assert_false(damage_is_reported(p));
}

static void test_flipped_bits_in_tables(void **state)
{
    /* Some lie where nothing is read (padding, properties); most are met and reported. */
    assert_in_range(flips_reported(*state, "", ".sst", 24, 88172645463325252U), 12, 24);
}

static void test_flipped_bits_in_the_manifest(void **state)
{
    assert_in_range(flips_reported(*state, "MANIFEST-", "", 16, 123456789), 12, 16);
}

static void test_flipped_bits_in_current(void **state)
{
    assert_int_equal(flips_reported(*state, "CURRENT", "", 4, 424242), 4);
}

static void test_lost_files(void **state)
{
    struct place *p = *state;
    static const char *const kinds[][2] = {{"CURRENT", ""}, {"MANIFEST-", ""}, {"", ".sst"}};
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        work_renew(p);
        static char names[FILES_MAX][300];
        assert_true(files_find(p, kinds[i][0], kinds[i][1], names) > 0);
        char path[400];
        snprintf(path, sizeof path, "%s/%s", p->work, names[0]);
        assert_int_equal(remove(path), 0);
        struct loop *loop;
        struct store *s;
        struct store_mark mark;
        struct buf error = {0};
        assert_int_equal(open_at(p->work, &loop, &s, &mark, &error), STORE_DAMAGED);
        buf_byte(&error, '\0');
        assert_non_null(strstr(error.at, p->work));
        buf_free(&error);
    }
}

static void test_cut_off_tables_are_refused(void **state)
{
    struct place *p = *state;
    work_renew(p);
    static char names[FILES_MAX][300];
    assert_true(files_find(p, "", ".sst", names) > 0);
    char path[400];
    snprintf(path, sizeof path, "%s/%s", p->work, names[0]);
    assert_int_equal(truncate(path, 1000), 0);
    assert_true(damage_is_reported(p));
}

static void format_set(struct place *p, uint32_t format)
{
    enum { FAMILIES_MAX = 8 };
    char *error = NULL;
    size_t count;
    rocksdb_options_t *o = rocksdb_options_create();
    const rocksdb_options_t *each[FAMILIES_MAX];
    rocksdb_column_family_handle_t *families[FAMILIES_MAX];
    char **names = rocksdb_list_column_families(o, p->work, &count, &error);
    assert_null(error);
    assert_in_range(count, 1, FAMILIES_MAX);
    for (size_t i = 0; i < count; i++) each[i] = o;
    rocksdb_t *db = rocksdb_open_column_families(o, p->work, (int)count, (const char *const *)names, each, families, &error);
    assert_null(error);
    rocksdb_list_column_families_destroy(names, count);
    rocksdb_writeoptions_t *w = rocksdb_writeoptions_create();
    rocksdb_put(db, w, "\0format", 7, (const char *)&format, sizeof format, &error);
    assert_null(error);
    for (size_t i = 0; i < count; i++) rocksdb_column_family_handle_destroy(families[i]);
    rocksdb_close(db);
    rocksdb_writeoptions_destroy(w);
    rocksdb_options_destroy(o);
}

static void test_a_newer_format_is_refused(void **state)
{
    struct place *p = *state;
    work_renew(p);
    format_set(p, 7);
    struct loop *loop;
    struct store *s;
    struct store_mark mark;
    struct buf error = {0};
    assert_int_equal(open_at(p->work, &loop, &s, &mark, &error), STORE_DAMAGED);
    buf_byte(&error, '\0');
    assert_non_null(strstr(error.at, "format 7"));
    assert_non_null(strstr(error.at, "newer version"));
    buf_free(&error);
    format_set(p, 2);
    assert_false(damage_is_reported(p));
}

/* ---- writes that fail */

static uint64_t last_flushed;

static void on_flushed(void *ctx, struct store_mark mark)
{
    (void)ctx;
    last_flushed = mark.index;
}

/* A file may not grow beyond the limit, so that sooner or later a flush fails. Exits with 0 when that was told once, and nothing
 * after it was reported. Writes the last mark that was reported flushed. */
static void child_run(const char *dir, int fd)
{
    struct loop *loop;
    struct store *s;
    struct store_mark mark;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){.rlim_cur = 200000, .rlim_max = 200000});
    if (open_at(dir, &loop, &s, &mark, NULL) != STORE_OK) _exit(7);
    unsigned seed = 1;
    uint64_t i = 0;
    for (; i < 2000 && atomic_load(&failures) == 0; i++) {
        struct store_batch *b = store_batch_new(s);
        for (unsigned n = 0; n < 20 + i; n++) {
            char key[16], value[VALUE_BYTES];
            for (unsigned k = 0; k < VALUE_BYTES; k++) value[k] = (char)rand_r(&seed);
            store_batch_put(b, key_of(key, (unsigned)i * 1000 + n), slice_make(value, VALUE_BYTES));
        }
        store_submit(s, b, (struct store_mark){i + 1, 1, 1}, true, NULL, NULL, on_flushed);
        while (store_busy(s) && atomic_load(&failures) == 0) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        loop_stop(loop);
        loop_run(loop);
    }
    uint64_t told = last_flushed;
    loop_stop(loop);
    loop_run(loop);
    store_close(s);
    if (write(fd, &last_flushed, sizeof last_flushed) != (ssize_t)sizeof last_flushed) _exit(6);
    _exit(atomic_load(&failures) == 1 && told <= i && i < 2000 ? 0 : 5);
}

static void test_a_failed_flush_is_told_once_and_final(void **state)
{
    struct place *p = *state;
    nftw(p->work, unlink_each, 16, FTW_DEPTH | FTW_PHYS);
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char fd[16];
        snprintf(fd, sizeof fd, "%d", fds[1]);
        execl("/proc/self/exe", "test_store_damage", "child", p->work, fd, NULL); /* threads do not survive a fork */
        _exit(8);
    }
    close(fds[1]);
    uint64_t flushed = 0;
    assert_int_equal(read(fds[0], &flushed, sizeof flushed), sizeof flushed);
    close(fds[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_true(flushed > 0);
    struct loop *loop;
    struct store *s;
    struct store_mark mark;
    assert_int_equal(open_at(p->work, &loop, &s, &mark, NULL), STORE_OK);
    assert_true(mark.index >= flushed);
    store_close(s);
    loop_free(loop);
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "child") == 0) child_run(argv[2], atoi(argv[3]));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_store_reads_well),
        cmocka_unit_test(test_flipped_bits_in_tables),
        cmocka_unit_test(test_flipped_bits_in_the_manifest),
        cmocka_unit_test(test_flipped_bits_in_current),
        cmocka_unit_test(test_lost_files),
        cmocka_unit_test(test_cut_off_tables_are_refused),
        cmocka_unit_test(test_a_newer_format_is_refused),
        cmocka_unit_test(test_a_failed_flush_is_told_once_and_final),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
