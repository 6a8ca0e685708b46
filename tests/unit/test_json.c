/* The strict JSON reader: what it accepts, what it refuses, and that what it gives is what was sent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/limits.h"
#include "http/json.h"

/* A copy of the text followed by exactly the padding the reader may look at. */
static char *padded(const void *text, size_t len)
{
    char *copy = calloc(1, len + JSON_PAD);
    assert_non_null(copy);
    memcpy(copy, text, len);
    return copy;
}

static bool accepts_bytes(const void *text, size_t len)
{
    struct json j;
    struct arena arena;
    struct slice raw;
    char *copy = padded(text, len);
    arena_init(&arena);
    json_open(&j, slice_make(copy, len), &arena);
    bool ok = json_skip(&j, &raw) && json_end(&j);
    assert_true(ok == (j.error == NULL));
    assert_true(j.at >= copy && j.at <= copy + len + JSON_PAD);
    arena_free(&arena);
    free(copy);
    return ok;
}

static bool accepts(const char *text)
{
    return accepts_bytes(text, strlen(text));
}

static void test_values_of_all_kinds_are_accepted(void **state)
{
    (void)state;
    static const char *const good[] = {
        "0",
        "-0",
        "1",
        "-1",
        "10",
        "1.5",
        "1e5",
        "1E+5",
        "1e-05",
        "0.1000",
        "9007199254740993",
        "1e400",
        "123456789012345678901234567890",
        "true",
        "false",
        "null",
        "\"\"",
        "\"a\"",
        "[]",
        "{}",
        "[1]",
        "[1,2]",
        "{\"a\":1}",
        "{\"a\":1,\"a\":2}",
        "{\"\":[]}",
        " \t\r\n[ 1 , { \"a\" : [ ] , \"b\" : { } } ] \n",
        "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\"",
        "\"\\ud83d\\ude00\"",
        "\"\\ud800\"",
        "\"\\udc00x\"",
        "\"caf\xc3\xa9\"",
        "\"\xf0\x9f\x98\x80\"",
        "\"\x7f\"",
        "[[[[[[[[]]]]]]]]",
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        if (!accepts(good[i])) fail_msg("refused: %s", good[i]);
    }
}

static void test_everything_else_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        " ",
        "nul",
        "True",
        "nulll",
        "tru",
        "+1",
        "01",
        "-",
        "1.",
        ".5",
        "1e",
        "1e+",
        "0x1",
        "1_0",
        "NaN",
        "Infinity",
        "-Infinity",
        "--1",
        "\"",
        "\"a",
        "\"\\\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\\",
        "'a'",
        "\"a\nb\"",
        "\"a\tb\"",
        "[",
        "]",
        "[1",
        "[1,",
        "[1,]",
        "[,1]",
        "[1 2]",
        "[1,,2]",
        "{",
        "}",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1",
        "{\"a\":1,",
        "{\"a\":1,}",
        "{,\"a\":1}",
        "{a:1}",
        "{1:1}",
        "{\"a\" 1}",
        "{\"a\":1 \"b\":2}",
        "{\"a\":}",
        "{\"a\"::1}",
        "[1}",
        "{\"a\":1]",
        "1 2",
        "[] []",
        "[]x",
        "{}]",
        "/**/1",
        "1//",
        "\"a\"b",
        "\xef\xbb\xbf[]",
        "\"\xff\"",
        "\"\xc3\"",
        "\"\xc3(\"",
        "\"\xed\xa0\x80\"",
        "\"\xf5\x80\x80\x80\"",
        "\"\xc0\xaf\"",
        "{\"\xff\":1}",
        "\xc3\xa9",
        "\f1",
        "\xc2\xa0"
        "1",
        "[\"a\",\n4\n,1,",
        "{\"a\":\"b\"}#",
        "[1]\x01",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (accepts(bad[i])) fail_msg("accepted: %s", bad[i]);
    }
}

static void test_zero_bytes_end_nothing_early(void **state)
{
    (void)state;
    assert_false(accepts_bytes("[1]\0", 4));
    assert_false(accepts_bytes("\0[1]", 4));
    assert_false(accepts_bytes("\"a\0b\"", 5));
    assert_false(accepts_bytes("[1\0]", 4));
    assert_false(accepts_bytes("1\0", 2));
}

