/* The manifest: what is written is read, and nothing else is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "broker/snapshot_manifest.h"

enum { UNIT = 1 << 20 };

static void name_put(char out[32], uint64_t unit)
{
    snprintf(out, 32, "%016llx.seg", (unsigned long long)(unit * UNIT));
}

/* A store of three files, a log with segments 2, 5, 6 (two long), 8; scan position in 5, end in 8. */
static void make(struct manifest *m)
{
    char name[32];
    *m = (struct manifest){.cluster = {{1, 2, 3}},
                           .node = 9,
                           .mark = {.index = 70, .term = 3, .scan_pos = 5 * UNIT + 5000},
                           .log_end = 8 * UNIT + 12345,
                           .segment_bytes = UNIT};
    buf_text(&m->configuration, "who votes");
    assert_true(manifest_add(m, MANIFEST_STORE, "000012.sst", 1 << 30));
    assert_true(manifest_add(m, MANIFEST_STORE, "CURRENT", 16));
    assert_true(manifest_add(m, MANIFEST_STORE, "empty.log", 0));
    name_put(name, 2);
    assert_true(manifest_add(m, MANIFEST_LOG, name, UNIT));
    name_put(name, 5);
    assert_true(manifest_add(m, MANIFEST_LOG, name, UNIT - 100));
    name_put(name, 6);
    assert_true(manifest_add(m, MANIFEST_LOG, name, 2 * UNIT - 4096));
    name_put(name, 8);
    assert_true(manifest_add(m, MANIFEST_LOG, name, 12345));
}

/* Encodes and reads it: NULL when it is accepted. */
static const char *wrong_with(struct manifest *m)
{
    struct buf b = {0};
    struct manifest out;
    manifest_encode(m, &b);
    const char *wrong = manifest_decode(buf_view(&b), &out);
    if (wrong != NULL) assert_true(out.files == NULL && out.count == 0);
    manifest_free(&out);
    buf_free(&b);
    return wrong;
}

static void what_is_written_is_read(void **state)
{
    (void)state;
    struct manifest m, out;
    struct buf b = {0}, again = {0};
    make(&m);
    buf_text(&b, "before");
    manifest_encode(&m, &b);
    struct slice bytes = slice_make(b.at + 6, b.len - 6);
    assert_null(manifest_decode(bytes, &out));
    assert_true(uuid_equal(out.cluster, m.cluster));
    assert_int_equal(out.node, 9);
    assert_memory_equal(&out.mark, &m.mark, sizeof m.mark);
    assert_int_equal(out.log_end, m.log_end);
    assert_int_equal(out.segment_bytes, UNIT);
    assert_true(slice_is(buf_view(&out.configuration), "who votes"));
    assert_int_equal(out.count, 7);
    for (uint32_t i = 0; i < 7; i++) {
        assert_string_equal(out.files[i].name, m.files[i].name);
        assert_int_equal(out.files[i].part, m.files[i].part);
        assert_int_equal(out.files[i].bytes, m.files[i].bytes);
    }
    assert_int_equal(manifest_bytes(&out), manifest_bytes(&m));
    assert_int_equal(manifest_bytes(&m), (1 << 30) + 16 + UNIT + UNIT - 100 + 2 * UNIT - 4096 + 12345);
    manifest_encode(&out, &again);
    assert_true(slice_equal(buf_view(&again), bytes));
    buf_free(&again);
    buf_free(&b);
    manifest_free(&out);
    manifest_free(&m);
}

static void names_that_are_none(void **state)
{
    (void)state;
    struct manifest m = {0};
    static const char *const bad[] = {"",
                                      ".",
                                      "..",
                                      "../x",
                                      "a/b",
                                      "/etc",
                                      ".hidden",
                                      "a b",
                                      "a\n",
                                      "\x80",
                                      "a:b",
                                      "ab\\",
                                      "0123456789012345678901234567890123456789012345678901234567890123"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(manifest_add(&m, MANIFEST_STORE, bad[i], 1));
        assert_false(manifest_add(&m, MANIFEST_LOG, bad[i], 1));
    }
    static const char *const segments[] = {"spare-0.tmp",          "next.tmp",
                                           "0000000000000000.SEG", "000000000000000g.seg",
                                           "000000000000000A.seg", "00000000000000000.seg",
                                           "0000000000000000.segx"};
    for (size_t i = 0; i < sizeof segments / sizeof segments[0]; i++)
        assert_false(manifest_add(&m, MANIFEST_LOG, segments[i], 1));
    assert_false(manifest_add(&m, MANIFEST_STORE, "huge", UINT64_MAX));
    assert_int_equal(m.count, 0);
    uint64_t pos;
    assert_true(manifest_segment("00000000001fab00.seg", &pos));
    assert_int_equal(pos, 0x1fab00);
    manifest_free(&m);
}

