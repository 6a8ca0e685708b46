/* Names, sizes, bytes at offsets and durable renames, as snapshots and a node's small files need them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"

struct fixture {
    char top[64], a[128], b[128];
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    snprintf(f->top, sizeof f->top, "/tmp/queen-files-XXXXXX");
    assert_non_null(mkdtemp(f->top));
    snprintf(f->a, sizeof f->a, "%s/a", f->top);
    snprintf(f->b, sizeof f->b, "%s/b", f->top);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(files_remove_tree(f->top), 0);
    assert_int_equal(access(f->top, F_OK), -1);
    free(f);
    return 0;
}

static const char *under(const struct fixture *f, const char *name, char out[256])
{
    snprintf(out, 256, "%s/%s", f->top, name);
    return out;
}

static void is(const char *path, const char *bytes, size_t len)
{
    struct buf b = {0};
    assert_int_equal(files_read(path, 0, len + 100, &b), 0);
    assert_int_equal(b.len, len);
    assert_memory_equal(b.at, bytes, len);
    buf_free(&b);
}

static void bytes_at_offsets(void **state)
{
    struct fixture *f = *state;
    uint64_t size = 0;
    assert_int_equal(files_size(f->a, &size), ENOENT);
    assert_int_equal(files_write(f->a, 4, slice_of("tail")), 0);
    assert_int_equal(files_write(f->a, 0, slice_of("hi")), 0);
    is(f->a, "hi\0\0tail", 8);
    assert_int_equal(files_size(f->a, &size), 0);
    assert_int_equal(size, 8);
    assert_int_equal(files_sync(f->a), 0);

    struct buf b = {0};
    buf_text(&b, ">");
    assert_int_equal(files_read(f->a, 5, 2, &b), 0); /* appended */
    assert_true(slice_is(buf_view(&b), ">ai"));
    assert_int_equal(files_read(f->a, 6, 100, &b), 0); /* less at the end */
    assert_true(slice_is(buf_view(&b), ">aiil"));
    assert_int_equal(files_read(f->a, 8, 100, &b), 0);
    assert_int_equal(files_read(f->a, 900, 100, &b), 0);
    assert_int_equal(b.len, 5);
    assert_int_equal(files_read(f->b, 0, 1, &b), ENOENT);
    buf_free(&b);

    assert_int_equal(files_truncate(f->a, 2), 0);
    is(f->a, "hi", 2);
    assert_int_equal(files_truncate(f->a, 6), 0);
    is(f->a, "hi\0\0\0\0", 6);
    assert_int_equal(files_truncate(f->b, 6), ENOENT);
}

static bool entry_note(void *ctx, const struct files_entry *e)
{
    buf_printf(ctx, "%s:%llu:%d ", e->name, (unsigned long long)e->bytes, e->is_dir);
    return strcmp(e->name, "m") != 0;
}

static void lists_in_the_order_of_names(void **state)
{
    struct fixture *f = *state;
    char path[256];
    struct buf b = {0};
    assert_int_equal(files_list(under(f, "none", path), entry_note, &b), ENOENT);
    assert_int_equal(files_write(under(f, "b", path), 0, slice_of("123")), 0);
    assert_int_equal(files_write(under(f, "a1", path), 0, slice_of("")), 0);
    assert_int_equal(files_make_dir(under(f, "a", path)), 0);
    assert_int_equal(files_make_dir(under(f, "a", path)), 0);
    assert_int_equal(files_make_dir(under(f, "b", path)), EEXIST); /* a file */
    assert_int_equal(files_make_dir(under(f, "x/y", path)), ENOENT);
    assert_int_equal(symlink("nowhere", under(f, "c", path)), 0); /* seen, not followed */
    assert_int_equal(files_list(f->top, entry_note, &b), 0);
    buf_byte(&b, '\0');
    const char *at = strstr(b.at, "a:");
    assert_ptr_equal(at, b.at);
    assert_non_null(strstr(b.at, ":1 a1:0:0 b:3:0 c:7:0 "));
    buf_clear(&b);
    assert_int_equal(files_write(under(f, "m", path), 0, slice_of("")), 0);
    assert_int_equal(files_write(under(f, "n", path), 0, slice_of("")), 0);
    assert_int_equal(files_list(f->top, entry_note, &b), 0); /* ends when told so */
    buf_byte(&b, '\0');
    assert_non_null(strstr(b.at, "m:0:0"));
    assert_null(strstr(b.at, "n:"));
    buf_free(&b);
}