/* A prefix of a text is never the text: every cut is noticed, at every length of what the vector loops look at. */
static void test_every_cut_is_refused(void **state)
{
    (void)state;
    const char text[] =
        "{\"key with more than sixteen bytes\":[\"and a value that is longer than thirty-two bytes\",-1.5e+7,true,null]}";
    assert_true(accepts(text));
    for (size_t len = 0; len < sizeof text - 1; len++) {
        if (accepts_bytes(text, len)) fail_msg("accepted at %zu bytes", len);
    }
}

static void test_special_characters_are_seen_at_every_place(void **state)
{
    (void)state;
    for (size_t len = 1; len < 70; len++) {
        char text[80];
        memset(text, 'x', sizeof text);
        text[0] = '"';
        text[len + 1] = '"';
        for (size_t at = 1; at <= len; at++) {
            assert_true(accepts_bytes(text, len + 2));
            text[at] = 0x1f;
            assert_false(accepts_bytes(text, len + 2));
            text[at] = (char)0xff;
            assert_false(accepts_bytes(text, len + 2));
            text[at] = '\\';
            assert_false(accepts_bytes(text, len + 2));
            text[at] = '"';
            assert_false(accepts_bytes(text, len + 2));
            text[at] = 'x';
        }
    }
}

static char *nested(char open, char close, size_t depth, size_t *len)
{
    char *text = malloc(depth * 12 + 8);
    assert_non_null(text);
    char *p = text;
    for (size_t i = 0; i < depth; i++) {
        *p++ = open;
        if (open == '{') p = (char *)memcpy(p, "\"k\":", 4) + 4;
    }
    if (open == '{') *p++ = '1';
    for (size_t i = 0; i < depth; i++) *p++ = close;
    *len = (size_t)(p - text);
    return text;
}

static void test_depth_is_limited_and_costs_no_stack(void **state)
{
    (void)state;
    static const size_t depths[] = {1, 63, 64, 65, 128, JSON_DEPTH_MAX, JSON_DEPTH_MAX + 1, 100000, 1000000};
    for (size_t i = 0; i < sizeof depths / sizeof depths[0]; i++) {
        for (int kind = 0; kind < 2; kind++) {
            size_t len;
            char *text = nested(kind == 0 ? '[' : '{', kind == 0 ? ']' : '}', depths[i], &len);
            assert_int_equal(accepts_bytes(text, len), depths[i] <= JSON_DEPTH_MAX);
            free(text);
        }
    }
    char *open = malloc(1000000);
    assert_non_null(open);
    memset(open, '[', 1000000);
    assert_false(accepts_bytes(open, 1000000));
    free(open);
}

/* Objects inside arrays and back, so that a level's kind must be remembered across the 64-bit words that hold it. */
static void test_brackets_of_mixed_kinds_must_match(void **state)
{
    (void)state;
    struct buf text = {0};
    for (size_t depth = 1; depth <= 200; depth++) {
        buf_clear(&text);
        for (size_t i = 0; i < depth; i++) buf_text(&text, i % 3 == 0 ? "{\"a\":" : "[");
        buf_text(&text, "0");
        for (size_t i = depth; i-- > 0;) buf_byte(&text, i % 3 == 0 ? '}' : ']');
        assert_true(accepts_bytes(text.at, text.len));
        char *last = &text.at[text.len - 1];
        *last = *last == '}' ? ']' : '}';
        assert_false(accepts_bytes(text.at, text.len));
    }
    buf_free(&text);
}

static void test_skipped_values_are_the_bytes_sent(void **state)
{
    (void)state;
    const char text[] = " { \"a\" :  [ 1, 2 ]  , \"b\":\t{ \"x\" : 1e400 } ,\"c\": \"\\u00e9\" }  ";
    static const char *const wanted[] = {"[ 1, 2 ]", "{ \"x\" : 1e400 }", "\"\\u00e9\""};
    struct json j;
    struct arena arena;
    char *copy = padded(text, sizeof text - 1);
    bool first;
    struct slice key, raw;
    arena_init(&arena);
    json_open(&j, slice_make(copy, sizeof text - 1), &arena);
    assert_true(json_object_open(&j, &first));
    for (int i = 0; json_object_next(&j, &first, &key); i++) {
        assert_int_equal(key.len, 1);
        assert_int_equal(key.at[0], 'a' + i);
        assert_true(json_skip(&j, &raw));
        assert_true(slice_is(raw, wanted[i]));
    }
    assert_true(json_end(&j));
    arena_free(&arena);
    free(copy);
}

static bool string_of(const char *text, struct arena *arena, struct slice *out, char **copy)
{
    struct json j;
    *copy = padded(text, strlen(text));
    json_open(&j, slice_make(*copy, strlen(text)), arena);
    return json_string(&j, out) && json_end(&j);
}