static void refused(void (*change)(struct manifest *m))
{
    struct manifest m;
    make(&m);
    assert_null(wrong_with(&m));
    change(&m);
    assert_non_null(wrong_with(&m));
    manifest_free(&m);
}

static void no_node(struct manifest *m)
{
    m->node = 0;
}
static void no_index(struct manifest *m)
{
    m->mark.index = 0;
}
static void no_term(struct manifest *m)
{
    m->mark.term = 0;
}
static void no_configuration(struct manifest *m)
{
    m->configuration.len = 0;
}
static void odd_unit(struct manifest *m)
{
    m->segment_bytes = UNIT + 1;
}
static void small_unit(struct manifest *m)
{
    m->segment_bytes = 2048;
}
static void other_unit(struct manifest *m)
{
    m->segment_bytes = 2 * UNIT;
}
static void zero_unit(struct manifest *m)
{
    m->segment_bytes = 0;
}
static void no_files(struct manifest *m)
{
    m->count = 0;
}
static void no_log(struct manifest *m)
{
    m->count = 3;
}
static void no_current(struct manifest *m)
{
    m->files[1].name[0] = 'D';
}
static void scan_in_a_hole(struct manifest *m)
{
    m->mark.scan_pos = 4 * UNIT;
}
static void scan_behind_the_end(struct manifest *m)
{
    m->mark.scan_pos = m->log_end;
}
static void scan_before_all(struct manifest *m)
{
    m->mark.scan_pos = 1 * UNIT;
}
static void end_elsewhere(struct manifest *m)
{
    m->log_end = 9 * UNIT + 1;
}
static void end_before_the_last(struct manifest *m)
{
    m->log_end = 8 * UNIT;
}
static void more_than_counts(struct manifest *m)
{
    m->files[6].bytes++;
}
static void impossible_end(struct manifest *m)
{
    m->log_end = UINT64_MAX;
}
static void a_missing_segment(struct manifest *m)
{
    m->files[5] = m->files[6], m->count = 6;
}
static void a_short_segment(struct manifest *m)
{
    m->files[5].bytes = UNIT;
}
static void overlapping_segments(struct manifest *m)
{
    m->files[4].bytes = UNIT + 1;
}
static void an_empty_segment(struct manifest *m)
{
    m->files[3].bytes = 0;
}
static void a_huge_segment(struct manifest *m)
{
    m->files[3].bytes = (uint64_t)3 << 30;
}

static void states_that_cannot_be(void **state)
{
    (void)state;
    void (*const changes[])(struct manifest * m) = {
        no_node,
        no_index,
        no_term,
        no_configuration,
        odd_unit,
        small_unit,
        other_unit,
        zero_unit,
        no_files,
        no_log,
        no_current,
        scan_in_a_hole,
        scan_behind_the_end,
        scan_before_all,
        end_elsewhere,
        end_before_the_last,
        more_than_counts,
        impossible_end,
        a_missing_segment,
        a_short_segment,
        overlapping_segments,
        an_empty_segment,
        a_huge_segment,
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) refused(changes[i]);
}

/* With the checksum set right again: what a hostile or broken peer could send. */
static void seal(char *at, size_t len)
{
    if (len < 24) return;
    uint64_t body = len - 24;
    uint32_t crc = crc32c(0, at + 24, body);
    memcpy(at + 12, &crc, sizeof crc);
    memcpy(at + 16, &body, sizeof body);
}