static void links_share_bytes_and_renames_replace(void **state)
{
    struct fixture *f = *state;
    char path[256];
    struct stat st;
    assert_int_equal(files_write(f->a, 0, slice_of("one")), 0);
    assert_int_equal(files_link(f->a, f->b), 0);
    assert_int_equal(stat(f->a, &st), 0);
    assert_int_equal(st.st_nlink, 2);
    assert_int_equal(files_link(f->a, f->b), EEXIST);
    assert_int_equal(files_link(under(f, "none", path), f->b), ENOENT);
    assert_int_equal(files_remove(f->a), 0);
    assert_int_equal(files_remove(f->a), 0);
    is(f->b, "one", 3);

    assert_int_equal(files_make_dir(under(f, "d", path)), 0);
    assert_int_equal(files_rename(f->b, under(f, "d/b", path)), 0);
    is(path, "one", 3);
    assert_int_equal(files_rename(f->b, path), ENOENT);
    assert_int_equal(files_replace(path, slice_of("two")), 0);
    is(path, "two", 3);
    assert_int_equal(files_replace(under(f, "none/b", path), slice_of("two")), ENOENT);
    assert_int_equal(files_remove(under(f, "d", path)), EISDIR);
    assert_int_equal(files_sync(path), 0);
}

/* /dev/shm is another file system than /tmp wherever both are there: a link can not be, so the bytes are copied. */
static void where_no_link_can_be_the_bytes_are_copied(void **state)
{
    struct fixture *f = *state;
    char far[64] = "/dev/shm/queen-files-XXXXXX", to[128];
    struct stat here, there;
    if (mkdtemp(far) == NULL) skip();
    bool other = stat(far, &there) == 0 && stat(f->top, &here) == 0 && here.st_dev != there.st_dev;
    snprintf(to, sizeof to, "%s/copy", far);
    size_t len = (3 << 20) + 17;
    char *at = malloc(len);
    assert_non_null(at);
    for (size_t n = 0; n < len; n++) at[n] = (char)(n * 31 >> 3);
    assert_int_equal(files_write(f->a, 0, slice_make(at, len)), 0);
    if (other) {
        assert_int_equal(files_link(f->a, to), 0);
        is(to, at, len);
        assert_int_equal(files_link(f->a, to), EEXIST);
    }
    free(at);
    assert_int_equal(files_remove_tree(far), 0);
    if (!other) skip();
}

static void trees_go_whole_and_links_are_not_followed(void **state)
{
    struct fixture *f = *state;
    char path[256], keep[256];
    assert_int_equal(files_write(under(f, "keep", keep), 0, slice_of("x")), 0);
    assert_int_equal(files_make_dir(f->a), 0);
    assert_int_equal(files_make_dir(under(f, "a/b", path)), 0);
    assert_int_equal(files_write(under(f, "a/b/c", path), 0, slice_of("x")), 0);
    assert_int_equal(files_write(under(f, "a/d", path), 0, slice_of("x")), 0);
    assert_int_equal(symlink(f->top, under(f, "a/up", path)), 0);
    assert_int_equal(symlink(f->top, f->b), 0);
    assert_int_equal(files_remove_tree(f->a), 0);
    assert_int_equal(files_remove_tree(f->a), 0);
    assert_int_equal(files_remove_tree(f->b), 0); /* the link itself */
    is(keep, "x", 1);
    assert_int_equal(access(f->a, F_OK), -1);
    assert_int_equal(access(f->b, F_OK), -1);
    assert_int_equal(files_remove_tree(keep), 0); /* a file */
    assert_int_equal(access(keep, F_OK), -1);
}

static void a_path_too_long_is_an_error(void **state)
{
    (void)state;
    char path[FILES_PATH_BYTES + 10];
    memset(path, 'x', sizeof path);
    path[0] = '/';
    path[sizeof path - 1] = '\0';
    struct buf b = {0};
    assert_int_equal(files_replace(path, slice_of("x")), ENAMETOOLONG);
    assert_int_equal(files_read(path, 0, 1, &b), ENAMETOOLONG);
    assert_int_equal(files_remove(path), ENAMETOOLONG);
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(bytes_at_offsets, setup, teardown),
        cmocka_unit_test_setup_teardown(lists_in_the_order_of_names, setup, teardown),
        cmocka_unit_test_setup_teardown(links_share_bytes_and_renames_replace, setup, teardown),
        cmocka_unit_test_setup_teardown(where_no_link_can_be_the_bytes_are_copied, setup, teardown),
        cmocka_unit_test_setup_teardown(trees_go_whole_and_links_are_not_followed, setup, teardown),
        cmocka_unit_test(a_path_too_long_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
