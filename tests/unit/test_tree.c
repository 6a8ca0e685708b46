/* The counted ordered set against a sorted array, and exact decimals against what they must give. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/decimal.h"
#include "engine/tree.h"

enum { RECORDS = 6000, KEY_BYTES = 12 };

static char keys[RECORDS + 1][KEY_BYTES];

static struct slice key_of(const void *ctx, uint32_t record)
{
    (void)ctx;
    return slice_make(keys[record], strlen(keys[record]));
}

static uint32_t rng_state = 12345;

static uint32_t rng(uint32_t below)
{
    rng_state = rng_state * 1664525 + 1013904223;
    return (rng_state >> 8) % below;
}

static int key_compare(const void *x, const void *y)
{
    return strcmp(keys[*(const uint32_t *)x], keys[*(const uint32_t *)y]);
}

static void assert_like(const struct tree *t, const uint8_t *in)
{
    static uint32_t sorted[RECORDS];
    uint32_t count = 0;
    for (uint32_t r = 1; r <= RECORDS; r++) {
        if (in[r]) sorted[count++] = r;
    }
    qsort(sorted, count, sizeof sorted[0], key_compare);
    assert_int_equal(t->count, count);
    struct tree_place p = tree_seek(t, slice_of(""));
    for (uint32_t i = 0; i < count; i++) assert_int_equal(tree_next(&p), sorted[i]);
    assert_int_equal(tree_next(&p), 0);
    for (uint32_t i = 0; i < count; i += 1 + count / 50) {
        struct slice key = key_of(NULL, sorted[i]);
        assert_int_equal(tree_rank(t, key), i);
        p = tree_seek(t, key);
        assert_int_equal(tree_next(&p), sorted[i]);
        char behind[KEY_BYTES + 1];
        snprintf(behind, sizeof behind, "%s!", keys[sorted[i]]); /* '!' sorts before every digit */
        p = tree_seek(t, slice_of(behind));
        assert_int_equal(tree_next(&p), i + 1 < count ? sorted[i + 1] : 0);
    }
}

static void walk(bool random, uint32_t grow_percent)
{
    static uint8_t in[RECORDS + 1];
    struct tree t;
    memset(in, 0, sizeof in);
    tree_init(&t, key_of, NULL);
    for (uint32_t r = 1; r <= RECORDS; r++) snprintf(keys[r], KEY_BYTES, "%u", random ? r * 2654435761U : r + 100000);
    for (uint32_t step = 0, next = 1; step < 30000; step++) {
        uint32_t r = random ? 1 + rng(RECORDS) : 1 + next++ % RECORDS;
        bool grow = rng(100) < grow_percent;
        if (grow && !in[r]) {
            tree_insert(&t, r);
            in[r] = 1;
        } else if (!grow && in[r]) {
            tree_remove(&t, r);
            in[r] = 0;
        }
        if (step % 3000 == 0) assert_like(&t, in);
    }
    assert_like(&t, in);
    for (uint32_t r = 1; r <= RECORDS; r++) {
        if (in[r]) tree_remove(&t, r);
        in[r] = 0;
    }
    assert_like(&t, in);
    tree_free(&t);
}

static void a_tree_holds_its_records_in_key_order_and_counts_them(void **state)
{
    (void)state;
    walk(true, 60);
    walk(true, 35);
    walk(false, 95);
    walk(false, 50);
}

static void the_end_of_a_prefix_is_the_next_string_that_does_not_begin_with_it(void **state)
{
    (void)state;
    char room[8];
    struct slice end;
    assert_true(tree_prefix_end(slice_of("ab"), room, &end));
    assert_true(slice_is(end, "ac"));
    assert_true(tree_prefix_end(slice_of("a\xff\xff"), room, &end));
    assert_true(slice_is(end, "b"));
    assert_false(tree_prefix_end(slice_of("\xff"), room, &end));
    assert_false(tree_prefix_end(slice_of(""), room, &end));
}

static void assert_sum(const char *a, const char *b, const char *sum)
{
    struct decimal x, y, z;
    char text[DECIMAL_TEXT_MAX];
    assert_true(decimal_parse(slice_of(a), &x) && decimal_parse(slice_of(b), &y));
    if (sum == NULL) {
        assert_false(decimal_add(&x, &y, &z));
        return;
    }
    assert_true(decimal_add(&x, &y, &z));
    struct slice got = slice_make(text, decimal_text(&z, text));
    if (!slice_is(got, sum)) print_error("%s + %s gave %.*s\n", a, b, (int)got.len, got.at);
    assert_true(slice_is(got, sum));
    struct decimal again;
    assert_true(decimal_parse(got, &again));
    assert_int_equal(decimal_compare(&again, &z), 0);
}

static void decimals_are_added_exactly_or_not_at_all(void **state)
{
    (void)state;
    assert_sum("0.1", "0.2", "0.3");
    assert_sum("9007199254740992", "1", "9007199254740993");
    assert_sum("9223372036854775807", "1", "9223372036854775808");
    assert_sum("1E5", "1", "100001");
    assert_sum("-0", "0", "0");
    assert_sum("0.1000", "-0.1", "0");
    assert_sum("-1000", "123.456", "-876.544");
    assert_sum("99999999999999999999999999999999999999", "1", "1e38");
    assert_sum("99999999999999999999999999999999999999", "2", NULL);
    assert_sum("1e36", "0.1", "1000000000000000000000000000000000000.1");
    assert_sum("1e37", "0.1", NULL);
    assert_sum("1e38", "0.1", NULL);
    assert_sum("1e400", "1", NULL);
    assert_sum("1e400", "1e400", "2e400");
    assert_sum("0.000001", "0", "0.000001");
    assert_sum("1e-9", "0", "1e-9");
    assert_sum("1.5e-20", "0", "1.5e-20");
}

static void what_is_no_decimal_or_too_long_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",       "-",
                                      "1.",     ".5",
                                      "1e",     "1e+",
                                      "0x1",    "1 ",
                                      "NaN",    "123456789012345678901234567890123456789",
                                      "1e6145", "1e999999999999"};
    struct decimal d;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_false(decimal_parse(slice_of(bad[i]), &d));
    assert_true(decimal_parse(slice_of("1000000000000000000000000000000000000000000000000000000"), &d));
    assert_true(decimal_parse(slice_of("0.100000000000000000000000000000000000000000000000000000"), &d));
    assert_true(decimal_parse(slice_of("0e99999"), &d));
}

static void decimals_compare_by_value(void **state)
{
    (void)state;
    static const char *const rising[] = {"-1e10", "-5.5", "-5", "-0.1", "0", "1e-30", "0.1", "0.11", "5", "1e10", "1e400"};
    for (size_t i = 0; i < sizeof rising / sizeof rising[0]; i++) {
        for (size_t j = 0; j < sizeof rising / sizeof rising[0]; j++) {
            struct decimal a, b;
            assert_true(decimal_parse(slice_of(rising[i]), &a) && decimal_parse(slice_of(rising[j]), &b));
            int order = decimal_compare(&a, &b);
            assert_true(i < j ? order < 0 : i > j ? order > 0 : order == 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tree_holds_its_records_in_key_order_and_counts_them),
        cmocka_unit_test(the_end_of_a_prefix_is_the_next_string_that_does_not_begin_with_it),
        cmocka_unit_test(decimals_are_added_exactly_or_not_at_all),
        cmocka_unit_test(what_is_no_decimal_or_too_long_is_refused),
        cmocka_unit_test(decimals_compare_by_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