static void changed_bytes_are_refused_or_sound(void **state)
{
    (void)state;
    struct manifest m, out;
    struct buf b = {0};
    uint64_t random = 1, taken = 0, refusals = 0;
    make(&m);
    manifest_encode(&m, &b);
    for (size_t len = 0; len < b.len; len++) { /* cut short, sealed and not; the copy ends where its memory ends */
        char *at = malloc(len == 0 ? 1 : len);
        assert_non_null(at);
        memcpy(at, b.at, len);
        assert_non_null(manifest_decode(slice_make(at, len), &out));
        seal(at, len);
        assert_non_null(manifest_decode(slice_make(at, len), &out));
        free(at);
    }
    for (int n = 0; n < 200000; n++) {
        size_t len = b.len;
        char *at = malloc(len);
        assert_non_null(at);
        memcpy(at, b.at, len);
        for (int k = n % 3; k >= 0; k--) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            at[24 + (random >> 33) % (len - 24)] = (char)(random >> 20);
        }
        bool sealed = n % 8 != 0;
        if (sealed) seal(at, len);
        const char *wrong = manifest_decode(slice_make(at, len), &out);
        if (!sealed && memcmp(at, b.at, len) != 0) assert_non_null(wrong);
        if (wrong == NULL) { /* then it is one: written again it is the same */
            struct buf again = {0};
            manifest_encode(&out, &again);
            assert_true(slice_equal(buf_view(&again), slice_make(at, len)));
            buf_free(&again);
            taken++;
        } else {
            refusals++;
        }
        manifest_free(&out);
        free(at);
    }
    assert_true(taken > 1000 && refusals > 1000);
    buf_free(&b);
    manifest_free(&m);
}

static void twice_the_same_name_or_out_of_order(void **state)
{
    (void)state;
    struct manifest m, out;
    struct buf b = {0};
    make(&m);
    memcpy(m.files[0].name, "000013.sst", 11);
    manifest_encode(&m, &b);
    char *first = memmem(b.at, b.len, "000013.sst", 10);
    assert_non_null(first);
    static const char *const others[] = {"EMPTYY.sst", "000013/sst", "000013.\0st"};
    for (size_t i = 0; i < 3; i++) {
        memcpy(first, others[i], 10);
        seal(b.at, b.len);
        assert_non_null(manifest_decode(buf_view(&b), &out));
    }
    memcpy(first, "000014.sst", 10);
    seal(b.at, b.len);
    assert_null(manifest_decode(buf_view(&b), &out));
    manifest_free(&out);
    uint32_t format = 3;
    memcpy(b.at + 8, &format, sizeof format);
    assert_string_equal(manifest_decode(buf_view(&b), &out), "a format this program does not know");
    buf_free(&b);
    manifest_free(&m);
}

static void an_archive_may_belong_to_it(void **state)
{
    (void)state;
    struct manifest m;
    char name[32];
    make(&m);
    uint32_t log_last = m.count - 1;
    name_put(name, 3);
    assert_true(manifest_add(&m, MANIFEST_ARCHIVE, name, UNIT));
    assert_true(manifest_is_last(&m, log_last));
    assert_null(wrong_with(&m));
    name_put(name, 12);
    assert_true(manifest_add(&m, MANIFEST_ARCHIVE, name, 5000)); /* it has an end of its own */
    assert_false(manifest_is_last(&m, log_last + 1));
    assert_true(manifest_is_last(&m, log_last + 2));
    assert_null(wrong_with(&m));
    m.files[log_last + 1].bytes = 0;
    assert_non_null(wrong_with(&m));
    m.files[log_last + 1].bytes = (uint64_t)10 * UNIT; /* into the next one */
    assert_non_null(wrong_with(&m));
    m.files[log_last + 1].bytes = UNIT;
    m.files[log_last].bytes++; /* the log must still end where it should */
    assert_non_null(wrong_with(&m));
    m.files[log_last].bytes--;
    assert_false(manifest_add(&m, MANIFEST_ARCHIVE, "CURRENT", 5));
    memcpy(m.files[log_last + 2].name, "0000000000c00001.seg", 21);
    assert_non_null(wrong_with(&m));
    manifest_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(names_that_are_none),
        cmocka_unit_test(states_that_cannot_be),
        cmocka_unit_test(changed_bytes_are_refused_or_sound),
        cmocka_unit_test(twice_the_same_name_or_out_of_order),
        cmocka_unit_test(an_archive_may_belong_to_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