static void test_strings_are_unescaped(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"\"\"", ""},
        {"\"plain\"", "plain"},
        {"\"Bed\\u0026Breakfast\"", "Bed&Breakfast"},
        {"\"2026\\/07\"", "2026/07"},
        {"\"caff\\u00e8\"", "caff\xc3\xa8"},
        {"\"caff\xc3\xa8\"", "caff\xc3\xa8"},
        {"\"\\ud83d\\ude00\"", "\xf0\x9f\x98\x80"},
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t"},
        {"\"\\uFFFF\\u0800\\u07ff\\u0080\"", "\xef\xbf\xbf\xe0\xa0\x80\xdf\xbf\xc2\x80"},
        {"\"\\udbff\\udfff\"", "\xf4\x8f\xbf\xbf"},
        {"\"a\\u0041\"", "aA"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        struct arena arena;
        struct slice out;
        char *copy;
        arena_init(&arena);
        assert_true(string_of(pairs[i][0], &arena, &out, &copy));
        assert_true(slice_is(out, pairs[i][1]));
        arena_free(&arena);
        free(copy);
    }
}

static void test_half_surrogates_are_no_strings(void **state)
{
    (void)state;
    static const char *const bad[] = {"\"\\ud800\"",        "\"\\udc00\"",        "\"\\ud800x\"",      "\"\\ud800\\n\"",
                                      "\"\\ud800\\ud800\"", "\"\\udc00\\ud800\"", "\"\\ud83d\\u0041\""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct arena arena;
        struct slice out;
        char *copy;
        arena_init(&arena);
        assert_false(string_of(bad[i], &arena, &out, &copy));
        assert_true(accepts(bad[i]));
        arena_free(&arena);
        free(copy);
    }
}

static bool integer_of(const char *text, int64_t *out)
{
    struct json j;
    struct arena arena;
    char *copy = padded(text, strlen(text));
    arena_init(&arena);
    json_open(&j, slice_make(copy, strlen(text)), &arena);
    bool ok = json_integer(&j, out) && json_end(&j);
    arena_free(&arena);
    free(copy);
    return ok;
}

static void test_integers_are_exact_or_refused(void **state)
{
    (void)state;
    int64_t n;
    assert_true(integer_of("0", &n) && n == 0);
    assert_true(integer_of("-0", &n) && n == 0);
    assert_true(integer_of("-17", &n) && n == -17);
    assert_true(integer_of("9223372036854775807", &n) && n == INT64_MAX);
    assert_true(integer_of("-9223372036854775808", &n) && n == INT64_MIN);
    static const char *const bad[] = {
        "9223372036854775808",    "-9223372036854775809", "1.0", "1e3", "\"1\"", "true", "null", "[]", "",
        "99999999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_false(integer_of(bad[i], &n));
}

static void test_the_first_error_stays(void **state)
{
    (void)state;
    struct json j;
    struct arena arena;
    bool first, b;
    struct slice s;
    int64_t n;
    char *copy = padded("[1,\"a\"]", 7);
    arena_init(&arena);
    json_open(&j, slice_make(copy, 7), &arena);
    assert_true(json_array_open(&j, &first));
    assert_true(json_array_next(&j, &first));
    assert_false(json_string(&j, &s));
    const char *error = j.error;
    assert_non_null(error);
    assert_false(json_integer(&j, &n));
    assert_false(json_bool(&j, &b));
    assert_false(json_skip(&j, NULL));
    assert_false(json_array_next(&j, &first));
    assert_false(json_end(&j));
    assert_int_equal(json_peek(&j), JSON_BAD);
    assert_ptr_equal(j.error, error);
    arena_free(&arena);
    free(copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_of_all_kinds_are_accepted),
        cmocka_unit_test(test_everything_else_is_refused),
        cmocka_unit_test(test_zero_bytes_end_nothing_early),
        cmocka_unit_test(test_every_cut_is_refused),
        cmocka_unit_test(test_special_characters_are_seen_at_every_place),
        cmocka_unit_test(test_depth_is_limited_and_costs_no_stack),
        cmocka_unit_test(test_brackets_of_mixed_kinds_must_match),
        cmocka_unit_test(test_skipped_values_are_the_bytes_sent),
        cmocka_unit_test(test_strings_are_unescaped),
        cmocka_unit_test(test_half_surrogates_are_no_strings),
        cmocka_unit_test(test_integers_are_exact_or_refused),
        cmocka_unit_test(test_the_first_error_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
